"""Import: queries on Spark's own stores continue on dynastate with the same results."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

import dynastate
from dynastate import import_checkpoint
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.namespaces import list_store
from dynastate.errors import ConfigurationError
from dynastate.format.keys import meta_key, namespace_of
from dynastate.format.meta import StoreMeta, meta_item
from dynastate.operations.inspection.verify import verify
from dynastate.settings import PREFIX
from dynastate.spark.transfer import jvm, steps
from dynastate.spark.transfer.steps import Moved
from tests.spark.conftest import CONF, ON_HDFS, ON_ROCKSDB, WITH_CHANGELOG, Database, Open, Sessions, contents
from tests.spark.operators import CASES, JOIN_FORMAT, Case, sums
from tests.spark.state_reader import read_states
from tests.spark.streams import Outcome, make_source, make_sources, run
from tests.support.command_line import of_schema
from tests.support.jvm import ROOT, SPARK
from tests.support.processes import descendants, is_alive, kill, wait_until

pytestmark = pytest.mark.skipif(SPARK != jvm.SPARK, reason=f"import needs Spark {jvm.SPARK}")
FILES, LEAVES_AFTER = 4, 2
MARKER = "dynastate-import"
WITH_IDS = ON_ROCKSDB | {f"{CONF}.checkpointFormatVersion": "2"}
AN_AGGREGATION = "aggregation, from RocksDB"
LEAVERS: dict[str, tuple[str, Mapping[str, str]]] = {
    AN_AGGREGATION: ("aggregation in append mode", ON_ROCKSDB),
    "aggregation, from HDFS": ("aggregation in update mode", ON_HDFS),
    "aggregation, from RocksDB with ids": ("aggregation in update mode with a watermark", WITH_IDS),
    "global aggregation, from HDFS": ("global aggregation", ON_HDFS),
    "global aggregation, from RocksDB with ids": ("global aggregation", WITH_IDS),
    "deduplication, from RocksDB with a changelog": ("dropDuplicates with a watermark", WITH_CHANGELOG),
    "session windows, from HDFS": ("session windows", ON_HDFS),
    "session windows, from RocksDB": ("session windows", ON_ROCKSDB),
    "join, from RocksDB": ("stream-stream join, left outer", ON_ROCKSDB),
    "join, from RocksDB with ids": ("stream-stream join, full outer", WITH_IDS),
    "join, from HDFS": ("stream-stream join, left outer", ON_HDFS),
    "join of state format 3": ("stream-stream join, left outer", ON_ROCKSDB | {JOIN_FORMAT: "3"}),
    "join of state format 4": ("stream-stream join, left outer", WITH_IDS | {JOIN_FORMAT: "4"}),
    "limit, from HDFS": ("limit", ON_HDFS),
    "applyInPandasWithState, from HDFS": ("applyInPandasWithState", ON_HDFS),
    "transformWithState, from RocksDB": ("transformWithState, row by row", ON_ROCKSDB),
    "transformWithState, from RocksDB with ids": ("transformWithStateInPandas", WITH_IDS),
    "transformWithState in Scala, with a changelog": ("transformWithState in Scala", WITH_CHANGELOG),
    "three operators, from RocksDB": ("join, then deduplication, then windows", ON_ROCKSDB),
}


Bring = Callable[..., Moved]
Twins = Callable[..., "ImportedTwin"]


@pytest.fixture
def bring(spark: SparkSession, clean_environment: None) -> Bring:
    """Import a checkpoint, in the session on dynastate if no other is given."""

    def bring(old: Path, new: Path, namespace: str | None = None, session: SparkSession = spark) -> Moved:
        progress: list[tuple[int, int]] = []
        result = import_checkpoint(session, str(old), str(new), namespace, lambda *counts: progress.append(counts))
        assert all(0 <= count <= total == result.stores for count, total in progress)
        return result

    return bring


class ImportedTwin:
    """A query that stays on Spark's own store, and its twin, which is imported. Both have run on the first files."""

    def __init__(self, case: Case, conf: Mapping[str, str], sessions: Sessions, folder: Path, bring: Bring) -> None:
        self.case, self.conf, self._sessions, self._bring = case, conf, sessions, bring
        self._sources = make_sources(folder, seed=5, files=FILES)
        self.old, self.new, self.stays = folder / "old", folder / "new", folder / "stays"
        self._sources.release(LEAVES_AFTER)
        self.before = self.run(self.stays)
        assert self.run(self.old).rows == self.before.rows

    def run(self, checkpoint: Path, conf: Mapping[str, str] | None = None) -> Outcome:
        session = self._sessions(self.conf if conf is None else conf)
        return self.case.start(session, self._sources, checkpoint).finish()

    def leave(self, namespace: str | None = None) -> Moved:
        files = contents(self.old)
        result = self._bring(self.old, self.new, namespace)
        assert contents(self.old) == files
        return result

    def finish(self, conf: Mapping[str, str] | None = None) -> tuple[Outcome, Outcome]:
        self._sources.release()
        return self.run(self.new, conf or {}), self.run(self.stays)


