"""What the tables hold of a store, and what they are to hold."""

from __future__ import annotations

from dynastate.engine.graphs import read_manifest
from dynastate.format.graph import VersionGraph
from dynastate.format.items import Item
from dynastate.format.keys import (
    NO_ATTEMPT,
    SPECS,
    Attempt,
    Key,
    graph_range,
    manifest_key,
    meta_key,
    part_key,
    schema_key,
    snapshot_key,
    store_shard,
)
from dynastate.format.objects import ObjectId
from dynastate.format.snapshot import DONE
from dynastate.format.version_list import VersionEntry
from dynastate.storage.tables import Tables
from tests.support.samples import SHARDS


def parts_of(tables: Tables, store: str) -> list[tuple[Key, Item]]:
    """All items of a store in the delta table, in the order of version, attempt, sequence."""
    shards = (store_shard(store, shard) for shard in range(SHARDS))
    pairs = [each for shard in shards for each in tables.query("delta", shard, "0", "~")]
    return sorted(pairs, key=lambda pair: pair[0].sort)


def buckets_of(tables: Tables, store: str) -> list[str]:
    shards = (store_shard(store, shard) for shard in range(SHARDS))
    return sorted(key.sort for each in shards for key in tables.list_keys("snapshot", each, "bucket/", "bucket/~"))


def everything_of(tables: Tables, store: str) -> list[Item]:
    """Every item that both tables have of a store, by a Query of every shard."""
    places = [(role, store_shard(store, shard)) for role in SPECS for shard in range(SHARDS)]
    return [item for role, shard in places for _, item in tables.query(role, shard, "!", "~")]


def items_of(tables: Tables, store: str) -> dict[str, Item]:
    pairs = tables.query("snapshot", store_shard(store, 0), "a", "~")
    return {key.sort: item for key, item in pairs}


def graph(tables: Tables, store: str) -> VersionGraph:
    low, high = graph_range(0, 10**20 - 1)
    pairs = tables.query("snapshot", store_shard(store, 0), low, high)
    return VersionGraph(store, [(key, item) for key, item in pairs if not key.sort.startswith("schema/")])


def entry(tables: Tables, store: str, version: int, by: Attempt = NO_ATTEMPT) -> VersionEntry:
    return graph(tables, store).find(version, by)


def named_keys(tables: Tables, store: str) -> set[Key]:
    """Keys of all items that are to be there: what version lists name, and manifests of finished snapshots."""
    version_graph = graph(tables, store)
    shards = version_graph.required_meta.shards
    named = {meta_key(store), *version_graph.lists}
    for version_entry in version_graph.entries():
        named.add(schema_key(store, version_entry.schema))
        for sequence in version_entry.items:
            named.add(part_key(store, version_entry.version, version_entry.attempt, sequence, shards))
    for snapshot in version_graph.snapshots():
        named.add(snapshot_key(store, snapshot.version, snapshot.attempt))
        if snapshot.stage == DONE:
            named.add(manifest_key(store, snapshot.version, snapshot.id))
            manifest = read_manifest(tables, store, snapshot)
            in_items = [number for number, bucket in enumerate(manifest.buckets) if bucket.place is None]
            named |= {key for number in in_items for key in manifest.keys(store, number, shards)}
    return named


def named_objects(tables: Tables, store: str) -> set[ObjectId]:
    """All objects that are to be there: what version lists and the manifests of finished snapshots name."""
    version_graph = graph(tables, store)
    named = {place for each in version_graph.entries() if each.home is None for place in each.object_ids(store)}
    for snapshot in version_graph.snapshots():
        if snapshot.stage == DONE:
            manifest = read_manifest(tables, store, snapshot)
            named |= manifest.objects(store)
    return named
