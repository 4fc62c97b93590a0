"""Exported metrics: names, values, and each target, on reports as Spark makes them."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from dynastate.errors import ConfigurationError
from dynastate.operations.monitoring.metrics import targets
from dynastate.operations.monitoring.metrics.otlp import otlp_name
from dynastate.operations.monitoring.metrics.table import METRICS, OPERATOR_METRICS, Report, samples
from dynastate.operations.monitoring.metrics.target import Target
from dynastate.operations.monitoring.metrics.targets import Exporter, make_target
from dynastate.operations.monitoring.reports import usage_of_queries
from tests.support.pages import DOCS

Warned = pytest.WarningsRecorder
ID = "5b0c2d7e-0000-4000-8000-000000000000"
#: The provider's metrics, as docs/metrics.md lists them.
CUSTOM = re.findall(r"^\| `(\w+)` \|", (DOCS / "metrics.md").read_text().partition("\n## ")[0], re.MULTILINE)


def report(batch: int = 0, **others: Any) -> dict[str, Any]:
    """A report of one operator, all of whose metrics are different."""
    custom = {name: number for number, name in enumerate(CUSTOM, 1)}
    operator = {"operatorName": "stateStoreSave", "numRowsTotal": 50, "numRowsUpdated": 20, "numRowsRemoved": 1}
    operator |= {"numRowsDroppedByWatermark": 2, "memoryUsedBytes": 4096, "numShufflePartitions": 5}
    operator |= {"numStateStoreInstances": 5, "customMetrics": custom}
    fields: dict[str, Any] = {"id": ID, "runId": "run", "name": "orders", "timestamp": "2025-01-01T00:01:00.000Z"}
    fields |= {"batchId": batch, "numInputRows": 100, "durationMs": {"addBatch": 900, "triggerExecution": 1_500}}
    fields |= {"eventTime": {"watermark": "2025-01-01T00:00:30.000Z"}, "stateOperators": [operator]}
    fields |= {"sources": [{"metrics": {"avgOffsetsBehindLatest": "12.5"}}, {"metrics": None}]}
    return fields | others


@pytest.fixture
def exported() -> Iterator[Callable[..., Target]]:
    """Export two batches of a query that then fails, to a target."""
    exporters: list[Exporter] = []

    def export(where: str, *reports: Report) -> Target:
        exporter = Exporter(make_target(where))
        exporters.append(exporter)
        exporter.started(ID, "orders")
        for each in reports or (report(0), report(1)):
            exporter.report(partial(json.dumps, each))
        exporter.ended(ID, failed=True)
        exporter.wait()
        return exporter.target

    yield export
    for each in exporters:
        each.close()


def test_every_metric_of_the_provider_is_exported() -> None:
    custom = report()["stateOperators"][0]["customMetrics"]
    assert len(custom) > 25
    values = {each.metric.name: each.value for each in samples(report())}
    scale = {"seconds": 1e-3, "dollars": 1e-9}
    read: dict[str, str] = {}
    for metric in OPERATOR_METRICS:
        for name, value in custom.items():
            if metric.read({"customMetrics": {name: value}}) is not None:
                assert read.setdefault(name, metric.name) == metric.name
                assert values[metric.name] == pytest.approx(value * scale.get(metric.unit, 1))
    assert read.keys() == custom.keys()


def test_names_are_those_of_prometheus() -> None:
    assert all(re.fullmatch(r"dynastate_[a-z_]+", each.name) for each in METRICS)
    assert all((each.kind == "counter") == each.name.endswith("_total") for each in METRICS)
    for name in ([each.name for each in METRICS], [otlp_name(each) for each in METRICS]):
        assert len(name) == len(set(name))


def test_the_page_lists_every_metric() -> None:
    section = (DOCS / "metrics.md").read_text().partition("\n## Export\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(dynastate_\w+)` \| (\w+) \| (\w+) \| (.*) \|$", section, re.MULTILINE)
    level = {2: "query", 4: "operator"}
    assert rows == [(each.name, each.kind, level[len(each.labels)], each.help.rstrip(".")) for each in METRICS]


def test_what_is_missing_has_no_value() -> None:
    """A trigger without a batch has none; a query without watermark, Kafka and state has those of every query."""
    assert not list(samples(report(durationMs={"triggerExecution": 1})))
    bare = report(eventTime={}, sources=[], stateOperators=[], name=None)
    by_name = {each.metric.name: each for each in samples(bare)}
    assert by_name.keys() == {
        *("dynastate_batches_total", "dynastate_batch_duration_seconds", "dynastate_input_rows_total"),
        *("dynastate_batch_id", "dynastate_last_batch_timestamp_seconds"),
    }
    assert by_name["dynastate_batch_id"].labels == (ID, ID)
    on_rocksdb = report()
    on_rocksdb["stateOperators"][0]["customMetrics"] = {"rocksdbPutCount": 1}
    assert "dynastate_requests_total" not in {each.metric.name for each in samples(on_rocksdb)}


def test_prometheus(exported: Callable[..., Target]) -> None:
    """Counters are added up over batches, gauges are those of the last; labels name query and operator."""
    target = exported("prometheus:127.0.0.1:0")
    with urlopen(target.address) as answer:  # noqa: S310  # our own server
        families = list(text_string_to_metric_families(answer.read().decode()))
    by_name = {each.name: each for family in families for each in family.samples}
    labels = {"query": "orders", "query_id": ID}
    operator = labels | {"operator": "0", "operator_name": "stateStoreSave"}
    once = {each.metric.name: each.value for each in samples(report(1))}
    for metric in METRICS:
        if metric.kind == "histogram":
            assert (by_name[f"{metric.name}_sum"].value, by_name[f"{metric.name}_count"].value) == (3.0, 2)
            continue
        sample = by_name[metric.name]
        if metric.name in once:
            assert sample.value == pytest.approx(once[metric.name] * (2 if metric.kind == "counter" else 1)), metric
        assert sample.labels == (operator if metric in OPERATOR_METRICS else labels)
    assert (by_name["dynastate_query_active"].value, by_name["dynastate_query_failures_total"].value) == (0, 1)
    assert by_name["dynastate_watermark_lag_seconds"].value == 30
    assert by_name["dynastate_source_offsets_behind"].value == 12.5


class Collector:
    """A collector of OpenTelemetry, which keeps what it gets, or answers with an error."""

    def __init__(self, status: int = 200) -> None:
        got: list[tuple[str, ExportMetricsServiceRequest]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                got.append((self.path, ExportMetricsServiceRequest.FromString(body)))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Be quiet."""

        self.got = got
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def test_otlp(exported: Callable[..., Target]) -> None:
    """A collector gets sums, gauges and a histogram, by OpenTelemetry's names and units."""
    with closing(Collector()) as collector:
        exported(f"otlp:{collector.url}")
    path, request = collector.got[-1]
    assert path == "/v1/metrics"
    (resource,) = request.resource_metrics
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert named["service.name"] == "dynastate"
    by_name = {each.name: each for scope in resource.scope_metrics for each in scope.metrics}
    assert by_name.keys() == {otlp_name(each) for each in METRICS}
    (requests,) = by_name["dynastate.requests"].sum.data_points
    once = {each.metric.name: each.value for each in samples(report())}
    assert requests.as_double or requests.as_int == 2 * once["dynastate_requests_total"]
    assert {each.key: each.value.string_value for each in requests.attributes} == {
        "query": "orders",
        "query_id": ID,
        "operator": "0",
        "operator_name": "stateStoreSave",
    }
    assert (by_name["dynastate.commit"].unit, by_name["dynastate.stored"].unit) == ("s", "By")
    (durations,) = by_name["dynastate.batch_duration"].histogram.data_points
    assert (durations.count, durations.sum) == (2, 3.0)


