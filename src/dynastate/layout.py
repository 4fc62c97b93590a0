"""The only module that knows names, keys and items of the two tables (docs/storage-format.md, version 1). No I/O.

    delta table            store_shard = {store}#{shard}    part  = {version}/{attempt}/{sequence}
    snapshot-group table   store_shard = {store}#0          entry = meta | group/{g} | schema/{digest}
                                                            entry = snapshot/{version}/{attempt}
                                                            entry = directory/{version}/{id}
                           store_shard = {store}#{shard}    entry = bucket/{version}/{id}/{bucket}/{sequence}

WARNING: every constant here is stored. Changing one makes existing state unreadable; it takes a new format version.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from dynastate import blocks, rows
from dynastate.errors import (
    ConfigurationError,
    CorruptStateError,
    InternalError,
    VersionMissingError,
)

FORMAT: Final = 1
#: Of version entries and directories that name what lies in another store: only forks have them.
FORKED: Final = 2
GROUP_SIZE: Final = 10
CHUNK_BYTES_MAX: Final = 256 * 1024
PARTS_MAX: Final = 1_000_000
#: The largest version that a key has digits for.
VERSION_MAX: Final = 10**20 - 1
SHARDS_MAX: Final = 256
#: So many parts of an attempt are compressed with care. Small batches get by with them, and pay the most for each row;
#: for large ones the time would count.
DENSE_PARTS: Final = 2
EPOCHS_KEPT: Final = 16
STORE_BYTES_MAX: Final = 1_024
#: What an item of a part has beside its data, about: names, numbers, and a key of the usual length.
PART_OVERHEAD_BYTES: Final = 250
#: The largest chunk a reader accepts, and so a writer may make: one record with its header.
RAW_BYTES_MAX: Final = rows.RECORD_BYTES_MAX

Role = Literal["delta", "snapshot"]
Value = str | int | bytes | list[bytes] | dict[str, int] | frozenset[str]
Item = dict[str, Value]


class TableSpec(NamedTuple):
    """What a table must look like: both keys are strings."""

    role: Role
    hash_key: str
    range_key: str


class Key(NamedTuple):
    """The primary key of one item, and the table it lies in."""

    role: Role
    store_shard: str
    sort: str

    @property
    def namespace(self) -> str:
        """Of the store it belongs to: what a policy allows or denies it by."""
        return self.store_shard.partition("/")[0]


DELTA = TableSpec("delta", "store_shard", "part")
SNAPSHOT = TableSpec("snapshot", "store_shard", "entry")
SPECS: Final[dict[Role, TableSpec]] = {"delta": DELTA, "snapshot": SNAPSHOT}

META: Final = "meta"
#: The forks that stand on an item, by their stores. It is not replaced or deleted while there are any.
FORKS: Final = "forks"
#: In the meta item of a fork: the store it was made of, the version, and the names there that it still stands on.
ORIGIN, ORIGIN_VERSION, PINS = "origin", "origin_version", "pins"
#: In the meta item of a store that is being dropped.
DROPPED: Final = "dropped"


class Attempt(bytes):
    """A random 128-bit id, 16 bytes. `hex()` is its form in keys; `NO_ATTEMPT` stands for none."""

    __slots__ = ()

    def __new__(cls, raw: bytes) -> Attempt:  # noqa: PYI034  # Self comes with Python 3.11, and nobody derives from it
        if len(raw) != 16:
            raise CorruptStateError("an attempt is 16 bytes", got=len(raw))
        return super().__new__(cls, raw)


NO_ATTEMPT: Final = Attempt(bytes(16))
#: Version 0, which nobody made.
EMPTY: Final = (0, NO_ATTEMPT)


def namespace_of(checkpoint: str) -> str:
    """First part of a store's name where no namespace is set: a digest of the checkpoint's state root."""
    return hashlib.sha256(checkpoint.encode()).hexdigest()[:32]


def check_store(store: str) -> str:
    """The store's name, once it is known to fit into a key.

    Raises:
        ConfigurationError: it is empty, holds the shard separator, or is too long.
    """
    if not store or "#" in store or len(store.encode()) > STORE_BYTES_MAX:
        raise ConfigurationError(
            f"a store name must have 1 to {STORE_BYTES_MAX} bytes and no '#'", store=repr(store[:200])
        )
    return store


def store_shard(store: str, shard: int) -> str:
    return f"{store}#{shard}"


def part_key(store: str, version: int, attempt: Attempt, sequence: int, shards: int) -> Key:
    """Where part number `sequence` of an attempt lies."""
    return Key(
        "delta", store_shard(store, (version + sequence) % shards), f"{version:020d}/{attempt.hex()}/{sequence:06d}"
    )


def group_key(store: str, version: int) -> Key:
    """Where the version entry of a version stands."""
    return Key("snapshot", store_shard(store, 0), f"group/{version // GROUP_SIZE:016d}")


def meta_key(store: str) -> Key:
    return Key("snapshot", store_shard(store, 0), META)


def digest_of(raw: bytes) -> bytes:
    """BLAKE2b with 8 bytes of output: what the content of an item is named by."""
    return hashlib.blake2b(raw, digest_size=8).digest()


def schema_digest(text: str) -> bytes:
    return digest_of(text.encode())


def schema_key(store: str, digest: bytes) -> Key:
    return Key("snapshot", store_shard(store, 0), f"schema/{digest.hex()}")


def snapshot_key(store: str, version: int, attempt: Attempt) -> Key:
    """Where it is said that there is a snapshot of a version."""
    return Key("snapshot", store_shard(store, 0), f"snapshot/{version:020d}/{attempt.hex()}")


def directory_key(store: str, version: int, snapshot: Attempt) -> Key:
    """Where the directory of a snapshot lies, by the snapshot's own id."""
    return Key("snapshot", store_shard(store, 0), f"directory/{version:020d}/{snapshot.hex()}")


