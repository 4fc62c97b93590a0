"""Maintenance of a store: the beginning of a snapshot, and clean-up, in numbered steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from dynastate.engine import cleanup, snapshot_threshold, snapshots
from dynastate.engine.graphs import find_meta, learn_manifest, learn_route, read_graph
from dynastate.engine.known import KnownStores
from dynastate.engine.objects import ObjectRule, enter_location
from dynastate.engine.pace import Pace
from dynastate.engine.sessions import Sessions
from dynastate.engine.snapshots import SnapshotAttempt
from dynastate.errors import RouteInvalidError
from dynastate.format.graph import VersionGraph
from dynastate.format.keys import VERSION_MAX, Attempt
from dynastate.format.manifest import SnapshotManifest, bits_for
from dynastate.format.meta import newest_epoch
from dynastate.format.snapshot import DELETING, Snapshot
from dynastate.format.version_list import VersionEntry
from dynastate.settings import Settings
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables, other_locations


@dataclass(eq=False)
class Maintenance:
    """Snapshots and clean-up of all stores on one pair of tables. Safe for threads.

    `is_busy` says whether commits are under way.
    """

    _tables: Tables
    _sessions: Sessions
    _known_stores: KnownStores
    _is_busy: Callable[[], bool]
    settings: Settings
    _cleaning: set[str] = field(init=False, default_factory=set)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def snapshot(
        self,
        store: str,
        run_id: str,
        version: int,
        attempt: Attempt,
        state_bytes: int,
        min_deltas: int,
        *,
        is_asked_for: bool = False,
    ) -> tuple[SnapshotAttempt | None, Meter]:
        """Begin a snapshot of a version, of about `state_bytes` before compression, if it is worth its write units.

        A snapshot that a user requests is always worth it. Nothing is read if the known route shows that it is not: a
        snapshot that another executor has made since leaves even less to do.

        1. One Query returns version lists, snapshots and the meta item. 2. Measure the deltas since the last snapshot.
        3. Enter the snapshot as being written. (Crash: an item that no reader takes; clean-up deletes it.)
        4. Read the meta item again. Abort if a newer run writes to the store, or rows were erased since this engine
        first read it, because erasing may have read the snapshots before 3. (Crash: the same.)

        Returns the attempt, and the meter, which also counts the writes of the snapshot. The attempt is None if no
        snapshot is needed, another executor is making it, or a newer run writes to the store. It is None, too, if
        version lists refuse the run, or rows were erased: they may be in its memory.
        """
        tables = self._tables.metered(Meter())
        route = self._known_stores.route(store, version, attempt)
        if route is not None and not is_asked_for:
            snapshot_bytes = None if route.snapshot is None else route.snapshot.sizes()[2]
            if not self._is_worth_it(store, route.entries, snapshot_bytes, min_deltas):
                return None, tables.meter
        graph = read_graph(tables, self._known_stores, store, lowest=0, highest=version)  # 1
        epoch = newest_epoch(graph.meta, run_id)
        if epoch is None or (graph.refuses(run_id) and not is_asked_for):
            return None, tables.meter
        base, deltas = graph.route(version, attempt)
        last_snapshot = graph.snapshot(base.version, base.attempt)
        last_bytes = None if last_snapshot is None else last_snapshot.stored_bytes
        if not deltas or not (is_asked_for or self._is_worth_it(store, deltas, last_bytes, min_deltas)):  # 2
            if deltas and self._known_stores.routes.limit_bytes:
                with suppress(RouteInvalidError):
                    learn_route(tables, self._known_stores, graph, base=base, entries=deltas)
            return None, tables.meter
        bits = bits_for(state_bytes)
        base_manifest = None if last_snapshot is None else self._carried(tables, store, last_snapshot, bits)
        if base_manifest is not None:
            bits = base_manifest.bits
        rule = ObjectRule.of(tables, self.settings)
        if rule is not None:
            enter_location(tables, store, graph.required_meta, rule.location)
        pace = Pace(self._is_busy)  # it counts the work after this line
        new_snapshot = snapshots.enter(tables, store, deltas[-1].id, epoch)  # 3
        if new_snapshot is None:
            return None, tables.meter
        snapshot_attempt = SnapshotAttempt(
            tables,
            self._known_stores,
            store,
            new_snapshot,
            bits=bits,
            shards=graph.required_meta.shards,
            codec=self.settings.compression,
            rule=rule,
            base=base_manifest,
            pace=pace,
            values=graph.count_values(deltas[-1].id),
        )
        return self._unless_erased(tables, snapshot_attempt, run_id, epoch), tables.meter  # 4

    def _unless_erased(
        self, tables: Tables, snapshot_attempt: SnapshotAttempt, run_id: str, epoch: int
    ) -> SnapshotAttempt | None:
        """A snapshot that was entered, which erasing finds if it begins later. If it began before, abort and give None.

        The rows may be older than the graph, so this compares with what the engine knew when it first read the store.
        """
        store = snapshot_attempt.store
        try:
            is_current = _is_current(tables, store, run_id, epoch=epoch, erasures=self._known_stores.erasures(store))
        except BaseException:
            snapshot_attempt.abort()
            raise
        if is_current:
            return snapshot_attempt
        snapshot_attempt.abort()
        return None

    def _carried(self, tables: Tables, store: str, snapshot: Snapshot, bits: int) -> SnapshotManifest | None:
        """The manifest of a snapshot whose buckets can be carried on. Returns None if all buckets must be written.

        With another number of buckets all are written, so a small difference is ignored. Buckets in the locations of
        other tables are not carried on: clean-up there does not know that they are needed.
        """
        with suppress(RouteInvalidError):
            manifest = learn_manifest(tables, self._known_stores, store, snapshot)
            if abs(manifest.bits - bits) <= 1 and not other_locations(tables, manifest.locations):
                return manifest
        return None

    def _is_worth_it(self, store: str, deltas: Sequence[VersionEntry], last_bytes: int | None, min_deltas: int) -> bool:
        threshold = float(self.settings.snapshot_threshold)
        return snapshot_threshold.is_worth_it(
            store, deltas, last_bytes=last_bytes, min_deltas=min_deltas, threshold=threshold
        )

    def clean_up(
        self, store: str, run_id: str, version: int, attempt: Attempt, retain: int, least: int, most: int
    ) -> tuple[Meter, int]:
        """Delete what the last `retain` versions do not need, if that is `least` versions; at most `most`, or all if 0.

        Less is deleted, too, if an earlier clean-up has marked a snapshot and not deleted it.

        Does nothing while another clean-up of the store runs in this engine: its caller may have timed out.
        Returns the cost, and the number of further versions and snapshots to delete, which are left to the next
        clean-up.

        1. One Query returns version lists, snapshots and the meta item. 2. Only the newest run may continue.
        3. Find the lowest version that is needed. 4. Delete older snapshots. 5. The first time, delete buckets that
        no snapshot names. 6. Delete older versions from their lists, the lowest first, up to a list that
        has changed since it was read. 7. Delete their parts. 8. Delete orphans below the lowest version and below that
        list; orphans that are objects only the first time.

        Steps 5 and 8 delete nothing if a newer run has begun to write since 1, or rows are erased.

        A crash after any step leaves items that no reader reads, and that the next clean-up finds.
        """
        with self._lock:
            if store in self._cleaning:
                return Meter(), 0
            self._cleaning.add(store)
        try:
            return self._clean_up(store, run_id, version, attempt, retain=retain, least=least, most=most)
        finally:
            with self._lock:
                self._cleaning.remove(store)

    def _clean_up(
        self, store: str, run_id: str, version: int, attempt: Attempt, *, retain: int, least: int, most: int
    ) -> tuple[Meter, int]:
        tables = self._tables.metered(Meter())
        graph = read_graph(tables, self._known_stores, store, lowest=0, highest=VERSION_MAX)  # 1
        epoch = self._epoch_of_newest(tables, graph, run_id)  # 2
        if epoch is None:
            return tables.meter, 0
        if not cleanup.is_surely_newest(graph, version, attempt, epoch):
            return tables.meter, 0
        # The driver may not have committed this version yet: then the query resumes from its parent.
        retention = cleanup.retention(graph, version, attempt, retain=max(2, retain), epoch=epoch)  # 3
        if retention is None:
            return tables.meter, 0
        older_versions, dead_count = retention.below(graph), len(retention.dead)
        # A clean-up beside a snapshot, and one that died, leave the buckets of the snapshots that they have marked.
        is_begun = any(each.stage == DELETING and not each.is_pinned for each in graph.snapshots())
        if len(older_versions) + dead_count < least and not is_begun:
            return tables.meter, 0
        retention = retention.at_most(older_versions, most)
        lowest = retention.lowest
        further_versions = sum(each >= lowest for each in older_versions) + dead_count - len(retention.dead)
        steps = cleanup.CleanUp(tables, graph, graph.required_meta.shards)
        # What nothing names now may be named by then: by a newer run, or by what erasing rewrites. And a fork may need
        # what erasing has replaced in its origin.
        erasures = graph.required_meta.erasures
        is_current = partial(_is_current, tables, store, run_id, epoch=epoch, erasures=erasures)
        try:
            steps.check_snapshots(retention)
            further_snapshots = steps.remove_snapshots(retention, epoch)  # 4
            session = self._sessions.get(store, run_id)
            is_first = session is None or not session.has_removed_orphans
            has_looked = is_first and steps.remove_orphan_buckets(lowest - 1, is_current)  # 5
        except RouteInvalidError:  # another clean-up deletes snapshots that this one has read
            return tables.meter, 0
        entries, end = steps.remove_versions(retention)  # 6
        steps.remove_parts(entries)  # 7
        orphans = steps.find_orphans(end, entries)  # 8
        objects = steps.find_orphan_objects(end, entries) if is_first else []
        has_looked &= end == lowest
        if orphans or objects:
            may_delete = is_current()
            has_looked &= may_delete
            if may_delete:
                steps.remove_orphans(orphans, objects)
        if session is not None and has_looked:
            session.has_removed_orphans = True
        account = self._known_stores.account(store)
        for manifest in steps.manifests.values():
            account.learn(manifest)
        account.cleaned(graph, entries, steps.deleted)
        return tables.meter, further_versions + further_snapshots

    def _epoch_of_newest(self, tables: Tables, graph: VersionGraph, run_id: str) -> int | None:
        """The epoch of a run. Returns None if the run is not the newest.

        The Query returns snapshots after the meta item: a newer run may have made one in between. If no run has
        entered, such a snapshot is of a query that was dropped, whose last requests are late.
        """
        epoch = newest_epoch(graph.meta, run_id)
        if epoch is not None and any(each.epoch > epoch for each in graph.snapshots()):
            return newest_epoch(find_meta(tables, graph.store), run_id)
        return epoch


def _is_current(tables: Tables, store: str, run_id: str, *, epoch: int, erasures: int | None) -> bool:
    """Whether a run of an epoch is the newest of a store, and erasing has begun and ended there only so often."""
    meta = find_meta(tables, store)
    return meta is not None and newest_epoch(meta, run_id) == epoch and meta.erasures == erasures
