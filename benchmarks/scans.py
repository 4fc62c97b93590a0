"""Scans and lists: ours beside RocksDB with changelog, each driven through Spark's trait in a fresh JVM.

    python benchmarks/scans.py

100,000 rows iterated, in 10,000 prefix scans, and in 100 range scans; appends to a list of 10 values and to one of
10,000. Prints the figures and the ratios that have a target, and exits 1 when one is missed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from provider import OURS, Plan, build, java_command, prepared, run_jvm
from rich.table import Table
from targets import RESULTS, Target, console, save, show

ROCKSDB = "rocksdb-changelog"
SHOWN = [
    ("iterate_ns", "iterate, ns a row"),
    ("prefix_ns", "prefix scan, ns a row"),
    ("range_ns", "range scan, ns a row"),
    ("append_short_ns", "append to a list of 10, ns"),
    ("append_long_ns", "append to a list of 10,000, ns"),
    ("append_short_bytes", "bytes written for one append to the short list"),
    ("append_long_bytes", "bytes written for one append to the long list"),
]
PLAN = Plan(rows=0, updates=0, batches=0, warmup=0, seed=1, heap="2g")


def measure(name: str, folder: Path) -> dict[str, Any]:
    """The figures of one provider."""
    with prepared(name, None) as (contender, environment):
        command = java_command(PLAN, contender, folder, reopen=False)
        main = command.index("io.dynastate.benchmarks.ProviderBenchmark")
        command[main] = "io.dynastate.benchmarks.ScanBenchmark"
        return dict(run_jvm(command, environment, RESULTS / f"scans-{name}.log"))


def targets(ours: dict[str, Any], rocksdb: dict[str, Any]) -> list[Target]:
    judged = [
        Target(f"{text}: ours / RocksDB", ours[key] / rocksdb[key], 1)
        for key, text in SHOWN
        if key.endswith("_ns") and "long" not in key
    ]
    # "The same" within what the clock and the last entry of a group can tell apart.
    judged.append(Target("append: long list / short list, time", ours["append_long_ns"] / ours["append_short_ns"], 1.5))
    judged.append(
        Target("append: long list / short list, bytes", ours["append_long_bytes"] / ours["append_short_bytes"], 1.25)
    )
    return judged


def main() -> None:
    build()
    out = console()
    with tempfile.TemporaryDirectory(prefix="dynastate-bench-") as scratch:
        found = {name: measure(name, Path(scratch) / name) for name in (OURS, ROCKSDB)}
    table = Table("", *found)
    for key, text in SHOWN:
        table.add_row(text, *(f"{figures[key]:,.0f}" for figures in found.values()))
    out.print(table)
    judged = targets(found[OURS], found[ROCKSDB])
    show(out, judged)
    save("scans", {"argv": sys.argv[1:], "cpus": os.cpu_count()}, json.loads(json.dumps(found)), judged)
    sys.exit(0 if all(target.met for target in judged) else 1)


if __name__ == "__main__":
    main()