def bucket_key(store: str, version: int, snapshot: Attempt, bucket: int, sequence: int, shards: int) -> Key:
    """Where item number `sequence` of a bucket lies, by the id of the snapshot that wrote it."""
    sort = f"bucket/{version:020d}/{snapshot.hex()}/{bucket:04d}/{sequence:06d}"
    return Key("snapshot", store_shard(store, (bucket + sequence) % shards), sort)


_PART = re.compile(r"([0-9]{20})/([0-9a-f]{32})/([0-9]{6})")
_SNAPSHOT = re.compile(r"snapshot/([0-9]{20})/([0-9a-f]{32})")
_DIRECTORY = re.compile(r"directory/([0-9]{20})/([0-9a-f]{32})")
_BUCKET = re.compile(r"bucket/([0-9]{20})/([0-9a-f]{32})/([0-9]{4})/([0-9]{6})")


def maker_of_part(key: Key) -> tuple[int, Attempt] | None:
    """Version and attempt that the key of a part names; None: it is no key of ours."""
    return _maker(_PART.fullmatch(key.sort))


def maker_of_directory(key: Key) -> tuple[int, Attempt] | None:
    """Version and id of the snapshot whose directory has this key; None: it is no such key."""
    return _maker(_DIRECTORY.fullmatch(key.sort))


def maker_of_bucket(key: Key) -> tuple[int, Attempt, int] | None:
    """Version and id of the snapshot that wrote a bucket's item, and the bucket; None: it is no such key."""
    found = _BUCKET.fullmatch(key.sort)
    maker = _maker(found)
    return None if found is None or maker is None else (*maker, int(found[3]))


def _maker(found: re.Match[str] | None) -> tuple[int, Attempt] | None:
    return None if found is None else (int(found[1]), Attempt(bytes.fromhex(found[2])))


def bucket_range(version: int, snapshot: Attempt) -> tuple[str, str]:
    """Sort keys between which all buckets lie that one snapshot wrote."""
    prefix = f"bucket/{version:020d}/{snapshot.hex()}/"
    return prefix, f"{prefix}~"


def snapshot_range() -> tuple[str, str]:
    """Sort keys between which all snapshots of a store are said to be."""
    return "snapshot/", "snapshot/~"


def versions_of(group: Key) -> range:
    """The versions whose entries stand in the version list of this key."""
    first = int(group.sort.removeprefix("group/")) * GROUP_SIZE
    return range(first, first + GROUP_SIZE)


def parts_range(first: int, below: int) -> tuple[str, str]:
    """Sort keys between which the parts of all attempts at some versions lie, from the first on."""
    return f"{first:020d}", f"{below:020d}"


def history_range(lowest: int, highest: int) -> tuple[str, str]:
    """Sort keys between which everything lies that opening a version can need: groups, meta, schemas, snapshots.

    Groups begin with that of version `lowest`, snapshots end with those of version `highest`.
    """
    return f"group/{lowest // GROUP_SIZE:016d}", f"snapshot/{highest:020d}/~"


def item_key(key: Key) -> Item:
    return {SPECS[key.role].hash_key: key.store_shard, SPECS[key.role].range_key: key.sort}


def item_bytes(item: Item) -> int:
    """Size of an item by DynamoDB's rules (developer guide, "Item sizes and formats"): names and values, in bytes."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def _value_bytes(value: Value) -> int:
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, int):
        return len(str(value)) // 2 + 2
    if isinstance(value, list):
        return 3 + sum(1 + len(element) for element in value)
    if isinstance(value, frozenset):
        return sum(len(element.encode()) for element in value)
    return 3 + sum(1 + len(name.encode()) + _value_bytes(number) for name, number in value.items())


# ---------------------------------------------------------------------------------------------------------------- parts


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of whole records. `hash_min` and `hash_max` are the bounds of its keys' hashes."""

    records: int
    hash_min: int
    hash_max: int
    run: bytes


