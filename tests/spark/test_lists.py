"""List state that grows by appends, of which a value must never come twice, however rows are read.

A put that is applied twice changes nothing, so only lists show it.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.operations.inspection.verify import verify
from tests.spark.conftest import CONF, Graphs, Open, Sessions
from tests.spark.operators import in_scala
from tests.spark.state_reader import read_state
from tests.spark.streams import START, Source, run

KEYS, APPENDS, FILES = 2_000, 250, 9
NOTE_BYTES = 1_200
Lists = dict[str, list[int]]


def make_files() -> list[list[dict[str, str | int]]]:
    """One value for every key, then files with some keys each, and notes that cannot be compressed."""
    dice = random.Random(35)  # noqa: S311  # the same rows at every run
    note = base64.b85encode(dice.randbytes(NOTE_BYTES)).decode()

    def row(file: int, key: int, amount: int) -> dict[str, str | int]:
        index = dice.randrange(NOTE_BYTES)
        rotation = note[index:] + note[:index]
        return {
            "file": file,
            "key": f"key-{key}",
            "id": key,
            "amount": amount,
            "note": rotation,
            "at": START.isoformat(),
        }

    first = [row(0, key, key) for key in range(KEYS)]
    others = [
        [row(file, dice.randrange(KEYS), file * 10_000 + number) for number in range(APPENDS)]
        for file in range(1, FILES)
    ]
    return [first, *others]


def appended(rows: DataFrame) -> DataFrame:
    return in_scala(rows, "Processors", "appended")


@pytest.mark.slow
@pytest.mark.parametrize(
    "memory",
    [{"memoryMb": "3", "diskMb": "0"}, {"memoryMb": "3", "diskMb": "1"}],
    ids=["rows by bucket", "a disk that fills"],
)
def test_no_value_comes_twice(
    memory: Mapping[str, str],
    fresh_stores: None,
    sessions: Sessions,
    opened: Open,
    graphs: Graphs,
    tables: BotoTables,
    folder: Path,
) -> None:
    """With many snapshots, and after a restart, every reader has the lists that were appended."""
    conf = {f"{CONF}.dynastate.{name}": value for name, value in memory.items()}
    conf |= {f"{CONF}.maintenanceInterval": "100ms", f"{CONF}.minDeltasForSnapshot": "1"}
    conf |= {f"{CONF}.dynastate.snapshotThreshold": "0", f"{CONF}.dynastate.namespace": folder.name}
    session = sessions({**conf, "spark.sql.shuffle.partitions": "1"})
    files = make_files()
    source = Source(folder / "files", files)
    for count in (FILES - 3, FILES):  # the second run begins with nothing in memory
        source.release(count)
        run(appended(source.stream(session)), folder / "checkpoint", "append")
    store = f"{folder.name}/0/0/default"
    assert len(graphs(store).done_snapshots()) > 2, "there are no snapshots between commits"
    state = opened(f"{folder.name}/0")
    for version in (FILES - 3, FILES):
        expected: Lists = {}
        for row in (row for rows in files[:version] for row in rows):
            expected.setdefault(str(row["key"]), []).append(int(row["amount"]))
        column = state.list_column
        lists = {row["value"]: [value["_1"] for value in row[column]] for row in state.at(version)}
        wrong = [key for key, values in expected.items() if sorted(lists[key]) != sorted(values)]
        assert (len(lists), wrong) == (len(expected), [])
    options = {"stateVarName": "notes"}
    of_spark = read_state(session, folder / "checkpoint", **options).select("key.value", "list_element._1")
    assert sorted(map(tuple, of_spark.collect())) == sorted((key, value) for key in lists for value in lists[key])
    feed = {"readChangeFeed": "true", "changeStartBatchId": str(FILES - 2)}
    changes = read_state(session, folder / "checkpoint", **options, **feed).groupBy("batch_id").agg(f.count("*"))
    assert sorted(map(tuple, changes.collect())) == [(batch, APPENDS) for batch in (FILES - 2, FILES - 1)]
    assert verify(tables, store).is_whole
