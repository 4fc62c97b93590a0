"""A query that hangs in one batch, when one of its two partitions has committed: to be killed then.

Run as `python -m tests.spark.programs.dies FOLDER ENDPOINT CHECKPOINT_FORMAT`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from pyspark import TaskContext
from pyspark.sql import SparkSession

import dynastate
from tests.spark.conftest import CONF, spark_conf
from tests.spark.operators import group_state
from tests.spark.streams import open_stream, run

#: The batch, and the partition that hangs in it.
BATCH = 2
PARTITION = 1
HANG_S = 300


def hang() -> Callable[[pd.DataFrame], None]:
    """Keep the tasks of one partition from making their state in one batch, and so from committing it."""
    partition, batch, seconds = PARTITION, BATCH, HANG_S

    def wait(frame: pd.DataFrame) -> None:
        context = TaskContext.get()
        if context is not None and context.partitionId() == partition and frame["file"].max() == batch:
            time.sleep(seconds)

    return wait


def main(folder: Path, endpoint: str, checkpoint_format: str) -> None:
    conf = spark_conf(folder / "own") | {f"{CONF}.checkpointFormatVersion": checkpoint_format}
    builder = SparkSession.builder.master("local[2]").config(map=dict(conf))
    spark = dynastate.configure(
        builder,
        endpoint=endpoint,
        region="us-east-1",
        namespace=f"{folder.name}-killed",
    ).getOrCreate()
    run(group_state(open_stream(spark, folder / "files"), look=hang()), folder / "checkpoint", "append")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
