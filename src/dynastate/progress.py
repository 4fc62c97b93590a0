"""Progress of long work, reported to a callback."""

from __future__ import annotations

from collections.abc import Callable

#: Called with how much is done, of how much.
ProgressCallback = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """Ignore progress."""
