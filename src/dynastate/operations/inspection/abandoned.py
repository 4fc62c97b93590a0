"""Namespaces whose checkpoint was deleted: they cost money, and no query will read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dynastate.errors import ConfigurationError
from dynastate.format.checkpoint import SCHEME
from dynastate.format.items import StorageSize, total
from dynastate.operations.checkpoints import StoredCheckpoint
from dynastate.operations.inspection.inspect import StoreSummary
from dynastate.prices import Prices
from dynastate.storage.tables import Tables


@dataclass(frozen=True)
class AbandonedNamespace:
    """A namespace without a checkpoint: its location, the sizes of its stores, and the time of its last commit.

    `problem` is the reason why the location could not be read; the checkpoint may still exist then.
    """

    namespace: str
    location: str
    stores: int
    stored: StorageSize
    committed: str
    problem: str = ""

    def as_json(self, prices: Prices) -> dict[str, Any]:
        fields: dict[str, Any] = asdict(self)
        sizes: dict[str, int] = fields.pop("stored")
        return fields | sizes | {"storage_dollars_a_month": prices.dollars_a_month(self.stored)}


def find_abandoned(summaries: Iterable[StoreSummary], exists: Callable[[str], bool]) -> list[AbandonedNamespace]:
    """The namespaces whose checkpoint does not exist, the largest first.

    A namespace that a query seems to write is left out, and so is a fork that no query has resumed yet. `exists`
    raises ConfigurationError if the location cannot be read.
    """
    by_namespace: dict[str, list[StoreSummary]] = {}
    for summary in summaries:
        by_namespace.setdefault(summary.store.split("/")[0], []).append(summary)
    abandoned: list[AbandonedNamespace] = []
    for namespace, stores in by_namespace.items():
        location = next((each.checkpoint for each in stores if each.checkpoint and not each.is_earlier), "")
        if not location or any(each.is_active for each in stores):
            continue
        problem = ""
        try:
            if exists(location):
                continue
        except ConfigurationError as error:
            problem = str(error)
        stored = total(StorageSize(each.items, each.bytes, each.object_bytes) for each in stores)
        committed = max(each.committed for each in stores)
        abandoned.append(
            AbandonedNamespace(
                namespace, location, stores=len(stores), stored=stored, committed=committed, problem=problem
            )
        )
    return sorted(abandoned, key=lambda entry: (bool(entry.problem), -entry.stored.bytes - entry.stored.object_bytes))


def checkpoint_exists(tables: Tables, location: str) -> bool:
    """Whether the folder of a checkpoint's state exists. Refuse a location that this machine cannot judge.

    That is a file system that pyarrow cannot read from here, and a local folder that is not here: it may be on another
    machine. A checkpoint in DynamoDB exists if it has files.
    """
    if location.startswith(SCHEME):
        return bool(StoredCheckpoint(tables, location.removesuffix("/state")).files())
    scheme, _, folder = location.partition(":")
    if scheme == "file":
        if Path(folder).exists():
            return True
        raise ConfigurationError(
            "this machine has no such folder: look from a machine that has the file system of this checkpoint, before "
            "you drop its state",
            location=location,
        )
    try:
        from pyarrow import fs
    except ImportError as error:
        raise ConfigurationError(
            "a checkpoint that is not a local folder is looked at with pyarrow, the extra 'frames' of dynastate; pip "
            "install pyarrow"
        ) from error
    try:
        system, path = fs.FileSystem.from_uri(location)
        return bool(system.get_file_info(path).type != fs.FileType.NotFound)
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise ConfigurationError(
            "the file system of a checkpoint cannot be looked at from here", location=location, reason=str(error)
        ) from error
