"""Commands to try dynastate and to set it up: local, jar, demo."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Annotated

import typer

from dynastate.cli.options import Call, command
from dynastate.cli.output import json_text
from dynastate.errors import ConfigurationError
from dynastate.settings import PREFIX

app = typer.Typer(rich_help_panel="Set up")


@command(
    app,
    "local",
    "local --port 0 --json | jq -r .endpoint",
    tables=False,
    wide=False,
    json="One line with a JSON object: endpoint, region, objects, spark, environment.",
)
def local(
    call: Call,
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, metavar="PORT", help="TCP port on 127.0.0.1; 0: a free one.")
    ] = 8000,
) -> None:
    """Run the embedded DynamoDB with both tables, and an S3 bucket, until Ctrl-C. It keeps everything in memory."""
    from dynastate.dynamodb.embedded import BUCKET, EmbeddedDynamoDB, credentials

    # SIGTERM ends it as Ctrl-C does: out of the `with`.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), EmbeddedDynamoDB(port) as database:
        # It is reached from this machine only, so the Python that runs now may run the sidecar.
        conf = _plain_conf() | replace(database.settings, python=sys.executable).to_spark()
        where = {"endpoint": database.endpoint, "region": database.settings.region, "objects": f"s3://{BUCKET}"}
        if call.as_json:
            typer.echo(json_text(where | {"spark": conf, "environment": credentials()}))
        else:
            call.say(f"embedded DynamoDB at {database.endpoint}; in memory, until Ctrl-C", "bold")
            typer.echo("\n# Spark: in spark-defaults.conf, or each after --conf")
            typer.echo("".join(f"{name}={value}\n" for name, value in conf.items()))
            typer.echo(f"# large parts go to S3 with {PREFIX}objects={where['objects']}\n")
            typer.echo("# in the shell that starts Spark, if it has other credentials")
            typer.echo("\n".join(f"export {name}={value}" for name, value in credentials().items()))
        sys.stdout.flush()
        database.wait()


def _plain_conf() -> dict[str, str]:
    """Conf of the installed Spark; if there is no jar for it, an empty conf, with the reason on standard error."""
    try:
        from dynastate.spark.configure import plain_conf

        return plain_conf()
    except ConfigurationError as none:
        typer.echo(f"dynastate: what follows is not all that Spark needs: {none}", err=True)
        return {}


@command(app, "jar", "jar --json | jq -r .jar", tables=False, wide=False, json="A JSON object with the path under jar.")
def jar(call: Call) -> None:
    """Print the path of the jar for the Spark that is installed, and nothing else."""
    from dynastate.spark.jar import jar_path

    path = str(jar_path())
    if not call.json({"jar": path}):
        typer.echo(path)


@command(
    app,
    "demo --ui",
    "demo --json > figures.json",
    tables=False,
    wide=False,
    json="A JSON object with the figures of each query; all else goes to standard error.",
)
def demo(
    call: Call,
    *,
    ui: Annotated[bool, typer.Option("--ui", help="Show its state on a page at the end, until Ctrl-C.")] = False,
) -> None:
    """Stream real flights through Spark, kill it in mid-batch, resume, and compare every value."""
    from dynastate.demo import run_demo

    figures = run_demo(stderr=call.as_json, with_page=ui)
    call.json({query: each.as_json() for query, each in figures.items()})
