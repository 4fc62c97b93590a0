"""Answers of DuckDB in JSON's types, by way of Arrow, whose numbers hold what Python's types cannot.

Values are spelt as in state: times by ISO 8601, decimals as texts, bytes in base64. A value whose type only DuckDB has,
such as an interval, is DuckDB's text.
"""

from __future__ import annotations

import base64
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from dynastate.unsaferow import texts

#: Types whose values Arrow holds as DuckDB does; DuckDB converts the others to text.
_IN_ARROW: Final = frozenset(
    [
        *("boolean", "tinyint", "smallint", "integer", "bigint", "hugeint", "float", "double", "decimal"),
        *("utinyint", "usmallint", "uinteger", "ubigint", "varchar", "blob", "uuid", "enum", "date", "time", "time_ns"),
        *("timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns", "timestamp with time zone"),
        *("list", "array", "struct", "map", "null", "sqlnull"),
    ]
)
#: Nanoseconds of a unit of Arrow.
_UNITS: Final = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}


def is_in_arrow(kind: Any) -> bool:
    """Whether Arrow holds the values of a type of DuckDB, and of all types within it."""
    return kind.id in _IN_ARROW and all(is_in_arrow(each) for each in _within(kind))


def to_json(kind: Any, column: Any) -> list[Any]:
    """The values of a column, an array of Arrow; `kind` is its type in DuckDB."""
    if kind.id in ("list", "array"):
        return _lists(kind, column)
    if kind.id == "map":
        return _maps(kind, column)
    if kind.id == "struct":
        names = [name for name, _ in kind.children]
        fields = [to_json(each, part) for each, part in zip(_within(kind), column.flatten(), strict=True)]
        rows: Sequence[Any] = list(zip(*fields, strict=True)) or [()] * len(column)
        return [
            dict(zip(names, row, strict=True)) if is_valid else None
            for row, is_valid in zip(rows, column.is_valid().to_pylist(), strict=True)
        ]
    convert, values = _plain(kind.id, column)
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _within(kind: Any) -> list[Any]:
    """The types of elements, entries or fields."""
    if kind.id in ("list", "array", "struct", "map"):
        return [each for name, each in kind.children if name != "size" or not isinstance(each, int)]
    return []


def _lists(kind: Any, column: Any) -> list[Any]:
    (element,) = _within(kind)
    lengths = importlib.import_module("pyarrow.compute").list_value_length(column).to_pylist()
    values = iter(to_json(element, column.flatten()))
    return [None if length is None else [next(values) for _ in range(length)] for length in lengths]


def _maps(kind: Any, column: Any) -> list[Any]:
    key, inner = _within(kind)
    offsets = column.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    keys = to_json(key, column.keys.slice(first, last - first))
    values = to_json(inner, column.items.slice(first, last - first))
    entries = list(zip(keys, values, strict=True))
    maps: list[Any] = []
    for row, is_valid in enumerate(column.is_valid().to_pylist()):
        pairs = entries[offsets[row] - first : offsets[row + 1] - first]
        whole = dict(pairs) if key.id == "varchar" else [list(pair) for pair in pairs]
        maps.append(whole if is_valid else None)
    return maps


def _plain(name: str, column: Any) -> tuple[Callable[[Any], Any] | None, list[Any]]:
    """The values of a column without nesting, and their conversion to JSON, or None if they need no conversion."""
    pa = importlib.import_module("pyarrow")
    kind = column.type
    convert: Callable[[Any], Any] | None = None
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        unit = _UNITS[kind.unit]
        text, zone = (texts.time_text, "") if pa.types.is_time64(kind) else (texts.timestamp_text, "Z" * bool(kind.tz))
        return lambda number: text(number * unit) + zone, column.cast(pa.int64()).to_pylist()
    if pa.types.is_date32(kind):
        return texts.date_text, column.cast(pa.int32()).to_pylist()
    if pa.types.is_decimal(kind):
        convert = int if name == "hugeint" else "{:f}".format
    elif pa.types.is_floating(kind):
        convert = _number
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        convert = _base64
    return convert, column.to_pylist()


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
