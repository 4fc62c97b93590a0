"""Thousands of schedules, none of which may lose, invent or mix state; and engines broken on purpose, all found out.

A schedule that fails prints the command that replays it. `make sim SEED=… RUNS=…` runs others, or more of them.
"""

from __future__ import annotations

from itertools import islice

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.runs import digest_of, failure_of, failures, processes

#: CI runs the same schedules each time.
SEED = 0
RUNS = 2_000
#: Schedules that are tried until one finds that the engine is broken, from one on that did, to be quick. Where the
#: engine or the simulation changed, it may take more of them: then look for another one.
TRIES = 600
FOUND_BY: dict[str, int] = {
    "commits_before_parts_are_durable": 0,
    "drops_unprocessed_items": 3,
    "drops_unprocessed_keys": 3,
    "reads_the_first_page_only": 0,
    "takes_a_lost_answer_for_a_failure": 22,
    "passes_over_what_is_not_there": 0,
    "appends_by_reading_and_writing": 4,
    "gives_all_attempts_the_same_parts": 2,
    "aborts_what_may_be_committed": 62,
    "takes_the_last_appended": 22,
    "takes_snapshots_that_are_being_written": 0,
    "keeps_what_was_in_buckets_that_became_empty": 17,
    "cleans_up_whoever_writes_since": 58,
    "removes_parts_that_no_list_names": 30,
    "removes_buckets_that_were_carried_on": 0,
    "retains_one_version_too_few": 36,
    "removes_what_snapshots_stand_on": 1,
    "strikes_versions_without_looking": 888,
    "removes_what_forks_stand_on": 3225,
    "compacts_without_what_changed": 38,
    "follows_what_does_not_stand_on_it": 1571,
    "takes_no_epochs": 0,
}


@pytest.mark.timeout(900)
def test_no_schedule_violates_a_promise() -> None:
    """At most five that do are told, each with its last steps."""
    print(f"make sim SEED={SEED} RUNS={RUNS}")  # noqa: T201  # pytest shows it if it fails
    found = list(islice(failures(range(SEED, SEED + RUNS)), 5))
    assert not found, "\n\n".join(found)


def test_a_schedule_replays_identically() -> None:
    """Here, again, and in another process with another hash seed: the same steps, the same items in the end."""
    seeds = range(SEED, SEED + 6)
    once = [digest_of(seed) for seed in seeds]
    with processes() as pool:
        assert list(pool.map(digest_of, seeds)) == once
    assert [digest_of(seed) for seed in seeds] == once
    assert len(set(once)) == len(seeds)


@pytest.mark.parametrize("name", MUTATIONS)
def test_an_engine_that_is_broken_is_found_out(name: str) -> None:
    """One of the schedules from a known one on finds it, and says how it is replayed."""
    first = FOUND_BY[name]
    with MUTATIONS[name]():
        told = (failure_of(seed) for seed in range(first, first + TRIES))
        found = next((failed for failed in told if failed is not None), "")
    assert "ViolationError" in found
    assert "replay it: make sim SEED=" in found
