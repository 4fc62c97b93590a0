"""The real sidecar process over its real socket."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from select import select
from typing import Any

import pytest

import dynastate
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.errors import ConfigurationError, MismatchError, VersionMissingError
from dynastate.format.keys import EMPTY, NO_ATTEMPT, Attempt, VersionId
from dynastate.settings import PREFIX
from dynastate.sidecar import protocol
from dynastate.sidecar.process import ALIVE_EVERY_S, SWITCH_INTERVAL_S
from dynastate.sidecar.protocol import Commit, FileDelete, FileGet, FileList, FilePut, Hello, Open
from tests.support.contents import graph, parts_of
from tests.support.engine_driver import fold
from tests.support.frames import ABORT, BEGIN, COMMIT, HELLO, OPEN, TOKEN, UNKNOWN, WELCOME, append, hello, raw_frame
from tests.support.processes import wait_until
from tests.support.samples import SCHEMA, A, B, C, State, attempt, namespace_of, noise
from tests.support.sidecar import ROWS, WITHIN_S, Start, Talk, chunk_of, error_of


def test_threads_that_compute_give_way_soon(tmp_path: Path) -> None:
    """The real process tells its switch interval when it ends, here because of its folder."""
    tmp_path.chmod(0o755)
    program = """
import atexit, sys
from dynastate.sidecar.process import main

