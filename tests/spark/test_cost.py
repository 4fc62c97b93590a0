"""Costs reported by real queries, compared with the formula, the tables and the command `cost`."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.catalog import find_stores
from dynastate.format.checkpoint import EVERY_ITEM, Checkpoint
from dynastate.format.items import StorageSize, item_bytes
from dynastate.format.keys import SPECS, store_shard
from dynastate.operations.cost.log import LogUsage, usage_of_logs
from dynastate.operations.cost.prediction import DAY_S, Workload, predict
from dynastate.operations.cost.usage import usage_of_namespace
from dynastate.operations.lifecycle.runs import read_meta
from dynastate.operations.monitoring.reports import QueryUsage, ReportFile, usage_of_queries
from dynastate.storage.meter import units_of_write
from tests.spark.conftest import CONF, Sessions
from tests.spark.operators import CASES, sums
from tests.spark.streams import Source, Sources, make_rows, make_source, run
from tests.spark.test_checkpoint_in_dynamodb import IN_DYNAMODB
from tests.support.jvm import ROOT
from tests.support.processes import wait_until

PAGE = ROOT / "docs" / "costs.md"
SEED = 31
#: Batches until the state is full and clean-up has run a few times, and batches that are measured.
WARM, MEASURED = 32, 40
KEYS = 500
WITHIN = 0.15
#: Maintenance that has begun changes something within this time.
PAUSE_S = 0.2


def listen(session: SparkSession, file: Path) -> None:
    """Write a session's progress reports to a file, with the listener of docs/costs.md."""
    (program,) = re.findall(r"```python\n([^`]*class ProgressFile[^`]*)```", PAGE.read_text())
    defined: dict[str, Any] = {}
    exec(program, defined)  # noqa: S102  # our own documentation
    listener: StreamingQueryListener = defined["ProgressFile"](file)
    session.streams.addListener(listener)


def listed(tables: BotoTables, store: str, shards: int = 4) -> StorageSize:
    content = [
        item
        for role in SPECS
        for shard in range(shards)
        for _, item in tables.query(role, store_shard(store, shard), "!", "~")
    ]
    return StorageSize(len(content), sum(map(item_bytes, content)))


def spent(progress: Path, batches: range) -> QueryUsage:
    """Usage of some batches, once all of them are reported."""
    patterns = [f'"batchId":{number},' for number in batches]

    def lines() -> list[str]:
        text = progress.read_text() if progress.exists() else ""
        whole = text.split("\n")[:-1]
        return [line for line in whole if any(each in line.replace(" ", "") for each in patterns)]

    def is_there() -> bool:
        return sum('"addBatch"' in line for line in lines()) >= len(batches)

    wait_until(is_there, "batches are not reported")
    (usage,) = usage_of_queries(lines(), progress.name, None)
    assert usage.batches == len(batches)
    return usage


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_formula_is_what_is_counted(fresh_stores: None, sessions: Sessions, tables: BotoTables, folder: Path) -> None:
    """The formula is within 15 % of later batches and maintenance; its workload is that of earlier batches.

    So is that of the query's log in DynamoDB. Its deletes come 24 at a time from each part of the log: of every file
    that was written one delete was paid, or it is still there.
    """
    choose = random.Random(SEED)  # noqa: S311  # test data
    files = [
        [dict(row) | {"id": choose.randrange(KEYS)} for row in make_rows(SEED, file, rows=80)]
        for file in range(WARM + MEASURED)
    ]
    source = Source(folder / "files", files)
    conf = {
        "spark.sql.streaming.minBatchesToRetain": "6",
        f"{CONF}.maintenanceInterval": "20ms",
        f"{CONF}.minDeltasForSnapshot": "4",
        f"{CONF}.dynastate.namespace": folder.name,
        f"{CONF}.dynastate.writePrice": "1",
        f"{CONF}.dynastate.readPrice": "0.2",
        "spark.sql.streaming.fileSource.log.cleanupDelay": "1ms",
    }
    session, progress = sessions({**conf, **IN_DYNAMODB}), folder / "progress.json"
    before = costs_of_logs(session)
    checkpoint = f"dynastate://{folder.name}/query"
    listen(session, progress)
    source.release(WARM)
    frame = sums(source.stream(session), "id")
    run(frame, checkpoint)
    (storage,) = usage_of_namespace(tables, folder.name).values()
    stores = list(find_stores(tables, folder.name))
    figures: dict[str, Any] = storage.workload()
    (log_usage,) = usage_of_logs(tables, folder.name)
    spent_on_log: list[Counter[str]] = []
    source.release()

    def pause(batch: DataFrame, _: int) -> DataFrame:
        # The formula assumes maintenance between two batches, as when they are seconds apart: wait until it is over.
        sizes: list[StorageSize] = []
        while sizes != (last_sizes := [listed(tables, store) for store in stores]):
            sizes = last_sizes
            time.sleep(PAUSE_S)
        spent_on_log.append(costs_of_logs(session))
        return batch

    run(frame, checkpoint, disturb=pause)
    # The first batches of the second run load the state, and the last maintenance has no batch after it.
    usage = spent(progress, range(WARM + 3, WARM + MEASURED))
    print(usage, figures)  # noqa: T201  # shown when it fails
    assert usage.interval_s is not None
    workload = Workload(batches_a_day=DAY_S / usage.interval_s, retain=6, min_deltas=4, maintenance_s=0.02, **figures)
    assert (workload.stores, workload.families) == (2, 1)
    expected = predict(replace(workload, state_rows=KEYS)).day * (usage.batches / workload.batches_a_day)
    print(expected)  # noqa: T201  # shown when it fails
    assert expected.requests == pytest.approx(usage.requests, rel=WITHIN)
    assert expected.write_units == pytest.approx(usage.write_units, rel=WITHIN)
    assert expected.read_units == pytest.approx(usage.read_units, rel=WITHIN)
    assert expected.delete_units == pytest.approx(usage.delete_units, rel=WITHIN)
    assert usage.nanodollars == 1_000 * (usage.write_units + usage.delete_units) + 200 * usage.read_units

    check_log(spent_on_log[3:], workload, log_usage)
    total = costs_of_logs(session)
    total.subtract(before)
    log_shard = store_shard(Checkpoint(folder.name, "query").store, 0)
    left = sum(units_of_write(item_bytes(item)) for _, item in tables.query("snapshot", log_shard, *EVERY_ITEM))
    assert total["writeUnits"] - total["deleteUnits"] == left + 1  # the namespace lists the checkpoint
    assert total["deleteUnits"] > left


