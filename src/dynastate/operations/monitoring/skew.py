"""Skew of state: the largest partitions and keys, and the load of the busiest partition key.

Partitions take one Query a store, of its version lists; keys and values are read from the rows of one
version, up to a limit of bytes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Final

from dynastate.engine.engine import Engine
from dynastate.format.changes import RECORD_HEADER_BYTES, RowValue
from dynastate.operations.cost.usage import StorageUsage, commit_units, newest_snapshot, usage_of_lists
from dynastate.operations.inspection.inspect import families_of, read_lists, rows_of
from dynastate.operations.monitoring.monitor import operator_of
from dynastate.operations.scope import each_store
from dynastate.progress import ProgressCallback, no_progress
from dynastate.reader.families import Family, families_at
from dynastate.reader.json_rows import row_to_json
from dynastate.reader.partition import Partition, Source
from dynastate.reader.scan import scan
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables

#: Partitions of an operator that are listed.
LARGEST: Final = 5
#: Write units that one of DynamoDB's partition keys takes a second.
KEY_UNITS_S: Final = 1_000
#: The smallest class of sizes: rows of up to 16 bytes, as a power of two.
SIZE_BITS_MIN: Final = 4
#: Rows between two reports of progress.
REPORT_ROWS: Final = 1_000


@dataclass(frozen=True)
class StoreLoad:
    """Size and load of one store.

    `bytes` is the size of its rows before compression, each value with its key and a header. It is estimated from the
    newest snapshot, or without one from changes. `stored_bytes` are in the tables and in objects of S3. `batch_s`
    seconds are between two of the listed versions, and their commits took `units_s` write units a second. Both are
    None if the versions are too few, or have the same time. `snapshots` are the versions with a readable snapshot, and
    `abandoned` those at which there is an attempt that no later version follows.
    """

    store: str
    rows: int
    bytes: int
    stored_bytes: int
    shards: int
    batch_s: float | None
    units_s: float | None
    usage: StorageUsage
    snapshots: tuple[int, ...] = ()
    abandoned: tuple[int, ...] = ()

    @property
    def key_units_s(self) -> float:
        """Write units a second of each of its partition keys in the delta table."""
        return (self.units_s or 0.0) / self.shards


@dataclass(frozen=True)
class GroupSkew:
    """The stores of one operator with one name: `largest` first. Ratios are of the largest to the mean."""

    stores: str
    partitions: int
    rows: int
    bytes: int
    rows_ratio: float
    bytes_ratio: float
    largest: tuple[StoreLoad, ...]

    def as_json(self) -> dict[str, Any]:
        return vars(self) | {"largest": [_store_json(load) for load in self.largest]}


@dataclass(frozen=True)
class HeavyKey:
    """A key with the bytes of its row, and the number of its values; `key` is JSON."""

    store: str
    family: str
    key: Mapping[str, Any]
    values: int
    bytes: int


@dataclass(frozen=True)
class Sizes:
    """Rows of up to so many bytes, more than the sizes before."""

    bytes_max: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class KeySkew:
    """Rows that were read, as far as the limit let them, the heaviest of them, and their sizes."""

    stores: int
    rows: int
    bytes: int
    is_whole: bool
    heaviest: tuple[HeavyKey, ...]
    sizes: tuple[Sizes, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"bytes_p50": self.quantile_bytes(0.5), "bytes_p99": self.quantile_bytes(0.99)}

    def quantile_bytes(self, share: float) -> int:
        """The size that a share of the rows does not exceed, by its class."""
        rows = 0
        for size in self.sizes:
            rows += size.rows
            if rows >= share * self.rows:
                return size.bytes_max
        return 0


def read_loads(tables: Tables, stores: Sequence[str], progress: ProgressCallback = no_progress) -> list[StoreLoad]:
    """Read size and load of stores, by one Query each, several at once. A store without a version has none."""
    loads = each_store(tables, stores, _load, progress, until_failure=True).all()
    return [load for load in loads if load is not None]


def _load(tables: Tables, store: str) -> StoreLoad | None:
    graph, items = read_lists(tables, store)
    if not graph.versions():
        return None
    lineage = graph.lineage(graph.newest())
    newest, oldest = lineage[-1], lineage[0]
    current = {each.id for each in lineage}
    usage = usage_of_lists(graph, items)
    snapshot = newest_snapshot(graph)
    sized = snapshot if snapshot and snapshot.records else usage
    span_s = (newest.time_ms - oldest.time_ms) / 1000
    families = families_of(graph.schema(newest), newest)
    units = sum(commit_units(store, entry) for entry in lineage[1:])  # the first one's own batch was before
    if any(each["lists"] for each in families):
        # A list has a record for each value: their number does not follow from the number of keys.
        since = 0 if snapshot is None else snapshot.version
        changed_bytes = sum(entry.raw_bytes for entry in lineage if entry.version > since)
        row_bytes = changed_bytes + (snapshot.raw_bytes if snapshot else 0)
    else:
        row_bytes = round(sum(newest.keys.values()) * sized.raw_bytes / sized.records) if sized.records else 0
    return StoreLoad(
        store=store,
        rows=rows_of(families),
        bytes=row_bytes,
        stored_bytes=usage.stored.bytes + usage.stored.object_bytes,
        shards=graph.required_meta.shards,
        batch_s=span_s / (len(lineage) - 1) if span_s > 0 else None,
        units_s=units / span_s if span_s > 0 else None,
        usage=usage,
        snapshots=tuple(each.version for each in lineage if graph.snapshot(each.version, each.attempt)),
        abandoned=tuple(sorted({each.version for each in graph.entries() if each.id not in current})),
    )


def skew_of(loads: Sequence[StoreLoad]) -> list[GroupSkew]:
    """The skew of each operator's stores of one name."""
    groups: dict[str, list[StoreLoad]] = {}
    for load in loads:
        groups.setdefault(operator_of(load.store), []).append(load)
    return [
        GroupSkew(
            stores=name,
            partitions=len(group),
            rows=sum(load.rows for load in group),
            bytes=sum(load.bytes for load in group),
            rows_ratio=_ratio([load.rows for load in group]),
            bytes_ratio=_ratio([load.bytes for load in group]),
            largest=tuple(sorted(group, key=lambda load: (-load.bytes, -load.rows))[:LARGEST]),
        )
        for name, group in groups.items()
    ]


