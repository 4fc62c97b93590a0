"""Clients of boto3 that fail or answer from a script, and their errors."""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from io import BytesIO
from typing import Any

from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError, ConnectionClosedError

from tests.support.faults import Fault


def client_error(code: str, status: int = 400, message: str = "said DynamoDB", **members: object) -> ClientError:
    answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}, **members}
    return ClientError(answer, "Operation")


def lost_answer() -> Exception:
    """What boto3 raises when the connection ends before the answer came."""
    error: Exception = ConnectionClosedError(endpoint_url="http://test")
    return error


class FailingClient:
    """A boto3 client with planned faults, one call at a time, since moto loses writes. `requests` is its journal."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.faults: dict[str, deque[Fault | None]] = defaultdict(deque)
        self._lock = threading.Lock()

    def fail(self, operation: str, *faults: Fault | None) -> None:
        """Let the next calls of an operation fail; None lets one pass."""
        self.faults[operation].extend(faults)

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            with self._lock:
                self.requests.append((operation, arguments))
                fault = self.faults[operation].popleft() if self.faults[operation] else None
                if fault is not None and not fault.applied:
                    raise fault.error
                answer = getattr(self.client, operation)(**arguments)
                if fault is not None:
                    raise fault.error
                return answer

        return call


class _Body(BytesIO):
    def stream(self, **_: Any) -> Any:
        yield self.read()


class Wire:
    """Answers the requests of a real boto3 client from a script, without a network. The last answer repeats.

    An answer is (HTTP status, JSON body or text), or an exception to raise in place of sending. `requests` is its
    journal: operation and body.
    """

    def __init__(self, client: Any, *answers: tuple[int, dict[str, Any] | str] | Exception) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self._answers = list(answers)
        self._events = client.meta.events
        self._events.register_first("before-send.dynamodb", self)

    def close(self) -> None:
        self._events.unregister("before-send.dynamodb", self)

    def __call__(self, request: Any, **_: Any) -> AWSResponse:
        target = request.headers["X-Amz-Target"]
        operation = (target.decode() if isinstance(target, bytes) else target).split(".")[1]
        self.requests.append((operation, json.loads(request.body)))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        status, body = answer
        raw = body if isinstance(body, str) else json.dumps(body)
        return AWSResponse(request.url, status, {"content-type": "application/x-amz-json-1.0"}, _Body(raw.encode()))


def wire_error(code: str, message: str = "said DynamoDB", status: int = 400, **members: Any) -> tuple[int, Any]:
    return status, {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message, **members}
