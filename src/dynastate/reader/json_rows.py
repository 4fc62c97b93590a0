"""Rows of state as JSON objects, and keys from JSON objects: see docs/reading-state.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from dynastate.errors import ConfigurationError
from dynastate.reader.families import Row, add_example
from dynastate.unsaferow.nested import Struct, or_none
from dynastate.unsaferow.types import DataType


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON for people. Surrogates, which stand for bytes that are not UTF-8, are escaped, as no file takes them."""
    return json.dumps(value, indent=indent, ensure_ascii=False).encode(errors="backslashreplace").decode()


def parse_json(text: str) -> Any:
    """Parse JSON that somebody wrote. Numbers with a point are decimals, so that no digit is lost.

    Raises ValueError if it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text, parse_float=Decimal, object_pairs_hook=_object)
    except RecursionError as deep:
        raise ValueError("too many levels of lists and objects") from deep


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
            raise ConfigurationError("a key is an object of JSON", got=repr(members)[:100])
        columns.check(members)
        key = {name: _column_from_json(name, kinds[name], value) for name, value in members.items()}
        columns.encode(key)
    except ConfigurationError as wrong:
        add_example(wrong, f"'{json_text(columns.to_json(columns.example))}'")
        raise
    return key


def _column_from_json(name: str, kind: DataType, value: Any) -> Any:
    try:
        return or_none(kind.from_json, value)
    except (ValueError, TypeError) as wrong:
        such = json_text(or_none(kind.to_json, kind.example))
        raise ConfigurationError(
            f"column {name} of the key must be of type {kind.name}, such as {such}: {wrong}", value=repr(value)[:100]
        ) from wrong
