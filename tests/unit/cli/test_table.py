"""Tables at any width: how they are made to fit, without breaking a word."""

from __future__ import annotations

from typing import Any

import pytest

from dynastate.cli.output import Output, dollars
from dynastate.cli.table import Table

DIGEST = "9f2c0c64c9d2a24f3d2d7f3e6f0b8a11"
ROWS: list[dict[str, Any]] = [
    {"name": f"{DIGEST}/0/{partition}/left-keyWithIndexToValue", "id": DIGEST, "rows": 1_000_000, "is_on": True}
    for partition in range(200)
]
COLUMNS = {"name": "name", "id": "id", "rows": "rows\nof state", "is_on": "on"}


def lines(width: int | None, **fit: Any) -> list[str]:
    return [line for line, _ in Table(ROWS, COLUMNS, width).fit(**fit).lines()]


def test_without_a_width_all_is_whole() -> None:
    header, first, *others = lines(None, ids=["id"], group="name", optional=["id"])
    assert header.split() == ["name", "id", "rows", "of", "state", "on"]
    assert first.split() == [ROWS[0]["name"], DIGEST, "1,000,000", "yes"]
    assert len(others) == 199


def test_ids_are_shortened_first() -> None:
    upper, lower, first, *_ = lines(90, ids=["id"], group="name", optional=["id"])
    assert (upper.split(), lower.split()) == (["rows"], ["name", "id", "of", "state", "on"])
    assert first.split() == [ROWS[0]["name"], DIGEST[:8], "1,000,000", "yes"]


def test_partitions_are_grouped_second() -> None:
    _, header, name, first, *others = lines(80, ids=["id"], group="name", optional=["id"])
    assert header.split() == ["partition", "id", "of", "state", "on"]
    assert name == f"{DIGEST}/0/*/left-keyWithIndexToValue"
    assert first.split() == ["0", DIGEST[:8], "1,000,000", "yes"]
    assert len(others) == 199


def test_columns_are_left_out_or_moved_below_last() -> None:
    assert all(DIGEST[:8] not in line.split() for line in lines(28, ids=["id"], group="name", optional=["id"]))
    below = [line.split() for line in lines(28, ids=["id"], group="name") if DIGEST not in line]
    assert len(below) == 402 + 1
    assert below[0] == ["partition", "id"]
    assert below[201:204] == [["rows"], ["partition", "of", "state", "on"], ["0", "1,000,000", "yes"]]


@pytest.mark.parametrize(
    ("amount", "digits", "text"),
    [(None, 4, "-"), (0.0, 4, "0.0000"), (0.00001, 4, "< 0.0001"), (0.0001, 4, "0.0001"), (1234.5, 2, "1,234.50")],
)
def test_a_small_amount_is_never_shown_as_zero(amount: float | None, digits: int, text: str) -> None:
    assert dollars(amount, digits) == text


def test_texts_are_wrapped_at_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """COLUMNS has the width where there is no terminal; --wide, or neither of them, leaves lines whole."""
    text = f"a-word {'word ' * 20}{DIGEST * 3} end"
    monkeypatch.setenv("COLUMNS", "80")
    Output().say(text)
    wrapped = capsys.readouterr().out
    assert wrapped.split() == text.split()
    assert [len(line) > 80 for line in wrapped.splitlines()] == [False, False, True, False]
    Output(wide=True).say(text)
    monkeypatch.delenv("COLUMNS")
    Output().say(text)
    assert capsys.readouterr().out == f"{text}\n" * 2
