"""How far long work is, told to whoever wants to know."""

from __future__ import annotations

from collections.abc import Callable

#: Told how much is done, of how much.
Progress = Callable[[int, int], None]


def unheard(done: int, total: int) -> None:
    """The progress of work that nobody watches."""
