"""Dashboards, rules and alarms of infra/observability compared with the metrics that are exported."""

from __future__ import annotations

import json
import re

from dynastate.operations.monitoring.metrics.table import METRICS, OPERATOR_METRICS
from dynastate.operations.monitoring.metrics.targets import NAMESPACE, emf_name
from tests.support import observability

CLOUDWATCH = observability.FOLDER / "cloudwatch"


def series() -> dict[str, set[str]]:
    """The series that Prometheus has, with their labels."""
    labels: dict[str, set[str]] = {}
    for metric in METRICS:
        names = [metric.name]
        if metric.kind == "histogram":
            names = [f"{metric.name}{end}" for end in ("_bucket", "_sum", "_count")]
        labels |= {name: {*metric.labels, *(["le"] if name.endswith("_bucket") else [])} for name in names}
    return labels


def test_expressions_are_over_exported_metrics() -> None:
    """Every panel and every rule reads series and labels that are exported; a real query's are in tests/spark."""
    labels = series()
    for place, expression in (observability.of_dashboard() | observability.of_rules()).items():
        assert observability.names(expression) <= labels.keys(), place
        for name in observability.names(expression):
            assert observability.labels(expression) <= labels[name], (place, name)


def test_the_dashboard_has_what_matters() -> None:
    panels = json.loads((observability.FOLDER / "grafana.json").read_text())["panels"]
    assert len({each["id"] for each in panels}) == len({each["title"] for each in panels}) == len(panels)
    places = [
        (x, y)
        for each in panels
        for x in range(each["gridPos"]["x"], each["gridPos"]["x"] + each["gridPos"]["w"])
        for y in range(each["gridPos"]["y"], each["gridPos"]["y"] + each["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    names = {name for expression in observability.of_dashboard().values() for name in observability.names(expression)}
    for metric in (
        "batch_duration",
        "commit",
        "rows",
        "bytes",
        "units",
        "dollars",
        "cache",
        "throttles",
        "retries",
        "lag",
    ):
        assert any(metric in name for name in names), metric


def test_cloudwatch_reads_exported_metrics() -> None:
    text = (CLOUDWATCH / "main.tf").read_text()
    assert f'namespace = "{NAMESPACE}"' in text
    metric_names = {emf_name(each.name): each in OPERATOR_METRICS for each in METRICS}
    names = set(re.findall(r"dynastate_\w+", text))
    assert len(names) > 20
    assert names <= metric_names.keys()
    panels = re.findall(r'dimensions = "([\w,]+)", metrics = \{(.*?)\} \}', text)
    assert len(panels) > 10
    for dimensions, metrics in panels:
        for name in re.findall(r"(dynastate_\w+) =", metrics):
            assert dimensions == ("query,operator" if metric_names[name] else "query"), name
    for key, of_operator in (("metrics", False), ("operators", True)):
        for block in re.findall(rf"^      {key} += \{{(.*?)\}}\n", text, re.MULTILINE | re.DOTALL):
            for name in re.findall(r'name = "(\w+)"', block):
                assert metric_names[name] is of_operator, name
