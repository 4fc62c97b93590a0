"""The real sidecar process over its real socket, and its conversation alone where a fault must be made."""

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
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from select import select
from typing import Any, NamedTuple

import pytest

import dynastate
from dynastate import protocol, reader, rows, snapshots
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
from dynastate.layout import NO_ATTEMPT, Attempt
from dynastate.local import EmbeddedDynamoDB, credentials
from dynastate.protocol import Append, Begin, Commit, Find, Open, Read, Type, Whole
from dynastate.protocol import Changes as Changes_
from dynastate.settings import PREFIX, Settings
from dynastate.sidecar import ALIVE_EVERY_S, Connection, Engines, Progress, about, check_folder
from dynastate.store import Engine
from dynastate.tables import BotoTables, Meter, make_client
from tests.fakes import MemoryTables, Strike, StruckTables
from tests.processes import wait_until
from tests.states import (
    CHECKPOINT,
    EMPTY,
    SCHEMA,
    Changes,
    State,
    Version,
    attempt,
    chunk,
    closing,
    fold,
    history,
    items_of,
    parts_of,
    read,
    take_snapshot,
    write,
)

TOKEN = bytes(range(32))
WITHIN_S = 30.0
#: An error at the start must come within seconds; an endpoint that does not answer is given six of them.
ERROR_WITHIN_S = 30.0
START_PROMISED_S = 2.0
A, B, C = (attempt(number) for number in (0xA, 0xB, 0xC))


class Answer(NamedTuple):
    """One frame from the sidecar."""

    type: Type
    body: bytes

    def fields(self) -> protocol._Body:
        return protocol._Body(self.body)

    def error(self) -> tuple[int, str, str]:
        """Kind, store, message."""
        assert self.type is Type.ERROR, self
        fields = self.fields()
        error = fields.take(1)[0], fields.text(), fields.text()
        fields.end()
        return error


def counters(fields: protocol._Body) -> dict[str, int]:
    """Read counters, to the end of the frame."""
    found = {fields.text(): fields.u64() for _ in range(fields.u16())}
    fields.end()
    return found


class Opened(NamedTuple):
    """What OPEN was answered."""

    version: Version
    base: Version
    counters: dict[str, int]
    chunks: list[tuple[int, bytes]]


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

    def receive(self) -> Answer | None:
        """Receive the next frame; None: the sidecar has closed."""
        try:
            header = self._stream.read(protocol.HEADER.size)
        except ConnectionResetError:  # it closed with frames of ours unread
            return None
        if not header:
            return None
        length, frame_type = protocol.HEADER.unpack(header)
        return Answer(Type(frame_type), self._stream.read(protocol.check_length(length)))

    def answer(self) -> Answer:
        """Receive the next frame, which must come."""
        answer = self.receive()
        assert answer is not None, "the sidecar closed without an answer"
        return answer

    def last_error(self) -> tuple[int, str, str]:
        """Receive an error after which the sidecar closes."""
        error = self.answer().error()
        assert self.receive() is None
        return error

    def hello(self, settings: dict[str, str]) -> Talk:
        """Say HELLO, and be welcome."""
        self.send(protocol.hello(TOKEN, dynastate.__version__, json.dumps(settings)))
        welcome = self.answer()
        assert welcome.type is Type.WELCOME, welcome
        assert welcome.fields().text() == dynastate.__version__
        return self

    def check(self) -> Answer:
        """Ask whether the tables are there and fit."""
        self.send(protocol.frame(Type.CHECK))
        return self.answer()

    def begin(self, store: str, by: Attempt, base: Version = EMPTY) -> None:
        self.send(protocol.begin(Begin(store, "run-1", CHECKPOINT, *base, by)))

    def append(self, changes: Changes) -> None:
        self.send(append(changes))

    def commit(self, keys: int = 0) -> dict[str, int]:
        """Commit, and return what it cost."""
        self.send(protocol.commit(Commit({0: keys}, SCHEMA)))
        answer = self.answer()
        assert answer.type is Type.COMMITTED, answer.error()
        fields = answer.fields()
        assert fields.u64() > 0
        return counters(fields)

    def write(self, store: str, by: Attempt, changes: Changes, base: Version = EMPTY) -> Version:
        """Commit one chunk of changes."""
        self.begin(store, by, base)
        self.append(changes)
        self.commit()
        return base[0] + 1, by

    def open(self, store: str, version: int, by: Attempt = NO_ATTEMPT, have: Sequence[Version] = ()) -> Opened:
        """Open a version and take its rows."""
        self.send(protocol.open_(Open(store, version, by, tuple(have))))
        chunks: list[tuple[int, bytes]] = []
        answer = self.answer()
        assert answer.type is Type.FOUND, answer.error()
        found = answer.fields()
        opened, base = (found.u64(), found.attempt()), (found.u64(), found.attempt())
        assert found.text() == SCHEMA
        found.end()
        answer = self.answer()
        while answer.type is Type.ROWS:
            fields = answer.fields()
            chunks.append((fields.u32(), fields.rest()))
            answer = self.answer()
        assert answer.type is Type.OPENED, answer.error()
        return Opened(opened, base, counters(answer.fields()), chunks)

    def changes(self, store: str, first: int, last: int, by: Attempt = NO_ATTEMPT) -> dict[int, State]:
        """Read what each version changed; removed keys are left out."""
        self.send(protocol.changes(Changes_(store, first, last, by)))
        assert self.answer().type is Type.FOUND
        changed: dict[int, State] = {}
        answer = self.answer()
        while answer.type in (Type.CHANGES_OF, Type.ROWS):
            if answer.type is Type.CHANGES_OF:
                version = answer.fields().u64()
                changed[version] = {}
            else:
                fields = answer.fields()
                changed[version] = fold([(fields.u32(), fields.rest())], changed[version])
            answer = self.answer()
        assert answer.type is Type.OPENED, answer.error()
        return changed

    def state(self, store: str, version: int) -> State:
        """Read a version whole."""
        return fold(self.open(store, version).chunks)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def append(changes: Changes) -> bytes:
    """Make an APPEND frame."""
    made = chunk(changes)
    return protocol.append(Append(made.records, made.hash_min, made.hash_max, made.run))


