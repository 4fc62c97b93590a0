"""State that is followed while its query runs, fails, and loses its sidecar."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import dynastate
from dynastate.reader.follow import StateFollower
from tests.spark.conftest import Database, Sessions, jvm_pid, only
from tests.spark.operators import sums
from tests.spark.streams import Source, make_source
from tests.spark.test_checkpoint_in_dynamodb import IN_DYNAMODB
from tests.support.processes import sidecars_of, wait_until

FILES = 7
#: In this batch the driver fails when the state is committed, and before the log is.
FAILS_IN = 2
#: After this number of batches the sidecar is killed.
KILLED_AFTER = 4


class Running:
    """A query that is started again when it fails, as by its user. A batch for each file."""

    def __init__(self, session: SparkSession, source: Source, namespace: str) -> None:
        self._session, self._source, self._namespace = session, source, namespace
        self.failures: list[str] = []
        self._query = self._start()

    def _start(self) -> StreamingQuery:
        writer = sums(self._source.stream(self._session), "key").writeStream.outputMode("update")
        return (
            writer.foreachBatch(self._sink).option("checkpointLocation", f"dynastate://{self._namespace}/query").start()
        )

    def _sink(self, batch: DataFrame, number: int) -> None:
        batch.collect()
        if number == FAILS_IN and not self.failures:
            raise RuntimeError("the driver fails")

    def commit(self, batches: int, state: StateFollower) -> None:
        """Let it commit this number of batches, all in all, and wait until they are shown."""
        self._source.release(batches)

        def is_shown() -> bool:
            if (error := self._query.exception()) is not None:
                self.failures.append(str(error))
                self._query = self._start()
            return state.version >= batches

        wait_until(is_shown, f"batch {batches} was not shown: {self.failures}", 60)

    def restart(self) -> None:
        self.stop()
        self._query = self._start()

    def wait(self) -> None:
        self._query.processAllAvailable()

    def stop(self) -> None:
        self._query.stop()


class Reader(threading.Thread):
    """A thread that reads each version that is shown."""

    def __init__(self, state: StateFollower) -> None:
        super().__init__()
        self._state = state
        self._is_over = threading.Event()
        #: The rows of each version, in the order in which the versions were shown.
        self.shown: dict[int, list[str]] = {}
        self.order: list[int] = []

    def run(self) -> None:
        while not self._is_over.wait(0.01):
            view = self._state.view
            if self.order[-1:] != [view.version]:
                self.order.append(view.version)
                self.shown[view.version] = sorted(repr(tuple(row.values())) for row in view)

    def end(self) -> None:
        self._is_over.set()
        self.join()


def test_a_query_that_is_followed(
    sessions: Sessions, database: Database, environment: dict[str, str], folder: Path
) -> None:
    """Each version that is shown has the rows of its batches in all partitions, and none is shown after a later one."""
    session = sessions(IN_DYNAMODB | {"spark.sql.shuffle.partitions": "3"})
    source = make_source(folder / "files", seed=4, files=FILES)
    source.release(1)
    query = Running(session, source, folder.name)
    query.wait()
    interval, operator = timedelta(milliseconds=20), f"{folder.name}/0"
    with only(environment):
        state = dynastate.open_state(operator, follow=interval, endpoint=database.endpoint, region="us-east-1")
    reader = Reader(state)
    reader.start()
    with state:
        try:
            query.commit(KILLED_AFTER, state)
            for sidecar in sidecars_of(jvm_pid()):
                os.kill(sidecar, signal.SIGKILL)
            query.commit(FILES - 1, state)
            query.restart()
            query.commit(FILES, state)
            wait_until(lambda: FILES in reader.shown, "the last batch was not read", 10)
        finally:
            query.stop()
            reader.end()
    assert "the driver fails" in query.failures[0]
    assert reader.order == sorted(reader.order)
    assert len(reader.order) > 2
    rows = source.read(session)
    for version, actual in reader.shown.items():
        expected = sums(rows.where(f"file < {version}"), "key").collect()
        assert actual == sorted(repr(tuple(row)) for row in expected), version
