"""Life cycle of stores in Spark: maintenance, unloading, queries stopped in mid-batch, released resources."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame

from tests.spark.conftest import CONF, Graphs, Sessions, interpreter, jvm_pid, state_stores
from tests.spark.operators import CASES, expected_sums, sums
from tests.spark.streams import Running, Source, Sources, hang_in, make_source, run
from tests.support.jvm import ALSO_ON_35, ROOT, SPARK
from tests.support.processes import sidecars_of, sockets, unix_sockets, wait_until

FILES = 4


@pytest.fixture
def source(folder: Path) -> Source:
    return make_source(folder / "files", seed=15, files=FILES)


def loaded(query: Running, checkpoint: Path, partitions: range = range(2)) -> list[bool]:
    """Whether this executor holds the providers of a query's first operator, by partition."""
    jvm = SparkContext._jvm
    assert jvm is not None
    state = jvm.org.apache.spark.sql.execution.streaming.state
    run_id = jvm.java.util.UUID.fromString(query.run_id)
    # Spark 3.5 spells it without the empty authority.
    root = f"file:{checkpoint}/state" if SPARK == "3.5" else f"{checkpoint.as_uri()}/state"
    ids = [
        state.StateStoreProviderId(state.StateStoreId(root, 0, partition, "default"), run_id)
        for partition in partitions
    ]
    return [state_stores().isLoaded(each) for each in ids]


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.mark.slow
@ALSO_ON_35
def test_maintenance_beside_the_query(fresh_stores: None, sessions: Sessions, graphs: Graphs, folder: Path) -> None:
    """Maintenance makes snapshots and deletes old versions while batches run; a restart recovers from a snapshot."""
    files = 12
    source = make_source(folder / "files", seed=18, files=files)
    session = sessions(
        {
            "spark.sql.streaming.minBatchesToRetain": "2",
            f"{CONF}.maintenanceInterval": "10ms",
            f"{CONF}.minDeltasForSnapshot": "2",
            f"{CONF}.dynastate.namespace": folder.name,
        }
    )
    stores = [f"{folder.name}/0/{partition}/default" for partition in (0, 1)]

    def is_maintained(store: str) -> bool:
        graph = graphs(store)
        return bool(graph.snapshots()) and graph.versions()[0] > 1

    def wait_for_maintenance(batch: DataFrame, number: int) -> DataFrame:
        if number == files - 1:
            wait_until(lambda: all(map(is_maintained, stores)), "no snapshot was made, or no version was deleted", 60)
        return batch

    for half in (files // 2, files):
        source.release(half)
        stream = sums(source.stream(session), "key")
        outcome = run(stream, folder / "checkpoint", "complete", wait_for_maintenance)
        assert outcome.rows[half - 1] == expected_sums(session, source)
    for store in stores:
        assert is_maintained(store)
        assert graphs(store).versions()[-1] == files
    if SPARK == "3.5":  # it has no reader
        return
    states = session.read.format("statestore").load(str(folder / "checkpoint"))
    assert states.count() == len(outcome.rows[files - 1])


@pytest.mark.slow
@pytest.mark.every_spark
@pytest.mark.skipif(SPARK != "3.5", reason="newer Sparks would unload the store of the error only")
def test_a_maintenance_that_fails_unloads_no_store(
    fresh_stores: None, sessions: Sessions, source: Source, folder: Path
) -> None:
    """Its sidecar is gone, and none starts: the store stays, and so do others. Then the query goes on."""
    source.release()
    failing = folder / "python"
    mark = folder / "mark"
    conf = {f"{CONF}.maintenanceInterval": "3s", f"{CONF}.dynastate.python": interpreter(folder)}
    others = set(sidecars_of(jvm_pid()))
    may_end = threading.Event()

    def hold(batch: DataFrame, number: int) -> DataFrame:
        assert number < FILES - 1 or may_end.wait(120)
        return batch

    def lose_the_sidecar(batch: DataFrame, number: int) -> DataFrame:
        if number == 1:
            wait_until(lambda: loaded(quiet, folder / "quiet") == [True, True], "the other query did not begin", 60)
            works = failing.read_text()
            failing.write_text(f"#!/bin/sh\ntouch {mark}\nexit 1\n")
            for pid in set(sidecars_of(jvm_pid())) - others:
                os.kill(pid, signal.SIGKILL)
            wait_until(mark.exists, "there was no maintenance", 60)
            time.sleep(0.5)  # the error has arrived
            for query, checkpoint in ((quiet, folder / "quiet"), (disturbed, folder / "disturbed")):
                assert loaded(query, checkpoint) == [True, True]
            failing.write_text(works)
            may_end.set()
        return batch

    session = sessions({f"{CONF}.maintenanceInterval": "3s"})
    quiet = Running(sums(source.stream(session), "key"), folder / "quiet", "complete", hold)
    disturbed = Running(sums(source.stream(sessions(conf)), "key"), folder / "disturbed", "complete", lose_the_sidecar)
    for query in (disturbed, quiet):
        assert query.finish().rows[FILES - 1] == expected_sums(session, source)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("conf", "misses"),
    [({"unloadOnCommit": "true"}, [0, 2, 2, 2]), ({"maintenanceInterval": "100ms"}, [0] * FILES)],
    ids=["unloaded", "kept"],
)
def test_providers_stay_between_batches_unless_they_are_unloaded(
    conf: dict[str, str], misses: list[int], fresh_stores: None, sessions: Sessions, source: Source, folder: Path
) -> None:
    """With `unloadOnCommit` each batch opens its version again; else maintenance unloads them when the query ends."""
    source.release()
    session = sessions({f"{CONF}.{name}": value for name, value in conf.items()})
    query = Running(sums(source.stream(session), "key"), folder / "checkpoint", "complete")
    outcome = query.finish()
    assert outcome.rows[FILES - 1] == expected_sums(session, source)
    assert [metrics["dynastateCacheMisses"] for metrics in outcome.metrics.values()] == misses

    def is_unloaded() -> bool:
        return loaded(query, folder / "checkpoint") == [False, False]

    assert "unloadOnCommit" not in conf or is_unloaded()
    wait_until(is_unloaded, "providers of an ended query stay")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aggregation in update mode", "transformWithStateInPandas"])
