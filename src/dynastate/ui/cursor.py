"""Rows of a long result, read as far as somebody has paged."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Final, Generic, TypeVar

Row = TypeVar("Row")

#: Rows that are kept of one result, and the bytes of their text. Who wants more filters, or exports.
KEPT: Final = 5_000
KEPT_BYTES: Final = 16 * 2**20
#: Seconds that one request reads on.
BUDGET_S: Final = 0.5
PAGE_ROWS: Final = 50


class Cursor(Generic[Row]):
    """One result. `found` yields its rows, and None now and then where it only looks; `close` ends what it reads.

    Used by one thread at a time. `rows` are those kept, of which `size` tells the bytes; `count` is how many there
    were; `is_full`: further ones are counted only.
    """

    def __init__(
        self,
        found: Generator[Row | None, None, None],
        close: Callable[[], None],
        size: Callable[[Row], int] = lambda _: 0,
    ) -> None:
        self.rows: list[Row] = []
        self.count = 0
        self.is_done = self.is_full = False
        self._size = size
        self._left_bytes = KEPT_BYTES
        self._found = found
        self._close = close

    def advance(self, until: float, budget_s: float = BUDGET_S) -> None:
        """Read on until so many rows are kept, or for so long, or to the end."""
        ends_s = time.monotonic() + budget_s
        while not self.is_done and self.count < until and time.monotonic() < ends_s:
            try:
                row = next(self._found)
            except StopIteration:
                self.is_done = True
                break
            if row is not None:
                self.count += 1
                self._left_bytes -= self._size(row)
                self.is_full |= len(self.rows) == KEPT or self._left_bytes < 0
                if not self.is_full:
                    self.rows.append(row)

    def page(self, number: int) -> list[Row]:
        """The rows of a page, from 1 on."""
        return self.rows[(number - 1) * PAGE_ROWS : number * PAGE_ROWS]

    def has_page(self, number: int) -> bool:
        return number >= 1 and len(self.rows) > (number - 1) * PAGE_ROWS

    def close(self) -> None:
        """End the reading."""
        self._found.close()
        self._close()
