"""Compile and run Java sources of a harness: JMH or jcstress of OpenJDK, which generate code for them, or Lincheck.

    python -m tests.support.harness jmh benchmarks/jmh [OPTION OF JMH ...]
    python -m tests.support.harness jcstress tests/races [OPTION OF JCSTRESS ...]
    python -m tests.support.harness lincheck tests/threads SECONDS [SCENARIO ...]

Maven fetches the harness, and a compiler that runs on a JRE.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest

from dynastate.spark.jar import jar_path
from tests.support.jvm import LOG4J, MODULE_OPTIONS
from tests.upstream.maven import BUILD, jars

MAIN = {"jmh": "org.openjdk.jmh.Main", "jcstress": "org.openjdk.jcstress.Main", "lincheck": "io.dynastate.memory.Main"}


def harness_command(name: str, sources: Path, options: Sequence[str], mutants: Sequence[Path] = ()) -> list[str]:
    """Compile the sources, and return the command that runs them: with the bridge, which must be built, and Spark.

    Classes in the folders `mutants` come in the place of those of the bridge.
    """
    harness = [str(jar) for jar in sorted(jars(name).glob("*.jar"))]
    classes = BUILD / f"{name}-classes"
    shutil.rmtree(classes, ignore_errors=True)
    classes.mkdir(parents=True)
    spark = map(str, (Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    classpath = os.pathsep.join([str(classes), *harness, str(jar_path()), *spark])
    boot = [_scheduler(classes)] if name == "lincheck" else []
    compiler = ["java", "--add-exports=java.base/sun.reflect.annotation=ALL-UNNAMED", "-cp", classpath]
    compiler += ["com.sun.tools.javac.Main", "-processorpath", os.pathsep.join(harness)]
    compiler += ["-cp", os.pathsep.join([classpath, *map(str, boot)]), "-nowarn", "-d", str(classes)]
    compiler += map(str, sorted(sources.glob("*.java")))
    built = subprocess.run(compiler, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    classpath = os.pathsep.join([*map(str, mutants), classpath])
    of_java = [f"@{MODULE_OPTIONS}", "-XX:+UseG1GC", f"-Dlog4j2.configurationFile={LOG4J}"]
    # Code of the second compiler would be discarded with each class that Lincheck changes.
    of_java += [each for jar in boot for each in (f"-Xbootclasspath/a:{jar}", "-XX:TieredStopAtLevel=1")]
    return ["java", *of_java, "-cp", classpath, MAIN[name], *options]


def _scheduler(folder: Path) -> Path:
    """What Lincheck gives to the JVM's own class loader, where classes that it changes find it."""
    [agent] = jars("lincheck").glob("lincheck-jvm-agent-*.jar")
    with zipfile.ZipFile(agent) as archive:
        return Path(archive.extract("bootstrap.jar", folder))


def main() -> None:
    name, sources, *options = sys.argv[1:]
    try:
        command = harness_command(name, Path(sources), options)
    except (pytest.skip.Exception, pytest.fail.Exception) as missing:
        sys.exit(f"dynastate: {missing}")
    # They leave files where they run.
    sys.exit(subprocess.run(command, cwd=BUILD, check=False).returncode)


if __name__ == "__main__":
    main()
