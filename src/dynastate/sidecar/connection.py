"""One connection of the JVM: frames in, answers out."""

from __future__ import annotations

import contextlib
import hmac
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

import dynastate
from dynastate.engine.commit import WriteAttempt
from dynastate.engine.engine import Engine
from dynastate.engine.install import InstallAttempt, InstalledVersion
from dynastate.engine.opening import HeldChanges, Opening, retry_routes
from dynastate.engine.reader import EncodedChunk
from dynastate.engine.snapshots import SnapshotAttempt
from dynastate.errors import DynastateError, InternalError, MismatchError
from dynastate.format.keys import NO_ATTEMPT, Attempt, VersionId, location_of
from dynastate.format.meta import QueryRun
from dynastate.format.parts import Chunk
from dynastate.prices import DEFAULT_PRICES, Prices
from dynastate.settings import Settings
from dynastate.sidecar import protocol
from dynastate.sidecar.engines import Engines, parse_settings
from dynastate.sidecar.load_progress import LoadProgressLog, about
from dynastate.sidecar.metrics import commit_counters, counters, maintenance_counters
from dynastate.sidecar.protocol import State

log = logging.getLogger("dynastate.sidecar")

READ_BUFFER_BYTES: Final = 1024 * 1024


class _ClosedError(Exception):
    """The JVM has closed the connection, or it was cut."""


