"""Forks, drops and clean-up that crash at any request, meet another operation there, or send a request late."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pytest

from dynastate.engine.catalog import whole_namespace
from dynastate.errors import (
    ConfigurationError,
    DynastateError,
    RouteInvalidError,
    UnavailableError,
    VersionMissingError,
)
from dynastate.format.keys import EMPTY, VersionId, meta_key, snapshot_key, version_list_key
from dynastate.format.meta import FORKS, PINS, QueryRun
from dynastate.operations.inspection.findings import Report
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.lifecycle.clean import clean_store
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.operations.pins import is_complete, unpin_dropped
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from dynastate.storage.tables import Tables
from tests.support.contents import graph
from tests.support.crashes import Operation, crashes, each_request, error_of, races
from tests.support.engine_driver import (
    Engines,
    closing,
    make_engine,
    read,
    recover,
    save_snapshot,
    write,
    write_versions,
)
from tests.support.faults import Dying, FailingTables, Fault, Overtaken, Recorded
from tests.support.forks import (
    both,
    drop_fork,
    fork,
    is_nowhere,
    never_forked,
    new_of,
    pins,
    snapshot_of,
    start_over,
    without_fences,
    write_with_snapshots,
)
from tests.support.memory_tables import MemoryTables, without_list
from tests.support.samples import CHECKPOINT, QUERY, State, attempt, namespace_of, numbers, query_run
from tests.support.store_builder import StoreBuilder

Versions = list[VersionId]
pytestmark = pytest.mark.usefixtures("always_worth_it")


@pytest.fixture
def make(memory: MemoryTables) -> Iterator[Engines]:
    yield from closing(memory)


@pytest.fixture
def versions(make: Engines, store: str) -> Versions:
    """Those of two stores on tables in memory, in two groups, with a snapshot, to be forked."""
    first, _ = (write_with_snapshots(make(), name, 12, 7) for name in both(store))
    return first


def test_a_fork_that_crashes_is_resumed(make: Engines, memory: MemoryTables, store: str, versions: Versions) -> None:
    """It is resumed at its version, though the query has run on, and ends as if it had not crashed."""
    engine = make()
    for _ in each_request(lambda tables: fork(tables, store, 11), memory):
        if is_complete(memory, new_of(store), 11):  # only the last answer did not come
            with pytest.raises(ConfigurationError, match="has state already"):
                fork(memory, store)
        else:
            has_meta = meta_key(new_of(store)) in memory.items
            if has_meta:
                with pytest.raises(ConfigurationError, match="at another version has begun there and was cut off"):
                    fork(memory, store, 12)
            assert fork(memory, store, None if has_meta else 11).version == 11
        for name in both(store):
            assert read(engine, new_of(name), *versions[11]) == numbers(11)
            assert verify(memory, new_of(name)).findings == ()
        drop_fork(memory, store)
        assert is_nowhere(memory, namespace_of(new_of(store)))


def make_again(make: Engines, store: str, base: VersionId, run: str | QueryRun = "run-2") -> None:
    """Take the query back to a version, and make the next one again in both partitions."""
    for name in both(store):
        write(make(), name, attempt(500), {b"%d" % (base.version + 1): b"another"}, base=base, run=run)


def read_fork(make: Engines, store: str, version: int) -> list[State]:
    return [read(make(), new_of(name), version) for name in both(store)]


def test_a_fork_is_of_one_moment(memory: MemoryTables, make: Engines, store: str) -> None:
    """The fork is cut off, and the query is taken back before its version: both partitions are of one history."""
    versions, _ = (write_versions(make(), each, 5) for each in both(store))
    for _ in each_request(lambda tables: fork(tables, store), memory):
        has_meta = meta_key(new_of(store)) in memory.items
        make_again(make, store, versions[4])
        if not is_complete(memory, new_of(store), 5):
            assert fork(memory, store).version == 5
        assert read_fork(make, store, 5) == [numbers(5) if has_meta else numbers(4) | {b"5": b"another"}] * 2


def test_a_query_that_restarts_while_its_fork_is_made(memory: MemoryTables, make: Engines, store: str) -> None:
    """What its next run makes of the version is not forked, between any two requests of the fork."""
    versions, _ = (write_versions(make(), each, 5) for each in both(store))
    forked: list[int] = []
    for failures in races(
        memory, lambda tables: forked.append(fork(tables, store).version), lambda: make_again(make, store, versions[4])
    ):
        assert failures == (None, None)
        states = [[state] * 2 for state in (numbers(5), numbers(4), numbers(4) | {b"5": b"another"})]
        assert read_fork(make, store, forked[-1]) in states


@pytest.mark.parametrize("newest", ["adoption", "fork", "first partition"])
def test_a_fork_is_of_one_moment_in_any_case(memory: MemoryTables, make: Engines, store: str, newest: str) -> None:
    """What is the newest in `epochs` is another id in each store, or in one store only, when the fork is cut off."""
    versions, _ = (write_versions(make(), each, 5) for each in both(store))
    of, location = store, CHECKPOINT
    if newest == "adoption":
        location = "file:/moved/state"
        adopt_stores(memory, both(store), location)
    elif newest == "fork":
        fork(memory, store, name="of")
        of = new_of(store, "of")
    else:
        write(make(), store, attempt(60), {b"6": b"6"}, base=versions[5], run="run-2")
    for _ in crashes(lambda tables: fork(tables, of, 5), memory, least=20):
        if meta_key(new_of(of)) not in memory.items:
            continue  # it begins when it is called again
        make_again(make, of, versions[4], query_run("run-9", location))
        if not is_complete(memory, new_of(of), 5):
            fork(memory, of, 5)
        assert read_fork(make, of, 5) == [numbers(5)] * 2


def test_late_lists_of_a_dropped_fork(memory: MemoryTables, make: Engines, store: str) -> None:
    """They are not taken for those of a fork at a lower version, nor of a query that begins there."""
    versions = write_versions(make(), store, 12)
    recorded = Recorded(memory)
    fork(recorded, store, 12)
    drop_fork(memory, store)
    assert fork(memory, store, 8).version == 8
    recorded.repeat("put_new")
    assert make().lineage(new_of(store)).newest.version == 8
    drop_fork(memory, store)
    recorded.repeat("put_new")
    drop_fork(memory, store)
    newest = write_versions(make(), new_of(store), 3, run="next")[-1]
    assert make().lineage(new_of(store)).newest.id == newest
    assert graph(memory, new_of(store)).required_meta.epoch > 1
    assert read(make(), store, *versions[12]) == numbers(12)


@pytest.mark.parametrize("most", [0, 1, 3])
@pytest.mark.parametrize("version", [13, 20, 22])
def test_late_manifests_are_no_losses(memory: MemoryTables, make: Engines, store: str, version: int, most: int) -> None:
    """Nor where the fork was made again, has a snapshot of its own, and a clean-up is bounded, or cut off anywhere."""
    versions, new = write_with_snapshots(make(), store, 24, 12, 21), new_of(store)
    recorded = Recorded(memory)
    fork(recorded, store, 24)
    drop_fork(memory, store)
    assert fork(memory, store, version).version == version
    versions = write_versions(make(), new, 10, versions[version], run="run-2")
    snapshot_of(make(), new, versions[7], run="run-2")

    def is_sound() -> bool:
        recorded.repeat("write")
        return {finding.what for finding in verify(memory, new).findings} <= {"orphaned"}

    for _ in crashes(lambda on: make_engine(on).maintenance.clean_up(new, "run-2", *versions[-1], 2, 0, most), memory):
        assert is_sound()
    assert is_sound()


def test_a_query_that_starts_over_while_its_fork_is_made(memory: MemoryTables, make: Engines, store: str) -> None:
    """The fork is the first query's in all partitions, also where the other one has entered before."""
    for each in both(store):
        write_versions(make(), each, 5)
    stores, forked, raced = [new_of(name) for name in both(store)], [0], set[int]()

    def start_over_in_both() -> None:
        for name in both(store):
            start_over(make(), name, 1)

    for failures in races(memory, lambda tables: forked.append(fork(tables, store).version), start_over_in_both):
        assert failures[1] is None
        if failures[0] is None:
            raced.add(forked[-1])
            query = QUERY if forked[-1] == 5 else "other"
            assert whole_namespace(memory, namespace_of(stores[0])) == stores
            assert {graph(memory, name).required_meta.query for name in stores} == {query}
    assert raced >= {1, 5}


