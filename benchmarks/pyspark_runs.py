"""PySpark queries, each in a Python process and a Spark of its own, with the state store that is named."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from database import REGION, Database
from jvm import CONF, CONTENDERS, JAR, OURS, PACKAGE
from processes import run_logged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Ours, with the query's checkpoint in DynamoDB.
NO_FILES = "ours-no-files"
#: A store that takes no time and keeps nothing (`EmptyStateStoreProvider.scala`).
EMPTY = "empty"
#: What other stores than ours are chosen with, which dynastate.configure() chooses.
OTHER_STORES = {
    name: {f"{CONF}.providerClass": each.provider, **each.conf} for name, each in CONTENDERS.items() if name != OURS
} | {EMPTY: {f"{CONF}.providerClass": f"{PACKAGE}.EmptyStateStoreProvider", "spark.driver.extraClassPath": str(JAR)}}
PARTITIONS = 2
#: What the stores that come with Spark have.
NO_DATABASE = Database("", dict(os.environ), "")


def spark_session(
    store: str,
    heap: str,
    scratch: Path,
    conf: Mapping[str, str],
    *,
    endpoint: str,
    slots: int = PARTITIONS,
    **settings: Any,
) -> SparkSession:
    """A Spark with some task slots, whose state goes to the store that is named; `settings` are those of dynastate."""
    from pyspark.sql import SparkSession

    confs: dict[str, bool | float | int | str | None] = {
        "spark.driver.memory": heap,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        **OTHER_STORES.get(store, {}),
        **conf,
    }
    builder = SparkSession.builder.master(f"local[{slots}]").appName("dynastate benchmark").config(map=confs)
    if store not in OTHER_STORES:
        import dynastate

        builder = dynastate.configure(builder, endpoint=endpoint, region=REGION, **settings)
    return builder.getOrCreate()


def write_batch(table: pa.Table, folder: Path, number: int) -> None:
    """Write the rows of one batch as a parquet file, which Spark's file source takes in the order of numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{number:04d}.parquet"
    pq.write_table(table, file)
    # The source goes by the time of change; files of one second would come in any order.
    os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def in_own_process(script: str, work: Mapping[str, Any], database: Database, scratch: Path, log: str) -> Any:
    """What `script --work` leaves in the file `answer` of its work, in a fresh Python process."""
    answer = scratch / "answer.json"
    order = json.dumps({**work, "endpoint": database.endpoint, "scratch": str(scratch), "answer": str(answer)})
    run_logged(
        [sys.executable, script, "--work", order], {**database.environment, "PYSPARK_PYTHON": sys.executable}, log
    )
    return json.loads(answer.read_text())
