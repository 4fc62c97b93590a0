"""A search for bytes in everything that the tables and buckets have of some stores, decoded by each codec."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from dynastate.format.codec import decompress
from dynastate.format.items import Item
from dynastate.format.keys import SPECS, store_shard
from dynastate.format.version_list import VERSIONS, decode_entry
from dynastate.storage.tables import Tables


def places_with(tables: Tables, stores: Iterable[str], *marks: bytes, shards: int = 4) -> set[str]:
    """The places in the tables with one of these byte strings: sort keys, prefixed by their tables."""
    return {place for store in stores for place, raw in _contents(tables, store, shards) if _has(raw, marks)}


def _has(raw: bytes, marks: Iterable[bytes]) -> bool:
    return any(mark in raw for mark in marks)


def _contents(tables: Tables, store: str, shards: int) -> Iterator[tuple[str, bytes]]:
    """All bytes of each item: as they are stored, of lists each entry, and what each codec makes of them."""
    for role in SPECS:
        fragments: dict[str, list[Item]] = defaultdict(list)
        for shard in range(shards):
            for key, item in tables.query(role, store_shard(store, shard), "\x00", "\U0010ffff"):
                place = f"{role} {key.sort}"
                yield place, repr(item).encode()
                for value in item.values():
                    for raw in value if isinstance(value, list) else [value]:
                        if isinstance(raw, bytes):
                            yield place, raw
                if isinstance(listed := item.get(VERSIONS), list):
                    yield from ((place, raw) for entry in listed for raw in _inline(store, entry))
                if "codec" in item:
                    fragments[place.rpartition("/")[0]].append(item)
        for place, items in fragments.items():
            yield from ((place, raw) for raw in _chunks(items))


def _inline(store: str, raw: bytes) -> Iterator[bytes]:
    entry = decode_entry(store, raw)
    if entry.inline is not None:
        yield decompress(entry.inline.codec, entry.inline.packed, entry.raw_bytes)


def _chunks(items: list[Item]) -> Iterator[bytes]:
    """The chunks of the parts of one attempt or bucket."""
    packed = b""
    for item in sorted(items, key=lambda item: str(item.get("part", item.get("entry")))):
        packed += bytes(item["data"])  # type: ignore[arg-type]
        if item["fragment"] == int(str(item["fragments"])) - 1:
            yield decompress(str(item["codec"]), packed, int(str(item["raw_bytes"])))
            packed = b""
