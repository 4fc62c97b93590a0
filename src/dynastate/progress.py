"""Progress of long work, reported to a callback."""

from __future__ import annotations

from collections.abc import Callable

#: Called with the count and the total.
ProgressCallback = Callable[[int, int], None]


def no_progress(count: int, total: int) -> None:
    """Ignore progress."""
