"""Import: queries on Spark's own stores continue on dynastate with the same results."""

from __future__ import annotations

import hashlib
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
from dynastate import import_checkpoint, open_state
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.meter import Meter
from dynastate.errors import ConfigurationError
from dynastate.format.keys import meta_key
from dynastate.format.meta import StoreMeta, meta_item
from dynastate.operations.verify import verify
from dynastate.settings import PREFIX
from dynastate.spark import importing
from dynastate.spark.importing import MARKER, Imported
from tests.spark.conftest import CONF, ON_ROCKSDB, Database, Sessions, only
from tests.spark.operators import CASES, JOIN_FORMAT, Case
from tests.spark.state_reader import read_states
from tests.spark.streams import Outcome, make_source, run
from tests.support.jvm import ROOT, SPARK
from tests.support.processes import descendants, is_alive, kill, wait_until

#: The last test shows that another Spark is refused.
needs_its_spark = pytest.mark.skipif(SPARK != importing.SPARK, reason=f"import needs Spark {importing.SPARK}")
FILES, LEAVES_AFTER = 4, 2
ON_HDFS = ON_ROCKSDB | {
    f"{CONF}.providerClass": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
}
WITH_CHANGELOG = ON_ROCKSDB | {f"{CONF}.rocksdb.changelogCheckpointing.enabled": "true"}
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


