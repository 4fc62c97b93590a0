"""Requests that are sent without boto3, and what boto3 does in the same case."""

from __future__ import annotations

import gc
import json
import random
import socket
from base64 import b64encode
from binascii import crc32
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import botocore.exceptions as boto_errors
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from botocore.parsers import ResponseParserError

from dynastate.dynamodb import client as client_module
from dynastate.dynamodb import direct as direct_module
from dynastate.dynamodb import http as http_module
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.client import Client, make_client
from dynastate.dynamodb.direct import Target, signed
from dynastate.dynamodb.embedded import EmbeddedDynamoDB
from dynastate.dynamodb.failures import Fate, fate_of
from dynastate.dynamodb.http import HOT
from dynastate.dynamodb.wire import to_wire
from dynastate.errors import ConfigurationError
from dynastate.format.items import Item
from dynastate.settings import DELTA_TABLE, SNAPSHOT_TABLE, Settings
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables
from tests.conftest import REGION
from tests.contract.test_tables import parts
from tests.support.certificates import context_of, make_certificate
from tests.support.credential_services import CredentialServices
from tests.support.fault_proxy import CutError, FaultProxy, Forward, Reply, Request, error, let_pass
from tests.support.processes import wait_until

BOTO3, DIRECT = "boto3", "direct"
KEY: Item = {"store_shard": "requests#0", "part": "a"}
ITEM: Item = KEY | {"data": bytes(range(256)), "no": b"", "list": [b"", b"two"], "map": {"B": "t", "n": 1}, "n": 2**63}
#: A request of each operation that is sent without boto3.
REQUESTS: dict[str, dict[str, Any]] = {
    "batch_write_item": {"RequestItems": {DELTA_TABLE: [{"PutRequest": {"Item": to_wire(ITEM)}}]}},
    "batch_get_item": {"RequestItems": {DELTA_TABLE: {"Keys": [to_wire(KEY)], "ConsistentRead": True}}},
    "query": {
        "TableName": DELTA_TABLE,
        "KeyConditionExpression": "store_shard = :h",
        "ExpressionAttributeValues": {":h": {"S": "requests#0"}},
    },
    "put_item": {"TableName": DELTA_TABLE, "Item": to_wire(ITEM)},
    "update_item": {
        "TableName": SNAPSHOT_TABLE,
        "Key": to_wire({"store_shard": "requests#0", "entry": "é"}),
        "UpdateExpression": "SET versions = :entry",
        "ExpressionAttributeValues": to_wire({":entry": [b"\x00\xff"]}),
        "ReturnValues": "ALL_NEW",
    },
}
WRITE = REQUESTS["batch_write_item"]


class Way(NamedTuple):
    """One of the two ways, and clients that send by it: they have sent each operation once."""

    name: str
    client: Callable[..., Client]


@pytest.fixture(params=[BOTO3, DIRECT])
def way(request: pytest.FixtureRequest, dummy_credentials: None) -> Iterator[Way]:
    with ExitStack() as opened:

        def make(settings: Settings) -> Client:
            client = Client(replace(settings, transport=request.param))
            opened.callback(client.close)
            for operation, arguments in REQUESTS.items():
                client.send(operation, **arguments)
            return client

        yield Way(request.param, make)


@pytest.fixture
def proxy(embedded: EmbeddedDynamoDB) -> Iterator[FaultProxy]:
    with FaultProxy(embedded.endpoint) as opened:
        yield opened


@pytest.fixture
def settings(embedded: EmbeddedDynamoDB, proxy: FaultProxy) -> Settings:
    return replace(embedded.settings, endpoint=proxy.endpoint)


def way_of(request: Request) -> str:
    """Only boto3 gives its requests an id."""
    return BOTO3 if "amz-sdk-invocation-id" in request.headers else DIRECT


def access_key_of(request: Request) -> str:
    return request.headers["authorization"].split("Credential=")[1].split("/")[0]


