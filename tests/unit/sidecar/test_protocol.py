"""Frames, and their legal order."""

from __future__ import annotations

import itertools
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynastate.errors import BY_KIND, DynastateError, MismatchError
from dynastate.format.checkpoint import FileEntry
from dynastate.format.keys import NO_ATTEMPT, Attempt
from dynastate.sidecar import protocol
from dynastate.sidecar.protocol import (
    MESSAGES,
    Append,
    Begin,
    Changes,
    CheckpointFile,
    File,
    FilePut,
    Files,
    Import,
    Open,
    Read,
    State,
    Stored,
)
from tests.support.samples import QUERY

HEAD = protocol.HEADER.size
A = Attempt(b"a" * 16)
U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
TEXT = st.text("ab \0\u00e9\u2028\U0001f600", max_size=20)  # hypothesis takes seconds to list all of Unicode
ATTEMPTS = st.binary(min_size=16, max_size=16).map(Attempt)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    protocol.U8: st.integers(0, 255),
    protocol.U16: U16,
    protocol.U32: U32,
    protocol.U64: U64,
    protocol.I64: st.integers(-(2**63), 2**63 - 1),
    protocol.Version: st.integers(1, 2**64 - 1),
    protocol.Text: TEXT,
    protocol.Readable: TEXT,
    protocol.Id: ATTEMPTS,
    protocol.Token: st.binary(min_size=32, max_size=32),
    protocol.Rest: st.binary(max_size=40),
    protocol.Keys: st.dictionaries(U16, U64, max_size=5),
    protocol.Counters: st.dictionaries(TEXT, U64, max_size=5),
    protocol.Buckets: st.lists(U16, max_size=3).map(tuple),
    protocol.Texts: st.lists(TEXT, max_size=3).map(tuple),
    protocol.FileEntries: st.lists(st.builds(FileEntry, TEXT, st.integers(0, 2), U64, U64), max_size=3).map(tuple),
    protocol.VersionIds: st.lists(st.tuples(U64, ATTEMPTS), max_size=3).map(tuple),
}
messages = pytest.mark.parametrize("message_type", MESSAGES.values(), ids=lambda message: str(message.__name__))


def kinds(message_type: type) -> list[Any]:
    return list(get_type_hints(message_type, include_extras=True).values())


def decode(frame: bytes) -> object:
    return protocol.decode(frame[HEAD - 1], frame[HEAD:])


@messages
@given(data=st.data())
def test_messages_round_trip(message_type: Any, data: st.DataObject) -> None:
    """A message is read as it was written, unless it has values that no sender may give."""
    message = message_type(*(data.draw(VALUES[kind]) for kind in kinds(message_type)))
    frame = protocol.encode(message)
    assert frame[: HEAD - 1] == (len(frame) - HEAD + 1).to_bytes(4, "little")
    try:
        protocol.check(message)
    except MismatchError:
        with pytest.raises(MismatchError):
            decode(frame)
    else:
        assert decode(frame) == message


@given(st.binary(min_size=32, max_size=32))
def test_the_token_is_taken_before_the_rest(token: bytes) -> None:
    assert protocol.token_of_hello(protocol.encode(protocol.Hello(1, token, "", ""))[HEAD:]) == token


@pytest.mark.parametrize(
    "message_type", [message_type for message_type in MESSAGES.values() if protocol.Rest not in kinds(message_type)]
)
@given(data=st.data())
@settings(max_examples=5)
def test_a_body_of_another_length_is_refused(message_type: Any, data: st.DataObject) -> None:
    frame = protocol.encode(message_type(*(data.draw(VALUES[kind]) for kind in kinds(message_type))))
    for length in range(HEAD, len(frame)):
        with pytest.raises(MismatchError, match="ends within a field"):
            decode(frame[:length])
    with pytest.raises(MismatchError, match="bytes too many"):
        decode(frame + b"x")


def test_text_that_is_not_utf8_is_refused() -> None:
    frame = protocol.encode(Open("store", 1, A, ())).replace(b"store", b"st\xffre")
    with pytest.raises(MismatchError, match="not UTF-8"):
        decode(frame)


