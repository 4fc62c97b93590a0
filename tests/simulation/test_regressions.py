"""Defects that the simulation found or was written to find, each as the shortest schedule that shows it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress

import pytest

from dynastate.engine import snapshots
from dynastate.engine.engine import Engine
from dynastate.engine.updates import advance_epoch
from dynastate.errors import (
    ConfigurationError,
    CorruptStateError,
    RouteInvalidError,
    UnavailableError,
    VersionMissingError,
)
from dynastate.format.items import Item
from dynastate.format.keys import EMPTY, META, NO_ATTEMPT, Key, Role, VersionId, meta_key
from dynastate.format.meta import DELETING, parse_meta
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle import drop
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.operations.lifecycle.runs import read_meta
from tests.simulation.actors import read as read_as_promised
from tests.simulation.model import Model
from tests.simulation.mutations import commits_snapshots_without_checking_their_base
from tests.simulation.scheduler import Scheduler
from tests.support.contents import graph
from tests.support.engine_driver import (
    Engines,
    begin,
    fold,
    read,
    recover,
    save_snapshot,
    take_snapshot,
    write,
    write_versions,
)
from tests.support.faults import Dying, FailingTables, Fault, Overtaken
from tests.support.memory_tables import MemoryTables
from tests.support.samples import CHECKPOINT, QUERY, SCHEMA, State, attempt, chunk, numbers

RUN = "run-1"
pytestmark = pytest.mark.usefixtures("always_worth_it")


def test_zombie_that_commits_after_clean_up(engines: Engines, store: str) -> None:
    """Its parent was deleted by clean-up. A reader by number gets the attempt that can be read."""
    engine = engines()
    versions = write_versions(engine, store, 4)
    zombie = begin(engines(), store, attempt(99), {b"by": b"zombie"}, base=versions[4])
    fifth = write(engine, store, attempt(5), {b"5": b"5"}, base=versions[4])
    sixth = write(engine, store, attempt(6), {b"6": b"6"}, base=fifth)
    save_snapshot(engine, store, fifth, numbers(5))
    engine.maintenance.clean_up(store, RUN, *sixth, retain=2, least=1, most=0)
    zombie.commit({0: 1}, SCHEMA)
    assert read(engines(), store, 5) == numbers(5)
    assert read(engines(), store, 6) == numbers(6)
    # Clean-up continues, too.
    seventh = write(engine, store, attempt(7), {b"7": b"7"}, base=sixth)
    save_snapshot(engine, store, seventh, numbers(7))
    engine.maintenance.clean_up(store, RUN, *seventh, retain=2, least=1, most=0)
    assert read(engines(), store, 7) == numbers(7)


def test_a_number_means_the_same_with_a_version_in_memory(engines: Engines, store: str) -> None:
    """Of two attempts of one run, one lost its ancestors: an executor that holds their parent opens the other, too."""
    engine = engines()
    versions = write_versions(engine, store, 10)  # the last one begins a version list
    zombie = begin(engines(), store, attempt(99), {b"by": b"zombie"}, base=versions[10])
    eleventh = write(engine, store, attempt(11), {b"11": b"11"}, base=versions[10])
    twelfth = write(engine, store, attempt(12), {b"12": b"12"}, base=eleventh)
    save_snapshot(engine, store, eleventh, numbers(11))
    engine.maintenance.clean_up(store, RUN, *twelfth, retain=2, least=1, most=9)
    zombie.commit({0: 1}, SCHEMA)
    for held in ([], [versions[10]]):
        assert engines().open(store, 11, NO_ATTEMPT, held).entry.id == eleventh


def test_twins_that_branched_off_before_the_retained_versions(engines: Engines, store: str) -> None:
    """Under checkpoint format v1 two executors built on twins, and a number opens the other one's attempt."""
    engine, other = engines(), engines()
    versions = write_versions(engine, store, 3)
    mine = write(engine, store, attempt(4), {b"4": b"4"}, base=versions[3])
    theirs = write(other, store, attempt(104), {b"4": b"their"}, base=versions[3])
    state = {mine: numbers(4), theirs: numbers(3) | {b"4": b"their"}}
    for number in (5, 6):
        row = {b"%d" % number: b"%d" % number}
        mine, parent = write(engine, store, attempt(number), row, base=mine), mine
        state[mine] = state[parent] | row
        theirs, parent = write(other, store, attempt(100 + number), row, base=theirs), theirs
        state[theirs] = state[parent] | row
        if number == 5:
            save_snapshot(engine, store, mine, state[mine])
    engine.maintenance.clean_up(store, RUN, *mine, retain=2, least=1, most=0)
    for number in (5, 6):
        opening = engine.open(store, number, NO_ATTEMPT)
        version = opening.entry.id
        assert fold(opening.chunks, fold(opening.snapshot_chunks)) == state[version]


