"""A table of text that fits a width without breaking a word. It drops the least important columns, step by step."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, Final

#: Characters of an id that is shortened; git shows about as many.
ID_CHARS: Final = 8
GAP: Final = "  "


def headers(names: str = "", **others: str) -> dict[str, str]:
    """Columns with their headers: first `names`, whose headers they are, then columns with other headers."""
    return {name: name.replace("_", "\n") for name in names.split()} | others


class Table:
    """Rows under the headers of their columns. A newline in a header lets it take two lines where there is no room.

    Without a `width` no line is shortened. `figures`: columns behind the first hold numbers, even as text.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        columns: Mapping[str, str],
        width: int | None = None,
        *,
        figures: bool = False,
    ) -> None:
        self._width = width
        self._headers = {
            key: header.split("\n") if width else [header.replace("\n", " ")] for key, header in columns.items()
        }
        self._groups = {"": [{key: _cell(row[key]) for key in columns} for row in rows]}
        self._to_the_right = {
            key
            for number, key in enumerate(columns)
            if (figures and number) or all(isinstance(row[key], (int, float, NoneType)) for row in rows)
        }

    def fit(self, *, ids: Sequence[str] = (), group: str = "", optional: Sequence[str] = ()) -> Table:
        """Make the table narrower until it fits, in this order.

        Shorten `ids`; put the store name of column `group` on a line above its partitions; leave out columns that are
        `optional`, one after the other, where the table has them. Where that is not enough, `lines` puts further
        columns into a table below; or if two columns do not fit, each cell into a line of its own.
        """
        if self._is_too_wide():
            self._groups = {
                "": [row | {key: row[key][:ID_CHARS] for key in ids if key in row} for row in self._groups[""]]
            }
        if group and self._is_too_wide():
            self._group_by(group)
        for key in optional:
            if key in self._headers and self._is_too_wide():
                del self._headers[key]
        return self

    def _group_by(self, key: str) -> None:
        groups: dict[str, list[dict[str, str]]] = {}
        for row in self._groups[""]:
            namespace, operator, partition, name = row[key].split("/", 3)
            groups.setdefault(f"{namespace}/{operator}/*/{name}", []).append(row | {"partition": partition})
        del self._headers[key]
        if any(row["partition"] != "*" for rows in groups.values() for row in rows):
            self._headers = {"partition": ["partition"], **self._headers}
            self._to_the_right.add("partition")
        self._groups = groups

    def lines(self) -> Iterator[tuple[str, bool]]:
        """The lines of the table, and whether they are headers or names of groups."""
        widths = self._widths()
        blocks = self._blocks(widths)
        if any(len(keys) > 1 and self._is_too_wide(keys, widths) for keys in blocks):
            yield from self._stacked()
            return
        for keys in blocks:
            height = max(len(self._headers[key]) for key in keys)
            for line in range(height):
                words = {key: ["", *self._headers[key]][line - height :][:1] for key in keys}
                yield self._line({key: "".join(word) for key, word in words.items()}, keys, widths), True
            for name, rows in self._groups.items():
                if name:
                    yield name, True
                for row in rows:
                    yield self._line(row, keys, widths), False

    def _stacked(self) -> Iterator[tuple[str, bool]]:
        """The first cell of each row, and below it a line for each other one."""
        first, *others = self._headers
        for name, rows in self._groups.items():
            if name:
                yield name, True
            for row in rows:
                yield row[first], True
                for key in others:
                    text = " ".join([*self._headers[key], row[key]]) if row[key] else ""
                    for line in textwrap.wrap(text, self._width or 0, initial_indent="  ", subsequent_indent="    "):
                        yield line, False

    def _line(self, cells: Mapping[str, str], keys: Sequence[str], widths: Mapping[str, int]) -> str:
        padded = []
        for key in keys:
            space = " " * (widths[key] - cell_len(cells[key]))
            padded.append(space + cells[key] if key in self._to_the_right else cells[key] + space)
        return GAP.join(padded).rstrip()

    def _blocks(self, widths: Mapping[str, int]) -> list[list[str]]:
        """Columns of tables that fit, one below the other. Each begins with the first column."""
        first, *others = self._headers
        blocks = [[first]]
        for key in others:
            if len(blocks[-1]) > 1 and self._is_too_wide([*blocks[-1], key], widths):
                blocks.append([first])
            blocks[-1].append(key)
        return blocks

    def _widths(self) -> dict[str, int]:
        rows = [row for group in self._groups.values() for row in group]
        return {key: max(map(cell_len, [*words, *(row[key] for row in rows)])) for key, words in self._headers.items()}

    def _is_too_wide(self, keys: Sequence[str] | None = None, widths: Mapping[str, int] | None = None) -> bool:
        if self._width is None:
            return False
        widths = widths or self._widths()
        sizes = [widths[key] for key in keys or widths]
        return sum(sizes) + len(GAP) * (len(sizes) - 1) > self._width


def cell_len(text: str) -> int:
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    from rich import cells  # takes time to import

    return cells.cell_len(text)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, (int, float)):
        return f"{value:,}"
    return "-" if value is None else str(value)
