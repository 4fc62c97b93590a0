"""Commits beside a snapshot: what a snapshot in the background does to the batches of the same store.

    python benchmarks/background.py
    python benchmarks/background.py --rows 100000            to try it

Batches one after the other on 1,000,000 rows, first alone, then for as long as a snapshot of all rows takes, with the
engine and DynamoDB on the same cores. Prints the figures, keeps them in build/benchmarks/background.json, and exits 1
when a target is missed. See benchmarks/README.md for what each figure means.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from database import add_arguments
from jvm import CONTENDERS, OURS, Figures, build, prepared, run
from rich.table import Table
from targets import Target, console, finish

SHOWN = [
    ("batches", "batches", 0),
    ("commit_ms", "commit, ms", 1),
    ("commit_p95_ms", "commit, 95th percentile, ms", 1),
    ("batch_ms", "whole batch, ms", 1),
    ("batch_p95_ms", "whole batch, 95th percentile, ms", 1),
    ("batch_max_ms", "whole batch, longest, ms", 1),
]


def targets(figures: Figures) -> list[Target]:
    return [
        Target(
            "commit, 95th percentile: beside a snapshot / alone",
            figures["beside_commit_p95_ms"] / figures["alone_commit_p95_ms"],
            2,
        ),
        # Whoever waited for the snapshot would take as long as it does.
        Target(
            "longest batch beside the snapshot / the snapshot",
            figures["beside_batch_max_ms"] / figures["snapshot_ms"],
            0.5,
        ),
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="keys in the state (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=1000, help="keys got and put a batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=400, help="measured batches alone (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=100, help="batches before them (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of keys (default: %(default)s)")
    parser.add_argument("--heap", default="4g", help="of the JVM, least and most (default: %(default)s)")
    add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    build()
    out = console()
    workload = {name: getattr(options, name) for name in ("rows", "updates", "batches", "warmup", "seed")}
    with (
        tempfile.TemporaryDirectory(prefix="dynastate-bench-") as scratch,
        out.status(f"{options.rows:,} rows"),
        prepared(CONTENDERS[OURS], options.endpoint, options.engine) as contender,
    ):
        figures = run(
            "SnapshotBenchmark", contender, workload, folder=Path(scratch), heap=options.heap, log="background"
        )
    figures["engine"] = contender.engine
    table = Table(f"{options.rows:,} rows, {options.updates:,} updates a batch", "alone", "beside a snapshot")
    for column in table.columns[1:]:
        column.justify = "right"
    for key, text, digits in SHOWN:
        table.add_row(text, *(f"{figures[f'{phase}_{key}']:,.{digits}f}" for phase in ("alone", "beside")))
    out.print(table)
    out.print(f"the snapshot took {figures['snapshot_ms']:,.0f} ms and {figures['snapshot_write_units']:,} write units")
    out.print(f"on {contender.engine}")
    judged = targets(figures)
    finish(out, "background", vars(options), figures, judged)


if __name__ == "__main__":
    main()
