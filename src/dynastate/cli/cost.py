"""The command `cost`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dynastate.cli.options import Call, Namespace, command, number
from dynastate.cli.output import dollars, progress
from dynastate.cli.table import ID_CHARS
from dynastate.counts import plural
from dynastate.errors import ConfigurationError
from dynastate.settings import Settings

if TYPE_CHECKING:
    from dynastate.operations.cost.advice import Choice
    from dynastate.operations.cost.log import LogUsage
    from dynastate.operations.cost.scenarios import ThresholdChoice
    from dynastate.operations.cost.usage import StorageUsage
    from dynastate.operations.monitoring.reports import QueryUsage
    from dynastate.prices import Prices

app = typer.Typer(rich_help_panel="Inspect")

#: Characters of a header, about; figures are as wide.
_HEADER_CHARS: Final = 12
#: Digits of figures that are not whole numbers, where they are not 1, or 4 of dollars.
_DIGITS: Final = {
    "changed_rows": 0,
    "compression": 2,
    "restart_snapshots_max": 2,
    "saved_dollars_a_month": 2,
    "dollars_a_month": 2,
    "dollars": 6,
    "write_dollars": 6,
}
# The rows of the tables, by the names of the figures in JSON.
_STORED: Final = {
    "stores": "stores",
    "rows": "rows of state",
    "versions": "versions listed",
    "items": "items",
    "bytes": "bytes",
    "object_bytes": "bytes in S3",
    "storage_dollars_a_month": "storage, $ a month",
    "write_units": "write units of these versions",
    "puts": "PUTs of these versions",
    "write_dollars": "their price, $",
    "changed_rows": "changed rows a batch",
    "row_bytes": "bytes a changed row",
    "state_row_bytes": "bytes a row in a snapshot",
    "compression": "before compression, times",
}
_UNITS: Final = {
    "requests": "requests",
    "write_units": "write units",
    "read_units": "read units",
    "delete_units": "write units of deletes",
    "puts": "PUTs",
    "gets": "GETs",
}
_SPENT: Final = {
    "batches": "batches",
    "interval_s": "seconds a batch",
    **_UNITS,
    "dollars": "price, $",
    "dollars_a_day": "price of a day, $",
    "items": "items stored",
    "bytes": "bytes stored",
    "storage_dollars_a_month": "storage, $ a month",
}
_PREDICTED: Final = {
    **_UNITS,
    "dollars_a_day": "price, $",
    **{name: _SPENT[name] for name in ("bytes", "storage_dollars_a_month")},
}


_LOG: Final = {
    "items": "items",
    "bytes": "bytes",
    "storage_dollars_a_month": "storage, $ a month",
    "batches": "batches in the log",
    "requests_a_batch": "requests a batch",
    "write_units_a_batch": "write units a batch",
    "delete_units_a_batch": "write units of deletes",
    "puts_a_batch": "objects a batch",
}


_RESTARTS: Final = {
    "dollars_a_day": "price, $",
    "saved_dollars_a_month": "saves, $ a month",
    "restart_bytes": "a restart reads, bytes",
    "restart_bytes_max": "at most",
    "restart_snapshots_max": "at most, in snapshots",
}


_CHOICES: Final = {
    "what": "one other choice",
    "saved_dollars_a_month": "saves,\n$ a month",
    "dollars_a_month": "price,\n$ a month",
}


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
        float | None, number(0.001, "S", "Seconds between two batches now. By default from --progress.")
    ] = None,
    trigger: Annotated[float | None, number(0.001, "S", "Predict a day with a batch every S seconds.")] = None,
    partitions: Annotated[int | None, number(1, "N", "Predict a day with N shuffle partitions.")] = None,
    snapshot_threshold: Annotated[
        str, typer.Option(metavar="T", help="The query's snapshotThreshold, where it is not the default.")
    ] = "",
    retain: Annotated[int, number(2, "N", "The query's minBatchesToRetain.")] = 100,
    write_price: Annotated[str, _price("a million write units")] = "",
    read_price: Annotated[str, _price("a million read units")] = "",
    storage_price: Annotated[str, _price("a GB-month")] = "",
    put_price: Annotated[str, _price("a million PUTs to S3")] = "",
    get_price: Annotated[str, _price("a million GETs from S3")] = "",
    objects_storage_price: Annotated[str, _price("a GB-month in S3")] = "",
) -> None:
    """Show what a query stores and has spent, and predict what it would spend with other settings.

    With a namespace: what its stores and checkpoints have in the tables, and what a month of that costs. With
    --progress: what the reported batches took, and what a day of them costs, at the prices given here or else at
    those of the query. With a namespace and --every, --trigger or --partitions: what a day would take in the long
    run. The formula of docs/costs.md predicts it from the listed versions: as the query runs now, as asked for,
    with an item for each row, and with other snapshot thresholds. Then what one other choice each would save a
    month, the largest saving first.
    """
    from dynastate.operations.cost.advice import Plan
    from dynastate.operations.cost.log import log_of_query, usage_of_logs
    from dynastate.operations.cost.usage import StorageUsage, usage_of_namespace
    from dynastate.operations.monitoring.reports import usage_of_queries
    from dynastate.prices import Prices
    from dynastate.storage.meter import Meter

    if not namespace and progress_file is None:
        raise ConfigurationError("give a namespace, --progress FILE, or both; 'dynastate cost --help' says more")
    texts = {"writePrice": write_price, "readPrice": read_price, "storagePrice": storage_price, "namespace": namespace}
    texts |= {"putPrice": put_price, "getPrice": get_price, "objectsStoragePrice": objects_storage_price}
    texts["snapshotThreshold"] = snapshot_threshold
    settings = Settings.from_spark({name: text for name, text in texts.items() if text})
    prices = Prices.of(settings)
    spent: list[QueryUsage] = []
    if progress_file is not None:
        is_priced = any((write_price, read_price, put_price, get_price))
        spent = usage_of_queries(progress_file, progress_file.name, prices if is_priced else None)
    every_s = None
    if every or trigger or partitions:
        every_s = every or next((each.interval_s for each in spent if each.interval_s), None)
        if not namespace or every_s is None:
            raise ConfigurationError(
                "a prediction needs a namespace, and --every SECONDS, or --progress with two batches of one run"
            )
    usage: dict[int, StorageUsage] = {}
    logs: list[LogUsage] = []
    meter = Meter()
    if namespace:
        with call.tables() as tables, progress("stores") as report:
            usage = usage_of_namespace(tables.metered(meter), namespace, report)
            logs = usage_of_logs(tables.metered(meter), namespace)
    plan = None
    if every_s:
        threshold = float(settings.snapshot_threshold)
        plan = Plan(usage, every_s, threshold=threshold, retain=retain, prices=prices, log=log_of_query(logs))
    scenarios = plan.scenarios(trigger, partitions) if plan else []
    thresholds = plan.thresholds if plan else []
    choices = plan.choices() if plan else []
    figures = {
        "predicted": [each.as_json(prices) for each in scenarios],
        "thresholds": [each.as_json(prices) for each in thresholds],
        "choices": [each.as_json() for each in choices],
        "operators": [{"operator": operator} | each.as_json(prices) for operator, each in sorted(usage.items())],
        "checkpoints": [{"dollars_a_day": None} | each.as_json(prices, every_s) for each in logs],
        "queries": [each.as_json(prices) for each in spent],
    }
    if call.json(figures):
        return
    _show_usage(call, figures, sum(usage.values(), StorageUsage()).as_json(prices))
    _show_logs(call, figures["checkpoints"])
    if usage:
        call.say(f"reading this took {plural(meter.read_units, 'read unit')}")
    _show_queries(call, figures)
    _show_thresholds(call, thresholds, prices)
    _show_choices(call, choices)


def _show_usage(call: Call, figures: Mapping[str, Any], together: Mapping[str, Any]) -> None:
    """Print what the stores of each operator have, and all of them together."""
    stored = [(f"operator {each['operator']}", each | each["workload"]) for each in figures["operators"]]
    if len(stored) > 1:
        stored.append(("all", together | together["workload"]))
    _show(call, "stored", _STORED, stored)


def _show_logs(call: Call, logs: Sequence[Mapping[str, Any]]) -> None:
    """Print what the checkpoints in DynamoDB have and take; each query has one."""
    labels = _LOG | ({"dollars_a_day": "price of a day, $"} if any("dollars_a_day" in log for log in logs) else {})
    _show(call, "checkpoints", labels, [(log["checkpoint"], log) for log in logs])


def _show_queries(call: Call, figures: Mapping[str, Any]) -> None:
    """Print what the reported batches took, and a day in the long run."""
    chars = None if call.width is None else ID_CHARS
    reported = [(each["name"] or each["query"][:chars], each) for each in figures["queries"]]
    _show(call, "spent by the batches reported", _SPENT, reported)
    if reported:
        from dynastate.operations.monitoring.reports import REPORTED

        call.say(REPORTED)
    days = [(each["way"].replace(" ", "\n", 1), each) for each in figures["predicted"]]
    _show(call, "a day in the long run, predicted", _PREDICTED, days)


def _show_thresholds(call: Call, choices: Sequence[ThresholdChoice], prices: Prices) -> None:
    """Print what other snapshot thresholds would cost, and the one that is advised."""
    from dynastate.operations.cost.scenarios import RECOVERY_MAX, advised

    columns = [(f"{each.threshold:g}" + " now" * each.is_own, each.as_json(prices)) for each in choices]
    _show(call, "the same with other values of snapshotThreshold, predicted", _RESTARTS, columns)
    best = advised(choices, prices)
    if best is not None:
        saved, reads = dollars(best.saved(prices), 2), f"{best.restart_snapshots:.2f}"
        call.say(
            f"snapshotThreshold={best.threshold:g} saves ${saved} a month; restarts read {reads} snapshots at most"
        )
    elif choices:
        call.say(f"no other snapshotThreshold saves money while restarts read at most {RECOVERY_MAX:g} snapshots")


def _show_choices(call: Call, choices: Sequence[Choice]) -> None:
    """Print what other choices would save."""
    if not choices:
        return
    advice = [each.as_json() for each in choices if each.is_advice]
    rows = [{name: _figure(name, value) for name, value in each.items()} for each in advice]
    if rows:
        call.table(rows, _CHOICES, title="what one other choice would save, predicted", figures=True)
    if len(rows) < len(choices):
        call.say(f"{plural(len(choices) - len(rows), 'other choice')} would save nothing")


def _show(call: Call, title: str, labels: Mapping[str, str], columns: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Print a table with an object a column, under its name, and a figure of each a row."""
    if not columns:
        return
    rows = [
        {"": label, **{str(column): _figure(name, each[name]) for column, (_, each) in enumerate(columns)}}
        for name, label in labels.items()
    ]
    chars = ID_CHARS if call.is_narrow else _HEADER_CHARS
    headers = {"": "", **{str(column): "\n".join(wrap(name, chars)) for column, (name, _) in enumerate(columns)}}
    call.table(rows, headers, title=title, figures=True)


def _figure(name: str, value: Any) -> Any:
    if "dollars" in name:
        return dollars(value, _DIGITS.get(name, 4))
    return f"{value:,.{_DIGITS.get(name, 1)}f}" if isinstance(value, float) else value
