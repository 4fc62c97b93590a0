"""Snapshots and clean-up: on tables in memory and on moto; and a simulation with crashes beside a model."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from dynastate import directory, layout, snapshots
from dynastate.cache import Cache
from dynastate.errors import CorruptStateError, InternalError, OtherWayError, UnavailableError, VersionMissingError
from dynastate.layout import Attempt
from dynastate.store import Engine
from dynastate.tables import Meter, Tables
from tests.fakes import Clock, MemoryTables, Strike, StruckTables
from tests.states import (
    EMPTY,
    SHARDS,
    Engines,
    State,
    Version,
    attempt,
    begin,
    chunk,
    closing,
    commit,
    fold,
    history,
    items_of,
    named_keys,
    parts_of,
    read,
    recover,
    take_snapshot,
    write,
    write_versions,
)

pytestmark = pytest.mark.usefixtures("always_worth_it")


def everything(_: int) -> set[bytes]:
    return {b"%d" % number for number in range(2000)}


def snapshot_of(at: Engine, store: str, of: Version, state: State, **more: object) -> None:
    under_way = take_snapshot(at, store, of, state, everything, **more)  # type: ignore[arg-type]  # passed on
    assert under_way is not None
    assert under_way.commit()


def buckets_of(tables: Tables, store: str) -> list[str]:
    """Sort keys of all items of buckets."""
    return sorted(
        key.sort
        for shard in range(SHARDS)
        for key in tables.list_keys("snapshot", layout.store_shard(store, shard), "bucket/", "bucket/~", Meter())
    )


# ------------------------------------------------------------------------------------------------------------ snapshots


def test_recovery_begins_with_the_snapshot(at: Engine, store: str) -> None:
    """What came before it is not read; what came after is; versions before it are as they were."""
    made = write_versions(at, store, 30)
    states = {version: {b"%d" % n: b"%d" % n for n in range(1, version[0] + 1)} for version in made}
    snapshot_of(at, store, made[20], states[made[20]])
    opening = at.open(store, *made[30])
    assert opening.snapshot == 20
    assert [entry.version for entry in opening.entries] == list(range(21, 31))
    assert opening.base == EMPTY
    for version in made[1:]:
        assert read(at, store, *version) == states[version]
    assert at.open(store, *made[20]).entries == ()
    assert at.open(store, *made[19]).snapshot == 0


def test_what_is_held_is_nearer_than_a_snapshot(at: Engine, store: str) -> None:
    """A provider that holds a version gets the changes since, though there is a snapshot in between."""
    made = write_versions(at, store, 25)
    snapshot_of(at, store, made[20], {b"%d" % n: b"%d" % n for n in range(1, 21)})
    opening = at.open(store, *made[25], [made[18], made[3]])
    assert (opening.base, opening.snapshot) == (made[18], 0)
    # Held versions that are not on the chain are no reason to pass the snapshot by.
    opening = at.open(store, *made[25], [(18, attempt(99))])
    assert (opening.base, opening.snapshot) == (EMPTY, 20)


def test_only_changed_buckets_are_written(at: Engine, tables: Tables, store: str) -> None:
    """A second snapshot carries on what the first has, and marks buckets that became empty."""
    state = {b"%d" % number: b"one" for number in range(100)}
    first = write(at, store, attempt(1), state)
    snapshot_of(at, store, first, state)
    before = buckets_of(tables, store)
    gone = next(iter(state))
    second = write(at, store, attempt(2), {gone: None}, base=first)
    left = {key: value for key, value in state.items() if key != gone}
    under_way = take_snapshot(at, store, second, left, lambda _: {gone})
    assert under_way is not None
    assert under_way.base == 1
    assert under_way.commit()
    assert len(buckets_of(tables, store)) == len(before) + 1
    assert read(at, store, *second) == left
    third = write(at, store, attempt(3), dict.fromkeys(left), base=second)
    under_way = take_snapshot(at, store, third, {}, lambda _: set(left))
    assert under_way is not None
    assert under_way.commit()
    opening = at.open(store, *third)
    assert (opening.snapshot, fold(opening.snapshot_chunks)) == (3, {})
    found = history(tables, store).snapshot(3, attempt(3))
    assert found is not None
    kept = snapshots.read_directory(tables, store, found, Meter())
    assert {bucket.emptied for bucket in kept.buckets} == {3}


def test_a_snapshot_that_did_not_end_is_none(at: Engine, tables: Tables, store: str) -> None:
    """Its buckets lie there, its item says that it is being written: no reader takes it, and no other is made of it."""
    made = write_versions(at, store, 12)
    under_way = take_snapshot(at, store, made[11], {b"x": b"y"}, everything)
    assert under_way is not None
    assert at.open(store, *made[12]).snapshot == 0
    assert take_snapshot(at, store, made[11], {}, everything) is None
    under_way.abort()
    assert buckets_of(tables, store) == []
    assert history(tables, store).snapshots() == []


def damage(tables: Tables, store: str, kind: str) -> str:
    """Break or delete something of the only snapshot; return the sort key of the item."""
    names = buckets_of(tables, store) if "bucket" in kind else list(items_of(tables, store))
    name = next(each for each in names if each.startswith(kind.split()[1]))
    for shard in range(SHARDS):
        key = layout.Key("snapshot", layout.store_shard(store, shard), name)
        item = tables.get([key], Meter()).get(key)
        if item is not None and kind.startswith("lost"):
            tables.delete([key], Meter())
        elif item is not None:
            tables.write([(key, item | {"digest": b"another"} | {"data": b"other bytes"})], Meter())
    return name


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("lost directory", "the directory of a snapshot is lost"),
        ("broken directory", "a directory is not the one that its snapshot names"),
        ("lost bucket", "is not in its table"),
        ("broken bucket", "wrong checksum"),
        ("broken snapshot", "a directory is not the one that its snapshot names"),
    ],
)
class TestBrokenSnapshot:
    """Recovery goes round it while what is older is there, and says so; else it is an error that names the item."""

    def test_older_changes_stand_in(
        self, at: Engine, tables: Tables, store: str, kind: str, says: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Whoever opens the version again gets its rows; the log names what is broken, by the table's own name."""
        made = write_versions(at, store, 5)
        state = {b"%d" % number: b"%d" % number for number in range(1, 6)}
        snapshot_of(at, store, made[4], {key: value for key, value in state.items() if key != b"5"})
        name = damage(tables, store, kind)
        with pytest.raises(OtherWayError, match=rf"{says}.* table=\w+ store_shard={store}#\d item=.*"):
            read(at, store, *made[5])
        assert read(at, store, *made[5]) == state
        ((warning,),) = [[record.getMessage()] for record in caplog.records]
        assert f"recovery goes round a broken snapshot store={store} version=5 attempt=" in warning
        assert says in warning
        assert f"{name}" in warning
        assert "table=dynastate-snapshot-group " in warning

    def test_nothing_stands_in(self, at: Engine, tables: Tables, store: str, kind: str, says: str) -> None:
        """Once clean-up has taken what is older, a broken snapshot is an error; it stays one, and names the item."""
        made = write_versions(at, store, 5)
        snapshot_of(at, store, made[4], {b"%d" % number: b"%d" % number for number in range(1, 5)})
        at.clean_up(store, "run-1", *made[5], 2, 0, 0)
        assert history(tables, store).versions() == [4, 5]
        name = damage(tables, store, kind)
        with pytest.raises(CorruptStateError, match=says):
            read(at, store, *made[5])
        for _ in range(2):
            with pytest.raises(CorruptStateError, match=f"{says}.*nothing older stands in") as failed:
                recover(at, store, *made[5])
            assert name in str(failed.value)

    def test_the_next_snapshot_is_whole_again(
        self,
        at: Engine,
        engines: Engines,
        tables: Tables,
        store: str,
        kind: str,
        says: str,  # noqa: ARG002  # asked of by the class
    ) -> None:
        """It carries nothing on from one that is broken, so other executors read it; then clean-up takes that away."""
        made = write_versions(at, store, 5)
        state = {b"%d" % number: b"%d" % number for number in range(1, 6)}
        snapshot_of(at, store, made[4], {key: value for key, value in state.items() if key != b"5"})
        damage(tables, store, kind)
        recover(at, store, *made[5])
        under_way = take_snapshot(at, store, made[5], state, lambda _: {b"5"})
        assert under_way is not None
        assert under_way.base == 0
        assert under_way.commit()
        assert read(engines(), store, *made[5]) == state
        made += write_versions(at, store, 2, made[5])[1:]
        at.clean_up(store, "run-1", *made[7], 2, 0, 0)
        assert [each.version for each in history(tables, store).snapshots()] == [5]
        assert read(engines(), store, *made[7]) == state | {b"6": b"6", b"7": b"7"}


