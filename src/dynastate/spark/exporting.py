"""Export of the metrics of a session's queries: `export_metrics`."""

from __future__ import annotations

import atexit
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from dynastate.errors import ConfigurationError
from dynastate.operations.monitoring.metrics.targets import Exporter, make_target
from dynastate.spark.connect import connect_session
from dynastate.spark.jar import spark_minor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def export_metrics(spark: SparkSession, target: str) -> MetricsExport:
    """Export the progress of every query of a session, those that run included, until it is closed.

    Targets, each of which may be used beside others:

    - `prometheus:PORT`, or `prometheus:HOST:PORT`: a server for Prometheus in this process; port 0 is one that is free.
    - `otlp:URL`: OpenTelemetry's protocol over HTTP, to the collector at `URL`, such as `http://localhost:4318`.
    - `emf`: lines of CloudWatch's embedded metric format on standard output.
    - `file:PATH`: each batch's progress report as a line of JSON, for `dynastate cost --progress`.

    A thread of its own exports: a query never waits, and never fails, for a target. What cannot be exported is dropped,
    with one warning, and so is everything for a port that is taken, or a file that cannot be written.

    Raises:
        ConfigurationError: it is not a target, or its package is not installed; or the session is of a client of Spark
            Connect 3.5, whose listeners run in the server.
    """
    if spark_minor() == "3.5" and connect_session() is not None:
        raise ConfigurationError(
            "export_metrics needs Spark 4.0 or newer in a client of Spark Connect; with 3.5 read the metrics from the "
            "query's recentProgress"
        )
    return MetricsExport(spark, target)


class MetricsExport:
    """An export under way. It ends with the program, with `close`, or with its `with` block."""

    def __init__(self, spark: SparkSession, target: str) -> None:
        opened = make_target(target)
        self.address = opened.address
        """Where Prometheus finds the metrics; empty for other targets."""
        self._exporter = Exporter(opened)
        self._listener = _Listener(self._exporter)
        self._streams = spark.streams
        for query in self._streams.active:
            self._exporter.started(query.id, query.name)
        self._streams.addListener(self._listener)
        atexit.register(self._exporter.close)

    def __enter__(self) -> MetricsExport:  # noqa: PYI034  # Self comes with Python 3.11, and it has no subclasses
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Export what waits, and release the target."""
        with suppress(Exception):  # the session may have ended
            self._streams.removeListener(self._listener)
        atexit.unregister(self._exporter.close)
        self._exporter.close()


class _Listener(StreamingQueryListener):
    """Hands events to the exporter, in Spark's thread: in a client of Connect by its methods, else by `_Events`."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter

    @property
    def _jlistener(self) -> Any:
        """The JVM's side of this listener, without PySpark's copies of events, which take 75 ms for each batch."""
        if self._jvm_side is None:
            from pyspark import SparkContext  # a client of Connect alone has none

            jvm: Any = SparkContext._jvm  # noqa: SLF001  # py4j's, as pyspark's own listener uses it
            self._jvm_side = jvm.PythonStreamingQueryListenerWrapper(_Events(self._exporter))
        return self._jvm_side

    _jvm_side: Any = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's names
        self._exporter.started(str(event.id), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._exporter.report(lambda: event.progress.json)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self._exporter.ended(str(event.id), failed=event.exception is not None)


class _Events:
    """Events as the JVM has them. A report is spelt as JSON in the exporter's thread."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        self._exporter.started(event.id().toString(), event.name())

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self._exporter.report(lambda: event.progress().json())

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Ignore it: there is no batch."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self._exporter.ended(event.id().toString(), failed=event.exception().isDefined())

    class Java:
        """The interface that PySpark's own listeners have."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)
