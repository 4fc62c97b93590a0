"""Rows of earlier schemas, read by the newest one. Spark's own results are in tests/spark/test_schema_evolution.py."""

from __future__ import annotations

from typing import Any

import pytest

from dynastate.errors import ConfigurationError
from dynastate.format.changes import schema_id
from dynastate.unsaferow.evolution import EarlierSchema
from tests.unit.unsaferow.test_types import of

PART = {"type": "struct", "fields": [{"name": "low", "type": "integer"}, {"name": "old", "type": "string"}]}
WIDER = {"type": "struct", "fields": [{"name": "new", "type": "string"}, {"name": "low", "type": "long"}]}


def array(of_type: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": of_type, "containsNull": True}


def text_map(of_type: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": "string", "valueType": of_type, "valueContainsNull": True}


def test_columns_are_found_by_name() -> None:
    """A new column is null, a dropped one is left out, and their order is that of the newest schema."""
    old, new = of(("a", "long"), ("b", "string")), of(("c", "string"), ("b", "string"))
    earlier = EarlierSchema(old, new, ("c", "b#2"))
    assert earlier.decode(old.encode({"a": 1, "b": "text"})) == {"c": None, "b#2": "text"}


@pytest.mark.parametrize(
    ("was", "value", "becomes", "read"),
    [
        ("byte", 5, "short", 5),
        ("short", -5, "integer", -5),
        ("integer", 7, "long", 7),
        ("integer", 7, "double", 7.0),
        ("long", 2**24 + 1, "float", 2.0**24),
        ("long", 2**53 + 2**29 + 1, "float", 2.0**53 + 2.0**30),  # by a double it would be 2.0**53
        ("long", -(2**62) - 2**38 - 1, "float", -(2.0**62) - 2.0**39),
        ("long", 2**53 + 2**29, "float", 2.0**53),
        ("float", 0.5, "double", 0.5),
        ("string", "é", "binary", b"\xc3\xa9"),
        ("binary", b"\xc3\xa9", "string", "é"),
        ("long", None, "double", None),
        (PART, {"low": 1, "old": "x"}, WIDER, {"new": None, "low": 1}),
        (array(PART), [{"low": 1, "old": "x"}, None], array(WIDER), [{"new": None, "low": 1}, None]),
        (text_map("integer"), {"k": 1, "n": None}, text_map("double"), {"k": 1.0, "n": None}),
        ("date", None, "date", None),
    ],
)
def test_values_of_every_type(was: Any, value: Any, becomes: Any, read: Any) -> None:
    """Numbers become wider, texts and bytes each other, and structs are read by name at every depth."""
    old, new = of(("a", was)), of(("a", becomes))
    result = EarlierSchema(old, new, ("a",)).decode(old.encode({"a": value}))["a"]
    assert (result, type(result)) == (read, type(read))


@pytest.mark.parametrize(("was", "becomes"), [("long", "integer"), ("string", "long"), ("date", "timestamp")])
def test_other_types_are_refused(was: str, becomes: str) -> None:
    """Spark refuses them before a query starts; the error names the column."""
    with pytest.raises(ConfigurationError, match=f"state has a column that was {was} and is {becomes} now.* column=a"):
        EarlierSchema(of(("a", was)), of(("a", becomes)), ("a",))


def test_id_of_a_schema_follows_the_row() -> None:
    """It comes before a checksum, and the first schema has none."""
    row = bytes(16)
    assert schema_id(row) == schema_id(row + b"\1\2\3\4") == 0
    assert schema_id(row + b"\3\1") == schema_id(row + b"\3\1" + b"\7\7\7\7") == 0x103
