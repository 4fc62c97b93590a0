"""Many stores of one executor: what their batches take, and how busy they keep a sidecar, or two.

    python benchmarks/scale.py
    python benchmarks/scale.py --stores 20,100 --turns 1                        to try it
    python benchmarks/scale.py --stores 50 --state 400000 --rows 400 --batches 20 --turns 1 --heap 4g --objects

Providers without a query around them, in as many threads as an executor has tasks. Each number of sidecars has JVMs of
its own, in turn. `--state` makes larger stores, with snapshots beside batches, and restarts them. Prints the figures,
keeps them in build/benchmarks/scale.json, and exits 1 when a target is missed.
See benchmarks/README.md for what each figure means.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from database import add_arguments, numbers
from jvm import CONF, CONTENDERS, OURS, build, objects_in_s3, prepared, run, run_with_pauses
from rich.table import Table
from targets import Target, console, finish

DEFAULT, TWO = "default", "2"
#: Rows of the state of a store, for each that changes in a batch.
ROWS_A_CHANGE = 10
#: Rows a batch of the load of a large store.
LOAD_ROWS = 20_000
#: Batches of few stores: more would tell nothing.
BATCHES_MAX = 200
SHOWN = [
    ("batch_ms", "batch, ms", 1),
    ("batch_p95_ms", "95th percentile", 1),
    ("jvm_ms", "processor time a commit: JVM, ms", 2),
    ("sidecar_ms", "sidecars, ms", 2),
    ("most_commits", "commits a second, computed", 0),
]
#: Of large stores.
SHOWN_OF_LARGE = [
    ("load_s", "load, s", 0),
    ("written_mb", "written to disk a batch, MB", 1),
    ("snapshots_s", "snapshots of all stores beside batches, s", 1),
    ("beside_batch_ms", "batch beside them, ms", 0),
    ("beside_batch_max_ms", "longest batch beside them, ms", 0),
    ("pauses_max_ms", "longest GC pause, ms", 1),
    ("pauses_p99_ms", "GC pauses, 99th percentile, ms", 1),
    ("rss_mb", "resident memory of the JVM, MB", 0),
    ("sidecar_rss_max_mb", "sidecars' peak memory, MB", 0),
    ("restart_batch_ms", "restart: first batch of all stores, ms", 0),
    ("restart_row_ms", "restart: open and first get of a store, median, ms", 0),
    ("restart_row_max_ms", "restart: open and first get of a store, longest, ms", 0),
]

#: Figures by case and by number of sidecars.
Found = dict[str, dict[str, dict[str, Any]]]


def measure(options: argparse.Namespace) -> Found:
    """Medians of some JVMs for each case and number of sidecars."""
    by_case: Found = {}
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="dynastate-bench-"))
        contender = stack.enter_context(prepared(CONTENDERS[OURS], options.endpoint, options.engine))
        if options.objects:
            contender = stack.enter_context(objects_in_s3(contender, options.engine))
        for stores, rows, threads in product(options.stores, options.rows, options.threads):
            batches = options.batches or min(max(3, options.commits // stores), BATCHES_MAX)
            workload = {"stores": stores, "threads": threads, "rows": ROWS_A_CHANGE * rows, "updates": rows}
            workload |= {"batches": batches, "warmup": batches, "seed": options.seed}
            if options.state:
                workload |= {"rows": options.state, "loadRows": LOAD_ROWS, "large": "true"}
            turns: dict[str, list[dict[str, Any]]] = {}
            for turn, sidecars in product(range(options.turns), (DEFAULT, *map(str, filter(None, options.sidecars)))):
                # As in queries of today, in which the driver names the version: then an open sends no request.
                conf = {f"{CONF}.checkpointFormatVersion": "2"}
                if sidecars != DEFAULT:
                    conf[f"{CONF}.dynastate.sidecars"] = sidecars
                kind = replace(contender, conf={**contender.conf, **conf})
                folder = Path(scratch) / f"{stores}-{rows}-{threads}-{sidecars}-{turn}"
                jvm = {"folder": folder, "heap": options.heap}
                figures = run_with_pauses("ScaleBenchmark", kind, workload, **jvm, log="scale")
                if options.state:
                    left = {name: figures.pop(name) for name in ("version", "ids")}
                    figures |= run("ScaleRestart", kind, workload | left, **jvm, log="scale.restart")
                # A sidecar uses one core at a time.
                turns.setdefault(sidecars, []).append(figures | {"most_commits": 1000 / figures["busiest_ms"]})
            case = f"{stores} stores of {rows} rows, {threads} threads"
            by_case[case] = {
                sidecars: {key: statistics.median(each[key] for each in every) for key in every[0]}
                for sidecars, every in turns.items()
            }
    return by_case


def targets(by_case: Found) -> list[Target]:
    """Of the case with most stores, when both sides were measured."""
    case, by = list(by_case.items())[-1]
    if TWO not in by:
        return []
    default, two = by[DEFAULT], by[TWO]
    return [
        Target(f"{case}, batch: two sidecars / default", two["batch_ms"] / default["batch_ms"], 1.1),
        Target(
            f"{case}, processor time of a commit: two sidecars / default",
            two["sidecar_ms"] / default["sidecar_ms"],
            1.15,
        ),
        Target(
            f"{case}, processor time: the busier of two sidecars / both", two["busiest_ms"] / two["sidecar_ms"], 0.6
        ),
    ]


def table_of_large(by_case: Found) -> Table:
    """One column for each case and number of sidecars."""
    columns = {
        f"{case}, sidecars: {sidecars}": figures for case, by in by_case.items() for sidecars, figures in by.items()
    }
    table = Table("large stores", *columns)
    for key, text, digits in SHOWN_OF_LARGE:
        table.add_row(text, *(f"{figures[key]:,.{digits}f}" for figures in columns.values()))
    return table


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", type=numbers, default="1,20,200,400", help="numbers of them (default: %(default)s)")
    parser.add_argument("--rows", type=numbers, default="20", help="that change in each a batch (default: %(default)s)")
    parser.add_argument("--threads", type=numbers, default="8", help="tasks at once (default: %(default)s)")
    parser.add_argument(
        "--sidecars", type=numbers, default=TWO, help="beside the default; 0: no other (default: %(default)s)"
    )
    parser.add_argument("--state", type=int, help="rows of each store (default: ten for each that changes)")
    parser.add_argument("--batches", type=int, help="measured in each JVM (default: as many as --commits need)")
    parser.add_argument("--objects", action="store_true", help="large parts are in an S3, which needs Go")
    parser.add_argument("--commits", type=int, default=2000, help="measured in each JVM (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="JVMs of each case (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of keys (default: %(default)s)")
    parser.add_argument("--heap", default="2g", help="of each JVM, least and most (default: %(default)s)")
    add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    build()
    out = console()
    with out.status("batches of many stores"):
        by_case = measure(options)
    table = Table("", "sidecars", *(text for _, text, _ in SHOWN))
    for column in table.columns[2:]:
        column.justify = "right"
    for case, by in by_case.items():
        for sidecars, figures in by.items():
            kind = f"{figures['processes']:.0f}" + (", by default" if sidecars == DEFAULT else "")
            table.add_row(case, kind, *(f"{figures[key]:,.{digits}f}" for key, _, digits in SHOWN))
    out.print(table)
    if options.state:
        out.print(table_of_large(by_case))
    judged = targets(by_case)
    finish(out, "scale", vars(options), by_case, judged)


if __name__ == "__main__":
    main()
