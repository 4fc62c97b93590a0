"""Shared by all views: the tables, watched namespaces, open readers, rows that are being read, and checks."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from threading import Lock
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from dynastate.dynamodb.boto_tables import BotoTables, open_tables
from dynastate.dynamodb.client import endpoint_of, region_of
from dynastate.engine.engine import Engine
from dynastate.errors import (
    ConfigurationError,
    CorruptStateError,
    DynastateError,
    UnavailableError,
    VersionMissingError,
)
from dynastate.format.checkpoint import checkpoint_of_state
from dynastate.format.keys import Attempt, VersionId
from dynastate.operations.inspection.checkpoints import LoggedBatch, read_batches
from dynastate.operations.inspection.inspect import CommittedAttempt, StoreSummary, inspect_lists
from dynastate.operations.lifecycle.adopt import locations_of
from dynastate.operations.monitoring.monitor import operator_of
from dynastate.prices import Prices
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from dynastate.storage.meter import Meter
from dynastate.ui.check import Check
from dynastate.ui.cursor import Cursor
from dynastate.ui.open_values import OpenValues
from dynastate.ui.watch import FIRST_WAIT_S, LOOK_DEADLINE_S, LOOK_S, Background, Look, Watch, clock_time, now_utc

#: MiB that each open reader caches.
CACHE_MB: Final = 16
#: Seconds after which a Scan lists all namespaces again: at least so many, and so many for each of its read units.
NAMESPACES_S: Final = 60.0
NAMESPACES_UNIT_S: Final = 1.0
#: Seconds without an answer after which a view fails.
VIEW_DEADLINE_S: Final = 10.0
#: Seconds after which the version lists of an unchanged store are read again, and stores whose lists are in memory;
#: so many logs of queries are in memory, too.
LISTS_S: Final = 300.0
LISTS_MAX: Final = 32
#: The batches of a query that are shown, and the seconds after which their files are read again without a new version.
LOG_BATCHES: Final = 20
LOG_S: Final = 10.0

Result = TypeVar("Result", bound=Cursor[Any])
Value = TypeVar("Value")
#: Versions, each with the attempts that made it, one a partition.
Attempts = Mapping[int, tuple[Attempt, ...]]


@dataclass(frozen=True)
class StoreLists:
    """Summary and versions of a store as they were read at `looked`, when `attempt` was its newest."""

    summary: StoreSummary
    versions: Sequence[CommittedAttempt]
    looked: datetime
    attempt: bytes
    read_s: float


@dataclass(frozen=True)
class QueryLog:
    """The newest batches of a query whose checkpoint is in DynamoDB, the newest first, as they were read at `looked`.

    `version` was the newest one of the query. A log that is corrupt has a `problem`, and no batches.
    """

    checkpoint: str
    batches: Sequence[LoggedBatch]
    looked: datetime
    version: int
    read_s: float
    problem: str = ""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the checkpoint is not in DynamoDB."""
        return not self.checkpoint and not self.problem


def _options(settings: Settings) -> list[str]:
    """The options of a command line that name the same tables, whatever another terminal has in variables and files."""
    options = {
        "--delta-table": settings.delta_table,
        "--snapshot-table": settings.snapshot_table,
        "--objects-endpoint": settings.objects_endpoint,
        "--aws-profile": os.environ.get("AWS_PROFILE", ""),
        "--endpoint": endpoint_of(settings),
        "--region": region_of(settings),
    }
    return [f"{name} {shlex.quote(value)}" for name, value in options.items() if value]


def _footer(settings: Settings) -> list[tuple[str, str]]:
    """The place of the tables, by label."""
    region = region_of(settings)
    labels = {
        "Region": region or "of the environment",
        "Endpoint": endpoint_of(settings) or "DynamoDB of the Region",
        "Tables": f"{settings.delta_table}, {settings.snapshot_table}",
        "Profile": os.environ.get("AWS_PROFILE", ""),
    }
    return [(label, value) for label, value in labels.items() if value]


def with_versions(reader: StateReader, attempts: Attempts) -> StateReader:
    """Return the reader if it has these versions. Close and refuse one for which a run has made some again."""
    try:
        other = next((version for version, by in attempts.items() if reader.made_by(version) != by), None)
        if other is not None:
            raise VersionMissingError(
                "the query was taken back a moment ago, and has made this version again; open this view again",
                store=reader.store,
                version=other,
            )
    except BaseException:
        reader.close()
        raise
    return reader


