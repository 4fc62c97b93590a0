"""Features that Spark keeps to RocksDB's provider by the name of its class: docs/upstream/README.md has the changes.

A test is skipped while Spark refuses, and must pass as soon as a Spark does not.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.conftest import CONF
from tests.spark.operators import CASES, JOIN_FORMAT
from tests.spark.streams import Source, make_source, make_sources, run

REFUSED = "Spark refuses: "


@pytest.fixture
def counted(spark: SparkSession, folder: Path) -> tuple[Source, Path]:
    """A query that ran one batch: its source and its checkpoint."""
    source = make_source(folder / "files", seed=31, files=1)
    source.release()
    checkpoint = folder / "checkpoint"
    run(source.stream(spark).groupBy("key").count(), checkpoint)
    return source, checkpoint


def skip_if(message: str, *refusal: str) -> None:
    """Skip the test where a message is a gate's refusal, which names it."""
    if all(part in message for part in refusal):
        pytest.skip(REFUSED + " ".join(message.split())[:300])


def test_real_time_mode(spark: SparkSession, folder: Path) -> None:
    """A query with state in real-time mode begins; its source and sink are those that Spark has for all."""
    frame = spark.readStream.format("rate").load().dropDuplicates(["value"])
    writer = frame.writeStream.format("console").outputMode("update").option("checkpointLocation", str(folder / "c"))
    try:
        query = writer.trigger(realTime="5 minutes").start()  # type: ignore[call-overload]  # its stub is older
    except PySparkException as error:
        skip_if(str(error), "STREAMING_REAL_TIME_MODE", f"{CONF}.providerClass")
        raise
    query.stop()


def test_joins_in_the_newest_state_format(spark: SparkSession, folder: Path) -> None:
    """A new join keeps the state format that its session has, and has the rows of the older format."""
    sources = make_sources(folder, seed=32, files=2)
    sources.release()
    session = spark.newSession()
    case = CASES["stream-stream join, inner"]
    session.conf.set(JOIN_FORMAT, "2")
    expected = run(case.on(session, sources), folder / "older", case.mode)
    session.conf.set(JOIN_FORMAT, "4")
    outcome = run(case.on(session, sources), folder / "newest", case.mode)
    offsets = (folder / "newest" / "offsets" / "0").read_text().splitlines()
    (conf,) = [json.loads(line)["conf"] for line in offsets if '"conf"' in line]
    if conf[JOIN_FORMAT] == "2":
        pytest.skip(f"{REFUSED}it gives a new join on this provider format 2, not 4")
    assert conf[JOIN_FORMAT] == "4"
    assert outcome.rows == expected.rows


def test_reader_of_all_column_families(spark: SparkSession, counted: tuple[Source, Path]) -> None:
    """The state reader shows every row as bytes, with its column family: one each key, in an aggregation."""
    source, checkpoint = counted
    try:
        rows = spark.read.format("statestore").option("_readAllColumnFamilies", "true").load(str(checkpoint))
    except (PySparkException, Py4JJavaError) as error:
        skip_if(str(error), "STATE_REPARTITION_INVALID_CHECKPOINT.UNSUPPORTED_PROVIDER")
        raise
    assert "column_family_name" in rows.columns
    assert rows.count() == source.read(spark).select("key").distinct().count()


def test_transform_with_state_without_our_extension(spark: SparkSession, folder: Path) -> None:
    """A session without extensions runs it, and has the rows of a session with ours."""
    sources = make_sources(folder, seed=35, files=2)
    sources.release()
    case = CASES["transformWithState in Scala"]
    expected = case.start(spark.newSession(), sources, folder / "with").finish()
    bare = without_extensions(spark)
    try:
        outcome = case.start(bare, sources, folder / "without").finish()
    except PySparkException as error:
        skip_if(str(error), "STORE_BACKEND_NOT_SUPPORTED_FOR_TWS")
        raise
    assert outcome.rows == expected.rows


def without_extensions(spark: SparkSession) -> SparkSession:
    """Another session of this Spark, as if the application had no extensions."""
    jvm, conf = spark._jvm, spark._jsparkSession.sessionState().conf().getAllConfs()
    assert jvm is not None
    none = jvm.scala.Option.empty()
    options = jvm.org.apache.spark.sql.SparkSessionExtensions()
    empty = conf.empty()
    session = jvm.org.apache.spark.sql.classic.SparkSession(spark._jsc.sc(), none, none, options, conf, empty)
    return SparkSession(spark.sparkContext, session)


def test_offline_repartition(spark: SparkSession, counted: tuple[Source, Path]) -> None:
    """Spark's own repartition gives a stopped query another number of partitions, with which it continues."""
    source, checkpoint = counted
    try:
        spark._jsparkSession.streamingCheckpointManager().repartition(str(checkpoint), 3, True)
    except (PySparkException, Py4JJavaError) as error:
        skip_if(str(error), "STATE_REPARTITION_INVALID_CHECKPOINT.UNSUPPORTED_PROVIDER")
        raise
    rows = spark.read.format("statestore").load(str(checkpoint))
    assert {row.partition_id for row in rows.select("partition_id").collect()} <= {0, 1, 2}
    assert rows.count() == source.read(spark).select("key").distinct().count()
