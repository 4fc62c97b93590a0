"""PySpark queries at AWS's distances: dynastate beside RocksDB with changelog, and a store that keeps nothing.

    python benchmarks/distance.py
    python benchmarks/distance.py --cells aggregation-64 --rounds 1 --batches 5             to try it

Every query has its checkpoint in S3, and its state in DynamoDB or in that S3, both of the world of `world.py`; one
has its checkpoint in DynamoDB, too. The stores take turns, each in a Python process and a Spark of its own. Prints what
a batch took, keeps it in build/benchmarks/distance.json, and exits 1 when a target is missed. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from database import add_arguments, names_of
from jvm import CONF, JAR, OURS, build
from pyspark_runs import EMPTY, NO_DATABASE, NO_FILES, in_own_process, spark_session, write_batch
from queries_beyond_memory import join, timers_and_ttl_in_scala
from rich.console import Console
from rich.table import Table
from s3a import BUCKET, FILE_MANAGER, JARS, fetch_jars, hadoop_conf
from targets import Target, console, finish, save
from traces import requests_in_sequence, requests_of_log
from world import World, world

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.format.keys import namespace_of
from dynastate.operations.cost.prediction import DAY_S, predict
from dynastate.operations.cost.scenarios import workload
from dynastate.operations.cost.usage import usage_of_namespace
from dynastate.prices import DEFAULT_PRICES
from dynastate.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROCKSDB = "rocksdb-changelog"
STORES = (OURS, ROCKSDB, EMPTY, NO_FILES)
SCHEMA = "key string, amount long, note string, at timestamp"
START_US = 1_700_000_000_000_000
MINUTE_US = 60_000_000
#: The most of RocksDB's part of a batch, by cell: of medians, and of 99th percentiles. The world's own processor time.
STATE_AT_MOST = {"aggregation-64": 0.1, "join-64": 0.15}
P99_AT_MOST = 0.2
#: The fewest batches of a store that have a 99th percentile.
P99_BATCHES = 100
WORLD_CORES_MAX = 0.05
#: The most of a batch with its checkpoint in S3, by the store of that query.
NO_FILES_AT_MOST = {OURS: 0.5, ROCKSDB: 0.32}
#: The most of RocksDB's first batch after a restart, with its checkpoint in S3.
FIRST_BATCH_AT_MOST = 0.5
#: The most of the time from the start of a query in its session to the end of its next batch.
RESTART_AT_MOST = 0.4
#: How far the price of a batch may be from that of `predict`, as a part of it.
PRICE_WITHIN = 0.15
#: The most requests that a task waits for one after the other: in the median, and in the 99th percentile.
IN_SEQUENCE_AT_MOST = {"50": 2, "99": 3}
MAINTENANCE_S = 15
FEW_ROWS = 6_400
POLL_S = 0.02
#: A store has nothing left to upload when it has sent nothing for as long.
QUIET_S = 5
QUIET_DEADLINE_S = 300
#: The requests of a batch, in the order of the table: text, service, and operations, or all.
REQUESTS: Mapping[str, tuple[str, Collection[str] | None]] = {
    "parts (BatchWriteItem)": ("dynamodb", ["BatchWriteItem"]),
    "entries, and a log in DynamoDB (UpdateItem)": ("dynamodb", ["UpdateItem"]),
    "reads of DynamoDB": ("dynamodb", ["Query", "GetItem", "BatchGetItem"]),
    "state files in S3": ("s3_state", None),
    "Spark's log in S3": ("s3", None),
}
#: Requests to S3 at the price of a PUT, and at the price of a GET. Deletes are free.
PUTS = (
    "PutObject",
    "ConditionalPutObject",
    "CopyObject",
    "ListObjects",
    "CreateMultipartUpload",
    "UploadPart",
    "UploadPartCopy",
    "CompleteMultipartUpload",
)
GETS = ("GetObject", "HeadObject")

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One query, and where it runs. `slots` are task slots, `rows` those of a batch and side.

    With `changes` it is a restart: so many rows are changed after the last snapshot, and the first batch is measured.
    Otherwise `batches` are, after the state is filled and `warmup` batches at a distance; then the query stops and
    starts `restarts` times in its session, with one batch each. `retain` is Spark's `minBatchesToRetain`, `world` are
    options of the world. `stores` are compared.
    """

    query: str = "aggregation"
    partitions: int = 64
    slots: int = 8
    keys: int = 64_000
    rows: int = FEW_ROWS
    changes: int | None = None
    batches: int = 10
    warmup: int = 2
    restarts: int = 0
    retain: int = 100
    world: tuple[str, ...] = ()
    stores: tuple[str, ...] = (OURS, ROCKSDB, EMPTY)

    @property
    def is_restart(self) -> bool:
        return self.changes is not None

    def rows_of(self, number: int) -> int:
        """Rows of a file. The batch after a restart has few: what is measured is the state that it waits for."""
        is_first = self.changes is not None and number == (self.keys + self.changes) // self.rows
        return FEW_ROWS if is_first else self.rows


