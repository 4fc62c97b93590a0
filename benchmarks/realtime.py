"""Rows through state in Spark's real-time mode, in our store beside RocksDB: how late they come, and the pauses.

    python benchmarks/realtime.py
    python benchmarks/realtime.py --distant-pairs 2
    python benchmarks/realtime.py --rates 1000 --pairs 1 --intervals 2

A count by key, of rows that come at a fixed rate. Each run has a Python process and a Spark of its own, with a query
for each rate, and the two stores take turns. With distant pairs, the first rate is run once more in a world as late as
AWS (`world.py`): our query has its checkpoint in DynamoDB, and RocksDB's in S3. Prints how long after its time a row
came out, and how long no row came between two intervals. Keeps both in build/benchmarks/realtime.json, and exits 1
when a target is missed. See benchmarks/README.md.
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from database import add_arguments, database, names_of, numbers
from jvm import CONF, JAR, OURS, build
from pyspark_runs import NO_DATABASE, in_own_process, spark_session
from rich.console import Console
from rich.table import Table
from s3a import BUCKET, FILE_MANAGER, JARS, fetch_jars, hadoop_conf
from targets import Target, console, finish
from world import world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
#: The most of RocksDB's latency at p99, and of its pause, with its checkpoint in a local folder; of its pause, in S3.
P99_AT_MOST, PAUSE_AT_MOST, DISTANT_PAUSE_AT_MOST = 1.0, 1.0, 0.5

Figures = Mapping[str, float]
#: Figures of runs by rate and store.
ByRate = Mapping[int, Mapping[str, list[Figures]]]


@dataclass(frozen=True)
class Plan:
    """Rows a second, keys, measured intervals, their length in seconds, state partitions, the heap of Spark's JVM."""

    rates: list[int]
    keys: int
    intervals: int
    seconds: int
    partitions: int
    heap: str


def conf_of(plan: Plan, store: str, s3: str) -> dict[str, str]:
    """Confs of Spark beside those of its store; `s3` is the endpoint of a world, or empty."""
    conf = {
        "spark.jars": str(JAR),
        "spark.sql.shuffle.partitions": str(plan.partitions),
        "spark.sql.streaming.realTimeMode.minBatchDuration": "1000",
        "spark.sql.streaming.numRecentProgressUpdates": str(2 * plan.intervals + 10),
        f"{CONF}.checkpointFormatVersion": "2",
    }
    if s3 and store == ROCKSDB:
        conf |= {f"spark.hadoop.{name}": value for name, value in hadoop_conf(s3).items()}
        conf |= {
            "spark.driver.extraClassPath": str(JARS),
            "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
        }
    return conf


def checkpoint_of(rate: int, store: str, s3: str, scratch: Path) -> str:
    if not s3:
        return str(scratch / f"checkpoint-{rate}")
    return f"dynastate://rate-{rate}/query" if store == OURS else f"{BUCKET}/rate-{rate}"


def run_queries(plan: Plan, store: str, endpoint: str, s3: str, scratch: Path) -> dict[str, Figures]:
    """Run a query for each rate, one after the other, in one Spark; what they show."""
    settings = {"real_time": True, "checkpoint": bool(s3)} if store == OURS else {}
    # Tasks of all stages run at once: one that reads, and one for each partition of state.
    slots, conf = 1 + plan.partitions, conf_of(plan, store, s3)
    spark = spark_session(store, plan.heap, scratch, conf, endpoint=endpoint, slots=slots, **settings)
    by_rate = {
        str(rate): run_query(spark, plan, rate, store, checkpoint_of(rate, store, s3, scratch)) for rate in plan.rates
    }
    spark.stop()
    return by_rate


def run_query(spark: SparkSession, plan: Plan, rate: int, store: str, checkpoint: str) -> Figures:
    """Run the query for its intervals; what they show."""
    from pyspark.sql import functions as f

    jvm: Any = spark._jvm  # noqa: SLF001  # source and sink are in the JVM
    latencies = jvm.io.dynastate.benchmarks.Latencies
    latencies.forget()
    source = spark.readStream.format("io.dynastate.benchmarks.PacedRows")
    rows = source.option("rate", rate).option("keys", plan.keys).load()
    counts = rows.groupBy("key").agg(f.count("*").alias("rows"), f.max("due").alias("due"))
    writer = counts.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
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
    return figures


