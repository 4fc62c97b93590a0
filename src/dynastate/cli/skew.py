"""The command `skew`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dynastate.cli.options import Call, command, number
from dynastate.cli.output import progress
from dynastate.cli.scope import Scope, current_stores
from dynastate.cli.table import headers
from dynastate.counts import plural

if TYPE_CHECKING:
    from dynastate.operations.monitoring.skew import GroupSkew, KeySkew, Limit

app = typer.Typer(rich_help_panel="Inspect")

_PARTITIONS: Final = headers(
    "partition rows bytes", stored_bytes="stored\nbytes", units_s="write\nunits/s", rows_a_day="rows\na day"
)
_KEYS: Final = headers("bytes values partition key")
_SIZES: Final = headers(bytes_max="up to\nbytes", rows="rows", bytes="bytes")
_LIMITS: Final = headers(limit="limit", now="now", most="at most", a_day="more\na day", days="reached\nin days")
#: Characters of a key in a table.
_KEY_CHARS: Final = 60


@command(
    app,
    *("skew orders", "skew orders/0 --keys 20", "skew orders --heap 32 --budget 500"),
    "skew orders --keys 0 --json | jq .limits",
)
def skew(
    call: Call,
    scope: Scope,
    *,
    keys: Annotated[int, number(0, "N", "Heaviest keys to show; 0: read no rows.")] = 10,
    read_mb: Annotated[float, number(0.001, "MB", "Read rows of up to so many MiB, before compression.")] = 256.0,
    heap: Annotated[float | None, number(0.001, "GB", "Heap of all executors together, in GiB.")] = None,
    budget: Annotated[float | None, number(0, "USD", "US dollars that a month may cost.")] = None,
) -> None:
    """Show where state is uneven, how it grows, and when it reaches a limit.

    The largest partitions of each operator; the heaviest keys and the sizes of rows, of the newest version, the largest
    partitions first; and the days until a limit is reached, if the growth of the retained versions goes on: the 1,000
    write units a second of one of DynamoDB's partition keys, half of --heap, and --budget.
    """
    from dynastate.operations.monitoring.skew import limits_of, no_forecast, read_keys, read_loads, skew_of
    from dynastate.prices import Prices
    from dynastate.storage.meter import Meter

    meter, found = Meter(), None
    with call.engine(cache_mb=1) as (engine, tables):
        with progress("stores") as report:
            loads = read_loads(tables.metered(meter), current_stores(tables, scope), report)
        if keys:
            with progress("bytes") as report:
                found = read_keys(engine, loads, keys, round(read_mb * 2**20), meter, report)
    groups, limits = skew_of(loads), limits_of(loads, Prices.of(call.settings), heap, budget)
    figures = {
        "operators": [each.as_json() for each in groups],
        "keys": found and found.as_json(),
        "limits": [each.as_json() for each in limits],
        "read_units": meter.read_units,
    }
    if call.json(figures):
        return
    for group in groups:
        _show_partitions(call, group)
    if found is not None:
        _show_keys(call, found)
    _show_limits(call, limits)
    if why := no_forecast(loads):
        call.say(why)
    call.say(f"reading this took {plural(meter.read_units, 'read unit')}")


def _show_partitions(call: Call, group: GroupSkew) -> None:
    """Print the largest partitions of an operator."""
    call.say(f"{group.stores}: {plural(group.rows, 'row')}, {plural(group.bytes, 'byte')} before compression", "bold")
    call.say(
        f"the largest of {plural(group.partitions, 'partition')} has {group.rows_ratio:.2f} times the mean rows, "
        f"{group.bytes_ratio:.2f} times the mean bytes"
    )
    rows = [
        {
            "partition": int(each.store.split("/")[2]),
            "rows": each.rows,
            "bytes": each.bytes,
            "stored_bytes": each.stored_bytes,
            "units_s": _figure(each.units_s),
            "rows_a_day": _figure(each.rows_a_day),
        }
        for each in group.largest
    ]
    call.table(rows, _PARTITIONS, figures=True)
    call.say("")


def _show_keys(call: Call, found: KeySkew) -> None:
    """Print the heaviest keys, and how large rows are."""
    from dynastate.operations.monitoring.skew import key_text

    part = "all of them" if found.is_whole else f"as far as {plural(found.bytes, 'byte')} were read"
    call.say(f"heaviest keys of {plural(found.rows, 'row')} in {plural(found.stores, 'store')}, {part}", "bold")
    rows = [
        {
            "bytes": each.bytes,
            "values": each.values,
            "partition": _place(each.store),
            "key": _short(call, key_text(each)),
        }
        for each in found.heaviest
    ]
    call.table(rows, _KEYS)
    half, most = found.quantile_bytes(0.5), found.quantile_bytes(0.99)
    call.say(f"half of the rows have up to {half:,} bytes, 99 % up to {most:,}", "")
    call.table([{"bytes_max": each.bytes_max, "rows": each.rows, "bytes": each.bytes} for each in found.sizes], _SIZES)
    call.say("")


def _show_limits(call: Call, limits: list[Limit]) -> None:
    """Print the limits, and when they are reached."""
    rows = [
        {
            "limit": each.limit,
            "now": _figure(each.now),
            "most": _figure(each.most),
            "a_day": _figure(each.a_day),
            "days": _figure(each.days),
        }
        for each in limits
    ]
    call.table(rows, _LIMITS, title="limits, at the growth of the retained versions", figures=True)
    for each in limits:
        if each.store:
            call.say(f"{each.limit}: of one of DynamoDB's partition keys of {each.store}, the busiest store")


def _place(store: str) -> str:
    """Operator, partition and name of a store."""
    return store.split("/", 1)[1]


def _short(call: Call, text: str) -> str:
    is_long = call.width is not None and len(text) > _KEY_CHARS
    return f"{text[: _KEY_CHARS - 1]}…" if is_long else text


def _figure(value: float | None) -> Any:
    """A number with as many digits as it needs."""
    if value is None:
        return None
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}" if abs(value) >= 1 else f"{value:.2g}"
