r"""Snapshot manifests: which items hold each bucket of a snapshot (docs/storage-format.md).

manifest := format:u8  body  crc32:u32                             crc32 over {store} "\n" and all bytes before it
body     := version attempt:16 id:16 base bits:u8 holders (version id:16)* extras bucket * 2^bits
extras   := count (tag length bytes)*                              tag 1: homes, in manifests of a fork
homes    := count (shards length store)*  place * holders
bucket   := holder ( emptied | parts records raw_bytes stored_bytes digest:8 )
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dynastate.errors import CorruptStateError
from dynastate.format import binary
from dynastate.format.items import FORMAT, Item, check_format, item_key
from dynastate.format.keys import (
    NO_ATTEMPT,
    Attempt,
    Home,
    Key,
    SnapshotId,
    bucket_key,
    digest_of,
    snapshot_key,
    where,
)
from dynastate.format.snapshot import Snapshot, SnapshotName

BITS_MAX: Final = 12
NO_HOLDER: Final = SnapshotId(0, NO_ATTEMPT)


@dataclass(frozen=True, slots=True)
class Bucket:
    """The rows whose key hashes lie in one range. `holder` is the snapshot that wrote it.

    A bucket without rows has no holder, but a delete marker: `emptied`, the version at which it was found empty.
    `home` is the store that contains its items, if it is another one: an origin of a fork.
    """

    holder: SnapshotId = NO_HOLDER
    emptied: int = 0
    parts: int = 0
    records: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    digest: bytes = bytes(8)
    home: Home | None = None


@dataclass(frozen=True, slots=True)
class SnapshotManifest(SnapshotName):
    """A snapshot's 2^bits buckets. `base` is the version of the snapshot that others were carried from, 0: none.

    The changes of the versions after `base` are folded in.
    """

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
        """The keys of a bucket's items, in sequence."""
        held = self.buckets[bucket]
        home = held.home or Home(store, shards)
        for sequence in range(held.parts):
            yield bucket_key(home.store, *held.holder, bucket, sequence, home.shards)


def encode_manifest(store: str, manifest: SnapshotManifest) -> bytes:
    """The bytes of a manifest; the CRC covers the store's name too."""
    holders: dict[SnapshotId, int] = {}
    homes: dict[Home | None, int] = {None: 0}
    places: list[int] = []
    for bucket in manifest.buckets:
        if bucket.holder != NO_HOLDER and bucket.holder not in holders:
            holders[bucket.holder] = len(holders) + 1
            places.append(homes.setdefault(bucket.home, len(homes)))
    header = binary.varint(manifest.version) + manifest.attempt + manifest.id + binary.varint(manifest.base)
    header += bytes([manifest.bits]) + binary.varint(len(holders))
    writers = [binary.varint(version) + own for version, own in holders]
    named = [binary.encode_home(home) for home in homes if home]
    listed = b"".join([binary.varint(len(named)), *named, binary.varints(places)])
    extras = binary.encode_extras({binary.HOME: listed} if named else {})
    buckets = (_encode_bucket(bucket, holders) for bucket in manifest.buckets)
    return binary.seal(store, b"".join([header, *writers, extras, *buckets]))


def _encode_bucket(bucket: Bucket, holders: dict[SnapshotId, int]) -> bytes:
    if bucket.holder == NO_HOLDER:
        return binary.varints([0, bucket.emptied])
    sizes = bucket.parts, bucket.records, bucket.raw_bytes, bucket.stored_bytes
    return binary.varints([holders[bucket.holder], *sizes]) + bucket.digest


def decode_manifest(store: str, raw: bytes) -> SnapshotManifest:
    cursor = binary.unseal(store, raw, "manifest")
    version, attempt, own = cursor.varint(), Attempt(cursor.take(16)), Attempt(cursor.take(16))
    base, bits = cursor.varint(), cursor.take(1)[0]
    if bits > BITS_MAX:
        raise CorruptStateError("manifest has an impossible number of buckets", store=store, bits=bits)
    holders = [NO_HOLDER, *(SnapshotId(cursor.varint(), Attempt(cursor.take(16))) for _ in range(cursor.varint()))]
    homes: list[Home | None] = [None] * len(holders)
    extra = binary.decode_extras(store, cursor, [binary.HOME], "manifest").get(binary.HOME)
    if extra is not None:
        listed = [None, *(binary.decode_home(store, extra) for _ in range(extra.varint()))]
        homes[1:] = [_home(extra, listed) for _ in holders[1:]]
    buckets = tuple(_bucket(cursor, holders, homes) for _ in range(1 << bits))
    if not cursor.at_end():
        raise CorruptStateError("manifest has too many bytes", store=store, version=version)
    return SnapshotManifest(version, attempt, own, base, bits, buckets)


def _home(cursor: binary.Cursor, homes: list[Home | None]) -> Home | None:
    place = cursor.varint()
    if place >= len(homes):
        raise CorruptStateError("manifest names a store that it does not list", place=place)
    return homes[place]


def _bucket(cursor: binary.Cursor, holders: list[SnapshotId], homes: list[Home | None]) -> Bucket:
    holder = cursor.varint()
    if holder >= len(holders):
        raise CorruptStateError("manifest names a holder that it does not list", holder=holder)
    if holder == 0:
        return Bucket(emptied=cursor.varint())
    return Bucket(holders[holder], 0, *binary.decode_sums(cursor), homes[holder])


def manifest_item(key: Key, raw: bytes) -> Item:
    return item_key(key) | {"format": FORMAT, "data": raw}


def parse_manifest(store: str, snapshot: Snapshot, key: Key, found: Item) -> SnapshotManifest:
    check_format(key, found)
    facts = where(key) | {"snapshot": snapshot_key(store, *snapshot.of).sort}
    raw = found.get("data")
    if not isinstance(raw, bytes) or digest_of(raw) != snapshot.digest:
        raise CorruptStateError("a manifest is not the one that its snapshot names", **facts)
    try:
        manifest = decode_manifest(store, raw)
    except CorruptStateError as corrupt:
        raise CorruptStateError(str(corrupt), **facts) from corrupt
    if (manifest.version, manifest.attempt, manifest.id) != (snapshot.version, snapshot.attempt, snapshot.id):
        raise CorruptStateError("a manifest is of another snapshot", **facts)
    if manifest.sizes() != (snapshot.records, snapshot.raw_bytes, snapshot.stored_bytes):
        raise CorruptStateError("a manifest and its snapshot disagree on sizes", **facts)
    return manifest


def bits_for(state_bytes: int) -> int:
    """The number of hash bits that name a bucket, so that one has about half a megabyte before compression."""
    wanted = max(1, state_bytes // (512 * 1024))
    return min(BITS_MAX, (wanted - 1).bit_length())
