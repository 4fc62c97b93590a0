"""A change of one item, and its condition, as UpdateItem of DynamoDB takes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dynastate.format.items import Item


@dataclass(frozen=True)
class Condition:
    """A condition on an item, which may not exist.

    An item that meets it has the attributes `equal` with exactly these values, all attributes that are `present`, and
    no attribute that is `absent`. No attribute has its value of `unequal`, and no set contains its text of `lacks`.
    Every item meets an empty condition.
    """

    equal: Item = field(default_factory=dict)
    present: Collection[str] = ()
    absent: Collection[str] = ()
    unequal: Item = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """A change of one item that meets a condition. An item that does not exist and meets it is made.

    `sets` are attributes with new values, and `removes` are attributes that go. `appends` are elements for the ends of
    lists. `adds` are texts for sets, and `subtracts` are texts that sets lose; a set without texts is removed.
    """

    condition: Condition
    sets: Item = field(default_factory=dict)
    removes: Collection[str] = ()
    appends: Mapping[str, list[bytes]] = field(default_factory=dict)
    adds: Mapping[str, frozenset[str]] = field(default_factory=dict)
    subtracts: Mapping[str, frozenset[str]] = field(default_factory=dict)
