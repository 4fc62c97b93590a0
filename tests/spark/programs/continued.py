"""Queries of operators on both stores, up to the files that are there; prints rows and state of each batch as JSON.

Run as `python -m tests.spark.programs.continued FOLDER ENDPOINT NAME…`, by the Python of any Spark. Each operator has
its sources and its checkpoints in a folder of its own, whose name is its number. It continues what is there.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import dynastate
from tests.spark.conftest import ON_ROCKSDB, spark_conf
from tests.spark.operators import CASES
from tests.spark.streams import Running, open_stream
from tests.support.jvm import build_jar

STORES = {"ours": {}, "rocksdb": ON_ROCKSDB}
#: What was seen of each batch, by operator, store and number of the batch.
Seen = dict[str, dict[str, dict[str, list[str]]]]


def main(folder: Path, endpoint: str, names: list[str]) -> None:
    conf = spark_conf(folder / "own") | {"spark.jars": str(build_jar())}
    builder = SparkSession.builder.master("local[2]").config(map=dict(conf))
    spark = dynastate.configure(builder, endpoint=endpoint, region="us-east-1").getOrCreate()
    seen: Seen = {}
    for number, name in enumerate(names):
        place, case = folder / str(number), CASES[name]
        queries = {}
        for store, options in STORES.items():
            session = spark.newSession()
            for option, setting in options.items():
                session.conf.set(option, setting)
            frame = case.build(*(open_stream(session, place / side) for side in ("left", "right")))
            queries[store] = Running(frame, place / store, case.mode)
        seen[name] = {store: end_of(query) for store, query in queries.items()}
    print(json.dumps(seen))  # noqa: T201  # the answer
    spark.stop()


def end_of(query: Running) -> dict[str, list[str]]:
    """Rows and state of each batch, or the condition of the error."""
    try:
        outcome = query.finish()
    except StreamingQueryException as error:
        return {"error": re.findall(r"\[([A-Z_.]+)\]", str(error))[1:2] or [str(error)]}
    return {str(batch): [repr(outcome.rows[batch]), repr(outcome.state[batch])] for batch in outcome.rows}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
