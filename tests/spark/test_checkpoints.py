"""Checkpoints of both formats: resumed, deleted, rolled back, moved, and read by Spark's state reader."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.catalog import every_store, find_stores, of_namespace
from dynastate.format.keys import meta_key, store_shard
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.adopt import adopt_stores, state_location
from dynastate.operations.lifecycle.clean import clean_earlier
from dynastate.operations.lifecycle.fork import fork_namespace
from tests.spark.conftest import CONF, ON_ROCKSDB, Database, Graphs, Open, Sessions
from tests.spark.operators import CASES, expected_sums, sums
from tests.spark.state_reader import read_state
from tests.spark.streams import Outcome, Source, first_error, make_source, make_sources, run, take_all
from tests.support.contents import graph

FORMAT = f"{CONF}.checkpointFormatVersion"
NAMESPACE = f"{CONF}.dynastate.namespace"
V1, V2 = {FORMAT: "1"}, {FORMAT: "2"}
FILES = 6


@pytest.fixture
def source(folder: Path) -> Source:
    return make_source(folder / "files", seed=7, files=FILES)


def resume(session: SparkSession, source: Source, files: int, checkpoint: Path) -> Outcome:
    """Start a run that takes files up to a number; complete mode, so that the last batch shows all state."""
    source.release(files)
    return run(sums(source.stream(session), "key"), checkpoint, "complete")


@pytest.mark.parametrize(
    "formats",
    [
        pytest.param((V1, V1, V1), marks=pytest.mark.slow),
        pytest.param((V1, V2, V2), marks=pytest.mark.slow),
        pytest.param((V2, V1, V1), marks=pytest.mark.slow),
        (V1, V2, V1),
    ],
    ids=["1 throughout", "1, then 2", "2, then 1", "1, then 2, then 1"],
)
def test_both_formats(formats: tuple[Mapping[str, str], ...], sessions: Sessions, source: Source, folder: Path) -> None:
    for turn, conf in enumerate(formats):
        session = sessions(conf)
        outcome = resume(session, source, 2 * turn + 2, folder / "checkpoint")
        assert sorted(outcome.rows) == [2 * turn, 2 * turn + 1]
        assert outcome.rows[2 * turn + 1] == expected_sums(session, source)


@pytest.mark.slow
def test_codecs_of_one_checkpoint(sessions: Sessions, source: Source, folder: Path, tables: BotoTables) -> None:
    for turn, codec in enumerate(("zstd", "lz4", "zstd")):
        session = sessions(V2 | {NAMESPACE: folder.name, f"{CONF}.dynastate.compression": codec})
        outcome = resume(session, source, turn + 1, folder / "checkpoint")
        assert outcome.rows[turn] == expected_sums(session, source)
    stores = find_stores(tables, folder.name)
    shards = [store_shard(store, shard) for store in stores for shard in range(4)]
    parts = [item for shard in shards for _, item in tables.query("delta", shard, "0", "~")]
    inline = [each.inline.codec for store in stores for each in graph(tables, store).entries() if each.inline]
    assert {*inline, *(item["codec"] for item in parts)} >= {"lz4", "zstd"}


@pytest.mark.slow
@pytest.mark.parametrize("conf", [V1, V2], ids=["format 1", "format 2"])
def test_checkpoint_started_over(conf: Mapping[str, str], sessions: Sessions, graphs: Graphs, folder: Path) -> None:
    """A query that starts over at the same path starts empty, and never sees a row of the earlier one."""
    checkpoint = folder / "checkpoint"
    session = sessions(dict(conf) | {NAMESPACE: folder.name})
    first = make_source(folder / "first", seed=8, files=4)
    resume(session, first, 4, checkpoint)
    shutil.rmtree(checkpoint)

    second = make_source(folder / "second", seed=9, files=4)
    # Two restarts: both runs find versions of the earlier query beside their own.
    for files in (1, 3, 4):
        outcome = resume(session, second, files, checkpoint)
        assert outcome.rows[files - 1] == expected_sums(session, second)
        assert outcome.state[files - 1][0].total == len(outcome.rows[files - 1])
    version_graph = graphs(f"{folder.name}/0/0/default")
    assert {version: len(version_graph._entries[version]) for version in version_graph.versions()} == {
        1: 2,
        2: 2,
        3: 2,
        4: 2,
    }
    assert version_graph.meta is not None
    assert version_graph.meta.query == json.loads((checkpoint / "metadata").read_text())["id"]
    assert version_graph.meta.location == f"file:{checkpoint}/state"


@pytest.mark.parametrize("conf", [pytest.param(V1, marks=pytest.mark.slow), V2], ids=["format 1", "format 2"])
def test_checkpoint_restored_after_another_query(conf: Mapping[str, str], sessions: Sessions, folder: Path) -> None:
    """It resumes from its own state, although another query has made the same versions at its path meanwhile."""
    checkpoint, session = folder / "checkpoint", sessions(dict(conf) | {NAMESPACE: folder.name})
    first, second = (make_source(folder / name, seed=seed, files=5) for name, seed in (("first", 8), ("second", 9)))
    resume(session, first, 3, checkpoint)
    shutil.move(checkpoint, folder / "backup")
    resume(session, second, 5, checkpoint)
    shutil.rmtree(checkpoint)
    shutil.move(folder / "backup", checkpoint)
    for files in (4, 5):
        outcome = resume(session, first, files, checkpoint)
        assert outcome.rows[files - 1] == expected_sums(session, first)


@pytest.mark.slow
def test_started_over_with_fewer_partitions(sessions: Sessions, folder: Path, tables: BotoTables, opened: Open) -> None:
    """Readers and forks see the new query's partitions alone; clean-up deletes the others, and the query runs on."""
    checkpoint, namespace = folder / "checkpoint", folder.name
    for partitions in (8, 4):
        shutil.rmtree(checkpoint, ignore_errors=True)
        session = sessions(V2 | {NAMESPACE: namespace, "spark.sql.shuffle.partitions": str(partitions)})
        source = make_source(folder / str(partitions), seed=partitions, files=3)
        source.release(2)
        run(sums(source.stream(session), "id", "note"), checkpoint, "update")
    expected = {(row.id, row.note) for row in source.read(session).collect()}
    state = opened(f"{namespace}/0")
    assert {(row["id"], row["note"]) for row in state} == expected
    assert len(state) == len(expected)
    stores = of_namespace(tables, namespace)
    assert (len(stores.current), len(stores.earlier)) == (4, 4)
    assert fork_namespace(tables, namespace, f"{namespace}-test", None).stores == 4
    assert not any(each.kept for each in clean_earlier(tables, stores.earlier).all())
    source.release()
    run(sums(source.stream(session), "id", "note"), checkpoint, "update")
    assert state.refresh()
    assert {(row["id"], row["note"]) for row in state} == {(r.id, r.note) for r in source.read(session).collect()}
    assert len(every_store(tables, namespace)) == 4


