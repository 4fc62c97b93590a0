"""JVMs of the tests that run without a Spark session."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest

from dynastate.spark.jar import jar_path

ROOT = Path(__file__).resolve().parents[2]
#: The minor version of the Spark that the tests run on.
SPARK = ".".join(pyspark.__version__.split(".")[:2])
#: For tests of what Spark has since 4.0.
SINCE_40 = pytest.mark.skipif(SPARK == "3.5", reason="Spark 3.5 has no transformWithState, state reader, new formats")
#: The same since 4.3.
SINCE_43 = pytest.mark.skipif(
    SPARK in ("3.5", "4.0", "4.1", "4.2"), reason="this Spark's operators remove rows at the end of a batch only"
)
#: For slow tests of the newest Spark that Spark 3.5, whose traits and checkpoints differ most, runs as well.
ALSO_ON_35 = pytest.mark.every_spark if SPARK == "3.5" else pytest.mark.slow
LOG4J = ROOT / "tests" / "log4j2.properties"
#: What Spark's launcher passes to a JVM (org.apache.spark.launcher.JavaModuleOptions), as far as state stores need it.
MODULE_OPTIONS = ROOT / "jvm-bridge" / "module.options"
#: The tests' own Scala, in one jar, because most of what the compiler takes is its start.
TESTS_JAR = ROOT / "build" / f"tests-{SPARK}.jar"
TREES = ("tests/spark/scala", "tests/contract/provider/scala", "tests/support/spark_compat/scala")


def build_jar() -> Path:
    """Build the jar of the tests' own Scala for this Spark, and the bridge's jar, unless both are up to date."""
    command = [sys.executable, "jvm-bridge/build.py", "--sources", *TREES, "--jar", str(TESTS_JAR)]
    with (ROOT / "jvm-bridge" / "build.py").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process of several builds it
        built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return TESTS_JAR


def make_repository(folder: Path, *options: str, root: Path = ROOT) -> list[str]:
    """Lay out the jar for this Spark in a Maven repository, and return the lines that tell of it: coordinates first."""
    command = [sys.executable, "jvm-bridge/maven.py", "--repository", str(folder), *options]
    with (ROOT / "jvm-bridge" / "build.py").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        completed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout.splitlines()[1:]  # the first is of the jar


def java_command(main: str, temporary: Path, arguments: Sequence[str], *options: str) -> list[str]:
    """The command line of a main class, with the bridge and Spark at hand, and `temporary` as its java.io.tmpdir."""
    classes = os.pathsep.join([str(TESTS_JAR), str(jar_path()), str(Path(pyspark.__file__).parent / "jars" / "*")])
    limits = ["-Xmx1g", "-XX:-UsePerfData", f"-Djava.io.tmpdir={temporary}", f"-Dlog4j2.configurationFile={LOG4J}"]
    return ["java", *limits, *options, f"@{MODULE_OPTIONS}", "-cp", classes, main, *arguments]
