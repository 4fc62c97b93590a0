"""Answers of the HTTP servers of DynamoDB and S3, read from a connection.

They give the length of each answer, and such an answer is read here. The standard library parses headers like
the headers of a mail, which takes as long as the rest of a request. It reads all other answers, such as a proxy's.
"""

from __future__ import annotations

import io
import socket
from http.client import HTTPResponse, IncompleteRead
from typing import Final, NamedTuple

#: The most that is read at once before the length is known: the whole of most answers.
FIRST_READ_BYTES: Final = 64 * 1024
_HEAD_END: Final = b"\r\n\r\n"


class Answer(NamedTuple):
    """Status, headers by their names in lower case, and body; `is_last`: the server closes the connection after it."""

    status: int
    headers: dict[str, str]
    body: bytes | bytearray
    is_last: bool


def read_answer(connection: socket.socket) -> Answer:
    """Read the answer to a request, whatever its status. Raises OSError, or HTTPException of http.client."""
    raw = connection.recv(FIRST_READ_BYTES)
    head, _, begun = raw.partition(_HEAD_END)
    plain = _plain_head(head) if len(head) < len(raw) else None
    if plain is None:
        return _read_any(raw, connection)
    status, headers = plain
    length = int(headers["content-length"])
    # Bytes after the length belong to no answer that was asked for.
    is_last = "close" in headers.get("connection", "").lower() or len(begun) > length
    return Answer(status, headers, _read_body(connection, begun, length), is_last)


def _plain_head(head: bytes) -> tuple[int, dict[str, str]] | None:
    """Status and headers, or None if a header is repeated or the length of the body is not known."""
    status_line, *lines = head.decode("latin-1").split("\r\n")
    version, _, status = status_line.partition(" ")
    headers = {}
    for line in lines:
        name, separator, value = line.partition(":")
        if not separator or line[0] in " \t":
            return None
        headers[name.lower()] = value.strip()
    is_plain = (
        version == "HTTP/1.1"
        and status[:3].isdecimal()
        and status[:1] in "2345"
        and len(headers) == len(lines)
        and headers.get("content-length", "").isdecimal()
        and "transfer-encoding" not in headers
    )
    return (int(status[:3]), headers) if is_plain else None


def _read_body(connection: socket.socket, begun: bytes, length: int) -> bytes | bytearray:
    if len(begun) >= length:
        return begun[:length]
    body = bytearray(length)
    body[: len(begun)] = begun
    missing = memoryview(body)[len(begun) :]
    while missing:
        got = connection.recv_into(missing)
        if got == 0:
            raise IncompleteRead(bytes(body[: length - len(missing)]), len(missing))
        missing = missing[got:]
    return body  # not as bytes: a copy of megabytes takes longer than to read them


def _read_any(raw: bytes, connection: socket.socket) -> Answer:
    with HTTPResponse(_Replayed(raw, connection), method="POST") as response:  # type: ignore[arg-type]  # it makes files
        response.begin()
        body = response.read()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, body, response.will_close)


class _Replayed(io.RawIOBase):
    """A connection of which some bytes were read already, as the socket that HTTPResponse takes."""

    def __init__(self, raw: bytes, connection: socket.socket) -> None:
        self._first = raw
        self._connection = connection

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]  # what BufferedReader gives
        raw, self._first = self._first[: len(into)], self._first[len(into) :]
        into[: len(raw)] = raw
        return len(raw) or self._connection.recv_into(into)
