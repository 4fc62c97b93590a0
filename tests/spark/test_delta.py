"""Stateful queries that write to Delta tables, with Delta's own exactly-once sink, killed again and again."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.spark.conftest import Database
from tests.spark.programs.to_delta import QUERIES, rows_file
from tests.spark.streams import make_source
from tests.support.jvm import ROOT, SPARK
from tests.support.processes import descendants, kill, wait_until
from tests.upstream.maven import jars

#: The minor that the Delta of tests/upstream/pom.xml is for.
DELTA_SPARK = "4.1"
FILES = 4
KILLS = 2
SEED = int(os.environ.get("DYNASTATE_SEED", "1"))
PROGRESS_WITHIN_S = 240
PROGRAM_S = 400


def commits(folder: Path) -> int:
    """Versions of all Delta tables below a folder."""
    return sum(1 for name in QUERIES for _ in (folder / name / "_delta_log").glob("*.json"))


@pytest.mark.every_spark
@pytest.mark.slow
@pytest.mark.skipif(SPARK != DELTA_SPARK, reason=f"the Delta that Maven Central has is for Spark {DELTA_SPARK}")
@pytest.mark.timeout(1_200)
def test_delta_tables_are_equal_after_kills(database: Database, environment: dict[str, str], folder: Path) -> None:
    """Each Delta table has the rows of a query on RocksDB that was not killed: none twice, and none missing."""
    print(f"seed {SEED}")  # noqa: T201  # shown when it fails
    choose = random.Random(SEED)  # noqa: S311  # test data
    delta = ",".join(map(str, sorted(jars("delta").glob("*.jar"))))
    quiet, killed = folder / "quiet", folder / "killed"
    make_source(quiet / "files", seed=SEED, files=FILES).release()
    shutil.copytree(quiet / "files", killed / "files", symlinks=True)
    words = [sys.executable, "-m", "tests.spark.programs.to_delta"]
    environment = environment | {"PYSPARK_PYTHON": sys.executable}
    subprocess.run([*words, str(quiet), delta], cwd=ROOT, env=environment, check=True, timeout=PROGRAM_S)
    command = [*words, str(killed), delta, database.endpoint]
    for _ in range(KILLS):
        with subprocess.Popen(command, cwd=ROOT, env=environment) as program:
            try:
                done = commits(killed)
                wait_until(lambda done=done: commits(killed) > done, "no batch ended", PROGRESS_WITHIN_S)  # type: ignore[misc]
                time.sleep(choose.uniform(0, 1))
                assert program.poll() is None, "the program ended before it was killed"
            finally:
                kill([program.pid, *descendants(program.pid)])
    assert commits(killed) < len(QUERIES) * FILES, "all was done before the last kill"
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=PROGRAM_S)
    for name in QUERIES:
        expected = rows_file(quiet, name).read_text()
        assert expected
        assert rows_file(killed, name).read_text() == expected, name
