"""State that follows its query: which batch it shows while the query commits or is taken back, and its cost."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from itertools import count, islice
from typing import Any
from uuid import UUID

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.checkpoint import CheckpointFiles, first_writers
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, DynastateError, UnavailableError, VersionMissingError
from dynastate.format.checkpoint import Checkpoint
from dynastate.format.keys import Key
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.lifecycle.clean import clean_store
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.operations.lifecycle.drop import drop_checkpoints, drop_stores
from dynastate.reader.follow import StateFollower
from dynastate.reader.partition import Partition
from dynastate.reader.state import open_state
from dynastate.settings import Settings
from dynastate.storage.tables import Tables
from dynastate.unsaferow.key_encoders import make_encoder
from dynastate.unsaferow.schema import parse_schema
from tests.support.engine_driver import Engines
from tests.support.memory_tables import MemoryTables
from tests.support.processes import wait_until
from tests.support.samples import attempt, noise
from tests.support.store_builder import RAW, USER, Row, StoreBuilder, counted, struct, user

pytestmark = pytest.mark.usefixtures("always_worth_it")
#: Only `refresh` looks.
ON_DEMAND = timedelta()
Follow = Callable[..., StateFollower]


def user_of(partition: int, partitions: int, number: int = 0) -> Row:
    """The key of a user whom Spark places in a partition."""
    encoder = make_encoder(parse_schema(struct(USER)), RAW, "default")
    keys = (user(f"user-{each}") for each in count())
    return next(islice((key for key in keys if encoder.partition(key, partitions) == partition), number, None))


class Query:
    """A query with one operator of some partitions, and in each partition one user, whom each batch counts."""

    def __init__(self, tables: Tables, engine: Engine, store: str, partitions: int = 2, location: str = "") -> None:
        self.namespace = store.partition("/")[0]
        self.checkpoint = Checkpoint(self.namespace, "query")
        location = location or f"dynastate://{self.checkpoint}/state"
        self.stores = [
            StoreBuilder(engine, f"{self.namespace}/0/{number}/default", location=location)
            for number in range(partitions)
        ]
        self.files = CheckpointFiles(tables, set())

    @property
    def operator(self) -> str:
        return f"{self.namespace}/0"

    def batch(self, *numbers: int) -> None:
        """Commit batches, each by attempts and with counts of a number, in all partitions and in the log."""
        for number in numbers:
            self.commit_state(number)
            self.commit_log(number)

    def commit_state(self, number: int, partitions: Sequence[int] | None = None) -> None:
        for place, store in enumerate(self.stores):
            if partitions is None or place in partitions:
                store.commit((user_of(place, len(self.stores)), counted(number)), by=attempt(number))

    def commit_log(self, number: int) -> None:
        """Write the commit of the stores' last batch, by the attempts of a number, as Spark does."""
        batch = self.stores[0].version.version - 1
        ids = {"0": [[str(UUID(bytes=bytes(attempt(number))))] for _ in self.stores]}
        self.put(batch, f"v2\n{json.dumps({'nextBatchWatermarkMs': 0, 'stateUniqueIds': ids})}")

    def put(self, batch: int, text: str) -> None:
        assert self.files.put(self.checkpoint, f"commits/{batch}", text.encode(), overwrites=False)

    def take_back(self, version: int, run: str = "run-2") -> None:
        """Roll the query back to a version whose attempt has its number."""
        newest = self.stores[0].version.version
        self.files.delete(self.checkpoint, [f"commits/{batch}" for batch in range(version, newest)])
        for store in self.stores:
            store.take_back(version, run)


def counts(state: StateFollower, partitions: int = 2) -> list[int]:
    """The counts of the users of all partitions."""
    return [(state.get(user_of(place, partitions)) or {})["count"] for place in range(partitions)]


@pytest.fixture
def tables(memory: MemoryTables) -> MemoryTables:
    return memory


