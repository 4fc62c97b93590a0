"""The frames between the JVM and Python (docs/protocol.md, version 1). No I/O.

frame := length:u32  type:u8  body
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from dynastate.directory import BITS_MAX
from dynastate.errors import MismatchError
from dynastate.layout import NO_ATTEMPT, Attempt

PROTOCOL: Final = 1
TOKEN_BYTES: Final = 32
FRAME_BYTES_MAX: Final = 64 * 1024 * 1024 + 4096
#: Versions are below this one: Spark's are Java's long.
VERSIONS: Final = 2**63
HEADER: Final = struct.Struct("<IB")

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_APPEND = struct.Struct("<III")


class Type(IntEnum):
    """Frame types."""

    HELLO = 1
    OPEN = 2
    BEGIN = 3
    APPEND = 4
    COMMIT = 5
    ABORT = 6
    CHANGES = 7
    SNAPSHOT = 8
    BUCKET = 9
    SNAPSHOT_END = 10
    CLEAN_UP = 11
    FIND = 12
    READ = 13
    CHECK = 14
    WHOLE = 15
    WELCOME = 64
    ROWS = 65
    OPENED = 66
    COMMITTED = 67
    FOUND = 68
    CHANGES_OF = 69
    DELTAS = 70
    WANTED = 71
    MAINTAINED = 72
    CONTENT = 73
    CHECKED = 74
    ERROR = 127


class State(Enum):
    """Where a connection stands."""

    NEW = "new"
    READY = "ready"
    WRITING = "writing"
    SNAPSHOT = "snapshot"


#: What may follow what; anything else breaks the protocol.
TRANSITIONS: Final[dict[tuple[State, Type], State]] = {
    (State.NEW, Type.HELLO): State.READY,
    (State.READY, Type.CHECK): State.READY,
    (State.READY, Type.OPEN): State.READY,
    (State.READY, Type.CHANGES): State.READY,
    (State.READY, Type.FIND): State.READY,
    (State.READY, Type.READ): State.READY,
    (State.READY, Type.BEGIN): State.WRITING,
    (State.WRITING, Type.APPEND): State.WRITING,
    (State.WRITING, Type.COMMIT): State.READY,
    (State.WRITING, Type.ABORT): State.READY,
    (State.READY, Type.CLEAN_UP): State.READY,
    (State.READY, Type.SNAPSHOT): State.SNAPSHOT,  # READY again, unless it is wanted
    (State.READY, Type.WHOLE): State.SNAPSHOT,
    (State.SNAPSHOT, Type.BUCKET): State.SNAPSHOT,
    (State.SNAPSHOT, Type.APPEND): State.SNAPSHOT,
    (State.SNAPSHOT, Type.SNAPSHOT_END): State.READY,
    (State.SNAPSHOT, Type.ABORT): State.READY,
}


def follow(state: State, frame_type: int) -> State:
    """The state after a frame from the JVM.

    Raises:
        MismatchError: that frame may not come in this state.
    """
    try:
        return TRANSITIONS[state, Type(frame_type)]
    except (KeyError, ValueError):
        raise MismatchError("frame is out of order", state=state.value, type=frame_type) from None


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of a connection. The token is already verified by whoever reads the rest."""

    protocol: int
    token: bytes
    package: str
    settings: str


@dataclass(frozen=True, slots=True)
class Open:
    """Open a version; `have` are versions the provider holds in memory."""

    store: str
    version: int
    attempt: Attempt
    have: tuple[tuple[int, Attempt], ...]


@dataclass(frozen=True, slots=True)
class Find:
    """Open a version without its rows."""

    store: str
    version: int
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Read:
    """Read the rows of a version that lie in one of 2^bits buckets."""

    store: str
    version: int
    attempt: Attempt
    bits: int
    bucket: int


@dataclass(frozen=True, slots=True)
class Begin:
    """Start an attempt at version base + 1."""

    store: str
    run: str
    checkpoint: str
    base: int
    parent: Attempt
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Changes:
    """Read the changes of the versions from `first` to `last`, the last of them by that attempt."""

    store: str
    first: int
    last: int
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Append:
    """One chunk of changes."""

    records: int
    hash_min: int
    hash_max: int
    run: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """Keys by column family at the version that is committed, and how to read its rows."""

    keys: dict[int, int]
    schema: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Offer the content of a version: about `state_bytes`; at least `min_deltas` versions after the last snapshot."""

    store: str
    run: str
    version: int
    attempt: Attempt
    state_bytes: int
    min_deltas: int


@dataclass(frozen=True, slots=True)
class Whole:
    """Begin a version that stands on nothing, of about `state_bytes`, with keys by column family."""

    store: str
    run: str
    checkpoint: str
    version: int
    attempt: Attempt
    state_bytes: int
    keys: dict[int, int]
    schema: str


@dataclass(frozen=True, slots=True)
class CleanUp:
    """Remove what the last `retain` versions do not need: at least `least` versions or none, at most `most`; 0: all."""

    store: str
    run: str
    version: int
    attempt: Attempt
    retain: int
    least: int
    most: int


class _Body:
    """Takes fields off a frame's body, never past its end."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def _unpack(self, form: struct.Struct) -> int:
        return int(form.unpack(self.take(form.size))[0])

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return self._unpack(_U16)

    def u32(self) -> int:
        return self._unpack(_U32)

    def u64(self) -> int:
        return self._unpack(_U64)

    def take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._body):
            raise MismatchError("frame ends within a field", at=self._at, length=len(self._body))
        taken = self._body[self._at : end]
        self._at = end
        return taken

    def text(self) -> str:
        raw = self.take(self.u32())
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise MismatchError("frame holds text that is not UTF-8") from None

    def attempt(self) -> Attempt:
        return Attempt(self.take(16))

    def keys(self) -> dict[int, int]:
        return {self.u16(): self.u64() for _ in range(self.u16())}

    def rest(self) -> bytes:
        return self.take(len(self._body) - self._at)

    def end(self) -> None:
        if self._at != len(self._body):
            raise MismatchError("frame has bytes too many", at=self._at, length=len(self._body))


