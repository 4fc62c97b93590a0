"""Verification of a store: it reads everything as recovery does, reports every defect, and writes nothing.

Other processes may write meanwhile. So the items that name others are read first, and again at the end: changes by a
commit or a clean-up in between are not defects.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice, pairwise
from typing import Final

from dynastate.engine.namespaces import read_record
from dynastate.engine.reader import verified_chunks
from dynastate.engine.windows import Run, bucket_runs, entry_runs
from dynastate.errors import CorruptStateError
from dynastate.format import keys
from dynastate.format.changes import decode_changes
from dynastate.format.graph import ranges
from dynastate.format.items import Item, check_format
from dynastate.format.keys import Key, Role, SnapshotId, VersionId
from dynastate.format.manifest import Bucket, SnapshotManifest, decode_manifest, parse_manifest
from dynastate.format.namespace import namespace_key, store_key
from dynastate.format.objects import decode_frames, maker_of_object, store_prefix
from dynastate.format.parts import Part, parse_part
from dynastate.format.snapshot import DELETING, DONE, WRITING
from dynastate.format.version_list import VersionEntry
from dynastate.operations.inspection.findings import Checked, Finding, Namer, Report, What
from dynastate.operations.inspection.inspect import nothing_of
from dynastate.operations.inspection.naming_items import NAMING, NamingItems, read_each
from dynastate.operations.pins import needed_pins, pins_on
from dynastate.progress import ProgressCallback, no_progress
from dynastate.runtime import limits
from dynastate.storage.meter import Meter
from dynastate.storage.objects import read_stream
from dynastate.storage.tables import Tables, other_locations, own_locations

#: The approximate number of keys that are listed and compared at once.
KEYS_LISTED: Final = 10_000
#: The most findings that are reported; further findings are only counted.
FINDINGS_MAX: Final = 10_000
#: Sort keys below and above all others.
_FIRST, _LAST = "\x00", "\U0010ffff"

#: The maker, if known, of an item that nothing names, and the reason.
Unnamed = tuple[Namer | None, str]
#: A key with its part, its defect, or None.
Found = tuple[Key, Part | CorruptStateError | None]

_OF_SNAPSHOT: Final = {
    WRITING: "of a snapshot that is being written, or was abandoned",
    DELETING: "of a snapshot that clean-up deletes",
    DONE: "of a snapshot whose manifest does not name it",
}


def verify(tables: Tables, store: str, progress: ProgressCallback = no_progress, *, with_record: bool = True) -> Report:
    """Verify one store, and with `with_record` the record of its namespace's runs, which all its stores share.

    1. Read the items that name others: version lists, the meta item, schemas, snapshots and their manifests, the record
       of the namespace's runs, and the store's item in the namespace's list.
    2. Read all parts and buckets that these name, compare them as recovery does, and decode each record. Count the rows
       and values of snapshots, and compare them with the counts of version entries.
    3. List all keys of the store, to find items that nothing names.
    4. Read version lists and snapshots again, and discard findings of items that were deleted or added meanwhile.

    It costs about twice as much as one read of everything, since keys are listed separately. It holds version lists and
    manifests in memory, as recovery does, about `KEYS_LISTED` keys and a window of parts.
    """
    check = _Check(tables, keys.check_store(store), progress)
    check.read_names(with_record=with_record)  # 1
    check.read_parts()  # 2
    check.find_orphans()  # 3
    return check.report()  # 4


@dataclass(frozen=True)
class _Named:
    """A version entry, or a bucket of a manifest: its item's key, the parts that it names, and its dependents."""

    key: Key
    sums: VersionEntry | Bucket
    runs: Callable[[], Iterator[Run]]
    needed_by: frozenset[Namer]
    #: Of a bucket.
    number: int = 0

    def items(self) -> Iterator[Key]:
        """The keys of its parts that are items."""
        return (key for run in self.runs() if run.stream is None for key in run.keys)


class _HoleError(Exception):
    """A part is missing or corrupt. It never leaves this module."""


