"""Sessions of query runs: the epochs of runs, and their entry into meta items."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from dynastate.engine.cache import Cache
from dynastate.engine.graphs import find_meta, read_graph
from dynastate.engine.known import KnownStores
from dynastate.engine.namespaces import is_entered, list_store, refuse_deleting, refuse_erasing, refuse_location
from dynastate.engine.objects import enter_location
from dynastate.engine.updates import advance_epoch
from dynastate.errors import ConfigurationError, CorruptStateError, UnavailableError
from dynastate.format.items import Item, size_of
from dynastate.format.keys import NO_ATTEMPT, meta_key
from dynastate.format.meta import EPOCHS_KEPT, OBJECTS, QueryRun, StoreMeta, meta_item, meta_lost, newest_epoch
from dynastate.storage.tables import Tables
from dynastate.version import __version__

#: Stores whose epoch and shards one executor remembers; a forgotten store costs a read.
SESSIONS_MAX: Final = 10_000


@dataclass
class Session:
    """A query run and a store that it writes to: the run's epoch, the store's shards, and written schema items."""

    store: str
    run_id: str
    epoch: int
    shards: int
    schemas: set[bytes] = field(default_factory=set)
    has_removed_orphans: bool = False
    """The first clean-up looks for orphans of other runs and executors, once."""


@dataclass(eq=False)
class Sessions:
    """The sessions of all runs that write here. Safe for threads. Stores that are made here have `shards`.

    `location` is the location of their new objects, or "" if they write none.
    """

    _known_stores: KnownStores
    _shards: int
    _location: str
    _clock: Callable[[], datetime]
    _sessions: Cache[tuple[str, str], Session] = field(init=False, default_factory=lambda: Cache(SESSIONS_MAX))
    #: Runs that are in the record of their namespace.
    _recorded: Cache[tuple[str, str], bool] = field(init=False, default_factory=lambda: Cache(SESSIONS_MAX))

    def get(self, store: str, run_id: str) -> Session | None:
        """The session of a run, if it has written to the store here."""
        return self._sessions.get((store, run_id))

    def enter(self, tables: Tables, store: str, run: QueryRun, base: int) -> Session:
        """The session of a query run. The run is entered into the meta item when it first writes to the store."""
        session = self.get(store, run.id)
        if session is None:
            new_session = self._enter_run(tables, store, run, base)
            session = self._sessions.get_or_put((store, run.id), new_session, 1)
        newest_epoch = self._known_stores.newest_epoch(store)
        if session.epoch < newest_epoch:
            raise ConfigurationError(
                "a newer run of this query writes to this store, so this one is over",
                store=store,
                run=run.id,
                epoch=session.epoch,
                newest=newest_epoch,
            )
        return session

    def _enter_run(self, tables: Tables, store: str, run: QueryRun, base: int) -> Session:
        """Give a query run its epoch.

        1. Read the meta item. 2. Then read the record of the namespace, and enter the run if the record does not have
        it: so the record has each run before any store has it. It is read once here, and again for a store of another
        query: so no run takes over a store of a query that began after its own. 3. If there is no meta item, the store
        must be new: list it, then make it. 4. Unless the meta item has the run, raise the epoch and enter the run, if
        no other run has entered meanwhile and no drop deletes the store's items. Then read again.

        A crash after 2 leaves a run in the record that no store has. Until a store of partition 0 has it, the earlier
        query is the current one. A crash within 3 leaves a listed store that does not exist. A crash after 3 or 4
        leaves an unused epoch: epochs only break ties.
        """
        key, time = meta_key(store), self._clock().isoformat(timespec="seconds")
        for _ in range(EPOCHS_KEPT):
            meta = find_meta(tables, store)  # 1
            if meta is None:
                epoch = 1 + self._dropped_epoch(tables, store, base)
                if not is_entered(tables, store, None, run):  # 2
                    continue
                new_meta = StoreMeta(
                    self._shards,
                    {run.id: epoch},
                    {epoch: run.query},
                    time,
                    locations={epoch: run.location},
                    objects=frozenset([self._location] if self._location else []),
                    package=__version__,
                    created=time,
                )
                new_item = meta_item(store, new_meta)
                list_store(tables, store)  # 3
                if tables.put_new(key, new_item):
                    self._known_stores.account(store).wrote(key.sort, size_of(new_item))
                    self._known_stores.forget_above(store, 0)
                    self._known_stores.saw_erasures(store, 0)
                    return Session(store, run.id, epoch, self._shards)
                continue
            run_epoch = newest_epoch(meta, run.id)
            if run_epoch is not None:
                self._known_stores.forget_above(store, run_epoch)
            self._known_stores.saw_epoch(store, meta.epoch)
            self._refuse_erased(store, meta)
            if run.id in meta.epochs:
                enter_location(tables, store, meta, self._location)
                self._known_stores.saw_erasures(store, meta.erasures)
                return Session(store, run.id, meta.epochs[run.id], meta.shards)
            refuse_deleting(tables, store, meta)
            refuse_erasing(store, meta)
            changes = _entered(store, meta, run, base=base, time=time)
            is_known = meta.query == run.query and self._recorded.get((key.namespace, run.id))
            if not (is_known or is_entered(tables, store, meta, run)):  # 2
                continue
            self._recorded.get_or_put((key.namespace, run.id), True, 1)
            if self._location and self._location not in meta.objects:
                changes[OBJECTS] = meta.objects | {self._location}
            advance_epoch(tables, key, run.id, epochs=meta.epochs, attributes=changes)  # 4
        raise UnavailableError("too many query runs open this store at once", store=store, run=run.id)

    def _refuse_erased(self, store: str, meta: StoreMeta) -> None:
        """Refuse a run if rows were erased after this executor read the store: it may have them in memory."""
        known_erasures = self._known_stores.erasures(store)
        if known_erasures is not None and known_erasures < meta.erasures:
            raise ConfigurationError(
                "rows were erased from this store since this executor has read it, and it may still have them in "
                "memory: end the Spark application, and start the query again",
                store=store,
            )

    def _dropped_epoch(self, tables: Tables, store: str, base: int) -> int:
        """The newest epoch of the dropped store that a new store replaces, or 0. Late requests have a lower epoch.

        Refuse a store that lost its meta item: epochs that start again would lose to the old epochs.
        """
        if base > 0:
            with suppress(CorruptStateError):
                graph = read_graph(tables, self._known_stores, store, lowest=0, highest=0)
                if graph.is_empty:
                    graph.find(base, NO_ATTEMPT)  # its error says what may have happened to the store
            raise meta_lost(store)
        graph = read_graph(tables, self._known_stores, store, lowest=0, highest=0)
        # Another executor may have made the store meanwhile: the meta item is older than the first version.
        if graph.versions() and graph.meta is None:
            raise meta_lost(store)
        return graph.dropped_epoch


def _entered(store: str, meta: StoreMeta, run: QueryRun, base: int, time: str) -> Item:
    """The attributes of a meta item, except the epoch, that a run changes when it enters. A run may be refused."""
    if meta.origin and base == 0:
        raise ConfigurationError(
            "this namespace is a fork, and this query starts from nothing: start it on a copy of the checkpoint of "
            f"{meta.origin.split('/')[0]}, or in another namespace",
            store=store,
        )
    refuse_location(store, meta.location, run)
    return meta.entered_by(run, base, time)
