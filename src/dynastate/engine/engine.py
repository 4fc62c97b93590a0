"""The engine: everything durable, for all stores on one pair of tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone

import dynastate
from dynastate.dynamodb.meter import Meter
from dynastate.dynamodb.tables import Tables
from dynastate.engine import snapshots
from dynastate.engine.commit import Commits, WriteAttempt, checked_schema_item
from dynastate.engine.install import InstallAttempt, InstalledVersion
from dynastate.engine.known import KnownStores
from dynastate.engine.maintenance import Maintenance
from dynastate.engine.opening import ChangeFeed, HeldChanges, Opening, VersionOpener
from dynastate.engine.reader import ALL, HashRange, Lineage, PartReader
from dynastate.engine.sessions import Sessions
from dynastate.engine.snapshots import SnapshotAttempt
from dynastate.engine.writer import PartWriter
from dynastate.errors import CorruptStateError, InternalError, VersionMissingError
from dynastate.format import keys
from dynastate.format.items import Item, size_of
from dynastate.format.keys import NO_ATTEMPT, Attempt, VersionId, check_store, schema_digest
from dynastate.format.manifest import bits_for
from dynastate.format.meta import QueryRun, StoreMeta, meta_item
from dynastate.settings import Settings


class Engine:
    """Everything durable, for all stores on one pair of tables. Safe for threads.

    `now` is the wall clock, in UTC, for what people read; no decision depends on it.
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
    ) -> None:
        self.known = known = KnownStores(cache_bytes)
        self._tables = tables
        self._shards = shards
        self._package = package
        self._now = now
        self._writer = PartWriter(tables, parallel_requests)
        self._reader = PartReader(tables, parallel_requests, known)
        self._opener = VersionOpener(tables, self._reader, known)
        sessions = Sessions(tables, self._opener, known, self._new_meta, self._now_text)
        self.commits = Commits(tables, self._writer, sessions, known, deadline_s, self._now_ms)
        self._maintenance = Maintenance(tables, self._opener, sessions, known, self._writer.is_busy)

    @classmethod
    def of(cls, tables: Tables, settings: Settings) -> Engine:
        """An engine with the user's settings."""
        return cls(
            tables,
            shards=settings.shards,
            parallel_requests=settings.parallel_requests,
            cache_bytes=settings.cache_mb * 1024 * 1024,
            deadline_s=settings.request_deadline_s,
            package=dynastate.__version__,
            now=lambda: datetime.now(timezone.utc),
        )

    def name_table(self, failed: Exception) -> None:
        """Put the table's own name into an error of lost or corrupt state, which has its role only."""
        if isinstance(failed, (CorruptStateError, VersionMissingError)):
            failed.name_table(self._tables.names)

    def close(self) -> None:
        """Finish what is under way, then stop the threads."""
        self._writer.close()
        self._reader.close()

    def open(self, store: str, version: int, attempt: Attempt, have: Sequence[VersionId] = ()) -> Opening:
        """Open a version for a provider that holds the versions in `have`: `VersionOpener.open`."""
        return self._opener.open(store, version, attempt, have)

    def find(self, store: str, version: int, attempt: Attempt) -> Opening:
        """Open a version without its rows: `VersionOpener.find`."""
        return self._opener.find(store, version, attempt)

    def buckets(
        self,
        store: str,
        version: int,
        attempt: Attempt,
        bits: int,
        numbers: Sequence[int],
        held: HeldChanges | None = None,
    ) -> Opening:
        """Open the rows of a version in some of 2^bits buckets: `VersionOpener.buckets`."""
        return self._opener.buckets(store, version, attempt, bits, numbers, held)

    def lookup(self, store: str, version: int, attempt: Attempt, digest: int) -> Opening:
        """Open the rows of a version whose keys may have a hash: `VersionOpener.lookup`."""
        return self._opener.lookup(store, version, attempt, digest)

    def lineage(self, store: str, known: Lineage | None = None) -> Lineage:
        """The newest version and its ancestors that can be opened: `VersionOpener.lineage`."""
        return self._opener.lineage(store, known)

    def changes(
        self, store: str, first: int, last: int, attempt: Attempt, *, within: Sequence[HashRange] = ALL
    ) -> ChangeFeed:
        """The changes of each version from `first` to `last`: `VersionOpener.changes`."""
        return self._opener.changes(store, first, last, attempt, within=within)

    def begin(self, store: str, run: QueryRun, base: int, parent: Attempt, attempt: Attempt) -> WriteAttempt:
        """Start an attempt at version base + 1. No I/O: that begins with the first full part, or at commit."""
        check_store(store)
        if attempt == NO_ATTEMPT or (base == 0) != (parent == NO_ATTEMPT):
            raise InternalError(
                "an attempt needs an id, and a parent unless its base is version 0", store=store, base=base
            )
        return WriteAttempt(self.commits, store, run, base, parent, attempt)

    def begin_install(self, store: str, run: QueryRun, version: InstalledVersion, state_bytes: int) -> InstallAttempt:
        """Start an attempt without a parent, of about `state_bytes`: its rows are written as a snapshot.

        1. Enter the run, as one that starts over: the store belongs to no other query. 2. Write the schema item.
        3. Enter the snapshot as being written. A crash after any step leaves items that no reader takes.

        Raises:
            ConfigurationError: the namespace belongs to another query, or a newer run writes to the store.
        """
        meter = Meter()
        session = self.commits.sessions.enter(store, run, 0, meter)  # 1
        digest = schema_digest(version.schema)
        key = keys.schema_key(store, digest)
        item = checked_schema_item(store, key, version.schema)
        self._tables.write([(key, item)], meter)  # 2
        self.known.sizes.wrote(store, key.sort, size_of(item))
        begun = snapshots.begin(
            self._tables,
            self.known,
            store,
            (version.number, version.attempt),
            None,
            bits_for(state_bytes),
            session.shards,
            session.epoch,
            meter,
        )  # 3
        if begun is None:
            raise InternalError("an attempt has a snapshot already", store=store, version=version.number)
        begun.meter.add(meter)
        return InstallAttempt(self.commits, begun, version, run.id, session, digest)

    def snapshot(
        self,
        store: str,
        run_id: str,
        version: int,
        attempt: Attempt,
        state_bytes: int,
        min_deltas: int,
        *,
        is_asked_for: bool = False,
    ) -> tuple[SnapshotAttempt | None, Meter]:
        """Begin a snapshot of a version, if it is worth its write units: `Maintenance.snapshot`."""
        return self._maintenance.snapshot(
            store, run_id, version, attempt, state_bytes, min_deltas, is_asked_for=is_asked_for
        )

    def clean_up(
        self, store: str, run_id: str, version: int, attempt: Attempt, retain: int, least: int, most: int
    ) -> tuple[Meter, int]:
        """Delete what the last `retain` versions do not need: `Maintenance.clean_up`."""
        return self._maintenance.clean_up(store, run_id, version, attempt, retain, least, most)

    def _new_meta(self, store: str, run: QueryRun) -> Item:
        now = self._now_text()
        made = StoreMeta(self._shards, {run.id: 1}, run.query, now, {1: run.location})
        return meta_item(store, made, self._package, now)

    def _now_text(self) -> str:
        return self._now().isoformat(timespec="seconds")

    def _now_ms(self) -> int:
        return int(self._now().timestamp() * 1000)
