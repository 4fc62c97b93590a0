"""Commits beside a snapshot: what a snapshot in the background does to the batches of the same store.

    python benchmarks/background.py
    python benchmarks/background.py --rows 100000            to try it

Batches one after the other on 1,000,000 rows, first alone, then for as long as a snapshot of all rows takes, with the
engine and DynamoDB on the same cores. Prints the figures, keeps them in build/benchmarks/background.json, and exits 1
when a target is missed. See benchmarks/README.md for what each figure means.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from database import add_arguments
from jvm import CONTENDERS, OURS, Figures, build, prepared, run
from rich.table import Table
from targets import ROOT, Target, console, save, show

SHOWN = [
    ("batches", "batches", 0),
    ("commit_ms", "commit, ms", 1),
    ("commit_p95_ms", "commit, 95th percentile, ms", 1),
    ("batch_ms", "whole batch, ms", 1),
    ("batch_p95_ms", "whole batch, 95th percentile, ms", 1),
    ("batch_max_ms", "whole batch, longest, ms", 1),
]


def targets(found: Figures) -> list[Target]:
    return [
        Target(
            "commit, 95th percentile: beside a snapshot / alone",
            found["beside_commit_p95_ms"] / found["alone_commit_p95_ms"],
            2,
        ),
        # Whoever waited for the snapshot would take as long as it does.
        Target(
            "longest batch beside the snapshot / the snapshot", found["beside_batch_max_ms"] / found["snapshot_ms"], 0.5
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
    given = arguments()
    build()
    out = console()
    own = {name: getattr(given, name) for name in ("rows", "updates", "batches", "warmup", "seed")}
    with (
        tempfile.TemporaryDirectory(prefix="dynastate-bench-") as scratch,
        out.status(f"{given.rows:,} rows"),
        prepared(CONTENDERS[OURS], given.endpoint, given.engine) as contender,
    ):
        found = run("SnapshotBenchmark", contender, own, folder=Path(scratch), heap=given.heap, log="background")
    found["engine"] = contender.engine
    table = Table(f"{given.rows:,} rows, {given.updates:,} updates a batch", "alone", "beside a snapshot")
    for column in table.columns[1:]:
        column.justify = "right"
    for key, text, digits in SHOWN:
        table.add_row(text, *(f"{found[f'{phase}_{key}']:,.{digits}f}" for phase in ("alone", "beside")))
    out.print(table)
    out.print(f"the snapshot took {found['snapshot_ms']:,.0f} ms and {found['snapshot_write_units']:,} write units")
    out.print(f"on {contender.engine}")
    judged = targets(found)
    show(out, judged)
    file = save("background", vars(given), found, judged)
    out.print(f"kept in {file.relative_to(ROOT)}")
    sys.exit(0 if all(target.met for target in judged) else 1)


if __name__ == "__main__":
    main()
