"""Ranges of hashes."""

from __future__ import annotations

from dynastate.engine.hash_ranges import hash_ranges


def test_hashes_of_buckets_are_few_ranges() -> None:
    """Neighbours are one range."""
    assert hash_ranges(2, [3, 0, 1]) == [(0, 2**31 - 1), (3 << 30, 2**32 - 1)]
    assert hash_ranges(0, [0]) == [(0, 2**32 - 1)]