def test_emf(exported: Callable[..., Target], capsys: pytest.CaptureFixture[str]) -> None:
    """Two lines a batch, as CloudWatch's specification has them: values of the batch, under the dimensions."""
    exported("emf", report(3))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    once = {each.metric.name.removesuffix("_total"): each.value for each in samples(report(3))}
    assert len(lines) == 2
    values = {}
    for line, dimensions in zip(lines, (["query"], ["query", "operator"]), strict=True):
        about = line["_aws"]
        assert about["Timestamp"] == 1_735_689_660_000
        (directive,) = about["CloudWatchMetrics"]
        assert set(directive) == {"Namespace", "Dimensions", "Metrics"}
        assert (directive["Namespace"], directive["Dimensions"]) == ("dynastate", [dimensions])
        assert all(isinstance(line[name], str) for name in dimensions)
        assert len(directive["Metrics"]) <= 100
        for metric in directive["Metrics"]:
            assert metric["Unit"] in {"Count", "Bytes", "Seconds", "None"}
            values[metric["Name"]] = line[metric["Name"]]
    assert values == once


def test_file(exported: Callable[..., Target], tmp_path: Path) -> None:
    """One line a batch, which `dynastate cost --progress` reads; what was there stays."""
    file = tmp_path / "progress.json"
    exported(f"file:{file}", report(0), report(1, durationMs={"triggerExecution": 1}))
    exported(f"file:{file}", report(1))
    lines = file.read_text().splitlines()
    assert [json.loads(line)["batchId"] for line in lines] == [0, 1]
    (usage,) = usage_of_queries(lines, "file", None)
    assert (usage.name, usage.batches) == ("orders", 2)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("", "a target is prometheus:PORT, otlp:URL, emf or file:PATH"),
        ("graphite:1", "a target is prometheus:PORT"),
        ("emf:stdout", "a target is prometheus:PORT"),
        ("file:", "a target is prometheus:PORT"),
        ("prometheus", "a target for Prometheus is prometheus:PORT"),
        ("prometheus:99999", "a target for Prometheus is prometheus:PORT"),
        ("otlp:localhost:4318", "a target for OpenTelemetry is otlp:URL"),
    ],
)
def test_wrong_targets_are_refused(where: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make_target(where)


def test_a_target_that_cannot_be_opened_fails_nothing(recwarn: Warned) -> None:
    """A port that another program has, an address that is not here, a file that cannot be written: a warning each."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        places = (f"prometheus:127.0.0.1:{port}", "prometheus:203.0.113.1:0", "file:/nonexistent/metrics")
        for where in places:
            exporter = Exporter(make_target(where))
            exporter.report(lambda: json.dumps(report(0)))
            exporter.wait()
            exporter.close()
    messages = [str(each.message) for each in recwarn]
    assert len(messages) == len(places)
    assert f"the metrics for Prometheus cannot be served at port {port}: " in messages[0]
    assert "the file for metrics cannot be written: " in messages[2]


class Failing(Target):
    """A target that waits until it may go on, and then fails."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.calls = 0

    def add(self, *_: Any, **__: Any) -> None:
        self.may_go_on.wait()
        self.calls += 1
        raise OSError("no space")


def test_a_slow_and_failing_target_delays_no_query(monkeypatch: pytest.MonkeyPatch, recwarn: Warned) -> None:
    """Reports are taken while it waits, and beyond the limit dropped; there is one warning."""
    warnings.simplefilter("always")
    monkeypatch.setattr(targets, "WAITING_MAX", 5)
    target = Failing()
    exporter = Exporter(target)
    for number in range(20):
        exporter.report(partial(json.dumps, report(number)))
    assert target.calls == 0
    target.may_go_on.set()
    exporter.close()
    assert 5 <= target.calls <= 6
    assert [str(each.message) for each in recwarn] == [
        "dynastate: reports come faster than they can be exported, and some are dropped; this is said once"
    ]


def test_a_report_of_another_form_is_one_warning(tmp_path: Path, recwarn: Warned) -> None:
    """Later ones are exported."""
    file = tmp_path / "progress.json"
    exporter = Exporter(make_target(f"file:{file}"))
    for text in ("{", "{}", json.dumps(report())):
        exporter.report(partial(str, text))
    exporter.close()
    assert len(file.read_text().splitlines()) == 1
    assert [str(each.message)[:36] for each in recwarn] == ["dynastate: metrics are not exported:"]


def test_a_collector_that_fails_is_one_warning(capsys: Any, caplog: Any, recwarn: Warned) -> None:
    """Nothing else is said, whatever it answers."""
    warnings.simplefilter("always")
    with closing(Collector(status=400)) as to, closing(Exporter(make_target(f"otlp:{to.url}"))) as exporter:
        for number in range(3):
            exporter.report(partial(json.dumps, report(number)))
    (warned,) = recwarn
    assert "the collector at" in str(warned.message)
    assert (capsys.readouterr().err, caplog.text) == ("", "")


def test_warnings_that_are_errors_stop_nothing() -> None:
    """A program that runs with them loses no report to the first one."""
    target = Failing()
    target.may_go_on.set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exporter = Exporter(target)
        for number in range(3):
            exporter.report(partial(json.dumps, report(number)))
        exporter.close()
    assert target.calls == 3
