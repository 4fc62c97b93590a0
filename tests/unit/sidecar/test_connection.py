"""A connection alone, without a process: answers to frames, with faults."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import pytest

import dynastate
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine import snapshot_threshold
from dynastate.engine.checkpoint import CheckpointFiles
from dynastate.engine.commit import INLINE_BYTES_MAX
from dynastate.engine.engine import Engine
from dynastate.errors import (
    ConfigurationError,
    CorruptStateError,
    InternalError,
    UnavailableError,
    UnknownOutcomeError,
    VersionMissingError,
)
from dynastate.format.changes import key_hash
from dynastate.format.checkpoint import Checkpoint
from dynastate.format.keys import NO_ATTEMPT, version_list_key
from dynastate.sidecar import listener, protocol
from dynastate.sidecar.connection import Connection
from dynastate.sidecar.engines import Engines
from dynastate.sidecar.protocol import Find, Import, Open, Read
from tests.support.contents import items_of, parts_of
from tests.support.engine_driver import Engines as EngineMaker
from tests.support.engine_driver import fold, make_engine, read, save_snapshot, write
from tests.support.faults import FailingTables, Fault
from tests.support.frames import BUCKET, COMMIT, HELLO, OPEN, TOKEN, append, begin, hello
from tests.support.limits import set_limits
from tests.support.memory_tables import MemoryTables
from tests.support.samples import CHECKPOINT, QUERY, SCHEMA, A, B, State, attempt, noise
from tests.support.sidecar import ROWS, WITHIN_S, FixedEngines, chunk_of, error_of


def converse(
    engines: Engines, *frames: bytes, send: Callable[[bytes], None] | None = None, first: bytes = HELLO
) -> list[Any]:
    """Send these frames after HELLO; return the answers after WELCOME."""
    replies: list[bytes] = []
    Connection(BytesIO(first + b"".join(frames)), send or replies.append, TOKEN, engines, lambda: True).serve()
    answers = [protocol.decode(each[4], each[5:]) for each in replies]
    return answers[1:] if answers and isinstance(answers[0], protocol.Welcome) else answers


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigurationError("wrong"), ConfigurationError.kind),
        (UnavailableError("throttled"), UnavailableError.kind),
        (InternalError("a defect"), InternalError.kind),
        (KeyError("a defect"), InternalError.kind),
        (PermissionError("no defect"), InternalError.kind),
    ],
)
def test_any_failure_at_first_contact_is_answered(error: Exception, kind: int) -> None:
    """Tables that cannot be checked are an error frame, whatever the reason, and never a connection that just ends."""
    (answer,) = converse(FixedEngines(error), OPEN)
    found_kind, _, message = error_of(answer)
    assert found_kind == kind
    assert str(error) in message


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UnavailableError("throttled"), 2),
        (UnknownOutcomeError("it may have happened"), 3),
        (RuntimeError("a defect"), 7),
        (FileNotFoundError("a token's file"), 7),
    ],
)
def test_a_failed_commit_is_answered_by_its_kind(
    failing_engine: Engine, failing_tables: FailingTables, store: str, error: Exception, kind: int
) -> None:
    """COMMIT is answered by the error's kind, and the next attempt works."""
    failing_tables.fail("update", Fault(error))
    first, second = [begin(store, A), append({b"a": b"1"}), COMMIT], [begin(store, B), append({b"a": b"2"}), COMMIT]
    answers = converse(FixedEngines(failing_engine), *first, *second)
    assert [type(answer) for answer in answers] == [protocol.Error, protocol.Committed]
    assert error_of(answers[0])[:2] == (kind, store)
    assert read(failing_engine, store, 1) == {b"a": b"2"}


