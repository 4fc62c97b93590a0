"""Activity of running stores, by reading their version lists again and again.

Commit times and throttled requests are not in the tables; they come from Spark's progress reports (docs/metrics.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dynastate.dynamodb.meter import Meter
from dynastate.engine.engine import Engine
from dynastate.engine.reader import Lineage
from dynastate.format.version_list import VersionEntry
from dynastate.operations.inspect import families_of, rows_of
from dynastate.operations.usage import commit_units


@dataclass(frozen=True)
class StoreActivity:
    """Activity of the stores of one operator with one name, all partitions together.

    `version` is the newest that all have committed; `lag` is the number of versions between the most and the least
    advanced partition. Per second, since the previous look: versions, write units of commits (not of maintenance),
    changed rows; None at the first look. From the operator's last progress report: average milliseconds of a store's
    commit, and throttled requests; None without a report, and where another store name of the operator has them.
    """

    stores: str
    partitions: int
    version: int
    lag: int
    rows: int
    versions_s: float | None
    write_units_s: float | None
    changes_s: float | None
    commit_ms: float | None = None
    throttles: int | None = None

    @property
    def operator(self) -> int:
        return int(self.stores.split("/")[1])


class Monitor:
    """Monitor of some stores. Each look reads only what is new. `clock` is in seconds."""

    def __init__(self, engine: Engine, stores: Sequence[str], clock: Callable[[], float]) -> None:
        self.meter = Meter()
        self._engine = engine
        self._clock = clock
        self._known: dict[str, Lineage | None] = dict.fromkeys(stores)
        self._looked_s: float | None = None

    def look(self) -> list[StoreActivity]:
        """The current activity, in the order of the stores."""
        now_s = self._clock()
        new: dict[str, list[VersionEntry]] = {}
        for store, known in self._known.items():
            found = self._engine.lineage(store, known)
            self.meter.add(found.meter)
            new[store] = [entry for entry in found.entries if known is None or entry.version > known.newest.version]
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
        versions = [each.newest.version for each in known]
        entries = [(store, entry) for store in stores for entry in new[store]]

        def per_second(total: float) -> float | None:
            return None if seconds is None else round(total / seconds, 2)

        return StoreActivity(
            stores=name,
            partitions=len(stores),
            version=min(versions),
            lag=max(versions) - min(versions),
            rows=sum(rows_of(families_of(each.schema(each.newest), each.newest)) for each in known),
            versions_s=per_second(len(entries) / len(stores)),
            write_units_s=per_second(sum(commit_units(store, entry) for store, entry in entries)),
            changes_s=per_second(sum(entry.records for _, entry in entries)),
        )


def with_report(found: Sequence[StoreActivity], operators: Sequence[Mapping[str, int]]) -> list[StoreActivity]:
    """Add the metrics of a batch, which are by operator id.

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
        completed.append(replace(each, commit_ms=commit_ms, throttles=metrics.get("dynastateThrottles", 0)))
    return completed


def operator_of(store: str) -> str:
    """The name of the stores of all partitions together."""
    namespace, operator, _, name = store.split("/", 3)
    return f"{namespace}/{operator}/*/{name}"
