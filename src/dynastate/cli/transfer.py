"""The commands that move or change a stopped query's state, with a local Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynastate.cli.options import Call, a_namespace, command, not_empty, number
from dynastate.cli.output import facts, progress
from dynastate.counts import plural
from dynastate.errors import ConfigurationError

if TYPE_CHECKING:
    from dynastate.progress import ProgressCallback
    from dynastate.spark.transfer.repartition import Estimate
    from dynastate.spark.transfer.rows import Change, Difference
    from dynastate.spark.transfer.steps import Moved

app = typer.Typer(rich_help_panel="Maintain")


def _folder(metavar: str, text: str) -> Any:
    return typer.Argument(metavar=metavar, help=text, callback=not_empty)


New = Annotated[str, _folder("NEW", "Folder for the checkpoint to resume from; empty, or not there.")]
OnDynastate = Annotated[str, _folder("OLD", "Checkpoint of a query on dynastate; only read.")]
Namespace = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="First part of the stores' names. By default made of NEW's path.", callback=not_empty
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A conf for the local Spark; may be given several times."),
]


Operator = Annotated[int, number(0, "N", "The stateful operator whose rows are new.")]
Store = Annotated[
    str | None, typer.Option(metavar="NAME", help="The store, where the operator has several.", callback=not_empty)
]


@command(
    app,
    "import s3a://old/checkpoint s3a://new/checkpoint --namespace orders",
    "import old new --conf spark.hadoop.fs.s3a.endpoint=http://127.0.0.1",
    name="import",
)
def import_(
    call: Call,
    old: Annotated[str, _folder("OLD", "Checkpoint of a query on HDFS-backed or RocksDB state; only read.")],
    new: New,
    *,
    namespace: Namespace = None,
    conf: Conf = None,
) -> None:
    """Import the state of a stopped query into DynamoDB, and make a checkpoint to resume it from.

    It starts a local Spark; on a cluster call dynastate.import_checkpoint(spark, OLD, NEW) instead.
    """
    with _spark(call, "import", conf, old=old, new=new, namespace=namespace, origin="spark") as (spark, report):
        from dynastate.spark.transfer.importing import import_checkpoint

        result = import_checkpoint(spark, old, new, namespace=namespace, progress=report)
    _end(call, result, "imported")


@command(
    app,
    "repartition s3a://old s3a://new --partitions 400 --namespace orders2",
    "repartition old new --partitions 8 --namespace orders-8 --yes",
)
def repartition(
    call: Call,
    old: OnDynastate,
    new: New,
    *,
    partitions: Annotated[int, number(1, "N", "The new number of shuffle partitions; required.")],
    namespace: Namespace = None,
    conf: Conf = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Give a stopped query another number of shuffle partitions, in a namespace and a checkpoint of its own.

    It shows the cost, and asks. It starts a local Spark; on a cluster call dynastate.repartition(spark, OLD, NEW, N)
    instead. Exit code 1: it was not confirmed.
    """

    def confirm(cost: Estimate) -> None:
        if not call.as_json:
            call.say(
                f"namespace {cost.namespace}: {plural(cost.rows, 'row')} ({plural(cost.bytes, 'byte')}, compressed) in "
                f"{plural(cost.stores, 'store')}, to {plural(cost.new_stores, 'store')}"
            )
            call.say(
                f"it takes about {plural(cost.write_units, 'write unit')} and {plural(cost.read_units, 'read unit')}: "
                f"${cost.dollars:,.2f}"
            )
        if not yes:
            typer.confirm(f"Repartition to {plural(partitions, 'partition')}?", err=True, abort=True)

    with _spark(call, "repartition", conf, old=old, new=new, namespace=namespace) as (spark, report):
        from dynastate.spark.transfer.repartition import repartition as run

        result = run(spark, old, new, partitions, namespace=namespace, progress=report, confirm=confirm)
    _end(call, result, "repartitioned")


