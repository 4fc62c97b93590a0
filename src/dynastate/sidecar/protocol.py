"""The frames between the JVM and Python (docs/protocol.md, version 1). No I/O.

frame := length:u32  type:u8  body

Each message is a class with its number and its fields; `encode` and `decode` are the same for all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import starmap
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_type_hints

from dynastate.errors import MismatchError
from dynastate.format.keys import NO_ATTEMPT, Attempt, VersionId
from dynastate.format.manifest import BITS_MAX

PROTOCOL: Final = 1
TOKEN_BYTES: Final = 32
FRAME_BYTES_MAX: Final = 64 * 1024 * 1024 + 4096
#: Versions are below this one: Spark's are Java's long.
VERSIONS: Final = 2**63
HEADER: Final = struct.Struct("<IB")

# -------------------------------------------------------------------------------------------------------------- fields


class Body:
    """The body of a frame; fields are taken off it one by one, never past its end."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._body):
            raise MismatchError("frame ends within a field", at=self._at, length=len(self._body))
        taken = self._body[self._at : end]
        self._at = end
        return taken

    def rest(self) -> bytes:
        return self.take(len(self._body) - self._at)

    def end(self) -> None:
        if self._at != len(self._body):
            raise MismatchError("frame has bytes too many", at=self._at, length=len(self._body))


class Kind(NamedTuple):
    """A kind of field: its value as bytes, and the value taken off a body."""

    pack: Callable[[Any], bytes]
    take: Callable[[Body], Any]


def _number(code: str) -> Kind:
    form = struct.Struct(f"<{code}")
    return Kind(form.pack, lambda body: form.unpack(body.take(form.size))[0])


def _text(errors: str = "strict") -> Kind:
    def pack(value: str) -> bytes:
        raw = value.encode(errors=errors)
        return _U32.pack(len(raw)) + raw

    return Kind(pack, _take_text)


def _take_text(body: Body) -> str:
    try:
        return body.take(_U32.take(body)).decode()
    except UnicodeDecodeError:
        raise MismatchError("frame holds text that is not UTF-8") from None


def _take_version(body: Body) -> int:
    version: int = _U64.take(body)
    if version == 0:
        raise MismatchError("version 0 is empty and never requested")
    return version


def _pairs(first: Kind, second: Kind, made: Callable[[Any], Any]) -> Kind:
    """A count and that many pairs, in a dict or tuple."""

    def pack(pairs: Any) -> bytes:
        listed = pairs.items() if isinstance(pairs, Mapping) else pairs
        return _U16.pack(len(pairs)) + b"".join(first.pack(one) + second.pack(other) for one, other in listed)

    return Kind(pack, lambda body: made((first.take(body), second.take(body)) for _ in range(_U16.take(body))))


_U16, _U32, _U64 = _number("H"), _number("I"), _number("Q")
_TEXT: Final = _text()
_ATTEMPT: Final = Kind(bytes, lambda body: Attempt(body.take(16)))

U8 = Annotated[int, _number("B")]
U16 = Annotated[int, _U16]
U32 = Annotated[int, _U32]
U64 = Annotated[int, _U64]
#: A version in a request: not the empty one.
Version = Annotated[int, Kind(_U64.pack, _take_version)]
Text = Annotated[str, _TEXT]
#: Text that may contain what UTF-8 cannot encode: that is replaced, so that the text always arrives.
Readable = Annotated[str, _text("replace")]
Id = Annotated[Attempt, _ATTEMPT]
Token = Annotated[bytes, Kind(bytes, lambda body: body.take(TOKEN_BYTES))]
#: Everything up to the end of the frame.
Rest = Annotated[bytes, Kind(bytes, Body.rest)]
#: Number of keys by column family.
Keys = Annotated[dict[int, int], _pairs(_U16, _U64, dict)]
Counters = Annotated[Mapping[str, int], _pairs(_TEXT, _U64, dict)]
VersionIds = Annotated[tuple[VersionId, ...], _pairs(_U64, _ATTEMPT, lambda pairs: tuple(starmap(VersionId, pairs)))]

# ------------------------------------------------------------------------------------------------------------ messages

Message = TypeVar("Message", bound=type[tuple[Any, ...]])

#: The message of each number.
MESSAGES: Final[dict[int, type[Any]]] = {}
_FORMS: Final[dict[type[Any], tuple[int, tuple[Kind, ...]]]] = {}


