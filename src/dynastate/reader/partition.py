"""The rows of one column family in one partition, encoded: at a version, and from version to version."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import inf
from threading import Event
from typing import Final, NamedTuple

from dynastate.engine.cache import Cache
from dynastate.engine.engine import Engine
from dynastate.engine.hash_ranges import ALL
from dynastate.engine.lineage import Lineage
from dynastate.engine.opening import Opening, retry_routes
from dynastate.errors import ConfigurationError, CorruptStateError, RouteInvalidError, VersionMissingError
from dynastate.format.changes import Change as RowChange
from dynastate.format.changes import RowValue, apply_change, decode_changes, key_hash
from dynastate.format.keys import VersionId
from dynastate.format.parts import StoredChunk
from dynastate.format.version_list import VersionEntry
from dynastate.progress import ProgressCallback
from dynastate.reader.families import Family, families_at, nearest_family
from dynastate.storage.meter import Meter

Encoded = dict[bytes, RowValue]
Changes = Iterable[RowChange]

#: Approximate memory of a cached row without key and values, and of each value.
ROW_BYTES: Final = 600
VALUE_BYTES: Final = 60


class CachedRow(NamedTuple):
    """The encoded value of a key at a version, or None if the key is not there."""

    of: VersionId
    value: RowValue | None

    @property
    def size(self) -> int:
        """Approximate bytes of memory, without the key."""
        values = self.value if isinstance(self.value, list) else [self.value or b""]
        return ROW_BYTES + sum(len(value) + VALUE_BYTES for value in values)


RowCache = Cache[tuple[str, str, bytes], CachedRow]


@dataclass(frozen=True)
class Source:
    """The engine that stores are read through, with the meter of its requests.

    With `rows` and a `pool` it serves many look-ups.
    """

    engine: Engine
    meter: Meter
    closed: Event = field(default_factory=Event)
    #: Values of keys that were looked up, and the version of each: by store, family and key.
    rows: RowCache | None = None
    #: Threads for the changes since a snapshot, which a look-up then reads at the same time as its bucket.
    pool: Executor | None = None


@dataclass(frozen=True)
class Partition:
    """One column family of one store, by its name. `fallback` gives it if no listed version of the store has it."""

    source: Source
    lineage: Lineage
    name: str
    fallback: Callable[[], Family]

    @property
    def store(self) -> str:
        return self.lineage.store

    @property
    def number(self) -> int:
        return int(self.store.split("/")[2])

    def families(self, entry: VersionEntry) -> dict[str, Family]:
        return families_at(self.lineage, entry)

    def family(self, entry: VersionEntry) -> Family:
        """The column family at a version, or near it. A version that no longer has it removes its rows, by its id."""
        family = self.families(entry).get(self.name)
        return family or nearest_family(self.lineage, self.name, entry.version) or self.fallback()

    def count(self, entry: VersionEntry) -> int:
        family = self.families(entry).get(self.name)
        return 0 if family is None else entry.keys.get(family.id, 0)

    def value(self, entry: VersionEntry, raw: bytes) -> RowValue | None:
        if self.source.rows is None:
            return self._value(entry, raw)
        place = self.store, self.name, raw
        cached = self.source.rows.get(place)
        if cached is not None and cached.of == entry.id:
            return cached.value
        row = cached and self._updated(cached, entry, raw)
        if row is None:
            row = CachedRow(entry.id, self._value(entry, raw))
        self.source.rows.put(place, row, row.size + len(raw))
        return row.value

    def _value(self, entry: VersionEntry, raw: bytes) -> RowValue | None:
        return self.bucket(entry, raw, raw).get(raw) if self.count(entry) else None

    def _updated(self, cached: CachedRow, entry: VersionEntry, raw: bytes) -> CachedRow | None:
        """A row at a later version, by the changes since. Returns None if these are not on the way to the version."""
        digest = key_hash(raw)
        opening = self.source.engine.lookup_since(self.store, entry.version, entry.attempt, digest, since=cached.of)
        if opening is None:
            return None
        rows: Encoded = {} if cached.value is None else {raw: _copy(cached.value)}
        try:
            for chunk in opening.chunks:
                changes = chunk.changes
                if raw in changes:
                    fold(rows, decode_changes(changes), self.family(entry).id, raw)
        except RouteInvalidError:  # clean-up has deleted changes that a newer snapshot has
            return None
        finally:
            self.source.meter.add(opening.meter)
        return CachedRow(entry.id, rows.get(raw))

    def bucket(self, entry: VersionEntry, raw: bytes, key: bytes | None = None) -> Encoded:
        """The rows in the bucket of a key at a version, or only the rows of `key`."""
        digest = key_hash(raw)
        lookup = partial(self.source.engine.lookup, self.store, entry.version, entry.attempt, digest)
        return self._rows(lookup, self.family(entry).id, key)

    def find(self, entry: VersionEntry) -> Opening:
        """Open a version without its rows."""
        opening = retry_routes(lambda _: self.source.engine.find(self.store, entry.version, entry.attempt))
        self.source.meter.add(opening.meter)
        return opening

    def rows_at(self, entry: VersionEntry, family: Family, only: Container[bytes] | None = None) -> Encoded:
        """All rows of a family at a version, or only the rows of some keys."""
        open_version = partial(self.source.engine.open, self.store, entry.version, entry.attempt)
        return retry_routes(lambda _: self._read(open_version(), family.id, None, only))

    def _rows(self, open_version: Callable[[], Opening], family: int, key: bytes | None = None) -> Encoded:
        return retry_routes(lambda _: self._read(open_version(), family, key))

    def _read(self, opening: Opening, family: int, key: bytes | None, only: Container[bytes] | None = None) -> Encoded:
        rows: Encoded = {}
        chunks = opening.chunks
        if self.source.pool is not None and key is not None:
            chunks = _read_ahead(self.source.pool, chunks)
        try:
            for chunk in chain(opening.snapshot_chunks, chunks):
                changes = chunk.changes
                if key is None or key in changes:
                    decoded = decode_changes(changes)
                    if only is not None:
                        decoded = (change for change in decoded if change.key in only)
                    fold(rows, decoded, family, key)
        finally:
            self.source.meter.add(opening.meter)
        return rows

    def feed(
        self, first: int, last: VersionEntry, key: bytes | None = None
    ) -> Generator[tuple[VersionEntry, Changes], None, None]:
        """The changes of each version, from the first to the last, or only the changes of `key`."""
        within = ALL if key is None else [(key_hash(key), key_hash(key))]
        feed = self.source.engine.changes(self.store, first, last.version, last.attempt, within=within)
        try:
            for version, chunks in feed.versions:
                every = (chunk.changes for chunk in chunks)
                decoded = (decode_changes(changes) for changes in every if key is None or key in changes)
                yield self.lineage.find(version), chain.from_iterable(decoded)
        finally:
            self.source.meter.add(feed.meter)

    def difference(
        self, low: int, high: int, is_read: Callable[[], None], limit_bytes: float = inf
    ) -> Iterator[tuple[bytes, RowValue | None, RowValue | None]]:
        """The keys whose values differ between two versions, with both values. Each version read calls `is_read`.

        The rows of the changed keys are in memory. Refuse changes of more than `limit_bytes`.
        """
        old, new = self.lineage.find(low) if low else None, self.lineage.find(high)
        if low == high:
            return
        family = self.family(new)
        changed: dict[bytes, None] = {}
        left_bytes = limit_bytes
        for _, changes in self.feed(low + 1, new):
            for change in changes:
                if change.family == family.id:
                    changed[change.key] = None
                    left_bytes -= len(change.key) + len(change.value or b"")
                    if left_bytes < 0:
                        raise ConfigurationError(
                            "more was changed between these versions than can be compared here; compare versions that "
                            "are nearer to each other, or use 'dynastate diff'",
                            store=self.store,
                            limit_bytes=limit_bytes,
                        )
            is_read()
        old_rows = {} if old is None else self.rows_at(old, family, changed)
        new_rows = {raw: _copy(value) for raw, value in old_rows.items()}
        for _, changes in self.feed(low + 1, new):
            fold(new_rows, changes, family.id)
        yield from (
            (raw, old_rows.get(raw), new_rows.get(raw)) for raw in changed if old_rows.get(raw) != new_rows.get(raw)
        )

    def history(self, raw: bytes, progress: ProgressCallback) -> Iterator[tuple[VersionEntry, Family, RowValue | None]]:
        """The values of a key, from the oldest listed version on: the first value, and each that differs from the last.

        Each comes with the column family that decodes it: the newest version's, if that reads it.
        """
        self.source.meter.add(self.lineage.meter)
        first, last = self.lineage.entries[0], self.lineage.newest
        newest = self.family(last)
        try:
            value = self.value(first, raw)
        except CorruptStateError as corrupt:
            if first in self.source.engine.lineage(self.store).entries:
                raise
            raise VersionMissingError(
                "clean-up took the oldest version away meanwhile; call again", store=self.store, version=first.version
            ) from corrupt
        if value is not None:
            family = self.family(first)
            yield first, newest if newest.reads(family) else family, value
        if last.version == first.version:
            return
        rows: Encoded = {} if value is None else {raw: _copy(value)}
        for entry, changes in self.feed(first.version + 1, last, raw):
            family = self.family(entry)
            previous = _copy(rows[raw]) if raw in rows else None
            fold(rows, changes, family.id, raw)
            if rows.get(raw) != previous:
                yield entry, newest if newest.reads(family) else family, rows.get(raw)
            progress(entry.version - first.version, last.version - first.version)


def _read_ahead(pool: Executor, chunks: Iterator[StoredChunk]) -> Iterator[StoredChunk]:
    """Begin to read chunks in a thread; the caller reads something else meanwhile."""
    first: Future[StoredChunk | None] = pool.submit(next, chunks, None)

    def all_chunks() -> Iterator[StoredChunk]:
        chunk = first.result()
        if chunk is not None:
            yield chunk
            yield from chunks

    return all_chunks()


def fold(rows: Encoded, changes: Changes, family: int, key: bytes | None = None) -> None:
    """Apply changes to the rows of a family, or only to the rows of `key`."""
    for change in changes:
        if change.family == family and (key is None or change.key == key):
            apply_change(rows, change.key, change)


def _copy(value: RowValue) -> RowValue:
    """A copy of a value: lists grow in place."""
    return list(value) if isinstance(value, list) else value