class Sidecar:
    """The process, started as the JVM starts it."""

    def __init__(self, mode: int = 0o700, environment: dict[str, str] | None = None, owner: int = -1) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dynastate-"))
        self.folder.chmod(mode)
        os.chown(self.folder, owner, -1)
        self.path = self.folder / "socket"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        keys = credentials() if environment is None else environment
        nothing = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dynastate.sidecar"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=kept | nothing | {"AWS_EC2_METADATA_DISABLED": "true"} | keys,
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
        """Leave nothing behind, however the test ended."""
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


def test_a_wrong_token_is_refused(connect: Callable[[], Talk], settings: dict[str, str]) -> None:
    """Whoever does not know the token is refused before anything else is looked at, and the connection closed."""
    for token in (bytes(32), TOKEN[:-1] + b"x"):
        talk = connect()
        talk.send(protocol.hello(token, "another version", "no JSON"))
        kind, store, message = talk.last_error()
        assert (kind, store) == (MismatchError.kind, "")
        assert "wrong token" in message
        assert token.hex() not in message
    short = connect()
    short.send(protocol.frame(Type.HELLO, TOKEN[:10]))
    assert "wrong token" in short.last_error()[2]


def test_another_package_version_is_refused(connect: Callable[[], Talk], settings: dict[str, str]) -> None:
    """Jar and package must be of one version; the error names both, the interpreter, and how to mend it."""
    talk = connect()
    talk.send(protocol.hello(TOKEN, "9.9.9", json.dumps(settings)))
    kind, _, message = talk.last_error()
    assert kind == MismatchError.kind
    assert (
        f"jar is dynastate 9.9.9 (protocol 1), the Python package of the executor is {dynastate.__version__}" in message
    )
    assert f"install dynastate==9.9.9 in {sys.executable}, or use the jar that 'dynastate jar' prints" in message


def test_another_protocol_is_refused(connect: Callable[[], Talk], settings: dict[str, str]) -> None:
    """Another protocol number is refused, even with the right package version."""
    talk = connect()
    frame = bytearray(protocol.hello(TOKEN, dynastate.__version__, json.dumps(settings)))
    frame[5:7] = (2).to_bytes(2, "little")
    talk.send(bytes(frame))
    kind, _, message = talk.last_error()
    assert kind == MismatchError.kind
    assert "(protocol 2)" in message