def test_a_batch_that_threads_write(sessions: Sessions, source: Source, folder: Path, tables: BotoTables) -> None:
    """Its stores are the query's, whichever thread submits a job: one partition is read first, the others in a pool."""
    checkpoint, session = folder / "checkpoint", sessions({NAMESPACE: folder.name, "spark.sql.shuffle.partitions": "3"})

    def write(frame: DataFrame, _: int) -> None:
        frame.head(1)
        list(pool.map(lambda _: frame.write.format("noop").mode("overwrite").save(), range(2)))

    source.release(2)
    with ThreadPoolExecutor(2) as pool:
        writer = sums(source.stream(session), "key").writeStream.outputMode("update").foreachBatch(write)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        assert query.exception() is None
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    stores = of_namespace(tables, folder.name)
    assert (len(stores.current), stores.earlier) == (3, [])
    metas = tables.get([meta_key(store) for store in stores.current])
    assert [item["queries"] for item in metas.values()] == [{"1": query_id}] * 3


@pytest.mark.slow
def test_a_drop_beside_a_running_query(
    sessions: Sessions,
    source: Source,
    folder: Path,
    database: Database,
    tables: BotoTables,
    environment: dict[str, str],
) -> None:
    """It is refused while the query writes; with --force the query fails, and a new checkpoint can be begun there."""
    checkpoint, namespace = folder / "checkpoint", folder.name
    session = sessions(V2 | {NAMESPACE: namespace})
    connection = ["--endpoint", database.endpoint, "--region", str(database.settings.region)]

    def drop(*options: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "dynastate.cli", "drop", namespace, "--yes", *connection, *options]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, env=environment, stdout=pipe, stderr=pipe, text=True)

    rows = sums(source.stream(session), "key")
    writer = rows.writeStream.format("noop").outputMode("complete").option("checkpointLocation", str(checkpoint))
    source.release(1)
    query = writer.start()
    try:
        take_all(query)
        with drop() as process:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("looking for ")
            process.send_signal(signal.SIGSTOP)  # between its two looks
            try:
                source.release(3)
                take_all(query)
            finally:
                process.send_signal(signal.SIGCONT)
            _, message = process.communicate(timeout=120)
        assert (process.returncode, "a query writes to this namespace: stop it" in message) == (2, True), message
        with drop("--force") as forced:
            output = forced.communicate(timeout=120)
        assert (forced.returncode, "2 stores with" in output[0]) == (0, True), output
        source.release(4)
        with pytest.raises(StreamingQueryException, match=r"may not commit any more.*dynastate drop"):
            query.awaitTermination(60)
    finally:
        query.stop()
    message = first_error(sums(source.stream(session), "key"), checkpoint, "complete")
    move_hint = r"If the checkpoint was moved, set .*dynastate\.namespace"
    drop_hint = "If the state was dropped, start with a new checkpoint"
    assert re.search(rf"no state of this store .* {move_hint} .* {drop_hint}", message), message
    shutil.rmtree(checkpoint)
    outcome = resume(session, source, FILES, checkpoint)
    assert outcome.rows[max(outcome.rows)] == expected_sums(session, source)
    stores = every_store(tables, namespace)
    assert [verify(tables, store).findings for store in stores] == [()] * 2


