"""Open, write, commit and abort (design.md, section 4). Each operation is one function with numbered steps."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Final, TypeVar
from uuid import uuid4

import dynastate
from dynastate import cleanup, directory, layout, snapshots
from dynastate.directory import Directory
from dynastate.errors import (
    ConfigurationError,
    CorruptStateError,
    DynastateError,
    InternalError,
    OtherWayError,
    UnavailableError,
    VersionMissingError,
)
from dynastate.layout import NO_ATTEMPT, Attempt, Chunk, History, Item, Key, Snapshot, Tally, VersionEntry
from dynastate.prices import DEFAULT_PRICES, Prices
from dynastate.reader import HashRange, Held, Lineage, Reader, Route, Rows, hash_range
from dynastate.settings import PREFIX, Settings
from dynastate.snapshots import SnapshotAttempt
from dynastate.stored import Accounts, Stored
from dynastate.tables import ITEM_BYTES_MAX, WRITES_MAX, Meter, Tables, delete_all, units_of_write
from dynastate.writer import PartWriter, Ticket

log = logging.getLogger("dynastate.store")

T = TypeVar("T")

#: An attempt hands its parts on when it has a full request, or this many bytes.
HAND_ON_BYTES: Final = 512 * 1024
#: Above so many entries, a version list is looked through for attempts that are long over.
LISTED_MAX: Final = 100
#: Ways to a version that are tried: each that fails has a snapshot that is broken, and there are few of them.
WAYS_MAX: Final = 10
#: A reader that goes on reads the whole list again after so many versions: what clean-up took away is in it no more.
CAME_MAX: Final = 1_000
#: Stores whose epoch and shards one executor remembers; forgetting one costs a read.
SESSIONS_MAX: Final = 10_000


@dataclass
class Session:
    """What one query run knows of a store it writes to: its epoch, the store's shards, schema items written."""

    epoch: int
    shards: int
    schemas: set[bytes] = field(default_factory=set)
    has_removed_strays: bool = False
    """Those that attempts of other runs and executors left: looked for once, by the first clean-up."""


@dataclass(frozen=True)
class Opening:
    """An opened version: its entry, on what it builds, and the chunks of `entries` that lead there, oldest first.

    Where it begins with a snapshot, `snapshot` is the version of that, and `snapshot_chunks` come before `chunks`.
    Both together have `records` records. Its rows are best read in 2^bits buckets, where not all are wanted.
    """

    entry: VersionEntry
    base: Held
    schema: str
    bits: int
    snapshot: int
    entries: tuple[VersionEntry, ...]
    records: int
    snapshot_chunks: Iterator[Rows]
    chunks: Iterator[Rows]
    meter: Meter

    @property
    def version(self) -> int:
        return self.entry.version

    @property
    def attempt(self) -> Attempt:
        return self.entry.attempt


@dataclass(frozen=True)
class ChangeFeed:
    """Versions with their chunks, oldest first: (version, (records, run)*)*; and the schema of the newest."""

    attempt: Attempt
    schema: str
    versions: Iterator[tuple[int, Iterator[Rows]]]
    meter: Meter


def by_any_way(answer: Callable[[int], T]) -> T:
    """Answer again as long as there may be another way to a version; `answer` is told how many it has tried.

    Raises:
        OtherWayError: none of so many led there.
    """
    for way in range(WAYS_MAX):
        with suppress(OtherWayError):
            return answer(way)
    return answer(WAYS_MAX)


