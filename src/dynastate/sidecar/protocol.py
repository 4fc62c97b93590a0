"""The frames between the JVM and Python (docs/protocol.md, version 2). No I/O.

frame := length:u32  type:u8  body

Each message is a type with its number and its fields; `encode` and `decode` are the same for all of them. A frame that
breaks the protocol raises MismatchError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import Enum
from functools import singledispatch
from itertools import starmap
from typing import Annotated, Any, Final, NamedTuple, get_type_hints

from dynastate.errors import MismatchError
from dynastate.format.binary import Cursor
from dynastate.format.checkpoint import FILE_BYTES_MAX, FileEntry
from dynastate.format.keys import NO_ATTEMPT, Attempt, VersionId
from dynastate.format.manifest import BITS_MAX

PROTOCOL: Final = 2
TOKEN_BYTES: Final = 32
FRAME_BYTES_MAX: Final = 64 * 1024 * 1024 + 4096
#: A frame with a file.
FILE_FRAME_BYTES_MAX: Final = FILE_BYTES_MAX + 4096
#: Versions are below this one: Spark's are Java's long.
VERSIONS: Final = 2**63
#: The most entries of a FILES frame.
FILES_MAX: Final = 1_000
HEADER: Final = struct.Struct("<IB")


class Body(Cursor):
    """The body of a frame; fields are taken off it one by one."""

    def _ended(self) -> MismatchError:
        return MismatchError("frame ends within a field", at=self._at, length=len(self._raw))


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


def _many(kind: Kind, collection: Callable[[Any], Any] = tuple) -> Kind:
    """A count and that many values, in a tuple or another `collection`."""

    def pack(values: Any) -> bytes:
        listed = values.items() if isinstance(values, Mapping) else values
        return _U16.pack(len(values)) + b"".join(map(kind.pack, listed))

    return Kind(pack, lambda body: collection(kind.take(body) for _ in range(_U16.take(body))))


def _tuple(*kinds: Kind) -> Kind:
    def pack(values: Any) -> bytes:
        return b"".join(kind.pack(value) for kind, value in zip(kinds, values, strict=True))

    return Kind(pack, lambda body: tuple(kind.take(body) for kind in kinds))


_U8, _U16, _U32, _U64 = _number("B"), _number("H"), _number("I"), _number("Q")
_I64 = _number("q")
_TEXT: Final = _text()
_ATTEMPT: Final = Kind(bytes, lambda body: Attempt(body.take(16)))

U8 = Annotated[int, _U8]
U16 = Annotated[int, _U16]
U32 = Annotated[int, _U32]
U64 = Annotated[int, _U64]
I64 = Annotated[int, _I64]
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
Keys = Annotated[dict[int, int], _many(_tuple(_U16, _U64), dict)]
Counters = Annotated[Mapping[str, int], _many(_tuple(_TEXT, _U64), dict)]
Buckets = Annotated[tuple[int, ...], _many(_U16)]
VersionIds = Annotated[
    tuple[VersionId, ...], _many(_tuple(_U64, _ATTEMPT), lambda pairs: tuple(starmap(VersionId, pairs)))
]
Texts = Annotated[tuple[str, ...], _many(_TEXT)]
FileEntries = Annotated[
    tuple[FileEntry, ...], _many(_tuple(_TEXT, _U8, _U64, _U64), lambda entries: tuple(map(FileEntry._make, entries)))
]

# Fields of docs/protocol.md, which explains them: first the messages of the JVM, then the messages of the sidecar.
# Messages with many fields are classes.
Hello = NamedTuple("Hello", [("protocol", U16), ("token", Token), ("package", Text), ("settings", Text)])
Open = NamedTuple("Open", [("store", Text), ("version", Version), ("attempt", Id), ("have", VersionIds)])


class Begin(NamedTuple):
    """A run begins an attempt at the version after `base`."""

    store: Text
    run_id: Text
    query_id: Text
    checkpoint: Text
    base: U64
    parent: Id
    attempt: Id


Append = NamedTuple("Append", [("records", U32), ("hash_min", U32), ("hash_max", U32), ("changes", Rest)])
Commit = NamedTuple("Commit", [("keys", Keys), ("schema", Text)])
Abort = NamedTuple("Abort", [])
Changes = NamedTuple("Changes", [("store", Text), ("first", U64), ("last", U64), ("attempt", Id)])
Snapshot = NamedTuple(
    "Snapshot",
    [("store", Text), ("run_id", Text), ("version", U64), ("attempt", Id), ("state_bytes", U64), ("min_deltas", U32)],
)
Bucket = NamedTuple("Bucket", [("bucket", U32)])
SnapshotEnd = NamedTuple("SnapshotEnd", [])


class CleanUp(NamedTuple):
    """A run asks for a clean-up behind a version."""

    store: Text
    run_id: Text
    version: U64
    attempt: Id
    retain: U32
    least: U32
    most: U32


Find = NamedTuple("Find", [("store", Text), ("version", Version), ("attempt", Id)])


class Read(NamedTuple):
    """Rows of a version in some of 2^bits buckets, except for changes that are held."""

    store: Text
    version: Version
    attempt: Id
    snapshot: U64
    held: U64
    held_attempt: Id
    bits: U8
    buckets: Buckets


Check = NamedTuple("Check", [])


class Import(NamedTuple):
    """A run begins the import of a version, whose rows are written as a snapshot."""

    store: Text
    run_id: Text
    query_id: Text
    checkpoint: Text
    version: U64
    attempt: Id
    state_bytes: U64
    keys: Keys
    schema: Text


Flush = NamedTuple("Flush", [])
Added = NamedTuple("Added", [("values", I64)])
Run = NamedTuple("Run", [("run_id", Text), ("query_id", Text), ("checkpoint", Text)])
FilePut = NamedTuple("FilePut", [("checkpoint", Text), ("file", Text), ("overwrites", U8), ("data", Rest)])
FileGet = NamedTuple("FileGet", [("checkpoint", Text), ("file", Text)])
FileList = NamedTuple("FileList", [("checkpoint", Text), ("folder", Text)])
FileDelete = NamedTuple("FileDelete", [("checkpoint", Text), ("files", Texts)])
CheckpointRead = NamedTuple("CheckpointRead", [("checkpoint", Text)])
Welcome = NamedTuple("Welcome", [("package", Text)])
Rows = NamedTuple("Rows", [("records", U32), ("changes", Rest)])
Opened = NamedTuple("Opened", [("counters", Counters)])
Committed = NamedTuple("Committed", [("version", U64), ("counters", Counters)])
Found = NamedTuple("Found", [("version", U64), ("attempt", Id), ("base", U64), ("base_attempt", Id), ("schema", Text)])
ChangesOf = NamedTuple("ChangesOf", [("version", U64)])
Deltas = NamedTuple("Deltas", [("snapshot", U64), ("after", U64), ("raw_bytes", U64)])
Wanted = NamedTuple("Wanted", [("base", U64), ("bits", U8)])
Maintained = NamedTuple("Maintained", [("counters", Counters)])
Content = NamedTuple("Content", [("bits", U8), ("keys", Keys)])
Checked = NamedTuple("Checked", [])
Packed = NamedTuple(
    "Packed", [("records", U32), ("codec", Text), ("raw_bytes", U32), ("item", Text), ("changes", Rest)]
)
Held = NamedTuple("Held", [("is_applied", U8)])
Stored = NamedTuple("Stored", [("is_stored", U8), ("counters", Counters)])
File = NamedTuple("File", [("exists", U8), ("time", U64), ("counters", Counters), ("data", Rest)])
Files = NamedTuple("Files", [("entries", FileEntries)])
CheckpointFile = NamedTuple(
    "CheckpointFile", [("file", Text), ("bytes", U64), ("time", U64), ("has_data", U8), ("data", Rest)]
)
Error = NamedTuple("Error", [("kind", U8), ("store", Text), ("message", Readable)])

_OF_JVM: Final = (
    *(Hello, Open, Begin, Append, Commit, Abort, Changes, Snapshot, Bucket, SnapshotEnd, CleanUp, Find, Read, Check),
    *(Import, Flush, Added, Run, FilePut, FileGet, FileList, FileDelete, CheckpointRead),
)
_OF_SIDECAR: Final = (
    *(Welcome, Rows, Opened, Committed, Found, ChangesOf, Deltas, Wanted, Maintained, Content, Checked, Packed),
    *(Held, Stored, File, Files, CheckpointFile),
)
#: The message of each number.
MESSAGES: Final[dict[int, type[Any]]] = {**dict(enumerate(_OF_JVM, 1)), **dict(enumerate(_OF_SIDECAR, 64)), 127: Error}
_FILE_PUT: Final = 1 + _OF_JVM.index(FilePut)
_FORMS: Final[dict[type[Any], tuple[int, list[Kind]]]] = {
    form: (number, [hint.__metadata__[0] for hint in get_type_hints(form, include_extras=True).values()])
    for number, form in MESSAGES.items()
}


@singledispatch
def check(message: tuple[Any, ...]) -> None:
    """Refuse a message with values that no sender may give."""


@check.register
def _(begin: Begin) -> None:
    if begin.base + 1 >= VERSIONS:
        raise MismatchError("there is no version after this one", store=begin.store, base=begin.base)
    if begin.attempt == NO_ATTEMPT or (begin.base == 0) != (begin.parent == NO_ATTEMPT):
        raise MismatchError(
            "an attempt needs an id, and a parent unless its base is version 0", store=begin.store, base=begin.base
        )


@check.register
def _(append: Append) -> None:
    if not append.changes:
        raise MismatchError("append holds no changes")
    if append.records < 1 or append.hash_min > append.hash_max:
        facts = {"records": append.records, "hash_min": append.hash_min, "hash_max": append.hash_max}
        raise MismatchError("append has impossible counts", **facts)


@check.register
def _(changes: Changes) -> None:
    if not 1 <= changes.first <= changes.last:
        raise MismatchError("changes are requested for no version", first=changes.first, last=changes.last)


@check.register
def _(read: Read) -> None:
    if read.bits > BITS_MAX or not read.buckets or max(read.buckets) >> read.bits:
        raise MismatchError("there are no such buckets", bits=read.bits, last=max(read.buckets, default=None))
    if (read.held == 0) != (read.held_attempt == NO_ATTEMPT):
        raise MismatchError("changes are held up to a version id, or none are", store=read.store, held=read.held)


@check.register
def _(held: Held) -> None:
    if held.is_applied > 1:
        raise MismatchError("held changes are applied (1) or not (0)", got=held.is_applied)


@check.register
def _(put: FilePut) -> None:
    if put.overwrites > 1:
        raise MismatchError("a file is overwritten (1) or not (0)", got=put.overwrites)


@check.register
def _(stored: Stored) -> None:
    if stored.is_stored > 1:
        raise MismatchError("a file is stored (1) or not (0)", got=stored.is_stored)


@check.register
def _(file: File) -> None:
    if file.exists > 1 or (not file.exists and (file.time or file.data)):
        raise MismatchError("a file exists (1), or it does not (0) and has no data", got=file.exists, time=file.time)


@check.register
def _(files: Files) -> None:
    if not 1 <= len(files.entries) <= FILES_MAX or any(entry.is_folder > 1 for entry in files.entries):
        raise MismatchError("a listing has files (0) and folders (1)", entries=len(files.entries))


@check.register
def _(file: CheckpointFile) -> None:
    if file.has_data > 1 or len(file.data) != (file.bytes if file.has_data else 0):
        raise MismatchError("a file has all its data (1), or none (0)", bytes=file.bytes, data=len(file.data))


@check.register
def _(version: Import) -> None:
    if version.attempt == NO_ATTEMPT or not 2 <= version.version < VERSIONS:
        raise MismatchError(
            "an imported version needs an id, and is above 1", store=version.store, version=version.version
        )


def encode(message: tuple[Any, ...]) -> bytes:
    number, kinds = _FORMS[type(message)]
    fields = [kind.pack(value) for kind, value in zip(kinds, message, strict=True)]
    return b"".join((HEADER.pack(sum(map(len, fields)) + 1, number), *fields))


def decode(number: int, body: bytes) -> Any:  # one of the messages
    if number not in MESSAGES:
        raise MismatchError("frame is of an unknown type", type=number)
    form, fields = MESSAGES[number], Body(body, 0)
    message = form(*(kind.take(fields) for kind in _FORMS[form][1]))
    if extra := fields.rest():
        raise MismatchError("frame has bytes too many", at=len(body) - len(extra), length=len(body))
    check(message)
    return message


def check_length(length: int, number: int) -> int:
    """The bytes of a body, by the length and the type of its frame."""
    if not 1 <= length <= (FILE_FRAME_BYTES_MAX if number == _FILE_PUT else FRAME_BYTES_MAX):
        raise MismatchError("frame has an impossible length", length=length)
    return length - 1


def token_of_hello(body: bytes) -> bytes:
    """The token of a HELLO body, before anything else of it is read; short bodies give a short token."""
    return body[2 : 2 + TOKEN_BYTES]


class State(Enum):
    """State of a connection."""

    NEW = "new"
    READY = "ready"
    WRITING = "writing"
    SNAPSHOT = "snapshot"


class Transition(NamedTuple):
    """The state after a message; the state is `otherwise` if the message has begun nothing."""

    state: State
    otherwise: State = State.READY


#: The legal order of messages; any other breaks the protocol.
TRANSITIONS: Final[dict[tuple[State, type[Any]], Transition]] = {
    (State.NEW, Hello): Transition(State.READY),
    **{(State.READY, each): Transition(State.READY) for each in (Check, Run, Open, Find, Read, Changes, CleanUp)},
    **{(State.READY, each): Transition(State.READY) for each in (FilePut, FileGet, FileList, FileDelete)},
    (State.READY, CheckpointRead): Transition(State.READY),
    (State.READY, Begin): Transition(State.WRITING),
    (State.WRITING, Append): Transition(State.WRITING),
    (State.WRITING, Flush): Transition(State.WRITING),
    (State.WRITING, Added): Transition(State.WRITING),
    (State.WRITING, Commit): Transition(State.READY),
    (State.WRITING, Abort): Transition(State.READY),
    (State.READY, Snapshot): Transition(State.SNAPSHOT, otherwise=State.READY),
    (State.READY, Import): Transition(State.SNAPSHOT, otherwise=State.READY),
    (State.SNAPSHOT, Bucket): Transition(State.SNAPSHOT),
    (State.SNAPSHOT, Append): Transition(State.SNAPSHOT),
    (State.SNAPSHOT, SnapshotEnd): Transition(State.READY),
    (State.SNAPSHOT, Abort): Transition(State.READY),
}


def follow(state: State, number: int) -> Transition:
    try:
        return TRANSITIONS[state, MESSAGES[number]]
    except KeyError:
        raise MismatchError("frame is out of order", state=state.value, type=number) from None
