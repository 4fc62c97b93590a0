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

    To stay readable are the versions on this one's chain; every attempt that branched off within them, which the driver
    may still choose (a retry, a twin or a zombie); and every attempt at these versions by the same query run, which
    their numbers may stand for. Other branches that left the chain before that are dead. 0: nothing is to go, since
    there was a clean-up by a newer version.

    Raises:
        CorruptStateError: a version on the chain that is to stay cannot be opened.
    """
    oldest = max(1, version - retain + 1)
    # Whoever has a newer version, or had one before the query was set back, may have cleaned up by that.
    is_overtaken = history.versions()[-1] > version
    bases: dict[Node, int | None] = {}
    listed = history.lineage(history.find(version, attempt))
    # The one below the last of them included.
    chain = {(listed[0].version - 1, listed[0].parent), *((entry.version, entry.attempt) for entry in listed)}
    opens = history.openable(listed)[0].version
    live = {node for node in chain if node[0] >= oldest - 1}
    runs = {(entry.version, entry.epoch) for entry in history.entries() if (entry.version, entry.attempt) in live}
    needed = oldest
    for entry in history.entries():
        node = (entry.version, entry.attempt)
        parent = (entry.version - 1, entry.parent)
        # None: its chain is cut off, so it cannot be opened as it is.
        base = bases[node] = entry.version if history.snapshot(*node) is not None else _base_of(history, parent, bases)
        if parent in live or (entry.version >= oldest and (entry.version, entry.epoch) in runs):
            live.add(node)
        if base is None and node in chain and entry.version >= oldest:
            if is_overtaken:
                return 0
            if entry.version < opens:  # a clean-up that was to retain less has passed here
                needed = min(needed, entry.version)
                continue
            raise CorruptStateError(
                "a version that is to stay cannot be opened: what it stands on is lost",
                store=history.store,
                version=entry.version,
                attempt=entry.attempt.hex(),
            )
        if entry.version >= oldest and node in live and base is not None:
            needed = min(needed, base + 1)
    return needed


def is_surely_newest(history: History, version: int, attempt: Attempt, epoch: int) -> bool:
    """Whether the run of an epoch goes on from the run before it, or has made two versions that follow each other.

    A run that stood still before its first write, while others began, gets the newest epoch with that, and may have a
    life of the store in mind that is over. It makes one version at most: its driver gets no further.
    """
    newest = history.find(version, attempt)
    before = newest if newest.epoch < epoch else history.entry(version - 1, newest.parent)
    return before is not None and before.epoch >= epoch - 1


def _base_of(history: History, node: Node, bases: dict[Node, int | None]) -> int | None:
    """The version of the snapshot that an attempt stands on, itself or below; 0: none, down to the beginning."""
    if node == EMPTY:
        return 0
    if history.snapshot(*node) is not None:
        return node[0]
    return bases.get(node)


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

        1. Say in its item that it is leaving: no reader takes it any more, and who still writes it cannot end. Those
           that a fork stands on stay as they are.
        2. Read again which snapshots stay. While one of them is being written, no more is done: it may carry buckets
           on. One that begins later finds, before it ends, that what it stands on is leaving.
        3. Delete its buckets, but those that a snapshot which stays has carried on; then its directory, then its item.
           (Crash after any step: it is still leaving, and the next clean-up goes on.)
        """
        leaving = []
        for snapshot in self._history.snapshots():
            if snapshot.is_pinned:
                continue
            is_dead = snapshot.stage == layout.WRITING and snapshot.epoch < epoch
            if snapshot.version < below or is_dead or snapshot.stage == layout.LEAVING:
                after = replace(snapshot, stage=layout.LEAVING)
                if snapshot == after or snapshots.move(self._tables, self._store, snapshot, after, self._meter):  # 1
                    leaving.append(after)
                    self.gone.add(snapshot.id)
        if not leaving:
            return
        now = self._read_snapshots()  # 2
        if any(each.stage == layout.WRITING for each in now):
            return
        carried = self._carried(now)
        for snapshot in leaving:
            self._remove_snapshot(snapshot, carried)  # 3

    def remove_strays(self, below: int) -> bool:
        """Delete buckets and directories of versions below one that no snapshot has.

        They were written when their snapshot had gone already. They are looked for between the items of snapshots,
        which may be the whole state, and are not read.

        Returns:
            False: not now, since a snapshot is being written.
        """
        now = self._read_snapshots()
        if any(each.stage == layout.WRITING for each in now):
            return False
        holders = self._holders(now)
        edges = [f"{version:020d}/{own.hex()}" for version, own in sorted(holders) if version < below]
        gaps = list(zip(["", *(f"{edge}/~" for edge in edges)], [*edges, f"{below:020d}"], strict=True))
        found = [key for low, high in gaps for key in self._list("snapshot", f"bucket/{low}", f"bucket/{high}")]
        found += [
            key for low, high in gaps for key in self._list("snapshot", f"directory/{low}", f"directory/{high}", 1)
        ]
        if found:
            # A snapshot that began meanwhile, or carried something on, is there by now.
            now = self._read_snapshots()
            if any(each.stage == layout.WRITING for each in now):
                return False
            named = self._holders(now) | {(each.version, each.id) for each in now}
            held = ((key, _holder_of(key)) for key in found)
            self._delete({key: 1 for key, holder in held if holder is not None and holder not in named})
        return True

    def _carried(self, now: Iterable[Snapshot]) -> set[tuple[Node, int]]:
        """The buckets of all snapshots that are done, each by who wrote it, and its number."""
        return {
            (bucket.holder, number)
            for snapshot in now
            if snapshot.stage == layout.DONE
            for number, bucket in enumerate(self._directory(snapshot).buckets)
            if bucket.parts
        }

    def _holders(self, now: Iterable[Snapshot]) -> set[Node]:
        """Snapshots that are done, and those whose buckets they have."""
        done = {(each.version, each.id) for each in now if each.stage == layout.DONE}
        return done | {holder for holder, _ in self._carried(now)}

    def _read_snapshots(self) -> list[Snapshot]:
        low, high = layout.snapshot_range()
        found = self._tables.query("snapshot", layout.store_shard(self._store, 0), low, high, self._meter)
        return [layout.parse_snapshot(key, item) for key, item in found]

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
        """Items of the buckets that a directory names, with the bytes of their data, but those of another store."""
        doomed: dict[Key, int] = {}
        for number, bucket in enumerate(found.buckets):
            if bucket.parts and bucket.home is None and (bucket.holder, number) not in carried:
                for key in found.keys(self._store, number, self._shards):
                    doomed[key] = bucket.stored_bytes // bucket.parts
        return doomed

    def remove_versions(self, below: int) -> list[VersionEntry]:
        """Strike the versions below one off those version lists that are as they were read; the versions struck.

        A list that a fork stands on stays as it is.
        """
        struck: list[VersionEntry] = []
        for key, group in self._history.groups.items():
            stay = [raw for raw, entry in group if entry.version >= below]
            if len(stay) == len(group) or key in self._history.pinned:
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
        """Delete the parts of attempts that no list names any more, but those of another store."""
        self._delete(
            {
                key: entry.stored_bytes // entry.parts
                for entry in entries
                if entry.home is None
                for key in layout.part_keys(self._store, entry, self._shards)
            }
        )

    def find_orphans(self, below: int, struck: Sequence[VersionEntry]) -> list[Key]:
        """Parts at versions below one that nothing names: of crashes, of aborts that did not end.

        Listing costs what reading does. So those among the versions of a list that a fork stands on, whose parts stay,
        are left until it is gone. What has a key that is none of ours is not ours to delete.
        """
        kept = [layout.versions_of(group) for group in sorted(self._history.pinned)]
        gaps = zip([0, *(each.stop for each in kept)], [*(each.start for each in kept), below], strict=True)
        ranges = [layout.parts_range(first, min(end, below)) for first, end in gaps if first < min(end, below)]
        off = {(entry.version, entry.attempt) for entry in struck}
        listed = {(entry.version, entry.attempt) for entry in self._history.entries()} - off
        makers = ((key, layout.maker_of_part(key)) for each in ranges for key in self._list("delta", *each))
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

    def _list(self, role: layout.Role, low: str, high: str, shards: int = 0) -> list[Key]:
        """Keys between two sort keys, in so many shards; 0: in all."""
        within = (layout.store_shard(self._store, shard) for shard in range(shards or self._shards))
        return [key for shard in within for key in self._tables.list_keys(role, shard, low, high, self._meter)]

    def _delete(self, sizes: dict[Key, int]) -> None:
        """Delete items, whose sizes are those of their data, more or less: they are paid for by them."""
        delete_all(self._tables, list(sizes), self._meter)
        self._meter.deleted(size + layout.PART_OVERHEAD_BYTES for size in sizes.values())


def _holder_of(key: Key) -> Node | None:
    """The snapshot that wrote a bucket or a directory; None: it is no such key."""
    bucket = layout.maker_of_bucket(key)
    return layout.maker_of_directory(key) if bucket is None else bucket[:2]
