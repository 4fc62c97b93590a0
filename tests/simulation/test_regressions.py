"""What the simulation found, or was written to look for: each by name, as the shortest schedule that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest

from dynastate import layout
from dynastate.errors import CorruptStateError, OtherWayError, UnavailableError, VersionMissingError
from dynastate.layout import Item, Key, Role
from dynastate.store import Engine
from dynastate.tables import Meter
from tests.fakes import MemoryTables, Strike, StruckTables
from tests.simulation.mutations import ends_a_snapshot_without_looking_what_it_stands_on
from tests.states import (
    EMPTY,
    Engines,
    State,
    Version,
    attempt,
    begin,
    chunk,
    closing,
    fold,
    history,
    read,
    recover,
    take_snapshot,
    write,
    write_versions,
)

RUN = "run-1"
pytestmark = pytest.mark.usefixtures("always_worth_it")


class Overtaken(StruckTables):
    """Tables whose first request of a kind comes after something else has happened."""

    def __init__(self, tables: MemoryTables, happens: Callable[[], None], before: str = "get") -> None:
        to_come = [happens]

        def once(verb: str) -> None:
            if verb == before and to_come:
                to_come.pop()()

        super().__init__(tables, before=once)


@pytest.fixture
def engines(memory: MemoryTables) -> Iterator[Engines]:
    """Make engines on the tables; all are closed."""
    yield from closing(memory)


def numbers(count: int) -> State:
    """What `write_versions` has at a version."""
    return {b"%d" % number: b"%d" % number for number in range(1, count + 1)}


def snapshot_of(at: Engine, store: str, of: Version, state: State, run: str = RUN) -> None:
    under_way = take_snapshot(at, store, of, state, lambda _: set(state), run=run)
    assert under_way is not None
    assert under_way.commit()


def test_zombie_that_commits_after_clean_up(engines: Engines, store: str) -> None:
    """It stands on a version that clean-up has taken away. Whoever asks by number gets the attempt that can be read."""
    at = engines()
    made = write_versions(at, store, 4)
    zombie = begin(engines(), store, attempt(99), made[4])
    zombie.append(chunk({b"by": b"zombie"}))
    fifth = write(at, store, attempt(5), {b"5": b"5"}, base=made[4])
    sixth = write(at, store, attempt(6), {b"6": b"6"}, base=fifth)
    snapshot_of(at, store, fifth, numbers(5))
    at.clean_up(store, RUN, *sixth, retain=2, least=1, most=0)
    zombie.commit({0: 1}, '{"families":[]}')
    assert read(engines(), store, 5) == numbers(5)
    assert read(engines(), store, 6) == numbers(6)
    # Clean-up, too, has to go on.
    seventh = write(at, store, attempt(7), {b"7": b"7"}, base=sixth)
    snapshot_of(at, store, seventh, numbers(7))
    at.clean_up(store, RUN, *seventh, retain=2, least=1, most=0)
    assert read(engines(), store, 7) == numbers(7)


def test_twins_that_branched_off_before_what_is_retained(engines: Engines, store: str) -> None:
    """Under checkpoint format v1 two executors went apart earlier, and a number stands for the other one's attempt."""
    at, other = engines(), engines()
    made = write_versions(at, store, 3)
    mine = write(at, store, attempt(4), {b"4": b"4"}, base=made[3])
    theirs = write(other, store, attempt(104), {b"4": b"their"}, base=made[3])
    state = {mine: numbers(4), theirs: numbers(3) | {b"4": b"their"}}
    for number in (5, 6):
        row = {b"%d" % number: b"%d" % number}
        mine, before = write(at, store, attempt(number), row, base=mine), mine
        state[mine] = state[before] | row
        theirs, before = write(other, store, attempt(100 + number), row, base=theirs), theirs
        state[theirs] = state[before] | row
        if number == 5:
            snapshot_of(at, store, mine, state[mine])
    at.clean_up(store, RUN, *mine, retain=2, least=1, most=0)
    for number in (5, 6):
        opening = at.open(store, number, layout.NO_ATTEMPT)
        found = (opening.version, opening.attempt)
        assert fold(opening.chunks, fold(opening.snapshot_chunks)) == state[found]


@pytest.mark.parametrize("kind", ["behind", "set back"])
def test_clean_up_where_one_by_a_newer_version_died(
    engines: Engines, memory: MemoryTables, store: str, kind: str
) -> None:
    """It took a snapshot away, and did not come to strike the versions that stood on that. They are not called broken.

    Nor by an executor that is behind, nor by the run after the query was set back: both would keep one of them.
    """
    struck = StruckTables(memory)
    at, dying = engines(), engines(struck)
    made = write_versions(at, store, 6)
    snapshot_of(at, store, made[3], numbers(3))
    at.clean_up(store, RUN, *made[6], retain=3, least=1, most=0)
    made += write_versions(at, store, 6, base=made[6])[1:]
    snapshot_of(at, store, made[10], numbers(10))
    struck.strike("delete_over", None, Strike(UnavailableError("died")))
    with pytest.raises(UnavailableError, match="died"):
        dying.clean_up(store, RUN, *made[12], retain=3, least=1, most=0)
    assert history(memory, store).versions() == list(range(4, 13))
    assert [each.version for each in history(memory, store).snapshots()] == [10]
    run, newest = RUN, made[11]
    if kind == "set back":
        run, newest = "run-2", write(at, store, attempt(111), {b"11": b"11"}, base=made[10], run="run-2")
    assert at.clean_up(store, run, *newest, retain=3, least=1, most=0)[0].items_deleted == 0
    assert read(at, store, *newest) == numbers(11)


