"""Configuration of Spark sessions: `configure`, and the same as plain conf."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

from pyspark import SparkConf
from pyspark.sql import SparkSession

from dynastate.errors import ConfigurationError
from dynastate.settings import Settings
from dynastate.spark.connect import (
    EXTENSIONS,
    check_server,
    connect_session,
    describe_server,
    is_connect_client,
    remote_of,
)
from dynastate.spark.jar import jar_path, spark_minor
from dynastate.spark.java import check_java
from dynastate.spark.launch import launch_conf

#: Spark 3.5 has no other format. In format 2, Spark 4.0 fails every query with an operator of one partition, such as an
#: aggregation without keys.
FORMAT_1_ONLY = ("3.5", "4.0")
#: Newer Sparks check by themselves that Java is not older than the jar's.
RUNS_ON_OLDER_JAVA = ("3.5",)
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PROVIDER_CLASS = "io.dynastate.spark.DynamoDBStateStoreProvider"
CHECKPOINT_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
JARS = "spark.jars"
EXTENSION_CLASS = "org.apache.spark.sql.dynastate.DynastateExtensions"
PLUGINS = "spark.plugins"
PLUGIN_CLASS = "io.dynastate.spark.DynastatePlugin"
#: A checkpoint at dynastate:// needs a file system for Spark's readers, and a class of its log. A class that was set
#: before stays that of all other checkpoints.
FILE_SYSTEM = "fs.dynastate.impl"
FILE_SYSTEM_CLASS = "io.dynastate.checkpoint.DynastateFileSystem"
#: Hadoop would keep a file system, with the tables and Region of the first session, for all later ones.
FILE_SYSTEM_CONF = {FILE_SYSTEM: FILE_SYSTEM_CLASS, f"{FILE_SYSTEM}.disable.cache": "true"}
#: The interpreter of a driver's sidecar: executors may have another one.
DRIVER_PYTHON = "spark.dynastate.driverPython"
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
FILE_MANAGER_CLASS = "io.dynastate.checkpoint.DynastateCheckpointFileManager"
OTHER_FILE_MANAGER = "spark.dynastate.checkpointFileManagerClass"
#: In place of the provider class, which Spark wants to be RocksDB's or not set in a session with real-time mode.
REAL_TIME_MODE = "spark.dynastate.realTimeMode.enabled"
#: Spark warns of stores that upload no snapshot files. Ours upload none: snapshots are in the tables, and are made when
#: they save money. The second setting needs the first.
LAG_REPORTS = tuple(
    f"spark.sql.streaming.stateStore.{name}"
    for name in ("coordinatorReportSnapshotUploadLag", "forceSnapshotUploadOnLag")
)

Builder = TypeVar("Builder", bound=SparkSession.Builder)


#: The conf, except the jar, that only the start of an application can set.
STATIC_CONF = {EXTENSIONS: EXTENSION_CLASS, PLUGINS: PLUGIN_CLASS}


def plain_conf() -> dict[str, str]:
    """Conf that `configure` sets for the installed Spark, without settings, as for `spark-defaults.conf`."""
    return {JARS: str(jar_path()), **STATIC_CONF, **session_conf(spark_minor())}


def session_conf(minor: str) -> dict[str, str]:
    """The part of this conf that a running session can set, for a minor of Spark."""
    return {
        PROVIDER: PROVIDER_CLASS,
        CHECKPOINT_FORMAT: "1" if minor in FORMAT_1_ONLY else "2",
        **dict.fromkeys(LAG_REPORTS, "false"),
    }


def configure(
    builder: Builder,
    *,
    checkpoint: str | float | Decimal = False,
    real_time: str | float | Decimal = False,
    **settings: str | float | Decimal,
) -> Builder:
    """Configure the sessions of a builder to keep streaming state in DynamoDB.

    Adds the jar to `spark.jars`, the extension to `spark.sql.extensions` and the plugin to `spark.plugins`. Keeps what
    the builder, spark-submit, spark-defaults.conf and PYSPARK_SUBMIT_ARGS have of them. Sets the provider class,
    checkpoint format version 2 for new queries (1 on Spark 3.5 and 4.0), no warnings of missing snapshot files, and the
    given settings. The names of settings are the fields of `dynastate.Settings`:

        spark = dynastate.configure(SparkSession.builder, region="eu-west-1").getOrCreate()

    With `checkpoint`, queries can have their checkpoints in the same tables, at `dynastate://NAMESPACE/NAME`:

        query.option("checkpointLocation", "dynastate://sales/orders")

    With `real_time`, for Spark 4.3.0, queries can be in real-time mode: each query gets the provider class when it
    starts, and the session has none.

    Without `python`, and without an interpreter set for PySpark, a local master gets the one that runs now.

    Under spark-submit the JVM has started already: pass the jar as `--jars "$(dynastate jar)"`.

    On a builder with `remote("sc://…")`, sessions are those of a Spark Connect server: jar, extension and plugin belong
    to its start. This asks the server for them, and for its Spark, and sets the rest.

    Raises:
        ConfigurationError: an unknown or wrong setting, a provider class of the builder with `real_time`, no jar for
            this Spark, a Java before 17, PYSPARK_SUBMIT_ARGS that cannot be read, or a running session, spark-submit or
            Connect server without the jar or the extension.
    """
    unknown = sorted(set(settings) - set(Settings.__dataclass_fields__))
    if unknown:
        raise ConfigurationError(
            f"unknown setting {unknown[0]}; known are {', '.join(sorted(Settings.__dataclass_fields__))}"
        )
    if not isinstance(checkpoint, bool):
        raise ConfigurationError("checkpoint must be True or False", got=repr(checkpoint))
    if not isinstance(real_time, bool):
        raise ConfigurationError("real_time must be True or False", got=repr(real_time))
    checked = Settings(**settings)  # type: ignore[arg-type]  # Settings checks the type of each value itself
    options: dict[str, str] = builder._options  # noqa: SLF001  # a builder has no getter, and the jar must be appended
    if is_connect_client(builder) or connect_session() is not None:
        server = describe_server(builder)
        check_server(server, remote_of(builder), STATIC_CONF)
        conf = session_conf(spark_minor(server.spark))
        conf |= checkpoint_conf(options) | FILE_SYSTEM_CONF if checkpoint else {}
    else:
        conf = plain_conf()
        checked, launched = _complete(conf, checked, options)
        if checkpoint:
            # A session that runs has made its conf for Hadoop already; spark-submit warns of names without `spark.`.
            prefix = "" if SparkSession.getActiveSession() is not None else "spark.hadoop."
            file_system = {f"{prefix}{name}": value for name, value in FILE_SYSTEM_CONF.items()}
            conf |= checkpoint_conf(launched) | file_system | {DRIVER_PYTHON: sys.executable}
    if real_time:
        if PROVIDER in options:
            raise ConfigurationError(f"with real_time, Spark refuses a session with {PROVIDER}; do not set it")
        del conf[PROVIDER]
        conf[REAL_TIME_MODE] = "true"
    user_conf = {name: options[name] for name in (CHECKPOINT_FORMAT, *LAG_REPORTS) if name in options}
    builder.config(map={**conf, **user_conf, **checked.to_spark(settings)})
    return builder


def stored_checkpoint_conf() -> dict[str, str]:
    """Conf that `configure` adds for checkpoints in DynamoDB, as for `spark-defaults.conf`."""
    return checkpoint_conf({}) | {f"spark.hadoop.{name}": value for name, value in FILE_SYSTEM_CONF.items()}


def checkpoint_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Conf for the log of checkpoints in DynamoDB, beside `conf`."""
    other = conf.get(FILE_MANAGER, FILE_MANAGER_CLASS)
    others = {} if other == FILE_MANAGER_CLASS else {OTHER_FILE_MANAGER: other}
    return {FILE_MANAGER: FILE_MANAGER_CLASS, **others}


