"""Single rows of a store that is not in memory, with most of a snapshot's size in changes after it.

    python benchmarks/deltas.py
    python benchmarks/deltas.py --rows 100000 --updates 2000 --turns 1         to try it

A store of 1,000,000 rows, a snapshot, and 40 batches of 20,000 updates, which no snapshot covers. Fresh processes open
it and get single rows, with all of it in memory in the end and with `memoryMb`; then they commit a batch. Prints the
figures, keeps them in build/benchmarks/deltas.json, and exits 1 when a target is missed. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from database import add_arguments, names_of
from jvm import CONF, OURS, build, prepared, run
from recovery import ON_DEMAND, STORES
from rich.table import Table
from targets import Target, console, finish

#: Ours with a bound into which only a few buckets of the changes fit, and a small cache in the sidecar.
SMALL = "ours-small"
KINDS = {
    OURS: STORES[OURS],
    ON_DEMAND: STORES[ON_DEMAND],
    SMALL: replace(
        STORES[OURS],
        conf={
            f"{CONF}.dynastate.{name}": value
            for name, value in (("memoryMb", "64"), ("diskMb", "0"), ("cacheMb", "16"))
        },
    ),
}
SHOWN = [
    ("first_get_ms", "open and first get, ms"),
    ("later_p50_ms", "later gets, median, ms"),
    ("later_p95_ms", "later gets, 95th percentile, ms"),
    ("later_max_ms", "later gets, longest, ms"),
    ("next_15_p50_ms", "the 15 gets after the first, median, ms"),
    ("all_gets_ms", "all gets, ms"),
    ("commit_ms", "commit of puts to other rows, ms"),
    ("mb_read", "MB read from DynamoDB"),
    ("requests", "requests to DynamoDB"),
    ("buckets_read", "buckets read"),
]


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Leave a store in one process for each kind, and open it in as many others as there are turns; medians."""
    figures: dict[str, dict[str, Any]] = {}
    workload = {name: getattr(options, name) for name in ("rows", "updates", "batches", "seed")} | {"warmup": 0}
    with (
        tempfile.TemporaryDirectory(prefix="dynastate-bench-") as scratch,
        prepared(STORES[OURS], options.endpoint, options.engine) as contender,
    ):
        folder = Path(scratch) / "state"
        conf = {**contender.conf, f"{CONF}.minDeltasForSnapshot": "1"}
        filled = run(
            "DeltasBenchmark", replace(contender, conf=conf), workload, folder=folder, heap=options.heap, log="deltas"
        )
        for kind in options.kinds:
            opened = replace(contender, conf={**contender.conf, **KINDS[kind].conf})
            look_ups = workload | {"version": filled["version"], "gets": options.gets, "puts": options.puts}
            turns = []
            for _ in range(options.turns):
                log = f"deltas-{kind}"
                turns.append(run("ColdLookUpBenchmark", opened, look_ups, folder=folder, heap=options.heap, log=log))
            figures[kind] = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
            figures[kind] |= {"turns": turns, "engine": contender.engine}
    return figures


def targets(by_kind: Mapping[str, Mapping[str, Any]]) -> list[Target]:
    judged = []
    for kind in (OURS, ON_DEMAND):
        if kind in by_kind:
            judged += [
                Target(
                    f"{kind}: open and first get with 0.8 of a snapshot in changes, ms",
                    by_kind[kind]["first_get_ms"],
                    150,
                ),
                Target(f"{kind}: later gets, 95th percentile, ms", by_kind[kind]["later_p95_ms"], 20),
            ]
    return judged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the store (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=20_000, help="keys got and put a batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=40, help="after the snapshot (default: %(default)s)")
    parser.add_argument("--gets", type=int, default=500, help="by each process (default: %(default)s)")
    parser.add_argument("--puts", type=int, default=2_000, help="of the commit after them (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="processes of each kind (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of keys (default: %(default)s)")
    parser.add_argument("--kinds", type=names_of(KINDS), default=",".join(KINDS), help="any of %(default)s")
    parser.add_argument("--heap", default="4g", help="of each JVM, least and most (default: %(default)s)")
    add_arguments(parser)
    options = parser.parse_args()
    build()
    out = console()
    with out.status(f"{options.rows:,} rows"):
        by_kind = measure(options)
    table = Table(
        f"{options.rows:,} rows, {options.batches} batches of {options.updates:,} after the snapshot", *by_kind
    )
    for key, text in SHOWN:
        table.add_row(text, *(f"{figures[key]:,.1f}" for figures in by_kind.values()))
    out.print(table)
    out.print(f"on {next(iter(by_kind.values()))['engine']}")
    judged = targets(by_kind)
    finish(out, "deltas", vars(options), by_kind, judged)


if __name__ == "__main__":
    main()
