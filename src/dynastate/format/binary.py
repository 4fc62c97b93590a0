"""Binary values within items: variable-length numbers, checksums, and the homes that forks name."""

from __future__ import annotations

import struct
import zlib
from typing import Final

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.items import FORMAT
from dynastate.format.keys import SHARDS_MAX, Home, check_store

#: Format of version entries and manifests that name items of another store: only forks have them.
FORKED: Final = 2

_CRC = struct.Struct("<I")


def seal(store: str, raw: bytes) -> bytes:
    """A binary value, which begins with its format, followed by its CRC, which covers the store's name too."""
    return raw + _CRC.pack(_sealing_crc(store, raw))


def unseal(store: str, raw: bytes, what: str) -> Cursor:
    """A cursor behind the format of a binary value, once format and CRC are verified. `what` names it in errors.

    Raises:
        CorruptStateError: unknown format, or wrong checksum.
    """
    if not raw or not FORMAT <= raw[0] <= FORKED:
        raise CorruptStateError(
            f"{what} has format {raw[:1].hex()}, this package reads {FORMAT:02x} and {FORKED:02x}; upgrade dynastate",
            store=store,
        )
    if len(raw) < 5 or _sealing_crc(store, raw[:-4]) != _CRC.unpack(raw[-4:])[0]:
        raise CorruptStateError(f"{what} has a wrong checksum: its bytes are corrupt", store=store)
    return Cursor(raw[:-4], 1)


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


class Cursor:
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
        raise CorruptStateError("a binary value contains a number that does not end")

    def at_end(self) -> bool:
        return self._at == len(self._raw)


def encode_home(home: Home) -> bytes:
    """The bytes of a home: shards length store."""
    name = home.store.encode()
    return varint(home.shards) + varint(len(name)) + name


def decode_home(store: str, cursor: Cursor) -> Home:
    """A home from its bytes.

    Raises:
        CorruptStateError: the store's name or the number of shards is impossible.
    """
    shards, raw = cursor.varint(), cursor.take(cursor.varint())
    try:
        home = Home(check_store(raw.decode()), shards)
    except (UnicodeDecodeError, ConfigurationError) as wrong:
        raise CorruptStateError("a binary value names an impossible store", store=store) from wrong
    if not 1 <= shards <= SHARDS_MAX:
        raise CorruptStateError("a binary value names an impossible number of shards", store=store, shards=shards)
    return home