def test_a_fork_of_other_partitions_is_not_resumed(memory: MemoryTables, make: Engines, store: str) -> None:
    """The query was started over with fewer while the fork was cut off."""
    for each in both(store):
        write_versions(make(), each, 5)
    with pytest.raises(UnavailableError):
        fork(Dying(memory, 25), store)
    assert meta_key(new_of(store)) in memory.items
    start_over(make(), store, 2)
    with pytest.raises(ConfigurationError, match="other stores than when this fork was begun"):
        fork(memory, store)


def test_no_reader_takes_a_part_of_a_fork_for_all(memory: MemoryTables, make: Engines, store: str) -> None:
    """Of a fork that was cut off, whichever partitions are there."""
    for each in both(store):
        StoreBuilder(make(), each).count_to(5)
    name = f"{namespace_of(new_of(store))}/0"
    for _ in each_request(lambda tables: fork(tables, store), memory):
        if not is_complete(memory, new_of(store), 5):
            with pytest.raises(DynastateError), StateReader(memory, Settings(), name):
                pass
            drop_fork(memory, store)
        else:
            with StateReader(memory, Settings(), name) as reader:
                assert {partition for partition, _ in reader.rows_by_partition()} == {0, 1}


@pytest.mark.parametrize("name", [FORKS, PINS])
def test_a_late_request_of_a_dropped_fork(memory: MemoryTables, make: Engines, store: str, name: str) -> None:
    """It was sent twice, for its answer was lost; meanwhile the fork was made again. Clean-up deletes nothing of it."""
    versions = write_versions(make(), store, 5)
    fork(memory, store)
    write(make(), new_of(store), attempt(50), {b"6": b"own"}, base=versions[5], run="test")
    recorded = Recorded(memory)
    drop_stores(recorded, [new_of(store)])
    fork(memory, store)
    recorded.repeat("update", about=name)
    assert verify(memory, new_of(store)).is_whole
    unpin_dropped(memory, store)
    assert verify(memory, new_of(store)).is_whole
    drop_fork(memory, store)
    assert is_nowhere(memory, namespace_of(new_of(store)))


