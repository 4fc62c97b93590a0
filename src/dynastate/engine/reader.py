"""Routes to versions, and reading the parts and buckets on them (docs/storage-format.md).

Parts, buckets and routes never change once a version list names them, so what was read or written here is cached, and
costs no request the next time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final

from dynastate.dynamodb.limits import ANSWER_BYTES_MAX, KEYS_MAX, PARTITION_ANSWER_BYTES_MAX
from dynastate.dynamodb.meter import Meter
from dynastate.dynamodb.tables import Tables, get_apart
from dynastate.engine.cache import Cache
from dynastate.errors import CorruptStateError, InternalError, VersionMissingError
from dynastate.format.graph import since
from dynastate.format.items import Item
from dynastate.format.keys import Attempt, Key, VersionId, group_key, manifest_key, where
from dynastate.format.manifest import Bucket, SnapshotManifest, bits_for
from dynastate.format.parts import (
    BOUNDS_ATTRIBUTES,
    PART_OVERHEAD_BYTES,
    Bounds,
    Part,
    Tally,
    join_fragments,
    parse_bounds,
    parse_part,
    part_of,
    parts_digest,
)
from dynastate.format.version_list import VersionEntry, part_keys

#: The most parts read by one BatchGetItem: with parts near 100 KB about 2.5 MB, and several of them are under way.
WINDOW: Final = 25
#: Memory of all routes; one takes about `ENTRY_BYTES` a version and `BUCKET_BYTES` a bucket.
ROUTES_BYTES: Final = 32 * 1024 * 1024
#: Snapshots found corrupt that one executor remembers; forgetting one costs finding it again.
SKIPPED_MAX: Final = 1_000
#: Up to this many parts are read in full for one key; of more, first the bounds, which say where it may be.
WHOLE_PARTS: Final = 8
#: The share of what DynamoDB answers with that a window asks for, by the mean size of parts.
WINDOW_SHARE: Final = 0.9
#: Parts of which the bounds are remembered; forgetting one costs reading them again.
BOUNDS_MAX: Final = 100_000
ENTRY_BYTES: Final = 500
BUCKET_BYTES: Final = 200
#: What a part in memory takes beside its data.
PART_OBJECT_BYTES: Final = 500

#: The number of records, and their bytes.
EncodedChunk = tuple[int, bytes]
#: The smallest and the largest hash of a bucket.
HashRange = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Route:
    """How a version is read: a snapshot, or nothing, and then the deltas of `entries`.

    `start` is the version that the snapshot is of; None without one, and where clean-up has deleted its entry.
    """

    store: str
    snapshot: SnapshotManifest | None
    start: VersionEntry | None
    entries: tuple[VersionEntry, ...]
    schemas: Mapping[bytes, str]
    shards: int

    @property
    def end(self) -> VersionEntry:
        """The version itself."""
        end = self.entries[-1] if self.entries else self.start
        if end is None:
            raise InternalError("a route leads to no version", store=self.store)
        return end

    @property
    def schema(self) -> str:
        return self.schemas[self.end.schema]

    def to(self, version: int, attempt: Attempt) -> Route | None:
        """The route to a version on this one; None: it is not on it, or by another attempt."""
        if self.start is not None and (self.start.version, self.start.attempt) == (version, attempt):
            return replace(self, entries=())
        place = self._place(version, attempt)
        return None if place is None else replace(self, entries=self.entries[: place + 1])

    def then(self, entry: VersionEntry, schema: str) -> Route:
        """The route to a child of its version."""
        return replace(self, entries=(*self.entries, entry), schemas={**self.schemas, entry.schema: schema})

    def by(self, snapshot: SnapshotManifest) -> Route | None:
        """The same route, but from a snapshot of a version on it; None: that is not on it."""
        place = self._place(*snapshot.of)
        if place is None:
            return None
        return replace(self, snapshot=snapshot, start=self.entries[place], entries=self.entries[place + 1 :])

    def since(self, have: Collection[VersionId]) -> tuple[VersionId, tuple[VersionEntry, ...]] | None:
        """The newest of `have` on the route, and the versions after it; None: there is none."""
        return since(chain(reversed(self.entries), [self.start] if self.start else []), have)

    def _place(self, version: int, attempt: Attempt) -> int | None:
        place = version - self.entries[0].version if self.entries else -1
        if not 0 <= place < len(self.entries) or self.entries[place].attempt != attempt:
            return None
        return place

    @property
    def bits(self) -> int:
        """The number of buckets, 2^bits, in which its rows are best read."""
        return self.snapshot.bits if self.snapshot else bits_for(sum(each.raw_bytes for each in self.entries))

    @property
    def records(self) -> int:
        """The number of records on it."""
        from_snapshot = sum(bucket.records for bucket in self.snapshot.buckets) if self.snapshot else 0
        return from_snapshot + sum(entry.records for entry in self.entries)

    @property
    def size(self) -> int:
        """Approximate bytes of memory."""
        return ENTRY_BYTES * len(self.entries) + BUCKET_BYTES * (1 << self.snapshot.bits if self.snapshot else 0)


@dataclass(frozen=True)
class Lineage:
    """The newest version of a store and its ancestors, as far as they are listed, oldest first.

    `schemas` are the texts of their schema items, by digest; `added` counts the versions since all were read.
    """

    store: str
    entries: tuple[VersionEntry, ...]
    schemas: Mapping[bytes, str]
    meter: Meter
    added: int = 0

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
        place = version - self.entries[0].version
        if 0 <= place < len(self.entries):
            return self.entries[place]
        there = f"{self.entries[0].version}-{self.newest.version}"
        raise VersionMissingError("this version cannot be read", store=self.store, version=version, versions=there)


class PartReader:
    """Reads parts and buckets with `threads` requests at once. Safe for threads.

    It keeps `cache_bytes` of parts, and of 0 nothing at all.
    """

    def __init__(self, tables: Tables, threads: int, cache_bytes: int) -> None:
        self._tables = tables
        self._parallel = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="dynastate-reader")
        self._parts: Cache[Key, Part] = Cache(cache_bytes)
        #: The route to the newest version that was opened or committed here, by store.
        self._routes: Cache[str, Route] = Cache(min(ROUTES_BYTES, cache_bytes))
        self._bounds: Cache[Key, Bounds] = Cache(BOUNDS_MAX if cache_bytes else 0)
        #: The errors of corrupt snapshots, by their ids.
        self._skipped: Cache[Attempt, CorruptStateError] = Cache(SKIPPED_MAX)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    # ------------------------------------------------------------------------------------------------------------ known

    def route(self, store: str, version: int, attempt: Attempt) -> Route | None:
        """The route to the version that an attempt made, if it is known here."""
        known = self._routes.get(store)
        return None if known is None else known.to(version, attempt)

    def remember(self, route: Route) -> None:
        """Remember the route to a version, in place of the one to another version of its store."""
        self._routes.put(route.store, route, route.size)

    def forget(self, store: str) -> None:
        self._routes.drop(store)

    def skip_snapshot(self, store: str, snapshot: Attempt, corrupt: CorruptStateError) -> None:
        """Make no route begin with a snapshot, by its id: it was found corrupt."""
        self._skipped.put(snapshot, corrupt, 1)
        self.forget(store)

    def skipped(self, snapshot: Attempt) -> CorruptStateError | None:
        """The error that a snapshot is skipped for; None: it is not skipped."""
        return self._skipped.get(snapshot)

    def committed(self, store: str, entry: VersionEntry, schema: str, shards: int) -> None:
        """Remember the route to a version that was made here, if that to its parent is known."""
        if entry.version == 1:
            self.remember(Route(store, None, None, (entry,), {entry.schema: schema}, shards))
        elif (before := self.route(store, entry.version - 1, entry.parent)) is not None:
            self.remember(before.then(entry, schema))

    def snapshotted(self, store: str, snapshot: SnapshotManifest) -> None:
        """Let the known route begin with a snapshot that was made here, if its version is on it."""
        known = self._routes.get(store)
        if known is not None and (by := known.by(snapshot)) is not None:
            self.remember(by)

    def keep(self, key: Key, item: Item) -> None:
        """Keep a part that is being written."""
        part = part_of(item)
        self._parts.put(key, part, len(part.data) + PART_OBJECT_BYTES)

    # ------------------------------------------------------------------------------------------------------------- read

    def changes(
        self, store: str, entries: Sequence[VersionEntry], shards: int, meter: Meter, *, bucket: HashRange | None = None
    ) -> Iterator[EncodedChunk]:
        """The changes of versions, in order; of chunks that hold no key of `bucket`, none.

        Raises:
            CorruptStateError: while they are consumed: a part is lost or corrupt.
        """
        keys = ((key, _part_bytes(entry)) for entry in entries for key in part_keys(store, entry, shards))
        parts = self._read(keys, meter, keep=self._fits(entries))
        for entry in entries:
            yield from verified_chunks(entry, _where(store, entry), islice(parts, entry.parts), bucket)

    def key_changes(
        self, store: str, entries: Sequence[VersionEntry], shards: int, meter: Meter, digest: int
    ) -> Iterator[EncodedChunk]:
        """The changes of versions, in order, in chunks that may hold the key with this hash.

        Executors send changes in the order of their hashes, 4 MiB at a time, so most parts of a large batch cannot hold
        a key. Where there are many parts, only their bounds and checksums are read first: these must be the ones that
        the entry names.

        Raises:
            CorruptStateError: while they are consumed: a part is lost or corrupt.
        """
        named = [(entry, list(part_keys(store, entry, shards))) for entry in entries]
        known: dict[Key, Part | Bounds] = {}
        for _, keys in named:
            known |= {key: each for key in keys if (each := self._parts.get(key) or self._bounds.get(key)) is not None}
        unknown = [(entry, keys) for entry, keys in named if any(key not in known for key in keys)]
        if sum(entry.parts for entry, _ in unknown) > WHOLE_PARTS:
            known |= self._learn_bounds(store, unknown, meter)
        # All of an entry, or whole chunks: fragments of one have the same bounds.
        wanted = [
            [key for key in keys if known[key].hash_min <= digest <= known[key].hash_max]
            if all(key in known for key in keys)
            else keys
            for _, keys in named
        ]
        sized = ((key, _part_bytes(entry)) for entry, keys in zip(entries, wanted, strict=True) for key in keys)
        parts = self._read(sized, meter, keep=True)
        for entry, keys in zip(entries, wanted, strict=True):
            found = islice(parts, len(keys))
            if len(keys) == entry.parts:
                yield from verified_chunks(entry, _where(store, entry), found, (digest, digest))
            else:
                yield from _chunks(found)

    def _learn_bounds(
        self, store: str, named: Sequence[tuple[VersionEntry, list[Key]]], meter: Meter
    ) -> dict[Key, Bounds]:
        """Read the bounds of all parts of versions, of which there is at least one."""
        sizes = {key: _part_bytes(entry) for entry, keys in named for key in keys}
        found: dict[Key, Bounds] = {}
        for bounds, spent in self._pool.map(self._read_bounds, _windows(sizes.items(), KEYS_MAX)):
            # DynamoDB charges units for the full items.
            spent.read_units += sum(-(-sizes[key] // 4096) - 1 for key in bounds)
            meter.add(spent)
            found |= bounds
        for entry, keys in named:
            if parts_digest([found[key].crc32 for key in keys]) != entry.digest:
                said = "parts and what names them do not agree"
                raise CorruptStateError(said, **_where(store, entry), parts=entry.parts)
        for key, each in found.items():
            self._bounds.put(key, each, 1)
        return found

    def _read_bounds(self, keys: Sequence[Key]) -> tuple[dict[Key, Bounds], Meter]:
        spent = Meter()
        found = get_apart(self._tables, keys, spent, BOUNDS_ATTRIBUTES)
        _refuse_lost([key for key in keys if key not in found])
        return {key: parse_bounds(key, found[key]) for key in keys}, spent

    def rows(
        self, store: str, snapshot: SnapshotManifest, shards: int, meter: Meter, *, bucket: HashRange | None = None
    ) -> Iterator[EncodedChunk]:
        """The rows of a snapshot, or of those of its buckets that hold keys of `bucket`.

        Raises:
            CorruptStateError: while they are consumed: an item of a bucket is lost or corrupt.
        """
        shift = 32 - snapshot.bits
        low, high = (0, len(snapshot.buckets) - 1) if bucket is None else (bucket[0] >> shift, bucket[1] >> shift)
        numbers = range(low, high + 1)
        keys = (
            (key, _part_bytes(snapshot.buckets[number]))
            for number in numbers
            for key in snapshot.keys(store, number, shards)
        )
        parts = self._read(keys, meter, keep=self._fits([snapshot.buckets[number] for number in numbers]))
        for number in numbers:
            held = snapshot.buckets[number]
            named_by = where(manifest_key(store, *snapshot.holder)) | {"bucket": number}
            if held.parts:
                yield from verified_chunks(held, named_by, islice(parts, held.parts), bucket)

    def _fits(self, named: Iterable[VersionEntry | Bucket]) -> bool:
        """Whether the parts fit into the cache: else they would evict others, and each other."""
        return sum(each.stored_bytes + each.parts * PART_OBJECT_BYTES for each in named) <= self._parts.limit_bytes

    def _read(self, keys: Iterable[tuple[Key, int]], meter: Meter, *, keep: bool) -> Iterator[tuple[Key, Part]]:
        """Parts in the order of their keys, which come with their sizes; a bounded number of windows is read ahead."""
        windows = _windows(keys, WINDOW)
        under_way: deque[Future[tuple[list[tuple[Key, Part]], Meter]]] = deque()
        try:
            while True:
                while len(under_way) < self._parallel and (window := next(windows, None)):
                    under_way.append(self._pool.submit(self._read_window, window, keep=keep))
                if not under_way:
                    return
                read, spent = under_way.popleft().result()
                meter.add(spent)
                yield from read
        finally:
            for future in under_way:
                future.cancel()

    def _read_window(self, keys: list[Key], *, keep: bool) -> tuple[list[tuple[Key, Part]], Meter]:
        parts = {key: part for key in keys if (part := self._parts.get(key)) is not None}
        wanted = [key for key in keys if key not in parts]
        spent = Meter(cache_hits=len(parts), cache_misses=len(wanted))
        found = get_apart(self._tables, wanted, spent)
        _refuse_lost([key for key in wanted if key not in found])
        for key in wanted:
            part = parts[key] = parse_part(key, found[key])
            if keep:
                self._parts.put(key, part, len(part.data) + PART_OBJECT_BYTES)
        return [(key, parts[key]) for key in keys], spent


def _part_bytes(of: VersionEntry | Bucket) -> int:
    """The mean size of the items of a version or bucket, which has some."""
    return PART_OVERHEAD_BYTES + of.stored_bytes // of.parts


def _windows(keys: Iterable[tuple[Key, int]], keys_max: int) -> Iterator[list[Key]]:
    """Keys, which come with the sizes of their items, by requests that DynamoDB is likely to answer in full."""
    window: list[Key] = []
    sizes: Counter[str] = Counter()
    for key, size in keys:
        sizes[key.store_shard] += size
        fits = (
            sizes[key.store_shard] <= WINDOW_SHARE * PARTITION_ANSWER_BYTES_MAX
            and sizes.total() <= WINDOW_SHARE * ANSWER_BYTES_MAX
            and len(window) < keys_max
        )
        if window and not fits:
            yield window
            window, sizes = [], Counter({key.store_shard: size})
        window.append(key)
    if window:
        yield window


def _where(store: str, entry: VersionEntry) -> dict[str, object]:
    """The facts that name an entry in an error."""
    listed = where(group_key(store, entry.version))
    return listed | {"version": entry.version, "attempt": entry.attempt.hex()}


def _refuse_lost(lost: Sequence[Key]) -> None:
    if lost:
        raise CorruptStateError(
            "a part that a version list or a manifest names is not in its table", **where(lost[0]), lost=len(lost)
        )


def _chunks(parts: Iterable[tuple[Key, Part]]) -> Iterator[EncodedChunk]:
    """The chunks of some parts.

    Raises:
        CorruptStateError: while they are consumed: fragments of one do not follow each other, or are missing.
    """
    fragments: list[Part] = []
    for key, part in parts:
        fragments.append(part)
        if len(fragments) == part.fragments:
            yield part.records, join_fragments(key, fragments)
            fragments = []
    if fragments:
        raise CorruptStateError("fragments of a chunk are missing", **where(key))


def hash_range(bits: int, bucket: int) -> HashRange:
    """Hashes that lie in one of 2^bits buckets."""
    shift = 32 - bits
    return bucket << shift, (bucket + 1 << shift) - 1


def verified_chunks(
    named: VersionEntry | Bucket,
    where: Mapping[str, object],
    parts: Iterable[tuple[Key, Part]],
    bucket: HashRange | None,
) -> Iterator[EncodedChunk]:
    """The chunks of one version or bucket, once their parts are joined; at the end all sums are compared."""
    low, high = bucket or (0, (1 << 32) - 1)
    tally = Tally()
    fragments: list[Part] = []
    for key, part in parts:
        tally.add_part(part.crc32, part.data)
        fragments.append(part)
        if len(fragments) < part.fragments:
            continue
        tally.add_chunk(part.records, part.raw_bytes)
        if part.hash_min <= high and part.hash_max >= low:
            yield part.records, join_fragments(key, fragments)
        fragments = []
    expected = (named.parts, named.records, named.raw_bytes, named.stored_bytes, named.digest)
    if fragments or tally.sums() != expected:
        raise CorruptStateError("parts and what names them do not agree", **where, parts=named.parts)
