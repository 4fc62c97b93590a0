"""What a run reads by a version's number, as under checkpoint format v1, where several runs have made that version."""

from __future__ import annotations

import pytest

from dynastate.engine.engine import Engine
from dynastate.engine.updates import unchanged
from dynastate.errors import ConfigurationError, VersionMissingError
from dynastate.format.items import Item
from dynastate.format.keys import EMPTY, NO_ATTEMPT, VersionId
from dynastate.format.meta import QUERIES_KEPT, QueryRun
from dynastate.format.version_list import REFUSED, VERSIONS
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.lifecycle.clean import clean_store
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.storage.tables import Tables
from tests.support.contents import graph
from tests.support.engine_driver import Engines, fold, read, write
from tests.support.samples import CHECKPOINT, QUERY, SCHEMA, State, attempt, chunk, namespace_of, query_run

MOVED = "file:/moved/state"


def make(engine: Engine, store: str, run: QueryRun, versions: int, base: VersionId = EMPTY) -> VersionId:
    for version in range(base.version + 1, base.version + versions + 1):
        by = attempt(int.from_bytes(run.id.encode(), "big") % 2**32 * 1000 + version)
        under_way = engine.begin(store, run, *base, by)
        under_way.append(chunk({b"%d" % version: run.id.encode()}))
        under_way.commit({0: 0}, SCHEMA)
        base = VersionId(version, by)
    return base


def read_for(engine: Engine, store: str, run: QueryRun, version: int) -> State:
    opening = engine.open(store, version, NO_ATTEMPT, (), run)
    assert engine.find(store, version, NO_ATTEMPT, run).entry == opening.entry
    return fold(opening.chunks, fold(opening.snapshot_chunks))


def fork_of(tables: Tables, store: str, version: int | None = None) -> str:
    """Fork the namespace; return the name of the store there."""
    namespace = namespace_of(store)
    fork_namespace(tables, namespace, f"{namespace}-fork", version)
    return store.replace(namespace, f"{namespace}-fork", 1)


def test_a_restored_checkpoint_resumes_from_its_own_query(engines: Engines, store: str) -> None:
    """Another query ran at the same place meanwhile, and has made all versions once more, and further ones."""
    first, second, third = query_run("a-1"), query_run("b-1", query="other"), query_run("a-2")
    mine = make(engines(), store, first, 3)
    others = make(engines(), store, second, 5)
    assert read_for(engines(), store, third, 3) == dict.fromkeys([b"1", b"2", b"3"], b"a-1")
    assert read(engines(), store, 3) == dict.fromkeys([b"1", b"2", b"3"], b"b-1"), "a reader gets the current query's"

    version = make(engines(), store, third, 1, mine)
    state = dict.fromkeys([b"1", b"2", b"3"], b"a-1") | {b"4": b"a-2"}
    assert read_for(engines(), store, third, 4) == read(engines(), store, *version) == state
    back = query_run("b-2", query="other")
    assert read_for(engines(), store, back, 5) == read(engines(), store, *others)
    make(engines(), store, back, 1, others)
    assert read_for(engines(), store, query_run("a-3"), 4) == state


def test_another_querys_version_is_not_taken_for_a_lost_one(engines: Engines, store: str) -> None:
    """The restored query stopped after fewer versions than the other one: it has no fourth."""
    make(engines(), store, query_run("a-1"), 3)
    make(engines(), store, query_run("b-1", query="other"), 5)
    make(engines(), store, query_run("a-2"), 1)
    with pytest.raises(VersionMissingError, match="only another query has made this version"):
        read_for(engines(), store, query_run("a-3"), 4)


def test_a_new_query_resumes_from_an_earlier_one(engines: Engines, store: str) -> None:
    """Its checkpoint lost the query's id: a version that it names is opened. An unknown query's may be anyone's."""
    base = make(engines(), store, query_run("a-1"), 3)
    recovered = query_run("b-1", query="recovered")
    with pytest.raises(VersionMissingError, match="only another query has made this version"):
        read_for(engines(), store, recovered, 3)
    make(engines(), store, recovered, 2, base)
    restarted = query_run("b-2", query="recovered")
    assert read_for(engines(), store, restarted, 3) == read(engines(), store, *base)
    assert read_for(engines(), store, query_run("?", query=""), 5)[b"5"] == b"b-1"


