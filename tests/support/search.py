"""A search for bytes in everything that the tables and buckets have of some stores, decoded by each codec."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from dynastate.format.codec import CODEC_BYTES, decompress
from dynastate.format.items import Item
from dynastate.format.keys import SPECS, store_shard
from dynastate.format.objects import _FRAME, FRAME_BYTES
from dynastate.format.version_list import VERSIONS, decode_entry
from dynastate.storage.tables import Tables
from tests.support.memory_tables import MemoryTables


def places_with(tables: Tables, stores: Iterable[str], *marks: bytes, shards: int = 4) -> set[str]:
    """The places in the tables with one of these byte strings: sort keys, prefixed by their tables.

    Of tables in memory also the objects, in all versions.
    """
    places = {place for store in stores for place, raw in _contents(tables, store, shards) if _has(raw, marks)}
    return places | (objects_with(objects_of(tables), *marks) if isinstance(tables, MemoryTables) else set())


def objects_of(tables: MemoryTables) -> dict[str, bytes]:
    """All objects in memory, also earlier versions, by their names as `objects_with` has them."""
    current = {object_id.name: data for object_id, data in tables.objects.objects.items()}
    earlier = tables.objects.earlier.items()
    return current | {f"{each.object_id.name}?{each.version_id}": data for each, data in earlier if data is not None}


def objects_with(objects: Mapping[str, bytes], *marks: bytes) -> set[str]:
    """The objects with one of these byte strings, as they are stored or in what codecs make of them, by their names.

    A name is the key of an object; a version of an object that is not the newest has `?` and an id behind it.
    """
    with_marks = {name for name, raw in objects.items() if _has(raw, marks)}
    streams: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in sorted(objects):
        key, _, version = name.partition("?")
        streams[key.rpartition("/")[0], version].append(name)
    for names in streams.values():
        # Frames follow one another from the first object on; where that is gone, only raw bytes can be searched.
        if names[0].partition("?")[0].endswith("/000000") and any(
            _has(raw, marks) for raw in _chunks(_frames(b"".join(objects[name] for name in names)))
        ):
            with_marks |= set(names)
    return with_marks


def _frames(raw: bytes) -> list[Item]:
    """The parts in a stream, as far as it goes on without a gap."""
    parts: list[Item] = []
    while len(raw) > FRAME_BYTES:
        _, codec, _, raw_bytes, fragment, fragments, _, _, _, size = _FRAME.unpack_from(raw)
        if codec >= len(CODEC_BYTES) or FRAME_BYTES + size > len(raw):
            break
        data = raw[FRAME_BYTES : FRAME_BYTES + size]
        parts.append(
            {
                "part": f"{len(parts):06d}",
                "codec": CODEC_BYTES[codec],
                "raw_bytes": raw_bytes,
                "fragment": fragment,
                "fragments": fragments,
                "data": data,
            }
        )
        raw = raw[FRAME_BYTES + size :]
    return parts


def matches_in(tables: Tables, stores: Iterable[str], pattern: re.Pattern[bytes], *, shards: int = 4) -> set[bytes]:
    """What a pattern finds in the tables."""
    return {each for store in stores for _, raw in _contents(tables, store, shards) for each in pattern.findall(raw)}


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
