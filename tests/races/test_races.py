"""Readers beside folds, under jcstress, for a few seconds each; `make jcstress` runs it for longer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.harness import harness_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: One kind of JVM, once.
SHORT = ["-jvmArgs", "-XX:+UseG1GC -Xmx2g", "-sc", "false", "-f", "1", "-fsm", "0", "-iters", "1", "-time", "200"]


def test_a_version_stays_as_it_was_made_beside_folds(tmp_path: Path) -> None:
    """Gets and iterators of versions, on the heap and on disk, see no row of another version, and no torn one."""
    command = harness_command("jcstress", Path(__file__).parent, [*SHORT, "-r", str(tmp_path)])
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500)
    assert completed.returncode == 0, completed.stdout[-5000:] + completed.stderr
