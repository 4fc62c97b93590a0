"""The command `retention`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dynastate.cli.options import Call, Namespace, command, number
from dynastate.cli.output import progress
from dynastate.counts import plural
from dynastate.errors import ConfigurationError

if TYPE_CHECKING:
    from dynastate.operations.cost.removal import OperatorRemoval, RemovalDelay, RemovalSettings

app = typer.Typer(rich_help_panel="Inspect")

_OPERATORS: Final = {
    "operator": "operator",
    "batch_s": "seconds\na batch",
    "batches": "batches",
    "hours": "hours",
    "batches_max": "batches\nat most",
    "hours_max": "hours\nat most",
}
_STEPS: Final = {"step": "waits for", "batches": "batches", "batches_max": "at most", "settings": "shorter by"}


@command(app, "retention orders", "retention orders --retain 20 --snapshot-threshold 0", "retention --every 10")
def retention(
    call: Call,
    namespace: Namespace = "",
    *,
    every: Annotated[
        float | None, number(0.001, "S", "Seconds between two batches. By default those of the newest versions.")
    ] = None,
    retain: Annotated[int, number(2, "N", "The query's minBatchesToRetain.")] = 100,
    extra: Annotated[float, number(0, "R", "The query's ratioExtraSpaceAllowedInCheckpoint.")] = 0.3,
    min_deltas: Annotated[int, number(0, "N", "The query's minDeltasForSnapshot.")] = 10,
    snapshot_threshold: Annotated[float, number(0, "T", "The query's snapshotThreshold.")] = 1.25,
    maintenance: Annotated[float, number(0, "S", "Seconds of the query's maintenanceInterval.")] = 60,
    most: Annotated[int, number(0, "N", "The query's maxVersionsToDeletePerMaintenance; 0 for no bound.")] = 0,
) -> None:
    """Show after how many batches rows that a running query removed are gone from all items.

    Rows go when the query removes them, by a watermark, a time to live or its own code. With a namespace: how long
    they stay in its items as the query changes now, and at most, whatever it changes. Also what they wait for, and
    which settings shorten it. Without a namespace: at most, by the settings alone.
    """
    from dynastate.operations.cost.removal import RemovalSettings, delay_of, removal_of_namespace
    from dynastate.storage.meter import Meter

    settings = RemovalSettings(
        retain=retain,
        extra=extra,
        min_deltas=min_deltas,
        snapshot_threshold=snapshot_threshold,
        maintenance_s=maintenance,
        most=most,
    )
    meter = Meter()
    if namespace:
        with call.tables() as tables, progress("stores") as report:
            removals = removal_of_namespace(tables.metered(meter), namespace, settings, batch_s=every, progress=report)
        operators = [_of_operator(each, settings) for each in removals]
    elif every:
        operators = [_of_settings(delay_of(settings, every), every, settings)]
    else:
        raise ConfigurationError("give a namespace, or --every SECONDS; 'dynastate retention --help' says more")
    if call.json({"settings": asdict(settings), "operators": operators, "read_units": meter.read_units}):
        return
    _show(call, operators)
    if namespace:
        call.say(f"reading this took {plural(meter.read_units, 'read unit')}")


def _of_operator(removal: OperatorRemoval, settings: RemovalSettings) -> dict[str, Any]:
    """The figures of an operator as JSON."""
    slowest = removal.slowest
    reasons = [{"reason": reason, "stores": stores} for reason, stores in removal.held_by.items()]
    return _of_settings(slowest.longest, slowest.batch_s, settings) | {
        "operator": removal.operator,
        "stores": removal.stores,
        "slowest": slowest.store,
        "batches": slowest.expected.batches,
        "minutes": slowest.expected.minutes(slowest.batch_s, settings.maintenance_s),
        "steps": _steps(slowest.longest, slowest.expected),
        "held_by": reasons,
    }


def _of_settings(most: RemovalDelay, batch_s: float, settings: RemovalSettings) -> dict[str, Any]:
    """The figures as JSON where nothing is known but settings."""
    from dynastate.operations.cost.removal import held_by_settings

    return {
        "operator": None,
        "stores": 0,
        "slowest": None,
        "batch_s": batch_s,
        "batches": None,
        "minutes": None,
        "batches_max": most.batches,
        "minutes_max": most.minutes(batch_s, settings.maintenance_s),
        "steps": _steps(most),
        "held_by": [{"reason": reason, "stores": 0} for reason in held_by_settings(settings, batch_s)],
    }


def _steps(most: RemovalDelay, expected: RemovalDelay | None = None) -> list[dict[str, Any]]:
    from dynastate.operations.cost.removal import STEPS

    return [
        {
            "step": step,
            "batches": expected and getattr(expected, name),
            "batches_max": getattr(most, name),
            "settings": list(settings),
        }
        for name, (step, settings) in STEPS.items()
    ]


def _show(call: Call, operators: Sequence[dict[str, Any]]) -> None:
    """Print the batches and hours of each operator, and of the slowest what they wait for."""
    rows = [
        each
        | {
            "batch_s": f"{each['batch_s']:,.1f}",
            "hours": _hours(each["minutes"]),
            "hours_max": _hours(each["minutes_max"]),
        }
        for each in operators
    ]
    call.table(rows, _OPERATORS, title="what a batch removes is gone from all items after", figures=True)
    slowest = max(operators, key=lambda operator: operator["minutes"] or operator["minutes_max"])
    steps = [each | {"settings": each["settings"][0]} for each in slowest["steps"] if each["batches_max"]]
    title = "what it waits for"
    if slowest["slowest"]:
        title += f": {slowest['slowest']}"
    call.table(steps, _STEPS, title=title)
    for operator in operators:
        for cause in operator["held_by"]:
            stores = f"operator {operator['operator']}, {plural(cause['stores'], 'store')}: " if cause["stores"] else ""
            call.say(f"{stores}longer, because {cause['reason']}")


def _hours(minutes: float | None) -> str | None:
    return None if minutes is None else f"{minutes / 60:,.1f}"
