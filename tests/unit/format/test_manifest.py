"""Snapshot manifests as bytes."""

from __future__ import annotations

import pytest

from dynastate.errors import CorruptStateError
from dynastate.format.items import FORMAT
from dynastate.format.keys import Home, SnapshotId
from dynastate.format.manifest import Bucket, SnapshotManifest, decode_manifest, encode_manifest
from dynastate.format.objects import ObjectPlace
from dynastate.runtime import Limits
from tests.support.samples import A, B, C


@pytest.mark.parametrize(
    "homes",
    [(None, None), (Home("one/0/0/default", 3), None), (Home("one", 1), Home("two", 256))],
    ids=["own buckets", "one of an origin", "all of origins"],
)
@pytest.mark.parametrize(
    "places",
    [
        (None, None),
        (ObjectPlace("s3://b", 9, 0), None),
        (ObjectPlace("s3://b/é", 1 << 40, 7), ObjectPlace("s3://b", 9, 8)),
    ],
    ids=["items", "one in objects", "all in objects"],
)
def test_a_manifest_is_read_back(
    homes: tuple[Home | None, Home | None], places: tuple[ObjectPlace | None, ObjectPlace | None]
) -> None:
    """Every field comes back, and any broken byte is found."""
    holders = [SnapshotId(7, A), SnapshotId(9, B)]
    buckets = [
        Bucket(holders[n % 2], 0, n + 1, n, n * 3, n * 2, bytes([n] * 8), homes[n % 2], places[n % 2]) for n in range(3)
    ]
    manifest = SnapshotManifest(9, C, B, 7, 2, (*buckets, Bucket(emptied=9)))
    raw = encode_manifest("s", manifest)
    assert decode_manifest("s", raw) == manifest
    assert raw[0] == FORMAT
    for place in range(len(raw)):
        corrupt = raw[:place] + bytes([raw[place] ^ 0x10]) + raw[place + 1 :]
        with pytest.raises(CorruptStateError):
            decode_manifest("s", corrupt)
    with pytest.raises(CorruptStateError):
        decode_manifest("other", raw)


def test_sparse_buckets() -> None:
    """Buckets are sparse where the objects that hold them are, by more than half, of others; all of their stream's."""
    large = ObjectPlace("s3://b", 3 * Limits.object_bytes, 0)
    small = ObjectPlace("s3://b", 1_000, 0)

    def bucket(holder: int, place: ObjectPlace | None, size: int, home: Home | None = None) -> Bucket:
        return Bucket(SnapshotId(holder, A), 0, 1, 1, size, size - 30, bytes(8), home, place)

    buckets = (
        bucket(1, small, 400),
        bucket(2, small, 300),
        bucket(2, small._replace(start=300), 300),
        bucket(3, large._replace(start=Limits.object_bytes - 10), Limits.object_bytes - 1),
        bucket(4, large._replace(start=Limits.object_bytes), Limits.object_bytes),
        bucket(5, None, 10),
        bucket(6, small, 10, Home("another", 1)),
        Bucket(emptied=9),
    )
    assert SnapshotManifest(9, C, B, 7, 3, buckets).sparse() == [0, 3]
