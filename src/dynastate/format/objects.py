r"""Parts in objects of S3: the names of objects, and the frames within them (docs/storage-format.md, "Objects").

    {prefix}/{store}#delta/{version}/{attempt}/{number}     parts of an attempt
    {prefix}/{store}#bucket/{version}/{id}/{number}         parts of a snapshot's buckets
    {prefix}/{store}#file/{time}/{writer}/{number}          the compressed bytes of a checkpoint's file, without frames

stream := frame*                       of one attempt or snapshot, cut into objects of 8 MiB; only the last is shorter
frame  := format:u8 codec:u8 records:u32 raw_bytes:u32 fragment:u16 fragments:u16
          hash_min:u32 hash_max:u32 crc32:u32 length:u32 data                                          little endian

A part has the key that its item would have, and the CRC of that item.

WARNING: every constant here is stored. Changing one makes existing state unreadable; it takes a new format version.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.codec import CODEC_BYTES
from dynastate.format.items import FORMAT, Item
from dynastate.format.keys import Attempt, Key, SnapshotId, VersionId, where
from dynastate.format.parts import Part, parse_part
from dynastate.runtime import limits

#: S3's limit of an object's name, in bytes of UTF-8.
NAME_BYTES_MAX: Final = 1_024

_FRAME: Final = struct.Struct("<BBIIHHIIII")
FRAME_BYTES: Final = _FRAME.size
_LOCATION: Final = re.compile(r"s3://([^/]+)(?:/(.*))?", re.DOTALL)
_NAME: Final = re.compile(r"(delta|bucket)/([0-9]{20})/([0-9a-f]{32})/([0-9]{6})")
_FILE: Final = re.compile(r"file/([0-9]{20})/([0-9a-f]{32})/[0-9]{6}")


class ObjectId(NamedTuple):
    """One object: `location` is s3://bucket/prefix, `name` follows that prefix."""

    location: str
    name: str

    @property
    def bucket(self) -> str:
        return bucket_and_prefix(self.location)[0]

    @property
    def key(self) -> str:
        """Its key in the bucket.

        Raises:
            ConfigurationError: it is longer than S3 allows.
        """
        key = bucket_and_prefix(self.location)[1] + self.name
        if len(key.encode()) > NAME_BYTES_MAX:
            raise ConfigurationError(
                f"an object of this store would have a name of more than {NAME_BYTES_MAX} bytes; use a shorter prefix "
                "in objects=s3://bucket/prefix, or a shorter namespace",
                object=self.name[:200],
            )
        return key

    @property
    def stream(self) -> ObjectStream:
        """The stream that it is a part of."""
        return ObjectStream(self.location, self.name.rpartition("/")[0])


class ObjectStream(NamedTuple):
    """Consecutive frames, in objects of one location whose names differ by their numbers."""

    location: str
    name: str

    def object(self, number: int) -> ObjectId:
        return ObjectId(self.location, f"{self.name}/{number:06d}")

    def objects(self, start: int, end: int) -> list[ObjectId]:
        """The objects that hold the bytes from `start` to before `end`."""
        return [self.object(number) for number in object_numbers(start, end)]


class ObjectParts(NamedTuple):
    """The first parts of an attempt, which are in objects: where, and the bytes of data of each."""

    location: str
    sizes: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size of the stream."""
        return sum(self.sizes) + FRAME_BYTES * len(self.sizes)


class ObjectPlace(NamedTuple):
    """The start of a bucket's parts in the stream of the snapshot that wrote them, which is `stream_bytes` long."""

    location: str
    stream_bytes: int
    start: int

    def size_of(self, number: int) -> int:
        """Size of an object of the stream: all objects except the last are full."""
        object_bytes = limits().object_bytes
        return min(object_bytes, self.stream_bytes - number * object_bytes)


