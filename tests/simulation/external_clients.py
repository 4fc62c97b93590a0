"""External clients of a running query: forks, readers with `open_state`, compaction and clean-up by command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from dynastate.engine.catalog import find_stores
from dynastate.engine.engine import Engine
from dynastate.engine.opening import retry_routes
from dynastate.errors import (
    ConfigurationError,
    CorruptStateError,
    UnavailableError,
    UnknownOutcomeError,
    VersionMissingError,
)
from dynastate.format.changes import MERGE, Change
from dynastate.format.keys import NO_ATTEMPT, VersionId
from dynastate.operations.lifecycle.clean import clean_store
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.reader.families import Row
from dynastate.reader.state import StateReader
from dynastate.reader.view import StateView
from dynastate.settings import Settings
from dynastate.storage.tables import Tables
from tests.simulation.actors import KEY, KEYS, VALUE, Actor, key_of, rows_of
from tests.simulation.model import Model, Node, State, short, violation
from tests.simulation.reach import CLEAN, COMPACT, DROP, FORK, OPEN


def ended_batch(models: list[Model]) -> tuple[int, str, set[str]] | None:
    """The newest batch of the current query, its run and locations. None: not all partitions have it by that run."""
    current = [model for model in models if model.query == models[0].query]
    batches = {(model.newest, model.makers.get(model.newest), model.run) for model in current}
    (newest, maker, run), *others = batches
    locations = {each for model in models for each in model.locations}
    return (newest, run, locations) if not others and newest > 0 and maker == run else None


def as_rows(state: State) -> list[Row]:
    return [_as_row(key, state[key]) for key in sorted(state)]


def _as_row(key: bytes, values: Iterable[bytes]) -> Row:
    return KEY.decode(key) | {"values": list(map(VALUE.decode, values))}


@dataclass
class Forker(Actor):
    """Forks a running query, reads the forks, and drops them, whatever the network does."""

    _engine: Engine
    _tables: Tables

    def fork_now_and_then(self, models: list[Model], is_over: Callable[[], bool]) -> None:
        for number, _ in enumerate(self._pauses(is_over), 1):
            fork = f"fork-{number}"
            version = self._fork(models, fork)
            for _ in range(self._chance.randrange(8) if version else 0):
                self._pause()
                self.read(self._chance.choice(models), fork, version)
            self.drop(fork)

    def _fork(self, models: list[Model], fork: str) -> int:
        """Fork the newest version; a fork that failed is resumed. Returns the version; 0: there is no fork."""
        tries = (self.try_fork(models, fork) for _ in range(self._chance.randint(1, 4)))
        return next((version for version in tries if version), 0)

    def try_fork(self, models: list[Model], fork: str, version: int | None = None) -> int:
        still_promised = [model.watch() for model in models]
        try:
            with self._scheduler.doing(FORK):
                result = fork_namespace(self._tables, models[0].store.split("/")[0], fork, version)
        except (ConfigurationError, UnavailableError, VersionMissingError) as failed:
            self._scheduler.note("%s failed: %s", fork, failed)
            return 0
        except CorruptStateError as failed:
            if version is None or all(VersionId(version, NO_ATTEMPT) in still() for still in still_promised):
                raise
            # What is no longer promised may be deleted in part.
            self._scheduler.note("%s failed: %s", fork, failed)
            return 0
        self._scheduler.note("%s is made, of version %d of %d stores", fork, result.version, result.stores)
        return result.version if result.stores == len(models) else 0  # some have no version yet

    def read(self, model: Model, fork: str, version: int) -> None:
        """Check that the fork is what its origin was at that version."""
        store, since = fork + model.store.removeprefix(model.store.split("/")[0]), self._scheduler.now
        try:
            with self._scheduler.doing(OPEN):
                forked, state = retry_routes(lambda _: rows_of(self._engine.open(store, version, NO_ATTEMPT)))
        except UnavailableError as failed:
            self._scheduler.note("%s cannot be read now: %s", fork, failed)
            return
        except (VersionMissingError, CorruptStateError) as failed:
            raise violation("a fork cannot be read", store=store, version=version, error=failed) from failed
        model.check_state(VersionId(version, NO_ATTEMPT), forked, state, since)
        self._scheduler.note("read %s as %s: %d rows", store, short(forked), len(state))

    def drop(self, fork: str) -> None:
        while not self._try_drop(fork):
            self._pause()

    def _try_drop(self, fork: str) -> bool:
        try:
            with self._scheduler.doing(DROP):
                drop_stores(self._tables, list(find_stores(self._tables, fork)))
        except (ConfigurationError, UnavailableError) as failed:  # an erase may have taken its mark away
            self._scheduler.note("%s is not dropped yet: %s", fork, failed)
            return False
        self._scheduler.note("%s is dropped", fork)
        return True


@dataclass
class Onlooker(Actor):
    """A client of `open_state`, on one store or on all partitions: it reads what was committed and nothing else."""

    _tables: Tables
    _settings: Settings

    def read_now_and_then(self, models: list[Model], is_over: Callable[[], bool]) -> None:
        for _ in self._pauses(is_over):
            some = self._chance.choice([models, [self._chance.choice(models)]])
            name = some[0].store if len(some) == 1 else some[0].store.rsplit("/", 2)[0]
            still_promised = some[0].watch()
            queries = [model.query for model in models]
            batch = ended_batch(models)
            try:
                opened = StateReader(self._tables, self._settings, name)
            except (ConfigurationError, VersionMissingError) as failed:
                self._scheduler.note("%s cannot be opened: %s", name, failed)
                if len(some) > 1 and batch is not None and batch == ended_batch(models):
                    raise violation("a batch that has ended cannot be opened", store=name, error=failed) from failed
                if len(some) == 1 and still_promised():
                    raise violation("a promised version cannot be opened", store=name, error=failed) from failed
                continue
            except UnavailableError as failed:
                self._scheduler.note("%s cannot be opened now: %s", name, failed)
                continue
            with closing(opened):
                earlier = {model.store for model in models if model.query != models[0].query}
                if len(some) > 1 and queries == [model.query for model in models] and earlier & {*opened.stores}:
                    raise violation("a reader has a partition of an earlier query", stores=" ".join(sorted(earlier)))
                for _ in range(self._chance.randrange(8)):
                    # A partition without a version when it was opened is not in it.
                    self._read([model for model in some if model.store in opened.stores], opened)
                    self._pause()

    def _read(self, models: list[Model], opened: StateReader) -> None:
        kind = self._chance.choice([self._rows, self._rows, self._get, self._before, self._changes, self._diff, None])
        try:
            if kind is None:
                opened.refresh()
                self._scheduler.note("refreshed to %d of %s", opened.version, opened.store)
                self._check_lineages(models, opened)
            else:
                kind(models, opened)
        except (ConfigurationError, UnavailableError, VersionMissingError, CorruptStateError) as failed:
            # Where a version is no longer promised, clean-up may have deleted it, or a drop the store.
            self._scheduler.note("%s: %s", opened.store, failed)

    def _nodes(self, models: list[Model], opened: StateView) -> list[Node]:
        pairs = [(model, entry.id) for model, (_, entry) in zip(models, opened._current(), strict=True)]
        return [model.nodes[version] for model, version in pairs]

    def _check_lineages(self, models: list[Model], opened: StateView) -> None:
        """Check that all versions of a reader are those that its newest one was computed from."""
        by_store = {model.store: model for model in models}  # a refresh may add partitions
        for lineage in (each.lineage for each in opened._partitions if each.store in by_store):
            model = by_store[lineage.store]
            newest = model.nodes[lineage.newest.id]
            expected = [model.ancestor(newest, entry.version).version for entry in lineage.entries]
            self._compare([short(entry.id) for entry in lineage.entries], list(map(short, expected)), [newest])

    def _rows(self, models: list[Model], opened: StateView) -> None:
        nodes = self._nodes(models, opened)
        with self._must_be_readable(models, nodes):
            rows = sorted(opened, key=str)
        expected = [row for node in nodes for row in as_rows(node.state)]
        self._compare(rows, sorted(expected, key=str), nodes)
        self._compare(len(opened), len(expected), nodes)
        self._scheduler.note("read %d rows of %s", len(rows), " ".join(short(node.version) for node in nodes))

    def _get(self, models: list[Model], opened: StateReader) -> None:
        nodes, key = self._nodes(models, opened), key_of(self._chance.randrange(KEYS))
        with self._must_be_readable(models, nodes):
            row = opened.get(KEY.decode(key))
        stored = [one for node in nodes for one in as_rows({key: node.state[key]} if key in node.state else {})]
        if row not in stored and (row is not None or stored):
            raise violation("wrong row of a key", key=key, found=row, stored=stored)

    def _before(self, models: list[Model], opened: StateReader) -> None:
        """An earlier version, which must be an ancestor of this one."""
        versions = opened.versions()
        if not versions:
            return
        earlier = opened.at(self._chance.choice(versions))
        if earlier.version <= opened.version:
            nodes = zip(models, self._nodes(models, opened), strict=True)
            under = [model.ancestor(node, earlier.version) for model, node in nodes]
            self._compare(self._nodes(models, earlier), under, under)
        self._rows(models, earlier)

    def _changes(self, models: list[Model], opened: StateReader) -> None:
        base = max(0, opened.version - self._chance.randrange(4))
        nodes = self._nodes(models, opened)
        rows = list(opened.changes(base))
        expected: list[tuple[int, str, Row]] = []
        for number in range(base + 1, opened.version + 1):
            for model, node in zip(models, nodes, strict=True):
                ancestor = model.ancestor(node, number)
                expected += ((number, *_as_reported(change)) for change in ancestor.changes)
        self._compare(rows, expected, nodes)

    def _diff(self, models: list[Model], opened: StateReader) -> None:
        nodes, first = self._nodes(models, opened), max(0, opened.version - self._chance.randrange(4))
        rows = [(each.key["key"], each.before, each.after) for each in opened.diff(first, opened.version)]
        expected = []
        for model, node in zip(models, nodes, strict=True):
            was = model.ancestor(node, first)
            for key in {*was.state, *node.state}:
                pair = [as_rows({key: side.state[key]})[0] if key in side.state else None for side in (was, node)]
                expected += [(KEY.decode(key)["key"], *pair)] if pair[0] != pair[1] else []
        self._compare(sorted(rows, key=str), sorted(expected, key=str), nodes)

    @contextmanager
    def _must_be_readable(self, models: list[Model], nodes: list[Node]) -> Iterator[None]:
        """Check that no version is missing or corrupt that is promised during the whole read."""
        watched = [model.watch() for model in models]
        try:
            yield
        except (VersionMissingError, CorruptStateError) as failed:
            store = failed.facts.get("store")
            # Of several stores the failure is of one, which may be read at a version that the driver has not chosen.
            concerned = {store} if store in {model.store for model in models} else {model.store for model in models}
            triples = zip(models, watched, nodes, strict=True)
            still = [
                node.version
                for model, still_promised, node in triples
                if model.store in concerned and node.version in still_promised()
            ]
            if still:
                versions = " ".join(map(short, still))
                raise violation("a promised version cannot be read", versions=versions, error=failed) from failed
            raise

    def _compare(self, rows: object, expected: object, nodes: list[Node]) -> None:
        if rows != expected:
            versions = " ".join(short(node.version) for node in nodes)
            raise violation("a reader returns something else", versions=versions, found=rows, expected=expected)


def _as_reported(change: Change) -> tuple[str, Row]:
    """Kind and row of a change as a reader reports it."""
    if change.value is None:
        return "remove", KEY.decode(change.key)
    kind = "append" if change.operation == MERGE else "put"
    return kind, _as_row(change.key, [change.value])


@dataclass
class Operator(Actor):
    """Runs `dynastate compact` and `dynastate clean` beside the query, whatever the network does."""

    _tables: Tables
    _engines: Callable[[], Engine]

    def run_now_and_then(self, models: list[Model], is_over: Callable[[], bool], retain: int) -> None:
        for _ in self._pauses(is_over):
            model, what = self._chance.choice(models), self._chance.choice((COMPACT, CLEAN))
            still_promised = model.watch()
            try:
                with closing(self._engines()) as engine, self._scheduler.doing(what):
                    if what == COMPACT:
                        result: object = compact_store(engine, self._tables, model.store)
                    else:
                        result = clean_store(engine, self._tables, model.store, retain)
            except CorruptStateError as failed:
                if still_promised():
                    raise violation("a command finds the store corrupt", store=model.store, error=failed) from failed
                self._scheduler.note("%s of %s: %s", what, model.store, failed)
            except (ConfigurationError, UnavailableError, UnknownOutcomeError, VersionMissingError) as failed:
                self._scheduler.note("no %s of %s: %s", what, model.store, failed)
            else:
                self._scheduler.note("%s of %s: %s", what, model.store, result)
