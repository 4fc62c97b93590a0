"""A column family whose schema changes while its versions are read: columns dropped, added, widened and renamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError
from dynastate.reader.json_rows import row_to_json
from dynastate.reader.sql import answer
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from dynastate.ui.page import Ask
from dynastate.ui.pages import compare, key, rows
from tests.support.store_builder import StoreBuilder, family, struct, user
from tests.unit.reader.conftest import Open

OLD = (("count", "integer"), ("gone", "string"), ("s", struct([("x", "integer")])))
NEW = (("count", "long"), ("note", "string"), ("s", struct([("x", "long"), ("y", "string")])))
#: The rows of the three versions of `evolved`, in the columns of the last one.
ROWS: list[dict[str, Any]] = [{"user": "a", "count": n, "note": None, "s": {"x": n, "y": None}} for n in (1, 2)]
ROWS.append({"user": "a", "count": 1 << 40, "note": "z", "s": {"x": 1 << 40, "y": "é"}})


def change_schema(builder: StoreBuilder, *families: dict[str, Any]) -> None:
    """Restart the query with other column families."""
    builder.families = list(families)


@pytest.fixture
def evolved(memory_engine: Engine, store: str) -> StoreBuilder:
    """A store of three versions, of which the last has another schema, as with Avro."""
    builder = StoreBuilder(memory_engine, store, family(value=OLD))
    for n in (1, 2):
        builder.commit((user("a"), {"count": n, "gone": "text", "s": {"x": n}}))
    change_schema(builder, family(value=NEW, earlier_values=[struct(OLD)]))
    builder.commit((user("a"), {name: value for name, value in ROWS[2].items() if name != "user"}))
    return builder


def test_rows_have_the_columns_of_the_last_version_that_is_read(evolved: StoreBuilder, opened: Open) -> None:
    """Rows are those that the schema of the last version makes of them; that of `history` is the view's."""
    state = opened(evolved.store)
    assert [each.row for each in state.history(user("a"))] == ROWS
    assert [row_to_json(columns, each.row) for each, columns in state.history_with_columns(user("a"))] == ROWS
    for view in (state, state.at(2)):
        assert [each.row for each in view.changes(0, 3)] == ROWS
        assert [tuple(each) for each in view.diff(1, 3)] == [(user("a"), ROWS[0], ROWS[2])]
        assert [tuple(each) for each in view.diff(3, 2)] == [(user("a"), ROWS[2], ROWS[1])]
    # Before the schema changed, rows have its columns.
    (change,) = state.diff(1, 2)
    assert change.after == next(iter(state.at(2))) == {"user": "a", "count": 2, "gone": "text", "s": {"x": 2}}
    assert [each.row for each in state.at(2).changes(1)] == [change.after]
    assert [each.row for each in state.at(2).history(user("a"))] == [change.before, change.after]
    assert [row_to_json(state.columns, each.row) for each in state.changes(0)] == ROWS


def test_sql(evolved: StoreBuilder, opened: Open) -> None:
    """Columns within columns that older changes do not have are null."""
    state = opened(evolved.store)
    with answer(state, "select * exclude (version, kind, partition_id) from changes order by version") as result:
        assert list(result.as_json()) == ROWS
    with answer(state.at(2), "select count, gone from changes order by all") as result:
        assert list(result.rows) == [(1, "text"), (2, "text")]


def test_a_renamed_column_has_its_new_name(memory_engine: Engine, store: str, opened: Open) -> None:
    """Spark takes a schema for the same when only names differ, and records no earlier one."""
    builder = StoreBuilder(memory_engine, store, family(value=(("count", "long"),)))
    builder.commit((user("a"), {"count": 1}))
    change_schema(builder, family(value=(("total", "long"),)))
    builder.commit((user("a"), {"total": 2}))
    state = opened(builder.store)
    expected = [{"user": "a", "total": number} for number in (1, 2)]
    assert [each.row for each in state.history(user("a"))] == [each.row for each in state.changes(0)] == expected
    assert [tuple(each) for each in state.at(1).diff(1, 2)] == [(user("a"), *expected)]


def test_a_column_family_that_was_made_again(memory_engine: Engine, store: str, opened: Open) -> None:
    """A variable that was removed, and came back with another schema: each row is read by the schema of its version."""
    other = family(1, "other")
    builder = StoreBuilder(memory_engine, store, family(value=(("count", "long"),)), other)
    builder.commit((user("a"), {"count": 1}))
    builder.commit((user("a"), None))
    change_schema(builder, family(dropped=True), other)
    builder.commit((user("a"), {"count": 1, "note": ""}), of=1)
    change_schema(builder, family(value=(("text", "string"),)), other)
    builder.commit((user("a"), {"text": "new"}))
    with StateReader(opened(builder.store)._tables, Settings(), builder.store, "default") as state:
        past = [(each, row_to_json(columns, each.row)) for each, columns in state.history_with_columns(user("a"))]
        first, last = {"user": "a", "count": 1}, {"user": "a", "text": "new"}
        assert past == [((1, first), first), ((2, None), None), ((4, last), last)]
        assert [each.row for each in state.changes(0)] == [first, {"user": "a"}, last]
        assert [each.row for each in state.at(3).changes(0)] == [first, {"user": "a"}]
        assert [tuple(each) for each in state.diff(2, 4)] == [(user("a"), None, last)]
        message = "made again with another schema; read later versions only"
        with pytest.raises(ConfigurationError, match=message):
            list(state.diff(1, 4))
        with pytest.raises(ConfigurationError, match=message), answer(state, "from changes") as result:
            list(result.rows)
        with answer(state, "select text from changes", after=3) as result:
            assert list(result.rows) == [("new",)]


class OneReader:
    """A page's site with one reader, which stays open."""

    def __init__(self, state: StateReader) -> None:
        self.state = state

    @contextmanager
    def reader(self, *_: str) -> Iterator[StateReader]:
        """Give the reader."""
        yield self.state

    def open_reader(self, *_: str) -> StateReader:
        """Give the same reader."""
        return self.state

    @contextmanager
    def cursor(self, _: Any, make: Callable[[], Any]) -> Iterator[Any]:
        """Make a result."""
        yield make()


def column_names(values: dict[str, Any]) -> list[str]:
    return [name for name, _ in values["columns"]]


def test_pages(evolved: StoreBuilder, opened: Open) -> None:
    """A page names the columns of the version whose rows it shows."""
    site: Any = OneReader(opened(evolved.store))
    namespace, operator, *_ = evolved.store.split("/")

    def values(view: Callable[[Any, Ask], Any], **options: str) -> dict[str, Any]:
        page = view(site, Ask({"namespace": namespace, "operator": operator}, options))
        return dict(page.values)

    of_key = values(key.view, **{"k.user": "a", "version": "2", "other": "3"})
    assert [(each.version, each.cells["count"].text) for each in of_key["history"]] == [
        (3, str(1 << 40)),
        (2, "2"),
        (1, "1"),
    ]
    assert of_key["columns"] == ["count", "gone", "s", "note"]
    assert [each.cells["note"].text for each in of_key["history"]] == ["z", None, None]
    assert of_key["names"] == ["user", "count", "gone", "s", "note"]
    assert (of_key["row"]["gone"], of_key["old"]["note"]) == ("text", "z")
    old = values(rows.view, version="2")
    assert column_names(old) == ["user", "count", "gone", "s"]
    assert old["rows"][0][1][:3] == ["a", "2", "text"]
    assert column_names(values(compare.view, before="1", after="2")) == ["user", "count", "gone", "s"]
    assert column_names(values(compare.view, before="1", after="3")) == ["user", "count", "note", "s"]
