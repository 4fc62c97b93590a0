"""Errors that a user can act on."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from typing import Any

import botocore.exceptions as boto_errors
import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.client import make_client
from dynastate.dynamodb.retries import FIRST_CONTACT_DEADLINE_S
from dynastate.errors import ConfigurationError, UnavailableError
from dynastate.format.keys import Key
from dynastate.settings import PREFIX, Settings
from tests.conftest import REGION
from tests.contract.test_tables import parts
from tests.support.clients import Wire, lost_answer, wire_error
from tests.unit.dynamodb.conftest import Rig

OK: tuple[int, dict[str, Any]] = (200, {"UnprocessedItems": {}})


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            wire_error("ResourceNotFoundException"),
            rf"table dynastate-delta \({PREFIX}deltaTable\) does not exist in the Region us-east-1; correct ",
        ),
        (
            wire_error("AccessDeniedException", "User: arn is not authorized"),
            "denies permission for BatchWriteItem on table dynastate-delta; grant it .*User: arn is not authorized",
        ),
        (wire_error("KMSAccessDeniedException"), "denies permission for BatchWriteItem"),
        (wire_error("UnrecognizedClientException", "invalid token"), "AWS refuses the credentials: invalid token"),
        (wire_error("InvalidSignatureException"), "AWS refuses the credentials"),
        (wire_error("MissingAuthenticationTokenException"), "AWS refuses the credentials"),
        (wire_error("IncompleteSignatureException"), "AWS refuses the credentials"),
        (
            wire_error("ValidationException", "Missing the key part"),
            r"'dynastate tables check' tells whether table dynastate-delta .* has the right keys: Missing the key part",
        ),
        (
            wire_error("SomethingNewException", "what it says"),
            "refuses the request: SomethingNewException: what it says",
        ),
        (
            (404, "<html>Not found</html>"),
            f"what answers at the Region us-east-1 is not DynamoDB; check {PREFIX}endpoint",
        ),
    ],
)
def test_refusals_are_configuration_errors_at_once(rig: Callable[..., Rig], answer: Any, said: str) -> None:
    """What trying again does not mend is said after one request, with operation, table and what to do."""
    at = rig(answer)
    with pytest.raises(ConfigurationError, match=said) as refused:
        at.tables.metered(at.meter).write(parts("s", 1))
    assert re.search("operation=BatchWriteItem table=dynastate-delta(?: status=404)?$", str(refused.value))
    assert "html" not in str(refused.value)
    assert (at.meter.requests, at.clock.slept) == (1, [])


def test_a_missing_snapshot_group_table_names_its_own_setting(rig: Callable[..., Rig]) -> None:
    """Each table has its own setting, and the error names the right one, with the endpoint that was asked."""
    at = rig(wire_error("ResourceNotFoundException"), endpoint="http://127.0.0.1:1", snapshot_table="other")
    message = rf"table other \({PREFIX}snapshotTable\) .* in the Region us-east-1 of http://127\.0\.0\.1:1; "
    with pytest.raises(ConfigurationError, match=message):
        at.tables.metered(at.meter).query("snapshot", "s", "a", "b")


def test_no_region_is_said_when_the_client_is_made(dummy_credentials: None) -> None:
    with pytest.raises(ConfigurationError, match=rf"no AWS Region is known; set {PREFIX}region, or AWS_REGION"):
        BotoTables(Settings())


def test_region_of_the_environment(dummy_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting wins, then AWS_REGION, then what boto3 finds."""
    regions = []
    for name, value, region in [
        ("AWS_DEFAULT_REGION", "eu-north-1", ""),
        ("AWS_REGION", "eu-west-1", ""),
        ("AWS_REGION", "eu-west-1", "eu-central-1"),
    ]:
        monkeypatch.setenv(name, value)
        client = make_client(Settings(region=region))
        regions.append(client.meta.region_name)
        client.close()
    assert regions == ["eu-north-1", "eu-west-1", "eu-central-1"]


