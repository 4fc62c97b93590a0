"""Prices on the page: those of the operators add up to that of the query."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from dynastate.engine.checkpoint import CheckpointFiles
from dynastate.format.checkpoint import Checkpoint
from dynastate.operations.cost.prediction import DAY_S, predict
from dynastate.operations.cost.scenarios import MONTH_DAYS
from dynastate.prices import DEFAULT_PRICES
from dynastate.ui.pages.cost import Slider
from dynastate.ui.pages.plan import dollars_a_day, plan_of
from dynastate.ui.watch import Watch
from tests.support.engine_driver import make_engine
from tests.support.memory_tables import MemoryTables
from tests.support.store_builder import StoreBuilder, counted, user

BATCH_S = 10
STORES = (
    *("q/0/0/default", "q/0/1/default", "q/0/2/default"),
    *("q/1/0/left-keyToNumValues", "q/1/0/left-keyWithIndexToValue", "q/1/0/right-keyToNumValues"),
)


def test_prices_of_operators_add_up_to_that_of_the_query() -> None:
    """Also where an operator has stores of several names."""
    moment = [datetime.now(timezone.utc)]
    tables = MemoryTables()
    engine = make_engine(tables, now=lambda: moment[0])
    stores = [StoreBuilder(engine, store) for store in STORES]
    for batch in range(6):
        for number, store in enumerate(stores):
            store.commit(*((user(f"{batch}-{row}"), counted(row)) for row in range(10 * number + 1)))
        moment[0] += timedelta(seconds=BATCH_S)
    files = CheckpointFiles(tables, set(), clock=lambda: moment[0])
    for name in ("old", "query"):
        moment[0] += timedelta(seconds=BATCH_S)
        for batch in range(6):
            for file in (f"offsets/{batch}", f"commits/{batch}", f"sources/0/{batch}")[: 2 if name == "old" else 3]:
                files.put(Checkpoint("q", name), file, b"v1", overwrites=False)
    look = Watch(engine, tables, "q", DEFAULT_PRICES).latest()
    priced = dollars_a_day(look, DEFAULT_PRICES)
    assert list(priced) == [each.stores for each in look.activities]
    plan = plan_of(look, DEFAULT_PRICES)
    assert plan is not None
    assert sum(priced.values()) == pytest.approx(plan.month.dollars(DEFAULT_PRICES) / MONTH_DAYS)
    assert min(priced.values()) > 0
    assert look.log is not None
    assert look.log.checkpoint == "q/query"  # the one with the newest commit
    batches = DAY_S / plan.every_s
    log = predict(plan.workloads[0]).log
    assert log.write_units == log.delete_units == pytest.approx(3 * batches)
    assert look.activities[0].stores == "q/0/*/default"
    without = dollars_a_day(replace(look, log=None), DEFAULT_PRICES)
    assert [name for name, price in priced.items() if price != without[name]] == ["q/0/*/default"]
    engine.close()


def test_a_slider_holds_its_values() -> None:
    """Its scale goes from the lowest to the highest of its ends, the query's own value and the chosen one."""
    slider = Slider("threshold", "snapshotThreshold", 7.5, 1.25, low=0.5, high=3, step=0.05, is_default=True)
    assert (slider.least, slider.most, slider.text, slider.current_text) == ("0.5", "7.5", "7.5", "default 1.25")
    assert slider.place == pytest.approx(10.71)
