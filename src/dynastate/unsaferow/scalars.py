"""Python values for the numbers that Spark stores, and back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal, InvalidOperation
from functools import partial
from typing import Any, Final, TypeVar

from dynastate.errors import ConfigurationError, CorruptStateError

_EPOCH_DATE: Final = date(1970, 1, 1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EPOCH_NTZ: Final = datetime(1970, 1, 1)  # for values without a zone
_MICROSECOND: Final = timedelta(microseconds=1)
#: More digits than Spark's decimals have, so that nothing is rounded.
_EXACT: Final = Context(prec=76)
_DAY_NANOS: Final = 86_400 * 10**9

Moment = TypeVar("Moment", date, datetime)


def unscaled(value: Any, digits: int, scale: int) -> int:
    """The digits of a decimal as a whole number.

    Raises:
        TypeError, ValueError: not a decimal, or with more digits than its type.
    """
    try:
        shifted = Decimal(checked(value, "a Decimal", (int, Decimal), bool)).scaleb(scale, _EXACT)
        number = int(shifted)
    except (InvalidOperation, OverflowError) as infinite:
        raise ValueError("not a finite number") from infinite
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


def checked(value: Any, what: str, of: type | tuple[type, ...], but: type | tuple[type, ...] = ()) -> Any:
    """A value that is of some type, and not of a type `but`.

    Raises:
        TypeError: another value.
    """
    if not isinstance(value, of) or isinstance(value, but):
        raise TypeError(f"not {what}")
    return value


def from_whole(value: Any) -> int:
    return int(checked(value, "an int", int, bool))


def from_boolean(value: Any) -> bool:
    return bool(checked(value, "a bool", bool))


def from_floating(value: Any) -> float:
    """The number; one NaN for all."""
    number: float = checked(value, "a number", (int, float), bool)
    return number if number == number else float("nan")  # noqa: PLR0124  # a NaN is not equal to itself


def from_void(value: Any) -> None:
    checked(value, "None", type(None))


def _after(epoch: Moment, unit: timedelta, kind: str, number: int) -> Moment:
    try:
        return epoch + number * unit
    except OverflowError:
        raise ConfigurationError(
            f"a {kind} lies outside the years 1 to 9999, which Python cannot hold; read this state with Spark",
            value=number,
        ) from None


to_date: Callable[[int], date] = partial(_after, _EPOCH_DATE, timedelta(days=1), "date")
to_timestamp: Callable[[int], datetime] = partial(_after, _EPOCH, _MICROSECOND, "timestamp")
to_timestamp_ntz: Callable[[int], datetime] = partial(_after, _EPOCH_NTZ, _MICROSECOND, "timestamp_ntz")


def from_date(value: Any) -> int:
    return int((checked(value, "a date", date, datetime) - _EPOCH_DATE).days)


def _micros(epoch: datetime, zone: str, value: Any) -> int:
    if not isinstance(value, datetime) or (value.tzinfo is None) != (epoch.tzinfo is None):
        raise TypeError(f"not a datetime {zone}")
    return (value - epoch) // _MICROSECOND


from_timestamp: Callable[[Any], int] = partial(_micros, _EPOCH, "with a time zone")
from_timestamp_ntz: Callable[[Any], int] = partial(_micros, _EPOCH_NTZ, "without a time zone")


def from_duration(value: Any) -> int:
    return int(checked(value, "a timedelta", timedelta) // _MICROSECOND)


def to_time(nanos: int) -> time:
    if not 0 <= nanos < _DAY_NANOS:
        raise CorruptStateError("a time lies outside the day", nanoseconds=nanos)
    return (datetime.min + timedelta(microseconds=nanos // 1000)).time()


def from_time(value: Any) -> int:
    at: time = checked(value, "a time", time)
    return (((at.hour * 60 + at.minute) * 60 + at.second) * 1_000_000 + at.microsecond) * 1000
