"""Reading the parts and buckets on the route to a version (docs/storage-format.md)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import count, islice
from typing import Final

from dynastate import runtime
from dynastate.engine.hash_ranges import ALL, HashRange, parts_within, touches
from dynastate.engine.known import PART_OBJECT_BYTES, KnownStores
from dynastate.engine.windows import Run, bucket_runs, entry_runs, windows
from dynastate.errors import CorruptStateError
from dynastate.format.keys import Key, manifest_key, version_list_key, where
from dynastate.format.manifest import Bucket, SnapshotManifest
from dynastate.format.objects import decode_frames
from dynastate.format.parts import Part, StoredChunk, Tally, join_fragments, parse_part
from dynastate.format.version_list import VersionEntry
from dynastate.storage.meter import Meter
from dynastate.storage.objects import read_stream
from dynastate.storage.tables import Tables, get_apart

#: Bytes that all openings of an executor read ahead, in all sidecars. They do not include the window that each opening
#: waits for.
READ_AHEAD_BYTES_MAX: Final = 32 * 1024 * 1024


class PartReader:
    """Reads parts and buckets that are not known yet, with `threads` requests at once. Safe for threads.

    It is in one of the `sidecars` of an executor, which share the bytes to read ahead.
    """

    def __init__(self, threads: int, known_stores: KnownStores, sidecars: int = 1) -> None:
        self._known_stores = known_stores
        self._parallel = threads
        self._sidecars = sidecars
        #: Bytes that all openings read ahead.
        self._ahead_bytes = 0
        self._lock = threading.Lock()
        self._pool = runtime.pool(threads, "dynastate-reader")

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def changes(
        self,
        tables: Tables,
        store: str,
        entries: Sequence[VersionEntry],
        shards: int,
        *,
        within: Sequence[HashRange] = ALL,
        reads_all: bool = True,
    ) -> Iterator[StoredChunk]:
        """The verified changes of versions, in order. Chunks without a hash `within` some ranges are left out.

        Executors send changes in the order of their hashes, 4 MiB at a time. So most parts of a large batch cannot
        contain a key, and are not read, because entries have the bounds of their parts; unless it `reads_all`. Inline
        changes are returned whatever their hashes.
        """
        entry_parts = [(entry, range(entry.parts) if reads_all else parts_within(entry, within)) for entry in entries]
        runs = (run for entry, sequences in entry_parts for run in entry_runs(store, entry, shards, sequences))
        fits = self._fits((entry, len(sequences)) for entry, sequences in entry_parts)
        parts = self._read(tables, runs, keep=fits)
        for entry, sequences in entry_parts:
            some = None if len(sequences) == entry.parts else sequences
            naming_key = version_list_key(store, entry.version)
            yield from verified_chunks(entry, naming_key, islice(parts, len(sequences)), within=within, sequences=some)

    def rows(
        self, tables: Tables, store: str, snapshot: SnapshotManifest, shards: int, *, within: Sequence[HashRange] = ALL
    ) -> Iterator[StoredChunk]:
        """The rows of the buckets of a snapshot with hashes `within` some ranges."""
        shift = 32 - snapshot.bits
        numbers = sorted({number for low, high in within for number in range(low >> shift, (high >> shift) + 1)})
        runs = (run for number in numbers for run in bucket_runs(store, snapshot, number, shards))
        fits = self._fits((snapshot.buckets[number], snapshot.buckets[number].parts) for number in numbers)
        parts = self._read(tables, runs, keep=fits)
        for number in numbers:
            bucket = snapshot.buckets[number]
            if bucket.parts:
                key = manifest_key(store, snapshot.version, snapshot.id)
                yield from verified_chunks(bucket, key, islice(parts, bucket.parts), within=within, bucket=number)

    def _fits(self, part_counts: Iterable[tuple[VersionEntry | Bucket, int]]) -> bool:
        """Whether so many parts of each entry or bucket fit into the cache. If not, they would evict each other."""
        sizes = (each.stored_bytes * n // max(1, each.parts) + n * PART_OBJECT_BYTES for each, n in part_counts)
        return sum(sizes) <= self._known_stores.parts.limit_bytes

    def _read(self, tables: Tables, runs: Iterable[Run], *, keep: bool) -> Iterator[tuple[Key, Part]]:
        """The parts of runs, in order; some windows are read ahead."""
        other_windows = windows(runs)
        window = next(other_windows, None)
        futures: deque[tuple[int, Future[tuple[list[tuple[Key, Part]], Meter]]]] = deque()
        try:
            while window or futures:
                while window and len(futures) < self._parallel and self._take(window.size, is_ahead=bool(futures)):
                    futures.append((window.size, self._pool.submit(self._read_window, tables, window, keep=keep)))
                    window = next(other_windows, None)
                keyed_parts, meter = futures[0][1].result()
                tables.meter.add(meter)
                yield from keyed_parts
                self._release(futures.popleft()[0])
        finally:
            for size, future in futures:
                future.cancel()
                self._release(size)

    def _take(self, size: int, *, is_ahead: bool) -> bool:
        """Count in a window. Returns False if it `is_ahead` of the window that is waited for, and there is no room."""
        with self._lock:
            if is_ahead and self._ahead_bytes + size > READ_AHEAD_BYTES_MAX // self._sidecars:
                return False
            self._ahead_bytes += size
            return True

    def _release(self, size: int) -> None:
        with self._lock:
            self._ahead_bytes -= size

    def _read_window(self, tables: Tables, window: Run, *, keep: bool) -> tuple[list[tuple[Key, Part]], Meter]:
        keys = window.keys
        parts = {key: part for key in keys if (part := self._known_stores.parts.get(key)) is not None}
        missing_keys = [key for key in keys if key not in parts]
        view = tables.metered(Meter(cache_hits=len(parts), cache_misses=len(missing_keys)))
        if missing_keys:
            new_parts = read_run(view, window) if window.stream else read_items(view, missing_keys)
            for key in missing_keys:
                part = parts[key] = new_parts[key]
                if keep:
                    self._known_stores.keep(key, part)
        return [(key, parts[key]) for key in keys], view.meter


def read_items(tables: Tables, keys: Sequence[Key]) -> dict[Key, Part]:
    """The parts that are items, verified."""
    items = get_apart(tables, keys)
    if lost_keys := [key for key in keys if key not in items]:
        raise CorruptStateError(
            "a part that a version list or a manifest names is not in its table",
            **where(lost_keys[0]),
            lost=len(lost_keys),
        )
    return {key: parse_part(key, items[key]) for key in keys}


def read_run(tables: Tables, run: Run) -> dict[Key, Part]:
    """The parts of a run in objects, verified."""
    stream = run.stream
    assert stream is not None  # noqa: S101  # for mypy
    raw = read_stream(tables.objects, stream, run.start, run.end)
    if raw is None:
        raise CorruptStateError(
            "an object that a version list or a manifest names is not in its bucket",
            **where(run.keys[0]),
            location=stream.location,
            objects=f"{stream.name}/*",
        )
    return dict(decode_frames(run.keys, raw))


def verified_chunks(
    sums: VersionEntry | Bucket,
    naming_key: Key,
    parts: Iterable[tuple[Key, Part]],
    within: Sequence[HashRange] = ALL,
    sequences: Sequence[int] | None = None,
    *,
    bucket: int = 0,
) -> Iterator[StoredChunk]:
    """The chunks of a version, or of a bucket by its number. At the end all sums are compared.

    A chunk is joined from parts, or is the inline chunk of the entry, whatever its hashes. If only some parts are read,
    by their `sequences`, no sums are compared.
    """
    bounds, facts = b"", {"bucket": str(bucket)}
    if isinstance(sums, VersionEntry):
        inline = sums.inline_chunk(naming_key)
        if inline is not None:
            yield inline
            return
        bounds, facts = sums.bounds, {"version": str(sums.version), "attempt": sums.attempt.hex()}
    tally = Tally()
    fragments: list[Part] = []
    for sequence, (key, part) in zip(sequences or count(), parts, strict=False):
        if bounds and bytes((part.hash_min >> 24, part.hash_max >> 24)) != bounds[2 * sequence : 2 * sequence + 2]:
            raise CorruptStateError("a part has other bounds than its version entry says", **where(key))
        tally.add_part(part)
        fragments.append(part)
        if len(fragments) < part.fragments:
            continue
        tally.add_chunk(part.records, part.raw_bytes)
        if touches(within, part.hash_min, part.hash_max):
            yield join_fragments(key, fragments)
        fragments = []
    expected = (sums.parts, sums.records, sums.raw_bytes, sums.stored_bytes, sums.digest)
    if fragments or (sequences is None and tally.sums() != expected):
        raise CorruptStateError(
            "parts do not agree with the version list or manifest that names them",
            **where(naming_key),
            **facts,
            parts=sums.parts,
        )
