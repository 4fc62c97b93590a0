"""Types of columns that hold one value. `nested` has rows, arrays and maps, `schema` the table of plain types.

A type reads a value from a row, and writes it as part of a key. It has the hash, the order and the JSON of a value, and
its types and values in Arrow and DuckDB.
"""

from __future__ import annotations

import base64
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, Final, NamedTuple

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.changes import mix_word, mixed_to_hash
from dynastate.unsaferow import scalars

WORD: Final = struct.Struct("<Q")
U32: Final = 0xFFFFFFFF
_INTERVAL: Final = struct.Struct("<iiq")
#: Bytes of the largest decimal.
_DECIMAL_BYTES: Final = 16


def mix_bytes(raw: bytes, seed: int) -> int:
    """Spark's variant of Murmur3: bytes after the last whole word are mixed one by one, as signed numbers."""
    mixed, whole = seed, len(raw) & ~3
    for (word,) in struct.iter_unpack("<I", raw[:whole]):
        mixed = mix_word(mixed, word)
    for (byte,) in struct.iter_unpack("<b", raw[whole:]):
        mixed = mix_word(mixed, byte & U32)
    return mixed_to_hash(mixed, len(raw))


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

    @property
    def example(self) -> Any:
        """A value, for messages that show what a key looks like."""
        return 1

    @abstractmethod
    def read(self, raw: bytes, slot: int, begin: int, end: int) -> Any:
        """The value of the slot at offset `slot` of a row or array from `begin` to `end`."""

    @abstractmethod
    def write(self, value: Any, out: bytearray, slot: int) -> None:
        """Put a value into the slot at offset `slot`, and the bytes that do not fit there at the end of `out`.

        Raises TypeError, ValueError, OverflowError or struct.error for a value of another type.
        """

    def write_element(self, value: Any, out: bytearray, slot: int) -> None:
        """Put a value into the slot at offset `slot` of an array."""
        self.write(value, out, slot)

    def write_null(self, out: bytearray, slot: int) -> None:  # noqa: B027  # most put nothing
        """Put Spark's bytes for a null, besides its bit, into a row."""

    @abstractmethod
    def mix(self, value: Any, seed: int) -> int:
        """Spark's hash of a value that is not null: Murmur3Hash with this seed, from 0 to 2^32 - 1."""

    # Values that are not null, here and below.

    def order(self, value: Any) -> Any:
        """A value of Python that sorts as this one does in Spark."""
        return value

    def normal(self, value: Any) -> Any:
        """The value that Spark stores for all values that are equal to this one when it groups by them."""
        return value

    def to_json(self, value: Any) -> Any:
        """The value in JSON's types."""
        return value

    @abstractmethod
    def from_json(self, value: Any) -> Any:
        """The value of a form that `to_json` gives. Raises TypeError or ValueError for another form."""

    @abstractmethod
    def arrow(self, pa: Any, *, sql: bool = False) -> Any:
        """The type of Arrow, by its module; with `sql` the type for DuckDB."""

    def to_arrow(self, value: Any) -> Any:
        """The value in the form of pyarrow."""
        return value


@dataclass(eq=False)
class Fixed(DataType):
    """A value stored as a number in its slot. `take` and `give` convert the number to the value and back.

    `code` is the number's code in `struct`. `dump_json` and `load_json` convert the value to JSON and back. `in_arrow`
    is the function of pyarrow that makes the type, and its arguments; `in_sql` is the same for DuckDB, if it differs.
    With `arrow_unit` Arrow gets the number, divided by that unit.
    """

    name: str
    code: str
    take: Callable[[Any], Any] | None = None
    give: Callable[[Any], Any] = scalars.from_whole
    sample: Any = 1
    dump_json: Callable[[Any], Any] | None = None
    load_json: Callable[[Any], Any] = scalars.from_whole
    in_arrow: tuple[str, ...] = ()
    in_sql: tuple[str, ...] = ()
    arrow_unit: int = 0

    def __post_init__(self) -> None:
        self._struct = struct.Struct(f"<{self.code}")
        self.width = self._struct.size

    def read(self, raw: bytes, slot: int, begin: int, end: int) -> Any:
        number = self._struct.unpack_from(raw, slot)[0]
        return number if self.take is None else self.take(number)

    def write(self, value: Any, out: bytearray, slot: int) -> None:
        self._struct.pack_into(out, slot, self.give(value))

    @property
    def example(self) -> Any:
        return self.sample

    def mix(self, value: Any, seed: int) -> int:
        """Spark hashes a number of less than 4 bytes as one of 4, and numbers that it takes for equal as one."""
        raw = self._struct.pack(self.give(self.normal(value)))
        number = int.from_bytes(raw, "little", signed=True)
        return mix_bytes(number.to_bytes(max(4, self.width), "little", signed=True), seed)

    def order(self, value: Any) -> Any:
        return self.give(value)

    def to_json(self, value: Any) -> Any:
        return value if self.dump_json is None else self.dump_json(value)

    def from_json(self, value: Any) -> Any:
        return self.load_json(value)

    def arrow(self, pa: Any, *, sql: bool = False) -> Any:
        function, *arguments = (self.in_sql if sql else ()) or self.in_arrow
        return getattr(pa, function)(*arguments)

    def to_arrow(self, value: Any) -> Any:
        return self.give(value) // self.arrow_unit if self.arrow_unit else value


