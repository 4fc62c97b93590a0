"""The command `ui`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dynastate.cli.options import Call, command
from dynastate.settings import Settings
from dynastate.ui import check_requirements

app = typer.Typer(rich_help_panel="Inspect")


def _namespaces(names: list[str] | None) -> list[str]:
    return [Settings(namespace=each).namespace for each in names or ()]


@command(app, "ui orders", "ui orders clicks --port 0 --no-browser", "ui orders --json | jq -r .url", wide=False)
def ui(
    call: Call,
    namespaces: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAMESPACE...", help="Namespaces to show. By default all.", callback=_namespaces),
    ] = None,
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, metavar="PORT", help="TCP port on 127.0.0.1; 0: a free one.")
    ] = 4848,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no browser.")] = False,
    report: Annotated[
        str, typer.Option("--progress", metavar="FILE", help="Spark's progress reports as they come, for throttles.")
    ] = "",
) -> None:
    """Show state, its history, cost and health on a web page, until Ctrl-C.

    The page is on this machine only, and its URL has a token. It only reads, and the reader's policy suffices; without
    a namespace it lists all stores, which needs dynamodb:Scan.
    """
    check_requirements()
    from dynastate.operations.monitoring.reports import ReportFile
    from dynastate.ui.server import serve

    if report:
        ReportFile(report).last_batch(())  # refuses what cannot be read

    def say(url: str) -> None:
        if not call.json({"url": url}):
            call.say(f"{url}  until Ctrl-C", "bold")
        sys.stdout.flush()

    serve(call.settings, namespaces or [], port, reports=report, open_browser=not (no_browser or call.as_json), say=say)