def fails(client: Client, operation: str = "batch_write_item") -> Exception:
    """Send a request that fails: its error."""
    with pytest.raises((boto_errors.BotoCoreError, boto_errors.ClientError, ResponseParserError)) as failed:
        client.send(operation, **REQUESTS[operation])
    error: Exception = failed.value
    return error


@pytest.mark.parametrize("token", [None, "a/session+token=="])
@pytest.mark.parametrize("url", ["https://1.ddb.eu-west-1.amazonaws.com", "http://127.0.0.1:8000", "https://a.b:443"])
def test_signatures_are_those_of_botocore(url: str, token: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same key, headers and body have the same signature, with and without a session token."""
    seed = 17
    dice = random.Random(seed)  # noqa: S311  # the same bodies at every run
    credentials = ReadOnlyCredentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token)
    host = url.partition("//")[2].removesuffix(":443")
    common = {"content-type": "application/x-amz-json-1.0", "host": host, "x-amz-target": "DynamoDB_20120810.Query"}
    target = Target(url, common, "agent", "AKIDEXAMPLE", "eu-west-1/dynamodb/aws4_request")
    for size in (2, 1_000, 100_000):
        body = dice.randbytes(size)
        ours = signed(target, credentials, body)
        signing_time = datetime.strptime(ours["x-amz-date"], "%Y%m%dT%H%M%SZ")
        monkeypatch.setattr("botocore.auth.get_current_datetime", lambda moment=signing_time: moment)
        theirs = AWSRequest("POST", url + "/", {name: common[name] for name in common if name != "host"}, body)
        SigV4Auth(credentials, "dynamodb", "eu-west-1").add_auth(theirs)
        assert ours["authorization"] == theirs.headers["Authorization"], f"seed {seed}"
        assert ours.get("x-amz-security-token") == theirs.headers.get("X-Amz-Security-Token")


def test_bodies_are_json_with_base64() -> None:
    """Bytes of any length and number, and texts that are escaped, are where they were."""
    values = [b"", b"\x00", '\ud83d\ude00 \\ud800 "', bytes(range(256)) * 100, "ud800", "\\ud800", b"\xff\xfe"]
    arguments = {"Items": [{"v": {"B" if isinstance(each, bytes) else "S": each}} for each in values]}
    plain = json.dumps(arguments, default=lambda value: b64encode(value).decode())
    assert http_module.encoded(arguments) == plain.encode()


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["compact", "spaced"])
def test_answers_are_json_with_base64(separators: tuple[str, str]) -> None:
    """Bytes of any length and number, beside texts that look like theirs, in JSON as any server writes it."""
    seed = 11
    rng = random.Random(seed)  # noqa: S311  # not for secrets
    texts = ['{"B":"QUJD"}', "\\ud800", "\ud800", 'a"}, {"B":"', "", "B", "\\", "é"]
    for _ in range(200):
        values: list[Any] = [{"B": rng.randbytes(rng.choice([0, 1, 5, 300]))} for _ in range(rng.randrange(5))]
        values += [{"S": rng.choice(texts)} for _ in range(rng.randrange(4))]
        values += [{"M": {"B": {"S": "x"}, "M": {"B": b"\xff\xfb"}}}, {"L": [{"B": b"in a list"}]}, {"N": "12"}]
        rng.shuffle(values)
        answer = {"Items": [{f"v{at}": value} for at, value in enumerate(values)]}
        body = json.dumps(answer, default=lambda value: b64encode(value).decode(), separators=separators)
        for raw in (body.encode(), bytearray(body.encode()), body.replace("/", "\\/").encode()):
            assert http_module.decoded(raw) == answer, f"seed {seed}: {body}"


@pytest.mark.parametrize(
    "body",
    [
        b'{"B":"QUJD',
        b'{"B":"',
        b'{"a":{"B":"QUI"}}',
        b'{"B":"Q%JD"}',
        b'{"B": "\\ud800"}',
        b'{"B":"QUJD"}}',
        b'[{"B":"QUJD"}',
        b"",
    ],
)
def test_what_is_not_json_with_base64_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"base64|ASCII|not found|Expecting|Extra|padding"):
        http_module.decoded(body)


def test_requests_and_answers_are_those_of_boto3(settings: Settings, proxy: FaultProxy, way: Way) -> None:
    """The same comes to DynamoDB, and its answers are the same dictionaries; from the second request on by that way."""
    client = way.client(settings)
    first_requests = list(proxy.requests)
    answers = {operation: client.send(operation, **arguments) for operation, arguments in REQUESTS.items()}
    requests = proxy.requests[len(first_requests) :]
    assert [way_of(each) for each in first_requests] == [BOTO3] * len(HOT)
    assert [way_of(each) for each in requests] == [way.name] * len(HOT)
    for first, second in zip(first_requests, requests, strict=True):
        assert (first.service, first.operation, first.body) == (second.service, second.operation, second.body)
        for name in ("content-type", "host", "accept-encoding", "x-amz-target", "user-agent"):
            same = [each.headers[name].split(" md/")[0] for each in (first, second)]
            assert same[0] == same[1]
    assert answers["batch_get_item"]["Responses"] == {DELTA_TABLE: [to_wire(ITEM)]}
    assert answers["query"]["Items"] == [to_wire(ITEM)]
    assert answers["update_item"]["Attributes"]["versions"] == {"L": [{"B": b"\x00\xff"}]}
    assert answers["batch_write_item"]["UnprocessedItems"] == {}


def test_other_operations_are_boto3s(settings: Settings, proxy: FaultProxy, way: Way) -> None:
    client = way.client(settings)
    for _ in range(2):
        client.send("describe_table", TableName=DELTA_TABLE)
        assert way_of(proxy.requests[-1]) == BOTO3


REASONS = [{"reason": "TableWriteProvisionedThroughputExceeded", "resource": "arn:table"}]


def modelled(code: str, fate: Fate, message: str, **members: Any) -> tuple[Reply, tuple[str, str, Fate]]:
    """An answer of which boto3 makes an error of a class of its own."""
    return error(code, message, **members), (code, code, fate)


#: Answers, and what tells their errors: class, code, fate.
ERRORS = {
    "throttled": modelled(
        "ProvisionedThroughputExceededException", Fate.THROTTLED, "The level", ThrottlingReasons=REASONS
    ),
    "throttling": modelled("ThrottlingException", Fate.THROTTLED, "slower", throttlingReasons=REASONS),
    "condition": modelled(
        "ConditionalCheckFailedException", Fate.REFUSED, "The conditional request failed", Item={"data": {"B": "AA=="}}
    ),
    "no table": modelled("ResourceNotFoundException", Fate.REFUSED, "Requested resource not found"),
    "not modelled": (error("AccessDeniedException", "not you"), ("ClientError", "AccessDeniedException", Fate.REFUSED)),
    "500": (
        error("InternalServerError", "it broke")._replace(status=500),
        ("InternalServerError", "InternalServerError", Fate.UNKNOWN),
    ),
    "a proxy's page": (Reply(503, b"<html>away</html>", "text/html"), ("ClientError", "503", Fate.UNKNOWN)),
    "an empty page": (Reply(404, b"", "text/html"), ("ClientError", "404", Fate.UNKNOWN)),
    "a redirect": (Reply(301, b"", "text/html"), ("ClientError", "301", Fate.UNKNOWN)),
}


@pytest.mark.parametrize("case", ERRORS)
@pytest.mark.parametrize("way", [DIRECT], indirect=True)
def test_errors_are_those_of_boto3(settings: Settings, proxy: FaultProxy, way: Way, case: str) -> None:
    """Class, code, text, members and status of an error, as `failures` reads them."""
    answer, (kind, code, fate) = ERRORS[case]
    client = way.client(settings)
    proxy.rule = lambda *_: answer
    raised = fails(client, "update_item")
    assert way_of(proxy.requests[-1]) == DIRECT
    assert isinstance(raised, boto_errors.ClientError)
    assert (type(raised).__name__, raised.response["Error"]["Code"], fate_of(raised)) == (kind, code, fate)
    assert raised.operation_name == "UpdateItem"
    assert raised.response["ResponseMetadata"]["HTTPStatusCode"] == answer.status
    with closing(make_client(settings)) as boto3, pytest.raises(boto_errors.ClientError) as expected:
        boto3.update_item(**REQUESTS["update_item"])
    for failure in (raised, expected.value):
        del failure.response["ResponseMetadata"]
    assert raised.response == expected.value.response
    assert str(raised) == str(expected.value).replace(" (reached max retries: 0)", "")


def test_session_tokens_are_sent_and_signed(
    settings: Settings, proxy: FaultProxy, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporary credentials are an access key with a token."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-token")
    way.client(settings).send("query", **REQUESTS["query"])
    last = proxy.requests[-1]
    assert (way_of(last), last.headers["x-amz-security-token"]) == (way.name, "a-token")
    assert "x-amz-security-token" in last.headers["authorization"]


def test_credentials_are_refreshed_in_mid_run(
    settings: Settings, proxy: FaultProxy, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials that are about to expire are replaced before a request, which boto3 sends: it finds the endpoint."""
    with CredentialServices("ONE", "TWO") as running:
        use(running, monkeypatch)
        client = way.client(settings)
        client.send("batch_write_item", **WRITE)
        soon = datetime.now(timezone.utc) + timedelta(minutes=1)
        client._boto_client._request_signer._credentials._expiry_time = soon
        for _ in range(3):
            client.send("batch_write_item", **WRITE)
    ways = [(access_key_of(each), way_of(each)) for each in proxy.requests[len(HOT) :]]
    assert ways == [("ONE", way.name), ("TWO", BOTO3), ("TWO", way.name), ("TWO", way.name)]
    assert {each.headers["x-amz-security-token"] for each in proxy.requests} == {"session"}


def test_credentials_that_expire_in_mid_run_are_replaced(
    settings: Settings, proxy: FaultProxy, dummy_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where DynamoDB says so, the request is sent again by another boto3 client, and later ones without it."""

    def rule(request: Request, forward: Forward) -> Reply:
        if len(proxy.requests) > 2 and access_key_of(request) == "ONE":
            return error("ExpiredTokenException", "The security token included in the request is expired")
        return forward(request)

    proxy.rule = rule
    with CredentialServices("ONE", "TWO") as running:
        use(running, monkeypatch)
        meter = Meter()
        with closing(BotoTables(settings)) as tables:
            for _ in range(4):
                tables.metered(meter).write(parts("http", 1))
    ways = [(access_key_of(each), way_of(each)) for each in proxy.requests]
    assert ways == [("ONE", BOTO3), ("ONE", DIRECT), ("ONE", DIRECT), ("TWO", BOTO3), ("TWO", DIRECT)]
    assert (meter.requests, meter.retries) == (5, 1)


def use(running: CredentialServices, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no credentials but those that these services give, one after the other."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("dummy_credentials")
def test_proxies_are_boto3s(
    settings: Settings, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Through a proxy of the environment boto3 sends all requests; the log says so once."""
    monkeypatch.setenv("HTTP_PROXY", proxy.endpoint)
    proxy.rule = lambda *_: Reply(200, b'{"UnprocessedItems": {}}')
    caplog.set_level("INFO", "dynastate")
    with closing(Client(replace(settings, endpoint="http://dynamodb.test"))) as client:
        for _ in range(3):
            client.send("batch_write_item", **WRITE)
    assert [way_of(each) for each in proxy.requests] == [BOTO3] * 3
    assert {each.headers["host"] for each in proxy.requests} == {"dynamodb.test"}
    assert [each for each in caplog.messages if "boto3" in each] == [
        "boto3 sends all requests to dynamodb.test, because of a proxy"
    ]


def test_an_endpoint_with_a_path_is_boto3s(
    settings: Settings, proxy: FaultProxy, dummy_credentials: None, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.rule = lambda *_: Reply(200, b'{"UnprocessedItems": {}}')
    caplog.set_level("INFO", "dynastate")
    with closing(Client(replace(settings, endpoint=f"{proxy.endpoint}/prefix"))) as client:
        for _ in range(2):
            client.send("batch_write_item", **WRITE)
    assert [way_of(each) for each in proxy.requests] == [BOTO3] * 2
    assert "boto3 sends all requests to 127.0.0.1, because of the path of its URL" in caplog.messages


def test_nothing_is_learned_from_a_mock(moto: BotoTables, dummy_credentials: None) -> None:
    """What moto answers in this process has not been sent, and is never sent to AWS itself."""
    with closing(Client(Settings(region=REGION))) as client:
        for _ in range(2):
            for operation, arguments in REQUESTS.items():
                client.send(operation, **arguments)
        assert client._direct is not None
        assert client._direct._targets == {}


def damaged(times: int, make: Callable[[Reply], Reply]) -> Callable[[Request, Forward], Reply]:
    """A rule: that many answers are changed, and later ones have their checksum."""
    rest = [None] * times

    def rule(request: Request, forward: Forward) -> Reply:
        reply = forward(request)
        if rest:
            rest.pop()
            return make(reply)
        return reply._replace(headers=(("x-amz-crc32", str(crc32(reply.raw))),))

    return rule


@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (lambda reply: reply._replace(headers=(("x-amz-crc32", "1"),)), {ResponseParserError}),
        (
            lambda reply: reply._replace(content_length=len(reply.raw) + 9),
            {ResponseParserError, boto_errors.ConnectionClosedError},
        ),
    ],
    ids=["checksum", "length"],
)
def test_damaged_answers_are_of_unknown_outcome(
    settings: Settings, proxy: FaultProxy, way: Way, make: Callable[[Reply], Reply], kinds: set[type[Exception]]
) -> None:
    """boto3 by itself takes them for answers without unprocessed items; so it is given a handler that refuses them."""
    client = way.client(settings)
    proxy.rule = damaged(1, make)
    with pytest.raises(tuple(kinds)) as failed:
        client.send("batch_write_item", **WRITE)
    assert fate_of(failed.value) is Fate.UNKNOWN
    assert client.send("batch_write_item", **WRITE)["UnprocessedItems"] == {}
    assert {way_of(each) for each in proxy.requests[-2:]} == {way.name}


@pytest.mark.parametrize("transport", [DIRECT, BOTO3])
def test_an_answer_that_is_not_json_is_of_unknown_outcome(
    settings: Settings, proxy: FaultProxy, dummy_credentials: None, transport: str
) -> None:
    """Nothing is taken from it, and the request is sent again."""
    page, empty = Reply(200, b"<html>hello</html>", "text/html"), Reply(200, b"{}")
    items = parts("http", 1)
    keys = [key for key, _ in items]
    requests: list[tuple[int, Reply, Callable[[Tables], object], object]] = [
        (2, page, lambda tables: tables.write(items), None),
        (1, page, lambda tables: tables.get(keys), dict(items)),
        (1, empty, lambda tables: tables.get(keys), dict(items)),
        (1, empty, lambda tables: tables.delete(keys), None),
    ]
    with closing(BotoTables(replace(settings, transport=transport))) as tables:
        tables.write(items)
        for times, answer, send, expected in requests:
            proxy.rule = damaged(times, lambda _, answer=answer: answer)  # type: ignore[misc]
            meter = Meter()
            assert send(tables.metered(meter)) == expected
            assert (meter.requests, meter.retries) == (times + 1, times)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timeouts that a test can wait for, though a busy machine answers within them."""
    for module in (client_module, direct_module):
        monkeypatch.setattr(module, "CONNECT_TIMEOUT_S", 0.3)
        monkeypatch.setattr(module, "READ_TIMEOUT_S", 2.0)


def cut(request: Request, forward: Forward) -> Reply:
    forward(request)
    raise CutError


def test_a_lost_answer_is_of_unknown_outcome(settings: Settings, proxy: FaultProxy, way: Way) -> None:
    """The connection ends after the request was sent; the next request has another one."""
    client = way.client(settings)
    proxy.rule = cut
    error = fails(client)
    assert (type(error), fate_of(error)) == (boto_errors.ConnectionClosedError, Fate.UNKNOWN)
    proxy.rule = let_pass
    assert client.send("batch_write_item", **WRITE)["UnprocessedItems"] == {}
    assert {way_of(each) for each in proxy.requests[-2:]} == {way.name}


@pytest.mark.usefixtures("short")
def test_an_answer_that_takes_too_long_is_of_unknown_outcome(settings: Settings, proxy: FaultProxy, way: Way) -> None:
    """It may come later, and must not be taken for that of the next request."""
    client, has_given_up = way.client(settings), Event()

    def late(request: Request, forward: Forward) -> Reply:
        assert has_given_up.wait(60)
        return forward(request)

    proxy.rule = late
    error = fails(client)
    has_given_up.set()
    assert (type(error), fate_of(error)) == (boto_errors.ReadTimeoutError, Fate.UNKNOWN)
    proxy.rule = let_pass
    assert client.send("query", **REQUESTS["query"])["Items"] == [to_wire(ITEM)]


def test_a_server_that_is_away_is_not_sent_to(settings: Settings, proxy: FaultProxy, way: Way) -> None:
    """Connections are refused; when the server is there again, requests are answered at once."""
    client = way.client(settings)
    proxy.shut()
    error = fails(client)
    assert (type(error), fate_of(error)) == (boto_errors.EndpointConnectionError, Fate.NOT_SENT)
    proxy.open()
    assert client.send("batch_write_item", **WRITE)["UnprocessedItems"] == {}


@pytest.mark.usefixtures("short")
def test_a_server_that_does_not_accept_is_not_sent_to(settings: Settings, proxy: FaultProxy, way: Way) -> None:
    """Packets are lost, as behind a firewall: here the queue of a socket that never accepts is full."""
    client = way.client(settings)
    proxy.shut()
    with ExitStack() as opened:
        full = opened.enter_context(socket.socket())
        full.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        full.bind(("127.0.0.1", proxy.port))
        full.listen(0)
        for _ in range(4):
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", proxy.port))
        error = fails(client)
    assert (type(error), fate_of(error)) == (boto_errors.ConnectTimeoutError, Fate.NOT_SENT)


def test_connections_that_were_closed_meanwhile_are_not_used(settings: Settings, proxy: FaultProxy, way: Way) -> None:
    """DynamoDB closes connections without requests after some time: that is no failure of the next request."""
    client = way.client(settings)
    for _ in range(3):
        client.send("query", **REQUESTS["query"])
        proxy.cut()
        wait_until(lambda: proxy.connections == 0, "connections are open")
    assert client.send("query", **REQUESTS["query"])["Items"] == [to_wire(ITEM)]
    assert way_of(proxy.requests[-1]) == way.name


def test_connections_are_kept_for_all_threads(settings: Settings, proxy: FaultProxy, way: Way) -> None:
    """Each way has as many connections as requests at a time, and each request gets its own answer."""
    client, threads = way.client(settings), 8

    def work(number: int) -> None:
        item: Item = {"store_shard": "threads#0", "part": f"thread {number % threads}", "n": number}
        keys = {"Keys": [to_wire({name: item[name] for name in KEY})], "ConsistentRead": True}
        client.send("batch_write_item", RequestItems={DELTA_TABLE: [{"PutRequest": {"Item": to_wire(item)}}]})
        items = client.send("batch_get_item", RequestItems={DELTA_TABLE: keys})["Responses"][DELTA_TABLE]
        assert [each["part"] for each in items] == [to_wire(item)["part"]]

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(10 * threads)))
    assert proxy.connections <= 2 * threads  # those of boto3, too
    client.close()
    wait_until(lambda: proxy.connections == 0, "connections are open")


def test_connections_end_with_what_keeps_them(settings: Settings, proxy: FaultProxy, dummy_credentials: None) -> None:
    """Tables that are not closed leave no connection, and no warning of one."""
    tables = BotoTables(settings)
    for _ in range(2):
        tables.write(parts("http", 1))
    assert way_of(proxy.requests[-1]) == DIRECT
    del tables
    gc.collect()
    wait_until(lambda: proxy.connections == 0, "connections are open")


def test_clocks_that_differ_are_reported(settings: Settings, proxy: FaultProxy, way: Way) -> None:
    """Neither boto3 nor we correct the clock: AWS refuses the signature, and says why."""
    with closing(BotoTables(settings, client=make_client(settings) if way.name == BOTO3 else None)) as tables:
        tables.write(parts("http", 1))
        ahead = datetime.now(timezone.utc) + timedelta(hours=1)

        def rule(request: Request, forward: Forward) -> Reply:
            date = datetime.strptime(request.headers["x-amz-date"] + "+0000", "%Y%m%dT%H%M%SZ%z")
            if abs(ahead - date) > timedelta(minutes=5):
                return error("InvalidSignatureException", "Signature expired: earlier than the server's time")
            return forward(request)

        proxy.rule = rule
        meter = Meter()
        with pytest.raises(ConfigurationError, match="AWS refuses the credentials: Signature expired: earlier"):
            tables.metered(meter).write(parts("http", 1))
    assert (way_of(proxy.requests[-1]), meter.requests) == (way.name, 1)


@pytest.fixture
def tls(embedded: EmbeddedDynamoDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A fault proxy that speaks HTTPS, with a certificate that is trusted."""
    context, _ = (make_certificate(tmp_path / name, name) for name in ("127.0.0.1", "127.0.0.2"))
    bundle = tmp_path / "trusted"
    bundle.write_bytes(b"".join((tmp_path / name).read_bytes() for name in ("127.0.0.1", "127.0.0.2")))
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    with FaultProxy(embedded.endpoint, tls=context) as opened:
        yield opened


def test_tls_with_a_trusted_certificate(embedded: EmbeddedDynamoDB, tls: FaultProxy, way: Way) -> None:
    """The bundle of AWS_CA_BUNDLE says which certificates are trusted; connections are kept."""
    client = way.client(replace(embedded.settings, endpoint=tls.endpoint))
    for _ in range(3):
        assert client.send("query", **REQUESTS["query"])["Items"] == [to_wire(ITEM)]
    assert [way_of(each) for each in tls.requests] == [BOTO3] * len(HOT) + [way.name] * 3
    assert tls.connections <= 2


@pytest.mark.parametrize("case", ["unknown", "of another address", "no TLS"])
def test_tls_without_trust(embedded: EmbeddedDynamoDB, tls: FaultProxy, way: Way, tmp_path: Path, case: str) -> None:
    """Nothing is sent to a server that cannot show that it is the one."""
    client = way.client(replace(embedded.settings, endpoint=tls.endpoint))
    count = len(tls.requests)
    tls.shut()
    tls.tls = {
        "unknown": make_certificate(tmp_path / "unknown", "127.0.0.1"),
        "of another address": context_of(tmp_path / "127.0.0.2"),
        "no TLS": None,
    }[case]
    tls.open()
    error = fails(client)
    assert (type(error), fate_of(error)) == (boto_errors.SSLError, Fate.UNKNOWN)
    assert len(tls.requests) == count
