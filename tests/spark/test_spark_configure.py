"""How a user turns it on: `configure` in a program, or plain conf lines with spark-submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import dynastate
from dynastate.errors import ConfigurationError
from dynastate.local import EmbeddedDynamoDB
from dynastate.settings import PREFIX
from dynastate.spark import PROVIDER_CLASS, jar_path
from tests.spark.conftest import CONF, Histories, spark_conf
from tests.spark.streams import make_source

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> SparkSession.Builder:
    """A builder in a program that no session runs in, and whose environment says nothing."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT", "MASTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    return SparkSession.builder.master("local[2]")


def options(builder: SparkSession.Builder) -> dict[str, str]:
    found: dict[str, str] = builder._options
    return found


def test_it_sets_jar_provider_and_checkpoint_format(builder: SparkSession.Builder) -> None:
    """A builder gets the jar that is installed, the provider class, and checkpoint format 2."""
    assert dynastate.configure(builder) is builder
    assert options(builder)["spark.jars"] == str(jar_path())
    assert jar_path().is_file()
    assert options(builder)[f"{CONF}.providerClass"] == PROVIDER_CLASS
    assert options(builder)[f"{CONF}.checkpointFormatVersion"] == "2"


def test_it_keeps_the_users_jars(builder: SparkSession.Builder) -> None:
    """Jars that are there stay, in their order, before ours; and ours comes once, however often it is called."""
    builder.config("spark.jars", "/a.jar,/b.jar")
    dynastate.configure(dynastate.configure(builder))
    assert options(builder)["spark.jars"] == f"/a.jar,/b.jar,{jar_path()}"


def test_it_keeps_a_checkpoint_format_that_is_given(builder: SparkSession.Builder) -> None:
    """Who asks for format 1 gets it."""
    dynastate.configure(builder.config(f"{CONF}.checkpointFormatVersion", "1"))
    assert options(builder)[f"{CONF}.checkpointFormatVersion"] == "1"


def test_it_passes_settings_on_by_sparks_names(builder: SparkSession.Builder) -> None:
    """Settings in Python's spelling become conf in Spark's; those left at their defaults are not set."""
    prices: dict[str, float | Decimal] = {"write_price": 0.7, "read_price": Decimal("0.14"), "storage_price": 1}
    dynastate.configure(builder, delta_table="mine", request_deadline_s=5, region="eu-west-1", **prices)
    ours = {name.removeprefix(PREFIX): value for name, value in options(builder).items() if name.startswith(PREFIX)}
    assert ours == {
        "deltaTable": "mine",
        "requestDeadlineS": "5",
        "region": "eu-west-1",
        "writePrice": "0.7",
        "readPrice": "0.14",
        "storagePrice": "1",
        "python": sys.executable,
    }


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tabel": "x"}, "unknown setting tabel; known are .*delta_table"),
        ({"deltaTable": "x"}, "unknown setting deltaTable; known are .*delta_table"),
        ({"shards": 0}, r"dynastate\.shards must be a whole number from 1 to 256 got=0"),
        ({"shards": "4"}, r"dynastate\.shards must be a whole number"),
        ({"write_price": -1}, r"dynastate\.writePrice must be a decimal number from 0 to 1000000 got=-1"),
        ({"storage_price": "0.25"}, r"dynastate\.storagePrice must be a decimal number"),
        ({"delta_table": "a b"}, r"dynastate\.deltaTable must be"),
        ({"endpoint": "localhost:8000"}, r"dynastate\.endpoint must be a URL"),
    ],
)
def test_it_refuses_wrong_settings_at_once(
    settings: dict[str, str | int], says: str, builder: SparkSession.Builder
) -> None:
    """An unknown setting, or a value that cannot be right, is refused before there is a session."""
    with pytest.raises(ConfigurationError, match=says):
        dynastate.configure(builder, **settings)
    assert "spark.jars" not in options(builder)


