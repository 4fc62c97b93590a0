"""What the tests of the engine share: one embedded DynamoDB, moto in this process, and Hypothesis without surprises."""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis.configuration import set_hypothesis_home_dir
from moto import mock_aws

from dynastate import snapshots
from dynastate.admin import create_tables
from dynastate.local import EmbeddedDynamoDB, credentials
from dynastate.settings import Settings
from dynastate.store import Engine
from dynastate.tables import BotoTables, Tables, make_client
from tests.fakes import MemoryTables, StruckClient
from tests.states import Engines, closing

REGION = "us-east-1"

# The same examples at every run, and none kept.
hypothesis_settings.register_profile("dynastate", derandomize=True, database=None, deadline=None)
hypothesis_settings.load_profile("dynastate")


def pytest_configure(config: pytest.Config) -> None:
    """Let Hypothesis keep its notes where they end with the tests, not in the checkout."""
    home = tempfile.mkdtemp(prefix="dynastate-hypothesis-")
    set_hypothesis_home_dir(home)
    config.add_cleanup(lambda: shutil.rmtree(home))


@pytest.fixture(scope="session")
def embedded() -> Iterator[EmbeddedDynamoDB]:
    """One embedded DynamoDB, over HTTP, for all tests that use stores of their own."""
    with EmbeddedDynamoDB() as running:
        yield running


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Environment of processes that use an embedded DynamoDB: nobody's AWS settings, and dummy credentials."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYSPARK_", "SPARK_"))}
    nobody = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    return kept | nobody | credentials() | {"AWS_EC2_METADATA_DISABLED": "true", "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture
def dummy_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that are nobody's, and none of this machine's configuration."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**credentials(), "AWS_CONFIG_FILE": os.devnull, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    """A store of its own for each test."""
    return f"{zlib.crc32(request.node.nodeid.encode()):08x}/0/0/default"


@pytest.fixture
def memory() -> MemoryTables:
    """Tables in memory."""
    return MemoryTables()


@pytest.fixture(scope="session")
def boto_client() -> Iterator[Any]:
    """A boto3 client that moto knows both tables of. It costs a tenth of a second, so all tests share it."""
    settings, mock = Settings(region=REGION), mock_aws()
    mock.start()
    create_tables(settings)
    client = make_client(settings)
    mock.stop(remove_data=False)
    yield client
    client.close()


@pytest.fixture
def struck_client(boto_client: Any, dummy_credentials: None) -> Iterator[StruckClient]:
    """A client of moto in this process whose calls can be let fail. Tests share the tables: use stores of their own."""
    mock = mock_aws()
    mock.start(reset=False)
    yield StruckClient(boto_client)
    mock.stop(remove_data=False)


@pytest.fixture
def moto(struck_client: StruckClient) -> BotoTables:
    """Tables on moto in this process."""
    return BotoTables(Settings(region=REGION), client=struck_client)


@pytest.fixture(scope="session")
def http(embedded: EmbeddedDynamoDB) -> Iterator[BotoTables]:
    """Tables on the embedded DynamoDB, over HTTP."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in credentials().items():
            environment.setenv(name, value)
        tables = BotoTables(embedded.settings)
    yield tables
    tables.close()


@pytest.fixture(params=["memory", "moto"])
def tables(request: pytest.FixtureRequest) -> Tables:
    """Tables in memory, and on moto."""
    found: Tables = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def engines(tables: Tables) -> Iterator[Engines]:
    """Make engines on the tables; all are closed."""
    yield from closing(tables)


@pytest.fixture
def at(engines: Engines) -> Engine:
    """One engine."""
    return engines()


@pytest.fixture
def always_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is wanted whenever there are deltas."""
    monkeypatch.setattr(snapshots, "FRACTION", 0.0)