@pytest.mark.parametrize("kind", ["behind", "set back"])
def test_clean_up_after_one_that_died(engines: Engines, memory: MemoryTables, store: str, kind: str) -> None:
    """It deleted a snapshot, but not the versions that depend on it: they are not reported as corrupt."""
    failing_tables = FailingTables(memory)
    engine, dying = engines(), engines(failing_tables)
    versions = write_versions(engine, store, 6)
    save_snapshot(engine, store, versions[3], numbers(3))
    engine.maintenance.clean_up(store, RUN, *versions[6], retain=3, least=1, most=0)
    versions += write_versions(engine, store, 6, base=versions[6])[1:]
    save_snapshot(engine, store, versions[10], numbers(10))
    failing_tables.fail("delete_over", None, Fault(UnavailableError("died")))
    with pytest.raises(UnavailableError, match="died"):
        dying.maintenance.clean_up(store, RUN, *versions[12], retain=3, least=1, most=0)
    assert graph(memory, store).versions() == list(range(4, 13))
    assert [each.version for each in graph(memory, store).snapshots()] == [10]
    run, newest = RUN, versions[11]
    if kind == "set back":
        run, newest = "run-2", write(engine, store, attempt(111), {b"11": b"11"}, base=versions[10], run="run-2")
    assert engine.maintenance.clean_up(store, run, *newest, retain=3, least=1, most=0)[0].items_deleted == 0
    assert read(engine, store, *newest) == numbers(11)


def test_a_query_starts_over_while_clean_up_reads(engines: Engines, memory: MemoryTables, store: str) -> None:
    """A Query has pages: the meta item on the first has no newer run, the next one has that run's snapshots."""
    engine = engines()
    old = write_versions(engine, store, 20)
    save_snapshot(engine, store, old[18], numbers(18))
    versions: list[VersionId] = []

    def start_over() -> None:
        base = EMPTY
        for number in range(1, 13):
            base = write(engine, store, attempt(100 + number), {b"%d" % number: b"new"}, base=base, run="run-2")
            versions.append(base)
        save_snapshot(engine, store, versions[9], dict.fromkeys(numbers(10), b"new"), run="run-2")
        engine.maintenance.clean_up(store, "run-2", *versions[-1], retain=2, least=1, most=0)

    torn = torn_tables(memory, f"{META}~", start_over)
    engines(torn).maintenance.clean_up(store, RUN, *old[20], retain=2, least=1, most=0)
    assert len(versions) == 12
    assert read(engine, store, *versions[-1]) == dict.fromkeys(numbers(12), b"new")


def torn_tables(memory: MemoryTables, second: str, happens: Callable[[], object]) -> MemoryTables:
    """Tables on which something happens once between two pages of a Query: the second begins at that sort key."""
    torn, to_come = MemoryTables(), [happens]
    torn.items = memory.items

    def pages(role: Role, store_shard: str, low: str, high: str) -> list[tuple[Key, Item]]:
        if not to_come or not low <= second <= high:
            return memory.query(role, store_shard, low, high)
        first = [pair for pair in memory.query(role, store_shard, low, high) if pair[0].sort < second]
        to_come.pop()()
        return first + memory.query(role, store_shard, second, high)

    torn.query = pages  # type: ignore[method-assign]
    return torn


