"""Knowledge of one executor about stores, from what it has read and written. No I/O."""

from __future__ import annotations

import threading
from typing import Final

from dynastate.engine.accounting import StoreAccount
from dynastate.engine.cache import Cache
from dynastate.engine.route import Route
from dynastate.errors import CorruptStateError
from dynastate.format.graph import VersionGraph
from dynastate.format.keys import Attempt, Key
from dynastate.format.manifest import SnapshotManifest
from dynastate.format.parts import Part
from dynastate.format.snapshot import DONE, Snapshot
from dynastate.format.version_list import VersionEntry

#: Memory of all routes.
ROUTES_BYTES: Final = 32 * 1024 * 1024
#: Snapshots found corrupt that are remembered; forgetting one costs finding it again.
SKIPPED_MAX: Final = 1_000
#: Stores whose newest epoch is remembered.
EPOCHS_MAX: Final = 10_000
#: Stores whose sizes are remembered; a forgotten one counts from its next clean-up on.
STORES_MAX: Final = 10_000
#: What a part in memory takes beside its data.
PART_OBJECT_BYTES: Final = 500


class KnownStores:
    """Parts, routes, corrupt snapshots, newest epochs and sizes, each in a bounded memory. Safe for threads.

    Parts, and routes that a version list names, never change, so what was read or written costs no request the next
    time. It keeps `cache_bytes` of parts, and of 0 neither parts nor routes.
    """

    def __init__(self, cache_bytes: int, routes_bytes: int = ROUTES_BYTES) -> None:
        self.parts: Cache[Key, Part] = Cache(cache_bytes)
        #: The route to the newest version that was opened or committed here, by store.
        self.routes: Cache[str, Route] = Cache(min(routes_bytes, cache_bytes))
        #: The errors of corrupt snapshots, by their ids.
        self._skipped: Cache[Attempt, CorruptStateError] = Cache(SKIPPED_MAX)
        self._epochs: Cache[str, int] = Cache(EPOCHS_MAX)
        self._accounts: Cache[str, StoreAccount] = Cache(STORES_MAX)
        self._lock = threading.Lock()

    @property
    def keeps_routes(self) -> bool:
        """Whether routes are kept at all."""
        return self.routes.limit_bytes > 0

    def account(self, store: str) -> StoreAccount:
        """The size of a store, as far as it was read and written here."""
        return self._accounts.get_or_put(store, StoreAccount(store), 1)

    def keep(self, key: Key, part: Part) -> None:
        self.parts.put(key, part, len(part.data) + PART_OBJECT_BYTES)

    def route(self, store: str, version: int, attempt: Attempt) -> Route | None:
        """The route to the version that an attempt made, if it is known here."""
        known = self.routes.get(store)
        return None if known is None else known.to(version, attempt)

    def remember(self, route: Route) -> None:
        """Remember the route to a version, in place of the one to another version of its store."""
        self.routes.put(route.store, route, route.size)

    def skip_snapshot(self, store: str, snapshot: Attempt, corrupt: CorruptStateError) -> None:
        """Make no route begin with a snapshot, by its id: it was found corrupt."""
        self._skipped.put(snapshot, corrupt, 1)
        self.routes.drop(store)

    def newest_epoch(self, store: str) -> int:
        """The newest epoch that was seen of a store; 0: none."""
        return self._epochs.get(store) or 0

    def saw_epoch(self, store: str, epoch: int) -> None:
        """Take in the epoch of a store's meta item."""
        with self._lock:
            self._epochs.put(store, max(self.newest_epoch(store), epoch), 1)

    def forget_above(self, store: str, epoch: int) -> None:
        """Forget a store as it was before it was dropped and made again, if its meta item has no such epoch."""
        with self._lock:
            if self.newest_epoch(store) > epoch:
                self._epochs.drop(store)
                self.routes.drop(store)

    def saw(self, graph: VersionGraph, highest: int, *, is_complete: bool) -> None:
        """Take in what a Query returned of a store, `is_complete`: all that it has up to version `highest`.

        Snapshots that are known to be corrupt are skipped in the graph.
        """
        if graph.meta is not None:
            self.saw_epoch(graph.store, graph.meta.epoch)
        for snapshot in graph.snapshots():
            corrupt = self._skipped.get(snapshot.id)
            # A reader of a snapshot that clean-up deletes finds it corrupt.
            if corrupt is not None and snapshot.stage == DONE:
                graph.skip_snapshot(snapshot.of, corrupt)
        if is_complete:
            self.account(graph.store).read(graph, highest)

    def committed(self, store: str, entry: VersionEntry, schema: str, shards: int, entry_bytes: int) -> None:
        """Take in a version that was made here, with the size of its entry.

        Its route is known, if that to its parent is.
        """
        if entry.version == 1:
            self.remember(Route(store, None, None, (entry,), {entry.schema: schema}, shards))
        elif (before := self.route(store, entry.version - 1, entry.parent)) is not None:
            self.remember(before.then(entry, schema))
        self.account(store).committed(entry, entry_bytes)

    def snapshotted(self, store: str, snapshot: Snapshot, manifest: SnapshotManifest) -> None:
        """Take in a snapshot that was made here. The known route begins with it, if its version is on it."""
        known = self.routes.get(store)
        if known is not None and (by := known.by(manifest)) is not None:
            self.remember(by)
        self.account(store).made(snapshot, manifest)
