"""Check all Scala: its format, by scalafmt and at 120 columns, and the layers of the bridge's packages.

    python -m tests.support.scala_lint            check; print what is wrong
    python -m tests.support.scala_lint --fix      format with scalafmt, then check

Maven fetches scalafmt once. Its settings are in jvm-bridge/.scalafmt.conf.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.upstream.maven import jars

ROOT: Final = Path(__file__).resolve().parents[2]
CONFIG: Final = ROOT / "jvm-bridge" / ".scalafmt.conf"
FOLDERS: Final = ("jvm-bridge", "tests", "benchmarks")
COLUMNS: Final = 120
#: A package imports only packages below it.
LAYERS: Final = (
    "org.apache.spark.sql.dynastate",  # extensions and transfers
    "io.dynastate.checkpoint",
    "io.dynastate.spark",
    "org.apache.spark.sql.dynastate.internals",
    "org.apache.spark.sql.execution.streaming.state",  # classes that an older Spark lacks
    "io.dynastate.bridge",
    "io.dynastate.memory",
    "io.dynastate",
)
#: What these packages may import of Spark and Hadoop.
OUTSIDE: Final[dict[str, tuple[str, ...]]] = {
    "io.dynastate": (),
    "io.dynastate.memory": ("org.apache.spark.unsafe",),
    "io.dynastate.bridge": (),
}
#: What Scala 2.12 lacks, or does later: a `toSeq` of a map's values is read when it is needed, outside of a lock.
NEWER: Final = (
    r"Option\.(when|unless)\b",
    r"\.to(Int|Long|Double)Option\b",
    r"\.(max|min)(By)?Option\b",
    r"\.(distinctBy|filterInPlace|groupMap|mapInPlace|nextOption|partitionMap|updatedWith)\b",
    r"(Array|Buffer|List|Map|Seq|Set|Vector)\.from\(",
    r"\.values\.toSeq\b",
    r"\bLazyList\b",
    r"\bscala\.(jdk|util\.Using)\b",
)
_NEWER = re.compile("|".join(NEWER))
_TOKEN = re.compile(r'"""(?:.|\n)*?"""|"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*(?:.|\n)*?\*/')
_PACKAGE = re.compile(r"^package ([\w.]+)$", re.MULTILINE)
_IMPORT = re.compile(r"\bimport\s+([\w.]+)\.(\{[^}]*\}|\w+)")
_NAME = re.compile(r"(?<![\w.])(?:_root_\.)?((?:io\.dynastate|org\.apache)(?:\.\w+)+)")


def sources(root: Path) -> list[Path]:
    return sorted(file for folder in FOLDERS for file in (root / folder).rglob("*.scala"))


def long_lines(root: Path) -> list[str]:
    return [
        f"{file.relative_to(root)}:{number}: {len(line)} columns, {COLUMNS} at most"
        for file in sources(root)
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > COLUMNS
    ]


def broken_layers(root: Path) -> list[str]:
    """Imports and qualified names of the bridge that point up, or out of where a package may look."""
    lines_found = []
    for file in sorted((root / "jvm-bridge" / "src").rglob("*.scala")):
        text = _TOKEN.sub(_code, file.read_text())
        declared = _PACKAGE.search(text)
        package = declared[1] if declared else ""
        if package not in LAYERS:
            lines_found.append(f"{file.relative_to(root)}: package {package} is in no layer")
            continue
        lines_found += [
            f"{file.relative_to(root)}: {package} may not use {name}"
            for name in sorted(set(_names(text)))
            if not _is_allowed(package, name)
        ]
    return lines_found


def newer_methods(root: Path) -> list[str]:
    """Lines of the bridge's shared Scala that Scala 2.12, of Spark 3.5, does not compile, or takes otherwise."""
    bridge = root / "jvm-bridge" / "src" / "main"
    files = sorted([*bridge.glob("scala/**/*.scala"), *bridge.glob("shims/before-*/**/*.scala")])
    return [
        f"{file.relative_to(root)}:{number}: Scala 2.12 has no such {match[0]}"
        for file in files
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if (match := _NEWER.search(line))
    ]


def _code(token: re.Match[str]) -> str:
    """The code in a comment or a string: of these, only interpolated strings have some."""
    is_interpolated = token.string[: token.start()][-1:].isalnum()
    return token[0] if token[0].startswith('"') and is_interpolated else ""


def _names(text: str) -> Iterator[str]:
    """Full names that a source uses, with an underscore last for all of a package."""
    for prefix, selected in _IMPORT.findall(text):
        for name in selected.strip("{} \n").split(","):
            yield f"{prefix}.{name.split('=>')[0].strip()}".removeprefix("_root_.")
    yield from _NAME.findall(text)


def _is_allowed(package: str, name: str) -> bool:
    if name.endswith("._"):
        # Packages within one that is imported as a whole are visible, too.
        inner = [layer for layer in LAYERS if layer.startswith(name[:-1])]
        if any(LAYERS.index(layer) < LAYERS.index(package) for layer in inner):
            return False
    owner = max((layer for layer in LAYERS if f"{name}.".startswith(f"{layer}.")), key=len, default=None)
    if owner is not None:
        return LAYERS.index(owner) >= LAYERS.index(package)
    if package not in OUTSIDE or not name.startswith("org.apache."):
        return True
    return name.startswith(tuple(f"{each}." for each in OUTSIDE[package]))


def scalafmt(*options: str) -> bool:
    """Run scalafmt on all sources; without the second compiler of the JVM, whose code comes too late."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xss8m"]
    command += ["-cp", os.pathsep.join(map(str, sorted(jars("scalafmt").glob("*.jar")))), "org.scalafmt.cli.Cli"]
    command += ["--config", str(CONFIG), "--non-interactive", "--quiet", *options, *map(str, sources(ROOT))]
    return subprocess.run(command, check=False).returncode == 0


def main() -> None:
    try:
        is_formatted = scalafmt(*([] if sys.argv[1:] == ["--fix"] else ["--test"]))
    except (pytest.skip.Exception, pytest.fail.Exception) as missing:
        sys.exit(f"dynastate: {missing}")
    problems = [*long_lines(ROOT), *broken_layers(ROOT), *newer_methods(ROOT)]
    print("\n".join(problems or ["Scala: lines and layers are as they should be"]))
    if not is_formatted:
        sys.exit("dynastate: Scala is not formatted; run 'make format-scala'")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
