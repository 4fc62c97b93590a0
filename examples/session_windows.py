"""Group clicks into sessions: a session ends when its user has clicked nothing for 5 minutes.

The state has the open sessions. A session is written once the watermark is past its end, and then its row is removed.
"""

from __future__ import annotations

from pyspark.sql import functions as f
from sandbox import Sandbox, print_batch, print_rows

import dynastate

CLICKS = "user string, at timestamp, page string"
BATCHES = [
    [("ann", "2026-11-02 10:00", "home"), ("bob", "2026-11-02 10:02", "home"), ("ann", "2026-11-02 10:03", "shoes")],
    [("ann", "2026-11-02 10:06", "basket"), ("bob", "2026-11-02 10:15", "home")],
    [("cho", "2026-11-02 10:17", "home"), ("bob", "2026-11-02 10:18", "hats")],
]


def main() -> None:
    with Sandbox() as sandbox:
        builder = dynastate.configure(
            sandbox.builder(), checkpoint=True, endpoint=sandbox.endpoint, region=sandbox.region
        )
        spark = builder.getOrCreate()

        sandbox.add("clicks", BATCHES)
        clicks = sandbox.stream(spark, "clicks", CLICKS).withWatermark("at", "1 minute")
        sessions = clicks.groupBy("user", f.session_window("at", "5 minutes")).agg(
            f.count("*").alias("clicks"), f.last("page").alias("last_page")
        )
        closed = sessions.selectExpr("user", "session_window.start", "session_window.end", "clicks", "last_page")

        writer = closed.writeStream.outputMode("append").foreachBatch(print_batch).trigger(availableNow=True)
        writer.option("checkpointLocation", "dynastate://clicks/sessions").start().awaitTermination()

        with dynastate.open_state("clicks/0", endpoint=sandbox.endpoint, region=sandbox.region) as state:
            rows = [{"user": row["user"], **row["session_window"], "clicks": row["count"]} for row in state]
        print_rows("open sessions in the state", rows)


if __name__ == "__main__":
    main()
