"""Requests to S3 that are sent without boto3, and what boto3 does in the same case."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from threading import Thread
from urllib.parse import quote, urlsplit

import botocore.exceptions as boto_errors
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from dynastate.dynamodb.client import make_s3_client_and_session
from dynastate.dynamodb.direct import Sent, Target, signed
from dynastate.dynamodb.embedded import BUCKET, EmbeddedDynamoDB
from dynastate.dynamodb.failures import code_of, status_of
from dynastate.dynamodb.object_requests import Asked, ObjectRequests
from dynastate.dynamodb.s3 import S3Objects
from dynastate.format.objects import ObjectId
from dynastate.settings import Settings
from dynastate.storage.meter import Meter
from tests.support.fault_proxy import CutError, FaultProxy, Forward, Reply, Request, let_pass
from tests.unit.dynamodb.test_http import BOTO3, DIRECT, way_of

#: All characters that names of objects have, and others that a prefix may have.
KEY = "pre fix/A.b_c-9/0/17/left#delta/1~é+x=&'()*!$,;:@"
DATA = bytes(range(256)) * 100
XML = "application/xml"


@pytest.fixture
def proxy(embedded: EmbeddedDynamoDB) -> Iterator[FaultProxy]:
    with FaultProxy(embedded.endpoint) as opened:
        yield opened


@pytest.fixture
def settings(embedded: EmbeddedDynamoDB, proxy: FaultProxy, dummy_credentials: None) -> Settings:
    return replace(embedded.settings, objects_endpoint=proxy.endpoint)


@pytest.fixture
def requests(settings: Settings, proxy: FaultProxy) -> Iterator[ObjectRequests]:
    """Requests that know how both are sent."""
    with opened(settings) as requests:
        requests.put(BUCKET, KEY, DATA)
        requests.get(BUCKET, KEY, "bytes=0-9")
        proxy.requests.clear()
        yield requests


@contextmanager
def opened(settings: Settings) -> Iterator[ObjectRequests]:
    client, session = make_s3_client_and_session(settings)
    with closing(client), closing(ObjectRequests(client, session)) as requests:
        yield requests


@pytest.mark.parametrize("token", [None, "a/session+token=="])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_signatures_are_those_of_botocore(method: str, token: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Path, header and body of an object, with and without a session token."""
    credentials = ReadOnlyCredentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token)
    host, path = "bucket.s3.eu-west-1.amazonaws.com", "/" + quote(KEY, safe="/~")
    target = Target(f"https://{host}", {"host": host}, "agent", "AKIDEXAMPLE", "eu-west-1/s3/aws4_request")
    own = {"range": "bytes=0-9"} if method == "GET" else {"x-amz-checksum-crc32": "AAAAAA=="}
    body = b"" if method == "GET" else DATA
    ours = signed(target, credentials, body, method=method, path=path, more=own)
    moment = datetime.strptime(ours["x-amz-date"], "%Y%m%dT%H%M%SZ")
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: moment)
    theirs = AWSRequest(method, f"https://{host}{path}", own, body)
    theirs.context["client_config"] = type("Config", (), {"s3": {"payload_signing_enabled": True}})
    S3SigV4Auth(credentials, "s3", "eu-west-1").add_auth(theirs)
    assert ours["authorization"] == theirs.headers["Authorization"]
    assert ours["x-amz-content-sha256"] == theirs.headers["X-Amz-Content-SHA256"] == sha256(body).hexdigest()


def test_requests_are_those_of_boto3(settings: Settings, proxy: FaultProxy) -> None:
    """The same object at the same path, with the same headers, from the second request of each on."""
    with opened(settings) as requests:
        for _ in range(2):
            requests.put(BUCKET, KEY, DATA)
            assert requests.get(BUCKET, KEY, "bytes=255-600") == DATA[255:601]
            requests.put(BUCKET, "another", b"")
    ways = [way_of(each) for each in proxy.requests]
    assert ways == [BOTO3, BOTO3, DIRECT, DIRECT, DIRECT, DIRECT]
    for first, later in ((0, 3), (1, 4), (2, 5)):
        both = proxy.requests[first], proxy.requests[later]
        assert both[0][:3] == both[1][:3]
        for name in ("host", "range", "x-amz-checksum-crc32", "x-amz-content-sha256", "user-agent"):
            assert len({each.headers.get(name, "").split(" md/")[0] for each in both}) == 1


def test_each_bucket_is_learned(requests: ObjectRequests, proxy: FaultProxy) -> None:
    """Buckets may be in different places."""
    requests.boto3.create_bucket(Bucket="another-bucket")
    proxy.requests.clear()
    for _ in range(2):
        requests.put("another-bucket", KEY, DATA)
    assert [way_of(each) for each in proxy.requests] == [BOTO3, DIRECT]
    requests.boto3.delete_object(Bucket="another-bucket", Key=KEY)
    requests.boto3.delete_bucket(Bucket="another-bucket")


def xml(status: int, code: str) -> Reply:
    return Reply(status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode(), XML)


ERRORS = (
    xml(404, "NoSuchKey"),
    xml(404, "NoSuchBucket"),
    xml(416, "InvalidRange"),
    xml(503, "SlowDown"),
    xml(500, "InternalError"),
    xml(403, "AccessDenied"),
    xml(400, "ExpiredToken"),
    Reply(503, b"<html>away</html>", "text/html"),
    Reply(404, b"", "text/html"),
)


