"""Fixtures of all tests: one embedded DynamoDB, moto in this process, Hypothesis with fixed examples."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis.configuration import set_hypothesis_home_dir
from moto import mock_aws

from dynastate.dynamodb.admin import create_tables
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.client import make_client
from dynastate.dynamodb.embedded import EmbeddedDynamoDB, credentials
from dynastate.engine import snapshot_threshold
from dynastate.engine.engine import Engine
from dynastate.settings import Settings
from dynastate.storage.tables import Tables
from tests.support.clients import FailingClient
from tests.support.engine_driver import Engines, closing
from tests.support.faults import FailingTables
from tests.support.memory_tables import MemoryTables
from tests.support.processes import remove_tree
from tests.upstream.dynamodb_local import DynamoDBLocal

REGION = "us-east-1"

#: Beginnings of the names of variables that no test may get from its caller, and what there is of AWS instead.
CALLERS = ("AWS_", "COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR")
NO_AWS = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull, "AWS_EC2_METADATA_DISABLED": "true"}

# The same examples at every run, and none kept.
hypothesis_settings.register_profile("dynastate", derandomize=True, database=None, deadline=None)
hypothesis_settings.load_profile("dynastate")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the engine's tests run on AWS's DynamoDB Local (`make test-upstream`), and CI run a part of all tests."""
    parser.addoption("--dynamodb-local", action="store_true", help="AWS's DynamoDB Local in place of moto and memory")
    parser.addoption("--part", default="1/1", help="2/5: of five files in a row the tests of the second one")


def pytest_configure(config: pytest.Config) -> None:
    """Take the caller's AWS and terminal out of the environment; let Hypothesis keep its files in a folder of ours."""
    for name in [name for name in os.environ if name.startswith(CALLERS)]:
        del os.environ[name]
    os.environ.update(NO_AWS)
    # Where a shell has started the tests in the background, they, and all that they start, would ignore Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    home = tempfile.mkdtemp(prefix="dynastate-hypothesis-")
    set_hypothesis_home_dir(home)
    config.add_cleanup(lambda: shutil.rmtree(home))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that use moto, and let one process have all of a file that share a fixture of the module.

    Those with a long timeout of their own begin first: at the end no process waits for another.
    """
    files = sorted({item.path for item in items})
    paths = {*part_of(files, config.getoption("part"))}
    config.hook.pytest_deselected(items=[item for item in items if item.path not in paths])
    items[:] = [item for item in items if item.path in paths]
    timeouts: dict[Path, float] = {}
    for item in items:
        if not {"boto_client", "embedded"}.isdisjoint(item.fixturenames):  # type: ignore[attr-defined]
            item.add_marker("emulator")
        fixtures = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
        if any(definition.scope == "module" for definitions in fixtures for definition in definitions):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
            timeouts[item.path] = max(timeout_of(item), timeouts.get(item.path, 0.0))
    items.sort(key=lambda item: -timeouts.get(item.path, timeout_of(item)))


def part_of(files: Sequence[Path], part: str) -> Sequence[Path]:
    """Part "N/M" of the files: each M-th one, from the N-th one on."""
    number, _, parts = part.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise pytest.UsageError(f"--part is N/M, with N from 1 to M, and not {part}")
    return files[int(number) - 1 :: int(parts)]


def timeout_of(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker is not None else 0.0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a `serial` test while the other processes run none. Two files of the checkout serve as locks."""
    serial = item.get_closest_marker("serial") is not None
    with Path(__file__).open() as turn, (item.config.rootpath / "pyproject.toml").open() as test:
        # A process that waits for all others holds the turn meanwhile, so that they begin no other test.
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(test, fcntl.LOCK_EX if serial else fcntl.LOCK_SH)
        fcntl.flock(turn, fcntl.LOCK_UN)
        return (yield)


