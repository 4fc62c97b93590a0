"""The command `import`."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from dynastate.cli.options import Call, command, not_empty
from dynastate.cli.output import progress
from dynastate.counts import plural
from dynastate.errors import ConfigurationError

app = typer.Typer(rich_help_panel="Maintain")


def _folder(metavar: str, text: str) -> Any:
    return typer.Argument(metavar=metavar, help=text, callback=not_empty)


@command(
    app,
    "import s3://old/checkpoint s3://new/checkpoint --namespace orders",
    "import old new --conf spark.hadoop.fs.s3a.endpoint=http://127.0.0.1",
    name="import",
)
def import_(
    call: Call,
    old: Annotated[str, _folder("OLD", "Checkpoint of a query on HDFS-backed or RocksDB state; only read.")],
    new: Annotated[str, _folder("NEW", "Folder for the checkpoint to resume from; empty, or not there.")],
    *,
    namespace: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="First part of the stores' names. By default made of NEW's path.", callback=not_empty
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="A conf for the local Spark; may be given several times."),
    ] = None,
) -> None:
    """Import the state of a stopped query into DynamoDB, and make a checkpoint to resume it from.

    It starts a local Spark; on a cluster call dynastate.import_checkpoint(spark, OLD, NEW) instead.
    """
    from dynastate.spark.java import check_java

    check_java("import")
    from dynastate.spark.configure import plain_conf
    from dynastate.spark.importing import import_checkpoint
    from dynastate.spark.session import local_session

    pairs = dict(_pair(each) for each in conf or [])
    settings = replace(call.settings, namespace=namespace or "")
    with local_session("dynastate import", pairs, settings) as spark, progress("stores") as report:
        done = import_checkpoint(spark, old, new, namespace, report)
    if call.json(asdict(done)):
        return
    call.say(
        f"imported {plural(done.stores, 'store')} with {plural(done.rows, 'row')} ({plural(done.bytes, 'byte')}) "
        f"as they were after batch {done.batch:,}: {plural(done.write_units, 'write unit')}, {done.seconds:,} s"
    )
    call.say("start the query with the new checkpoint, and with")
    for name, value in {"checkpointLocation": done.checkpoint, **plain_conf(), **done.confs}.items():
        typer.echo(f"  {name}={value}")


def _pair(text: str) -> tuple[str, str]:
    name, is_pair, value = text.partition("=")
    if not is_pair:
        raise ConfigurationError("--conf takes KEY=VALUE", got=repr(text))
    return name, value
