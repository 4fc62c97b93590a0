"""Metrics for Prometheus, which asks a server in this process for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynastate.errors import ConfigurationError
from dynastate.operations.monitoring.metrics.table import BUCKETS_S, METRICS, Sample
from dynastate.operations.monitoring.metrics.target import Target

try:
    import prometheus_client as prometheus
except ImportError as missing:
    raise ConfigurationError(
        "metrics for Prometheus need prometheus-client; pip install prometheus-client"
    ) from missing


class PrometheusTarget(Target):
    """A server at a port, 0 for any that is free; without a host on every address of this machine."""

    def __init__(self, host: str, port: int) -> None:
        registry = prometheus.CollectorRegistry()
        self._metrics: dict[str, prometheus.Counter | prometheus.Gauge | prometheus.Histogram] = {}
        for metric in METRICS:
            name, text, labels = metric.name, metric.help, metric.labels
            if metric.kind == "counter":
                self._metrics[name] = prometheus.Counter(name, text, labels, registry=registry)
            elif metric.kind == "gauge":
                self._metrics[name] = prometheus.Gauge(name, text, labels, registry=registry)
            else:
                self._metrics[name] = prometheus.Histogram(name, text, labels, registry=registry, buckets=BUCKETS_S)
        self._server: Any
        try:
            self._server, self._thread = prometheus.start_http_server(port, host or "0.0.0.0", registry)  # noqa: S104
        except OSError as error:
            self._server = None
            self.problem = (
                f"the metrics for Prometheus cannot be served at port {port}: {error}; take another port, or 0 for one "
                "that is free"
            )
            return
        self.address = f"http://{host or '127.0.0.1'}:{self._server.server_port}/metrics"

    def add_state(self, samples: Sequence[Sample]) -> None:
        for metric, labels, value in samples:
            child = self._metrics[metric.name].labels(*labels)
            if isinstance(child, prometheus.Counter):
                child.inc(value)
            elif isinstance(child, prometheus.Gauge):
                child.set(value)
            else:
                child.observe(value)

    def close(self) -> None:
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
