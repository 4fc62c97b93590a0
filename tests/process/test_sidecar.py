"""The real sidecar process over its real socket, and a connection alone where a fault is needed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from select import select
from typing import Any, NamedTuple

import pytest

import dynastate
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.embedded import EmbeddedDynamoDB, credentials
from dynastate.engine import snapshot_threshold
from dynastate.engine.commit import INLINE_BYTES_MAX
from dynastate.engine.engine import Engine
from dynastate.errors import (
    BY_KIND,
    ConfigurationError,
    CorruptStateError,
    DynastateError,
    InternalError,
    MismatchError,
    UnavailableError,
    UnknownOutcomeError,
    VersionMissingError,
)
from dynastate.format.changes import key_hash
from dynastate.format.codec import RAW
from dynastate.format.keys import EMPTY, NO_ATTEMPT, Attempt, Key, VersionId, version_list_key
from dynastate.format.parts import StoredChunk
from dynastate.settings import PREFIX, Settings
from dynastate.sidecar import listener, protocol
from dynastate.sidecar.connection import Connection
from dynastate.sidecar.engines import Engines
from dynastate.sidecar.load_progress import LoadProgressLog, about
from dynastate.sidecar.process import ALIVE_EVERY_S, SWITCH_INTERVAL_S
from dynastate.sidecar.protocol import Append, Begin, Commit, Find, Hello, Import, Open, Read
from tests.support.engine_driver import (
    CHECKPOINT,
    QUERY,
    SCHEMA,
    Changes,
    State,
    attempt,
    chunk,
    closing,
    fold,
    graph,
    items_of,
    make_engine,
    parts_of,
    read,
    save_snapshot,
    write,
)
from tests.support.fakes import FailingTables, Fault, MemoryTables
from tests.support.limits import set_limits
from tests.support.processes import wait_until

TOKEN = bytes(range(32))
WITHIN_S = 30.0
A, B, C = (attempt(number) for number in (0xA, 0xB, 0xC))


def error_of(answer: Any) -> tuple[int, str, str]:
    """Kind, store and message of an error."""
    assert isinstance(answer, protocol.Error), answer
    return answer


#: Rows, as they are or compressed.
ROWS = (protocol.Rows, protocol.Packed)


def chunk_of(answer: protocol.Rows | protocol.Packed) -> StoredChunk:
    """The chunk in an answer."""
    codec, raw_bytes = (
        (answer.codec, answer.raw_bytes) if isinstance(answer, protocol.Packed) else (RAW, len(answer.changes))
    )
    return StoredChunk(Key("delta", "", ""), codec, answer.records, raw_bytes, answer.changes)


class Opened(NamedTuple):
    """The answer to OPEN."""

    version: VersionId
    base: VersionId
    counters: dict[str, int]
    chunks: list[StoredChunk]


class Talk:
    """One connection to the sidecar, as the JVM holds it."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(WITHIN_S)
        self._socket.connect(str(path))
        self._stream = self._socket.makefile("rb")

    def send(self, *frames: bytes) -> None:
        for frame in frames:
            self._socket.sendall(frame)

    def receive(self) -> Any:
        """Receive the next message; None: the sidecar has closed."""
        try:
            header = self._stream.read(protocol.HEADER.size)
        except ConnectionResetError:  # it closed with frames of ours unread
            return None
        if not header:
            return None
        length, number = protocol.HEADER.unpack(header)
        return protocol.decode(number, self._stream.read(protocol.check_length(length)))

    def answer(self) -> Any:
        """Receive the next message, which must come."""
        answer = self.receive()
        assert answer is not None, "the sidecar closed without an answer"
        return answer

    def last_error(self, frame: bytes) -> tuple[int, str, str]:
        """Send a frame that is answered by an error, after which the sidecar closes."""
        self.send(frame)
        error = error_of(self.answer())
        assert self.receive() is None
        return error

    def hello(self, settings: dict[str, str]) -> Talk:
        """Say HELLO, and be welcome."""
        self.send(hello(TOKEN, dynastate.__version__, json.dumps(settings)))
        assert self.answer() == protocol.Welcome(dynastate.__version__)
        return self

    def check(self) -> Any:
        """Ask whether the tables are there and fit."""
        self.send(protocol.encode(protocol.Check()))
        return self.answer()

    def begin(self, store: str, by: Attempt, base: VersionId = EMPTY) -> None:
        self.send(begin(store, by, base))

    def append(self, changes: Changes) -> None:
        self.send(append(changes))

    def commit(self, keys: int = 0) -> dict[str, int]:
        """Commit, and return what it cost."""
        self.send(protocol.encode(Commit({0: keys}, SCHEMA)))
        answer = self.answer()
        assert isinstance(answer, protocol.Committed), answer
        assert answer.version > 0
        return dict(answer.counters)

    def write(self, store: str, by: Attempt, changes: Changes, base: VersionId = EMPTY) -> VersionId:
        """Commit one chunk of changes."""
        self.begin(store, by, base)
        self.append(changes)
        self.commit()
        return VersionId(base[0] + 1, by)

    def open(self, store: str, version: int, by: Attempt = NO_ATTEMPT, have: Sequence[VersionId] = ()) -> Opened:
        """Open a version and take its rows."""
        self.send(protocol.encode(Open(store, version, by, tuple(have))))
        chunks: list[StoredChunk] = []
        found = self.answer()
        assert isinstance(found, protocol.Found), found
        assert found.schema == SCHEMA
        while isinstance(answer := self.answer(), ROWS):
            chunks.append(chunk_of(answer))
        assert isinstance(answer, protocol.Opened), answer
        opened, base = VersionId(found.version, found.attempt), VersionId(found.base, found.base_attempt)
        return Opened(opened, base, dict(answer.counters), chunks)

    def changes(self, store: str, first: int, last: int, by: Attempt = NO_ATTEMPT) -> dict[int, State]:
        """Read what each version changed; removed keys are left out."""
        self.send(protocol.encode(protocol.Changes(store, first, last, by)))
        assert isinstance(self.answer(), protocol.Found)
        changed: dict[int, State] = {}
        while not isinstance(answer := self.answer(), protocol.Opened):
            if isinstance(answer, protocol.ChangesOf):
                version = answer.version
                changed[version] = {}
            else:
                assert isinstance(answer, ROWS), answer
                changed[version] = fold([chunk_of(answer)], changed[version])
        return changed

    def state(self, store: str, version: int) -> State:
        """Read a version whole."""
        return fold(self.open(store, version).chunks)

    def fail(self, message: Any) -> tuple[int, str, str]:
        """Send a message that is answered by an error."""
        self.send(protocol.encode(message))
        return error_of(self.answer())

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def begin(store: str, by: Attempt, base: VersionId = EMPTY) -> bytes:
    """Make a BEGIN frame."""
    return protocol.encode(Begin(store, "run-1", QUERY, CHECKPOINT, *base, by))


