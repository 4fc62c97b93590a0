"""Answers of HTTP servers, compared with what the standard library reads of the same bytes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPException, HTTPResponse
from itertools import pairwise
from random import Random
from threading import Thread

import pytest

from dynastate.dynamodb import answers
from dynastate.dynamodb.answers import Answer, read_answer

#: Answers with a length, which are read without the standard library.
PLAIN = {
    "of DynamoDB": b"HTTP/1.1 200 OK\r\nServer: Server\r\nContent-Length: 4\r\nx-amz-crc32: 1\r\n\r\n{ } ",
    "an error": b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\nConnection: keep-alive\r\n\r\n{}",
    "without a body": b"HTTP/1.1 500 \r\nContent-Length:0\r\n\r\n",
    "without a reason": b"HTTP/1.1 503\r\nContent-Length: 1\r\n\r\nx",
    "the last": b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\n{}",
    "a long one": b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\nName: a: b\r\n\r\n" + bytes(range(250)) * 1_200,
}
#: Other answers.
OTHERS = {
    "in chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    "until the end": b"HTTP/1.1 200 OK\r\nServer: old\r\n\r\nall that comes",
    "of HTTP 1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "after another one": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "a header twice": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nVia: a\r\nVia: b\r\n\r\n{}",
    "a header in two lines": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nVia: a\r\n b\r\n\r\n{}",
    "lines without a return": b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
    # Its body is empty, which is not JSON.
    "half of the head": b"HTTP/1.1 200 OK\r\nContent-Le",
}
BROKEN = {
    "nothing": b"",
    "half of the body": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
    "half of a long body": b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + bytes(200_000),
    "no HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "an impossible status": b"HTTP/1.1 wrong\r\nContent-Length: 0\r\n\r\n",
}


@contextmanager
def answering(pieces: list[bytes]) -> Iterator[socket.socket]:
    """A connection whose other end sends these pieces, and closes."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)

    def send() -> None:
        with closing(theirs):
            for piece in pieces:
                theirs.sendall(piece)

    sender = Thread(target=send)
    sender.start()
    with closing(ours):
        yield ours
    sender.join()


def by_the_library(raw: bytes) -> Answer:
    with answering([raw]) as connection, HTTPResponse(connection, method="POST") as response:
        response.begin()
        body = response.read()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, body, response.will_close)


@pytest.mark.parametrize("case", PLAIN | OTHERS)
def test_answers_are_those_of_the_standard_library(case: str) -> None:
    """Status, headers, body, and whether the connection ends, however the bytes are cut on their way."""
    raw = (PLAIN | OTHERS)[case]
    seed = 5
    dice = Random(seed)  # noqa: S311  # the same cuts at every run
    expected = by_the_library(raw)
    for cuts in range(4):
        at = [0, *sorted(dice.sample(range(len(raw)), cuts)), len(raw)]
        with answering([raw[start:end] for start, end in pairwise(at)]) as connection:
            assert read_answer(connection) == expected, f"seed {seed}, cut at {at}"


@pytest.mark.parametrize("case", PLAIN)
def test_plain_answers_are_read_without_the_library(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "HTTPResponse", None)
    with answering([PLAIN[case]]) as connection:
        assert read_answer(connection).status == int(PLAIN[case][9:12])


@pytest.mark.parametrize("case", BROKEN)
def test_broken_answers_are_errors(case: str) -> None:
    with answering([BROKEN[case]]) as connection, pytest.raises((HTTPException, OSError)):
        read_answer(connection)


def test_connections_with_more_than_the_answer_are_not_used_again() -> None:
    """Bytes after an answer would be read as the next one."""
    with answering([PLAIN["an error"] + b"more"]) as connection:
        assert read_answer(connection) == (400, {"content-length": "2", "connection": "keep-alive"}, b"{}", True)
