"""Requests to DynamoDB and S3: what one takes of the processor, sent by boto3 and sent directly, one after the other.

    python benchmarks/request_path.py
    python benchmarks/request_path.py --stores 20 --rounds 2            to try it

Each verb alone in one thread, then commits of many small stores in as many threads as the sidecar has for rows. The two
ways take turns, in one process; DynamoDB and S3 are other processes, whose processor time does not count. Prints the
figures, keeps them in build/benchmarks/request_path.json, and exits 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from database import REGION, add_arguments, database
from rich.table import Table
from s3 import BUCKET, s3
from targets import Target, console, finish

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.client import make_client, make_s3_client
from dynastate.engine.engine import Engine
from dynastate.engine.updates import append_version
from dynastate.format.changes import PUT, Change, encode_changes, key_hash
from dynastate.format.items import FORMAT, Item, item_key
from dynastate.format.keys import EMPTY, NO_ATTEMPT, Attempt, Key, part_key, store_shard, version_list_key
from dynastate.format.meta import QueryRun
from dynastate.format.objects import ObjectId
from dynastate.format.parts import Chunk
from dynastate.settings import Settings
from dynastate.storage.tables import Tables

BOTO3, DIRECT = "boto3", "direct"
COMMIT = "commit"
PUT_OBJECT, GET_OBJECT = "PutObject, 24 KB", "GetObject, 24 KB"
#: Entries that a version list has when it is appended to, on average half of it.
LISTED = 16


def verbs(tables: Tables, way: str, dice: random.Random) -> Iterator[tuple[str, Callable[[int], object]]]:
    """What is measured, by name: it gets the number of the call."""

    def put(store: str, number: int, size: int) -> tuple[Key, Item]:
        key = part_key(store, 1, NO_ATTEMPT, sequence=number, shards=1)
        return key, item_key(key) | {"format": FORMAT, "data": dice.randbytes(size)}

    small = put(f"{way}/small", 0, 1_500)
    many = [put(f"{way}/many", number, 8_000) for number in range(25)]
    large = put(f"{way}/large", 0, 60_000)
    tables.write([large])
    shard = store_shard(f"{way}/large", 0)
    yield "BatchWriteItem, an item of 1.5 KB", lambda _: tables.write([small])
    yield "BatchWriteItem, 25 items of 8 KB", lambda _: tables.write(many)
    yield "BatchGetItem, an item of 60 KB", lambda _: tables.get([large[0]])
    yield "Query, an item of 60 KB", lambda _: tables.query("delta", shard, "0", "~")
    yield (
        "UpdateItem, a version list",
        lambda n: append_version(tables, version_list_key(f"{way}/{n // LISTED}", 1), b"x" * 60, "run"),
    )
    object_id, data = ObjectId(f"s3://{BUCKET}", way), dice.randbytes(24_000)
    yield PUT_OBJECT, lambda _: tables.objects.put(object_id, data)
    yield GET_OBJECT, lambda _: tables.objects.get(object_id, 0, len(data))


class Stores:
    """Stores that grow by a version at each call, through an engine of their own."""

    def __init__(self, tables: Tables, settings: Settings, way: str, stores: int, rows: int) -> None:
        self._engine = Engine(tables, settings)
        self._run = QueryRun("run-1", "5b0c2d7e-0000-4000-8000-000000000000", "file:/benchmark/state")
        self._names = [f"{way}/0/{number}/default" for number in range(stores)]
        self._rows, self._version, self._parent = rows, 0, EMPTY.attempt
        self._threads = ThreadPoolExecutor(settings.parallel_requests)
        self._chunks: dict[str, Chunk] = {}

    def prepare(self) -> None:
        """Make the rows of the next batch, which the JVM does."""
        self._chunks = {name: self._chunk(name) for name in self._names}

    def _chunk(self, name: str) -> Chunk:
        keys = [b"%s %08d" % (name.encode(), self._version * self._rows + row) for row in range(self._rows)]
        hashes = [key_hash(key) for key in keys]
        noise = random.Random(f"{name}/{self._version}")  # noqa: S311  # rows that compress to half, as others do
        raw = encode_changes(Change(PUT, 0, key, noise.randbytes(50) + bytes(50)) for key in keys)
        return Chunk(len(keys), min(hashes), max(hashes), raw)

    def commit(self, _: int) -> None:
        """One batch: a commit of each store."""
        by = Attempt(os.urandom(16))
        list(self._threads.map(lambda name: self._commit(name, by), self._names))
        self._version, self._parent = self._version + 1, by

    def _commit(self, name: str, by: Attempt) -> None:
        under_way = self._engine.begin(name, self._run, base=self._version, parent=self._parent, attempt=by)
        under_way.append(self._chunks[name])
        under_way.commit({0: 0}, '{"families":[]}')

    def close(self) -> None:
        self._threads.shutdown()
        self._engine.close()


def timed(call: Callable[[int], object], numbers: range, of_each: int = 1) -> tuple[float, float]:
    """Processor and wall time in milliseconds: of a call, or of each of the things that a call does."""
    wall, processor, count = time.perf_counter(), time.process_time(), len(numbers) * of_each
    for number in numbers:
        call(number)
    return 1000 * (time.process_time() - processor) / count, 1000 * (time.perf_counter() - wall) / count


def measure(
    options: argparse.Namespace, endpoint: str, objects_endpoint: str
) -> dict[str, dict[str, tuple[float, float]]]:
    """Processor and wall time in milliseconds, by verb and way."""
    settings = Settings(endpoint=endpoint, region=REGION, objects_endpoint=objects_endpoint)
    times: dict[str, dict[str, list[tuple[float, float]]]] = {}
    dice = random.Random(options.seed)  # noqa: S311  # the same items at every run
    clients = {"client": make_client(settings), "s3_client": make_s3_client(settings)}
    both = {BOTO3: BotoTables(settings, **clients), DIRECT: BotoTables(settings)}
    with closing(both[BOTO3]), closing(both[DIRECT]):
        called = {way: dict(verbs(tables, way, dice)) for way, tables in both.items()}
        stores = {way: Stores(tables, settings, way, options.stores, rows=options.rows) for way, tables in both.items()}
        for number in range(options.rounds + 1):
            for way in both if number % 2 else reversed(both):
                first = number * options.calls
                times_by_verb = {
                    verb: timed(call, range(first, first + options.calls)) for verb, call in called[way].items()
                }
                stores[way].prepare()
                times_by_verb[COMMIT] = timed(stores[way].commit, range(1), options.stores)
                if number:  # the first round opens connections and stores
                    for verb, pair in times_by_verb.items():
                        times.setdefault(verb, {}).setdefault(way, []).append(pair)
        for every in stores.values():
            every.close()
    return {
        verb: {way: tuple(map(statistics.median, zip(*pairs, strict=True))) for way, pairs in ways.items()}
        for verb, ways in times.items()
    }


def targets(times: dict[str, dict[str, tuple[float, float]]]) -> list[Target]:
    commit = times[COMMIT]
    return [
        Target("processor time of a commit: direct / boto3", commit[DIRECT][0] / commit[BOTO3][0], 0.6),
        Target("processor time of a commit of 20 rows, direct, ms", commit[DIRECT][0], 0.8),
        *(
            Target(f"processor time of {verb}: direct / boto3", times[verb][DIRECT][0] / times[verb][BOTO3][0], 0.3)
            for verb in (PUT_OBJECT, GET_OBJECT)
        ),
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=160, help="of each verb in a round (default: %(default)s)")
    parser.add_argument("--stores", type=int, default=200, help="that are committed (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=20, help="that change in each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="that are measured (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the items (default: %(default)s)")
    add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    out = console()
    with database(options.endpoint, options.engine) as running, s3(0) as objects_endpoint:
        os.environ.update(running.environment)
        times = measure(options, running.endpoint, objects_endpoint)
        engine = running.engine
    table = Table(f"ms each, medians of {options.rounds}")
    for heading in ("boto3, processor", "direct, processor", "ratio", "boto3, wall", "direct, wall"):
        table.add_column(heading, justify="right")
    for verb, ways in times.items():
        (boto3, boto3_wall), (direct, direct_wall) = ways[BOTO3], ways[DIRECT]
        name = f"{verb} of {options.rows} rows, {options.stores} stores" if verb == COMMIT else verb
        table.add_row(name, *(f"{each:.2f}" for each in (boto3, direct, direct / boto3, boto3_wall, direct_wall)))
    out.print(table)
    out.print(f"on {engine}")
    judged = targets(times)
    settings: dict[str, Any] = {key: value for key, value in vars(options).items() if key not in ("endpoint", "engine")}
    finish(out, "request_path", settings | {"engine": engine}, dict(times), judged)


if __name__ == "__main__":
    main()
