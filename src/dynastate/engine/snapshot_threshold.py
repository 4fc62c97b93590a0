"""Whether a snapshot is worth its cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

from dynastate.format.version_list import VersionEntry

#: The thresholds of stores differ from the setting by up to this share: the stores of a query grow alike, and must not
#: make their snapshots all at once.
SPREAD: Final = 0.1
#: A snapshot is worth its write units, too, if recovery must read this many versions, however small.
VERSIONS_MAX: Final = 10_000


def threshold_of(store: str, threshold: float) -> float:
    """The threshold of one store, near the setting."""
    return threshold * (1 + SPREAD * (crc32(store.encode()) / 2**32 - 0.5))


def is_worth_it(
    store: str, deltas: Sequence[VersionEntry], last_bytes: int | None, min_deltas: int, threshold: float
) -> bool:
    """Whether the deltas since a snapshot of `last_bytes` are so large that a new one is worth its write units.

    With a threshold of t, all snapshots together cost at most 1 / t of the deltas, and recovery reads at most 1 + t of
    a snapshot. The first snapshot (None) is always worth it: it is no larger than the deltas.
    """
    if len(deltas) < max(1, min_deltas):
        return False
    if len(deltas) >= VERSIONS_MAX:
        return True
    stored = sum(entry.stored_bytes for entry in deltas)
    is_enough = last_bytes is None or stored >= threshold_of(store, threshold) * last_bytes
    return is_enough and any(entry.records for entry in deltas)
