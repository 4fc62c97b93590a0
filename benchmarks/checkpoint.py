"""A checkpoint in DynamoDB that lives long: what its log takes after thousands of batches and some restarts.

    python benchmarks/checkpoint.py
    python benchmarks/checkpoint.py --batches 200 --runs 4                                         to try it

One small query counts rows by key, batch after batch, and is started again several times in one Spark. After each run
its items, those of both tables, and the write units of a batch's files are counted. The time from each start to the
first commit is measured. None of them may grow, and no fragment may be left without a file. Prints the figures,
keeps them in build/benchmarks/checkpoint.json, and exits 1 when one has grown. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from database import REGION, add_arguments, database
from pyspark_runs import spark_session
from rich.table import Table
from targets import Target, console, finish

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.checkpoint import ORPHAN_AGE, CheckpointFiles
from dynastate.format.checkpoint import Checkpoint, folder_range
from dynastate.format.items import item_bytes
from dynastate.format.keys import SPECS, Role, store_shard
from dynastate.settings import Settings
from dynastate.storage.meter import units_of_write

CHECKPOINT: Final = Checkpoint("benchmark", "counts")
#: The most that a figure of the second half may be, in that of the first, without the first run: it has no old batches.
AT_MOST: Final = 1.15
#: A restart is measured once a run.
RESTART_AT_MOST: Final = 1.5
POLL_S: Final = 0.005
#: Batches whose files are counted.
COUNTED: Final = 10
#: By figure, what it is.
SHOWN: Final = {
    "batch": "batches",
    "batch_ms": "batch, median of the last 100, ms",
    "restart_ms": "from start() to the first commit, ms",
    "log_items": "items of the log",
    "items": "items of both tables",
    "units": "write units of a batch's files",
    "orphans": "fragments without a file",
}


class Stored:
    """What is in the tables."""

    def __init__(self, endpoint: str) -> None:
        self._tables = BotoTables(Settings(region=REGION, endpoint=endpoint))

    def figures(self) -> dict[str, float]:
        """The figures of the log, and the items of both tables."""
        low, high = folder_range(CHECKPOINT, "")
        log = self._tables.query("snapshot", store_shard(CHECKPOINT.store, 0), low, high)
        newest = [
            units_of_write(item_bytes(item))
            for folder in ("offsets", "commits")
            for key, item in [each for each in log if each[0].sort.startswith(f"file/{folder}/")][-COUNTED:]
        ]
        tomorrow = CheckpointFiles(self._tables, set(), clock=lambda: datetime.now(timezone.utc) + 2 * ORPHAN_AGE)
        return {
            "log_items": len(log),
            "items": sum(self._count(role) for role in SPECS),
            "units": sum(newest) / COUNTED,
            "orphans": sum(map(len, tomorrow.orphans(CHECKPOINT, ()))),
        }

    def _count(self, role: Role) -> int:
        request: dict[str, Any] = {}
        count = 0
        while True:
            page = self._tables.call("Scan", role, **request)
            count += len(page["Items"])
            if "LastEvaluatedKey" not in page:
                return count
            request["ExclusiveStartKey"] = page["LastEvaluatedKey"]


def run(spark: Any, until: int) -> dict[str, float]:
    """Run the query until a batch has ended."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 1).load()
    counts = rows.selectExpr("value % 10 AS digit").groupBy("digit").count()
    writer = counts.writeStream.outputMode("update").format("noop")
    begin_s = time.monotonic()
    query = writer.option("checkpointLocation", f"dynastate://{CHECKPOINT}").start()
    restart_ms = 0.0
    while (query.lastProgress or {"batchId": -1})["batchId"] < until:
        if not restart_ms and query.lastProgress:
            restart_ms = 1000 * (time.monotonic() - begin_s)
        if not query.isActive:
            sys.exit(f"benchmark: the query has ended: {query.exception()}")
        time.sleep(POLL_S if not restart_ms else 20 * POLL_S)
    query.stop()
    progress = query.recentProgress
    durations = [each["durationMs"]["triggerExecution"] for each in progress[-100:]]
    return {"batch": progress[-1]["batchId"] + 1, "batch_ms": statistics.median(durations), "restart_ms": restart_ms}


def live(options: argparse.Namespace, folder: Path, endpoint: str) -> list[dict[str, float]]:
    """The figures of each run."""
    conf = {"spark.sql.shuffle.partitions": "1", "spark.sql.streaming.stateStore.maintenanceInterval": "5s"}
    spark = spark_session("", "1g", folder, conf, endpoint=endpoint, checkpoint=True)
    stored = Stored(endpoint)
    figures = []
    for number in range(1, options.runs + 1):
        figures.append(run(spark, options.batches * number // options.runs) | stored.figures())
        sys.stderr.write(f"{figures[-1]}\n")
    spark.stop()
    return figures


def targets(runs: list[dict[str, float]]) -> list[Target]:
    """No figure grows."""
    half = len(runs) // 2
    first, second = runs[1 : half + 1], runs[half + 1 :]
    text = "second half of runs / first half"

    def ratio(of: Callable[[list[float]], float], key: str) -> float:
        return of([each[key] for each in second]) / of([each[key] for each in first])

    judged = [
        Target(f"most of {SHOWN[key]}: {text}", ratio(max, key), AT_MOST) for key in ("log_items", "items", "units")
    ]
    judged.append(Target(f"{SHOWN['restart_ms']}: {text}", ratio(statistics.median, "restart_ms"), RESTART_AT_MOST))
    return [*judged, Target(SHOWN["orphans"], max(each["orphans"] for each in runs), 0)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=10_000, help="of all runs (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=20, help="of the query, 3 or more (default: %(default)s)")
    add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    out = console()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with (
        tempfile.TemporaryDirectory(prefix="dynastate-bench-") as folder,
        database(options.endpoint, options.engine) as running,
    ):
        os.environ.update(running.environment)
        runs = live(options, Path(folder), running.endpoint)
    table = Table(*SHOWN.values())
    for each in runs:
        table.add_row(*(f"{each[key]:,.1f}".removesuffix(".0") for key in SHOWN))
    out.print(table)
    finish(out, "checkpoint", vars(options), {"engine": running.engine, "runs": runs}, targets(runs))


if __name__ == "__main__":
    main()
