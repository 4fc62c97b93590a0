"""A query for every stateful operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from tests.spark.processors import transformed_from_initial, transformed_in_pandas, transformed_rows
from tests.spark.streams import Disturb, OutputMode, Running, Source, Sources, make_sources

DELAY = "5 seconds"


@dataclass(frozen=True)
class Case:
    """A query on two streams, its output mode, its stateful operators, and conf for dynastate, or for all stores."""

    build: Callable[[DataFrame, DataFrame], DataFrame]
    mode: OutputMode
    operators: tuple[str, ...]
    conf: Mapping[str, str] = field(default_factory=dict)
    everywhere: Mapping[str, str] = field(default_factory=dict)

    def on(self, session: SparkSession, sources: Sources) -> DataFrame:
        return self.build(sources.left.stream(session), sources.right.stream(session))

    def stopped(self, session: SparkSession, folder: Path, files: int = 1) -> Path:
        """Run the query on a few files to its end; its checkpoint."""
        sources = make_sources(folder / "sources", seed=3, files=files)
        sources.release()
        self.start(session, sources, folder / "old").finish()
        return folder / "old"

    def start(
        self, session: SparkSession, sources: Sources, checkpoint: Path | str, disturb: Disturb | None = None
    ) -> Running:
        return Running(self.on(session, sources), checkpoint, self.mode, disturb)


def sums(rows: DataFrame, *columns: str) -> DataFrame:
    """Count, sum and maximum; no sum of floats, which depends on the order."""
    return rows.groupBy(*columns).agg(
        f.count("*").alias("rows"), f.sum("amount").alias("amount"), f.max("note").alias("note")
    )


def expected_sums(session: SparkSession, source: Source) -> list[tuple[object, ...]]:
    """Rows of `sums` by key on all released files, by a batch query, sorted as those of `Outcome`."""
    return sorted((tuple(row) for row in sums(source.read(session), "key").collect()), key=repr)


def windows(rows: DataFrame, _: DataFrame) -> DataFrame:
    events = rows.withWatermark("at", DELAY)
    return events.groupBy(f.window("at", "20 seconds", "10 seconds"), "key").agg(f.count("*"), f.sum("amount"))


def deduplicated_windows(rows: DataFrame, _: DataFrame) -> DataFrame:
    events = rows.withWatermark("at", DELAY).dropDuplicates(["id", "at"])
    return events.groupBy(f.window("at", "10 seconds")).agg(f.count("*"), f.sum("id"))


def group_state(
    rows: DataFrame, _: DataFrame | None = None, look: Callable[[pd.DataFrame], None] | None = None
) -> DataFrame:
    """The same as GroupStates.scala, with applyInPandasWithState. `look` gets every frame of rows first."""
    rows_most, idle_ms = 40, 15_000

    # Workers get a nested function by value; one of a module they would have to import.
    def update(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            count, amount = state.get
            state.remove()
            yield pd.DataFrame({"key": [key[0]], "what": ["timed out"], "rows": [count], "amount": [amount]})
            return
        count, amount = state.getOption or (0, 0)
        newest = 0
        for frame in frames:
            if look is not None:
                look(frame)
            count += len(frame)
            amount += int(frame["amount"].sum())
            newest = max(newest, int(frame["at"].max().timestamp() * 1000))
        kind = "full" if count > rows_most else "counted"
        if kind == "full":
            state.remove()
        else:
            state.update((count, amount))
            state.setTimeoutTimestamp(max(state.getCurrentWatermarkMs(), newest) + idle_ms)
        yield pd.DataFrame({"key": [key[0]], "what": [kind], "rows": [count], "amount": [amount]})

    events = rows.withWatermark("at", DELAY)
    return events.groupBy("key").applyInPandasWithState(
        update,
        "key string, what string, rows long, amount long",
        "rows long, amount long",
        "append",
        GroupStateTimeout.EventTimeTimeout,
    )


def in_scala(rows: DataFrame, program: str, method: str) -> DataFrame:
    jvm = rows.sparkSession._jvm
    assert jvm is not None
    return DataFrame(getattr(getattr(jvm.io.dynastate.tests, program), method)(rows._jdf), rows.sparkSession)


def session_windows(rows: DataFrame, _: DataFrame) -> DataFrame:
    events = rows.withWatermark("at", DELAY)
    return events.groupBy(f.session_window("at", "2 seconds"), "key").agg(f.count("*"), f.sum("amount"))


def deduplicated_sessions(rows: DataFrame, _: DataFrame) -> DataFrame:
    events = rows.withWatermark("at", DELAY).dropDuplicatesWithinWatermark(["id"])
    return events.groupBy(f.session_window("at", "2 seconds"), "key").agg(f.count("*"), f.sum("id"))


def joined(join_type: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
    def build(rows: DataFrame, others: DataFrame) -> DataFrame:
        left = rows.select("id", "amount", f.col("at").alias("left_at")).withWatermark("left_at", DELAY)
        right = others.select(
            f.col("id").alias("right_id"), f.col("note").alias("right_note"), f.col("at").alias("right_at")
        ).withWatermark("right_at", "8 seconds")
        condition = f.expr(
            "id = right_id AND right_at BETWEEN left_at - INTERVAL 4 SECOND AND left_at + INTERVAL 9 SECOND"
        )
        return left.join(right, condition, join_type)

    return build


def deduplicated_joins(rows: DataFrame, others: DataFrame) -> DataFrame:
    left = rows.select("id", "at").withWatermark("at", DELAY)
    right = others.select(f.col("id").alias("right_id"), "key")
    pairs = left.join(right, f.expr("id = right_id"), "inner").dropDuplicatesWithinWatermark(["id", "key"])
    return pairs.groupBy(f.window("at", "10 seconds")).agg(f.count("*"), f.count("key"))


JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
#: Of each row that comes, two that the watermark has passed are removed, while others are read and put.
REMOVING = {"spark.sql.streaming.statefulOperator.incrementalCleanupFactor": "2"}
STREAMLINED = REMOVING | {"spark.sql.streaming.useStreamlineAggregator": "true"}
NEW_JOIN_FORMAT = "stream-stream join where state format 4 is asked for"
CASES = {
    "aggregation in append mode": Case(windows, "append", ("stateStoreSave",)),
    "aggregation in complete mode": Case(lambda rows, _: sums(rows, "key"), "complete", ("stateStoreSave",)),
    "aggregation in update mode": Case(lambda rows, _: sums(rows, "key", "file"), "update", ("stateStoreSave",)),
    "aggregation in update mode with a watermark": Case(windows, "update", ("stateStoreSave",)),
    "global aggregation": Case(lambda rows, _: sums(rows), "update", ("stateStoreSave",)),
    "global aggregation in complete mode": Case(lambda rows, _: sums(rows), "complete", ("stateStoreSave",)),
    "dropDuplicates": Case(lambda rows, _: rows.select("key", "id").dropDuplicates(), "append", ("dedupe",)),
    "dropDuplicates with a watermark": Case(
        lambda rows, _: rows.select("id", "at").withWatermark("at", DELAY).dropDuplicates(["id", "at"]),
        "append",
        ("dedupe",),
    ),
    "dropDuplicatesWithinWatermark": Case(
        lambda rows, _: rows.withWatermark("at", DELAY).dropDuplicatesWithinWatermark(["id"]),
        "append",
        ("dedupeWithinWatermark",),
    ),
    "dropDuplicates that removes row by row": Case(
        lambda rows, _: rows.select("id", "at").withWatermark("at", DELAY).dropDuplicates(["id", "at"]),
        "append",
        ("dedupe",),
        everywhere=REMOVING,
    ),
    "streamlined aggregation": Case(windows, "update", ("StatefulStreamlineAggregate",), everywhere=STREAMLINED),
    "limit": Case(lambda rows, _: rows.select("id", "key").limit(270), "append", ("globalLimit",)),
    "applyInPandasWithState": Case(group_state, "append", ("applyInPandasWithState",)),
    "flatMapGroupsWithState": Case(
        lambda rows, _: in_scala(rows, "GroupStates", "counts"), "append", ("flatMapGroupsWithState",)
    ),
    "stream-stream join, inner": Case(joined("inner"), "append", ("symmetricHashJoin",)),
    "stream-stream join, left outer": Case(joined("left_outer"), "append", ("symmetricHashJoin",)),
    "stream-stream join, right outer": Case(joined("right_outer"), "append", ("symmetricHashJoin",)),
    "stream-stream join, full outer": Case(joined("full_outer"), "append", ("symmetricHashJoin",)),
    "stream-stream join, left semi": Case(joined("left_semi"), "append", ("symmetricHashJoin",)),
    # For other providers than RocksDB's, Spark silently uses format 2 in place of a higher one; with 1 no query starts.
    NEW_JOIN_FORMAT: Case(joined("inner"), "append", ("symmetricHashJoin",), {JOIN_FORMAT: "4"}),
    "session windows": Case(session_windows, "append", ("sessionWindowStateStoreSaveExec",)),
    "session windows in complete mode": Case(session_windows, "complete", ("sessionWindowStateStoreSaveExec",)),
    "transformWithStateInPandas": Case(transformed_in_pandas, "append", ("transformWithStateInPandasExec",)),
    "transformWithState, row by row": Case(transformed_rows, "append", ("transformWithStateInPySparkExec",)),
    "transformWithState with initial state": Case(
        transformed_from_initial, "append", ("transformWithStateInPySparkExec",)
    ),
    "transformWithState in Scala": Case(
        lambda rows, _: in_scala(rows, "Processors", "byEventTime"), "append", ("transformWithStateExec",)
    ),
    "deduplication, then session windows": Case(
        deduplicated_sessions, "append", ("sessionWindowStateStoreSaveExec", "dedupeWithinWatermark")
    ),
    "deduplication, then windows": Case(deduplicated_windows, "append", ("stateStoreSave", "dedupe")),
    "join, then deduplication, then windows": Case(
        deduplicated_joins, "append", ("stateStoreSave", "dedupeWithinWatermark", "symmetricHashJoin")
    ),
}
#: Cases that only Spark 4.3 knows.
NEEDS_43 = [name for name, case in CASES.items() if case.everywhere]
#: Cases that Spark 3.5 does not know.
NEEDS_40 = [name for name in CASES if name.startswith("transformWithState") or name == NEW_JOIN_FORMAT]
