r"""The directory of a snapshot: which items hold each of its buckets (docs/storage-format.md). No I/O.

directory := format:u8  body  crc32:u32                            crc32 over {store} "\n" and all bytes before it
body      := version attempt:16 id:16 base bits:u8 holders (version id:16)* homes? bucket * 2^bits
homes     := count (shards length store)*  place * holders         in format 2, that of a fork, and only there
bucket    := holder ( emptied | parts records raw_bytes stored_bytes digest:8 )
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dynastate import layout
from dynastate.errors import CorruptStateError
from dynastate.layout import FORKED, FORMAT, Attempt, Home, Item, Key, Reader, Snapshot, varint

BITS_MAX: Final = 12


@dataclass(frozen=True, slots=True)
class Bucket:
    """The rows whose keys' hashes fall in one range. `holder` is the snapshot that wrote it, as (version, id).

    A bucket without rows has no holder, but a delete marker: `emptied`, the version at which it was found empty.
    `home` is where its items lie, if that is not the store itself: a fork has it from a store it was made of.
    """

    holder: tuple[int, Attempt] = layout.EMPTY
    emptied: int = 0
    parts: int = 0
    records: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    digest: bytes = bytes(8)
    home: Home | None = None


@dataclass(frozen=True, slots=True)
class Directory:
    """A snapshot's 2^bits buckets. `base` is the version of the snapshot that others were carried from, 0: none.

    The changes of the versions after `base` are folded in.
    """

    version: int
    attempt: Attempt
    id: Attempt
    base: int
    bits: int
    buckets: tuple[Bucket, ...]

    def sizes(self) -> tuple[int, int, int]:
        """Records, raw bytes and stored bytes of all buckets, as the snapshot's item has them."""
        return (
            sum(bucket.records for bucket in self.buckets),
            sum(bucket.raw_bytes for bucket in self.buckets),
            sum(bucket.stored_bytes for bucket in self.buckets),
        )

    def keys(self, store: str, bucket: int, shards: int) -> Iterator[Key]:
        """Where the items of a bucket lie, in sequence."""
        held = self.buckets[bucket]
        home = held.home or Home(store, shards)
        for sequence in range(held.parts):
            yield layout.bucket_key(home.store, *held.holder, bucket, sequence, home.shards)


def encode(store: str, directory: Directory) -> bytes:
    """The bytes of a directory; the CRC covers the store's name too."""
    holders: dict[tuple[int, Attempt], int] = {}
    homes: dict[Home | None, int] = {None: 0}
    places: list[int] = []
    for bucket in directory.buckets:
        if bucket.holder != layout.EMPTY and bucket.holder not in holders:
            holders[bucket.holder] = len(holders) + 1
            places.append(homes.setdefault(bucket.home, len(homes)))
    out = bytearray([FORKED if len(homes) > 1 else FORMAT])
    out += varint(directory.version) + directory.attempt + directory.id + varint(directory.base)
    out += bytes([directory.bits]) + varint(len(holders))
    for version, own in holders:
        out += varint(version) + own
    if len(homes) > 1:
        out += varint(len(homes) - 1) + b"".join(layout.encode_home(home) for home in homes if home)
        out += b"".join(map(varint, places))
    for bucket in directory.buckets:
        if bucket.holder == layout.EMPTY:
            out += varint(0) + varint(bucket.emptied)
            continue
        out += varint(holders[bucket.holder])
        for number in (bucket.parts, bucket.records, bucket.raw_bytes, bucket.stored_bytes):
            out += varint(number)
        out += bucket.digest
    return layout.seal(store, bytes(out))


def decode(store: str, raw: bytes) -> Directory:
    """A directory from its bytes.

    Raises:
        CorruptStateError: unknown format, wrong checksum, or not exactly one directory.
    """
    reader = layout.unseal(store, raw, "directory")
    version, attempt, own = reader.varint(), Attempt(reader.take(16)), Attempt(reader.take(16))
    base, bits = reader.varint(), reader.take(1)[0]
    if bits > BITS_MAX:
        raise CorruptStateError("directory has an impossible number of buckets", store=store, bits=bits)
    holders = [layout.EMPTY, *((reader.varint(), Attempt(reader.take(16))) for _ in range(reader.varint()))]
    homes: list[Home | None] = [None] * len(holders)
    if raw[0] == FORKED:
        listed = [None, *(layout.decode_home(store, reader) for _ in range(reader.varint()))]
        homes[1:] = [_home(reader, listed) for _ in holders[1:]]
    buckets = tuple(_bucket(reader, holders, homes) for _ in range(1 << bits))
    if not reader.at_end():
        raise CorruptStateError("directory has bytes too many", store=store, version=version)
    return Directory(version, attempt, own, base, bits, buckets)


def _home(reader: Reader, homes: list[Home | None]) -> Home | None:
    place = reader.varint()
    if place >= len(homes):
        raise CorruptStateError("directory names a store that it does not list", place=place)
    return homes[place]


def _bucket(reader: Reader, holders: list[tuple[int, Attempt]], homes: list[Home | None]) -> Bucket:
    holder = reader.varint()
    if holder >= len(holders):
        raise CorruptStateError("directory names a holder that it does not list", holder=holder)
    if holder == 0:
        return Bucket(emptied=reader.varint())
    parts, records, raw_bytes, stored_bytes = (reader.varint() for _ in range(4))
    return Bucket(holders[holder], 0, parts, records, raw_bytes, stored_bytes, reader.take(8), homes[holder])


def item(key: Key, raw: bytes) -> Item:
    return layout.item_key(key) | {"format": FORMAT, "data": raw}


def parse(store: str, snapshot: Snapshot, key: Key, found: Item) -> Directory:
    """The directory of a snapshot from its item.

    Raises:
        CorruptStateError: it is broken, or not the one that the snapshot's item names.
    """
    layout.check_format(key, found)
    where = layout.where(key) | {"snapshot": layout.snapshot_key(store, snapshot.version, snapshot.attempt).sort}
    raw = found.get("data")
    if not isinstance(raw, bytes) or layout.digest_of(raw) != snapshot.digest:
        raise CorruptStateError("a directory is not the one that its snapshot names", **where)
    try:
        directory = decode(store, raw)
    except CorruptStateError as broken:
        raise CorruptStateError(str(broken), **where) from broken
    if (directory.version, directory.attempt, directory.id) != (snapshot.version, snapshot.attempt, snapshot.id):
        raise CorruptStateError("a directory is of another snapshot", **where)
    if directory.sizes() != (snapshot.records, snapshot.raw_bytes, snapshot.stored_bytes):
        raise CorruptStateError("a directory and its snapshot disagree on sizes", **where)
    return directory


def bits_for(state_bytes: int) -> int:
    """How many bits of the hash name a bucket, so that one has about half a megabyte before compression."""
    wanted = max(1, state_bytes // (512 * 1024))
    return min(BITS_MAX, (wanted - 1).bit_length())
