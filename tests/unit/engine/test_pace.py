"""The pace of work in the background."""

from __future__ import annotations

from functools import partial

import pytest

from dynastate import runtime
from dynastate.engine import maintenance, pace
from dynastate.engine.engine import Engine
from tests.support.clock import Clock
from tests.support.engine_driver import save_snapshot, write_versions
from tests.support.limits import set_limits
from tests.support.processes import wait_until
from tests.support.samples import numbers


def test_a_snapshot_yields_to_commits_and_to_throttles() -> None:
    """It pauses twice as long as it worked, within a bound, while commits are under way, or if the table throttled."""
    clock, commits_until = Clock(), 0.0
    slow = pace.Pace(lambda: clock.now < commits_until, clock, clock.sleep)

    def pause_s(worked_s: float, *, is_throttled: bool = False) -> float:
        clock.now += worked_s
        start = clock.now
        slow.pause(is_throttled=is_throttled)
        return clock.now - start

    assert pause_s(3.0) == 0
    assert pause_s(3.0, is_throttled=True) == pytest.approx(6.0)
    assert pause_s(60.0, is_throttled=True) == pace.PAUSE_MAX_S
    commits_until = clock.now + 4
    assert pause_s(0.5) == pytest.approx(1.0)
    assert pause_s(2.0) == pytest.approx(0.5, abs=pace.LOOK_S), "they are over"


@pytest.mark.usefixtures("always_worth_it")
def test_snapshot_on_an_idle_executor_never_pauses(engine: Engine, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits are under way while their parts are queued, and for a second after that."""
    clock = Clock()
    monkeypatch.setattr(runtime, "monotonic", clock)
    assert not engine._writer.is_busy()
    versions = write_versions(engine, store, 3)
    clock.sleep(0.9)
    assert engine._writer.is_busy()
    clock.sleep(0.2)
    wait_until(lambda: not engine._writer.is_busy(), "parts that are durable count as queued")
    set_limits(monkeypatch, writes_max=1)
    monkeypatch.setattr(maintenance, "Pace", partial(pace.Pace, sleep=lambda _: pytest.fail("it pauses")))
    save_snapshot(engine, store, versions[3], numbers(3))
