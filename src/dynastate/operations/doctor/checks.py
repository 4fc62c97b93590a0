"""A check of an engine, the list of all checks, and their common functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from dynastate.dynamodb.probe import Probe, RefusedError, Wire

FAILED_CONDITION: Final = "ConditionalCheckFailedException"
KB: Final = 1024


class WrongError(Exception):
    """The unexpected result of a check, as text. It never leaves the checks."""


@dataclass(frozen=True)
class Check:
    """One check: its name, the reason why dynastate needs it, and whether it only warns."""

    name: str
    reason: str
    is_warning: bool
    run: Callable[[Probe], None]


#: All checks, in their order.
CHECKS: Final[list[Check]] = []


def check(name: str, reason: str, *, is_warning: bool = False) -> Callable[[Callable[[Probe], None]], None]:
    """Add a check."""
    return lambda run: CHECKS.append(Check(name, reason, is_warning, run))


def expect(is_so: bool, defect: str) -> None:  # noqa: FBT001  # it reads as a sentence
    """Fail the check with a text that describes the defect, unless it is so."""
    if not is_so:
        raise WrongError(defect)


def refused(code: str, work: Callable[[], Any]) -> None:
    """Expect that a request is refused with a code."""
    try:
        work()
    except RefusedError as error:
        expect(error.code == code, f"refused with {error.code}, not {code}")
    else:
        raise WrongError(f"accepted, not refused with {code}")


def text(value: str) -> Wire:
    """An item with one attribute."""
    return {"value": {"S": value}}


def append(probe: Probe, sort: str, entry: bytes, run: str = "run") -> list[bytes]:
    """Commit an entry as dynastate does; return the list after the commit."""
    answer = probe.update(
        "snapshot",
        sort,
        "SET versions = list_append(if_not_exists(versions, :none), :entry), #f = :format",
        ConditionExpression="NOT contains(#refused, :run)",
        ExpressionAttributeNames={"#f": "format", "#refused": "refused"},
        ExpressionAttributeValues={
            ":none": {"L": []},
            ":entry": {"L": [{"B": entry}]},
            ":format": {"N": "3"},
            ":run": {"S": run},
        },
        ReturnValues="ALL_NEW",
    )
    return [bytes(each["B"]) for each in answer["Attributes"]["versions"]["L"]]


def write_all(probe: Probe, items: list[Wire]) -> None:
    """Put at most 25 items into the delta table, until all are written."""
    unprocessed = probe.write("delta", items).get("UnprocessedItems")
    while unprocessed:
        unprocessed = probe.send("batch_write_item", RequestItems=unprocessed).get("UnprocessedItems")
