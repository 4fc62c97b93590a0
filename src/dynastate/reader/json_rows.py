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
from dynastate.unsaferow import types
from dynastate.unsaferow.examples import example
from dynastate.unsaferow.nested import Array, Map, Struct, hashable


def to_json(kind: types.DataType, value: Any) -> Any:
    """Convert a value to JSON's types."""
    match kind, value:
        case _, float() if not math.isfinite(value):
            return str(value)
        case _, Decimal():
            return f"{value:f}"
        case _, bytes():
            return base64.b64encode(value).decode()
        case _, date() | time():
            return value.isoformat().replace("+00:00", "Z")
        case _, timedelta():
            return value // timedelta(microseconds=1)
        case _, types.CalendarInterval() | types.Variant():
            return {name: to_json(kind, part) for name, part in value._asdict().items()}
        case Struct(), dict():
            return {n: to_json(each, value[n]) for n, each in zip(kind.names, kind.types, strict=True)}
        case Array(element=element), list():
            return [to_json(element, each) for each in value]
        case Map(key=key, value=inner), dict():
            entries = [(to_json(key, kind.unhashed(each)), to_json(inner, held)) for each, held in value.items()]
            return dict(entries) if isinstance(key, types.String) else [list(entry) for entry in entries]
    return value


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON for people. Surrogates, which stand for bytes that are not UTF-8, are escaped, as no file takes them."""
    return json.dumps(value, indent=indent, ensure_ascii=False).encode(errors="backslashreplace").decode()


def parse_json(text: str) -> Any:
    """Parse JSON that somebody wrote. Numbers with a point are decimals, so that no digit is lost.

    Raises:
        ValueError: it is no JSON.
    """
    return json.loads(text, parse_float=Decimal)


def row_to_json(columns: Struct, row: Row | None) -> dict[str, Any] | None:
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
            raise ConfigurationError("a key is an object of JSON", got=repr(given)[:100])
        key = {name: _column_from_json(name, kinds[name], value) for name, value in given.items() if name in kinds}
        columns.encode({**given, **key})
    except ConfigurationError as wrong:
        add_example(wrong, f"'{json_text(to_json(columns, example(columns)))}'")
        raise
    return key


def _column_from_json(name: str, kind: types.DataType, value: Any) -> Any:
    try:
        return _from_json(kind, value)
    except (ValueError, TypeError, KeyError, AttributeError, InvalidOperation) as wrong:
        raise ConfigurationError(
            f"column {name} of the key cannot be read: {wrong!r}", value=repr(value)[:100]
        ) from wrong


def _from_json(kind: types.DataType, value: Any) -> Any:
    if value is None:
        return None
    match kind:
        case types.ShortDecimal() | types.LongDecimal():
            return Decimal(str(value))
        case Struct():
            kinds = dict(zip(kind.names, kind.types, strict=True))
            return {name: _from_json(kinds[name], each) for name, each in value.items()}
        case Array(element=element):
            return [_from_json(element, each) for each in value]
        case Map(key=key, value=inner):
            entries: Iterable[Any] = value.items() if isinstance(value, Mapping) else value
            return {hashable(_from_json(key, each)): _from_json(inner, held) for each, held in entries}
    converted = _FROM_JSON.get(kind.name)
    return converted(value) if converted else value


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


_FROM_JSON: Final[dict[str, Callable[[Any], Any]]] = {
    "float": float,
    "double": float,
    "binary": lambda text: base64.b64decode(text, validate=True),
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timestamp": _moment,
    "timestamp_ntz": datetime.fromisoformat,
    "duration": lambda micros: timedelta(microseconds=micros),
    "interval": lambda parts: types.CalendarInterval(**parts),
}
