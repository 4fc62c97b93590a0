"""Summaries of the checkpoints in DynamoDB: their files, and the last batch that was committed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.checkpoint import CheckpointFiles, File, read_checkpoints
from dynastate.errors import CorruptStateError
from dynastate.format.checkpoint import Checkpoint
from dynastate.format.spark_log import COMMITS, OFFSETS, batch_of, parse_offsets
from dynastate.operations.inspection.inspect import iso_time

#: The content of a file, or its defect.
Content = File | CorruptStateError


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
    location = checkpoint.location
    try:
        heads = CheckpointFiles(tables, set()).heads(checkpoint)
    except CorruptStateError as error:
        error.name_table(tables.names)
        return CheckpointSummary(location, problem=str(error))
    commits = {batch: head for file, head in heads.items() if (batch := batch_of(COMMITS, file)) is not None}
    batch = max(commits, default=None)
    return CheckpointSummary(
        location,
        files=len(heads),
        bytes=sum(head.raw_bytes for head in heads.values()),
        batch=batch,
        committed="" if batch is None else iso_time(commits[batch].time),
    )


@dataclass(frozen=True)
class LoggedBatch:
    """A batch in the log of a checkpoint: when it began, when it was committed, and the end of each source's data.

    Times are in milliseconds since 1970, or None; the ends are JSON texts. A batch with a corrupt file has a `problem`.
    """

    batch: int
    began_ms: int | None = None
    committed_ms: int | None = None
    offsets: tuple[str, ...] = ()
    problem: str = ""

    @property
    def took_s(self) -> float | None:
        """Seconds from its begin to its commit."""
        if self.began_ms is None or self.committed_ms is None:
            return None
        return (self.committed_ms - self.began_ms) / 1000


def read_batches(tables: BotoTables, checkpoint: Checkpoint, first: int, last: int) -> list[LoggedBatch]:
    """The batches from the `first` to the `last` number, the newest first, by two Queries."""
    commits, offsets = (_numbered(tables, checkpoint, log, first=first, last=last) for log in (COMMITS, OFFSETS))
    batches = sorted(commits.keys() | offsets.keys(), reverse=True)
    return [_logged(batch, offsets.get(batch), commits.get(batch)) for batch in batches]


def _numbered(tables: BotoTables, checkpoint: Checkpoint, log: str, *, first: int, last: int) -> dict[int, Content]:
    """The files of a log from the `first` to the `last` number."""
    contents = CheckpointFiles(tables, set()).read(checkpoint, (f"{log}/{first}", f"{log}/{last}"))
    return {batch: content for file, content in contents.items() if (batch := batch_of(log, file)) is not None}


def _logged(batch: int, offsets: Content | None, commit: Content | None) -> LoggedBatch:
    for log, content in ((OFFSETS, offsets), (COMMITS, commit)):
        if isinstance(content, CorruptStateError):
            return LoggedBatch(batch, problem=f"{log}/{batch}: {content.reason}")
    logged = LoggedBatch(batch, committed_ms=commit.time if isinstance(commit, File) else None)
    if not isinstance(offsets, File):
        return logged
    try:
        began_ms, ends = parse_offsets(offsets.data.decode())
    except ValueError:
        return replace(logged, problem=f"{OFFSETS}/{batch} is not as Spark writes it")
    return replace(logged, began_ms=began_ms, offsets=ends)
