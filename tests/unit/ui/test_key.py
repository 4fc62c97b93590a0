"""The history of a key on its page."""

from __future__ import annotations

from typing import Any

from dynastate.ui.pages.key import _earlier, _history, _since

NAMES = ("count", "code")


def row(count: int, code: str) -> dict[str, Any]:
    return {"count": count, "code": code}


def test_a_row_that_the_oldest_version_has_did_not_change_there() -> None:
    past = [(1, row(1, "01")), (4, row(3, "02"))]
    oldest, newest = _history(past, NAMES, oldest=1, lists=(), numeric={"count"})
    assert oldest.is_oldest
    assert not oldest.cells["count"].is_changed
    assert (newest.cells["count"].difference, newest.cells["code"].difference) == ("+2", "")
    assert newest.cells["code"].old == "01"  # digits of a text are no number
    assert _since(past, NAMES, 3, 1) == {"count": None, "code": None}
    assert _since(past, NAMES, 4, 1) == {"count": 4, "code": 4}


def test_a_row_that_was_put_later_changed_then() -> None:
    past = [(5, row(1, "01"))]
    (put,) = _history(past, NAMES, oldest=1, lists=(), numeric={"count"})
    assert not put.is_oldest
    assert put.cells["count"].is_changed
    assert put.cells["count"].old is None
    assert _since(past, NAMES, 7, 1) == {"count": 5, "code": 5}


def test_versions_of_earlier_times() -> None:
    """The last one that was committed at each; none that is the newest, or older than the oldest that can be read."""
    hour_ms = 3_600_000
    times = {number: number * hour_ms for number in range(1, 11)}
    assert _earlier(times, 10, 10 * hour_ms + 1) == {"10 min ago": 9, "1 h ago": 9}
    assert _earlier(times, 10, 34.5 * hour_ms) == {}
    assert _earlier(times, 10, 33.5 * hour_ms) == {"1 day ago": 9}
