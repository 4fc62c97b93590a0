"""The versions of several stores together, by the last look at them: no request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dynastate.engine.lineage import Lineage
from dynastate.unsaferow.schema import described_families


@dataclass(frozen=True)
class VersionTotal:
    """One version of all stores: rows, changed rows, and bytes added up, and the time of its last commit.

    `seconds` are from the last commit of the version before, or None where a run began, and of the oldest version.
    """

    version: int
    time_ms: int
    rows: int
    changes: int
    bytes: int
    epoch: int
    seconds: float | None = None
    is_start: bool = False


def totals_of(lineages: Sequence[Lineage], last: int | None = None) -> list[VersionTotal]:
    """The versions that all of these stores have, the oldest first, or only the `last` ones."""
    if not lineages:
        return []
    newest = min(each.newest.version for each in lineages)
    oldest = max(each.entries[0].version for each in lineages)
    oldest = oldest if last is None else max(oldest, newest - last + 1)
    totals: list[VersionTotal] = []
    for version in range(oldest, newest + 1):
        entries = [(each, each.find(version)) for each in lineages]
        time_ms = max(entry.time_ms for _, entry in entries)
        epoch = max(entry.epoch for _, entry in entries)
        previous = totals[-1] if totals else None
        is_start = previous is not None and previous.epoch != epoch
        totals.append(
            VersionTotal(
                version=version,
                time_ms=time_ms,
                rows=sum(entry.keys.get(each, 0) for store, entry in entries for each in _shown(store.schema(entry))),
                changes=sum(entry.records for _, entry in entries),
                bytes=sum(entry.stored_bytes for _, entry in entries),
                epoch=epoch,
                seconds=None if previous is None or is_start else max(0, time_ms - previous.time_ms) / 1000,
                is_start=is_start,
            )
        )
    return totals


@lru_cache(maxsize=256)
def _shown(schema: str) -> tuple[int, ...]:
    """The ids of the column families of a schema, without Spark's own."""
    return tuple(each["id"] for each in described_families(schema) if not each["internal"])
