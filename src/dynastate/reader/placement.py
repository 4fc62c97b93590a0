"""The partitions in which a key may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dynastate.reader.families import Family
from dynastate.reader.partition import Partition

#: The rule counts as confirmed when rows would obey it by chance once in so many cases.
CERTAIN: Final = 2**32


class Placement:
    """The rule that Spark places rows of stateful operators by the hash of their keys.

    Stored rows must confirm which columns it hashes, before the rule is relied on.
    """

    def __init__(self) -> None:
        #: None if it was not checked yet.
        self.is_confirmed: bool | None = None

    def find(
        self, partitions: Sequence[Partition], version: int, family: Family, key: Mapping[str, Any], raw: bytes
    ) -> Iterator[int]:
        """The partitions where a key may be: first by its hash, then, unless the rule is confirmed, all others."""
        count = len(partitions)
        first = family.encoder.partition(key, count) if count > 1 else 0
        yield first
        if count == 1:
            return
        if self.is_confirmed is None:
            self.is_confirmed = _confirm(partitions[first], version, family, number=first, count=count, raw=raw)
        if not self.is_confirmed:
            yield from (number for number in range(count) if number != first)


def _confirm(partition: Partition, version: int, family: Family, number: int, count: int, raw: bytes) -> bool | None:
    """Whether the rows in the bucket of a key obey the rule. Returns None if they are too few to tell.

    Rows that were changed or removed since count, too: they were written to this partition. A key with a null confirms
    nothing: the hash skips nulls, so it is the same for fewer columns.
    """
    chance = 1
    for other in partition.bucket(partition.lineage.find(version), raw):
        key = family.encoder.decode(other)
        if family.encoder.partition(key, count) != number:
            return False
        if not _has_null(key):
            chance *= count
        if chance >= CERTAIN:
            return True
    return None


def _has_null(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_null, value.values()))
    return value is None or (isinstance(value, list) and any(map(_has_null, value)))