def test_a_fork_that_another_overtakes(make: Engines, memory: MemoryTables, store: str, versions: Versions) -> None:
    """It was dropped and made again, and its query has begun: nothing of it is replaced by the first one."""
    errors: list[str] = []
    newest = EMPTY
    left = number = 0

    def happens(verb: str) -> None:
        nonlocal left, newest
        left -= verb == "put_new"
        if left == -1 and newest == EMPTY:
            drop_fork(memory, store)
            fork(memory, store, 11)
            row = {b"12": b"own"}
            newest = write(make(), new_of(store), attempt(50), row, base=versions[11], run=f"test {number}")

    for number in range(20):
        newest, left = EMPTY, number
        try:
            fork(FailingTables(memory, happens), store, 11)
        except DynastateError as error:
            errors.append(str(error))
        if newest == EMPTY:
            break
        assert recover(make(), new_of(store), *newest) == numbers(11) | {b"12": b"own"}
        assert verify(memory, new_of(store)).is_whole
        drop_fork(memory, store)
    assert 5 < number < 19
    assert any("was dropped while it was made" in error for error in errors)


def test_a_late_request_of_a_drop_of_a_fork(memory: MemoryTables, make: Engines, store: str) -> None:
    """It was sent twice, for its answer was lost; meanwhile the fork was made again at the same version."""
    engine = make()
    versions, new = write_with_snapshots(engine, store, 24, 12, 21), new_of(store)
    fork(memory, store)
    recorded = Recorded(memory)
    drop_stores(recorded, [new])
    fork(memory, store)
    writes = [each for each in recorded.requests if each[0] in ("put_over", "delete_over", "delete", "update")]
    assert len(writes) > 8
    for verb, arguments in writes:
        getattr(memory, verb)(*arguments)
        assert read(make(), new, *versions[-1]) == read(engine, store, *versions[-1]), verb
        assert verify(memory, new).is_whole, verb


def test_a_fork_that_is_made_again_while_it_is_read(memory: MemoryTables, make: Engines, store: str) -> None:
    """What was deleted under the reader is not taken for what is made there since."""
    engine = make()
    newest = write_with_snapshots(engine, store, 24, 12, 21)[-1]
    fork(memory, store)
    reader = make(Overtaken(memory, lambda: drop_fork(memory, store)))
    with pytest.raises(RouteInvalidError, match="clean-up deleted a snapshot meanwhile"):
        read(reader, new_of(store), *newest)
    fork(memory, store)
    assert read(reader, new_of(store), *newest) == read(engine, store, *newest)


