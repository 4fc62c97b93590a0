"""Two drivers, in processes of their own, on one checkpoint in DynamoDB: the later one goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.operations.checkpoints import StoredCheckpoint
from dynastate.operations.lifecycle.verify_checkpoint import verify_checkpoints
from tests.spark.conftest import Database, Sessions
from tests.spark.operators import expected_sums
from tests.spark.streams import make_source
from tests.support.jvm import ROOT
from tests.support.processes import children, wait_until

#: Until a driver has started and made a batch, beside other tests.
BATCH_S = 150

Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def start(folder: Path, database: Database, environment: dict[str, str]) -> Iterator[Start]:
    """Start a driver whose rows go into a folder of this name."""
    with ExitStack() as stack:

        def start(name: str) -> subprocess.Popen[bytes]:
            (folder / name).mkdir()
            words = [sys.executable, "-m", "tests.spark.programs.driver", str(folder), database.endpoint]
            words += [f"dynastate://{folder.name}/query", str(folder / name)]
            program = subprocess.Popen(words, cwd=ROOT, env=environment | {"PYSPARK_PYTHON": sys.executable})
            stack.callback(program.wait)
            stack.callback(program.kill)
            return program

        yield start


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_later_driver_goes_on(start: Start, sessions: Sessions, tables: BotoTables, folder: Path) -> None:
    """A driver that was paused, as of a machine that is lost for a while, is refused its next batch."""
    checkpoint = StoredCheckpoint(tables, f"dynastate://{folder.name}/query")
    source = make_source(folder / "files", seed=11, files=4)

    def wait_for_batch(batch: int) -> None:
        wait_until(lambda: batch in checkpoint.batches("commits"), f"batch {batch} is not committed", BATCH_S)

    source.release(2)
    first = start("first")
    wait_for_batch(1)
    (jvm,) = children(first.pid)
    os.kill(jvm, signal.SIGSTOP)
    source.release(3)
    second = start("second")
    wait_for_batch(2)
    os.kill(jvm, signal.SIGCONT)
    assert first.wait(BATCH_S) == 0
    error = (folder / "first" / "error").read_text()
    assert "Multiple streaming queries are concurrently using" in error
    source.release(4)
    wait_for_batch(3)
    (folder / "stop").touch()
    assert second.wait(BATCH_S) == 0

    rows = {
        name: sorted(path.name for path in (folder / name).iterdir() if path.is_file()) for name in ("first", "second")
    }
    assert rows == {"first": ["0", "1", "error"], "second": ["2", "3"]}
    assert (folder / "second" / "3").read_text() == repr(expected_sums(sessions({}), source))
    (report,) = verify_checkpoints(tables, folder.name)
    assert (report.batches, report.findings) == ((0, 1, 2, 3), ())
