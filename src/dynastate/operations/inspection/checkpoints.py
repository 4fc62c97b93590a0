"""Summaries of the checkpoints in DynamoDB: their files, and the last batch that was committed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.checkpoint import CheckpointFiles, read_checkpoints
from dynastate.errors import CorruptStateError
from dynastate.format.checkpoint import Checkpoint, checkpoint_of
from dynastate.operations.checkpoints import SCHEME
from dynastate.operations.inspection.inspect import iso_time

_COMMIT: Final = re.compile(r"commits/\d+")


@dataclass(frozen=True)
class CheckpointSummary:
    """The `files` of a checkpoint with their `bytes`, and the last `batch` that was committed, or None.

    `committed` is the time of this by its driver's clock, in ISO 8601, UTC, or empty. A corrupt checkpoint has a
    `problem`, and nothing else.
    """

    checkpoint: str
    files: int = 0
    bytes: int = 0
    batch: int | None = None
    committed: str = ""
    problem: str = ""


def summarize_checkpoints(tables: BotoTables, namespaces: Iterable[str]) -> list[CheckpointSummary]:
    """Summarize the checkpoints of namespaces that have files: a Query for each namespace, and each checkpoint."""
    checkpoints = [each for namespace in namespaces for each in read_checkpoints(tables, namespace)]
    summaries = [summarize_checkpoint(tables, each) for each in checkpoints]
    return [each for each in summaries if each.files or each.problem]


def summarize_checkpoint(tables: BotoTables, checkpoint: Checkpoint) -> CheckpointSummary:
    """Summarize a checkpoint by the heads of its files."""
    location = f"{SCHEME}{checkpoint}"
    try:
        heads = CheckpointFiles(tables, set()).heads(checkpoint)
    except CorruptStateError as error:
        error.name_table(tables.names)
        return CheckpointSummary(location, problem=str(error))
    commits = {int(file.removeprefix("commits/")): head for file, head in heads.items() if _COMMIT.fullmatch(file)}
    batch = max(commits, default=None)
    return CheckpointSummary(
        location,
        files=len(heads),
        bytes=sum(head.raw_bytes for head in heads.values()),
        batch=batch,
        committed="" if batch is None else iso_time(commits[batch].time),
    )


def checkpoint_of_location(location: str) -> Checkpoint | None:
    """The checkpoint whose state has a location. Returns None if it is not in DynamoDB."""
    if not location.startswith(SCHEME):
        return None
    return checkpoint_of(location.removeprefix(SCHEME).removesuffix("/state"))
