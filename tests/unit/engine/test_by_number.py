"""What a run reads by a version's number, as under checkpoint format v1, where several runs have made that version."""

from __future__ import annotations

import pytest

from dynastate.dynamodb.meter import Meter
from dynastate.dynamodb.tables import Tables
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, VersionMissingError
from dynastate.format.keys import EMPTY, NO_ATTEMPT, VersionId
from dynastate.format.meta import QUERIES_KEPT, QueryRun, StoreMeta
from dynastate.operations.adopt import adopt_stores
from dynastate.operations.fork import fork_namespace
from tests.support.engine_driver import (
    CHECKPOINT,
    SCHEMA,
    Engines,
    State,
    attempt,
    chunk,
    fold,
    graph,
    namespace_of,
    query_run,
    read,
)

MOVED = "file:/moved/state"


def make(engine: Engine, store: str, run: QueryRun, versions: int, base: VersionId = EMPTY) -> VersionId:
    """Commit versions of a run, each with one row that names it and the version."""
    for version in range(base.version + 1, base.version + versions + 1):
        by = attempt(int.from_bytes(run.id.encode(), "big") % 2**32 * 1000 + version)
        under_way = engine.begin(store, run, *base, by)
        under_way.append(chunk({b"%d" % version: run.id.encode()}))
        under_way.commit({0: 0}, SCHEMA)
        base = VersionId(version, by)
    return base


def read_for(engine: Engine, store: str, run: QueryRun, version: int) -> State:
    """Read a version by its number for a run."""
    opening = engine.open(store, version, NO_ATTEMPT, (), run)
    assert engine.find(store, version, NO_ATTEMPT, run).entry == opening.entry
    return fold(opening.chunks, fold(opening.snapshot_chunks))


def test_a_restored_checkpoint_resumes_from_its_own_query(engines: Engines, store: str) -> None:
    """Another query ran at the same place meanwhile, and has made all versions once more, and further ones."""
    first, second, again = query_run("a-1"), query_run("b-1", query="other"), query_run("a-2")
    mine = make(engines(), store, first, 3)
    others = make(engines(), store, second, 5)
    assert read_for(engines(), store, again, 3) == dict.fromkeys([b"1", b"2", b"3"], b"a-1")
    assert read(engines(), store, 3) == dict.fromkeys([b"1", b"2", b"3"], b"b-1"), "a reader gets the current query's"

    made = make(engines(), store, again, 1, mine)
    own = dict.fromkeys([b"1", b"2", b"3"], b"a-1") | {b"4": b"a-2"}
    assert read_for(engines(), store, again, 4) == read(engines(), store, *made) == own
    back = query_run("b-2", query="other")
    assert read_for(engines(), store, back, 5) == read(engines(), store, *others)
    make(engines(), store, back, 1, others)
    assert read_for(engines(), store, query_run("a-3"), 4) == own


def test_another_querys_version_is_not_taken_for_a_lost_one(engines: Engines, store: str) -> None:
    """The restored query stopped after fewer versions than the other one: it has no fourth."""
    make(engines(), store, query_run("a-1"), 3)
    make(engines(), store, query_run("b-1", query="other"), 5)
    make(engines(), store, query_run("a-2"), 1)
    with pytest.raises(VersionMissingError, match="only a query that came after this one has made this version"):
        read_for(engines(), store, query_run("a-3"), 4)


def test_a_new_query_resumes_from_an_earlier_one(engines: Engines, store: str) -> None:
    """A checkpoint that was recovered has a new query's id; what is known of no query may be anyone's."""
    base = make(engines(), store, query_run("a-1"), 3)
    recovered = query_run("b-1", query="recovered")
    assert read_for(engines(), store, recovered, 3) == read(engines(), store, *base)
    make(engines(), store, recovered, 2, base)
    restarted = query_run("b-2", query="recovered")
    assert read_for(engines(), store, restarted, 3) == read(engines(), store, *base)
    assert read_for(engines(), store, query_run("?", query=""), 5)[b"5"] == b"b-1"


def test_a_fork_knows_whose_its_versions_are(engines: Engines, tables: Tables, store: str) -> None:
    """A fork of the current query's state is none of an earlier one, whose checkpoint was kept."""
    make(engines(), store, query_run("a-1"), 3)
    make(engines(), store, query_run("b-1", query="other"), 3)
    namespace = namespace_of(store)
    fork_namespace(tables, namespace, f"{namespace}-fork", None, Meter())
    fork = store.replace(namespace, f"{namespace}-fork", 1)
    assert read_for(engines(), fork, query_run("b-2", MOVED, query="other"), 3)[b"3"] == b"b-1"
    assert read_for(engines(), fork, query_run("a-2", MOVED), 3)[b"3"] == b"a-1", "it holds each attempt at its version"


def test_a_location_that_is_adopted_again(engines: Engines, tables: Tables, store: str) -> None:
    """A number that both locations have made is refused, of forks too; one that only one of them has is clear."""
    base = make(engines(), store, query_run("old-1"), 3)
    mine = make(engines(), store, query_run("old-1"), 2, base)
    adopt_stores(tables, [store], MOVED, Meter())
    moved = make(engines(), store, query_run("new-1", MOVED), 4, base)
    assert read_for(engines(), store, query_run("new-2", MOVED), 4)[b"4"] == b"new-1"
    adopt_stores(tables, [store], CHECKPOINT, Meter())
    back = query_run("old-2")
    for version in (4, 5):
        with pytest.raises(ConfigurationError, match=f"several checkpoint locations.*rollback.*{MOVED},{CHECKPOINT}"):
            read_for(engines(), store, back, version)
    namespace = namespace_of(store)
    with pytest.raises(ConfigurationError, match="several checkpoint locations"):
        fork_namespace(tables, namespace, f"{namespace}-fork", 5, Meter())
    assert fork_namespace(tables, namespace, f"{namespace}-fork", 3, Meter()).version == 3
    for version in (3, 6, 7):
        assert read_for(engines(), store, back, version) == read(engines(), store, version)
    make(engines(), store, back, 2, base)
    assert read_for(engines(), store, back, 5)[b"5"] == b"old-2"
    assert read(engines(), store, *mine)[b"5"] == b"old-1"
    assert read(engines(), store, *moved)[b"7"] == b"new-1"


def test_the_newest_queries_are_listed(engines: Engines, tables: Tables, store: str) -> None:
    """A meta item lists a bounded number of queries, and none while there has been one."""
    make(engines(), store, query_run("run-0"), 1)
    assert graph(tables, store).required_meta.queries == {}
    for number in range(1, QUERIES_KEPT + 3):
        make(engines(), store, query_run(f"run-{number}", query=f"query-{number}"), 1)
    listed = graph(tables, store).required_meta.queries
    assert list(listed) == list(range(4, QUERIES_KEPT + 4))
    assert listed[QUERIES_KEPT + 3] == f"query-{QUERIES_KEPT + 2}"


def test_whose_an_epoch_is() -> None:
    """A query's own epochs, those before it began, and those of queries whose ids are not known, are not foreign."""
    meta = StoreMeta(1, {"run": 9}, "a", "", {}, queries={2: "a", 4: "b", 6: "", 8: "a"})
    foreign = {
        query: [epoch for epoch in range(1, 10) if meta.is_foreign(epoch, query)] for query in ("a", "b", "c", "")
    }
    assert foreign == {"a": [4, 5], "b": [8, 9], "c": [], "": []}
