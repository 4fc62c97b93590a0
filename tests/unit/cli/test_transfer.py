"""Commands that start Spark refuse what they can before it starts, which takes half a minute."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from dynastate.dynamodb import boto_tables
from dynastate.engine.engine import Engine
from dynastate.settings import PREFIX, Settings
from dynastate.spark import java, session
from dynastate.spark.transfer import early, steps
from tests.support.command_line import refused, run
from tests.support.store_builder import StoreBuilder

#: Imported before the tables of tests are in place: it keeps what it imports.
REFUSE = early.refuse_early
ROCKSDB = next(provider for provider, name in steps.SPARKS_OWN.items() if name == "RocksDB")
#: What Spark's launcher puts on the class path may name another default file system.
VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_CONF_DIR")


def make(folder: Path, provider: str = steps.OURS, operators: int = 1) -> Path:
    """A checkpoint after a batch, as Spark writes it."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    conf = {"spark.sql.streaming.stateStore.providerClass": provider}
    (folder / "offsets" / "0").write_text(f"v1\n{json.dumps({'conf': conf})}\n-\n")
    (folder / "commits" / "0").write_text("v1\n{}\n")
    for operator in range(operators):
        (folder / "state" / str(operator)).mkdir(parents=True)
    return folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine) -> Path:
    """The current folder, with checkpoints; Spark does not start, and Java is not asked for."""
    make(tmp_path / "ours")
    make(tmp_path / "rocks", ROCKSDB)
    make(tmp_path / "custom", "com.example.Provider")
    make(tmp_path / "begun").joinpath("commits/0").unlink()
    (tmp_path / "empty").mkdir()
    (make(tmp_path / "cut-off") / "dynastate-import").touch()
    (tmp_path / "rows.parquet").touch()
    monkeypatch.chdir(tmp_path)
    for name in (*VARIABLES, "SPARK_HOME", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(java, "check_java", lambda _: None)

    def start(*_: Any) -> Any:
        raise AssertionError("Spark starts")

    monkeypatch.setattr(session, "local_session", start)
    StoreBuilder(engine, "in-use/0/0/default").count_to(1)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("import missing new", "there is no checkpoint in this folder checkpoint=missing"),
        ("import file:/missing new", "there is no checkpoint in this folder checkpoint=file:/missing"),
        ("import empty new", "there is no checkpoint in this folder"),
        (
            "import dynastate://none/query new",
            "there is no checkpoint in this folder checkpoint=dynastate://none/query",
        ),
        ("import begun new", "no batch of this checkpoint was committed"),
        ("import ours new", "the query keeps its state in DynamoDB already checkpoint=ours"),
        ("import custom new", "state can be imported from Spark's own stores, HDFS and RocksDB"),
        ("import rocks ours", "the folder of the new checkpoint is not empty checkpoint=ours"),
        ("import rocks rocks/new", "one of the two checkpoints lies in the other"),
        ("import rocks new --namespace a/b", "namespace must be"),
        ("import rocks new --namespace in-use", "the namespace has state already; take another one"),
        ("import rocks dynastate://one/query --namespace two", "the new checkpoint is in the namespace one"),
        ("import rocks new --conf spark.x", "--conf takes KEY=VALUE"),
        ("repartition rocks new --partitions 2", "in a store of Spark's own, not in DynamoDB checkpoint=rocks"),
        ("repartition ours new --partitions 0", "Invalid value for '--partitions'"),
        ("repartition ours new --partitions 2 --namespace in-use", "the namespace has state already"),
        ("export-checkpoint ours new --store redis", "state can be exported to hdfs and rocksdb store=redis"),
        ("export-checkpoint ours dynastate://one/q --store hdfs", "that cannot be in DynamoDB: give a folder"),
        ("export-checkpoint rocks new --store hdfs", "in a store of Spark's own, not in DynamoDB"),
        ("migrate ours new --with json:none --schema a", "--with takes MODULE:FUNCTION"),
        ("migrate ours new --with json:loads --schema a --operator 3", "no such operator; the query has 0 operator=3"),
        ("migrate rocks new --with json:loads --schema a", "in a store of Spark's own, not in DynamoDB"),
        ("bootstrap ours new --from none.parquet", "there is no such file or folder rows=none.parquet"),
        ("bootstrap rocks new --from rows.parquet --operator 1", "there is no such operator; the query has 0"),
        ("recover none ours new", "no store of this namespace"),
        ("recover in-use dynastate://in-use/query new", "the location of a template in DynamoDB names another state"),
        ("recover in-use ours new --namespace in-use", "the new state needs a namespace of its own"),
        ("recover in-use ours new --namespace a/b", "namespace must be"),
    ],
)
def test_what_is_wrong_is_refused_before_spark_starts(words: str, message: str) -> None:
    assert message in refused(*words.split())


