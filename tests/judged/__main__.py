"""`make judged SEED=17 RUNS=10`: play the histories of so many seeds from one on, and judge them.

`python -m tests.judged SEED RUNS MUTATION` does so with sidecars that are mutated.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from dynastate.dynamodb.embedded import BUCKET, EmbeddedDynamoDB
from tests.judged.judging import FOLDER, build_judge, judge
from tests.judged.play import play


def main(seed: int, runs: int, mutation: str = "") -> int:
    """Play and judge histories. The exit code is 1 if one is not explained."""
    program, convicted, start_s = build_judge(), 0, time.monotonic()
    calls, faults = Counter[str](), Counter[str]()
    sys.stdout.write(f"SEED={seed} RUNS={runs} {mutation}\n")
    with EmbeddedDynamoDB() as embedded:
        s3 = replace(embedded.settings, objects=f"s3://{BUCKET}")
        for number in range(seed, seed + runs):
            with tempfile.TemporaryDirectory() as folder:
                history = play(number, Path(folder) / "dynamodb", s3, mutation)
            path = FOLDER / f"{mutation or 'history'}-{number}.jsonl"
            history.record.write(path)
            calls += history.record.counts()
            faults += history.faults()
            verdict = judge(program, path)
            convicted += verdict.is_convicted
            sys.stdout.write(verdict.text)
            sys.stdout.flush()
    for title, counts in (("calls", calls), ("requests and faults", faults)):
        sys.stdout.write(f"{title}: {', '.join(f'{number} {name}' for name, number in sorted(counts.items()))}\n")
    sys.stdout.write(f"{runs} histories in {time.monotonic() - start_s:.0f} s, {convicted} not explained\n")
    return convicted > 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
