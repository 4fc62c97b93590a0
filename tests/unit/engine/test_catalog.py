"""Stores of a namespace's current query, and stores that remain from earlier ones, for all who read and maintain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from threading import Barrier
from unittest.mock import Mock, patch
from uuid import uuid4

import pytest

from dynastate.engine import catalog
from dynastate.engine.catalog import QueryStores, of_namespace
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, VersionMissingError
from dynastate.format.items import Item
from dynastate.format.keys import EMPTY, Attempt, Key
from dynastate.format.namespace import namespace_key
from dynastate.operations.cost.usage import usage_of_namespace
from dynastate.operations.inspection.inspect import inspect_store, inspect_stores, read_lists
from dynastate.operations.lifecycle import clean, drop
from dynastate.operations.lifecycle.clean import clean_earlier
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.operations.scope import STORES_AT_ONCE, stores_in
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables
from dynastate.unsaferow.key_encoders import make_encoder
from dynastate.unsaferow.schema import parse_schema
from tests.support.engine_driver import Engines
from tests.support.faults import FailingTables
from tests.support.memory_tables import MemoryTables, without_list
from tests.support.samples import SCHEMA, query_run
from tests.support.store_builder import StoreBuilder, counted, family, user

JOINED = ("left-keyToNumValues", "right-keyToNumValues")
pytestmark = pytest.mark.parametrize("tables", ["memory"], indirect=True)


def start_over(engine: Engine, stores: Sequence[str], query: str, batches: int = 2) -> list[StoreBuilder]:
    """Let a query begin at version 0: one row in each store, of its partition's number."""
    builders = [StoreBuilder(engine, store, run=f"run of {query}", query=query) for store in stores]
    for batch in range(batches):
        for builder in builders:
            row = user(f"{query} in {builder.store.split('/')[2]}")
            builder.commit((row, counted(batch)), by=Attempt(uuid4().bytes))
    return builders


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
    assert of_namespace(tables, "mine") == QueryStores(mine, others)
    assert catalog.matching(tables, "mine/0") == mine
    assert users(tables, "mine/0") == [f"second in {partition}" for partition in range(4)]
    assert fork_namespace(tables, "mine", "copy", None).stores == 4
    assert of_namespace(tables, "copy") == QueryStores([f"copy{each[4:]}" for each in mine], [])
    assert usage_of_namespace(tables, "mine")[0].stores == 4
    earlier_by_store = {store: inspect_store(tables, store).is_earlier for store in mine + others}
    assert [store for store, is_earlier in earlier_by_store.items() if is_earlier] == others
    assert users(tables, others[0]) == ["first in 4"]  # by its full name


def test_operators_and_names_that_only_an_earlier_query_has(engine: Engine, tables: MemoryTables) -> None:
    """A join and an aggregation, then an aggregation alone: what it does not have is the earlier query's."""
    join = [store for name in JOINED for store in partitions(2, 0, name)]
    start_over(engine, join + partitions(2, 1), "first")
    start_over(engine, partitions(2), "second")
    query_stores = of_namespace(tables, "mine")
    assert (query_stores.current, sorted(query_stores.earlier)) == (partitions(2), sorted(join + partitions(2, 1)))
    assert catalog.matching(tables, "mine/0") == partitions(2)
    assert users(tables, "mine/0") == ["second in 0", "second in 1"]
    for pattern in ("mine/1", "mine/0/*/left-keyToNumValues"):
        with pytest.raises(ConfigurationError, match=r"no store of this operator has this name|of an earlier query"):
            catalog.matching(tables, pattern)


@pytest.mark.parametrize("queries", [("", ""), ("", "second"), ("first", "")])
def test_users_of_a_provider_without_query_id(engine: Engine, tables: MemoryTables, queries: tuple[str, str]) -> None:
    """They share the empty id: beside one another all is current, beside a query they are another query."""
    for query, count in zip(queries, (4, 2), strict=True):
        start_over(engine, partitions(count), query)
    expected = 4 if queries[0] == queries[1] else 2
    assert catalog.matching(tables, "mine/0") == partitions(expected)


