"""One namespace, read again in the background while somebody looks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from threading import Lock, Thread
from typing import Final

from dynastate.counts import plural
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.meter import Meter
from dynastate.engine.catalog import of_namespace
from dynastate.engine.engine import Engine
from dynastate.engine.reader import Lineage
from dynastate.errors import DynastateError
from dynastate.operations.monitor import Monitor, StoreActivity, with_report
from dynastate.operations.reports import Batch, ReportFile
from dynastate.operations.runs import read_meta
from dynastate.operations.skew import StoreLoad, read_loads
from dynastate.prices import Prices

#: Seconds after which a look, the sizes of stores, and the list of stores are old.
LOOK_S: Final = 2.0
LOADS_S: Final = 60.0
STORES_S: Final = 30.0
#: An operator is idle after so many of its batches, and at least so long.
IDLE_TIMES: Final = 3
IDLE_MIN_S: Final = 60.0


@dataclass(frozen=True)
class Health:
    """One word, and its reason."""

    mark: str
    why: str


@dataclass(frozen=True)
class Known:
    """A namespace by the last look, which took `spent`; `problem` says why there is none."""

    namespace: str
    activities: Sequence[StoreActivity] = ()
    loads: Sequence[StoreLoad] = ()
    lineages: Mapping[str, Lineage] = field(default_factory=dict)
    batches: Sequence[Batch] = ()
    has_reports: bool = False
    spent: Meter = field(default_factory=Meter)
    looked: datetime | None = None
    problem: str = ""

    def loads_of(self, stores: str) -> list[StoreLoad]:
        """The loads of the partitions of `namespace/operator/*/name`."""
        namespace, operator, _, name = stores.split("/")
        return [
            each
            for each in self.loads
            if (*each.store.split("/")[:2], each.store.split("/", 3)[3]) == (namespace, operator, name)
        ]

    def behind_s(self, activity: StoreActivity) -> float:
        """Seconds since the last commit of the partition that committed least recently."""
        return max(0.0, time.time() - activity.committed_ms / 1000)

    def health(self, activity: StoreActivity) -> Health:
        """How an operator does."""
        if self.problem:
            return Health("failed", self.problem)
        if activity.throttles:
            return Health("throttled", f"{plural(activity.throttles, 'request')} of the last batch")
        usual_s = activity.batch_s or 0.0
        behind_s = self.behind_s(activity)
        if behind_s > max(IDLE_MIN_S, IDLE_TIMES * usual_s):
            return Health("idle", "no commit for longer than three of its batches, and a minute")
        if activity.lag > 1:
            return Health("behind", f"a partition is {plural(activity.lag, 'version')} behind another")
        return Health("ok", "it commits as usual")


class Watch:
    """A namespace's current query. `known` answers at once, but for the first time, and looks again."""

    def __init__(self, engine: Engine, tables: BotoTables, namespace: str, prices: Prices, reports: str = "") -> None:
        self._engine, self._tables, self._prices = engine, tables, prices
        self._reports = ReportFile(reports) if reports else None
        self._known = Known(namespace, has_reports=bool(reports))
        self._monitor: Monitor | None = None
        self._stores: list[str] = []
        self._looked_s = self._loaded_s = self._listed_s = -float("inf")
        self._looking = Lock()

    def known(self) -> Known:
        """The last look at it. Another one begins in the background where that is older than `LOOK_S`."""
        if self._known.looked is None:
            with self._looking:
                if self._known.looked is None:
                    self._look()
        elif time.monotonic() - self._looked_s > LOOK_S and self._looking.acquire(blocking=False):
            Thread(target=self._look_and_release, name="dynastate-look", daemon=True).start()
        return self._known

    def _look_and_release(self) -> None:
        try:
            self._look()
        finally:
            self._looking.release()

    def _look(self) -> None:
        spent, now_s = Meter(), time.monotonic()
        looked = datetime.now(timezone.utc)
        try:
            self._known = replace(self._read(spent, now_s), spent=spent, looked=looked, problem="")
        except DynastateError as failed:
            self._engine.name_table(failed)
            self._monitor = None
            self._known = replace(self._known, spent=spent, looked=looked, problem=str(failed))
        self._looked_s = time.monotonic()

    def _read(self, spent: Meter, now_s: float) -> Known:
        if self._monitor is None or now_s - self._listed_s > STORES_S:
            stores = of_namespace(self._tables, self._known.namespace, spent).current
            if self._monitor is None or stores != self._stores:
                self._monitor = Monitor(self._engine, stores, time.monotonic, self._prices)
                self._loaded_s = -float("inf")
            self._stores, self._listed_s = stores, now_s
        before = self._monitor.meter.read_units, self._monitor.meter.requests
        activities = self._monitor.look()
        spent.read_units += self._monitor.meter.read_units - before[0]
        spent.requests += self._monitor.meter.requests - before[1]
        loads = self._known.loads
        if now_s - self._loaded_s > LOADS_S:
            loads = read_loads(self._tables, self._stores, spent)
            self._loaded_s = now_s
        batches: Sequence[Batch] = ()
        if self._reports is not None:
            runs = read_meta(self._tables, self._stores[0], spent)[1].epochs.keys()
            operators = self._reports.last_batch(runs)
            activities = with_report(activities, operators, self._reports.last_duration_ms(runs))
            batches = self._reports.recent(runs)
        return replace(
            self._known,
            activities=activities,
            loads=loads,
            lineages=self._monitor.lineages,
            batches=batches,
        )
