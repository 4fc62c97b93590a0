"""DynamoDB's attribute values, and ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dynastate.errors import CorruptStateError
from dynastate.format.items import Item, Value


def to_wire(item: Item) -> dict[str, Any]:
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
    return {name: _value_from_wire(name, value) for name, value in raw.items()}


def _value_from_wire(name: str, value: dict[str, Any]) -> Value:
    kind, content = next(iter(value.items()))
    try:
        return _FROM_WIRE[kind](content)
    except (ValueError, KeyError) as error:
        raise CorruptStateError(
            "an item holds a value that dynastate never writes", attribute=name, kind=kind
        ) from error


#: Conversions by the kind of a value. Text and bytes come as they are; maps hold numbers and texts.
_FROM_WIRE: Final[dict[str, Callable[[Any], Value]]] = {
    "S": str,
    "B": bytes,
    "N": int,
    "L": lambda elements: [element["B"] for element in elements],
    "SS": frozenset,
    "M": lambda members: {name: int(each["N"]) if "N" in each else str(each["S"]) for name, each in members.items()},
}
