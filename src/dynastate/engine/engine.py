"""The engine: everything durable, for all stores on one pair of tables."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Final

from dynastate.engine import snapshots
from dynastate.engine.commit import Commits, WriteAttempt, checked_schema_item
from dynastate.engine.imported import ImportAttempt, ImportedVersion
from dynastate.engine.known import ROUTES_BYTES, KnownStores
from dynastate.engine.maintenance import Maintenance
from dynastate.engine.objects import ObjectRule, ObjectWriter
from dynastate.engine.opening import VersionOpener
from dynastate.engine.reader import PartReader
from dynastate.engine.sessions import Sessions
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


def _now() -> datetime:
    return datetime.now(timezone.utc)


class Engine:
    """Everything durable, for all stores on one pair of tables. Safe for threads.

    Versions are opened by the methods of `VersionOpener`, and maintained by those of `Maintenance`. `now` is the wall
    clock, in UTC, for what people read; no decision depends on it. One of several sidecars of an executor has its part
    of what bounds their memory and requests.

    Raises:
        ConfigurationError: the package of the codec that it is to write is not installed.
    """

    def __init__(self, tables: Tables, settings: Settings, now: Callable[[], datetime] = _now) -> None:
        require(settings.compression)
        sidecars = settings.sidecars or 1
        threads = max(1, settings.parallel_requests // sidecars)
        self.known = known = KnownStores(settings.cache_mb * 1024 * 1024 // sidecars, ROUTES_BYTES // sidecars)
        self._tables = tables
        self._writer = PartWriter(tables, threads, sidecars)
        self._reader = PartReader(tables, threads, known, sidecars)
        opener = VersionOpener(tables, self._reader, known)
        self.open, self.find, self.buckets = opener.open, opener.find, opener.buckets
        self.lookup, self.lineage, self.changes = opener.lookup, opener.lineage, opener.changes
        sessions = Sessions(tables, opener, known, settings.shards, own_location(tables, settings.objects), now)
        self._compressors = ThreadPoolExecutor(
            max(1, COMPRESSORS // sidecars), thread_name_prefix="dynastate-compressor"
        )
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
        maintenance = Maintenance(tables, opener, sessions, known, self._is_busy, settings)
        self.snapshot, self.clean_up = maintenance.snapshot, maintenance.clean_up

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
        meter = Meter()
        session = self.commits.sessions.enter(store, run, 0, meter)  # 1
        key = schema_key(store, schema_digest(version.schema))
        item = checked_schema_item(store, key, version.schema, run.id)
        self._tables.write([(key, item)], meter)  # 2
        self.known.account(store).wrote(key.sort, size_of(item))
        of = VersionId(version.number, version.attempt)
        entered = snapshots.enter(self._tables, store, of, session.epoch, meter)  # 3
        if entered is None:
            raise InternalError("an attempt has a snapshot already", store=store, version=version.number)
        how = self.commits.codec, self.commits.object_rule
        whole = (entered, bits_for(state_bytes), session.shards, *how, None, None, None)
        begun = ImportAttempt(self._tables, self.known, store, *whole, self.commits, version, session)
        begun.meter.add(meter)
        return begun