class Engine:
    """Everything durable, for all stores on one pair of tables. Safe for threads.

    `now` gives the wall clock, in UTC, for what people read; nothing is decided by it.
    """

    def __init__(
        self,
        tables: Tables,
        *,
        shards: int,
        parallel_requests: int,
        cache_bytes: int,
        deadline_s: float,
        package: str,
        now: Callable[[], datetime],
        prices: Prices = DEFAULT_PRICES,
    ) -> None:
        self.prices = prices
        self.accounts = Accounts()
        self._tables = tables
        self._shards = shards
        self._deadline_s = deadline_s
        self._package = package
        self._now = now
        self._writer = PartWriter(tables, parallel_requests)
        self._reader = Reader(tables, parallel_requests, cache_bytes)
        self._sessions: OrderedDict[tuple[str, str], Session] = OrderedDict()
        #: The newest epoch that was seen, by store.
        self._newest: OrderedDict[str, int] = OrderedDict()
        self._cleaning: set[str] = set()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, tables: Tables, settings: Settings) -> Engine:
        """An engine as its user set it."""
        return cls(
            tables,
            shards=settings.shards,
            parallel_requests=settings.parallel_requests,
            cache_bytes=settings.cache_mb * 1024 * 1024,
            deadline_s=settings.request_deadline_s,
            package=dynastate.__version__,
            now=lambda: datetime.now(timezone.utc),
            prices=Prices.of(settings),
        )

    def name_table(self, failed: Exception) -> None:
        """Let an error of lost or broken state say its table as the user knows it: the layout knows its role only."""
        if isinstance(failed, (CorruptStateError, VersionMissingError)):
            failed.name_table(self._tables.names)

    def close(self) -> None:
        """Let what is under way end, then stop the threads."""
        self._writer.close()
        self._reader.close()

    # ------------------------------------------------------------------------------------------------------------- open

    def open(self, store: str, version: int, attempt: Attempt, have: Sequence[Held] = ()) -> Opening:
        """Open a version for a provider that holds the versions in `have`.

        1. One strongly consistent Query brings the version lists and the meta item; none, if the attempt is named and
           its version was committed or opened here.
        2. Pick the entry: the attempt asked for, else the highest epoch.
        3. Walk parents down to the newest version in `have`, to a snapshot, or to version 0.
        4. Read the snapshot's buckets, and the parts in between, with parallel BatchGetItem, verify them, and hand them
           on in order. A snapshot that is broken is passed by from then on, if what is older can stand in for it.

        It only reads: a crash after any step leaves nothing behind.

        Returns:
            The opening, whose chunks read on while they are taken: (records, run) each.

        Raises:
            VersionMissingError: there is no such version, or not by that attempt.
            CorruptStateError: an item is lost or broken; from here, or while chunks are taken.
            OtherWayError: the same; opened again, without `have`, the version may be reached by another way.
        """
        meter = Meter()
        route = self._known_route(store, version, attempt)
        if route is None and have:
            near = self._open_near(store, version, attempt, have, meter)
            if near is not None:
                return near
        route = route or self._find_route(store, version, attempt, meter)  # 1, 2, 3
        return self._opening(route, meter, have=have)  # 4

    def find(self, store: str, version: int, attempt: Attempt) -> Opening:
        """Open a version without its rows, which `bucket` brings. Costs at most one Query and a directory.

        Raises:
            VersionMissingError: there is no such version, or not by that attempt.
            CorruptStateError: an item is lost or broken.
            OtherWayError: as for `open`.
        """
        meter = Meter()
        route = self._route(store, version, attempt, meter)
        return replace(self._opening(route, meter), snapshot_chunks=iter(()), chunks=iter(()))

    def bucket(self, store: str, version: int, attempt: Attempt, bits: int, number: int) -> Opening:
        """The rows of a version in one of 2^bits buckets; chunks may hold other rows too.

        Raises:
            VersionMissingError: there is no such version, or not by that attempt.
            CorruptStateError: an item is lost or broken; from here, or while chunks are taken.
            OtherWayError: as for `open`.
        """
        meter = Meter()
        route = self._route(store, version, attempt, meter)
        return self._opening(route, meter, bucket=hash_range(bits, number))

    def lookup(self, store: str, version: int, attempt: Attempt, digest: int) -> Opening:
        """The rows of a version whose keys may have a hash; chunks hold other rows too, and not all of their bucket.

        Raises:
            VersionMissingError: there is no such version, or not by that attempt.
            CorruptStateError: an item is lost or broken; from here, or while chunks are taken.
            OtherWayError: as for `open`.
        """
        meter = Meter()
        route = self._route(store, version, attempt, meter)
        opening = self._opening(route, meter, bucket=hash_range(32, digest))
        read = self._reader.key_changes(store, route.entries, route.shards, meter, digest)
        return replace(opening, chunks=self._changes(store, route.entries, read, meter))

    def _route(self, store: str, version: int, attempt: Attempt, meter: Meter) -> Route:
        return self._known_route(store, version, attempt) or self._find_route(store, version, attempt, meter)

    def _known_route(self, store: str, version: int, attempt: Attempt) -> Route | None:
        """An attempt that is named is the same for ever; a bare number is not: another executor may make it anew."""
        return None if attempt == NO_ATTEMPT else self._reader.route(store, version, attempt)

    def _find_route(self, store: str, version: int, attempt: Attempt, meter: Meter) -> Route:
        history = self._history(store, 0, version, meter)
        entry = history.find(version, attempt)
        base, entries = history.chain(version, entry.attempt, ())
        snapshot = history.snapshot(*base)
        kept = None if snapshot is None else self._directory(store, snapshot, meter)
        if kept is not None:
            self.accounts.learn(store, kept)
        for each in entries:
            broken = history.passed.get((each.version, each.attempt))
            if broken is not None:
                self.name_table(broken)
                about = f"store={store} version={version} attempt={entry.attempt.hex()}"
                log.warning("recovery goes round a broken snapshot %s: %s", about, broken)
        start = None if kept is None else history.entry(*base)
        one_of_each = {each.schema: each for each in (*entries, entry, *([start] if start else []))}
        schemas = {digest: history.schema(each) for digest, each in one_of_each.items()}
        route = Route(store, kept, start, tuple(entries), schemas, self._shards_of(history))
        self._reader.remember(route)
        return route

    def _open_near(
        self, store: str, version: int, attempt: Attempt, have: Sequence[Held], meter: Meter
    ) -> Opening | None:
        """Open a version that stands on one near by: that needs the newest version lists only. None: it does not."""
        lowest = max((held for held, _ in have if held <= version), default=0)
        history = self._history(store, lowest, version, meter)
        try:
            entry = history.find(version, attempt)
            base, entries = history.chain(version, entry.attempt, have)
        except (layout.ShortHistoryError, VersionMissingError):
            if lowest == 0:
                raise
            return None
        if base not in have:
            return None
        chunks: Iterator[Rows] = iter(())
        if entries:
            read = self._reader.changes(store, entries, self._shards_of(history), meter)
            chunks = self._changes(store, entries, read, meter)
        records = sum(each.records for each in entries)
        return Opening(entry, base, history.schema(entry), 0, 0, tuple(entries), records, iter(()), chunks, meter)

    def _opening(
        self,
        route: Route,
        meter: Meter,
        *,
        have: Sequence[Held] = (),
        bucket: HashRange | None = None,
    ) -> Opening:
        near = route.since(have)
        if near is not None:
            base, entries = near
            kept = None
        else:
            base, entries, kept = layout.EMPTY, route.entries, route.snapshot
        return Opening(
            entry=route.end,
            base=base,
            schema=route.schema,
            bits=route.bits,
            snapshot=0 if kept is None else kept.version,
            entries=entries,
            records=route.records if near is None else sum(each.records for each in entries),
            snapshot_chunks=iter(()) if kept is None else self._rows(route, kept, meter, bucket),
            chunks=self._changes(
                route.store,
                entries,
                self._reader.changes(route.store, entries, route.shards, meter, bucket=bucket),
                meter,
            ),
            meter=meter,
        )

    def _directory(self, store: str, snapshot: Snapshot, meter: Meter) -> Directory:
        """The directory of a snapshot. One that is broken is passed by from then on.

        Raises:
            OtherWayError: it is lost or broken.
        """
        try:
            return snapshots.read_directory(self._tables, store, snapshot, meter)
        except CorruptStateError as broken:
            self._reader.pass_by(store, snapshot.id, broken)
            raise OtherWayError(str(broken.args[0]), **broken.facts) from broken

    def _rows(self, route: Route, kept: Directory, meter: Meter, bucket: HashRange | None) -> Iterator[Rows]:
        """The rows of a snapshot. One that is broken is passed by from then on."""
        try:
            yield from self._reader.rows(route.store, kept, route.shards, meter, bucket=bucket)
        except CorruptStateError as broken:
            self._reader.pass_by(route.store, kept.id, broken)
            raise OtherWayError(str(broken.args[0]), **broken.facts) from broken

    def _changes(
        self, store: str, entries: Sequence[VersionEntry], chunks: Iterator[Rows], meter: Meter
    ) -> Iterator[Rows]:
        """The changes of versions, which are the way to the last of them, as they are read.

        Raises:
            CorruptStateError: while they are taken: a part is lost or broken.
            OtherWayError: the same, and the version is reached by another way: clean-up has passed here, or the parts
                were read on from what is held, and a snapshot stands in for them.
        """
        try:
            yield from chunks
        except CorruptStateError as broken:
            self._reader.forget(store)
            now = self._find_route(store, entries[-1].version, entries[-1].attempt, meter)
            if {each.attempt for each in entries} <= {each.attempt for each in now.entries}:
                raise
            raise OtherWayError(str(broken.args[0]), **broken.facts) from broken

    def lineage(self, store: str, known: Lineage | None = None) -> Lineage:
        """The newest version and those below that can be opened, by one Query; beyond a `known` one, what came since.

        All of it is read again when a run of the query has begun that did not go on from there, and now and then: what
        clean-up took away is listed no more.

        Raises:
            VersionMissingError: the store has no version.
            CorruptStateError: an item is lost or broken.
        """
        meter = Meter()
        if known is not None and known.came < CAME_MAX:
            history = self._history(store, known.newest.version, layout.VERSION_MAX, meter)
            came = history.lineage(history.newest()) if history.versions() else []
            # Versions of a life begun anew may all be lower: they are not seen from here, but their run is.
            if known.newest in came and came[-1].epoch == (history.meta or {}).get("epoch"):
                after = came[came.index(known.newest) + 1 :]
                schemas = {**known.schemas, **{entry.schema: history.schema(entry) for entry in after}}
                self._go_on(store, known.newest, after, schemas)
                return Lineage(store, (*known.entries, *after), schemas, meter, known.came + len(after))
        history = self._history(store, 0, layout.VERSION_MAX, meter)
        entries = tuple(history.openable(history.lineage(history.newest())))
        one_of_each = {entry.schema: entry for entry in entries}
        schemas = {digest: history.schema(entry) for digest, entry in one_of_each.items()}
        return Lineage(store, entries, schemas, meter)

    def _go_on(
        self, store: str, known: VersionEntry, after: Sequence[VersionEntry], schemas: Mapping[bytes, str]
    ) -> None:
        """The way to a version leads on to those after it."""
        route = self._reader.route(store, known.version, known.attempt)
        if route is not None and after:
            for entry in after:
                route = route.then(entry, schemas[entry.schema])
            self._reader.remember(route)

    def changes(
        self, store: str, first: int, last: int, attempt: Attempt, *, bucket: HashRange | None = None
    ) -> ChangeFeed:
        """The changes of each version from `first` to `last`, as they were committed.

        With a `bucket`, chunks that hold no key of it are left out.

        Raises:
            VersionMissingError: one of them is not there, or `last` not by that attempt; from here, or while chunks
                are taken: clean-up may pass meanwhile.
            CorruptStateError: an item is lost or broken; the same.
        """
        meter = Meter()
        history = self._history(store, first, last, meter)
        entries = history.span(first, last, attempt)
        newest = entries[-1]
        shards = self._shards_of(history)

        def listed(entry: VersionEntry) -> Iterator[Rows]:
            try:
                yield from self._reader.changes(store, [entry], shards, meter, bucket=bucket)
            except CorruptStateError:
                # Clean-up may have passed meanwhile: then it is not broken, but missing.
                self._history(store, first, last, meter).span(first, last, attempt)
                raise

        return ChangeFeed(
            newest.attempt, history.schema(newest), ((entry.version, listed(entry)) for entry in entries), meter
        )

    def _history(self, store: str, lowest: int, highest: int, meter: Meter) -> History:
        low, high = layout.history_range(lowest, highest)
        found = self._tables.query("snapshot", layout.store_shard(layout.check_store(store), 0), low, high, meter)
        history = self._take(store, found, lowest)
        if lowest == 0:
            self.accounts.read(history, highest)
        return history

    def _take(self, store: str, found: Sequence[tuple[Key, Item]], lowest: int = 0) -> History:
        """What a Query brought, without the snapshots that are passed by; runs that it shows to be over are noted."""
        history = History(store, found, lowest)
        if history.meta is not None:
            self._saw(store, history.meta)
        for snapshot in history.snapshots():
            broken = self._reader.passed(snapshot.id)
            # One that clean-up takes away was called broken by whoever was reading it.
            if broken is not None and snapshot.stage == layout.DONE:
                history.pass_by(snapshot.version, snapshot.attempt, broken)
        return history

    def _shards_of(self, history: History) -> int:
        shards = (history.meta or {}).get("shards")
        if not isinstance(shards, int) or shards < 1:
            raise _meta_lost(history.store)
        return shards

    # ------------------------------------------------------------------------------------------------------ maintenance

    def snapshot(
        self,
        store: str,
        run: str,
        version: int,
        attempt: Attempt,
        state_bytes: int,
        min_deltas: int,
        *,
        is_asked_for: bool = False,
    ) -> tuple[SnapshotAttempt | None, Meter]:
        """Begin a snapshot of a version, of about `state_bytes` before compression, if it is worth its write units.

        One that a user has asked for is worth them.

        1. One Query brings version lists, snapshots and the meta item. 2. Measure the deltas since the last snapshot.
        3. Enter the snapshot as being written. (Crash: an item that no reader takes; clean-up takes it away.)

        Returns:
            None where no snapshot is wanted, another executor is at it, or a newer run writes to the store.

        Raises:
            VersionMissingError: the version is not there.
        """
        meter = Meter()
        history = self._history(store, 0, version, meter)  # 1
        epoch = _newest_epoch(history.meta, run)
        if epoch is None:
            return None, meter
        base, deltas = history.chain(version, attempt, ())
        last = history.snapshot(*base)
        is_worth_it = is_asked_for or snapshots.is_worth_it(deltas, last, min_deltas)
        if not deltas or not is_worth_it:  # 2
            return None, meter
        shards = self._shards_of(history)
        bits = directory.bits_for(state_bytes)
        carried = None
        if last is not None:
            with suppress(OtherWayError):  # then all buckets are written anew
                carried = self._directory(store, last, meter)
                self.accounts.learn(store, carried)
        # Another number of buckets means that all are written anew, so it must be worth it.
        if carried is not None and abs(carried.bits - bits) <= 1:
            bits = carried.bits
        else:
            carried = None
        made = (version, deltas[-1].attempt)
        begun = snapshots.begin(self._tables, self._reader, store, made, carried, bits, shards, epoch, meter)  # 3
        if begun is not None:
            begun.when_done = self.accounts.made
        return begun, meter

    def clean_up(
        self, store: str, run: str, version: int, attempt: Attempt, retain: int, least: int, most: int
    ) -> tuple[Meter, int]:
        """Remove what the last `retain` versions do not need, if at least `least` versions go; at most `most`, 0: all.

        Nothing is done where this engine is at it already: whoever asked for that may have given it up. Returned are
        what it cost, and how many versions more could go, which it leaves to the next one.

        1. One Query brings version lists, snapshots and the meta item. 2. Only the newest run may go on.
        3. Find the lowest version of which anything is needed. 4. Take away older snapshots. 5. The first time, delete
        buckets that no snapshot has. 6. Strike older versions off their lists, each only if the list is as it was read.
        7. Delete their parts. 8. Delete what else lies below, if no newer run has begun to write since.

        A crash after any step leaves items that no reader looks for, and that the next clean-up finds.

        Raises:
            VersionMissingError: the version is not there.
        """
        with self._lock:
            if store in self._cleaning:
                return Meter(), 0
            self._cleaning.add(store)
        try:
            return self._clean_up(store, run, version, attempt, retain, least, most)
        finally:
            with self._lock:
                self._cleaning.remove(store)

    def _clean_up(
        self, store: str, run: str, version: int, attempt: Attempt, retain: int, least: int, most: int
    ) -> tuple[Meter, int]:
        meter = Meter()
        low, _ = layout.history_range(0, 0)
        found = self._tables.query("snapshot", layout.store_shard(layout.check_store(store), 0), low, "~", meter)  # 1
        history = self._take(store, found)
        self.accounts.read(history)
        epoch = _newest_epoch(history.meta, run)  # 2
        # Of what the Query brings, snapshots come after the meta item: a newer run may have made one in between.
        if epoch is None or any(each.epoch > epoch for each in history.snapshots()):
            return meter, 0
        if not cleanup.is_surely_newest(history, version, attempt, epoch):
            return meter, 0
        # The driver may not have committed this version yet: then it starts again from the one before.
        below = cleanup.oldest_needed(history, version, attempt, max(2, retain))  # 3
        older = [each for each in history.unpinned() if each < below]
        if len(older) < least:
            return meter, 0
        if most:
            below = min(below, older[0] + most)
        left = sum(each >= below for each in older)
        steps = cleanup.CleanUp(self._tables, history, self._shards_of(history), meter)
        try:
            steps.check_snapshots(below - 1)
            steps.remove_snapshots(below - 1, epoch)  # 4
            with self._lock:
                session = self._sessions.get((store, run))
            if session is None or not session.has_removed_strays:
                has_removed_strays = steps.remove_strays(below - 1)  # 5
                if session is not None:
                    session.has_removed_strays = has_removed_strays
        except OtherWayError:  # another clean-up is ahead of this one, and takes away what this one knows of
            return meter, 0
        struck = steps.remove_versions(below)  # 6
        steps.remove_parts(struck)  # 7
        orphans = steps.find_orphans(below, struck)  # 8
        meta = layout.meta_key(store)
        if orphans and _newest_epoch(self._tables.get([meta], meter).get(meta), run) == epoch:
            steps.remove_orphans(orphans)
        for kept in steps.directories():
            self.accounts.learn(store, kept)
        self.accounts.cleaned(history, struck, steps.gone)
        return meter, left

    # ------------------------------------------------------------------------------------------------------------ write

    def begin(
        self, store: str, run: str, checkpoint: str, base: int, parent: Attempt, attempt: Attempt
    ) -> WriteAttempt:
        """Start an attempt at version base + 1. No I/O: that begins with the first full part, or at commit."""
        layout.check_store(store)
        if attempt == NO_ATTEMPT or (base == 0) != (parent == NO_ATTEMPT):
            raise InternalError(
                "an attempt needs an id, and a parent unless its base is version 0", store=store, base=base
            )
        return WriteAttempt(self, store, run, checkpoint, base, parent, attempt)

    def begin_whole(
        self, store: str, run: str, checkpoint: str, version: WholeVersion, state_bytes: int
    ) -> WholeAttempt:
        """Start an attempt that stands on nothing, of about `state_bytes`: its rows are written as a snapshot.

        1. Enter the run, as one that begins: the store is no other query's. 2. Write the schema item. 3. Enter the
        snapshot as being written. A crash after any step leaves items that no reader takes.

        Raises:
            ConfigurationError: the namespace belongs to another query, or a newer run writes to the store.
        """
        meter = Meter()
        session = self.session(store, run, checkpoint, 0, meter)  # 1
        digest = layout.schema_digest(version.schema)
        key = layout.schema_key(store, digest)
        item = schema_item(store, key, version.schema)
        self._tables.write([(key, item)], meter)  # 2
        self.accounts.wrote(store, key.sort, Stored(1, layout.item_bytes(item)))
        begun = snapshots.begin(
            self._tables,
            self._reader,
            store,
            (version.number, version.attempt),
            None,
            directory.bits_for(state_bytes),
            session.shards,
            session.epoch,
            meter,
            in_background=False,
        )  # 3
        if begun is None:
            raise InternalError("an attempt has a snapshot already", store=store, version=version.number)
        begun.when_done = self.accounts.made
        begun.meter.add(meter)
        return WholeAttempt(self, begun, version, session, digest)

    def session(self, store: str, run: str, checkpoint: str, base: int, meter: Meter) -> Session:
        """Epoch and shards for a query run, entered into the meta item when it first writes to the store.

        Raises:
            ConfigurationError: a newer run writes to the store, as far as was seen here.
        """
        with self._lock:
            session = self._sessions.get((store, run))
            if session is not None:
                self._sessions.move_to_end((store, run))
        if session is None:
            found = self._enter_run(store, run, checkpoint, base, meter)
            with self._lock:
                session = self._sessions.setdefault((store, run), found)
                while len(self._sessions) > SESSIONS_MAX:
                    self._sessions.popitem(last=False)
        with self._lock:
            newest = self._newest.get(store, 0)
        if session.epoch < newest:
            raise ConfigurationError(
                "a newer run writes to this store, so this one is over; if that is not the same query, started again, "
                f"two queries share one {PREFIX}namespace, as with a copied checkpoint: stop one of them",
                store=store,
                run=run,
                epoch=session.epoch,
                newest=newest,
            )
        return session

    def _saw(self, store: str, meta: Item) -> None:
        epochs, _ = layout.parse_meta(store, meta)
        with self._lock:
            self._newest[store] = max(self._newest.pop(store, 0), *epochs.values())
            while len(self._newest) > SESSIONS_MAX:
                self._newest.popitem(last=False)

    def _forget_older(self, store: str, epoch: int) -> None:
        """What was seen of the store before it was dropped and begun anew: its meta item has no such epoch."""
        with self._lock:
            is_dropped = self._newest.get(store, 0) > epoch
            if is_dropped:
                del self._newest[store]
        if is_dropped:
            self._reader.forget(store)

    def _enter_run(self, store: str, run: str, checkpoint: str, base: int, meter: Meter) -> Session:
        """Give a query run its epoch.

        1. Read the meta item. 2. If there is none, the store must be new: make it.
        3. Unless the run is in it, raise the epoch from what it was read as, and enter the run; then read again.

        A crash after 2 or 3 leaves an epoch that nobody uses: epochs only break ties.
        """
        key = layout.meta_key(store)
        for _ in range(layout.EPOCHS_KEPT):
            meta = self._tables.get([key], meter).get(key)  # 1
            if meta is None:
                self._must_be_new(store, base, meter)
                fresh = self._fresh_meta(key, store, run, checkpoint)
                if self._tables.put_new(key, fresh, meter):  # 2
                    self.accounts.wrote(store, key.sort, Stored(1, layout.item_bytes(fresh)))
                    self._forget_older(store, 1)
                    return Session(1, self._shards)
                continue
            epochs, shards = layout.parse_meta(store, meta)
            newest = _newest_epoch(meta, run)
            if newest is not None:
                self._forget_older(store, newest)
            self._saw(store, meta)
            if run in epochs:
                return Session(epochs[run], shards)
            _refuse_other_query(store, meta, checkpoint, base)
            oldest = sorted(epochs, key=epochs.__getitem__)[: max(0, len(epochs) + 1 - layout.EPOCHS_KEPT)]
            self._tables.advance_epoch(key, run, max(epochs.values()), oldest, meter)  # 3
        raise UnavailableError("too many query runs open this store at once", store=store, run=run)

    def _must_be_new(self, store: str, base: int, meter: Meter) -> None:
        """Tell a new store from one that lost its meta item: an epoch begun again would lose to the old ones."""
        if base > 0:
            raise _meta_lost(store)
        history = self._history(store, 0, 0, meter)
        # Another executor may have made the store in the meantime; its meta item was there before its first version.
        if history.versions() and history.meta is None:
            raise _meta_lost(store)

    def _fresh_meta(self, key: Key, store: str, run: str, checkpoint: str) -> Item:
        return layout.item_key(key) | {
            "format": layout.FORMAT,
            "store": store,
            "checkpoint": checkpoint,
            "shards": self._shards,
            "package": self._package,
            "created": self._now().isoformat(timespec="seconds"),
            "epoch": 1,
            "epochs": {run: 1},
        }

    def submit(self, ticket: Ticket, items: Sequence[tuple[Key, Item]]) -> None:
        self._writer.submit(ticket, items, self._deadline_s)

    def settle(self, ticket: Ticket) -> None:
        # The writes have deadlines of their own, which say more; this one only guards against a lost worker.
        ticket.wait(10 * self._deadline_s)

    def append_entry(self, store: str, entry: VersionEntry, schema: str, shards: int, meter: Meter) -> None:
        key = layout.group_key(store, entry.version)
        listed = self._tables.append_version(key, layout.encode_entry(store, entry), meter)
        self._reader.committed(store, entry, schema, shards)
        if len(listed) > LISTED_MAX:
            try:
                self._strike_dead(store, key, listed, entry, meter)
            except DynastateError as failed:  # the version is there all the same, and the next one tries again
                log.warning("a version list stays long store=%s version=%d: %s", store, entry.version, failed)

    def _strike_dead(self, store: str, key: Key, listed: list[bytes], entry: VersionEntry, meter: Meter) -> None:
        """Strike attempts at a version off its list that were made by runs long over; clean-up finds their parts.

        A query that fails again and again at one batch, after its state was committed, would else fill the list.
        """
        entries = {raw: layout.listed_entry(store, key, raw) for raw in listed}
        oldest = entry.epoch - layout.EPOCHS_KEPT
        stay = [raw for raw, each in entries.items() if each.version != entry.version or each.epoch > oldest]
        if len(stay) < len(listed):
            item: Item = layout.item_key(key) | {"format": layout.FORMAT, "versions": stay}
            self._tables.put_over(key, item, {"versions": listed}, meter)

    def keep(self, key: Key, item: Item) -> None:
        self._reader.keep(key, item)

    def forget_parts(self, ticket: Ticket, meter: Meter) -> None:
        ticket.cancel(2 * self._deadline_s)
        # A schema item is not the attempt's own: other versions name it too.
        parts = {key: size for key, size in ticket.sent.items() if key.role == "delta"}
        delete_all(self._tables, list(parts), meter)
        meter.write_units += sum(map(units_of_write, parts.values()))


