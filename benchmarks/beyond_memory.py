"""State of which a fifth fits in memory: ours beside RocksDB with changelog.

    python benchmarks/beyond_memory.py
    python benchmarks/beyond_memory.py --rows 20000 --updates 500 --turns 1         to try it

Each store is driven through Spark's trait in fresh JVMs, at each number of rows. Batches have uniform keys, and popular
keys. Then the store restarts right after a snapshot, and between two of its snapshots. Ours is also measured with all
rows in memory, with and without a bound. Prints the figures and the ratios that have a target, keeps them in
build/benchmarks/beyond_memory.json, and exits 1 when a target is missed. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from database import add_arguments, names_of, numbers
from jvm import CONF, CONTENDERS, OURS, Contender, Figures, build, objects_in_s3, prepared, run, run_with_pauses
from rich.console import Console
from rich.table import Table
from targets import Target, console, finish

ROCKSDB = "rocksdb-changelog"
#: Ours with a bound far above the state, and without one.
FITS, UNBOUNDED = "ours-all-fits", "ours-unbounded"
#: RocksDB with a limit on its memory that is as high as ours. Not run unless asked for: it takes seconds a batch.
BOUNDED = "rocksdb-bounded"
KINDS = (OURS, ROCKSDB, FITS, UNBOUNDED)
#: Of all measured batches. Opening a version takes some, wherever its rows are.
READ_UNITS = ("uniform_dynastateReadUnits", "zipf_dynastateReadUnits")
#: What `memoryMb` counts for a row of this benchmark.
ROW_BYTES = 150
#: What is in memory, of the state; and the bound where all fits, in states.
SHARE, ROOMY = 0.2, 4
#: The changes after the snapshot before a restart between two snapshots, in states.
CHANGED = 0.4
#: The most that our first batch of such a restart may take, in those of RocksDB right after its snapshot.
RESTART_AT_MOST, LARGER_RESTARTS_AT_MOST = 2.0, {"5,000,000": 2.5}
#: The large state is judged by the small one.
SMALL, LARGE = "1,000,000", "20,000,000"
SHOWN = [
    ("uniform_batch_ms", "uniform: whole batch, ms"),
    ("uniform_batch_p95_ms", "uniform: whole batch, 95th percentile, ms"),
    ("uniform_get_ns", "uniform: get, ns"),
    ("uniform_put_ns", "uniform: put, ns"),
    ("uniform_commit_ms", "uniform: commit, ms"),
    ("uniform_heap_mb", "uniform: heap of the state, MB"),
    ("uniform_rss_mb", "uniform: resident memory of the process, MB"),
    ("uniform_written_mb", "uniform: written to disk a batch, MB"),
    ("zipf_batch_ms", "Zipf: whole batch, ms"),
    ("zipf_batch_p95_ms", "Zipf: whole batch, 95th percentile, ms"),
    ("zipf_get_ns", "Zipf: get, ns"),
    ("zipf_put_ns", "Zipf: put, ns"),
    ("zipf_commit_ms", "Zipf: commit, ms"),
    ("zipf_heap_mb", "Zipf: heap of the state, MB"),
    ("first_batch_ms", "restart: first batch, ms"),
    ("first_open_ms", "restart: its open, ms"),
    ("first_row_ms", "restart: open and first get, ms"),
    ("first_gets_ms", "restart: its gets, ms"),
    ("first_commit_ms", "restart: its commit, ms"),
    ("first_cpu_ms", "restart: processor time of the JVM, ms"),
    ("first_sidecar_cpu_ms", "restart: processor time of the sidecar, ms"),
    ("next_batch_ms", "restart: the five batches after it, median, ms"),
    ("snapshot_first_batch_ms", "restart after a snapshot: first batch, ms"),
    ("snapshot_first_row_ms", "restart after a snapshot: open and first get, ms"),
    ("snapshot_next_batch_ms", "restart after a snapshot: the five batches after it, median, ms"),
    ("load_s", "initial load, s"),
    ("snapshot_ms", "snapshot maintenance, ms"),
    ("beside_snapshot_ms", "snapshot maintenance beside batches, ms"),
    ("beside_batch_ms", "batch beside it, ms"),
    ("beside_batch_max_ms", "longest batch beside it, ms"),
    ("pauses_max_ms", "longest GC pause, ms"),
    ("pauses_p99_ms", "GC pauses, 99th percentile, ms"),
    ("sidecar_rss_max_mb", "sidecar's peak memory, MB"),
]


def memory_mb(rows: int, states: float) -> int:
    """The bound with which that many times the state fits in memory."""
    return max(1, int(rows * ROW_BYTES * states / 2**20))


def contender_of(kind: str, rows: int) -> Contender:
    small = str(memory_mb(rows, SHARE))
    conf = {
        OURS: {f"{CONF}.dynastate.memoryMb": small},
        FITS: {f"{CONF}.dynastate.memoryMb": str(memory_mb(rows, ROOMY))},
        UNBOUNDED: {f"{CONF}.dynastate.memoryMb": "0"},
        ROCKSDB: {},
        BOUNDED: {f"{CONF}.rocksdb.boundedMemoryUsage": "true", f"{CONF}.rocksdb.maxMemoryUsageMB": small},
    }[kind]
    plain = CONTENDERS[ROCKSDB if kind in (ROCKSDB, BOUNDED) else OURS]
    return replace(plain, conf={**plain.conf, **conf})


def measure(contender: Contender, kind: str, rows: int, options: argparse.Namespace, folder: Path) -> Figures:
    """The batches in one fresh JVM; the restarts in as many others as there are turns, after the snapshot and later."""
    workload = {name: getattr(options, name) for name in ("updates", "batches", "warmup", "seed")} | {"rows": rows}
    log = f"beyond_memory-{kind}-{rows}"
    jvm = {"folder": folder, "heap": options.heap, "collector": options.collector}
    figures: dict[str, Any] = run_with_pauses("BeyondMemoryBenchmark", contender, workload, **jvm, log=log)
    figures |= {"memory_mb": memory_mb(rows, SHARE), "engine": contender.engine}
    if kind not in (OURS, ROCKSDB) or options.turns == 0:
        return figures

    def restart() -> dict[str, Any]:
        turns = [
            run("BeyondMemoryRestart", contender, workload, **jvm, log=f"{log}.restart") for _ in range(options.turns)
        ]
        return {key: statistics.median(turn[key] for turn in turns) for key in turns[0]} | {"turns": turns}

    workload |= {name: figures[name] for name in ("version", "more")}
    figures |= {f"snapshot_{key}": value for key, value in restart().items()}
    changed = {"changed": math.ceil(CHANGED * rows / options.updates)}
    workload |= run("BeyondMemoryChanges", contender, workload | changed, **jvm, log=f"{log}.changes")
    return figures | restart()


def measure_all(options: argparse.Namespace, out: Console) -> dict[str, dict[str, Figures]]:
    """By rows, then by kind; shows the figures of a number of rows as soon as they are complete."""
    by_rows: dict[str, dict[str, Figures]] = {}
    for rows in options.rows:
        for kind in options.kinds:
            with ExitStack() as stack:
                scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="dynastate-bench-"))
                stack.enter_context(out.status(f"{kind}: {rows:,} rows"))
                contender = stack.enter_context(prepared(contender_of(kind, rows), options.endpoint, options.engine))
                if options.objects and contender.engine:
                    contender = stack.enter_context(objects_in_s3(contender, options.engine))
                by_rows.setdefault(f"{rows:,}", {})[kind] = measure(
                    contender, kind, rows, options, folder=Path(scratch)
                )
        show_figures(out, f"{rows:,}", by_rows[f"{rows:,}"])
    return by_rows


def targets(by_rows: Mapping[str, Mapping[str, Figures]]) -> list[Target]:
    """The targets that what was measured allows to judge."""
    judged = []
    for rows, kinds in by_rows.items():
        beyond = f"{rows} rows, a fifth in memory"
        ours, rocksdb, unbounded, fits = (kinds.get(kind, {}) for kind in (OURS, ROCKSDB, UNBOUNDED, FITS))
        for key, text, limit in (
            ("uniform_batch_ms", "uniform keys", 0.8),
            ("zipf_batch_ms", "popular keys", 0.5),
            ("snapshot_first_batch_ms", "first batch of a restart after a snapshot", 1),
        ):
            if key in ours and key in rocksdb:
                judged.append(
                    Target(f"{beyond}, {text}: ours / RocksDB with changelog", ours[key] / rocksdb[key], limit)
                )
        for key, text in (("first_batch_ms", "between its own"), ("snapshot_first_batch_ms", "right after one")):
            if "first_batch_ms" in ours and key in rocksdb:
                judged.append(
                    Target(
                        f"{beyond}, first batch of a restart between snapshots: ours / RocksDB's {text}",
                        ours["first_batch_ms"] / rocksdb[key],
                        LARGER_RESTARTS_AT_MOST.get(rows, RESTART_AT_MOST),
                    )
                )
        if ours:
            heap = max(ours["uniform_heap_mb"], ours["zipf_heap_mb"])
            judged.append(Target(f"{beyond}: heap / memoryMb", heap / ours["memory_mb"], 1.2))
        if ours and unbounded:
            units = max(ours[key] - unbounded[key] for key in READ_UNITS)
            judged.append(Target(f"{beyond}: read units, more than with all in memory", units, 0))
        if fits and unbounded:
            ratio = fits["uniform_batch_ms"] / unbounded["uniform_batch_ms"]
            judged.append(Target(f"{rows} rows, batch: all fits in memoryMb / no bound", ratio, 1.1))
    return judged + targets_of_large({rows: kinds.get(OURS, {}) for rows, kinds in by_rows.items()})


def targets_of_large(ours: Mapping[str, Figures]) -> list[Target]:
    """What must not grow with the rows."""
    small, large = ours.get(SMALL, {}), ours.get(LARGE, {})
    if not small or not large:
        return []
    judged = [
        Target(
            f"batch of uniform keys: {LARGE} rows / {SMALL}", large["uniform_batch_ms"] / small["uniform_batch_ms"], 1.3
        ),
        Target(f"{LARGE} rows: GC pauses, 99th percentile, ms", large["pauses_p99_ms"], 200),
    ]
    if "first_row_ms" in small and "first_row_ms" in large:
        more = large["first_row_ms"] - small["first_row_ms"]
        judged.append(Target(f"restart, open and first get: {LARGE} rows, more than {SMALL}, ms", more, 1000))
    return judged


def show_figures(out: Console, rows: str, by_kind: Mapping[str, Figures]) -> None:
    """One column for each kind."""
    table = Table(f"{rows} rows", *by_kind)
    for column in table.columns[1:]:
        column.justify = "right"
    for key, text in SHOWN:
        if any(key in figures for figures in by_kind.values()):
            table.add_row(text, *(f"{figures[key]:,.0f}" if key in figures else "" for figures in by_kind.values()))
    out.print(table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", type=numbers, default="1000000,5000000", help="sizes of the state (default: %(default)s)"
    )
    parser.add_argument("--updates", type=int, default=20_000, help="keys got and put a batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=15, help="measured batches of each kind (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=25, help="batches before them (default: %(default)s)")
    parser.add_argument(
        "--turns", type=int, default=3, help="restarts of each store, of both kinds (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the choice of keys (default: %(default)s)")
    parser.add_argument(
        "--kinds",
        type=names_of((*KINDS, BOUNDED)),
        default=",".join(KINDS),
        help=f"any of %(default)s,{BOUNDED} (default: all but the last)",
    )
    parser.add_argument("--heap", default="4g", help="of each JVM, least and most (default: %(default)s)")
    parser.add_argument(
        "--collector", choices=("G1GC", "ParallelGC"), default="G1GC", help="of garbage (default: %(default)s)"
    )
    parser.add_argument("--objects", action="store_true", help="ours has its large parts in an S3, which needs Go")
    add_arguments(parser)
    parser.add_argument("--no-build", action="store_true", help="take the jars as they are")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if not options.no_build:
        build()
    out = console()
    out.print(f"{options.updates:,} updates a batch, medians of {options.batches} batches, seed {options.seed}")
    by_rows = measure_all(options, out)
    engines = {figures["engine"] for kinds in by_rows.values() for figures in kinds.values()} - {""}
    out.print(f"{OURS}: on {', '.join(sorted(engines)) or 'nothing'}")
    judged = targets(by_rows)
    finish(out, "beyond_memory", vars(options), by_rows, judged)


if __name__ == "__main__":
    main()
