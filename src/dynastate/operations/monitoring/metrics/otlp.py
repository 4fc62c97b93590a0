"""Metrics for OpenTelemetry, sent to a collector by OTLP over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from dynastate.errors import ConfigurationError
from dynastate.operations.monitoring.metrics.table import BUCKETS_S, METRICS, Metric, Sample
from dynastate.operations.monitoring.metrics.target import Target
from dynastate.version import __version__

try:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
    from opentelemetry.sdk.resources import Resource
except ImportError as missing:
    raise ConfigurationError(
        "metrics for OpenTelemetry need its SDK; pip install opentelemetry-exporter-otlp-proto-http opentelemetry-sdk"
    ) from missing

#: The path of metrics, by OTLP's specification.
PATH: Final = "/v1/metrics"
#: Seconds in which an export is retried.
TIMEOUT_S: Final = 5
_UNITS: Final = {"seconds": "s", "bytes": "By", "dollars": "{USD}"}


class OtlpTarget(Target):
    """A collector at a URL: without a path, at `/v1/metrics` there.

    A metric `dynastate_written_bytes_total` is `dynastate.written` here, in bytes; a collector that writes to
    Prometheus gives it the first name again.
    """

    def __init__(self, url: str) -> None:
        endpoint = url if urlsplit(url).path.strip("/") else url.rstrip("/") + PATH
        # The exporter logs each failure and each retry; ours is one warning.
        logging.getLogger(OTLPMetricExporter.__module__).addFilter(_nothing)
        self._exporter = OTLPMetricExporter(endpoint=endpoint, timeout=TIMEOUT_S)
        self._reader = InMemoryMetricReader(
            preferred_temporality=self._exporter._preferred_temporality,  # noqa: SLF001  # as the SDK's own reader does
            preferred_aggregation=self._exporter._preferred_aggregation,  # noqa: SLF001
        )
        self._endpoint = endpoint
        resource = Resource.create({"service.name": "dynastate", "service.version": __version__})
        self._provider = MeterProvider([self._reader], resource=resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("dynastate", __version__)
        recorders: dict[str, Any] = {}
        for metric in METRICS:
            name, description = otlp_name(metric), {"unit": _UNITS.get(metric.unit, ""), "description": metric.help}
            if metric.kind == "counter":
                recorders[metric.name] = meter.create_counter(name, **description).add
            elif metric.kind == "gauge":
                recorders[metric.name] = meter.create_gauge(name, **description).set
            else:
                recorders[metric.name] = meter.create_histogram(
                    name, **description, explicit_bucket_boundaries_advisory=BUCKETS_S
                ).record
        self._record = recorders

    def add_state(self, samples: Sequence[Sample]) -> None:
        for metric, labels, value in samples:
            self._record[metric.name](value, dict(zip(metric.labels, labels, strict=True)))

    def flush(self) -> None:
        data = self._reader.get_metrics_data()
        if data is not None and self._exporter.export(data) is not MetricExportResult.SUCCESS:
            raise ConnectionError(f"the collector at {self._endpoint} does not take them")

    def close(self) -> None:
        self._provider.shutdown()
        self._exporter.shutdown()


def otlp_name(metric: Metric) -> str:
    """The name of a metric in OpenTelemetry, where unit and kind are not part of it."""
    base = metric.name.removesuffix("_total").removesuffix(f"_{metric.unit}" if metric.unit != "dollars" else "")
    return base.replace("_", ".", 1)


def _nothing(_: logging.LogRecord) -> bool:
    return False
