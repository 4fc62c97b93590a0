"""A user's program whose sessions are those of a Spark Connect server.

Run as `python connected.py URL FILES CHECKPOINT ANSWER SETTINGS`.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import dynastate
from dynastate.errors import ConfigurationError

url, files, checkpoint, answer, settings = sys.argv[1:]
SCHEMA = "key string, rows long, amount long"


class Sums(StatefulProcessor):
    """How many rows a key had so far, and their sum."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.sums = handle.getValueState("sums", "rows long, amount long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        previous = self.sums.get() if self.sums.exists() else (0, 0)
        amounts = [row.amount for row in rows]
        totals = previous[0] + len(amounts), previous[1] + sum(amounts)
        self.sums.update(totals)
        yield Row(key=key[0], rows=totals[0], amount=totals[1])

    def close(self) -> None:
        pass


def session(query: str) -> SparkSession:
    """The one session, configured for the next query: a namespace has one."""
    options = json.loads(settings)
    builder = SparkSession.builder.remote(url).config("spark.sql.shuffle.partitions", 2)
    options |= {"namespace": f"{options['namespace']}-{query}"}
    return dynastate.configure(builder, checkpoint=True, **options).getOrCreate()


def stream(spark: SparkSession) -> DataFrame:
    return spark.readStream.schema("key string, amount long").option("maxFilesPerTrigger", 1).json(files)


def run(frame: DataFrame, name: str, mode: str, sink: str, location: str) -> dict[str, int]:
    """Run a query on all files. Returns the metrics of its last batch."""
    writer = frame.writeStream.outputMode(mode).format(sink).queryName(name).trigger(availableNow=True)
    query = writer.option("path", f"{checkpoint}/{name}.rows").option("checkpointLocation", location).start()
    query.awaitTermination()
    return dict(query.recentProgress[-1].stateOperators[0].customMetrics)


spark = session("sums")
in_dynamodb = f"dynastate://{json.loads(settings)['namespace']}-sums/query"
with dynastate.export_metrics(spark, f"file:{answer}.metrics"):
    sums = stream(spark).groupBy("key").agg(f.count("*").alias("rows"), f.sum("amount").alias("amount"))
    result: dict[str, Any] = {"metrics": {"sums": run(sums, "sums", "complete", "memory", in_dynamodb)}}
    result["sums"] = [list(row) for row in spark.table("sums").collect()]
    spark = session("running")
    running_sums = stream(spark).groupBy("key").transformWithState(Sums(), SCHEMA, "append", "none")
    result["metrics"]["running"] = run(running_sums, "running", "append", "json", f"{checkpoint}/running")
output = spark.read.schema(SCHEMA).json(f"{checkpoint}/running.rows")
newest = output.groupBy("key").agg(f.max("rows"), f.max_by("amount", "rows"))
result["running"] = [list(row) for row in newest.collect()]
result["session"] = type(spark).__module__
result["format"] = spark.conf.get("spark.sql.streaming.stateStore.checkpointFormatVersion")
try:
    dynastate.repartition(spark, f"{checkpoint}/sums", f"{checkpoint}/more", 3)
except ConfigurationError as error:
    result["refused"] = str(error)
Path(answer).write_text(json.dumps(result))
spark.stop()
