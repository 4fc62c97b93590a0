"""Fork of a running query, by the recipe of docs/fork.md; both run on, each with its own data."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.embedded import REGION
from dynastate.engine.catalog import find_stores
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.operations.pins import refuse_forked
from tests.spark.conftest import CONF, ON_ROCKSDB, Database, Sessions, only
from tests.spark.operators import CASES, Case, expected_sums, sums
from tests.spark.streams import RELEASED, Record, Source, Sources, make_rows, make_source, run, take_all
from tests.spark.test_checkpoint_in_dynamodb import FORMAT, IN_DYNAMODB, assert_fits
from tests.support.jvm import ALSO_ON_35

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fork.md"
FIRST, MORE = 3, 3
Files = list[list[Record]]


def recipe() -> str:
    (block,) = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(block)


def follow(name: str, folder: Path, database: Database, environment: Mapping[str, str]) -> None:
    paths = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    variables = {"AWS_ENDPOINT_URL": database.endpoint, "AWS_DEFAULT_REGION": REGION, "PATH": paths}
    completed = subprocess.run(
        ["bash", "-eu", "-c", recipe().replace("orders", name)],
        cwd=folder,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr


class RunningQuery:
    """A running query: it waits for files, and reads one of each source a batch."""

    def __init__(self, case: Case, sources: Sources, session: SparkSession, checkpoint: Path) -> None:
        self.rows: dict[int, list[tuple[object, ...]]] = {}
        self._sources = sources
        self._in_batch, self._may_end = threading.Event(), threading.Event()
        self._may_end.set()

        def sink(batch: DataFrame, number: int) -> None:
            self._in_batch.set()
            assert self._may_end.wait(60)
            self.rows[number] = sorted((tuple(row) for row in batch.collect()), key=repr)

        writer = (
            case.on(session, sources).writeStream.outputMode(case.mode).option("checkpointLocation", str(checkpoint))
        )
        self._query = writer.foreachBatch(sink).start()

    def __enter__(self) -> RunningQuery:  # noqa: PYI034  # Self comes with Python 3.11, and it has no subclasses
        return self

    def __exit__(self, *_: object) -> None:
        self._may_end.set()
        self._query.stop()

    def take_released(self) -> None:
        """Read the files that were there when the query began."""
        take_all(self._query)

    def take_rest(self) -> None:
        """Read the files that came later.

        They are seen as one, since a trigger that found some of them would make other batches of them: the first comes
        alone, and the others while its batch runs.
        """
        self._in_batch.clear()
        self._may_end.clear()
        self._sources.left.release(FIRST + 1)
        assert self._in_batch.wait(60)
        self._sources.release()
        self._may_end.set()
        take_all(self._query)


def two(folder: Path, left: Files, right: Files) -> Sources:
    return Sources(Source(folder / "left", left), Source(folder / "right", right))


def put_in_place(folder: Path, files: Files, old_files: Files) -> None:
    """Have other files in a released folder from `FIRST` on: a checkpoint's file source takes no other folder."""
    for number in range(FIRST, len(old_files)):
        (folder / RELEASED / f"{number:04d}.json").unlink()
    source = Source(folder / "others", files)
    source.release()
    for number, file in enumerate(sorted((folder / "others" / RELEASED).iterdir())):
        os.utime(file, (1_700_000_100 + number, 1_700_000_100 + number))
        file.rename(folder / RELEASED / f"other-{file.name}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "version"),
    [
        pytest.param("aggregation in update mode", "1", marks=ALSO_ON_35),
        ("aggregation in update mode", "2"),
        ("stream-stream join, inner", "2"),
    ],
)
def test_both_run_on(
    name: str,
    version: str,
    sessions: Sessions,
    database: Database,
    tables: BotoTables,
    environment: dict[str, str],
    folder: Path,
) -> None:
    """Query and fork give the results that RocksDB gives for the same data from the beginning."""
    case, query, fork = CASES[name], folder.name, f"{folder.name}-test"
    mine: list[Files] = [[make_rows(seed, file) for file in range(FIRST + MORE)] for seed in (1, 2)]
    other: list[Files] = [[make_rows(seed, FIRST + file) for file in range(MORE)] for seed in (3, 4)]

    def on_dynastate(namespace: str) -> SparkSession:
        return sessions({f"{CONF}.checkpointFormatVersion": version, f"{CONF}.dynastate.namespace": namespace})

    sources = two(folder / "mine", *mine)
    sources.release(FIRST)
    with RunningQuery(case, sources, on_dynastate(query), folder / query) as origin:
        origin.take_released()
        follow(query, folder, database, environment)
        origin.take_rest()
    forked_at = max(int(each.name) for each in (folder / fork / "commits").iterdir()) + 1
    for side, files, old_files in zip(("left", "right"), other, mine, strict=True):
        put_in_place(folder / "mine" / side, files, old_files)
    with RunningQuery(case, sources, on_dynastate(fork), folder / fork) as copy:
        copy.take_released()

    rocksdb = sessions(ON_ROCKSDB)
    both = two(folder / "both", *(first[:FIRST] + rest for first, rest in zip(mine, other, strict=True)))
    for count in (FIRST, None):
        both.release(count)
        with RunningQuery(case, both, rocksdb, folder / "rocksdb") as expected:
            expected.take_released()
    assert copy.rows == expected.rows
    assert min(copy.rows) == forked_at
    assert f"store={fork}/0/0/" in (folder / fork / "state" / "0" / "0" / "dynastate").read_text()
    assert any(copy.rows.values())
    original = two(folder / "again", *mine)
    original.release(FIRST)
    with RunningQuery(case, original, rocksdb, folder / "rocksdb-again") as expected:
        expected.take_released()
        expected.take_rest()
    assert origin.rows == expected.rows

    for namespace in (query, fork):
        stores = list(find_stores(tables, namespace))
        assert len(stores) == 2 * (4 if "join" in name else 1)
        assert all(verify(tables, store).is_whole for store in stores)
    drop_stores(tables, stores)
    refuse_forked(tables, [store.replace(fork, query, 1) for store in stores])


