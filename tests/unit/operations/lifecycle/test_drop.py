"""Drop of a query's stores: fences against a query that runs, stores without a meta item, and the look for writers."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from threading import Barrier
from typing import Any

import pytest

from dynastate.engine import catalog
from dynastate.engine.commit import WriteAttempt
from dynastate.engine.engine import Engine
from dynastate.engine.objects import enter_location
from dynastate.errors import ConfigurationError, CorruptStateError, UnavailableError, VersionMissingError
from dynastate.format.keys import EMPTY, VersionId, meta_key, schema_digest, schema_key, store_shard, version_list_key
from dynastate.format.meta import parse_meta
from dynastate.format.objects import ObjectId, location_of_tables, store_prefix
from dynastate.operations.inspection.inspect import inspect_store, inspect_stores
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle import drop, runs
from dynastate.operations.lifecycle.drop import drop_stores, empty_store, look, refuse_written, seconds_to_look
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.operations.scope import STORES_AT_ONCE
from dynastate.progress import no_progress
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables
from tests.support.contents import everything_of, graph, items_of, parts_of
from tests.support.engine_driver import Engines, begin, read, recover, save_snapshot, write, write_versions
from tests.support.faults import Dying, FailingTables, Recorded
from tests.support.memory_tables import MemoryTables
from tests.support.samples import (
    CHECKPOINT,
    QUERY,
    SCHEMA,
    SHARDS,
    attempt,
    chunk,
    namespace_of,
    numbers,
    query_run,
    singles,
)

pytestmark = pytest.mark.usefixtures("always_worth_it")


@pytest.mark.parametrize("versions", [0, 1, 8, 9, 10, 40])
def test_a_running_query_is_refused_its_commit(engines: Engines, tables: Tables, store: str, versions: int) -> None:
    """With an error that says what was done and what to do; it leaves nothing, and fences are no store to anybody."""
    engine = engines()
    history = write_versions(engine, store, versions)
    if not versions:
        engine.commits.sessions.enter(tables, store, query_run(), 0)
    elif versions == 40:
        save_snapshot(engine, store, history[39], numbers(39))
        engine.maintenance.clean_up(store, "run-1", *history[40], 2, 1, 0)
    under_way = begin(engine, store, attempt(999), {b"k": b"v"}, base=history[versions])
    drop_stores(tables, [store])
    late = [begin(engine, store, attempt(990 + by), base=history[max(0, versions - by)]) for by in (1, 2)]
    for each in (under_way, *late):
        with pytest.raises(ConfigurationError, match=r"may not commit any more.*dynastate drop.*new checkpoint.*run-1"):
            each.commit({0: 1}, SCHEMA)
        each.abort()
    attributes = {
        sort: item.keys() - {"store_shard", "entry", "format"} for sort, item in items_of(tables, store).items()
    }
    attributes.pop(schema_key(store, schema_digest(SCHEMA)).sort, None)  # a first commit writes it before its entry
    assert len(attributes) <= 4
    assert attributes.pop(version_list_key(store, 1).sort) == {"refused", "epoch"}
    assert all(names == {"refused"} for names in attributes.values())
    assert not parts_of(tables, store)
    assert graph(tables, store).is_empty
    for look_at in (lambda: inspect_store(tables, store), lambda: verify(tables, store)):
        with pytest.raises(VersionMissingError, match="the tables hold nothing of this store"):
            look_at()
    with pytest.raises(ConfigurationError, match="no store of this namespace"):
        catalog.every_store(tables, namespace_of(store))
    with pytest.raises(VersionMissingError, match="If the state was dropped, start with a new checkpoint"):
        engines().open(store, versions or 1, attempt(versions or 1))
    if versions:
        with pytest.raises(VersionMissingError, match="If the state was dropped"):
            write(engines(), store, attempt(7), {b"k": b"v"}, base=history[versions], run="run-2")


def test_another_query_at_the_same_namespace(engines: Engines, tables: Tables, store: str) -> None:
    """It begins as if there had been none, through the fences, which still refuse the other one."""
    engine = engines()
    old = write_versions(engine, store, 12)
    drop_stores(tables, [store])
    dropped_epoch = graph(tables, store).dropped_epoch
    fresh, base = engines(), EMPTY
    for number in range(100, 125):
        base = write(fresh, store, attempt(number), {b"k": b"%d" % number}, base=base, run="run-2")
        if number in (114, 118):
            save_snapshot(fresh, store, base, {b"k": b"%d" % number}, run="run-2")
        fresh.maintenance.clean_up(store, "run-2", *base, 3, 1, 0)
        with pytest.raises(ConfigurationError, match="may not commit any more"):
            write(engine, store, attempt(999), {b"k": b"v"}, base=old[12])
    assert read(engines(), store, *base) == {b"k": b"124"}
    assert min(graph(tables, store).versions()) > 10, "the first list has no version left"
    assert graph(tables, store).dropped_epoch == dropped_epoch > 0
    assert verify(tables, store).is_whole
    assert not [each for each in verify(tables, store).findings if each.what != "orphaned"]
    drop_stores(tables, [store])
    assert graph(tables, store).is_empty


def old_query(engines: Engines, store: str, *versions: int) -> list[WriteAttempt]:
    """Commit 60 versions, begin some of them in suspended tasks, and delete their lists by clean-up."""
    engine, base, late = engines(), EMPTY, []
    for run in range(1, 5):
        base = write(engine, store, attempt(run), {b"k": b"%d" % run}, base=base, run=f"run-{run}")
    for number in range(5, 61):
        if number in versions:
            late.append(begin(engines(), store, attempt(999 + number), {b"late": b"1"}, base=base, run="run-4"))
        base = write(engine, store, attempt(number), {b"k": b"%d" % number}, base=base, run="run-4")
        if number == 56:
            save_snapshot(engine, store, base, {b"k": b"56"}, lambda _: {b"k"}, run="run-4")
    engine.maintenance.clean_up(store, "run-4", *base, 2, 1, 0)
    return late


def after_fences(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Do something in a drop, when all lists refuse the runs."""

    def refuse(*arguments: Any) -> None:
        runs.refuse_runs(*arguments)
        do()

    monkeypatch.setattr(drop, "refuse_runs", refuse)


