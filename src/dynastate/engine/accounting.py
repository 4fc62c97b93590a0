"""Sizes of stores, by the reads and writes of one executor. No I/O."""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Iterable

from dynastate.format.graph import VersionGraph
from dynastate.format.items import NOTHING, StorageSize, size_of, total
from dynastate.format.keys import VERSION_MAX, Attempt, VersionId, version_list_key
from dynastate.format.manifest import SnapshotManifest
from dynastate.format.snapshot import WRITING, Snapshot, snapshot_item
from dynastate.format.storage import ManifestSizes, lists_size, parts_size, snapshots_size
from dynastate.format.version_list import VersionEntry, list_item


class StoreAccount:
    """The size of one store: at the last full read of its lists, plus later writes. Safe for threads."""

    def __init__(self, store: str) -> None:
        self._store = store
        #: None until all lists are read.
        self._lists: StorageSize | None = None
        self._newest = (0, 0)
        self._snapshots: list[Snapshot] = []
        self._contents: dict[Attempt, ManifestSizes] = {}
        #: Names of counted items that may be reported again: version lists, and schema items, which every run reports.
        self._named: set[Hashable] = set()
        self._since: dict[Hashable, StorageSize] = {}
        self._in_snapshots: StorageSize | None = None
        self._lock = threading.RLock()

    def stored(self) -> StorageSize:
        """The size of the store. Returns `NOTHING` until all its version lists are read."""
        with self._lock:
            if self._lists is None:
                return NOTHING
            if self._in_snapshots is None:
                self._in_snapshots = snapshots_size(self._store, self._snapshots, self._contents)
            return self._lists + self._in_snapshots + total(self._since.values())

    def read(self, graph: VersionGraph, highest: int = VERSION_MAX) -> None:
        """Count the lists and snapshots of a graph, unless it has versions above `highest`."""
        if max(graph.versions(), default=0) <= highest:
            with self._lock:
                self._count(graph, ())
                self._keep(graph.done_snapshots())

    def cleaned(self, graph: VersionGraph, versions: Iterable[VersionEntry], snapshots: Collection[Attempt]) -> None:
        """Count the lists and snapshots of a graph without the deleted versions and snapshots."""
        with self._lock:
            # A later read counts the newer versions, and also the deleted ones. It stays.
            if _newest(graph) >= self._newest:
                self._count(graph, {entry.id for entry in versions})
            self._keep([each for each in self._snapshots if each.id not in snapshots])

    def learn(self, manifest: SnapshotManifest) -> None:
        """Count the buckets of a manifest that was read."""
        with self._lock:
            if manifest.id not in self._contents:
                self._contents[manifest.id] = ManifestSizes.of(self._store, manifest)
                self._in_snapshots = None

    def wrote(self, name: Hashable, size: StorageSize) -> None:
        """Count something that was written under a unique name. A name that is written again counts once."""
        with self._lock:
            if name not in self._named:
                self._since[name] = size

    def committed(self, entry: VersionEntry, entry_bytes: int) -> None:
        """Count a committed version: its parts, and its entry of `entry_bytes` in a list."""
        key = version_list_key(self._store, entry.version)
        with self._lock:
            if key.sort not in self._since:
                self.wrote(key.sort, size_of(list_item(key, ())))
            self.wrote(entry.id, parts_size(self._store, [entry]) + StorageSize(0, 1 + entry_bytes))

    def made(self, snapshot: Snapshot, manifest: SnapshotManifest) -> None:
        """Count a new snapshot: its item, its manifest, and the buckets that it wrote itself."""
        with self._lock:
            self.learn(manifest)
            contents = self._contents[manifest.id]
        own_sizes = (size for (holder, _), size in contents.buckets.items() if holder == manifest.holder)
        self.wrote(manifest.id, size_of(snapshot_item(self._store, snapshot)) + contents.manifest + total(own_sizes))

    def _count(self, graph: VersionGraph, deleted: Collection[VersionId]) -> None:
        self._newest = _newest(graph)
        self._lists = lists_size(graph, deleted)
        ids = {entry.id for entry in graph.entries()}
        lists = {version_list_key(self._store, version).sort for version, _ in ids.difference(deleted)}
        # A commit may be listed before it is reported here.
        self._named = lists | {each for each in ids if each.version == self._newest[1]} | set(graph.descriptions)
        counted = self._named | ids | {each.id for each in graph.snapshots() if each.stage != WRITING}
        self._since = {name: size for name, size in self._since.items() if name not in counted}

    def _keep(self, snapshots: list[Snapshot]) -> None:
        self._snapshots = snapshots
        self._contents = {each.id: self._contents[each.id] for each in snapshots if each.id in self._contents}
        self._in_snapshots = None


def _newest(graph: VersionGraph) -> tuple[int, int]:
    """Epoch and number of the newest version. The epoch decides: a run that starts over makes lower numbers."""
    if not graph.versions():
        return 0, 0
    newest = graph.newest()
    return newest.epoch, newest.version