class Connection:
    """One connection of the JVM, in its own thread. It has at most one attempt under way.

    A failure of a frame that has no answer is kept, and raised in answer to COMMIT.
    """

    def __init__(
        self,
        stream: BinaryIO,
        send: Callable[[bytes], None],
        token: bytes,
        engines: Engines,
        is_open: Callable[[], bool],
    ) -> None:
        self._stream = stream
        self._is_open = is_open
        self._hand_over = send
        self._token = token
        self._engines = engines
        self._state = State.NEW
        self._settings = Settings()
        self._prices = DEFAULT_PRICES
        self._engine: Engine | None = None
        self._attempt: WriteAttempt | None = None
        self._snapshot: SnapshotAttempt | InstallAttempt | None = None
        self._store = ""
        self._about = "store=none"
        self._failed: Exception | None = None

    def serve(self) -> None:
        """Answer frames until the JVM closes the connection or breaks the protocol."""
        handlers: dict[type[Any], Callable[[Any], None]] = {
            protocol.Hello: self._hello,
            protocol.Check: self._check,
            protocol.Open: self._open,
            protocol.Changes: self._changes,
            protocol.Find: self._find,
            protocol.Read: self._read,
            protocol.Begin: self._begin,
            protocol.Append: self._append,
            protocol.Commit: self._commit,
            protocol.Abort: lambda _: self._abort(),
            protocol.Snapshot: self._begin_snapshot,
            protocol.Whole: self._begin_install,
            protocol.Bucket: self._bucket,
            protocol.SnapshotEnd: lambda _: self._end_snapshot(),
            protocol.CleanUp: self._clean_up,
        }
        try:
            while (received := self._receive()) is not None:
                number, body = received
                self._state = protocol.follow(self._state, number)
                message = protocol.MESSAGES[number]
                if message is protocol.Hello:
                    self._verify_token(body)
                handlers[message](protocol.decode(number, body))
        except _ClosedError as closed:
            log.info("connection ended %s: %s", self._about, closed)
        except Exception as failed:  # noqa: BLE001  # any failure is the last answer
            self._answer_failure("connection", failed)
        finally:
            if self._attempt is not None or self._snapshot is not None:
                self._abort()

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            self._hand_over(protocol.encode(message))
        except OSError as closed:
            raise _ClosedError(str(closed)) from closed

    def _take(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except OSError as closed:
            raise _ClosedError(str(closed)) from closed

    def _receive(self) -> tuple[int, bytes] | None:
        header = self._take(protocol.HEADER.size)
        if not header:
            return None
        if len(header) < protocol.HEADER.size:
            raise _ClosedError("it was cut within a frame")
        length, number = protocol.HEADER.unpack(header)
        wanted = protocol.check_length(length)
        if self._state is State.NEW and wanted > READ_BUFFER_BYTES:
            raise MismatchError("first frame is too long", length=length)
        body = self._take(wanted)
        if len(body) < wanted:
            raise _ClosedError("it was cut within a frame")
        return number, body

    def _verify_token(self, body: bytes) -> None:
        if not hmac.compare_digest(protocol.token_of_hello(body), self._token):
            raise MismatchError("wrong token: this is not the process that started the sidecar")

    def _hello(self, hello: protocol.Hello) -> None:
        if (hello.protocol, hello.package) != (protocol.PROTOCOL, dynastate.__version__):
            raise MismatchError(
                f"jar is dynastate {hello.package} (protocol {hello.protocol}), the Python package of the executor is "
                f"{dynastate.__version__} (protocol {protocol.PROTOCOL}): install dynastate=={hello.package} in "
                f"{sys.executable}, or use the jar that 'dynastate jar' prints"
            )
        self._settings = parse_settings(hello.settings)
        self._prices = Prices.of(self._settings)
        self._send(protocol.Welcome(dynastate.__version__))

    def _check(self, _: protocol.Check) -> None:
        with self._answering("check"):
            self._engine = self._engines.get(self._settings, was_reached=False)
            self._send(protocol.Checked())

    def _open(self, request: protocol.Open) -> None:
        self._set_subject(request.store, request.version, request.attempt)

        def answer(route: int) -> None:
            have = () if route else request.have
            opening = self._reached_engine().open(request.store, request.version, request.attempt, have)
            self._send_found(opening)
            self._send_opening(opening)

        with self._answering("open"):
            retry_routes(answer)

    def _find(self, request: protocol.Find) -> None:
        self._set_subject(request.store, request.version, request.attempt)

        def answer(_: int) -> None:  # failures come before the first frame
            opening = self._reached_engine().find(request.store, request.version, request.attempt)
            self._send_found(opening)
            self._send(protocol.Content(opening.bits, opening.entry.keys))
            self._send(protocol.Opened(counters(opening.meter, self._prices)))

        with self._answering("find"):
            retry_routes(answer)

    def _read(self, request: protocol.Read) -> None:
        self._set_subject(request.store, request.version, request.attempt)

        def answer(route: int) -> None:
            upto = VersionId(request.held, request.held_attempt)
            held = HeldChanges(request.snapshot, upto) if request.held else None
            opening = self._reached_engine().buckets(
                request.store, request.version, request.attempt, request.bits, request.buckets, held
            )
            if route:  # FOUND voids what was sent before
                self._send_found(opening)
            self._send_opening(opening, names_deltas=True)

        with self._answering("read"):
            retry_routes(answer)

    def _send_found(self, opening: Opening) -> None:
        self._send(protocol.Found(opening.version, opening.attempt, *opening.base, opening.schema))

    def _send_opening(self, opening: Opening, *, names_deltas: bool = False) -> None:
        progress = LoadProgressLog(about(self._store, opening.version, opening.attempt), opening.records)
        self._send_rows(progress.through(opening.snapshot_chunks))
        if opening.snapshot or names_deltas:
            raw_bytes = sum(entry.raw_bytes for entry in opening.entries)
            self._send(protocol.Deltas(opening.snapshot, opening.after, raw_bytes))
        self._send_rows(progress.through(opening.chunks))
        self._send(protocol.Opened(counters(opening.meter, self._prices)))

    def _changes(self, request: protocol.Changes) -> None:
        self._set_subject(request.store, request.last, request.attempt)
        with self._answering("changes"):
            engine = self._reached_engine()
            feed = engine.changes(request.store, request.first, request.last, request.attempt)
            self._send(protocol.Found(request.last, feed.attempt, 0, NO_ATTEMPT, feed.schema))
            for version, chunks in feed.versions:
                self._send(protocol.ChangesOf(version))
                self._send_rows(chunks)
            self._send(protocol.Opened(counters(feed.meter, self._prices)))

    def _send_rows(self, chunks: Iterator[EncodedChunk]) -> None:
        for records, changes in chunks:
            self._send(protocol.Rows(records, changes))

    def _begin(self, request: protocol.Begin) -> None:
        self._set_subject(request.store, request.base + 1, request.attempt)
        self._failed = None
        try:
            self._attempt = self._reached_engine().begin(
                request.store, _run_of(request), request.base, request.parent, request.attempt
            )
        except DynastateError as failed:
            self._failed = failed

    def _append(self, request: protocol.Append) -> None:
        under_way = self._attempt or self._snapshot
        if self._failed is None and under_way is not None:
            try:
                under_way.append(Chunk(request.records, request.hash_min, request.hash_max, request.changes))
            except Exception as failed:  # noqa: BLE001  # raised at commit: an append has no answer
                self._failed = failed

    def _commit(self, request: protocol.Commit) -> None:
        attempt = self._attempt
        with self._answering("commit", aborts=True):
            if self._failed is not None:
                raise self._failed
            if attempt is None:
                raise InternalError("commit without an attempt", store=self._store)
            made = attempt.commit(request.keys, request.schema, self._is_open)
            self._attempt = None
            stored = self._reached_engine().known.sizes.stored(attempt.store)
            self._send(protocol.Committed(attempt.version, commit_counters(made, stored, self._prices)))

    def _begin_snapshot(self, request: protocol.Snapshot) -> None:
        self._set_subject(request.store, request.version, request.attempt)
        self._failed = None
        self._state = State.READY  # unless it is wanted
        with self._answering("snapshot"):
            engine = self._reached_engine()
            self._snapshot, spent = engine.snapshot(
                request.store,
                request.run_id,
                request.version,
                request.attempt,
                request.state_bytes,
                request.min_deltas,
                is_asked_for=request.min_deltas == 0,
            )
            if self._snapshot is None:
                self._send(protocol.Maintained(maintenance_counters(spent, self._prices)))
                return
            self._snapshot.meter.add(spent)
            self._state = State.SNAPSHOT
            self._send(protocol.Wanted(self._snapshot.base, self._snapshot.bits))

    def _begin_install(self, request: protocol.Whole) -> None:
        self._set_subject(request.store, request.version, request.attempt)
        self._failed = None
        self._state = State.READY  # unless it can be begun
        with self._answering("commit"):
            version = InstalledVersion(request.version, request.attempt, request.keys, request.schema)
            self._snapshot = self._reached_engine().begin_install(
                request.store, _run_of(request), version, request.state_bytes
            )
            self._state = State.SNAPSHOT
            self._send(protocol.Wanted(0, self._snapshot.bits))

    def _bucket(self, request: protocol.Bucket) -> None:
        if self._failed is None and self._snapshot is not None:
            try:
                self._snapshot.bucket(request.bucket)
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
                log.info("clean-up deleted a snapshot that was being written %s", self._about)
            self._snapshot = None
            self._send(protocol.Maintained(maintenance_counters(snapshot.meter, self._prices)))

    def _clean_up(self, request: protocol.CleanUp) -> None:
        self._set_subject(request.store, request.version, request.attempt)
        with self._answering("clean-up"):
            engine = self._reached_engine()
            spent, left = engine.clean_up(
                request.store,
                request.run_id,
                request.version,
                request.attempt,
                request.retain,
                request.least,
                request.most,
            )
            self._send(protocol.Maintained(maintenance_counters(spent, self._prices) | {"versionsLeft": left}))

    def _abort(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            try:
                snapshot.abort()
            except Exception:  # clean-up finds what it leaves behind
                log.warning("abort left a snapshot behind %s", self._about, exc_info=True)
        attempt, self._attempt, self._failed = self._attempt, None, None
        if attempt is not None:
            try:
                attempt.abort()
            except Exception:  # an abort that cannot finish is not an error: no list names those parts
                log.warning("abort left parts behind %s", self._about, exc_info=True)

    def _set_subject(self, store: str, version: int, attempt: Attempt) -> None:
        """Set what errors and log lines from here on are about."""
        self._store = store
        self._about = about(store, version, attempt)

    def _reached_engine(self) -> Engine:
        """The engine for all requests but CHECK: a sender that names a version has reached DynamoDB before."""
        if self._engine is None:
            self._engine = self._engines.get(self._settings, was_reached=True)
        return self._engine

    @contextlib.contextmanager
    def _answering(self, operation: str, *, aborts: bool = False) -> Iterator[None]:
        """Answer the frame with any failure, unless the connection is closed; `aborts`: abort after it."""
        try:
            yield
        except _ClosedError:
            raise
        except Exception as failed:  # noqa: BLE001  # any failure is the answer
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
        with contextlib.suppress(_ClosedError):  # the JVM has closed already
            self._send(protocol.Error(kind, self._store, message))


def _run_of(request: protocol.Begin | protocol.Whole) -> QueryRun:
    return QueryRun(request.run_id, request.query_id, location_of(request.checkpoint))
