"""Moves of a large state: repartition, export to RocksDB, import from it, migration and copy, with the time of each.

A streaming aggregation makes the state, with one row for each key. Then the commands run one after another, on two
cores, each in a Spark of its own with a small heap.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from database import REGION, Database, add_arguments, database
from jvm import build
from pyspark_runs import in_own_process, spark_session
from targets import Target, console, finish

BEFORE, AFTER = 4, 6
#: Keys of a batch that fills.
FILL = 500_000
ROWS_A_SECOND = 200_000
STEPS = ("fill", "repartition", "export", "import", "migrate", "copy")
JUDGED = ("repartition", "export", "import")


def make_input(keys: int, folder: Path) -> None:
    """One parquet file a batch, with every key once."""
    folder.mkdir()
    every = np.random.default_rng(1).permutation(keys)
    for number, start in enumerate(range(0, keys, FILL)):
        names = pa.array([f"customer-{key:09d}" for key in every[start : start + FILL].tolist()])
        amounts = np.random.default_rng(number).random(len(names))
        pq.write_table(pa.table({"customer": names, "amount": amounts}), folder / f"{number:04d}.parquet")


def run_step(step: str, heap: str, endpoint: str, scratch: Path) -> dict[str, Any]:
    """Run one step; seconds, rows, and the most memory that the JVM used after a collection."""
    from query import aggregation

    import dynastate

    conf = {"spark.sql.shuffle.partitions": str(BEFORE), "spark.sql.streaming.maintenanceInterval": "1h"}
    spark = spark_session("dynastate", heap, scratch, conf, endpoint=endpoint, namespace=step)
    started = time.perf_counter()
    if step == "fill":
        writer = aggregation(spark, scratch / "input").writeStream.outputMode("update").format("noop")
        query = writer.option("checkpointLocation", str(scratch / step)).trigger(availableNow=True).start()
        query.awaitTermination()
        rows = query.recentProgress[-1].stateOperators[0].numRowsTotal
    elif step == "repartition":
        rows = dynastate.repartition(spark, str(scratch / "fill"), str(scratch / step), AFTER).rows
    elif step == "export":
        rows = dynastate.export_checkpoint(spark, str(scratch / "repartition"), str(scratch / step), "rocksdb").rows
    elif step == "import":
        rows = dynastate.import_checkpoint(spark, str(scratch / "export"), str(scratch / step)).rows
    else:
        schema = "count long, sum double, max float"
        rows = dynastate.migrate(spark, str(scratch / "fill"), str(scratch / step), same, schema=schema).rows
    seconds = time.perf_counter() - started
    jvm: Any = spark._jvm  # noqa: SLF001
    beans = jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    pools = [bean for bean in beans if bean.getCollectionUsage() is not None]
    used_bytes = sum(bean.getPeakUsage().getUsed() for bean in pools if "Old" in bean.getName())
    spark.stop()
    return {"seconds": seconds, "rows": rows, "old_generation_peak_mb": used_bytes / 1e6}


def same(_: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """A migration that changes nothing."""
    return value


def copy(running: Database) -> dict[str, Any]:
    """Copy the first namespace to other tables, and read both ends again; seconds, rows, and peak memory."""
    from dynastate.dynamodb.admin import create_tables
    from dynastate.dynamodb.boto_tables import BotoTables
    from dynastate.operations.cost.usage import usage_of_namespace
    from dynastate.operations.regions.copy import copy_stores, plan_copy
    from dynastate.settings import Settings

    os.environ.update(running.environment)
    settings = Settings(endpoint=running.endpoint, region=REGION)
    other = replace(settings, delta_table="copy-delta", snapshot_table="copy-snapshot")
    create_tables(other)
    started = time.perf_counter()
    with closing(BotoTables(settings)) as source, closing(BotoTables(other)) as target:
        copy_stores(source, target, plan_copy(source, target, "fill", settings), settings)
        seconds = time.perf_counter() - started
        rows = sum(each.rows for each in usage_of_namespace(target, "fill").values())
    return {"seconds": seconds, "rows": rows, "old_generation_peak_mb": 0}


def targets(by_step: dict[str, dict[str, Any]]) -> list[Target]:
    """What was measured, judged: microseconds a row."""
    return [
        Target(
            f"{step}: microseconds a row", 1e6 * by_step[step]["seconds"] / by_step[step]["rows"], 1e6 / ROWS_A_SECOND
        )
        for step in JUDGED
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=5_000_000, help="rows of state (default: %(default)s)")
    parser.add_argument("--heap", default="2g", help="of Spark's JVM (default: %(default)s)")
    parser.add_argument("--no-build", action="store_true", help="take the jars as they are")
    add_arguments(parser)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        order = json.loads(options.work)
        figures = run_step(order["step"], order["heap"], order["endpoint"], Path(order["scratch"]))
        Path(order["answer"]).write_text(json.dumps(figures))
        return
    if not options.no_build:
        build()
    out = console()
    steps: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, database(options.endpoint, options.engine) as running:
        scratch = Path(folder)
        with out.status("input"):
            make_input(options.keys, scratch / "input")
        for step in STEPS:
            with out.status(step):
                if step == "copy":
                    steps[step] = copy(running)
                else:
                    work = {"step": step, "heap": options.heap}
                    steps[step] = in_own_process(__file__, work, running, scratch, log=f"transfer-{step}")
            if steps[step]["rows"] != options.keys:
                sys.exit(f"benchmark: {step} found {steps[step]['rows']} rows, not {options.keys}")
            step_figures = steps[step]
            rate = step_figures["rows"] / step_figures["seconds"]
            out.print(
                f"{step}: {step_figures['seconds']:.1f} s, {rate:,.0f} rows a second, "
                f"old generation at most {step_figures['old_generation_peak_mb']:,.0f} MB"
            )
    judged = targets(steps)
    finish(out, "transfer", vars(options), steps, judged)


if __name__ == "__main__":
    main()
