"""How a watched query runs, for predictions."""

from __future__ import annotations

from typing import Final

from dynastate.operations.cost.advice import Month, Plan
from dynastate.operations.cost.scenarios import MONTH_DAYS
from dynastate.operations.cost.usage import by_operator
from dynastate.prices import Prices
from dynastate.settings import Settings
from dynastate.ui.watch import Look

#: What a query has that has not set it, spark.sql.streaming.minBatchesToRetain being Spark's: the tables have no
#: settings.
THRESHOLD: Final = float(Settings().snapshot_threshold)
RETAIN: Final = 100


def plan_of(look: Look, prices: Prices) -> Plan | None:
    """The plan of a query. Returns None before the interval between two batches is known."""
    intervals = [each.batch_s for each in look.activities if each.batch_s]
    usages = by_operator({load.store: load.usage for load in look.loads})
    if not intervals or not usages:
        return None
    every_s = sum(intervals) / len(intervals)
    return Plan(usages, every_s, threshold=THRESHOLD, retain=RETAIN, prices=prices, log=look.log)


def dollars_a_day(look: Look, prices: Prices) -> dict[str, float]:
    """The predicted price of a day, storage included, by `namespace/operator/*/name`. Empty before there is a plan.

    They add up to the price of the query; the first operator's has the log. Stores of one operator share its price by
    the write units of their commits.
    """
    plan = plan_of(look, prices)
    if plan is None:
        return {}
    workloads = zip(plan.usages, plan.workloads, strict=True)
    months = {operator: Month.of([workload]).dollars(prices) for operator, workload in workloads}
    priced = {}
    for activity in look.activities:
        if activity.operator in months:
            units = sum(load.usage.write_units for load in look.loads_of(activity.stores))
            share = units / max(1, plan.usages[activity.operator].write_units)
            priced[activity.stores] = share * months[activity.operator] / MONTH_DAYS
    return priced
