"""One DynamoDB and one Spark for all tests of this folder. Both end with them, and leave no files."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import dynastate
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.embedded import EmbeddedDynamoDB
from dynastate.format.graph import VersionGraph
from dynastate.format.items import Item
from dynastate.format.keys import Key, store_shard
from dynastate.reader.state import StateReader
from tests.support.dynoxide import Dynoxide, fast_dynamodb
from tests.support.jvm import LOG4J, build_jar
from tests.support.processes import is_alive, remove_tree, sidecars_of, wait_until

CONF = "spark.sql.streaming.stateStore"
#: What a session needs to keep state in RocksDB instead.
ON_ROCKSDB = {
    f"{CONF}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{CONF}.checkpointFormatVersion": "1",
}
ON_HDFS = ON_ROCKSDB | {
    f"{CONF}.providerClass": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
}
WITH_CHANGELOG = ON_ROCKSDB | {f"{CONF}.rocksdb.changelogCheckpointing.enabled": "true"}

Database = EmbeddedDynamoDB | Dynoxide
Sessions = Callable[[Mapping[str, str]], SparkSession]
#: Maintenance of small stores that is under way ends within that time.
MAINTAINED_WITHIN_S = 1.0
Items = Callable[[str], list[tuple[Key, Item]]]
Graphs = Callable[[str], VersionGraph]
Open = Callable[..., StateReader]


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A folder for everything, with a short path: a socket's may have 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="dyn-"))
    yield folder
    remove_tree(folder)


@pytest.fixture
def folder(scratch: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="test-", dir=scratch))
    yield path
    remove_tree(path)


@pytest.fixture(scope="session")
def database(scratch: Path) -> Iterator[Database]:
    with fast_dynamodb(scratch / "dynoxide") as dynamodb:
        yield dynamodb


@pytest.fixture(scope="session", name="tests_jar")
def build_tests_jar() -> Path:
    return build_jar()


@contextmanager
def only(environment: Mapping[str, str]) -> Iterator[None]:
    """Give this process exactly this environment in a block: processes started in it inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - set(environment):
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def clean_environment(environment: dict[str, str]) -> Iterator[None]:
    """This process has the environment of the programs of tests, and no other."""
    with only(environment):
        yield


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def spark_conf(scratch: Path) -> dict[str, str]:
    """Conf of every Spark here: small, quiet, on loopback, and with all its files in one folder."""
    temporary = scratch / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    java = [
        f"-Djava.io.tmpdir={temporary}",
        f"-Dlog4j2.configurationFile={LOG4J}",
        "-XX:-UsePerfData",
        "-XX:TieredStopAtLevel=1",
        # The default with one tier is 48 MB; Spark's generated code fills it, and then compilation stops.
        "-XX:ReservedCodeCacheSize=1g",
    ]
    return {
        "spark.driver.extraJavaOptions": " ".join(java),
        # One JVM for some 600 queries, of which Spark and Py4J's callbacks keep more than a megabyte each.
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # A worker of Python has 15 s to start and to answer, which a busy machine exceeds.
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(temporary),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
        # Spark 4.2 stops its stores under a lock that a maintenance thread may wait for: it waits all this time.
        f"{CONF}.maintenanceShutdownTimeout": "2s",
        f"{CONF}.maintenanceForceShutdownTimeout": "1s",
    }


@pytest.fixture(scope="session")
def spark(
    scratch: Path, database: EmbeddedDynamoDB, tests_jar: Path, environment: dict[str, str]
) -> Iterator[SparkSession]:
    """A session that keeps state in DynamoDB. A task may fail three times."""
    builder = SparkSession.builder.master("local[2,4]").appName("dynastate tests").config(map=dict(spark_conf(scratch)))
    builder = dynastate.configure(
        builder.config("spark.jars", str(tests_jar)), endpoint=database.endpoint, region=database.settings.region
    )
    with only(environment | {"PYSPARK_PYTHON": sys.executable}):
        session = builder.getOrCreate()
    # The plugin starts it: there was no task yet.
    wait_until(lambda: bool(sidecars_of(jvm_pid())), "no sidecar was started with the executor")
    hadoop = session.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.AbstractFileSystem.file.impl", "io.dynastate.tests.PlainLocalFs")
    yield session
    end_spark(session, scratch)


def end_spark(session: SparkSession, scratch: Path) -> None:
    """Stop Spark and its JVM; the sidecar must end with it, and remove its socket."""
    gateway = SparkContext._gateway
    assert gateway is not None
    process: subprocess.Popen[bytes] = gateway.proc
    sidecars = sidecars_of(process.pid)
    session.stop()
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    assert process.stdin is not None
    process.stdin.close()
    process.wait(60)
    wait_until(lambda: not any(map(is_alive, sidecars)), "a sidecar outlived its JVM")
    wait_until(lambda: not list((scratch / "tmp").glob("dynastate-*")), "a sidecar left its socket behind")


def state_stores() -> Any:
    """Spark's object that holds the providers of this executor."""
    jvm = SparkContext._jvm
    assert jvm is not None
    return getattr(getattr(jvm.org.apache.spark.sql.execution.streaming.state, "StateStore$"), "MODULE$")


def stop_stores() -> None:
    """Stop all stores and maintenance.

    Spark stops them under a lock that a maintenance thread may wait for, and before 4.2 waits for it for five minutes.
    So nothing is left to maintain when they are stopped.
    """
    stores = state_stores()
    stores.unloadAll()
    time.sleep(MAINTAINED_WITHIN_S)
    stores.stop()


@pytest.fixture
def fresh_stores(spark: SparkSession) -> Iterator[None]:
    """Restart maintenance before and after a test: it takes its conf from the first store that is opened."""
    stop_stores()
    yield
    stop_stores()


@pytest.fixture
def sessions(spark: SparkSession) -> Sessions:
    """Make a session in the one Spark, with conf of its own."""

    def make(conf: Mapping[str, str]) -> SparkSession:
        session = spark.newSession()
        for name, value in conf.items():
            session.conf.set(name, value)
        return session

    return make


@pytest.fixture(scope="session")
def tables(database: Database, environment: dict[str, str]) -> Iterator[BotoTables]:
    with only(environment):
        result = BotoTables(database.settings)
    yield result
    result.close()


@pytest.fixture
def opened(database: Database, environment: dict[str, str]) -> Iterator[Open]:
    with ExitStack() as stack:

        def open_one(store: str, **options: Any) -> StateReader:
            with only(environment):
                options |= {"endpoint": database.endpoint, "region": database.settings.region}
                return stack.enter_context(dynastate.open_state(store, follow=False, **options))

        yield open_one


@pytest.fixture(scope="session")
def items(tables: BotoTables) -> Items:
    """Read what the snapshot-group table holds of a store, by its name."""
    return lambda store: tables.query("snapshot", store_shard(store, 0), " ", "~")


@pytest.fixture(scope="session")
def graphs(items: Items) -> Graphs:
    """Read the version lists of a store, by its name, and which snapshots it has."""
    prefixes = ("list/", "meta", "snapshot/")
    return lambda store: VersionGraph(store, [pair for pair in items(store) if pair[0].sort.startswith(prefixes)])


def interpreter(folder: Path, *lines: str, command: str = f'{sys.executable} "$@"') -> str:
    """A script in place of the Python interpreter, which changes the environment first."""
    script = folder / "python"
    script.write_text("\n".join(["#!/bin/sh", *lines, f"exec {command}"]) + "\n")
    script.chmod(0o755)
    return str(script)


def jvm_pid() -> int:
    gateway = SparkContext._gateway
    assert gateway is not None
    return int(gateway.proc.pid)
