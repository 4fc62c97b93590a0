"""Activity of running stores, by reading their version lists again and again.

Commit times and throttled requests are not in the tables; they come from Spark's progress reports (docs/metrics.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from dynastate import runtime
from dynastate.engine.engine import Engine
from dynastate.engine.lineage import Lineage
from dynastate.format.graph import last_of_one_run
from dynastate.format.version_list import VersionEntry
from dynastate.operations.cost.log import LogUsage
from dynastate.operations.cost.prediction import DAY_S
from dynastate.operations.cost.usage import commit_units, part_puts, part_units
from dynastate.operations.inspection.inspect import families_of, rows_of
from dynastate.operations.monitoring.choices import Order
from dynastate.operations.monitoring.reports import Batch
from dynastate.operations.scope import STORES_AT_ONCE
from dynastate.prices import DEFAULT_PRICES, Prices
from dynastate.storage.meter import Meter

#: All write units for one of a part, with snapshots and the deletes of both (docs/costs.md, "Rule of thumb").
CHANGED_UNITS: Final = 3.6
#: Versions over which the time of a batch is averaged.
BATCHES: Final = 10


@dataclass(frozen=True)
class StoreActivity:
    """Activity of the stores of one operator with one name, all partitions together.

    `version` is the newest version that all partitions have committed, and `lag` the number of versions between the
    most and the least advanced partition. `batch_s` is the average time from one version to the next, over the last
    versions. `committed_ms` is the last commit of the partition that committed least recently, by its executor's clock.
    Versions, write units of commits (without maintenance) and changed rows are per second, since the previous look.
    `dollars_a_day` is the price of these, with the snapshots and deletes that follow by the rule of thumb of
    docs/costs.md. These are None at the first look. The first operator has the write units of the query's log, too. The
    operator's last progress report gives the average milliseconds of a store's commit, throttled requests, and
    milliseconds of the batch. They are None without a report, and if another store name of the operator has them.
    """

    stores: str
    partitions: int
    version: int
    lag: int
    rows: int
    versions_s: float | None
    write_units_s: float | None
    changes_s: float | None
    batch_s: float | None = None
    committed_ms: int = 0
    dollars_a_day: float | None = None
    commit_ms: float | None = None
    throttles: int | None = None
    batch_ms: int | None = None

    @property
    def operator(self) -> int:
        return int(self.stores.split("/")[1])


#: The compared attributes.
_COMPARED: Final = {
    Order.VERSION: "version",
    Order.LAG: "lag",
    Order.ROWS: "rows",
    Order.BATCH: "batch_s",
    Order.CHANGES: "changes_s",
    Order.UNITS: "write_units_s",
    Order.DOLLARS: "dollars_a_day",
    Order.COMMIT: "commit_ms",
    Order.THROTTLES: "throttles",
}


def in_order(activities: Sequence[StoreActivity], order: Order) -> list[StoreActivity]:
    """Sort operators; operators without the figure come last."""
    if order is Order.NAME:
        return sorted(activities, key=lambda activity: (activity.operator, activity.stores))

    def size(activity: StoreActivity) -> float:
        value = getattr(activity, _COMPARED[order])
        return -inf if value is None else float(value)

    return sorted(activities, key=size, reverse=True)


class Monitor:
    """Monitor of some stores. Each look reads only new versions. `clock` is in seconds.

    `log` is the usage of the query's log, if that is in DynamoDB.
    """

    def __init__(
        self, engine: Engine, stores: Sequence[str], clock: Callable[[], float], prices: Prices = DEFAULT_PRICES
    ) -> None:
        self.meter = Meter()
        self.log: LogUsage | None = None
        self._prices = prices
        self._engine = engine
        self._clock = clock
        self._lineages: dict[str, Lineage | None] = dict.fromkeys(stores)
        self._looked_s: float | None = None

    @property
    def lineages(self) -> dict[str, Lineage]:
        """The versions of each store, as of the last look."""
        return {store: lineage for store, lineage in self._lineages.items() if lineage is not None}

    def look(self) -> list[StoreActivity]:
        """The current activity, in the order of the stores. Several stores are read at once."""
        now_s = self._clock()
        new_entries: dict[str, list[VersionEntry]] = {}
        old_lineages = dict(self._lineages)
        with runtime.pool(STORES_AT_ONCE, "dynastate-look") as pool:
            lineages = list(pool.map(self._engine.lineage, old_lineages, old_lineages.values()))
        for (store, old), lineage in zip(old_lineages.items(), lineages, strict=True):
            self.meter.add(lineage.meter)
            new_entries[store] = [each for each in lineage.entries if old is None or _order(each) > _order(old.newest)]
            self._lineages[store] = lineage
        seconds = None if self._looked_s is None else max(now_s - self._looked_s, 1e-9)
        self._looked_s = now_s
        operators: dict[str, list[str]] = {}
        for store in self._lineages:
            operators.setdefault(operator_of(store), []).append(store)
        return [
            self._activity(name, stores, new_entries, seconds=seconds, log=None if number else self.log)
            for number, (name, stores) in enumerate(operators.items())
        ]

    def _activity(
        self,
        name: str,
        stores: Sequence[str],
        new_entries: Mapping[str, Sequence[VersionEntry]],
        *,
        seconds: float | None,
        log: LogUsage | None,
    ) -> StoreActivity:
        lineages = [lineage for store in stores if (lineage := self._lineages[store]) is not None]
        newest = max(each.newest.version for each in lineages)
        # In the first batch after a rollback there may be no version that all partitions have.
        version = last_of_one_run([(each.entries, each.runs) for each in lineages])
        common = [(each, each.find(version) if version else each.newest) for each in lineages]
        entries = [(store, entry) for store in stores for entry in new_entries[store]]

        log_units = 0 if log is None else log.units_a_batch * len(entries) / len(stores)
        units = sum(commit_units(store, entry) for store, entry in entries) + log_units
        # Changes are written into snapshots, and deleted, later; files of the log are deleted.
        all_units = units + (CHANGED_UNITS - 1) * sum(part_units(store, entry) for store, entry in entries) + log_units
        # This is little for objects: snapshots have few large objects, and deletes cost nothing.
        puts = sum(part_puts(store, entry) for store, entry in entries)

        def per_second(total: float) -> float | None:
            return None if seconds is None else round(total / seconds, 2)

        return StoreActivity(
            stores=name,
            partitions=len(stores),
            version=version,
            lag=newest - version,
            rows=sum(rows_of(families_of(lineage.schema(entry), entry)) for lineage, entry in common),
            versions_s=per_second(len(entries) / len(stores)),
            write_units_s=per_second(units),
            changes_s=per_second(sum(entry.records for _, entry in entries)),
            batch_s=_batch_s(lineages),
            committed_ms=min(each.newest.time_ms for each in lineages),
            dollars_a_day=None
            if seconds is None
            else self._prices.nanodollars(round(DAY_S * all_units / seconds), 0, round(DAY_S * puts / seconds)) / 1e9,
        )


def _order(entry: VersionEntry) -> tuple[int, int]:
    """The order of versions: a run that started over, or from an older version, makes lower ones."""
    return entry.epoch, entry.version


def _batch_s(lineages: Sequence[Lineage]) -> float | None:
    """The average time from one version to the next, in seconds, over the last versions of some stores."""
    gaps = []
    for lineage in lineages:
        times = [entry.time_ms for entry in lineage.entries[-BATCHES:]]
        if len(times) > 1:
            gaps.append((times[-1] - times[0]) / 1000 / (len(times) - 1))
    return round(sum(gaps) / len(gaps), 2) if gaps else None


def with_report(activities: Sequence[StoreActivity], batch: Batch | None) -> list[StoreActivity]:
    """Add the metrics of a batch, which are by operator id, and its duration.

    Spark adds up the stores of an operator. If they have several names, as in a join, the first name gets the metrics.
    """
    if batch is None:
        return list(activities)
    metrics_by_operator = dict(enumerate(batch.operators))
    stores = Counter[int]()
    for activity in activities:
        stores[activity.operator] += activity.partitions
    completed = []
    for activity in activities:
        metrics = metrics_by_operator.pop(activity.operator, None)
        if metrics is None:
            completed.append(activity)
            continue
        commit_ms = round(metrics.get("dynastateCommitMs", 0) / stores[activity.operator], 1)
        throttles = metrics.get("dynastateThrottles", 0)
        completed.append(replace(activity, commit_ms=commit_ms, throttles=throttles, batch_ms=batch.duration_ms))
    return completed


def operator_of(store: str) -> str:
    """The name of the stores of all partitions together."""
    namespace, operator, _, name = store.split("/", 3)
    return f"{namespace}/{operator}/*/{name}"