def test_the_first_batch_of_another_query(engine: Engine, tables: MemoryTables) -> None:
    """While its first batch is not committed everywhere, nothing is taken for an earlier query's and deleted."""
    start_over(engine, partitions(4), "first")
    start_over(engine, partitions(4)[1:2], "second", batches=1)
    with pytest.raises(VersionMissingError, match="the first batch is not committed in all partitions"):
        catalog.matching(tables, "mine/0")
    start_over(engine, partitions(4)[:2], "third", batches=1)
    earlier = of_namespace(tables, "mine").earlier
    assert earlier == partitions(4)[2:]
    assert all("in its first batch" in each.kept for each in clean_earlier(tables, earlier).all())
    assert list(catalog.find_stores(tables, "mine")) == partitions(4)


@pytest.mark.parametrize("commits", [False, True], ids=["entered", "committed"])
def test_a_restored_query_in_its_first_batch(engine: Engine, tables: MemoryTables, *, commits: bool) -> None:
    """Another query had one task there: until the restored one has a second version, that store may be its own."""
    builders = start_over(engine, partitions(4), "first", batches=6)
    if commits:
        start_over(engine, partitions(4)[3:], "second", batches=1)
    else:
        engine.commits.sessions.enter(tables, partitions(4)[3], query_run("x", query="second"), 0)
    for version, is_retained in ((7, True), (8, False)):
        for each in builders[:3]:
            each.run = "restored"
            each.commit((user("more"), counted(version)), by=Attempt(uuid4().bytes))
        earlier = of_namespace(tables, "mine").earlier
        assert earlier == partitions(4)[3:]
        cleaned = clean_earlier(tables, earlier).all()
        assert [("in its first batch" in each.kept, each.items > 0) for each in cleaned] == [
            (is_retained, not is_retained)
        ]


def test_a_recovered_query_in_its_first_batch(engine: Engine, tables: MemoryTables) -> None:
    """It has a new id, so the stores that it has not entered yet are an earlier query's until then."""
    builders = start_over(engine, partitions(4), "lost", batches=6)
    builders[0].run, builders[0].query = "recovered", "new"
    builders[0].commit((user("more"), counted(7)), by=Attempt(uuid4().bytes))
    earlier = of_namespace(tables, "mine").earlier
    assert earlier == partitions(4)[1:]
    assert all("in its first batch" in each.kept for each in clean_earlier(tables, earlier).all())


@pytest.mark.parametrize("restored", [True, False], ids=["restored", "recovered"])
def test_partitions_to_resume_from_are_not_left_out(engine: Engine, tables: MemoryTables, *, restored: bool) -> None:
    """Its checkpoint was put back, or got a new id, and its first batch since has committed one partition so far."""
    builders = start_over(engine, partitions(2), "first", batches=5)
    with StateReader(tables, Settings(), "mine/0") as opened:
        if restored:
            start_over(engine, partitions(2), "second", batches=3)
        for builder in builders:
            builder.run, builder.query = "again", "first" if restored else "new"
        builders[0].commit((user("more"), counted(6)), by=Attempt(uuid4().bytes))
        assert of_namespace(tables, "mine").earlier == partitions(2)[1:]
        for read in (
            partial(catalog.matching, tables, "mine/0"),
            partial(catalog.whole_namespace, tables, "mine"),
            opened.refresh,
        ):
            with pytest.raises(VersionMissingError, match=r"first batch is not committed in all.*=mine/0/1/default"):
                read()
        builders[1].commit((user("more"), counted(6)), by=Attempt(uuid4().bytes))
        assert opened.refresh()
        assert (opened.version, opened.stores) == (6, tuple(partitions(2)))
    assert catalog.whole_namespace(tables, "mine") == partitions(2)


def test_a_restored_query_with_fewer_partitions_than_the_one_between(engine: Engine, tables: MemoryTables) -> None:
    """From its second batch on it is read and forked, although partitions of the other one remain."""
    builders = start_over(engine, partitions(2), "first")
    start_over(engine, partitions(4), "second")
    for number in range(2):
        for builder in builders:
            builder.run = "again"
            builder.commit((user("more"), counted(number)), by=Attempt(uuid4().bytes))
    assert of_namespace(tables, "mine").earlier == partitions(4)[2:]
    assert catalog.matching(tables, "mine/0") == partitions(2)
    assert catalog.whole_namespace(tables, "mine") == partitions(2)


