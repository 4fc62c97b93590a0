"""The rows of a store that have erased keys: in its versions, its snapshots, and what nothing names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dynastate.engine.graphs import read_manifest
from dynastate.engine.hash_ranges import hash_ranges
from dynastate.engine.reader import PartReader
from dynastate.engine.windows import part_bytes
from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.changes import MERGE, Change, decode_changes
from dynastate.format.graph import VersionGraph
from dynastate.format.keys import (
    EMPTY,
    MANIFEST_RANGE,
    Attempt,
    Key,
    Role,
    SnapshotId,
    VersionId,
    maker_of_bucket,
    maker_of_manifest,
    maker_of_part,
    store_shard,
    version_list_key,
)
from dynastate.format.manifest import Bucket, SnapshotManifest
from dynastate.format.meta import DELETING, StoreMeta, parse_schema
from dynastate.format.objects import ObjectId, ObjectStream, store_prefix
from dynastate.format.parts import StoredChunk
from dynastate.format.snapshot import Snapshot
from dynastate.format.version_list import ERASED, VersionEntry
from dynastate.operations.erase.keys import GivenKeys, KeyMatcher, canonical
from dynastate.operations.pins import read_graph
from dynastate.storage.objects import ObjectVersion, stored_versions
from dynastate.storage.tables import Tables, other_locations, own_locations

#: A column family's id and a key.
RowId = tuple[int, bytes]
#: The number of values of each row with an erased key.
LiveRows = Mapping[RowId, int]


class BucketName(NamedTuple):
    """A bucket: the snapshot that wrote it, and its number."""

    holder: SnapshotId
    number: int


@dataclass
class StoreNames:
    """The version graph of a store, and the manifests of its snapshots by their ids: what names parts and buckets."""

    store: str
    graph: VersionGraph
    manifests: dict[Attempt, SnapshotManifest]

    def snapshots(self) -> list[tuple[Snapshot, SnapshotManifest]]:
        """The snapshots that are done, with their manifests, in the order of versions."""
        snapshots = sorted(self.graph.done_snapshots(), key=lambda snapshot: snapshot.of)
        return [(each, self.manifests[each.id]) for each in snapshots]


@dataclass
class StoreScan(StoreNames):
    """A store as it was read, and its rows with erased keys.

    `changes` are the changes of such rows by version, in their order, without values. `rows` are the numbers of values
    of such rows by the bucket of a snapshot. No bucket may stay in the `spoilt` streams of objects, of which some bytes
    have such rows, or may have them.
    """

    matcher: KeyMatcher
    changes: dict[VersionId, list[Change]] = field(default_factory=dict)
    rows: dict[BucketName, Counter[RowId]] = field(default_factory=dict)
    spoilt: set[ObjectStream] = field(default_factory=set)

    @property
    def row_ids(self) -> set[RowId]:
        """All rows with erased keys, of all versions."""
        ids = {(change.family, change.key) for changes in self.changes.values() for change in changes}
        return ids | {row_id for rows in self.rows.values() for row_id in rows}

    def is_erased(self, change: Change) -> bool:
        """Whether a change is of a row with an erased key."""
        return self.matcher.matches(change.family, change.key)

    def touched(self, manifest: SnapshotManifest) -> list[int]:
        """The buckets of a snapshot with such rows."""
        return [number for number, bucket in enumerate(manifest.buckets) if (bucket.holder, number) in self.rows]

    def replaced(self, manifest: SnapshotManifest) -> list[BucketName]:
        """The buckets of a snapshot that must be written again: with such rows, or in a stream with such buckets.

        Most objects of a stream share a bucket with the next one, so that no smaller part of it can be replaced.
        """
        touched = set(self.touched(manifest))
        return [
            BucketName(bucket.holder, number)
            for number, bucket in enumerate(manifest.buckets)
            if number in touched or bucket.stream(self.store) in self.spoilt
        ]

    def touched_streams(self) -> set[ObjectStream]:
        """The streams with buckets that have such rows."""
        return {
            stream
            for _, manifest in self.snapshots()
            for number in self.touched(manifest)
            if (stream := manifest.buckets[number].stream(self.store))
        }

    def item_bytes(self) -> dict[VersionId | BucketName, int]:
        """The mean size in bytes of the items of each attempt with parts, and of each bucket."""
        sums: dict[VersionId | BucketName, VersionEntry | Bucket] = {
            entry.maker: entry for entry in self.graph.entries()
        }
        for _, manifest in self.snapshots():
            sums |= {BucketName(each.holder, number): each for number, each in enumerate(manifest.buckets)}
        return {name: part_bytes(each) for name, each in sums.items() if each.parts}

    def rows_of(self, manifest: SnapshotManifest) -> LiveRows:
        """The rows with erased keys in a snapshot."""
        rows: Counter[RowId] = Counter()
        for number in self.touched(manifest):
            rows.update(self.rows[BucketName(manifest.buckets[number].holder, number)])
        return rows

    def is_rewritten(self, list_key: Key) -> bool:
        """Whether this erase has replaced a version list, before it was cut off. Its counts are right."""
        return self.graph.list_attributes[list_key].get(ERASED) == self.graph.required_meta.erase_id

    def corrected(self) -> dict[VersionId, VersionEntry]:
        """The entries whose counts of keys and values change without these rows, with the counts that remain.

        Those of lists that are rewritten are left out: what they removed is no longer known.
        """
        live: dict[VersionId, LiveRows | None] = {EMPTY: {}}
        corrected: dict[VersionId, VersionEntry] = {}
        for entry in self.graph.entries():
            earlier_rows = live[entry.parent_id] if entry.parent_id in live else self._rows_at(entry.parent_id)
            if entry.is_imported or earlier_rows is None:
                after = self._rows_at(entry.id)
            else:
                after = _after(earlier_rows, self.changes.get(entry.id, ()))
            live[entry.id] = after
            if self.is_rewritten(version_list_key(self.store, entry.version)):
                continue
            new_entry = _without(entry, earlier_rows, after, is_touched=entry.id in self.changes)
            if new_entry != entry:
                corrected[entry.id] = new_entry
        return corrected

    def _rows_at(self, version_id: VersionId) -> LiveRows | None:
        """The rows with erased keys at a version with a snapshot. Returns None if it has none."""
        snapshot = self.graph.snapshot(version_id.version, version_id.attempt)
        return None if snapshot is None else self.rows_of(self.manifests[snapshot.id])


def _after(rows: LiveRows, changes: Sequence[Change]) -> LiveRows:
    if not changes:
        return rows
    counts = dict(rows)
    for change in changes:
        row_id = change.family, change.key
        if change.value is None:
            counts.pop(row_id, None)
        else:
            counts[row_id] = counts.get(row_id, 0) + 1 if change.operation == MERGE else 1
    return counts


def _without(
    entry: VersionEntry, earlier_rows: LiveRows | None, after: LiveRows | None, *, is_touched: bool
) -> VersionEntry:
    """An entry with the counts that remain. They are not known for a version that cannot be read."""
    if after is None:
        return replace(entry, added=None) if is_touched else entry
    erased_keys = Counter(family for family, _ in after)
    keys = {family: count - erased_keys[family] for family, count in entry.keys.items()}
    if any(count < 0 for count in keys.values()):
        raise CorruptStateError("a version has more keys than its entry counts", version=entry.version)
    added = entry.added
    if added is not None and earlier_rows is not None:
        added -= sum(after.values()) - sum(earlier_rows.values())
    return replace(entry, keys=keys, added=added)


def read_names(tables: Tables, store: str) -> StoreNames:
    """Read the graph of a store, and the manifests of its snapshots. Refuse a corrupt one."""
    graph = read_graph(tables, store)
    for error in graph.skipped.values():
        raise error
    return StoreNames(store, graph, {each.id: read_manifest(tables, store, each) for each in graph.done_snapshots()})


def scan_store(tables: Tables, reader: PartReader, store: str, erased_keys: GivenKeys) -> StoreScan:
    """Read all versions and snapshots of a store, and find its rows with erased keys.

    Raises:
        CorruptStateError: an item or object is lost or corrupt, so that its rows are not known.
    """
    names = read_names(tables, store)
    graph = names.graph
    schemas = [
        parse_schema(Key("snapshot", store_shard(store, 0), sort), item)
        for sort, item in graph.descriptions.items()
        if sort.startswith("schema/")
    ]
    scan = StoreScan(store, graph, names.manifests, KeyMatcher(erased_keys, store, schemas))
    shards = graph.required_meta.shards
    for entry in graph.entries():
        changes = [
            change if change.value is None else change._replace(value=b"")
            for chunk in reader.changes(tables, store, [entry], shards)
            for change in decode_changes(chunk.changes)
            if scan.is_erased(change)
        ]
        if changes:
            scan.changes[entry.id] = changes
    read_buckets: set[BucketName] = set()
    for _, manifest in scan.snapshots():
        buckets = {BucketName(bucket.holder, number) for number, bucket in enumerate(manifest.buckets) if bucket.parts}
        numbers = [bucket.number for bucket in buckets - read_buckets]
        read_buckets |= buckets
        for chunk in reader.rows(tables, store, manifest, shards, within=hash_ranges(manifest.bits, numbers)):
            name = _bucket_of(chunk)
            for change in decode_changes(chunk.changes):
                if scan.is_erased(change):
                    scan.rows.setdefault(name, Counter())[change.family, change.key] += 1
    return scan


def _bucket_of(chunk: StoredChunk) -> BucketName:
    maker = maker_of_bucket(chunk.key)
    assert maker is not None  # noqa: S101  # for mypy: a bucket's chunk has the key of a bucket
    return BucketName._make(maker)


def refuse_unmatched(erased_keys: GivenKeys, matchers: Mapping[str, KeyMatcher]) -> None:
    """Refuse keys whose columns no key of these stores has: they would match nothing, without an error.

    Stores in which nothing was committed have no columns to compare. No version of theirs has a row.
    """
    known_keys = {key for matcher in matchers.values() for key in matcher.with_columns}
    unknown = {", ".join(sorted(key)) for key in erased_keys.keys if canonical(key) not in known_keys}
    if unknown and any(matcher.has_families for matcher in matchers.values()):
        raise ConfigurationError(
            "no key of this state has these columns; 'dynastate show' of a store lists them",
            columns="; ".join(sorted(unknown)),
            store=next(iter(matchers)),
        )


def refuse_dropped(store: str, meta: StoreMeta) -> None:
    """Refuse a store whose items are being deleted. One that is only marked for it is whole."""
    if meta.dropped == DELETING:
        raise ConfigurationError("this store is being dropped: end that first", store=store)


def refuse_other_objects(tables: Tables, names: StoreNames) -> None:
    """Refuse a store whose versions need objects of other tables, which are never deleted from here."""
    objects = {each for entry in names.graph.entries() for each in entry.object_ids(names.store)}
    locations = {each.location for each in objects}.union(*(each.locations for each in names.manifests.values()))
    if others := other_locations(tables, locations):
        raise ConfigurationError(
            "versions of this store need objects of other tables, from which these were restored: rows would stay "
            "there. Run the query until 'dynastate verify' names no such objects any more, and erase again; erase in "
            "the other tables, too",
            store=names.store,
            location=others[0],
        )


def sparse_objects(group: Mapping[str, StoreNames]) -> set[ObjectId]:
    """The objects with parts of buckets that no snapshot names any more, beside others.

    Such parts cannot be found, and may have any rows. The `group` has a store, and its forks and origins.
    """
    buckets = {
        (stream, bucket.place.start): bucket
        for names in group.values()
        for _, manifest in names.snapshots()
        for bucket in manifest.buckets
        if bucket.place and (stream := bucket.stream(names.store))
    }
    named_bytes: Counter[ObjectId] = Counter()
    sizes: dict[ObjectId, int] = {}
    for (stream, _), bucket in buckets.items():
        for number in bucket.object_numbers():
            named_bytes[stream.object(number)] += bucket.bytes_in(number)
            sizes[stream.object(number)] = bucket.place.size_of(number) if bucket.place else 0
    return {each for each, size in sizes.items() if named_bytes[each] < size}


class Unnamed(NamedTuple):
    """The items and versions of objects that nothing names: of failed attempts, or replaced by others.

    In a bucket that keeps versions, these are also the earlier versions of all objects.
    """

    keys: list[Key]
    objects: list[ObjectVersion]


def find_unnamed(tables: Tables, store: str, group: Mapping[str, StoreNames]) -> Unnamed:
    """The parts, buckets, manifests and objects of a store that no version and no snapshot names.

    The `group` has the store, and its forks and origins, which may name them too.
    """
    parts: dict[VersionId, range] = {}
    buckets: dict[BucketName, int] = {}
    objects: set[ObjectId] = set()
    for names in group.values():
        for entry in names.graph.entries():
            objects |= set(entry.object_ids(names.store))
            if (entry.home.store if entry.home else names.store) == store:
                parts[entry.maker] = entry.items
        for _, manifest in names.snapshots():
            for number, bucket in enumerate(manifest.buckets):
                objects |= set(bucket.objects(names.store))
                if bucket.place is None and (bucket.home.store if bucket.home else names.store) == store:
                    buckets[BucketName(bucket.holder, number)] = bucket.parts
    graph = group[store].graph
    manifests = {each.holder for each in graph.done_snapshots()}
    meta = graph.required_meta

    def is_unnamed(key: Key) -> bool:
        sequence = int(key.sort[-6:]) if key.sort[-6:].isdecimal() else 0
        if (part := maker_of_part(key)) is not None:
            return sequence not in parts.get(part, ())
        if (bucket := maker_of_bucket(key)) is not None:
            return sequence >= buckets.get(BucketName._make(bucket), 0)
        manifest = maker_of_manifest(key)
        return manifest is not None and manifest not in manifests

    keys = [key for key in _keys(tables, store, meta.shards) if is_unnamed(key)]
    versions = [
        each
        for location in own_locations(tables, meta.objects)
        for each in stored_versions(tables.objects, location, store_prefix(store))
    ]
    return Unnamed(keys, [each for each in versions if not (each.is_current and each.object_id in objects)])


def _keys(tables: Tables, store: str, shards: int) -> Iterator[Key]:
    """The keys of all parts, buckets and manifests of a store."""
    ranges: Sequence[tuple[Role, str, str]] = (("delta", "0", "~"), ("snapshot", "bucket/", "bucket/~"))
    for shard in range(shards):
        for role, low, high in ranges:
            yield from tables.list_keys(role, store_shard(store, shard), low, high)
    yield from tables.list_keys("snapshot", store_shard(store, 0), MANIFEST_RANGE[0], MANIFEST_RANGE[1])
