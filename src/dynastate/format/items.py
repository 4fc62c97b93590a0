"""Items as values: attributes, sizes by DynamoDB's rules, and the format number that every item has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeGuard, TypeVar

from dynastate.errors import CorruptStateError
from dynastate.format.keys import SPECS, Key, where

FORMAT: Final = 3

Value = str | int | bytes | list[bytes] | Mapping[str, int | str] | frozenset[str]
Item = dict[str, Value]
_Member = TypeVar("_Member")


@dataclass(frozen=True, slots=True)
class StorageSize:
    """A number of items, their size in bytes by DynamoDB's rules, and bytes in objects of S3."""

    items: int = 0
    bytes: int = 0
    object_bytes: int = 0

    def __add__(self, other: StorageSize) -> StorageSize:
        return StorageSize(self.items + other.items, self.bytes + other.bytes, self.object_bytes + other.object_bytes)


NOTHING: Final = StorageSize()


def total(sizes: Iterable[StorageSize]) -> StorageSize:
    items = stored_bytes = object_bytes = 0
    for size in sizes:
        items += size.items
        stored_bytes += size.bytes
        object_bytes += size.object_bytes
    return StorageSize(items, stored_bytes, object_bytes)


def size_of(item: Item) -> StorageSize:
    return StorageSize(1, item_bytes(item))


def item_key(key: Key) -> Item:
    return {SPECS[key.role].hash_key: key.store_shard, SPECS[key.role].range_key: key.sort}


def item_bytes(item: Item) -> int:
    """Size of an item by DynamoDB's rules (developer guide, "Item sizes and formats"): names and values, in bytes."""
    size = 0
    for name, value in item.items():
        size += text_bytes(name) + (len(value) if isinstance(value, bytes) else _value_bytes(value))
    return size


def text_bytes(text: str) -> int:
    """Length of a text in UTF-8. A text in ASCII is not encoded."""
    return len(text) if text.isascii() else len(text.encode())


def _value_bytes(value: Value) -> int:
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, str):
        return text_bytes(value)
    if isinstance(value, int):
        return len(str(value)) // 2 + 2
    if isinstance(value, list):
        return 3 + len(value) + sum(map(len, value))
    if isinstance(value, frozenset):
        return sum(map(text_bytes, value))
    return 3 + sum(1 + text_bytes(name) + _value_bytes(member) for name, member in value.items())


def check_format(key: Key, item: Item) -> None:
    form = number(key, item, "format")
    if form != FORMAT:
        raise CorruptStateError(other_format("item", form), **where(key))


def other_format(kind: str, form: int) -> str:
    """The message for a stored value whose format this package does not read."""
    if form > FORMAT:
        advice = "upgrade dynastate"
    elif form in (1, 2):
        advice = "only versions before 0.2.0 wrote it, which was never released; use empty tables, or another namespace"
    else:
        advice = "no package ever wrote that: it is corrupt"
    return f"{kind} has format {form}, this package reads {FORMAT}; {advice}"


def number(key: Key, item: Item, name: str) -> int:
    """An attribute that must exist and be a number."""
    value = item.get(name)
    if not isinstance(value, int):
        raise CorruptStateError(f"item has no number {name}", **where(key))
    return value


def is_map(value: object, member: type[_Member]) -> TypeGuard[dict[str, _Member]]:
    """Whether an attribute is a map with members of a type."""
    return isinstance(value, dict) and all(isinstance(each, member) for each in value.values())
