"""Proof that no version and no snapshot has rows with some keys. It only reads.

Beside a query it may find items that no version names yet, or fail at those that clean-up deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from dynastate.engine.opening import retry_routes
from dynastate.format.objects import store_prefix
from dynastate.operations.erase.erase import groups_of, make_reader
from dynastate.operations.erase.keys import GivenKeys, KeyMatcher
from dynastate.operations.erase.scan import find_unnamed, refuse_unmatched, scan_store, sparse_objects
from dynastate.operations.scope import each_store
from dynastate.progress import ProgressCallback, no_progress
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables


@dataclass(frozen=True)
class Absence:
    """The rows with some keys in a store, of all versions together, and the versions and snapshots that have them.

    `unsearched` items and objects are named by no version: of attempts under way, or of failed ones. Objects with some
    buckets that no snapshot names any more are counted, too, and earlier versions of objects.
    """

    store: str
    rows: int
    versions: int
    snapshots: int
    unsearched: int
    read_units: int

    @property
    def is_absent(self) -> bool:
        """Whether no version and no snapshot has such a row, and nothing is left unsearched."""
        return not (self.rows or self.unsearched)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "absent": self.is_absent}


def find_absence(
    tables: Tables, stores: Sequence[str], erased_keys: GivenKeys, progress: ProgressCallback = no_progress
) -> list[Absence]:
    """Look for rows with keys in all versions and snapshots of stores, with their forks and origins.

    Raises:
        ConfigurationError: no key of the stores has the columns of a key.
        CorruptStateError: an item or object is lost or corrupt, so that its rows are not known.
    """
    by_first = {group[0]: group for group in groups_of(tables, stores)}

    def look(view: Tables, first: str) -> _Look:
        return retry_routes(lambda _: _look(view.metered(Meter()), by_first[first], erased_keys))

    groups = each_store(tables, list(by_first), look, progress, until_failure=True).all()
    matchers = {store: matcher for group in groups for store, matcher in group.matchers.items()}
    refuse_unmatched(erased_keys, matchers)  # of all together: each operator may have columns of its own
    return [each for group in groups for each in group.absences]


class _Look(NamedTuple):
    """The answers for a group of stores, and what tells which of their keys match."""

    absences: list[Absence]
    matchers: dict[str, KeyMatcher]


def _look(tables: Tables, group: Sequence[str], erased_keys: GivenKeys) -> _Look:
    scans, units = {}, {}
    with closing(make_reader()) as reader:
        for store in group:
            view = tables.metered(Meter())
            scans[store] = scan_store(view, reader, store, erased_keys)
            units[store] = view.meter.read_units
    absences, sparse = [], sparse_objects(scans)
    for store, scan in scans.items():
        view = tables.metered(Meter())
        unnamed = find_unnamed(view, store, scans)
        absences.append(
            Absence(
                store,
                rows=len(scan.row_ids),
                versions=len(scan.changes),
                snapshots=sum(bool(scan.touched(manifest)) for _, manifest in scan.snapshots()),
                unsearched=len(unnamed.keys)
                + len(unnamed.objects)
                + sum(each.name.startswith(store_prefix(store)) for each in sparse),
                read_units=units[store] + view.meter.read_units,
            )
        )
    return _Look(absences, {store: scan.matcher for store, scan in scans.items()})