@pytest.fixture
def twins(sessions: Sessions, folder: Path, bring: Bring) -> Twins:
    """Make twins of a query, by the name of its case."""
    return lambda name, conf=ON_ROCKSDB: ImportedTwin(CASES[name], conf, sessions, folder, bring)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != AN_AGGREGATION)) for name in LEAVERS]
)
def test_an_imported_query_gives_the_same_results(name: str, sessions: Sessions, twins: Twins) -> None:
    """At every batch its output, progress and rows of state are those of the query that stays."""
    case, conf = LEAVERS[name]
    twin = twins(case, conf)
    result = twin.leave()
    assert result.batch == max(int(each.name) for each in (twin.old / "commits").glob("[0-9]*"))
    batches = range(result.batch, result.batch + 1)
    states = read_states(sessions({}), twin.new, batches)
    assert states == read_states(sessions(conf), twin.old, batches)
    assert states
    assert result.rows > 0

    ours, reference = twin.finish()
    assert min(ours.rows) == result.batch + 1
    assert ours.rows == reference.rows
    assert ours.state == reference.state
    later_batches = range(result.batch + 1, max(ours.rows) + 1)
    assert read_states(sessions({}), twin.new, later_batches) == read_states(sessions(conf), twin.stays, later_batches)


@pytest.mark.slow
def test_a_batch_that_was_begun_runs_again(twins: Twins) -> None:
    """After a driver died before its last commit, the state before that batch is imported, and the batch runs again."""
    twin = twins("aggregation in append mode")
    last = max(int(each.name) for each in (twin.old / "commits").glob("[0-9]*"))
    (twin.old / "commits" / f"{last}").unlink()

    assert twin.leave().batch == last - 1
    ours, reference = twin.finish()
    twin.before.add(reference)
    assert min(ours.rows) == last
    assert ours.rows == {batch: rows for batch, rows in twin.before.rows.items() if batch >= last}
    assert ours.state == {batch: state for batch, state in twin.before.state.items() if batch >= last}


@pytest.mark.slow
def test_the_default_namespace_is_that_of_the_query(sessions: Sessions, folder: Path) -> None:
    """A location has one spelling, by which a query finds the state of a transfer."""
    side = jvm.Jvm(sessions({}), "import")
    for root in ("s3a://bucket/checkpoint", "s3://bucket/checkpoint", folder.as_uri()):
        assert side.transfer.namespaceOf(side.session, root) == namespace_of(f"{root}/state")


def test_a_checkpoint_that_was_moved(folder: Path, twins: Twins) -> None:
    """Operators' metadata name schema files by their old paths: they are found, and the new checkpoint has its own."""
    twin = twins("transformWithStateInPandas")
    twin.old = twin.old.rename(folder / "moved")
    twin.leave()
    shutil.rmtree(twin.old)
    texts = [each.read_text() for each in (twin.new / "state" / "0" / "_metadata" / "v2").glob("[0-9]*")]
    assert texts
    assert all(f"{twin.new}/state/0/_stateSchema/default/" in each and "/old/" not in each for each in texts)
    ours, reference = twin.finish()
    assert (ours.rows, ours.state) == (reference.rows, reference.state)


@pytest.mark.slow
def test_import_with_little_memory_and_a_namespace(twins: Twins, tables: BotoTables, opened: Open) -> None:
    """Rows are read on demand; the namespace is the given one, and verify finds no error."""
    twin = twins("session windows")
    result = twin.leave(namespace="imported.sessions")
    assert result.namespace == "imported.sessions"
    assert result.confs[f"{PREFIX}namespace"] == "imported.sessions"
    for partition in range(2):
        assert verify(tables, f"imported.sessions/0/{partition}/default").findings == ()
    assert sum(1 for _ in opened("imported.sessions/0")) == result.rows
    ours, reference = twin.finish(result.confs | {f"{PREFIX}memoryMb": "1", f"{PREFIX}diskMb": "0"})
    assert ours.rows == reference.rows