def test_endpoint_of_the_environment(dummy_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting wins, then DynamoDB's own variable, then AWS_ENDPOINT_URL; messages name what is used."""
    for name, port, setting in (
        ("AWS_ENDPOINT_URL", 1, ""),
        ("AWS_ENDPOINT_URL_DYNAMODB", 2, ""),
        ("AWS_ENDPOINT_URL", 3, "http://127.0.0.1:3"),
    ):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        settings = Settings(region=REGION, endpoint=setting, request_deadline_s=1)
        client = make_client(settings)
        assert client.meta.endpoint_url == f"http://127.0.0.1:{port}"
        client.close()
    monkeypatch.delenv("AWS_ENDPOINT_URL_DYNAMODB")
    tables = BotoTables(Settings(region=REGION, request_deadline_s=1))
    with pytest.raises(ConfigurationError, match=r"DynamoDB cannot be reached at http://127\.0\.0\.1:3; check"):
        tables.check()
    tables.close()


def test_wrong_profile_is_said_when_a_client_is_made(dummy_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "missing")
    with pytest.raises(ConfigurationError, match=r"check .*the AWS profile: .*missing"):
        BotoTables(Settings(region=REGION))


@pytest.mark.parametrize(
    "error",
    [
        boto_errors.EndpointConnectionError(endpoint_url="http://test"),
        boto_errors.ConnectTimeoutError(endpoint_url="http://test"),
        boto_errors.SSLError(endpoint_url="http://test", error="wrong version number"),
        lost_answer(),
        wire_error("ServiceUnavailable", status=503),
    ],
)
def test_at_first_contact_an_unreachable_endpoint_is_said_within_seconds(rig: Callable[..., Rig], error: Any) -> None:
    """Before DynamoDB has answered once, its absence is a wrong setting: said in six seconds, not at the deadline."""
    at = rig(error, endpoint="http://127.0.0.1:9", request_deadline_s=3600)
    expected = UnavailableError if isinstance(error, tuple) else ConfigurationError
    at.clock.answer_s = 0.01
    with pytest.raises(expected) as failed:
        at.tables.check()
    if expected is ConfigurationError:
        assert f"cannot be reached at http://127.0.0.1:9; check {PREFIX}endpoint" in str(failed.value)
        assert at.clock.now <= FIRST_CONTACT_DEADLINE_S + 0.1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (boto_errors.EndpointConnectionError(endpoint_url="http://test"), "Could not connect"),
        (wire_error("InternalServerError", "it broke", status=500), ".*it broke"),
        ((501, "<html>go away</html>"), "HTTP status 501, without an error of DynamoDB"),
    ],
    ids=["unreachable", "500", "a web server"],
)
def test_after_first_contact_the_deadline_is_the_users(
    rig: Callable[..., Rig], answer: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once DynamoDB has answered, an outage is waited for until the deadline, and shown without a proxy's page."""
    at = rig(OK, answer, request_deadline_s=100)
    at.tables.metered(at.meter).write(parts("s", 1))
    with pytest.raises(UnavailableError, match=f"no proper answer until the deadline: {said}"):
        at.tables.metered(at.meter).write(parts("s", 1))
    assert at.clock.now == pytest.approx(100)
    assert "html" not in caplog.text


def test_an_endpoint_that_hangs_is_given_up_in_time(rig: Callable[..., Rig]) -> None:
    """Time that passes in the request itself counts: two timeouts of two seconds each, and the third is the last."""
    at = rig(boto_errors.ConnectTimeoutError(endpoint_url="http://test"), answer_s=2.0, endpoint="http://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="cannot be reached"):
        at.tables.check()
    assert len(at.wire.requests) <= 4


@pytest.mark.parametrize("body", [{}, {"hello": "world"}, "<html>hello</html>"])
def test_an_endpoint_that_is_not_dynamodb_is_said(rig: Callable[..., Rig], body: Any) -> None:
    message = rf"what answers at http://127\.0\.0\.1:9 is not DynamoDB; check {PREFIX}endpoint"
    for ask in (
        lambda tables: tables.check(),
        lambda tables: tables.get([Key("snapshot", "s", "meta")]),
        lambda tables: tables.query("snapshot", "s", "a", "b"),
        lambda tables: list(tables.find_stores()),
    ):
        at = rig((200, body), endpoint="http://127.0.0.1:9")
        with pytest.raises(ConfigurationError, match=message):
            ask(at.tables)
        assert at.clock.slept == []


@pytest.mark.parametrize(("status", "is_at_once"), [(501, True), (405, True), (503, False)])
def test_a_web_server_at_the_endpoint_is_said_soon(rig: Callable[..., Rig], status: int, *, is_at_once: bool) -> None:
    """At once, or where it may be the outage of a proxy within the first contact; without the page that it sent."""
    at = rig((status, "<html>go away</html>"), endpoint="http://127.0.0.1:9", request_deadline_s=3600, answer_s=0.01)
    with pytest.raises(ConfigurationError, match=r"http://127\.0\.0\.1:9 is not DynamoDB") as refused:
        at.tables.check()
    assert "html" not in str(refused.value)
    assert (at.clock.slept == []) is is_at_once
    assert at.clock.now <= FIRST_CONTACT_DEADLINE_S + 0.1


def test_a_table_that_was_there_is_to_be_restored(rig: Callable[..., Rig]) -> None:
    """A table that has answered and is deleted must not be made again: that would be one without state."""
    at = rig(OK, wire_error("ResourceNotFoundException"))
    at.tables.metered(at.meter).write(parts("s", 1))
    with pytest.raises(ConfigurationError, match=r"table dynastate-delta .* was deleted .*; restore it from a backup"):
        at.tables.metered(at.meter).write(parts("s", 1))
    with pytest.raises(ConfigurationError, match=r"table dynastate-snapshot-group .* does not exist in .*make the tab"):
        at.tables.metered(at.meter).query("snapshot", "s", "a", "b")


def test_errors_name_the_host_that_answered(dummy_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where credentials tell the account, boto3 sends requests to a host of its own for it, unless that is disabled."""
    monkeypatch.setenv("AWS_ACCOUNT_ID", "123456789012")
    for mode, host in (("preferred", "123456789012.ddb"), ("disabled", "dynamodb")):
        monkeypatch.setenv("AWS_ACCOUNT_ID_ENDPOINT_MODE", mode)
        with closing(BotoTables(Settings(region=REGION))) as tables:
            Wire(tables._client._boto_client, (403, "<html>denied</html>"))
            with pytest.raises(ConfigurationError, match=rf"at https://{host}\.us-east-1\.amazonaws\.com is no"):
                tables.check()


def description(keys: list[tuple[str, str, str]], status: str = "ACTIVE") -> tuple[int, dict[str, Any]]:
    """The answer of DescribeTable for keys with these names, roles and kinds."""
    schema = [{"AttributeName": name, "KeyType": role} for name, role, _ in keys]
    kinds = [{"AttributeName": name, "AttributeType": kind} for name, _, kind in keys]
    return 200, {"Table": {"TableStatus": status, "KeySchema": schema, "AttributeDefinitions": kinds}}


@pytest.mark.parametrize(
    ("hash_key", "range_key", "kind", "status", "said"),
    [
        ("store_shard", "part", "S", "ACTIVE", []),
        ("store_shard", "part", "S", "UPDATING", []),
        ("store_shard", "part", "S", "CREATING", ["is CREATING, needed is ACTIVE"]),
        ("store_shard", "part", "B", "ACTIVE", [r"part (RANGE, B), needed are store_shard (HASH, S), part (RANGE, S)"]),
        ("store", "part", "S", "ACTIVE", ["has keys store (HASH, S), part (RANGE, S), needed"]),
        ("store_shard", None, "S", "ACTIVE", ["has keys store_shard (HASH, S), needed"]),
    ],
)
def test_check_tells_how_a_table_differs(
    rig: Callable[..., Rig], hash_key: str, range_key: str | None, kind: str, status: str, said: list[str]
) -> None:
    """Wrong names, kinds or number of keys, and a table that is not ready, are reported with what is needed."""
    keys = [(hash_key, "HASH", "S"), *([(range_key, "RANGE", kind)] if range_key else [])]
    snapshot = [("store_shard", "HASH", "S"), ("entry", "RANGE", "S")]
    drift = rig(description(keys, status), description(snapshot)).tables.check()
    assert len(drift) == len(said)
    for line, part in zip(drift, said, strict=True):
        assert line.startswith("table dynastate-delta ")
        assert part in line


def test_a_request_that_boto3_cannot_send_is_said(rig: Callable[..., Rig]) -> None:
    """An error of boto3 itself, that no retry mends, is a configuration error and not a loop."""
    at = rig(boto_errors.UnknownRegionError(region_name="x", error_msg="what it says"))
    with pytest.raises(ConfigurationError, match="boto3 cannot send this request"):
        at.tables.metered(at.meter).write(parts("s", 1))
    assert at.meter.requests == 1
