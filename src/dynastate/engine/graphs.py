"""Reads of meta items, version graphs, items of snapshots, and manifests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dynastate.engine.known import KnownStores
from dynastate.engine.route import Route
from dynastate.errors import CorruptStateError, RouteInvalidError
from dynastate.format import keys
from dynastate.format.graph import VersionGraph
from dynastate.format.items import Item
from dynastate.format.keys import VersionId
from dynastate.format.manifest import SnapshotManifest, parse_manifest
from dynastate.format.meta import StoreMeta, parse_metas
from dynastate.format.snapshot import DONE, Snapshot
from dynastate.format.version_list import VersionEntry
from dynastate.storage.tables import Tables, get_apart


def meta_items(tables: Tables, stores: Iterable[str]) -> dict[str, Item]:
    """The meta items of stores, in order. Stores without one are left out."""
    meta_keys = {store: keys.meta_key(store) for store in stores}
    items = get_apart(tables, list(meta_keys.values()))
    return {store: items[key] for store, key in meta_keys.items() if key in items}


def read_metas(tables: Tables, stores: Iterable[str]) -> dict[str, StoreMeta]:
    """The contents of meta items, as by `meta_items`."""
    return parse_metas(meta_items(tables, stores))


def find_meta(tables: Tables, store: str) -> StoreMeta | None:
    """The content of a store's meta item. Returns None if there is none."""
    return read_metas(tables, [store]).get(store)


def read_graph(tables: Tables, known_stores: KnownStores, store: str, lowest: int, highest: int) -> VersionGraph:
    """The version lists and snapshots between two versions, and the meta item, by one Query."""
    low, high = keys.graph_range(lowest, highest)
    items = tables.query("snapshot", keys.store_shard(keys.check_store(store), 0), low, high)
    graph = VersionGraph(store, items, lowest)
    known_stores.saw(graph, highest, is_complete=lowest == 0)
    return graph


def learn_route(
    tables: Tables, known_stores: KnownStores, graph: VersionGraph, base: VersionId, entries: Sequence[VersionEntry]
) -> Route:
    """Remember and return the route to `entries` from the snapshot of the version `base`, or from version 0."""
    snapshot = graph.snapshot(base.version, base.attempt)
    manifest = None if snapshot is None else learn_manifest(tables, known_stores, graph.store, snapshot)
    start = None if manifest is None else graph.entry(base.version, base.attempt)
    schemas = graph.schemas((*entries, *([start] if start else [])))
    shards = graph.required_meta.shards
    route = Route(graph.store, manifest, start, entries=tuple(entries), schemas=schemas, shards=shards)
    known_stores.remember(route)
    return route


def learn_manifest(tables: Tables, known_stores: KnownStores, store: str, snapshot: Snapshot) -> SnapshotManifest:
    """Read the manifest of a snapshot, and count its buckets. A snapshot without one is skipped from now on."""
    try:
        manifest = read_manifest(tables, store, snapshot)
    except CorruptStateError as error:
        known_stores.skip_snapshot(store, snapshot.id, error)
        raise RouteInvalidError(str(error.args[0]), **error.facts) from error
    known_stores.account(store).learn(manifest)
    return manifest


def read_snapshot(tables: Tables, store: str, snapshot: Snapshot | SnapshotManifest) -> Item:
    """The item of the snapshot that the version has now, or an empty item if it has none."""
    key = keys.snapshot_key(store, snapshot.version, snapshot.attempt)
    return tables.get([key]).get(key, {})


def is_done(tables: Tables, store: str, snapshot: Snapshot | SnapshotManifest) -> bool:
    """Whether a snapshot still exists, and is done."""
    item = read_snapshot(tables, store, snapshot)
    return (item.get("id"), item.get("stage")) == (bytes(snapshot.id), DONE)


def read_manifest(tables: Tables, store: str, snapshot: Snapshot) -> SnapshotManifest:
    """The manifest of a snapshot that is done. If clean-up has deleted it, versions have another route."""
    key = keys.manifest_key(store, snapshot.version, snapshot.id)
    item = tables.get([key]).get(key)
    if item is None:
        named_by = keys.snapshot_key(store, snapshot.version, snapshot.attempt)
        facts = keys.where(key) | {"snapshot": named_by.sort}
        if snapshot.stage == DONE and not is_done(tables, store, snapshot):
            raise RouteInvalidError("clean-up deleted a snapshot meanwhile", **facts)
        raise CorruptStateError("the manifest of a snapshot is lost", **facts)
    return parse_manifest(store, snapshot, key, item)
