"""Checks of a transfer before Spark starts, which takes half a minute.

`steps` and each transfer check the same with Spark, which knows more file systems and more of a checkpoint. A
checkpoint that is not as expected here is left to them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dynastate.dynamodb import boto_tables
from dynastate.dynamodb.client import Client
from dynastate.engine.catalog import find_stores, of_namespace
from dynastate.errors import ConfigurationError
from dynastate.format.checkpoint import SCHEME
from dynastate.format.meta import parse_metas
from dynastate.format.spark_log import COMMITS, METADATA, OFFSETS, STATE, parse_conf
from dynastate.operations.checkpoints import StoredCheckpoint
from dynastate.settings import PREFIX, Settings
from dynastate.spark.configure import PROVIDER
from dynastate.spark.launch import conf_folder
from dynastate.spark.transfer import importing, origin, steps
from dynastate.spark.transfer.export import refuse_target
from dynastate.spark.transfer.recovery import refuse_template


@dataclass(frozen=True)
class Arguments:
    """The arguments of a command of a transfer.

    `origin` says which stores `old` must have: "dynastate", "spark" for Spark's own, or "" for any. `lost` is the
    namespace of `recover`, `rows` the file of `bootstrap`, and `to_store` the store of `export-checkpoint`. `conf` is
    all that the session is given, with the settings of dynastate.
    """

    command: str
    old: str
    new: str
    namespace: str = ""
    conf: Mapping[str, str] = field(default_factory=dict)
    origin: Literal["dynastate", "spark", ""] = "dynastate"
    operator: int | None = None
    to_store: str = ""
    lost: str = ""
    rows: str = ""


def refuse_early(arguments: Arguments) -> None:
    """Refuse what can be seen without Spark, on this machine and in the tables."""
    if arguments.to_store:
        refuse_target(arguments.to_store, arguments.new)
    if arguments.lost:
        refuse_template(arguments.old)
    namespace = steps.target_namespace(arguments.new, arguments.namespace)
    if namespace and namespace == arguments.lost:
        raise steps.own_namespace(namespace)
    settings = _settings(arguments.conf)
    if settings is not None:
        Client(settings).close()  # without a Region or credentials it is refused
    old, new, rows = (_local(each, arguments.conf) for each in (arguments.old, arguments.new, arguments.rows))
    try:
        _refuse_files(arguments, old, new, rows)
    except OSError:  # Spark says what of these cannot be read
        return
    if settings is None:
        return
    with boto_tables.open_tables(settings) as tables:
        if arguments.old.startswith(SCHEME) and StoredCheckpoint(tables, arguments.old).find(METADATA) is None:
            raise steps.no_checkpoint(arguments.old)
        if arguments.lost:
            of_namespace(tables, arguments.lost)
        if namespace and new is not None and steps.marker_of(arguments.command) not in _names(new):
            steps.refuse_namespace(namespace, parse_metas(find_stores(tables, namespace)))


def _refuse_new(arguments: Arguments, old: Path | None, new: Path) -> None:
    if old is not None:
        steps.refuse_nested(str(old), str(new))
    steps.refuse_used(steps.marker_of(arguments.command), _names(new), _batches(new / COMMITS), arguments.new)


def _refuse_files(arguments: Arguments, old: Path | None, new: Path | None, rows: Path | None) -> None:
    """Refuse what can be seen in files and folders, where they are on this machine."""
    if old is not None:
        _refuse_old(arguments, old)
    if new is not None:
        _refuse_new(arguments, old, new)
    if rows is not None and not any(sign in arguments.rows for sign in "*?[{") and not rows.exists():
        raise ConfigurationError("there is no such file or folder", rows=arguments.rows)


def _settings(conf: Mapping[str, str]) -> Settings | None:
    """The settings of dynastate in a conf; None if only Spark reads them as they are meant: a file has escapes."""
    settings = {name.removeprefix(PREFIX): value for name, value in conf.items() if name.startswith(PREFIX)}
    return None if any("\\" in value for value in settings.values()) else Settings.from_spark(settings)


def _has_hadoop_conf(conf: Mapping[str, str]) -> bool:
    """Whether anything on the class path of Spark's JVM, or in its conf, may name another default file system."""
    variables = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
    is_named = any(name in os.environ for name in variables) or "spark.hadoop.fs.defaultFS" in conf
    return is_named or conf_folder().is_dir()


def _local(location: str, conf: Mapping[str, str]) -> Path | None:
    """A folder or file, if it is on this machine, as Spark's default file system is unless a conf says otherwise."""
    if not location:
        return None
    if location.startswith("file:/"):
        location = location.removeprefix("file:")
    elif ":" in location or _has_hadoop_conf(conf):
        return None
    return Path(re.sub("^/+", "/", location)).absolute()


def _refuse_old(arguments: Arguments, old: Path) -> None:
    if not (old / OFFSETS).is_dir():
        raise steps.no_checkpoint(arguments.old)
    batches = _batches(old / COMMITS)
    if not batches:
        raise steps.nothing_committed(arguments.old)
    with suppress(OSError, ValueError):  # Spark says more of a file that is not as expected
        provider = parse_conf((old / OFFSETS / str(max(batches))).read_text()).get(PROVIDER)
        if provider and arguments.origin:
            refuse = importing.refuse_provider if arguments.origin == "spark" else origin.refuse_provider
            refuse(provider, arguments.old)
    operators = sorted(int(name) for name in _names(old / STATE) if name.isdigit())
    if arguments.operator is not None and operators and arguments.operator not in operators:
        raise steps.no_operator(operators, arguments.operator)


def _names(folder: Path) -> list[str]:
    """Names in a folder, without the checksums that Spark hides, too; empty, if there is none."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return [name for name in names if not (name.startswith(".") and name.endswith(".crc"))]


def _batches(folder: Path) -> list[int]:
    return [int(name) for name in _names(folder) if name.isdigit()]