@pytest.fixture
def followed(memory: MemoryTables) -> Iterator[Follow]:
    """Follow stores, and close them all at the end."""
    with ExitStack() as states:

        def follow_one(store: str, tables: Tables = memory, **options: Any) -> StateFollower:
            options = {"interval": ON_DEMAND} | options
            return states.enter_context(StateFollower(tables, Settings(), store, **options))

        yield follow_one


@pytest.fixture(params=["log", "lists"])
def query(request: pytest.FixtureRequest, tables: MemoryTables, engine: Engine, store: str) -> Query:
    """A query with its checkpoint in DynamoDB, or elsewhere."""
    query = Query(tables, engine, store, location="s3://bucket/query/state" if request.param == "lists" else "")
    query.batch(1, 2, 3)
    return query


def is_by_log(query: Query) -> bool:
    return query.stores[0].location.startswith("dynastate:")


def test_it_shows_whole_batches(query: Query, followed: Follow) -> None:
    """A batch is shown once all partitions have committed it: with a log, once the driver has."""
    state = followed(query.operator)
    assert (state.version, counts(state)) == (3, [3, 3])
    assert not state.refresh()
    query.commit_state(4, [0])
    assert not state.refresh()
    assert (state.version, counts(state)) == (3, [3, 3])
    query.commit_state(4, [1])
    if is_by_log(query):
        assert not state.refresh()
    query.commit_log(4)
    assert state.refresh()
    assert (state.version, counts(state)) == (4, [4, 4])
    query.batch(5, 6, 7)
    assert state.refresh()
    assert (state.version, counts(state)) == (7, [7, 7])
    assert sorted(each["count"] for each in state.view) == [7, 7]


def test_a_view_stays(query: Query, followed: Follow) -> None:
    """What is read from one view is of one batch, whatever the query does meanwhile."""
    state = followed(query.operator)
    view = state.view
    query.batch(4)
    assert state.refresh()
    assert [(view.get(user_of(place, 2)) or {})["count"] for place in range(2)] == [3, 3]
    assert (len(view), view.version, len(state.view)) == (2, 3, 2)


def test_it_never_goes_back(query: Query, followed: Follow) -> None:
    """While a query that was taken back makes versions again, the last batch of the earlier run is shown."""
    query.batch(4, 5, 6, 7)
    state = followed(query.operator)
    query.take_back(4)
    for _ in range(2):
        assert not state.refresh()
    assert (state.version, counts(state)) == (7, [7, 7])
    query.commit_state(105, [0])
    for _ in range(2):
        assert not state.refresh()
    assert (state.version, counts(state)) == (7, [7, 7])
    query.commit_state(105, [1])
    query.commit_log(105)
    assert state.refresh()
    assert (state.version, counts(state)) == (5, [105, 105])
    query.batch(106)
    assert state.refresh()
    assert (state.version, counts(state)) == (6, [106, 106])


def test_a_batch_that_is_made_again(query: Query, followed: Follow) -> None:
    """A driver that died before the commit makes the batch again: nothing is shown of two runs."""
    state = followed(query.operator)
    query.commit_state(4)
    state.refresh()
    shown = state.version
    assert shown == (3 if is_by_log(query) else 4)
    for each in query.stores:
        each.take_back(3)
    query.commit_state(204, [0])
    state.refresh()
    assert (state.version, counts(state)) == (shown, [shown, shown])
    query.commit_state(204, [1])
    query.commit_log(204)
    assert state.refresh()
    assert (state.version, counts(state)) == (4, [204, 204])


@pytest.mark.parametrize("location", ["", "s3://bucket/query/state"], ids=["log", "lists"])
def test_a_query_that_begins_again(
    tables: MemoryTables, engine: Engine, store: str, followed: Follow, location: str
) -> None:
    """With a new checkpoint at the same path, and fewer partitions: the first batch is not shown before it is whole."""
    old = Query(tables, engine, store, 3, location=location)
    old.batch(1, 2, 3)
    state = followed(old.operator)
    old.files.delete(old.checkpoint, [""])
    new = Query(tables, engine, store, location=location)
    for each in new.stores:
        each.query, each.run = "another", "run-9"
    new.commit_state(11, [0])
    for _ in range(2):
        if is_by_log(new):
            with pytest.raises(VersionMissingError, match="the query has committed no batch"):
                state.refresh()
        else:
            assert not state.refresh()
        assert (state.version, counts(state, 3)) == (3, [3, 3, 3])
    new.commit_state(11, [1])
    new.commit_log(11)
    new.batch(12, 13)
    assert state.refresh()
    assert (state.version, state.view.stores, counts(state)) == (3, tuple(each.store for each in new.stores), [13, 13])


