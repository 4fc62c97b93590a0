"""Snapshots: their stages, and the writing of their buckets (docs/storage-format.md)."""

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

    Its items are written one request at a time, beside the writer's queue with the items of commits. With a `pace` it
    yields to commits. Without a pace there are no commits, and it caches nothing. `values` is the number of values of
    its version, by the counts of the versions, or None if it is not known.
    """

    def __init__(
        self,
        tables: Tables,
        known_stores: KnownStores,
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
        self._tables, self._known_stores, self._snapshot = tables, known_stores, snapshot
        self._shards, self._codec, self._rule = shards, codec, rule
        self._base, self._pace, self._values = base, pace, values
        self.base = 0 if self._base is None else self._base.version
        empty = Bucket(emptied=self._snapshot.version)
        self._buckets = [empty] * (1 << self.bits) if self._base is None else list(self._base.buckets)
        self._current = -1
        self._tally = Tally()
        self._ready: list[tuple[Key, Item]] = []
        self._ready_bytes = 0
        self._written_keys: list[Key] = []
        #: The stream of all buckets that it writes, if they are above the threshold of objects.
        self._stream: StreamWriter | None = None
        #: The buckets that it writes, in order.
        self._written_buckets: list[int] = []
        #: A reader may have seen it done, and another snapshot may carry its buckets on.
        self._may_be_done = False

    @property
    def meter(self) -> Meter:
        """The cost so far."""
        return self._tables.meter

    def bucket(self, number: int) -> None:
        """Begin a bucket; the chunks up to the next bucket are all its rows."""
        if not self._current < number < len(self._buckets):
            raise InternalError("a bucket is out of order", store=self.store, bucket=number, after=self._current)
        self._end_bucket()
        self._current = number

    def append(self, chunk: Chunk) -> None:
        """Compress one chunk of the bucket's rows, and write full requests."""
        shift = 32 - self.bits
        if self._current < 0 or not chunk.hash_min >> shift == chunk.hash_max >> shift == self._current:
            raise InternalError("rows of a snapshot are in no bucket, or in another", store=self.store)
        holder = self._snapshot.holder
        items = bucket_items(
            self.store, holder, self._current, self._tally.parts, shards=self._shards, chunk=chunk, codec=self._codec
        )
        for key, item in items:
            self._add(key, item)
        self._tally.add_chunk(chunk.records, len(chunk.changes))

    def _add(self, key: Key, item: Item) -> None:
        part = part_of(item)
        self._ready_bytes += self._tally.add_part(part)
        self._ready.append((key, item))
        if self._pace is not None:
            self._known_stores.keep(key, part)
        limits = runtime.limits()
        if len(self._ready) == limits.writes_max or self._ready_bytes >= limits.snapshot_request_bytes:
            throttles = self._tables.meter.throttles
            self._write()
            if self._pace is not None:
                self._pace.pause(is_throttled=self._tables.meter.throttles > throttles)

    def commit(self) -> bool:
        """Make it a snapshot.

        1. Write the rest of the buckets, and copy carried buckets from objects of which they are less than half.
           (Crash: buckets of a snapshot that is still `writing`, which no reader takes; clean-up finds it by its item,
           and deletes them.)
        2. Write the manifest. (Crash: the same.)
        3. Unless its base is being deleted, mark it in its item as done: the commit point.

        Returns False if clean-up has deleted it, or its base, in the meantime; nothing of it is left. Abort it if it
        has more or fewer rows than the version.
        """
        self._end_bucket()
        self._check_values()
        for number in self._manifest().sparse():
            self._copy(number)
        self._write()  # 1
        self._place()
        snapshot, manifest = self._snapshot, self._manifest()
        raw = encode_manifest(self.store, manifest)
        key = manifest_key(self.store, manifest.version, manifest.id)
        self._written_keys.append(key)
        self._tables.write([(key, manifest_item(key, raw))])  # 2
        records, raw_bytes, stored_bytes = manifest.sizes()
        done_snapshot = replace(
            snapshot,
            stage=DONE,
            digest=digest_of(raw),
            records=records,
            raw_bytes=raw_bytes,
            stored_bytes=stored_bytes,
            object_bytes=sum(bucket.object_bytes for bucket in manifest.buckets),
        )
        if self._base_is_there():
            retries, self._may_be_done = self._tables.meter.retries, True
            if move(self._tables, self.store, snapshot, done_snapshot):  # 3
                self._known_stores.snapshotted(self.store, done_snapshot, manifest)
                return True
            # If it was refused without a retry, it was never done.
            self._may_be_done = self._tables.meter.retries > retries
        self.abort()
        return False

    def _check_values(self) -> None:
        """Refuse more or fewer rows than the version has: clean-up could delete the right rows, the version's parts."""
        values = self._manifest().sizes()[0]
        if self._values is not None and values != self._values:
            raise CorruptStateError(
                "a snapshot was not made, because its rows have another number of values than their version; what is "
                "stored is right: restart the query, and report this",
                store=self.store,
                version=self._snapshot.version,
                values=values,
                expected=self._values,
            )

    def abort(self) -> None:
        """Delete all that was written, if the snapshot surely was never done; else leave it to clean-up.

        The answer to step 3 of commit may have been lost: then its item decides.
        """
        self._ready.clear()
        if self._may_be_done and not self._was_never_done():
            return
        delete_all(self._tables, self._written_keys)
        self._written_keys.clear()
        if self._stream is not None:
            delete_own_objects(self._tables, self._stream.objects)
        key = snapshot_key(self.store, self._snapshot.version, self._snapshot.attempt)
        for stage in (WRITING, DELETING):
            attributes: Item = {"id": bytes(self._snapshot.id), "stage": stage, "digest": b""}
            if self._tables.delete_over(key, unchanged(attributes)):
                return

    def _was_never_done(self) -> bool:
        """Mark it as being deleted first, so that a request still under way cannot make it done."""
        snapshot = self._snapshot
        if move(self._tables, self.store, snapshot, replace(snapshot, stage=DELETING)):
            return True
        item = read_snapshot(self._tables, self.store, snapshot)
        return (item.get("id"), item.get("stage"), item.get("digest")) == (bytes(snapshot.id), DELETING, b"")

    def _base_is_there(self) -> bool:
        return self._base is None or is_done(self._tables, self.store, self._base)

    def _manifest(self) -> SnapshotManifest:
        version, attempt, snapshot_id = self._snapshot.version, self._snapshot.attempt, self._snapshot.id
        buckets = tuple(self._buckets)
        return SnapshotManifest(version, attempt, snapshot_id, base=self.base, bits=self.bits, buckets=buckets)

    def _copy(self, number: int) -> None:
        """Write a carried bucket that is in objects as a bucket of this snapshot."""
        assert self._base is not None  # noqa: S101  # for mypy: only carried buckets are copied
        (run,) = bucket_runs(self.store, self._base, number, self._shards)
        self._current, holder = number, self._snapshot.holder
        for sequence, part in enumerate(read_run(self._tables, run).values()):
            key = bucket_key(
                self.store, holder.version, holder.id, bucket=number, sequence=sequence, shards=self._shards
            )
            self._add(key, copied_part(key, part))
            if part.fragment == part.fragments - 1:
                self._tally.add_chunk(part.records, part.raw_bytes)
        self._end_bucket()

    def _place(self) -> None:
        """End the stream, if there is one, and set the place of each of its buckets."""
        if self._stream is None:
            return
        self._stream.finish()
        start = 0
        for number in self._written_buckets:
            place = ObjectPlace(self._stream.stream.location, self._stream.end, start)
            self._buckets[number] = replace(self._buckets[number], place=place)
            start += self._buckets[number].object_bytes

    def _end_bucket(self) -> None:
        if self._current < 0:
            return
        bucket = Bucket(emptied=self._snapshot.version)
        if self._tally.parts:
            bucket = Bucket(self._snapshot.holder, **self._tally.sums()._asdict())
            self._written_buckets.append(self._current)
        self._buckets[self._current] = bucket
        self._tally = Tally()

    def _write(self) -> None:
        if not self._ready:
            return
        rule = self._rule
        is_first = self._stream is None and not self._written_keys
        if is_first and rule is not None and rule.is_worth_it(item for _, item in self._ready):
            stream = bucket_stream(rule.location, self.store, self._snapshot.holder)
            self._stream = StreamWriter(stream, self._tables.objects.put)
        if self._stream is not None:
            self._stream.add(self._ready)
        else:
            self._written_keys += [key for key, _ in self._ready]
            self._tables.write(self._ready)
        self._ready = []
        self._ready_bytes = 0


def enter(tables: Tables, store: str, version_id: VersionId, epoch: int) -> Snapshot | None:
    """Enter a snapshot of a version as being written. Returns None if there is one already, whatever its stage."""
    version, attempt = version_id
    snapshot = Snapshot(version, attempt, Attempt(runtime.new_id().bytes), epoch=epoch, stage=WRITING)
    item = snapshot_item(store, snapshot)
    # After a lost answer the retry fails.
    if tables.put_new(snapshot_key(store, version, attempt), item) or read_snapshot(tables, store, snapshot) == item:
        return snapshot
    return None


def move(tables: Tables, store: str, old: Snapshot, new: Snapshot) -> bool:
    """Move a snapshot from one stage to another. Returns False if it is no longer in the old stage.

    After a lost answer the retry fails, so the item then decides.
    """
    key = snapshot_key(store, old.version, old.attempt)
    item = snapshot_item(store, new)
    condition: Item = {"id": bytes(old.id), "stage": old.stage}
    if tables.put_over(key, item, unchanged(condition)):
        return True
    # A fork may have pinned it since.
    return read_snapshot(tables, store, old) | {FORKS: ""} == item | {FORKS: ""}
