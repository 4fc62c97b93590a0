"""A query on two executors in processes of their own, of which one is killed in mid-batch; says what each batch gave.

Run as `python -m tests.spark.programs.loses_executor FOLDER ENDPOINT`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyspark
from pyspark import TaskContext
from pyspark.sql import SparkSession

import dynastate
from tests.spark.conftest import children, is_alive, jvm_pid, sidecars_of, spark_conf, wait_until
from tests.spark.operators import group_state
from tests.spark.streams import open_stream, run

#: The batch in which an executor dies, and the partition whose executor it is.
BATCH = 2
PARTITION = 0
#: Time for the other partition to commit, so that one of two has.
AHEAD_S = 2


def kill(told: Path) -> Callable[[pd.DataFrame], None]:
    """Kill the executor of one partition while it makes state, once. A worker's grandparent is its executor."""
    batch, partition, ahead_s = BATCH, PARTITION, AHEAD_S

    def look(frame: pd.DataFrame) -> None:
        context = TaskContext.get()
        if context is None or context.partitionId() != partition or frame["file"].max() != batch or told.exists():
            return
        daemon = os.getppid()
        executor = int(Path(f"/proc/{daemon}/stat").read_text().rsplit(")", 1)[1].split()[1])
        told.write_text(str(executor))
        time.sleep(ahead_s)
        os.kill(executor, signal.SIGKILL)

    return look


def main(folder: Path, endpoint: str) -> None:
    home = str(Path(pyspark.__file__).parent)
    conf = spark_conf(folder / "own") | {"spark.executor.memory": "1g"}
    conf["spark.executor.extraJavaOptions"] = conf["spark.driver.extraJavaOptions"]
    # Spark means this master for its own tests, and asks where it lives.
    conf["spark.driver.extraJavaOptions"] += f" -Dspark.test.home={home}"
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").config(map=dict(conf))
    spark = dynastate.configure(builder, endpoint=endpoint, region="us-east-1").getOrCreate()
    frame = group_state(open_stream(spark, folder / "files"), look=kill(folder / "told"))
    outcome = run(frame, folder / "checkpoint", "append")

    executors = children(jvm_pid())
    sidecars = [sidecar for executor in executors for sidecar in sidecars_of(executor)]
    answer = {
        "rows": {batch: repr(rows) for batch, rows in outcome.rows.items()},
        "state": {batch: repr(states) for batch, states in outcome.state.items()},
        "killed": (folder / "told").exists() and int((folder / "told").read_text()) not in executors,
        "sidecars": len(sidecars),
    }
    spark.stop()
    wait_until(lambda: not any(map(is_alive, [*executors, *sidecars])), "an executor or a sidecar outlived Spark")
    (folder / "answer").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
