"""The run and the query to which the tables give a version: never another one, whatever a program does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.namespaces import read_record
from dynastate.spark.configure import EXTENSION_CLASS
from tests.spark.conftest import CONF, Database, Sessions
from tests.spark.operators import expected_sums, sums
from tests.spark.state_reader import read_states
from tests.spark.streams import RELEASED, Outcome, Running, Source, make_source, run
from tests.spark.test_open_state import namespace_of
from tests.support.jvm import SPARK

FILES, QUERIES = 3, 4
#: A program whose session has all of dynastate except its extension.
WITHOUT_EXTENSION = """
import sys
from pyspark.sql import SparkSession
import dynastate
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
dynastate.configure(builder, endpoint=sys.argv[1], region="us-east-1").config("spark.sql.extensions", "")
rows = builder.getOrCreate().readStream.text(sys.argv[3]).dropDuplicates()
writer = rows.writeStream.format("noop").option("checkpointLocation", sys.argv[2])
writer.trigger(availableNow=True).start().awaitTermination()
"""


@pytest.fixture
def source(folder: Path) -> Source:
    return make_source(folder / "files", seed=7, files=FILES)


@pytest.mark.every_spark
def test_queries_of_one_program_on_one_namespace(sessions: Sessions, source: Source, folder: Path) -> None:
    """That which has begun there continues, with its own state; others are refused, as those of other programs are."""
    session = sessions({f"{CONF}.dynastate.namespace": folder.name})
    source.release(1)
    Running(sums(source.stream(session), "key"), folder / "0", "complete").finish()
    source.release()
    queries = [Running(sums(source.stream(session), "key"), folder / str(each), "complete") for each in range(QUERIES)]
    outcome, *refusals = (end_of(query) for query in queries)
    assert isinstance(outcome, Outcome), outcome
    assert outcome.rows[FILES - 1] == expected_sums(session, source)
    assert ["this namespace belongs to the query with the checkpoint" in str(each) for each in refusals] == [True] * 3


def end_of(query: Running) -> Outcome | str:
    """The outcome of a query, or its error."""
    try:
        return query.finish()
    except StreamingQueryException as error:
        return str(error)


@pytest.mark.every_spark
def test_tables_have_the_run_of_each_query(
    sessions: Sessions, source: Source, tables: BotoTables, folder: Path
) -> None:
    """A program may rename the thread of a query, set a job group, and start a query in the session of a batch."""
    source.release()
    runs: dict[str, str] = {}

    def start_another(batch: DataFrame, number: int) -> DataFrame:
        session = batch.sparkSession
        assert session._jvm is not None
        session._jvm.java.lang.Thread.currentThread().setName("of the program")
        session.sparkContext.setJobGroup("of the program", "a batch")
        if number == 0:
            name = f"stream execution thread for [id = {uuid4()}, runId = {uuid4()}]"
            writer = sums(source.stream(session), "key").writeStream.queryName(name).outputMode("complete")
            writer = writer.format("noop").option("checkpointLocation", str(folder / "inner"))
            query = writer.trigger(availableNow=True).start()
            assert query.awaitTermination(120)
            runs["inner"] = query.runId
        return batch

    query = Running(sums(source.stream(sessions({})), "key"), folder / "outer", "complete", start_another)
    runs["outer"] = query.run_id
    assert query.finish().rows[FILES - 1] == expected_sums(sessions({}), source)
    records = {name: read_record(tables, namespace_of(folder / name)) for name in runs}
    assert {name: record and list(record.epochs) for name, record in records.items()} == {
        name: [run] for name, run in runs.items()
    }


@pytest.mark.skipif(SPARK == "3.5", reason="it has no reader of states")
def test_a_session_reads_the_states_of_several_queries(sessions: Sessions, source: Source, folder: Path) -> None:
    """Spark plans the files of a query's batch in the session that started the query."""
    source.release()
    session = sessions({f"{CONF}.checkpointFormatVersion": "1"})
    checkpoints = [folder / name for name in ("one", "other")]
    outcomes = [run(sums(source.stream(session), "key"), each) for each in checkpoints]
    last = range(FILES - 1, FILES)
    states = [read_states(session, each, last, partitions=False) for each in checkpoints]
    assert states[0] == states[1]
    assert [len(state) for state in states] == [each.state[FILES - 1][0].total for each in outcomes]


@pytest.mark.every_spark
@pytest.mark.skipif(SPARK != "3.5", reason="newer Sparks give tasks the id of their run themselves")
def test_without_the_extension_no_query_runs(
    source: Source, folder: Path, environment: dict[str, str], database: Database
) -> None:
    """Spark 3.5 gives tasks no id of their run: the error names what is missing."""
    source.release()
    command = [sys.executable, "-c", WITHOUT_EXTENSION, database.endpoint, str(folder / "checkpoint")]
    command.append(str(folder / "files" / RELEASED))
    completed = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )
    assert completed.returncode == 1
    assert "on Spark 3.5 a query needs dynastate's extension" in completed.stderr
    assert f"spark.sql.extensions={EXTENSION_CLASS}" in completed.stderr
