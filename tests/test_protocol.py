"""Frames, and what may follow what."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynastate import protocol
from dynastate.errors import MismatchError
from dynastate.layout import NO_ATTEMPT, Attempt
from dynastate.protocol import Append, Begin, Changes, Commit, Open, State, Type, Whole

HEAD = protocol.HEADER.size
A = Attempt(b"a" * 16)
U16, U32, U64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
TEXT = st.text(max_size=20)
ATTEMPTS = st.binary(min_size=16, max_size=16).map(Attempt)
PARSERS: dict[str, Callable[[bytes], object]] = {
    "hello": protocol.parse_hello,
    "open": protocol.parse_open,
    "begin": protocol.parse_begin,
    "append": protocol.parse_append,
    "commit": protocol.parse_commit,
}
parsers = pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)


@given(st.binary(min_size=32, max_size=32), TEXT, TEXT)
def test_hello_round_trip(token: bytes, package: str, settings: str) -> None:
    """A HELLO is read as it was written, and its token can be taken before the rest is looked at."""
    body = protocol.hello(token, package, settings)[HEAD:]
    assert protocol.token_of_hello(body) == token
    assert protocol.parse_hello(body) == protocol.Hello(protocol.PROTOCOL, token, package, settings)


@given(TEXT, st.integers(1, 2**64 - 1), ATTEMPTS, st.lists(st.tuples(U64, ATTEMPTS), max_size=3))
def test_open_round_trip(store: str, version: int, attempt: Attempt, have: list[tuple[int, Attempt]]) -> None:
    """An OPEN is read as it was written."""
    request = Open(store, version, attempt, tuple(have))
    assert protocol.parse_open(protocol.open_(request)[HEAD:]) == request


@given(TEXT, TEXT, TEXT, st.integers(1, 2**63 - 2), ATTEMPTS, ATTEMPTS)
def test_begin_round_trip(store: str, run: str, checkpoint: str, base: int, parent: Attempt, attempt: Attempt) -> None:
    """A BEGIN is read as it was written; without an id, or a parent where there must be one, it is refused."""
    request = Begin(store, run, checkpoint, base, parent, attempt)
    body = protocol.begin(request)[HEAD:]
    if NO_ATTEMPT in (parent, attempt):
        with pytest.raises(MismatchError):
            protocol.parse_begin(body)
    else:
        assert protocol.parse_begin(body) == request


@given(st.integers(1, 2**32 - 1), U32, U32, st.binary(min_size=1))
def test_append_round_trip(records: int, one: int, other: int, run: bytes) -> None:
    """An APPEND is read as it was written."""
    request = Append(records, min(one, other), max(one, other), run)
    assert protocol.parse_append(protocol.append(request)[HEAD:]) == request


@given(st.dictionaries(U16, U64, max_size=5), TEXT)
def test_commit_round_trip(keys: dict[int, int], schema: str) -> None:
    """A COMMIT is read as it was written."""
    assert protocol.parse_commit(protocol.commit(Commit(keys, schema))[HEAD:]) == Commit(keys, schema)


@given(TEXT, st.integers(1, 2**32), st.integers(0, 2**32), ATTEMPTS)
def test_changes_round_trip(store: str, first: int, more: int, attempt: Attempt) -> None:
    """A CHANGES is read as it was written."""
    request = Changes(store, first, first + more, attempt)
    assert protocol.parse_changes(protocol.changes(request)[HEAD:]) == request


@parsers
@given(body=st.binary(max_size=120))
def test_any_bytes_are_a_message_or_an_error(parse: Callable[[bytes], object], body: bytes) -> None:
    """Whatever a body holds, it is a message, or MismatchError."""
    try:
        parse(body)
    except MismatchError:
        return


@pytest.mark.parametrize(
    ("parse", "frame"),
    [
        (protocol.parse_hello, protocol.hello(bytes(32), "0.1.0", "{}")),
        (protocol.parse_open, protocol.open_(Open("s", 1, A, ((1, A),)))),
        (protocol.parse_begin, protocol.begin(Begin("s", "r", "c", 1, A, A))),
        (protocol.parse_commit, protocol.commit(Commit({0: 1}, "{}"))),
        (protocol.parse_changes, protocol.changes(Changes("s", 1, 2, A))),
    ],
)
def test_a_body_that_is_cut_or_goes_on_is_refused(parse: Callable[[bytes], object], frame: bytes) -> None:
    """A body is read whole or not at all: every shorter one, and one with bytes left, is refused."""
    body = frame[HEAD:]
    for length in range(len(body)):
        with pytest.raises(MismatchError, match="ends within a field"):
            parse(body[:length])
    with pytest.raises(MismatchError, match="bytes too many"):
        parse(body + b"x")


def test_text_that_is_not_utf8_is_refused() -> None:
    """Text fields are UTF-8."""
    body = protocol.open_(Open("store", 1, A, ()))[HEAD:].replace(b"store", b"st\xffre")
    with pytest.raises(MismatchError, match="not UTF-8"):
        protocol.parse_open(body)


def test_impossible_requests_are_refused() -> None:
    """Version 0 is not opened; an attempt has a parent exactly when its base is not version 0; a chunk has changes.

    A version that stands on nothing is above 1.
    """
    for broken in (
        lambda: protocol.parse_open(protocol.open_(Open("s", 0, NO_ATTEMPT, ()))[HEAD:]),
        lambda: protocol.parse_begin(protocol.begin(Begin("s", "r", "c", 0, A, A))[HEAD:]),
        lambda: protocol.parse_begin(protocol.begin(Begin("s", "r", "c", 1, NO_ATTEMPT, A))[HEAD:]),
        lambda: protocol.parse_begin(protocol.begin(Begin("s", "r", "c", 0, NO_ATTEMPT, NO_ATTEMPT))[HEAD:]),
        lambda: protocol.parse_begin(protocol.begin(Begin("s", "r", "c", 2**63 - 1, A, A))[HEAD:]),
        lambda: protocol.parse_begin(protocol.begin(Begin("s", "r", "c", 2**64 - 1, A, A))[HEAD:]),
        lambda: protocol.parse_whole(protocol.whole(Whole("s", "r", "c", 1, A, 0, {}, ""))[HEAD:]),
        lambda: protocol.parse_whole(protocol.whole(Whole("s", "r", "c", 2, NO_ATTEMPT, 0, {}, ""))[HEAD:]),
        lambda: protocol.parse_whole(protocol.whole(Whole("s", "r", "c", 2**63, A, 0, {}, ""))[HEAD:]),
        lambda: protocol.parse_append(protocol.append(Append(1, 0, 0, b""))[HEAD:]),
        lambda: protocol.parse_append(protocol.append(Append(0, 0, 0, b"x"))[HEAD:]),
        lambda: protocol.parse_append(protocol.append(Append(1, 2, 1, b"x"))[HEAD:]),
        lambda: protocol.parse_append(b""),
        lambda: protocol.parse_changes(protocol.changes(Changes("s", 0, 1, A))[HEAD:]),
        lambda: protocol.parse_changes(protocol.changes(Changes("s", 2, 1, A))[HEAD:]),
    ):
        with pytest.raises(MismatchError):
            broken()
    last = Begin("s", "r", "c", 2**63 - 2, A, A)
    assert protocol.parse_begin(protocol.begin(last)[HEAD:]) == last


@pytest.mark.parametrize("length", [0, protocol.FRAME_BYTES_MAX + 1, 2**32 - 1])
def test_impossible_lengths_are_refused(length: int) -> None:
    """A frame is neither empty nor larger than the largest row with what surrounds it."""
    with pytest.raises(MismatchError, match=f"impossible length length={length}"):
        protocol.check_length(length)
    assert protocol.check_length(1) == 0
    assert protocol.check_length(protocol.FRAME_BYTES_MAX) == protocol.FRAME_BYTES_MAX - 1


#: docs/protocol.md, "Order": what may follow what, and the state after it.
LEGAL = {
    (State.NEW, 1): State.READY,
    (State.READY, 2): State.READY,
    (State.READY, 7): State.READY,
    (State.READY, 3): State.WRITING,
    (State.WRITING, 4): State.WRITING,
    (State.WRITING, 5): State.READY,
    (State.WRITING, 6): State.READY,
    (State.READY, 11): State.READY,
    (State.READY, 12): State.READY,
    (State.READY, 13): State.READY,
    (State.READY, 14): State.READY,
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
            assert protocol.follow(state, frame_type) is LEGAL[state, frame_type]
        else:
            with pytest.raises(MismatchError, match=f"out of order state={state.value} type={frame_type}"):
                protocol.follow(state, frame_type)


def test_an_error_with_text_that_is_none_is_still_sent() -> None:
    """An error message that cannot be written as UTF-8 is made readable, and not lost for another error."""
    frame = protocol.error(1, "s", "unknown setting \ud800")
    assert frame.endswith(b"unknown setting ?")
    assert frame[HEAD - 1] == Type.ERROR
