"""Batches that the sink skips, or uses in part: their state is computed, and the query goes on.

On Spark before 4.1 queries have checkpoint format 1, which needs no version of each partition.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from dynastate.spark.configure import CHECKPOINT_FORMAT
from tests.spark.conftest import Sessions
from tests.spark.operators import CASES, expected_sums, sums
from tests.spark.streams import Source, make_source, make_sources, take_all
from tests.support.jvm import SPARK

pytestmark = [
    pytest.mark.every_spark,
    pytest.mark.skipif(SPARK in ("3.5", "4.0"), reason="checkpoint format 2 needs Spark 4.1"),
]
FILES = 4
FORMAT_2 = {CHECKPOINT_FORMAT: "2"}


@pytest.fixture
def session(sessions: Sessions) -> SparkSession:
    return sessions(FORMAT_2)


@pytest.fixture
def source(folder: Path) -> Source:
    return make_source(folder / "files", seed=11, files=FILES)


def skip(_frame: DataFrame) -> None:
    """Use no row, as a function does that finds its batch in the database."""


@pytest.mark.parametrize("use", [skip, lambda frame: frame.take(1)], ids=["no row", "one row"])
def test_function_of_foreach_batch(
    use: Callable[[DataFrame], object], session: SparkSession, source: Source, folder: Path
) -> None:
    """After batches of which a function uses less than all rows, the next batch shows the rows of all of them."""
    rows: list[tuple[object, ...]] = []

    def sink(frame: DataFrame, number: int) -> None:
        if number < FILES - 1:
            use(frame)
        else:
            rows.extend(tuple(row) for row in frame.collect())

    source.release()
    writer = sums(source.stream(session), "key").writeStream.outputMode("complete").foreachBatch(sink)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        take_all(query)
        progress = query.lastProgress
        assert progress is not None
        assert progress.sink.description == "ForeachBatchSink"
    finally:
        query.stop()
    assert sorted(rows, key=repr) == expected_sums(session, source)


OPERATORS = [
    "dropDuplicates",
    pytest.param("aggregation in append mode", marks=pytest.mark.slow),
    pytest.param("stream-stream join, left outer", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("operator", OPERATORS)
def test_sink_that_writes_each_batch_once(operator: str, session: SparkSession, folder: Path) -> None:
    """The driver dies when the file sink has a batch, and the commit log has not: all rows are written, and none twice.

    Spark skips such a batch when the query starts again.
    """
    case = CASES[operator]
    sources = make_sources(folder / "files", seed=12, files=FILES)

    def take(name: str) -> list[str]:
        """Run the query until it has all released files; the rows that its sink has written, as lines of JSON."""
        frame = case.build(*(each.stream(session) for each in sources))
        frame = frame.toDF(*(f"column_{number}" for number in range(len(frame.columns))))
        writer = frame.writeStream.format("json").outputMode(case.mode).option("path", str(folder / name))
        query = writer.option("checkpointLocation", str(folder / name / "checkpoint")).start()
        try:
            take_all(query)
        finally:
            query.stop()
        return sorted(row.value for row in session.read.text(str(folder / name)).collect())

    for files in range(1, FILES + 1):
        sources.release(files)
        take("quiet")
        take("killed")
        commits = folder / "killed" / "checkpoint" / "commits"
        last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
        (commits / f"{last}").unlink()
    rows = take("quiet")
    assert rows
    assert take("killed") == rows