@pytest.fixture
def corrupt_snapshot(engines: EngineMaker, memory: MemoryTables, store: str, monkeypatch: pytest.MonkeyPatch) -> State:
    """Tables with a store whose snapshot at version 3, of 8 buckets, has lost the last one; the state at version 4."""
    monkeypatch.setattr(snapshot_threshold, "threshold_of", lambda *_: 0.0)
    set_limits(monkeypatch, window_parts=2)
    state = {b"%d" % number: b"%d" % number for number in range(60)}
    version = write(engines(), store, attempt(1), state)
    version = write(engines(), store, attempt(2), {b"1": None}, base=version)
    version = write(engines(), store, attempt(3), {b"2": b"two"}, base=version)
    state = {key: value for key, value in state.items() if key != b"1"} | {b"2": b"two"}
    save_snapshot(engines(), store, version, state)
    write(engines(), store, attempt(4), {b"3": b"three"}, base=version)
    last = max(key for key in memory.items if key.sort.startswith("bucket/"))
    del memory.items[last]
    return state | {b"3": b"three"}


def take_answers(answers: Sequence[Any]) -> tuple[list[type], State]:
    """Take frames as the provider does: FOUND discards what came before."""
    state: State = {}
    for answer in answers:
        if isinstance(answer, protocol.Found):
            state = {}
        elif isinstance(answer, ROWS):
            state = fold([chunk_of(answer)], state)
    return [type(answer) for answer in answers if not isinstance(answer, ROWS)], state


