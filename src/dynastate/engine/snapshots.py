"""Making snapshots (design.md, section 4): when one is worth it, and its buckets on their way to the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final
from uuid import uuid4

from dynastate import directory, layout
from dynastate.directory import Bucket, Directory
from dynastate.errors import CorruptStateError, InternalError, OtherWayError
from dynastate.layout import Attempt, Chunk, Item, Key, Snapshot, Tally, VersionEntry
from dynastate.reader import Reader
from dynastate.tables import ITEM_BYTES_MAX, WRITES_MAX, Meter, Tables, delete_all

#: A snapshot is worth its write units when the deltas since the last one have grown to this part of it. Then all
#: snapshots together cost at most 1 / 0.85 of what the deltas did, and recovery reads at most 1.85 of a snapshot.
FRACTION: Final = 0.85
#: It is worth it, too, when recovery has this many versions to walk through since, however small.
VERSIONS_MAX: Final = 10_000
#: Bytes of one request: small, so that requests of commits come through between those of a snapshot.
REQUEST_BYTES: Final = 512 * 1024
#: After each request a snapshot rests so many times as long as it took: commits beside it need the machine more.
REST: Final = 2.0
#: And never longer than this, so that a slow DynamoDB does not make it slower yet.
REST_MAX_S: Final = 0.2


def is_worth_it(deltas: Sequence[VersionEntry], last: Snapshot | None, min_deltas: int) -> bool:
    """Whether deltas since the last snapshot have grown so far that a new one pays.

    The first one always does: all there is was written by the deltas, so it is no larger than they are.
    """
    if len(deltas) < max(1, min_deltas):
        return False
    if len(deltas) >= VERSIONS_MAX:
        return True
    stored = sum(entry.stored_bytes for entry in deltas)
    return any(entry.parts for entry in deltas) and (last is None or stored >= FRACTION * last.stored_bytes)


class Pace:
    """Keeps work in the background to a third of the time, by rests. `clock` and `sleep` are in seconds."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._since = clock()

    def rest(self) -> None:
        """Rest for twice the time since the last rest, or the beginning."""
        self._sleep(min(REST_MAX_S, REST * (self._clock() - self._since)))
        self._since = self._clock()


class SnapshotAttempt:
    """A snapshot under way. Used by one thread; legal order: (bucket append*)*, then commit or abort, once.

    Its items are written one request at a time, beside those of commits, which go through the writer's queue. Where
    there are no commits beside it (`in_background` is off), it does not rest between them, and keeps nothing in memory.
    """

    def __init__(
        self,
        tables: Tables,
        reader: Reader,
        store: str,
        snapshot: Snapshot,
        bits: int,
        shards: int,
        base: Directory | None,
        *,
        in_background: bool = True,
    ) -> None:
        self.store = store
        self.bits = bits
        self.base = 0 if base is None else base.version
        self._tables = tables
        self._reader = reader
        self._snapshot = snapshot
        self._base = base
        self._shards = shards
        empty = Bucket(emptied=snapshot.version)
        self._buckets = [empty] * (1 << bits) if base is None else list(base.buckets)
        self._current = -1
        self._tally = Tally()
        self._ready: list[tuple[Key, Item]] = []
        self._ready_bytes = 0
        self._written: list[Key] = []
        #: From here on a reader may have seen it done, and another snapshot may carry its buckets on.
        self._may_be_done = False
        #: Told of the snapshot once it is one, with its directory.
        self.when_done: Callable[[str, Snapshot, Directory], None] = lambda *_: None
        self._pace = Pace() if in_background else None
        self.meter = Meter()

    def bucket(self, number: int) -> None:
        """Begin a bucket; what follows until the next one is all it has.

        Raises:
            InternalError: there is no such bucket, or it is not behind the one before.
        """
        if not self._current < number < len(self._buckets):
            raise InternalError("a bucket is out of order", store=self.store, bucket=number, after=self._current)
        self._end_bucket()
        self._current = number

    def append(self, chunk: Chunk) -> None:
        """Compress one chunk of the bucket's rows, and write what makes a request."""
        shift = 32 - self.bits
        if self._current < 0 or not chunk.hash_min >> shift == chunk.hash_max >> shift == self._current:
            raise InternalError("rows of a snapshot are in no bucket, or in another", store=self.store)
        version, own = self._snapshot.version, self._snapshot.id
        items = layout.bucket_items(self.store, version, own, self._current, self._tally.parts, self._shards, chunk)
        for key, item in items:
            self._ready_bytes += self._tally.add_item(key, item)
            self._ready.append((key, item))
            if self._pace is not None:
                self._reader.keep(key, item)
            if len(self._ready) == WRITES_MAX or self._ready_bytes >= REQUEST_BYTES:
                self._write()
                if self._pace is not None:
                    self._pace.rest()
        self._tally.add_chunk(chunk.records, len(chunk.run))

    def commit(self) -> bool:
        """Make it a snapshot.

        1. Write what is left of the buckets. (Crash: buckets of a snapshot that is still `writing`, which no reader
           takes; clean-up finds it by its item, and takes them away.)
        2. Write the directory. (Crash: the same.)
        3. Unless the snapshot that it stands on is leaving, say in its item that it is done: the commit point.

        Returns:
            False: clean-up has taken it, or what it stands on, away in the meantime; nothing of it is left.
        """
        self._end_bucket()
        self._write()  # 1
        begun = self._snapshot
        made = Directory(begun.version, begun.attempt, begun.id, self.base, self.bits, tuple(self._buckets))
        raw = directory.encode(self.store, made)
        key = layout.directory_key(self.store, made.version, made.id)
        item = directory.item(key, raw)
        if layout.item_bytes(item) > ITEM_BYTES_MAX:
            raise InternalError("a directory is too large for an item", store=self.store, bytes=len(raw))
        self._written.append(key)
        self._tables.write([(key, item)], self.meter)  # 2
        records, raw_bytes, stored_bytes = made.sizes()
        done = replace(
            begun,
            stage=layout.DONE,
            digest=layout.digest_of(raw),
            records=records,
            raw_bytes=raw_bytes,
            stored_bytes=stored_bytes,
        )
        if self._base_is_there():
            retries, self._may_be_done = self.meter.retries, True
            if move(self._tables, self.store, begun, done, self.meter):  # 3
                self._reader.snapshotted(self.store, made)
                self.when_done(self.store, done, made)
                return True
            # Refused at the first try: it never was.
            self._may_be_done = self.meter.retries > retries
        self.abort()
        return False

    def abort(self) -> None:
        """Delete what was written, if it is sure that the snapshot was never done; else leave it to clean-up.

        An answer to step 3 of commit may have been lost: then its item says what became of it.
        """
        self._ready.clear()
        if self._may_be_done and not self._was_never_done():
            return
        delete_all(self._tables, self._written, self.meter)
        self._written.clear()
        key = layout.snapshot_key(self.store, self._snapshot.version, self._snapshot.attempt)
        for stage in (layout.WRITING, layout.LEAVING):
            before: Item = {"id": bytes(self._snapshot.id), "stage": stage, "digest": b""}
            if self._tables.delete_over(key, before, self.meter):
                return

    def _was_never_done(self) -> bool:
        """Take the name away first, so that a request still under way cannot make it done."""
        begun = self._snapshot
        if move(self._tables, self.store, begun, replace(begun, stage=layout.LEAVING), self.meter):
            return True
        item = _read_item(self._tables, self.store, begun, self.meter)
        return (item.get("id"), item.get("stage"), item.get("digest")) == (bytes(begun.id), layout.LEAVING, b"")

    def _base_is_there(self) -> bool:
        return self._base is None or _is_done(self._tables, self.store, self._base, self.meter)

    def _end_bucket(self) -> None:
        if self._current < 0:
            return
        holder = (self._snapshot.version, self._snapshot.id)
        empty = Bucket(emptied=self._snapshot.version)
        self._buckets[self._current] = Bucket(holder, 0, *self._tally.sums()) if self._tally.parts else empty
        self._tally = Tally()

    def _write(self) -> None:
        if self._ready:
            self._written += [key for key, _ in self._ready]
            self._tables.write(self._ready, self.meter)
            self._ready = []
            self._ready_bytes = 0


