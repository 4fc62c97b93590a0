"""What to do first, by the troubles of a query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from dynastate.operations.monitoring.monitor import StoreActivity
from dynastate.ui.pages.steps import first_steps
from dynastate.ui.watch import Look

LOOKED = datetime(2026, 11, 28, 12, tzinfo=timezone.utc)


def look(behind_s: float = 1, **others: Any) -> Look:
    committed_ms = int((LOOKED - timedelta(seconds=behind_s)).timestamp() * 1000)
    fields: dict[str, Any] = {"lag": 0, "rows": 9}
    fields |= dict.fromkeys(("versions_s", "write_units_s", "changes_s"))
    activity = StoreActivity("shop/0/*/default", 4, 7, batch_s=10.0, committed_ms=committed_ms, **fields | others)
    return Look("shop", activities=[activity], looked=LOOKED)


def test_nothing_is_to_be_done() -> None:
    """Not of a query that is well, nor while nothing is known: then the page has a banner."""
    assert first_steps(look(), 0) == []
    assert first_steps(replace(look(600), is_unreachable=True, problem="no answer", failed=LOOKED), 0) == []
    assert first_steps(Look("gone", is_missing=True), 0) == []


@pytest.mark.parametrize(
    ("trouble", "what", "command"),
    [
        ({"throttles": 3}, "Find the limit that throttles.", "dynastate skew shop/0"),
        ({"behind_s": 600.0}, "Start the query again, if it should run.", ""),
    ],
)
def test_the_first_step(trouble: Mapping[str, Any], what: str, command: str) -> None:
    first = first_steps(look(**trouble), 0)[0]
    assert (first.what, first.command) == (what, command)


def test_a_partition_that_is_behind() -> None:
    """The step names the last one."""
    versions = {f"shop/0/{number}/default": version for number, version in enumerate((9, 7, 9))}
    lineages: dict[str, Any] = {
        store: SimpleNamespace(newest=SimpleNamespace(version=version)) for store, version in versions.items()
    }
    step = first_steps(replace(look(lag=2), lineages=lineages), 0)[0]
    assert (step.what, step.command) == ("Look at partition 1 of operator 0.", "dynastate versions shop/0/1/default")


def test_state_that_cannot_be_read() -> None:
    """First what is broken; once `verify` has said so, first the stop of the query."""
    failing = replace(look(), problem="an item is lost", failed=LOOKED)
    assert first_steps(failing, 0)[0].command == "dynastate verify shop"
    assert first_steps(failing, 2)[0].what == "Stop the query."
    assert [each.what for each in first_steps(failing, 2)] == [each.what for each in first_steps(look(), 2)]
