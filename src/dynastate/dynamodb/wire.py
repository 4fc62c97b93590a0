"""DynamoDB's attribute values, and ours."""

from __future__ import annotations

from typing import Any

from dynastate.errors import CorruptStateError
from dynastate.format.items import Item, Value


def to_wire(item: Item) -> dict[str, Any]:
    """Convert an item to DynamoDB's attribute values."""
    return {name: _value_to_wire(value) for name, value in item.items()}


def _value_to_wire(value: Value) -> dict[str, Any]:
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, bytes):
        return {"B": value}
    if isinstance(value, int):
        return {"N": str(value)}
    if isinstance(value, list):
        return {"L": [{"B": element} for element in value]}
    if isinstance(value, frozenset):
        return {"SS": sorted(value)}
    return {"M": {name: _value_to_wire(member) for name, member in value.items()}}


def from_wire(raw: dict[str, Any]) -> Item:
    """Convert DynamoDB's attribute values to an item.

    Raises:
        CorruptStateError: a value of a kind that dynastate never writes: the item is not ours.
    """
    return {name: _value_from_wire(name, value) for name, value in raw.items()}


def _value_from_wire(name: str, value: dict[str, Any]) -> Value:
    kind, held = next(iter(value.items()))
    try:
        if kind in ("S", "B"):
            return held  # type: ignore[no-any-return]  # text and bytes as they are
        if kind == "N":
            return int(held)
        if kind == "L":
            return [element["B"] for element in held]
        if kind == "SS":
            return frozenset(held)
        if kind == "M":
            return {inner: _member(member) for inner, member in held.items()}
    except (ValueError, KeyError) as error:
        raise CorruptStateError(
            "an item holds a value that dynastate never writes", attribute=name, kind=kind
        ) from error
    raise CorruptStateError("an item holds a value that dynastate never writes", attribute=name, kind=kind)


def _member(held: dict[str, Any]) -> int | str:
    return int(held["N"]) if "N" in held else str(held["S"])
