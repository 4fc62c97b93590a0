"""JVMs of the tests that run without a Spark session."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark

from dynastate.spark import jar_path

ROOT = Path(__file__).resolve().parents[1]
#: The minor version of the Spark that the tests run on.
SPARK = ".".join(pyspark.__version__.split(".")[:2])
LOG4J = ROOT / "tests" / "log4j2.properties"
#: What Spark's launcher passes (org.apache.spark.launcher.JavaModuleOptions), as far as state stores need it.
OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)


def tests_jar(name: str) -> Path:
    """Where the jar of the tests' own Scala lies."""
    return ROOT / "build" / f"{name}-{SPARK}.jar"


def build_jar(sources: Path, name: str) -> Path:
    """Build a jar of the tests' own Scala for this Spark, and the bridge's jar, unless both are up to date."""
    jar = tests_jar(name)
    trees = [str(sources), "tests/later/scala"]
    command = [sys.executable, "jvm-bridge/build.py", "--sources", *trees, "--jar", str(jar)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return jar


def java_command(jar: Path, main: str, temporary: Path, arguments: Sequence[str], *options: str) -> list[str]:
    """The command line of a main class, with the bridge and Spark at hand, and `temporary` as its java.io.tmpdir."""
    classes = os.pathsep.join([str(jar), str(jar_path()), str(Path(pyspark.__file__).parent / "jars" / "*")])
    own = ["-Xmx1g", "-XX:-UsePerfData", f"-Djava.io.tmpdir={temporary}", f"-Dlog4j2.configurationFile={LOG4J}"]
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    return ["java", *own, *options, *opened, "-cp", classes, main, *arguments]
