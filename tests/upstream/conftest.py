"""Tests that others wrote run when they are asked for, and print a table of what became of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dynastate.dynamodb.admin import create_tables
from dynastate.dynamodb.embedded import credentials
from dynastate.settings import Settings
from tests.support.dynoxide import Dynoxide

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


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A DynamoDB with both tables."""
    for name, value in (credentials() | {"SPARK_LOCAL_IP": "127.0.0.1"}).items():
        monkeypatch.setenv(name, value)
    with Dynoxide(tmp_path / "dynoxide") as dynoxide:
        create_tables(dynoxide.settings)
        yield dynoxide.settings


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table."""
    lines = config.stash.get(_TABLE, [])
    if lines:
        terminalreporter.section("Spark's suites on dynastate")
        for line in lines:
            terminalreporter.write_line(line)
