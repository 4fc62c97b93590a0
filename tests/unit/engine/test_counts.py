"""Counts of values: a snapshot with others than its version has right checksums, and is refused and reported."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest

from dynastate.engine.engine import Engine
from dynastate.engine.snapshots import SnapshotAttempt
from dynastate.errors import CorruptStateError
from dynastate.format.changes import MERGE, PUT, Change
from dynastate.format.graph import VersionGraph
from dynastate.format.keys import EMPTY, VersionId
from dynastate.operations.inspection.verify import verify
from tests.support.engine_driver import read, recover
from tests.support.memory_tables import MemoryTables
from tests.support.samples import SCHEMA, attempt, chunk_of, query_run

pytestmark = pytest.mark.usefixtures("always_worth_it")
ROW, LIST = b"row", b"list"


def append(value: bytes) -> Change:
    return Change(MERGE, 1, LIST, value)


def write(engine: Engine, store: str, base: VersionId, added: int | None, *changes: Change) -> VersionId:
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
    one = write(engine, store, EMPTY, 2 if counts else None, Change(PUT, 0, ROW, b"0"), append(b"a"))
    two = write(engine, store, one, 1 if counts else None, append(b"b"), Change(PUT, 0, ROW, b"1"))
    return write(engine, store, two, 1 if counts else None, append(b"c"))


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
    following = write(engine, store, newest, 2, append(b"d"), append(b"e"))
    assert offer(engine, store, following, [*RIGHT, append(b"d"), append(b"e")]).commit(), "from a snapshot on"


def test_of_versions_that_do_not_count_any_snapshot_is_made(engine: Engine, store: str) -> None:
    """Of versions of earlier builds the number is not known; from their snapshot on it is."""
    newest = history(engine, store, counts=False)
    assert offer(engine, store, newest, WRONG["a value twice"]).commit()
    following = write(engine, store, newest, -4, Change(PUT, 1, LIST, None))
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