def _part_crc(key: Key, fields: Sequence[object], data: bytes) -> int:
    head = "".join(f"{field}\n" for field in (key.store_shard, key.sort, *fields))
    return zlib.crc32(data, zlib.crc32(head.encode()))


def part_items(
    store: str, version: int, attempt: Attempt, first_sequence: int, shards: int, chunk: Chunk
) -> list[tuple[Key, Item]]:
    """The items one chunk of an attempt becomes: compressed, cut to item size, each with its checksum.

    Raises:
        ConfigurationError: the chunk is larger than a reader accepts.
    """
    dense = first_sequence < DENSE_PARTS
    return _chunk_items(
        store, chunk, lambda n: part_key(store, version, attempt, first_sequence + n, shards), dense=dense
    )


def bucket_items(
    store: str, version: int, snapshot: Attempt, bucket: int, first_sequence: int, shards: int, chunk: Chunk
) -> list[tuple[Key, Item]]:
    """The items one chunk of a bucket becomes, as those of a part.

    Raises:
        ConfigurationError: the chunk is larger than a reader accepts.
    """
    return _chunk_items(
        store, chunk, lambda n: bucket_key(store, version, snapshot, bucket, first_sequence + n, shards), dense=True
    )


def _chunk_items(store: str, chunk: Chunk, key_of: Callable[[int], Key], *, dense: bool) -> list[tuple[Key, Item]]:
    if len(chunk.run) > RAW_BYTES_MAX:
        raise ConfigurationError(
            "a row of state is larger than 64 MiB, which dynastate does not store", store=store, bytes=len(chunk.run)
        )
    codec, packed = blocks.compress(chunk.run, dense=dense and len(chunk.run) <= CHUNK_BYTES_MAX)
    fragments = blocks.cut(packed)
    out: list[tuple[Key, Item]] = []
    for place, data in enumerate(fragments):
        key = key_of(place)
        fields = (FORMAT, codec, chunk.records, len(chunk.run), place, len(fragments), chunk.hash_min, chunk.hash_max)
        item: Item = item_key(key)
        item.update(zip(_PART_FIELDS, fields, strict=True))
        item["crc32"] = _part_crc(key, fields, data)
        item["data"] = data
        out.append((key, item))
    return out


_PART_FIELDS: Final = ("format", "codec", "records", "raw_bytes", "fragment", "fragments", "hash_min", "hash_max")
_PART_ATTRIBUTES: Final = (*_PART_FIELDS[1:], "crc32", "data")


def overhead_bytes(key: Key) -> int:
    """Size of a part's item without its data: exact but for a few digits of its numbers."""
    typical = (FORMAT, "lz4", 1_000, 100_000, 0, 1, 10**9, 3 * 10**9)
    item = item_key(key) | dict(zip(_PART_FIELDS, typical, strict=True))
    return item_bytes(item | {"crc32": 2 * 10**9, "data": b""})


@dataclass(frozen=True, slots=True)
class Part:
    """A part as read back, its checksum verified."""

    codec: str
    records: int
    raw_bytes: int
    fragment: int
    fragments: int
    hash_min: int
    hash_max: int
    crc32: int
    data: bytes


def part_of(item: Item) -> Part:
    """The part that an item is, which was made here or has been checked."""
    return Part(**{name: item[name] for name in _PART_ATTRIBUTES})  # type: ignore[arg-type]  # each is of its kind


def parse_part(key: Key, item: Item) -> Part:
    """Check one item of the delta table.

    Raises:
        CorruptStateError: an attribute is missing, of an unknown format, or the checksum is wrong.
    """
    check_format(key, item)
    data, codec, crc = item.get("data"), item.get("codec"), _number(key, item, "crc32")
    if not isinstance(data, bytes) or not isinstance(codec, str):
        raise CorruptStateError("part has no data or no codec", **where(key))
    numbers = {name: _number(key, item, name) for name in _PART_FIELDS if name not in ("format", "codec")}
    fields = (FORMAT, codec, *numbers.values())
    if _part_crc(key, fields, data) != crc:
        raise CorruptStateError("part has a wrong checksum: its bytes are broken", **where(key))
    if codec not in blocks.CODECS or not 0 < numbers["raw_bytes"] <= RAW_BYTES_MAX:
        raise CorruptStateError(
            "part has an unknown codec or an impossible size",
            codec=codec,
            raw_bytes=numbers["raw_bytes"],
            **where(key),
        )
    return part_of(item)


#: What `parse_bounds` needs of a part's attributes.
BOUNDS_ATTRIBUTES: Final = ("format", "hash_min", "hash_max", "crc32")


class Bounds(NamedTuple):
    """The smallest and the largest hash of a key in a part's chunk, and the part's checksum."""

    hash_min: int
    hash_max: int
    crc32: int


