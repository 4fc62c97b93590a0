"""All state that Spark's own state reader finds in a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

#: A row of state as text, by batch, operator and store or state variable.
States = list[tuple[object, ...]]


def read_metadata(session: SparkSession, checkpoint: Path) -> list[dict[str, object]]:
    """Operators and stores of a checkpoint, as rows of `format("state-metadata")`."""
    frame = session.read.format("state-metadata").load(str(checkpoint))
    rows = frame.select("*", "_numColsPrefixKey").orderBy("operatorId", "stateStoreName").collect()
    return [row.asDict() for row in rows]


def read_states(session: SparkSession, checkpoint: Path, batches: range) -> States:
    """Every row of every store after each of some batches, by `format("statestore")`, sorted."""
    found: States = []
    for options in _parts(read_metadata(session, checkpoint)):
        for batch in batches:
            rows = _read(session, checkpoint, options | {"batchId": str(batch)}).select(f.struct("*").cast("string"))
            found += [(batch, json.dumps(options), *row) for row in rows.collect()]
    return sorted(found)


def _read(session: SparkSession, checkpoint: Path, options: Mapping[str, str]) -> DataFrame:
    return session.read.format("statestore").options(**options).load(str(checkpoint))


def _parts(metadata: list[dict[str, object]]) -> Iterator[dict[str, str]]:
    """The options for each part of the state that can be read separately."""
    for store in metadata:
        operator = {"operatorId": str(store["operatorId"])}
        properties = json.loads(str(store["operatorProperties"] or "{}"))
        if properties.get("useVirtualColumnFamilies"):  # joins of state formats 3 and 4, which have one store
            yield from (operator | {"joinSide": side} for side in ("left", "right"))
            continue
        if "stateVariables" not in properties:
            yield operator | {"storeName": str(store["stateStoreName"])}
            continue
        names = [variable["stateName"] for variable in properties["stateVariables"]]
        # Spark's own variables begin with a dollar; of these the reader returns registered timers only.
        yield from (operator | {"stateVarName": name} for name in names if not name.startswith("$"))
        if properties["timeMode"] != "NoTime":
            yield operator | {"readRegisteredTimers": "true"}
