"""How the command `cost` shows what it found: as tables for people, as an object for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from dynastate.prices import Prices
from dynastate.spending import Holding, Spent
from dynastate.what_if import Way


def stored_table(found: Mapping[int, Holding], prices: Prices) -> Table:
    """What stores have, with an operator a column."""
    columns = {f"operator {operator}": each for operator, each in sorted(found.items())}
    if len(columns) > 1:
        columns["all"] = sum(found.values(), Holding())
    listed = list(columns.values())
    workloads = [each.workload() for each in listed]
    table = Table(title="stored in both tables")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    table.add_row("stores", *(f"{each.stores:,}" for each in listed))
    table.add_row("rows of state", *(f"{each.rows:,}" for each in listed))
    table.add_row("versions listed", *(f"{each.versions:,}" for each in listed))
    table.add_row("items", *(f"{each.stored.items:,}" for each in listed))
    table.add_row("bytes", *(f"{each.stored.bytes:,}" for each in listed))
    table.add_row("storage, $ a month", *(f"{prices.dollars_a_month(each.stored):,.4f}" for each in listed))
    table.add_row("write units of these versions", *(f"{each.write_units:,}" for each in listed))
    table.add_row("their price, $", *(f"{prices.nanodollars(each.write_units, 0) / 1e9:,.6f}" for each in listed))
    table.add_row("changed rows a batch", *(f"{each['changed_rows']:,.0f}" for each in workloads))
    table.add_row("bytes a changed row", *(f"{each['row_bytes']:,.1f}" for each in workloads))
    table.add_row("bytes a row in a snapshot", *(f"{each['state_row_bytes']:,.1f}" for each in workloads))
    table.add_row("before compression, times", *(f"{each['compression']:,.2f}" for each in workloads))
    return table


def spent_table(spent: Sequence[Spent], prices: Prices) -> Table:
    """What batches took, with a query a column."""
    table = Table(title="spent by the batches reported")
    table.add_column("")
    for each in spent:
        table.add_column(escape(each.name or each.query), justify="right")
    table.add_row("batches", *(f"{each.batches:,}" for each in spent))
    table.add_row("seconds a batch", *(_or_dash(each.interval_s, ",.1f") for each in spent))
    table.add_row("requests", *(f"{each.requests:,}" for each in spent))
    table.add_row("write units", *(f"{each.write_units:,}" for each in spent))
    table.add_row("read units", *(f"{each.read_units:,}" for each in spent))
    table.add_row("write units of deletes", *(f"{each.delete_units:,}" for each in spent))
    table.add_row("price, $", *(f"{each.dollars:,.6f}" for each in spent))
    table.add_row("price of a day, $", *(_or_dash(each.dollars_a_day, ",.4f") for each in spent))
    table.add_row("items stored", *(f"{each.stored.items:,}" for each in spent))
    table.add_row("bytes stored", *(f"{each.stored.bytes:,}" for each in spent))
    table.add_row("storage, $ a month", *(f"{prices.dollars_a_month(each.stored):,.4f}" for each in spent))
    return table


def ways_table(ways: Sequence[Way], prices: Prices) -> Table:
    """What days would take, with a way to run the query a column."""
    table = Table(title="a day in the long run, predicted")
    table.add_column("")
    listed = [each.as_json(prices) for each in ways]
    for each in listed:
        table.add_column(escape(each["way"]), justify="right")
    table.add_row("requests", *(f"{each['requests']:,}" for each in listed))
    table.add_row("write units", *(f"{each['write_units']:,}" for each in listed))
    table.add_row("read units", *(f"{each['read_units']:,}" for each in listed))
    table.add_row("write units of deletes", *(f"{each['delete_units']:,}" for each in listed))
    table.add_row("price, $", *(f"{each['dollars_a_day']:,.4f}" for each in listed))
    table.add_row("bytes stored", *(f"{each['bytes']:,}" for each in listed))
    table.add_row("storage, $ a month", *(f"{each['storage_dollars_a_month']:,.4f}" for each in listed))
    return table


def _or_dash(number: float | None, form: str) -> str:
    return "-" if number is None else format(number, form)


def as_json(
    found: Mapping[int, Holding], spent: Sequence[Spent], ways: Sequence[Way], prices: Prices
) -> dict[str, Any]:
    """All of it, under names that programs can rely on."""
    return {
        "predicted": [each.as_json(prices) for each in ways],
        "operators": [{"operator": operator} | _holding_json(each, prices) for operator, each in found.items()],
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


def _holding_json(each: Holding, prices: Prices) -> dict[str, Any]:
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
