"""Encoded records: changes as bytes, as they travel over the bridge and are stored in parts.

The grammar (docs/storage-format.md, "Changes"):

changes := record*
record  := tag:u16  key_length:u32  value_length:i32  key  value
tag     := operation << 12 | family

The hot path never comes here: the engine cuts, compresses and stores records without decoding them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, NamedTuple

from dynastate.errors import CorruptStateError

PUT, MERGE = range(2)
FAMILY_MAX = 0xFFF
#: value_length of a removed key.
DELETE_MARKER = -1
RECORD_BYTES_MAX = 64 * 1024 * 1024

_HEADER = struct.Struct("<HIi")
RECORD_HEADER_BYTES = _HEADER.size
_U32 = 0xFFFFFFFF


class Change(NamedTuple):
    """One change of one row. `value` is None for a removed key."""

    operation: int
    family: int
    key: bytes
    value: bytes | None


#: What may follow the row of a value, whose length is a multiple of 8: the id of its schema, and a checksum.
_SCHEMA_ID_BYTES = 2
_ROW_UNIT = 8

#: The row of a key: one value, or a list of several. One value is never a list, so that equal rows are equal.
RowValue = bytes | list[bytes]


def schema_id(value: bytes) -> int:
    """The id of the schema that a value was written with."""
    if not len(value) & _SCHEMA_ID_BYTES:
        return 0
    end = len(value) // _ROW_UNIT * _ROW_UNIT
    return int.from_bytes(value[end : end + _SCHEMA_ID_BYTES], "little")


def apply_change(rows: MutableMapping[Any, RowValue], row_key: Any, change: Change) -> None:
    """Apply a change to rows by `row_key`, the key of its row there. Lists grow in place."""
    if change.value is None:
        rows.pop(row_key, None)
    elif change.operation == MERGE:
        value = rows.get(row_key)
        if isinstance(value, list):
            value.append(change.value)
        else:
            rows[row_key] = change.value if value is None else [value, change.value]
    else:
        rows[row_key] = change.value


def encode_changes(changes: Iterable[Change]) -> bytes:
    out = bytearray()
    for change in changes:
        value_length = DELETE_MARKER if change.value is None else len(change.value)
        out += _HEADER.pack(change.operation << 12 | change.family, len(change.key), value_length)
        out += change.key
        out += change.value or b""
    return bytes(out)


def decode_changes(records: bytes) -> Iterator[Change]:
    offset = 0
    while offset < len(records):
        if offset + _HEADER.size > len(records):
            raise CorruptStateError("a chunk of changes ends within a record's header", at=offset, length=len(records))
        tag, key_length, value_length = _HEADER.unpack_from(records, offset)
        key_at = offset + _HEADER.size
        value_at = key_at + key_length
        end = value_at + max(value_length, 0)
        if value_length < DELETE_MARKER or end > len(records):
            raise CorruptStateError("a chunk of changes ends within a record", at=offset, length=len(records))
        value = None if value_length == DELETE_MARKER else records[value_at:end]
        change = Change(tag >> 12, tag & FAMILY_MAX, records[key_at:value_at], value)
        # Only a put may be a delete marker.
        if change.operation > MERGE or (change.operation == MERGE and value is None):
            raise CorruptStateError("a chunk contains a change that this package does not know", tag=tag, at=offset)
        yield change
        offset = end


def key_hash(key: bytes) -> int:
    """MurmurHash3 x86 32 bit with seed 0, from 0 to 2^32 - 1 (Austin Appleby's public-domain algorithm)."""
    mixed = 0
    whole = len(key) & ~3
    for (word,) in struct.iter_unpack("<I", key[:whole]):
        mixed = mix_word(mixed, word)
    if whole < len(key):
        mixed ^= _scramble(int.from_bytes(key[whole:], "little"))
    return mixed_to_hash(mixed, len(key))


def mix_word(mixed: int, word: int) -> int:
    """One step of the hash, for 4 bytes."""
    mixed ^= _scramble(word)
    mixed = (mixed << 13 | mixed >> 19) & _U32
    return (mixed * 5 + 0xE6546B64) & _U32


def mixed_to_hash(mixed: int, length: int) -> int:
    """The last step of the hash, of `length` bytes in all."""
    mixed ^= length
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _U32
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _U32
    return mixed ^ mixed >> 16


def _scramble(word: int) -> int:
    word = word * 0xCC9E2D51 & _U32
    word = (word << 15 | word >> 17) & _U32
    return word * 0x1B873593 & _U32
