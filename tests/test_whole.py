"""Versions that stand on nothing, as an import writes them: a snapshot, then an entry without parts."""

from __future__ import annotations

import pytest

from dynastate import layout, rows
from dynastate.errors import ConfigurationError, CorruptStateError, InternalError, VersionMissingError
from dynastate.layout import NO_ATTEMPT, Attempt
from dynastate.store import Engine, WholeAttempt, WholeVersion
from dynastate.tables import Meter, Tables
from dynastate.verify import verify
from tests.fakes import MemoryTables, StruckTables
from tests.states import (
    CHECKPOINT,
    SCHEMA,
    State,
    attempt,
    chunk,
    closing,
    entry,
    history,
    items_of,
    read,
    write,
    write_versions,
)

NUMBER = 43
#: The query run that imports, and the one that goes on.
IMPORT, QUERY = "import-1", "run-2"
ROWS: State = {b"%d" % number: b"value %d" % number for number in range(500)}


def begin_whole(at: Engine, store: str, by: Attempt, state: State, number: int = NUMBER, bits: int = 3) -> WholeAttempt:
    """Send all rows of a version that stands on nothing, as the provider does; the caller ends it."""
    version = WholeVersion(number, by, {0: len(state)}, SCHEMA)
    begun = at.begin_whole(store, IMPORT, CHECKPOINT, version, (512 * 1024) << bits)
    for bucket in range(1 << begun.bits):
        begun.bucket(bucket)
        held = {key: value for key, value in state.items() if rows.key_hash(key) >> 32 - begun.bits == bucket}
        if held:
            begun.append(chunk(held))
    return begun


def test_it_is_read_and_gone_on_from(at: Engine, tables: Tables, store: str) -> None:
    """Nothing lies below it; versions after it stand on it like on any other, and all of them are whole."""
    assert begin_whole(at, store, attempt(1), ROWS).commit()
    assert read(at, store, NUMBER) == ROWS
    found = entry(tables, store, NUMBER)
    assert (found.parts, found.keys) == (0, {0: len(ROWS)})
    base = (NUMBER, attempt(1))
    for number in range(12):
        base = write(at, store, attempt(2 + number), {b"new": b"%d" % number}, base=base, run=QUERY)
    assert read(at, store, *base) == ROWS | {b"new": b"11"}
    assert [each.version for each in at.lineage(store).entries] == list(range(NUMBER, NUMBER + 13))
    assert verify(tables, store).findings == ()
    at.clean_up(store, QUERY, *base, 3, 1, 0)
    assert read(at, store, *base) == ROWS | {b"new": b"11"}
    assert verify(tables, store).findings == ()
    with pytest.raises(VersionMissingError):
        at.open(store, NUMBER - 1, NO_ATTEMPT)


def test_an_empty_one(at: Engine, tables: Tables, store: str) -> None:
    """A partition without rows has a version all the same."""
    assert begin_whole(at, store, attempt(1), {}).commit()
    assert read(at, store, NUMBER) == {}
    assert verify(tables, store).findings == ()


def test_nothing_older_stands_in_for_it(at: Engine, tables: Tables, store: str) -> None:
    """Where versions lie below, and its snapshot is lost, it is lost: it is not what they were."""
    made = write_versions(at, store, NUMBER - 1, run=IMPORT)
    assert begin_whole(at, store, attempt(1_000), ROWS).commit()
    assert read(at, store, NUMBER) == ROWS
    assert read(at, store, *made[-1]) != ROWS
    snapshot = next(each for each in history(tables, store).snapshots() if each.version == NUMBER)
    tables.delete([layout.snapshot_key(store, snapshot.version, snapshot.attempt)], Meter())
    with pytest.raises(CorruptStateError, match="a version that this one stands on is not there, nor a snapshot"):
        at.open(store, NUMBER, NO_ATTEMPT)


def test_the_namespace_of_another_query_is_refused(at: Engine, tables: Tables, store: str) -> None:
    """Before anything is written."""
    made = at.begin(store, "run-1", "file:/tmp/another/state", 0, NO_ATTEMPT, attempt(1))
    made.append(chunk({b"key": b"value"}))
    made.commit({0: 1}, SCHEMA)
    before = items_of(tables, store)
    with pytest.raises(ConfigurationError, match="this namespace belongs to the query with checkpoint"):
        begin_whole(at, store, attempt(2), ROWS)
    assert items_of(tables, store) == before


def test_an_attempt_is_begun_once(at: Engine, store: str) -> None:
    """A second one by the same id would write beside the first."""
    begin_whole(at, store, attempt(1), ROWS)
    with pytest.raises(InternalError, match="has a snapshot already"):
        begin_whole(at, store, attempt(1), ROWS)


def test_abort_leaves_nothing(at: Engine, tables: Tables, store: str) -> None:
    """But what the next attempt needs as well: the meta item and the schema."""
    begin_whole(at, store, attempt(1), ROWS).abort()
    assert {sort.partition("/")[0] for sort in items_of(tables, store)} == {"meta", "schema"}


class DiedError(Exception):
    """The process ended."""


def test_death_at_any_request(memory: MemoryTables, store: str) -> None:
    """The version is there whole, or not at all; another attempt makes it then, and what is left does no harm."""
    requests: list[str] = []
    for make in closing(StruckTables(memory, requests.append)):
        begin_whole(make(), store, attempt(1), ROWS).commit()
    assert len(requests) > 8

    def die_at(last: int) -> MemoryTables:
        tables, seen = MemoryTables(), 0

        def count(_: str) -> None:
            nonlocal seen
            seen += 1
            if seen > last:
                raise DiedError

        for make in closing(StruckTables(tables, count)):
            with pytest.raises(DiedError):
                begin_whole(make(), store, attempt(1), ROWS).commit()
        return tables

    for last in range(len(requests)):
        tables = die_at(last)
        for make in closing(tables):
            at = make()
            if history(tables, store).versions():
                assert read(at, store, NUMBER) == ROWS
            assert begin_whole(at, store, attempt(2), ROWS | {b"more": b"1"}).commit()
            assert read(at, store, NUMBER, attempt(2)) == ROWS | {b"more": b"1"}
            assert read(at, store, NUMBER) == ROWS | {b"more": b"1"}
        assert [each.what for each in verify(tables, store).findings if each.what != "orphaned"] == []
