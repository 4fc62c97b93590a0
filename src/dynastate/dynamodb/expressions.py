"""Updates and conditions as the expressions of DynamoDB's requests."""

from __future__ import annotations

from typing import Any

from dynastate.dynamodb.wire import to_wire
from dynastate.format.items import Value
from dynastate.storage.update import Condition, Update


class Expressions:
    """The expressions of one request, with placeholders for all names and values."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, Value] = {}

    def condition(self, condition: Condition) -> str:
        terms = [f"{self._name(name)} = {self._value(value)}" for name, value in condition.equal.items()]
        terms += [f"attribute_exists({self._name(name)})" for name in condition.present]
        terms += [f"attribute_not_exists({self._name(name)})" for name in condition.absent]
        terms += [f"NOT {self._name(name)} = {self._value(value)}" for name, value in condition.unequal.items()]
        terms += [f"NOT contains({self._name(name)}, {self._value(text)})" for name, text in condition.lacks.items()]
        return " AND ".join(terms)

    def update(self, update: Update) -> str:
        sets = [f"{self._name(name)} = {self._value(value)}" for name, value in update.sets.items()]
        for name, elements in update.appends.items():
            path, nothing, new = self._name(name), self._value([]), self._value(elements)
            sets.append(f"{path} = list_append(if_not_exists({path}, {nothing}), {new})")
        clauses = {
            "SET": sets,
            "REMOVE": [self._name(name) for name in update.removes],
            "ADD": [f"{self._name(name)} {self._value(texts)}" for name, texts in update.adds.items()],
            "DELETE": [f"{self._name(name)} {self._value(texts)}" for name, texts in update.subtracts.items()],
        }
        return " ".join(f"{keyword} {', '.join(terms)}" for keyword, terms in clauses.items() if terms)

    def placeholders(self) -> dict[str, Any]:
        """The members of a request with the meaning of the placeholders."""
        request: dict[str, Any] = {"ExpressionAttributeNames": self._names}
        if self._values:
            request["ExpressionAttributeValues"] = to_wire(self._values)
        return request

    def _name(self, attribute: str) -> str:
        placeholder = next((each for each, name in self._names.items() if name == attribute), f"#n{len(self._names)}")
        self._names[placeholder] = attribute
        return placeholder

    def _value(self, value: Value) -> str:
        placeholder = f":v{len(self._values)}"
        self._values[placeholder] = value
        return placeholder
