"""The engine's process on an executor: socket, threads and clock; puts the pieces together (docs/protocol.md).

    python -m dynastate.sidecar

The JVM that starts it writes one line of JSON, {"socket": path, "token": hex}, to standard input and keeps that open.
When it ends, the executor is gone, and so is the sidecar. On standard output it shows that it lives.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import signal
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, TextIO

import dynastate
from dynastate import protocol
from dynastate.errors import ConfigurationError, DynastateError, InternalError, MismatchError
from dynastate.layout import NO_ATTEMPT, Attempt, Chunk
from dynastate.protocol import State, Type
from dynastate.reader import Rows
from dynastate.settings import Settings
from dynastate.snapshots import SnapshotAttempt
from dynastate.store import (
    Engine,
    Opening,
    WholeAttempt,
    WholeVersion,
    WriteAttempt,
    by_any_way,
    counters,
    maintenance_counters,
)
from dynastate.tables import BotoTables

log = logging.getLogger("dynastate.sidecar")

#: So long what was wrong with settings, tables or endpoint is taken to be so still.
FAILED_FOR_S = 5.0
#: A sign of life so often; the JVM kills a sidecar that gives none for 20 seconds.
ALIVE_EVERY_S = 2.0
READ_BUFFER_BYTES = 1024 * 1024
#: A load that takes longer than this says how far it is.
PROGRESS_S = 2.0


class _GoneError(Exception):
    """The JVM has closed the connection, or it was cut."""


class Engines:
    """One engine for each distinct settings, made, and its tables checked, when it is first needed."""

    def __init__(self) -> None:
        self._made: dict[Settings, tuple[BotoTables, Engine]] = {}
        self._fit: set[Settings] = set()
        self._failed: dict[Settings, tuple[float, ConfigurationError]] = {}
        self._lock = threading.Lock()

    def get(self, settings: Settings, *, was_reached: bool) -> Engine:
        """The engine for these settings, whose tables are there and fit.

        `was_reached`: a store of theirs has versions. A DynamoDB that is out of reach is an outage then, to be waited
        out as any other; else a wrong setting is likelier.

        Raises:
            ConfigurationError: no Region is known, a table is missing or has other keys, or DynamoDB is out of reach.
            UnavailableError: DynamoDB throttled, or gave no proper answer, until the deadline.
        """
        # What the JVM alone goes by makes no engine: each has threads, a cache and connections.
        settings = replace(settings, namespace="", python="", memory_mb=0)
        with self._lock:
            # Tasks are tried again at once: they must not each wait for the same answer.
            since, error = self._failed.get(settings, (-FAILED_FOR_S, None))
            if error is not None and time.monotonic() < since + FAILED_FOR_S:
                raise error
            if settings not in self._made:
                self._made[settings] = self._make(settings)
            made = tables, engine = self._made[settings]
            is_fit = settings in self._fit
        if not is_fit:
            if was_reached:
                tables.expect_answers()
            self._check(settings, *made)
            with self._lock:
                is_open = self._made.get(settings) == made
                if is_open:
                    self._fit.add(settings)
            if not is_open:  # another task's check has failed meanwhile
                return self.get(settings, was_reached=was_reached)
        return engine

    def _check(self, settings: Settings, tables: BotoTables, engine: Engine) -> None:
        try:
            drift = tables.check()
            if drift:
                raise ConfigurationError(
                    "; ".join(drift) + "; 'dynastate tables check' says the same, infra/ makes tables that fit"
                )
        except ConfigurationError as wrong:
            with self._lock:
                if settings in self._fit:  # another task's check has passed, and it is at work
                    raise
                self._failed[settings] = (time.monotonic(), wrong)
                # The next one is made anew: boto3 looks for credentials once for each client.
                is_ours = self._made.get(settings) == (tables, engine)
                if is_ours:
                    del self._made[settings]
            if is_ours:
                engine.close()
                tables.close()
            raise

    def _make(self, settings: Settings) -> tuple[BotoTables, Engine]:
        tables = BotoTables(settings)
        return tables, Engine.of(tables, settings)


def _parse_settings(settings_json: str) -> Settings:
    try:
        given = json.loads(settings_json)
    except (ValueError, RecursionError):
        raise MismatchError("settings in HELLO are not JSON") from None
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise MismatchError("settings in HELLO are not an object of text to text")
    return Settings.from_spark(given)


def about(store: str, version: int, attempt: Attempt) -> str:
    """What a line of the log is about."""
    return f"store={store} version={version} attempt={'any' if attempt == NO_ATTEMPT else attempt.hex()}"


class Progress:
    """Says in the log how far a load is, every `PROGRESS_S` seconds."""

    def __init__(self, about: str, records: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._about = about
        self._records = records
        self._clock = clock
        self._taken = 0
        self._started = clock()
        self._next = self._started + PROGRESS_S

    def through(self, chunks: Iterator[Rows]) -> Iterator[Rows]:
        """Hand chunks on, and count their records."""
        for chunk in chunks:
            yield chunk
            self._taken += chunk[0]
            now = self._clock()
            if now >= self._next:
                self._next = now + PROGRESS_S
                log.info(
                    "loading %s records=%d of %d seconds=%.0f",
                    *(self._about, self._taken, self._records, now - self._started),
                )


class Connection:
    """One conversation with the JVM, in a thread of its own. At most one attempt is under way in it.

    What goes wrong in frames that have no answer is kept, and said in answer to COMMIT.
    """

    def __init__(self, stream: BinaryIO, send: Callable[[bytes], None], token: bytes, engines: Engines) -> None:
        self._stream = stream
        self._hand_over = send
        self._token = token
        self._engines = engines
        self._state = State.NEW
        self._settings = Settings()
        self._engine: Engine | None = None
        self._attempt: WriteAttempt | None = None
        self._snapshot: SnapshotAttempt | WholeAttempt | None = None
        self._store = ""
        self._about = "store=none"
        self._failed: Exception | None = None

    def serve(self) -> None:
        """Answer frames until the JVM closes, or breaks the protocol."""
        handlers: dict[int, Callable[[bytes], None]] = {
            Type.HELLO: self._hello,
            Type.CHECK: self._check,
            Type.OPEN: self._open,
            Type.CHANGES: self._changes,
            Type.FIND: self._find,
            Type.READ: self._read,
            Type.BEGIN: self._begin,
            Type.APPEND: self._append,
            Type.COMMIT: self._commit,
            Type.ABORT: lambda _: self._abort(),
            Type.SNAPSHOT: self._begin_snapshot,
            Type.WHOLE: self._begin_whole,
            Type.BUCKET: self._bucket,
            Type.SNAPSHOT_END: lambda _: self._end_snapshot(),
            Type.CLEAN_UP: self._clean_up,
        }
        try:
            while (received := self._receive()) is not None:
                frame_type, body = received
                self._state = protocol.follow(self._state, frame_type)
                handlers[frame_type](body)
        except _GoneError as gone:
            log.info("connection ended %s: %s", self._about, gone)
        except Exception as failed:  # noqa: BLE001  # whatever it is, the JVM gets it as the last answer
            self._answer_failure("connection", failed)
        finally:
            if self._attempt is not None or self._snapshot is not None:
                self._abort()

    def _send(self, frame: bytes) -> None:
        try:
            self._hand_over(frame)
        except OSError as gone:
            raise _GoneError(str(gone)) from gone

    def _take(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except OSError as gone:
            raise _GoneError(str(gone)) from gone

    def _receive(self) -> tuple[int, bytes] | None:
        header = self._take(protocol.HEADER.size)
        if not header:
            return None
        if len(header) < protocol.HEADER.size:
            raise _GoneError("it was cut within a frame")
        length, frame_type = protocol.HEADER.unpack(header)
        wanted = protocol.check_length(length)
        if self._state is State.NEW and wanted > READ_BUFFER_BYTES:
            raise MismatchError("first frame is too long", length=length)
        body = self._take(wanted)
        if len(body) < wanted:
            raise _GoneError("it was cut within a frame")
        return frame_type, body

    def _hello(self, body: bytes) -> None:
        if not hmac.compare_digest(protocol.token_of_hello(body), self._token):
            raise MismatchError("wrong token: this is not the process that started the sidecar")
        hello = protocol.parse_hello(body)
        if (hello.protocol, hello.package) != (protocol.PROTOCOL, dynastate.__version__):
            raise MismatchError(
                f"jar is dynastate {hello.package} (protocol {hello.protocol}), the Python package of the executor is "
                f"{dynastate.__version__} (protocol {protocol.PROTOCOL}): install dynastate=={hello.package} in "
                f"{sys.executable}, or use the jar that 'dynastate jar' prints"
            )
        self._settings = _parse_settings(hello.settings)
        self._send(protocol.welcome(dynastate.__version__))

    def _check(self, _: bytes) -> None:
        with self._answering("check"):
            self._engine = self._engines.get(self._settings, was_reached=False)
            self._send(protocol.frame(Type.CHECKED))

    def _open(self, body: bytes) -> None:
        request = protocol.parse_open(body)
        self._concern(request.store, request.version, request.attempt)

        def answer(way: int) -> None:
            have = () if way else request.have
            opening = self._reached_engine().open(request.store, request.version, request.attempt, have)
            self._send_found(opening)
            self._send_opening(opening)

        with self._answering("open"):
            by_any_way(answer)

    def _find(self, body: bytes) -> None:
        request = protocol.parse_find(body)
        self._concern(request.store, request.version, request.attempt)

        def answer(_: int) -> None:  # what may fail comes before the first frame
            opening = self._reached_engine().find(request.store, request.version, request.attempt)
            self._send_found(opening)
            self._send(protocol.content(opening.bits, opening.entry.keys))
            self._send(protocol.opened(counters(opening.meter, self._needed_engine().prices)))

        with self._answering("find"):
            by_any_way(answer)

    def _read(self, body: bytes) -> None:
        request = protocol.parse_read(body)
        self._concern(request.store, request.version, request.attempt)

        def answer(way: int) -> None:
            wanted = (request.bits, request.bucket)
            opening = self._reached_engine().bucket(request.store, request.version, request.attempt, *wanted)
            if way:  # FOUND makes void what was sent before
                self._send_found(opening)
            self._send_opening(opening)

        with self._answering("read"):
            by_any_way(answer)

    def _send_found(self, opening: Opening) -> None:
        self._send(protocol.found(opening.version, opening.attempt, opening.base, opening.schema))

    def _send_opening(self, opening: Opening) -> None:
        progress = Progress(about(self._store, opening.version, opening.attempt), opening.records)
        self._send_rows(progress.through(opening.snapshot_chunks))
        if opening.snapshot:
            self._send(protocol.deltas(opening.snapshot))
        self._send_rows(progress.through(opening.chunks))
        self._send(protocol.opened(counters(opening.meter, self._needed_engine().prices)))

    def _changes(self, body: bytes) -> None:
        request = protocol.parse_changes(body)
        self._concern(request.store, request.last, request.attempt)
        with self._answering("changes"):
            engine = self._reached_engine()
            feed = engine.changes(request.store, request.first, request.last, request.attempt)
            self._send(protocol.found(request.last, feed.attempt, (0, NO_ATTEMPT), feed.schema))
            for version, chunks in feed.versions:
                self._send(protocol.changes_of(version))
                self._send_rows(chunks)
            self._send(protocol.opened(counters(feed.meter, engine.prices)))

    def _send_rows(self, chunks: Iterator[Rows]) -> None:
        for records, run in chunks:
            self._send(protocol.rows(records, run))

    def _begin(self, body: bytes) -> None:
        request = protocol.parse_begin(body)
        self._concern(request.store, request.base + 1, request.attempt)
        self._failed = None
        try:
            self._attempt = self._reached_engine().begin(
                request.store, request.run, request.checkpoint, request.base, request.parent, request.attempt
            )
        except DynastateError as failed:
            self._failed = failed

    def _append(self, body: bytes) -> None:
        request = protocol.parse_append(body)
        under_way = self._attempt or self._snapshot
        if self._failed is None and under_way is not None:
            try:
                under_way.append(Chunk(request.records, request.hash_min, request.hash_max, request.run))
            except Exception as failed:  # noqa: BLE001  # raised at commit: an append has no answer
                self._failed = failed

    def _commit(self, body: bytes) -> None:
        request = protocol.parse_commit(body)
        attempt = self._attempt
        with self._answering("commit", aborts=True):
            if self._failed is not None:
                raise self._failed
            if attempt is None:
                raise InternalError("commit without an attempt", store=self._store)
            spent = attempt.commit(request.keys, request.schema)
            self._attempt = None
            self._send(protocol.committed(attempt.version, spent))

    def _begin_snapshot(self, body: bytes) -> None:
        request = protocol.parse_snapshot(body)
        self._concern(request.store, request.version, request.attempt)
        self._failed = None
        self._state = State.READY  # unless it is wanted
        with self._answering("snapshot"):
            engine = self._reached_engine()
            self._snapshot, spent = engine.snapshot(
                request.store,
                request.run,
                request.version,
                request.attempt,
                request.state_bytes,
                request.min_deltas,
            )
            if self._snapshot is None:
                self._send(protocol.maintained(maintenance_counters(spent, engine.prices)))
                return
            self._snapshot.meter.add(spent)
            self._state = State.SNAPSHOT
            self._send(protocol.wanted(self._snapshot.base, self._snapshot.bits))

    def _begin_whole(self, body: bytes) -> None:
        request = protocol.parse_whole(body)
        self._concern(request.store, request.version, request.attempt)
        self._failed = None
        self._state = State.READY  # unless it can be begun
        with self._answering("commit"):
            version = WholeVersion(request.version, request.attempt, request.keys, request.schema)
            self._snapshot = self._reached_engine().begin_whole(
                request.store, request.run, request.checkpoint, version, request.state_bytes
            )
            self._state = State.SNAPSHOT
            self._send(protocol.wanted(0, self._snapshot.bits))

    def _bucket(self, body: bytes) -> None:
        number = protocol.parse_bucket(body)
        if self._failed is None and self._snapshot is not None:
            try:
                self._snapshot.bucket(number)
            except DynastateError as failed:
                self._failed = failed

    def _end_snapshot(self) -> None:
        snapshot = self._snapshot
        with self._answering("snapshot", aborts=True):
            if self._failed is not None:
                raise self._failed
            if snapshot is None:
                raise InternalError("the end of a snapshot without one", store=self._store)
            if not snapshot.commit():
                log.info("clean-up took a snapshot away that was being written %s", self._about)
            self._snapshot = None
            self._send(protocol.maintained(maintenance_counters(snapshot.meter, self._needed_engine().prices)))

    def _clean_up(self, body: bytes) -> None:
        request = protocol.parse_clean_up(body)
        self._concern(request.store, request.version, request.attempt)
        with self._answering("clean-up"):
            engine = self._reached_engine()
            spent, left = engine.clean_up(
                request.store,
                request.run,
                request.version,
                request.attempt,
                request.retain,
                request.least,
                request.most,
            )
            self._send(protocol.maintained(maintenance_counters(spent, engine.prices) | {"versionsLeft": left}))

    def _abort(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            try:
                snapshot.abort()
            except Exception:  # what it leaves behind, clean-up finds
                log.warning("abort left a snapshot behind %s", self._about, exc_info=True)
        attempt, self._attempt, self._failed = self._attempt, None, None
        if attempt is not None:
            try:
                attempt.abort()
            except Exception:  # an abort that cannot finish is not an error: no list names those parts
                log.warning("abort left parts behind %s", self._about, exc_info=True)

    def _concern(self, store: str, version: int, attempt: Attempt) -> None:
        """Say what the conversation is about from here on."""
        self._store = store
        self._about = about(store, version, attempt)

    def _reached_engine(self) -> Engine:
        """The engine, for all requests but CHECK: whoever names a version has reached DynamoDB before."""
        if self._engine is None:
            self._engine = self._engines.get(self._settings, was_reached=True)
        return self._engine

    def _needed_engine(self) -> Engine:
        if self._engine is None:
            raise InternalError("an answer without an engine")
        return self._engine

    @contextlib.contextmanager
    def _answering(self, operation: str, *, aborts: bool = False) -> Iterator[None]:
        """Let whatever fails be the answer to the frame, but for a connection that is gone; `aborts`: and an ABORT."""
        try:
            yield
        except _GoneError:
            raise
        except Exception as failed:  # noqa: BLE001  # whatever it is, it is the answer
            self._answer_failure(operation, failed)
            if aborts:
                self._abort()

    def _answer_failure(self, operation: str, failed: Exception) -> None:
        if self._engine is not None:
            self._engine.name_table(failed)
        expected = isinstance(failed, DynastateError)
        log.error("%s failed %s: %s", operation, self._about, failed, exc_info=not expected)
        self._error(failed)

    def _error(self, failed: Exception) -> None:
        kind = failed.kind if isinstance(failed, DynastateError) else InternalError.kind
        message = str(failed) if isinstance(failed, DynastateError) else f"{type(failed).__name__}: {failed}"
        with contextlib.suppress(_GoneError):  # whoever would have read it has closed already
            self._send(protocol.error(kind, self._store, message))


def serve(listener: socket.socket, token: bytes) -> None:
    """Accept connections for ever, each in a thread of its own."""
    engines = Engines()
    while True:
        peer, _ = listener.accept()
        if not is_ours(peer):
            log.warning("a connection by another user was refused")
            peer.close()
            continue
        threading.Thread(
            target=_converse, args=(peer, token, engines), name="dynastate-connection", daemon=True
        ).start()


def _converse(peer: socket.socket, token: bytes, engines: Engines) -> None:
    with peer, BufferedReader(peer.makefile("rb", buffering=0), READ_BUFFER_BYTES) as stream:
        Connection(stream, peer.sendall, token, engines).serve()


def is_ours(peer: socket.socket) -> bool:
    """Whether the process at the other end is of this user, as the kernel says: a token can be lost, a user cannot."""
    if sys.platform != "linux":
        return True  # the folder and the token stand alone there
    _, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(user == os.getuid())


def check_folder(folder: Path) -> None:
    """The socket's folder must be ours alone, and no link to one: whoever put it there may put another in its place.

    Raises:
        ConfigurationError: someone else owns it or may enter it, or it is no folder.
    """
    status = folder.lstat()
    alone = status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700
    if not (alone and stat.S_ISDIR(status.st_mode)):
        raise ConfigurationError(
            "the socket's folder must be owned by this user with mode 0700",
            folder=folder,
            mode=oct(stat.S_IMODE(status.st_mode)),
            owner=status.st_uid,
        )


def _end_with(parent: BinaryIO, path: Path) -> None:
    """Wait until standard input ends: the executor is gone. No list names the parts of attempts under way."""
    while parent.read(4096):
        pass
    remove_socket(path)
    os._exit(0)


def _show_life(executor: TextIO) -> None:
    """Say `alive` again and again: a process that is stopped, or hangs as a whole, does not."""
    with contextlib.suppress(OSError):  # the executor is gone, and so is this process at once
        while True:
            time.sleep(ALIVE_EVERY_S)
            executor.write("alive\n")
            executor.flush()


def remove_socket(path: Path) -> None:
    """Remove the socket and its folder, if they are still there."""
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def main() -> None:
    """Read where to listen, say `ready`, and serve until standard input ends."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("botocore").setLevel(logging.WARNING)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for Spark, which still has a batch to end
    parent = sys.stdin.buffer
    order = json.loads(parent.readline())
    path, token = Path(order["socket"]), bytes.fromhex(order["token"])
    try:
        check_folder(path.parent)
    except ConfigurationError as wrong:
        sys.exit(f"dynastate.sidecar: {wrong}")
    os.umask(0o077)  # the socket, too, is for this user alone
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(256)
        threading.Thread(target=_end_with, args=(parent, path), name="dynastate-parent", daemon=True).start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        threading.Thread(target=_show_life, args=(sys.stdout,), name="dynastate-life", daemon=True).start()
        serve(listener, token)


if __name__ == "__main__":
    main()
