"""Lists that grow by appends, wherever changes are replayed onto rows: no value is lost, and none comes twice.

A put that is applied twice changes nothing, so only lists show it. Values are in parts, in version entries, or in S3.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from dynastate.engine.engine import Engine
from dynastate.engine.imported import ImportedVersion
from dynastate.errors import VersionMissingError
from dynastate.format.changes import MERGE, PUT, Change, apply_change, decode_changes, encode_changes, key_hash
from dynastate.format.keys import VersionId
from dynastate.format.parts import Chunk, StoredChunk
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.clean import clean_store
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.reader.view import StateView
from tests.support.engine_driver import Engines
from tests.support.memory_tables import MemoryTables
from tests.support.samples import attempt, namespace_of, query_run
from tests.support.store_builder import StoreBuilder, family, user
from tests.unit.reader.conftest import Open

HOW: Mapping[str, Mapping[str, Any]] = {
    "parts": {},
    "entries": {"inline_bytes": 10_000},
    "objects": {"objects": "s3://bucket/state", "objects_threshold_kb": 0},
}
pytestmark = pytest.mark.usefixtures("always_worth_it")
USERS = [f"user-{number:02}" for number in range(12)]
#: The values of each user.
Lists = dict[str, list[int]]
#: Rows as they are stored: one value, or several.
Rows = dict[bytes, bytes | list[bytes]]


@pytest.fixture(params=HOW)
def engine(request: pytest.FixtureRequest, engines: Engines) -> Engine:
    """An engine that keeps values in parts, in version entries, or in objects."""
    return engines(**HOW[request.param])


class Grown:
    """A store whose lists grow: each version appends to some, and removes one. The lists of each version are known."""

    def __init__(self, engine: Engine, store: str, seed: int = 1) -> None:
        described = family(value=(("at", "long"),), multiple=True)
        self.made = StoreBuilder(engine, store, described)
        self.made.counts_values = True
        self.lists: dict[int, Lists] = {0: {}}
        self._chance = random.Random(seed)  # noqa: S311  # the same at each run
        self._next = 0

    def grow(self, versions: int) -> None:
        for _ in range(versions):
            lists = {name: [*values] for name, values in self.lists[self.made.version.version].items()}
            changes: list[tuple[Mapping[str, Any], Mapping[str, Any] | None]] = []
            if removal := self._chance.choice(["", *lists]):
                changes.append((user(removal), None))
                del lists[removal]
            for name in self._chance.choices(USERS, k=9):
                self._next += 1
                changes.append((user(name), {"at": self._next}))
                lists.setdefault(name, []).append(self._next)
            self.made.commit(*changes)
            self.lists[self.made.version.version] = lists

    def continued(self, engine: Engine, store: str, version: int, run: str) -> Grown:
        """The same lists at a version, in another store that has it."""
        other = Grown(engine, store, seed=2)
        other.lists, other._next = dict(self.lists), self._next
        other.made.version, other.made.run = VersionId(version, attempt(version)), run
        other.made.state = {
            place: [self._encoded(value) for value in values]
            for name, values in self.lists[version].items()
            for place in [self._place(name)]
        }
        return other

    def rows(self, version: int) -> list[Change]:
        return [
            Change(MERGE if place else PUT, 0, self._place(name)[1], self._encoded(value))
            for name, values in self.lists[version].items()
            for place, value in enumerate(values)
        ]

    def _place(self, name: str) -> tuple[int, bytes]:
        record = StoreBuilder(self.made._engine, self.made.store, *self.made.families)._record(0, user(name), {"at": 0})
        return 0, record.key

    def _encoded(self, value: int) -> bytes:
        alone = StoreBuilder(self.made._engine, self.made.store, *self.made.families)
        raw = alone._record(0, user(""), {"at": value}).value
        assert raw is not None
        return raw


def seen(state: StateView) -> Lists:
    rows = [(row["user"], [value["at"] for value in row["values"]]) for row in state]
    assert len({name for name, _ in rows}) == len(rows)
    return dict(rows)


def folded(rows: Rows, chunks: Iterator[StoredChunk]) -> Rows:
    for chunk in chunks:
        for change in decode_changes(chunk.changes):
            apply_change(rows, change.key, change)
    return rows


def read(engine: Engine, store: str, of: VersionId, have: list[VersionId], rows: Rows) -> Rows:
    """A version that is opened by who has another one with these rows."""
    opening = engine.open(store, *of, have)
    assert opening.base in (*have, VersionId(0, opening.base.attempt))
    copy = {key: value if isinstance(value, bytes) else [*value] for key, value in rows.items()}
    return folded(folded(copy if opening.base.version else {}, opening.snapshot_chunks), opening.chunks)


def test_each_version_by_each_reader(engine: Engine, tables: MemoryTables, store: str, opened: Open) -> None:
    """With snapshots between: from nothing, from each version that a reader holds, and through `open_state`."""
    grown = Grown(engine, store)
    for _ in range(3):
        grown.grow(4)
        compact_store(engine, tables, store)
    grown.grow(3)
    versions = [VersionId(number, attempt(number)) for number in range(1, 16)]
    whole = {of: read(engine, store, of, [], {}) for of in versions}
    for of in versions:
        for base in versions[: of.version - 1]:
            assert read(engine, store, of, [base], whole[base]) == whole[of], (base, of)
    state = opened(store)
    for of in versions:
        assert seen(state.at(of.version)) == grown.lists[of.version]
    for name, values in grown.lists[15].items():
        row = state.get(user(name))
        assert row is not None
        assert [value["at"] for value in row["values"]] == values
    report = verify(tables, store)
    assert report.findings == ()
    assert report.readable == set(range(1, 16))


def test_a_reader_that_follows(engine: Engine, tables: MemoryTables, store: str, opened: Open) -> None:
    """It holds rows, and reads what comes after; snapshots and clean-up come between."""
    grown = Grown(engine, store)
    grown.grow(1)
    state = opened(store)
    for version in range(1, 20):
        assert seen(state) == grown.lists[version]
        for name, values in grown.lists[version].items():
            row = state.get(user(name))
            assert row is not None
            assert [value["at"] for value in row["values"]] == values
        grown.grow(1)
        if version % 5 == 0:
            compact_store(engine, tables, store)
            clean_store(engine, tables, store, 2)
        assert state.refresh()


def test_the_change_feed(engine: Engine, tables: MemoryTables, store: str, opened: Open) -> None:
    """Changes, replayed onto the lists of any version, give those of each later one; so do history and diff."""
    grown = Grown(engine, store)
    grown.grow(6)
    compact_store(engine, tables, store)
    grown.grow(4)
    state = opened(store)
    for first in range(10):
        lists = {name: [*values] for name, values in grown.lists[first].items()}
        for change in state.changes(first):
            name = change.row["user"]
            if change.kind == "remove":
                lists.pop(name, None)
            else:
                times = lists.get(name, []) if change.kind == "append" else []
                lists[name] = times + [value["at"] for value in change.row["values"]]
        assert lists == grown.lists[10], first
        for each in state.diff(first, 10):
            sides = (each.before, grown.lists[first]), (each.after, grown.lists[10])
            for row, expected in sides:
                row_times = None if row is None else [value["at"] for value in row["values"]]
                assert row_times == expected.get(each.key["user"])
    for name in USERS:
        for past in state.history(user(name)):
            row_times = None if past.row is None else [value["at"] for value in past.row["values"]]
            assert row_times == grown.lists[past.version].get(name)


@pytest.mark.parametrize("version", [4, 6, 8])
def test_a_fork(engine: Engine, tables: MemoryTables, store: str, opened: Open, version: int) -> None:
    """At a snapshot, before and after one; the fork and its origin both go on, and have snapshots of their own."""
    grown = Grown(engine, store)
    grown.grow(4)
    compact_store(engine, tables, store)
    grown.grow(4)
    fork = f"{namespace_of(store)}-fork"
    fork_namespace(tables, namespace_of(store), fork, version)
    forked = grown.continued(engine, store.replace(namespace_of(store), fork), version, "run of the fork")
    for each in (forked, grown) * 2:
        each.grow(3)
        compact_store(engine, tables, each.made.store)
        each.grow(1)
    for each in (forked, grown):
        newest = each.made.version.version
        assert seen(opened(each.made.store)) == each.lists[newest]
        assert seen(opened(each.made.store).at(newest - 2)) == each.lists[newest - 2]
        assert verify(tables, each.made.store).findings == ()


def test_an_import(engine: Engine, tables: MemoryTables, store: str, opened: Open) -> None:
    """Its rows are a snapshot with whole lists, to which the query appends."""
    source = Grown(engine, store)
    source.grow(5)
    imported = f"{namespace_of(store)}-new{store.removeprefix(namespace_of(store))}"
    schema = engine.open(store, *source.made.version).schema
    version = ImportedVersion(5, attempt(5), {0: len(source.lists[5])}, schema)
    import_attempt = engine.begin_import(imported, query_run("import"), version, 512 * 1024)
    rows = source.rows(5)
    for bucket in range(1 << import_attempt.bits):
        import_attempt.bucket(bucket)
        changes = [
            each
            for each in rows
            if import_attempt.bits == 0 or key_hash(each.key) >> 32 - import_attempt.bits == bucket
        ]
        hashes = [key_hash(each.key) for each in changes]
        if changes:
            import_attempt.append(Chunk(len(changes), min(hashes), max(hashes), encode_changes(changes)))
    assert import_attempt.commit()
    target = source.continued(engine, imported, 5, "run-2")
    target.grow(4)
    state = opened(imported)
    for number in range(5, 10):
        assert seen(state.at(number)) == target.lists[number]
    compact_store(engine, tables, imported)
    target.grow(2)
    assert state.refresh()
    assert seen(state) == target.lists[11]
    assert verify(tables, imported).findings == ()
    for low in (0, 4):
        with pytest.raises(VersionMissingError, match=r"was imported.* version=5 table="):
            list(state.changes(low))
        with pytest.raises(VersionMissingError, match=r"was imported.* version=5 table="):
            list(state.at(5).changes(low))
    with pytest.raises(VersionMissingError, match=r"was imported.* version=5 table="):
        list(state.diff(0, 11))
    assert list(state.diff(5, 11)) != []
    assert {each.version for each in state.changes(5)} == set(range(6, 12))
    (key, *_) = ({name: row[name] for name in state.key_columns.names} for row in state)
    assert state.history(key)[0].version == 5
    with state.to_duckdb() as connection:
        numbers = connection.sql("select distinct version from changes order by 1").fetchall()
    assert numbers == [(version,) for version in range(6, 12)]
