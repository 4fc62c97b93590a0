"""Reading the parts and buckets on the route to a version (docs/storage-format.md)."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import accumulate, count, islice
from typing import Final, NamedTuple

from dynastate import runtime
from dynastate.engine.known import PART_OBJECT_BYTES, KnownStores
from dynastate.errors import CorruptStateError, VersionMissingError
from dynastate.format.graph import last_of_one_run
from dynastate.format.keys import Key, VersionId, manifest_key, version_list_key, where
from dynastate.format.manifest import Bucket, SnapshotManifest
from dynastate.format.objects import FRAME_BYTES, ObjectStream, decode_frames
from dynastate.format.parts import PART_OVERHEAD_BYTES, Part, StoredChunk, Tally, join_fragments, parse_part
from dynastate.format.version_list import VersionEntry, part_keys
from dynastate.storage.limits import ANSWER_BYTES_MAX, PARTITION_ANSWER_BYTES_MAX
from dynastate.storage.meter import Meter
from dynastate.storage.objects import read_stream
from dynastate.storage.tables import Tables, get_apart

#: The most parts read by one BatchGetItem: with parts near 100 KB about 2.5 MB, and several of them are under way.
WINDOW: Final = 25
#: Bytes that all openings of an executor read ahead, in all sidecars. Each may have one window beside them, which it
#: waits for.
READ_AHEAD_BYTES_MAX: Final = 32 * 1024 * 1024
#: The most bytes of objects that one window has, unless a bucket is larger.
OBJECT_READ_BYTES: Final = 2 * 1024 * 1024
#: The share of what DynamoDB answers with that a window asks for, by the mean size of parts.
WINDOW_SHARE: Final = 0.9

#: The smallest and the largest hash of a bucket.
HashRange = tuple[int, int]
#: The range of all hashes.
ALL: Final[tuple[HashRange, ...]] = ((0, (1 << 32) - 1),)


@dataclass(frozen=True)
class Lineage:
    """The newest version of a store and its ancestors, as far as they are listed, oldest first.

    `schemas` are the texts of their schema items, by digest; `added` counts the versions since all were read; `runs`
    are the newest query runs, by epoch.
    """

    store: str
    entries: tuple[VersionEntry, ...]
    schemas: Mapping[bytes, str]
    meter: Meter
    added: int = 0
    runs: Mapping[int, str] = field(default_factory=dict)

    @property
    def newest(self) -> VersionEntry:
        return self.entries[-1]

    def schema(self, entry: VersionEntry) -> str:
        return self.schemas[entry.schema]

    def find(self, version: int) -> VersionEntry:
        """The entry of a version.

        Raises:
            VersionMissingError: it is no ancestor of the newest, or no longer listed.
        """
        found = self._listed(version)
        if found is not None:
            return found
        there = f"{self.entries[0].version}-{self.newest.version}"
        raise VersionMissingError(
            "this version cannot be read; name one of versions", store=self.store, version=version, versions=there
        )

    def common(self, earlier: Lineage, version: int) -> int:
        """The newest version up to one that this lineage shares with another; 0: none is listed.

        It is the version itself, if clean-up has deleted what came after it here: no changes after it can be read.
        """
        if version < self.entries[0].version - 1:
            return version
        below = (each.id for each in reversed(earlier.entries) if each.version <= version)
        return next((each.version for each in below if self._has(each)), 0)

    def _has(self, version: VersionId) -> bool:
        """Whether a version is one of the listed ones, or the parent of the oldest."""
        entry = self._listed(version.version)
        return version in (self.entries[0].parent_id, entry and entry.id)

    def _listed(self, version: int) -> VersionEntry | None:
        """The listed entry of a version. The entries have numbers without a gap."""
        place = version - self.entries[0].version
        return self.entries[place] if 0 <= place < len(self.entries) else None

    def up_to(self, version: int) -> Lineage:
        """The lineage without the versions above one."""
        return replace(self, entries=self.entries[: version - self.entries[0].version + 1])


def of_one_run(lineages: Sequence[Lineage]) -> list[Lineage]:
    """Lineages of an operator's stores, up to the newest version that all have of one run.

    Raises:
        VersionMissingError: there is none.
    """
    newest = last_of_one_run([(lineage.entries, lineage.runs) for lineage in lineages])
    if not newest:
        raise VersionMissingError(
            "no version is in all partitions by one run: a run makes its versions again, and has not committed its "
            "first batch in all of them yet; try again when it has",
            store=lineages[0].store,
            versions=f"{lineages[0].entries[0].version}-{lineages[0].newest.version}",
        )
    return [lineage.up_to(newest) for lineage in lineages]


class PartReader:
    """Reads parts and buckets that are not known yet, with `threads` requests at once. Safe for threads.

    It reads ahead as one of so many `sidecars` of an executor may.
    """

    def __init__(self, threads: int, known: KnownStores, sidecars: int = 1) -> None:
        self._known = known
        self._parallel = threads
        self._sidecars = sidecars
        #: Bytes that all openings read ahead.
        self._ahead_bytes = 0
        self._lock = threading.Lock()
        self._pool = runtime.pool(threads, "dynastate-reader")

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def changes(
        self,
        tables: Tables,
        store: str,
        entries: Sequence[VersionEntry],
        shards: int,
        *,
        within: Sequence[HashRange] = ALL,
        reads_all: bool = True,
    ) -> Iterator[StoredChunk]:
        """The changes of versions, in order, verified, without chunks that hold no hash `within` some ranges.

        Executors send changes in the order of their hashes, 4 MiB at a time, so most parts of a large batch cannot hold
        a key. Entries have the bounds of their parts, so others are not read, unless it `reads_all`. Changes within an
        entry are there already, whatever their hashes.
        """
        wanted = [(entry, range(entry.parts) if reads_all else parts_within(entry, within)) for entry in entries]
        runs = (run for entry, sequences in wanted for run in entry_runs(store, entry, shards, sequences))
        fits = self._fits((entry, len(sequences)) for entry, sequences in wanted)
        parts = self._read(tables, runs, keep=fits)
        for entry, sequences in wanted:
            some = None if len(sequences) == entry.parts else sequences
            own = islice(parts, len(sequences))
            yield from verified_chunks(entry, version_list_key(store, entry.version), own, within, some)

    def rows(
        self, tables: Tables, store: str, snapshot: SnapshotManifest, shards: int, *, within: Sequence[HashRange] = ALL
    ) -> Iterator[StoredChunk]:
        """The rows of those buckets of a snapshot that hold hashes `within` some ranges."""
        shift = 32 - snapshot.bits
        numbers = sorted({number for low, high in within for number in range(low >> shift, (high >> shift) + 1)})
        runs = (run for number in numbers for run in bucket_runs(store, snapshot, number, shards))
        fits = self._fits((snapshot.buckets[number], snapshot.buckets[number].parts) for number in numbers)
        parts = self._read(tables, runs, keep=fits)
        for number in numbers:
            held = snapshot.buckets[number]
            if held.parts:
                named_by = manifest_key(store, *snapshot.holder)
                yield from verified_chunks(held, named_by, islice(parts, held.parts), within, bucket=number)

    def _fits(self, read: Iterable[tuple[VersionEntry | Bucket, int]]) -> bool:
        """Whether so many parts of each fit into the cache: else they would evict others, and each other."""
        sizes = (each.stored_bytes * parts // max(1, each.parts) + parts * PART_OBJECT_BYTES for each, parts in read)
        return sum(sizes) <= self._known.parts.limit_bytes

    def _read(self, tables: Tables, runs: Iterable[Run], *, keep: bool) -> Iterator[tuple[Key, Part]]:
        """The parts of runs, in order; some windows are read ahead."""
        windows = _windows(runs)
        window = next(windows, None)
        under_way: deque[tuple[int, Future[tuple[list[tuple[Key, Part]], Meter]]]] = deque()
        try:
            while window or under_way:
                while window and len(under_way) < self._parallel and self._take(window.size, is_ahead=bool(under_way)):
                    under_way.append((window.size, self._pool.submit(self._read_window, tables, window, keep=keep)))
                    window = next(windows, None)
                read, spent = under_way[0][1].result()
                tables.meter.add(spent)
                yield from read
                self._release(under_way.popleft()[0])
        finally:
            for size, future in under_way:
                future.cancel()
                self._release(size)

    def _take(self, size: int, *, is_ahead: bool) -> bool:
        """Count in a window; False: it `is_ahead` of one that is waited for, and there is no room."""
        with self._lock:
            if is_ahead and self._ahead_bytes + size > READ_AHEAD_BYTES_MAX // self._sidecars:
                return False
            self._ahead_bytes += size
            return True

    def _release(self, size: int) -> None:
        with self._lock:
            self._ahead_bytes -= size

    def _read_window(self, tables: Tables, window: Run, *, keep: bool) -> tuple[list[tuple[Key, Part]], Meter]:
        keys = window.keys
        parts = {key: part for key in keys if (part := self._known.parts.get(key)) is not None}
        wanted = [key for key in keys if key not in parts]
        view = tables.metered(Meter(cache_hits=len(parts), cache_misses=len(wanted)))
        if wanted:
            found = read_run(view, window) if window.stream else read_items(view, wanted)
            for key in wanted:
                part = parts[key] = found[key]
                if keep:
                    self._known.keep(key, part)
        return [(key, parts[key]) for key in keys], view.meter


class Run(NamedTuple):
    """Parts that are read together, and their size in bytes: items, or what begins at `start` in a stream."""

    keys: list[Key]
    size: int
    stream: ObjectStream | None = None
    start: int = 0

    @property
    def end(self) -> int:
        return self.start + self.size


def entry_runs(store: str, entry: VersionEntry, shards: int, sequences: Sequence[int]) -> Iterator[Run]:
    """Some parts of a version, one by one: those in objects with the places that their sizes give."""
    stream = entry.stream(store)
    sizes = entry.objects.sizes if entry.objects else ()
    starts = list(accumulate((FRAME_BYTES + size for size in sizes), initial=0))
    for sequence, key in zip(sequences, part_keys(store, entry, shards, sequences), strict=True):
        if sequence < len(sizes):
            yield Run([key], FRAME_BYTES + sizes[sequence], stream, starts[sequence])
        else:
            yield Run([key], _part_bytes(entry))


def bucket_runs(store: str, snapshot: SnapshotManifest, number: int, shards: int) -> Iterator[Run]:
    """The parts of a bucket: one by one, or all together where they are in objects."""
    bucket = snapshot.buckets[number]
    keys = snapshot.keys(store, number, shards)
    if bucket.place is not None:
        yield Run(list(keys), bucket.object_bytes, bucket.stream(store), bucket.place.start)
    else:
        yield from (Run([key], _part_bytes(bucket)) for key in keys)


def read_items(tables: Tables, keys: Sequence[Key]) -> dict[Key, Part]:
    """The parts that are items, verified."""
    found = get_apart(tables, keys)
    if lost := [key for key in keys if key not in found]:
        raise CorruptStateError(
            "a part that a version list or a manifest names is not in its table", **where(lost[0]), lost=len(lost)
        )
    return {key: parse_part(key, found[key]) for key in keys}


def read_run(tables: Tables, run: Run) -> dict[Key, Part]:
    """The parts of a run in objects, verified."""
    stream = run.stream
    assert stream is not None  # noqa: S101  # for mypy
    raw = read_stream(tables.objects, stream, run.start, run.end)
    if raw is None:
        raise CorruptStateError(
            "an object that a version list or a manifest names is not in its bucket",
            **where(run.keys[0]),
            location=stream.location,
            objects=f"{stream.name}/*",
        )
    return dict(decode_frames(run.keys, raw))


def _part_bytes(of: VersionEntry | Bucket) -> int:
    """The mean size of the items of a version or bucket, which has some."""
    return PART_OVERHEAD_BYTES + of.stored_bytes // of.parts


def _windows(runs: Iterable[Run]) -> Iterator[Run]:
    """Runs joined to requests: those of items such that DynamoDB is likely to answer in full."""
    window: list[Run] = []
    size = 0
    by_shard: Counter[str] = Counter()
    for run in runs:
        shard = run.keys[0].store_shard
        if run.stream is not None:
            follows = bool(window) and (window[-1].stream, window[-1].end) == (run.stream, run.start)
            fits = follows and size + run.size <= OBJECT_READ_BYTES
        else:
            fits = (
                bool(window)
                and window[0].stream is None
                and by_shard[shard] + run.size <= WINDOW_SHARE * PARTITION_ANSWER_BYTES_MAX
                and size + run.size <= WINDOW_SHARE * ANSWER_BYTES_MAX
                and len(window) < WINDOW
            )
        if not fits:
            if window:
                yield _joined(window, size)
            window, size, by_shard = [], 0, Counter()
        window.append(run)
        size += run.size
        by_shard[shard] += run.size
    if window:
        yield _joined(window, size)


def _joined(runs: Sequence[Run], size: int) -> Run:
    return runs[0]._replace(keys=[key for run in runs for key in run.keys], size=size)


def parts_within(entry: VersionEntry, within: Sequence[HashRange]) -> Sequence[int]:
    """The parts of a version that may hold a hash within some ranges, by sequence; all, if it has no bounds."""
    if not entry.bounds:
        return range(entry.parts)
    bounds = zip(entry.bounds[::2], entry.bounds[1::2], strict=True)
    return [sequence for sequence, (low, high) in enumerate(bounds) if touches(within, low << 24, (high + 1 << 24) - 1)]


def hash_ranges(bits: int, buckets: Iterable[int]) -> list[HashRange]:
    """Hashes that lie in some of 2^bits buckets, in as few ranges as there can be, ascending."""
    found: list[HashRange] = []
    shift = 32 - bits
    for bucket in sorted(set(buckets)):
        low, high = bucket << shift, (bucket + 1 << shift) - 1
        if found and found[-1][1] + 1 == low:
            found[-1] = found[-1][0], high
        else:
            found.append((low, high))
    return found


def touches(ranges: Iterable[HashRange], hash_min: int, hash_max: int) -> bool:
    """Whether a chunk with these bounds may hold a hash of one of the ranges."""
    return any(hash_min <= high and hash_max >= low for low, high in ranges)


def verified_chunks(
    named: VersionEntry | Bucket,
    named_by: Key,
    parts: Iterable[tuple[Key, Part]],
    within: Sequence[HashRange] = ALL,
    sequences: Sequence[int] | None = None,
    *,
    bucket: int = 0,
) -> Iterator[StoredChunk]:
    """The chunks of one version, or of one bucket by its number; at the end all sums are compared.

    They are those within the version's entry, whatever their hashes, or parts that are joined. Of some parts only, by
    their `sequences`, there are no sums.
    """
    bounds, facts = b"", {"bucket": str(bucket)}
    if isinstance(named, VersionEntry):
        inline = named.inline_chunk(named_by)
        if inline is not None:
            yield inline
            return
        bounds, facts = named.bounds, {"version": str(named.version), "attempt": named.attempt.hex()}
    tally = Tally()
    fragments: list[Part] = []
    for sequence, (key, part) in zip(sequences or count(), parts, strict=False):
        if bounds and bytes((part.hash_min >> 24, part.hash_max >> 24)) != bounds[2 * sequence : 2 * sequence + 2]:
            raise CorruptStateError("a part has other bounds than its version entry says", **where(key))
        tally.add_part(part)
        fragments.append(part)
        if len(fragments) < part.fragments:
            continue
        tally.add_chunk(part.records, part.raw_bytes)
        if touches(within, part.hash_min, part.hash_max):
            yield join_fragments(key, fragments)
        fragments = []
    expected = (named.parts, named.records, named.raw_bytes, named.stored_bytes, named.digest)
    if fragments or (sequences is None and tally.sums() != expected):
        raise CorruptStateError("parts and what names them do not agree", **where(named_by), **facts, parts=named.parts)
