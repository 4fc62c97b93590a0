"""Dates and times as text: ISO 8601, as JSON and SQL spell them, in all years that Spark has.

date       year-month-day             a year before 0 or after 9999 with its sign: +55840-11-08
time       hours:minutes:seconds      with 6 or 9 digits behind a point, where there are some
timestamp  date T time, and Z or an offset where it has a zone
"""

from __future__ import annotations

import re
from datetime import date
from typing import Final

#: The Gregorian calendar repeats itself: years, and days in them.
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
_EPOCH: Final = date(1970, 1, 1).toordinal()
_DAY_S: Final = 86_400
_MICROS: Final = 1_000_000
_DATE: Final = r"([+-]?\d{4,7})-(\d\d)-(\d\d)"
_TIME: Final = r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?"
#: The largest offset that Spark has.
_ZONE_MINUTES_MAX: Final = 18 * 60
_ZONE: Final = r"(Z|[+-]\d\d(?::?\d\d)?)?"
_DATES: Final = re.compile(_DATE)
_TIMES: Final = re.compile(_TIME)
_TIMESTAMPS: Final = re.compile(f"{_DATE}[T ]{_TIME}{_ZONE}")


def date_text(days: int) -> str:
    """The text of a day by its number since 1970."""
    cycles, days_left = divmod(days, _CYCLE_DAYS)
    day = date.fromordinal(_EPOCH + days_left)
    year = day.year + cycles * _CYCLE_YEARS
    year_text = f"+{year}" if year > 9999 else f"{year:05d}" if year < 0 else f"{year:04d}"
    return f"{year_text}{day.isoformat()[4:]}"


def time_text(nanos: int) -> str:
    """The text of a time by its nanoseconds since midnight."""
    seconds, fraction = divmod(nanos, 10**9)
    digits = f".{fraction:09d}" if fraction % 1000 else f".{fraction // 1000:06d}" if fraction else ""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{digits}"


def timestamp_text(nanos: int) -> str:
    """The text of a timestamp by its nanoseconds since 1970, without a zone."""
    days, time_nanos = divmod(nanos, _DAY_S * 10**9)
    return f"{date_text(days)}T{time_text(time_nanos)}"


def parse_date(text: str) -> int:
    """The number of days since 1970. Raises ValueError for another text, as the others here do."""
    if (match := _DATES.fullmatch(text)) is None:
        raise ValueError("no such date")
    return _days(match[1], match[2], match[3])


def parse_time(text: str) -> int:
    """The nanoseconds since midnight."""
    if (match := _TIMES.fullmatch(text)) is None:
        raise ValueError("no such time")
    return _nanos(match[1], match[2], match[3], match[4])


def parse_timestamp(text: str, *, has_zone: bool) -> int:
    """The microseconds since 1970, in UTC where it has a zone. Refuse a text that is more exact."""
    if (match := _TIMESTAMPS.fullmatch(text)) is None:
        raise ValueError("no such timestamp")
    zone = match[8]
    if (zone is not None) != has_zone:
        raise ValueError("it needs a zone, as in 2024-05-01T12:00:00Z" if has_zone else "it has no zone")
    nanos = _nanos(match[4], match[5], match[6], match[7])
    if nanos % 1000:
        raise ValueError("Spark's timestamps have no more digits than microseconds")
    micros = _days(match[1], match[2], match[3]) * _DAY_S * _MICROS + nanos // 1000
    if zone is None or zone == "Z":
        return micros
    hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
    if minutes >= 60 or (minutes := hours * 60 + minutes) > _ZONE_MINUTES_MAX:
        raise ValueError("no such zone: it is up to 18:00")
    return micros - (minutes if zone[0] == "+" else -minutes) * 60 * _MICROS


def _days(year: str, month: str, day: str) -> int:
    cycles, years = divmod(int(year) - 1970, _CYCLE_YEARS)
    try:
        ordinal = date(1970 + years, int(month), int(day)).toordinal()
    except ValueError as wrong:
        raise ValueError("no such date") from wrong
    return ordinal - _EPOCH + cycles * _CYCLE_DAYS


def _nanos(hours: str, minutes: str, seconds: str | None, digits: str | None) -> int:
    parts = int(hours), int(minutes), int(seconds or 0)
    if not (parts[0] < 24 and parts[1] < 60 and parts[2] < 60):
        raise ValueError("no such time")
    return ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 10**9 + int((digits or "").ljust(9, "0"))
