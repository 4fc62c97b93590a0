"""Repartition: queries continue with other numbers of partitions, as ones on RocksDB that were never repartitioned."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynastate.errors import ConfigurationError
from dynastate.spark.transfer import jvm
from dynastate.spark.transfer.importing import import_checkpoint
from dynastate.spark.transfer.repartition import Estimate, repartition
from dynastate.spark.transfer.steps import Moved
from tests.spark.conftest import CONF, ON_ROCKSDB, Database, Sessions, contents
from tests.spark.operators import CASES, JOIN_FORMAT, Case, sums
from tests.spark.state_reader import last_states, read_states
from tests.spark.streams import Outcome, StateRows, make_sources, run
from tests.support.fault_proxy import FaultProxy, Forward, Reply, Request, error
from tests.support.jvm import ROOT, SPARK

pytestmark = pytest.mark.skipif(SPARK != jvm.SPARK, reason=f"repartition needs Spark {jvm.SPARK}")
PARTITIONS = "spark.sql.shuffle.partitions"
#: Files that are there while the query has each number of partitions.
FILES = {5: 2, 3: 4, 8: 6}
IDS = {f"{CONF}.checkpointFormatVersion": "2"}
QUICK = "transformWithState in Scala, with ids"
MOVERS: dict[str, tuple[str, Mapping[str, str]]] = {
    "aggregation in append mode": ("aggregation in append mode", {}),
    "aggregation in update mode, with ids": ("aggregation in update mode", IDS),
    "deduplication": ("dropDuplicates with a watermark", {}),
    "deduplication within the watermark, with ids": ("dropDuplicatesWithinWatermark", IDS),
    "session windows": ("session windows", {}),
    "join": ("stream-stream join, full outer", {}),
    "join, with ids": ("stream-stream join, left outer", IDS),
    "applyInPandasWithState": ("applyInPandasWithState", {}),
    "flatMapGroupsWithState": ("flatMapGroupsWithState", {}),
    "transformWithState, row by row": ("transformWithState, row by row", {}),
    QUICK: ("transformWithState in Scala", IDS),
    "three operators": ("join, then deduplication, then windows", {}),
}

Move = Callable[..., Moved]


@pytest.fixture
def move(sessions: Sessions, clean_environment: None) -> Move:
    def move(old: Path, new: Path, partitions: int, namespace: str | None = None, **options: Any) -> Moved:
        progress: list[tuple[int, int]] = []
        result = repartition(
            sessions({}),
            str(old),
            str(new),
            partitions,
            namespace,
            lambda *numbers: progress.append(numbers),
            **options,
        )
        assert all(0 <= count <= total for count, total in progress)
        return result

    return move


def counts(outcome: Outcome) -> dict[int, list[StateRows]]:
    """Rows of state by batch. Workers of PySpark write a key once for each frame of rows, so that updates differ."""
    return {
        batch: [replace(each, updated=0) if "PySpark" in each.operator else each for each in operators]
        for batch, operators in outcome.state.items()
    }


class Repartitioned:
    """A query on dynastate that is repartitioned, and one on RocksDB that is not."""

    def __init__(self, case: Case, conf: Mapping[str, str], sessions: Sessions, folder: Path) -> None:
        self._case, self._conf, self._sessions = case, conf, sessions
        self._sources = make_sources(folder, seed=9, files=max(FILES.values()))
        self._folder = folder
        self.stays = Outcome()

    def run(self, partitions: int, conf: Mapping[str, str]) -> tuple[Path, Outcome]:
        """Run both on the files of a number of partitions; the checkpoint and outcome of the one on dynastate."""
        self._sources.release(FILES[partitions])
        checkpoint = self._folder / f"with-{partitions}"
        # A query that resumes has the number of its checkpoint, whatever its session says.
        asks = {PARTITIONS: str(partitions if partitions == min(FILES, key=FILES.__getitem__) else 7)}
        session = self._sessions({**self._case.conf, **self._conf, **conf, **asks})
        outcome = self._case.start(session, self._sources, checkpoint).finish()
        rocksdb = self._sessions({**ON_ROCKSDB, **self._conf})
        reference = self._case.start(rocksdb, self._sources, self._folder / "stays").finish()
        assert outcome.rows == reference.rows
        assert counts(outcome) == counts(reference)
        state = last_states(session, checkpoint, outcome, partitions=False)
        assert state == last_states(rocksdb, self._folder / "stays", outcome, partitions=False)
        return checkpoint, outcome


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != QUICK)) for name in MOVERS])
def test_same_as_rocksdb_with_other_partitions(name: str, sessions: Sessions, folder: Path, move: Move) -> None:
    """At every batch output, progress and rows of state are those of the query that stays; old state is unchanged."""
    case, conf = MOVERS[name]
    query = Repartitioned(CASES[case], conf, sessions, folder)
    old, _ = query.run(5, {f"{CONF}.dynastate.namespace": f"{folder.name}-5"})
    for partitions in (3, 8):
        files = contents(old)
        result = move(old, folder / f"with-{partitions}", partitions, f"{folder.name}-{partitions}")
        assert contents(old) == files
        assert result.namespace == f"{folder.name}-{partitions}"
        assert result.stores % partitions == 0
        old, _ = query.run(partitions, result.confs)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3", "4"])
def test_imported_joins_of_other_state_formats(version: str, sessions: Sessions, folder: Path, move: Move) -> None:
    """Such a join begins on RocksDB; imported and repartitioned it gives the results of its twin that stays there."""
    case, conf = CASES["stream-stream join, left outer"], {**ON_ROCKSDB, **IDS, JOIN_FORMAT: version}
    sources = make_sources(folder, seed=10, files=4)
    sources.release(2)
    for name in ("old", "stays"):
        case.start(sessions(conf), sources, folder / name).finish()
    import_checkpoint(sessions({}), str(folder / "old"), str(folder / "two"), f"{folder.name}-two")
    result = move(folder / "two", folder / "five", 5, f"{folder.name}-five")
    sources.release()
    ours = case.start(sessions(result.confs), sources, folder / "five").finish()
    reference = case.start(sessions(conf), sources, folder / "stays").finish()
    assert (ours.rows, ours.state) == (reference.rows, reference.state)
    state = last_states(sessions(result.confs), folder / "five", ours, partitions=False)
    assert state == last_states(sessions(conf), folder / "stays", ours, partitions=False)


@pytest.fixture
def stopped(sessions: Sessions, folder: Path) -> Path:
    """A checkpoint of a query that has stopped, with two partitions."""
    session = sessions({**IDS, f"{CONF}.dynastate.namespace": f"{folder.name}-two"})
    return CASES["aggregation in update mode"].stopped(session, folder, files=2)


def test_cost_is_shown_before_anything_is_written(stopped: Path, folder: Path, move: Move) -> None:
    """The estimate is near what it takes; who refuses it has changed nothing."""
    costs: list[Estimate] = []

    def refuse(cost: Estimate) -> None:
        costs.append(cost)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        move(stopped, folder / "new", 3, f"{folder.name}-new", confirm=refuse)
    assert not (folder / "new").exists()
    result = move(stopped, folder / "new", 3, f"{folder.name}-new")
    (cost,) = costs
    assert (cost.stores, cost.new_stores, cost.rows) == (2, 3, result.rows)
    assert 0.7 * result.write_units <= cost.write_units <= 1.3 * result.write_units
    assert cost.dollars > 0


@pytest.mark.slow
def test_repartition_cut_off_at_every_request_runs_again(
    stopped: Path, folder: Path, database: Database, sessions: Sessions, clean_environment: None
) -> None:
    """Until it ends there is no checkpoint to start; in the end the state is that of the old one."""
    writes = {"BatchWriteItem", "UpdateItem", "PutItem", "DeleteItem", "TransactWriteItems"}
    rest = [0]
    new, namespace = folder / "new", f"{folder.name}-cut"

    def cut(request: Request, forward: Forward) -> Reply:
        if request.operation in writes:
            rest[0] -= 1
            if rest[0] < 0:
                return error("AccessDeniedException", "cut off")
        return forward(request)

    cuts = 0
    with FaultProxy(database.endpoint, cut) as proxy:
        session = sessions({f"{CONF}.dynastate.endpoint": proxy.endpoint})
        result = None
        while result is None:
            rest[0] = cuts
            with suppress(ConfigurationError):  # "cut off", as the last run shows
                result = repartition(session, str(stopped), str(new), 3, namespace)
            if result is None:
                assert not (new / "commits").exists()
                cuts += 1
    assert cuts > 3 * result.stores
    session = sessions({f"{CONF}.dynastate.namespace": namespace})
    states = read_states(session, new, range(1, 2), partitions=False)
    session = sessions({f"{CONF}.dynastate.namespace": f"{folder.name}-two"})
    assert states == read_states(session, stopped, range(1, 2), partitions=False)
    assert len(states) == result.rows


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no partitions": ({"partitions": 0}, "the number of partitions must be 1 or more"),
    "the same namespace": ({"namespace": "{}-two"}, "the new state needs a namespace of its own"),
    "no name": ({"new": ""}, "give the folders of both checkpoints"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name: str, stopped: Path, folder: Path, move: Move) -> None:
    changes, message = WRONG[name]
    arguments: dict[str, Any] = {"new": folder / "new", "partitions": 3, "namespace": "another"} | changes
    with pytest.raises(ConfigurationError, match=message):
        move(stopped, arguments["new"], arguments["partitions"], arguments["namespace"].format(folder.name))
    assert not (folder / "new").exists()


@pytest.mark.slow
def test_state_of_another_store_is_refused(sessions: Sessions, folder: Path, move: Move) -> None:
    old = CASES["dropDuplicates"].stopped(sessions(ON_ROCKSDB), folder)
    with pytest.raises(ConfigurationError, match="the query keeps its state in a store of Spark's own"):
        move(old, folder / "new", 3, "another")


def test_a_copied_checkpoint_is_refused(stopped: Path, folder: Path, move: Move) -> None:
    """Its files name the state of the original: that of a query which may have gone on since."""
    shutil.copytree(stopped, folder / "copy")
    with pytest.raises(ConfigurationError, match=r"names the state of namespace .*, which belongs to the checkpoint"):
        move(folder / "copy", folder / "new", 3, "another")
    assert not (folder / "new").exists()


@pytest.mark.slow
def test_operators_of_one_partition_are_refused(sessions: Sessions, folder: Path, move: Move) -> None:
    """A global aggregation has one partition, whatever the number of partitions."""
    old = CASES["global aggregation"].stopped(sessions({}), folder)
    with pytest.raises(ConfigurationError, match="every operator of this query needs all its rows in one partition"):
        move(old, folder / "new", 3, "another")


def test_rows_that_are_not_where_their_key_says_are_refused(sessions: Sessions, folder: Path, move: Move) -> None:
    """Before Spark 3.3 an operator could be partitioned by a part of its key, and such a query still is."""
    conf = {"spark.sql.streaming.statefulOperator.useStrictDistribution": "false", PARTITIONS: "5"}
    sources = make_sources(folder / "sources", seed=3, files=1)
    sources.release()
    session = sessions(conf)
    rows = sums(sources.left.stream(session).repartition("key"), "key", "file")
    run(rows, folder / "old")
    with pytest.raises(ConfigurationError, match="a row is not in the partition that Spark's hash of its key names"):
        move(folder / "old", folder / "new", 3, folder.name)


@pytest.mark.slow
def test_the_command_asks(stopped: Path, folder: Path, database: Database, environment: dict[str, str]) -> None:
    """It does nothing without a yes; with it, it says what the query needs."""
    words = [sys.executable, "-m", "dynastate.cli", "repartition", str(stopped), str(folder / "new")]
    words += ["--partitions", "3", "--namespace", f"{folder.name}-three", "--endpoint", database.endpoint]
    words += ["--region", database.settings.region, "--conf", f"spark.local.dir={folder}"]
    words += ["--conf", f"spark.driver.extraJavaOptions=-Djava.io.tmpdir={folder} -XX:-UsePerfData"]
    variables = environment | {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(folder), "NO_COLOR": "1"}

    def answer(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env=variables, input=text, capture_output=True, text=True, check=False, timeout=200
        )

    first = answer("n\n")
    assert first.returncode == 1
    assert "Repartition to 3 partitions?" in first.stderr
    assert re.search(
        r"rows \([\d,]+ bytes, compressed\) in 2 stores, to 3 stores\nit takes about \d+ write units", first.stdout
    )
    assert not (folder / "new").exists()
    second = answer("y\n")
    assert second.returncode == 0, second.stderr
    assert re.search(r"repartitioned 3 stores with \d+ rows", second.stdout)
    assert f"checkpointLocation={folder / 'new'}\n" in second.stdout
    assert '"spark.sql.shuffle.partitions":"3"' in (folder / "new" / "offsets" / "1").read_text()
