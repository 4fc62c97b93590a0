"""Runs of `make test-aws` on an AWS that is faked: the deletion of their tables, signals, and the cap."""

from __future__ import annotations

import math
import os
import signal
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.errors import UnavailableError
from dynastate.settings import Settings
from tests.aws import test_alarms, test_killed_query, test_throttling
from tests.aws.place import PAUSES_S, delete_tables, ended_in_order
from tests.aws.spending import PLANNED, cap_usd, planned
from tests.support.clients import client_error
from tests.support.jvm import ROOT

SETTINGS = Settings(region="eu-west-1", delta_table="one", snapshot_table="another")
#: The answer of DynamoDB to DeleteTable, by the status of the table.
REFUSALS = {
    "CREATING": "ResourceInUseException",
    "UPDATING": "ResourceInUseException",
    "OTHERS": "LimitExceededException",
    "DENIED": "AccessDeniedException",
    "GONE": "ResourceNotFoundException",
}


class Account:
    """A boto3 client of an account with two tables: each request finds the next status of a table, the last for good.

    One whose status was ACTIVE at a request is DELETING at the next ones.
    """

    def __init__(self, one: str, another: str) -> None:
        self.statuses = {"one": one.split(), "another": another.split()}
        self.deleted: list[str] = []
        self.meta = SimpleNamespace(region_name=SETTINGS.region)

    def delete_table(self, TableName: str) -> dict[str, Any]:  # noqa: N803  # as boto3 has it
        statuses = self.statuses[TableName]
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        if status in REFUSALS:
            raise client_error(REFUSALS[status])
        if status == "ACTIVE":
            self.deleted.append(TableName)
        return {"TableDescription": {"TableStatus": "DELETING"}}

    def close(self) -> None:
        """Nothing is open."""


def delete(account: Account) -> list[float]:
    """Delete the tables of an account, and return the pauses."""
    slept: list[float] = []
    with closing(BotoTables(SETTINGS, client=account)) as tables:
        delete_tables(tables, slept.append)
    return slept


@pytest.mark.parametrize(
    ("one", "another", "deleted"),
    [
        ("ACTIVE DELETING GONE", "ACTIVE GONE", ["one", "another"]),
        ("DELETING DELETING GONE", "ACTIVE GONE", ["another"]),
        ("GONE", "CREATING OTHERS CREATING ACTIVE DELETING GONE", ["another"]),
        ("UPDATING ACTIVE GONE", "GONE", ["one"]),
    ],
)
def test_tables_are_deleted_whatever_their_status(one: str, another: str, deleted: list[str]) -> None:
    """Those that are made or changed when that is over; a deletion that is under way is awaited, not asked for."""
    account = Account(one, another)
    slept = delete(account)
    assert account.deleted == deleted
    assert account.statuses == {"one": ["GONE"], "another": ["GONE"]}
    assert len(slept) == len(f"{one} {another}".split()) - 2


@pytest.mark.parametrize(("stuck", "reason"), [("DENIED", "permission for DeleteTable"), ("CREATING", "within 121 s")])
def test_a_table_that_cannot_be_deleted_does_not_keep_the_other(stuck: str, reason: str) -> None:
    """The other one is deleted, and then the error names the one that is left, and why."""
    account = Account(stuck, "ACTIVE GONE")
    with pytest.raises(UnavailableError, match=rf"delete them by hand: one \(.*{reason}") as raised:
        delete(account)
    assert account.deleted == ["another"]
    assert "another (" not in str(raised.value)


def test_a_deletion_is_over_within_the_timeout_of_a_test() -> None:
    """Both tables together, since a fixture that ends belongs to a test."""
    assert 2 * sum(PAUSES_S) < 300


@pytest.fixture
def hangup() -> Iterator[signal.Signals]:
    handler = signal.getsignal(signal.SIGHUP)
    yield signal.SIGHUP
    signal.signal(signal.SIGHUP, handler)


def test_signals_end_a_run_as_ctrl_c_does(hangup: signal.Signals) -> None:
    """Those that were not ignored before, as `nohup` does."""
    with pytest.raises(KeyboardInterrupt), ended_in_order():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is not signal.default_int_handler
    signal.signal(hangup, signal.SIG_IGN)
    with ended_in_order():
        os.kill(os.getpid(), hangup)


@pytest.mark.parametrize("text", ["nan", "inf", "0", "-1"])
def test_a_cap_is_a_finite_number_above_0(text: str) -> None:
    """No cost is above NaN or infinity, so the cap would never end a run."""
    assert cap_usd("0.5") == 0.5
    with pytest.raises(ArgumentTypeError, match=f"CAP_USD, must be a number of dollars above 0, not {text}"):
        cap_usd(text)


def test_the_page_has_the_figures_of_a_run() -> None:
    """CONTRIBUTING names what the plan costs at most, in whole cents, and the tests' timeouts."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert f"{math.ceil(100 * planned().cost())} cents at most" in page
    timeouts = [
        (test_alarms.test_an_alarm_without_data_is_ok, "for the alarm"),
        (test_throttling.test_throttled_writes_are_durable_in_the_end, "for throttled writes"),
        (test_killed_query.test_a_killed_query_resumes_with_every_value, "for the killed query"),
    ]
    for test, name in timeouts:
        (mark,) = test.pytestmark
        assert f"{mark.args[0] // 60} min {name}" in page


def test_throttled_writes_are_more_than_a_burst() -> None:
    """DynamoDB keeps up to 300 s of capacity that is not used; beyond it a write is throttled. All are planned."""
    assert 300 * test_throttling.RATE < test_throttling.UNITS <= PLANNED["test_throttling"].write
