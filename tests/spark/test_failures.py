"""Tasks, sidecars and drivers that die in mid-batch: the query resumes. Executors are killed in test_killed.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame

from dynastate.format.changes import key_hash
from tests.spark.conftest import CONF, Database, Graphs, Sessions, interpreter, jvm_pid
from tests.spark.operators import CASES, expected_sums, group_state, sums
from tests.spark.programs.dies import BATCH, PARTITION
from tests.spark.streams import Outcome, Source, make_source, make_sources, make_wide_rows, run
from tests.support.jvm import ALSO_ON_35, ROOT
from tests.support.processes import children, is_alive, sidecars_of, wait_until

FILES = 5
PARTITIONS = (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint_format", [pytest.param("1", marks=ALSO_ON_35), "2"])
@pytest.mark.parametrize(
    ("name", "stores"),
    [
        ("aggregation in update mode with a watermark", ["default"]),
        (
            "stream-stream join, left outer",
            [f"{side}-{what}" for side in ("left", "right") for what in ("keyToNumValues", "keyWithIndexToValue")],
        ),
    ],
)
def test_task_that_fails_after_its_commit(
    name: str, stores: list[str], checkpoint_format: str, sessions: Sessions, graphs: Graphs, folder: Path
) -> None:
    """Tasks fail once after commit, in two batches: they commit again, and all is as in a quiet run."""
    case = CASES[name]
    sources = make_sources(folder, seed=3, files=FILES)
    fault_batches = (1, 3)

    def fail_once(frame: DataFrame, batch: int) -> DataFrame:
        if batch not in fault_batches:
            return frame

        def take_all_then_fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            record_batches = list(batches)  # the store commits when its operator has returned its last row
            context = TaskContext.get()
            if context is not None and context.attemptNumber() == 0:
                raise RuntimeError("the first attempt fails")
            yield from record_batches

        return frame.mapInArrow(take_all_then_fail, frame.schema)

    outcomes = {"quiet": Outcome(), "disturbed": Outcome()}
    for files in (FILES - 1, FILES):
        sources.release(files)
        queries = {}
        for label, disturbance in (("quiet", None), ("disturbed", fail_once)):
            conf = {"checkpointFormatVersion": checkpoint_format, "dynastate.namespace": f"{folder.name}-{label}"}
            session = sessions({f"{CONF}.{key}": value for key, value in conf.items()})
            queries[label] = case.start(session, sources, folder / label, disturbance)
        for label, query in queries.items():
            outcomes[label].add(query.finish())

    outcome, reference = outcomes["disturbed"], outcomes["quiet"]
    assert outcome.rows == reference.rows
    assert outcome.state == reference.state
    for store in stores:
        for partition in PARTITIONS:
            graph = graphs(f"{folder.name}-disturbed/0/{partition}/{store}")
            counts = [len(graph._entries[version]) for version in graph.versions()]
            assert counts == [2 if batch in fault_batches else 1 for batch in range(len(counts))]


@pytest.mark.parametrize(
    ("sidecars", "rows_before", "how"),
    [
        (1, 1, signal.SIGKILL),
        pytest.param(2, 90, signal.SIGKILL, marks=[pytest.mark.slow, ALSO_ON_35]),
        pytest.param(1, 90, signal.SIGSTOP, marks=pytest.mark.slow),
    ],
    ids=["killed before changes are sent", "two killed while changes are sent", "stopped while changes are sent"],
)
def test_lost_sidecars(sidecars: int, rows_before: int, how: signal.Signals, sessions: Sessions, folder: Path) -> None:
    """Sidecars end while tasks write: they are retried with new ones, and every value is right."""
    # A file's rows exceed a chunk, and the changes that a provider holds before it sends them.
    source = Source(folder / "files", [make_wide_rows(file, 200, 40_000) for file in range(3)])
    source.release()
    # A namespace whose two stores each have a sidecar of their own, where there are two.
    namespace = next(
        name
        for name in (f"{folder.name}-{number}" for number in range(100))
        if len({key_hash(f"{name}/0/{partition}/default".encode()) % 2 for partition in PARTITIONS}) == 2
    )
    conf = {"python": interpreter(folder), "sidecars": str(sidecars), "namespace": namespace}
    session = sessions({f"{CONF}.dynastate.{name}": value for name, value in conf.items()})
    others = set(sidecars_of(jvm_pid()))
    pids: list[int] = []
    mark = folder / "mark"

    def kill_sidecar(frame: DataFrame, batch: int) -> DataFrame:
        if batch != 1:
            return frame
        pids.extend(set(sidecars_of(jvm_pid())) - others)
        victims = list(pids)

        def kill_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            rows = 0
            for record_batch in batches:
                rows += record_batch.num_rows
                if rows >= rows_before and not mark.exists():
                    mark.touch()
                    for pid in victims:
                        os.kill(pid, how)
                yield record_batch

        return frame.mapInArrow(kill_once, frame.schema)

    outcome = run(sums(source.stream(session), "key"), folder / "checkpoint", "update", kill_sidecar)

    assert outcome.rows[2] == expected_sums(session, source)
    assert {batch: states[0].total for batch, states in outcome.state.items()} == {0: 200, 1: 200, 2: 200}
    assert mark.exists()
    fresh = set(sidecars_of(jvm_pid())) - others
    assert len(pids) == len(fresh) == sidecars
    assert not fresh & set(pids)
    assert not any(map(is_alive, pids))


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint_format", ["1", "2"])
def test_spark_that_is_killed_in_mid_batch(
    checkpoint_format: str,
    sessions: Sessions,
    database: Database,
    environment: dict[str, str],
    graphs: Graphs,
    folder: Path,
) -> None:
    """Spark dies by SIGKILL when one of two partitions has committed a batch: after a restart every batch is right."""
    source = make_source(folder / "files", seed=6, files=FILES)
    source.release(BATCH + 1)
    quiet_source = make_source(folder / "quiet files", seed=6, files=FILES)
    quiet_source.release()
    namespace = f"{folder.name}-killed"
    settings = {
        f"{CONF}.checkpointFormatVersion": checkpoint_format,
        f"{CONF}.dynastate.namespace": namespace,
        f"{CONF}.dynastate.endpoint": database.endpoint,
        f"{CONF}.dynastate.region": database.settings.region,
    }
    words = [sys.executable, "-m", "tests.spark.programs.dies", str(folder), database.endpoint, checkpoint_format]
    with subprocess.Popen(words, cwd=ROOT, env=environment | {"PYSPARK_PYTHON": sys.executable}) as program:
        try:
            reference = run(group_state(quiet_source.stream(sessions({}))), folder / "quiet", "append")
            other_store = f"{namespace}/0/{1 - PARTITION}/default"
            wait_until(lambda: BATCH + 1 in graphs(other_store).versions(), "the other partition did not commit", 120)
            (jvm,) = children(program.pid)
            (sidecar,) = sidecars_of(jvm)
            os.kill(jvm, signal.SIGKILL)
        finally:
            program.kill()
    wait_until(lambda: not is_alive(sidecar), "the sidecar outlived its JVM")
    assert not list((folder / "own" / "tmp").glob("dynastate-*")), "the sidecar left its socket behind"
    assert BATCH + 1 not in graphs(f"{namespace}/0/{PARTITION}/default").versions()

    source.release()
    outcome = run(group_state(source.stream(sessions(settings))), folder / "checkpoint", "append")
    assert min(outcome.rows) == BATCH
    assert outcome.rows == {batch: rows for batch, rows in reference.rows.items() if batch >= BATCH}
    assert outcome.state == {batch: states for batch, states in reference.state.items() if batch >= BATCH}
