"""Rows that were written with an earlier schema, read by their query's current schema.

The rules are those of Avro, by which Spark allows a schema to change. Columns are found by name, a new one is null, a
dropped one is left out, and a number may become a wider one.
Source: https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from dynastate.errors import ConfigurationError
from dynastate.unsaferow.nested import Array, Map, Struct
from dynastate.unsaferow.types import DataType

Convert = Callable[[Any], Any]

_FLOAT: Final = struct.Struct("<f")
#: Whole numbers, from narrow to wide.
_WHOLE: Final = ("byte", "short", "integer", "long")


def _to_float(value: float) -> float:
    """The nearest number of 32 bits."""
    if isinstance(value, int):
        # A double would round first: it gets 30 bits, whose last one says that more follow.
        shift = max(0, abs(value).bit_length() - 30)
        digits = abs(value) >> shift
        digits |= digits << shift != abs(value)
        value = (digits << shift) * (1 if value > 0 else -1)
    nearest: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    return nearest


#: Types that a value of another one may become.
_PROMOTIONS: Final[dict[tuple[str, str], Convert]] = {
    **{(old, new): int for index, old in enumerate(_WHOLE) for new in _WHOLE[index + 1 :]},
    **{(old, "float"): _to_float for old in _WHOLE},
    **{(old, "double"): float for old in (*_WHOLE, "float")},
    ("string", "binary"): lambda text: text.encode(errors="surrogateescape"),
    ("binary", "string"): lambda raw: raw.decode(errors="surrogateescape"),
}


class EarlierSchema:
    """The columns that rows were written with. Refuse a column that cannot become its current type."""

    def __init__(self, written: Struct, current: Struct, names: Sequence[str]) -> None:
        """Read rows as rows of another schema, under these names."""
        self._written = written
        self._convert = _columns(written, current)
        self._names = tuple(names)

    def decode(self, raw: bytes) -> dict[str, Any]:
        """The columns of a row in the current schema."""
        return dict(zip(self._names, self._convert(self._written.decode(raw)), strict=True))


def _columns(written: Struct, current: Struct) -> Callable[[dict[str, Any]], list[Any]]:
    types = dict(zip(written.names, written.types, strict=True))
    steps = [
        (name, _converter(name, types[name], kind)) if name in types else None
        for name, kind in zip(current.names, current.types, strict=True)
    ]
    return lambda row: [None if step is None else step[1](row[step[0]]) for step in steps]


def _converter(name: str, written: DataType, current: DataType) -> Convert:
    convert = _of_values(name, written, current)
    return lambda value: None if value is None else convert(value)


def _of_values(name: str, written: DataType, current: DataType) -> Convert:
    if isinstance(written, Struct) and isinstance(current, Struct):
        columns, names = _columns(written, current), current.names
        return lambda row: dict(zip(names, columns(row), strict=True))
    if isinstance(written, Array) and isinstance(current, Array):
        element = _converter(name, written.element, current.element)
        return lambda values: [element(each) for each in values]
    if isinstance(written, Map) and isinstance(current, Map):
        # Spark gives Avro to maps with texts as keys only.
        each_value = _converter(name, written.value, current.value)
        return lambda entries: {key: each_value(value) for key, value in entries.items()}
    if (promotion := _PROMOTIONS.get((written.name, current.name))) is not None:
        return promotion
    if written.name == current.name:
        return lambda value: value
    raise ConfigurationError(
        f"state has a column that was {written.name} and is {current.name} now; read it with Spark", column=name
    )
