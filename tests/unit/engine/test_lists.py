"""Room in version lists."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.engine import Engine
from dynastate.engine.lists import LIST_BYTES_MAX, LISTED_MAX
from dynastate.errors import ConfigurationError, UnavailableError
from dynastate.format.items import item_bytes
from dynastate.format.keys import EMPTY, NO_ATTEMPT, VersionId, version_list_key
from dynastate.format.meta import EPOCHS_KEPT
from dynastate.format.version_list import REFUSED, encode_entry, listed_entry
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.lifecycle.clean import clean_store
from dynastate.storage.limits import STORED_BYTES_MAX
from dynastate.storage.tables import Tables
from tests.support.contents import graph, parts_of
from tests.support.engine_driver import Engines, begin, make_engine, read, save_snapshot, write, write_versions
from tests.support.faults import FailingTables, Fault
from tests.support.memory_tables import MemoryTables
from tests.support.samples import CHECKPOINT, SCHEMA, A, B, C, attempt, chunk, numbers, query_run

#: As a schema with many column families, whose counts are in each entry: some 10 KB of it.
LARGE: Final = dict.fromkeys(range(900), 2**62)


def write_large(engine: Engine, store: str, number: int, base: VersionId, run: str) -> VersionId:
    write_attempt = begin(engine, store, attempt(number), {b"n": b"%d" % number}, base=base, run=run)
    return write_attempt.commit(LARGE, SCHEMA).entry.id


def list_bytes(tables: Tables, store: str, version: int) -> int:
    key = version_list_key(store, version)
    return item_bytes(tables.get([key])[key])


def fill(engine: Engine, tables: Tables, store: str, base: VersionId, run: str) -> VersionId:
    """Make attempts with entries of 10 KB while the list has room; return the last."""
    number = 1000
    while True:
        last = write_large(engine, store, number, base, run)
        number += 1
        if list_bytes(tables, store, base.version + 1) > STORED_BYTES_MAX - 11_000:
            return last


def commit_120(engine: Engine, store: str, base: VersionId, location: str = CHECKPOINT) -> VersionId:
    """Commit 120 attempts on one base, six a run; return the last."""
    for number in range(1000, 1120):
        run = query_run(f"later-{number // 6}", location)
        write_attempt = engine.begin(store, run, *base, attempt(number))
        write_attempt.append(chunk({b"n": b"%d" % number}))
        write_attempt.commit({0: 1}, SCHEMA)
    return VersionId(base.version + 1, attempt(number))


@pytest.mark.slow
@pytest.mark.usefixtures("always_worth_it")
def test_a_version_made_repeatedly_does_not_fill_its_list(engine: Engine, tables: Tables, store: str) -> None:
    """A query whose batches fail after state is committed, run by run: of one version the newest attempts stay."""
    one = write(engine, store, A, {b"one": b"1"})
    for number in range(1, 131):
        version = write(engine, store, attempt(1000 + number), {b"n": b"%d" % number}, base=one, run=f"run-{number}")
    listed = graph(tables, store)
    assert listed.versions() == [1, 2]
    assert len(list(listed.entries())) <= LISTED_MAX + 1
    assert read(engine, store, *version) == read(engine, store, 2) == {b"one": b"1", b"n": b"130"}
    assert read(engine, store, 2, attempt(1000 + 130 - EPOCHS_KEPT + 1)) == {b"one": b"1", b"n": b"115"}
    two = write_versions(engine, store, 12, base=version, run="run-130")[-1]
    state = read(engine, store, *two)
    save_snapshot(engine, store, two, state, lambda _: set(state), run="run-130")
    last = write_versions(engine, store, 2, base=two, run="run-130")[-1]
    engine.maintenance.clean_up(store, "run-130", *last, 2, 1, 0)
    assert {int(key.sort.split("/")[0]) for key, _ in parts_of(tables, store)} <= set(range(14, 17))


@pytest.mark.parametrize("version", [1, 2, 10])
def test_large_attempts_fill_no_list(memory_engine: Engine, memory: MemoryTables, store: str, version: int) -> None:
    """A batch that each run makes again, with entries of 10 KB: also the first one, which has none before it."""
    base = write_versions(memory_engine, store, version - 1, run="run-0")[-1]
    for number in range(1, 46):
        last = write_large(memory_engine, store, 1000 + number, base, f"run-{number // 3}")
        assert list_bytes(memory, store, version) < LIST_BYTES_MAX + 15_000
    assert read(memory_engine, store, *last) == {**numbers(version - 1), b"n": b"1045"}
    assert read(memory_engine, store, version, attempt(1043)), "an attempt of the run before"
    assert graph(memory, store).versions() == list(range(1, version + 1))


def test_a_full_list_is_shortened_before_the_append(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """Other commits filled it, and could not shorten it: attempts that the driver passed over go first."""
    one = write(memory_engine, store, A, {b"one": b"1"})
    key = version_list_key(store, 1)
    listed = memory.items[key]["versions"]
    assert isinstance(listed, list)
    first = listed_entry(store, key, listed[0])
    others = (replace(first, attempt=attempt(2000 + n), keys=LARGE) for n in range(40))
    raw = [encode_entry(store, each) for each in others]
    fit = (STORED_BYTES_MAX - item_bytes(memory.items[key])) // (len(raw[0]) + 1)
    memory.items[key]["versions"] = [*listed, *raw[:fit]]
    two = write_large(memory_engine, store, 3000, one, "run-1")
    assert memory.called("put_over")
    assert list_bytes(memory, store, 1) < LIST_BYTES_MAX + 15_000
    assert read(memory_engine, store, *two) == {b"one": b"1", b"n": b"3000"}


def test_a_full_list_is_shortened_on_a_real_interface(moto: BotoTables, store: str) -> None:
    """Moto is full much earlier, and refuses as DynamoDB does."""
    engine = make_engine(moto)
    for number in range(30):
        version = write_large(engine, store, 1000 + number, EMPTY, f"run-{number}")
    assert read(engine, store, *version) == {b"n": b"1029"}
    engine.close()


@pytest.mark.parametrize("how", ["refused", "forks"])
def test_full_list_of_a_run_says_what_to_do(memory_engine: Engine, memory: MemoryTables, store: str, how: str) -> None:
    """What two runs made may be needed: a commit fails, and clean-up deletes nothing; a later run's commit does."""
    base = write_versions(memory_engine, store, 1, run="run-0")[-1]
    key = version_list_key(store, 1)
    memory.items[key] |= {how: frozenset({"other/0/0/default"})}
    last = fill(memory_engine, memory, store, base, "run-1")
    with pytest.raises(ConfigurationError, match=r"version list is full, 400 KB.*restart the query"):
        write_large(memory_engine, store, 2000, base, "run-1")
    run_two = begin(memory_engine, store, B, {b"n": b"2"}, base=base, run="run-2")
    with pytest.raises(ConfigurationError, match=r"version list is full, 400 KB.*restart the query"):
        run_two.commit(LARGE, SCHEMA)
    if how == "forks":
        run_three = begin(memory_engine, store, C, {b"n": b"2"}, base=base, run="run-3")
        with pytest.raises(ConfigurationError, match=r"no room.*while forks depend on it: other. Drop them"):
            run_three.commit(LARGE, SCHEMA)
        return
    run_three = begin(memory_engine, store, C, {b"n": b"3"}, base=base, run="run-3")
    run_three.flush()
    item = memory.items[key]
    with pytest.raises(ConfigurationError, match="a newer run of the query has begun"):
        clean_store(memory_engine, memory, store, 2)
    assert memory.items[key] == item
    assert read(memory_engine, store, *last)
    run_three.commit(LARGE, SCHEMA)
    assert list_bytes(memory, store, 2) < LIST_BYTES_MAX + 15_000
    version = write_large(memory_engine, store, 3000, base, "run-3")
    assert read(memory_engine, store, *version) == {b"1": b"1", b"n": b"3000"}
    assert memory.items[key]["refused"] == frozenset({"other/0/0/default"})


