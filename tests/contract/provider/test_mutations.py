"""Each mutation of the provider is found, by a history or by a check within the JVM."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.contract.provider.conftest import Programs
from tests.contract.provider.mutations import MUTATIONS, compile_all
from tests.contract.provider.test_histories import play
from tests.support.jvm import ROOT, build_jar, java_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def mutants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By mutation, the folder of its classes."""
    build_jar()
    return compile_all(tmp_path_factory.mktemp("mutants"))


@pytest.mark.parametrize("name", [name for name, mutation in MUTATIONS.items() if mutation.check is None])
def test_history_finds_mutation(name: str, mutants: dict[str, Path], programs: Programs, tmp_path: Path) -> None:
    """The history of the known seed, which is one of those of every run, differs from the model."""
    seed = MUTATIONS[name].seed
    code, output = play(programs, tmp_path, [seed], lambda command: before_others(command, mutants[name]))
    assert code == 1, output
    assert f"failed\t{seed}\t" in output


@pytest.mark.parametrize("name", [name for name, mutation in MUTATIONS.items() if mutation.check is not None])
def test_check_finds_mutation(name: str, mutants: dict[str, Path], environment: dict[str, str], tmp_path: Path) -> None:
    """The check in `tests/spark/scala` fails; `test_jvm.py` shows that it passes without the mutation."""
    check = MUTATIONS[name].check
    words = ["endpoint=", "python=", f"vectors={ROOT / 'tests' / 'vectors'}", f"scratch={tmp_path}", "seed=1"]
    command = java_command("io.dynastate.tests.Main", tmp_path, [*words, "only=memory", f"named={check}"])
    completed = subprocess.run(
        before_others(command, mutants[name]), env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    assert [line.split("\t")[:2] for line in completed.stdout.splitlines()[1:]] == [["failed", check]], completed.stdout


def before_others(command: list[str], classes: Path) -> list[str]:
    """A command of java that finds these classes first."""
    position = command.index("-cp") + 1
    return [*command[:position], f"{classes}{os.pathsep}{command[position]}", *command[position + 1 :]]