def message(number: int) -> Callable[[Message], Message]:
    """Declare a message. Its `check`, if it has one, refuses values that no sender may give."""

    def declare(made: Message) -> Message:
        kinds = (hint.__metadata__[0] for hint in get_type_hints(made, include_extras=True).values())
        MESSAGES[number], _FORMS[made] = made, (number, tuple(kinds))
        return made

    return declare


@message(1)
class Hello(NamedTuple):
    """The first frame of a connection. The token is verified before the rest is read."""

    protocol: U16
    token: Token
    package: Text
    settings: Text


@message(2)
class Open(NamedTuple):
    """Open a version; `have` are versions that the provider holds in memory."""

    store: Text
    version: Version
    attempt: Id
    have: VersionIds


@message(3)
class Begin(NamedTuple):
    """Start an attempt at version base + 1."""

    store: Text
    run_id: Text
    checkpoint: Text
    base: U64
    parent: Id
    attempt: Id

    def check(self) -> None:
        if self.base + 1 >= VERSIONS:
            raise MismatchError("there is no version after this one", store=self.store, base=self.base)
        if self.attempt == NO_ATTEMPT or (self.base == 0) != (self.parent == NO_ATTEMPT):
            raise MismatchError(
                "an attempt needs an id, and a parent unless its base is version 0", store=self.store, base=self.base
            )


@message(4)
class Append(NamedTuple):
    """One chunk of changes."""

    records: U32
    hash_min: U32
    hash_max: U32
    changes: Rest

    def check(self) -> None:
        if not self.changes:
            raise MismatchError("append holds no changes")
        if self.records < 1 or self.hash_min > self.hash_max:
            facts = {"records": self.records, "hash_min": self.hash_min, "hash_max": self.hash_max}
            raise MismatchError("append has impossible counts", **facts)


@message(5)
class Commit(NamedTuple):
    """Commit the attempt; `keys` and `schema` (how to read its rows) are those of the new version."""

    keys: Keys
    schema: Text


@message(6)
class Abort(NamedTuple):
    """End the attempt, or the snapshot, without a version."""


@message(7)
class Changes(NamedTuple):
    """Read the changes of the versions from `first` to `last`; `attempt` made the last of them."""

    store: Text
    first: U64
    last: U64
    attempt: Id

    def check(self) -> None:
        if not 1 <= self.first <= self.last:
            raise MismatchError("changes are requested for no version", first=self.first, last=self.last)


@message(8)
class Snapshot(NamedTuple):
    """Offer the content of a version: about `state_bytes`; at least `min_deltas` versions after the last snapshot."""

    store: Text
    run_id: Text
    version: U64
    attempt: Id
    state_bytes: U64
    min_deltas: U32


@message(9)
class Bucket(NamedTuple):
    """Begin a bucket of the snapshot."""

    bucket: U32


@message(10)
class SnapshotEnd(NamedTuple):
    """Make a snapshot of the buckets that were sent."""


@message(11)
class CleanUp(NamedTuple):
    """Delete what the last `retain` versions do not need: at least `least` versions or none, at most `most`; 0: all."""

    store: Text
    run_id: Text
    version: U64
    attempt: Id
    retain: U32
    least: U32
    most: U32


@message(12)
class Find(NamedTuple):
    """Open a version without its rows."""

    store: Text
    version: Version
    attempt: Id


@message(13)
class Read(NamedTuple):
    """Read the rows of a version in one of 2^bits buckets."""

    store: Text
    version: Version
    attempt: Id
    bits: U8
    bucket: U32

    def check(self) -> None:
        if self.bits > BITS_MAX or self.bucket >> self.bits:
            raise MismatchError("there is no such bucket", bits=self.bits, bucket=self.bucket)


@message(14)
class Check(NamedTuple):
    """Check that DynamoDB can be reached, and that its tables exist and fit."""


@message(15)
class Whole(NamedTuple):
    """Begin a version without a parent, of about `state_bytes`, written as a snapshot."""

    store: Text
    run_id: Text
    checkpoint: Text
    version: U64
    attempt: Id
    state_bytes: U64
    keys: Keys
    schema: Text

    def check(self) -> None:
        if self.attempt == NO_ATTEMPT or not 2 <= self.version < VERSIONS:
            raise MismatchError(
                "a version without a parent needs an id, and is above 1", store=self.store, version=self.version
            )


