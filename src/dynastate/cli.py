"""The command `dynastate`. Each command calls one function of the package and shows what it returns."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import closing, suppress
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import dynastate
from dynastate.errors import ConfigurationError, DynastateError
from dynastate.layout import Role
from dynastate.settings import DELTA_TABLE, PREFIX, SNAPSHOT_TABLE, Settings

# Exceptions that are not ours are for us to see: Python's own trace, whole and without values, which may be secrets.
app = typer.Typer(
    help="Spark Structured Streaming state in Amazon DynamoDB.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
tables = typer.Typer(help="Make and check the two tables.", no_args_is_help=True)
app.add_typer(tables, name="tables")

Endpoint = Annotated[str, typer.Option(metavar="URL", help="DynamoDB endpoint; by default the Region's own.")]
Region = Annotated[
    str, typer.Option(metavar="REGION", help="AWS Region; by default what boto3 finds (AWS_REGION, the profile).")
]
DeltaTable = Annotated[str, typer.Option(metavar="NAME", help="Name of the delta table.")]
SnapshotTable = Annotated[str, typer.Option(metavar="NAME", help="Name of the snapshot-group table.")]
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
def demo() -> None:
    """Stream real flights through Spark, kill it in mid-batch, go on, and compare every value."""
    from dynastate.demo import run_demo

    run_demo()


@app.command()
def local(
    *, port: Annotated[int, typer.Option(min=0, max=65_535, help="TCP port on 127.0.0.1; 0: one that is free.")] = 8000
) -> None:
    """Run the embedded DynamoDB with both tables until Ctrl-C. It keeps everything in memory."""
    from dynastate.local import REGION, EmbeddedDynamoDB, credentials
    from dynastate.spark import CHECKPOINT_FORMAT, PROVIDER_CLASS

    # An end by SIGTERM is to take the same way as Ctrl-C: out of the `with`.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), EmbeddedDynamoDB(port) as database:
        console = Console(highlight=False, soft_wrap=True)
        console.print(f"[bold green]embedded DynamoDB[/] at [bold]{database.endpoint}[/]; in memory, until Ctrl-C\n")
        console.print("[dim]# Spark: in spark-defaults.conf, or each after --conf[/]")
        console.print(f"spark.jars={escape(_jar())}")
        console.print(f"spark.sql.streaming.stateStore.providerClass={PROVIDER_CLASS}")
        console.print(f"{CHECKPOINT_FORMAT}=2")
        console.print(f"{PREFIX}endpoint={database.endpoint}")
        console.print(f"{PREFIX}region={REGION}\n")
        console.print("[dim]# in the shell that starts Spark[/]")
        for name, value in credentials().items():
            console.print(f"export {name}={value}")
        database.wait()


def _jar() -> str:
    from dynastate.spark import jar_path

    try:
        return str(jar_path())
    except DynastateError as none:
        return f"<the path that 'dynastate jar' prints; now: {none}>"


@app.command()
def jar() -> None:
    """Print the path of the jar for the Spark that is installed, and nothing else."""
    from dynastate.spark import jar_path

    typer.echo(jar_path())


@app.command()
def verify(
    store: Annotated[str, typer.Argument(help="namespace/operator/partition/name, as in logs and error messages.")],
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Read a store as recovery would, and list what is missing, broken or orphaned. It changes nothing.

    Exit code 0: nothing is missing or broken, 1: something is, 2: error. What is orphaned does no harm: attempts under
    way look like it, and clean-up takes away what others left.
    """
    from rich.progress import Progress

    from dynastate.verify import verify_store

    settings = Settings(delta_table=delta_table, snapshot_table=snapshot_table, region=region, endpoint=endpoint)
    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("reading", total=None)
        report = verify_store(settings, store, lambda done, total: progress.update(task, completed=done, total=total))
    names: dict[Role, str] = {"delta": delta_table, "snapshot": snapshot_table}
    console = Console(highlight=False, soft_wrap=True)
    if as_json:
        typer.echo(json.dumps(report.to_json(names), indent=2))
    else:
        for line in report.lines(names):
            console.print(escape(line))
    if not report.is_whole:
        raise typer.Exit(1)


@tables.command()
def create(
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
) -> None:
    """Make the tables that do not exist, for development. In production use Terraform (infra/)."""
    from dynastate.admin import create_tables

    settings = Settings(delta_table=delta_table, snapshot_table=snapshot_table, region=region, endpoint=endpoint)
    made = create_tables(settings)
    console = Console(highlight=False, soft_wrap=True)
    for name in (settings.delta_table, settings.snapshot_table):
        console.print(f"{name}: [green]made[/]" if name in made else f"{name}: there already, left as it is")


@tables.command()
def check(
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
) -> None:
    """Tell how the tables differ from what the package needs. Exit code 0: they fit, 1: they differ, 2: error."""
    from dynastate.admin import check_tables

    settings = Settings(delta_table=delta_table, snapshot_table=snapshot_table, region=region, endpoint=endpoint)
    drift = check_tables(settings)
    console = Console(highlight=False, soft_wrap=True)
    for line in drift:
        console.print(f"[yellow]differs[/] {escape(line)}")
    if drift:
        raise typer.Exit(1)
    console.print(f"{settings.delta_table} and {settings.snapshot_table}: [green]fit[/]")


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
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object.")] = False,
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    write_price: Price = "",
    read_price: Price = "",
    storage_price: Price = "",
) -> None:
    """Tell what a query stores, and what it has spent.

    With a namespace: what its stores have in the tables, and what a month of that costs. With --progress: what the
    batches took that are reported there, and what a day of them costs; at a price for units that is given here, else
    at that of the query's own settings.
    """
    from dynastate import cost_report, spending
    from dynastate.prices import Prices
    from dynastate.tables import BotoTables, Meter

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
        with closing(BotoTables(settings)) as both:
            found = spending.holdings(both, namespace, meter)
    if as_json:
        typer.echo(json.dumps(cost_report.as_json(found, spent, prices)))
        return
    console = Console(highlight=False)
    if found:
        console.print(cost_report.stored_table(found, prices))
        console.print(f"[dim]reading this took {meter.read_units:,} read units[/]")
    if spent:
        console.print(cost_report.spent_table(spent, prices))


def main() -> None:
    """Run one command. An error of dynastate is one line on standard error and exit code 2."""
    try:
        app()
    except DynastateError as error:
        typer.echo(f"dynastate: {' '.join(str(error).split())}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
