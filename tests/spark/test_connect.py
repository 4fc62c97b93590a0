"""Spark Connect and declarative pipelines: state in DynamoDB where the JVM is a server's. Each part is a process."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import dynastate
import dynastate.spark.configure
from dynastate.errors import ConfigurationError
from dynastate.settings import PREFIX
from dynastate.spark.configure import EXTENSION_CLASS, JARS, PROVIDER_CLASS, STATIC_CONF
from dynastate.spark.connect import ConnectServer
from tests.spark.conftest import CONF, Database, Graphs, spark_conf
from tests.spark.streams import Source, make_source
from tests.support.jvm import SPARK
from tests.support.pages import ROOT, code
from tests.support.processes import descendants, free_port, is_alive, kill, wait_until
from tests.upstream.maven import jars

PROGRAM = Path(__file__).parent / "programs" / "connected.py"
PAGE = ROOT / "docs" / "connect.md"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
START = '"$SPARK_HOME"/sbin/start-connect-server.sh'
URL = "sc://here:15002/;token=secret"


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> SparkSession.Builder:
    """A builder of sessions of a Connect server, in a program without a session."""
    for name in ("MASTER", "SPARK_REMOTE", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    return SparkSession.builder.remote(URL)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def says(spark: str, extensions: str) -> None:
        description = ConnectServer(spark, extensions)
        monkeypatch.setattr(dynastate.spark.configure, "describe_server", lambda _: description)

    return says


@pytest.mark.parametrize(("spark", "checkpoint_format"), [("4.0.2", "1"), ("4.3.0", "2")])
def test_a_client_sets_what_a_session_can(
    spark: str, checkpoint_format: str, builder: SparkSession.Builder, server: Callable[..., None]
) -> None:
    """Provider, checkpoint format of the server's Spark, and settings; nothing that only the server's start can set."""
    server(spark, f"a.B,{EXTENSION_CLASS}")
    assert dynastate.configure(builder, namespace="orders", memory_mb=0) is builder
    assert builder._options == {
        "spark.remote": URL,
        f"{CONF}.providerClass": PROVIDER_CLASS,
        f"{CONF}.checkpointFormatVersion": checkpoint_format,
        f"{CONF}.coordinatorReportSnapshotUploadLag": "false",
        f"{CONF}.forceSnapshotUploadOnLag": "false",
        f"{PREFIX}namespace": "orders",
        f"{PREFIX}memoryMb": "0",
    }


def test_a_server_without_the_extension_is_refused(builder: SparkSession.Builder, server: Callable[..., None]) -> None:
    """The error says with which lines the server must be started, and does not show the token of the URL."""
    server("4.2.1", "a.B")
    with pytest.raises(ConfigurationError, match=r"was started without dynastate.* start it with") as info:
        dynastate.configure(builder)
    message = str(info.value)
    assert f"--jars dynastate-spark-4.2_2.13-{dynastate.__version__}.jar --conf spark.sql.extensions=" in message
    assert message.endswith(" server=here:15002")
    assert f"{CONF}.providerClass" not in builder._options


def test_a_server_of_another_spark_is_refused(builder: SparkSession.Builder, server: Callable[..., None]) -> None:
    server("3.4.4", "")
    with pytest.raises(ConfigurationError, match=r"the Connect server runs Spark 3\.4\.4, and dynastate .* has no jar"):
        dynastate.configure(builder)


def test_a_connect_session_that_runs_is_asked(monkeypatch: pytest.MonkeyPatch, builder: SparkSession.Builder) -> None:
    """The session that runs is asked for the server's Spark and extensions."""
    conf = SimpleNamespace(get=lambda name, default: EXTENSION_CLASS if name == "spark.sql.extensions" else default)
    session = SimpleNamespace(version="4.0.1", conf=conf)
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: session)
    for client in (builder, SparkSession.builder.config("spark.remote", "local[2]")):
        dynastate.configure(client)
        assert client._options[f"{CONF}.checkpointFormatVersion"] == "1"
        assert JARS not in client._options


def documented(begin: str) -> str:
    """The options of the command line on the page that begins so."""
    (line,) = (body for _, body in code(PAGE) if body.startswith(begin))
    return line.removeprefix(begin)


