"""The comparison of two versions: cells, the columns that differ, and bounds in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from dynastate.errors import ConfigurationError
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from dynastate.ui.pages.compare import Differences
from tests.support.engine_driver import make_engine
from tests.support.memory_tables import MemoryTables
from tests.support.store_builder import StoreBuilder, counted, user

LONG = "x" * 500


@pytest.fixture
def reader() -> Iterator[StateReader]:
    """Of two versions with 50 rows; at the second, one has changed in its last character, one is gone, one is new."""
    tables = MemoryTables()
    with closing(make_engine(tables)) as engine:
        builder = StoreBuilder(engine, "q/0/0/default")
        builder.commit(*((user(f"{row:02}"), counted(row, LONG)) for row in range(50)))
        builder.commit((user("07"), counted(7, LONG[:-1] + "y")), (user("08"), None), (user("new"), counted(1)))
    with StateReader(tables, Settings(), "q/0") as made_reader:
        yield made_reader


def test_columns_that_differ_are_marked_also_beyond_the_end_of_a_cell(reader: StateReader) -> None:
    differences = Differences(reader, 1, 2)
    differences.advance(float("inf"))
    lines = {line[0]: line for line in differences.rows}
    kind, was, new, changed, key = lines["changed"]
    assert key == user("07")
    assert (kind, was == new, [reader.columns.names[each] for each in changed]) == ("changed", True, ["note"])
    assert (lines["added"][1], lines["removed"][2]) == (None, None)
    assert dict(differences.counts) == {"added": 1, "removed": 1, "changed": 1}


def test_lines_are_kept_to_a_limit_and_counted_beyond_it(reader: StateReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynastate.ui.cursor.KEPT_BYTES", 12_000)
    differences = Differences(reader, 0, 1)
    differences.advance(float("inf"))
    assert 5 < len(differences.rows) < 15
    assert (differences.is_full, differences.counts["added"], differences.count) == (True, 50, 50)


def test_versions_with_too_many_changes_are_refused(reader: StateReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynastate.ui.pages.compare.COMPARED_BYTES", 2_000)
    with pytest.raises(ConfigurationError, match="compare versions that are nearer to each other"):
        Differences(reader, 0, 1).advance(float("inf"))
    nearer = Differences(reader, 1, 2)
    nearer.advance(float("inf"))
    assert nearer.count == 3


def test_only_rows_that_were_changed_are_in_memory(reader: StateReader) -> None:
    (partition,) = reader._partitions
    entry = partition.lineage.find(1)
    every = partition.rows_at(entry, partition.family(entry))
    some = list(every)[3:5]
    assert partition.rows_at(entry, partition.family(entry), some) == {raw: every[raw] for raw in some}
