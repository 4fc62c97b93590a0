"""A query on two executors in processes of their own, one of which is killed in mid-batch; writes each batch's rows.

Run as `python -m tests.spark.programs.loses_executor FOLDER ENDPOINT CASE`, with the name of a case of operators.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import jvm_pid
from tests.spark.operators import CASES
from tests.spark.programs.cluster import start_cluster
from tests.spark.streams import in_batch, open_stream, run
from tests.support.processes import children, is_alive, sidecars_of, wait_until

#: The batch in which an executor dies, and the partition whose executor it is.
BATCH = 2
PARTITION = 0
#: Time for the other partition to commit, so that only one of the two has.
AHEAD_MS = 2_000


def build(name: str, spark: SparkSession, folder: Path) -> DataFrame:
    return CASES[name].build(open_stream(spark, folder / "left"), open_stream(spark, folder / "right"))


def main(folder: Path, endpoint: str, name: str) -> None:
    spark = start_cluster(folder, endpoint, {})
    kill = in_batch(BATCH, "killOnce", PARTITION, AHEAD_MS, str(folder / "mark"))
    outcome = run(build(name, spark, folder), folder / "checkpoint", CASES[name].mode, kill)

    executors = children(jvm_pid())
    sidecars = [sidecar for executor in executors for sidecar in sidecars_of(executor)]
    answer = {
        "rows": {batch: repr(rows) for batch, rows in outcome.rows.items()},
        "state": {batch: repr(states) for batch, states in outcome.state.items()},
        "killed": (folder / "mark").exists() and int((folder / "mark").read_text()) not in executors,
        "sidecars": len(sidecars),
    }
    spark.stop()
    wait_until(lambda: not any(map(is_alive, [*executors, *sidecars])), "an executor or a sidecar outlived Spark")
    (folder / "answer").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
