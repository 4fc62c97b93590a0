"""Parts that the examples share: an embedded DynamoDB, a quiet Spark, files as streams, and tables of text.

With `with Sandbox() as sandbox` all of it ends with the program, and leaves nothing behind.
A notebook calls `start` and `close`.
"""

from __future__ import annotations

import csv
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from pathlib import Path
from typing import final

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from dynastate.dynamodb.embedded import EmbeddedDynamoDB, credentials

LOG4J = Path(__file__).with_name("log4j2.properties")
#: Variables that are removed: no example uses an AWS account of yours, or another Spark.
REMOVED = ("AWS_", "PYSPARK_", "SPARK_")
#: Spark reads files in the order of their modification times, in seconds.
FIRST_FILE_TIME_S = 1_700_000_000

Batch = Sequence[Sequence[object]]


@final
class Sandbox(AbstractContextManager["Sandbox"]):
    """A DynamoDB with both tables, at `endpoint` in `region`, and a folder for files."""

    def start(self) -> Sandbox:
        for name in [name for name in os.environ if name.startswith(REMOVED)]:
            del os.environ[name]
        # Workers run the same Python, Spark is reached from this machine only, and times are printed in UTC.
        ours = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC"}
        os.environ.update(credentials() | ours)
        time.tzset()
        self._stack = ExitStack()
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dyn-")))
        database = self._stack.enter_context(EmbeddedDynamoDB())
        self.endpoint, self.region = database.endpoint, database.settings.region
        self._stack.callback(end_spark)
        return self

    def close(self) -> None:
        self._stack.close()

    __enter__ = start

    def __exit__(self, *_: object) -> None:
        self.close()

    def builder(self) -> SparkSession.Builder:
        """A small Spark on this machine, without its log and its page, and with its files in the folder."""
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        java = [
            f"-Djava.io.tmpdir={temporary}",
            f"-Dlog4j2.configurationFile={LOG4J.as_uri()}",
            "-XX:-UsePerfData",
            "-XX:TieredStopAtLevel=1",  # a program of seconds is over before better code is compiled
        ]
        conf = {
            "spark.driver.extraJavaOptions": " ".join(java),
            "spark.local.dir": str(temporary),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(temporary / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        return SparkSession.builder.master("local[2]").config(map=dict(conf))

    def add(self, name: str, batches: Iterable[Batch]) -> None:
        """Add batches to a stream, each a file with a line for each row."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        for number, rows in enumerate(batches, len(list(folder.iterdir()))):
            hidden = folder / f".{number}"
            with hidden.open("w", newline="") as file:
                csv.writer(file).writerows(rows)
            os.utime(hidden, (FIRST_FILE_TIME_S + number,) * 2)
            hidden.rename(folder / f"{number:04}.csv")

    def stream(self, spark: SparkSession, name: str, schema: str) -> DataFrame:
        """A stream of the batches that are added under a name, one file a batch."""
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).csv(str(self.folder / name))


def end_spark() -> None:
    """Stop Spark, and wait until its JVM has deleted its files."""
    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()
    gateway = SparkContext._gateway  # noqa: SLF001  # PySpark has no other way to end its JVM
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)


def print_batch(batch: DataFrame, number: int) -> None:
    """Print the rows of a batch: a function for `foreachBatch`."""
    print_rows(f"batch {number}", [row.asDict() for row in batch.collect()])


def print_rows(title: str, rows: Iterable[Mapping[str, object]]) -> None:
    """Print rows as a table, sorted; times are hours and minutes in UTC."""
    listed = list(rows)
    lines = sorted([text(value) for value in row.values()] for row in listed)
    print(f"{title}: {len(lines)} {'row' if len(lines) == 1 else 'rows'}")
    table = [list(listed[0]), *lines] if listed else []
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("   ", "  ".join(value.ljust(width) for value, width in zip(line, widths, strict=True)).rstrip())


def text(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={text(part)}" for name, part in value.items())
    return f"{value:%H:%M}" if isinstance(value, datetime) else str(value)