@pytest.mark.parametrize(
    ("method", "answer"),
    [*(("GET", each) for each in ERRORS), *(("PUT", each) for each in (*ERRORS, xml(200, "InternalError")))],
    ids=lambda value: value if isinstance(value, str) else f"{value.status} {value.raw[-40:]!r}",
)
def test_errors_are_those_of_boto3(requests: ObjectRequests, proxy: FaultProxy, method: str, answer: Reply) -> None:
    """Class, code, status and text; also where S3 has begun to answer a PUT with status 200."""
    proxy.rule = lambda *_: answer
    calls: list[Callable[[], object]]
    if method == "GET":
        calls = [
            lambda: requests.get(BUCKET, KEY, "bytes=0-9"),
            lambda: requests.boto3.get_object(Bucket=BUCKET, Key=KEY, Range="bytes=0-9"),
        ]
    else:
        calls = [
            lambda: requests.put(BUCKET, KEY, DATA),
            lambda: requests.boto3.put_object(Bucket=BUCKET, Key=KEY, Body=DATA),
        ]
    found = []
    for call in calls:
        with pytest.raises(boto_errors.ClientError) as failed:
            call()
        text = str(failed.value).replace(" (reached max retries: 0)", "")
        found.append((type(failed.value).__name__, code_of(failed.value), status_of(failed.value), text))
    assert [way_of(each) for each in proxy.requests] == [DIRECT, BOTO3]
    assert found[0] == found[1]


@pytest.mark.parametrize("answer", [Reply(307, b"", XML), xml(400, "AuthorizationHeaderMalformed")])
def test_a_bucket_that_moves_is_learned_again(requests: ObjectRequests, proxy: FaultProxy, answer: Reply) -> None:
    """boto3 sends a request again whose bucket is in another place, and later ones go there."""

    def rule(request: Request, forward: Forward) -> Reply:
        return answer if len(proxy.requests) == 1 else forward(request)

    proxy.rule = rule
    for _ in range(2):
        assert requests.get(BUCKET, KEY, "bytes=0-9") == DATA[:10]
    assert [way_of(each) for each in proxy.requests] == [DIRECT, BOTO3, DIRECT]


def test_an_answer_before_the_whole_request_counts(requests: ObjectRequests, proxy: FaultProxy) -> None:
    """S3 asks to slow down, and closes, before it has read the object."""
    refusal = xml(503, "SlowDown")
    head = f"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: {len(refusal.raw)}\r\n\r\n".encode()

    def refuse(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1_000)
            connection.sendall(head + refusal.raw)

    proxy.shut()
    with socket.create_server(("127.0.0.1", proxy.port)) as listener:
        thread = Thread(target=refuse, args=(listener,))
        thread.start()
        with pytest.raises(boto_errors.ClientError) as failed:
            requests.put(BUCKET, KEY, bytes(8 * 1024 * 1024))
        thread.join()
    assert (code_of(failed.value), status_of(failed.value)) == ("SlowDown", 503)


def test_a_lost_answer_is_retried(settings: Settings, proxy: FaultProxy) -> None:
    """The connection ends after the request was sent, or in the answer; the object is read and written again."""
    object_id, cuts = ObjectId(f"s3://{BUCKET}", KEY), [0]
    short = Reply(206, DATA[:10], "binary/octet-stream", content_length=20)

    def rule(request: Request, forward: Forward) -> Reply:
        cuts[0] -= 1
        if cuts[0] in (2, 3):
            raise CutError
        return short if cuts[0] == 1 else forward(request)

    objects = S3Objects(replace(settings, request_deadline_s=20))
    with closing(objects):
        objects.put(object_id, DATA)
        assert objects.get(object_id, 0, 20) == DATA[:20]
        proxy.rule, cuts[0] = rule, 4
        meter = Meter()
        assert objects.metered(meter).get(object_id, 0, 20) == DATA[:20]
        assert (meter.gets, meter.retries, meter.object_bytes_read) == (4, 3, 20)
        proxy.rule = let_pass
        assert {way_of(each) for each in proxy.requests[-4:]} == {DIRECT}


def test_boto3_sends_all_if_it_is_asked_to(settings: Settings, proxy: FaultProxy) -> None:
    object_id = ObjectId(f"s3://{BUCKET}", KEY)
    with closing(S3Objects(replace(settings, transport="boto3"))) as objects:
        for _ in range(2):
            objects.put(object_id, DATA)
            assert objects.get(object_id, 0, 300) == DATA[:300]
    assert [way_of(each) for each in proxy.requests] == [BOTO3] * 4


PLAIN = "host;range;x-amz-content-sha256;x-amz-date"


@pytest.mark.parametrize(
    ("url", "scope", "names", "path", "deviation"),
    [
        ("https://bucket.s3.eu-west-1.amazonaws.com/a%23b", "s3", PLAIN, "/", ""),
        ("https://s3.eu-west-1.amazonaws.com/bucket/a%23b", "s3", PLAIN + ";x-amz-security-token", "/bucket/", ""),
        ("https://s3.eu-west-1.amazonaws.com/other/a%23b", "s3", PLAIN, "/other/", "the path of its URL"),
        ("https://bucket.s3.eu-west-1.amazonaws.com/a%23b", "s3express", PLAIN, "/", "its signature"),
        ("https://bucket.s3.eu-west-1.amazonaws.com/a%23b", "s3", f"{PLAIN};x-amz-request-payer", "/", "its signature"),
    ],
)
def test_what_is_not_plain_is_left_to_boto3(
    requests: ObjectRequests, url: str, scope: str, names: str, path: str, deviation: str
) -> None:
    """Buckets in the host and in the path are plain; another path, signature or signed header is not."""
    credential = f"AKID/20261128/eu-west-1/{scope}/aws4_request"
    authorization = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature=0"
    requests._by_boto3.asked = Asked("bucket", "a#b")
    pattern = requests._pattern(Sent("GET", urlsplit(url), {"authorization": authorization}))
    assert pattern is not None
    assert (pattern.kind, pattern.path, pattern.deviation) == ("GET bucket", path, deviation)