@pytest.mark.parametrize(
    ("changed", "kind", "said"),
    [
        ({"regoin": "eu-west-1"}, 1, f"unknown setting {PREFIX}regoin; known are "),
        ({"shards": "0"}, 1, f"{PREFIX}shards must be a whole number from 1 to 256"),
        ({"shards": "many"}, 1, f"{PREFIX}shards must be a whole number"),
        ({"endpoint": "localhost:8000"}, 1, f"{PREFIX}endpoint must be a URL"),
        ({"deltaTable": "a table"}, 1, f"{PREFIX}deltaTable must be 3 to 255 characters"),
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
    talk.send(protocol.hello(TOKEN, dynastate.__version__, text))
    found, _, message = talk.last_error()
    assert found == kind
    assert said in message


def test_a_missing_table_is_said(connect: Callable[[], Talk], settings: dict[str, str]) -> None:
    """A table that does not exist is an error in answer to CHECK that names table, setting and endpoint."""
    for name in ("deltaTable", "snapshotTable"):
        talk, started = connect().hello(settings | {name: "not-there"}), time.monotonic()
        kind, _, message = talk.check().error()
        assert kind == ConfigurationError.kind
        assert f"table not-there ({PREFIX}{name}) does not exist at {settings['endpoint']}; make it with" in message
        assert time.monotonic() - started < ERROR_WITHIN_S


def test_settings_that_are_refused_leave_no_thread(start: Start, settings: dict[str, str]) -> None:
    """What was made for tables that do not fit ends with the error: tasks are tried again and again."""
    sidecar = start()

    def threads() -> int:
        return len(list(Path(f"/proc/{sidecar.process.pid}/task").iterdir()))

    sidecar.connect().hello(settings).check()
    before = threads()
    for number in range(3):
        talk = sidecar.connect().hello(settings | {"deltaTable": f"not-there-{number}"})
        assert talk.check().error()[0] == ConfigurationError.kind
        talk.close()
    wait_until(lambda: threads() <= before, "threads are left")


def test_a_wrong_key_schema_is_said(
    connect: Callable[[], Talk], settings: dict[str, str], embedded: EmbeddedDynamoDB, dummy_credentials: None
) -> None:
    """A table with other keys is an error in answer to CHECK that tells what it has and what is needed."""
    client = make_client(embedded.settings)
    client.create_table(
        TableName="wrong-keys",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "B"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    client.close()
    kind, _, message = connect().hello(settings | {"deltaTable": "wrong-keys"}).check().error()
    assert kind == ConfigurationError.kind
    assert "table wrong-keys has keys id (HASH, B), needed are store_shard (HASH, S), part (RANGE, S)" in message
    assert "'dynastate tables check'" in message


def test_an_unreachable_endpoint_is_said_within_seconds(connect: Callable[[], Talk], settings: dict[str, str]) -> None:
    """When a query begins, an endpoint where nobody listens is told within seconds, also to tasks tried again."""
    nowhere, started = settings | {"endpoint": "http://127.0.0.1:9", "requestDeadlineS": "3600"}, time.monotonic()
    for _ in range(4):
        kind, _, message = connect().hello(nowhere).check().error()
        assert kind == ConfigurationError.kind
        assert f"cannot be reached at http://127.0.0.1:9; check {PREFIX}endpoint" in message
    assert time.monotonic() - started < ERROR_WITHIN_S


def test_a_check_leaves_the_connection_ready(talk: Talk, store: str) -> None:
    """Where the tables fit, CHECK is answered so, at any time, and what follows is as ever."""
    for version in (1, 2):
        assert talk.check().type is Type.CHECKED
        talk.write(store, attempt(version), {b"a": b"1"}, (version - 1, attempt(version - 1)) if version > 1 else EMPTY)


def test_missing_credentials_and_region_are_said(start: Start, settings: dict[str, str]) -> None:
    """Without credentials, and without a Region, the answer is what is missing and where it is looked for."""
    sidecar = start(environment={})
    kind, _, message = sidecar.connect().hello(settings).check().error()
    assert (kind, "no AWS credentials" in message) == (ConfigurationError.kind, True), message
    kind, _, message = sidecar.connect().hello(settings | {"region": ""}).check().error()
    assert kind == ConfigurationError.kind
    assert f"no AWS Region is known; set {PREFIX}region" in message


# ------------------------------------------------------------------------------------------------------- conversations


def test_a_round_trip(talk: Talk, connect: Callable[[], Talk], settings: dict[str, str], store: str) -> None:
    """Begin, append, commit, open: what one connection committed, another one reads, whole or from a version on."""
    one = talk.write(store, A, {b"a": b"1", b"b": b"1"})
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
    assert [records for records, _ in rest.chunks] == [1, 2]
    assert other.open(store, 2, B, [(2, B)]).chunks == []
    assert other.state(store, 1) == {b"a": b"1", b"b": b"1"}


def test_a_commit_without_changes(talk: Talk, store: str) -> None:
    """An unchanged partition commits, with one request and one write unit once the session is warm."""
    one = talk.write(store, A, {b"a": b"1"})
    talk.begin(store, B, one)
    spent = talk.commit()
    assert (spent["requests"], spent["writeUnits"], spent["parts"]) == (1, 1, 0)
    assert talk.state(store, 2) == {b"a": b"1"}


def test_a_row_of_several_megabytes(talk: Talk, store: str) -> None:
    """A row that needs many parts travels in one frame each way."""
    value = os.urandom(3_000_000)
    talk.write(store, A, {b"large": value})
    assert talk.state(store, 1) == {b"large": value}


def test_many_connections_at_once(connect: Callable[[], Talk], settings: dict[str, str], store: str) -> None:
    """Six stores written at once over connections of their own, several versions each: none disturbs another."""
    failures: list[BaseException] = []
    names = [f"{store[:8]}/0/{partition}/default" for partition in range(6)]
    talks = {name: connect() for name in names}

    def work(name: str) -> None:
        try:
            talk, base = talks[name].hello(settings), EMPTY
            for number in range(1, 5):
                base = talk.write(name, attempt(number), {name.encode(): b"%d" % number}, base)
            assert talk.state(name, 4) == {name.encode(): b"4"}
        except BaseException as failed:  # noqa: BLE001  # shown by the assertion below
            failures.append(failed)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    assert failures == []


def test_a_missing_version_is_answered_and_the_talk_goes_on(talk: Talk, store: str) -> None:
    """A version that is not there is an error that names those that are; the connection is ready again."""
    talk.write(store, A, {b"a": b"1"})
    talk.send(protocol.open_(Open(store, 7, NO_ATTEMPT, ())))
    kind, named, message = talk.answer().error()
    assert (kind, named) == (VersionMissingError.kind, store)
    assert "version=7 versions=1" in message
    talk.send(protocol.open_(Open(store, 1, B, ())))
    assert talk.answer().error()[0] == VersionMissingError.kind
    assert talk.state(store, 1) == {b"a": b"1"}


def test_changes_come_version_by_version(talk: Talk, store: str) -> None:
    """CHANGES brings what each version of a range changed, of the chain of the attempt that was asked for."""
    one = talk.write(store, A, {b"a": b"1"})
    talk.write(store, B, {b"zombie": b"1"}, one)
    two = talk.write(store, C, {b"b": b"2"}, one)
    talk.write(store, attempt(4), {b"a": b"3"}, two)
    assert talk.changes(store, 2, 3) == {2: {b"b": b"2"}, 3: {b"a": b"3"}}
    assert talk.changes(store, 1, 2, B) == {1: {b"a": b"1"}, 2: {b"zombie": b"1"}}
    talk.send(protocol.changes(Changes_(store, 1, 9, NO_ATTEMPT)))
    assert talk.answer().error()[0] == VersionMissingError.kind
    assert talk.state(store, 1) == {b"a": b"1"}


def test_lost_state_is_answered_and_the_talk_goes_on(
    connect: Callable[[], Talk], settings: dict[str, str], http: BotoTables, store: str
) -> None:
    """A lost part is an error that names it, in place of OPENED; the connection is ready again."""
    talk = connect().hello(settings | {"cacheMb": "0"})
    one = talk.write(store, A, {b"a": b"1"})
    talk.write(store, B, {b"b": b"1"}, one)
    lost = parts_of(http, store)[1][0]
    http.delete([lost], Meter())
    talk.send(protocol.open_(Open(store, 2, NO_ATTEMPT, ())))
    answer = talk.answer()
    while answer.type in (Type.FOUND, Type.ROWS):
        answer = talk.answer()
    kind, named, message = answer.error()
    assert (kind, named) == (CorruptStateError.kind, store)
    assert f"item={lost.sort}" in message
    assert talk.state(store, 1) == {b"a": b"1"}


def test_a_failure_is_said_once_in_answer_to_commit(talk: Talk, store: str) -> None:
    """What goes wrong in frames that have no answer is said in answer to COMMIT, once; then the connection is ready."""
    talk.begin("a#name", A)
    talk.append({b"a": b"1"})
    talk.append({b"b": b"1"})
    talk.send(protocol.commit(Commit({0: 2}, SCHEMA)))
    kind, named, message = talk.answer().error()
    assert (kind, named) == (ConfigurationError.kind, "a#name")
    assert "a store name must have 1 to 1024 bytes" in message
    talk.write(store, B, {b"a": b"1"})
    assert talk.state(store, 1) == {b"a": b"1"}


def test_a_failed_attempt_can_be_aborted(talk: Talk, store: str) -> None:
    """An attempt that could not begin is ended by ABORT without a word, and leaves the connection ready."""
    talk.begin("a#name", A)
    talk.append({b"a": b"1"})
    talk.send(protocol.frame(Type.ABORT))
    talk.write(store, B, {b"a": b"1"})
    assert talk.state(store, 1) == {b"a": b"1"}


def begin_large(talk: Talk, http: BotoTables, store: str, by: Attempt) -> None:
    """Begin an attempt, and append until some parts are in the table."""
    talk.begin(store, by)
    for number in range(30):
        talk.append({b"%d" % number: b"1"})
    wait_until(lambda: len(parts_of(http, store)) == 25, "parts are missing")


def test_abort_deletes_what_was_written(talk: Talk, http: BotoTables, store: str) -> None:
    """ABORT has no answer; what the attempt had written is gone, and the next attempt goes on."""
    begin_large(talk, http, store, A)
    talk.send(protocol.frame(Type.ABORT))
    talk.write(store, B, {b"b": b"1"})
    assert [key.sort[21:53] for key, _ in parts_of(http, store)] == [B.hex()]
    assert talk.state(store, 1) == {b"b": b"1"}


@pytest.mark.parametrize(
    "rest", [b"", append({b"cut": b"1"})[:-1], b"\x10"], ids=["between", "in a body", "in a header"]
)
def test_a_connection_that_is_cut_while_writing_is_an_abort(
    talk: Talk, connect: Callable[[], Talk], settings: dict[str, str], http: BotoTables, store: str, rest: bytes
) -> None:
    """A task that dies takes its attempt with it, wherever its last frame was cut, and leaves nothing."""
    begin_large(talk, http, store, A)
    talk.send(rest)
    talk.close()
    wait_until(lambda: parts_of(http, store) == [], "parts are left")
    other = connect().hello(settings)
    other.send(protocol.open_(Open(store, 1, NO_ATTEMPT, ())))
    assert other.answer().error()[0] == VersionMissingError.kind


HELLO = protocol.hello(TOKEN, dynastate.__version__, "{}")
OPEN = protocol.open_(Open("s", 1, NO_ATTEMPT, ()))
BEGIN = protocol.begin(Begin("s", "run-1", CHECKPOINT, *EMPTY, A))
COMMIT = protocol.commit(Commit({}, SCHEMA))
ABORT = protocol.frame(Type.ABORT)
UNKNOWN = b"\x01\x00\x00\x00\xc8"


@pytest.mark.parametrize("frame", [OPEN, BEGIN, append({b"a": b"1"}), COMMIT, ABORT, UNKNOWN, protocol.welcome("x")])
def test_the_first_frame_must_be_hello(connect: Callable[[], Talk], frame: bytes) -> None:
    """Nothing is done for someone who did not say HELLO."""
    talk = connect()
    talk.send(frame)
    kind, store, message = talk.last_error()
    assert (kind, store) == (MismatchError.kind, "")
    assert "out of order state=new" in message


@pytest.mark.parametrize("frame", [HELLO, append({b"a": b"1"}), COMMIT, ABORT, UNKNOWN])
def test_frames_out_of_order_when_ready(talk: Talk, frame: bytes) -> None:
    """A second HELLO, or a step of an attempt without BEGIN, ends the connection with an error."""
    talk.send(frame)
    kind, _, message = talk.last_error()
    assert kind == MismatchError.kind
    assert "out of order state=ready" in message


@pytest.mark.parametrize("frame", [HELLO, OPEN, BEGIN, UNKNOWN])
def test_frames_out_of_order_while_writing(talk: Talk, http: BotoTables, store: str, frame: bytes) -> None:
    """HELLO, OPEN or a second BEGIN within an attempt ends the connection, and with it the attempt."""
    begin_large(talk, http, store, A)
    talk.send(frame)
    kind, named, message = talk.last_error()
    assert (kind, named) == (MismatchError.kind, store)
    assert "out of order state=writing" in message
    wait_until(lambda: parts_of(http, store) == [], "parts are left")


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (protocol.frame(Type.OPEN, b"\xff\xff\xff\xff"), "ends within a field"),
        (protocol.frame(Type.OPEN, OPEN[5:] + b"x"), "bytes too many"),
        (protocol.open_(Open("s", 0, NO_ATTEMPT, ())), "version 0 is empty and never asked for"),
        (protocol.begin(Begin("s", "r", "c", 1, NO_ATTEMPT, A)), "an attempt needs an id, and a parent"),
        (b"\x00\x00\x00\x00\x02", "impossible length"),
        (b"\xff\xff\xff\xff\x02", "impossible length"),
    ],
)
def test_broken_frames_end_the_connection(talk: Talk, frame: bytes, said: str) -> None:
    """A frame that cannot be read is answered by what is wrong with it, and the connection closed."""
    talk.send(frame)
    kind, _, message = talk.last_error()
    assert kind == MismatchError.kind
    assert said in message


@pytest.mark.parametrize("length", [2 * 1024 * 1024, protocol.FRAME_BYTES_MAX, 2**32 - 1])
def test_an_oversized_first_frame_is_refused_unread(connect: Callable[[], Talk], length: int) -> None:
    """Whoever has not said HELLO cannot make the sidecar take memory: a long first frame is refused by its header."""
    talk = connect()
    talk.send(protocol.HEADER.pack(length, Type.HELLO))
    kind, _, message = talk.last_error()
    assert kind == MismatchError.kind
    assert f"length={length}" in message


# ------------------------------------------------------------------------------------------------------------- process


def test_the_end_of_standard_input_ends_everything(
    start: Start, settings: dict[str, str], http: BotoTables, store: str
) -> None:
    """When the executor is gone the sidecar ends, with socket and folder; what was under way is not visible."""
    sidecar = start()
    assert sidecar.said == "ready\n"
    assert stat.S_ISSOCK(sidecar.path.stat().st_mode)
    talk = sidecar.connect().hello(settings)
    talk.write(store, A, {b"a": b"1"})
    talk.begin(store, B, (1, A))
    talk.append({b"a": b"2"})
    assert sidecar.end() == 0
    assert not sidecar.folder.exists()
    assert talk.receive() is None
    assert history(http, store).versions() == [1]


def test_it_starts_within_two_seconds(start: Start, settings: dict[str, str]) -> None:
    """From its start until it has welcomed the first connection; one of ten, on a machine that does more."""
    took: list[float] = []
    while not took or (took[-1] >= START_PROMISED_S and len(took) < 10):
        started = time.monotonic()
        start().connect().hello(settings)
        took.append(time.monotonic() - started)
    assert took[-1] < START_PROMISED_S, took


def test_it_shows_that_it_lives_unless_it_is_stopped(start: Start, settings: dict[str, str], store: str) -> None:
    """Standard output has a sign of life again and again, and nothing else, also while there is much to do."""
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
    assert os.read(output, 100) == b"alive\n"


def test_its_log_says_store_version_and_attempt(start: Start, settings: dict[str, str], store: str) -> None:
    """Whatever fails in a conversation is a line of the log that says which attempt at which version it concerns."""
    sidecar = start()
    talk = sidecar.connect().hello(settings)
    one = talk.write(store, A, {b"a": b"1"})
    for version, by, said in ((7, B, B.hex()), (7, NO_ATTEMPT, "any")):
        talk.send(protocol.open_(Open(store, version, by, ())))
        talk.answer().error()
        assert f"ERROR dynastate.sidecar: open failed store={store} version=7 attempt={said}: " in sidecar.log()
    talk.begin("a#name", B, one)
    talk.send(protocol.commit(Commit({0: 1}, SCHEMA)))
    talk.answer().error()
    assert f"ERROR dynastate.sidecar: commit failed store=a#name version=2 attempt={B.hex()}: " in sidecar.log()
    talk.begin(store, C, one)
    talk.send(append({b"a": b"2"})[:-1])
    talk.close()
    ended = f"INFO dynastate.sidecar: connection ended store={store} version=2 attempt={C.hex()}: "
    wait_until(lambda: ended in sidecar.log(), f"not said: {ended}")


def test_ctrl_c_is_for_spark(start: Start, settings: dict[str, str], store: str) -> None:
    """SIGINT, which a terminal sends to all its processes, does not end the sidecar: Spark still has a batch to end."""
    sidecar = start()
    talk = sidecar.connect().hello(settings)
    talk.begin(store, A)
    sidecar.process.send_signal(signal.SIGINT)
    talk.append({b"a": b"1"})
    talk.commit()
    sidecar.process.send_signal(signal.SIGINT)
    assert sidecar.connect().hello(settings).state(store, 1) == {b"a": b"1"}


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701, 0o500])
def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path, mode: int) -> None:
    """The socket's folder must be its user's alone: any other mode is refused, with the mode that it has."""
    tmp_path.chmod(0o700)
    check_folder(tmp_path)
    tmp_path.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"mode 0700 folder={tmp_path} mode={mode:#o}"):
        check_folder(tmp_path)
    tmp_path.chmod(0o700)


