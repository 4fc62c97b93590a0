"""Many schedules, in at most two processes, and the report of one that fails."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from multiprocessing.sharedctypes import Synchronized
from typing import Final

from tests.simulation.checkpoint_schedule import CheckpointSchedule
from tests.simulation.mutations import MUTATIONS
from tests.simulation.reach import Cell
from tests.simulation.schedule import Schedule
from tests.simulation.world import World

PROCESSES_MAX: Final = 2
#: Schedules that a process gets at once.
AT_ONCE: Final = 20
STEPS_SHOWN: Final = 60
#: Schedules from the known seed of a mutation on that are tried until one finds it.
TRIES: Final = 600
#: Seeds that tell how often a mutation is found.
ENOUGH: Final = 5


def schedules_of(seed: int) -> Iterator[World]:
    """The schedules of a seed: that of a query's state, and that of its checkpoint."""
    yield Schedule(seed)
    yield CheckpointSchedule(seed)


def outcome_of(seed: int) -> tuple[str | None, Counter[Cell]]:
    """Run the schedules of a seed. Returns None, or the first failure; and the faults that struck each step."""
    struck: Counter[Cell] = Counter()
    for schedule in schedules_of(seed):
        failed = failure_in(schedule)
        struck += schedule.scheduler.struck
        if failed is not None:
            return failed, struck
    return None, struck


def failure_in(schedule: World, steps: int = STEPS_SHOWN) -> str | None:
    """Run a schedule. Returns None, or the failure with the last steps (0: all) and the command that replays it."""
    try:
        schedule.run()
    except Exception as failed:  # noqa: BLE001  # any error is reported
        journal = "\n".join(schedule.journal(steps))
        error = "".join(traceback.format_exception(failed))
        return f"{journal}\n\n{error}\n{schedule}\nreplay it: make sim SEED={schedule.seed} RUNS=1"
    return None


def first_found(name: str, tries: int = TRIES) -> tuple[int, str]:
    """The first schedule from its known seed on in which a mutation violates a promise, and that failure; -1: none."""
    mutation, first, _ = MUTATIONS[name]
    with mutation():
        return next(_found(name, range(first, first + tries)), (-1, ""))


def finders(task: tuple[str, int]) -> tuple[list[int], int]:
    """The seeds from 0 on that find a mutation, at most `ENOUGH`; and how many were tried, at most so many."""
    name, most = task
    with MUTATIONS[name][0]():
        seeds = [seed for seed, _ in islice(_found(name, range(most)), ENOUGH)]
    return seeds, seeds[-1] + 1 if len(seeds) == ENOUGH else most


def _found(name: str, seeds: Iterable[int]) -> Iterator[tuple[int, str]]:
    """The seeds whose schedules find a mutation that is in place, and the failures."""
    kind = MUTATIONS[name][2]
    for seed in seeds:
        failed = failure_in(kind(seed))
        if failed is not None and "ViolationError" in failed:
            yield seed, failed
        if failed is not None and "TypeError" in failed:
            raise AssertionError(f"{name} no longer fits what it replaces: {failed}")


def digest_of(seed: int) -> str:
    """A digest of all steps of a seed, and of the items at the end."""
    digests = []
    for schedule in schedules_of(seed):
        schedule.run()
        digests.append(schedule.digest())
    return " ".join(digests)


@contextmanager
def processes() -> Iterator[ProcessPoolExecutor]:
    """At most two new processes, each with a hash seed of its own."""
    most = min(PROCESSES_MAX, os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(most, context, _stay_on_one_cpu, (context.Value("i", 0),)) as pool:
        yield pool


def _stay_on_one_cpu(started: Synchronized[int]) -> None:
    """Keep a process on one CPU, where it can be done: its threads run one at a time, and take turns faster there."""
    with started.get_lock():
        number, started.value = started.value, started.value + 1
    if hasattr(os, "sched_setaffinity"):
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[number % len(cpus)]})


def outcomes(seeds: Sequence[int]) -> Iterator[tuple[str | None, Counter[Cell]]]:
    """Of each seed None, or its failure; and the faults that struck each step."""
    with processes() as pool:
        yield from pool.map(outcome_of, seeds, chunksize=AT_ONCE)
