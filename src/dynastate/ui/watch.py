"""One namespace, read again in the background while somebody looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from threading import BoundedSemaphore, Event, Lock, Thread
from typing import Final

from dynastate.counts import plural
from dynastate.engine.catalog import queries_of
from dynastate.engine.engine import Engine
from dynastate.engine.graphs import meta_items
from dynastate.engine.lineage import Lineage
from dynastate.engine.namespaces import read_namespace
from dynastate.errors import (
    ConfigurationError,
    CorruptStateError,
    DynastateError,
    UnavailableError,
    VersionMissingError,
)
from dynastate.format.meta import parse_meta
from dynastate.operations.cost.log import LogUsage, read_log
from dynastate.operations.inspection.operator_names import operator_name
from dynastate.operations.lifecycle.runs import read_meta
from dynastate.operations.monitoring.monitor import Monitor, StoreActivity, operator_of, with_report
from dynastate.operations.monitoring.reports import Batch, ReportFile
from dynastate.operations.monitoring.skew import StoreLoad, read_loads
from dynastate.prices import Prices
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables

#: Seconds after which a look, and the sizes of stores that have changed, are read again.
LOOK_S: Final = 2.0
LOADS_S: Final = 60.0
#: Seconds after which the log of a query that writes is read again, as a whole: what it takes hardly changes.
LOG_S: Final = 900.0
#: Seconds that a view waits for a look that is under way, and for the first look, and the age of an old look.
WAIT_S: Final = 1.5
FIRST_WAIT_S: Final = 10.0
OLD_S: Final = 10.0
#: Seconds without an answer after which a look fails: less than a view waits.
LOOK_DEADLINE_S: Final = 1.0
#: The stores are listed again when a run has begun, when a store is missing, and after so many seconds. In its first
#: batch a query makes its stores.
FIRST_BATCH_S: Final = 10.0
NO_STORES_S: Final = 60.0
STORES_S: Final = 900.0
#: How often the sizes of a store are read for one version: maintenance may follow a commit.
LOADS_OF_A_VERSION: Final = 2
#: Looks at the same time.
LOOKS_AT_ONCE: Final = 8
#: An operator is stopped after so many of its batches without a commit, and at least so long.
STOPPED_TIMES: Final = 3
STOPPED_MIN_S: Final = 60.0
#: What a report has as the name of an operator without one: Spark 3.5 gives session windows none.
NO_NAMES: Final = ("", "defaultName")
NO_STORES: Final = "no store of this namespace is in the tables: it was dropped, or its query has not begun"
NOT_COMMITTED: Final = "the first batch is not committed in all partitions yet"


def now_utc() -> datetime:
    return datetime.now(timezone.utc)


def clock_time(instant: datetime | None) -> str:
    """A time of today as `14:31:05`, an earlier one with its day, in UTC."""
    if instant is None:
        return "never"
    return _with_day(instant, "%H:%M:%S", now_utc())


def date_time(instant_ms: float, looked: datetime | None) -> str:
    """A time of today as `14:31`, an earlier one with its day, in UTC."""
    instant = datetime.fromtimestamp(instant_ms / 1000, timezone.utc)
    return _with_day(instant, "%H:%M", looked or now_utc())


def _with_day(instant: datetime, clock: str, today: datetime) -> str:
    day = "" if instant.date() == today.date() else "%d %b %Y, "
    return f"{instant:{day}{clock}} UTC"


@contextmanager
def counted(meter: Meter, spent: Meter) -> Iterator[None]:
    """Add to `spent` the requests and units that a reader's meter counts within the block."""
    requests, units = meter.requests, meter.read_units
    try:
        yield
    finally:
        spent.requests += meter.requests - requests
        spent.read_units += meter.read_units - units