@pytest.mark.parametrize(
    ("master", "conf", "environment", "expected"),
    [
        ("local[2]", {}, {}, sys.executable),
        ("local[2]", {"spark.pyspark.python": "/x/python"}, {}, None),
        ("local[2]", {}, {"PYSPARK_PYTHON": "/x/python"}, None),
        ("yarn", {}, {}, None),
        ("local[2]", {}, {"PYSPARK_GATEWAY_PORT": "4711"}, None),
    ],
    ids=["nothing said", "conf names one", "environment names one", "on a cluster", "under spark-submit"],
)
def test_interpreter_of_the_sidecar(
    master: str,
    conf: dict[str, str],
    environment: dict[str, str],
    expected: str | None,
    builder: SparkSession.Builder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the one that runs now, where this is a local program and nobody named another."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    dynastate.configure(builder.master(master).config(map=dict(conf)))
    assert options(builder).get(f"{PREFIX}python") == expected


def test_interpreter_that_is_given_is_kept(builder: SparkSession.Builder) -> None:
    """The setting `python` wins."""
    dynastate.configure(builder, python="/y/python")
    assert options(builder)[f"{PREFIX}python"] == "/y/python"


def test_it_refuses_a_session_that_runs_without_the_jar(
    builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running session cannot get the jar any more: the error says to configure first."""
    context = SimpleNamespace(getConf=lambda: {"spark.jars": "/a.jar"})
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: SimpleNamespace(sparkContext=context))
    with pytest.raises(ConfigurationError, match=r"call dynastate\.configure before the first getOrCreate"):
        dynastate.configure(builder)


def test_session_of_a_configured_builder(spark: SparkSession, tests_jar: Path) -> None:
    """The session these tests run in was made so: the user's own jar is in it, beside ours."""
    assert spark.conf.get("spark.jars") == f"{tests_jar},{jar_path()}"
    assert spark.conf.get(f"{CONF}.providerClass") == PROVIDER_CLASS


@dataclass(frozen=True)
class Submit:
    """Runs a program of ours with spark-submit, on the files of a source in a folder, and reads its answer."""

    folder: Path
    environment: dict[str, str]

    def __call__(self, program: str, jars: str, conf: dict[str, str], *arguments: str) -> dict[str, Any]:
        scripts = Path(sys.executable).parent
        answer = self.folder / "answer"
        words = [str(scripts / "spark-submit"), "--master", "local[2]", "--jars", jars]
        for name, value in (spark_conf(self.folder) | {"spark.pyspark.python": sys.executable} | conf).items():
            words += ["--conf", f"{name}={value}"]
        words += [str(PROGRAMS / program), str(self.folder / "files" / "released"), str(self.folder / "checkpoint")]
        path = {"PATH": os.pathsep.join([str(scripts), self.environment["PATH"]])}
        done = subprocess.run(
            [*words, str(answer), *arguments],
            cwd=self.folder,
            env=self.environment | path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not list((self.folder / "tmp").glob("dynastate-*")), "the sidecar left its socket behind"
        found: dict[str, Any] = json.loads(answer.read_text())
        return found


@pytest.fixture
def submit(folder: Path, environment: dict[str, str]) -> Submit:
    return Submit(folder, environment)


@pytest.fixture
def expected(spark: SparkSession, folder: Path) -> list[list[object]]:
    """Files for a program, and what its answer must be."""
    source = make_source(folder / "files", seed=11, files=2)
    source.release()
    rows = source.read(spark).groupBy("key").agg(f.count("*"), f.sum("amount")).collect()
    return sorted((list(row) for row in rows), key=repr)


def test_spark_submit_with_plain_conf_lines(
    expected: list[list[object]],
    submit: Submit,
    database: EmbeddedDynamoDB,
    environment: dict[str, str],
    histories: Histories,
    folder: Path,
) -> None:
    """A program without any dynastate in it keeps its state in DynamoDB, by what spark-submit is given."""
    command = [str(Path(sys.executable).parent / "dynastate"), "jar"]
    jar = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    conf = {
        f"{CONF}.providerClass": "io.dynastate.spark.DynamoDBStateStoreProvider",
        f"{CONF}.checkpointFormatVersion": "2",
        f"{CONF}.dynastate.endpoint": database.endpoint,
        f"{CONF}.dynastate.region": database.settings.region,
        f"{CONF}.dynastate.namespace": folder.name,
    }
    answer = submit("submitted.py", jar, conf)
    assert sorted(answer["rows"], key=repr) == expected
    assert answer["metrics"]["dynastateRequests"] > 0
    assert histories(f"{folder.name}/0/0/default").versions() == [1, 2]


def test_spark_submit_of_a_program_that_configures(
    expected: list[list[object]],
    submit: Submit,
    database: EmbeddedDynamoDB,
    tests_jar: Path,
    histories: Histories,
    folder: Path,
) -> None:
    """A program that calls `configure` works under spark-submit with the jar, and is told what to do without it."""
    settings = {"endpoint": database.endpoint, "region": database.settings.region, "namespace": folder.name}
    with pytest.raises(AssertionError, match="run spark-submit with --jars"):
        submit("configured.py", str(tests_jar), {}, json.dumps(settings))
    answer = submit("configured.py", f"{tests_jar},{jar_path()}", {}, json.dumps(settings))
    assert sorted(answer["rows"], key=repr) == expected
    assert [Path(jar).name for jar in answer["jars"].split(",")] == [tests_jar.name, jar_path().name]
    assert histories(f"{folder.name}/0/0/default").versions() == [1]
