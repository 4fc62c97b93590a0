"""Browse: the rows of a version, filtered and paged."""

from __future__ import annotations

from collections.abc import Generator
from shlex import quote
from typing import Any, Final

from dynastate.reader.json_rows import row_to_json
from dynastate.reader.state import StateReader
from dynastate.storage.meter import Meter
from dynastate.ui.cursor import KEPT, PAGE_ROWS, Cursor
from dynastate.ui.page import Ask, Page
from dynastate.ui.pages.operator import family_option, stores_of
from dynastate.ui.site import Site, with_versions
from dynastate.ui.texts import shown, text_bytes, value_text
from dynastate.ui.watch import counted

#: Rows after which a search looks whether its time is over.
LOOK_ROWS: Final = 200
#: Characters of a value in a table.
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
            command = f"dynastate show {quote(reader.stores[0])}"
            return Page(f"Rows of {stores}", "rows.html", command, values, spent=spent)
        state = reader.at(version)
        columns, total, attempts = state.columns, len(state), reader.made_by(version)
    column, contains = ask.text("column"), ask.text("contains")
    page = ask.number("page", 1, least=1)
    names = list(columns.names)

    def make() -> Cursor[Any]:
        result_reader = with_versions(site.open_reader(stores, family), {version: attempts})
        return Cursor(
            _matching(result_reader, version, column, contains),
            result_reader.close,
            lambda row: text_bytes([*row[1], *map(value_text, row[2].values())]),
        )

    with site.cursor(("rows", stores, family, version, attempts, column, contains), make) as cursor:
        cursor.advance(min(KEPT, page * PAGE_ROWS) + 1)
        values |= {
            "columns": list(zip(names, [each.name for each in columns.types], strict=True)),
            "rows": cursor.page(page),
            "key_names": list(state.key_columns.names),
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
    return Page(f"Rows of {stores}", "rows.html", command, values, spent=spent)


def _matching(
    reader: StateReader, version: int, column: str, contains: str
) -> Generator[tuple[int, list[str | None], dict[str, Any]] | None, None, None]:
    """Yield partition, cells and key of rows with a text in a column, or in any, and None now and then."""
    state = reader.at(version)
    names = list(state.columns.names)
    for number, (partition, row) in enumerate(state.rows_by_partition()):
        values = row_to_json(state.columns, row) or {}
        if not contains or any(contains in value_text(value) for name, value in values.items() if column in ("", name)):
            key = {name: values[name] for name in state.key_columns.names}
            yield partition, [shown(values[name], CELL_CHARS) for name in names], key
        elif number % LOOK_ROWS == 0:
            yield None
