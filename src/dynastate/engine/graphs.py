"""Reading what leads to the rows of a version: version graphs, snapshots' items, and manifests."""

from __future__ import annotations

from collections.abc import Sequence

from dynastate.engine.known import KnownStores
from dynastate.engine.route import Route
from dynastate.errors import CorruptStateError, RouteInvalidError
from dynastate.format.graph import VersionGraph
from dynastate.format.items import Item
from dynastate.format.keys import VersionId, check_store, graph_range, manifest_key, snapshot_key, store_shard, where
from dynastate.format.manifest import SnapshotManifest, parse_manifest
from dynastate.format.snapshot import DONE, Snapshot
from dynastate.format.version_list import VersionEntry
from dynastate.storage.tables import Tables


def read_graph(tables: Tables, known: KnownStores, store: str, lowest: int, highest: int) -> VersionGraph:
    """Version lists, snapshots and meta item between two versions, by one Query."""
    low, high = graph_range(lowest, highest)
    items = tables.query("snapshot", store_shard(check_store(store), 0), low, high)
    graph = VersionGraph(store, items, lowest)
    known.saw(graph, highest, is_complete=lowest == 0)
    return graph


def learn_route(
    tables: Tables, known: KnownStores, graph: VersionGraph, base: VersionId, entries: Sequence[VersionEntry]
) -> Route:
    """The route by a snapshot of the version `base`, or from version 0, which is known from then on.

    Raises:
        RouteInvalidError: the snapshot is skipped from then on; the versions may have another route.
    """
    snapshot = graph.snapshot(*base)
    manifest = None if snapshot is None else learn_manifest(tables, known, graph.store, snapshot)
    start = None if manifest is None else graph.entry(*base)
    schemas = graph.schemas((*entries, *([start] if start else [])))
    route = Route(graph.store, manifest, start, tuple(entries), schemas, graph.required_meta.shards)
    known.remember(route)
    return route


def learn_manifest(tables: Tables, known: KnownStores, store: str, snapshot: Snapshot) -> SnapshotManifest:
    """The manifest of a snapshot, which is known from then on.

    Raises:
        RouteInvalidError: it is lost or corrupt, and the snapshot is skipped from then on.
    """
    try:
        manifest = read_manifest(tables, store, snapshot)
    except CorruptStateError as corrupt:
        known.skip_snapshot(store, snapshot.id, corrupt)
        raise RouteInvalidError(str(corrupt.args[0]), **corrupt.facts) from corrupt
    known.account(store).learn(manifest)
    return manifest


def read_snapshot(tables: Tables, store: str, of: Snapshot | SnapshotManifest) -> Item:
    """The item that describes the snapshot of a version, whichever that is now; empty: there is none."""
    key = snapshot_key(store, of.version, of.attempt)
    return tables.get([key]).get(key, {})


def is_done(tables: Tables, store: str, of: Snapshot | SnapshotManifest) -> bool:
    """Whether a snapshot is still there, and done."""
    item = read_snapshot(tables, store, of)
    return (item.get("id"), item.get("stage")) == (bytes(of.id), DONE)


def read_manifest(tables: Tables, store: str, snapshot: Snapshot) -> SnapshotManifest:
    """The manifest of a snapshot that is done.

    Raises:
        RouteInvalidError: clean-up has deleted the snapshot meanwhile; versions that need it have another.
    """
    key = manifest_key(store, snapshot.version, snapshot.id)
    found = tables.get([key]).get(key)
    if found is None:
        named_by = snapshot_key(store, snapshot.version, snapshot.attempt)
        facts = where(key) | {"snapshot": named_by.sort}
        if snapshot.stage == DONE and not is_done(tables, store, snapshot):
            raise RouteInvalidError("clean-up deleted a snapshot meanwhile", **facts)
        raise CorruptStateError("the manifest of a snapshot is lost", **facts)
    return parse_manifest(store, snapshot, key, found)
