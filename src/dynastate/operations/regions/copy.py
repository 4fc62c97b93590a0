"""Copy of a namespace to other tables, in another Region or account too (docs/changing-a-query.md).

Items are copied as they are, so that all versions are there. Meta items go last, that of the first store at the very
end: until then no reader finds a store in the target; and the record of the namespace says that it is being copied, so
that no run enters. Objects of S3 go first, to another location, and the items that name them name them there.

Fences of a query that was dropped in the target stay, as parts of the lists that are copied there: a commit of that
query may be late. Epochs are raised above its newest, as those of a new store would be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from dynastate import runtime
from dynastate.engine.catalog import read_version_lists, stores_in_list, whole_namespace
from dynastate.engine.namespaces import list_store, read_namespace
from dynastate.engine.updates import unchanged
from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.graph import VersionGraph
from dynastate.format.items import FORMAT, Item, item_bytes, item_key
from dynastate.format.keys import MANIFEST_RANGE, META, SPECS, Key, Role, meta_key, store_shard, version_list_key
from dynastate.format.manifest import decode_manifest
from dynastate.format.meta import DELETING, DROPPED, FORKED, FORKS, ORIGIN, parse_meta
from dynastate.format.namespace import COPY, namespace_item, namespace_key
from dynastate.format.objects import OBJECT_BYTES, ObjectId, store_prefix
from dynastate.format.version_list import DROPPED_EPOCH, REFUSED, VERSIONS
from dynastate.operations.cost.usage import StorageUsage, usage_of_stores
from dynastate.operations.lifecycle.drop import look
from dynastate.operations.pins import meta_or_empty, refuse_forked, refuse_forks
from dynastate.operations.regions.relocation import Relocation, bytes_of
from dynastate.operations.scope import each_store
from dynastate.prices import Prices
from dynastate.progress import ProgressCallback, no_progress
from dynastate.settings import Settings
from dynastate.storage.limits import WRITES_MAX
from dynastate.storage.meter import Meter
from dynastate.storage.tables import (
    Tables,
    delete_all,
    delete_own_objects,
    get_apart,
    other_locations,
    own_location,
    own_locations,
)

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
    """A copy that is possible, and its cost by what the version lists say: on both ends, with the comparison."""

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


@dataclass(frozen=True)
class Copied:
    """A complete copy: items, objects and their bytes at the source, and how many of them were written.

    Those that were there before were not. Items that list stores are not counted.
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


