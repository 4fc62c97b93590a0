"""Clean-up: deletes what no retained version needs (docs/storage-format.md, "Clean-up").

References are deleted before their targets, so a reader never finds a reference without its items. Whatever a crash
leaves behind is found again by its key, or by a snapshot whose stage says that it is being deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dynastate.engine import snapshots
from dynastate.engine.graphs import read_manifest
from dynastate.engine.updates import unchanged
from dynastate.errors import CorruptStateError
from dynastate.format import keys
from dynastate.format.graph import VersionGraph
from dynastate.format.items import Item
from dynastate.format.keys import Attempt, Key, Role, SnapshotId, VersionId
from dynastate.format.manifest import SnapshotManifest
from dynastate.format.objects import ObjectId, bucket_prefix, bucket_stream, delta_prefix, maker_of_object
from dynastate.format.parts import PART_OVERHEAD_BYTES
from dynastate.format.snapshot import DELETING, DONE, WRITING, Snapshot, parse_snapshot
from dynastate.format.version_list import REFUSED, VersionEntry, list_item, part_keys
from dynastate.storage.tables import Tables, delete_all, delete_own_objects, own_locations


@dataclass(frozen=True)
class Retention:
    """The versions that a clean-up retains: from `lowest` on except `dead` ones, and the `foreign` below.

    `dead` are in the order in which they may be deleted: of a version the attempts of older runs first, since a number
    means the newest one that is there.
    """

    lowest: int
    dead: Mapping[VersionId, None] = field(default_factory=dict)
    foreign: frozenset[VersionId] = frozenset()

    def retains(self, version: VersionId) -> bool:
        return version in self.foreign or (version.version >= self.lowest and version not in self.dead)

    def retains_snapshot(self, version: VersionId) -> bool:
        """Whether the snapshot of a version is retained: that of the lowest version's parent is needed."""
        return version in self.foreign or (version.version >= self.lowest - 1 and version not in self.dead)

    def below(self, graph: VersionGraph) -> list[int]:
        """The versions below the lowest one that can be deleted, ascending."""
        older = (each for each in graph.entries() if each.version < self.lowest and not self.retains(each.id))
        return sorted({each.version for each in older if not graph.is_pinned(each.version)})

    def at_most(self, below: Sequence[int], most: int) -> Retention:
        """The same with at most `most` of the versions `below` deleted, and of dead branches, newest first; 0: all."""
        if not most:
            return self
        lowest = min(self.lowest, next(iter(below), self.lowest) + most)
        return replace(self, lowest=lowest, dead=dict.fromkeys(list(self.dead)[:most]))


def retention(graph: VersionGraph, version: int, attempt: Attempt, retain: int, epoch: int) -> Retention | None:
    """The versions to retain: `retain` of them up to this one, which the newest run, of that epoch, has made.

    Retained are the versions of this one's lineage; every attempt that branched off within them, which the driver may
    still choose (a retry, a twin or a zombie); and every attempt at these versions by the same run, which a bare
    number may mean. Other branches that left the lineage earlier are dead: also those of earlier queries, whose numbers
    may be higher. But what runs from another location have made, which may be adopted again, is retained as far as it
    can be opened. None: nothing is deleted, since a newer version was the base of a clean-up.

    Raises:
        CorruptStateError: a version of the lineage that is to be retained cannot be opened.
    """
    oldest = max(1, version - retain + 1)
    # A run with a newer version, or one before the query was taken back, may have cleaned up by that version.
    is_overtaken = graph.versions()[-1] > version
    listed = graph.lineage(graph.find(version, attempt))
    lineage = {listed[0].parent_id, *(entry.id for entry in listed)}
    live, bases, needed = _live(graph, lineage, oldest), graph.bases(), oldest
    for entry in graph.entries():
        base = bases[entry.id]
        if entry.version < oldest or entry.id not in live:
            continue
        if base is not None:
            needed = min(needed, base.version + 1)
        elif entry.id in lineage:
            if is_overtaken:
                return None
            _refuse_lost(graph, entry, listed)
            needed = min(needed, entry.version)  # an earlier clean-up retained less
    needed_by = lineage | graph.reachable(entry for entry in graph.entries() if entry.id in live)
    foreign = _foreign(graph, bases, needed_by)
    dead = [
        entry
        for entry in graph.entries()
        if entry.version >= needed and entry.epoch < epoch and not graph.is_pinned(entry.version)
    ]
    dead.sort(key=lambda entry: (-entry.version, entry.epoch))
    dead_ids = (entry.id for entry in dead if not (entry.id in needed_by or entry.id in foreign))
    return Retention(needed, dict.fromkeys(dead_ids), frozenset(foreign))


