"""Requests that are sent over kept connections, without boto3, once it has shown how (decision 18).

boto3 sends the first request of each kind, and the first one with new credentials. How it was sent gives endpoint,
Region and headers for the next ones, which are signed and sent here. Credentials come from boto3's session, and errors
are of the classes that boto3 raises.
"""

from __future__ import annotations

import hmac
import os
import select
import socket
import ssl
import threading
import time
import weakref
from abc import ABC, abstractmethod
from binascii import crc32
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from http.client import HTTPException
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

import botocore.exceptions as boto_errors
from botocore.httpsession import create_urllib3_context, get_cert_path
from botocore.parsers import ResponseParserError, create_parser
from botocore.utils import get_environ_proxies

from dynastate.dynamodb.answers import read_answer
from dynastate.dynamodb.credentials import check_credentials
from dynastate.redaction import get_logger

log = get_logger("dynastate.tables")

CONNECT_TIMEOUT_S: Final = 2.0
READ_TIMEOUT_S: Final = 10.0
#: Connections that are kept open. Every task that opens or commits has a request of its own under way, beside the
#: parallel ones. A connection above this number is closed after one request, and a new one costs a handshake.
CONNECTIONS_MAX: Final = 256
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
PORTS: Final = {"http": 80, "https": 443}


class Target(NamedTuple):
    """The endpoint of requests of one kind, and their common parts."""

    url: str
    headers: dict[str, str]
    """Those that are signed, by their names in lower case."""
    agent: str
    access_key: str
    """Of the credentials with which boto3 sent it: the endpoint may depend on their account."""
    scope: str
    """Region and service of the signature, `us-east-1/dynamodb/aws4_request`."""
    path: str = "/"
    """What the path of each request begins with."""


class Sent(NamedTuple):
    """A request as boto3 sent it, with its headers by their names in lower case."""

    method: str
    url: SplitResult
    headers: Mapping[str, str]

    @property
    def signature(self) -> tuple[str, str, str]:
        """Its algorithm, the access key, and the scope without the day."""
        algorithm, _, credential = self.headers.get("authorization", "").partition(" Credential=")
        access_key, _, scope = credential.partition(",")[0].partition("/")
        return algorithm, access_key, scope.partition("/")[2]

    @property
    def signed_headers(self) -> set[str]:
        """The names of the headers that it signs."""
        names = self.headers.get("authorization", "").partition("SignedHeaders=")[2].partition(",")[0]
        return set(names.split(";"))


class Pattern(NamedTuple):
    """The common parts of all requests of a kind, by one of boto3."""

    kind: str
    headers: Mapping[str, str]
    """Signed headers that are the same in each of them, besides the host."""
    path: str
    """What the path of each begins with."""
    deviation: str
    """Why the next ones cannot be sent here. Empty: they can."""


