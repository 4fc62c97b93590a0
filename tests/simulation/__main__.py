"""`make sim SEED=17 RUNS=1000`: run schedules from a seed on; a single one prints all its steps.

`make mutations` prints for each mutation the first seed that finds it, to write into `mutations.py`.
"""

from __future__ import annotations

import sys
import time

from tests.simulation.mutations import MUTATIONS
from tests.simulation.runs import failure_in, failures, first_found, processes, schedules_of


def main(seed: int, runs: int) -> int:
    """Run schedules. The exit code is 1 if one failed."""
    sys.stdout.write(f"SEED={seed} RUNS={runs}\n")
    if runs == 1:
        is_failed = False
        for schedule in schedules_of(seed):
            failed = failure_in(schedule, steps=0)
            steps = [*schedule.journal(), "", str(schedule), "no violation", ""] if failed is None else [failed, ""]
            sys.stdout.write("\n".join(steps))
            is_failed |= failed is not None
        return is_failed
    start_s, count = time.monotonic(), 0
    for failed in failures(range(seed, seed + runs)):
        count += 1
        sys.stdout.write(f"{failed}\n\n")
    sys.stdout.write(f"{runs} schedules in {time.monotonic() - start_s:.0f} s, {count} failed\n")
    return count > 0


def find_mutations() -> int:
    """Print the seeds that find the mutations. The exit code is 1 if one is not found."""
    is_lost = False
    with processes() as pool:
        for (name, (_, start, _)), (seed, _) in zip(MUTATIONS.items(), pool.map(first_found, MUTATIONS), strict=True):
            sys.stdout.write(f"{name}: {'not found' if seed < 0 else f'seed={seed}'} from seed={start} on\n")
            sys.stdout.flush()
            is_lost |= seed < 0
    return is_lost


if __name__ == "__main__":
    sys.exit(find_mutations() if sys.argv[1:] == ["mutations"] else main(*map(int, sys.argv[1:])))
