"""One connection of the JVM: frames in, answers out."""

from __future__ import annotations

import contextlib
import hmac
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO, ClassVar, Final

from dynastate.engine.checkpoint import CheckpointFiles
from dynastate.engine.commit import WriteAttempt
from dynastate.engine.engine import Engine
from dynastate.engine.imported import ImportedVersion
from dynastate.engine.opening import HeldChanges, Opening, retry_routes
from dynastate.engine.snapshots import SnapshotAttempt
from dynastate.errors import DynastateError, InternalError, MismatchError
from dynastate.format.checkpoint import Checkpoint, checkpoint_of
from dynastate.format.codec import RAW
from dynastate.format.keys import NO_ATTEMPT, Attempt, VersionId, location_of
from dynastate.format.meta import QueryRun
from dynastate.format.parts import Chunk, StoredChunk
from dynastate.prices import DEFAULT_PRICES, Prices
from dynastate.redaction import get_logger
from dynastate.settings import Settings
from dynastate.sidecar import protocol
from dynastate.sidecar.engines import Engines, parse_settings
from dynastate.sidecar.load_progress import LoadProgressLog, about
from dynastate.sidecar.metrics import commit_counters, counters, maintenance_counters
from dynastate.sidecar.protocol import State
from dynastate.version import __version__

log = get_logger("dynastate.sidecar")

READ_BUFFER_BYTES: Final = 1024 * 1024


class _ClosedError(Exception):
    """The JVM has closed the connection, or it was cut."""


