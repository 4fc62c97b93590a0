"""Binary values within items: variable-length numbers, checksums, extras, and the homes that forks name."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from dynastate.errors import ConfigurationError, CorruptStateError, DynastateError
from dynastate.format.items import FORMAT, other_format
from dynastate.format.keys import SHARDS_MAX, Home, check_store
from dynastate.format.parts import Sums

#: The extra of version entries and manifests of forks that name items of another store.
HOME: Final = 1
#: The extra of version entries with several parts that has the bounds of their hashes.
BOUNDS: Final = 2
#: The extra of version entries without parts: their few changes.
INLINE: Final = 3
#: The extra of version entries and manifests of which some or all parts are in objects of S3.
OBJECTS: Final = 4
#: The extra of version entries with the number of values that the version has more than its parent.
ADDED: Final = 5
#: The empty extra of version entries that were imported.
IMPORTED: Final = 6
#: The extra of version entries whose parts were written again, when rows were erased: the id in the keys of the parts.
REWRITTEN: Final = 7

_CRC = struct.Struct("<I")
VARINT_BYTES_MAX: Final = 10
#: Numbers of one byte.
_SHORT: Final = tuple(bytes([number]) for number in range(0x80))


def seal(store: str, body: bytes) -> bytes:
    """A binary value: its format, the body, and a CRC, which covers the store's name too."""
    raw = bytes([FORMAT]) + body
    return raw + _CRC.pack(_sealing_crc(store, raw))


def unseal(store: str, raw: bytes, kind: str) -> Cursor:
    """A cursor on the body of a binary value whose format and CRC are verified. `kind` names it in errors."""
    if not raw or raw[0] != FORMAT:
        raise CorruptStateError(other_format(kind, raw[0] if raw else 0), store=store)
    if len(raw) < 5 or _sealing_crc(store, raw[:-4]) != _CRC.unpack(raw[-4:])[0]:
        raise CorruptStateError(f"{kind} has a wrong checksum: its bytes are corrupt", store=store)
    return Cursor(raw[:-4], 1)


def _sealing_crc(store: str, raw: bytes) -> int:
    return zlib.crc32(raw, zlib.crc32(f"{store}\n".encode()))


def varint(number: int) -> bytes:
    """Unsigned LEB128."""
    if 0 <= number < len(_SHORT):
        return _SHORT[number]
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def signed(number: int) -> int:
    """The unsigned number that stands for a signed one: zigzag, so that small ones are short."""
    return 2 * number if number >= 0 else -2 * number - 1


def unsigned(number: int) -> int:
    """The signed number that an unsigned one stands for."""
    return number // 2 if number % 2 == 0 else -(number + 1) // 2


def varints(numbers: Iterable[int]) -> bytes:
    return b"".join(map(varint, numbers))


class Cursor:
    """Takes fields off a byte string, never past its end."""

    def __init__(self, raw: bytes, offset: int) -> None:
        self._raw = raw
        self._at = offset

    def take(self, length: int) -> bytes:
        if self._at + length > len(self._raw):
            raise self._ended()
        self._at += length
        return self._raw[self._at - length : self._at]

    def rest(self) -> bytes:
        return self.take(len(self._raw) - self._at)

    def varint(self) -> int:
        number = shift = 0
        for byte in self._raw[self._at : self._at + VARINT_BYTES_MAX]:
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
        if shift < 7 * VARINT_BYTES_MAX:
            raise self._ended()
        raise CorruptStateError("a binary value contains a number that does not end")

    def _ended(self) -> DynastateError:
        return CorruptStateError("a binary value ends too early")

    def at_end(self) -> bool:
        return self._at == len(self._raw)


def decode_sums(cursor: Cursor) -> Sums:
    parts, records, raw_bytes, stored_bytes = (cursor.varint() for _ in range(4))
    return Sums(parts, records, raw_bytes, stored_bytes, digest=cursor.take(8))


def encode_extras(extras: Mapping[int, bytes]) -> bytes:
    """The bytes of extras, by tag: count (tag length bytes)*."""
    fields = (varint(tag) + varint(len(raw)) + raw for tag, raw in sorted(extras.items()))
    return varint(len(extras)) + b"".join(fields)


def decode_extras(store: str, cursor: Cursor, known_tags: Collection[int], kind: str) -> dict[int, Cursor]:
    """Extras by tag. An extra may change the meaning of the value, so one that is not in `known_tags` is refused."""
    extras: dict[int, Cursor] = {}
    for _ in range(cursor.varint()):
        tag, raw = cursor.varint(), cursor.take(cursor.varint())
        if tag not in known_tags:
            raise CorruptStateError(
                f"{kind} has field {tag}, which this package does not know; upgrade dynastate", store=store
            )
        if extras and tag <= max(extras):
            raise CorruptStateError(f"{kind} has field {tag} twice, or in the wrong place", store=store)
        extras[tag] = Cursor(raw, 0)
    return extras


def encode_text(text: str) -> bytes:
    """The bytes of a text: length utf8."""
    raw = text.encode()
    return varint(len(raw)) + raw


def decode_text(cursor: Cursor) -> str:
    try:
        return cursor.take(cursor.varint()).decode()
    except UnicodeDecodeError as wrong:
        raise CorruptStateError("a binary value contains a text that is not UTF-8") from wrong


def encode_home(home: Home) -> bytes:
    """The bytes of a home: shards length store."""
    name = home.store.encode()
    return varint(home.shards) + varint(len(name)) + name


def decode_home(store: str, cursor: Cursor) -> Home:
    shards, raw = cursor.varint(), cursor.take(cursor.varint())
    try:
        home = Home(check_store(raw.decode()), shards)
    except (UnicodeDecodeError, ConfigurationError) as wrong:
        raise CorruptStateError("a binary value names an impossible store", store=store) from wrong
    if not 1 <= shards <= SHARDS_MAX:
        raise CorruptStateError("a binary value names an impossible number of shards", store=store, shards=shards)
    return home
