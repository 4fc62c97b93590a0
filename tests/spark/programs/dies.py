"""A query that hangs in one batch, after one of its two partitions has committed, in order to be killed.

Run as `python -m tests.spark.programs.dies FOLDER ENDPOINT CHECKPOINT_FORMAT`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import dynastate
from tests.spark.conftest import CONF, spark_conf
from tests.spark.operators import group_state
from tests.spark.streams import hang_in, open_stream, run
from tests.support.jvm import TESTS_JAR

#: The batch, and the partition that hangs in it.
BATCH = 2
PARTITION = 1
HANG_MS = 300_000


def main(folder: Path, endpoint: str, checkpoint_format: str) -> None:
    conf = spark_conf(folder / "own") | {
        f"{CONF}.checkpointFormatVersion": checkpoint_format,
        "spark.jars": str(TESTS_JAR),
    }
    builder = SparkSession.builder.master("local[2]").config(map=dict(conf))
    spark = dynastate.configure(
        builder, endpoint=endpoint, region="us-east-1", namespace=f"{folder.name}-killed"
    ).getOrCreate()
    frame = group_state(open_stream(spark, folder / "files"))
    run(frame, folder / "checkpoint", "append", hang_in(BATCH, PARTITION, HANG_MS, folder / "mark"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
