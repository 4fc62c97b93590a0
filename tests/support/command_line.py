"""The command `dynastate` in this process, as its entry point runs it, and spelt for a process of its own."""

from __future__ import annotations

import functools
import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jsonschema import Draft202012Validator, FormatChecker
from typer.main import get_command

from dynastate.cli.app import main, make_app
from dynastate.cli.output import facts
from dynastate.operations.monitoring import reports
from tests.support.jvm import ROOT

SCHEMAS = ROOT / "docs" / "json"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "dynastate.cli", *words]


class Done(NamedTuple):
    """What a command left: its exit code, and what it wrote."""

    code: int
    out: str
    err: str
    raw: bytes

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def run(*words: str, typed: str = "") -> Done:
    """Run a command in this process, with what is typed for standard input."""
    raw, err = io.BytesIO(), io.StringIO()
    out = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "stdin", io.StringIO(typed))
        with pytest.raises(SystemExit) as ended:
            main(words)
    assert isinstance(ended.value.code, int)
    text = raw.getvalue().decode(errors="replace")
    return Done(ended.value.code, text, err.getvalue(), raw.getvalue())


def shown(*words: str, code: int = 0) -> Any:
    """Run a command with --json; what it printed, which has to be of its schema."""
    result = run(*words, "--json")
    assert result.code == code, result
    return of_schema(words, json.loads(result.out))


def of_schema(words: Sequence[str], value: Any) -> Any:
    """The JSON that a command printed, unless it is not of the schema in docs/json."""
    schema_of(" ".join(words[:2] if words[0] == "tables" else words[:1])).validate(value)
    return value


def moved(command: str, result: Any) -> Any:
    """The result of a transfer, unless the command would print other JSON than its schema has."""
    of_schema((command,), json.loads(json.dumps(facts(result))))
    return result


@functools.cache
def schema_of(command: str) -> Any:
    """The validator of what a command prints with --json."""
    schema = json.loads((SCHEMAS / f"{command.replace(' ', '-')}.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=FormatChecker())


def refused(*words: str) -> str:
    """Run a command that has to fail; return the one line it writes to standard error."""
    result = run(*words)
    assert (result.code, result.out) == (2, ""), result
    assert result.err.count("\n") == 1, result.err
    assert result.err.startswith("dynastate: ")
    return result.err


def reported(tmp_path: Path, batches: int) -> str:
    """Write a file of progress reports: 10 requests, 100 write units and a tenth of a cent each, a minute apart."""
    metrics = dict.fromkeys(chain(*reports.METRICS.values()), 0)
    metrics |= {"dynastateRequests": 10, "dynastateWriteUnits": 100, "dynastateNanodollars": 1_000_000}
    common: dict[str, Any] = {"id": "the query's id", "runId": "r", "name": "flights", "durationMs": {"addBatch": 1}}
    common |= {"stateOperators": [{"customMetrics": metrics}]}
    told = [{"batchId": each, "timestamp": f"2025-01-01T00:{each:02d}:00.000Z"} | common for each in range(batches)]
    file = tmp_path / "progress.json"
    file.write_text("".join(json.dumps(each) + "\n" for each in told))
    return str(file)


def commands_of(command: Any, *names: str) -> Iterator[tuple[str, Any]]:
    """Every command and group of an application, with its name."""
    yield " ".join(names), command
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from commands_of(subcommand, *names, name)


COMMANDS = dict(commands_of(get_command(make_app())))
LEAVES = {name: each for name, each in COMMANDS.items() if not hasattr(each, "commands")}