def test_query_that_is_stopped_while_tasks_run(name: str, sessions: Sessions, folder: Path) -> None:
    """A stop in mid-batch leaves the last committed version, no open store, and every connection returned."""
    case = CASES[name]
    source = make_source(folder / "files", seed=16, files=FILES)
    sources = Sources(source, source)
    session = sessions({})
    source.release(2)
    reference = case.start(session, sources, folder / "quiet").finish()
    counts = {pid: unix_sockets(pid) for pid in sidecars_of(jvm_pid())}
    assert counts
    for _ in range(3):
        mark = folder / "hanging"
        hang = hang_in(1, 1, 60_000, mark)
        query = case.start(session, sources, folder / "checkpoint", hang)
        try:
            wait_until(mark.exists, "no task hangs", 60)
        finally:
            query.stop()
        mark.unlink()
    outcome = case.start(session, sources, folder / "checkpoint").finish()
    assert outcome.rows[1] == reference.rows[1]
    assert outcome.state[1] == reference.state[1]
    # Two tasks, or a task and maintenance, may overlap only later: two more connections. A leak would be three.
    wait_until(lambda: all(unix_sockets(pid) <= count + 2 for pid, count in counts.items()), "connections stay open")
    assert set(sidecars_of(jvm_pid())) == set(counts)


@pytest.mark.slow
def test_queries_release_all_resources(fresh_stores: None, sessions: Sessions, source: Source, folder: Path) -> None:
    """Queries of a Spark share sidecars; another query needs no more sockets or threads of a sidecar."""
    source.release(1)
    session = sessions({f"{CONF}.maintenanceInterval": "1h"})  # maintenance has connections of its own

    def resources() -> dict[int, int]:
        return {pid: sockets(pid) + threads(pid) for pid in sidecars_of(jvm_pid())}

    counts: dict[int, int] = {}
    for turn in range(12):
        run(sums(source.stream(session), "key"), folder / f"checkpoint {turn}", "complete")
        if turn == 1:
            counts = resources()
    # Two tasks may overlap only later: one more connection, its thread, and some to DynamoDB. A leak would be ten.
    wait_until(lambda: all(count <= counts[pid] + 6 for pid, count in resources().items()), "sockets or threads stay")
    assert set(resources()) == set(counts)


def test_metrics_are_those_of_the_documentation(sessions: Sessions, folder: Path) -> None:
    """Progress has every metric of docs/metrics.md but those that are exported, and no other."""
    source = make_source(folder / "files", seed=2, files=2, rows=200)
    source.release(2)
    outcome = run(sums(source.stream(sessions({})), "id"), folder / "checkpoint", "complete")
    page = (ROOT / "docs" / "metrics.md").read_text()
    names = re.findall(r"^\| `(?!dynastate_|emf`)(\w+)` \|", page, re.MULTILINE)
    for metrics in outcome.metrics.values():
        assert sorted(metrics) == sorted(names)
    batch_metrics = outcome.metrics[1]
    assert batch_metrics["dynastateParts"] == 2
    assert batch_metrics["dynastateCacheHits"] >= 2
    assert batch_metrics["dynastateWriteUnits"] >= batch_metrics["dynastateItemsWritten"] > 2
    assert batch_metrics["dynastateBytesWritten"] > 0
