"""The judge: a program in Go with porcupine's checker of linearizability."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.jvm import ROOT

SOURCE: Final = Path(__file__).parent / "judge"
#: Programs, histories that nothing explains, and their pictures.
FOLDER: Final = ROOT / "build" / "judged"
EXPLAINED, CONVICTED = 0, 1


class Verdict(NamedTuple):
    """Whether no order of the calls explains a history, and what the judge says about it."""

    is_convicted: bool
    text: str


def build_judge() -> Path:
    """Build the judge; it needs Go, and a network once."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    program = FOLDER / "judge"
    subprocess.run(["go", "build", "-o", program, "."], cwd=SOURCE, check=True)
    return program


def judge(program: Path, history: Path) -> Verdict:
    command = [program, FOLDER, history]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode in (EXPLAINED, CONVICTED), completed.stderr
    return Verdict(completed.returncode == CONVICTED, completed.stdout)
