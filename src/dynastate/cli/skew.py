"""The command `skew`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dynastate.cli.options import Call, command, number
from dynastate.cli.output import json_text, progress
from dynastate.cli.scope import Scope, current_stores
from dynastate.cli.table import headers
from dynastate.counts import plural

if TYPE_CHECKING:
    from dynastate.operations.monitoring.skew import GroupSkew, KeySkew

app = typer.Typer(rich_help_panel="Inspect")

_PARTITIONS: Final = headers("partition rows bytes", stored_bytes="stored\nbytes", units_s="write\nunits/s")
_KEYS: Final = headers("bytes values partition key")
_SIZES: Final = headers(bytes_max="up to\nbytes", rows="rows", bytes="bytes")
#: Characters of a key in a table.
_KEY_CHARS: Final = 60


@command(app, "skew orders", "skew orders/0 --keys 20", "skew orders --keys 0 --json | jq .busiest")
def skew(
    call: Call,
    scope: Scope,
    *,
    keys: Annotated[int, number(0, "N", "Heaviest keys to show; 0: read no rows.")] = 10,
    read_mb: Annotated[float, number(0.001, "MB", "Read rows of up to so many MiB, before compression.")] = 256.0,
) -> None:
    """Show where state is uneven.

    The largest partitions of each operator. The heaviest keys and the sizes of rows, of the newest version, the largest
    partitions first. The load of DynamoDB's busiest partition key: each takes 1,000 write units a second.
    """
    from dynastate.operations.monitoring.skew import KEY_UNITS_S, busiest, read_keys, read_loads, skew_of
    from dynastate.storage.meter import Meter

    meter, key_skew = Meter(), None
    with call.engine(cache_mb=1) as (engine, tables):
        with progress("stores") as report:
            loads = read_loads(tables.metered(meter), current_stores(tables, scope), report)
        if keys:
            with progress("bytes") as report:
                limit_bytes = round(read_mb * 2**20)
                key_skew = read_keys(engine, loads, keys, limit_bytes=limit_bytes, meter=meter, progress=report)
    groups, hottest = skew_of(loads), busiest(loads)
    figures = {
        "operators": [group.as_json() for group in groups],
        "keys": key_skew and key_skew.as_json(),
        "busiest": hottest and {"store": hottest.store, "key_units_s": hottest.key_units_s, "most": KEY_UNITS_S},
        "read_units": meter.read_units,
    }
    if call.json(figures):
        return
    for group in groups:
        _show_partitions(call, group)
    if key_skew is not None:
        _show_keys(call, key_skew)
    if hottest is not None:
        call.say(f"busiest partition key: {_figure(hottest.key_units_s)} of {KEY_UNITS_S:,} write units a second")
        call.say(f"it is one of {hottest.store}")
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
        }
        for each in group.largest
    ]
    call.table(rows, _PARTITIONS, figures=True)
    call.say("")


def _show_keys(call: Call, key_skew: KeySkew) -> None:
    """Print the heaviest keys, and how large rows are."""
    part = "all of them" if key_skew.is_whole else f"as far as {plural(key_skew.bytes, 'byte')} were read"
    call.say(f"heaviest keys of {plural(key_skew.rows, 'row')} in {plural(key_skew.stores, 'store')}, {part}", "bold")
    rows = [
        {
            "bytes": each.bytes,
            "values": each.values,
            "partition": _partition(each.store),
            "key": _short(call, json_text(each.key)),
        }
        for each in key_skew.heaviest
    ]
    call.table(rows, _KEYS)
    half, most = key_skew.quantile_bytes(0.5), key_skew.quantile_bytes(0.99)
    call.say(f"half of the rows have up to {half:,} bytes, 99 % up to {most:,}", "")
    call.table([vars(size) for size in key_skew.sizes], _SIZES)
    call.say("")


def _partition(store: str) -> str:
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
