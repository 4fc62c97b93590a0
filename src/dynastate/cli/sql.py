"""The command `sql`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dynastate.cli.inspect import Version
from dynastate.cli.options import Call, Family, Stores, command, number
from dynastate.cli.output import json_text
from dynastate.counts import plural

if TYPE_CHECKING:
    from dynastate.reader.sql import Answer

app = typer.Typer(rich_help_panel="Inspect")

#: Rows of a table for people: each column is as wide as its widest cell.
_SHOWN_MAX: Final = 1_000


@command(
    app,
    'sql orders/0 "select count(*) from state"',
    'sql orders/0 "from changes limit 9" --after 40',
    'sql orders/0 "from versions" --json',
)
def sql(
    call: Call,
    store: Stores,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One query, in the SQL of DuckDB.")],
    *,
    version: Version = None,
    family: Family = "",
    after: Annotated[int | None, number(0, "V", "Table changes: of versions after V. By default all.")] = None,
    memory_mb: Annotated[int, number(16, "MB", "Memory that the query may take, in MiB.")] = 1024,
    external_access: Annotated[
        bool, typer.Option("--external-access", help="Let the query use files, extensions and the network.")
    ] = False,
) -> None:
    """Query state with SQL: the tables state, changes and versions.

    state has the rows of a version, changes what each version wrote, versions the versions that can be read. A table
    that the query does not name is not read. Where a store has several column families, each has the tables state_NAME
    and changes_NAME; --family makes one of them state and changes. It needs DuckDB.
    """
    from dynastate.reader import sql as querying
    from dynastate.reader.state import StateReader

    with call.tables() as tables, StateReader(tables, call.settings, store, family or None) as newest:
        state = newest if version is None else newest.at(version)
        options: dict[str, Any] = {"after": after, "memory_mb": memory_mb, "external_access": external_access}
        with querying.answer(state, query, **options) as answer:
            rows = call.json_list(answer.as_json()) if call.as_json else _show(call, answer)
        units = plural(newest.meter.read_units, "read unit")
        typer.echo(f"{plural(rows, 'row')} at version {state.version}, {units}", err=True)


def _show(call: Call, answer: Answer) -> int:
    """Print the first rows as a table; return their number."""
    rows = answer.as_json()
    first_rows = [{name: _cell(value) for name, value in row.items()} for row in islice(rows, _SHOWN_MAX)]
    if first_rows:
        call.table(first_rows, {name: name.replace("\n", " ") for name in first_rows[0]})
    if len(first_rows) == _SHOWN_MAX and next(rows, None) is not None:
        typer.echo(f"there are more than {_SHOWN_MAX:,} rows: --json prints all of them", err=True)
    return len(first_rows)


def _cell(value: Any) -> Any:
    """A value in one line."""
    is_plain = value is None or isinstance(value, (bool, int, float))
    if is_plain or (isinstance(value, str) and value.isprintable()):
        return value
    return json_text(value)
