"""Configuration of Spark: `configure` in a program, or plain conf lines with spark-submit."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import dynastate.spark.configure
import dynastate.spark.jar
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.embedded import EmbeddedDynamoDB
from dynastate.errors import ConfigurationError
from dynastate.operations.inspection.inspect import inspect_store
from dynastate.settings import PREFIX, Settings
from dynastate.spark.configure import (
    DRIVER_PYTHON,
    EXTENSION_CLASS,
    FILE_MANAGER,
    FILE_MANAGER_CLASS,
    FILE_SYSTEM_CLASS,
    FILE_SYSTEM_CONF,
    JARS,
    OTHER_FILE_MANAGER,
    PLUGIN_CLASS,
    PLUGINS,
    PROVIDER,
    PROVIDER_CLASS,
    REAL_TIME_MODE,
    plain_conf,
)
from dynastate.spark.connect import EXTENSIONS
from dynastate.spark.jar import jar_path
from tests.spark.conftest import CONF, Database, Graphs, only, spark_conf
from tests.spark.streams import make_source
from tests.support.jvm import SPARK, make_repository
from tests.support.pages import ROOT, code
from tests.support.processes import wait_until

#: The versions that the bridge is compiled for.
SPARKS = re.findall(r'"4\.\d": "([\d.]+)"', (ROOT / "jvm-bridge" / "build.py").read_text())
PROGRAMS = Path(__file__).parent / "programs"
#: It has a command line of spark-submit for a program.
PAGE = ROOT / "docs" / "getting-started.md"


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> SparkSession.Builder:
    """A builder in a program without a session and without settings in the environment."""
    for name in (
        "PYSPARK_PYTHON",
        "PYSPARK_GATEWAY_PORT",
        "PYSPARK_SUBMIT_ARGS",
        "SPARK_HOME",
        "SPARK_CONF_DIR",
        "MASTER",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    return SparkSession.builder.master("local[2]")


def options(builder: SparkSession.Builder) -> dict[str, str]:
    result: dict[str, str] = builder._options
    return result


def test_it_sets_jar_provider_and_checkpoint_format(builder: SparkSession.Builder) -> None:
    assert dynastate.configure(builder) is builder
    assert plain_conf().items() <= options(builder).items()
    assert options(builder)["spark.jars"] == str(jar_path())
    assert jar_path().is_file()
    assert options(builder)["spark.sql.extensions"] == "org.apache.spark.sql.dynastate.DynastateExtensions"
    assert options(builder)["spark.plugins"] == "io.dynastate.spark.DynastatePlugin"
    assert options(builder)[f"{CONF}.providerClass"] == PROVIDER_CLASS
    assert options(builder)[f"{CONF}.checkpointFormatVersion"] == "2"
    assert options(builder)[f"{CONF}.coordinatorReportSnapshotUploadLag"] == "false"
    assert options(builder)[f"{CONF}.forceSnapshotUploadOnLag"] == "false"


def test_checkpoints_in_dynamodb(builder: SparkSession.Builder) -> None:
    names = ("spark.hadoop.fs.dynastate.impl", FILE_MANAGER, DRIVER_PYTHON)
    dynastate.configure(builder)
    assert not {*names, OTHER_FILE_MANAGER} & set(options(builder))
    dynastate.configure(builder, checkpoint=True)
    assert [options(builder)[name] for name in names] == [FILE_SYSTEM_CLASS, FILE_MANAGER_CLASS, sys.executable]
    assert OTHER_FILE_MANAGER not in options(builder)
    assert [name for name in options(builder) if not name.startswith("spark.")] == []
    with pytest.raises(ConfigurationError, match="checkpoint must be True or False got='yes'"):
        dynastate.configure(builder, checkpoint="yes")


def test_real_time_mode(builder: SparkSession.Builder) -> None:
    """The setting takes the place of the provider class."""
    dynastate.configure(builder, real_time=True)
    assert PROVIDER not in options(builder)
    assert options(builder)[REAL_TIME_MODE] == "true"
    assert options(builder)[f"{CONF}.checkpointFormatVersion"] == "2"
    with pytest.raises(ConfigurationError, match="real_time must be True or False got='yes'"):
        dynastate.configure(builder, real_time="yes")
    with pytest.raises(ConfigurationError, match=f"Spark refuses a session with {PROVIDER}; do not set it"):
        dynastate.configure(builder.config(PROVIDER, PROVIDER_CLASS), real_time=True)


def test_checkpoints_in_dynamodb_of_a_running_session(
    builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its conf for Hadoop is made; a name without the prefix reaches Hadoop all the same."""
    conf = SimpleNamespace(getConf=lambda: {JARS: str(jar_path())})
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: SimpleNamespace(sparkContext=conf))
    dynastate.configure(builder, checkpoint=True)
    assert {name: options(builder)[name] for name in FILE_SYSTEM_CONF} == FILE_SYSTEM_CONF


