"""The commands `tables create` and `tables check`."""

from __future__ import annotations

import typer

from dynastate.cli.help import Group
from dynastate.cli.options import Call, command

app = typer.Typer()
group = typer.Typer(
    cls=Group,
    help="Create and check the two tables.",
    epilog="Examples:\n  dynastate tables create --endpoint http://127.0.0.1:8000\n  dynastate tables check",
)
app.add_typer(group, name="tables", rich_help_panel="Set up")


@command(group, "tables create --endpoint http://127.0.0.1:8000 --region us-east-1")
def create(call: Call) -> None:
    """Create the tables that do not exist, for development. In production use Terraform (infra/)."""
    from dynastate.dynamodb.admin import create_tables

    new_tables = create_tables(call.settings)
    names = (call.settings.delta_table, call.settings.snapshot_table)
    if call.json({name: {"made": name in new_tables} for name in names}):
        return
    for name in names:
        call.say(f"{name}: made" if name in new_tables else f"{name}: there already, left as it is")


@command(group, "tables check", "tables check --delta-table new-delta --snapshot-table new-group")
def check(call: Call) -> None:
    """List how the tables differ from what dynastate needs: both there, in use, with the right keys.

    Exit code 1: they differ.
    """
    from dynastate.dynamodb.admin import check_tables

    drift = check_tables(call.settings)
    if not call.json({"fit": not drift, "differs": drift}):
        for line in drift:
            call.say(f"differs {line}", "yellow")
        if not drift:
            call.say(f"{call.settings.delta_table} and {call.settings.snapshot_table}: fit")
    if drift:
        raise typer.Exit(1)
