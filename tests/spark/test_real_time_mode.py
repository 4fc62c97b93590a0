"""Real-time mode: a query takes rows as they come, and commits at the end of each interval; RocksDB gives the same."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from dynastate.spark.configure import PROVIDER, PROVIDER_CLASS, REAL_TIME_MODE
from tests.spark.conftest import CONF, ON_ROCKSDB, Database, Sessions
from tests.spark.live import ANY_OPERATOR, REAL_TIME, LiveQuery, LiveSource, numbered, without_provider
from tests.spark.operators import in_scala, sums
from tests.spark.programs import live
from tests.spark.state_reader import States, read_state, read_states
from tests.spark.streams import Record, make_rows, make_source, run
from tests.spark.test_checkpoint_in_dynamodb import IN_DYNAMODB
from tests.support.jvm import ROOT, SPARK
from tests.support.processes import children, sidecars_of, wait_until

#: The version whose order of calls was tried.
ON_43 = pytest.mark.skipif(SPARK != "4.3", reason="real-time mode with state came with Spark 4.3")

Build = Callable[[DataFrame], DataFrame]
QUERIES: dict[str, Build] = {
    "aggregation": lambda rows: sums(rows, "key"),
    "deduplication": lambda rows: rows.select("key", "id").dropDuplicates(),
    "transformWithState in Scala": lambda rows: in_scala(rows, "Processors", "appendedInUpdateMode"),
}
ROWS = [make_rows(seed=51, file=file) for file in range(3)]
#: RocksDB's provider, which Spark allows to be set.
ROCKSDB = {PROVIDER: ON_ROCKSDB[PROVIDER], f"{CONF}.checkpointFormatVersion": "2"}


def twice(rows: DataFrame) -> DataFrame:
    return in_scala(rows, "Processors", "twice")


def real_time(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    return without_provider(spark.newSession(), {**REAL_TIME, **conf})


def play(session: SparkSession, build: Build, folder: Path) -> tuple[list[str], States]:
    """Three runs: the second is stopped within an interval, and the third takes its rows again.

    Returns:
        The rows of the last run, and the rows of state after its last interval.
    """
    source, outputs = LiveSource(session), [folder / "rows" / str(number) for number in range(3)]
    query = LiveQuery(build(source.frame), folder / "checkpoint", outputs[0])
    source.add(ROWS[0])
    query.wait_until_committed(source)
    query.stop()
    source.add(ROWS[1])
    query = LiveQuery(build(source.frame), folder / "checkpoint", outputs[1], interval="10 minutes")
    query.wait_for(1)
    query.stop()
    query = LiveQuery(build(source.frame), folder / "checkpoint", outputs[2])
    query.wait_until_committed(source)
    source.add(ROWS[2])
    last = query.wait_until_committed(source)
    rows = query.rows()
    query.stop()
    return rows, [row[1:] for row in read_states(session, folder / "checkpoint", range(last, last + 1))]


@ON_43
@pytest.mark.slow
@pytest.mark.parametrize("name", QUERIES)
def test_output_and_state_are_those_of_rocksdb(spark: SparkSession, folder: Path, name: str) -> None:
    """With a restart between intervals, and one within an interval."""
    extra = ANY_OPERATOR if name.startswith("transformWithState") else {}
    outcomes = {
        store: play(real_time(spark, conf | extra), QUERIES[name], folder / store)
        for store, conf in (("rocksdb", ROCKSDB), ("dynastate", {}))
    }
    rows, state = outcomes["dynastate"]
    assert rows
    assert state
    assert outcomes["dynastate"] == outcomes["rocksdb"]


def play_timers(session: SparkSession, checkpoint: Path | str, folder: Path) -> tuple[list[str], States]:
    """As `play`, with timers that fire soon after each row, and state that expires."""
    files = [numbered(file) for file in range(3)]
    source, outputs = LiveSource(session), [folder / str(number) for number in range(3)]
    query = LiveQuery(twice(source.frame), checkpoint, outputs[0])
    source.add(files[0])
    query.wait_for(2 * len(files[0]))
    query.wait_for_interval()
    query.stop()
    source.add(files[1])
    query = LiveQuery(twice(source.frame), checkpoint, outputs[1], interval="10 minutes")
    query.wait_for(1)
    query.stop()
    query = LiveQuery(twice(source.frame), checkpoint, outputs[2])
    query.wait_until_committed(source)
    source.add(files[2])
    query.wait_for(2 * len(files[1] + files[2]))
    last = query.wait_for_interval()
    rows = query.rows()
    query.stop()
    return rows, lasting(read_states(session, checkpoint, range(last, last + 1)))


def lasting(states: States) -> States:
    """Without their batches, and without the times when values expire, which differ from run to run."""
    return [(options, re.sub(r"}, \d{13}}", "}}", str(row))) for _, options, row in states]


@ON_43
@pytest.mark.slow
def test_timers_and_state_that_expires_are_those_of_rocksdb(spark: SparkSession, folder: Path) -> None:
    """Each row comes once and is due once, also where the interval is repeated; what has expired is removed."""
    stores: dict[str, tuple[Mapping[str, str], Path | str]] = {
        "rocksdb": (ROCKSDB, folder / "rocksdb"),
        "files": ({}, folder / "files"),
        "DynamoDB": (IN_DYNAMODB, f"dynastate://{folder.name}/query"),
    }
    outcomes = {
        store: play_timers(real_time(spark, {**conf, **ANY_OPERATOR}), checkpoint, folder / f"rows of {store}")
        for store, (conf, checkpoint) in stores.items()
    }
    rows, states = outcomes["rocksdb"]
    assert rows == sorted(came_and_due([*numbered(1), *numbered(2)]))
    assert {json.loads(str(options)).get("stateVarName") for options, _ in states} == {"sum", "long"}
    assert outcomes["files"] == outcomes["DynamoDB"] == outcomes["rocksdb"]


def came_and_due(rows: Sequence[Record]) -> set[str]:
    """What `Processors.twice` makes of rows, each one once."""
    keys = {row["id"]: "none" if row["key"] is None else row["key"] for row in rows}
    return {f"{key}\t{what}\t{number}\t" for number, key in keys.items() for what in ("came", "due")}


@ON_43
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_within_intervals(
    spark: SparkSession, database: Database, folder: Path, environment: dict[str, str]
) -> None:
    """Spark is killed twice, and its sidecar once: the state is that of a run that was never killed."""
    run_killed(
        folder, database, environment, "sums", folder / "checkpoint", ({15: "Spark"}, {30: "sidecar", 45: "Spark"})
    )
    state = read_state(spark, folder / "checkpoint").select("key.*", "value.*").collect()
    records = [Row(**row) for file in range(live.FILES) for row in numbered(file)]
    expected = sums(spark.createDataFrame(records), "key").collect()
    assert sorted(map(tuple, state), key=repr) == sorted(map(tuple, expected), key=repr)


@ON_43
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_with_timers_and_the_checkpoint_in_dynamodb(
    sessions: Sessions, database: Database, folder: Path, environment: dict[str, str]
) -> None:
    """No timer is lost, and no row is in the state twice."""
    checkpoint = f"dynastate://{folder.name}/query"
    run_killed(folder, database, environment, "timers", checkpoint, ({20: "Spark"}, {35: "sidecar", 45: "Spark"}))
    rows = [row for file in range(live.FILES) for row in numbered(file)]
    came = {line for file in (folder / "rows").iterdir() for line in file.read_text().splitlines()}
    assert came == came_and_due(rows)
    session, expected = sessions(IN_DYNAMODB), Counter[object]()
    for row in rows:
        expected["none" if row["key"] is None else row["key"]] += int(str(row["id"]))
    state = read_state(session, checkpoint, stateVarName="sum").select("key.*", "value.*").collect()
    assert dict(map(tuple, state)) == expected
    for options in ({"stateVarName": "waiting"}, {"stateVarName": "brief"}, {"readRegisteredTimers": "true"}):
        assert read_state(session, checkpoint, **options).collect() == []


def run_killed(
    folder: Path,
    database: Database,
    environment: Mapping[str, str],
    query: str,
    checkpoint: Path | str,
    runs: Sequence[Mapping[int, str]],
) -> None:
    """Run a query of `live` again and again, until it is not killed: whom each run loses, by the files it has then."""
    program_name = "tests.spark.programs.live"
    command = [sys.executable, "-m", program_name, str(folder), database.endpoint, query, str(checkpoint)]
    variables = {**environment, "PYSPARK_PYTHON": sys.executable}
    for victims in (*runs, {}):
        killed: list[str] = []
        with (folder / "log").open("ab") as log:
            program = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=log, stderr=log)
        try:
            for files, victim in victims.items():
                wait_until(lambda: added(folder) >= files or program.poll() is not None, "no progress", 120)  # noqa: B023
                for jvm in children(program.pid):  # none, where a commit failed with its sidecar
                    (victim_pid,) = [jvm] if victim == "Spark" else sidecars_of(jvm)
                    os.kill(victim_pid, signal.SIGKILL)
                    killed.append(victim)
            outcome = program.wait(120)
        finally:
            program.kill()
            program.wait()
        assert (outcome == 0) == (not victims), (folder / "log").read_text()[-4000:]
        assert killed[:1] == list(victims.values())[:1], (folder / "log").read_text()[-4000:]


def added(folder: Path) -> int:
    mark = folder / "added"
    return int(mark.read_text() or 0) if mark.exists() else 0


def pinned(checkpoint: Path) -> str:
    """The provider that the first offset names."""
    _, metadata, *_ = (checkpoint / "offsets" / "0").read_text().splitlines()
    return str(json.loads(metadata)["conf"][PROVIDER])


@ON_43
def test_queries_of_both_modes_are_on_dynastate(spark: SparkSession, folder: Path) -> None:
    """The setting is for all queries of a session, which has no provider: none is on another store."""
    session = real_time(spark, {})
    live_source = LiveSource(session)
    query = LiveQuery(sums(live_source.frame, "key"), folder / "live", folder / "rows")
    query.wait_until_committed(live_source)
    query.stop()
    source = make_source(folder / "files", seed=52, files=1)
    source.release()
    run(sums(source.stream(session), "key"), folder / "batches")
    assert {pinned(folder / name) for name in ("live", "batches")} == {PROVIDER_CLASS}
    assert PROVIDER not in session.conf.getAll


@ON_43
def test_wrong_settings_are_refused(spark: SparkSession, folder: Path) -> None:
    session = real_time(spark, {REAL_TIME_MODE: "yes"})
    source = make_source(folder / "files", seed=54, files=1)
    with pytest.raises(PySparkException, match=f"{REAL_TIME_MODE} must be true or false got='yes'"):
        run(source.stream(session).groupBy("key").count(), folder / "checkpoint")
    session.sql(f"SET {REAL_TIME_MODE}=true")
    assert session.conf.get(REAL_TIME_MODE) == "true"


@ON_43
def test_a_session_can_switch_it_off(spark: SparkSession, folder: Path) -> None:
    session = real_time(spark, {})
    source = make_source(folder / "files", seed=55, files=1)
    source.release()
    for value in ("true", "false"):
        session.conf.set(REAL_TIME_MODE, value)
        run(source.stream(session).select("key"), folder / value)
    assert [pinned(folder / value) for value in ("true", "false")] == [PROVIDER_CLASS, session.conf.get(PROVIDER)]
    assert session.conf.get(PROVIDER) != PROVIDER_CLASS


@ON_43
def test_a_query_keeps_the_store_it_began_with(spark: SparkSession, folder: Path) -> None:
    """The session sets RocksDB's class for this query, and removes it for the next one."""
    session = real_time(spark, ROCKSDB)
    source = LiveSource(session)
    query = LiveQuery(sums(source.frame, "key"), folder / "checkpoint", folder / "rows")
    session.conf.unset(PROVIDER)
    source.add(ROWS[0])
    query.wait_until_committed(source)
    query.stop()
    assert pinned(folder / "checkpoint") == ON_ROCKSDB[PROVIDER]