READS: dict[str, Callable[[Engine, str, VersionId], State]] = {
    "whole": lambda engine, store, _: read(engine, store, 12),
    "from the fifth": lambda engine, store, fifth: numbers(5) | read(engine, store, 12, have=[fifth]),
    "by lineage": lambda engine, store, _: read(engine, store, *engine.lineage(store).newest.id),
}


@pytest.mark.parametrize("way", READS)
def test_versions_are_made_again_while_a_reader_reads(
    engines: Engines, memory: MemoryTables, store: str, way: str
) -> None:
    """A Query has pages: the version list on the first has no newer run, the next one has that run's versions."""
    engine = engines()
    old = write_versions(engine, store, 12)
    versions: list[VersionId] = []

    def make_again() -> None:
        versions.append(old[8])
        for number in range(9, 13):
            row = {b"%d" % number: b"new"}
            versions.append(write(engine, store, attempt(100 + number), row, base=versions[-1], run="run-2"))

    torn = torn_tables(memory, "list/0000000000000001", make_again)
    new = {b"%d" % number: b"new" for number in range(9, 13)}
    assert READS[way](engines(torn), store, old[5]) == numbers(8) | new
    assert len(versions) == 5


def test_a_run_of_a_dropped_query_enters_late(engines: Engines, memory: MemoryTables, store: str) -> None:
    """The request that enters a run arrives when another query, whose epochs count from 1 too, has begun."""
    write_versions(engines(), store, 3)
    drop_stores(memory, [store])
    engine = engines()
    version = write(engine, store, attempt(101), {b"1": b"new"}, run="run-3")
    assert advance_epoch(memory, meta_key(store), "run-2", {RUN: 1}, {}) is False
    version = write(engine, store, attempt(102), {b"2": b"new"}, base=version, run="run-3")
    assert read(engines(), store, 2) == {b"1": b"new", b"2": b"new"}


def test_a_request_for_a_dropped_fork_comes_late(memory: MemoryTables, engines: Engines, store: str) -> None:
    """The fork was made again, of the same version: no run of the first one enters it, and no drop marks it."""
    write_versions(engines(), store, 3)
    namespace = store.split("/", maxsplit=1)[0]
    new = f"{namespace}-new{store.removeprefix(namespace)}"

    def fork() -> Mapping[str, int]:
        fork_namespace(memory, namespace, f"{namespace}-new", None)
        return parse_meta(new, memory.items[meta_key(new)]).epochs

    def make_again() -> None:
        drop_stores(memory, [new])
        assert fork() != first

    first = fork()
    with pytest.raises(ConfigurationError, match="a run of the query has begun meanwhile"):
        drop_stores(Overtaken(memory, make_again, before="update"), [new])
    meta = dict(memory.items[meta_key(new)])
    assert advance_epoch(memory, meta_key(new), "run-2", first, {"locations": {"2": "file:/old"}}) is False
    assert memory.items[meta_key(new)] == meta


def test_a_run_enters_while_a_drop_begins_to_delete(engines: Engines, memory: MemoryTables, store: str) -> None:
    """It has read the meta item before: its entry does not remove the mark of the drop."""
    versions = write_versions(engines(), store, 3)

    def begin_to_delete() -> None:
        assert drop._mark_dropped(memory, store)
        drop._mark(memory, store, read_meta(memory, store), DELETING)

    engine = engines(Overtaken(memory, begin_to_delete, before="update"))
    with pytest.raises(ConfigurationError, match="is being dropped"):
        write(engine, store, attempt(4), {b"4": b"4"}, base=versions[3], run="run-2")
    drop_stores(memory, [store])
    assert graph(memory, store).is_empty
    assert meta_key(store) not in memory.items