def test_a_fork_that_crashes_is_dropped(make: Engines, memory: MemoryTables, store: str, versions: Versions) -> None:
    engine = make()
    items = without_list(memory.items)
    for _ in each_request(lambda tables: fork(tables, store, 11), memory):
        drop_fork(memory, store)
        assert never_forked(memory.items) == items
    assert read(engine, store, *versions[12]) == numbers(12)


def test_a_drop_that_crashes_is_repeated(make: Engines, memory: MemoryTables, store: str, versions: Versions) -> None:
    engine = make()
    items = without_list(memory.items)
    fork(memory, store, 11)
    for _ in each_request(lambda tables: drop_fork(tables, store), memory):
        drop_fork(memory, store)
        assert never_forked(memory.items) == items
    assert read(engine, store, *versions[12]) == numbers(12)


def test_an_overtaken_fork_is_refused(make: Engines, memory: MemoryTables, store: str, versions: Versions) -> None:
    """Cut off before its pins, it depends on what clean-up has deleted since; a newer snapshot does not count."""
    engine = make()
    for _ in each_request(lambda tables: fork(tables, store, 11), memory):
        if meta_key(new_of(store)) in memory.items:
            break
    assert not any(FORKS in item for item in memory.items.values())
    snapshot_of(engine, store, versions[11])
    engine.maintenance.clean_up(store, "run-1", *versions[12], 2, 1, 0)
    with pytest.raises(VersionMissingError, match="clean-up has deleted what the fork was begun with: dynastate drop"):
        fork(memory, store)
    drop_stores(memory, [new_of(store)])
    assert fork(memory, store).version == 12


def test_a_fork_whose_version_is_deleted_is_refused(memory: MemoryTables, store: str, versions: Versions) -> None:
    """Clean-up has ended in the middle, at a list that changed (seed 4105575). It is no damage."""

    def clean_up() -> None:
        del memory.items[version_list_key(store, 1)], memory.items[snapshot_key(store, *versions[7])]

    with pytest.raises(VersionMissingError, match="clean-up has deleted what the fork was begun with: dynastate drop"):
        fork(Overtaken(memory, clean_up, "put_new"), store, 11)


def test_a_new_run_reverts_a_cut_off_drop(make: Engines, memory: MemoryTables, store: str, versions: Versions) -> None:
    """Nothing was deleted, and the query runs on: it can be forked, and dropped later."""
    stores = both(store)
    tables = FailingTables(memory)
    tables.fail("update", None, None, Fault(UnavailableError("died")))
    with pytest.raises(UnavailableError, match="died"):
        drop_stores(tables, stores)
    with pytest.raises(ConfigurationError, match="is being dropped"):
        fork(memory, store)
    drop_stores(memory, [new_of(store)])
    for each in stores:
        write(make(), each, attempt(13), base=versions[12], run="run-2")
    assert fork(memory, store).version == 13
    drop_fork(memory, store)
    drop_stores(memory, stores)
    assert not without_fences(memory.items)


def test_a_new_run_beside_a_drop(make: Engines, memory: MemoryTables, store: str, versions: Versions) -> None:
    """The store that it writes to is unchanged, and the drop reports it."""
    stores = both(store)
    commits: list[VersionId] = []
    marks, lock = 0, threading.Lock()

    def begin(verb: str) -> None:
        nonlocal marks
        with lock:
            marks += verb == "update"
            if marks == 3 and not commits:  # both stores are marked as dropped
                commits.append(write(make(), store, attempt(13), base=versions[12], run="run-2"))

    with pytest.raises(ConfigurationError, match="a run of the query has begun meanwhile"):
        drop_stores(FailingTables(memory, begin), stores)
    assert read(make(), store, *commits[0]) == numbers(12)
    # The meta item stays until all stores are empty, so that the next drop finds them. Whether the other store was
    # emptied is open: no store is begun after the failure.
    assert meta_key(stores[1]) in without_fences(memory.items)
    drop_stores(memory, stores)
    assert not without_fences(memory.items)


