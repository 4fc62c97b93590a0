"""The command `config`."""

from __future__ import annotations

from typing import Final

import typer

from dynastate.cli.options import Call, command
from dynastate.cli.table import headers

app = typer.Typer(rich_help_panel="Set up")

_VALUE: Final = headers("name value origin")


@command(app, "config", "config --profile prod --json")
def config(call: Call) -> None:
    """Show the tables, Region, endpoint and AWS profile of commands, and where each value is from.

    It sends no request.
    """
    origins = call.origins
    values = [{"name": each.name, "value": each.value or None, "origin": each.origin} for each in origins.complete()]
    if call.json({"file": origins.file or None, "profile": origins.profile or None, "values": values}):
        return
    typer.echo(origins.of_file)
    call.table(values, _VALUE)