def test_a_drop_marks_late(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Another drop was faster, and another query has begun: its meta item is not replaced."""
    write_versions(engines(), store, 3)

    def begin_another() -> None:
        drop_stores(memory, [store])
        write(engines(), store, attempt(101), {b"1": b"new"}, run="run-3")

    with pytest.raises(ConfigurationError, match="a run of the query has begun meanwhile"):
        drop_stores(Overtaken(memory, begin_another, before="update"), [store])
    assert memory.items[meta_key(store)]["epochs"] == {"run-3": 2}
    assert read(engines(), store, 1) == {b"1": b"new"}


def test_the_mark_of_a_drop_comes_late(engines: Engines, memory: MemoryTables, store: str) -> None:
    """The store's items are being deleted by then: a run may not enter, as it may after a mark alone."""
    write_versions(engines(), store, 3)
    deletes_first = Overtaken(memory, lambda: drop.empty_store(memory, store, QUERY), before="update")
    assert drop._mark_dropped(deletes_first, store)
    assert memory.items[meta_key(store)]["dropped"] == DELETING


def test_a_run_from_before_the_query_started_over_first_writes_late(engines: Engines, store: str) -> None:
    """It becomes the newest, and deletes no version of the query that started over."""
    old, engine = engines(), engines()
    versions = write_versions(old, store, 12)
    zombie = begin(old, store, attempt(113), base=versions[12], run="run-0")
    fresh = [EMPTY]
    for number in range(1, 7):
        row = {b"%d" % number: b"new"}
        fresh.append(write(engine, store, attempt(200 + number), row, base=fresh[-1], run="run-2"))
    zombie.append(chunk({b"13": b"13"}))
    zombie.commit({0: 13}, SCHEMA)
    save_snapshot(old, store, versions[11], numbers(11), run="run-0")
    assert old.maintenance.clean_up(store, "run-0", 13, attempt(113), retain=2, least=1, most=0)[0].items_deleted == 0
    assert read(engines(), store, *fresh[6]) == dict.fromkeys(numbers(6), b"new")


@pytest.mark.parametrize("what", ["bucket", "snapshot_manifest"])
def test_late_request_of_a_deleted_snapshot(engines: Engines, memory: MemoryTables, store: str, what: str) -> None:
    """It writes an orphan, which the first clean-up of another executor deletes."""
    engine = engines()
    versions = write_versions(engine, store, 9)
    under_way = take_snapshot(engine, store, versions[3], numbers(3))
    assert under_way is not None
    under_way._write()
    if what == "snapshot_manifest":
        assert under_way.commit()
    late = {key: item for key, item in memory.items.items() if key.sort.startswith(f"{what}/")}
    assert late
    under_way.abort()
    save_snapshot(engine, store, versions[5], numbers(5))
    save_snapshot(engine, store, versions[8], numbers(8))
    engine.maintenance.clean_up(store, RUN, *versions[7], retain=2, least=1, most=0)
    memory.items |= late
    engines().maintenance.clean_up(store, RUN, *versions[9], retain=2, least=1, most=0)
    assert not late.keys() & memory.items.keys()
    assert read(engine, store, *versions[9]) == numbers(9)


def test_carried_on_buckets_are_no_orphans(engine: Engine, memory: MemoryTables, store: str) -> None:
    """Buckets of a deleted snapshot that a later one has carried on are retained."""
    versions = write_versions(engine, store, 20)
    save_snapshot(engine, store, versions[5], numbers(5))
    for number in (10, 15, 19):
        save_snapshot(engine, store, versions[number], numbers(number), lambda _: {b"%d" % number})  # noqa: B023
    engine.maintenance.clean_up(store, RUN, *versions[20], retain=2, least=1, most=0)
    assert [each.version for each in graph(memory, store).snapshots()] == [19]
    bucket_versions = {
        key.sort.split("/")[1].lstrip("0") for key in memory.keys("snapshot") if key.sort.startswith("bucket/")
    }
    assert "5" in bucket_versions
    assert {key for key, _ in fold(engine.open(store, *versions[19]).snapshot_chunks).items()} >= set(numbers(5))


@pytest.mark.parametrize("held", [(), (1,)])
def test_clean_up_overtakes_a_reader(engines: Engines, store: str, held: tuple[int, ...]) -> None:
    """Deltas are deleted, since there is a snapshot now: there is another route; changes are missing, not corrupt."""
    engine, other = engines(), engines()
    versions = write_versions(engine, store, 6)
    opening = engine.open(store, *versions[6], have=[versions[number] for number in held])
    feed = engine.changes(store, 2, 4, versions[4][1])
    save_snapshot(other, store, versions[5], numbers(5))
    other.maintenance.clean_up(store, RUN, *versions[6], retain=2, least=1, most=0)
    with pytest.raises(RouteInvalidError, match="is not in its table"):
        fold(opening.chunks)
    with pytest.raises(VersionMissingError, match="versions=5-6"):
        [list(chunks) for _, chunks in feed.versions]
    assert read(engine, store, *versions[6]) == numbers(6)


@pytest.mark.parametrize("behind", ["reader", "clean-up"])
def test_clean_up_deletes_a_snapshot_in_use(engines: Engines, memory: MemoryTables, store: str, behind: str) -> None:
    """Its manifest is not lost, since the snapshot was deleted: a reader takes another route; a clean-up ends."""
    engine = engines()
    versions = write_versions(engine, store, 9)
    save_snapshot(engine, store, versions[3], numbers(3))

    def delete_the_first_snapshot() -> None:
        save_snapshot(engine, store, versions[8], numbers(8))
        engine.maintenance.clean_up(store, RUN, *versions[9], retain=1, least=1, most=0)

    overtaken = engines(Overtaken(memory, delete_the_first_snapshot))
    if behind == "reader":
        with pytest.raises(RouteInvalidError, match="deleted a snapshot"):
            overtaken.open(store, *versions[9])
    else:
        assert overtaken.maintenance.clean_up(store, RUN, *versions[6], retain=2, least=1, most=0)[0].items_deleted == 0
    assert read(overtaken, store, *versions[9]) == numbers(9)


def interrupted_clean_ups(
    memory: MemoryTables, engines: Engines, store: str, newest: VersionId, under_way: Callable[[], Callable[[], object]]
) -> Iterator[None]:
    """A clean-up cut off after each of its requests; what `under_way` begins ends before its first conditional one."""
    items = copy.deepcopy(memory.items)
    for requests in itertools.count():
        memory.items = copy.deepcopy(items)
        dying = Dying(Overtaken(memory, under_way(), before="put_over"), requests)
        with suppress(UnavailableError):
            engines(dying).maintenance.clean_up(store, RUN, *newest, retain=2, least=1, most=0)
        yield
        if dying.left > 0:
            return


def lost_lists(memory: MemoryTables, store: str) -> list[str]:
    """What `verify` says of lost version lists, and of parents that are lost with them."""
    lost = (each for each in verify(memory, store).findings if each.what == "missing")
    return [each.why for each in lost if each.why.startswith(("the version list", "version "))]


def test_a_fork_is_dropped_after_clean_up(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Seeds 16630, 17113 and 17526: what it needed outlived later versions, which are no lost list then."""
    engine, new = engines(), f"new/{store.partition('/')[2]}"
    versions = write_versions(engine, store, 25)
    namespace, name = store.split("/", maxsplit=1)[0], "new"
    fork_namespace(memory, namespace, name, 5)
    save_snapshot(engine, store, versions[15], numbers(15))
    engine.maintenance.clean_up(store, RUN, *versions[25], retain=2, least=1, most=0)
    assert graph(memory, store).versions() == [*range(1, 10), *range(16, 26)]
    assert lost_lists(memory, store) == []
    drop_stores(memory, [new])
    assert lost_lists(memory, store) == []
    save_snapshot(engine, store, versions[22], numbers(22))
    for _ in interrupted_clean_ups(memory, engines, store, versions[25], lambda: nullcontext):
        assert lost_lists(memory, store) == []


def test_a_snapshot_is_done_beside_a_clean_up(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Seed 2601: an executor was suspended, so that clean-up leaves its snapshot; cut off, it leaves parts, too."""
    engine = engines()
    versions = write_versions(engine, store, 25)
    save_snapshot(engine, store, versions[18], numbers(18))

    def under_way() -> Callable[[], object]:
        snapshot = take_snapshot(engines(), store, versions[5], numbers(5))
        assert snapshot is not None
        return snapshot.commit

    for _ in interrupted_clean_ups(memory, engines, store, versions[25], under_way):
        assert lost_lists(memory, store) == []


def test_a_version_list_changes_beside_a_clean_up(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Seed 100685: the list stays as it is, so those above it stay, too, until the next clean-up."""
    engine = engines()
    versions = write_versions(engine, store, 25)
    save_snapshot(engine, store, versions[15], numbers(15))
    twin = begin(engines(), store, attempt(99), {b"by": b"a twin"}, base=versions[4])
    behind = engines(Overtaken(memory, lambda: twin.commit({0: 1}, SCHEMA), before="delete_over"))
    behind.maintenance.clean_up(store, RUN, *versions[25], retain=2, least=1, most=0)
    assert lost_lists(memory, store) == []
    assert read(engine, store, 5, attempt(99)) == numbers(4) | {b"by": b"a twin"}, "seed 2101384: its parts are there"
    engine.maintenance.clean_up(store, RUN, *versions[25], retain=2, least=1, most=0)
    assert graph(memory, store).versions() == list(range(16, 26))


def test_clean_up_deletes_older_attempts_first(engines: Engines, memory: MemoryTables, store: str) -> None:
    """A bounded one leaves no older attempt at a number without the newer one, which the number means."""
    versions = write_versions(engines(), store, 5)
    for number, run in ((700, "run-2"), (600, "run-3"), (800, "run-4")):
        write(engines(), store, attempt(number), {b"by": run.encode()}, base=versions[2], run=run)
    newest = versions[2]
    for number in (901, 902, 903):
        newest = write(engines(), store, attempt(number), {b"by": b"run-5"}, base=newest, run="run-5")
    while True:
        epochs = [entry.epoch for entry in graph(memory, store).entries() if entry.version == 3]
        assert epochs == sorted(epochs)
        assert set(epochs) >= set(range(min(epochs), 6))
        _, rest = engines().maintenance.clean_up(store, "run-5", *newest, retain=2, least=1, most=1)
        if not rest:
            break


def test_a_late_commit_is_no_lost_list(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Clean-up has deleted all of the branch that was left except the list: verify reports no loss."""
    versions = write_versions(engines(), store, 5)
    late = begin(engines(), store, attempt(99), {b"by": b"a task"}, base=versions[5])
    newest = versions[2]
    for number in range(200, 207):
        newest = write(engines(), store, attempt(number), {b"k": b"%d" % number}, base=newest, run="run-2")
    engines().maintenance.clean_up(store, "run-2", *newest, retain=2, least=1, most=0)
    late.commit({0: 1}, SCHEMA)
    assert [each for each in verify(memory, store).findings if each.what == "missing"] == []


def test_a_first_version_is_committed_after_clean_up(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Seed 101068: it needs no other version, so it can be read, and what is between was cleaned up."""
    engine = engines()
    late = begin(engines(), store, attempt(99), {b"by": b"a task"})
    versions = write_versions(engine, store, 25)
    save_snapshot(engine, store, versions[15], numbers(15))
    engine.maintenance.clean_up(store, RUN, *versions[25], retain=2, least=1, most=0)
    late.commit({0: 1}, SCHEMA)
    assert graph(memory, store).versions() == [1, *range(16, 26)]
    assert lost_lists(memory, store) == []


def test_a_late_commit_after_a_drop_goes_to_any_list(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Seed 100773: every list refuses it, not only those of the newest versions."""
    engine = engines()
    versions = write_versions(engine, store, 35)
    late = [begin(engines(), store, attempt(99), {b"by": b"late"}, base=versions[base]) for base in (0, 4, 12, 22, 33)]
    drop_stores(memory, [store])
    for twin in late:
        with pytest.raises(ConfigurationError, match="may not commit any more"):
            twin.commit({0: 1}, SCHEMA)
    assert graph(memory, store).is_empty


def test_a_late_snapshot_of_a_dropped_query(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Seed 121327: of a higher epoch than the next query's, it ended every clean-up, and was there for good."""
    engine, versions = engines(), [EMPTY]
    for run in range(1, 5):
        versions += write_versions(engine, store, 2, versions[-1], run=f"run-{run}")[1:]

    def drop_and_start_over() -> None:
        drop_stores(memory, [store])
        versions[:] = write_versions(engines(), store, 4, run="run-9")

    eighth, late = versions[8], engines(Overtaken(memory, drop_and_start_over, before="put_new"))
    assert take_snapshot(late, store, eighth, numbers(8), run="run-4") is None
    assert not graph(memory, store).snapshots()
    snapshots.enter(memory, store, eighth, 4)  # and its executor dies
    assert [each.epoch for each in graph(memory, store).snapshots()] == [4]
    fresh = engines()
    save_snapshot(fresh, store, versions[4], numbers(4), run="run-9")
    versions += write_versions(fresh, store, 2, versions[4], run="run-9")[1:]
    fresh.maintenance.clean_up(store, "run-9", *versions[6], retain=2, least=1, most=0)
    assert [(each.version, each.epoch) for each in graph(memory, store).snapshots()] == [(4, 5)]
    assert graph(memory, store).versions() == [5, 6]


def test_a_number_is_made_again_while_it_is_read(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Seed 1002: the namespace was dropped, and another query has made that version. No promise is violated."""
    model = Model(store, Scheduler(), checkpoint_format=1, retain=1)

    def make(run: str, number: int) -> None:
        model.restart(run, 0, CHECKPOINT)
        model.begin(VersionId(1, attempt(number)), EMPTY, [], run, {})
        model.choose(write(engines(), store, attempt(number), {b"1": b"1"}, run=run))

    def drop_and_make_again() -> None:
        model.drop()
        drop_stores(memory, [store])
        make("run-2", 2)

    make("run-1", 1)
    target = VersionId(1, NO_ATTEMPT)
    assert target in model.promised()
    with pytest.raises(VersionMissingError, match="but not by that attempt"):
        read_as_promised(model.scheduler, engines(Overtaken(memory, drop_and_make_again)), model, target, {})
    assert target in model.promised()


@pytest.mark.parametrize("broken", [False, True])
def test_snapshot_begins_without_its_base(engines: Engines, memory: MemoryTables, store: str, *, broken: bool) -> None:
    """It would carry on deleted buckets, so its commit is refused.

    No schedule has found an engine without that check. It needs a snapshot in between that carries nothing on, a
    clean-up before this one is entered, and a second one before it is read; otherwise recovery falls back.
    """
    engine = engines()
    versions = write_versions(engine, store, 9)
    save_snapshot(engine, store, versions[2], numbers(2))

    def another() -> None:
        assert save_snapshot(engine, store, versions[5], numbers(5), bits=0).base == 0
        engine.maintenance.clean_up(store, RUN, *versions[9], retain=2, least=1, most=0)

    late = engines(Overtaken(memory, another, before="put_new"))
    with commits_snapshots_without_checking_their_base() if broken else nullcontext():
        under_way = take_snapshot(late, store, versions[9], numbers(9), lambda n: set(numbers(9)) - set(numbers(n)))
        assert under_way is not None
        assert under_way.base == 2
        assert under_way.commit() is broken
    versions += write_versions(engine, store, 2, base=versions[9])[1:]
    engine.maintenance.clean_up(store, RUN, *versions[11], retain=2, least=1, most=0)
    with pytest.raises(CorruptStateError, match="nothing older is there to fall back to") if broken else nullcontext():
        assert recover(engine, store, *versions[11]) == numbers(11)
