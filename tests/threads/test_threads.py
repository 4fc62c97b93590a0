"""Threads of the provider under Lincheck's scheduler, for some seconds each; `make threads` tries more schedules."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.contract.provider.mutations import MUTATIONS, Mutation, compile_all
from tests.support.harness import harness_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RELEASED: Final = "a page on disk is released while one iterator reads it"
KEY_STREAM: Final = "the key stream on disk is the same for each page"
#: By scenario, the mutation that its schedules find, and no other scenario: so one JVM has all of them.
FOUND_BY: Final = {
    "iterate beside folds": MUTATIONS[RELEASED],
    "write pages at once": Mutation(
        "memory/RowFile.scala",
        "val number = pagesWritten.incrementAndGet()",
        "val number = pagesWritten.get + 1\n      pagesWritten.set(number)",
    ),
    "get beside folds": Mutation(
        "memory/VersionTree.scala", "if (stamp != 0 && lock.validate(stamp)) hasRow", "if (stamp != 0) hasRow"
    ),
    "evict beside reads": Mutation(
        "memory/BucketCache.scala", "rows: RowTables): Unit = synchronized {", "rows: RowTables): Unit = {"
    ),
}


def play(
    folder: Path, seconds: int, scenarios: Sequence[str] = (), mutants: Sequence[Path] = ()
) -> tuple[str, set[str]]:
    """Try schedules of scenarios, of all if none is given. Returns the output, and the scenarios that failed."""
    command = harness_command("lincheck", Path(__file__).parent, [str(seconds), *scenarios], mutants)
    command.insert(1, f"-Djava.io.tmpdir={folder}")
    completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=500)
    output = completed.stdout + completed.stderr[-5_000:]
    failed = set(re.findall(r"^failed\t(.*)\t.*\t.*$", completed.stdout, re.MULTILINE))
    assert completed.returncode == int(bool(failed)), output
    return output, failed


def test_no_schedule_fails(tmp_path: Path) -> None:
    """Some schedules of each scenario, those with the fewest switches first."""
    output, failed = play(tmp_path, 2)
    assert not failed, output
    tried = dict(re.findall(r"^passed\t(.*)\t(.*)\t.*$", output, re.MULTILINE))
    assert set(tried) == set(FOUND_BY)
    assert min(map(int, tried.values())) > 1, output


def test_schedules_find_mutations(tmp_path: Path) -> None:
    """Each scenario finds, within a minute, the defect that it alone meets."""
    mutants = compile_all(tmp_path / "mutants", FOUND_BY)
    output, failed = play(tmp_path, 60, mutants=list(mutants.values()))
    assert failed == set(FOUND_BY), output


def test_a_key_stream_that_is_used_twice_is_found(tmp_path: Path) -> None:
    """It needs two pages, and no switch."""
    mutants = compile_all(tmp_path / "mutants", {KEY_STREAM: MUTATIONS[KEY_STREAM]})
    output, failed = play(tmp_path, 60, ["write pages at once"], list(mutants.values()))
    assert failed, output
