"""Credentials that are late, missing, expired or refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.client import make_client_and_session
from dynastate.dynamodb.embedded import EmbeddedDynamoDB
from dynastate.dynamodb.retries import FIRST_CONTACT_DEADLINE_S, RetryPolicy
from dynastate.engine.updates import append_version
from dynastate.errors import ConfigurationError, UnavailableError
from dynastate.format.keys import version_list_key
from dynastate.settings import Settings
from dynastate.storage.meter import Meter
from tests.conftest import REGION
from tests.contract.test_tables import parts
from tests.support.clock import Clock, Longest
from tests.support.credential_services import CredentialServices
from tests.support.fault_proxy import FaultProxy, Forward, Reply, Request, error

DEADLINE_S = 20


@pytest.fixture(autouse=True)
def no_keys(dummy_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials but those that a service gives."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)


@pytest.fixture
def proxy(embedded: EmbeddedDynamoDB) -> Iterator[FaultProxy]:
    """A DynamoDB that knows that the access key OLD has expired."""

    def rule(request: Request, forward: Forward) -> Reply:
        if "Credential=OLD/" in request.headers["authorization"]:
            return error("ExpiredTokenException", "The security token included in the request is expired")
        return forward(request)

    with FaultProxy(embedded.endpoint, rule) as opened:
        yield opened


@pytest.fixture
def clock() -> Clock:
    """Time that passes by sleeping, and half a second at each look."""
    return Clock(answer_s=0.5)


@pytest.fixture
def tables_by(
    embedded: EmbeddedDynamoDB, proxy: FaultProxy, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., BotoTables]]:
    """Make tables whose credentials are those of services."""
    with ExitStack() as opened:

        def make(*keys: str | None, **services: Any) -> BotoTables:
            running = opened.enter_context(CredentialServices(*keys, **services))
            for name, value in running.environment.items():
                monkeypatch.setenv(name, value)
            retries = RetryPolicy(DEADLINE_S, clock=clock, sleep=clock.sleep, randomness=Longest())
            tables = BotoTables(replace(embedded.settings, endpoint=proxy.endpoint), retries=retries)
            opened.callback(tables.close)
            return tables

        yield make


@pytest.fixture
def role(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A web identity, as a pod has it by IRSA: STS gives credentials for it."""
    token = tmp_path / "token"
    token.write_text("token")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/spark")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))


def test_a_slow_metadata_service_is_waited_for(tables_by: Callable[..., BotoTables], store: str) -> None:
    """The metadata service of a machine may take longer than a second, which is how long boto3 waits for it."""
    meter = Meter()
    tables_by("KEY", answer_s=1.2).metered(meter).write(parts(store, 1))
    assert (meter.requests, meter.retries) == (1, 0)


def test_credentials_that_come_later_are_found(tables_by: Callable[..., BotoTables], store: str, clock: Clock) -> None:
    """boto3 looks for credentials once for each client: without some, the next try has a new one."""
    meter = Meter()
    tables_by(None, None, None, None, "KEY").metered(meter).write(parts(store, 1))
    assert (meter.requests, meter.throttles) == (meter.retries + 1, 0)
    assert meter.retries >= 1