@pytest.mark.slow
def test_an_import_cut_off_by_a_lost_file_runs_again(folder: Path, twins: Twins) -> None:
    """With an unreadable partition no checkpoint is made; once its file is back, the next import completes."""
    twin = twins("aggregation in append mode")
    version = max((twin.old / "state" / "0" / "1").glob("*.zip"), key=lambda path: int(path.stem))
    aside_path = folder / "away"
    version.rename(aside_path)
    with pytest.raises(ConfigurationError, match="the old checkpoint cannot be read, or the new one not be written"):
        twin.leave()
    assert {each.name for each in twin.new.iterdir() if not each.name.startswith((".", f"{MARKER}-"))} <= {
        MARKER,
        "state",
    }
    aside_path.rename(version)

    with pytest.raises(ConfigurationError, match="the same command for another namespace was cut off here"):
        twin.leave(namespace="another")
    result = twin.leave()
    assert not (twin.new / MARKER).exists()
    assert result.rows == sum(state.total for state in twin.before.state[result.batch])
    ours, reference = twin.finish()
    assert ours.rows == reference.rows


@pytest.mark.slow
def test_a_killed_import_command_runs_again(
    twins: Twins, folder: Path, environment: dict[str, str], database: Database, tables: BotoTables
) -> None:
    """`dynastate import` is killed while it writes state; run again it completes, and reports what the query needs."""
    twin = twins("stream-stream join, left outer")
    words = [sys.executable, "-m", "dynastate.cli", "import", str(twin.old), str(twin.new), "--json"]
    words += ["--namespace", "killed", "--endpoint", database.endpoint, "--region", database.settings.region]
    scratch = Path(tempfile.mkdtemp(prefix="cli-", dir=folder))
    words += ["--conf", f"spark.local.dir={scratch}", "--conf", "spark.driver.host=127.0.0.1"]
    words += ["--conf", f"spark.driver.extraJavaOptions=-Djava.io.tmpdir={scratch} -XX:-UsePerfData"]
    environment = environment | {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(scratch)}

    program = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    meta = meta_key("killed/0/0/left-keyToNumValues")
    wait_until(lambda: bool(tables.get([meta])), "the import does not begin", within_s=120)
    pids = [program.pid, *descendants(program.pid)]
    kill(pids)
    program.wait()
    wait_until(lambda: not any(map(is_alive, pids)), "a killed process lives")
    assert (twin.new / MARKER).read_text().startswith("killed\n")
    assert not list((twin.new / "commits").glob("*"))

    completed = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert completed.returncode == 0, completed.stderr
    answer = of_schema(words[3:], json.loads(completed.stdout))
    assert (answer["namespace"], answer["stores"]) == ("killed", 8)
    ours, reference = twin.finish(answer["confs"])
    assert ours.rows == reference.rows


@pytest.mark.slow
def test_an_import_cut_off_before_its_last_step_runs_again(stopped: Path, folder: Path, bring: Bring) -> None:
    """With the mark still there it is imported again, unless the query has resumed with the new checkpoint."""
    new = folder / "new"
    first = bring(stopped, new, "nearly")
    (new / MARKER).write_text("nearly\nan import that was killed\n")
    (new / "commits" / ".1.half.tmp").write_text("")
    second = bring(stopped, new, "nearly")
    # Numbers take a byte a digit, and checksums differ from run to run.
    same = replace(first, bytes_written=second.bytes_written, write_units=second.write_units, seconds=second.seconds)
    assert second == same
    assert not (new / MARKER).exists()

    (new / MARKER).write_text("")
    shutil.copy(new / "commits" / "1", new / "commits" / "2")
    with pytest.raises(ConfigurationError, match="the folder of the new checkpoint is not empty"):
        bring(stopped, new, "nearly")
    (new / "commits" / "2").unlink()
    bring(stopped, new, "nearly")


@pytest.mark.slow
def test_errors_of_dynamodb_are_reported_as_such(stopped: Path, sessions: Sessions, folder: Path, bring: Bring) -> None:
    session = sessions({**ON_ROCKSDB, f"{PREFIX}deltaTable": "not-there"})
    with pytest.raises(ConfigurationError, match=r"not-there.*does not exist"):
        bring(stopped, folder / "new", session=session)