def test_a_fork_knows_whose_its_versions_are(engines: Engines, tables: Tables, store: str) -> None:
    """A fork of the current query's state is none of an earlier one, whose checkpoint was kept."""
    make(engines(), store, query_run("a-1"), 3)
    make(engines(), store, query_run("b-1", query="other"), 3)
    fork = fork_of(tables, store)
    assert read_for(engines(), fork, query_run("b-2", MOVED, query="other"), 3)[b"3"] == b"b-1"
    assert read_for(engines(), fork, query_run("a-2", MOVED), 3)[b"3"] == b"a-1", "it holds each attempt at its version"


def test_a_location_that_is_adopted_again(engines: Engines, tables: Tables, store: str) -> None:
    """A number that both locations have made is refused, of forks too; one that only one of them has is clear."""
    base = make(engines(), store, query_run("old-1"), 3)
    mine = make(engines(), store, query_run("old-1"), 2, base)
    adopt_stores(tables, [store], MOVED)
    moved = make(engines(), store, query_run("new-1", MOVED), 4, base)
    assert read_for(engines(), store, query_run("new-2", MOVED), 4)[b"4"] == b"new-1"
    with pytest.raises(ConfigurationError, match="several checkpoint locations"):  # a copy of either's checkpoint
        fork_of(tables, store, 5)
    adopt_stores(tables, [store], CHECKPOINT)
    back = query_run("old-2")
    for version in (4, 5):
        with pytest.raises(ConfigurationError, match=f"several checkpoint locations.*rollback.*{MOVED},{CHECKPOINT}"):
            read_for(engines(), store, back, version)
    with pytest.raises(ConfigurationError, match="several checkpoint locations"):
        fork_of(tables, store, 5)
    assert graph(tables, fork_of(tables, store, 3)).versions()[-1] == 3
    for version in (3, 6, 7):
        assert read_for(engines(), store, back, version) == read(engines(), store, version)
    make(engines(), store, back, 2, base)
    assert read_for(engines(), store, back, 5)[b"5"] == b"old-2"
    assert read(engines(), store, *mine)[b"5"] == b"old-1"
    assert read(engines(), store, *moved)[b"7"] == b"new-1"


def test_the_newest_queries_are_listed(engines: Engines, tables: Tables, store: str) -> None:
    make(engines(), store, query_run("run-0"), 1)
    assert graph(tables, store).required_meta.queries == {1: QUERY}
    for number in range(1, QUERIES_KEPT + 3):
        make(engines(), store, query_run(f"run-{number}", query=f"query-{number}"), 1)
    listed = graph(tables, store).required_meta.queries
    assert list(listed) == list(range(4, QUERIES_KEPT + 4))
    assert listed[QUERIES_KEPT + 3] == f"query-{QUERIES_KEPT + 2}"


def test_a_query_that_began_from_nothing_has_no_earlier_version(engines: Engines, tables: Tables, store: str) -> None:
    """Its own versions were deleted: it started over, then the first query was restored, and cleaned up."""
    base = make(engines(), store, query_run("a-1"), 7)
    make(engines(), store, query_run("b-1", query="other"), 5)
    make(engines(), store, query_run("a-2"), 3, base)
    back = query_run("b-2", query="other")
    assert read_for(engines(), store, back, 5)[b"5"] == b"b-1"
    assert clean_store(engines(), tables, store, 2).items
    with pytest.raises(VersionMissingError, match="only another query has made this version"):
        read_for(engines(), store, back, 5)
    assert read_for(engines(), store, query_run("a-3"), 10)[b"10"] == b"a-2"


def test_a_checkpoint_that_is_restored_after_a_drop(engines: Engines, tables: Tables, store: str) -> None:
    """The next query has made the same numbers, in a store that never was the first one's."""
    make(engines(), store, query_run("a-1"), 5)
    drop_stores(tables, [store])
    make(engines(), store, query_run("b-1", query="other"), 7)
    with pytest.raises(VersionMissingError, match="the state of this one was dropped or cleaned up"):
        read_for(engines(), store, query_run("a-2"), 5)


