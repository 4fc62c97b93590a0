"""Scans and lists: ours, in memory and on disk, beside RocksDB with changelog, each in a fresh JVM.

    python benchmarks/scans.py

100,000 rows iterated, in 10,000 prefix scans, and in 100 range scans; appends to a list of 10 values and to one of
10,000. Of 100,000 timers ten at a time are due, removed and set again. Prints the figures and the ratios that have a
target, and exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from database import add_arguments
from jvm import CONF, CONTENDERS, OURS, build, prepared, run
from rich.table import Table
from targets import Target, console, finish

ROCKSDB = "rocksdb-changelog"
#: Ours with a fifth of the rows in memory.
ON_DISK = "ours-on-disk"
STORES = {
    OURS: CONTENDERS[OURS],
    ON_DISK: replace(CONTENDERS[OURS], conf={f"{CONF}.dynastate.memoryMb": "8"}),
    ROCKSDB: CONTENDERS[ROCKSDB],
}
SHOWN = [
    ("iterate_ns", "iterate, ns a row"),
    ("prefix_ns", "prefix scan, ns a row"),
    ("range_ns", "range scan, ns a row"),
    ("timers_ns", "timers, an iterator that is moved, ns a timer"),
    ("timers_by_ranges_ns", "timers, a scan for each time, ns a timer"),
    ("append_short_ns", "append to a list of 10, ns"),
    ("append_long_ns", "append to a list of 10,000, ns"),
    ("append_short_bytes", "bytes written for one append to the short list"),
    ("append_long_bytes", "bytes written for one append to the long list"),
]


def measure(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one provider."""
    with prepared(STORES[name], options.endpoint, options.engine) as contender:
        figures = run("ScanBenchmark", contender, {}, folder=folder, heap="2g", log=f"scans-{name}")
        return figures | {"engine": contender.engine}


def targets(ours: dict[str, Any], on_disk: dict[str, Any], rocksdb: dict[str, Any]) -> list[Target]:
    judged = [
        Target(f"{text}: ours / RocksDB with changelog", ours[key] / rocksdb[key], 1)
        for key, text in SHOWN
        if key.endswith("_ns") and "long" not in key
    ]
    judged += [
        Target(f"{text}, a fifth in memory: ours / RocksDB with changelog", on_disk[key] / rocksdb[key], 1)
        for key, text in SHOWN
        if key in ("iterate_ns", "prefix_ns", "range_ns")
    ]
    # "The same" within what the clock and the last entry of a group can tell apart.
    judged.append(Target("append: long list / short list, time", ours["append_long_ns"] / ours["append_short_ns"], 1.5))
    judged.append(
        Target("append: long list / short list, bytes", ours["append_long_bytes"] / ours["append_short_bytes"], 1.25)
    )
    return judged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    options = parser.parse_args()
    build()
    out = console()
    with tempfile.TemporaryDirectory(prefix="dynastate-bench-") as scratch:
        by_store = {name: measure(name, Path(scratch) / name, options) for name in STORES}
    table = Table("", *by_store)
    for key, text in SHOWN:
        table.add_row(text, *(f"{figures[key]:,.0f}" for figures in by_store.values()))
    out.print(table)
    judged = targets(by_store[OURS], by_store[ON_DISK], by_store[ROCKSDB])
    out.print(f"{OURS}: on {by_store[OURS]['engine']}")
    finish(out, "scans", vars(options), by_store, judged)


if __name__ == "__main__":
    main()
