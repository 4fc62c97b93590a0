"""Clean-up of a store."""

from __future__ import annotations

import random

import pytest

from dynastate.engine.engine import Engine
from dynastate.errors import UnavailableError, VersionMissingError
from dynastate.format.keys import EMPTY
from dynastate.format.snapshot import DELETING, DONE, WRITING
from dynastate.storage.tables import Tables
from tests.support.contents import buckets_of, graph, parts_of
from tests.support.engine_driver import clean_up, commit, read, save_snapshot, take_snapshot, write, write_versions
from tests.support.faults import FailingTables, Fault
from tests.support.memory_tables import MemoryTables
from tests.support.samples import attempt, numbers

pytestmark = pytest.mark.usefixtures("always_worth_it")


def test_clean_up_removes_what_no_retained_version_needs(engine: Engine, tables: Tables, store: str) -> None:
    """Clean-up deletes versions before the snapshot that the oldest retained one depends on, and nothing else."""
    versions = write_versions(engine, store, 40)
    assert clean_up(engine, store, versions[40], retain=10).items_deleted == 0, "without a snapshot all are needed"
    assert len(parts_of(tables, store)) == 40
    save_snapshot(engine, store, versions[12], numbers(12))
    save_snapshot(engine, store, versions[25], numbers(25))
    save_snapshot(engine, store, versions[38], numbers(38))
    meter = clean_up(engine, store, versions[40], retain=10)
    assert meter.items_deleted > 25
    for version in versions[31:]:
        assert read(engine, store, *version) == numbers(version[0])
    assert graph(tables, store).versions() == list(range(26, 41))
    assert {int(key.sort.split("/")[0]) for key, _ in parts_of(tables, store)} == set(range(26, 41))
    assert [each.version for each in graph(tables, store).snapshots()] == [25, 38]
    assert {name.split("/")[1] for name in buckets_of(tables, store)} == {f"{25:020d}", f"{38:020d}"}
    with pytest.raises(VersionMissingError, match="versions=26-40"):
        engine.open(store, *versions[25])
    second_meter = clean_up(engine, store, versions[40], retain=10)
    assert (second_meter.items_deleted, second_meter.items_written) == (0, 0)


def test_an_unfinished_snapshot_of_an_older_run_is_deleted(engine: Engine, tables: Tables, store: str) -> None:
    """It is retained, with the buckets it may reuse, while its run may still write it; a newer run ends that."""
    versions = write_versions(engine, store, 20)
    save_snapshot(engine, store, versions[5], numbers(5))
    save_snapshot(engine, store, versions[15], numbers(15))
    under_way = take_snapshot(engine, store, versions[20], numbers(20))
    assert under_way is not None
    clean_up(engine, store, versions[20], retain=2)
    assert {one.version: one.stage for one in graph(tables, store).snapshots()} == {5: DELETING, 15: DONE, 20: WRITING}
    newest = write(engine, store, attempt(21), {b"21": b"21"}, base=versions[20], run="run-2")
    clean_up(engine, store, newest, retain=2, run="run-2", least=0)
    assert [each.version for each in graph(tables, store).snapshots()] == [15]
    assert not under_way.commit()
    assert {name.split("/")[1] for name in buckets_of(tables, store)} == {f"{15:020d}"}
    assert read(engine, store, *newest) == numbers(20) | {b"21": b"21"}


def test_a_clean_up_beside_a_snapshot_is_completed_by_the_next(engine: Engine, tables: Tables, store: str) -> None:
    """It leaves the buckets of snapshots that it has marked; the next one deletes them, however few versions go."""
    versions = write_versions(engine, store, 20)
    save_snapshot(engine, store, versions[5], numbers(5))
    save_snapshot(engine, store, versions[15], numbers(15))
    under_way = take_snapshot(engine, store, versions[20], numbers(20))
    assert under_way is not None
    assert engine.maintenance.clean_up(store, "run-1", *versions[20], 2, 10, 0)[1] == 1, "it is to come again"
    assert under_way.commit()
    assert {name.split("/")[1] for name in buckets_of(tables, store)} >= {f"{5:020d}", f"{15:020d}"}
    assert engine.maintenance.clean_up(store, "run-1", *versions[20], 2, 10, 0)[1] == 0
    assert {one.version: one.stage for one in graph(tables, store).snapshots()} == {15: DONE, 20: DONE}
    assert f"{5:020d}" not in {name.split("/")[1] for name in buckets_of(tables, store)}
    assert clean_up(engine, store, versions[20], retain=2, least=10).items_deleted == 0


