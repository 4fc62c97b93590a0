"""Two tables, restored to different moments: docs/backup-and-restore.md."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest

from dynastate.errors import CorruptStateError, VersionMissingError
from dynastate.format.items import Item
from dynastate.format.keys import EMPTY, Key, VersionId
from dynastate.operations.inspection.verify import verify
from tests.support.contents import graph
from tests.support.engine_driver import closing, recover, save_snapshot, write
from tests.support.memory_tables import MemoryTables
from tests.support.samples import State, attempt

pytestmark = pytest.mark.usefixtures("always_worth_it")

VERSIONS = 14
RETAIN = 3
SNAPSHOT_EVERY = 4
#: By how many requests one table is behind the other.
APART = (0, 1, 2, 3, 5, 8, 13, 21, 34)

Moment = dict[Key, Item]


class TablesWithBackups(MemoryTables):
    """Tables that keep what they held before each request."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[Moment] = []

    def _begin(self, verb: str, keys: Sequence[Key]) -> None:
        self.moments.append(dict(self.items))
        super()._begin(verb, keys)


def write_history(tables: TablesWithBackups, store: str) -> dict[VersionId, State]:
    """Versions that each change two rows, with snapshots, and a clean-up at once after each, as in maintenance."""
    states: dict[VersionId, State] = {EMPTY: {}}
    newest = EMPTY
    for make in closing(tables):
        engine = make()
        for number in range(1, VERSIONS + 1):
            changes = {b"%d" % (number % 5): b"%d" % number, b"new%d" % number: b""}
            state = states[newest] | changes
            newest = write(engine, store, attempt(number), changes, base=newest)
            states[newest] = state
            if number % SNAPSHOT_EVERY == 0:
                save_snapshot(engine, store, newest, state, bits=1)
                engine.maintenance.clean_up(store, "run-1", *newest, RETAIN, 1, 0)
    tables.moments.append(dict(tables.items))
    return states


def restored(delta: Moment, snapshot: Moment) -> MemoryTables:
    """The delta table as it was at one moment, the snapshot-group table as it was at another."""
    tables = MemoryTables()
    tables.items = {key: item for key, item in delta.items() if key.role == "delta"}
    tables.items |= {key: item for key, item in snapshot.items() if key.role == "snapshot"}
    return tables


def listed(tables: MemoryTables, store: str) -> list[VersionId]:
    return [VersionId(each.version, each.attempt) for each in graph(tables, store).entries()]


def readable(tables: MemoryTables, store: str) -> dict[VersionId, State]:
    readable_states: dict[VersionId, State] = {}
    for make in closing(tables):
        engine = make()
        for version in listed(tables, store):
            with suppress(CorruptStateError, VersionMissingError):
                readable_states[version] = recover(engine, store, *version)
    return readable_states


def is_reported(tables: MemoryTables, store: str, readable_states: dict[VersionId, State]) -> bool:
    """Whether `dynastate verify` lists the readable versions, and calls the store whole only if all are readable."""
    if all(key.store_shard.endswith("/#") for key in tables.keys("snapshot")):  # only the record of the namespace
        return not readable_states
    report = verify(tables, store)
    reported = {(each.version, each.attempt) for each in report.versions if each.is_readable}
    unread = [each for each in report.versions if not each.is_readable and not each.is_dead]
    return reported == readable_states.keys() and (not unread or not report.is_whole)


@pytest.mark.slow
def test_a_delta_table_of_an_earlier_moment_keeps_what_was_committed_by_then(store: str) -> None:
    """Every version that was committed by the earlier moment, and still listed later, is there; none reads wrong."""
    tables = TablesWithBackups()
    states = write_history(tables, store)
    moments = tables.moments
    assert len(moments) > 60
    lost = 0
    for late, snapshot in enumerate(moments):
        whole = readable(restored(snapshot, snapshot), store)
        for early in {late - apart for apart in APART if apart <= late}:
            mixed = restored(moments[early], snapshot)
            readable_states = readable(mixed, store)
            assert readable_states == {version: states[version] for version in readable_states}
            assert is_reported(mixed, store, readable_states), (early, late)
            committed = set(listed(restored({}, moments[early]), store))
            assert whole.keys() & committed <= readable_states.keys(), (early, late)
            lost += len(whole.keys() - readable_states.keys())
    assert lost > 0, "no version was committed between the two moments: this shows nothing"


@pytest.mark.slow
def test_a_delta_table_of_a_later_moment_may_keep_nothing(store: str) -> None:
    """A clean-up in between deletes parts that the older lists still name: not even the newest version can be read."""
    tables = TablesWithBackups()
    states = write_history(tables, store)
    nothing = 0
    for late, delta in enumerate(tables.moments):
        for early in {late - apart for apart in APART if apart <= late}:
            mixed = restored(delta, tables.moments[early])
            readable_states = readable(mixed, store)
            assert readable_states == {version: states[version] for version in readable_states}
            assert is_reported(mixed, store, readable_states), (early, late)
            nothing += bool(listed(mixed, store)) and not readable_states
    assert nothing > 0
