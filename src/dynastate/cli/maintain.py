"""Commands that maintain state: compact, clean, fork, adopt, drop."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dynastate.cli.options import Call, Namespace, command, not_empty
from dynastate.cli.output import progress
from dynastate.cli.scope import Scope, counted, current_stores, end, failures, on_each
from dynastate.progress import ProgressCallback

if TYPE_CHECKING:
    from dynastate.operations.clean import Cleaned

app = typer.Typer(rich_help_panel="Maintain")

#: What Spark retains by default (spark.sql.streaming.minBatchesToRetain).
RETAIN: Final = 100
#: Stores whose rows `compact` holds in memory.
COMPACTED_AT_ONCE: Final = 4
_COMPACTED: Final = {"store": "store", "version": "version", "rows": "rows", "write_units": "write\nunits"}
_CLEANED: Final = {
    "store": "store",
    "items": "items\ndeleted",
    "write_units": "write\nunits",
    "oldest": "oldest\nversion",
    "held_by": "held by\nversion",
}


@command(app, "compact orders", "compact orders/0/17 --json")
def compact(call: Call, scope: Scope) -> None:
    """Make snapshots of the newest versions now, so that readers and recovery have less to read.

    It is safe beside the running query. It holds the rows of up to four stores at a time in memory.
    """
    from dynastate.operations.compact import Compacted, compact_store, reason_for_none

    def work(store: str, report: ProgressCallback) -> Compacted | str:
        return compact_store(engine, tables, store, report) or reason_for_none(engine, store)

    with call.engine() as (engine, tables):
        found = on_each(tables, current_stores(tables, scope), "buckets", work, COMPACTED_AT_ONCE)
    made = {store: each for store, each in found.done.items() if isinstance(each, Compacted)}
    described = [
        {"store": store, "made": True} | asdict(made[store])
        if store in made
        else {"store": store, "made": False, "reason": each}
        for store, each in found.done.items()
    ]
    if call.json([*described, *failures(found)]):
        pass
    elif found.stores == 1:
        for row in described:
            what = row.get("reason") or f"snapshot of version {row['version']}, {row['write_units']:,} write units"
            call.say(f"{row['store']}: {what}")
    else:
        if made:
            call.table([each for each in described if each["made"]], _COMPACTED, group="store")
        units = sum(each.write_units for each in made.values())
        call.say(f"{counted(found)}: {len(made):,} snapshots made, {units:,} write units")
    end(found)


@command(app, "clean orders", "clean orders/0/17/default --retain 20")
def clean(
    call: Call,
    scope: Scope,
    *,
    retain: Annotated[
        int,
        typer.Option(
            min=2, metavar="N", help="Versions that stay readable, as spark.sql.streaming.minBatchesToRetain."
        ),
    ] = RETAIN,
) -> None:
    """Delete what the newest versions do not need, and what failed attempts and earlier queries left behind.

    It is safe beside the running query. Nothing brings back what is deleted.
    """
    from dynastate.dynamodb.meter import Meter
    from dynastate.operations.clean import clean_earlier, clean_store
    from dynastate.operations.scope import stores_in

    with call.engine() as (engine, tables):
        names = stores_in(tables, scope, Meter())
        found = on_each(tables, names.current, "stores", lambda store, _: clean_store(engine, tables, store, retain))
        if names.earlier and not found.is_interrupted:
            # The last first, one by one, so that the others are still found.
            earlier = names.earlier[::-1]
            found += on_each(tables, earlier, "stores", lambda store, _: clean_earlier(engine, tables, [store])[0], 1)
    cleaned = list(found.done.values())
    if call.json([*map(asdict, cleaned), *failures(found)]):
        pass
    elif found.stores == 1:
        for each in cleaned:
            if each.is_earlier:
                call.say(_earlier(each))
                continue
            held = (
                f": version {each.held_by}, the oldest to retain, needs them, as no snapshot lies between"
                if each.held_by
                else ""
            )
            call.say(
                f"{each.store}: {each.items:,} items deleted, {each.write_units:,} write units; "
                f"versions from {each.oldest} on stay{held}"
            )
    else:
        if changed := [each for each in cleaned if (each.items or each.held_by) and not each.is_earlier]:
            rows = [asdict(each) | {"held_by": each.held_by or None} for each in changed]
            call.table(rows, _CLEANED, group="store")
        if any(each.held_by for each in changed):
            call.say("held by: the oldest version to retain, which needs those before it, as no snapshot lies between")
        for each in cleaned:
            if each.is_earlier:
                call.say(_earlier(each))
        items, units = sum(each.items for each in cleaned), sum(each.write_units for each in cleaned)
        call.say(f"{counted(found)}: {items:,} items deleted, {units:,} write units")
    end(found)


def _earlier(cleaned: Cleaned) -> str:
    what = f"is kept: {cleaned.kept}" if cleaned.kept else f"is deleted, with {cleaned.items:,} items"
    return f"{cleaned.store}: of an earlier query, {what}"


@command(app, "fork orders orders-test", "fork orders orders-test --version 120 --json")
def fork(
    call: Call,
    namespace: Namespace,
    new: Annotated[
        str,
        typer.Argument(metavar="NEW", help="The same of the fork: a namespace without state.", callback=not_empty),
    ],
    *,
    version: Annotated[
        int | None, typer.Option(min=1, metavar="V", help="By default the newest that all stores have.")
    ] = None,
) -> None:
    """Copy all state of a query at a version to another namespace, for a test run, without writing rows.

    The fork shares parts and buckets with the query, which may run on: each has its own changes from then on, and
    clean-up retains what the fork needs until it is dropped. Run again, the command resumes a fork that was cut off.
    """
    from dynastate.dynamodb.meter import Meter
    from dynastate.operations.fork import fork_namespace

    for each in (namespace, new):
        replace(call.settings, namespace=each)  # refuses what is not a namespace
    with call.tables() as tables, progress("stores") as report:
        made = fork_namespace(tables, namespace, new, version, Meter(), report)
    if not call.json(asdict(made)):
        call.say(
            f"{made.fork}: version {made.version} of {made.stores:,} stores; {made.items:,} items written, "
            f"{made.write_units:,} write units, {made.shared_bytes:,} bytes shared"
        )


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
    from dynastate.dynamodb.meter import Meter
    from dynastate.engine.catalog import every_store
    from dynastate.operations.adopt import adopt_stores, locations_of, state_location

    call, meter = replace(call, settings=replace(call.settings, namespace=namespace)), Meter()
    location = state_location(checkpoint)
    with call.tables() as tables:
        names = every_store(tables, namespace, meter)
        before = locations_of(tables, names, meter)
        if not yes and before != (location,):
            now = " and ".join(each.removesuffix("/state") for each in before) or "no query yet"
            question = (
                f"{namespace}, {len(names)} stores, belongs to {now}. From now on only a query with the checkpoint "
                f"{location.removesuffix('/state')} may write to it. Go on?"
            )
            typer.confirm(question, err=True, abort=True)
        with progress("stores") as report:
            made = adopt_stores(tables, names, location, meter, report)
    if not call.json(asdict(made)):
        call.say(
            f"{namespace}: {made.stores:,} stores belong to {location.removesuffix('/state')}, "
            f"runs of other locations that are refused: {made.refused}, {made.write_units:,} write units"
        )


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

    It looks twice, for 5 to 30 seconds, by how often the query has committed, and refuses while one writes. Exit code
    1: it was not confirmed.
    """
    from dynastate.dynamodb.meter import Meter
    from dynastate.engine.catalog import every_store
    from dynastate.operations.drop import drop_stores, look, refuse_written, seconds_to_look
    from dynastate.operations.pins import refuse_forked

    call, meter = replace(call, settings=replace(call.settings, namespace=namespace)), Meter()
    with call.tables() as tables, progress("stores") as report:
        names = every_store(tables, namespace, meter, with_lost=True)
        refuse_forked(tables, names, meter)
        before = {} if force else look(tables, names, meter, report)
    if not yes:
        must = "A query that runs fails, and cannot be restarted." if force else "The query must not run."
        typer.confirm(f"Delete all state of {namespace}, {len(names)} stores? {must}", err=True, abort=True)
    with call.tables() as tables:
        if not force:
            seconds = seconds_to_look(before)
            typer.echo(f"looking for {seconds:.0f} s whether a query writes to {namespace}", err=True)
            with progress("stores") as report:
                refuse_written(tables, before, seconds, meter, report)
        with progress("stores") as report:
            items = drop_stores(tables, names, meter, report)
    if not call.json({"namespace": namespace, "stores": len(names), "items": items}):
        call.say(f"{namespace}: {len(names):,} stores with {items:,} items deleted")