@pytest.mark.parametrize("version", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_a_checkpoint_in_dynamodb(
    version: str, sessions: Sessions, tables: BotoTables, environment: dict[str, str], folder: Path
) -> None:
    """One call makes a fork that can be started, of a query that runs, and of one that has stopped: all are exact."""
    session = sessions({**IN_DYNAMODB, FORMAT: version})
    source = make_source(folder / "files", seed=3, files=5)
    namespaces = [f"{folder.name}{suffix}" for suffix in ("", "-running", "-stopped")]
    checkpoints = [f"dynastate://{namespace}/query" for namespace in namespaces]
    source.release(2)
    rows = sums(source.stream(session), "key").writeStream.outputMode("complete").format("noop")
    query = rows.option("checkpointLocation", checkpoints[0]).start()
    take_all(query)
    with only(environment):
        assert fork_namespace(tables, namespaces[0], namespaces[1], None).checkpoint == checkpoints[1]
    source.release(3)
    take_all(query)
    query.stop()
    with only(environment):
        versions = [fork_namespace(tables, namespaces[0], namespaces[2], None).version]
    source.release()
    for checkpoint, first in zip(checkpoints, (3, 2, 3), strict=True):
        outcome = run(sums(source.stream(session), "key"), checkpoint, "complete")
        assert [*outcome.rows] == [*range(first, 5)]
        assert outcome.rows[4] == expected_sums(session, source)
    assert versions == [3]
    stores = [store for namespace in namespaces for store in find_stores(tables, namespace)]
    assert len(stores) == 6
    for namespace in namespaces:
        assert_fits(tables, namespace)
    assert all(verify(tables, store).is_whole for store in stores)
