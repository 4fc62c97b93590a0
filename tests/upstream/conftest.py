"""Tests that others wrote run when they are asked for, and print a table of what became of them."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_TABLE = pytest.StashKey[list[str]]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave these tests out unless the command line names this folder or one of them."""
    paths = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    return None if any(each.resolve().is_relative_to(_HERE) for each in paths) else True


@pytest.fixture
def table(pytestconfig: pytest.Config) -> list[str]:
    """Lines to print at the end."""
    return pytestconfig.stash.setdefault(_TABLE, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table."""
    lines = config.stash.get(_TABLE, [])
    if lines:
        terminalreporter.section("Spark's suites on dynastate")
        for line in lines:
            terminalreporter.write_line(line)
