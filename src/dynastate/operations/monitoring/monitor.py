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
from dynastate.operations.cost.prediction import DAY_S
from dynastate.operations.cost.usage import commit_units, part_puts, part_units
from dynastate.operations.inspection.inspect import families_of, rows_of
from dynastate.operations.monitoring.choices import Order
from dynastate.operations.scope import STORES_AT_ONCE
from dynastate.prices import DEFAULT_PRICES, Prices
from dynastate.storage.meter import Meter

#: Write units that follow from one of a part: snapshots, and deletes of both (docs/costs.md, "Rule of thumb").
CHANGED_UNITS: Final = 3.6
#: Versions over which the time of a batch is averaged.
BATCHES: Final = 10


@dataclass(frozen=True)
class StoreActivity:
    """Activity of the stores of one operator with one name, all partitions together.

    `version` is the newest that all have committed; `lag` is the number of versions between the most and the least
    advanced partition; `batch_s` the seconds from one version to the next, on average over the last ones;
    `committed_ms` the time of the last commit of the partition that committed least recently, since 1970 by its
    executor's clock. Per second, since the previous look: versions, write units of commits (not of maintenance),
    changed rows; `dollars_a_day`: the price of these, of the snapshots and of the deletes that follow, by the rule of
    thumb of docs/costs.md. None at the first look. From the operator's last progress report: average milliseconds
    of a store's commit, throttled requests, and milliseconds of the batch; None without a report, and where another
    store name of the operator has them.
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


#: What is compared.
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


def in_order(found: Sequence[StoreActivity], order: Order) -> list[StoreActivity]:
    """Sort operators; those of which the figure is not known come last."""
    if order is Order.NAME:
        return sorted(found, key=lambda each: (each.operator, each.stores))

    def size(each: StoreActivity) -> float:
        value = getattr(each, _COMPARED[order])
        return -inf if value is None else float(value)

    return sorted(found, key=size, reverse=True)


class Monitor:
    """Monitor of some stores. Each look reads only what is new. `clock` is in seconds."""

    def __init__(
        self, engine: Engine, stores: Sequence[str], clock: Callable[[], float], prices: Prices = DEFAULT_PRICES
    ) -> None:
        self.meter = Meter()
        self._prices = prices
        self._engine = engine
        self._clock = clock
        self._known: dict[str, Lineage | None] = dict.fromkeys(stores)
        self._looked_s: float | None = None

    @property
    def lineages(self) -> dict[str, Lineage]:
        """The versions of each store, as of the last look."""
        return {store: found for store, found in self._known.items() if found is not None}

    def look(self) -> list[StoreActivity]:
        """The current activity, in the order of the stores, of which several are read at once."""
        now_s = self._clock()
        new: dict[str, list[VersionEntry]] = {}
        before = dict(self._known)
        with runtime.pool(STORES_AT_ONCE, "dynastate-look") as pool:
            looked = list(pool.map(self._engine.lineage, before, before.values()))
        for (store, known), found in zip(before.items(), looked, strict=True):
            self.meter.add(found.meter)
            new[store] = [entry for entry in found.entries if known is None or _order(entry) > _order(known.newest)]
            self._known[store] = found
        seconds = None if self._looked_s is None else max(now_s - self._looked_s, 1e-9)
        self._looked_s = now_s
        operators: dict[str, list[str]] = {}
        for store in self._known:
            operators.setdefault(operator_of(store), []).append(store)
        return [self._activity(name, stores, new, seconds) for name, stores in operators.items()]

    def _activity(
        self, name: str, stores: Sequence[str], new: Mapping[str, Sequence[VersionEntry]], seconds: float | None
    ) -> StoreActivity:
        known = [found for store in stores if (found := self._known[store]) is not None]
        newest = max(each.newest.version for each in known)
        # In the first batch after the query was taken back, no version of what some partitions have is in all.
        version = last_of_one_run([(each.entries, each.runs) for each in known])
        common = [each.find(version) if version else each.newest for each in known]
        entries = [(store, entry) for store in stores for entry in new[store]]

        units = [commit_units(store, entry) for store, entry in entries]
        # What changed is written into snapshots, and deleted, later.
        spent = sum(units) + (CHANGED_UNITS - 1) * sum(part_units(store, entry) for store, entry in entries)
        # Of objects that is little: snapshots have few large ones, and deletes cost nothing.
        puts = sum(part_puts(store, entry) for store, entry in entries)

        def per_second(total: float) -> float | None:
            return None if seconds is None else round(total / seconds, 2)

        return StoreActivity(
            stores=name,
            partitions=len(stores),
            version=version,
            lag=newest - version,
            rows=sum(rows_of(families_of(each.schema(at), at)) for each, at in zip(known, common, strict=True)),
            versions_s=per_second(len(entries) / len(stores)),
            write_units_s=per_second(sum(units)),
            changes_s=per_second(sum(entry.records for _, entry in entries)),
            batch_s=_batch_s(known),
            committed_ms=min(each.newest.time_ms for each in known),
            dollars_a_day=None
            if seconds is None
            else self._prices.nanodollars(round(DAY_S * spent / seconds), 0, round(DAY_S * puts / seconds)) / 1e9,
        )


def _order(entry: VersionEntry) -> tuple[int, int]:
    """The order of versions: a run that started over, or from an older version, makes lower ones."""
    return entry.epoch, entry.version


def _batch_s(known: Sequence[Lineage]) -> float | None:
    """Seconds from one version to the next, on average over the last ones of some stores."""
    gaps = []
    for lineage in known:
        times = [entry.time_ms for entry in lineage.entries[-BATCHES:]]
        if len(times) > 1:
            gaps.append((times[-1] - times[0]) / 1000 / (len(times) - 1))
    return round(sum(gaps) / len(gaps), 2) if gaps else None


def with_report(
    found: Sequence[StoreActivity], operators: Sequence[Mapping[str, int]], batch_ms: int | None = None
) -> list[StoreActivity]:
    """Add the metrics of a batch, which are by operator id, and its duration.

    Spark adds up the stores of an operator; where they have several names, as those of a join, the first one gets them.
    """
    waiting = dict(enumerate(operators))
    stores = Counter[int]()
    for each in found:
        stores[each.operator] += each.partitions
    completed = []
    for each in found:
        metrics = waiting.pop(each.operator, None)
        if metrics is None:
            completed.append(each)
            continue
        commit_ms = round(metrics.get("dynastateCommitMs", 0) / stores[each.operator], 1)
        throttles = metrics.get("dynastateThrottles", 0)
        completed.append(replace(each, commit_ms=commit_ms, throttles=throttles, batch_ms=batch_ms))
    return completed


def operator_of(store: str) -> str:
    """The name of the stores of all partitions together."""
    namespace, operator, _, name = store.split("/", 3)
    return f"{namespace}/{operator}/*/{name}"
