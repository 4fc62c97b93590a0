"""Erasing rows by their keys: the stores, the plan, and the steps (docs/decisions/0042)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from dynastate import runtime
from dynastate.engine.graphs import find_meta, read_metas
from dynastate.engine.known import KnownStores
from dynastate.engine.namespaces import read_fork
from dynastate.engine.reader import PartReader
from dynastate.errors import ConfigurationError, UnavailableError
from dynastate.format.items import Item, item_bytes
from dynastate.format.keys import Key, VersionId, maker_of_bucket, maker_of_part, meta_key
from dynastate.format.meta import (
    DELETING,
    DROPPED,
    EPOCHS,
    EPOCHS_KEPT,
    ERASE_ID,
    ERASING,
    ERASURES,
    StoreMeta,
    query_runs,
)
from dynastate.format.objects import ObjectId, object_numbers, store_prefix
from dynastate.format.parts import PART_OVERHEAD_BYTES
from dynastate.format.snapshot import DONE
from dynastate.format.version_list import ERASED, REFUSED, VERSIONS, list_item
from dynastate.operations.erase.keys import GivenKeys
from dynastate.operations.erase.rewrite import Rewriter, Rewritten
from dynastate.operations.erase.scan import (
    BucketName,
    StoreScan,
    Unnamed,
    find_unnamed,
    read_names,
    refuse_dropped,
    refuse_other_objects,
    refuse_unmatched,
    scan_store,
    sparse_objects,
)
from dynastate.operations.lifecycle.runs import read_meta, refuse_runs
from dynastate.operations.pins import forks_of
from dynastate.operations.scope import each_store
from dynastate.progress import ProgressCallback, no_progress
from dynastate.storage.limits import ITEM_BYTES_MAX
from dynastate.storage.meter import Meter, units_of_write
from dynastate.storage.objects import NO_VERSION, ObjectVersion, delete_versions
from dynastate.storage.tables import Tables, delete_all, own_locations
from dynastate.storage.update import Condition, Update

#: Requests under way for each store.
_THREADS: Final = 2
#: How often a store is read until nothing is left to erase.
_PASSES_MAX: Final = 3
#: By how many bytes at most a version entry grows when it is rewritten: the id of its parts.
_REWRITTEN_BYTES: Final = 24


@dataclass(frozen=True)
class ErasePlan:
    """The plan of an erase: `groups` of stores that share rows, each a store with its forks and origins.

    `rows` are the rows with one of the keys, of all versions together. `versions` have such rows, and `snapshots` have
    them or share objects with buckets that have, or may have, them. `unnamed` are items and objects that nothing
    names, or nothing in part, and unfinished snapshots: of failed attempts, or left by an erase that was cut off. They
    are deleted whatever they have. `families` lack the columns of each key, so no row of them is erased. `write_units`
    and `puts` are about those that an erase takes, and `meter` is the cost of the plan.
    """

    groups: tuple[tuple[str, ...], ...]
    keys: int
    rows: int
    versions: int
    snapshots: int
    unnamed: int
    families: tuple[str, ...]
    write_units: int
    puts: int
    meter: Meter
    is_under_way: bool

    @property
    def stores(self) -> list[str]:
        return [store for group in self.groups for store in group]

    @property
    def read_units(self) -> int:
        """The read units that the plan has taken."""
        return self.meter.read_units

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.rows or self.unnamed or self.is_under_way)


@dataclass(frozen=True)
class ErasedStore:
    """A store without the rows: what was rewritten, what was deleted, and what was read in the end."""

    store: str
    rows: int
    versions: tuple[VersionId, ...]
    snapshots: tuple[VersionId, ...]
    deleted: tuple[Key, ...]
    objects_deleted: tuple[ObjectVersion, ...]
    clean_versions: tuple[VersionId, ...]
    clean_snapshots: tuple[VersionId, ...]


@dataclass(frozen=True)
class Erased:
    """The stores without the rows, and the cost."""

    stores: tuple[ErasedStore, ...]
    meter: Meter


@dataclass
class _Work:
    """The work of all passes over one store so far."""

    rows: set[tuple[int, bytes]] = field(default_factory=set)
    rewritten: Rewritten = field(default_factory=Rewritten)
    keys: list[Key] = field(default_factory=list)
    objects: list[ObjectVersion] = field(default_factory=list)


def groups_of(tables: Tables, stores: Sequence[str]) -> list[list[str]]:
    """The stores, each in a group with the stores that share rows with it: its forks and origins, in any number.

    A fork that needs nothing of its origin any more shares none. Refuse a store that needs an origin that is not in
    these tables, and a fork that is not complete.
    """
    groups: list[list[str]] = []
    grouped: set[str] = set()
    for store in stores:
        if store in grouped:
            continue
        group, waiting = [], [store]
        while waiting:
            name = waiting.pop(0)
            if name in group:
                continue
            group.append(name)
            waiting += _relatives(tables, name)
        grouped |= set(group)
        groups.append(group)
    for namespace in sorted({store.split("/", maxsplit=1)[0] for store in grouped}):
        if read_fork(tables, namespace) is not None:
            raise ConfigurationError(
                f"a fork is being made, or was cut off: complete it with the same dynastate fork, or dynastate drop "
                f"{namespace}, and erase again",
                namespace=namespace,
            )
    return groups


def _relatives(tables: Tables, store: str) -> list[str]:
    """The origin of a store, if it depends on it, and the forks that depend on the store."""
    meta = read_meta(tables, store)
    relatives = []
    origin_meta = find_meta(tables, meta.origin) if meta.origin else None
    if meta.pins or (origin_meta and meta.pin in origin_meta.forks):  # else it needs nothing of its origin any more
        if origin_meta is None:
            raise ConfigurationError(
                "the origin of this fork is not in these tables, and may have the rows: erase them in the tables that "
                "it is in",
                store=store,
                origin=meta.origin,
            )
        relatives.append(meta.origin)
    forks = forks_of(meta.forks)
    for fork, fork_meta in read_metas(tables, forks).items():
        if fork_meta.pin in meta.forks:  # else the fork was dropped
            relatives.append(fork)
    return relatives


def plan_erase(
    tables: Tables, stores: Sequence[str], erased_keys: GivenKeys, progress: ProgressCallback = no_progress
) -> ErasePlan:
    """Read all versions and snapshots of stores, with their forks and origins, and count what an erase would change.

    Refuse what cannot be erased whole: a store that is corrupt or is being dropped, a fork that is not complete, a
    store that needs objects of other tables. Refuse a store whose version lists have no room, and a key whose columns
    none has.
    """
    tables = tables.metered(Meter())
    groups = groups_of(tables, stores)
    by_first = {group[0]: group for group in groups}
    metas = read_metas(tables, [store for group in groups for store in group])
    for store, meta in metas.items():
        refuse_dropped(store, meta)  # first: an erase does not end before the drop
        _refuse_other(store, meta, erased_keys)

    def plan(view: Tables, first: str) -> _Scans:
        with closing(make_reader()) as reader:
            return _scan(view, reader, by_first[first], erased_keys)

    plans = each_store(tables, list(by_first), plan, progress, until_failure=True).all()
    scans = [scan for group in plans for scan in group.stores.values()]
    refuse_unmatched(erased_keys, {scan.store: scan.matcher for scan in scans})
    for scan in scans:
        _refuse_full(scan)
        refuse_other_objects(tables, scan)
    costs = [_cost_of(scan) for scan in scans]
    return ErasePlan(
        groups=tuple(map(tuple, groups)),
        keys=len(erased_keys.keys),
        rows=sum(len(scan.row_ids) for scan in scans),
        versions=sum(len(scan.changes) for scan in scans),
        snapshots=sum(bool(scan.replaced(manifest)) for scan in scans for _, manifest in scan.snapshots()),
        unnamed=sum(group.unnamed_count for group in plans),
        families=tuple(sorted({name for scan in scans for name in scan.matcher.without_columns})),
        write_units=sum(cost.write_units for cost in costs) + sum(group.unnamed_items for group in plans),
        puts=sum(cost.puts for cost in costs),
        meter=tables.meter,
        is_under_way=any(meta.erasing for meta in metas.values()),
    )


def make_reader() -> PartReader:
    """A reader of parts that keeps none of them."""
    return PartReader(_THREADS, KnownStores(0))


def _refuse_other(store: str, meta: StoreMeta, erased_keys: GivenKeys) -> None:
    if meta.erasing not in ("", erased_keys.digest):
        raise ConfigurationError(
            "other keys are erased from this store, or that was cut off: end it with the same dynastate erase first, "
            "with the same keys",
            store=store,
        )


def _refuse_full(scan: StoreScan) -> None:
    """Refuse a version list that has no room for what an erase adds; one that has begun has added some of it."""
    meta = scan.graph.required_meta
    if meta.erasing:
        return
    marks: Item = {REFUSED: frozenset(query_runs(meta)), ERASED: runtime.new_id().hex}
    for key, listed in scan.graph.lists.items():
        item = scan.graph.list_attributes[key] | {VERSIONS: [raw for raw, _ in listed]}
        rewritten = sum(entry.id in scan.changes for _, entry in listed)
        if item_bytes(item) + item_bytes(marks) + rewritten * _REWRITTEN_BYTES > ITEM_BYTES_MAX:
            raise ConfigurationError(
                "a version list is nearly full, 400 KB, and has no room for what an erase adds. Start the query again, "
                "at most twice: its commits delete failed attempts there. Stop it, and erase again",
                store=scan.store,
                item=key.sort,
            )


def _cost_of(scan: StoreScan) -> Meter:
    """About the write units and puts that a store takes: rewritten items are written, and the old ones deleted."""
    units, puts, sizes = 0, 0, scan.item_bytes()
    for key, listed in scan.graph.lists.items():
        units += 2 * units_of_write(item_bytes(list_item(key, [raw for raw, _ in listed])))
    for entry in scan.graph.entries():
        if entry.id in scan.changes and entry.items:
            units += 2 * len(entry.items) * units_of_write(sizes[entry.maker])
        puts += len(entry.object_ids(scan.store)) if entry.id in scan.changes else 0
    names: set[BucketName] = set()
    for _, manifest in scan.snapshots():
        replaced = set(scan.replaced(manifest)) - names
        names |= replaced
        buckets = {name: manifest.buckets[name.number] for name in replaced}
        units += sum(
            2 * bucket.parts * units_of_write(sizes[name]) for name, bucket in buckets.items() if not bucket.place
        )
        puts += len(object_numbers(0, sum(bucket.object_bytes for bucket in buckets.values())))
        units += 3 if scan.replaced(manifest) else 0
    return Meter(write_units=units + 2, puts=puts)


def erase_stores(
    tables: Tables, plan: ErasePlan, erased_keys: GivenKeys, progress: ProgressCallback = no_progress
) -> Erased:
    """Erase the rows with these keys from all versions and snapshots of a plan's stores.

    If the plan is empty, the stores are only read again.

    0. Refuse if versions of objects could not be deleted in the end.
    1. Mark all stores in their meta items: no run enters, no fork or snapshot is made. (Crash: the stores can be read,
       and queries are refused with an error that says to repeat this.)
    2. For each group of stores: refuse the commits of all runs that have entered; read everything; rewrite the versions
       and snapshots with such rows; delete what nothing names. Read everything again: nothing may be left. (Crash: the
       same. Versions can be read at every moment; erased rows may be there in an earlier form.)
    3. Remove the marks. (Crash: the same.)

    Repeated with the same keys, it completes an erase that was cut off.

    Raises:
        ConfigurationError: a store is being dropped, or other keys are being erased from it; a fork has begun
            meanwhile; or AWS refuses to delete versions of objects.
        UnavailableError: something keeps writing to a store; or DynamoDB does.
    """
    tables, stores = tables.metered(Meter()), plan.stores
    by_first = {group[0]: list(group) for group in plan.groups}
    if plan.is_empty:

        def confirm(view: Tables, first: str) -> list[ErasedStore]:
            return _confirm_group(view, by_first[first], erased_keys)

        confirmed = each_store(tables, list(by_first), confirm, progress, until_failure=True).all()
        return Erased(tuple(each for group in confirmed for each in group), tables.meter)
    each_store(tables, stores, _refuse_undeletable, until_failure=True).all()  # 0
    each_store(tables, stores, partial(_mark, erased_keys=erased_keys), until_failure=True).all()  # 1
    if sorted(map(sorted, groups_of(tables, stores))) != sorted(map(sorted, plan.groups)):
        raise ConfigurationError("a fork of this state was made or dropped meanwhile; erase again", store=stores[0])

    def erase(view: Tables, first: str) -> list[ErasedStore]:
        return _erase_group(view, by_first[first], erased_keys)

    erased = each_store(tables, list(by_first), erase, progress, until_failure=True).all()  # 2
    each_store(tables, stores, partial(_unmark, erased_keys=erased_keys), until_failure=True).all()  # 3
    return Erased(tuple(each for group in erased for each in group), tables.meter)


def _refuse_undeletable(tables: Tables, store: str) -> None:
    """Refuse a store if versions of its objects may not be deleted: ask for the deletion of one that does not exist."""
    for location in own_locations(tables, read_meta(tables, store).objects):
        if tables.objects.keeps_versions(location):
            absent_id = ObjectId(location, f"{store_prefix(store)}none")
            tables.objects.delete_versions([ObjectVersion(absent_id, NO_VERSION)])


def _mark(tables: Tables, store: str, erased_keys: GivenKeys) -> None:
    """Mark a store, and count the beginning."""
    for _ in range(EPOCHS_KEPT):
        meta = read_meta(tables, store)
        _refuse_other(store, meta, erased_keys)
        if meta.erasing:
            return
        refuse_dropped(store, meta)
        sets: Item = {ERASING: erased_keys.digest, ERASURES: meta.erasures + 1, ERASE_ID: runtime.new_id().hex}
        tables.update(meta_key(store), Update(_unmarked(meta), sets=sets))
    raise UnavailableError("a query keeps entering this store; stop it, and erase again", store=store)


def _unmarked(meta: StoreMeta) -> Condition:
    """The condition that a meta item has the same runs, and no mark of an erase or of a drop that deletes."""
    counted: Item = {ERASURES: meta.erasures} if meta.erasures else {}
    absent = [ERASING] + ([] if meta.erasures else [ERASURES])
    return Condition(equal={EPOCHS: {**meta.epochs}, **counted}, absent=absent, unequal={DROPPED: DELETING})


def _unmark(tables: Tables, store: str, erased_keys: GivenKeys) -> None:
    """Remove the mark of a store, and count the end. Without the mark nothing happens: only an answer was lost.

    The mark of a drop that was cut off goes, too, as when a run enters: else neither could be ended without the other.
    """
    meta = read_meta(tables, store)
    if meta.erasing == erased_keys.digest:
        equal: Item = {ERASING: erased_keys.digest, ERASURES: meta.erasures}
        condition = Condition(equal=equal, unequal={DROPPED: DELETING})
        removes = [ERASING, ERASE_ID, DROPPED]
        tables.update(meta_key(store), Update(condition, sets={ERASURES: meta.erasures + 1}, removes=removes))


def _confirm_group(tables: Tables, group: Sequence[str], erased_keys: GivenKeys) -> list[ErasedStore]:
    """Read stores that have no such rows. Refuse them if they have some by now."""
    with closing(make_reader()) as reader:
        scans = _scan(tables, reader, group, erased_keys)
        if not scans.is_clean:
            raise ConfigurationError(
                "a query has written to this store meanwhile: stop it, and erase again", store=group[0]
            )
        return [_erased(scan, _Work()) for scan in scans.stores.values()]


def _erase_group(tables: Tables, group: Sequence[str], erased_keys: GivenKeys) -> list[ErasedStore]:
    """Erase rows from a store, its forks and origins: what one of them no longer names, another may.

    The same erase may have been repeated, and a query started, while this one was suspended: then it stops.
    """
    marked = {store: read_meta(tables, store) for store in group}
    for store, meta in marked.items():
        refuse_runs(tables, store, set(query_runs(meta)))
    work = {store: _Work() for store in group}
    with closing(make_reader()) as reader:
        for _ in range(_PASSES_MAX):
            scans = _scan(tables, reader, group, erased_keys)
            if scans.is_clean:
                return [_erased(scan, work[store]) for store, scan in scans.stores.items()]
            metas = {store: scan.graph.required_meta for store, scan in scans.stores.items()}
            _refuse_ended(marked, metas, erased_keys)
            for store, scan in scans.stores.items():
                work[store].rows |= scan.row_ids
                rewritten = Rewriter(tables, reader, scan).rewrite()
                work[store].rewritten.versions += rewritten.versions
                work[store].rewritten.snapshots += rewritten.snapshots
            unnamed = _find_unnamed(tables, group)
            _refuse_ended(marked, read_metas(tables, group), erased_keys)
            _sweep(tables, work, unnamed, scans.stores)
    raise UnavailableError("something keeps writing to this store: stop the query, and erase again", store=group[0])


class _Scans(NamedTuple):
    """The stores of a group, and what nothing names there."""

    stores: dict[str, StoreScan]
    unnamed: dict[str, Unnamed]
    sparse: set[ObjectId]

    @property
    def is_clean(self) -> bool:
        """Whether no row is to be erased, nothing is unnamed, also in objects, and no snapshot is unfinished."""
        scans = self.stores.values()
        is_done = all(each.stage == DONE for scan in scans for each in scan.graph.snapshots())
        is_named = not self.sparse and not any(each.keys or each.objects for each in self.unnamed.values())
        return is_done and is_named and not any(scan.row_ids for scan in scans)

    @property
    def unnamed_count(self) -> int:
        """The number of unnamed items and objects, of objects with unnamed parts, and of unfinished snapshots."""
        return self.unnamed_items + len(self.sparse) + sum(len(each.objects) for each in self.unnamed.values())

    @property
    def unnamed_items(self) -> int:
        """The number of unnamed items, and of unfinished snapshots."""
        unfinished = sum(each.stage != DONE for scan in self.stores.values() for each in scan.graph.snapshots())
        return unfinished + sum(len(each.keys) for each in self.unnamed.values())


def _scan(tables: Tables, reader: PartReader, group: Sequence[str], erased_keys: GivenKeys) -> _Scans:
    scans = {store: scan_store(tables, reader, store, erased_keys) for store in group}
    for scan in scans.values():
        refuse_dropped(scan.store, scan.graph.required_meta)
    sparse = sparse_objects(scans)
    spoilt = {each.stream for each in sparse}.union(*(scan.touched_streams() for scan in scans.values()))
    for scan in scans.values():
        scan.spoilt = spoilt
    return _Scans(scans, {store: find_unnamed(tables, store, scans) for store in group}, sparse)


def _find_unnamed(tables: Tables, group: Sequence[str]) -> dict[str, Unnamed]:
    """The items and objects of each store that no store of a group names any more."""
    names = {store: read_names(tables, store) for store in group}
    return {store: find_unnamed(tables, store, names) for store in group}


def _refuse_ended(marked: Mapping[str, StoreMeta], metas: Mapping[str, StoreMeta], erased_keys: GivenKeys) -> None:
    """Refuse to go on unless the stores have had their marks all the time since `marked` was read.

    While they have, all runs are refused, so that what was unnamed stays so.
    """
    for store, marked_meta in marked.items():
        meta = metas.get(store)
        is_same = meta is not None and (meta.erasures, meta.epochs) == (marked_meta.erasures, marked_meta.epochs)
        if meta is None or not is_same or meta.erasing != erased_keys.digest:
            raise ConfigurationError(
                "something else has changed this store meanwhile: stop the query and other commands, and erase again",
                store=store,
            )


def _sweep(
    tables: Tables, work: dict[str, _Work], unnamed: Mapping[str, Unnamed], scans: Mapping[str, StoreScan]
) -> None:
    """Delete what nothing names. Units are counted by the sizes of what `scans` have named."""
    sizes = {name: size for scan in scans.values() for name, size in scan.item_bytes().items()}
    for store, (unnamed_keys, unnamed_objects) in unnamed.items():
        delete_all(tables, unnamed_keys)
        tables.meter.deleted(_size_of(key, sizes) for key in unnamed_keys)
        delete_versions(tables.objects, unnamed_objects)
        work[store].keys += unnamed_keys
        work[store].objects += unnamed_objects


def _size_of(key: Key, sizes: Mapping[VersionId | BucketName, int]) -> int:
    """About the size of a deleted item in bytes, by the size of those beside it, or of one without data."""
    part, bucket = maker_of_part(key), maker_of_bucket(key)
    name = part if bucket is None else BucketName._make(bucket)
    return PART_OVERHEAD_BYTES if name is None else sizes.get(name, PART_OVERHEAD_BYTES)


def _erased(scan: StoreScan, work: _Work) -> ErasedStore:
    return ErasedStore(
        scan.store,
        rows=len(work.rows),
        versions=tuple(work.rewritten.versions),
        snapshots=tuple(work.rewritten.snapshots),
        deleted=tuple(work.keys),
        objects_deleted=tuple(work.objects),
        clean_versions=tuple(entry.id for entry in scan.graph.entries()),
        clean_snapshots=tuple(each.of for each, _ in scan.snapshots()),
    )
