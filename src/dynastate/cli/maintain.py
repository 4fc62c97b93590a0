"""Commands that maintain state: compact, clean, fork, adopt, drop."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dynastate.cli.options import Call, Namespace, a_namespace, command, number
from dynastate.cli.output import facts, in_options, progress
from dynastate.cli.scope import Scope, counted, current_stores, end, failures, look_again, on_each
from dynastate.cli.table import headers
from dynastate.counts import plural
from dynastate.errors import DynastateError
from dynastate.progress import ProgressCallback

if TYPE_CHECKING:
    from dynastate.operations.lifecycle.clean import Cleaned, CleanedCheckpoint
    from dynastate.operations.scope import Outcomes

app = typer.Typer(rich_help_panel="Maintain")

#: Versions that Spark retains by default (spark.sql.streaming.minBatchesToRetain).
RETAIN: Final = 100
#: Stores whose rows `compact` holds in memory.
COMPACTED_AT_ONCE: Final = 4
_COMPACTED: Final = headers("store version rows write_units")
_CLEANED: Final = headers(
    "store", items="items\ndeleted", write_units="write\nunits", oldest="oldest\nversion", held_by="held by\nversion"
)


@command(app, "compact orders", "compact orders/0/17 --json")
def compact(
    call: Call,
    scope: Scope,
    *,
    compression: Annotated[
        str, typer.Option("--compression", metavar="CODEC", help="As the query's setting: lz4, or zstd.")
    ] = "lz4",
) -> None:
    """Make snapshots of the newest versions now, so that readers and recovery have less to read.

    It is safe beside the running query. It holds the rows of up to four stores at a time in memory.
    """
    from dynastate.operations.lifecycle.compact import Compacted, compact_store, reason_for_none

    def work(store: str, report: ProgressCallback) -> Compacted | str:
        return compact_store(engine, tables, store, report) or reason_for_none(engine, store)

    with call.engine(compression=compression) as (engine, tables):
        outcomes = on_each(tables, current_stores(tables, scope), "buckets", work, at_once=COMPACTED_AT_ONCE)
    snapshots = {store: each for store, each in outcomes.results.items() if isinstance(each, Compacted)}
    described = [
        dict.fromkeys((field.name for field in fields(Compacted)), None)
        | {"store": store, "made": store in snapshots, "reason": each if isinstance(each, str) else None}
        | (asdict(snapshots[store]) if store in snapshots else {})
        for store, each in outcomes.results.items()
    ]
    is_json = call.json([*described, *failures(outcomes)])
    if not is_json and outcomes.stores == 1:
        for store, outcome in outcomes.results.items():
            text = outcome
            if isinstance(outcome, Compacted):
                text = f"snapshot of version {outcome.version}, {plural(outcome.write_units, 'write unit')}"
            call.say(f"{store}: {text}")
    elif not is_json:
        if snapshots:
            call.table([each for each in described if each["made"]], _COMPACTED, group="store")
        units = sum(each.write_units for each in snapshots.values())
        call.say(f"{counted(outcomes)}: {plural(len(snapshots), 'snapshot')} made, {plural(units, 'write unit')}")
    end(outcomes)


@command(app, "clean orders", "clean orders/0/17/default --retain 20")
def clean(
    call: Call,
    scope: Scope,
    *,
    retain: Annotated[
        int, number(2, "N", "Versions that stay readable, as spark.sql.streaming.minBatchesToRetain.")
    ] = RETAIN,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask about stores of earlier queries.")] = False,
) -> None:
    """Delete what the newest versions do not need, and what failed attempts and earlier queries left behind.

    It is safe beside the running query. Nothing brings back what is deleted. Stores of an earlier query, whose
    checkpoint was deleted, are listed first; it asks, and looks for 5 to 30 seconds whether a query writes to them.
    With a namespace it also deletes what failed writes left in checkpoints in DynamoDB.
    Exit code 1: it was not confirmed, and nothing was deleted.
    """
    from dynastate.operations.lifecycle.clean import (
        clean_checkpoints,
        clean_earlier,
        clean_store,
        describe_earlier,
        refuse_running,
    )
    from dynastate.operations.lifecycle.drop import look
    from dynastate.operations.scope import stores_in

    with call.engine() as (engine, tables):
        names = stores_in(tables, scope, may_have_files_only=True)
        earlier = names.earlier
        lists = look(tables, earlier)
        if earlier and not yes:
            typer.echo("\n".join(describe_earlier(tables, earlier, lists)), err=True)
            typer.confirm(f"Delete {plural(len(earlier), 'store')} of an earlier query?", err=True, abort=True)
        outcomes = on_each(tables, names.current, "stores", lambda store, _: clean_store(engine, tables, store, retain))
        if earlier and not outcomes.is_interrupted:
            with progress("stores") as report:
                refuse_running(tables, lists, report)
                outcomes += clean_earlier(tables, earlier, report)
        checkpoints, problem = [], ""
        if "/" not in scope and not outcomes.is_interrupted:
            try:
                checkpoints = clean_checkpoints(tables, scope)
            except DynastateError as error:
                engine.name_table(error)
                problem = in_options(error)
    _show_cleaned(call, outcomes, checkpoints)
    if problem:
        typer.echo(f"dynastate: the checkpoints were not cleaned: {problem}", err=True)
    end(outcomes)
    if problem:
        raise typer.Exit(2)


def _show_cleaned(call: Call, outcomes: Outcomes[Cleaned], checkpoints: Sequence[CleanedCheckpoint]) -> None:
    cleaned = list(outcomes.results.values())
    described = [facts(each) | {"held_by": each.held_by or None} for each in cleaned]
    if call.json([*described, *map(asdict, checkpoints), *failures(outcomes)]):
        return
    if outcomes.stores == 1:
        for store in cleaned:
            call.say(_described(store))
    else:
        if changed := [each for each in cleaned if (each.items or each.held_by) and not each.is_earlier]:
            rows = [asdict(each) | {"held_by": each.held_by or None} for each in changed]
            call.table(rows, _CLEANED, group="store")
        if any(each.held_by for each in changed):
            call.say("held by: the oldest version to retain, which needs those before it, as no snapshot lies between")
        for store in cleaned:
            if store.is_earlier:
                call.say(_described(store))
        items, units = sum(each.items for each in cleaned), sum(each.write_units for each in cleaned)
        call.say(f"{counted(outcomes)}: {plural(items, 'item')} deleted, {plural(units, 'write unit')}")
    for checkpoint in checkpoints:
        deleted = f"{plural(checkpoint.items, 'item')} of failed writes deleted"
        call.say(f"{checkpoint.checkpoint}: {deleted}, {plural(checkpoint.write_units, 'write unit')}")
    _say_left(call, {location for each in cleaned for location in each.other_locations})


def _described(cleaned: Cleaned) -> str:
    items = plural(cleaned.items, "item")
    if cleaned.is_earlier:
        state = f"is not deleted: {cleaned.kept}" if cleaned.kept else f"is deleted, with {items}"
        return f"{cleaned.store}: of an earlier query, {state}"
    units = plural(cleaned.write_units, "write unit")
    text = f"{cleaned.store}: {items} deleted, {units}; versions from {cleaned.oldest} on stay"
    if cleaned.held_by:
        text += f": version {cleaned.held_by}, the oldest to retain, needs them, as no snapshot lies between"
    return text


def _say_left(call: Call, locations: Collection[str]) -> None:
    for location in sorted(locations):
        call.say(f"objects of other tables were left: {location}")


@command(app, "fork orders orders-test", "fork orders orders-test --version 120 --json")
def fork(
    call: Call,
    namespace: Namespace,
    new: Annotated[
        str,
        typer.Argument(metavar="NEW", help="The same of the fork: a namespace without state.", callback=a_namespace),
    ],
    *,
    version: Annotated[int | None, number(1, "V", "By default the newest that all stores have.")] = None,
) -> None:
    """Copy all state of a query at a version to another namespace, for a test run, without writing rows.

    The fork shares parts and buckets with the query, which may run on. Each has its own changes from then on, and
    clean-up retains what the fork needs until it is dropped. A checkpoint in DynamoDB is copied, too, so that the fork
    can be started. Run again, the command resumes a fork that was cut off.
    """
    from dynastate.operations.lifecycle.fork import fork_namespace

    with call.tables() as tables, progress("stores") as report:
        result = fork_namespace(tables, namespace, new, version, progress=report, objects=call.settings.objects)
    if not call.json(facts(result)):
        call.say(
            f"{result.fork}: version {result.version} of {plural(result.stores, 'store')}; "
            f"{plural(result.items, 'item')} written, "
            f"{plural(result.write_units, 'write unit')}, {plural(result.shared_bytes, 'byte')} shared"
        )
        if result.checkpoint:
            call.say(f"start it with the checkpoint {result.checkpoint}, after batch {result.version - 1}")


@command(app, "adopt orders --checkpoint s3://bucket/orders", "adopt orders --checkpoint /data/orders --yes --json")
def adopt(
    call: Call,
    namespace: Namespace,
    *,
    checkpoint: Annotated[
        str, typer.Option(metavar="URL", help="The folder that the checkpoint was moved to; required.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Let the query write from another checkpoint location, after its checkpoint was moved.

    The old location is refused from then on, also a run that is under way there. Exit code 1: it was not confirmed.
    """
    from dynastate.engine.catalog import every_store
    from dynastate.operations.lifecycle.adopt import adopt_stores, locations_of, refuse_unready, state_location

    location = state_location(checkpoint)
    with call.tables() as tables:
        refuse_unready(tables, namespace, checkpoint)
        names = every_store(tables, namespace)
        locations = locations_of(tables, names)
        if not yes and locations != (location,):
            owner = " and ".join(each.removesuffix("/state") for each in locations) or "no query yet"
            question = (
                f"{namespace}, {plural(len(names), 'store')}, belongs to {owner}. From now on only a query with the "
                f"checkpoint {location.removesuffix('/state')} may write to it. Go on?"
            )
            typer.confirm(question, err=True, abort=True)
        with progress("stores") as report:
            result = adopt_stores(tables, names, location, report)
    if not call.json(asdict(result)):
        call.say(
            f"{namespace}, {plural(result.stores, 'store')}, belongs to {location.removesuffix('/state')}; "
            f"runs of other locations that are refused: {result.refused}, {plural(result.write_units, 'write unit')}"
        )
        if locations == (location,) and not result.write_units:
            call.say("it belonged to this checkpoint before: no adoption was needed")


