"""Opening versions: routes, rows, buckets, keys, and the changes of versions. Nothing here writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from dynastate.engine.graphs import learn_route, read_graph
from dynastate.engine.hash_ranges import ALL, HashRange, hash_ranges
from dynastate.engine.known import KnownStores
from dynastate.engine.lineage import CommittedVersion, Lineage
from dynastate.engine.reader import PartReader
from dynastate.engine.route import Route
from dynastate.errors import CorruptStateError, RouteInvalidError, VersionMissingError
from dynastate.format.graph import VersionGraph, since
from dynastate.format.keys import EMPTY, NO_ATTEMPT, VERSION_MAX, Attempt, VersionId
from dynastate.format.manifest import SnapshotManifest
from dynastate.format.meta import QueryRun
from dynastate.format.parts import StoredChunk
from dynastate.format.version_list import VersionEntry
from dynastate.redaction import get_logger
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables

log = get_logger("dynastate.store")

T = TypeVar("T")

#: Routes to a version that are tried: each failure skips a corrupt snapshot, which are few.
ROUTES_MAX: Final = 10
#: A reader that follows a store reads all its lists again after this many versions: clean-up has deleted entries.
ADDED_MAX: Final = 1_000


@dataclass(frozen=True)
class Opening:
    """An opened version: its entry, its base, and the chunks of the `entries` after the base, oldest first.

    If it begins with a snapshot, `snapshot` is the snapshot's version, and `snapshot_chunks` come before `chunks`.
    `after` is the version before the first of `entries`. Both kinds of chunks together have `records` records. A reader
    of some rows best reads them in 2^bits buckets. If it `applies_held`, the changes that the receiver holds are a part
    of the version, between `snapshot_chunks` and `chunks`; else the receiver must not apply them.
    """

    entry: VersionEntry
    base: VersionId
    schema: str
    bits: int
    snapshot: int
    after: int
    entries: tuple[VersionEntry, ...]
    records: int
    snapshot_chunks: Iterator[StoredChunk]
    chunks: Iterator[StoredChunk]
    meter: Meter
    applies_held: bool = False


@dataclass(frozen=True)
class HeldChanges:
    """The changes that a receiver holds: after the version `snapshot` (all if 0), up to the version `upto`."""

    snapshot: int
    upto: VersionId


@dataclass(frozen=True)
class ChangeFeed:
    """Versions with their chunks, oldest first, and the schema of the newest version."""

    attempt: Attempt
    schema: str
    versions: Iterator[tuple[int, Iterator[StoredChunk]]]
    meter: Meter


def retry_routes(answer: Callable[[int], T]) -> T:
    """Retry `answer` while there may be another route to a version. Its argument is the number of failed routes."""
    for failures in range(ROUTES_MAX):
        with suppress(RouteInvalidError):
            return answer(failures)
    return answer(ROUTES_MAX)


def _retry_lost(answer: Callable[[], T]) -> T:
    """Retry `answer` if an item is lost: between two pages of a Query, versions may be made again, or dropped."""
    try:
        return answer()
    except CorruptStateError:
        return answer()


class VersionOpener:
    """Opens versions for one request. Its `tables` count the cost.

    `find`, `buckets` and `lookup` raise the same errors as `open`.
    """

    def __init__(self, tables: Tables, reader: PartReader, known_stores: KnownStores) -> None:
        self._tables = tables
        self._reader = reader
        self._known_stores = known_stores

    def open(
        self, store: str, version: int, attempt: Attempt, have: Sequence[VersionId] = (), run: QueryRun | None = None
    ) -> Opening:
        """Open a version for a provider that holds the versions in `have`, and for the `run` that asks, if any.

        1. One strongly consistent Query returns the version lists and the meta item. It is not sent for a named attempt
           whose version was committed or opened here, and sent twice if the items do not fit together.
        2. Pick the entry: the named attempt, or the highest epoch of the attempts that may be the run's.
        3. Follow parents down to the newest version in `have`, to a snapshot, or to version 0.
        4. Read the snapshot's buckets and the parts of the deltas with parallel BatchGetItem, verify them, and pass
           them on in order. A corrupt snapshot is skipped from then on, if there is older data to fall back to.

        It only reads: a crash after any step leaves nothing behind. Chunks are read while they are consumed.

        Raises:
            VersionMissingError: there is no such version, or not by that attempt, or only another query's.
            ConfigurationError: two locations have made the version, and its number may mean either one.
            CorruptStateError: an item is lost or corrupt; from here, or while chunks are consumed.
            RouteInvalidError: the same; opened again, without `have`, the version may have another route.
        """
        route = self._known_route(store, version, attempt)
        if route is None:
            route = self._near_route(store, version, attempt, have=have, run=run)
        route = route or self._find_route(store, version, attempt, run)  # 1, 2, 3
        return self._opening(route, have=have)  # 4

    def find(self, store: str, version: int, attempt: Attempt, run: QueryRun | None = None) -> Opening:
        """Open a version without its rows, which `buckets` returns. Costs at most one Query and a manifest."""
        route = self._route(store, version, attempt, run)
        return replace(self._opening(route), snapshot_chunks=iter(()), chunks=iter(()))

    def buckets(
        self,
        store: str,
        version: int,
        attempt: Attempt,
        bits: int,
        numbers: Sequence[int],
        held_changes: HeldChanges | None = None,
    ) -> Opening:
        """The rows of a version in some of 2^bits buckets; chunks may contain other rows too.

        Of the changes since the snapshot, only parts that may contain such rows are read. The `held_changes` are not
        read if the route begins with their snapshot and leads over their version: then it `applies_held`.
        """
        route = self._route(store, version, attempt)
        return self._partly(route, hash_ranges(bits, numbers), held_changes)

    def lookup(self, store: str, version: int, attempt: Attempt, digest: int) -> Opening:
        """The rows of a version whose keys may have a hash. Chunks contain some other rows of their bucket, too."""
        route = self._route(store, version, attempt)
        return self._partly(route, [(digest, digest)], None)

    def lookup_since(
        self, store: str, version: int, attempt: Attempt, digest: int, *, since: VersionId
    ) -> Opening | None:
        """The changes after an earlier version, `since`, of keys that may have a hash, and of some others.

        Returns None if the route to the version is not known, or does not lead over the earlier one.
        """
        route = self._known_route(store, version, attempt)
        path = None if route is None else route.since([since])
        if route is None or path is None:
            return None
        within = [(digest, digest)]
        chunks = self._reader.changes(self._tables, store, path[1], route.shards, within=within, reads_all=False)
        return replace(self._opening(route, have=[since]), chunks=self._changes(store, path[1], chunks))

    def _partly(self, route: Route, within: Sequence[HashRange], held_changes: HeldChanges | None) -> Opening:
        """The rows on a route whose hashes lie within some ranges."""
        opening = self._opening(route, within=within)
        after, entries, path = opening.after, route.entries, None
        if held_changes is not None and held_changes.snapshot == opening.snapshot:
            path = route.since([held_changes.upto])
        if path is not None:
            after, entries = path[0].version, path[1]
        chunks = self._reader.changes(self._tables, route.store, entries, route.shards, within=within, reads_all=False)
        chunks = self._changes(route.store, entries, chunks)
        return replace(opening, after=after, entries=entries, chunks=chunks, applies_held=path is not None)

    def _route(self, store: str, version: int, attempt: Attempt, run: QueryRun | None = None) -> Route:
        return self._known_route(store, version, attempt) or self._find_route(store, version, attempt, run)

    def _known_route(self, store: str, version: int, attempt: Attempt) -> Route | None:
        """The known route to a named attempt. A bare number may mean another attempt each time."""
        return None if attempt == NO_ATTEMPT else self._known_stores.route(store, version, attempt)

    def _find_route(self, store: str, version: int, attempt: Attempt, run: QueryRun | None) -> Route:
        graph, entry, base, entries = _retry_lost(lambda: self._walk(store, version, attempt, run))
        route = learn_route(self._tables, self._known_stores, graph, base=base, entries=entries)
        for path_entry in entries:
            error = graph.skipped.get(path_entry.id)
            if error is not None:
                error.name_table(self._tables.names)
                about = f"store={store} version={version} attempt={entry.attempt.hex()}"
                log.warning("recovery skips a corrupt snapshot %s: %s", about, error)
        return route

    def _walk(
        self, store: str, version: int, attempt: Attempt, run: QueryRun | None
    ) -> tuple[VersionGraph, VersionEntry, VersionId, list[VersionEntry]]:
        """The graph of a version, its entry, the base of its route, and the entries after the base."""
        graph = self._graph(store, 0, version)
        entry = graph.find(version, attempt, run)
        base, entries = graph.route(entry.version, entry.attempt)
        return graph, entry, base, entries

    def _near_route(
        self, store: str, version: int, attempt: Attempt, have: Sequence[VersionId], run: QueryRun | None
    ) -> Route | None:
        """The route from the newest version in `have` to its descendant. Reads only the newest version lists."""
        lowest = max((number for number, _ in have if number <= version), default=0)
        if lowest == 0:
            return None
        graph = self._graph(store, lowest, version)
        # Which of several attempts can be opened is known by older lists, too.
        if attempt == NO_ATTEMPT and len(graph.newest_attempts(version, run)) > 1:
            return None
        try:
            entry = graph.find(version, attempt, run)
        except VersionMissingError:
            return None
        path = since(graph.ancestors(entry), have)
        if path is None:
            return None
        base, entries = path
        shards = graph.required_meta.shards if entries else 0
        start, schemas = graph.entry(base.version, base.attempt), graph.schemas([entry])
        return Route(store, snapshot=None, start=start, entries=entries, schemas=schemas, shards=shards)

    def _opening(self, route: Route, *, have: Sequence[VersionId] = (), within: Sequence[HashRange] = ALL) -> Opening:
        path = route.since(have)
        if path is not None:
            base, entries = path
            manifest = None
        else:
            base, entries, manifest = EMPTY, route.entries, route.snapshot
        snapshot = 0 if manifest is None else manifest.version
        stored_chunks = self._reader.changes(self._tables, route.store, entries, route.shards, within=within)
        return Opening(
            entry=route.end,
            base=base,
            schema=route.schema,
            bits=route.bits,
            snapshot=snapshot,
            after=base.version or snapshot,
            entries=entries,
            records=route.records if path is None else sum(each.records for each in entries),
            snapshot_chunks=iter(()) if manifest is None else self._rows(route, manifest, within),
            chunks=self._changes(route.store, entries, stored_chunks),
            meter=self._tables.meter,
        )

    def _rows(self, route: Route, manifest: SnapshotManifest, within: Sequence[HashRange]) -> Iterator[StoredChunk]:
        """The rows of a snapshot. A corrupt snapshot is skipped from then on."""
        try:
            yield from self._reader.rows(self._tables, route.store, manifest, route.shards, within=within)
        except CorruptStateError as error:
            self._known_stores.skip_snapshot(route.store, manifest.id, error)
            raise RouteInvalidError(str(error.args[0]), **error.facts) from error

    def _changes(
        self, store: str, entries: Sequence[VersionEntry], chunks: Iterator[StoredChunk]
    ) -> Iterator[StoredChunk]:
        """The changes of the versions on a route, read when they are asked for.

        If clean-up has deleted a part that a snapshot covers, there is another route to the last version.
        """
        try:
            yield from chunks
        except CorruptStateError as error:
            self._known_stores.routes.drop(store)
            route = self._find_route(store, entries[-1].version, entries[-1].attempt, None)
            if all(each in route.entries for each in entries):  # neither deleted nor, by erasing, rewritten
                raise
            raise RouteInvalidError(str(error.args[0]), **error.facts) from error

    def lineage(
        self, store: str, previous: Lineage | None = None, committed: CommittedVersion | None = None
    ) -> Lineage:
        """The newest version, or a committed one, and its ancestors that can be opened, by one Query.

        With a `previous` lineage only newer versions are read. All versions are read if a run of the query did not
        continue from it, and after `ADDED_MAX` versions.

        Raises:
            VersionMissingError: there is no version, or not the committed one.
        """
        return _retry_lost(lambda: self._lineage(store, previous, committed))

    def _lineage(self, store: str, previous: Lineage | None, committed: CommittedVersion | None) -> Lineage:
        if previous is not None and previous.added < ADDED_MAX:
            graph = self._graph(store, previous.newest.version, VERSION_MAX)
            newest = self._newest(graph, committed) if graph.versions() else None
            entries = graph.lineage(newest) if newest else []
            # All versions of a query that started over may be lower: they are not read here, but their epoch is.
            is_newest = committed or (graph.meta is not None and entries and entries[-1].epoch == graph.meta.epoch)
            if previous.newest in entries and is_newest:
                newer_entries = entries[entries.index(previous.newest) + 1 :]
                schemas = {**previous.schemas, **{entry.schema: graph.schema(entry) for entry in newer_entries}}
                self._extend_route(store, previous.newest, newer_entries, schemas)
                runs = {**previous.runs, **graph.runs}
                added = previous.added + len(newer_entries)
                all_entries = (*previous.entries, *newer_entries)
                return Lineage(store, all_entries, schemas, self._tables.meter, added=added, runs=runs)
        graph = self._graph(store, 0, VERSION_MAX)
        newest = self._newest(graph, committed)
        if newest is None:
            raise VersionMissingError(
                "the version that the checkpoint's last batch committed is not there; try again",
                store=store,
                version=committed and committed.version,
            )
        entries = graph.openable(graph.lineage(newest))
        return Lineage(store, tuple(entries), graph.schemas(entries), self._tables.meter, runs=graph.runs)

    def _newest(self, graph: VersionGraph, committed: CommittedVersion | None) -> VersionEntry | None:
        return graph.newest() if committed is None else graph.find_any(committed.version, committed.attempts)

    def _graph(self, store: str, lowest: int, highest: int) -> VersionGraph:
        return read_graph(self._tables, self._known_stores, store, lowest=lowest, highest=highest)

    def _extend_route(
        self, store: str, newest: VersionEntry, newer_entries: Sequence[VersionEntry], schemas: Mapping[bytes, str]
    ) -> None:
        route = self._known_stores.route(store, newest.version, newest.attempt)
        if route is not None and newer_entries:
            for entry in newer_entries:
                route = route.then(entry, schemas[entry.schema])
            self._known_stores.remember(route)

    def changes(
        self, store: str, first: int, last: int, attempt: Attempt, *, within: Sequence[HashRange] = ALL
    ) -> ChangeFeed:
        """The changes of each version from `first` to `last`, as they were committed.

        Chunks without a hash `within` some ranges are left out.

        Raises:
            VersionMissingError: a version does not exist, or was imported, or `last` is not by that attempt; from here,
                or while chunks are consumed: clean-up may delete versions meanwhile.
            CorruptStateError: an item is lost or corrupt; the same.
        """
        lowest = max(first - 1, 0)
        graph = self._graph(store, lowest, last)
        entries = graph.span(first, last, attempt)
        newest = entries[-1]
        shards = graph.required_meta.shards

        def chunks_of(entry: VersionEntry) -> Iterator[StoredChunk]:
            try:
                yield from self._reader.changes(self._tables, store, [entry], shards, within=within)
            except CorruptStateError as lost:
                # Clean-up may have deleted the version meanwhile: then it is missing, not corrupt.
                if entry not in self._graph(store, lowest, last).span(first, last, attempt):
                    raise VersionMissingError(
                        "rows were erased from this version while its changes were read: read them again",
                        store=store,
                        version=entry.version,
                    ) from lost
                raise

        return ChangeFeed(
            newest.attempt,
            graph.schema(newest),
            ((entry.version, chunks_of(entry)) for entry in entries),
            self._tables.meter,
        )
