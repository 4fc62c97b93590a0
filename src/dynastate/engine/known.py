"""Knowledge of one executor about stores, from its reads and writes. No I/O."""

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
#: Corrupt snapshots that are remembered. One that is forgotten is read again.
SKIPPED_MAX: Final = 1_000
#: Stores whose newest epoch is remembered.
EPOCHS_MAX: Final = 10_000
#: Stores whose sizes are remembered. A forgotten store counts again from its next clean-up.
STORES_MAX: Final = 10_000
#: Memory of a part without its data.
PART_OBJECT_BYTES: Final = 500


class KnownStores:
    """Parts, routes, corrupt snapshots, newest epochs and sizes, each in a bounded memory. Safe for threads.

    Parts, and routes that a version list names, never change, so a second use costs no request.
    `cache_bytes` is the limit for parts; with 0, neither parts nor routes are kept.
    """

    def __init__(self, cache_bytes: int, routes_bytes: int = ROUTES_BYTES) -> None:
        self.parts: Cache[Key, Part] = Cache(cache_bytes)
        #: Routes to the newest version that this executor has opened or committed, by store.
        self.routes: Cache[str, Route] = Cache(min(routes_bytes, cache_bytes))
        #: The errors of corrupt snapshots, by their ids.
        self._skipped: Cache[Attempt, CorruptStateError] = Cache(SKIPPED_MAX)
        self._epochs: Cache[str, int] = Cache(EPOCHS_MAX)
        #: How often erasing had begun and ended when a store was first read or written to.
        self._erasures: Cache[str, int] = Cache(STORES_MAX)
        self._accounts: Cache[str, StoreAccount] = Cache(STORES_MAX)
        self._lock = threading.Lock()

    def account(self, store: str) -> StoreAccount:
        """The size of a store, by the reads and writes of this executor."""
        return self._accounts.get_or_put(store, StoreAccount(store), 1)

    def keep(self, key: Key, part: Part) -> None:
        self.parts.put(key, part, len(part.data) + PART_OBJECT_BYTES)

    def route(self, store: str, version: int, attempt: Attempt) -> Route | None:
        """The route to a version and attempt, or None if it is not known."""
        route = self.routes.get(store)
        return None if route is None else route.to(version, attempt)

    def remember(self, route: Route) -> None:
        """Remember the route to a version, which replaces the last route of its store."""
        self.routes.put(route.store, route, route.size)

    def skip_snapshot(self, store: str, snapshot: Attempt, error: CorruptStateError) -> None:
        """Let no route begin with a corrupt snapshot, given its id."""
        self._skipped.put(snapshot, error, 1)
        self.routes.drop(store)

    def newest_epoch(self, store: str) -> int:
        """The newest known epoch of a store, or 0 if none is known."""
        return self._epochs.get(store) or 0

    def saw_epoch(self, store: str, epoch: int) -> None:
        """Remember the epoch of a store's meta item, unless a newer one is known."""
        with self._lock:
            self._epochs.put(store, max(self.newest_epoch(store), epoch), 1)

    def erasures(self, store: str) -> int | None:
        """How often erasing had begun and ended when the store was first read or written to, or None if it was not."""
        return self._erasures.get(store)

    def saw_erasures(self, store: str, erasures: int) -> None:
        """Remember how often erasing has begun and ended, unless a lower number is known.

        A store that was dropped and made again counts from 0.
        """
        with self._lock:
            lowest = self._erasures.get(store)
            if lowest is None or erasures < lowest:
                self._erasures.put(store, erasures, 1)

    def forget_above(self, store: str, epoch: int) -> None:
        """Forget a store that was dropped and made again: its meta item has a lower epoch than the known one."""
        with self._lock:
            if self.newest_epoch(store) > epoch:
                self._epochs.drop(store)
                self.routes.drop(store)

    def saw(self, graph: VersionGraph, highest: int, *, is_complete: bool) -> None:
        """Remember the graph of a store. `is_complete` means that it has every version up to `highest`.

        The graph then skips the snapshots that are known to be corrupt.
        """
        if graph.meta is not None:
            self.saw_epoch(graph.store, graph.meta.epoch)
            self.saw_erasures(graph.store, graph.meta.erasures)
        for snapshot in graph.snapshots():
            error = self._skipped.get(snapshot.id)
            # A snapshot that clean-up deletes also looks corrupt to its readers.
            if error is not None and snapshot.stage == DONE:
                graph.skip_snapshot(snapshot.of, error)
        if is_complete:
            self.account(graph.store).read(graph, highest)

    def committed(self, store: str, entry: VersionEntry, schema: str, shards: int, entry_bytes: int) -> None:
        """Remember a version that this executor has committed, with the size of its entry.

        If the route to its parent is known, the route to the version is known too.
        """
        if entry.version == 1:
            schemas = {entry.schema: schema}
            self.remember(Route(store, None, None, entries=(entry,), schemas=schemas, shards=shards))
        elif (parent_route := self.route(store, entry.version - 1, entry.parent)) is not None:
            self.remember(parent_route.then(entry, schema))
        self.account(store).committed(entry, entry_bytes)

    def snapshotted(self, store: str, snapshot: Snapshot, manifest: SnapshotManifest) -> None:
        """Remember a snapshot that this executor has made. The known route begins with it if it has its version."""
        route = self.routes.get(store)
        if route is not None and (shorter_route := route.by(manifest)) is not None:
            self.remember(shorter_route)
        self.account(store).made(snapshot, manifest)
