"""`make judged SEED=17 RUNS=10`: play the histories of so many seeds from one on, two at once, and judge them.

`python -m tests.judged SEED RUNS MUTATION` does so with sidecars that are mutated, until one history is not explained.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Final

from dynastate.dynamodb.embedded import BUCKET, EmbeddedDynamoDB
from tests.judged.judging import Verdict, build_judge
from tests.judged.trial import play_and_judge

#: Histories that are played at once.
WORKERS: Final = 2


def main(seed: int, runs: int, mutation: str = "") -> int:
    """Play and judge histories. The exit code is 1 if one is not explained."""
    program, start_s = build_judge(), time.monotonic()
    calls, faults, verdicts = Counter[str](), Counter[str](), list[Verdict]()
    sys.stdout.write(f"SEED={seed} RUNS={runs} {mutation}\n")
    with EmbeddedDynamoDB() as embedded, ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        s3 = replace(embedded.settings, objects=f"s3://{BUCKET}")
        histories = [pool.submit(play_and_judge, program, each, s3, mutation) for each in range(seed, seed + runs)]
        for history in histories:
            judged = history.result()
            calls += judged.calls
            faults += judged.faults
            verdicts.append(judged.verdict)
            sys.stdout.write(judged.verdict.text)
            sys.stdout.flush()
            if mutation and judged.verdict.is_convicted:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    for title, counts in (("calls", calls), ("requests and faults", faults)):
        sys.stdout.write(f"{title}: {', '.join(f'{number} {name}' for name, number in sorted(counts.items()))}\n")
    convicted = sum(verdict.is_convicted for verdict in verdicts)
    seconds = time.monotonic() - start_s
    sys.stdout.write(f"{len(verdicts)} histories in {seconds:.0f} s, {convicted} not explained {mutation}\n")
    return convicted > 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
