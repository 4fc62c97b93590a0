"""What a store is said to have, beside a listing of both tables."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from dynastate import layout
from dynastate.stored import Accounts, Stored
from dynastate.tables import Meter, Tables
from tests.fakes import MemoryTables
from tests.states import (
    EMPTY,
    SHARDS,
    Engines,
    State,
    attempt,
    begin,
    chunk,
    closing,
    commit,
    entry,
    history,
    read,
    take_snapshot,
    write,
    write_versions,
)

pytestmark = pytest.mark.usefixtures("always_worth_it")


def listed(tables: Tables, store: str) -> Stored:
    """Everything both tables have of a store, by a Query of every shard."""
    found = [
        item
        for role in layout.SPECS
        for shard in range(SHARDS)
        for _, item in tables.query(role, layout.store_shard(store, shard), "!", "~", Meter())
    ]
    return Stored(len(found), sum(map(layout.item_bytes, found)))


def must_be(said: Stored, there: Stored) -> None:
    """Items are counted one by one; of each item's size, a few digits of its numbers are not known."""
    assert said.items == there.items
    assert abs(said.bytes - there.bytes) <= 10 * there.items
    assert said.bytes == pytest.approx(there.bytes, rel=0.05)


def told(spent: dict[str, int]) -> Stored:
    return Stored(spent["storedItems"], spent["storedBytes"])


@pytest.fixture
def engines_in_memory(memory: MemoryTables) -> Iterator[Engines]:
    """Make engines on tables in memory; all are closed."""
    yield from closing(memory)


@pytest.mark.parametrize("seed", range(6))
def test_it_is_what_the_tables_have(seed: int, engines_in_memory: Engines, memory: MemoryTables, store: str) -> None:
    """After each of many commits, with snapshots, clean-ups, twins, aborts and restarts between them."""
    engines, tables = engines_in_memory, memory
    choose = random.Random(f"stored/{seed}")  # noqa: S311  # test data
    at, run = engines(), 1
    newest, state = EMPTY, State()
    changed_at: dict[bytes, int] = {}
    snapshots_made = removed = 0
    for number in range(1, 121):
        changes = {b"%d" % choose.randrange(400): choose.randbytes(choose.randrange(40)) for _ in range(30)}
        if choose.random() < 0.1:  # a twin commits before it, and nobody goes on from that one
            write(at, store, attempt(10_000 + number), changes, base=newest, run=f"run-{run}")
        if choose.random() < 0.1:
            dropped = begin(at, store, attempt(20_000 + number), newest, f"run-{run}")
            dropped.append(chunk(changes))
            dropped.abort()
        chunks = [changes] if choose.random() < 0.9 else []
        newest, spent = commit(at, store, attempt(number), *chunks, base=newest, run=f"run-{run}")
        for key, value in changes.items() if chunks else ():
            state[key] = value
            changed_at[key] = newest[0]
        must_be(told(spent), listed(tables, store))
        if choose.random() < 0.2:
            changed = lambda since: {key for key, when in changed_at.items() if when > since}  # noqa: E731
            under_way = take_snapshot(at, store, newest, state, changed, f"run-{run}", bits=choose.choice((0, 3)))
            if under_way is not None and choose.random() < 0.8:
                snapshots_made += under_way.commit()
            elif under_way is not None:
                under_way.abort()
        if choose.random() < 0.15:
            least = choose.randrange(1, 10)
            removed += at.clean_up(store, f"run-{run}", *newest, retain=5, least=least, most=0)[0].items_deleted
        if choose.random() < 0.05:  # another executor takes over, reads all, and cleans up first
            at, run = engines(), run + 1
            assert read(at, store, *newest) == state
            newest, _ = commit(at, store, attempt(30_000 + number), base=newest, run=f"run-{run}")
            at.clean_up(store, f"run-{run}", *newest, retain=2, least=1, most=0)
    assert snapshots_made > 5
    assert removed > 50
    must_be(at.accounts.stored(store), listed(tables, store))


