"""Sizes of stores, kept up to date from what one executor reads and writes. No I/O."""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Iterable
from typing import Final

from dynastate.engine.cache import Cache
from dynastate.format.graph import VersionGraph
from dynastate.format.items import NOTHING, StorageSize, size_of, total
from dynastate.format.keys import VERSION_MAX, Attempt, VersionId, group_key
from dynastate.format.manifest import SnapshotManifest
from dynastate.format.snapshot import DONE, WRITING, Snapshot, snapshot_item
from dynastate.format.storage import ManifestSizes, lists_size, parts_size, snapshots_size
from dynastate.format.version_list import VersionEntry, encode_entry, list_item

#: Stores whose sizes one executor remembers; a forgotten one counts from its next clean-up on.
STORES_MAX: Final = 10_000


class _Account:
    """The size of one store: as of the last full read of its lists, and what was written since."""

    def __init__(self, store: str) -> None:
        self.store = store
        #: None until all lists were read.
        self.lists: StorageSize | None = None
        self.newest = 0
        self.snapshots: list[Snapshot] = []
        self.contents: dict[Attempt, ManifestSizes] = {}
        #: Names of items that were counted and may be reported again: version lists, and schema items, by every run.
        self.named: set[Hashable] = set()
        self.since: dict[Hashable, StorageSize] = {}
        self._in_snapshots: StorageSize | None = None

    def read(self, graph: VersionGraph) -> None:
        self._count(graph, ())
        self._keep([each for each in graph.snapshots() if each.stage == DONE])

    def cleaned(self, graph: VersionGraph, versions: Collection[VersionId], snapshots: Collection[Attempt]) -> None:
        # A later read than the clean-up's has counted newer versions, though also the deleted ones: it is kept.
        if _newest(graph) >= self.newest:
            self._count(graph, versions)
        self._keep([each for each in self.snapshots if each.id not in snapshots])

    def _count(self, graph: VersionGraph, deleted: Collection[VersionId]) -> None:
        self.newest = _newest(graph)
        self.lists = lists_size(graph, deleted)
        ids = {entry.id for entry in graph.entries()}
        lists = {group_key(self.store, version).sort for version, _ in ids.difference(deleted)}
        # A commit may be listed before it is reported here.
        self.named = lists | {each for each in ids if each.version == self.newest} | set(graph.descriptions())
        seen = self.named | ids | {each.id for each in graph.snapshots() if each.stage != WRITING}
        self.since = {name: size for name, size in self.since.items() if name not in seen}

    def _keep(self, snapshots: list[Snapshot]) -> None:
        self.snapshots = snapshots
        self.contents = {each.id: self.contents[each.id] for each in snapshots if each.id in self.contents}
        self._in_snapshots = None

    def learn(self, found: SnapshotManifest) -> None:
        if found.id not in self.contents:
            self.contents[found.id] = ManifestSizes.of(self.store, found)
            self._in_snapshots = None

    def stored(self) -> StorageSize:
        if self.lists is None:
            return NOTHING
        if self._in_snapshots is None:
            self._in_snapshots = snapshots_size(self.store, self.snapshots, self.contents)
        return self.lists + self._in_snapshots + total(self.since.values())


def _newest(graph: VersionGraph) -> int:
    return max(graph.versions(), default=0)


class StorageAccounting:
    """The sizes of stores, as far as one executor has read and written them. Safe for threads."""

    def __init__(self) -> None:
        self._accounts: Cache[str, _Account] = Cache(STORES_MAX)
        self._lock = threading.Lock()

    def stored(self, store: str) -> StorageSize:
        """The size of a store; `NOTHING` until all its version lists were read."""
        with self._lock:
            return self._of(store).stored()

    def read(self, graph: VersionGraph, highest: int = VERSION_MAX) -> None:
        """Count lists and snapshots up to version `highest`, as they were read; nothing if versions are above it."""
        if _newest(graph) <= highest:
            with self._lock:
                self._of(graph.store).read(graph)

    def cleaned(self, graph: VersionGraph, versions: Iterable[VersionEntry], snapshots: Collection[Attempt]) -> None:
        """Count what was read, without versions and snapshots that were deleted since."""
        ids = {entry.id for entry in versions}
        with self._lock:
            self._of(graph.store).cleaned(graph, ids, snapshots)

    def learn(self, store: str, found: SnapshotManifest) -> None:
        """Count the buckets of a manifest that was read."""
        with self._lock:
            self._of(store).learn(found)

    def wrote(self, store: str, name: Hashable, size: StorageSize) -> None:
        """Count something that was written under a name of its own; if it was there already, it counts once."""
        with self._lock:
            account = self._of(store)
            if name not in account.named:
                account.since[name] = size

    def committed(self, store: str, entry: VersionEntry) -> None:
        """Count a committed version: its parts, and its entry in a list."""
        key = group_key(store, entry.version)
        self.wrote(store, key.sort, size_of(list_item(key, ())))
        listed = StorageSize(0, 1 + len(encode_entry(store, entry)))
        self.wrote(store, entry.id, parts_size(store, [entry]) + listed)

    def made(self, store: str, snapshot: Snapshot, found: SnapshotManifest) -> None:
        """Count a new snapshot: its item, its manifest, and the buckets that it did not carry on."""
        with self._lock:
            account = self._of(store)
            account.learn(found)
            contents = account.contents[found.id]
        own = (size for (holder, _), size in contents.buckets.items() if holder == found.holder)
        item = size_of(snapshot_item(store, snapshot))
        self.wrote(store, found.id, item + contents.own + total(own))

    def _of(self, store: str) -> _Account:
        return self._accounts.get_or_put(store, _Account(store), 1)
