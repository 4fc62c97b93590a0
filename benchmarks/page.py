"""The page of `dynastate ui`: with 200 stores, and with a store of a million rows.

    python benchmarks/page.py
    python benchmarks/page.py --rows 50000 --stores 20         to try it

Fills a query of many small stores and one large store, and asks for pages as a browser does. Prints times and the
memory of the process, and exits 1 when a target is missed. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import lookup
from database import REGION, add_arguments, database
from targets import Target, console, finish

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.engine import Engine
from dynastate.settings import Settings

VERSIONS, ROWS = 12, 10
#: Looks at the page of all stores after the first, and seconds between them.
LOOKS, PAUSE_S = 30, 0.5


def fill(options: argparse.Namespace, settings: Settings) -> None:
    """Fill the large store, and then the many small ones."""
    lookup.fill(options, settings)
    with closing(BotoTables(settings)) as tables, closing(Engine(tables, settings)) as engine:
        for partition in range(options.stores):
            writer = lookup.Writer(engine, f"many/0/{partition}/default")
            for version in range(VERSIONS):
                writer.commit(range(ROWS), version, ROWS if version == 0 else 0)


@contextmanager
def served(endpoint: str, environment: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """The page's URL, and its process."""
    words = (
        "ui",
        "many",
        "lookup",
        "--port",
        "0",
        "--no-browser",
        "--json",
        "--endpoint",
        endpoint,
        "--region",
        REGION,
    )
    command = [sys.executable, "-m", "dynastate.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(environment)) as process:
        try:
            assert process.stdout is not None  # noqa: S101  # it is a pipe
            text = "".join(iter(process.stdout.readline, "}\n")) + "}"
            yield json.loads(text)["url"], process.pid
        finally:
            process.terminate()


def ask(url: str) -> tuple[float, str]:
    """Milliseconds that a page takes, and its text."""
    begin_s = time.perf_counter()
    with urlopen(url) as answer:  # noqa: S310  # our own
        text: str = answer.read().decode()
    return 1_000 * (time.perf_counter() - begin_s), text


def measure(options: argparse.Namespace, endpoint: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Ask for the pages."""
    with served(endpoint, environment) as (url, pid):
        first_ms, text = ask(url + "query/many")
        if f"{options.stores * ROWS:,}" not in text:
            sys.exit("benchmark: the page does not show all stores")
        times = []
        for _ in range(LOOKS):
            time.sleep(PAUSE_S)
            times.append(ask(url + "query/many")[0])
        operator_ms = ask(url + "operator/many/0")[0]
        rows_ms = ask(url + "rows/lookup/0")[0]
        next_ms = ask(url + "rows/lookup/0?page=2")[0]
        user = lookup.key_of(options.rows - 1)["user"]
        found_ms, reads = 0.0, 0
        while True:
            took_ms, text = ask(f"{url}rows/lookup/0?column=user&contains={user}")
            found_ms, reads = found_ms + took_ms, reads + 1
            if "Reading on" not in text:
                break
        if text.count(user) < 2:  # in the form, and in a row
            sys.exit("benchmark: the row is not found")
        status = Path(f"/proc/{pid}/status").read_text()
        peak_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return {
        "first_ms": first_ms,
        "later_p50_ms": statistics.median(times),
        "later_max_ms": max(times),
        "operator_ms": operator_ms,
        "rows_ms": rows_ms,
        "next_ms": next_ms,
        "filter_ms": found_ms,
        "filter_requests": reads,
        "peak_mb": peak_kb / 1024,
    }


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """What was measured, judged."""
    return [
        Target("200 stores, the first page, ms", figures["first_ms"], 2_000),
        Target("200 stores, the slowest of the later pages, ms", figures["later_max_ms"], 300),
        Target("1,000,000 rows: memory of the page's process, MB", figures["peak_mb"], 300),
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="keys in the large store (default: %(default)s)")
    parser.add_argument("--stores", type=int, default=200, help="small stores (default: %(default)s)")
    add_arguments(parser)
    parser.set_defaults(snapshot=True, batches=10, updates=10_000, seed=1)
    return parser.parse_args()


def main() -> None:
    options, out = arguments(), console()
    with database(options.endpoint, options.engine) as running:
        os.environ.update(running.environment)
        settings = replace(Settings(), endpoint=running.endpoint, region=REGION)
        with out.status("filling"):
            fill(options, settings)
        figures = measure(options, running.endpoint, os.environ)
    for name, value in figures.items():
        out.print(f"{name}: {value:,.1f}")
    judged = targets(figures)
    finish(out, "page", vars(options), figures, judged)


if __name__ == "__main__":
    main()
