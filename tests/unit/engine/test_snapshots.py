"""Snapshots. One with another number of values than its version is refused and reported."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest

from dynastate.engine.engine import Engine
from dynastate.engine.graphs import read_manifest
from dynastate.engine.snapshots import SnapshotAttempt
from dynastate.errors import CorruptStateError, InternalError
from dynastate.format.changes import MERGE, PUT, Change
from dynastate.format.graph import VersionGraph
from dynastate.format.keys import EMPTY, VersionId
from dynastate.operations.inspection.verify import verify
from dynastate.storage.tables import Tables
from tests.support.contents import buckets_of, graph
from tests.support.engine_driver import fold, read, recover, save_snapshot, take_snapshot, write, write_versions
from tests.support.memory_tables import MemoryTables
from tests.support.samples import SCHEMA, attempt, chunk, chunk_of, query_run

pytestmark = pytest.mark.usefixtures("always_worth_it")
ROW, LIST = b"row", b"list"


def test_only_changed_buckets_are_written(engine: Engine, tables: Tables, store: str) -> None:
    """A second snapshot reuses buckets of the first, and marks buckets that became empty."""
    state = {b"%d" % number: b"one" for number in range(100)}
    first = write(engine, store, attempt(1), state)
    save_snapshot(engine, store, first, state)
    buckets = buckets_of(tables, store)
    row = next(iter(state))
    second = write(engine, store, attempt(2), {row: None}, base=first)
    rest = {key: value for key, value in state.items() if key != row}
    assert save_snapshot(engine, store, second, rest, lambda _: {row}).base == 1
    assert len(buckets_of(tables, store)) == len(buckets) + 1
    assert read(engine, store, *second) == rest
    third = write(engine, store, attempt(3), dict.fromkeys(rest), base=second)
    save_snapshot(engine, store, third, {}, lambda _: set(rest))
    opening = engine.open(store, *third)
    assert (opening.snapshot, fold(opening.snapshot_chunks)) == (3, {})
    snapshot = graph(tables, store).snapshot(3, attempt(3))
    assert snapshot is not None
    manifest = read_manifest(tables, store, snapshot)
    assert {bucket.emptied for bucket in manifest.buckets} == {3}


def test_an_unfinished_snapshot_is_not_used(engine: Engine, tables: Tables, store: str) -> None:
    """No reader uses a snapshot that is still being written, and no second one is made of its version."""
    versions = write_versions(engine, store, 12)
    under_way = take_snapshot(engine, store, versions[11], {b"x": b"y"})
    assert under_way is not None
    assert engine.open(store, *versions[12]).snapshot == 0
    assert take_snapshot(engine, store, versions[11], {}) is None
    under_way.abort()
    assert buckets_of(tables, store) == []
    assert graph(tables, store).snapshots() == []


def test_rows_outside_their_bucket_are_refused(engine: Engine, store: str) -> None:
    """A provider that sends rows to another bucket than theirs has a defect; it makes no snapshot."""
    version = write(engine, store, attempt(1), {b"1": b"1"})
    under_way, _ = engine.maintenance.snapshot(store, "run-1", *version, state_bytes=4 << 20, min_deltas=1)
    assert under_way is not None
    under_way.bucket(0)
    with pytest.raises(InternalError, match="in no bucket, or in another"):
        under_way.append(chunk({b"%d" % number: b"" for number in range(50)}))
    with pytest.raises(InternalError, match="out of order"):
        under_way.bucket(0)
    under_way.abort()


def append(value: bytes) -> Change:
    return Change(MERGE, 1, LIST, value)


def write_values(engine: Engine, store: str, base: VersionId, added: int | None, *changes: Change) -> VersionId:
    """Commit changes that add a number of values; there are one row and one list."""
    by = attempt(base.version + 1)
    under_way = engine.begin(store, query_run("run-1"), *base, by)
    under_way.append(chunk_of(*changes))
    under_way.added = added
    under_way.commit({0: 1, 1: 1}, SCHEMA)
    return VersionId(base.version + 1, by)


def offer(engine: Engine, store: str, of: VersionId, changes: Sequence[Change]) -> SnapshotAttempt:
    """Send rows as a snapshot of a version, in one bucket; the caller ends it."""
    under_way, _ = engine.maintenance.snapshot(store, "run-1", *of, state_bytes=1, min_deltas=1)
    assert under_way is not None
    under_way.bucket(0)
    under_way.append(chunk_of(*changes))
    return under_way


def history(engine: Engine, store: str, *, counts: bool = True) -> VersionId:
    """A row and a list of three values, by three versions."""
    one = write_values(engine, store, EMPTY, 2 if counts else None, Change(PUT, 0, ROW, b"0"), append(b"a"))
    two = write_values(engine, store, one, 1 if counts else None, append(b"b"), Change(PUT, 0, ROW, b"1"))
    return write_values(engine, store, two, 1 if counts else None, append(b"c"))


RIGHT = [Change(PUT, 0, ROW, b"1"), append(b"a"), append(b"b"), append(b"c")]
WRONG = {"a value twice": [*RIGHT, append(b"c")], "a value lost": RIGHT[:-1], "a row lost": RIGHT[1:]}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_snapshot_with_other_values_is_refused(engine: Engine, store: str, wrong: list[Change]) -> None:
    """The error says so with both numbers, nothing of it stays, and the right one is made after it."""
    newest = history(engine, store)
    under_way = offer(engine, store, newest, wrong)
    with pytest.raises(CorruptStateError, match=rf"another number of values.* values={len(wrong)} expected=4"):
        under_way.commit()
    under_way.abort()
    assert engine.find(store, *newest).snapshot == 0
    assert offer(engine, store, newest, RIGHT).commit()
    assert engine.find(store, *newest).snapshot == 3
    assert recover(engine, store, *newest) == read(engine, store, *newest)
    following = write_values(engine, store, newest, 2, append(b"d"), append(b"e"))
    assert offer(engine, store, following, [*RIGHT, append(b"d"), append(b"e")]).commit(), "from a snapshot on"


def test_of_versions_that_do_not_count_any_snapshot_is_made(engine: Engine, store: str) -> None:
    """Of versions of earlier builds the number is not known; from their snapshot on it is."""
    newest = history(engine, store, counts=False)
    assert offer(engine, store, newest, WRONG["a value twice"]).commit()
    following = write_values(engine, store, newest, -4, Change(PUT, 1, LIST, None))
    with pytest.raises(CorruptStateError, match="values=2 expected=1"):
        offer(engine, store, following, RIGHT[:2]).commit()


OTHER_ROWS = [append(b"a"), append(b"b"), append(b"c"), append(b"d")]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (WRONG["a value twice"], ["the snapshot has 5 values in its rows, and its version 4"]),
        (OTHER_ROWS, ["the snapshot has 1: 1 rows by column family, and its version 0: 1, 1: 1"]),
        (RIGHT, []),
    ],
    ids=["a value twice", "other rows", "right"],
)
def test_verify_compares_snapshots_with_the_counts(
    memory_engine: Engine, memory: MemoryTables, store: str, rows: list[Change], says: list[str]
) -> None:
    """A snapshot that was made without the check is corrupt; its version is read without it all the same."""
    newest = history(memory_engine, store)
    with patch.object(VersionGraph, "count_values", return_value=None):
        assert offer(memory_engine, store, newest, rows).commit()
    report = verify(memory, store)
    assert [(each.what, each.why) for each in report.findings] == [("corrupt", why) for why in says]
    assert all(each.key.sort.startswith("snapshot/") for each in report.findings)
    assert [each.is_readable for each in report.versions] == [True] * 3
