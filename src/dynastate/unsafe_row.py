"""Spark's row format for people: schemas, and rows of bytes (`UnsafeRow`) to Python values and back. No I/O.

    row      := nulls  slot:8 * fields  variable*      nulls: a bit for each field, low bits first, in words of 8 bytes
    array    := elements:u64  nulls  slot:width * elements, padded to 8  variable*
    map      := bytes of the key array:u64  key array  value array
    variable := bytes, padded with zeros to 8; its slot: offset:u32 << 32 | bytes:u32, from the begin of row or array

Everything is little-endian but the bytes of a decimal with more than 18 digits, which are big-endian.

| Spark | Python |
|---|---|
| boolean, byte, short, integer, long, float, double | bool, int, float |
| decimal | Decimal, with the scale of its type |
| string, char, varchar | str; bytes that are no UTF-8 as surrogates (PEP 383) |
| binary | bytes |
| date, time, timestamp_ntz | date, time, datetime without a zone |
| timestamp | datetime in UTC |
| interval of days and seconds; of years and months | timedelta; int, in months |
| interval | CalendarInterval |
| struct | dict; of fields of one name the later ones are called name#2, name#3 |
| array | list |
| map | dict; a struct or array as its key is a tuple |
| variant | Variant, its two parts of bytes |
| void | None |
"""

from __future__ import annotations

import json
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final, NamedTuple, TypeVar

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.rows import mix_word, mixed_to_hash

