"""Tables of format 2, as development versions before 0.2.0 wrote them, are refused, and never taken for empty."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dynastate.dynamodb.http import decoded
from dynastate.dynamodb.wire import from_wire
from dynastate.engine import catalog
from dynastate.engine.engine import Engine
from dynastate.errors import CorruptStateError
from dynastate.format.keys import NO_ATTEMPT, Key, VersionId, meta_key
from dynastate.format.namespace import namespace_key
from dynastate.operations.inspection.inspect import inspect_store
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.operations.regions.copy import plan_copy
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from tests.support.engine_driver import write
from tests.support.memory_tables import MemoryTables
from tests.support.samples import attempt, query_run

#: A store with 12 versions and a snapshot.
FILE = Path(__file__).parents[2] / "vectors" / "format-2-tables.json"
STORE = "orders/0/0/default"
MESSAGE = "has format 2, this package reads 3; only versions before 0.2.0 wrote it.*use empty tables"


@pytest.fixture
def tables() -> MemoryTables:
    tables = MemoryTables()
    for row in decoded(b'{"items": %s}' % FILE.read_bytes())["items"]:
        item = from_wire(row["item"])
        (sort,) = item.keys() & {"entry", "part"}
        tables.items[Key(row["table"], str(item["store_shard"]), str(item[sort]))] = item
    return tables


WAYS: dict[str, Callable[[Engine, MemoryTables], object]] = {
    "a query that begins": lambda engine, _: write(engine, STORE, attempt(1), {b"k": b"v"}, run="new"),
    "a query that continues": lambda engine, _: engine.open(STORE, 12, attempt(12)),
    "a commit": lambda engine, _: write(engine, STORE, attempt(13), {b"k": b"v"}, base=VersionId(12, attempt(12))),
    "the newest version": lambda engine, _: engine.find(STORE, 12, NO_ATTEMPT, query_run()),
    "a reader": lambda _, tables: StateReader(tables, Settings(), "orders/0"),
    "every store": lambda _, tables: catalog.every_store(tables, "orders"),
    "show": lambda _, tables: inspect_store(tables, STORE),
    "fork": lambda _, tables: fork_namespace(tables, "orders", "test", None),
    "copy": lambda _, tables: plan_copy(tables, MemoryTables(), "orders", Settings()),
    "adopt": lambda _, tables: adopt_stores(tables, [STORE], "file:/ck/state"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_refuses_them(engine: Engine, tables: MemoryTables, way: str) -> None:
    """And nothing is written."""
    items_before = dict(tables.items)
    with pytest.raises(CorruptStateError, match=MESSAGE):
        WAYS[way](engine, tables)
    assert tables.items == items_before


@pytest.mark.parametrize("lost", [meta_key(STORE), namespace_key("orders")], ids=["meta", "record"])
def test_a_query_begins_in_no_store_of_which_items_are_lost(engine: Engine, tables: MemoryTables, lost: Key) -> None:
    """Its version lists, under the keys of format 2, and any other item are refused too."""
    del tables.items[lost]
    with pytest.raises(CorruptStateError, match=MESSAGE):
        write(engine, STORE, attempt(1), {b"k": b"v"}, run="new")
    for key in [meta_key(STORE), namespace_key("orders")]:
        tables.items.pop(key, None)
    with pytest.raises(CorruptStateError, match=MESSAGE):
        write(engine, STORE, attempt(1), {b"k": b"v"}, run="new")
