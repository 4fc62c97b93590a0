"""Queries that were begun on Spark 3.5, and continue on the newest one: on the same checkpoint and tables."""

from __future__ import annotations

import json
import subprocess
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
#: The Python of each turn, and the files up to which it goes.
TURNS = ((executable, 1), (executable, 2), (str(ROOT / ".venv" / "bin" / "python"), 4))


@pytest.mark.slow
@pytest.mark.every_spark
@pytest.mark.timeout(1200)
@pytest.mark.skipif(SPARK != "3.5", reason="the queries begin on Spark 3.5")
def test_every_operator_continues_on_the_newest_spark(
    database: Database, environment: dict[str, str], folder: Path
) -> None:
    """With the outputs and the state of RocksDB, which goes the same way."""
    sources = [make_sources(folder / str(number), seed=11, files=4) for number in range(len(NAMES))]
    for interpreter, files in TURNS:
        for each in sources:
            each.release(files)
        seen = take_turn(interpreter, database, environment, folder)
        for name, stores in seen.items():
            assert stores["ours"] == stores["rocksdb"] != {}, f"{name}, files up to {files}"
    assert [name for name, stores in seen.items() if "error" in stores["ours"]] == [REFUSED]
    assert "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE" in seen[REFUSED]["ours"]["error"][0]


def take_turn(interpreter: str, database: Database, environment: dict[str, str], folder: Path) -> Seen:
    command = [interpreter, "-m", "tests.spark.programs.continued", str(folder), database.endpoint, *NAMES]
    variables = environment | {"PYSPARK_PYTHON": interpreter, "PYTHONPATH": str(ROOT)}
    completed = subprocess.run(
        command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert completed.returncode == 0, completed.stderr[-4000:]
    seen: Seen = json.loads(completed.stdout.splitlines()[-1])
    return seen
