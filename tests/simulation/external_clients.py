"""Who comes from outside beside a query: those who look with `open_state`, and those who compact and clean by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any, Final

from dynastate import rows, state, upkeep
from dynastate.errors import (
    ConfigurationError,
    CorruptStateError,
    DynastateError,
    UnavailableError,
    UnknownOutcomeError,
    VersionMissingError,
)
from dynastate.settings import Settings
from dynastate.state import Row, StateReader
from dynastate.state_keys import RawKeys
from dynastate.store import Engine
from dynastate.tables import Tables
from dynastate.unsafe_row import Binary, Struct
from tests.simulation.actors import KEYS, some_time
from tests.simulation.model import Model, Node, State, Version, short, violation
from tests.simulation.scheduler import Scheduler


class AsItIs(Struct):
    """Bytes in place of a row: what executors write here is nobody's row."""

    def __init__(self, name: str) -> None:
        super().__init__([(name, Binary())])

    def encode(self, values: Mapping[str, Any]) -> bytes:
        raw: bytes = values[self.names[0]]
        return raw

    def decode(self, raw: bytes) -> dict[str, Any]:
        return {self.names[0]: raw}


FAMILY: Final = state._Family(
    id=0,
    name="default",
    internal=False,
    multiple=True,
    encoder=RawKeys(AsItIs("key"), [0]),
    value=AsItIs("value"),
)


def families(_text: str, _store_name: str) -> dict[str, Any]:
    """Stands for `state.parse_families`."""
    return {FAMILY.name: FAMILY}


def as_rows(found: State) -> list[Row]:
    """Rows as a reader gives them, in the order of their keys."""
    return [{"key": key, "values": [{"value": value} for value in found[key]]} for key in sorted(found)]


class Onlooker:
    """Somebody with `open_state`, at one store or at all partitions: what is seen is what was committed."""

    def __init__(self, scheduler: Scheduler, tables: Tables, settings: Settings, chance: random.Random) -> None:
        self._scheduler = scheduler
        self._tables = tables
        self._settings = settings
        self._chance = chance

    def look_now_and_then(self, models: list[Model], is_over: Callable[[], bool]) -> None:
        """Open, look for a while, going on with the query or not, close, and again."""
        while not is_over():
            self._scheduler.sleep(some_time(self._chance))
            some = self._chance.choice([models, [self._chance.choice(models)]])
            name = some[0].store if len(some) == 1 else some[0].store.rsplit("/", 2)[0]
            must_be = all(model.promised() for model in some)
            try:
                opened = StateReader(self._tables, self._settings, name)
            except (ConfigurationError, VersionMissingError) as failed:
                self._scheduler.note("%s cannot be opened: %s", name, failed)
                if must_be and len(some) == 1 and all(model.promised() for model in some):
                    raise violation("what is promised cannot be opened", store=name, error=failed) from failed
                continue
            except UnavailableError as failed:
                self._scheduler.note("%s cannot be opened now: %s", name, failed)
                continue
            with closing(opened):
                for _ in range(self._chance.randrange(8)):
                    # Other partitions may come while the first batch commits.
                    self._look([model for model in some if model.store in opened.stores], opened)
                    self._scheduler.sleep(some_time(self._chance))

    def _look(self, models: list[Model], opened: StateReader) -> None:
        """Look in one of the ways there are."""
        look = self._chance.choice([self._rows, self._rows, self._get, self._before, self._changes, self._diff, None])
        try:
            if look is None:
                opened.refresh()
                self._scheduler.note("on to %d of %s", opened.version, opened.store)
            else:
                look(models, opened)
        except (UnavailableError, VersionMissingError, CorruptStateError) as failed:
            # Where a version is promised no more, nobody can tell whether clean-up is at it or something is lost.
            self._scheduler.note("%s: %s", opened.store, failed)

    def _nodes(self, models: list[Model], opened: StateReader) -> list[Node]:
        """What the version is in each partition."""
        found = [
            (model, (opened.version, lineage.find(opened.version).attempt))
            for model, lineage in zip(models, opened._lineages, strict=True)
        ]
        return [model.nodes[version] for model, version in found]

    def _rows(self, models: list[Model], opened: StateReader) -> None:
        nodes = self._nodes(models, opened)
        was_promised = self._promised(models, nodes)
        try:
            found = sorted(opened, key=str)
        except (VersionMissingError, CorruptStateError) as failed:
            self._refuse_if(was_promised & self._promised(models, nodes), failed)
            raise
        expected = [row for node in nodes for row in as_rows(node.state)]
        self._compare(found, sorted(expected, key=str), nodes)
        self._compare(len(opened), len(expected), nodes)
        self._scheduler.note("looked at %d rows of %s", len(found), " ".join(short(node.version) for node in nodes))

    def _get(self, models: list[Model], opened: StateReader) -> None:
        nodes, key = self._nodes(models, opened), b"%d" % self._chance.randrange(KEYS)
        was_promised = self._promised(models, nodes)
        try:
            found = opened.get({"key": key})
        except (VersionMissingError, CorruptStateError) as failed:
            self._refuse_if(was_promised & self._promised(models, nodes), failed)
            raise
        there = [row for node in nodes for row in as_rows({key: node.state[key]} if key in node.state else {})]
        if found not in there and (found is not None or there):
            raise violation("a key has another row", key=key, found=found, there=there)

    def _before(self, models: list[Model], opened: StateReader) -> None:
        """An earlier version, which must be one that this one stands on."""
        versions = opened.versions()
        if not versions:
            return
        earlier = opened.at(self._chance.choice(versions))
        if earlier.version <= opened.version:
            nodes = zip(models, self._nodes(models, opened), strict=True)
            under = [_ancestor(model, node, earlier.version) for model, node in nodes]
            self._compare(self._nodes(models, earlier), under, under)
        self._rows(models, earlier)

    def _changes(self, models: list[Model], opened: StateReader) -> None:
        after = max(0, opened.version - self._chance.randrange(4))
        nodes = self._nodes(models, opened)
        found = list(opened.changes(after))
        expected: list[tuple[int, str, Row]] = []
        for number in range(after + 1, opened.version + 1):
            for model, node in zip(models, nodes, strict=True):
                made = _ancestor(model, node, number)
                expected += ((number, *_told(change)) for change in made.changes)
        self._compare(found, expected, nodes)

    def _diff(self, models: list[Model], opened: StateReader) -> None:
        nodes, before = self._nodes(models, opened), max(0, opened.version - self._chance.randrange(4))
        found = [(each.key["key"], each.before, each.after) for each in opened.diff(before, opened.version)]
        expected = []
        for model, node in zip(models, nodes, strict=True):
            was = _ancestor(model, node, before)
            for key in {*was.state, *node.state}:
                pair = [as_rows({key: held.state[key]})[0] if key in held.state else None for held in (was, node)]
                expected += [(key, *pair)] if pair[0] != pair[1] else []
        self._compare(sorted(found, key=str), sorted(expected, key=str), nodes)

    def _promised(self, models: list[Model], nodes: list[Node]) -> set[Version]:
        """Those of the versions that are promised to whoever names the attempt."""
        return {node.version for model, node in zip(models, nodes, strict=True) if node.version in model.promised()}

    def _refuse_if(self, promised: Iterable[Version], failed: DynastateError) -> None:
        versions = " ".join(map(short, promised))
        if versions:
            raise violation("what is promised cannot be looked at", versions=versions, error=failed) from failed

    def _compare(self, found: object, expected: object, nodes: list[Node]) -> None:
        if found != expected:
            versions = " ".join(short(node.version) for node in nodes)
            raise violation("a reader sees something else", versions=versions, found=found, expected=expected)


