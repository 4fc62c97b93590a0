"""Types of columns that hold one value. `nested` has rows, arrays and maps."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.unsaferow.hashing import mix_bytes, mix_int, mix_long
from dynastate.unsaferow.scalars import scaled, shortest, unscaled

WORD: Final = struct.Struct("<Q")
U32: Final = 0xFFFFFFFF
_LONG: Final = struct.Struct("<q")
_INTERVAL: Final = struct.Struct("<iiq")
#: Bytes of the largest decimal.
_DECIMAL_BYTES: Final = 16


class CalendarInterval(NamedTuple):
    """Spark's `interval`, in three parts, since months and days have no fixed length."""

    months: int
    days: int
    microseconds: int


class Variant(NamedTuple):
    """Spark's `variant`, as the bytes of its two parts (the Parquet variant encoding)."""

    value: bytes
    metadata: bytes


class DataType(ABC):
    """A type of a column. `width` is the size of a slot in an array; in a row it is always 8 bytes.

    `name` is Spark's, for messages.
    """

    name: str
    width: int = 8

    @abstractmethod
    def read(self, raw: bytes, at: int, begin: int, end: int) -> Any:
        """The value of the slot at `at` of a row or array from `begin` to `end`."""

    @abstractmethod
    def write(self, value: Any, out: bytearray, at: int) -> None:
        """Put a value into the slot at `at`, and what does not fit there at the end of `out`.

        Raises:
            TypeError, ValueError, OverflowError, struct.error: not a value of this type.
        """

    def write_element(self, value: Any, out: bytearray, at: int) -> None:
        """Put a value into the slot at `at` of an array."""
        self.write(value, out, at)

    def write_null(self, out: bytearray, at: int) -> None:  # noqa: B027  # most put nothing
        """Put into a row what Spark puts there for a null, besides its bit."""

    @abstractmethod
    def mix(self, value: Any, seed: int) -> int:
        """Spark's hash of a value that is not null: Murmur3Hash with this seed, from 0 to 2^32 - 1."""


