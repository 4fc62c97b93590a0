"""Installing a version that was made elsewhere: its rows are written as a snapshot, and then listed."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from dynastate.engine.commit import Commits
from dynastate.engine.sessions import Session
from dynastate.engine.snapshots import SnapshotAttempt
from dynastate.errors import UnavailableError
from dynastate.format.keys import Attempt
from dynastate.format.parts import Chunk, Tally
from dynastate.format.version_list import VersionEntry


@dataclass(frozen=True)
class InstalledVersion:
    """A version without a parent: its number, above 1, keys by column family, and the text of its schema item."""

    number: int
    attempt: Attempt
    keys: dict[int, int]
    schema: str


class InstallAttempt:
    """An attempt under way without a parent, written as a snapshot: (bucket append*)*, then commit or abort, once.

    Its version looks like one whose ancestors were cleaned up: an entry without parts, whose parent does not exist, and
    a snapshot. So a lost snapshot is an error, and never the state of an older version.
    """

    def __init__(
        self,
        commits: Commits,
        begun: SnapshotAttempt,
        version: InstalledVersion,
        run_id: str,
        session: Session,
        digest: bytes,
    ) -> None:
        self.store = begun.store
        self.bits = begun.bits
        self.meter = begun.meter
        self._commits = commits
        self._begun = begun
        self._version = version
        self._run_id = run_id
        self._session = session
        self._digest = digest

    def bucket(self, number: int) -> None:
        """Begin a bucket; the chunks up to the next one are all its rows."""
        self._begun.bucket(number)

    def append(self, chunk: Chunk) -> None:
        """Compress one chunk of the bucket's rows, and write what makes a request."""
        self._begun.append(chunk)

    def commit(self) -> bool:
        """Make the attempt a version.

        1. Make its rows a snapshot, as `SnapshotAttempt.commit` does it. (Crash: a snapshot of no version;
           clean-up deletes it, once it is older than the retained versions.)
        2. Append the entry to the version list: the commit point.

        Raises:
            UnavailableError: the snapshot was deleted meanwhile; nothing is committed.
            UnknownOutcomeError: step 2 was sent, and its outcome is unknown.
        """
        if not self._begun.commit():  # 1
            raise UnavailableError("clean-up deleted the rows while they were written; try again", store=self.store)
        entry = VersionEntry(
            version=self._version.number,
            attempt=self._version.attempt,
            parent=Attempt(uuid4().bytes),
            epoch=self._session.epoch,
            schema=self._digest,
            keys=self._version.keys,
            time_ms=self._commits.now_ms(),
            **Tally().sums()._asdict(),
        )
        self._commits.append_entry(
            self.store, entry, self._run_id, self._version.schema, self._session.shards, self.meter
        )  # 2
        return True

    def abort(self) -> None:
        """Delete what was written, unless the snapshot is done: then clean-up deletes it."""
        self._begun.abort()
