"""Patches of docs/upstream for Spark: they apply to its published sources, and what they change compiles.

Of Spark 4.3 there are no published sources: what patches for it put in its gates compiles against its jars.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pyspark
import pytest

from tests.support.pages import DOCS
from tests.upstream.maven import jars, unpacked

#: In the order in which they apply: those for the Spark whose sources are published, and those for Spark 4.3.
PUBLISHED = [DOCS / "upstream" / f"{name}.patch" for name in ("1-transform-with-state", "2-offline-repartition")]
JOINS, REAL_TIME = (DOCS / "upstream" / f"{name}.patch" for name in ("3-join-state-formats", "4-real-time-mode"))
#: What the gates of Spark 4.3 become, where patch 1 is applied: its method is `Patched`'s here.
GATES = """
package org.apache.spark.sql.classic

import scala.collection.mutable

import org.apache.spark.sql.execution.streaming.state.{{StateStoreCoordinatorRef, StateStoreProvider}}
import org.apache.spark.sql.internal.SQLConf

object Gates {{
  implicit class Patched(provider: StateStoreProvider) {{
    def supportsColumnFamilies: Boolean = false
  }}

  def isJoinFormatAllowed(providerClassName: String): Boolean = {{
{joins}
  }}

  def refuse(conf: SQLConf, invalidReasons: mutable.LinkedHashMap[String, String]): Unit = {{
{real_time}
  }}
}}
"""
#: Folders of Spark's repository above those of the jar with its sources.
ABOVE = "sql/core/src/main/scala/"


def changed(patch: Path) -> list[str]:
    """Files that a patch changes, as the jar with Spark's sources names them."""
    return re.findall(rf"^\+\+\+ b/{ABOVE}(\S+)$", patch.read_text(), re.MULTILINE)


def patched(patch: Path) -> str:
    """The lines of the last hunk, as the patch leaves them."""
    hunk = patch.read_text().rpartition("\n@@")[2].splitlines()[1:]
    return "\n".join(line[1:] for line in hunk if not line.startswith("-"))


def compile_scala(files: Iterable[object], folder: Path, classpath: Iterable[object]) -> Path:
    """Compile files of a folder into another one below it."""
    target = folder / "classes"
    target.mkdir()
    compiler = f"{Path(pyspark.__file__).parent / 'jars'}/*"
    options = ["-nowarn", "-release", "17", "-d", target, "-cp", os.pathsep.join(map(str, classpath))]
    command = ["java", "-XX:TieredStopAtLevel=1", "-Xss8m", "-cp", compiler, "scala.tools.nsc.Main"]
    run(*command, *options, *files, folder=folder)
    return target


def run(*command: object, folder: Path) -> None:
    completed = subprocess.run(
        [*map(str, command)], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The classes of all files that the patches change, compiled against Spark's jars."""
    (archive,) = jars("spark-sources").glob("*-sources.jar")
    folder = tmp_path_factory.mktemp("patched")
    files = sorted({file for patch in PUBLISHED for file in changed(patch)})
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(unpacked(archive) / file, folder / file)
    strip = len(f"a/{ABOVE}".strip("/").split("/"))
    for patch in PUBLISHED:
        run("git", "apply", f"-p{strip}", patch, folder=folder)
    # Its shims for clients have some names of Spark's own classes.
    spark = [jar for jar in jars("spark").glob("*.jar") if "connect-shims" not in jar.name]
    return compile_scala(files, folder, spark)


@pytest.mark.parametrize(
    "gate",
    [
        "execution/streaming/operators/stateful/transformwithstate/TransformWithStateExecBase",
        "execution/datasources/v2/state/StateDataSource",
    ],
)
def test_a_patched_gate_names_no_class(classes: Path, gate: str) -> None:
    """A gate asks the provider for what it needs, and no longer compares the name of its class with RocksDB's."""
    (file,) = classes.glob(f"**/{gate}.class")
    assert b"RocksDBStateStoreProvider" not in file.read_bytes()
    assert b"supportsColumnFamilies" in file.read_bytes()


def test_gates_of_spark_4_3_compile_as_they_are_patched(tmp_path: Path) -> None:
    """The lines that the patches put there, with the names around them, against the jars of Spark 4.3."""
    (real_time,) = re.findall(r"^    if .*?^    }$", patched(REAL_TIME), re.MULTILINE | re.DOTALL)
    texts = {"joins": patched(JOINS), "real_time": real_time}
    assert all("supportsColumnFamilies" in text and "RocksDB" not in text for text in texts.values())
    (tmp_path / "Gates.scala").write_text(GATES.format(**texts))
    target = compile_scala(["Gates.scala"], tmp_path, [Path(pyspark.__file__).parent / "jars" / "*"])
    assert list(target.glob("**/Gates$.class"))
