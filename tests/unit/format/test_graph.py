"""Versions, parents and routes in the version graph."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dynastate.errors import CorruptStateError
from dynastate.format.graph import VersionGraph, is_of_one_run, since
from dynastate.format.items import FORMAT, Item, item_key
from dynastate.format.keys import EMPTY, NO_ATTEMPT, Attempt, Key, VersionId, snapshot_key, version_list_key
from dynastate.format.meta import FORK
from dynastate.format.snapshot import DONE, WRITING, Snapshot, snapshot_item
from dynastate.format.version_list import VersionEntry, encode_entry
from tests.support.samples import A, B, C
from tests.support.samples import entry_of as entry

STORE = "ns/0/0/default"


def group(*entries: VersionEntry) -> tuple[Key, Item]:
    key = version_list_key(STORE, entries[0].version)
    item: Item = item_key(key) | {"format": FORMAT}
    return key, item | {"versions": [encode_entry(STORE, each) for each in entries]}


def test_an_attempt_listed_twice_counts_at_its_first_place() -> None:
    """A repeated append changes nothing: an attempt that came after the first of the two still wins."""
    graph = VersionGraph(STORE, [group(entry(1, A), entry(1, B), entry(1, A))])
    assert graph.find(1, NO_ATTEMPT).attempt == B


def test_a_number_means_an_attempt_whose_ancestors_are_there() -> None:
    """A task of a run commits late, on what clean-up has deleted in part: its parent is listed, that one's is not."""
    listed = [entry(3, A), entry(3, B, C), entry(4, A, A), entry(4, B, B)]
    snapshot = Snapshot(3, A, C, 1, DONE, digest=bytes(8), records=30)
    graph = VersionGraph(STORE, [group(*listed), (snapshot_key(STORE, 3, A), snapshot_item(STORE, snapshot))])
    assert graph.find(4, NO_ATTEMPT).attempt == A
    assert VersionGraph(STORE, [group(*listed)]).find(4, NO_ATTEMPT).attempt == B, "if there is none, the last one"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((5, {5: "b"}), (3, {3: "b"}), True),
        ((5, {5: "b"}), (3, {3: "a"}), False),
        ((4, {5: "b"}), (2, {3: "b"}), True),  # neither is listed
        ((5, {4: "a", 5: "b"}), (2, {3: "a", 4: "b"}), False),  # made before all that the second lists, b among them
        ((20, {19: "a", 20: "b"}), (2, {3: "a"}), False),  # b came after a, and the second's came before a
        ((4, {4: "a", 5: "b"}), (2, {3: "b"}), True),  # it may be a, which the second has forgotten
        ((11, {10: FORK, 11: "test"}), (8, {8: FORK, 9: FORK}), False),
        ((10, {10: FORK, 11: "test"}), (8, {8: FORK, 9: FORK}), True),  # both are the origin's
        ((5, {5: "b"}), (7, {6: "a"}), True),  # the meta item of a replica has not arrived
    ],
)
def test_versions_of_one_run(
    first: tuple[int, dict[int, str]], second: tuple[int, dict[int, str]], *, expected: bool
) -> None:
    """A run that a store no longer lists came before all that it lists."""
    stores = [([entry(1, A, epoch=epoch)], listed) for epoch, listed in (first, second)]
    assert is_of_one_run(stores, 1) is is_of_one_run(stores[::-1], 1) is expected
    assert is_of_one_run(stores, 2), "neither has it"


def test_a_route_follows_parents_not_epochs() -> None:
    graph = VersionGraph(STORE, [group(entry(1, A), entry(1, B, epoch=9), entry(2, C, A))])
    base, entries = graph.route(2, C)
    assert base == EMPTY
    assert [each.id for each in entries] == [(1, A), (2, C)]