def test_a_way_that_another_executors_clean_up_closed_is_another(engines: Engines, store: str) -> None:
    """An executor that knows the way to a version from before clean-up is told that there may be another, and it is."""
    made = write_versions(at := engines(), store, 6)
    state = {b"%d" % number: b"%d" % number for number in range(1, 7)}
    stale = engines(cache_bytes=1 << 20)
    assert read(stale, store, *made[6]) == state
    stale._reader._parts = Cache(0)
    snapshot_of(at, store, made[5], {key: value for key, value in state.items() if key != b"6"})
    at.clean_up(store, "run-1", *made[6], 2, 0, 0)
    with pytest.raises(OtherWayError, match="is not in its table"):
        read(stale, store, *made[6])
    assert read(stale, store, *made[6]) == state


def test_rows_outside_their_bucket_are_refused(at: Engine, store: str) -> None:
    """A provider that sends rows to another bucket than theirs has a defect; no snapshot comes of it."""
    made = write(at, store, attempt(1), {b"1": b"1"})
    under_way, _ = at.snapshot(store, "run-1", *made, state_bytes=4 << 20, min_deltas=1)
    assert under_way is not None
    under_way.bucket(0)
    with pytest.raises(InternalError, match="in no bucket, or in another"):
        under_way.append(chunk({b"%d" % number: b"" for number in range(50)}))
    with pytest.raises(InternalError, match="out of order"):
        under_way.bucket(0)
    under_way.abort()