def _complete(conf: dict[str, str], checked: Settings, options: dict[str, str]) -> tuple[Settings, dict[str, str]]:
    """Add the application's jars, extensions and plugins to `conf`.

    Returns the settings with an interpreter, and the application's own conf.
    """
    jar = conf[JARS]
    _refuse_running_session(jar)
    names_python = options.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    if not checked.python and _is_local(options) and not names_python:
        checked = replace(checked, python=sys.executable)
    if {"PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"} <= os.environ.keys():
        launched = _submitted_conf(jar) | options  # the JVM runs, and its jars are fixed
        del conf[JARS]
    else:
        launched = launch_conf() | options
        if spark_minor() in RUNS_ON_OLDER_JAVA:
            check_java("the jar for this Spark")
    conf |= {name: _with(launched.get(name, ""), conf[name]) for name in (JARS, *STATIC_CONF) if name in conf}
    return checked, launched


def _with(listed: str, element: str) -> str:
    """Add an element to a comma-separated list, unless the list has it."""
    elements = [each for each in listed.split(",") if each]
    return ",".join(elements if element in elements else [*elements, element])


def _refuse_running_session(jar: str) -> None:
    running = SparkSession.getActiveSession()
    if running is not None and jar not in running.sparkContext.getConf().get(JARS, ""):
        raise ConfigurationError(
            "a Spark session runs already, and jars cannot be added to it; call dynastate.configure before the "
            "first getOrCreate"
        )


def _submitted_conf(jar: str) -> dict[str, str]:
    """The conf of spark-submit, which must have the jar."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001  # connects to spark-submit's JVM
    conf = dict(SparkConf().getAll())
    submitted = conf.get(JARS, "")
    if Path(jar).name not in submitted:
        raise ConfigurationError(
            "spark-submit has started the JVM already, and no jar can be added to it; "
            'run spark-submit with --jars "$(dynastate jar)"',
            jars=submitted or "none",
        )
    return conf


def _is_local(options: dict[str, str]) -> bool:
    master = options.get("spark.master") or os.environ.get("MASTER", "local")
    return master.startswith("local") and "PYSPARK_GATEWAY_PORT" not in os.environ
