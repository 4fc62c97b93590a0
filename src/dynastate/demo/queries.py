"""The two streaming queries of the demo: an example of a program that uses dynastate.

Only `session` refers to dynastate: the queries are the same with any other state store.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name
from pyspark.sql.streaming.readwriter import DataStreamWriter

import dynastate

FLIGHT = "at timestamp, origin string, tailnum string, dep_delay long, distance long"
WEATHER = "at timestamp, origin string, temp double, wind_speed double, precip double, visib double"
#: An hour is closed, and written, once the event time is this much past its end.
LATENESS = "1 hour"


def session(endpoint: str, region: str, conf: Mapping[str, str]) -> SparkSession:
    """A Spark session that keeps the state of its streaming queries in DynamoDB, and their checkpoints."""
    builder = SparkSession.builder.master("local[2]").appName("dynastate demo").config(map=dict(conf))
    return dynastate.configure(builder, checkpoint=True, endpoint=endpoint, region=region).getOrCreate()


def files(spark: SparkSession, folder: Path, schema: str) -> DataFrame:
    """A stream of the files in a folder, one a batch."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def aircraft(flights: DataFrame) -> DataFrame:
    """Current delay statistics of every aircraft. State: one row for each tail number, without expiry."""
    return flights.groupBy("tailnum").agg(
        F.count("*").alias("flights"),
        F.count("dep_delay").alias("departed"),
        F.avg("dep_delay").alias("mean_delay"),
        F.max("dep_delay").alias("max_delay"),
        F.expr("sum(distance) FILTER (WHERE dep_delay IS NOT NULL)").alias("miles"),
    )


def airport_hours(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Delay statistics of every airport and hour with its weather, once the hour is over.

    State: the open hours, and the weather of hours that are not joined yet.
    """
    hour = F.window("at", "1 hour").alias("hour")
    departures = (
        flights.withWatermark("at", LATENESS)
        .groupBy("origin", hour)
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.avg("dep_delay").alias("mean_delay"),
            F.max("dep_delay").alias("max_delay"),
        )
    )
    observed = weather.withWatermark("at", LATENESS).select("origin", hour, "temp", "wind_speed", "precip", "visib")
    return departures.join(observed, ["origin", "hour"], "left_outer").withColumn("hour", F.col("hour.start"))


def write(frame: DataFrame, folder: Path) -> DataStreamWriter:
    """A writer of one folder a batch, named by the batch: a batch that runs again overwrites its folder."""

    def sink(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(str(folder / f"batch={number:05d}"))

    return frame.writeStream.foreachBatch(sink).trigger(availableNow=True)
