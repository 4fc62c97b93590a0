"""Rows through state in Spark's real-time mode, in our store beside RocksDB: how late they come, and the pauses.

    python benchmarks/realtime.py
    python benchmarks/realtime.py --rates 1000 --pairs 1 --intervals 3 --seconds 5

A count by key, of rows that come at a fixed rate. Each run has a Python process and a Spark of its own, and the two
stores take turns. Prints how long after its time a row came out, and how long no row came between two intervals. Keeps
both in build/benchmarks/realtime.json, and exits 1 when a target is missed. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from database import add_arguments, database, names_of, numbers
from jvm import CONF, JAR, OURS, build
from pyspark_runs import NO_DATABASE, in_own_process, spark_session
from rich.console import Console
from rich.table import Table
from targets import Target, console, finish

ROCKSDB = "rocksdb-changelog"
STORES = (OURS, ROCKSDB)
SHOWN = {
    "p50_ms": "latency of a row, median, ms",
    "p99_ms": "latency, p99, ms",
    "p99.9_ms": "latency, p99.9, ms",
    "pause_ms": "pause between intervals, median, ms",
    "pause_most_ms": "longest pause, ms",
    "commit_ms": "commit, all partitions added up, ms",
    "rows": "rows that came out",
}
#: In the first interval Spark compiles the query.
WARM_UP = 1
STARTED_WITHIN_S = 120
#: The most of RocksDB's latency at p99, and of its pause, with its checkpoint in a local folder.
P99_AT_MOST, PAUSE_AT_MOST = 1.0, 1.0

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Plan:
    """Rows a second, keys, measured intervals, their length in seconds, state partitions, the heap of Spark's JVM."""

    rate: int
    keys: int
    intervals: int
    seconds: int
    partitions: int
    heap: str


def run_query(plan: Plan, store: str, endpoint: str, scratch: Path) -> Figures:
    """Run the query for its intervals; what they show."""
    from pyspark.sql import functions as f

    conf = {
        "spark.jars": str(JAR),
        "spark.sql.shuffle.partitions": str(plan.partitions),
        "spark.sql.streaming.realTimeMode.minBatchDuration": "1000",
        "spark.sql.streaming.numRecentProgressUpdates": str(2 * plan.intervals + 10),
        f"{CONF}.checkpointFormatVersion": "2",
    }
    settings = {"real_time": True} if store == OURS else {}
    # Tasks of all stages run at once: one that reads, and one for each partition of state.
    slots = 1 + plan.partitions
    spark = spark_session(store, plan.heap, scratch, conf, endpoint=endpoint, slots=slots, **settings)
    jvm: Any = spark._jvm  # noqa: SLF001  # source and sink are in the JVM
    source = spark.readStream.format("io.dynastate.benchmarks.PacedRows")
    rows = source.option("rate", plan.rate).option("keys", plan.keys).load()
    counts = rows.groupBy("key").agg(f.count("*").alias("rows"), f.max("due").alias("due"))
    writer = counts.writeStream.outputMode("update").option("checkpointLocation", str(scratch / "checkpoint"))
    latencies = jvm.io.dynastate.benchmarks.Latencies
    writer._jwrite.foreach(latencies())  # noqa: SLF001  # a writer of the JVM
    query = writer.trigger(realTime=f"{plan.seconds} seconds").start()  # type: ignore[call-overload]  # its stub is older
    last = WARM_UP + plan.intervals - 1
    deadline_s = time.monotonic() + STARTED_WITHIN_S + 2 * plan.seconds * (last + 2)
    while (query.lastProgress or {"batchId": -1})["batchId"] <= last:
        if query.exception() is not None or time.monotonic() > deadline_s:
            sys.exit(f"benchmark: the query of {store} did not reach interval {last}: {query.exception()}")
        time.sleep(0.2)
    measured = [each for each in query.recentProgress if WARM_UP <= each["batchId"] <= last]
    figures: dict[str, float] = json.loads(latencies.figures(WARM_UP, last))
    figures["commit_ms"] = statistics.median(each["stateOperators"][0]["commitTimeMs"] for each in measured)
    query.stop()
    spark.stop()
    return figures


