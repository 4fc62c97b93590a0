"""What a watermark removes from a running query is gone from all items after the batches that are computed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.namespaces import read_namespace
from dynastate.operations.cost.removal import RemovalSettings, delay_of
from dynastate.settings import PREFIX
from tests.spark.conftest import CONF, Graphs, Sessions
from tests.spark.streams import START, Record, Source
from tests.support.processes import wait_until
from tests.support.search import places_with

pytestmark = pytest.mark.slow

MARK = "the only row of this customer"
SETTINGS = RemovalSettings(retain=2, extra=0, min_deltas=1, snapshot_threshold=0, maintenance_s=0)
#: Where maintenance runs after each batch.
DELAY = delay_of(SETTINGS, batch_s=1)
FILES = 3 + DELAY.batches


def rows_of(file: int) -> list[Record]:
    """The customer is in the first file; each file is a minute later than the one before."""
    keys = [*(f"key-{number}" for number in range(20)), *([MARK] if file == 0 else [])]
    at = (START + timedelta(minutes=file)).isoformat()
    return [{"file": file, "key": key, "id": 1, "amount": 1, "note": "", "at": at} for key in keys]


@pytest.mark.usefixtures("fresh_stores")
def test_a_row_below_the_watermark(sessions: Sessions, tables: BotoTables, graphs: Graphs, folder: Path) -> None:
    """The second file raises the watermark above the row, and the batch of the third removes it."""
    conf = {
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.minBatchesToRetain": str(SETTINGS.retain),
        "spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint": str(SETTINGS.extra),
        f"{CONF}.minDeltasForSnapshot": str(SETTINGS.min_deltas),
        f"{CONF}.maintenanceInterval": "100ms",
        f"{PREFIX}snapshotThreshold": str(SETTINGS.snapshot_threshold),
        f"{PREFIX}namespace": folder.name,
    }
    session, source = sessions(conf), Source(folder / "files", [rows_of(file) for file in range(FILES)])
    source.release(1)
    counts = source.stream(session).withWatermark("at", "5 seconds").groupBy("key", f.window("at", "10 seconds"))
    batches: list[int] = []

    def sink(batch: DataFrame, number: int) -> None:
        batch.collect()
        batches.append(number)

    writer = counts.count().writeStream.outputMode("update").foreachBatch(sink)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()

    def run_to(batch: int) -> None:
        source.release(batch + 1)
        wait_until(lambda: batch in batches or not query.isActive, f"no batch {batch}", 60)
        query.processAllAvailable()

    def is_there() -> bool:
        return bool(places_with(tables, [store], MARK.encode()))

    def has_snapshot() -> bool:
        return any(each.version >= removed_at for each in graphs(store).done_snapshots())

    try:
        run_to(1)
        stores = read_namespace(tables, folder.name).listed
        (store,) = (each for each in stores if places_with(tables, [each], MARK.encode()))
        run_to(2)
        removed_at = graphs(store).newest().version
        wait_until(has_snapshot, "no snapshot", 60)
        for batch in range(3, 3 + DELAY.batches):
            assert is_there()
            run_to(batch)
        wait_until(lambda: not is_there(), "an item has the removed row", 60)
        assert graphs(store).newest().version == removed_at + DELAY.batches
    finally:
        query.stop()
