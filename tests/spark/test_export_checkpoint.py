"""Export: queries on dynastate continue on Spark's own stores with the same results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dynastate.errors import ConfigurationError
from dynastate.spark.transfer import jvm
from dynastate.spark.transfer.export import export_checkpoint
from dynastate.spark.transfer.importing import import_checkpoint
from dynastate.spark.transfer.steps import Moved
from tests.spark.conftest import CONF, ON_HDFS, ON_ROCKSDB, WITH_CHANGELOG, Sessions, contents
from tests.spark.operators import CASES, JOIN_FORMAT
from tests.spark.state_reader import last_states
from tests.spark.streams import make_sources
from tests.support.jvm import SPARK

pytestmark = [
    pytest.mark.skipif(SPARK != jvm.SPARK, reason=f"export needs Spark {jvm.SPARK}"),
    pytest.mark.usefixtures("clean_environment"),
]
WITH_IDS = WITH_CHANGELOG | {f"{CONF}.checkpointFormatVersion": "2"}
QUICK = "aggregation, to HDFS"
#: A query, and the conf with which it begins, and ends.
LEAVERS: dict[str, tuple[str, Mapping[str, str]]] = {
    QUICK: ("aggregation in append mode", ON_HDFS),
    "aggregation, to RocksDB with ids": ("aggregation in update mode", WITH_IDS),
    "global aggregation, to HDFS": ("global aggregation", ON_HDFS),
    "deduplication, to RocksDB with a changelog": ("dropDuplicates with a watermark", WITH_CHANGELOG),
    "session windows, to HDFS": ("session windows", ON_HDFS),
    "session windows, to RocksDB": ("session windows", ON_ROCKSDB),
    "join, to HDFS": ("stream-stream join, left outer", ON_HDFS),
    "join, to RocksDB with ids": ("stream-stream join, full outer", WITH_IDS),
    "join of state format 3": ("stream-stream join, left outer", ON_ROCKSDB | {JOIN_FORMAT: "3"}),
    "join of state format 4": ("stream-stream join, left outer", WITH_IDS | {JOIN_FORMAT: "4"}),
    "limit, to HDFS": ("limit", ON_HDFS),
    "applyInPandasWithState, to RocksDB": ("applyInPandasWithState", ON_ROCKSDB),
    "transformWithState, row by row": ("transformWithState, row by row", ON_ROCKSDB),
    "transformWithState in Scala, with ids": ("transformWithState in Scala", WITH_IDS),
    "three operators": ("join, then deduplication, then windows", ON_ROCKSDB),
}
#: Files that are there before the import, between import and export, and after it.
STEPS = (2, 4, 6)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != QUICK)) for name in LEAVERS])
def test_same_results_after_import_and_export(name: str, sessions: Sessions, folder: Path) -> None:
    """A query goes from Spark's own store to dynastate and back, and its twin stays: each batch has equal results."""
    case, conf = CASES[LEAVERS[name][0]], LEAVERS[name][1]
    sources = make_sources(folder, seed=6, files=STEPS[-1])

    def step(files: int, checkpoint: str, step_conf: Mapping[str, str]) -> None:
        sources.release(files)
        outcome = case.start(sessions(step_conf), sources, folder / checkpoint).finish()
        reference = case.start(sessions(conf), sources, folder / "stays").finish()
        assert (outcome.rows, outcome.state) == (reference.rows, reference.state)
        state = last_states(sessions(step_conf), folder / checkpoint, outcome)
        assert state == last_states(sessions(conf), folder / "stays", outcome)

    step(STEPS[0], "before", conf)
    arrival = import_checkpoint(sessions({}), str(folder / "before"), str(folder / "here"))
    step(STEPS[1], "here", arrival.confs)
    files = contents(folder / "here")
    store = "hdfs" if "HDFS" in conf[f"{CONF}.providerClass"] else "rocksdb"
    departure = export_checkpoint(sessions({}), str(folder / "here"), str(folder / "after"), store)
    assert contents(folder / "here") == files
    assert departure.stores == arrival.stores
    assert {key: conf[key] for key in departure.confs} == departure.confs
    assert not list((folder / "after").rglob("dynastate*"))
    step(STEPS[2], "after", conf)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("dropDuplicates with a watermark", marks=pytest.mark.slow),
        "global aggregation",
        pytest.param("stream-stream join, left outer", marks=pytest.mark.slow),
    ],
)
def test_a_query_that_began_here_continues_on_hdfs(case: str, sessions: Sessions, folder: Path) -> None:
    """Checkpoint format v2, with which queries begin here, becomes v1: each batch has the results of a twin there."""
    sources = make_sources(folder, seed=9, files=4)

    def step(files: int, checkpoint: str, conf: Mapping[str, str]) -> None:
        sources.release(files)
        outcome = CASES[case].start(sessions(conf), sources, folder / checkpoint).finish()
        reference = CASES[case].start(sessions(ON_HDFS), sources, folder / "stays").finish()
        assert (outcome.rows, outcome.state) == (reference.rows, reference.state)

    step(2, "here", {f"{CONF}.checkpointFormatVersion": "2"})
    result = export(sessions, folder / "here", folder / "there", "hdfs")
    assert result.confs == ON_HDFS
    step(4, "there", result.confs)


@pytest.fixture
def stopped(sessions: Sessions, folder: Path) -> Path:
    """A checkpoint of a query with column families that has stopped."""
    return CASES["transformWithState in Scala"].stopped(sessions({}), folder)


def export(sessions: Sessions, old: Path, new: Path, store: str) -> Moved:
    return export_checkpoint(sessions({}), str(old), str(new), store)


@pytest.mark.slow
def test_wrong_arguments_are_refused(stopped: Path, sessions: Sessions, folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="state can be exported to hdfs and rocksdb store=redis"):
        export(sessions, stopped, folder / "new", "redis")
    with pytest.raises(ConfigurationError, match=r"HDFS-backed store has no column families.*kind=transformWithState"):
        export(sessions, stopped, folder / "new", "hdfs")
    with pytest.raises(ConfigurationError, match="the folder of the new checkpoint is not empty"):
        export(sessions, stopped, stopped, "rocksdb")
    assert not (folder / "new").exists()


def test_state_of_another_store_is_refused(sessions: Sessions, folder: Path) -> None:
    old = CASES["dropDuplicates"].stopped(sessions(ON_ROCKSDB), folder)
    with pytest.raises(ConfigurationError, match="the query keeps its state in a store of Spark's own"):
        export(sessions, old, folder / "new", "hdfs")


@pytest.mark.slow
def test_export_cut_off_runs_again(stopped: Path, sessions: Sessions, folder: Path) -> None:
    """With the mark still there the new folder is emptied and written again."""
    new = folder / "new"
    first = export(sessions, stopped, new, "rocksdb")
    (new / "dynastate-export-checkpoint").write_text("\nan export that was killed\n")
    (new / "state" / "0" / "0" / "9.zip").write_text("half")
    second = export(sessions, stopped, new, "rocksdb")
    assert (second.stores, second.rows, second.bytes) == (first.stores, first.rows, first.bytes)
    assert not (new / "dynastate-export-checkpoint").exists()
    assert not (new / "state" / "0" / "0" / "9.zip").exists()
