"""Browse: the rows of a version, filtered and paged."""

from __future__ import annotations

from collections.abc import Generator
from shlex import quote
from typing import Any, Final

from dynastate.reader.json_rows import row_to_json
from dynastate.reader.state import StateReader
from dynastate.storage.meter import Meter
from dynastate.ui.cursor import KEPT, PAGE_ROWS, Cursor
from dynastate.ui.page import Ask, Page, counted
from dynastate.ui.pages.operator import family_option, stores_of
from dynastate.ui.site import Site, with_versions
from dynastate.ui.texts import searched, shown, text_bytes

#: Rows after which a search looks whether its time is over.
LOOK_ROWS: Final = 200
#: The most characters of a value in a table.
CELL_CHARS: Final = 200


def view(site: Site, ask: Ask) -> Page:
    spent = Meter()
    stores, family = stores_of(ask), ask.text("family")
    with site.reader(stores, family) as reader, counted(reader.meter, spent):
        families = [each for each in reader.families if not each.startswith("$")]
        version = ask.number("version", reader.version, least=1)
        values: dict[str, Any] = {"families": families, "family": reader.family, "version": version}
        values |= {"oldest": reader.versions()[0], "newest": reader.version}
        if not reader.family:
            return Page(f"Rows of {stores}", "rows.html", f"dynastate show {quote(reader.stores[0])}", values, spent)
        at = reader.at(version)
        columns, total, made = at.columns, len(at), reader.made_by(version)
    column, contains = ask.text("column"), ask.text("contains")
    page = ask.number("page", 1, least=1)
    names = list(columns.names)

    def make() -> Cursor[Any]:
        own = with_versions(site.open_reader(stores, family), {version: made})
        return Cursor(_matching(own, version, column, contains), own.close, lambda row: text_bytes(row[1]))

    with site.cursor(("rows", stores, family, version, made, column, contains), make) as cursor:
        cursor.advance(min(KEPT, page * PAGE_ROWS) + 1)
        values |= {
            "columns": list(zip(names, [each.name for each in columns.types], strict=True)),
            "rows": cursor.page(page),
            "total": total,
            "count": cursor.count,
            "is_done": cursor.is_done,
            "is_reading": not cursor.is_done and not cursor.has_page(page + 1) and not cursor.is_full,
            "has_next": cursor.has_page(page + 1),
            "page": page,
            "column": column,
            "contains": contains,
            "ends": len(cursor.rows) if cursor.is_full and not cursor.has_page(page + 1) else 0,
        }
    command = f"dynastate export {quote(stores)} --format ndjson --version {version}" + family_option(family)
    return Page(f"Rows of {stores}", "rows.html", command, values, spent)


def _matching(
    reader: StateReader, version: int, column: str, contains: str
) -> Generator[tuple[int, list[str | None]] | None, None, None]:
    """The partition, and the cells, of rows in which a column, or any, has a text; None now and then."""
    at = reader.at(version)
    names = list(at.columns.names)
    for number, (partition, row) in enumerate(at.rows_by_partition()):
        found = row_to_json(at.columns, row) or {}
        if not contains or any(contains in searched(value) for name, value in found.items() if column in ("", name)):
            yield partition, [shown(found[name], CELL_CHARS) for name in names]
        elif number % LOOK_ROWS == 0:
            yield None
