"""All state that Spark's own state reader finds in a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.spark.streams import Outcome

#: A row of state as text, by batch, operator and store or state variable.
States = list[tuple[object, ...]]


def read_metadata(session: SparkSession, checkpoint: Path | str) -> list[dict[str, object]]:
    """Operators and stores of a checkpoint, as rows of `format("state-metadata")`."""
    frame = session.read.format("state-metadata").load(str(checkpoint))
    rows = frame.select("*", "_numColsPrefixKey").orderBy("operatorId", "stateStoreName").collect()
    return [row.asDict() for row in rows]


def read_states(session: SparkSession, checkpoint: Path | str, batches: range, *, partitions: bool = True) -> States:
    """Every row of every store after each of some batches, by `format("statestore")`, sorted.

    Without `partitions` they do not show the partition they are in.
    """
    columns = () if partitions else ("partition_id",)
    states: States = []
    for _, options in parts_of(read_metadata(session, checkpoint)):
        for batch in batches:
            frame = read_state(session, checkpoint, batchId=str(batch), **options).drop(*columns)
            rows = frame.select(f.struct("*").cast("string"))
            states += [(batch, json.dumps(options), *row) for row in rows.collect()]
    return sorted(states)


def last_states(session: SparkSession, checkpoint: Path | str, outcome: Outcome, *, partitions: bool = True) -> States:
    """Every row after the last batch; there are some."""
    last = max(outcome.rows)
    states = read_states(session, checkpoint, range(last, last + 1), partitions=partitions)
    assert states
    return states


def read_state(session: SparkSession, checkpoint: Path | str, /, **options: str) -> DataFrame:
    return session.read.format("statestore").options(**options).load(str(checkpoint))


def parts_of(metadata: list[dict[str, object]]) -> Iterator[tuple[str, dict[str, str]]]:
    """Each part of the state that can be read separately: its stores by dynastate's names, and the reader's options."""
    for store in metadata:
        operator, name = str(store["operatorId"]), str(store["stateStoreName"])
        stores, options = f"{operator}/*/{name}", {"operatorId": operator}
        properties = json.loads(str(store["operatorProperties"] or "{}"))
        if properties.get("useVirtualColumnFamilies"):  # joins of state formats 3 and 4, which have one store
            yield from ((stores, options | {"joinSide": side}) for side in ("left", "right"))
        elif "stateVariables" not in properties:
            yield stores, options | {"storeName": name}
        else:
            names = [variable["stateName"] for variable in properties["stateVariables"]]
            # Spark's own variables begin with a dollar; of these the reader returns registered timers only.
            yield from ((stores, options | {"stateVarName": name}) for name in names if not name.startswith("$"))
            if properties["timeMode"] != "NoTime":
                yield stores, options | {"readRegisteredTimers": "true"}
