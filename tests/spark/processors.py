"""Queries with transformWithState, by frames and by rows: all kinds of state, timers, initial state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row

with suppress(ImportError):  # Spark 3.5 has none, and tests of these queries are skipped
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

DELAY = "5 seconds"
OUTPUT = "key string, what string, rows long, amounts string"


def transformed_in_pandas(rows: DataFrame, _: DataFrame) -> DataFrame:
    """Count and list by key, last amount by file; a timer closes a key that was idle, and drops its list."""
    idle_ms = 15_000

    # Workers get a nested class by value; one of a module they would have to import.
    class Counts(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.handle = handle
            self.count = handle.getValueState("count", "rows long")
            self.amounts = handle.getListState("amounts", "amount long")
            self.files = handle.getMapState("files", "file int", "amount long")
            handle.deleteIfExists("never there")

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
            count = self.count.get()[0] if self.count.exists() else 0
            for frame in rows:
                count += len(frame)
                self.amounts.appendList([(int(amount),) for amount in sorted(frame["amount"])])
                for file, amounts in frame.groupby("file")["amount"]:
                    self.files.updateValue((int(file),), (int(amounts.sum()),))
            self.count.update((count,))
            for timer in list(self.handle.listTimers()):
                self.handle.deleteTimer(timer)
            self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + idle_ms)
            if count > 60:
                self.files.clear()
            text = f"{sum(1 for _ in self.amounts.get())} {sorted(file[0] for file in self.files.keys())}"
            yield pd.DataFrame({"key": [key[0]], "what": ["seen"], "rows": [count], "amounts": [text]})

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
            amounts = sorted(amount[0] for amount in self.amounts.get())
            self.amounts.clear()
            count = self.count.get()[0]
            yield pd.DataFrame({"key": [key[0]], "what": ["idle"], "rows": [count], "amounts": [str(amounts)]})

        def close(self) -> None:
            pass

    events = rows.na.fill(0, ["amount"]).withWatermark("at", DELAY)
    return events.groupBy("key").transformWithStateInPandas(Counts(), OUTPUT, "append", "eventTime")


def transformed_rows(rows: DataFrame, _: DataFrame) -> DataFrame:
    """The newest three amounts by key, put as a whole list; a key is removed when it has too many rows."""

    class Newest(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.count = handle.getValueState("count", "rows long")
            self.newest = handle.getListState("newest", "amount long, note string")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            tuples = sorted((row.at, row.amount, row.note) for row in rows)
            count = (self.count.get()[0] if self.count.exists() else 0) + len(tuples)
            newest = [*self.newest.get(), *((amount, note) for _, amount, note in tuples)][-3:]
            if count > 40:
                self.count.clear()
                self.newest.clear()
            else:
                self.count.update((count,))
                self.newest.put(newest)
            yield Row(key=key[0], what="seen", rows=count, amounts=str([amount for amount, _ in newest]))

        def close(self) -> None:
            pass

    return rows.na.fill(0, ["amount"]).groupBy("key").transformWithState(Newest(), OUTPUT, "append", "none")


def transformed_from_initial(rows: DataFrame, _: DataFrame) -> DataFrame:
    """A sum by key that begins with the amounts of an ordinary frame."""

    class Sums(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.sum = handle.getValueState("sum", "amount long")

        def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
            self.sum.update((initialState.amount,))

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            amount = (self.sum.get()[0] if self.sum.exists() else 0) + sum(row.amount for row in rows)
            self.sum.update((amount,))
            yield Row(key=key[0], what="seen", rows=0, amounts=str(amount))

        def close(self) -> None:
            pass

    initial = rows.sparkSession.createDataFrame(
        [("key-1", 1_000), ("key-2", 2_000), ("UA", 3_000), ("alone", 5)], "key string, amount long"
    )
    amounts = rows.na.fill(0, ["amount"])
    return amounts.groupBy("key").transformWithState(Sums(), OUTPUT, "append", "none", initial.groupBy("key"))


def transformed_by_processing_time(rows: DataFrame) -> DataFrame:
    """As `Processors.byProcessingTime` in Scala: state that lives for a millisecond or an hour, and timers."""

    class Expiring(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.handle = handle
            kinds = (("brief", 1), ("long", 3_600_000))
            self.values = [handle.getValueState(f"{name}Value", "value long", ttl) for name, ttl in kinds]
            self.lists = [handle.getListState(f"{name}List", "value long", ttl) for name, ttl in kinds]
            self.maps = [handle.getMapState(f"{name}Map", "key long", "value long", ttl) for name, ttl in kinds]

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            amounts = sorted(row.amount for row in rows)
            values = [
                *(state.get()[0] if state.exists() else None for state in self.values),
                *([value[0] for value in state.get()] for state in self.lists),
                *(sorted((key[0], value[0]) for key, value in state.iterator()) for state in self.maps),
            ]
            for value in self.values:
                value.update((sum(amounts),))
            for list_state in self.lists:
                list_state.appendList([(amount,) for amount in amounts])
            for map_state in self.maps:
                for amount in amounts:
                    map_state.updateValue((amount % 5,), (amount,))
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
            yield Row(key=key[0], what="seen", rows=len(amounts), amounts=str(values))

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            yield Row(key=key[0], what="due", rows=0, amounts="")

        def close(self) -> None:
            pass

    return rows.na.fill(0, ["amount"]).groupBy("key").transformWithState(Expiring(), OUTPUT, "append", "processingTime")


def evolved(rows: DataFrame, variables: tuple[str, ...], kind: str = "long") -> DataFrame:
    """Sums by key in some state variables of `a`, `b` and `c`; the others are deleted."""

    class Sums(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.sums = {name: handle.getValueState(name, f"amount {kind}") for name in variables}
            for name in {"a", "b", "c"} - set(variables):
                handle.deleteIfExists(name)

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
            amounts = [row.amount for row in rows]
            for state in self.sums.values():
                state.update(((state.get()[0] if state.exists() else 0) + sum(amounts),))
            values = {name: state.get()[0] for name, state in self.sums.items()}
            yield Row(key=key[0], what="seen", rows=len(amounts), amounts=str(values))

        def close(self) -> None:
            pass

    return rows.groupBy("key").transformWithState(Sums(), OUTPUT, "append", "none")


#: Columns of a value, a list and the values of a map in each run of a query whose schemas change: columns are added,
#: reordered, widened, nested deeper and dropped.
SCHEMAS = (
    ("rows int, note string", "amount int", "part struct<low int, note string>, amount int"),
    (
        "extra string, rows long, note string",
        "note string, amount long",
        "amount double, part struct<note string, new int, low long>",
    ),
    ("rows double", "amount double, at array<struct<low int>>", "part struct<low double>"),
)


def with_schemas(rows: DataFrame, turn: int) -> DataFrame:
    """What each key has, in the schemas of a turn; then values that show which turn wrote them."""
    of_value, of_list, of_map = SCHEMAS[turn]

    class Evolving(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.value = handle.getValueState("value", of_value)
            self.list = handle.getListState("list", of_list)
            self.map = handle.getMapState("map", "file int", of_map)

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
            count = sum(map(len, rows))
            files = sorted((file[0], tuple(part)) for file, part in self.map.iterator())
            values = [self.value.get(), [tuple(each) for each in self.list.get()], files]
            if turn == 0:
                self.value.update((count, "first"))
                self.list.appendList([(count,), (-count,)])
                self.map.updateValue((turn,), ((count, "é"), count))
            elif turn == 1:
                self.value.update(("new", count, "second"))
                self.list.appendValue(("second", 1 << 40))
                self.map.updateValue((turn,), (count + 0.5, ("part", None, 1 << 40)))
            else:
                self.value.update((count + 0.25,))
                self.list.appendValue((count + 0.25, [(1,), (None,)]))
                self.map.updateValue((turn,), ((count + 0.25,),))
            yield pd.DataFrame({"key": [key[0]], "what": ["seen"], "rows": [count], "amounts": [str(values)]})

        def close(self) -> None:
            pass

    return rows.groupBy("key").transformWithStateInPandas(Evolving(), OUTPUT, "append", "none")
