"""The command `erase`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dynastate.cli.key_files import key_files, keys_of
from dynastate.cli.options import Call, command
from dynastate.cli.output import dollars, progress
from dynastate.cli.scope import look_again
from dynastate.counts import plural
from dynastate.errors import ConfigurationError, UnavailableError

if TYPE_CHECKING:
    from dynastate.operations.erase.erase import ErasePlan

app = typer.Typer(rich_help_panel="Maintain")

IS_WRITTEN: Final = "a query writes to this state: stop it, end its Spark application, and erase again"


@command(
    app,
    'erase orders --key \'{"user": "a"}\'',
    "erase orders/0 --keys keys.ndjson --yes --json > receipt.json",
    json="The receipt as JSON on standard output, and nothing else.",
)
def erase(
    call: Call,
    scope: Annotated[str, typer.Argument(metavar="SCOPE", help="namespace, or namespace/operator.")],
    *,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="KEY", help="Columns of a key, as a JSON object; once for each key."),
    ] = None,
    keys: Annotated[list[Path] | None, key_files("--keys")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Erase the rows of some keys from all versions and snapshots of a stopped query, with its forks and origins.

    All other rows stay as they are, at each version, and the query resumes. A row has a key if its own key has these
    columns with these values, and others or not. It shows what it would do, asks, and looks for 5 to 30 seconds whether
    a query writes. Run again with the same keys, it completes an erase that was cut off. Backups are not changed.
    Exit code 1: it was not confirmed.
    """
    from dynastate import runtime
    from dynastate.operations.erase.erase import erase_stores, plan_erase
    from dynastate.operations.erase.receipt import Receipt
    from dynastate.operations.lifecycle.drop import look
    from dynastate.operations.scope import stores_in
    from dynastate.prices import Prices

    if scope.count("/") > 1:
        raise ConfigurationError("erase whole operators: give namespace, or namespace/operator", scope=scope)
    erased_keys, began, prices = keys_of(key, keys), runtime.now(), Prices.of(call.settings)
    with call.tables() as tables, progress("stores") as report:
        names = stores_in(tables, scope)
        plan = plan_erase(tables, [*names.current, *names.earlier], erased_keys, report)
        lists = look(tables, plan.stores, report)
    if not call.as_json:
        puts, gets = plan.puts + 3 * plan.meter.puts, 3 * plan.meter.gets
        _show(call, scope, plan, prices.nanodollars(plan.write_units, 3 * plan.read_units, puts, gets) / 1e9)
    if not (yes or plan.is_empty):
        typer.confirm(
            "Erase these rows? The query must not run. Only a backup of the tables has them then.", err=True, abort=True
        )
    with call.tables() as tables:
        principal = _principal(call)
        if not plan.is_empty:
            look_again(tables, scope, lists, IS_WRITTEN)
        with progress("stores") as report:
            erased = erase_stores(tables, plan, erased_keys, report)
    units = erased.meter.write_units + erased.meter.delete_units
    read_units = erased.meter.read_units + plan.read_units
    puts, gets = erased.meter.puts + plan.meter.puts, erased.meter.gets + plan.meter.gets
    receipt = Receipt(
        scope,
        tables.names,
        erased_keys,
        plan,
        stores=erased.stores,
        began=began,
        ended=runtime.now(),
        principal=principal,
        write_units=units,
        read_units=read_units,
        dollars=prices.nanodollars(units, read_units, puts, gets) / 1e9,
    )
    if not call.json(receipt.to_json()):
        rows, items = sum(each.rows for each in erased.stores), sum(len(each.deleted) for each in erased.stores)
        objects = sum(len(each.objects_deleted) for each in erased.stores)
        call.say(
            f"{scope}: {plural(rows, 'row')} erased, {plural(items, 'item')} and {plural(objects, 'object')} deleted, "
            f"{plural(receipt.write_units, 'write unit')}, {plural(receipt.read_units, 'read unit')}, "
            f"{dollars(receipt.dollars)} dollars"
        )


def _principal(call: Call) -> str:
    from dynastate.dynamodb.identity import caller_of

    try:
        return caller_of(call.settings)
    except UnavailableError as error:
        typer.echo(f"dynastate: warning: the receipt will not name who erased: {error}", err=True)
        return ""


def _show(call: Call, scope: str, plan: ErasePlan, cost: float) -> None:
    """Print what would change."""
    call.say(
        f"{scope}, {plural(len(plan.stores), 'store')}: {plural(plan.rows, 'row')} of {plural(plan.keys, 'key')}, in "
        f"{plural(plan.versions, 'version')} and {plural(plan.snapshots, 'snapshot')}"
    )
    others = sorted({each.split("/")[0] for each in plan.stores} - {scope.split("/", maxsplit=1)[0]})
    if others:
        call.say(f"with forks and origins: {', '.join(others)}")
    if plan.families:
        call.say(
            f"column families whose keys lack these columns, so that nothing is erased: {', '.join(plan.families)}"
        )
    if plan.unnamed:
        call.say(f"items and objects that no version names are deleted, too: {plan.unnamed:,}")
    if plan.is_empty:
        call.say("nothing is to be erased")
    else:
        call.say(
            f"it takes about {plural(plan.write_units, 'write unit')} and {plural(3 * plan.read_units, 'read unit')}: "
            f"{dollars(cost)} dollars"
        )
