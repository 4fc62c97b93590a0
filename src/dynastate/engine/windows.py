"""Windows: the parts that one request reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from dynastate.format.keys import Key
from dynastate.format.manifest import Bucket, SnapshotManifest
from dynastate.format.objects import FRAME_BYTES, ObjectStream
from dynastate.format.parts import PART_OVERHEAD_BYTES
from dynastate.format.version_list import VersionEntry, part_keys
from dynastate.runtime import limits
from dynastate.storage.limits import ANSWER_BYTES_MAX, PARTITION_ANSWER_BYTES_MAX

#: The most bytes of objects in one window, unless a bucket is larger.
OBJECT_READ_BYTES: Final = 2 * 1024 * 1024
#: The share of DynamoDB's largest answer that a window requests, by the mean size of parts.
WINDOW_SHARE: Final = 0.9


class Run(NamedTuple):
    """Parts that are read together, and their size in bytes: items, or frames from `start` on in a stream."""

    keys: list[Key]
    size: int
    stream: ObjectStream | None = None
    start: int = 0

    @property
    def end(self) -> int:
        return self.start + self.size


def entry_runs(store: str, entry: VersionEntry, shards: int, sequences: Sequence[int]) -> Iterator[Run]:
    """Some parts of a version, one by one. The sizes of parts in objects give their places."""
    stream = entry.stream(store)
    sizes = entry.objects.sizes if entry.objects else ()
    starts = list(accumulate((FRAME_BYTES + size for size in sizes), initial=0))
    for sequence, key in zip(sequences, part_keys(store, entry, shards, sequences), strict=True):
        if sequence < len(sizes):
            yield Run([key], FRAME_BYTES + sizes[sequence], stream, starts[sequence])
        else:
            yield Run([key], part_bytes(entry))


def bucket_runs(store: str, snapshot: SnapshotManifest, number: int, shards: int) -> Iterator[Run]:
    """The parts of a bucket: one by one, or all together if they are in objects."""
    bucket = snapshot.buckets[number]
    keys = snapshot.keys(store, number, shards)
    if bucket.place is not None:
        yield Run(list(keys), bucket.object_bytes, bucket.stream(store), bucket.place.start)
    else:
        yield from (Run([key], part_bytes(bucket)) for key in keys)


def part_bytes(sums: VersionEntry | Bucket) -> int:
    """The mean size of the items of a version or bucket with parts."""
    return PART_OVERHEAD_BYTES + sums.stored_bytes // sums.parts


def windows(runs: Iterable[Run]) -> Iterator[Run]:
    """Runs joined to requests. DynamoDB is likely to answer requests for items in full."""
    window: list[Run] = []
    size = 0
    by_shard: Counter[str] = Counter()
    parts_max = limits().window_parts
    for run in runs:
        shard = run.keys[0].store_shard
        if run.stream is not None:
            follows = bool(window) and (window[-1].stream, window[-1].end) == (run.stream, run.start)
            fits = follows and size + run.size <= OBJECT_READ_BYTES
        else:
            fits = (
                bool(window)
                and window[0].stream is None
                and by_shard[shard] + run.size <= WINDOW_SHARE * PARTITION_ANSWER_BYTES_MAX
                and size + run.size <= WINDOW_SHARE * ANSWER_BYTES_MAX
                and len(window) < parts_max
            )
        if not fits:
            if window:
                yield _joined(window, size)
            window, size, by_shard = [], 0, Counter()
        window.append(run)
        size += run.size
        by_shard[shard] += run.size
    if window:
        yield _joined(window, size)


def _joined(runs: Sequence[Run], size: int) -> Run:
    return runs[0]._replace(keys=[key for run in runs for key in run.keys], size=size)
