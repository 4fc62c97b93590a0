"""A fault proxy in front of DynamoDB or S3: records requests, and delays, refuses or changes them by a rule."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from tests.support.processes import free_port

HOST = "127.0.0.1"
UPSTREAM_TIMEOUT_S = 60.0
JSON = "application/x-amz-json-1.0"
FORM = "application/x-www-form-urlencoded"
S3 = "s3"
#: Headers of answers that clients read, except the checksum of a body that a rule may change.
PASSED_BACK, CHECKSUM = ("etag", "last-modified", "content-range", "x-amz-"), "x-amz-crc32"


class Request(NamedTuple):
    """One request, with its headers by their names in lower case.

    In AWS's JSON protocol, `service` is the one that is its target. In the query protocol, which CloudWatch speaks, it
    is the one that the request is signed for, and `body` has the parameters as they are sent: names to text.
    Of S3, which has neither, `operation` is the HTTP method. `body` has `bucket`, `key` (empty: the bucket itself),
    the `query`'s parameters, and the `text` of a POST, which lists objects. A rule passes such a request on unchanged.
    """

    service: str
    operation: str
    body: dict[str, Any]
    headers: Mapping[str, str]


class Reply(NamedTuple):
    """HTTP status, and the body as it is sent. After a `content_length` that is wrong the connection ends."""

    status: int
    raw: bytes
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    content_length: int | None = None


class CutError(Exception):
    """Raised by a rule: the connection ends without an answer."""


Forward = Callable[[Request], Reply]
#: What a proxy does with a request: answer it, or pass it on, changed or not, now or later. Called from many threads.
Rule = Callable[[Request, Forward], Reply]


def let_pass(request: Request, forward: Forward) -> Reply:
    return forward(request)


def error(code: str, message: str = "said the fault proxy", **members: Any) -> Reply:
    """An error as DynamoDB answers it."""
    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message, **members}
    return Reply(400, json.dumps(body).encode())


class Throttle:
    """Lets each table take `rate` write units a second, or any number if it is None. Reads pass.

    As DynamoDB does it, a write is let in while there is a unit left, whatever its size; what it takes more is missing
    later. There is no burst capacity. What does not get in of a batch comes back unprocessed; if all of it, the whole
    request fails, with the limit that was hit.
    """

    def __init__(self, rate: float | None = None) -> None:
        self.rate = rate
        #: Write units let in, and requests that were throttled, in whole or in part.
        self.units = 0
        self.throttled = 0
        self._tokens: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def __call__(self, request: Request, forward: Forward) -> Reply:
        if request.operation == "BatchWriteItem":
            return self._batch(request, forward)
        if request.operation in ("PutItem", "UpdateItem", "DeleteItem") and not self._takes(
            request.body["TableName"], _units(request.body.get("Item", {}))
        ):
            return self._refusal(request.body["TableName"])
        return forward(request)

    def _batch(self, request: Request, forward: Forward) -> Reply:
        passed: dict[str, list[Any]] = {}
        rest: dict[str, list[Any]] = {}
        for table, writes in request.body["RequestItems"].items():
            for write in writes:
                item = write.get("PutRequest", {}).get("Item", {})
                (passed if self._takes(table, _units(item)) else rest).setdefault(table, []).append(write)
        if not passed:
            return self._refusal(next(iter(rest)))
        self.throttled += bool(rest)
        reply = forward(request._replace(body={"RequestItems": passed}))
        if reply.status != 200 or not rest:
            return reply
        return reply._replace(raw=json.dumps(json.loads(reply.raw) | {"UnprocessedItems": rest}).encode())

    def _takes(self, table: str, units: int) -> bool:
        with self._lock:
            if self.rate is not None:
                tokens, since = self._tokens.get(table, (self.rate, time.monotonic()))
                time_s = time.monotonic()
                tokens = min(self.rate, tokens + (time_s - since) * self.rate)
                is_free = tokens > 0
                self._tokens[table] = (tokens - units if is_free else tokens, time_s)
                if not is_free:
                    return False
            self.units += units
            return True

    def _refusal(self, table: str) -> Reply:
        self.throttled += 1
        resource = f"arn:aws:dynamodb:us-east-1:123456789012:table/{table}"
        reasons = [{"reason": "TableWriteProvisionedThroughputExceeded", "resource": resource}]
        return error("ProvisionedThroughputExceededException", "The level of …", ThrottlingReasons=reasons)


def limit_reads(request: Request, forward: Forward) -> Reply:
    """A rule: a BatchGetItem answers with 16 MB, and 1 MB of a partition key, at most; other keys are unprocessed."""
    reply = forward(request)
    if request.operation != "BatchGetItem" or reply.status != 200:
        return reply
    answer = json.loads(reply.raw)
    total, of_partition = 0, Counter[str]()
    for table, items in answer["Responses"].items():
        batch = request.body["RequestItems"][table]
        rest = answer["UnprocessedKeys"].setdefault(table, batch | {"Keys": []})["Keys"]
        for item in list(items):
            size = 1024 * _units(item)
            partition = item["store_shard"]["S"]
            if total + size > 16 << 20 or (of_partition[partition] and of_partition[partition] + size > 1 << 20):
                items.remove(item)
                rest.append({name: item[name] for name in batch["Keys"][0]})
            else:
                total += size
                of_partition[partition] += size
        if not rest:
            del answer["UnprocessedKeys"][table]
    return reply._replace(raw=json.dumps(answer).encode())


def _units(item: Mapping[str, Any]) -> int:
    """About what an item costs to write, from its form on the wire."""
    size = sum(len(name) + (len(value["B"]) * 3 // 4 if "B" in value else 10) for name, value in item.items())
    return max(1, -(-size // 1024))


@final
class FaultProxy:
    """Listens on a port of 127.0.0.1 for as long as the `with` block runs. `rule` may be changed at any time.

    `requests` is its journal: what came, in that order, whatever became of it. What is in none of these protocols
    is passed on, and not noted. With a context for `tls`, which may be changed while it is shut, it speaks HTTPS.
    """

    def __init__(self, endpoint: str, rule: Rule = let_pass, tls: ssl.SSLContext | None = None) -> None:
        self.upstream = urlsplit(endpoint).netloc
        self.rule = rule
        self.tls = tls
        self.requests: list[Request] = []
        self._port = 0
        self._server: _Server | None = None

    @property
    def endpoint(self) -> str:
        return f"{'https' if self.tls else 'http'}://{HOST}:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def connections(self) -> int:
        return len(self._server.peers) if self._server else 0

    def cut(self) -> None:
        """End all connections, and let new ones come."""
        if self._server is not None:
            self._server.cut()

    def __enter__(self) -> FaultProxy:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.shut()

    def open(self) -> None:
        """Listen: for the first time, or again, on the same port."""
        assert self._server is None
        self._port = self._port or free_port()  # no other program gets it while the proxy is shut
        self._server = _Server(self, self._port)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="proxy", daemon=True).start()

    def shut(self) -> None:
        """Refuse connections, and cut those there are."""
        server, self._server = self._server, None
        if server is not None:
            server.end()


def _signed_for(headers: Mapping[str, str]) -> str:
    """The service in `AWS4-HMAC-SHA256 Credential=KEY/DATE/REGION/SERVICE/aws4_request, …`; empty without that."""
    _, _, scope = headers.get("authorization", "").partition("Credential=")
    return scope.split("/")[3] if scope.count("/") > 3 else ""


def _encode(request: Request, raw: bytes) -> bytes:
    """The body of a request, which a rule may have changed; of S3 that which came."""
    if request.service == S3:
        return raw
    return (json.dumps if "x-amz-target" in request.headers else urlencode)(request.body).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, proxy: FaultProxy, port: int) -> None:
        self.proxy = proxy
        self.peers: set[socket.socket] = set()
        super().__init__((HOST, port), _Handler)
        if proxy.tls is not None:
            self.socket = proxy.tls.wrap_socket(self.socket, server_side=True)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.peers.add(request)  # before there is a thread for it: `end` must not miss it
        super().process_request(request, client_address)

    def end(self) -> None:
        self.shutdown()
        self.server_close()
        self.cut()

    def cut(self) -> None:
        for peer in list(self.peers):
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body of an answer in one packet
    server: _Server

    def handle(self) -> None:
        with suppress(OSError):  # its client has closed, or the fault proxy was shut
            super().handle()
        self.server.peers.discard(self.request)

    def handle_expect_100(self) -> bool:
        proceed = super().handle_expect_100()
        self.wfile.flush()
        return proceed

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        raw = self.rfile.read(length)
        if len(raw) < length:  # its client has died
            self.close_connection = True
            return
        proxy = self.server.proxy
        try:
            request = self._understand(raw)
            if request is None:
                reply = self._pass_on(raw)
            else:
                proxy.requests.append(request)
                reply = proxy.rule(request, lambda outgoing: self._pass_on(_encode(outgoing, raw)))
        except (CutError, http.client.HTTPException, OSError):
            self.close_connection = True
            return
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        length = len(reply.raw) if reply.content_length is None else reply.content_length
        self.close_connection |= length != len(reply.raw)
        self.send_header("Content-Length", str(length))
        for name, value in reply.headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.raw)

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST  # noqa: N815  # the names are of http.server

    def _understand(self, raw: bytes) -> Request | None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        if "x-amz-target" in headers:
            service, _, operation = headers["x-amz-target"].partition(".")
            return Request(service, operation, json.loads(raw), headers)
        if headers.get("content-type", "").startswith(FORM):
            body = dict(parse_qsl(raw.decode(), keep_blank_values=True))
            return Request(_signed_for(headers), body["Action"], body, headers)
        if _signed_for(headers) == S3:
            path, _, query = self.path.partition("?")
            bucket, _, key = unquote(path).removeprefix("/").partition("/")
            listed = {"text": raw.decode()} if self.command == "POST" else {}
            parameters = dict(parse_qsl(query, keep_blank_values=True))
            return Request(S3, self.command, {"bucket": bucket, "key": key, "query": parameters, **listed}, headers)
        return None

    def _pass_on(self, raw: bytes) -> Reply:
        """Over a connection of its own, so that nothing is ever sent twice."""
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in ("content-length", "expect")
        }
        upstream = http.client.HTTPConnection(self.server.proxy.upstream, timeout=UPSTREAM_TIMEOUT_S)
        with closing(upstream):
            upstream.request(self.command, self.path, raw, headers)
            answer = upstream.getresponse()
            headers_back = ((name.lower(), value) for name, value in answer.getheaders())
            others = tuple(each for each in headers_back if each[0].startswith(PASSED_BACK) and each[0] != CHECKSUM)
            return Reply(answer.status, answer.read(), answer.headers.get("Content-Type", JSON), others)

    def log_message(self, *_: object) -> None:
        pass