@pytest.mark.parametrize(
    ("read", "name", "queries"), [(catalog.matching, "mine/0", 1), (catalog.whole_namespace, "mine", 2)]
)
def test_a_first_batch_that_ends_while_stores_are_looked_up(
    engine: Engine, tables: MemoryTables, read: Callable[[Tables, str], list[str]], name: str, queries: int
) -> None:
    """Partition 1 is an earlier query's at the first look, of so many Queries; partition 0 is read one batch later."""
    builders = start_over(engine, partitions(2), "first", batches=5)
    start_over(engine, partitions(2), "second", batches=3)
    for builder in builders:
        builder.run = "again"
    builders[0].commit((user("more"), counted(6)), by=Attempt(uuid4().bytes))
    verbs = []

    def commit(verb: str) -> None:
        verbs.append(verb)
        if verb == "query" and verbs.count(verb) == queries + 1:
            for builder in (builders[1], *builders):
                builder.commit((user("more"), counted(7)), by=Attempt(uuid4().bytes))

    with pytest.raises(VersionMissingError, match="first batch is not committed in all"):
        read(FailingTables(tables, commit), name)
    assert verbs.count("query") == queries + 1 + queries
    assert read(tables, name) == partitions(2)


def test_stores_of_an_earlier_query_cost_a_reader_nothing(engine: Engine, tables: MemoryTables) -> None:
    """It reads the list and the meta items, also in the first batch of a query that started over."""
    start_over(engine, partitions(4), "first")
    for batches in (1, 2):
        start_over(engine, partitions(batches), "second", batches=batches)
        meter = Meter()
        assert catalog.matching(tables.metered(meter), "mine/0") == partitions(batches)
        assert meter.requests == 2


def test_a_reader_that_refreshes_in_the_first_batch_of_the_next_query(engine: Engine, tables: MemoryTables) -> None:
    """It has one partition then, and all of them at the next refresh."""
    first = start_over(engine, partitions(4), "first")
    with StateReader(tables, Settings(), "mine/0") as state:
        for builder in first:
            builder.commit((user("more"), counted(1)), by=Attempt(uuid4().bytes))
        assert state.refresh()
        builders = [StoreBuilder(engine, store, run="next", query="second") for store in partitions(4)]
        builders[0].commit((user("in 0"), counted(1)), by=Attempt(uuid4().bytes))
        assert state.refresh()
        assert state.stores == tuple(partitions(1))
        for builder in builders[1:]:
            builder.commit((user("in others"), counted(1)), by=Attempt(uuid4().bytes))
        assert state.refresh()
        assert (state.version, state.stores) == (1, tuple(partitions(4)))


def test_a_reader_looks_again_where_the_next_query_has_its_rows(engine: Engine, tables: MemoryTables) -> None:
    """That rows lie where Spark's hash has them was confirmed by the query before."""
    described = family()
    encoder = make_encoder(parse_schema(described["key"]), described["key_encoder"], "default")

    def fill(query: str, place: Callable[[int], int]) -> None:
        for partition, store in enumerate(partitions(4)):
            rows = [(user(f"u{number}"), counted(1)) for number in range(200) if place(number) == partition]
            StoreBuilder(engine, store, run=query, query=query).commit(*rows, by=Attempt(uuid4().bytes))

    fill("first", lambda number: encoder.partition(user(f"u{number}"), 4))
    with StateReader(tables, Settings(), "mine/0") as state:
        assert state.get(user("not there")) is None
        fill("second", lambda number: number % 4)
        assert state.refresh()
        assert all(state.get(user(f"u{number}")) for number in range(200))


def test_an_open_reader_follows_another_query(engine: Engine, tables: MemoryTables) -> None:
    """A refresh moves to the partitions that the new query has."""
    start_over(engine, partitions(4), "first")
    with StateReader(tables, Settings(), "mine/0") as state:
        assert len(state) == 4
        builders = start_over(engine, partitions(4), "first", batches=0)
        assert builders
        assert not state.refresh()
        start_over(engine, partitions(2), "second", batches=3)
        assert state.refresh()
        assert (state.version, sorted(row["user"] for row in state)) == (3, ["second in 0", "second in 1"])
    with StateReader(tables, Settings(), "mine/0") as state:
        for builder in start_over(engine, partitions(1), "third", batches=5):
            assert state.refresh()
            builder.commit((user("x"), counted(1)), by=Attempt(uuid4().bytes))
        assert state.refresh()
        assert (state.version, state.stores) == (6, ("mine/0/0/default",))


