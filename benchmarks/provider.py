"""Our state store provider beside Spark's own, each driven through Spark's trait in a fresh JVM.

    python benchmarks/provider.py                                  everything, as the targets ask for it
    python benchmarks/provider.py --rows 100000 --providers hdfs,rocksdb-changelog

Prints the figures of each provider and the ratios that have a target, keeps them in build/benchmarks/provider.json,
and exits 1 when a target is missed. See benchmarks/README.md for what each figure means.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from database import add_arguments
from jvm import CONF, CONTENDERS, OURS, Contender, Figures, build, prepared, run
from rich.console import Console
from rich.table import Table
from targets import Target, console, finish

#: The state that open at the full size is compared with.
SMALL_ROWS = 10_000
SMALL = f"{OURS} ({SMALL_ROWS:,} rows)"
#: What the table shows of what the JVM found: key, text, digits after the point.
SHOWN = [
    ("load_s", "initial load, s", 2),
    ("open_ms", "open, ms", 3),
    ("get_ns", "get, ns", 0),
    ("put_ns", "put, ns", 0),
    ("commit_ms", "commit, ms", 1),
    ("batch_ms", "whole batch, ms", 1),
    ("batch_p95_ms", "whole batch, 95th percentile, ms", 1),
    ("iterate_ns", "iterate, ns a row", 0),
    ("state_heap_mb", "heap of the state, MB", 0),
    ("process_heap_mb", "heap of the process, MB", 0),
    ("process_rss_mb", "resident memory of the process, MB", 0),
    ("maintenance_ms", "snapshot maintenance, ms", 0),
    ("cold_open_ms", "cold open, same process, ms", 0),
    ("restart_open_ms", "cold open, fresh process, ms", 0),
    ("sidecar_rss_load_mb", "sidecar's peak memory in the load, MB", 0),
    ("sidecar_rss_max_mb", "sidecar's peak memory, MB", 0),
    ("sidecar_cpu_ms", "sidecar's CPU time, ms", 0),
]


@dataclass(frozen=True)
class Plan:
    """What every provider is put through: rows of state, keys a batch, batches, the seed of their choice."""

    rows: int
    updates: int
    batches: int
    warmup: int
    seed: int
    heap: str


def measure(plan: Plan, name: str, contender: Contender, folder: Path) -> Figures:
    """The whole run in one fresh JVM, then the restart in another."""
    log = f"provider-{name}-{plan.rows}"
    workload = {key: value for key, value in asdict(plan).items() if key != "heap"}
    if name == OURS:  # without an id DynamoDB is asked whose version a number is; HDFS-backed has none
        contender = replace(contender, conf={**contender.conf, f"{CONF}.checkpointFormatVersion": "2"})
    whole = run("ProviderBenchmark", contender, workload, folder=folder, heap=plan.heap, log=log)
    workload["reopen"] = "true"
    restart = run("ProviderBenchmark", contender, workload, folder=folder, heap=plan.heap, log=f"{log}.restart")
    return whole | {"restart_open_ms": restart["restart_open_ms"], "engine": contender.engine}


def measure_all(plan: Plan, names: list[str], endpoint: str | None, engine: str, out: Console) -> dict[str, Figures]:
    """Every provider asked for, one after the other; ours at the small size too."""
    runs = [(name, name, plan) for name in names]
    if OURS in names:
        runs.insert(names.index(OURS) + 1, (SMALL, OURS, replace(plan, rows=SMALL_ROWS)))
    by_label: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory(prefix="dynastate-bench-") as scratch:
        for number, (label, name, its_plan) in enumerate(runs):
            with (
                out.status(f"{label}: {its_plan.rows:,} rows"),
                prepared(CONTENDERS[name], endpoint, engine) as contender,
            ):
                by_label[label] = measure(its_plan, name, contender, Path(scratch) / str(number))
    return by_label


def targets(by_label: Mapping[str, Figures]) -> list[Target]:
    """The targets that what was measured allows to judge."""
    if OURS not in by_label:
        return []
    ours = by_label[OURS]
    others = [figures["batch_ms"] for name, figures in by_label.items() if name not in (OURS, SMALL)]
    small = by_label[SMALL]
    # 0 means that no sidecar was seen: not a number passes no target.
    sidecar_mb = ours["sidecar_rss_max_mb"] or math.nan
    judged = [
        Target(f"open at {ours['rows']:,} rows / open at {SMALL_ROWS:,}", ours["open_ms"] / small["open_ms"], 2),
        Target("sidecar's peak memory, MB", sidecar_mb, 300),
    ]
    if others:
        judged.append(Target("whole batch: ours / the best of the others", ours["batch_ms"] / min(others), 0.12))
    if "hdfs" in by_label:
        hdfs = by_label["hdfs"]
        for key, text, limit in (
            ("get_ns", "get", 0.4),
            ("put_ns", "put", 1),
            ("state_heap_mb", "heap of the state", 0.46),
        ):
            judged.append(Target(f"{text}: ours / HDFS-backed", ours[key] / hdfs[key], limit))
    return judged


def show_figures(out: Console, plan: Plan, by_label: Mapping[str, Figures]) -> None:
    """One column for each provider."""
    title = f"{plan.rows:,} rows, {plan.updates:,} updates a batch, medians of {plan.batches} batches"
    table = Table()
    table.add_column("")
    for name in by_label:
        table.add_column(name, justify="right")
    for key, text, digits in SHOWN:
        cells = [f"{figures[key]:,.{digits}f}" for figures in by_label.values()]
        if any(figures[key] for figures in by_label.values()):
            table.add_row(text, *cells)
    out.print(title, table, sep="\n")
    if OURS in by_label:
        out.print(f"{OURS}: on {by_label[OURS]['engine']}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="keys in the state (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=20_000, help="keys got and put a batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=15, help="measured batches (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=25, help="batches before them (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of keys (default: %(default)s)")
    parser.add_argument("--providers", default=",".join(CONTENDERS), help="any of %(default)s")
    parser.add_argument("--heap", default="4g", help="of each JVM, least and most (default: %(default)s)")
    add_arguments(parser)
    parser.add_argument("--no-build", action="store_true", help="take the jars as they are")
    options = parser.parse_args()
    unknown = set(options.providers.split(",")) - set(CONTENDERS)
    if unknown:
        parser.error(f"unknown providers: {', '.join(sorted(unknown))}; known: {', '.join(CONTENDERS)}")
    return options


def main() -> None:
    options = arguments()
    if not options.no_build:
        build()
    plan = Plan(**{each.name: getattr(options, each.name) for each in fields(Plan)})
    out = console()
    by_label = measure_all(plan, options.providers.split(","), options.endpoint, engine=options.engine, out=out)
    show_figures(out, plan, by_label)
    judged = targets(by_label)
    finish(
        out,
        "provider",
        vars(options),
        {name: dict(figures) for name, figures in by_label.items()},
        judged,
        unjudged="No target is judged: they all compare ours with something.",
    )


if __name__ == "__main__":
    main()
