"""Operators of several partitions: where a row lies, and the version that all of them have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, VersionMissingError
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.reader.view import Past
from dynastate.unsaferow.key_encoders import KeyEncoder, make_encoder
from dynastate.unsaferow.schema import parse_schema
from tests.support.memory_tables import MemoryTables
from tests.support.samples import attempt
from tests.support.store_builder import RAW, USER, StoreBuilder, counted, family, struct, user
from tests.unit.reader.conftest import Open

pytestmark = pytest.mark.usefixtures("always_worth_it")
NAMES = [f"user-{number:02d}" for number in range(40)]


def row(name: str, count: int, note: str = "") -> dict[str, Any]:
    return {"user": name, "count": count, "note": note}


def builders(engine: Engine, store: str, count: int) -> tuple[str, list[StoreBuilder]]:
    """An operator, and its stores, which are empty."""
    operator = f"{store.partition('/')[0]}/7"
    return operator, [StoreBuilder(engine, f"{operator}/{number}/default") for number in range(count)]


def partitions(engine: Engine, store: str, count: int, *, is_placed: bool = True) -> tuple[str, list[StoreBuilder]]:
    """An operator whose rows lie where Spark places them, or each in the next partition."""
    operator, stores = builders(engine, store, count)
    encoder = encoder_of_users()
    homes: list[list[Any]] = [[] for _ in stores]
    for name in NAMES:
        place = encoder.partition(user(name), count)
        homes[place if is_placed else (place + 1) % count].append((user(name), counted(len(name))))
    for each, changes in zip(stores, homes, strict=True):
        each.commit(*changes)
    return operator, stores


def encoder_of_users() -> KeyEncoder:
    return make_encoder(parse_schema(struct(USER)), RAW, "default")


def test_rows_with_nulls_do_not_confirm_the_placement(engine: Engine, store: str, opened: Open) -> None:
    """The hash passes over a null: rows placed by one column lie where the rule has them, if the others are null."""
    operator, stores = builders(engine, store, 8)
    columns = [("a", "string"), ("b", "string")]
    first = make_encoder(parse_schema(struct(columns[:1])), RAW, "default")
    keys = [{"a": f"a{number}", "b": None if number % 20 else f"b{number}"} for number in range(600)]
    for place, each in enumerate(stores):
        each.families = [family(key=columns)]
        each.commit(*[(key, counted(1)) for key in keys if first.partition({"a": key["a"]}, len(stores)) == place])
    state = opened(operator)
    assert [key for key in keys if state.get(key) is None] == []


def test_an_operator_is_read_in_the_partition_of_the_key(engine: Engine, store: str, opened: Open) -> None:
    """A row costs as much as in one store; so does an absent key, once rows have confirmed the placement."""
    operator, stores = partitions(engine, store, 5)
    state = opened(operator)
    assert state.stores == tuple(each.store for each in stores)
    assert sorted(each["user"] for each in state) == NAMES
    fresh = opened(operator)
    meter_before = replace(fresh.meter)
    assert fresh.get(user(NAMES[0])) == row(NAMES[0], 7)
    assert fresh.meter.requests - meter_before.requests <= 3
    assert fresh.get(user("unknown")) is None
    meter_before = replace(fresh.meter)
    assert [fresh.get(user(f"unknown {number}")) for number in range(50)] == [None] * 50
    assert fresh.meter.requests - meter_before.requests <= 5 * 3


def test_few_rows_confirm_nothing(engine: Engine, store: str, opened: Open) -> None:
    """One row may lie by the rule by chance: until there are more, all partitions are read."""
    operator, stores = builders(engine, store, 2)
    keys = encoder_of_users()
    right = next(name for name in NAMES if keys.partition(user(name), 2) == 0)
    wrong = next(name for name in NAMES if keys.partition(user(name), 2) == 0 and name != right)
    stores[0].commit((user(right), counted(1)))
    stores[1].commit()
    state = opened(operator)
    assert state.get(user("unknown")) is None
    stores[0].commit()
    stores[1].commit((user(wrong), counted(1)))
    assert state.refresh()
    assert state.get(user(wrong)) == row(wrong, 1)
    assert state.history(user(wrong)) == [Past(2, row(wrong, 1))]


def test_partitions_added_by_the_first_batch(engine: Engine, store: str, opened: Open) -> None:
    operator, stores = builders(engine, store, 3)
    stores[0].commit()
    stores[2].commit()
    with pytest.raises(VersionMissingError, match="not committed in all partitions"):
        opened(operator)
    stores[1].commit((user("a"), counted(1)))
    stores.append(StoreBuilder(engine, f"{operator}/3/default"))
    state = opened(operator)
    assert len(state.stores) == 3
    for each in stores:
        each.commit()
    assert state.refresh()
    assert len(state.stores) == 4
    assert state.get(user("a")) == row("a", 1)


def test_partitions_of_a_fork_under_way(engine: Engine, tables: MemoryTables, store: str, opened: Open) -> None:
    """A reader that was opened early finds the other partitions by a refresh, at any version of the fork."""
    operator, stores = builders(engine, store, 3)
    for version in range(5):
        for each in stores:
            each.commit((user("a"), counted(version)))
    whole = dict(tables.items)
    last = f"{operator}/2/default#"
    tables.items = {key: item for key, item in whole.items() if not key.store_shard.startswith(last)}
    state = opened(operator)
    assert (state.version, len(state.stores)) == (5, 2)
    tables.items = whole
    assert state.refresh()
    assert (state.version, len(state.stores)) == (5, 3)
    assert not state.refresh()


def test_rows_that_lie_elsewhere_are_found(engine: Engine, store: str, opened: Open) -> None:
    operator, _ = partitions(engine, store, 5, is_placed=False)
    state = opened(operator)
    assert [state.get(user(name)) for name in NAMES] == [row(name, 7) for name in NAMES]
    assert state.get(user("unknown")) is None
    assert [each.row for each in state.history(user(NAMES[3]))] == [row(NAMES[3], 7)]


def test_the_version_is_one_that_all_partitions_have(engine: Engine, store: str, opened: Open) -> None:
    """While a batch commits, some partitions are ahead: they are read at the version before."""
    operator, stores = partitions(engine, store, 3)
    stores[0].commit()
    stores[2].commit((user("new"), counted(1)))
    state = opened(operator)
    assert (state.version, len(state)) == (1, len(NAMES))
    stores[1].commit()
    assert state.refresh()
    assert (state.version, len(state)) == (2, len(NAMES) + 1)
    assert sorted(each.row["user"] for each in state.changes(1)) == ["new"]
    assert not state.refresh()


def test_partitions_are_of_one_run(engine: Engine, store: str, opened: Open) -> None:
    """While a query that was taken back makes a version again, no reader has it of both runs."""
    operator, stores = builders(engine, store, 2)
    for each in stores:
        each.count_to(7)
    state, stays = opened(operator), opened(operator)
    for each in stores:
        each.take_back(4)
    stores[0].count(105)
    for read in (state, opened(operator)):
        assert read.refresh() is (read is state)
        assert (read.version, read.versions()) == (4, [1, 2, 3, 4])
        assert [each["count"] for each in read] == [4, 4]
        with pytest.raises(VersionMissingError, match="name one of versions"):
            read.at(5)
        for entry in list(read):
            assert [past.version for past in read.history({"user": entry["user"]})] == [1, 2, 3, 4]
            assert [past.version for past in read.at(2).history({"user": entry["user"]})] == [1, 2]
    with pytest.raises(VersionMissingError, match=r"taken back.*common=4"):
        list(state.changes(7))
    stores[1].count(205)
    assert state.refresh()
    assert (state.version, sorted(each["count"] for each in state)) == (5, [105, 205])
    assert [past.version for past in state.history({"user": "a"})][-1] == 5
    assert [past.version for past in stays.history({"user": "a"})] == [1, 2, 3, 4, 5, 6, 7]
    assert sorted(each.row["count"] for each in state.changes(4)) == [105, 205]


def test_partitions_of_a_fork_are_of_one_run(engine: Engine, tables: MemoryTables, store: str, opened: Open) -> None:
    """Its checkpoint is of a version before the one that was forked, which its first run makes again."""
    _, stores = builders(engine, store, 2)
    for each in stores:
        each.count_to(7)
    namespace = store.partition("/")[0]
    fork_namespace(tables, namespace, f"{namespace}-new", 7)
    operator, stores = builders(engine, f"{namespace}-new{store.removeprefix(namespace)}", 2)
    for each in stores:
        each.take_back(4, "a test")
    stores[0].count(105)
    state = opened(operator)
    assert (state.version, [each["count"] for each in state]) == (4, [4, 4])
    stores[1].count(205)
    assert state.refresh()
    assert (state.version, sorted(each["count"] for each in state)) == (5, [105, 205])


@pytest.mark.parametrize("is_forked", [False, True])
def test_unlisted_runs(engine: Engine, tables: MemoryTables, store: str, opened: Open, *, is_forked: bool) -> None:
    """A run for each batch, or the runs of an origin: what is not listed is not the run that makes a version again."""
    operator, stores = builders(engine, store, 2)
    for number in range(1, 26):
        for each in stores:
            each.run = f"run-{number}"
            each.commit((user("a"), counted(number)), by=attempt(number))
    if is_forked:
        fork_namespace(tables, operator.split("/")[0], "test", None)
        operator = f"test/{operator.split('/')[1]}"
        for each in stores:
            each.store = f"test/{each.store.split('/', 1)[1]}"
    state = opened(operator)
    stores[0].take_back(5, "run-26")
    stores[0].count(106)
    for read in (state, opened(operator)):
        assert read.refresh() is (read is state)
        assert (read.version, [each["count"] for each in read]) == (5, [5, 5])
    forked = fork_namespace(tables, operator.split("/")[0], "again", None)
    assert forked.version == 5


def test_partitions_without_a_version_of_one_run(engine: Engine, store: str, opened: Open) -> None:
    """The query began once more from nothing: a reader has to wait for its first batch."""
    operator, stores = builders(engine, store, 2)
    for each in stores:
        each.count_to(2)
    builder = StoreBuilder(engine, stores[0].store, run="run-2")
    builder.count(11)
    with pytest.raises(VersionMissingError, match="no version is in all partitions by one run"):
        opened(operator)


def test_an_ambiguous_store_is_refused(engine: Engine, store: str, opened: Open) -> None:
    """A join has four stores a partition; a malformed name and an unknown store are errors."""
    namespace = store.partition("/")[0]
    for name in ("left-keyToNumValues", "right-keyToNumValues"):
        StoreBuilder(engine, f"{namespace}/3/0/{name}").count_to(1)
    assert len(opened(f"{namespace}/3/*/left-keyToNumValues")) == 1
    with pytest.raises(ConfigurationError, match=r"say which: .*/3/\*/left-keyToNumValues, .*/3/\*/right-keyToNum"):
        opened(f"{namespace}/3")
    with pytest.raises(ConfigurationError, match="no store of this operator is in the tables"):
        opened(f"{namespace}/9")
    for wrong in ("", "a", "a/b", "a/0/x/default", "a/0/0", "a/0/0/d#1"):
        with pytest.raises(ConfigurationError, match="a store is namespace/operator/partition/name"):
            opened(wrong)
    with pytest.raises(VersionMissingError, match="no state of this store"):
        opened(f"{namespace}/3/9/default")
