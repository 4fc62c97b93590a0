"""The client that dynastate makes beside the one that boto3 makes."""

from __future__ import annotations

import os
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest

from dynastate.dynamodb import credentials
from dynastate.dynamodb.client import make_client, make_client_and_session, region_of
from dynastate.errors import ConfigurationError
from dynastate.settings import Settings


@pytest.fixture
def nothing_of_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment and a home without anything of AWS's, on a machine that is not AWS's."""
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(credentials, "_VENDOR", tmp_path / "vendor")


class _SentError(Exception):
    """In place of an answer."""


def request_of(client: Any) -> dict[str, Any]:
    """What a client sends, without what differs from one request to the next, or names who sends it."""
    requests: list[Any] = []

    def keep(request: Any, **_: object) -> None:
        requests.append(request)
        raise _SentError

    client.meta.events.register("before-send.dynamodb", keep)
    with closing(client), pytest.raises(_SentError):
        client.describe_table(TableName="t")
    (request,) = requests
    headers = {name.lower(): str(value) for name, value in request.headers.items()}
    for header in ("user-agent", "x-amz-date", "amz-sdk-invocation-id"):
        headers.pop(header, None)
    headers["authorization"] = re.sub(r"/\d{8}/|Signature=\w+", "", headers["authorization"])
    return {"method": request.method, "url": request.url, "body": request.body, "headers": headers}


@pytest.mark.parametrize("account", ["", "123456789012"], ids=["Region's endpoint", "account's endpoint"])
def test_client_sends_what_boto3_would(account: str, dummy_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made by botocore, boto3's core: the package boto3 around it adds transfers of S3, and time to import."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB"):
        monkeypatch.delenv(name, raising=False)
    if account:
        monkeypatch.setenv("AWS_ACCOUNT_ID", account)
    ours = make_client(Settings(region="eu-west-1"))
    theirs = boto3.session.Session().client("dynamodb", region_name="eu-west-1", config=ours.meta.config)
    request = request_of(ours)
    assert request == request_of(theirs)
    assert account in request["url"]


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000"])
def test_an_endpoint_on_this_machine_needs_no_keys(endpoint: str, nothing_of_aws: None) -> None:
    """Where nothing says who gives credentials, and which Region it is; any other endpoint needs both."""
    request = request_of(make_client(Settings(endpoint=endpoint)))
    assert "Credential=local" in request["headers"]["authorization"]
    assert "us-east-1/dynamodb" in request["headers"]["authorization"]
    assert region_of(Settings(endpoint=endpoint)) == "us-east-1"
    with pytest.raises(ConfigurationError, match="no AWS Region is known"):
        make_client(Settings(endpoint="http://dynamodb.invalid"))
    assert region_of(Settings(endpoint="http://dynamodb.invalid")) == ""
    assert (
        make_client_and_session(Settings(endpoint="http://dynamodb.invalid", region="eu-west-1"))[1]._credentials
        is None
    )


def test_keys_of_the_environment_go_before_local_ones(
    nothing_of_aws: None, dummy_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    request = request_of(make_client(Settings(endpoint="http://127.0.0.1:8000")))
    assert "Credential=mineeu-west-1" in request["headers"]["authorization"]
