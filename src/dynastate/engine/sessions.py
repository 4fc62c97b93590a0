"""Sessions of query runs: epochs, and the meta item that they are entered into."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from dynastate.engine.cache import Cache
from dynastate.engine.graphs import read_graph
from dynastate.engine.known import KnownStores
from dynastate.engine.namespaces import is_entered, list_store, refuse_deleting, refuse_location
from dynastate.engine.objects import enter_location
from dynastate.engine.updates import advance_epoch
from dynastate.errors import ConfigurationError, CorruptStateError, UnavailableError
from dynastate.format.items import Item, size_of
from dynastate.format.keys import NO_ATTEMPT, meta_key
from dynastate.format.meta import (
    EPOCHS_KEPT,
    OBJECTS,
    ORIGIN,
    QueryRun,
    StoreMeta,
    meta_item,
    meta_lost,
    newest_epoch,
    parse_meta,
)
from dynastate.storage.tables import Tables
from dynastate.version import __version__

#: Stores whose epoch and shards one executor remembers; forgetting one costs a read.
SESSIONS_MAX: Final = 10_000


@dataclass
class Session:
    """A query run and a store that it writes to: its epoch, the store's shards, schema items written."""

    store: str
    run_id: str
    epoch: int
    shards: int
    schemas: set[bytes] = field(default_factory=set)
    has_removed_orphans: bool = False
    """Orphans of other runs and executors are looked for once, by the first clean-up."""


@dataclass(eq=False)
class Sessions:
    """The sessions of all runs that write here. Safe for threads. Stores that are made here have `shards`.

    `location` is where they may write objects, if they do.
    """

    _known: KnownStores
    _shards: int
    _location: str
    _now: Callable[[], datetime]
    _sessions: Cache[tuple[str, str], Session] = field(init=False, default_factory=lambda: Cache(SESSIONS_MAX))
    #: Runs that are in the record of their namespace.
    _recorded: Cache[tuple[str, str], bool] = field(init=False, default_factory=lambda: Cache(SESSIONS_MAX))

    def known(self, store: str, run_id: str) -> Session | None:
        """The session of a run, if it has written to the store here."""
        return self._sessions.get((store, run_id))

    def enter(self, tables: Tables, store: str, run: QueryRun, base: int) -> Session:
        """Epoch and shards for a query run, entered into the meta item when it first writes to the store.

        Raises:
            ConfigurationError: the store belongs to another query, or is being dropped, or a newer run writes to it, as
                far as was seen here.
        """
        session = self.known(store, run.id)
        if session is None:
            found = self._enter_run(tables, store, run, base)
            session = self._sessions.get_or_put((store, run.id), found, 1)
        newest = self._known.newest_epoch(store)
        if session.epoch < newest:
            raise ConfigurationError(
                "a newer run of this query writes to this store, so this one is over",
                store=store,
                run=run.id,
                epoch=session.epoch,
                newest=newest,
            )
        return session

    def _enter_run(self, tables: Tables, store: str, run: QueryRun, base: int) -> Session:
        """Give a query run its epoch.

        1. Read the meta item. 2. Read the record of the namespace, after that, and enter the run into it, if it is not
        in it: so the record has each run before any store has it. It is read once here, and again for a store that is
        another query's: so no run takes over a store of a query that began after its own. 3. If there is no meta item,
        the store must be new: list it, then make it. 4. Unless the run is in it, raise the epoch and enter the run, if
        none has entered meanwhile and no drop deletes the store's items; then read again.

        A crash after 2 leaves a run in the record that no store has: until it has one of partition 0, the query before
        is the current one. A crash within 3 leaves a store in the list that is not there. A crash after 3 or 4 leaves
        an unused epoch: epochs only break ties.
        """
        key, now = meta_key(store), self._now().isoformat(timespec="seconds")
        for _ in range(EPOCHS_KEPT):
            meta = tables.get([key]).get(key)  # 1
            if meta is None:
                first = 1 + self._dropped_epoch(tables, store, base)
                if not is_entered(tables, store, None, run):  # 2
                    continue
                objects = frozenset([self._location] if self._location else [])
                queries, locations = {first: run.query}, {first: run.location}
                described = StoreMeta(self._shards, {run.id: first}, queries, now, locations, objects)
                fresh = meta_item(store, described, __version__, now)
                list_store(tables, store)  # 3
                if tables.put_new(key, fresh):
                    self._known.account(store).wrote(key.sort, size_of(fresh))
                    self._known.forget_above(store, 0)
                    return Session(store, run.id, first, self._shards)
                continue
            found = parse_meta(store, meta)
            own = newest_epoch(found, run.id)
            if own is not None:
                self._known.forget_above(store, own)
            self._known.saw_epoch(store, found.epoch)
            if run.id in found.epochs:
                enter_location(tables, store, found, self._location)
                return Session(store, run.id, found.epochs[run.id], found.shards)
            refuse_deleting(tables, store, meta)
            entered = _entered(store, meta, found, run, base, now)
            is_known = found.query == run.query and self._recorded.get((key.namespace, run.id))
            if not (is_known or is_entered(tables, store, found, run)):  # 2
                continue
            self._recorded.get_or_put((key.namespace, run.id), True, 1)
            if self._location and self._location not in found.objects:
                entered[OBJECTS] = found.objects | {self._location}
            advance_epoch(tables, key, run.id, found.epochs, entered)  # 4
        raise UnavailableError("too many query runs open this store at once", store=store, run=run.id)

    def _dropped_epoch(self, tables: Tables, store: str, base: int) -> int:
        """The newest epoch of the dropped store that a new one replaces, or 0: what comes late has a lower epoch.

        Refuse a store that lost its meta item: epochs that start again would lose to the old ones.
        """
        if base > 0:
            with suppress(CorruptStateError):
                graph = read_graph(tables, self._known, store, 0, 0)
                if graph.is_empty:
                    graph.find(base, NO_ATTEMPT)  # it says what may have become of the store
            raise meta_lost(store)
        graph = read_graph(tables, self._known, store, 0, 0)
        # Another executor may have made the store meanwhile; its meta item is older than its first version.
        if graph.versions() and graph.meta is None:
            raise meta_lost(store)
        return graph.dropped_epoch


def _entered(store: str, item: Item, meta: StoreMeta, run: QueryRun, base: int, now: str) -> Item:
    """The attributes of a meta item that a run changes when it enters, beside its epoch; a run may be refused."""
    if ORIGIN in item and base == 0:
        raise ConfigurationError(
            "this namespace is a fork, and this query starts from nothing: start it on a copy of the checkpoint of "
            f"{str(item[ORIGIN]).split('/')[0]}, or in another namespace",
            store=store,
        )
    refuse_location(store, meta.location, run)
    return meta.entered_by(run, base, now)
