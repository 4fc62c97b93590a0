"""Join two streams: views of an advertisement, each with its click if one comes within 5 minutes.

The state has the rows of both sides that may still find a partner. A view that found none is written without a click.
"""

from __future__ import annotations

from pyspark.sql import functions as f
from sandbox import Sandbox, print_batch, print_rows

import dynastate

VIEWS = "view string, at timestamp, page string"
CLICKS = "view string, clicked timestamp"
BATCHES_OF_VIEWS = [
    [("v1", "2026-11-02 10:00", "news"), ("v2", "2026-11-02 10:01", "sport")],
    [("v3", "2026-11-02 10:08", "news")],
    [("v4", "2026-11-02 10:20", "sport")],
]
BATCHES_OF_CLICKS = [[("v1", "2026-11-02 10:02")], [("v3", "2026-11-02 10:09")], [("v5", "2026-11-02 10:21")]]


def main() -> None:
    with Sandbox() as sandbox:
        builder = dynastate.configure(
            sandbox.builder(), checkpoint=True, endpoint=sandbox.endpoint, region=sandbox.region
        )
        spark = builder.getOrCreate()

        sandbox.add("views", BATCHES_OF_VIEWS)
        sandbox.add("clicks", BATCHES_OF_CLICKS)
        views = sandbox.stream(spark, "views", VIEWS).withWatermark("at", "1 minute").alias("views")
        clicks = sandbox.stream(spark, "clicks", CLICKS).withWatermark("clicked", "1 minute").alias("clicks")
        in_time = f.expr("views.view = clicks.view AND clicked BETWEEN at AND at + INTERVAL 5 MINUTES")
        joined = views.join(clicks, in_time, "left_outer").select("views.view", "page", "at", "clicked")

        writer = joined.writeStream.outputMode("append").foreachBatch(print_batch).trigger(availableNow=True)
        writer.option("checkpointLocation", "dynastate://ads/clicks").start().awaitTermination()

        # A join has several stores in each partition; this one has the rows.
        for side in ("left", "right"):
            with dynastate.open_state(
                f"ads/0/*/{side}-keyWithIndexToValue", endpoint=sandbox.endpoint, region=sandbox.region
            ) as state:
                rows = [{"view": row["view"]} for row in state]
            print_rows(f"views in the state, of the {side} stream", rows)


if __name__ == "__main__":
    main()
