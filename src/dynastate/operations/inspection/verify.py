"""Verification of a store: everything is read as recovery reads it, and every defect is reported. It only reads.

Other processes may write meanwhile, so the items that name others are read first, and again at the end: changes by a
commit or a clean-up in between are no defects.
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
from dynastate.format.meta import DROPPED, FORKED, ORIGIN
from dynastate.format.namespace import namespace_key, store_key
from dynastate.format.objects import decode_frames, maker_of_object, store_prefix
from dynastate.format.parts import Part, parse_part
from dynastate.format.snapshot import DELETING, DONE, WRITING
from dynastate.format.version_list import VersionEntry
from dynastate.operations.inspection.findings import Checked, Finding, Namer, Report, What
from dynastate.operations.inspection.inspect import nothing_of
from dynastate.operations.inspection.naming_items import NAMING, NamingItems, read_each
from dynastate.operations.pins import needed_pins, pin_of, pins_of, pins_on
from dynastate.progress import ProgressCallback, no_progress
from dynastate.storage.meter import Meter
from dynastate.storage.objects import read_stream
from dynastate.storage.tables import Tables, other_locations, own_locations

#: Keys that are listed and compared at once, approximately.
KEYS_LISTED: Final = 10_000
#: Findings that are reported; further ones are counted only.
FINDINGS_MAX: Final = 10_000
#: Sort keys between which all others lie.
_FIRST, _LAST = "\x00", "\U0010ffff"

#: The maker of an item that nothing names, if known, and the reason.
Unnamed = tuple[Namer | None, str]
#: A key with its part, its defect, or None.
Found = tuple[Key, Part | CorruptStateError | None]

_OF_SNAPSHOT: Final = {
    WRITING: "of a snapshot that is being written, or was abandoned",
    DELETING: "of a snapshot that clean-up deletes",
    DONE: "of a snapshot whose manifest does not name it",
}


def verify(tables: Tables, store: str, progress: ProgressCallback = no_progress, *, with_record: bool = True) -> Report:
    """Verify one store; `with_record`: also the record of its namespace's runs, which is the same for each store.

    1. Read what names items: version lists, the meta item, schemas, snapshots and their manifests; the record of the
    namespace's runs; and the store's item in the list of its namespace.
    2. Read all parts and buckets that they name, compare them as recovery does, and decode every record. Count the rows
    and values of snapshots, and compare them with the counts of version entries.
    3. List all keys of the store, to find those that nothing names.
    4. Read version lists and snapshots again, and discard findings of those that were deleted or added meanwhile.

    It costs about twice as much as to read everything once, since keys are listed apart. In memory are version lists
    and manifests, as in recovery, some `KEYS_LISTED` keys and a window of parts.

    Raises:
        VersionMissingError: the tables hold nothing of this store.
        DynastateError: as the reads of `Tables`, but for CorruptStateError.
    """
    check = _Check(tables, keys.check_store(store), progress)
    check.read_names(with_record=with_record)  # 1
    check.read_parts()  # 2
    check.find_orphans()  # 3
    return check.report()  # 4


@dataclass(frozen=True)
class _Named:
    """A version entry, or a bucket of a manifest: the key it lies under, what it names, and what depends on it."""

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
        #: Attempts with parts that no version list named.
        self._unlisted: set[VersionId] = set()
        self._manifests: dict[SnapshotId, SnapshotManifest | None] = {}
        #: The manifests of snapshots that are not there.
        self._left: dict[SnapshotId, Key] = {}
        #: Rows by column family of the buckets that were read whole, by the snapshot that wrote them and their number.
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
        meta = keys.meta_key(self._store)
        if (found := self._names.graph.meta) is not None:
            self._shards = found.shards
            self._is_first_run = found.epoch == 1
            self._is_adopted = len(found.locations) > 1
        elif meta not in self._names.keys:
            self._add(Finding("missing", meta, "the store's meta item, without which the places of parts are unknown"))
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
        except CorruptStateError as corrupt:
            why = f"no run of the query can begin: {corrupt.reason}"
            self._add(Finding("corrupt", namespace_key(namespace), why))

    def _check_listed(self) -> None:
        """Check that the list of the namespace's stores has this one: readers believe it."""
        own = store_key(self._store)
        if own not in self._tables.get([own]):
            why = "the store's item in the list of its namespace, by which readers find it"
            self._add(Finding("missing", own, why))

    def _find_unpinned(self) -> list[Finding]:
        """Find items that a fork needs in its origin and that are not pinned for it there."""
        meta = self._names.graph.meta_item
        origin, pin = str(meta.get(ORIGIN)), pin_of(meta)
        pinned = [Key("snapshot", keys.store_shard(origin, 0), sort) for sort in sorted(self._needed(self._names))]
        why = "this fork needs it, but it is not pinned: clean-up of its origin may delete it"
        unpinned: list[Finding] = []
        for key, pins in read_each(self._tables, pinned, lambda _, item: pins_on(item)):
            if isinstance(pins, CorruptStateError):
                unpinned.append(_defect(key, pins, why))
            elif pin not in (pins or ()):
                unpinned.append(_defect(key, None, why))
        return unpinned

    def _needed(self, names: NamingItems) -> set[str]:
        """Sort keys of the items that a fork needs in its origin at that moment; none: it is no fork, or being made."""
        there = {each.holder for each in names.snapshots()}
        found = [each for node, each in self._manifests.items() if each is not None and node in there]
        return needed_pins(names.graph, found, pins_of(names.graph.meta_item))

    def _read_manifests(self) -> None:
        snapshots = {keys.manifest_key(self._store, each.version, each.id): each for each in self._names.snapshots()}

        def parse(key: Key, item: Item) -> SnapshotManifest:
            return parse_manifest(self._store, snapshots[key], key, item)

        for key, found in read_each(self._tables, snapshots, parse):
            holder = snapshots[key].holder
            self._manifests[holder] = found if isinstance(found, SnapshotManifest) else None
            if not isinstance(found, SnapshotManifest):
                self._add(_defect(key, found, "the manifest of a snapshot", frozenset([holder])))

    def _check_schemas(self) -> None:
        named: dict[bytes, list[VersionEntry]] = {}
        for entry in self._names.graph.entries():
            named.setdefault(entry.schema, []).append(entry)
        for digest, entries in named.items():
            key = keys.schema_key(self._store, digest)
            try:
                self._names.graph.schema(entries[0])
            except CorruptStateError as corrupt:
                what: What = "corrupt" if key in self._names.keys else "missing"
                self._add(Finding(what, key, corrupt.reason, frozenset(each.id for each in entries)))

    def read_parts(self) -> None:
        """Read what version lists and manifests name, a window at a time."""
        if not self._shards:
            return
        named = [*self._versions(), *self._buckets()]
        self._total = sum(each.sums.parts for each in named)
        self._progress(0, self._total)
        found = self._read_parts(run for each in named for run in each.runs())
        for each in named:
            self._compare(each, islice(found, each.sums.parts))
        for made in self._manifests.values():
            if made is not None:
                self._compare_counts(made)

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
        left, defect = deque(run.keys), None
        try:
            for found in parts:
                left.popleft()
                yield found
        except CorruptStateError as corrupt:
            defect = corrupt
        yield from ((key, defect) for key in left)

    def _versions(self) -> Iterator[_Named]:
        """The entries of version lists, in the order of keys."""
        for entry in sorted(self._names.graph.entries(), key=lambda entry: entry.id):
            runs = partial(entry_runs, self._store, entry, self._shards, range(entry.parts))
            key = keys.version_list_key(self._store, entry.version)
            yield _Named(key, entry, runs, frozenset([entry.id]))

    def _buckets(self) -> Iterator[_Named]:
        """The buckets of manifests, each once though several may name it, in the order of keys."""
        named_by: dict[tuple[SnapshotId, int], list[SnapshotManifest]] = {}
        for found in self._manifests.values():
            for number, bucket in enumerate(found.buckets if found is not None else ()):
                if found is not None and bucket.parts:
                    named_by.setdefault((bucket.holder, number), []).append(found)
        for (_, number), manifests in sorted(named_by.items(), key=lambda named: named[0]):
            first = manifests[0]
            key = keys.manifest_key(self._store, first.version, first.id)
            runs = partial(bucket_runs, self._store, first, number, self._shards)
            needed_by = frozenset(each.holder for each in manifests)
            yield _Named(key, first.buckets[number], runs, needed_by, number)

    def _compare_counts(self, made: SnapshotManifest) -> None:
        """Compare the rows and values of a snapshot with those that its version has, if these were counted.

        Rows that are stored with right checksums, but are others than the version's, have no other sign.
        """
        of = VersionId(made.version, made.attempt)
        entry, expected = self._names.graph.entry(*of), self._names.graph.count_values(of)
        key, holders = keys.snapshot_key(self._store, *of), frozenset([made.holder])
        values = made.sizes()[0]
        if expected is not None and values != expected:
            why = f"the snapshot has {values:,} values in its rows, and its version {expected:,}"
            self._add(Finding("corrupt", key, why, holders))
        read = [self._rows.get((bucket.holder, number)) for number, bucket in enumerate(made.buckets) if bucket.parts]
        if entry is None or entry.added is None or None in read:
            return
        rows = sum((each for each in read if each), Counter[int]())
        if rows != Counter({family: count for family, count in entry.keys.items() if count}):
            why = f"the snapshot has {_listed(rows)} rows by column family, and its version {_listed(entry.keys)}"
            self._add(Finding("corrupt", key, why, holders))

    def _compare(self, named: _Named, found: Iterator[Found]) -> None:
        rows, last = Counter[int](), (-1, b"")
        try:
            for chunk in verified_chunks(named.sums, named.key, self._parts(named, found)):
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
        # Parts after a missing one are not compared, but reported if they are missing or corrupt, too.
        for _ in self._parts(named, found, is_compared=False):
            pass

    def _parts(self, named: _Named, found: Iterator[Found], *, is_compared: bool = True) -> Iterator[tuple[Key, Part]]:
        for key, part in found:
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
        """List all keys of the store, and report those that nothing names, by their maker."""
        if not self._shards:
            return
        self._is_snapshot_corrupt = any(
            each.key.sort.startswith(("snapshot/", "snapshot_manifest/")) for each in self._findings
        )
        parts = (key for each in self._versions() for key in each.items())
        buckets = (key for each in self._buckets() for key in each.items())
        manifests = sorted(keys.manifest_key(self._store, *node) for node in self._manifests)
        firsts: dict[tuple[Role, Unnamed], Key] = {}
        counts: Counter[tuple[Role, Unnamed]] = Counter()
        for key in chain(self._unnamed("delta", parts), self._unnamed("snapshot", chain(buckets, manifests))):
            maker = self._maker(key)
            if maker is not None:
                firsts.setdefault((key.role, maker), key)
                counts[key.role, maker] += 1
        for key, maker in self._unnamed_objects():
            firsts.setdefault((key.role, maker), key)
            counts[key.role, maker] += 1
        for one, key in firsts.items():
            node, why = one[1]
            made_by: frozenset[Namer] = frozenset() if node is None else frozenset([node])
            self._add(Finding("orphaned", key, why, made_by, counts[one]))

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
        """The store's objects that nothing names, each by the key of what it has first, with their makers.

        Objects in the locations of other tables are not the store's: they may be all that those have.
        """
        graph, store = self._names.graph, self._store
        named = {each for entry in graph.entries() if entry.home is None for each in entry.object_ids(store)}
        named |= {each for found in self._manifests.values() if found for each in found.objects(store)}
        for location in own_locations(self._tables, graph.meta.objects) if graph.meta else ():
            for place in self._tables.objects.names(location, store_prefix(store)):
                maker = maker_of_object(place.name)
                if place in named:
                    continue
                if isinstance(maker, VersionId):
                    key = keys.part_key(store, *maker, 0, self._shards)
                elif maker is not None:
                    key = keys.bucket_key(store, *maker, 0, 0, self._shards)
                else:
                    key = keys.meta_key(store)
                unnamed = self._maker(key) if maker is not None else (None, "none of dynastate's own")
                if unnamed is not None:
                    yield key, (unnamed[0], f"{unnamed[1]}: object {place.location}/{place.name}")

    def _maker(self, key: Key) -> Unnamed | None:
        """The maker of an item that nothing names, and the reason. None: an unreadable item may name it."""
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
            self._left[maker] = key
        return (None if stage == DONE else maker), _OF_SNAPSHOT.get(stage, "of a snapshot that is not there")

    def _maker_of_part(self, key: Key) -> Unnamed | None:
        maker = keys.maker_of_part(key)
        if maker is None:
            return None, "none of dynastate's own"
        if maker[0] // keys.LIST_SIZE in self._names.corrupt_lists:
            return None
        if self._names.graph.entry(*maker) is not None:
            return None, "of a listed attempt, where that has no part"
        self._unlisted.add(maker)
        if maker.version > self._newest + 1:
            return maker, "of an attempt above the next version: of a query that was taken back, or its list is lost"
        return maker, "of an attempt that no version list names: under way, or failed"

    def report(self) -> Report:
        """The findings that still hold, and which versions can be read."""
        now = NamingItems(self._tables, self._store)
        nodes, corrupt = now.nodes(), {finding.key for finding in now.findings}

        def holds(finding: Finding) -> bool:
            if finding.what == "orphaned":
                return not finding.named_by & nodes
            if finding.named_by:
                return bool(finding.named_by & nodes)
            return finding.key in corrupt or finding.key not in now.keys

        self._findings = [finding for finding in self._findings if holds(finding)]
        needed = self._needed(now)
        for finding in self._unpinned:
            if finding.key.sort in needed:
                self._add(finding)
        known = self._names.nodes()
        versions = [each for each in self._check_chains(now) if VersionId(each.version, each.attempt) in known]
        return Report(
            store=self._store,
            versions=tuple(versions),
            snapshots=len(now.snapshots()),
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
        found = {entry.objects.location for entry in entries if entry.objects}
        return found.union(*(manifest.locations for manifest in self._manifests.values() if manifest))

    def _check_chains(self, now: NamingItems) -> list[Checked]:
        """Which versions can be read: by a complete snapshot, or by their changes and the version before."""
        lost = [finding for finding in self._findings if finding.what != "orphaned"]
        in_vain = {node for finding in lost for node in finding.named_by}
        unread = {node for finding in lost if finding.key.sort.startswith("schema/") for node in finding.named_by}
        whole = {each.of for each in now.snapshots() if each.holder not in in_vain}
        is_stopped = not self._shards or now.is_stopping
        graph = now.graph
        newest = max((entry.epoch for entry in graph.entries()), default=0)
        live = graph.reachable(entry for entry in graph.entries() if entry.epoch == newest)
        # A list that a fork needed, and the versions of another location, outlive others: a parent above them may be
        # deleted long before.
        has_gaps = FORKED in graph.meta_item or self._is_adopted
        listed = graph.versions()
        lowest = min((version for version in listed if not graph.is_pinned(version)), default=0)
        # Clean-up has begun to delete older versions that depend on nothing that is listed.
        needless = max((version for version, _ in live & whole), default=0)
        bases = graph.bases({each for each in whole if each not in unread}, in_vain)
        parents = {*bases, *whole, *self._find_lost_snapshot(now, bases)}
        # What a dropped query left here late, at the first version of a list; a fork has epochs of its origin.
        is_fork = graph.meta is None or ORIGIN in graph.meta_item
        first_epoch = 0 if is_fork or graph.meta is None else min(graph.meta.locations, default=0)
        dead: set[VersionId] = set()
        checked: list[Checked] = []
        for entry in graph.entries():
            node, parent = entry.id, entry.parent_id
            can_be_read = bases[node] is not None
            # A fork retains its list, so clean-up may have deleted what it depends on.
            is_pinned = graph.is_pinned(entry.version)
            if node in whole or node in in_vain or parent in parents:
                if parent in dead and not can_be_read:
                    dead.add(node)
            elif (
                # Where other attempts at the parent's version are listed, clean-up has deleted the parent as dead, and
                # a task of a run that is over committed late.
                (
                    (parent.version >= lowest and parent.version not in listed and not has_gaps)
                    or (node in live and node.version > needless)
                )
                and not is_pinned
                and entry.epoch >= first_epoch
            ):
                self._parent_lost(now, node, parent)
            else:
                dead.add(node)
            checked.append(Checked(*node, entry.epoch, can_be_read and not is_stopped, node in dead))
        if graph.meta is not None and DROPPED not in graph.meta_item:
            self._find_gaps(now, {node for node, base in bases.items() if base is not None})
            self._find_lost_ends(now)
        return checked

    def _find_lost_snapshot(self, now: NamingItems, bases: Mapping[VersionId, VersionId | None]) -> list[VersionId]:
        """Report the snapshot that the current versions are read from, if its item is lost.

        Return the parent of the lowest of these versions then, which is not there either.

        Clean-up leaves versions, too, that cannot be read. But it deletes the buckets and the manifest of a snapshot
        before its item, so a manifest is that of a lost one if it is there with all buckets, and is of the lowest
        version or of the one below. A manifest that was written late has lost those that no other snapshot has. That of
        a fork which was dropped and made again has not: what a fork shares with its origin is left out.
        """
        graph = now.graph
        if not graph.versions() or DROPPED in graph.meta_item:  # a drop deletes the items first
            return []
        lowest = graph.lineage(graph.newest())[0]
        wanted = {lowest.id, lowest.parent_id} - {each.of for each in graph.snapshots()}
        if bases[lowest.id] is not None:
            return []
        # Read again after the snapshots: one that was deleted meanwhile has no manifest any more.
        numbers = {of.version for of in wanted}
        left = [key for holder, key in self._left.items() if holder.version in numbers]
        for key, made in read_each(self._tables, left, partial(_parse_left, self._store)):
            if isinstance(made, SnapshotManifest) and made.of in wanted and self._has_buckets(made):
                holders = frozenset(bucket.holder for bucket in made.buckets) | {keys.maker_of_manifest(key)}
                self._findings = [
                    each for each in self._findings if each.what != "orphaned" or not each.named_by & holders
                ]
                why = (
                    f"the item of the snapshot of version {made.version} is lost: without it version {lowest.version} "
                    "and those after it cannot be read, and its manifest and buckets are there"
                )
                lost = keys.snapshot_key(self._store, *made.of)
                self._add(Finding("missing", lost, why, frozenset([lowest.id])))
                return [lowest.parent_id]
        return []

    def _has_buckets(self, made: SnapshotManifest) -> bool:
        """Whether all buckets of a manifest are the store's own and can be read, and others have not all of them."""
        named = {
            (bucket.holder, number)
            for found in self._manifests.values()
            for number, bucket in enumerate(found.buckets if found is not None else ())
        }
        buckets = [(number, bucket) for number, bucket in enumerate(made.buckets) if bucket.parts]
        is_own = all(bucket.home is None for _, bucket in buckets)
        if not (self._shards and is_own and any((bucket.holder, number) not in named for number, bucket in buckets)):
            return False
        runs = (run for number, _ in buckets for run in bucket_runs(self._store, made, number, self._shards))
        return all(isinstance(part, Part) for _, part in self._read_parts(runs))

    def _find_gaps(self, now: NamingItems, readable: set[VersionId]) -> None:
        """Report gaps: clean-up deletes versions from the lowest on, so none is missing above a readable one.

        But it retains what a fork needs, until that is dropped, and what another location made, wherever they are.
        Versions of a query that started over, or was taken back, are below those of an older run.
        """
        if self._is_adopted or FORKED in now.graph.meta_item:
            return
        entries = list(now.graph.entries())
        for version, following in pairwise(now.graph.versions()):
            below = [each.epoch for each in entries if each.version == version and each.id in readable]
            above = [each.epoch for each in entries if each.version == following]
            is_pinned = now.graph.is_pinned(version)  # by a fork that an earlier package made
            # At version 1, which needs no other, a task may commit long after clean-up.
            is_late = version == 1
            if following > version + 1 and below and max(below) <= min(above) and not (is_pinned or is_late):
                self._list_lost(now, version + 1, following - 1, "but older ones are")

    def _find_lost_ends(self, now: NamingItems) -> None:
        """Report versions above the listed ones that were listed, by snapshots and parts.

        A snapshot is made of a listed version, and an attempt begins when the version before is listed. Below the
        listed ones nothing shows a loss: a clean-up that was cut off leaves parts there, and an executor that was
        suspended leaves a snapshot.
        """
        graph = now.graph
        listed, epochs = graph.versions(), [each.epoch for each in graph.entries()]
        newest, epoch = (listed[-1], max(epochs)) if listed else (0, 0)
        last = max((each.version for each in self._unlisted if graph.entry(*each) is None), default=0)
        before = set(self._names.snapshots())
        snapshots = [each for each in now.snapshots() if each in before and not each.is_pinned]
        # Without a list, it may be of an import or a fork under way. Older epochs may be of a query before this one.
        above = [each for each in snapshots if each.epoch >= epoch and (listed or each.of in self._unlisted)]
        snapshot = max((each.version for each in above), default=0)
        if snapshot > newest:
            self._list_lost(now, newest + 1, snapshot, "but there is a snapshot of the last one")
        elif self._is_first_run and not graph.refused and last > newest + 1:
            self._list_lost(now, newest + 1, last - 1, "but there are parts of what follows them")

    def _list_lost(self, now: NamingItems, first: int, last: int, how: str) -> None:
        """Report versions that no list names, unless their list is reported already."""
        key = keys.version_list_key(self._store, first)
        is_known = any(finding.what == "missing" and finding.key == key for finding in self._findings)
        if is_known or any(version // keys.LIST_SIZE in now.corrupt_lists for version in (first - 1, first, last)):
            return
        numbers = range(first, last + 1)
        why = f"the version list of {ranges(numbers)} is lost: none of them is listed, {how}"
        self._add(Finding("missing", key, why))

    def _parent_lost(self, now: NamingItems, node: VersionId, parent: VersionId) -> None:
        key = keys.version_list_key(self._store, parent[0])
        if parent[0] // keys.LIST_SIZE in now.corrupt_lists or node not in self._names.nodes():
            return
        why = f"version {parent[0]} by attempt {parent[1].hex()}, which version {node[0]} needs, nor a snapshot of it"
        finding = Finding("missing", key, why, frozenset([node]))
        if finding not in self._findings:
            self._add(finding)


def _parse_left(store: str, key: Key, item: Item) -> SnapshotManifest:
    """The manifest of a snapshot that is not there."""
    check_format(key, item)
    raw = item.get("data")
    return decode_manifest(store, raw if isinstance(raw, bytes) else b"")


def _listed(rows: Mapping[int, int]) -> str:
    """Numbers of rows by column family, as text."""
    return ", ".join(f"{family}: {count:,}" for family, count in sorted(rows.items()) if count) or "no"


def _defect(
    key: Key, corrupt: CorruptStateError | None, why: str, needed_by: frozenset[Namer] = frozenset()
) -> Finding:
    """The finding for a corrupt item, or (None) for a missing one, which `why` describes."""
    if corrupt is None:
        return Finding("missing", key, why, needed_by)
    return Finding("corrupt", key, corrupt.reason, needed_by)
