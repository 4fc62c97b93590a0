"""Lineages of stores, without tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from dynastate.engine.lineage import Lineage, of_one_run
from dynastate.errors import VersionMissingError
from dynastate.format.keys import Attempt
from dynastate.storage.meter import Meter
from tests.support.samples import A, B, C, D, Z, entry_of

STORE = "orders/0/0/default"


def lineage(first: int, *attempts: Attempt, parent: Attempt = Z) -> Lineage:
    """Make the lineage of versions from `first` on, by these attempts, in one run."""
    parents = (parent, *attempts)
    entries = [entry_of(first + index, by, parents[index]) for index, by in enumerate(attempts)]
    return Lineage(STORE, tuple(entries), {bytes(8): "schema"}, Meter(), runs={1: "run-1"})


def test_versions_are_found_by_number() -> None:
    versions = lineage(7, A, B, C)
    assert versions.newest.id == (9, C)
    assert [versions.find(number).attempt for number in (7, 8, 9)] == [A, B, C]
    assert versions.up_to(8).newest.id == (8, B)
    assert versions.schema(versions.newest) == "schema"


@pytest.mark.parametrize("version", [0, 6, 10])
def test_a_version_that_is_not_listed_is_refused(version: int) -> None:
    message = f"this version cannot be read; name one of versions store={STORE} version={version} versions=7-9"
    with pytest.raises(VersionMissingError, match=message):
        lineage(7, A, B, C).find(version)


@pytest.mark.parametrize(
    ("later", "earlier", "version", "expected"),
    [
        (lineage(1, A, B, C), lineage(1, A, B), 2, 2),
        (lineage(1, A, D, C), lineage(1, A, B), 2, 1),  # another attempt was continued
        (lineage(1, D, C), lineage(1, A, B), 2, 0),
        (lineage(3, C, parent=B), lineage(1, A, B), 2, 2),  # clean-up has deleted version 2, the parent of 3
        (lineage(3, C, parent=D), lineage(1, A, B), 2, 0),
        (lineage(5, C), lineage(1, A, B), 2, 2),  # changes after version 2 cannot be read
    ],
)
def test_common_version_of_two_lineages(later: Lineage, earlier: Lineage, version: int, expected: int) -> None:
    assert later.common(earlier, version) == expected


def of_runs(versions: Lineage, runs: Mapping[int, str], *epochs: int) -> Lineage:
    """Change whose a lineage's versions are."""
    entries = [replace(entry, epoch=epoch) for entry, epoch in zip(versions.entries, epochs, strict=True)]
    return replace(versions, entries=tuple(entries), runs=runs)


def test_stores_are_cut_to_the_newest_version_of_one_run() -> None:
    """A new run has made version 3 in one store only: the other store has the previous run's."""
    stores = [
        of_runs(lineage(1, A, B, C), {1: "first", 2: "second"}, 1, 1, 2),
        of_runs(lineage(2, B, D), {1: "first"}, 1, 1),
    ]
    assert [each.newest.version for each in of_one_run(stores)] == [2, 2]


def test_stores_without_a_common_version_are_refused() -> None:
    stores = [of_runs(lineage(1, A), {1: "second"}, 1), of_runs(lineage(1, B), {1: "first"}, 1)]
    with pytest.raises(VersionMissingError, match=r"no version is in all partitions by one run: .* versions=1-1"):
        of_one_run(stores)