def parse_bounds(key: Key, item: Item) -> Bounds:
    """The bounds of a part, of which no more than these attributes was read.

    Raises:
        CorruptStateError: an attribute is missing, or of an unknown format.
    """
    check_format(key, item)
    return Bounds(*(_number(key, item, name) for name in BOUNDS_ATTRIBUTES[1:]))


def join_fragments(key: Key, parts: Sequence[Part]) -> bytes:
    """The chunk that these consecutive parts hold.

    Raises:
        CorruptStateError: they do not follow each other, or are no block.
    """
    first = parts[0]
    expected = [(place, len(parts), first.codec, first.records, first.raw_bytes) for place in range(len(parts))]
    if [(part.fragment, part.fragments, part.codec, part.records, part.raw_bytes) for part in parts] != expected:
        raise CorruptStateError("fragments of a chunk do not follow each other", **where(key))
    packed = first.data if len(parts) == 1 else b"".join(part.data for part in parts)
    try:
        return blocks.decompress(first.codec, packed, first.raw_bytes)
    except CorruptStateError as broken:
        raise CorruptStateError(str(broken), **where(key)) from broken


def where(key: Key) -> dict[str, object]:
    """What names an item in an error."""
    return {"table": key.role, "store_shard": key.store_shard, "item": key.sort}


def check_format(key: Key, item: Item) -> None:
    """Refuse an item of another format than ours.

    Raises:
        CorruptStateError: it is of a newer package, or of none.
    """
    form = _number(key, item, "format")
    if form > FORMAT:
        raise CorruptStateError(f"item has format {form}, this package reads {FORMAT}; upgrade dynastate", **where(key))
    if form < FORMAT:
        raise CorruptStateError(f"item has format {form}, which never was: it is broken", **where(key))


def _number(key: Key, item: Item, name: str) -> int:
    value = item.get(name)
    if not isinstance(value, int):
        raise CorruptStateError(f"item has no number {name}", **where(key))
    return value


# --------------------------------------------------------------------------------------------------------- version list


class Home(NamedTuple):
    """The store in which the parts of an attempt, or the items of a bucket, lie, and over how many shards."""

    store: str
    shards: int


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One committed attempt, as the version list names it. Sizes in bytes; `keys` by column family.

    `home` is where its parts lie, if that is not the store itself: a fork has its own from a store it was made of.
    """

    version: int
    attempt: Attempt
    parent: Attempt
    epoch: int
    schema: bytes
    parts: int
    records: int
    raw_bytes: int
    stored_bytes: int
    digest: bytes
    keys: dict[int, int]
    home: Home | None = None


def part_keys(store: str, entry: VersionEntry, shards: int) -> Iterator[Key]:
    """Where the parts of a version lie, in sequence."""
    home = entry.home or Home(store, shards)
    return (
        part_key(home.store, entry.version, entry.attempt, sequence, home.shards) for sequence in range(entry.parts)
    )


def parts_digest(crcs: Sequence[int]) -> bytes:
    """BLAKE2b with 8 bytes of output over the parts' CRCs, in sequence."""
    return digest_of(struct.pack(f"<{len(crcs)}I", *crcs))


class Sums(NamedTuple):
    """What names parts says of them: a version entry of those of an attempt, a directory of those of a bucket."""

    parts: int
    records: int
    raw_bytes: int
    stored_bytes: int
    digest: bytes


class Tally:
    """Parts and their chunks, counted as they are written or read."""

    def __init__(self) -> None:
        self._crcs: list[int] = []
        self._records = self._raw_bytes = self._stored_bytes = 0

    @property
    def parts(self) -> int:
        return len(self._crcs)

    def add_part(self, crc32: int, data: bytes) -> None:
        self._crcs.append(crc32)
        self._stored_bytes += len(data)

    def add_item(self, key: Key, item: Item) -> int:
        """Add a part as it is to be stored; return the bytes of its data."""
        data, crc32 = item["data"], item["crc32"]
        if not isinstance(data, bytes) or not isinstance(crc32, int):
            raise InternalError("a part was made without data", item=key.sort)
        self.add_part(crc32, data)
        return len(data)

    def add_chunk(self, records: int, raw_bytes: int) -> None:
        self._records += records
        self._raw_bytes += raw_bytes

    def sums(self) -> Sums:
        return Sums(self.parts, self._records, self._raw_bytes, self._stored_bytes, parts_digest(self._crcs))


def encode_entry(store: str, entry: VersionEntry) -> bytes:
    """The bytes of a version entry; the CRC covers the store's name too.

    entry := format:u8 body crc32:u32
    body  := version attempt:16 parent:16 epoch schema:8
             parts records raw_bytes stored_bytes digest:8 families (family keys)* home?
    home  := shards length store                                                        in format 2, and only there
    """
    out = bytearray([FORKED if entry.home else FORMAT])
    out += varint(entry.version) + entry.attempt + entry.parent + varint(entry.epoch) + entry.schema
    for number in (entry.parts, entry.records, entry.raw_bytes, entry.stored_bytes):
        out += varint(number)
    out += entry.digest + varint(len(entry.keys))
    for family, count in sorted(entry.keys.items()):
        out += varint(family) + varint(count)
    if entry.home:
        out += encode_home(entry.home)
    return seal(store, bytes(out))