def check_length(length: int) -> int:
    """Length of a frame's body, from the length field.

    Raises:
        MismatchError: it is empty or larger than any frame may be.
    """
    if not 1 <= length <= FRAME_BYTES_MAX:
        raise MismatchError("frame has an impossible length", length=length)
    return length - 1


def token_of_hello(body: bytes) -> bytes:
    """The token of a HELLO body, before anything else of it is looked at; short bodies give a short token."""
    return body[2 : 2 + TOKEN_BYTES]


def parse_hello(body: bytes) -> Hello:
    fields = _Body(body)
    hello = Hello(fields.u16(), fields.take(TOKEN_BYTES), fields.text(), fields.text())
    fields.end()
    return hello


def parse_open(body: bytes) -> Open:
    fields = _Body(body)
    store, version, attempt = fields.text(), fields.u64(), fields.attempt()
    have = tuple((fields.u64(), fields.attempt()) for _ in range(fields.u16()))
    fields.end()
    _must_exist(store, version)
    return Open(store, version, attempt, have)


def _must_exist(store: str, version: int) -> None:
    if version == 0:
        raise MismatchError("version 0 is empty and never asked for", store=store)


def parse_find(body: bytes) -> Find:
    fields = _Body(body)
    request = Find(fields.text(), fields.u64(), fields.attempt())
    fields.end()
    _must_exist(request.store, request.version)
    return request


def parse_read(body: bytes) -> Read:
    fields = _Body(body)
    request = Read(fields.text(), fields.u64(), fields.attempt(), fields.u8(), fields.u32())
    fields.end()
    _must_exist(request.store, request.version)
    if request.bits > BITS_MAX or request.bucket >> request.bits:
        raise MismatchError("there is no such bucket", bits=request.bits, bucket=request.bucket)
    return request


def parse_begin(body: bytes) -> Begin:
    fields = _Body(body)
    begin = Begin(fields.text(), fields.text(), fields.text(), fields.u64(), fields.attempt(), fields.attempt())
    fields.end()
    if begin.base + 1 >= VERSIONS:
        raise MismatchError("there is no version after this one", store=begin.store, base=begin.base)
    if begin.attempt == NO_ATTEMPT or (begin.base == 0) != (begin.parent == NO_ATTEMPT):
        raise MismatchError(
            "an attempt needs an id, and a parent unless its base is version 0", store=begin.store, base=begin.base
        )
    return begin


def parse_append(body: bytes) -> Append:
    if len(body) <= _APPEND.size:
        raise MismatchError("append holds no changes", length=len(body))
    records, hash_min, hash_max = _APPEND.unpack_from(body)
    if records < 1 or hash_min > hash_max:
        raise MismatchError("append has impossible counts", records=records, hash_min=hash_min, hash_max=hash_max)
    return Append(records, hash_min, hash_max, body[_APPEND.size :])


def parse_commit(body: bytes) -> Commit:
    fields = _Body(body)
    request = Commit(fields.keys(), fields.text())
    fields.end()
    return request


def parse_changes(body: bytes) -> Changes:
    fields = _Body(body)
    request = Changes(fields.text(), fields.u64(), fields.u64(), fields.attempt())
    fields.end()
    if not 1 <= request.first <= request.last:
        raise MismatchError("changes are asked for of no version", first=request.first, last=request.last)
    return request


def parse_snapshot(body: bytes) -> Snapshot:
    fields = _Body(body)
    store, run, version, attempt = fields.text(), fields.text(), fields.u64(), fields.attempt()
    request = Snapshot(store, run, version, attempt, fields.u64(), fields.u32())
    fields.end()
    return request


def parse_whole(body: bytes) -> Whole:
    fields = _Body(body)
    names = fields.text(), fields.text(), fields.text()
    request = Whole(*names, fields.u64(), fields.attempt(), fields.u64(), fields.keys(), fields.text())
    fields.end()
    if request.attempt == NO_ATTEMPT or not 2 <= request.version < VERSIONS:
        raise MismatchError(
            "a version that is written whole needs an id, and is above 1", store=request.store, version=request.version
        )
    return request