def begin(
    tables: Tables,
    reader: Reader,
    store: str,
    made: tuple[int, Attempt],
    base: Directory | None,
    bits: int,
    shards: int,
    epoch: int,
    meter: Meter,
    *,
    in_background: bool = True,
) -> SnapshotAttempt | None:
    """Enter a snapshot of what an attempt made as being written; None: there is one already, whatever its stage."""
    snapshot = Snapshot(*made, Attempt(uuid4().bytes), epoch, layout.WRITING)
    key = layout.snapshot_key(store, *made)
    item = layout.snapshot_item(store, snapshot)
    # An answer that was lost makes the second try fail.
    if not tables.put_new(key, item, meter) and _read_item(tables, store, snapshot, meter) != item:
        return None
    return SnapshotAttempt(tables, reader, store, snapshot, bits, shards, base, in_background=in_background)


def move(tables: Tables, store: str, before: Snapshot, after: Snapshot, meter: Meter) -> bool:
    """Move a snapshot from one stage to another; False: it is in that stage no more.

    An answer that was lost makes the second try fail, so what stands there then is what counts.
    """
    key = layout.snapshot_key(store, before.version, before.attempt)
    item = layout.snapshot_item(store, after)
    condition: Item = {"id": bytes(before.id), "stage": before.stage}
    if tables.put_over(key, item, condition, meter):
        return True
    # A fork may stand on it since.
    return _read_item(tables, store, before, meter) | {layout.FORKS: ""} == item | {layout.FORKS: ""}


def _read_item(tables: Tables, store: str, of: Snapshot | Directory, meter: Meter) -> Item:
    """What says that there is a snapshot of a version, whosever it is now; empty: nothing does."""
    key = layout.snapshot_key(store, of.version, of.attempt)
    return tables.get([key], meter).get(key, {})


def _is_done(tables: Tables, store: str, of: Snapshot | Directory, meter: Meter) -> bool:
    """Whether a snapshot can be read still."""
    item = _read_item(tables, store, of, meter)
    return (item.get("id"), item.get("stage")) == (bytes(of.id), layout.DONE)


def read_directory(tables: Tables, store: str, snapshot: Snapshot, meter: Meter) -> Directory:
    """The directory of a snapshot that is done.

    Raises:
        CorruptStateError: it is lost or broken.
        OtherWayError: clean-up has taken the snapshot away meanwhile; what needs it still has another.
    """
    key = layout.directory_key(store, snapshot.version, snapshot.id)
    found = tables.get([key], meter).get(key)
    if found is None:
        named_by = layout.snapshot_key(store, snapshot.version, snapshot.attempt)
        facts = layout.where(key) | {"snapshot": named_by.sort}
        if snapshot.stage == layout.DONE and not _is_done(tables, store, snapshot, meter):
            raise OtherWayError("clean-up took a snapshot away meanwhile", **facts)
        raise CorruptStateError("the directory of a snapshot is lost", **facts)
    return directory.parse(store, snapshot, key, found)