def measure(plan: Plan, store: str, options: argparse.Namespace, *, is_distant: bool) -> dict[str, Figures]:
    """One run of one store, in a process of its own: its figures by rate."""
    with tempfile.TemporaryDirectory(prefix="dynastate-bench-") as folder, ExitStack() as stack:
        s3, running = "", NO_DATABASE
        if is_distant:
            aws = stack.enter_context(world(options.endpoint, options.engine))
            s3, running = aws.s3, aws.database
        elif store == OURS:
            running = stack.enter_context(database(options.endpoint, options.engine))
        order = {"plan": asdict(plan), "store": store, "s3": s3}
        log = f"realtime-{'distant-' if is_distant else ''}{store}"
        figures: dict[str, Figures] = in_own_process(__file__, order, running, Path(folder), log=log)
    return figures


def measure_pairs(
    plan: Plan, options: argparse.Namespace, out: Console, *, pairs: int, is_distant: bool = False
) -> dict[int, dict[str, list[Figures]]]:
    """The figures of runs by rate and store."""
    by_rate: dict[int, dict[str, list[Figures]]] = {rate: {name: [] for name in options.stores} for rate in plan.rates}
    for number in range(pairs):
        for store in options.stores:
            with out.status(f"run {number + 1}{', at a distance' if is_distant else ''}, {store}"):
                for measured, figures in measure(plan, store, options, is_distant=is_distant).items():
                    by_rate[int(measured)][store].append(figures)
    for rate, runs in by_rate.items():
        show_figures(out, plan, f"{rate:,} rows a second{', at a distance' if is_distant else ''}", runs)
    return by_rate


def show_figures(out: Console, plan: Plan, title: str, runs: Mapping[str, list[Figures]]) -> None:
    """One column for each store: medians of its runs."""
    table = Table()
    table.add_column("")
    for store in runs:
        table.add_column(store, justify="right")
    for key, text in SHOWN.items():
        table.add_row(text, *(f"{statistics.median(run[key] for run in each):,.2f}" for each in runs.values()))
    out.print(f"{title}, {plan.keys:,} keys, intervals of {plan.seconds} s", table, sep="\n")


def targets(near: ByRate, distant: ByRate | None = None) -> list[Target]:
    """Medians over the pairs, of those that were measured."""
    judged = []
    for by_rate, place, limits in (
        (near, "", {"p99_ms": P99_AT_MOST, "pause_ms": PAUSE_AT_MOST}),
        (distant or {}, " at a distance", {"pause_ms": DISTANT_PAUSE_AT_MOST}),
    ):
        for rate, runs in by_rate.items():
            if {OURS, ROCKSDB} <= set(runs):
                for key, limit in limits.items():
                    pairs = zip(runs[OURS], runs[ROCKSDB], strict=True)
                    ratio = statistics.median(ours[key] / theirs[key] for ours, theirs in pairs)
                    text = f"real-time mode{place}, {rate:,} rows a second: {key.removesuffix('_ms')}, ours / RocksDB"
                    judged.append(Target(text, ratio, limit))
    return judged


def work(order: str) -> None:
    """What the process of one run does: run the queries, leave their figures in a file."""
    values = json.loads(order)
    scratch, plan = Path(values["scratch"]), Plan(**values["plan"])
    figures = run_queries(plan, values["store"], values["endpoint"], values["s3"], scratch)
    Path(values["answer"]).write_text(json.dumps(figures))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=numbers, default="1000,20000", help="rows a second (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each store (default: %(default)s)")
    parser.add_argument("--distant-pairs", type=int, default=0, help="the same at a distance (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=100_000, help="keys in the state (default: %(default)s)")
    parser.add_argument("--intervals", type=int, default=4, help="measured intervals (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=4, help="length of an interval (default: %(default)s)")
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
    if options.distant_pairs:
        fetch_jars()
    out = console()
    asked = {name: getattr(options, name) for name in ("rates", "keys", "intervals", "seconds", "partitions", "heap")}
    plan = Plan(**asked)
    near = measure_pairs(plan, options, out, pairs=options.pairs)
    distant: dict[int, dict[str, list[Figures]]] = {}
    if options.distant_pairs:
        first = replace(plan, rates=plan.rates[:1])
        distant = measure_pairs(first, options, out, pairs=options.distant_pairs, is_distant=True)
    finish(
        out,
        "realtime",
        asked | {"pairs": options.pairs, "distant_pairs": options.distant_pairs},
        {"near": near, "distant": distant},
        targets(near, distant),
        unjudged=f"No target is judged: they compare {OURS} with {ROCKSDB}.",
    )


if __name__ == "__main__":
    main()
