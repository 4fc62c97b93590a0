"""The jar for the installed Spark."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from dynastate.errors import ConfigurationError
from dynastate.version import __version__

#: The minors of Spark that have a jar each.
MINORS: Final = ("3.5", "4.0", "4.1", "4.2", "4.3")
#: The Scala of PySpark's jars, for minors that have another than 2.13.
SCALA: Final = {"3.5": "2.12"}
#: Where the jars are, in the package.
JARS: Final = Path(__file__).parents[1] / "jars"
#: Its state store trait differs from the trait of 4.0.1 and later.
UNSUPPORTED: Final = "4.0.0"


def installed_version() -> str:
    """Version of the installed PySpark. Before its import, which takes half a second, it is read from its file."""
    if imported := sys.modules.get("pyspark"):
        return str(imported.__version__)
    spec = find_spec("pyspark")
    file = Path((spec and spec.origin) or "pyspark").with_name("version.py")
    version = re.search(r"""(?m)^__version__.*= *["']([^"']+)["']""", file.read_text())
    if version is None:
        raise ConfigurationError("the version of pyspark cannot be read; install it again", file=file)
    return version[1]


def spark_minor(version: str | None = None) -> str:
    """The minor of a version of Spark; without one, of the installed PySpark."""
    return ".".join((version or installed_version()).split(".")[:2])


def jar_name(version: str, where: str = "pyspark {} is installed") -> str:
    """Name of the jar's file for a version of Spark, which is `where`. Refuse one that dynastate does not support."""
    minor = spark_minor(version)
    name = f"dynastate-spark-{minor}_{SCALA.get(minor, '2.13')}-{__version__}.jar"
    # A checkout can have one for a Spark that is not supported yet: `make test-spark SPARK=next`.
    if version == UNSUPPORTED or (minor not in MINORS and not (JARS / name).is_file()):
        raise ConfigurationError(
            f"{where.format(version)}, and dynastate {__version__} has no jar for it; "
            f"it has one each for Spark {', '.join(MINORS)}, but none for {UNSUPPORTED}"
        )
    return name


def jar_path() -> Path:
    """Path of the jar for the installed Spark. Refuse a jar that was not built."""
    jar = JARS / jar_name(installed_version())
    if not jar.is_file():
        raise ConfigurationError(
            "the jar is not built; run 'make setup' in a checkout, or install a released wheel", expected=jar
        )
    return jar
