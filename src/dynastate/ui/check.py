"""`verify` in the background, with its progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Thread

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.errors import CorruptStateError, DynastateError, VersionMissingError
from dynastate.operations.inspection.findings import Report
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.verify_checkpoint import CheckpointReport, verify_checkpoints
from dynastate.storage.meter import Meter


class _CancelledError(Exception):
    """Somebody cancelled the check."""


@dataclass
class Check:
    """The check of a namespace's stores, one after the other, and of its checkpoints in DynamoDB.

    It is over when `is_running` is false. What `failed` is named by its store, or is the namespace.
    """

    tables: BotoTables
    namespace: str
    stores: Sequence[str]
    reports: list[Report] = field(default_factory=list)
    checkpoints: list[CheckpointReport] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    checked: int = 0
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
    def spent(self) -> Meter:
        spent = Meter()
        for meter in [*(each.meter for each in self.reports), *(each.meter for each in self.checkpoints)]:
            spent.add(meter)
        return spent

    def _run(self) -> None:
        try:
            for store in self.stores:
                self._try(store, partial(self._verify, store))
                self.checked += 1
            self._try(self.namespace, self._verify_checkpoints)
        except _CancelledError:
            self.is_cancelled = True
        finally:
            self.is_running = False

    def _verify(self, store: str) -> None:
        self.reports.append(verify(self.tables, store, self._progress, with_record=store == self.stores[0]))

    def _verify_checkpoints(self) -> None:
        self.checkpoints += verify_checkpoints(self.tables, self.namespace, self._progress)

    def _try(self, name: str, work: Callable[[], None]) -> None:
        try:
            self._progress()
            work()
        except DynastateError as error:
            if isinstance(error, (CorruptStateError, VersionMissingError)):
                error.name_table(self.tables.names)
            self.failed[name] = str(error)

    def _progress(self, _count: int = 0, _total: int | None = None) -> None:
        if self._cancel.is_set():
            raise _CancelledError
