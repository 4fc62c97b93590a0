"""Commit: attempts, and the append to the version list that makes an attempt a version."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from dynastate.engine.known import KnownStores
from dynastate.engine.lists import LIST_BYTES_MAX, is_long, refuse_full, shorten
from dynastate.engine.objects import ObjectRule, ObjectWriter, StreamWriter
from dynastate.engine.sessions import Session, Sessions
from dynastate.engine.updates import always, append_version
from dynastate.engine.writer import PartWriter, PendingWrites
from dynastate.errors import ConfigurationError, DynastateError, InternalError, ItemFullError, UnavailableError
from dynastate.format.items import Item, item_bytes, size_of
from dynastate.format.keys import Attempt, Key, schema_digest, schema_key, version_list_key, versions_of
from dynastate.format.meta import QueryRun, schema_item
from dynastate.format.objects import ObjectId, ObjectParts, delta_stream
from dynastate.format.parts import CHUNK_BYTES_MAX, PARTS_MAX, Chunk, Tally, part_items, part_of, parts_digest
from dynastate.format.version_list import BOUNDS_PARTS_MAX, InlineChanges, VersionEntry, encode_entry
from dynastate.redaction import get_logger
from dynastate.runtime import limits
from dynastate.storage.limits import ITEM_BYTES_MAX
from dynastate.storage.meter import Meter, units_of_write
from dynastate.storage.tables import Tables, delete_all, delete_own_objects

log = get_logger("dynastate.store")

#: The thread that appends a smaller chunk also compresses it: to hand it over would take longer.
HANDED_OVER_BYTES: Final = 32 * 1024
#: Chunks of one attempt that are compressed at once. The append of another waits for the first of them.
COMPRESSING_MAX: Final = 16
#: Changes of at most this many compressed bytes are within the version entry. The list is written again at each of ten
#: commits, a part once, and both are deleted. So larger changes cost less as parts (docs/decisions/0022).
INLINE_BYTES_MAX: Final = 256


@dataclass(frozen=True)
class Committed:
    """A committed version, and its cost."""

    entry: VersionEntry
    meter: Meter


@dataclass(eq=False)
class Commits:
    """The tables, the queue of writes and the sessions that all attempts share. Safe for threads.

    Rows are written with `codec`. Changes of at most `inline_bytes` are within the version entry; 0 means no changes.
    Parts are items, or frames of objects if `object_rule` decides so.
    """

    tables: Tables
    writer: PartWriter
    sessions: Sessions
    known_stores: KnownStores
    compressors: Executor
    deadline_s: float
    clock: Callable[[], datetime]
    codec: str
    object_writer: ObjectWriter
    object_rule: ObjectRule | None = None
    inline_bytes: int = INLINE_BYTES_MAX

    def now_ms(self) -> int:
        """The time of the wall clock, in milliseconds since 1970 UTC."""
        return int(self.clock().timestamp() * 1000)

    def append_entry(
        self,
        tables: Tables,
        session: Session,
        entry: VersionEntry,
        schema: str,
        is_awaited: Callable[[], bool] = always,
        *,
        has_base: bool,
    ) -> None:
        """Append the entry of a version. If it `has_base`, its parent is listed.

        If both belong to one list, this list must exist: a late append must not make a list that clean-up has deleted.
        """
        store = session.store
        key = version_list_key(store, entry.version)
        raw = encode_entry(store, entry)
        must_exist = has_base and entry.version > versions_of(key).start
        try:
            raws = append_version(tables, key, raw, session.run_id, is_awaited=is_awaited, must_exist=must_exist)
        except ItemFullError as error:  # nothing was appended
            if not shorten(tables, store, entry, is_full=True):
                raise refuse_full(store, entry) from error
            raws = append_version(tables, key, raw, session.run_id, is_awaited=is_awaited, must_exist=must_exist)
        self.known_stores.committed(store, entry, schema, shards=session.shards, entry_bytes=len(raw))
        if is_long(raws):
            try:
                is_shorter = shorten(tables, store, entry)
            except DynastateError as error:  # the version exists all the same, and the next commit retries
                log.warning("a version list stays long store=%s version=%d: %s", store, entry.version, error)
                return
            if not is_shorter and sum(map(len, raws)) > LIST_BYTES_MAX:
                log.warning("a version list stays long store=%s version=%d", store, entry.version)

    def delete_parts(self, tables: Tables, pending: PendingWrites, objects: Sequence[ObjectId]) -> None:
        pending.cancel(2 * self.deadline_s)
        # Not the schema item: other versions name it too.
        parts = {key: size for key, size in pending.sent.items() if key.role == "delta"}
        delete_all(tables, list(parts))
        tables.meter.write_units += sum(map(units_of_write, parts.values()))
        delete_own_objects(tables, objects)


class WriteAttempt:
    """One attempt under way, for one thread at a time. Legal order: append*, then commit or abort, once."""

    def __init__(
        self, commits: Commits, store: str, run: QueryRun, base: int, parent: Attempt, attempt: Attempt
    ) -> None:
        self.store = store
        self.version = base + 1
        self.attempt = attempt
        self._commits = commits
        self._run = run
        self._parent = parent
        self._pending = PendingWrites()
        self._tables = commits.tables.metered(Meter())
        #: Chunks that are being compressed to parts, oldest first.
        self._compressing: deque[tuple[Chunk, Future[list[tuple[Key, Item]]]]] = deque()
        self._ready: list[tuple[Key, Item]] = []
        self._ready_bytes = 0
        self._tally = Tally()
        #: As in a version entry.
        self._bounds = bytearray()
        #: The stream of the first parts, if they are above the threshold of objects.
        self._stream: StreamWriter | None = None
        self._may_stream = True
        self._is_consistent = True
        self._ended = False
        #: The number of values that the version has more than its base, if the sender counts them.
        self.added: int | None = None

    def append(self, chunk: Chunk) -> None:
        """Compress one chunk and write its parts in the background. Blocks while too much is under way.

        It raises the failure of an earlier part, too.
        """
        self._must_be_open("append")
        self._is_consistent = False  # until the chunk is kept
        sequence = self._tally.parts + len(self._compressing)
        shards, codec = self._session().shards, self._commits.codec
        make = partial(part_items, self.store, self.version, self.attempt, sequence, shards, chunk, codec)
        if HANDED_OVER_BYTES <= len(chunk.changes) <= CHUNK_BYTES_MAX:
            self._compressing.append((chunk, self._commits.compressors.submit(make)))
            while self._compressing and (self._compressing[0][1].done() or len(self._compressing) > COMPRESSING_MAX):
                self._take_compressed()
        else:
            self._take_all_compressed()
            self._add(chunk, make())
        self._is_consistent = True

    def _take_all_compressed(self) -> None:
        """Wait for the parts of all chunks. After a failure nothing can be committed."""
        self._is_consistent = False
        while self._compressing:
            self._take_compressed()
        self._is_consistent = True

    def _take_compressed(self) -> None:
        chunk, future = self._compressing.popleft()
        self._add(chunk, future.result())

    def _add(self, chunk: Chunk, items: list[tuple[Key, Item]]) -> None:
        if self._tally.parts + len(items) > PARTS_MAX:
            raise ConfigurationError(
                "an attempt has too many parts; use more shuffle partitions or smaller batches",
                store=self.store,
                most=PARTS_MAX,
            )
        limit = limits()
        for key, item in items:
            part = part_of(item)
            self._ready_bytes += self._tally.add_part(part)
            self._ready.append((key, item))
            if len(self._ready) == limit.writes_max or self._ready_bytes >= limit.submit_bytes:
                self._submit()
        self._tally.add_chunk(chunk.records, len(chunk.changes))
        self._bounds += bytes((chunk.hash_min >> 24, chunk.hash_max >> 24)) * len(items)

    def flush(self) -> None:
        """Queue the parts that wait for others, before a commit. Changes that will be inline still wait for it."""
        self._must_be_open("flush")
        self._take_all_compressed()
        if self._inline() is None:
            self._submit_all()

    def commit(self, keys: dict[int, int], schema: str, is_awaited: Callable[[], bool] = always) -> Committed:
        """Make the attempt a version. `keys` counts keys by column family, `schema` is the text of its schema item.

        `is_awaited` answers whether the task still waits. Spark starts another task for a killed one, and without
        attempt ids in the checkpoint, the last commit wins.

        1. Write the rest of the parts, unless it is few changes, which go into the entry. (Crash: no list names the
           parts. Clean-up deletes them.)
        2. Wait until every part is durable. (Crash: the same.)
        3. Append the entry to the version list, if the task still waits: the commit point. (Crash: the version exists,
           as if the task had succeeded. Spark runs the batch again from its base, as another attempt.)
        4. Return the cost.

        Raises:
            UnavailableError: DynamoDB throttled or was unreachable until the deadline, or the task no longer waits;
                nothing is committed.
            UnknownOutcomeError: step 3 was sent, and its outcome is unknown.
        """
        self._must_be_open("commit")
        self._take_all_compressed()
        commits = self._commits
        session = self._session()
        digest = schema_digest(schema)
        schema_items: list[tuple[Key, Item]] = []
        if digest not in session.schemas:
            key = schema_key(self.store, digest)
            schema_items = [(key, checked_schema_item(self.store, key, schema, self._run.id))]
        inline, sums = self._inline(), self._tally.sums()
        if inline is not None:
            self._ready.clear()
            sums = sums._replace(parts=0, digest=parts_digest(()))
        if schema_items:
            commits.writer.submit(self._pending, schema_items, commits.deadline_s)
        self._submit_all(waits=True)  # 1
        # Each write has its own deadline, with a better message. This one only guards against a lost worker.
        self._pending.wait(10 * commits.deadline_s)  # 2
        session.schemas.add(digest)
        for key, item in schema_items:
            commits.known_stores.account(self.store).wrote(key.sort, size_of(item))
        entry = VersionEntry(
            version=self.version,
            attempt=self.attempt,
            parent=self._parent,
            epoch=session.epoch,
            schema=digest,
            keys=keys,
            time_ms=commits.now_ms(),
            bounds=bytes(self._bounds) if 1 < sums.parts <= BOUNDS_PARTS_MAX else b"",
            inline=inline,
            objects=ObjectParts(self._stream.stream.location, tuple(self._stream.sizes)) if self._stream else None,
            added=self.added,
            **sums._asdict(),
        )
        self._ended = True  # a list may name the parts now, so abort must leave them
        try:
            has_base = self.version > 1
            commits.append_entry(self._tables, session, entry, schema, is_awaited=is_awaited, has_base=has_base)  # 3
        except (ConfigurationError, UnavailableError):
            self._ended = False  # surely not listed
            raise
        self._tables.meter.add(self._pending.meter)
        return Committed(entry, self._tables.meter)  # 4

    def abort(self) -> None:
        """Discard the queue, delete the written parts, and end the attempt. After a commit, nothing happens.

        If this fails, clean-up deletes the parts: no list names them.
        """
        if self._ended:
            return
        self._ended = True
        self._compressing.clear()
        self._ready.clear()
        self._commits.delete_parts(self._tables, self._pending, self._stream.objects if self._stream else ())

    def _session(self) -> Session:
        return self._commits.sessions.enter(self._tables, self.store, self._run, self.version - 1)

    def _inline(self) -> InlineChanges | None:
        """The changes, if they are one small part that was not queued. Otherwise returns None."""
        if self._tally.parts != 1 or not self._ready or self._ready_bytes > self._commits.inline_bytes:
            return None
        ((_, item),) = self._ready
        part = part_of(item)
        return InlineChanges(part.codec, part.data)

    def _submit(self, *, waits: bool = False) -> None:
        """Queue the parts that are ready. If `waits`, this thread waits for them next."""
        if not self._ready:
            return
        for key, item in self._ready:
            self._commits.known_stores.keep(key, part_of(item))
        stream = self._stream_of(self._ready)
        if stream is not None:
            stream.add(self._ready)
        else:
            self._end_stream()
            self._commits.writer.submit(self._pending, self._ready, self._commits.deadline_s, waits=waits)
        self._ready = []
        self._ready_bytes = 0

    def _submit_all(self, *, waits: bool = False) -> None:
        self._submit(waits=waits)
        self._end_stream()

    def _stream_of(self, items: Sequence[tuple[Key, Item]]) -> StreamWriter | None:
        """The stream of these parts. Returns None if they, and all later parts, are items."""
        rule, stream = self._commits.object_rule, self._stream
        if rule is None or not self._may_stream:
            return None
        if stream is not None:
            return stream if len(stream.sizes) + len(items) <= limits().object_parts_max else None
        if rule.is_worth_it(item for _, item in items):
            target = delta_stream(rule.location, self.store, self.version, self.attempt)
            self._stream = StreamWriter(target, self._put_object)
        return self._stream

    def _end_stream(self) -> None:
        self._may_stream = False
        if self._stream is not None:
            self._stream.finish()

    def _put_object(self, object_id: ObjectId, data: bytes) -> None:
        self._commits.object_writer.submit(self._pending, object_id, data, self._commits.deadline_s)

    def _must_be_open(self, operation: str) -> None:
        if self._ended or not self._is_consistent:
            reason = "on an attempt that has ended" if self._ended else "after an append that failed"
            raise InternalError(f"{operation} {reason}", store=self.store, attempt=self.attempt.hex())


def checked_schema_item(store: str, key: Key, schema: str, run: str) -> Item:
    """The schema item. Refuse a schema that is too large for one item."""
    item = schema_item(key, schema, run)
    if item_bytes(item) > ITEM_BYTES_MAX:
        raise ConfigurationError(
            "the schema of this operator's state is too large for one DynamoDB item",
            store=store,
            item_bytes=item_bytes(item),
        )
    return item