def test_a_dropped_query_is_an_error(query: Query, tables: MemoryTables, followed: Follow) -> None:
    state = followed(query.operator)
    drop_checkpoints(tables, first_writers(tables, query.namespace))
    drop_stores(tables, [each.store for each in query.stores])
    with pytest.raises(DynastateError, match=r"no state of this store|the query has committed no batch"):
        state.refresh()


def test_a_checkpoint_that_is_moved_is_followed(
    tables: MemoryTables, engine: Engine, store: str, followed: Follow
) -> None:
    """The old one stays as it is: ten looks without a new commit find the other one."""
    query = Query(tables, engine, store)
    query.batch(1, 2)
    state = followed(query.operator)
    query.checkpoint = Checkpoint(query.namespace, "other")
    location = f"dynastate://{query.checkpoint}/state"
    adopt_stores(tables, [each.store for each in query.stores], location)
    for each in query.stores:
        each.location, each.run = location, "run-2"
    query.batch(3)
    assert sum(state.refresh() for _ in range(20)) == 1
    assert (state.version, counts(state)) == (3, [3, 3])


def test_a_checkpoint_without_ids(tables: MemoryTables, engine: Engine, store: str, followed: Follow) -> None:
    """With format v1 the version lists say which batch is whole."""
    query = Query(tables, engine, store)
    query.commit_state(1)
    query.put(0, 'v1\n{"nextBatchWatermarkMs":0}')
    state = followed(query.operator)
    query.commit_state(2)
    assert state.refresh()
    assert (state.version, counts(state)) == (2, [2, 2])


def test_a_corrupt_commit_is_named(tables: MemoryTables, engine: Engine, store: str, followed: Follow) -> None:
    query = Query(tables, engine, store)
    query.batch(1)
    state = followed(query.operator)
    query.commit_state(2)
    query.put(1, "v2\n{")
    with pytest.raises(DynastateError, match=r"not as Spark writes it.*commits/1"):
        state.refresh()
    assert counts(state) == [1, 1]


def spent(state: StateFollower, action: Callable[[], object]) -> tuple[int, int]:
    """Requests and read units of an action."""
    before = replace(state.meter)
    action()
    return state.meter.requests - before.requests, state.meter.read_units - before.read_units


def test_a_look_is_one_request(query: Query, followed: Follow) -> None:
    """Of one unit, while there is nothing new; a new batch takes one more for each partition that is read."""
    state = followed(query.operator)
    query.batch(4)
    assert state.refresh()
    counts(state)
    assert spent(state, state.refresh) == (1, 1)
    query.batch(5)
    assert spent(state, state.refresh) == (1 + 2 if is_by_log(query) else 2, 3 if is_by_log(query) else 2)
    assert spent(state, state.refresh) == (1, 1)


def test_partitions_are_read_when_they_are_used(
    tables: MemoryTables, engine: Engine, store: str, followed: Follow
) -> None:
    """With a log, opening reads one partition of many, and a new batch only those that were used."""
    query = Query(tables, engine, store, 20)
    query.batch(1, 2)
    state = followed(query.operator)
    opened = state.meter.requests
    assert opened <= 6
    query.batch(3)
    assert spent(state, state.refresh)[0] == 2
    assert len(state.view.stores) == 20
    assert counts(state, 20) == [3] * 20