def _ancestor(model: Model, node: Node, version: int) -> Node:
    """What a version stands on."""
    while node.version[0] > version:
        node = model.nodes[node.parent]
    return node


def _told(change: rows.Change) -> tuple[str, Row]:
    """A change as a reader tells it, of which these are a kind and a row."""
    if change.value is None:
        return "remove", {"key": change.key}
    kind = "append" if change.operation == rows.MERGE else "put"
    return kind, {"key": change.key, "values": [{"value": change.value}]}


class Operator:
    """Somebody who runs `dynastate compact` and `dynastate clean` beside the query, whatever the network does."""

    def __init__(
        self, scheduler: Scheduler, engines: Callable[[], Engine], tables: Tables, chance: random.Random
    ) -> None:
        self._scheduler = scheduler
        self._engines = engines
        self._tables = tables
        self._chance = chance

    def run_now_and_then(self, models: list[Model], is_over: Callable[[], bool], retain: int) -> None:
        """Each time with an engine of its own, as a command has."""
        while not is_over():
            self._scheduler.sleep(some_time(self._chance))
            model, what = self._chance.choice(models), self._chance.choice(("compact", "clean"))
            was_promised = set(model.promised())
            try:
                with closing(self._engines()) as engine:
                    if what == "compact":
                        done: object = upkeep.compact(engine, self._tables, model.store)
                    else:
                        done = upkeep.clean(engine, self._tables, model.store, retain)
            except CorruptStateError as failed:
                if was_promised & set(model.promised()):
                    raise violation("upkeep finds the store broken", store=model.store, error=failed) from failed
                self._scheduler.note("%s of %s: %s", what, model.store, failed)
            except (ConfigurationError, UnavailableError, UnknownOutcomeError, VersionMissingError) as failed:
                self._scheduler.note("no %s of %s: %s", what, model.store, failed)
            else:
                self._scheduler.note("%s of %s: %s", what, model.store, done)
