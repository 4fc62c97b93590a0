"""The command `config`."""

from __future__ import annotations

from typing import Final

import typer

from dynastate.cli.options import Call, command
from dynastate.cli.origins import unknown_variables
from dynastate.cli.table import headers

app = typer.Typer(rich_help_panel="Set up")

_VALUE: Final = headers("name value origin")


@command(app, "config", "config --profile prod --json")
def config(call: Call) -> None:
    """Show the tables, Region, endpoint and AWS profile of commands, and where each value is from.

    It sends no request. Exit code 1: the AWS profile is not in AWS's files.
    """
    origins = call.origins
    values = [{"name": each.name, "value": each.value or None, "origin": each.origin} for each in origins.complete()]
    problem, unknown = origins.problem, list(unknown_variables())
    if not call.json(
        {
            "file": origins.file or None,
            "profile": origins.profile or None,
            "values": values,
            "unknown_variables": unknown,
            "problem": problem or None,
        }
    ):
        call.say(origins.of_file)
        call.table(values, _VALUE)
        if unknown:
            call.say(f"variables that no command reads: {', '.join(unknown)}")
        if problem:
            call.say(problem, "red")
    if problem:
        raise typer.Exit(1)
