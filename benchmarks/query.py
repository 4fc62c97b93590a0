"""A whole PySpark streaming aggregation with few and with many partitions, in our store beside those of Spark.

    python benchmarks/query.py
    python benchmarks/query.py --keys 100000 --rows 20000 --partitions 2 --stores rocksdb-changelog

Each store has a Python process and a Spark of its own. Prints what a batch took, keeps it in
build/benchmarks/query.json, and exits 1 when a target is missed. See benchmarks/README.md for what each figure means.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from database import Database, add_arguments, database, numbers
from jvm import OURS, build
from pyspark_runs import (
    EMPTY,
    NO_DATABASE,
    NO_FILES,
    OTHER_STORES,
    PARTITIONS,
    in_own_process,
    spark_session,
    write_batch,
)
from rich.console import Console
from rich.table import Table
from targets import Target, console, finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

#: dynastate, whose checkpoint is in a local folder, or in DynamoDB.
OF_OURS = (OURS, NO_FILES)
#: The stores that ours is compared with: the faster of them counts.
BASELINES = ("hdfs", "rocksdb-changelog")
#: The most of the faster one's batch, by partitions: many are the limit of a sidecar.
AT_MOST = {PARTITIONS: 0.4, 200: 0.32}
#: The most of a commit of one partition, in ms, where there are many.
COMMIT_MS_MAX = 2.5
#: The most that a batch takes longer with its checkpoint in DynamoDB than in a local folder, in ms.
NO_FILES_MS_MAX = 15
#: What the table shows of each measured batch: key, text.
SHOWN = [
    ("trigger_ms", "whole batch (triggerExecution), ms"),
    ("add_batch_ms", "its computation (addBatch), ms"),
    ("commit_ms", "commit, all partitions added up, ms"),
    ("partition_commit_ms", "commit of one partition, ms"),
]

Figures = Mapping[str, Any]
#: Of each store, by the number of partitions.
Found = Mapping[int, Mapping[str, Figures]]


@dataclass(frozen=True)
class Plan:
    """Keys of state, rows a batch, measured batches, the seed of their keys, the heap of Spark's JVM, partitions."""

    keys: int
    rows: int
    batches: int
    seed: int
    heap: str
    partitions: int

    @property
    def fill_batches(self) -> int:
        return -(-self.keys // self.rows)


def make_input(plan: Plan, folder: Path) -> None:
    """One parquet file a batch: first every key once, in random order, then random keys."""
    folder.mkdir()
    random = np.random.default_rng(plan.seed)
    every = random.permutation(plan.keys)
    fill = [every[start : start + plan.rows] for start in range(0, plan.keys, plan.rows)]
    measured = [random.integers(0, plan.keys, plan.rows) for _ in range(plan.batches)]
    for number, keys in enumerate([*fill, *measured]):
        names = pa.array([f"customer-{key:09d}" for key in keys.tolist()])
        table = pa.table({"customer": names, "amount": random.random(len(keys))})
        write_batch(table, folder, number)


def aggregation(spark: SparkSession, folder: Path) -> DataFrame:
    """Count, sum and maximum by customer, one file a batch."""
    from pyspark.sql import functions as f

    rows = spark.readStream.schema("customer string, amount double").option("maxFilesPerTrigger", 1)
    amounts = rows.parquet(str(folder)).groupBy("customer")
    return amounts.agg(f.count("*").alias("orders"), f.sum("amount").alias("total"), f.max("amount").alias("largest"))


def run_query(plan: Plan, store: str, endpoint: str, scratch: Path) -> list[dict[str, float]]:
    """Run the query to the end of its files; what each batch took, in the order of batches."""
    # All batches are in the progress that is kept.
    recent = {"spark.sql.streaming.numRecentProgressUpdates": str(plan.fill_batches + plan.batches + 10)}
    partitions = {"spark.sql.shuffle.partitions": str(plan.partitions)}
    no_files, settings = f"dynastate://{scratch.parent.name}/query", {"checkpoint": True}
    checkpoint, extra = (no_files, settings) if store == NO_FILES else (str(scratch / "checkpoint"), {})
    spark = spark_session(store, plan.heap, scratch, recent | partitions, endpoint=endpoint, **extra)
    writer = aggregation(spark, scratch / "input").writeStream.outputMode("update").format("noop")
    started = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    started.awaitTermination()
    progress = [batch_figures(batch) for batch in started.recentProgress if batch.numInputRows > 0]
    spark.stop()
    return sorted(progress, key=lambda batch: batch["batch"])


def batch_figures(progress: StreamingQueryProgress) -> dict[str, float]:
    """The durations of one batch, ms, and the state after it."""
    (state,) = progress.stateOperators
    return {
        "batch": progress.batchId,
        "trigger_ms": progress.durationMs["triggerExecution"],
        "add_batch_ms": progress.durationMs["addBatch"],
        "commit_ms": state.commitTimeMs,
        "partition_commit_ms": state.commitTimeMs / state.numShufflePartitions,
        "state_rows": state.numRowsTotal,
        "state_bytes": state.memoryUsedBytes,
    }


def measure(plan: Plan, store: str, running: Database, scratch: Path) -> Figures:
    """The figures of one store's query."""
    batches = in_own_process(
        __file__, {"plan": asdict(plan), "store": store}, running, scratch, log=f"query-{plan.partitions}-{store}"
    )
    return summary(plan, store, batches)


def summary(plan: Plan, store: str, batches: list[dict[str, float]]) -> Figures:
    """Medians of the measured batches, once it is sure that all batches ran and all keys are there."""
    expected = plan.fill_batches + plan.batches
    if len(batches) != expected or (store != EMPTY and batches[-1]["state_rows"] != plan.keys):
        text = f"{len(batches)} batches and {batches[-1]['state_rows'] if batches else 0} keys"
        sys.exit(f"benchmark: {store} ended with {text}, expected {expected} and {plan.keys}")
    measured = batches[plan.fill_batches :]
    medians = {key: statistics.median(batch[key] for batch in measured) for key, _ in SHOWN}
    return {**medians, "state_mb": batches[-1]["state_bytes"] / 2**20, "batches": batches}


def measure_all(plan: Plan, stores: list[str], endpoint: str | None, engine: str, out: Console) -> dict[str, Figures]:
    """Every store asked for, one after the other, on the same files."""
    by_store: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory(prefix="dynastate-bench-") as folder:
        shared = Path(folder) / "input"
        make_input(plan, shared)
        for store in stores:
            scratch = Path(folder) / store
            scratch.mkdir()
            (scratch / "input").symlink_to(shared, target_is_directory=True)
            with out.status(f"{store}, {plan.partitions} partitions"), ExitStack() as stack:
                running = stack.enter_context(database(endpoint, engine)) if store in OF_OURS else NO_DATABASE
                by_store[store] = {**measure(plan, store, running, scratch), "engine": running.engine}
    return by_store


def targets(by_partitions: Found) -> list[Target]:
    """Those of which all sides were measured."""
    judged: list[Target] = []
    for partitions, by in by_partitions.items():
        if {OURS, *BASELINES} <= set(by) and partitions in AT_MOST:
            ratio = by[OURS]["trigger_ms"] / min(by[each]["trigger_ms"] for each in BASELINES)
            text = f"query, {partitions} partitions, median batch: ours / the better of Spark's two"
            judged.append(Target(text, ratio, AT_MOST[partitions]))
        if OURS in by and partitions > PARTITIONS:
            text = f"query, {partitions} partitions: commit of one, ms"
            judged.append(Target(text, by[OURS]["partition_commit_ms"], COMMIT_MS_MAX))
        if set(OF_OURS) <= set(by) and partitions == PARTITIONS:
            text = f"query, {partitions} partitions, median batch: checkpoint in DynamoDB, longer than in a folder, ms"
            judged.append(Target(text, by[NO_FILES]["trigger_ms"] - by[OURS]["trigger_ms"], NO_FILES_MS_MAX))
    return judged


def show_figures(out: Console, plan: Plan, by_store: Mapping[str, Figures]) -> None:
    """One column for each store."""
    title = (
        f"{plan.keys:,} keys, {plan.rows:,} rows a batch, {plan.partitions} partitions, "
        f"medians of {plan.batches} batches"
    )
    table = Table()
    table.add_column("")
    for name in by_store:
        table.add_column(name, justify="right")
    for key, text in [*SHOWN, ("state_mb", "memory the store says it uses, MB")]:
        table.add_row(text, *(f"{figures[key]:,.{1 if figures[key] < 100 else 0}f}" for figures in by_store.values()))
    out.print(title, table, sep="\n")
    if OURS in by_store:
        out.print(f"{OURS}: on {by_store[OURS]['engine']}")


def work(order: str) -> None:
    """What the process of one store does: run the query, leave its batches in a file."""
    values = json.loads(order)
    batches = run_query(Plan(**values["plan"]), values["store"], values["endpoint"], Path(values["scratch"]))
    Path(values["answer"]).write_text(json.dumps(batches))


def arguments() -> argparse.Namespace:
    names = [*OF_OURS, *OTHER_STORES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=500_000, help="keys in the state (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=50_000, help="rows a batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=20, help="measured batches (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the keys and amounts (default: %(default)s)")
    parser.add_argument("--partitions", type=numbers, default="2,200", help="numbers of them (default: %(default)s)")
    parser.add_argument(
        "--stores",
        default=",".join([*OF_OURS, *BASELINES, EMPTY]),
        help=f"any of {','.join(names)} (default: %(default)s)",
    )
    parser.add_argument("--heap", default="4g", help="of Spark's JVM (default: %(default)s)")
    add_arguments(parser)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.stores.split(",")) - set(names)
    if unknown:
        parser.error(f"unknown stores: {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    return options


def main() -> None:
    options = arguments()
    if options.work is not None:
        work(options.work)
        return
    build()
    out = console()
    by_partitions: dict[int, dict[str, Figures]] = {}
    for partitions in options.partitions:
        plan = Plan(
            **{name: getattr(options, name) for name in ("keys", "rows", "batches", "seed", "heap")},
            partitions=partitions,
        )
        by_partitions[partitions] = measure_all(
            plan, options.stores.split(","), options.endpoint, engine=options.engine, out=out
        )
        show_figures(out, plan, by_partitions[partitions])
    judged = targets(by_partitions)
    size = asdict(plan) | {"partitions": options.partitions}
    finish(
        out,
        "query",
        size,
        {str(partitions): by for partitions, by in by_partitions.items()},
        judged,
        unjudged=f"No target is judged: they compare {OURS} with {' and '.join(BASELINES)}.",
    )


if __name__ == "__main__":
    main()
