"""A Spark with two executors in processes of their own, for programs whose executors die."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import dynastate
from tests.spark.conftest import spark_conf
from tests.support.jvm import TESTS_JAR


def start_cluster(folder: Path, endpoint: str, conf: Mapping[str, str]) -> SparkSession:
    """A session with state at an endpoint. All of Spark's own files go to `folder`/own and `folder`/home."""
    options = spark_conf(folder / "own") | {"spark.executor.memory": "1g"}
    options["spark.executor.extraJavaOptions"] = options["spark.driver.extraJavaOptions"]
    # This master is for Spark's own tests, and requires Spark's home.
    options["spark.driver.extraJavaOptions"] += f" -Dspark.test.home={os.environ['SPARK_HOME']}"
    options["spark.jars"] = str(TESTS_JAR)
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").config(map={**options, **conf})
    builder = dynastate.configure(builder, checkpoint=True, endpoint=endpoint, region="us-east-1")
    return builder.getOrCreate()


def cluster_environment(folder: Path) -> dict[str, str]:
    """The environment of such a program, except credentials: a home, below which executors have folders."""
    home = folder / "home"
    home.mkdir()
    for part in ("bin", "jars"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    return {"SPARK_HOME": str(home)}


def executor_logs(folder: Path) -> str:
    """The standard error of all executors. Spark deletes it when it ends by itself."""
    return "".join(file.read_text(errors="replace") for file in sorted((folder / "home" / "work").glob("*/*/stderr")))
