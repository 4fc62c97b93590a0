"""Streaming queries over files made in advance: the input, one file a batch, and the outcome of each batch."""

from __future__ import annotations

import base64
import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Literal, NamedTuple

import pandas as pd
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from dynastate.demo import flights

SCHEMA = "file int, key string, id long, amount long, note string, at timestamp"
START = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)
#: Event time that one file covers.
FILE_S = 10
ROWS = 60
RELEASED = "released"

OutputMode = Literal["append", "complete", "update"]
Record = Mapping[str, str | int | None]


def make_rows(seed: int, file: int, rows: int = ROWS) -> list[Record]:
    """The rows of one file: few keys (one null, one empty), many repeated ids, and some late rows."""
    choose = random.Random(f"{seed}/{file}")  # noqa: S311  # test data
    keys: list[str | None] = [None, "", *(f"key-{number}" for number in range(8)), "schlüssel-ß-鍵"]
    records: list[Record] = []
    for _ in range(rows):
        late_s = 40 if choose.random() < 0.1 else 0
        event_time = START + timedelta(seconds=file * FILE_S + choose.randrange(FILE_S) - late_s)
        records.append(
            {
                "file": file,
                # Some keys are in some files only, so that their state expires.
                "key": keys[(choose.randrange(6) + file) % len(keys)],
                "id": choose.randrange(10 * file, 10 * file + 40),
                "amount": choose.randrange(-100, 1_000),
                "note": "x" * choose.randrange(30),
                "at": event_time.isoformat(),
            }
        )
    return records


def make_wide_rows(file: int, keys: int, note_bytes: int) -> list[Record]:
    """One row for each key, with a note that LZ4 cannot make smaller."""
    choose = random.Random(file)  # noqa: S311  # test data
    event_time = START.isoformat()
    return [
        {
            "file": file,
            "key": f"key-{key}",
            "id": key,
            "amount": choose.randrange(1000),
            "note": base64.b85encode(choose.randbytes(note_bytes)).decode(),
            "at": event_time,
        }
        for key in range(keys)
    ]


def make_flights(files: int, *, arrivals: bool = False) -> list[list[Record]]:
    """New York's departures on the first day of 2013 from five in the morning, or their arrivals; two hours a file.

    Two hours of theirs are `FILE_S` here. A file has what was scheduled in its hours, so that delayed flights come
    early in event time and those that left before they should come late.
    """
    day = flights.load(days=2).flights
    day = day[day["day"] == 1]
    actual, schedule = ("arr_time", "sched_arr_time") if arrivals else ("dep_time", "sched_dep_time")
    records: list[list[Record]] = [[] for _ in range(files)]
    for flight in day.to_dict("records"):
        planned_minute, minute = (
            int(clock) // 100 * 60 + int(clock) % 100 - 5 * 60
            for clock in (flight[schedule], flight[schedule] if pd.isna(flight[actual]) else flight[actual])
        )
        file = planned_minute // 120
        if not 0 <= file < files:
            continue
        delay = flight["dep_delay"]
        records[file].append(
            {
                "file": file,
                "key": flight["carrier"],
                "id": int(flight["flight"]),
                "amount": None if pd.isna(delay) else int(delay),
                "note": f"{flight['origin']}-{flight['dest']}",
                "at": (START + timedelta(minutes=minute) * FILE_S / (120 * 60)).isoformat(),
            }
        )
    return records


class Source:
    """A folder of files, one a batch. A query sees the released ones."""

    def __init__(self, folder: Path, files: Sequence[Sequence[Record]]) -> None:
        self._waiting = folder / "waiting"
        self._released = folder / RELEASED
        self._files = len(files)
        for path in (self._waiting, self._released):
            path.mkdir(parents=True)
        for number, rows in enumerate(files):
            file = self._waiting / f"{number:04d}.json"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            # Spark's file source orders files by modification time; files of one second would have any order.
            os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))

    def release(self, files: int | None = None) -> None:
        """Let queries see the first `files` files, or all files if it is None."""
        for number in range(self._files if files is None else files):
            target = self._released / f"{number:04d}.json"
            if not target.exists():
                os.link(self._waiting / target.name, target)

    def stream(self, spark: SparkSession) -> DataFrame:
        return open_stream(spark, self._released.parent)

    def read(self, spark: SparkSession) -> DataFrame:
        return spark.read.schema(SCHEMA).json(str(self._released))