def append(changes: Changes) -> bytes:
    """Make an APPEND frame."""
    made = chunk(changes)
    return protocol.encode(Append(made.records, made.hash_min, made.hash_max, made.changes))


def hello(token: bytes, package: str, settings: str) -> bytes:
    """Make a HELLO frame."""
    return protocol.encode(Hello(protocol.PROTOCOL, token, package, settings))


def raw_frame(number: int, body: bytes) -> bytes:
    """Make a frame of any body."""
    return protocol.HEADER.pack(len(body) + 1, number) + body


class Sidecar:
    """The process, started as the JVM starts it."""

    def __init__(self, mode: int = 0o700, environment: dict[str, str] | None = None, owner: int = -1) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dynastate-"))
        self.folder.chmod(mode)
        os.chown(self.folder, owner, -1)
        self.path = self.folder / "socket"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        keys = credentials() if environment is None else environment
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dynastate.sidecar"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ | keys,
            text=True,
        )
        self._talks: list[Talk] = []
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"socket": str(self.path), "token": TOKEN.hex()}) + "\n")
        self.process.stdin.flush()
        self.said = self.process.stdout.readline()

    def connect(self) -> Talk:
        self._talks.append(Talk(self.path))
        return self._talks[-1]

    def end(self) -> int:
        """Close its standard input, as the end of the JVM does; return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(WITHIN_S)

    def log(self) -> str:
        # The process writes where the shared file stands: seeking in it would have it write over what it wrote.
        descriptor = self._log.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()

    def close(self) -> None:
        """Clean up, however the test ended."""
        for talk in self._talks:
            talk.close()
        self.process.kill()
        self.process.wait(WITHIN_S)
        for stream in (self.process.stdin, self.process.stdout, self._log):
            if stream is not None:
                stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def spark_names(settings: Settings) -> dict[str, str]:
    """Settings as HELLO has them: Spark's, without their prefix."""
    return {name.removeprefix(PREFIX): value for name, value in settings.to_spark().items()}


