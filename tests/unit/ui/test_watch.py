"""The watch of a namespace: no old figure is shown as one of now, and an unchanged store costs a unit a look."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from dynastate.errors import UnavailableError
from dynastate.format.keys import meta_key
from dynastate.format.meta import DROPPED, MARKED
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.prices import DEFAULT_PRICES
from dynastate.storage.meter import Meter
from dynastate.ui.site import NAMESPACES_S, Listing
from dynastate.ui.watch import LOADS_S, NO_STORES_S, OLD_S, STORES_S, Look, Watch
from tests.support.engine_driver import make_engine
from tests.support.faults import FailingTables
from tests.support.memory_tables import MemoryTables
from tests.support.samples import attempt
from tests.support.store_builder import StoreBuilder, counted, user

PARTITIONS = 3


class World:
    """Tables that may fail or wait, with a query in namespace `shop`, a clock of both kinds of time, and a watch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._began = datetime.now(timezone.utc)
        self.passed_s = 0.0
        monkeypatch.setattr("dynastate.ui.watch.now_utc", self.now)
        self.memory = MemoryTables()
        self.is_down = False
        self.answers = Event()
        self.answers.set()
        self.tables = FailingTables(self.memory, self._before)
        self.engine = make_engine(self.tables, now=self.now)
        self.stores = [self.builder(partition).count_to(2) for partition in range(PARTITIONS)]
        self.watch = Watch(self.engine, self.tables, "shop", DEFAULT_PRICES, clock=lambda: self.passed_s)

    def builder(self, partition: int, **run: str) -> StoreBuilder:
        return StoreBuilder(self.engine, f"shop/0/{partition}/default", **run)

    def now(self) -> datetime:
        return self._began + timedelta(seconds=self.passed_s)

    def _before(self, _: str) -> None:
        if self.is_down:
            raise UnavailableError("DynamoDB gave no proper answer until the deadline")
        assert self.answers.wait(10)

    def after(self, seconds: float) -> Look:
        """The namespace after so many seconds."""
        self.passed_s += seconds
        return self.watch.latest()

    def looked_again(self) -> Look:
        """The namespace after a look in the background."""
        self.after(3)
        self.watch._background.wait(10)
        return self.watch.last_look

    def commit(self) -> None:
        for each in self.stores:
            each.count_to(each.version.version + 1)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    new_world = World(monkeypatch)
    with closing(new_world.engine):
        yield new_world


def test_a_view_that_is_opened_again_shows_the_state_of_now(world: World) -> None:
    """After a minute without a look, the first view has the newest version, and no operator is stopped."""
    assert [each.version for each in world.after(0).activities] == [2]
    world.passed_s += 75
    world.commit()
    look = world.after(0)
    assert ([each.version for each in look.activities], look.age_s, look.is_old) == ([3], 0, False)
    assert look.health(look.activities[0]).mark == "ok"


def test_a_query_that_stops_after_a_throttled_batch_is_stopped(world: World) -> None:
    """Its last report still has the throttled requests, which the reason names."""
    for seconds, mark in ((0, "throttled"), (75, "stopped")):
        look = world.after(seconds)
        health = look.health(replace(look.activities[0], throttles=7))
        assert health.mark == mark
        assert health.why.endswith("7 requests of the last batch")


def test_a_look_without_an_answer_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynastate.ui.watch.WAIT_S", 0.05)
    looked = world.after(0).looked
    assert looked is not None
    world.answers.clear()
    began_s = time.monotonic()
    look = world.after(OLD_S + 1)
    assert time.monotonic() - began_s < 1
    assert (look.looked, look.is_old, look.problem) == (looked, True, "")
    health = look.health(look.activities[0])
    assert (health.mark, health.why) == ("old", f"ok at {looked:%H:%M:%S} UTC")
    world.answers.set()
    assert not world.looked_again().is_old


def test_an_outage_is_named_with_its_begin(world: World) -> None:
    """Figures stay, as those of the last look; nothing waits; the first look that is answered ends it."""
    looked = world.after(0).looked
    world.is_down = True
    failed = world.after(3)
    assert (failed.looked, failed.failed, failed.is_unreachable) == (looked, world.now(), True)
    assert "gave no proper answer" in failed.problem
    assert ([each.version for each in failed.activities], failed.health(failed.activities[0]).mark) == ([2], "old")
    since = failed.failed
    assert world.looked_again().failed == since
    world.is_down = False
    look = world.looked_again()
    assert (look.problem, look.failed, look.is_old) == ("", None, False)