@command(app, "drop orders-test", "drop orders-test --yes --json")
def drop(
    call: Call,
    namespace: Namespace,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Do not look whether a query writes. One that does is refused its next commit, fails, and cannot be "
            "restarted from its checkpoint.",
        ),
    ] = False,
) -> None:
    """Delete all state of a query, which must not run. Only a backup of the tables brings it back.

    It deletes the files of a checkpoint at dynastate://NAMESPACE/NAME, too. It looks twice, for 5 to 30 seconds, by how
    often the query has committed, and refuses while one writes. Exit code 1: it was not confirmed.
    """
    from dynastate.engine.catalog import every_store
    from dynastate.engine.checkpoint import checkpoint_items, first_writers
    from dynastate.operations.lifecycle.drop import (
        IS_WRITTEN,
        drop_checkpoints,
        drop_stores,
        locations_of_other_files,
        locations_of_others,
        look,
        refuse_made_meanwhile,
        refuse_written_files,
    )
    from dynastate.operations.pins import refuse_forked

    with call.tables() as tables, progress("stores") as report:
        writers = first_writers(tables, namespace)
        checkpoints = checkpoint_items(tables, namespace)
        names = every_store(tables, namespace, may_be_empty=bool(checkpoints))
        refuse_forked(tables, names)
        lists = {} if force else look(tables, names, report)
    stores = plural(len(names), "store")
    if not yes:
        must = "A query that runs fails, and cannot be restarted." if force else "The query must not run."
        files = "".join(f", and the checkpoint {checkpoint}" for checkpoint in checkpoints)
        typer.confirm(f"Delete all state of {namespace}, {stores}{files}? {must}", err=True, abort=True)
    with call.tables() as tables:
        if not force:
            look_again(tables, namespace, lists, IS_WRITTEN)
            refuse_written_files(tables, namespace, checkpoints)
        with progress("stores") as report:
            others = sorted({*locations_of_others(tables, names), *locations_of_other_files(tables, checkpoints)})
            items = drop_stores(tables, names, report)
            files_deleted = drop_checkpoints(tables, writers)
        refuse_made_meanwhile(tables, namespace)
    counts = {"stores": len(names), "items": items, "files": files_deleted}
    if not call.json({"namespace": namespace, **counts, "other_locations": others}):
        call.say(f"{namespace}: {stores} with {plural(items, 'item')} deleted")
        if files_deleted:
            call.say(f"{', '.join(map(str, checkpoints))}: {plural(files_deleted, 'checkpoint file')} deleted")
        _say_left(call, others)
