"""JVMs of the benchmarks: their jar, their command line, and the providers to compare."""

from __future__ import annotations

import compileall
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyspark
from database import REGION, Database, database
from processes import run_logged
from targets import ROOT

from dynastate.spark.jar import jar_path

JAR = ROOT / "build" / "benchmarks.jar"
PACKAGE = "io.dynastate.benchmarks"
SPARK_STATE = "org.apache.spark.sql.execution.streaming.state"
CONF = "spark.sql.streaming.stateStore"
OURS = "ours"
#: What Spark's launcher passes (org.apache.spark.launcher.JavaModuleOptions), as far as state stores need it.
MODULE_OPTIONS = ROOT / "jvm-bridge" / "module.options"
Figures = Mapping[str, Any]
#: In the JVM's log; the milliseconds.
PAUSE = re.compile(r"\bPause (?!Full \(System\.gc\(\)\)).* ([\d.]+)ms$", re.MULTILINE)


@dataclass(frozen=True)
class Contender:
    """A provider class, and the conf that makes it the variant that is meant.

    `environment` is that of its JVMs, `engine` the DynamoDB it uses, with its version, if it uses one.
    """

    provider: str
    conf: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    engine: str = ""


CONTENDERS = {
    OURS: Contender("io.dynastate.spark.DynamoDBStateStoreProvider", {}),
    "hdfs": Contender(f"{SPARK_STATE}.HDFSBackedStateStoreProvider", {}),
    "rocksdb": Contender(
        f"{SPARK_STATE}.RocksDBStateStoreProvider", {f"{CONF}.rocksdb.changelogCheckpointing.enabled": "false"}
    ),
    "rocksdb-changelog": Contender(
        f"{SPARK_STATE}.RocksDBStateStoreProvider", {f"{CONF}.rocksdb.changelogCheckpointing.enabled": "true"}
    ),
}


def build() -> None:
    """Bring the bridge and the benchmark's jar up to date, and compile the Python package, as pip does.

    Where the environment forbids Python to write what it compiles, each start of a sidecar would do so again.
    """
    sources = ROOT / "benchmarks" / "scala"
    command = [sys.executable, str(ROOT / "jvm-bridge" / "build.py"), "--sources", str(sources), "--jar", str(JAR)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    compileall.compile_dir(ROOT / "src" / "dynastate", quiet=1)


def classpath(jars: Sequence[Path] = ()) -> str:
    """The benchmark, the bridge, more jars, and Spark."""
    return os.pathsep.join(map(str, [JAR, jar_path(), *jars, Path(pyspark.__file__).parent / "jars" / "*"]))


def run(
    main: str,
    contender: Contender,
    workload: Mapping[str, object],
    *,
    folder: Path,
    heap: str,
    log: str,
    collector: str = "G1GC",
    options: Sequence[str] = (),
    jars: Sequence[Path] = (),
) -> dict[str, Any]:
    """One process of a benchmark; its last line is the figures.

    The same heap and collector for every provider. State, and RocksDB's working copy, go below `folder`; the log of
    the process goes to build/benchmarks/<log>.log, and is shown when it fails.

    Args:
        main: the name of an object of benchmarks/scala.
        workload: its arguments (`Plan.scala`).
        options: more options of the JVM.
    """
    scratch = folder / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    jvm = ["java", f"-Xms{heap}", f"-Xmx{heap}", f"-XX:+Use{collector}", *options, f"@{MODULE_OPTIONS}"]
    jvm += [f"-Djava.io.tmpdir={scratch}", f"-Dlog4j2.configurationFile={ROOT / 'benchmarks' / 'log4j2.properties'}"]
    state = (folder / "state").as_uri()
    arguments = {"provider": contender.provider, "checkpoint": state, **workload, **contender.conf}
    command = [
        *jvm,
        "-cp",
        classpath(jars),
        f"{PACKAGE}.{main}",
        *(f"{name}={value}" for name, value in arguments.items()),
    ]
    printed = run_logged(command, contender.environment, log)
    figures: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return figures


def run_with_pauses(
    main: str, contender: Contender, workload: Mapping[str, object], *, folder: Path, **options: Any
) -> dict[str, Any]:
    """The same, with the pauses of the collector, except those that the benchmark asked for.

    The JVM of a small state may have none.
    """
    log = folder / "gc.log"
    figures = run(main, contender, workload, folder=folder, **options, options=[f"-Xlog:gc:file={log}::filecount=0"])
    pauses = sorted(map(float, PAUSE.findall(log.read_text()))) or [0.0]
    ninety_nine = pauses[math.ceil(0.99 * len(pauses)) - 1]
    return figures | {"pauses": len(pauses), "pauses_max_ms": pauses[-1], "pauses_p99_ms": ninety_nine}


def on(contender: Contender, database: Database) -> Contender:
    """Ours, on a DynamoDB."""
    ours = {"endpoint": database.endpoint, "region": REGION, "python": sys.executable}
    conf = {**contender.conf, **{f"{CONF}.dynastate.{name}": ours[name] for name in ours}}
    return replace(contender, conf=conf, environment=database.environment, engine=database.engine)


@contextmanager
def prepared(contender: Contender, endpoint: str | None, engine: str) -> Iterator[Contender]:
    """A contender with all it needs; ours with a database of its own."""
    if contender.provider != CONTENDERS[OURS].provider:
        yield contender
        return
    with database(endpoint, engine) as running:
        yield on(contender, running)


@contextmanager
def objects_in_s3(contender: Contender, engine: str) -> Iterator[Contender]:
    """Ours with its large parts in the S3 of a world without distances, which needs Go."""
    from world import world

    with world(contender.conf[f"{CONF}.dynastate.endpoint"], engine, "-scale", "0") as aws:
        objects = {"objects": "s3://checkpoints/objects", "objectsEndpoint": aws.s3}
        conf = {f"{CONF}.dynastate.{setting}": value for setting, value in objects.items()}
        yield replace(contender, conf={**contender.conf, **conf})