def _newest_epoch(meta: Item | None, run: str) -> int | None:
    """The epoch of a run, if it is the newest that writes to the store. A run enters itself before it writes."""
    epochs = (meta or {}).get("epochs")
    own = epochs.get(run) if isinstance(epochs, dict) else None
    return own if meta is not None and own == meta.get("epoch") else None


def _meta_lost(store: str) -> CorruptStateError:
    return CorruptStateError(
        "the store has versions, but its meta item is lost", **layout.where(layout.meta_key(store))
    )


def _refuse_other_query(store: str, meta: Item, checkpoint: str, base: int) -> None:
    """A query that begins where another one's state lies has that one's namespace. One that goes on was moved here."""
    owner = str(meta.get("checkpoint"))
    if base == 0 and owner != checkpoint:
        raise ConfigurationError(
            f"this namespace belongs to the query with checkpoint {owner}; give every query a "
            f"{PREFIX}namespace of its own, or none",
            store=store,
            checkpoint=checkpoint,
        )


class WriteAttempt:
    """One attempt under way. Used by one thread at a time; legal order: append*, then commit or abort, once."""

    def __init__(
        self,
        engine: Engine,
        store: str,
        run: str,
        checkpoint: str,
        base: int,
        parent: Attempt,
        attempt: Attempt,
    ) -> None:
        self.store = store
        self.version = base + 1
        self.attempt = attempt
        self._engine = engine
        self._run = run
        self._checkpoint = checkpoint
        self._parent = parent
        self._ticket = Ticket()
        self._meter = Meter()
        self._ready: list[tuple[Key, Item]] = []
        self._ready_bytes = 0
        self._tally = Tally()
        self._whole = True
        self._ended = False

    def append(self, chunk: Chunk) -> None:
        """Compress one chunk and write its parts in the background; blocks while too much is under way.

        Raises:
            DynastateError: an earlier part failed, or the store cannot be entered.
        """
        self._must_be_open("append")
        self._whole = False  # until this chunk is all there
        session = self._session()
        items = layout.part_items(self.store, self.version, self.attempt, self._tally.parts, session.shards, chunk)
        if self._tally.parts + len(items) > layout.PARTS_MAX:
            raise ConfigurationError(
                "an attempt has too many parts; use more shuffle partitions or smaller batches",
                store=self.store,
                most=layout.PARTS_MAX,
            )
        for key, item in items:
            self._ready_bytes += self._tally.add_item(key, item)
            self._ready.append((key, item))
            self._engine.keep(key, item)
            if len(self._ready) == WRITES_MAX or self._ready_bytes >= HAND_ON_BYTES:
                self._hand_on()
        self._tally.add_chunk(chunk.records, len(chunk.run))
        self._whole = True

    def commit(self, keys: dict[int, int], schema: str) -> dict[str, int]:
        """Make the attempt a version. `keys` counts keys by column family, `schema` is the text of its schema item.

        1. Write what is left. (Crash: parts that no list names; clean-up takes them.)
        2. Wait until every part is durable. (Crash: the same.)
        3. Append the entry to the version list: the commit point. (Crash: the version exists, and is the same as if
           the task had gone on; Spark runs the batch again from its base, as another attempt.)
        4. Answer with what it cost.

        Raises:
            UnavailableError: DynamoDB throttled or was away until the deadline; nothing is committed.
            UnknownOutcomeError: step 3 was sent and its fate could not be learnt.
        """
        self._must_be_open("commit")
        engine = self._engine
        session = self._session()
        digest = layout.schema_digest(schema)
        described: list[tuple[Key, Item]] = []
        if digest not in session.schemas:
            schema_key = layout.schema_key(self.store, digest)
            described = [(schema_key, schema_item(self.store, schema_key, schema))]
        self._ready += described
        self._hand_on()  # 1
        engine.settle(self._ticket)  # 2
        session.schemas.add(digest)
        for key, item in described:
            engine.accounts.wrote(self.store, key.sort, Stored(1, layout.item_bytes(item)))
        sums = self._tally.sums()
        entry = VersionEntry(
            version=self.version,
            attempt=self.attempt,
            parent=self._parent,
            epoch=session.epoch,
            schema=digest,
            keys=keys,
            **sums._asdict(),
        )
        self._ended = True  # from here on a list may name the parts, so abort must leave them
        try:
            engine.append_entry(self.store, entry, schema, session.shards, self._meter)  # 3
        except (ConfigurationError, UnavailableError):
            self._ended = False  # surely not listed
            raise
        self._meter.add(self._ticket.meter)
        engine.accounts.committed(self.store, entry)
        stored = engine.accounts.stored(self.store)
        return counters(self._meter, engine.prices) | {
            "parts": sums.parts,
            "records": sums.records,
            "rawBytes": sums.raw_bytes,
            "storedItems": stored.items,
            "storedBytes": stored.bytes,
        }  # 4

    def abort(self) -> None:
        """Drop what is queued, delete the parts already written, forget the attempt. After commit it does nothing.

        Raises:
            DynastateError: parts could not be deleted. They are harmless: no list names them, and clean-up takes them.
        """
        if self._ended:
            return
        self._ended = True
        self._ready.clear()
        self._engine.forget_parts(self._ticket, self._meter)

    def _session(self) -> Session:
        return self._engine.session(self.store, self._run, self._checkpoint, self.version - 1, self._meter)

    def _hand_on(self) -> None:
        if self._ready:
            self._engine.submit(self._ticket, self._ready)
            self._ready = []
            self._ready_bytes = 0

    def _must_be_open(self, operation: str) -> None:
        if self._ended or not self._whole:
            what = "on an attempt that has ended" if self._ended else "after an append that failed"
            raise InternalError(f"{operation} {what}", store=self.store, attempt=self.attempt.hex())


