"""Queries whose checkpoint is in DynamoDB, at dynastate://NAMESPACE/NAME."""

from __future__ import annotations

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.checkpoint import CheckpointFiles
from dynastate.format.checkpoint import Checkpoint
from dynastate.operations.lifecycle.verify_checkpoint import verify_checkpoints
from dynastate.spark.configure import (
    FILE_MANAGER,
    FILE_MANAGER_CLASS,
    FILE_SYSTEM_CONF,
    OTHER_FILE_MANAGER,
    PROVIDER,
    PROVIDER_CLASS,
)
from tests.spark.conftest import CONF, ON_HDFS, Database, Sessions
from tests.spark.operators import CASES, expected_sums, sums
from tests.spark.state_reader import read_states
from tests.spark.streams import Source, first_error, make_source, make_sources, run
from tests.spark.test_operators import FILES, compare, of_each_operator
from tests.support.fault_proxy import FaultProxy, Forward, Reply, Request, error
from tests.support.jvm import SPARK
from tests.support.processes import wait_until

IN_DYNAMODB = {FILE_MANAGER: FILE_MANAGER_CLASS, **FILE_SYSTEM_CONF}
NAMESPACE = f"{CONF}.dynastate.namespace"
FORMAT = f"{CONF}.checkpointFormatVersion"


@pytest.fixture
def session(sessions: Sessions) -> SparkSession:
    return sessions(IN_DYNAMODB)


@pytest.fixture
def source(folder: Path) -> Source:
    source = make_source(folder / "files", seed=7, files=FILES)
    source.release(1)
    return source


@pytest.mark.parametrize("name", of_each_operator(["aggregation in append mode", "transformWithState in Scala"]))
def test_same_as_rocksdb(name: str, sessions: Sessions, tables: BotoTables, folder: Path) -> None:
    """Outputs, state, and what Spark's readers find, with restarts. All committed batches fit the state."""
    sources = make_sources(folder, seed=2, files=FILES)
    compare(CASES[name], sources, sessions, folder, IN_DYNAMODB, f"dynastate://{folder.name}/query")
    assert sorted(path.name for path in folder.iterdir()) == ["left", "right", "rocksdb"]
    assert_fits(tables, folder.name)


def assert_fits(tables: BotoTables, namespace: str) -> None:
    (report,) = verify_checkpoints(tables, namespace)
    assert len(report.batches) > 1
    assert report.findings == ()


@pytest.mark.every_spark
@pytest.mark.parametrize("version", ["1", "2"])
def test_formats(version: str, sessions: Sessions, tables: BotoTables, source: Source, folder: Path) -> None:
    if version == "2" and SPARK in ("3.5", "4.0"):
        pytest.skip("Spark 3.5 has format 1 only, and 4.0 for this aggregation")
    session, checkpoint = sessions({**IN_DYNAMODB, FORMAT: version}), f"dynastate://{folder.name}/query"
    for files in (1, 3):
        source.release(files)
        outcome = run(sums(source.stream(session), "key"), checkpoint, "complete")
    assert outcome.rows[2] == expected_sums(session, source)
    assert_fits(tables, folder.name)


def test_costs(session: SparkSession, source: Source, folder: Path) -> None:
    """Requests and units of all checkpoints of the driver are counted, which the plugin shows in Spark's metrics."""
    costs = session._jvm.io.dynastate.bridge.CheckpointCosts  # type: ignore[union-attr]  # it has a JVM

    def counts() -> dict[str, int]:
        return {name: costs.of(name) for name in ("requests", "writeUnits", "nanodollars")}

    before = counts()
    run(sums(source.stream(session), "key"), f"dynastate://{folder.name}/query", "complete")
    spent = {name: count - before[name] for name, count in counts().items()}
    files = Logs(session, f"dynastate://{folder.name}/query")
    written = len(files.names(files.open()))
    assert spent["requests"] > spent["writeUnits"] > written >= 4
    assert spent["nanodollars"] > spent["writeUnits"] * 625


