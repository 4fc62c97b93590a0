"""The exceptions of dynastate, named by what the caller should do.

    DynastateError
    ├── ConfigurationError   fix the setting, table or permission it names; a retry changes nothing
    │   └── ItemFullError        an item is full: delete what it does not need, and try again
    ├── UnavailableError     retry later: throttled or out of reach until the deadline; nothing was committed
    ├── UnknownOutcomeError  the write may or may not have happened; a retry of the task is safe
    ├── VersionMissingError  the version asked for does not exist; the message names those that do
    ├── CorruptStateError    stored bytes are corrupt or lost; the message names the item
    │   └── RouteInvalidError    another route may lead to the same rows: open the version again, at once
    ├── MismatchError        the two ends of the bridge differ in version or break the protocol
    └── InternalError        a defect of dynastate; please report it

Code that reads or decodes stored bytes raises CorruptStateError if they are lost or corrupt. Code that needs a version
raises VersionMissingError if it does not exist. Code that refuses a request raises ConfigurationError. Docstrings do
not repeat this. Messages are in lower case, with the facts last, as key=value. `kind` is each error's number in the
bridge protocol (docs/protocol.md, "Errors"). No message has a secret in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from dynastate.redaction import redact


def message_of(*words: object, **facts: object) -> str:
    """The text of an error, with the facts last."""
    return " ".join([*map(str, words), *(f"{name}={value}" for name, value in facts.items())])


class DynastateError(Exception):
    """Base class; never raised itself."""

    kind: ClassVar[int] = 7

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(redact(message))
        self.facts = facts

    def __str__(self) -> str:
        return redact(message_of(*self.args, **self.facts))

    @property
    def reason(self) -> str:
        """The message without the item's place, for callers that name it themselves."""
        item_facts = ("table", "store_shard", "item")
        facts = {name: value for name, value in self.facts.items() if name not in item_facts}
        return redact(message_of(*self.args, **facts))

    def name_setting(self, setting: str, spelling: str) -> None:
        """Replace the name of a setting by the place that the user gave it in."""
        message, *others = self.args
        self.args = (re.sub(rf"{re.escape(setting)}\b", lambda _: spelling, message), *others)

    def name_table(self, names: Mapping[Any, str]) -> None:
        """Replace the table's role among the facts by the name that the user gave the table."""
        role = self.facts.get("table")
        if isinstance(role, str):
            self.facts["table"] = names.get(role, role)


class ConfigurationError(DynastateError):
    """Fix the setting, table or permission that the message names."""

    kind = 1


class ItemFullError(ConfigurationError):
    """An item is as large as DynamoDB allows, and nothing was added to it."""


class UnavailableError(DynastateError):
    """DynamoDB throttled or did not answer until the deadline; nothing was committed."""

    kind = 2


class UnknownOutcomeError(DynastateError):
    """A write was sent and its outcome is unknown; a retry of the task is safe."""

    kind = 3


class VersionMissingError(DynastateError):
    """The version asked for does not exist."""

    kind = 4


class CorruptStateError(DynastateError):
    """Stored bytes are corrupt, lost or of an unknown format."""

    kind = 5


class RouteInvalidError(CorruptStateError):
    """Corrupt or lost on one route to a version; there may be another."""


class MismatchError(DynastateError):
    """Jar and Python package differ, or one of them breaks the protocol."""

    kind = 6


class InternalError(DynastateError):
    """A defect of dynastate."""

    kind = 7


#: The error of each kind.
BY_KIND: Final[Mapping[int, type[DynastateError]]] = {each.kind: each for each in DynastateError.__subclasses__()}
