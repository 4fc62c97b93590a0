"""Spark's Murmur3 hash of values, each from 0 to 2^32 - 1."""

from __future__ import annotations

import struct

from dynastate.format.changes import mix_word, mixed_to_hash

_U32 = 0xFFFFFFFF


def mix_int(number: int, seed: int) -> int:
    return mixed_to_hash(mix_word(seed, number & _U32), 4)


def mix_long(number: int, seed: int) -> int:
    return mixed_to_hash(mix_word(mix_word(seed, number & _U32), number >> 32 & _U32), 8)


def mix_bytes(raw: bytes, seed: int) -> int:
    """Spark's variant of Murmur3: bytes after the last whole word are mixed one by one, as signed numbers."""
    mixed, whole = seed, len(raw) & ~3
    for (word,) in struct.iter_unpack("<I", raw[:whole]):
        mixed = mix_word(mixed, word)
    for (byte,) in struct.iter_unpack("<b", raw[whole:]):
        mixed = mix_word(mixed, byte & _U32)
    return mixed_to_hash(mixed, len(raw))
