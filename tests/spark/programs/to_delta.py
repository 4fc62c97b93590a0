"""Some queries that append to Delta tables, to be killed; those tables' rows, at the end, in a file each.

Run as `python -m tests.spark.programs.to_delta FOLDER DELTA_JARS [ENDPOINT]`. Without an endpoint state is in RocksDB.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import dynastate
from tests.spark.conftest import ON_ROCKSDB, spark_conf
from tests.spark.operators import CASES
from tests.spark.streams import open_stream, take_all

QUERIES = {
    "windows": CASES["aggregation in append mode"],
    "joined": CASES["stream-stream join, left outer"],
    "deduplicated": CASES["dropDuplicates"],
}


def rows_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.rows"


def main(folder: Path, jars: str, endpoint: str = "") -> None:
    conf = spark_conf(folder / "own") | {
        "spark.jars": jars,
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    builder = SparkSession.builder.master("local[2]").config(map=dict(conf))
    if endpoint:
        builder = dynastate.configure(builder, endpoint=endpoint, region="us-east-1")
    else:
        builder = builder.config(map=dict(ON_ROCKSDB))
    spark = builder.getOrCreate()
    queries = []
    for name, case in QUERIES.items():
        frame = case.build(*(open_stream(spark, folder / "files") for _ in range(2)))
        frame = frame.toDF(*(f"column_{number}" for number in range(len(frame.columns))))  # Delta refuses `count(1)`
        writer = frame.writeStream.format("delta").outputMode(case.mode)
        queries.append(writer.option("checkpointLocation", str(folder / "checkpoint" / name)).start(str(folder / name)))
    for query in queries:
        take_all(query)
        query.stop()
    for name in QUERIES:
        rows = spark.read.format("delta").load(str(folder / name)).collect()
        rows_file(folder, name).write_text("\n".join(sorted(map(repr, rows))))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
