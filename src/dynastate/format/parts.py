"""Parts: encoded records as items, compressed, cut to item size, each with its checksum (docs/storage-format.md)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.changes import RECORD_BYTES_MAX
from dynastate.format.codec import CODECS, LZ4, compress, cut, decompress
from dynastate.format.items import FORMAT, Item, Value, check_format, item_bytes, item_key, number
from dynastate.format.keys import Attempt, Key, SnapshotId, bucket_key, digest_of, part_key, where

CHUNK_BYTES_MAX: Final = 256 * 1024
PARTS_MAX: Final = 1_000_000
#: The first parts of an attempt, which are compressed densely. Small batches have no others, and pay the most for
#: each row; in large ones the time would matter.
DENSE_PARTS: Final = 2
#: Approximate size of a part's item without its data: names, numbers, and a key of the usual length.
PART_OVERHEAD_BYTES: Final = 250
#: The largest chunk a reader accepts, and so a writer may make: one record with its header.
RAW_BYTES_MAX: Final = RECORD_BYTES_MAX

_FIELDS: Final = ("format", "codec", "records", "raw_bytes", "fragment", "fragments", "hash_min", "hash_max")
_ATTRIBUTES: Final = (*_FIELDS[1:], "crc32", "data")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Encoded records, none of them cut. `hash_min` and `hash_max` are the bounds of their keys' hashes."""

    records: int
    hash_min: int
    hash_max: int
    changes: bytes


@dataclass(frozen=True, slots=True)
class Part:
    """A part that was made here or verified."""

    codec: str
    records: int
    raw_bytes: int
    fragment: int
    fragments: int
    hash_min: int
    hash_max: int
    crc32: int
    data: bytes


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk as it is stored: `packed` by a codec, `raw_bytes` long without it. `key` is the key of its last part."""

    key: Key
    codec: str
    records: int
    raw_bytes: int
    packed: bytes

    @property
    def changes(self) -> bytes:
        """The records.

        Raises:
            CorruptStateError: they cannot be decompressed.
        """
        try:
            return decompress(self.codec, self.packed, self.raw_bytes)
        except CorruptStateError as corrupt:
            raise CorruptStateError(str(corrupt), **where(self.key)) from corrupt


def part_items(
    store: str, version: int, attempt: Attempt, first_sequence: int, shards: int, chunk: Chunk, codec: str = LZ4
) -> list[tuple[Key, Item]]:
    """The items of one chunk of an attempt. Refuse a chunk that is larger than a reader accepts."""
    key_of = partial(part_key, store, version, attempt, shards=shards)
    dense = first_sequence < DENSE_PARTS
    return _chunk_items(store, chunk, key_of, first_sequence=first_sequence, codec=codec, dense=dense)


def bucket_items(
    store: str, snapshot: SnapshotId, bucket: int, first_sequence: int, shards: int, chunk: Chunk, codec: str = LZ4
) -> list[tuple[Key, Item]]:
    """The items of one chunk of a bucket, which are like the items of a part."""
    key_of = partial(bucket_key, store, snapshot.version, snapshot.id, bucket, shards=shards)
    return _chunk_items(store, chunk, key_of, first_sequence=first_sequence, codec=codec, dense=True)


def _chunk_items(
    store: str, chunk: Chunk, key_of: Callable[[int], Key], *, first_sequence: int, codec: str, dense: bool
) -> list[tuple[Key, Item]]:
    raw_bytes = len(chunk.changes)
    if raw_bytes > RAW_BYTES_MAX:
        raise ConfigurationError(
            "a row of state is larger than 64 MiB, which dynastate does not store", store=store, bytes=raw_bytes
        )
    codec, packed = compress(chunk.changes, codec, dense=dense and raw_bytes <= CHUNK_BYTES_MAX)
    fragments = cut(packed)
    out: list[tuple[Key, Item]] = []
    for fragment, data in enumerate(fragments):
        key = key_of(first_sequence + fragment)
        hashes = chunk.hash_min, chunk.hash_max
        fields = (FORMAT, codec, chunk.records, raw_bytes, fragment, len(fragments), *hashes)
        out.append((key, _part_item(key, fields, data)))
    return out


def _part_item(key: Key, fields: Sequence[Value], data: bytes) -> Item:
    item = item_key(key) | dict(zip(_FIELDS, fields, strict=True))
    return item | {"crc32": _part_crc(key, fields, data), "data": data}


def copied_part(key: Key, part: Part) -> Item:
    """The item of a part with the content of another one."""
    return _part_item(key, (FORMAT, *(getattr(part, name) for name in _FIELDS[1:])), part.data)


def _part_crc(key: Key, fields: Sequence[object], data: bytes) -> int:
    head = "".join(f"{field}\n" for field in (key.store_shard, key.sort, *fields))
    return zlib.crc32(data, zlib.crc32(head.encode()))


def overhead_bytes(key: Key) -> int:
    """Size of a part's item without its data, exact except for a few digits of its numbers."""
    typical = (FORMAT, "lz4", 1_000, 100_000, 0, 1, 10**9, 3 * 10**9)
    item = item_key(key) | dict(zip(_FIELDS, typical, strict=True))
    return item_bytes(item | {"crc32": 2 * 10**9, "data": b""})


