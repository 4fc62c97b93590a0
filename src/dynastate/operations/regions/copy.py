"""Copy of a namespace to other tables, in another Region or account too (docs/changing-a-query.md).

Items are copied unchanged, with all versions. Meta items are copied last, and the first store's meta item at the end:
until then no reader finds a store in the target. Until then the record of the namespace is marked as being copied, so
that no run enters. Objects of S3 are copied first, to another location, and the copied items name that location.

Fences of a query that was dropped in the target stay, as parts of the copied lists: a commit of that query may be late.
Epochs are raised above the dropped query's newest epoch, as in a new store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from dynastate import runtime
from dynastate.engine.catalog import find_stores, read_version_lists, whole_namespace
from dynastate.engine.graphs import find_meta, meta_items
from dynastate.engine.namespaces import list_store, read_namespace, refuse_erasing
from dynastate.engine.updates import unchanged
from dynastate.errors import ConfigurationError
from dynastate.format.graph import VersionGraph
from dynastate.format.items import FORMAT, Item, item_bytes, item_key
from dynastate.format.keys import MANIFEST_RANGE, META, SPECS, Key, Role, meta_key, store_shard, version_list_key
from dynastate.format.manifest import decode_manifest
from dynastate.format.meta import DELETING, DROPPED, EPOCHS, FORKED, FORKS, StoreMeta, parse_meta
from dynastate.format.namespace import COPY, namespace_item, namespace_key
from dynastate.format.objects import ObjectId, store_prefix
from dynastate.format.version_list import DROPPED_EPOCH, REFUSED, VERSIONS
from dynastate.operations.cost.usage import StorageUsage, usage_of_stores
from dynastate.operations.lifecycle.drop import look
from dynastate.operations.pins import refuse_forked, refuse_forks
from dynastate.operations.regions.checkpoint_copy import CheckpointCopy, differs, other_state
from dynastate.operations.regions.object_copy import CopiedObjects, ObjectCopy, refuse_location
from dynastate.operations.regions.relocation import Relocation, bytes_of
from dynastate.operations.scope import each_store
from dynastate.prices import Prices
from dynastate.progress import ProgressCallback, no_progress
from dynastate.settings import Settings
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables, delete_all, get_apart, other_locations, own_location, own_locations

#: Sort keys before and after all others.
_FIRST: Final = "\x00"
_LAST: Final = "\U0010ffff"


class Content(NamedTuple):
    """Items and objects at one end."""

    items: int
    bytes: int
    objects: int
    object_bytes: int


class PagedTables(Tables, Protocol):
    """Tables that give the items of a partition key a page at a time."""

    def pages(self, role: Role, store_shard: str, low: str, high: str) -> Iterator[tuple[Key, Item]]:
        """As `query`, with one page in memory."""


@dataclass(frozen=True)
class CopyPlan:
    """A possible copy, and its estimated cost by the version lists: on both ends, with the comparison."""

    namespace: str
    stores: tuple[str, ...]
    items: int
    bytes: int
    objects: int
    object_bytes: int
    write_units: int
    read_units: int
    dollars: float
    location: str = ""
    checkpoint_files: int = 0


@dataclass(frozen=True)
class Copied:
    """A complete copy: items, objects and bytes at the source, and the number of items and objects `written`.

    Items and objects that the target had already are not written. Items that list stores are not counted.
    """

    namespace: str
    stores: int
    items: int
    bytes: int
    objects: int
    object_bytes: int
    written: int
    write_units: int
    read_units: int
    dollars: float
    checkpoint_files: int = 0


def plan_copy(
    source: PagedTables,
    target: PagedTables,
    namespace: str,
    settings: Settings,
    progress: ProgressCallback = no_progress,
    *,
    objects: str = "",
) -> CopyPlan:
    """Check whether a namespace can be copied, and estimate the cost by `settings`. Nothing is changed.

    `objects` is the setting of queries on the target. If it is empty, no objects can be copied.
    """
    source, target = source.metered(Meter()), target.metered(Meter())
    location = own_location(target, objects)
    stores = whole_namespace(source, namespace)
    metas = _metas(source, stores, location)
    checkpoints = CheckpointCopy(source, target, namespace, location)
    _refuse_all_others(target, namespace, _relocated(target, metas, location), checkpoints)
    usage = sum(usage_of_stores(source, stores, progress).values(), StorageUsage())
    stored_bytes, items = usage.stored.bytes, usage.stored.items
    of_files = checkpoints.objects()
    object_count = of_files.objects + sum(
        1 for store in stores for _ in _objects(source, store, parse_meta(store, metas[store]).objects)
    )
    # One unit for each KB of an item, half a unit on average for rounding, and one to list a store. Both ends are read
    # for the comparison.
    write_units = stored_bytes // 1024 + items // 2 + 2 * len(stores)
    read_units = 3 * (stored_bytes // 4096 + len(stores))
    return CopyPlan(
        namespace,
        tuple(stores),
        items=items,
        bytes=stored_bytes,
        objects=object_count,
        object_bytes=usage.stored.object_bytes + of_files.bytes,
        write_units=write_units,
        read_units=read_units,
        dollars=Prices.of(settings).nanodollars(write_units, read_units, object_count, 3 * object_count) / 1e9,
        location=location,
        checkpoint_files=checkpoints.files,
    )


def copy_stores(
    source: PagedTables,
    target: PagedTables,
    plan: CopyPlan,
    settings: Settings,
    progress: ProgressCallback = no_progress,
) -> Copied:
    """Carry out a plan.

    1. List the stores in the target, and mark the record of the namespace there: after this no run enters. Delete the
       meta items of an earlier copy: after this no fork begins.
    2. Copy every object, then every item except the meta items, then the files of checkpoints. Equal items are not
       written, and the target's other items are deleted.
    3. Check that nothing wrote to the source meanwhile. 4. Compare both ends.
    5. Write the meta items, the first store's last; then remove the mark.
    A crash at any step leaves a namespace that readers do not find; the same call completes it, and a drop deletes it.
    """
    meter, stores, namespace = Meter(), plan.stores, plan.namespace
    source, target = source.metered(meter), target.metered(meter)
    first_look = look(source, stores)
    metas = _metas(source, stores, plan.location)
    record_key = namespace_key(namespace)
    source_record = source.get([record_key]).get(record_key)
    record = source_record or _record_of(namespace, stores[0], metas[stores[0]])
    checkpoints = CheckpointCopy(source, target, namespace, plan.location)
    _refuse_all_others(target, namespace, _relocated(target, metas, plan.location), checkpoints)
    _list_stores(target, namespace, stores)
    is_recorded = record == target.get([record_key]).get(record_key)
    mark = _Mark(target, record)  # 1
    target_metas = _relocated(target, metas, plan.location)
    copied_stores = _refuse_other_state(target, namespace, target_metas)
    for store in copied_stores:
        _delete_meta(target, store, target_metas[store])

    def reporter(begin: int) -> ProgressCallback:
        return lambda count, total: progress(begin + count, 2 * total)

    def store_copy(view: PagedTables, store: str) -> _Store:
        ends = view, target.metered(view.meter)
        return _Store(ends, store, (metas[store], target_metas[store]), location=plan.location, mark=mark)

    def copy(view: PagedTables, store: str) -> int:
        return store_copy(view, store).copy()

    def compare(view: PagedTables, store: str) -> Content:
        return store_copy(view, store).compare()

    writes = sum(each_store(source, stores, copy, reporter(0), until_failure=True).all())  # 2
    writes += checkpoints.copy(partial(mark.check, target))
    if (  # 3
        look(source, stores) != first_look
        or source.get([record_key]).get(record_key) != source_record
        or tuple(whole_namespace(source, namespace)) != stores
        or not checkpoints.is_unchanged()
    ):
        raise ConfigurationError(
            "a query or clean-up wrote to this namespace while it was copied: stop it, and copy again",
            namespace=namespace,
        )
    contents = each_store(source, stores, compare, reporter(len(stores)), until_failure=True).all()  # 4
    checkpoint_files = checkpoints.compare()
    mark.check(target)
    for store in reversed(stores):  # 5
        _put_meta(target, store, target_metas[store])
    mark.remove(target)
    dollars = Prices.of(settings).nanodollars(meter.write_units, meter.read_units, meter.puts, meter.gets) / 1e9
    return Copied(
        namespace=namespace,
        stores=len(stores),
        items=sum(each.items for each in contents) + len(stores) + 1,
        bytes=sum(each.bytes for each in contents)
        + sum(map(item_bytes, [*metas.values(), record]))
        + checkpoint_files.bytes,
        objects=sum(each.objects for each in contents) + checkpoint_files.objects,
        object_bytes=sum(each.object_bytes for each in contents) + checkpoint_files.object_bytes,
        written=writes + len(stores) - len(copied_stores) + (not is_recorded),
        write_units=meter.write_units,
        read_units=meter.read_units,
        dollars=dollars,
        checkpoint_files=checkpoint_files.files,
    )


class _Mark:
    """The mark of a copy in the record of the namespace in the target, which keeps runs from entering.

    It replaces the mark of another copy, whether that was interrupted or still runs: the other copy is over.
    """

    def __init__(self, target: Tables, record: Item) -> None:
        """Set the mark. Refuse a target that a run has entered."""
        self._record = record
        self._key = namespace_key(str(record["namespace"]))
        self._marked = record | {DROPPED: DELETING, COPY: str(runtime.new_id())}
        stored_record = self._now(target)
        if not stored_record:
            target.put_new(self._key, self._marked)
        elif stored_record == record or COPY in stored_record:
            guarded: Item = {name: stored_record[name] for name in ("epochs", COPY) if name in stored_record}
            target.put_over(self._key, self._marked, unchanged(guarded))
        if self._now(target) != self._marked:
            raise other_state(namespace=self._key.namespace)

    def check(self, target: Tables) -> None:
        """Refuse to continue if this copy is over."""
        if self._now(target) != self._marked:
            raise self._is_over()

    def remove(self, target: Tables) -> None:
        """Remove the mark, so that runs can enter. Refuse if this copy is over."""
        is_removed = target.put_over(self._key, self._record, unchanged({COPY: self._marked[COPY]}))
        if not is_removed and self._now(target) != self._record:  # else only the answer was lost
            raise self._is_over()

    def _now(self, target: Tables) -> Item:
        return target.get([self._key]).get(self._key, {})

    def _is_over(self) -> ConfigurationError:
        return ConfigurationError(
            "another copy of this namespace to these tables has begun meanwhile, or it was dropped there: copy again",
            namespace=self._key.namespace,
        )


class _Store:
    """One store at both `ends`, source and target, without its meta item.

    `metas` are the store's meta items in the source and, later, in the target.
    """

    def __init__(
        self, ends: tuple[PagedTables, PagedTables], store: str, metas: tuple[Item, Item], location: str, mark: _Mark
    ) -> None:
        (self._source, self._target), self._mark = ends, mark
        self._store, self._location = store, location
        source_meta, target_meta = (parse_meta(store, meta) for meta in metas)
        self._raised = target_meta.epoch - source_meta.epoch
        self._places = [(role, store_shard(store, shard)) for role in SPECS for shard in range(source_meta.shards)]
        self._locations = source_meta.objects
        source_ids = partial(_objects, self._source, store, self._locations)
        self._objects = ObjectCopy(self._source, self._target, source_ids, store_prefix(store), location=location)

    def copy(self) -> int:
        """Make the target equal to the source; return the number of written items and objects.

        Two batches are in memory.
        """
        writes = 0
        if self._locations:
            writes += self._objects.copy()
            self._objects.delete_others(partial(self._mark.check, self._target))
        puts: list[tuple[Key, Item]] = []
        deletes: list[Key] = []
        most = runtime.limits().writes_max
        for key, item, stored_item in self._pairs():
            if item == stored_item:
                continue
            if _is_list(key):
                writes += self._write_list(key, item, stored_item)
            elif item is None:
                deletes.append(key)
            else:
                puts.append((key, item))
                if len(puts) == most:
                    writes += self._write(puts)
            if len(deletes) == most:
                self._delete(deletes)
        self._delete(deletes)
        return writes + self._write(puts)

    def compare(self) -> Content:
        """Compare both ends, to the byte. Refuse a difference."""
        items = size = 0
        copied = self._objects.compare() if self._locations else CopiedObjects()
        for key, item, stored_item in self._pairs():
            if item is None or item != stored_item:
                raise differs(key)
            items += 1
            size += item_bytes(item)
        return Content(items, size, copied.objects, copied.bytes)

    def _pairs(self) -> Iterator[tuple[Key, Item | None, Item | None]]:
        """Every key of both ends, in order, with the item that the target should have, and the item that it has."""
        location = self._location if self._locations else ""
        low, high = MANIFEST_RANGE
        manifests = self._source.pages("snapshot", store_shard(self._store, 0), low, high) if location else ()
        relocation = Relocation(self._store, location, self._raised, manifests)
        for role, shard in self._places:
            sides = [iter(tables.pages(role, shard, _FIRST, _LAST)) for tables in (self._source, self._target)]
            heads = [next(side, None) for side in sides]
            while any(heads):
                sort = min(each[0].sort.encode() for each in heads if each)
                pairs = [each if each and each[0].sort.encode() == sort else None for each in heads]
                key = next(each[0] for each in pairs if each)
                for number, pair in enumerate(pairs):
                    if pair:
                        heads[number] = next(sides[number], None)
                if key.sort != META or role != "snapshot":
                    item, stored_item = (each[1] if each else None for each in pairs)
                    target_item = item and relocation.item(key, _without_pins(item))
                    yield key, _with_fence(key, target_item, stored_item) if _is_list(key) else target_item, stored_item

    def _write(self, puts: list[tuple[Key, Item]]) -> int:
        count = len(puts)
        if puts:
            self._mark.check(self._target)
            self._target.write(puts)
            puts.clear()
        return count

    def _write_list(self, key: Key, item: Item | None, stored_item: Item | None) -> int:
        """Write or delete a version list. Refuse one that has changed: a commit of a dropped query may be late."""
        guarded: Item = (
            {name: stored_item[name] for name in (VERSIONS, REFUSED, FORKS) if name in stored_item}
            if stored_item
            else {}
        )
        self._mark.check(self._target)
        if item is None:
            is_written = self._target.delete_over(key, unchanged(guarded))
        elif stored_item is None:
            is_written = self._target.put_new(key, item)
        else:
            is_written = self._target.put_over(key, item, unchanged(guarded))
        if not is_written and self._target.get([key]).get(key) != item:  # else only the answer was lost
            raise differs(key)
        return int(item is not None)

    def _delete(self, keys: list[Key]) -> None:
        if keys:
            self._mark.check(self._target)
            delete_all(self._target, keys)
            keys.clear()


def _metas(source: Tables, stores: Sequence[str], location: str) -> dict[str, Item]:
    """The meta items of the stores to copy. Refuse a store that cannot be copied."""
    items = meta_items(source, stores)
    for store in stores:
        if store not in items:
            raise ConfigurationError("this store was dropped meanwhile", store=store)
        _refuse(store, parse_meta(store, items[store]), location)
    return items


def _relocated(target: Tables, metas: Mapping[str, Item], location: str) -> dict[str, Item]:
    """The meta items for the target: their epochs are above the epochs of stores that were dropped there."""
    fences = get_apart(target, [version_list_key(store, 1) for store in metas])

    def relocated(store: str, meta: Item) -> Item:
        dropped_epoch = fences.get(version_list_key(store, 1), {}).get(DROPPED_EPOCH)
        raised = dropped_epoch if isinstance(dropped_epoch, int) else 0
        return Relocation(store, location, raised).meta(_without_pins(meta))

    return {store: relocated(store, meta) for store, meta in metas.items()}


def _record_of(namespace: str, store: str, meta: Item) -> Item:
    """A new record of the namespace, if the source has none."""
    content = parse_meta(store, meta)
    return namespace_item(namespace, content.last_run, content.query, content.location)


def _list_stores(target: Tables, namespace: str, stores: Sequence[str]) -> None:
    for store in sorted({*stores}.difference(read_namespace(target, namespace).listed)):
        list_store(target, store)


def _put_meta(target: Tables, store: str, meta: Item) -> None:
    is_new = target.put_new(meta_key(store), meta)
    if not is_new and meta_items(target, [store]) != {store: meta}:  # else only the answer was lost
        raise other_state(store=store)


def _delete_meta(target: Tables, store: str, meta: Item) -> None:
    """Delete the meta item of an earlier copy, if no fork has begun there meanwhile."""
    if not target.delete_over(meta_key(store), unchanged({EPOCHS: parse_meta(store, meta).epochs})):
        stored_meta = find_meta(target, store)
        refuse_forks(store, stored_meta)
        if stored_meta:  # else only the answer was lost
            raise other_state(store=store)


def _without_pins(item: Item) -> Item:
    """An item without its pins: forks stay in the source."""
    return {name: value for name, value in item.items() if name != FORKS}


def _is_list(key: Key) -> bool:
    return key.role == "snapshot" and key.sort.startswith("list/")


def _with_fence(key: Key, item: Item | None, fence: Item | None) -> Item | None:
    """A version list of the source, if any, with the refused runs and the epoch of a fence in the target."""
    version_list = {name: value for name, value in (item or {}).items() if name != DROPPED_EPOCH}
    runs, fence_runs = version_list.get(REFUSED), (fence or {}).get(REFUSED)
    if fence and isinstance(fence_runs, frozenset):
        runs = fence_runs | runs if isinstance(runs, frozenset) else fence_runs
        version_list |= item_key(key) | {"format": FORMAT, REFUSED: runs}
        version_list |= {DROPPED_EPOCH: fence[DROPPED_EPOCH]} if DROPPED_EPOCH in fence else {}
    return version_list or None


def _objects(tables: PagedTables, store: str, locations: Collection[str]) -> Iterator[ObjectId]:
    """The objects of a store: all in the tables' own locations, and the named ones in the locations of others."""
    for location in own_locations(tables, locations):
        yield from tables.objects.names(location, store_prefix(store))
    if others := other_locations(tables, locations):
        yield from sorted(each for each in _named_objects(tables, store) if each.location in others)


