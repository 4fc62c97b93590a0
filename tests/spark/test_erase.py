"""Erasing rows of every kind of state that Spark's operators have; the query then goes on in another application."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.engine import Engine
from dynastate.engine.namespaces import read_namespace
from dynastate.operations.erase.erase import erase_stores, plan_erase
from dynastate.operations.erase.keys import GivenKeys
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.reader.families import families_at
from dynastate.reader.state import StateReader
from dynastate.settings import PREFIX, Settings
from tests.spark.conftest import ON_ROCKSDB, Sessions
from tests.spark.operators import CASES
from tests.spark.streams import Source, Sources, make_rows, make_sources
from tests.support.jvm import SINCE_40
from tests.support.search import places_with

pytestmark = [pytest.mark.slow, SINCE_40]

#: The erased key of each case.
ERASED: Mapping[str, dict[str, Any]] = {
    "aggregation in update mode": {"key": "key-4"},
    "dropDuplicates": {"key": "key-4"},
    "stream-stream join, full outer": {"field0": 13},
    "session windows": {"key": "key-4"},
    "transformWithState in Scala": {"value": "key-4"},
}
#: Settings that give a store another engine, as another application has: with rows that this one did not read.
ANOTHER = {f"{PREFIX}cacheMb": "65"}


def rows_of(tables: BotoTables, stores: list[str]) -> dict[tuple[str, str, int], list[str]]:
    """All rows, as texts, by store, column family and version."""
    rows = {}
    with closing(Engine(tables, Settings())) as engine:
        for store in stores:
            lineage = engine.lineage(store)
            for name in families_at(lineage, lineage.newest):
                with StateReader(tables, Settings(), store, name) as state:
                    for version in state.versions():
                        view = state.at(version)
                        listed = sorted(repr(row) for row in view)
                        assert len(view) == len(listed)
                        rows[store, name, version] = listed
    return rows


def erase(tables: BotoTables, stores: list[str], given: GivenKeys) -> int:
    plan = plan_erase(tables, stores, given)
    return sum(store.rows for store in erase_stores(tables, plan, given).stores)


@pytest.mark.parametrize("name", ERASED)
def test_rows_of_an_operator(name: str, sessions: Sessions, tables: BotoTables, folder: Path) -> None:
    """All rows with the key are gone, all others are as before, at every version; the query goes on."""
    case, conf, given = CASES[name], {f"{PREFIX}namespace": folder.name}, GivenKeys([ERASED[name]])
    (value,) = ERASED[name].values()
    sources = make_sources(folder, seed=1, files=3)
    sources.release(2)
    case.start(sessions(conf), sources, folder / "checkpoint").finish()
    stores = read_namespace(tables, folder.name).listed
    with closing(Engine(tables, Settings())) as engine:
        assert compact_store(engine, tables, stores[0])
    before = rows_of(tables, stores)
    is_text = isinstance(value, str)
    assert not is_text or places_with(tables, stores, value.encode(), shards=8)
    assert erase(tables, stores, given) > 0
    after = rows_of(tables, stores)
    assert not is_text or not places_with(tables, stores, value.encode(), shards=8)
    marks = [f"'{column}': {value!r}" for column in ERASED[name]]
    assert after == {
        place: [row for row in rows if not any(map(row.__contains__, marks))] for place, rows in before.items()
    }
    assert after != before
    assert not any(verify(tables, store, with_record=False).findings for store in stores)
    sources.release()
    assert case.start(sessions(conf | ANOTHER), sources, folder / "checkpoint").finish().rows


def test_the_query_gives_what_it_would_without_the_rows(sessions: Sessions, tables: BotoTables, folder: Path) -> None:
    """Beside a query on RocksDB whose first files never had the key."""
    case, conf = CASES["aggregation in complete mode"], {f"{PREFIX}namespace": folder.name}
    files = [make_rows(1, number) for number in range(3)]
    without = [[row for row in rows if row["key"] != "key-4"] for rows in files[:2]]
    ours, theirs = Source(folder / "with", files), Source(folder / "without", [*without, files[2]])
    for source, options in ((ours, conf), (theirs, ON_ROCKSDB)):
        source.release(2)
        case.start(sessions(options), Sources(source, source), folder / str(source is ours)).finish()
    assert erase(tables, read_namespace(tables, folder.name).listed, GivenKeys([{"key": "key-4"}])) == 1
    results = []
    for source, options in ((ours, conf | ANOTHER), (theirs, ON_ROCKSDB)):
        source.release()
        results.append(case.start(sessions(options), Sources(source, source), folder / str(source is ours)).finish())
    assert results[0].rows == results[1].rows
    assert results[0].state == results[1].state