#: With three rounds as many as a 99th percentile needs.
MANY = 34
LARGE = Cell(keys=1_000_000, rows=100_000)
CELLS = {
    "aggregation-64": Cell(batches=MANY),
    "aggregation-1": Cell(partitions=1),
    "aggregation-200": Cell(partitions=200),
    "join-64": Cell("join", batches=MANY),
    "transform-64": Cell("transform", batches=MANY),
    "price": Cell(batches=MANY, warmup=20, retain=10),
    "checkpoint-64": Cell(restarts=5, stores=(OURS, ROCKSDB, NO_FILES)),
    "2-slots": Cell(slots=2),
    "32-slots": Cell(slots=32),
    "restart-after-snapshot": replace(LARGE, partitions=2, changes=0, stores=STORES),
    "restart-mid-interval": replace(LARGE, partitions=2, changes=400_000, stores=STORES),
    "restart-25-stores": replace(LARGE, partitions=25, changes=0, stores=STORES),
    "new-table": replace(LARGE, world=("-new-table",)),
    "hot-partition": replace(LARGE, partitions=1, world=("-new-table", "-partitions", "1")),
}


@dataclass(frozen=True)
class Part:
    """What one process does of a query's files: those up to `last`, of which those from `first` on are measured.

    Those before `fill` have no distance; 0: the query restarts. If it `has_snapshot`, the state is in a snapshot after
    them.
    """

    fill: int
    first: int
    last: int
    has_snapshot: bool = False


def aggregation(rows: DataFrame, _: DataFrame) -> DataFrame:
    """Count, sum and maximum by key."""
    from pyspark.sql import functions as f

    return rows.groupBy("key").agg(f.count("*").alias("rows"), f.sum("amount").alias("amount"), f.max("note"))


QUERIES = {
    "aggregation": (aggregation, "update"),
    "join": (join, "append"),
    "transform": (timers_and_ttl_in_scala, "append"),
}


