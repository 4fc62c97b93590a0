"""Driver and workers on a Python that dynastate does not support, as on EMR 7: the sidecar has another one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from dynastate.settings import PREFIX
from dynastate.spark.jar import jar_path
from tests.spark.conftest import Database, Open, spark_conf
from tests.spark.programs.cluster import cluster_environment
from tests.support.jvm import SPARK
from tests.support.pages import DOCS

PAGE = DOCS / "platforms" / "emr-on-ec2.md"
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
#: A program that imports nothing of dynastate, with a function that runs in Spark's workers of Python.
PROGRAM = """
import importlib.util
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
assert importlib.util.find_spec("dynastate") is None
session = SparkSession.builder.getOrCreate()
python = f.udf(lambda word: f"{word} of {sys.version_info[0]}.{sys.version_info[1]}")
counts = session.readStream.text(sys.argv[1]).groupBy("value").count().select(python("value"), "count")
writer = counts.writeStream.outputMode("complete").format("memory").queryName("counts")
writer = writer.option("checkpointLocation", sys.argv[2]).trigger(availableNow=True)
writer.start().awaitTermination()
print(sys.version_info[:2], sorted(map(tuple, session.table("counts").collect())))
"""


def python39() -> str | None:
    """A Python 3.9 of this machine."""
    among_pyenvs = sorted(PYENV.glob("3.9.*/bin/python3.9"))  # its shim on the path serves no version by itself
    return str(among_pyenvs[-1]) if among_pyenvs else shutil.which("python3.9")


def page_conf() -> dict[str, str]:
    """The conf that the page gives to a query on EMR 7."""
    return dict(re.findall(r"--conf (\S+?)=(\S+)", PAGE.read_text().partition("## EMR 7")[2]))


@pytest.mark.slow
@pytest.mark.every_spark
@pytest.mark.skipif(SPARK != "3.5", reason="newer Sparks have a Python that dynastate supports")
@pytest.mark.skipif(python39() is None, reason="this machine has no Python 3.9")
def test_driver_and_workers_have_python_3_9(
    database: Database, environment: dict[str, str], opened: Open, folder: Path
) -> None:
    """The conf of the page is enough: two runs of a query, and their state."""
    packages = folder / "packages"
    packages.mkdir()
    for name in ("pyspark", "py4j"):
        (packages / name).symlink_to(str(files(name)))
    (folder / "query.py").write_text(PROGRAM)
    (folder / "input").mkdir()
    conf = page_conf()
    assert f"{PREFIX}python" in conf
    conf |= {
        f"{PREFIX}python": sys.executable,
        f"{PREFIX}region": database.settings.region,
        f"{PREFIX}namespace": folder.name,
        f"{PREFIX}deltaTable": database.settings.delta_table,
        f"{PREFIX}snapshotTable": database.settings.snapshot_table,
        f"{PREFIX}endpoint": database.endpoint,
        **spark_conf(folder / "own"),
        "spark.executor.memory": "1g",
        "spark.driver.memory": "1g",
    }
    home = cluster_environment(folder)
    conf["spark.executor.extraJavaOptions"] = conf["spark.driver.extraJavaOptions"]
    conf["spark.driver.extraJavaOptions"] += f" -Dspark.test.home={home['SPARK_HOME']}"
    command = [f"{home['SPARK_HOME']}/bin/spark-submit", "--master", "local-cluster[1,1,1024]"]
    command += ["--jars", str(jar_path()), *(word for pair in conf.items() for word in ("--conf", "=".join(pair)))]
    command += [str(folder / "query.py"), str(folder / "input"), str(folder / "checkpoint")]
    variables = environment | home | {"PYSPARK_PYTHON": str(python39()), "PYTHONPATH": str(packages)}
    for number, counts in enumerate(("[('a of 3.9', 1), ('b of 3.9', 1)]", "[('a of 3.9', 1), ('b of 3.9', 2)]")):
        (folder / "input" / f"{number}.txt").write_text("b\n" if number else "a\nb\n")
        completed = subprocess.run(
            command, env=variables, cwd=folder, capture_output=True, text=True, check=False, timeout=200
        )
        assert completed.returncode == 0, completed.stderr[-4000:]
        assert completed.stdout.splitlines()[-1] == f"(3, 9) {counts}"
    with opened(f"{folder.name}/0") as state:
        assert state.get({"value": "b"}) == {"value": "b", "count": 2}
