"""The command `cost`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dynastate.cli.options import Call, Namespace, command
from dynastate.cli.output import dollars, progress
from dynastate.errors import ConfigurationError
from dynastate.settings import Settings

if TYPE_CHECKING:
    from dynastate.operations.reports import QueryUsage
    from dynastate.operations.scenarios import Scenario
    from dynastate.operations.usage import StorageUsage
    from dynastate.prices import Prices

app = typer.Typer(rich_help_panel="Inspect")

#: Characters of a header, about; figures are as wide.
_HEADER_CHARS: Final = 12


def _price(of: str) -> Any:
    return typer.Option(metavar="USD", help=f"Price of {of}, in US dollars.")


@command(app, "cost orders", "cost --progress progress.json", "cost orders --every 10 --trigger 60 --partitions 400")
def cost(
    call: Call,
    namespace: Namespace = "",
    *,
    progress_file: Annotated[
        typer.FileText | None,
        typer.Option(
            "--progress",
            metavar="FILE",
            encoding="utf-8",
            errors="replace",
            help="Spark's progress reports or event log; - for standard input.",
        ),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="S", help="Seconds between two batches now. By default from --progress."),
    ] = None,
    trigger: Annotated[
        float | None, typer.Option(min=0.001, metavar="S", help="Predict a day with a batch every S seconds.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Predict a day with N shuffle partitions.")
    ] = None,
    write_price: Annotated[str, _price("a million write units")] = "",
    read_price: Annotated[str, _price("a million read units")] = "",
    storage_price: Annotated[str, _price("a GB-month")] = "",
) -> None:
    """Show what a query stores and has spent, and predict what it would spend with other settings.

    With a namespace: what its stores have in the tables, and what a month of that costs. With --progress: what the
    reported batches took, and what a day of them costs, at the prices given here or else at those of the query. With
    a namespace and --every, --trigger or --partitions: what a day would take in the long run, as the query runs now, as
    asked for, and with an item for each row, by the formula of docs/operations.md from the listed versions.
    """
    from dynastate.dynamodb.meter import Meter
    from dynastate.operations.reports import usage_of_queries
    from dynastate.operations.scenarios import predict_scenarios
    from dynastate.operations.usage import StorageUsage, usage_of_namespace
    from dynastate.prices import Prices

    if not namespace and progress_file is None:
        raise ConfigurationError("give a namespace, --progress FILE, or both; 'dynastate cost --help' says more")
    given = {"writePrice": write_price, "readPrice": read_price, "storagePrice": storage_price, "namespace": namespace}
    prices = Prices.of(Settings.from_spark({name: text for name, text in given.items() if text}))
    found: dict[int, StorageUsage] = {}
    spent: list[QueryUsage] = []
    meter = Meter()
    if progress_file is not None:
        spent = usage_of_queries(progress_file, progress_file.name, prices if write_price or read_price else None)
    if namespace:
        with call.tables() as tables, progress("stores") as report:
            found = usage_of_namespace(tables, namespace, meter, report)
    scenarios: list[Scenario] = []
    if every or trigger or partitions:
        known_s = every or next((each.interval_s for each in spent if each.interval_s), None)
        if not found or known_s is None:
            raise ConfigurationError(
                "a prediction needs a namespace, and --every SECONDS, or --progress with two batches of one run"
            )
        scenarios = predict_scenarios(found, known_s, trigger, partitions)
    if call.json(_as_json(found, spent, scenarios, prices)):
        return
    columns = [(f"operator {operator}", each) for operator, each in sorted(found.items())]
    if len(columns) > 1:
        columns.append(("all", sum(found.values(), StorageUsage())))
    _show(call, "stored in both tables", [(name, _stored(each, prices)) for name, each in columns])
    if found:
        call.say(f"reading this took {meter.read_units:,} read units")
    _show(call, "spent by the batches reported", [(each.name or each.query, _spent(each, prices)) for each in spent])
    days = [each.as_json(prices) for each in scenarios]
    _show(
        call,
        "a day in the long run, predicted",
        [(each["way"].replace(" ", "\n", 1), _predicted(each)) for each in days],
    )


def _show(call: Call, title: str, columns: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Print a table of objects with an object a column, under its name, and a figure of each a row."""
    if columns:
        rows = [
            {"": figure, **{str(at): each[figure] for at, (_, each) in enumerate(columns)}} for figure in columns[0][1]
        ]
        headers = {"": "", **{str(at): "\n".join(wrap(name, _HEADER_CHARS)) for at, (name, _) in enumerate(columns)}}
        call.table(rows, headers, title=title, figures=True)


