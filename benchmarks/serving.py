"""Look-ups of a service that follows a query, at AWS's distances.

    python benchmarks/serving.py
    python benchmarks/serving.py --rows 20000        to try it

Fills an operator of some partitions as executors do, with the query's checkpoint in DynamoDB: rows, snapshots, batches
after them. Then `open_state(follow=…)` looks them up in the AWS-shaped world. Prints milliseconds, requests and read
units of look-ups and looks, and look-ups a second; exits 1 when a target is missed. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from database import REGION, add_arguments
from lookup import KEY, Writer, key_of
from rich.table import Table
from targets import Target, console, finish
from world import world

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.cache import Cache
from dynastate.engine.checkpoint import CheckpointFiles
from dynastate.engine.engine import Engine
from dynastate.format.checkpoint import Checkpoint
from dynastate.reader.follow import StateFollower
from dynastate.reader.state import open_state
from dynastate.settings import Settings
from dynastate.unsaferow.key_encoders import make_encoder
from dynastate.unsaferow.schema import parse_schema

CHECKPOINT = Checkpoint("serving", "query")
THREADS = 4


class Query:
    """The stores and the log of a query, written as executors and driver write them."""

    def __init__(self, tables: BotoTables, options: argparse.Namespace) -> None:
        self._engine = Engine(tables, Settings(cache_mb=0))
        self._files = CheckpointFiles(tables, set())
        stores = [f"{CHECKPOINT.namespace}/0/{number}/default" for number in range(options.partitions)]
        self._writers = [Writer(self._engine, store, f"dynastate://{CHECKPOINT}/state") for store in stores]
        self._encoder = make_encoder(
            parse_schema(KEY), {"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"}, "default"
        )
        self.partitions = [
            self._encoder.partition(key_of(number), options.partitions) for number in range(options.rows)
        ]
        self._dice = random.Random(options.seed)  # noqa: S311  # the same keys at every run
        self._batches = 0

    def fill(self) -> None:
        """Commit every row, and make a snapshot of each store."""
        self.commit(range(len(self.partitions)), added=True)
        for writer in self._writers:
            writer.snapshot()

    def commit_some(self, count: int, partitions: Sequence[int]) -> None:
        """Change random rows of some partitions. The others commit without a change."""
        numbers = {self._dice.randrange(len(self.partitions)) for _ in range(count)}
        self.commit([number for number in numbers if self.partitions[number] in partitions])

    def commit(self, numbers: Sequence[int], *, added: bool = False) -> None:
        rows: list[list[int]] = [[] for _ in self._writers]
        for number in numbers:
            rows[self.partitions[number]].append(number)
        for writer, changed in zip(self._writers, rows, strict=True):
            writer.commit(changed, self._batches, len(changed) if added else 0)
        ids = {"0": [[str(UUID(bytes=bytes(writer.version.attempt)))] for writer in self._writers]}
        text = f"v2\n{json.dumps({'nextBatchWatermarkMs': 0, 'stateUniqueIds': ids})}"
        self._files.put(CHECKPOINT, f"commits/{self._batches}", text.encode(), overwrites=False)
        self._batches += 1

    def close(self) -> None:
        self._engine.close()


def spent(state: StateFollower, action: Callable[[], object]) -> dict[str, float]:
    """Milliseconds, requests and read units of an action."""
    meter, began = replace(state.meter), time.perf_counter()
    action()
    ms = 1000 * (time.perf_counter() - began)
    return {
        "ms": ms,
        "requests": state.meter.requests - meter.requests,
        "units": state.meter.read_units - meter.read_units,
    }


def median(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each figure, and its most."""
    values = {name: sorted(each[name] for each in figures) for name in figures[0]}
    most = {f"{name}_most": each[-1] for name, each in values.items()}
    return {name: statistics.median(each) for name, each in values.items()} | most | {"count": len(figures)}


def forget(state: StateFollower) -> None:
    """Evict all parts and rows, as look-ups of other keys would."""
    source = state._source  # noqa: SLF001  # nothing else evicts them
    caches: tuple[Cache[Any, Any], ...] = (source.engine.known_stores.parts, source.rows or Cache(0))
    for cache in caches:
        while cache._values:  # noqa: SLF001
            cache.drop(next(iter(cache._values)))  # noqa: SLF001


def a_second(look_up: Callable[[int], object], numbers: Sequence[int], threads: int = 1) -> float:
    """Look-ups a second, in threads."""
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda first: [look_up(number) for number in numbers[first::threads]], range(threads)))
    return len(numbers) / (time.perf_counter() - began)


async def a_second_async(state: StateFollower, numbers: Sequence[int]) -> float:
    """Look-ups a second from an event loop, a hundred at a time."""
    began = time.perf_counter()
    for first in range(0, len(numbers), 100):
        await asyncio.gather(*(state.aget(key_of(number)) for number in numbers[first : first + 100]))
    return len(numbers) / (time.perf_counter() - began)


