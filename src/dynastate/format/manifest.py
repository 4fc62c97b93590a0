r"""Snapshot manifests: the items that hold each bucket of a snapshot (docs/storage-format.md).

manifest := format:u8  body  crc32:u32                             crc32 over {store} "\n" and all bytes before it
body     := version attempt:16 id:16 base bits:u8 holders (version id:16)* extras bucket * 2^bits
extras   := count (tag length bytes)*                              tag 1: homes, in manifests of a fork; 4: objects
homes    := count (shards length store)*  place * holders
objects  := count (length location stream_bytes)*  ( 0 | place start ) * 2^bits            0: items; place: 1 on
bucket   := holder ( emptied | parts records raw_bytes stored_bytes digest:8 )
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dynastate.errors import CorruptStateError
from dynastate.format import binary
from dynastate.format.items import FORMAT, Item, check_format, item_key
from dynastate.format.keys import NO_ATTEMPT, Attempt, Home, Key, SnapshotId, bucket_key, digest_of, snapshot_key, where
from dynastate.format.objects import FRAME_BYTES, ObjectId, ObjectPlace, ObjectStream, bucket_stream, object_numbers
from dynastate.format.snapshot import Snapshot, SnapshotName
from dynastate.runtime import limits

BITS_MAX: Final = 12
NO_HOLDER: Final = SnapshotId(0, NO_ATTEMPT)


@dataclass(frozen=True, slots=True)
class Bucket:
    """The rows whose key hashes lie in one range. `holder` is the snapshot that wrote it.

    A bucket without rows has no holder, but a delete marker: `emptied`, the version at which it was found empty.
    `home` is the store that contains its items, if that is an origin of a fork.
    `place` is the place of its parts in objects of S3, or None if they are items.
    """

    holder: SnapshotId = NO_HOLDER
    emptied: int = 0
    parts: int = 0
    records: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    digest: bytes = bytes(8)
    home: Home | None = None
    place: ObjectPlace | None = None

    @property
    def object_bytes(self) -> int:
        """Size of its parts in objects; 0: they are items."""
        return self.stored_bytes + FRAME_BYTES * self.parts if self.place else 0

    def objects(self, store: str) -> list[ObjectId]:
        """The objects that hold its parts."""
        stream = self.stream(store)
        return [stream.object(number) for number in self.object_numbers()] if stream else []

    def object_numbers(self) -> range:
        """The numbers of the objects that hold its parts."""
        start = self.place.start if self.place else 0
        return object_numbers(start, start + self.object_bytes)

    def bytes_in(self, number: int) -> int:
        """The bytes of its parts in one of the objects of its stream."""
        start, object_bytes = self.place.start if self.place else 0, limits().object_bytes
        low, high = max(start, number * object_bytes), min(start + self.object_bytes, (number + 1) * object_bytes)
        return max(0, high - low)

    def stream(self, store: str) -> ObjectStream | None:
        """The stream of its parts, if they are in objects."""
        return self.place and bucket_stream(self.place.location, self.home.store if self.home else store, self.holder)


@dataclass(frozen=True, slots=True)
class SnapshotManifest(SnapshotName):
    """A snapshot's 2^bits buckets. `base` is the version of the snapshot whose buckets it reuses, or 0.

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

    def objects(self, store: str) -> set[ObjectId]:
        """The objects that hold its buckets, without objects of another store."""
        return {each for bucket in self.buckets if bucket.home is None for each in bucket.objects(store)}

    @property
    def locations(self) -> set[str]:
        """The locations of the objects that hold buckets."""
        return {bucket.place.location for bucket in self.buckets if bucket.place}

    def sparse(self) -> list[int]:
        """The buckets in objects of which more than half belongs to buckets that it does not name.

        Buckets of another store are left out.
        """
        streams: dict[tuple[SnapshotId, ObjectPlace], list[int]] = {}
        for number, bucket in enumerate(self.buckets):
            if bucket.place and bucket.home is None:
                streams.setdefault((bucket.holder, bucket.place._replace(start=0)), []).append(number)
        return sorted(
            number
            for (_, place), numbers in streams.items()
            if 2 * sum(self.buckets[each].object_bytes for each in numbers) < self._size_of_objects(place, numbers)
            for number in numbers
        )

    def _size_of_objects(self, place: ObjectPlace, numbers: Sequence[int]) -> int:
        """Size of the objects of one stream that hold some buckets."""
        objects = {each for number in numbers for each in self.buckets[number].object_numbers()}
        return sum(map(place.size_of, objects))

    def keys(self, store: str, bucket: int, shards: int) -> Iterator[Key]:
        """The keys of a bucket's items, in sequence."""
        holder, home = self.buckets[bucket].holder, self.buckets[bucket].home or Home(store, shards)
        for sequence in range(self.buckets[bucket].parts):
            yield bucket_key(home.store, holder.version, holder.id, bucket, sequence=sequence, shards=home.shards)


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
    writers = [binary.varint(holder.version) + holder.id for holder in holders]
    named = [binary.encode_home(home) for home in homes if home]
    listed = b"".join([binary.varint(len(named)), *named, binary.varints(places)])
    extras = binary.encode_extras(({binary.HOME: listed} if named else {}) | _encode_places(manifest.buckets))
    buckets = (_encode_bucket(bucket, holders) for bucket in manifest.buckets)
    return binary.seal(store, b"".join([header, *writers, extras, *buckets]))