def test_it_keeps_the_users_class_of_checkpoint_files(builder: SparkSession.Builder) -> None:
    """The class is that of all other checkpoints, however often configure is called."""
    builder.config(FILE_MANAGER, "a.B")
    for _ in range(2):
        dynastate.configure(builder, checkpoint=True)
        assert options(builder)[FILE_MANAGER] == FILE_MANAGER_CLASS
        assert options(builder)[OTHER_FILE_MANAGER] == "a.B"


@pytest.mark.parametrize("version", ["3.5.0", "3.5.9", "4.0.1", "4.0.5", "4.1.0", "4.2.1", "4.3.0"])
def test_jar_is_that_of_the_installed_spark(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each minor has a jar for all its patches; the error for a missing jar says how to build it."""
    monkeypatch.setattr(dynastate.spark.jar, "JARS", tmp_path / "jars")
    monkeypatch.setattr(pyspark, "__version__", version)
    scala = "2.12" if version.startswith("3.5.") else "2.13"
    path = tmp_path / "jars" / f"dynastate-spark-{version[:3]}_{scala}-{dynastate.__version__}.jar"
    with pytest.raises(ConfigurationError, match=f"the jar is not built; run 'make setup'.* expected={path}"):
        jar_path()
    path.parent.mkdir()
    path.touch()
    assert jar_path() == path


@pytest.mark.parametrize("version", ["3.4.4", "4.0.0", "4.4.0", "4.30.0", "5.0.0.dev1"])
def test_spark_without_a_jar_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(ConfigurationError) as info:
        jar_path()
    assert str(info.value) == (
        f"pyspark {version} is installed, and dynastate {dynastate.__version__} has no jar for it; "
        "it has one each for Spark 3.5, 4.0, 4.1, 4.2, 4.3, but none for 4.0.0"
    )


def test_it_keeps_the_users_jars_extensions_and_plugins(builder: SparkSession.Builder) -> None:
    """The user's stay in order, before dynastate's, which is added once however often configure is called."""
    builder.config("spark.jars", "/a.jar,/b.jar").config(EXTENSIONS, "a.B").config(PLUGINS, "c.D,e.F")
    dynastate.configure(dynastate.configure(builder))
    assert options(builder)["spark.jars"] == f"/a.jar,/b.jar,{jar_path()}"
    assert options(builder)[EXTENSIONS] == f"a.B,{EXTENSION_CLASS}"
    assert options(builder)[PLUGINS] == f"c.D,e.F,{PLUGIN_CLASS}"


def test_it_keeps_what_spark_submit_was_given(builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Extensions and plugins of spark-submit's conf stay, too, unless the program gives others."""
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "'for another JVM")  # it is not read
    pairs = [(JARS, f"/a.jar,{jar_path()}"), (EXTENSIONS, "a.B"), (PLUGINS, "c.D")]
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda: None)
    monkeypatch.setattr(dynastate.spark.configure, "SparkConf", lambda: SimpleNamespace(getAll=lambda: pairs))
    dynastate.configure(builder.config(EXTENSIONS, "e.F"))
    assert JARS not in options(builder)
    assert options(builder)[EXTENSIONS] == f"e.F,{EXTENSION_CLASS}"
    assert options(builder)[PLUGINS] == f"c.D,{PLUGIN_CLASS}"