@pytest.fixture(scope="session")
def embedded(pytestconfig: pytest.Config) -> Iterator[EmbeddedDynamoDB | DynamoDBLocal]:
    """One embedded DynamoDB, over HTTP, for all tests that use stores of their own."""
    with DynamoDBLocal() if pytestconfig.getoption("dynamodb_local") else EmbeddedDynamoDB() as dynamodb:
        yield dynamodb


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Environment of processes that use an embedded DynamoDB: dummy credentials, and no settings of another Spark."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    return variables | credentials() | {"SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture
def dummy_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dummy credentials in the environment of this process."""
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: a socket's may have 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="dyn-"))
    yield path
    remove_tree(path)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    """A store of its own for each test."""
    return f"{zlib.crc32(request.node.nodeid.encode()):08x}/0/0/default"


@pytest.fixture
def memory() -> MemoryTables:
    return MemoryTables()


@pytest.fixture
def memory_engine(memory: MemoryTables) -> Iterator[Engine]:
    """One engine on tables in memory, which keep a journal."""
    for make in closing(memory):
        yield make()


@pytest.fixture
def failing_tables(memory: MemoryTables) -> FailingTables:
    return FailingTables(memory)


@pytest.fixture
def failing_engine(failing_tables: FailingTables) -> Iterator[Engine]:
    for make in closing(failing_tables):
        yield make()


@pytest.fixture(scope="session")
def boto_client(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A boto3 client that moto knows both tables of. It costs a tenth of a second, so all tests share it."""
    settings, mock = Settings(region=REGION), mock_aws()
    mock.start()
    if request.config.getoption("dynamodb_local"):  # moto lets requests to other endpoints than AWS's pass
        settings = request.getfixturevalue("embedded").settings
    else:
        create_tables(settings)
    client = make_client(settings)
    mock.stop(remove_data=False)
    yield client
    client.close()


@pytest.fixture
def failing_client(boto_client: Any, dummy_credentials: None) -> Iterator[FailingClient]:
    """A client of moto in this process whose calls can be let fail. Tests share the tables: use stores of their own."""
    mock = mock_aws()
    mock.start(reset=False)
    yield FailingClient(boto_client)
    mock.stop(remove_data=False)


@pytest.fixture
def moto(failing_client: FailingClient) -> BotoTables:
    return BotoTables(Settings(region=REGION), client=failing_client)


@pytest.fixture(scope="session")
def http(embedded: EmbeddedDynamoDB) -> Iterator[BotoTables]:
    """Tables on the embedded DynamoDB, over HTTP."""
    with over_http(embedded, lambda: None) as tables:
        yield tables


@pytest.fixture(scope="session")
def boto3(embedded: EmbeddedDynamoDB) -> Iterator[BotoTables]:
    """The same, with every request sent by boto3."""
    with over_http(embedded, lambda: make_client(embedded.settings)) as tables:
        yield tables


@contextmanager
def over_http(embedded: EmbeddedDynamoDB, client: Callable[[], Any]) -> Iterator[BotoTables]:
    with pytest.MonkeyPatch.context() as environment:
        for name, value in credentials().items():
            environment.setenv(name, value)
        tables = BotoTables(embedded.settings, client=client())
    yield tables
    tables.close()


@pytest.fixture
def tables(request: pytest.FixtureRequest) -> Tables:
    """Tables in memory; on DynamoDB Local if it is asked for. The contract tests hold all implementations equal."""
    default = "moto" if request.config.getoption("dynamodb_local") else "memory"
    tables: Tables = request.getfixturevalue(getattr(request, "param", default))
    return tables


@pytest.fixture
def engines(tables: Tables) -> Iterator[Engines]:
    yield from closing(tables)


@pytest.fixture
def engine(engines: Engines) -> Engine:
    return engines()


@pytest.fixture
def always_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is wanted whenever there are deltas."""
    monkeypatch.setattr(snapshot_threshold, "threshold_of", lambda *_: 0.0)
