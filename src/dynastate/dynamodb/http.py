"""Signed requests over kept connections, at a third of boto3's processor time (decision 18).

boto3 sends the first request of each operation, and the first one with new credentials. How it was sent gives endpoint,
Region and headers for the next ones, which are serialised, signed and sent here. Credentials come from boto3's session,
and errors are of the classes that boto3 raises.
"""

from __future__ import annotations

import hmac
import json
import os
import select
import socket
import ssl
import threading
import time
import weakref
from binascii import crc32
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from http.client import HTTPException
from itertools import chain
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import botocore.exceptions as boto_errors
from botocore.httpsession import create_urllib3_context, get_cert_path
from botocore.parsers import ResponseParserError, create_parser
from botocore.utils import get_environ_proxies
from pybase64 import b64decode, b64encode

from dynastate.dynamodb.answers import read_answer
from dynastate.dynamodb.credentials import check_credentials
from dynastate.dynamodb.failures import ForeignAnswerError
from dynastate.redaction import get_logger

log = get_logger("dynastate.tables")

CONNECT_TIMEOUT_S: Final = 2.0
READ_TIMEOUT_S: Final = 10.0
#: Connections that are kept open. Every task that opens or commits has a request of its own under way, beside the
#: parallel ones. A connection above this number is closed after one request, and a new one costs a handshake.
CONNECTIONS_MAX: Final = 256
#: The operations of batches, of maintenance and of a store's first open, by their names in boto3. It sends all others.
HOT: Final = frozenset({"batch_write_item", "batch_get_item", "put_item", "update_item", "query"})
_JSON: Final = "application/x-amz-json-1.0"
#: A text that no valid text has: half of a pair of surrogates.
_PLACE: Final = "\ud800"
_PLACE_ESCAPED: Final = rb'"\ud800"'
#: Begins a binary value in compact JSON; a text that had it would have the quotation marks escaped.
_BINARY: Final = b'{"B":"'
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
PORTS: Final = {"http": 80, "https": 443}


class Target(NamedTuple):
    """The endpoint of an operation, and the common parts of its requests."""

    url: str
    headers: dict[str, str]
    """Those that it signs, by their names in lower case."""
    agent: str
    access_key: str
    """Of the credentials with which boto3 sent it: the endpoint may depend on their account."""
    scope: str
    """Region and service of the signature, `us-east-1/dynamodb/aws4_request`."""


