"""Compile the Scala bridge with the compiler among pyspark's own jars, and pack it into one jar.

    python jvm-bridge/build.py                            the bridge for the pyspark here, into src/dynastate/jars/
    python jvm-bridge/build.py --sources DIR --jar FILE   other Scala trees that use it (tests, benchmarks)
    python jvm-bridge/build.py --all                      the bridge for every Spark in SPARKS
    python jvm-bridge/build.py --fetch 4.1                pyspark in an environment of its own, build/spark-4.1/
    python jvm-bridge/build.py --next                     print the version of the next pyspark, if there is one
    python jvm-bridge/build.py --install PYTHON OPTION... packages into the environment of an interpreter, by uv

Nothing but Java 17 and an installed pyspark is needed: no Maven, no sbt. `--all` and `--fetch` download what is
missing of the other pysparks, 430 MB each, once. A jar that is newer than all its sources is not built again.

All minors of Spark share one tree. Where they differ, folders of `shims` beside it say which minors take them:
`since-4.2`, `before-4.2`, `since-4.2-before-4.3`. The same holds for the trees of `--sources`. Transfers of state
have a tree of their own, which no minor before 4.3 takes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "jvm-bridge" / "src"
ENVIRONMENTS = ROOT / "build"
#: The supported minors of Spark, and the version with which each jar is compiled.
SPARKS = {"3.5": "3.5.9", "4.0": "4.0.5", "4.1": "4.1.4", "4.2": "4.2.1", "4.3": "4.3.0"}
#: The trees of the bridge, and the first minor that takes each.
BRIDGE = {SOURCES / "main" / "scala": "3.5", SOURCES / "transfer" / "scala": "4.3"}
#: The Scala of PySpark's jars, for minors that have another than 2.13.
SCALA = {"3.5": "2.12"}
#: Zip entries carry one fixed time, so that the same sources give the same jar.
EPOCH = (2026, 1, 1, 0, 0, 0)


def fail(message: str) -> NoReturn:
    sys.exit(f"dynastate: {message}")


def java() -> str:
    """The java command, of version 17 or newer."""
    home = os.environ.get("JAVA_HOME")  # as Spark does
    command = shutil.which("java", path=f"{home}/bin" if home else None)
    if command is None:
        place = home or "PATH"
        fail(f"no Java in {place}; install a JDK or JRE 17, 21 or 25 (Debian: apt-get install openjdk-17-jre-headless)")
    answer = subprocess.run([command, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', answer.stderr)
    if match is None or int(match.group(1)) < 17:
        fail(f"Java 17 or newer is needed, found {answer.stderr.splitlines()[:1]}; install openjdk-17-jre-headless")
    return str(command)


def pyspark() -> tuple[str, Path]:
    """Minor version of the installed pyspark, if it is supported or newer, and the folder of its jars."""
    try:
        import pyspark
    except ImportError:
        fail("pyspark is missing; run 'make setup', or pip install pyspark")
    minor = ".".join(pyspark.__version__.split(".")[:2])
    if minor not in SPARKS and number(minor) < number(newest()):
        fail(f"pyspark {pyspark.__version__} is installed; the bridge is for Spark {', '.join(SPARKS)}")
    return minor, Path(pyspark.__file__).parent / "jars"


def fetch(spark: str) -> Path:
    """The interpreter of an environment with one pyspark, such as 4.1 or 4.0.1; downloads it if it is missing."""
    version = SPARKS.get(spark, spark)
    folder = ENVIRONMENTS / f"spark-{spark}"
    interpreter = folder / "bin" / "python"
    if not list(folder.glob(f"lib/python*/site-packages/pyspark-{version}.dist-info")):
        print(f"installing pyspark {version} into {folder.relative_to(ROOT)} (once; 430 MB)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        install(interpreter, f"pyspark=={version}")
    return interpreter


def newest() -> str:
    """The newest supported minor."""
    return list(SPARKS)[-1]


def next_spark() -> str | None:
    """The newest pyspark of the registry that runs on this Python, pre-releases included, if it is not supported."""
    version = SPARKS[newest()]
    command = ["pip", "compile", "--prerelease", "allow", "--no-deps", "--no-header", "--no-annotate", "-"]
    resolved = uv(*command, "--python", sys.executable, requirement=f"pyspark>={version}").strip()
    return None if resolved == f"pyspark=={version}" else resolved.removeprefix("pyspark==")


def install(interpreter: Path | str, *options: str) -> None:
    """Install packages into the environment of an interpreter. The options are those of `pip install`.

    uv does it in a fifth of pip's time. Its cache is not used: it would hold 3.5 GB after all Sparks.
    """
    uv("pip", "install", "--no-cache", "--python", str(interpreter), *options)


def uv(*arguments: str, requirement: str = "") -> str:
    """Run uv, and return what it prints. It does not read pip's configuration, so it gets the index of that."""
    variables = dict(os.environ)
    if "UV_DEFAULT_INDEX" not in variables:
        command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
        setting = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        index = variables.get("PIP_INDEX_URL") or setting
        variables |= {"UV_DEFAULT_INDEX": index} if index else {}
    command = [sys.executable, "-m", "uv", *arguments, "--quiet"]
    done = subprocess.run(command, env=variables, input=requirement, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        fail(f"uv failed at {' '.join(arguments)}; its message is above")
    return done.stdout


def package_version() -> str:
    """The version, from its only place: src/dynastate/version.py."""
    text = (ROOT / "src" / "dynastate" / "version.py").read_text()
    version = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if version is None:
        fail("src/dynastate/version.py holds no __version__ line")
    return str(version.group(1))


def scala(minor: str) -> str:
    return SCALA.get(minor, "2.13")


def artifact(minor: str) -> str:
    """Name of the bridge for a minor of Spark, as Maven's repositories have it."""
    return f"dynastate-spark-{minor}_{scala(minor)}"


def bridge_jar(minor: str) -> Path:
    return ROOT / "src" / "dynastate" / "jars" / f"{artifact(minor)}-{package_version()}.jar"


def is_for(folder: Path, minor: str) -> bool:
    """Whether a minor of Spark takes a folder of shims, by the folder's name."""
    bounds = re.fullmatch(r"(?:since-([\d.]+))?-?(?:before-([\d.]+))?", folder.name)
    if bounds is None:
        fail(f"{folder} must be named since-X, before-Y or since-X-before-Y")

    since, limit = bounds.groups()
    return (not since or number(since) <= number(minor)) and (not limit or number(minor) < number(limit))


def number(version: str) -> list[int]:
    return [int(each) for each in version.split(".")]


def bridge_trees(minor: str) -> list[Path]:
    return [tree for tree, since in BRIDGE.items() if number(since) <= number(minor)]


def sources_of(trees: list[Path], minor: str) -> list[tuple[str, Path]]:
    """The .scala files of trees for a minor of Spark, shims among them, each with its path from the tree."""
    shims = [folder for tree in trees for folder in tree.parent.glob("shims/*") if is_for(folder, minor)]
    sources = [(file, folder) for folder in [*trees, *shims] for file in folder.rglob("*.scala")]
    return [(file.relative_to(folder).as_posix(), file) for file, folder in sorted(sources)]


def pack(path: Path, contents: Mapping[str, bytes]) -> None:
    """Make a zip file whose bytes depend on its contents only, in place of the one before."""
    partial = path.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w") as archive:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    partial.replace(path)


def compile_to(jar: Path, sources: list[Path], extra_classpath: list[Path], resources: dict[str, str]) -> bool:
    """Compile the .scala files of trees for the installed pyspark; False when the jar was up to date."""
    minor, spark_jars = pyspark()
    files = [file for _, file in sources_of(sources, minor)]
    if not files:
        fail(f"no .scala file under {', '.join(map(str, sources))}")
    inputs = [*files, *extra_classpath, Path(__file__), ROOT / "src" / "dynastate" / "version.py"]
    if jar.exists() and all(jar.stat().st_mtime >= source.stat().st_mtime for source in inputs):
        return False
    classpath = ":".join([f"{spark_jars}/*", *map(str, extra_classpath)])
    with tempfile.TemporaryDirectory(prefix="dynastate-build-") as scratch:
        # Without the second compiler of the JVM, whose code comes too late: less than half the CPU.
        command = [java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xss8m", "-cp", classpath]
        command += ["scala.tools.nsc.Main", "-usejavacp"]
        command += ["-deprecation", "-feature", "-Xlint:infer-any,missing-interpolator", "-Werror", "-release", "17"]
        command += ["-d", scratch, *map(str, files)]
        if subprocess.run(command, check=False).returncode != 0:
            fail(f"the Scala compiler refused {jar.name} for Spark {minor}; its messages are above")
        jar.parent.mkdir(parents=True, exist_ok=True)
        classes = {
            file.relative_to(scratch).as_posix(): file.read_bytes() for file in sorted(Path(scratch).rglob("*.class"))
        }
        pack(jar, {name: text.encode() for name, text in resources.items()} | classes)
    return True


def each_spark(command: list[str]) -> None:
    """Run a script with the interpreter of every Spark in SPARKS."""
    for spark in SPARKS:
        interpreter = sys.executable if spark == pyspark()[0] else fetch(spark)
        if subprocess.run([interpreter, *command], check=False).returncode != 0:
            fail(f"there is no jar for Spark {spark}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, nargs="+", help="Scala trees that use the bridge")
    parser.add_argument("--jar", type=Path, help="path of their jar")
    parser.add_argument("--classpath", type=Path, nargs="+", default=[], help="what else those trees need")
    parser.add_argument("--all", action="store_true", help="the bridge for every Spark we support")
    parser.add_argument("--fetch", metavar="SPARK", help="only install this pyspark below build/")
    parser.add_argument("--next", action="store_true", help="only print the version of the next pyspark")
    parser.add_argument("--install", nargs=argparse.REMAINDER, metavar="PYTHON OPTION", help="only install packages")
    parser.add_argument("--check-java", action="store_true", help="only check whether a usable Java is installed")
    options = parser.parse_args()
    if options.check_java:
        java()
    elif options.fetch:
        fetch(options.fetch)
    elif options.next:
        print(next_spark() or "")
    elif options.install:
        install(*options.install)
    elif options.all:
        each_spark([__file__])
    elif (options.sources is None) != (options.jar is None):
        parser.error("--sources and --jar go together")
    else:
        build(options.sources, options.jar, options.classpath)


def build(sources: list[Path] | None, jar: Path | None, classpath: list[Path]) -> None:
    """Build the bridge for the installed pyspark, and the trees that use it."""
    minor, _ = pyspark()
    bridge = bridge_jar(minor)
    resources = {"META-INF/LICENSE": (ROOT / "LICENSE").read_text(), "dynastate-version.txt": package_version()}
    is_new = compile_to(bridge, bridge_trees(minor), [], resources)
    for old in set(bridge.parent.glob("*.jar")) - set(map(bridge_jar, [*SPARKS, minor])):
        old.unlink()
    print(("built " if is_new else "up to date: ") + str(bridge.relative_to(ROOT)))
    if sources is not None and jar is not None:
        is_new = compile_to(jar.resolve(), [tree.resolve() for tree in sources], [bridge, *classpath], {})
        print(("built " if is_new else "up to date: ") + str(jar))


if __name__ == "__main__":
    main()
