"""The rows of one column family in one partition, encoded: at a version, and from version to version."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import inf
from threading import Event

from dynastate.engine.engine import Engine
from dynastate.engine.hash_ranges import ALL
from dynastate.engine.lineage import Lineage
from dynastate.engine.opening import Opening, retry_routes
from dynastate.errors import ConfigurationError, CorruptStateError, VersionMissingError
from dynastate.format.changes import Change as RowChange
from dynastate.format.changes import RowValue, apply_change, decode_changes, key_hash
from dynastate.format.version_list import VersionEntry
from dynastate.progress import ProgressCallback
from dynastate.reader.families import Family, families_at, nearest_family
from dynastate.storage.meter import Meter

Encoded = dict[bytes, RowValue]
Changes = Iterable[RowChange]


@dataclass(frozen=True)
class Source:
    """The engine that stores are read through, with the meter of its requests."""

    engine: Engine
    meter: Meter
    closed: Event = field(default_factory=Event)


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
        return self.bucket(entry, raw, raw).get(raw) if self.count(entry) else None

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
        try:
            for chunk in chain(opening.snapshot_chunks, opening.chunks):
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


def fold(rows: Encoded, changes: Changes, family: int, key: bytes | None = None) -> None:
    """Apply changes to the rows of a family, or only to the rows of `key`."""
    for change in changes:
        if change.family == family and (key is None or change.key == key):
            apply_change(rows, change.key, change)


def _copy(value: RowValue) -> RowValue:
    """A copy of a value: lists grow in place."""
    return list(value) if isinstance(value, list) else value
