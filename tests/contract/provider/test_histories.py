"""Random histories of the provider on real parts, each from a seed; scala/Histories.scala plays them.

Each run plays a new seed, and `make test-rest` six known ones. `make histories SEED=17 RUNS=100` plays others.
A failure prints the command that plays its history alone, and then shows all of its steps.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.contract.provider.conftest import Programs

#: Known histories, with each tier.
KNOWN = range(1, 7)
#: Far more than a history takes, also on a busy machine.
HISTORY_DEADLINE_S = 60
SEED = int(os.environ.get("DYNASTATE_SEED", "0"))
#: So many from that seed on, in place of the others; 0: not asked for.
RUNS = int(os.environ.get("DYNASTATE_HISTORIES", "0"))
pytestmark = pytest.mark.timeout(300 + max(RUNS, len(KNOWN)) * HISTORY_DEADLINE_S)


def new_seeds() -> Sequence[int]:
    first = SEED if RUNS > 0 else random.SystemRandom().randrange(10**6, 10**9)
    return range(first, first + max(RUNS, 1))


def play(
    programs: Programs, folder: Path, seeds: Sequence[int], change: Callable[[list[str]], list[str]] = list
) -> tuple[int, str]:
    """Play histories up to the first that fails, by a command that may be changed; exit code, and what was printed."""
    command = programs.command("Histories", f"root={folder.as_uri()}", f"seeds={','.join(map(str, seeds))}")
    completed = programs.run(change(command), folder / "log", 200 + len(seeds) * HISTORY_DEADLINE_S)
    return completed.returncode, completed.stdout


@pytest.mark.parametrize("played", [new_seeds(), pytest.param(KNOWN, marks=pytest.mark.slow)], ids=["new", "known"])
def test_no_history_differs_from_the_model(programs: Programs, tmp_path: Path, played: Sequence[int]) -> None:
    """Every get, list and iterator of many stores gives what a plain model has, wherever their rows are."""
    code, output = play(programs, tmp_path, played)
    print(output)  # noqa: T201  # pytest shows it if it fails
    verdicts = [line.split("\t")[:2] for line in output.splitlines() if line.startswith(("ok\t", "failed\t"))]
    failure = next((seed for verdict, seed in verdicts if verdict == "failed"), "")
    assert code == 0, f"replay it: make histories SEED={failure or played[0]} RUNS=1\n{output[-6000:]}"
    assert verdicts == [["ok", str(seed)] for seed in played]
