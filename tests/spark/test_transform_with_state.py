"""transformWithState in processing time, and with other state variables in a later run of the query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import CONF, ON_ROCKSDB, Sessions
from tests.spark.operators import in_scala
from tests.spark.processors import evolved, transformed_by_processing_time
from tests.spark.state_reader import read_state, read_states
from tests.spark.streams import Outcome, Source, first_error, make_rows, make_source, run
from tests.support.processes import wait_until

FILES = 4
#: Files that the first run of two takes.
BEFORE_RESTART = 2
STORES = {"ours": {}, "rocksdb": ON_ROCKSDB}


def scala_by_processing_time(rows: DataFrame) -> DataFrame:
    return in_scala(rows, "Processors", "byProcessingTime")


class ProcessingTimeQuery:
    """A query in processing time: it makes batches without end; each fires the timers of the one before."""

    def __init__(self, frame: DataFrame, checkpoint: Path) -> None:
        self.rows: list[tuple[object, ...]] = []
        self._commits = checkpoint / "commits"
        self._last = -1

        def sink(batch: DataFrame, number: int) -> None:
            if rows := [tuple(row) for row in batch.collect()]:
                self._last = number
                self.rows.extend(rows)

        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
        self.query = writer.trigger(processingTime="0 seconds").start()

    def wait_for(self, keys: int, timers: int) -> None:
        """Wait until a number of keys were seen, a number of timers have fired, and that will not be run again."""

        def there() -> bool:
            error = self.query.exception()
            assert error is None, str(error)
            kinds = [row[1] for row in self.rows]
            return (kinds.count("seen"), kinds.count("due")) == (keys, timers)

        wait_until(there, f"not {keys} keys and {timers} timers: {sorted(self.rows, key=repr)}", 60)
        wait_until((self._commits / str(self._last)).exists, f"batch {self._last} is not committed", 60)


def in_processing_time(
    build: Callable[[DataFrame], DataFrame], source: Source, runs: list[list[int]], session: SparkSession, folder: Path
) -> list[list[tuple[object, ...]]]:
    """Release files one by one, each when the timers of the one before have fired; the rows of each file."""
    results = []
    for files in runs:
        query = ProcessingTimeQuery(build(source.stream(session)), folder)
        try:
            for file in files:
                source.release(file + 1)
                keys = len({row["key"] for row in make_rows(11, file)})
                query.wait_for(keys, keys)
                results.append(sorted(query.rows, key=repr))
                query.rows.clear()
        finally:
            query.query.stop()
    return results


@pytest.mark.slow
@pytest.mark.parametrize("build", [scala_by_processing_time, transformed_by_processing_time], ids=["Scala", "Python"])
def test_timers_in_processing_time(build: Callable[[DataFrame], DataFrame], sessions: Sessions, folder: Path) -> None:
    """Values with a millisecond to live are deleted in the next batch, the rest stays, and each timer fires once."""
    runs = [list(range(BEFORE_RESTART)), list(range(BEFORE_RESTART, FILES))]
    rows: dict[str, list[list[tuple[object, ...]]]] = {}
    states: dict[str, dict[str, list[str]]] = {}
    for store, conf in STORES.items():
        source = make_source(folder / f"{store} files", seed=11, files=FILES)
        session = sessions(conf)
        rows[store] = in_processing_time(build, source, runs, session, folder / store)
        states[store] = {}
        for name in ("briefValue", "briefList", "briefMap", "longValue", "longList", "longMap"):
            frame = read_state(session, folder / store, stateVarName=name)
            # The time when a value expires differs from run to run.
            states[store][name] = sorted(
                str(row).partition("ttlExpirationMs")[0] + str(row.partition_id) for row in frame.collect()
            )
        assert read_state(session, folder / store, readRegisteredTimers="true").collect() == []
    assert rows["ours"] == rows["rocksdb"]
    assert states["ours"] == states["rocksdb"]
    assert all(bool(values) == name.startswith("long") for name, values in states["ours"].items())


@pytest.mark.slow
def test_later_run_has_other_state_variables(sessions: Sessions, folder: Path) -> None:
    """A variable is added, one is dropped with `deleteIfExists`, and one that comes back under its name is empty."""
    runs = (("a", "b"), ("a", "c"), ("b", "a"))
    source = make_source(folder / "files", seed=13, files=2 * len(runs))
    outcomes = {store: Outcome() for store in STORES}
    for turn, variables in enumerate(runs):
        source.release(2 * (turn + 1))
        for store, conf in STORES.items():
            frame = evolved(source.stream(sessions(conf)), variables)
            outcomes[store].add(run(frame, folder / store, "append"))
    ours, rocksdb = outcomes["ours"], outcomes["rocksdb"]
    assert sorted(ours.rows) == list(range(2 * len(runs)))
    assert ours.rows == rocksdb.rows
    assert ours.state == rocksdb.state
    # Spark reads older batches by the variables of the last run.
    states = [read_states(sessions(conf), folder / store, range(4, 6)) for store, conf in STORES.items()]
    assert states[0] == states[1] != []


@pytest.mark.slow
def test_state_variable_of_another_type_is_refused(sessions: Sessions, folder: Path) -> None:
    """Spark's check of schemas guards our stores as it guards its own."""
    source = make_source(folder / "files", seed=14, files=2)
    session = sessions({})
    source.release(1)
    run(evolved(source.stream(session), ("a",)), folder / "checkpoint", "append")
    source.release()
    message = first_error(evolved(source.stream(session), ("a",), "string"), folder / "checkpoint")
    assert "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE" in message


def test_other_providers_are_as_spark_has_them(sessions: Sessions, folder: Path) -> None:
    source = make_source(folder / "files", seed=14, files=1)
    source.release()
    hdfs = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    session = sessions({f"{CONF}.providerClass": hdfs, f"{CONF}.checkpointFormatVersion": "1"})
    message = first_error(evolved(source.stream(session), ("a",)), folder / "checkpoint")
    assert "STORE_BACKEND_NOT_SUPPORTED_FOR_TWS" in message
