"""Import of a version: its rows are written as a snapshot, then the version is listed."""

from __future__ import annotations

from dataclasses import dataclass

from dynastate import runtime
from dynastate.engine.commit import Commits
from dynastate.engine.sessions import Session
from dynastate.engine.snapshots import SnapshotAttempt
from dynastate.errors import UnavailableError
from dynastate.format.keys import Attempt, schema_digest
from dynastate.format.parts import Tally
from dynastate.format.snapshot import Snapshot
from dynastate.format.version_list import VersionEntry
from dynastate.storage.tables import Tables


@dataclass(frozen=True)
class ImportedVersion:
    """A version from elsewhere: its number, above 1, counts of keys by column family, and the text of its schema."""

    number: int
    attempt: Attempt
    keys: dict[int, int]
    schema: str


class ImportAttempt(SnapshotAttempt):
    """An import under way: a snapshot of 2^bits buckets, whose commit also lists its version.

    The entry of the version has no parts, and a parent that does not exist. So a lost snapshot is an error, and is
    never taken for the state of an older version.
    """

    def __init__(
        self,
        tables: Tables,
        commits: Commits,
        session: Session,
        snapshot: Snapshot,
        *,
        version: ImportedVersion,
        bits: int,
    ) -> None:
        super().__init__(
            tables,
            commits.known_stores,
            session.store,
            snapshot,
            bits=bits,
            shards=session.shards,
            codec=commits.codec,
            rule=commits.object_rule,
        )
        self._commits, self._session, self._version = commits, session, version

    def commit(self) -> bool:
        """Make the attempt a version.

        1. Commit the snapshot. (Crash: a snapshot without a version remains. Clean-up deletes it once it is older
           than the retained versions.)
        2. Append the entry to the version list: the commit point.
        """
        version, session = self._version, self._session
        if not super().commit():  # 1
            raise UnavailableError("clean-up deleted the rows while they were written; try again", store=self.store)
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