@pytest.mark.parametrize(
    "words",
    [
        "import rocks new",
        "import rocks cut-off --namespace in-use",
        "import s3a://bucket/old s3a://bucket/new",
        "import missing new --conf spark.hadoop.fs.defaultFS=hdfs://far",
        "bootstrap rocks new --from rows*.parquet",
        "recover in-use ours new --namespace other",
    ],
)
def test_what_may_be_right_is_left_to_spark(words: str) -> None:
    """Also a transfer that was cut off, whose stores are there, and folders of other machines."""
    assert "Spark starts" in run(*words.split()).err


def test_a_file_of_offsets_that_is_not_as_expected_is_left_to_spark(folder: Path) -> None:
    (folder / "rocks" / "offsets" / "0").write_text("v1\n")
    assert "Spark starts" in run("import", "rocks", "new").err


@pytest.mark.parametrize("origin", ["--conf", "spark-defaults.conf"])
def test_the_tables_are_those_of_the_conf_of_the_session(
    folder: Path, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    opened: list[Settings] = []
    open_tables = boto_tables.open_tables

    def noted(settings: Settings) -> Any:
        opened.append(settings)
        return open_tables(settings)

    monkeypatch.setattr(boto_tables, "open_tables", noted)
    monkeypatch.delenv("AWS_REGION")
    words = ["import", f"file:{folder}/rocks", "new", "--delta-table", "typed"]
    assert "no AWS Region is known" in refused(*words)
    conf = {f"{PREFIX}region": "eu-west-1", f"{PREFIX}deltaTable": "other", f"{PREFIX}snapshotTable": "groups"}
    if origin == "--conf":
        words += [word for pair in conf.items() for word in ("--conf", "=".join(pair))]
    else:
        monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
        (folder / origin).write_text("".join(f"{name} {value}\n" for name, value in conf.items()))
    assert "Spark starts" in run(*words).err
    assert opened == [Settings(region="eu-west-1", delta_table="typed", snapshot_table="groups")]


def test_settings_with_escapes_of_a_file_are_left_to_spark(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
    (folder / "spark-defaults.conf").write_text(f"{PREFIX}endpoint=http\\://127.0.0.1\n")
    assert "Spark starts" in run("import", "rocks", "new", "--namespace", "in-use").err


def test_a_wrong_setting_in_a_conf_is_refused() -> None:
    assert "must be an AWS Region" in refused("import", "rocks", "new", "--conf", f"{PREFIX}region=Ireland")


@pytest.mark.parametrize("variable", VARIABLES)
def test_only_paths_with_a_scheme_are_local_where_spark_may_have_another_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, str(folder))
    assert "Spark starts" in run("import", "missing", "new").err
    assert "there is no checkpoint" in refused("import", f"file:{folder}/missing", "new")


def test_the_conf_of_spark_may_name_another_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.hadoop.fs.defaultFS=hdfs://far pyspark-shell")
    assert "Spark starts" in run("import", "missing", "new").err
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
    (folder / "conf").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(folder))
    assert "Spark starts" in run("import", "missing", "new").err


def test_a_folder_that_cannot_be_read_is_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(path: Path) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", deny)
    assert "Spark starts" in run("import", "rocks", "ours").err
