"""The files of a checkpoint as items (docs/storage-format.md, "Checkpoint files").

    snapshot-group table   store_shard = {namespace}/checkpoint/{name}#0   entry = file/{path}
                                                                           entry = fragment/{writer}/{sequence}
                           store_shard = {namespace}/#                     entry = checkpoint/{name}

    path := (folder "/")* name        a number that the name begins with is padded to 20 digits

A head with `objects` has its file in objects of that location in place of fragments (`dynastate.format.objects`).

WARNING: every constant here is stored. Changing one makes existing files unreadable; it takes a new format version.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.codec import CODECS, LZ4, compress, cut, decompress
from dynastate.format.items import FORMAT, Item, check_format, item_key, number
from dynastate.format.keys import SORT_KEY_BYTES_MAX, Attempt, Key, store_shard, where
from dynastate.format.objects import ObjectId, ObjectStream, file_stream
from dynastate.format.parts import CHUNK_BYTES_MAX
from dynastate.runtime import limits

#: The beginning of the location of a checkpoint.
SCHEME: Final = "dynastate://"
#: The largest file. Spark, the bridge and the sidecar have it in memory as a whole.
FILE_BYTES_MAX: Final = 512 * 1024 * 1024
#: The largest file in items: the write units of one partition key would take longer than a request may.
ITEMS_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
#: The most fragments of a file.
FRAGMENTS_MAX: Final = 1_000
#: The attribute of a head with the location of its objects, and of a listed checkpoint with all of its locations.
OBJECTS: Final = "objects"
STORED_BYTES: Final = "stored_bytes"
#: Digits of a number at the beginning of a stored name.
DIGITS: Final = 20
#: Above every character of a name, none of which is a noncharacter.
_HIGHEST: Final = "\U0010ffff"
#: Lowest and highest sort key of all items of a checkpoint: heads are below fragments.
EVERY_ITEM: Final = ("\x00", _HIGHEST)
#: Lowest and highest sort key of the fragments of all files.
FRAGMENT_RANGE: Final = ("fragment/", f"fragment/{_HIGHEST}")
#: Lowest and highest sort key of the list of a namespace's checkpoints.
CHECKPOINT_RANGE: Final = ("checkpoint/", f"checkpoint/{_HIGHEST}")
_CHECKPOINT: Final = re.compile(r"([A-Za-z0-9._-]{1,128})/([A-Za-z0-9._-]{1,128})")
_STORE: Final = re.compile(r"([A-Za-z0-9._-]{1,128})/checkpoint/([A-Za-z0-9._-]{1,128})")
_NUMBER: Final = re.compile(r"(?:0|[1-9][0-9]{0,18})(?![0-9])")
_PADDED: Final = re.compile(rf"[0-9]{{{DIGITS}}}(?![0-9])")
_TOO_LONG: Final = re.compile(rf"[0-9]{{{DIGITS}}}")
_FRAGMENT: Final = re.compile(r"fragment/([0-9a-f]{32})/([0-9]{6})")


class Checkpoint(NamedTuple):
    """The checkpoint of a query, which is at `dynastate://{namespace}/{name}`."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def location(self) -> str:
        return f"{SCHEME}{self}"

    @property
    def store(self) -> str:
        """Its partition key without the shard, which is like the name of a store."""
        return f"{self.namespace}/checkpoint/{self.name}"


class FileEntry(NamedTuple):
    """A file or a folder in the listing of a folder. The time of a folder is the newest of the files below it."""

    name: str
    is_folder: bool
    bytes: int
    time: int


