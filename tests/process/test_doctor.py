"""Checks of engines: sound ones pass, and each check fails on one that is broken in its way."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from dynastate.dynamodb.admin import create_tables
from dynastate.dynamodb.embedded import REGION, EmbeddedDynamoDB
from dynastate.dynamodb.probe import Probe
from dynastate.errors import UnavailableError
from dynastate.operations.doctor import diagnosis
from dynastate.operations.doctor.checks import CHECKS
from dynastate.operations.doctor.diagnosis import Diagnosis, diagnose
from dynastate.settings import Settings
from tests.support.command_line import run, shown
from tests.support.dynoxide import Dynoxide
from tests.support.fault_proxy import FaultProxy, Forward, Reply, Request, Rule, error
from tests.support.jvm import ROOT
from tests.support.processes import free_port

OK = 200
pytestmark = pytest.mark.usefixtures("dummy_credentials")


def check(settings: Settings) -> Diagnosis:
    """Run all checks; what they wrote must be gone."""
    with closing(Probe(settings)) as probe:
        report = diagnose(probe)
        assert probe.clean() == 0
    return report


def failed(report: Diagnosis) -> set[str]:
    return {each.name for each in report.checks if each.verdict == "fail"}


@pytest.mark.slow
def test_a_sound_engine_passes(embedded: EmbeddedDynamoDB) -> None:
    """The embedded DynamoDB, which serves one request at a time; or DynamoDB Local, with its option."""
    progress: list[tuple[int, int]] = []
    with closing(Probe(embedded.settings)) as probe:
        report = diagnose(probe, lambda *counts: progress.append(counts))
    assert failed(report) == set()
    assert report.is_trustworthy
    assert progress[-1] == (len(CHECKS), len(CHECKS))
    assert len(report.checks) == len(CHECKS) >= 30
    assert min(report.figures.values()) > 0
    assert report.unchecked


@pytest.mark.slow
def test_dynoxide_passes(tmp_path: Path) -> None:
    """The engine of our tests of Spark, without a warning of its own."""
    byte_count = 0

    def count(request: Request, forward: Forward) -> Reply:
        nonlocal byte_count
        byte_count += int(request.headers["content-length"])
        return forward(request)

    with Dynoxide(tmp_path / "dynoxide") as dynoxide, FaultProxy(dynoxide.endpoint, count) as proxy:
        dynoxide.create_tables()
        report = check(replace(dynoxide.settings, endpoint=proxy.endpoint))
    # The proxy leaves out the checksums, since rules change answers.
    assert [each.name for each in report.checks if each.verdict != "pass"] == ["checksums of answers"]
    page = (ROOT / "docs" / "engines.md").read_text()
    assert f"{len(CHECKS)} times" in page
    assert byte_count < 20_000_000
    assert "writes below 20 MB" in page


@pytest.mark.slow
def test_stock_moto_fails() -> None:
    """It loses acknowledged writes of several clients."""
    settings = Settings(endpoint=f"http://127.0.0.1:{free_port()}", region=REGION)
    server = ThreadedMotoServer("127.0.0.1", int(settings.endpoint.rpartition(":")[2]), verbose=False)
    interval = sys.getswitchinterval()
    server.start()
    try:
        create_tables(settings)
        sys.setswitchinterval(1e-5)  # so that its threads meet
        report = check(settings)
    finally:
        sys.setswitchinterval(interval)
        server.stop()
    assert "updates at once" in failed(report)
    assert not report.is_trustworthy
    assert report.figures == {}


def sent(operation: str, change: Callable[[dict[str, Any]], object]) -> Rule:
    """Requests of an operation have another body."""

    def rule(request: Request, forward: Forward) -> Reply:
        if request.operation == operation:
            change(request.body)
        return forward(request)

    return rule


def answered(operation: str, change: Callable[[dict[str, Any]], object]) -> Rule:
    """Answers to an operation have another body."""

    def rule(request: Request, forward: Forward) -> Reply:
        reply = forward(request)
        if request.operation == operation:
            body = json.loads(reply.raw)
            change(body)
            reply = reply._replace(raw=json.dumps(body).encode())
        return reply

    return rule


def without_conditions(request: Request, forward: Forward) -> Reply:
    if request.operation in ("PutItem", "DeleteItem", "UpdateItem"):
        request.body.pop("ConditionExpression", None)
        if request.operation != "UpdateItem":
            request.body.pop("ExpressionAttributeNames", None)
            request.body.pop("ExpressionAttributeValues", None)
        else:
            request.body.get("ExpressionAttributeNames", {}).pop("#refused", None)
            request.body.get("ExpressionAttributeValues", {}).pop(":run", None)
    return forward(request)


def whole_items(request: Request, forward: Forward) -> Reply:
    request.body.pop("ProjectionExpression", None)
    return forward(request)


def no_deletes(request: Request, forward: Forward) -> Reply:
    if request.operation == "DeleteItem" and "ConditionExpression" not in request.body:
        return Reply(200, b"{}")
    return forward(request)


def stale_reads() -> Rule:
    last: list[Reply] = []

    def rule(request: Request, forward: Forward) -> Reply:
        if request.operation != "GetItem":
            return forward(request)
        last.append(forward(request))
        return last[-2] if len(last) > 1 else last[-1]

    return rule


def lost(operation: str, period: int) -> Rule:
    """Every some-th request of a kind is answered as the one before it was, and not applied."""
    count, lock = itertools.count(1), threading.Lock()
    last: list[Reply] = []

    def rule(request: Request, forward: Forward) -> Reply:
        if request.operation != operation:
            return forward(request)
        with lock:
            if next(count) % period == 0 and last:
                return last[-1]
            reply = forward(request)
            if reply.status == OK:
                last.append(reply)
            return reply

    return rule


def small_numbers(request: Request, forward: Forward) -> Reply:
    reply = forward(request)
    return reply._replace(raw=reply.raw.replace(b"9223372036854775807", b"9223372036854775808"))


def cut_bytes(body: dict[str, Any]) -> None:
    for value in body["Item"].values():
        if "B" in value:
            value["B"] = value["B"][:400]


def sort_lists(body: dict[str, Any]) -> None:
    for value in body.get("Item", {}).values():
        if "L" in value:
            value["L"].sort(key=repr)


def without_maps(body: dict[str, Any]) -> None:
    if "epochs" in body["UpdateExpression"]:
        body["ConditionExpression"] = "attribute_exists(epochs)"
        for name in (":before", ":deleting"):
            del body["ExpressionAttributeValues"][name]


def another_error(request: Request, forward: Forward) -> Reply:
    reply = forward(request)
    if reply.status == 400 and b"ResourceNotFoundException" in reply.raw:
        return error("ValidationException", "there is no such table")
    return reply


def no_batches(request: Request, forward: Forward) -> Reply:
    if request.operation == "BatchWriteItem" and "PutRequest" in json.dumps(request.body):
        return error("AccessDeniedException", "not allowed")
    return forward(request)


#: Checks that write what others read.
NEEDED = {
    "ranges of sort keys": ("order of sort keys",),
    "keys without values": ("pages of 1 MB",),
    "batches of reads": ("batches of writes",),
    "batches of writes": ("puts at once",),
}
#: Engines that are broken, each with checks that fail on it.
BROKEN: dict[str, tuple[Callable[[], Rule], set[str]]] = {
    "conditions are ignored": (
        lambda: without_conditions,
        {
            "conditions on new items",
            "conditions on values",
            "conditions on deletes",
            "refused runs",
            "conditions at once",
        },
    ),
    "another order": (
        lambda: sent("Query", lambda body: body.update(ScanIndexForward=False)),
        {"order of sort keys", "ranges of sort keys", "pages of 1 MB"},
    ),
    "one page": (lambda: answered("Query", lambda body: body.pop("LastEvaluatedKey", None)), {"pages of 1 MB"}),
    "ranges without an end": (
        lambda: sent("Query", lambda body: body["ExpressionAttributeValues"].update({":high": {"S": "~~~~"}})),
        {"ranges of sort keys"},
    ),
    "whole items": (lambda: whole_items, {"keys without values"}),
    "no deletes": (lambda: no_deletes, {"deleted items"}),
    "stale reads": (stale_reads, {"read after write"}),
    "lost updates": (lambda: lost("UpdateItem", 50), {"updates at once"}),
    "lost appends": (lambda: lost("UpdateItem", 7), {"appended entries"}),
    "lost batches": (lambda: lost("BatchWriteItem", 10), {"puts at once"}),
    "lost batch": (lambda: lost("BatchWriteItem", 41), {"batches of writes"}),
    "wrong numbers": (lambda: small_numbers, {"numbers"}),
    "cut bytes": (lambda: sent("PutItem", cut_bytes), {"binary values", "large items"}),
    "empty batches": (
        lambda: answered("BatchGetItem", lambda body: [items.clear() for items in body.get("Responses", {}).values()]),
        {"batches of reads"},
    ),
    "lists as sets": (lambda: answered("GetItem", sort_lists), {"lists, sets and maps"}),
    "no conditions on maps": (lambda: sent("UpdateItem", without_maps), {"conditions on maps"}),
    "another error": (lambda: another_error, {"missing table"}),
    "a verb that is not allowed": (lambda: no_batches, {"permissions of reads and writes"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_engine_fails(name: str, embedded: EmbeddedDynamoDB, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, checks = BROKEN[name]
    names = checks | {each for check in checks for each in NEEDED.get(check, ())}
    monkeypatch.setattr(diagnosis, "CHECKS", [each for each in CHECKS if each.name in names])
    with FaultProxy(embedded.endpoint, rule()) as proxy, closing(Probe(settings_of(proxy))) as probe:
        report = diagnose(probe)
    assert checks <= failed(report)
    assert not report.is_trustworthy


def settings_of(proxy: FaultProxy) -> Settings:
    return Settings(endpoint=proxy.endpoint, region=REGION)


def test_each_check_that_fails_has_an_engine_that_fails_it() -> None:
    """Except the tables', which has a test of its own."""
    names = set().union(*(checks for _, checks in BROKEN.values()))
    assert names | {"tables"} == {each.name for each in CHECKS if not each.is_warning}


