"""Example values of columns, for messages that show what a key looks like."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Final

from dynastate.unsaferow.nested import Array, Map, Struct, hashable
from dynastate.unsaferow.types import CalendarInterval, DataType, LongDecimal, ShortDecimal, Variant

_NOON: Final = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)
#: By the names of types; that of any other is a whole number.
_VALUES: Final[dict[str, Any]] = {
    "boolean": True,
    "float": 1.5,
    "double": 1.5,
    "string": "a",
    "binary": b"a",
    "date": date(2024, 5, 1),
    "time": time(12),
    "timestamp": _NOON,
    "timestamp_ntz": _NOON.replace(tzinfo=None),
    "duration": timedelta(seconds=1),
    "interval": CalendarInterval(0, 1, 0),
    "variant": Variant(b"\x0c\x01", b"\x01\0\0"),
    "void": None,
}


def example(kind: DataType) -> Any:
    """A value of a type, as rows have it."""
    match kind:
        case Struct():
            return {name: example(each) for name, each in zip(kind.names, kind.types, strict=True)}
        case Array(element=element):
            return [example(element)]
        case Map(key=key, value=value):
            return {hashable(example(key)): example(value)}
        case ShortDecimal(scale=scale) | LongDecimal(scale=scale):
            return Decimal(1).scaleb(-scale)
    return _VALUES.get(kind.name, 1)
