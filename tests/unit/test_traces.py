"""How many requests a task waits for one after the other, by a trace of the world at a distance."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.support.jvm import ROOT

Request = dict[str, Any]


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


def in_sequence(*requests: Request) -> list[int]:
    counts: list[int] = importlib.import_module("traces").requests_in_sequence(requests)
    return counts


def request(operation: str, begin_ms: float, end_ms: float, *keys: tuple[str, str], status: int = 200) -> Request:
    return {
        "operation": operation,
        "begin_ms": begin_ms,
        "end_ms": end_ms,
        "status": status,
        "keys": [list(key) for key in keys],
    }


def parts(begin_ms: float, end_ms: float, *stores: str, version: int = 1) -> Request:
    keys = [(f"{store}#1", f"{version:020d}/aa/00000000") for store in stores]
    return request("BatchWriteItem", begin_ms, end_ms, *keys)


def entry(begin_ms: float, end_ms: float, store: str, status: int = 200) -> Request:
    return request("UpdateItem", begin_ms, end_ms, (f"{store}#0", "list/0000000000000000"), status=status)


def test_parts_at_once_and_then_an_entry_are_two() -> None:
    store = "q/0/1/default"
    assert in_sequence(parts(0, 10, store), parts(1, 12, store), entry(12, 20, store)) == [2]


def test_a_throttled_entry_is_one_more() -> None:
    store = "q/0/1/default"
    assert in_sequence(parts(0, 10, store), entry(10, 18, store, status=400), entry(20, 28, store)) == [3]


def test_each_commit_of_each_task_counts() -> None:
    """Also one without parts; the last one has not ended."""
    one, other = "q/0/1/default", "q/0/2/default"
    trace = [parts(0, 10, one, other), entry(10, 18, one), entry(11, 19, other), entry(30, 38, one), parts(40, 50, one)]
    assert sorted(in_sequence(*trace)) == [1, 2, 2]


def test_stores_of_a_task_that_commit_at_once_count_once() -> None:
    left, right = "q/0/1/left", "q/0/1/right"
    assert in_sequence(parts(0, 7, left), parts(4, 18, right), entry(7, 15, left), entry(19, 26, right)) == [2]


def test_stores_of_a_task_that_commit_one_after_the_other_add_up() -> None:
    left, right = "q/0/1/left", "q/0/1/right"
    assert in_sequence(parts(0, 7, left), entry(7, 15, left), parts(15, 18, right), entry(18, 26, right)) == [4]


def test_entries_that_wait_for_each_other_add_up_after_parts_at_once() -> None:
    stores = [f"q/0/1/{name}" for name in ("a", "b", "c", "d")]
    entries = [entry(10 + 8 * number, 18 + 8 * number, store) for number, store in enumerate(stores)]
    assert in_sequence(*(parts(0, 10, store) for store in stores), *entries) == [5]


def test_requests_of_maintenance_do_not_count() -> None:
    store = "q/0/1/default"
    bucket = request("BatchWriteItem", 0, 5, (f"{store}#1", "bucket/00001/aa/0000/0000"))
    meta = request("UpdateItem", 5, 6, (f"{store}#0", "meta"))
    query = request("Query", 6, 7, (f"{store}#0", "list/0000000000000000"))
    deleted = parts(7, 9, store, version=1)
    assert in_sequence(bucket, meta, query, deleted, parts(9, 12, store, version=5), entry(12, 20, store)) == [2]
