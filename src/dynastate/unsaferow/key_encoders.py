"""Keys of state rows: their bytes in a column family, and their partition in Spark. No I/O.

Keys that are never scanned are raw rows; others are encoded as Spark's key encoders do it. There each row begins with
the byte 0, the version of its encoding:

    prefix scan          length:u32  0 row of the first columns  0 row of the others
    range scan           length:u32  0 row of the ordering columns, as `ordered` bytes  0 row of the others
    time in front        time  0 row of the other columns
    time behind          0 row of the other columns  time
    ordered              sign:u8  number, big-endian           sign: 0 negative, 1 not negative, 2 null
    time                 long, big-endian, its highest bit flipped

The bits of a negative float or double are all flipped, so that bytes are in the order of numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.unsaferow import scalars
from dynastate.unsaferow.nested import Struct
from dynastate.unsaferow.types import Binary, DataType, Fixed, Floating

#: The seed of the hash by which Spark distributes rows over partitions.
SEED: Final = 42
_LENGTH: Final = struct.Struct("<i")
_VERSION: Final = b"\0"
_NEGATIVE, _NOT_NEGATIVE, _NULL = b"\0", b"\1", b"\2"
_SIGN: Final = 1 << 63
_FLOATING: Final = ("float", "double")


class KeyEncoder:
    """The keys of one column family, here plain rows.

    `placing` are the columns whose hash decides the partition of a key.
    """

    def __init__(self, columns: Struct, placing: Sequence[int]) -> None:
        self.columns = columns
        self.placing = columns.at(placing)

    def encode(self, key: Mapping[str, Any]) -> bytes:
        """The bytes of a key by its columns."""
        return self.columns.encode(key)

    def decode(self, raw: bytes) -> dict[str, Any]:
        """A key's columns."""
        return self.columns.decode(raw)

    def partition(self, key: Mapping[str, Any], partitions: int) -> int:
        """Spark's partition of a key: the hash of its columns, as a signed number, modulo the number of partitions."""
        return signed(self.placing.mix(key, SEED)) % partitions


class SplitKeys(KeyEncoder):
    """Keys in two rows: the columns at `first`, then the others."""

    def __init__(self, columns: Struct, first: Sequence[int], placing: Sequence[int]) -> None:
        if not all(0 <= n < len(columns.names) for n in first):
            raise CorruptStateError("a key encoder names columns that its keys do not have", columns=len(columns.names))
        super().__init__(columns, placing)
        self._first = columns.at(first)
        self._rest = columns.at([n for n in range(len(columns.names)) if n not in first])

    def encode(self, key: Mapping[str, Any]) -> bytes:
        self.columns.check(key)
        first = _VERSION + self._encode_first({name: key[name] for name in self._first.names})
        rest = _VERSION + self._rest.encode({name: key[name] for name in self._rest.names})
        return _LENGTH.pack(len(first)) + first + rest

    def decode(self, raw: bytes) -> dict[str, Any]:
        end = _LENGTH.size + (_LENGTH.unpack_from(raw)[0] if len(raw) >= _LENGTH.size else 0)
        if not _LENGTH.size < end <= len(raw):
            raise CorruptStateError("a key's first part ends after the key", bytes=len(raw))
        columns = self._decode_first(_row(raw[_LENGTH.size : end])) | self._rest.decode(_row(raw[end:]))
        return {name: columns[name] for name in self.columns.names}

    def _encode_first(self, key: dict[str, Any]) -> bytes:
        return self._first.encode(key)

    def _decode_first(self, raw: bytes) -> dict[str, Any]:
        return self._first.decode(raw)


class RangeKeys(SplitKeys):
    """Keys in two rows. The first row sorts like its numbers."""

    def __init__(self, columns: Struct, first: Sequence[int], placing: Sequence[int]) -> None:
        super().__init__(columns, first, placing)
        self._ordered = Struct([(name, Binary()) for name in self._first.names])
        self._kinds = dict(zip(self._first.names, self._first.types, strict=True))

    def _encode_first(self, key: dict[str, Any]) -> bytes:
        super()._encode_first(key)  # its errors name the column
        return self._ordered.encode({name: to_ordered(self._kinds[name], value) for name, value in key.items()})

    def _decode_first(self, raw: bytes) -> dict[str, Any]:
        return {name: from_ordered(self._kinds[name], each) for name, each in self._ordered.decode(raw).items()}