class Fixed(DataType):
    """A value stored as a number in its slot. `take` and `give` convert the number to the value and back."""

    def __init__(
        self, name: str, code: str, take: Callable[[Any], Any] | None = None, give: Callable[[Any], Any] | None = None
    ) -> None:
        self.name = name
        self._struct = struct.Struct(f"<{code}")
        self.width = self._struct.size
        self._take = take
        self._give = give
        self._mix = mix_int if self.width < 8 else mix_long

    def read(self, raw: bytes, at: int, begin: int, end: int) -> Any:
        number = self._struct.unpack_from(raw, at)[0]
        return number if self._take is None else self._take(number)

    def write(self, value: Any, out: bytearray, at: int) -> None:
        self._struct.pack_into(out, at, self._number(value))

    def mix(self, value: Any, seed: int) -> int:
        return self._mix(self._number(value), seed)

    def _number(self, value: Any) -> Any:
        if self._give is not None:
            return self._give(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError("not an int")
        return value


class Boolean(DataType):
    """True or false, in one byte."""

    name = "boolean"
    width = 1

    def read(self, raw: bytes, at: int, begin: int, end: int) -> bool:
        return raw[at] != 0

    def write(self, value: Any, out: bytearray, at: int) -> None:
        if not isinstance(value, bool):
            raise TypeError("not a bool")
        out[at] = value

    def mix(self, value: Any, seed: int) -> int:
        return mix_int(int(value), seed)


class Floating(DataType):
    """A number of 4 or 8 bytes."""

    def __init__(self, code: str) -> None:
        self._struct = struct.Struct(f"<{code}")
        self.width = self._struct.size
        self.name = "float" if self.width == 4 else "double"

    def read(self, raw: bytes, at: int, begin: int, end: int) -> float:
        number: float = self._struct.unpack_from(raw, at)[0]
        return number

    def write(self, value: Any, out: bytearray, at: int) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError("not a number")
        self._struct.pack_into(out, at, float("nan") if value != value else value)  # noqa: PLR0124  # one NaN for all

    def mix(self, value: Any, seed: int) -> int:
        bits = int.from_bytes(self._struct.pack(value + 0.0), "little", signed=True)  # -0.0 counts as 0.0
        return mix_int(bits, seed) if self.width == 4 else mix_long(bits, seed)


class ShortDecimal(DataType):
    """A decimal of at most 18 digits: its digits as a long."""

    def __init__(self, digits: int, scale: int) -> None:
        self.name = f"decimal({digits},{scale})"
        self.digits = digits
        self.scale = scale

    def read(self, raw: bytes, at: int, begin: int, end: int) -> Decimal:
        return scaled(_LONG.unpack_from(raw, at)[0], self.digits, self.scale)

    def write(self, value: Any, out: bytearray, at: int) -> None:
        _LONG.pack_into(out, at, unscaled(value, self.digits, self.scale))

    def mix(self, value: Any, seed: int) -> int:
        return mix_long(unscaled(value, self.digits, self.scale), seed)


class Void(DataType):
    """Always null."""

    name = "void"

    def read(self, raw: bytes, at: int, begin: int, end: int) -> None:
        return None

    def write(self, value: Any, out: bytearray, at: int) -> None:
        raise TypeError("only None")

    def mix(self, value: Any, seed: int) -> int:
        return seed


class Variable(DataType):
    """A value stored after the slots; its slot says where."""

    def read(self, raw: bytes, at: int, begin: int, end: int) -> Any:
        word = WORD.unpack_from(raw, at)[0]
        first = begin + (word >> 32)
        last = first + (word & U32)
        if last > end:
            raise CorruptStateError("a row's variable part ends after the row", at=last, end=end)
        return self.load(raw, first, last)

    def write(self, value: Any, out: bytearray, at: int) -> None:
        self._append(self.dump(value), out, at)

    def _append(self, raw: bytes, out: bytearray, at: int) -> None:
        WORD.pack_into(out, at, len(out) << 32 | len(raw))
        out += raw
        out += bytes(-len(raw) % 8)

    @abstractmethod
    def load(self, raw: bytes, begin: int, end: int) -> Any:
        """The value of the bytes from begin to end."""

    @abstractmethod
    def dump(self, value: Any) -> bytes:
        """The bytes of a value."""


class Binary(Variable):
    """Bytes as they are."""

    name = "binary"

    def load(self, raw: bytes, begin: int, end: int) -> bytes:
        return raw[begin:end]

    def dump(self, value: Any) -> bytes:
        if not isinstance(value, (bytes, bytearray)):
            raise TypeError("not bytes")
        return bytes(value)

    def mix(self, value: Any, seed: int) -> int:
        return mix_bytes(self.dump(value), seed)


class String(Variable):
    """UTF-8."""

    name = "string"

    def load(self, raw: bytes, begin: int, end: int) -> str:
        return raw[begin:end].decode(errors="surrogateescape")

    def dump(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise TypeError("not a str")
        return value.encode(errors="surrogateescape")

    def mix(self, value: Any, seed: int) -> int:
        return mix_bytes(self.dump(value), seed)


class LongDecimal(Variable):
    """A decimal of more than 18 digits. In a row it takes 16 bytes after the slots, even where it is null."""

    def __init__(self, digits: int, scale: int) -> None:
        self.name = f"decimal({digits},{scale})"
        self.digits = digits
        self.scale = scale

    def load(self, raw: bytes, begin: int, end: int) -> Decimal:
        if not 0 < end - begin <= _DECIMAL_BYTES:
            raise CorruptStateError("a decimal has no bytes, or more than its row", at=begin, bytes=end - begin)
        return scaled(int.from_bytes(raw[begin:end], "big", signed=True), self.digits, self.scale)

    def dump(self, value: Any) -> bytes:
        return shortest(unscaled(value, self.digits, self.scale))

    def write(self, value: Any, out: bytearray, at: int) -> None:
        raw = self.dump(value)
        WORD.pack_into(out, at, len(out) << 32 | len(raw))
        out += raw.ljust(_DECIMAL_BYTES, b"\0")

    def write_element(self, value: Any, out: bytearray, at: int) -> None:
        self._append(self.dump(value), out, at)

    def write_null(self, out: bytearray, at: int) -> None:
        WORD.pack_into(out, at, len(out) << 32)
        out += bytes(_DECIMAL_BYTES)

    def mix(self, value: Any, seed: int) -> int:
        return mix_bytes(self.dump(value), seed)


class Interval(Variable):
    """Months, days and microseconds. It takes its 16 bytes even where it is null."""

    name = "interval"

    def load(self, raw: bytes, begin: int, end: int) -> CalendarInterval:
        if end - begin != _INTERVAL.size:
            raise CorruptStateError("an interval has the wrong length", at=begin, bytes=end - begin)
        return CalendarInterval(*_INTERVAL.unpack_from(raw, begin))

    def dump(self, value: Any) -> bytes:
        return _INTERVAL.pack(*value)

    def write_null(self, out: bytearray, at: int) -> None:
        self._append(bytes(16), out, at)

    def mix(self, value: Any, seed: int) -> int:
        return mix_int(value[0], mix_int(value[1], mix_long(value[2], seed)))


class VariantType(Variable):
    """Two binaries, after the length of the first."""

    name = "variant"

    def load(self, raw: bytes, begin: int, end: int) -> Variant:
        split = begin + 4 + int.from_bytes(raw[begin : begin + 4], "little")
        if split > end:
            raise CorruptStateError("a variant ends after its part of the row", at=split, end=end)
        return Variant(raw[begin + 4 : split], raw[split:end])

    def dump(self, value: Any) -> bytes:
        return len(value.value).to_bytes(4, "little") + bytes(value.value) + bytes(value.metadata)

    def mix(self, value: Any, seed: int) -> int:
        raise ConfigurationError("Spark has no hash of a variant, and so no partition for a key with one")
