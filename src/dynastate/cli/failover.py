"""The command `failover`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from dynastate.cli.options import Call, Namespace, command, naming_target
from dynastate.cli.output import facts, in_options, progress
from dynastate.counts import plural
from dynastate.errors import ConfigurationError
from dynastate.settings import Settings

if TYPE_CHECKING:
    from dynastate.operations.regions.failover import Failover
    from dynastate.operations.regions.replicas import Side

app = typer.Typer(rich_help_panel="Maintain")


@command(
    app,
    "failover orders --region us-east-1 --to-region us-east-2",
    "failover orders --to-region us-east-2 --checkpoint s3://state/orders",
)
def failover(
    call: Call,
    namespace: Namespace,
    *,
    to_region: Annotated[str, typer.Option(metavar="REGION", help="The Region to continue in.")] = "",
    to_endpoint: Annotated[
        str,
        typer.Option(metavar="URL", help="Its DynamoDB endpoint. By default AWS_ENDPOINT_URL, or the Region's own."),
    ] = "",
    checkpoint: Annotated[
        str, typer.Option(metavar="URL", help="The query's checkpoint, as it is read in that Region.")
    ] = "",
) -> None:
    """Check whether a query can continue in another Region, and list the steps. Nothing is changed.

    It compares the tables on both sides, and the checkpoint with the state that is there. The first Region need not
    answer. Exit code 1: the query cannot continue there.
    """
    from dynastate.dynamodb.boto_tables import open_tables
    from dynastate.operations.checkpoints import open_checkpoint
    from dynastate.operations.regions.failover import plan_failover

    options = {"region": to_region, "endpoint": to_endpoint}
    # What is wrong with the source is among the plan's problems: an error is the target's.
    with naming_target(options), open_tables(_target(call.settings, options)) as target, progress("stores") as report:
        files = open_checkpoint(target, checkpoint) if checkpoint else None
        plan = plan_failover(open_tables, call.settings, target, namespace, checkpoint=files, progress=report)
    if not call.json(asdict(plan) | {"source": facts(plan.source), "target": facts(plan.target)}):
        _show(call, plan)
    if plan.problems:
        raise typer.Exit(1)


def _target(source: Settings, options: Mapping[str, str]) -> Settings:
    """The settings of the target. The source's endpoint is its Region's, so another Region does not get it."""
    from dynastate.dynamodb.client import endpoint_of, region_of

    region, endpoint = options["region"], options["endpoint"]
    default = "" if region else source.endpoint
    target = replace(source, region=region or source.region, endpoint=endpoint or default)
    target_region = region_of(target)
    if target_region == region_of(source) and endpoint.rstrip("/") in ("", endpoint_of(source).rstrip("/")):
        details = {"region": target_region} if target_region else {}
        raise ConfigurationError("the query would stay where it is; give another Region with --to-region", **details)
    return target


def _show(call: Call, plan: Failover) -> None:
    for word, side in (("from", plan.source), ("to", plan.target)):
        call.say(f"{word} {side.region or 'the first Region'}: {_about(side, plan.problems)}")
    behind = plan.source.version - plan.target.version
    if behind > 0:
        call.say(f"{plural(behind, 'version')} of {plan.source.region} cannot be opened in {plan.target.region}")
    if plan.batch is not None:
        again = f"; {plan.undone:,} of the checkpoint's batches run again" if plan.undone else ""
        call.say(f"the query continues with batch {plan.batch}{again}")
    call.say(f"{plural(plan.requests, 'request')}, {plural(plan.read_units, 'read unit')}")
    for problem in plan.problems:
        call.say(f"cannot continue: {problem}", "red")
    for number, step in enumerate(plan.steps, 1):
        call.say(f"{number}. {step}")


def _about(side: Side, plan_problems: Collection[str]) -> str:
    """The state of a side, and the problems that the plan does not list."""
    wrong = [each for each in (*side.problems, *map(str, side.unready)) if each not in plan_problems]
    if wrong and not side.committed:
        return in_options("; ".join(wrong))
    kind = {"strong": "strongly consistent replicas", "asynchronous": "asynchronous replicas", "none": "no replicas"}
    others = f" with {', '.join(side.replicas)}" if side.replicas else ""
    state = f"newest version {side.version}, committed {side.committed or 'never'}"
    return "; ".join([f"{kind[side.replication]}{others}", state, *wrong])
