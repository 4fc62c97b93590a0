"""Many stores of one executor at AWS's distances, without Spark around them: dynastate beside RocksDB with changelog.

    python benchmarks/distance_stores.py
    python benchmarks/distance_stores.py --stores 25 --rounds 1                 to try it

In a query, two cores of Spark's own work hide what state waits for. Here stores do nothing but open, read, write and
commit, in as many threads as there are task slots, in the world of `world.py`. Prints the figures, keeps them in
build/benchmarks/distance_stores.json, and exits 1 when a target is missed. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from database import add_arguments, names_of, numbers
from jvm import CONF, CONTENDERS, OURS, build, on, run
from rich.console import Console
from rich.table import Table
from s3a import BUCKET, FILE_MANAGER, JARS, fetch_jars, hadoop_conf
from targets import Target, console, finish
from world import world

ROCKSDB = "rocksdb-changelog"
STORES = (OURS, ROCKSDB)
#: The number of stores of the target, and the most of RocksDB's batch.
JUDGED, AT_MOST = 200, 0.2
#: Rows of the state of a store, for each that changes in a batch.
ROWS_A_CHANGE = 10
WARMUP = 2
SHOWN = [
    ("batch_ms", "batch, median, ms"),
    ("batch_p95_ms", "95th percentile, ms"),
    ("jvm_ms", "processor time of a commit: JVM, ms"),
    ("sidecar_ms", "sidecars, ms"),
    ("requests", "requests of a commit, loads included"),
    ("waits_ms", "their waits, ms"),
]

Figures = Mapping[str, float]


def measure(store: str, stores: int, options: argparse.Namespace, seed: int) -> Figures:
    """One JVM's figures, in a world of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="dynastate-bench-") as folder,
        world(options.endpoint, options.engine, "-seed", str(seed)) as aws,
    ):
        contender = on(CONTENDERS[OURS], aws.database) if store == OURS else CONTENDERS[store]
        conf = {
            **hadoop_conf(aws.s3),
            "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
            # As in queries of today, in which the driver names the version: then an open sends no request.
            f"{CONF}.checkpointFormatVersion": "2",
        }
        workload = {
            "checkpoint": f"{BUCKET}/{Path(folder).name}/state",
            "stores": stores,
            "threads": options.threads,
            "rows": ROWS_A_CHANGE * options.rows,
            "updates": options.rows,
            "batches": options.batches,
            "warmup": WARMUP,
            "seed": seed,
        }
        figures = run(
            "ScaleBenchmark",
            replace(contender, conf={**contender.conf, **conf}),
            workload,
            folder=Path(folder),
            heap=options.heap,
            log=f"distance_stores-{store}",
            jars=[JARS],
        )
        counts = [each for operations in aws.statistics()["services"].values() for each in operations.values()]
    commits = stores * (1 + WARMUP + options.batches)
    requests, waits_ms = (sum(each[name] for each in counts) / commits for name in ("requests", "wait_ms"))
    return {**figures, "requests": requests, "waits_ms": waits_ms}


def measure_all(options: argparse.Namespace, out: Console) -> dict[str, dict[str, Figures]]:
    """Every store in turn, once a round; medians of the rounds, by the number of stores."""
    by_case: dict[str, dict[str, Figures]] = {}
    for stores in options.stores:
        runs: dict[str, list[Figures]] = {store: [] for store in options.contenders}
        for turn in range(options.rounds):
            for store in options.contenders:
                with out.status(f"{stores} stores: {store}, round {turn + 1}"):
                    runs[store].append(measure(store, stores, options, seed=options.seed + turn))
        by_case[str(stores)] = {
            store: {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
            for store, rounds in runs.items()
        }
    return by_case


def targets(by_case: Mapping[str, Mapping[str, Figures]]) -> list[Target]:
    """The target, when both sides were measured."""
    by_store = by_case.get(str(JUDGED), {})
    if not set(STORES) <= set(by_store):
        return []
    ratio = by_store[OURS]["batch_ms"] / by_store[ROCKSDB]["batch_ms"]
    return [Target(f"{JUDGED} stores, a batch's waits of state: dynastate / RocksDB", ratio, AT_MOST)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = ",".join(STORES)
    parser.add_argument("--stores", type=numbers, default="25,200", help="numbers of them (default: %(default)s)")
    parser.add_argument("--contenders", type=names_of(STORES), default=every, help=f"any of {every} (default: all)")
    parser.add_argument("--threads", type=int, default=32, help="task slots (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=100, help="that change in each a batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=10, help="measured in each JVM (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of all contenders in turn (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of keys and latencies (default: %(default)s)")
    parser.add_argument("--heap", default="2g", help="of each JVM, least and most (default: %(default)s)")
    add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    build()
    fetch_jars()
    out = console()
    by_case = measure_all(options, out)
    table = Table("", "", *(text for _, text in SHOWN))
    for column in table.columns[2:]:
        column.justify = "right"
    for case, by_store in by_case.items():
        for store, figures in by_store.items():
            table.add_row(f"{case} stores", store, *(f"{figures[key]:,.1f}" for key, _ in SHOWN))
    out.print(table)
    finish(
        out,
        "distance_stores",
        vars(options),
        by_case,
        targets(by_case),
        unjudged=f"No target is judged: it compares {OURS} with {ROCKSDB}, of {JUDGED} stores.",
    )


if __name__ == "__main__":
    main()
