"""Sizes of stores in the two tables and in S3, counted from the items that name others.

Counted: the parts that version lists name; the buckets that manifests name, each once, whichever snapshots carry
it; the lists, manifests, snapshot, schema and meta items themselves. Not counted: items that nothing names, of attempts
and snapshots under way, or orphans. Items that a fork shares count for the store that contains them, not for the fork.
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
    """Size of the parts of versions, without those in another store."""
    overhead = _part_overhead(store)
    return total(_parts_size(entry, overhead) for entry in entries if entry.home is None and entry.parts)


@lru_cache(maxsize=10_000)
def _part_overhead(store: str) -> int:
    return overhead_bytes(part_key(store, *EMPTY, 0, 1))


def _parts_size(entry: VersionEntry, overhead: int) -> StorageSize:
    items, objects = len(entry.items), entry.objects
    in_objects = sum(objects.sizes) if objects else 0
    return StorageSize(items, entry.stored_bytes - in_objects + items * overhead, objects.bytes if objects else 0)


def lists_size(graph: VersionGraph, deleted: Collection[VersionId] = ()) -> StorageSize:
    """Size of everything but snapshots: version lists and their parts, schemas, meta; without `deleted` versions."""
    found = [size_of(item) for item in graph.descriptions().values()]
    for key, listed in graph.lists.items():
        kept = [raw for raw, entry in listed if entry.id not in deleted]
        if kept:
            found.append(size_of(graph.list_attributes[key] | {VERSIONS: kept}))
    return total(found) + parts_size(graph.store, (each for each in graph.entries() if each.id not in deleted))


@dataclass(frozen=True)
class ManifestSizes:
    """The size of a manifest, and those of its buckets, by holder and number."""

    own: StorageSize
    buckets: dict[tuple[SnapshotId, int], StorageSize]

    @classmethod
    def of(cls, store: str, found: SnapshotManifest) -> ManifestSizes:
        key = manifest_key(store, found.version, found.id)
        overhead = overhead_bytes(bucket_key(store, found.version, found.id, 0, 0, 1))
        buckets = {
            (bucket.holder, number): (
                StorageSize(0, 0, bucket.object_bytes)
                if bucket.place
                else StorageSize(bucket.parts, bucket.stored_bytes + bucket.parts * overhead)
            )
            for number, bucket in enumerate(found.buckets)
            if bucket.parts and bucket.home is None
        }
        return cls(size_of(manifest_item(key, encode_manifest(store, found))), buckets)


def snapshots_size(store: str, snapshots: Iterable[Snapshot], contents: dict[Attempt, ManifestSizes]) -> StorageSize:
    """Size of snapshots that are done, with the buckets that their manifests name.

    Where a manifest is not known, all its buckets count as its own, and as the fewest items possible.
    """
    found: list[StorageSize] = []
    buckets: dict[tuple[SnapshotId, int], StorageSize] = {}
    for snapshot in snapshots:
        found.append(size_of(snapshot_item(store, snapshot)))
        known = contents.get(snapshot.id)
        if known is None and snapshot.object_bytes:
            found.append(StorageSize(1, 0, snapshot.object_bytes))
        elif known is None:
            parts = -(-snapshot.raw_bytes // CHUNK_BYTES_MAX)
            found.append(StorageSize(1 + parts, snapshot.stored_bytes))
        else:
            found.append(known.own)
            buckets |= known.buckets
    return total(found) + total(buckets.values())


def store_size(graph: VersionGraph, items: Mapping[Key, Item]) -> StorageSize:
    """Size of a store, by its lists and manifests as one Query returned them.

    A manifest that clean-up deleted meanwhile, or that is corrupt, is not known: `verify` reports it.
    """
    snapshots = graph.done_snapshots()
    contents: dict[Attempt, ManifestSizes] = {}
    for each in snapshots:
        key = manifest_key(graph.store, each.version, each.id)
        if key in items:
            with suppress(CorruptStateError):
                contents[each.id] = ManifestSizes.of(graph.store, parse_manifest(graph.store, each, key, items[key]))
    return lists_size(graph) + snapshots_size(graph.store, snapshots, contents)
