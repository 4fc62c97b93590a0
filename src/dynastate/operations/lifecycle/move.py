"""Move of a stopped query's checkpoint between a folder and DynamoDB. State is not changed.

All files are copied in an order in which a copy that was cut off never has a batch without what comes before the batch.
The namespace is adopted for the new location after that, so no run begins on a part of the files. The old checkpoint
is left as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dynastate.engine.catalog import every_store, of_namespace
from dynastate.errors import ConfigurationError
from dynastate.format.keys import namespace_of
from dynastate.format.spark_log import COMMITS, OFFSETS, SOURCES
from dynastate.operations.checkpoints import MARKER, QueryCheckpoint, StoredCheckpoint
from dynastate.operations.lifecycle.adopt import adopt_stores, locations_of, state_location
from dynastate.operations.lifecycle.runs import refuse_copy
from dynastate.progress import ProgressCallback, no_progress
from dynastate.storage.tables import Tables

#: The message of a move if a query writes to the stores.
IS_WRITTEN: Final = (
    "a query writes to this namespace: stop it, and move its checkpoint again; with --force it is not looked for"
)
#: Folders in the order in which they are copied. All other files are copied before them.
_FOLDERS: Final = (SOURCES, OFFSETS, COMMITS)
#: Descriptions of operators, which name the files of schemas by their full paths.
_DESCRIPTION: Final = re.compile(r"state/[0-9]+/_metadata/(metadata|v2/.+)")
#: `{state root}/{operator}/_stateSchema/{store}/{file}` in JSON.
_SCHEMA_PATH: Final = re.compile(rb'[^"\\]*(/\d+/_stateSchema/[^"/\\]+/[^"/\\]+)')


@dataclass(frozen=True)
class Move:
    """A possible move: `files` with their lengths, in the order of the copy, and those that are `missing` at `new`.

    At a folder the query needs the setting `namespace`, unless `is_named` by its location.
    """

    namespace: str
    old: str
    new: str
    stores: tuple[str, ...]
    files: dict[str, int]
    missing: tuple[str, ...]
    is_named: bool

    @property
    def bytes(self) -> int:
        """The length of all files that are missing."""
        return sum(self.files[file] for file in self.missing)


@dataclass(frozen=True)
class Moved:
    """A checkpoint that was moved: what was copied, and the runs that are refused from now on."""

    namespace: str
    old: str
    new: str
    files: int
    bytes: int
    stores: int
    refused: int
    requests: int


def plan_move(tables: Tables, old: QueryCheckpoint, new: QueryCheckpoint) -> Move:
    """Check whether a checkpoint can be moved. Nothing is changed.

    Refuse a new location with other files than this checkpoint has, or in another namespace.
    """
    old_location, new_location = state_location(old.location), state_location(new.location)
    if old_location == new_location or not any(isinstance(each, StoredCheckpoint) for each in (old, new)):
        raise ConfigurationError(
            "a checkpoint is moved between a folder and dynastate://NAMESPACE/NAME, or between two of these; copy a "
            "folder by other means, and adopt it",
            old=old.location,
            new=new.location,
        )
    namespace = old.namespace()
    if isinstance(new, StoredCheckpoint) and new.namespace() != namespace:
        raise ConfigurationError(
            f"the state of this checkpoint is in the namespace {namespace}: give dynastate://{namespace}/NAME",
            new=new.location,
        )
    stores = of_namespace(tables, namespace).current
    files = files_of(old)
    new_files = files_of(new)
    for file in new_files:
        if file not in files or new.find(file) != content_at(old, new, file):
            raise _has_others(new, file)
    missing = tuple(file for file in files if file not in new_files)
    if missing or not {*locations_of(tables, stores)} <= {old_location, new_location}:
        refuse_copy(tables, stores, old.location)
    return Move(
        namespace,
        old.location,
        new.location,
        stores=tuple(stores),
        files=files,
        missing=missing,
        is_named=isinstance(new, StoredCheckpoint) or namespace_of(new_location) == namespace,
    )


def _has_others(new: QueryCheckpoint, file: str) -> ConfigurationError:
    return ConfigurationError(
        "the new location has other files than this checkpoint: give one without files, or delete them",
        new=new.location,
        file=file,
    )


def files_of(checkpoint: QueryCheckpoint) -> dict[str, int]:
    """The files to copy, with their lengths, in the order of the copy.

    Checksums and unfinished writes, whose names begin with a dot, are left out, and so are the provider's markers.
    """

    def order(file: str) -> tuple[int, list[str | int]]:
        folder = file.split("/", maxsplit=1)[0]
        words: list[str | int] = [int(each) if each.isdecimal() else each for each in re.split(r"(\d+)", file)]
        return (_FOLDERS.index(folder) if folder in _FOLDERS else -1), words

    files = checkpoint.files()
    names = (file for file in files if not file.rpartition("/")[2].startswith(".") and not MARKER.fullmatch(file))
    return {file: files[file] for file in sorted(names, key=order)}


def content_at(old: QueryCheckpoint, new: QueryCheckpoint, file: str) -> bytes:
    """The content of a file at the new location: descriptions of operators name the schemas there."""
    data = old.find(file)
    if data is None:
        raise _has_changed(old)
    if not _DESCRIPTION.fullmatch(file):
        return data
    root = new.location if ":" in new.location else f"file:{new.location}"
    return _SCHEMA_PATH.sub(lambda match: f"{root.rstrip('/')}/state".encode() + match[1], data)


def move(
    tables: Tables, old: QueryCheckpoint, new: QueryCheckpoint, plan: Move, progress: ProgressCallback = no_progress
) -> Moved:
    """Copy a checkpoint's files, and let the query write from there only.

    1. Mark the folders of partitions, if the new location is a folder. 2. Copy the files that are missing. 3. Refuse if
    the old checkpoint has changed meanwhile. 4. Adopt the namespace for the new location. After a crash at any step the
    same call completes the move. Until step 4 the query may run from the old location, then from the new one only.
    """
    new.mark(plan.stores)  # 1
    for count, file in enumerate(plan.missing, 1):  # 2
        if not new.create(file, content_at(old, new, file)):
            raise _has_others(new, file)
        progress(count, len(plan.missing))
    if files_of(old) != plan.files:  # 3
        raise _has_changed(old)
    adopted = adopt_stores(tables, every_store(tables, plan.namespace), state_location(new.location))  # 4
    return Moved(
        plan.namespace,
        plan.old,
        plan.new,
        files=len(plan.missing),
        bytes=plan.bytes,
        stores=adopted.stores,
        refused=adopted.refused,
        requests=tables.meter.requests,
    )


def _has_changed(old: QueryCheckpoint) -> ConfigurationError:
    return ConfigurationError(
        "the checkpoint has changed while it was copied: stop the query, delete the copy, and move it again",
        checkpoint=old.location,
    )
