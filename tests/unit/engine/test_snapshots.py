"""Snapshots and clean-up."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from functools import partial

import pytest

from dynastate import runtime
from dynastate.engine import maintenance, pace, snapshot_threshold
from dynastate.engine.engine import Engine
from dynastate.engine.graphs import read_manifest
from dynastate.engine.snapshot_threshold import is_worth_it
from dynastate.errors import InternalError, RouteInvalidError, UnavailableError, VersionMissingError
from dynastate.format.keys import EMPTY, Key, VersionId, store_shard
from dynastate.format.snapshot import DELETING, DONE, WRITING
from dynastate.format.version_list import VersionEntry
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables
from tests.support.engine_driver import (
    SHARDS,
    Engines,
    attempt,
    buckets_of,
    chunk,
    commit,
    fold,
    graph,
    items_of,
    numbers,
    parts_of,
    read,
    save_snapshot,
    take_snapshot,
    write,
    write_versions,
)
from tests.support.fakes import Clock, FailingTables, Fault, MemoryTables
from tests.support.limits import set_limits
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("always_worth_it")
#: What `always_worth_it` replaces.
THRESHOLD_OF = snapshot_threshold.threshold_of


# ------------------------------------------------------------------------------------------------------------ snapshots


def test_recovery_begins_with_the_snapshot(engine: Engine, store: str) -> None:
    """Only changes after the snapshot are read; versions before it are unchanged."""
    made = write_versions(engine, store, 30)
    save_snapshot(engine, store, made[20], numbers(20))
    opening = engine.open(store, *made[30])
    assert opening.snapshot == 20
    assert [entry.version for entry in opening.entries] == list(range(21, 31))
    assert opening.base == EMPTY
    for version in made[1:]:
        assert read(engine, store, *version) == numbers(version[0])
    assert engine.open(store, *made[20]).entries == ()
    assert engine.open(store, *made[19]).snapshot == 0
    # A version that the provider holds is preferred, unless it is not in the lineage.
    opening = engine.open(store, *made[25], [made[18], made[3]])
    assert (opening.base, opening.snapshot) == (made[18], 0)
    opening = engine.open(store, *made[25], [VersionId(18, attempt(99))])
    assert (opening.base, opening.snapshot) == (EMPTY, 20)


def test_only_changed_buckets_are_written(engine: Engine, tables: Tables, store: str) -> None:
    """A second snapshot reuses buckets of the first, and marks buckets that became empty."""
    state = {b"%d" % number: b"one" for number in range(100)}
    first = write(engine, store, attempt(1), state)
    save_snapshot(engine, store, first, state)
    before = buckets_of(tables, store)
    gone = next(iter(state))
    second = write(engine, store, attempt(2), {gone: None}, base=first)
    left = {key: value for key, value in state.items() if key != gone}
    assert save_snapshot(engine, store, second, left, lambda _: {gone}).base == 1
    assert len(buckets_of(tables, store)) == len(before) + 1
    assert read(engine, store, *second) == left
    third = write(engine, store, attempt(3), dict.fromkeys(left), base=second)
    save_snapshot(engine, store, third, {}, lambda _: set(left))
    opening = engine.open(store, *third)
    assert (opening.snapshot, fold(opening.snapshot_chunks)) == (3, {})
    found = graph(tables, store).snapshot(3, attempt(3))
    assert found is not None
    kept = read_manifest(tables, store, found)
    assert {bucket.emptied for bucket in kept.buckets} == {3}


def test_an_unfinished_snapshot_is_not_used(engine: Engine, tables: Tables, store: str) -> None:
    """No reader uses a snapshot that is still being written, and no second one is made of its version."""
    made = write_versions(engine, store, 12)
    under_way = take_snapshot(engine, store, made[11], {b"x": b"y"})
    assert under_way is not None
    assert engine.open(store, *made[12]).snapshot == 0
    assert take_snapshot(engine, store, made[11], {}) is None
    under_way.abort()
    assert buckets_of(tables, store) == []
    assert graph(tables, store).snapshots() == []


def damage(tables: Tables, store: str, kind: str) -> str:
    """Break or delete an item of the only snapshot, by the prefix of its key; return the sort key of the item."""
    names = buckets_of(tables, store) if "bucket" in kind else list(items_of(tables, store))
    name = next(each for each in names if each.startswith(kind.split()[1]))
    for shard in range(SHARDS):
        key = Key("snapshot", store_shard(store, shard), name)
        item = tables.get([key]).get(key)
        if item is not None and kind.startswith("lost"):
            tables.delete([key])
        elif item is not None:
            tables.write([(key, item | {"digest": b"another"} | {"data": b"other bytes"})])
    return name


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("lost snapshot_manifest", "the manifest of a snapshot is lost"),
        ("corrupt snapshot_manifest", "a manifest is not the one that its snapshot names"),
        ("lost bucket", "is not in its table"),
        ("corrupt bucket", "wrong checksum"),
        ("corrupt snapshot", "a manifest is not the one that its snapshot names"),
    ],
)
def test_recovery_falls_back_from_a_corrupt_snapshot(
    engine: Engine, engines: Engines, tables: Tables, store: str, kind: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Opening again reads older changes, and logs the item; the next snapshot is complete; clean-up deletes this."""
    made = write_versions(engine, store, 5)
    state = numbers(5)
    save_snapshot(engine, store, made[4], numbers(4))
    name = damage(tables, store, kind)
    with pytest.raises(RouteInvalidError, match=rf"{says}.* table=\w+ store_shard={store}#\d item=.*"):
        read(engine, store, *made[5])
    assert read(engine, store, *made[5]) == state
    ((warning,),) = [[record.getMessage()] for record in caplog.records]
    assert f"recovery skips a corrupt snapshot store={store} version=5 attempt=" in warning
    assert says in warning
    assert f"{name}" in warning
    assert "table=dynastate-snapshot-group " in warning
    # The next one reuses no bucket of it, so other executors can read it.
    assert save_snapshot(engine, store, made[5], state, lambda _: {b"5"}).base == 0
    assert read(engines(), store, *made[5]) == state
    made += write_versions(engine, store, 2, made[5])[1:]
    engine.clean_up(store, "run-1", *made[7], 2, 0, 0)
    assert [each.version for each in graph(tables, store).snapshots()] == [5]
    assert read(engines(), store, *made[7]) == state | {b"6": b"6", b"7": b"7"}