@pytest.mark.slow
@pytest.mark.parametrize("conf", [V1, V2], ids=["format 1", "format 2"])
def test_rolled_back_by_hand(conf: Mapping[str, str], sessions: Sessions, source: Source, folder: Path) -> None:
    """Batches whose offsets and commits are deleted run again from the version before them."""
    session = sessions(conf)
    resume(session, source, 4, folder / "checkpoint")
    for log in ("offsets", "commits"):
        for batch in (2, 3):
            (folder / "checkpoint" / log / str(batch)).unlink()
    outcome = resume(session, source, FILES, folder / "checkpoint")
    assert min(outcome.rows) == 2
    assert outcome.rows[max(outcome.rows)] == expected_sums(session, source)


@pytest.mark.slow
@pytest.mark.parametrize("conf", [V1, V2], ids=["format 1", "format 2"])
def test_copy_of_a_checkpoint_is_refused(
    conf: Mapping[str, str], sessions: Sessions, source: Source, folder: Path, tables: BotoTables
) -> None:
    namespace = f"{folder.name}-moving"
    session = sessions(dict(conf) | {NAMESPACE: namespace})
    resume(session, source, 3, folder / "here")
    shutil.copytree(folder / "here", folder / "there")
    source.release(4)
    message = first_error(sums(source.stream(session), "key"), folder / "there", "complete")
    locations = rf"file:{folder}/here/state, .*file:{folder}/there/state.*dynastate adopt {namespace} --checkpoint"
    assert re.search(locations, message), message
    assert min(resume(session, source, 4, folder / "here").rows) == 3
    shutil.rmtree(folder / "there")
    shutil.move(folder / "here", folder / "there")
    stores = every_store(tables, namespace)
    assert adopt_stores(tables, stores, state_location(str(folder / "there"))).stores == 2
    outcome = resume(session, source, FILES, folder / "there")
    assert min(outcome.rows) == 4
    assert outcome.rows[FILES - 1] == expected_sums(session, source)


def test_checkpoint_of_another_provider_is_refused(sessions: Sessions, source: Source, folder: Path) -> None:
    """A query begun on RocksDB does not start in a session on dynastate; with RocksDB as the session's it resumes."""
    ours, checkpoint = sessions({}), folder / "checkpoint"
    stateless = source.stream(sessions(ON_ROCKSDB)).select("key")
    source.release(1)
    run(stateless, folder / "stateless")
    resume(sessions(ON_ROCKSDB), source, 1, checkpoint)
    files = sorted(path for path in checkpoint.rglob("*"))
    with pytest.raises(AnalysisException) as info:
        resume(ours, source, 2, checkpoint)
    assert re.search(
        r"^dynastate \(configuration\): this checkpoint was begun on another state store.*'dynastate import'.*"
        rf"checkpoint=file:{checkpoint} providerClass=.*RocksDBStateStoreProvider",
        str(info.value),
    )
    assert sorted(path for path in checkpoint.rglob("*")) == files
    assert list(run(source.stream(ours).select("key"), folder / "stateless").rows) == [1]
    for name, value in ON_ROCKSDB.items():
        ours.conf.set(name, value)
    assert list(resume(ours, source, 2, checkpoint).rows) == [1]


AGGREGATION, JOIN = "aggregation in update mode", "stream-stream join, inner"
SIDES = ({"joinSide": "left"}, {"joinSide": "right"})


def on_both(
    name: str, conf: Mapping[str, str], rocksdb: Mapping[str, str], sessions: Sessions, folder: Path
) -> list[tuple[SparkSession, Path]]:
    """Run a query on ours and on RocksDB; session and checkpoint of each."""
    sources = make_sources(folder, seed=7, files=3)
    sources.release()
    both = [(sessions(options), folder / store) for store, options in (("ours", conf), ("rocksdb", rocksdb))]
    for session, checkpoint in both:
        CASES[name].start(session, sources, checkpoint).finish()
    return both