def _named_objects(tables: PagedTables, store: str) -> set[ObjectId]:
    """The objects that version lists and manifests name."""
    graph = VersionGraph(store, read_version_lists(tables, store).items())
    object_ids = {each for entry in graph.entries() for each in entry.object_ids(store)}
    low, high = MANIFEST_RANGE
    for key, item in tables.pages("snapshot", store_shard(store, 0), low, high):
        object_ids |= decode_manifest(store, bytes_of(key, item, "data")).objects(store)
    return object_ids


def _refuse(store: str, meta: StoreMeta, location: str) -> None:
    """Refuse a store with rows in another store, or in the copy's location."""
    if meta.dropped:
        raise ConfigurationError("this store is being dropped, so it cannot be copied", store=store)
    refuse_erasing(store, meta)
    if meta.origin:
        raise ConfigurationError(
            "this store is a fork, whose rows are in part those of its origin; copy the origin, and fork the copy",
            store=store,
            origin=meta.origin,
        )
    refuse_location(meta.objects, location, store=store)


def _refuse_other_state(target: Tables, namespace: str, target_metas: Mapping[str, Item]) -> list[str]:
    """The stores of a namespace in the target. Refuse stores that are not of the copy, and stores with forks."""
    stored_metas = find_stores(target, namespace)
    for store, item in stored_metas.items():
        if _unforked(item) != _unforked(target_metas.get(store, {})):
            raise other_state(store=store)
    refuse_forked(target, list(stored_metas))
    return list(stored_metas)


def _refuse_all_others(
    target: Tables, namespace: str, target_metas: Mapping[str, Item], checkpoints: CheckpointCopy
) -> None:
    """Refuse a target with other stores, or with checkpoint files unless it has this copy, whole or cut off.

    No run enters a namespace with stores of the copy, or with the mark of a copy.
    """
    copied_stores = _refuse_other_state(target, namespace, target_metas)
    if checkpoints.items and not copied_stores and not read_namespace(target, namespace).is_copied:
        checkpoints.refuse_others()


def _unforked(meta: Item) -> Item:
    return {name: value for name, value in meta.items() if name not in (FORKS, FORKED)}
