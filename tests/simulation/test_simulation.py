"""Hundreds of schedules, none of which may lose, invent or mix state or files; and mutations of the engine, all found.

Each run begins at another seed, and prints it; `DYNASTATE_SEED` gives one. A schedule that fails prints the command
that replays it; what it found becomes a test in `test_regressions.py`, and its seed one of `ONCE_FAILED`.
`make sim SEED=… RUNS=…` runs others.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest

from tests.simulation.checkpoint_schedule import CheckpointSchedule
from tests.simulation.mutations import MUTATIONS
from tests.simulation.reach import ABORT, CLEAN_UP, ENTER, ENTRY, PART, RARE, SHORTEN, Cell, step_of, table, unreached
from tests.simulation.runs import digest_of, first_found, outcomes, processes

#: Where the schedules begin that are compared with themselves.
SEED = 0
RUNS = 400
#: Schedules that failed once; they run each time.
ONCE_FAILED = (
    *(7, 8, 119, 780, 1002, 2601, 16630, 17113, 17526, 100685, 100773, 101068, 101292, 101605, 121327, 2000689),
    *(4101338, 4105575, 4500391, 4500743, 4720784, 4723635, 5716473537, 5887555840, 5887555848, 880250),
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_schedule_violates_a_promise() -> None:
    """A failure shows at most five schedules, each with its last steps."""
    first = int(os.environ.get("DYNASTATE_SEED") or time.time_ns() // 1_000_000 % 10**10)
    begin = f"make sim SEED={first} RUNS={RUNS}"
    print(begin)  # noqa: T201  # the seed of this run
    seeds = [*ONCE_FAILED, *range(first, first + RUNS)]
    failed: list[str] = []
    struck: Counter[Cell] = Counter()
    for failure, of_seed in outcomes(seeds):
        struck += of_seed
        failed += [failure] if failure is not None else []
        if len(failed) == 5:
            break
    assert not failed, "\n\n".join([*failed, f"the new schedules of this run: {begin}"])
    print(table(struck))  # noqa: T201  # how far this run has reached
    assert not unreached(struck), "no schedule has these faults at these steps any more (tests/simulation/reach.py)"


def test_faults_are_counted_for_the_step_of_their_request() -> None:
    """The requests of a commit are classed by what they do, those of other tasks by the task."""
    entry, part = {"entry": {"S": "list/0"}}, {"part": {"S": "0/0/0"}}
    write, delete = {"PutRequest": {"Item": part}}, {"DeleteRequest": {"Key": part}}
    assert [
        step_of("", "update_item", {"Key": entry}),
        step_of("", "put_item", {"Item": entry}),
        step_of("", "put_item", {"Item": {"entry": {"S": "meta"}}}),
        step_of("", "query", {"TableName": "delta"}),
        step_of("", "batch_write_item", {"RequestItems": {"delta": [write, write]}}),
        step_of("", "batch_write_item", {"RequestItems": {"delta": [delete]}}),
        step_of("", "put_object", {"Bucket": "bucket", "Key": "key"}),
        step_of("", "delete_objects", {"Bucket": "bucket", "Delete": {"Objects": []}}),
        step_of(CLEAN_UP, "batch_write_item", {"RequestItems": {"delta": [delete]}}),
    ] == [ENTRY, SHORTEN, ENTER, ENTER, PART, ABORT, PART, ABORT, CLEAN_UP]


def test_a_cell_that_is_not_reached_is_named() -> None:
    """Whatever strikes, each cell that a run must reach is missed if it has no fault."""
    cells = unreached(Counter())
    assert len(cells) > 100
    every = Counter(dict.fromkeys(cells, 1))
    assert unreached(every) == []
    assert unreached(every - Counter([cells[7]])) == [cells[7]]
    assert not {*cells} & {Cell(step, fault) for fault, steps in RARE.items() for step in steps}


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