class Floating(Fixed):
    """A float or double: all NaN are equal and the largest, and -0.0 is equal to 0.0."""

    def order(self, value: Any) -> Any:
        return (value != value, value)  # noqa: PLR0124  # a NaN is not equal to itself

    def normal(self, value: Any) -> Any:
        return math.nan if value != value else value + 0.0  # noqa: PLR0124

    def to_json(self, value: Any) -> Any:
        return value if math.isfinite(value) else str(value)

    def from_json(self, value: Any) -> Any:
        try:
            number = float(scalars.checked(value, "a number", (int, float, Decimal, str), bool))
        except ValueError as wrong:
            raise ValueError("not a number") from wrong
        if math.isinf(number) and not isinstance(value, str):
            raise ValueError("too large a number")
        return number


class _DecimalValues(DataType):
    """A decimal, however a row stores it."""

    digits: int
    scale: int

    @property
    def example(self) -> Any:
        return Decimal(1).scaleb(-self.scale)

    def to_json(self, value: Any) -> Any:
        return f"{value:f}"

    def from_json(self, value: Any) -> Any:
        try:
            return Decimal(str(scalars.checked(value, "a decimal", (int, float, Decimal, str), bool)))
        except InvalidOperation as wrong:
            raise ValueError("no decimal") from wrong

    def arrow(self, pa: Any, *, sql: bool = False) -> Any:
        return pa.decimal128(self.digits, self.scale)


class ShortDecimal(_DecimalValues, Fixed):
    """A decimal of at most 18 digits: its digits as a long."""

    def __init__(self, digits: int, scale: int) -> None:
        take = partial(scalars.scaled, digits=digits, scale=scale)
        give = partial(scalars.unscaled, digits=digits, scale=scale)
        super().__init__(f"decimal({digits},{scale})", "q", take, give)
        self.digits = digits
        self.scale = scale


class Variable(DataType):
    """A value stored after the slots; its slot has offset and length."""

    def read(self, raw: bytes, slot: int, begin: int, end: int) -> Any:
        word = WORD.unpack_from(raw, slot)[0]
        first = begin + (word >> 32)
        last = first + (word & U32)
        if last > end:
            raise CorruptStateError("a row's variable part ends after the row", at=last, end=end)
        return self.load(raw, first, last)

    def write(self, value: Any, out: bytearray, slot: int) -> None:
        self._append(self.dump(value), out, slot)

    def _append(self, raw: bytes, out: bytearray, slot: int) -> None:
        WORD.pack_into(out, slot, len(out) << 32 | len(raw))
        out += raw
        out += bytes(-len(raw) % 8)

    @abstractmethod
    def load(self, raw: bytes, begin: int, end: int) -> Any:
        """The value of the bytes from begin to end."""

    @abstractmethod
    def dump(self, value: Any) -> bytes:
        """The bytes of a value."""

    def mix(self, value: Any, seed: int) -> int:
        return mix_bytes(self.dump(value), seed)


class Binary(Variable):
    """Bytes as they are."""

    name = "binary"

    def load(self, raw: bytes, begin: int, end: int) -> bytes:
        return raw[begin:end]

    def dump(self, value: Any) -> bytes:
        return bytes(scalars.checked(value, "bytes", (bytes, bytearray)))

    @property
    def example(self) -> Any:
        return b"a"

    def to_json(self, value: Any) -> Any:
        return base64.b64encode(value).decode()

    def from_json(self, value: Any) -> Any:
        return scalars.from_base64(value)

    def arrow(self, pa: Any, *, sql: bool = False) -> Any:
        return pa.binary()