def test_a_sidecar_does_not_start_in_an_open_folder(start: Start) -> None:
    """Started in a folder that others may enter, the sidecar ends at once with one line, and opens no socket."""
    sidecar = start(mode=0o755)
    assert sidecar.said == ""
    assert sidecar.process.wait(WITHIN_S) == 1
    assert sidecar.log().startswith("dynastate.sidecar: the socket's folder must be owned by this user with mode 0700")
    assert sidecar.log().count("\n") == 1
    assert not sidecar.path.exists()


def test_the_token_is_never_shown(start: Start, settings: dict[str, str]) -> None:
    """The token stands neither in the arguments, nor in the environment, nor in the log, whatever goes wrong."""
    sidecar = start()
    words = ["ps", "-E", "-o", "args=", "-p", str(sidecar.process.pid)] if sys.platform == "darwin" else None
    proc = Path(f"/proc/{sidecar.process.pid}")
    shown = (
        subprocess.run(words, capture_output=True, check=True).stdout
        if words
        else (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
    )
    assert b"dynastate.sidecar" in shown
    for frame in (
        protocol.hello(TOKEN, "9.9.9", "{}"),
        protocol.hello(TOKEN, dynastate.__version__, "no JSON"),
        protocol.frame(Type.HELLO, protocol.hello(TOKEN, "", "")[5:-1]),
        protocol.frame(Type.HELLO, b"\x01\x00" + TOKEN),
    ):
        talk = sidecar.connect()
        talk.send(frame)
        assert TOKEN.hex() not in talk.last_error()[2]
    sidecar.connect().hello(settings)
    assert sidecar.end() == 0
    assert "9.9.9" in sidecar.log()
    for text in (shown, sidecar.log().encode()):
        for form in (TOKEN, TOKEN.hex().encode(), repr(TOKEN).encode()):
            assert form not in text


# ---------------------------------------------------------------------------------------- the conversation, with faults


class FixedEngines(Engines):
    """Gives one engine, or fails."""

    def __init__(self, given: Engine | Exception) -> None:
        super().__init__()
        self._given = given

    def get(self, settings: Settings, *, was_reached: bool) -> Engine:  # noqa: ARG002  # the same for any settings
        if isinstance(self._given, Exception):
            raise self._given
        return self._given


def converse(engines: Engines, *frames: bytes, send: Callable[[bytes], None] | None = None) -> list[Answer]:
    """Hold a conversation of these frames after HELLO; return the answers after WELCOME."""
    sent: list[bytes] = []
    Connection(BytesIO(HELLO + b"".join(frames)), send or sent.append, TOKEN, engines).serve()
    answers = [Answer(Type(each[4]), each[5:]) for each in sent]
    return answers[1:] if answers and answers[0].type is Type.WELCOME else answers


@pytest.fixture
def struck(memory: MemoryTables) -> StruckTables:
    """Tables in memory that fail as told."""
    return StruckTables(memory)


@pytest.fixture
def failing(struck: StruckTables) -> Iterator[Engine]:
    """An engine on tables that fail as told."""
    for make in closing(struck):
        yield make()


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
def test_whatever_fails_at_first_contact_is_answered(error: Exception, kind: int) -> None:
    """Tables that cannot be checked are an error frame, whatever the reason, and never a connection that just ends."""
    (answer,) = converse(FixedEngines(error), OPEN)
    found, _, message = answer.error()
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
    failing: Engine, struck: StruckTables, store: str, error: Exception, kind: int
) -> None:
    """Throttled, unknown or a defect: COMMIT is answered by the kind that says what to do, and the next one works."""
    struck.strike("append_version", Strike(error))
    begin = [protocol.begin(Begin(store, "run-1", CHECKPOINT, *EMPTY, by)) for by in (A, B)]
    first = [begin[0], append({b"a": b"1"}), COMMIT]
    answers = converse(FixedEngines(failing), *first, begin[1], append({b"a": b"2"}), COMMIT)
    assert [answer.type for answer in answers] == [Type.ERROR, Type.COMMITTED]
    assert answers[0].error()[:2] == (kind, store)
    assert read(failing, store, 1) == {b"a": b"2"}