atexit.register(lambda: print(sys.getswitchinterval()))
main()
"""
    order = json.dumps({"socket": str(tmp_path / "socket"), "token": TOKEN.hex()}) + "\n"
    completed = subprocess.run(
        [sys.executable, "-c", program], input=order, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert float(completed.stdout) == pytest.approx(SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() > SWITCH_INTERVAL_S


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (hello(bytes(32), "another version", "no JSON"), ["wrong token"]),
        (hello(TOKEN[:-1] + b"x", "another version", "no JSON"), ["wrong token"]),
        (raw_frame(1, TOKEN[:10]), ["wrong token"]),
        (
            hello(TOKEN, "9.9.9", "{}"),
            [
                "jar is dynastate 9.9.9 (protocol 2), the Python package of the executor is",
                f"{dynastate.__version__} (protocol 2)",
                f"install dynastate==9.9.9 in {sys.executable}, or use the jar that 'dynastate jar' prints",
            ],
        ),
        (protocol.encode(Hello(1, TOKEN, dynastate.__version__, "{}")), ["(protocol 1)"]),
    ],
    ids=["no token", "another token", "half a token", "another package", "another protocol"],
)
def test_another_program_or_version_is_refused(connect: Callable[[], Talk], frame: bytes, says: list[str]) -> None:
    """The connection is closed; the token is compared first, and not shown; versions are said with what to do."""
    talk = connect()
    kind, store, message = talk.last_error(frame)
    assert (kind, store) == (MismatchError.kind, "")
    assert [each for each in says if each not in message] == []
    assert frame[7:39].hex() not in message


@pytest.mark.parametrize(
    ("changed", "kind", "said"),
    [
        ({"regoin": "eu-west-1"}, 1, f"unknown setting {PREFIX}regoin; known are "),
        ({"shards": "0"}, 1, f"{PREFIX}shards must be a whole number from 1 to 256"),
        ({"shards": 4}, 6, "not an object of text to text"),
        ([], 6, "not an object of text to text"),
        ("{", 6, "not JSON"),
    ],
)
def test_a_wrong_setting_is_refused(
    connect: Callable[[], Talk], settings: dict[str, str], changed: Any, kind: int, said: str
) -> None:
    talk = connect()
    text = changed if isinstance(changed, str) else json.dumps(settings | changed if changed else changed)
    answer_kind, _, message = talk.last_error(hello(TOKEN, dynastate.__version__, text))
    assert answer_kind == kind
    assert said in message


def test_settings_that_are_refused_leave_no_thread(start: Start, settings: dict[str, str]) -> None:
    """Threads made for tables that do not fit end with the error: tasks are retried many times."""
    sidecar = start()

    def threads() -> int:
        return len(list(Path(f"/proc/{sidecar.process.pid}/task").iterdir()))

    sidecar.connect().hello(settings).check()
    count = threads()
    for number in range(3):
        talk = sidecar.connect().hello(settings | {"deltaTable": f"not-there-{number}"})
        assert error_of(talk.check())[0] == ConfigurationError.kind
        talk.close()
    wait_until(lambda: threads() <= count, "threads are left")


def test_a_round_trip(talk: Talk, connect: Callable[[], Talk], settings: dict[str, str], store: str) -> None:
    """Check, begin, append, commit, open: what one connection committed, another reads, whole or after a version."""
    assert isinstance(talk.check(), protocol.Checked)
    one = talk.write(store, A, {b"a": b"1", b"b": b"1"})
    assert isinstance(talk.check(), protocol.Checked)
    talk.begin(store, B, one)
    talk.append({b"a": b"2"})
    talk.append({b"b": None, b"c": b"2"})
    counters = talk.commit(keys=2)
    assert (counters["parts"], counters["records"], counters["requests"]) == (2, 3, 2)
    assert counters["writeUnits"] == 3
    other = connect().hello(settings)
    whole = other.open(store, 2)
    assert (whole.version, whole.base) == ((2, B), EMPTY)
    assert fold(whole.chunks) == {b"a": b"2", b"c": b"2"}
    assert whole.counters["bytesRead"] > 0
    rest = other.open(store, 2, B, [one])
    assert rest.base == one
    assert [each.records for each in rest.chunks] == [1, 2]
    assert other.open(store, 2, B, [VersionId(2, B)]).chunks == []
    assert other.state(store, 1) == {b"a": b"1", b"b": b"1"}


def test_a_missing_version_leaves_the_connection_ready(talk: Talk, store: str) -> None:
    talk.write(store, A, {b"a": b"1"})
    kind, store_name, message = talk.fail(Open(store, 7, NO_ATTEMPT, ()))
    assert (kind, store_name) == (VersionMissingError.kind, store)
    assert "version=7 versions=1" in message
    assert talk.fail(Open(store, 1, B, ()))[0] == VersionMissingError.kind
    assert talk.state(store, 1) == {b"a": b"1"}


def test_changes_come_version_by_version(talk: Talk, store: str) -> None:
    """CHANGES brings what each version of a range changed, in the lineage of the requested attempt."""
    one = talk.write(store, A, {b"a": b"1"})
    talk.write(store, B, {b"zombie": b"1"}, one)
    two = talk.write(store, C, {b"b": b"2"}, one)
    talk.write(store, attempt(4), {b"a": b"3"}, two)
    assert talk.changes(store, 2, 3) == {2: {b"b": b"2"}, 3: {b"a": b"3"}}
    assert talk.changes(store, 1, 2, B) == {1: {b"a": b"1"}, 2: {b"zombie": b"1"}}
    assert talk.fail(protocol.Changes(store, 1, 9, NO_ATTEMPT))[0] == VersionMissingError.kind
    assert talk.state(store, 1) == {b"a": b"1"}


def test_a_failure_is_reported_once_in_answer_to_commit(talk: Talk, store: str) -> None:
    """A failure of a frame without an answer: COMMIT is answered by it, ABORT by nothing; the connection is ready."""
    for end in (COMMIT, ABORT):
        talk.begin("a#name", A)
        talk.append({b"a": b"1"})
        talk.append({b"b": b"1"})
        talk.send(end)
        if end == COMMIT:
            kind, store_name, message = error_of(talk.answer())
            assert (kind, store_name) == (ConfigurationError.kind, "a#name")
            assert "a store name must have 1 to 1024 bytes" in message
    talk.write(store, B, {b"a": b"1"})
    assert talk.state(store, 1) == {b"a": b"1"}


def begin_large(talk: Talk, http: BotoTables, store: str, name: Attempt) -> None:
    """Begin an attempt, and append until some parts are in the table."""
    talk.begin(store, name)
    for number in range(30):
        talk.append({b"%d" % number: b"1"})
    wait_until(lambda: len(parts_of(http, store)) == 25, "parts are missing")


def test_abort_deletes_what_was_written(talk: Talk, http: BotoTables, store: str) -> None:
    """ABORT has no answer; what the attempt had written is deleted, and the next attempt works."""
    begin_large(talk, http, store, A)
    talk.send(protocol.encode(protocol.Abort()))
    talk.write(store, B, {b"b": b"1"})
    assert parts_of(http, store) == []
    assert talk.state(store, 1) == {b"b": b"1"}


@pytest.mark.parametrize(
    "rest", [b"", append({b"cut": b"1"})[:-1], b"\x10"], ids=["between", "in a body", "in a header"]
)
def test_a_connection_that_is_cut_while_writing_is_an_abort(
    talk: Talk, connect: Callable[[], Talk], settings: dict[str, str], http: BotoTables, store: str, rest: bytes
) -> None:
    """The attempt of a task that dies is aborted, wherever its last frame was cut."""
    begin_large(talk, http, store, A)
    talk.send(rest)
    talk.close()
    wait_until(lambda: parts_of(http, store) == [], "parts are left")
    other = connect().hello(settings)
    assert other.fail(Open(store, 1, NO_ATTEMPT, ()))[0] == VersionMissingError.kind


NEW = [("new", frame) for frame in (OPEN, BEGIN, append({b"a": b"1"}), COMMIT, ABORT, UNKNOWN, WELCOME)]
READY = [("ready", frame) for frame in (HELLO, append({b"a": b"1"}), COMMIT, ABORT, UNKNOWN)]


@pytest.mark.parametrize(("state", "frame"), NEW + READY)
def test_frames_out_of_order(connect: Callable[[], Talk], settings: dict[str, str], state: str, frame: bytes) -> None:
    """No service without HELLO; a second one, or a step of an attempt without BEGIN, ends the connection."""
    talk = connect() if state == "new" else connect().hello(settings)
    kind, store, message = talk.last_error(frame)
    assert (kind, store) == (MismatchError.kind, "")
    assert f"out of order state={state}" in message


@pytest.mark.parametrize("frame", [HELLO, OPEN, BEGIN, UNKNOWN])
def test_frames_out_of_order_while_writing(talk: Talk, http: BotoTables, store: str, frame: bytes) -> None:
    begin_large(talk, http, store, A)
    kind, store_name, message = talk.last_error(frame)
    assert (kind, store_name) == (MismatchError.kind, store)
    assert "out of order state=writing" in message
    wait_until(lambda: parts_of(http, store) == [], "parts are left")


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (raw_frame(2, b"\xff\xff\xff\xff"), "ends within a field"),
        (protocol.encode(Open("s", 0, NO_ATTEMPT, ())), "version 0 is empty and never requested"),
        (b"\xff\xff\xff\xff\x02", "impossible length"),
    ],
)
def test_broken_frames_end_the_connection(talk: Talk, frame: bytes, said: str) -> None:
    kind, _, message = talk.last_error(frame)
    assert kind == MismatchError.kind
    assert said in message


def test_end_of_standard_input_ends_all(start: Start, settings: dict[str, str], http: BotoTables, store: str) -> None:
    """When the executor ends, the sidecar ends and deletes socket and folder; unfinished attempts are not visible."""
    sidecar = start()
    assert sidecar.said == "ready\n"
    assert stat.S_ISSOCK(sidecar.path.stat().st_mode)
    talk = sidecar.connect().hello(settings)
    talk.write(store, A, {b"a": b"1"})
    talk.begin(store, B, VersionId(1, A))
    talk.append({b"a": b"2"})
    assert sidecar.end() == 0
    assert not sidecar.folder.exists()
    assert talk.receive() is None
    assert graph(http, store).versions() == [1]


@pytest.mark.slow
def test_it_sends_signs_of_life_unless_it_is_stopped(start: Start, settings: dict[str, str], store: str) -> None:
    """Standard output has a regular sign of life, and nothing else, even under load."""
    sidecar = start()
    assert sidecar.process.stdout is not None
    output, pid = sidecar.process.stdout.fileno(), sidecar.process.pid
    sidecar.connect().hello(settings).write(store, A, {b"large": os.urandom(5_000_000)})
    assert [os.read(output, len(b"alive\n")) for _ in range(2)] == [b"alive\n"] * 2
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    while select([output], [], [], 0)[0]:
        os.read(output, 100)
    assert not select([output], [], [], 2 * ALIVE_EVERY_S)[0]
    os.kill(pid, signal.SIGCONT)
    assert os.read(output, len(b"alive\n")) == b"alive\n"


def test_its_log_names_store_version_and_attempt(start: Start, settings: dict[str, str], store: str) -> None:
    """Every failure is a line of the log that names store, version and attempt."""
    sidecar = start()
    talk = sidecar.connect().hello(settings)
    one = talk.write(store, A, {b"a": b"1"})
    for version, name, label in ((7, B, B.hex()), (7, NO_ATTEMPT, "any")):
        talk.fail(Open(store, version, name, ()))
        assert f"ERROR dynastate.sidecar: open failed store={store} version=7 attempt={label}: " in sidecar.log()
    talk.begin("a#name", B, one)
    talk.fail(Commit({0: 1}, SCHEMA))
    assert f"ERROR dynastate.sidecar: commit failed store=a#name version=2 attempt={B.hex()}: " in sidecar.log()
    talk.begin(store, C, one)
    talk.send(append({b"a": b"2"})[:-1])
    talk.close()
    line = f"INFO dynastate.sidecar: connection ended store={store} version=2 attempt={C.hex()}: "
    wait_until(lambda: line in sidecar.log(), f"not said: {line}")


def test_ctrl_c_is_for_spark(start: Start, settings: dict[str, str], store: str) -> None:
    """SIGINT, which a terminal sends to all its processes, does not end the sidecar: Spark still has to end a batch."""
    sidecar = start()
    talk = sidecar.connect().hello(settings)
    talk.begin(store, A)
    sidecar.process.send_signal(signal.SIGINT)
    talk.append({b"a": b"1"})
    talk.commit()
    sidecar.process.send_signal(signal.SIGINT)
    assert sidecar.connect().hello(settings).state(store, 1) == {b"a": b"1"}


def test_the_token_is_never_shown(start: Start, settings: dict[str, str]) -> None:
    """The token is neither in the arguments, nor in the environment, nor in the log, whatever goes wrong."""
    sidecar = start()
    proc = Path(f"/proc/{sidecar.process.pid}")
    process_text = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
    assert b"dynastate.sidecar" in process_text
    for frame in (
        hello(TOKEN, "9.9.9", "{}"),
        hello(TOKEN, dynastate.__version__, "no JSON"),
        raw_frame(1, hello(TOKEN, "", "")[5:-1]),
        raw_frame(1, b"\x01\x00" + TOKEN),
    ):
        talk = sidecar.connect()
        assert TOKEN.hex() not in talk.last_error(frame)[2]
    sidecar.connect().hello(settings)
    assert sidecar.end() == 0
    assert "9.9.9" in sidecar.log()
    for text in (process_text, sidecar.log().encode()):
        for form in (TOKEN, TOKEN.hex().encode(), repr(TOKEN).encode()):
            assert form not in text


def test_a_version_is_found_and_read_by_buckets(talk: Talk, store: str) -> None:
    """FIND describes a version, READ sends the rows of one bucket; both leave the connection ready."""
    one = talk.write(store, A, {b"%d" % number: b"1" for number in range(40)})
    talk.send(protocol.encode(protocol.Find(store, *one)))
    assert isinstance(talk.answer(), protocol.Found)
    assert talk.answer() == protocol.Content(0, {0: 0})
    assert isinstance(talk.answer(), protocol.Opened)
    rows: State = {}
    for bucket in range(4):
        talk.send(protocol.encode(protocol.Read(store, *one, 0, 0, NO_ATTEMPT, 2, (bucket,))))
        answer = talk.answer()
        while not isinstance(answer, protocol.Opened):
            if isinstance(answer, ROWS):
                rows |= fold([chunk_of(answer)])
            else:
                assert answer == protocol.Held(0)
                answer = talk.answer()
                assert isinstance(answer, protocol.Deltas)
                assert (answer.snapshot, answer.after) == (0, 0)
                assert answer.raw_bytes > 40
            answer = talk.answer()
    assert len(rows) == 40
    talk.send(protocol.encode(protocol.Read(store, *one, 0, *one, 2, (0, 1, 3))))
    assert talk.answer() == protocol.Held(1)
    assert talk.answer() == protocol.Deltas(0, 1, 0)
    assert isinstance(talk.answer(), protocol.Opened)
    assert talk.fail(protocol.Find(store, 2, NO_ATTEMPT))[0] == VersionMissingError.kind
    assert len(talk.state(store, 1)) == 40


def test_files_of_a_checkpoint(talk: Talk, store: str) -> None:
    """Files are put, read, listed and deleted; a refusal or an error leaves the connection ready."""
    checkpoint = f"{namespace_of(store)}/clicks"
    large = noise(900_000)

    def put(file: str, data: bytes, *, overwrites: bool = False) -> int:
        return int(talk.ask(FilePut(checkpoint, file, int(overwrites), data)).is_stored)

    def get(file: str) -> bytes | None:
        file_answer = talk.ask(FileGet(checkpoint, file))
        return file_answer.data if file_answer.exists else None

    def entries(folder: str) -> list[tuple[str, int, int]]:
        talk.send(protocol.encode(FileList(checkpoint, folder)))
        listed: list[tuple[str, int, int]] = []
        while isinstance(answer := talk.answer(), protocol.Files):
            listed += [(entry.name, entry.is_folder, entry.bytes) for entry in answer.entries]
        assert isinstance(answer, protocol.Opened)
        assert answer.counters["requests"] == 1
        return listed

    assert [put("offsets/10", b"ten"), put("offsets/9", b"nine"), put("sources/0/9.compact", large)] == [1, 1, 1]
    assert [put("offsets/10", b"other"), put("sources/0/9.compact", b"other")] == [0, 0]
    assert [get("offsets/10"), get("sources/0/9.compact"), get("offsets")] == [b"ten", large, None]
    assert put("sources/0/9.compact", b"short", overwrites=True) == 1
    assert get("sources/0/9.compact") == b"short"
    assert entries("") == [("offsets", 1, 0), ("sources", 1, 0)]
    assert entries("offsets") == [("9", 0, 4), ("10", 0, 3)]
    assert entries("commits") == []
    error = (ConfigurationError.kind, f"{namespace_of(store)}/checkpoint/clicks")
    assert talk.fail(FileGet(checkpoint, "offsets//9"))[:2] == error
    assert talk.ask(FileDelete(checkpoint, ("offsets/9", "sources", "commits/1"))).is_stored == 1
    assert entries("") == [("offsets", 1, 0)]
