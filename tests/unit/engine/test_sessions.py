"""Epochs of query runs, and their entry into meta items."""

from __future__ import annotations

import pytest

from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, CorruptStateError, UnavailableError
from dynastate.format.items import FORMAT, item_bytes, item_key
from dynastate.format.keys import EMPTY, NO_ATTEMPT, VersionId, meta_key, schema_digest, schema_key
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.storage.tables import Tables
from tests.support.contents import entry, graph, items_of, parts_of
from tests.support.engine_driver import Engines, begin, read, write, write_versions
from tests.support.faults import FailingTables, Overtaken
from tests.support.memory_tables import MemoryTables
from tests.support.samples import CHECKPOINT, QUERY, SCHEMA, A, B, C, D, Z, attempt, numbers, query_run


def test_the_meta_item_says_what_the_store_is(engine: Engine, tables: Tables, store: str) -> None:
    """The meta item holds the store, the checkpoint in clear text, shards, package and time of the first commit."""
    write(engine, store, A, {b"k": b"v"})
    assert items_of(tables, store)["meta"] == item_key(meta_key(store)) | {
        "format": FORMAT,
        "store": store,
        "queries": {"1": QUERY},
        "began": "2025-01-01T00:00:00+00:00",
        "locations": {"1": CHECKPOINT},
        "shards": 4,
        "package": "0.2.0",
        "created": "2025-01-01T00:00:00+00:00",
        "epoch": 1,
        "epochs": {"run-1": 1},
    }


def test_a_store_retains_its_number_of_shards(engines: Engines, tables: Tables, store: str) -> None:
    base = write(engines(shards=2), store, A, {b"a": b"1"}, {b"b": b"1"})
    other = engines(shards=3)
    write(other, store, B, {b"c": b"1"}, {b"d": b"1"}, {b"e": b"1"}, base=base, run="run-2")
    assert {key.store_shard for key, _ in parts_of(tables, store)} == {f"{store}#0", f"{store}#1"}
    assert set(read(engines(), store, 2)) == {b"a", b"b", b"c", b"d", b"e"}