@dataclass(frozen=True, slots=True)
class FileHead:
    """The head of a file. `data` is empty if the file has fragments, and `time` is in milliseconds since 1970.

    The fragments are objects if there is a location, `objects`, and they have `stored_bytes` together.
    """

    codec: str
    raw_bytes: int
    crc32: int
    time: int
    writer: Attempt
    fragments: int
    data: bytes
    objects: str = ""
    stored_bytes: int = 0

    def stream(self, key: Key) -> ObjectStream:
        """The stream of its objects, with the key of the head."""
        return file_stream(self.objects, _store_of(key), self.time, self.writer)

    def object_ids(self, key: Key) -> list[ObjectId]:
        """Its objects, with the key of the head."""
        return self.stream(key).objects(0, self.stored_bytes)


class FileParts(NamedTuple):
    """The parts of a stored file: the attributes of its head, without the key, and its fragments: items, or objects."""

    head: Item
    fragments: list[tuple[Key, Item]]
    objects: list[tuple[ObjectId, bytes]]


def checkpoint_of(text: str) -> Checkpoint:
    """The checkpoint that `{namespace}/{name}` names."""
    match = _CHECKPOINT.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            "a checkpoint in DynamoDB is named dynastate://NAMESPACE/NAME, both of 1 to 128 characters of A-Z a-z 0-9 "
            ". _ -",
            got=repr(text[:300]),
        )
    return Checkpoint(match[1], match[2])


def checkpoint_of_location(location: str) -> Checkpoint:
    """The checkpoint at a location in DynamoDB."""
    return checkpoint_of(location.removeprefix(SCHEME).rstrip("/"))


def checkpoint_of_state(location: str) -> Checkpoint | None:
    """The checkpoint whose state has a location. Returns None if it is not in DynamoDB, or not known: an empty text."""
    if not location.startswith(SCHEME):
        return None
    return checkpoint_of_location(location.removesuffix("/state"))


def checkpoint_of_store(store: str) -> Checkpoint | None:
    """The checkpoint whose files are in a partition. Returns None for the partition of a store."""
    match = _STORE.fullmatch(store)
    return None if match is None else Checkpoint(match[1], match[2])


def file_key(checkpoint: Checkpoint, path: str) -> Key:
    """The key of a file's head. Refuse a path that no file has."""
    *folders, name = _parts_of(path)
    if _TOO_LONG.match(name):
        raise ConfigurationError(
            f"the name of a checkpoint file cannot begin with {DIGITS} or more digits", file=repr(path[:300])
        )
    padded = _NUMBER.sub(lambda match: match[0].zfill(DIGITS), name, count=1) if _NUMBER.match(name) else name
    return _file_key(checkpoint, path, "/".join([*folders, padded]))


def is_head(key: Key) -> bool:
    """Whether an item of a checkpoint is the head of a file."""
    return key.sort.startswith("file/")


def path_of(key: Key) -> str:
    """The path of the file whose head has a key."""
    folder, slash, name = key.sort.removeprefix("file/").rpartition("/")
    if _PADDED.match(name):
        name = str(int(name[:DIGITS])) + name[DIGITS:]
    return f"{folder}{slash}{name}"


def folder_range(checkpoint: Checkpoint, folder: str) -> tuple[str, str]:
    """Lowest and highest sort key of the files below a folder. An empty text is the checkpoint's own folder."""
    if not folder:
        return "file/", f"file/{_HIGHEST}"
    prefix = _file_key(checkpoint, folder, "/".join([*_parts_of(folder), ""])).sort
    return prefix, f"{prefix}{_HIGHEST}"


def _parts_of(path: str) -> list[str]:
    parts = path.split("/")
    if not path.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise ConfigurationError(
            "the path of a checkpoint file has parts with a slash between them, none of them empty, '.' or '..', and "
            "no control characters",
            file=repr(path[:300]),
        )
    return parts


def _file_key(checkpoint: Checkpoint, path: str, stored_path: str) -> Key:
    key = Key("snapshot", store_shard(checkpoint.store, 0), f"file/{stored_path}")
    if len(key.sort.encode()) > SORT_KEY_BYTES_MAX:
        raise ConfigurationError(
            f"the path of a checkpoint file is too long: its key has more than {SORT_KEY_BYTES_MAX} bytes",
            file=repr(path[:300]),
        )
    return key


