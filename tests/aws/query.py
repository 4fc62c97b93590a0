"""A query that sums amounts of users, and may hang when a batch has committed its state, in order to be killed.

Run as `python -m tests.aws.query FOLDER SETTINGS BATCH`; with the number of no batch it ends.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import dynastate
from tests.spark.conftest import spark_conf

HANG_S = 600


def main(folder: Path, settings: dict[str, str], hangs_in: int) -> None:
    builder = SparkSession.builder.master("local[2]").config(map=dict(spark_conf(folder / "own")))
    spark = dynastate.configure(builder, **settings).getOrCreate()
    rows = spark.readStream.schema("user string, amount long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))

    def sink(batch: DataFrame, number: int) -> None:
        output = [list(row) for row in batch.collect()]  # its tasks commit the state
        if number == hangs_in:
            (folder / "mark").touch()
            time.sleep(HANG_S)
        (folder / "rows").write_text(json.dumps(output))

    sums = rows.groupBy("user").agg(f.count("*"), f.sum("amount"))
    writer = sums.writeStream.outputMode("complete").option("checkpointLocation", str(folder / "checkpoint"))
    writer.foreachBatch(sink).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]))
