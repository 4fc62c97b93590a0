"""Cost scenarios: the formula of docs/costs.md on what a query stores. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from dynastate.counts import plural
from dynastate.format.items import StorageSize
from dynastate.operations.cost.prediction import (
    DAY_S,
    WRITE_UNIT_BYTES,
    PredictedUsage,
    RestartBytes,
    Workload,
    predict,
)
from dynastate.operations.cost.usage import StorageUsage
from dynastate.prices import Prices
from dynastate.runtime import Limits

#: Names and key of an item that holds one row, about.
ROW_ITEM_BYTES = 100
#: Snapshot thresholds that are compared with the query's own.
THRESHOLDS: Final = (0.5, 0.85, 1.25, 1.33, 2.0, 3.0)
#: A restart should read at most this multiple of a snapshot: the target of benchmarks/growth.py.
RECOVERY_MAX: Final = 2.5
MONTH_DAYS: Final = 30


@dataclass(frozen=True)
class Scenario:
    """Predicted usage of a day, and storage, if the query ran in a certain way."""

    name: str
    day: PredictedUsage
    stored: StorageSize

    def as_json(self, prices: Prices) -> dict[str, Any]:
        return {
            "way": self.name,
            **{name: round(number) for name, number in asdict(self.day).items()},
            "dollars_a_day": self.day.dollars(prices),
            "bytes": self.stored.bytes,
            "object_bytes": self.stored.object_bytes,
            "storage_dollars_a_month": prices.dollars_a_month(self.stored),
        }


@dataclass(frozen=True)
class ThresholdChoice:
    """Predicted usage of a day with one snapshot threshold, and with the query's own, and what a restart would read."""

    threshold: float
    is_own: bool
    day: PredictedUsage
    own_day: PredictedUsage
    restart: RestartBytes

    @property
    def restart_snapshots(self) -> float:
        """The most that a restart reads, as a multiple of a snapshot."""
        return self.restart.most / self.restart.snapshots if self.restart.snapshots else 1.0

    def saved(self, prices: Prices) -> float:
        """US dollars a month; negative: it costs more."""
        return MONTH_DAYS * (self.own_day.dollars(prices) - self.day.dollars(prices))

    def as_json(self, prices: Prices) -> dict[str, Any]:
        return {
            "snapshot_threshold": self.threshold,
            "is_own": self.is_own,
            "dollars_a_day": self.day.dollars(prices),
            "saved_dollars_a_month": self.saved(prices),
            "restart_bytes": round(self.restart.mean),
            "restart_bytes_max": round(self.restart.most),
            "restart_snapshots_max": round(self.restart_snapshots, 2),
        }


def compare_thresholds(operators: Sequence[Workload], own_threshold: float) -> list[ThresholdChoice]:
    """Predict operators as they run now, with other snapshot thresholds beside `own_threshold`, ascending."""
    predictions = {
        threshold: [predict(replace(operator, snapshot_threshold=threshold)) for operator in operators]
        for threshold in sorted({*THRESHOLDS, own_threshold})
    }
    days = {threshold: sum((each.day for each in its), PredictedUsage()) for threshold, its in predictions.items()}
    return [
        ThresholdChoice(
            threshold,
            is_own=threshold == own_threshold,
            day=days[threshold],
            own_day=days[own_threshold],
            restart=sum((each.restart_bytes for each in its), RestartBytes()),
        )
        for threshold, its in predictions.items()
    ]


def advised(choices: Sequence[ThresholdChoice], prices: Prices) -> ThresholdChoice | None:
    """The choice that saves most, of those with which a restart reads at most `RECOVERY_MAX` snapshots."""
    within = [each for each in choices if each.restart_snapshots <= RECOVERY_MAX and each.saved(prices) > 0]
    return max(within, key=lambda choice: choice.saved(prices), default=None)


def predict_scenarios(
    operators: Sequence[Workload],
    usages: Sequence[StorageUsage],
    every_s: float,
    trigger_s: float | None = None,
    partitions: int | None = None,
) -> list[Scenario]:
    """Predict a query as it runs now, with another trigger or partition count if given, and with an item for each row.

    `operators` have a batch every `every_s` seconds; `usages` are their storage.

    A batch of a longer trigger is assumed to have all changes of the batches that it replaces, but no more than there
    are rows. A row that changes several times in it is written once, so the batch may be cheaper than predicted.
    """
    scenarios = {"as it runs now": list(operators)}
    if trigger_s is not None:
        scenarios[f"a batch every {trigger_s:g} s"] = [with_trigger(each, every_s, trigger_s) for each in operators]
    if partitions is not None:
        pairs = zip(operators, usages, strict=True)
        scenarios[plural(partitions, "partition")] = [
            with_partitions(operator, usage, partitions) for operator, usage in pairs
        ]
    return [*(Scenario(name, *predicted(each)) for name, each in scenarios.items()), _item_for_each_row(operators)]


def workload(
    usage: StorageUsage, every_s: float, *, snapshot_threshold: float, retain: int, objects_threshold_kb: float | None
) -> Workload:
    """The workload of an operator, estimated from the storage of its stores, with these settings."""
    inputs = usage.workload()
    least = {"compression": max(0.1, inputs["compression"]), "families": max(1, usage.families)}
    return Workload(
        **inputs | least,
        batches_a_day=DAY_S / every_s,
        snapshot_threshold=snapshot_threshold,
        retain=retain,
        objects_threshold_kb=objects_threshold_kb,
    )


def with_trigger(operator: Workload, every_s: float, trigger_s: float) -> Workload:
    changed = min(operator.changed_rows * trigger_s / every_s, max(operator.state_rows, operator.changed_rows))
    return replace(operator, batches_a_day=DAY_S / trigger_s, changed_rows=changed)


def with_partitions(operator: Workload, usage: StorageUsage, partitions: int) -> Workload:
    """The workload with another number of partitions than its storage `usage` has, and as many stores in each."""
    return replace(operator, stores=max(1, round(operator.stores * partitions / max(1, usage.partitions))))


def predicted(operators: Sequence[Workload]) -> tuple[PredictedUsage, StorageSize]:
    """Predict a day of a query with these operators, and its storage."""
    predictions = [predict(each) for each in operators]
    day = sum((each.day for each in predictions), PredictedUsage())
    return day, sum((each.stored for each in predictions), StorageSize())


def _item_for_each_row(operators: Sequence[Workload]) -> Scenario:
    """Each change put into a table of deltas and one of snapshots, and deleted from the first: without compression."""
    day, stored = PredictedUsage(), StorageSize()
    for operator in operators:
        changes = operator.changed_rows * operator.batches_a_day
        size = operator.row_bytes * operator.compression + ROW_ITEM_BYTES
        units = changes * math.ceil(size / WRITE_UNIT_BYTES)
        day += PredictedUsage(requests=3 * changes / Limits.writes_max, write_units=2 * units, delete_units=units)
        day += predict(operator).log
        stored += StorageSize(round(operator.state_rows), round(operator.state_rows * size))
    return Scenario("an item for each row", day, stored)