@ON_43
def test_a_checkpoint_of_another_store_is_refused(spark: SparkSession, folder: Path) -> None:
    """Spark would continue it there, without a word."""
    rocksdb = real_time(spark, ROCKSDB)
    source = LiveSource(rocksdb)
    query = LiveQuery(sums(source.frame, "key"), folder / "checkpoint", folder / "rows")
    query.wait_until_committed(source)
    query.stop()
    with pytest.raises(PySparkException, match="this checkpoint was begun on another state store"):
        LiveQuery(sums(LiveSource(real_time(spark, {})).frame, "key"), folder / "checkpoint", folder / "rows")


class ChangeOwnConf(StreamingQueryListener):
    """Changes the conf of each query's own session. Spark logs what its listeners raise, and continues."""

    def __init__(self, session: SparkSession, change: Callable[[Any], None]) -> None:
        self.session, self.change = session, change

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        jvm: Any = self.session._jvm
        key = jvm.java.util.UUID.fromString(str(event.id))
        query = self.session._jsparkSession.sharedState().activeStreamingQueries().get(key)
        self.change(query.sparkSessionForStream().conf())

    def onQueryProgress(self, event: QueryProgressEvent) -> None: ...  # noqa: N802

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...  # noqa: N802


NOT_BEGUN = "and yet the query's own session has another state store.* providerClass=.*"


