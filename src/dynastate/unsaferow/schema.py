"""Schemas of Spark: the columns and column families that JSON describes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, time, timedelta, timezone
from functools import partial
from typing import Any, Final

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.unsaferow import scalars, texts, types
from dynastate.unsaferow.nested import Array, Map, Struct

#: Digits of the largest decimal that lies in its slot, as a long; and of the largest that Spark has.
_LONG_DIGITS: Final = 18
_DIGITS_MAX: Final = 38
#: Nested columns. Each level takes some frames of Python's stack.
_LEVELS_MAX: Final = 100

_NOON: Final = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)


def _parsed(parse: Callable[[str], int], take: Callable[[int], Any], example: str) -> Callable[[Any], Any]:
    """Parse the text of a value."""
    return lambda text: take(parse(scalars.checked(text, f"a text such as {example}", str)))


def _time(name: str, *arrow: str, unit: int) -> types.Fixed:
    """The type of a time of so many digits, which Arrow has in a unit of nanoseconds."""
    return types.Fixed(
        name,
        "q",
        take=scalars.to_time,
        give=scalars.from_time,
        sample=time(12),
        dump_json=lambda value: texts.time_text(scalars.from_time(value)),
        load_json=_parsed(texts.parse_time, scalars.to_time, "12:00:00"),
        in_arrow=arrow,
        arrow_unit=unit,
    )


#: Types by their names in Spark's schemas: number in a slot, value of Python, example, JSON, type of Arrow and DuckDB.
_SIMPLE: Final[dict[str, types.DataType]] = {
    "boolean": types.Fixed(
        "boolean", "?", give=scalars.from_boolean, sample=True, load_json=scalars.from_boolean, in_arrow=("bool_",)
    ),
    "byte": types.Fixed("byte", "b", in_arrow=("int8",)),
    "short": types.Fixed("short", "h", in_arrow=("int16",)),
    "integer": types.Fixed("integer", "i", in_arrow=("int32",)),
    "long": types.Fixed("long", "q", in_arrow=("int64",)),
    "float": types.Floating("float", "f", give=scalars.from_floating, sample=1.5, in_arrow=("float32",)),
    "double": types.Floating("double", "d", give=scalars.from_floating, sample=1.5, in_arrow=("float64",)),
    "string": types.String(),
    "binary": types.Binary(),
    "date": types.Fixed(
        "date",
        "i",
        take=scalars.to_date,
        give=scalars.from_date,
        sample=_NOON.date(),
        dump_json=lambda value: texts.date_text(scalars.from_date(value)),
        load_json=_parsed(texts.parse_date, scalars.to_date, "2024-05-01"),
        in_arrow=("date32",),
        arrow_unit=1,
    ),
    "timestamp": types.Fixed(
        "timestamp",
        "q",
        take=scalars.to_timestamp,
        give=scalars.from_timestamp,
        sample=_NOON,
        dump_json=lambda value: f"{texts.timestamp_text(scalars.from_timestamp(value) * 1000)}Z",
        load_json=_parsed(partial(texts.parse_timestamp, has_zone=True), scalars.to_timestamp, "2024-05-01T12:00:00Z"),
        in_arrow=("timestamp", "us", "UTC"),
        arrow_unit=1,
    ),
    "timestamp_ntz": types.Fixed(
        "timestamp_ntz",
        "q",
        take=scalars.to_timestamp_ntz,
        give=scalars.from_timestamp_ntz,
        sample=_NOON.replace(tzinfo=None),
        dump_json=lambda value: texts.timestamp_text(scalars.from_timestamp_ntz(value) * 1000),
        load_json=_parsed(
            partial(texts.parse_timestamp, has_zone=False), scalars.to_timestamp_ntz, "2024-05-01T12:00:00"
        ),
        in_arrow=("timestamp", "us"),
        arrow_unit=1,
    ),
    "interval": types.Interval(),
    "variant": types.VariantType(),
    "void": types.Fixed(
        "void",
        "q",
        take=lambda _: None,
        give=scalars.from_void,
        sample=None,
        load_json=scalars.from_void,
        in_arrow=("null",),
    ),
}
#: DuckDB's own interval wraps around in Arrow, so DuckDB gets the microseconds, as JSON has them.
_DAY_TIME: Final = types.Fixed(
    "duration",
    "q",
    take=scalars.to_duration,
    give=scalars.from_duration,
    sample=timedelta(seconds=1),
    dump_json=scalars.from_duration,
    load_json=lambda micros: scalars.to_duration(scalars.from_whole(micros)),
    in_arrow=("duration", "us"),
    in_sql=("int64",),
    arrow_unit=1,
)
_YEAR_MONTH: Final = types.Fixed("months", "i", in_arrow=("int32",))
_TIME: Final = _time("time", "time64", "us", unit=1000)
#: Times of more than 6 digits, which Python's do not have.
_TIME_NANOS: Final = _time("time", "time64", "ns", unit=1)
_TIMES: Final = re.compile(r"time\(([0-9])\)")
_MICROS_DIGITS: Final = 6
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


def described_families(text: str, *, with_dropped: bool = False) -> list[dict[str, Any]]:
    """The column families that a schema item describes (docs/storage-format.md), by default without dropped ones.

    Types and key encoders are not checked, so that families which dynastate cannot read are described too.
    """
    try:
        families = [each for each in json.loads(text)["families"] if with_dropped or not each.get("dropped")]
        for family in families:
            wrong = [name for name, kind in _FAMILY.items() if not isinstance(family[name], kind)]
            if not isinstance(family.get("earlier_values", []), list):
                wrong.append("earlier_values")
            fields = [*family["key"]["fields"], *family["value"]["fields"]]
            if wrong or not all(_name(field) and "type" in field for field in fields):
                raise TypeError(f"not as it should be: {', '.join(wrong) or 'a column'}")
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as corrupt:
        raise CorruptStateError(
            f"a schema item describes no column families: {corrupt!r}", schema=text[:200]
        ) from corrupt
    return families


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
        raise TypeError("a name that is not a text")
    return field["name"]


def _has_map(kind: types.DataType) -> bool:
    if isinstance(kind, Struct):
        return any(map(_has_map, kind.types))
    return isinstance(kind, Map) or (isinstance(kind, Array) and _has_map(kind.element))


def _simple(name: str) -> types.DataType:
    kind = _SIMPLE.get(name)
    if kind is not None:
        return kind
    if (number := _DECIMAL.fullmatch(name)) is not None:
        precision, scale = int(number[1]), int(number[2])
        if not 0 < precision <= _DIGITS_MAX:
            raise _unread(name)
        if precision <= _LONG_DIGITS:
            return types.ShortDecimal(precision, scale)
        return types.LongDecimal(precision, scale)
    if name.startswith(("char(", "varchar(", "string collate ")):
        return _SIMPLE["string"]
    if name.startswith("interval "):
        return _YEAR_MONTH if name.split()[1] in ("year", "month") else _DAY_TIME
    if (digits := _TIMES.fullmatch(name)) is not None:
        return _TIME if int(digits[1]) <= _MICROS_DIGITS else _TIME_NANOS
    raise _unread(name)


def _unread(name: str) -> ConfigurationError:
    return ConfigurationError(f"state has a column of type {name}, which dynastate does not read; read it with Spark")