@dataclass(frozen=True)
class WholeVersion:
    """A version that stands on nothing: its number, above 1, keys by column family, and the text of its schema item."""

    number: int
    attempt: Attempt
    keys: dict[int, int]
    schema: str


class WholeAttempt:
    """An attempt under way that stands on nothing, as a snapshot is: (bucket append*)*, then commit or abort, once.

    What it makes looks like a version whose older ones were cleaned up: an entry without parts, whose parent nobody
    has, and a snapshot. So a snapshot that is lost is an error, and never the state of an older version.
    """

    def __init__(
        self, engine: Engine, begun: SnapshotAttempt, version: WholeVersion, session: Session, digest: bytes
    ) -> None:
        self.store = begun.store
        self.bits = begun.bits
        self.meter = begun.meter
        self._engine = engine
        self._begun = begun
        self._version = version
        self._session = session
        self._digest = digest

    def bucket(self, number: int) -> None:
        """Begin a bucket; what follows until the next one is all it has."""
        self._begun.bucket(number)

    def append(self, chunk: Chunk) -> None:
        """Compress one chunk of the bucket's rows, and write what makes a request."""
        self._begun.append(chunk)

    def commit(self) -> bool:
        """Make the attempt a version.

        1. Make its rows a snapshot, as `SnapshotAttempt.commit` does it. (Crash: a snapshot of what is no version;
           clean-up takes it away, once versions that are make it old.)
        2. Append the entry to the version list: the commit point.

        Raises:
            UnavailableError: the snapshot was taken away meanwhile; nothing is committed.
            UnknownOutcomeError: step 2 was sent and its fate could not be learnt.
        """
        if not self._begun.commit():  # 1
            raise UnavailableError("clean-up took the rows away while they were written; try again", store=self.store)
        entry = VersionEntry(
            version=self._version.number,
            attempt=self._version.attempt,
            parent=Attempt(uuid4().bytes),
            epoch=self._session.epoch,
            schema=self._digest,
            keys=self._version.keys,
            **Tally().sums()._asdict(),
        )
        self._engine.append_entry(self.store, entry, self._version.schema, self._session.shards, self.meter)  # 2
        self._engine.accounts.committed(self.store, entry)
        return True

    def abort(self) -> None:
        """Delete what was written, unless the snapshot is done: then clean-up takes it away."""
        self._begun.abort()