def parts_of(cell: Cell) -> list[Part]:
    """The processes that run a cell, one after the other. The figures of the last one are those of the cell."""
    filled = -(-cell.keys // cell.rows)
    if cell.changes is None:
        return [Part(filled, filled + cell.warmup, filled + cell.warmup + cell.batches)]
    changed = filled + cell.changes // cell.rows
    fill, change = Part(filled, filled, filled, has_snapshot=True), Part(changed, changed, changed)
    return [fill, *([change] if cell.changes else []), Part(0, changed, changed + 1)]


def make_input(cell: Cell, files: int, seed: int, folder: Path) -> None:
    """Two sides with one parquet file a batch, of one minute of event time: every key once, then random keys."""
    for side in range(2):
        random = np.random.default_rng((seed, side))
        every = random.permutation(cell.keys)
        for number in range(files):
            keys = every[number * cell.rows : (number + 1) * cell.rows]
            if len(keys) == 0:
                keys = random.integers(0, cell.keys, cell.rows_of(number))
            times = START_US + number * MINUTE_US + random.integers(0, MINUTE_US, len(keys))
            table = pa.table(
                {
                    "key": [f"customer-{key:09d}" for key in keys.tolist()],
                    "amount": random.integers(0, 1_000_000, len(keys)),
                    "note": [random.bytes(16).hex() for _ in keys],
                    "at": pa.array(times, pa.timestamp("us", tz="UTC")),
                }
            )
            write_batch(table, folder / str(side), number)


def confs(cell: Cell, part: Part, store: str, s3: str) -> dict[str, str]:
    """Confs of Spark beside those of its store: S3, slots, and snapshots where the part says so, and only there."""
    return {
        **{f"spark.hadoop.{name}": value for name, value in hadoop_conf(s3).items()},
        "spark.driver.extraClassPath": f"{JAR}{os.pathsep}{JARS}",
        **({} if store == NO_FILES else {"spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER}),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cell.partitions),
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        f"{CONF}.minDeltasForSnapshot": "1" if part.has_snapshot else "1000" if cell.is_restart else "10",
        # A run is too short for the usual minute.
        f"{CONF}.maintenanceInterval": "2s" if part.has_snapshot else f"{MAINTENANCE_S}s",
        "spark.sql.streaming.minBatchesToRetain": str(cell.retain),
    }


def run_part(cell: Cell, part: Part, store: str, *, aws: World, scratch: Path) -> Figures:
    """Run a query over the files of a part; what its measured batches took, and the world's statistics of them."""
    # Where a snapshot is wanted, dynastate makes it however few the changes are.
    settings: dict[str, Any] = {"snapshot_threshold": 0} if part.has_snapshot else {}
    if store == NO_FILES:
        settings["checkpoint"] = True
    conf = confs(cell, part, store, aws.s3)
    spark = spark_session(store, "4g", scratch, conf, endpoint=aws.database.endpoint, slots=cell.slots, **settings)
    aws.scale(0 if part.fill else 1)
    aws.reset()
    query = start(spark, cell, part.last, checkpoint_of(scratch, store), scratch)
    if part.fill:
        wait_for_batch(query, part.fill - 1)
        if part.has_snapshot:
            wait_until_quiet(aws)
        aws.scale(1)
        wait_for_batch(query, part.first - 1)
        aws.reset()
    wait_for_batch(query, part.last - 1)
    statistics, trace = aws.statistics(), aws.trace()  # before a last batch without rows
    query.stop()
    progress = [json.loads(each.json) for each in query.recentProgress]
    restarts_ms, log_requests = [], []
    for batch in range(part.last, part.last + cell.restarts):
        aws.reset()
        begin = time.monotonic()
        query = start(spark, cell, batch + 1, checkpoint_of(scratch, store), scratch)
        wait_for_batch(query, batch)
        restarts_ms.append((time.monotonic() - begin) * 1000)
        log_requests.append(requests_of_log(aws.trace(), checkpoint_of(scratch, store)))
        query.stop()
    spark.stop()
    measured = [each for each in progress if part.first <= each["batchId"] < part.last]
    batches_ms = [each["durationMs"]["triggerExecution"] for each in measured]
    figures: dict[str, Any] = {}
    if store == OURS and not cell.is_restart:
        figures = {
            "in_sequence": requests_in_sequence(trace),
            "predicted_microdollars": predicted_microdollars(cell, aws, scratch, sum(batches_ms) / len(batches_ms)),
        }
    return {
        **figures,
        "batches_ms": batches_ms,
        "restarts_ms": restarts_ms,
        "restart_log_requests": log_requests,
        "add_batch_ms": [each["durationMs"]["addBatch"] for each in measured],
        "state_rows": sum(each["numRowsTotal"] for each in (measured or progress)[-1]["stateOperators"]),
        "services": statistics["services"],
        "world_cores": statistics["processor_seconds"] / statistics["seconds"],
    }


def predicted_microdollars(cell: Cell, aws: World, scratch: Path, batch_ms: float) -> float:
    """What `predict` says of a batch in the long run, with the workload that the stores list."""
    tables = BotoTables(Settings(endpoint=aws.database.endpoint, region="us-east-1"))
    aws.scale(0)
    usage = usage_of_namespace(tables, namespace_of(f"{checkpoint_of(scratch, OURS)}/state"))
    batches_a_day = DAY_S * 1000 / batch_ms
    operators = [
        replace(
            workload(
                each,
                batch_ms / 1000,
                snapshot_threshold=float(Settings().snapshot_threshold),
                retain=cell.retain,
                objects_threshold_kb=None,
            ),
            maintenance_s=MAINTENANCE_S,
        )
        for each in usage.values()
    ]
    return sum(predict(each).day.dollars(DEFAULT_PRICES) for each in operators) * 1e6 / batches_a_day


def checkpoint_of(scratch: Path, store: str) -> str:
    return f"dynastate://{scratch.parent.name}/query" if store == NO_FILES else f"{BUCKET}/{scratch.parent.name}"


def start(spark: SparkSession, cell: Cell, files: int, checkpoint: str, scratch: Path) -> StreamingQuery:
    """Start the query on so many of its files."""
    sides = []
    for side in range(2):
        folder = scratch.parent / "released" / str(side)  # the same for all parts of a query
        folder.mkdir(parents=True, exist_ok=True)
        for file in sorted((scratch / "input" / str(side)).iterdir())[:files]:
            if not (folder / file.name).exists():
                (folder / file.name).symlink_to(file.resolve())
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        sides.append(reader.parquet(str(folder)))
    build_query, mode = QUERIES[cell.query]
    writer = build_query(sides[0], sides[1]).writeStream.format("noop").outputMode(mode)
    return writer.option("checkpointLocation", checkpoint).start()


def wait_for_batch(query: StreamingQuery, number: int) -> None:
    """Wait until a batch is done. Raise what the query failed with."""
    while number >= 0 and (query.lastProgress is None or query.lastProgress.batchId < number):
        failure = query.exception()
        if failure is not None:
            raise failure
        time.sleep(POLL_S)


def wait_until_quiet(aws: World) -> None:
    """Wait until all snapshots are written: no state has been sent for some seconds."""
    deadline = time.monotonic() + QUIET_DEADLINE_S
    sent_bytes, quiet_from = -1, 0.0
    while time.monotonic() - quiet_from < QUIET_S:
        services = aws.statistics()["services"]
        all_bytes = sum(counts["bytes_up"] for name in ("dynamodb", "s3_state") for counts in services[name].values())
        if all_bytes != sent_bytes:
            sent_bytes, quiet_from = all_bytes, time.monotonic()
        if time.monotonic() > deadline:
            sys.exit(f"benchmark: state is still being written {QUIET_DEADLINE_S} s after the last batch")
        time.sleep(0.5)


def measure(cell: Cell, store: str, options: argparse.Namespace, seed: int, files: Path, log: str) -> Figures:
    """One store's run of a cell, in a world of its own; the figures of its last part."""
    with (
        tempfile.TemporaryDirectory(prefix="dynastate-bench-") as folder,
        world(options.endpoint, options.engine, "-trace", "-seed", str(seed), *cell.world) as aws,
    ):
        figures: Figures = {}
        for number, part in enumerate(parts_of(cell)):
            scratch = Path(folder) / str(number)
            scratch.mkdir()
            (scratch / "input").symlink_to(files, target_is_directory=True)
            work = {"cell": asdict(cell), "part": asdict(part), "store": store, "s3": aws.s3, "control": aws.control}
            figures = in_own_process(__file__, work, aws.database, scratch, log=log)
    return {**figures, "engine": aws.database.engine}


def measure_cell(cell: Cell, options: argparse.Namespace, name: str, out: Console) -> dict[str, Figures]:
    """Every store in turn, once a round; the batches of all rounds together."""
    # Spark runs transformWithState on stores of a list only, and the store that keeps nothing is not on it.
    stores = [
        store for store in cell.stores if store in options.stores and (store != EMPTY or cell.query != "transform")
    ]
    runs: dict[str, list[Figures]] = {store: [] for store in stores}
    with tempfile.TemporaryDirectory(prefix="dynastate-bench-") as folder:
        make_input(cell, parts_of(cell)[-1].last + cell.restarts, options.seed, Path(folder))
        for turn in range(options.rounds):
            for store in stores:
                with out.status(f"{name}: {store}, round {turn + 1}"):
                    log = f"distance-{name}-{store}"
                    runs[store].append(
                        measure(cell, store, options, seed=options.seed + turn, files=Path(folder), log=log)
                    )
    by_store = {store: summary(rounds) for store, rounds in runs.items()}
    state_rows = {store: figures["state_rows"] for store, figures in by_store.items() if store != EMPTY}
    if len(set(state_rows.values())) > 1:
        sys.exit(f"benchmark: the stores of {name} do not have the same rows: {state_rows}")
    return by_store


def summary(rounds: list[Figures]) -> Figures:
    """Figures of all rounds of one store together, and by batch."""
    batches_ms = [ms for each in rounds for ms in each["batches_ms"]]
    restarts_ms, log_requests = (
        [value for each in rounds for value in each[name]] for name in ("restarts_ms", "restart_log_requests")
    )
    medians = [float(np.median(each["batches_ms"])) for each in rounds]

    def total(name: str, service: str, operations: Collection[str] | None = None) -> float:
        sums = (
            counts[name]
            for each in rounds
            for operation, counts in each["services"].get(service, {}).items()
            if operations is None or operation in operations
        )
        return float(sum(sums))

    in_sequence = [count for each in rounds for count in each.get("in_sequence", [])]
    predicted = [each["predicted_microdollars"] for each in rounds if "predicted_microdollars" in each]
    units = (round(total(f"units_{kind}", "dynamodb")) for kind in ("written", "read"))
    files = (int(total("requests", "s3_state", operations)) for operations in (PUTS, GETS))
    return {
        "batch_ms": float(np.median(batches_ms)),
        "batch_ms_range": [min(medians), max(medians)],
        "batch_p99_ms": float(np.percentile(batches_ms, 99)),
        "add_batch_ms": float(np.median([ms for each in rounds for ms in each["add_batch_ms"]])),
        "microdollars": DEFAULT_PRICES.nanodollars(*units, *files) / 1000 / len(batches_ms),
        "in_sequence": {
            each: float(np.percentile(in_sequence, int(each))) for each in IN_SEQUENCE_AT_MOST if in_sequence
        },
        "predicted_microdollars": float(np.mean(predicted)) if predicted else None,
        "restart_ms": float(np.median(restarts_ms)) if restarts_ms else None,
        "restart_log_requests": float(np.median(log_requests)) if log_requests else None,
        "batches": len(batches_ms),
        "slowest_ms": max(batches_ms),
        "throttled": total("throttled_items", "dynamodb") / len(batches_ms),
        "late_ms": total("late_ms", "dynamodb") / len(batches_ms),
        "requests": {text: total("requests", *place) / len(batches_ms) for text, place in REQUESTS.items()},
        "waits_ms": {text: total("wait_ms", *place) / len(batches_ms) for text, place in REQUESTS.items()},
        "world_cores": max(each["world_cores"] for each in rounds),
        "state_rows": rounds[-1]["state_rows"],
        "rounds": rounds,
    }


def part_of_state(by_store: Mapping[str, Figures], store: str, figure: str) -> float:
    """What a batch takes more than with a store that keeps nothing, ms."""
    return float(by_store[store][figure] - by_store[EMPTY][figure])


def targets(by_cell: Mapping[str, Mapping[str, Figures]]) -> list[Target]:
    """The targets that what was measured allows to judge."""
    judged = []
    for name, by_store in by_cell.items():
        judged += targets_of_rocksdb(name, by_store)
        judged += targets_without_files(name, by_store)
        if name in STATE_AT_MOST:
            judged += targets_in_sequence(name, by_store)
    price = by_cell.get("price", {}).get(OURS)
    if price is not None:
        distance = abs(price["microdollars"] / price["predicted_microdollars"] - 1)
        judged.append(Target("price of a batch: its distance from `predict`, as a part of it", distance, PRICE_WITHIN))
    cores = [each["world_cores"] for each in by_cell.get("aggregation-64", {}).values()]
    if cores:
        judged.append(Target("aggregation-64: cores that the world itself takes", max(cores), WORLD_CORES_MAX))
    return judged


def targets_of_rocksdb(name: str, by_store: Mapping[str, Figures]) -> list[Target]:
    """Those of one cell that compare dynastate with RocksDB."""
    if ROCKSDB not in by_store:
        return []
    if CELLS[name].is_restart:
        return [
            Target(f"{name}, first batch: {text} / RocksDB", ratio, FIRST_BATCH_AT_MOST)
            for store, text in ((OURS, "dynastate"), (NO_FILES, "dynastate, checkpoint in DynamoDB"))
            if store in by_store
            for ratio in [by_store[store]["batch_ms"] / by_store[ROCKSDB]["batch_ms"]]
        ]
    if not {OURS, EMPTY} <= set(by_store) or name not in STATE_AT_MOST:
        return []
    judged = []
    fewest = min(figures["batches"] for figures in by_store.values())
    for figure, text, limit in (
        ("batch_ms", "median", STATE_AT_MOST[name]),
        ("batch_p99_ms", "99th percentile", P99_AT_MOST),
    ):
        ours, rocksdb = (part_of_state(by_store, store, figure) for store in (OURS, ROCKSDB))
        ratio = ours / rocksdb if rocksdb > 0 else math.inf
        if figure == "batch_p99_ms" and fewest < P99_BATCHES:
            ratio = math.nan
        judged.append(Target(f"{name}, state's part of a batch, {text}: dynastate / RocksDB", ratio, limit))
    return judged


def targets_without_files(name: str, by_store: Mapping[str, Figures]) -> list[Target]:
    """Those of one cell that compare a checkpoint in DynamoDB with others in S3."""
    if NO_FILES not in by_store or CELLS[name].is_restart:
        return []
    batch_ms, restart_ms = (by_store[NO_FILES][figure] for figure in ("batch_ms", "restart_ms"))
    judged = [
        Target(f"{name}, batch: checkpoint in DynamoDB / {store}, in S3", batch_ms / by_store[store]["batch_ms"], limit)
        for store, limit in NO_FILES_AT_MOST.items()
        if store in by_store
    ]
    if OURS in by_store:
        ratio = restart_ms / by_store[OURS]["restart_ms"]
        judged.append(
            Target(f"{name}, restart in a session: checkpoint in DynamoDB / {OURS}, in S3", ratio, RESTART_AT_MOST)
        )
    return judged


def targets_in_sequence(name: str, by_store: Mapping[str, Figures]) -> list[Target]:
    counts = by_store[OURS]["in_sequence"] if OURS in by_store else {}
    return [
        Target(
            f"{name}, requests of a task in sequence, percentile {percentile}", count, IN_SEQUENCE_AT_MOST[percentile]
        )
        for percentile, count in counts.items()
    ]


def show_figures(out: Console, name: str, cell: Cell, by_store: Mapping[str, Figures]) -> None:
    """One column for each store."""
    table = Table(f"{name}: {cell.keys:,} keys, {cell.rows:,} rows a batch", *by_store)
    for column in table.columns[1:]:
        column.justify = "right"

    def row(text: str, figure: Callable[[Figures], str]) -> None:
        table.add_row(text, *(figure(figures) for figures in by_store.values()))

    row("batch, median, ms", lambda figures: f"{figures['batch_ms']:,.0f}")
    row("medians of the rounds, ms", lambda figures: "-".join(f"{ms:,.0f}" for ms in figures["batch_ms_range"]))
    row("its computation (addBatch), median, ms", lambda figures: f"{figures['add_batch_ms']:,.0f}")
    row("slowest batch, ms", lambda figures: f"{figures['slowest_ms']:,.0f}")
    if cell.restarts:
        row("restart in the session, to the end of a batch, ms", lambda figures: f"{figures['restart_ms']:,.0f}")
        row("its requests to a log in DynamoDB", lambda figures: f"{figures['restart_log_requests']:,.0f}")
    if EMPTY in by_store:
        table.add_row(
            "state's part of a batch, ms", *(f"{part_of_state(by_store, each, 'batch_ms'):,.0f}" for each in by_store)
        )
    row("state's requests of a batch, millionths of a dollar", lambda figures: f"{figures['microdollars']:,.0f}")
    ours = by_store.get(OURS)
    if ours and ours["in_sequence"]:
        in_sequence = ", ".join(f"{count:g}" for count in ours["in_sequence"].values())
        out.print(
            f"dynastate: predicted are {ours['predicted_microdollars']:,.0f} millionths of a dollar a batch; requests "
            f"of a task in sequence, median and 99th percentile: {in_sequence}"
        )
    row("what the engine took longer than AWS, ms", lambda figures: f"{figures['late_ms']:,.0f}")
    row("throttled items of a batch", lambda figures: f"{figures['throttled']:,.0f}")
    for text in REQUESTS:
        row(f"{text}: requests, and their waits, ms", partial(counts_of, text=text))
    out.print(table)


def counts_of(figures: Figures, *, text: str) -> str:
    """Requests of one kind in a batch, and all their waits, which overlap."""
    count, waits_ms = figures["requests"][text], figures["waits_ms"][text]
    return f"{count:,.1f}  {waits_ms:,.0f}" if count else ""


def work(order: str) -> None:
    """What the process of one part does: run the query, leave its figures in a file."""
    values = json.loads(order)
    cell, part = Cell(**values["cell"]), Part(**values["part"])
    aws = World(replace(NO_DATABASE, endpoint=values["endpoint"]), values["s3"], values["control"])
    figures = run_part(cell, part, values["store"], aws=aws, scratch=Path(values["scratch"]))
    Path(values["answer"]).write_text(json.dumps(figures))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, names in (("cells", CELLS), ("stores", STORES)):
        every = ",".join(names)
        parser.add_argument(f"--{name}", type=names_of(names), default=every, help=f"any of {every} (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="of all stores in turn (default: %(default)s)")
    parser.add_argument("--batches", type=int, help="measured in each round (default: those of the cell)")
    parser.add_argument("--seed", type=int, default=1, help="of rows and latencies (default: %(default)s)")
    parser.add_argument("--no-build", action="store_true", help="take the jars as they are")
    add_arguments(parser)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.work is not None:
        work(options.work)
        return
    if not options.no_build:
        build()
    fetch_jars()
    out = console()
    asked = {name: getattr(options, name) for name in ("rounds", "batches", "seed")}
    by_cell: dict[str, dict[str, Figures]] = {}
    for name in options.cells:
        cell = replace(CELLS[name], batches=options.batches or CELLS[name].batches)
        by_cell[name] = measure_cell(cell, options, name, out)
        show_figures(out, name, cell, by_cell[name])
        save("distance", asked, by_cell, targets(by_cell))  # a later cell may fail
    finish(
        out,
        "distance",
        asked,
        by_cell,
        targets(by_cell),
        unjudged=f"No target is judged: they compare {OURS} with {ROCKSDB} and {EMPTY}.",
    )


if __name__ == "__main__":
    main()