@pytest.mark.parametrize(
    "message",
    [
        Open("s", 0, NO_ATTEMPT, ()),
        Read("s", 1, A, 0, 0, NO_ATTEMPT, 13, (0,)),
        Read("s", 1, A, 0, 0, NO_ATTEMPT, 1, (1, 2)),
        Read("s", 1, A, 0, 0, NO_ATTEMPT, 1, ()),
        Read("s", 2, A, 0, 1, NO_ATTEMPT, 1, (0,)),
        Read("s", 2, A, 0, 0, A, 1, (0,)),
        Begin("s", "r", QUERY, "c", 0, A, A),
        Begin("s", "r", QUERY, "c", 1, NO_ATTEMPT, A),
        Begin("s", "r", QUERY, "c", 0, NO_ATTEMPT, NO_ATTEMPT),
        Begin("s", "r", QUERY, "c", 2**63 - 1, A, A),
        Begin("s", "r", QUERY, "c", 2**64 - 1, A, A),
        Import("s", "r", QUERY, "c", 1, A, 0, {}, ""),
        Import("s", "r", QUERY, "c", 2, NO_ATTEMPT, 0, {}, ""),
        Import("s", "r", QUERY, "c", 2**63, A, 0, {}, ""),
        Append(1, 0, 0, b""),
        Append(0, 0, 0, b"x"),
        Append(1, 2, 1, b"x"),
        Changes("s", 0, 1, A),
        Changes("s", 2, 1, A),
        FilePut("ns/q", "f", 2, b""),
        Stored(2, {}),
        File(2, 0, {}, b""),
        File(0, 1, {}, b""),
        File(0, 0, {}, b"x"),
        CheckpointFile("f", bytes=2, time=0, has_data=1, data=b"x"),
        CheckpointFile("f", bytes=1, time=0, has_data=0, data=b"x"),
        CheckpointFile("f", bytes=1, time=0, has_data=2, data=b"x"),
        Files(()),
        Files((FileEntry("f", 2, 0, 0),)),  # type: ignore[arg-type]  # neither a file nor a folder
    ],
    ids=str,
)
def test_impossible_requests_are_refused(message: tuple[object, ...]) -> None:
    """No request opens version 0 or imports 1; attempts above version 1 have a parent; chunks have changes."""
    with pytest.raises(MismatchError):
        decode(protocol.encode(message))


def test_the_last_version_can_be_made() -> None:
    """Versions go up to 2^63 - 1."""
    last = Begin("s", "r", QUERY, "c", 2**63 - 2, A, A)
    assert decode(protocol.encode(last)) == last


@pytest.mark.parametrize("length", [0, protocol.FRAME_BYTES_MAX + 1, 2**32 - 1])
def test_impossible_lengths_are_refused(length: int) -> None:
    """A frame is neither empty nor larger than the largest row with what surrounds it."""
    with pytest.raises(MismatchError, match=f"impossible length length={length}"):
        protocol.check_length(length, 4)
    assert protocol.check_length(1, 4) == 0
    assert protocol.check_length(protocol.FRAME_BYTES_MAX, 4) == protocol.FRAME_BYTES_MAX - 1


def test_a_frame_with_a_file_may_be_larger() -> None:
    number = protocol.encode(FilePut("n/q", "f", 0, b""))[4]
    assert protocol.check_length(protocol.FILE_FRAME_BYTES_MAX, number) == protocol.FILE_FRAME_BYTES_MAX - 1
    with pytest.raises(MismatchError, match="impossible length"):
        protocol.check_length(protocol.FILE_FRAME_BYTES_MAX + 1, number)


#: docs/protocol.md, "Order": what may follow what, and the state after it.
LEGAL = {
    (State.NEW, 1): State.READY,
    (State.READY, 2): State.READY,
    (State.READY, 7): State.READY,
    (State.READY, 3): State.WRITING,
    (State.WRITING, 4): State.WRITING,
    (State.WRITING, 16): State.WRITING,
    (State.WRITING, 17): State.WRITING,
    (State.WRITING, 5): State.READY,
    (State.WRITING, 6): State.READY,
    (State.READY, 11): State.READY,
    (State.READY, 12): State.READY,
    (State.READY, 13): State.READY,
    (State.READY, 14): State.READY,
    (State.READY, 18): State.READY,
    **{(State.READY, number): State.READY for number in (19, 20, 21, 22, 23)},
    (State.READY, 8): State.SNAPSHOT,
    (State.READY, 15): State.SNAPSHOT,
    (State.SNAPSHOT, 9): State.SNAPSHOT,
    (State.SNAPSHOT, 4): State.SNAPSHOT,
    (State.SNAPSHOT, 10): State.READY,
    (State.SNAPSHOT, 6): State.READY,
}


def test_transitions() -> None:
    """Of all states and all 256 frame types just the steps of the docs are legal; any other is refused."""
    for state, frame_type in itertools.product(State, range(256)):
        if (state, frame_type) in LEGAL:
            assert protocol.follow(state, frame_type).state is LEGAL[state, frame_type]
        else:
            with pytest.raises(MismatchError, match=f"out of order state={state.value} type={frame_type}"):
                protocol.follow(state, frame_type)


def test_an_error_with_text_that_is_no_utf8_is_still_sent() -> None:
    """An error message that cannot be written as UTF-8 is made readable, instead of failing itself."""
    frame = protocol.encode(protocol.Error(1, "s", "unknown setting \ud800"))
    assert decode(frame) == protocol.Error(1, "s", "unknown setting ?")


def test_every_error_has_its_kind() -> None:
    """The kinds of errors are those of docs/protocol.md, each of one class."""
    ours = [each for each in DynastateError.__subclasses__() if each.__module__.startswith("dynastate.")]
    assert {each.kind: each for each in ours} == BY_KIND
    assert {kind: each.__name__ for kind, each in BY_KIND.items()} == {
        1: "ConfigurationError",
        2: "UnavailableError",
        3: "UnknownOutcomeError",
        4: "VersionMissingError",
        5: "CorruptStateError",
        6: "MismatchError",
        7: "InternalError",
    }
