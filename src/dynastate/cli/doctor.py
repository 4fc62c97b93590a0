"""The command `doctor`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any

import typer

from dynastate.cli.options import Call, a_namespace, command
from dynastate.cli.output import facts, progress
from dynastate.counts import plural

app = typer.Typer(rich_help_panel="Set up")
_COLORS = {"pass": "green", "warning": "yellow", "fail": "red"}


@command(app, "doctor --endpoint http://127.0.0.1:8000 --region us-east-1", "doctor --json")
def doctor(
    call: Call,
    *,
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="First part of the keys that it writes.", callback=a_namespace)
    ] = "",
) -> None:
    """Check whether dynastate can trust what answers as DynamoDB: some 30 checks on both tables.

    It writes items of its own, below 20 MB, and deletes them. Exit code 1: a check failed.
    """
    from dynastate.dynamodb.probe import Probe
    from dynastate.operations.doctor.diagnosis import diagnose

    with closing(Probe(call.settings, namespace)) as probe, progress("checks") as report:
        diagnosis = diagnose(probe, report)
    checks = [facts(check) for check in diagnosis.checks]
    if not call.json({"trustworthy": diagnosis.is_trustworthy, **asdict(diagnosis), "checks": checks}):
        for check in diagnosis.checks:
            line = f"{check.verdict:8}{check.name}"
            call.say(f"{line}: {check.seen}; {check.reason}" if check.seen else line, _COLORS[check.verdict])
        if diagnosis.figures:
            call.say(_speed(diagnosis.figures))
        for text in diagnosis.unchecked:
            call.say(f"not checked: {text}")
        failed = sum(each.verdict == "fail" for each in diagnosis.checks)
        call.say(
            f"{plural(failed, 'check')} failed: do not keep state here" if failed else "dynastate can keep state here"
        )
    if not diagnosis.is_trustworthy:
        raise typer.Exit(1)


def _speed(figures: dict[str, Any]) -> str:
    return (
        f"a get takes {figures['get_p50_ms']:.1f} ms ({figures['get_p99_ms']:.1f} at most), a commit "
        f"{figures['commit_p50_ms']:.1f} ms ({figures['commit_p99_ms']:.1f}); it takes "
        f"{figures['written_kb_s']:,.0f} KB of parts a second"
    )
