"""Commands that look inside stores: stores, show, get, export, verify. They only read."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dynastate.cli.key_files import key_files, keys_of
from dynastate.cli.options import Call, Family, Key, Namespace, Store, Stores, command, number
from dynastate.cli.output import dollars, facts, progress
from dynastate.cli.scope import Scope, counted, current_stores, end, failures, on_each
from dynastate.cli.table import headers
from dynastate.counts import plural
from dynastate.errors import ConfigurationError
from dynastate.operations.inspection.formats import Format

if TYPE_CHECKING:
    from dynastate.format.keys import Role
    from dynastate.operations.erase.keys import GivenKeys
    from dynastate.operations.inspection.abandoned import AbandonedNamespace
    from dynastate.operations.inspection.checkpoints import CheckpointSummary
    from dynastate.operations.inspection.findings import Report
    from dynastate.operations.lifecycle.verify_checkpoint import CheckpointReport
    from dynastate.operations.scope import Outcomes
    from dynastate.progress import ProgressCallback
    from dynastate.reader.view import StateView

app = typer.Typer(rich_help_panel="Inspect")

Version = Annotated[int | None, number(1, "V", "By default the newest that all partitions have committed.")]
_STORE: Final = headers(
    "store version rows bytes",
    snapshot="snapshot\nversion",
    deltas="deltas\nsince",
    age="last\ncommit",
    is_active="is\nactive",
)
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))
_ABANDONED: Final = headers("namespace stores bytes", dollars="storage,\n$ a month", age="last\ncommit")
_EARLIER: Final = {"is_earlier": "earlier\nquery"}
_IN_S3: Final = {"object_bytes": "bytes\nin S3"}


@command(
    app,
    "stores",
    "stores --abandoned",
    "stores orders",
    "stores orders --json | jq '.[] | select(.deltas > 50) | .store'",
)
def stores(
    call: Call,
    namespace: Namespace = "",
    *,
    abandoned: Annotated[
        bool, typer.Option("--abandoned", help="Namespaces whose checkpoint is gone, and what they cost a month.")
    ] = False,
) -> None:
    """List stores with their newest version, rows and bytes.

    Without a namespace it lists all stores: it scans the snapshot-group table, with a request for each partition key,
    and needs dynamodb:Scan.
    """
    from dynastate.operations.inspection.checkpoints import summarize_checkpoints
    from dynastate.operations.inspection.inspect import inspect_stores

    with call.tables() as tables, progress("stores") as report:
        summaries = inspect_stores(tables, namespace, report)
        if abandoned:
            from dynastate.operations.inspection.abandoned import checkpoint_exists, find_abandoned

            _show_abandoned(call, find_abandoned(summaries, partial(checkpoint_exists, tables)))
            return
        names = [namespace] if namespace else dict.fromkeys(each.store.split("/")[0] for each in summaries)
        checkpoints = summarize_checkpoints(tables, names)
    described = [facts(each) | {"snapshot": each.snapshot or None} for each in summaries]
    logs = {f"{each.checkpoint}/state": facts(each) for each in checkpoints}
    without_state = [] if described else [{"checkpoint": location, "log": log} for location, log in logs.items()]
    if call.json([*(each | {"log": logs.get(each["checkpoint"])} for each in described), *without_state]):
        return
    if described:
        has_earlier = any(each["is_earlier"] for each in described)
        rows = [
            dict.fromkeys(each | _STORE) | {"store": each["store"]}
            if each["problem"]
            else each | {"age": _age(each["committed"])}
            for each in described
        ]
        in_s3 = _IN_S3 if any(each["object_bytes"] for each in described) else {}
        columns = _STORE | in_s3 | (_EARLIER if has_earlier else {})
        call.table(rows, columns, group="store", optional=["deltas", "snapshot"])
        if has_earlier:
            call.say("Stores of an earlier query: 'dynastate clean' deletes them.")
        for summary in described:
            if summary["problem"]:
                call.say(f"{summary['store']}: {summary['problem']}", "red")
    else:
        of_namespace = f" of {namespace}" if namespace else ""
        call.say(f"no stores{of_namespace} in {call.settings.delta_table} and {call.settings.snapshot_table}")
    for checkpoint in checkpoints:
        call.say(f"{checkpoint.checkpoint}: {_log_text(checkpoint)}", "red" if checkpoint.problem else "")


def _log_text(checkpoint: CheckpointSummary) -> str:
    """The files of a checkpoint, and its last committed batch."""
    if checkpoint.problem:
        return checkpoint.problem
    batch = "no batch committed" if checkpoint.batch is None else f"batch {checkpoint.batch:,} committed"
    age = f" {_age(checkpoint.committed)}" if checkpoint.committed else ""
    return f"{plural(checkpoint.files, 'file')}, {plural(checkpoint.bytes, 'byte')}; {batch}{age}"


def _show_abandoned(call: Call, namespaces: Sequence[AbandonedNamespace]) -> None:
    """Print the namespaces whose checkpoint is gone."""
    from dynastate.prices import Prices

    figures = [
        each.as_json(Prices.of(call.settings)) | {"committed": each.committed or None, "problem": each.problem or None}
        for each in namespaces
    ]
    if call.json(figures):
        return
    abandoned = [each for each in namespaces if not each.problem]
    if abandoned:
        rows = [
            each | {"age": _age(each["committed"]), "dollars": dollars(each["storage_dollars_a_month"], 4)}
            for each in figures
            if not each["problem"]
        ]
        call.table(rows, _ABANDONED, figures=True)
        for namespace in abandoned:
            name = namespace.namespace
            call.say(
                f"{name}: {namespace.location} was not found{_asked(namespace.location)}; if that is where its query "
                f"has it, 'dynastate drop {name}' deletes the state"
            )
    elif not namespaces:
        call.say("no namespace whose checkpoint is gone")
    for namespace in namespaces:
        if namespace.problem:
            call.say(f"{namespace.namespace}: {namespace.problem}", "red")


def _asked(location: str) -> str:
    """The endpoint that is asked for a location in S3: this machine's settings may mean another than the query's."""
    if not location.startswith("s3:"):
        return ""
    return f" at {os.environ.get('AWS_ENDPOINT_URL_S3') or os.environ.get('AWS_ENDPOINT_URL') or 'AWS'}"


@command(app, "show orders/0/17/default", "show orders/0/17/default --json | jq .families")
def show(call: Call, store: Store) -> None:
    """Show one store: version, snapshot, checkpoint, forks, and the columns of its column families."""
    from dynastate.engine import catalog
    from dynastate.format.checkpoint import checkpoint_of_state
    from dynastate.operations.inspection.checkpoints import summarize_checkpoint
    from dynastate.operations.inspection.inspect import inspect_store

    with call.tables() as tables:
        summary = inspect_store(tables, catalog.single_store(tables, store))
        checkpoint = checkpoint_of_state(summary.checkpoint)
        log = None if checkpoint is None else summarize_checkpoint(tables, checkpoint)
    described = facts(summary) | {"snapshot": summary.snapshot or None}
    if call.json(described | {"log": None if log is None else facts(log)}):
        return
    families = described.pop("families")
    del described["problem"]
    is_earlier = described.pop("is_earlier")
    query = "an earlier one, whose checkpoint was deleted" if is_earlier else "the namespace's current one"
    described["forks"], described["query"] = ", ".join(described["forks"]), query
    described["committed"] = f"{described['committed'] or '-'}, {_age(described['committed'])}"
    until = described.pop("active_until")
    described["is_active"] = (
        f"yes: a query may be writing; without another commit 'no' after {until}, by its executor's clock"
        if described["is_active"]
        else "no"
    )
    if log is not None:
        described["log"] = _log_text(log)
    indent = " " * (4 if call.is_narrow else 13)
    for name, value in described.items():
        text = f"{value:,}" if isinstance(value, int) else value or "-"
        call.say(f"{name.replace('_', ' '):13}{text}", indent=indent)
    for column_family in families:
        marks = "".join(f", {mark}" for mark in ("lists", "internal") if column_family[mark])
        call.say("")
        call.say(f"column family {column_family['name']}: {plural(column_family['rows'], 'row')}{marks}", "bold")
        for part in ("key", "value"):
            call.say(f"  {part:11}{_columns(column_family[part])}", indent=indent)


def _age(committed: str | None) -> str:
    """The time since a commit, in the largest unit that it has two of."""
    if not committed:
        return "-"
    seconds = max(0, int(time.time() - datetime.fromisoformat(committed).timestamp()))
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= 2 * size), (1, "s"))
    return f"{seconds // size} {unit} ago"


def _columns(columns: list[dict[str, Any]]) -> str:
    return ", ".join(f"{each['name']} {_type_text(each['type'])}" for each in columns)


def _type_text(kind: Any) -> str:
    """A type of a schema, as SQL spells it."""
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            fields = ", ".join(f"{each['name']}: {_type_text(each['type'])}" for each in kind["fields"])
            return f"struct<{fields}>"
        case "array":
            return f"array<{_type_text(kind['elementType'])}>"
        case "map":
            return f"map<{_type_text(kind['keyType'])}, {_type_text(kind['valueType'])}>"
    return str(kind["type"])


@command(app, """get orders/0 '{"user": "a"}'""", """get orders/0 '{"user": "a"}' --version 7""")
def get(call: Call, store: Stores, key: Key, *, version: Version = None, family: Family = "") -> None:
    """Show the row of a key as JSON.

    Exit code 1: there is no such row; --json then prints null.
    """
    from dynastate.reader.json_rows import key_from_json, parse_key, row_to_json

    parsed_key = parse_key(key)
    with opened(call, store, family, version) as state:
        row = row_to_json(state.columns, state.get(key_from_json(state.key_columns, parsed_key)))
        row_version = state.version
    if row is not None or call.as_json:
        replace(call, as_json=True).json(row)
    if row is None:
        typer.echo(f"not there at version {row_version}", err=True)
        raise typer.Exit(1)


@command(
    app,
    "export orders/0 --format parquet -o orders.parquet",
    "export orders/0 --format ndjson | jq .count",
    wide=False,
    json="What was written as JSON on standard output.",
)
def export(
    call: Call,
    store: Stores,
    *,
    form: Annotated[Format, typer.Option("--format", metavar="parquet|ndjson", help="What to write; required.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="By default standard output.")
    ] = None,
    version: Version = None,
    family: Family = "",
) -> None:
    """Write all rows of a version into a file: Parquet, or JSON with one row a line."""
    from dynastate.operations.inspection.export import export_rows

    if output is None and (call.as_json or (form is Format.PARQUET and sys.stdout.isatty())):
        raise ConfigurationError("give a file with --output: standard output is a terminal, or taken by --json")
    with opened(call, store, family, version) as state, progress("rows") as report:
        count = export_rows(state, form, output, report)
        written = {"store": store, "version": state.version, "rows": count, "file": str(output or "-")}
    if not call.json(written) and output is not None:
        typer.echo(f"{plural(count, 'row')} of version {written['version']} in {output}", err=True)


@command(
    app,
    "verify orders",
    "verify orders/0/17/default --wide",
    "verify orders --json | jq '.[].findings[]'",
    'verify orders --absent \'{"user": "a"}\'',
)
def verify(
    call: Call,
    scope: Scope,
    *,
    checkpoint: Annotated[
        str, typer.Option(metavar="URL", help="Also compare the commits of a checkpoint elsewhere with the state.")
    ] = "",
    absent: Annotated[
        list[str] | None,
        typer.Option("--absent", metavar="KEY", help="Only prove that no version has a row of this key, as 'erase'."),
    ] = None,
    absent_keys: Annotated[list[Path] | None, key_files("--absent-keys")] = None,
) -> None:
    """Read stores as recovery would, and list what is missing, corrupt or orphaned.

    It changes nothing. Of several stores, it lists what is wrong, and counts the rest. With a namespace it also reads
    the checkpoints in DynamoDB, and compares the committed batches with the state. Orphaned items do no harm: items of
    attempts under way look like orphans, and clean-up deletes the others. Exit code 1: something is missing or corrupt;
    with --absent, there is a row, or there are items that it does not search.
    """
    if absent or absent_keys:
        if checkpoint:
            raise ConfigurationError("--absent looks for rows only: leave out --checkpoint")
        _verify_absent(call, scope, keys_of(absent, absent_keys))
        return
    from dynastate.operations.inspection import verify as verifying
    from dynastate.operations.lifecycle.verify_checkpoint import refuse_other_log, verify_checkpoints, verify_log

    with call.tables() as tables:
        if checkpoint:
            refuse_other_log(tables, checkpoint, scope.split("/")[0])
        stores = current_stores(tables, scope, may_have_files_only=True)

        def check(store: str, report: ProgressCallback) -> Report:
            return verifying.verify(tables, store, report, with_record=store == stores[0])

        outcomes = on_each(tables, stores, "items", check)
        checkpoints = [] if "/" in scope or outcomes.is_interrupted else verify_checkpoints(tables, scope)
        if checkpoint:
            checkpoints.append(verify_log(tables, checkpoint))
    names: dict[Role, str] = {"delta": call.settings.delta_table, "snapshot": call.settings.snapshot_table}
    reports = list(outcomes.results.values())
    parts: list[Report | CheckpointReport] = [*reports, *checkpoints]
    if not call.json([*(each.to_json(names) for each in parts), *failures(outcomes)]):
        _show_reports(call, outcomes, names)
        for line in [line for each in checkpoints for line in each.lines(names)]:
            call.say(line)
    end(outcomes)
    if not all(each.is_whole for each in parts):
        raise typer.Exit(1)


def _show_reports(call: Call, outcomes: Outcomes[Report], names: dict[Role, str]) -> None:
    """Print the report of a store; of several, the reports of those that are not whole, and a summary."""
    from dynastate.operations.inspection.findings import summary

    reports = list(outcomes.results.values())
    for report in reports:
        for line in report.lines(names) if outcomes.stores == 1 or not report.is_whole else ():
            call.say(line)
    for line in [counted(outcomes), *summary(reports)] if outcomes.stores > 1 else ():
        call.say(line)


def _verify_absent(call: Call, scope: str, erased_keys: GivenKeys) -> None:
    """Print whether rows of some keys are in any version or snapshot. Exit code 1: they are, or may be."""
    from dynastate.operations.erase.absent import find_absence
    from dynastate.operations.scope import stores_in

    with call.tables() as tables, progress("stores") as report:
        names = stores_in(tables, scope)
        absences = find_absence(tables, [*names.current, *names.earlier], erased_keys, report)
    is_absent = all(each.is_absent for each in absences)
    if not call.json([each.to_json() for each in absences]):
        for absence in absences:
            if absence.rows:
                places = f"{plural(absence.versions, 'version')} and {plural(absence.snapshots, 'snapshot')}"
                call.say(f"{absence.store}: {plural(absence.rows, 'row')}, in {places}", "red")
            if absence.unsearched:
                call.say(
                    f"{absence.store}: items and objects that no version names, not searched: {absence.unsearched:,}",
                    "red",
                )
        units = sum(each.read_units for each in absences)
        answer = "absent" if is_absent else "not absent"
        call.say(f"{answer}: {plural(len(absences), 'store')}, {plural(units, 'read unit')}")
    if not is_absent:
        raise typer.Exit(1)


@contextmanager
def opened(call: Call, store: str, family: str, version: int | None) -> Iterator[StateView]:
    """The state at a version, by default the newest, for the time of a command."""
    from dynastate.reader.state import StateReader

    with call.tables() as tables, StateReader(tables, call.settings, store, family) as state:
        yield state if version is None else state.at(version)