def test_open_falls_back_from_a_corrupt_snapshot(
    engine: Engine, corrupt_snapshot: State, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If a bucket is lost while rows of the snapshot are sent, FOUND comes again, and then all rows."""
    answers = converse(FixedEngines(engine), protocol.encode(Open(store, 4, attempt(4), ())))
    kinds, state = take_answers(answers)
    assert kinds == [protocol.Found, protocol.Found, protocol.Opened]
    assert isinstance(answers[1], ROWS)
    assert state == corrupt_snapshot
    assert "recovery skips a corrupt snapshot" in caplog.text
    assert "item=bucket/" in caplog.text


def test_compressed_rows_come_with_their_place(engines: EngineMaker, memory: MemoryTables, store: str) -> None:
    """The error of a block that the JVM cannot decompress names its item as others do: in a part, or in a list."""
    version = write(engines(), store, attempt(1), {b"%d" % number: bytes(20) for number in range(100)})
    write(engines(inline_bytes=INLINE_BYTES_MAX), store, attempt(2), {b"1": bytes(100)}, base=version)
    answers = converse(FixedEngines(engines()), protocol.encode(Open(store, 2, attempt(2), ())))
    ((part, _),) = parts_of(memory, store)
    places = [answer.item for answer in answers if isinstance(answer, protocol.Packed)]
    assert places == [
        f"table={memory.names[key.role]} store_shard={key.store_shard} item={key.sort}"
        for key in (part, version_list_key(store, 2))
    ]


def test_read_falls_back_from_a_corrupt_snapshot(engine: Engine, corrupt_snapshot: State, store: str) -> None:
    """READ of each half: the one with the lost bucket sends FOUND, and then all its rows."""
    engines = FixedEngines(engine)
    state: State = {}
    for half in (0, 1):
        answers = converse(engines, protocol.encode(Read(store, 4, attempt(4), 0, 0, NO_ATTEMPT, 1, (half,))))
        kinds, rows = take_answers(answers)
        state |= {key: value for key, value in rows.items() if key_hash(key) >> 31 == half}
        assert kinds == ([protocol.Found] if half else []) + [protocol.Held, protocol.Deltas, protocol.Opened]
    assert state == corrupt_snapshot


def test_find_falls_back_without_a_manifest(
    engine: Engine, corrupt_snapshot: State, memory: MemoryTables, store: str
) -> None:
    """FIND answers as if the snapshot were not there."""
    del memory.items[next(key for key in memory.items if key.sort.startswith("snapshot_manifest/"))]
    answers = converse(FixedEngines(engine), protocol.encode(Find(store, 4, attempt(4))))
    assert [type(answer) for answer in answers] == [protocol.Found, protocol.Content, protocol.Opened]


def test_open_fails_without_a_route(engine: Engine, corrupt_snapshot: State, memory: MemoryTables, store: str) -> None:
    """If a part below the corrupt snapshot is lost, the answer is one ERROR, and the connection stays ready."""
    del memory.items[next(key for key in memory.items if key.role == "delta" and key.sort.startswith(f"{2:020d}/"))]
    request = protocol.encode(Open(store, 4, attempt(4), ()))
    answers = converse(FixedEngines(engine), request, request)
    *_, first, second = (each for each in answers if isinstance(each, protocol.Error))
    for error in (first, second):
        kind, named, message = error_of(error)
        assert (kind, named) == (CorruptStateError.kind, store)
        assert f"item={2:020d}/" in message
        assert "table=dynastate-delta " in message


def test_a_forced_snapshot_is_made_at_any_price(engine: Engine, store: str) -> None:
    """A SNAPSHOT whose least number of versions is 0 is wanted although it is not worth its price; another is not."""
    state = {b"%d" % number: b"%d" % number for number in range(60)}
    version = write(engine, store, attempt(1), state)
    save_snapshot(engine, store, version, state)
    write(engine, store, attempt(2), {b"1": b"one"}, base=version)
    offers = [protocol.encode(protocol.Snapshot(store, "run-1", 2, attempt(2), 1_000, least)) for least in (1, 0)]
    answers = converse(FixedEngines(engine), *offers)
    assert [type(answer) for answer in answers] == [protocol.Maintained, protocol.Wanted]


def test_a_version_is_installed(engine: Engine, store: str) -> None:
    """IMPORT is answered by the number of buckets, their end by what it cost; then the version exists."""
    whole = protocol.encode(Import(store, "run-1", QUERY, CHECKPOINT, 43, A, 1, {0: 1}, SCHEMA))
    end = protocol.encode(protocol.SnapshotEnd())
    answers = converse(FixedEngines(engine), whole, BUCKET, append({b"a": b"1"}), end)
    assert [type(answer) for answer in answers] == [protocol.Wanted, protocol.Maintained]
    assert read(engine, store, 43) == {b"a": b"1"}
    (failed,) = converse(FixedEngines(engine), protocol.encode(protocol.Changes(store, 43, 43, A)))
    assert error_of(failed)[0] == VersionMissingError.kind


def test_a_failed_import_leaves_no_version(failing_engine: Engine, failing_tables: FailingTables, store: str) -> None:
    """The error is the answer to IMPORT, or to the end of its buckets, and what was written is deleted."""
    whole = protocol.encode(Import(store, "run-1", QUERY, CHECKPOINT, 43, A, 1, {0: 1}, SCHEMA))
    end = protocol.encode(protocol.SnapshotEnd())
    failing_tables.fail("put_new", Fault(UnavailableError("throttled")))
    answers = converse(FixedEngines(failing_engine), whole, protocol.encode(protocol.Check()))
    assert [type(answer) for answer in answers] == [protocol.Error, protocol.Checked]
    failing_tables.fail("write", None, Fault(UnavailableError("throttled")))
    answers = converse(FixedEngines(failing_engine), whole, BUCKET, append({b"a": b"1"}), end)
    assert [type(answer) for answer in answers] == [protocol.Wanted, protocol.Error]
    assert {sort.partition("/")[0] for sort in items_of(failing_tables, store)} == {"meta", "schema"}


def test_unread_answer_undoes_no_commit(failing_engine: Engine, store: str) -> None:
    """If the task has ended before its commit is answered, the version remains."""

    def broken_after_welcome(frame: bytes) -> None:
        if protocol.MESSAGES[frame[4]] is not protocol.Welcome:
            raise BrokenPipeError

    converse(FixedEngines(failing_engine), begin(store, A), append({b"a": b"1"}), COMMIT, send=broken_after_welcome)
    assert read(failing_engine, store, 1) == {b"a": b"1"}


def test_a_task_that_is_killed_while_it_commits_has_no_version(memory: MemoryTables, store: str) -> None:
    """A connection that is closed while the commit waits for its parts: nothing is appended, and no part is left."""
    close_during("write", memory, begin(store, A) + append({b"a": b"1"}) + COMMIT)
    assert "update" not in {call.verb for call in memory.calls}
    assert {sort.partition("/")[0] for sort in items_of(memory, store)} == {"meta", "schema"}
    assert parts_of(memory, store) == []


def close_during(verb: str, memory: MemoryTables, frames: bytes) -> None:
    """Send frames, and close the connection while a request of a verb is under way, until the conversation ends."""
    is_under_way, is_closed = threading.Event(), threading.Event()

    def hold(request: str) -> None:
        if request == verb:
            is_under_way.set()
            assert is_closed.wait(WITHIN_S)

    engine = make_engine(FailingTables(memory, before=hold))
    ours, theirs = socket.socketpair()
    serving = threading.Thread(target=listener.converse, args=(theirs, TOKEN, FixedEngines(engine)))
    serving.start()
    with ours:
        ours.sendall(HELLO + frames)
        assert is_under_way.wait(WITHIN_S)
    is_closed.set()
    serving.join(WITHIN_S)
    assert not serving.is_alive()
    assert theirs.fileno() == -1
    engine.close()


def test_an_abort_that_cannot_finish_is_not_an_error(
    failing_engine: Engine, failing_tables: FailingTables, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Parts that an abort could not delete are logged with store, version and attempt, and answered by nothing."""
    failing_tables.fail("delete", Fault(UnavailableError("throttled")))
    failing_tables.fail("update", Fault(UnavailableError("throttled")))
    answers = converse(FixedEngines(failing_engine), begin(store, A), append({b"a": b"1"}), COMMIT)
    assert [type(answer) for answer in answers] == [protocol.Error]
    assert f"abort left parts behind store={store} version=1 attempt={A.hex()}" in caplog.text
    assert len(parts_of(failing_tables, store)) == 1


def test_an_engine_whose_codec_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch, dummy_credentials: None) -> None:
    """CHECK is answered by what to install, before a request is sent; each later one, too."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setattr(BotoTables, "check", lambda _: pytest.fail("a request is sent"))
    text = json.dumps({"compression": "zstd", "region": "us-east-1", "endpoint": "http://127.0.0.1:9"})
    engines = Engines()
    for _ in range(2):
        (error,) = converse(engines, protocol.encode(protocol.Check()), first=hello(TOKEN, dynastate.__version__, text))
        kind, _, message = error_of(error)
        assert kind == ConfigurationError.kind
        assert message.endswith("; pip install zstandard")


def test_an_engine_that_cannot_be_prepared_is_reported_to_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """HELLO is answered by WELCOME all the same: no task may wait for it yet."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/no/such/file")
    (answer,) = converse(Engines(), OPEN)
    kind, _, message = error_of(answer)
    assert kind == ConfigurationError.kind
    assert "no AWS Region is known" in message


