"""The money that a run on AWS may spend: planned before anything is made, and watched at every request."""

from __future__ import annotations

import math
import threading
from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import botocore.exceptions as boto_errors
import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.wire import from_wire
from dynastate.format.items import item_bytes
from dynastate.prices import DEFAULT_PRICES, Prices
from dynastate.storage.meter import units_of_write

#: Prices are those of us-east-1; no Region is dearer by more.
MARGIN: Final = 2
MILLION: Final = 1_000_000
#: Operations that have ReturnConsumedCapacity, and are charged by it.
CHARGED: Final = {
    "batch_get_item",
    "batch_write_item",
    "delete_item",
    "get_item",
    "put_item",
    "query",
    "scan",
    "update_item",
}
READS: Final = {"batch_get_item", "get_item", "query", "scan"}


@dataclass(frozen=True)
class Units:
    """Capacity units, and dollars for what is not charged by them."""

    write: float = 0
    read: float = 0
    dollars: float = 0

    def __add__(self, other: Units) -> Units:
        return Units(self.write + other.write, self.read + other.read, self.dollars + other.dollars)

    def cost(self, prices: Prices = DEFAULT_PRICES) -> float:
        """Dollars, at most: by the prices of the dearest Region."""
        return MARGIN * (self.write * float(prices.write) + self.read * float(prices.read)) / MILLION + self.dollars


#: The most that the tests of each file take. A run on DynamoDB Local, which counts as AWS does, checks them.
PLANNED: Final[Mapping[str, Units]] = {
    "test_contract": Units(write=120_000, read=20_000),
    "test_meter": Units(write=1_000, read=500),
    "test_killed_query": Units(write=2_000, read=2_000),
    "test_throttling": Units(write=4_000, read=1_000),
    "test_policies": Units(write=500, read=500),
    "test_spending": Units(write=100),
    # An alarm costs $0.10 a month and metric, by the hour.
    "test_alarms": Units(dollars=0.01),
}


def planned() -> Units:
    return sum(PLANNED.values(), Units())


def cap_usd(text: str) -> float:
    """The cap of the command line, in dollars: one that can be reached."""
    cap = float(text)
    if not (math.isfinite(cap) and cap > 0):
        raise ArgumentTypeError(f"the cap, CAP_USD, must be a number of dollars above 0, not {text}")
    return cap


def refuse_over(cap: float) -> None:
    """End the run, before anything is made, if the plan costs more than the cap."""
    if planned().cost() > cap:
        pytest.exit(f"the plan costs up to ${planned().cost():.2f}, and the cap is ${cap:.2f}: raise CAP_USD", 2)


@dataclass
class Ledger:
    """Adds up what requests have consumed, as DynamoDB says, and ends the run at the cap. Safe for threads."""

    cap: float
    spent: Units = field(default_factory=Units)
    by_request: list[tuple[str, float]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, units: Units) -> None:
        with self._lock:
            self.spent += units
            cost = self.spent.cost()
        if cost > self.cap:
            pytest.exit(f"${cost:.2f} are spent, and the cap is ${self.cap:.2f}: the tables are deleted", 2)

    def watch(self, tables: BotoTables) -> BotoTables:
        """Let tables ask for the consumed capacity of every request, and add it here."""
        inner = tables.send

        def send(operation: str, **arguments: Any) -> Any:
            if operation not in CHARGED:
                return inner(operation, **arguments)
            if "ConditionExpression" in arguments:
                arguments |= {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
            try:
                answer = inner(operation, ReturnConsumedCapacity="TOTAL", **arguments)
            except Exception as error:
                self._count(operation, units_of_refusal(error))
                raise
            capacity = answer.get("ConsumedCapacity") or []
            tables_of = [capacity] if isinstance(capacity, dict) else capacity
            self._count(operation, sum(float(each["CapacityUnits"]) for each in tables_of))
            return answer

        tables.send = send
        return tables

    def _count(self, operation: str, units: float) -> None:
        self.by_request.append((operation, units))
        self.add(Units(read=units) if operation in READS else Units(write=units))


def units_of_refusal(error: Exception) -> int:
    """Units of a request that failed: a failed condition takes those of the item that is there, and no answer says so.

    One at least, also where nothing is charged.
    """
    item = error.response.get("Item") if isinstance(error, boto_errors.ClientError) else None
    return units_of_write(item_bytes(from_wire(item))) if item else 1


def dollars(amount: float) -> str:
    return f"${Decimal(amount).quantize(Decimal('0.0001'))}"
