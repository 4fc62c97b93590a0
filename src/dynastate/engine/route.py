"""Routes: how versions are read. A route never changes once version lists name its versions. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from dynastate.errors import InternalError
from dynastate.format.graph import since
from dynastate.format.keys import Attempt, VersionId
from dynastate.format.manifest import SnapshotManifest, bits_for
from dynastate.format.version_list import VersionEntry

#: Approximate memory of a route for each version and each bucket.
ENTRY_BYTES: Final = 500
BUCKET_BYTES: Final = 200
#: Approximate memory for each size of a part in objects: an integer in a tuple.
SIZE_BYTES: Final = 40


@dataclass(frozen=True, slots=True)
class Route:
    """How a version is read: a snapshot, or nothing, and then the deltas of `entries`.

    `start` is the version of the snapshot. It is None without a snapshot, or if clean-up has deleted the entry.
    """

    store: str
    snapshot: SnapshotManifest | None
    start: VersionEntry | None
    entries: tuple[VersionEntry, ...]
    schemas: Mapping[bytes, str]
    shards: int

    @property
    def end(self) -> VersionEntry:
        """The version itself."""
        end = self.entries[-1] if self.entries else self.start
        if end is None:
            raise InternalError("a route leads to no version", store=self.store)
        return end

    @property
    def schema(self) -> str:
        return self.schemas[self.end.schema]

    def to(self, version: int, attempt: Attempt) -> Route | None:
        """The route to a version on this route. Returns None if the version is not on it."""
        if self.start is not None and (self.start.version, self.start.attempt) == (version, attempt):
            return replace(self, entries=())
        index = self._index(version, attempt)
        return None if index is None else replace(self, entries=self.entries[: index + 1])

    def then(self, entry: VersionEntry, schema: str) -> Route:
        """The route to a child of its version."""
        return replace(self, entries=(*self.entries, entry), schemas={**self.schemas, entry.schema: schema})

    def by(self, snapshot: SnapshotManifest) -> Route | None:
        """The route from a snapshot of a version on it. Returns None if the version is not on it."""
        index = self._index(snapshot.version, snapshot.attempt)
        if index is None:
            return None
        return replace(self, snapshot=snapshot, start=self.entries[index], entries=self.entries[index + 1 :])

    def since(self, have: Collection[VersionId]) -> tuple[VersionId, tuple[VersionEntry, ...]] | None:
        """The newest of `have` on the route, and the versions after it. Returns None if there is none."""
        return since(chain(reversed(self.entries), [self.start] if self.start else []), have)

    def _index(self, version: int, attempt: Attempt) -> int | None:
        index = version - self.entries[0].version if self.entries else -1
        if not 0 <= index < len(self.entries) or self.entries[index].attempt != attempt:
            return None
        return index

    @property
    def bits(self) -> int:
        """The number of buckets, 2^bits, in which its rows are best read."""
        return self.snapshot.bits if self.snapshot else bits_for(sum(each.raw_bytes for each in self.entries))

    @property
    def records(self) -> int:
        from_snapshot = sum(bucket.records for bucket in self.snapshot.buckets) if self.snapshot else 0
        return from_snapshot + sum(entry.records for entry in self.entries)

    @property
    def size(self) -> int:
        """Approximate bytes of memory."""
        inline = sum(entry.stored_bytes for entry in self.entries if entry.inline)
        inline += sum(SIZE_BYTES * len(entry.objects.sizes) for entry in self.entries if entry.objects)
        buckets = 1 << self.snapshot.bits if self.snapshot else 0
        return ENTRY_BYTES * len(self.entries) + inline + BUCKET_BYTES * buckets
