"""The commits of a checkpoint in DynamoDB: which batch is whole, and which attempts the driver chose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from dynastate.engine.checkpoint import CheckpointFiles, File
from dynastate.engine.lineage import CommittedVersion
from dynastate.format.checkpoint import Checkpoint, checkpoint_of_state
from dynastate.format.keys import Attempt
from dynastate.format.spark_log import COMMITS, batch_of, malformed, parse_ids

#: The last file of commits: 19 digits are the most that a file's name begins with.
_LAST: Final = f"{COMMITS}/9999999999999999999"


@dataclass(frozen=True)
class Commit:
    """The versions that a batch committed in the partitions of an operator.

    It `continues` the commits that were read before, unless the query was taken back or began again meanwhile.
    """

    versions: tuple[CommittedVersion, ...]
    continues: bool

    def of(self, stores: Iterable[str]) -> dict[str, CommittedVersion]:
        """The versions of stores, without stores of partitions that the query does not have."""
        partitions = {store: int(store.split("/")[2]) for store in stores}
        return {store: self.versions[number] for store, number in partitions.items() if number < len(self.versions)}


class CommitLog:
    """The commits of one operator, from the newest one on that was read."""

    def __init__(self, checkpoint: Checkpoint, operator: str) -> None:
        self._checkpoint = checkpoint
        self._operator = operator
        #: The newest batch that was read, with its file. Commits name attempts, so no two of them are equal.
        self._newest: tuple[int, bytes] | None = None

    @property
    def location(self) -> str:
        return f"{self._checkpoint.location}/state"

    @property
    def is_empty(self) -> bool:
        """Whether no commit was there at the last look."""
        return self._newest is None

    def newest(self, files: CheckpointFiles) -> Commit | None:
        """The newest commit, by one Query; by two if the one that was the newest is not there any longer.

        Returns None if there is none, or if it has no ids (checkpoint format v1).
        """
        first = self._newest[0] if self._newest else 0
        batches = self._read(files, first)
        continues = self._newest is not None and batches.get(first) == self._newest[1]
        if first and not continues:
            batches = self._read(files, 0)
        if not batches:
            self._newest = None
            return None
        newest = max(batches)
        self._newest = newest, batches[newest]
        ids = self._ids(newest, batches[newest])
        versions = (CommittedVersion(newest + 1, [Attempt(UUID(each).bytes) for each in stores]) for stores in ids)
        return Commit(tuple(versions), continues) if ids else None

    def _read(self, files: CheckpointFiles, first: int) -> dict[int, bytes]:
        """The files of the batches from one on."""
        batches: dict[int, bytes] = {}
        for path, file in files.read(self._checkpoint, (f"{COMMITS}/{first}", _LAST)).items():
            batch = batch_of(COMMITS, path)
            if batch is not None:
                if not isinstance(file, File):
                    raise file
                batches[batch] = file.data
        return batches

    def _ids(self, batch: int, data: bytes) -> Sequence[Sequence[str]]:
        """The ids of the operator's versions, by partition and store."""
        try:
            return parse_ids(data.decode()).get(self._operator, [])
        except ValueError as error:
            raise malformed(self._checkpoint.location, f"{COMMITS}/{batch}") from error


def log_at(location: str, operator: str) -> CommitLog | None:
    """The commits of the checkpoint whose state has a location. Returns None if it is not in DynamoDB."""
    checkpoint = checkpoint_of_state(location)
    return None if checkpoint is None else CommitLog(checkpoint, operator)
