"""Export of a query from DynamoDB to one of Spark's own state stores (docs/changing-a-query.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dynastate.errors import ConfigurationError
from dynastate.progress import ProgressCallback, no_progress
from dynastate.spark.transfer.jvm import errors_of_spark
from dynastate.spark.transfer.origin import origin_settings
from dynastate.spark.transfer.steps import SPARKS_OWN, Moved, Source, Target, Transfer, namespace_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Names of Spark's stores in a command, and the class of the provider of each.
STORES: Final = {name.lower(): provider for provider, name in SPARKS_OWN.items()}
_CONF: Final = "spark.sql.streaming.stateStore"


def export_checkpoint(
    spark: SparkSession, old: str, new: str, store: str, progress: ProgressCallback = no_progress
) -> Moved:
    """Export the state of a query that has stopped to Spark's own `store`: `rocksdb` or `hdfs`.

    `old` and `new` are folders of checkpoints, as Spark names them; `old` and the state in DynamoDB are only read.
    `dynastate.configure` makes the session, with the jar and the settings of the tables; the query goes on without it.

    Raises:
        ConfigurationError: it cannot be exported; the message says why. The old checkpoint is unchanged.
        UnavailableError: DynamoDB was unreachable, or throttled, until the deadline; export again.
    """
    refuse_target(store, new)
    with errors_of_spark():
        transfer = Transfer(spark, "export-checkpoint", old, new)
        source = origin_settings(transfer)
        for described in transfer.plan["stores"]:
            if store == "hdfs" and described["families"]:
                raise ConfigurationError(
                    "Spark's HDFS-backed store has no column families, which this operator uses; export to rocksdb",
                    operator=described["operator"],
                    kind=described["kind"],
                )
        moved = transfer.run(Target(STORES[store]), Source(source), progress)
        has_ids = store == "rocksdb" and transfer.plan["ids"]
        confs = {f"{_CONF}.providerClass": STORES[store], f"{_CONF}.checkpointFormatVersion": "2" if has_ids else "1"}
        return replace(moved, confs=confs)


def refuse_target(store: str, new: str) -> None:
    """Refuse a store that is not Spark's own, and a checkpoint where such a store cannot be."""
    if store not in STORES:
        raise ConfigurationError(f"state can be exported to {' and '.join(STORES)}", store=store)
    if namespace_in(new):
        raise ConfigurationError(
            "Spark's own stores keep their files in the checkpoint, so that cannot be in DynamoDB: give a folder",
            checkpoint=new,
        )
