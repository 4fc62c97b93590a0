"""Python values for the numbers that Spark stores, and back."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from dynastate.errors import CorruptStateError

_EPOCH_DATE: Final = date(1970, 1, 1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EPOCH_NTZ: Final = datetime(1970, 1, 1)  # for values without a zone
_MICROSECOND: Final = timedelta(microseconds=1)
#: More digits than Spark's decimals have, so that nothing is rounded.
_EXACT: Final = Context(prec=76)
_DAY_NANOS: Final = 86_400 * 10**9

Moment = TypeVar("Moment", date, datetime)


def unscaled(value: Any, digits: int, scale: int) -> int:
    """The digits of a decimal as a whole number. Refuse more digits than its type has."""
    try:
        shifted = Decimal(checked(value, "a Decimal", (int, Decimal), bool)).scaleb(scale, _EXACT)
        number = int(shifted)
    except (ArithmeticError, ValueError) as infinite:
        raise ValueError("not a finite number, or too large") from infinite
    if number != shifted or abs(number) >= 10**digits:
        raise ValueError(f"more than {digits} digits, {scale} of them behind the point")
    return number


def scaled(number: int, digits: int, scale: int) -> Decimal:
    if abs(number) >= 10**digits:
        raise CorruptStateError("a decimal has more digits than its type", digits=digits)
    return Decimal(number).scaleb(-scale, _EXACT)


def shortest(number: int) -> bytes:
    """Two's complement, big-endian, with as few bytes as can be: Java's BigInteger.toByteArray."""
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


def plain(value: Any) -> Any:
    """A value of Python for one of numpy."""
    return value.tolist() if hasattr(value, "tolist") else value


def checked(value: Any, noun: str, kind: type | tuple[type, ...], but: type | tuple[type, ...] = ()) -> Any:
    """A value of type `kind`, and not of type `but`. A number of numpy becomes a Python number, an array a list."""
    value = plain(value)
    if not isinstance(value, kind) or isinstance(value, but):
        raise TypeError(f"not {noun}")
    return value


def from_whole(value: Any) -> int:
    return int(checked(value, "a whole number", int, bool))


def from_base64(value: Any) -> bytes:
    """The bytes of a text of base64."""
    try:
        return b64decode(checked(value, "a text of base64", str), validate=True)
    except ValueError as wrong:
        raise ValueError("not a text of base64") from wrong


def from_boolean(value: Any) -> bool:
    return bool(checked(value, "true or false", bool))


def from_floating(value: Any) -> float:
    """The number as it is: a NaN keeps its bits."""
    number: float = checked(value, "a number", (int, float), bool)
    return number


def from_void(value: Any) -> None:
    checked(value, "None", type(None))


class RawNumber(NamedTuple):
    """A value that no type of Python can hold, as the number that Spark stores.

    A date is in days since 1970, a timestamp in microseconds since then, a time in nanoseconds since midnight.
    """

    type: str
    number: int


def raw_number(kind: str, value: Any) -> int | None:
    """The number of a value that Python's types cannot hold. Returns None for another value."""
    if not isinstance(value, RawNumber):
        return None
    if value.type != kind:
        raise TypeError(f"the number of a {value.type}")
    return value.number


def _after(epoch: Moment, unit: timedelta, kind: str, number: int) -> Moment | RawNumber:
    try:
        return epoch + number * unit
    except OverflowError:
        return RawNumber(kind, number)


to_date: Callable[[int], date | RawNumber] = partial(_after, _EPOCH_DATE, timedelta(days=1), "date")
to_timestamp: Callable[[int], datetime | RawNumber] = partial(_after, _EPOCH, _MICROSECOND, "timestamp")
to_timestamp_ntz: Callable[[int], datetime | RawNumber] = partial(_after, _EPOCH_NTZ, _MICROSECOND, "timestamp_ntz")


def from_date(value: Any) -> int:
    if (number := raw_number("date", value)) is not None:
        return number
    return int((checked(value, "a date", date, datetime) - _EPOCH_DATE).days)


def _micros(epoch: datetime, kind: str, zone: str, value: Any) -> int:
    if (number := raw_number(kind, value)) is not None:
        return number
    value = plain(value)
    if not isinstance(value, datetime) or (value.tzinfo is None) != (epoch.tzinfo is None):
        raise TypeError(f"not a datetime {zone}")
    if getattr(value, "nanosecond", 0):
        raise ValueError("more digits than microseconds")
    return (value - epoch) // _MICROSECOND


from_timestamp: Callable[[Any], int] = partial(_micros, _EPOCH, "timestamp", "with a time zone")
from_timestamp_ntz: Callable[[Any], int] = partial(_micros, _EPOCH_NTZ, "timestamp_ntz", "without a time zone")


def to_duration(micros: int) -> timedelta:
    return micros * _MICROSECOND


def from_duration(value: Any) -> int:
    if getattr(value, "nanoseconds", 0):
        raise ValueError("more digits than microseconds")
    return int(checked(value, "a timedelta", timedelta) // _MICROSECOND)


def to_time(nanos: int) -> time | RawNumber:
    if not 0 <= nanos < _DAY_NANOS:
        raise CorruptStateError("a time lies outside the day", nanoseconds=nanos)
    if nanos % 1000:
        return RawNumber("time", nanos)
    return (datetime.min + timedelta(microseconds=nanos // 1000)).time()


def from_time(value: Any) -> int:
    if (number := raw_number("time", value)) is not None:
        return number
    instant: time = checked(value, "a time", time)
    if instant.tzinfo is not None:
        raise TypeError("a time with a zone")
    return (((instant.hour * 60 + instant.minute) * 60 + instant.second) * 1_000_000 + instant.microsecond) * 1000