def test_a_query_that_was_taken_back_has_no_earlier_version(engines: Engines, store: str) -> None:
    """It resumed from the first one's version 5, and was later taken back to 2."""
    base = make(engines(), store, query_run("a-1"), 2)
    newest = make(engines(), store, query_run("a-1"), 3, base)
    recovered, second = query_run("b-1", query="recovered"), query_run("b-2", query="recovered")
    make(engines(), store, recovered, 1, newest)
    assert read_for(engines(), store, second, 4)[b"4"] == b"a-1"
    make(engines(), store, second, 1, base)
    with pytest.raises(VersionMissingError, match="only another query has made this version"):
        read_for(engines(), store, second, 4)
    assert read_for(engines(), store, second, 3)[b"3"] == b"b-2"


def test_a_query_that_may_be_forgotten(engines: Engines, tables: Tables, store: str) -> None:
    """Once the oldest queries are no longer listed, a query that is not listed may be one of them."""
    make(engines(), store, query_run("a-1"), 3)
    run = query_run("a-2")
    for number in range(QUERIES_KEPT):
        assert read_for(engines(), store, run, 3)[b"3"] == b"a-1"
        make(engines(), store, query_run(f"run-{number}", query=f"query-{number}"), 3)
    with pytest.raises(ConfigurationError, match="16 queries or more have written to this store"):
        read_for(engines(), store, run, 3)
    last = QUERIES_KEPT - 1
    newest = query_run("again", query=f"query-{last}")
    assert read_for(engines(), store, newest, 3)[b"3"] == f"run-{last}".encode()
    assert graph(tables, fork_of(tables, store)).versions()[-1] == 3


def test_a_number_that_a_deleted_version_had(engines: Engines, tables: Tables, store: str) -> None:
    """Clean-up has deleted what a location had made, and its checkpoint is adopted again."""
    base = make(engines(), store, query_run("old-1"), 3)
    make(engines(), store, query_run("old-1"), 2, base)
    adopt_stores(tables, [store], MOVED)
    make(engines(), store, query_run("new-1", MOVED), 4, base)
    adopt_stores(tables, [store], CHECKPOINT)
    make(engines(), store, query_run("old-2"), 3, base)
    adopt_stores(tables, [store], MOVED)
    for group, listed in graph(tables, store).lists.items():  # as clean-up does, when runs have come and gone
        item = tables.get([group])[group]
        old_item: Item = {name: item[name] for name in (VERSIONS, REFUSED) if name in item}
        new_item: Item = {VERSIONS: [raw for raw, entry in listed if entry.epoch != 3]} if listed else {}
        assert tables.put_over(group, item | new_item, unchanged(old_item))
    with pytest.raises(ConfigurationError, match=f"several checkpoint locations.*{MOVED},{CHECKPOINT}"):
        read_for(engines(), store, query_run("new-2", MOVED), 5)
    assert read_for(engines(), store, query_run("new-2", MOVED), 3)[b"3"] == b"old-1"


def test_a_checkpoint_that_is_moved_to_and_fro(engines: Engines, tables: Tables, store: str) -> None:
    """Where each location continues from the newest version of the other, its number is clear."""
    base = make(engines(), store, query_run("old-1"), 3)
    for number, place in enumerate([MOVED, CHECKPOINT, MOVED, CHECKPOINT]):
        adopt_stores(tables, [store], place)
        assert read_for(engines(), store, query_run("next", place), base.version) == read(engines(), store, *base)
        base = make(engines(), store, query_run(f"run-{number}", place), 2, base)
    meta = graph(tables, store).required_meta
    assert dict(meta.heights) == {2: 3, 4: 5, 6: 7, 8: 9}
    assert dict(meta.bases) == {2: 3, 4: 5, 6: 7, 8: 9}


def test_clean_up_leaves_no_attempt_that_was_left(engines: Engines, tables: Tables, store: str) -> None:
    """Of a version that another location continued from, clean-up deletes every attempt, or none."""
    base = make(engines(), store, query_run("old-1"), 3)
    make(engines(), store, query_run("old-2"), 3, base)
    newest = make(engines(), store, query_run("old-3"), 2, base)
    adopt_stores(tables, [store], MOVED)
    moved = make(engines(), store, query_run("new-1", MOVED), 12, newest)
    compact_store(engines(), tables, store)
    make(engines(), store, query_run("new-1", MOVED), 4, moved)
    assert clean_store(engines(), tables, store, 2).items
    adopt_stores(tables, [store], CHECKPOINT)
    with pytest.raises(VersionMissingError, match="this version does not exist"):
        read_for(engines(), store, query_run("old-4"), newest.version)


