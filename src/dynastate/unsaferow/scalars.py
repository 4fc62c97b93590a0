"""Python values for the numbers that Spark stores, and back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal, InvalidOperation
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
        CorruptStateError: more digits than its type has.
    """
    if abs(number) >= 10**digits:
        raise CorruptStateError("a decimal has more digits than its type", digits=digits)
    return Decimal(number).scaleb(-scale, _EXACT)


def shortest(number: int) -> bytes:
    """Two's complement, big-endian, with as few bytes as can be: Java's BigInteger.toByteArray."""
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


def to_date(days: int) -> date:
    return _in_range(lambda: _EPOCH_DATE + timedelta(days=days), "date", days)


def from_date(value: Any) -> int:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise TypeError("not a date")
    return (value - _EPOCH_DATE).days


def to_timestamp(micros: int) -> datetime:
    return _in_range(lambda: _EPOCH + timedelta(microseconds=micros), "timestamp", micros)


def from_timestamp(value: Any) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise TypeError("not a datetime with a time zone")
    return (value - _EPOCH) // _MICROSECOND


def to_timestamp_ntz(micros: int) -> datetime:
    return _in_range(lambda: _EPOCH_NTZ + timedelta(microseconds=micros), "timestamp_ntz", micros)


def from_timestamp_ntz(value: Any) -> int:
    if not isinstance(value, datetime) or value.tzinfo is not None:
        raise TypeError("not a datetime without a time zone")
    return (value - _EPOCH_NTZ) // _MICROSECOND


def from_duration(value: Any) -> int:
    if not isinstance(value, timedelta):
        raise TypeError("not a timedelta")
    return value // _MICROSECOND


def to_time(nanos: int) -> time:
    if not 0 <= nanos < _DAY_NANOS:
        raise CorruptStateError("a time lies outside the day", nanoseconds=nanos)
    return (datetime.min + timedelta(microseconds=nanos // 1000)).time()


def from_time(value: Any) -> int:
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
