"""What a query would spend a day if it ran otherwise: the formula of docs/operations.md on what it stores. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dynastate.cost import DAY_S, WRITE_UNIT_BYTES, Spending, Workload, predict
from dynastate.prices import Prices
from dynastate.spending import Holding
from dynastate.stored import Stored
from dynastate.tables import WRITES_MAX

#: Names and key of an item that holds one row, about.
ROW_ITEM_BYTES = 100


@dataclass(frozen=True)
class Way:
    """A way to run a query, and what a day of it takes."""

    name: str
    day: Spending
    stored: Stored

    def as_json(self, prices: Prices) -> dict[str, Any]:
        return {
            "way": self.name,
            "requests": round(self.day.requests),
            "write_units": round(self.day.write_units),
            "read_units": round(self.day.read_units),
            "delete_units": round(self.day.delete_units),
            "dollars_a_day": self.day.dollars(prices),
            "bytes": self.stored.bytes,
            "storage_dollars_a_month": prices.dollars_a_month(self.stored),
        }


def ways(
    found: Mapping[int, Holding], every_s: float, trigger_s: float | None = None, partitions: int | None = None
) -> list[Way]:
    """A query as it runs now, a batch every so many seconds; otherwise, if asked for; and with an item for each row.

    A longer trigger is taken to bring all changes of the batches that it joins, but no more than there are rows: what
    changes several times within one is written once, so it may be cheaper than this.

    Raises:
        ConfigurationError: a number that no workload can have.
    """
    now = [workload(each, every_s) for each in found.values()]
    asked = {"as it runs now": now}
    if trigger_s is not None:
        asked[f"a batch every {trigger_s:g} s"] = [with_trigger(each, every_s, trigger_s) for each in now]
    if partitions is not None:
        pairs = zip(now, found.values(), strict=True)
        asked[f"{partitions} partitions"] = [with_partitions(each, held, partitions) for each, held in pairs]
    return [*(_predicted(name, each) for name, each in asked.items()), _item_for_each_row(now)]


def workload(of: Holding, every_s: float) -> Workload:
    """What the tables say that an operator does all day."""
    numbers = of.workload()
    return Workload(
        stores=of.stores,
        batches_a_day=DAY_S / every_s,
        changed_rows=numbers["changed_rows"],
        row_bytes=numbers["row_bytes"],
        state_rows=of.rows,
        state_row_bytes=numbers["state_row_bytes"],
        compression=max(0.1, numbers["compression"]),
        families=max(1, of.families),
    )


def with_trigger(now: Workload, every_s: float, trigger_s: float) -> Workload:
    changed = min(now.changed_rows * trigger_s / every_s, max(now.state_rows, now.changed_rows))
    return replace(now, batches_a_day=DAY_S / trigger_s, changed_rows=changed)


def with_partitions(now: Workload, held: Holding, partitions: int) -> Workload:
    return replace(now, stores=max(1, round(now.stores * partitions / max(1, held.partitions))))


def _predicted(name: str, operators: list[Workload]) -> Way:
    found = [predict(each) for each in operators]
    day = sum((each.day for each in found), Spending())
    return Way(name, day, sum((each.stored for each in found), Stored()))


def _item_for_each_row(operators: list[Workload]) -> Way:
    """Each change put into a table of deltas and one of snapshots, and deleted from the first: without compression."""
    day, stored = Spending(), Stored()
    for each in operators:
        changes = each.changed_rows * each.batches_a_day
        size = each.row_bytes * each.compression + ROW_ITEM_BYTES
        units = changes * math.ceil(size / WRITE_UNIT_BYTES)
        day += Spending(requests=3 * changes / WRITES_MAX, write_units=2 * units, delete_units=units)
        stored += Stored(round(each.state_rows), round(each.state_rows * size))
    return Way("an item for each row", day, stored)