def measure(options: argparse.Namespace, query: Query, endpoint: str) -> dict[str, Any]:
    dice = random.Random(options.seed + 1)  # noqa: S311  # the same keys at every run
    every = list(range(options.partitions))
    began = time.perf_counter()
    state = open_state(f"{CHECKPOINT.namespace}/0", follow=timedelta(), endpoint=endpoint, region=REGION)
    opened = {
        "ms": 1000 * (time.perf_counter() - began),
        "requests": state.meter.requests,
        "units": state.meter.read_units,
    }

    def look_up(number: int) -> None:
        row = state.get(key_of(number))
        if row is None or row["user"] != key_of(number)["user"]:
            sys.exit(f"benchmark: a row that is there was not found: {key_of(number)}")

    def cold(number: int) -> dict[str, float]:
        forget(state)
        return spent(state, lambda: look_up(number))

    with state:
        of_partitions = [query.partitions.index(partition) for partition in every]
        first = median([spent(state, lambda number=number: look_up(number)) for number in of_partitions])  # type: ignore[misc]  # of this turn
        keys = [dice.randrange(options.rows) for _ in range(options.gets)]
        colds = median([cold(number) for number in keys])
        idle = median([spent(state, state.refresh) for _ in range(options.looks)])
        looks, after = [], []
        for _ in range(options.looks):
            query.commit_some(options.updates, every)
            looks.append(spent(state, state.refresh))
            after.append(cold(dice.choice(keys)))
        for number in keys:
            look_up(number)
        warm = [dice.choice(keys) for _ in range(options.warm)]
        rates = {
            "a thread": a_second(look_up, warm),
            f"{THREADS} threads": a_second(look_up, warm, THREADS),
            "coroutines": asyncio.run(a_second_async(state, warm)),
        }
        query.commit_some(options.updates, [])
        state.refresh()
        rates["after a batch that changed nothing in their partitions"] = a_second(look_up, warm)
        query.commit_some(options.updates, every)
        state.refresh()
        rates["after a batch that changed all partitions"] = a_second(look_up, warm)
    by_look = {"idle": idle, "batch": median(looks)}
    return {
        "opened": opened,
        "first": first,
        "cold": colds,
        "after_a_look": median(after),
        "looks": by_look,
        "rates": rates,
    }


def targets(figures: dict[str, Any]) -> list[Target]:
    """A look-up that is not cached takes one wait, a look one request, and thousands of cached look-ups a second."""
    after, idle, rates = figures["after_a_look"], figures["looks"]["idle"], figures["rates"]
    unchanged = rates["after a batch that changed nothing in their partitions"]
    return [
        Target("requests of a look-up after a look, median", after["requests"], 2),
        Target("a look-up after a look / a look with nothing new, ms", after["ms"] / idle["ms"], 3),
        Target("requests of a look with nothing new, median", idle["requests"], 1),
        Target("its read units, median", idle["units"], 1),
        Target("ms of a cached look-up", 1000 / rates["a thread"], 0.5),
        Target("ms of a look-up after a batch that changed nothing in its partition", 1000 / unchanged, 0.5),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000, help="of all partitions (default: %(default)s)")
    parser.add_argument("--partitions", type=int, default=8, help="of the operator (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=4_000, help="rows changed by a batch (default: %(default)s)")
    parser.add_argument("--gets", type=int, default=200, help="that are not cached (default: %(default)s)")
    parser.add_argument("--looks", type=int, default=30, help="of each kind (default: %(default)s)")
    parser.add_argument("--warm", type=int, default=20_000, help="cached look-ups (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of keys and latencies (default: %(default)s)")
    add_arguments(parser)
    options = parser.parse_args()
    out = console()
    with world(options.endpoint, options.engine, "-seed", str(options.seed)) as aws:
        os.environ.update(aws.database.environment)
        tables = BotoTables(Settings(endpoint=aws.database.endpoint, region=REGION))
        query = Query(tables, options)
        aws.scale(0)
        with out.status(f"{options.rows:,} rows"):
            query.fill()
        aws.scale(1)
        figures = measure(options, query, aws.database.endpoint)
        query.close()
        tables.close()
        engine = aws.database.engine
    table = Table(f"{options.rows:,} rows in {options.partitions} partitions", "ms", "requests", "read units")
    for text, each in (
        ("opening", figures["opened"]),
        ("first look-up in a partition, median", figures["first"]),
        ("other look-ups that are not cached, median", figures["cold"]),
        ("such a look-up after a look that found a batch, median", figures["after_a_look"]),
        ("look with nothing new, median", figures["looks"]["idle"]),
        ("look that finds a batch, median", figures["looks"]["batch"]),
    ):
        table.add_row(text, *(f"{each[name]:,.1f}" for name in ("ms", "requests", "units")))
    out.print(table)
    for text, rate in figures["rates"].items():
        out.print(f"cached look-ups a second, {text}: {rate:,.0f}")
    out.print(f"on {engine}")
    finish(out, "serving", vars(options), figures, targets(figures))


if __name__ == "__main__":
    main()
