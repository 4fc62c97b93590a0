"""Counterexamples of commit.als on the engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from unittest.mock import patch

from dynastate.engine import lists
from dynastate.engine.commit import WriteAttempt
from dynastate.errors import DynastateError, UnavailableError, UnknownOutcomeError
from dynastate.format.items import Item
from dynastate.format.keys import EMPTY, META, NO_ATTEMPT, VersionId
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.lifecycle.runs import read_meta
from dynastate.storage.tables import Tables, no_refusal
from dynastate.storage.update import Update
from tests.model.replay import Actor, Instance, number_of
from tests.support.contents import graph
from tests.support.engine_driver import Engines, begin, read
from tests.support.faults import FailingTables, Fault
from tests.support.memory_tables import MemoryTables
from tests.support.samples import SCHEMA, State, attempt, chunk, query_run

ROW: Final = b"row"


class LateTables(FailingTables):
    """Tables that hold an append to a version list until `apply`: its answer is lost, and the task goes on."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self.held: list[tuple[Any, Update]] = []

    def update(
        self,
        key: Any,
        update: Update,
        is_applied: Callable[[Item], bool] | None = None,
        refusal: Callable[[], Exception | None] = no_refusal,
    ) -> Item | None:
        if not key.sort.startswith("list/"):
            return self.tables.update(key, update, is_applied, refusal)
        if (reason := refusal()) is not None:
            raise reason
        self.held.append((key, update))
        raise UnknownOutcomeError("the answer is lost")

    def apply(self) -> None:
        for key, update in self.held:
            self.tables.update(key, update)
        self.held.clear()


class CommitReplay:
    """A counterexample of commit.als. Attempts write one row each, which names the attempt."""

    def __init__(self, instance: Instance, memory: MemoryTables, engines: Engines, store: str) -> None:
        self._instance, self._memory, self._engines, self._store = instance, memory, engines, store
        self._tables: dict[str, LateTables] = {}
        self._attempts: dict[str, WriteAttempt] = {}
        self._written: set[str] = set()
        self._killed: set[str] = set()
        self._chosen: set[str] = set()
        self._adoption: Actor | None = None
        #: The location for which the store was adopted.
        self._adopted = ""
        #: The promises of the model that are violated.
        self.violated: set[str] = set()

    def play(self) -> None:
        for step in self._instance.steps:
            atom = step.get("attempt", step.get("location", ""))
            listed, waiting = self._names(), self._waiting()
            with suppress(DynastateError):  # what the engine refuses is left out
                getattr(self, f"_{step['action'].partition('$')[0].lower()}")(atom)
            self._check(listed, waiting)
        if self._adoption is not None:
            self._adoption.die()

    def _id(self, name: str) -> VersionId:
        version = number_of(self._instance.field(name, "version")) + 1
        return VersionId(version, attempt(1 + number_of(name)))

    def _location(self, name: str) -> str:
        return self._instance.field(self._instance.field(name, "by"), "location")

    def _waiting(self) -> set[str]:
        """The attempts whose append was sent and not applied."""
        return {name for name, tables in self._tables.items() if tables.held}

    def _parent(self, name: str) -> VersionId:
        parent = self._instance.field(name, "parent")
        return self._id(parent) if parent else EMPTY

    def _state(self, name: str) -> State:
        parent = self._instance.field(name, "parent")
        return (self._state(parent) if parent else {}) | {b"%d" % self._id(name).version: name.encode()}

    def _begin(self, name: str) -> None:
        run = query_run(self._instance.field(name, "by"), f"file:/{self._location(name)}/state")
        tables = self._tables[name] = LateTables(self._memory)
        engine = self._engines(tables)
        identity = self._id(name)
        self._attempts[name] = begin(engine, self._store, identity.attempt, base=self._parent(name), run=run)

    def _write(self, name: str) -> None:
        under_way = self._attempts[name]
        under_way.append(chunk({b"%d" % self._id(name).version: name.encode()}))
        under_way.flush()
        under_way._pending.wait(5)
        self._written.add(name)

    def _send(self, name: str) -> None:
        if name not in self._written:  # its parts are not durable
            self._tables[name].fail("write", *[Fault(UnavailableError("throttled"))] * 9)
            with suppress(UnavailableError):
                self._attempts[name].append(chunk({b"%d" % self._id(name).version: name.encode()}))
        self._attempts[name].commit({0: 1}, SCHEMA, lambda: name not in self._killed)

    def _apply(self, name: str) -> None:
        self._tables[name].apply()

    def _answer(self, name: str) -> None:
        """Nothing happens: the list shows what was appended."""

    def _kill(self, name: str) -> None:
        self._killed.add(name)

    def _abort(self, name: str) -> None:
        self._attempts[name].abort()

    def _choose(self, name: str) -> None:
        self._chosen.add(name)

    def _refuse(self, location: str) -> None:
        def adopt(tables: Tables) -> object:
            return adopt_stores(tables, [self._store], f"file:/{location}/state")

        self._adoption = Actor(self._memory, adopt)
        self._adoption.is_before("update", META)

    def _adopt(self, location: str) -> None:
        assert self._adoption is not None
        self._adoption.goes_past("update", META)
        if read_meta(self._memory, self._store).location == f"file:/{location}/state":
            self._adopted = location

    def _shorten(self, name: str) -> None:
        """Shorten the list by this attempt, after the append of another one by the newest run."""
        entries = [entry for entry in graph(self._memory, self._store).entries() if entry.id != self._id(name)]
        newest = max(entries, key=lambda entry: entry.epoch)
        with patch.object(lists, "LISTED_MAX", len(entries)):
            lists.shorten(self._memory, self._store, newest)

    def _names(self) -> set[str]:
        """The attempts that the version lists have."""
        listed = {entry.id for entry in graph(self._memory, self._store).entries()}
        return {name for name in self._attempts if self._id(name) in listed}

    def _is_whole(self, name: str) -> bool:
        """Whether the version of an attempt reads as it was made."""
        with suppress(DynastateError):
            return read(self._engines(), self._store, *self._id(name)) == self._state(name)
        return False

    def _check(self, before: set[str], waiting: set[str]) -> None:
        """Note violated promises after a step; `before` it these attempts were listed, and these `waiting`."""
        listed = self._names()
        if not all(map(self._is_whole, listed)):
            self.violated.add("whole")
        if not all(name in listed and self._is_whole(name) for name in self._chosen):
            self.violated.add("kept")
        if any(self._location(name) != self._adopted for name in listed - before if self._adopted):
            self.violated.add("adopted")
        if self._killed & (self._waiting() - waiting):
            self.violated.add("awaited")
        version_graph = graph(self._memory, self._store)
        for version in version_graph.versions():
            epochs = [entry.epoch for entry in version_graph.entries() if entry.version == version]
            if version_graph.find(version, NO_ATTEMPT, query_run("another")).epoch < max(epochs):
                self.violated.add("newestWins")
