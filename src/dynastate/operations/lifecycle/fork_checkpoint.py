"""The checkpoint of a fork: the files of the query's checkpoint in DynamoDB as they were when one batch was committed.

Offsets and commits of later batches are left out, since the fork has no state of them. The logs of sources are whole: a
source that has logged data which no batch has taken takes them in its next batch, as after a driver that died.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dynastate.errors import ConfigurationError, UnavailableError
from dynastate.format.checkpoint import SCHEME
from dynastate.format.spark_log import COMMITS, OFFSETS, SOURCES, batch_file
from dynastate.operations.checkpoints import LoadedCheckpoint, StoredCheckpoint
from dynastate.operations.lifecycle.adopt import locations_of
from dynastate.operations.lifecycle.move import content_at, files_of
from dynastate.operations.lifecycle.rollback import COPY
from dynastate.storage.tables import Tables

#: How often the logs of sources are read again if they grow meanwhile.
_TRIES: Final = 10


def location_in_tables(tables: Tables, stores: Sequence[str]) -> str:
    """The location of the checkpoint in DynamoDB that stores belong to. Empty if it is elsewhere, or not known yet."""
    locations = [location.removesuffix("/state") for location in locations_of(tables, stores)]
    if len(locations) > 1 and any(location.startswith(SCHEME) for location in locations):
        namespace = stores[0].split("/")[0]
        raise ConfigurationError(
            f"the stores of this namespace belong to several checkpoints, so an adoption or a move was cut off: run "
            f"dynastate adopt {namespace} --checkpoint again",
            checkpoints=",".join(locations),
        )
    return next((location for location in locations if location.startswith(SCHEME)), "")


def load_checkpoint(tables: Tables, location: str) -> LoadedCheckpoint:
    """The files of a checkpoint, which a query may write meanwhile. The logs of sources are of one moment.

    A Query is not of one moment, so it may miss a file and have a later one. It has not if another one before it has
    the same files: files of a log are written one after the other.
    """
    stored = StoredCheckpoint(tables, location)
    for _ in range(_TRIES):
        sources = stored.files(SOURCES)
        loaded = LoadedCheckpoint(tables, location)
        if loaded.files(SOURCES).keys() == sources.keys():
            return loaded
    raise UnavailableError("the query's sources write to their logs all the time; fork again", checkpoint=location)


def batch_to_fork(checkpoint: LoadedCheckpoint, version: int | None) -> int:
    """The batch that made a version, by default the last committed one. Refuse a batch that Spark cannot resume after.

    Spark reads the offsets of the batch and of the batch before.
    """
    offsets, commits = checkpoint.batches(OFFSETS), checkpoint.batches(COMMITS)
    batches = [each for each in sorted(commits) if {each, max(0, each - 1)} <= offsets.keys()]
    if not batches:
        raise ConfigurationError(
            "the checkpoint has no committed batch to resume after yet; try again when the next is committed",
            checkpoint=checkpoint.location,
        )
    batch = batches[-1] if version is None else version - 1
    if batch not in batches:
        raise ConfigurationError(
            "a fork takes the checkpoint along, which does not have the batch of this version, and the batch before; "
            f"fork a version from {batches[0] + 1} to {batches[-1] + 1}",
            version=version,
            checkpoint=checkpoint.location,
        )
    return batch


def copy_checkpoint(old: LoadedCheckpoint, new: StoredCheckpoint, batch: int) -> int:
    """Copy the files as they were when a batch was committed; return their number. The commits are copied last.

    After a crash the same call completes it. Refuse a new location that has other files.
    """
    files = [file for file in files_of(old) if _was_there(file, batch)]
    if others := sorted(new.files().keys() - set(files)):
        raise _has_others(new, others[0])
    for file in files:
        data = content_at(old, new, file)
        if not new.create(file, data) and new.find(file) != data:
            raise _has_others(new, file)
    return len(files)


def _was_there(file: str, batch: int) -> bool:
    of_batch = batch_file(file)
    is_later = of_batch is not None and of_batch.folder != SOURCES and of_batch.batch > batch
    return not file.startswith(COPY) and not is_later


def _has_others(new: StoredCheckpoint, file: str) -> ConfigurationError:
    return ConfigurationError(
        f"the checkpoint of the fork has other files already: dynastate drop {new.namespace()}, and fork again",
        checkpoint=new.location,
        file=file,
    )


def refuse_taken_back(checkpoint: LoadedCheckpoint, batch: int) -> None:
    """Refuse if a batch was undone, or made again, since the checkpoint was read: the state may be that of another."""
    if checkpoint.has_changed([f"{OFFSETS}/{batch}", f"{COMMITS}/{batch}"]):
        raise UnavailableError(
            "the query was taken back, or has deleted this batch from its log, while it was forked; dynastate drop the "
            "fork, and fork again",
            checkpoint=checkpoint.location,
            batch=batch,
        )