def test_what_nothing_names_is_not_counted(engines: Engines, tables: Tables, store: str) -> None:
    """Parts of an attempt that crashed lie there until clean-up, and are not the store's."""
    at = engines()
    made = write_versions(at, store, 12)
    crashed = begin(at, store, attempt(99), made[12])
    for number in range(layout.GROUP_SIZE * 3):
        crashed.append(chunk({b"%d" % number: b"lost"}))
    at.settle(crashed._ticket)
    said, there = at.accounts.stored(store), listed(tables, store)
    assert there.items == said.items + 25
    state = {b"%d" % number: b"%d" % number for number in range(1, 13)}
    under_way = take_snapshot(at, store, made[12], state, lambda _: set(state))
    assert under_way is not None
    assert under_way.commit()
    newest = write_versions(at, store, 3, made[12])[-1]
    assert listed(tables, store).items == at.accounts.stored(store).items + 25
    at.clean_up(store, "run-1", *newest, retain=2, least=1, most=0)
    assert listed(tables, store).items == at.accounts.stored(store).items + 25, "they are of a version that stays"
    newest = write_versions(at, store, 3, newest)[-1]
    under_way = take_snapshot(at, store, newest, state, lambda _: set(state))
    assert under_way is not None
    assert under_way.commit()
    newest = write_versions(at, store, 3, newest)[-1]
    at.clean_up(store, "run-1", *newest, retain=2, least=1, most=0)
    must_be(at.accounts.stored(store), listed(tables, store))


def test_nothing_is_said_before_the_lists_were_read(engines: Engines, tables: Tables, store: str) -> None:
    """An executor whose sidecar started again writes on; once maintenance has read the lists it knows."""
    newest = write_versions(engines(), store, 25)[-1]
    at = engines()
    newest, spent = commit(at, store, attempt(26), {b"x": b"y"}, base=newest)
    assert told(spent) == Stored()
    at.open(store, *newest, have=[newest])
    assert at.accounts.stored(store) == Stored()
    at.clean_up(store, "run-1", *newest, retain=100, least=1, most=0)
    must_be(at.accounts.stored(store), listed(tables, store))


def test_reading_an_older_version_does_not_mislead(engines: Engines, tables: Tables, store: str) -> None:
    """Who opens an older version sees no snapshots above it, so that is not taken for all there is."""
    at = engines()
    made = write_versions(at, store, 20)
    state = {b"%d" % number: b"%d" % number for number in range(1, 21)}
    under_way = take_snapshot(at, store, made[20], state, lambda _: set(state))
    assert under_way is not None
    assert under_way.commit()
    must_be(at.accounts.stored(store), listed(tables, store))
    read(at, store, *made[7])
    must_be(at.accounts.stored(store), listed(tables, store))


def test_a_snapshot_whose_directory_was_not_read(engines: Engines, tables: Tables, store: str) -> None:
    """It counts with all its buckets, as if none were carried on, until clean-up has read its directory."""
    at = engines()
    state = {b"%d" % number: b"one" for number in range(100)}
    first = write(at, store, attempt(1), state)
    under_way = take_snapshot(at, store, first, state, lambda _: set(state))
    assert under_way is not None
    assert under_way.commit()
    second = write(at, store, attempt(2), {b"7": b"two"}, base=first)
    under_way = take_snapshot(at, store, second, state | {b"7": b"two"}, lambda _: {b"7"})
    assert under_way is not None
    assert under_way.commit()

    other = engines()
    opening = other.open(store, *second)
    assert opening.snapshot == 2
    said, there = other.accounts.stored(store), listed(tables, store)
    snapshot = history(tables, store).snapshot(*first)
    assert snapshot is not None
    carried = snapshot.stored_bytes
    assert there.bytes - 2_000 < said.bytes <= there.bytes + carried
    third = write(other, store, attempt(3), base=second)
    other.clean_up(store, "run-1", *third, retain=2, least=1, most=0)
    must_be(other.accounts.stored(store), listed(tables, store))


def test_money_is_the_price_of_the_units(engines: Engines, store: str) -> None:
    """Commits say their units' price in billionths of a dollar: 625 a write unit and 125 a read unit by default."""
    _, spent = commit(engines(), store, attempt(1), {b"1": b"1"})
    assert spent["nanodollars"] == 625 * spent["writeUnits"] + 125 * spent["readUnits"] > 0


def test_who_read_later_knows_more(engines: Engines, tables: Tables, store: str) -> None:
    """A clean-up that ends after maintenance has read the lists anew does not set the account back."""
    at = engines()
    made = write_versions(at, store, 5)
    then = history(tables, store)
    newest = write_versions(at, store, 7, made[5])[-1]
    accounts = Accounts()
    accounts.read(then)
    accounts.read(history(tables, store), newest[0])
    accounts.cleaned(then, [], [])
    # The history that tests read leaves out the schema item.
    there = listed(tables, store)
    assert accounts.stored(store).items == there.items - 1
    accounts.committed(store, entry(tables, store, 12))
    assert accounts.stored(store).items == there.items - 1, "what was read already counts once"
