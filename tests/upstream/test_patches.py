"""Patches of docs/upstream for Spark: they apply to its published sources, and what they change compiles."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pyspark
import pytest

from tests.support.pages import DOCS
from tests.upstream.maven import jars, unpacked

#: In the order in which they apply.
PATCHES = sorted((DOCS / "upstream").glob("*.patch"))
#: Folders of Spark's repository above those of the jar with its sources.
ABOVE = "sql/core/src/main/scala/"


def changed(patch: Path) -> list[str]:
    """Files that a patch changes, as the jar with Spark's sources names them."""
    return re.findall(rf"^\+\+\+ b/{ABOVE}(\S+)$", patch.read_text(), re.MULTILINE)


def run(*command: object, folder: Path) -> None:
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The classes of all files that the patches change, compiled against Spark's jars."""
    (archive,) = jars("spark-sources").glob("*-sources.jar")
    folder = tmp_path_factory.mktemp("patched")
    files = sorted({file for patch in PATCHES for file in changed(patch)})
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(unpacked(archive) / file, folder / file)
    strip = len(f"a/{ABOVE}".strip("/").split("/"))
    for patch in PATCHES:
        run("git", "apply", f"-p{strip}", patch, folder=folder)
    made = folder / "classes"
    made.mkdir()
    # Its shims for clients have some names of Spark's own classes.
    spark = [str(jar) for jar in jars("spark").glob("*.jar") if "connect-shims" not in jar.name]
    compiler = f"{Path(pyspark.__file__).parent / 'jars'}/*"
    options = ["-nowarn", "-release", "17", "-d", made, "-cp", os.pathsep.join(spark)]
    command = ["java", "-XX:TieredStopAtLevel=1", "-Xss8m", "-cp", compiler, "scala.tools.nsc.Main"]
    run(*command, *options, *files, folder=folder)
    return made


@pytest.mark.parametrize(
    "gate",
    [
        "execution/streaming/operators/stateful/transformwithstate/TransformWithStateExecBase",
        "execution/datasources/v2/state/StateDataSource",
    ],
)
def test_a_patched_gate_names_no_class(classes: Path, gate: str) -> None:
    """A gate asks the provider for what it needs, and no longer compares the name of its class with RocksDB's."""
    (compiled,) = classes.glob(f"**/{gate}.class")
    assert b"RocksDBStateStoreProvider" not in compiled.read_bytes()
    assert b"supportsColumnFamilies" in compiled.read_bytes()
