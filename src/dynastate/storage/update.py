"""A change of one item, and its condition, as UpdateItem of DynamoDB takes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dynastate.format.items import Item, Value


@dataclass(frozen=True)
class Condition:
    """A condition on an item, which may not exist.

    An item that meets it has the attributes `equal` with exactly these values, all attributes that are `present`, and
    no attribute that is `absent`. No attribute has its value of `unequal`, and no set contains its text of `lacks`.
    """

    equal: Item = field(default_factory=dict)
    present: Collection[str] = ()
    absent: Collection[str] = ()
    unequal: Item = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)

    def holds(self, item: Item) -> bool:
        """Whether an item meets the condition. An item that does not exist has no attributes."""
        return (
            all(item.get(name) == value for name, value in self.equal.items())
            and all(name in item for name in self.present)
            and not any(name in item for name in self.absent)
            and all(item.get(name) != value for name, value in self.unequal.items())
            and all(text not in _texts(item, name) for name, text in self.lacks.items())
        )


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

    def applied(self, item: Item) -> Item:
        """The item after the change."""
        attributes = {name: value for name, value in item.items() if name not in self.removes} | self.sets
        for name, elements in self.appends.items():
            values = item.get(name, [])
            assert isinstance(values, list)  # noqa: S101  # DynamoDB refuses the update
            attributes[name] = [*values, *elements]
        sets = {name: _texts(item, name) | texts for name, texts in self.adds.items()}
        sets |= {name: _texts(item, name) - texts for name, texts in self.subtracts.items()}
        filled_sets: dict[str, Value] = {name: texts for name, texts in sets.items() if texts}
        return {name: value for name, value in attributes.items() if name not in sets} | filled_sets


def _texts(item: Item, name: str) -> frozenset[str]:
    texts = item.get(name, frozenset())
    assert isinstance(texts, frozenset)  # noqa: S101  # DynamoDB refuses the request
    return texts
