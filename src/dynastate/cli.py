"""The command `dynastate`. Each command calls one function of the package and shows what it returns."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import dynastate
from dynastate import cli_import, cli_look, cli_options, cli_upkeep
from dynastate.cli_options import (
    AsJson,
    DeltaTable,
    Endpoint,
    Region,
    SnapshotTable,
    console,
    opened_tables,
    settings_of,
    show_json,
)
from dynastate.errors import ConfigurationError, DynastateError
from dynastate.layout import Role
from dynastate.settings import DELTA_TABLE, SNAPSHOT_TABLE, Settings

# Exceptions that are not ours are for us to see: Python's own trace, whole and without values, which may be secrets.
app = typer.Typer(
    help="Spark Structured Streaming state in Amazon DynamoDB.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
tables = typer.Typer(help="Make and check the two tables.", no_args_is_help=True)
app.add_typer(tables, name="tables")
app.add_typer(cli_look.app)
app.add_typer(cli_upkeep.app)
app.add_typer(cli_import.app)

Price = Annotated[str, typer.Option(metavar="DOLLARS", help="For a million units, or a GB-month; see the settings.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dynastate {dynastate.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(as_json: AsJson = False) -> None:
    """Stream real flights through Spark, kill it in mid-batch, go on, and compare every value.

    With --json, what it tells meanwhile goes to standard error.
    """
    from dynastate.demo import run_demo

    figures = run_demo(stderr=as_json)
    if as_json:
        show_json({query: each.as_json() for query, each in figures.items()})


@app.command()
def local(
    *,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="TCP port on 127.0.0.1; 0: one that is free.")] = 8000,
    as_json: Annotated[
        bool, typer.Option("--json", help="One line with a JSON object: endpoint, region, spark, environment.")
    ] = False,
) -> None:
    """Run the embedded DynamoDB with both tables until Ctrl-C. It keeps everything in memory."""
    from dynastate.local import EmbeddedDynamoDB, credentials

    # An end by SIGTERM is to take the same way as Ctrl-C: out of the `with`.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), EmbeddedDynamoDB(port) as database:
        # It is reached from this machine only, so the sidecar may be run by the Python that runs now.
        conf = _plain_conf() | replace(database.settings, python=sys.executable).to_spark()
        if as_json:
            where = {"endpoint": database.endpoint, "region": database.settings.region}
            typer.echo(cli_options.json_text(where | {"spark": conf, "environment": credentials()}))
        else:
            _show_local(database.endpoint, conf, credentials())
        database.wait()


def _show_local(endpoint: str, conf: Mapping[str, str], environment: Mapping[str, str]) -> None:
    screen = console()
    screen.print(f"[bold green]embedded DynamoDB[/] at [bold]{endpoint}[/]; in memory, until Ctrl-C\n")
    screen.print("[dim]# Spark: in spark-defaults.conf, or each after --conf[/]")
    for name, value in conf.items():
        typer.echo(f"{name}={value}")
    screen.print("\n[dim]# in the shell that starts Spark[/]")
    for name, value in environment.items():
        typer.echo(f"export {name}={value}")


def _plain_conf() -> dict[str, str]:
    """Conf of the Spark that is installed here; none, and why on standard error, where dynastate has no jar for it."""
    try:
        from dynastate.spark import plain_conf

        return plain_conf()
    except ConfigurationError as none:
        typer.echo(f"dynastate: what follows is not all that Spark needs: {none}", err=True)
        return {}


@app.command()
def jar(as_json: AsJson = False) -> None:
    """Print the path of the jar for the Spark that is installed, and nothing else."""
    from dynastate.spark import jar_path

    path = str(jar_path())
    if as_json:
        show_json({"jar": path})
    else:
        typer.echo(path)


@app.command()
def verify(
    store: Annotated[str, typer.Argument(help="namespace/operator/partition/name, as in logs and error messages.")],
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    as_json: AsJson = False,
) -> None:
    """Read a store as recovery would, and list what is missing, broken or orphaned. It changes nothing.

    Exit code 0: nothing is missing or broken, 1: something is, 2: error. What is orphaned does no harm: attempts under
    way look like it, and clean-up takes away what others left.
    """
    from dynastate.verify import verify_store

    with cli_options.progress("reading") as told:
        report = verify_store(settings_of(endpoint, region, delta_table, snapshot_table), store, told)
    names: dict[Role, str] = {"delta": delta_table, "snapshot": snapshot_table}
    if as_json:
        show_json(report.to_json(names))
    else:
        for line in report.lines(names):
            console().print(escape(line))
    if not report.is_whole:
        raise typer.Exit(1)


@tables.command()
def create(
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    as_json: AsJson = False,
) -> None:
    """Make the tables that do not exist, for development. In production use Terraform (infra/)."""
    from dynastate.admin import create_tables

    settings = settings_of(endpoint, region, delta_table, snapshot_table)
    made = create_tables(settings)
    if as_json:
        show_json({name: {"made": name in made} for name in (settings.delta_table, settings.snapshot_table)})
        return
    for name in (settings.delta_table, settings.snapshot_table):
        console().print(f"{name}: [green]made[/]" if name in made else f"{name}: there already, left as it is")


@tables.command()
def check(
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    as_json: AsJson = False,
) -> None:
    """Tell how the tables differ from what the package needs. Exit code 0: they fit, 1: they differ, 2: error."""
    from dynastate.admin import check_tables

    settings = settings_of(endpoint, region, delta_table, snapshot_table)
    drift = check_tables(settings)
    if as_json:
        show_json({"fit": not drift, "differs": drift})
    for line in [] if as_json else drift:
        console().print(f"[yellow]differs[/] {escape(line)}")
    if drift:
        raise typer.Exit(1)
    if not as_json:
        console().print(f"{settings.delta_table} and {settings.snapshot_table}: [green]fit[/]")


@app.command()
def cost(
    namespace: Annotated[str, typer.Argument(help="First part of the names of a query's stores.")] = "",
    *,
    progress: Annotated[
        typer.FileText | None,
        typer.Option(
            metavar="FILE",
            encoding="utf-8",
            errors="replace",
            help="Progress reports of Spark, or its event log; '-' is standard input.",
        ),
    ] = None,
    every: Annotated[
        float | None, typer.Option(min=0.001, metavar="S", help="Seconds from batch to batch now; else by --progress.")
    ] = None,
    trigger: Annotated[
        float | None, typer.Option(min=0.001, metavar="S", help="Predict a day with this many seconds in their place.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Predict a day with so many shuffle partitions.")
    ] = None,
    as_json: AsJson = False,
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    write_price: Price = "",
    read_price: Price = "",
    storage_price: Price = "",
) -> None:
    """Tell what a query stores, what it has spent, and what it would spend if it ran otherwise.

    With a namespace: what its stores have in the tables, and what a month of that costs. With --progress: what the
    batches took that are reported there, and what a day of them costs; at a price for units that is given here, else
    at that of the query's own settings. With --every, --trigger or --partitions, and a namespace: what a day would take
    in the long run, as it runs now and as asked for, and with an item for each row in place of parts; by the formula of
    docs/operations.md, from the versions listed.
    """
    from dynastate import cost_report, spending, what_if
    from dynastate.prices import Prices
    from dynastate.tables import Meter

    if not namespace and progress is None:
        raise ConfigurationError("give a namespace, --progress FILE, or both; 'dynastate cost --help' says more")
    given = {
        "namespace": namespace,
        "endpoint": endpoint,
        "region": region,
        "deltaTable": delta_table,
        "snapshotTable": snapshot_table,
    }
    asked = {"writePrice": write_price, "readPrice": read_price, "storagePrice": storage_price}
    settings = Settings.from_spark(given | {name: price for name, price in asked.items() if price})
    prices, meter = Prices.of(settings), Meter()
    found: dict[int, spending.Holding] = {}
    spent: list[spending.Spent] = []
    if progress is not None:
        spent = spending.spent(progress, progress.name, prices if write_price or read_price else None)
    if namespace:
        with opened_tables(settings) as both, cli_options.progress("stores") as told:
            found = spending.holdings(both, namespace, meter, told)
    ways: list[what_if.Way] = []
    if every or trigger or partitions:
        known_s = every or next((each.interval_s for each in spent if each.interval_s), None)
        if not found or known_s is None:
            raise ConfigurationError(
                "a prediction needs a namespace, and --every SECONDS, or --progress with two batches of one run"
            )
        ways = what_if.ways(found, known_s, trigger, partitions)
    if as_json:
        show_json(cost_report.as_json(found, spent, ways, prices))
        return
    screen = Console(highlight=False)
    if found:
        screen.print(cost_report.stored_table(found, prices))
        screen.print(f"[dim]reading this took {meter.read_units:,} read units[/]")
    if spent:
        screen.print(cost_report.spent_table(spent, prices))
    if ways:
        screen.print(cost_report.ways_table(ways, prices))


def main() -> None:
    """Run one command. An error of dynastate is one line on standard error and exit code 2."""
    try:
        app()
    except DynastateError as error:
        typer.echo(f"dynastate: {' '.join(str(error).split())}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