def _live(graph: VersionGraph, lineage: Collection[VersionId], oldest: int) -> set[VersionId]:
    """The versions of a lineage from before `oldest` on, what branched off there, and what their runs made again."""
    live = {each for each in lineage if each.version >= oldest - 1}
    runs = {(entry.version, entry.epoch) for entry in graph.entries() if entry.id in live}
    for entry in graph.entries():
        if entry.parent_id in live or (entry.version >= oldest and (entry.version, entry.epoch) in runs):
            live.add(entry.id)
    return live


def _refuse_lost(graph: VersionGraph, entry: VersionEntry, lineage: Sequence[VersionEntry]) -> None:
    """Refuse a version that cannot be opened, unless all that can be opened are above it."""
    if entry.version >= graph.openable(lineage)[0].version:
        raise CorruptStateError(
            "a version that is to be retained cannot be opened: what it depends on is lost",
            store=graph.store,
            version=entry.version,
            attempt=entry.attempt.hex(),
        )


def _foreign(
    graph: VersionGraph, bases: Mapping[VersionId, VersionId | None], needed: Collection[VersionId]
) -> set[VersionId]:
    """Versions by runs from other locations that are not `needed`, with all that they are read from.

    But not those that a later run from their location has made again, or a lower version: its checkpoint has left them.
    Nor a twin of an attempt that was continued: when that one is deleted, its number would mean the twin.
    """
    meta = graph.required_meta
    lowest: dict[tuple[str, int], int] = {}
    continued: dict[tuple[str, int], int] = {}
    for entry in graph.entries():
        place = meta.location_at(entry.epoch)
        lowest.setdefault((place, entry.epoch), entry.version)
        if entry.id in needed:
            continued[place, entry.version] = max(entry.epoch, continued.get((place, entry.version), 0))
    found: set[VersionId] = set()
    for entry in graph.entries():
        place = meta.location_at(entry.epoch)
        if entry.id in needed or place in ("", meta.location) or bases[entry.id] is None:
            continue
        later = (version for (where, epoch), version in lowest.items() if where == place and epoch > entry.epoch)
        is_continued = continued.get((place, entry.version), 0) >= entry.epoch
        if entry.version < min(later, default=entry.version + 1) and not is_continued:
            base, path = graph.route(*entry.id)
            found |= {base, *(each.id for each in path)}
    return found


def is_surely_newest(graph: VersionGraph, version: int, attempt: Attempt, epoch: int) -> bool:
    """Whether the run of an epoch continues the run before it, or has made two versions that follow each other.

    A run that was suspended before its first write, while others started, gets the newest epoch with that write, and
    may continue a state of the query that is over. It makes one version at most: its driver gets no further.
    """
    newest = graph.find(version, attempt)
    before = newest if newest.epoch < epoch else graph.entry(*newest.parent_id)
    return before is not None and before.epoch >= epoch - 1


