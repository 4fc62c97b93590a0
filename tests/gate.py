"""A gate in front of a DynamoDB, over HTTP: it notes what goes through, and holds up, refuses or changes it as told."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, final
from urllib.parse import urlsplit

HOST = "127.0.0.1"
UPSTREAM_TIMEOUT_S = 60.0
JSON = "application/x-amz-json-1.0"


class Request(NamedTuple):
    """One request in AWS's JSON protocol, with its headers by their names in lower case."""

    service: str
    operation: str
    body: dict[str, Any]
    headers: Mapping[str, str]


class Reply(NamedTuple):
    """HTTP status, and the body as it is sent."""

    status: int
    raw: bytes
    content_type: str = JSON


class CutError(Exception):
    """Raised by a rule: the connection ends without an answer."""


Forward = Callable[[Request], Reply]
#: What a gate does with a request: answer it, or pass it on, changed or not, now or later. Called from many threads.
Rule = Callable[[Request, Forward], Reply]


def let_pass(request: Request, forward: Forward) -> Reply:
    return forward(request)


def error(code: str, message: str = "said the gate", **members: Any) -> Reply:
    """An error as DynamoDB answers it."""
    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message, **members}
    return Reply(400, json.dumps(body).encode())


@final
class Gate:
    """Listens on a port of 127.0.0.1 for as long as the `with` block runs. `rule` may be changed at any time.

    `requests` is its journal: what came, in that order, whatever became of it. What is not in AWS's JSON protocol is
    passed on, and not noted.
    """

    def __init__(self, endpoint: str, rule: Rule = let_pass) -> None:
        self.upstream = urlsplit(endpoint).netloc
        self.rule = rule
        self.requests: list[Request] = []
        self._port = 0
        self._server: _Server | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self._port}"

    def __enter__(self) -> Gate:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.shut()

    def open(self) -> None:
        """Listen: for the first time, or again, on the same port."""
        assert self._server is None
        self._server = _Server(self, self._port)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="gate", daemon=True).start()

    def shut(self) -> None:
        """Refuse connections, and cut those there are."""
        server, self._server = self._server, None
        if server is not None:
            server.end()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, gate: Gate, port: int) -> None:
        self.gate = gate
        self.peers: set[socket.socket] = set()
        super().__init__((HOST, port), _Handler)

    def end(self) -> None:
        self.shutdown()
        self.server_close()
        for peer in list(self.peers):
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body of an answer in one packet
    server: _Server

    def handle(self) -> None:
        self.server.peers.add(self.request)
        with suppress(OSError):  # its client has closed, or the gate was shut
            super().handle()
        self.server.peers.discard(self.request)

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        target = self.headers.get("X-Amz-Target", "")
        gate = self.server.gate
        try:
            if target:
                headers = {name.lower(): value for name, value in self.headers.items()}
                service, _, operation = target.partition(".")
                request = Request(service, operation, json.loads(raw), headers)
                gate.requests.append(request)
                reply = gate.rule(request, lambda wanted: self._pass_on(json.dumps(wanted.body).encode()))
            else:
                reply = self._pass_on(raw)
        except (CutError, http.client.HTTPException, OSError):
            self.close_connection = True
            return
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.raw)))
        self.end_headers()
        self.wfile.write(reply.raw)

    def _pass_on(self, raw: bytes) -> Reply:
        """Over a connection of its own, so that nothing is ever sent twice."""
        headers = {name: value for name, value in self.headers.items() if name.lower() != "content-length"}
        upstream = http.client.HTTPConnection(self.server.gate.upstream, timeout=UPSTREAM_TIMEOUT_S)
        with closing(upstream):
            upstream.request(self.command, self.path, raw, headers)
            answer = upstream.getresponse()
            return Reply(answer.status, answer.read(), answer.headers.get("Content-Type", JSON))

    def log_message(self, *_: object) -> None:
        pass
