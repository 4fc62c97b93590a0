"""PySpark queries with a fifth of their state in memory, restarted once: ours beside RocksDB.

    python benchmarks/queries_beyond_memory.py
    python benchmarks/queries_beyond_memory.py --queries join --scale 0.1           to try it

Each query runs in a Python process and a Spark of its own, is stopped within a batch, and continues in others. Its
state is measured with all of it in memory first. Prints what a batch took, keeps it in
build/benchmarks/queries_beyond_memory.json, and exits 1 when a target is missed or an output is not that of RocksDB.
See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from database import Database, add_arguments, database, names_of
from jvm import CONF, JAR, OURS, build
from pyspark_runs import NO_DATABASE, OTHER_STORES, in_own_process, spark_session, write_batch
from rich.console import Console
from rich.table import Table
from targets import Target, console, finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import StreamingQueryProgress

UNBOUNDED = "ours-unbounded"
ROCKSDB = ("rocksdb", "rocksdb-changelog")
#: The unbounded one says how much memory a fifth of the state is.
STORES = (UNBOUNDED, OURS, *ROCKSDB)
SHARE = 0.2
#: Event time of a batch; how late rows come at most; and the watermark's delay. In minutes, which are batches.
LATE, DELAY = 6, 8
START_US = 1_700_000_000_000_000
MINUTE_US = 60_000_000
#: The parts of a run, each with a Spark of its own.
PARTS = 2
POLL_S = 0.05
#: What the table shows: key, text.
SHOWN = [
    ("batch_ms", "whole batch, median, ms"),
    ("add_batch_ms", "its computation (addBatch), ms"),
    ("update_ms", "updates, all partitions added up, ms"),
    ("removal_ms", "removals, ms"),
    ("commit_ms", "commits, ms"),
    ("disk_reads", "rows read from disk one by one"),
    ("first_batch_ms", "first batch after the restart, ms"),
    ("first_load_ms", "its loads, ours only, all stores added up, ms"),
    ("processor_s", "processor time of the whole run, but of DynamoDB, s"),
    ("state_rows", "rows of the state"),
    ("memory_mb", "memory the store says it uses, MB"),
    ("disk_mb", "local disk, MB"),
]
SCHEMA = "key string, amount long, note string, at timestamp"
OUTPUT = "key string, what string, rows long, amount long"

Figures = Mapping[str, Any]
Batch = dict[str, float]
#: `batches`, and `processor_s` of all processes until the last of them.
Part = dict[str, Any]


@dataclass(frozen=True)
class Query:
    """What is made of two streams, rows a batch of each of them, and the number of keys that they are chosen of."""

    build: Callable[[DataFrame, DataFrame], DataFrame]
    rows: int
    keys: int


@dataclass(frozen=True)
class Plan:
    """One run: the query, rows a batch, keys, batches before the measured ones, those on each side of the restart."""

    query: str
    rows: int
    keys: int
    fill: int
    batches: int
    seed: int
    heap: str

    @property
    def files(self) -> int:
        return self.fill + PARTS * self.batches


def with_watermark(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("at", f"{DELAY} minutes")


def aggregation(rows: DataFrame, _: DataFrame) -> DataFrame:
    """Windows of a minute by key: each batch changes those of the last minutes and removes the oldest."""
    from pyspark.sql import functions as f

    windows = with_watermark(rows).groupBy(f.window("at", "1 minute"), "key")
    return windows.agg(f.count("*").alias("rows"), f.sum("amount").alias("amount"), f.max("note").alias("note")).select(
        f.col("window.start").alias("start"), "key", "rows", "amount", "note"
    )


def sessions(rows: DataFrame, _: DataFrame) -> DataFrame:
    """Sessions by key that end after half a minute."""
    from pyspark.sql import functions as f

    windows = with_watermark(rows).groupBy(f.session_window("at", "30 seconds"), "key")
    return windows.agg(f.count("*").alias("rows"), f.sum("amount").alias("amount"), f.max("note").alias("note")).select(
        f.col("session_window.start").alias("start"), "key", "rows", "amount", "note"
    )


def join(rows: DataFrame, others: DataFrame) -> DataFrame:
    """Pairs of two streams with the same key, up to half a minute before and a minute after."""
    from pyspark.sql import functions as f

    right = others.select(*(f.col(name).alias(f"right_{name}") for name in ("key", "amount", "note", "at")))
    near = f.expr("key = right_key AND right_at BETWEEN at - INTERVAL 30 SECONDS AND at + INTERVAL 60 SECONDS")
    return with_watermark(rows).join(right.withWatermark("right_at", f"{DELAY} minutes"), near)


def timers_and_ttl(rows: DataFrame, _: DataFrame) -> DataFrame:
    """Totals by key, in Python.

    They live for an hour, beside a value that expires before the next batch. Of two timers for each key, one is due
    in the next batch, and one in an hour, unless the key comes again.
    """
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    hour_ms = 3_600_000

    # Workers get a nested class by value; one of a module they would have to import.
    class Totals(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "rows long, amount long, note string", hour_ms)
            self.last = handle.getValueState("last", "rows long", 1)

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
            batch = list(rows)
            count, amount, note = self.total.get() or (0, 0, "")
            count, amount = count + len(batch), amount + sum(row.amount for row in batch)
            self.total.update((count, amount, max(note, *(row.note for row in batch))))
            kind = "seen again" if self.last.exists() else "seen"
            self.last.update((len(batch),))
            for timer in list(self.handle.listTimers()):
                self.handle.deleteTimer(timer)
            now_ms = timerValues.getCurrentProcessingTimeInMs()
            self.handle.registerTimer(now_ms + 1)
            self.handle.registerTimer(now_ms + hour_ms)
            yield Row(key=key[0], what=kind, rows=count, amount=amount)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            total = self.total.get()
            yield Row(key=key[0], what="due", rows=total[0] if total else -1, amount=0)

        def close(self) -> None:
            pass

    return rows.groupBy("key").transformWithState(Totals(), OUTPUT, "append", "processingTime")


def timers_and_ttl_in_scala(rows: DataFrame, _: DataFrame) -> DataFrame:
    from pyspark.sql import DataFrame

    jvm: Any = rows.sparkSession._jvm  # noqa: SLF001  # PySpark has no other way to Scala
    frame = jvm.io.dynastate.benchmarks.Processors.timersAndTtl(rows._jdf)  # noqa: SLF001
    return DataFrame(frame, rows.sparkSession)


QUERIES = {
    "aggregation": Query(aggregation, 30_000, 20_000),
    "sessions": Query(sessions, 20_000, 100_000),
    "join": Query(join, 10_000, 50_000),
    "transform-in-scala": Query(timers_and_ttl_in_scala, 10_000, 60_000),
    "transform-in-python": Query(timers_and_ttl, 3_000, 30_000),
}


def make_input(plan: Plan, folder: Path) -> None:
    """Two sides with one parquet file a batch, of one minute; half of the rows are late."""
    for side in range(2):
        for number in range(plan.files):
            random = np.random.default_rng((plan.seed, side, number))
            keys = random.integers(0, plan.keys, plan.rows)
            late = random.integers(0, LATE * MINUTE_US, plan.rows) * random.integers(0, 2, plan.rows)
            times = START_US + number * MINUTE_US + random.integers(0, MINUTE_US, plan.rows) - late
            table = pa.table(
                {
                    "key": [f"customer-{key:09d}" for key in keys.tolist()],
                    "amount": random.integers(0, 1_000_000, plan.rows),
                    "note": [random.bytes(32).hex() for _ in range(plan.rows)],
                    "at": pa.array(times, pa.timestamp("us", tz="UTC")),
                }
            )
            write_batch(table, folder / str(side), number)


def confs(plan: Plan) -> dict[str, str]:
    """Confs of Spark beside those of its store."""
    return {
        "spark.jars": str(JAR),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": str(2 * plan.files),
        # A run is too short for the usual minute.
        f"{CONF}.maintenanceInterval": "15s",
    }


def run_part(plan: Plan, store: str, endpoint: str, memory_mb: int, part: int, scratch: Path) -> Part:
    """Run the query, and stop it within the batch after the last one of this part; its batches with rows.

    The last part ends with a batch without rows, which is what the watermark and the timers still do.
    """
    spark = spark_session(store, plan.heap, scratch, confs(plan), endpoint=endpoint, memory_mb=memory_mb)
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    sides = [reader.parquet(str(scratch / "input" / str(side))) for side in range(2)]
    writer = QUERIES[plan.query].build(sides[0], sides[1]).writeStream.format("parquet").outputMode("append")
    places = {"checkpointLocation": str(scratch / "checkpoint"), "path": str(scratch / "output")}
    # One trigger after the other: with processing time, "all that is available" has no end.
    started = writer.options(**places).start()
    # The first part ends when the batch after its last one is planned: Spark's file source would give a batch that was
    # not the files of two.
    planned = scratch / "checkpoint" / "offsets" / str(plan.fill + plan.batches)
    while not (planned.exists() if part == 0 else any(each.batchId >= plan.files for each in started.recentProgress)):
        failed = started.exception()
        if failed is not None:
            raise failed
        time.sleep(POLL_S)
    spent_s = processor_s(os.getpid())
    started.stop()
    batches = [batch_figures(batch) for batch in started.recentProgress if batch.numInputRows > 0]
    spark.stop()
    return {"batches": sorted(batches, key=lambda batch: batch["batch"]), "processor_s": spent_s}


def processor_s(process: int) -> float:
    """Processor time of a process and of those below it: the JVM, the sidecar, Python's workers."""
    parents, spent = {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = file.read_text().rpartition(")")[2].split()
            parents[int(file.parent.name)], spent[int(file.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    below = [process]
    for ancestor in below:
        below += [child for child, parent in parents.items() if parent == ancestor]
    return sum(spent.get(each, 0) for each in below) / os.sysconf("SC_CLK_TCK")


def batch_figures(progress: StreamingQueryProgress) -> Batch:
    """What one batch took, and the state after it."""
    (state,) = progress.stateOperators
    return {
        "batch": progress.batchId,
        "batch_ms": progress.durationMs["triggerExecution"],
        "add_batch_ms": progress.durationMs["addBatch"],
        "update_ms": state.allUpdatesTimeMs,
        "removal_ms": state.allRemovalsTimeMs,
        "commit_ms": state.commitTimeMs,
        "load_ms": state.customMetrics.get("dynastateLoadMs", 0),
        "disk_reads": state.customMetrics.get("dynastateDiskReads", 0),
        "state_rows": state.numRowsTotal,
        "memory_mb": state.memoryUsedBytes / 2**20,
        "disk_mb": state.customMetrics.get("dynastateDiskBytes", 0) / 2**20,
    }


def part_of(plan: Plan, store: str, running: Database, memory_mb: int, part: int, scratch: Path) -> Part:
    """One part of a run, in a fresh process."""
    work = {"plan": asdict(plan), "store": store, "memory_mb": memory_mb, "part": part}
    figures: Part = in_own_process(__file__, work, running, scratch, log=f"queries_beyond_memory-{store}")
    return figures


def measure(plan: Plan, store: str, running: Database, memory_mb: int, scratch: Path) -> tuple[Figures, pa.Table]:
    """All parts of a run: its figures, and its sorted output."""
    parts = [part_of(plan, store, running, memory_mb, part=part, scratch=scratch) for part in range(PARTS)]
    output = pq.read_table(scratch / "output")
    figures = {
        **summary(plan, parts[0]["batches"], parts[1]["batches"]),
        "processor_s": sum(part["processor_s"] for part in parts),
        "engine": running.engine,
        "limit_mb": memory_mb,
        "output_rows": len(output),
    }
    return figures, output.sort_by([(name, "ascending") for name in output.column_names])


def summary(plan: Plan, first_part: list[Batch], second_part: list[Batch]) -> Figures:
    """Medians of the measured batches without the first one after the restart, which is apart; the state at the end."""
    if first_part[-1]["batch"] < plan.fill + plan.batches - 1 or second_part[-1]["batch"] != plan.files - 1:
        sys.exit(f"benchmark: {plan.query} ended its parts with {first_part[-1]} and {second_part[-1]}")
    measured, first = [*first_part[plan.fill :], *second_part[1:]], second_part[0]
    medians = {key: statistics.median(batch[key] for batch in measured) for key in first}
    last = {key: second_part[-1][key] for key in ("state_rows", "memory_mb", "disk_mb")}
    firsts = {f"first_{key}": first[key] for key in ("batch_ms", "load_ms")}
    return {**medians, **last, **firsts, "batches": [*first_part, *second_part]}


def measure_all(plan: Plan, options: argparse.Namespace, out: Console) -> dict[str, Figures]:
    """One query on every store, one after the other, on the same files."""
    by_store: dict[str, Figures] = {}
    outputs: dict[str, pa.Table] = {}
    memory_mb = options.memory_mb
    with tempfile.TemporaryDirectory(prefix="dynastate-bench-") as folder:
        shared = Path(folder) / "input"
        make_input(plan, shared)
        for store in options.stores:
            scratch = Path(folder) / store
            scratch.mkdir()
            (scratch / "input").symlink_to(shared, target_is_directory=True)
            with out.status(f"{plan.query}: {store}"), ExitStack() as stack:
                ours = store not in OTHER_STORES
                running = stack.enter_context(database(options.endpoint, options.engine)) if ours else NO_DATABASE
                limit_mb = 0 if store == UNBOUNDED else memory_mb
                by_store[store], outputs[store] = measure(plan, store, running, limit_mb, scratch=scratch)
            if store == UNBOUNDED and not options.memory_mb:
                most = max(batch["memory_mb"] for batch in by_store[store]["batches"])
                memory_mb = max(1, int(most * SHARE))
    for store, output in outputs.items():
        if not output.equals(outputs[options.stores[-1]]):
            sys.exit(f"benchmark: {plan.query}: the output of {store} is not that of {options.stores[-1]}")
    return by_store


def targets(by_query: Mapping[str, Mapping[str, Figures]]) -> list[Target]:
    """The targets that what was measured allows to judge."""
    judged = []
    for query, stores in by_query.items():
        others = [stores[store] for store in ROCKSDB if store in stores]
        if OURS not in stores or not others:
            continue
        for key, text in (("batch_ms", "median batch"), ("first_batch_ms", "first batch of a restart")):
            ratio = stores[OURS][key] / min(other[key] for other in others)
            judged.append(Target(f"PySpark {query}, a fifth in memory, {text}: ours / the better RocksDB", ratio, 1))
    return judged


def show_figures(out: Console, plan: Plan, by_store: Mapping[str, Figures]) -> None:
    """One column for each store."""
    table = Table(f"{plan.query}, {plan.rows:,} rows a batch", *by_store)
    for column in table.columns[1:]:
        column.justify = "right"
    for key, text in SHOWN:
        table.add_row(text, *(f"{figures[key]:,.0f}" for figures in by_store.values()))
    out.print(table)
    limits = [figures["limit_mb"] for store, figures in by_store.items() if store == OURS]
    engines = {figures["engine"] for figures in by_store.values()} - {""}
    out.print(
        f"outputs are equal, {next(iter(by_store.values()))['output_rows']:,} rows",
        *(f"memoryMb={limit} on {', '.join(engines)}" for limit in limits),
        sep="; ",
    )


def work(order: str) -> None:
    """What the process of one part does: run the query, leave what it took in a file."""
    values = json.loads(order)
    rest = {name: values[name] for name in ("store", "endpoint", "memory_mb", "part")}
    figures = run_part(Plan(**values["plan"]), **rest, scratch=Path(values["scratch"]))
    Path(values["answer"]).write_text(json.dumps(figures))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, names in (("queries", QUERIES), ("stores", STORES)):
        every = ",".join(names)
        parser.add_argument(f"--{name}", type=names_of(names), default=every, help=f"any of {every} (default: all)")
    parser.add_argument("--scale", type=float, default=1, help="of rows a batch and keys (default: %(default)s)")
    parser.add_argument("--fill", type=int, default=10, help="batches before the measured ones (default: %(default)s)")
    parser.add_argument(
        "--batches", type=int, default=7, help="measured before the restart, and after (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the rows (default: %(default)s)")
    parser.add_argument("--heap", default="2g", help="of Spark's JVM (default: %(default)s)")
    add_arguments(parser)
    parser.add_argument(
        "--memory-mb", type=int, default=0, help=f"of {OURS} (default: a fifth of what {UNBOUNDED} takes)"
    )
    parser.add_argument("--no-build", action="store_true", help="take the jars as they are")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # In this order: the first one says how much memory the second one gets.
    options.stores = [store for store in STORES if store in options.stores]
    if OURS in options.stores and UNBOUNDED not in options.stores and not options.memory_mb:
        parser.error(f"{OURS} needs --memory-mb, or {UNBOUNDED}, which says how much a fifth of the state is")
    return options


def main() -> None:
    options = arguments()
    if options.work is not None:
        work(options.work)
        return
    if not options.no_build:
        build()
    out = console()
    by_query: dict[str, dict[str, Figures]] = {}
    for name in options.queries:
        query = QUERIES[name]
        rows, keys = (max(1, int(number * options.scale)) for number in (query.rows, query.keys))
        plan = Plan(name, rows, keys, options.fill, batches=options.batches, seed=options.seed, heap=options.heap)
        by_query[name] = measure_all(plan, options, out)
        show_figures(out, plan, by_query[name])
    judged = targets(by_query)
    finish(
        out,
        "queries_beyond_memory",
        vars(options),
        by_query,
        judged,
        unjudged=f"No target is judged: they compare {OURS} with RocksDB.",
    )


if __name__ == "__main__":
    main()
