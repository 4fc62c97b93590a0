"""State that follows its query, for a process that serves look-ups. Safe for threads.

What is shown is a view of one batch, whole in all partitions. A look moves to a newer one: it makes another view, and
puts it in the place of the first. So a look-up that has begun never sees two batches.

    checkpoint in DynamoDB   one Query reads the newest commits, which name the attempt of each partition
    elsewhere                one Query reads the newest versions of partition 0; others are read when it has new ones

A version that the shown one was computed from is never shown again. While a query that was started again, or taken
back, makes versions again, the last batch of the earlier run stays, until one of the new run is whole.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, Final, TypeVar

from dynastate import runtime
from dynastate.engine.cache import Cache
from dynastate.engine.catalog import is_first_batch_over, matching
from dynastate.engine.engine import Engine
from dynastate.engine.graphs import find_meta
from dynastate.engine.lineage import CommittedVersion, Lineage, of_one_run
from dynastate.errors import ConfigurationError, DynastateError, VersionMissingError
from dynastate.reader.commits import Commit, CommitLog, log_at
from dynastate.reader.families import Row, families_at
from dynastate.reader.partition import Partition, Source
from dynastate.reader.placement import Placement
from dynastate.reader.view import StateView, choose_family, naming
from dynastate.redaction import get_logger
from dynastate.settings import Settings
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables

log = get_logger("dynastate.follow")

T = TypeVar("T")

#: The interval between two looks, unless another one is given.
EACH_SECOND: Final = timedelta(seconds=1)
#: Reads are refused once no look has succeeded for this time.
STALE_AFTER: Final = timedelta(minutes=1)
#: The longest an idle thread sleeps before it sees that its state was closed.
_INTERVAL_MAX: Final = timedelta(days=1)
#: One look of so many, while there is nothing new, finds out whether the checkpoint was moved.
_LOOKS_BY_LOCATION: Final = 10
#: After so many versions the way to read a partition begins with its newest snapshot again.
_VERSIONS_BY_ROUTE: Final = 10


class _Partitions(Sequence[Partition]):
    """The partitions of an operator, each read when it is first used."""

    def __init__(self, used: dict[int, Partition], count: int, read: Callable[[int], Partition]) -> None:
        self.used = used
        self._count = count
        self._read = read

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Partition:  # type: ignore[override]  # nothing takes a slice
        if number >= self._count:
            raise IndexError(number)
        if number not in self.used:
            self.used[number] = self._read(number)  # two threads may both read it, and find the same
        return self.used[number]


class FollowedView(StateView):
    """The state at one batch of a query that is followed. It stays there. It can be used by several threads."""

    _partitions: _Partitions

    def __init__(
        self,
        source: Source,
        placement: Placement,
        store: str,
        family: str,
        stores: Sequence[str],
        lineages: Sequence[Lineage],
        read: Callable[[int], Lineage],
    ) -> None:
        super().__init__(source, placement, store, family, lineages=(), version=lineages[0].newest.version)
        self._stores = tuple(stores)
        partitions = {self._stores.index(each.store): self._partition(each) for each in lineages}
        self._partitions = _Partitions(partitions, len(stores), lambda number: self._partition(read(number)))

    @property
    def stores(self) -> tuple[str, ...]:
        """The stores that are read, one a partition."""
        return self._stores

    @property
    def placement(self) -> Placement:
        """The rule by which rows are placed."""
        return self._placement

    @property
    def lineages(self) -> dict[str, Lineage]:
        """The lineages of the partitions that were used so far."""
        return {each.store: each.lineage for each in [*self._partitions.used.values()]}

    @property
    def first(self) -> Lineage:
        """The lineage of the first partition, which every view has."""
        return self._partitions[0].lineage


class StateFollower:
    """The newest whole batch of one store, or of an operator in all its partitions, while its query runs.

    Safe for threads. Close it, or use it in a `with`. Look-ups see the batch that the last look has found. Looks are
    made by a thread at each `interval`; if that is zero, only `refresh` looks.
    """

    def __init__(
        self,
        tables: Tables,
        settings: Settings,
        store: str,
        family: str | None = "",
        *,
        interval: timedelta = EACH_SECOND,
        stop_tables: Callable[[], None] = lambda: None,
        close_tables: Callable[[], None] = lambda: None,
    ) -> None:
        if not timedelta() <= interval <= _INTERVAL_MAX:
            raise ConfigurationError("state is followed at intervals from zero to a day", follow=interval)
        self.store = store
        self._tables = tables
        self._stop_tables = stop_tables
        self._close_tables = close_tables
        self._interval = interval
        self._pool = runtime.pool(settings.parallel_requests, "dynastate-state")
        self._callers = runtime.pool(settings.parallel_requests, "dynastate-async")
        self._source = Source(
            Engine(tables, settings), Meter(), rows=Cache(settings.cache_mb * 1024 * 1024), pool=self._pool
        )
        self._looking = threading.Lock()
        self._log: CommitLog | None = None
        self._read: dict[str, Lineage] = {}
        self._has_other_stores = self._is_behind = False
        self._idle_looks = 0
        self._failure: DynastateError | None = None
        with ExitStack() as when_failed:
            when_failed.callback(self.close)
            with naming(self._source):
                self._began_at = runtime.monotonic()
                self._view = self._open(family)
            when_failed.pop_all()
        self._opened_at = self._view.version
        if interval:
            runtime.thread(self._follow, "dynastate-follow").start()

    def __enter__(self) -> StateFollower:  # noqa: PYI034  # Self comes with Python 3.11, and it has no subclasses
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads and close the connections, also for views that `view` gave."""
        self._source.closed.set()
        self._stop_tables()  # also for a look under way
        with self._looking:
            self._callers.shutdown(cancel_futures=True)
            self._pool.shutdown(cancel_futures=True)
            self._source.engine.close()
            self._close_tables()

    @property
    def view(self) -> StateView:
        """The state at the batch that is shown, for everything but look-ups. The view stays at this batch.

        Raises:
            DynastateError: every look has failed for a minute; it is the error of the last one.
        """
        failure = self._failure
        if self._interval and failure is not None and self.age > max(STALE_AFTER, 2 * self._interval):
            raise failure
        return self._view

    @property
    def version(self) -> int:
        """The version that is shown: the number of its batch, plus one."""
        return self._view.version

    @property
    def age(self) -> timedelta:
        """The time since the last look that succeeded began: no batch that was whole before is missing."""
        return timedelta(seconds=runtime.monotonic() - self._began_at)

    @property
    def meter(self) -> Meter:
        """Requests and units spent so far, by looks and look-ups."""
        return self._source.meter

    def get(self, key: Mapping[str, Any]) -> Row | None:
        """Get the row of a key, which is given by its columns. Returns None if it is not there.

        Rows are cached, and brought to a later version by the changes since.

        Raises:
            DynastateError: as from `view`, and as from `StateView.get`.
        """
        view = self.view
        try:
            return view.get(key)
        except VersionMissingError:
            self.refresh()  # clean-up has deleted the version since the last look
            if self._view is view:
                raise
            return self._view.get(key)

    async def aget(self, key: Mapping[str, Any]) -> Row | None:
        """Get what `get` does, in a thread, while the event loop continues."""
        return await asyncio.get_running_loop().run_in_executor(self._callers, self.get, key)

    def refresh(self) -> bool:
        """Look for a newer batch now; return whether there was one.

        Raises:
            VersionMissingError: the query has begun again, and no batch is whole yet.
            ConfigurationError: the state was dropped, or a permission is missing.
            CorruptStateError: an item is lost or corrupt.
            UnavailableError: throttled, or unreachable, for a minute.
        """
        with self._looking, naming(self._source):
            began_at = runtime.monotonic()
            try:
                view = self._next()
            except DynastateError as failed:
                self._failure = failed
                raise
            self._failure, self._began_at = None, began_at
            if view is not None:
                self._view = view
            return view is not None

    def _follow(self) -> None:
        """Look at each interval, until the state is closed."""
        while not self._source.closed.wait(self._interval.total_seconds()):
            self._look()

    def _look(self) -> None:
        """Look for a newer batch. `view` raises the error of a look that failed, once it is too old."""
        try:
            self.refresh()
        except DynastateError as failed:
            if not self._source.closed.is_set():
                age_s = self.age.total_seconds()
                log.warning("no newer batch was found store=%s age_s=%.0f: %s", self.store, age_s, failed)

    def _open(self, family: str | None) -> FollowedView:
        stores = self._stores()
        self._find_log(stores[0])
        commit = self._commit(stores[0])
        if commit is None:
            lineages = self._whole(stores)
        else:
            committed = commit.of(stores)
            stores = list(committed)
            lineages = self._lineages(stores[:1], {}, committed)
        chosen = choose_family(self.store, family, families_at(lineages[0], lineages[0].newest))
        return self._view_of(chosen, Placement(), stores, lineages, commit=commit)

    def _next(self) -> FollowedView | None:
        """The view of a newer whole batch than the one that is shown. Returns None if there is none."""
        view = self._view
        commit = self._commit(view.stores[0])
        stores: Sequence[str] = view.stores
        if commit is None:
            lineages = self._newer(view)
            if not lineages:
                return None
            stores = [each.store for each in lineages]
        else:
            self._has_other_stores |= not commit.continues
            committed = commit.of(stores)
            if stores[0] in committed and view.first.has(committed[stores[0]]):
                self._check_location(stores[0])
                return None
            if self._has_other_stores or len(committed) != len(stores):
                committed = commit.of(self._stores())
                stores = list(committed)
            used = [each for each in stores if each in view.lineages] or stores[:1]
            lineages = self._lineages(used, view.lineages, committed)
        self._idle_looks, self._has_other_stores = 0, False
        is_other = tuple(stores) != view.stores or not _continues(lineages, view.lineages)
        placement = Placement() if is_other else view.placement
        return self._view_of(view.family, placement, stores, lineages, commit=commit)

    def _view_of(
        self,
        family: str,
        placement: Placement,
        stores: Sequence[str],
        lineages: Sequence[Lineage],
        commit: Commit | None,
    ) -> FollowedView:
        def read(number: int) -> Lineage:
            return self._lineages([stores[number]], {}, commit.of(stores) if commit else {})[0]

        return FollowedView(self._source, placement, self.store, family, stores=stores, lineages=lineages, read=read)

    def _commit(self, store: str) -> Commit | None:
        """The newest commit. Returns None if the checkpoint is not in DynamoDB, or its commits have no ids.

        Refuse a checkpoint in DynamoDB without commits: no batch is whole.
        """
        while self._log is not None:
            previous, files = self._log, self._source.engine.checkpoint_files()
            try:
                commit = previous.newest(files)
            finally:
                self._source.meter.add(files.meter)
            if commit is not None:
                self._read = {}
                return commit
            if not previous.is_empty:
                self._log = None  # checkpoint format v1
                return None
            self._find_log(store)
            if self._log is previous:
                raise VersionMissingError(
                    "the query has committed no batch: it begins, or its checkpoint was deleted; try again when it has",
                    store=self.store,
                    checkpoint=previous.location,
                )
        return None

    def _find_log(self, store: str) -> None:
        meta = self._counted(lambda tables: find_meta(tables, store))
        location = "" if meta is None else meta.location
        if self._log is None or self._log.location != location:
            self._log = log_at(location, store.split("/")[1])

    def _check_location(self, store: str) -> None:
        """Find out now and then, while there is nothing new, where the checkpoint is: it may have been moved."""
        self._idle_looks += 1
        if self._idle_looks % _LOOKS_BY_LOCATION == 0:
            self._find_log(store)

    def _newer(self, view: FollowedView) -> list[Lineage]:
        """The lineages of all partitions up to a newer whole version. Returns an empty list if there is none.

        Others than the first partition are read if that has a new version, or if they had not had it at the last look.
        """
        previous = self._read or view.lineages
        (first,) = self._lineages(view.stores[:1], previous)
        has_changed = first.newest.id != previous[first.store].newest.id
        if not has_changed and not self._is_behind:
            self._check_location(first.store)
            return []
        self._is_behind = True
        # Partitions are added while the first batch commits; another query may have others.
        continues = previous[first.store].newest in first.entries
        if not continues and not self._is_first_batch_over(first.store):
            return []
        is_other = not continues or view.version == self._opened_at
        stores = self._stores() if is_other else view.stores
        if is_other:
            self._find_log(stores[0])
        lineages = self._whole(stores, previous | {first.store: first}, first)
        self._is_behind = lineages[0].newest.id != first.newest.id
        newest = lineages[0].newest
        return [] if view.first.has(CommittedVersion(newest.version, [newest.attempt])) else lineages

    def _whole(
        self, stores: Sequence[str], previous: Mapping[str, Lineage] | None = None, first: Lineage | None = None
    ) -> list[Lineage]:
        """The lineages of stores, up to the newest version that all have of one run."""
        previous = previous or {}
        stale = [each for each in stores if first is None or not _is_level(previous.get(each), first)]
        self._read = dict(previous) | {each.store: each for each in self._lineages(stale, previous)}
        return of_one_run([self._read[each] for each in stores])

    def _lineages(
        self,
        stores: Iterable[str],
        previous: Mapping[str, Lineage],
        committed: Mapping[str, CommittedVersion] | None = None,
    ) -> list[Lineage]:
        """Read the newest versions of stores in parallel, or the committed ones."""

        def read(store: str) -> Lineage:
            lineage = self._source.engine.lineage(store, previous.get(store), (committed or {}).get(store))
            self._source.meter.add(lineage.meter)
            self._renew_route(lineage, previous.get(store))
            return lineage

        return list(self._pool.map(read, stores))

    def _renew_route(self, lineage: Lineage, previous: Lineage | None) -> None:
        """Begin with the newest snapshot again, so that a look-up reads few changes after it."""
        engine, entry = self._source.engine, lineage.newest
        is_due = previous is None or lineage.added // _VERSIONS_BY_ROUTE != previous.added // _VERSIONS_BY_ROUTE
        if is_due and engine.known_stores.routes.get(lineage.store) is not None:
            engine.known_stores.routes.drop(lineage.store)
            self._source.meter.add(engine.find(lineage.store, entry.version, entry.attempt).meter)

    def _stores(self) -> list[str]:
        return self._counted(lambda tables: matching(tables, self.store))

    def _is_first_batch_over(self, store: str) -> bool:
        return self._counted(lambda tables: is_first_batch_over(tables, store))

    def _counted(self, read: Callable[[Tables], T]) -> T:
        """Read from the tables, and count the requests in the meter."""
        tables = self._tables.metered(Meter())
        try:
            return read(tables)
        finally:
            self._source.meter.add(tables.meter)


def _is_level(lineage: Lineage | None, first: Lineage) -> bool:
    """Whether a partition is known to have the newest version of the first one, by the same run."""
    if lineage is None or lineage.newest.version < first.newest.version:
        return False
    run = lineage.runs.get(lineage.newest.epoch)
    return run is not None and run == first.runs.get(first.newest.epoch)


def _continues(lineages: Sequence[Lineage], previous: Mapping[str, Lineage]) -> bool:
    """Whether the versions of the first partition were made from those that were read before."""
    return lineages[0].store in previous and previous[lineages[0].store].newest in lineages[0].entries
