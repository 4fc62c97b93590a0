"""What can be told of running stores from their tables, one look after the other: what is new since the look before.

How long a commit took, and what was throttled, stands in no table: Spark's progress reports say it, to those who have
them (docs/metrics.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dynastate.layout import VersionEntry
from dynastate.overview import families_of, rows_of
from dynastate.reader import Lineage
from dynastate.spending import commit_units
from dynastate.store import Engine
from dynastate.tables import Meter


@dataclass(frozen=True)
class Watched:
    """The stores of one operator that have one name, all partitions together.

    `version` is the newest that all have committed; `lag`: by how many versions the first partition is ahead of the
    last. Per second, since the look before: versions, write units of commits (not of maintenance), changed rows. None:
    there was no look before. Of the operator, in its last batch reported: milliseconds of a store's commit, on average,
    and requests throttled. None: none is reported, or another name of this operator has them.
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
        """Its id."""
        return int(self.stores.split("/")[1])

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Watch:
    """Looks at some stores again and again, and reads of each only what is new. `clock` is in seconds."""

    def __init__(self, engine: Engine, stores: Sequence[str], clock: Callable[[], float]) -> None:
        self.meter = Meter()
        self._engine = engine
        self._clock = clock
        self._known: dict[str, Lineage | None] = dict.fromkeys(stores)
        self._looked_s: float | None = None

    def look(self) -> list[Watched]:
        """The operators as they are now, in order.

        Raises:
            VersionMissingError: a store has no version, or none any more.
            CorruptStateError: an item is lost or broken.
        """
        now_s = self._clock()
        came: dict[str, list[VersionEntry]] = {}
        for store, known in self._known.items():
            found = self._engine.lineage(store, known)
            self.meter.add(found.meter)
            came[store] = [entry for entry in found.entries if known is None or entry.version > known.newest.version]
            self._known[store] = found
        seconds = None if self._looked_s is None else max(now_s - self._looked_s, 1e-9)
        self._looked_s = now_s
        operators: dict[str, list[str]] = {}
        for store in self._known:
            operators.setdefault(operator_of(store), []).append(store)
        return [self._watched(name, stores, came, seconds) for name, stores in operators.items()]

    def _watched(
        self, name: str, stores: Sequence[str], came: Mapping[str, Sequence[VersionEntry]], seconds: float | None
    ) -> Watched:
        known = [found for store in stores if (found := self._known[store]) is not None]
        versions = [each.newest.version for each in known]
        entries = [(store, entry) for store in stores for entry in came[store]]

        def per_second(total: float) -> float | None:
            return None if seconds is None else round(total / seconds, 2)

        return Watched(
            stores=name,
            partitions=len(stores),
            version=min(versions),
            lag=max(versions) - min(versions),
            rows=sum(rows_of(families_of(each.schema(each.newest), each.newest)) for each in known),
            versions_s=per_second(len(entries) / len(stores)),
            write_units_s=per_second(sum(commit_units(store, entry) for store, entry in entries)),
            changes_s=per_second(sum(entry.records for _, entry in entries)),
        )


def with_report(found: Sequence[Watched], operators: Sequence[Mapping[str, int]]) -> list[Watched]:
    """The same with what a batch's metrics say, which are by operator id.

    Spark adds up the stores of an operator; where they have several names, as those of a join, the first one gets it.
    """
    waiting = dict(enumerate(operators))
    stores = Counter[int]()
    for each in found:
        stores[each.operator] += each.partitions
    told = []
    for each in found:
        metrics = waiting.pop(each.operator, None)
        if metrics is None:
            told.append(each)
            continue
        commit_ms = round(metrics.get("dynastateCommitMs", 0) / stores[each.operator], 1)
        told.append(replace(each, commit_ms=commit_ms, throttles=metrics.get("dynastateThrottles", 0)))
    return told


def operator_of(store: str) -> str:
    """The stores of all partitions together, as people name them."""
    namespace, operator, _, name = store.split("/", 3)
    return f"{namespace}/{operator}/*/{name}"