Start = Callable[..., Sidecar]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start sidecars of the test's own; all end with it."""
    started: list[Sidecar] = []

    def make(**arguments: Any) -> Sidecar:
        started.append(Sidecar(**arguments))
        return started[-1]

    yield make
    for each in started:
        each.close()


@pytest.fixture(scope="module")
def sidecar() -> Iterator[Sidecar]:
    """One sidecar for all tests that leave it alive."""
    running = Sidecar()
    assert running.said == "ready\n", running.log()
    yield running
    running.close()


@pytest.fixture
def settings(embedded: EmbeddedDynamoDB) -> dict[str, str]:
    """The settings in HELLO."""
    return spark_names(embedded.settings)


@pytest.fixture
def connect(sidecar: Sidecar) -> Iterator[Callable[[], Talk]]:
    """Make connections to the shared sidecar; all are closed."""
    made: list[Talk] = []

    def make() -> Talk:
        made.append(sidecar.connect())
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def talk(connect: Callable[[], Talk], settings: dict[str, str]) -> Talk:
    """A connection that is welcome."""
    return connect().hello(settings)


# --------------------------------------------------------------------------------------------------------------- hello


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
    ended = subprocess.run(
        [sys.executable, "-c", program], input=order, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert float(ended.stdout) == pytest.approx(SWITCH_INTERVAL_S)
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
    """A setting that is unknown, of the wrong kind or out of range is a configuration error that names it."""
    talk = connect()
    text = changed if isinstance(changed, str) else json.dumps(settings | changed if changed else changed)
    found, _, message = talk.last_error(hello(TOKEN, dynastate.__version__, text))
    assert found == kind
    assert said in message


def test_settings_that_are_refused_leave_no_thread(start: Start, settings: dict[str, str]) -> None:
    """Threads made for tables that do not fit end with the error: tasks are retried many times."""
    sidecar = start()

    def threads() -> int:
        return len(list(Path(f"/proc/{sidecar.process.pid}/task").iterdir()))

    sidecar.connect().hello(settings).check()
    before = threads()
    for number in range(3):
        talk = sidecar.connect().hello(settings | {"deltaTable": f"not-there-{number}"})
        assert error_of(talk.check())[0] == ConfigurationError.kind
        talk.close()
    wait_until(lambda: threads() <= before, "threads are left")


# ------------------------------------------------------------------------------------------------------- conversations


def test_a_round_trip(talk: Talk, connect: Callable[[], Talk], settings: dict[str, str], store: str) -> None:
    """Check, begin, append, commit, open: what one connection committed, another reads, whole or after a version."""
    assert isinstance(talk.check(), protocol.Checked)
    one = talk.write(store, A, {b"a": b"1", b"b": b"1"})
    assert isinstance(talk.check(), protocol.Checked)
    talk.begin(store, B, one)
    talk.append({b"a": b"2"})
    talk.append({b"b": None, b"c": b"2"})
    spent = talk.commit(keys=2)
    assert (spent["parts"], spent["records"], spent["requests"]) == (2, 3, 2)
    assert spent["writeUnits"] == 3
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
    """A version that is not there is an error that names those that are; the connection is ready again."""
    talk.write(store, A, {b"a": b"1"})
    kind, named, message = talk.fail(Open(store, 7, NO_ATTEMPT, ()))
    assert (kind, named) == (VersionMissingError.kind, store)
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
            kind, named, message = error_of(talk.answer())
            assert (kind, named) == (ConfigurationError.kind, "a#name")
            assert "a store name must have 1 to 1024 bytes" in message
    talk.write(store, B, {b"a": b"1"})
    assert talk.state(store, 1) == {b"a": b"1"}


def begin_large(talk: Talk, http: BotoTables, store: str, by: Attempt) -> None:
    """Begin an attempt, and append until some parts are in the table."""
    talk.begin(store, by)
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


HELLO = hello(TOKEN, dynastate.__version__, "{}")
OPEN = protocol.encode(Open("s", 1, NO_ATTEMPT, ()))
BEGIN = begin("s", A)
COMMIT = protocol.encode(Commit({}, SCHEMA))
BUCKET = protocol.encode(protocol.Bucket(0))
WELCOME = protocol.encode(protocol.Welcome("x"))
ABORT = protocol.encode(protocol.Abort())
UNKNOWN = b"\x01\x00\x00\x00\xc8"


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
    """HELLO, OPEN or a second BEGIN within an attempt ends the connection, and with it the attempt."""
    begin_large(talk, http, store, A)
    kind, named, message = talk.last_error(frame)
    assert (kind, named) == (MismatchError.kind, store)
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
    """A frame that cannot be read is answered by what is wrong with it, and the connection closed."""
    kind, _, message = talk.last_error(frame)
    assert kind == MismatchError.kind
    assert said in message


# ------------------------------------------------------------------------------------------------------------- process


def test_the_end_of_standard_input_ends_everything(
    start: Start, settings: dict[str, str], http: BotoTables, store: str
) -> None:
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
    for version, by, said in ((7, B, B.hex()), (7, NO_ATTEMPT, "any")):
        talk.fail(Open(store, version, by, ()))
        assert f"ERROR dynastate.sidecar: open failed store={store} version=7 attempt={said}: " in sidecar.log()
    talk.begin("a#name", B, one)
    talk.fail(Commit({0: 1}, SCHEMA))
    assert f"ERROR dynastate.sidecar: commit failed store=a#name version=2 attempt={B.hex()}: " in sidecar.log()
    talk.begin(store, C, one)
    talk.send(append({b"a": b"2"})[:-1])
    talk.close()
    ended = f"INFO dynastate.sidecar: connection ended store={store} version=2 attempt={C.hex()}: "
    wait_until(lambda: ended in sidecar.log(), f"not said: {ended}")


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
    shown = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
    assert b"dynastate.sidecar" in shown
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
    for text in (shown, sidecar.log().encode()):
        for form in (TOKEN, TOKEN.hex().encode(), repr(TOKEN).encode()):
            assert form not in text


# ---------------------------------------------------------------------------------------- the connection, with faults


class FixedEngines(Engines):
    """Gives one engine, or fails."""

    def __init__(self, given: Engine | Exception) -> None:
        super().__init__()
        self._given = given

    def prepare(self, settings: Settings) -> None:
        pass

    def get(self, settings: Settings, *, was_reached: bool) -> Engine:  # noqa: ARG002  # the same for any settings
        if isinstance(self._given, Exception):
            raise self._given
        return self._given


class PreparedEngines(Engines):
    """Keeps what it has prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared: list[Engine] = []

    def prepare(self, settings: Settings) -> None:
        super().prepare(settings)
        self.prepared += [engine for _, engine in self._by_settings.values()]


def converse(
    engines: Engines, *frames: bytes, send: Callable[[bytes], None] | None = None, first: bytes = HELLO
) -> list[Any]:
    """Send these frames after HELLO; return the answers after WELCOME."""
    sent: list[bytes] = []
    Connection(BytesIO(first + b"".join(frames)), send or sent.append, TOKEN, engines, lambda: True).serve()
    answers = [protocol.decode(each[4], each[5:]) for each in sent]
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
    found, _, message = error_of(answer)
    assert found == kind
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
def corrupt_snapshot(memory: MemoryTables, store: str, monkeypatch: pytest.MonkeyPatch) -> State:
    """Tables with a store whose snapshot at version 3, of 8 buckets, has lost the last one; the state at version 4."""
    monkeypatch.setattr(snapshot_threshold, "threshold_of", lambda *_: 0.0)
    set_limits(monkeypatch, window_parts=2)
    state = {b"%d" % number: b"%d" % number for number in range(60)}
    for make in closing(memory):
        made = write(make(), store, attempt(1), state)
        made = write(make(), store, attempt(2), {b"1": None}, base=made)
        made = write(make(), store, attempt(3), {b"2": b"two"}, base=made)
        state = {key: value for key, value in state.items() if key != b"1"} | {b"2": b"two"}
        save_snapshot(make(), store, made, state)
        write(make(), store, attempt(4), {b"3": b"three"}, base=made)
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
    corrupt_snapshot: State, memory: MemoryTables, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If a bucket is lost while rows of the snapshot are sent, FOUND comes again, and then all rows."""
    for make in closing(memory):
        answers = converse(FixedEngines(make()), protocol.encode(Open(store, 4, attempt(4), ())))
        kinds, state = take_answers(answers)
        assert kinds == [protocol.Found, protocol.Found, protocol.Opened]
        assert isinstance(answers[1], ROWS)
        assert state == corrupt_snapshot
    assert "recovery skips a corrupt snapshot" in caplog.text
    assert "item=bucket/" in caplog.text


def test_compressed_rows_come_with_the_place_of_their_item(memory: MemoryTables, store: str) -> None:
    """The error of a block that the JVM cannot decompress names its item as others do: in a part, or in a list."""
    for make in closing(memory):
        made = write(make(), store, attempt(1), {b"%d" % number: bytes(20) for number in range(100)})
        write(make(inline_bytes=INLINE_BYTES_MAX), store, attempt(2), {b"1": bytes(100)}, base=made)
        answers = converse(FixedEngines(make()), protocol.encode(Open(store, 2, attempt(2), ())))
        ((part, _),) = parts_of(memory, store)
        places = [answer.item for answer in answers if isinstance(answer, protocol.Packed)]
        assert places == [
            f"table={memory.names[key.role]} store_shard={key.store_shard} item={key.sort}"
            for key in (part, version_list_key(store, 2))
        ]


def test_read_falls_back_from_a_corrupt_snapshot(corrupt_snapshot: State, memory: MemoryTables, store: str) -> None:
    """READ of each half: the one with the lost bucket sends FOUND, and then all its rows."""
    for make in closing(memory):
        engines = FixedEngines(make())
        state: State = {}
        for half in (0, 1):
            answers = converse(engines, protocol.encode(Read(store, 4, attempt(4), 0, 0, NO_ATTEMPT, 1, (half,))))
            kinds, found = take_answers(answers)
            state |= {key: value for key, value in found.items() if key_hash(key) >> 31 == half}
            assert kinds == ([protocol.Found] if half else []) + [protocol.Held, protocol.Deltas, protocol.Opened]
        assert state == corrupt_snapshot


def test_find_falls_back_from_a_snapshot_without_its_manifest(
    corrupt_snapshot: State, memory: MemoryTables, store: str
) -> None:
    """FIND answers as if the snapshot were not there."""
    del memory.items[next(key for key in memory.items if key.sort.startswith("snapshot_manifest/"))]
    for make in closing(memory):
        answers = converse(FixedEngines(make()), protocol.encode(Find(store, 4, attempt(4))))
        assert [type(answer) for answer in answers] == [protocol.Found, protocol.Content, protocol.Opened]


def test_open_fails_without_a_valid_route(corrupt_snapshot: State, memory: MemoryTables, store: str) -> None:
    """If a part below the corrupt snapshot is lost, the answer is one ERROR, and the connection stays ready."""
    del memory.items[next(key for key in memory.items if key.role == "delta" and key.sort.startswith(f"{2:020d}/"))]
    for make in closing(memory):
        again = protocol.encode(Open(store, 4, attempt(4), ()))
        answers = converse(FixedEngines(make()), again, again)
        *_, first, second = (each for each in answers if isinstance(each, protocol.Error))
        for error in (first, second):
            kind, named, message = error_of(error)
            assert (kind, named) == (CorruptStateError.kind, store)
            assert f"item={2:020d}/" in message
            assert "table=dynastate-delta " in message


def test_a_forced_snapshot_is_made_at_any_price(memory: MemoryTables, store: str) -> None:
    """A SNAPSHOT whose least number of versions is 0 is wanted although it is not worth its price; another is not."""
    state = {b"%d" % number: b"%d" % number for number in range(60)}
    for make in closing(memory):
        engine = make()
        made = write(engine, store, attempt(1), state)
        save_snapshot(engine, store, made, state)
        write(engine, store, attempt(2), {b"1": b"one"}, base=made)
        offers = [protocol.encode(protocol.Snapshot(store, "run-1", 2, attempt(2), 1_000, least)) for least in (1, 0)]
        answers = converse(FixedEngines(engine), *offers)
        assert [type(answer) for answer in answers] == [protocol.Maintained, protocol.Wanted]


def test_a_version_is_installed(memory: MemoryTables, store: str) -> None:
    """IMPORT is answered by the number of buckets, their end by what it cost; then the version exists."""
    whole = protocol.encode(Import(store, "run-1", QUERY, CHECKPOINT, 43, A, 1, {0: 1}, SCHEMA))
    end = protocol.encode(protocol.SnapshotEnd())
    for make in closing(memory):
        engine = make()
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


def test_an_answer_without_a_reader_does_not_undo_the_commit(
    failing_engine: Engine, failing_tables: FailingTables, store: str
) -> None:
    """If the task has ended before its commit is answered, the version remains."""

    def broken_after_welcome(frame: bytes) -> None:
        if protocol.MESSAGES[frame[4]] is not protocol.Welcome:
            raise BrokenPipeError

    converse(FixedEngines(failing_engine), begin(store, A), append({b"a": b"1"}), COMMIT, send=broken_after_welcome)
    assert read(failing_engine, store, 1) == {b"a": b"1"}


def test_a_task_that_is_killed_while_it_commits_has_no_version(memory: MemoryTables, store: str) -> None:
    """A connection that is closed while the commit waits for its parts: nothing is appended, and no part is left."""
    is_writing, is_closed = threading.Event(), threading.Event()

    def hold(verb: str) -> None:
        if verb == "write":
            is_writing.set()
            assert is_closed.wait(WITHIN_S)

    engine = make_engine(FailingTables(memory, before=hold))
    ours, theirs = socket.socketpair()
    serving = threading.Thread(target=listener.converse, args=(theirs, TOKEN, FixedEngines(engine)))
    serving.start()
    with ours:
        ours.sendall(HELLO + begin(store, A) + append({b"a": b"1"}) + COMMIT)
        assert is_writing.wait(WITHIN_S)
    is_closed.set()
    serving.join(WITHIN_S)
    assert not serving.is_alive()
    assert theirs.fileno() == -1
    engine.close()
    assert "update" not in {call.verb for call in memory.calls}
    assert {sort.partition("/")[0] for sort in items_of(memory, store)} == {"meta", "schema"}
    assert parts_of(memory, store) == []


def test_an_abort_that_cannot_finish_is_no_error(
    failing_engine: Engine, failing_tables: FailingTables, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Parts that an abort could not delete are logged with store, version and attempt, and answered by nothing."""
    failing_tables.fail("delete", Fault(UnavailableError("throttled")))
    failing_tables.fail("update", Fault(UnavailableError("throttled")))
    answers = converse(FixedEngines(failing_engine), begin(store, A), append({b"a": b"1"}), COMMIT)
    assert [type(answer) for answer in answers] == [protocol.Error]
    assert f"abort left parts behind store={store} version=1 attempt={A.hex()}" in caplog.text
    assert len(parts_of(failing_tables, store)) == 1


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


def test_engines_are_shared_by_settings(embedded: EmbeddedDynamoDB, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections with equal settings share one engine, others have their own; a failed check is repeated."""
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    base = embedded.settings
    missing = replace(base, delta_table="not-there")
    engines = Engines()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="not-there"):
            engines.get(missing, was_reached=True)
    one = engines.get(base, was_reached=False)
    assert engines.get(replace(base), was_reached=True) is one
    other = engines.get(replace(base, shards=7), was_reached=True)
    assert other is not one
    for engine in (one, other):
        engine.close()
        engine._tables.close()  # type: ignore[attr-defined]  # these are BotoTables


def test_an_engine_whose_codec_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch, dummy_credentials: None) -> None:
    """CHECK is answered by what to install, before a request is sent; each later one, too."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setattr(BotoTables, "check", lambda _: pytest.fail("a request is sent"))
    given = json.dumps({"compression": "zstd", "region": "us-east-1", "endpoint": "http://127.0.0.1:9"})
    engines = Engines()
    for _ in range(2):
        (failed,) = converse(
            engines, protocol.encode(protocol.Check()), first=hello(TOKEN, dynastate.__version__, given)
        )
        kind, _, said = error_of(failed)
        assert kind == ConfigurationError.kind
        assert said.endswith("; pip install zstandard")


def test_hello_prepares_the_engine(embedded: EmbeddedDynamoDB, dummy_credentials: None) -> None:
    """The engine is made before the first request, and DynamoDB is asked nothing; connections share it by settings."""
    engines = PreparedEngines()
    settings = {"endpoint": embedded.endpoint, "region": embedded.settings.region, "deltaTable": "not-there"}
    greeting = hello(TOKEN, dynastate.__version__, json.dumps(settings))
    for _ in range(2):
        Connection(BytesIO(greeting), lambda _: None, TOKEN, engines, lambda: True).serve()
    (one, again) = engines.prepared
    assert one is again
    one.close()
    one._tables.close()  # type: ignore[attr-defined]  # these are BotoTables


def test_an_engine_that_cannot_be_prepared_is_reported_to_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """HELLO is answered by WELCOME all the same: no task may wait for it yet."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/no/such/file")
    (answer,) = converse(Engines(), OPEN)
    kind, _, message = error_of(answer)
    assert kind == ConfigurationError.kind
    assert "no AWS Region is known" in message


