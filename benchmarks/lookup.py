"""Looking one row up in a store of a million, from plain Python.

    python benchmarks/lookup.py
    python benchmarks/lookup.py --rows 50000         to try it

Fills a store as executors do: rows in batches, a snapshot, and batches of changes after it; then gets random keys with
`open_state`. Prints requests, bytes and time of a `get`, and exits 1 when a target is missed. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

from database import REGION, add_arguments, database
from rich.table import Table
from targets import Target, console, finish

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine import pace
from dynastate.engine.engine import Engine
from dynastate.format.changes import PUT, Change, decode_changes, encode_changes, key_hash
from dynastate.format.keys import EMPTY, Attempt, VersionId
from dynastate.format.meta import QueryRun
from dynastate.format.parts import Chunk
from dynastate.reader.state import StateReader, open_state
from dynastate.settings import Settings
from dynastate.unsaferow.schema import parse_schema

STORE = "lookup/0/0/default"
RUN = "lookup"
#: As the provider sends changes: ordered by the highest byte of their hashes, 4 MiB at a time, in chunks of 256 KiB.
SENT_BYTES, CHUNK_BYTES = 4 * 1024 * 1024, 256 * 1024
KEY = {"type": "struct", "fields": [{"name": "user", "type": "string"}, {"name": "item", "type": "long"}]}
VALUE = {"type": "struct", "fields": [{"name": "count", "type": "long"}, {"name": "note", "type": "string"}]}
SCHEMA = json.dumps(
    {
        "families": [
            {
                "id": 0,
                "internal": False,
                "key": KEY,
                "key_encoder": {"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"},
                "multiple": False,
                "name": "default",
                "value": VALUE,
            }
        ]
    },
    separators=(",", ":"),
)
Record = tuple[int, bytes]


def key_of(number: int) -> dict[str, Any]:
    return {"user": f"user-{number:09d}", "item": number % 7}


class Writer:
    """A store that grows version by version, as one executor would write it."""

    def __init__(self, engine: Engine, store: str = STORE, location: str = "file:/benchmark") -> None:
        self._engine = engine
        self._store = store
        self._run = QueryRun(RUN, "query", location)
        self._version = EMPTY
        self._key, self._value = parse_schema(KEY), parse_schema(VALUE)
        self._keys = 0

    def commit(self, numbers: Iterable[int], count: int, added: int) -> None:
        """Put these rows."""
        self._keys += added
        (base, parent), attempt = self._version, Attempt(uuid4().bytes)
        under_way = self._engine.begin(self._store, self._run, base=base, parent=parent, attempt=attempt)
        for chunk in chunks(self._record(number, count) for number in numbers):
            under_way.append(chunk)
        under_way.commit({0: self._keys}, SCHEMA)
        self._version = VersionId(self._version[0] + 1, attempt)

    @property
    def version(self) -> VersionId:
        """The version that was committed last."""
        return self._version

    def snapshot(self) -> None:
        """Make a snapshot of all rows."""
        version, attempt = self._version
        opening = self._engine.open(self._store, version, attempt)
        state = {change.key: change for each in opening.chunks for change in decode_changes(each.changes)}
        raw_bytes = sum(len(change.key) + len(change.value or b"") + 10 for change in state.values())
        begun, _ = self._engine.maintenance.snapshot(
            self._store, RUN, version, attempt, state_bytes=raw_bytes, min_deltas=1
        )
        if begun is None:
            sys.exit("benchmark: the engine wants no snapshot")
        begun._pace = pace.Pace(lambda: False)  # noqa: SLF001  # nothing else runs here
        buckets: dict[int, list[Record]] = {}
        for change in state.values():
            digest = key_hash(change.key)
            buckets.setdefault(digest >> 32 - begun.bits, []).append((digest, encode_changes([change])))
        for number in sorted(buckets):
            begun.bucket(number)
            for chunk in cut(buckets[number]):
                begun.append(chunk)
        if not begun.commit():
            sys.exit("benchmark: the snapshot could not be made")

    def _record(self, number: int, count: int) -> Record:
        key = self._key.encode(key_of(number))
        value = self._value.encode({"count": count, "note": f"note {number * 7919 % 100_003:06d}"})
        return key_hash(key), encode_changes([Change(PUT, 0, key, value)])


def chunks(records: Iterable[Record]) -> Iterator[Chunk]:
    """Records as the provider sends them."""
    waiting: list[Record] = []
    size = 0
    for record in records:
        waiting.append(record)
        size += len(record[1])
        if size >= SENT_BYTES:
            yield from cut(sorted(waiting, key=lambda record: record[0] >> 24))
            waiting, size = [], 0
    yield from cut(sorted(waiting, key=lambda record: record[0] >> 24))


def cut(records: list[Record]) -> Iterator[Chunk]:
    begin = size = 0
    for end, (_, raw) in enumerate(records):
        if size + len(raw) > CHUNK_BYTES:
            yield chunk(records[begin:end])
            begin, size = end, 0
        size += len(raw)
    if begin < len(records):
        yield chunk(records[begin:])


def chunk(records: list[Record]) -> Chunk:
    hashes = [digest for digest, _ in records]
    return Chunk(len(records), min(hashes), max(hashes), b"".join(raw for _, raw in records))


def fill(options: argparse.Namespace, settings: Settings) -> None:
    dice = random.Random(options.seed)  # noqa: S311  # the same keys at every run
    tables = BotoTables(settings)
    engine = Engine(tables, replace(settings, cache_mb=0))
    writer = Writer(engine)
    step = -(-options.rows // 10)
    for first in range(0, options.rows, step):
        numbers = range(first, min(first + step, options.rows))
        writer.commit(numbers, 0, len(numbers))
    if options.snapshot:
        writer.snapshot()
    for batch in range(options.batches):
        writer.commit({dice.randrange(options.rows) for _ in range(options.updates)}, batch + 1, 0)
    engine.close()
    tables.close()


def look_up(state: StateReader, numbers: Iterable[int]) -> dict[str, Any]:
    """Requests, bytes and milliseconds of one `get` after the other."""
    spent: list[tuple[int, int, float]] = []
    for number in numbers:
        meter = replace(state.meter)
        began = time.perf_counter()
        row = state.get(key_of(number))
        took = 1000 * (time.perf_counter() - began)
        if row is None or row["user"] != key_of(number)["user"]:
            sys.exit(f"benchmark: a row that is there was not found: {key_of(number)}")
        spent.append((state.meter.requests - meter.requests, state.meter.bytes_read - meter.bytes_read, took))
    requests, sizes, times = zip(*spent, strict=True)
    return {
        "gets": len(spent),
        "requests": statistics.median(requests),
        "requests_most": max(requests),
        "mb": statistics.median(sizes) / 1e6,
        "mb_most": max(sizes) / 1e6,
        "p50_ms": statistics.median(times),
        "p99_ms": sorted(times)[len(times) * 99 // 100],
    }


def measure(options: argparse.Namespace, endpoint: str) -> dict[str, Any]:
    settings = Settings(endpoint=endpoint, region=REGION)
    began = time.perf_counter()
    fill(options, settings)
    filled_s = time.perf_counter() - began
    dice = random.Random(options.seed + 1)  # noqa: S311  # other keys, the same at every run
    keys = [dice.randrange(options.rows) for _ in range(options.gets)]
    first = []
    for number in keys[: options.readers]:
        began = time.perf_counter()
        with open_state(STORE, endpoint=endpoint, region=REGION) as state:
            figures = look_up(state, [number])
            took = 1000 * (time.perf_counter() - began)
            opened = {"requests": state.meter.requests, "mb": state.meter.bytes_read / 1e6, "ms": took}
            first.append(figures | {f"{key}_with_opening": each for key, each in opened.items()})
    with open_state(STORE, endpoint=endpoint, region=REGION) as state:
        state.get(key_of(0))
        others = look_up(state, keys)
        began = time.perf_counter()
        count = sum(1 for _ in state)
        iterated_s = time.perf_counter() - began
    return {
        "filled_s": filled_s,
        "rows": count,
        "iterated_s": iterated_s,
        "first": {key: statistics.median(each[key] for each in first) for key in first[0]},
        "others": others,
    }


def targets(figures: dict[str, Any]) -> list[Target]:
    """What one `get` may take: a reader that is opened for it, the first, and those after it."""
    first, others = figures["first"], figures["others"]
    return [
        Target("requests of opening and the first get", first["requests_with_opening"], 10),
        Target("MB read by opening and the first get", first["mb_with_opening"], 2),
        Target("first get of a reader, p50, ms", first["p50_ms"], 50),
        Target("requests of a get after it, most", others["requests_most"], 10),
        Target("MB read by a get after it, most", others["mb_most"], 2),
        Target("get after it, p50, ms", others["p50_ms"], 50),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the store (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=10, help="after the snapshot (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=10_000, help="rows changed by each (default: %(default)s)")
    parser.add_argument("--gets", type=int, default=500, help="by one reader (default: %(default)s)")
    parser.add_argument("--readers", type=int, default=20, help="that get one row only (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of keys (default: %(default)s)")
    parser.add_argument("--no-snapshot", dest="snapshot", action="store_false", help="as before the first one")
    add_arguments(parser)
    options = parser.parse_args()
    out = console()
    with database(options.endpoint, options.engine) as running:
        os.environ.update(running.environment)
        with out.status(f"{options.rows:,} rows"):
            figures = measure(options, running.endpoint)
        engine = running.engine
    first, others = figures["first"], figures["others"]
    table = Table(
        f"one get of {options.rows:,} rows", "the first of a reader", f"the next {others['gets']}, median", "most"
    )
    for key, text in (("requests", "requests"), ("mb", "MB read"), ("p50_ms", "ms")):
        most = f"{others['p99_ms']:,.1f} (p99)" if key == "p50_ms" else f"{others[key + '_most']:,.2f}"
        table.add_row(text, f"{first[key]:,.2f}", f"{others[key]:,.2f}", most)
    out.print(table)
    opened = f"{first['requests_with_opening']:.0f} requests and {first['ms_with_opening']:.0f} ms"
    out.print(f"opening and the first get: {opened}; all rows: {figures['iterated_s']:.1f} s; on {engine}")
    judged = targets(figures)
    finish(out, "lookup", vars(options), figures, judged)


if __name__ == "__main__":
    main()
