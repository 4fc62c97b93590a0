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
from dynastate.ui.page import Ask, Page
from dynastate.ui.pages.operator import family_option, stores_of
from dynastate.ui.pages.rows import CELL_CHARS
from dynastate.ui.site import Site, with_versions
from dynastate.ui.texts import shown, text_bytes
from dynastate.ui.watch import counted
from dynastate.unsaferow.nested import Struct

#: Bytes of changes in a partition, between two versions, that are compared at most.
COMPARED_BYTES: Final = 256 * 2**20


#: A row of a comparison: its kind of change, its cells before and after, the columns that differ, and its key.
Line = tuple[str, list[str | None] | None, list[str | None] | None, frozenset[int], dict[str, Any]]


class Differences(Cursor[Line]):
    """The rows that differ, counted by their kind of change."""

    def __init__(self, reader: StateReader, first: int, second: int) -> None:
        self.counts = Counter(added=0, removed=0, changed=0)
        self._reader, self._later = reader, max(first, second)
        super().__init__(
            self._differing(reader, first, second),
            reader.close,
            lambda line: sum(text_bytes(cells) for cells in line[1:3] if cells),
        )

    @property
    def columns(self) -> Struct:
        """The columns of the rows."""
        return self._reader.at(self._later).columns

    @property
    def key_columns(self) -> Struct:
        return self._reader.at(self._later).key_columns

    def _differing(self, reader: StateReader, first: int, second: int) -> Generator[Line, None, None]:
        columns = self.columns
        for difference in reader.diff(first, second, limit_bytes=COMPARED_BYTES):
            kind = "added" if difference.before is None else "removed" if difference.after is None else "changed"
            self.counts[kind] += 1
            if self.is_full:
                yield kind, None, None, frozenset(), {}
                continue
            old, new = row_to_json(columns, difference.before), row_to_json(columns, difference.after)
            names = columns.names if old and new else ()
            differ = frozenset(number for number, name in enumerate(names) if old[name] != new[name])  # type: ignore[index]
            key = row_to_json(self.key_columns, difference.key) or {}
            yield kind, _cells(columns.names, old), _cells(columns.names, new), differ, key


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
        first = ask.number("before", max(versions[0], versions[-1] - 1))
        second = ask.number("after", versions[-1])
        values |= {"before": first, "after": second}
        command = f"dynastate diff {quote(stores)} {first} {second}" + family_option(reader.family or families[0])
        if not reader.family:
            return Page(f"Versions of {stores}", "compare.html", command, values, spent=spent)
        attempts = {version: reader.made_by(version) for version in (first, second)}
    page = ask.number("page", 1, least=1)

    def make() -> Differences:
        return Differences(with_versions(site.open_reader(stores, family), attempts), first, second)

    with site.cursor(("compare", stores, family, first, second, *attempts.values()), make) as cursor:
        cursor.advance(float("inf"))
        values |= {
            "columns": list(zip(cursor.columns.names, (each.name for each in cursor.columns.types), strict=True)),
            "rows": cursor.page(page),
            "key_names": list(cursor.key_columns.names),
            "span": abs(second - first),
            "counts": dict(cursor.counts),
            "is_done": cursor.is_done,
            "is_reading": not cursor.is_done,
            "ends": len(cursor.rows) if cursor.is_full and not cursor.has_page(page + 1) else 0,
            "has_next": cursor.has_page(page + 1),
            "page": page,
        }
    return Page(f"Versions of {stores}", "compare.html", command, values, spent=spent)


def _cells(names: Sequence[str], row: dict[str, Any] | None) -> list[str | None] | None:
    return None if row is None else [shown(row[name], CELL_CHARS) for name in names]