def test_a_failed_check_closes_no_engine_in_use(
    embedded: EmbeddedDynamoDB, dummy_credentials: None, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """Tasks check the same tables at once: where one has passed, another's failure does not close the engine."""
    engines, passed = Engines(), threading.Event()
    both = threading.Barrier(2)
    checks = iter([None, ConfigurationError("denied")])
    lock = threading.Lock()

    def check(_: BotoTables) -> list[str]:
        with lock:
            mine = next(checks)
        both.wait(WITHIN_S)
        if mine is not None:
            assert passed.wait(WITHIN_S)
            raise mine
        return []

    monkeypatch.setattr(BotoTables, "check", check)
    found: list[Engine | ConfigurationError] = []

    def ask() -> None:
        try:
            found.append(engines.get(embedded.settings, was_reached=True))
            passed.set()
        except ConfigurationError as wrong:
            found.append(wrong)

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for each in asking:
        each.start()
    for each in asking:
        each.join(WITHIN_S)
    engine, wrong = found
    assert isinstance(engine, Engine)
    assert isinstance(wrong, ConfigurationError)
    made = write(engine, store, A, {b"a": b"1"})
    assert read(engine, store, *made) == {b"a": b"1"}
    assert engines.get(embedded.settings, was_reached=True) is engine
    engine.close()
    engine._tables.close()  # type: ignore[attr-defined]  # these are BotoTables


# -------------------------------------------------------------------------------------------------------------- buckets


def test_a_version_is_found_and_read_by_buckets(talk: Talk, store: str) -> None:
    """FIND describes a version, READ sends the rows of one bucket; both leave the connection ready."""
    one = talk.write(store, A, {b"%d" % number: b"1" for number in range(40)})
    talk.send(protocol.encode(protocol.Find(store, *one)))
    assert isinstance(talk.answer(), protocol.Found)
    assert talk.answer() == protocol.Content(0, {0: 0})
    assert isinstance(talk.answer(), protocol.Opened)
    together: State = {}
    for bucket in range(4):
        talk.send(protocol.encode(protocol.Read(store, *one, 0, 0, NO_ATTEMPT, 2, (bucket,))))
        answer = talk.answer()
        while not isinstance(answer, protocol.Opened):
            if isinstance(answer, ROWS):
                together |= fold([chunk_of(answer)])
            else:
                assert answer == protocol.Held(0)
                answer = talk.answer()
                assert isinstance(answer, protocol.Deltas)
                assert (answer.snapshot, answer.after) == (0, 0)
                assert answer.raw_bytes > 40
            answer = talk.answer()
    assert len(together) == 40
    talk.send(protocol.encode(protocol.Read(store, *one, 0, *one, 2, (0, 1, 3))))
    assert talk.answer() == protocol.Held(1)
    assert talk.answer() == protocol.Deltas(0, 1, 0)
    assert isinstance(talk.answer(), protocol.Opened)
    assert talk.fail(protocol.Find(store, 2, NO_ATTEMPT))[0] == VersionMissingError.kind
    assert len(talk.state(store, 1)) == 40


def test_a_long_load_logs_its_progress(caplog: pytest.LogCaptureFixture) -> None:
    """A line every two seconds; none for a short load."""
    caplog.set_level("INFO", logger="dynastate.sidecar")
    times = iter([0.0, 0.5, 1.9, 2.1, 2.2, 4.0, 4.2])
    progress = LoadProgressLog(about("ns/0/0/default", 7, A), 600, clock=lambda: next(times))
    assert len(list(progress.through(iter([chunk_of(protocol.Rows(100, b""))] * 6)))) == 6
    assert [record.getMessage() for record in caplog.records if record.name == "dynastate.sidecar"] == [
        f"loading store=ns/0/0/default version=7 attempt={A.hex()} records=300 of 600 seconds=2",
        f"loading store=ns/0/0/default version=7 attempt={A.hex()} records=600 of 600 seconds=4",
    ]
