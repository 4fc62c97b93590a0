"""Recovery: how long a store that lies in DynamoDB, or in files, takes until a task can use it.

    python benchmarks/recovery.py
    python benchmarks/recovery.py --rows 10000,100000 --turns 1         to try it

Ours beside HDFS-backed and both RocksDB variants, at several sizes of state. Each store is filled and changed, left
with a snapshot, and then opened in fresh processes. Prints the figures, keeps them in build/benchmarks/recovery.json,
draws batch time and recovery time against the size of the state into build/benchmarks/recovery.png, and exits 1 when a
target is missed. See benchmarks/README.md for what each figure means.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
from database import add_arguments, names_of, numbers
from jvm import CONF, CONTENDERS, OURS, Contender, build, prepared, run
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from targets import RESULTS, ROOT, Target, console, finish

#: Rows of the target; that at the small size is shown beside it.
LARGE, SMALL = 1_000_000, 100_000
#: Ours with a bound on memory, of more than the state takes: rows come when they are asked for.
ON_DEMAND = "ours-on-demand"
STORES = {
    OURS: CONTENDERS[OURS],
    ON_DEMAND: replace(CONTENDERS[OURS], conf={f"{CONF}.dynastate.memoryMb": "1024", f"{CONF}.dynastate.diskMb": "0"}),
    **CONTENDERS,
}
SHOWN = [
    ("first_get_ms", "to the first get, ms"),
    ("every_row_ms", "to every row read, ms"),
    ("cpu_ms", "processor time of the JVM until then, ms"),
    ("sidecar_cpu_ms", "processor time of the sidecar until then, ms"),
    ("batch_ms", "whole batch before, ms"),
]
LABELS = {
    OURS: "dynastate (DynamoDB)",
    ON_DEMAND: "dynastate without disk",
    "hdfs": "HDFS-backed",
    "rocksdb": "RocksDB",
    "rocksdb-changelog": "RocksDB with changelog",
}

#: By provider, then by rows.
Found = Mapping[str, Mapping[int, Mapping[str, Any]]]


def measure(contender: Contender, rows: int, options: argparse.Namespace, folder: Path, log: str) -> dict[str, Any]:
    """Fill and leave a store in one process, and open it in as many others as there are turns; medians."""
    # Every provider is left at its best: with a snapshot of the last version.
    contender = replace(contender, conf={**contender.conf, f"{CONF}.minDeltasForSnapshot": "1"})
    workload = {"rows": rows, **{name: getattr(options, name) for name in ("updates", "batches", "warmup", "seed")}}
    filled = run("RecoveryBenchmark", contender, workload, folder=folder, heap=options.heap, log=log)
    workload |= {"version": filled["version"], "counts": filled["counts"]}
    turns = [
        run("ColdOpenBenchmark", contender, workload, folder=folder, heap=options.heap, log=f"{log}.open")
        for _ in range(options.turns)
    ]
    opened = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
    return filled | opened | {"turns": turns, "engine": contender.engine}


def measure_all(options: argparse.Namespace, out: Console) -> dict[str, dict[int, dict[str, Any]]]:
    by_name: dict[str, dict[int, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="dynastate-bench-") as scratch:
        for name in options.providers:
            for rows in options.rows:
                log = f"recovery-{name}-{rows}"
                with (
                    out.status(f"{name}: {rows:,} rows"),
                    prepared(STORES[name], options.endpoint, options.engine) as contender,
                ):
                    by_name.setdefault(name, {})[rows] = measure(contender, rows, options, Path(scratch) / log, log=log)
    return by_name


def targets(by_name: Found) -> list[Target]:
    """What was measured allows to judge these."""
    rocksdb = [sizes[LARGE]["first_get_ms"] for name, sizes in by_name.items() if "rocksdb" in name and LARGE in sizes]
    ours = by_name.get(OURS, {})
    judged = []
    if LARGE in ours and rocksdb:
        ratio = ours[LARGE]["first_get_ms"] / min(rocksdb)
        judged.append(Target(f"cold open of {LARGE:,} rows to the first get: ours / the better RocksDB", ratio, 1.5))
    files = by_name.get("hdfs", {})
    if LARGE in ours and LARGE in files:
        ratio = ours[LARGE]["every_row_ms"] / files[LARGE]["every_row_ms"]
        judged.append(Target(f"cold open of {LARGE:,} rows to every row: ours / HDFS-backed", ratio, 0.75))
    for name in (OURS, ON_DEMAND):
        sizes = by_name.get(name, {})
        if LARGE in sizes and SMALL in sizes:
            ratio = sizes[LARGE]["first_get_ms"] / sizes[SMALL]["first_get_ms"]
            judged.append(Target(f"{name}, to the first get: {LARGE:,} rows / {SMALL:,} rows", ratio, 2))
    return judged


def show_figures(out: Console, rows: int, by_name: Found) -> None:
    """One column for each provider."""
    table = Table(f"cold open, {rows:,} rows", *by_name)
    for column in table.columns[1:]:
        column.justify = "right"
    for key, text in SHOWN:
        table.add_row(text, *(f"{sizes[rows][key]:,.0f}" for sizes in by_name.values()))
    out.print(table)


def draw(by_name: Found, file: Path) -> None:
    """Batch time and recovery time against rows of state, one line for each provider."""
    mpl.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10})
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    batch, recovery = figure.subplots(1, 2)
    for number, (name, sizes) in enumerate(by_name.items()):
        rows = sorted(sizes)
        style = {"color": f"C{number}", "marker": "o", "label": LABELS[name], "linewidth": 2.5 if name == OURS else 1.5}
        batch.plot(rows, [sizes[each]["batch_ms"] for each in rows], **style)
        recovery.plot(rows, [sizes[each]["first_get_ms"] for each in rows], **style)
        recovery.plot(rows, [sizes[each]["every_row_ms"] for each in rows], color=f"C{number}", linestyle=":")
    batch.set_title("a batch")
    recovery.set_title("recovery: to the first get (dotted: to every row read)")
    for axes in (batch, recovery):
        axes.set(xscale="log", yscale="log", xlabel="rows of state", ylabel="ms")
        axes.grid(visible=True, which="major", alpha=0.3)
    batch.legend(frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", type=numbers, default=f"10000,{SMALL},{LARGE}", help="sizes of the state (default: %(default)s)"
    )
    parser.add_argument("--updates", type=int, default=10_000, help="keys got and put a batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=10, help="measured batches (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=10, help="batches before them (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="cold opens of each store (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of keys (default: %(default)s)")
    parser.add_argument("--providers", type=names_of(STORES), default=",".join(STORES), help="any of %(default)s")
    parser.add_argument("--heap", default="4g", help="of each JVM, least and most (default: %(default)s)")
    add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    build()
    out = console()
    by_name = measure_all(options, out)
    for rows in options.rows:
        show_figures(out, rows, by_name)
    for name in (OURS, ON_DEMAND):
        ours = by_name.get(name, {})
        if ours:
            out.print(f"{name}: on {next(iter(ours.values()))['engine']}")
    picture = RESULTS / "recovery.png"
    draw(by_name, picture)
    out.print(f"drawn in {picture.relative_to(ROOT)}")
    judged = targets(by_name)
    finish(
        out,
        "recovery",
        vars(options),
        by_name,
        judged,
        unjudged=f"No target is judged: it compares {OURS} with RocksDB at {LARGE:,} rows.",
    )


if __name__ == "__main__":
    main()