class ImportedTwin:
    """A query that stays on Spark's own store, and its twin, which is imported."""

    def __init__(
        self, case: Case, conf: Mapping[str, str], sessions: Sessions, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self._environment = environment
        self.case, self.conf, self.folder = case, dict(conf), folder
        self.sessions = sessions
        self.left = make_source(folder / "left", seed=5, files=FILES)
        self.right = make_source(folder / "right", seed=6, files=FILES)
        self.old, self.new, self.stays = folder / "old", folder / "new", folder / "stays"

    def release(self, files: int) -> None:
        """Let all queries see the first `files` files."""
        self.left.release(files)
        self.right.release(files)

    def run(self, checkpoint: Path, conf: Mapping[str, str] | None = None) -> Outcome:
        """Run the query on all files that it sees, with its conf or another one."""
        session = self.sessions(self.conf if conf is None else conf)
        frame = self.case.build(self.left.stream(session), self.right.stream(session))
        return run(frame, checkpoint, self.case.mode)

    def leave(self, namespace: str | None = None) -> Imported:
        """Import the twin's state; its old checkpoint is unchanged."""
        before, progress = contents(self.old), []
        with only(self._environment):
            done = import_checkpoint(
                self.session(), str(self.old), str(self.new), namespace, lambda *each: progress.append(each)
            )
        assert all(0 <= count <= total == done.stores for count, total in progress)
        assert contents(self.old) == before
        return done

    def session(self) -> SparkSession:
        """A session on dynastate."""
        return self.sessions({})


def contents(folder: Path) -> dict[str, str]:
    """Every file with a digest of its content."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    return {str(each.relative_to(folder)): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


@needs_its_spark
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != AN_AGGREGATION)) for name in LEAVERS]
)
def test_an_imported_query_gives_the_same_results(
    name: str, sessions: Sessions, folder: Path, environment: dict[str, str]
) -> None:
    """At every batch its output, progress and rows of state are those of the query that stays."""
    case, conf = LEAVERS[name]
    twin = ImportedTwin(CASES[case], conf, sessions, folder, environment)
    twin.release(LEAVES_AFTER)
    assert twin.run(twin.old).rows == twin.run(twin.stays).rows

    done = twin.leave()
    assert done.batch == max(int(each.name) for each in (twin.old / "commits").glob("[0-9]*"))
    imported = range(done.batch, done.batch + 1)
    own = read_states(twin.session(), twin.new, imported)
    assert own == read_states(sessions(conf), twin.old, imported)
    assert own
    assert done.rows > 0

    twin.release(FILES)
    ours, stays = twin.run(twin.new, {}), twin.run(twin.stays)
    assert min(ours.rows) == done.batch + 1
    assert ours.rows == stays.rows
    assert ours.state == stays.state
    later = range(done.batch + 1, max(ours.rows) + 1)
    assert read_states(twin.session(), twin.new, later) == read_states(sessions(conf), twin.stays, later)


@needs_its_spark
def test_a_batch_that_was_begun_runs_again(sessions: Sessions, folder: Path, environment: dict[str, str]) -> None:
    """After a driver died before its last commit, the state before that batch is imported, and the batch runs again."""
    twin = ImportedTwin(CASES["aggregation in append mode"], ON_ROCKSDB, sessions, folder, environment)
    twin.release(LEAVES_AFTER)
    twin.run(twin.old)
    stays = twin.run(twin.stays)
    last = max(int(each.name) for each in (twin.old / "commits").glob("[0-9]*"))
    (twin.old / "commits" / f"{last}").unlink()

    assert twin.leave().batch == last - 1
    twin.release(FILES)
    ours = twin.run(twin.new, {})
    stays.add(twin.run(twin.stays))
    assert min(ours.rows) == last
    assert ours.rows == {batch: rows for batch, rows in stays.rows.items() if batch >= last}
    assert ours.state == {batch: state for batch, state in stays.state.items() if batch >= last}


@pytest.mark.slow
@needs_its_spark
def test_a_checkpoint_that_was_moved(sessions: Sessions, folder: Path, environment: dict[str, str]) -> None:
    """Operators' metadata name schema files by their old paths: they are found, and the new checkpoint has its own."""
    twin = ImportedTwin(CASES["transformWithStateInPandas"], ON_ROCKSDB, sessions, folder, environment)
    twin.release(LEAVES_AFTER)
    twin.run(twin.old)
    twin.run(twin.stays)
    twin.old = twin.old.rename(folder / "moved")
    twin.leave()
    shutil.rmtree(twin.old)
    named = [each.read_text() for each in (twin.new / "state" / "0" / "_metadata" / "v2").glob("[0-9]*")]
    assert named
    assert all(f"{twin.new}/state/0/_stateSchema/default/" in each and "/old/" not in each for each in named)
    twin.release(FILES)
    ours, stays = twin.run(twin.new, {}), twin.run(twin.stays)
    assert (ours.rows, ours.state) == (stays.rows, stays.state)


@pytest.mark.slow
@needs_its_spark
def test_import_with_little_memory_and_a_namespace(
    sessions: Sessions, folder: Path, environment: dict[str, str], database: Database
) -> None:
    """Rows are read on demand; the namespace is the given one, and verify finds no error."""
    twin = ImportedTwin(CASES["session windows"], ON_ROCKSDB, sessions, folder, environment)
    twin.release(LEAVES_AFTER)
    twin.run(twin.old)
    twin.run(twin.stays)
    done = twin.leave(namespace="imported.sessions")
    assert done.namespace == "imported.sessions"
    assert done.confs[f"{PREFIX}namespace"] == "imported.sessions"
    with only(environment):
        tables = BotoTables(database.settings)
        for partition in range(2):
            assert verify(tables, f"imported.sessions/0/{partition}/default").findings == ()
        with open_state("imported.sessions/0", endpoint=database.endpoint, region=database.settings.region) as state:
            assert sum(1 for _ in state) == done.rows
    tables.close()
    twin.release(FILES)
    ours = twin.run(twin.new, done.confs | {f"{PREFIX}memoryMb": "1"})
    assert ours.rows == twin.run(twin.stays).rows


# ---------------------------------------------------------------------------------------------------------- cut off


@pytest.mark.slow
@needs_its_spark
def test_an_import_cut_off_by_a_lost_file_runs_again(
    sessions: Sessions, folder: Path, environment: dict[str, str]
) -> None:
    """With an unreadable partition no checkpoint is made; once its file is back, the next import completes."""
    twin = ImportedTwin(CASES["aggregation in append mode"], ON_ROCKSDB, sessions, folder, environment)
    twin.release(LEAVES_AFTER)
    twin.run(twin.old)
    stays = twin.run(twin.stays)
    version = max((twin.old / "state" / "0" / "1").glob("*.zip"), key=lambda path: int(path.stem))
    away = folder / "away"
    version.rename(away)
    with pytest.raises(ConfigurationError, match="the old checkpoint cannot be read, or the new one not be written"):
        twin.leave()
    assert {each.name for each in twin.new.iterdir() if not each.name.startswith(".")} <= {MARKER, "state"}
    away.rename(version)

    with pytest.raises(ConfigurationError, match="an import into another namespace was cut off here"):
        twin.leave(namespace="another")
    done = twin.leave()
    assert not (twin.new / MARKER).exists()
    assert done.rows == sum(state.total for state in stays.state[done.batch])
    twin.release(FILES)
    assert twin.run(twin.new, {}).rows == twin.run(twin.stays).rows


@pytest.mark.slow
@needs_its_spark
def test_a_killed_import_command_runs_again(
    sessions: Sessions, folder: Path, environment: dict[str, str], database: Database
) -> None:
    """`dynastate import` is killed while it writes state; run again it completes, and reports what the query needs."""
    twin = ImportedTwin(CASES["stream-stream join, left outer"], ON_ROCKSDB, sessions, folder, environment)
    twin.release(LEAVES_AFTER)
    twin.run(twin.old)
    twin.run(twin.stays)
    words = [sys.executable, "-m", "dynastate.cli", "import", str(twin.old), str(twin.new), "--json"]
    words += ["--namespace", "killed", "--endpoint", database.endpoint, "--region", database.settings.region]
    scratch = Path(tempfile.mkdtemp(prefix="cli-", dir=folder))
    words += ["--conf", f"spark.local.dir={scratch}", "--conf", "spark.driver.host=127.0.0.1"]
    words += ["--conf", f"spark.driver.extraJavaOptions=-Djava.io.tmpdir={scratch} -XX:-UsePerfData"]
    environment = environment | {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(scratch)}

    with only(environment):
        tables = BotoTables(database.settings)
    program = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    meta = meta_key("killed/0/0/left-keyToNumValues")
    wait_until(lambda: bool(tables.get([meta], Meter())), "the import does not begin", within_s=120)
    there = [program.pid, *descendants(program.pid)]
    kill(there)
    program.wait()
    wait_until(lambda: not any(map(is_alive, there)), "a killed process lives")
    tables.close()
    assert (twin.new / MARKER).read_text().startswith("killed\n")
    assert not list((twin.new / "commits").glob("*"))

    again = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert again.returncode == 0, again.stderr
    said = json.loads(again.stdout)
    assert (said["namespace"], said["stores"]) == ("killed", 8)
    twin.release(FILES)
    assert twin.run(twin.new, said["confs"]).rows == twin.run(twin.stays).rows


@needs_its_spark
def test_an_import_cut_off_before_its_last_step_runs_again(
    stopped: Path, spark: SparkSession, folder: Path, environment: dict[str, str]
) -> None:
    """With the mark still there it is imported again, unless the query has resumed with the new checkpoint."""
    with only(environment):
        first = import_checkpoint(spark, str(stopped), str(folder / "new"), namespace="nearly")
        (folder / "new" / MARKER).write_text("nearly\nan import that was killed\n")
        (folder / "new" / "commits" / ".1.half.tmp").write_text("")
        again = import_checkpoint(spark, str(stopped), str(folder / "new"), namespace="nearly")
        # Numbers take a byte a digit, and checksums differ from run to run.
        same = replace(first, bytes_written=again.bytes_written, write_units=again.write_units, seconds=again.seconds)
        assert again == same
        assert not (folder / "new" / MARKER).exists()

        (folder / "new" / MARKER).write_text("")
        shutil.copy(folder / "new" / "commits" / "1", folder / "new" / "commits" / "2")
        with pytest.raises(ConfigurationError, match="the folder of the new checkpoint is not empty"):
            import_checkpoint(spark, str(stopped), str(folder / "new"), namespace="nearly")
        (folder / "new" / "commits" / "2").unlink()
        import_checkpoint(spark, str(stopped), str(folder / "new"), namespace="nearly")


@needs_its_spark
def test_errors_of_dynamodb_are_reported_as_such(
    stopped: Path, sessions: Sessions, folder: Path, environment: dict[str, str]
) -> None:
    """DynamoDB's error is reported, not those of RocksDB, which is closed while its rows are read."""
    session = sessions({**ON_ROCKSDB, f"{PREFIX}deltaTable": "not-there"})
    with only(environment), pytest.raises(ConfigurationError, match=r"not-there.*does not exist"):
        import_checkpoint(session, str(stopped), str(folder / "new"))


@needs_its_spark
def test_another_import_at_the_same_time_is_refused(
    stopped: Path, spark: SparkSession, folder: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the mark of this import for that of one that was cut off: this one makes no checkpoint."""
    start: Any = importing._start

    def start_and_lose(*given: Any) -> Any:
        mark = start(*given)
        (folder / "new" / f".{MARKER}.crc").unlink()
        (folder / "new" / MARKER).write_text("twice\nthe other one\n")
        return mark

    monkeypatch.setattr(importing, "_start", start_and_lose)
    with only(environment), pytest.raises(ConfigurationError, match="another import writes this checkpoint"):
        import_checkpoint(spark, str(stopped), str(folder / "new"), namespace="twice")
    assert not (folder / "new" / "commits").exists()


@pytest.mark.slow
@needs_its_spark
def test_the_command_on_the_page_runs(
    stopped: Path, folder: Path, environment: dict[str, str], database: Database
) -> None:
    """The command of docs/import.md, but for folders and endpoint, reports the settings that the query needs."""
    page = (ROOT / "docs" / "import.md").read_text()
    (block,) = re.findall(r"^ *```sh\n(.*?)^ *```$", page, re.MULTILINE | re.DOTALL)
    names = {
        "checkpoints/orders-on-dynamodb": str(folder / "new"),
        "checkpoints/orders": str(stopped),
        "http://127.0.0.1:8000": database.endpoint,
        "us-east-1": database.settings.region,
    }
    for name, real in names.items():
        assert name in block
        block = block.replace(name, real)
    paths = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    own = {"PATH": paths, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(folder), "NO_COLOR": "1"}
    words = ["bash", "-eu", "-c", block]
    done = subprocess.run(words, env=environment | own, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert re.match(r"imported 2 stores with \d+ rows \(\d+,?\d* bytes\) as they were after batch 1: ", done.stdout)
    assert f"checkpointLocation={folder / 'new'}\n" in done.stdout
    assert f"{PREFIX}namespace=orders\n" in done.stdout
    assert (folder / "new" / "commits" / "1").exists()


@needs_its_spark
def test_the_program_on_the_page_runs(
    spark: SparkSession, stopped: Path, folder: Path, environment: dict[str, str], database: Database
) -> None:
    """The program of docs/import.md, but for folders, Region and namespace, runs in the existing session."""
    (program,) = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs" / "import.md").read_text(), re.MULTILINE | re.DOTALL
    )
    names = {
        "s3://old/checkpoint": str(stopped),
        "s3://new/checkpoint": str(folder / "new"),
        "eu-west-1": database.settings.region,
        '"orders"': '"orders-by-program"',
    }
    for name, real in names.items():
        assert name in program
        program = program.replace(name, real)
    printed: list[Any] = []
    given = {"dynastate": dynastate, "SparkSession": SparkSession, "print": lambda *words: printed.extend(words)}
    with only(environment):
        exec(program, given)  # noqa: S102  # our own documentation
    rows, write_units, confs = printed
    assert min(rows, write_units) > 0
    assert confs[f"{PREFIX}namespace"] == "orders-by-program"
    assert (folder / "new" / "commits" / "1").exists()


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.fixture(scope="module")
def stopped(spark: SparkSession, scratch: Path) -> Iterator[Path]:
    """A checkpoint of a query that has stopped, on RocksDB."""
    session = spark.newSession()
    for name, value in ON_ROCKSDB.items():
        session.conf.set(name, value)
    made = Path(tempfile.mkdtemp(prefix="stopped-", dir=scratch))
    source = make_source(made / "source", seed=7, files=2)
    source.release()
    run(CASES["aggregation in update mode"].build(source.stream(session), source.stream(session)), made / "old")
    yield made / "old"
    shutil.rmtree(made)


def in_offsets(old: Path, before: str, after: str) -> None:
    """Change the conf in the offset log of every batch."""
    for file in (old / "offsets").glob("[0-9]*"):
        assert before in file.read_text()
        file.write_text(file.read_text().replace(before, after))


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
        lambda old, _: in_offsets(
            old, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider", importing.OURS
        ),
        "the query keeps its state in DynamoDB already",
    ),
    "another store": (
        lambda old, _: in_offsets(
            old,
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
            "org.apache.spark.sql.execution.streaming.state.Another",
        ),
        "state can be imported from Spark's own stores, HDFS and RocksDB provider=",
    ),
    "avro": (
        lambda old, _: in_offsets(old, '"unsaferow"', '"avro"'),
        "state that is encoded as Avro cannot be imported",
    ),
    "no state": (lambda old, _: shutil.rmtree(old / "state" / "0" / "_metadata"), "the checkpoint describes no state"),
    "lost partition": (lambda old, _: shutil.rmtree(old / "state" / "0" / "1"), "folders of partitions are gone"),
    "not empty": (lambda _, new: with_another_file(new), "the folder of the new checkpoint is not empty"),
    "lost offsets": (
        lambda old, _: without(old / "offsets"),
        "the offset log of the checkpoint does not hold its last committed batch",
    ),
}


@needs_its_spark
@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_imported_is_refused(
    name: str, stopped: Path, spark: SparkSession, folder: Path, environment: dict[str, str]
) -> None:
    """The error is one line, and comes before anything is written."""
    spoil, says = WRONG[name]
    old, new = folder / "old", folder / "new"
    shutil.copytree(stopped, old)
    spoil(old, new)
    before = contents(folder)
    with only(environment), pytest.raises(ConfigurationError, match=says):
        import_checkpoint(spark, str(old), str(new))
    assert contents(folder) == before


@needs_its_spark
def test_a_namespace_in_use_is_refused(
    stopped: Path, spark: SparkSession, folder: Path, environment: dict[str, str]
) -> None:
    """The state of the query that was imported into it is left alone."""
    with only(environment):
        import_checkpoint(spark, str(stopped), str(folder / "first"), namespace="in-use")
        with pytest.raises(ConfigurationError, match="the namespace has state already"):
            import_checkpoint(spark, str(stopped), str(folder / "second"), namespace="in-use")
        with pytest.raises(ConfigurationError, match="the folder of the new checkpoint is not empty"):
            import_checkpoint(spark, str(stopped), str(folder / "first"), namespace="in-use")


@needs_its_spark
def test_a_namespace_with_another_operators_state_is_refused(
    stopped: Path, spark: SparkSession, folder: Path, environment: dict[str, str], database: Database
) -> None:
    """A join's stores, which have other names than an aggregation's, are found."""
    store = "joined/0/0/left-keyToNumValues"
    item = meta_item(store, StoreMeta(4, {"run": 1}, "query", "", {1: "file:/elsewhere/state"}), "0.2.0", "")
    with only(environment):
        tables = BotoTables(database.settings)
        assert tables.put_new(meta_key(store), item, Meter())
        tables.close()
        with pytest.raises(ConfigurationError, match=r"the namespace has state already.*file:/elsewhere/state"):
            import_checkpoint(spark, str(stopped), str(folder / "new"), namespace="joined")
    assert not (folder / "new").exists()


@needs_its_spark
@pytest.mark.parametrize(("old", "new"), [("old", "old/new"), ("new/old", "new")])
def test_nested_checkpoints_are_refused(
    old: str, new: str, stopped: Path, spark: SparkSession, folder: Path, environment: dict[str, str]
) -> None:
    """An import must not write into the old checkpoint."""
    shutil.copytree(stopped, folder / old)
    before = contents(folder)
    with only(environment), pytest.raises(ConfigurationError, match="one of the two checkpoints lies in the other"):
        import_checkpoint(spark, str(folder / old), str(folder / new))
    assert contents(folder) == before


@needs_its_spark
def test_a_running_query_is_refused(sessions: Sessions, folder: Path, environment: dict[str, str]) -> None:
    """A query that runs in the same session must be stopped first."""
    session = sessions(ON_ROCKSDB)
    source = make_source(folder / "source", seed=8, files=1)
    source.release()
    frame = CASES["aggregation in update mode"].build(source.stream(session), source.stream(session))
    run(frame, folder / "old")
    query = (
        frame.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(folder / "old")).start()
    )
    try:
        with only(environment), pytest.raises(ConfigurationError, match="the query is running; stop it first"):
            import_checkpoint(session, str(folder / "old"), str(folder / "new"))
    finally:
        query.stop()


@needs_its_spark
def test_a_query_that_runs_on_meanwhile_is_refused(
    stopped: Path, spark: SparkSession, folder: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query elsewhere that begins a batch while its state is imported gets no checkpoint."""
    old = folder / "old"
    shutil.copytree(stopped, old)
    start: Any = importing._start

    def start_and_run_on(*given: Any) -> Any:
        mark = start(*given)
        shutil.copy(old / "offsets" / "1", old / "offsets" / "2")
        return mark

    monkeypatch.setattr(importing, "_start", start_and_run_on)
    with only(environment), pytest.raises(ConfigurationError, match="the query went on while its state was imported"):
        import_checkpoint(spark, str(old), str(folder / "new"))
    assert not (folder / "new" / "commits").exists()


@pytest.mark.parametrize(
    ("options", "java", "says"),
    [
        ([], "/no/such/java", "dynastate: import needs Java; install a JRE 17 or 21"),
        (["--conf", "spark.x"], "", "dynastate: --conf takes KEY=VALUE got='spark.x'"),
    ],
)
def test_the_command_says_what_is_missing(
    options: list[str], java: str, says: str, environment: dict[str, str]
) -> None:
    """The message is one line, and comes before Spark starts."""
    words = [sys.executable, "-m", "dynastate.cli", "import", "old", "new", *options]
    own = environment | {"PYTHONPATH": str(ROOT / "src")} | ({"JAVA_HOME": java} if java else {})
    done = subprocess.run(words, env=own, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1


def test_another_spark_is_refused() -> None:
    """Import supports one minor of Spark."""
    other: Any = SimpleNamespace(version="4.2.1")
    with pytest.raises(ConfigurationError, match=r"import needs Spark 4\.3; .* found=4\.2\.1"):
        import_checkpoint(other, "old", "new")
