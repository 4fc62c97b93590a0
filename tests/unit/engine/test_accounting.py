"""Storage accounting of an engine, compared with a listing of both tables."""

from __future__ import annotations

import random

import pytest

from dynastate.engine.accounting import StoreAccount
from dynastate.engine.engine import Engine
from dynastate.format.items import StorageSize, item_bytes
from dynastate.format.keys import EMPTY
from dynastate.format.version_list import encode_entry
from dynastate.runtime import Limits
from dynastate.storage.tables import Tables
from tests.support.contents import entry, everything_of, graph
from tests.support.engine_driver import (
    Engines,
    begin,
    commit,
    read,
    save_snapshot,
    take_snapshot,
    write,
    write_versions,
)
from tests.support.samples import State, attempt, numbers, singles

pytestmark = pytest.mark.usefixtures("always_worth_it")


def listed(tables: Tables, store: str) -> StorageSize:
    items = everything_of(tables, store)
    return StorageSize(len(items), sum(map(item_bytes, items)))


def assert_about(account: StorageSize, stored: StorageSize) -> None:
    """Items are counted one by one; of each item's size, a few digits of its numbers are not known."""
    assert account.items == stored.items
    assert abs(account.bytes - stored.bytes) <= 10 * stored.items
    assert account.bytes == pytest.approx(stored.bytes, rel=0.05)


def reported(metrics: dict[str, int]) -> StorageSize:
    return StorageSize(metrics["storedItems"], metrics["storedBytes"])


@pytest.mark.parametrize("tables", ["memory"], indirect=True)
@pytest.mark.parametrize("seed", range(6))
def test_the_account_agrees_with_the_tables(seed: int, engines: Engines, tables: Tables, store: str) -> None:
    """After each of many commits, with snapshots, clean-ups, twins, aborts and restarts between; so does the price."""
    choose = random.Random(f"stored/{seed}")  # noqa: S311  # test data
    engine, run = engines(), 1
    newest, state = EMPTY, State()
    changed_at: dict[bytes, int] = {}
    snapshots_made = removed = 0
    for number in range(1, 121):
        changes = {b"%d" % choose.randrange(400): choose.randbytes(choose.randrange(40)) for _ in range(30)}
        if choose.random() < 0.1:  # a twin commits before it, and is abandoned
            write(engine, store, attempt(10_000 + number), changes, base=newest, run=f"run-{run}")
        if choose.random() < 0.1:
            dropped = begin(engine, store, attempt(20_000 + number), changes, base=newest, run=f"run-{run}")
            dropped.abort()
        chunks = [changes] if choose.random() < 0.9 else []
        newest, metrics = commit(engine, store, attempt(number), *chunks, base=newest, run=f"run-{run}")
        for key, value in changes.items() if chunks else ():
            state[key] = value
            changed_at[key] = newest[0]
        assert_about(reported(metrics), listed(tables, store))
        assert metrics["nanodollars"] == 625 * metrics["writeUnits"] + 125 * metrics["readUnits"] > 0
        if choose.random() < 0.2:
            changed = lambda since: {key for key, when in changed_at.items() if when > since}  # noqa: E731
            under_way = take_snapshot(engine, store, newest, state, changed, f"run-{run}", bits=choose.choice((0, 3)))
            if under_way is not None and choose.random() < 0.8:
                snapshots_made += under_way.commit()
            elif under_way is not None:
                under_way.abort()
        if choose.random() < 0.15:
            least = choose.randrange(1, 10)
            removed += engine.maintenance.clean_up(store, f"run-{run}", *newest, retain=5, least=least, most=0)[
                0
            ].items_deleted
        if choose.random() < 0.05:  # another executor takes over, reads all, and cleans up first
            engine, run = engines(), run + 1
            assert read(engine, store, *newest) == state
            newest, _ = commit(engine, store, attempt(30_000 + number), base=newest, run=f"run-{run}")
            engine.maintenance.clean_up(store, f"run-{run}", *newest, retain=2, least=1, most=0)
    assert snapshots_made > 5
    assert removed > 50
    assert_about(engine.known_stores.account(store).stored(), listed(tables, store))