@command(
    app,
    "export-checkpoint s3a://old s3a://new --store rocksdb",
    "export-checkpoint old new --store hdfs",
    name="export-checkpoint",
)
def export_checkpoint(
    call: Call,
    old: OnDynastate,
    new: New,
    *,
    store: Annotated[str, typer.Option(metavar="rocksdb|hdfs", help="Spark's own store; required.")],
    conf: Conf = None,
) -> None:
    """Export the state of a stopped query to Spark's own store, with which it goes on without dynastate.

    The state in DynamoDB and OLD are only read. It starts a local Spark; on a cluster call
    dynastate.export_checkpoint(spark, OLD, NEW, STORE) instead.
    """
    with _spark(call, "export-checkpoint", conf, old=old, new=new, to_store=store) as (spark, report):
        from dynastate.spark.transfer.export import export_checkpoint as run

        result = run(spark, old, new, store, progress=report)
    _end(call, result, "exported")


@command(
    app,
    "migrate old new --with changes:note --schema 'note string' --dry-run",
    "migrate old new --with changes:note --schema 'note string'",
)
def migrate(
    call: Call,
    old: OnDynastate,
    new: New,
    *,
    with_: Annotated[
        str, typer.Option("--with", metavar="FUNCTION", help="As module:function, of key and value; required.")
    ],
    schema: Annotated[str, typer.Option(metavar="DDL", help="Columns of the new values; required.")],
    namespace: Namespace = None,
    operator: Operator = 0,
    store: Store = None,
    conf: Conf = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the first rows that change, and write nothing.")
    ] = False,
) -> None:
    """Give a stopped query another schema of its state: a Python function makes each row's new value.

    The function gets two dicts, key and value, and returns a dict with the new columns, or None to delete the row. It
    starts a local Spark; on a cluster call dynastate.migrate(spark, OLD, NEW, function, schema) instead.
    """
    change = _function(with_)
    with _spark(call, "migrate", conf, old=old, new=new, namespace=namespace, operator=operator) as (spark, report):
        from dynastate.spark.transfer.rows import migrate as run
        from dynastate.spark.transfer.rows import preview

        if dry_run:
            _show(call, preview(spark, old, new, change, schema=schema, operator=operator, store=store))
            return
        result = run(
            spark, old, new, change, schema=schema, namespace=namespace, operator=operator, store=store, progress=report
        )
    _end(call, result, "migrated")


@command(
    app,
    "bootstrap template new --from s3://bucket/counts --namespace orders",
    "bootstrap template new --from counts.parquet --operator 1",
)
def bootstrap(
    call: Call,
    template: Annotated[str, _folder("TEMPLATE", "Checkpoint of the query after a batch or more; only read.")],
    new: New,
    *,
    parquet: Annotated[str, typer.Option("--from", metavar="PARQUET", help="File or folder with the rows; required.")],
    namespace: Namespace = None,
    operator: Operator = 0,
    store: Store = None,
    conf: Conf = None,
) -> None:
    """Give a new query state from Parquet: NEW is TEMPLATE with these rows in place of an operator's own.

    The rows have the columns key and value as structs, or the columns of both. It starts a local Spark; on a cluster
    call dynastate.bootstrap(spark, TEMPLATE, NEW, frame) instead, with any DataFrame.
    """
    arguments: dict[str, Any] = {"old": template, "new": new, "operator": operator, "rows": parquet}
    with _spark(call, "bootstrap", conf, namespace=namespace, origin="", **arguments) as (spark, report):
        from dynastate.spark.transfer.jvm import errors_of_spark
        from dynastate.spark.transfer.rows import bootstrap as run

        with errors_of_spark():
            frame = spark.read.parquet(parquet)
        result = run(spark, template, new, frame, namespace=namespace, operator=operator, store=store, progress=report)
    _end(call, result, "bootstrapped")