@pytest.mark.parametrize(
    "homes",
    [(None, None), (layout.Home("one/0/0/default", 3), None), (layout.Home("one", 1), layout.Home("two", 256))],
    ids=["its own", "one elsewhere", "all elsewhere"],
)
def test_a_directory_survives_its_bytes(homes: tuple[layout.Home | None, layout.Home | None]) -> None:
    """Every field comes back; a broken byte is found wherever it is. Only what lies elsewhere has format 2."""
    holders = [(7, attempt(1)), (9, attempt(2))]
    buckets = [
        directory.Bucket(holders[n % 2], 0, n + 1, n, n * 3, n * 2, bytes([n] * 8), homes[n % 2]) for n in range(3)
    ]
    made = directory.Directory(9, attempt(3), attempt(2), 7, 2, (*buckets, directory.Bucket(emptied=9)))
    raw = directory.encode("s", made)
    assert directory.decode("s", raw) == made
    assert raw[0] == (layout.FORKED if any(homes) else layout.FORMAT)
    for at_byte in range(len(raw)):
        broken = raw[:at_byte] + bytes([raw[at_byte] ^ 0x10]) + raw[at_byte + 1 :]
        with pytest.raises(CorruptStateError):
            directory.decode("s", broken)
    with pytest.raises(CorruptStateError):
        directory.decode("other", raw)


