"""The command `import`."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.markup import escape

from dynastate.cli_options import (
    AsJson,
    DeltaTable,
    Endpoint,
    Region,
    SnapshotTable,
    console,
    progress,
    settings_of,
    show_json,
)
from dynastate.errors import ConfigurationError
from dynastate.settings import DELTA_TABLE, SNAPSHOT_TABLE

app = typer.Typer()


@app.command("import")
def import_(
    old: Annotated[str, typer.Argument(help="The checkpoint of a query on HDFS-backed or RocksDB state; only read.")],
    new: Annotated[str, typer.Argument(help="Where the checkpoint goes with which the query goes on; empty, or none.")],
    *,
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="First part of the stores' names; by default made of NEW's path.")
    ] = "",
    conf: Annotated[
        list[str] | None,
        typer.Option(
            "--conf",
            metavar="KEY=VALUE",
            help="A conf for the local Spark, as spark.hadoop.*; may come more than once.",
        ),
    ] = None,
    endpoint: Endpoint = "",
    region: Region = "",
    delta_table: DeltaTable = DELTA_TABLE,
    snapshot_table: SnapshotTable = SNAPSHOT_TABLE,
    as_json: AsJson = False,
) -> None:
    """Bring the state of a stopped query into DynamoDB, and make the checkpoint with which it goes on there.

    It starts a local Spark; on a cluster call dynastate.import_checkpoint(spark, OLD, NEW) in its place.
    """
    from dynastate.java import check_java

    check_java("import")
    from pyspark.sql import SparkSession

    from dynastate.importing import import_checkpoint
    from dynastate.spark import configure

    builder = SparkSession.builder.master("local[*]").appName("dynastate import").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
    for each in conf or []:
        name, is_pair, value = each.partition("=")
        if not is_pair:
            raise ConfigurationError("--conf takes KEY=VALUE", got=repr(each))
        builder = builder.config(name, value)
    settings = replace(settings_of(endpoint, region, delta_table, snapshot_table), namespace=namespace)
    for name, value in settings.to_spark().items():
        builder = builder.config(name, value)
    spark = configure(builder).getOrCreate()
    try:
        with progress("stores") as told:
            done = import_checkpoint(spark, old, new, namespace or None, told)
    finally:
        spark.stop()
    if as_json:
        show_json(asdict(done))
        return
    console().print(
        f"[green]imported[/] {done.stores:,} stores with {done.rows:,} rows ({done.bytes:,} bytes) "
        f"as they were after batch {done.batch:,}: {done.write_units:,} write units, {done.seconds:,} s"
    )
    console().print("start the query with the new checkpoint, and with")
    console().print(escape(f"  checkpointLocation={done.checkpoint}"))
    for name, value in done.confs.items():
        console().print(escape(f"  {name}={value}"))
