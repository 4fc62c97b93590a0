"""Snapshot manifests as bytes."""

from __future__ import annotations

import pytest

from dynastate.errors import CorruptStateError
from dynastate.format.items import FORMAT
from dynastate.format.keys import Attempt, Home, SnapshotId
from dynastate.format.manifest import Bucket, SnapshotManifest, decode_manifest, encode_manifest

A, B, C = (Attempt(bytes([number]) * 16) for number in (1, 2, 3))


@pytest.mark.parametrize(
    "homes",
    [(None, None), (Home("one/0/0/default", 3), None), (Home("one", 1), Home("two", 256))],
    ids=["own buckets", "one of an origin", "all of origins"],
)
def test_a_manifest_is_read_back(homes: tuple[Home | None, Home | None]) -> None:
    """Every field comes back, and any broken byte is found."""
    holders = [SnapshotId(7, A), SnapshotId(9, B)]
    buckets = [Bucket(holders[n % 2], 0, n + 1, n, n * 3, n * 2, bytes([n] * 8), homes[n % 2]) for n in range(3)]
    made = SnapshotManifest(9, C, B, 7, 2, (*buckets, Bucket(emptied=9)))
    raw = encode_manifest("s", made)
    assert decode_manifest("s", raw) == made
    assert raw[0] == FORMAT
    for place in range(len(raw)):
        corrupt = raw[:place] + bytes([raw[place] ^ 0x10]) + raw[place + 1 :]
        with pytest.raises(CorruptStateError):
            decode_manifest("s", corrupt)
    with pytest.raises(CorruptStateError):
        decode_manifest("other", raw)
