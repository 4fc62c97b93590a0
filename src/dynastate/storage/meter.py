"""The cost of requests by DynamoDB's own rules, so that the count is the same on every engine."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from typing import Final, TypeVar

#: Threads add what they have counted to one meter.
_ADDING: Final = threading.Lock()

T = TypeVar("T", bound="Metered")


def units_of_write(size: int) -> int:
    """Write units of an item of `size` bytes: one a KB, rounded up. A delete costs as much as a write of the item."""
    return max(1, -(-size // 1024))


@dataclass
class Meter:
    """Requests with their retries, throttles, units, and bytes and items moved.

    Cache hits are parts in memory, and cache misses are parts that were read. Puts and gets are requests to S3; a put
    writes or lists objects. The other bytes do not include the bytes of objects. Objects of other tables are left, not
    deleted.
    """

    requests: int = 0
    retries: int = 0
    throttles: int = 0
    write_units: int = 0
    read_units: int = 0
    items_written: int = 0
    bytes_written: int = 0
    items_read: int = 0
    bytes_read: int = 0
    items_deleted: int = 0
    delete_units: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    puts: int = 0
    gets: int = 0
    object_bytes_written: int = 0
    object_bytes_read: int = 0
    objects_deleted: int = 0
    objects_left: int = 0

    def add(self, other: Meter) -> None:
        counts = vars(self)
        with _ADDING:
            for name, count in vars(other).items():
                if count:
                    counts[name] += count

    def wrote(self, size: int) -> None:
        """Count one written item of `size` bytes: one unit a KB, rounded up."""
        self.write_units += units_of_write(size)
        self.items_written += 1
        self.bytes_written += size

    def deleted(self, sizes: Iterable[int]) -> None:
        """Count deletes: each costs as much as a write of the item."""
        self.delete_units += sum(map(units_of_write, sizes))

    def read(self, sizes: Iterable[int], *, together: bool, missing: int = 0) -> None:
        """Count a strongly consistent read: one unit per 4 KB, rounded up for each item, or (Query) for the sum.

        A requested item that does not exist costs one unit.
        """
        all_sizes = list(sizes)
        rounded = [sum(all_sizes)] if together else all_sizes
        self.read_units += missing + sum(max(1, -(-size // 4096)) for size in rounded)
        self.items_read += len(all_sizes)
        self.bytes_read += sum(all_sizes)


class Metered:
    """A client that counts the cost of its requests. Its views share everything except the meter."""

    meter: Meter

    def metered(self: T, meter: Meter) -> T:  # noqa: PYI019  # Self comes with Python 3.11
        view = copy(self)
        view.meter = meter
        return view
