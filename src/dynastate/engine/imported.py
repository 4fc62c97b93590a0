"""Import of a version: its rows are written as a snapshot, then the version is listed."""

from __future__ import annotations

from dataclasses import dataclass

from dynastate import runtime
from dynastate.engine.commit import Commits
from dynastate.engine.sessions import Session
from dynastate.engine.snapshots import SnapshotAttempt
from dynastate.errors import UnavailableError
from dynastate.format.keys import Attempt, schema_digest
from dynastate.format.parts import Chunk, Tally
from dynastate.format.version_list import VersionEntry
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables


@dataclass(frozen=True)
class ImportedVersion:
    """A version from elsewhere: its number, above 1, counts of keys by column family, and the text of its schema."""

    number: int
    attempt: Attempt
    keys: dict[int, int]
    schema: str


@dataclass(eq=False)
class ImportAttempt:
    """An import under way. Its rows are written to `snapshot`, then it is committed or aborted, once.

    Its version has a snapshot, and an entry without parts whose parent does not exist. So a lost snapshot is an error,
    and is never taken for the state of an older version.
    """

    snapshot: SnapshotAttempt
    _tables: Tables
    _commits: Commits
    version: ImportedVersion
    session: Session

    @property
    def meter(self) -> Meter:
        """The cost so far."""
        return self._tables.meter

    @property
    def bits(self) -> int:
        return self.snapshot.bits

    def bucket(self, number: int) -> None:
        self.snapshot.bucket(number)

    def append(self, chunk: Chunk) -> None:
        self.snapshot.append(chunk)

    def commit(self) -> bool:
        """Make the attempt a version.

        1. Commit the snapshot. (Crash: a snapshot without a version remains. Clean-up deletes it once it is older
           than the retained versions.)
        2. Append the entry to the version list: the commit point.

        Raises:
            UnavailableError: the snapshot was deleted meanwhile; nothing is committed.
            UnknownOutcomeError: step 2 was sent, and its outcome is unknown.
        """
        version, session = self.version, self.session
        if not self.snapshot.commit():  # 1
            raise UnavailableError(
                "clean-up deleted the rows while they were written; try again", store=self.snapshot.store
            )
        entry = VersionEntry(
            version=version.number,
            attempt=version.attempt,
            parent=Attempt(runtime.new_id().bytes),
            epoch=session.epoch,
            schema=schema_digest(version.schema),
            keys=version.keys,
            time_ms=self._commits.now_ms(),
            is_imported=True,
            **Tally().sums()._asdict(),
        )
        self._commits.append_entry(self._tables, session, entry, version.schema, has_base=False)  # 2
        return True

    def abort(self) -> None:
        """Delete the rows: `SnapshotAttempt.abort`."""
        self.snapshot.abort()