def _stored(each: StorageUsage, prices: Prices) -> dict[str, Any]:
    workload = each.workload()
    return {
        "stores": each.stores,
        "rows of state": each.rows,
        "versions listed": each.versions,
        "items": each.stored.items,
        "bytes": each.stored.bytes,
        "storage, $ a month": dollars(prices.dollars_a_month(each.stored)),
        "write units of these versions": each.write_units,
        "their price, $": dollars(prices.nanodollars(each.write_units, 0) / 1e9, 6),
        "changed rows a batch": f"{workload['changed_rows']:,.0f}",
        "bytes a changed row": f"{workload['row_bytes']:,.1f}",
        "bytes a row in a snapshot": f"{workload['state_row_bytes']:,.1f}",
        "before compression, times": f"{workload['compression']:,.2f}",
    }


def _spent(each: QueryUsage, prices: Prices) -> dict[str, Any]:
    return {
        "batches": each.batches,
        "seconds a batch": None if each.interval_s is None else f"{each.interval_s:,.1f}",
        "requests": each.requests,
        "write units": each.write_units,
        "read units": each.read_units,
        "write units of deletes": each.delete_units,
        "price, $": dollars(each.dollars, 6),
        "price of a day, $": dollars(each.dollars_a_day),
        "items stored": each.stored.items,
        "bytes stored": each.stored.bytes,
        "storage, $ a month": dollars(prices.dollars_a_month(each.stored)),
    }


def _predicted(day: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "requests": day["requests"],
        "write units": day["write_units"],
        "read units": day["read_units"],
        "write units of deletes": day["delete_units"],
        "price, $": dollars(day["dollars_a_day"]),
        "bytes stored": day["bytes"],
        "storage, $ a month": dollars(day["storage_dollars_a_month"]),
    }


def _as_json(
    found: Mapping[int, StorageUsage], spent: Sequence[QueryUsage], scenarios: Sequence[Scenario], prices: Prices
) -> dict[str, Any]:
    """Everything, under names that programs can rely on."""
    return {
        "predicted": [each.as_json(prices) for each in scenarios],
        "operators": [{"operator": operator} | _storage_json(each, prices) for operator, each in found.items()],
        "queries": [
            {
                "query": each.query,
                "name": each.name,
                "batches": each.batches,
                "interval_s": each.interval_s,
                "requests": each.requests,
                "write_units": each.write_units,
                "read_units": each.read_units,
                "delete_units": each.delete_units,
                "dollars": each.dollars,
                "dollars_a_day": each.dollars_a_day,
                "items": each.stored.items,
                "bytes": each.stored.bytes,
                "storage_dollars_a_month": prices.dollars_a_month(each.stored),
            }
            for each in spent
        ],
    }


def _storage_json(each: StorageUsage, prices: Prices) -> dict[str, Any]:
    return {
        "stores": each.stores,
        "rows": each.rows,
        "versions": each.versions,
        "items": each.stored.items,
        "bytes": each.stored.bytes,
        "storage_dollars_a_month": prices.dollars_a_month(each.stored),
        "write_units": each.write_units,
        "write_dollars": prices.nanodollars(each.write_units, 0) / 1e9,
        "workload": each.workload(),
    }
