"""What other choices would save, compared with runs that make them, and by arithmetic."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dynastate.cli.output import dollars
from dynastate.format.items import StorageSize
from dynastate.operations.cost.advice import Choice, Month, Plan
from dynastate.operations.cost.prediction import DAY_S, PredictedUsage, Workload
from dynastate.operations.cost.usage import StorageUsage, usage_of_namespace
from dynastate.prices import DEFAULT_PRICES
from dynastate.storage.tables import Tables
from tests.support.engine_driver import Engines
from tests.unit.operations.cost.test_prediction import ROOT, Run

EVERY_S, RETAIN = 10.0, 20
NOW = Workload(4, DAY_S / EVERY_S, 140, 0, 3_000, 0, retain=RETAIN, snapshot_threshold=0.5)
VALUE_BYTES = 60
WARM, MEASURED = 150, 240
WITHIN = 0.15


def dollars_of(run: Run, every_s: float) -> float:
    """The price of a month of a run, by counting what some of its batches take and what they leave."""
    counted = run.play(MEASURED)
    meter, batches = counted.spent, MONTH_S / every_s / MEASURED
    write_units = meter.write_units + meter.delete_units
    units = DEFAULT_PRICES.nanodollars(write_units, meter.read_units, meter.puts, meter.gets) / 1e9
    names = ("items", "bytes", "object_bytes")
    stored = [sum(getattr(each, name) for each in counted.stored) // MEASURED for name in names]
    return units * batches + DEFAULT_PRICES.dollars_a_month(StorageSize(*stored))


MONTH_S = 30 * DAY_S
#: Each choice that a run can make: the workload and the settings of that run, and its trigger.
RUNS: dict[str, tuple[Callable[[Workload], Workload], dict[str, Any], float]] = {
    "trigger": (lambda of: replace(of, changed_rows=280, batches_a_day=of.batches_a_day / 2), {}, 2 * EVERY_S),
    "partitions": (lambda of: replace(of, stores=2), {}, EVERY_S),
    "threshold": (lambda of: replace(of, snapshot_threshold=0.85), {}, EVERY_S),
    "objects": (lambda of: of, {"objects": "s3://bucket/prefix"}, EVERY_S),
    "retention": (lambda of: replace(of, retain=RETAIN // 2), {}, EVERY_S),
}


@pytest.mark.slow
@pytest.mark.parametrize("tables", ["memory"], indirect=True)
@pytest.mark.parametrize("kind", RUNS)
def test_a_choice_costs_what_a_run_with_it_costs(kind: str, engines: Engines, tables: Tables) -> None:
    """Within 15 %, the price of a month; and what it saves has the right sign where it is more than the error."""
    first = Run(engines, tables, NOW, VALUE_BYTES, seed=7)
    first.play(WARM)
    plan = Plan(usage_of_namespace(tables, first.namespace), EVERY_S, NOW.snapshot_threshold, RETAIN, DEFAULT_PRICES)
    by_kind = {each.kind: each for each in plan.choices()}
    assert by_kind[kind].dollars_a_month + by_kind[kind].saved_dollars_a_month == pytest.approx(
        dollars_of(first, EVERY_S), rel=WITHIN
    )
    change, settings, every_s = RUNS[kind]
    other = Run(lambda **options: engines(**options | settings), tables, change(NOW), VALUE_BYTES, seed=8)
    other.play(WARM)
    assert by_kind[kind].dollars_a_month == pytest.approx(dollars_of(other, every_s), rel=WITHIN)


def plan_of(**usage: Any) -> Plan:
    """A plan of one operator with these figures, a batch each minute."""
    figures: dict[str, Any] = {
        "stores": 4,
        "partitions": 4,
        "stored": StorageSize(100, 10**9),
        "rows": 10_000,
        "batches": 400,
    }
    figures |= {"records": 40_000, "raw_bytes": 4_000_000, "record_bytes": 2_000_000, "families": 1}
    return Plan({0: StorageUsage(**figures | usage)}, 60, 1.25, 100, DEFAULT_PRICES)


def test_each_figure_is_of_the_plan() -> None:
    """What is retained counts in scenarios and thresholds, as it does in choices."""
    one, other = (
        plan_of(snapshot_rows=10_000, snapshot_bytes=500_000),
        plan_of(snapshot_rows=10_000, snapshot_bytes=500_000),
    )
    other = replace(other, retain=10)
    assert other.scenarios(None, None)[0].stored.bytes < one.scenarios(None, None)[0].stored.bytes
    assert other.thresholds[0].day != one.thresholds[0].day
    assert other.month.stored == other.scenarios(None, None)[0].stored


def test_objects_are_compared_with_what_is_there() -> None:
    """A query with objects in S3 is compared with none, others with some."""
    here = choices(plan_of())["objects"]
    plan = plan_of(stored=StorageSize(100, 10**6, 10**9))
    assert (here.what, choices(plan)["objects"].what) == ("objects=s3://…", "without objects in S3")
    assert here.dollars_a_month == pytest.approx(plan.month.dollars(DEFAULT_PRICES))


def choices(plan: Plan) -> dict[str, Choice]:
    return {choice.kind: choice for choice in plan.choices()}


def test_provisioned_capacity_is_arithmetic() -> None:
    """The mean of a day at 70 % of the capacity, at the price of 1,040 units an hour; nothing below one unit."""
    month = Month(PredictedUsage(0, 699.9 * DAY_S * 0.75, 7 * DAY_S, 699.9 * DAY_S * 0.25), StorageSize(0, 0))
    on_demand = month.dollars(DEFAULT_PRICES)
    capacity, dollars = month.provisioned(60, DEFAULT_PRICES)
    assert capacity == 1_000
    assert dollars == pytest.approx(on_demand * 1_040 / 3_600 / 0.7, rel=0.01)
    # An hour between two batches: what was unused is kept for five minutes only.
    assert month.provisioned(3_600, DEFAULT_PRICES)[0] == 8_399
    idle = Month(PredictedUsage(), StorageSize())
    capacity, dollars = idle.provisioned(60, DEFAULT_PRICES)
    assert capacity == 1
    assert dollars == pytest.approx(30 * 24 * 1_040 * (0.625 + 0.125) / 1e6)
    plan = plan_of()
    capacity, dollars = plan.month.provisioned(60, DEFAULT_PRICES)
    choice = choices(plan)["provisioned capacity"]
    assert (choice.what, choice.dollars_a_month) == (f"provisioned, {capacity} write units a second", dollars)


def test_the_table_class_is_arithmetic() -> None:
    """Units for a quarter more, storage for two fifths: it pays where storage is most of the price."""
    small = choices(plan_of())["table class"]
    assert small.saved_dollars_a_month < 0
    plan = plan_of(rows=10**9, snapshot_rows=10**9, snapshot_bytes=10**11)
    month = plan.month
    stored = DEFAULT_PRICES.dollars_a_month(month.stored)
    large = choices(plan)["table class"]
    expected = 0.6 * stored - 0.248 * month.units_dollars(DEFAULT_PRICES)
    assert large.saved_dollars_a_month == pytest.approx(expected)


def test_a_query_that_cannot_have_fewer() -> None:
    """One partition is not halved, and two versions are retained at least."""
    by_kind = choices(replace(plan_of(stores=1, partitions=1), retain=2))
    assert "partitions" not in by_kind
    assert by_kind["retention"].what == "minBatchesToRetain=2"
    assert by_kind["retention"].saved_dollars_a_month == pytest.approx(0)


def test_table_of_the_documentation() -> None:
    text = (ROOT / "docs" / "costs.md").read_text()
    table = text.partition("what one other choice would save, predicted\n")[2].partition("```")[0].splitlines()[2:]
    records = 400 * 50 * 115
    usage = StorageUsage(
        stores=50,
        partitions=50,
        rows=2_000_000,
        batches=50 * 115,
        families=1,
        records=records,
        record_bytes=60 * records,
        raw_bytes=120 * records,
        snapshot_rows=2_000_000,
        snapshot_bytes=100_000_000,
    )
    all_choices = Plan({0: usage}, 30, 1.25, 100, DEFAULT_PRICES).choices()
    expected = [
        (each.what, dollars(each.saved_dollars_a_month, 2), dollars(each.dollars_a_month, 2))
        for each in all_choices
        if each.is_advice
    ]
    assert [each.kind for each in all_choices if not each.is_advice] == ["retention", "table class"]
    assert [tuple(re.split("  +", line)) for line in table] == expected