def test_a_reader_that_has_followed_a_query_follows_the_next(engine: Engine, tables: MemoryTables) -> None:
    """Its stores are looked for again where the version that it was at is none of the newest one's ancestors."""
    first = start_over(engine, partitions(4), "first")
    with StateReader(tables, Settings(), "mine/0") as state:
        for builder in first:
            builder.commit((user("more"), counted(1)), by=Attempt(uuid4().bytes))
        assert state.refresh()
        assert (state.version, len(state)) == (3, 8)
        start_over(engine, partitions(2), "second", batches=4)
        assert state.refresh()
        assert (state.version, state.stores) == (4, tuple(partitions(2)))
        assert sorted(row["user"] for row in state) == ["second in 0", "second in 1"]


@pytest.mark.parametrize("is_new", [False, True])
def test_nothing_is_deleted_before_the_first_commit(engine: Engine, tables: MemoryTables, *, is_new: bool) -> None:
    """A query has entered the first of its stores, an earlier query's or a new one, and has committed to none."""
    name = "left-keyToNumValues" if is_new else "default"
    start_over(engine, partitions(3), "first")
    for store in partitions(2, 0, name):
        engine.commits.sessions.enter(tables, store, query_run("run of second", query="second"), 0)
    query_stores = of_namespace(tables, "mine")
    assert (query_stores.current, query_stores.earlier) == (partitions(2, 0, name), partitions(3)[0 if is_new else 2 :])
    reasons = [each.kept for each in clean_earlier(tables, query_stores.earlier).all()]
    assert all(reasons)
    assert list(catalog.find_stores(tables, "mine")) == sorted({*partitions(3), *partitions(2, 0, name)})


def test_stores_of_a_query_that_began_since_they_were_listed_are_kept(engine: Engine, tables: MemoryTables) -> None:
    """They were an earlier query's, and are the current one's: it has committed two batches in all of them."""
    start_over(engine, partitions(3), "first")
    start_over(engine, partitions(1), "second")
    earlier = of_namespace(tables, "mine").earlier
    start_over(engine, partitions(3), "third")
    assert {one.kept for one in clean_earlier(tables, earlier).all()} == {"a query has begun to write there meanwhile"}
    assert users(tables, "mine/0") == [f"third in {partition}" for partition in range(3)]


def test_clean_up_deletes_what_remains_of_an_earlier_query(engine: Engine, tables: MemoryTables) -> None:
    """Except stores that a fork was made of, until it is dropped; the current query's are whole."""
    start_over(engine, partitions(4) + partitions(2, 1), "first")
    fork_namespace(tables, "mine", "copy", None)
    drop_stores(tables, [f"copy{store[4:]}" for store in partitions(4)[:3] + partitions(2, 1)])
    current = start_over(engine, partitions(2), "second")
    earlier = of_namespace(tables, "mine").earlier
    assert earlier == partitions(4)[2:] + partitions(2, 1)
    cleaned = {each.store: each for each in clean_earlier(tables, earlier).all()}
    assert sorted(cleaned) == earlier
    assert [store for store, each in cleaned.items() if each.kept] == ["mine/0/3/default"]
    assert "forks depend on this state: copy" in cleaned["mine/0/3/default"].kept
    assert min(each.items for each in cleaned.values() if not each.kept) > 1
    assert of_namespace(tables, "mine").current == partitions(2)
    drop_stores(tables, ["copy/0/3/default"])
    assert not any(each.kept for each in clean_earlier(tables, of_namespace(tables, "mine").earlier).all())
    assert list(catalog.find_stores(tables, "mine")) == partitions(2)
    others = [*partitions(2), "mine/"]
    items = [
        item for key, item in without_list(tables.items).items() if key.store_shard.partition("#")[0] not in others
    ]
    assert all({"refused"} == item.keys() - {"store_shard", "entry", "format", "epoch"} for item in items)
    for each in current:
        each.commit((user("more"), counted(1)), by=Attempt(uuid4().bytes))
    assert users(tables, "mine/0") == ["more", "more", "second in 0", "second in 1"]


