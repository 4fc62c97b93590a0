"""The command `checkpoint`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dynastate.cli.options import Call, command
from dynastate.cli.output import progress
from dynastate.cli.scope import look_again
from dynastate.counts import plural
from dynastate.settings import PREFIX

if TYPE_CHECKING:
    from dynastate.operations.lifecycle.move import Move

app = typer.Typer(rich_help_panel="Maintain")


@command(
    app,
    "checkpoint s3://bucket/orders dynastate://orders/query",
    "checkpoint dynastate://orders/query /data/orders --yes --json",
)
def checkpoint(
    call: Call,
    old: Annotated[
        str, typer.Argument(metavar="OLD", help="The folder with metadata, offsets and commits, or its URL.")
    ],
    new: Annotated[
        str, typer.Argument(metavar="NEW", help="Where it is to be: a folder, or dynastate://NAMESPACE/NAME.")
    ],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Do not look whether a query writes.")] = False,
) -> None:
    """Move a stopped query's checkpoint between a folder and DynamoDB. Its state stays as it is.

    It looks twice, for 5 to 30 seconds, by how often the query has committed, and refuses while one writes. Then it
    copies the files, and lets the query write from NEW only. OLD is left as it is. Run again, it completes a move that
    was cut off. Exit code 1: it was not confirmed.
    """
    from dynastate.operations.checkpoints import checkpoint_at, open_checkpoint
    from dynastate.operations.lifecycle.drop import look
    from dynastate.operations.lifecycle.move import IS_WRITTEN, move, plan_move

    with call.tables() as tables, progress("stores") as report:
        plan = plan_move(tables, open_checkpoint(tables, old), checkpoint_at(tables, new))
        lists = {} if force else look(tables, plan.stores, report)
    if not call.as_json:
        _show(call, plan)
    if not yes:
        question = f"Move the checkpoint to {plan.new}? Only a query with this checkpoint may write from now on."
        typer.confirm(question, err=True, abort=True)
    with call.tables() as tables:
        if lists:
            look_again(tables, plan.namespace, lists, IS_WRITTEN)
        with progress("files") as report:
            target = checkpoint_at(tables, new, call.settings.objects)
            result = move(tables, open_checkpoint(tables, old), target, plan, report)
    if not call.json(asdict(result)):
        call.say(
            f"{plural(result.files, 'file')} copied, {plural(result.bytes, 'byte')}, "
            f"{plural(result.requests, 'request')}; {result.namespace}, {plural(result.stores, 'store')}, belongs to "
            f"{result.new}; runs of other locations that are refused: {result.refused}"
        )
        if not plan.is_named:
            call.say(f"start the query with {PREFIX}namespace={plan.namespace}")


def _show(call: Call, plan: Move) -> None:
    """Print what would be copied."""
    copied = len(plan.files) - len(plan.missing)
    call.say(
        f"namespace {plan.namespace}, {plural(len(plan.stores), 'store')}: {plural(len(plan.missing), 'file')}, "
        f"{plural(plan.bytes, 'byte')} to copy from {plan.old} to {plan.new}"
        + (f"; {plural(copied, 'file')} there already" if copied else "")
    )