@pytest.mark.parametrize(
    ("parts", "stored", "versions", "worth"),
    [
        (1, 10, 9, False),
        (1, 10, 10, True),
        (1, 7, 10, False),
        (0, 0, 500, False),
        (0, 0, 10_000, True),
        (1000, 1, 10, False),
    ],
)
def test_when_a_snapshot_is_worth_it(
    monkeypatch: pytest.MonkeyPatch, parts: int, stored: int, versions: int, *, worth: bool
) -> None:
    """By the bytes of the deltas, by their number, and never with fewer than asked for."""
    monkeypatch.setattr(snapshots, "FRACTION", 0.75)
    entry = layout.VersionEntry(1, attempt(1), attempt(0), 1, bytes(8), parts, 1, 2 * stored, stored, bytes(8), {})
    last = layout.Snapshot(1, attempt(1), attempt(2), 1, layout.DONE, stored_bytes=100)
    assert snapshots.is_worth_it([entry] * versions, last, 10) is worth
    # The first is never larger than what was written so far, such as rows that are inserted and never changed.
    assert snapshots.is_worth_it([entry] * versions, None, 10) is (worth or (parts > 0 and versions >= 10))


def test_a_snapshot_rests_between_its_requests() -> None:
    """Work in the background takes a third of the time, and no rest is longer than its bound."""
    clock = Clock()
    pace = snapshots.Pace(clock, clock.sleep)
    for worked_s in (0.05, 0.0, 0.02, 3.0):
        clock.now += worked_s
        pace.rest()
    assert clock.slept == pytest.approx([0.1, 0.0, 0.04, snapshots.REST_MAX_S])


# ------------------------------------------------------------------------------------------------------------- clean-up


def clean_up(
    at: Engine, store: str, of: Version, retain: int, run: str = "run-1", least: int = 1, most: int = 0
) -> Meter:
    return at.clean_up(store, run, *of, retain, least, most)[0]


def test_clean_up_removes_what_no_retained_version_needs(at: Engine, tables: Tables, store: str) -> None:
    """Versions before the snapshot that the oldest retained one stands on go, with their parts; the rest stays."""
    made = write_versions(at, store, 40)
    states = {version: {b"%d" % n: b"%d" % n for n in range(1, version[0] + 1)} for version in made}
    snapshot_of(at, store, made[12], states[made[12]])
    snapshot_of(at, store, made[25], states[made[25]])
    snapshot_of(at, store, made[38], states[made[38]])
    spent = clean_up(at, store, made[40], retain=10)
    assert spent.items_deleted > 25
    for version in made[31:]:
        assert read(at, store, *version) == states[version]
    assert history(tables, store).versions() == list(range(26, 41))
    assert {int(key.sort.split("/")[0]) for key, _ in parts_of(tables, store)} == set(range(26, 41))
    assert [each.version for each in history(tables, store).snapshots()] == [25, 38]
    assert {name.split("/")[1] for name in buckets_of(tables, store)} == {f"{25:020d}", f"{38:020d}"}
    with pytest.raises(VersionMissingError, match="versions=26-40"):
        at.open(store, *made[25])
    again = clean_up(at, store, made[40], retain=10)
    assert (again.items_deleted, again.items_written) == (0, 0)


def test_without_a_snapshot_nothing_goes(at: Engine, tables: Tables, store: str) -> None:
    """Every version stands on all before it."""
    made = write_versions(at, store, 20)
    assert clean_up(at, store, made[20], retain=2).items_deleted == 0
    assert len(parts_of(tables, store)) == 20


def test_bounds_of_clean_up(at: Engine, tables: Tables, store: str) -> None:
    """Fewer than `least` versions stay for another time; more than `most` go in several turns."""
    made = write_versions(at, store, 30)
    snapshot_of(at, store, made[20], {b"%d" % n: b"%d" % n for n in range(1, 21)})
    assert clean_up(at, store, made[30], retain=5, least=21).items_deleted == 0
    for oldest, left in ((8, 13), (15, 6), (21, 0)):
        assert at.clean_up(store, "run-1", *made[30], 5, 1, most=7)[1] == left
        assert history(tables, store).versions() == list(range(oldest, 31))


