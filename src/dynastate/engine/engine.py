"""The engine: everything durable, for all stores on one pair of tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from dynastate import runtime
from dynastate.engine import snapshots
from dynastate.engine.checkpoint import CheckpointFiles
from dynastate.engine.commit import Commits, WriteAttempt, checked_schema_item
from dynastate.engine.hash_ranges import ALL, HashRange
from dynastate.engine.imported import ImportAttempt, ImportedVersion
from dynastate.engine.known import ROUTES_BYTES, KnownStores
from dynastate.engine.lineage import CommittedVersion, Lineage
from dynastate.engine.maintenance import Maintenance
from dynastate.engine.objects import ObjectRule, ObjectWriter
from dynastate.engine.opening import ChangeFeed, HeldChanges, Opening, VersionOpener
from dynastate.engine.reader import PartReader
from dynastate.engine.sessions import Sessions
from dynastate.engine.writer import PartWriter
from dynastate.errors import CorruptStateError, InternalError, VersionMissingError, message_of
from dynastate.format.checkpoint import Checkpoint
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

    `clock` is the wall clock, in UTC, for times that people read. Nothing but the age of a checkpoint's orphans depends
    on it. The sidecars of an executor share its limits of memory and requests. Refuse settings whose codec is not
    installed.
    """

    def __init__(self, tables: Tables, settings: Settings, clock: Callable[[], datetime] = runtime.now) -> None:
        require(settings.compression)
        sidecars = settings.sidecars or 1
        threads = max(1, settings.parallel_requests // sidecars)
        self.known_stores = KnownStores(settings.cache_mb * 1024 * 1024 // sidecars, ROUTES_BYTES // sidecars)
        self._tables = tables
        self._writer = PartWriter(tables, threads, sidecars)
        self._reader = PartReader(threads, self.known_stores, sidecars)
        sessions = Sessions(self.known_stores, settings.shards, own_location(tables, settings.objects), clock)
        self._compressors = runtime.pool(max(1, COMPRESSORS // sidecars), "dynastate-compressor")
        self._object_writer = ObjectWriter(tables.objects, threads, sidecars)
        self.commits = Commits(
            tables,
            self._writer,
            sessions,
            self.known_stores,
            compressors=self._compressors,
            deadline_s=settings.request_deadline_s,
            clock=clock,
            codec=settings.compression,
            object_writer=self._object_writer,
            object_rule=ObjectRule.of(tables, settings),
        )
        self._listed_checkpoints: set[Checkpoint] = set()
        self._codec, self._clock = settings.compression, clock
        self._location = own_location(tables, settings.objects)
        self.maintenance = Maintenance(tables, sessions, self.known_stores, self._is_busy, settings=settings)

    def place_of(self, key: Key) -> str:
        """The place of an item for an error message, with the name of the table."""
        return message_of(**where(key) | {"table": self._tables.names[key.role]})

    def name_table(self, error: Exception) -> None:
        """Add the name of the table to an error of lost or corrupt state, which has only the role."""
        if isinstance(error, (CorruptStateError, VersionMissingError)):
            error.name_table(self._tables.names)

    def _is_busy(self) -> bool:
        return self._writer.is_busy() or self._object_writer.is_busy()

    def close(self) -> None:
        """Finish the requests under way, then stop the threads."""
        self._compressors.shutdown()
        self._writer.close()
        self._object_writer.close()
        self._reader.close()

    def open(
        self, store: str, version: int, attempt: Attempt, have: Sequence[VersionId] = (), run: QueryRun | None = None
    ) -> Opening:
        """Open a version for a provider that holds the versions in `have`: `VersionOpener.open`."""
        return self._opener().open(store, version, attempt, have, run=run)

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
        held_changes: HeldChanges | None = None,
    ) -> Opening:
        """The rows of a version in some of 2^bits buckets: `VersionOpener.buckets`."""
        return self._opener().buckets(store, version, attempt, bits, numbers=numbers, held_changes=held_changes)

    def lookup(self, store: str, version: int, attempt: Attempt, digest: int) -> Opening:
        """The rows of a version whose keys may have a hash: `VersionOpener.lookup`."""
        return self._opener().lookup(store, version, attempt, digest)

    def lookup_since(
        self, store: str, version: int, attempt: Attempt, digest: int, *, since: VersionId
    ) -> Opening | None:
        """The changes after a version, of keys that may have a hash: `VersionOpener.lookup_since`."""
        return self._opener().lookup_since(store, version, attempt, digest, since=since)

    def lineage(
        self, store: str, previous: Lineage | None = None, committed: CommittedVersion | None = None
    ) -> Lineage:
        """The newest version, or a committed one, and its ancestors: `VersionOpener.lineage`."""
        return self._opener().lineage(store, previous, committed)

    def changes(
        self, store: str, first: int, last: int, attempt: Attempt, *, within: Sequence[HashRange] = ALL
    ) -> ChangeFeed:
        """The changes of each version from `first` to `last`: `VersionOpener.changes`."""
        return self._opener().changes(store, first, last, attempt, within=within)

    def _opener(self) -> VersionOpener:
        return VersionOpener(self._tables.metered(Meter()), self._reader, self.known_stores)

    def begin(self, store: str, run: QueryRun, base: int, parent: Attempt, attempt: Attempt) -> WriteAttempt:
        """Start an attempt at version base + 1. No request is sent before the first full part, or the commit."""
        check_store(store)
        if attempt == NO_ATTEMPT or (base == 0) != (parent == NO_ATTEMPT):
            raise InternalError(
                "an attempt needs an id, and a parent unless its base is version 0", store=store, base=base
            )
        return WriteAttempt(self.commits, store, run, base, parent=parent, attempt=attempt)

    def checkpoint_files(self) -> CheckpointFiles:
        """The files of checkpoints, with a meter of their own."""
        tables = self._tables.metered(Meter())
        return CheckpointFiles(tables, self._listed_checkpoints, self._codec, self._clock, location=self._location)

    def begin_import(self, store: str, run: QueryRun, version: ImportedVersion, state_bytes: int) -> ImportAttempt:
        """Start the import of a version, of about `state_bytes`: its rows are written as a snapshot.

        1. Enter the run as a run that starts over: the store belongs to no other query. 2. Write the schema item.
        3. Enter the snapshot as being written. A crash after any step leaves items that no reader takes.
        """
        tables = self._tables.metered(Meter())
        session = self.commits.sessions.enter(tables, store, run, 0)  # 1
        key = schema_key(store, schema_digest(version.schema))
        item = checked_schema_item(store, key, version.schema, run.id)
        tables.write([(key, item)])  # 2
        self.known_stores.account(store).wrote(key.sort, size_of(item))
        version_id = VersionId(version.number, version.attempt)
        entered = snapshots.enter(tables, store, version_id, session.epoch)  # 3
        if entered is None:
            raise InternalError("an attempt has a snapshot already", store=store, version=version.number)
        return ImportAttempt(tables, self.commits, session, entered, version=version, bits=bits_for(state_bytes))
