"""Rollback of real queries, on both checkpoint formats: they go on as queries on RocksDB whose files were deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.operations.checkpoints import open_checkpoint
from dynastate.operations.lifecycle.rollback import plan_rollback, roll_back
from tests.spark.conftest import CONF, ON_ROCKSDB, Sessions, only
from tests.spark.operators import CASES
from tests.spark.state_reader import read_states
from tests.spark.streams import make_sources
from tests.support.jvm import ALSO_ON_35, SINCE_40, SPARK

FILES, TO = 5, 2
#: Spark 4.0's state reader cannot read RocksDB's state of format 2.
NEWEST_FORMAT = "1" if SPARK == "4.0" else "2"
#: On every minor of Spark; the others take long.
QUICK = (("transformWithState in Scala", NEWEST_FORMAT),)
SLOW = (
    ("aggregation in update mode", "1"),
    ("aggregation in update mode", "2"),
    ("stream-stream join, inner", "1"),
    ("stream-stream join, inner", "2"),
    ("session windows", "2"),
    ("applyInPandasWithState", "2"),
)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        *(pytest.param(*each, marks=[pytest.mark.every_spark, SINCE_40]) for each in QUICK),
        *(pytest.param(*each, marks=[pytest.mark.slow, *([ALSO_ON_35] if each[1] == "1" else [])]) for each in SLOW),
    ],
)
def test_same_as_rocksdb_after_a_rollback(
    name: str, version: str, sessions: Sessions, tables: BotoTables, folder: Path, environment: dict[str, str]
) -> None:
    """Batches up to the one that stays are not run again; later ones run on the state of that batch, with new data."""
    case = CASES[name]
    sources = make_sources(folder, seed=4, files=FILES + 1)
    format_ = {f"{CONF}.checkpointFormatVersion": version}
    conf = {"ours": dict(case.conf) | format_, "rocksdb": ON_ROCKSDB | format_}
    for files in range(1, FILES + 1):
        sources.release(files)
        for store, options in conf.items():
            case.start(sessions(options), sources, folder / store).finish()
    with only(environment):
        files_of = open_checkpoint(tables, str(folder / "ours"))
        roll_back(files_of, plan_rollback(tables, files_of, TO))
    for name_ in ("commits", "offsets"):
        for file in (folder / "rocksdb" / name_).iterdir():
            if int(file.name.strip(".").split(".")[0]) > TO:
                file.unlink()
        names = {store: sorted(each.name for each in (folder / store / name_).iterdir()) for store in conf}
        assert names["ours"] == names["rocksdb"]
    sources.release(FILES + 1)
    results = {}
    for store, options in conf.items():
        outcome = case.start(sessions(options), sources, folder / store).finish()
        assert min(outcome.rows) == TO + 1
        last = range(max(outcome.rows), max(outcome.rows) + 1)
        # Spark 3.5 has no reader of state.
        states = None if SPARK == "3.5" else read_states(sessions(options), folder / store, last)
        results[store] = (outcome.rows, outcome.state, states)
    assert results["ours"] == results["rocksdb"]