@pytest.mark.parametrize(
    ("version", "checkpoint_format"), [("3.5.9", "1"), ("4.0.1", "1"), ("4.1.4", "2"), ("4.3.0", "2")]
)
def test_checkpoint_format_is_one_that_this_spark_supports(
    version: str, checkpoint_format: str, builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark 3.5 has format 1 only; 4.0 fails in format 2 as soon as an operator has one partition."""
    monkeypatch.setattr(dynastate.spark.configure, "jar_path", lambda: Path("/a.jar"))
    monkeypatch.setattr(pyspark, "__version__", version)
    dynastate.configure(builder)
    assert options(builder)[f"{CONF}.checkpointFormatVersion"] == checkpoint_format
    dynastate.configure(builder.config(f"{CONF}.checkpointFormatVersion", "1"))
    assert options(builder)[f"{CONF}.checkpointFormatVersion"] == "1", "the one that is given"


def test_it_passes_settings_on_by_sparks_names(builder: SparkSession.Builder) -> None:
    """Settings in Python's spelling become conf in Spark's; those left at their defaults are not set."""
    prices: dict[str, float | Decimal] = {"write_price": 0.7, "read_price": Decimal("0.14"), "storage_price": 1}
    memory: dict[str, str | int] = {"memory_mb": 1024, "disk_mb": 0, "disk_path": "/a,/b"}
    dynastate.configure(builder, delta_table="mine", request_deadline_s=5, region="eu-west-1", **memory, **prices)
    ours = {name.removeprefix(PREFIX): value for name, value in options(builder).items() if name.startswith(PREFIX)}
    assert ours == {
        "deltaTable": "mine",
        "requestDeadlineS": "5",
        "region": "eu-west-1",
        "memoryMb": "1024",
        "diskMb": "0",
        "diskPath": "/a,/b",
        "writePrice": "0.7",
        "readPrice": "0.14",
        "storagePrice": "1",
        "python": sys.executable,
    }


def test_a_given_default_overrides_another_value(builder: SparkSession.Builder) -> None:
    """A setting given by the program overrides an earlier session and spark-defaults.conf, a default included."""
    builder.config(f"{PREFIX}deltaTable", "other").config(f"{PREFIX}memoryMb", "64")
    dynastate.configure(builder, delta_table="dynastate-delta", memory_mb=0)
    assert options(builder)[f"{PREFIX}deltaTable"] == "dynastate-delta"
    assert options(builder)[f"{PREFIX}memoryMb"] == "0"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tabel": "x"}, "unknown setting tabel; known are .*delta_table"),
        ({"deltaTable": "x"}, "unknown setting deltaTable; known are .*delta_table"),
        ({"shards": 0}, r"dynastate\.shards must be a whole number from 1 to 256 got=0"),
        ({"shards": "4"}, r"dynastate\.shards must be a whole number"),
        ({"disk_path": "disk"}, r"dynastate\.diskPath must be absolute folders with commas between them got='disk'"),
    ],
)
def test_it_refuses_wrong_settings(settings: dict[str, str | int], says: str, builder: SparkSession.Builder) -> None:
    with pytest.raises(ConfigurationError, match=says):
        dynastate.configure(builder, **settings)
    assert "spark.jars" not in options(builder)


@pytest.mark.every_spark
def test_every_setting_of_sparks_stores_is_documented(spark: SparkSession) -> None:
    """The table of docs/settings.md has the settings of this Spark's state stores, and no others."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    entries = getattr(getattr(jvm.org.apache.spark.sql.internal, "SQLConf$"), "MODULE$").getConfigEntries()
    names = {name for entry in entries.toArray() if (name := entry.key()).startswith(f"{CONF}.")}
    _, _, table = (ROOT / "docs" / "settings.md").read_text().partition("\n### Settings of Spark's state stores\n")
    minor = [int(part) for part in pyspark.__version__.split(".")[:2]]
    doc_names = {
        f"{CONF}.{name}"
        for names_cell, minimum in re.findall(r"^\| (`.*`) \| ([0-9.]*) ?\| .*\|$", table, re.MULTILINE)
        if [int(part) for part in (minimum or "3.5").split(".")] <= minor
        for name in re.findall(r"`([^`]+)`", names_cell)
    }
    assert names <= doc_names
    # A patch may bring a setting that earlier ones lack.
    if pyspark.__version__ in SPARKS:
        assert names == doc_names


@pytest.mark.every_spark
@pytest.mark.skipif(SPARK != "3.5", reason="newer Sparks refuse these themselves")
@pytest.mark.parametrize(("version", "number"), [("1.8.0_392", 8), ("11.0.21", 11)])
def test_spark_3_5_on_an_older_java_is_refused(
    version: str, number: int, builder: SparkSession.Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jar is for 17, and Spark itself would fail with the name of a class only."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=rf"the jar for this Spark needs Java 17 or newer; .* found={number}"):
        dynastate.configure(builder)


@pytest.fixture
def defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of Spark's conf, which may get a spark-defaults.conf."""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path / "spark-defaults.conf"


def test_it_keeps_what_spark_defaults_have(builder: SparkSession.Builder, defaults: Path) -> None:
    """What the builder gives wins, as it does in Spark; other conf of the file is Spark's to read."""
    defaults.write_text(
        "# a comment\n\nspark.jars  /a.jar,\\\n   /b.jar\n  spark.plugins=c.D \n"
        f"{EXTENSIONS} : a.B\nspark.app.name of defaults\n"
    )
    dynastate.configure(builder.config(EXTENSIONS, "e.F"))
    assert options(builder)[JARS] == f"/a.jar,/b.jar,{jar_path()}"
    assert options(builder)[EXTENSIONS] == f"e.F,{EXTENSION_CLASS}"
    assert options(builder)[PLUGINS] == f"c.D,{PLUGIN_CLASS}"
    assert "spark.app.name" not in options(builder)


def test_it_keeps_what_pyspark_submit_args_have(
    builder: SparkSession.Builder, defaults: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options win over a file of properties, which takes the place of the defaults unless they are asked for, too."""
    defaults.write_text(f"{EXTENSIONS} of.Defaults\n{PLUGINS} of.Defaults\n")
    properties = tmp_path / "own.conf"
    properties.write_text(f"{EXTENSIONS} of.File\nspark.jars /file.jar\n")
    words = [
        "--master",
        "local[2]",
        "--properties-file",
        str(properties),
        "--conf",
        f"{EXTENSIONS}=a.B",
        "pyspark-shell",
    ]
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", shlex.join(words))
    dynastate.configure(builder)
    assert options(builder)[EXTENSIONS] == f"a.B,{EXTENSION_CLASS}"
    assert options(builder)[PLUGINS] == PLUGIN_CLASS
    assert options(builder)[JARS] == f"/file.jar,{jar_path()}"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", shlex.join(["--load-spark-defaults", "--jars", "/a.jar", *words]))
    other = SparkSession.Builder()
    dynastate.configure(other)
    assert options(other)[PLUGINS] == f"of.Defaults,{PLUGIN_CLASS}"
    assert options(other)[JARS] == f"/a.jar,{jar_path()}"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("--jars '/a.jar pyspark-shell", "No closing quotation"),
        ("pyspark-shell --conf", "argument --conf/-c: expected one argument"),
        ("--load-spark-defaults=yes pyspark-shell", "argument --load-spark-defaults: ignored explicit argument 'yes'"),
    ],
)
def test_broken_args(given: str, reason: str, builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable and says what to do; no usage text ends the program."""
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", given)
    with pytest.raises(ConfigurationError) as info:
        dynastate.configure(builder)
    assert str(info.value) == (
        f"PYSPARK_SUBMIT_ARGS cannot be read as options of spark-submit: {reason}; correct it, or unset it"
    )


@pytest.mark.slow
def test_extensions_beside_those_of_the_defaults(folder: Path, environment: dict[str, str], database: Database) -> None:
    """In a Spark that a plain program starts. Spark only warns of an extension that is not there."""
    (folder / "spark-defaults.conf").write_text(f"{EXTENSIONS} not.There\n")
    program = (
        "import dynastate; from pyspark.sql import SparkSession\n"
        f"builder = dynastate.configure(SparkSession.builder.master('local[1]'), endpoint={database.endpoint!r}, "
        "region='us-east-1').config('spark.ui.enabled', 'false')\n"
        "print(builder.getOrCreate().conf.get('spark.sql.extensions'))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program],
        env=environment | {"SPARK_CONF_DIR": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert completed.stdout.splitlines()[-1] == f"not.There,{EXTENSION_CLASS}"


@pytest.mark.parametrize(
    ("master", "conf", "environment", "settings", "expected"),
    [
        ("local[2]", {}, {}, {}, sys.executable),
        ("local[2]", {}, {}, {"python": "/y/python"}, "/y/python"),
        ("local[2]", {"spark.pyspark.python": "/x/python"}, {}, {}, None),
        ("local[2]", {}, {"PYSPARK_PYTHON": "/x/python"}, {}, None),
        ("yarn", {}, {}, {}, None),
        ("local[2]", {}, {"PYSPARK_GATEWAY_PORT": "4711"}, {}, None),
    ],
    ids=["nothing said", "given", "conf names one", "environment names one", "on a cluster", "under spark-submit"],
)
def test_interpreter_of_the_sidecar(
    master: str,
    conf: dict[str, str],
    environment: dict[str, str],
    settings: dict[str, Any],
    expected: str | None,
    builder: SparkSession.Builder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a local program it is the running interpreter, unless another is given."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    dynastate.configure(builder.master(master).config(map=dict(conf)), **settings)
    assert options(builder).get(f"{PREFIX}python") == expected


def test_it_refuses_a_session_without_the_jar(builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(getConf=lambda: {"spark.jars": "/a.jar"})
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: SimpleNamespace(sparkContext=context))
    with pytest.raises(ConfigurationError, match=r"call dynastate\.configure before the first getOrCreate"):
        dynastate.configure(builder)


def test_session_of_a_configured_builder(spark: SparkSession, tests_jar: Path) -> None:
    """The session of these tests has the user's jar beside dynastate's."""
    # That of the context: a command that another test ran in this process may have changed the session's.
    assert spark.sparkContext.getConf().get("spark.jars") == f"{tests_jar},{jar_path()}"
    assert spark.conf.get(f"{CONF}.providerClass") == PROVIDER_CLASS


@dataclass(frozen=True)
class Submit:
    """Runs one of the test programs with spark-submit, on the files of a source in a folder, and reads its answer.

    `options` are as they are typed into a shell.
    """

    folder: Path
    environment: dict[str, str]

    def __call__(self, program: str, options: str, *arguments: str, checkpoint: str = "") -> dict[str, Any]:
        answer = self.folder / "answer"
        conf_words = ["--master", "local[2]"]
        for name, value in (spark_conf(self.folder) | {"spark.pyspark.python": sys.executable}).items():
            conf_words += ["--conf", f"{name}={value}"]
        location = checkpoint or self.folder / "checkpoint"
        words = [PROGRAMS / program, self.folder / "files" / "released", location, answer, *arguments]
        path = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), self.environment["PATH"]])}
        completed = subprocess.run(
            ["bash", "-euc", f"spark-submit {shlex.join(conf_words)} {options} {shlex.join(map(str, words))}"],
            cwd=self.folder,
            env=self.environment | path,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr
        # It ends when it notices that Spark has.
        wait_until(lambda: not list((self.folder / "tmp").glob("dynastate-*")), "the sidecar left its socket behind")
        result: dict[str, Any] = json.loads(answer.read_text())
        return result


@pytest.fixture
def submit(folder: Path, environment: dict[str, str]) -> Submit:
    return Submit(folder, environment)


@pytest.fixture
def expected(spark: SparkSession, folder: Path) -> list[list[object]]:
    source = make_source(folder / "files", seed=11, files=2)
    source.release()
    rows = source.read(spark).groupBy("key").agg(f.count("*"), f.sum("amount")).collect()
    return sorted((list(row) for row in rows), key=repr)


def documented() -> str:
    """The options of spark-submit that the page shows for a program, as they are typed."""
    (options,) = (
        re.fullmatch(r"spark-submit (.*) query\.py\n", body).group(1)  # type: ignore[union-attr]  # else it is a defect
        for _, body in code(PAGE)
        if "dynastate jar" in body and body.startswith("spark-submit")
    )
    return str(options)


def documented_conf() -> dict[str, str]:
    words = shlex.split(documented())
    pairs = (text.partition("=") for word, text in pairwise(words) if word == "--conf")
    return {name: value for name, _, value in pairs}


def test_documented_lines_are_what_configure_sets() -> None:
    conf = {name: value for name, value in documented_conf().items() if not name.startswith(PREFIX)}
    file_system = {f"spark.hadoop.{name}": value for name, value in FILE_SYSTEM_CONF.items()}
    assert conf | {JARS: str(jar_path())} == plain_conf() | file_system | {FILE_MANAGER: FILE_MANAGER_CLASS}
    assert '--jars "$(dynastate jar)"' in documented()


@pytest.mark.slow
def test_submit_with_the_pages_lines(expected: list[list[object]], submit: Submit, environment: dict[str, str]) -> None:
    """A program without any dynastate in it keeps state and checkpoint in DynamoDB, with the lines of the page.

    Only the endpoint is added: of a DynamoDB with the page's tables in the page's Region. One query aggregates, one is
    of transformWithState.
    """
    settings = {name: value for name, value in documented_conf().items() if name.startswith(PREFIX)}
    table_settings = Settings.from_spark({name.removeprefix(PREFIX): value for name, value in settings.items()})
    with EmbeddedDynamoDB(settings=table_settings) as database:
        options = f"{documented()} --conf {PREFIX}endpoint={database.endpoint}"
        answer = submit("submitted.py", options, checkpoint="dynastate:/")
        assert not (submit.folder / "checkpoint").exists()
        with only(environment), closing(BotoTables(database.settings)) as tables:
            reports = [inspect_store(tables, store) for store in tables.find_stores()]
    for query in ("sums", "running"):
        assert sorted(answer[query]["rows"], key=repr) == expected
        assert answer[query]["metrics"]["dynastateRequests"] > 0
    assert [each.version for each in reports] == [2] * 4  # two files, two partitions of two queries
    if table_settings.namespace:
        assert {each.store.split("/")[0] for each in reports} == {table_settings.namespace, "another"}


@pytest.mark.slow
def test_spark_submit_with_packages_of_a_maven_repository(
    expected: list[list[object]], submit: Submit, database: Database, graphs: Graphs, folder: Path
) -> None:
    """Spark's own resolver finds the jar by its coordinates, brings no other jar, and the two queries run on it.

    The resolver asks no repository but the given one: one that fails to have the jar would fail the test.
    """
    coordinates, *_ = make_repository(folder / "repository")
    resolvers = folder / "ivysettings.xml"
    resolvers.write_text(
        '<ivysettings><settings defaultResolver="none"/><resolvers><chain name="none"/></resolvers></ivysettings>'
    )
    lines = documented().replace('--jars "$(dynastate jar)"', f"--packages {coordinates}")
    conf = {
        "spark.jars.repositories": (folder / "repository").as_uri(),
        "spark.jars.ivy": str(folder / "ivy"),
        "spark.jars.ivySettings": str(resolvers),
        f"{PREFIX}endpoint": database.endpoint,
        f"{PREFIX}region": database.settings.region,
        f"{PREFIX}deltaTable": database.settings.delta_table,
        f"{PREFIX}snapshotTable": database.settings.snapshot_table,
        f"{PREFIX}namespace": folder.name,
    }
    answer = submit("submitted.py", " ".join([lines, *(f"--conf {name}={value}" for name, value in conf.items())]))
    for query in ("sums", "running"):
        assert sorted(answer[query]["rows"], key=repr) == expected
        assert answer[query]["metrics"]["dynastateRequests"] > 0
    assert graphs(f"{folder.name}/0/0/default").versions() == [1, 2]
    group, artifact, version = coordinates.split(":")
    assert [jar.name for jar in (folder / "ivy" / "jars").iterdir()] == [f"{group}_{artifact}-{version}.jar"]


@pytest.mark.slow
def test_spark_submit_of_a_program_that_configures(
    expected: list[list[object]], submit: Submit, database: Database, tests_jar: Path, graphs: Graphs, folder: Path
) -> None:
    """A program that calls `configure` works under spark-submit with the jar; without it, the error says what to do."""
    settings = {"endpoint": database.endpoint, "region": database.settings.region, "namespace": folder.name}
    with pytest.raises(AssertionError, match="run spark-submit with --jars"):
        submit("configured.py", f"--jars {tests_jar}", json.dumps(settings))
    answer = submit("configured.py", f"--jars {tests_jar},{jar_path()}", json.dumps(settings))
    assert sorted(answer["rows"], key=repr) == expected
    assert [Path(jar).name for jar in answer["jars"].split(",")] == [tests_jar.name, jar_path().name]
    assert graphs(f"{folder.name}/0/0/default").versions() == [1]