def test_a_new_life_begins_while_clean_up_reads(engines: Engines, memory: MemoryTables, store: str) -> None:
    """A Query takes its time: the meta item on one page says that no newer run writes, the next has its snapshots."""
    at, torn = engines(), MemoryTables()
    torn.items = memory.items
    old = write_versions(at, store, 20)
    snapshot_of(at, store, old[18], numbers(18))
    life: list[Version] = []

    def new_life() -> None:
        base = EMPTY
        for number in range(1, 13):
            base = write(at, store, attempt(100 + number), {b"%d" % number: b"new"}, base=base, run="run-2")
            life.append(base)
        snapshot_of(at, store, life[9], dict.fromkeys(numbers(10), b"new"), run="run-2")
        at.clean_up(store, "run-2", *life[-1], retain=2, least=1, most=0)

    def pages(role: Role, store_shard: str, low: str, high: str, meter: Meter) -> list[tuple[Key, Item]]:
        if life or not low <= layout.META <= high:
            return memory.query(role, store_shard, low, high, meter)
        first = memory.query(role, store_shard, low, layout.META, meter)
        new_life()
        return first + memory.query(role, store_shard, f"{layout.META}~", high, meter)

    torn.query = pages  # type: ignore[method-assign]  # in two pages, and much happens in between
    engines(torn).clean_up(store, RUN, *old[20], retain=2, least=1, most=0)
    assert len(life) == 12
    assert read(at, store, *life[-1]) == dict.fromkeys(numbers(12), b"new")


def test_a_run_that_is_over_enters_late(engines: Engines, memory: MemoryTables, store: str) -> None:
    """The request by which a run enters itself was long on its way: the run that began since then stays the newest."""
    at, meta = engines(), layout.meta_key(store)
    made = write_versions(at, store, 8)
    newest = write(at, store, attempt(9), {b"9": b"9"}, base=made[8], run="run-3")
    assert memory.advance_epoch(meta, "run-2", 1, [], Meter()) is False
    snapshot_of(at, store, newest, numbers(9), run="run-3")
    for number in (10, 11):
        newest = write(at, store, attempt(number), {b"%d" % number: b"%d" % number}, base=newest, run="run-3")
    assert at.clean_up(store, "run-3", *newest, retain=2, least=1, most=0)[0].items_deleted > 0


def test_a_run_of_an_old_life_first_writes_late(engines: Engines, store: str) -> None:
    """It becomes the newest, and takes away nothing of the life that began meanwhile."""
    old, at = engines(), engines()
    made = write_versions(old, store, 12)
    zombie = begin(old, store, attempt(113), made[12], run="run-0")
    life = [EMPTY]
    for number in range(1, 7):
        row = {b"%d" % number: b"new"}
        life.append(write(at, store, attempt(200 + number), row, base=life[-1], run="run-2"))
    zombie.append(chunk({b"13": b"13"}))
    zombie.commit({0: 13}, '{"families":[]}')
    snapshot_of(old, store, made[11], numbers(11), run="run-0")
    assert old.clean_up(store, "run-0", 13, attempt(113), retain=2, least=1, most=0)[0].items_deleted == 0
    assert read(engines(), store, *life[6]) == dict.fromkeys(numbers(6), b"new")


@pytest.mark.parametrize("what", ["bucket", "directory"])
def test_a_request_of_a_snapshot_comes_after_it_has_gone(
    engines: Engines, memory: MemoryTables, store: str, what: str
) -> None:
    """Nothing names what it wrote, and the first clean-up of another executor finds it all the same."""
    at = engines()
    made = write_versions(at, store, 9)
    under_way = take_snapshot(at, store, made[3], numbers(3), lambda _: set(numbers(3)))
    assert under_way is not None
    under_way._write()
    if what == "directory":
        assert under_way.commit()
    late = {key: item for key, item in memory.items.items() if key.sort.startswith(f"{what}/")}
    assert late
    under_way.abort()
    snapshot_of(at, store, made[5], numbers(5))
    snapshot_of(at, store, made[8], numbers(8))
    at.clean_up(store, RUN, *made[7], retain=2, least=1, most=0)
    memory.items |= late
    engines().clean_up(store, RUN, *made[9], retain=2, least=1, most=0)
    assert not late.keys() & memory.items.keys()
    assert read(at, store, *made[9]) == numbers(9)


