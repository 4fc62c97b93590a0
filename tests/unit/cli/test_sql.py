"""The command `sql`: tables for people, JSON for programs, and what a wrong argument says."""

from __future__ import annotations

import json

import pytest

from dynastate.cli import sql
from dynastate.engine.engine import Engine
from tests.support.command_line import refused, run, shown
from tests.support.store_builder import StoreBuilder, counted, family, user


def test_sql(store: str) -> None:
    result = run("sql", "look/0", "from state order by user")
    assert result.lines == [
        "partition_id  user  count  note",
        "           0  a         2  ä",
        "           0  c         1",
    ]
    assert result.err.startswith("2 rows at version 3, ")
    assert result.err.endswith(" read units\n")
    old_result = run("sql", store, "select count(*) as rows from state", "--version", "1")
    assert (old_result.lines[-1].strip(), old_result.err[:18]) == ("2", "1 row at version 1")
    assert run("sql", store, "from state where false").out == ""


def test_sql_as_json(store: str) -> None:
    assert shown("sql", store, "select user, count from state order by all") == [
        {"user": "a", "count": 2},
        {"user": "c", "count": 1},
    ]
    assert shown("sql", store, "select version from changes", "--after", "2") == [{"version": 3}]
    assert shown("sql", store, "from state where false") == []


def test_units_are_of_the_tables_that_are_named(store: str) -> None:
    """A query of the versions alone reads no rows."""
    units = {name: int(run("sql", store, f"from {name}").err.split()[-3]) for name in ("versions", "state")}
    assert units["versions"] < units["state"]


def test_sql_of_a_column_family(engine: Engine) -> None:
    """Each has a table by its name; with --family one is the table state."""
    builder = StoreBuilder(engine, "sqls/0/0/default", family(1, "clicks"), family(2, "seen", multiple=True))
    builder.commit((user("a"), counted(1)), of=1)
    assert shown("sql", "sqls/0", "select count from state_clicks") == [{"count": 1}]
    assert shown("sql", "sqls/0", "select count from state", "--family", "clicks") == [{"count": 1}]
    assert "tables are state_clicks, changes_clicks, state_seen," in refused("sql", "sqls/0", "from state")
    assert "no column family none; it has clicks, seen" in refused("sql", "sqls/0", "from state", "--family", "none")


def test_values_of_several_lines_take_one(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would break a table is shown as JSON; of a long answer the first rows are shown."""
    assert run("sql", store, r"select e'a\nb' as text, [1, 2] as list, null as none").lines == [
        "text    list    none",
        '"a\\nb"  [1, 2]     -',
    ]
    monkeypatch.setattr(sql, "_SHOWN_MAX", 2)
    result = run("sql", store, "from range(3)")
    assert (len(result.lines), result.err.splitlines()[0]) == (
        3,
        "there are more than 2 rows: --json prints all of them",
    )
    assert len(json.loads(run("sql", store, "from range(3)", "--json").out)) == 3


def test_wrong_arguments(store: str) -> None:
    assert "Missing argument 'QUERY'" in refused("sql", store)
    assert "give one query" in refused("sql", store, "drop view state")
    assert "tables are state, changes, versions" in refused("sql", store, "from stat")
    assert "disabled by configuration; --external-access" in refused("sql", store, "from read_csv('/etc/hosts')")
    assert "name one of versions" in refused("sql", store, "from state", "--version", "9")
    assert "no store of this operator" in refused("sql", "look/9", "from state")
    assert "--memory-mb" in refused("sql", store, "from state", "--memory-mb", "1")
