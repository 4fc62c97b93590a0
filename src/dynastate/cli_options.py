"""What commands share: options, where the tables are, progress on a terminal, and how things are shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dynastate.settings import DELTA_TABLE, SNAPSHOT_TABLE, Settings

if TYPE_CHECKING:
    from dynastate.store import Engine
    from dynastate.tables import BotoTables

Endpoint = Annotated[str, typer.Option(metavar="URL", help="DynamoDB endpoint; by default the Region's own.")]
Region = Annotated[
    str, typer.Option(metavar="REGION", help="AWS Region; by default AWS_REGION, or what boto3 finds (the profile).")
]
DeltaTable = Annotated[str, typer.Option(metavar="NAME", help="Name of the delta table.")]
SnapshotTable = Annotated[str, typer.Option(metavar="NAME", help="Name of the snapshot-group table.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs: JSON on standard output, and nothing else.")]
Store = Annotated[str, typer.Argument(help="namespace/operator/partition/name; 'dynastate stores' lists them.")]
Stores = Annotated[
    str,
    typer.Argument(
        help="namespace/operator/partition/name, or namespace/operator for all its partitions "
        "(namespace/operator/*/name where it has several stores a partition)."
    ),
]
Family = Annotated[
    str, typer.Option(metavar="NAME", help="Column family: a state variable; by default the only one there is.")
]
Key = Annotated[str, typer.Argument(help='The key as an object of JSON, such as \'{"user": "a"}\'.')]


def settings_of(
    endpoint: str, region: str, delta_table: str = DELTA_TABLE, snapshot_table: str = SNAPSHOT_TABLE
) -> Settings:
    return Settings(delta_table=delta_table, snapshot_table=snapshot_table, region=region, endpoint=endpoint)


@contextmanager
def opened_tables(settings: Settings) -> Iterator[BotoTables]:
    from dynastate.tables import BotoTables

    with closing(BotoTables(settings)) as tables:
        yield tables


@contextmanager
def opened_engine(settings: Settings) -> Iterator[tuple[Engine, BotoTables]]:
    """An engine, whose errors name tables as the user knows them."""
    from dynastate.errors import DynastateError
    from dynastate.store import Engine

    with opened_tables(settings) as tables, closing(Engine.of(tables, settings)) as engine:
        try:
            yield engine, tables
        except DynastateError as failed:
            engine.name_table(failed)
            raise


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on standard error, where that is a terminal: told how much is done, of how much."""
    from rich.progress import Progress

    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def show_json(value: Any) -> None:
    typer.echo(json_text(value, indent=2))


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON for people. What stands for bytes that are no UTF-8 is escaped, since no file takes it as it is."""
    return json.dumps(value, indent=indent, ensure_ascii=False).encode(errors="backslashreplace").decode()


def show_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], title: str | None = None) -> None:
    """Objects as the rows of a table: numbers to the right, with commas between thousands."""
    table = Table(title=title)
    for column in columns:
        is_number = bool(rows) and all(isinstance(row[column], (int, float, NoneType)) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(_cell(row[column])) for column in columns))
    console().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if value is None else str(value)