class CleanUp:
    """The steps of one clean-up of one store."""

    def __init__(self, tables: Tables, graph: VersionGraph, shards: int) -> None:
        self._tables = tables
        self._graph = graph
        self._store = graph.store
        self._shards = shards
        #: Every place where the store may have objects that clean-up may delete.
        self._locations = own_locations(tables, graph.meta.objects) if graph.meta else []
        #: The manifests that were read so far, by their snapshots' ids.
        self.manifests: dict[Attempt, SnapshotManifest] = {}
        #: Ids of the snapshots that are no longer readable.
        self.deleted: set[Attempt] = set()

    def check_snapshots(self, retention: Retention) -> None:
        """Read the manifests of the snapshots that are retained, before data is deleted that recovery could use."""
        for snapshot in self._graph.snapshots():
            if snapshot.stage == DONE and retention.retains_snapshot(snapshot.of):
                self._manifest(snapshot)

    def remove_snapshots(self, retention: Retention, epoch: int) -> None:
        """Delete the snapshots that are not retained, and unfinished ones of other runs than that of `epoch`.

        1. Mark a snapshot in its item as being deleted: readers no longer take it, and no writer can finish it.
           Those that a fork depends on are left.
        2. Read again which snapshots are there. While one of them is being written, stop here: it may carry buckets
           on. One that begins later finds, before it finishes, that its base is being deleted.
        3. Delete its buckets, but those that another snapshot has carried on; then its manifest, then its item.
           (Crash after any step: it is still marked, and the next clean-up resumes.)
        """
        deleting = []
        for snapshot in self._graph.snapshots():
            if snapshot.is_pinned:
                continue
            is_dead = snapshot.stage == WRITING and snapshot.epoch != epoch
            if is_dead or snapshot.stage == DELETING or not retention.retains_snapshot(snapshot.of):
                after = replace(snapshot, stage=DELETING)
                if snapshot == after or snapshots.move(self._tables, self._store, snapshot, after):  # 1
                    deleting.append(after)
                    self.deleted.add(snapshot.id)
        if not deleting:
            return
        now = self._read_snapshots()  # 2
        if any(each.stage == WRITING for each in now):
            return
        carried, objects = self._carried(now), self._named_objects(now)
        for snapshot in deleting:
            self._remove_snapshot(snapshot, carried, objects)  # 3

    def remove_orphan_buckets(self, below: int) -> bool:
        """Delete buckets and manifests below a version that no snapshot names.

        They were written after their snapshot was deleted. Only the keys between those of snapshots are listed: the
        snapshots themselves may be the whole state. False: not now, since a snapshot is being written.
        """
        now = self._read_snapshots()
        if any(each.stage == WRITING for each in now):
            return False
        holders = self._holders(now)
        edges = [f"{each.version:020d}/{each.id.hex()}" for each in sorted(holders) if each.version < below]
        gaps = list(zip(["", *(f"{edge}/~" for edge in edges)], [*edges, f"{below:020d}"], strict=True))
        found = [key for low, high in gaps for key in self._list("snapshot", f"bucket/{low}", f"bucket/{high}")]
        manifest = keys.MANIFEST_RANGE[0]
        found += [key for low, high in gaps for key in self._list("snapshot", manifest + low, manifest + high, 1)]
        objects = [each for each in self._list_objects(bucket_prefix, below) if each[1] not in holders]
        if found or objects:
            # A snapshot that began meanwhile, or carried buckets on, is listed by now.
            now = self._read_snapshots()
            if any(each.stage == WRITING for each in now):
                return False
            named = self._holders(now) | {each.holder for each in now}
            held = ((key, _holder_of(key)) for key in found)
            self._delete({key: 1 for key, holder in held if holder is not None and holder not in named})
            self._delete_objects(each for each, holder in objects if holder not in named)
        return True

    def _carried(self, now: Iterable[Snapshot]) -> set[tuple[SnapshotId, int]]:
        """The buckets of all snapshots that are done, each by the snapshot that wrote it and its number."""
        return {
            (bucket.holder, number)
            for snapshot in now
            if snapshot.stage == DONE
            for number, bucket in enumerate(self._manifest(snapshot).buckets)
            if bucket.parts
        }

    def _holders(self, now: Iterable[Snapshot]) -> set[SnapshotId]:
        """Snapshots that are done, and those that wrote their buckets."""
        done = {each.holder for each in now if each.stage == DONE}
        return done | {holder for holder, _ in self._carried(now)}

    def _read_snapshots(self) -> list[Snapshot]:
        place = keys.store_shard(self._store, 0)
        found = self._tables.query("snapshot", place, *keys.SNAPSHOT_RANGE)
        return [parse_snapshot(key, item) for key, item in found]

    def _remove_snapshot(self, snapshot: Snapshot, carried: set[tuple[SnapshotId, int]], named: set[ObjectId]) -> None:
        try:
            manifest = self._manifest(snapshot) if snapshot.digest else None
        except CorruptStateError:  # a clean-up that was cut off has deleted the manifest
            manifest = None
        if manifest is not None:
            unneeded, objects = self._buckets_of(manifest, carried), manifest.objects(self._store)
        else:
            unneeded, objects = self._own_buckets(snapshot, carried), self._own_objects(snapshot)
        self._delete(unneeded)
        self._delete_objects(objects - named)
        self._delete({keys.manifest_key(self._store, *snapshot.holder): 1})
        before: Item = {"id": bytes(snapshot.id), "stage": DELETING}
        self._tables.delete_over(keys.snapshot_key(self._store, *snapshot.of), unchanged(before))
        self._tables.meter.items_deleted += 1

    def _own_buckets(self, snapshot: Snapshot, carried: set[tuple[SnapshotId, int]]) -> dict[Key, int]:
        """Items of the buckets that a snapshot wrote itself, found by their keys."""
        makers = (
            (key, keys.maker_of_bucket(key)) for key in self._list("snapshot", *keys.bucket_range(snapshot.holder))
        )
        return {key: 1 for key, maker in makers if maker is not None and maker not in carried}

    def _named_objects(self, now: Iterable[Snapshot]) -> set[ObjectId]:
        """The objects that hold the buckets of all snapshots that are done."""
        done = (self._manifest(snapshot) for snapshot in now if snapshot.stage == DONE)
        return {place for manifest in done for place in manifest.objects(self._store)}

    def _own_objects(self, snapshot: Snapshot) -> set[ObjectId]:
        """The objects that a snapshot wrote itself, found by their names."""
        return {
            each
            for location in self._locations
            for each in self._tables.objects.names(location, bucket_stream(location, self._store, snapshot.holder).name)
        }

    def _buckets_of(self, found: SnapshotManifest, carried: set[tuple[SnapshotId, int]]) -> dict[Key, int]:
        """Items of the buckets that a manifest names, with the bytes of their data, without those of another store."""
        unneeded: dict[Key, int] = {}
        for number, bucket in enumerate(found.buckets):
            is_own = bucket.parts and bucket.home is None and bucket.place is None
            if is_own and (bucket.holder, number) not in carried:
                for key in found.keys(self._store, number, self._shards):
                    unneeded[key] = bucket.stored_bytes // bucket.parts
        return unneeded

    def remove_versions(self, retention: Retention) -> tuple[list[VersionEntry], int]:
        """Delete the entries that are not retained from the version lists, the lowest first.

        A list that a fork depends on is left; one that refuses runs is emptied. At one that is no longer as it was
        read this ends, so that no version is missing above another: verify takes that for a loss.

        Returns:
            The deleted entries, and the version below which nothing else was committed meanwhile, as far as is known.
        """
        deleted: list[VersionEntry] = []
        for key, listed in sorted(self._graph.lists.items()):
            kept = [raw for raw, entry in listed if retention.retains(entry.id)]
            if len(kept) == len(listed) or key in self._graph.pinned:
                continue
            before: Item = {"versions": [raw for raw, _ in listed]}
            refused = self._graph.refused.get(key)
            if kept or refused:
                before |= {REFUSED: refused} if refused else {}
                done = self._tables.put_over(key, list_item(key, kept, refused or ()), unchanged(before))
            else:
                done = self._tables.delete_over(key, unchanged(before))
                self._tables.meter.items_deleted += done
            if not done:
                return deleted, min(keys.versions_of(key).start, retention.lowest)
            deleted += [entry for _, entry in listed if not retention.retains(entry.id)]
        return deleted, retention.lowest

    def remove_parts(self, entries: Iterable[VersionEntry]) -> None:
        """Delete the parts of attempts that no list names any longer, without those of another store."""
        own = [entry for entry in entries if entry.home is None]
        self._delete(
            {
                key: entry.stored_bytes // entry.parts
                for entry in own
                for key in part_keys(self._store, entry, self._shards, entry.items)
            }
        )
        self._delete_objects(each for entry in own for each in entry.object_ids(self._store))

    def find_orphans(self, below: int, deleted: Sequence[VersionEntry]) -> list[Key]:
        """Parts below a version that no list names: of crashes, of unfinished aborts.

        Listing keys costs as much as reading items. So the versions of a list that a fork depends on, whose parts are
        retained, are left out until the fork is dropped. Keys that are not the engine's are left.
        """
        kept = [keys.versions_of(key) for key in sorted(self._graph.pinned)]
        gaps = zip([0, *(each.stop for each in kept)], [*(each.start for each in kept), below], strict=True)
        ranges = [keys.parts_range(first, min(end, below)) for first, end in gaps if first < min(end, below)]
        listed = {entry.id for entry in self._graph.entries()}.difference(entry.id for entry in deleted)
        makers = ((key, keys.maker_of_part(key)) for each in ranges for key in self._list("delta", *each))
        return [key for key, maker in makers if maker is not None and maker not in listed]

    def find_orphan_objects(self, below: int, deleted: Sequence[VersionEntry]) -> list[ObjectId]:
        """Objects with parts below a version that no list names. Listing costs as much as a PUT: it is done rarely."""
        named = {entry.id for entry in self._graph.entries()}.difference(entry.id for entry in deleted)
        return [each for each, maker in self._list_objects(delta_prefix, below) if maker not in named]

    def _list_objects(self, prefix: Callable[[str], str], below: int) -> Iterator[tuple[ObjectId, tuple[int, Attempt]]]:
        """The store's objects of one kind that were made for versions below one, each with its maker."""
        for location in self._locations:
            for each in self._tables.objects.names(location, prefix(self._store)):
                maker = maker_of_object(each.name)
                if maker is not None and maker[0] >= below:
                    break
                if maker is not None:
                    yield each, maker

    def remove_orphans(self, orphans: Sequence[Key], objects: Sequence[ObjectId]) -> None:
        self._delete(dict.fromkeys(orphans, 1))
        self._delete_objects(objects)

    def _manifest(self, snapshot: Snapshot) -> SnapshotManifest:
        """The manifest of a snapshot, read once, since it never changes."""
        found = self.manifests.get(snapshot.id)
        if found is None:
            found = read_manifest(self._tables, self._store, snapshot)
            self.manifests[snapshot.id] = found
        return found

    def _list(self, role: Role, low: str, high: str, shards: int = 0) -> list[Key]:
        """Keys between two sort keys, in the first `shards` shards; 0: in all."""
        within = (keys.store_shard(self._store, shard) for shard in range(shards or self._shards))
        return [key for shard in within for key in self._tables.list_keys(role, shard, low, high)]

    def _delete_objects(self, objects: Iterable[ObjectId]) -> None:
        delete_own_objects(self._tables, sorted(objects))

    def _delete(self, sizes: dict[Key, int]) -> None:
        """Delete items, and count write units by the approximate sizes of their data."""
        delete_all(self._tables, list(sizes))
        self._tables.meter.deleted(size + PART_OVERHEAD_BYTES for size in sizes.values())


def _holder_of(key: Key) -> SnapshotId | None:
    """The snapshot that wrote a bucket or a manifest; None: it is no such key."""
    bucket = keys.maker_of_bucket(key)
    return keys.maker_of_manifest(key) if bucket is None else bucket[0]
