"""Rows of a long result, read as far as somebody has paged."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Final, Generic, TypeVar

Row = TypeVar("Row")

#: Rows of one result that are in memory, and the bytes of their text. For more, users filter or export.
KEPT: Final = 5_000
KEPT_BYTES: Final = 16 * 2**20
#: Seconds that one request reads on.
BUDGET_S: Final = 0.5
PAGE_ROWS: Final = 50


class Cursor(Generic[Row]):
    """One result. `source` yields its rows, and None now and then while it searches; `close` closes its reader.

    Used by one thread at a time. `rows` are the retained rows, whose bytes `size` gives; `count` counts all rows. If it
    `is_full`, further rows are only counted.
    """

    def __init__(
        self,
        source: Generator[Row | None, None, None],
        close: Callable[[], None],
        size: Callable[[Row], int] = lambda _: 0,
    ) -> None:
        self.rows: list[Row] = []
        self.count = 0
        self.is_done = self.is_full = False
        self._size = size
        self._free_bytes = KEPT_BYTES
        self._source = source
        self._close = close

    def advance(self, until: float, budget_s: float = BUDGET_S) -> None:
        """Read on until it has `until` rows, for `budget_s` at most, or to the end."""
        ends_s = time.monotonic() + budget_s
        while not self.is_done and self.count < until and time.monotonic() < ends_s:
            try:
                row = next(self._source)
            except StopIteration:
                self.is_done = True
                break
            if row is not None:
                self.count += 1
                self._free_bytes -= self._size(row)
                self.is_full |= len(self.rows) == KEPT or self._free_bytes < 0
                if not self.is_full:
                    self.rows.append(row)

    def page(self, number: int) -> list[Row]:
        """The rows of a page, from 1 on."""
        return self.rows[(number - 1) * PAGE_ROWS : number * PAGE_ROWS]

    def has_page(self, number: int) -> bool:
        return number >= 1 and len(self.rows) > (number - 1) * PAGE_ROWS

    def close(self) -> None:
        """Close the source."""
        self._source.close()
        self._close()
