"""The command `copy`."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynastate.cli.options import Call, Namespace, command, naming_target
from dynastate.cli.output import progress
from dynastate.counts import plural
from dynastate.errors import ConfigurationError

if TYPE_CHECKING:
    from dynastate.operations.regions.copy import Copied, CopyPlan

app = typer.Typer(rich_help_panel="Maintain")


def _of_target(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, help=f"{text} By default as at the source.")


@command(app, "copy orders --to-region eu-central-1", "copy orders --aws-profile old --to-aws-profile new")
def copy(
    call: Call,
    namespace: Namespace,
    *,
    to_delta_table: Annotated[str, _of_target("NAME", "The target's delta table.")] = "",
    to_snapshot_table: Annotated[str, _of_target("NAME", "Its snapshot-group table.")] = "",
    to_region: Annotated[str, _of_target("REGION", "Its Region.")] = "",
    to_endpoint: Annotated[str, _of_target("URL", "Its DynamoDB endpoint.")] = "",
    to_objects: Annotated[
        str, typer.Option(metavar="URL", help="Where copies of objects in S3 are, if there are some.")
    ] = "",
    to_aws_profile: Annotated[str, _of_target("NAME", "AWS profile of the target.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Copy all state of a stopped query to other tables, in another Region or account too.

    It shows the cost, asks, copies, and compares both ends item by item. Run again, it completes a copy that was cut
    off. Exit code 1: it was not confirmed.
    """
    from dynastate.dynamodb.boto_tables import open_tables
    from dynastate.operations.regions.copy import copy_stores, plan_copy

    profile = call.origins.aws_profile
    options: dict[str, Any] = {
        "delta_table": to_delta_table,
        "snapshot_table": to_snapshot_table,
        "region": to_region,
        "endpoint": to_endpoint,
        "objects": to_objects,
    }
    with naming_target(options):
        other = replace(call.settings, **{name: value for name, value in options.items() if value})
    if other == call.settings and to_aws_profile in ("", profile):
        raise ConfigurationError(
            "the target is the source; give another table, Region, endpoint or AWS profile with the options --to-…"
        )
    with (
        open_tables(call.settings, profile=profile) as source,
        open_tables(other, profile=to_aws_profile or profile) as target,
    ):
        with progress("stores") as report:
            plan = plan_copy(
                source, target, namespace, call.settings, progress=report, objects=other.objects if to_objects else ""
            )
        if not call.as_json:
            call.say(
                f"{namespace}: {plural(len(plan.stores), 'store')}, {plural(plan.items, 'item')} "
                f"({plural(plan.bytes, 'byte')}){_objects(plan)} to {' and '.join(target.names.values())}"
            )
            call.say(
                f"it takes about {plural(plan.write_units, 'write unit')} and {plural(plan.read_units, 'read unit')}: "
                f"${plan.dollars:,.2f}"
            )
        if not yes:
            typer.confirm(f"Copy {namespace}? The query must not run.", err=True, abort=True)
        with progress("stores") as report:
            result = copy_stores(source, target, plan, call.settings, progress=report)
    if not call.json(asdict(result)):
        call.say(
            f"{namespace}: {plural(result.stores, 'store')}, {plural(result.items, 'item')}{_objects(result)} are "
            f"equal at both ends; {result.written:,} written, {plural(result.write_units, 'write unit')}, "
            f"{plural(result.read_units, 'read unit')}, ${result.dollars:,.2f}"
        )


def _objects(sizes: CopyPlan | Copied) -> str:
    objects = f" and {plural(sizes.objects, 'object')} ({plural(sizes.object_bytes, 'byte')}) of S3"
    files = f" and {plural(sizes.checkpoint_files, 'checkpoint file')}"
    return (objects if sizes.objects else "") + (files if sizes.checkpoint_files else "")