def test_names_that_differ_in_case_only(session: SparkSession, source: Source, folder: Path) -> None:
    """Hadoop has one file system for both."""
    checkpoints = [f"dynastate://{name}-{folder.name}/{name}" for name in ("Orders", "orders")]
    outcomes = [run(sums(source.stream(session), "key"), checkpoint, "complete") for checkpoint in checkpoints]
    assert [sorted(outcome.rows) for outcome in outcomes] == [[0], [0]]
    source.release(2)
    outcome = run(sums(source.stream(session), "key"), checkpoints[1], "complete")
    assert outcome.rows == {1: expected_sums(session, source)}


def test_another_namespace_is_refused(sessions: Sessions, source: Source, folder: Path) -> None:
    session = sessions({**IN_DYNAMODB, NAMESPACE: "other"})
    error = first_error(sums(source.stream(session), "key"), f"dynastate://{folder.name}/query", "complete")
    assert f"namespace must be {folder.name}, as in the checkpoint dynastate://{folder.name}/query/state" in error


@pytest.mark.parametrize("location", ["dynastate:///query", "dynastate://space", "dynastate://space/a b"])
def test_a_location_that_is_none_is_refused(location: str, session: SparkSession, source: Source) -> None:
    with pytest.raises(Exception, match="a checkpoint in DynamoDB is named dynastate://NAMESPACE/NAME"):
        run(sums(source.stream(session), "key"), location, "complete")


def test_a_location_of_more_parts_is_refused(session: SparkSession, source: Source, folder: Path) -> None:
    with pytest.raises(Exception, match="named by two parts, dynastate://NAMESPACE/NAME; leave out the others path="):
        run(sums(source.stream(session), "key"), f"dynastate://{folder.name}/team/query", "complete")


def test_state_of_another_provider_is_refused(sessions: Sessions, source: Source, folder: Path) -> None:
    """At the start, before a file is written; a query without state needs no provider. So are the files alone."""
    session, checkpoint = sessions({**IN_DYNAMODB, **ON_HDFS}), f"dynastate://{folder.name}/query"
    rows = source.stream(session)
    joined = rows.join(source.stream(session).select("key"), "key")
    stateful = [sums(rows, "key"), rows.dropDuplicates(["key"]), rows.distinct(), rows.limit(1), joined]
    for frame in stateful:
        with pytest.raises(AnalysisException, match=r"only a query whose state is in dynastate.*HDFSBacked") as refused:
            run(frame, checkpoint, "complete" if frame is stateful[0] else "append")
        assert "providerClass=io.dynastate.spark.DynamoDBStateStoreProvider before it starts" in str(refused.value)
    logs = Logs(session, checkpoint)
    assert logs.names(logs.open()) == []
    assert run(rows.join(session.range(3).select("id"), rows["key"] == "a"), checkpoint, "append").rows.keys() == {0}
    session.conf.set(PROVIDER, PROVIDER_CLASS)
    with pytest.raises(AnalysisException, match="begun on another state store, so use another checkpointLocation"):
        run(sums(rows, "key"), checkpoint, "complete")
    logs = Logs(session, f"{checkpoint}/state/0/0")
    with pytest.raises(Py4JJavaError, match="only a query whose state is in dynastate"):
        logs.write(logs.open(), "1.delta", b"rows").close()
    assert logs.names(logs.open()) == []


def test_data_are_refused(session: SparkSession, folder: Path) -> None:
    with pytest.raises(Py4JJavaError, match="is for checkpoints of queries; write data to another file system"):
        session.range(3).write.parquet(f"dynastate://{folder.name}/data")


