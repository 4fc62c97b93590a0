"""An alarm as the Terraform module makes it, evaluated by CloudWatch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3.session
import pytest

from tests.aws.place import Place
from tests.aws.spending import PLANNED

#: CloudWatch evaluates a new alarm within some minutes.
DEADLINE_S = 900
EXPRESSION = "SUM(FILL(METRICS(), 0))"


@pytest.fixture
def cloudwatch(place: Place) -> Iterator[Any]:
    if place.is_local:
        pytest.skip("DynamoDB Local has no CloudWatch")
    place.ledger.add(PLANNED["test_alarms"])
    client = boto3.session.Session().client("cloudwatch", region_name=place.settings.region)
    yield client
    client.close()


@pytest.mark.timeout(DEADLINE_S + 300)
def test_an_alarm_without_data_is_ok(place: Place, cloudwatch: Any) -> None:
    """The expression of infra/alarms.tf counts no throttles where DynamoDB sends no metric: the state is OK."""
    name = f"{place.settings.delta_table}-write-throttles"
    metric = {
        "Namespace": "AWS/DynamoDB",
        "MetricName": "WriteThrottleEvents",
        "Dimensions": [{"Name": "TableName", "Value": place.settings.delta_table}],
    }
    try:
        cloudwatch.put_metric_alarm(
            AlarmName=name,
            ComparisonOperator="GreaterThanThreshold",
            Threshold=10,
            EvaluationPeriods=6,
            DatapointsToAlarm=2,
            Metrics=[
                {"Id": "counted", "Expression": EXPRESSION, "Label": "throttles", "ReturnData": True},
                {"Id": "events", "MetricStat": {"Metric": metric, "Period": 300, "Stat": "Sum"}, "ReturnData": False},
            ],
        )
        deadline, state = time.monotonic() + DEADLINE_S, ""
        while state != "OK":
            assert time.monotonic() < deadline, f"the alarm is {state}"
            assert state != "ALARM", "an alarm without a throttle"
            time.sleep(10)
            state = cloudwatch.describe_alarms(AlarmNames=[name])["MetricAlarms"][0]["StateValue"]
    finally:
        cloudwatch.delete_alarms(AlarmNames=[name])


def test_the_expression_is_the_modules() -> None:
    """The alarm that is tried here is evaluated as those that Terraform makes."""
    source = (Path(__file__).parents[2] / "infra" / "alarms.tf").read_text()
    assert f'"{EXPRESSION}"' in source
