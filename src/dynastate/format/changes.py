"""Bytes to changes and back: the runs that travel over the bridge and lie in the parts.

The grammar (docs/storage-format.md, "Changes"):

run    := record*
record := tag:u16  key_length:u32  value_length:i32  key  value
tag    := operation << 12 | family

The hot path never comes here: the engine cuts, compresses and stores runs without looking into them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, NamedTuple

from dynastate.errors import CorruptStateError

PUT, MERGE, REMOVE_RANGE, DROP_FAMILY = range(4)
FAMILY_MAX = 0xFFF
#: value_length of a removed key.
DELETE_MARKER = -1
RECORD_BYTES_MAX = 64 * 1024 * 1024

_HEADER = struct.Struct("<HIi")
_U32 = 0xFFFFFFFF


class Change(NamedTuple):
    """One change of one row. `value` is None for a removed key."""

    operation: int
    family: int
    key: bytes
    value: bytes | None


#: What a key has: one value, or a list of several. What has one value only is never a list: equal rows are equal.
Value = bytes | list[bytes]


def apply(found: MutableMapping[Any, Value], place: Any, change: Change) -> None:
    """Let a change make what it makes of the rows before it, of which this key's is at `place`. Lists grow in place.

    Raises:
        CorruptStateError: it is an operation that no version is made of.
    """
    if change.operation > MERGE:
        raise CorruptStateError("a version is made of puts, removes and merges only", operation=change.operation)
    if change.value is None:
        found.pop(place, None)
    elif change.operation == MERGE:
        before = found.get(place)
        if isinstance(before, list):
            before.append(change.value)
        else:
            found[place] = change.value if before is None else [before, change.value]
    else:
        found[place] = change.value


def encode(changes: Iterable[Change]) -> bytes:
    """The run that holds these changes, in order."""
    out = bytearray()
    for change in changes:
        value_length = DELETE_MARKER if change.value is None else len(change.value)
        out += _HEADER.pack(change.operation << 12 | change.family, len(change.key), value_length)
        out += change.key
        out += change.value or b""
    return bytes(out)


def decode(run: bytes) -> Iterator[Change]:
    """The changes of a run.

    Raises:
        CorruptStateError: the run ends within a record, or a record is none of this format.
    """
    at = 0
    while at < len(run):
        if at + _HEADER.size > len(run):
            raise CorruptStateError("a run of changes ends within a record's header", at=at, length=len(run))
        tag, key_length, value_length = _HEADER.unpack_from(run, at)
        key_at = at + _HEADER.size
        value_at = key_at + key_length
        end = value_at + max(value_length, 0)
        if value_length < DELETE_MARKER or end > len(run):
            raise CorruptStateError("a run of changes ends within a record", at=at, length=len(run))
        value = None if value_length == DELETE_MARKER else run[value_at:end]
        change = Change(tag >> 12, tag & FAMILY_MAX, run[key_at:value_at], value)
        if not _is_known(change):
            raise CorruptStateError("a run holds a change that this package does not know", tag=tag, at=at)
        yield change
        at = end


def _is_known(change: Change) -> bool:
    """Whether the operation is one of ours, and has the fields it takes: only a put may be a delete marker."""
    if change.operation == DROP_FAMILY:
        return change.key == change.value == b""
    return change.operation == PUT or (change.operation < DROP_FAMILY and change.value is not None)


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
