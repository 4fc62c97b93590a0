"""The input and the output of a view."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from dynastate.errors import ConfigurationError
from dynastate.storage.meter import Meter
from dynastate.ui.watch import Look, now_utc


@dataclass(frozen=True)
class Ask:
    """One request: the parts of its path, and its parameters."""

    path: Mapping[str, Any]
    parameters: Mapping[str, str]

    @property
    def namespace(self) -> str:
        return str(self.path["namespace"])

    @property
    def operator(self) -> int:
        return int(self.path["operator"])

    @property
    def store(self) -> str:
        """The store name of the operator; `default`, except for joins."""
        return self.text("store") or "default"

    def text(self, name: str) -> str:
        return self.parameters.get(name, "")

    def number(self, name: str, default: int, least: int = 0) -> int:
        """A whole number, or the default if none is given. Refuse one below `least`."""
        value = self.number_or_none(name, least)
        return default if value is None else value

    def number_or_none(self, name: str, least: int = 0) -> int | None:
        """A whole number. Returns None if none is given. Refuse one below `least`."""
        text = self.text(name)
        if not text:
            return None
        if not text.isdecimal() or int(text) < least:
            raise ConfigurationError(f"{name} must be a whole number, at least {least}", given=repr(text[:100]))
        return int(text)

    def choice(self, name: str, choices: Collection[str]) -> str:
        """One of some texts, or an empty text if none is given."""
        text = self.text(name)
        if text and text not in choices:
            raise ConfigurationError(
                f"{name} must be one of {', '.join(filter(None, choices))}", given=repr(text[:100])
            )
        return text

    def positive(self, name: str, default: float) -> float:
        """A number above 0, or the default if it is not given."""
        text = self.text(name)
        try:
            value = float(text) if text else default
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise ConfigurationError(f"{name} must be a number above 0", given=repr(text[:100]))
        return value


@dataclass
class Page:
    """One page: a template, its values, the command line with the same result, and the meter of its requests.

    The live part is read again after `refresh_s` seconds, if above 0. `looked` is the time of its figures, or None if
    it has none; `is_old` marks old figures. `lost` is a look that DynamoDB does not answer any longer.
    """

    title: str
    template: str
    command: str
    values: dict[str, Any]
    spent: Meter = field(default_factory=Meter)
    refresh_s: float = 0
    looked: datetime | None = None
    is_old: bool = False
    status: int = 200
    is_error: bool = False
    lost: Look | None = None

    def by(self, looks: Sequence[Look]) -> Page:
        """This page with the time of its figures, which is the time of the oldest look."""
        times = [each.looked for each in looks if each.looked]
        lost = next((each for each in looks if each.is_unreachable), None)
        is_old = any(each.is_old for each in looks)
        return replace(self, looked=min(times, default=None), is_old=is_old, lost=lost)

    @property
    def age_s(self) -> float:
        return 0.0 if self.looked is None else max(0.0, (now_utc() - self.looked).total_seconds())
