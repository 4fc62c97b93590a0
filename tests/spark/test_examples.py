"""Programs of examples/, as their users run them: the output is that of the file beside each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.jvm import SPARK
from tests.support.pages import ROOT

EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "sandbox")
#: These run with `make test`.
FAST = ("deduplication", "session_windows")
#: The first Spark of those that do not run on 3.5.
SINCE = {"transform_with_state": "4.1", "from_rocksdb": "4.3"}
RUNS_WITHIN_S = 150


def marked(program: str) -> object:
    marks = [] if program in FAST else [pytest.mark.slow]
    since = SINCE.get(program, "3.5")
    return pytest.param(program, marks=[*marks, pytest.mark.skipif(since > SPARK, reason=f"needs Spark {since}")])


@pytest.mark.parametrize("program", [marked(program) for program in PROGRAMS])
def test_an_example(program: str, folder: Path, environment: dict[str, str]) -> None:
    """It ends by itself with the output that is beside it, and leaves neither a file nor a process."""
    temporary, here = folder / "tmp", folder / "here"
    temporary.mkdir()
    here.mkdir()
    completed = subprocess.run(
        [sys.executable, EXAMPLES / f"{program}.py"],
        capture_output=True,  # until all processes that it started have ended
        text=True,
        timeout=RUNS_WITHIN_S,
        check=False,
        cwd=here,
        env=environment | {"TMPDIR": str(temporary)},
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == (EXAMPLES / f"{program}.txt").read_text(), completed.stderr
    assert [*temporary.iterdir(), *here.iterdir()] == []


def without_pictures(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell whose pictures are replaced: a newer matplotlib draws others."""
    outputs = [
        output | {"data": output["data"] | {"image/png": "a picture"}}
        if "image/png" in output.get("data", {})
        else output
        for output in cell.get("outputs", [])
    ]
    return cell | {"outputs": outputs}


@pytest.mark.slow
def test_the_notebook(folder: Path, environment: dict[str, str]) -> None:
    """Its cells run from the first to the last, and give the outputs that are in it; one of them is a picture."""
    path = EXAMPLES / "state.ipynb"
    completed = subprocess.run(
        [sys.executable, "-m", "tests.support.notebook", path],
        capture_output=True,
        text=True,
        timeout=RUNS_WITHIN_S,
        check=False,
        cwd=ROOT,
        env=environment | {"TMPDIR": str(folder), "MPLCONFIGDIR": str(ROOT / "build" / "matplotlib")},
    )
    assert completed.returncode == 0, completed.stderr
    stored, now = (json.loads(text)["cells"] for text in (path.read_text(), completed.stdout))
    assert [*map(without_pictures, now)] == [*map(without_pictures, stored)]
    assert "a picture" in json.dumps([*map(without_pictures, stored)])
    assert list(folder.iterdir()) == []


def test_the_index_has_every_example() -> None:
    """It has the notebook, and each program with its output."""
    index = (EXAMPLES / "README.md").read_text()
    assert "[state.ipynb](state.ipynb)" in index
    for program in PROGRAMS:
        assert f"[{program}.py]({program}.py)" in index, program
        assert f"[output]({program}.txt)" in index, program