def _encode_places(buckets: Sequence[Bucket]) -> dict[int, bytes]:
    """The extra with the places of buckets in objects; no extra if all are items."""
    streams: dict[tuple[str, int], int] = {}
    places: list[int] = []
    for place in (bucket.place for bucket in buckets):
        places += [0] if place is None else [streams.setdefault(place[:2], len(streams) + 1), place.start]
    named = [binary.encode_text(location) + binary.varint(size) for location, size in streams]
    return {binary.OBJECTS: b"".join([binary.varint(len(named)), *named, binary.varints(places)])} if named else {}


def _encode_bucket(bucket: Bucket, holders: dict[SnapshotId, int]) -> bytes:
    if bucket.holder == NO_HOLDER:
        return binary.varints([0, bucket.emptied])
    sizes = bucket.parts, bucket.records, bucket.raw_bytes, bucket.stored_bytes
    return binary.varints([holders[bucket.holder], *sizes]) + bucket.digest


def decode_manifest(store: str, raw: bytes) -> SnapshotManifest:
    cursor = binary.unseal(store, raw, "manifest")
    version, attempt, snapshot_id = cursor.varint(), Attempt(cursor.take(16)), Attempt(cursor.take(16))
    base, bits = cursor.varint(), cursor.take(1)[0]
    if bits > BITS_MAX:
        raise CorruptStateError("manifest has an impossible number of buckets", store=store, bits=bits)
    holders = [NO_HOLDER, *(SnapshotId(cursor.varint(), Attempt(cursor.take(16))) for _ in range(cursor.varint()))]
    homes: list[Home | None] = [None] * len(holders)
    extras = binary.decode_extras(store, cursor, [binary.HOME, binary.OBJECTS], "manifest")
    if (extra := extras.get(binary.HOME)) is not None:
        listed = [None, *(binary.decode_home(store, extra) for _ in range(extra.varint()))]
        homes[1:] = [_home(extra, listed) for _ in holders[1:]]
    places: list[ObjectPlace | None] = [None] * (1 << bits)
    if (extra := extras.get(binary.OBJECTS)) is not None:
        places = _decode_places(extra, len(places))
    buckets = tuple(_bucket(cursor, holders, homes, place) for place in places)
    if not cursor.at_end():
        raise CorruptStateError("manifest has too many bytes", store=store, version=version)
    return SnapshotManifest(version, attempt, snapshot_id, base=base, bits=bits, buckets=buckets)


def _home(cursor: binary.Cursor, homes: list[Home | None]) -> Home | None:
    number = cursor.varint()
    if number >= len(homes):
        raise CorruptStateError("manifest names a store that it does not list", place=number)
    return homes[number]


def _decode_places(cursor: binary.Cursor, count: int) -> list[ObjectPlace | None]:
    streams = [(binary.decode_text(cursor), cursor.varint()) for _ in range(cursor.varint())]
    places: list[ObjectPlace | None] = []
    for _ in range(count):
        number = cursor.varint()
        if number > len(streams):
            raise CorruptStateError("manifest names a stream of objects that it does not list", place=number)
        location, size = streams[number - 1] if number else ("", 0)
        places.append(ObjectPlace(location, size, cursor.varint()) if number else None)
    return places


def _bucket(
    cursor: binary.Cursor, holders: list[SnapshotId], homes: list[Home | None], place: ObjectPlace | None
) -> Bucket:
    holder = cursor.varint()
    if holder >= len(holders):
        raise CorruptStateError("manifest names a holder that it does not list", holder=holder)
    if holder == 0:
        return Bucket(emptied=cursor.varint())
    parts, records, raw_bytes, stored_bytes, digest = binary.decode_sums(cursor)
    return Bucket(
        holders[holder],
        parts=parts,
        records=records,
        raw_bytes=raw_bytes,
        stored_bytes=stored_bytes,
        digest=digest,
        home=homes[holder],
        place=place,
    )


def manifest_item(key: Key, raw: bytes) -> Item:
    return item_key(key) | {"format": FORMAT, "data": raw}


def parse_manifest(store: str, snapshot: Snapshot, key: Key, item: Item) -> SnapshotManifest:
    check_format(key, item)
    facts = where(key) | {"snapshot": snapshot_key(store, snapshot.version, snapshot.attempt).sort}
    raw = item.get("data")
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
    """The number of hash bits that make buckets of about half a megabyte before compression."""
    buckets = max(1, state_bytes // (512 * 1024))
    return min(BITS_MAX, (buckets - 1).bit_length())