def test_a_commit_in_doubt_keeps_its_parts(failing: Engine, struck: StruckTables, store: str) -> None:
    """After an unknown outcome the parts stay, for the commit may have happened: then its version is whole."""
    struck.strike("append_version", Strike(UnknownOutcomeError("it may have happened"), applied=True))
    begin = protocol.begin(Begin(store, "run-1", CHECKPOINT, *EMPTY, A))
    (answer,) = converse(FixedEngines(failing), begin, append({b"a": b"1"}), COMMIT)
    assert answer.error()[0] == UnknownOutcomeError.kind
    assert read(failing, store, 1) == {b"a": b"1"}


def test_a_failed_append_is_not_forgotten(failing: Engine, struck: StruckTables, store: str) -> None:
    """An append that failed fails the commit, also when later appends would go well; nothing becomes visible."""
    struck.strike("get", Strike(UnavailableError("throttled")))
    begin = protocol.begin(Begin(store, "run-1", CHECKPOINT, *EMPTY, A))
    (answer,) = converse(FixedEngines(failing), begin, append({b"a": b"1"}), append({b"b": b"1"}), COMMIT)
    assert answer.error() == (UnavailableError.kind, store, "throttled")
    assert history(struck, store).versions() == []


@pytest.fixture
def broken_snapshot(memory: MemoryTables, store: str, monkeypatch: pytest.MonkeyPatch) -> State:
    """Tables with a store whose snapshot at version 3, of 8 buckets, has lost the last one; the state at version 4."""
    monkeypatch.setattr(snapshots, "FRACTION", 0.0)
    monkeypatch.setattr(reader, "WINDOW", 2)
    state = {b"%d" % number: b"%d" % number for number in range(60)}
    for make in closing(memory):
        made = write(make(), store, attempt(1), state)
        made = write(make(), store, attempt(2), {b"1": None}, base=made)
        made = write(make(), store, attempt(3), {b"2": b"two"}, base=made)
        state = {key: value for key, value in state.items() if key != b"1"} | {b"2": b"two"}
        under_way = take_snapshot(make(), store, made, state, lambda _: set())
        assert under_way is not None
        assert under_way.commit()
        write(make(), store, attempt(4), {b"3": b"three"}, base=made)
    last = max(key for key in memory.items if key.sort.startswith("bucket/"))
    del memory.items[last]
    return state | {b"3": b"three"}


