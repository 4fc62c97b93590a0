"""The command `rollback`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dynastate.cli.options import Call, command, number
from dynastate.cli.output import progress
from dynastate.cli.scope import look_again
from dynastate.counts import plural

if TYPE_CHECKING:
    from dynastate.operations.lifecycle.rollback import Rollback

app = typer.Typer(rich_help_panel="Maintain")


@command(app, "rollback s3://bucket/orders --to 41", "rollback /data/orders --to 41 --yes --json")
def rollback(
    call: Call,
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="The folder with metadata, offsets and commits, or its URL.")
    ],
    *,
    to: Annotated[int, number(0, "BATCH", "The last batch that stays; required.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Do not look whether a query writes.")] = False,
) -> None:
    """Take a stopped query back to an earlier batch: its checkpoint, and with that its state.

    Later batches run again at the next start, from the offsets of that batch. It refuses a batch whose state is no
    longer there. It looks twice, for 5 to 30 seconds, by how often the query has committed, and refuses while one
    writes. A copy of offsets and commits stays in the checkpoint. Exit code 1: it was not confirmed.
    """
    from dynastate.operations.checkpoints import open_checkpoint
    from dynastate.operations.lifecycle.drop import look
    from dynastate.operations.lifecycle.rollback import IS_WRITTEN, plan_rollback, roll_back

    with call.tables() as tables, progress("stores") as report:
        plan = plan_rollback(tables, open_checkpoint(tables, checkpoint), to, report)
        lists = {} if force else look(tables, plan.stores, report)
    if not call.as_json:
        _show(call, plan)
    if not yes:
        typer.confirm(f"Undo {plural(len(plan.undone), 'batch')}?", err=True, abort=True)
    with call.tables() as tables:
        if lists:
            look_again(tables, plan.namespace, lists, IS_WRITTEN)
        with progress("batches") as report:
            roll_back(open_checkpoint(tables, checkpoint), plan, report)
    if not call.json(asdict(plan) | {"stores": len(plan.stores)}):
        call.say(f"the next start continues with batch {plan.to.batch + 1}; the copy is in {plan.copy}")


def _show(call: Call, plan: Rollback) -> None:
    """Print what would change."""
    call.say(
        f"namespace {plan.namespace}, {plural(len(plan.stores), 'store')}: version {plan.to.batch + 1} of each is there"
    )
    for text, batch in (("back to", plan.to), ("from", plan.last)):
        call.say(f"{text} batch {batch.batch}, which began {batch.began}", "bold")
        for number_, source in enumerate(batch.offsets):
            call.say(f"  source {number_}: {source}")