def test_files_of_a_checkpoint(engine: Engine) -> None:
    """FILE_PUT is answered by whether the file is stored, with its cost; FILE_GET by the file, or by none."""
    put = protocol.FilePut("ns/clicks", "offsets/7", 0, b"v1")
    get = protocol.FileGet("ns/clicks", "offsets/7")
    delete = protocol.FileDelete("ns/clicks", ("offsets",))
    messages = [put, put, put._replace(overwrites=1, data=b"v2"), get, delete, get, put]
    answers = converse(FixedEngines(engine), *map(protocol.encode, messages))
    assert [answer.is_stored for answer in answers if isinstance(answer, protocol.Stored)] == [1, 0, 1, 1, 1]
    read = [answer for answer in answers if isinstance(answer, protocol.File)]
    assert [(file.exists, file.data, file.counters["requests"]) for file in read] == [(1, b"v2", 1), (0, b"", 1)]
    first, *_, deleted, _, last = answers
    assert (first.counters["requests"], last.counters["requests"], last.counters["writeUnits"]) == (3, 1, 1)
    assert (deleted.counters["itemsDeleted"], deleted.counters["deleteUnits"]) == (1, 1)


def test_a_file_of_a_query_that_is_stopped_is_not_put(memory: MemoryTables) -> None:
    """A connection that is closed while its put lists the checkpoint: the file is not written."""
    close_during("update", memory, protocol.encode(protocol.FilePut("ns/clicks", "offsets/7", 0, b"v1")))
    assert CheckpointFiles(memory, set()).get(Checkpoint("ns", "clicks"), "offsets/7") is None
    assert [key.sort for call in memory.called("update") for key in call.keys] == ["checkpoint/clicks"]