def fragment_keys(head: Key, writer: Attempt, fragments: int) -> list[Key]:
    """The keys of a file's fragments, in sequence."""
    return [head._replace(sort=f"fragment/{writer.hex()}/{sequence:06d}") for sequence in range(fragments)]


def fragment_range(writer: Attempt) -> tuple[str, str]:
    """Lowest and highest sort key of the fragments that one put wrote."""
    prefix = f"fragment/{writer.hex()}/"
    return prefix, f"{prefix}{_HIGHEST}"


def writer_of_fragment(key: Key) -> Attempt:
    """The writer that the key of a fragment names."""
    match = _FRAGMENT.fullmatch(key.sort)
    if match is None:
        raise CorruptStateError("the key of a fragment names no writer", **where(key))
    return Attempt(bytes.fromhex(match[1]))


def listed_item(checkpoint: Checkpoint) -> tuple[Key, Item]:
    """The item that lists a checkpoint in its namespace, with its key."""
    key = Key("snapshot", f"{checkpoint.namespace}/#", f"checkpoint/{checkpoint.name}")
    return key, item_key(key) | {"format": FORMAT}


def listed_checkpoint(namespace: str, key: Key, item: Item) -> Checkpoint:
    """The checkpoint that an item lists."""
    check_format(key, item)
    return checkpoint_of(f"{namespace}/{key.sort.removeprefix('checkpoint/')}")


def listed_locations(item: Item) -> frozenset[str]:
    """The locations of objects that puts to a listed checkpoint may have written to."""
    locations = item.get(OBJECTS)
    return (
        frozenset(each for each in locations if isinstance(each, str))
        if isinstance(locations, frozenset)
        else frozenset()
    )


def file_parts(key: Key, data: bytes, writer: Attempt, time: int, *, codec: str = LZ4, location: str = "") -> FileParts:
    """Cut a file into its parts. With a `location`, a file that is too large for its head is in objects there."""
    if len(data) > ITEMS_FILE_BYTES_MAX and not location:
        raise ConfigurationError(
            "a checkpoint file is larger than 64 MiB, which dynastate stores in S3 only: set "
            "spark.sql.streaming.stateStore.dynastate.objects, or move the checkpoint to a folder with 'dynastate "
            "checkpoint'",
            bytes=len(data),
            **where(key),
        )
    if len(data) > FILE_BYTES_MAX:
        raise ConfigurationError(
            "a checkpoint file is larger than 512 MiB, which dynastate does not store: move the checkpoint to a folder "
            "with 'dynastate checkpoint'",
            bytes=len(data),
            **where(key),
        )
    codec, packed = compress(data, codec, dense=len(data) <= CHUNK_BYTES_MAX)
    is_whole = len(packed) <= limits().fragment_bytes_max
    pieces = [] if is_whole else _objects_cut(packed) if location else cut(packed)
    crc = _crc(key, codec, data, time=time, writer=writer, fragments=len(pieces))
    head: Item = {"format": FORMAT, "codec": codec, "raw_bytes": len(data), "crc32": crc, "time": time}
    head |= {"writer": bytes(writer), "fragments": len(pieces), "data": packed if is_whole else b""}
    if pieces and location:
        stream = file_stream(location, _store_of(key), time, writer)
        objects = [(stream.object(number), piece) for number, piece in enumerate(pieces)]
        return FileParts(head | {OBJECTS: location, STORED_BYTES: len(packed)}, [], objects)
    described: Item = {"format": FORMAT, "time": time}
    keys = fragment_keys(key, writer, len(pieces))
    items = [
        (fragment, item_key(fragment) | described | {"data": piece})
        for fragment, piece in zip(keys, pieces, strict=True)
    ]
    return FileParts(head, items, [])


