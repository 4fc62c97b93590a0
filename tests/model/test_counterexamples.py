"""Each weakness of a model has a counterexample: replayed, it breaks an engine that has this weakness, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest

from dynastate.engine import lists
from dynastate.format.items import Item
from dynastate.format.keys import Key
from dynastate.format.meta import EPOCH, EPOCHS
from dynastate.operations.lifecycle import adopt
from dynastate.storage.tables import Tables
from dynastate.storage.update import Condition, Update
from tests.model.__main__ import commands
from tests.model.commits import CommitReplay
from tests.model.replay import Instance
from tests.simulation import mutations
from tests.support.engine_driver import Engines
from tests.support.memory_tables import MemoryTables

INSTANCES: Final = json.loads(Path(__file__).with_name("counterexamples.json").read_text())
Weakness = Callable[[], AbstractContextManager[Any]]


def adopts_while_a_run_enters() -> AbstractContextManager[Any]:
    """An adoption enters its location whatever runs have entered since it looked."""

    def advance(tables: Tables, key: Key, run: str, epochs: Mapping[str, int], attributes: Item) -> bool:
        epoch = 1 + max(epochs.values())
        changes: Item = {EPOCH: epoch, EPOCHS: {**epochs, run: epoch}}
        return tables.update(key, Update(Condition(), sets=changes | attributes)) is not None

    return patch.object(adopt, "advance_epoch", advance)


def shortens_chosen_attempts() -> AbstractContextManager[Any]:
    """A long list loses any attempt but the newest run's last."""

    def unneeded(entries: Any, _: Any, __: Any, entry: Any, **___: Any) -> list[bytes]:
        return [raw for raw, each in entries.items() if each.id != entry.id]

    return patch.object(lists, "unneeded", unneeded)


#: The weaknesses of commit.als, with the promises that they violate.
COMMIT: Final[dict[str, tuple[Weakness, str]]] = {
    "adopts_while_a_run_enters": (adopts_while_a_run_enters, "adopted"),
    "aborts_attempts_of_unknown_outcome": (mutations.aborts_attempts_of_unknown_outcome, "whole"),
    "commits_before_parts_are_durable": (mutations.commits_before_parts_are_durable, "whole"),
    "commits_for_killed_tasks": (mutations.commits_for_killed_tasks, "awaited"),
    "commits_into_lists_that_refuse_the_run": (mutations.commits_into_lists_that_refuse_the_run, "adopted"),
    "opens_the_last_appended_attempt": (mutations.opens_the_last_appended_attempt, "newestWins"),
    "shortens_chosen_attempts": (shortens_chosen_attempts, "kept"),
}


def test_each_run_is_replayed() -> None:
    runs = {command.name for command in commands() if command.is_run and command.model.stem == "commit"}
    assert {*COMMIT} == {name for name in runs if not name.startswith("reaches_")} <= {*INSTANCES["commit"]}


@pytest.mark.parametrize("name", COMMIT)
@pytest.mark.parametrize("is_weak", [False, True])
def test_commit(name: str, memory: MemoryTables, engines: Engines, store: str, *, is_weak: bool) -> None:
    weakness, promise = COMMIT[name]
    with weakness() if is_weak else nullcontext():
        replay = CommitReplay(Instance(**INSTANCES["commit"][name]), memory, engines, store)
        replay.play()
    assert (promise in replay.violated) == is_weak
    assert is_weak or not replay.violated
