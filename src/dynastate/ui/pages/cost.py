"""Cost: units and dollars of a query, a prediction with other choices, and advice."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Final

from dynastate.counts import plural
from dynastate.errors import ConfigurationError
from dynastate.operations.cost.advice import Month
from dynastate.operations.cost.prediction import DAY_S, PredictedUsage, predict
from dynastate.operations.cost.scenarios import MONTH_DAYS, Scenario
from dynastate.operations.cost.usage import commit_units, part_puts
from dynastate.operations.monitoring.reports import REPORTED, usage_of_batches
from dynastate.prices import Prices
from dynastate.storage.meter import Meter
from dynastate.ui.charts import Chart, Series
from dynastate.ui.history import totals_of
from dynastate.ui.page import Ask, Page
from dynastate.ui.pages.plan import RETAIN, THRESHOLD, plan_of
from dynastate.ui.site import Site
from dynastate.ui.watch import Look

#: The axis of the charts.
AXIS: Final = "dollars a day"
#: What batches take units for: its name, its colour, and its metrics.
KINDS: Final = (
    ("commits", "c1", ("dynastateWriteUnits",)),
    ("snapshots", "c2", ("dynastateMaintenanceWriteUnits",)),
    ("deletes", "c3", ("dynastateDeleteUnits",)),
    ("reads", "c4", ("dynastateReadUnits", "dynastateMaintenanceReadUnits")),
)
#: Decimal places of dollars in a chart.
DIGITS_MAX: Final = 6


@dataclass(frozen=True)
class Slider:
    """A choice: its `value`, beside the `current` one of the query, on a scale from `low` to `high` that holds both.

    The tables have no settings: a choice that `is_default` begins where a query is that has not set it.
    """

    name: str
    label: str
    value: float
    current: float
    low: float
    high: float
    step: float = 1
    is_default: bool = False

    @property
    def least(self) -> str:
        return _short(min(self.low, self.value, self.current))

    @property
    def most(self) -> str:
        return _short(max(self.high, self.value, self.current))

    @property
    def text(self) -> str:
        return _short(self.value)

    @property
    def current_text(self) -> str:
        return f"{'default' if self.is_default else 'now'} {_short(self.current)}"

    @property
    def place(self) -> float:
        """The place of its current value, in hundredths of the scale."""
        least = float(self.least)
        return round(100 * (self.current - least) / (float(self.most) - least), 2)


def _short(value: float) -> str:
    return f"{value:.10g}"


def view(site: Site, ask: Ask) -> Page:
    spent = Meter()
    look = site.watch(ask.namespace).latest()
    spent.add(look.spent)
    if not look.activities:
        raise ConfigurationError(look.why_nothing, namespace=ask.namespace)
    threshold = ask.positive("threshold", THRESHOLD)
    retain = ask.number("retain", RETAIN, least=2)
    plan = plan_of(look, site.prices)
    values: dict[str, Any] = {"look": look, "plan": plan}
    values["is_stopped"] = all(look.is_stopped(each) for each in look.activities)
    values["stored"] = sum(each.stored_bytes for each in look.loads)
    predicted = None if plan is None else plan.month.dollars(site.prices) / MONTH_DAYS
    values["chart"] = _by_batch(look, site.prices, predicted) or _by_version(look, site.prices, predicted)
    reported = usage_of_batches(look.batches, site.prices).dollars_a_day if look.batches else None
    values |= {"reported_dollars": reported, "reported_note": REPORTED, "batches": len(look.batches)}
    command = f"dynastate cost {ask.namespace}"
    if plan is not None:
        partitions = max(usage.partitions for usage in plan.usages.values())
        trigger, every = ask.positive("trigger", plan.every_s), round(plan.every_s)
        asked_partitions = ask.number("partitions", partitions, least=1)
        month = Month.of(plan.together(trigger, asked_partitions, threshold=threshold, retain=retain))
        *scenarios, each_row = plan.scenarios(trigger, asked_partitions)
        scenarios = [*scenarios, Scenario("these choices together", month.day, month.stored), each_row]
        then = month.dollars(site.prices)
        predictions = [predict(each) for each in plan.workloads]
        advice = plan.choices()
        values |= {
            "trigger": trigger,
            "partitions": asked_partitions,
            "sliders": [
                Slider(
                    "trigger", "Seconds a batch", max(1, round(trigger)), max(1, every), low=1, high=max(120, 4 * every)
                ),
                Slider("partitions", "Partitions", asked_partitions, partitions, low=1, high=max(50, 4 * partitions)),
                Slider(
                    "threshold", "snapshotThreshold", threshold, THRESHOLD, low=0.5, high=3, step=0.05, is_default=True
                ),
                Slider("retain", "minBatchesToRetain", retain, RETAIN, low=2, high=200, is_default=True),
            ],
            "scenarios": [each.as_json(site.prices) for each in scenarios],
            "then_a_month": then,
            "saved": plan.month.dollars(site.prices) - then,
            "is_chosen": bool({"trigger", "partitions", "threshold", "retain"} & ask.parameters.keys()),
            "dollars_a_month": plan.month.dollars(site.prices),
            "kinds": [
                (kind, colour, sum((getattr(each, part) for each in predictions), PredictedUsage()))
                for kind, colour, part in (
                    ("commits", "c1", "commits"),
                    ("snapshots", "c2", "snapshots"),
                    ("deletes by clean-up", "c3", "clean_up"),
                    ("reads of restarts", "c4", "restarts"),
                    *([("log in DynamoDB", "", "log")] if plan.log is not None else []),
                )
            ],
            "prices": site.prices,
            "storage_dollars": site.prices.dollars_a_month(plan.month.stored) / MONTH_DAYS,
            "advice": [each for each in advice if each.is_advice],
            "others": sum(1 for each in advice if not each.is_advice),
            "month_days": MONTH_DAYS,
        }
        days = [day.dollars(site.prices) for _, _, day in values["kinds"]]
        values["most"] = max([*days, values["storage_dollars"]]) or 1.0
        command += f" --every {plan.every_s:g} --trigger {trigger:g} --partitions {asked_partitions}"
        command += f" --snapshot-threshold {threshold:g} --retain {retain}"
    return Page(f"Cost of {ask.namespace}", "cost.html", command, values, spent=spent).by([look])


def _by_version(look: Look, prices: Prices, predicted: float | None) -> Chart | None:
    """The price of the commits of each version, as dollars a day at its rate."""
    totals = totals_of([*look.lineages.values()])
    dollars = []
    for total in totals:
        entries = [(store, lineage.find(total.version)) for store, lineage in look.lineages.items()]
        units = sum(commit_units(store, entry) for store, entry in entries)
        puts = sum(part_puts(store, entry) for store, entry in entries)
        dollars.append(_a_day(prices.nanodollars(units, 0, puts), total.seconds))
    if not any(dollars):
        return None
    digits = _digits([*dollars, predicted])
    series = [Series("commits", AXIS, dollars, digits=digits, prefix="$")]
    if predicted is not None:
        series.append(_predicted(predicted, len(totals), digits))
    return Chart(
        "versions",
        f"Dollars a day at the rate of each of {plural(len(totals), 'version')}",
        noun="time",
        places=[each.time_ms for each in totals],
        series=series,
        labels=[f"{each.version:,}" for each in totals],
        label_noun="version",
        starts=[f"run {each.epoch}" if each.is_start else "" for each in totals],
    )


def _by_batch(look: Look, prices: Prices, predicted: float | None) -> Chart | None:
    """The price of each reported batch, as dollars a day at its rate, by what took units."""
    batches = look.batches
    if len(batches) < 2:  # the first one has no interval
        return None
    gaps = [None, *((second.at - first.at).total_seconds() for first, second in pairwise(batches))]
    figures: dict[str, list[float | None]] = {}
    for name, _, metrics in KINDS:
        dollars = figures.setdefault(name, [])
        for batch, gap in zip(batches, gaps, strict=True):
            units = sum(batch.metrics.get(each, 0) for each in metrics)
            is_read = name == "reads"
            dollars.append(_a_day(prices.nanodollars(0 if is_read else units, units if is_read else 0), gap))
    digits = _digits([predicted, *chain(*figures.values())])
    series = [
        Series(name, AXIS, figures[name], draw="stack", colour=colour, digits=digits, prefix="$")
        for name, colour, _ in KINDS
    ]
    if predicted is not None:
        series.append(_predicted(predicted, len(batches), digits))
    return Chart(
        "batches",
        f"Dollars a day at the rate of each of {plural(len(batches), 'reported batch')}",
        noun="time",
        places=[each.at.timestamp() * 1000 for each in batches],
        series=series,
        labels=[f"{each.number:,}" for each in batches],
        label_noun="batch",
    )


def _predicted(dollars: float, points: int, digits: int) -> Series:
    values = [dollars] * points
    return Series("predicted, all", AXIS, values, draw="line", colour="ink", digits=digits, prefix="$", is_dashed=True)


def _digits(dollars: Iterable[float | None]) -> int:
    """The decimal places that show two digits of the largest amount, at least cents: a chart is drawn from them."""
    largest = max((each for each in dollars if each), default=1.0)
    return min(DIGITS_MAX, max(2, 1 - math.floor(math.log10(largest))))


def _a_day(nanodollars: int, seconds: float | None) -> float | None:
    """Dollars of a day at the rate of one batch. Returns None if the time since the one before is not known."""
    return nanodollars / 1e9 / seconds * DAY_S if seconds else None