def parse_bucket(body: bytes) -> int:
    fields = _Body(body)
    bucket = fields.u32()
    fields.end()
    return bucket


def parse_clean_up(body: bytes) -> CleanUp:
    fields = _Body(body)
    store, run, version, attempt = fields.text(), fields.text(), fields.u64(), fields.attempt()
    request = CleanUp(store, run, version, attempt, fields.u32(), fields.u32(), fields.u32())
    fields.end()
    return request


def frame(frame_type: Type, body: bytes = b"") -> bytes:
    return HEADER.pack(len(body) + 1, frame_type) + body


def _text(value: str) -> bytes:
    raw = value.encode()
    return _U32.pack(len(raw)) + raw


def _counters(counters: Mapping[str, int]) -> bytes:
    return _U16.pack(len(counters)) + b"".join(_text(name) + _U64.pack(value) for name, value in counters.items())


def _keys(keys: Mapping[int, int]) -> bytes:
    return _U16.pack(len(keys)) + b"".join(_U16.pack(family) + _U64.pack(count) for family, count in keys.items())


def _held(have: Sequence[tuple[int, Attempt]]) -> bytes:
    return _U16.pack(len(have)) + b"".join(_U64.pack(version) + attempt for version, attempt in have)


def hello(token: bytes, package: str, settings: str) -> bytes:
    return frame(Type.HELLO, _U16.pack(PROTOCOL) + token + _text(package) + _text(settings))


def open_(request: Open) -> bytes:
    return frame(Type.OPEN, _text(request.store) + _U64.pack(request.version) + request.attempt + _held(request.have))


def find(request: Find) -> bytes:
    return frame(Type.FIND, _text(request.store) + _U64.pack(request.version) + request.attempt)


def read(request: Read) -> bytes:
    version = _text(request.store) + _U64.pack(request.version) + request.attempt
    return frame(Type.READ, version + bytes([request.bits]) + _U32.pack(request.bucket))


def begin(request: Begin) -> bytes:
    names = _text(request.store) + _text(request.run) + _text(request.checkpoint)
    return frame(Type.BEGIN, names + _U64.pack(request.base) + request.parent + request.attempt)


def changes(request: Changes) -> bytes:
    versions = _U64.pack(request.first) + _U64.pack(request.last)
    return frame(Type.CHANGES, _text(request.store) + versions + request.attempt)


def append(chunk: Append) -> bytes:
    return frame(Type.APPEND, _APPEND.pack(chunk.records, chunk.hash_min, chunk.hash_max) + chunk.run)


def commit(request: Commit) -> bytes:
    return frame(
        Type.COMMIT,
        _keys(request.keys) + _text(request.schema),
    )


def snapshot(request: Snapshot) -> bytes:
    names = _text(request.store) + _text(request.run) + _U64.pack(request.version) + request.attempt
    return frame(Type.SNAPSHOT, names + _U64.pack(request.state_bytes) + _U32.pack(request.min_deltas))


def whole(request: Whole) -> bytes:
    names = _text(request.store) + _text(request.run) + _text(request.checkpoint)
    version = _U64.pack(request.version) + request.attempt + _U64.pack(request.state_bytes)
    return frame(Type.WHOLE, names + version + _keys(request.keys) + _text(request.schema))


def bucket(number: int) -> bytes:
    return frame(Type.BUCKET, _U32.pack(number))


def clean_up(request: CleanUp) -> bytes:
    names = _text(request.store) + _text(request.run) + _U64.pack(request.version) + request.attempt
    return frame(Type.CLEAN_UP, names + struct.pack("<III", request.retain, request.least, request.most))


def welcome(package: str) -> bytes:
    return frame(Type.WELCOME, _text(package))


def rows(records: int, run: bytes) -> bytes:
    return frame(Type.ROWS, _U32.pack(records) + run)


def found(version: int, attempt: Attempt, base: tuple[int, Attempt], schema: str) -> bytes:
    return frame(Type.FOUND, _U64.pack(version) + attempt + _U64.pack(base[0]) + base[1] + _text(schema))


def deltas(snapshot: int) -> bytes:
    return frame(Type.DELTAS, _U64.pack(snapshot))


def content(bits: int, keys: Mapping[int, int]) -> bytes:
    return frame(Type.CONTENT, bytes([bits]) + _keys(keys))


def wanted(base: int, bits: int) -> bytes:
    return frame(Type.WANTED, _U64.pack(base) + bytes([bits]))


def maintained(counters: Mapping[str, int]) -> bytes:
    return frame(Type.MAINTAINED, _counters(counters))


def changes_of(version: int) -> bytes:
    return frame(Type.CHANGES_OF, _U64.pack(version))


def opened(counters: Mapping[str, int]) -> bytes:
    return frame(Type.OPENED, _counters(counters))


def committed(version: int, counters: Mapping[str, int]) -> bytes:
    return frame(Type.COMMITTED, _U64.pack(version) + _counters(counters))


def error(kind: int, store: str, message: str) -> bytes:
    # A message may quote what is no text; it must reach its reader all the same.
    readable = message.encode(errors="replace").decode()
    return frame(Type.ERROR, bytes([kind]) + _text(store) + _text(readable))
