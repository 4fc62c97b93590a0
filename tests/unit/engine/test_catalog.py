"""Stores of a namespace's current query, and stores that remain from earlier ones, for all who read and maintain."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Barrier
from uuid import uuid4

import pytest

from dynastate.dynamodb.meter import Meter
from dynastate.engine import catalog
from dynastate.engine.catalog import QueryStores, of_namespace
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, VersionMissingError
from dynastate.format.keys import Attempt, meta_key
from dynastate.operations import clean, drop
from dynastate.operations.clean import clean_earlier
from dynastate.operations.drop import drop_stores
from dynastate.operations.fork import fork_namespace
from dynastate.operations.inspect import inspect_store
from dynastate.operations.scope import STORES_AT_ONCE
from dynastate.operations.usage import usage_of_namespace
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from tests.support.fakes import MemoryTables
from tests.support.store_builder import StoreBuilder, counted, user

JOINED = ("left-keyToNumValues", "right-keyToNumValues")
pytestmark = pytest.mark.parametrize("tables", ["memory"], indirect=True)


def start_over(engine: Engine, stores: Sequence[str], query: str, batches: int = 2) -> list[StoreBuilder]:
    """Let a query begin at version 0: one row in each store, of its partition's number."""
    made = [StoreBuilder(engine, store, run=f"run of {query}", query=query) for store in stores]
    for batch in range(batches):
        for each in made:
            row = user(f"{query} in {each.store.split('/')[2]}")
            each.commit((row, counted(batch)), by=Attempt(uuid4().bytes))
    return made


def partitions(count: int, operator: int = 0, name: str = "default") -> list[str]:
    return [f"mine/{operator}/{partition}/{name}" for partition in range(count)]


def users(tables: MemoryTables, store: str) -> list[str]:
    with StateReader(tables, Settings(), store) as state:
        return sorted(row["user"] for row in state)


def test_a_query_with_fewer_partitions(engine: Engine, tables: MemoryTables) -> None:
    """Only its own partitions are read, forked, counted and looked at; the others are said to be an earlier one's."""
    start_over(engine, partitions(8), "first", batches=3)
    start_over(engine, partitions(4), "second")
    mine, others = partitions(8)[:4], partitions(8)[4:]
    assert of_namespace(tables, "mine", Meter()) == QueryStores(mine, others)
    assert catalog.matching(tables, "mine/0", Meter()) == mine
    assert users(tables, "mine/0") == [f"second in {partition}" for partition in range(4)]
    assert fork_namespace(tables, "mine", "copy", None, Meter()).stores == 4
    assert of_namespace(tables, "copy", Meter()) == QueryStores([f"copy{each[4:]}" for each in mine], [])
    assert usage_of_namespace(tables, "mine", Meter())[0].stores == 4
    found = {store: inspect_store(tables, store, Meter()).is_earlier for store in mine + others}
    assert [store for store, is_earlier in found.items() if is_earlier] == others
    assert users(tables, others[0]) == ["first in 4"]  # by its full name


def test_operators_and_names_that_only_an_earlier_query_has(engine: Engine, tables: MemoryTables) -> None:
    """A join and an aggregation, then an aggregation alone: what it does not have is the earlier query's."""
    join = [store for name in JOINED for store in partitions(2, 0, name)]
    start_over(engine, join + partitions(2, 1), "first")
    start_over(engine, partitions(2), "second")
    found = of_namespace(tables, "mine", Meter())
    assert (found.current, sorted(found.earlier)) == (partitions(2), sorted(join + partitions(2, 1)))
    assert catalog.matching(tables, "mine/0", Meter()) == partitions(2)
    assert users(tables, "mine/0") == ["second in 0", "second in 1"]
    for pattern in ("mine/1", "mine/0/*/left-keyToNumValues"):
        with pytest.raises(ConfigurationError, match=r"no store of this operator has this name|of an earlier query"):
            catalog.matching(tables, pattern, Meter())


@pytest.mark.parametrize("queries", [("", ""), ("", "second"), ("first", "")])
def test_users_of_the_provider_without_a_query_id(
    engine: Engine, tables: MemoryTables, queries: tuple[str, str]
) -> None:
    """They share the empty id: beside one another all is current, beside a query they are another query."""
    for query, count in zip(queries, (4, 2), strict=True):
        start_over(engine, partitions(count), query)
    expected = 4 if queries[0] == queries[1] else 2
    assert catalog.matching(tables, "mine/0", Meter()) == partitions(expected)


def test_the_first_batch_of_another_query(engine: Engine, tables: MemoryTables) -> None:
    """While its first batch is not committed everywhere, nothing is taken for an earlier query's and deleted."""
    start_over(engine, partitions(4), "first")
    start_over(engine, partitions(4)[1:2], "second", batches=1)
    with pytest.raises(VersionMissingError, match="the first batch is not committed in all partitions"):
        catalog.matching(tables, "mine/0", Meter())
    start_over(engine, partitions(4)[:2], "third", batches=1)
    earlier = of_namespace(tables, "mine", Meter()).earlier
    assert earlier == partitions(4)[2:]
    assert all("in its first batch" in each.kept for each in clean_earlier(engine, tables, earlier).all())
    assert list(catalog.find_stores(tables, "mine", Meter())) == partitions(4)


