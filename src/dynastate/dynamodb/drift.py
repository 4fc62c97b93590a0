"""Differences between a table and what dynastate needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynastate.format.keys import SPECS, Role


def table_drift(role: Role, name: str, described: dict[str, Any]) -> list[str]:
    """How a table differs, by its description (the answer of DescribeTable)."""
    spec = SPECS[role]
    kinds = {
        definition["AttributeName"]: definition["AttributeType"] for definition in described["AttributeDefinitions"]
    }
    keys = [
        (element["AttributeName"], element["KeyType"], kinds.get(element["AttributeName"]))
        for element in described["KeySchema"]
    ]
    needed = [(spec.hash_key, "HASH", "S"), (spec.range_key, "RANGE", "S")]
    drift: list[str] = []
    if keys != needed:
        drift.append(f"table {name} has keys {_spell(keys)}, needed are {_spell(needed)}")
    if described.get("TableStatus", "ACTIVE") not in ("ACTIVE", "UPDATING"):
        drift.append(f"table {name} is {described['TableStatus']}, needed is ACTIVE")
    return drift


def _spell(keys: Sequence[tuple[str, str, str | None]]) -> str:
    return ", ".join(f"{name} ({kind}, {data})" for name, kind, data in keys)
