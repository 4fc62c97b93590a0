"""Commands that look inside: stores, show, versions, get, history, diff, export. They change nothing."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from dynastate.cli_options import (
    AsJson,
    DeltaTable,
    Endpoint,
    Family,
    Key,
    Region,
    SnapshotTable,
    Store,
    Stores,
    console,
    json_text,
    opened_tables,
    progress,
    settings_of,
    show_json,
    show_table,
)
from dynastate.errors import ConfigurationError, VersionMissingError
from dynastate.settings import DELTA_TABLE, SNAPSHOT_TABLE, Settings

if TYPE_CHECKING:
    from dynastate.state import StateReader

app = typer.Typer()

Version = Annotated[int | None, typer.Option(min=1, help="By default the newest that all partitions have committed.")]


class Format(str, Enum):
    """What `export` writes."""

    PARQUET = "parquet"
    NDJSON = "ndjson"


@app.command("stores")
def list_stores(
    namespace: Annotated[str, typer.Argument(help="First part of the names of a query's stores.")] = "",
    *,
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    as_json: AsJson = False,
) -> None:
    """List stores with their newest version, rows and bytes: those of a namespace, or all there are.

    Without a namespace the table is scanned, a request for each of its partition keys, which needs dynamodb:Scan.
    """
    from dynastate.overview import overview
    from dynastate.stores import of_namespace
    from dynastate.tables import Meter

    meter = Meter()
    with (
        opened_tables(settings_of(endpoint, region, delta_table, snapshot_table)) as tables,
        progress("stores") as told,
    ):
        there = (name for _, name in of_namespace(tables, namespace, meter)) if namespace else tables.find_stores(meter)
        names = sorted(there, key=_by_number)
        found = []
        for done, name in enumerate(names, 1):
            try:
                found.append(overview(tables, name, meter))
            except VersionMissingError:
                if namespace:
                    raise  # of all there are, one that was dropped meanwhile is there no more
            told(done, len(names))
    rows = [each.as_json() for each in found]
    if as_json:
        show_json(rows)
        return
    show_table(rows, ["store", "version", "rows", "bytes", "snapshot", "deltas"])


def _by_number(store: str) -> list[tuple[int, int | str]]:
    """Partition 10 comes behind partition 9."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in store.split("/")]


@app.command()
def show(
    store: Store,
    *,
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    as_json: AsJson = False,
) -> None:
    """Show what is known of one store: its newest version, column families, columns, snapshot, checkpoint."""
    from dynastate.overview import overview
    from dynastate.tables import Meter

    with opened_tables(settings_of(endpoint, region, delta_table, snapshot_table)) as tables:
        found = overview(tables, store, Meter()).as_json()
    if as_json:
        show_json(found)
        return
    families = found.pop("families")
    found["forks"] = ", ".join(found["forks"])
    facts = [{"": name.replace("_", " "), "value": value} for name, value in found.items()]
    show_table(facts, ["", "value"])
    described = [
        {
            "family": each["name"],
            "rows": each["rows"],
            "key": _columns(each["key"]),
            "value": _columns(each["value"]),
            "lists": each["lists"],
            "internal": each["internal"],
        }
        for each in families
    ]
    show_table(described, ["family", "rows", "key", "value", "lists", "internal"])


def _columns(columns: list[dict[str, Any]]) -> str:
    return ", ".join(f"{column['name']} {_type(column['type'])}" for column in columns)


def _type(described: Any) -> str:
    return described if isinstance(described, str) else str(described["type"])


@app.command()
def versions(
    store: Store,
    *,
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    as_json: AsJson = False,
) -> None:
    """List the committed attempts of a store; `is_current` are those that the newest version stands on."""
    from dynastate.overview import versions as listed
    from dynastate.tables import Meter

    with opened_tables(settings_of(endpoint, region, delta_table, snapshot_table)) as tables:
        found = [each.as_json() for each in listed(tables, store, Meter())]
    if as_json:
        show_json(found)
        return
    show_table(
        found, ["version", "attempt", "epoch", "rows", "changes", "parts", "bytes", "has_snapshot", "is_current"]
    )


@app.command()
def get(
    store: Stores,
    key: Key,
    *,
    version: Version = None,
    family: Family = "",
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    as_json: AsJson = False,
) -> None:
    """Show the row of a key, as JSON. Exit code 1: it is not there; --json then prints null."""
    from dynastate.frames import columns_of, key_from_json, row_to_json

    wanted = _parse(key)
    with _opened(settings_of(endpoint, region, delta_table, snapshot_table), store, family, version) as state:
        row = state.get(key_from_json(state.key_columns, wanted))
        found = row_to_json(columns_of(state), row)
        at = state.version
    if found is not None or as_json:
        show_json(found)
    if found is None:
        typer.echo(f"not there at version {at}", err=True)
        raise typer.Exit(1)


