"""Progress of a query whose checkpoint is a local folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Checkpoint:
    """A batch begins with its offsets, and ends with its commit."""

    folder: Path

    def committed(self) -> int:
        """Batches that have ended."""
        return self._last("commits") + 1

    def under_way(self) -> int | None:
        """The batch that has begun and has not ended. Returns None if the query is between two batches."""
        begun = self._last("offsets")
        return begun if begun >= self.committed() else None

    def _last(self, log: str) -> int:
        return max((int(file.name) for file in (self.folder / log).glob("*") if file.name.isdigit()), default=-1)
