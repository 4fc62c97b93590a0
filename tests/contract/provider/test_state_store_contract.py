"""The page of what Spark asks of a state store, against the class files of the Spark that runs it."""

from __future__ import annotations

import difflib
import zipfile
from pathlib import Path

import pyspark
import pytest

from dynastate.spark.jar import MINORS
from tests.support.contract import PAGE, page_here, spark_jar, updated
from tests.support.jvm import SPARK, build_jar

NEWEST = pytest.mark.skipif(MINORS[-1] != SPARK, reason="the page has the newest Spark as this Spark")


@pytest.fixture
def spark_sql() -> Path:
    return spark_jar(Path(pyspark.__file__).parent / "jars")


@pytest.mark.every_spark
def test_page_has_what_this_spark_asks() -> None:
    """No member, caller or parameter of this Spark is missing on the page, and none is too much."""
    build_jar()
    text = PAGE.read_text()
    news = difflib.unified_diff(
        text.splitlines(), page_here(text).splitlines(), "page", f"Spark {SPARK}", "", "", 0, ""
    )
    assert not list(news), "run python -m tests.support.contract"


@NEWEST
def test_next_spark_that_asks_nothing_new(spark_sql: Path) -> None:
    """The newest Spark's classes under the number of a Spark to come leave the page as it is."""
    assert updated(PAGE.read_text(), "99.0", spark_sql) == PAGE.read_text()


@NEWEST
def test_next_spark_with_a_new_member(spark_sql: Path, tmp_path: Path) -> None:
    """A member of another name is a line of its own, and the line of the one before names its last Spark."""
    renamed = tmp_path / "spark-sql.jar"
    with zipfile.ZipFile(spark_sql) as jar, zipfile.ZipFile(renamed, "w") as copy:
        for name in jar.namelist():
            copy.writestr(name, jar.read(name).replace(b"multiGet", b"multiAsk"))
    before = PAGE.read_text().splitlines()
    after = updated(PAGE.read_text(), "99.0", renamed).splitlines()
    cells = "`(Array[UnsafeRow], String)` | nothing | own |"
    assert [line for line in after if line not in before] == [
        f"| `ReadStateStore.multiAsk` | 99.0 | {cells} no | none |",
        next(line for line in before if "multiGet" in line).replace("| 4.2 |", f"| 4.2 to {MINORS[-1]} |"),
    ]