def take_answers(answers: Sequence[Answer]) -> tuple[list[Type], State]:
    """Take frames as the provider does: FOUND makes void what came before."""
    state: State = {}
    for answer in answers:
        if answer.type is Type.FOUND:
            state = {}
        elif answer.type is Type.ROWS:
            fields = answer.fields()
            state = fold([(fields.u32(), fields.rest())], state)
    return [answer.type for answer in answers if answer.type is not Type.ROWS], state


def test_open_goes_round_a_snapshot_that_turns_out_broken(
    broken_snapshot: State, memory: MemoryTables, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows of the snapshot are on their way when a bucket is found lost: FOUND comes again, and then all rows."""
    for make in closing(memory):
        answers = converse(FixedEngines(make()), protocol.open_(Open(store, 4, attempt(4), ())))
        kinds, state = take_answers(answers)
        assert kinds == [Type.FOUND, Type.FOUND, Type.OPENED]
        assert [answer.type for answer in answers][1] is Type.ROWS
        assert state == broken_snapshot
    assert "recovery goes round a broken snapshot" in caplog.text
    assert "item=bucket/" in caplog.text


def test_read_goes_round_a_snapshot_that_turns_out_broken(
    broken_snapshot: State, memory: MemoryTables, store: str
) -> None:
    """READ of one half after the other: the half with the lost bucket says FOUND, and then has all its rows."""
    for make in closing(memory):
        engines = FixedEngines(make())
        state: State = {}
        for half in (0, 1):
            answers = converse(engines, protocol.read(Read(store, 4, attempt(4), 1, half)))
            kinds, found = take_answers(answers)
            state |= {key: value for key, value in found.items() if rows.key_hash(key) >> 31 == half}
            assert kinds == ([Type.FOUND, Type.OPENED] if half else [Type.DELTAS, Type.OPENED])
        assert state == broken_snapshot


def test_find_goes_round_a_snapshot_without_its_directory(
    broken_snapshot: State, memory: MemoryTables, store: str
) -> None:
    """FIND answers as if the snapshot were not there."""
    del memory.items[next(key for key in memory.items if key.sort.startswith("directory/"))]
    for make in closing(memory):
        answers = converse(FixedEngines(make()), protocol.find(Find(store, 4, attempt(4))))
        assert [answer.type for answer in answers] == [Type.FOUND, Type.CONTENT, Type.OPENED]


def test_open_ends_where_no_way_leads_to_the_version(broken_snapshot: State, memory: MemoryTables, store: str) -> None:
    """A part lost below the broken snapshot: one ERROR, after which the connection goes on."""
    del memory.items[next(key for key in memory.items if key.role == "delta" and key.sort.startswith(f"{2:020d}/"))]
    for make in closing(memory):
        again = protocol.open_(Open(store, 4, attempt(4), ()))
        *_, first, second = (each for each in converse(FixedEngines(make()), again, again) if each.type is Type.ERROR)
        for error in (first, second):
            kind, named, message = error.error()
            assert (kind, named) == (CorruptStateError.kind, store)
            assert f"item={2:020d}/" in message
            assert "table=dynastate-delta " in message


def test_a_version_is_written_whole(memory: MemoryTables, store: str) -> None:
    """WHOLE is answered by how its buckets are wanted, their end by what it cost; then it is there."""
    whole = protocol.whole(Whole(store, "run-1", CHECKPOINT, 43, A, 1, {0: 1}, SCHEMA))
    end = protocol.frame(Type.SNAPSHOT_END)
    for make in closing(memory):
        at = make()
        answers = converse(FixedEngines(at), whole, protocol.bucket(0), append({b"a": b"1"}), end)
        assert [answer.type for answer in answers] == [Type.WANTED, Type.MAINTAINED]
        assert read(at, store, 43) == {b"a": b"1"}


def test_a_version_that_cannot_be_written_whole_is_none(failing: Engine, struck: StruckTables, store: str) -> None:
    """The error is the answer to WHOLE, or to the end of its buckets, and what was written is taken away."""
    whole = protocol.whole(Whole(store, "run-1", CHECKPOINT, 43, A, 1, {0: 1}, SCHEMA))
    end = protocol.frame(Type.SNAPSHOT_END)
    struck.strike("put_new", Strike(UnavailableError("throttled")))
    answers = converse(FixedEngines(failing), whole, protocol.frame(Type.CHECK))
    assert [answer.type for answer in answers] == [Type.ERROR, Type.CHECKED]
    struck.strike("write", None, Strike(UnavailableError("throttled")))
    answers = converse(FixedEngines(failing), whole, protocol.bucket(0), append({b"a": b"1"}), end)
    assert [answer.type for answer in answers] == [Type.WANTED, Type.ERROR]
    assert {sort.partition("/")[0] for sort in items_of(struck, store)} == {"meta", "schema"}


def test_an_answer_that_nobody_takes_does_not_undo_the_commit(
    failing: Engine, struck: StruckTables, store: str
) -> None:
    """When the task is gone by the time its commit is answered, the version stands."""

    def broken_after_welcome(frame: bytes) -> None:
        if frame[4] != Type.WELCOME:
            raise BrokenPipeError

    begin = protocol.begin(Begin(store, "run-1", CHECKPOINT, *EMPTY, A))
    converse(FixedEngines(failing), begin, append({b"a": b"1"}), COMMIT, send=broken_after_welcome)
    assert read(failing, store, 1) == {b"a": b"1"}


def test_an_abort_that_cannot_finish_is_no_error(
    failing: Engine, struck: StruckTables, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Parts that an abort could not delete are logged with store, version and attempt, and answered by nothing."""
    struck.strike("delete", Strike(UnavailableError("throttled")))
    begin = protocol.begin(Begin(store, "run-1", CHECKPOINT, *EMPTY, A))
    struck.strike("append_version", Strike(UnavailableError("throttled")))
    answers = converse(FixedEngines(failing), begin, append({b"a": b"1"}), COMMIT)
    assert [answer.type for answer in answers] == [Type.ERROR]
    assert f"abort left parts behind store={store} version=1 attempt={A.hex()}" in caplog.text
    assert len(parts_of(struck, store)) == 1


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
    """Connections with equal settings share one engine, others have their own; what failed is tried anew."""
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
    for same in (replace(base, namespace="other"), replace(base, python="/other"), replace(base, memory_mb=64)):
        assert engines.get(same, was_reached=True) is one  # what the JVM alone goes by
    other = engines.get(replace(base, shards=7), was_reached=True)
    assert other is not one
    for engine in (one, other):
        engine.close()
        engine._tables.close()  # type: ignore[attr-defined]  # these are BotoTables


def test_a_check_that_fails_ends_nothing_that_is_at_work(
    embedded: EmbeddedDynamoDB, dummy_credentials: None, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """Tasks check the same tables at once: where one has passed, another's failure leaves it its engine."""
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
    at, wrong = found
    assert isinstance(at, Engine)
    assert isinstance(wrong, ConfigurationError)
    made = write(at, store, A, {b"a": b"1"})
    assert read(at, store, *made) == {b"a": b"1"}
    assert engines.get(embedded.settings, was_reached=True) is at
    at.close()
    at._tables.close()  # type: ignore[attr-defined]  # these are BotoTables


# -------------------------------------------------------------------------------------------------------------- buckets


def test_a_version_is_found_and_read_by_buckets(talk: Talk, store: str) -> None:
    """FIND says what a version holds, READ brings the rows of one bucket; both leave the connection ready."""
    one = talk.write(store, A, {b"%d" % number: b"1" for number in range(40)})
    talk.send(protocol.find(protocol.Find(store, *one)))
    assert talk.answer().type == Type.FOUND
    assert talk.answer().body == protocol.content(0, {0: 0})[protocol.HEADER.size :]
    assert talk.answer().type == Type.OPENED
    together: State = {}
    for bucket in range(4):
        talk.send(protocol.read(protocol.Read(store, *one, 2, bucket)))
        answer = talk.answer()
        while answer.type == Type.ROWS:
            together |= fold([(answer.fields().u32(), answer.body[4:])])
            answer = talk.answer()
        assert answer.type == Type.OPENED
    assert len(together) == 40
    talk.send(protocol.find(protocol.Find(store, 2, NO_ATTEMPT)))
    assert talk.answer().error()[0] == VersionMissingError.kind
    assert len(talk.state(store, 1)) == 40


def test_a_long_load_says_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """Every two seconds; a short one says nothing."""
    caplog.set_level("INFO", logger="dynastate.sidecar")
    times = iter([0.0, 0.5, 1.9, 2.1, 2.2, 4.0, 4.2])
    progress = Progress(about("ns/0/0/default", 7, A), 600, clock=lambda: next(times))
    assert len(list(progress.through(iter([(100, b"")] * 6)))) == 6
    assert [record.getMessage() for record in caplog.records if record.name == "dynastate.sidecar"] == [
        f"loading store=ns/0/0/default version=7 attempt={A.hex()} records=300 of 600 seconds=2",
        f"loading store=ns/0/0/default version=7 attempt={A.hex()} records=600 of 600 seconds=4",
    ]
