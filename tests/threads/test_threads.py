"""Threads of the provider under Lincheck's scheduler, for some seconds each; `make threads` tries more schedules."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.contract.provider.mutations import compile_all
from tests.support.harness import harness_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Of each mutation, the scenario whose schedules find it.
FOUND_BY = {
    "a page on disk is released while one iterator reads it": "iterate beside folds",
    "the key stream on disk is the same for each page": "write pages at once",
}


@pytest.fixture(scope="module")
def mutants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By mutation, the folder of its classes."""
    return compile_all(tmp_path_factory.mktemp("mutants"))


def play(folder: Path, seconds: int, *scenarios: str, mutant: Path | None = None) -> tuple[int, str]:
    """Try schedules of scenarios, of all if none is given. Returns the exit code and the output."""
    command = harness_command("lincheck", Path(__file__).parent, [str(seconds), *scenarios], mutant)
    command.insert(1, f"-Djava.io.tmpdir={folder}")
    completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=500)
    return completed.returncode, completed.stdout + completed.stderr[-5_000:]


def test_no_schedule_fails(tmp_path: Path) -> None:
    """Some schedules of each scenario, those with the fewest switches first."""
    code, output = play(tmp_path, 5)
    assert code == 0, output
    tried = {name: int(schedules) for name, schedules in re.findall(r"^passed\t(.*)\t(.*)\t.*$", output, re.MULTILINE)}
    assert set(FOUND_BY.values()) <= set(tried)
    assert min(tried.values()) > 1, output


@pytest.mark.parametrize("name", FOUND_BY)
def test_a_schedule_finds_mutation(name: str, mutants: dict[str, Path], tmp_path: Path) -> None:
    """A defect that a reader of the provider planted is found within a minute."""
    code, output = play(tmp_path, 60, FOUND_BY[name], mutant=mutants[name])
    assert code == 1, output
    assert f"failed\t{FOUND_BY[name]}\t" in output
