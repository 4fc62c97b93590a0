"""Skew and growth of state: the largest partitions and keys, and the time at which limits are reached.

Partitions and growth take one Query a store, of its version lists; keys and values are read from the rows of one
version, up to a limit of bytes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from dynastate.counts import plural
from dynastate.engine.engine import Engine
from dynastate.format.changes import RECORD_HEADER_BYTES, RowValue
from dynastate.format.graph import VersionGraph
from dynastate.format.version_list import VersionEntry
from dynastate.operations.cost.advice import Month
from dynastate.operations.cost.prediction import DAY_S, ROW_HEAP_BYTES, Workload
from dynastate.operations.cost.scenarios import workload
from dynastate.operations.cost.usage import StorageUsage, commit_units, newest_snapshot, usage_of_lists
from dynastate.operations.inspection.inspect import families_of, read_lists, rows_of
from dynastate.operations.monitoring.monitor import operator_of
from dynastate.operations.scope import each_store
from dynastate.prices import Prices
from dynastate.progress import ProgressCallback, no_progress
from dynastate.reader.families import Family, families_at
from dynastate.reader.json_rows import json_text, row_to_json
from dynastate.reader.partition import Partition, Source
from dynastate.reader.scan import scan
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables

#: Partitions of an operator that are listed.
LARGEST: Final = 5
#: Write units that one of DynamoDB's partition keys takes a second.
KEY_UNITS_S: Final = 1_000
#: Rows are on the heap up to this share of it.
HEAP_SHARE: Final = 0.5
#: Versions that a trend needs: each half of them has an interval. And seconds from the first to the last of them.
TREND_VERSIONS: Final = 4
TREND_SPAN_S: Final = 600
#: The smallest class of sizes: rows of up to 16 bytes, as a power of two.
SIZE_BITS_MIN: Final = 4
#: Rows between two reports of progress.
REPORT_ROWS: Final = 1_000


@dataclass(frozen=True)
class StoreLoad:
    """Size and load of one store.

    `bytes` are those of its rows before compression, each value with its key and a header, estimated from its newest
    snapshot, or without one from its changes; `stored_bytes` those in the tables and in objects of S3. The listed
    versions span `span_s`. In their newer half: `rows_a_day` more rows, and `units_s` write units a second of commits,
    which grow by `units_s_a_day` from the older half on. None: too few versions; of growth also a span of less than
    `TREND_SPAN_S`.
    """

    store: str
    rows: int
    keys: int
    bytes: int
    stored_bytes: int
    shards: int
    span_s: float
    batch_s: float | None
    rows_a_day: float | None
    units_s: float | None
    units_s_a_day: float | None
    changes_growth_a_day: float | None
    usage: StorageUsage

    @property
    def key_units_s(self) -> float:
        """Write units a second of each of its partition keys in the delta table."""
        return (self.units_s or 0.0) / self.shards

    @property
    def heap_bytes(self) -> int:
        return self.bytes + ROW_HEAP_BYTES * self.keys


@dataclass(frozen=True)
class GroupSkew:
    """The stores of one operator with one name: `largest` first. Ratios are of the largest to the mean."""

    stores: str
    partitions: int
    rows: int
    bytes: int
    rows_ratio: float
    bytes_ratio: float
    rows_a_day: float | None
    largest: tuple[StoreLoad, ...]

    def as_json(self) -> dict[str, Any]:
        found = {name: value for name, value in vars(self).items() if name != "largest"}
        return found | {"largest": [_store_json(each) for each in self.largest]}


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
        seen = 0
        for each in self.sizes:
            seen += each.rows
            if seen >= share * self.rows:
                return each.bytes_max
        return 0


@dataclass(frozen=True)
class Limit:
    """A limit: what there is `now`, the `most`, and when it is reached at the growth of the retained versions.

    `store` is the one that is nearest to it, if it is one of a store. `days` is 0 if it is reached, None if it is not
    at this growth, or the growth is not known.
    """

    limit: str
    now: float
    most: float
    a_day: float | None
    store: str = ""

    @property
    def days(self) -> float | None:
        if self.now >= self.most:
            return 0.0
        return (self.most - self.now) / self.a_day if self.a_day and self.a_day > 0 else None

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"days": self.days}


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
    usage = usage_of_lists(graph, items)
    snapshot = newest_snapshot(graph)
    sized = snapshot if snapshot and snapshot.records else usage
    keys = sum(newest.keys.values())
    span_s = (newest.time_ms - oldest.time_ms) / 1000
    families = families_of(graph.schema(newest), newest)
    units = _Trend.of(lineage, lambda entry: commit_units(store, entry))
    changes = _Trend.of(lineage, lambda entry: entry.records)
    if any(each["lists"] for each in families):
        # A list has a record for each value: their number does not follow from that of the keys.
        since = 0 if snapshot is None else snapshot.version
        later = sum(each.raw_bytes for each in lineage if each.version > since)
        row_bytes = later + (snapshot.raw_bytes if snapshot else 0)
    else:
        row_bytes = round(keys * sized.raw_bytes / sized.records) if sized.records else 0
    return StoreLoad(
        store=store,
        rows=rows_of(families),
        keys=keys,
        bytes=row_bytes,
        stored_bytes=usage.stored.bytes + usage.stored.object_bytes,
        shards=graph.required_meta.shards,
        span_s=span_s,
        batch_s=span_s / (len(lineage) - 1) if span_s > 0 else None,
        rows_a_day=_rows_a_day(graph, lineage),
        units_s=None if units is None else units.now,
        units_s_a_day=None if units is None else units.a_day,
        changes_growth_a_day=changes.a_day / changes.now
        if changes and changes.now and changes.a_day is not None
        else None,
        usage=usage,
    )


def _rows_a_day(graph: VersionGraph, lineage: Sequence[VersionEntry]) -> float | None:
    """Rows that the newer half of some versions adds, a day. Returns None if they are too few or too close.

    A state that has just been filled does not grow any more in the newer half.
    """
    middle, newest = lineage[len(lineage) // 2], lineage[-1]
    seconds = (newest.time_ms - middle.time_ms) / 1000
    if len(lineage) < TREND_VERSIONS or newest.time_ms - lineage[0].time_ms < 1000 * TREND_SPAN_S or seconds <= 0:
        return None
    rows, rows_before = (rows_of(families_of(graph.schema(each), each)) for each in (newest, middle))
    return (rows - rows_before) / seconds * DAY_S


@dataclass(frozen=True)
class _Trend:
    """A rate of the newer half of some versions, a second, and by how much it grows a day, or None for a short span."""

    now: float
    a_day: float | None

    @classmethod
    def of(cls, lineage: Sequence[VersionEntry], measured: Callable[[VersionEntry], float]) -> _Trend | None:
        """Compare the halves; None: there are too few versions, or they are of one moment."""
        middle = len(lineage) // 2
        times = [lineage[at].time_ms / 1000 for at in (0, middle, -1)]
        if len(lineage) < TREND_VERSIONS or not times[0] < times[1] < times[2]:
            return None
        # The first version of each half begins it: its own batch was before.
        before, now = (
            sum(map(measured, lineage[first + 1 : last + 1])) / (times[half + 1] - times[half])
            for half, (first, last) in enumerate(((0, middle), (middle, len(lineage) - 1)))
        )
        span_s = times[2] - times[0]
        return cls(now, None if span_s < TREND_SPAN_S else (now - before) / (span_s / 2) * DAY_S)


def skew_of(loads: Sequence[StoreLoad]) -> list[GroupSkew]:
    """The skew of each operator's stores of one name."""
    groups: dict[str, list[StoreLoad]] = {}
    for load in loads:
        groups.setdefault(operator_of(load.store), []).append(load)
    return [
        GroupSkew(
            stores=name,
            partitions=len(each),
            rows=sum(load.rows for load in each),
            bytes=sum(load.bytes for load in each),
            rows_ratio=_ratio([load.rows for load in each]),
            bytes_ratio=_ratio([load.bytes for load in each]),
            rows_a_day=_added(load.rows_a_day for load in each),
            largest=tuple(sorted(each, key=lambda load: (-load.bytes, -load.rows))[:LARGEST]),
        )
        for name, each in groups.items()
    ]