class SignedRequests:
    """Requests of one boto3 client, sent without it if its way of sending is known and plain. Safe for threads."""

    def __init__(self, client: Any, session: Any) -> None:  # boto3's have no types of their own
        self._client = client
        self._session = session
        self._targets: dict[str, Target] = {}
        self._idle: dict[str, list[socket.socket]] = {}
        self._tls: ssl.SSLContext | None = None
        self._checked: Any = None
        self._is_logged = self._is_closed = False
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle)
        # The last place before the network: there is nothing to learn from a request that a mock answers.
        http = getattr(getattr(client, "_endpoint", None), "http_session", None)
        self._boto3_send: Any = getattr(http, "send", None)
        if http is not None:
            http.send = self._send_and_learn

    def send(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Send one request. Returns boto3's result without metadata, and raises boto3's errors."""
        target = self._targets.get(operation)
        credentials: Any = self._credentials() if target else None
        if target is None or credentials.access_key != target.access_key:
            return getattr(self._client, operation)(**arguments)
        body = encoded(arguments)
        answer = self._exchange(target.url, signed(target, credentials, body), body)
        if answer["status_code"] >= 300:
            raise self._error(operation, answer)
        try:
            return decoded(answer["body"])
        except ValueError as error:
            raise ForeignAnswerError(f"the answer is not JSON: {error}") from error

    def _credentials(self) -> Any:
        frozen = self._session.get_credentials().get_frozen_credentials()
        if frozen != self._checked:
            self._checked = check_credentials(self._session.get_credentials())
        return frozen

    def close(self) -> None:
        """Close the connections; those in use at the end of their requests."""
        self._is_closed = True
        _close_all(self._idle)

    def _send_and_learn(self, request: Any) -> Any:
        answer = self._boto3_send(request)
        if answer.status_code == 200:
            self._learn(request.url, {name.lower(): _text(value) for name, value in request.headers.items()})
        return answer

    def _learn(self, sent_to: str, headers: Mapping[str, str]) -> None:
        name = headers.get("x-amz-target", "").rpartition(".")[2]
        operation = next((mine for mine, its in self._client.meta.method_to_api_mapping.items() if its == name), "")
        if operation not in HOT:
            return
        url = urlsplit(sent_to)
        algorithm, _, credential = headers.get("authorization", "").partition(" Credential=")
        access_key, _, scope = credential.partition(",")[0].partition("/")
        reason = (
            ("a proxy" if url.scheme in self._proxies() else "")
            or ("the path of its URL" if url.path not in ("", "/") or url.query or url.username else "")
            or ("its signature" if algorithm != _ALGORITHM else "")
            or ("its protocol" if headers.get("content-type") != _JSON else "")
        )
        with self._lock:
            if not reason:
                host = url.netloc.removesuffix(f":{PORTS[url.scheme]}")
                common = {"content-type": _JSON, "host": host, "x-amz-target": headers["x-amz-target"]}
                base = f"{url.scheme}://{url.netloc}"
                if url.scheme == "https" and self._tls is None:
                    self._tls = self._make_tls()
                self._idle.setdefault(base, [])
                self._targets[operation] = Target(
                    url=base,
                    headers=common,
                    agent=headers.get("user-agent", ""),
                    access_key=access_key,
                    scope=scope.partition("/")[2],
                )
            elif not self._is_logged:
                self._is_logged = True
                log.info("boto3 sends all requests to %s, because of %s", url.hostname, reason)

    def _proxies(self) -> dict[str, str]:
        """The proxies that boto3 uses, by scheme."""
        config = self._client.meta.config.proxies
        proxies: dict[str, str] = get_environ_proxies(self._client.meta.endpoint_url) if config is None else config
        return proxies

    def _make_tls(self) -> ssl.SSLContext:
        bundle = self._session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE") or True
        context: ssl.SSLContext = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED)
        context.check_hostname = True
        context.load_verify_locations(get_cert_path(bundle))
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _exchange(self, url: str, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """Send a request and read its answer, in the form that botocore's parsers take."""
        connection, can_be_kept = self._connection(url), False
        lines = ["POST / HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        try:
            connection.sendall("\r\n".join(lines).encode("latin-1") + body)
            answer = read_answer(connection)
            can_be_kept = not answer.is_last
        except TimeoutError as error:
            raise boto_errors.ReadTimeoutError(endpoint_url=url, error=error) from error
        except ssl.SSLError as error:
            raise boto_errors.SSLError(endpoint_url=url, error=error) from error
        except (OSError, HTTPException) as error:
            raise boto_errors.ConnectionClosedError(endpoint_url=url, error=error) from error
        finally:
            idle = self._idle[url]
            if can_be_kept and not self._is_closed and len(idle) < CONNECTIONS_MAX:
                idle.append(connection)
            else:
                connection.close()
        parsable = {"status_code": answer.status, "headers": answer.headers, "body": answer.body}
        refuse_damaged(parsable)
        return parsable

    def _connection(self, url: str) -> socket.socket:
        """The connection that was used last, unless its other end has closed it, or a new one."""
        while (idle := _pop(self._idle[url])) is not None:
            if not _has_input(idle):
                return idle
            idle.close()
        target = urlsplit(url)
        host, connection = target.hostname or "", None
        try:
            connection = socket.create_connection((host, target.port or PORTS[target.scheme]), CONNECT_TIMEOUT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._tls is not None and target.scheme == "https":
                connection = self._tls.wrap_socket(connection, server_hostname=host)
            connection.settimeout(READ_TIMEOUT_S)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, TimeoutError):
                raise boto_errors.ConnectTimeoutError(endpoint_url=url, error=error) from error
            if isinstance(error, ssl.SSLError):
                raise boto_errors.SSLError(endpoint_url=url, error=error) from error
            if isinstance(error, OSError):
                raise boto_errors.EndpointConnectionError(endpoint_url=url, error=error) from error
            raise
        return connection

    def _error(self, operation: str, answer: dict[str, Any]) -> Exception:
        """The error that boto3 raises for an answer."""
        model, name = self._client.meta.service_model, self._client.meta.method_to_api_mapping[operation]
        parser = create_parser("json")
        parsed = parser.parse(answer, model.operation_model(name).output_shape)
        code = parsed.get("Error", {}).get("Code")
        members = model.shape_for_error_code(code)
        if members is not None:
            parsed |= parser.parse(answer, members)
        error: Exception = self._client.exceptions.from_code(code)(parsed, name)
        return error


def signed(target: Target, credentials: Any, body: bytes) -> dict[str, str]:
    """The headers of a request with its signature, version 4 of AWS, for the method POST and the path `/`."""
    time_text = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    headers = target.headers | {"x-amz-date": time_text}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    in_order = sorted(headers)
    names = ";".join(in_order)
    lines = "\n".join([f"{name}:{headers[name]}" for name in in_order])
    request = f"POST\n/\n\n{lines}\n\n{names}\n{sha256(body).hexdigest()}"
    scope = f"{time_text[:8]}/{target.scope}"
    to_sign = "\n".join([_ALGORITHM, time_text, scope, sha256(request.encode()).hexdigest()])
    signature = hmac.digest(_signing_key(credentials.secret_key, scope), to_sign.encode(), "sha256").hex()
    credential = f"{credentials.access_key}/{scope}"
    headers["authorization"] = f"{_ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
    headers |= {"user-agent": target.agent, "accept-encoding": "identity", "content-length": str(len(body))}
    return headers


@lru_cache(maxsize=4)
def _signing_key(secret_key: str, scope: str) -> bytes:
    """The key for a day, a Region and a service."""
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def refuse_damaged(response_dict: Mapping[str, Any], **_: object) -> None:
    """Raise ResponseParserError for a damaged answer. A handler of boto3's `before-parse`.

    boto3 itself compares the checksum only where it retries, and the length never.
    """
    headers, body = response_dict["headers"], response_dict["body"]
    for name, value in (("content-length", len(body)), ("x-amz-crc32", crc32(body))):
        if headers.get(name) not in (None, str(value)):
            raise ResponseParserError(f"the answer does not match its {name}, {headers[name]}")


def _pop(connections: list[socket.socket]) -> socket.socket | None:
    try:
        return connections.pop()
    except IndexError:  # another thread was faster
        return None


def _close_all(connections: Mapping[str, list[socket.socket]]) -> None:
    for idle in connections.values():
        while (connection := _pop(idle)) is not None:
            connection.close()


def _has_input(sock: socket.socket) -> bool:
    """Whether there is something to read: between requests, that can only be the end."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def encoded(arguments: Mapping[str, Any]) -> bytes:
    """JSON with base64 in place of bytes. The base64 is inserted later: its escaping would take most of the time."""
    binaries: list[bytes] = []

    def keep(value: bytes) -> str:
        binaries.append(b'"%s"' % b64encode(value))
        return _PLACE

    head, *tails = json.dumps(arguments, default=keep).encode().split(_PLACE_ESCAPED)
    return b"".join([head, *chain.from_iterable(zip(binaries, tails, strict=True))])


def decoded(body: bytes | bytearray) -> Any:
    """The value of a JSON text, with bytes in place of base64. The JSON parser does not see compact base64.

    Raises ValueError: the text is not JSON, or a binary value is not base64.
    """
    view, pieces, end = memoryview(body), list[memoryview](), 0
    binaries: deque[bytes] = deque()
    while (begin := body.find(_BINARY, end)) >= 0:
        start = begin + len(_BINARY)
        pieces.append(view[end : start - 1])
        end = body.index(b'"', start) + 1
        is_escaped = body.find(b"\\", start, end) >= 0
        binaries.append(
            b64decode(json.loads(body[start - 1 : end]) if is_escaped else view[start : end - 1], validate=True)
        )

    def put_back(parsed: dict[str, Any]) -> dict[str, Any]:
        value = parsed.get("B")
        if isinstance(value, str):  # a binary value, `{"B": TEXT}`: nothing else has a text under that name
            parsed["B"] = binaries.popleft() if binaries and value == _PLACE else b64decode(value, validate=True)
        return parsed

    return json.loads(_PLACE_ESCAPED.join([*pieces, view[end:]]), object_hook=put_back)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