def test_a_look_up_after_a_look_is_one_wait(
    query: Query, tables: MemoryTables, engine: Engine, followed: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a partition that was used before, the bucket and the changes since are read at the same time."""
    large = noise(40_000).hex()  # no version entry has room for it

    def batch(number: int) -> None:
        query.stores[0].commit((user_of(0, 2), counted(number, large)), by=attempt(number))
        query.stores[1].commit(by=attempt(number))
        query.commit_log(number)

    batch(4)
    compact_store(engine, tables, query.stores[0].store)
    state = followed(query.operator)
    state.get(user_of(0, 2, number=1))
    batch(5)
    assert state.refresh()
    state._source.engine.known_stores.parts.limit_bytes = 0
    state._source.engine.known_stores.parts.put(Key("delta", "", ""), None, 0)  # type: ignore[arg-type]  # it evicts all
    both, get = threading.Barrier(2, timeout=5), MemoryTables.get

    def wait(tables: MemoryTables, keys: Sequence[Key]) -> Any:
        both.wait()
        return get(tables, keys)

    monkeypatch.setattr(MemoryTables, "get", wait)
    requests = state.meter.requests
    assert (state.get(user_of(0, 2)) or {})["count"] == 5
    assert state.meter.requests - requests == 2


def test_a_cached_row_takes_the_changes_since(query: Query, followed: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither it nor an absent key is read again; a batch that changes nothing in a partition takes no request."""
    state = followed(query.operator)
    absent = user_of(0, 2, number=2)
    assert (counts(state), state.get(absent)) == ([3, 3], None)
    query.stores[0].commit((user_of(0, 2, number=1), counted(4)), by=attempt(4))
    query.stores[1].commit(by=attempt(4))
    query.commit_log(4)
    assert state.refresh()
    monkeypatch.setattr(Partition, "_value", None)
    assert spent(state, lambda: counts(state))[0] == 1
    assert spent(state, lambda: [*counts(state), state.get(absent)])[0] == 0


def test_cached_rows_are_those_of_the_version(
    tables: MemoryTables, engine: Engine, store: str, followed: Follow
) -> None:
    """Rows that are put, changed and removed at random, in batches that are taken back, too: never a row of another."""
    query = Query(tables, engine, store, 1)
    (builder,) = query.stores
    dice, names = random.Random(5), [f"user-{number}" for number in range(30)]  # noqa: S311  # the same at every run
    expected: dict[int, dict[str, int]] = {0: {}}
    query.commit_state(1000)
    query.commit_log(1000)
    expected[1] = {user_of(0, 1)["user"]: 1000}
    state = followed(query.operator)
    for number in range(1001, 1060):
        if dice.random() < 0.1 and builder.version.version > 4:
            version = builder.version.version - 2
            parent = next(each for each in state.view._partitions[0].lineage.entries if each.version == version)
            query.take_back(version, f"run-{number}")
            builder.version = parent.id
        rows = dict(expected[builder.version.version])
        changes = []
        for name in dice.sample(names, dice.randrange(6)):
            rows[name] = number
            is_removed = dice.random() < 0.3
            changes.append((user(name), None if is_removed else counted(number)))
            if is_removed:
                del rows[name]
        builder.commit(*changes, by=attempt(number))
        query.commit_log(number)
        expected[builder.version.version] = rows
        assert state.refresh()
        for name in dice.sample(names, 15):
            row = state.get(user(name))
            assert (row and row["count"]) == rows.get(name)


def test_clean_up_under_its_feet(query: Query, tables: MemoryTables, engine: Engine, followed: Follow) -> None:
    """A look-up of a version that clean-up has deleted moves to the newest batch."""
    state = followed(query.operator)
    query.batch(*range(4, 30))
    for each in query.stores:
        compact_store(engine, tables, each.store)
    query.batch(*range(30, 40))
    for each in query.stores:
        clean_store(engine, tables, each.store, 2)
    assert state.version == 3
    assert counts(state) == [39, 39]
    assert state.version == 39


def test_the_way_to_a_partition_begins_with_its_newest_snapshot(
    query: Query, tables: MemoryTables, engine: Engine, followed: Follow
) -> None:
    """So a look-up reads few versions after it, however long the state is followed."""
    state = followed(query.operator)
    counts(state)
    for number in range(4, 64):
        query.batch(number)
        if number % 20 == 0:
            for each in query.stores:
                compact_store(engine, tables, each.store)
        assert state.refresh()
    routes = [state._source.engine.known_stores.routes.get(each.store) for each in query.stores]
    assert [len(route.entries) <= 20 for route in routes if route is not None] == [True, True]
    assert counts(state) == [63, 63]


def test_it_looks_by_itself(query: Query, followed: Follow) -> None:
    """At each interval, in a thread, which ends when it is closed."""
    state = followed(query.operator, interval=timedelta(milliseconds=10))
    query.batch(4)
    wait_until(lambda: state.version == 4, "no look", 5)
    assert counts(state) == [4, 4]
    assert state.age < timedelta(seconds=5)
    state.close()
    wait_until(lambda: not any(each.name == "dynastate-follow" for each in threading.enumerate()), "a thread", 5)
    with pytest.raises(ConfigurationError, match="the state is closed"):
        state.get(user_of(0, 2))


def test_reads_fail_once_no_look_succeeds(
    query: Query, tables: MemoryTables, followed: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They answer for a minute of failed looks, and then have their error; a look that succeeds ends it."""
    state = followed(query.operator, interval=timedelta(hours=1))
    assert counts(state) == [3, 3]

    def fail(*_: object) -> None:
        raise UnavailableError("throttled")

    with monkeypatch.context() as away:
        away.setattr(MemoryTables, "query", fail)
        with pytest.raises(UnavailableError):
            state.refresh()
        assert counts(state) == [3, 3]
        away.setattr(StateFollower, "age", timedelta(hours=3))
        with pytest.raises(UnavailableError, match="throttled"):
            state.get(user_of(0, 2))
    assert not state.refresh()
    assert counts(state) == [3, 3]


@pytest.mark.parametrize("interval", [timedelta(seconds=-1), timedelta(days=2)])
def test_an_interval_that_is_none_is_refused(query: Query, followed: Follow, interval: timedelta) -> None:
    with pytest.raises(ConfigurationError, match="followed at intervals from zero to a day"):
        followed(query.operator, interval=interval)


def test_many_threads(query: Query, followed: Follow) -> None:
    """Each look-up is of one batch, and none is of an earlier batch than the look-up before it."""
    state = followed(query.operator)
    failures: list[object] = []
    keys = [user_of(place, 2) for place in range(2)]
    is_over = threading.Event()

    def look_up() -> None:
        last = 0
        while not is_over.is_set():
            view = state.view
            both = {(view.get(key) or {})["count"] for key in keys}
            if both != {view.version} or view.version < last:
                failures.append((both, view.version, last))
            last = view.version

    threads = [threading.Thread(target=look_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(4, 40):
        query.batch(number)
        state.refresh()
    is_over.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert state.version == 39


def test_from_an_event_loop(query: Query, followed: Follow) -> None:
    state = followed(query.operator)

    keys = [user_of(place, 2) for place in range(2)]

    async def look_up() -> list[Any]:
        return await asyncio.gather(*[state.aget([*keys, user("unknown")][number % 3]) for number in range(60)])

    rows = asyncio.run(look_up())
    assert [row and row["count"] for row in rows] == [3, 3, None] * 20


def test_open_state(http: BotoTables, engines: Engines, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a DynamoDB over HTTP; `follow` takes a time, or True."""
    for name, value in {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}.items():
        monkeypatch.setenv(name, value)
    query = Query(http, engines(http), store)
    query.batch(1)
    options: dict[str, Any] = {"endpoint": http.settings.endpoint, "region": http.settings.region}
    with open_state(query.operator, follow=ON_DEMAND, **options) as state:
        query.batch(2)
        assert state.refresh()
        assert counts(state) == [2, 2]
    with open_state(query.operator, follow=True, **options) as state:
        query.batch(3)
        wait_until(lambda: state.version == 3, "no look", 10)
        assert counts(state) == [3, 3]
