"""A query in real-time mode, to be killed: run again, it continues, with the rows that it had.

Run as `python -m tests.spark.programs.live FOLDER ENDPOINT QUERY CHECKPOINT`. It ends when all rows are committed, and
all timers have fired.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import dynastate
from tests.spark.conftest import spark_conf
from tests.spark.live import ANY_OPERATOR, REAL_TIME, LiveQuery, LiveSource, numbered
from tests.spark.operators import in_scala, sums
from tests.support.jvm import TESTS_JAR

#: Files of rows.
FILES = 60
#: Between two files; an interval has several.
PAUSE_S = 0.3
QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "sums": lambda rows: sums(rows, "key"),
    "timers": lambda rows: in_scala(rows, "Processors", "twice"),
}


def main(folder: Path, endpoint: str, name: str, checkpoint: str) -> None:
    conf = spark_conf(folder / "own") | REAL_TIME | ANY_OPERATOR
    conf |= {"spark.jars": str(TESTS_JAR), "spark.sql.shuffle.partitions": "2"}
    builder = SparkSession.builder.master("local[3]").config(map=dict(conf))
    builder = dynastate.configure(builder, real_time=True, checkpoint=True, endpoint=endpoint, region="us-east-1")
    spark = builder.getOrCreate()
    source, mark = LiveSource(spark), folder / "added"
    added = int(mark.read_text()) if mark.exists() else 0
    for file in range(added):
        source.add(numbered(file))
    query = LiveQuery(QUERIES[name](source.frame), checkpoint, folder / "rows")
    for file in range(added, FILES):
        source.add(numbered(file))
        mark.write_text(str(file + 1))
        time.sleep(PAUSE_S)
    query.wait_until_committed(source)
    # Timers of the last rows fire after it.
    query.wait_for_interval()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
