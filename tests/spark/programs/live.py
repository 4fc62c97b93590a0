"""An aggregation in real-time mode, to be killed: run again, it continues, with the rows that it had.

Run as `python -m tests.spark.programs.live FOLDER ENDPOINT`. It ends when all rows are committed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import dynastate
from tests.spark.conftest import spark_conf
from tests.spark.live import REAL_TIME, LiveQuery, LiveSource
from tests.spark.operators import sums
from tests.spark.streams import make_rows
from tests.support.jvm import TESTS_JAR

SEED = 61
#: Files of rows.
FILES = 60
#: Between two files; an interval has several.
PAUSE_S = 0.3


def main(folder: Path, endpoint: str) -> None:
    conf = spark_conf(folder / "own") | REAL_TIME | {"spark.jars": str(TESTS_JAR), "spark.sql.shuffle.partitions": "2"}
    builder = SparkSession.builder.master("local[3]").config(map=dict(conf))
    builder = dynastate.configure(builder, real_time=True, endpoint=endpoint, region="us-east-1")
    spark = builder.getOrCreate()
    source, mark = LiveSource(spark), folder / "added"
    added = int(mark.read_text()) if mark.exists() else 0
    for file in range(added):
        source.add(make_rows(SEED, file))
    query = LiveQuery(sums(source.frame, "key"), folder / "checkpoint", folder / "rows")
    for file in range(added, FILES):
        source.add(make_rows(SEED, file))
        mark.write_text(str(file + 1))
        time.sleep(PAUSE_S)
    query.wait_until_committed(source)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
