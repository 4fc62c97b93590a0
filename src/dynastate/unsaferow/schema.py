"""Schemas of Spark: the columns and column families that JSON describes."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any, Final

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.unsaferow import scalars, types
from dynastate.unsaferow.nested import Array, Map, Struct

#: Digits of the largest decimal that lies in its slot, as a long; and of the largest that Spark has.
_LONG_DIGITS: Final = 18
_DIGITS_MAX: Final = 38
#: Nested columns. Each level takes some frames of Python's stack.
_LEVELS_MAX: Final = 100

_SIMPLE: Final[dict[str, types.DataType]] = {
    "boolean": types.Fixed("boolean", "?", None, scalars.from_boolean),
    "byte": types.Fixed("byte", "b"),
    "short": types.Fixed("short", "h"),
    "integer": types.Fixed("integer", "i"),
    "long": types.Fixed("long", "q"),
    "float": types.Fixed("float", "f", None, scalars.from_floating),
    "double": types.Fixed("double", "d", None, scalars.from_floating),
    "string": types.String(),
    "binary": types.Binary(),
    "date": types.Fixed("date", "i", scalars.to_date, scalars.from_date),
    "timestamp": types.Fixed("timestamp", "q", scalars.to_timestamp, scalars.from_timestamp),
    "timestamp_ntz": types.Fixed("timestamp_ntz", "q", scalars.to_timestamp_ntz, scalars.from_timestamp_ntz),
    "interval": types.Interval(),
    "variant": types.VariantType(),
    "void": types.Fixed("void", "q", lambda _: None, scalars.from_void),
}
_DAY_TIME: Final = types.Fixed("duration", "q", lambda micros: timedelta(microseconds=micros), scalars.from_duration)
_YEAR_MONTH: Final = types.Fixed("months", "i")
_TIME: Final = types.Fixed("time", "q", scalars.to_time, scalars.from_time)
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
    """
    try:
        found = [each for each in json.loads(text)["families"] if not each.get("dropped")]
        for each in found:
            wrong = [name for name, kind in _FAMILY.items() if not isinstance(each[name], kind)]
            if not isinstance(each.get("earlier_values", []), list):
                wrong.append("earlier_values")
            fields = [*each["key"]["fields"], *each["value"]["fields"]]
            if wrong or not all(_name(field) and "type" in field for field in fields):
                raise TypeError(f"not as it should be: {', '.join(wrong) or 'a column'}")
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as corrupt:
        raise CorruptStateError(
            f"a schema item describes no column families: {corrupt!r}", schema=text[:200]
        ) from corrupt
    return found


def parse_schema(described: Any) -> Struct:
    """The columns of a Spark schema, given as JSON or as its parsed object. Refuse what dynastate does not read."""
    try:
        kind = _type(json.loads(described) if isinstance(described, str) else described, _LEVELS_MAX)
        if not isinstance(kind, Struct):
            raise TypeError("no struct")
    except (LookupError, TypeError, ValueError, RecursionError) as corrupt:
        raise CorruptStateError(f"a schema of Spark is corrupt: {corrupt!r}") from corrupt
    return kind


def _type(described: Any, levels: int) -> types.DataType:
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


def _has_map(kind: types.DataType) -> bool:
    if isinstance(kind, Struct):
        return any(map(_has_map, kind.types))
    return isinstance(kind, Map) or (isinstance(kind, Array) and _has_map(kind.element))


def _simple(name: str) -> types.DataType:
    known = _SIMPLE.get(name)
    if known is not None:
        return known
    if (number := _DECIMAL.fullmatch(name)) is not None:
        digits, scale = int(number[1]), int(number[2])
        if not 0 < digits <= _DIGITS_MAX:
            raise _unread(name)
        return types.ShortDecimal(digits, scale) if digits <= _LONG_DIGITS else types.LongDecimal(digits, scale)
    if name.startswith(("char(", "varchar(", "string collate ")):
        return _SIMPLE["string"]
    if name.startswith("interval "):
        return _YEAR_MONTH if name.split()[1] in ("year", "month") else _DAY_TIME
    if name.startswith("time("):
        return _TIME
    raise _unread(name)


def _unread(name: str) -> ConfigurationError:
    return ConfigurationError(f"state has a column of type {name}, which dynastate does not read; read it with Spark")
