"""Opening versions: routes, rows, buckets, keys, and the changes of versions. Nothing here writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from dynastate.engine.graphs import learn_route, read_graph
from dynastate.engine.hash_ranges import ALL, HashRange, hash_ranges
from dynastate.engine.known import KnownStores
from dynastate.engine.lineage import Lineage
from dynastate.engine.reader import PartReader
from dynastate.engine.route import Route
from dynastate.errors import CorruptStateError, RouteInvalidError, VersionMissingError
from dynastate.format.graph import VersionGraph, since
from dynastate.format.keys import (
    EMPTY,
    NO_ATTEMPT,
    VERSION_MAX,
    Attempt,
    VersionId,
)
from dynastate.format.manifest import SnapshotManifest
from dynastate.format.meta import QueryRun
from dynastate.format.parts import StoredChunk
from dynastate.format.version_list import VersionEntry
from dynastate.redaction import get_logger
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables

log = get_logger("dynastate.store")

T = TypeVar("T")

#: Routes to a version that are tried: each failure skips a corrupt snapshot, and there are few of them.
ROUTES_MAX: Final = 10
#: A reader that follows a store reads all its lists again after this many versions: clean-up has deleted entries.
ADDED_MAX: Final = 1_000


@dataclass(frozen=True)
class Opening:
    """An opened version: its entry, its base, and the chunks of `entries` from there on, oldest first.

    Where it begins with a snapshot, `snapshot` is the version of that, and `snapshot_chunks` come before `chunks`.
    `after` is the version before the first of `entries`. Both kinds of chunks together have `records` records. Its
    rows are best read in 2^bits buckets, where not all are wanted. `applies_held`: the changes that the receiver holds
    are a part of the version, between `snapshot_chunks` and `chunks`; else it must not apply them.
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
    """The changes that a receiver holds: those after the snapshot of a version (0: all) up to the version `upto`."""

    snapshot: int
    upto: VersionId


@dataclass(frozen=True)
class ChangeFeed:
    """Versions with their chunks, oldest first, and the schema of the newest."""

    attempt: Attempt
    schema: str
    versions: Iterator[tuple[int, Iterator[StoredChunk]]]
    meter: Meter


def retry_routes(answer: Callable[[int], T]) -> T:
    """Retry `answer` while there may be another route to a version; it gets the number of failed ones."""
    for failed in range(ROUTES_MAX):
        with suppress(RouteInvalidError):
            return answer(failed)
    return answer(ROUTES_MAX)


def _of_one_moment(read: Callable[[], T]) -> T:
    """Read once more where something is missing, since the pages of a Query are not of one moment.

    Versions may have been made again between two of them, or the store dropped.
    """
    try:
        return read()
    except CorruptStateError:
        return read()


