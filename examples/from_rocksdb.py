"""Move a query from Spark's RocksDB store to DynamoDB, and continue it with the counts that it had.

It runs two batches with its state in RocksDB and its checkpoint in a folder. `import_checkpoint` copies the state, and
makes a checkpoint in DynamoDB; from there the query takes the next batch. Needs Spark 4.3.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from sandbox import Sandbox, print_batch, print_rows

import dynastate

STORE = "spark.sql.streaming.stateStore"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
BATCHES = [[("ann", 25), ("bob", 40)], [("ann", 15)]]
NEXT_BATCHES = [[("bob", 5), ("cho", 60)]]


def run(spark: SparkSession, sandbox: Sandbox, checkpoint: str) -> None:
    """Sum the orders of each user: the same query, wherever its state is."""
    orders = sandbox.stream(spark, "orders", "user string, euros int")
    writer = orders.groupBy("user").sum("euros").writeStream.outputMode("update").foreachBatch(print_batch)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    with Sandbox() as sandbox:
        builder = dynastate.configure(
            sandbox.builder(), checkpoint=True, endpoint=sandbox.endpoint, region=sandbox.region
        )
        spark = builder.getOrCreate()

        print("with RocksDB")
        before = spark.newSession()
        before.conf.set(f"{STORE}.providerClass", ROCKSDB)
        before.conf.set(f"{STORE}.checkpointFormatVersion", "1")
        old = str(sandbox.folder / "checkpoint")
        sandbox.add("orders", BATCHES)
        run(before, sandbox, old)

        moved = dynastate.import_checkpoint(spark, old, "dynastate://orders/sums")
        print(f"imported {moved.rows} rows")

        print("with DynamoDB")
        sandbox.add("orders", NEXT_BATCHES)
        run(spark, sandbox, "dynastate://orders/sums")

        with dynastate.open_state("orders/0", endpoint=sandbox.endpoint, region=sandbox.region) as state:
            print_rows("sums in the state", state)


if __name__ == "__main__":
    main()