class Listing:
    """All namespaces of some tables, listed in the background."""

    def __init__(self, tables: BotoTables, clock: Callable[[], float] = time.monotonic) -> None:
        self._tables = tables
        self._names: list[str] | None = None
        self._failed: DynastateError | None = None
        self._spent = Meter()
        self._background = Background(self._list, clock)

    def names(self, spent: Meter) -> list[str] | None:
        """The namespaces by the last listing. Returns None during the first listing."""
        is_retried = self._failed is not None
        self._background.begin(LOOK_S if is_retried else max(NAMESPACES_S, NAMESPACES_UNIT_S * self._spent.read_units))
        if self._names is None and not is_retried:
            self._background.wait(FIRST_WAIT_S)
        if self._names is None and self._failed is not None:
            raise self._failed
        spent.add(self._spent)
        return self._names

    def _list(self) -> None:
        tables = self._tables.metered(Meter())
        try:
            self._names = sorted({store.split("/")[0] for store in tables.find_stores()})
            self._failed = None
        except DynastateError as failed:
            self._failed = failed
        self._spent = tables.meter


class Site:
    """The tables that `settings` name, and open readers and results. Safe for threads; `close` ends it.

    It shows `namespaces`, or, if there are none, all that a Scan lists.
    """

    def __init__(self, settings: Settings, namespaces: Sequence[str] = (), reports: str = "") -> None:
        self.settings = replace(settings, cache_mb=CACHE_MB)
        self.prices = Prices.of(settings)
        self._reports = reports
        self._namespaces = list(namespaces)
        self._watches: dict[str, Watch] = {}
        self._lists: dict[str, StoreLists] = {}
        self._logs: dict[str, QueryLog] = {}
        self._readers: OpenValues[StateReader] = OpenValues()
        #: The newest versions by the look at which a reader was opened or refreshed.
        self._looked: WeakKeyDictionary[StateReader, dict[str, VersionId]] = WeakKeyDictionary()
        self._cursors: OpenValues[Cursor[Any]] = OpenValues()
        self.checks: dict[str, Check] = {}
        self._lock = Lock()
        with ExitStack() as opened:
            #: For `verify`, which may take as long as a command.
            self.patient_tables = self._open(settings.request_deadline_s, opened)
            self.tables = self._open(min(VIEW_DEADLINE_S, settings.request_deadline_s), opened)
            self.engine = Engine(self.tables, self.settings)
            opened.callback(self.engine.close)
            self._look_tables = self._open(LOOK_DEADLINE_S, opened)
            self._look_engine = Engine(self._look_tables, self.settings)
            opened.callback(self._look_engine.close)
            self._opened = opened.pop_all()
        self._listing = Listing(self._look_tables)
        self.options = _options(settings)
        self.footer = _footer(settings)

    def _open(self, deadline_s: float, opened: ExitStack) -> BotoTables:
        tables = open_tables(self.settings, deadline_s=deadline_s)
        opened.callback(tables.close)
        return tables

    def close(self) -> None:
        """Close the readers and the tables."""
        self._cursors.close()
        self._readers.close()
        for check in self.checks.values():
            check.cancel()
        self._opened.close()

    def namespaces(self, spent: Meter) -> list[str] | None:
        """The namespaces that are shown. Returns None while they are being listed."""
        return self._namespaces or self._listing.names(spent)

    def looks(self, namespaces: Sequence[str]) -> list[Look]:
        """Namespaces by their last looks, which are made at once."""
        watches = [self.watch(each) for each in namespaces]
        for watch in watches:
            watch.begin()
        began_s = time.monotonic()
        return [each.latest(time.monotonic() - began_s) for each in watches]

    def reachable(self, namespace: str) -> Look:
        """A namespace, by a look that was answered, so that a view of it can be read."""
        look = self.watch(namespace).latest()
        if look.is_unreachable:
            raise UnavailableError(
                f"DynamoDB has not answered since {clock_time(look.failed)}, so this cannot be read; the last answer "
                f"was at {clock_time(look.looked)}: {look.problem}"
            )
        return look

    def lost(self, namespace: str) -> Look | None:
        """The last look at a namespace, if DynamoDB does not answer it any longer. It sends no request."""
        watch = self._watches.get(namespace)
        return None if watch is None or not watch.last_look.is_unreachable else watch.last_look

    def watch(self, namespace: str) -> Watch:
        """The watch of a namespace. Refuse one that is not shown here."""
        if self._namespaces and namespace not in self._namespaces:
            raise ConfigurationError("this page was not started for this namespace", namespace=repr(namespace[:100]))
        with self._lock:
            if namespace not in self._watches:
                self._watches[namespace] = Watch(
                    self._look_engine, self._look_tables, namespace, self.prices, reports=self._reports
                )
            return self._watches[namespace]

    def lists(self, look: Look, store: str, spent: Meter) -> StoreLists:
        """The version lists of a store, read again if its newest version is another, or after `LISTS_S`.

        While DynamoDB does not answer, they are the ones that were read before.
        """
        lineage = look.lineages.get(store)
        attempt = b"" if lineage is None else lineage.newest.attempt
        lists = self._lists.get(store)
        if lists is not None:
            is_new = lists.attempt == attempt and time.monotonic() - lists.read_s < LISTS_S
            if is_new or look.is_unreachable:
                return lists
        self.reachable(look.namespace)
        looked = now_utc()
        summary, versions = inspect_lists(self.tables.metered(spent), store)
        lists = StoreLists(summary, versions, looked, attempt, read_s=time.monotonic())
        self._remember(self._lists, store, lists)
        return lists

    def _remember(self, values: dict[str, Value], name: str, value: Value) -> None:
        """Enter a value, and forget the oldest of more than `LISTS_MAX`."""
        with self._lock:
            values.pop(name, None)
            values[name] = value
            while len(values) > LISTS_MAX:
                del values[next(iter(values))]

    def log(self, look: Look, spent: Meter) -> QueryLog | None:
        """The newest batches of a query, read again after each version, and after `LOG_S`; else as they were read.

        It reads the meta item of a store, which names the checkpoint, and the files of these batches by two Queries.
        A checkpoint that is elsewhere is looked for again after `LISTS_S`. Returns None if nothing was read yet.
        While DynamoDB does not answer, the log is the one that was read before.
        """
        log = self._logs.get(look.namespace)
        version = max((lineage.newest.version for lineage in look.lineages.values()), default=0)
        if look.is_unreachable or not version:
            return log
        if log is not None:
            is_new = log.version == version or log.is_elsewhere
            if is_new and time.monotonic() - log.read_s < (LISTS_S if log.is_elsewhere else LOG_S):
                return log
        try:
            log = self._read_log(next(iter(look.lineages)), version, spent)
        except UnavailableError:  # no error: the batches have the time at which they were read
            return log
        except CorruptStateError as corrupt:
            self.engine.name_table(corrupt)
            log = QueryLog("", [], now_utc(), version, read_s=time.monotonic(), problem=str(corrupt))
        self._remember(self._logs, look.namespace, log)
        return log

    def _read_log(self, store: str, version: int, spent: Meter) -> QueryLog:
        tables = self._look_tables.metered(spent)
        checkpoint = checkpoint_of_state(next(iter(locations_of(tables, [store])), ""))
        first = max(0, version - LOG_BATCHES)
        batches = [] if checkpoint is None else read_batches(tables, checkpoint, first, first + LOG_BATCHES)
        name = "" if checkpoint is None else checkpoint.location
        return QueryLog(name, batches, now_utc(), version, read_s=time.monotonic())

    @contextmanager
    def reader(self, stores: str, family: str = "") -> Iterator[StateReader]:
        """A reader of `namespace/operator/*/name`, at the newest version by the last look."""
        look = self.reachable(stores.split("/", maxsplit=1)[0])
        looked = {store: each.newest.id for store, each in look.lineages.items() if operator_of(store) == stores}
        with self._readers.use((stores, family), lambda: self.open_reader(stores, family)) as reader:
            # To refresh takes a request for each partition, and may take a search for the stores.
            if not looked or self._looked.get(reader) not in (None, looked):
                reader.refresh()
            self._looked[reader] = looked
            yield reader

    def open_reader(self, stores: str, family: str = "") -> StateReader:
        """Open a reader for one result, which will close it."""
        return StateReader(self.tables, self.settings, stores, family or None)

    def cursor(self, key: Hashable, make: Callable[[], Result]) -> AbstractContextManager[Result]:
        """The open result of a key, which is made if there is none."""
        cursors: OpenValues[Any] = self._cursors
        return cursors.use(key, make)
