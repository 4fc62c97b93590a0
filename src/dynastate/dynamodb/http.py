"""Requests to DynamoDB without boto3, at a third of its processor time (decision 18)."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

from pybase64 import b64decode, b64encode

from dynastate.dynamodb.direct import DirectRequests, Pattern, Sent, signed
from dynastate.dynamodb.failures import ForeignAnswerError

#: The operations of batches, of maintenance and of a store's first open, by their names in boto3. It sends all others.
HOT: Final = frozenset({"batch_write_item", "batch_get_item", "put_item", "update_item", "query"})
_JSON: Final = "application/x-amz-json-1.0"
#: A text that no valid text has: half of a pair of surrogates.
_PLACE: Final = "\ud800"
_PLACE_ESCAPED: Final = rb'"\ud800"'
#: Begins a binary value in compact JSON; a text that had it would have the quotation marks escaped.
_BINARY: Final = b'{"B":"'


class SignedRequests(DirectRequests):
    """Requests to DynamoDB: each operation has a target of its own."""

    def __init__(self, client: Any, session: Any) -> None:  # boto3's have no types of their own
        super().__init__(client, session, "json")

    def send(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Send one request. Returns boto3's result without metadata, and raises boto3's errors."""
        target, credentials = self._target(operation)
        if target is None:
            return getattr(self._client, operation)(**arguments)
        body = encoded(arguments)
        answer = self._exchange(target.url, signed(target, credentials, body), body)
        if answer["status_code"] >= 300:
            raise self._error(operation, answer)
        try:
            return decoded(answer["body"])
        except ValueError as error:
            raise ForeignAnswerError(f"the answer is not JSON: {error}") from error

    def _pattern(self, sent: Sent) -> Pattern | None:
        aim = sent.headers.get("x-amz-target", "")
        name = aim.rpartition(".")[2]
        operation = next((mine for mine, its in self._client.meta.method_to_api_mapping.items() if its == name), "")
        if operation not in HOT:
            return None
        deviation = ("the path of its URL" if sent.url.path not in ("", "/") else "") or (
            "its protocol" if sent.headers.get("content-type") != _JSON else ""
        )
        return Pattern(operation, {"content-type": _JSON, "x-amz-target": aim}, "/", deviation)


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