@message(64)
class Welcome(NamedTuple):
    """HELLO was accepted."""

    package: Text


@message(65)
class Rows(NamedTuple):
    """One chunk of rows or changes."""

    records: U32
    changes: Rest


@message(66)
class Opened(NamedTuple):
    """The end of an answer with rows."""

    counters: Counters


@message(67)
class Committed(NamedTuple):
    """The attempt is a version."""

    version: U64
    counters: Counters


@message(68)
class Found(NamedTuple):
    """The version that was opened, and the version that the rows after it are added to."""

    version: U64
    attempt: Id
    base: U64
    base_attempt: Id
    schema: Text


@message(69)
class ChangesOf(NamedTuple):
    """The version whose changes follow."""

    version: U64


@message(70)
class Deltas(NamedTuple):
    """The end of the rows of a snapshot; changes since its version follow."""

    snapshot: U64


@message(71)
class Wanted(NamedTuple):
    """The snapshot is accepted, in 2^bits buckets; those unchanged since version `base` need not be sent."""

    base: U64
    bits: U8


@message(72)
class Maintained(NamedTuple):
    """Maintenance has ended."""

    counters: Counters


@message(73)
class Content(NamedTuple):
    """How many keys a version has, and in how many buckets its rows are best read."""

    bits: U8
    keys: Keys


@message(74)
class Checked(NamedTuple):
    """DynamoDB can be reached, and its tables exist and fit."""


@message(127)
class Error(NamedTuple):
    """A failure; `kind` is that of `dynastate.errors`."""

    kind: U8
    store: Text
    message: Readable


def encode(message: tuple[Any, ...]) -> bytes:
    """The frame of a message."""
    number, kinds = _FORMS[type(message)]
    fields = [kind.pack(value) for kind, value in zip(kinds, message, strict=True)]
    return b"".join((HEADER.pack(sum(map(len, fields)) + 1, number), *fields))


def decode(number: int, body: bytes) -> Any:  # one of the messages
    """The message of a frame.

    Raises:
        MismatchError: there is no such message, or the body is not one.
    """
    if number not in MESSAGES:
        raise MismatchError("frame is of an unknown type", type=number)
    made, fields = MESSAGES[number], Body(body)
    found = made(*(kind.take(fields) for kind in _FORMS[made][1]))
    fields.end()
    if hasattr(made, "check"):
        found.check()
    return found


def check_length(length: int) -> int:
    """Length of a frame's body, from the length field.

    Raises:
        MismatchError: it is empty or larger than any frame may be.
    """
    if not 1 <= length <= FRAME_BYTES_MAX:
        raise MismatchError("frame has an impossible length", length=length)
    return length - 1


def token_of_hello(body: bytes) -> bytes:
    """The token of a HELLO body, before anything else of it is read; short bodies give a short token."""
    return body[2 : 2 + TOKEN_BYTES]


# --------------------------------------------------------------------------------------------------------------- order


class State(Enum):
    """State of a connection."""

    NEW = "new"
    READY = "ready"
    WRITING = "writing"
    SNAPSHOT = "snapshot"


#: The legal order of messages; any other breaks the protocol.
TRANSITIONS: Final[dict[tuple[State, type[Any]], State]] = {
    (State.NEW, Hello): State.READY,
    **{(State.READY, each): State.READY for each in (Check, Open, Find, Read, Changes, CleanUp)},
    (State.READY, Begin): State.WRITING,
    (State.WRITING, Append): State.WRITING,
    (State.WRITING, Commit): State.READY,
    (State.WRITING, Abort): State.READY,
    (State.READY, Snapshot): State.SNAPSHOT,  # READY again, unless it is wanted
    (State.READY, Whole): State.SNAPSHOT,
    (State.SNAPSHOT, Bucket): State.SNAPSHOT,
    (State.SNAPSHOT, Append): State.SNAPSHOT,
    (State.SNAPSHOT, SnapshotEnd): State.READY,
    (State.SNAPSHOT, Abort): State.READY,
}


def follow(state: State, number: int) -> State:
    """The state after a frame of this type from the JVM.

    Raises:
        MismatchError: that frame is not legal in this state.
    """
    try:
        return TRANSITIONS[state, MESSAGES[number]]
    except KeyError:
        raise MismatchError("frame is out of order", state=state.value, type=number) from None
