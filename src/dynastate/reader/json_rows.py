"""Rows of state as JSON objects, and keys from JSON objects: see docs/reading-state.md."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from dynastate.errors import ConfigurationError
from dynastate.reader.families import Row, add_example
from dynastate.unsaferow.nested import Struct, or_none
from dynastate.unsaferow.types import DataType

#: Characters of a text that is not JSON, in its error.
_REST_CHARS: Final = 40


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON for people. Surrogates, which stand for bytes that are not UTF-8, are escaped, as no file takes them."""
    return json.dumps(value, indent=indent, ensure_ascii=False).encode(errors="backslashreplace").decode()


def parse_json(text: str) -> Any:
    """Parse JSON that somebody wrote. Numbers with a point are decimals, so that no digit is lost.

    Raises ValueError, with a text that says where, if it is not JSON, nested too deeply, or has too long a number.
    """
    try:
        return json.loads(text, parse_float=Decimal, object_pairs_hook=_object)
    except json.JSONDecodeError as wrong:
        rest = text[wrong.pos : wrong.pos + _REST_CHARS]
        where = f"from character {wrong.pos + 1} on: {rest}" if rest else "it ends too early"
        raise ValueError(where) from wrong
    except RecursionError as deep:
        raise ValueError("too many levels of lists and objects") from deep
    except ValueError as long:  # Python parses no whole number of more than some thousand digits
        raise ValueError("a number has too many digits") from long


def parse_key(text: str) -> Any:
    """Parse a key of a command line."""
    try:
        return parse_json(text)
    except ValueError as wrong:
        raise ConfigurationError(
            f'the key is not JSON: {wrong}; a key looks like \'{{"user": "a"}}\'', key=text[:200]
        ) from wrong


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    whole = dict(members)
    if len(whole) < len(members):
        names = [name for name, _ in members]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError("an object of JSON has a member twice; give each once", member=twice[:100])
    return whole


def row_to_json(columns: Struct, row: Row | None) -> dict[str, Any] | None:
    """A row, or a part of its columns, in JSON's types."""
    return None if row is None else columns.to_json(row)


def key_from_json(columns: Struct, members: Any) -> dict[str, Any]:
    """Convert a JSON object to a key, with values as `row_to_json` gives them. An error shows an example."""
    kinds = dict(zip(columns.names, columns.types, strict=True))
    try:
        if not isinstance(members, Mapping):
            raise ConfigurationError("a key is an object of JSON", got=_given(members))
        columns.check(members)
        return {name: _column_from_json(name, kinds[name], value) for name, value in members.items()}
    except ConfigurationError as wrong:
        add_example(wrong, f"'{json_text(columns.to_json(columns.example))}'")
        raise


def _column_from_json(name: str, kind: DataType, value: Any) -> Any:
    try:
        converted = or_none(kind.from_json, value)
        Struct([(name, kind)]).encode({name: converted})
    except (ConfigurationError, ValueError, TypeError, OverflowError) as wrong:
        cause = (wrong.__cause__ or wrong) if isinstance(wrong, ConfigurationError) else wrong
        if isinstance(cause, ConfigurationError):  # of the columns of a struct
            raise
        such = json_text(or_none(kind.to_json, kind.example))
        raise ConfigurationError(
            f"column {name} of the key must be of type {kind.name}, such as {such}: {_reason(cause)}",
            value=_given(value),
        ) from wrong
    return converted


def _reason(cause: BaseException) -> str:
    """The reason of an error, without words of Python's library."""
    if isinstance(cause, (OverflowError, struct.error)):
        return "out of range"
    return "not UTF-8" if isinstance(cause, UnicodeError) else str(cause)


def _given(value: Any) -> str:
    """A value as it was typed, or nearly so, as far as an error shows it."""
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False, default=str)
    return text.encode(errors="backslashreplace").decode()[:100]
