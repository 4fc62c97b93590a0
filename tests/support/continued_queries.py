"""Two streaming queries on the dynastate that is installed: `run` them on new input, or `read` their state.

`installed_wheel.py` runs them in turn with two releases, so this uses public names only. DynamoDB and its credentials
come from the environment; the answer is one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

import dynastate

CONF: Final[Mapping[str, str]] = {
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
NAMESPACE: Final = "spark.sql.streaming.stateStore.dynastate.namespace"


def run(folder: Path) -> dict[str, Any]:
    """Run both until they have read all files; the totals of every user, and the users that are seen first."""
    where = {"endpoint": os.environ["AWS_ENDPOINT_URL"], "region": os.environ["AWS_REGION"]}
    builder = SparkSession.builder.master(os.environ.get("MASTER", "local[2]")).config(map=dict(CONF))
    spark = dynastate.configure(builder, **where).getOrCreate()
    events = spark.readStream.schema("user string, amount long").option("maxFilesPerTrigger", 1)
    rows = events.json(str(folder / "in"))
    totals: dict[str, list[int]] = {}
    firsts: list[str] = []

    def keep_totals(batch: DataFrame, _: int) -> None:
        totals.update({row["user"]: [row["events"], row["amount"]] for row in batch.collect()})

    def keep_firsts(batch: DataFrame, _: int) -> None:
        firsts.extend(row["user"] for row in batch.collect())

    summed = rows.groupBy("user").agg(F.count("*").alias("events"), F.sum("amount").alias("amount"))
    queries = []
    for name, frame, mode, keep in (
        ("totals", summed, "complete", keep_totals),
        ("firsts", rows.select("user").dropDuplicates(["user"]), "append", keep_firsts),
    ):
        spark.conf.set(NAMESPACE, name)  # a query has the settings with which it was started
        writer = frame.writeStream.outputMode(mode).option("checkpointLocation", str(folder / "checkpoint" / name))
        queries.append(writer.trigger(availableNow=True).foreachBatch(keep).start())
    for query in queries:
        query.awaitTermination()
    spark.stop()
    return {"totals": totals, "firsts": sorted(firsts)}


def read() -> dict[str, Any]:
    """The same from the state: the totals of every user, and all users that were seen."""
    with dynastate.open_state("totals/0") as state:
        totals = {row["user"]: [row["count"], row["sum"]] for row in state}
    with dynastate.open_state("firsts/0") as state:
        return {"totals": totals, "firsts": sorted(row["user"] for row in state)}


if __name__ == "__main__":
    print(json.dumps(read() if sys.argv[1] == "read" else run(Path(sys.argv[2]))))