def decode_entry(store: str, raw: bytes) -> VersionEntry:
    """A version entry from its bytes.

    Raises:
        CorruptStateError: unknown format, wrong checksum, or not exactly one entry.
    """
    reader = unseal(store, raw, "version entry")
    version, attempt, parent = reader.varint(), Attempt(reader.take(16)), Attempt(reader.take(16))
    epoch, schema = reader.varint(), reader.take(8)
    parts, records, raw_bytes, stored_bytes = (reader.varint() for _ in range(4))
    digest = reader.take(8)
    keys = {reader.varint(): reader.varint() for _ in range(reader.varint())}
    home = decode_home(store, reader) if raw[0] == FORKED else None
    if not reader.at_end():
        raise CorruptStateError("version entry has bytes too many", store=store, version=version)
    sums = parts, records, raw_bytes, stored_bytes, digest
    return VersionEntry(version, attempt, parent, epoch, schema, *sums, keys, home)


def encode_home(home: Home) -> bytes:
    """The bytes of a home: shards length store."""
    name = home.store.encode()
    return varint(home.shards) + varint(len(name)) + name


def decode_home(store: str, reader: Reader) -> Home:
    """A home from its bytes.

    Raises:
        CorruptStateError: it is none.
    """
    shards, raw = reader.varint(), reader.take(reader.varint())
    try:
        home = Home(check_store(raw.decode()), shards)
    except (UnicodeDecodeError, ConfigurationError) as wrong:
        raise CorruptStateError("a binary value names an impossible store", store=store) from wrong
    if not 1 <= shards <= SHARDS_MAX:
        raise CorruptStateError("a binary value names an impossible number of shards", store=store, shards=shards)
    return home


def seal(store: str, raw: bytes) -> bytes:
    """A binary value, which begins with its format, with its CRC behind it; that covers the store's name too."""
    return raw + struct.pack("<I", _sealing_crc(store, raw))


def unseal(store: str, raw: bytes, what: str) -> Reader:
    """Read a binary value behind its format, once that and its CRC are found right. `what` names it in errors.

    Of the two formats, the second is that of a fork.

    Raises:
        CorruptStateError: unknown format, or wrong checksum.
    """
    if not raw or not FORMAT <= raw[0] <= FORKED:
        raise CorruptStateError(
            f"{what} has format {raw[:1].hex()}, this package reads {FORMAT:02x} and {FORKED:02x}; upgrade dynastate",
            store=store,
        )
    if len(raw) < 5 or _sealing_crc(store, raw[:-4]) != struct.unpack("<I", raw[-4:])[0]:
        raise CorruptStateError(f"{what} has a wrong checksum: its bytes are broken", store=store)
    return Reader(raw[:-4], 1)


def _sealing_crc(store: str, raw: bytes) -> int:
    return zlib.crc32(raw, zlib.crc32(f"{store}\n".encode()))


def varint(number: int) -> bytes:
    """Unsigned LEB128."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class Reader:
    """Takes fields off a byte string, never past its end."""

    def __init__(self, raw: bytes, at: int) -> None:
        self._raw = raw
        self._at = at

    def take(self, length: int) -> bytes:
        if self._at + length > len(self._raw):
            raise CorruptStateError("a binary value ends too early")
        self._at += length
        return self._raw[self._at - length : self._at]

    def varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise CorruptStateError("a binary value holds a number that does not end")

    def at_end(self) -> bool:
        return self._at == len(self._raw)


# ------------------------------------------------------------------------------------------------------------ snapshots

#: Stages of a snapshot: its buckets are being written; it can be read; clean-up is taking it away.
WRITING, DONE, LEAVING = "writing", "done", "leaving"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of what an attempt made, by the query run of an epoch.

    `id` is its own; sizes in bytes and records are of all its buckets. While it `is_pinned`, a fork stands on it.
    """

    version: int
    attempt: Attempt
    id: Attempt
    epoch: int
    stage: str
    digest: bytes = b""
    records: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    is_pinned: bool = False


def snapshot_item(store: str, snapshot: Snapshot) -> Item:
    return item_key(snapshot_key(store, snapshot.version, snapshot.attempt)) | {
        "format": FORMAT,
        "id": bytes(snapshot.id),
        "epoch": snapshot.epoch,
        "stage": snapshot.stage,
        "digest": snapshot.digest,
        "records": snapshot.records,
        "raw_bytes": snapshot.raw_bytes,
        "stored_bytes": snapshot.stored_bytes,
    }


