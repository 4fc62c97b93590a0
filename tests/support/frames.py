"""Frames to send to a sidecar."""

from __future__ import annotations

import dynastate
from dynastate.format.keys import EMPTY, NO_ATTEMPT, Attempt, VersionId
from dynastate.sidecar import protocol
from dynastate.sidecar.protocol import Append, Begin, Commit, Hello, Open
from tests.support.samples import CHECKPOINT, QUERY, SCHEMA, A, Changes, chunk

TOKEN = bytes(range(32))


def begin(store: str, by: Attempt, base: VersionId = EMPTY) -> bytes:
    return protocol.encode(Begin(store, "run-1", QUERY, CHECKPOINT, *base, by))


def append(changes: Changes) -> bytes:
    rows = chunk(changes)
    return protocol.encode(Append(rows.records, rows.hash_min, rows.hash_max, rows.changes))


def hello(token: bytes, package: str, settings: str) -> bytes:
    return protocol.encode(Hello(protocol.PROTOCOL, token, package, settings))


def raw_frame(number: int, body: bytes) -> bytes:
    return protocol.HEADER.pack(len(body) + 1, number) + body


HELLO = hello(TOKEN, dynastate.__version__, "{}")
OPEN = protocol.encode(Open("s", 1, NO_ATTEMPT, ()))
BEGIN = begin("s", A)
COMMIT = protocol.encode(Commit({}, SCHEMA))
BUCKET = protocol.encode(protocol.Bucket(0))
WELCOME = protocol.encode(protocol.Welcome("x"))
ABORT = protocol.encode(protocol.Abort())
UNKNOWN = b"\x01\x00\x00\x00\xc8"
