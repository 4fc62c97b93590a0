"""Layers of the bridge's Scala packages, and columns of all Scala, as `make lint-scala` checks them."""

import re
from pathlib import Path

import pyspark
import pytest

from tests.support.jvm import TREES
from tests.support.scala_lint import ROOT, broken_layers, long_lines, newer_methods

MAIN = "jvm-bridge/src/main/scala"
MEMORY = "package io.dynastate.memory\n\n"
BRIDGE = "package io.dynastate.bridge\n\n"


def planted(root: Path, text: str) -> Path:
    file = root / MAIN / "Planted.scala"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return root


def test_scala_points_down_and_fits() -> None:
    assert broken_layers(ROOT) == []
    assert long_lines(ROOT) == []
    assert newer_methods(ROOT) == []


@pytest.mark.parametrize(
    "code",
    [
        "Option.when(true)(1)",
        "text.toLongOption",
        "all.maxByOption(_.size)",
        "mutable.TreeMap.from(all)",
        "import scala.util.Using",
        "synchronized(files.values.toSeq)",
    ],
)
def test_what_scala_212_lacks_is_found(tmp_path: Path, code: str) -> None:
    (line,) = newer_methods(planted(tmp_path, f"object A {{ {code} }}\n"))
    assert line.startswith(f"{MAIN}/Planted.scala:1: Scala 2.12 has no such ")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (MEMORY + "import io.dynastate.bridge.Connection\n", "io.dynastate.bridge.Connection"),
        (MEMORY + "import io.dynastate.{\n  DynastateException, bridge => b}\n", "io.dynastate.bridge"),
        (MEMORY + "import io.dynastate._\n", "io.dynastate._"),
        (MEMORY + "object A { val b = io.dynastate.spark.OpenFamily }\n", "io.dynastate.spark.OpenFamily"),
        (MEMORY + "object A { val b = _root_.io.dynastate.bridge.Sidecar }\n", "io.dynastate.bridge.Sidecar"),
        (MEMORY + "import org.apache.spark.sql.types.StructType\n", "org.apache.spark.sql.types.StructType"),
        (BRIDGE + "import org.apache.hadoop.fs.Path\n", "org.apache.hadoop.fs.Path"),
        (BRIDGE + "import io.dynastate.spark._\n", "io.dynastate.spark._"),
        (
            "package io.dynastate.spark\n\nimport org.apache.spark.sql.dynastate.StateTransfer\n",
            "org.apache.spark.sql.dynastate.StateTransfer",
        ),
        (
            "package org.apache.spark.sql.dynastate.internals\n\nimport io.dynastate.spark.OpenFamily\n",
            "io.dynastate.spark.OpenFamily",
        ),
    ],
)
def test_use_of_a_package_above_is_found(tmp_path: Path, text: str, name: str) -> None:
    """An import, one of several selectors, a wildcard, or a qualified name in the code."""
    package = text.split()[1]
    assert f"{MAIN}/Planted.scala: {package} may not use {name}" in broken_layers(planted(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        MEMORY + "import io.dynastate.{DynastateException, ErrorKind}\nimport org.apache.spark.unsafe.Platform\n",
        MEMORY + "/** As io.dynastate.bridge.Connection does. */\nobject A // io.dynastate.spark.OpenFamily\n",
        BRIDGE + 'import io.dynastate.memory._\nobject A { val log = "io.dynastate.Sidecar // not" }\n',
        "package io.dynastate.spark\n\nimport org.apache.spark.sql.dynastate.internals.SparkInternals\n",
    ],
)
def test_use_of_a_package_below_is_allowed(tmp_path: Path, text: str) -> None:
    """And comments may name any."""
    assert broken_layers(planted(tmp_path, text)) == []


def test_package_without_layer_is_found(tmp_path: Path) -> None:
    (problem,) = broken_layers(planted(tmp_path, "package io.dynastate.other\n"))
    assert problem.endswith("package io.dynastate.other is in no layer")


def test_long_line_is_found(tmp_path: Path) -> None:
    """Columns count, not bytes."""
    (problem,) = long_lines(planted(tmp_path, "// " + "µ" * 117 + "\n// " + "µ" * 118 + "\n"))
    assert problem.startswith(f"{MAIN}/Planted.scala:2: 121 columns")


def test_build_file_for_ides_is_of_this_tree() -> None:
    """Its folders are there, all trees of tests and benchmarks among them, and its Scala is that of PySpark."""
    text = (ROOT / "jvm-bridge" / "build.sbt").read_text()
    trees = set(re.findall(r'"((?:tests|benchmarks)/[\w/]*scala)"', text))
    assert trees == {*TREES, "benchmarks/scala"}
    assert [tree for tree in trees if not (ROOT / tree).is_dir()] == []
    assert {folder.name for folder in (ROOT / "jvm-bridge" / "src").iterdir()} == {"main", "transfer"}
    assert 'Seq("main", "transfer")' in text
    scala = re.search(r'scalaVersion := "(.+)"', text)
    assert scala is not None
    assert (Path(pyspark.__file__).parent / "jars" / f"scala-compiler-{scala[1]}.jar").is_file()
