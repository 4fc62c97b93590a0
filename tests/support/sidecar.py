"""A sidecar process, and connections to it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import dynastate
from dynastate.dynamodb.embedded import credentials
from dynastate.engine.engine import Engine
from dynastate.format.codec import RAW
from dynastate.format.keys import EMPTY, NO_ATTEMPT, Attempt, Key, VersionId
from dynastate.format.parts import StoredChunk
from dynastate.settings import PREFIX, Settings
from dynastate.sidecar import protocol
from dynastate.sidecar.engines import Engines
from dynastate.sidecar.protocol import Commit, Open
from tests.support.engine_driver import fold
from tests.support.frames import TOKEN, append, begin, hello
from tests.support.samples import SCHEMA, Changes, State

WITHIN_S = 30.0


def error_of(answer: Any) -> tuple[int, str, str]:
    assert isinstance(answer, protocol.Error), answer
    return answer


#: Rows, as they are or compressed.
ROWS = (protocol.Rows, protocol.Packed)


def chunk_of(rows: protocol.Rows | protocol.Packed) -> StoredChunk:
    codec, raw_bytes = (rows.codec, rows.raw_bytes) if isinstance(rows, protocol.Packed) else (RAW, len(rows.changes))
    return StoredChunk(Key("delta", "", ""), codec, rows.records, raw_bytes, rows.changes)


class Opened(NamedTuple):
    """The answer to OPEN."""

    version: VersionId
    base: VersionId
    counters: dict[str, int]
    chunks: list[StoredChunk]


class Talk:
    """One connection to the sidecar, as the JVM holds it."""

    def __init__(self, path: Path, within_s: float = WITHIN_S) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(within_s)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._stream = self._socket.makefile("rb")

    def send(self, *frames: bytes) -> None:
        for frame in frames:
            self._socket.sendall(frame)

    def receive(self) -> Any:
        """Receive the next message, or None if the sidecar has closed, or was killed."""
        try:
            header = self._stream.read(protocol.HEADER.size)
            if len(header) < protocol.HEADER.size:
                return None
            length, number = protocol.HEADER.unpack(header)
            size = protocol.check_length(length, number)
            body = self._stream.read(size)
        except ConnectionResetError:  # it closed with frames of ours unread
            return None
        return protocol.decode(number, body) if len(body) == size else None

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
        self.send(hello(TOKEN, dynastate.__version__, json.dumps(settings)))
        assert self.answer() == protocol.Welcome(dynastate.__version__)
        return self

    def check(self) -> Any:
        self.send(protocol.encode(protocol.Check()))
        return self.answer()

    def begin(self, store: str, by: Attempt, base: VersionId = EMPTY) -> None:
        self.send(begin(store, by, base))

    def append(self, changes: Changes) -> None:
        self.send(append(changes))

    def commit(self, keys: int = 0) -> dict[str, int]:
        self.send(protocol.encode(Commit({0: keys}, SCHEMA)))
        answer = self.answer()
        assert isinstance(answer, protocol.Committed), answer
        assert answer.version > 0
        return dict(answer.counters)

    def write(self, store: str, by: Attempt, changes: Changes, base: VersionId = EMPTY) -> VersionId:
        self.begin(store, by, base)
        self.append(changes)
        self.commit()
        return VersionId(base[0] + 1, by)

    def open(self, store: str, version: int, by: Attempt = NO_ATTEMPT, have: Sequence[VersionId] = ()) -> Opened:
        self.send(protocol.encode(Open(store, version, by, tuple(have))))
        chunks: list[StoredChunk] = []
        answered = self.answer()
        assert isinstance(answered, protocol.Found), answered
        assert answered.schema == SCHEMA
        while isinstance(answer := self.answer(), ROWS):
            chunks.append(chunk_of(answer))
        assert isinstance(answer, protocol.Opened), answer
        opened, base = VersionId(answered.version, answered.attempt), VersionId(answered.base, answered.base_attempt)
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
        return fold(self.open(store, version).chunks)

    def ask(self, message: Any) -> Any:
        """Send a message that has one answer, and return it."""
        self.send(protocol.encode(message))
        return self.answer()

    def fail(self, message: Any) -> tuple[int, str, str]:
        self.send(protocol.encode(message))
        return error_of(self.answer())

    def cut(self) -> None:
        """End the connection, from any thread: it receives nothing any longer."""
        with suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


class Sidecar:
    """The process, started as the JVM starts it."""

    def __init__(
        self,
        mode: int = 0o700,
        environment: dict[str, str] | None = None,
        owner: int = -1,
        module: str = "dynastate.sidecar",
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dynastate-"))
        self.folder.chmod(mode)
        os.chown(self.folder, owner, -1)
        self.path = self.folder / "socket"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        keys = credentials() if environment is None else environment
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
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

    def connect(self, within_s: float = WITHIN_S) -> Talk:
        self._talks.append(Talk(self.path, within_s))
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
