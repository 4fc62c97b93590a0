"""A driver of its own for a query with its checkpoint in DynamoDB; each batch's rows go to a file `ROWS/BATCH`.

Run as `python -m tests.spark.programs.driver FOLDER ENDPOINT CHECKPOINT ROWS`. It makes a batch of each file that is
released, until FOLDER/stop is there or the query fails: then ROWS/error has the error.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import dynastate
from tests.spark.conftest import spark_conf
from tests.spark.operators import sums
from tests.spark.streams import open_stream, take_all


def main(folder: Path, endpoint: str, checkpoint: str, rows: Path) -> None:
    builder = SparkSession.builder.master("local[2]").config(map=dict(spark_conf(rows / "own")))
    spark = dynastate.configure(builder, checkpoint=True, endpoint=endpoint, region="us-east-1").getOrCreate()

    def write(batch: DataFrame, number: int) -> None:
        partial = rows / f"{number}.partial"
        partial.write_text(repr(sorted((tuple(row) for row in batch.collect()), key=repr)))
        partial.rename(rows / str(number))

    writer = sums(open_stream(spark, folder / "files"), "key").writeStream.outputMode("complete").foreachBatch(write)
    query = writer.option("checkpointLocation", checkpoint).start()
    while not (folder / "stop").exists() and query.isActive:
        time.sleep(0.1)
    error = query.exception()
    if error is None:
        take_all(query)
        query.stop()
    else:
        (rows / "error").write_text(" ".join(str(error).split()))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]))
