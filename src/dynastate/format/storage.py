"""Sizes of stores in the two tables and in S3, counted from the items that name others.

Counted: the parts that version lists name; the buckets that manifests name, once each; and the lists, manifests,
snapshot, schema and meta items themselves. Not counted: items that nothing names, of attempts and snapshots under way,
or orphans. Items that a fork shares count for the store that contains them, not for the fork.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from dynastate.errors import CorruptStateError
from dynastate.format.graph import VersionGraph
from dynastate.format.items import Item, StorageSize, size_of, total
from dynastate.format.keys import EMPTY, Attempt, Key, SnapshotId, VersionId, bucket_key, manifest_key, part_key
from dynastate.format.manifest import SnapshotManifest, encode_manifest, manifest_item, parse_manifest
from dynastate.format.parts import CHUNK_BYTES_MAX, overhead_bytes
from dynastate.format.snapshot import Snapshot, snapshot_item
from dynastate.format.version_list import VERSIONS, VersionEntry


def parts_size(store: str, entries: Iterable[VersionEntry]) -> StorageSize:
    """Size of the parts of versions, without parts in another store."""
    overhead = _part_overhead(store)
    return total(_parts_size(entry, overhead) for entry in entries if entry.home is None and entry.parts)


@lru_cache(maxsize=10_000)
def _part_overhead(store: str) -> int:
    return overhead_bytes(part_key(store, EMPTY.version, EMPTY.attempt, sequence=0, shards=1))


def _parts_size(entry: VersionEntry, overhead: int) -> StorageSize:
    items, objects = len(entry.items), entry.objects
    in_objects = sum(objects.sizes) if objects else 0
    return StorageSize(items, entry.stored_bytes - in_objects + items * overhead, objects.bytes if objects else 0)


def lists_size(graph: VersionGraph, deleted: Collection[VersionId] = ()) -> StorageSize:
    """Size of everything except snapshots: version lists and parts, schemas, meta; without `deleted` versions."""
    sizes = [size_of(item) for item in graph.descriptions.values()]
    for key, listed in graph.lists.items():
        stored_entries = [raw for raw, entry in listed if entry.id not in deleted]
        if stored_entries:
            sizes.append(size_of(graph.list_attributes[key] | {VERSIONS: stored_entries}))
    return total(sizes) + parts_size(graph.store, (each for each in graph.entries() if each.id not in deleted))


@dataclass(frozen=True)
class ManifestSizes:
    """The size of a manifest, and the sizes of its buckets, by holder and number."""

    manifest: StorageSize
    buckets: dict[tuple[SnapshotId, int], StorageSize]

    @classmethod
    def of(cls, store: str, manifest: SnapshotManifest) -> ManifestSizes:
        key = manifest_key(store, manifest.version, manifest.id)
        overhead = overhead_bytes(bucket_key(store, manifest.version, manifest.id, bucket=0, sequence=0, shards=1))
        buckets = {
            (bucket.holder, number): (
                StorageSize(0, 0, bucket.object_bytes)
                if bucket.place
                else StorageSize(bucket.parts, bucket.stored_bytes + bucket.parts * overhead)
            )
            for number, bucket in enumerate(manifest.buckets)
            if bucket.parts and bucket.home is None
        }
        return cls(size_of(manifest_item(key, encode_manifest(store, manifest))), buckets)


def snapshots_size(store: str, snapshots: Iterable[Snapshot], contents: dict[Attempt, ManifestSizes]) -> StorageSize:
    """Size of snapshots that are done, with the buckets that their manifests name.

    If a manifest is not known, all its buckets count as its own, and as the fewest possible items.
    """
    sizes: list[StorageSize] = []
    buckets: dict[tuple[SnapshotId, int], StorageSize] = {}
    for snapshot in snapshots:
        sizes.append(size_of(snapshot_item(store, snapshot)))
        manifest_sizes = contents.get(snapshot.id)
        if manifest_sizes is None and snapshot.object_bytes:
            sizes.append(StorageSize(1, 0, snapshot.object_bytes))
        elif manifest_sizes is None:
            parts = -(-snapshot.raw_bytes // CHUNK_BYTES_MAX)
            sizes.append(StorageSize(1 + parts, snapshot.stored_bytes))
        else:
            sizes.append(manifest_sizes.manifest)
            buckets |= manifest_sizes.buckets
    return total(sizes) + total(buckets.values())


def store_size(graph: VersionGraph, items: Mapping[Key, Item]) -> StorageSize:
    """Size of a store, by its lists and manifests as one Query returned them.

    A manifest that clean-up deleted meanwhile, or that is corrupt, is not known: `verify` reports it.
    """
    snapshots = graph.done_snapshots()
    contents: dict[Attempt, ManifestSizes] = {}
    for snapshot in snapshots:
        key = manifest_key(graph.store, snapshot.version, snapshot.id)
        if key in items:
            with suppress(CorruptStateError):
                contents[snapshot.id] = ManifestSizes.of(
                    graph.store, parse_manifest(graph.store, snapshot, key, items[key])
                )
    return lists_size(graph) + snapshots_size(graph.store, snapshots, contents)
