"""Batches that the sink skips, and partitions that a plan leaves unread: their state is computed.

On Spark before 4.1 queries have checkpoint format 1, which needs no version of each partition.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from dynastate.spark.configure import CHECKPOINT_FORMAT
from tests.spark.conftest import Sessions
from tests.spark.operators import CASES, sums
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


def test_a_function_that_uses_no_row_is_an_error(session: SparkSession, source: Source, folder: Path) -> None:
    """It may have hidden a failure, so Spark's own check of `foreachBatch` stays."""
    source.release(1)
    writer = sums(source.stream(session), "key").writeStream.outputMode("complete").foreachBatch(lambda *_: None)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    with pytest.raises(StreamingQueryException):
        query.processAllAvailable()
    query.stop()


def test_metrics_and_name_of_the_sink(session: SparkSession, source: Source, folder: Path) -> None:
    """Progress has what the sink itself reports."""
    source.release(1)
    rows = sums(source.stream(session), "key")
    writer = rows.writeStream.outputMode("complete").format("io.dynastate.tests.CountingSink")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        take_all(query)
        progress = query.recentProgress[0]
    finally:
        query.stop()
    assert progress.sink.description == "CountingSink"
    assert progress.sink.metrics == {"rows": str(sums(source.read(session), "key").count())}


def test_partitions_that_a_join_leaves_unread(session: SparkSession, source: Source, folder: Path) -> None:
    """A join of sorted sides reads no row of a side whose other one is empty in a partition; its state is computed."""
    other = session.createDataFrame([("key-1", 1)], "key string, number int").hint("merge")
    source.release()
    frame = other.join(source.stream(session).dropDuplicates(["key"]), "key")
    writer = frame.writeStream.format("json").option("path", str(folder / "sink"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        take_all(query)
        state = [each.numRowsTotal for each in query.recentProgress[-1].stateOperators]
    finally:
        query.stop()
    keys = source.read(session).select("key").distinct().count()
    assert state == [keys]
    assert session.read.json(str(folder / "sink")).count() == 1


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