def test_documented_options_are_what_a_server_needs() -> None:
    words = shlex.split(documented(START))
    assert {f"{name}={value}" for name, value in STATIC_CONF.items()} <= set(words)
    assert words[words.index("--jars") + 1] == "$(dynastate jar)"


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass(frozen=True)
class Cluster:
    """What processes of one test share: a folder, an environment, and conf for each Spark."""

    folder: Path
    environment: dict[str, str]
    conf: dict[str, str]

    def run(
        self, *command: object, folder: Path | None = None, more: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, in a folder, with more in its environment."""
        return subprocess.run(
            [*map(str, command)],
            cwd=folder or self.folder,
            env=self.environment | dict(more or {}),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    @contextmanager
    def server(self, options: str) -> Iterator[str]:
        port = free_port()
        conf = self.conf | {
            "spark.connect.grpc.binding.port": str(port),
            "spark.connect.grpc.binding.address": "127.0.0.1",
        }
        words = shlex.join(word for name, value in conf.items() for word in ("--conf", f"{name}={value}"))
        log = self.folder / "server.log"
        command = f"exec spark-submit --class {SERVER} --master 'local[2]' {words} {options} spark-internal"
        with log.open("w") as output:
            process = subprocess.Popen(
                ["bash", "-euc", command],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            wait_until(lambda: process.poll() is not None or answers(port), "the server did not start")
            assert process.poll() is None, log.read_text()
            yield f"sc://127.0.0.1:{port}"
        finally:
            pids = descendants(process.pid)
            process.terminate()
            try:
                process.wait(60)
            finally:
                kill([process.pid])
        wait_until(lambda: not any(map(is_alive, pids)), "a process outlived its server")


@pytest.fixture
def cluster(folder: Path, environment: dict[str, str], database: Database, tests_jar: Path) -> Cluster:
    path = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    ours = {"endpoint": database.endpoint, "region": database.settings.region}
    conf = spark_conf(folder) | {"spark.pyspark.python": sys.executable}
    conf |= {f"{PREFIX}{name}": value for name, value in ours.items()}
    return Cluster(folder, environment | {"PATH": path, "PYTHONPATH": str(ROOT / "src")}, conf)


def expect(spark: SparkSession, source: Source) -> list[list[object]]:
    rows = source.read(spark).groupBy("key").agg(f.count("*"), f.sum("amount")).collect()
    return sorted((list(row) for row in rows), key=repr)


@dataclass(frozen=True)
class Client:
    """Runs the program of a client on the files of a source that are released."""

    cluster: Cluster
    program: Path = PROGRAM

    def __call__(self, url: str, name: str, **settings: str) -> dict[str, Any]:
        folder = self.cluster.folder
        words = [
            url,
            folder / "files" / "released",
            folder / "checkpoint",
            folder / name,
            json.dumps(settings | {"namespace": folder.name}),
        ]
        # Its server would have the one port that it may have been started with.
        testing = {"SPARK_TESTING": "1"} if url.startswith("local") else {}
        completed = self.cluster.run(sys.executable, self.program, *words, more=testing)
        assert completed.returncode == 0, completed.stdout + completed.stderr
        result: dict[str, Any] = json.loads((folder / name).read_text())
        return result


def check(answer: dict[str, Any], expected: list[list[object]]) -> None:
    assert answer["session"] == "pyspark.sql.connect.session"
    assert answer["format"] == "2"
    assert "needs a session with a JVM of its own, and this is one of Spark Connect" in answer["refused"]
    for query in ("sums", "running"):
        assert sorted(answer[query], key=repr) == expected
        assert answer["metrics"][query]["dynastateRequests"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_queries_of_clients_of_a_server(cluster: Cluster, spark: SparkSession, graphs: Graphs) -> None:
    """A server with the page's options keeps its clients' state; another client continues their queries."""
    source = make_source(cluster.folder / "files", seed=21, files=2)
    client = Client(cluster)
    with cluster.server(documented(START)) as url:
        for files in (1, 2):
            source.release(files)
            check(client(url, f"answer-{files}"), expect(spark, source))
            lines = (cluster.folder / f"answer-{files}.metrics").read_text().splitlines()
            batches = [json.loads(line)["batchId"] for line in lines]
            assert batches.count(files - 1) >= 2, "each query's batch is exported"
    # The first client's batch made version 1, the second's version 2.
    for query in ("sums", "running"):
        for partition in (0, 1):
            assert graphs(f"{cluster.folder.name}-{query}/0/{partition}/default").versions() == [1, 2]


@pytest.mark.slow
@pytest.mark.every_spark
@pytest.mark.timeout(900)
@pytest.mark.skipif(SPARK != "3.5", reason="newer Sparks have Connect's jar, and more in their clients")
def test_queries_of_clients_of_a_server_of_35(cluster: Cluster, spark: SparkSession, graphs: Graphs) -> None:
    """With Connect's jar beside the page's options; another client continues the queries of the first."""
    source = make_source(cluster.folder / "files", seed=21, files=2)
    client = Client(cluster, PROGRAM.with_name("connected_to_35.py"))
    (jar,) = jars("spark-3.5-connect").glob("*.jar")
    with cluster.server(documented(START).replace("--jars ", f"--jars {jar},", 1)) as url:
        for files in (1, 2):
            source.release(files)
            answer, expected = client(url, f"answer-{files}"), expect(spark, source)
            assert answer["session"] == "pyspark.sql.connect.session"
            assert "export_metrics needs Spark 4.0 or newer in a client of Spark Connect" in answer["refused"]
            for query in ("sums", "running"):
                assert sorted(answer[query], key=repr) == expected
                assert answer["metrics"][query]["dynastateRequests"] > 0
    for query in ("sums", "running"):
        for partition in (0, 1):
            assert graphs(f"{cluster.folder.name}-{query}/0/{partition}/default").versions() == [1, 2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_in_the_program(cluster: Cluster, spark: SparkSession, graphs: Graphs) -> None:
    """With a remote of `local` the builder's conf is the server's, and `configure` sets all that it needs."""
    source = make_source(cluster.folder / "files", seed=22, files=1)
    source.release()
    ours = {name: cluster.conf[f"{PREFIX}{name}"] for name in ("endpoint", "region")}
    check(Client(cluster)("local[2]", "answer", **ours), expect(spark, source))
    assert graphs(f"{cluster.folder.name}-running/0/0/default").versions()[-1] == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_without_dynastate_is_refused(cluster: Cluster) -> None:
    (cluster.folder / "files" / "released").mkdir(parents=True)
    with (
        cluster.server("") as url,
        pytest.raises(AssertionError, match="the Connect server was started without dynastate"),
    ):
        Client(cluster)(url, "answer")


PIPELINE = """
name: orders
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_streaming_table_of_a_pipeline(cluster: Cluster, graphs: Graphs) -> None:
    """The page's table keeps its state in DynamoDB; the next run of the pipeline continues it."""
    ((_, table),) = [(language, body) for language, body in code(PAGE) if "@dp.table" in body]
    files = cluster.folder / "orders"
    project = cluster.folder / "project"
    for path in (files, project / "transformations"):
        path.mkdir(parents=True)
    (project / "spark-pipeline.yml").write_text(PIPELINE.format(storage=(project / "storage").as_uri()))
    (project / "transformations" / "orders.py").write_text(table.replace("/data/orders", str(files)))
    (run,) = (body for _, body in code(PAGE) if body.startswith("spark-pipelines"))
    with cluster.server(documented(START)) as url:
        for batch in (1, 2):
            rows = [{"key": "every", "amount": batch}, {"key": f"only-{batch}", "amount": batch}]
            (files / f"{batch}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
            command = shlex.split(run.replace("sc://localhost:15002", url))
            completed = cluster.run(*command, folder=project)
            assert completed.returncode == 0, completed.stdout + completed.stderr
            keys = pd.read_parquet(cluster.folder / "warehouse" / "orders")["key"]
            assert sorted(keys) == ["every", *(f"only-{each}" for each in range(1, batch + 1))]
            for partition in (0, 1):
                assert graphs(f"orders/0/{partition}/default").versions()[-1] == batch
        refresh = cluster.run(*command, "--full-refresh", "orders", folder=project)
    assert "this namespace belongs to the query with the checkpoint" in refresh.stdout + refresh.stderr
