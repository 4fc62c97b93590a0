"""The conf with which PySpark would start a JVM, beside the program's own: its file, and PYSPARK_SUBMIT_ARGS."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from pathlib import Path
from typing import NoReturn

import pyspark

from dynastate.errors import ConfigurationError

#: A line of Java's properties: a key, then `=`, `:` or blanks, and a value.
_PROPERTY = re.compile(r"\s*(?![#!])([^\s:=]+)(?:\s*[:=]\s*|\s+)(.*?)\s*")


class _Parser(argparse.ArgumentParser):
    """A parser of options that are not this program's own: a wrong one does not end the program."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def conf_folder() -> Path:
    """The folder of Spark's own files of conf, which is on the class path of its JVM. PySpark comes without it."""
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    return Path(os.environ.get("SPARK_CONF_DIR") or home / "conf")


def launch_conf() -> dict[str, str]:
    """The conf of `spark-defaults.conf` and PYSPARK_SUBMIT_ARGS, by the rules of spark-submit, which PySpark runs.

    Escapes of Java's properties stay as they are.
    """
    options = _given_options()
    conf: dict[str, str] = {}
    if options.properties_file is None or options.load_spark_defaults:
        conf |= _properties(conf_folder() / "spark-defaults.conf")
    if options.properties_file is not None:
        conf |= _properties(options.properties_file)
    conf |= {name: value for name, _, value in (each.partition("=") for each in options.conf)}
    return conf | ({"spark.jars": options.jars} if options.jars else {})


def _given_options() -> argparse.Namespace:
    """The options of PYSPARK_SUBMIT_ARGS that have conf."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--conf", "-c", action="append", default=[])
    parser.add_argument("--jars")
    parser.add_argument("--properties-file", type=Path)
    parser.add_argument("--load-spark-defaults", action="store_true")
    try:
        return parser.parse_known_args(shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "")))[0]
    except ValueError as failed:
        # Its text may hold secrets, as conf has them, and stays out of the message.
        raise ConfigurationError(
            f"PYSPARK_SUBMIT_ARGS cannot be read as options of spark-submit: {failed}; correct it, or unset it"
        ) from failed


def _properties(file: Path) -> dict[str, str]:
    if not file.is_file():
        return {}
    lines = re.sub(r"\\\n\s*", "", file.read_text()).splitlines()
    return {match[1]: match[2] for match in map(_PROPERTY.fullmatch, lines) if match is not None}
