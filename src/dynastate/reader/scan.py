"""All rows of one column family in one store, in bounded memory: one range of key hashes after the other.

A version is a snapshot, in buckets by hash, and changes since, in the order of their commits. The changes are read
once, and wait in an encrypted temporary file for each range, as in a hash join that does not fit into memory. Then the
rows of each range are read from the snapshot, and its changes applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import chain
from typing import Final

from dynastate.engine.opening import ROUTES_MAX, Opening
from dynastate.errors import ConfigurationError, RouteInvalidError
from dynastate.format.changes import Change, RowValue, apply_change, decode_changes, encode_changes, key_hash
from dynastate.format.parts import StoredChunk
from dynastate.format.version_list import VersionEntry
from dynastate.reader.families import Family
from dynastate.reader.partition import Encoded, Partition, fold
from dynastate.reader.spill import SpillFile

#: Buckets of half a megabyte, before compression, whose rows are in memory together.
RANGE_BUCKETS_BITS: Final = 4
#: The most ranges, as a power of two: each has a file.
RANGES_BITS_MAX: Final = 7
#: Bytes of changes that wait in memory, in all ranges together, before they are in files.
MEMORY_BYTES: Final = 8 * 1024 * 1024


def scan(partition: Partition, entry: VersionEntry, family: Family) -> Iterator[tuple[bytes, RowValue]]:
    """Read every row of a family at a version, in no order. The rows of one range of hashes at a time are in memory.

    A route that becomes invalid meanwhile is replaced by another one, for the remaining ranges: rows of a version
    are the same by every route.
    """
    bits = ranges_bits(partition.find(entry).bits)
    if bits == 0:
        yield from partition.rows_at(entry, family).items()
        return
    ranges = _Ranges(partition, entry, family, bits)
    for _ in range(ROUTES_MAX):
        with suppress(RouteInvalidError):
            yield from ranges.rows()
            return
    yield from ranges.rows()


def ranges_bits(buckets_bits: int) -> int:
    """The number of ranges, as a power of two, for rows whose best number of buckets is 2^`buckets_bits`."""
    return min(max(0, buckets_bits - RANGE_BUCKETS_BITS), RANGES_BITS_MAX)


class _Ranges:
    """The 2^bits ranges of one version. The ranges below `_next` were read."""

    def __init__(self, partition: Partition, entry: VersionEntry, family: Family, bits: int) -> None:
        self._partition, self._entry, self._family, self._bits = partition, entry, family, bits
        self._next = 0

    def rows(self) -> Iterator[tuple[bytes, RowValue]]:
        """The rows of the remaining ranges, by one route. Its changes are spread over a file for each range."""
        opening = self._partition.source.engine.open(self._partition.store, self._entry.version, self._entry.attempt)
        with ExitStack() as opened:
            memory = MEMORY_BYTES >> self._bits
            files = [opened.enter_context(closing(SpillFile(memory))) for _ in range(1 << self._bits)]
            self._spread(opening, files)
            while self._next < len(files):
                rows = self._range(self._next, opening.snapshot, files[self._next])
                self._next += 1
                yield from rows.items()
                del rows  # before the next range is read

    def _spread(self, opening: Opening, files: Sequence[SpillFile]) -> None:
        try:
            for change in self._of_family(opening.chunks, opening):
                files[self._number(change.key)].write(encode_changes([change]))
        except OSError as full:
            raise ConfigurationError(
                f"changes cannot be written to a temporary file: {full}; set TMPDIR to a folder with room for them",
                store=self._partition.store,
            ) from full

    def _range(self, number: int, snapshot: int, file: SpillFile) -> Encoded:
        """The rows of one range: the snapshot's, with the changes in the file applied."""
        engine, store, entry = self._partition.source.engine, self._partition.store, self._entry
        opening = engine.buckets(store, entry.version, entry.attempt, bits=self._bits, numbers=[number])
        if opening.snapshot != snapshot:
            raise RouteInvalidError("another snapshot was made meanwhile", store=store, snapshot=opening.snapshot)
        rows: Encoded = {}
        # Buckets of a small snapshot have rows of other ranges, too.
        is_exact = opening.bits >= self._bits
        for change in self._of_family(opening.snapshot_chunks, opening):
            if is_exact or self._number(change.key) == number:
                apply_change(rows, change.key, change)
        fold(rows, decode_changes(file.read()), self._family.id)
        return rows

    def _of_family(self, chunks: Iterable[StoredChunk], opening: Opening) -> Iterator[Change]:
        """The changes of this family."""
        try:
            every = chain.from_iterable(decode_changes(chunk.changes) for chunk in chunks)
            yield from (change for change in every if change.family == self._family.id)
        finally:
            self._partition.source.meter.add(opening.meter)

    def _number(self, key: bytes) -> int:
        return key_hash(key) >> 32 - self._bits