def test_expired_credentials_are_replaced(
    tables_by: Callable[..., BotoTables], store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where DynamoDB says that they have expired, boto3 is made to look for others."""
    meter = Meter()
    tables_by("OLD", "NEW").metered(meter).write(parts(store, 1))
    assert (meter.requests, meter.retries, meter.throttles) == (2, 1, 0)
    assert "DynamoDB cannot be asked: AWS refuses the credentials: The security token included in" in caplog.text


def test_a_commit_without_credentials_surely_did_not_happen(tables_by: Callable[..., BotoTables], store: str) -> None:
    """Nothing was sent to DynamoDB, so the commit's outcome is known."""
    tables, meter = tables_by("OLD"), Meter()
    tables.expect_answers()
    with pytest.raises(
        UnavailableError, match=r"AWS refuses the credentials: The security token .* expired.*UpdateItem"
    ):
        append_version(tables.metered(meter), version_list_key(store, 1), b"entry", "run-1")


def test_missing_credentials_are_reported_soon(tables_by: Callable[..., BotoTables], store: str, clock: Clock) -> None:
    """Until DynamoDB has answered, a machine without a role is likelier than a service that is away."""
    with pytest.raises(
        ConfigurationError, match="no AWS credentials: boto3's standard chain found none that are valid"
    ):
        tables_by(None).write(parts(store, 1))
    assert clock.now < 2 * FIRST_CONTACT_DEADLINE_S


def test_missing_credentials_are_waited_for(tables_by: Callable[..., BotoTables], store: str, clock: Clock) -> None:
    """Of a query that runs, the credentials were there a moment ago."""
    tables = tables_by(None)
    tables.expect_answers()
    with pytest.raises(UnavailableError, match=r"no AWS credentials: .*tries="):
        tables.write(parts(store, 1))
    assert clock.now >= DEADLINE_S


@pytest.mark.usefixtures("role")
@pytest.mark.parametrize("refusals", [("Throttling",), ("IDPCommunicationError", "ExpiredTokenException")])
def test_throttles_of_sts_are_no_throttles_of_the_table(
    tables_by: Callable[..., BotoTables], store: str, refusals: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """They are retried, and told as STS's."""
    meter = Meter()
    tables_by("KEY", refusals=refusals).metered(meter).write(parts(store, 1))
    assert (meter.retries, meter.throttles) == (len(refusals), 0)
    assert f"AWS STS gives no credentials for the role of this machine: {refusals[0]}" in caplog.text


@pytest.mark.usefixtures("role")
def test_a_role_that_sts_refuses_is_reported_at_once(tables_by: Callable[..., BotoTables], store: str) -> None:
    """A trust policy that does not let the machine in is no missing permission on the table."""
    meter = Meter()
    with pytest.raises(ConfigurationError, match=r"AWS STS gives no credentials for the role .*: AccessDenied"):
        tables_by("KEY", refusals=("AccessDenied",) * 9).metered(meter).write(parts(store, 1))
    assert meter.requests == 1


@pytest.mark.usefixtures("role")
def test_an_sts_that_cannot_be_reached_is_named(
    tables_by: Callable[..., BotoTables], store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without NAT, STS needs an endpoint in the VPC, as DynamoDB does."""
    tables = tables_by("KEY")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://sts.localhost:9")
    with pytest.raises(
        ConfigurationError, match=r"AWS STS gives no credentials .*: Could not connect .*sts\.localhost"
    ):
        tables.write(parts(store, 1))


def test_credentials_that_cannot_be_read_are_said_at_once(role: None, tmp_path: Path) -> None:
    """As where a pod's token is not mounted: the error names the file, and nothing of it is a defect."""
    (tmp_path / "token").unlink()
    meter = Meter()
    with (
        closing(BotoTables(Settings(region=REGION))) as tables,
        pytest.raises(ConfigurationError, match=f"AWS credentials cannot be read, .*{tmp_path / 'token'}.*BatchWrite"),
    ):
        tables.metered(meter).write(parts("s", 1))
    assert meter.requests == 1


def test_clients_have_credentials_of_their_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two in one process have those of different ones; without a profile they are of the environment."""
    file = tmp_path / "credentials"
    file.write_text(
        "".join(f"[{name}]\naws_access_key_id = key-{name}\naws_secret_access_key = s\n" for name in ("old", "new"))
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_PROFILE", "old")
    settings = Settings(region="us-east-1")
    keys = [make_client_and_session(settings, name)[1].get_credentials().access_key for name in ("", "new", "old")]
    assert keys == ["key-old", "key-new", "key-old"]
    with pytest.raises(ConfigurationError, match="the AWS profile"):
        make_client_and_session(settings, "missing")