def test_the_users_class_is_that_of_other_checkpoints(sessions: Sessions, source: Source, folder: Path) -> None:
    """Spark cannot load the class, as its error says: it was asked for."""
    session = sessions({**IN_DYNAMODB, OTHER_FILE_MANAGER: "users.own.Manager"})
    run(sums(source.stream(session), "key"), f"dynastate://{folder.name}/query", "complete")
    with pytest.raises(Exception, match=r"users\.own\.Manager"):
        run(sums(source.stream(session), "key"), folder / "checkpoint", "complete")


def test_a_checkpoint_elsewhere_is_as_before(session: SparkSession, source: Source, folder: Path) -> None:
    """The class of the log is for the whole session, sinks' logs included."""
    rows = source.stream(session).select("key", "amount")
    writer = rows.writeStream.format("parquet").option("path", str(folder / "sink"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert (folder / "checkpoint" / "commits" / "0").exists()
    assert (folder / "sink" / "_spark_metadata" / "0").exists()


class Logs:
    """Managers of the folder of a log, as Spark makes one for each run of a query."""

    def __init__(self, session: SparkSession, folder: str) -> None:
        self._jvm: Any = session._jvm
        self._conf = session._jsparkSession.sessionState().newHadoopConf()
        self._folder = folder

    def path(self, name: str = "") -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._folder}/{name}".rstrip("/"))

    def open(self) -> Any:
        return self._jvm.io.dynastate.checkpoint.DynastateCheckpointFileManager(self.path(), self._conf)

    def write(self, log: Any, name: str, text: bytes, *, overwrites: bool = False) -> Any:
        """A file that is written, but not closed."""
        file = log.createAtomic(self.path(name), overwrites)
        file.write(bytearray(text))
        return file

    def names(self, log: Any) -> list[str]:
        return sorted(each.getPath().getName() for each in log.list(self.path()))

    def read(self, log: Any, name: str) -> bytes:
        stream = log.open(self.path(name))
        return bytes(stream.readAllBytes())


@pytest.fixture
def logs(session: SparkSession, folder: Path) -> Logs:
    return Logs(session, f"dynastate://{folder.name}/query/offsets")


def test_a_second_writer_of_a_batch_is_refused(logs: Logs) -> None:
    """Of two logs of one folder, as of two drivers, one puts the file."""
    first, second = logs.open(), logs.open()
    assert logs.names(first) == logs.names(second) == []
    files = [logs.write(log, "1", text) for log, text in ((first, b"one"), (second, b"two"))]
    files[0].close()
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        files[1].close()
    assert logs.read(second, "1") == b"one"
    logs.write(second, "1", b"three", overwrites=True).close()
    assert logs.read(logs.open(), "1") == b"three"


def test_a_file_that_is_cancelled_is_not_there(logs: Logs) -> None:
    log = logs.open()
    file = logs.write(log, "1", b"one")
    file.cancel()
    file.close()
    assert not log.exists(logs.path("1"))
    with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        log.open(logs.path("1"))


def test_files_that_a_log_deletes(logs: Logs) -> None:
    """Those of old batches are gone for this log at once, and deleted 24 at a time; all others are deleted at once."""
    log = logs.open()
    for number in range(31):
        logs.write(log, str(number), b"text").close()
    for number in range(30):
        log.delete(logs.path(str(number)))
    assert logs.names(log) == ["30"]
    assert not log.exists(logs.path("29"))
    assert logs.names(logs.open()) == sorted(map(str, range(24, 31)))
    log.delete(logs.path("30"))
    assert logs.names(logs.open()) == sorted(map(str, range(24, 30)))
    next_run = logs.open()
    for number in range(24, 31):
        next_run.delete(logs.path(str(number)))
    assert logs.names(logs.open()) == []


def test_deletes_that_fail(sessions: Sessions, database: Database, folder: Path) -> None:
    """The files do not exist for this log any longer, and are deleted with the next ones."""
    is_refused = threading.Event()
    is_refused.set()

    def refuse(request: Request, forward: Forward) -> Reply:
        is_delete = request.operation == "BatchWriteItem" and "DeleteRequest" in json.dumps(request.body)
        return error("AccessDeniedException") if is_delete and is_refused.is_set() else forward(request)

    with FaultProxy(database.endpoint, refuse) as proxy:
        session = sessions({**IN_DYNAMODB, f"{CONF}.dynastate.endpoint": proxy.endpoint})
        logs = Logs(session, f"dynastate://{folder.name}/query/offsets")
        log = logs.open()
        for number in range(30):
            logs.write(log, str(number), b"text").close()
        for number in range(27):
            log.delete(logs.path(str(number)))
        assert logs.names(log) == ["27", "28", "29"]
        assert len(logs.names(logs.open())) == 30
        is_refused.clear()
        log.delete(logs.path("27"))
        assert logs.names(logs.open()) == ["28", "29"]


def test_a_log_that_has_written_nothing_sees_what_others_write(logs: Logs) -> None:
    """A log may be made before the run ends that it follows; what it deletes then is deleted at once."""
    log, other = logs.open(), logs.open()
    assert not log.exists(logs.path())
    for number in ("5", "6"):
        logs.write(other, number, number.encode()).close()
    assert log.exists(logs.path())
    assert logs.names(log) == ["5", "6"]
    log.delete(logs.path("6"))
    logs.write(other, "7", b"7").close()
    assert logs.names(log) == ["5", "7"]
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        logs.write(log, "7", b"another").close()
    assert logs.read(log, "7") == b"7"


def test_the_start_of_a_run(logs: Logs, session: SparkSession, tables: BotoTables, folder: Path) -> None:
    """The thread of a run reads its checkpoint once. It sees what this process writes, and others' after a refusal.

    Of a checkpoint that is not its own, and after its first commit, it reads everything again.
    """
    elsewhere, checkpoint = CheckpointFiles(tables, set()), Checkpoint(folder.name, "query")
    names = {"metadata": b'{"id":"7f"}', "offsets/0": b"0", "offsets/1": b"1", "commits/0": b"0"}
    for name, data in names.items():
        elsewhere.put(checkpoint, name, data, overwrites=False)
    other = Logs(session, f"dynastate://{folder.name}/other")
    other.write(other.open(), "metadata", b'{"id":"80"}').close()

    def run_starts() -> None:
        session._jvm.java.lang.Thread.currentThread().setName("stream execution thread for [id = 7f, runId = 1]")  # type: ignore[union-attr]  # it has a JVM
        log, commits = logs.open(), Logs(session, f"dynastate://{folder.name}/query/commits")
        assert logs.names(log) == ["0", "1"]
        assert logs.read(log, "1") == b"1"
        elsewhere.put(checkpoint, "offsets/2", b"2", overwrites=False)
        assert logs.names(log) == ["0", "1"]
        assert not log.exists(logs.path("2"))
        logs.write(logs.open(), "3", b"3").close()
        log.delete(logs.path("1"))
        assert logs.names(log) == ["0", "3"]
        assert logs.read(log, "3") == b"3"
        elsewhere.put(Checkpoint(folder.name, "other"), "offsets", b"", overwrites=False)
        assert other.names(other.open()) == ["metadata", "offsets"]
        with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
            logs.write(log, "2", b"another").close()
        assert logs.names(log) == ["0", "2", "3"]
        assert commits.names(commits.open()) == ["0"]

    def run_commits() -> None:
        session._jvm.java.lang.Thread.currentThread().setName("stream execution thread for q [id = 7f, runId = 2]")  # type: ignore[union-attr]  # it has a JVM
        log, commits = logs.open(), Logs(session, f"dynastate://{folder.name}/query/commits")
        assert logs.names(log) == ["0", "2", "3"]
        elsewhere.put(checkpoint, "offsets/4", b"4", overwrites=False)
        assert logs.names(log) == ["0", "2", "3"]
        commits.write(commits.open(), "1", b"1").close()
        assert logs.names(log) == ["0", "2", "3", "4"]

    for run_of_thread in (run_starts, run_commits):  # a thread of Python has a thread of Java
        with ThreadPoolExecutor(1) as thread:
            thread.submit(run_of_thread).result()


def test_the_file_system_alone(sessions: Sessions, source: Source, folder: Path) -> None:
    """Without the manager, Spark renames files: a rename is a conditional put."""
    session, checkpoint = sessions(FILE_SYSTEM_CONF), f"dynastate://{folder.name}/query"
    for files in (1, 3):
        source.release(files)
        outcome = run(sums(source.stream(session), "key"), checkpoint, "complete")
    assert outcome.rows[2] == expected_sums(session, source)
    logs = Logs(session, f"{checkpoint}/commits")
    assert logs.names(logs.open()) == ["0", "1", "2"]
    files = logs.path().getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    assert not files.rename(logs.path("0"), logs.path("1"))
    assert files.getFileStatus(logs.path()).isDirectory()
    with pytest.raises(Py4JJavaError, match="PathIsNotEmptyDirectoryException"):
        files.delete(logs.path(), False)
    assert logs.names(logs.open()) == ["0", "1", "2"]
    assert files.delete(logs.path("0"), False)
    assert files.delete(logs.path(), True)
    assert not files.exists(logs.path())
    assert not files.delete(logs.path(), True)


def test_state_of_every_batch(session: SparkSession, source: Source, folder: Path) -> None:
    """Spark's state reader finds partitions, which have no folders."""
    checkpoint = f"dynastate://{folder.name}/query"
    source.release(2)
    outcome = run(sums(source.stream(session), "key"), checkpoint, "complete")
    states = read_states(session, checkpoint, range(2))
    assert len(states) == sum(batch[0].total for batch in outcome.state.values()) > 0


def test_requests_of_a_batch(sessions: Sessions, database: Database, folder: Path) -> None:
    """Three puts with a file source, also where its log is merged, and two without. A restart reads all by one Query.

    The thread of the user reads before that: the provider in the newest offsets, and `metadata`.
    """
    operations: list[str] = []
    with_files, without = (f"dynastate://{folder.name}-{name}/query" for name in ("files", "rate"))

    def see(request: Request, forward: Forward) -> Reply:
        if f"{folder.name}-files/checkpoint/query#0" in json.dumps(request.body):
            operations.append(request.operation)
        return forward(request)

    with FaultProxy(database.endpoint, see) as proxy:
        session = sessions({**IN_DYNAMODB, f"{CONF}.dynastate.endpoint": proxy.endpoint})
        costs = session._jvm.io.dynastate.bridge.CheckpointCosts  # type: ignore[union-attr]  # it has a JVM
        counts: list[int] = []

        def count(batch: DataFrame, _: int) -> DataFrame:
            counts.append(costs.of("requests"))
            return batch

        def steady() -> list[int]:
            """Requests of each batch, once each log was listed."""
            return [later - earlier for earlier, later in itertools.pairwise(counts[3:])]

        source = make_source(folder / "many", seed=7, files=14, rows=5)
        source.release(12)
        run(sums(source.stream(session), "key"), with_files, "update", count)
        assert steady() == [3] * 8
        operations.clear()
        source.release()
        run(sums(source.stream(session), "key"), with_files, "update", count)
        assert operations[:4] == ["Query", "BatchGetItem", "BatchGetItem", "Query"]
        assert sorted(operations[4:]) == ["Query"] + 6 * ["UpdateItem"]

        counts.clear()
        rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
        writer = rows.selectExpr("value % 3 AS key").groupBy("key").count().writeStream.outputMode("update")
        writer = writer.foreachBatch(lambda batch, number: count(batch, number).foreach(lambda _: None))
        query = writer.option("checkpointLocation", without).start()
        try:
            wait_until(lambda: len(counts) >= 8 or not query.isActive, "no batches are made")
        finally:
            query.stop()
        assert set(steady()) == {2}
