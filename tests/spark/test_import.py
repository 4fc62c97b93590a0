"""Import: queries that leave Spark's own stores go on, on ours, as if they had never left."""

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
from dynastate import import_checkpoint, importing, open_state
from dynastate.errors import ConfigurationError
from dynastate.importing import MARKER, Imported
from dynastate.layout import Item, item_key, meta_key
from dynastate.local import EmbeddedDynamoDB
from dynastate.settings import PREFIX
from dynastate.tables import BotoTables, Meter
from dynastate.verify import verify
from tests.jvm import ROOT, SPARK
from tests.processes import descendants, is_alive, kill, wait_until
from tests.spark.conftest import CONF, ON_ROCKSDB, Sessions, only
from tests.spark.operators import CASES, JOIN_FORMAT, Case
from tests.spark.state_reader import read_states
from tests.spark.streams import Outcome, make_source, run

#: On another Spark it is refused, which the last test shows.
needs_its_spark = pytest.mark.skipif(SPARK != importing.SPARK, reason=f"import needs Spark {importing.SPARK}")
FILES, LEAVES_AFTER = 4, 2
ON_HDFS = ON_ROCKSDB | {
    f"{CONF}.providerClass": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
}
WITH_CHANGELOG = ON_ROCKSDB | {f"{CONF}.rocksdb.changelogCheckpointing.enabled": "true"}
WITH_IDS = ON_ROCKSDB | {f"{CONF}.checkpointFormatVersion": "2"}
LEAVERS: dict[str, tuple[str, Mapping[str, str]]] = {
    "aggregation, from RocksDB": ("aggregation in append mode", ON_ROCKSDB),
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


class Leaver:
    """A query that stays on Spark's own store, and its twin, which leaves it."""

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
        """Let all queries see the first so many files."""
        self.left.release(files)
        self.right.release(files)

    def run(self, checkpoint: Path, conf: Mapping[str, str] | None = None) -> Outcome:
        """Run the query on all files that it sees, with its own conf or another one."""
        session = self.sessions(self.conf if conf is None else conf)
        frame = self.case.build(self.left.stream(session), self.right.stream(session))
        return run(frame, checkpoint, self.case.mode)

    def leave(self, namespace: str | None = None) -> Imported:
        """Import the twin's state; what it leaves is as it was."""
        before, told = contents(self.old), []
        with only(self._environment):
            done = import_checkpoint(
                self.session(), str(self.old), str(self.new), namespace, lambda *each: told.append(each)
            )
        assert all(0 <= count <= total == done.stores for count, total in told)
        assert contents(self.old) == before
        return done

    def session(self) -> SparkSession:
        """A session on ours."""
        return self.sessions({})


def contents(folder: Path) -> dict[str, str]:
    """Every file, and a digest of what is in it."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    return {str(each.relative_to(folder)): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


@needs_its_spark
@pytest.mark.parametrize("name", LEAVERS)
def test_a_query_goes_on_as_if_it_had_never_left(
    name: str, sessions: Sessions, folder: Path, environment: dict[str, str]
) -> None:
    """Its output, its progress, and every row of its state are those of a query that stays, at every batch."""
    case, conf = LEAVERS[name]
    leaver = Leaver(CASES[case], conf, sessions, folder, environment)
    leaver.release(LEAVES_AFTER)
    assert leaver.run(leaver.old).rows == leaver.run(leaver.stays).rows

    done = leaver.leave()
    assert done.batch == max(int(each.name) for each in (leaver.old / "commits").glob("[0-9]*"))
    imported = range(done.batch, done.batch + 1)
    own = read_states(leaver.session(), leaver.new, imported)
    assert own == read_states(sessions(conf), leaver.old, imported)
    assert own
    assert done.rows > 0

    leaver.release(FILES)
    ours, stays = leaver.run(leaver.new, {}), leaver.run(leaver.stays)
    assert min(ours.rows) == done.batch + 1
    assert ours.rows == stays.rows
    assert ours.state == stays.state
    later = range(done.batch + 1, max(ours.rows) + 1)
    assert read_states(leaver.session(), leaver.new, later) == read_states(sessions(conf), leaver.stays, later)


@needs_its_spark
def test_a_batch_that_was_begun_is_run_again(sessions: Sessions, folder: Path, environment: dict[str, str]) -> None:
    """A driver died before its last batch was committed: the state is that before it, and the batch comes again."""
    leaver = Leaver(CASES["aggregation in append mode"], ON_ROCKSDB, sessions, folder, environment)
    leaver.release(LEAVES_AFTER)
    leaver.run(leaver.old)
    stays = leaver.run(leaver.stays)
    last = max(int(each.name) for each in (leaver.old / "commits").glob("[0-9]*"))
    (leaver.old / "commits" / f"{last}").unlink()

    assert leaver.leave().batch == last - 1
    leaver.release(FILES)
    ours = leaver.run(leaver.new, {})
    stays.add(leaver.run(leaver.stays))
    assert min(ours.rows) == last
    assert ours.rows == {batch: rows for batch, rows in stays.rows.items() if batch >= last}
    assert ours.state == {batch: state for batch, state in stays.state.items() if batch >= last}


@needs_its_spark
def test_a_checkpoint_that_was_moved(sessions: Sessions, folder: Path, environment: dict[str, str]) -> None:
    """Operators' metadata name schema files where they were: they are found, and the new checkpoint has its own."""
    leaver = Leaver(CASES["transformWithStateInPandas"], ON_ROCKSDB, sessions, folder, environment)
    leaver.release(LEAVES_AFTER)
    leaver.run(leaver.old)
    leaver.run(leaver.stays)
    leaver.old = leaver.old.rename(folder / "moved")
    leaver.leave()
    shutil.rmtree(leaver.old)
    named = [each.read_text() for each in (leaver.new / "state" / "0" / "_metadata" / "v2").glob("[0-9]*")]
    assert named
    assert all(f"{leaver.new}/state/0/_stateSchema/default/" in each and "/old/" not in each for each in named)
    leaver.release(FILES)
    ours, stays = leaver.run(leaver.new, {}), leaver.run(leaver.stays)
    assert (ours.rows, ours.state) == (stays.rows, stays.state)


@needs_its_spark
def test_with_little_memory_and_a_namespace(
    sessions: Sessions, folder: Path, environment: dict[str, str], database: EmbeddedDynamoDB
) -> None:
    """Rows are read as they are asked for; the namespace is the one that was asked for, and the tables are whole."""
    leaver = Leaver(CASES["session windows"], ON_ROCKSDB, sessions, folder, environment)
    leaver.release(LEAVES_AFTER)
    leaver.run(leaver.old)
    leaver.run(leaver.stays)
    done = leaver.leave(namespace="imported.sessions")
    assert done.namespace == "imported.sessions"
    assert done.confs[f"{PREFIX}namespace"] == "imported.sessions"
    with only(environment):
        tables = BotoTables(database.settings)
        for partition in range(2):
            assert verify(tables, f"imported.sessions/0/{partition}/default").findings == ()
        with open_state("imported.sessions/0", endpoint=database.endpoint, region=database.settings.region) as state:
            assert sum(1 for _ in state) == done.rows
    tables.close()
    leaver.release(FILES)
    ours = leaver.run(leaver.new, done.confs | {f"{PREFIX}memoryMb": "1"})
    assert ours.rows == leaver.run(leaver.stays).rows


# ---------------------------------------------------------------------------------------------------------- cut off


@needs_its_spark
def test_cut_off_by_a_lost_file_and_again(sessions: Sessions, folder: Path, environment: dict[str, str]) -> None:
    """One partition cannot be read: no checkpoint is made, and when its file is back the next import finishes."""
    leaver = Leaver(CASES["aggregation in append mode"], ON_ROCKSDB, sessions, folder, environment)
    leaver.release(LEAVES_AFTER)
    leaver.run(leaver.old)
    stays = leaver.run(leaver.stays)
    version = max((leaver.old / "state" / "0" / "1").glob("*.zip"), key=lambda path: int(path.stem))
    away = folder / "away"
    version.rename(away)
    with pytest.raises(ConfigurationError, match="the old checkpoint cannot be read, or the new one not be written"):
        leaver.leave()
    assert {each.name for each in leaver.new.iterdir() if not each.name.startswith(".")} <= {MARKER, "state"}
    away.rename(version)

    with pytest.raises(ConfigurationError, match="an import into another namespace was cut off here"):
        leaver.leave(namespace="another")
    done = leaver.leave()
    assert not (leaver.new / MARKER).exists()
    assert done.rows == sum(state.total for state in stays.state[done.batch])
    leaver.release(FILES)
    assert leaver.run(leaver.new, {}).rows == leaver.run(leaver.stays).rows


@needs_its_spark
def test_killed_and_again_by_the_command(
    sessions: Sessions, folder: Path, environment: dict[str, str], database: EmbeddedDynamoDB
) -> None:
    """`dynastate import` dies while it writes state; run again it finishes, and tells what the query needs."""
    leaver = Leaver(CASES["stream-stream join, left outer"], ON_ROCKSDB, sessions, folder, environment)
    leaver.release(LEAVES_AFTER)
    leaver.run(leaver.old)
    leaver.run(leaver.stays)
    words = [sys.executable, "-m", "dynastate.cli", "import", str(leaver.old), str(leaver.new), "--json"]
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
    assert (leaver.new / MARKER).read_text().startswith("killed\n")
    assert not list((leaver.new / "commits").glob("*"))

    again = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert again.returncode == 0, again.stderr
    said = json.loads(again.stdout)
    assert (said["namespace"], said["stores"]) == ("killed", 8)
    leaver.release(FILES)
    assert leaver.run(leaver.new, said["confs"]).rows == leaver.run(leaver.stays).rows


@needs_its_spark
def test_cut_off_at_its_very_end_and_again(
    stopped: Path, spark: SparkSession, folder: Path, environment: dict[str, str]
) -> None:
    """The mark is there still: it is made anew; but not where the query has gone on with the new checkpoint."""
    with only(environment):
        first = import_checkpoint(spark, str(stopped), str(folder / "new"), namespace="nearly")
        (folder / "new" / MARKER).write_text("nearly\nan import that was killed\n")
        (folder / "new" / "commits" / ".1.half.tmp").write_text("")
        again = import_checkpoint(spark, str(stopped), str(folder / "new"), namespace="nearly")
        # Numbers take as many bytes as they have digits, and checksums are others each time.
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
def test_tables_that_refuse_are_told_as_they_are(
    stopped: Path, sessions: Sessions, folder: Path, environment: dict[str, str]
) -> None:
    """Though RocksDB, whose rows are being read then, has errors of its own when it is closed too early."""
    session = sessions({**ON_ROCKSDB, f"{PREFIX}deltaTable": "not-there"})
    with only(environment), pytest.raises(ConfigurationError, match=r"not-there.*does not exist"):
        import_checkpoint(session, str(stopped), str(folder / "new"))


@needs_its_spark
def test_another_import_at_the_same_time_is_noticed(
    stopped: Path, spark: SparkSession, folder: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the mark of this one for that of an import that was cut off: no checkpoint is made here."""
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


@needs_its_spark
def test_the_command_on_the_page_runs(
    stopped: Path, folder: Path, environment: dict[str, str], database: EmbeddedDynamoDB
) -> None:
    """As it stands in docs/import.md, but for folders and endpoint; it tells which settings the query needs."""
    page = (ROOT / "docs" / "import.md").read_text()
    (block,) = re.findall(r"^ *```sh\n(.*?)^ *```$", page, re.MULTILINE | re.DOTALL)
    names = {
        "checkpoints/orders-on-dynamodb": str(folder / "new"),
        "checkpoints/orders": str(stopped),
        "http://127.0.0.1:8000": database.endpoint,
        "eu-west-1": database.settings.region,
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
    spark: SparkSession, stopped: Path, folder: Path, environment: dict[str, str], database: EmbeddedDynamoDB
) -> None:
    """As it stands in docs/import.md, but for folders, Region and namespace, in the session that is there."""
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
    """Change what the offset log says of the conf, in every batch."""
    for file in (old / "offsets").glob("[0-9]*"):
        assert before in file.read_text()
        file.write_text(file.read_text().replace(before, after))


def without(log: Path) -> None:
    for file in log.iterdir():
        file.unlink()


def with_another_file(new: Path) -> None:
    new.mkdir()
    (new / "something").write_text("of someone else")


#: What is wrong with the old checkpoint and the new one, and what is said.
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
    """With one clear line, and before anything is written."""
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
    """By a query that was imported, and goes on; its state is left alone."""
    with only(environment):
        import_checkpoint(spark, str(stopped), str(folder / "first"), namespace="in-use")
        with pytest.raises(ConfigurationError, match="the namespace has state already"):
            import_checkpoint(spark, str(stopped), str(folder / "second"), namespace="in-use")
        with pytest.raises(ConfigurationError, match="the folder of the new checkpoint is not empty"):
            import_checkpoint(spark, str(stopped), str(folder / "first"), namespace="in-use")


@needs_its_spark
def test_a_namespace_with_another_operators_state_is_refused(
    stopped: Path, spark: SparkSession, folder: Path, environment: dict[str, str], database: EmbeddedDynamoDB
) -> None:
    """A join's stores have other names than an aggregation's."""
    store = "joined/0/0/left-keyToNumValues"
    meta: Item = {"format": 1, "store": store, "checkpoint": "file:/elsewhere/state", "shards": 4, "epoch": 1}
    with only(environment):
        tables = BotoTables(database.settings)
        assert tables.put_new(meta_key(store), item_key(meta_key(store)) | meta, Meter())
        tables.close()
        with pytest.raises(ConfigurationError, match=r"the namespace has state already.*file:/elsewhere/state"):
            import_checkpoint(spark, str(stopped), str(folder / "new"), namespace="joined")
    assert not (folder / "new").exists()


@needs_its_spark
@pytest.mark.parametrize(("old", "new"), [("old", "old/new"), ("new/old", "new")])
def test_a_checkpoint_inside_of_the_other_is_refused(
    old: str, new: str, stopped: Path, spark: SparkSession, folder: Path, environment: dict[str, str]
) -> None:
    """The old one is only read."""
    shutil.copytree(stopped, folder / old)
    before = contents(folder)
    with only(environment), pytest.raises(ConfigurationError, match="one of the two checkpoints lies in the other"):
        import_checkpoint(spark, str(folder / old), str(folder / new))
    assert contents(folder) == before


@needs_its_spark
def test_a_running_query_is_refused(sessions: Sessions, folder: Path, environment: dict[str, str]) -> None:
    """Where it runs in the same session."""
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
def test_a_query_that_goes_on_meanwhile_is_noticed(
    stopped: Path, spark: SparkSession, folder: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs elsewhere, and begins a batch while its state is imported: no checkpoint is made."""
    old = folder / "old"
    shutil.copytree(stopped, old)
    start: Any = importing._start

    def start_and_go_on(*given: Any) -> Any:
        mark = start(*given)
        shutil.copy(old / "offsets" / "1", old / "offsets" / "2")
        return mark

    monkeypatch.setattr(importing, "_start", start_and_go_on)
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
    """In one line, and before Spark starts."""
    words = [sys.executable, "-m", "dynastate.cli", "import", "old", "new", *options]
    own = environment | {"PYTHONPATH": str(ROOT / "src")} | ({"JAVA_HOME": java} if java else {})
    done = subprocess.run(words, env=own, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1


def test_another_spark_is_refused() -> None:
    """Another minor than the one that it is made for."""
    other: Any = SimpleNamespace(version="4.2.1")
    with pytest.raises(ConfigurationError, match=r"import needs Spark 4\.3; .* found=4\.2\.1"):
        import_checkpoint(other, "old", "new")
