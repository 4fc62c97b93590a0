"""Names of operators by the columns of their stores; those of real queries are in tests/spark/test_operators.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dynastate.operations.inspection.operator_names import operator_name
from tests.support.store_builder import COUNTS, USER, family

SESSION = (*USER, ("sessionStartTime", "timestamp"))


@pytest.mark.parametrize(
    ("name", "families"),
    [
        ("stateStoreSave", [family()]),
        ("stateStoreSave", [family(key=())]),
        ("stateStoreSave", [family(key=(("sessionStartTime", "timestamp"), *USER))]),
        ("sessionWindowStateStoreSaveExec", [family(key=SESSION)]),
        ("dedupe", [family(value=(("__dummy__", "void"),))]),
        ("dedupeWithinWatermark", [family(value=(("expiresAtMicros", "long"),))]),
        ("globalLimit", [family(key=(("key", "void"),), value=(("value", "long"),))]),
        ("symmetricHashJoin", [family(0, "left-keyToNumValues"), family(1, "right-keyToNumValues")]),
        ("", [family(value=(("groupState", "long"), ("timeoutTimestamp", "integer")))]),
        ("", [family(1, "total", value=COUNTS), family(2, "$timers", internal=True)]),
    ],
)
def test_name_by_columns(name: str, families: list[dict[str, Any]]) -> None:
    assert operator_name("default", json.dumps({"families": families})) == name


def test_a_store_of_one_side_is_of_a_join() -> None:
    assert operator_name("right-keyWithIndexToValue", json.dumps({"families": [family()]})) == "symmetricHashJoin"