def part_of(item: Item) -> Part:
    """The part in an item that was made here or has been verified."""
    return Part(**{name: item[name] for name in _ATTRIBUTES})  # type: ignore[arg-type]  # each has the type of its field


def parse_part(key: Key, item: Item) -> Part:
    check_format(key, item)
    data, codec, crc = item.get("data"), item.get("codec"), number(key, item, "crc32")
    if not isinstance(data, bytes) or not isinstance(codec, str):
        raise CorruptStateError("part has no data or no codec", **where(key))
    numbers = {name: number(key, item, name) for name in _FIELDS if name not in ("format", "codec")}
    if _part_crc(key, (FORMAT, codec, *numbers.values()), data) != crc:
        raise CorruptStateError("part has a wrong checksum: its bytes are corrupt", **where(key))
    if codec not in CODECS or not 0 < numbers["raw_bytes"] <= RAW_BYTES_MAX:
        raise CorruptStateError(
            "part has an unknown codec or an impossible size", codec=codec, raw_bytes=numbers["raw_bytes"], **where(key)
        )
    return part_of(item)


def join_fragments(key: Key, parts: Sequence[Part]) -> StoredChunk:
    """The chunk of consecutive parts."""
    first = parts[0]
    expected = [(number, len(parts), first.codec, first.records, first.raw_bytes) for number in range(len(parts))]
    if [(part.fragment, part.fragments, part.codec, part.records, part.raw_bytes) for part in parts] != expected:
        raise CorruptStateError("fragments of a chunk do not follow each other", **where(key))
    packed = first.data if len(parts) == 1 else b"".join(part.data for part in parts)
    return StoredChunk(key, first.codec, records=first.records, raw_bytes=first.raw_bytes, packed=packed)


def parts_digest(crcs: Sequence[int]) -> bytes:
    """BLAKE2b with 8 bytes of output over the parts' CRCs, in sequence."""
    return digest_of(struct.pack(f"<{len(crcs)}I", *crcs))


class Sums(NamedTuple):
    """Sums over parts, by which they are named: in a version entry for an attempt, in a manifest for a bucket."""

    parts: int
    records: int
    raw_bytes: int
    stored_bytes: int
    digest: bytes


class Tally:
    """Counts parts and their chunks as they are written or read."""

    def __init__(self) -> None:
        self._crcs: list[int] = []
        self._records = self._raw_bytes = self._stored_bytes = 0

    @property
    def parts(self) -> int:
        return len(self._crcs)

    def add_part(self, part: Part) -> int:
        """Add a part, and return the bytes of its data."""
        self._crcs.append(part.crc32)
        self._stored_bytes += len(part.data)
        return len(part.data)

    def add_chunk(self, records: int, raw_bytes: int) -> None:
        self._records += records
        self._raw_bytes += raw_bytes

    def sums(self) -> Sums:
        digest = parts_digest(self._crcs)
        return Sums(self.parts, self._records, self._raw_bytes, self._stored_bytes, digest=digest)
