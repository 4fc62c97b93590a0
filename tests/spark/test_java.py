"""The other Javas of this machine: all other tests run on one, the Java that Spark finds by itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dynastate.settings import PREFIX
from tests.spark.conftest import Database
from tests.spark.test_configure import Submit, documented, expected, submit  # noqa: F401  # fixtures

#: Versions that docs/spark-versions.md says are tried, where a machine has them.
TRIED = (17, 21, 25)
#: Where Debian, Red Hat and Temurin install.
FOLDERS = ("/usr/lib/jvm", "/opt/java", "/opt")


def version_of(home: Path) -> int:
    """Major version of the Java in a folder; 0: there is none."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return 0
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', output)
    return int(match.group(1)) if match else 0


@cache
def usual() -> int:
    """The Java that Spark finds by itself: that of JAVA_HOME, or on the PATH."""
    path = shutil.which("java")
    home = os.environ.get("JAVA_HOME") or (path and Path(path).resolve().parents[1])
    return version_of(Path(home)) if home else 0


@cache
def javas() -> dict[int, Path]:
    """A folder of each Java of this machine."""
    homes = sorted(home for folder in FOLDERS for home in Path(folder).glob("*"))
    return {version: home for home in homes if (version := version_of(home))}


@pytest.mark.slow
@pytest.mark.parametrize("version", TRIED)
def test_queries_on_another_java(
    version: int,
    expected: list[list[object]],  # noqa: F811
    submit: Submit,  # noqa: F811
    database: Database,
    spark: SparkSession,
) -> None:
    """An aggregation and a transformWithState keep their state, in memory and beyond it, on each Java that is here."""
    if version == usual():
        pytest.skip(f"all other tests run on Java {version}")
    if version not in javas():
        pytest.skip(f"no Java {version} is on this machine; it has {', '.join(map(str, sorted(javas()))) or 'none'}")
    ours = {"endpoint": database.endpoint, "region": database.settings.region, "memoryMb": "1"}
    conf = " ".join(f"--conf {PREFIX}{name}={value}" for name, value in ours.items())
    options = re.sub(rf"--conf {re.escape(PREFIX)}\S+", "", documented())
    on_java = replace(submit, environment=submit.environment | {"JAVA_HOME": str(javas()[version])})
    answer = on_java("submitted.py", f"{options} {conf}")
    assert answer["java"] == version
    for query in ("sums", "running"):
        assert sorted(answer[query]["rows"], key=repr) == expected
        assert answer[query]["metrics"]["dynastateRequests"] > 0
