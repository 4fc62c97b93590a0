"""Compile and run Java sources of a harness of OpenJDK, JMH or jcstress, which generates code for them.

    python -m tests.support.harness jmh benchmarks/jmh [OPTION OF JMH ...]
    python -m tests.support.harness jcstress tests/races [OPTION OF JCSTRESS ...]

Maven fetches the harness, and a compiler that runs on a JRE.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest

from dynastate.spark.jar import jar_path
from tests.support.jvm import MODULE_OPTIONS
from tests.upstream.maven import BUILD, jars

MAIN = {"jmh": "org.openjdk.jmh.Main", "jcstress": "org.openjdk.jcstress.Main"}


def harness_command(name: str, sources: Path, options: Sequence[str]) -> list[str]:
    """Compile the sources, and return the command that runs them: with the bridge, which must be built, and Spark."""
    harness = [str(jar) for jar in sorted(jars(name).glob("*.jar"))]
    classes = BUILD / f"{name}-classes"
    shutil.rmtree(classes, ignore_errors=True)
    classes.mkdir(parents=True)
    spark = map(str, (Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    classpath = os.pathsep.join([str(classes), *harness, str(jar_path()), *spark])
    compiler = ["java", "--add-exports=java.base/sun.reflect.annotation=ALL-UNNAMED", "-cp", classpath]
    compiler += ["com.sun.tools.javac.Main", "-processorpath", os.pathsep.join(harness), "-cp", classpath]
    compiler += ["-nowarn", "-d", str(classes), *map(str, sorted(sources.glob("*.java")))]
    built = subprocess.run(compiler, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return ["java", f"@{MODULE_OPTIONS}", "-XX:+UseG1GC", "-cp", classpath, MAIN[name], *options]


def main() -> None:
    name, sources, *options = sys.argv[1:]
    try:
        command = harness_command(name, Path(sources), options)
    except (pytest.skip.Exception, pytest.fail.Exception) as missing:
        sys.exit(f"dynastate: {missing}")
    # Both leave files where they run.
    sys.exit(subprocess.run(command, cwd=BUILD, check=False).returncode)


if __name__ == "__main__":
    main()
