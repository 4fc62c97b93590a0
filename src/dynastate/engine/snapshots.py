"""Snapshots: whether one is worth its cost, and the writing of its buckets (docs/storage-format.md)."""

from __future__ import annotations

from dataclasses import replace

from dynastate import runtime
from dynastate.engine.graphs import is_done, read_snapshot
from dynastate.engine.known import KnownStores
from dynastate.engine.objects import ObjectRule, StreamWriter
from dynastate.engine.pace import Pace
from dynastate.engine.reader import read_run
from dynastate.engine.updates import unchanged
from dynastate.engine.windows import bucket_runs
from dynastate.errors import CorruptStateError, InternalError
from dynastate.format.items import Item
from dynastate.format.keys import Attempt, Key, VersionId, bucket_key, digest_of, manifest_key, snapshot_key
from dynastate.format.manifest import Bucket, SnapshotManifest, encode_manifest, manifest_item
from dynastate.format.meta import FORKS
from dynastate.format.objects import ObjectPlace, bucket_stream
from dynastate.format.parts import Chunk, Tally, bucket_items, copied_part, part_of
from dynastate.format.snapshot import DELETING, DONE, WRITING, Snapshot, snapshot_item
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables, delete_all, delete_own_objects


class SnapshotAttempt:
    """A snapshot under way. Used by one thread; legal order: (bucket append*)*, then commit or abort, once.

    Its items are written one request at a time, beside those of commits, which go through the writer's queue. With a
    `pace` it yields to these. Without, there are none beside it, and it caches nothing. `values` is how many its
    version has, by the counts of the versions, or None if these do not tell.
    """

    def __init__(
        self,
        tables: Tables,
        known: KnownStores,
        store: str,
        snapshot: Snapshot,
        *,
        bits: int,
        shards: int,
        codec: str,
        rule: ObjectRule | None,
        base: SnapshotManifest | None = None,
        pace: Pace | None = None,
        values: int | None = None,
    ) -> None:
        self.store, self.bits = store, bits
        self._tables, self._known, self._snapshot = tables, known, snapshot
        self._shards, self._codec, self._rule = shards, codec, rule
        self._base, self._pace, self._values = base, pace, values
        self.base = 0 if self._base is None else self._base.version
        empty = Bucket(emptied=self._snapshot.version)
        self._buckets = [empty] * (1 << self.bits) if self._base is None else list(self._base.buckets)
        self._current = -1
        self._tally = Tally()
        self._ready: list[tuple[Key, Item]] = []
        self._ready_bytes = 0
        self._written: list[Key] = []
        #: All buckets that it writes, if they are more than a few KB, and objects cost less.
        self._stream: StreamWriter | None = None
        #: The buckets that it writes, in order.
        self._own: list[int] = []
        #: From here on a reader may have seen it done, and another snapshot may carry its buckets on.
        self._may_be_done = False

    @property
    def meter(self) -> Meter:
        """The cost so far."""
        return self._tables.meter

    def bucket(self, number: int) -> None:
        """Begin a bucket; the chunks up to the next one are all its rows."""
        if not self._current < number < len(self._buckets):
            raise InternalError("a bucket is out of order", store=self.store, bucket=number, after=self._current)
        self._end_bucket()
        self._current = number

    def append(self, chunk: Chunk) -> None:
        """Compress one chunk of the bucket's rows, and write what makes a request."""
        shift = 32 - self.bits
        if self._current < 0 or not chunk.hash_min >> shift == chunk.hash_max >> shift == self._current:
            raise InternalError("rows of a snapshot are in no bucket, or in another", store=self.store)
        holder = self._snapshot.holder
        first = self._tally.parts
        items = bucket_items(self.store, holder, self._current, first, self._shards, chunk, self._codec)
        for key, item in items:
            self._add(key, item)
        self._tally.add_chunk(chunk.records, len(chunk.changes))

    def _add(self, key: Key, item: Item) -> None:
        part = part_of(item)
        self._ready_bytes += self._tally.add_part(part)
        self._ready.append((key, item))
        if self._pace is not None:
            self._known.keep(key, part)
        limits = runtime.limits()
        if len(self._ready) == limits.writes_max or self._ready_bytes >= limits.snapshot_request_bytes:
            throttles = self._tables.meter.throttles
            self._write()
            if self._pace is not None:
                self._pace.pause(is_throttled=self._tables.meter.throttles > throttles)

    def commit(self) -> bool:
        """Make it a snapshot.

        1. Write what is left of the buckets, and copy carried ones out of objects that hold little else. (Crash:
           buckets of a snapshot that is still `writing`, which no reader takes; clean-up finds it by its item, and
           deletes them.)
        2. Write the manifest. (Crash: the same.)
        3. Unless its base is being deleted, mark it in its item as done: the commit point.

        Returns:
            False: clean-up has deleted it, or its base, in the meantime; nothing of it is left.

        Raises:
            CorruptStateError: the rows are others than the version has; abort it.
        """
        self._end_bucket()
        self._check_values()
        for number in self._manifest().sparse():
            self._copy(number)
        self._write()  # 1
        self._place()
        begun, made = self._snapshot, self._manifest()
        raw = encode_manifest(self.store, made)
        key = manifest_key(self.store, made.version, made.id)
        self._written.append(key)
        self._tables.write([(key, manifest_item(key, raw))])  # 2
        records, raw_bytes, stored_bytes = made.sizes()
        done = replace(
            begun,
            stage=DONE,
            digest=digest_of(raw),
            records=records,
            raw_bytes=raw_bytes,
            stored_bytes=stored_bytes,
            object_bytes=sum(bucket.object_bytes for bucket in made.buckets),
        )
        if self._base_is_there():
            retries, self._may_be_done = self._tables.meter.retries, True
            if move(self._tables, self.store, begun, done):  # 3
                self._known.snapshotted(self.store, done, made)
                return True
            # Refused without a retry: it never was done.
            self._may_be_done = self._tables.meter.retries > retries
        self.abort()
        return False

    def _check_values(self) -> None:
        """Refuse rows that are more or less than the version's: parts, which are right, could be deleted for them."""
        values = self._manifest().sizes()[0]
        if self._values is not None and values != self._values:
            raise CorruptStateError(
                "the rows for a snapshot have another number of values than their version; it was not made, and what "
                "is stored is right: stop the query, start it again so that rows are read from there, and report this",
                store=self.store,
                version=self._snapshot.version,
                values=values,
                expected=self._values,
            )

    def abort(self) -> None:
        """Delete what was written, if the snapshot surely was never done; else leave it to clean-up.

        The answer to step 3 of commit may have been lost: then its item decides.
        """
        self._ready.clear()
        if self._may_be_done and not self._was_never_done():
            return
        delete_all(self._tables, self._written)
        self._written.clear()
        if self._stream is not None:
            delete_own_objects(self._tables, self._stream.objects)
        key = snapshot_key(self.store, self._snapshot.version, self._snapshot.attempt)
        for stage in (WRITING, DELETING):
            before: Item = {"id": bytes(self._snapshot.id), "stage": stage, "digest": b""}
            if self._tables.delete_over(key, unchanged(before)):
                return

    def _was_never_done(self) -> bool:
        """Mark it as being deleted first, so that a request still under way cannot make it done."""
        begun = self._snapshot
        if move(self._tables, self.store, begun, replace(begun, stage=DELETING)):
            return True
        item = read_snapshot(self._tables, self.store, begun)
        return (item.get("id"), item.get("stage"), item.get("digest")) == (bytes(begun.id), DELETING, b"")

    def _base_is_there(self) -> bool:
        return self._base is None or is_done(self._tables, self.store, self._base)

    def _manifest(self) -> SnapshotManifest:
        begun = self._snapshot
        return SnapshotManifest(begun.version, begun.attempt, begun.id, self.base, self.bits, tuple(self._buckets))

    def _copy(self, number: int) -> None:
        """Write a bucket that was carried from objects as its own."""
        assert self._base is not None  # noqa: S101  # for mypy: only carried buckets are copied
        (run,) = bucket_runs(self.store, self._base, number, self._shards)
        self._current = number
        for sequence, part in enumerate(read_run(self._tables, run).values()):
            key = bucket_key(self.store, *self._snapshot.holder, number, sequence, self._shards)
            self._add(key, copied_part(key, part))
            if part.fragment == part.fragments - 1:
                self._tally.add_chunk(part.records, part.raw_bytes)
        self._end_bucket()

    def _place(self) -> None:
        """End the stream, if there is one, and enter where each of its buckets begins."""
        if self._stream is None:
            return
        self._stream.finish()
        start = 0
        for number in self._own:
            place = ObjectPlace(self._stream.stream.location, self._stream.end, start)
            self._buckets[number] = replace(self._buckets[number], place=place)
            start += self._buckets[number].object_bytes

    def _end_bucket(self) -> None:
        if self._current < 0:
            return
        holder = self._snapshot.holder
        empty = Bucket(emptied=self._snapshot.version)
        self._buckets[self._current] = Bucket(holder, 0, *self._tally.sums()) if self._tally.parts else empty
        self._own += [self._current] if self._tally.parts else []
        self._tally = Tally()

    def _write(self) -> None:
        if not self._ready:
            return
        rule = self._rule
        is_first = self._stream is None and not self._written
        if is_first and rule is not None and rule.is_worth_it(item for _, item in self._ready):
            stream = bucket_stream(rule.location, self.store, self._snapshot.holder)
            self._stream = StreamWriter(stream, self._tables.objects.put)
        if self._stream is not None:
            self._stream.add(self._ready)
        else:
            self._written += [key for key, _ in self._ready]
            self._tables.write(self._ready)
        self._ready = []
        self._ready_bytes = 0


def enter(tables: Tables, store: str, of: VersionId, epoch: int) -> Snapshot | None:
    """Enter a snapshot of a version as being written; None: there is one already, whatever its stage."""
    snapshot = Snapshot(*of, Attempt(runtime.new_id().bytes), epoch, WRITING)
    item = snapshot_item(store, snapshot)
    # After a lost answer the retry fails.
    if tables.put_new(snapshot_key(store, *of), item) or read_snapshot(tables, store, snapshot) == item:
        return snapshot
    return None


def move(tables: Tables, store: str, before: Snapshot, after: Snapshot) -> bool:
    """Move a snapshot from one stage to another; False: it is no longer in that stage.

    After a lost answer the retry fails, so the item that is there then decides.
    """
    key = snapshot_key(store, before.version, before.attempt)
    item = snapshot_item(store, after)
    condition: Item = {"id": bytes(before.id), "stage": before.stage}
    if tables.put_over(key, item, unchanged(condition)):
        return True
    # A fork may have pinned it since.
    return read_snapshot(tables, store, before) | {FORKS: ""} == item | {FORKS: ""}