def measure(plan: Plan, store: str, endpoint: str | None, engine: str) -> Figures:
    """One run of one store, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="dynastate-bench-") as folder, ExitStack() as stack:
        running = stack.enter_context(database(endpoint, engine)) if store == OURS else NO_DATABASE
        order = {"plan": asdict(plan), "store": store}
        figures: Figures = in_own_process(__file__, order, running, Path(folder), log=f"realtime-{plan.rate}-{store}")
    return figures


def show_figures(out: Console, plan: Plan, runs: Mapping[str, list[Figures]]) -> None:
    """One column for each store: medians of its runs."""
    table = Table()
    table.add_column("")
    for store in runs:
        table.add_column(store, justify="right")
    for key, text in SHOWN.items():
        table.add_row(text, *(f"{statistics.median(run[key] for run in each):,.2f}" for each in runs.values()))
    title = f"{plan.rate:,} rows a second, {plan.keys:,} keys, intervals of {plan.seconds} s"
    out.print(title, table, sep="\n")


def targets(by_rate: Mapping[int, Mapping[str, list[Figures]]]) -> list[Target]:
    """Medians over the pairs, of those that were measured."""
    judged = []
    for rate, runs in by_rate.items():
        if {OURS, ROCKSDB} <= set(runs):
            for key, limit in (("p99_ms", P99_AT_MOST), ("pause_ms", PAUSE_AT_MOST)):
                pairs = zip(runs[OURS], runs[ROCKSDB], strict=True)
                ratio = statistics.median(ours[key] / theirs[key] for ours, theirs in pairs)
                text = f"real-time mode, {rate:,} rows a second: {key.removesuffix('_ms')}, ours / RocksDB"
                judged.append(Target(text, ratio, limit))
    return judged


def work(order: str) -> None:
    """What the process of one run does: run the query, leave its figures in a file."""
    values = json.loads(order)
    figures = run_query(Plan(**values["plan"]), values["store"], values["endpoint"], Path(values["scratch"]))
    Path(values["answer"]).write_text(json.dumps(figures))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=numbers, default="1000,20000", help="rows a second (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each store (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=100_000, help="keys in the state (default: %(default)s)")
    parser.add_argument("--intervals", type=int, default=6, help="measured intervals (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=10, help="length of an interval (default: %(default)s)")
    parser.add_argument("--partitions", type=int, default=1, help="of the state (default: %(default)s)")
    parser.add_argument("--stores", type=names_of(STORES), default=",".join(STORES), help="(default: %(default)s)")
    parser.add_argument("--heap", default="2g", help="of Spark's JVM (default: %(default)s)")
    add_arguments(parser)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.work is not None:
        work(options.work)
        return
    build()
    out = console()
    by_rate: dict[int, dict[str, list[Figures]]] = {}
    sizes = {name: getattr(options, name) for name in ("keys", "intervals", "seconds", "partitions", "heap")}
    for rate in options.rates:
        plan = Plan(rate=rate, **sizes)
        runs: dict[str, list[Figures]] = {store: [] for store in options.stores}
        for number in range(options.pairs):
            for store in options.stores:
                with out.status(f"{rate:,} rows a second, run {number + 1}, {store}"):
                    runs[store].append(measure(plan, store, options.endpoint, options.engine))
        by_rate[rate] = runs
        show_figures(out, plan, runs)
    figures = {str(rate): runs for rate, runs in by_rate.items()}
    finish(
        out,
        "realtime",
        sizes | {"rates": options.rates, "pairs": options.pairs},
        figures,
        targets(by_rate),
        unjudged=f"No target is judged: they compare {OURS} with {ROCKSDB}.",
    )


if __name__ == "__main__":
    main()
