"""The lineage of a store: its newest version with all ancestors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dynastate.errors import VersionMissingError
from dynastate.format.graph import last_of_one_run
from dynastate.format.keys import Attempt, VersionId
from dynastate.format.version_list import VersionEntry
from dynastate.storage.meter import Meter


class CommittedVersion(NamedTuple):
    """The version that a batch committed in a partition. Several stores of a partition have an attempt each."""

    version: int
    attempts: Collection[Attempt]


@dataclass(frozen=True)
class Lineage:
    """The newest version of a store and its listed ancestors, oldest first.

    `schemas` are the texts of their schema items, by digest. `added` counts the versions since the last full read.
    `runs` are the newest query runs, by epoch.
    """

    store: str
    entries: tuple[VersionEntry, ...]
    schemas: Mapping[bytes, str]
    meter: Meter
    added: int = 0
    runs: Mapping[int, str] = field(default_factory=dict)

    @property
    def newest(self) -> VersionEntry:
        return self.entries[-1]

    def schema(self, entry: VersionEntry) -> str:
        return self.schemas[entry.schema]

    def find(self, version: int) -> VersionEntry:
        """The entry of a version. Refuse one that is not an ancestor of the newest one, or no longer listed."""
        entry = self._listed(version)
        if entry is not None:
            return entry
        versions = f"{self.entries[0].version}-{self.newest.version}"
        raise VersionMissingError(
            "this version cannot be read; name one of versions", store=self.store, version=version, versions=versions
        )

    def has(self, committed: CommittedVersion) -> bool:
        """Whether a committed version is the newest one or a listed ancestor."""
        entry = self._listed(committed.version)
        return entry is not None and entry.attempt in committed.attempts

    def common(self, earlier: Lineage, version: int) -> int:
        """The newest version up to `version` that two lineages share, or 0 if none is listed.

        If clean-up has deleted the next versions of this lineage, it is `version`: no later changes can be read.
        """
        if version < self.entries[0].version - 1:
            return version
        version_ids = (each.id for each in reversed(earlier.entries) if each.version <= version)
        return next((each.version for each in version_ids if self._has(each)), 0)

    def _has(self, version: VersionId) -> bool:
        """Whether a version is listed, or is the parent of the oldest listed version."""
        entry = self._listed(version.version)
        return version in (self.entries[0].parent_id, entry and entry.id)

    def _listed(self, version: int) -> VersionEntry | None:
        """The listed entry of a version, or None. The numbers of the entries have no gap."""
        index = version - self.entries[0].version
        return self.entries[index] if 0 <= index < len(self.entries) else None

    def up_to(self, version: int) -> Lineage:
        """The lineage without the versions above `version`."""
        return replace(self, entries=self.entries[: version - self.entries[0].version + 1])


def of_one_run(lineages: Sequence[Lineage]) -> list[Lineage]:
    """Lineages of an operator's stores, up to the newest version that one run has made in all of them."""
    newest = last_of_one_run([(lineage.entries, lineage.runs) for lineage in lineages])
    if not newest:
        raise VersionMissingError(
            "no version is in all partitions by one run: a new run has not committed its first batch in all of them "
            "yet; try again when it has",
            store=lineages[0].store,
            versions=f"{lineages[0].entries[0].version}-{lineages[0].newest.version}",
        )
    return [lineage.up_to(newest) for lineage in lineages]