@ON_43
def test_a_query_that_got_another_store_does_not_begin(spark: SparkSession, folder: Path) -> None:
    """Here a listener sets another class before ours is called."""
    session = real_time(spark, {})
    session.streams.addListener(ChangeOwnConf(session, lambda own: own.set(PROVIDER, ON_ROCKSDB[PROVIDER])))
    query = LiveQuery(sums(LiveSource(session).frame, "key"), folder / "checkpoint", folder / "rows")
    with pytest.raises(StreamingQueryException, match=NOT_BEGUN + "RocksDBStateStoreProvider"):
        query.query.awaitTermination(60)
    assert not (folder / "checkpoint" / "commits" / "0").exists()


@ON_43
def test_a_query_that_got_no_store_does_not_begin(spark: SparkSession, folder: Path) -> None:
    """Here a listener removes the class that ours has set; Spark would take its default store."""
    session = real_time(spark, {})
    source = make_source(folder / "files", seed=56, files=1)
    source.release()
    run(source.stream(session).select("key"), folder / "first")  # adds our listener
    session.streams.addListener(ChangeOwnConf(session, lambda own: own.unset(PROVIDER)))
    with pytest.raises(StreamingQueryException, match=NOT_BEGUN + "HDFSBackedStateStoreProvider"):
        run(sums(source.stream(session), "key"), folder / "checkpoint")
    assert not (folder / "checkpoint" / "commits" / "0").exists()


@pytest.mark.every_spark
@pytest.mark.skipif(SPARK == "4.3", reason="Spark 4.3.0 has it")
def test_other_versions_are_refused(sessions: Sessions, folder: Path) -> None:
    """Also of queries with other triggers: the setting is for all."""
    source = make_source(folder / "files", seed=53, files=1)
    session = sessions({REAL_TIME_MODE: "true"})
    with pytest.raises(PySparkException, match=f"{REAL_TIME_MODE} is for Spark 4.3.0, on which it was tried"):
        run(source.stream(session).groupBy("key").count(), folder / "checkpoint")
