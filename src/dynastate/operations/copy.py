"""Copy of a namespace to other tables, in another Region or account too (docs/changing-a-query.md).

Items are copied as they are, so that all versions are there. Meta items go last, that of the first store at the very
end: until then neither a query nor a reader finds a store in the target. Objects of S3 go first, to another location,
and the items that name them name them there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from dynastate.dynamodb.limits import WRITES_MAX
from dynastate.dynamodb.meter import Meter
from dynastate.dynamodb.objects import delete_objects
from dynastate.dynamodb.tables import Tables, delete_all, get_apart
from dynastate.engine.catalog import of_namespace, stores_in_list
from dynastate.engine.namespaces import begin_list, list_store, read_namespace
from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.items import Item, item_bytes
from dynastate.format.keys import META, SPECS, Key, Role, meta_key, store_shard
from dynastate.format.meta import DROPPED, FORKS, ORIGIN, parse_meta
from dynastate.format.namespace import namespace_key
from dynastate.format.objects import OBJECT_BYTES, ObjectId, store_prefix
from dynastate.operations.drop import look
from dynastate.operations.relocation import Relocation, relocated_meta
from dynastate.operations.scope import each_store, metered
from dynastate.operations.usage import StorageUsage, usage_of_stores
from dynastate.prices import Prices
from dynastate.progress import ProgressCallback, no_progress
from dynastate.settings import Settings

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

    def pages(self, role: Role, store_shard: str, low: str, high: str, meter: Meter) -> Iterator[tuple[Key, Item]]:
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
    blocks: str = ""


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
    blocks: str = "",
) -> CopyPlan:
    """Look whether a namespace can be copied. Nothing is changed. Prices are those of `settings`.

    `blocks` is the location for the copies of objects, s3://bucket or s3://bucket/prefix; "": there are none.

    Raises:
        ConfigurationError: it cannot, and why: its rows are elsewhere in part, or the target has other state.
    """
    meter = Meter()
    stores = of_namespace(source, namespace, meter).current
    metas = _metas(source, stores, meter)
    for store in stores:
        if store not in metas:
            raise ConfigurationError("this store was dropped meanwhile", store=store)
        _refuse(store, metas[store], blocks)
    _refuse_other_state(metas, _metas(target, stores, meter), blocks)
    usage = sum(usage_of_stores(source, stores, meter, progress).values(), StorageUsage())
    stored, items = usage.stored.bytes, usage.stored.items
    objects = sum(
        1 for store in stores for _ in _objects(source, store, parse_meta(store, metas[store]).objects, meter)
    )
    # A unit for each KB of an item, on average half of one more, and one to list a store. Both ends are read when they
    # are compared.
    write_units = stored // 1024 + items // 2 + 2 * len(stores)
    read_units = 3 * (stored // 4096 + len(stores))
    dollars = Prices.of(settings).nanodollars(write_units, read_units, objects, 3 * objects) / 1e9
    object_bytes = usage.stored.object_bytes
    return CopyPlan(
        namespace, tuple(stores), items, stored, objects, object_bytes, write_units, read_units, dollars, blocks
    )


def copy_stores(
    source: PagedTables,
    target: PagedTables,
    plan: CopyPlan,
    settings: Settings,
    progress: ProgressCallback = no_progress,
) -> Copied:
    """Copy what was planned.

    1. Copy every object, then every item but the meta items; what is there as it should be is not written, and what the
    source does not have is deleted. 2. Check that nothing wrote to the source meanwhile. 3. Compare both ends.
    4. Write the record of the namespace's runs; list the stores and write their meta items, the first store's last. A
    crash at any step leaves a namespace that is not found; the same call completes it.

    Raises:
        ConfigurationError: a query writes to the source.
        CorruptStateError: both ends differ after the copy.
    """
    meter, stores = Meter(), plan.stores
    first = look(source, stores, meter)
    metas = _metas(source, stores, meter)
    _refuse_other_state(metas, _metas(target, stores, meter), plan.blocks)

    def reported(begin: int) -> ProgressCallback:
        return lambda done, total: progress(begin + done, 2 * total)

    def copy(store: str, own: Meter) -> int:
        return _Store(source, target, store, metas[store], plan.blocks, own).copy()

    written = sum(each_store(source, stores, metered(copy, meter), reported(0), until_failure=True).all())  # 1
    if look(source, stores, meter) != first:  # 2
        raise ConfigurationError(
            "a query or clean-up wrote to this namespace while it was copied: stop it, and copy again",
            namespace=plan.namespace,
        )

    def compare(store: str, own: Meter) -> Content:
        return _Store(source, target, store, metas[store], plan.blocks, own).compare()

    found = each_store(source, stores, metered(compare, meter), reported(len(stores)), until_failure=True).all()  # 3
    there = _metas(target, stores, meter)
    namespace_items = read_namespace(target, plan.namespace, meter)
    if namespace_items.record is None and not stores_in_list(target, namespace_items, meter):
        begin_list(target, plan.namespace, meter)
    record = namespace_key(plan.namespace)
    described = source.get([record], meter)
    if described and target.put_new(record, described[record], meter):
        written += 1
    for store in reversed(stores):  # 4
        if store not in there:
            list_store(target, store, meter)
            target.put_new(meta_key(store), relocated_meta(_kept(metas[store]), plan.blocks), meter)
            written += 1
    dollars = Prices.of(settings).nanodollars(meter.write_units, meter.read_units, meter.puts, meter.gets) / 1e9
    content = Content(*map(sum, zip(*found, strict=True)))
    return Copied(
        namespace=plan.namespace,
        stores=len(stores),
        items=content.items + len(stores) + len(described),
        bytes=content.bytes + sum(map(item_bytes, [*metas.values(), *described.values()])),
        objects=content.objects,
        object_bytes=content.object_bytes,
        written=written,
        write_units=meter.write_units,
        read_units=meter.read_units,
        dollars=dollars,
    )


class _Store:
    """One store at both ends, without its meta item."""

    def __init__(
        self, source: PagedTables, target: PagedTables, store: str, meta: Item, blocks: str, meter: Meter
    ) -> None:
        self._source, self._target, self._meter = source, target, meter
        self._store, self._blocks = store, blocks
        parsed = parse_meta(store, meta)
        self._places = [(role, store_shard(store, shard)) for role in SPECS for shard in range(parsed.shards)]
        self._locations = parsed.objects

    def copy(self) -> int:
        """Make the target as the source is; how many items and objects were written. Two batches are in memory."""
        written = self._copy_objects()
        puts: list[tuple[Key, Item]] = []
        gone: list[Key] = []
        for key, item, there in self._pairs():
            if item is None:
                gone.append(key)
            elif item != there:
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
        for place in _objects(self._source, self._store, self._locations, self._meter):
            data = self._read(self._source, place)
            if data is None or data != self._read(self._target, self._moved(place)):
                raise CorruptStateError(
                    "an object of the copy is not that of the source; something else writes to the target: copy again",
                    object=place.name,
                    location=self._blocks,
                )
            objects += 1
            object_bytes += len(data)
        for key, item, there in self._pairs():
            if item is None or item != there:
                raise CorruptStateError(
                    "an item of the copy is not that of the source; something else writes to the target: copy again",
                    store_shard=key.store_shard,
                    item=key.sort,
                )
            items += 1
            size += item_bytes(item)
        return Content(items, size, objects, object_bytes)

    def _copy_objects(self) -> int:
        """Make the objects of the target as those of the source are; how many were written. One is in memory."""
        if not self._locations:
            return 0
        written = 0
        names = self._target.objects.names(self._blocks, store_prefix(self._store), self._meter)
        gone = set(names)
        for place in _objects(self._source, self._store, self._locations, self._meter):
            data, to = self._read(self._source, place), self._moved(place)
            if data is not None and not (to in gone and self._read(self._target, to) == data):
                self._target.objects.put(to, data, self._meter)
                written += 1
            gone.discard(to)
        delete_objects(self._target.objects, sorted(gone), self._meter)
        return written

    def _moved(self, place: ObjectId) -> ObjectId:
        return ObjectId(self._blocks, place.name)

    def _read(self, tables: Tables, place: ObjectId) -> bytes | None:
        return tables.objects.get(place, 0, OBJECT_BYTES, self._meter)

    def _pairs(self) -> Iterator[tuple[Key, Item | None, Item | None]]:
        """Every key of both ends, with its item as it should be, and as it is; both come in the order of keys."""
        relocation = Relocation(self._store, self._blocks) if self._locations else None
        for role, shard in self._places:
            sides = [
                iter(tables.pages(role, shard, _FIRST, _LAST, self._meter)) for tables in (self._source, self._target)
            ]
            ahead = [next(side, None) for side in sides]
            while any(ahead):
                sort = min(each[0].sort.encode() for each in ahead if each)
                here = [each if each and each[0].sort.encode() == sort else None for each in ahead]
                key = next(each[0] for each in here if each)
                for number, each in enumerate(here):
                    if each:
                        ahead[number] = next(sides[number], None)
                if key.sort != META or role != "snapshot":
                    item, there = (_kept(each[1]) if each else None for each in here)
                    yield key, relocation.item(key, item) if relocation and item else item, there

    def _write(self, puts: list[tuple[Key, Item]]) -> int:
        count = len(puts)
        if puts:
            self._target.write(puts, self._meter)
            puts.clear()
        return count

    def _delete(self, keys: list[Key]) -> None:
        delete_all(self._target, keys, self._meter)
        keys.clear()


def _metas(tables: Tables, stores: Sequence[str], meter: Meter) -> dict[str, Item]:
    """The meta items of stores that have one."""
    names = {meta_key(store): store for store in stores}
    return {names[key]: item for key, item in get_apart(tables, list(names), meter).items()}


def _kept(item: Item) -> Item:
    """An item without its pins: forks stay in the source."""
    return {name: value for name, value in item.items() if name != FORKS}


def _objects(tables: Tables, store: str, locations: Collection[str], meter: Meter) -> Iterator[ObjectId]:
    """The objects of a store, in all locations."""
    for location in sorted(locations):
        yield from tables.objects.names(location, store_prefix(store), meter)


def _refuse(store: str, meta: Item, blocks: str) -> None:
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
    if locations and blocks in ("", *locations):
        raise ConfigurationError(
            "large blocks of this store are in S3; give the copy another location there: --to-blocks s3://bucket/prefix",
            store=store,
            locations=",".join(sorted(locations)),
        )


def _refuse_other_state(metas: Mapping[str, Item], there: Mapping[str, Item], blocks: str) -> None:
    """Refuse a target that has these stores, unless they are the copy itself."""
    for store, item in there.items():
        if _kept(item) != relocated_meta(_kept(metas[store]), blocks):
            raise ConfigurationError(
                "the target has other state of this namespace, or a query has written to the copy; 'dynastate drop' it "
                "there, or choose other tables",
                store=store,
            )