class _Check:
    """One verification of one store, in steps."""

    def __init__(self, tables: Tables, store: str, progress: ProgressCallback) -> None:
        self._tables = tables.metered(Meter())
        self._store = store
        self._progress = progress
        self._findings: list[Finding] = []
        self._more = 0
        self._items = self._total = self._stored_bytes = 0
        #: The number of shards; 0: unknown.
        self._shards = 0
        self._is_first_run = self._is_adopted = False
        #: Attempts with parts that no version list names.
        self._unlisted: set[VersionId] = set()
        self._manifests: dict[SnapshotId, SnapshotManifest | None] = {}
        #: The manifests of missing snapshots.
        self._orphan_manifests: dict[SnapshotId, Key] = {}
        #: Rows by column family of the completely read buckets, by the snapshot that wrote the bucket, and its number.
        self._rows: dict[tuple[SnapshotId, int], Counter[int]] = {}

    def _add(self, finding: Finding) -> None:
        if len(self._findings) < FINDINGS_MAX:
            self._findings.append(finding)
        else:
            self._more += 1

    def read_names(self, *, with_record: bool) -> None:
        """Read all items that name others."""
        self._names = NamingItems(self._tables, self._store)
        if self._names.graph.is_empty and not self._names.findings:
            raise nothing_of(self._tables, self._store)
        for finding in self._names.findings:
            self._add(finding)
        meta_key = keys.meta_key(self._store)
        if (meta := self._names.graph.meta) is not None:
            self._shards = meta.shards
            self._is_first_run = meta.epoch == 1
            self._is_adopted = len(meta.locations) > 1
        elif meta_key not in self._names.keys:
            why = "the store's meta item, without which the places of parts are unknown"
            self._add(Finding("missing", meta_key, why))
        if with_record:
            self._check_record()
        self._check_listed()
        self._newest = max(self._names.graph.versions(), default=0)
        self._read_manifests()
        self._unpinned = self._find_unpinned()
        self._check_schemas()

    def _check_record(self) -> None:
        namespace = self._store.split("/", maxsplit=1)[0]
        try:
            read_record(self._tables, namespace)
        except CorruptStateError as error:
            why = f"no run of the query can begin: {error.reason}"
            self._add(Finding("corrupt", namespace_key(namespace), why))

    def _check_listed(self) -> None:
        """Check that the list of the namespace's stores has this store: readers depend on it."""
        key = store_key(self._store)
        if key not in self._tables.get([key]):
            why = "the store's item in the list of its namespace, by which readers find it"
            self._add(Finding("missing", key, why))

    def _find_unpinned(self) -> list[Finding]:
        """Find items of the origin that a fork needs, and that are not pinned for it."""
        meta = self._names.graph.meta
        if meta is None:
            return []
        pinned = [Key("snapshot", keys.store_shard(meta.origin, 0), sort) for sort in sorted(self._needed(self._names))]
        why = "this fork needs it, but it is not pinned: clean-up of its origin may delete it"
        unpinned: list[Finding] = []
        for key, pins in read_each(self._tables, pinned, lambda _, item: pins_on(item)):
            if isinstance(pins, CorruptStateError):
                unpinned.append(_defect(key, pins, why))
            elif meta.pin not in (pins or ()):
                unpinned.append(_defect(key, None, why))
        return unpinned

    def _needed(self, names: NamingItems) -> set[str]:
        """Sort keys of the items that a fork needs in its origin. Empty if it is not a fork, or incomplete."""
        holders = {each.holder for each in names.snapshots()}
        manifests = [each for node, each in self._manifests.items() if each is not None and node in holders]
        return needed_pins(names.graph, manifests, names.graph.meta.pins if names.graph.meta else frozenset())

    def _read_manifests(self) -> None:
        snapshots = {keys.manifest_key(self._store, each.version, each.id): each for each in self._names.snapshots()}

        def parse(key: Key, item: Item) -> SnapshotManifest:
            return parse_manifest(self._store, snapshots[key], key, item)

        for key, manifest in read_each(self._tables, snapshots, parse):
            holder = snapshots[key].holder
            self._manifests[holder] = manifest if isinstance(manifest, SnapshotManifest) else None
            if not isinstance(manifest, SnapshotManifest):
                self._add(_defect(key, manifest, "the manifest of a snapshot", frozenset([holder])))

    def _check_schemas(self) -> None:
        named: dict[bytes, list[VersionEntry]] = {}
        for entry in self._names.graph.entries():
            named.setdefault(entry.schema, []).append(entry)
        for digest, entries in named.items():
            key = keys.schema_key(self._store, digest)
            try:
                self._names.graph.schema(entries[0])
            except CorruptStateError as error:
                kind: What = "corrupt" if key in self._names.keys else "missing"
                self._add(Finding(kind, key, error.reason, frozenset(each.id for each in entries)))

    def read_parts(self) -> None:
        """Read the parts that version lists and manifests name, a window at a time."""
        if not self._shards:
            return
        named = [*self._versions(), *self._buckets()]
        self._total = sum(each.sums.parts for each in named)
        self._progress(0, self._total)
        parts = self._read_parts(run for each in named for run in each.runs())
        for entry in named:
            self._compare(entry, islice(parts, entry.sums.parts))
        for manifest in self._manifests.values():
            if manifest is not None:
                self._compare_counts(manifest)

    def _read_parts(self, runs: Iterator[Run]) -> Iterator[Found]:
        for is_object, some in groupby(runs, lambda run: run.stream is not None):
            if is_object:
                for run in some:
                    yield from self._read_objects(run)
            else:
                yield from read_each(self._tables, (run.keys[0] for run in some), parse_part)

    def _read_objects(self, run: Run) -> Iterator[Found]:
        assert run.stream is not None  # noqa: S101  # for mypy
        raw = read_stream(self._tables.objects, run.stream, run.start, run.end)
        parts = decode_frames(run.keys, raw) if raw is not None else iter(())
        rest, defect = deque(run.keys), None
        try:
            for part in parts:
                rest.popleft()
                yield part
        except CorruptStateError as corrupt:
            defect = corrupt
        yield from ((key, defect) for key in rest)

    def _versions(self) -> Iterator[_Named]:
        """The entries of version lists, in the order of keys."""
        for entry in sorted(self._names.graph.entries(), key=lambda entry: entry.maker):
            runs = partial(entry_runs, self._store, entry, shards=self._shards, sequences=range(entry.parts))
            key = keys.version_list_key(self._store, entry.version)
            yield _Named(key, entry, runs, frozenset([entry.id]))

    def _buckets(self) -> Iterator[_Named]:
        """The buckets of manifests, without repetitions, in the order of keys."""
        named_by: dict[tuple[SnapshotId, int], list[SnapshotManifest]] = {}
        for manifest in self._manifests.values():
            for number, bucket in enumerate(manifest.buckets if manifest is not None else ()):
                if manifest is not None and bucket.parts:
                    named_by.setdefault((bucket.holder, number), []).append(manifest)
        for (_, number), manifests in sorted(named_by.items(), key=lambda named: named[0]):
            first = manifests[0]
            key = keys.manifest_key(self._store, first.version, first.id)
            runs = partial(bucket_runs, self._store, first, number=number, shards=self._shards)
            needed_by = frozenset(each.holder for each in manifests)
            yield _Named(key, first.buckets[number], runs, needed_by=needed_by, number=number)

    def _compare_counts(self, manifest: SnapshotManifest) -> None:
        """Compare the counts of a snapshot's rows and values with its version's counts, if these exist.

        Nothing else shows wrong rows that are stored with right checksums.
        """
        version, attempt = manifest.version, manifest.attempt
        entry = self._names.graph.entry(version, attempt)
        expected = self._names.graph.count_values(VersionId(version, attempt))
        key, holders = keys.snapshot_key(self._store, version, attempt), frozenset([manifest.holder])
        values = manifest.sizes()[0]
        if expected is not None and values != expected:
            why = f"the snapshot has {values:,} values in its rows, and its version {expected:,}"
            self._add(Finding("corrupt", key, why, holders))
        buckets = [(each.holder, number) for number, each in enumerate(manifest.buckets) if each.parts]
        if entry is None or entry.added is None or any(each not in self._rows for each in buckets):
            return
        rows = sum((self._rows[each] for each in buckets), Counter[int]())
        if rows != Counter({family: count for family, count in entry.keys.items() if count}):
            why = f"the snapshot has {_listed(rows)} rows by column family, and its version {_listed(entry.keys)}"
            self._add(Finding("corrupt", key, why, holders))

    def _compare(self, named: _Named, parts: Iterator[Found]) -> None:
        rows, last = Counter[int](), (-1, b"")
        try:
            for chunk in verified_chunks(named.sums, named.key, self._parts(named, parts)):
                decoded = 0
                for change in decode_changes(chunk.changes):
                    decoded += 1
                    # The values of a list follow each other.
                    if (change.family, change.key) != last:
                        last = change.family, change.key
                        rows[change.family] += 1
                if decoded != chunk.records:
                    facts = {"expected": chunk.records, "got": decoded}
                    raise CorruptStateError("a chunk has another number of records", **facts)
            if isinstance(named.sums, Bucket):
                self._rows[named.sums.holder, named.number] = rows
        except _HoleError:
            pass
        except CorruptStateError as corrupt:
            self._add(Finding("corrupt", named.key, corrupt.reason, named.needed_by))
        # Parts after a missing part are not compared, but reported if they are also missing or corrupt.
        for _ in self._parts(named, parts, is_compared=False):
            pass

    def _parts(self, named: _Named, parts: Iterator[Found], *, is_compared: bool = True) -> Iterator[tuple[Key, Part]]:
        for key, part in parts:
            self._items += 1
            self._progress(self._items, self._total)
            if isinstance(part, Part):
                self._stored_bytes += len(part.data)
                yield key, part
                continue
            self._add(_defect(key, part, f"{named.key.sort} names it", named.needed_by))
            if is_compared:
                raise _HoleError

    def find_orphans(self) -> None:
        """List all keys of the store, and report items that nothing names, by their maker."""
        if not self._shards:
            return
        self._is_snapshot_corrupt = any(
            each.key.sort.startswith(("snapshot/", "snapshot_manifest/")) for each in self._findings
        )
        parts = (key for each in self._versions() for key in each.items())
        buckets = (key for each in self._buckets() for key in each.items())
        manifests = sorted(keys.manifest_key(self._store, each.version, each.id) for each in self._manifests)
        firsts: dict[tuple[Role, Unnamed], Key] = {}
        counts: Counter[tuple[Role, Unnamed]] = Counter()
        keys_unnamed = chain(self._unnamed("delta", parts), self._unnamed("snapshot", chain(buckets, manifests)))
        for key, maker in chain(((key, self._maker(key)) for key in keys_unnamed), self._unnamed_objects()):
            if maker is not None:
                firsts.setdefault((key.role, maker), key)
                counts[key.role, maker] += 1
        for (role, maker), key in firsts.items():
            node, why = maker
            made_by: frozenset[Namer] = frozenset() if node is None else frozenset([node])
            self._add(Finding("orphaned", key, why, named_by=made_by, items=counts[role, maker]))

    def _unnamed(self, role: Role, named: Iterator[Key]) -> Iterator[Key]:
        """Keys in a table that are not among `named`, which is in order."""
        low, window = _FIRST, set(islice(named, KEYS_LISTED))
        is_last = False
        while not is_last:
            following = list(islice(named, KEYS_LISTED))
            is_last = not following
            high = _LAST if is_last else following[0].sort
            for shard in range(self._shards):
                for key in self._tables.list_keys(role, keys.store_shard(self._store, shard), low, high):
                    if key not in window and (is_last or key.sort < high):
                        yield key
            low, window = high, set(following)

    def _unnamed_objects(self) -> Iterator[tuple[Key, Unnamed]]:
        """The store's objects that nothing names, by the key of their first part, with their makers.

        Objects in the locations of other tables are left out: those tables may need them.
        """
        graph, store = self._names.graph, self._store
        named = {each for entry in graph.entries() if entry.home is None for each in entry.object_ids(store)}
        named |= {each for manifest in self._manifests.values() if manifest for each in manifest.objects(store)}
        for location in own_locations(self._tables, graph.meta.objects) if graph.meta else ():
            for object_id in self._tables.objects.names(location, store_prefix(store)):
                maker = maker_of_object(object_id.name)
                if object_id in named:
                    continue
                if isinstance(maker, VersionId):
                    key = keys.part_key(store, maker.version, maker.attempt, sequence=0, shards=self._shards)
                elif maker is not None:
                    key = keys.bucket_key(store, maker.version, maker.id, bucket=0, sequence=0, shards=self._shards)
                else:
                    key = keys.meta_key(store)
                unnamed = self._maker(key) if maker is not None else (None, "none of dynastate's own")
                if unnamed is not None:
                    yield key, (unnamed[0], f"{unnamed[1]}: object {object_id.location}/{object_id.name}")

    def _maker(self, key: Key) -> Unnamed | None:
        """The maker of an item that nothing names, and the reason. Returns None if an unreadable item may name it."""
        if key.role == "delta":
            return self._maker_of_part(key)
        bucket = keys.maker_of_bucket(key)
        maker = keys.maker_of_manifest(key) if bucket is None else bucket[0]
        if maker is None:
            is_read = NAMING[0] <= key.sort <= NAMING[1]  # among the naming items
            return None if is_read else (None, "none of dynastate's own")
        if self._is_snapshot_corrupt:
            return None
        stage = next((each.stage for each in self._names.graph.snapshots() if each.id == maker.id), "")
        if not stage and bucket is None:
            self._orphan_manifests[maker] = key
        return (None if stage == DONE else maker), _OF_SNAPSHOT.get(stage, "of a snapshot that is not there")

    def _maker_of_part(self, key: Key) -> Unnamed | None:
        maker = keys.maker_of_part(key)
        if maker is None:
            return None, "none of dynastate's own"
        if maker[0] // limits().list_size in self._names.corrupt_lists:
            return None
        if self._names.graph.entry(maker.version, maker.attempt) is not None:
            return None, "of a listed attempt, where that has no part"
        self._unlisted.add(maker)
        if maker.version > self._newest + 1:
            return maker, "of an attempt above the next version: of a query that was taken back, or its list is lost"
        return maker, "of an attempt that no version list names: under way, or failed"

    def report(self) -> Report:
        """The findings that still hold, and the versions that can be read."""
        names = NamingItems(self._tables, self._store)
        nodes, corrupt = names.nodes(), {finding.key for finding in names.findings}

        def holds(finding: Finding) -> bool:
            if finding.what == "orphaned":
                return not finding.named_by & nodes
            if finding.named_by:
                return bool(finding.named_by & nodes)
            return finding.key in corrupt or finding.key not in names.keys

        self._findings = [finding for finding in self._findings if holds(finding)]
        needed_sorts = self._needed(names)
        for finding in self._unpinned:
            if finding.key.sort in needed_sorts:
                self._add(finding)
        known_nodes = self._names.nodes()
        versions = [each for each in self._check_chains(names) if VersionId(each.version, each.attempt) in known_nodes]
        return Report(
            store=self._store,
            versions=tuple(versions),
            snapshots=len(names.snapshots()),
            items=self._items,
            stored_bytes=self._stored_bytes,
            findings=tuple(self._findings),
            more=self._more,
            meter=self._tables.meter,
            other_locations=tuple(other_locations(self._tables, self._named_locations())),
        )

    def _named_locations(self) -> set[str]:
        """The locations of objects that version lists and manifests name."""
        entries = self._names.graph.entries()
        locations = {entry.objects.location for entry in entries if entry.objects}
        return locations | {each for manifest in self._manifests.values() if manifest for each in manifest.locations}

    def _check_chains(self, names: NamingItems) -> list[Checked]:
        """Check which versions can be read: by a complete snapshot, or by their changes and the parent."""
        lost = [finding for finding in self._findings if finding.what != "orphaned"]
        unreadable = {node for finding in lost for node in finding.named_by}
        schemas = [finding for finding in lost if finding.key.sort.startswith("schema/")]
        without_schema = {node for finding in schemas for node in finding.named_by}
        whole = {each.of for each in names.snapshots() if each.holder not in unreadable}
        is_stopped = not self._shards or names.is_stopping
        graph = names.graph
        newest = max((entry.epoch for entry in graph.entries()), default=0)
        live = graph.reachable(entry for entry in graph.entries() if entry.epoch == newest)
        # A list that a fork needed, and versions of another location, outlive others: a parent above them may have been
        # deleted long ago.
        has_gaps = self._has_gaps(names)
        listed = graph.versions()
        lowest = min((version for version in listed if not graph.is_pinned(version)), default=0)
        # Clean-up may have begun to delete the versions up to this one.
        needless = max((version for version, _ in live & whole), default=0)
        bases = graph.bases({each for each in whole if each not in without_schema}, unreadable)
        parents = {*bases, *whole, *self._find_lost_snapshot(names, bases)}
        # Late versions of a dropped query have lower epochs; a fork has epochs of its origin.
        meta = graph.meta
        first_epoch = 0 if meta is None or meta.origin else min(meta.locations, default=0)
        dead: set[VersionId] = set()
        checked: list[Checked] = []
        for entry in graph.entries():
            node, parent = entry.id, entry.parent_id
            can_be_read = bases[node] is not None
            # A fork retains this list, so clean-up may have deleted items that the version depends on.
            is_pinned = graph.is_pinned(entry.version)
            if node in whole or node in unreadable or parent in parents:
                if parent in dead and not can_be_read:
                    dead.add(node)
            elif (
                # If other attempts at the parent's version are listed, clean-up has deleted the parent as dead, and a
                # task of an earlier run has committed late.
                (
                    (parent.version >= lowest and parent.version not in listed and not has_gaps)
                    or (node in live and node.version > needless)
                )
                and not is_pinned
                and entry.epoch >= first_epoch
            ):
                self._parent_lost(names, node, parent)
            else:
                dead.add(node)
            checked.append(
                Checked(
                    entry.version,
                    entry.attempt,
                    epoch=entry.epoch,
                    is_readable=can_be_read and not is_stopped,
                    is_dead=node in dead,
                )
            )
        if meta is not None and not meta.dropped:
            self._find_gaps(names, {node for node, base in bases.items() if base is not None})
            self._find_lost_ends(names)
        return checked

    def _has_gaps(self, names: NamingItems) -> bool:
        return self._is_adopted or bool(names.graph.meta and names.graph.meta.forked)

    def _find_lost_snapshot(self, names: NamingItems, bases: Mapping[VersionId, VersionId | None]) -> list[VersionId]:
        """Report the snapshot that the current versions are read from, if its item is lost.

        Returns the parent of the lowest of these versions then, which is also missing.

        Clean-up, too, leaves versions that cannot be read. But it deletes the buckets and the manifest of a snapshot
        before its item. So a snapshot is lost if its manifest and all its buckets exist, and it is of the lowest
        version or its parent. A manifest that was written late lacks the buckets that no other snapshot has. The
        manifest of a fork that was dropped and made again may have all: buckets of the origin are left out.
        """
        graph = names.graph
        if not graph.versions() or (graph.meta and graph.meta.dropped):  # a drop deletes the items first
            return []
        lowest = graph.lineage(graph.newest())[0]
        wanted_ids = {lowest.id, lowest.parent_id} - {each.of for each in graph.snapshots()}
        if bases[lowest.id] is not None:
            return []
        # They are read after the snapshots: a snapshot that was deleted meanwhile has no manifest.
        versions = {each.version for each in wanted_ids}
        manifest_keys = [key for holder, key in self._orphan_manifests.items() if holder.version in versions]
        for key, manifest in read_each(self._tables, manifest_keys, partial(_parse_manifest, self._store)):
            if isinstance(manifest, SnapshotManifest) and manifest.of in wanted_ids and self._has_buckets(manifest):
                holders = frozenset(bucket.holder for bucket in manifest.buckets) | {keys.maker_of_manifest(key)}
                self._findings = [
                    each for each in self._findings if each.what != "orphaned" or not each.named_by & holders
                ]
                why = (
                    f"the item of the snapshot of version {manifest.version} is lost: without it version "
                    f"{lowest.version} and those after it cannot be read, and its manifest and buckets are there"
                )
                snapshot_key = keys.snapshot_key(self._store, manifest.version, manifest.attempt)
                self._add(Finding("missing", snapshot_key, why, frozenset([lowest.id])))
                return [lowest.parent_id]
        return []

    def _has_buckets(self, manifest: SnapshotManifest) -> bool:
        """Whether all buckets of a manifest are the store's own and can be read, and some are in no other manifest."""
        named = {
            (bucket.holder, number)
            for other in self._manifests.values()
            for number, bucket in enumerate(other.buckets if other is not None else ())
        }
        buckets = [(number, bucket) for number, bucket in enumerate(manifest.buckets) if bucket.parts]
        is_own = all(bucket.home is None for _, bucket in buckets)
        if not (self._shards and is_own and any((bucket.holder, number) not in named for number, bucket in buckets)):
            return False
        runs = (run for number, _ in buckets for run in bucket_runs(self._store, manifest, number, self._shards))
        return all(isinstance(part, Part) for _, part in self._read_parts(runs))

    def _find_gaps(self, names: NamingItems, readable: set[VersionId]) -> None:
        """Report gaps: clean-up deletes versions from the lowest on, so no version is missing above a readable one.

        But it retains the versions that a fork needs, until a drop of the fork, and the versions of another location.
        A query that started over, or was taken back, makes versions below the versions of an older run.
        """
        if self._has_gaps(names):
            return
        entries = list(names.graph.entries())
        for version, following in pairwise(names.graph.versions()):
            below = [each.epoch for each in entries if each.version == version and each.id in readable]
            above = [each.epoch for each in entries if each.version == following]
            is_pinned = names.graph.is_pinned(version)  # by a fork that an earlier package made
            # A task may commit version 1, which needs no other version, long after clean-up.
            is_late = version == 1
            if following > version + 1 and below and max(below) <= min(above) and not (is_pinned or is_late):
                self._list_lost(names, version + 1, following - 1, "but older ones are")

    def _find_lost_ends(self, names: NamingItems) -> None:
        """Report lost versions above the listed ones, which snapshots and parts show.

        A snapshot is made of a listed version, and an attempt begins when its parent is listed. Below the listed
        versions nothing shows a loss: an interrupted clean-up leaves parts there, and a suspended executor a snapshot.
        """
        graph = names.graph
        listed, epochs = graph.versions(), [each.epoch for each in graph.entries()]
        newest, epoch = (listed[-1], max(epochs)) if listed else (0, 0)
        unlisted = (each.version for each in self._unlisted if graph.entry(each.version, each.attempt) is None)
        last = max(unlisted, default=0)
        old_snapshots = set(self._names.snapshots())
        snapshots = [each for each in names.snapshots() if each in old_snapshots and not each.is_pinned]
        # Without a list, it may be of an import or a fork under way. Lower epochs may be of an earlier query.
        above = [each for each in snapshots if each.epoch >= epoch and (listed or each.of in self._unlisted)]
        snapshot = max((each.version for each in above), default=0)
        if snapshot > newest:
            self._list_lost(names, newest + 1, snapshot, "but there is a snapshot of the last one")
        elif self._is_first_run and not graph.refused and last > newest + 1:
            self._list_lost(names, newest + 1, last - 1, "but there are parts of what follows them")

    def _list_lost(self, names: NamingItems, lowest: int, highest: int, reason: str) -> None:
        """Report versions that no list names, unless their list is reported already."""
        key = keys.version_list_key(self._store, lowest)
        is_known = any(finding.what == "missing" and finding.key == key for finding in self._findings)
        lists = {version // limits().list_size for version in (lowest - 1, lowest, highest)}
        if is_known or lists & names.corrupt_lists:
            return
        numbers = range(lowest, highest + 1)
        why = f"the version list of {ranges(numbers)} is lost: none of them is listed, {reason}"
        self._add(Finding("missing", key, why))

    def _parent_lost(self, names: NamingItems, node: VersionId, parent: VersionId) -> None:
        key = keys.version_list_key(self._store, parent[0])
        if parent[0] // limits().list_size in names.corrupt_lists or node not in self._names.nodes():
            return
        why = f"version {parent[0]} by attempt {parent[1].hex()}, which version {node[0]} needs, nor a snapshot of it"
        finding = Finding("missing", key, why, frozenset([node]))
        if finding not in self._findings:
            self._add(finding)


def _parse_manifest(store: str, key: Key, item: Item) -> SnapshotManifest:
    """The manifest of a missing snapshot."""
    check_format(key, item)
    raw = item.get("data")
    return decode_manifest(store, raw if isinstance(raw, bytes) else b"")


def _listed(rows: Mapping[int, int]) -> str:
    """Numbers of rows by column family, as text."""
    return ", ".join(f"{family}: {count:,}" for family, count in sorted(rows.items()) if count) or "no"


def _defect(key: Key, error: CorruptStateError | None, why: str, needed_by: frozenset[Namer] = frozenset()) -> Finding:
    """The finding for a corrupt item, or without an error for a missing item, which `why` describes."""
    if error is None:
        return Finding("missing", key, why, needed_by)
    return Finding("corrupt", key, error.reason, needed_by)
