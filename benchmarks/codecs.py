"""Codecs: bytes and processor time of rows of six kinds of queries, by LZ4 and by zstd at several levels.

    python benchmarks/codecs.py
    python benchmarks/codecs.py --rounds 1 --levels 1 3                 to try it

Each kind has chunks of changes as the provider sends them, in the order of their keys' hashes. Some are full, as in
large batches and in snapshots, and some are of small batches. It uses neither DynamoDB nor Spark. Prints the figures,
and keeps them in build/benchmarks/codecs.json. There are no targets: the figures chose the level (docs/decisions).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import islice
from typing import Any

import lz4.block
import zstandard
from rich.table import Table
from targets import ROOT, console, save

from dynastate.format.changes import PUT, Change, encode_changes, key_hash
from dynastate.format.codec import DENSE_LEVEL
from dynastate.format.parts import CHUNK_BYTES_MAX
from dynastate.unsaferow.schema import parse_schema

#: Bytes of rows in a small batch's chunk, and of a full one.
SIZES = {"2 KB": 2_048, "8 KB": 8_192, "256 KB": CHUNK_BYTES_MAX}
ROWS = 60_000
START = datetime(2026, 1, 5, tzinfo=timezone.utc)
Packer = Callable[[bytes], bytes]
Row = tuple[bytes, bytes]


def columns(**types: Any) -> Callable[[dict[str, Any]], bytes]:
    """The encoder of rows with these columns, by Spark's names of types."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    return parse_schema({"type": "struct", "fields": fields}).encode


WINDOW = {
    "type": "struct",
    "fields": [{"name": name, "type": "timestamp", "nullable": True, "metadata": {}} for name in ("start", "end")],
}


def counts(dice: random.Random) -> Iterator[Row]:
    """Events counted by user."""
    key, value = columns(user="string"), columns(count="long")
    for number in range(ROWS):
        yield key({"user": f"user-{number:08d}"}), value({"count": int(dice.paretovariate(1.1))})


def windows(dice: random.Random) -> Iterator[Row]:
    """Amounts by device and window of five minutes."""
    key, value = columns(window=WINDOW, device="string"), columns(sum="double", count="long", max="double")
    for number in range(ROWS):
        start = START + timedelta(minutes=5 * dice.randrange(12))
        amounts = [round(dice.gauss(20, 4), 2) for _ in range(dice.randrange(1, 9))]
        yield (
            key(
                {"window": {"start": start, "end": start + timedelta(minutes=5)}, "device": f"sensor/{number:05d}/temp"}
            ),
            value({"sum": sum(amounts), "count": len(amounts), "max": max(amounts)}),
        )


def duplicates(dice: random.Random) -> Iterator[Row]:
    """Ids of events that were seen, within a watermark."""
    key, value = columns(id="string"), columns(expires="long")
    for _ in range(ROWS):
        expires = int((START + timedelta(seconds=dice.randrange(3_600))).timestamp() * 1e6)
        yield key({"id": str(uuid.UUID(int=dice.getrandbits(128)))}), value({"expires": expires})


def joined(dice: random.Random) -> Iterator[Row]:
    """Rows of one side of a stream-stream join: orders that wait for their payments."""
    key = columns(order="long", index="long")
    value = columns(order="long", customer="string", city="string", amount="double", at="timestamp", matched="boolean")
    cities = [
        f"{name}{end}" for name in ("Nord", "Alt", "Neu", "Ober", "Bad ") for end in ("burg", "heim", "stadt", "au")
    ]
    for number in range(ROWS):
        instant = START + timedelta(milliseconds=number * 37 + dice.randrange(30))
        order = {
            "order": 7_000_000 + number,
            "customer": f"c{dice.randrange(300_000):06d}",
            "city": dice.choice(cities),
            "amount": round(dice.expovariate(0.02), 2),
            "at": instant,
            "matched": dice.random() < 0.5,
        }
        yield key({"order": order["order"], "index": 0}), value(order)


