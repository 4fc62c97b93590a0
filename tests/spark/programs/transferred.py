"""Transfers of stopped queries, one after the other, in one Spark; prints what became of each as JSON.

Run as `python -m tests.spark.programs.transferred FOLDER ENDPOINT TRANSFERS`, where the last is JSON: for each transfer
its function of dynastate, and its arguments by name. A frame is given as the folder of its Parquet files; a migration
changes no value.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import dynastate
from dynastate.errors import ConfigurationError
from tests.spark.conftest import spark_conf


def answer(spark: SparkSession, function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Rows and confs of a transfer, or its error."""
    if function == "bootstrap":
        arguments["frame"] = spark.read.parquet(arguments["frame"])
    if function == "migrate":
        arguments["change"] = lambda _, value: value
    try:
        moved = getattr(dynastate, function)(spark, **arguments)
    except ConfigurationError as error:
        return {"error": str(error)}
    return {"rows": moved.rows, "confs": moved.confs}


def main(folder: Path, endpoint: str, transfers: str) -> None:
    builder = SparkSession.builder.master("local[2]").config(map=dict(spark_conf(folder / "own")))
    spark = dynastate.configure(builder, endpoint=endpoint, region="us-east-1").getOrCreate()
    answers = [answer(spark, *transfer) for transfer in json.loads(transfers)]
    print(json.dumps(answers))  # noqa: T201  # the answer
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
