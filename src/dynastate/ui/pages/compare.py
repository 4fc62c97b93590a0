"""Compare: two versions, by counts and then by rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from shlex import quote
from typing import Any, Final

from dynastate.reader.json_rows import row_to_json
from dynastate.reader.state import StateReader
from dynastate.storage.meter import Meter
from dynastate.ui.cursor import Cursor
from dynastate.ui.page import Ask, Page, counted
from dynastate.ui.pages.operator import family_option, stores_of
from dynastate.ui.pages.rows import CELL_CHARS
from dynastate.ui.site import Site, with_versions
from dynastate.ui.texts import shown, text_bytes
from dynastate.unsaferow.nested import Struct

#: The most bytes of changes in a partition, between two versions, that are compared.
COMPARED_BYTES: Final = 256 * 2**20


#: What a comparison shows of a row: what became of it, its cells before and after, and the columns that differ.
Line = tuple[str, list[str | None] | None, list[str | None] | None, frozenset[int]]


class Differences(Cursor[Line]):
    """The rows that differ, counted by what became of them."""

    def __init__(self, reader: StateReader, before: int, after: int) -> None:
        self.counts = Counter(added=0, removed=0, changed=0)
        self._reader, self._later = reader, max(before, after)
        super().__init__(
            self._differing(reader, before, after),
            reader.close,
            lambda line: sum(text_bytes(cells) for cells in line[1:3] if cells),
        )

    @property
    def columns(self) -> Struct:
        """The columns of the rows."""
        return self._reader.at(self._later).columns

    def _differing(self, reader: StateReader, before: int, after: int) -> Generator[Line, None, None]:
        columns = self.columns
        for each in reader.diff(before, after, limit_bytes=COMPARED_BYTES):
            kind = "added" if each.before is None else "removed" if each.after is None else "changed"
            self.counts[kind] += 1
            if self.is_full:
                yield kind, None, None, frozenset()
                continue
            was, now = row_to_json(columns, each.before), row_to_json(columns, each.after)
            names = columns.names if was and now else ()
            differ = frozenset(number for number, name in enumerate(names) if was[name] != now[name])  # type: ignore[index]
            yield kind, _cells(columns.names, was), _cells(columns.names, now), differ


def view(site: Site, ask: Ask) -> Page:
    spent = Meter()
    stores, family = stores_of(ask), ask.text("family")
    with site.reader(stores, family) as reader, counted(reader.meter, spent):
        versions = reader.versions()
        families = [each for each in reader.families if not each.startswith("$")]
        values: dict[str, Any] = {
            "families": families,
            "family": reader.family,
            "oldest": versions[0],
            "newest": versions[-1],
        }
        before = ask.number("before", max(versions[0], versions[-1] - 1))
        after = ask.number("after", versions[-1])
        values |= {"before": before, "after": after}
        command = f"dynastate diff {quote(stores)} {before} {after}" + family_option(reader.family or families[0])
        if not reader.family:
            return Page(f"Versions of {stores}", "compare.html", command, values, spent)
        made = {version: reader.made_by(version) for version in (before, after)}
    page = ask.number("page", 1, least=1)

    def make() -> Differences:
        return Differences(with_versions(site.open_reader(stores, family), made), before, after)

    with site.cursor(("compare", stores, family, before, after, *made.values()), make) as cursor:
        cursor.advance(float("inf"))
        values |= {
            "columns": list(cursor.columns.names),
            "rows": cursor.page(page),
            "counts": dict(cursor.counts),
            "is_done": cursor.is_done,
            "is_reading": not cursor.is_done,
            "ends": len(cursor.rows) if cursor.is_full and not cursor.has_page(page + 1) else 0,
            "has_next": cursor.has_page(page + 1),
            "page": page,
        }
    return Page(f"Versions of {stores}", "compare.html", command, values, spent)


def _cells(names: Sequence[str], row: dict[str, Any] | None) -> list[str | None] | None:
    return None if row is None else [shown(row[name], CELL_CHARS) for name in names]
