"""Targets of exported metrics, and the thread that writes to a target: its failures and waits do not affect a query."""

from __future__ import annotations

import json
import queue
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from dynastate.errors import ConfigurationError
from dynastate.operations.monitoring.metrics.table import (
    ACTIVE,
    FAILURES,
    Report,
    Sample,
    batch_time,
    has_batch,
    labels_of,
    samples,
)
from dynastate.operations.monitoring.metrics.target import Target
from dynastate.redaction import redact

#: Reports that wait for the thread. More are dropped.
WAITING_MAX: Final = 1_000
#: Seconds that `close` waits for the export of the rest.
CLOSE_S: Final = 10.0
#: CloudWatch's namespace of the metrics.
NAMESPACE: Final = "dynastate"


def make_target(text: str) -> Target:
    """Make the target of a text: prometheus:[HOST:]PORT, otlp:URL, emf or file:PATH."""
    kind, _, address = text.partition(":")
    match kind:
        case "prometheus":
            from dynastate.operations.monitoring.metrics.prometheus import PrometheusTarget

            host, _, port = address.rpartition(":")
            if not port.isdigit() or int(port) > 65_535:
                raise ConfigurationError(
                    "a target for Prometheus is prometheus:PORT, or prometheus:HOST:PORT", got=text
                )
            return PrometheusTarget(host, int(port))
        case "otlp":
            from dynastate.operations.monitoring.metrics.otlp import OtlpTarget

            if not address.startswith(("http://", "https://")):
                raise ConfigurationError("a target for OpenTelemetry is otlp:URL, as otlp:http://host:4318", got=text)
            return OtlpTarget(address)
        case "emf" if not address:
            return EmfTarget()
        case "file" if address:
            return FileTarget(Path(address))
    raise ConfigurationError("a target is prometheus:PORT, otlp:URL, emf or file:PATH", got=text)


class FileTarget(Target):
    """One line a batch: its report as Spark spells it, which `dynastate cost` and `top` read with --progress."""

    def __init__(self, path: Path) -> None:
        self._path = path = path.expanduser()
        try:
            path.open("a").close()
        except OSError as error:
            self.problem = f"the file for metrics cannot be written: {error}"

    def add(self, report: Report, samples: Sequence[Sample], text: str) -> None:  # noqa: ARG002  # as Spark has them
        with self._path.open("a", encoding="utf-8") as file:
            file.write(" ".join(text.splitlines()) + "\n")


class EmfTarget(Target):
    """Lines of CloudWatch's embedded metric format on standard output, for the query and for each operator.

    All values are of one batch, even of counters: CloudWatch itself adds up.
    """

    def add(self, report: Report, samples: Sequence[Sample], text: str) -> None:  # noqa: ARG002  # the samples do
        time_ms = int(batch_time(report).timestamp() * 1000)
        by_labels: dict[tuple[str, ...], list[Sample]] = {}
        for sample in samples:
            by_labels.setdefault(sample.labels, []).append(sample)
        lines = [json.dumps(emf_line(each, time_ms)) + "\n" for each in by_labels.values()]
        # One write, so that no other line of the program comes in between.
        sys.stdout.write("".join(lines))
        sys.stdout.flush()


def emf_line(samples: Sequence[Sample], time_ms: int) -> dict[str, Any]:
    """One object of the embedded metric format: samples with the same labels."""
    labels = dict(zip(samples[0].metric.labels, samples[0].labels, strict=True))
    dimensions = [["query", "operator"] if "operator" in labels else ["query"]]
    metrics = [
        {"Name": emf_name(each.metric.name), "Unit": _EMF_UNITS.get(each.metric.unit, "Count")} for each in samples
    ]
    directive = {"Namespace": NAMESPACE, "Dimensions": dimensions, "Metrics": metrics}
    values = {emf_name(each.metric.name): each.value for each in samples}
    return {"_aws": {"Timestamp": time_ms, "CloudWatchMetrics": [directive]}, **labels, **values}


def emf_name(name: str) -> str:
    """The name of a metric in CloudWatch: without `_total`, because its values are not added up."""
    return name.removesuffix("_total")


_EMF_UNITS: Final[Mapping[str, str]] = {"seconds": "Seconds", "bytes": "Bytes", "dollars": "None"}


class Exporter:
    """Takes reports from any thread, at once, and gives them to a target in a thread of its own.

    Reports that fail, or do not fit into memory, are dropped, with one warning.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._waiting: queue.Queue[tuple[str, Any] | None] = queue.Queue(WAITING_MAX)
        self._has_warned = False
        #: The names of queries by their ids: the event of an end has no name.
        self._names: dict[str, tuple[str, ...]] = {}
        self._thread = threading.Thread(target=self._run, name="dynastate-metrics", daemon=True)
        self._thread.start()
        if target.problem:
            self._warn(target.problem)

    def report(self, text: Callable[[], str]) -> None:
        """Take a progress report, whose JSON is made in the exporter's thread."""
        self._put("report", text)

    def started(self, query: str, name: str | None) -> None:
        self._put("started", (name or query, query))

    def ended(self, query: str, *, failed: bool) -> None:
        self._put("ended", (query, failed))

    def close(self) -> None:
        """Export the waiting reports, for at most `CLOSE_S`, and end the thread."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._safely(self.target.close)

    def _put(self, kind: str, value: Any) -> None:
        try:
            self._waiting.put_nowait((kind, value))
        except queue.Full:
            self._warn("reports come faster than they can be exported, and some are dropped")

    def wait(self) -> None:
        """Wait until every report is exported, or dropped."""
        self._waiting.join()

    def _run(self) -> None:
        event = self._waiting.get()
        while event is not None:
            batch = [event, *self._others()]
            events = [each for each in batch if each is not None]
            for kind, value in events:
                self._safely(partial(self._add, kind, value))
            self._safely(self.target.flush)
            for _ in events:
                self._waiting.task_done()
            event = self._waiting.get() if batch[-1] is not None else None

    def _others(self) -> Iterator[tuple[str, Any] | None]:
        """The other waiting events, up to the end."""
        with suppress(queue.Empty):
            while (event := self._waiting.get_nowait()) is not None:
                yield event
            yield None

    def _add(self, kind: str, value: Any) -> None:
        if kind == "report":
            text = value()
            report = json.loads(text)
            self._names[str(report["id"])] = labels_of(report)
            if has_batch(report):
                self.target.add(report, list(samples(report)), text)
        elif kind == "started":
            name, query = value
            self._names[query] = (name, query)
            # Failures are exported from the start, so that their rate is known at the first one.
            self.target.add_state([Sample(ACTIVE, (name, query), 1), Sample(FAILURES, (name, query), 0)])
        else:
            query, has_failed = value
            labels = self._names.pop(query, (query, query))
            self.target.add_state([Sample(ACTIVE, labels, 0), Sample(FAILURES, labels, int(has_failed))])

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # whatever a target does, the query goes on
            self._warn(f"metrics are not exported: {error!r}")

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            with suppress(Warning):  # where warnings are errors
                warnings.warn(f"dynastate: {redact(text)}; this is said once", RuntimeWarning, stacklevel=2)