def schema_item(store: str, key: Key, schema: str) -> Item:
    """The item that says how to read rows.

    Raises:
        ConfigurationError: it is too large.
    """
    item: Item = layout.item_key(key) | {"format": layout.FORMAT, "text": schema}
    if layout.item_bytes(item) > ITEM_BYTES_MAX:
        raise ConfigurationError(
            "the schema of this operator's state is too large for one DynamoDB item",
            store=store,
            item_bytes=layout.item_bytes(item),
        )
    return item


def counters(meter: Meter, prices: Prices) -> dict[str, int]:
    """What an operation cost, under the names of docs/metrics.md."""
    return {
        "requests": meter.requests,
        "retries": meter.retries,
        "throttles": meter.throttles,
        "writeUnits": meter.write_units,
        "readUnits": meter.read_units,
        "itemsWritten": meter.items_written,
        "bytesWritten": meter.bytes_written,
        "bytesRead": meter.bytes_read,
        "cacheHits": meter.cache_hits,
        "cacheMisses": meter.cache_misses,
        "nanodollars": prices.nanodollars(meter.write_units + meter.delete_units, meter.read_units),
    }


def maintenance_counters(meter: Meter, prices: Prices) -> dict[str, int]:
    """What a snapshot or a clean-up cost: deletes are paid for too, and counted apart."""
    return counters(meter, prices) | {"itemsDeleted": meter.items_deleted, "deleteUnits": meter.delete_units}