def _ratio(sizes: Sequence[int]) -> float:
    return round(max(sizes) * len(sizes) / sum(sizes), 2) if any(sizes) else 1.0


def busiest(loads: Sequence[StoreLoad]) -> StoreLoad | None:
    """The store whose partition keys take the most write units a second. Returns None without stores."""
    return max(loads, key=lambda load: load.key_units_s, default=None)


def read_keys(
    engine: Engine,
    loads: Sequence[StoreLoad],
    keys: int,
    limit_bytes: int,
    meter: Meter,
    progress: ProgressCallback = no_progress,
) -> KeySkew:
    """Read rows of the newest versions, the largest stores first, until `limit_bytes` of rows were read.

    Rows lie by the hash of their keys, so that a part of a store is a sample of it. The `keys` heaviest are kept.
    """
    census = _Census(keys)
    largest = sorted(loads, key=lambda load: -load.bytes)
    total = min(limit_bytes, sum(load.bytes for load in loads))
    for number, load in enumerate(largest):
        if census.bytes >= limit_bytes:
            return census.skew(number, is_whole=False)
        with closing(_rows(engine, load.store, meter)) as rows:
            for count, (family, raw, value) in enumerate(rows):
                census.add(load.store, family, raw, value if isinstance(value, list) else [value])
                if count % REPORT_ROWS == 0:
                    progress(min(census.bytes, total), total)
                if census.bytes >= limit_bytes and next(rows, None) is not None:
                    return census.skew(number + 1, is_whole=False)
    return census.skew(len(largest), is_whole=True)


def _rows(engine: Engine, store: str, meter: Meter) -> Generator[tuple[Family, bytes, RowValue], None, None]:
    """The rows of all column families but Spark's own, in the newest version of a store."""
    lineage = engine.lineage(store)
    meter.add(lineage.meter)
    for family in families_at(lineage, lineage.newest).values():
        if not family.internal:
            partition = Partition(Source(engine, meter), lineage, family.name, lambda family=family: family)  # type: ignore[misc]
            for raw, value in scan(partition, lineage.newest, family):
                yield family, raw, value


#: Size of a row, the negated order of reading, store, family, key, and number of values.
Row = tuple[int, int, str, Family, bytes, int]


class _Census:
    """Rows counted by size, and the heaviest of them."""

    def __init__(self, keys: int) -> None:
        self.rows = self.bytes = 0
        self._keys = keys
        self._rows = Counter[int]()
        self._bytes = Counter[int]()
        #: A heap.
        self._heaviest: list[Row] = []

    def add(self, store: str, family: Family, raw: bytes, values: Sequence[bytes]) -> None:
        size = sum(RECORD_HEADER_BYTES + len(raw) + len(value) for value in values)
        self.rows += 1
        self.bytes += size
        bits = max(SIZE_BITS_MIN, (size - 1).bit_length())
        self._rows[bits] += 1
        self._bytes[bits] += size
        row = size, -self.rows, store, family, raw, len(values)
        if len(self._heaviest) < self._keys:
            heapq.heappush(self._heaviest, row)
        elif self._keys and row > self._heaviest[0]:
            heapq.heapreplace(self._heaviest, row)

    def skew(self, stores: int, *, is_whole: bool) -> KeySkew:
        sizes = tuple(Sizes(1 << bits, self._rows[bits], self._bytes[bits]) for bits in sorted(self._rows))
        heaviest = tuple(_heavy(row) for row in sorted(self._heaviest, reverse=True))
        return KeySkew(stores, rows=self.rows, bytes=self.bytes, is_whole=is_whole, heaviest=heaviest, sizes=sizes)


def _heavy(row: Row) -> HeavyKey:
    size, _, store, family, raw, values = row
    columns = family.encoder.columns
    key = row_to_json(columns, family.encoder.decode(raw)) or {}
    return HeavyKey(store, family.name, key, values=values, bytes=size)


def _store_json(load: StoreLoad) -> dict[str, Any]:
    names = ("store", "rows", "bytes", "stored_bytes", "shards", "batch_s", "units_s")
    return {name: getattr(load, name) for name in names}
