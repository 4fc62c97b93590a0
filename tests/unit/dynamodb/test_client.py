"""The client that dynastate makes beside the one that boto3 makes."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any

import boto3
import pytest

from dynastate.dynamodb.client import make_client
from dynastate.settings import Settings


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
