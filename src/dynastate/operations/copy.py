"""Copy of a namespace to other tables, in another Region or account too (docs/changing-a-query.md).

Items are copied as they are, so that all versions are there. Meta items go last, that of the first store at the very
end: until then neither a query nor a reader finds a store in the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dynastate.dynamodb.limits import WRITES_MAX
from dynastate.dynamodb.meter import Meter
from dynastate.dynamodb.tables import Tables, delete_all, get_apart
from dynastate.engine.catalog import of_namespace
from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.items import Item, item_bytes
from dynastate.format.keys import META, SPECS, Key, Role, meta_key, store_shard
from dynastate.format.meta import DROPPED, FORKS, ORIGIN, parse_meta
from dynastate.operations.drop import look
from dynastate.operations.scope import each_store, metered
from dynastate.operations.usage import StorageUsage, usage_of_stores
from dynastate.prices import Prices
from dynastate.progress import ProgressCallback, no_progress
from dynastate.settings import Settings

#: Sort keys before and after all others.
_FIRST: Final = "\x00"
_LAST: Final = "\U0010ffff"


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
    write_units: int
    read_units: int
    dollars: float


@dataclass(frozen=True)
class Copied:
    """A complete copy: items and bytes of the source, and the items that were written; those there before were not."""

    namespace: str
    stores: int
    items: int
    bytes: int
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
) -> CopyPlan:
    """Look whether a namespace can be copied. Nothing is changed. Prices are those of `settings`.

    Raises:
        ConfigurationError: it cannot, and why: its rows are elsewhere in part, or the target has other state.
    """
    meter = Meter()
    stores = of_namespace(source, namespace, meter).current
    metas = _metas(source, stores, meter)
    for store in stores:
        if store not in metas:
            raise ConfigurationError("this store was dropped meanwhile", store=store)
        _refuse(store, metas[store])
    _refuse_other_state(metas, _metas(target, stores, meter))
    usage = sum(usage_of_stores(source, stores, meter, progress).values(), StorageUsage())
    stored, items = usage.stored.bytes, usage.stored.items
    # A unit for each KB of an item, on average half of one more. Both ends are read when they are compared.
    write_units = stored // 1024 + items // 2 + len(stores)
    read_units = 3 * (stored // 4096 + len(stores))
    dollars = Prices.of(settings).nanodollars(write_units, read_units) / 1e9
    return CopyPlan(namespace, tuple(stores), items, stored, write_units, read_units, dollars)


def copy_stores(
    source: PagedTables,
    target: PagedTables,
    plan: CopyPlan,
    settings: Settings,
    progress: ProgressCallback = no_progress,
) -> Copied:
    """Copy what was planned.

    1. Copy every item but the meta items; one that is there as it should be is not written, and one that the source
    does not have is deleted. 2. Check that nothing wrote to the source meanwhile. 3. Compare both ends, item by item.
    4. Write the meta items, the first store's last. A crash at any step leaves a namespace that is not found; the same
    call completes it.

    Raises:
        ConfigurationError: a query writes to the source.
        CorruptStateError: both ends differ after the copy.
    """
    meter, stores = Meter(), plan.stores
    first = look(source, stores, meter)
    metas = _metas(source, stores, meter)
    _refuse_other_state(metas, _metas(target, stores, meter))

    def reported(begin: int) -> ProgressCallback:
        return lambda done, total: progress(begin + done, 2 * total)

    def copy(store: str, own: Meter) -> int:
        return _Store(source, target, store, parse_meta(store, metas[store]).shards, own).copy()

    written = sum(each_store(source, stores, metered(copy, meter), reported(0), until_failure=True).all())  # 1
    if look(source, stores, meter) != first:  # 2
        raise ConfigurationError(
            "a query or clean-up wrote to this namespace while it was copied: stop it, and copy again",
            namespace=plan.namespace,
        )

    def compare(store: str, own: Meter) -> tuple[int, int]:
        return _Store(source, target, store, parse_meta(store, metas[store]).shards, own).compare()

    found = each_store(source, stores, metered(compare, meter), reported(len(stores)), until_failure=True).all()  # 3
    there = _metas(target, stores, meter)
    for store in reversed(stores):  # 4
        if store not in there:
            target.put_new(meta_key(store), _kept(metas[store]), meter)
            written += 1
    dollars = Prices.of(settings).nanodollars(meter.write_units, meter.read_units) / 1e9
    return Copied(
        namespace=plan.namespace,
        stores=len(stores),
        items=sum(items for items, _ in found) + len(stores),
        bytes=sum(size for _, size in found) + sum(map(item_bytes, metas.values())),
        written=written,
        write_units=meter.write_units,
        read_units=meter.read_units,
        dollars=dollars,
    )


class _Store:
    """One store at both ends, without its meta item."""

    def __init__(self, source: PagedTables, target: PagedTables, store: str, shards: int, meter: Meter) -> None:
        self._source, self._target, self._meter = source, target, meter
        self._places = [(role, store_shard(store, shard)) for role in SPECS for shard in range(shards)]

    def copy(self) -> int:
        """Make the target as the source is; how many items were written. Two batches are in memory at most."""
        written = 0
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

    def compare(self) -> tuple[int, int]:
        """The number of items, and their bytes.

        Raises:
            CorruptStateError: they differ.
        """
        items = size = 0
        for key, item, there in self._pairs():
            if item is None or item != there:
                raise CorruptStateError(
                    "an item of the copy is not that of the source; something else writes to the target: copy again",
                    store_shard=key.store_shard,
                    item=key.sort,
                )
            items += 1
            size += item_bytes(item)
        return items, size

    def _pairs(self) -> Iterator[tuple[Key, Item | None, Item | None]]:
        """Every key of both ends, with its item at each; both come in the order of keys."""
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
                    yield key, item, there

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


def _refuse(store: str, meta: Item) -> None:
    """Refuse a store whose rows are elsewhere in part."""
    if DROPPED in meta:
        raise ConfigurationError("this store is being dropped, so it cannot be copied", store=store)
    if ORIGIN in meta:
        raise ConfigurationError(
            "this store is a fork, whose rows are in part those of its origin; copy the origin, and fork the copy",
            store=store,
            origin=str(meta[ORIGIN]),
        )
    if parse_meta(store, meta).objects:
        raise ConfigurationError(
            "large blocks of this store are in S3; a copy takes what is in DynamoDB only. Repartition the query, "
            "without the setting blocks, and copy its new namespace",
            store=store,
        )


def _refuse_other_state(metas: Mapping[str, Item], there: Mapping[str, Item]) -> None:
    """Refuse a target that has these stores, unless they are the copy itself."""
    for store, item in there.items():
        if _kept(item) != _kept(metas[store]):
            raise ConfigurationError(
                "the target has other state of this namespace, or a query has written to the copy; 'dynastate drop' it "
                "there, or choose other tables",
                store=store,
            )