def test_orphans_are_not_counted(engine: Engine, tables: Tables, store: str) -> None:
    """Parts of a crashed attempt stay until clean-up, and are not counted for the store."""
    versions = write_versions(engine, store, 12)
    crashed = begin(engine, store, attempt(99), *singles(Limits.list_size * 3, b"lost"), base=versions[12])
    crashed._pending.wait(10)
    account, stored = engine.known_stores.account(store).stored(), listed(tables, store)
    assert stored.items == account.items + 25
    state = numbers(12)
    save_snapshot(engine, store, versions[12], state)
    newest = write_versions(engine, store, 3, versions[12])[-1]
    assert listed(tables, store).items == engine.known_stores.account(store).stored().items + 25
    engine.maintenance.clean_up(store, "run-1", *newest, retain=2, least=1, most=0)
    assert listed(tables, store).items == engine.known_stores.account(store).stored().items + 25, "of one that stays"
    newest = write_versions(engine, store, 3, newest)[-1]
    save_snapshot(engine, store, newest, state)
    newest = write_versions(engine, store, 3, newest)[-1]
    engine.maintenance.clean_up(store, "run-1", *newest, retain=2, least=1, most=0)
    assert_about(engine.known_stores.account(store).stored(), listed(tables, store))


def test_no_account_before_the_lists_were_read(engines: Engines, tables: Tables, store: str) -> None:
    newest = write_versions(engines(), store, 25)[-1]
    engine = engines()
    newest, metrics = commit(engine, store, attempt(26), {b"x": b"y"}, base=newest)
    assert reported(metrics) == StorageSize()
    engine.open(store, *newest, have=[newest])
    assert engine.known_stores.account(store).stored() == StorageSize()
    engine.maintenance.clean_up(store, "run-1", *newest, retain=100, least=1, most=0)
    assert_about(engine.known_stores.account(store).stored(), listed(tables, store))


def test_reading_an_older_version_does_not_mislead(engine: Engine, tables: Tables, store: str) -> None:
    """Opening an older version shows no later snapshots, so it does not change the account."""
    versions = write_versions(engine, store, 20)
    save_snapshot(engine, store, versions[20], numbers(20))
    assert_about(engine.known_stores.account(store).stored(), listed(tables, store))
    read(engine, store, *versions[7])
    assert_about(engine.known_stores.account(store).stored(), listed(tables, store))


def test_a_snapshot_whose_manifest_was_not_read(engines: Engines, tables: Tables, store: str) -> None:
    """It counts with all its buckets, as if it reused none, until clean-up has read its manifest."""
    engine = engines()
    state = {b"%d" % number: b"one" for number in range(100)}
    first = write(engine, store, attempt(1), state)
    save_snapshot(engine, store, first, state)
    second = write(engine, store, attempt(2), {b"7": b"two"}, base=first)
    save_snapshot(engine, store, second, state | {b"7": b"two"}, lambda _: {b"7"})

    other = engines()
    opening = other.open(store, *second)
    assert opening.snapshot == 2
    account, stored = other.known_stores.account(store).stored(), listed(tables, store)
    snapshot = graph(tables, store).snapshot(*first)
    assert snapshot is not None
    carried = snapshot.stored_bytes
    assert stored.bytes - 2_000 < account.bytes <= stored.bytes + carried
    third = write(other, store, attempt(3), base=second)
    other.maintenance.clean_up(store, "run-1", *third, retain=2, least=1, most=0)
    assert_about(other.known_stores.account(store).stored(), listed(tables, store))


def test_the_latest_listing_wins(engine: Engine, tables: Tables, store: str) -> None:
    """A clean-up that ends after maintenance has read the lists again does not reset the account."""
    versions = write_versions(engine, store, 5)
    then = graph(tables, store)
    newest = write_versions(engine, store, 7, versions[5])[-1]
    account = StoreAccount(store)
    account.read(then)
    account.read(graph(tables, store), newest[0])
    account.cleaned(then, [], [])
    # The history that tests read leaves out the schema item.
    stored = listed(tables, store)
    assert account.stored().items == stored.items - 1
    twelfth = entry(tables, store, 12)
    account.committed(twelfth, len(encode_entry(store, twelfth)))
    assert account.stored().items == stored.items - 1, "what was read already counts once"


def test_a_query_that_started_over_counts_once(engine: Engine, tables: Tables, store: str) -> None:
    """Its newest version may be listed before it is reported, as any other's; higher ones are an earlier query's."""
    write_versions(engine, store, 5)
    version, _ = commit(engine, store, attempt(61), {b"a": b"1"}, run="run-2")
    commit(engine, store, attempt(62), {b"a": b"2"}, base=version, run="run-2")
    account, second = StoreAccount(store), entry(tables, store, 2)
    account.read(graph(tables, store))
    stored = account.stored()
    account.committed(second, len(encode_entry(store, second)))
    assert account.stored() == stored
