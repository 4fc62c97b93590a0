"""A history that is played and judged, in a process of its own."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from dynastate.settings import Settings
from tests.judged.judging import FOLDER, Verdict, judge
from tests.judged.play import play


class Judged(NamedTuple):
    """A verdict, with the calls by their outcomes, and the requests by their faults."""

    verdict: Verdict
    calls: Counter[str]
    faults: Counter[str]


def play_and_judge(program: Path, seed: int, s3: Settings, mutation: str) -> Judged:
    with tempfile.TemporaryDirectory() as folder:
        history = play(seed, Path(folder) / "dynamodb", s3, mutation)
    path = FOLDER / f"{mutation or 'history'}-{seed}.jsonl"
    history.record.write(path)
    return Judged(judge(program, path), history.record.counts(), history.faults())