class String(Variable):
    """UTF-8."""

    name = "string"

    def load(self, raw: bytes, begin: int, end: int) -> str:
        return raw[begin:end].decode(errors="surrogateescape")

    def dump(self, value: Any) -> bytes:
        return bytes(scalars.checked(value, "a str", str).encode(errors="surrogateescape"))

    @property
    def example(self) -> Any:
        return "a"

    def order(self, value: Any) -> Any:
        return self.dump(value)

    def from_json(self, value: Any) -> Any:
        return scalars.checked(value, "a text", str)

    def arrow(self, pa: Any, *, sql: bool = False) -> Any:
        return pa.string()

    def to_arrow(self, value: Any) -> Any:
        r"""Arrow has no bytes that are not UTF-8: they are spelt as in JSON, as \\udcff."""
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()


class LongDecimal(_DecimalValues, Variable):
    """A decimal of more than 18 digits. In a row it takes 16 bytes after the slots, even where it is null."""

    def __init__(self, digits: int, scale: int) -> None:
        self.name = f"decimal({digits},{scale})"
        self.digits = digits
        self.scale = scale

    def load(self, raw: bytes, begin: int, end: int) -> Decimal:
        if not 0 < end - begin <= _DECIMAL_BYTES:
            raise CorruptStateError("a decimal has no bytes, or more than its row", at=begin, bytes=end - begin)
        return scalars.scaled(int.from_bytes(raw[begin:end], "big", signed=True), self.digits, self.scale)

    def dump(self, value: Any) -> bytes:
        return scalars.shortest(scalars.unscaled(value, self.digits, self.scale))

    def write(self, value: Any, out: bytearray, slot: int) -> None:
        raw = self.dump(value)
        WORD.pack_into(out, slot, len(out) << 32 | len(raw))
        out += raw.ljust(_DECIMAL_BYTES, b"\0")

    def write_element(self, value: Any, out: bytearray, slot: int) -> None:
        self._append(self.dump(value), out, slot)

    def write_null(self, out: bytearray, slot: int) -> None:
        WORD.pack_into(out, slot, len(out) << 32)
        out += bytes(_DECIMAL_BYTES)


class Interval(Variable):
    """Months, days and microseconds. It takes its 16 bytes even where it is null."""

    name = "interval"

    def load(self, raw: bytes, begin: int, end: int) -> CalendarInterval:
        if end - begin != _INTERVAL.size:
            raise CorruptStateError("an interval has the wrong length", at=begin, bytes=end - begin)
        return CalendarInterval(*_INTERVAL.unpack_from(raw, begin))

    def dump(self, value: Any) -> bytes:
        return _INTERVAL.pack(*value)

    @property
    def example(self) -> Any:
        return CalendarInterval(0, 1, 0)

    def to_json(self, value: Any) -> Any:
        return value._asdict()

    def from_json(self, value: Any) -> Any:
        parts = scalars.checked(value, "an object with months, days and microseconds", Mapping)
        if set(parts) != set(CalendarInterval._fields):
            raise ValueError("it needs months, days and microseconds")
        return CalendarInterval(**{name: scalars.from_whole(part) for name, part in parts.items()})

    def arrow(self, pa: Any, *, sql: bool = False) -> Any:
        """A struct, since Arrow's own interval is in nanoseconds, which do not reach as far."""
        return pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])

    def to_arrow(self, value: Any) -> Any:
        return tuple(value)

    def write_null(self, out: bytearray, slot: int) -> None:
        self._append(bytes(16), out, slot)

    def mix(self, value: Any, seed: int) -> int:
        raw = self.dump(value)
        return mix_bytes(raw[:4], mix_bytes(raw[4:8], mix_bytes(raw[8:], seed)))


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

    @property
    def example(self) -> Any:
        return Variant(b"\x0c\x01", b"\x01\0\0")

    def to_json(self, value: Any) -> Any:
        return {name: base64.b64encode(part).decode() for name, part in value._asdict().items()}

    def from_json(self, value: Any) -> Any:
        parts = scalars.checked(value, "an object with value and metadata", Mapping)
        if set(parts) != set(Variant._fields):
            raise ValueError("it needs value and metadata, in base64")
        return Variant(**{name: scalars.from_base64(part) for name, part in parts.items()})

    def arrow(self, pa: Any, *, sql: bool = False) -> Any:
        return pa.struct([("value", pa.binary()), ("metadata", pa.binary())])

    def to_arrow(self, value: Any) -> Any:
        return tuple(value)

    def mix(self, value: Any, seed: int) -> int:
        raise ConfigurationError("Spark has no hash of a variant, and so no partition for a key with one")
