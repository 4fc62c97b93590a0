"""Rewriting the versions and snapshots of a store without the rows that have erased keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from dynastate import runtime
from dynastate.engine import snapshots
from dynastate.engine.hash_ranges import hash_ranges
from dynastate.engine.objects import StreamWriter, enter_location
from dynastate.engine.reader import PartReader
from dynastate.engine.updates import unchanged
from dynastate.errors import ConfigurationError
from dynastate.format.changes import decode_changes, encode_changes, key_hash
from dynastate.format.codec import LZ4, RAW, compress
from dynastate.format.items import Item, item_bytes
from dynastate.format.keys import Attempt, Key, SnapshotId, VersionId, digest_of, manifest_key, snapshot_key
from dynastate.format.manifest import Bucket, SnapshotManifest, encode_manifest, manifest_item
from dynastate.format.objects import ObjectParts, ObjectPlace, ObjectStream, bucket_stream, delta_stream
from dynastate.format.parts import Chunk, StoredChunk, Tally, bucket_items, part_items, part_of, parts_digest
from dynastate.format.snapshot import DELETING, DONE, Snapshot
from dynastate.format.version_list import BOUNDS_PARTS_MAX, ERASED, VERSIONS, InlineChanges, VersionEntry, encode_entry
from dynastate.operations.erase.scan import BucketName, StoreScan
from dynastate.storage.tables import Tables
from dynastate.storage.update import Condition, Update


@dataclass
class Rewritten:
    """The versions and snapshots of a store that were rewritten."""

    versions: list[VersionId] = field(default_factory=list)
    snapshots: list[VersionId] = field(default_factory=list)


class Rewriter:
    """Rewrites one store, which is marked, and whose runs are refused."""

    def __init__(self, tables: Tables, reader: PartReader, scan: StoreScan) -> None:
        self._tables, self._reader, self._scan = tables, reader, scan
        self._store = scan.store
        self._meta = scan.graph.required_meta
        #: Buckets that were written again, by the snapshot that wrote them before, and their number.
        self._new_buckets: dict[BucketName, Bucket] = {}
        self.rewritten = Rewritten()

    def rewrite(self) -> Rewritten:
        """Rewrite what has erased rows. At every moment all other rows can be read.

        1. Delete the items of snapshots that are not done.
        2. From the last version list to the first: write the remaining parts of its versions under new ids, then
           replace its entries. The counts of a list follow from the lists below, so these come later. (Crash: a list
           that was replaced says so, and is not counted again. Parts that no list names are deleted later.)
        3. Write the remaining rows of buckets and a manifest for each snapshot, under a new id, then enter them in its
           item. (Crash: the same.)

        What was in objects is written into new objects, and what was in items into items.
        """
        for snapshot in self._scan.graph.snapshots():
            if snapshot.stage != DONE:
                self._delete_snapshot(snapshot)  # 1
        corrected = self._scan.corrected()
        for key, listed in sorted(self._scan.graph.lists.items(), reverse=True):
            if not self._scan.is_rewritten(key):
                self._rewrite_list(key, listed, corrected)  # 2
        for snapshot, manifest in self._scan.snapshots():
            if self._scan.replaced(manifest):
                self._rewrite_snapshot(snapshot, manifest)  # 3
        return self.rewritten

    def _delete_snapshot(self, snapshot: Snapshot) -> None:
        marked = replace(snapshot, stage=DELETING)
        if snapshot == marked or snapshots.move(self._tables, self._store, snapshot, marked):
            key = snapshot_key(self._store, snapshot.version, snapshot.attempt)
            condition: Item = {"id": bytes(snapshot.id), "stage": DELETING}
            self._tables.delete_over(key, unchanged(condition))

    def _rewrite_list(
        self, key: Key, listed: list[tuple[bytes, VersionEntry]], corrected: dict[VersionId, VersionEntry]
    ) -> None:
        old_raws = [raw for raw, _ in listed]
        new_entries: dict[VersionId, bytes] = {}
        for _, entry in listed:
            if entry.id in self._scan.changes and entry.id not in new_entries:
                new_entry = self._rewrite_entry(corrected.get(entry.id, entry))
                new_entries[entry.id] = encode_entry(self._store, new_entry)
                self.rewritten.versions.append(entry.id)
            elif entry.id in corrected:
                new_entries.setdefault(entry.id, encode_entry(self._store, corrected[entry.id]))
        new_raws = [new_entries.get(entry.id, raw) for raw, entry in listed]
        if new_raws != old_raws or (
            old_raws and self._scan.row_ids
        ):  # the marked lists are the last ones, without a gap
            sets: Item = {VERSIONS: new_raws, ERASED: self._meta.erase_id}
            self._change(key, Update(Condition(equal={VERSIONS: old_raws}), sets=sets), VERSIONS)

    def _rewrite_entry(self, entry: VersionEntry) -> VersionEntry:
        """Write the parts of a version without the erased rows, in this store; return its entry."""
        chunks = self._reader.changes(self._tables, self._store, [entry], self._meta.shards)
        if entry.inline is not None:
            return self._rewrite_inline(entry, chunks)
        rewritten = Attempt(runtime.new_id().bytes)
        tally, bounds, writer, stream = Tally(), bytearray(), ItemWriter(self._tables), None
        if entry.objects is not None:
            stream = self._stream(delta_stream(entry.objects.location, self._store, entry.version, rewritten))
        for codec, chunk in self._remaining(chunks):
            items = part_items(
                self._store, entry.version, rewritten, tally.parts, shards=self._meta.shards, chunk=chunk, codec=codec
            )
            for _, item in items:
                tally.add_part(part_of(item))
            tally.add_chunk(chunk.records, len(chunk.changes))
            bounds += bytes((chunk.hash_min >> 24, chunk.hash_max >> 24)) * len(items)
            is_streamed = stream is not None and tally.parts <= runtime.limits().object_parts_max
            if stream is not None and is_streamed:
                stream.add(items)
            else:
                writer.add(items)
        writer.flush()
        if stream is not None:
            stream.finish()
        return replace(
            entry,
            **tally.sums()._asdict(),
            bounds=bytes(bounds) if 1 < tally.parts <= BOUNDS_PARTS_MAX else b"",
            home=None,
            objects=ObjectParts(stream.stream.location, tuple(stream.sizes)) if stream and stream.sizes else None,
            rewritten=rewritten if tally.parts else None,
        )

    def _rewrite_inline(self, entry: VersionEntry, chunks: Iterable[StoredChunk]) -> VersionEntry:
        for chunk_codec, chunk in self._remaining(chunks):
            codec, packed = compress(chunk.changes, chunk_codec, dense=True)
            return replace(
                entry,
                records=chunk.records,
                raw_bytes=len(chunk.changes),
                stored_bytes=len(packed),
                inline=InlineChanges(codec, packed),
            )
        return replace(entry, records=0, raw_bytes=0, stored_bytes=0, digest=parts_digest(()), inline=None)

    def _remaining(self, chunks: Iterable[StoredChunk]) -> Iterator[tuple[str, Chunk]]:
        """The chunks without the erased rows, as far as they have others, and their codecs."""
        for stored in chunks:
            changes = [each for each in decode_changes(stored.changes) if not self._scan.is_erased(each)]
            if changes:
                hashes = [key_hash(each.key) for each in changes]
                codec = LZ4 if stored.codec == RAW else stored.codec
                yield codec, Chunk(len(changes), min(hashes), max(hashes), encode_changes(changes))

    def _rewrite_snapshot(self, snapshot: Snapshot, manifest: SnapshotManifest) -> None:
        holder = SnapshotId(snapshot.version, Attempt(runtime.new_id().bytes))
        buckets, names = list(manifest.buckets), self._scan.replaced(manifest)
        self._rewrite_buckets(manifest, [each for each in names if each not in self._new_buckets], holder)
        for name in names:
            buckets[name.number] = self._new_buckets[name]
        new_manifest = replace(manifest, id=holder.id, buckets=tuple(buckets))
        raw = encode_manifest(self._store, new_manifest)
        key = manifest_key(self._store, snapshot.version, holder.id)
        self._tables.write([(key, manifest_item(key, raw))])
        records, raw_bytes, stored_bytes = new_manifest.sizes()
        changes: Item = {
            "id": bytes(holder.id),
            "digest": digest_of(raw),
            "records": records,
            "raw_bytes": raw_bytes,
            "stored_bytes": stored_bytes,
        }
        object_bytes = sum(bucket.object_bytes for bucket in buckets)
        if object_bytes:
            changes["object_bytes"] = object_bytes
        condition = Condition(equal={"id": bytes(snapshot.id), "stage": DONE})
        update = Update(condition, sets=changes, removes=[] if object_bytes else ["object_bytes"])
        self._change(snapshot_key(self._store, snapshot.version, snapshot.attempt), update, "id")
        self.rewritten.snapshots.append(snapshot.of)

    def _rewrite_buckets(self, manifest: SnapshotManifest, names: Sequence[BucketName], holder: SnapshotId) -> None:
        """Write buckets under a new id, those in objects into one stream."""
        writer, stream = ItemWriter(self._tables), None
        streamed: list[BucketName] = []
        for name in names:
            place = manifest.buckets[name.number].place
            add: Callable[[Sequence[tuple[Key, Item]]], object] = writer.add
            if place is not None:
                stream = stream or self._stream(bucket_stream(place.location, self._store, holder))
                add = stream.add
            bucket = self._new_buckets[name] = self._rewrite_bucket(manifest, name.number, holder, add)
            if place is not None and bucket.parts:
                streamed.append(name)
        writer.flush()
        if stream is None:
            return
        stream.finish()
        start = 0
        for name in streamed:
            place = ObjectPlace(stream.stream.location, stream.end, start)
            self._new_buckets[name] = bucket = replace(self._new_buckets[name], place=place)
            start += bucket.object_bytes

    def _stream(self, stream: ObjectStream) -> StreamWriter:
        """A writer of a stream. The meta item lists its location before: clean-up and drop find objects by it."""
        enter_location(self._tables, self._store, self._meta, stream.location)
        return StreamWriter(stream, self._tables.objects.put)

    def _rewrite_bucket(
        self,
        manifest: SnapshotManifest,
        number: int,
        holder: SnapshotId,
        add: Callable[[Sequence[tuple[Key, Item]]], object],
    ) -> Bucket:
        tally, within = Tally(), hash_ranges(manifest.bits, [number])
        chunks = self._reader.rows(self._tables, self._store, manifest, self._meta.shards, within=within)
        for codec, chunk in self._remaining(chunks):
            items = bucket_items(
                self._store, holder, number, tally.parts, shards=self._meta.shards, chunk=chunk, codec=codec
            )
            for _, item in items:
                tally.add_part(part_of(item))
            tally.add_chunk(chunk.records, len(chunk.changes))
            add(items)
        return Bucket(holder, **tally.sums()._asdict()) if tally.parts else Bucket(emptied=holder.version)

    def _change(self, key: Key, update: Update, name: str) -> None:
        """Change an item that is as it was read. After a lost answer, attribute `name` decides."""
        if self._tables.update(key, update) is not None:
            return
        if self._tables.get([key]).get(key, {}).get(name) != update.sets[name]:
            raise ConfigurationError(
                "something else has changed this store meanwhile: stop the query and other commands, and erase again",
                store=self._store,
                item=key.sort,
            )


class ItemWriter:
    """Writes items in full requests."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._ready: list[tuple[Key, Item]] = []
        self._ready_bytes = 0

    def add(self, items: Iterable[tuple[Key, Item]]) -> None:
        limits = runtime.limits()
        for key, item in items:
            size = item_bytes(item)
            if len(self._ready) == limits.writes_max or self._ready_bytes + size > limits.request_bytes:
                self.flush()
            self._ready.append((key, item))
            self._ready_bytes += size

    def flush(self) -> None:
        if self._ready:
            self._tables.write(self._ready)
        self._ready, self._ready_bytes = [], 0
