"""The embedded DynamoDB: a real process, spoken to over real HTTP."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dynastate.dynamodb.admin import check_tables, create_tables
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.client import make_client
from dynastate.dynamodb.embedded import HOST, EmbeddedDynamoDB
from dynastate.engine.updates import append_version
from dynastate.errors import ConfigurationError, InternalError, UnavailableError
from dynastate.format.keys import Key
from dynastate.settings import Settings
from tests.support.processes import is_alive, wait_until

pytestmark = pytest.mark.usefixtures("dummy_credentials")


@pytest.fixture(scope="module")
def database() -> Iterator[EmbeddedDynamoDB]:
    """One server for all tests that only add to it."""
    with EmbeddedDynamoDB() as dynamodb:
        yield dynamodb


def answers(endpoint: str) -> bool:
    url = urlsplit(endpoint)
    with socket.socket() as probe:
        return probe.connect_ex((str(url.hostname), int(url.port or 0))) == 0


def test_it_has_both_tables_with_the_keys_the_package_needs(database: EmbeddedDynamoDB) -> None:
    """Both tables are there, on demand, with string keys and the tag that says who made them."""
    client = make_client(database.settings)
    tables = {name: client.describe_table(TableName=name)["Table"] for name in client.list_tables()["TableNames"]}
    keys = {n: [(key["AttributeName"], key["KeyType"]) for key in table["KeySchema"]] for n, table in tables.items()}
    assert keys == {
        "dynastate-delta": [("store_shard", "HASH"), ("part", "RANGE")],
        "dynastate-snapshot-group": [("store_shard", "HASH"), ("entry", "RANGE")],
    }
    for table in tables.values():
        assert {definition["AttributeType"] for definition in table["AttributeDefinitions"]} == {"S"}
        assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
        assert client.list_tags_of_resource(ResourceArn=table["TableArn"])["Tags"] == [
            {"Key": "created-by", "Value": "dynastate"}
        ]
    assert check_tables(database.settings) == []


def test_it_takes_names_and_region_from_the_settings() -> None:
    with EmbeddedDynamoDB(settings=Settings(delta_table="one", snapshot_table="two", region="eu-west-1")) as dynamodb:
        endpoint = dynamodb.endpoint
        assert dynamodb.settings == Settings("one", "two", "eu-west-1", endpoint, objects_endpoint=endpoint)
        assert check_tables(dynamodb.settings) == []


def test_only_what_is_missing_is_made(database: EmbeddedDynamoDB) -> None:
    settings = replace(database.settings, snapshot_table="another")
    assert create_tables(settings) == ["another"]


def test_requests_at_once_lose_no_write(database: EmbeddedDynamoDB) -> None:
    """Appends to one version list from eight threads are all in it: moto without a lock loses some."""
    tables = BotoTables(database.settings)
    key = Key("snapshot", "at-once#0", "list/0")
    entries = [number.to_bytes(2, "big") for number in range(160)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda entry: append_version(tables, key, entry, "run-1"), entries))
    item = tables.get([key])[key]
    assert isinstance(item["versions"], list)
    assert sorted(item["versions"]) == entries


def test_it_listens_on_loopback_only(database: EmbeddedDynamoDB) -> None:
    assert answers(database.endpoint)
    assert urlsplit(database.endpoint).hostname == HOST
    assert not answers(database.endpoint.replace(HOST, "127.0.0.2"))


def test_the_end_of_the_block_leaves_no_process() -> None:
    """After the block, even one left by an exception, the process is gone and its port is free for the next."""
    with contextlib.suppress(ZeroDivisionError), EmbeddedDynamoDB() as first:
        pid, endpoint = first.pid, first.endpoint
        make_client(first.settings).list_tables()
        _ = 1 / 0
    assert not is_alive(pid)
    assert not answers(endpoint)
    with EmbeddedDynamoDB(port=int(urlsplit(endpoint).port or 0)) as second:
        assert second.endpoint == endpoint
        assert check_tables(second.settings) == []


def test_it_ends_with_a_parent_that_is_killed() -> None:
    """A parent that dies by SIGKILL cannot stop its child; the child ends by itself."""
    program = """
import time
from dynastate.dynamodb.embedded import EmbeddedDynamoDB

with EmbeddedDynamoDB() as running:
    print(running.pid, running.endpoint, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, endpoint = parent.stdout.readline().split()
        assert answers(endpoint)
        parent.kill()
    # The first thread of a process may be a zombie a moment before the last one closes the socket.
    wait_until(lambda: not is_alive(int(pid)) and not answers(endpoint), "the child lives")


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(ConfigurationError, match="from 0 to 65535"):
        EmbeddedDynamoDB(port=port)


def test_the_environment_of_the_caller_does_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's profile, endpoint, proxy or moto settings do not keep it from starting."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_PROFILE", "missing")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("INITIAL_NO_AUTH_ACTION_COUNT", "0")
    with EmbeddedDynamoDB() as dynamodb:
        assert answers(dynamodb.endpoint)


def test_without_the_extra_the_error_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "moto.py").write_text("raise ImportError('no moto here')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(ConfigurationError, match=r"pip install 'moto\[dynamodb,server\]' waitress"):
        EmbeddedDynamoDB().__enter__()


def test_its_own_end_is_an_error_in_wait() -> None:
    with EmbeddedDynamoDB() as dynamodb:
        os.kill(dynamodb.pid, signal.SIGKILL)
        with pytest.raises(UnavailableError, match="has ended"):
            dynamodb.wait()


def test_it_has_no_endpoint_before_it_runs() -> None:
    dynamodb = EmbeddedDynamoDB()
    with pytest.raises(InternalError, match="does not run"):
        _ = dynamodb.endpoint
    with pytest.raises(InternalError, match="does not run"):
        _ = dynamodb.pid
