"""`make sim SEED=17 RUNS=1000`: run schedules from a seed on; a single one prints all its steps."""

from __future__ import annotations

import sys
import time

from tests.simulation.runs import failure_of, failures
from tests.simulation.schedule import Schedule


def main(seed: int, runs: int) -> int:
    """Run schedules. The exit code is 1 if one failed."""
    sys.stdout.write(f"SEED={seed} RUNS={runs}\n")
    if runs == 1:
        failed = failure_of(seed, steps=0)
        if failed is None:
            schedule = Schedule(seed)
            schedule.run()
            sys.stdout.write("\n".join([*schedule.journal(), "", str(schedule), "no violation", ""]))
        else:
            sys.stdout.write(f"{failed}\n")
        return failed is not None
    begun, count = time.monotonic(), 0
    for failed in failures(range(seed, seed + runs)):
        count += 1
        sys.stdout.write(f"{failed}\n\n")
    sys.stdout.write(f"{runs} schedules in {time.monotonic() - begun:.0f} s, {count} failed\n")
    return count > 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