@pytest.mark.parametrize("when", ["before", "while", "after"])
def test_a_commit_to_a_list_that_clean_up_has_deleted(
    engines: Engines, tables: Tables, store: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The list is not made again, so a drop leaves nothing that is not fenced."""
    (late,) = old_query(engines, store, 26)

    def commit_late() -> None:
        with pytest.raises(ConfigurationError, match="the version that this commit follows is not listed any more"):
            late.commit({0: 1}, SCHEMA)

    if when == "before":
        commit_late()
    elif when == "while":
        after_fences(monkeypatch, commit_late)
    drop_stores(tables, [store])
    if when == "after":
        commit_late()
    assert graph(tables, store).is_empty


@pytest.mark.parametrize("when", ["while", "before the next query", "after"])
def test_a_commit_that_begins_a_list_after_clean_up(
    engines: Engines, tables: Tables, store: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The first version of a list is accepted. The next query reads its own versions all the same."""
    (late,) = old_query(engines, store, 30)
    if when == "while":
        after_fences(monkeypatch, lambda: late.commit({0: 1}, SCHEMA))
    drop_stores(tables, [store])
    if when == "before the next query":
        late.commit({0: 1}, SCHEMA)
        with pytest.raises(CorruptStateError, match="dynastate drop"):
            write(engines(), store, attempt(5001), {b"new": b"1"}, run="new-1")
        drop_stores(tables, [store])
    fresh = engines()
    base = write_versions(fresh, store, 25, run="new-1")[-1]
    assert {each.epoch for each in graph(tables, store).entries()} == {5}, "above the last epoch of the dropped store"
    if when == "after":
        late.commit({0: 1}, SCHEMA)
        assert verify(tables, store).is_whole
        assert not [each for each in verify(tables, store).findings if each.what != "orphaned"]
    for number in range(26, 36):
        base = write(fresh, store, attempt(number), {b"new": b"%d" % number}, base=base, run="new-1")
        assert read(engines(), store, number)[b"new"] == b"%d" % number
    state = read(fresh, store, *base)
    save_snapshot(fresh, store, base, state, lambda _: set(state), run="new-1")
    last = write_versions(fresh, store, 8, base=base, run="new-1")[-1]
    fresh.maintenance.clean_up(store, "new-1", *last, 2, 1, 0)
    assert {each.epoch for each in graph(tables, store).entries()} == {5}
    assert verify(tables, store).is_whole


def test_a_run_of_the_dropped_query_enters_the_next_one(engines: Engines, tables: Tables, store: str) -> None:
    """On an executor where it had not written yet. It commits nothing; the next query has to be started again."""
    old = write_versions(engines(), store, 12)
    drop_stores(tables, [store])
    fresh = engines()
    mine = write_versions(fresh, store, 2, run="run-2")
    with pytest.raises(ConfigurationError, match="may not commit any more"):
        write(engines(), store, attempt(999), {b"k": b"v"}, base=old[12])
    assert graph(tables, store).versions() == [1, 2]
    fresh.lineage(store)
    with pytest.raises(ConfigurationError, match="this one is over"):
        write(fresh, store, attempt(3), {b"3": b"3"}, base=mine[2], run="run-2")
    newest = write(engines(), store, attempt(3), {b"3": b"3"}, base=mine[2], run="run-3")
    assert read(engines(), store, *newest) == read(engines(), store, 3) == {b"1": b"1", b"2": b"2", b"3": b"3"}


def test_a_store_that_a_late_request_makes_again(engines: Engines, tables: Tables, store: str) -> None:
    """A query at another location is refused until the namespace is dropped again; one at the same takes it over."""
    write(engines(), store, attempt(1), {b"old": b"1"}, run="old run")
    late = tables.get([meta_key(store)])[meta_key(store)]

    def drop_all() -> None:
        drop_stores(tables, catalog.every_store(tables, namespace_of(store)))

    def begin_at(location: str) -> VersionId:
        run = query_run(location, location, f"query at {location}")
        under_way = engines().begin(store, run, *EMPTY, attempt(9))
        under_way.append(chunk({b"new": b"1"}))
        under_way.commit({0: 1}, SCHEMA)
        return VersionId(1, attempt(9))

    drop_all()
    assert tables.put_new(meta_key(store), late)
    with pytest.raises(ConfigurationError, match="this namespace belongs to the query with the checkpoint"):
        begin_at("file:/elsewhere/state")
    drop_all()
    assert read(engines(), store, *begin_at("file:/elsewhere/state")) == {b"new": b"1"}
    drop_all()
    assert tables.put_new(meta_key(store), late)
    assert read(engines(), store, *begin_at(CHECKPOINT)) == {b"new": b"1"}


def test_a_fork_at_a_namespace_that_was_dropped(engines: Engines, tables: Tables, store: str) -> None:
    """It is made through the fences, and resumed where it was cut off."""
    engine = engines()
    versions = write_versions(engine, store, 12)
    new = store.replace(namespace_of(store), f"{namespace_of(store)}-new")
    for run in ("run-2", "run-3"):
        fork_namespace(tables, namespace_of(store), namespace_of(new), None)
        mine = write(engines(), new, attempt(50), {b"own": run.encode()}, base=versions[12], run=run)
        assert read(engines(), new, *mine)[b"own"] == run.encode()
        assert verify(tables, new).is_whole
        drop_stores(tables, [new])
    assert read(engines(), store, *versions[12])[b"12"] == b"12"


def test_a_drop_that_was_cut_off_is_completed(memory_engine: Engine, memory: MemoryTables) -> None:
    died = 0
    for number in range(100):
        each = f"cut/0/{number}/default"
        base = write_versions(memory_engine, each, 12)[12]
        try:
            drop_stores(Dying(memory, number), [each])
        except UnavailableError:
            died += 1
            drop_stores(memory, [each])
        with pytest.raises(ConfigurationError, match="may not commit any more"):
            write(memory_engine, each, attempt(99), {b"k": b"v"}, base=base)
        assert graph(memory, each).is_empty
        assert len(everything_of(memory, each)) <= 4
        if died <= number:
            break
    assert 10 < died < 99


class Committing:
    """A query that commits versions of a store, and three more just before a request and after it."""

    def __init__(self, engine: Engine, store: str, versions: int, request: int) -> None:
        self._engine, self._store = engine, store
        self._made = write_versions(engine, store, versions)
        self.left = request
        if not versions:
            engine.commits.sessions.enter(engine.commits.tables, store, query_run(), 0)

    def commit(self) -> None:
        under_way = begin(self._engine, self._store, attempt(1000 + len(self._made)), {b"k": b"v"}, base=self._made[-1])
        try:
            under_way.commit({0: 1}, SCHEMA)
        except ConfigurationError:
            under_way.abort()
            raise
        self._made.append(VersionId(under_way.version, under_way.attempt))

    def __call__(self, _: str) -> None:
        self.left -= 1
        if -3 <= self.left < 0:
            with suppress(ConfigurationError):
                self.commit()


@pytest.mark.parametrize("versions", [0, 8, 9])
def test_a_query_commits_at_any_request_of_a_drop(memory_engine: Engine, memory: MemoryTables, versions: int) -> None:
    """Whatever it commits before it is refused is deleted too, and nothing of a refused commit is left."""
    for request in range(100):
        store = f"racing/0/{request}/default"
        query = Committing(memory_engine, store, versions, request)
        drop_stores(FailingTables(memory, query), [store])
        with pytest.raises(ConfigurationError, match="may not commit any more"):
            query.commit()
        assert graph(memory, store).is_empty
        assert not parts_of(memory, store)
        if query.left >= 0:
            break
    assert 10 < request < 99


@pytest.mark.parametrize("update", [1, 2])
def test_a_location_that_a_run_enters_meanwhile_is_kept(
    memory: MemoryTables, engines: Engines, store: str, update: int
) -> None:
    """Its objects are deleted with the store, whichever mark of the drop it comes before."""
    write_versions(engines(memory), store, 1)
    location = location_of_tables("s3://bucket", memory.names["snapshot"])
    updates = []

    def enter(verb: str) -> None:
        updates.extend([verb] * (verb == "update"))
        if len(updates) == update:
            enter_location(memory, store, parse_meta(store, memory.items[meta_key(store)]), location)
            memory.objects.put(ObjectId(location, f"{store_prefix(store)}late"), b"object")
            updates.append("entered")

    drop_stores(FailingTables(memory, enter), [store])
    assert updates.count("entered") == 1
    assert not list(memory.objects.names(location, store_prefix(store)))


def test_a_meta_item_that_is_there_again_is_not_deleted(memory: MemoryTables, engines: Engines, store: str) -> None:
    """A drop that is suspended before its last step leaves the query that has begun meanwhile alone."""
    engine = engines(memory)
    write_versions(engine, store, 3)
    drop_stores(memory, [store])
    write(engine, store, attempt(50), {b"k": b"v"}, run="run-2")
    items_before = dict(memory.items)
    with pytest.raises(ConfigurationError, match="another command has dropped this store"):
        drop.delete_meta(memory, store)
    assert memory.items == items_before


def test_meta_items_go_last_and_backwards(memory: MemoryTables, engines: Engines, store: str) -> None:
    """Stores are emptied in any order, and those that remain after a cut are still found."""
    stores = [f"{namespace_of(store)}/0/{partition}/default" for partition in range(30)]
    for each in stores:
        write_versions(engines(memory), each, 1)
    memory.calls.clear()
    assert drop_stores(memory, stores) == 30 * 3 + 1  # the record of the namespace
    deleted = [key for call in memory.calls if call.verb.startswith("delete") for key in call.keys]
    assert deleted[-31:-1] == [meta_key(each) for each in reversed(stores)]


def test_stores_are_marked_several_at_once_and_before_any_is_emptied(
    memory: MemoryTables, engines: Engines, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each store waits for the others under way; one that fails keeps every store from being emptied."""
    stores = [f"{namespace_of(store)}/0/{partition}/default" for partition in range(STORES_AT_ONCE)]
    for each in stores:
        write_versions(engines(memory), each, 1)
    count, everyone, mark = len(memory.items), Barrier(STORES_AT_ONCE), drop._mark_dropped

    def mark_together(tables: Tables, store: str, *rest: Any) -> bool:
        everyone.wait(10)
        if store == stores[3] and is_failing:
            raise UnavailableError("not now")
        return mark(tables, store, *rest)

    monkeypatch.setattr(drop, "_mark_dropped", mark_together)
    is_failing = True
    with pytest.raises(UnavailableError, match="not now"):
        drop_stores(memory, stores)
    assert len(memory.items) == count
    is_failing = False
    meter = Meter()
    assert drop_stores(memory.metered(meter), stores) == STORES_AT_ONCE * 3 + 1
    assert not list(catalog.find_stores(memory, namespace_of(store)))
    assert meter.requests > 2 * STORES_AT_ONCE


def test_parts_that_come_after_a_drop_are_no_lost_list(memory: MemoryTables, engines: Engines, store: str) -> None:
    """Those of an attempt that was under way, at a version above all that the next query has."""
    engine = engines(memory)
    versions = write_versions(engine, store, 12)
    drop_stores(memory, [store])
    begin(engine, store, attempt(99), *singles(26), base=versions[12])._pending.wait(5)  # a whole request
    write(engines(memory), store, attempt(100), {b"k": b"v"}, run="run-2")
    report = verify(memory, store)
    assert [each.what for each in report.findings] == ["orphaned"]


@pytest.mark.parametrize("partitions", [(0, 1), (1,), (0, 5)])
def test_without_a_meta_item(engines: Engines, memory: MemoryTables, store: str, partitions: tuple[int, ...]) -> None:
    """As a drop beside a running query once left them: `stores` marks them, `drop` repairs the namespace."""
    engine, namespace = engines(memory), namespace_of(store)
    stores = [f"{namespace}/{operator}/{number}/default" for operator in (0, 1) for number in range(6)]
    newest = {each: write_versions(engine, each, 3)[3] for each in stores}
    for each in newest:
        if int(each.split("/")[2]) in partitions:
            memory.delete([meta_key(each)])
    lost = [each for each in stores if meta_key(each) not in memory.get([meta_key(each) for each in stores])]
    store_names = catalog.every_store(memory, namespace)
    assert sorted(store_names) == stores
    listed = {each.store: each for each in inspect_stores(memory, namespace, no_progress)}  # type: ignore[arg-type]
    assert [each for each in stores if listed[each].problem] == lost
    assert all(re.search("meta item is lost.*dynastate drop", listed[each].problem) for each in lost)
    assert all(each.version == 3 for each in listed.values() if not each.problem)
    with pytest.raises(CorruptStateError, match=f"meta item is lost.*dynastate drop {namespace}"):
        write(engines(memory), lost[0], attempt(9), {b"k": b"v"}, run="run-2")
    drop_stores(memory, store_names)
    assert all(graph(memory, each).is_empty for each in stores)
    assert not any(parts_of(memory, each) for each in stores)
    assert write(engines(memory), lost[0], attempt(9), {b"k": b"v"}, run="run-2").version == 1


def at_times(engine: Engine, store: str, *seconds: float) -> None:
    base = EMPTY
    for number, second in enumerate(seconds, 1):
        engine.commits.now_ms = lambda second=second: int(second * 1000)  # type: ignore[method-assign, misc]
        base = write(engine, store, attempt(number), {b"k": b"v"}, base=base)


def test_the_look_for_a_query_that_writes(memory: MemoryTables, engines: Engines, store: str) -> None:
    """It lasts by how often the query commits, within bounds; a commit or a new run in between refuses the drop."""
    engine, namespace = engines(memory), namespace_of(store)
    for operator, seconds, expected in (
        (0, (0, 1, 2), drop.LOOK_MIN_S),
        (1, (0, 1, 11, 12), 15),
        (2, (0, 600), drop.LOOK_MAX_S),
    ):
        stores = [f"{namespace}/{operator}/{number}/default" for number in range(2)]
        at_times(engine, stores[0], 0)
        at_times(engine, stores[1], *seconds)
        assert seconds_to_look(look(memory, stores)) == expected
    stores = [f"{namespace}/5/{number}/default" for number in range(2)]
    newest = [write_versions(engine, each, 3)[3] for each in stores]
    first = look(memory, stores)
    slept: list[float] = []
    refuse_written(memory, first, 7, sleep=slept.append)
    assert slept == [7]
    beside: list[Callable[[float], object]] = [
        lambda _: write(engine, stores[1], attempt(50), {b"k": b"v"}, base=newest[1]),
        lambda _: engine.commits.sessions.enter(memory, stores[0], query_run("run-2"), 3),
    ]
    for happens in beside:
        first = look(memory, stores)
        with pytest.raises(ConfigurationError, match=r"a query writes to this namespace: stop it.*--force.*restarted"):
            refuse_written(memory, first, 7, sleep=happens)  # type: ignore[arg-type]


def test_a_store_that_is_made_again_is_left_alone(memory: MemoryTables, engines: Engines, store: str) -> None:
    """This clean-up had read its meta item; a query writes its first version there when nothing is left."""
    write_versions(engines(memory), store, 3)
    drop_stores(memory, [store])
    to_come = [lambda: write_versions(engines(memory), store, 1, run="next")]
    overtaken = FailingTables(memory, lambda verb: to_come.pop()() if verb == "list_keys" and to_come else None)
    assert empty_store(overtaken, store, QUERY) == 0
    if to_come:
        to_come.pop()()
    assert recover(engines(memory), store, *graph(memory, store).newest().id) == numbers(1)


def test_a_drop_that_another_overtakes_at_any_request(engines: Engines) -> None:
    """The other one completes it, and the next query commits: the first deletes nothing of this query, and says so."""
    errors: list[str] = []
    for request in range(100):
        memory = MemoryTables()
        newest = overtaken_at(engines, memory, request, lambda tables, store: empty_store(tables, store, QUERY), errors)
        if newest is None:
            break
        assert recover(engines(memory), STORE, *newest) == numbers(3)
        assert verify(memory, STORE).is_whole
    assert 25 < request < 99
    assert len(errors) > 10


def test_a_drop_without_a_meta_item_that_another_overtakes(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds all that has the store's name, so it stops once the store has a meta item."""
    monkeypatch.setattr(drop, "SHARDS_MAX", SHARDS)
    errors: list[str] = []
    for request in range(100):
        memory = MemoryTables()

        def drop_lost(tables: Tables, store: str) -> None:
            tables.delete([meta_key(store)])
            drop_stores(tables, [store])

        newest = overtaken_at(engines, memory, request, drop_lost, errors)
        if newest is None:
            break
        if request > 4:  # else it finds the next query's meta item
            assert recover(engines(memory), STORE, *newest) == numbers(3)
    assert 20 < request < 99
    assert len(errors) > 8


STORE = "overtaken/0/0/default"


def overtaken_at(
    engines: Engines, memory: MemoryTables, request: int, do: Callable[[Tables, str], object], errors: list[str]
) -> VersionId | None:
    """Delete a store; before one request another drop does so, and a query commits. None: there are fewer requests."""
    engine = engines(memory, objects="s3://bucket")
    versions = write_versions(engine, STORE, 10)
    save_snapshot(engine, STORE, versions[10], numbers(10))
    newest: list[VersionId] = []
    left = [request]

    def happens(_: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            drop_stores(memory, catalog.every_store(memory, "overtaken", may_be_empty=True))
            fresh, base = engines(memory, objects="s3://bucket"), EMPTY
            for number in range(1, 4):
                row = {b"%d" % number: b"%d" % number}
                base = write(fresh, STORE, attempt(100 + number), row, base=base, run=query_run("next", query="next"))
            save_snapshot(fresh, STORE, base, numbers(3), run="next")
            newest.append(base)

    try:
        do(FailingTables(memory, happens), STORE)
    except ConfigurationError as error:
        errors.append(str(error))
    return newest[0] if newest else None


def test_a_late_request_of_a_drop_deletes_no_schema(memory: MemoryTables, engines: Engines, store: str) -> None:
    """The next query has written the same schema item meanwhile."""
    write_versions(engines(memory), store, 3)
    recorded = Recorded(memory)
    drop_stores(recorded, [store])
    assert not list(memory.query("snapshot", store_shard(store, 0), "schema/", "schema/~"))
    newest = write(engines(memory), store, attempt(90), {b"k": b"v"}, run="next")
    recorded.repeat("delete", "delete_over")
    assert read(engines(memory), store, *newest) == {b"k": b"v"}
