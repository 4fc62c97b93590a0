"""Advice: what other choices would save on a query, by the formula of docs/costs.md and by arithmetic. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Final

from dynastate.counts import plural
from dynastate.format.items import StorageSize
from dynastate.operations.cost.log import LogUsage
from dynastate.operations.cost.prediction import DAY_S, PredictedUsage, Workload
from dynastate.operations.cost.scenarios import (
    MONTH_DAYS,
    Scenario,
    ThresholdChoice,
    advised,
    compare_thresholds,
    predict_scenarios,
    predicted,
    with_partitions,
    with_trigger,
    workload,
)
from dynastate.operations.cost.usage import StorageUsage
from dynastate.prices import Prices
from dynastate.settings import Settings

#: How many times longer, about, the trigger is that is compared, and how many times fewer partitions and versions are.
TIMES: Final = 2
#: US dollars a month that advice saves at least.
SAVED_MIN: Final = 0.01
#: An hour of one provisioned unit a second costs as much as this many units on demand ($0.00065 and $0.625 a million).
PROVISIONED_HOUR_UNITS: Final = 1_040
#: The share of provisioned capacity that autoscaling aims at by default.
UTILIZATION: Final = 0.7
#: DynamoDB keeps unused capacity for this long, for bursts.
BURST_S: Final = 300
#: Prices of the table class Standard-Infrequent Access, as multiples of those of Standard.
INFREQUENT_UNITS: Final = 1.248
INFREQUENT_STORAGE: Final = 0.4
#: Bytes with zstd as a multiple of those with LZ4, on average over the samples of decision 19.
ZSTD_RATIO: Final = 0.71
#: The default `objectsThresholdKb`, for each query with objects, and for the choice of objects.
THRESHOLD_KB: Final = Settings().objects_threshold_kb


@dataclass(frozen=True)
class Choice:
    """Another way to run a query: US dollars that it costs and saves a month, units and storage together."""

    kind: str
    what: str
    dollars_a_month: float
    saved_dollars_a_month: float

    @property
    def is_advice(self) -> bool:
        """Whether it saves anything, to the cent."""
        return self.saved_dollars_a_month >= SAVED_MIN

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Month:
    """A month of a query: units and storage."""

    day: PredictedUsage
    stored: StorageSize

    @classmethod
    def of(cls, operators: Sequence[Workload]) -> Month:
        """Predict it."""
        day, stored = predicted(operators)
        return cls(day, stored)

    def units_dollars(self, prices: Prices) -> float:
        return MONTH_DAYS * self.day.dollars(prices)

    def dollars(self, prices: Prices) -> float:
        return self.units_dollars(prices) + prices.dollars_a_month(self.stored)

    def provisioned(self, every_s: float, prices: Prices) -> tuple[int, float]:
        """Write capacity for the mean of a day, and for a batch out of what was unused before it; and a month's price.

        Reads have a capacity of their own, which the price includes.
        """
        day, batches = self.day, DAY_S / every_s
        write_units, read_units = (
            max(1, math.ceil(units / DAY_S / UTILIZATION), math.ceil(units / batches / BURST_S))
            for units in (day.write_units + day.delete_units, day.read_units)
        )
        hours = 24 * MONTH_DAYS * PROVISIONED_HOUR_UNITS
        dollars = PredictedUsage(0, write_units * hours, read_units * hours).dollars(prices)
        return write_units, dollars + prices.dollars_a_month(self.stored)

    def infrequent_dollars(self, prices: Prices) -> float:
        """The price with the table class Standard-Infrequent Access."""
        stored = prices.dollars_a_month(self.stored)
        return INFREQUENT_UNITS * self.units_dollars(prices) + INFREQUENT_STORAGE * stored


@dataclass(frozen=True)
class Plan:
    """How a query runs: what it stores, a batch every `every_s` seconds, its snapshot threshold, versions retained.

    `log` is its log, if that is in DynamoDB and has a batch.
    """

    usages: Mapping[int, StorageUsage]
    every_s: float
    threshold: float
    retain: int
    prices: Prices
    log: LogUsage | None = None

    @cached_property
    def workloads(self) -> list[Workload]:
        """The workloads of its operators. The first one has the log."""
        workloads = [
            workload(
                usage,
                self.every_s,
                snapshot_threshold=self.threshold,
                retain=self.retain,
                objects_threshold_kb=THRESHOLD_KB if usage.stored.object_bytes else None,
            )
            for usage in self.usages.values()
        ]
        if self.log is not None:
            files, units = self.log.files_a_batch, self.log.write_units / max(1, self.log.files)
            workloads[:1] = [replace(each, log_files=files, log_file_units=units) for each in workloads[:1]]
        return workloads

    @cached_property
    def month(self) -> Month:
        """A month as it runs now."""
        return Month.of(self.workloads)

    @cached_property
    def thresholds(self) -> list[ThresholdChoice]:
        """A day with other snapshot thresholds."""
        return compare_thresholds(self.workloads, self.threshold)

    def scenarios(self, trigger_s: float | None, partitions: int | None) -> list[Scenario]:
        """A day as it runs now, with another trigger or partition count, and with an item for each row."""
        usages = list(self.usages.values())
        return predict_scenarios(
            self.workloads, usages, every_s=self.every_s, trigger_s=trigger_s, partitions=partitions
        )

    def together(self, trigger_s: float, partitions: int, *, threshold: float, retain: int) -> list[Workload]:
        """The workloads with another trigger, partition count, snapshot threshold and number of versions."""
        return [
            replace(
                with_partitions(with_trigger(each, self.every_s, trigger_s), usage, partitions),
                snapshot_threshold=threshold,
                retain=retain,
            )
            for each, usage in zip(self.workloads, self.usages.values(), strict=True)
        ]

    def choices(self) -> list[Choice]:
        """Predict the query with one other choice each, those that save most first."""
        dollars = self.month.dollars(self.prices)
        capacity, provisioned = self.month.provisioned(self.every_s, self.prices)
        priced = [
            *((kind, name, Month.of(others).dollars(self.prices)) for kind, name, others in self._by_formula()),
            ("provisioned capacity", f"provisioned, {plural(capacity, 'write unit')} a second", provisioned),
            ("table class", "table class Standard-Infrequent Access", self.month.infrequent_dollars(self.prices)),
        ]
        choices = [Choice(kind, name, cost, dollars - cost) for kind, name, cost in priced]
        return sorted(choices, key=lambda choice: -choice.saved_dollars_a_month)

    def _by_formula(self) -> Iterator[tuple[str, str, list[Workload]]]:
        """Kind and name of each choice that changes the workloads, with these."""
        operators = self.workloads
        longer = float(f"{TIMES * self.every_s:.2g}")  # a number that one would set, as what is measured is not round
        yield "trigger", f"a batch every {longer:g} s", [with_trigger(each, self.every_s, longer) for each in operators]
        if all(each.partitions >= TIMES for each in self.usages.values()):
            fewer = [replace(each, stores=each.stores // TIMES) for each in operators]
            yield "partitions", "half as many partitions", fewer
        yield "codec", "compression=zstd, if it is lz4 now", [_with_zstd(each) for each in operators]
        if any(each.objects_threshold_kb is not None for each in operators):
            yield "objects", "without objects in S3", [replace(each, objects_threshold_kb=None) for each in operators]
        else:
            yield "objects", "objects=s3://…", [replace(each, objects_threshold_kb=THRESHOLD_KB) for each in operators]
        best = advised(self.thresholds, self.prices)
        if best is not None:
            better = [replace(each, snapshot_threshold=best.threshold) for each in operators]
            yield "threshold", f"snapshotThreshold={best.threshold:g}", better
        retain = max(2, self.retain // TIMES)
        yield "retention", f"minBatchesToRetain={retain}", [replace(each, retain=retain) for each in operators]


def _with_zstd(workload: Workload) -> Workload:
    return replace(
        workload,
        row_bytes=ZSTD_RATIO * workload.row_bytes,
        state_row_bytes=ZSTD_RATIO * workload.state_row_bytes,
        compression=workload.compression / ZSTD_RATIO,
    )
