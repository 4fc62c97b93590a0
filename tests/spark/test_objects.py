"""A query whose large parts are in S3: its values, its restarts, what reads it, and what is left of it."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.embedded import BUCKET, EmbeddedDynamoDB
from dynastate.engine.catalog import find_stores
from dynastate.engine.checkpoint import CheckpointFiles, first_writers
from dynastate.format.checkpoint import Checkpoint
from dynastate.format.keys import SPECS, store_shard
from dynastate.operations.erase.absent import find_absence
from dynastate.operations.erase.erase import erase_stores, plan_erase
from dynastate.operations.erase.keys import GivenKeys
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.drop import drop_checkpoints, drop_stores
from dynastate.operations.lifecycle.verify_checkpoint import verify_checkpoints
from dynastate.settings import SNAPSHOT_TABLE, Settings
from dynastate.spark.configure import FILE_MANAGER, FILE_MANAGER_CLASS, FILE_SYSTEM_CONF
from tests.spark.conftest import CONF, Open, Sessions, only, stop_stores
from tests.spark.streams import Record, Source, make_wide_rows, run
from tests.spark.test_checkpoint_in_dynamodb import Logs
from tests.support.jvm import SINCE_40
from tests.support.search import objects_with, places_with

#: 200 keys of 300 bytes in two partitions: some 30 KB a partition and batch.
KEYS, NOTE_BYTES, FILES = 200, 300, 9
#: Files whose names take more than 380,000 bytes in a merged log, also compressed: names of random bytes, in hex.
LOGGED, NAME_BYTES = 1_600, 125
MIB, PIECES = 2**20, 70
S3_URL = f"s3://{BUCKET}/state"
LOCATION = f"{S3_URL}/{SNAPSHOT_TABLE}"


@pytest.fixture(scope="module")
def s3() -> Iterator[EmbeddedDynamoDB]:
    with EmbeddedDynamoDB() as dynamodb:
        yield dynamodb


@pytest.fixture
def both(tables: BotoTables, s3: EmbeddedDynamoDB, environment: dict[str, str]) -> Iterator[BotoTables]:
    settings = Settings(endpoint=tables.settings.endpoint, region=s3.settings.region, objects_endpoint=s3.endpoint)
    with only(environment):
        result = BotoTables(settings)
    yield result
    result.close()


def files() -> list[list[Record]]:
    """Make files in which each time half of the keys get another note."""
    choose = random.Random(7)  # noqa: S311  # test data
    wide_rows = (make_wide_rows(file, KEYS, NOTE_BYTES) for file in range(FILES))
    return [[row for row in each if file == 0 or choose.random() < 0.5] for file, each in enumerate(wide_rows)]


def newest(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").agg(f.max_by("note", "file").alias("note"))


@pytest.mark.slow
@pytest.mark.every_spark
def test_a_query_with_objects_in_s3(
    fresh_stores: None,
    sessions: Sessions,
    both: BotoTables,
    s3: EmbeddedDynamoDB,
    opened: Open,
    folder: Path,
    environment: dict[str, str],
) -> None:
    """With objects, restarted without, and again with them: the right values, and snapshots and clean-up of both."""
    source = Source(folder / "files", files())
    conf = {
        "spark.sql.streaming.minBatchesToRetain": "3",
        f"{CONF}.maintenanceInterval": "20ms",
        f"{CONF}.minDeltasForSnapshot": "2",
        f"{CONF}.dynastate.namespace": folder.name,
        f"{CONF}.dynastate.objectsEndpoint": s3.endpoint,
    }
    objects = {f"{CONF}.dynastate.objects": S3_URL.replace("s3:", "s3a:")}

    def pause(batch: DataFrame, _: int) -> DataFrame:
        time.sleep(0.2)  # maintenance comes in between
        return batch

    rows: dict[int, list[tuple[object, ...]]] = {}
    for count, options in ((4, objects), (6, {}), (FILES, objects)):
        source.release(count)
        session = sessions(conf | options)
        outcome = run(newest(source.stream(session)), folder / "checkpoint", disturb=pause)
        rows |= outcome.rows
        metrics = list(outcome.metrics.values())
        assert (sum(each["dynastatePuts"] for each in metrics) > 0) == bool(options)
        assert all(each["dynastateObjectBytesWritten"] > 20_000 for each in metrics) == bool(options)
        assert sum(each["dynastateWriteUnits"] for each in metrics) < len(metrics) * (30 if options else 100)
        assert metrics[-1]["dynastateStoredObjectBytes"] > 20_000
        assert sum(each["dynastateMaintenancePuts"] for each in metrics) > 0 or not options
        stop_stores()  # the next run reads its state from the tables and S3

    expected = {tuple(row) for row in newest(source.read(session)).collect()}
    assert {row for number in sorted(rows) for row in rows[number]} >= expected
    with only(environment):
        stores = list(find_stores(both, folder.name))
        state = opened(f"{folder.name}/0", objects_endpoint=s3.endpoint)
        assert {(row["key"], row["valueWithExtremumOrdering"]) for row in state} == expected
        one = opened(f"{folder.name}/0", objects_endpoint=s3.endpoint)
        requests = one.meter.requests
        row = one.get({"key": "key-7"})
        assert row is not None
        assert (row["key"], row["valueWithExtremumOrdering"]) in expected
        assert one.meter.requests - requests <= 10
        for store in stores:
            report = verify(both, store)
            assert (report.is_whole, report.readable) == (True, {FILES - 2, FILES - 1, FILES} | report.readable)
        assert any(both.objects.names(LOCATION, f"{folder.name}/0/"))
        drop_stores(both, stores)
        assert list(both.objects.names(LOCATION, f"{folder.name}/0/")) == []
        for store in stores:
            places = [(role, store_shard(store, shard)) for role in SPECS for shard in range(4)]
            sorts = [key.sort for role, shard_key in places for key in both.list_keys(role, shard_key, "!", "~")]
            assert all(each.startswith("list/") for each in sorts), "fences only"


@pytest.mark.slow
@pytest.mark.every_spark
def test_large_files_of_a_checkpoint(
    fresh_stores: None,
    sessions: Sessions,
    both: BotoTables,
    s3: EmbeddedDynamoDB,
    folder: Path,
    environment: dict[str, str],
) -> None:
    """The merged log of a file source is in objects. The query restarts from it, and a drop leaves nothing of it."""
    chance, inputs = random.Random(7), folder / "files"  # noqa: S311  # test data
    inputs.mkdir()

    def release(count: int) -> None:
        for _ in range(count):
            (inputs / chance.randbytes(NAME_BYTES).hex()).write_text("row\n")

    conf = {
        FILE_MANAGER: FILE_MANAGER_CLASS,
        **FILE_SYSTEM_CONF,
        "spark.sql.streaming.fileSource.log.compactInterval": "2",
        "spark.sql.files.openCostInBytes": "0",
        f"{CONF}.dynastate.objects": S3_URL,
        f"{CONF}.dynastate.objectsEndpoint": s3.endpoint,
    }
    checkpoint = Checkpoint(folder.name, "query")
    for files, last in ((LOGGED, 0), (1, 1), (1, 2)):
        release(files)
        rows = sessions(conf).readStream.text(str(inputs))
        outcome = run(rows.groupBy("value").count(), checkpoint.location)
        assert [*outcome.rows] == [last]
    assert outcome.rows[last] == [("row", LOGGED + 2)]
    with only(environment):
        (report,) = verify_checkpoints(both, folder.name)
        assert (report.findings, report.batches[-1]) == ((), last)
        heads = CheckpointFiles(both, set()).heads(checkpoint)
        large = {path: head.objects for path, head in heads.items() if head.objects}
        assert large == dict.fromkeys(["sources/0/0", "sources/0/1.compact"], LOCATION)
        assert len(list(both.objects.names(LOCATION, f"{folder.name}/checkpoint/"))) == 2
        drop_stores(both, list(find_stores(both, folder.name)))
        drop_checkpoints(both, first_writers(both, folder.name))
        assert list(both.objects.names(LOCATION, f"{folder.name}/")) == []


@pytest.mark.slow
def test_a_file_of_a_checkpoint_above_64_mib(
    fresh_stores: None, sessions: Sessions, both: BotoTables, s3: EmbeddedDynamoDB, folder: Path
) -> None:
    """It goes through the bridge in one frame, and is read back as it was."""
    objects = {f"{CONF}.dynastate.objects": S3_URL, f"{CONF}.dynastate.objectsEndpoint": s3.endpoint}
    session = sessions({FILE_MANAGER: FILE_MANAGER_CLASS, **FILE_SYSTEM_CONF, **objects})
    logs = Logs(session, f"dynastate://{folder.name}/query/sources/0")
    piece = random.Random(8).randbytes(MIB)  # noqa: S311  # test data
    file = logs.write(logs.open(), "9.compact", b"")
    for _ in range(PIECES):
        file.write(bytearray(piece))
    file.close()
    assert hashlib.sha256(logs.read(logs.open(), "9.compact")).digest() == hashlib.sha256(piece * PIECES).digest()
    assert len(list(both.objects.names(LOCATION, f"{folder.name}/checkpoint/"))) == -(-PIECES // 8)


def contents(s3: Any, bucket: str) -> dict[str, bytes]:
    """All versions of all objects of a bucket; the name of an earlier one has its id behind it."""
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket)
    of_versions: dict[str, bytes] = {}
    for version in (each for page in pages for each in page.get("Versions", ())):
        key, version_id = version["Key"], version["VersionId"]
        # moto copies a version of an object that was deleted, and does not return it.
        s3.copy_object(Bucket=BUCKET, Key="copy", CopySource={"Bucket": bucket, "Key": key, "VersionId": version_id})
        name = key if version["IsLatest"] else f"{key}?{version_id}"
        of_versions[name] = s3.get_object(Bucket=BUCKET, Key="copy")["Body"].read()
    return of_versions


@pytest.mark.slow
@SINCE_40
def test_rows_are_erased_from_all_versions_of_objects(
    fresh_stores: None,
    sessions: Sessions,
    both: BotoTables,
    s3: EmbeddedDynamoDB,
    opened: Open,
    folder: Path,
    environment: dict[str, str],
) -> None:
    """A search through tables and bucket finds a key and its values before, and not after; then the query goes on."""
    rows, key, bucket = files(), "key-123", folder.name.lower().replace("_", "-")
    notes = [str(row["note"]).encode() for file in rows[:5] for row in file if row["key"] == key]
    source = Source(folder / "files", rows)
    conf = {
        "spark.sql.streaming.minBatchesToRetain": "2",
        f"{CONF}.maintenanceInterval": "20ms",
        f"{CONF}.minDeltasForSnapshot": "2",
        f"{CONF}.dynastate.namespace": folder.name,
        f"{CONF}.dynastate.objectsEndpoint": s3.endpoint,
        f"{CONF}.dynastate.objects": f"s3://{bucket}/state",
    }

    def pause(batch: DataFrame, _: int) -> DataFrame:
        time.sleep(0.2)  # maintenance comes in between
        return batch

    with only(environment):
        client = both.objects._client.current().boto3
        client.create_bucket(Bucket=bucket)
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    source.release(5)
    run(newest(source.stream(sessions(conf))), folder / "checkpoint", disturb=pause)
    stop_stores()
    with only(environment):
        stores, given = list(find_stores(both, folder.name)), GivenKeys([{"key": key}])
        with_key = objects_with(contents(client, bucket), key.encode(), *notes)
        assert {"?" in name for name in with_key} == {True, False}
        plan = plan_erase(both, stores, given)
        erase_stores(both, plan, given)
        assert not objects_with(contents(client, bucket), key.encode(), *notes)
        assert not places_with(both, stores, key.encode(), *notes, shards=8)
        assert all(each.is_absent for each in find_absence(both, stores, given))
    source.release()
    session = sessions(conf | {f"{CONF}.dynastate.cacheMb": "65"})  # another application has not read the rows
    run(newest(source.stream(session)), folder / "checkpoint", disturb=pause)
    stop_stores()
    of_files = {
        row["key"]: row["note"] for number, file in enumerate(rows) for row in file if row["key"] != key or number >= 5
    }
    with only(environment):
        state = opened(f"{folder.name}/0", objects_endpoint=s3.endpoint)
        assert {row["key"]: row["valueWithExtremumOrdering"] for row in state} == of_files
        drop_stores(both, stores)