@pytest.mark.parametrize("applied", [True, False])
def test_abort_deletes_no_finished_snapshot(
    failing_engine: Engine, failing_tables: FailingTables, store: str, *, applied: bool
) -> None:
    """After a lost answer, abort leaves a finished snapshot complete, and deletes an unfinished one."""
    versions = write_versions(failing_engine, store, 15)
    under_way = take_snapshot(failing_engine, store, versions[12], numbers(12))
    assert under_way is not None
    failing_tables.fail("put_over", Fault(UnavailableError("lost"), applied=applied))
    with pytest.raises(UnavailableError, match="lost"):
        under_way.commit()
    under_way.abort()
    assert [each.stage for each in graph(failing_tables, store).snapshots()] == ([DONE] if applied else [])
    assert bool(buckets_of(failing_tables, store)) is applied
    clean_up(failing_engine, store, versions[15], retain=3)
    for version in versions[13:]:
        assert read(failing_engine, store, *version) == numbers(version[0])


def test_abort_deletes_no_bucket_in_use(failing_engine: Engine, failing_tables: FailingTables, store: str) -> None:
    """Its last answer is lost, another one reuses its buckets, clean-up deletes it; then its writer aborts."""
    versions = write_versions(failing_engine, store, 30)
    first = take_snapshot(failing_engine, store, versions[12], numbers(12))
    assert first is not None
    failing_tables.fail("put_over", Fault(UnavailableError("lost"), applied=True))
    with pytest.raises(UnavailableError, match="lost"):
        first.commit()
    save_snapshot(failing_engine, store, versions[14], numbers(14), lambda _: {b"13", b"14"})
    clean_up(failing_engine, store, versions[30], retain=3)
    assert [each.version for each in graph(failing_tables, store).snapshots()] == [14]
    first.abort()
    for version in versions[28:]:
        assert read(failing_engine, store, *version) == numbers(version[0])


def test_abandoned_attempts_retain_nothing(engine: Engine, tables: Tables, store: str) -> None:
    """A query that was rewound continues from an older version: later versions of the old branch are deleted."""
    old = write_versions(engine, store, 30)
    states = {version: numbers(version[0]) for version in old}
    save_snapshot(engine, store, old[10], states[old[10]])
    new = old[16]
    for number in range(17, 30):
        new = write(engine, store, attempt(100 + number), {b"%d" % number: b"new"}, base=new, run="run-2")
        states[new] = {**states[old[16]], **{b"%d" % n: b"new" for n in range(17, number + 1)}}
        if number == 24:
            save_snapshot(engine, store, new, states[new], run="run-2")
    clean_up(engine, store, new, retain=4, run="run-2")
    assert graph(tables, store).versions() == list(range(25, 30))
    assert read(engine, store, *new) == states[new]


def test_the_version_before_the_newest_is_always_retained(engine: Engine, store: str) -> None:
    """The driver may not have committed the newest one, and then starts again from the one before."""
    versions = write_versions(engine, store, 10)
    save_snapshot(engine, store, versions[10], numbers(10))
    clean_up(engine, store, versions[10], retain=1)
    assert read(engine, store, *versions[9]) == numbers(9)


def test_clean_up_counts_what_deletes_cost(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """Deletes go 25 a request, without a read before them, and their units are counted apart."""
    base = EMPTY
    for number in range(1, 41):
        row = {b"%d" % number: random.Random(number).randbytes(3000)}  # noqa: S311
        base, _ = commit(memory_engine, store, attempt(number), row, base=base)
        if number == 39:
            save_snapshot(memory_engine, store, base, {})
    meter = clean_up(memory_engine, store, base, retain=2)
    assert [len(call.keys) for call in memory.called("delete")] == [25, 13]
    assert meter.items_deleted >= 38
    # 3,000 bytes and what an item has beside them are four units; and one or two for each of three groups.
    assert 38 * 4 <= meter.delete_units <= 38 * 4 + 8
