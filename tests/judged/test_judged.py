"""Histories of real sidecars on dynoxide, over a network with faults, judged by porcupine; and the judge, tried.

The first one is of a new seed each time. `make judged` plays more.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dynastate.dynamodb.embedded import BUCKET, EmbeddedDynamoDB
from dynastate.settings import Settings
from tests.judged.driving import SMALL
from tests.judged.judging import Verdict, build_judge, judge
from tests.judged.play import play

#: What breaks the sidecars that the judge convicts, in one of a few histories.
MUTATION, HISTORIES_MAX = "skips_inline_changes", 4
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def judge_program() -> Path:
    if shutil.which("go") is None:
        assert not os.environ.get("CI"), "Go is missing, which builds the judge"
        pytest.skip("Go is missing, which builds the judge")
    return build_judge()


@pytest.fixture(scope="module")
def s3(embedded: EmbeddedDynamoDB) -> Settings:
    return replace(embedded.settings, objects=f"s3://{BUCKET}")


def _judged(program: Path, folder: Path, s3: Settings, seed: int, mutation: str = "") -> Verdict:
    folder.mkdir(exist_ok=True)
    history = play(seed, folder / "dynamodb", s3, mutation, SMALL)
    assert {"commit ok", "open ok"} <= set(history.record.counts())
    history.record.write(folder / f"{mutation or 'history'}-{seed}.jsonl")
    return judge(program, folder / f"{mutation or 'history'}-{seed}.jsonl")


def test_an_order_of_the_calls_explains_a_history(judge_program: Path, tmp_path: Path, s3: Settings) -> None:
    """Whatever is killed, stopped, lost and late: versions are registers, and rows a function of their attempt."""
    seed = int(os.environ.get("DYNASTATE_SEED", "0")) or random.SystemRandom().randrange(10**6, 10**9)
    verdict = _judged(judge_program, tmp_path, s3, seed)
    assert not verdict.is_convicted, f"try it again: make judged SEED={seed} RUNS=1\n{verdict.text}"


def test_the_judge_convicts_a_mutation(judge_program: Path, tmp_path: Path, s3: Settings) -> None:
    """In one of a few histories: a part of them may not reach what is broken."""
    verdicts = (
        _judged(judge_program, tmp_path / str(seed), s3, seed, MUTATION) for seed in range(1, 1 + HISTORIES_MAX)
    )
    verdict = next((each for each in verdicts if each.is_convicted), None)
    assert verdict is not None, f"no history convicts {MUTATION}"
    assert "no order explains these calls; picture: " in verdict.text
    assert " open judged/0/" in verdict.text