def parse_snapshot(key: Key, item: Item) -> Snapshot:
    """A snapshot from its item.

    Raises:
        CorruptStateError: the item is broken, or of an unknown format.
    """
    check_format(key, item)
    node = _maker(_SNAPSHOT.fullmatch(key.sort))
    if node is None:
        raise _unknown_item(key)
    own, digest, stage = item.get("id"), item.get("digest"), item.get("stage")
    if not (isinstance(own, bytes) and len(own) == 16 and isinstance(digest, bytes) and isinstance(stage, str)):
        raise CorruptStateError("snapshot item has no id, no digest or no stage", **where(key))
    if stage not in (WRITING, DONE, LEAVING):
        raise CorruptStateError("snapshot item has an unknown stage", **where(key))
    sizes = (_number(key, item, name) for name in ("epoch", "records", "raw_bytes", "stored_bytes"))
    epoch, records, raw_bytes, stored_bytes = sizes
    return Snapshot(*node, Attempt(own), epoch, stage, digest, records, raw_bytes, stored_bytes, FORKS in item)


def _unknown_item(key: Key) -> CorruptStateError:
    return CorruptStateError(
        "an item that this package does not know lies among a store's own: a newer package wrote it, or something "
        "else; upgrade dynastate, or remove it",
        **where(key),
    )


class ShortHistoryError(Exception):
    """A chain goes on below the lowest version that was read; read from there. Never leaves the engine."""


