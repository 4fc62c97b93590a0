"""Requests to S3 that read and write objects without boto3, at a fraction of its processor time (decision 18)."""

from __future__ import annotations

import threading
from base64 import b64encode
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from zlib import crc32

from dynastate.dynamodb.direct import DirectRequests, Pattern, Sent, signed
from dynastate.dynamodb.failures import code_of

_CHECKSUM: Final = "x-amz-checksum-crc32"
#: The operations, and the header of each request that no other one has, by method.
_OPERATIONS: Final = {"GET": ("get_object", "range"), "PUT": ("put_object", _CHECKSUM)}
#: Statuses, and codes of errors, of a bucket that is in another place or Region.
_REDIRECTS: Final = {301, 302, 307}
ELSEWHERE: Final = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"}
#: The headers that every request signs, and the one that it signs if the credentials have a session token.
_SIGNED: Final = {"host", "x-amz-content-sha256", "x-amz-date"}
_SIGNED_WITH_TOKEN: Final = {"x-amz-security-token"}


class Asked(NamedTuple):
    """The request that a thread has boto3 send."""

    bucket: str
    key: str


class ObjectRequests(DirectRequests):
    """Reads and writes of objects. Each of both has a target of its own in each bucket."""

    def __init__(self, client: Any, session: Any = None) -> None:  # boto3's have no types of their own
        super().__init__(client, session, "rest-xml")
        self.boto3 = client
        self._by_boto3 = threading.local()

    def get(self, bucket: str, key: str, span: str) -> bytes:
        """Read a span of an object, such as `bytes=0-9`. Raises boto3's errors."""
        body = self._send("GET", Asked(bucket, key), {"range": span}, b"")
        if body is None:
            # A body that is cut off fails while it is read.
            data: bytes = self._ask("GET", Asked(bucket, key), Range=span)["Body"].read()
            return data
        return body

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Write an object, whose checksum S3 compares. Raises boto3's errors."""
        checksum = b64encode(crc32(data).to_bytes(4, "big")).decode()
        if self._send("PUT", Asked(bucket, key), {_CHECKSUM: checksum}, data) is None:
            self._ask("PUT", Asked(bucket, key), Body=data, ChecksumCRC32=checksum)

    def _send(self, method: str, asked: Asked, headers: dict[str, str], body: bytes) -> bytes | None:
        """Send a request. Returns the body of its answer, or None if boto3 must send the request."""
        target, credentials = self._target(_kind(method, asked.bucket))
        if target is None:
            return None
        path = target.path + _quoted(asked.key)
        to_send = signed(target, credentials, body, method=method, path=path, more=headers)
        answer = self._exchange(target.url, to_send, body, method=method, path=path)
        answer["body"] = raw = bytes(answer["body"])
        if method == "PUT" and raw and answer["status_code"] < 300:
            answer["status_code"] = 500  # S3 has begun to answer, and then it failed
        if answer["status_code"] < 300:
            return raw
        error = self._error(_OPERATIONS[method][0], answer)
        if answer["status_code"] in _REDIRECTS or code_of(error) in ELSEWHERE:
            self._targets.pop(_kind(method, asked.bucket), None)
            return None  # boto3 finds the bucket
        raise error

    def _ask(self, method: str, asked: Asked, **arguments: Any) -> Any:
        """Have boto3 send a request, and learn from it."""
        self._by_boto3.asked = asked
        try:
            return getattr(self.boto3, _OPERATIONS[method][0])(Bucket=asked.bucket, Key=asked.key, **arguments)
        finally:
            del self._by_boto3.asked

    def _pattern(self, sent: Sent) -> Pattern | None:
        asked: Asked | None = getattr(self._by_boto3, "asked", None)
        if asked is None or sent.method not in _OPERATIONS:
            return None
        path = sent.url.path.removesuffix(_quoted(asked.key))
        _, own_header = _OPERATIONS[sent.method]
        is_plain = sent.signature[2].endswith("/s3/aws4_request")
        deviation = ("the path of its URL" if path not in ("/", f"/{asked.bucket}/") else "") or (
            "" if is_plain and sent.signed_headers - _SIGNED_WITH_TOKEN == _SIGNED | {own_header} else "its signature"
        )
        return Pattern(_kind(sent.method, asked.bucket), {}, path, deviation)


def _kind(method: str, bucket: str) -> str:
    return f"{method} {bucket}"


def _quoted(key: str) -> str:
    return quote(key, safe="/~")