def check_log(spent: list[Counter[str]], workload: Workload, usage: LogUsage) -> None:
    """The prediction for a log fits to what it had spent in each batch."""
    counted = Counter(spent[-1])
    counted.subtract(spent[0])
    with_log = replace(workload, log_files=usage.files_a_batch, log_file_units=usage.write_units / usage.files)
    log = predict(with_log).log * ((len(spent) - 1) / workload.batches_a_day)
    print(counted, log, usage)  # noqa: T201  # shown when it fails
    assert usage.files_a_batch == pytest.approx(3, rel=WITHIN)
    assert log.requests == pytest.approx(counted["requests"], rel=WITHIN)
    assert log.write_units == pytest.approx(counted["writeUnits"], rel=WITHIN)
    assert log.read_units == log.delete_units
    assert counted["readUnits"] == counted["deleteUnits"] > 0


def costs_of_logs(session: SparkSession) -> Counter[str]:
    """What this process has spent on logs of queries until now."""
    costs = session._jvm.io.dynastate.bridge.CheckpointCosts  # type: ignore[union-attr]  # it has a JVM
    return Counter({name: costs.of(name) for name in ("requests", "writeUnits", "readUnits", "deleteUnits")})


@pytest.mark.slow
def test_stored_is_what_the_tables_have(sessions: Sessions, tables: BotoTables, folder: Path) -> None:
    """Storage by operator, without maintenance. Of a join's four stores a partition, Spark shows two's metrics."""
    source = make_source(folder / "files", seed=SEED, files=4)
    source.release()
    conf = {f"{CONF}.dynastate.namespace": folder.name, f"{CONF}.minDeltasForSnapshot": "1000"}
    session = sessions(conf | {"spark.sql.streaming.minBatchesToRetain": "1000"})
    progress = folder / "progress.json"
    listen(session, progress)
    case = CASES["join, then deduplication, then windows"]
    outcome = case.start(session, Sources(source, source), folder / "checkpoint").finish()
    stores = list(find_stores(tables, folder.name))
    assert len(stores) == 2 * (1 + 1 + 4)
    sizes = [listed(tables, store) for store in stores]
    last = outcome.metrics[max(outcome.metrics)]
    total = StorageSize(last["dynastateStoredItems"], last["dynastateStoredBytes"])
    assert total.items == sum(each.items for each in sizes)
    assert total.bytes == pytest.approx(sum(each.bytes for each in sizes), rel=0.03)
    for metrics in outcome.metrics.values():
        assert metrics["dynastateCacheHits"] + metrics["dynastateCacheMisses"] == len(stores)
        assert metrics["dynastateItemsWritten"] >= len(stores) + metrics["dynastateParts"]
        assert metrics["dynastateNanodollars"] == (
            625 * metrics["dynastateWriteUnits"] + 125 * metrics["dynastateReadUnits"]
        )
    usage = spent(progress, range(len(outcome.metrics)))
    usage_by_operator = usage_of_namespace(tables, folder.name)
    assert sum(each.versions for each in usage_by_operator.values()) == len(stores) * len(outcome.metrics)
    last_batch = ReportFile(str(progress)).last_batch(read_meta(tables, stores[0]).epochs.keys())
    assert last_batch is not None
    counts = [each["dynastateStoredItems"] for each in last_batch.operators]
    assert len(set(counts)) == len(counts) == len(case.operators)
    assert dict(enumerate(counts)) == {operator: each.stored.items for operator, each in usage_by_operator.items()}
    assert usage.write_units == sum(each["dynastateWriteUnits"] for each in outcome.metrics.values())
    assert usage.stored == total