@pytest.mark.parametrize(
    ("name", "conf", "wanted"),
    [
        (AGGREGATION, V1, ({}, {"batchId": "1"})),
        (AGGREGATION, V2, ({}, {"batchId": "1"})),
        pytest.param(JOIN, V2, SIDES, marks=pytest.mark.slow),
    ],
    ids=["format 1", "format 2", "join"],
)
def test_state_reader_reads_every_partition(
    name: str, conf: Mapping[str, str], wanted: Sequence[Mapping[str, str]], sessions: Sessions, folder: Path
) -> None:
    """Spark's state reader finds the same as with RocksDB: the last and earlier batches, and both sides of a join."""
    both = on_both(name, conf, ON_ROCKSDB, sessions, folder)
    ours, rocksdb = ([sorted(map(repr, read_state(*pair, **each).collect())) for each in wanted] for pair in both)
    assert ours == rocksdb
    assert all(ours)
    if name == AGGREGATION:
        assert [len(rows) for rows in ours] == [18, 12]
        assert read_state(*both[0]).select(f.countDistinct("partition_id")).first() == (2,)


CHANGELOG = {f"{CONF}.rocksdb.changelogCheckpointing.enabled": "true"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        (AGGREGATION, {}),
        ("dropDuplicatesWithinWatermark", {}),
        (JOIN, {"storeName": "left-keyWithIndexToValue"}),
        ("transformWithStateInPandas", {"stateVarName": "count"}),
        ("transformWithStateInPandas", {"stateVarName": "files"}),
    ],
)
def test_change_feed(name: str, options: Mapping[str, str], sessions: Sessions, folder: Path) -> None:
    """Spark's reader shows what each batch changed as it does with RocksDB's changelog."""
    feeds = []
    for pair in on_both(name, V2, ON_ROCKSDB | CHANGELOG, sessions, folder):
        feed = partial(read_state, *pair, readChangeFeed="true", **options)
        whole = feed(changeStartBatchId="0").collect()
        part = feed(changeStartBatchId="1", changeEndBatchId="2").collect()
        assert sorted(map(repr, part)) == sorted(repr(row) for row in whole if row.batch_id in (1, 2))
        feeds.append(whole)
    # RocksDB's changelog has every put; ours has the last one of each key and batch, which is the state after it.
    last = {(row.batch_id, repr(row.key), row.partition_id): repr(row) for row in feeds[1]}
    assert sorted(map(repr, feeds[0])) == sorted(last.values())


@pytest.mark.slow
def test_replay_from_an_earlier_version(sessions: Sessions, source: Source, folder: Path) -> None:
    """With `snapshotStartBatchId` Spark's reader replays changes from an earlier version to the requested one."""
    source.release(5)
    session = sessions(V2)
    run(sums(source.stream(session), "key", "file"), folder / "checkpoint")
    at_batch_3 = partial(read_state, session, folder / "checkpoint", batchId="3")
    plain = sorted(map(repr, at_batch_3().collect()))
    for partition in ("0", "1"):
        rows = sorted(map(repr, at_batch_3(snapshotPartitionId=partition, snapshotStartBatchId="1").collect()))
        assert rows == [row for row in plain if row.endswith(f"partition_id={partition})")] != []


@pytest.mark.slow
def test_checkpoint_started_over_where_the_clock_is_behind(
    sessions: Sessions,
    source: Source,
    folder: Path,
    database: Database,
    tables: BotoTables,
    environment: dict[str, str],
) -> None:
    """Two operators, then one, on a machine whose clock is ten minutes behind: `clean` deletes the first one's only."""
    scripts = folder / "late"
    scripts.mkdir()
    (scripts / "sitecustomize.py").write_text(
        "from datetime import datetime, timedelta, timezone\n"
        "from dynastate.engine.engine import Engine\n"
        "Engine.__init__.__defaults__ = (lambda: datetime.now(timezone.utc) - timedelta(minutes=10),)\n"
    )
    python = scripts / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={scripts}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    checkpoint, namespace = folder / "checkpoint", folder.name
    source.release(1)
    rows = source.stream(sessions({NAMESPACE: namespace})).withWatermark("at", "10 seconds")
    run(rows.dropDuplicates(["id", "at"]).groupBy("at").count(), checkpoint, "append")
    shutil.rmtree(checkpoint)

    session = sessions({NAMESPACE: namespace, f"{CONF}.dynastate.python": str(python)})
    for files in (1, 2):
        resume(session, source, files, checkpoint)
    metas = find_stores(tables, namespace)
    second, first = (str(metas[f"{namespace}/{operator}/0/default"]["began"]) for operator in range(2))
    assert second < first
    options = ("--region", database.settings.region, "--endpoint", database.endpoint)
    command = (sys.executable, "-m", "dynastate.cli", "clean", namespace, "--yes", "--json", *options)
    reports = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert {each["store"]: each["is_earlier"] for each in reports} == {
        f"{namespace}/{operator}/{partition}/default": operator == 1 for operator in range(2) for partition in range(2)
    }
    assert resume(session, source, 3, checkpoint).rows[2] == expected_sums(session, source)