class DirectRequests(ABC):
    """Requests of one boto3 client, sent without it if its way of sending is known and plain. Safe for threads.

    Without a session boto3 sends all.
    """

    def __init__(self, client: Any, session: Any, protocol: str) -> None:  # boto3's have no types of their own
        self._client = client
        self._session = session
        self._protocol = protocol
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
        if http is not None and session is not None:
            http.send = self._send_and_learn

    @abstractmethod
    def _pattern(self, sent: Sent) -> Pattern | None:
        """The pattern of a request. Returns None if requests of its kind are left to boto3."""

    def close(self) -> None:
        """Close the connections; those in use at the end of their requests."""
        self._is_closed = True
        _close_all(self._idle)

    def _target(self, kind: str) -> tuple[Target | None, Any]:
        """The target of a request, and credentials for it. There is no target if boto3 must send it."""
        target = self._targets.get(kind)
        if target is None:
            return None, None
        credentials = self._credentials()
        return (target if credentials.access_key == target.access_key else None), credentials

    def _credentials(self) -> Any:
        frozen = self._session.get_credentials().get_frozen_credentials()
        if frozen != self._checked:
            self._checked = check_credentials(self._session.get_credentials())
        return frozen

    def _send_and_learn(self, request: Any) -> Any:
        answer = self._boto3_send(request)
        if 200 <= answer.status_code < 300:
            headers = {name.lower(): _text(value) for name, value in request.headers.items()}
            self._learn(Sent(request.method, urlsplit(request.url), headers))
        return answer

    def _learn(self, sent: Sent) -> None:
        pattern = self._pattern(sent)
        if pattern is None:
            return
        url = sent.url
        algorithm, access_key, scope = sent.signature
        reason = (
            ("a proxy" if url.scheme in self._proxies() else "")
            or ("the path of its URL" if url.query or url.username else "")
            or ("its signature" if algorithm != _ALGORITHM else "")
            or pattern.deviation
        )
        with self._lock:
            if not reason:
                base = f"{url.scheme}://{url.netloc}"
                if url.scheme == "https" and self._tls is None:
                    self._tls = self._make_tls()
                self._idle.setdefault(base, [])
                self._targets[pattern.kind] = Target(
                    url=base,
                    headers={"host": url.netloc.removesuffix(f":{PORTS[url.scheme]}"), **pattern.headers},
                    agent=sent.headers.get("user-agent", ""),
                    access_key=access_key,
                    scope=scope,
                    path=pattern.path,
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

    def _exchange(
        self, url: str, headers: Mapping[str, str], body: bytes, *, method: str = "POST", path: str = "/"
    ) -> dict[str, Any]:
        """Send a request and read its answer, in the form that botocore's parsers take."""
        connection, can_be_kept = self._connection(url), False
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        try:
            is_sent = _is_sent(connection, "\r\n".join(lines).encode("latin-1") + body)
            answer = read_answer(connection)
            can_be_kept = is_sent and not answer.is_last
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
        parser = create_parser(self._protocol)
        parsed = parser.parse(answer, model.operation_model(name).output_shape)
        code = parsed.get("Error", {}).get("Code")
        members = model.shape_for_error_code(code)
        if members is not None:
            parsed |= parser.parse(answer, members)
        error: Exception = self._client.exceptions.from_code(code)(parsed, name)
        return error


def signed(
    target: Target,
    credentials: Any,
    body: bytes,
    *,
    method: str = "POST",
    path: str = "/",
    more: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """The headers of a request with its signature, version 4 of AWS; `more` are headers of this one, and signed.

    S3 wants the hash of the body among the headers.
    """
    time_text, hashed = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), sha256(body).hexdigest()
    headers = target.headers | {"x-amz-date": time_text}
    headers.update(more)
    if target.scope.endswith("/s3/aws4_request"):
        headers["x-amz-content-sha256"] = hashed
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    in_order = sorted(headers)
    names = ";".join(in_order)
    lines = "\n".join([f"{name}:{headers[name]}" for name in in_order])
    request = f"{method}\n{path}\n\n{lines}\n\n{names}\n{hashed}"
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
    for name, of_body in (("content-length", len), ("x-amz-crc32", crc32)):
        if name in headers and headers[name] != str(of_body(body)):
            raise ResponseParserError(f"the answer does not match its {name}, {headers[name]}")


def _pop(connections: list[socket.socket]) -> socket.socket | None:
    try:
        return connections.pop()
    except IndexError:  # another thread was faster
        return None


def _close_all(connections: Mapping[str, list[socket.socket]]) -> None:
    for idle in list(connections.values()):
        while (connection := _pop(idle)) is not None:
            connection.close()


def _is_sent(connection: socket.socket, request: bytes) -> bool:
    """Send a request. Returns False if the other end has closed before it has read all: it may have answered."""
    try:
        connection.sendall(request)
    except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
        return False
    return True


def _has_input(sock: socket.socket) -> bool:
    """Whether there is something to read: between requests, that can only be the end."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
