"""Exported metrics of a real query, and the dashboard and alert rules over them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

import dynastate
from dynastate.operations.monitoring.metrics.table import METRICS
from dynastate.operations.monitoring.reports import usage_of_queries
from tests.spark.conftest import Sessions
from tests.spark.operators import sums
from tests.spark.streams import make_source
from tests.support import observability
from tests.support.processes import free_port, wait_until

FILES = 3
#: Metrics that a query over files has not: what Kafka's sources report.
OF_KAFKA = {"dynastate_source_offsets_behind"}
ANSWERED_WITHIN_S = 15


def scrape(address: str) -> list[Sample]:
    with urlopen(address) as answer:  # noqa: S310  # our own server
        return [each for family in text_string_to_metric_families(answer.read().decode()) for each in family.samples]


def test_metrics_of_a_query(sessions: Sessions, folder: Path) -> None:
    """Prometheus has every metric of each batch, and the file its report; every expression is over these metrics."""
    session = sessions({"spark.sql.shuffle.partitions": "2"})
    source, file = make_source(folder / "files", seed=3, files=FILES), folder / "progress.json"
    source.release()
    with (
        dynastate.export_metrics(session, "prometheus:127.0.0.1:0") as exporter,
        dynastate.export_metrics(session, f"file:{file}"),
    ):
        query = (
            sums(source.stream(session).withWatermark("at", "10 seconds"))
            .writeStream.queryName("orders")
            .outputMode("update")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .format("noop")
            .start()
        )
        query.awaitTermination()
        wait_until(
            lambda: [each.value for each in scrape(exporter.address) if each.name == "dynastate_query_active"] == [0],
            "the end of the query is not exported",
        )
        wait_until(lambda: file.read_text().count("\n") >= FILES, "the reports are not in the file")
        samples = scrape(exporter.address)
        check_expressions(samples)
        check_in_prometheus(exporter.address, folder)
    reports = [json.loads(line) for line in file.read_text().splitlines()]
    (usage,) = usage_of_queries(file.read_text().splitlines(), "file", None)
    values = {each.name: each.value for each in samples}
    assert values["dynastate_batches_total"] == len(reports) == usage.batches
    assert values["dynastate_batch_duration_seconds_count"] == len(reports)
    assert values["dynastate_input_rows_total"] == sum(each["numInputRows"] for each in reports) > 0
    assert values["dynastate_requests_total"] + values["dynastate_maintenance_requests_total"] == usage.requests
    assert values["dynastate_cost_dollars_total"] == pytest.approx(usage.dollars)
    assert values["dynastate_stored_bytes"] == usage.stored.bytes
    assert values["dynastate_state_rows"] == reports[-1]["stateOperators"][0]["numRowsTotal"]
    assert {each.labels["query"] for each in samples if "query" in each.labels} == {"orders"}
    assert {each.name for each in METRICS if each.kind != "histogram"} - OF_KAFKA <= values.keys()
    with pytest.raises(OSError, match="refused"):
        scrape(exporter.address)


def check_expressions(samples: list[Sample]) -> None:
    """Hold every expression of the dashboard and of the rules to the names and labels that were exported."""
    labels: dict[str, set[str]] = {name: {"query", "query_id"} for name in OF_KAFKA}
    for sample in samples:
        labels.setdefault(sample.name, set()).update(sample.labels)
    expressions = observability.of_dashboard() | observability.of_rules()
    assert len(expressions) > 40
    for place, expression in expressions.items():
        names = observability.names(expression)
        assert names, place
        assert names <= labels.keys(), (place, names - labels.keys())
        for name in names:
            assert observability.labels(expression) <= labels[name], (place, name)


def check_in_prometheus(address: str, folder: Path) -> None:
    """Let a real Prometheus, where there is one, as in CI, take the metrics, and answer every expression."""
    if shutil.which("prometheus") is None:
        assert not os.environ.get("CI"), "Prometheus is missing: apt-get install prometheus"
        return
    with prometheus(address, folder) as api:

        def ask(expression: str) -> list[object]:
            with urlopen(f"{api}/query?{urlencode({'query': expression})}") as answer:  # noqa: S310  # our own
                result: list[object] = json.loads(answer.read())["data"]["result"]
                return result

        wait_until(lambda: bool(ask("rate(dynastate_batches_total[1m])")), "there are no metrics", ANSWERED_WITHIN_S)
        for place, expression in observability.of_dashboard().items():
            is_empty = observability.names(expression) & OF_KAFKA or "query_active == 1" in expression
            assert bool(ask(expression)) != bool(is_empty), place
        for expression in observability.of_rules().values():
            ask(expression)


@contextmanager
def prometheus(address: str, folder: Path) -> Iterator[str]:
    target = address.removeprefix("http://").removesuffix("/metrics")
    config = {
        "global": {"scrape_interval": "1s"},
        "rule_files": [str(observability.RULES)],
        "scrape_configs": [{"job_name": "dynastate", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port = free_port()
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={"PATH": os.environ["PATH"]})
    try:
        api = f"http://127.0.0.1:{port}"

        def is_ready() -> bool:
            try:
                with urlopen(f"{api}/-/ready"):  # noqa: S310  # our own
                    return True
            except OSError:
                return False

        wait_until(is_ready, "Prometheus did not start", ANSWERED_WITHIN_S)
        yield f"{api}/api/v1"
    finally:
        process.terminate()
        process.wait(ANSWERED_WITHIN_S)


@pytest.mark.skipif(
    shutil.which("promtool") is None and not os.environ.get("CI"),
    reason="promtool is missing: apt-get install prometheus",
)
def test_promtool_accepts_the_rules() -> None:
    completed = subprocess.run(
        ["promtool", "check", "rules", str(observability.RULES)], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.mark.every_spark
def test_a_failed_query_is_counted(sessions: Sessions, folder: Path) -> None:
    """Its end and its error are exported; the error is the query's own."""
    session = sessions({})
    source = make_source(folder / "files", seed=3, files=1)
    source.release()
    with dynastate.export_metrics(session, "prometheus:127.0.0.1:0") as exporter:
        query = (
            source.stream(session)
            .selectExpr("assert_true(id < 0)")
            .writeStream.queryName("fails")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .format("noop")
            .start()
        )
        with pytest.raises(Exception, match="is not true"):
            query.awaitTermination()

        def failures() -> list[float]:
            return [each.value for each in scrape(exporter.address) if each.name == "dynastate_query_failures_total"]

        wait_until(lambda: failures() == [1], "the failure is not exported")
