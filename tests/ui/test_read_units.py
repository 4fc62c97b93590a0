"""The read units of views and commands, which a table of the documentation has."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from dynastate.storage.meter import Meter
from tests.support.command_line import run
from tests.support.pages import ROOT
from tests.ui.conftest import Database, served
from tests.ui.test_requests import ask, units

PAGE = ROOT / "docs" / "costs.md"
#: The views in the order of the table, each opened twice.
VIEWS = {
    "Queries": "",
    "Operator": "operator/shop/0",
    "Key": "key/shop/0?k.user=user-3-1",
    "Rows": "rows/shop/0",
    "Compare": "compare/shop/0",
    "Cost": "cost/shop",
}
KEY = '{"user": "user-3-1"}'
#: The commands of the table, with their arguments.
COMMANDS = {
    "stores": ("shop",),
    "show": ("shop/0/3/default",),
    "versions": ("shop/0/3/default",),
    "get": ("shop/0", KEY),
    "history": ("shop/0", KEY),
    "diff": ("shop/0", "11", "12"),
    "export": ("shop/0", "--format", "ndjson"),
    "sql": ("shop/0", "select count(*) from state"),
    "verify": ("shop",),
    "verify --absent": ("shop", '{"user": "absent"}'),
    "skew": ("shop",),
    "cost": ("shop",),
    "retention": ("shop",),
    "top": ("shop", "--looks", "1"),
}


@contextmanager
def counted_reads() -> Iterator[Meter]:
    """Everything that is read in this process, by whatever meter."""
    all_meters = Meter()
    read = Meter.read

    def count(meter: Meter, sizes: Iterable[int], *, together: bool, missing: int = 0) -> None:
        all_sizes = list(sizes)
        for each in (all_meters, meter):
            read(each, all_sizes, together=together, missing=missing)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Meter, "read", count)
        yield all_meters


def documented(first: str) -> dict[str, list[int]]:
    """The numbers of the table whose first column has that title, by the view or command in that column."""
    (table,) = re.findall(rf"\n\| {first} \|.*\n\|[-:|]+\n((?:\|.*\n)+)", PAGE.read_text())
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    names = [re.match(r"`([^`]+)`", name) for name, *_ in rows]
    return {
        name[1] if name else row[0]: [int(number) for number in row[1:]] for name, row in zip(names, rows, strict=True)
    }


@pytest.mark.slow
def test_views_take_the_units_of_the_table(database: Database, environment: dict[str, str]) -> None:
    """A view that is opened, in the order of the table, and opened again when its figures are old."""
    measured = {}
    with served(database.endpoint, environment, "shop") as url:
        for name, place in VIEWS.items():
            first = units(ask(url + place)[1])
            time.sleep(2.1)
            measured[name] = [first, units(ask(url + place)[1])]
    assert measured == documented("view")


def test_commands_take_the_units_of_the_table(database: Database) -> None:
    measured = {}
    for command, words in COMMANDS.items():
        name, *options = command.split()
        with counted_reads() as reads:
            done = run(name, words[0], *options, *words[1:], "--endpoint", database.endpoint, "--region", "us-east-1")
        assert done.code == 0, done
        measured[command] = [reads.read_units]
    assert measured == documented("command")