def _objects_cut(packed: bytes) -> list[bytes]:
    most = limits().object_bytes
    return [packed[start : start + most] for start in range(0, len(packed), most)]


def _store_of(key: Key) -> str:
    return key.store_shard.removesuffix("#0")


def _crc(key: Key, codec: str, data: bytes, *, time: int, writer: Attempt, fragments: int) -> int:
    fields = (key.sort, FORMAT, codec, len(data), time, writer.hex(), fragments)
    return zlib.crc32(data, zlib.crc32("".join(f"{field}\n" for field in fields).encode()))


def parse_head(key: Key, item: Item) -> FileHead:
    """The head in an item. Its checksum is verified with the data: `data_of`."""
    check_format(key, item)
    raw_bytes, crc, time, fragments = (number(key, item, name) for name in ("raw_bytes", "crc32", "time", "fragments"))
    codec, writer, data = item.get("codec"), item.get("writer"), item.get("data")
    if not isinstance(codec, str) or not isinstance(writer, bytes) or not isinstance(data, bytes) or len(writer) != 16:
        raise CorruptStateError("a checkpoint file has no codec, writer or data", **where(key))
    objects = item.get(OBJECTS, "")
    stored_bytes = number(key, item, STORED_BYTES) if objects else 0
    if (
        codec not in CODECS
        or not 0 <= raw_bytes <= FILE_BYTES_MAX
        or not 0 <= time < 2**63
        or not 0 <= fragments <= FRAGMENTS_MAX
        or not isinstance(objects, str)
        or (objects and not (stored_bytes > 0 and fragments == -(-stored_bytes // limits().object_bytes)))
    ):
        facts = {"codec": codec, "raw_bytes": raw_bytes, "time": time, "fragments": fragments}
        raise CorruptStateError("a checkpoint file has an unknown codec or impossible numbers", **facts, **where(key))
    return FileHead(
        codec,
        raw_bytes,
        crc,
        time,
        writer=Attempt(writer),
        fragments=fragments,
        data=data,
        objects=objects,
        stored_bytes=stored_bytes,
    )


def data_of(key: Key, head: FileHead, fragments: Sequence[tuple[Key, Item]] = ()) -> bytes:
    """The data of a file, from its head and the items of its fragments. It is whole, or an error."""
    if [fragment for fragment, _ in fragments] != fragment_keys(key, head.writer, head.fragments):
        facts = {"expected": head.fragments, "got": len(fragments)}
        raise CorruptStateError("fragments of a checkpoint file are lost", **facts, **where(key))
    pieces = [head.data]
    for fragment, item in fragments:
        check_format(fragment, item)
        piece = item.get("data")
        if not isinstance(piece, bytes):
            raise CorruptStateError("a fragment of a checkpoint file has no data", **where(fragment))
        pieces.append(piece)
    return _unpacked(key, head, b"".join(pieces))


def data_of_objects(key: Key, head: FileHead, packed: bytes | None) -> bytes:
    """The data of a file from the bytes of its objects, or None if one does not exist. It is whole, or an error."""
    if packed is None or len(packed) != head.stored_bytes:
        facts = {"objects": f"{head.objects}/{head.stream(key).name}", "bytes": head.stored_bytes}
        raise CorruptStateError(
            "objects of a checkpoint file are lost or too short: something else has deleted them in S3",
            **facts,
            got=None if packed is None else len(packed),
            **where(key),
        )
    return _unpacked(key, head, packed)


def _unpacked(key: Key, head: FileHead, packed: bytes) -> bytes:
    try:
        data = decompress(head.codec, packed, head.raw_bytes)
    except CorruptStateError as corrupt:
        raise CorruptStateError(str(corrupt), **where(key)) from corrupt
    if _crc(key, head.codec, data, time=head.time, writer=head.writer, fragments=head.fragments) != head.crc32:
        raise CorruptStateError("a checkpoint file has a wrong checksum: its bytes are corrupt", **where(key))
    return data