def test_an_open_reader_follows_another_query(engine: Engine, tables: MemoryTables) -> None:
    """A refresh moves to the partitions that the new query has."""
    start_over(engine, partitions(4), "first")
    with StateReader(tables, Settings(), "mine/0") as state:
        assert len(state) == 4
        again = start_over(engine, partitions(4), "first", batches=0)
        assert again
        assert not state.refresh()
        start_over(engine, partitions(2), "second", batches=3)
        assert state.refresh()
        assert (state.version, sorted(row["user"] for row in state)) == (3, ["second in 0", "second in 1"])
    with StateReader(tables, Settings(), "mine/0") as state:
        for each in start_over(engine, partitions(1), "third", batches=5):
            assert state.refresh()
            each.commit((user("x"), counted(1)), by=Attempt(uuid4().bytes))
        assert state.refresh()
        assert (state.version, state.stores) == (6, ("mine/0/0/default",))


def test_clean_up_deletes_what_remains_of_an_earlier_query(engine: Engine, tables: MemoryTables) -> None:
    """But for stores that a fork was made of, until it is dropped; the current query's are whole."""
    start_over(engine, partitions(4) + partitions(2, 1), "first")
    fork_namespace(tables, "mine", "copy", None, Meter())
    drop_stores(tables, [f"copy{store[4:]}" for store in partitions(4)[:3] + partitions(2, 1)], Meter())
    current = start_over(engine, partitions(2), "second")
    earlier = of_namespace(tables, "mine", Meter()).earlier
    assert earlier == partitions(4)[2:] + partitions(2, 1)
    cleaned = {each.store: each for each in clean_earlier(engine, tables, earlier).all()}
    assert sorted(cleaned) == earlier
    assert [store for store, each in cleaned.items() if each.kept] == ["mine/0/3/default"]
    assert "forks depend on this state: copy" in cleaned["mine/0/3/default"].kept
    assert min(each.items for each in cleaned.values() if not each.kept) > 1
    assert of_namespace(tables, "mine", Meter()).current == partitions(2)
    drop_stores(tables, ["copy/0/3/default"], Meter())
    assert not any(
        each.kept for each in clean_earlier(engine, tables, of_namespace(tables, "mine", Meter()).earlier).all()
    )
    assert list(catalog.find_stores(tables, "mine", Meter())) == partitions(2)
    left = [item for key, item in tables.items.items() if key.store_shard.partition("#")[0] not in partitions(2)]
    assert all({"refused"} == item.keys() - {"store_shard", "entry", "format"} for item in left)
    for each in current:
        each.commit((user("more"), counted(1)), by=Attempt(uuid4().bytes))
    assert users(tables, "mine/0") == ["more", "more", "second in 0", "second in 1"]


def test_stores_of_an_earlier_query_are_deleted_several_at_once(
    engine: Engine, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their meta items go last, from the last on: after a crash in between, the others are found and deleted."""
    start_over(engine, partitions(2) + partitions(STORES_AT_ONCE, 1), "first")
    start_over(engine, partitions(2), "second")
    earlier = of_namespace(tables, "mine", Meter()).earlier
    everyone, seen, crash = Barrier(STORES_AT_ONCE), [], 3
    empty = drop.empty_store

    def empty_together(tables: MemoryTables, store: str, meter: Meter) -> int:
        everyone.wait(10)
        return empty(tables, store, meter)

    def delete_some(tables: MemoryTables, store: str, meter: Meter) -> int:
        if len(list(catalog.find_stores(tables, "mine", Meter()))) == 2 + crash:
            raise KeyboardInterrupt
        return drop.delete_meta(tables, store, meter)

    monkeypatch.setattr(clean, "empty_store", empty_together)
    monkeypatch.setattr(clean, "delete_meta", delete_some)
    cut_off = clean_earlier(engine, tables, earlier, lambda *each: seen.append(each))
    assert (seen[0], max(seen)) == ((0, STORES_AT_ONCE), (STORES_AT_ONCE, STORES_AT_ONCE))
    assert (cut_off.stores, sorted(cut_off.done), cut_off.is_interrupted) == (STORES_AT_ONCE, earlier[crash:], True)
    monkeypatch.undo()
    assert of_namespace(tables, "mine", Meter()).earlier == earlier[:crash]
    assert [each.store for each in clean_earlier(engine, tables, earlier[:crash]).all()] == earlier[:crash][::-1]
    assert of_namespace(tables, "mine", Meter()) == QueryStores(partitions(2), [])


def test_queries_that_begin_in_the_same_second(engine: Engine, tables: MemoryTables) -> None:
    """The clock of these tests stands still: the store that another query took over has one run more."""
    start_over(engine, partitions(1) + partitions(1, 1), "first")
    start_over(engine, partitions(1), "second")
    metas = tables.get([meta_key(store) for store in partitions(1) + partitions(1, 1)], Meter())
    assert len({item["began"] for item in metas.values()}) == 1
    assert of_namespace(tables, "mine", Meter()) == QueryStores(partitions(1), partitions(1, 1))
