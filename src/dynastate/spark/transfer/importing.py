"""Import of a query from Spark's own state stores into DynamoDB (docs/import.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynastate.errors import ConfigurationError
from dynastate.progress import ProgressCallback, no_progress
from dynastate.spark.transfer.jvm import errors_of_spark
from dynastate.spark.transfer.steps import OURS, SPARKS_OWN, Moved, Source, Transfer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def import_checkpoint(
    spark: SparkSession, old: str, new: str, namespace: str | None = None, progress: ProgressCallback = no_progress
) -> Moved:
    """Import the state of a query that has stopped, as it was after its last committed batch.

    `old` and `new` are folders of checkpoints, as Spark names them; `old` is only read. `dynastate.configure` makes the
    session, with the jar and the settings of the tables. A batch that was begun and not committed is imported as such.

    Raises:
        ConfigurationError: it cannot be imported; the message says why. The old checkpoint is unchanged.
        UnavailableError: DynamoDB was unreachable, or throttled, until the deadline; import again.
    """
    with errors_of_spark():
        transfer = Transfer(spark, "import", old, new)
        refuse_provider(transfer.plan["provider"], transfer.source)
        return transfer.run(transfer.ours(namespace), Source(), progress)


def refuse_provider(provider: str, old: str) -> None:
    """Refuse a checkpoint of other stores than Spark's own."""
    if provider == OURS:
        raise ConfigurationError("the query keeps its state in DynamoDB already", checkpoint=old)
    if provider not in SPARKS_OWN:
        raise ConfigurationError(
            f"state can be imported from Spark's own stores, {' and '.join(SPARKS_OWN.values())}", provider=provider
        )
