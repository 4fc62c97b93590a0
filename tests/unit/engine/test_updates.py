"""Conditional updates of version lists, meta items and records."""

from __future__ import annotations

from typing import Any

import pytest

from dynastate.engine.updates import add_to_set, advance_epoch, append_version, remove_from_set, unchanged
from dynastate.errors import ConfigurationError, UnavailableError
from dynastate.format.items import FORMAT, Item, item_key
from dynastate.format.keys import Key, meta_key, version_list_key
from dynastate.format.meta import DELETING, DROPPED, EPOCH, EPOCHS, FORKS
from dynastate.format.version_list import REFUSED, VERSIONS
from dynastate.storage.update import Update
from tests.support.memory_tables import MemoryTables

STORE = "orders/0/0/default"
LIST = version_list_key(STORE, 1)
META = meta_key(STORE)


def put(memory: MemoryTables, key: Key, **attributes: Any) -> None:
    memory.write([(key, item_key(key) | {"format": FORMAT, **attributes})])


def item_at(memory: MemoryTables, key: Key) -> Item:
    return memory.get([key])[key]


def test_entries_are_appended_in_order(memory: MemoryTables) -> None:
    assert append_version(memory, LIST, b"first", "run-1") == [b"first"]
    assert append_version(memory, LIST, b"second", "run-1", must_exist=True) == [b"first", b"second"]
    assert item_at(memory, LIST) == item_key(LIST) | {"format": FORMAT, VERSIONS: [b"first", b"second"]}


@pytest.mark.parametrize("must_exist", [False, True])
def test_a_refused_run_appends_nothing(memory: MemoryTables, *, must_exist: bool) -> None:
    put(memory, LIST, **{REFUSED: frozenset({"run-1"}), VERSIONS: [b"first"]})
    with pytest.raises(ConfigurationError, match="run=run-1"):
        append_version(memory, LIST, b"second", "run-1", must_exist=must_exist)
    assert append_version(memory, LIST, b"third", "run-2", must_exist=must_exist) == [b"first", b"third"]


def test_a_list_that_must_exist_is_not_made(memory: MemoryTables) -> None:
    """The list of the parent is gone; a fence, which lists no version, is not such a list either."""
    for _ in range(2):
        with pytest.raises(ConfigurationError):
            append_version(memory, LIST, b"entry", "run-1", must_exist=True)
        put(memory, LIST, **{REFUSED: frozenset({"another run"})})
    assert VERSIONS not in item_at(memory, LIST)


def test_nothing_is_sent_for_a_task_that_has_ended(memory: MemoryTables) -> None:
    with pytest.raises(UnavailableError):
        append_version(memory, LIST, b"entry", "run-1", lambda: False)
    assert memory.get([LIST]) == {}


def test_a_run_enters_once(memory: MemoryTables) -> None:
    """It replaces the oldest run when there are many, and no other run enters on what it has read."""
    put(memory, META, **{EPOCH: 1, EPOCHS: {"run-1": 1}, DROPPED: "earlier"})
    assert advance_epoch(memory, META, "run-2", {"run-1": 1}, {"location": "there"})
    meta = item_at(memory, META)
    assert (meta[EPOCH], meta[EPOCHS], meta["location"]) == (2, {"run-1": 1, "run-2": 2}, "there")
    assert DROPPED not in meta
    assert not advance_epoch(memory, META, "run-3", {"run-1": 1}, {}), "another run has entered since"
    assert item_at(memory, META) == meta


def test_no_run_enters_a_store_whose_items_are_being_deleted(memory: MemoryTables) -> None:
    put(memory, META, **{EPOCH: 1, EPOCHS: {"run-1": 1}, DROPPED: DELETING})
    assert not advance_epoch(memory, META, "run-2", {"run-1": 1}, {})
    assert item_at(memory, META)[EPOCHS] == {"run-1": 1}


def test_sets_of_an_item_grow_and_shrink(memory: MemoryTables) -> None:
    assert add_to_set(memory, META, FORKS, ["test"]) is None, "there is no item"
    put(memory, META, state="first")
    assert (add_to_set(memory, META, FORKS, ["test", "audit"]) or {})[FORKS] == frozenset({"test", "audit"})
    assert remove_from_set(memory, META, FORKS, ["test"], {"state": "second"}) is None
    assert (remove_from_set(memory, META, FORKS, ["test", "unknown"], {"state": "first"}) or {})[FORKS] == frozenset(
        {"audit"}
    )
    assert FORKS not in (remove_from_set(memory, META, FORKS, ["audit"], {}) or {})


@pytest.mark.parametrize("name", [FORKS, REFUSED, VERSIONS])
def test_an_item_on_which_others_depend_is_not_unchanged(memory: MemoryTables, name: str) -> None:
    """A writer that has not read the attribute must not replace the item."""
    value = [b"entry"] if name == VERSIONS else frozenset({"test"})
    put(memory, META, **{"state": "first", name: value})
    change: Item = {"state": "second"}
    assert memory.update(META, Update(unchanged({"state": "first"}), sets=change)) is None
    assert memory.update(META, Update(unchanged({"state": "first", name: value}), sets=change)) is not None