def test_the_newest_version_held_on_a_path() -> None:
    """Of the versions held, the newest on the path is the base; one of another attempt, or older, is none."""
    graph = VersionGraph(STORE, [group(entry(1, A), entry(2, A, A), entry(2, B, A), entry(3, C, B))])

    def after(*versions: tuple[int, Attempt]) -> tuple[VersionId, list[int]] | None:
        route = since(graph.ancestors(graph.find(3, C)), [VersionId(*each) for each in versions])
        return route and (route[0], [each.version for each in route[1]])

    assert after((1, A), (2, A)) == ((1, A), [2, 3])
    assert after((1, A), (2, B), (2, A)) == ((2, B), [3])
    assert after((3, C)) == ((3, C), [])
    assert after((2, A)) is None


def test_values_are_counted_from_the_nearest_snapshot_below() -> None:
    """What versions added since a snapshot that is done, or version 0; unknown where one does not say, or is gone."""
    added = (5, -2, 7, 1)
    entries = [replace(entry(at, A, A if at > 1 else NO_ATTEMPT), added=each) for at, each in enumerate(added, 1)]

    def counts(*snapshots: Snapshot, without: int = 0) -> list[int | None]:
        items = [(snapshot_key(STORE, *each.of), snapshot_item(STORE, each)) for each in snapshots]
        listed = [each for each in entries if each.version != without]
        graph = VersionGraph(STORE, [group(*listed), *items])
        return [graph.count_values(VersionId(version, A)) for version in (1, 2, 3, 4)]

    snapshot = Snapshot(2, A, B, 1, DONE, digest=bytes(8), records=30)
    assert counts() == [5, 3, 10, 11]
    assert counts(snapshot) == [5, 3, 37, 38], "of a version itself its snapshot says nothing"
    assert counts(replace(snapshot, stage=WRITING)) == [5, 3, 10, 11]
    assert counts(without=2) == [5, None, None, None]
    assert counts(snapshot, without=2) == [5, None, 37, 38]
    entries[2] = replace(entries[2], added=None)
    assert counts(snapshot) == [5, 3, None, None]


def test_a_lost_parent_is_an_error() -> None:
    """A parent that is not there is lost state: the error names store, version, attempt, and the list to look at."""
    graph = VersionGraph(STORE, [group(entry(12, C, B))])
    where = f"table=snapshot store_shard={STORE}#0 item=list/0000000000000001"
    message = f"store={STORE} version=12 attempt={C.hex()} parent={B.hex()} {where}"
    with pytest.raises(CorruptStateError, match=message):
        graph.route(12, C)
    with pytest.raises(CorruptStateError, match="names no parent"):
        VersionGraph(STORE, [group(entry(12, C))]).route(12, C)


def test_a_parent_that_was_not_read() -> None:
    """Where only the newest version lists were read, a held parent below them is found; another is none."""
    graph = VersionGraph(STORE, [group(entry(12, C, B))], lowest=12)
    path = list(graph.ancestors(graph.find(12, C)))
    assert since(path, [VersionId(11, B)]) == ((11, B), tuple(path))
    assert since(path, [VersionId(11, A)]) is None


@pytest.mark.parametrize(
    ("sort", "item"),
    [
        ("list/0000000000000000", {"versions": []}),
        ("list/0000000000000000", {"format": FORMAT}),
        ("list/0000000000000000", {"format": FORMAT, "versions": "text"}),
        ("list/0000000000000000", {"format": FORMAT, "versions": [b""]}),
        ("list/0000000000000000", {"format": FORMAT, "versions": [b"\x02broken"]}),
        ("list/0000000000000000", {"format": FORMAT + 1, "versions": []}),
        ("meta", {"format": FORMAT + 1}),
        ("snapshot/00000000000000000007/00", {"format": FORMAT}),
    ],
)
def test_a_corrupt_or_newer_item_of_the_graph_is_named(sort: str, item: Item) -> None:
    key = Key("snapshot", f"{STORE}#0", sort)
    with pytest.raises(CorruptStateError, match=f"store_shard={STORE}#0 item={sort}"):
        VersionGraph(STORE, [(key, item)])
