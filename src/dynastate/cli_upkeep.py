"""Commands for operators: compact, clean, fork, drop, top."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from dynastate.cli_options import (
    AsJson,
    DeltaTable,
    Endpoint,
    Region,
    SnapshotTable,
    Stores,
    console,
    opened_engine,
    opened_tables,
    progress,
    settings_of,
    show_json,
    show_table,
)
from dynastate.settings import DELTA_TABLE, SNAPSHOT_TABLE

if TYPE_CHECKING:
    from dynastate.watch import Watched

app = typer.Typer()

#: What Spark retains unless it is told otherwise (spark.sql.streaming.minBatchesToRetain).
RETAIN = 100


@app.command()
def compact(
    store: Stores,
    *,
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    as_json: AsJson = False,
) -> None:
    """Make a snapshot of the newest version now, so that readers and recovery have less to read.

    It may run beside the query, which goes on undisturbed. One store at a time is in memory.
    """
    from dynastate import stores, upkeep
    from dynastate.tables import Meter

    made = []
    with (
        opened_engine(settings_of(endpoint, region, delta_table, snapshot_table)) as (engine, tables),
        progress("buckets") as told,
    ):
        for name in stores.of_asked(tables, stores.parse(store), Meter()):
            found = upkeep.compact(engine, tables, name, told)
            made.append({"store": name, "made": found is not None} | (asdict(found) if found else {}))
    if as_json:
        show_json(made)
        return
    for each in made:
        if each["made"]:
            what = f"[green]snapshot of version {each['version']}[/], {each['write_units']:,} write units"
        else:
            what = "has a snapshot of its newest version, or another executor is making one"
        console().print(f"{escape(str(each['store']))}: {what}")


@app.command()
def clean(
    store: Stores,
    *,
    retain: Annotated[
        int, typer.Option(min=2, help="Versions that stay readable; as spark.sql.streaming.minBatchesToRetain.")
    ] = RETAIN,
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    as_json: AsJson = False,
) -> None:
    """Remove what the newest versions do not need, and what failed attempts left behind.

    It may run beside the query. What is removed cannot be gone back to.
    """
    from dynastate import stores, upkeep
    from dynastate.tables import Meter

    with (
        opened_engine(settings_of(endpoint, region, delta_table, snapshot_table)) as (engine, tables),
        progress("stores") as told,
    ):
        names = stores.of_asked(tables, stores.parse(store), Meter())
        cleaned = []
        for done, name in enumerate(names):
            told(done, len(names))
            cleaned.append(upkeep.clean(engine, tables, name, retain))
    if as_json:
        show_json([asdict(each) for each in cleaned])
        return
    for each in cleaned:
        console().print(
            f"{escape(each.store)}: {each.items:,} items removed, {each.write_units:,} write units; "
            f"versions from {each.oldest} on are there"
        )


@app.command()
def fork(
    namespace: Annotated[str, typer.Argument(help="First part of the names of a query's stores.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The same of the fork: a namespace without state.")],
    *,
    version: Annotated[
        int | None, typer.Option(min=1, metavar="V", help="By default the newest that all stores have.")
    ] = None,
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    as_json: AsJson = False,
) -> None:
    """Copy all state of a query at a version under another namespace, for a test run. No rows are written.

    The fork shares parts and buckets with the query, which may run on: each has its own changes from then on, and
    clean-up leaves what the fork needs until it is dropped. Run again, the command goes on with a fork that was cut
    off.
    """
    from dynastate import forks
    from dynastate.tables import Meter

    settings = settings_of(endpoint, region, delta_table, snapshot_table)
    for each in (namespace, new):
        replace(settings, namespace=each)  # refuses what is none
    with opened_tables(settings) as tables, progress("stores") as told:
        made = forks.fork(tables, namespace, new, version, Meter(), told)
    if as_json:
        show_json(asdict(made))
        return
    console().print(
        f"{escape(made.fork)}: [green]version {made.version} of {made.stores:,} stores[/]; "
        f"{made.items:,} items written, {made.write_units:,} write units, {made.shared_bytes:,} bytes shared"
    )


@app.command()
def drop(
    namespace: Annotated[str, typer.Argument(help="First part of the names of a query's stores.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    as_json: AsJson = False,
) -> None:
    """Delete all state of a query, which must not run. Nothing brings it back but a backup of the tables.

    Exit code 1: the answer was no.
    """
    from dynastate import forks, upkeep
    from dynastate.stores import of_namespace
    from dynastate.tables import Meter

    settings = replace(settings_of(endpoint, region, delta_table, snapshot_table), namespace=namespace)
    meter = Meter()
    with opened_tables(settings) as tables:
        names = [name for _, name in of_namespace(tables, namespace, meter)]
        forks.must_have_none(tables, names, meter)
        if not yes:
            typer.confirm(
                f"Delete all state of {namespace}, {len(names)} stores? The query must not run.", err=True, abort=True
            )
        with progress("items") as told:
            items = upkeep.drop_all(tables, names, meter, told)
    said = {"namespace": namespace, "stores": len(names), "items": items}
    if as_json:
        show_json(said)
    else:
        console().print(f"{escape(namespace)}: {len(names):,} stores with {items:,} items [red]deleted[/]")


@app.command()
def top(
    namespace: Annotated[str, typer.Argument(help="First part of the names of a query's stores.")],
    *,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds from one look to the next.")] = 5.0,
    looks: Annotated[int, typer.Option(min=0, help="How often to look; 0: until Ctrl-C.")] = 0,
    report: Annotated[
        str,
        typer.Option(
            "--progress", metavar="FILE", help="Progress reports of Spark as they come, for commit ms and throttles."
        ),
    ] = "",
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, for each operator and look.")
    ] = False,
) -> None:
    """Watch the stores of a running query: version, lag, changes and write units a second.

    Each look reads the version lists' ends, a read unit or two for each store. Commit times and throttles stand in no
    table: give Spark's progress reports for them.
    """
    from dynastate.spending import ReportFile
    from dynastate.stores import of_namespace
    from dynastate.tables import Meter
    from dynastate.upkeep import runs_of
    from dynastate.watch import Watch, with_report

    settings = replace(settings_of(endpoint, region, delta_table, snapshot_table), namespace=namespace)
    with opened_engine(settings) as (engine, tables), suppress(KeyboardInterrupt):
        names = [name for _, name in of_namespace(tables, namespace, Meter())]
        watch, look = Watch(engine, names, time.monotonic), 0
        reports = ReportFile(report) if report else None
        while True:
            look += 1
            found = watch.look()
            if reports is not None:
                found = with_report(found, reports.last_batch(runs_of(tables, names[0], Meter())))
            _show(found, look, as_json=as_json)
            if look == looks:
                return
            time.sleep(interval)


def _show(found: Iterable[Watched], look: int, *, as_json: bool) -> None:
    rows = [each.as_json() for each in found]
    if as_json:
        for row in rows:
            typer.echo(json.dumps({"look": look} | row))
        return
    screen = console()
    if screen.is_terminal:
        screen.clear()
    show_table(rows, [name for name in rows[0] if any(row[name] is not None for row in rows)])
