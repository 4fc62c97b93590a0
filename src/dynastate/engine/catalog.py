"""Stores in the tables, and the names that users give them.

A store is `namespace/operator/partition/name`. Users may also mean a store of each partition:
`namespace/operator/*/name`, or `namespace/operator`, where the operator has stores of one name only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, product
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
#: Stores that a message names.
SHOWN_MAX: Final = 4
_PATTERN: Final = re.compile(r"([^/#]+)/(\d+)(?:/(\d+|\*)/([^/#]+))?")


def matching(tables: Tables, pattern: str, meter: Meter) -> list[str]:
    """The stores that a user means, by partition; there is at least one.

    Raises:
        ConfigurationError: the name has another form, there is none, or the operator has stores of several names.
        VersionMissingError: some partitions have none yet.
    """
    found = _PATTERN.fullmatch(pattern)
    if found is None:
        raise ConfigurationError(
            "a store is namespace/operator/partition/name, or namespace/operator for all partitions of an operator",
            store=repr(pattern[:200]),
        )
    namespace, operator, partition, name = found[1], int(found[2]), found[3], found[4]
    if partition not in (None, EVERY):
        return [_store(namespace, operator, int(partition), name)]
    names = [name] if name else _names(tables, namespace, [operator], meter).get(operator, [])
    if len(names) > 1:
        spelt = _spelt(namespace, operator, names)
        raise ConfigurationError(f"this operator has several stores a partition; say which: {spelt}")
    stores = list(_partitions(tables, namespace, operator, names, meter))
    if not stores:
        if name and (there := _names(tables, namespace, [operator], meter)):
            spelt = _spelt(namespace, operator, there[operator])
            raise ConfigurationError(f"no store of this operator has this name; it has {spelt}")
        raise ConfigurationError(
            "no store of this operator is in the tables; a store's name is in the file 'dynastate' in the folder of "
            "each partition in the checkpoint's state",
            namespace=namespace,
            operator=operator,
            tables=",".join(tables.names.values()),
        )
    if int(stores[-1].split("/")[2]) != len(stores) - 1:
        raise VersionMissingError(
            "the first batch is not committed in all partitions of this operator yet; try again when it is",
            store=f"{namespace}/{operator}/{EVERY}/{names[0]}",
            partitions=len(stores),
        )
    return stores


def only(tables: Tables, pattern: str, meter: Meter) -> str:
    """The one store that a user means.

    Raises:
        ConfigurationError: as for `matching`; or there are several, which the message names.
        VersionMissingError: some partitions have none yet.
    """
    found = matching(tables, pattern, meter)
    if len(found) > 1:
        more = ", …" if len(found) > SHOWN_MAX else ""
        raise ConfigurationError(
            f"this takes one store, and the operator has {len(found):,}: {', '.join(found[:SHOWN_MAX])}{more}"
        )
    return found[0]


def of_namespace(tables: Tables, namespace: str, meter: Meter) -> list[str]:
    """The stores of a namespace, by operator; there is at least one.

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


def find_stores(tables: Tables, namespace: str, meter: Meter) -> Iterator[str]:
    """The stores of a namespace, by operator and partition.

    Names of stores cannot be listed without reading the whole table, so meta items are read, 100 a request:
    of operators 0, 1, …, then of partitions 0, 1, … of each existing one, until a request finds none.
    """
    names: dict[int, list[str]] = {}
    window = KEYS_MAX // len(STORE_NAMES)
    for first in count(0, window):
        there = _names(tables, namespace, range(first, first + window), meter)
        if not there:
            break
        names |= there
    for operator, known in names.items():
        yield from _partitions(tables, namespace, operator, known, meter)


def _spelt(namespace: str, operator: int, names: Iterable[str]) -> str:
    """The stores of an operator, by name."""
    return ", ".join(f"{namespace}/{operator}/{EVERY}/{name}" for name in names)


def _names(tables: Tables, namespace: str, operators: Iterable[int], meter: Meter) -> dict[int, list[str]]:
    """The names of the stores in partition 0 of those of the operators that exist."""
    names: dict[int, list[str]] = {}
    for operator, _, name in _existing(tables, namespace, product(operators, [0], STORE_NAMES), meter):
        names.setdefault(operator, []).append(name)
    return names


def _partitions(tables: Tables, namespace: str, operator: int, names: Sequence[str], meter: Meter) -> Iterator[str]:
    if not names:
        return
    window = KEYS_MAX // len(names)
    for first in count(0, window):
        there = _existing(tables, namespace, product([operator], range(first, first + window), names), meter)
        if not there:
            return
        yield from (_store(namespace, *each) for each in there)


def _store(namespace: str, operator: int, partition: int, name: str) -> str:
    return check_store(f"{namespace}/{operator}/{partition}/{name}")


def _existing(
    tables: Tables, namespace: str, wanted: Iterable[tuple[int, int, str]], meter: Meter
) -> list[tuple[int, int, str]]:
    """Of these stores, by operator, partition and name, those that have a meta item, in order."""
    keys = {each: meta_key(_store(namespace, *each)) for each in wanted}
    found = tables.get(list(keys.values()), meter)
    return [each for each, key in keys.items() if key in found]
