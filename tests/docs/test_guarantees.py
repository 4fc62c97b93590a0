"""docs/guarantees.md: every promise names tests that exist; and the promises that have no better place."""

from __future__ import annotations

import ast
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest.mock import Mock

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.catalog import QueryStores, of_namespace
from dynastate.format.keys import EMPTY
from tests.support.engine_driver import make_engine, read, write
from tests.support.samples import attempt
from tests.support.store_builder import StoreBuilder, counted, user

ROOT = Path(__file__).resolve().parents[2]
PROMISES = [line for line in (ROOT / "docs" / "guarantees.md").read_text().splitlines() if line.startswith("| ")]
PROMISES = [line for line in PROMISES if not line.startswith("| promise |")]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda line: line.split("|")[1].strip()[:60])
def test_every_promise_names_tests_that_exist(promise: str) -> None:
    nodes = re.findall(r"`(tests/[^`]+)`", promise)
    assert nodes
    for node in nodes:
        file, _, name = node.partition("::")
        functions = {each.name for each in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(each, "name")}
        assert name in functions, node


def test_nothing_is_decided_by_the_wall_clock(moto: BotoTables, store: str) -> None:
    """Executors whose clocks jump by years in both directions: versions, epochs and readers are as ever."""
    start = datetime(2025, 1, 1, tzinfo=timezone.utc)
    base = EMPTY
    expected: dict[bytes, bytes] = {}
    for number, years in enumerate((0, 30, -40, 5, -1), start=1):
        writer = make_engine(moto, now=Mock(return_value=start + timedelta(days=365 * years)))
        key = b"%d" % number
        base = write(writer, store, attempt(number), {key: key}, base=base, run=f"run-{number}")
        expected[key] = key
        assert read(writer, store, number) == expected
        writer.close()


def test_no_clock_decides_which_query_is_current(moto: BotoTables, store: str) -> None:
    """Queries of one namespace, each with fewer operators than the one before, and with a clock of its own."""
    start = datetime(2025, 1, 1, tzinfo=timezone.utc)
    namespace = store.split("/", maxsplit=1)[0]
    names = [f"{namespace}/{operator}/0/default" for operator in range(4)]
    for number, offset in enumerate((timedelta(0), timedelta(minutes=-10), timedelta(days=-900), timedelta(days=5))):
        writer = make_engine(moto, now=Mock(return_value=start + offset))
        current = names[: 4 - number]
        for name in current:
            builder = StoreBuilder(writer, name, run=f"run-{number}", query=f"{number}")
            for batch in range(2):
                builder.commit((user("a"), counted(batch)), by=attempt(2 * number + batch + 1))
        assert of_namespace(moto, namespace) == QueryStores(current, names[4 - number :])
        writer.close()
