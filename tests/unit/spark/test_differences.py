"""Differences of a dry run as `migrate` prints them with --json."""

from __future__ import annotations

import json
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from dynastate.spark.transfer.rows import Difference
from tests.support.command_line import of_schema


def test_values_that_json_does_not_have() -> None:
    """They are texts, lists or pairs, so that each row can be printed."""
    value: dict[str, Any] = {
        "day": date(2024, 5, 1),
        "at": datetime(2024, 5, 1, 12, 30),
        "time": time(12, 30),
        "bytes": bytearray(b"a"),
        "price": Decimal("1.50"),
        "nothing": None,
        "odd": float("nan"),
        "list": [1, 1.5, True, "ä"],
        "by_name": {"a": {"b": 1}},
        "by_day": {date(2024, 5, 1): 1},
    }
    shown = Difference({"user": "a"}, value, None).as_json()
    assert of_schema(("migrate",), json.loads(json.dumps({"differences": [shown]})))
    assert shown["key"] == {"user": "a"}
    assert shown["after"] is None
    assert shown["before"] == {
        "day": "2024-05-01",
        "at": "2024-05-01T12:30:00",
        "time": "12:30:00",
        "bytes": "YQ==",
        "price": "1.50",
        "nothing": None,
        "odd": "nan",
        "list": [1, 1.5, True, "ä"],
        "by_name": {"a": {"b": 1}},
        "by_day": [["2024-05-01", 1]],
    }
