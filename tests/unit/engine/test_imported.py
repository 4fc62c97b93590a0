"""Versions without a parent, as an import writes them: a snapshot, then an entry without parts."""

from __future__ import annotations

from contextlib import suppress

import pytest

from dynastate.engine.engine import Engine
from dynastate.engine.imported import ImportAttempt, ImportedVersion
from dynastate.errors import ConfigurationError, CorruptStateError, InternalError, UnavailableError, VersionMissingError
from dynastate.format.changes import key_hash
from dynastate.format.keys import NO_ATTEMPT, Attempt, VersionId, snapshot_key
from dynastate.operations.inspection.verify import verify
from dynastate.storage.tables import Tables
from tests.support.contents import entry, graph, items_of
from tests.support.engine_driver import closing, read, save_snapshot, write, write_versions
from tests.support.faults import Dying
from tests.support.memory_tables import MemoryTables
from tests.support.samples import SCHEMA, State, attempt, chunk, numbers, query_run

NUMBER = 43
#: The run that imports, and the one that continues.
IMPORT, QUERY = "import-1", "run-2"
ROWS: State = {b"%d" % number: b"value %d" % number for number in range(500)}


def begin_import(
    engine: Engine, store: str, by: Attempt, state: State, number: int = NUMBER, bits: int = 3
) -> ImportAttempt:
    """Send all rows of a version without a parent, as the provider does; the caller ends it."""
    version = ImportedVersion(number, by, {0: len(state)}, SCHEMA)
    import_attempt = engine.begin_import(store, query_run(IMPORT), version, (512 * 1024) << bits)
    for bucket in range(1 << import_attempt.bits):
        import_attempt.bucket(bucket)
        rows = {key: value for key, value in state.items() if key_hash(key) >> 32 - import_attempt.bits == bucket}
        if rows:
            import_attempt.append(chunk(rows))
    return import_attempt


def test_an_installed_version_is_read_and_continued(engine: Engine, tables: Tables, store: str) -> None:
    """It has no parent; later versions depend on it as on any other, and all of them are intact."""
    assert begin_import(engine, store, attempt(1), ROWS).commit()
    assert read(engine, store, NUMBER) == ROWS
    listed = entry(tables, store, NUMBER)
    assert (listed.parts, listed.keys) == (0, {0: len(ROWS)})
    base = VersionId(NUMBER, attempt(1))
    for number in range(12):
        base = write(engine, store, attempt(2 + number), {b"new": b"%d" % number}, base=base, run=QUERY)
    assert read(engine, store, *base) == ROWS | {b"new": b"11"}
    assert [each.version for each in engine.lineage(store).entries] == list(range(NUMBER, NUMBER + 13))
    assert verify(tables, store).findings == ()
    engine.maintenance.clean_up(store, QUERY, *base, 3, 1, 0)
    assert read(engine, store, *base) == ROWS | {b"new": b"11"}
    assert verify(tables, store).findings == ()
    with pytest.raises(VersionMissingError):
        engine.open(store, NUMBER - 1, NO_ATTEMPT)


def test_an_installed_version_without_rows(engine: Engine, tables: Tables, store: str) -> None:
    assert begin_import(engine, store, attempt(1), {}).commit()
    assert read(engine, store, NUMBER) == {}
    assert verify(tables, store).findings == ()


