"""Deduplicate payments that are delivered more than once.

The state has each id until no copy of it can come any more: 10 minutes of event time after the payment.
"""

from __future__ import annotations

from sandbox import Sandbox, print_batch, print_rows

import dynastate

PAYMENTS = "id string, at timestamp, amount int"
BATCHES = [
    [("p1", "2026-11-02 10:00", 25), ("p2", "2026-11-02 10:01", 40), ("p1", "2026-11-02 10:00", 25)],
    [("p2", "2026-11-02 10:01", 40), ("p3", "2026-11-02 10:05", 15)],
    [("p4", "2026-11-02 10:30", 60)],
    [("p4", "2026-11-02 10:30", 60), ("p5", "2026-11-02 10:32", 10)],
]


def main() -> None:
    with Sandbox() as sandbox:
        builder = dynastate.configure(
            sandbox.builder(), checkpoint=True, endpoint=sandbox.endpoint, region=sandbox.region
        )
        spark = builder.getOrCreate()

        sandbox.add("payments", BATCHES)
        payments = sandbox.stream(spark, "payments", PAYMENTS).withWatermark("at", "10 minutes")
        unique = payments.dropDuplicatesWithinWatermark(["id"])

        writer = unique.writeStream.foreachBatch(print_batch).trigger(availableNow=True)
        writer.option("checkpointLocation", "dynastate://payments/unique").start().awaitTermination()

        with dynastate.open_state("payments/0", endpoint=sandbox.endpoint, region=sandbox.region) as state:
            rows = [{"id": row["id"]} for row in state]
        print_rows("ids in the state", rows)


if __name__ == "__main__":
    main()