class History:
    """What the snapshot-group table says of one store: version lists, from a lowest version up, and the meta item.

    `meta` is None where that item does not exist.
    """

    def __init__(self, store: str, items: Sequence[tuple[Key, Item]], lowest: int = 0) -> None:
        self.store = store
        self._lowest = lowest
        self.meta: Item | None = None
        self._schemas: dict[str, tuple[Key, Item]] = {}
        self._entries: dict[int, dict[Attempt, VersionEntry]] = {}
        self._snapshots: dict[tuple[int, Attempt], Snapshot] = {}
        #: What is wrong with snapshots that are passed by.
        self.passed: dict[tuple[int, Attempt], CorruptStateError] = {}
        #: Version lists by the key of their group: each entry as it is stored, and what it says.
        self.groups: dict[Key, list[tuple[bytes, VersionEntry]]] = {}
        #: Those of them that a fork stands on: they stay as they are, but for what commits append.
        self.pinned: set[Key] = set()
        for key, item in items:
            self.add(key, item)

    def add(self, key: Key, item: Item) -> None:
        """Add an item of the snapshot-group table that was read.

        Raises:
            CorruptStateError: it is broken, of an unknown format, or none of ours.
        """
        if key.sort == META:
            parse_meta(self.store, item)
            self.meta = item
        elif key.sort.startswith("schema/"):
            check_format(key, item)
            self._schemas[key.sort] = (key, item)
        elif key.sort.startswith("group/"):
            group = self.groups[key] = []
            if FORKS in item:
                self.pinned.add(key)
            for raw in version_list(key, item):
                entry = listed_entry(self.store, key, raw)
                group.append((raw, entry))
                # A repeated append of one attempt keeps its first place in the order of commits.
                self._entries.setdefault(entry.version, {}).setdefault(entry.attempt, entry)
        elif (node := _maker(_SNAPSHOT.fullmatch(key.sort))) is not None:
            try:
                self._snapshots[node] = parse_snapshot(key, item)
            except CorruptStateError as broken:
                self.pass_by(*node, broken)
        else:
            raise _unknown_item(key)

    def pass_by(self, version: int, attempt: Attempt, broken: CorruptStateError) -> None:
        """Begin with the snapshot of that version no more: it is broken. What is older may stand in for it."""
        self.passed[version, attempt] = broken

    def descriptions(self) -> dict[str, Item]:
        """The meta item and the schema items, by sort key."""
        schemas = {sort: item for sort, (_, item) in self._schemas.items()}
        return schemas if self.meta is None else schemas | {META: self.meta}

    def entries(self) -> Iterator[VersionEntry]:
        """Every entry of every version that was read, versions ascending."""
        for version in self.versions():
            yield from self._entries[version].values()

    def snapshots(self) -> list[Snapshot]:
        """Every snapshot there is, in whatever stage."""
        return list(self._snapshots.values())

    def snapshot(self, version: int, attempt: Attempt) -> Snapshot | None:
        """The snapshot of a version, if there is one that can be read."""
        found = self._snapshots.get((version, attempt))
        is_there = found is not None and found.stage == DONE and (version, attempt) not in self.passed
        return found if is_there else None

    def entry(self, version: int, attempt: Attempt) -> VersionEntry | None:
        """The entry of a version by that attempt, if it was read."""
        return self._entries.get(version, {}).get(attempt)

    def versions(self) -> list[int]:
        """Versions that exist, ascending."""
        return sorted(self._entries)

    def unpinned(self) -> list[int]:
        """Versions that exist, ascending, but those in lists that a fork stands on: these stay."""
        return [version for version in self.versions() if group_key(self.store, version) not in self.pinned]

    def find(self, version: int, attempt: Attempt) -> VersionEntry:
        """The entry of a version: the attempt asked for; for NO_ATTEMPT the highest epoch, of equals the last appended.

        Of equals it is one whose parent is there, if there is one: a zombie may commit when clean-up has taken away
        what it stands on.

        Raises:
            VersionMissingError: there is none; the message names the versions that are there.
        """
        if attempt != NO_ATTEMPT:
            found = self.entry(version, attempt)
        else:
            found = None
            for entry in self._entries.get(version, {}).values():
                if found is None or (entry.epoch, self._stands(entry)) >= (found.epoch, self._stands(found)):
                    found = entry
        if found is None:
            raise self._missing(version, attempt)
        return found

    def _stands(self, entry: VersionEntry) -> bool:
        """Whether what an attempt stands on is there, as far as it was read."""
        parent = (entry.version - 1, entry.parent)
        is_unread = parent[0] < self._lowest // GROUP_SIZE * GROUP_SIZE
        return (
            is_unread
            or parent == EMPTY
            or self.entry(*parent) is not None
            or self.snapshot(*parent) is not None
            or self.snapshot(entry.version, entry.attempt) is not None
        )

    def schema(self, entry: VersionEntry) -> str:
        """The schema text of a version.

        Raises:
            CorruptStateError: its item is lost or broken.
        """
        wanted = schema_key(self.store, entry.schema)
        held = self._schemas.get(wanted.sort)
        if held is None:
            raise CorruptStateError("the schema item of a version is lost", version=entry.version, **where(wanted))
        return parse_schema(*held)

    def chain(
        self, version: int, attempt: Attempt, have: Sequence[tuple[int, Attempt]]
    ) -> tuple[tuple[int, Attempt], list[VersionEntry]]:
        """Walk parents down from a version to the newest of `have` on its way; else to a snapshot, or to version 0.

        A snapshot is passed by as long as one of `have` may come: what is held is never read again.

        Returns:
            The (version, attempt) reached, and the entries after it, oldest first.

        Raises:
            VersionMissingError: the version is not there.
            CorruptStateError: a parent is not there.
            ShortHistoryError: a parent is below the lowest version that was read.
        """
        entry = self.find(version, attempt)
        held = set(have)
        lowest_held = min((each for each, _ in have), default=version)
        path: list[VersionEntry] = []
        at = (entry.version, entry.attempt)
        base: tuple[tuple[int, Attempt], int] | None = None
        while at not in held and at != EMPTY:
            if base is None and self.snapshot(*at) is not None:
                base = at, len(path)
            if base is not None and at[0] <= lowest_held:
                break
            try:
                path.append(self._parent(path[-1]) if path else entry)
            except ShortHistoryError:
                if base is None:
                    raise
                break
            except CorruptStateError as gap:
                if base is None:
                    raise self._no_other_way(path, gap) from gap
                break
            at = (path[-1].version - 1, path[-1].parent)
        if at in held or base is None:
            base = at, len(path)
        reached, length = base
        return reached, path[:length][::-1]

    def newest(self) -> VersionEntry:
        """The version that the newest query run has come to: of the highest epoch, then the highest version.

        A checkpoint that was begun again, or gone back in, goes on at lower versions than there are.

        Raises:
            VersionMissingError: no version is there.
        """
        found = None
        for entry in self.entries():
            if found is None or (entry.epoch, entry.version) >= (found.epoch, found.version):
                found = entry
        if found is None:
            raise self._missing(0, NO_ATTEMPT)
        return found

    def lineage(self, entry: VersionEntry) -> list[VersionEntry]:
        """A version and those that it stands on, as far down as they are listed; oldest first."""
        path = [entry]
        while (parent := self.entry(path[-1].version - 1, path[-1].parent)) is not None:
            path.append(parent)
        return path[::-1]

    def openable(self, path: Sequence[VersionEntry]) -> list[VersionEntry]:
        """Of a lineage, those that can be opened: all from the oldest on beneath which something is to begin with.

        The others clean-up has passed: it takes a snapshot away before the versions on it, and leaves lists that a fork
        stands on. Where a snapshot is broken, or none can be opened, nobody took them away: they are kept, and who
        opens one is told what is lost.
        """
        for place, entry in enumerate(path):
            nodes = (entry.version - 1, entry.parent), (entry.version, entry.attempt)
            if EMPTY in nodes or any(node in self.passed or self.snapshot(*node) is not None for node in nodes):
                return list(path[place:])
        return list(path)

    def span(self, first: int, last: int, attempt: Attempt) -> list[VersionEntry]:
        """The entries from version `first` to `last`, which that attempt made, by their parents; oldest first.

        Raises:
            VersionMissingError: one of them is not there.
        """
        entries = [self.find(last, attempt)]
        while entries[-1].version > first:
            entries.append(self.find(entries[-1].version - 1, entries[-1].parent))
        return entries[::-1]

    def _no_other_way(self, path: Sequence[VersionEntry], gap: CorruptStateError) -> CorruptStateError:
        """Why a chain ends: where a snapshot on it was passed by, that is what is wrong."""
        nodes = [(each.version, each.attempt) for each in path] + [(path[-1].version - 1, path[-1].parent)]
        broken = next((self.passed[node] for node in nodes if node in self.passed), None)
        if broken is None:
            return gap
        named = {name: broken.facts[name] for name in ("table", "store_shard", "item")}
        said = f"{broken.reason}; and nothing older stands in for this snapshot: {gap.reason}"
        return CorruptStateError(said, **named, lost=gap.facts["item"])

    def _parent(self, entry: VersionEntry) -> VersionEntry:
        if entry.version <= self._lowest:
            raise ShortHistoryError
        if entry.parent == NO_ATTEMPT:
            raise CorruptStateError(
                "a version entry names no parent",
                version=entry.version,
                attempt=entry.attempt.hex(),
                **where(group_key(self.store, entry.version)),
            )
        try:
            return self.find(entry.version - 1, entry.parent)
        except VersionMissingError as gap:
            raise CorruptStateError(
                "a version that this one stands on is not there, nor a snapshot of it: its version list, or the "
                "snapshot, is lost or was deleted",
                store=self.store,
                version=entry.version,
                attempt=entry.attempt.hex(),
                parent=entry.parent.hex(),
                **where(group_key(self.store, entry.version - 1)),
                snapshot=snapshot_key(self.store, entry.version - 1, entry.parent).sort,
            ) from gap

    def _missing(self, version: int, attempt: Attempt) -> VersionMissingError:
        there = self.versions()
        key = group_key(self.store, version)
        listed = {"table": key.role, "item": key.sort}
        if not there:
            return VersionMissingError(
                "no state of this store is in the tables; if the checkpoint was copied or moved, set "
                "spark.sql.streaming.stateStore.dynastate.namespace to the one it had, and check both table names",
                store=self.store,
                version=version,
                **listed,
            )
        if version in self._entries:
            known = ",".join(known.hex() for known in self._entries[version])
            return VersionMissingError(
                "this version exists, but not by that attempt",
                store=self.store,
                version=version,
                attempt=attempt.hex(),
                attempts=known,
                **listed,
            )
        return VersionMissingError(
            "this version does not exist", store=self.store, version=version, versions=ranges(there), **listed
        )


