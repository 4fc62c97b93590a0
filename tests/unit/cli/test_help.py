"""Help texts and completion of every command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import dynastate
from dynastate.cli import app
from dynastate.cli.app import EXIT_CODES
from tests.support.command_line import COMMANDS, LEAVES, SCHEMAS, run, schema_of

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", COMMANDS, ids=lambda name: name or "dynastate")
def test_help_fits_80_columns(name: str) -> None:
    """No line is longer, no word broken, nothing is left of Typer's, and there are examples that can be run."""
    result = run(*name.split(), "--help")
    assert (result.code, result.err) == (0, "")
    assert max(map(len, result.lines)) <= 80
    assert not re.search(r"<[a-z]|\[x|\[default|\[required|…|│|\{[A-Za-z]", result.out)
    command = COMMANDS[name]
    told = [command.help, *(each.help for each in command.params if each.help)]
    assert set(" ".join(told).split()) <= set(result.out.split())
    examples = re.findall(r"^  dynastate (.*)$", result.out.partition("\nExamples:\n")[2], re.MULTILINE)
    assert examples
    for example in examples:
        words = shlex.split(example.partition(" | ")[0].partition(" > ")[0])
        path = " ".join(words[:2]) if words[0] == "tables" else words[0]
        assert path.startswith(name)
        option_names = {option for each in LEAVES[path].params for option in each.opts}
        assert {word for word in words if word.startswith("-")} <= option_names, example


def test_defaults_and_variables_are_shown_as_they_are_typed() -> None:
    """The default of a choice is its word; an option with a variable names it."""
    shown = " ".join(run("top", "--help").out.split())
    assert "with the largest first. Default: name." in shown
    assert "--region REGION AWS Region. By default AWS_REGION, or the profile's. Or DYNASTATE_REGION." in shown


def test_completion_of_a_shell_that_is_named() -> None:
    """Whichever shell runs: its script; of any other a message."""
    assert "complete --command dynastate" in run("--show-completion", "fish").out
    assert "#compdef dynastate" in run("--show-completion", "zsh").out
    assert "there is completion for bash, zsh, fish" in run("--show-completion", "nu").err


def test_commands_are_in_groups() -> None:
    groups = re.findall(r"^## (Inspect|Maintain|Set up)$", (DOCS / "cli.md").read_text(), re.MULTILINE)
    assert re.findall(r"^(\w[\w ]+):\n  [a-z]", run("--help").out, re.MULTILINE)[: len(groups)] == groups


def test_each_command_is_of_the_module_that_is_imported_for_it() -> None:
    names = [name for names in app.COMMANDS.values() for name in names]
    assert names == list(dict.fromkeys(name.split()[0] for name in LEAVES))
    for name in names:
        assert run(name, "--help").out.startswith(f"Usage: dynastate {name} ")


def test_a_group_without_a_command_shows_its_help() -> None:
    for words in ((), ("tables",)):
        result = run(*words)
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith("Usage: dynastate ")


def test_every_command_has_a_schema_of_its_json() -> None:
    """Tests that read the JSON of a command validate it; the page of commands links one of them."""
    names = {name.replace(" ", "-") for name in LEAVES}
    assert {file.name.removesuffix(".schema.json") for file in SCHEMAS.iterdir()} == names
    for name in LEAVES:
        assert schema_of(name).schema["title"] == f"dynastate {name}"
    assert "(json/" in (DOCS / "cli.md").read_text()


def test_every_command_is_for_programs_too() -> None:
    """Each takes --json; and where it reads or writes tables, all that says which."""
    options = {name: {spelt for each in one.params for spelt in each.opts} for name, one in LEAVES.items()}
    assert len(options) > 18
    assert [name for name, names in options.items() if "--json" not in names] == []
    where = {"--endpoint", "--region", "--delta-table", "--snapshot-table"}
    assert [name for name, names in options.items() if not where <= names] == ["local", "jar", "demo"]
    assert [name for name, names in options.items() if "--wide" not in names] == [
        "export",
        "ui",
        "local",
        "jar",
        "demo",
    ]


def test_exit_codes_are_documented_once() -> None:
    codes = re.findall(r"^  (\d+) ", EXIT_CODES, re.MULTILINE)
    assert re.findall(r"^\| (\d+) \|", (DOCS / "cli.md").read_text(), re.MULTILINE) == codes
    assert EXIT_CODES in run("--help").out


def test_version() -> None:
    assert run("--version").out == f"dynastate {dynastate.__version__}\n"