def plan_copy(
    source: PagedTables,
    target: PagedTables,
    namespace: str,
    settings: Settings,
    progress: ProgressCallback = no_progress,
    *,
    objects: str = "",
) -> CopyPlan:
    """Look whether a namespace can be copied. Nothing is changed. Prices are those of `settings`.

    `objects` is the setting of queries on the target; "": no objects can be copied.

    Raises:
        ConfigurationError: it cannot, and why: its rows are elsewhere in part, or the target has other state.
        VersionMissingError: its first batch is not whole.
    """
    source, target = source.metered(Meter()), target.metered(Meter())
    location = own_location(target, objects)
    stores = whole_namespace(source, namespace)
    metas = _metas(source, stores, location)
    _refuse_other_state(target, namespace, _relocated(target, metas, location))
    usage = sum(usage_of_stores(source, stores, progress).values(), StorageUsage())
    stored, items = usage.stored.bytes, usage.stored.items
    number_of_objects = sum(
        1 for store in stores for _ in _objects(source, store, parse_meta(store, metas[store]).objects)
    )
    # A unit for each KB of an item, on average half of one more, and one to list a store. Both ends are read when they
    # are compared.
    write_units = stored // 1024 + items // 2 + 2 * len(stores)
    read_units = 3 * (stored // 4096 + len(stores))
    dollars = Prices.of(settings).nanodollars(write_units, read_units, number_of_objects, 3 * number_of_objects) / 1e9
    sizes = items, stored, number_of_objects, usage.stored.object_bytes
    return CopyPlan(namespace, tuple(stores), *sizes, write_units, read_units, dollars, location)


def copy_stores(
    source: PagedTables,
    target: PagedTables,
    plan: CopyPlan,
    settings: Settings,
    progress: ProgressCallback = no_progress,
) -> Copied:
    """Copy what was planned.

    1. List the stores in the target, and mark the record of the namespace there: from then on no run enters. Delete
    the meta items of an earlier copy: from then on no fork begins. 2. Copy every object, then every item but the meta
    items; what is there as it should be is not written, and what the source does not have is deleted. 3. Check that
    nothing wrote to the source meanwhile. 4. Compare both ends. 5. Write the meta items, the first store's last; then
    remove the mark. A crash at any step leaves a namespace that is not found; the same call completes it, and a drop
    deletes it.

    Raises:
        ConfigurationError: a query writes to the source, or has begun in the target; and as for `plan_copy`.
        CorruptStateError: both ends differ after the copy.
    """
    meter, stores, namespace = Meter(), plan.stores, plan.namespace
    source, target = source.metered(meter), target.metered(meter)
    first = look(source, stores)
    metas = _metas(source, stores, plan.location)
    record_key = namespace_key(namespace)
    record_before = source.get([record_key]).get(record_key)
    record = record_before or _record_of(namespace, stores[0], metas[stores[0]])
    _refuse_other_state(target, namespace, _relocated(target, metas, plan.location))
    _list_stores(target, namespace, stores)
    is_recorded = record == target.get([record_key]).get(record_key)
    mark = _Mark(target, record)  # 1
    wanted = _relocated(target, metas, plan.location)
    there = _refuse_other_state(target, namespace, wanted)
    for store in there:
        _delete_meta(target, store, wanted[store])

    def reported(begin: int) -> ProgressCallback:
        return lambda done, total: progress(begin + done, 2 * total)

    def of(view: PagedTables, store: str) -> _Store:
        ends = view, target.metered(view.meter)
        return _Store(ends, store, (metas[store], wanted[store]), plan.location, mark)

    def copy(view: PagedTables, store: str) -> int:
        return of(view, store).copy()

    def compare(view: PagedTables, store: str) -> Content:
        return of(view, store).compare()

    written = sum(each_store(source, stores, copy, reported(0), until_failure=True).all())  # 2
    if (  # 3
        look(source, stores) != first
        or source.get([record_key]).get(record_key) != record_before
        or tuple(whole_namespace(source, namespace)) != stores
    ):
        raise ConfigurationError(
            "a query or clean-up wrote to this namespace while it was copied: stop it, and copy again",
            namespace=namespace,
        )
    found = each_store(source, stores, compare, reported(len(stores)), until_failure=True).all()  # 4
    mark.check(target)
    for store in reversed(stores):  # 5
        _put_meta(target, store, wanted[store])
    mark.remove(target)
    dollars = Prices.of(settings).nanodollars(meter.write_units, meter.read_units, meter.puts, meter.gets) / 1e9
    content = Content(*map(sum, zip(*found, strict=True)))
    return Copied(
        namespace=namespace,
        stores=len(stores),
        items=content.items + len(stores) + 1,
        bytes=content.bytes + sum(map(item_bytes, [*metas.values(), record])),
        objects=content.objects,
        object_bytes=content.object_bytes,
        written=written + len(stores) - len(there) + (not is_recorded),
        write_units=meter.write_units,
        read_units=meter.read_units,
        dollars=dollars,
    )


class _Mark:
    """The mark of a copy in the record of the namespace in the target: while it is there no run enters.

    The mark of a copy that was cut off, or still runs, is replaced: that copy is over.
    """

    def __init__(self, target: Tables, record: Item) -> None:
        """Set the mark.

        Raises:
            ConfigurationError: a run has entered there.
        """
        self._record = record
        self._key = namespace_key(str(record["namespace"]))
        self._marked = record | {DROPPED: DELETING, COPY: str(runtime.new_id())}
        there = self._now(target)
        if not there:
            target.put_new(self._key, self._marked)
        elif there == record or COPY in there:
            before: Item = {name: there[name] for name in ("epochs", COPY) if name in there}
            target.put_over(self._key, self._marked, unchanged(before))
        if self._now(target) != self._marked:
            raise _other_state(namespace=self._key.namespace)

    def check(self, target: Tables) -> None:
        """Refuse to go on if this copy is over."""
        if self._now(target) != self._marked:
            raise self._is_over()

    def remove(self, target: Tables) -> None:
        """Let runs enter, if this copy is not over."""
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

    `metas`: that of the source, and as it will be in the target.
    """

    def __init__(
        self,
        ends: tuple[PagedTables, PagedTables],
        store: str,
        metas: tuple[Item, Item],
        location: str,
        mark: _Mark,
    ) -> None:
        (self._source, self._target), self._mark = ends, mark
        self._store, self._location = store, location
        parsed, wanted = (parse_meta(store, meta) for meta in metas)
        self._raised = wanted.epoch - parsed.epoch
        self._places = [(role, store_shard(store, shard)) for role in SPECS for shard in range(parsed.shards)]
        self._locations = parsed.objects

    def copy(self) -> int:
        """Make the target as the source is; how many items and objects were written. Two batches are in memory."""
        written = self._copy_objects()
        puts: list[tuple[Key, Item]] = []
        gone: list[Key] = []
        for key, item, there in self._pairs():
            if item == there:
                continue
            if _is_list(key):
                written += self._write_list(key, item, there)
            elif item is None:
                gone.append(key)
            else:
                puts.append((key, item))
                if len(puts) == WRITES_MAX:
                    written += self._write(puts)
            if len(gone) == WRITES_MAX:
                self._delete(gone)
        self._delete(gone)
        return written + self._write(puts)

    def compare(self) -> Content:
        """Compare both ends, to the byte.

        Raises:
            CorruptStateError: they differ.
        """
        items = size = objects = object_bytes = 0
        for place in _objects(self._source, self._store, self._locations):
            data = self._read(self._source, place)
            if data != self._read(self._target, self._moved(place)):
                raise CorruptStateError(
                    "an object of the copy is not that of the source; something else writes to the target: copy again",
                    object=place.name,
                    location=self._location,
                )
            if data is not None:  # else clean-up of the other tables has deleted it
                objects += 1
                object_bytes += len(data)
        for key, item, there in self._pairs():
            if item is None or item != there:
                raise _differs(key)
            items += 1
            size += item_bytes(item)
        return Content(items, size, objects, object_bytes)

    def _copy_objects(self) -> int:
        """Make the objects of the target as those of the source are; how many were written. One is in memory."""
        if not self._locations:
            return 0
        written = 0
        names = self._target.objects.names(self._location, store_prefix(self._store))
        gone = set(names)
        for place in _objects(self._source, self._store, self._locations):
            data, to = self._read(self._source, place), self._moved(place)
            if data is None:
                continue
            if not (to in gone and self._read(self._target, to) == data):
                self._target.objects.put(to, data)
                written += 1
            gone.discard(to)
        if gone:
            self._mark.check(self._target)
            delete_own_objects(self._target, sorted(gone))
        return written

    def _moved(self, place: ObjectId) -> ObjectId:
        return ObjectId(self._location, place.name)

    def _read(self, tables: Tables, place: ObjectId) -> bytes | None:
        return tables.objects.get(place, 0, OBJECT_BYTES)

    def _pairs(self) -> Iterator[tuple[Key, Item | None, Item | None]]:
        """Every key of both ends, with its item as it should be, and as it is; both come in the order of keys."""
        location = self._location if self._locations else ""
        shard = store_shard(self._store, 0)
        manifests = self._source.pages("snapshot", shard, *MANIFEST_RANGE) if location else ()
        relocation = Relocation(self._store, location, self._raised, manifests)
        for role, shard in self._places:
            sides = [iter(tables.pages(role, shard, _FIRST, _LAST)) for tables in (self._source, self._target)]
            ahead = [next(side, None) for side in sides]
            while any(ahead):
                sort = min(each[0].sort.encode() for each in ahead if each)
                here = [each if each and each[0].sort.encode() == sort else None for each in ahead]
                key = next(each[0] for each in here if each)
                for number, each in enumerate(here):
                    if each:
                        ahead[number] = next(sides[number], None)
                if key.sort != META or role != "snapshot":
                    item, there = (each[1] if each else None for each in here)
                    wanted = item and relocation.item(key, _kept(item))
                    yield key, _with_fence(key, wanted, there) if _is_list(key) else wanted, there

    def _write(self, puts: list[tuple[Key, Item]]) -> int:
        count = len(puts)
        if puts:
            self._mark.check(self._target)
            self._target.write(puts)
            puts.clear()
        return count

    def _write_list(self, key: Key, item: Item | None, there: Item | None) -> int:
        """Write a version list, or none, if what is there is as it was read: a commit of a dropped query may be late.

        Raises:
            CorruptStateError: it is not.
        """
        before: Item = {name: there[name] for name in (VERSIONS, REFUSED, FORKS) if name in there} if there else {}
        self._mark.check(self._target)
        if item is None:
            done = self._target.delete_over(key, unchanged(before))
        elif there is None:
            done = self._target.put_new(key, item)
        else:
            done = self._target.put_over(key, item, unchanged(before))
        if not done and self._target.get([key]).get(key) != item:  # else only the answer was lost
            raise _differs(key)
        return int(item is not None)

    def _delete(self, keys: list[Key]) -> None:
        if keys:
            self._mark.check(self._target)
            delete_all(self._target, keys)
            keys.clear()


def _metas(source: Tables, stores: Sequence[str], location: str) -> dict[str, Item]:
    """The meta items of the stores to copy. Refuse a store that cannot be copied."""
    found = get_apart(source, [meta_key(store) for store in stores])
    for store in stores:
        if meta_key(store) not in found:
            raise ConfigurationError("this store was dropped meanwhile", store=store)
        _refuse(store, found[meta_key(store)], location)
    return {store: found[meta_key(store)] for store in stores}


def _relocated(target: Tables, metas: Mapping[str, Item], location: str) -> dict[str, Item]:
    """The meta items as they should be in the target: epochs are above those of stores that were dropped there."""
    fences = get_apart(target, [version_list_key(store, 1) for store in metas])

    def relocated(store: str, meta: Item) -> Item:
        dropped = fences.get(version_list_key(store, 1), {}).get(DROPPED_EPOCH)
        raised = dropped if isinstance(dropped, int) else 0
        return Relocation(store, location, raised).meta(_kept(meta))

    return {store: relocated(store, meta) for store, meta in metas.items()}


def _record_of(namespace: str, store: str, meta: Item) -> Item:
    """A record in place of one that the source does not have."""
    parsed = parse_meta(store, meta)
    return namespace_item(namespace, parsed.last_run, parsed.query, parsed.location)


def _list_stores(target: Tables, namespace: str, stores: Sequence[str]) -> None:
    for store in sorted({*stores}.difference(read_namespace(target, namespace).listed)):
        list_store(target, store)


def _put_meta(target: Tables, store: str, meta: Item) -> None:
    is_new = target.put_new(meta_key(store), meta)
    if not is_new and meta_or_empty(target, store) != meta:  # else only the answer was lost
        raise _other_state(store=store)


def _delete_meta(target: Tables, store: str, meta: Item) -> None:
    """Delete the meta item of an earlier copy, if no fork has begun there meanwhile."""
    if not target.delete_over(meta_key(store), unchanged({"epochs": meta["epochs"]})):
        now = meta_or_empty(target, store)
        refuse_forks(store, now)
        if now:  # else only the answer was lost
            raise _other_state(store=store)


def _kept(item: Item) -> Item:
    """An item without its pins: forks stay in the source."""
    return {name: value for name, value in item.items() if name != FORKS}


def _is_list(key: Key) -> bool:
    return key.role == "snapshot" and key.sort.startswith("list/")


def _with_fence(key: Key, item: Item | None, there: Item | None) -> Item | None:
    """A version list of the source, or none, with what one in the target says of a query that was dropped there."""
    own = {name: value for name, value in (item or {}).items() if name != DROPPED_EPOCH}
    refused, others = own.get(REFUSED), (there or {}).get(REFUSED)
    if there and isinstance(others, frozenset):
        refused = others | refused if isinstance(refused, frozenset) else others
        own |= item_key(key) | {"format": FORMAT, REFUSED: refused}
        own |= {DROPPED_EPOCH: there[DROPPED_EPOCH]} if DROPPED_EPOCH in there else {}
    return own or None


def _differs(key: Key) -> CorruptStateError:
    return CorruptStateError(
        "an item of the copy is not that of the source; something else writes to the target: copy again",
        store_shard=key.store_shard,
        item=key.sort,
    )


def _objects(tables: PagedTables, store: str, locations: Collection[str]) -> Iterator[ObjectId]:
    """The objects of a store: all in the tables' own locations, and those that it names in the locations of others."""
    for location in own_locations(tables, locations):
        yield from tables.objects.names(location, store_prefix(store))
    if others := other_locations(tables, locations):
        yield from sorted(place for place in _named_objects(tables, store) if place.location in others)


def _named_objects(tables: PagedTables, store: str) -> set[ObjectId]:
    """The objects that version lists and manifests name."""
    graph = VersionGraph(store, read_version_lists(tables, store).items())
    found = {place for entry in graph.entries() for place in entry.object_ids(store)}
    for key, item in tables.pages("snapshot", store_shard(store, 0), *MANIFEST_RANGE):
        found |= decode_manifest(store, bytes_of(key, item, "data")).objects(store)
    return found


def _refuse(store: str, meta: Item, location: str) -> None:
    """Refuse a store whose rows are elsewhere in part."""
    if DROPPED in meta:
        raise ConfigurationError("this store is being dropped, so it cannot be copied", store=store)
    if ORIGIN in meta:
        raise ConfigurationError(
            "this store is a fork, whose rows are in part those of its origin; copy the origin, and fork the copy",
            store=store,
            origin=str(meta[ORIGIN]),
        )
    locations = parse_meta(store, meta).objects
    if locations and (not location or location in locations):
        raise ConfigurationError(
            "large parts of this store are in S3; give the copy another location there: --to-objects s3://bucket/prefix",
            store=store,
            locations=",".join(sorted(locations)),
        )


def _refuse_other_state(target: Tables, namespace: str, wanted: Mapping[str, Item]) -> list[str]:
    """The stores of a namespace in the target. Refuse others than of the copy itself, and those that have forks."""
    there = stores_in_list(target, read_namespace(target, namespace))
    for store, item in there.items():
        if _unforked(item) != _unforked(wanted.get(store, {})):
            raise _other_state(store=store)
    refuse_forked(target, list(there))
    return list(there)


def _unforked(meta: Item) -> Item:
    return {name: value for name, value in meta.items() if name not in (FORKS, FORKED)}


def _other_state(**of: object) -> ConfigurationError:
    return ConfigurationError(
        "the target has other state of this namespace, or a query has begun there, or written to the copy; 'dynastate "
        "drop' it there, or choose other tables",
        **of,
    )