def test_stores_of_an_earlier_query_are_deleted_several_at_once(
    engine: Engine, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their meta items go last, from the last on: after a crash in between, the others are found and deleted."""
    start_over(engine, partitions(2) + partitions(STORES_AT_ONCE, 1), "first")
    start_over(engine, partitions(2), "second")
    earlier = of_namespace(tables, "mine").earlier
    everyone, progress, crash = Barrier(STORES_AT_ONCE), [], 3
    empty = drop.empty_store

    def empty_together(tables: MemoryTables, store: str, query: str) -> int:
        everyone.wait(10)
        return empty(tables, store, query)

    def delete_some(tables: MemoryTables, store: str) -> int:
        if len(list(catalog.find_stores(tables, "mine"))) == 2 + crash:
            raise KeyboardInterrupt
        return drop.delete_meta(tables, store)

    monkeypatch.setattr(clean, "empty_store", empty_together)
    monkeypatch.setattr(clean, "delete_meta", delete_some)
    cut_off = clean_earlier(tables, earlier, lambda *each: progress.append(each))
    assert (progress[0], max(progress)) == ((0, STORES_AT_ONCE), (STORES_AT_ONCE, STORES_AT_ONCE))
    assert (cut_off.stores, sorted(cut_off.results), cut_off.is_interrupted) == (STORES_AT_ONCE, earlier[crash:], True)
    monkeypatch.undo()
    assert of_namespace(tables, "mine").earlier == earlier[:crash]
    assert [each.store for each in clean_earlier(tables, earlier[:crash]).all()] == earlier[:crash][::-1]
    assert of_namespace(tables, "mine") == QueryStores(partitions(2), [])


def test_a_clean_up_that_was_cut_off_is_ended_by_the_next(engine: Engine, tables: MemoryTables) -> None:
    """The error says so. Stores that it has not begun to delete may be the later query's, and stay."""
    start_over(engine, partitions(4), "first")
    start_over(engine, partitions(1), "second")

    def cut_off(tables: MemoryTables, store: str) -> int:
        raise KeyboardInterrupt

    with patch.object(clean, "delete_meta", cut_off):
        clean_earlier(tables, partitions(4)[2:])
    start_over(engine, partitions(2), "third", batches=1)
    with pytest.raises(ConfigurationError, match=r"a clean-up that deletes it runs or was cut off: .* clean mine"):
        start_over(engine, partitions(4)[2:3], "third", batches=1)
    earlier = of_namespace(tables, "mine").earlier
    assert earlier == partitions(4)[2:]
    assert not any(each.kept for each in clean_earlier(tables, earlier).all())
    start_over(engine, partitions(4)[2:], "third", batches=1)
    assert of_namespace(tables, "mine") == QueryStores(partitions(4), [])


def test_a_drop_that_was_cut_off_is_ended_by_a_drop(engine: Engine, tables: MemoryTables) -> None:
    """Also where stores of an earlier query are among those that it deletes."""
    start_over(engine, partitions(3), "first")
    start_over(engine, partitions(1), "second")
    with patch.object(drop, "delete_meta", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        drop_stores(tables, partitions(3))
    for store in partitions(3):
        with pytest.raises(ConfigurationError, match="is being dropped: end that with dynastate drop mine"):
            start_over(engine, [store], "third", batches=1)


TWO = partitions(2) + partitions(2, 1)
AHEAD = [timedelta(0), timedelta(minutes=-10), timedelta(days=-400), timedelta(days=3)]


def by_clock(make: Engines, ahead: timedelta) -> Engine:
    return make(now=Mock(return_value=datetime(2025, 1, 1, tzinfo=timezone.utc) + ahead))


@pytest.mark.parametrize("ahead", AHEAD, ids=str)
def test_the_current_query_by_no_clock(engines: Engines, tables: MemoryTables, ahead: timedelta) -> None:
    """A query with two operators, then one with one, from a machine whose clock is behind, ahead or equal."""
    start_over(by_clock(engines, timedelta(0)), TWO, "first")
    engine = by_clock(engines, ahead)
    start_over(engine, TWO[:2], "second")
    assert of_namespace(tables, "mine") == QueryStores(TWO[:2], TWO[2:])
    assert users(tables, "mine/0") == ["second in 0", "second in 1"]
    assert fork_namespace(tables, "mine", "copy", None).stores == 2
    drop_stores(tables, [each.replace("mine", "copy") for each in TWO[:2]])
    assert sorted(clean_earlier(tables, TWO[2:]).results) == TWO[2:]
    assert list(catalog.find_stores(tables, "mine")) == TWO[:2]


@pytest.mark.parametrize("ahead", AHEAD, ids=str)
def test_a_query_with_other_names_by_no_clock(engines: Engines, tables: MemoryTables, ahead: timedelta) -> None:
    """A join, then an aggregation: no store has both. Without the record commands refuse, and delete nothing."""
    join = [store for name in JOINED for store in partitions(2, 0, name)]
    start_over(by_clock(engines, timedelta(0)), join, "first")
    engine = by_clock(engines, ahead)
    start_over(engine, partitions(2), "second")
    query_stores = of_namespace(tables, "mine")
    assert (query_stores.current, sorted(query_stores.earlier)) == (partitions(2), sorted(join))
    record = tables.items.pop(namespace_key("mine"))
    for command in (of_namespace, stores_in):
        with pytest.raises(ConfigurationError, match=r"of several queries.* queries=first,second"):
            command(tables, "mine")
    assert len(inspect_stores(tables, "mine", lambda *_: None)) == 6  # type: ignore[arg-type]
    (one,) = start_over(engine, partitions(1), "second", batches=0)
    one.run = "another run"
    one.version = read_lists(tables, one.store)[0].newest().id
    one.commit((user("more"), counted(1)), by=Attempt(uuid4().bytes))
    assert tables.items[namespace_key("mine")] != record
    assert of_namespace(tables, "mine").current == partitions(2)


def test_a_run_that_is_over_takes_no_store_of_the_next_query(engine: Engine, tables: MemoryTables) -> None:
    """A late task of the first query, in a store that it had not entered: it is refused, and the query stays."""
    start_over(engine, partitions(1), "first")
    start_over(engine, partitions(2), "second")
    for late in (partitions(2)[1], *partitions(1, 5)):
        with pytest.raises(ConfigurationError, match="another query has begun in this namespace since"):
            start_over(engine, [late], "first")
    assert of_namespace(tables, "mine") == QueryStores(partitions(2), [])


def test_a_run_that_enters_beside_another_query(engine: Engine, tables: MemoryTables) -> None:
    """It has read the record before the other one entered it: what it then reads of the store is older still."""
    start_over(engine, partitions(1), "first")
    read, others = MemoryTables.get, ["third"]

    def overtaken(on: MemoryTables, keys: Sequence[Key]) -> dict[Key, Item]:
        items = read(on, keys)
        if list(keys) == [namespace_key("mine")]:
            while others:
                start_over(engine, partitions(2), others.pop())
        return items

    with (
        patch.object(MemoryTables, "get", overtaken),
        pytest.raises(ConfigurationError, match="another query has begun in this namespace since"),
    ):
        start_over(engine, partitions(2), "first")
    assert of_namespace(tables, "mine") == QueryStores(partitions(2), [])


def test_another_checkpoint_leaves_the_record_as_it_is(engine: Engine, tables: MemoryTables) -> None:
    """Its first task may write to an operator that the namespace does not have."""
    start_over(engine, partitions(2), "first")
    items_before = dict(tables.items)
    run = query_run("elsewhere", query="other")._replace(location="file:/elsewhere/state")
    for store in (*partitions(1), *partitions(1, 7)):
        with pytest.raises(ConfigurationError, match="belongs to the query with the checkpoint"):
            engine.begin(store, run, *EMPTY, Attempt(uuid4().bytes)).commit({}, SCHEMA)
    assert tables.items == items_before


def test_stores_of_a_query_that_has_just_begun_are_not_earlier(engine: Engine, tables: MemoryTables) -> None:
    """It has none of partition 0 yet, so the one before is the current query; clean-up leaves the new ones."""
    start_over(engine, partitions(3), "first")
    start_over(engine, partitions(3)[1:2], "second", batches=1)
    first, second, third = partitions(3)
    assert of_namespace(tables, "mine") == QueryStores([first, third], [], [second])


def test_clean_up_refuses_what_is_written(engine: Engine, tables: MemoryTables) -> None:
    """A commit between two looks, and a run of the current query that enters after the stores were listed."""
    start_over(engine, partitions(2), "first")
    writes = start_over(engine, partitions(1), "second")
    looked = drop.look(tables, partitions(2))

    def commit(_: float) -> None:
        writes[0].commit((user("x"), counted(1)), by=Attempt(uuid4().bytes))

    with pytest.raises(ConfigurationError, match=r"a query writes to stores that look like an earlier query's"):
        clean.refuse_running(tables, looked, sleep=commit)
    empty = drop.empty_store

    def entered(on: MemoryTables, store: str, query: str) -> int:
        start_over(engine, [store], "second", batches=1)
        return empty(on, store, query)

    with patch.object(clean, "empty_store", entered):
        (cleaned,) = clean_earlier(tables, partitions(2)[1:]).all()
    assert "a run of the query has begun meanwhile" in cleaned.kept
    assert of_namespace(tables, "mine") == QueryStores(partitions(2), [])
