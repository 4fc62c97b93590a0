"""Another number of partitions for a stopped query (docs/changing-a-query.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.errors import ConfigurationError
from dynastate.operations.cost.usage import StorageUsage, usage_of_namespace
from dynastate.prices import Prices
from dynastate.progress import ProgressCallback, no_progress
from dynastate.settings import PREFIX
from dynastate.spark.transfer.jvm import errors_of_spark
from dynastate.spark.transfer.origin import origin_settings
from dynastate.spark.transfer.steps import Moved, Source, Transfer, tables_of
from dynastate.storage.meter import Meter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Items of a commit beside its rows: its place in the list of stores, meta item, version list, manifest, and what small
#: stores round up.
_ITEMS_OF_A_STORE = 7


@dataclass(frozen=True)
class Estimate:
    """The cost of a repartition before it starts, by the version lists; `bytes` are compressed."""

    namespace: str
    stores: int
    new_stores: int
    rows: int
    bytes: int
    write_units: int
    read_units: int
    dollars: float


def repartition(
    spark: SparkSession,
    old: str,
    new: str,
    partitions: int,
    namespace: str | None = None,
    progress: ProgressCallback = no_progress,
    confirm: Callable[[Estimate], None] = lambda _: None,
) -> Moved:
    """Give a query that has stopped another number of shuffle partitions, in a new namespace.

    `old` and `new` are folders of checkpoints, as Spark names them; `old` and its namespace are only read.
    `dynastate.configure` makes the session, with the jar and the settings of the tables; `shards` and other settings of
    the new stores are the session's. `confirm` gets the cost before anything is written, and may raise to stop it.
    Operators that need all rows together stay in one partition.

    Raises:
        ConfigurationError: it cannot be repartitioned; the message says why. Nothing old is changed.
        UnavailableError: DynamoDB was unreachable, or throttled, until the deadline; run it again.
    """
    if partitions < 1:
        raise ConfigurationError("the number of partitions must be 1 or more", partitions=partitions)
    with errors_of_spark():
        transfer = Transfer(spark, "repartition", old, new)
        source = origin_settings(transfer)
        to = transfer.ours(namespace, partitions, other=source[f"{PREFIX}namespace"])
        if all(each["single"] for each in transfer.plan["stores"]):
            raise ConfigurationError(
                "every operator of this query needs all its rows in one partition, whatever the number of partitions",
                checkpoint=transfer.source,
            )
        with tables_of(source) as tables:
            confirm(_estimate(tables, source[f"{PREFIX}namespace"], len(transfer.stores(to))))
        return transfer.run(to, Source(source), progress)


def _estimate(tables: BotoTables, namespace: str, new_stores: int) -> Estimate:
    tables = tables.metered(Meter())
    usage = sum(usage_of_namespace(tables, namespace).values(), StorageUsage())
    row_bytes = usage.workload()["state_row_bytes"]
    size = round(usage.rows * row_bytes)
    # The last two are the record of the namespace, and its list of stores.
    write_units = size // 1024 + _ITEMS_OF_A_STORE * new_stores + 2
    # All of the old versions that a restart reads, and the new state once, in consistent reads of 4 KB.
    read_units = (size + usage.record_bytes) // 4096 + size // 4096 + 4 * (usage.stores + new_stores)
    prices = Prices.of(tables.settings)
    return Estimate(
        namespace=namespace,
        stores=usage.stores,
        new_stores=new_stores,
        rows=usage.rows,
        bytes=size,
        write_units=write_units,
        read_units=read_units,
        dollars=prices.nanodollars(write_units, read_units) / 1e9,
    )