_WORD: Final = struct.Struct("<Q")
_LONG: Final = struct.Struct("<q")
_INTERVAL: Final = struct.Struct("<iiq")
_U32: Final = 0xFFFFFFFF
_EPOCH_DATE: Final = date(1970, 1, 1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EPOCH_NTZ: Final = datetime(1970, 1, 1)  # what has no zone begins without one
_MICROSECOND: Final = timedelta(microseconds=1)
#: More digits than Spark's decimals have, so that nothing is rounded.
_EXACT: Final = Context(prec=76)
#: Digits of the largest decimal that lies in its slot, as a long; and of the largest that Spark has.
_LONG_DIGITS: Final = 18
_DIGITS_MAX: Final = 38
#: What the largest decimal takes.
_DECIMAL_BYTES: Final = 16
_DAY_NANOS: Final = 86_400 * 10**9
#: Columns within columns. Each level takes some frames of Python's stack.
_LEVELS_MAX: Final = 100


Moment = TypeVar("Moment", date, datetime)


class CalendarInterval(NamedTuple):
    """Spark's `interval`: its three parts are apart, since months and days have no fixed length."""

    months: int
    days: int
    microseconds: int


class Variant(NamedTuple):
    """Spark's `variant`, as the bytes of its two parts (the Parquet variant encoding)."""

    value: bytes
    metadata: bytes


class DataType(ABC):
    """A type of a column. `width` is what a slot of it takes in an array; in a row it is always 8 bytes."""

    width: int = 8

    @abstractmethod
    def read(self, raw: bytes, at: int, begin: int, end: int) -> Any:
        """The value of the slot at `at`, of a row or array from `begin` to `end`."""

    @abstractmethod
    def write(self, value: Any, out: bytearray, at: int) -> None:
        """Put a value into the slot at `at`, and what does not fit there behind `out`.

        Raises:
            TypeError, ValueError, OverflowError, struct.error: it is no value of this type.
        """

    def write_element(self, value: Any, out: bytearray, at: int) -> None:
        """Put a value into the slot at `at` of an array."""
        self.write(value, out, at)

    def write_null(self, out: bytearray, at: int) -> None:  # noqa: B027  # most leave nothing
        """Leave in a row what Spark leaves for a null beside its bit."""

    @abstractmethod
    def mix(self, value: Any, seed: int) -> int:
        """Spark's hash of a value that is not null: Murmur3Hash with this seed, from 0 to 2^32 - 1."""


# ------------------------------------------------------------------------------------------------ what fits into a slot


class Fixed(DataType):
    """What lies in its slot as a number. `take` and `give` turn that into the value and back."""

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

    def read(self, raw: bytes, at: int, begin: int, end: int) -> None:
        return None

    def write(self, value: Any, out: bytearray, at: int) -> None:
        raise TypeError("only None")

    def mix(self, value: Any, seed: int) -> int:
        return seed


# --------------------------------------------------------------------------------------------- what has a variable part


class Variable(DataType):
    """What lies behind the slots, which say where."""

    def read(self, raw: bytes, at: int, begin: int, end: int) -> Any:
        word = _WORD.unpack_from(raw, at)[0]
        first = begin + (word >> 32)
        last = first + (word & _U32)
        if last > end:
            raise CorruptStateError("a row's variable part ends behind it", at=last, end=end)
        return self.load(raw, first, last)

    def write(self, value: Any, out: bytearray, at: int) -> None:
        self._append(self.dump(value), out, at)

    def _append(self, raw: bytes, out: bytearray, at: int) -> None:
        _WORD.pack_into(out, at, len(out) << 32 | len(raw))
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

    def load(self, raw: bytes, begin: int, end: int) -> str:
        return raw[begin:end].decode(errors="surrogateescape")

    def dump(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise TypeError("not a str")
        return value.encode(errors="surrogateescape")

    def mix(self, value: Any, seed: int) -> int:
        return mix_bytes(self.dump(value), seed)


class LongDecimal(Variable):
    """A decimal of more than 18 digits. In a row it has 16 bytes behind the slots, even where it is null."""

    def __init__(self, digits: int, scale: int) -> None:
        self.digits = digits
        self.scale = scale

    def load(self, raw: bytes, begin: int, end: int) -> Decimal:
        if not 0 < end - begin <= _DECIMAL_BYTES:
            raise CorruptStateError("a decimal has more bytes than there are, or none", at=begin, bytes=end - begin)
        return scaled(int.from_bytes(raw[begin:end], "big", signed=True), self.digits, self.scale)

    def dump(self, value: Any) -> bytes:
        return shortest(unscaled(value, self.digits, self.scale))

    def write(self, value: Any, out: bytearray, at: int) -> None:
        raw = self.dump(value)
        _WORD.pack_into(out, at, len(out) << 32 | len(raw))
        out += raw.ljust(_DECIMAL_BYTES, b"\0")

    def write_element(self, value: Any, out: bytearray, at: int) -> None:
        self._append(self.dump(value), out, at)

    def write_null(self, out: bytearray, at: int) -> None:
        _WORD.pack_into(out, at, len(out) << 32)
        out += bytes(_DECIMAL_BYTES)

    def mix(self, value: Any, seed: int) -> int:
        return mix_bytes(self.dump(value), seed)


class Interval(Variable):
    """Months, days and microseconds. It has its 16 bytes even where it is null."""

    def load(self, raw: bytes, begin: int, end: int) -> CalendarInterval:
        if end - begin != _INTERVAL.size:
            raise CorruptStateError("an interval has another length than its type", at=begin, bytes=end - begin)
        return CalendarInterval(*_INTERVAL.unpack_from(raw, begin))

    def dump(self, value: Any) -> bytes:
        return _INTERVAL.pack(*value)

    def write_null(self, out: bytearray, at: int) -> None:
        self._append(bytes(16), out, at)

    def mix(self, value: Any, seed: int) -> int:
        return mix_int(value[0], mix_int(value[1], mix_long(value[2], seed)))


class VariantType(Variable):
    """Two binaries: length of the first, the first, the second."""

    def load(self, raw: bytes, begin: int, end: int) -> Variant:
        split = begin + 4 + int.from_bytes(raw[begin : begin + 4], "little")
        if split > end:
            raise CorruptStateError("a variant ends behind its part of the row", at=split, end=end)
        return Variant(raw[begin + 4 : split], raw[split:end])

    def dump(self, value: Any) -> bytes:
        return len(value.value).to_bytes(4, "little") + bytes(value.value) + bytes(value.metadata)

    def mix(self, value: Any, seed: int) -> int:
        raise ConfigurationError("Spark has no hash of a variant, and so no partition for a key with one")


class Array(Variable):
    """Elements of one type. They do not overlap, so values never take more than some times the bytes of their row."""

    def __init__(self, element: DataType) -> None:
        self.element = element

    def load(self, raw: bytes, begin: int, end: int) -> list[Any]:
        count = _WORD.unpack_from(raw, begin)[0]
        first = begin + 8 + _nulls_bytes(count)
        element, width = self.element, self.element.width
        if first + count * width > end:
            raise CorruptStateError("an array has more elements than room", elements=count, at=begin)
        places = [None if _is_null(raw, begin + 8, n) else first + n * width for n in range(count)]
        if isinstance(element, Variable):
            taken = sum(_WORD.unpack_from(raw, at)[0] & _U32 for at in places if at is not None)
            if taken > end - first - count * width:
                raise CorruptStateError("an array's elements take more than its room", bytes=taken, at=begin)
        return [None if at is None else element.read(raw, at, begin, end) for at in places]

    def dump(self, value: Any) -> bytes:
        if not isinstance(value, (list, tuple)):
            raise TypeError("not a list")
        return self.dump_all(value)

    def dump_all(self, values: Sequence[Any]) -> bytes:
        width, first = self.element.width, 8 + _nulls_bytes(len(values))
        out = bytearray(first + -(-len(values) * width // 8) * 8)
        _WORD.pack_into(out, 0, len(values))
        for n, value in enumerate(values):
            if value is None:
                _set_null(out, 8, n)
            else:
                self.element.write_element(value, out, first + n * width)
        return bytes(out)

    def mix(self, value: Any, seed: int) -> int:
        return mix_all(((self.element, each) for each in value), seed)


class Map(Variable):
    """Two arrays of equal length. Written are the entries in the order of their keys, as Spark has them in keys."""

    def __init__(self, key: DataType, value: DataType) -> None:
        self.key = key
        self.value = value
        self._keys = Array(key)
        self._values = Array(value)

    def load(self, raw: bytes, begin: int, end: int) -> dict[Any, Any]:
        middle = begin + 8 + _WORD.unpack_from(raw, begin)[0]
        if middle > end:
            raise CorruptStateError("a map's keys end behind it", at=middle, end=end)
        keys, values = self._keys.load(raw, begin + 8, middle), self._values.load(raw, middle, end)
        if len(keys) != len(values) or None in keys:
            raise CorruptStateError(
                "a map has a null as a key, or not as many keys as values", keys=len(keys), values=len(values), at=begin
            )
        return dict(zip(map(_hashable, keys), values, strict=True))

    def dump(self, value: Any) -> bytes:
        entries = _in_order(value)
        keys = self._keys.dump_all([self.unhashed(key) for key, _ in entries])
        return _WORD.pack(len(keys)) + keys + self._values.dump_all([each for _, each in entries])

    def mix(self, value: Any, seed: int) -> int:
        for key, each in _in_order(value):
            seed = mix_all([(self.key, self.unhashed(key)), (self.value, each)], seed)
        return seed

    def hashed(self, key: Any) -> Any:
        """A key as dicts have it."""
        return _hashable(key)

    def unhashed(self, key: Any) -> Any:
        """A key that `hashed` made, as the value of its type."""
        return _keyed(self.key, key)


class Struct(Variable):
    """A row. Its columns have names of their own: of those with one name the later ones are called name#2, name#3."""

    def __init__(self, fields: Sequence[tuple[str, DataType]]) -> None:
        self.names: tuple[str, ...] = unique(name for name, _ in fields)
        self.types: tuple[DataType, ...] = tuple(kind for _, kind in fields)
        self._slots = _nulls_bytes(len(self.types))
        self._columns = [
            (name, kind, n >> 3, 1 << (n & 7), self._slots + 8 * n)
            for n, (name, kind) in enumerate(zip(self.names, self.types, strict=True))
        ]
        self._least_bytes = self._slots + 8 * len(self.types)

    def first(self, count: int) -> Struct:
        """The first so many columns."""
        return Struct(list(zip(self.names, self.types, strict=True))[:count])

    def at(self, ordinals: Sequence[int]) -> Struct:
        """Some columns, in another order."""
        return Struct([(self.names[n], self.types[n]) for n in ordinals])

    def decode(self, raw: bytes) -> dict[str, Any]:
        """The columns of a row that is all these bytes.

        Raises:
            CorruptStateError: they are no such row.
            ConfigurationError: a value is beyond what Python's type can hold.
        """
        return self.load(raw, 0, len(raw))

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """The bytes of a row, the same that Spark makes.

        Raises:
            ConfigurationError: a column is missing, unknown, or its value is not of its type.
        """
        unknown = [name for name in values if name not in self.names]
        missing = [name for name in self.names if name not in values]
        if unknown or missing:
            wrong = f"unknown are {', '.join(unknown)}" if unknown else f"missing are {', '.join(missing)}"
            raise ConfigurationError(f"the columns are {', '.join(self.names) or 'none'}; {wrong}")
        out = bytearray(self._least_bytes)
        for name, kind, byte, bit, at in self._columns:
            value = values[name]
            if value is None:
                out[byte] |= bit
                kind.write_null(out, at)
                continue
            try:
                kind.write(value, out, at)
            except (TypeError, ValueError, OverflowError, ArithmeticError, AttributeError, struct.error) as wrong:
                raise ConfigurationError(
                    f"column {name} has a value that is none of its type: {wrong}", value=repr(value)[:100]
                ) from wrong
        return bytes(out)

    def load(self, raw: bytes, begin: int, end: int) -> dict[str, Any]:
        if end - begin < self._least_bytes:
            raise CorruptStateError("a row is shorter than its columns", bytes=end - begin, columns=len(self.names))
        try:
            return {
                name: None if raw[begin + byte] & bit else kind.read(raw, begin + at, begin, end)
                for name, kind, byte, bit, at in self._columns
            }
        except struct.error as short:
            raise CorruptStateError(f"a row ends too early: {short}", bytes=end - begin) from short

    def dump(self, value: Any) -> bytes:
        if not isinstance(value, Mapping):
            raise TypeError("not a dict")
        return self.encode(value)

    def mix(self, value: Any, seed: int) -> int:
        return mix_all(zip(self.types, (value[name] for name in self.names), strict=True), seed)


def unique(names: Iterable[str]) -> tuple[str, ...]:
    """The names, but of equal ones the second is called name#2, and so on."""
    seen: dict[str, int] = {}
    found: list[str] = []
    for name in names:
        count = seen[name] = seen.get(name, 0) + 1
        found.append(name if count == 1 else f"{name}#{count}")
    return tuple(found)


def _nulls_bytes(count: int) -> int:
    return (count + 63) // 64 * 8


def _is_null(raw: bytes, at: int, n: int) -> bool:
    return bool(raw[at + (n >> 3)] >> (n & 7) & 1)


def _set_null(out: bytearray, at: int, n: int) -> None:
    out[at + (n >> 3)] |= 1 << (n & 7)


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(map(_hashable, value.values()))
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _in_order(value: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """A map's entries in the order of their keys, as Spark orders them: a null within a key comes first."""
    return sorted(value.items(), key=lambda entry: _ordered(entry[0]))


def _ordered(key: Any) -> Any:
    return (key is not None, tuple(map(_ordered, key)) if isinstance(key, tuple) else key)


def _keyed(kind: DataType, value: Any) -> Any:
    """What `_hashable` made a tuple of."""
    if value is None:
        return None
    if isinstance(kind, Struct):
        return {n: _keyed(t, each) for n, t, each in zip(kind.names, kind.types, value, strict=True)}
    return [_keyed(kind.element, each) for each in value] if isinstance(kind, Array) else value


# --------------------------------------------------------------------------------------------------------------- values


def unscaled(value: Any, digits: int, scale: int) -> int:
    """The digits of a decimal as a whole number.

    Raises:
        TypeError, ValueError: it is no decimal, or has more digits than its type.
    """
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise TypeError("not a Decimal")
    try:
        shifted = Decimal(value).scaleb(scale, _EXACT)
        number = int(shifted)
    except (InvalidOperation, OverflowError) as infinite:
        raise ValueError("not a finite number") from infinite
    if number != shifted or abs(number) >= 10**digits:
        raise ValueError(f"more than {digits} digits, {scale} of them behind the point")
    return number


def scaled(number: int, digits: int, scale: int) -> Decimal:
    """The decimal that has these digits.

    Raises:
        CorruptStateError: they are more than its type has.
    """
    if abs(number) >= 10**digits:
        raise CorruptStateError("a decimal has more digits than its type", digits=digits)
    return Decimal(number).scaleb(-scale, _EXACT)


def shortest(number: int) -> bytes:
    """Two's complement, big-endian, with as few bytes as can be: Java's BigInteger.toByteArray."""
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


def _date(days: int) -> date:
    return _in_range(lambda: _EPOCH_DATE + timedelta(days=days), "date", days)


def _days(value: Any) -> int:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise TypeError("not a date")
    return (value - _EPOCH_DATE).days


def _timestamp(micros: int) -> datetime:
    return _in_range(lambda: _EPOCH + timedelta(microseconds=micros), "timestamp", micros)


def _micros(value: Any) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise TypeError("not a datetime with a time zone")
    return (value - _EPOCH) // _MICROSECOND


def _timestamp_ntz(micros: int) -> datetime:
    return _in_range(lambda: _EPOCH_NTZ + timedelta(microseconds=micros), "timestamp_ntz", micros)


def _micros_ntz(value: Any) -> int:
    if not isinstance(value, datetime) or value.tzinfo is not None:
        raise TypeError("not a datetime without a time zone")
    return (value - _EPOCH_NTZ) // _MICROSECOND


def _duration_micros(value: Any) -> int:
    if not isinstance(value, timedelta):
        raise TypeError("not a timedelta")
    return value // _MICROSECOND


def _time(nanos: int) -> time:
    if not 0 <= nanos < _DAY_NANOS:
        raise CorruptStateError("a time lies outside the day", nanoseconds=nanos)
    return (datetime.min + timedelta(microseconds=nanos // 1000)).time()


def _nanos(value: Any) -> int:
    if not isinstance(value, time):
        raise TypeError("not a time")
    return (((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond) * 1000


def _in_range(made: Callable[[], Moment], kind: str, number: int) -> Moment:
    try:
        return made()
    except OverflowError:
        raise ConfigurationError(
            f"a {kind} lies outside the years 1 to 9999, which Python cannot hold; read this state with Spark",
            value=number,
        ) from None


# --------------------------------------------------------------------------------------------------------------- hashes


def mix_int(number: int, seed: int) -> int:
    return mixed_to_hash(mix_word(seed, number & _U32), 4)


def mix_long(number: int, seed: int) -> int:
    return mixed_to_hash(mix_word(mix_word(seed, number & _U32), number >> 32 & _U32), 8)


def mix_bytes(raw: bytes, seed: int) -> int:
    """Spark's own way of Murmur3: what is left of whole words is mixed byte by byte, each as a signed number."""
    mixed, whole = seed, len(raw) & ~3
    for (word,) in struct.iter_unpack("<I", raw[:whole]):
        mixed = mix_word(mixed, word)
    for (byte,) in struct.iter_unpack("<b", raw[whole:]):
        mixed = mix_word(mixed, byte & _U32)
    return mixed_to_hash(mixed, len(raw))


def mix_all(typed: Iterable[tuple[DataType, Any]], seed: int) -> int:
    """One value after the other; those that are null do not count."""
    for kind, value in typed:
        if value is not None:
            seed = kind.mix(value, seed)
    return seed


# -------------------------------------------------------------------------------------------------------------- schemas

_SIMPLE: Final[dict[str, DataType]] = {
    "boolean": Boolean(),
    "byte": Fixed("byte", "b"),
    "short": Fixed("short", "h"),
    "integer": Fixed("integer", "i"),
    "long": Fixed("long", "q"),
    "float": Floating("f"),
    "double": Floating("d"),
    "string": String(),
    "binary": Binary(),
    "date": Fixed("date", "i", _date, _days),
    "timestamp": Fixed("timestamp", "q", _timestamp, _micros),
    "timestamp_ntz": Fixed("timestamp_ntz", "q", _timestamp_ntz, _micros_ntz),
    "interval": Interval(),
    "variant": VariantType(),
    "void": Void(),
}
_DAY_TIME: Final = Fixed("duration", "q", lambda micros: timedelta(microseconds=micros), _duration_micros)
_YEAR_MONTH: Final = Fixed("months", "i")
_TIME: Final = Fixed("time", "q", _time, _nanos)
_DECIMAL: Final = re.compile(r"decimal\(([0-9]{1,2}),(-?[0-9]{1,2})\)")


#: What describes a column family, and of what kind it is.
_FAMILY: Final[dict[str, type]] = {
    "id": int,
    "name": str,
    "internal": bool,
    "multiple": bool,
    "key": dict,
    "value": dict,
    "key_encoder": dict,
}


def described_families(text: str) -> list[dict[str, Any]]:
    """The column families that a schema item describes (docs/storage-format.md), but for those that were dropped.

    Types and key encoders in it are not looked at: what this package does not read is described all the same.

    Raises:
        CorruptStateError: it is no schema of column families.
    """
    try:
        found = [each for each in json.loads(text)["families"] if not each.get("dropped")]
        for each in found:
            wrong = [name for name, kind in _FAMILY.items() if not isinstance(each[name], kind)]
            fields = [*each["key"]["fields"], *each["value"]["fields"]]
            if wrong or not all(_name(field) and "type" in field for field in fields):
                raise TypeError(f"not as it should be: {', '.join(wrong) or 'a column'}")
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as broken:
        raise CorruptStateError(
            f"a schema item describes no column families: {broken!r}", schema=text[:200]
        ) from broken
    return found


def parse_schema(described: Any) -> Struct:
    """The columns that a schema of Spark describes, as its JSON or as the object of that.

    Raises:
        ConfigurationError: it has a type that this package does not read, or columns within columns without end.
        CorruptStateError: it is no schema.
    """
    try:
        kind = _type(json.loads(described) if isinstance(described, str) else described, _LEVELS_MAX)
        if not isinstance(kind, Struct):
            raise TypeError("no struct")
    except (LookupError, TypeError, ValueError, RecursionError) as broken:
        raise CorruptStateError(f"a schema of Spark is broken: {broken!r}") from broken
    return kind


def _type(described: Any, levels: int) -> DataType:
    """The type that is described, of so many levels at most."""
    if isinstance(described, str):
        return _simple(described)
    if levels == 0:
        raise ConfigurationError(
            f"state has columns within columns of more than {_LEVELS_MAX} levels; read it with Spark"
        )
    kind, levels = described["type"], levels - 1
    if kind == "struct":
        return Struct([(_name(field), _type(field["type"], levels)) for field in described["fields"]])
    if kind == "array":
        return Array(_type(described["elementType"], levels))
    if kind == "map":
        key = _type(described["keyType"], levels)
        if _has_map(key):
            raise ValueError("a map within the key of a map")
        return Map(key, _type(described["valueType"], levels))
    if kind == "udt":
        return _type(described["sqlType"], levels)
    raise _unread(str(kind))


def _name(field: Any) -> str:
    if not isinstance(field["name"], str):
        raise TypeError("a name that is no text")
    return field["name"]


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, Struct):
        return any(map(_has_map, kind.types))
    return isinstance(kind, Map) or (isinstance(kind, Array) and _has_map(kind.element))


def _simple(name: str) -> DataType:
    known = _SIMPLE.get(name)
    if known is not None:
        return known
    if (number := _DECIMAL.fullmatch(name)) is not None:
        digits, scale = int(number[1]), int(number[2])
        if not 0 < digits <= _DIGITS_MAX:
            raise _unread(name)
        return ShortDecimal(digits, scale) if digits <= _LONG_DIGITS else LongDecimal(digits, scale)
    if name.startswith(("char(", "varchar(", "string collate ")):
        return _SIMPLE["string"]
    if name.startswith("interval "):
        return _YEAR_MONTH if name.split()[1] in ("year", "month") else _DAY_TIME
    if name.startswith("time("):
        return _TIME
    raise _unread(name)


def _unread(name: str) -> ConfigurationError:
    return ConfigurationError(f"state has a column of type {name}, which dynastate does not read; read it with Spark")
