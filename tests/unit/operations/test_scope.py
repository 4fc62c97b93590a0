"""Work on all stores of a scope: which stores those are, several at once, failures, and Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from dynastate.engine.catalog import QueryStores, every_store, of_namespace
from dynastate.engine.namespaces import list_store, place_of
from dynastate.errors import ConfigurationError, CorruptStateError, UnavailableError
from dynastate.format.keys import meta_key
from dynastate.format.namespace import store_key
from dynastate.operations.cost.usage import usage_of_namespace
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.operations.regions.copy import plan_copy
from dynastate.operations.scope import STORES_AT_ONCE, each_store, stores_in
from dynastate.settings import Settings
from dynastate.storage.tables import Tables
from tests.support.engine_driver import make_engine, write
from tests.support.faults import FailingTables
from tests.support.memory_tables import MemoryTables
from tests.support.processes import press_ctrl_c
from tests.support.samples import QUERY, attempt, query_run

SIDES = ("left-keyToNumValues", "right-keyToNumValues")
STORES = [f"many/0/{number}/default" for number in range(20)]


def begin_stores(tables: Tables, *stores: str, query: str = QUERY) -> None:
    with closing(make_engine(tables)) as engine:
        for store in stores:
            write(engine, store, attempt(1), {b"k": b"v"}, run=query_run(query, query=query))


def test_the_stores_of_a_scope(memory: MemoryTables) -> None:
    """Those of a namespace, an operator, a partition, a name, with corrupt ones; and any that is named in full."""
    joined = [f"scope/1/{partition}/{name}" for partition in range(12) for name in SIDES]
    plain = [f"scope/0/{partition}/default" for partition in range(3)]
    begin_stores(memory, *plain, *joined, "other/0/0/default")

    def found(scope: str) -> list[str]:
        return stores_in(memory, scope).current

    assert found("scope") == plain + joined
    assert found("scope/1") == joined
    assert found("scope/1/11") == joined[-2:]
    assert found("scope/01/011") == joined[-2:]
    assert found(f"scope/1/*/{SIDES[1]}") == joined[1::2]
    assert found("scope/0/*") == plain
    assert found("scope/7/7/missing") == ["scope/7/7/missing"]
    memory.items[meta_key(plain[0])] |= {"epochs": {}}
    assert found("scope") == plain + joined
    assert found(plain[0]) == plain[:1]
    for missing in ("scope/2", "scope/0/3", "scope/1/*/default"):
        with pytest.raises(ConfigurationError, match=r"no store of this scope .*'dynastate stores scope'"):
            found(missing)
    with pytest.raises(ConfigurationError, match="no store of this namespace"):
        found("missing")
    for wrong in ("", "scope/", "scope/one", "scope/0/0/", "scope/0/0/a/b", "scope#0"):
        with pytest.raises(ConfigurationError, match="give namespace, namespace/operator"):
            found(wrong)


@pytest.mark.parametrize("partition", range(3))
def test_a_store_that_lost_its_meta_item_is_in_scope(memory: MemoryTables, partition: int) -> None:
    """It is verified as the others are; `cost` refuses to count them as all."""
    stores = [f"scope/0/{number}/default" for number in range(3)]
    begin_stores(memory, *stores)
    del memory.items[meta_key(stores[partition])]
    for scope in ("scope", "scope/0", f"scope/0/{partition}"):
        assert stores_in(memory, scope) == QueryStores([stores[partition]] if scope.count("/") == 2 else stores, [])
    findings = [each for store in stores for each in verify(memory, store).findings if each.what == "missing"]
    assert [each.key for each in findings] == [meta_key(stores[partition])]
    with pytest.raises(CorruptStateError, match="its meta item is lost"):
        usage_of_namespace(memory, "scope")


def test_the_only_store_lost_its_meta_item(memory: MemoryTables) -> None:
    begin_stores(memory, "scope/0/0/default")
    del memory.items[meta_key("scope/0/0/default")]
    assert stores_in(memory, "scope").current == ["scope/0/0/default"]


@pytest.mark.parametrize("lost", ["0/1/default", "0/2/default", f"1/3/{SIDES[0]}", "2/0/default"])
@pytest.mark.parametrize("has_meta", [True, False])
def test_a_store_that_the_list_has_lost_is_in_scope(memory: MemoryTables, lost: str, *, has_meta: bool) -> None:
    """Of a partition in between, of the last one, and of a whole operator. `verify` reports the item, in full too.

    `drop`, `adopt` and `stores` find the store; forks and copies are refused.
    """
    plain = [f"scope/0/{number}/default" for number in range(3)]
    stores = [*plain, *(f"scope/1/{number}/{name}" for number in range(4) for name in SIDES), "scope/2/0/default"]
    begin_stores(memory, *stores)
    assert stores_in(memory, "scope").current == stores
    assert all(verify(memory, store).findings == () for store in stores)
    store = f"scope/{lost}"
    del memory.items[store_key(store)]
    missing = [store_key(store)]
    if not has_meta:
        if store == stores[-1]:
            pytest.skip("of an operator that is not listed only meta items are looked for")
        del memory.items[meta_key(store)]
        missing.insert(0, meta_key(store))
    for scope in ("scope", "/".join(store.split("/")[:2]), store):
        assert store in stores_in(memory, scope).current
    assert stores_in(memory, "scope").current == stores
    assert [each.key for each in verify(memory, store).findings] == missing
    assert all(verify(memory, other).findings == () for other in stores if other != store)
    assert sorted(every_store(memory, "scope"), key=place_of) == stores
    with pytest.raises(CorruptStateError, match=f"lost this item: put it again.*{lost}"):
        fork_namespace(memory, "scope", "fork", None)
    with pytest.raises(CorruptStateError, match=f"lost this item: put it again.*{lost}"):
        plan_copy(memory, MemoryTables(), "scope", Settings())


class Meanwhile(FailingTables):
    """Tables in which a store is begun before the first request of a verb about it."""

    def __init__(self, tables: MemoryTables, verb: str, store: str) -> None:
        super().__init__(tables)
        self._verb, self.to_begin = verb, [store]

    def _call(self, verb: str, *arguments: Any) -> Any:
        if verb == self._verb and self.to_begin and f"{self.to_begin[0]}#0" in str(arguments):
            begin_stores(self.tables, self.to_begin.pop())
        return super()._call(verb, *arguments)


def test_a_store_that_begins_is_not_lost() -> None:
    """Its versions are seen, and its meta item is looked for again."""
    for command in (partial(of_namespace, refuse_lost=True), stores_in):
        tables = MemoryTables()
        begin_stores(tables, "scope/0/0/default")
        list_store(tables, "scope/0/1/default")
        beside = Meanwhile(tables, "query", "scope/0/1/default")
        assert command(beside, "scope").current == ["scope/0/0/default", "scope/0/1/default"]
        assert not beside.to_begin


def test_a_store_that_is_listed_meanwhile_is_not_reported(memory: MemoryTables) -> None:
    begin_stores(memory, "scope/0/0/default")
    tables = Meanwhile(memory, "get", "scope/0/1/default")
    assert stores_in(tables, "scope").current == ["scope/0/0/default"]
    assert not tables.to_begin
    assert stores_in(tables, "scope").current == ["scope/0/0/default", "scope/0/1/default"]


def test_an_earlier_query_keeps_its_stores(memory: MemoryTables) -> None:
    """A lost store of partition 0 may be all that shows which query is the current one: then none counts as earlier."""
    stores = [f"scope/0/{number}/default" for number in range(3)]
    for query, stores_of_query in (("first", stores), ("second", stores[:1])):
        begin_stores(memory, *stores_of_query, query=query)
    assert stores_in(memory, "scope") == QueryStores(stores[:1], stores[1:])
    del memory.items[meta_key(stores[0])]
    assert stores_in(memory, "scope") == QueryStores(stores, [])


def test_several_stores_at_once(memory: MemoryTables) -> None:
    everyone = threading.Barrier(STORES_AT_ONCE)
    progress: list[tuple[int, int]] = []
    stores = STORES[: 2 * STORES_AT_ONCE]
    outcome = each_store(memory, stores, lambda *_: everyone.wait(10), lambda *each: progress.append(each))
    assert list(outcome.results) == stores
    assert sorted(outcome.results.values()) == sorted([*range(STORES_AT_ONCE)] * 2)
    assert (outcome.stores, outcome.failed, outcome.is_interrupted) == (len(stores), {}, False)
    assert progress[0] == (0, len(stores))
    assert max(progress) == (len(stores), len(stores))
    names: list[str] = []
    assert each_store(memory, STORES, lambda _, store: names.append(store), at_once=1).stores == len(STORES)
    assert names == STORES


def test_a_store_that_fails_does_not_hide_the_others(memory: MemoryTables) -> None:
    """All are done, and each error is there, with the table's own name; `until_failure` begins no further store."""

    def work(_: object, store: str) -> str:
        if store.split("/")[2] in ("3", "5"):
            raise CorruptStateError("an item is lost", table="delta", store=store)
        return store

    outcome = each_store(memory, STORES, work)
    assert list(outcome.failed) == [STORES[3], STORES[5]]
    assert [*outcome.results] == [store for store in STORES if store not in outcome.failed]
    assert str(outcome.failed[STORES[3]]) == f"an item is lost table=dynastate-delta store={STORES[3]}"
    with pytest.raises(CorruptStateError, match=STORES[3]):
        outcome.all()
    outcome = each_store(memory, STORES, work, at_once=1, until_failure=True)
    assert (list(outcome.results), list(outcome.failed)) == (STORES[:3], [STORES[3]])
    with pytest.raises(ZeroDivisionError):  # a defect is no failure of a store, and is raised at once
        each_store(memory, STORES, lambda *_: 1 // 0)


class StoppedTables(MemoryTables):
    """Tables that note that they were stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.stopped.set()


class Submitted(list[str]):
    """Stores that note that all of them were asked for."""

    def __init__(self, stores: list[str]) -> None:
        super().__init__(stores)
        self.all_were = threading.Event()

    def __iter__(self) -> Iterator[str]:
        yield from super().__iter__()
        self.all_were.set()


def test_ctrl_c_stops_the_tables() -> None:
    """Work under way ends with its next request, no other store is begun, and what was done is returned."""
    tables, stores = StoppedTables(), Submitted(STORES)
    in_time: list[bool] = []

    def work(_: object, store: str) -> str:
        if store == STORES[0]:
            return store
        if store == STORES[4]:  # a thread is free for it, so the first store is done
            assert stores.all_were.wait(60)
            in_time.append(press_ctrl_c(tables.stopped))
        else:
            in_time.append(tables.stopped.wait(60))
        raise UnavailableError("stopped")

    outcome = each_store(tables, stores, work, at_once=4)
    assert in_time == [True] * 4
    assert outcome.is_interrupted
    assert (list(outcome.results), outcome.failed) == (STORES[:1], {})
    with pytest.raises(KeyboardInterrupt):
        outcome.all()
