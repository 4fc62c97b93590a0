"""Namespaces whose checkpoint is gone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from dynastate.engine.checkpoint import CheckpointFiles
from dynastate.errors import ConfigurationError
from dynastate.format.checkpoint import Checkpoint
from dynastate.format.items import StorageSize
from dynastate.operations.inspection.abandoned import checkpoint_exists, find_abandoned
from dynastate.operations.inspection.inspect import StoreSummary
from dynastate.prices import DEFAULT_PRICES
from tests.support.memory_tables import MemoryTables

GONE, THERE, FAR = "file:/gone/state", "file:/there/state", "hdfs://far/state"


def exists(location: str) -> bool:
    """Say that one checkpoint exists, and that another cannot be looked at."""
    if location == FAR:
        raise ConfigurationError("no such file system here")
    return location == THERE


def summary(
    store: str, checkpoint: str, size: int = 1_000, *, is_active: bool = False, is_earlier: bool = False
) -> StoreSummary:
    committed = f"2025-01-0{1 + size % 7}T00:00:00+00:00"
    return StoreSummary(
        store,
        checkpoint=checkpoint,
        bytes=size,
        items=2,
        committed=committed,
        is_active=is_active,
        is_earlier=is_earlier,
    )


def test_a_namespace_is_abandoned_without_its_checkpoint() -> None:
    """Its stores are added up, those of an earlier query included; the largest is first, and doubtful ones last."""
    namespaces = find_abandoned(
        [
            summary("small/0/0/default", GONE),
            summary("far/0/0/default", FAR, 10**9),
            summary("kept/0/0/default", THERE),
            summary("large/0/0/default", GONE, 5_000),
            summary("large/0/1/default", "file:/before/state", 6_000, is_earlier=True),
        ],
        exists,
    )
    assert [(each.namespace, each.problem != "") for each in namespaces] == [
        ("large", False),
        ("small", False),
        ("far", True),
    ]
    large = namespaces[0]
    assert (large.stores, large.stored, large.location) == (2, StorageSize(4, 11_000), GONE)
    assert large.committed == "2025-01-03T00:00:00+00:00"
    shown = large.as_json(DEFAULT_PRICES)
    assert (shown["bytes"], shown["items"]) == (11_000, 4)
    assert shown["storage_dollars_a_month"] == DEFAULT_PRICES.dollars_a_month(large.stored)
    assert "no such file system here" in namespaces[2].problem


def test_a_namespace_that_is_used_is_not_abandoned() -> None:
    """A query writes to it, perhaps from a machine with other folders; or it is a fork without a run."""
    used = [summary("used/0/0/default", GONE), summary("used/0/1/default", GONE, is_active=True)]
    assert find_abandoned([*used, summary("fork/0/0/default", "")], exists) == []


def test_local_folders(tmp_path: Path) -> None:
    """One that is not on this machine may be on another: it is not called gone."""
    assert checkpoint_exists(MemoryTables(), f"file:{tmp_path}")
    with pytest.raises(ConfigurationError, match=r"this machine has no such folder.*location=file:/.*/state"):
        checkpoint_exists(MemoryTables(), f"file:{tmp_path}/state")


def test_a_checkpoint_in_dynamodb() -> None:
    """It exists if it has files."""
    tables, location = MemoryTables(), "dynastate://orders/query/state"
    assert not checkpoint_exists(tables, location)
    files = CheckpointFiles(tables, set())
    files.put(Checkpoint("orders", "query"), "metadata", b"{}", overwrites=False)
    assert checkpoint_exists(tables, location)
    assert not checkpoint_exists(tables, "dynastate://orders/quer/state")
    files.delete(Checkpoint("orders", "query"), [""])
    assert not checkpoint_exists(tables, location)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, dummy_credentials: None) -> Iterator[str]:
    import boto3  # noqa: PLC0415  # for this fixture only

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket="queries")
    client.put_object(Bucket="queries", Key="orders/state/0/0/dynastate", Body=b"a store's name")
    client.close()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield endpoint
    server.stop()


def test_checkpoints_in_s3(s3: str) -> None:
    """A folder is there if anything is below it; a bucket that does not exist is no folder."""
    assert s3
    assert checkpoint_exists(MemoryTables(), "s3://queries/orders/state")
    assert not checkpoint_exists(MemoryTables(), "s3://queries/payments/state")


def test_other_file_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not known is an error with the reason; without pyarrow the message says what to install."""
    with pytest.raises(ConfigurationError, match=r"cannot be looked at from here.*reason=.*dbfs"):
        checkpoint_exists(MemoryTables(), "dbfs:/orders/state")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match="pip install pyarrow"):
        checkpoint_exists(MemoryTables(), "s3://queries/orders/state")
