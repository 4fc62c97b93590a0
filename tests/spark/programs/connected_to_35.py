"""A user's program whose sessions are those of a server of Spark Connect 3.5.

Run as `python connected_to_35.py URL FILES CHECKPOINT ANSWER SETTINGS`.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

import dynastate
from dynastate.errors import ConfigurationError

url, files, checkpoint, answer, settings = sys.argv[1:]


def session(query: str) -> SparkSession:
    """The one session, configured for the next query: a namespace has one."""
    options = json.loads(settings)
    builder = SparkSession.builder.remote(url).config("spark.sql.shuffle.partitions", 2)
    options |= {"namespace": f"{options['namespace']}-{query}"}
    return dynastate.configure(builder, checkpoint=True, **options).getOrCreate()


def sums(spark: SparkSession) -> DataFrame:
    rows = spark.readStream.schema("key string, amount long").option("maxFilesPerTrigger", 1).json(files)
    return rows.groupBy("key").agg(f.count("*").alias("rows"), f.sum("amount").alias("amount"))


def run(writer: DataStreamWriter, location: str) -> dict[str, int]:
    """Run a query on all files. Returns the metrics of its last batch."""
    query = writer.outputMode("complete").option("checkpointLocation", location).trigger(availableNow=True).start()
    query.awaitTermination()
    metrics: dict[str, int] = query.recentProgress[-1]["stateOperators"][0]["customMetrics"]
    return metrics


def refusal(spark: SparkSession) -> str:
    try:
        dynastate.export_metrics(spark, "emf")
    except ConfigurationError as error:
        return str(error)
    return ""


def write(batch: DataFrame, number: int) -> None:
    batch.write.parquet(f"{output}/{number}")


spark = session("sums")
in_memory = sums(spark).writeStream.format("memory").queryName("sums")
location = f"dynastate://{json.loads(settings)['namespace']}-sums/query"
result: dict[str, Any] = {"metrics": {"sums": run(in_memory, location)}}
result["sums"] = [list(row) for row in spark.table("sums").collect()]
spark, output = session("running"), f"{answer}.rows"
result["metrics"]["running"] = run(sums(spark).writeStream.foreachBatch(write), f"{checkpoint}/running")
last = max(Path(output).iterdir(), key=lambda each: int(each.name))
result["running"] = [list(row) for row in spark.read.parquet(str(last)).collect()]
result["session"] = type(spark).__module__
result["refused"] = refusal(spark)
Path(answer).write_text(json.dumps(result))
spark.stop()