class Background:
    """A look that is made in a thread of its own, one at a time."""

    _slots = BoundedSemaphore(LOOKS_AT_ONCE)

    def __init__(self, look: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._look, self._clock = look, clock
        self._lock = Lock()
        self._under_way: Event | None = None
        self._ended_s = -float("inf")

    def begin(self, every_s: float) -> None:
        """Begin a look, unless one is under way, or the last one has ended less than so many seconds ago."""
        with self._lock:
            if self._under_way is None and self._clock() - self._ended_s > every_s:
                self._under_way = Event()
                Thread(target=self._run, args=(self._under_way,), name="dynastate-look", daemon=True).start()

    def wait(self, seconds: float) -> None:
        """Wait for the look that is under way, if there is one, at most so many seconds."""
        under_way = self._under_way
        if under_way is not None:
            under_way.wait(max(0.0, seconds))

    def _run(self, ended: Event) -> None:
        try:
            with self._slots:
                self._look()
        finally:
            with self._lock:
                self._ended_s, self._under_way = self._clock(), None
            ended.set()


@dataclass(frozen=True)
class Health:
    """One word, and its reason."""

    mark: str
    why: str


@dataclass(frozen=True)
class Look:
    """A namespace by the last look that was answered, at `looked`, which is None before the first.

    `problem` says why the looks since `failed` have failed, and `is_unreachable` whether DynamoDB did not answer them.
    A namespace that `is_missing` has no stores. `log` is the usage of the query's log, if that is in DynamoDB. `spent`
    is the meter of the last look.
    """

    namespace: str
    activities: Sequence[StoreActivity] = ()
    loads: Sequence[StoreLoad] = ()
    lineages: Mapping[str, Lineage] = field(default_factory=dict)
    batches: Sequence[Batch] = ()
    has_reports: bool = False
    log: LogUsage | None = None
    spent: Meter = field(default_factory=Meter)
    looked: datetime | None = None
    failed: datetime | None = None
    problem: str = ""
    is_unreachable: bool = False
    is_missing: bool = False

    @property
    def why_nothing(self) -> str:
        """The reason for a view without figures."""
        if self.is_missing:
            return NO_STORES
        return self.problem or "the first look at it is not done yet; open this view again in some seconds"

    @property
    def is_old(self) -> bool:
        """Whether the figures are old."""
        return bool(self.problem) or (self.looked is not None and self.age_s > OLD_S)

    @property
    def age_s(self) -> float:
        """Seconds since the look that was answered."""
        return 0.0 if self.looked is None else max(0.0, (now_utc() - self.looked).total_seconds())

    def operator_name(self, stores: str) -> str:
        """Spark's name of the operator of `namespace/operator/*/name`, or an empty text.

        It is by the last report, or by the columns of its stores.
        """
        number = int(stores.split("/")[1])
        reported = self.batches[-1].operator_names[number : number + 1] if self.batches else ()
        if reported and reported[0] not in NO_NAMES:
            return reported[0]
        lineage = next((each for store, each in self.lineages.items() if operator_of(store) == stores), None)
        return "" if lineage is None else operator_name(stores.rpartition("/")[2], lineage.schema(lineage.newest))

    def loads_of(self, stores: str) -> list[StoreLoad]:
        """The loads of the partitions of `namespace/operator/*/name`."""
        return [each for each in self.loads if operator_of(each.store) == stores]

    def behind_s(self, activity: StoreActivity) -> float:
        """Seconds from the last commit of the partition that committed least recently to the look."""
        looked_s = time.time() if self.looked is None else self.looked.timestamp()
        return max(0.0, looked_s - activity.committed_ms / 1000)

    def health(self, activity: StoreActivity) -> Health:
        """The health of an operator. If its namespace has a `problem`, this is the reason of the failure."""
        if self.problem and not self.is_unreachable:
            return Health("failing", "it cannot be read")
        health = self._health(activity)
        return Health("old", f"{health.mark} at {clock_time(self.looked)}") if self.is_old else health

    def is_stopped(self, activity: StoreActivity) -> bool:
        """Whether an operator has not committed for longer than three of its batches, and a minute."""
        return self.behind_s(activity) > max(STOPPED_MIN_S, STOPPED_TIMES * (activity.batch_s or 0.0))

    def _health(self, activity: StoreActivity) -> Health:
        """The health at the time of the look."""
        throttled = f"{plural(activity.throttles, 'request')} of the last batch" if activity.throttles else ""
        if self.is_stopped(activity):
            why = f"no commit since {date_time(activity.committed_ms, self.looked)}"
            return Health("stopped", f"{why}; throttled: {throttled}" if throttled else why)
        if throttled:
            return Health("throttled", throttled)
        if activity.lag > 1:
            return Health("behind", f"a partition is {plural(activity.lag, 'version')} behind another")
        return Health("ok", "")


class Watch:
    """A namespace's current query. `latest` looks again, and answers after `WAIT_S` at most, except for the first look.

    `engine` and `tables` should fail after `LOOK_DEADLINE_S`. `clock` is in seconds.
    """

    def __init__(
        self,
        engine: Engine,
        tables: Tables,
        namespace: str,
        prices: Prices,
        reports: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._tables, self._prices, self._clock = engine, tables, prices, clock
        self._reports = ReportFile(reports) if reports else None
        self.last_look = Look(namespace, has_reports=bool(reports))
        self._monitor: Monitor | None = None
        self._stores: list[str] = []
        self._loads: dict[str, StoreLoad] = {}
        #: The newest attempt of each store whose sizes were read, and the number of readings.
        self._sized: dict[str, tuple[bytes, int]] = {}
        self._runs: frozenset[str] = frozenset()
        self._epoch = self._runs_epoch = -1
        self._log: LogUsage | None = None
        self._listed_s = self._sized_s = self._logged_s = -float("inf")
        self._background = Background(self._look, clock)

    def begin(self) -> None:
        """Begin a look, if the last one is older than `LOOK_S`."""
        self._background.begin(NO_STORES_S if self.last_look.is_missing else LOOK_S)

    def latest(self, waited_s: float = 0.0) -> Look:
        """The namespace by a look that is not older than `LOOK_S`, or by the last one that was answered.

        While looks fail it does not wait for the next one. The caller has waited for `waited_s` already.
        """
        self.begin()
        if self.last_look.looked is None and not self.last_look.problem:
            self._background.wait(FIRST_WAIT_S - waited_s)
        elif not self.last_look.is_unreachable:
            self._background.wait(WAIT_S - waited_s)
        return self.last_look

    def _look(self) -> None:
        spent, began = Meter(), now_utc()
        try:
            look = self._read(self._tables.metered(spent))
            self.last_look = replace(look, spent=spent, looked=began, failed=None, problem="", is_unreachable=False)
        except VersionMissingError as failed:
            is_first = not self.last_look.activities
            self._fail(spent, None if is_first else began, NOT_COMMITTED if is_first else self._text(failed))
        except (UnavailableError, ConfigurationError) as failed:
            # An endpoint that cannot be reached at the start may be wrong, which is an error of configuration.
            is_unreachable = isinstance(failed, UnavailableError) or self.last_look.looked is None
            self._fail(spent, began, str(failed), is_unreachable=is_unreachable)
        except DynastateError as failed:
            self._fail(spent, began, self._text(failed))
        except Exception as defect:
            self._fail(spent, began, f"a defect of dynastate, please report it: {type(defect).__name__}")
            raise  # the program's output has the trace

    def _text(self, failed: DynastateError) -> str:
        self._engine.name_table(failed)
        return str(failed)

    def _fail(self, spent: Meter, began: datetime | None, problem: str, *, is_unreachable: bool = False) -> None:
        failed = began and (self.last_look.failed or began)
        look = replace(self.last_look, spent=spent, failed=failed, problem=problem)
        self.last_look = replace(look, is_unreachable=is_unreachable)

    def _read(self, tables: Tables) -> Look:
        is_listed = self._monitor is None or self._clock() - self._listed_s > self._list_every_s
        if is_listed:
            self._list(tables)
        try:
            activities = self._activities(tables.meter)
        except (VersionMissingError, CorruptStateError):
            # Stores that are dropped lose their versions before their meta items.
            if is_listed or (self.last_look.problem and self._clock() - self._listed_s < NO_STORES_S):
                raise
            self._list(tables)
            activities = self._activities(tables.meter)
        if not is_listed and self._newest_epoch > self._epoch:  # a run has begun, maybe of another query
            monitor = self._monitor
            self._list(tables)
            activities = activities if self._monitor is monitor else self._activities(tables.meter)
        if self._monitor is None:
            return Look(self.last_look.namespace, has_reports=self.last_look.has_reports, is_missing=True)
        lineages = self._monitor.lineages
        self._epoch = self._newest_epoch
        batches: Sequence[Batch] = ()
        if self._reports is not None:
            if self._epoch != self._runs_epoch:
                self._runs = frozenset(read_meta(tables, self._stores[0]).epochs)
                self._runs_epoch = self._epoch
            activities = with_report(activities, self._reports.last_batch(self._runs))
            batches = self._reports.recent(self._runs)
        self._size(tables, lineages)
        return replace(
            self.last_look,
            activities=activities,
            loads=[self._loads[store] for store in self._stores if store in self._loads],
            lineages=lineages,
            batches=batches,
            log=self._log,
            is_missing=False,
        )

    @property
    def _newest_epoch(self) -> int:
        lineages = {} if self._monitor is None else self._monitor.lineages
        return max((each.newest.epoch for each in lineages.values()), default=-1)

    @property
    def _list_every_s(self) -> float:
        is_first_batch = all(each.version <= 1 for each in self.last_look.activities)
        return FIRST_BATCH_S if is_first_batch else STORES_S

    def _list(self, tables: Tables) -> None:
        """List the stores of the current query, without those that are being dropped."""
        namespace_items = read_namespace(tables, self.last_look.namespace)
        items = meta_items(tables, namespace_items.listed)
        live_items = {store: item for store, item in items.items() if not parse_meta(store, item).dropped}
        stores = queries_of(tables, namespace_items, live_items).current
        if stores != self._stores:
            self._monitor = Monitor(self._engine, stores, self._clock, self._prices) if stores else None
            self._logged_s = -float("inf")
            self._loads = {store: load for store, load in self._loads.items() if store in stores}
            self._sized = {store: sized for store, sized in self._sized.items() if store in stores}
            self._sized_s = -float("inf")
        self._stores, self._listed_s = stores, self._clock()

    def _activities(self, spent: Meter) -> Sequence[StoreActivity]:
        if self._monitor is None:
            return ()
        with counted(self._monitor.meter, spent):
            return self._monitor.look()

    def _size(self, tables: Tables, lineages: Mapping[str, Lineage]) -> None:
        """Read the sizes of the stores that have changed since they were read."""
        if self._clock() - self._sized_s <= LOADS_S:
            return
        changed: dict[str, tuple[bytes, int]] = {}
        for store, lineage in lineages.items():
            attempt, times = self._sized.get(store, (b"", 0))
            times = times + 1 if attempt == lineage.newest.attempt else 1
            if times <= LOADS_OF_A_VERSION:
                changed[store] = lineage.newest.attempt, times
        self._loads |= {load.store: load for load in read_loads(tables, list(changed))}
        self._sized |= changed
        self._sized_s = self._clock()
        if changed and self._clock() - self._logged_s > LOG_S:
            self._log = read_log(tables, self.last_look.namespace)
            if self._monitor is not None:
                self._monitor.log = self._log
            self._logged_s = self._clock()