def test_verify_beside_pins_and_unpins(make: Engines, memory: MemoryTables, store: str, versions: Versions) -> None:
    """Items that a fork does not need yet, or no longer, need no pin: verify finds no defect at any moment."""
    engine = make()
    new = new_of(store)
    for _ in each_request(lambda tables: fork(tables, store, 11), memory):
        if meta_key(new) in memory.items:
            assert verify(memory, new).is_whole
    everything = numbers(12)
    newest = write(engine, new, attempt(512), everything, base=versions[11], run="test")
    save_snapshot(engine, new, newest, everything, lambda _: {b"%d" % n for n in range(2000)}, run="test")
    write_versions(engine, new, 3, newest, run="test")
    first_pins = pins(memory, store)
    reports: list[Report] = []
    for failures in races(
        memory, lambda tables: reports.append(verify(tables, new)), lambda: clean_store(make(), memory, new, 2)
    ):
        assert failures == (None, None)
        assert reports[-1].is_whole, reports[-1].findings
        assert pins(memory, store) < first_pins
    for _ in each_request(lambda tables: clean_store(make(tables), tables, new, 2), memory):
        assert verify(memory, new).is_whole, verify(memory, new).findings


@pytest.mark.parametrize("version", [13, 16])
@pytest.mark.parametrize("is_fork_first", [True, False])
def test_clean_up_beside_a_fork(
    make: Engines, memory: MemoryTables, store: str, version: int, *, is_fork_first: bool
) -> None:
    """At any moment of a clean-up the fork is complete, or refused with advice; the origin is whole in any case."""
    engine = make()
    versions = write_with_snapshots(engine, store, 24, 12, 21)

    operations: list[Operation] = [
        lambda on: fork(on, store, version),
        lambda on: make(on).maintenance.clean_up(store, "run-1", *versions[24], 2, 1, 0),
    ]
    first, second = operations if is_fork_first else operations[::-1]
    outcomes = set()
    for failures in races(memory, first, lambda: second(memory)):
        forked, cleaned = failures if is_fork_first else failures[::-1]
        assert cleaned is None
        assert forked is None or isinstance(forked, VersionMissingError)
        outcomes.add(forked is None)
        if forked is None:
            assert recover(make(), new_of(store), *versions[version]) == numbers(version)
            assert verify(memory, new_of(store)).findings == ()
        for each in versions[23:]:
            assert read(make(), store, *each) == numbers(each[0])
        assert verify(memory, store).is_whole
    assert outcomes == {True, False}


def test_a_fork_of_a_version_that_clean_up_has_begun_to_delete(make: Engines, memory: MemoryTables, store: str) -> None:
    """Cut off anywhere, clean-up leaves versions whose snapshot is deleted: they are missing, and not corrupt."""
    engine = make()
    versions = write_with_snapshots(engine, store, 24, 12, 21)

    def refusal(version: int) -> str:
        try:
            fork(memory, store, version)
        except VersionMissingError as missing:
            return str(missing)
        assert recover(make(), new_of(store), version) == numbers(version)
        drop_stores(memory, [new_of(store)])
        return ""

    messages = set()
    for _ in each_request(lambda on: make(on).maintenance.clean_up(store, "run-1", *versions[24], 2, 1, 0), memory):
        messages |= {refusal(version) for version in (13, 16, 23)}
    assert {re.sub(r" store=.* versions=", " ", each) for each in messages if "clean-up has deleted" in each} == {
        "clean-up has deleted this version, or the query was taken back to one before it; fork one of versions 21-24"
    }


@pytest.mark.parametrize("what", ["clean", "drop"])
def test_fork_beside_pin_checks(make: Engines, memory: MemoryTables, versions: Versions, store: str, what: str) -> None:
    """Beside another fork: the pins of one that is made meanwhile are kept."""
    fork(memory, store, 11, "other")

    def look(on: Tables) -> None:
        if what == "clean":
            clean_store(make(on), on, store, 1)
        else:
            drop_stores(on, [store])

    count = 0
    for looked, forked in races(memory, look, lambda: fork(memory, store, 11)):
        assert (looked is None) == (what == "clean")
        assert forked is None
        count += 1
        assert recover(make(), new_of(store), *versions[11]) == numbers(11)
        assert verify(memory, new_of(store)).findings == ()
    assert count > 2


def test_a_corrupt_meta_item_of_a_fork_stops_no_clean_up_of_its_origin(
    make: Engines, memory: MemoryTables, versions: Versions, store: str
) -> None:
    """All of its pins are kept, and a drop says which fork depends on the state."""
    fork(memory, store, 11)
    memory.items[meta_key(new_of(store))]["epochs"] = {}
    pinned = {key for key, item in memory.items.items() if item.get(FORKS)}
    clean_store(make(), memory, store, 2)
    assert {key for key, item in memory.items.items() if item.get(FORKS)} == pinned
    with pytest.raises(ConfigurationError, match="forks depend on this state"):
        drop_stores(memory, [store])


