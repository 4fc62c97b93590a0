"""Compile the Scala bridge with the compiler that is among pyspark's own jars, and pack it into one jar.

    python jvm-bridge/build.py                            the bridge, into src/dynastate/jars/
    python jvm-bridge/build.py --sources DIR --jar FILE   another Scala tree that stands on it (tests, benchmarks)

Nothing but Java 17 and an installed pyspark is needed: no Maven, no sbt, no download. A jar that is newer
than all its sources is left alone.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
BRIDGE = ROOT / "jvm-bridge" / "src" / "main" / "scala"
SPARK_MINOR = "4.3"
#: Zip entries carry one fixed time, so that the same sources give the same jar.
EPOCH = (2026, 1, 1, 0, 0, 0)


def fail(message: str) -> NoReturn:
    sys.exit(f"dynastate: {message}")


def java() -> str:
    """The java command, once it is known to be version 17 or newer."""
    command = shutil.which("java")
    if command is None:
        fail("Java is missing; install a JDK or JRE 17 or 21 (Debian: apt-get install openjdk-17-jre-headless)")
    answer = subprocess.run([command, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', answer.stderr)
    if found is None or int(found.group(1)) < 17:
        fail(f"Java 17 or newer is needed, found {answer.stderr.splitlines()[:1]}; install openjdk-17-jre-headless")
    return str(command)


def pyspark_jars() -> Path:
    """The folder of pyspark's jars, once it is known to be a Spark this source tree compiles against."""
    try:
        import pyspark
    except ImportError:
        fail(f"pyspark is missing; run 'make setup', or pip install 'pyspark=={SPARK_MINOR}.*'")
    if not pyspark.__version__.startswith(SPARK_MINOR + "."):
        fail(f"pyspark {pyspark.__version__} is installed; the bridge needs pip install 'pyspark=={SPARK_MINOR}.*'")
    return Path(pyspark.__file__).parent / "jars"


def package_version() -> str:
    """The one place the version stands in: src/dynastate/__init__.py."""
    text = (ROOT / "src" / "dynastate" / "__init__.py").read_text()
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        fail("src/dynastate/__init__.py holds no __version__ line")
    return str(found.group(1))


def bridge_jar() -> Path:
    return ROOT / "src" / "dynastate" / "jars" / f"dynastate-spark-{SPARK_MINOR}_2.13-{package_version()}.jar"


def compile_to(jar: Path, sources: Path, extra_classpath: list[Path], resources: dict[str, str]) -> bool:
    """Compile every .scala file under sources into jar; False when the jar was up to date."""
    files = sorted(sources.rglob("*.scala"))
    if not files:
        fail(f"no .scala file under {sources}")
    inputs = [*files, *extra_classpath, Path(__file__), ROOT / "src" / "dynastate" / "__init__.py"]
    if jar.exists() and all(jar.stat().st_mtime >= source.stat().st_mtime for source in inputs):
        return False
    classpath = ":".join([f"{pyspark_jars()}/*", *map(str, extra_classpath)])
    with tempfile.TemporaryDirectory(prefix="dynastate-build-") as scratch:
        command = [java(), "-Xss8m", "-cp", classpath, "scala.tools.nsc.Main", "-usejavacp"]
        command += ["-deprecation", "-feature", "-Xlint:infer-any,missing-interpolator", "-Werror", "-release", "17"]
        command += ["-d", scratch, *map(str, files)]
        if subprocess.run(command, check=False).returncode != 0:
            fail(f"the Scala compiler refused {sources.relative_to(ROOT)}; its messages stand above")
        jar.parent.mkdir(parents=True, exist_ok=True)
        partial = jar.with_suffix(".partial")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in sorted(resources.items()):
                archive.writestr(zipfile.ZipInfo(name, EPOCH), text)
            for file in sorted(Path(scratch).rglob("*.class")):
                entry = zipfile.ZipInfo(file.relative_to(scratch).as_posix(), EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, file.read_bytes())
        partial.replace(jar)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, help="a Scala tree that stands on the bridge")
    parser.add_argument("--jar", type=Path, help="where its jar goes")
    parser.add_argument("--check-java", action="store_true", help="only say whether a usable Java is installed")
    given = parser.parse_args()
    if given.check_java:
        java()
        return
    if (given.sources is None) != (given.jar is None):
        parser.error("--sources and --jar go together")
    bridge = bridge_jar()
    built = compile_to(bridge, BRIDGE, [], {"dynastate-version.txt": package_version()})
    if built:
        for old in bridge.parent.glob("*.jar"):
            if old != bridge:
                old.unlink()
    print(("built " if built else "up to date: ") + str(bridge.relative_to(ROOT)))
    if given.sources is not None:
        jar = given.jar.resolve()
        built = compile_to(jar, given.sources.resolve(), [bridge], {})
        print(("built " if built else "up to date: ") + str(given.jar))


if __name__ == "__main__":
    main()
