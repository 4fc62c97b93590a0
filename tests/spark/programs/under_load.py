"""An aggregation over files as they arrive, until it is stopped; reports its rows and the progress of each batch.

Run as `python -m tests.spark.programs.under_load FOLDER ENDPOINT OPTIONS`: files appear in the folder's source, and the
file `stop` there is the end. OPTIONS is JSON: `master`, `conf` of Spark, `settings` of dynastate.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import dynastate
from tests.spark.conftest import spark_conf
from tests.spark.streams import RELEASED, SCHEMA, take_all

#: Spark's events of its tasks.
EVENTS = "events"


def main(folder: Path, endpoint: str, options: dict[str, Any]) -> None:
    conf = spark_conf(folder / "own") | {
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / EVENTS).as_uri(),
        "spark.eventLog.enabled": "true",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }
    builder = SparkSession.builder.master(options["master"]).config(map=conf | options.get("conf", {}))
    spark = dynastate.configure(builder, endpoint=endpoint, region="us-east-1", **options["settings"]).getOrCreate()
    newest: dict[str, list[object]] = {}

    def sink(batch: DataFrame, number: int) -> None:
        newest.update({row["key"]: list(row)[1:] for row in batch.collect()})

    rows = spark.readStream.schema(SCHEMA).json(str(folder / RELEASED))
    last = rows.groupBy("key").agg(f.count("*"), f.sum("amount"), f.max_by("note", "file"))
    writer = last.writeStream.outputMode("update").foreachBatch(sink)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    while query.isActive and not (folder / "stop").exists():
        time.sleep(0.1)
    if query.isActive:
        take_all(query)
    error = query.exception()
    query.stop()
    progress = [json.loads(each.json) for each in query.recentProgress if each.numInputRows]
    answer = {"rows": newest, "progress": progress, "failed": "" if error is None else str(error)}
    (folder / "answer").write_text(json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
