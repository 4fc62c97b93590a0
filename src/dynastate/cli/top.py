"""The command `top`."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dynastate.cli.keys import pressed
from dynastate.cli.options import Call, Namespace, command, number
from dynastate.cli.output import dollars, is_terminal, styled
from dynastate.cli.table import Table, headers
from dynastate.counts import plural
from dynastate.operations.monitoring.choices import Order

if TYPE_CHECKING:
    from dynastate.operations.monitoring.monitor import StoreActivity

app = typer.Typer(rich_help_panel="Inspect")

_MONITORED: Final = headers(
    "stores partitions version lag rows",
    batch_s="batch\ns",
    changes_s="changes\n/s",
    write_units_s="write\nunits/s",
    dollars_a_day="$\na day",
)
_REPORTED: Final = headers("commit_ms batch_ms throttles")
#: Columns that a narrow terminal does without, the first ones first.
_OPTIONAL: Final = ("partitions", "batch_ms", "changes_s")
#: Escape sequences of terminals: to the first line; delete the rest of the line, of the screen.
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


@command(
    app,
    "top orders",
    "top orders --sort lag --interval 10 --progress progress.json",
    "top orders --looks 1 --json | jq .lag",
    json="A JSON object a line, for each operator and look.",
)
def top(
    call: Call,
    namespace: Namespace,
    *,
    sort: Annotated[
        Order, typer.Option(metavar="COLUMN", help=f"Sort by {', '.join(Order)}; numbers with the largest first.")
    ] = Order.NAME,
    interval: Annotated[float, number(0.1, "S", "Seconds between two looks.")] = 5.0,
    looks: Annotated[int, number(0, "N", "How often to look; 0: until Ctrl-C.")] = 0,
    report: Annotated[
        str,
        typer.Option(
            "--progress", metavar="FILE", help="Spark's progress reports as they come, for commit ms and throttles."
        ),
    ] = "",
) -> None:
    """Monitor the stores of a running query: version, lag, batch time, changes, write units a second, dollars a day.

    Each look reads the ends of the version lists, a read unit or two for each store. The first one also reads the log
    of a query whose checkpoint is in DynamoDB; the first operator has its write units and dollars. How long commits
    take, and throttles, are not in the tables: give Spark's progress reports for them. In a terminal, q ends it, and
    s sorts by the next column.
    """
    from dynastate.engine import catalog
    from dynastate.operations.cost.log import read_log
    from dynastate.operations.lifecycle.runs import read_meta
    from dynastate.operations.monitoring.monitor import Monitor, in_order, with_report
    from dynastate.operations.monitoring.reports import ReportFile
    from dynastate.prices import Prices

    with call.engine() as (engine, tables), pressed() as wait, suppress(KeyboardInterrupt):
        names = catalog.of_namespace(tables, namespace, refuse_lost=True).current
        monitor, look = Monitor(engine, names, time.monotonic, Prices.of(call.settings)), 0
        monitor.log = read_log(tables, namespace.split("/")[0])
        reports = ReportFile(report) if report else None
        while True:
            look += 1
            activities = monitor.look()
            if reports is not None:
                runs = read_meta(tables, names[0]).epochs.keys()
                activities = with_report(activities, reports.last_batch(runs))
            _show(call, in_order(activities, sort), look, sort, with_reports=reports is not None)
            if look == looks:
                return
            ends_s = time.monotonic() + interval
            while (left_s := ends_s - time.monotonic()) > 0:
                key = wait(left_s)
                if key == "q":
                    return
                if key == "s":
                    sort = _next(sort)
                    _show(call, in_order(activities, sort), look, sort, with_reports=reports is not None)


def _next(order: Order) -> Order:
    every = list(Order)
    return every[(every.index(order) + 1) % len(every)]


def _show(call: Call, activities: Sequence[StoreActivity], look: int, order: Order, *, with_reports: bool) -> None:
    """Print a look: as lines of JSON, or a table, which in a terminal replaces the previous one."""
    if call.as_json:
        for activity in activities:
            typer.echo(json.dumps({"look": look} | asdict(activity)))
        sys.stdout.flush()
        return
    columns = _MONITORED | (_REPORTED if with_reports else {})
    rows = [asdict(each) | {"dollars_a_day": _dollars(each.dollars_a_day)} for each in activities]
    table = Table(rows, columns, call.width, figures=True).fit(group="stores", optional=_OPTIONAL)
    # In a file looks are compared; in a terminal the clock shows that the command still runs.
    clock = f"{datetime.now().astimezone():%H:%M:%S}, " if is_terminal() else ""
    totals = call.wrapped(f"{clock}{_totals(activities)}, by {order.value}")
    lines = [*((line, False) for line in totals), *table.lines()]
    texts = [styled(line, "bold" if is_header else "") for line, is_header in lines]
    if not is_terminal():
        typer.echo("\n".join(texts))
        return
    # One write over the previous look, so that nothing flickers.
    begin = _HOME + _END_OF_SCREEN if look == 1 else _HOME
    height = max(1, shutil.get_terminal_size().lines - 1)
    sys.stdout.write(begin + "".join(f"{text}{_END_OF_LINE}\n" for text in texts[:height]) + _END_OF_SCREEN)
    sys.stdout.flush()


def _totals(activities: Sequence[StoreActivity]) -> str:
    """All operators together."""
    texts = [plural(sum(each.rows for each in activities), "row")]
    if all(each.write_units_s is not None for each in activities):
        texts.append(f"{sum(each.write_units_s or 0 for each in activities):,.1f} write units/s")
        texts.append(f"${_dollars(sum(each.dollars_a_day or 0 for each in activities))} a day")
    return ", ".join(texts)


def _dollars(amount: float | None) -> Any:
    return None if amount is None else dollars(amount, 2)