@pytest.mark.parametrize("number", [43, 50])
@pytest.mark.parametrize("rows", [ROWS, {}], ids=["rows", "no rows"])
def test_changes_of_imports_are_not_known(engine: Engine, store: str, number: int, rows: State) -> None:
    """They are refused, as those of versions before it, whatever is listed there; those after it are given."""
    older = write_versions(engine, store, 3, run=IMPORT)
    assert begin_import(engine, store, attempt(1_000), rows, number).commit()
    base = VersionId(number, attempt(1_000))
    for offset in range(12):
        base = write(engine, store, attempt(2_000 + offset), {b"new": b"%d" % offset}, base=base, run=QUERY)
    for first in (0, 1, 3, 4, number - 1, number):
        for last in (number, base.version):
            with pytest.raises(VersionMissingError, match=f"was imported.* store={store} version={number} table="):
                engine.changes(store, first, last, NO_ATTEMPT)
    assert changed(engine, store, number + 1, base) == {number + 1 + offset: 1 for offset in range(12)}
    assert changed(engine, store, 1, older[-1]) == {1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("number", [10, 11])
@pytest.mark.parametrize("added", [0, None])
def test_the_changes_of_a_version_whose_parent_was_deleted_are_known(
    engine: Engine, tables: Tables, store: str, number: int, added: int | None
) -> None:
    """Also where it changed nothing, and its parent's snapshot is gone, too. Earlier builds did not count values."""
    versions = write_versions(engine, store, number - 1)
    save_snapshot(engine, store, versions[-1], numbers(number - 1))
    under_way = engine.begin(store, query_run("run-1"), *versions[-1], attempt(1_000))
    under_way.added = added
    under_way.commit({0: number - 1}, SCHEMA)
    version = VersionId(number, attempt(1_000))
    newest = write(engine, store, attempt(1_001), {b"new": b"1"}, base=version)
    engine.maintenance.clean_up(store, "run-1", *newest, 2, 1, 0)
    assert graph(tables, store).versions() == [number, number + 1]
    assert changed(engine, store, number, newest) == {number: 0, number + 1: 1}
    if added is not None:
        below = next(each for each in graph(tables, store).snapshots() if each.version == number - 1)
        tables.delete([snapshot_key(store, below.version, below.attempt)])
        assert changed(engine, store, number, newest) == {number: 0, number + 1: 1}
    with pytest.raises(VersionMissingError, match=f"this version does not exist .*version={number - 1} "):
        engine.changes(store, number - 1, number, NO_ATTEMPT)


def changed(engine: Engine, store: str, first: int, last: VersionId) -> dict[int, int]:
    feed = engine.changes(store, first, *last)
    return {version: sum(each.records for each in chunks) for version, chunks in feed.versions}


def test_recovery_falls_back_to_no_older_version(engine: Engine, tables: Tables, store: str) -> None:
    """If its snapshot is lost, it is lost, even though there are older versions: their rows are not its rows."""
    versions = write_versions(engine, store, NUMBER - 1, run=IMPORT)
    assert begin_import(engine, store, attempt(1_000), ROWS).commit()
    assert read(engine, store, NUMBER) == ROWS
    assert read(engine, store, *versions[-1]) != ROWS
    snapshot = next(each for each in graph(tables, store).snapshots() if each.version == NUMBER)
    tables.delete([snapshot_key(store, snapshot.version, snapshot.attempt)])
    with pytest.raises(CorruptStateError, match="the parent of a version is not there, nor a snapshot"):
        engine.open(store, NUMBER, NO_ATTEMPT)


def test_the_namespace_of_another_query_is_refused(engine: Engine, tables: Tables, store: str) -> None:
    """The check precedes the first write."""
    under_way = engine.begin(store, query_run("run-1", "file:/tmp/another/state"), 0, NO_ATTEMPT, attempt(1))
    under_way.append(chunk({b"key": b"value"}))
    under_way.commit({0: 1}, SCHEMA)
    items_before = items_of(tables, store)
    with pytest.raises(ConfigurationError, match="this namespace belongs to the query with the checkpoint"):
        begin_import(engine, store, attempt(2), ROWS)
    assert items_of(tables, store) == items_before


def test_abort_leaves_nothing(engine: Engine, tables: Tables, store: str) -> None:
    """Only what the next attempt needs too is left: the meta item and the schema. An attempt is begun once."""
    under_way = begin_import(engine, store, attempt(1), ROWS)
    with pytest.raises(InternalError, match="has a snapshot already"):
        begin_import(engine, store, attempt(1), ROWS)
    under_way.abort()
    assert {sort.partition("/")[0] for sort in items_of(tables, store)} == {"meta", "schema"}


def test_a_crash_at_any_request(store: str) -> None:
    """The version is complete or missing; another attempt can make it then, and orphans do no harm."""
    for request in range(100):
        tables = MemoryTables()
        dying = Dying(tables, request)
        for make in closing(dying):
            with suppress(UnavailableError):
                begin_import(make(), store, attempt(1), ROWS).commit()
        if dying.left >= 0:
            break
        for make in closing(tables):
            engine = make()
            if graph(tables, store).versions():
                assert read(engine, store, NUMBER) == ROWS
            assert begin_import(engine, store, attempt(2), ROWS | {b"more": b"1"}).commit()
            assert read(engine, store, NUMBER, attempt(2)) == ROWS | {b"more": b"1"}
            assert read(engine, store, NUMBER) == ROWS | {b"more": b"1"}
        assert [each.what for each in verify(tables, store).findings if each.what != "orphaned"] == []
    assert 8 < request < 99
