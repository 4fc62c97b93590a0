"""The Spark process of the demo: it runs both queries until all files are read, then reads their state back.

    python -m dynastate.demo WORK ENDPOINT REGION

It ends, with its whole process group, when its standard input does: it cannot outlive the demo, however that ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name
from pyspark.sql.streaming.query import StreamingQuery

from dynastate.demo import queries
from dynastate.demo.process import FAILURE, Layout, location

_POLL_S: Final = 0.1
#: The aggregation buffers of both queries, in order: an average has a sum and a count.
_BUFFERS: Final = "flights: long, departed: long, sum: double, count: long, max_delay: long"


def main(work: Layout, endpoint: str, region: str) -> None:
    """Run the queries to their end, and record their progress and state."""
    spark = queries.session(endpoint, region, _conf(work))
    flights = queries.files(spark, work.input / "flights", queries.FLIGHT)
    weather = queries.files(spark, work.input / "weather", queries.WEATHER)
    frames = {"aircraft": queries.aircraft(flights), "airport_hours": queries.airport_hours(flights, weather)}
    modes = {"aircraft": "update", "airport_hours": "append"}
    running = [
        queries.write(frame, work.outputs / name)
        .queryName(name)
        .outputMode(modes[name])
        .option("checkpointLocation", location(name))
        .start()
        for name, frame in frames.items()
    ]
    while any(query.isActive for query in running):
        for query in running:
            _record(query, work)
        time.sleep(_POLL_S)
    for query in running:
        query.awaitTermination()  # raises what the query failed with
        _record(query, work)
    _read_state(spark, work, "aircraft", operator=0, value=f"struct<{_BUFFERS}, miles: long>")
    _read_state(spark, work, "airport_hours", operator=1, value=f"struct<{_BUFFERS}>")
    spark.stop()


def _conf(work: Layout) -> dict[str, str]:
    """Small, quiet, on loopback, and with all files in the work folder: it will be killed, and cannot clean up."""
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={work.temporary} -XX:-UsePerfData -XX:TieredStopAtLevel=1",
        "spark.local.dir": str(work.temporary),
        "spark.sql.warehouse.dir": str(work.temporary / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _record(query: StreamingQuery, work: Layout) -> None:
    """Record the progress of every batch, which is lost when the process is killed."""
    last = query.lastProgress
    if last is not None and not work.progress_file(query.name, last.batchId).exists():
        for progress in query.recentProgress:
            work.record(query.name, progress.batchId, progress.json)


def _read_state(spark: SparkSession, work: Layout, name: str, operator: int, value: str) -> None:
    """Read one operator's last state out of DynamoDB with Spark's own state reader.

    The cast gives each value field its own name: Spark calls all counts `count` and all sums `sum`.
    """
    state = spark.read.format("statestore").option("operatorId", operator).load(location(name))
    named = state.select("key", F.col("value").cast(value).alias("value"))
    named.select("key.*", "value.*").write.parquet(str(work.states / name))


def _end_with_parent() -> None:
    while os.read(0, 4096):  # not sys.stdin: Python cannot end while a thread holds its lock
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("this is the demo's Spark process; run 'dynastate demo'")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = Layout(Path(sys.argv[1]))
    try:
        main(folder, sys.argv[2], sys.argv[3])
    except Exception as failed:
        (folder.root / FAILURE).write_text(str(failed))
        raise
