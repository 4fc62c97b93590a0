"""Erasing beside runs, forks, other commands and other erases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Event
from typing import Any

import pytest

from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, CorruptStateError, UnavailableError
from dynastate.format.items import item_bytes
from dynastate.format.keys import VersionId, meta_key, version_list_key
from dynastate.format.meta import DELETING, DROPPED, ERASE_ID, ERASING, MARKED, parse_meta
from dynastate.format.version_list import ERASED
from dynastate.operations.erase import erase as erase_module
from dynastate.operations.erase.erase import erase_stores, plan_erase
from dynastate.operations.erase.keys import GivenKeys
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.lifecycle.clean import clean_store
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from dynastate.storage.tables import Tables
from tests.support.crashes import races
from tests.support.engine_driver import Engines, begin, take_snapshot
from tests.support.faults import Dying, FailingTables, Overtaken
from tests.support.forks import fork, new_of
from tests.support.memory_tables import MemoryTables
from tests.support.samples import SCHEMA, attempt
from tests.support.search import places_with
from tests.support.store_builder import StoreBuilder, counted, user

pytestmark = pytest.mark.usefixtures("always_worth_it")

PERSON = "marked-person"
GIVEN = GivenKeys([user(PERSON)])


def build(engine: Engine, store: str, versions: int = 12) -> StoreBuilder:
    """Make a store in which each version changes the person's row and another one."""
    builder = StoreBuilder(engine, store)
    for number in range(1, versions + 1):
        builder.commit((user(PERSON), counted(number)), (user("a"), counted(number)))
    return builder


def erase(tables: Tables, *stores: str, given: GivenKeys = GIVEN) -> None:
    erase_stores(tables, plan_erase(tables, stores, given), given)


def cut_off(tables: MemoryTables, store: str) -> None:
    """Erase, with a crash after the store was marked."""
    plan = plan_erase(tables, [store], GIVEN)
    with pytest.raises(UnavailableError):
        erase_stores(Dying(tables, 6, applied=True), plan, GIVEN)
    assert parse_meta(store, tables.items[meta_key(store)]).erasing == GIVEN.digest


def rows(tables: Tables, store: str) -> list[dict[str, Any]]:
    with StateReader(tables, Settings(), store) as state:
        return sorted(state, key=repr)


def test_the_query_goes_on(engines: Engines, tables: Tables, store: str) -> None:
    """From the newest version, in an application that has read nothing before."""
    builder = build(engines(), store)
    erase(tables, store)
    resumed = StoreBuilder(engines(), store, run="run-2")
    resumed.version = builder.version
    resumed.commit((user("a"), counted(99)))
    assert rows(tables, store) == [{"user": "a", "count": 99, "note": ""}]
    assert not verify(tables, store, with_record=False).findings


def test_a_commit_under_way_is_refused(engines: Engines, tables: Tables, store: str) -> None:
    """Its parts are deleted, and its error says what was done."""
    engine = engines()
    builder = build(engine, store)
    late = begin(engine, store, attempt(999), {b"k": PERSON.encode()}, base=builder.version)
    late.flush()
    late._pending.wait(5)  # its parts are there
    erase(tables, store)
    with pytest.raises(ConfigurationError, match=r"may not commit any more.*dynastate erase"):
        late.commit({0: 1}, SCHEMA)
    assert not places_with(tables, [store], PERSON.encode())


def test_an_executor_that_has_read_the_rows_is_refused(engines: Engines, tables: Tables, store: str) -> None:
    """A run that has not written yet may have the rows in memory; another application may go on."""
    builder = build(engines(), store)
    reading = engines()
    reading.open(store, *builder.version)
    erase(tables, store)
    under_way = begin(reading, store, attempt(998), base=builder.version, run="run-2")
    with pytest.raises(ConfigurationError, match="end the Spark application, and start the query again"):
        under_way.commit({0: 1}, SCHEMA)
    begin(engines(), store, attempt(997), base=builder.version, run="run-3").commit({0: 1}, SCHEMA)