@dataclass(eq=False)
class Connection:
    """One connection of the JVM, in its own thread. It has at most one attempt under way.

    A failure of a frame that has no answer is kept, and raised in answer to COMMIT.
    """

    _stream: BinaryIO
    _hand_over: Callable[[bytes], None]
    _token: bytes
    _engines: Engines
    is_open: Callable[[], bool]
    _state: State = State.NEW
    _settings: Settings = field(default_factory=Settings)
    _prices: Prices = DEFAULT_PRICES
    _engine: Engine | None = None
    #: The run for which the next message opens a version by its number.
    _run: QueryRun | None = None
    #: The attempt under way is one of these.
    _write: WriteAttempt | None = None
    _snapshot: SnapshotAttempt | None = None
    _store: str = ""
    _about: str = "store=none"
    _failed: Exception | None = None

    def serve(self) -> None:
        """Answer frames until the JVM closes the connection or breaks the protocol."""
        try:
            while (received := self._receive()) is not None:
                number, body = received
                transition = protocol.follow(self._state, number)
                message = protocol.MESSAGES[number]
                if message is protocol.Hello and not hmac.compare_digest(protocol.token_of_hello(body), self._token):
                    raise MismatchError("wrong token: this is not the process that started the sidecar")
                has_begun = self._HANDLERS[message](self, protocol.decode(number, body))
                self._state = transition.otherwise if has_begun is False else transition.state
        except _ClosedError as closed:
            log.info("connection ended %s: %s", self._about, closed)
        except Exception as failed:  # noqa: BLE001  # any failure is the last answer
            self._answer_failure("connection", failed)
        finally:
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
        size = protocol.check_length(length, number)
        if self._state is State.NEW and size > READ_BUFFER_BYTES:
            raise MismatchError("first frame is too long", length=length)
        body = self._take(size)
        if len(body) < size:
            raise _ClosedError("it was cut within a frame")
        return number, body

    def _on_hello(self, hello: protocol.Hello) -> None:
        if (hello.protocol, hello.package) != (protocol.PROTOCOL, __version__):
            raise MismatchError(
                f"jar is dynastate {hello.package} (protocol {hello.protocol}), the Python package of the executor is "
                f"{__version__} (protocol {protocol.PROTOCOL}): install dynastate=={hello.package} in "
                f"{sys.executable}, or use the jar that 'dynastate jar' prints"
            )
        self._settings = parse_settings(hello.settings)
        self._prices = Prices.of(self._settings)
        self._send(protocol.Welcome(__version__))
        self._engines.prepare(self._settings)  # while the JVM prepares its first request

    def _on_check(self, _: protocol.Check) -> None:
        with self._answering("check"):
            self._engine = self._engines.get(self._settings, was_reached=False)
            self._send(protocol.Checked())

    def _on_run(self, request: protocol.Run) -> None:
        self._run = _run_of(request)

    def _take_run(self) -> QueryRun | None:
        run, self._run = self._run, None
        return run

    def _on_open(self, request: protocol.Open) -> None:
        run = self._take_run()

        def answer(route: int) -> None:
            have = () if route else request.have
            opening = self._reached_engine().open(request.store, request.version, request.attempt, have=have, run=run)
            self._send_found(opening)
            self._send_opening(opening)

        with self._answering("open", request.store, request.version, request.attempt):
            retry_routes(answer)

    def _on_find(self, request: protocol.Find) -> None:
        run = self._take_run()

        def answer(_: int) -> None:  # failures come before the first frame
            opening = self._reached_engine().find(request.store, request.version, request.attempt, run)
            self._send_found(opening)
            self._send(protocol.Content(opening.bits, opening.entry.keys))
            self._send(protocol.Opened(counters(opening.meter, self._prices)))

        with self._answering("find", request.store, request.version, request.attempt):
            retry_routes(answer)

    def _on_read(self, request: protocol.Read) -> None:
        def answer(route: int) -> None:
            upto = VersionId(request.held, request.held_attempt)
            held_changes = HeldChanges(request.snapshot, upto) if request.held else None
            opening = self._reached_engine().buckets(
                request.store,
                request.version,
                request.attempt,
                bits=request.bits,
                numbers=request.buckets,
                held_changes=held_changes,
            )
            if route:  # FOUND voids the earlier answers
                self._send_found(opening)
            self._send_opening(opening, is_read=True)

        with self._answering("read", request.store, request.version, request.attempt):
            retry_routes(answer)

    def _send_found(self, opening: Opening) -> None:
        (version, attempt), (base, base_attempt) = opening.entry.id, opening.base
        self._send(protocol.Found(version, attempt, base=base, base_attempt=base_attempt, schema=opening.schema))

    def _send_opening(self, opening: Opening, *, is_read: bool = False) -> None:
        progress = LoadProgressLog(about(self._store, opening.entry.version, opening.entry.attempt), opening.records)
        self._send_rows(progress.through(opening.snapshot_chunks))
        if is_read:
            self._send(protocol.Held(int(opening.applies_held)))
        if opening.snapshot or is_read:
            raw_bytes = sum(entry.raw_bytes for entry in opening.entries)
            self._send(protocol.Deltas(opening.snapshot, opening.after, raw_bytes))
        self._send_rows(progress.through(opening.chunks))
        self._send(protocol.Opened(counters(opening.meter, self._prices)))

    def _on_changes(self, request: protocol.Changes) -> None:
        with self._answering("changes", request.store, request.last, request.attempt):
            feed = self._reached_engine().changes(**request._asdict())
            message = protocol.Found(request.last, feed.attempt, base=0, base_attempt=NO_ATTEMPT, schema=feed.schema)
            self._send(message)
            for version, chunks in feed.versions:
                self._send(protocol.ChangesOf(version))
                self._send_rows(chunks)
            self._send(protocol.Opened(counters(feed.meter, self._prices)))

    def _send_rows(self, chunks: Iterator[StoredChunk]) -> None:
        for chunk in chunks:
            if chunk.codec == RAW:
                self._send(protocol.Rows(chunk.records, chunk.changes))
            else:  # the JVM decompresses it in less time
                item = self._reached_engine().place_of(chunk.key)
                packed, raw_bytes = chunk.packed, chunk.raw_bytes
                self._send(protocol.Packed(chunk.records, chunk.codec, raw_bytes, item=item, changes=packed))

    def _on_begin(self, request: protocol.Begin) -> None:
        self._set_subject(request.store, request.base + 1, request.attempt)
        try:
            self._write = self._reached_engine().begin(
                request.store, _run_of(request), base=request.base, parent=request.parent, attempt=request.attempt
            )
        except DynastateError as failed:
            self._failed = failed

    def _on_append(self, request: protocol.Append) -> None:
        under_way = self._write or self._snapshot
        if under_way is not None:
            chunk = Chunk(request.records, request.hash_min, request.hash_max, request.changes)
            self._unless_failed(partial(under_way.append, chunk))

    def _on_flush(self, _: protocol.Flush) -> None:
        if self._write is not None:
            self._unless_failed(self._write.flush)

    def _on_added(self, request: protocol.Added) -> None:
        if self._write is not None:
            self._write.added = request.values

    def _on_commit(self, request: protocol.Commit) -> None:
        with self._answering("commit", aborts=True):
            attempt: WriteAttempt = self._complete(self._write)
            committed = attempt.commit(request.keys, request.schema, self.is_open)
            self._write = None
            stored = self._reached_engine().known_stores.account(attempt.store).stored()
            self._send(protocol.Committed(attempt.version, commit_counters(committed, stored, self._prices)))

    def _on_snapshot(self, request: protocol.Snapshot) -> bool:
        with self._answering("snapshot", request.store, request.version, request.attempt):
            begun, spent = self._reached_engine().maintenance.snapshot(
                **request._asdict(), is_asked_for=request.min_deltas == 0
            )
            if begun is None:
                self._send(protocol.Maintained(maintenance_counters(spent, self._prices)))
                return False
            self._snapshot = begun
            self._send(protocol.Wanted(begun.base, begun.bits))
            return True
        return False

    def _on_import(self, request: protocol.Import) -> bool:
        with self._answering("commit", request.store, request.version, request.attempt):
            version = ImportedVersion(request.version, request.attempt, request.keys, request.schema)
            begun = self._reached_engine().begin_import(request.store, _run_of(request), version, request.state_bytes)
            self._snapshot = begun
            self._send(protocol.Wanted(0, begun.bits))
            return True
        return False

    def _on_bucket(self, request: protocol.Bucket) -> None:
        if self._snapshot is not None:
            self._unless_failed(partial(self._snapshot.bucket, request.bucket))

    def _on_snapshotend(self, _: protocol.SnapshotEnd) -> None:
        with self._answering("snapshot", aborts=True):
            snapshot: SnapshotAttempt = self._complete(self._snapshot)
            if not snapshot.commit():
                log.info("clean-up deleted a snapshot that was being written %s", self._about)
            self._snapshot = None
            self._send(protocol.Maintained(maintenance_counters(snapshot.meter, self._prices)))

    def _on_cleanup(self, request: protocol.CleanUp) -> None:
        with self._answering("clean-up", request.store, request.version, request.attempt):
            spent, versions = self._reached_engine().maintenance.clean_up(**request._asdict())
            self._send(protocol.Maintained(maintenance_counters(spent, self._prices) | {"versionsLeft": versions}))

    def _on_fileput(self, request: protocol.FilePut) -> None:
        with self._answering_files("file put", request.checkpoint, request.file):
            files, checkpoint = self._files_of(request.checkpoint)
            is_stored = files.put(
                checkpoint, request.file, request.data, overwrites=bool(request.overwrites), is_wanted=self.is_open
            )
            self._send(protocol.Stored(int(is_stored), maintenance_counters(files.meter, self._prices)))

    def _on_fileget(self, request: protocol.FileGet) -> None:
        with self._answering_files("file get", request.checkpoint, request.file):
            files, checkpoint = self._files_of(request.checkpoint)
            file = files.get(checkpoint, request.file)
            exists, time, data = (0, 0, b"") if file is None else (1, file.time, file.data)
            self._send(protocol.File(exists, time, counters(files.meter, self._prices), data))

    def _on_filelist(self, request: protocol.FileList) -> None:
        with self._answering_files("file list", request.checkpoint, request.folder):
            files, checkpoint = self._files_of(request.checkpoint)
            entries = files.list(checkpoint, request.folder)
            for start in range(0, len(entries), protocol.FILES_MAX):
                self._send(protocol.Files(tuple(entries[start : start + protocol.FILES_MAX])))
            self._send(protocol.Opened(counters(files.meter, self._prices)))

    def _on_filedelete(self, request: protocol.FileDelete) -> None:
        with self._answering_files("file delete", request.checkpoint, " ".join(request.files[:3])):
            files, checkpoint = self._files_of(request.checkpoint)
            files.delete(checkpoint, request.files)
            self._send(protocol.Stored(1, maintenance_counters(files.meter, self._prices)))

    def _on_checkpointread(self, request: protocol.CheckpointRead) -> None:
        with self._answering_files("checkpoint read", request.checkpoint, ""):
            files, checkpoint = self._files_of(request.checkpoint)
            for stored in files.read_all(checkpoint):
                self._send(
                    protocol.CheckpointFile(
                        file=stored.path,
                        bytes=stored.raw_bytes,
                        time=stored.time,
                        has_data=int(stored.data is not None),
                        data=stored.data or b"",
                    )
                )
            self._send(protocol.Opened(counters(files.meter, self._prices)))

    def _files_of(self, text: str) -> tuple[CheckpointFiles, Checkpoint]:
        checkpoint = checkpoint_of(text)
        self._store = checkpoint.store
        return self._reached_engine().checkpoint_files(), checkpoint

    def _answering_files(self, operation: str, checkpoint: str, path: str) -> contextlib.AbstractContextManager[None]:
        """Answer a frame about files of a checkpoint with any failure."""
        self._store, self._about = checkpoint, f"checkpoint={checkpoint} file={path}"
        return self._answering(operation)

    def _unless_failed(self, do: Callable[[], None]) -> None:
        """Handle a frame without an answer, unless an earlier one failed; keep a failure for COMMIT."""
        if self._failed is None:
            try:
                do()
            except Exception as failed:  # noqa: BLE001  # any failure is the answer to COMMIT
                self._failed = failed

    def _complete(self, under_way: Any) -> Any:
        """The attempt to commit. Raise the failure of an earlier frame, which had no answer."""
        if self._failed is not None:
            raise self._failed
        if under_way is None:
            raise InternalError("there is no attempt to commit", store=self._store)
        return under_way

    def _on_abort(self, _: protocol.Abort) -> None:
        self._abort()

    def _abort(self) -> None:
        under_way, is_snapshot = self._write or self._snapshot, self._snapshot is not None
        self._write = self._snapshot = self._failed = None
        if under_way is not None:
            try:
                under_way.abort()
            except Exception:  # no error: no list names what it leaves, and clean-up finds it
                message = "abort left a snapshot behind" if is_snapshot else "abort left parts behind"
                log.warning("%s %s", message, self._about, exc_info=True)

    def _set_subject(self, store: str, version: int, attempt: Attempt) -> None:
        """Set the subject of later errors and log lines."""
        self._store = store
        self._about = about(store, version, attempt)

    def _reached_engine(self) -> Engine:
        """The engine for all requests except CHECK: a sender that names a version has reached DynamoDB before."""
        if self._engine is None:
            self._engine = self._engines.get(self._settings, was_reached=True)
        return self._engine

    @contextlib.contextmanager
    def _answering(self, operation: str, *subject: Any, aborts: bool = False) -> Iterator[None]:
        """Answer the frame with any failure, unless the connection is closed; `aborts`: abort after it.

        The subject of the frame is a store, a version and an attempt. Without it, the subject does not change.
        """
        if subject:
            self._set_subject(*subject)
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
        is_expected = isinstance(failed, DynastateError)
        log.error("%s failed %s: %s", operation, self._about, failed, exc_info=not is_expected)
        error = failed if isinstance(failed, DynastateError) else InternalError(f"{type(failed).__name__}: {failed}")
        with contextlib.suppress(_ClosedError):  # the JVM has closed already
            self._send(protocol.Error(error.kind, self._store, str(error)))

    #: The handler of each message. A handler that returns False has begun nothing.
    _HANDLERS: ClassVar[dict[type[Any], Callable[[Connection, Any], bool | None]]] = {
        protocol.Hello: _on_hello,
        protocol.Check: _on_check,
        protocol.Run: _on_run,
        protocol.Open: _on_open,
        protocol.Find: _on_find,
        protocol.Read: _on_read,
        protocol.Changes: _on_changes,
        protocol.Begin: _on_begin,
        protocol.Append: _on_append,
        protocol.Flush: _on_flush,
        protocol.Added: _on_added,
        protocol.Commit: _on_commit,
        protocol.Snapshot: _on_snapshot,
        protocol.Import: _on_import,
        protocol.Bucket: _on_bucket,
        protocol.SnapshotEnd: _on_snapshotend,
        protocol.CleanUp: _on_cleanup,
        protocol.Abort: _on_abort,
        protocol.FilePut: _on_fileput,
        protocol.FileGet: _on_fileget,
        protocol.FileList: _on_filelist,
        protocol.FileDelete: _on_filedelete,
        protocol.CheckpointRead: _on_checkpointread,
    }


def _run_of(request: protocol.Begin | protocol.Import | protocol.Run) -> QueryRun:
    return QueryRun(request.run_id, request.query_id, location_of(request.checkpoint))
