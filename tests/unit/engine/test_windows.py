"""Windows: which parts one request reads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dynastate.engine.windows import OBJECT_READ_BYTES, WINDOW_SHARE, Run, bucket_runs, entry_runs, windows
from dynastate.format.keys import Attempt, Key, SnapshotId, part_key
from dynastate.format.manifest import Bucket, SnapshotManifest
from dynastate.format.objects import FRAME_BYTES, ObjectParts, ObjectPlace, ObjectStream
from dynastate.format.parts import PART_OVERHEAD_BYTES
from dynastate.runtime import limits
from dynastate.storage.limits import ANSWER_BYTES_MAX, PARTITION_ANSWER_BYTES_MAX
from tests.support.samples import A, entry_of

STORE = "orders/0/0/default"
STREAM = ObjectStream("s3://bucket", "stream")


def keys(count: int, shards: int) -> list[Key]:
    return [part_key(STORE, 1, A, sequence, shards=shards) for sequence in range(count)]


def items(count: int, size: int, shards: int) -> list[Run]:
    """Parts that are items, of one size, on some shards in turn."""
    return [Run([key], size) for key in keys(count, shards)]


def frames(*places: tuple[int, int], stream: ObjectStream = STREAM) -> list[Run]:
    """Parts in objects, each by its start and its size."""
    return [Run([key], size, stream, start) for key, (start, size) in zip(keys(len(places), 1), places, strict=True)]


def lengths(runs: Sequence[Run]) -> list[int]:
    """The number of parts in each window; no part is lost, and their order stays."""
    requests = list(windows(runs))
    assert [key for each in requests for key in each.keys] == [key for run in runs for key in run.keys]
    assert sum(each.size for each in requests) == sum(run.size for run in runs)
    return [len(each.keys) for each in requests]


def test_no_window_without_parts() -> None:
    assert lengths([]) == []


def test_a_window_has_few_enough_parts() -> None:
    most = limits().window_parts
    assert lengths(items(2 * most + 1, 100, shards=4)) == [most, most, 1]


@pytest.mark.parametrize(
    ("shards", "size", "bytes_max"),
    [(1, 390_000, PARTITION_ANSWER_BYTES_MAX), (25, 700_000, ANSWER_BYTES_MAX)],
    ids=["partition", "answer"],
)
def test_a_window_fits_in_an_answer(shards: int, size: int, bytes_max: int) -> None:
    """Of one partition key an answer has 1 MB, of all 16 MB."""
    fits = int(WINDOW_SHARE * bytes_max) // size
    assert lengths(items(2 * fits + 1, size, shards)) == [fits, fits, 1]


def test_frames_that_follow_each_other_are_one_range() -> None:
    third = OBJECT_READ_BYTES // 3
    assert lengths(frames((0, third), (third, third), (2 * third, third), (3 * third, third))) == [3, 1]
    assert lengths(frames((0, 10), (11, 10), (21, 5))) == [1, 2], "there is a gap after the first"
    assert lengths(frames((0, 10)) + frames((10, 10), stream=STREAM._replace(name="another"))) == [1, 1]
    assert lengths(frames((0, 2 * OBJECT_READ_BYTES), (2 * OBJECT_READ_BYTES, 1))) == [1, 1], "larger than a window"


def test_items_and_frames_share_no_window() -> None:
    assert lengths([*frames((0, 10)), *items(2, 10, shards=1), *frames((10, 10))]) == [1, 2, 1]


def test_parts_of_a_version() -> None:
    """Parts in objects have exact places. The size of an item is the mean of all."""
    entry = entry_of(1, A, parts=4, stored_bytes=400, objects=ObjectParts("s3://bucket", (100, 60)))
    runs = list(entry_runs(STORE, entry, 4, [1, 3]))
    assert [run.keys for run in runs] == [[part_key(STORE, 1, A, sequence, shards=4)] for sequence in (1, 3)]
    assert (runs[0].start, runs[0].end) == (FRAME_BYTES + 100, 2 * FRAME_BYTES + 160)
    assert runs[0].stream == entry.stream(STORE)
    assert runs[1][1:] == (PART_OVERHEAD_BYTES + 100, None, 0)


@pytest.mark.parametrize("place", [None, ObjectPlace("s3://bucket", 9_000, 700)])
def test_parts_of_a_bucket(place: ObjectPlace | None) -> None:
    holder = SnapshotId(1, Attempt(A))
    bucket = Bucket(holder, parts=3, records=9, stored_bytes=300, place=place)
    runs = list(bucket_runs(STORE, SnapshotManifest(1, A, A, base=0, bits=0, buckets=(bucket,)), 0, 4))
    assert sum(len(run.keys) for run in runs) == 3
    if place is None:
        assert [run.size for run in runs] == [PART_OVERHEAD_BYTES + 100] * 3
    else:
        assert [run[1:] for run in runs] == [(300 + 3 * FRAME_BYTES, bucket.stream(STORE), 700)]
