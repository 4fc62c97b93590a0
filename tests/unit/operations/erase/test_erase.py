"""Erasing: no byte of the erased rows is left, and all other rows are what they were, at every version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest

from dynastate.engine.engine import Engine
from dynastate.errors import VersionMissingError
from dynastate.format.keys import EMPTY
from dynastate.operations.erase.absent import find_absence
from dynastate.operations.erase.erase import ErasedStore, ErasePlan, erase_stores, plan_erase
from dynastate.operations.erase.keys import GivenKeys
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from dynastate.storage.tables import Tables
from tests.support.contents import graph
from tests.support.crashes import crashes, each_request
from tests.support.engine_driver import Engines, make_engine
from tests.support.memory_tables import MemoryTables
from tests.support.samples import A, chunk_of, query_run
from tests.support.search import places_with
from tests.support.store_builder import StoreBuilder, counted, user

pytestmark = pytest.mark.usefixtures("always_worth_it")

#: The person whose rows are erased, and what only those rows contain.
PERSON, SECRET = "marked-person", "marked-value"
MARKS = PERSON.encode(), SECRET.encode()
GIVEN = GivenKeys([user(PERSON)])
Change = tuple[Mapping[str, Any], Mapping[str, Any] | None]
#: The changes of versions: the person comes, changes, goes, comes again; some versions have no other change.
VERSIONS: Sequence[Sequence[Change]] = [
    [(user("a"), counted(1)), (user(PERSON), counted(1, SECRET))],
    [(user("b"), counted(1))],
    [(user(PERSON), counted(2, SECRET))],
    [(user(PERSON), None), (user("b"), None)],
    [(user("c"), counted(1))],
    [(user(PERSON), counted(3, SECRET)), (user("c"), counted(2))],
    *([(user("a"), counted(number))] for number in range(6)),
    [(user(PERSON), counted(4, SECRET))],
    *([(user("a"), counted(number))] for number in range(9)),
]
SNAPSHOTS = (3, 7, 15)


def build(
    engine: Engine, tables: Tables, store: str, *, with_person: bool = True, versions: int = len(VERSIONS)
) -> StoreBuilder:
    """Make a store of these versions, with snapshots of some."""
    builder = StoreBuilder(engine, store)
    builder.counts_values = True
    for number, changes in enumerate(VERSIONS[:versions], 1):
        builder.commit(*(each for each in changes if with_person or each[0] != user(PERSON)))
        if number in SNAPSHOTS:
            assert compact_store(engine, tables, store)
    return builder


def rows_at_each(tables: Tables, store: str, *, is_counted: bool = True) -> dict[int, list[dict[str, Any]]]:
    """The rows at each version, which the version counts unless an erase was cut off."""
    with StateReader(tables, Settings(), store) as state:
        views = [state.at(version) for version in state.versions()]
        rows = {view.version: sorted(view, key=repr) for view in views}
        assert not is_counted or [len(view) for view in views] == [len(each) for each in rows.values()]
        return rows


def others(rows: dict[int, list[dict[str, Any]]]) -> dict[int, list[dict[str, Any]]]:
    """The rows of others than the person."""
    return {version: [row for row in each if row["user"] != PERSON] for version, each in rows.items()}


def erase(tables: Tables, *stores: str, given: GivenKeys = GIVEN) -> tuple[ErasePlan, Sequence[ErasedStore]]:
    plan = plan_erase(tables, stores, given)
    return plan, erase_stores(tables, plan, given).stores


@pytest.mark.parametrize("inline_bytes", [0, 256])
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_nothing_is_left_of_a_key(
    engines: Engines, tables: Tables, store: str, inline_bytes: int, compression: str
) -> None:
    """It is in parts or in version entries, and in snapshots; the search finds it before, and not after."""
    engine = engines(inline_bytes=inline_bytes, compression=compression)
    build(engine, tables, store)
    twin = store.replace("/default", "/twin")
    build(engine, tables, twin, with_person=False)
    before = rows_at_each(tables, store)
    found = places_with(tables, [store], *MARKS)
    assert {place.split("/")[0] for place in found} >= {
        "snapshot list" if inline_bytes else "delta 00000000000000000001"
    }
    assert any(place.startswith("snapshot bucket") for place in found)
    attempts = [entry.id for entry in graph(tables, store).entries()]

    plan, (erased,) = erase(tables, store)
    assert (plan.rows, plan.versions, plan.snapshots, plan.unnamed) == (1, 5, 3, 0)
    assert erased.rows == 1
    assert len(erased.versions) == plan.versions
    assert not places_with(tables, [store], *MARKS)
    assert [entry.id for entry in graph(tables, store).entries()] == attempts
    after = rows_at_each(tables, store)
    assert after == others(before) == rows_at_each(tables, twin)
    report = verify(tables, store, with_record=False)
    assert not report.findings
    assert [entry.keys for entry in graph(tables, store).entries()] == [
        entry.keys for entry in graph(tables, twin).entries()
    ]
    assert [entry.added for entry in graph(tables, store).entries()] == [
        entry.added for entry in graph(tables, twin).entries()
    ]
    assert plan_erase(tables, [store], GIVEN).is_empty


@pytest.mark.slow
def test_killed_at_each_request_and_repeated(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """Between the two, all other rows can be read at every version; then nothing is left of the erased ones."""
    build(memory_engine, memory, store, versions=14)
    expected = others(rows_at_each(memory, store))
    items = dict(memory.items)
    for _ in each_request(lambda tables: erase(tables, store), memory):
        if memory.items == items:
            continue  # a read
        items = dict(memory.items)
        assert others(rows_at_each(memory, store, is_counted=False)) == expected
        erase(memory, store)
        assert not places_with(memory, [store], *MARKS)
        assert rows_at_each(memory, store) == expected
        assert not verify(memory, store, with_record=False).findings


def test_a_row_that_went_in_a_later_list(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """Cut off between lists, an erase repeated does not take the row from counts again, also of unchanged lists."""
    builder = StoreBuilder(memory_engine, store)
    changes: dict[int, Change] = {3: (user(PERSON), counted(1)), 13: (user(PERSON), None)}
    for number in range(1, 27):
        builder.commit((user("a"), counted(number)), *([changes[number]] if number in changes else []))
    expected, items = others(rows_at_each(memory, store)), dict(memory.items)
    lists = [key for key in items if key.sort.startswith("list/")]
    assert len(lists) == 3
    replaced: list[bool] = []
    for _ in crashes(lambda tables: erase(tables, store), memory, applied=True):
        earlier, replaced = replaced, [memory.items[key]["versions"] != items[key]["versions"] for key in lists]
        if replaced == earlier:
            continue
        erase(memory, store)
        assert rows_at_each(memory, store) == expected


def test_a_query_that_has_committed_nothing(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Its state has no schema, so no columns. What a failed attempt of its first batch has left is deleted."""
    builder = StoreBuilder(engines(memory, inline_bytes=0), store)
    change = builder._record(0, user(PERSON), counted(1, SECRET))
    under_way = builder._engine.begin(store, query_run("run-1"), *EMPTY, A)
    under_way.append(chunk_of(change))
    under_way.flush()
    under_way._pending.wait(10)
    assert places_with(memory, [store], *MARKS)
    plan, _ = erase(memory, store)
    assert plan.rows == 0
    assert not places_with(memory, [store], *MARKS)
    assert find_absence(memory, [store], GIVEN)[0].is_absent


def test_changes_that_are_read_meanwhile(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """Changes of a version that is written again before they are read: the error is not that it is corrupt."""
    build(memory_engine, memory, store, versions=3)
    newest = graph(memory, store).newest()
    with closing(make_engine(memory, inline_bytes=0)) as reader:
        feed = reader.changes(store, 1, newest.version, newest.attempt)
        erase(memory, store)
        with pytest.raises(VersionMissingError, match="rows were erased from this version"):
            _ = [[*chunks] for _, chunks in feed.versions]
        again = reader.changes(store, 1, newest.version, newest.attempt)
        assert [version for version, chunks in again.versions if [*chunks]] == [1, 2]


def test_over_http(http: Tables, store: str) -> None:
    """DynamoDB compares whole lists of entries, and removes the mark, as the tables in memory do."""
    with closing(make_engine(http)) as engine:
        build(engine, http, store, versions=8)
        expected = others(rows_at_each(http, store))
        erase(http, store)
        assert not places_with(http, [store], *MARKS)
        assert rows_at_each(http, store) == expected
        assert not graph(http, store).required_meta.erasing
        assert graph(http, store).required_meta.erasures == 2
