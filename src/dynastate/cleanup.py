"""Removing what no retained version needs (design.md, section 4).

Every step first takes the name away, then what it named: a reader never finds a name without its items. Whatever a
crash leaves behind is found again by its key, or by a snapshot that is `leaving`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from dynastate import layout, snapshots
from dynastate.directory import Directory
from dynastate.errors import CorruptStateError
from dynastate.layout import EMPTY, Attempt, History, Item, Key, Snapshot, VersionEntry
from dynastate.tables import WRITES_MAX, Meter, Tables

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
    live = {EMPTY} if oldest == 1 else {node for node in chain if node[0] >= oldest - 1}
    needed = oldest
    for entry in history.entries():
        node = (entry.version, entry.attempt)
        parent = (entry.version - 1, entry.parent)
        if history.snapshot(*node) is not None:
            bases[node] = entry.version
        else:
            # None: its chain is cut off, so it cannot be opened as it is.
            bases[node] = _base_of(history, parent, bases)
        if parent in live:
            live.add(node)
        base = bases[node]
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
    entry = history.find(version, attempt)
    chain = {(entry.version, entry.attempt)}
    while True:
        parent = (entry.version - 1, entry.parent)
        chain.add(parent)
        below = next((each for each in history.of(parent[0]) if each.attempt == parent[1]), None)
        if below is None:
            return chain
        entry = below


class CleanUp:
    """One clean-up of one store: what it may remove, in steps."""

    def __init__(self, tables: Tables, history: History, shards: int, meter: Meter) -> None:
        self._tables = tables
        self._history = history
        self._store = history.store
        self._shards = shards
        self._meter = meter

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
        key = layout.directory_key(self._store, snapshot.version, snapshot.id)
        doomed: dict[Key, int] = {}
        try:
            found = self._directory(snapshot) if snapshot.digest else None
        except CorruptStateError:  # a clean-up that was cut off has deleted it; its own buckets are found by their keys
            found = None
        if found is not None:
            doomed = self._buckets_of(found, carried)
        own = (snapshot.version, snapshot.id)
        if found is None:
            low, high = layout.bucket_range(*own)
            for shard in range(self._shards):
                for item in self._list("snapshot", layout.store_shard(self._store, shard), low, high):
                    if (own, int(item.sort.split("/")[3])) not in carried:
                        doomed[item] = 1
        self._delete(doomed)
        self._delete({key: 1})
        self._tables.delete_over(
            layout.snapshot_key(self._store, snapshot.version, snapshot.attempt),
            {"id": bytes(snapshot.id), "stage": layout.LEAVING},
            self._meter,
        )
        self._meter.items_deleted += 1

    def _buckets_of(self, found: Directory, carried: set[tuple[Node, int]]) -> dict[Key, int]:
        doomed: dict[Key, int] = {}
        for number, bucket in enumerate(found.buckets):
            if bucket.parts and (bucket.holder, number) not in carried:
                for key in found.keys(self._store, number, self._shards):
                    doomed[key] = bucket.stored_bytes // bucket.parts
        return doomed

    def remove_versions(self, below: int) -> list[VersionEntry]:
        """Strike the versions below one off those version lists that are as they were read; the versions struck."""
        struck: list[VersionEntry] = []
        for key, item in self._history.groups.items():
            raws = item["versions"]
            if not isinstance(raws, list):
                raise CorruptStateError("group has no version list", **layout.where(key))
            entries = [layout.decode_entry(self._store, raw) for raw in raws]
            stay = [raw for raw, entry in zip(raws, entries, strict=True) if entry.version >= below]
            if len(stay) == len(raws):
                continue
            before: Item = {"versions": raws}
            if stay:
                done = self._tables.put_over(key, item | {"versions": stay}, before, self._meter)
            else:
                done = self._tables.delete_over(key, before, self._meter)
                self._meter.items_deleted += done
            if done:
                struck += [entry for entry in entries if entry.version < below]
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
        """Parts at versions below one that nothing names: of crashes, of aborts that did not end."""
        low, high = layout.parts_below(below)
        off = {(entry.version, entry.attempt) for entry in struck}
        listed = {(entry.version, entry.attempt) for entry in self._history.entries()} - off
        found: list[Key] = []
        for shard in range(self._shards):
            found += self._list("delta", layout.store_shard(self._store, shard), low, high)
        return [key for key in found if _node_of(key) not in listed]

    def remove_orphans(self, orphans: Sequence[Key]) -> None:
        self._delete(dict.fromkeys(orphans, 1))

    def _directory(self, snapshot: Snapshot) -> Directory:
        return snapshots.read_directory(self._tables, self._store, snapshot, self._meter)

    def _list(self, role: layout.Role, store_shard: str, low: str, high: str) -> list[Key]:
        return self._tables.list_keys(role, store_shard, low, high, self._meter)

    def _delete(self, sizes: dict[Key, int]) -> None:
        """Delete items, 25 a request. Their sizes are those of their data, more or less: they are paid for by them."""
        keys = list(sizes)
        # A request is for one table.
        for _, of_table in groupby(sorted(keys), key=lambda key: key.role):
            doomed = list(of_table)
            for at in range(0, len(doomed), WRITES_MAX):
                self._tables.delete(doomed[at : at + WRITES_MAX], self._meter)
        self._meter.deleted(size + layout.PART_OVERHEAD_BYTES for size in sizes.values())


def _node_of(key: Key) -> Node:
    version, attempt, _ = key.sort.split("/")
    return int(version), Attempt(bytes.fromhex(attempt))
