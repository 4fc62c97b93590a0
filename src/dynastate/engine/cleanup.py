"""Clean-up: deletes what no retained version needs (docs/storage-format.md, "Clean-up").

References are deleted before their targets, so a reader never finds a reference without its items. After a crash, the
next clean-up finds the rest by its keys, or by snapshots in the stage DELETING.
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
from dynastate.format.version_list import REFUSED, VersionEntry, part_keys, shorter_list
from dynastate.storage.tables import Tables, delete_all, delete_own_objects, own_locations


@dataclass(frozen=True)
class Retention:
    """The versions that a clean-up retains: all from `lowest` on except `dead`, and the `foreign` versions below.

    `dead` has the order of deletion. Among the attempts at a version, older runs come first, since a bare
    number means the newest attempt that exists.
    """

    lowest: int
    dead: Mapping[VersionId, None] = field(default_factory=dict)
    foreign: frozenset[VersionId] = frozenset()

    def retains(self, version: VersionId) -> bool:
        return version in self.foreign or (version.version >= self.lowest and version not in self.dead)

    def retains_snapshot(self, version: VersionId) -> bool:
        """Whether the snapshot of a version is retained. The parent of the lowest version keeps its snapshot."""
        return version in self.foreign or (version.version >= self.lowest - 1 and version not in self.dead)

    def below(self, graph: VersionGraph) -> list[int]:
        """The versions below `lowest` that can be deleted, ascending."""
        older = (each for each in graph.entries() if each.version < self.lowest and not self.retains(each.id))
        return sorted({each.version for each in older if not graph.is_pinned(each.version)})

    def at_most(self, below: Sequence[int], most: int) -> Retention:
        """A retention that deletes at most `most` of the versions `below`, and of dead ones, newest first; 0: all."""
        if not most:
            return self
        lowest = min(self.lowest, next(iter(below), self.lowest) + most)
        return replace(self, lowest=lowest, dead=dict.fromkeys(list(self.dead)[:most]))


def retention(graph: VersionGraph, version: int, attempt: Attempt, retain: int, epoch: int) -> Retention | None:
    """The retention of the last `retain` versions up to one that the newest run, of `epoch`, has made.

    Their lineage is retained, and every attempt that branched off within it: the driver may still choose a retry, a
    twin or a zombie. So is every attempt at these versions by the same run, which a bare number may mean. Branches that
    left the lineage earlier are dead, also the branches of earlier queries, whose numbers may be higher. Versions by
    runs from another location, which may be adopted again, are retained if they can be opened.
    Returns None, to delete nothing, if an earlier clean-up may have been based on a newer version.
    """
    oldest = max(1, version - retain + 1)
    # A run with a newer version, or a run before a rollback, may have cleaned up by that version.
    is_overtaken = graph.versions()[-1] > version
    entries = graph.lineage(graph.find(version, attempt))
    lineage = {entries[0].parent_id, *(entry.id for entry in entries)}
    live, bases, lowest = _live(graph, lineage, oldest), graph.bases(), oldest
    for entry in graph.entries():
        base = bases[entry.id]
        if entry.version < oldest or entry.id not in live:
            continue
        if base is not None:
            lowest = min(lowest, base.version + 1)
        elif entry.id in lineage:
            if is_overtaken:
                return None
            _refuse_lost(graph, entry, entries)
            lowest = min(lowest, entry.version)  # an earlier clean-up retained less
    needed_ids = lineage | graph.reachable(entry for entry in graph.entries() if entry.id in live)
    foreign = _foreign(graph, bases, needed_ids)
    dead = [
        entry
        for entry in graph.entries()
        if entry.version >= lowest and entry.epoch < epoch and not graph.is_pinned(entry.version)
    ]
    dead.sort(key=lambda entry: (-entry.version, entry.epoch))
    dead_ids = (entry.id for entry in dead if not (entry.id in needed_ids or entry.id in foreign))
    return Retention(lowest, dict.fromkeys(dead_ids), frozenset(foreign))


def _live(graph: VersionGraph, lineage: Collection[VersionId], oldest: int) -> set[VersionId]:
    """The versions of a lineage from the parent of `oldest` on, their branches, and other attempts of their runs."""
    live = {each for each in lineage if each.version >= oldest - 1}
    runs = {(entry.version, entry.epoch) for entry in graph.entries() if entry.id in live}
    for entry in graph.entries():
        if entry.parent_id in live or (entry.version >= oldest and (entry.version, entry.epoch) in runs):
            live.add(entry.id)
    return live


def _refuse_lost(graph: VersionGraph, entry: VersionEntry, lineage: Sequence[VersionEntry]) -> None:
    """Refuse a version that cannot be opened, unless all versions that can be opened are above it."""
    if entry.version >= graph.openable(lineage)[0].version:
        raise CorruptStateError(
            "a version that is to be retained cannot be opened: what it depends on is lost",
            store=graph.store,
            version=entry.version,
            attempt=entry.attempt.hex(),
        )


def _foreign(
    graph: VersionGraph, bases: Mapping[VersionId, VersionId | None], needed_ids: Collection[VersionId]
) -> set[VersionId]:
    """Versions by runs from other locations that are not in `needed_ids`, with all versions that they are read from.

    A version is left out if a later run from its location has made it again, or a lower one: its checkpoint left it.
    So is a twin of an attempt that was continued: after the deletion of the attempt, its number would mean the twin.
    """
    meta = graph.required_meta
    lowest: dict[tuple[str, int], int] = {}
    continued: dict[tuple[str, int], int] = {}
    for entry in graph.entries():
        location = meta.location_at(entry.epoch)
        lowest.setdefault((location, entry.epoch), entry.version)
        if entry.id in needed_ids:
            continued[location, entry.version] = max(entry.epoch, continued.get((location, entry.version), 0))
    foreign: set[VersionId] = set()
    for entry in graph.entries():
        location = meta.location_at(entry.epoch)
        if entry.id in needed_ids or location in ("", meta.location) or bases[entry.id] is None:
            continue
        versions = (version for (other, epoch), version in lowest.items() if other == location and epoch > entry.epoch)
        is_continued = continued.get((location, entry.version), 0) >= entry.epoch
        if entry.version < min(versions, default=entry.version + 1) and not is_continued:
            base, path = graph.route(entry.version, entry.attempt)
            foreign |= {base, *(each.id for each in path)}
    return foreign


def is_surely_newest(graph: VersionGraph, version: int, attempt: Attempt, epoch: int) -> bool:
    """Whether the run of an epoch continues the run before it, or has made two versions that follow each other.

    A run may be suspended before its first write, while others start. It then gets the newest epoch with that write,
    and may continue an old state of the query. It makes one version at most, since its driver gets no further.
    """
    newest = graph.find(version, attempt)
    previous = newest if newest.epoch < epoch else graph.entry(newest.version - 1, newest.parent)
    return previous is not None and previous.epoch >= epoch - 1


class CleanUp:
    """The steps of one clean-up of one store."""

    def __init__(self, tables: Tables, graph: VersionGraph, shards: int) -> None:
        self._tables = tables
        self._graph = graph
        self._store = graph.store
        self._shards = shards
        #: All locations of objects that clean-up may delete.
        self._locations = own_locations(tables, graph.meta.objects) if graph.meta else []
        #: The manifests that were read, by the ids of their snapshots.
        self.manifests: dict[Attempt, SnapshotManifest] = {}
        #: Ids of the snapshots that are no longer readable.
        self.deleted: set[Attempt] = set()

    def check_snapshots(self, retention: Retention) -> None:
        """Read the manifests of retained snapshots, before the deletion of data that recovery could use."""
        for snapshot in self._graph.snapshots():
            if snapshot.stage == DONE and retention.retains_snapshot(snapshot.of):
                self._manifest(snapshot)

    def remove_snapshots(self, retention: Retention, epoch: int) -> int:
        """Delete the snapshots that are not retained, and unfinished snapshots of other runs than the one of `epoch`.

        Returns the number of snapshots that are marked and left to the next clean-up.

        1. Mark a snapshot in its item as being deleted: readers no longer take it, and no writer can finish it.
           Snapshots that a fork depends on stay.
        2. Read the items of the snapshots again. If one is being written, stop here: it may carry buckets on. A
           snapshot that begins later finds, before it finishes, that its base is being deleted.
        3. Delete its buckets, except buckets that another snapshot has carried on; then its manifest, then its item.
           (Crash after any step: the snapshot is still marked, and the next clean-up resumes.)
        """
        deleting = []
        for snapshot in self._graph.snapshots():
            if snapshot.is_pinned:
                continue
            is_dead = snapshot.stage == WRITING and snapshot.epoch != epoch
            if is_dead or snapshot.stage == DELETING or not retention.retains_snapshot(snapshot.of):
                marked = replace(snapshot, stage=DELETING)
                if snapshot == marked or snapshots.move(self._tables, self._store, snapshot, marked):  # 1
                    deleting.append(marked)
                    self.deleted.add(snapshot.id)
        if not deleting:
            return 0
        all_snapshots = self._read_snapshots()  # 2
        if any(each.stage == WRITING for each in all_snapshots):
            return len(deleting)
        carried, objects = self._carried(all_snapshots), self._named_objects(all_snapshots)
        for snapshot in deleting:
            self._remove_snapshot(snapshot, carried, objects)  # 3
        return 0

    def remove_orphan_buckets(self, below: int, is_current: Callable[[], bool]) -> bool:
        """Delete buckets and manifests below a version that no snapshot names.

        They were written after their snapshot was deleted. Only the keys between the keys of snapshots are listed: the
        snapshots themselves may be the whole state. Returns False, and deletes nothing, if a snapshot is being written,
        or there are some and the graph of this clean-up is no longer current.
        """
        all_snapshots = self._read_snapshots()
        if any(each.stage == WRITING for each in all_snapshots):
            return False
        holders = self._holders(all_snapshots)
        edges = [f"{each.version:020d}/{each.id.hex()}" for each in sorted(holders) if each.version < below]
        gaps = list(zip(["", *(f"{edge}/~" for edge in edges)], [*edges, f"{below:020d}"], strict=True))
        candidates = [key for low, high in gaps for key in self._list("snapshot", f"bucket/{low}", f"bucket/{high}")]
        manifest = keys.MANIFEST_RANGE[0]
        candidates += [key for low, high in gaps for key in self._list("snapshot", manifest + low, manifest + high, 1)]
        objects = [each for each in self._list_objects(bucket_prefix, below) if each[1] not in holders]
        if candidates or objects:
            # A snapshot that began meanwhile, or carried buckets on, has an item by now.
            all_snapshots = self._read_snapshots()
            if any(each.stage == WRITING for each in all_snapshots) or not is_current():
                return False
            named_holders = self._holders(all_snapshots) | {each.holder for each in all_snapshots}
            key_holders = ((key, _holder_of(key)) for key in candidates)
            self._delete({key: 1 for key, holder in key_holders if holder is not None and holder not in named_holders})
            self._delete_objects(each for each, holder in objects if holder not in named_holders)
        return True

    def _carried(self, all_snapshots: Iterable[Snapshot]) -> set[tuple[SnapshotId, int]]:
        """The buckets of all snapshots that are done, by their writer and number."""
        return {
            (bucket.holder, number)
            for snapshot in all_snapshots
            if snapshot.stage == DONE
            for number, bucket in enumerate(self._manifest(snapshot).buckets)
            if bucket.parts
        }

    def _holders(self, all_snapshots: Iterable[Snapshot]) -> set[SnapshotId]:
        """The snapshots that are done, and the writers of their buckets."""
        holders = {each.holder for each in all_snapshots if each.stage == DONE}
        return holders | {holder for holder, _ in self._carried(all_snapshots)}

    def _read_snapshots(self) -> list[Snapshot]:
        low, high = keys.SNAPSHOT_RANGE
        items = self._tables.query("snapshot", keys.store_shard(self._store, 0), low, high)
        return [parse_snapshot(key, item) for key, item in items]

    def _remove_snapshot(self, snapshot: Snapshot, carried: set[tuple[SnapshotId, int]], in_use: set[ObjectId]) -> None:
        try:
            manifest = self._manifest(snapshot) if snapshot.digest else None
        except CorruptStateError:  # a clean-up that was cut off has deleted the manifest
            manifest = None
        if manifest is not None:
            unneeded, objects = self._buckets_of(manifest, carried), manifest.objects(self._store)
        else:
            unneeded, objects = self._own_buckets(snapshot, carried), self._own_objects(snapshot)
        self._delete(unneeded)
        self._delete_objects(objects - in_use)
        self._delete({keys.manifest_key(self._store, snapshot.version, snapshot.id): 1})
        item: Item = {"id": bytes(snapshot.id), "stage": DELETING}
        key = keys.snapshot_key(self._store, snapshot.version, snapshot.attempt)
        self._tables.delete_over(key, unchanged(item))
        self._tables.meter.items_deleted += 1

    def _own_buckets(self, snapshot: Snapshot, carried: set[tuple[SnapshotId, int]]) -> dict[Key, int]:
        """The items of the buckets that a snapshot wrote itself, by their keys."""
        low, high = keys.bucket_range(snapshot.holder)
        makers = ((key, keys.maker_of_bucket(key)) for key in self._list("snapshot", low, high))
        return {key: 1 for key, maker in makers if maker is not None and maker not in carried}

    def _named_objects(self, all_snapshots: Iterable[Snapshot]) -> set[ObjectId]:
        """The objects that hold the buckets of all snapshots that are done."""
        manifests = (self._manifest(snapshot) for snapshot in all_snapshots if snapshot.stage == DONE)
        return {each for manifest in manifests for each in manifest.objects(self._store)}

    def _own_objects(self, snapshot: Snapshot) -> set[ObjectId]:
        """The objects that a snapshot wrote itself, by their names."""
        return {
            each
            for location in self._locations
            for each in self._tables.objects.names(location, bucket_stream(location, self._store, snapshot.holder).name)
        }

    def _buckets_of(self, manifest: SnapshotManifest, carried: set[tuple[SnapshotId, int]]) -> dict[Key, int]:
        """The items of a manifest's buckets, except items of another store, with the bytes of their data."""
        unneeded: dict[Key, int] = {}
        for number, bucket in enumerate(manifest.buckets):
            is_own = bucket.parts and bucket.home is None and bucket.place is None
            if is_own and (bucket.holder, number) not in carried:
                for key in manifest.keys(self._store, number, self._shards):
                    unneeded[key] = bucket.stored_bytes // bucket.parts
        return unneeded

    def remove_versions(self, retention: Retention) -> tuple[list[VersionEntry], int]:
        """Delete the entries that are not retained from the version lists, the lowest first.

        A list that a fork depends on stays. A list that refuses runs is emptied. Deletion ends at a list that was
        changed since it was read, so that no version is missing above another: verify would report a loss.
        Returns the deleted entries, and the version below which no other commit is known.
        """
        deleted: list[VersionEntry] = []
        for key, listed in sorted(self._graph.lists.items()):
            retained = [raw for raw, entry in listed if retention.retains(entry.id)]
            if len(retained) == len(listed) or key in self._graph.pinned:
                continue
            item: Item = {"versions": [raw for raw, _ in listed]}
            runs = self._graph.refused.get(key)
            if retained or runs:
                item |= {REFUSED: runs} if runs else {}
                shorter = shorter_list(key, retained, self._graph.list_attributes[key])
                is_done = self._tables.put_over(key, shorter, unchanged(item))
            else:
                is_done = self._tables.delete_over(key, unchanged(item))
                self._tables.meter.items_deleted += is_done
            if not is_done:
                return deleted, min(keys.versions_of(key).start, retention.lowest)
            deleted += [entry for _, entry in listed if not retention.retains(entry.id)]
        return deleted, retention.lowest

    def remove_parts(self, entries: Iterable[VersionEntry]) -> None:
        """Delete the parts of deleted attempts, except parts in another store."""
        own_entries = [entry for entry in entries if entry.home is None]
        self._delete(
            {
                key: entry.stored_bytes // entry.parts
                for entry in own_entries
                for key in part_keys(self._store, entry, self._shards, entry.items)
            }
        )
        self._delete_objects(each for entry in own_entries for each in entry.object_ids(self._store))

    def find_orphans(self, below: int, deleted: Sequence[VersionEntry]) -> list[Key]:
        """The parts below a version that no list names: of crashes, of unfinished aborts.

        A list of keys costs as much as the items. So the versions of a list that a fork depends on, whose parts are
        retained, are skipped until the fork is dropped. Other keys than the engine's stay.
        """
        pinned = [keys.versions_of(key) for key in sorted(self._graph.pinned)]
        gaps = zip([0, *(each.stop for each in pinned)], [*(each.start for each in pinned), below], strict=True)
        ranges = [keys.parts_range(start, min(end, below)) for start, end in gaps if start < min(end, below)]
        listed = {entry.maker for entry in self._graph.entries()}.difference(entry.maker for entry in deleted)
        makers = ((key, keys.maker_of_part(key)) for low, high in ranges for key in self._list("delta", low, high))
        return [key for key, maker in makers if maker is not None and maker not in listed]

    def find_orphan_objects(self, below: int, deleted: Sequence[VersionEntry]) -> list[ObjectId]:
        """The objects with parts below a version that no list names. A list of names costs as much as a PUT."""
        named = {entry.maker for entry in self._graph.entries()}.difference(entry.maker for entry in deleted)
        return [each for each, maker in self._list_objects(delta_prefix, below) if maker not in named]

    def _list_objects(self, prefix: Callable[[str], str], below: int) -> Iterator[tuple[ObjectId, tuple[int, Attempt]]]:
        """The store's objects of one kind for versions below `below`, each with its maker."""
        for location in self._locations:
            for object_id in self._tables.objects.names(location, prefix(self._store)):
                maker = maker_of_object(object_id.name)
                if maker is not None and maker[0] >= below:
                    break
                if maker is not None:
                    yield object_id, maker

    def remove_orphans(self, orphans: Sequence[Key], objects: Sequence[ObjectId]) -> None:
        self._delete(dict.fromkeys(orphans, 1))
        self._delete_objects(objects)

    def _manifest(self, snapshot: Snapshot) -> SnapshotManifest:
        """The manifest of a snapshot, read once, since it never changes."""
        manifest = self.manifests.get(snapshot.id)
        if manifest is None:
            manifest = read_manifest(self._tables, self._store, snapshot)
            self.manifests[snapshot.id] = manifest
        return manifest

    def _list(self, role: Role, low: str, high: str, shards: int = 0) -> list[Key]:
        """The keys between two sort keys, in the first `shards` shards; 0 means all shards."""
        within = (keys.store_shard(self._store, shard) for shard in range(shards or self._shards))
        return [key for shard in within for key in self._tables.list_keys(role, shard, low, high)]

    def _delete_objects(self, objects: Iterable[ObjectId]) -> None:
        delete_own_objects(self._tables, sorted(objects))

    def _delete(self, sizes: dict[Key, int]) -> None:
        """Delete items, and count write units by the approximate sizes of their data."""
        delete_all(self._tables, list(sizes))
        self._tables.meter.deleted(size + PART_OVERHEAD_BYTES for size in sizes.values())


def _holder_of(key: Key) -> SnapshotId | None:
    """The snapshot that wrote a bucket or a manifest. Returns None for other keys."""
    bucket = keys.maker_of_bucket(key)
    return keys.maker_of_manifest(key) if bucket is None else bucket[0]
