"""One jar for all patch versions of Spark 3.5, and on each the run that the extension reads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.namespaces import read_record
from dynastate.settings import Settings
from tests.spark.test_open_state import namespace_of
from tests.upstream.maven import jars
from tests.upstream.spark_suites import classpath, java_command

SPARK = "3.5"


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("version", [f"{SPARK}.{patch}" for patch in range(10)])
def test_tables_have_the_run_on_each_patch_version(version: str, database: Settings, tmp_path: Path) -> None:
    """The record of the namespace has both runs, and the second one continues with the state of the first."""
    _, *ours_and_libraries = classpath(SPARK)
    others = [jar for jar in ours_and_libraries if not jar.name.startswith("spark-")]
    modules = sorted(jars("spark-3.5-modules", version).glob("*.jar"))
    source, temporary, checkpoint = (tmp_path / each for each in ("input", "tmp", "checkpoint"))
    source.mkdir()
    temporary.mkdir()
    options = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2", "java.io.tmpdir": str(temporary)}
    command = java_command([*modules, *others], database, options)
    command += ["org.apache.spark.sql.dynastate.upstream.TwoRuns", str(source), str(checkpoint)]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    found, first, second, counts = completed.stdout.split()
    assert (found, counts) == (version, "a=1,b=2")
    tables = BotoTables(database)
    try:
        record = read_record(tables, namespace_of(checkpoint))
    finally:
        tables.close()
    assert record is not None
    assert sorted(record.epochs) == sorted([first, second])
