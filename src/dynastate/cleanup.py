"""Removing what no retained version needs (design.md, section 4).

Every step first takes the name away, then what it named: a reader never finds a name without its items. Whatever a
crash leaves behind is found again by its key, or by a snapshot that is `leaving`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dynastate import layout, snapshots
from dynastate.directory import Directory
from dynastate.errors import CorruptStateError
from dynastate.layout import EMPTY, Attempt, History, Item, Key, Snapshot, VersionEntry
from dynastate.tables import Meter, Tables, delete_all

Node = tuple[int, Attempt]


def oldest_needed(history: History, version: int, attempt: Attempt, retain: int) -> int:
    """The lowest version of which anything is needed, when `retain` versions up to this one are to stay readable.

    To stay readable are the versions on this one's chain, and every attempt that branched off within them: a retry, a
    twin or a zombie, which the driver may still choose. Branches that left the chain before that are dead.

    Raises:
        CorruptStateError: a version on the chain that is to stay cannot be opened.
    """
    oldest = max(1, version - retain + 1)
    bases: dict[Node, int | None] = {}
    chain = _chain(history, version, attempt)
    live = {node for node in chain if node[0] >= oldest - 1}
    needed = oldest
    for entry in history.entries():
        node = (entry.version, entry.attempt)
        parent = (entry.version - 1, entry.parent)
        # None: its chain is cut off, so it cannot be opened as it is.
        base = bases[node] = entry.version if history.snapshot(*node) is not None else _base_of(history, parent, bases)
        if parent in live:
            live.add(node)
        if base is None and node in chain and entry.version >= oldest:
            raise CorruptStateError(
                "a version that is to stay cannot be opened: what it stands on is lost",
                store=history.store,
                version=entry.version,
                attempt=entry.attempt.hex(),
            )
        if entry.version >= oldest and node in live and base is not None:
            needed = min(needed, base + 1)
    return needed


def _base_of(history: History, node: Node, bases: dict[Node, int | None]) -> int | None:
    """The version of the snapshot that an attempt stands on, itself or below; 0: none, down to the beginning."""
    if node == EMPTY:
        return 0
    if history.snapshot(*node) is not None:
        return node[0]
    return bases.get(node)


def _chain(history: History, version: int, attempt: Attempt) -> set[Node]:
    """A version and those it stands on, as far down as they are listed; the one below the last of them included."""
    newest = history.find(version, attempt)
    chain = {(newest.version, newest.attempt)}
    entry: VersionEntry | None = newest
    while entry is not None:
        parent = (entry.version - 1, entry.parent)
        chain.add(parent)
        entry = history.entry(*parent)
    return chain


class CleanUp:
    """One clean-up of one store: what it may remove, in steps."""

    def __init__(self, tables: Tables, history: History, shards: int, meter: Meter) -> None:
        self._tables = tables
        self._history = history
        self._store = history.store
        self._shards = shards
        self._meter = meter
        self._directories: dict[Attempt, Directory] = {}
        #: Ids of the snapshots that no reader takes any more.
        self.gone: set[Attempt] = set()

    def directories(self) -> list[Directory]:
        """The directories that were read on the way."""
        return list(self._directories.values())

    def check_snapshots(self, lowest: int) -> None:
        """Read the directories of the snapshots that stay, before anything goes that could stand in for them.

        Raises:
            CorruptStateError: one is lost or broken.
        """
        for snapshot in self._history.snapshots():
            if snapshot.stage == layout.DONE and snapshot.version >= lowest:
                self._directory(snapshot)

    def remove_snapshots(self, below: int, epoch: int) -> None:
        """Take away the snapshots of versions below one, and those that an older run than that of `epoch` did not end.

        1. Say in its item that it is leaving: no reader takes it any more, and who still writes it cannot end.
        2. Read again which snapshots stay. While one of them is being written, no more is done: it may carry buckets
           on. One that begins later finds, before it ends, that what it stands on is leaving.
        3. Delete its buckets, but those that a snapshot which stays has carried on; then its directory, then its item.
           (Crash after any step: it is still leaving, and the next clean-up goes on.)
        """
        leaving = []
        for snapshot in self._history.snapshots():
            is_dead = snapshot.stage == layout.WRITING and snapshot.epoch < epoch
            if snapshot.version < below or is_dead or snapshot.stage == layout.LEAVING:
                after = replace(snapshot, stage=layout.LEAVING)
                if snapshot == after or snapshots.move(self._tables, self._store, snapshot, after, self._meter):  # 1
                    leaving.append(after)
                    self.gone.add(snapshot.id)
        if not leaving:
            return
        low, high = layout.snapshot_range()
        found = self._tables.query("snapshot", layout.store_shard(self._store, 0), low, high, self._meter)
        now = [layout.parse_snapshot(key, item) for key, item in found]  # 2
        if any(each.stage == layout.WRITING for each in now):
            return
        carried = {
            (bucket.holder, number)
            for snapshot in now
            if snapshot.stage == layout.DONE
            for number, bucket in enumerate(self._directory(snapshot).buckets)
        }
        for snapshot in leaving:
            self._remove_snapshot(snapshot, carried)  # 3

    def _remove_snapshot(self, snapshot: Snapshot, carried: set[tuple[Node, int]]) -> None:
        try:
            doomed = self._buckets_of(self._directory(snapshot), carried) if snapshot.digest else None
        except CorruptStateError:  # a clean-up that was cut off has deleted the directory
            doomed = None
        if doomed is None:
            doomed = self._own_buckets(snapshot, carried)
        self._delete(doomed)
        self._delete({layout.directory_key(self._store, snapshot.version, snapshot.id): 1})
        self._tables.delete_over(
            layout.snapshot_key(self._store, snapshot.version, snapshot.attempt),
            {"id": bytes(snapshot.id), "stage": layout.LEAVING},
            self._meter,
        )
        self._meter.items_deleted += 1

    def _own_buckets(self, snapshot: Snapshot, carried: set[tuple[Node, int]]) -> dict[Key, int]:
        """Items of the buckets that a snapshot wrote itself, found by their keys."""
        own = (snapshot.version, snapshot.id)
        low, high = layout.bucket_range(*own)
        makers = ((key, layout.maker_of_bucket(key)) for key in self._list("snapshot", low, high))
        return {key: 1 for key, maker in makers if maker is not None and (own, maker[2]) not in carried}

    def _buckets_of(self, found: Directory, carried: set[tuple[Node, int]]) -> dict[Key, int]:
        """Items of the buckets that a directory names, with the bytes of their data."""
        doomed: dict[Key, int] = {}
        for number, bucket in enumerate(found.buckets):
            if bucket.parts and (bucket.holder, number) not in carried:
                for key in found.keys(self._store, number, self._shards):
                    doomed[key] = bucket.stored_bytes // bucket.parts
        return doomed

    def remove_versions(self, below: int) -> list[VersionEntry]:
        """Strike the versions below one off those version lists that are as they were read; the versions struck."""
        struck: list[VersionEntry] = []
        for key, group in self._history.groups.items():
            stay = [raw for raw, entry in group if entry.version >= below]
            if len(stay) == len(group):
                continue
            before: Item = {"versions": [raw for raw, _ in group]}
            if stay:
                item = layout.item_key(key) | {"format": layout.FORMAT, "versions": stay}
                done = self._tables.put_over(key, item, before, self._meter)
            else:
                done = self._tables.delete_over(key, before, self._meter)
                self._meter.items_deleted += done
            if done:
                struck += [entry for _, entry in group if entry.version < below]
        return struck

    def remove_parts(self, entries: Iterable[VersionEntry]) -> None:
        """Delete the parts of attempts that no list names any more."""
        self._delete(
            {
                layout.part_key(self._store, entry.version, entry.attempt, sequence, self._shards): (
                    entry.stored_bytes // entry.parts
                )
                for entry in entries
                for sequence in range(entry.parts)
            }
        )

    def find_orphans(self, below: int, struck: Sequence[VersionEntry]) -> list[Key]:
        """Parts at versions below one that nothing names: of crashes, of aborts that did not end.

        What has a key that is none of ours is not ours to delete.
        """
        low, high = layout.parts_below(below)
        off = {(entry.version, entry.attempt) for entry in struck}
        listed = {(entry.version, entry.attempt) for entry in self._history.entries()} - off
        makers = ((key, layout.maker_of_part(key)) for key in self._list("delta", low, high))
        return [key for key, maker in makers if maker is not None and maker not in listed]

    def remove_orphans(self, orphans: Sequence[Key]) -> None:
        self._delete(dict.fromkeys(orphans, 1))

    def _directory(self, snapshot: Snapshot) -> Directory:
        """The directory of a snapshot, read once: it never changes."""
        found = self._directories.get(snapshot.id)
        if found is None:
            found = snapshots.read_directory(self._tables, self._store, snapshot, self._meter)
            self._directories[snapshot.id] = found
        return found

    def _list(self, role: layout.Role, low: str, high: str) -> list[Key]:
        """Keys between two sort keys, in all shards."""
        shards = (layout.store_shard(self._store, shard) for shard in range(self._shards))
        return [key for shard in shards for key in self._tables.list_keys(role, shard, low, high, self._meter)]

    def _delete(self, sizes: dict[Key, int]) -> None:
        """Delete items, whose sizes are those of their data, more or less: they are paid for by them."""
        delete_all(self._tables, list(sizes), self._meter)
        self._meter.deleted(size + layout.PART_OVERHEAD_BYTES for size in sizes.values())
