"""How a watched query runs, for predictions."""

from __future__ import annotations

from dataclasses import replace

from dynastate.operations.advice import Plan
from dynastate.operations.monitor import StoreActivity
from dynastate.operations.scenarios import MONTH_DAYS
from dynastate.operations.usage import StorageUsage
from dynastate.prices import Prices
from dynastate.settings import Settings
from dynastate.ui.watch import Known

#: What Spark retains by default, spark.sql.streaming.minBatchesToRetain.
RETAIN = 100


def plan_of(
    known: Known,
    prices: Prices,
    only: StoreActivity | None = None,
    threshold: float | None = None,
    retain: int = RETAIN,
) -> Plan | None:
    """The plan of a query, or of one operator's stores; None: it has no interval between two batches yet."""
    activities = [only] if only is not None else known.activities
    intervals = [each.batch_s for each in activities if each.batch_s]
    if not intervals:
        return None
    found: dict[int, StorageUsage] = {}
    partitions: dict[int, set[str]] = {}
    for activity in activities:
        for load in known.loads_of(activity.stores):
            found[activity.operator] = found.get(activity.operator, StorageUsage()) + load.usage
            partitions.setdefault(activity.operator, set()).add(load.store.split("/")[2])
    found = {each: replace(usage, partitions=len(partitions[each])) for each, usage in found.items()}
    own = float(Settings().snapshot_threshold) if threshold is None else threshold
    return Plan(found, sum(intervals) / len(intervals), own, retain, prices) if found else None


def dollars_a_day(known: Known, prices: Prices, only: StoreActivity | None = None) -> float | None:
    """The predicted price of a day, storage included."""
    plan = plan_of(known, prices, only)
    return None if plan is None else plan.month.dollars(prices) / MONTH_DAYS
