"""Queries that were begun on Spark 3.5, and continue on a newer one: on the same checkpoint and tables."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from sys import executable

import pytest

from tests.spark.conftest import Database
from tests.spark.operators import CASES, NEEDS_40
from tests.spark.programs.continued import Seen
from tests.spark.streams import make_sources
from tests.support.jvm import ROOT, SPARK

NAMES = [name for name in CASES if name not in NEEDS_40]
#: Spark itself refuses to continue it, on every store: a column of the joined rows may be null since.
REFUSED = "join, then deduplication, then windows"
NEWEST = ROOT / ".venv" / "bin" / "python"
#: The operators that continue on each Spark between: one store a partition, four, and state of a Python function.
CHOSEN = ["aggregation in update mode with a watermark", "stream-stream join, left outer", "applyInPandasWithState"]
BETWEEN = ("4.0",)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.every_spark,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(SPARK != "3.5", reason="the queries begin on Spark 3.5"),
]


def test_every_operator_continues_on_the_newest_spark(
    database: Database, environment: dict[str, str], folder: Path
) -> None:
    """With the outputs and the state of RocksDB, which goes the same way."""
    seen = take_turns(NEWEST, NAMES, database, environment, folder)
    assert [name for name, stores in seen.items() if "error" in stores["ours"]] == [REFUSED]
    assert "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE" in seen[REFUSED]["ours"]["error"][0]


@pytest.mark.parametrize("minor", BETWEEN)
def test_operators_continue_on_a_spark_between(
    database: Database, environment: dict[str, str], folder: Path, minor: str
) -> None:
    """As on the newest one. `make test-upgrade` makes the environments that this needs."""
    interpreter = ROOT / "build" / f"spark-{minor}" / "bin" / "python"
    if not (ROOT / "build" / f"spark-{minor}" / ".ready").is_file():
        pytest.skip(f"no environment of Spark {minor}; run make test-upgrade")
    seen = take_turns(interpreter, CHOSEN, database, environment, folder)
    assert not [name for name, stores in seen.items() if "error" in stores["ours"]]


def take_turns(
    interpreter: Path, names: Sequence[str], database: Database, environment: dict[str, str], folder: Path
) -> Seen:
    """Run queries up to two of four files on this Spark, and the rest on that of another Python."""
    sources = [make_sources(folder / str(number), seed=11, files=4) for number in range(len(names))]
    for python, files in ((executable, 1), (executable, 2), (str(interpreter), 4)):
        for each in sources:
            each.release(files)
        seen = take_turn(python, names, database, environment, folder)
        for name, stores in seen.items():
            assert stores["ours"] == stores["rocksdb"] != {}, f"{name}, files up to {files}"
    return seen


def take_turn(
    interpreter: str, names: Sequence[str], database: Database, environment: dict[str, str], folder: Path
) -> Seen:
    command = [interpreter, "-m", "tests.spark.programs.continued", str(folder), database.endpoint, *names]
    variables = environment | {"PYSPARK_PYTHON": interpreter, "PYTHONPATH": str(ROOT)}
    completed = subprocess.run(
        command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert completed.returncode == 0, completed.stderr[-4000:]
    seen: Seen = json.loads(completed.stdout.splitlines()[-1])
    return seen
