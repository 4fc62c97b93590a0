"""Hundreds of schedules, none of which may lose, invent or mix state or files; and mutations of the engine, all found.

Each run begins at another seed, and prints it; `DYNASTATE_SEED` gives one. A schedule that fails prints the command
that replays it; what it found becomes a test in `test_regressions.py`, and its seed one of `ONCE_FAILED`.
`make sim SEED=… RUNS=…` runs others.
"""

from __future__ import annotations

import os
import time
from itertools import islice

import pytest

from tests.simulation.checkpoint_schedule import CheckpointSchedule
from tests.simulation.mutations import MUTATIONS
from tests.simulation.runs import digest_of, failures, first_found, processes

#: Where the schedules begin that are compared with themselves.
SEED = 0
RUNS = 400
#: Schedules that failed once; they run each time.
ONCE_FAILED = (
    *(7, 8, 119, 780, 1002, 2601, 16630, 17113, 17526, 100685, 100773, 101068, 101292, 101605, 121327, 2000689),
    *(4101338, 4105575, 4500391, 4500743, 4720784, 4723635, 5716473537),
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_schedule_violates_a_promise() -> None:
    """A failure shows at most five schedules, each with its last steps."""
    first = int(os.environ.get("DYNASTATE_SEED") or time.time_ns() // 1_000_000 % 10**10)
    begin = f"make sim SEED={first} RUNS={RUNS}"
    print(begin)  # noqa: T201  # the seed of this run
    seeds = [*ONCE_FAILED, *range(first, first + RUNS)]
    failed = list(islice(failures(seeds), 5))
    assert not failed, "\n\n".join([*failed, f"the new schedules of this run: {begin}"])


def test_a_schedule_replays_identically() -> None:
    """In this process, in others with other hash seeds, and again: the same steps, and the same items at the end."""
    seeds = range(SEED, SEED + 6)
    once = [digest_of(seed) for seed in seeds]
    with processes() as pool:
        assert list(pool.map(digest_of, seeds)) == once
    assert [digest_of(seed) for seed in seeds] == once
    assert len(set(once)) == len(seeds)


def test_schedules_of_checkpoints_have_conflicts_and_late_requests() -> None:
    """Drivers refuse each other at every log, puts are stopped and lost, and requests of the dead arrive."""
    journals = []
    for seed in range(SEED, SEED + 25):
        schedule = CheckpointSchedule(seed)
        schedule.run()
        journals += schedule.journal()
    steps = ("refused to put offsets", "refused to put commits", "refused to put sources", "late from driver")
    for step in (*steps, "kill driver", "the query of this checkpoint file was stopped", "may have happened"):
        assert any(step in line for line in journals), step


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_is_found(name: str) -> None:
    """A schedule from a known seed on finds it; where schedules changed, `make mutations` finds the new seeds."""
    seed, failure = first_found(name)
    assert f"replay it: make sim SEED={seed} RUNS=1" in failure