def test_a_location_that_resumed_from_what_was_made_again(engines: Engines, tables: Tables, store: str) -> None:
    """It has run nothing yet, and the location before was adopted again and taken back."""
    base = make(engines(), store, query_run("old-1"), 3)
    make(engines(), store, query_run("old-1"), 1, base)
    adopt_stores(tables, [store], MOVED)
    adopt_stores(tables, [store], CHECKPOINT)
    make(engines(), store, query_run("old-2"), 2, base)
    adopt_stores(tables, [store], MOVED)
    with pytest.raises(ConfigurationError, match="several checkpoint locations"):
        read_for(engines(), store, query_run("new-1", MOVED), 4)
    assert read_for(engines(), store, query_run("new-1", MOVED), 5)[b"5"] == b"old-2"


def test_clean_up_leaves_no_twin_of_what_was_continued(engines: Engines, tables: Tables, store: str) -> None:
    """One run made the version twice, and another location continued from the one that counts."""
    base = make(engines(), store, query_run("old-1"), 4)
    for by in (700, 701):
        write(engines(), store, attempt(by), {b"5": b"%d" % by}, base=base, run="old-1")
    adopt_stores(tables, [store], MOVED)
    moved = make(engines(), store, query_run("new-1", MOVED), 12, VersionId(5, attempt(701)))
    compact_store(engines(), tables, store)
    make(engines(), store, query_run("new-1", MOVED), 4, moved)
    assert clean_store(engines(), tables, store, 2).items
    adopt_stores(tables, [store], CHECKPOINT)
    with pytest.raises(VersionMissingError, match="this version does not exist"):
        read_for(engines(), store, query_run("old-2"), 5)


def test_a_fork_that_two_locations_use(engines: Engines, tables: Tables, store: str) -> None:
    """A number that the origin and the first test both made is refused to the next test; what is clear is read."""
    version = make(engines(), store, query_run("run-1"), 8)
    make(engines(), store, query_run("run-1"), 2, version)
    fork = fork_of(tables, store, 10)
    first, second = query_run("t-1", "file:/c1/state"), query_run("t-2", "file:/c2/state")
    assert read_for(engines(), fork, first, 10)[b"10"] == b"run-1"
    tip = VersionId(10, graph(tables, fork).find(10, NO_ATTEMPT).attempt)
    make(engines(), fork, first, 1, tip)
    assert read_for(engines(), fork, query_run("t-3", "file:/c1/state"), 10)[b"10"] == b"run-1"
    adopt_stores(tables, [fork], "file:/c2/state")
    assert read_for(engines(), fork, second, 10)[b"10"] == b"run-1"
    make(engines(), fork, second, 3, version)
    adopt_stores(tables, [fork], "file:/c3/state")
    with pytest.raises(ConfigurationError, match="several checkpoint locations"):
        read_for(engines(), fork, query_run("t-5", "file:/c3/state"), 10)
    with pytest.raises(ConfigurationError, match="several checkpoint locations"):
        fork_of(tables, fork, 10)


@pytest.mark.parametrize("is_adopted", [False, True], ids=["claimed", "adopted before its first run"])
@pytest.mark.parametrize("is_cleaned", [False, True], ids=["all there", "cleaned up"])
def test_fork_of_two_tests(engines: Engines, tables: Tables, store: str, *, is_adopted: bool, is_cleaned: bool) -> None:
    """The origin counts for all up to the fork's version, also where its own are deleted; the moved one's are clear."""
    version = make(engines(), store, query_run("run-1"), 8)
    make(engines(), store, query_run("run-1"), 2, version)
    fork = fork_of(tables, store, 10)
    if is_adopted:
        adopt_stores(tables, [fork], "file:/c1/state")
    make(engines(), fork, query_run("t-1", "file:/c1/state"), 3, version)
    if is_cleaned:
        clean_store(engines(), tables, fork, 2)
        assert [entry.version for entry in graph(tables, fork).entries()].count(10) == 1
    adopt_stores(tables, [fork], "file:/c2/state")
    second = query_run("t-2", "file:/c2/state")
    with pytest.raises(ConfigurationError, match=r"several checkpoint locations.*locations=file:/c1/state,the fork's"):
        read_for(engines(), fork, second, 10)
    assert read_for(engines(), fork, second, 11)[b"11"] == b"t-1"