def test_a_long_listing_is_cut_into_frames(engine: Engine) -> None:
    """FILES has 1,000 entries at most; a folder without files has no FILES."""
    files = engine.checkpoint_files()
    for number in range(protocol.FILES_MAX + 1):
        files.put(Checkpoint("ns", "clicks"), f"offsets/{number}", b"", overwrites=False)
    requests = [protocol.FileList("ns/clicks", folder) for folder in ("offsets", "commits")]
    first, second, opened, empty = converse(FixedEngines(engine), *map(protocol.encode, requests))
    assert [entry.name for entry in (*first.entries, *second.entries)] == [f"{number}" for number in range(1_001)]
    assert len(first.entries) == protocol.FILES_MAX
    assert (type(opened), type(empty)) == (protocol.Opened, protocol.Opened)


def test_a_whole_checkpoint(engine: Engine) -> None:
    """CHECKPOINT_FILE has the data of a file without fragments; the end has the cost."""
    files, large = engine.checkpoint_files(), noise(500_000)
    for file, data in (("metadata", b"{}"), ("sources/0/9.compact", large)):
        files.put(Checkpoint("ns", "clicks"), file, data, overwrites=False)
    small, cut, opened = converse(FixedEngines(engine), protocol.encode(protocol.CheckpointRead("ns/clicks")))
    assert (small.file, small.bytes, small.has_data, small.data) == ("metadata", 2, 1, b"{}")
    assert (cut.file, cut.bytes, cut.has_data, cut.data) == ("sources/0/9.compact", len(large), 0, b"")
    assert (opened.counters["requests"], opened.counters["readUnits"]) == (1, 1)


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        ("update", protocol.FilePut("ns/clicks", "f", 0, b"")),
        ("get", protocol.FileGet("ns/clicks", "f")),
        ("query", protocol.FileList("ns/clicks", "")),
        ("get", protocol.FileDelete("ns/clicks", ("f",))),
        ("query", protocol.CheckpointRead("ns/clicks")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_failure_of_a_file_leaves_the_connection_ready(
    failing_engine: Engine, failing_tables: FailingTables, verb: str, message: tuple[Any, ...]
) -> None:
    """Any failure is answered by its kind and the checkpoint, and the same message succeeds after it."""
    failing_tables.fail(verb, Fault(UnknownOutcomeError("lost")), Fault(KeyError("a defect")))
    answers = converse(FixedEngines(failing_engine), *[protocol.encode(message)] * 3)
    assert [error_of(answer)[:2] for answer in answers[:2]] == [
        (3, "ns/checkpoint/clicks"),
        (7, "ns/checkpoint/clicks"),
    ]
    assert not isinstance(answers[2], protocol.Error)


def test_wrong_names_of_files_and_checkpoints(engine: Engine) -> None:
    """Names that cannot be keys are errors of the configuration, and reach no table."""
    messages = [protocol.FileGet("clicks", "f"), protocol.FileGet("ns/clicks", "a//b"), protocol.FileList("ns/q", "/")]
    answers = converse(FixedEngines(engine), *map(protocol.encode, messages))
    assert [error_of(answer)[:2] for answer in answers] == [
        (1, "clicks"),
        (1, "ns/checkpoint/clicks"),
        (1, "ns/checkpoint/q"),
    ]