def _ratio(sizes: Sequence[int]) -> float:
    return round(max(sizes) * len(sizes) / sum(sizes), 2) if any(sizes) else 1.0


def _added(values: Iterator[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return round(sum(known), 1) if known else None


def limits_of(
    loads: Sequence[StoreLoad], prices: Prices, heap_gb: float | None = None, budget: float | None = None
) -> list[Limit]:
    """The limits: what a partition key takes; `heap_gb` GiB of all executors; a `budget` in US dollars a month."""
    hottest = max(loads, key=lambda load: load.key_units_s, default=None)
    found = []
    if hottest is not None:
        a_day = None if hottest.units_s_a_day is None else hottest.units_s_a_day / hottest.shards
        found.append(Limit("write units a second", hottest.key_units_s, KEY_UNITS_S, a_day, hottest.store))
    if heap_gb is not None:
        now = sum(load.heap_bytes for load in loads)
        grown = [
            load.rows_a_day * load.heap_bytes / load.keys for load in loads if load.keys and load.rows_a_day is not None
        ]
        most = HEAP_SHARE * heap_gb * 2**30
        found.append(Limit("bytes on the heap", now, most, sum(grown) if grown else None))
    if budget is not None:
        found.append(_spending(loads, prices, budget))
    return found


def _spending(loads: Sequence[StoreLoad], prices: Prices, budget: float) -> Limit:
    """The price of a month by the formula of docs/costs.md, now and as it will be in a day."""
    operators: dict[str, list[StoreLoad]] = {}
    for load in loads:
        if load.batch_s is not None:
            operators.setdefault(load.store.split("/")[1], []).append(load)
    now, later = [], []
    for each in operators.values():
        usage = sum((load.usage for load in each), StorageUsage())
        batch_s = sum(load.batch_s or 0.0 for load in each) / len(each)
        work = workload(usage, batch_s)
        now.append(work)
        later.append(_a_day_later(work, each))
    dollars = Month.of(now).dollars(prices) if now else 0.0
    is_known = any(load.rows_a_day is not None for each in operators.values() for load in each)
    a_day = Month.of(later).dollars(prices) - dollars if is_known else None
    return Limit("dollars a month", dollars, budget, a_day)


def _a_day_later(work: Workload, loads: Sequence[StoreLoad]) -> Workload:
    rows = sum(load.rows_a_day or 0.0 for load in loads)
    growth = [load.changes_growth_a_day for load in loads if load.changes_growth_a_day is not None]
    # A day is long beside the versions that are retained: a trend may not turn changes into less than none.
    factor = max(0.0, 1 + sum(growth) / len(growth)) if growth else 1.0
    return replace(work, state_rows=max(0.0, work.state_rows + rows), changed_rows=work.changed_rows * factor)


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
    found = _Found(keys)
    largest = sorted(loads, key=lambda load: -load.bytes)
    total = min(limit_bytes, sum(load.bytes for load in loads))
    for done, load in enumerate(largest):
        if found.bytes >= limit_bytes:
            return found.skew(done, is_whole=False)
        with closing(_rows(engine, load.store, meter)) as rows:
            for number, (family, raw, value) in enumerate(rows):
                found.add(load.store, family, raw, value if isinstance(value, list) else [value])
                if number % REPORT_ROWS == 0:
                    progress(min(found.bytes, total), total)
                if found.bytes >= limit_bytes and next(rows, None) is not None:
                    return found.skew(done + 1, is_whole=False)
    return found.skew(len(largest), is_whole=True)


def _rows(engine: Engine, store: str, meter: Meter) -> Generator[tuple[Family, bytes, RowValue], None, None]:
    """The rows of all column families but Spark's own, in the newest version of a store."""
    lineage = engine.lineage(store)
    meter.add(lineage.meter)
    for family in families_at(lineage, lineage.newest).values():
        if not family.internal:
            one = Partition(Source(engine, meter), lineage, family.name, lambda family=family: family)  # type: ignore[misc]
            for raw, value in scan(one, lineage.newest, family):
                yield family, raw, value


class _Found:
    """Rows counted by size, and the heaviest of them."""

    def __init__(self, keys: int) -> None:
        self.rows = self.bytes = 0
        self._keys = keys
        self._rows = Counter[int]()
        self._bytes = Counter[int]()
        #: A heap: size, minus the order of reading, and what it is.
        self._heaviest: list[tuple[int, int, str, Family, bytes, int]] = []

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
        heaviest = tuple(_heavy(*row) for row in sorted(self._heaviest, reverse=True))
        return KeySkew(stores, self.rows, self.bytes, is_whole, heaviest, sizes)


def _heavy(size: int, _: int, store: str, family: Family, raw: bytes, values: int) -> HeavyKey:
    columns = family.encoder.columns
    return HeavyKey(store, family.name, row_to_json(columns, family.encoder.decode(raw)) or {}, values, size)


def _store_json(load: StoreLoad) -> dict[str, Any]:
    kept = ("store", "rows", "bytes", "stored_bytes", "shards", "batch_s", "rows_a_day", "units_s", "units_s_a_day")
    return {name: getattr(load, name) for name in kept}


def no_forecast(loads: Sequence[StoreLoad]) -> str:
    """The reason for which the growth of stores is not known; empty: it is."""
    if not loads or any(load.rows_a_day is not None for load in loads):
        return ""
    return (
        f"growth is not told from less than {TREND_SPAN_S // 60} minutes and {TREND_VERSIONS} versions; the listed "
        f"versions span {plural(round(max(load.span_s for load in loads)), 'second')}"
    )


def key_text(key: HeavyKey) -> str:
    return json_text(key.key)