def test_tables_that_are_missing_end_the_checks(embedded: EmbeddedDynamoDB) -> None:
    with closing(Probe(Settings(endpoint=embedded.endpoint, region=REGION, delta_table="missing"))) as probe:
        report = diagnose(probe)
    assert [each.name for each in report.checks] == ["tables"]
    assert failed(report) == {"tables"}
    assert "ResourceNotFoundException" in report.checks[0].seen


def test_an_engine_that_does_not_answer_is_an_error() -> None:
    with (
        closing(Probe(Settings(endpoint=f"http://127.0.0.1:{free_port()}", region=REGION))) as probe,
        pytest.raises(UnavailableError, match="the engine does not answer"),
    ):
        diagnose(probe)


def test_command_shows_findings(embedded: EmbeddedDynamoDB, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exit code is 1 where a check failed."""
    for name, value in {"COLUMNS": "80", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    names = ("tables", "deleted items", "read after write", "batches of more than 25 writes")
    monkeypatch.setattr(diagnosis, "CHECKS", [each for each in CHECKS if each.name in names])
    options = ("--endpoint", embedded.endpoint, "--region", REGION)
    result = run("doctor", *options)
    assert result.code == 0
    text = " ".join(result.out.split())
    assert "pass read after write" in text
    assert "warning batches of more than 25 writes: accepted, not refused" in text
    assert "not checked: durability" in text
    assert text.endswith("dynastate can keep state here")
    answer = shown("doctor", *options, "--namespace", "mine")
    assert answer["trustworthy"] is True
    result = run("doctor", *options, "--delta-table", "missing")
    assert (result.code, "1 check failed: do not keep state here" in result.out) == (1, True)
