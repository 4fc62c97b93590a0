"""`verify` in the background, with its progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event, Thread

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.errors import CorruptStateError, DynastateError, VersionMissingError
from dynastate.operations.inspection.findings import Report
from dynastate.operations.inspection.verify import verify
from dynastate.storage.meter import Meter


class _CancelledError(Exception):
    """Somebody cancelled the check."""


@dataclass
class Check:
    """The check of some stores, one after the other. It is over when `is_running` is false."""

    tables: BotoTables
    stores: Sequence[str]
    reports: list[Report] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    is_running: bool = True
    is_cancelled: bool = False
    _cancel: Event = field(default_factory=Event)

    def start(self) -> Check:
        Thread(target=self._run, name="dynastate-check", daemon=True).start()
        return self

    def cancel(self) -> None:
        """End the check before its next request."""
        self._cancel.set()

    @property
    def done(self) -> int:
        return len(self.reports) + len(self.failed)

    @property
    def spent(self) -> Meter:
        spent = Meter()
        for report in list(self.reports):
            spent.add(report.meter)
        return spent

    def _run(self) -> None:
        try:
            for store in self.stores:
                self._verify(store)
        except _CancelledError:
            self.is_cancelled = True
        finally:
            self.is_running = False

    def _verify(self, store: str) -> None:
        try:
            self._progress()
            self.reports.append(verify(self.tables, store, self._progress, with_record=store == self.stores[0]))
        except DynastateError as error:
            if isinstance(error, (CorruptStateError, VersionMissingError)):
                error.name_table(self.tables.names)
            self.failed[store] = str(error)

    def _progress(self, _count: int = 0, _total: int | None = None) -> None:
        if self._cancel.is_set():
            raise _CancelledError
