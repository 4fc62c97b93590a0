"""The JVM's side of a transfer, operations on folders of Hadoop's file systems, and Spark's errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from dynastate import errors
from dynastate.errors import ConfigurationError, DynastateError
from dynastate.format.checkpoint import SCHEME
from dynastate.spark.configure import FILE_SYSTEM
from dynastate.spark.connect import connect_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK: Final = "4.3"


class Jvm:
    """The object StateTransfer in the JVM, and operations on folders."""

    def __init__(self, spark: SparkSession, command: str) -> None:
        if not spark.version.startswith(f"{SPARK}."):
            raise ConfigurationError(
                f"{command} needs Spark {SPARK}, in an environment of its own; a query of Spark 4.0 to 4.2 has to run "
                "a batch on it first, one of 3.5 stays there",
                found=spark.version,
            )
        if connect_session() is not None:
            raise ConfigurationError(
                f"{command} needs a session with a JVM of its own, and this is one of Spark Connect"
            )
        jvm: Any = spark._jvm  # noqa: SLF001  # py4j's, as pyspark's own modules use it
        self.transfer: Any = jvm.org.apache.spark.sql.dynastate.StateTransfer
        if type(self.transfer).__name__ == "JavaPackage":  # what py4j gives for a missing class
            raise ConfigurationError(
                "this session runs without dynastate's jar; make it with dynastate.configure, before any other"
            )
        self.session: Any = spark._jsparkSession  # noqa: SLF001
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        self._hadoop: Any = self.session.sessionState().newHadoopConf()

    def qualified(self, folder: str) -> str:
        if folder.startswith(SCHEME) and self._hadoop.get(FILE_SYSTEM) is None:
            raise ConfigurationError(
                "this session has no checkpoints in DynamoDB: make it with dynastate.configure(…, checkpoint=True)",
                checkpoint=folder,
            )
        return str(self.transfer.qualified(self.session, folder))

    def names(self, root: str, *below: str) -> list[str]:
        """Names in a folder; empty, if there is none."""
        path, files = self._locate("/".join((root, *below)))
        return [each.getPath().getName() for each in files.listStatus(path)] if files.exists(path) else []

    def write(self, root: str, name: str, text: str) -> None:
        path, files = self._locate(f"{root}/{name}")
        with closing(files.create(path, True)) as out:
            out.write(text.encode())

    def read(self, root: str, *below: str) -> str:
        path, files = self._locate("/".join((root, *below)))
        with closing(files.open(path)) as stream:
            return bytes(stream.readAllBytes()).decode()

    def delete(self, root: str, name: str) -> None:
        path, files = self._locate(f"{root}/{name}")
        files.delete(path, True)

    def _locate(self, name: str) -> tuple[Any, Any]:
        path = self._path(name)
        return path, path.getFileSystem(self._hadoop)


@contextmanager
def errors_of_spark() -> Iterator[None]:
    """Convert the JVM's errors to dynastate's, by their root cause: Spark's own messages are about jobs and stages."""
    try:
        yield
    except DynastateError:
        raise
    except Exception as failed:
        thrown = getattr(failed, "java_exception", None) or getattr(failed, "_origin", None)
        if thrown is None:
            raise
        raise _error_of(thrown) from failed


def _error_of(thrown: Any) -> DynastateError:
    causes = []
    while thrown is not None:
        causes.append(thrown)
        thrown = thrown.getCause()
    for cause in reversed(causes):
        if cause.getClass().getSimpleName() == "DynastateException":
            return errors.BY_KIND[cause.kind()](re.sub(r"^dynastate \([^)]*\): ", "", str(cause.getMessage())))
    root = causes[-1]
    if root.getClass().getSimpleName() == "PythonException":  # with the traceback of a worker
        message = str(root.getMessage()).partition("SQLSTATE:")[0].strip()
        return ConfigurationError(f"the function failed: {message.splitlines()[-1]}")
    message = " ".join(str(root.getMessage()).split()) or root.getClass().getName()
    return ConfigurationError(f"the old checkpoint cannot be read, or the new one not be written: {message}")
