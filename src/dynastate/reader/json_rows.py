"""Rows of state as JSON objects, and keys from JSON objects: see docs/reading-state.md."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from dynastate.errors import ConfigurationError
from dynastate.reader.families import Row, add_example
from dynastate.unsaferow.examples import example
from dynastate.unsaferow.nested import Array, Map, Struct
from dynastate.unsaferow.types import (
    Binary,
    CalendarInterval,
    DataType,
    Fixed,
    Floating,
    Interval,
    LongDecimal,
    ShortDecimal,
    String,
    Variant,
)


def to_json(kind: DataType, value: Any) -> Any:
    """Convert a value to JSON's types."""
    found = value
    match kind, value:
        case _, None | bool() | int() | str():
            pass
        case _, float():
            found = value if math.isfinite(value) else str(value)
        case _, Decimal():
            found = f"{value:f}"
        case _, bytes():
            found = base64.b64encode(value).decode()
        case _, datetime():
            found = value.isoformat().replace("+00:00", "Z")
        case _, date() | time():
            found = value.isoformat()
        case _, timedelta():
            found = value // timedelta(microseconds=1)
        case _, CalendarInterval():
            found = value._asdict()
        case _, Variant():
            found = {"value": to_json(kind, value.value), "metadata": to_json(kind, value.metadata)}
        case Struct(), _:
            found = {n: to_json(each, value[n]) for n, each in zip(kind.names, kind.types, strict=True)}
        case Array(element=element), _:
            found = [to_json(element, each) for each in value]
        case Map(key=key, value=inner), _:
            entries = [(to_json(key, kind.unhashed(each)), to_json(inner, held)) for each, held in value.items()]
            found = dict(entries) if isinstance(key, String) else [list(entry) for entry in entries]
    return found


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON for people. Surrogates, which stand for bytes that are not UTF-8, are escaped, as no file takes them."""
    return json.dumps(value, indent=indent, ensure_ascii=False).encode(errors="backslashreplace").decode()


def row_to_json(columns: Struct, row: Row | None) -> dict[str, Any] | None:
    """Convert a row to a JSON object."""
    if row is None:
        return None
    kinds = dict(zip(columns.names, columns.types, strict=True))
    return {name: to_json(kinds[name], value) for name, value in row.items()}


def key_from_json(columns: Struct, given: Any) -> dict[str, Any]:
    """Convert a JSON object to a key, with values as `to_json` gives them.

    Raises:
        ConfigurationError: it is not an object, or does not have these columns, or values of other types; with an
            example.
    """
    kinds = dict(zip(columns.names, columns.types, strict=True))
    try:
        if not isinstance(given, Mapping):
            raise ConfigurationError("a key is an object of JSON", got=json_text(given)[:100])
        key = {name: _column_from_json(name, kinds[name], value) for name, value in given.items() if name in kinds}
        columns.encode({**given, **key})
    except ConfigurationError as wrong:
        add_example(wrong, f"'{json_text(to_json(columns, example(columns)))}'")
        raise
    return key


def _column_from_json(name: str, kind: DataType, value: Any) -> Any:
    try:
        return _from_json(kind, value)
    except (ValueError, TypeError, KeyError, AttributeError, InvalidOperation) as wrong:
        raise ConfigurationError(
            f"column {name} of the key cannot be read: {wrong!r}", value=repr(value)[:100]
        ) from wrong


def _from_json(kind: DataType, value: Any) -> Any:
    if value is None:
        return None
    found = value
    match kind:
        case Fixed(name=name) if name in _FROM_TEXT:
            found = _FROM_TEXT[name](value)
        case Floating():
            found = float(value)
        case ShortDecimal() | LongDecimal():
            found = Decimal(str(value))
        case Binary():
            found = base64.b64decode(value, validate=True)
        case Interval():
            found = CalendarInterval(**value)
        case Struct():
            kinds = dict(zip(kind.names, kind.types, strict=True))
            found = {name: _from_json(kinds[name], each) for name, each in value.items()}
        case Array(element=element):
            found = [_from_json(element, each) for each in value]
        case Map(key=key, value=inner):
            entries: Iterable[Any] = value.items() if isinstance(value, Mapping) else value
            found = {kind.hashed(_from_json(key, each)): _from_json(inner, held) for each, held in entries}
    return found


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


_FROM_TEXT: Final[dict[str, Callable[[Any], Any]]] = {
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timestamp": _moment,
    "timestamp_ntz": datetime.fromisoformat,
    "duration": lambda micros: timedelta(microseconds=micros),
}