def test_the_schema_is_written_once_a_session(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """The schema item goes out with the first commit of a query run, and again only when the schema changes."""
    write_versions(memory_engine, store, 3)
    base = (3, attempt(3))
    under_way = memory_engine.begin(store, query_run("run-1"), *base, A)
    under_way.commit({0: 3}, SCHEMA + " ")
    sorts = [key.sort for call in memory.called("write") for key in call.keys if key.sort.startswith("schema/")]
    assert sorts == [schema_key(store, schema_digest(text)).sort for text in (SCHEMA, SCHEMA + " ")]


def test_epochs_rise_with_each_query_run(engines: Engines, tables: Tables, store: str) -> None:
    """Each run gets the next epoch at its first write, and keeps it in another process; the newest sixteen are kept."""
    base = EMPTY
    for number in range(1, 21):
        base = write(engines(), store, attempt(number), run=f"run-{number}", base=base)
    write(engines(), store, attempt(21), run="run-20", base=base)
    assert [entry(tables, store, version).epoch for version in range(1, 22)] == [*range(1, 21), 20]
    meta = items_of(tables, store)["meta"]
    assert meta["epoch"] == 20
    assert meta["epochs"] == {f"run-{number}": number for number in range(5, 21)}
    assert item_bytes(meta) < 1024, "it does not grow without limit"


def test_a_run_entered_by_another_executor_is_found(engines: Engines, tables: Tables, store: str) -> None:
    """Two executors that enter one run at once get one epoch."""
    base = write(engines(), store, A, run="run-1")
    other = lambda: write(engines(), store, B, base=base, run="run-2")  # noqa: E731
    write(engines(Overtaken(tables, other, "update")), store, C, base=base, run="run-2")
    assert [graph(tables, store).find(2, each).epoch for each in (B, C)] == [2, 2]


@pytest.mark.parametrize("moment", ["query", "put_new"])
def test_a_store_made_by_another_executor_is_found(engines: Engines, tables: Tables, store: str, moment: str) -> None:
    """Two executors that make one store at once agree on its meta item, whenever the other one is first."""
    other = lambda: write(engines(shards=3), store, A, {b"k": b"v"}, run="run-1")  # noqa: E731
    engine = engines(Overtaken(tables, other, moment), shards=2)
    write(engine, store, B, {b"k": b"w"}, run="run-2")
    assert items_of(tables, store)["meta"]["shards"] == 3
    assert [graph(tables, store).find(1, each).epoch for each in (A, B)] == [1, 2]
    assert read(engine, store, 1) == {b"k": b"w"}


def test_run_without_an_epoch_fails_at_last(failing_engine: Engine, failing_tables: FailingTables, store: str) -> None:
    """A run whose epoch is always taken by another fails after a bounded number of tries; its task can be retried."""
    write(failing_engine, store, A)
    failing_tables.update = lambda *_: None  # the condition never holds
    with pytest.raises(UnavailableError, match="too many query runs"):
        write(failing_engine, store, B, base=VersionId(1, A), run="run-2")


def test_a_zombie_of_an_older_run_never_wins(engines: Engines, store: str) -> None:
    """After a restart of the query, what the old run still commits has the lower epoch: it wins no version."""
    base = write(engines(), store, A, {b"n": b"1"}, run="run-1")
    zombie = begin(engines(), store, Z, {b"n": b"zombie"}, base=base)
    write(engines(), store, B, {b"n": b"2"}, base=base, run="run-2")
    zombie.commit({0: 1}, SCHEMA)
    assert read(engines(), store, 2) == {b"n": b"2"}


@pytest.mark.parametrize("sees", ["open", "open near", "snapshot", "clean-up", "enter"])
def test_two_queries_on_one_namespace(engines: Engines, tables: Tables, store: str, sees: str) -> None:
    """A copied checkpoint: the query that began to write first is refused once it sees the other, which continues."""
    first, second = engines(), engines()
    versions = write_versions(first, store, 3)
    mine = write(first, store, A, {b"by": b"first"}, base=versions[3])
    theirs = write(second, store, B, {b"by": b"second"}, base=versions[3], run="run-2")
    under_way = begin(first, store, C, {b"by": b"first"}, base=mine)
    if sees == "open":
        assert read(first, store, 4)[b"by"] == b"second"
    elif sees == "open near":
        assert read(first, store, 4, have=[versions[3]])[b"by"] == b"second"
    elif sees == "snapshot":
        assert first.maintenance.snapshot(store, "run-1", *mine, 1, 1)[0] is None
    elif sees == "clean-up":
        first.maintenance.clean_up(store, "run-1", *mine, 2, 1, 0)
    else:
        under_way = begin(engines(), store, C, base=mine)  # an executor that never wrote to this store
    with pytest.raises(ConfigurationError, match=r"newer run of this query writes.*run=run-1 epoch=1 newest=2"):
        under_way.commit({0: 1}, SCHEMA)
    under_way.abort()
    assert read(second, store, *write(second, store, D, {b"d": b"d"}, base=theirs, run="run-2"))[b"by"] == b"second"
    assert {key.sort.split("/")[1] for key, _ in parts_of(tables, store)}.isdisjoint({C.hex()})


def test_an_old_run_that_first_writes_beside_a_newer_one(engines: Engines, store: str) -> None:
    """A run is as new as its first write: the one that continues is refused once it sees it; restarted, it is not."""
    engine = engines()
    versions = write_versions(engine, store, 3)
    zombie = begin(engines(), store, Z, {b"3": b"3"}, base=versions[2], run="run-0")
    zombie.commit({0: 3}, SCHEMA)
    expected = numbers(3)
    assert read(engine, store, *versions[3]) == expected
    assert engine.open(store, 3, NO_ATTEMPT).entry.attempt == Z
    with pytest.raises(ConfigurationError, match="this one is over"):
        write(engine, store, D, {b"4": b"4"}, base=versions[3])
    version = write(engine, store, D, {b"4": b"4"}, base=versions[3], run="run-2")
    assert read(engines(), store, *version) == read(engines(), store, 4) == expected | {b"4": b"4"}


def test_a_checkpoint_started_over_at_the_same_path(engines: Engines, store: str) -> None:
    """Version 0 is empty whatever the tables hold, the new run's epoch is higher, and its versions win one by one."""
    old = write_versions(engines(), store, 3)
    one = write(engines(), store, A, {b"new": b"1"}, run="run-2")
    assert read(engines(), store, 1) == {b"new": b"1"}
    two = write(engines(), store, B, {b"new": b"2"}, base=one, run="run-2")
    assert read(engines(), store, 2) == read(engines(), store, *two) == {b"new": b"2"}
    assert read(engines(), store, *old[3]) == {b"1": b"1", b"2": b"2", b"3": b"3"}


@pytest.mark.parametrize("base", [(1, A), EMPTY], ids=["continued", "started over"])
def test_a_lost_meta_item_is_not_created_again(engines: Engines, tables: Tables, store: str, base: VersionId) -> None:
    """A store with versions is never taken for a new one: an epoch that begins at 1 again would lose to the old."""
    write(engines(), store, A, {b"a": b"1"})
    tables.delete([meta_key(store)])
    message = rf"its meta item is lost: restore.*dynastate drop.* table=snapshot store_shard={store}#0 item=meta"
    with pytest.raises(CorruptStateError, match=message):
        write(engines(), store, B, {b"a": b"2"}, base=base, run="run-2")
    assert "meta" not in items_of(tables, store)


def test_a_store_dropped_and_created_again_beside_a_live_executor(engines: Engines, tables: Tables, store: str) -> None:
    """Epochs start again with the meta item, whichever engine makes it: epochs remembered from before refuse no run."""
    for maker in range(2):
        one, other = engines(), engines()
        for number in range(6):
            engine, run = (one, other)[number % 2], f"run-{maker}-{number // 2}"
            write(engine, store, attempt(10 + number), {b"old": b"1"}, run=run)
        drop_stores(tables, [store])
        for number, engine in enumerate((one, other)):
            version = write(engine, store, attempt(20 + number), {b"new": b"%d" % number}, run=f"new-{maker}")
            assert read(engine, store, *version) == {b"new": b"%d" % number}
        drop_stores(tables, [store])


def test_sessions_are_bounded(memory_engine: Engine, memory: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor with more stores than it remembers reads the meta item of a forgotten store again."""
    monkeypatch.setattr(memory_engine.commits.sessions._sessions, "limit_bytes", 2)
    for number in range(3):
        write(memory_engine, f"ns/0/{number}/default", A)
    assert memory_engine.commits.sessions._sessions.bytes == 2
    memory.calls.clear()
    write(memory_engine, "ns/0/2/default", B, base=VersionId(1, A))
    write(memory_engine, "ns/0/0/default", B, base=VersionId(1, A))
    assert [(call.verb, call.keys[0].store_shard) for call in memory.calls if call.verb == "get"] == [
        ("get", "ns/0/0/default#0")
    ]


def test_a_copy_of_a_checkpoint_is_refused(engine: Engine, tables: Tables, store: str) -> None:
    """A run from another location, resumed or of another query, writes nothing; the error names both, and ways out."""
    one = write(engine, store, A, {b"k": b"1"}, run="run-1")
    items_before = items_of(tables, store)
    ways = (
        f"the checkpoint {CHECKPOINT}.*file:/copy/state.*dynastate fork .*dynastate adopt .* --checkpoint file:/copy\\."
    )
    another = f"namespace belongs to the query with the checkpoint {CHECKPOINT}"
    for base, message in ((one, ways), (EMPTY, another)):
        copy = engine.begin(store, query_run("run-2", "file:/copy/state"), *base, B)
        with pytest.raises(ConfigurationError, match=message):
            copy.commit({0: 1}, SCHEMA)
        copy.abort()
    assert items_of(tables, store) == items_before
    two = write(engine, store, C, {b"k": b"2"}, base=one, run="run-1")
    assert read(engine, store, *two) == {b"k": b"2"}
