"""The commits of a checkpoint in DynamoDB: which batch is whole, and which attempts the driver chose."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from dynastate.engine.checkpoint import CheckpointFiles, File
from dynastate.engine.lineage import CommittedVersion
from dynastate.errors import CorruptStateError
from dynastate.format.checkpoint import Checkpoint, checkpoint_of
from dynastate.format.keys import Attempt

#: The location of the state of a checkpoint in DynamoDB.
_LOCATION: Final = re.compile(r"dynastate://([^/]+/[^/]+)/state")
#: The file of a batch. The last one has a number of 19 digits, the most that a file's name begins with.
_BATCH: Final = re.compile(r"commits/(\d+)")
_LAST: Final = "commits/9999999999999999999"


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
        return f"dynastate://{self._checkpoint}/state"

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
        for path, file in files.read(self._checkpoint, (f"commits/{first}", _LAST)).items():
            if match := _BATCH.fullmatch(path):
                if not isinstance(file, File):
                    raise file
                batches[int(match[1])] = file.data
        return batches

    def _ids(self, batch: int, data: bytes) -> list[list[str]]:
        """The ids of the operator's versions, by partition and store: the second line is a JSON object."""
        try:
            content: dict[str, Any] = json.loads(data.splitlines()[1])
            ids: list[list[str]] = (content.get("stateUniqueIds") or {}).get(self._operator, [])
        except (ValueError, IndexError) as error:
            raise CorruptStateError(
                "this file of the checkpoint is not as Spark writes it",
                checkpoint=f"dynastate://{self._checkpoint}",
                file=f"commits/{batch}",
            ) from error
        return ids


def log_at(location: str, operator: str) -> CommitLog | None:
    """The commits of the checkpoint whose state has a location. Returns None if it is not in DynamoDB."""
    match = _LOCATION.fullmatch(location)
    return None if match is None else CommitLog(checkpoint_of(match[1]), operator)