def other_mark(_: Path, new: Path) -> None:
    (new / f"{MARKER}-the-other-one").write_text("")


def next_batch(old: Path, _: Path) -> None:
    shutil.copy(old / "offsets" / "1", old / "offsets" / "2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("happens", "says"),
    [
        # It takes the mark of this import for that of one that was cut off.
        (other_mark, "another command writes this checkpoint"),
        (next_batch, "the query went on while its state was moved"),
    ],
    ids=["another import", "the query begins a batch"],
)
def test_no_checkpoint_is_made_of_what_changes_meanwhile(
    happens: Callable[[Path, Path], None],
    says: str,
    stopped: Path,
    folder: Path,
    bring: Bring,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An import beside another one, or beside the query, which runs elsewhere, is refused at its end."""
    old, new = shutil.copytree(stopped, folder / "old"), folder / "new"
    start: Any = steps.Transfer._start

    def start_and_go_on(*arguments: Any) -> Any:
        mark = start(*arguments)
        happens(old, new)
        return mark

    monkeypatch.setattr(steps.Transfer, "_start", start_and_go_on)
    with pytest.raises(ConfigurationError, match=says):
        bring(old, new, folder.name)
    assert not (new / "commits").exists()


def on_the_page(language: str, names: Mapping[str, str]) -> str:
    """The code of docs/import.md in a language, with real names in place of the page's."""
    page = (ROOT / "docs" / "import.md").read_text()
    (block,) = re.findall(rf"^ *```{language}\n(.*?)^ *```$", page, re.MULTILINE | re.DOTALL)
    for name, real in names.items():
        assert name in block
        block = block.replace(name, real)
    return str(block)


@pytest.mark.slow
def test_the_pages_command_runs(stopped: Path, folder: Path, environment: dict[str, str], database: Database) -> None:
    names = {
        "checkpoints/orders-on-dynamodb": str(folder / "new"),
        "checkpoints/orders": str(stopped),
        "--namespace orders": "--namespace orders-by-command",
        "http://127.0.0.1:8000": database.endpoint,
        "us-east-1": database.settings.region,
    }
    block = on_the_page("sh", names)
    paths = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    variables = {"PATH": paths, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(folder), "NO_COLOR": "1"}
    words = ["bash", "-eu", "-c", block]
    completed = subprocess.run(
        words, env=environment | variables, capture_output=True, text=True, check=False, timeout=200
    )
    assert completed.returncode == 0, completed.stderr
    assert re.match(r"imported 2 stores with \d+ rows \(\d+,?\d* bytes\): ", completed.stdout)
    assert "start the query with the new checkpoint, after batch 1, and with\n" in completed.stdout
    assert f"checkpointLocation={folder / 'new'}\n" in completed.stdout
    assert f"{PREFIX}namespace=orders-by-command\n" in completed.stdout
    assert (folder / "new" / "commits" / "1").exists()


def test_the_program_on_the_page_runs(
    spark: SparkSession, stopped: Path, folder: Path, clean_environment: None, database: Database
) -> None:
    names = {
        "s3a://old/checkpoint": str(stopped),
        "s3a://new/checkpoint": str(folder / "new"),
        "eu-west-1": database.settings.region,
        '"orders"': '"orders-by-program"',
    }
    program = on_the_page("python", names)
    values: list[Any] = []
    scope = {"dynastate": dynastate, "SparkSession": SparkSession, "print": lambda *words: values.extend(words)}
    exec(program, scope)  # noqa: S102  # our own documentation
    rows, write_units, confs = values
    assert min(rows, write_units) > 0
    assert confs[f"{PREFIX}namespace"] == "orders-by-program"
    assert (folder / "new" / "commits" / "1").exists()


@pytest.fixture(scope="module")
def stopped(spark: SparkSession, scratch: Path) -> Iterator[Path]:
    """A checkpoint of a query that has stopped, on RocksDB."""
    session = spark.newSession()
    for name, value in ON_ROCKSDB.items():
        session.conf.set(name, value)
    path = Path(tempfile.mkdtemp(prefix="stopped-", dir=scratch))
    source = make_source(path / "source", seed=7, files=2)
    source.release()
    run(sums(source.stream(session), "key", "file"), path / "old")
    yield path / "old"
    shutil.rmtree(path)


def in_offsets(old: Path, old_text: str, new_text: str) -> None:
    for file in (old / "offsets").glob("[0-9]*"):
        assert old_text in file.read_text()
        file.write_text(file.read_text().replace(old_text, new_text))


def without(log: Path) -> None:
    for file in log.iterdir():
        file.unlink()


def with_another_file(new: Path) -> None:
    new.mkdir()
    (new / "something").write_text("of someone else")


#: Defects of the old checkpoint and of the new one, and the message.
WRONG: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "no checkpoint": (lambda old, _: shutil.rmtree(old), "there is no checkpoint in this folder checkpoint=file:"),
    "no commit": (lambda old, _: without(old / "commits"), "no batch of this checkpoint was committed"),
    "no commits": (lambda old, _: shutil.rmtree(old / "commits"), "no batch of this checkpoint was committed"),
    "ours": (
        lambda old, _: in_offsets(old, ON_ROCKSDB[f"{CONF}.providerClass"], steps.OURS),
        "the query keeps its state in DynamoDB already",
    ),
    "another store": (
        lambda old, _: in_offsets(old, ".RocksDBStateStoreProvider", ".Another"),
        "state can be imported from Spark's own stores, HDFS and RocksDB provider=",
    ),
    "no state": (lambda old, _: shutil.rmtree(old / "state" / "0" / "_metadata"), "the checkpoint describes no state"),
    "lost partition": (lambda old, _: shutil.rmtree(old / "state" / "0" / "1"), "folders of partitions are gone"),
    "not empty": (lambda _, new: with_another_file(new), "the folder of the new checkpoint is not empty"),
    "lost offsets": (
        lambda old, _: without(old / "offsets"),
        "the offset log of the checkpoint does not hold its last committed batch",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_imported_is_refused(name: str, stopped: Path, folder: Path, bring: Bring) -> None:
    spoil, message = WRONG[name]
    old, new = shutil.copytree(stopped, folder / "old"), folder / "new"
    spoil(old, new)
    files = contents(folder)
    with pytest.raises(ConfigurationError, match=message):
        bring(old, new)
    assert contents(folder) == files


@pytest.mark.slow
def test_a_namespace_in_use_is_refused(stopped: Path, folder: Path, bring: Bring) -> None:
    """The state of the query that was imported into it is left alone."""
    bring(stopped, folder / "first", "in-use")
    with pytest.raises(ConfigurationError, match="the namespace has state already"):
        bring(stopped, folder / "second", "in-use")
    with pytest.raises(ConfigurationError, match="the folder of the new checkpoint is not empty"):
        bring(stopped, folder / "first", "in-use")


@pytest.mark.slow
def test_another_operators_state_is_refused(stopped: Path, folder: Path, bring: Bring, tables: BotoTables) -> None:
    """A join's stores, which have other names than an aggregation's, are found."""
    store = "joined/0/0/left-keyToNumValues"
    item = meta_item(store, StoreMeta(4, {"run": 1}, {1: "query"}, "", {1: "file:/elsewhere/state"}))
    list_store(tables, store)
    assert tables.put_new(meta_key(store), item)
    with pytest.raises(ConfigurationError, match=r"the namespace has state already.*file:/elsewhere/state"):
        bring(stopped, folder / "new", "joined")
    assert not (folder / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), [("old", "old/new"), ("new/old", "new")])
def test_nested_checkpoints_are_refused(old: str, new: str, stopped: Path, folder: Path, bring: Bring) -> None:
    shutil.copytree(stopped, folder / old)
    files = contents(folder)
    with pytest.raises(ConfigurationError, match="one of the two checkpoints lies in the other"):
        bring(folder / old, folder / new)
    assert contents(folder) == files


@pytest.mark.slow
def test_a_running_query_is_refused(sessions: Sessions, folder: Path, bring: Bring) -> None:
    session = sessions(ON_ROCKSDB)
    source = make_source(folder / "source", seed=8, files=1)
    source.release()
    writer = sums(source.stream(session), "key").writeStream.format("noop").outputMode("update")
    query = writer.option("checkpointLocation", str(folder / "old")).start()
    try:
        query.processAllAvailable()
        with pytest.raises(ConfigurationError, match="the query is running; stop it first"):
            bring(folder / "old", folder / "new", session=session)
    finally:
        query.stop()


def test_another_spark_is_refused() -> None:
    other: Any = SimpleNamespace(version="4.2.1")
    with pytest.raises(ConfigurationError, match=r"import needs Spark 4\.3, .* found=4\.2\.1"):
        import_checkpoint(other, "old", "new")
