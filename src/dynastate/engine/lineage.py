"""The lineage of a store: its newest version and the ancestors of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dynastate.errors import VersionMissingError
from dynastate.format.graph import last_of_one_run
from dynastate.format.keys import VersionId
from dynastate.format.version_list import VersionEntry
from dynastate.storage.meter import Meter


@dataclass(frozen=True)
class Lineage:
    """The newest version of a store and its ancestors, as far as they are listed, oldest first.

    `schemas` are the texts of their schema items, by digest; `added` counts the versions since all were read; `runs`
    are the newest query runs, by epoch.
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
        """The entry of a version.

        Raises:
            VersionMissingError: it is no ancestor of the newest, or no longer listed.
        """
        found = self._listed(version)
        if found is not None:
            return found
        there = f"{self.entries[0].version}-{self.newest.version}"
        raise VersionMissingError(
            "this version cannot be read; name one of versions", store=self.store, version=version, versions=there
        )

    def common(self, earlier: Lineage, version: int) -> int:
        """The newest version up to one that this lineage shares with another; 0: none is listed.

        It is the version itself, if clean-up has deleted what came after it here: no changes after it can be read.
        """
        if version < self.entries[0].version - 1:
            return version
        below = (each.id for each in reversed(earlier.entries) if each.version <= version)
        return next((each.version for each in below if self._has(each)), 0)

    def _has(self, version: VersionId) -> bool:
        """Whether a version is one of the listed ones, or the parent of the oldest."""
        entry = self._listed(version.version)
        return version in (self.entries[0].parent_id, entry and entry.id)

    def _listed(self, version: int) -> VersionEntry | None:
        """The listed entry of a version. The entries have numbers without a gap."""
        place = version - self.entries[0].version
        return self.entries[place] if 0 <= place < len(self.entries) else None

    def up_to(self, version: int) -> Lineage:
        """The lineage without the versions above one."""
        return replace(self, entries=self.entries[: version - self.entries[0].version + 1])


def of_one_run(lineages: Sequence[Lineage]) -> list[Lineage]:
    """Lineages of an operator's stores, up to the newest version that all have of one run.

    Raises:
        VersionMissingError: there is none.
    """
    newest = last_of_one_run([(lineage.entries, lineage.runs) for lineage in lineages])
    if not newest:
        raise VersionMissingError(
            "no version is in all partitions by one run: a run makes its versions again, and has not committed its "
            "first batch in all of them yet; try again when it has",
            store=lineages[0].store,
            versions=f"{lineages[0].entries[0].version}-{lineages[0].newest.version}",
        )
    return [lineage.up_to(newest) for lineage in lineages]
