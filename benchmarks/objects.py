"""A query's batches and its recovery with objects in S3, beside those without, on the same engine.

    python benchmarks/objects.py
    python benchmarks/objects.py --rows 50000         to try it

Tables and S3 are moto's. A store is filled, changed in batches, and opened in fresh processes. All of it is in
DynamoDB, or its large parts are in S3, also with 40 ms added to each PUT, which is about what S3 takes. Exits 1 when a
target is missed. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from database import MOTO, add_arguments
from jvm import CONF, CONTENDERS, OURS, Contender, build, prepared, run
from rich.console import Console
from rich.table import Table
from s3 import BUCKET, s3
from targets import Target, console, finish

PUT_MS = 40
WITHOUT, WITH, SLOW = "in DynamoDB", "objects in S3", f"objects in S3, {PUT_MS} ms a PUT"
#: Milliseconds added to each PUT, or None without S3.
DELAYS: dict[str, float | None] = {WITHOUT: None, WITH: 0, SLOW: PUT_MS}
SHOWN = [
    ("batch_ms", "whole batch, ms", 1),
    ("batch_p95_ms", "whole batch, 95th percentile, ms", 1),
    ("snapshot_ms", "snapshot, ms", 0),
    ("first_get_ms", "cold open to the first get, ms", 0),
    ("every_row_ms", "cold open to every row read, ms", 0),
]
Found = Mapping[str, Mapping[str, Any]]


def measure(contender: Contender, options: argparse.Namespace, folder: Path, log: str) -> dict[str, Any]:
    """Fill and change a store in one process, and open it in as many others as there are turns; medians."""
    contender = replace(contender, conf={**contender.conf, f"{CONF}.minDeltasForSnapshot": "1"})
    workload = {name: getattr(options, name) for name in ("rows", "updates", "batches", "warmup", "seed")}
    filled = run("RecoveryBenchmark", contender, workload, folder=folder, heap=options.heap, log=log)
    workload |= {"version": filled["version"], "counts": filled["counts"]}
    turns = [
        run("ColdOpenBenchmark", contender, workload, folder=folder, heap=options.heap, log=f"{log}.open")
        for _ in range(options.turns)
    ]
    opened = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
    return filled | opened | {"turns": turns, "engine": contender.engine}


def measure_all(options: argparse.Namespace, out: Console) -> dict[str, dict[str, Any]]:
    by_name: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="dynastate-bench-") as scratch:
        for number, (name, delay_ms) in enumerate(DELAYS.items()):
            with ExitStack() as stack:
                stack.enter_context(out.status(name))
                contender = stack.enter_context(prepared(CONTENDERS[OURS], options.endpoint, options.engine))
                if delay_ms is not None:
                    objects = {"objects": f"s3://{BUCKET}/state", "objectsEndpoint": stack.enter_context(s3(delay_ms))}
                    conf = {f"{CONF}.dynastate.{setting}": value for setting, value in objects.items()}
                    contender = replace(contender, conf={**contender.conf, **conf})
                by_name[name] = measure(contender, options, Path(scratch) / str(number), f"objects-{number}")
    return by_name


def targets(by_name: Found) -> list[Target]:
    """What was measured, judged."""
    without, objects, slow = (by_name[name] for name in DELAYS)
    return [
        Target("whole batch: objects in S3 / in DynamoDB", objects["batch_ms"] / without["batch_ms"], 1.1),
        Target(
            f"whole batch with {PUT_MS} ms a PUT, more than in DynamoDB, ms", slow["batch_ms"] - without["batch_ms"], 60
        ),
        Target(
            "every row after a restart: objects in S3 / in DynamoDB",
            objects["every_row_ms"] / without["every_row_ms"],
            1,
        ),
    ]


def show_figures(out: Console, options: argparse.Namespace, by_name: Found) -> None:
    """One column for each way."""
    table = Table(f"{options.rows:,} rows, {options.updates:,} updates a batch", *by_name)
    for column in table.columns[1:]:
        column.justify = "right"
    for key, text, digits in SHOWN:
        table.add_row(text, *(f"{figures[key]:,.{digits}f}" for figures in by_name.values()))
    out.print(table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="keys in the state (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=20_000, help="keys got and put a batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=15, help="measured batches (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=15, help="batches before them (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="cold opens (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of keys (default: %(default)s)")
    parser.add_argument("--heap", default="4g", help="of each JVM, least and most (default: %(default)s)")
    add_arguments(parser)
    parser.set_defaults(engine=MOTO)  # both from one engine: of two, the faster one would win
    parser.add_argument("--no-build", action="store_true", help="take the jars as they are")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if not options.no_build:
        build()
    out = console()
    by_name = measure_all(options, out)
    show_figures(out, options, by_name)
    judged = targets(by_name)
    finish(out, "objects", vars(options), by_name, judged)


if __name__ == "__main__":
    main()
