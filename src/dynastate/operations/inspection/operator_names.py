"""Spark's names of stateful operators, by the columns and column families of their stores.

A progress report and the metadata of a checkpoint have the name; the tables have only what an operator stores. Each
operator adds columns of its own, which show which one it is. The names are those of Spark's progress reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from dynastate.unsaferow.schema import described_families

#: The store names of all operators except for joins, and the names of the families of theirs that have only one.
DEFAULT: Final = "default"
SIDES: Final = ("left-", "right-")
#: Operators by the value columns of their only family.
_BY_VALUES: Final[Mapping[tuple[str, ...], str]] = {
    ("__dummy__",): "dedupe",
    ("expiresAtMicros",): "dedupeWithinWatermark",
}


@lru_cache(maxsize=256)
def operator_name(store_name: str, schema: str) -> str:
    """The name of the operator with a store of this name and schema.

    Returns an empty text where several operators store the same columns: `flatMapGroupsWithState` and
    `applyInPandasWithState`, or the variants of `transformWithState` by language.
    """
    families = described_families(schema)
    names = [each["name"] for each in families]
    if store_name.startswith(SIDES) or any(name.startswith(SIDES) for name in names):
        return "symmetricHashJoin"
    if names != [DEFAULT]:
        return ""
    return _by_columns(families[0]["key"]["fields"], families[0]["value"]["fields"])


def _by_columns(keys: Sequence[Mapping[str, Any]], values: Sequence[Mapping[str, Any]]) -> str:
    value_names = tuple(each["name"] for each in values)
    if value_names in _BY_VALUES:
        return _BY_VALUES[value_names]
    if "groupState" in value_names:
        return ""
    if [each["type"] for each in keys] == ["void"]:
        return "globalLimit"
    if keys and (keys[-1]["name"], keys[-1]["type"]) == ("sessionStartTime", "timestamp"):
        return "sessionWindowStateStoreSaveExec"
    return "stateStoreSave"
