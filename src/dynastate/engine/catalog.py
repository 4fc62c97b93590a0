"""Stores in the tables, and the names that users give them.

A store is `namespace/operator/partition/name`. Users may also mean a store of each partition:
`namespace/operator/*/name`, or `namespace/operator`, where the operator has stores of one name only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dynastate.dynamodb.limits import KEYS_MAX
from dynastate.dynamodb.meter import Meter
from dynastate.dynamodb.tables import Tables
from dynastate.errors import ConfigurationError, VersionMissingError
from dynastate.format.keys import check_store, meta_key

#: Names of stores in Spark: a stream-stream join has four stores a partition, every other operator one.
STORE_NAMES: Final = (
    "default",
    "left-keyToNumValues",
    "left-keyWithIndexToValue",
    "right-keyToNumValues",
    "right-keyWithIndexToValue",
)
EVERY: Final = "*"
_ASKED: Final = re.compile(r"([^/#]+)/(\d+)(?:/(\d+|\*)/([^/#]+))?")


@dataclass(frozen=True)
class Asked:
    """The stores that a user names: `partition` None means all; `name` "" the only one that the operator has."""

    namespace: str
    operator: int
    partition: int | None
    name: str


def parse(text: str) -> Asked:
    """The stores that a name means.

    Raises:
        ConfigurationError: it has another form.
    """
    found = _ASKED.fullmatch(text)
    if found is None:
        raise ConfigurationError(
            "a store is namespace/operator/partition/name, or namespace/operator for all partitions of an operator",
            store=repr(text[:200]),
        )
    namespace, operator, partition, name = found.groups()
    return Asked(namespace, int(operator), None if partition in (None, EVERY) else int(partition), name or "")


def of_asked(tables: Tables, asked: Asked, meter: Meter) -> list[str]:
    """The stores that a user means, by partition; there is at least one.

    Raises:
        ConfigurationError: there is none, or the operator has stores of several names.
        VersionMissingError: some partitions have none yet.
    """
    if asked.partition is not None:
        return [check_store(f"{asked.namespace}/{asked.operator}/{asked.partition}/{asked.name}")]
    names = [asked.name] if asked.name else _names(tables, asked, meter)
    if len(names) > 1:
        spelt = ", ".join(f"{asked.namespace}/{asked.operator}/{EVERY}/{name}" for name in names)
        raise ConfigurationError(f"this operator has several stores a partition; say which: {spelt}")
    found = [store for _, store in _partitions(tables, asked.namespace, asked.operator, names, meter)]
    if not found:
        raise ConfigurationError(
            "no store of this operator is in the tables; a store's name is in the file 'dynastate' in the folder of "
            "each partition in the checkpoint's state",
            namespace=asked.namespace,
            operator=asked.operator,
            tables=",".join(tables.names.values()),
        )
    if int(found[-1].split("/")[2]) != len(found) - 1:
        raise VersionMissingError(
            "the first batch is not committed in all partitions of this operator yet; try again when it is",
            store=f"{asked.namespace}/{asked.operator}/{EVERY}/{names[0]}",
            partitions=len(found),
        )
    return found


def of_namespace(tables: Tables, namespace: str, meter: Meter) -> list[tuple[int, str]]:
    """The stores of a namespace, with their operators; there is at least one.

    Raises:
        ConfigurationError: there is none.
    """
    found = list(find_stores(tables, namespace, meter))
    if not found:
        raise ConfigurationError(
            "no store of this namespace is in the tables; its name is the first part of the store's, which is in "
            "the file state/0/0/dynastate of the query's checkpoint",
            namespace=namespace,
        )
    return found


def find_stores(tables: Tables, namespace: str, meter: Meter) -> Iterator[tuple[int, str]]:
    """The stores of a namespace, with their operators.

    Names of stores cannot be listed without reading the whole table, so meta items are read, 100 a request:
    of operators 0, 1, …, then of partitions 0, 1, … of each existing one, until a request finds none.
    """
    names: dict[int, list[str]] = {}
    window = KEYS_MAX // len(STORE_NAMES)
    first, more = 0, True
    while more:
        asked = [(operator, 0, name) for operator in range(first, first + window) for name in STORE_NAMES]
        there = _existing(tables, namespace, asked, meter)
        for operator, _, name in there:
            names.setdefault(operator, []).append(name)
        first, more = first + window, bool(there)
    for operator, known in names.items():
        yield from _partitions(tables, namespace, operator, known, meter)


def _names(tables: Tables, asked: Asked, meter: Meter) -> list[str]:
    there = _existing(tables, asked.namespace, [(asked.operator, 0, name) for name in STORE_NAMES], meter)
    return [name for _, _, name in there]


def _partitions(
    tables: Tables, namespace: str, operator: int, names: Sequence[str], meter: Meter
) -> Iterator[tuple[int, str]]:
    if not names:
        return
    window = KEYS_MAX // len(names)
    first, more = 0, True
    while more:
        asked = [(operator, partition, name) for partition in range(first, first + window) for name in names]
        there = _existing(tables, namespace, asked, meter)
        yield from ((operator, _store(namespace, *each)) for each in there)
        first, more = first + window, bool(there)


def _store(namespace: str, operator: int, partition: int, name: str) -> str:
    return check_store(f"{namespace}/{operator}/{partition}/{name}")


def _existing(
    tables: Tables, namespace: str, asked: Sequence[tuple[int, int, str]], meter: Meter
) -> list[tuple[int, int, str]]:
    """Of these stores, by operator, partition and name, those that have a meta item, in order."""
    keys = {each: meta_key(_store(namespace, *each)) for each in asked}
    found = tables.get(list(keys.values()), meter)
    return [each for each, key in keys.items() if key in found]
