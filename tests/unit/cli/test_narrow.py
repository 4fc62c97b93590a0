"""Commands on a screen of 40 columns, such as that of a telephone: only a single word is longer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dynastate.cli.table import Table
from dynastate.engine.engine import Engine
from tests.support.command_line import COMMANDS, reported, run
from tests.support.store_builder import StoreBuilder

DIGEST = "9f2c0c64c9d2a24f3d2d7f3e6f0b8a40"
STORE = "slim/0/0/default"
KEY = '{"user": "a"}'


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")


def too_wide(lines: list[str]) -> list[str]:
    return [line for line in lines if len(line) > 40 and len(line.split()) > 1]


@pytest.fixture(scope="module")
def many(engine: Engine) -> None:
    StoreBuilder(engine, STORE).count_to(3)
    for partition in range(2):
        StoreBuilder(engine, f"{DIGEST}/0/{partition}/default").count_to(2)
        for side in ("left", "right"):
            for name in ("keyToNumValues", "keyWithIndexToValue"):
                StoreBuilder(engine, f"narrow/1/{partition}/{side}-{name}").count_to(2)


@pytest.mark.parametrize("namespace", ["slim", "narrow", DIGEST])
@pytest.mark.parametrize(
    "command",
    [
        "stores",
        "verify",
        "skew",
        "cost",
        "cost --every 10 --trigger 60",
        "retention --every 10",
        "top --looks 2 --interval 0.1",
        "compact",
    ],
)
def test_a_namespace(command: str, namespace: str, many: None) -> None:
    name, *options = command.split()
    result = run(name, namespace, *options)
    assert (result.code, too_wide(result.lines)) == (0, [])
    assert result.lines


@pytest.mark.parametrize(
    "words",
    [
        ("stores",),
        ("show", STORE),
        ("versions", STORE),
        ("versions", STORE, "--all"),
        ("history", STORE, KEY),
        ("diff", STORE, "1", "3"),
        ("verify", STORE),
        ("sql", STORE, "from state"),
        ("sql", STORE, "from changes"),
        ("sql", STORE, "from versions"),
        ("clean", "slim", "--yes"),
        ("config",),
        ("tables", "check"),
    ],
    ids=" ".join,
)
def test_a_command(words: tuple[str, ...], many: None) -> None:
    result = run(*words)
    assert too_wide(result.lines) == []
    assert result.lines
    assert result.code in (0, 1)


def test_figures_of_progress_reports(tmp_path: Path, many: None) -> None:
    file = reported(tmp_path, 3)
    for words in (("cost", "--progress", file), ("top", "slim", "--looks", "1", "--progress", file)):
        assert too_wide(run(*words).lines) == []


@pytest.mark.parametrize("name", COMMANDS, ids=lambda name: name or "dynastate")
def test_help(name: str) -> None:
    """Except for examples, which stay lines that can be copied."""
    lines = [line for line in run(*name.split(), "--help").lines if not line.startswith("  dynastate ")]
    assert too_wide(lines) == []


def test_two_columns_that_do_not_fit_are_stacked() -> None:
    """Each cell has a line of its own, and a long text several."""
    columns = {"name": "name", "text": "a\ntext", "count": "count"}
    rows: list[dict[str, Any]] = [
        {"name": "first", "text": "word " * 12, "count": 1},
        {"name": "second", "text": "x" * 50, "count": None},
    ]
    assert [line for line, _ in Table(rows, columns, 40).lines()] == [
        "first",
        "  a text word word word word word word",
        "    word word word word word word",
        "  count 1",
        "second",
        f"  a text {'x' * 31}",
        f"    {'x' * 19}",
        "  count -",
    ]