class VersionOpener:
    """Opens versions for one request. Its `tables` count what that costs.

    `find`, `buckets` and `lookup` raise what `open` does.
    """

    def __init__(self, tables: Tables, reader: PartReader, known: KnownStores) -> None:
        self._tables = tables
        self._reader = reader
        self._known = known

    def open(
        self,
        store: str,
        version: int,
        attempt: Attempt,
        have: Sequence[VersionId] = (),
        run: QueryRun | None = None,
    ) -> Opening:
        """Open a version for a provider that holds the versions in `have`, and for a `run`, if one asks.

        1. One strongly consistent Query returns the version lists and the meta item; none, if the attempt is named and
           its version was committed or opened here; a second one, if they do not fit together.
        2. Pick the entry: the given attempt, else the highest epoch of those that may be the run's.
        3. Follow parents down to the newest version in `have`, to a snapshot, or to version 0.
        4. Read the snapshot's buckets, and the parts in between, with parallel BatchGetItem, verify them, and pass them
           on in order. A snapshot that is corrupt is skipped from then on, if there is older data to fall back to.

        It only reads: a crash after any step leaves nothing behind. Chunks are read while they are consumed.

        Raises:
            VersionMissingError: there is no such version, or not by that attempt, or it is another query's only.
            ConfigurationError: two locations have made the version, and its number does not tell which one is meant.
            CorruptStateError: an item is lost or corrupt; from here, or while chunks are consumed.
            RouteInvalidError: the same; opened again, without `have`, the version may have another route.
        """
        route = self._known_route(store, version, attempt)
        if route is None:
            route = self._near_route(store, version, attempt, have, run)
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
        held: HeldChanges | None = None,
    ) -> Opening:
        """The rows of a version in some of 2^bits buckets; chunks may hold other rows too.

        Of the changes since the snapshot only those parts are read that may hold such rows; none that are `held`, if
        the version is read from that snapshot, and by way of that version: then it `applies_held`.
        """
        route = self._route(store, version, attempt)
        return self._partly(route, hash_ranges(bits, numbers), held)

    def lookup(self, store: str, version: int, attempt: Attempt, digest: int) -> Opening:
        """The rows of a version whose keys may have a hash; chunks hold other rows too, and not all of their bucket."""
        route = self._route(store, version, attempt)
        return self._partly(route, [(digest, digest)], None)

    def _partly(self, route: Route, within: Sequence[HashRange], held: HeldChanges | None) -> Opening:
        """The rows on a route whose hashes lie within some ranges."""
        opening = self._opening(route, within=within)
        after, entries, near = opening.after, route.entries, None
        if held is not None and held.snapshot == opening.snapshot:
            near = route.since([held.upto])
        if near is not None:
            after, entries = near[0].version, near[1]
        read = self._reader.changes(self._tables, route.store, entries, route.shards, within=within, reads_all=False)
        chunks = self._changes(route.store, entries, read)
        return replace(opening, after=after, entries=entries, chunks=chunks, applies_held=near is not None)

    def _route(self, store: str, version: int, attempt: Attempt, run: QueryRun | None = None) -> Route:
        return self._known_route(store, version, attempt) or self._find_route(store, version, attempt, run)

    def _known_route(self, store: str, version: int, attempt: Attempt) -> Route | None:
        """The known route to a named attempt; a bare number may mean another one each time."""
        return None if attempt == NO_ATTEMPT else self._known.route(store, version, attempt)

    def _find_route(self, store: str, version: int, attempt: Attempt, run: QueryRun | None) -> Route:
        graph, entry, base, entries = _of_one_moment(lambda: self._walk(store, version, attempt, run))
        route = learn_route(self._tables, self._known, graph, base, entries)
        for each in entries:
            corrupt = graph.skipped.get(each.id)
            if corrupt is not None:
                corrupt.name_table(self._tables.names)
                about = f"store={store} version={version} attempt={entry.attempt.hex()}"
                log.warning("recovery skips a corrupt snapshot %s: %s", about, corrupt)
        return route

    def _walk(
        self, store: str, version: int, attempt: Attempt, run: QueryRun | None
    ) -> tuple[VersionGraph, VersionEntry, VersionId, list[VersionEntry]]:
        """The graph of a version, its entry, the base of its route, and the entries after that."""
        graph = self._graph(store, 0, version)
        entry = graph.find(version, attempt, run)
        return graph, entry, *graph.route(*entry.id)

    def _near_route(
        self,
        store: str,
        version: int,
        attempt: Attempt,
        have: Sequence[VersionId],
        run: QueryRun | None,
    ) -> Route | None:
        """The route from the newest version in `have` to its descendant, by the newest version lists only."""
        lowest = max((held for held, _ in have if held <= version), default=0)
        if lowest == 0:
            return None
        graph = self._graph(store, lowest, version)
        try:
            entry = graph.find(version, attempt, run)
        except VersionMissingError:
            return None
        near = since(graph.ancestors(entry), have)
        if near is None:
            return None
        base, entries = near
        shards = graph.required_meta.shards if entries else 0
        return Route(store, None, graph.entry(*base), entries, graph.schemas([entry]), shards)

    def _opening(self, route: Route, *, have: Sequence[VersionId] = (), within: Sequence[HashRange] = ALL) -> Opening:
        near = route.since(have)
        if near is not None:
            base, entries = near
            kept = None
        else:
            base, entries, kept = EMPTY, route.entries, route.snapshot
        snapshot = 0 if kept is None else kept.version
        read = self._reader.changes(self._tables, route.store, entries, route.shards, within=within)
        return Opening(
            entry=route.end,
            base=base,
            schema=route.schema,
            bits=route.bits,
            snapshot=snapshot,
            after=base.version or snapshot,
            entries=entries,
            records=route.records if near is None else sum(each.records for each in entries),
            snapshot_chunks=iter(()) if kept is None else self._rows(route, kept, within),
            chunks=self._changes(route.store, entries, read),
            meter=self._tables.meter,
        )

    def _rows(self, route: Route, kept: SnapshotManifest, within: Sequence[HashRange]) -> Iterator[StoredChunk]:
        """The rows of a snapshot. One that is corrupt is skipped from then on."""
        try:
            yield from self._reader.rows(self._tables, route.store, kept, route.shards, within=within)
        except CorruptStateError as corrupt:
            self._known.skip_snapshot(route.store, kept.id, corrupt)
            raise RouteInvalidError(str(corrupt.args[0]), **corrupt.facts) from corrupt

    def _changes(
        self, store: str, entries: Sequence[VersionEntry], chunks: Iterator[StoredChunk]
    ) -> Iterator[StoredChunk]:
        """The changes of versions, which are the route to the last of them, as they are read.

        Raises:
            CorruptStateError: while they are consumed: a part is lost or corrupt.
            RouteInvalidError: the same, and another route leads to the version: clean-up has deleted parts that a
                snapshot covers.
        """
        try:
            yield from chunks
        except CorruptStateError as corrupt:
            self._known.routes.drop(store)
            now = self._find_route(store, *entries[-1].id, None)
            if {each.attempt for each in entries} <= {each.attempt for each in now.entries}:
                raise
            raise RouteInvalidError(str(corrupt.args[0]), **corrupt.facts) from corrupt

    def lineage(self, store: str, known: Lineage | None = None) -> Lineage:
        """The newest version and its ancestors that can be opened, by one Query.

        With a `known` one only newer versions are read, unless a run of the query did not continue from there, and all
        of it again after `ADDED_MAX` versions.
        """
        return _of_one_moment(lambda: self._lineage(store, known))

    def _lineage(self, store: str, known: Lineage | None) -> Lineage:
        if known is not None and known.added < ADDED_MAX:
            graph = self._graph(store, known.newest.version, VERSION_MAX)
            listed = graph.lineage(graph.newest()) if graph.versions() else []
            # Versions of a query that started over may all be lower: they are not read here, but their epoch is.
            if known.newest in listed and graph.meta is not None and listed[-1].epoch == graph.meta.epoch:
                after = listed[listed.index(known.newest) + 1 :]
                schemas = {**known.schemas, **{entry.schema: graph.schema(entry) for entry in after}}
                self._extend_route(store, known.newest, after, schemas)
                runs = {**known.runs, **graph.runs}
                return Lineage(
                    store, (*known.entries, *after), schemas, self._tables.meter, known.added + len(after), runs
                )
        graph = self._graph(store, 0, VERSION_MAX)
        entries = tuple(graph.openable(graph.lineage(graph.newest())))
        return Lineage(store, entries, graph.schemas(entries), self._tables.meter, runs=graph.runs)

    def _graph(self, store: str, lowest: int, highest: int) -> VersionGraph:
        return read_graph(self._tables, self._known, store, lowest, highest)

    def _extend_route(
        self, store: str, known: VersionEntry, after: Sequence[VersionEntry], schemas: Mapping[bytes, str]
    ) -> None:
        route = self._known.route(store, known.version, known.attempt)
        if route is not None and after:
            for entry in after:
                route = route.then(entry, schemas[entry.schema])
            self._known.remember(route)

    def changes(
        self, store: str, first: int, last: int, attempt: Attempt, *, within: Sequence[HashRange] = ALL
    ) -> ChangeFeed:
        """The changes of each version from `first` to `last`, as they were committed.

        Chunks that hold no hash `within` some ranges are left out.

        Raises:
            VersionMissingError: one of them is not there, or was imported, or `last` is not by that attempt;
                from here, or while chunks are consumed: clean-up may delete them meanwhile.
            CorruptStateError: an item is lost or corrupt; the same.
        """
        lowest = max(first - 1, 0)
        graph = self._graph(store, lowest, last)
        entries = graph.span(first, last, attempt)
        newest = entries[-1]
        shards = graph.required_meta.shards

        def listed(entry: VersionEntry) -> Iterator[StoredChunk]:
            try:
                yield from self._reader.changes(self._tables, store, [entry], shards, within=within)
            except CorruptStateError:
                # Clean-up may have deleted it meanwhile: then it is not corrupt, but missing.
                self._graph(store, lowest, last).span(first, last, attempt)
                raise

        return ChangeFeed(
            newest.attempt,
            graph.schema(newest),
            ((entry.version, listed(entry)) for entry in entries),
            self._tables.meter,
        )
