"""Sample values: names, attempts, rows and chunks. States are dictionaries of bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from dynastate.format.changes import PUT, Change, encode_changes, key_hash
from dynastate.format.keys import NO_ATTEMPT, Attempt
from dynastate.format.meta import QueryRun
from dynastate.format.parts import Chunk, parts_digest
from dynastate.format.version_list import VersionEntry

State = dict[bytes, bytes]
Changes = Mapping[bytes, bytes | None]
SCHEMA = '{"families":[]}'
QUERY = "5b0c2d7e-0000-4000-8000-000000000000"
CHECKPOINT = "file:/tmp/ck/state"
SHARDS = 4


def attempt(number: int) -> Attempt:
    return Attempt(number.to_bytes(16, "big"))


A, B, C, D, Z = (attempt(number) for number in (0xA, 0xB, 0xC, 0xD, 0x2A))


def noise(length: int, seed: str = "seed") -> bytes:
    return hashlib.shake_128(seed.encode()).digest(length)


def namespace_of(store: str) -> str:
    return store.split("/", maxsplit=1)[0]


def query_run(run: str = "run-1", location: str = CHECKPOINT, query: str = QUERY) -> QueryRun:
    """Make a run of the query of these tests, or of another one."""
    return QueryRun(run, query, location)


def entry_of(version: int, by: Attempt, parent: Attempt = NO_ATTEMPT, epoch: int = 1, **others: Any) -> VersionEntry:
    """Make a version entry without parts; `others` are further fields, such as parts=3."""
    fields: dict[str, Any] = {"parts": 0, "records": 0, "raw_bytes": 0, "stored_bytes": 0, "keys": {0: 0}}
    return VersionEntry(
        version, by, parent, epoch, **{"schema": bytes(8), "digest": parts_digest([]), **fields, **others}
    )


def chunk(changes: Changes) -> Chunk:
    return chunk_of(*(Change(PUT, 0, key, value) for key, value in changes.items()))


def chunk_of(*changes: Change) -> Chunk:
    """Make one chunk of changes of any kind."""
    hashes = [key_hash(change.key) for change in changes]
    return Chunk(len(changes), min(hashes), max(hashes), encode_changes(changes))


def singles(count: int, value: bytes = b"1") -> list[State]:
    return [{b"%d" % number: value} for number in range(count)]


def numbers(last: int, first: int = 1) -> State:
    """Make the state that `write_versions` leaves at version `last`."""
    return {b"%d" % number: b"%d" % number for number in range(first, last + 1)}