def test_rows_outside_their_bucket_are_refused(engine: Engine, store: str) -> None:
    """A provider that sends rows to another bucket than theirs has a defect; it makes no snapshot."""
    made = write(engine, store, attempt(1), {b"1": b"1"})
    under_way, _ = engine.snapshot(store, "run-1", *made, state_bytes=4 << 20, min_deltas=1)
    assert under_way is not None
    under_way.bucket(0)
    with pytest.raises(InternalError, match="in no bucket, or in another"):
        under_way.append(chunk({b"%d" % number: b"" for number in range(50)}))
    with pytest.raises(InternalError, match="out of order"):
        under_way.bucket(0)
    under_way.abort()


@pytest.mark.parametrize(
    ("parts", "stored", "versions", "worth"),
    [
        (1, 10, 9, False),
        (1, 10, 10, True),
        (1, 6, 10, False),
        (0, 0, 500, False),
        (0, 0, 10_000, True),
        (1000, 1, 10, False),
    ],
)
def test_when_a_snapshot_is_worth_it(
    monkeypatch: pytest.MonkeyPatch, parts: int, stored: int, versions: int, *, worth: bool
) -> None:
    """It depends on the bytes and the number of the deltas, on the minimum and on the threshold that are set."""
    monkeypatch.setattr(snapshot_threshold, "threshold_of", THRESHOLD_OF)
    entry = VersionEntry(1, attempt(1), attempt(0), 1, bytes(8), parts, parts, 2 * stored, stored, bytes(8), {})
    store = "orders/0/0/default"
    for factor in (1, 4):
        assert is_worth_it(store, [entry] * versions, 100 // factor, 10, factor * 0.75) is worth
    # The first is never larger than what was written so far, as with rows that never change.
    assert is_worth_it(store, [entry] * versions, None, 10, 0.75) is (worth or (parts > 0 and versions >= 10))


def test_a_declined_offer_reads_nothing(
    engines: Engines, tables: Tables, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one of an executor that has read the store; any other reads it once, and knows it from then on."""
    monkeypatch.setattr(snapshot_threshold, "threshold_of", THRESHOLD_OF)
    engine, newer = (engines(cache_bytes=2**20) for _ in range(2))

    def offer(by: Engine, of: VersionId, min_deltas: int = 2) -> int:
        begun, spent = by.snapshot(store, "run-1", *of, 1, min_deltas)
        assert begun is None
        assert (spent.read_units > 0) == (spent.requests > 0)
        return spent.requests

    made = write_versions(engine, store, 60)
    assert offer(engine, made[60], 61) == 0, "too few versions"
    save_snapshot(engine, store, made[60], numbers(60))
    assert offer(engine, made[60]) == 0, "it has a snapshot"
    made += write_versions(engine, store, 10, made[60])[1:]
    assert [offer(engine, made[version]) for version in (70, 65)] == [0, 0], "too few bytes"
    read(newer, store, *made[70])
    assert offer(newer, made[70]) == 0
    # Another executor that writes to the store without having read it.
    other = engines(cache_bytes=2**20)
    made += write_versions(other, store, 2, made[70])[1:]
    assert offer(other, made[72]) == 2, "version lists and a manifest"
    made += write_versions(other, store, 2, made[72])[1:]
    assert [offer(other, made[version]) for version in (74, 73)] == [0, 0]
    # What this one knows may be old: it reads, and finds that another has made a snapshot.
    made += write_versions(other, store, 60, made[74])[1:]
    save_snapshot(newer, store, made[130], numbers(130))
    assert offer(other, made[134]) == 2
    assert offer(other, made[134]) == 0
    assert offer(engines(), made[134]) == offer(engines(), made[134]) == 1, "nothing is cached"


@pytest.mark.parametrize("threshold", ["0.5", "2"])
def test_the_threshold_is_a_setting(
    engines: Engines, tables: Tables, store: str, threshold: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes are written up to that multiple of the last snapshot before the next one."""
    monkeypatch.setattr(snapshot_threshold, "threshold_of", THRESHOLD_OF)
    engine = engines(snapshot_threshold=Decimal(threshold))
    made = write_versions(engine, store, 20)
    save_snapshot(engine, store, made[20], numbers(20))
    last = graph(tables, store).snapshots()[0].stored_bytes
    while (under_way := take_snapshot(engine, store, made[-1], numbers(made[-1].version))) is None:
        made += write_versions(engine, store, 1, made[-1])[1:]
    under_way.abort()
    written = [each.stored_bytes for each in graph(tables, store).entries()][20:]
    wanted = float(threshold) * last
    assert 0.95 * wanted <= sum(written)
    assert sum(written[:-1]) <= 1.05 * wanted


def test_stores_that_grow_alike_make_snapshots_at_different_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name a store needs a little more or less than others; on average it is the threshold that is set."""
    monkeypatch.setattr(snapshot_threshold, "threshold_of", THRESHOLD_OF)
    entry = VersionEntry(1, attempt(1), attempt(0), 1, bytes(8), 1, 1, 1, 1, bytes(8), {})
    names = [f"orders/0/{partition}/default" for partition in range(200)]
    needed = [next(n for n in range(1, 2000) if is_worth_it(name, [entry] * n, 1000, 1, 0.85)) for name in names]
    assert max(Counter(needed).values()) <= 10
    assert sum(needed) / len(needed) == pytest.approx(850, rel=0.02)
    assert min(needed) >= 0.95 * 850
    assert max(needed) <= 1.05 * 850 + 1


def test_a_snapshot_yields_to_commits_and_to_throttles() -> None:
    """It pauses twice as long as it worked, within a bound, while commits are under way, or if the table throttled."""
    clock, commits_until = Clock(), 0.0
    slow = pace.Pace(lambda: clock.now < commits_until, clock, clock.sleep)

    def pause_s(worked_s: float, *, is_throttled: bool = False) -> float:
        clock.now += worked_s
        begun = clock.now
        slow.pause(is_throttled=is_throttled)
        return clock.now - begun

    assert pause_s(3.0) == 0
    assert pause_s(3.0, is_throttled=True) == pytest.approx(6.0)
    assert pause_s(60.0, is_throttled=True) == pace.PAUSE_MAX_S
    commits_until = clock.now + 4
    assert pause_s(0.5) == pytest.approx(1.0)
    assert pause_s(2.0) == pytest.approx(0.5, abs=pace.LOOK_S), "they are over"


def test_a_snapshot_on_an_idle_executor_does_not_pause(
    engine: Engine, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits are under way while their parts are queued, and for a second after that."""
    clock = Clock()
    monkeypatch.setattr(runtime, "monotonic", clock)
    assert not engine._writer.is_busy()
    made = write_versions(engine, store, 3)
    clock.sleep(0.9)
    assert engine._writer.is_busy()
    clock.sleep(0.2)
    wait_until(lambda: not engine._writer.is_busy(), "parts that are durable count as queued")
    set_limits(monkeypatch, writes_max=1)
    monkeypatch.setattr(maintenance, "Pace", partial(pace.Pace, sleep=lambda _: pytest.fail("it pauses")))
    save_snapshot(engine, store, made[3], numbers(3))


# ------------------------------------------------------------------------------------------------------------- clean-up


def clean_up(
    engine: Engine, store: str, of: VersionId, retain: int, run: str = "run-1", least: int = 1, most: int = 0
) -> Meter:
    return engine.clean_up(store, run, *of, retain, least, most)[0]


def test_clean_up_removes_what_no_retained_version_needs(engine: Engine, tables: Tables, store: str) -> None:
    """Clean-up deletes versions before the snapshot that the oldest retained one depends on, and nothing else."""
    made = write_versions(engine, store, 40)
    assert clean_up(engine, store, made[40], retain=10).items_deleted == 0, "without a snapshot all are needed"
    assert len(parts_of(tables, store)) == 40
    save_snapshot(engine, store, made[12], numbers(12))
    save_snapshot(engine, store, made[25], numbers(25))
    save_snapshot(engine, store, made[38], numbers(38))
    spent = clean_up(engine, store, made[40], retain=10)
    assert spent.items_deleted > 25
    for version in made[31:]:
        assert read(engine, store, *version) == numbers(version[0])
    assert graph(tables, store).versions() == list(range(26, 41))
    assert {int(key.sort.split("/")[0]) for key, _ in parts_of(tables, store)} == set(range(26, 41))
    assert [each.version for each in graph(tables, store).snapshots()] == [25, 38]
    assert {name.split("/")[1] for name in buckets_of(tables, store)} == {f"{25:020d}", f"{38:020d}"}
    with pytest.raises(VersionMissingError, match="versions=26-40"):
        engine.open(store, *made[25])
    again = clean_up(engine, store, made[40], retain=10)
    assert (again.items_deleted, again.items_written) == (0, 0)


def test_bounds_of_clean_up(engine: Engine, tables: Tables, store: str) -> None:
    """Fewer than `least` versions are left for later; more than `most` are deleted in several turns."""
    made = write_versions(engine, store, 30)
    save_snapshot(engine, store, made[20], numbers(20))
    assert clean_up(engine, store, made[30], retain=5, least=21).items_deleted == 0
    for oldest, left in ((8, 13), (15, 6), (21, 0)):
        assert engine.clean_up(store, "run-1", *made[30], 5, 1, most=7)[1] == left
        assert graph(tables, store).versions() == list(range(oldest, 31))


def test_one_clean_up_of_a_store_at_a_time(engines: Engines, memory: MemoryTables, store: str) -> None:
    """A caller that timed out asks again while the first clean-up still runs; a second one would pay for all twice."""
    asked_again: list[tuple[Meter, int]] = []

    def ask_again(verb: str) -> None:
        if verb == "delete":
            asked_again.append(engine.clean_up(store, "run-1", *made[30], 5, 1, 0))

    engine = engines(FailingTables(memory, ask_again))
    made = write_versions(engine, store, 30)
    save_snapshot(engine, store, made[20], numbers(20))
    assert clean_up(engine, store, made[30], retain=5).items_deleted > 0
    assert asked_again
    assert all(each == (Meter(), 0) for each in asked_again)
    assert clean_up(engine, store, made[30], retain=2).items_deleted == 0


def test_only_the_newest_run_cleans_up(engine: Engine, tables: Tables, store: str) -> None:
    """An executor of a run that was replaced does not know what the new one depends on."""
    made = write_versions(engine, store, 20)
    save_snapshot(engine, store, made[18], numbers(18))
    write(engine, store, attempt(99), {b"new": b"run"}, run="run-2")
    assert clean_up(engine, store, made[20], retain=2).items_deleted == 0
    assert read(engine, store, 1) == {b"new": b"run"}
    # The new run has one version only: all it could remove are those below it.
    assert clean_up(engine, store, VersionId(1, attempt(99)), retain=2, run="run-2").items_deleted == 0


def test_an_unfinished_snapshot_of_an_older_run_is_deleted(engine: Engine, tables: Tables, store: str) -> None:
    """It is retained, with the buckets it may reuse, while its run may still write it; a newer run ends that."""
    made = write_versions(engine, store, 20)
    save_snapshot(engine, store, made[5], numbers(5))
    save_snapshot(engine, store, made[15], numbers(15))
    under_way = take_snapshot(engine, store, made[20], numbers(20))
    assert under_way is not None
    clean_up(engine, store, made[20], retain=2)
    assert {each.version: each.stage for each in graph(tables, store).snapshots()} == {
        5: DELETING,
        15: DONE,
        20: WRITING,
    }
    newest = write(engine, store, attempt(21), {b"21": b"21"}, base=made[20], run="run-2")
    clean_up(engine, store, newest, retain=2, run="run-2", least=0)
    assert [each.version for each in graph(tables, store).snapshots()] == [15]
    assert not under_way.commit()
    assert {name.split("/")[1] for name in buckets_of(tables, store)} == {f"{15:020d}"}
    assert read(engine, store, *newest) == numbers(20) | {b"21": b"21"}


@pytest.mark.parametrize("applied", [True, False])
def test_abort_deletes_no_finished_snapshot(
    failing_engine: Engine, failing_tables: FailingTables, store: str, *, applied: bool
) -> None:
    """After a lost answer, abort leaves a finished snapshot complete, and deletes an unfinished one."""
    made = write_versions(failing_engine, store, 15)
    under_way = take_snapshot(failing_engine, store, made[12], numbers(12))
    assert under_way is not None
    failing_tables.fail("put_over", Fault(UnavailableError("lost"), applied=applied))
    with pytest.raises(UnavailableError, match="lost"):
        under_way.commit()
    under_way.abort()
    assert [each.stage for each in graph(failing_tables, store).snapshots()] == ([DONE] if applied else [])
    assert bool(buckets_of(failing_tables, store)) is applied
    clean_up(failing_engine, store, made[15], retain=3)
    for version in made[13:]:
        assert read(failing_engine, store, *version) == numbers(version[0])


def test_abort_deletes_no_bucket_that_another_snapshot_uses(
    failing_engine: Engine, failing_tables: FailingTables, store: str
) -> None:
    """Its last answer is lost, another one reuses its buckets, clean-up deletes it; then its writer aborts."""
    made = write_versions(failing_engine, store, 30)
    first = take_snapshot(failing_engine, store, made[12], numbers(12))
    assert first is not None
    failing_tables.fail("put_over", Fault(UnavailableError("lost"), applied=True))
    with pytest.raises(UnavailableError, match="lost"):
        first.commit()
    save_snapshot(failing_engine, store, made[14], numbers(14), lambda _: {b"13", b"14"})
    clean_up(failing_engine, store, made[30], retain=3)
    assert [each.version for each in graph(failing_tables, store).snapshots()] == [14]
    first.abort()
    for version in made[28:]:
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
    made = write_versions(engine, store, 10)
    save_snapshot(engine, store, made[10], numbers(10))
    clean_up(engine, store, made[10], retain=1)
    assert read(engine, store, *made[9]) == numbers(9)


def test_clean_up_counts_what_deletes_cost(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """Deletes go 25 a request, without a read before them, and their units are counted apart."""
    base = EMPTY
    for number in range(1, 41):
        row = {b"%d" % number: random.Random(number).randbytes(3000)}  # noqa: S311
        base, _ = commit(memory_engine, store, attempt(number), row, base=base)
        if number == 39:
            save_snapshot(memory_engine, store, base, {})
    spent = clean_up(memory_engine, store, base, retain=2)
    assert [len(call.keys) for call in memory.called("delete")] == [25, 13]
    assert spent.items_deleted >= 38
    # 3,000 bytes and what an item has beside them are four units; and one or two for each of three groups.
    assert 38 * 4 <= spent.delete_units <= 38 * 4 + 8