def test_an_old_look_stops_no_operator(world: World) -> None:
    """An operator is stopped by the time of the look, not by that of the view."""
    look = world.after(0)
    world.is_down = True
    world.after(300)
    assert look.behind_s(look.activities[0]) < 1


def test_a_dropped_namespace_is_missing_at_the_next_look(world: World) -> None:
    """Also while it is being dropped; a query that begins there later is found."""
    assert not world.after(0).is_missing
    names = [each.store for each in world.stores]
    drop_stores(world.tables, names)
    look = world.after(3)
    assert (look.is_missing, look.activities, look.loads, look.problem) == (True, (), (), "")
    builder = world.builder(0, run="run-2", query="another").count_to(2)
    assert world.after(3).is_missing, "it is not looked for every two seconds"
    assert [each.partitions for each in world.after(NO_STORES_S).activities] == [1]
    key = meta_key(builder.store)
    world.memory.items[key][DROPPED] = MARKED
    assert world.after(STORES_S + 1).is_missing


def test_an_unchanged_store_costs_one_unit_a_look(world: World) -> None:
    """Neither the stores nor their sizes are read again, in ten minutes of looks."""
    world.after(0)
    for _ in range(2):
        world.after(LOADS_S + 1)
    requests = len(world.memory.calls)
    looks = 100
    units = sum(world.after(6).spent.read_units for _ in range(looks))
    assert units <= PARTITIONS * looks
    assert len(world.memory.calls) - requests == PARTITIONS * looks


def test_sizes_are_read_of_stores_that_have_changed(world: World) -> None:
    world.after(0)
    for _ in range(2):
        world.after(LOADS_S + 1)
    world.stores[1].count_to(3)
    look = world.after(LOADS_S + 1)
    assert [each.usage.versions for each in look.loads] == [2, 3, 2]
    assert look.spent.requests == PARTITIONS + 1


def test_stores_of_another_query_are_found_when_it_commits(world: World) -> None:
    """A checkpoint that was deleted and begun again has two partitions in place of three."""
    assert [each.partitions for each in world.after(0).activities] == [PARTITIONS]
    for partition in range(2):
        another = world.builder(partition, run="run-2", query="another")
        for version in (1, 2):
            another.commit((user("a"), counted(version)), by=attempt(10 + version))
    assert [(each.partitions, each.version) for each in world.after(3).activities] == [(2, 2)]


def test_a_query_in_its_first_batch_has_not_failed(world: World) -> None:
    """Its stores are found while they are being made."""
    fresh = Watch(world.engine, world.tables, "fresh", DEFAULT_PRICES, clock=lambda: world.passed_s)
    assert fresh.latest().is_missing
    StoreBuilder(world.engine, "fresh/0/0/default").count_to(1)
    world.passed_s += NO_STORES_S + 1
    assert [each.partitions for each in fresh.latest().activities] == [1]
    StoreBuilder(world.engine, "fresh/0/1/default").count_to(1)
    world.passed_s += 11
    assert [each.partitions for each in fresh.latest().activities] == [2]


class Scanned:
    """Tables with stores that a Scan finds, which takes `units`."""

    def __init__(self, units: int) -> None:
        self.scans, self.units = 0, units

    def metered(self, meter: Meter) -> Scanned:
        self._meter = meter
        return self

    @property
    def meter(self) -> Meter:
        return self._meter

    def find_stores(self) -> Iterator[str]:
        self.scans += 1
        self._meter.read_units += self.units
        return iter(["b/0/0/default", "a/0/0/default", "a/0/1/default"])


@pytest.mark.parametrize(("units", "scans"), [(4, 10), (600, 1)])
def test_namespaces_are_listed_for_a_unit_a_second_at_most(units: int, scans: int) -> None:
    passed_s = 0.0
    tables = Scanned(units)
    listing = Listing(tables, lambda: passed_s)  # type: ignore[arg-type]
    for _ in range(10):
        assert listing.names(Meter()) == ["a", "b"]
        listing._background.wait(10)
        passed_s += NAMESPACES_S + 1
    assert tables.scans == scans


def test_an_operator_has_the_name_of_its_report(world: World) -> None:
    """Without a report, or with one of Spark 3.5 that has no name, the columns say which operator it is."""
    look = world.after(0)
    stores = look.activities[0].stores
    reports: list[Any] = [
        SimpleNamespace(operator_names=names) for names in (("transformWithStateExec",), ("defaultName",))
    ]
    names = [replace(look, batches=batches).operator_name(stores) for batches in ([], reports[:1], reports)]
    assert names == ["stateStoreSave", "transformWithStateExec", "stateStoreSave"]