def test_clean_of_a_fork_under_way(make: Engines, memory: MemoryTables, store: str, versions: Versions) -> None:
    """At any moment: it unpins nothing that the complete fork needs."""
    new = new_of(store)
    cleaned = set()
    for failures in races(memory, lambda tables: fork(tables, store, 11), lambda: clean_store(make(), memory, new, 2)):
        assert failures[0] is None
        assert read(make(), new, *versions[11]) == numbers(11)
        groups = {version_list_key(store, version).sort for version in (8, 11)}
        assert pins(memory, store) == {"meta", snapshot_key(store, *versions[7]).sort} | groups
        cleaned.add(type(failures[1]))
    assert cleaned == {type(None), VersionMissingError}


def test_clean_of_a_fork_beside_its_query(make: Engines, memory: MemoryTables, store: str, versions: Versions) -> None:
    """The query's own clean-up may delete a snapshot at any moment."""
    engine = make()
    fork(memory, store, 11)
    new = new_of(store)
    versions = write_versions(engine, new, 3, versions[11], run="test")
    snapshot_of(engine, new, versions[2], run="test")
    newest = write_versions(engine, new, 3, versions[3], run="test")[-1]
    for failures in races(
        memory,
        lambda tables: clean_store(make(tables), tables, new, 100),
        lambda: make().maintenance.clean_up(new, "test", *newest, 2, 1, 0),
    ):
        assert failures == (None, None)
        assert read(make(), new, *newest) == numbers(17)
        assert verify(memory, new).findings == ()


def test_drop_of_a_fork_that_is_being_made(make: Engines, memory: MemoryTables, store: str, versions: Versions) -> None:
    """At any moment: the fork is complete, or refused; and so is one of another version after it.

    What was written late are manifests that nothing names: orphans, which clean-up deletes once they are old.
    """
    engine = make()
    items = without_list(memory.items)

    def is_whole(version: int) -> bool:
        for name in both(new_of(store)):
            assert read(engine, name, *versions[version]) == read(engine, name, version) == numbers(version)
            assert {finding.what for finding in verify(memory, name).findings} <= {"orphaned"}
        return True

    outcomes = set()
    for failures in races(memory, lambda tables: fork(tables, store, 11), lambda: drop_fork(memory, store)):
        assert failures[1] is None
        outcomes.add(failures[0] is None)
        assert failures[0] or is_whole(11)
        if error_of(lambda: fork(memory, store, 12)):
            drop_fork(memory, store)
            fork(memory, store, 12)
        assert is_whole(12)
        drop_fork(memory, store)
        assert never_forked(memory.items) == items
    assert outcomes == {True, False}


def test_a_fork_beside_other_attempts(make: Engines, memory: MemoryTables, store: str, versions: Versions) -> None:
    """It is complete with all listed attempts, or refused: no list has an attempt whose parent another lacks."""
    outcomes = set()
    for _ in each_request(lambda tables: fork(tables, store, 11), memory):
        twin = versions[8]
        for number in range(9, 12):  # the second stands in another list than the first
            twin = write(make(), store, attempt(100 + number), {b"%d" % number: b"%d" % number}, base=twin)
        if refused := error_of(lambda: fork(memory, store, 11)):
            outcomes.add("changed" if "what the fork was begun with has changed" in str(refused) else "complete")
        for entry in graph(memory, new_of(store)).entries():
            if entry.version == 11:
                assert read(make(), new_of(store), 11, entry.attempt) == numbers(11)
                outcomes.add("with the twin" if entry.attempt == twin[1] else "without it")
    assert outcomes == {"changed", "complete", "with the twin", "without it"}


def test_drop_beside_a_fork(make: Engines, memory: MemoryTables, store: str, versions: Versions) -> None:
    """One of the two is refused, at any moment; no fork depends on deleted items."""
    engine = make()
    stores = both(store)
    outcomes = set()
    for race in (
        races(memory, lambda tables: fork(tables, store, 11), lambda: drop_stores(memory, stores)),
        races(memory, lambda tables: drop_stores(tables, stores), lambda: fork(memory, store, 11)),
    ):
        for failures in race:
            is_whole = all(is_complete(memory, new_of(each), 11) for each in stores)
            outcomes.add(is_whole)
            assert any(failures), failures
            for each in stores if is_whole else ():
                assert read(engine, new_of(each), *versions[11]) == numbers(11)
                assert verify(memory, new_of(each)).findings == ()
    assert outcomes == {True, False}
