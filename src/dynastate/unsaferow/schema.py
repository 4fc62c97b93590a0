"""Schemas of Spark: the columns and column families that JSON describes."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any, Final

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.unsaferow.nested import Array, Map, Struct
from dynastate.unsaferow.scalars import (
    from_date,
    from_duration,
    from_time,
    from_timestamp,
    from_timestamp_ntz,
    to_date,
    to_time,
    to_timestamp,
    to_timestamp_ntz,
)
from dynastate.unsaferow.types import (
    Binary,
    Boolean,
    DataType,
    Fixed,
    Floating,
    Interval,
    LongDecimal,
    ShortDecimal,
    String,
    VariantType,
    Void,
)

#: Digits of the largest decimal that lies in its slot, as a long; and of the largest that Spark has.
_LONG_DIGITS: Final = 18
_DIGITS_MAX: Final = 38
#: Nested columns. Each level takes some frames of Python's stack.
_LEVELS_MAX: Final = 100

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
    "date": Fixed("date", "i", to_date, from_date),
    "timestamp": Fixed("timestamp", "q", to_timestamp, from_timestamp),
    "timestamp_ntz": Fixed("timestamp_ntz", "q", to_timestamp_ntz, from_timestamp_ntz),
    "interval": Interval(),
    "variant": VariantType(),
    "void": Void(),
}
_DAY_TIME: Final = Fixed("duration", "q", lambda micros: timedelta(microseconds=micros), from_duration)
_YEAR_MONTH: Final = Fixed("months", "i")
_TIME: Final = Fixed("time", "q", to_time, from_time)
_DECIMAL: Final = re.compile(r"decimal\(([0-9]{1,2}),(-?[0-9]{1,2})\)")


#: The fields that describe a column family, and their types.
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
    """The column families that a schema item describes (docs/storage-format.md), without those that were dropped.

    Types and key encoders are not checked, so that families which dynastate cannot read are described too.

    Raises:
        CorruptStateError: not a schema of column families.
    """
    try:
        found = [each for each in json.loads(text)["families"] if not each.get("dropped")]
        for each in found:
            wrong = [name for name, kind in _FAMILY.items() if not isinstance(each[name], kind)]
            fields = [*each["key"]["fields"], *each["value"]["fields"]]
            if wrong or not all(_name(field) and "type" in field for field in fields):
                raise TypeError(f"not as it should be: {', '.join(wrong) or 'a column'}")
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as corrupt:
        raise CorruptStateError(
            f"a schema item describes no column families: {corrupt!r}", schema=text[:200]
        ) from corrupt
    return found


def parse_schema(described: Any) -> Struct:
    """The columns of a Spark schema, which is given as JSON or as its parsed object.

    Raises:
        ConfigurationError: a type that dynastate does not read, or too many levels of nested columns.
        CorruptStateError: not a schema.
    """
    try:
        kind = _type(json.loads(described) if isinstance(described, str) else described, _LEVELS_MAX)
        if not isinstance(kind, Struct):
            raise TypeError("no struct")
    except (LookupError, TypeError, ValueError, RecursionError) as corrupt:
        raise CorruptStateError(f"a schema of Spark is corrupt: {corrupt!r}") from corrupt
    return kind


def _type(described: Any, levels: int) -> DataType:
    """The type described, of at most `levels` levels."""
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