class TimedKeys(KeyEncoder):
    """Keys with a time, their last column, before or after a row of the others."""

    def __init__(self, columns: Struct, *, in_front: bool) -> None:
        others = range(len(columns.names) - 1)
        super().__init__(columns, others)
        self._others = columns.at(others)
        self._time = columns.names[-1]
        self._in_front = in_front

    def encode(self, key: Mapping[str, Any]) -> bytes:
        self.columns.check(key)
        try:
            number = scalars.from_whole(key[self._time])
        except TypeError as wrong:
            raise ConfigurationError(f"column {self._time} is a time in a long", value=repr(key[self._time])) from wrong
        time = ((number & (1 << 64) - 1) ^ _SIGN).to_bytes(8, "big")
        others = _VERSION + self._others.encode({name: key[name] for name in self._others.names})
        return time + others if self._in_front else others + time

    def decode(self, raw: bytes) -> dict[str, Any]:
        time, others = (raw[:8], raw[8:]) if self._in_front else (raw[-8:], raw[:-8])
        number = signed(int.from_bytes(time, "big") ^ _SIGN, 64)
        return self._others.decode(_row(others)) | {self._time: number}


def make_encoder(columns: Struct, spec: Mapping[str, Any], store_name: str) -> KeyEncoder:
    """The key encoder of a column family, from the JSON of Spark's key encoder spec. Refuse an unknown one."""
    try:
        return _encoder(columns, spec, store_name)
    except (LookupError, TypeError, ValueError, OverflowError) as corrupt:
        raise CorruptStateError(f"a key encoder is corrupt: {corrupt!r}") from corrupt


def _encoder(columns: Struct, spec: Mapping[str, Any], store_name: str) -> KeyEncoder:
    kind, every = spec.get("keyStateEncoderType"), range(len(columns.names))
    if kind == "NoPrefixKeyStateEncoderSpec":
        # All rows of one key of a stream-stream join are in one partition.
        is_numbered = store_name.endswith("-keyWithIndexToValue")
        return KeyEncoder(columns, every[:-1] if is_numbered else every)
    if kind == "PrefixKeyScanStateEncoderSpec":
        first = range(int(spec["numColsPrefixKey"]))
        return SplitKeys(columns, first, first)
    if kind == "RangeKeyScanStateEncoderSpec":
        ordering = [int(n) for n in spec["orderingOrdinals"]]
        return RangeKeys(columns, ordering, [n for n in every if n not in ordering] or every)
    if kind in ("TimestampAsPrefixKeyStateEncoderSpec", "TimestampAsPostfixKeyStateEncoderSpec"):
        return TimedKeys(columns, in_front="Prefix" in kind)
    raise ConfigurationError(f"state has keys by {kind}, which dynastate does not read; read it with Spark")


def signed(number: int, bits: int = 32) -> int:
    return number - (1 << bits) if number >> bits - 1 else number


def to_ordered(kind: DataType, value: Any) -> bytes:
    """A number as bytes that sort as numbers do. Refuse a type that Spark does not order keys by."""
    if type(kind) not in (Fixed, Floating) or not isinstance(kind, Fixed) or kind.name in ("boolean", "void"):
        raise ConfigurationError("Spark orders keys by numbers only")
    if value is None:
        return _NULL + bytes(kind.width)
    slot = bytearray(8)
    kind.write(value, slot, 0)
    raw = bytes(slot[: kind.width])[::-1]
    is_negative = raw[0] >= 0x80  # the sign bit, of floats too
    if is_negative and kind.name in _FLOATING:
        raw = bytes(byte ^ 0xFF for byte in raw)
    return (_NEGATIVE if is_negative else _NOT_NEGATIVE) + raw


def from_ordered(kind: DataType, raw: bytes | None) -> Any:
    if raw is None or not isinstance(kind, Fixed) or len(raw) != 1 + kind.width:
        raise CorruptStateError("a column that orders keys has the wrong length", bytes=len(raw or b""))
    sign, number = raw[:1], raw[1:]
    if sign == _NULL:
        return None
    if sign == _NEGATIVE and kind.name in _FLOATING:
        number = bytes(byte ^ 0xFF for byte in number)
    return kind.read(number[::-1], 0, 0, kind.width)


def _row(raw: bytes) -> bytes:
    if raw[:1] != _VERSION:
        raise CorruptStateError("a key has another version of Spark's encoding than 0", version=raw[:1].hex())
    return raw[1:]
