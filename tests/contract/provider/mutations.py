"""Mutations of the provider, each a change of one place of its Scala; `test_mutations.py` shows that each is found."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pyspark

from dynastate.spark.jar import jar_path
from tests.support.jvm import ROOT

SOURCES: Final = ROOT / "jvm-bridge" / "src" / "main" / "scala" / "io" / "dynastate"


class Mutation(NamedTuple):
    """A text of a source file, what comes in its place, and who finds it: the history of a seed, or a check."""

    file: str
    text: str
    by: str
    seed: int = -1
    check: str | None = None


#: At most one of a file, so that all are compiled at once.
#: Where the provider or the histories changed, look for another seed.
MUTATIONS: Final = {
    "held changes are applied to rows of a newer snapshot": Mutation(
        "spark/BucketReads.scala",
        "last = deltas\n          if (deltas.appliesHeld)",
        "last = deltas.copy(appliesHeld = !usable.isEmpty && deltas.after == usable.version)\n"
        "        if (last.appliesHeld)",
        seed=6,
    ),
    "the key stream on disk is the same for each page": Mutation(
        "memory/RowFile.scala",
        "allocate(16).putLong(number)",
        "allocate(16).putLong(0)",
        check="disk: with encryption, no 16 bytes of the file are like others, also where rows are alike",
    ),
    "a page on disk is released while one iterator reads it": Mutation(
        "memory/RowTable.scala",
        "slots != null && slots.readers.get > 0",
        "slots != null && slots.readers.get > 1",
        check="disk: a page that an iterator reads is not given to other rows",
    ),
    "rows that came before the disk failed come again": Mutation(
        "memory/FallbackIterator.scala",
        "if (first == null || !first.hasGiven(rest.hash, rest.row)) return true",
        "return true",
        seed=2,
    ),
}


def mutated(mutation: Mutation) -> str:
    """The source with the mutation. Its text must be in it once."""
    source = (SOURCES / mutation.file).read_text()
    assert source.count(mutation.text) == 1, f"{mutation.file} has not once: {mutation.text}"
    return source.replace(mutation.text, mutation.by)


def compile_all(folder: Path, mutations: Mapping[str, Mutation] = MUTATIONS) -> dict[str, Path]:
    """Compile the mutated files with the compiler among PySpark's jars; by mutation, the folder of its classes."""
    sources, classes = folder / "sources", folder / "classes"
    classes.mkdir(parents=True)
    files = []
    for mutation in mutations.values():
        file = sources / mutation.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(mutated(mutation))
        files.append(str(file))
    classpath = f"{Path(pyspark.__file__).parent / 'jars'}/*:{jar_path()}"
    command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xss8m", "-cp", classpath]
    command += ["scala.tools.nsc.Main", "-usejavacp", "-release", "17", "-d", str(classes), *files]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    folders = {}
    for number, (name, mutation) in enumerate(mutations.items()):
        # A file has its class, what is in it, and its companion's.
        part = re.compile(rf"{Path(mutation.file).stem}(\$.*)?\.class")
        folders[name] = folder / str(number)
        for file in classes.rglob("*.class"):
            if part.fullmatch(file.name):
                target = folders[name] / file.relative_to(classes)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target)
    return folders