def version_list(key: Key, item: Item) -> list[bytes]:
    """The version list of a group's item, as it is stored.

    Raises:
        CorruptStateError: unknown format, or no list.
    """
    check_format(key, item)
    listed = item.get("versions")
    if not isinstance(listed, list):
        raise CorruptStateError("group has no version list", **where(key))
    return listed


def listed_entry(store: str, key: Key, raw: bytes) -> VersionEntry:
    """An entry of the version list of that key.

    Raises:
        CorruptStateError: it is broken, or belongs into another list.
    """
    try:
        entry = decode_entry(store, raw)
    except CorruptStateError as broken:
        raise CorruptStateError(str(broken), **where(key)) from broken
    if group_key(store, entry.version) != key:
        raise CorruptStateError(
            "version entry stands in the list of another group", version=entry.version, **where(key)
        )
    return entry


def parse_meta(store: str, meta: Item) -> tuple[dict[str, int], int]:
    """Epochs by run, and shards, of a store's meta item.

    Raises:
        CorruptStateError: it is broken, of an unknown format, or another store's.
    """
    key = meta_key(store)
    check_format(key, meta)
    newest, epochs, shards = _number(key, meta, "epoch"), meta.get("epochs"), _number(key, meta, "shards")
    if not isinstance(epochs, dict) or not 1 <= len(epochs) <= newest:
        raise CorruptStateError("the store's meta item is broken: it has no epochs", **where(key))
    if not 1 <= shards <= SHARDS_MAX or meta.get("store") != store:
        raise CorruptStateError("the store's meta item is broken, or another's", **where(key))
    # Epochs are given out one by one, and only the oldest are forgotten.
    if sorted(epochs.values()) != list(range(newest - len(epochs) + 1, newest + 1)):
        raise CorruptStateError("the store's meta item is broken: its epochs have a gap", **where(key))
    return epochs, shards


def ranges(numbers: Sequence[int]) -> str:
    """1-5,8 for [1, 2, 3, 4, 5, 8]."""
    out: list[list[int]] = []
    for number in numbers:
        if out and number == out[-1][1] + 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in out)


def parse_schema(key: Key, item: Item) -> str:
    """The schema text of a schema item, its digest verified.

    Raises:
        CorruptStateError: it has no text, or not the text its key names.
    """
    text = item.get("text")
    if not isinstance(text, str) or schema_key("", schema_digest(text)).sort != key.sort:
        raise CorruptStateError("schema item has not the content its key names", **where(key))
    return text
