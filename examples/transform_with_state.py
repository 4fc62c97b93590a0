"""Watch sensors with `transformWithState`: alarms for hot readings in a row, and for a sensor that is silent.

The state has two variables for each sensor, the hot readings in a row and its places, and a timer that finds silence.
Needs Spark 4.1 or newer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from sandbox import Sandbox, print_batch, print_rows

import dynastate

READINGS = "sensor string, at timestamp, place string, celsius int"
BATCHES = [
    [("s1", "2026-11-02 10:00", "roof", 31), ("s2", "2026-11-02 10:00", "cellar", 18)],
    [("s1", "2026-11-02 10:03", "roof", 32), ("s1", "2026-11-02 10:04", "yard", 33)],
    [("s1", "2026-11-02 10:16", "yard", 20), ("s3", "2026-11-02 10:17", "roof", 30)],
]
HOT_CELSIUS = 30
HOT_IN_A_ROW = 3
SILENT_MS = 10 * 60 * 1000


class Sensors(StatefulProcessor):
    """Processor of the readings of one sensor at a time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.hot = handle.getValueState("hot", "in_a_row int")
        self.places = handle.getMapState("places", "place string", "readings int")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.at):
            hot = (self.hot.get()[0] if self.hot.exists() else 0) + 1 if row.celsius >= HOT_CELSIUS else 0
            self.hot.update((hot,))
            place = (row.place,)
            readings = self.places.getValue(place)[0] if self.places.containsKey(place) else 0
            self.places.updateValue(place, (readings + 1,))
            if hot == HOT_IN_A_ROW:
                yield Row(sensor=key[0], alarm=f"{hot} hot readings in a row")
            last_ms = int(row.at.timestamp() * 1000)
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(last_ms + SILENT_MS)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(sensor=key[0], alarm="silent for 10 minutes")

    def close(self) -> None:
        pass


def main() -> None:
    with Sandbox() as sandbox:
        builder = dynastate.configure(
            sandbox.builder(), checkpoint=True, endpoint=sandbox.endpoint, region=sandbox.region
        )
        spark = builder.getOrCreate()

        sandbox.add("readings", BATCHES)
        readings = sandbox.stream(spark, "readings", READINGS).withWatermark("at", "1 minute")
        alarms = readings.groupBy("sensor").transformWithState(
            Sensors(), "sensor string, alarm string", outputMode="append", timeMode="eventTime"
        )

        writer = alarms.writeStream.outputMode("append").foreachBatch(print_batch).trigger(availableNow=True)
        writer.option("checkpointLocation", "dynastate://sensors/alarms").start().awaitTermination()

        for variable in ("hot", "places"):  # each is a column family of the store
            with dynastate.open_state(
                "sensors/0", family=variable, endpoint=sandbox.endpoint, region=sandbox.region
            ) as state:
                print_rows(f"state variable {variable}", state)


if __name__ == "__main__":
    main()