def test_a_store_that_was_dropped_and_made_again(engines: Engines, tables: Tables, store: str) -> None:
    """What an earlier erase has noted in lists goes with them, so that it does not count for the new store."""
    build(engines(), store, 4)
    erase(tables, store)
    drop_stores(tables, [store])
    of_other = StoreBuilder(engines(), store, run="run-9", query="other")
    for number in range(1, 5):
        of_other.commit((user(PERSON), counted(number)), (user("a"), counted(number)), by=attempt(100 + number))
    erase(tables, store)
    assert not places_with(tables, [store], PERSON.encode())
    assert rows(tables, store) == [{"user": "a", "count": 4, "note": ""}]


def test_each_erase_has_an_id_of_its_own(engines: Engines, memory: MemoryTables, store: str) -> None:
    """A list that an earlier erase has replaced, in whatever store, is replaced again; a fence has no such id."""
    build(engines(memory), store, 2)
    erase(memory, store)
    list_key = version_list_key(store, 1)
    first_id = memory.items[list_key][ERASED]
    erase(memory, store, given=GivenKeys([user("a")]))
    assert memory.items[list_key][ERASED] not in ("", first_id)
    drop_stores(memory, [store])
    assert ERASED not in memory.items[list_key]


def test_a_drop_that_was_cut_off_too(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Before it has deleted anything, the erase can be ended, and the query goes on."""
    builder = build(engines(memory), store)
    cut_off(memory, store)
    meta = memory.items[meta_key(store)]
    memory.items[meta_key(store)] = meta | {DROPPED: DELETING}
    with pytest.raises(ConfigurationError, match="this store is being dropped: end that first"):
        erase(memory, store)
    memory.items[meta_key(store)] = meta | {DROPPED: MARKED}
    erase(memory, store)
    assert not {DROPPED, ERASING, ERASE_ID} & memory.items[meta_key(store)].keys()
    begin(engines(memory), store, attempt(998), base=builder.version, run="run-2").commit({0: 1}, SCHEMA)


def test_no_run_enters_and_no_fork_is_made_meanwhile(engines: Engines, memory: MemoryTables, store: str) -> None:
    """The errors say to repeat the command, which then completes it."""
    builder = build(engines(memory), store)
    cut_off(memory, store)
    starting = begin(engines(memory), store, attempt(998), base=builder.version, run="run-2")
    with pytest.raises(ConfigurationError, match="end it with the same dynastate erase"):
        starting.commit({0: 1}, SCHEMA)
    with pytest.raises(ConfigurationError, match="end it with the same dynastate erase"):
        fork(memory, store)
    drop_stores(memory, [new_of(store)])
    with pytest.raises(ConfigurationError, match="end it with the same dynastate erase"):
        adopt_stores(memory, [store], "file:/elsewhere/state")
    with pytest.raises(ConfigurationError, match="other keys are erased from this store"):
        plan_erase(memory, [store], GivenKeys([user("a")]))
    erase(memory, store)
    assert not places_with(memory, [store], PERSON.encode())
    fork(memory, store)


def test_no_snapshot_of_an_old_run(engines: Engines, tables: Tables, store: str) -> None:
    """Its executor has the rows in memory: a snapshot under way is deleted, and none begins."""
    engine = engines()
    builder = build(engine, store)
    state = {key: values[0] for (_, key), values in builder.state.items()}
    under_way = take_snapshot(engine, store, builder.version, state)
    assert under_way is not None
    erase(tables, store)
    assert not under_way.commit()
    assert take_snapshot(engine, store, builder.version, state) is None
    assert plan_erase(tables, [store], GIVEN).is_empty
    assert not places_with(tables, [store], PERSON.encode())


@pytest.mark.parametrize("named", ["origin", "fork"])
def test_forks_and_origins_are_erased_together(engines: Engines, tables: Tables, store: str, named: str) -> None:
    """Whichever is named; afterwards each has its rows, and the fork can be dropped."""
    engine, new = engines(), new_of(store)
    builder = build(engine, store, 8)
    assert compact_store(engine, tables, store)
    builder.commit((user(PERSON), counted(100)), (user("b"), counted(1)))
    fork(tables, store)
    of_fork = StoreBuilder(engine, new, run="test")
    of_fork.version = builder.version
    of_fork.commit((user(PERSON), counted(7)), (user("c"), counted(1)))
    before = {each: rows(tables, each) for each in (store, new)}
    plan = plan_erase(tables, [store if named == "origin" else new], GIVEN)
    assert {*plan.stores} == {store, new}
    erase_stores(tables, plan, GIVEN)
    assert not places_with(tables, [store, new], PERSON.encode())
    for each in (store, new):
        assert rows(tables, each) == [row for row in before[each] if row["user"] != PERSON]
        assert not verify(tables, each, with_record=False).findings
    drop_stores(tables, [new])
    assert not verify(tables, store, with_record=False).findings


def test_a_full_list_is_refused_before_the_mark(
    engines: Engines, memory: MemoryTables, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an erase adds to it is counted; an erase that was cut off has added some of that, and goes on."""
    build(engines(memory), store, 8)
    size = item_bytes(memory.items[version_list_key(store, 1)])
    items = dict(memory.items)
    monkeypatch.setattr(erase_module, "ITEM_BYTES_MAX", size + 200)
    with pytest.raises(ConfigurationError, match="a version list is nearly full"):
        plan_erase(memory, [store], GIVEN)
    assert memory.items == items
    monkeypatch.setattr(erase_module, "ITEM_BYTES_MAX", size + 300)
    cut_off(memory, store)
    monkeypatch.setattr(erase_module, "ITEM_BYTES_MAX", size)
    erase(memory, store)
    assert item_bytes(memory.items[version_list_key(store, 1)]) <= size + 300


def test_a_fork_that_needs_nothing_of_its_origin(engines: Engines, memory: MemoryTables, store: str) -> None:
    """It is erased alone, also when the origin was dropped, or its name is another query's."""
    builder, new = build(engines(memory), store, 3), new_of(store)
    fork(memory, store)
    assert {*plan_erase(memory, [new], GIVEN).stores} == {store, new}
    of_fork = StoreBuilder(engines(memory), new, run="run-f")
    of_fork.version, of_fork.state = builder.version, builder.state
    of_fork.commit((user(PERSON), counted(4)))
    assert compact_store(engines(memory), memory, new)
    for number in range(5, 24):
        of_fork.commit((user("a"), counted(number)))
    clean_store(engines(memory), memory, new, 3)
    assert not parse_meta(new, memory.items[meta_key(new)]).pins
    drop_stores(memory, [store])
    assert plan_erase(memory, [new], GIVEN).stores == [new]
    StoreBuilder(engines(memory), store, run="run-9", query="other").commit((user("a"), counted(1)), by=attempt(77))
    assert plan_erase(memory, [new], GIVEN).stores == [new]
    erase(memory, new)
    assert not places_with(memory, [new], PERSON.encode())


def test_a_corrupt_store_is_refused(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Its rows are not known; nothing is written."""
    build(engines(memory), store)
    lost = next(key for key in memory.items if key.role == "delta")
    del memory.items[lost]
    items = dict(memory.items)
    with pytest.raises(CorruptStateError, match="a part that a version list or a manifest names is not in its table"):
        plan_erase(memory, [store], GIVEN)
    assert memory.items == items


def test_versions_made_since_are_erased_too(engines: Engines, tables: Tables, store: str) -> None:
    """A plan may be older than the newest version of a query that was stopped since."""
    builder = build(engines(), store)
    plan = plan_erase(tables, [store], GIVEN)
    builder.commit((user(PERSON), counted(100)))
    erase_stores(tables, plan, GIVEN)
    assert not places_with(tables, [store], PERSON.encode())
    assert builder.version == VersionId(13, attempt(13))


def test_an_executor_that_has_only_written_is_refused(engines: Engines, tables: Tables, store: str) -> None:
    """It has read no meta item with versions, and still has the rows of its commits in memory."""
    engine = engines(cache_bytes=2**20)
    builder = build(engine, store, 4)
    erase(tables, store)
    with pytest.raises(ConfigurationError, match="end the Spark application, and start the query again"):
        begin(engine, store, attempt(998), base=builder.version, run="run-2").commit({0: 1}, SCHEMA)


def test_an_executor_that_knew_a_dropped_store_is_refused(engines: Engines, tables: Tables, store: str) -> None:
    """Erasing counts from the beginning in the store that was made again."""
    build(engines(), store, 2)
    erase(tables, store)
    engine = engines(cache_bytes=2**20)
    engine.open(store, 2, attempt(2))
    drop_stores(tables, [store])
    builder = StoreBuilder(engine, store, run="run-5", query="other")
    builder.commit((user(PERSON), counted(1)), (user("a"), counted(1)), by=attempt(51))
    erase(tables, store)
    with pytest.raises(ConfigurationError, match="end the Spark application, and start the query again"):
        begin(engine, store, attempt(998), base=builder.version, run="run-6").commit({0: 1}, SCHEMA)


def test_a_snapshot_that_is_entered_late(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Its executor was suspended after it had read the lists: the rows in its memory do not come back."""
    builder = build(engines(memory), store, 4)
    state = {key: values[0] for (_, key), values in builder.state.items()}
    late = engines(Overtaken(memory, lambda: erase(memory, store), before="put_new"))
    assert take_snapshot(late, store, builder.version, state) is None
    assert plan_erase(memory, [store], GIVEN).is_empty
    assert not places_with(memory, [store], PERSON.encode())


def test_compact_at_any_request(engines: Engines, memory: MemoryTables, store: str) -> None:
    """It makes no snapshot of rows that it has read before."""
    build(engines(memory), store, 4)

    def compact(tables: Tables) -> None:
        compact_store(engines(tables), tables, store)

    for _, error in races(memory, compact, lambda: erase(memory, store)):
        assert error is None
        assert not places_with(memory, [store], PERSON.encode())
        assert rows(memory, store) == [{"user": "a", "count": 4, "note": ""}]


def test_a_suspended_erase(engines: Engines, memory: MemoryTables, store: str) -> None:
    """While another completed it, and the query goes on: it deletes nothing of the new versions, and says so."""
    base, errors = build(engines(memory), store, 4).version, []

    def complete_and_go_on() -> None:
        erase(memory, store)
        resumed = StoreBuilder(engines(memory), store, run="run-2")
        resumed.version = base
        for number in range(3):
            resumed.commit((user("a"), counted(100 + number)), by=attempt(500 + number))

    for error, other_error in races(memory, lambda tables: erase(tables, store), complete_and_go_on):
        errors.append(str(error))
        if other_error is None:
            assert rows(memory, store) == [{"user": "a", "count": 102, "note": ""}]
        findings = verify(memory, store, with_record=False).findings
        assert not [each for each in findings if each.what != "orphaned"]
    assert any("something else has changed this store meanwhile" in each for each in errors)


@pytest.mark.parametrize("request_number", [7, 9, 13])
@pytest.mark.parametrize("write", [4, 5, 6])
def test_a_suspended_clean_up(
    engines: Engines, memory: MemoryTables, store: str, request_number: int, write: int
) -> None:
    """Begun before, it goes on while buckets are rewritten: it deletes none of them, and none that the fork needs."""
    engine = engines(memory)
    builder = StoreBuilder(engine, store)
    for number in range(1, 28):
        person = [(user(PERSON), counted(number))] if number in {1, 4} else []
        builder.commit((user("a"), counted(number)), (user("c"), counted(number)), *person)
        if number in {6, 22}:
            assert compact_store(engine, memory, store)
        if number == 6:
            fork(memory, store, 6)
    is_held, may_go_on, numbers = Event(), Event(), count(1)

    def hold(_: str) -> None:
        if next(numbers) == request_number:
            is_held.set()
            assert may_go_on.wait(10)

    def clean() -> None:
        suspended = FailingTables(memory, hold)
        clean_store(engines(suspended), suspended, store, 3)

    with ThreadPoolExecutor(1) as pool:
        cleaned = pool.submit(clean)
        assert is_held.wait(10)
        writes = count(1)

        def let_go(verb: str) -> None:
            if verb == "write" and next(writes) == write:
                may_go_on.set()
                cleaned.exception(10)

        try:
            erase(FailingTables(memory, let_go), store)
        finally:
            may_go_on.set()
        cleaned.result(10)
    for each in (store, new_of(store)):
        findings = verify(memory, each, with_record=False).findings
        assert not [finding for finding in findings if finding.what != "orphaned"]
        assert not places_with(memory, [each], PERSON.encode())
