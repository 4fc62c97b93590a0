"""A user's program that does not import dynastate: spark-submit's conf determines the stores of its two queries.

Run as `spark-submit --jars … --conf … submitted.py FILES CHECKPOINT ANSWER`.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

NAMESPACE = "spark.sql.streaming.stateStore.dynastate.namespace"


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


def run(frame: DataFrame, name: str, mode: str) -> dict[str, Any]:
    """Run a query on all files. Returns the newest row of each key in its sink, and the metrics of the last batch."""
    writer = frame.writeStream.outputMode(mode).format("memory").queryName(name).trigger(availableNow=True)
    namespace = frame.sparkSession.conf.get(NAMESPACE, "")
    query = writer.option("checkpointLocation", f"{checkpoint}/{namespace or name}/{name}").start()
    query.awaitTermination()
    newest = frame.sparkSession.sql(f"SELECT key, max(rows), max_by(amount, rows) FROM {name} GROUP BY key")  # noqa: S608
    metrics = query.recentProgress[-1].stateOperators[0].customMetrics
    return {"rows": [list(row) for row in newest.collect()], "metrics": dict(metrics)}


files, checkpoint, answer = sys.argv[1:]
spark = SparkSession.builder.appName("submitted").getOrCreate()
other = spark.newSession()
if spark.conf.get(NAMESPACE, None):
    other.conf.set(NAMESPACE, "another")  # a namespace has one query


def stream(session: SparkSession) -> DataFrame:
    return session.readStream.schema("key string, amount long").option("maxFilesPerTrigger", 1).json(files)


sums = stream(spark).groupBy("key").agg(f.count("*").alias("rows"), f.sum("amount").alias("amount"))
running_sums = (
    stream(other).groupBy("key").transformWithState(Sums(), "key string, rows long, amount long", "append", "none")
)
result: dict[str, Any] = {"sums": run(sums, "sums", "complete"), "running": run(running_sums, "running", "append")}
java = spark.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.specification.version') AS java")
result["java"] = int(java.collect()[0].java)
Path(answer).write_text(json.dumps(result))
spark.stop()
