"""Namespaces whose checkpoint is gone: they are paid for, and no query will ever read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dynastate.errors import ConfigurationError
from dynastate.format.items import StorageSize, total
from dynastate.operations.inspection.inspect import StoreSummary
from dynastate.prices import Prices


@dataclass(frozen=True)
class AbandonedNamespace:
    """A namespace without a checkpoint: the location of that, what its stores have, and the time of its last commit.

    `problem` says why the location could not be looked at; then the checkpoint may still be there.
    """

    namespace: str
    location: str
    stores: int
    stored: StorageSize
    committed: str
    problem: str = ""

    def as_json(self, prices: Prices) -> dict[str, Any]:
        found: dict[str, Any] = asdict(self)
        sizes: dict[str, int] = found.pop("stored")
        return found | sizes | {"storage_dollars_a_month": prices.dollars_a_month(self.stored)}


def find_abandoned(summaries: Iterable[StoreSummary], exists: Callable[[str], bool]) -> list[AbandonedNamespace]:
    """Those of the namespaces whose checkpoint does not exist, the largest first.

    A namespace that a query seems to be writing is left out, and so is a fork that no query has resumed yet. `exists`
    raises ConfigurationError where it cannot tell.
    """
    by_namespace: dict[str, list[StoreSummary]] = {}
    for each in summaries:
        by_namespace.setdefault(each.store.split("/")[0], []).append(each)
    found: list[AbandonedNamespace] = []
    for namespace, stores in by_namespace.items():
        location = next((each.checkpoint for each in stores if each.checkpoint and not each.is_earlier), "")
        if not location or any(each.is_active for each in stores):
            continue
        problem = ""
        try:
            if exists(location):
                continue
        except ConfigurationError as failed:
            problem = str(failed)
        stored = total(StorageSize(each.items, each.bytes, each.object_bytes) for each in stores)
        committed = max(each.committed for each in stores)
        found.append(AbandonedNamespace(namespace, location, len(stores), stored, committed, problem))
    return sorted(found, key=lambda each: (bool(each.problem), -each.stored.bytes - each.stored.object_bytes))


def checkpoint_exists(location: str) -> bool:
    """Whether the folder of a checkpoint's state exists, in a file system that pyarrow knows.

    Raises:
        ConfigurationError: its file system cannot be looked at from here.
    """
    scheme, _, rest = location.partition(":")
    if scheme == "file":
        return Path(rest).exists()
    try:
        from pyarrow import fs
    except ImportError as missing:
        raise ConfigurationError(
            "a checkpoint that is no local folder is looked at with pyarrow, the extra 'frames' of dynastate; pip "
            "install pyarrow"
        ) from missing
    try:
        system, path = fs.FileSystem.from_uri(location)
        return bool(system.get_file_info(path).type != fs.FileType.NotFound)
    except (OSError, ValueError) as failed:  # ArrowInvalid is a ValueError
        raise ConfigurationError(
            "the file system of a checkpoint cannot be looked at from here", location=location, reason=str(failed)
        ) from failed
