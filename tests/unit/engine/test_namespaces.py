"""The list of a namespace's stores: what finding them costs, and that each store which was made is in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from dynastate.engine import catalog
from dynastate.engine.catalog import QueryStores, every_store, find_stores, of_namespace
from dynastate.engine.engine import Engine
from dynastate.engine.namespaces import list_store, read_namespace
from dynastate.errors import ConfigurationError, CorruptStateError, UnavailableError, VersionMissingError
from dynastate.format.items import FORMAT, Item, item_bytes, item_key
from dynastate.format.keys import Attempt, Key, meta_key
from dynastate.format.namespace import namespace_key, store_key
from dynastate.operations.lifecycle.drop import drop_stores, refuse_made_meanwhile
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.operations.regions.copy import copy_stores, plan_copy
from dynastate.settings import Settings
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables
from tests.support.faults import Dying, FailingTables
from tests.support.memory_tables import MemoryTables
from tests.support.store_builder import StoreBuilder, counted, user

#: A namespace as long as those that have no name.
LONG = "0123456789abcdef" * 2
JOIN = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue")
MINE = [f"mine/0/{partition}/default" for partition in range(3)]

Find = Callable[[Tables, str], list[str]]


def begin(tables: Tables, stores: Iterable[str], run: str = "a run", query: str = "a query") -> None:
    """Commit a first batch, with one row a store."""
    with closing(Engine(tables, Settings())) as engine:
        for store in stores:
            builder = StoreBuilder(engine, store, run=run, query=query)
            builder.commit((user("x"), counted(1)), by=Attempt(uuid4().bytes))


def metas(tables: MemoryTables, namespace: str = "mine") -> list[str]:
    keys = [key for key in tables.items if key.sort == "meta" and key.store_shard.startswith(f"{namespace}/")]
    return sorted(key.store_shard.removesuffix("#0") for key in keys)


@pytest.mark.parametrize("namespace", ["orders", LONG], ids=["named", "unnamed"])
@pytest.mark.parametrize("count", [1, 2, 50, 200])
def test_the_list_costs_a_read_unit_and_one_for_50_stores(memory: MemoryTables, count: int, namespace: str) -> None:
    """Beside the meta items of these stores, one unit each; and the record is among what was read."""
    stores = [f"{namespace}/0/{partition}/default" for partition in range(count)]
    begin(memory, stores)
    meter = Meter()
    assert of_namespace(memory.metered(meter), namespace) == QueryStores(stores, [])
    assert meter.read_units <= 1 + count / 50 + count
    assert meter.requests == 1 + -(-count // 100)


def test_names_of_joins_fit_too(memory: MemoryTables) -> None:
    """The longest names that Spark gives, in a namespace without a name: by operator, partition and name."""
    stores = [f"{LONG}/0/{partition}/{name}" for partition in range(50) for name in JOIN]
    begin(memory, stores)
    meter = Meter()
    assert read_namespace(memory.metered(meter), LONG).listed == stores
    assert meter.read_units <= 1 + len(stores) / 50
    assert max(item_bytes(memory.items[store_key(store)]) for store in stores) <= 95
    assert catalog.matching(memory, f"{LONG}/0/*/{JOIN[1]}") == stores[1::4]


def test_a_reader_reads_what_it_opens(memory: MemoryTables) -> None:
    """Finding the two partitions of an operator takes the list and their meta items; of 50 operators no others."""
    begin(memory, [f"mine/{operator}/{partition}/default" for operator in range(10) for partition in range(2)])
    meter = Meter()
    assert catalog.matching(memory.metered(meter), "mine/0") == MINE[:2]
    assert (meter.requests, meter.read_units) == (2, 3)
    second = Meter()
    assert catalog.matching(memory.metered(second), "mine/9") == ["mine/9/0/default", "mine/9/1/default"]
    assert second.read_units == 4  # and partition 0 of operator 0


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("how", ["batch", "fork", "copy"])
def test_a_crash_anywhere_leaves_no_store_that_is_not_listed(how: str, *, applied: bool) -> None:
    """Every store that has a meta item is found, after a crash at any request that makes stores, and when it ended."""
    for last in range(1_000):
        memory, target = MemoryTables(), MemoryTables()
        if how != "batch":
            begin(memory, MINE)
        dying = Dying(target if how == "copy" else memory, last, applied=applied)
        with suppress(UnavailableError):
            if how == "batch":
                begin(dying, MINE)
            elif how == "fork":
                fork_namespace(dying, "mine", "forked", None)
            else:
                copy_stores(memory, dying, plan_copy(memory, target, "mine", Settings()), Settings())
        tables, namespace = (target, "mine") if how == "copy" else (memory, "forked" if how == "fork" else "mine")
        assert set(read_namespace(tables, namespace).listed) >= set(metas(tables, namespace))
        assert list(find_stores(tables, namespace)) == metas(tables, namespace)
        if dying.left >= 0:
            assert len(metas(tables, namespace)) == len(MINE)
            return
    raise AssertionError("it never ends")


def test_a_late_request_makes_no_store_that_is_not_listed(memory: MemoryTables) -> None:
    """A store that is made again after the namespace was dropped, by a request of long ago: readers find it."""
    begin(memory, MINE)
    late = {key: item for key, item in memory.items.items() if key.sort == "meta"}
    drop_stores(memory, every_store(memory, "mine"))
    refuse_made_meanwhile(memory, "mine")
    assert namespace_key("mine") not in memory.items
    begin(memory, MINE[:1], run="another run", query="another query")
    for key, item in late.items():
        assert memory.put_new(key, item) == (key != meta_key(MINE[0]))
    assert list(find_stores(memory, "mine")) == MINE
    assert of_namespace(memory, "mine") == QueryStores(MINE[:1], MINE[1:])


def test_a_store_that_was_dropped_is_listed_and_not_found(memory: MemoryTables) -> None:
    """Nor is one that a drop has left a part of; one that was only begun is no store of the query either."""
    begin(memory, MINE)
    drop_stores(memory, MINE[1:])
    list_store(memory, "mine/1/0/default")
    assert read_namespace(memory, "mine").listed == [*MINE, "mine/1/0/default"]
    assert every_store(memory, "mine") == MINE[:1]
    assert catalog.matching(memory, "mine/0") == MINE[:1]


def test_a_store_that_lost_its_meta_item_is_found_by_its_versions(memory: MemoryTables) -> None:
    """`stores`, `adopt` and `drop` look at what is listed, with a Query for each store without a meta item."""
    begin(memory, MINE)
    del memory.items[meta_key(MINE[2])]
    meter = Meter()
    assert every_store(memory.metered(meter), "mine") == MINE
    # The list, three meta items, a Query. What the list may have lost: a Query and the meta item of partition 3, and
    # those of five stores of operator 1. The lost meta item again, which may have come meanwhile.
    assert meter.read_units == 1 + 3 + 1 + 2 + 5 + 1


def test_stores_without_partition_0_are_being_begun(memory: MemoryTables) -> None:
    """A first batch commits partitions in any order: readers find none, and a drop all."""
    begin(memory, MINE[1:])
    with pytest.raises(ConfigurationError, match="no store of this namespace"):
        of_namespace(memory, "mine")
    with pytest.raises(VersionMissingError, match="not committed in all partitions"):
        catalog.matching(memory, "mine/0")
    assert every_store(memory, "mine") == MINE[1:]
    begin(memory, MINE)
    assert of_namespace(memory, "mine").current == MINE


class _Overtaken(FailingTables):
    """Tables with something that happens after the first Query of a namespace."""

    def __init__(self, tables: Tables, meanwhile: Any) -> None:
        super().__init__(tables)
        self._to_come = [meanwhile]

    def query(self, role: Any, store_shard: str, low: str, high: str) -> list[tuple[Key, Item]]:
        pairs: list[tuple[Key, Item]] = super().query(role, store_shard, low, high)
        if store_shard.endswith("/#") and self._to_come:
            self._to_come.pop()()
        return pairs


@pytest.mark.parametrize("of", ["of_namespace", "select_stores"])
def test_a_query_that_begins_meanwhile_is_not_an_earlier_one(memory: MemoryTables, of: str) -> None:
    """The record is read before the meta items: a run that has entered both since is looked up."""
    begin(memory, MINE, query="first")
    second_begin = partial(begin, memory, MINE[:2], run="another run", query="second")
    pattern = {"of_namespace": "mine", "select_stores": "mine/0"}[of]
    query_stores = getattr(catalog, of)(_Overtaken(memory, second_begin), pattern)
    assert query_stores == QueryStores(MINE[:2], MINE[2:])


def test_a_drop_beside_a_reader(memory: MemoryTables) -> None:
    """Stores that are gone since the list was read are not found, and those made since may be."""
    begin(memory, MINE)

    def drop_and_begin() -> None:
        drop_stores(memory, MINE)
        begin(memory, MINE[:2], run="another run", query="second")

    tables = _Overtaken(memory, drop_and_begin)
    assert of_namespace(tables, "mine") == QueryStores(MINE[:2], [])


def test_a_list_of_a_newer_format_is_refused(memory: MemoryTables) -> None:
    begin(memory, MINE)
    memory.items[store_key(MINE[1])]["format"] = FORMAT + 1
    with pytest.raises(CorruptStateError, match=f"format {FORMAT + 1}.*upgrade dynastate"):
        find_stores(memory, "mine")


def test_a_list_that_names_no_store_is_corrupt(memory: MemoryTables) -> None:
    begin(memory, MINE)
    strange = store_key(MINE[0])._replace(sort="store/0/default")
    memory.items[strange] = item_key(strange) | {"format": FORMAT}
    with pytest.raises(CorruptStateError, match="names none"):
        find_stores(memory, "mine")


def test_the_last_partition_that_lost_its_meta_item(memory: MemoryTables) -> None:
    """It is not left out without a word; one that was only listed is, as after a drop of more partitions."""
    begin(memory, MINE[:2])
    list_store(memory, MINE[2])
    assert catalog.matching(memory, "mine/0") == MINE[:2]
    assert catalog.whole_namespace(memory, "mine") == MINE[:2]
    begin(memory, MINE[2:])
    del memory.items[meta_key(MINE[2])]
    for find in (
        lambda: catalog.matching(memory, "mine/0"),
        lambda: catalog.whole_namespace(memory, "mine"),
        lambda: fork_namespace(memory, "mine", "other", None),
    ):
        with pytest.raises(CorruptStateError, match="its meta item is lost"):
            find()


@pytest.mark.parametrize(("find", "what"), [(catalog.matching, "mine/0"), (catalog.whole_namespace, "mine")])
def test_a_partition_is_begun_after_the_meta_items_were_read(memory: MemoryTables, find: Find, what: str) -> None:
    """Seed 5716473537: it has versions, and had no meta item. It is not taken for a damaged one."""
    begin(memory, MINE[:2])
    list_store(memory, MINE[2])
    to_come: list[Callable[[], None]] = [partial(begin, memory, MINE[2:]), lambda: None]
    overtaken = FailingTables(memory, lambda verb: to_come.pop()() if verb == "query" else None)
    with pytest.raises(VersionMissingError, match="not committed in all partitions of this operator yet"):
        find(overtaken, what)
    assert find(memory, what) == MINE


def test_a_fork_of_a_part_of_the_partitions_is_refused(memory: MemoryTables) -> None:
    """The first batch has not come to the partition in between."""
    begin(memory, [MINE[0], MINE[2]])
    with pytest.raises(VersionMissingError, match="not committed in all partitions of this operator yet"):
        fork_namespace(memory, "mine", "other", None)


def test_a_query_that_starts_over_in_the_last_partition(memory: MemoryTables) -> None:
    """Its first task has committed there: what is left of the query before is not taken for all of it."""
    begin(memory, MINE)
    begin(memory, MINE[2:], run="next", query="other")
    for find, what in ((catalog.matching, "mine/0"), (catalog.whole_namespace, "mine")):
        with pytest.raises(VersionMissingError, match="not committed in all partitions of this operator yet"):
            find(memory, what)