def open_stream(spark: SparkSession, folder: Path) -> DataFrame:
    """A streaming frame of `SCHEMA` over the released files of a source's folder, one file a batch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / RELEASED))


def make_source(folder: Path, *, seed: int, files: int, rows: int = ROWS) -> Source:
    return Source(folder, [make_rows(seed, file, rows) for file in range(files)])


class Sources(NamedTuple):
    """The two sources of a query; one that has no join takes the left one."""

    left: Source
    right: Source

    def release(self, files: int | None = None) -> None:
        """Let queries see the first `files` files of each, or all files if it is None."""
        for source in self:
            source.release(files)


def make_sources(folder: Path, *, seed: int, files: int) -> Sources:
    """Two sources, with different rows."""
    sides = enumerate(("left", "right"), seed)
    return Sources(*(make_source(folder / side, seed=number, files=files) for number, side in sides))


@dataclass(frozen=True)
class StateRows:
    """A batch's progress on one stateful operator."""

    operator: str
    total: int
    updated: int
    removed: int
    late: int


@dataclass
class Outcome:
    """Sorted rows at the sink, and rows of state by operator, both by batch id."""

    rows: dict[int, list[tuple[object, ...]]] = field(default_factory=dict)
    state: dict[int, list[StateRows]] = field(default_factory=dict)
    #: dynastate's own metrics, summed over operators and partitions.
    metrics: dict[int, dict[str, int]] = field(default_factory=dict)

    def add(self, other: Outcome) -> None:
        self.rows.update(other.rows)
        self.state.update(other.state)
        self.metrics.update(other.metrics)


#: What to do with a batch's frame before its rows are collected, by batch id.
Disturb = Callable[[DataFrame, int], DataFrame]


def hang_in(batch: int, partition: int, ms: int, mark: Path) -> Disturb:
    """Let a partition's task hang in one batch: Disturbing.scala is called for each row of a stateful operator."""
    condition = f.expr(f"reflect('io.dynastate.tests.Disturbing', 'hang', {partition}, {ms}L, '{mark}') = 'true'")
    return lambda frame, number: frame.where(condition) if number == batch else frame


class Running:
    """A started query that takes all released files and ends. Foreach-batch: commits are validated by Spark."""

    def __init__(
        self, frame: DataFrame, checkpoint: Path | str, mode: OutputMode = "update", disturb: Disturb | None = None
    ) -> None:
        self._outcome = Outcome()

        def sink(batch: DataFrame, number: int) -> None:
            rows = batch if disturb is None else disturb(batch, number)
            self._outcome.rows[number] = sorted((tuple(row) for row in rows.collect()), key=repr)

        writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint))
        self._query: StreamingQuery = writer.foreachBatch(sink).trigger(availableNow=True).start()
        self.run_id: str = self._query.runId

    def stop(self) -> None:
        self._query.stop()

    def finish(self, timeout_s: int = 120) -> Outcome:
        """Wait until all files are taken.

        Raises:
            StreamingQueryException: the query failed.
        """
        try:
            is_over = self._query.awaitTermination(timeout_s)
        finally:
            self._query.stop()
        assert is_over, f"the query did not end within {timeout_s} s"
        for report in self._query.recentProgress:
            # A dictionary before Spark 4.0.
            progress = report if isinstance(report, StreamingQueryProgress) else StreamingQueryProgress.fromJson(report)
            if "addBatch" in progress.durationMs:
                self._note(progress)
        return self._outcome

    def _note(self, progress: StreamingQueryProgress) -> None:
        metrics: dict[str, int] = {}
        for operator in progress.stateOperators:
            for name, value in operator.customMetrics.items():
                metrics[name] = metrics.get(name, 0) + value
        self._outcome.metrics[progress.batchId] = metrics
        self._outcome.state[progress.batchId] = [
            StateRows(
                each.operatorName,
                each.numRowsTotal,
                each.numRowsUpdated,
                each.numRowsRemoved,
                each.numRowsDroppedByWatermark,
            )
            for each in progress.stateOperators
        ]


def run(
    frame: DataFrame, checkpoint: Path | str, mode: OutputMode = "update", disturb: Disturb | None = None
) -> Outcome:
    return Running(frame, checkpoint, mode, disturb).finish()


def take_all(query: StreamingQuery) -> None:
    """Wait until a running query has processed all files released before."""
    # A trigger that listed the files before may end the first wait; the next one finds all of them.
    for _ in range(2):
        query.processAllAvailable()


def first_error(frame: DataFrame, checkpoint: Path | str, mode: OutputMode = "append", within_s: int = 50) -> str:
    """Run a query that must fail before `requestDeadlineS`; the error that its user reads, in one line."""
    writer = frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(checkpoint))
    start_s = time.monotonic()
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination(120)
    except StreamingQueryException as error:
        message = " ".join(str(error).split())
    else:
        raise AssertionError("the query did not fail")
    finally:
        query.stop()
    seconds = time.monotonic() - start_s
    assert seconds < within_s, f"it took {seconds:.1f} s: {message}"
    return message
