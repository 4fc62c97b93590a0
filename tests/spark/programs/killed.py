"""Some queries on two executors in processes of their own, killed repeatedly by a test; each batch's rows go to a file.

Run as `python -m tests.spark.programs.killed FOLDER ENDPOINT QUERY…`. It runs until FOLDER/stop is there and every
released file is taken. A query that fails is started again, as by its user; FOLDER/failures has its errors,
and FOLDER/executors, at the end, the logs of all executors.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.conftest import CONF
from tests.spark.operators import CASES
from tests.spark.programs.cluster import executor_logs, start_cluster
from tests.spark.streams import open_stream, take_all
from tests.support.jvm import SPARK

QUERIES = {
    "sums": CASES["aggregation in update mode with a watermark"],
    "joined": CASES["stream-stream join, left outer"],
    "transformed": CASES["flatMapGroupsWithState" if SPARK == "3.5" else "transformWithState in Scala"],
}
#: The query whose checkpoint is in DynamoDB.
IN_DYNAMODB = "sums"
#: One batch for each file, in every run, so that batches can be compared.
BATCH_BY_FILE = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
SETTINGS = BATCH_BY_FILE | {
    "spark.sql.streaming.minBatchesToRetain": "10",
    f"{CONF}.minDeltasForSnapshot": "2",
    f"{CONF}.maintenanceInterval": "1s",
    # Spark must not give up after this number of deaths.
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.stage.maxConsecutiveAttempts": "20",
    "spark.task.maxFailures": "8",
}


def rows_folder(folder: Path, name: str) -> Path:
    return folder / "rows" / name


def checkpoint_of(folder: Path, name: str) -> str:
    return f"dynastate://{name}/query" if name == IN_DYNAMODB else str(folder / "checkpoint" / name)


def sink(folder: Path) -> Callable[[DataFrame, int], None]:
    """Write a batch's rows to a file of its own; a batch that is run again writes another one."""

    def write(batch: DataFrame, number: int) -> None:
        rows = sorted((tuple(row) for row in batch.collect()), key=repr)
        partial = folder / f"{number}-{os.getpid()}-{time.monotonic_ns()}.partial"
        partial.write_text(repr(rows))
        partial.rename(partial.with_suffix(".rows"))

    return write


def start(spark: SparkSession, folder: Path, name: str) -> StreamingQuery:
    case, target = QUERIES[name], rows_folder(folder, name)
    target.mkdir(parents=True, exist_ok=True)
    frame = case.build(*(open_stream(spark, folder / "files") for _ in range(2)))
    writer = frame.writeStream.outputMode(case.mode).foreachBatch(sink(target))
    return writer.option("checkpointLocation", checkpoint_of(folder, name)).start()


def main(folder: Path, endpoint: str, names: list[str]) -> None:
    spark = start_cluster(folder, endpoint, SETTINGS)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.AbstractFileSystem.file.impl", "io.dynastate.tests.PlainLocalFs")
    queries = {name: start(spark, folder, name) for name in names}
    is_over = False
    while not is_over:
        is_over = (folder / "stop").exists()
        for name, query in queries.items():
            if is_over:
                with suppress(StreamingQueryException):
                    take_all(query)
            error = query.exception()
            if error is not None:
                with (folder / "failures").open("a") as log:
                    log.write(f"{name}: {' '.join(str(error).split())}\n")
                queries[name] = start(spark, folder, name)
                is_over = False
        time.sleep(0.1)
    for query in queries.values():
        query.stop()
    (folder / "executors").write_text(executor_logs(folder))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