def object_numbers(start: int, end: int) -> range:
    """The numbers of the objects of a stream that hold the bytes from `start` to before `end`."""
    object_bytes = limits().object_bytes
    return range(start // object_bytes, -(-end // object_bytes))


def store_prefix(store: str) -> str:
    """The prefix of the names of all objects of a store, and of no other store: a store has no '#'."""
    return f"{store}#"


def delta_prefix(store: str) -> str:
    return f"{store}#delta/"


def bucket_prefix(store: str) -> str:
    return f"{store}#bucket/"


def delta_stream(location: str, store: str, version: int, attempt: Attempt) -> ObjectStream:
    """The stream with the parts of an attempt."""
    return ObjectStream(location, f"{delta_prefix(store)}{version:020d}/{attempt.hex()}")


def bucket_stream(location: str, store: str, holder: SnapshotId) -> ObjectStream:
    """The stream with the buckets that a snapshot wrote."""
    return ObjectStream(location, f"{bucket_prefix(store)}{holder.version:020d}/{holder.id.hex()}")


def file_prefix(store: str) -> str:
    return f"{store}#file/"


def file_stream(location: str, store: str, time_ms: int, writer: Attempt) -> ObjectStream:
    """The stream with the file that one put wrote. `store` is the partition of the file's checkpoint."""
    return ObjectStream(location, f"{file_prefix(store)}{time_ms:020d}/{writer.hex()}")


def maker_of_file(name: str) -> tuple[int, Attempt] | None:
    """The time and the writer of a put in an object's name. Returns None if the engine makes no such name."""
    match = _FILE.fullmatch(name.rpartition("#")[2])
    return match and (int(match[1]), Attempt(bytes.fromhex(match[2])))


def maker_of_object(name: str) -> VersionId | SnapshotId | None:
    """The version id or snapshot in an object's name. Returns None if the engine makes no such name."""
    match = _NAME.fullmatch(name.rpartition("#")[2])
    if match is None:
        return None
    kind = VersionId if match[1] == "delta" else SnapshotId
    return kind(int(match[2]), Attempt(bytes.fromhex(match[3])))


def location_of_tables(objects: str, snapshot_table: str) -> str:
    """The location below `objects` of the tables with this snapshot-group table, given by name or ARN.

    Tables that share `objects`, and tables restored from a backup of others, have the same names of stores. So the last
    part of a location is the name of the table, and tables delete objects only in their own locations.
    """
    return f"{objects}/{_name_of(snapshot_table)}"


def is_of_tables(location: str, snapshot_table: str) -> bool:
    """Whether `location_of_tables` gives a location, with any `objects`."""
    return bucket_and_prefix(location)[1].removesuffix("/").rpartition("/")[2] == _name_of(snapshot_table)


def _name_of(table: str) -> str:
    return table.rpartition("/")[2]


def bucket_and_prefix(location: str) -> tuple[str, str]:
    """The bucket of s3://bucket/prefix, and the prefix with a slash at its end, or none."""
    match = _LOCATION.fullmatch(location)
    if match is None:
        raise CorruptStateError("a location of objects is not s3://bucket/prefix", location=location[:200])
    prefix = (match[2] or "").strip("/")
    return match[1], f"{prefix}/" if prefix else ""


def encode_frame(part: Part) -> bytes:
    numbers = part.records, part.raw_bytes, part.fragment, part.fragments, part.hash_min, part.hash_max, part.crc32
    return _FRAME.pack(FORMAT, CODEC_BYTES.index(part.codec), *numbers, len(part.data)) + part.data


def decode_frames(keys: Sequence[Key], raw: bytes) -> Iterator[tuple[Key, Part]]:
    """The verified parts with these keys, from the frames in `raw`.

    Raises:
        CorruptStateError: a frame is not a part, or the part of another key.
    """
    offset = 0
    for key in keys:
        if offset + FRAME_BYTES > len(raw):
            raise CorruptStateError("an object ends before a part that is named", **where(key))
        form, codec, *numbers, length = _FRAME.unpack_from(raw, offset)
        offset += FRAME_BYTES
        names = ("records", "raw_bytes", "fragment", "fragments", "hash_min", "hash_max", "crc32")
        item: Item = {"format": form, **dict(zip(names, numbers, strict=True)), "data": raw[offset : offset + length]}
        yield key, parse_part(key, item | ({"codec": CODEC_BYTES[codec]} if codec < len(CODEC_BYTES) else {}))
        offset += length
    if offset != len(raw):
        raise CorruptStateError("parts in an object have other sizes than what names them says", **where(keys[-1]))