@app.command()
def history(
    store: Stores,
    key: Key,
    *,
    family: Family = "",
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    as_json: AsJson = False,
) -> None:
    """Show what a key had at the oldest version, and wherever it changed since. Exit code 1: it never was there."""
    from dynastate.frames import columns_of, key_from_json, row_to_json

    wanted = _parse(key)
    with (
        _opened(settings_of(endpoint, region, delta_table, snapshot_table), store, family, None) as state,
        progress("versions") as told,
    ):
        columns = columns_of(state)
        past = state.history(key_from_json(state.key_columns, wanted), told)
    found = [{"version": each.version, "row": row_to_json(columns, each.row)} for each in past]
    if as_json:
        show_json(found)
    else:
        for each in found:
            row = "removed" if each["row"] is None else json_text(each["row"])
            console().print(f"[bold]{each['version']:>8}[/]  {escape(row)}")
    if not found:
        typer.echo("it was not there at any version that can be read", err=True)
        raise typer.Exit(1)


@app.command()
def diff(
    store: Stores,
    before: Annotated[int, typer.Argument(metavar="V1", min=0)],
    after: Annotated[int, typer.Argument(metavar="V2", min=0)],
    *,
    family: Family = "",
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    as_json: AsJson = False,
) -> None:
    """Show the keys whose rows differ between two versions: what was there with a minus, what is there with a plus."""
    from dynastate.frames import columns_of, row_to_json

    settings = settings_of(endpoint, region, delta_table, snapshot_table)
    with _opened(settings, store, family, None) as state, progress("versions") as told:
        columns, keys = columns_of(state), state.key_columns
        found = [
            {
                "key": row_to_json(keys, each.key),
                "before": row_to_json(columns, each.before),
                "after": row_to_json(columns, each.after),
            }
            for each in state.diff(before, after, told)
        ]
    if as_json:
        show_json(found)
    else:
        for each in found:
            if each["before"] is not None:
                console().print(f"[red]- {escape(json_text(each['before']))}[/]")
            if each["after"] is not None:
                console().print(f"[green]+ {escape(json_text(each['after']))}[/]")


@app.command()
def export(
    store: Stores,
    *,
    form: Annotated[Format, typer.Option("--format", help="What to write.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="By default standard output."),
    ] = None,
    version: Version = None,
    family: Family = "",
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    as_json: Annotated[bool, typer.Option("--json", help="Say as JSON, on standard output, what was written.")] = False,
) -> None:
    """Write all rows of a version into a file: Parquet, or JSON with one row a line."""
    if output is None and (as_json or (form is Format.PARQUET and sys.stdout.isatty())):
        raise ConfigurationError("give a file with --output: standard output is a terminal, or taken by --json")
    settings = settings_of(endpoint, region, delta_table, snapshot_table)
    with _opened(settings, store, family, version) as state, progress("rows") as told, _written(output) as file:
        total = len(state)
        if form is Format.PARQUET:
            written = _write_parquet(state, file, lambda done: told(done, total))
        else:
            written = _write_lines(state, file, lambda done: told(done, total))
        said = {"store": store, "version": state.version, "rows": written, "file": str(output or "-")}
    if as_json:
        show_json(said)
    elif output is not None:
        typer.echo(f"{written:,} rows of version {said['version']} in {output}", err=True)


def _write_parquet(state: StateReader, output: Path | None, told: Any) -> int:
    from dynastate.frames import write_parquet

    if output is not None:
        return write_parquet(state, output, told)
    # Whatever is written to Parquet is a whole file, also where an error cuts it off: nothing goes out before the end.
    with tempfile.TemporaryFile() as whole:
        written = write_parquet(state, whole, told)
        whole.seek(0)
        shutil.copyfileobj(whole, sys.stdout.buffer)
    return written


def _write_lines(state: StateReader, output: Path | None, told: Any) -> int:
    from dynastate.frames import columns_of, row_to_json

    columns, written = columns_of(state), 0
    with output.open("w", encoding="utf-8") if output is not None else _standard_output() as file:
        for row in state:
            file.write(json_text(row_to_json(columns, row)) + "\n")
            written += 1
            if written % 1_000 == 0:
                told(written)
    return written


@contextmanager
def _written(output: Path | None) -> Iterator[Path | None]:
    """A file beside the one that is to be written, which it replaces once it is whole."""
    if output is None:
        yield None
        return
    if not output.name:
        raise ConfigurationError("--output is no file", file=str(output))
    beside = output.with_name(f"{output.name}.{os.getpid()}.part")
    try:
        yield beside
        beside.replace(output)
    except OSError as wrong:
        raise ConfigurationError(f"the file cannot be written: {wrong}") from wrong
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


@contextmanager
def _standard_output() -> Iterator[Any]:
    yield sys.stdout


@contextmanager
def _opened(settings: Settings, store: str, family: str, version: int | None) -> Iterator[StateReader]:
    from dynastate.state import open_state

    with open_state(
        store,
        endpoint=settings.endpoint,
        region=settings.region,
        family=family,
        delta_table=settings.delta_table,
        snapshot_table=settings.snapshot_table,
    ) as state:
        yield state if version is None else state.at(version)


def _parse(key: str) -> Any:
    try:
        return json.loads(key)
    except ValueError as broken:
        raise ConfigurationError(f"the key is no JSON: {broken}", key=key[:200]) from broken