def test_a_list_without_room_loses_no_version(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """The only attempt at a version stays: the commit that may delete it has no room even so."""
    base = write_versions(memory_engine, store, 1, run="run-0")[-1]
    only = write_large(memory_engine, store, 1000, base, "run-0")
    for number in (1, 2):
        begin(memory_engine, store, attempt(number), {b"n": b"0"}, base=base, run=f"run-{number}").flush()
    key = version_list_key(store, 1)
    room = STORED_BYTES_MAX - list_bytes(memory, store, 1) - 100
    memory.items[key][REFUSED] = frozenset({"run" * (room // 3)})
    run_three = begin(memory_engine, store, C, {b"n": b"3"}, base=base, run="run-3")
    with pytest.raises(ConfigurationError):
        run_three.commit(LARGE | dict.fromkeys(range(900, 1000), 2**62), SCHEMA)
    assert graph(memory, store).versions() == [1, 2]
    assert read(memory_engine, store, *only)


@pytest.mark.parametrize("entries", ["many", "large"])
def test_clean_up_leaves_chosen_attempts(memory_engine: Engine, memory: MemoryTables, store: str, entries: str) -> None:
    """A batch was made again and again, and succeeded; then many runs died before they committed the next one."""
    base = write_versions(memory_engine, store, 2)[-1]
    if entries == "many":
        numbers_of_run = {run: range(100 * run, 100 * run + 8) for run in range(2, 20)}
    else:
        numbers_of_run = {2: range(1000, 1026)}
    keys = LARGE if entries == "large" else {0: 1}
    for run, made_by in numbers_of_run.items():
        for number in made_by:
            write_attempt = begin(
                memory_engine, store, attempt(number), {b"n": b"%d" % number}, base=base, run=f"run-{run}"
            )
            write_attempt.commit(keys, SCHEMA)
    chosen = VersionId(3, attempt(made_by[0]))
    last = VersionId(3, attempt(number))
    for run in range(20, 38):
        begin(memory_engine, store, attempt(9000 + run), {b"x": b"1"}, base=chosen, run=f"run-{run}").flush()
    with pytest.raises(ConfigurationError, match="a newer run of the query has begun"):
        clean_store(memory_engine, memory, store, 100)
    for version in (chosen, last):
        assert read(memory_engine, store, *version)[b"n"] == b"%d" % int.from_bytes(version.attempt, "big")


def test_a_long_list_keeps_the_bases_of_others(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """Version 3 of the first run is the base of version 4, which a restart at batch 2 left behind."""
    versions = write_versions(memory_engine, store, 4)
    last = commit_120(memory_engine, store, versions[2])
    listed = {each.id for each in graph(memory, store).entries()}
    assert {versions[3], versions[4], last} <= listed
    assert len(listed) <= LISTED_MAX + 1
    assert [each for each in verify(memory, store).findings if each.what != "orphaned"] == []
    assert read(memory_engine, store, *versions[4])[b"4"] == b"4"


def test_a_long_list_keeps_what_a_run_continues(engines: Engines, memory: MemoryTables, store: str) -> None:
    """One run has entered with a child that is not listed yet, when a run that was suspended since enters last.

    The attempts that drivers have chosen since that run began do not follow from its entry. A model in Alloy found it.
    """
    one = write(engines(), store, A, {b"one": b"1"}, run="first")
    for number in range(1000, 1000 + LISTED_MAX):
        write(engines(), store, attempt(number), {b"one": b"2"}, run="first")
    child = begin(engines(), store, B, {b"two": b"2"}, base=one, run="second")
    child.flush()  # its run has entered the store
    write(engines(), store, C, {b"one": b"1"}, run="suspended")
    child.commit({0: 2}, SCHEMA)
    assert read(engines(), store, 2, B) == {b"one": b"1", b"two": b"2"}


def test_a_long_list_keeps_what_another_query_means(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """It was taken back, and made version 3 again, before the next query began in its place."""
    versions = write_versions(memory_engine, store, 4)
    version = write(memory_engine, store, A, {b"3": b"again"}, base=versions[2], run="run-2")
    base = EMPTY
    for number in range(1, LISTED_MAX + 20):
        run = query_run(f"other-{number}", query="other")
        under_way = memory_engine.begin(store, run, *base, attempt(2000 + number))
        under_way.append(chunk({b"1": b"other"}))
        under_way.commit({0: 1}, SCHEMA)
        if base.version < 3:
            base = VersionId(base.version + 1, attempt(2000 + number))
    listed = graph(memory, store)
    assert len([*listed.entries()]) <= LISTED_MAX + 1
    assert listed.find(3, NO_ATTEMPT, query_run("run-3")).id == version


def test_a_long_list_keeps_what_another_checkpoint_made(memory: MemoryTables, engines: Engines, store: str) -> None:
    """A copy of the checkpoint fails 120 times, after a restart at batch 2; then the original continues."""
    versions = write_versions(engines(memory), store, 4)
    adopt_stores(memory, [store], "file:/moved/state")
    commit_120(engines(memory), store, versions[2], "file:/moved/state")
    adopt_stores(memory, [store], CHECKPOINT)
    last = write(engines(memory), store, A, {b"5": b"5"}, base=versions[4], run="run-9")
    assert read(engines(memory), store, *last) == numbers(5)


def test_a_list_that_cannot_be_shortened_fails_no_commit(
    failing_engine: Engine, failing_tables: FailingTables, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The version exists by then: the log reports the failure, and the next commit retries."""
    one = write(failing_engine, store, A, {b"one": b"1"})
    for turn in range(1, LISTED_MAX + 1):
        if turn == LISTED_MAX:
            failing_tables.fail("put_over", Fault(UnavailableError("throttled")))
        version = write(failing_engine, store, attempt(1000 + turn), {b"n": b"%d" % turn}, base=one, run=f"run-{turn}")
    assert "a version list stays long" in caplog.text
    assert read(failing_engine, store, *version) == {b"one": b"1", b"n": b"%d" % LISTED_MAX}
