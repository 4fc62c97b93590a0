"""Erasing one key of a store of a million rows and a hundred versions.

    python benchmarks/erase.py
    python benchmarks/erase.py --rows 50000         to try it

Fills a store as executors do: rows in ten versions, a snapshot, and versions of changes after it. One key is in one of
the first versions, in the snapshot, and in two versions after it. It is erased, and its absence is proved. Prints
seconds and units, and keeps them in build/benchmarks/erase.json. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeVar

import lookup
from database import REGION, add_arguments, database
from targets import console, finish

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.engine import Engine
from dynastate.operations.erase.absent import find_absence
from dynastate.operations.erase.erase import erase_stores, plan_erase
from dynastate.operations.erase.keys import GivenKeys
from dynastate.settings import Settings
from dynastate.storage.meter import Meter

T = TypeVar("T")

#: Versions that the rows are written in before the snapshot.
FIRST_VERSIONS = 10


def fill(options: argparse.Namespace, settings: Settings) -> None:
    """Fill the store. The last key is changed in the first and the last of the versions after the snapshot."""
    choose = random.Random(options.seed)  # noqa: S311  # the same keys at every run
    erased = options.rows - 1
    with closing(BotoTables(settings)) as tables, closing(Engine(tables, replace(settings, cache_mb=0))) as engine:
        writer = lookup.Writer(engine)
        step = -(-options.rows // FIRST_VERSIONS)
        for first in range(0, options.rows, step):
            numbers = range(first, min(first + step, options.rows))
            writer.commit(numbers, 0, len(numbers))
        writer.snapshot()
        for version in range(options.versions):
            changed = {choose.randrange(erased) for _ in range(options.updates)}
            changed |= {erased} if version in (0, options.versions - 1) else set()
            writer.commit(changed, version + 1, 0)


def timed(name: str, work: Callable[[], T], figures: dict[str, Any]) -> T:
    """Do work, and note its seconds, and those of the processor."""
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    result = work()
    figures[f"{name}_s"] = time.perf_counter() - begin_s
    figures[f"{name}_processor_s"] = time.process_time() - begin_cpu_s
    return result


def measure(options: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """Plan, erase, and prove."""
    key = GivenKeys([lookup.key_of(options.rows - 1)])
    figures: dict[str, Any] = {}
    with closing(BotoTables(settings)) as connected:
        tables = connected.metered(Meter())
        plan = timed("plan", lambda: plan_erase(tables, [lookup.STORE], key), figures)
        erased = timed("erase", lambda: erase_stores(tables, plan, key), figures)
        absences = timed("proof", lambda: find_absence(tables, [lookup.STORE], key), figures)
    meter = erased.meter
    return figures | {
        "versions": len(erased.stores[0].versions),
        "planned_write_units": plan.write_units,
        "write_units": meter.write_units + meter.delete_units,
        "read_units": plan.read_units + meter.read_units,
        "proof_read_units": sum(each.read_units for each in absences),
        "absent": all(each.is_absent for each in absences),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="keys in the store (default: %(default)s)")
    parser.add_argument("--versions", type=int, default=100, help="after the snapshot (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=1_000, help="rows of each of these (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the updates (default: %(default)s)")
    add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    options, out = arguments(), console()
    with database(options.endpoint, options.engine) as running:
        os.environ.update(running.environment)
        settings = replace(Settings(), endpoint=running.endpoint, region=REGION)
        with out.status("filling"):
            fill(options, settings)
        figures = measure(options, settings)
    for name, value in figures.items():
        out.print(f"{name}: {value:,.1f}" if isinstance(value, float) else f"{name}: {value:,}")
    finish(out, "erase", vars(options), figures, [], unjudged="nothing is judged")


if __name__ == "__main__":
    main()
