"""The engine: everything durable, for all stores on one pair of tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from dynastate import runtime
from dynastate.engine import snapshots
from dynastate.engine.commit import Commits, WriteAttempt, checked_schema_item
from dynastate.engine.hash_ranges import ALL, HashRange
from dynastate.engine.imported import ImportAttempt, ImportedVersion
from dynastate.engine.known import ROUTES_BYTES, KnownStores
from dynastate.engine.lineage import Lineage
from dynastate.engine.maintenance import Maintenance
from dynastate.engine.objects import ObjectRule, ObjectWriter
from dynastate.engine.opening import ChangeFeed, HeldChanges, Opening, VersionOpener
from dynastate.engine.reader import PartReader
from dynastate.engine.sessions import Sessions
from dynastate.engine.snapshots import SnapshotAttempt
from dynastate.engine.writer import PartWriter
from dynastate.errors import CorruptStateError, InternalError, VersionMissingError, message_of
from dynastate.format.codec import require
from dynastate.format.items import size_of
from dynastate.format.keys import NO_ATTEMPT, Attempt, Key, VersionId, check_store, schema_digest, schema_key, where
from dynastate.format.manifest import bits_for
from dynastate.format.meta import QueryRun
from dynastate.settings import Settings
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables, own_location

#: Threads of an executor that compress, in all its sidecars: libraries do it without the interpreter's lock.
COMPRESSORS: Final = min(4, os.cpu_count() or 1)


class Engine:
    """Everything durable, for all stores on one pair of tables. Safe for threads.

    `now` is the wall clock, in UTC, for what people read; no decision depends on it. One of several sidecars of an
    executor has its part of what bounds their memory and requests.

    Raises:
        ConfigurationError: the package of the codec that it is to write is not installed.
    """

    def __init__(self, tables: Tables, settings: Settings, now: Callable[[], datetime] = runtime.now) -> None:
        require(settings.compression)
        sidecars = settings.sidecars or 1
        threads = max(1, settings.parallel_requests // sidecars)
        self.known = known = KnownStores(settings.cache_mb * 1024 * 1024 // sidecars, ROUTES_BYTES // sidecars)
        self._tables = tables
        self._writer = PartWriter(tables, threads, sidecars)
        self._reader = PartReader(threads, known, sidecars)
        sessions = Sessions(known, settings.shards, own_location(tables, settings.objects), now)
        self._compressors = runtime.pool(max(1, COMPRESSORS // sidecars), "dynastate-compressor")
        self._object_writer = ObjectWriter(tables.objects, threads, sidecars)
        self.commits = Commits(
            tables,
            self._writer,
            sessions,
            known,
            self._compressors,
            settings.request_deadline_s,
            now,
            settings.compression,
            self._object_writer,
            ObjectRule.of(tables, settings),
        )
        self._maintenance = Maintenance(tables, sessions, known, self._is_busy, settings)

    def place_of(self, key: Key) -> str:
        """The place of an item as an error names it, with the table's own name."""
        return message_of(**where(key) | {"table": self._tables.names[key.role]})

    def name_table(self, failed: Exception) -> None:
        """Put the table's own name into an error of lost or corrupt state, which has its role only."""
        if isinstance(failed, (CorruptStateError, VersionMissingError)):
            failed.name_table(self._tables.names)

    def _is_busy(self) -> bool:
        return self._writer.is_busy() or self._object_writer.is_busy()

    def close(self) -> None:
        """Finish what is under way, then stop the threads."""
        self._compressors.shutdown()
        self._writer.close()
        self._object_writer.close()
        self._reader.close()

    def open(
        self,
        store: str,
        version: int,
        attempt: Attempt,
        have: Sequence[VersionId] = (),
        run: QueryRun | None = None,
    ) -> Opening:
        """Open a version for a provider that holds the versions in `have`: `VersionOpener.open`."""
        return self._opener().open(store, version, attempt, have, run)

    def find(self, store: str, version: int, attempt: Attempt, run: QueryRun | None = None) -> Opening:
        """Open a version without its rows: `VersionOpener.find`."""
        return self._opener().find(store, version, attempt, run)

    def buckets(
        self,
        store: str,
        version: int,
        attempt: Attempt,
        bits: int,
        numbers: Sequence[int],
        held: HeldChanges | None = None,
    ) -> Opening:
        """The rows of a version in some of 2^bits buckets: `VersionOpener.buckets`."""
        return self._opener().buckets(store, version, attempt, bits, numbers, held)

    def lookup(self, store: str, version: int, attempt: Attempt, digest: int) -> Opening:
        """The rows of a version whose keys may have a hash: `VersionOpener.lookup`."""
        return self._opener().lookup(store, version, attempt, digest)

    def lineage(self, store: str, known: Lineage | None = None) -> Lineage:
        """The newest version and its ancestors: `VersionOpener.lineage`."""
        return self._opener().lineage(store, known)

    def changes(
        self, store: str, first: int, last: int, attempt: Attempt, *, within: Sequence[HashRange] = ALL
    ) -> ChangeFeed:
        """The changes of each version from `first` to `last`: `VersionOpener.changes`."""
        return self._opener().changes(store, first, last, attempt, within=within)

    def _opener(self) -> VersionOpener:
        return VersionOpener(self._tables.metered(Meter()), self._reader, self.known)

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

    def begin(self, store: str, run: QueryRun, base: int, parent: Attempt, attempt: Attempt) -> WriteAttempt:
        """Start an attempt at version base + 1. No I/O: that begins with the first full part, or at commit."""
        check_store(store)
        if attempt == NO_ATTEMPT or (base == 0) != (parent == NO_ATTEMPT):
            raise InternalError(
                "an attempt needs an id, and a parent unless its base is version 0", store=store, base=base
            )
        return WriteAttempt(self.commits, store, run, base, parent, attempt)

    def begin_import(self, store: str, run: QueryRun, version: ImportedVersion, state_bytes: int) -> ImportAttempt:
        """Start the import of a version, of about `state_bytes`: its rows are written as a snapshot.

        1. Enter the run, as one that starts over: the store belongs to no other query. 2. Write the schema item.
        3. Enter the snapshot as being written. A crash after any step leaves items that no reader takes.

        Raises:
            ConfigurationError: the namespace belongs to another query, or a newer run writes to the store.
        """
        tables = self._tables.metered(Meter())
        session = self.commits.sessions.enter(tables, store, run, 0)  # 1
        key = schema_key(store, schema_digest(version.schema))
        item = checked_schema_item(store, key, version.schema, run.id)
        tables.write([(key, item)])  # 2
        self.known.account(store).wrote(key.sort, size_of(item))
        version_id = VersionId(version.number, version.attempt)
        entered = snapshots.enter(tables, store, version_id, session.epoch)  # 3
        if entered is None:
            raise InternalError("an attempt has a snapshot already", store=store, version=version.number)
        snapshot = SnapshotAttempt(
            tables,
            self.known,
            store,
            entered,
            bits=bits_for(state_bytes),
            shards=session.shards,
            codec=self.commits.codec,
            rule=self.commits.object_rule,
        )
        return ImportAttempt(snapshot, tables, self.commits, version, session)