def test_buckets_that_others_have_carried_on_are_no_strays(engines: Engines, memory: MemoryTables, store: str) -> None:
    """A snapshot that is there has buckets of one that has gone: they stay."""
    at = engines()
    made = write_versions(at, store, 20)
    snapshot_of(at, store, made[5], numbers(5))
    for number in (10, 15, 19):
        under_way = take_snapshot(at, store, made[number], numbers(number), lambda _: {b"%d" % number})  # noqa: B023
        assert under_way is not None
        assert under_way.commit()
    at.clean_up(store, RUN, *made[20], retain=2, least=1, most=0)
    assert [each.version for each in history(memory, store).snapshots()] == [19]
    held = {key.sort.split("/")[1].lstrip("0") for key in memory.keys("snapshot") if key.sort.startswith("bucket/")}
    assert "5" in held
    assert {key for key, _ in fold(at.open(store, *made[19]).snapshot_chunks).items()} >= set(numbers(5))


@pytest.mark.parametrize("held", [(), (1,)])
def test_clean_up_overtakes_a_reader(engines: Engines, store: str, held: tuple[int, ...]) -> None:
    """What a version was read from goes, since there is a snapshot now: it is told that there is another way."""
    at, other = engines(), engines()
    made = write_versions(at, store, 6)
    opening = at.open(store, *made[6], have=[made[number] for number in held])
    snapshot_of(other, store, made[5], numbers(5))
    other.clean_up(store, RUN, *made[6], retain=2, least=1, most=0)
    with pytest.raises(OtherWayError, match="is not in its table"):
        fold(opening.chunks)
    assert read(at, store, *made[6]) == numbers(6)


def test_clean_up_overtakes_a_reader_of_changes(engines: Engines, store: str) -> None:
    """They are not broken, but gone."""
    at, other = engines(), engines()
    made = write_versions(at, store, 6)
    feed = at.changes(store, 2, 4, made[4][1])
    snapshot_of(other, store, made[5], numbers(5))
    other.clean_up(store, RUN, *made[6], retain=2, least=1, most=0)
    with pytest.raises(VersionMissingError, match="versions=5-6"):
        [list(chunks) for _, chunks in feed.versions]


def test_clean_up_takes_a_snapshot_from_under_a_reader(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Its directory is not lost, since there is no such snapshot any more: there is another way."""
    at = engines()
    made = write_versions(at, store, 9)
    snapshot_of(at, store, made[3], numbers(3))
    reader = engines(Overtaken(memory, lambda: take_the_first_away(at, store, made)))
    with pytest.raises(OtherWayError, match="took a snapshot away"):
        reader.open(store, *made[9])
    assert read(reader, store, *made[9]) == numbers(9)


def test_a_clean_up_overtakes_another_one(engines: Engines, memory: MemoryTables, store: str) -> None:
    """The one behind ends, and calls nothing broken."""
    at = engines()
    made = write_versions(at, store, 9)
    snapshot_of(at, store, made[3], numbers(3))
    behind = engines(Overtaken(memory, lambda: take_the_first_away(at, store, made)))
    assert behind.clean_up(store, RUN, *made[6], retain=2, least=1, most=0)[0].items_deleted == 0
    assert read(at, store, *made[9]) == numbers(9)


def take_the_first_away(at: Engine, store: str, made: list[Version]) -> None:
    snapshot_of(at, store, made[8], numbers(8))
    at.clean_up(store, RUN, *made[9], retain=1, least=1, most=0)


@pytest.mark.parametrize("broken", [False, True])
def test_a_snapshot_begins_when_what_it_stands_on_has_gone(
    engines: Engines, memory: MemoryTables, store: str, *, broken: bool
) -> None:
    """It would carry on buckets that are not there any more, so it does not become one.

    No schedule has found an engine without that look: it takes another snapshot in between that carries nothing on, a
    clean-up while this one is not yet entered, and a second one before it is read; else recovery goes round it.
    """
    at = engines()
    made = write_versions(at, store, 9)
    snapshot_of(at, store, made[2], numbers(2))

    def another() -> None:
        under_way = take_snapshot(at, store, made[5], numbers(5), lambda _: set(), bits=0)
        assert under_way is not None
        assert under_way.base == 0
        assert under_way.commit()
        at.clean_up(store, RUN, *made[9], retain=2, least=1, most=0)

    late = engines(Overtaken(memory, another, before="put_new"))
    with ends_a_snapshot_without_looking_what_it_stands_on() if broken else nullcontext():
        under_way = take_snapshot(late, store, made[9], numbers(9), lambda base: set(numbers(9)) - set(numbers(base)))
        assert under_way is not None
        assert under_way.base == 2
        assert under_way.commit() is broken
    made += write_versions(at, store, 2, base=made[9])[1:]
    at.clean_up(store, RUN, *made[11], retain=2, least=1, most=0)
    with pytest.raises(CorruptStateError, match="nothing older stands in") if broken else nullcontext():
        assert recover(at, store, *made[11]) == numbers(11)
