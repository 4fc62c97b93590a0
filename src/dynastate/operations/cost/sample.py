"""A sample of a query's rows: how many bytes another codec would take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from dynastate.engine.graphs import read_manifest
from dynastate.engine.reader import read_items, read_run
from dynastate.engine.windows import Run, bucket_runs, entry_runs
from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.codec import LZ4, ZSTD, compress, require
from dynastate.format.graph import VersionGraph
from dynastate.format.keys import version_list_key
from dynastate.format.parts import StoredChunk, join_fragments
from dynastate.operations.cost.prediction import Workload
from dynastate.operations.cost.usage import newest_snapshot
from dynastate.operations.inspection.inspect import read_lists
from dynastate.storage.tables import Tables

#: Stores that are looked into, and chunks of each: of its newest versions, and of its newest snapshot.
STORES: Final = 4
CHUNKS: Final = 4


@dataclass(frozen=True)
class CodecRatios:
    """Bytes with zstd, as multiples of those that are stored: of changes, and of snapshots."""

    changes: float
    snapshots: float

    def apply(self, of: Workload) -> Workload:
        """The workload with that codec."""
        return replace(
            of,
            row_bytes=of.row_bytes * self.changes,
            state_row_bytes=of.state_row_bytes * self.snapshots,
            compression=of.compression / self.changes,
        )


def zstd_ratios(tables: Tables, stores: Iterable[str]) -> CodecRatios | None:
    """Compress some chunks of some stores with zstd. None: zstd is not installed, or is their codec, or there are none.

    Raises:
        CorruptStateError: a version list or a manifest is corrupt.
    """
    try:
        require(ZSTD)
    except ConfigurationError:
        return None
    changes: list[StoredChunk] = []
    rows: list[StoredChunk] = []
    for store in islice(stores, STORES):
        graph, _ = read_lists(tables, store)
        if graph.versions():
            changes += _of_versions(tables, graph)
            rows += _of_snapshot(tables, graph)
    if not changes or any(each.codec == ZSTD for each in (*changes, *rows)):
        return None
    ratio = _ratio(changes)
    return CodecRatios(ratio, _ratio(rows) if rows else ratio)


def _ratio(chunks: Iterable[StoredChunk]) -> float:
    """Bytes with zstd over bytes with LZ4, each as compact as it writes them."""
    made = [each.changes for each in chunks]
    zstd, lz4 = (sum(len(compress(each, codec, dense=True)[1]) for each in made) for codec in (ZSTD, LZ4))
    return zstd / lz4


def _of_versions(tables: Tables, graph: VersionGraph) -> Iterator[StoredChunk]:
    """The first chunk of each of the newest versions with changes."""
    entries = [each for each in graph.lineage(graph.newest()) if each.records][-CHUNKS:]
    inline = (each.inline_chunk(version_list_key(graph.store, each.version)) for each in entries)
    yield from filter(None, inline)
    shards = graph.required_meta.shards
    firsts = (run for each in entries for run in islice(entry_runs(graph.store, each, shards, range(each.parts)), 1))
    yield from _read(tables, firsts)


def _of_snapshot(tables: Tables, graph: VersionGraph) -> Iterator[StoredChunk]:
    """The first chunks of the newest snapshot."""
    newest = newest_snapshot(graph)
    if newest is not None:
        manifest = read_manifest(tables, graph.store, newest)
        shards = graph.required_meta.shards
        firsts = (
            run
            for number in range(len(manifest.buckets))
            for run in islice(bucket_runs(graph.store, manifest, number, shards), 1)
        )
        yield from _read(tables, islice(firsts, CHUNKS))


def _read(tables: Tables, runs: Iterable[Run]) -> Iterator[StoredChunk]:
    """Chunks that are one part and can be read. Clean-up may have deleted others, or `verify` reports them."""
    for run in runs:
        with suppress(CorruptStateError):
            parts = read_run(tables, run) if run.stream else read_items(tables, run.keys)
            yield from (join_fragments(key, [part]) for key, part in parts.items() if part.fragments == 1)
