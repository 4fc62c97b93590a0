"""Queries in real-time mode: their source, which is in the driver's memory, their sink, and their intervals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.conftest import CONF
from tests.spark.streams import SCHEMA, Record, make_rows
from tests.support.processes import wait_until

#: What a session needs, whose conf sets no provider. Intervals as short as these are not for production.
REAL_TIME = {
    "spark.dynastate.realTimeMode.enabled": "true",
    "spark.sql.streaming.realTimeMode.minBatchDuration": "1000",
    # Spark has tasks of all stages at once.
    "spark.sql.shuffle.partitions": "1",
}
#: For transformWithState, whose operator the extension replaces.
ANY_OPERATOR = {"spark.sql.streaming.realTimeMode.allowlistCheck": "false"}
SEED = 61
#: Of Spark's first plan, and of a busy machine.
ROWS_WITHIN_S = 60


def numbered(file: int) -> list[Record]:
    """Rows of a file, each with an id of its own."""
    return [{**row, "id": 1000 * file + number} for number, row in enumerate(make_rows(SEED, file))]


class LiveSource:
    """Rows of `SCHEMA`, which a query takes as they are added. Another one with the same rows continues it."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        assert jvm is not None
        sql, self._python = jvm.org.apache.spark.sql, jvm.PythonUtils
        streams = sql.execution.streaming.sources.LowLatencyMemoryStream
        self._stream = streams.apply(spark._jsparkSession, 1, sql.Encoders.STRING())
        text = DataFrame(self._stream.toDF(), spark)
        self.frame = text.select(f.from_json("value", SCHEMA).alias("row")).select("row.*")

        self.rows = 0

    def add(self, rows: Sequence[Record]) -> None:
        self.rows += len(rows)
        self._stream.addData(self._python.toSeq([json.dumps(row) for row in rows]))


class LiveQuery:
    """A query in real-time mode, and the folder that its rows go to."""

    def __init__(self, frame: DataFrame, checkpoint: Path | str, sink: Path, interval: str = "2 seconds") -> None:
        self._sink = sink
        sink.mkdir(parents=True, exist_ok=True)
        writer = frame.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint))
        jvm: Any = frame.sparkSession._jvm
        writer._jwrite.foreach(jvm.io.dynastate.tests.AppendRows(str(sink)))
        self.query: StreamingQuery = writer.trigger(realTime=interval).start()  # type: ignore[call-overload]

    def rows(self) -> list[str]:
        """The rows that came so far, sorted."""
        return sorted(line for file in self._sink.iterdir() for line in file.read_text().splitlines())

    def wait_for(self, rows: int) -> None:
        """Wait until so many rows came."""
        wait_until(lambda: self._alive() and len(self.rows()) >= rows, "rows did not come", ROWS_WITHIN_S)

    def wait_until_committed(self, source: LiveSource) -> int:
        """Wait until an interval has ended that took the last row of its source; its batch."""
        wait_until(lambda: self._alive() and self._taken() == source.rows, "rows were not taken", ROWS_WITHIN_S)
        return int(self.query.lastProgress["batchId"])  # type: ignore[index]  # there is one

    def wait_for_interval(self) -> int:
        """Wait until an interval has ended that began after now; its batch."""
        last = self._batch() + 2
        wait_until(lambda: self._alive() and self._batch() >= last, "no interval ended", ROWS_WITHIN_S)
        return self._batch()

    def stop(self) -> None:
        self.query.stop()

    def _taken(self) -> int | None:
        progress = self.query.lastProgress
        return None if progress is None else int(json.loads(progress["sources"][0]["endOffset"])["0"])

    def _batch(self) -> int:
        return int((self.query.lastProgress or {"batchId": -1})["batchId"])

    def _alive(self) -> bool:
        error = self.query.exception()
        if error is not None:
            raise error
        return True


def without_provider(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """The session, with some conf, as one of an application that sets no provider."""
    session.conf.unset(f"{CONF}.providerClass")
    for name, value in conf.items():
        session.conf.set(name, value)
    return session
