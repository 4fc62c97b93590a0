"""Commands that look at a store's versions: versions, history, diff. They only read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Final

import typer

from dynastate.cli.inspect import opened
from dynastate.cli.options import Call, Family, Key, Store, Stores, command
from dynastate.cli.output import facts, json_text, progress
from dynastate.cli.table import headers
from dynastate.counts import plural

app = typer.Typer(rich_help_panel="Inspect")

_VERSION: Final = headers(
    "version", committed="committed,\nUTC", **headers("rows changes bytes has_snapshot is_current attempt epoch parts")
)
_HISTORY_INDENT: Final = " " * 10


@command(app, "versions orders/0/17/default", "versions orders/0/17/default --all --wide")
def versions(
    call: Call,
    store: Store,
    *,
    every: Annotated[
        bool, typer.Option("--all", help="List those that changed nothing, too, as --json always does.")
    ] = False,
) -> None:
    """List the committed attempts of a store. The newest version depends on those that are current.

    Versions without a change, of batches without input, are counted and left out.
    """
    from dynastate.engine import catalog
    from dynastate.operations.inspection.inspect import list_versions

    with call.tables() as tables:
        attempts = [facts(each) for each in list_versions(tables, catalog.single_store(tables, store))]
    if call.json(attempts):
        return
    listed = attempts if every else _changed(attempts)
    rows = [each | {"committed": clock_text(each["committed"])} for each in listed]
    call.table(rows, _VERSION, ids=["attempt"], optional=["epoch", "parts"])
    if left_out := len(attempts) - len(listed):
        call.say(f"left out: {plural(left_out, 'version')} without a change; --all lists them")


def _changed(attempts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The attempts that show something new, beside the oldest and the newest one."""
    if not attempts:
        return []
    ends = (attempts[0], attempts[-1])
    is_new = [True, *(older["epoch"] != newer["epoch"] for older, newer in pairwise(attempts))]
    return [
        each
        for each, is_first_of_run in zip(attempts, is_new, strict=True)
        if each["changes"] or each["has_snapshot"] or not each["is_current"] or is_first_of_run or each in ends
    ]


@command(app, """history orders/0 '{"user": "a"}'""", """history orders/0 '{"user": "a"}' --json | jq '.[-1].row'""")
def history(call: Call, store: Stores, key: Key, *, family: Family = "") -> None:
    """Show the row of a key at the oldest version, and what of it changed since, with the times of the commits.

    Exit code 1: there was no such row at any version that can be read.
    """
    from dynastate.operations.inspection.inspect import iso_time
    from dynastate.reader.json_rows import key_from_json, parse_key, row_to_json

    parsed_key = parse_key(key)
    with opened(call, store, family, None) as state, progress("versions") as report:
        past = state.history_with_columns(key_from_json(state.key_columns, parsed_key), report)
        committed: dict[int, int] = {}
        for _, entry, _ in state.listed():  # a version exists when the last partition has committed it
            committed[entry.version] = max(entry.time_ms, committed.get(entry.version, 0))
        oldest = state.versions()[0]
    rows = [row_to_json(columns, each.row) for each, columns in past]
    past_rows: list[dict[str, Any]] = [
        {
            "version": each.version,
            "committed": iso_time(committed[each.version]) if each.version in committed else None,
            "row": row,
            "changed": changed,
        }
        for (each, _), row, changed in zip(past, rows, _changes(rows), strict=True)
    ]
    if not call.json(past_rows):
        for line in _history_lines(past_rows):
            call.say(line, indent=_HISTORY_INDENT)
        if past_rows and past_rows[0]["version"] <= oldest:
            call.say(f"{oldest:,} is the oldest version that can be read; the row may have been there before")
    if not past_rows:
        typer.echo("it was not there at any version that can be read", err=True)
        raise typer.Exit(1)


def _changes(rows: Sequence[Mapping[str, Any] | None]) -> Iterator[list[str] | None]:
    """The columns in which each row differs from the one before, or None where there is no row to compare."""
    for old, new in pairwise([None, *rows]):
        if old is None or new is None:
            yield None
        else:
            yield [name for name in dict.fromkeys([*old, *new]) if _value(old, name) != _value(new, name)]


def _history_lines(past: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each version: the row, what of it changed, or that it was removed."""
    yield from (["version   committed, UTC       row"] if past else [])
    old: Mapping[str, Any] = {}
    for entry in past:
        row, changed = entry["row"], entry["changed"]
        if row is None:
            text = "removed"
        elif not changed:
            text = json_text(row)
        else:
            text = ", ".join(f"{name}: {_value(old, name)} -> {_value(row, name)}" for name in changed)
        yield f"{entry['version']:>8}  {clock_text(entry['committed']):19}  {text}"
        old = row or {}


def _value(row: Mapping[str, Any], name: str) -> str:
    """A value as JSON; a schema that evolved may lack its column."""
    return json_text(row[name]) if name in row else "-"


def clock_text(iso: str | None) -> str:
    """A time of JSON as people read it, in UTC."""
    return (iso or "-").replace("T", " ").removesuffix("+00:00")


@command(app, "diff orders/0 41 42", "diff orders/0 41 42 --json | jq length")
def diff(
    call: Call,
    store: Stores,
    first: Annotated[int, typer.Argument(metavar="V1", min=0, help="One version.")],
    second: Annotated[int, typer.Argument(metavar="V2", min=0, help="Another version.")],
    *,
    family: Family = "",
) -> None:
    """Show the rows that differ between two versions: with - as at V1, with + as at V2."""
    from dynastate.reader.json_rows import row_to_json

    with opened(call, store, family, None) as state, progress("versions") as report:
        newer = state.at(max(first, second))
        columns, keys = newer.columns, newer.key_columns
        differences = [
            {
                "key": row_to_json(keys, each.key),
                "before": row_to_json(columns, each.before),
                "after": row_to_json(columns, each.after),
            }
            for each in state.diff(first, second, report)
        ]
    if call.json(differences):
        return
    for difference in differences:
        for sign, row, style in (("-", difference["before"], "red"), ("+", difference["after"], "green")):
            if row is not None:
                call.say(f"{sign} {json_text(row)}", style)
