"""Ranges of hashes, by which buckets and parts are selected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dynastate.format.version_list import VersionEntry

#: The smallest and the largest hash of a bucket.
HashRange = tuple[int, int]


#: The range of all hashes.
ALL: Final[tuple[HashRange, ...]] = ((0, (1 << 32) - 1),)


def parts_within(entry: VersionEntry, within: Sequence[HashRange]) -> Sequence[int]:
    """The sequence numbers of the parts that may hold a hash within some ranges; all if the version has no bounds."""
    if not entry.bounds:
        return range(entry.parts)
    bounds = zip(entry.bounds[::2], entry.bounds[1::2], strict=True)
    return [sequence for sequence, (low, high) in enumerate(bounds) if touches(within, low << 24, (high + 1 << 24) - 1)]


def hash_ranges(bits: int, buckets: Iterable[int]) -> list[HashRange]:
    """The hashes of some of 2^bits buckets, in as few ranges as possible, ascending."""
    ranges: list[HashRange] = []
    shift = 32 - bits
    for bucket in sorted(set(buckets)):
        low, high = bucket << shift, (bucket + 1 << shift) - 1
        if ranges and ranges[-1][1] + 1 == low:
            ranges[-1] = ranges[-1][0], high
        else:
            ranges.append((low, high))
    return ranges


def touches(ranges: Iterable[HashRange], hash_min: int, hash_max: int) -> bool:
    """Whether a chunk with these bounds may hold a hash of one of the ranges."""
    return any(hash_min <= high and hash_max >= low for low, high in ranges)