def states(dice: random.Random) -> Iterator[Row]:
    """State of a program of the user, with transformWithState: a profile with a list and a text as JSON."""
    key = columns(account="long")
    value = columns(
        segment="string", seen={"type": "array", "elementType": "long", "containsNull": True}, profile="string"
    )
    for number in range(ROWS // 3):
        last = int(START.timestamp()) + dice.randrange(86_400)
        plan, score, opens = dice.choice(("free", "basic", "pro")), round(dice.random(), 4), dice.randrange(99)
        profile = json.dumps({"plan": plan, "score": score, "opens": opens})
        times = [last - 60 * dice.randrange(500) for _ in range(dice.randrange(1, 6))]
        segment = dice.choice(("new", "active", "at risk", "lost"))
        yield key({"account": number}), value({"segment": segment, "seen": times, "profile": profile})


def benchmark(dice: random.Random) -> Iterator[Row]:
    """Rows of the other benchmarks: a random name and a number; count, random amount and a sentence."""
    key, value = columns(name="string", id="long"), columns(count="long", amount="double", note="string")
    for number in range(ROWS):
        note = f"order {dice.randrange(10**10):010d} shipped from depot {dice.randrange(10**4):04d}"
        amounts = {"count": dice.randrange(1, 9), "amount": dice.random(), "note": note}
        yield key({"name": f"{dice.getrandbits(64):016x}", "id": number}), value(amounts)


KINDS = {
    "count by user": counts,
    "sums by window": windows,
    "ids of duplicates": duplicates,
    "a join's orders": joined,
    "profiles of a program": states,
    "the benchmarks' rows": benchmark,
}


def chunks(rows: Iterable[Row], size: int, most: int) -> list[bytes]:
    """Changes of random rows in the order of their hashes, cut as the provider cuts them."""
    listed = list(rows)
    random.Random(size).shuffle(listed)  # noqa: S311  # a choice of rows, no secret
    lengths = [10 + len(key) + len(value) for key, value in islice(listed, 100)]
    in_each = max(1, size * len(lengths) // sum(lengths))
    batches = [listed[start : start + in_each] for start in range(0, len(listed) - in_each + 1, in_each)][:most]
    return [
        encode_changes(Change(PUT, 0, key, value) for key, value in sorted(batch, key=lambda row: key_hash(row[0])))
        for batch in batches or [listed]
    ]


def packers(levels: Iterable[int]) -> dict[str, tuple[Packer, Callable[[bytes, int], bytes]]]:
    """What compresses and decompresses, by name."""

    def unpack(packed: bytes, size: int) -> bytes:
        return lz4.block.decompress(packed, uncompressed_size=size)  # type: ignore[no-any-return]

    quick = partial(lz4.block.compress, store_size=False)
    by_name: dict[str, Any] = {
        "LZ4, dense": (partial(quick, mode="high_compression", compression=DENSE_LEVEL), unpack),
        "LZ4, quick": (quick, unpack),
    }
    reader = zstandard.ZstdDecompressor()
    for level in levels:
        writer = zstandard.ZstdCompressor(level, write_checksum=False)
        by_name[f"zstd {level}"] = (writer.compress, lambda packed, _: reader.decompress(packed))
    return by_name


def timed_ms(work: Callable[[], object], rounds: int) -> float:
    """Milliseconds of processor time of this thread, the median."""
    took = []
    for _ in range(rounds):
        begun = time.thread_time_ns()
        work()
        took.append((time.thread_time_ns() - begun) / 1e6)
    return statistics.median(took)


def each_of(work: Callable[..., bytes], *chunks: Iterable[Any]) -> None:
    for arguments in zip(*chunks, strict=True):
        work(*arguments)


def measure(options: argparse.Namespace) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """By size of chunks, kind of rows and codec: bytes of 1,000 bytes of rows, and ms of 256 KiB."""
    figures: dict[str, dict[str, dict[str, dict[str, float]]]] = {size: {} for size in SIZES}
    for kind, make in KINDS.items():
        seed = int.from_bytes(hashlib.sha256(f"{options.seed}/{kind}".encode()).digest()[:8], "big")
        rows = list(make(random.Random(seed)))  # noqa: S311  # test data
        for size, size_bytes in SIZES.items():
            raw = chunks(rows, size_bytes, options.chunks)
            total = sum(map(len, raw))
            its = figures[size][kind] = {}
            for name, (pack, unpack) in packers(options.levels).items():
                packed = [pack(chunk) for chunk in raw]
                if [unpack(each, len(chunk)) for each, chunk in zip(packed, raw, strict=True)] != raw:
                    sys.exit(f"benchmark: {name} changes rows of {kind}")
                per = CHUNK_BYTES_MAX / total
                lengths = [len(chunk) for chunk in raw]
                its[name] = {
                    "bytes": 1000 * sum(map(len, packed)) / total,
                    "compress_ms": per * timed_ms(partial(each_of, pack, raw), options.rounds),
                    "decompress_ms": per * timed_ms(partial(each_of, unpack, packed, lengths), options.rounds),
                }
    return figures


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=20, help="chunks of each size (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of which medians are taken (default: %(default)s)")
    parser.add_argument(
        "--levels", type=int, nargs="+", default=[1, 3, 5, 7, 9], metavar="N", help="of zstd (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the rows (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    out = console()
    with out.status("rows"):
        figures = measure(options)
    for size, kinds in figures.items():
        names = list(packers(options.levels))
        table = Table(f"chunks of {size}: bytes of 1,000", *names)
        for column in table.columns[1:]:
            column.justify = "right"
        for kind, its in kinds.items():
            table.add_row(kind, *(f"{its[name]['bytes']:.0f}" for name in names))
        table.add_section()
        first = [its[names[0]]["bytes"] for its in kinds.values()]
        ratios = [
            statistics.mean(its[name]["bytes"] / base for its, base in zip(kinds.values(), first, strict=True))
            for name in names
        ]
        table.add_row("to dense LZ4, mean", *(f"{ratio:.2f}" for ratio in ratios))
        for figure, text in (("compress_ms", "compress 256 KiB, ms"), ("decompress_ms", "decompress, ms")):
            means = [statistics.mean(its[name][figure] for its in kinds.values()) for name in names]
            table.add_row(text, *(f"{mean:.2f}" for mean in means))
        out.print(table)
    out.print(f"zstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}")
    file = save("codecs", vars(options), figures, [])
    out.print(f"kept in {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