def test_one_clean_up_of_a_store_at_a_time(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Whoever asked for it may have given it up, and asks again: it goes on, and another would pay for all twice."""
    asked_again: list[tuple[Meter, int]] = []

    def ask_again(verb: str) -> None:
        if verb == "delete":
            asked_again.append(at.clean_up(store, "run-1", *made[30], 5, 1, 0))

    at = engines(StruckTables(memory, ask_again))
    made = write_versions(at, store, 30)
    snapshot_of(at, store, made[20], {b"%d" % n: b"%d" % n for n in range(1, 21)})
    assert clean_up(at, store, made[30], retain=5).items_deleted > 0
    assert asked_again
    assert all(each == (Meter(), 0) for each in asked_again)
    assert clean_up(at, store, made[30], retain=2).items_deleted == 0


def test_only_the_newest_run_cleans_up(at: Engine, tables: Tables, store: str) -> None:
    """An executor of a run that was replaced does not know what the new one stands on."""
    made = write_versions(at, store, 20)
    snapshot_of(at, store, made[18], {b"%d" % n: b"%d" % n for n in range(1, 19)})
    write(at, store, attempt(99), {b"new": b"life"}, run="run-2")
    assert clean_up(at, store, made[20], retain=2).items_deleted == 0
    assert read(at, store, 1) == {b"new": b"life"}
    # The new run has one version only: all it could remove are those below it.
    assert clean_up(at, store, (1, attempt(99)), retain=2, run="run-2").items_deleted == 0


def test_a_snapshot_that_a_run_before_did_not_end_goes(at: Engine, tables: Tables, store: str) -> None:
    """While someone may still write it, it stays, and with it what it may carry on; a run that is over writes none."""
    made = write_versions(at, store, 20)
    states = {version: {b"%d" % n: b"%d" % n for n in range(1, version[0] + 1)} for version in made}
    snapshot_of(at, store, made[5], states[made[5]])
    snapshot_of(at, store, made[15], states[made[15]])
    under_way = take_snapshot(at, store, made[20], states[made[20]], everything)
    assert under_way is not None
    clean_up(at, store, made[20], retain=2)
    assert {each.version: each.stage for each in history(tables, store).snapshots()} == {
        5: layout.LEAVING,
        15: layout.DONE,
        20: layout.WRITING,
    }
    newest = write(at, store, attempt(21), {b"21": b"21"}, base=made[20], run="run-2")
    clean_up(at, store, newest, retain=2, run="run-2", least=0)
    assert [each.version for each in history(tables, store).snapshots()] == [15]
    assert not under_way.commit()
    assert {name.split("/")[1] for name in buckets_of(tables, store)} == {f"{15:020d}"}
    assert read(at, store, *newest) == states[made[20]] | {b"21": b"21"}


@pytest.mark.parametrize("applied", [True, False])
def test_a_snapshot_whose_last_answer_was_lost_is_not_taken_apart(
    memory: MemoryTables, store: str, *, applied: bool
) -> None:
    """If it is done, it stays whole, though its writer aborts; if it is not, nothing of it is left."""
    struck = StruckTables(memory)
    for make in closing(struck):
        at = make()
        made = write_versions(at, store, 15)
        states = {version: {b"%d" % n: b"%d" % n for n in range(1, version[0] + 1)} for version in made}
        under_way = take_snapshot(at, store, made[12], states[made[12]], everything)
        assert under_way is not None
        struck.strike("put_over", Strike(UnavailableError("lost"), applied=applied))
        with pytest.raises(UnavailableError, match="lost"):
            under_way.commit()
        under_way.abort()
        assert [each.stage for each in history(memory, store).snapshots()] == ([layout.DONE] if applied else [])
        assert bool(buckets_of(memory, store)) is applied
        clean_up(at, store, made[15], retain=3)
        for version in made[13:]:
            assert read(at, store, *version) == states[version]


def test_a_snapshot_that_others_carry_on_is_not_taken_apart(memory: MemoryTables, store: str) -> None:
    """Its last answer is lost, another one carries its buckets on, clean-up takes it away; then its writer aborts."""
    struck = StruckTables(memory)
    for make in closing(struck):
        at = make()
        made = write_versions(at, store, 30)
        states = {version: {b"%d" % n: b"%d" % n for n in range(1, version[0] + 1)} for version in made}
        first = take_snapshot(at, store, made[12], states[made[12]], everything)
        assert first is not None
        struck.strike("put_over", Strike(UnavailableError("lost"), applied=True))
        with pytest.raises(UnavailableError, match="lost"):
            first.commit()
        second = take_snapshot(at, store, made[14], states[made[14]], lambda _: {b"13", b"14"})
        assert second is not None
        assert second.commit()
        clean_up(at, store, made[30], retain=3)
        assert [each.version for each in history(memory, store).snapshots()] == [14]
        first.abort()
        for version in made[28:]:
            assert read(at, store, *version) == states[version]


def test_a_lost_directory_stops_clean_up(at: Engine, tables: Tables, store: str) -> None:
    """The deltas are the only other way to what the snapshot held: they stay until someone has looked into it."""
    made = write_versions(at, store, 30)
    snapshot_of(at, store, made[20], {b"%d" % n: b"%d" % n for n in range(1, 21)})
    (name,) = [name for name in items_of(tables, store) if name.startswith("directory/")]
    tables.delete([layout.Key("snapshot", layout.store_shard(store, 0), name)], Meter())
    with pytest.raises(CorruptStateError, match="directory of a snapshot is lost"):
        clean_up(at, store, made[30], retain=3)
    assert history(tables, store).versions() == list(range(1, 31))


def test_dead_branches_hold_nothing_back(at: Engine, tables: Tables, store: str) -> None:
    """A query that was rewound goes on from an older version: what lies beyond on the old branch is not needed."""
    old = write_versions(at, store, 30)
    states = {version: {b"%d" % n: b"%d" % n for n in range(1, version[0] + 1)} for version in old}
    snapshot_of(at, store, old[10], states[old[10]])
    new = old[16]
    for number in range(17, 30):
        new = write(at, store, attempt(100 + number), {b"%d" % number: b"new"}, base=new, run="run-2")
        states[new] = {**states[old[16]], **{b"%d" % n: b"new" for n in range(17, number + 1)}}
        if number == 24:
            snapshot_of(at, store, new, states[new], run="run-2")
    clean_up(at, store, new, retain=4, run="run-2")
    assert history(tables, store).versions() == list(range(25, 31))
    assert read(at, store, *new) == states[new]


def test_the_version_before_the_newest_always_stays(at: Engine, store: str) -> None:
    """The driver may not have committed the newest one, and then starts again from the one before."""
    made = write_versions(at, store, 10)
    snapshot_of(at, store, made[10], {b"%d" % n: b"%d" % n for n in range(1, 11)})
    clean_up(at, store, made[10], retain=1)
    assert read(at, store, *made[9]) == {b"%d" % n: b"%d" % n for n in range(1, 10)}


def test_orphans_go(at: Engine, tables: Tables, store: str) -> None:
    """Parts of an attempt that died are found by their keys, once its version is below what is needed."""
    made = write_versions(at, store, 4)
    dead = begin(at, store, attempt(77), made[4])
    for number in range(30):
        dead.append(chunk({b"%d" % number: random.Random(number).randbytes(30_000)}))  # noqa: S311  # no secret
    dead._ticket.wait(5)
    made += write_versions(at, store, 16, base=made[4])[1:]
    snapshot_of(at, store, made[18], {b"%d" % n: b"%d" % n for n in range(1, 19)})
    assert any(attempt(77).hex() in key.sort for key, _ in parts_of(tables, store))
    clean_up(at, store, made[20], retain=2)
    assert {int(key.sort.split("/")[0]) for key, _ in parts_of(tables, store)} == {19, 20}
    assert read(at, store, *made[20]) == {b"%d" % n: b"%d" % n for n in range(1, 21)}


def test_clean_up_counts_what_deletes_cost(remembered: tuple[Engine, MemoryTables], store: str) -> None:
    """Deletes go 25 a request, without a read before them, and their units are counted apart."""
    at, memory = remembered
    base = EMPTY
    for number in range(1, 41):
        base, _ = commit(at, store, attempt(number), {b"%d" % number: random.Random(number).randbytes(3000)}, base=base)  # noqa: S311
        if number == 39:
            snapshot_of(at, store, base, {})
    spent = clean_up(at, store, base, retain=2)
    assert [len(call.keys) for call in memory.called("delete")] == [25, 13]
    assert spent.items_deleted >= 38
    # 3,000 bytes and what an item has beside them are four units; and one or two for each of three groups.
    assert 38 * 4 <= spent.delete_units <= 38 * 4 + 8


@pytest.fixture
def remembered(memory: MemoryTables) -> Iterator[tuple[Engine, MemoryTables]]:
    """An engine on tables in memory that keep a journal."""
    for make in closing(memory):
        yield make(), memory


# ----------------------------------------------------------------------------------------------------------- simulation

SEEDS = range(20)
RETAIN = 4


class Simulation:
    """One store's life with snapshots and clean-up that die half-way, retries, rewinds, restarts and orphans."""

    def __init__(self, seed: int, make: Engines, struck: StruckTables, store: str) -> None:
        self.chance = random.Random(seed)  # noqa: S311  # a simulation, no secret
        self.make, self.struck, self.store = make, struck, store
        self.at = make()
        self.run = 1
        self.numbers = 0
        self.states: dict[Version, State] = {EMPTY: {}}
        self.parents: dict[Version, Version] = {}
        self.changes: dict[Version, set[bytes]] = {EMPTY: set()}
        self.newest = EMPTY
        #: Siblings of versions on the chain, which a driver may still choose.
        self.twins: list[Version] = []
        #: What clean-up was told to keep: from this version on.
        self.oldest = 1

    def chain(self) -> list[Version]:
        """The newest version and those it stands on, newest first."""
        found = [self.newest]
        while found[-1] != EMPTY:
            found.append(self.parents[found[-1]])
        return found[:-1]

    def retained(self) -> list[Version]:
        kept = [version for version in self.chain()[:RETAIN] if version[0] >= self.oldest]
        lowest = kept[-1][0] if kept else 0
        on_chain = {EMPTY, *self.chain()[: RETAIN + 1]}
        twins = [twin for twin in self.twins if twin[0] >= lowest and self.parents[twin] in on_chain]
        return kept + twins

    def changed_since(self, version: int) -> set[bytes]:
        return set().union(*(self.changes[each] for each in self.chain() if each[0] > version))

    def batch(self, base: Version) -> Version:
        self.numbers += 1
        under_way = begin(self.at, self.store, attempt(self.numbers), base, run=f"run-{self.run}")
        keys = [b"%d" % self.chance.randrange(60) for _ in range(self.chance.randrange(12))]
        changes = {key: self.chance.choice((None, b"", self.chance.randbytes(40))) for key in keys}
        state = dict(self.states[base])
        if changes:
            state = fold([(len(changes), chunk(changes).run)], state)
            under_way.append(chunk(changes))
        under_way.commit({0: len(state)}, '{"families":[]}')
        made = (base[0] + 1, Attempt(under_way.attempt))
        self.states[made], self.parents[made], self.changes[made] = state, base, set(changes)
        return made

    def step(self) -> None:
        chance = self.chance.random()
        if chance < 0.05:
            self.run += 1
            self.at = self.make()
            self.newest = self.batch(self.newest)
        elif chance < 0.1 and self.newest != EMPTY:  # rewound by hand: a new run goes on from an older version
            self.run += 1
            self.newest = self.batch(self.chance.choice([each for each in self.retained() if each in self.chain()]))
            self.twins = []
        elif chance < 0.15:  # a task that dies
            dead = begin(self.at, self.store, attempt(self.numbers + 10**6), self.newest, run=f"run-{self.run}")
            dead.append(chunk({b"%d" % number: b"dead" for number in range(self.chance.randrange(1, 9))}))
            self.at.submit(dead._ticket, dead._ready)
            dead._ticket.wait(5)
        elif chance < 0.25 and self.newest != EMPTY:  # a twin, which the driver does not take, or does
            self.twins.append(self.newest)
            twin = self.batch(self.parents[self.newest])
            if self.chance.random() < 0.5:
                self.newest = twin
            else:
                self.twins.append(twin)
        elif chance < 0.4 and self.newest != EMPTY:
            self.snapshot()
        elif chance < 0.5 and self.newest != EMPTY:
            self.oldest = max(self.oldest, self.newest[0] - RETAIN + 1)
            self.dying("delete", "delete_over", "put_over", "list_keys", "get", "query")
            try:
                clean_up(self.at, self.store, self.newest, RETAIN, run=f"run-{self.run}")
            except UnavailableError:
                pass
            finally:
                self.struck.strikes.clear()
        else:
            self.newest = self.batch(self.newest)

    def snapshot(self) -> None:
        of = self.chance.choice(self.chain()[:2])
        newest, self.newest = self.newest, of
        self.dying("write", "put_over", "get")
        try:
            under_way = None
            under_way = take_snapshot(
                self.at, self.store, of, self.states[of], self.changed_since, run=f"run-{self.run}"
            )
            if under_way is not None and self.chance.random() < 0.9:
                under_way.commit()
        except UnavailableError:
            self.struck.strikes.clear()
            # The sidecar aborts what failed, unless it dies itself.
            if under_way is not None and self.chance.random() < 0.7:
                under_way.abort()
        finally:
            self.newest = newest
            self.struck.strikes.clear()

    def dying(self, *verbs: str) -> None:
        """Let one of the next requests of some verbs fail, before or after it was applied, and all after it."""
        if self.chance.random() < 0.5:
            verb = self.chance.choice(verbs)
            passed = self.chance.randrange(4)
            strike = Strike(UnavailableError("died"), applied=self.chance.random() < 0.5)
            self.struck.strike(verb, *[None] * passed, strike)

    def check(self) -> None:
        at = self.make()
        for version in self.retained():
            assert read(at, self.store, *version) == self.states[version], version


@pytest.mark.parametrize("seed", SEEDS)
def test_clean_up_never_removes_what_a_retained_version_needs(seed: int, memory: MemoryTables, store: str) -> None:
    """Whatever dies, whenever: every retained version reads back exactly, and in the end nothing is left unnamed."""
    print(f"seed={seed}")  # noqa: T201  # shown by pytest when the test fails
    struck = StruckTables(memory)
    for make in closing(struck):
        simulation = Simulation(seed, make, struck, store)
        for _ in range(150):
            simulation.step()
            simulation.check()
        assert len(simulation.states) > 50
        # A quiet end: enough versions for all that died to fall behind, a snapshot, and clean-up twice.
        for _ in range(3 * RETAIN):
            simulation.newest = simulation.batch(simulation.newest)
        under_way = take_snapshot(
            simulation.at,
            store,
            simulation.newest,
            simulation.states[simulation.newest],
            simulation.changed_since,
            run=f"run-{simulation.run}",
        )
        assert under_way is None or under_way.commit()
        for _ in range(RETAIN + 1):
            simulation.newest = simulation.batch(simulation.newest)
        for _ in range(2):
            clean_up(simulation.at, store, simulation.newest, RETAIN, run=f"run-{simulation.run}")
        simulation.check()
        nothing_is_unnamed(memory, store, simulation.newest[0])


def nothing_is_unnamed(memory: MemoryTables, store: str, newest: int) -> None:
    """Every part is named by a version list, every bucket by a directory, every directory by a snapshot."""
    named = named_keys(memory, store)
    assert named <= memory.items.keys()
    # Those of versions to come, which a run before a rewind made, are overtaken later.
    overtaken = {"delta": newest - RETAIN, "snapshot": newest}
    unnamed = [key for key in memory.items.keys() - named if version_of(key) <= overtaken[key.role]]
    assert unnamed == []
    stages = {each.stage for each in history(memory, store).snapshots() if each.version <= newest}
    assert stages <= {layout.DONE}


def version_of(key: layout.Key) -> int:
    """The version that a part, bucket, directory or snapshot is of."""
    return int(next(word for word in key.sort.split("/") if len(word) == 20))