@command(app, "recover orders template new --namespace orders-2")
def recover(
    call: Call,
    lost: Annotated[
        str, typer.Argument(metavar="NAMESPACE", help="Of the query whose checkpoint is lost.", callback=a_namespace)
    ],
    template: Annotated[
        str, _folder("TEMPLATE", "New checkpoint of the same query, after a batch or more; only read.")
    ],
    new: New,
    *,
    namespace: Namespace = None,
    conf: Conf = None,
) -> None:
    """Let a query whose checkpoint is lost go on: NEW is TEMPLATE with the newest state of NAMESPACE.

    Offsets and watermark are those of TEMPLATE. It starts a local Spark; on a cluster call
    dynastate.recover_checkpoint(spark, NAMESPACE, TEMPLATE, NEW) instead.
    """
    with _spark(call, "recover", conf, old=template, new=new, namespace=namespace, lost=lost, origin="") as (
        spark,
        report,
    ):
        from dynastate.spark.transfer.recovery import recover_checkpoint

        result = recover_checkpoint(spark, lost, template, new, namespace=namespace, progress=report)
    _end(call, result, "recovered")


def _function(text: str) -> Change:
    """The function that `module:function` names; modules of the current folder are found."""
    module, _, name = text.partition(":")
    sys.path.insert(0, "")
    try:
        function: Change = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as missing:
        raise ConfigurationError("--with takes MODULE:FUNCTION, of a module that Python finds", got=text) from missing
    finally:
        sys.path.remove("")
    return function


def _show(call: Call, differences: list[Difference]) -> None:
    """Print the rows of a dry run."""
    if call.json({"differences": [each.as_json() for each in differences]}):
        return
    if not differences:
        call.say("none of the first rows changes")
    for difference in differences:
        call.say(f"key {difference.key}")
        call.say(f"  before {difference.before}")
        call.say(f"  after  {difference.after if difference.after is not None else 'deleted'}")


@contextmanager
def _spark(
    call: Call, command: str, conf: list[str] | None, *, namespace: str | None = None, **others: Any
) -> Iterator[tuple[Any, ProgressCallback]]:
    """A local Spark for one command, and the function that reports its progress. `others` are of its `Arguments`."""
    from dynastate.spark.java import check_java

    check_java(command)
    from dynastate.spark.launch import launch_conf
    from dynastate.spark.session import local_session
    from dynastate.spark.transfer.early import Arguments, refuse_early

    pairs = dict(_pair(each) for each in conf or [])
    settings = replace(call.settings, namespace=namespace or "")
    merged = launch_conf() | pairs | settings.to_spark()
    refuse_early(Arguments(command, conf=merged, namespace=settings.namespace, **others))
    with local_session(f"dynastate {command}", pairs, settings) as spark, progress("tasks") as report:
        yield spark, report


def _end(call: Call, result: Moved, verb: str) -> None:
    """Print what was moved, and what the query needs."""
    if call.json(facts(result)):
        return
    from dynastate.format.checkpoint import SCHEME
    from dynastate.spark.configure import plain_conf, stored_checkpoint_conf

    units = f"{plural(result.write_units, 'write unit')}, " if result.namespace else ""
    call.say(
        f"{verb} {plural(result.stores, 'store')} with {plural(result.rows, 'row')} ({plural(result.bytes, 'byte')}): "
        f"{units}{result.seconds:,} s"
    )
    call.say(f"start the query with the new checkpoint, after batch {result.batch:,}, and with")
    conf = plain_conf() if result.namespace else {}
    if result.checkpoint.startswith(SCHEME):
        conf |= stored_checkpoint_conf()
    for name, value in {"checkpointLocation": result.checkpoint, **conf, **result.confs}.items():
        typer.echo(f"  {name}={value}")


def _pair(text: str) -> tuple[str, str]:
    name, is_pair, value = text.partition("=")
    if not is_pair:
        raise ConfigurationError("--conf takes KEY=VALUE", got=repr(text))
    return name, value
