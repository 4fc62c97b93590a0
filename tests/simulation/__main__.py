"""`make sim SEED=17 RUNS=1000`: run schedules from a seed on; a single one prints all its steps.

Several print also how often each kind of fault struck each step. `make mutations` prints for each mutation the first
seed that finds it, to write into `mutations.py`; `make mutations RATE=1000`, how many of that number of seeds find it.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

from tests.simulation.mutations import MUTATIONS
from tests.simulation.reach import Cell, table
from tests.simulation.runs import ENOUGH, failure_in, finders, first_found, outcomes, processes, schedules_of


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
    struck: Counter[Cell] = Counter()
    for failed, of_seed in outcomes(range(seed, seed + runs)):
        struck += of_seed
        if failed is not None:
            count += 1
            sys.stdout.write(f"{failed}\n\n")
    sys.stdout.write(f"{table(struck)}\n{runs} schedules in {time.monotonic() - start_s:.0f} s, {count} failed\n")
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


def rate_mutations(runs: int, names: list[str]) -> int:
    """Print which seeds below `runs` find each mutation, or these. The exit code is 1 if one is not found.

    A mutation is left after `ENOUGH` seeds have found it.
    """
    is_lost = False
    with processes() as pool:
        tasks = [(name, runs) for name in names or MUTATIONS]
        for (name, _), (seeds, tried) in zip(tasks, pool.map(finders, tasks), strict=True):
            share = f"1 in {tried / len(seeds):.0f}" if seeds else "none"
            sys.stdout.write(f"{name}: {share}, {len(seeds)} of {tried}{' enough' * (len(seeds) == ENOUGH)}: {seeds}\n")
            sys.stdout.flush()
            is_lost |= not seeds
    return is_lost


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["mutations"]:
            sys.exit(find_mutations())
        case ["mutations", "--rate", runs, *names]:
            sys.exit(rate_mutations(int(runs), names))
        case [seed, runs]:
            sys.exit(main(int(seed), int(runs)))
        case _:
            sys.exit(__doc__)
