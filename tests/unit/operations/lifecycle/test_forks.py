"""Forks: the same rows without a part or a bucket written, whatever clean-up and crashes do."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count, product

import pytest

from dynastate.engine.catalog import find_stores, whole_namespace
from dynastate.engine.engine import Engine
from dynastate.engine.namespaces import read_record
from dynastate.engine.updates import add_to_set, append_version, remove_from_set, unchanged
from dynastate.errors import (
    ConfigurationError,
    DynastateError,
    RouteInvalidError,
    UnavailableError,
    VersionMissingError,
)
from dynastate.format import keys
from dynastate.format.items import FORMAT, Item, item_bytes, item_key
from dynastate.format.keys import EMPTY, NO_ATTEMPT, Key, Role, VersionId, meta_key, snapshot_key, version_list_key
from dynastate.format.meta import FORKED, FORKS, PINS, parse_meta
from dynastate.format.namespace import namespace_key
from dynastate.format.parts import StoredChunk, part_items
from dynastate.format.version_list import REFUSED, VERSIONS
from dynastate.operations.cost.usage import usage_of_store
from dynastate.operations.inspection.findings import Report
from dynastate.operations.inspection.inspect import inspect_store
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.lifecycle.clean import clean_store
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.operations.lifecycle.fork import Forked, fork_namespace
from dynastate.operations.pins import forks_of, is_complete, pin_of, refuse_forked, unpin_dropped
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from dynastate.storage.tables import Tables
from tests.support.contents import buckets_of, graph, parts_of
from tests.support.engine_driver import (
    Engines,
    begin,
    closing,
    make_engine,
    read,
    recover,
    save_snapshot,
    write,
    write_versions,
)
from tests.support.fakes import Dying, FailingTables, Fault, MemoryTables, Overtaken, Recorded, without_list
from tests.support.samples import (
    CHECKPOINT,
    QUERY,
    SCHEMA,
    SHARDS,
    State,
    attempt,
    chunk,
    namespace_of,
    numbers,
    query_run,
)
from tests.support.store_builder import StoreBuilder

pytestmark = pytest.mark.usefixtures("always_worth_it")

#: Versions by their numbers; and the two stores of `small`, by their engine and versions.
Made = list[VersionId]
Small = tuple[Engine, Made]


def new_of(store: str, name: str = "new") -> str:
    return f"{namespace_of(store)}-{name}" + store.removeprefix(namespace_of(store))


def both(store: str) -> list[str]:
    return [store, store.replace("/0/0/", "/0/1/")]


def contents(chunks: Iterable[StoredChunk]) -> list[bytes]:
    return [each.changes for each in chunks]


def fork(tables: Tables, store: str, version: int | None = None, name: str = "new") -> Forked:
    return fork_namespace(tables, namespace_of(store), namespace_of(new_of(store, name)), version)


def since(version: int, newest: int) -> Callable[[int], set[bytes]]:
    return lambda base: {b"%d" % number for number in range(base + 1 if base else version, newest + 1)}


def snapshot_of(engine: Engine, store: str, of: VersionId, state: State, base: int = 0, run: str = "run-1") -> None:
    save_snapshot(engine, store, of, state, since(base + 1, of[0]), run=run)


def write_with_two_snapshots(engine: Engine, store: str) -> list[VersionId]:
    """24 versions, with snapshots of versions 12 and 21."""
    made = write_versions(engine, store, 12)
    snapshot_of(engine, store, made[12], numbers(12))
    made += write_versions(engine, store, 9, made[12])[1:]
    snapshot_of(engine, store, made[21], numbers(21), 12)
    return made + write_versions(engine, store, 3, made[21])[1:]


def data_items(tables: Tables, store: str) -> int:
    return len(parts_of(tables, store)) + len(buckets_of(tables, store))


@pytest.fixture
def made(engine: Engine, store: str) -> Made:
    """35 versions of one row each, and a snapshot of version 20."""
    made = write_versions(engine, store, 20)
    snapshot_of(engine, store, made[20], numbers(20))
    return made + write_versions(engine, store, 15, made[20])[1:]


def test_changes_within_entries_are_not_shared(engine: Engine, tables: Tables, store: str) -> None:
    """They are copied with the version lists: the fork shares no byte."""
    engine.commits.inline_bytes = 256
    write_versions(engine, store, 3)
    assert data_items(tables, store) == 0
    assert fork(tables, store).shared_bytes == 0


def test_a_fork_reads_the_same_rows_and_writes_none(engine: Engine, tables: Tables, store: str, made: Made) -> None:
    """A fork reads as its origin, by number and by attempt; no part and no bucket is its own."""
    before = data_items(tables, store)
    said = fork(tables, store)
    new = new_of(store)
    assert (said.version, said.stores) == (35, 1)
    assert said.shared_bytes > 0
    assert data_items(tables, store) == before
    assert data_items(tables, new) == 0
    for version in made[21:]:
        assert read(engine, new, *version) == read(engine, store, *version) == numbers(version[0])
    assert read(engine, new, 35) == numbers(35)
    assert [entry.version for entry in engine.open(new, *made[35]).entries] == list(range(21, 36))
    assert verify(tables, new).is_whole
    assert verify(tables, store).is_whole


@pytest.mark.parametrize("version", [20, 22, 29, 30])
def test_a_fork_of_any_version(engine: Engine, tables: Tables, store: str, made: Made, version: int) -> None:
    """A fork can be made at any version, also that of a snapshot; it has no later version."""
    assert fork(tables, store, version).version == version
    assert read(engine, new_of(store), *made[version]) == numbers(version)
    with pytest.raises(VersionMissingError):
        engine.open(new_of(store), *made[version + 1])


def clean_up_all(engine: Engine, store: str, made: Made) -> VersionId:
    """Write and clean up the origin until no earlier version is needed there."""
    newest = made[-1]
    for _ in range(3):
        more = write_versions(engine, store, 10, newest)
        newest = more[-1]
        snapshot_of(engine, store, newest, numbers(newest[0]), newest[0] - 10)
        newest = write_versions(engine, store, 4, newest)[-1]
        engine.clean_up(store, "run-1", *newest, 2, 1, 0)
    return newest


def test_clean_up_of_the_origin_retains_what_forks_need(engine: Engine, tables: Tables, store: str, made: Made) -> None:
    """It deletes everything else; after the fork is dropped, the next clean-up deletes that, too."""
    fork(tables, store, 32)
    newest = clean_up_all(engine, store, made)
    kept = graph(tables, store)
    assert min(version for version in kept.versions() if not kept.is_pinned(version)) == newest[0] - 3
    assert [each.version for each in kept.snapshots()] == [20, newest[0] - 4]
    assert read(engine, new_of(store), *made[32]) == numbers(32)
    assert read(engine, store, *newest) == numbers(newest[0])
    assert verify(tables, store).is_whole
    assert verify(tables, new_of(store)).is_whole
    assert not engine.clean_up(store, "run-1", *newest, 2, 1, 0)[0].items_deleted
    drop_stores(tables, [new_of(store)])
    engine.clean_up(store, "run-1", *newest, 2, 1, 0)
    gone = graph(tables, store)
    assert gone.versions() == list(range(newest[0] - 3, newest[0] + 1))
    assert [each.version for each in gone.snapshots()] == [newest[0] - 4]
    assert {int(key.sort[:20]) for key, _ in parts_of(tables, store)} == set(gone.versions())
    assert verify(tables, store).findings == ()


class Listing(FailingTables):
    """Tables that record which keys of parts were listed."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self.listed: list[Key] = []

    def list_keys(self, role: Role, store_shard: str, low: str, high: str) -> list[Key]:
        assert low <= high, "DynamoDB refuses such a range"
        found: list[Key] = super().list_keys(role, store_shard, low, high)
        self.listed += found if role == "delta" else []
        return found


def test_clean_up_does_not_read_what_forks_need(engines: Engines, tables: Tables, store: str) -> None:
    """What two forks need is retained, without a list of its parts; orphans outside go, those within after a drop."""
    told = Listing(tables)
    engine = engines(told)
    made = write_versions(engine, store, 45)
    snapshot_of(engine, store, made[9], numbers(9))
    snapshot_of(engine, store, made[19], numbers(19))
    snapshot_of(engine, store, made[42], numbers(42))
    fork(tables, store, 15, "early")  # on versions 10 to 15
    fork(tables, store, 43, "late")
    for number in (5, 12, 25, 41):
        orphan = part_items(store, number, attempt(500 + number), 0, SHARDS, chunk({b"orphan": b""}))
        tables.write(orphan)
    engine.clean_up(store, "run-1", *made[45], 2, 1, 0)  # those below 43
    assert {int(key.sort[:20]) for key in told.listed} == {5, 25}
    assert {int(key.sort[:20]) for key, _ in parts_of(tables, store)} == {*range(10, 20), *range(40, 46)}
    assert {each.items for each in verify(tables, store).findings} == {1}
    assert verify(tables, store).is_whole
    assert graph(tables, store).versions() == [*range(10, 20), *range(40, 46)]
    for name, version in (("early", 15), ("late", 43)):
        assert read(engine, new_of(store, name), *made[version]) == numbers(version)
        assert verify(tables, new_of(store, name)).findings == ()
        drop_stores(tables, [new_of(store, name)])
    engine.clean_up(store, "run-1", *made[45], 2, 1, 0)
    assert verify(tables, store).findings == ()


def test_an_independent_fork_unpins_its_origin(engine: Engine, tables: Tables, store: str, made: Made) -> None:
    """First the version lists, once its own snapshot replaces them; then the rest, once no bucket is shared."""
    fork(tables, store, 21)
    new = new_of(store)
    newest = write(engine, new, attempt(922), {b"22": b"fork"}, base=made[21], run="test")
    state = numbers(21) | {b"22": b"fork"}
    snapshot_of(engine, new, newest, state, 20, "test")
    for number in range(23, 40):
        newest = write(engine, new, attempt(900 + number), base=newest, run="test")
    clean_store(engine, tables, new, 2)
    assert pins(tables, store) == {"meta", made_snapshot(made[20])}
    assert read(engine, new, *newest) == state
    newest, everything = detach(engine, new, newest)
    clean_store(engine, tables, new, 2)
    assert pins(tables, store) == set()
    assert read(engine, new, *newest) == everything
    drop_stores(tables, [store])
    assert read(engine, new, *newest) == everything
    assert verify(tables, new).findings == ()


def detach(engine: Engine, new: str, newest: VersionId) -> tuple[VersionId, State]:
    """Change all rows of a fork, and continue until its version needs no bucket of the origin; return it."""
    everything = {b"%d" % number: b"new" for number in range(1, 40)}
    newest = write(engine, new, attempt(901 + newest.version), everything, base=newest, run="test")
    save_snapshot(engine, new, newest, everything, lambda _: {b"%d" % n for n in range(2000)}, run="test")
    for _ in range(3):
        newest = write(engine, new, attempt(901 + newest.version), base=newest, run="test")
    return newest, everything


def made_snapshot(version: VersionId) -> str:
    return snapshot_key("", *version).sort


def stores_of(tables: Tables, namespace: str) -> list[str]:
    return list(find_stores(tables, namespace))


def drop_namespace(tables: Tables, namespace: str) -> None:
    """Drop a namespace as `dynastate drop` does."""
    drop_stores(tables, stores_of(tables, namespace))


def never_forked(items: Mapping[Key, Item]) -> dict[Key, Item]:
    """Items without what a fork leaves: the trace in the meta items of its origin, its fences, its stores' list."""
    return {
        key: {name: value for name, value in item.items() if name != FORKED}
        for key, item in without_list(items).items()
        if REFUSED not in item or VERSIONS in item
    }


def pins(tables: Tables, store: str) -> set[str]:
    found = tables.query("snapshot", keys.store_shard(store, 0), "a", "~")
    return {key.sort for key, item in found if FORKS in item}


def test_drop_refuses_while_a_fork_depends_on_it(engine: Engine, tables: Tables, store: str, made: Made) -> None:
    """The error names the fork, and nothing is deleted; without the fork the origin can be dropped."""
    fork(tables, store)
    before = data_items(tables, store)
    with pytest.raises(ConfigurationError, match=f"forks depend on this state: {namespace_of(new_of(store))};"):
        drop_stores(tables, [store])
    with pytest.raises(ConfigurationError, match="forks depend on this state"):
        refuse_forked(tables, [store])
    assert data_items(tables, store) == before
    assert read(engine, store, *made[35]) == numbers(35)
    drop_stores(tables, [new_of(store)])
    assert pins(tables, store) == set()
    drop_stores(tables, [store])
    assert data_items(tables, store) == 0


def test_a_fork_of_a_fork(engine: Engine, tables: Tables, store: str, made: Made) -> None:
    """It pins the first fork, which pins the origin; shared items are read from the origin."""
    fork(tables, store, 32)
    first, second = new_of(store), new_of(new_of(store))
    newest = write(engine, first, attempt(933), {b"33": b"fork"}, base=made[32], run="test")
    fork(tables, first)
    expected = numbers(32) | {b"33": b"fork"}
    assert read(engine, second, *newest) == expected
    with pytest.raises(ConfigurationError, match="forks depend on this state"):
        drop_stores(tables, [first])
    # The first fork runs on until it needs nothing of the origin itself.
    for number in range(34, 38):
        newest = write(engine, first, attempt(900 + number), {b"%d" % number: b"fork"}, base=newest, run="test")
    newest, _ = detach(engine, first, newest)
    clean_store(engine, tables, first, 2)
    clean_up_all(engine, store, made)
    assert read(engine, second, 33) == expected
    assert verify(tables, second).is_whole
    assert verify(tables, first).is_whole
    drop_stores(tables, [second])
    drop_stores(tables, [first])
    assert pins(tables, store) == set()


def test_every_attempt_at_the_version_is_forked(engine: Engine, tables: Tables, store: str) -> None:
    """All attempts at the version are forked, as a driver may name any; by number the same one is opened."""
    made = write_versions(engine, store, 5)
    twin = write(engine, store, attempt(77), {b"twin": b""}, base=made[4])
    fork(tables, store)
    for version in (made[5], twin, (5, NO_ATTEMPT)):
        assert read(engine, new_of(store), *version) == read(engine, store, *version)


def test_a_namespace_with_state_is_refused(engine: Engine, tables: Tables, store: str, made: Made) -> None:
    """A complete fork, another query's state and the namespace itself are refused; so are unknown versions."""
    other = new_of(store, "other")
    write(engine, other, attempt(1), {b"1": b"1"})
    with pytest.raises(ConfigurationError, match="has state already"):
        fork(tables, store, name="other")
    with pytest.raises(ConfigurationError, match="needs a namespace of its own"):
        fork_namespace(tables, namespace_of(store), namespace_of(store), None)
    with pytest.raises(ConfigurationError, match="no store of this namespace"):
        fork_namespace(tables, "unknown", "new", None)
    with pytest.raises(VersionMissingError, match="versions=1-35"):
        fork(tables, store, 36)
    fork(tables, store)
    with pytest.raises(ConfigurationError, match="has state already"):
        fork(tables, store)


def test_pins_of_deleted_forks_are_removed_first(engine: Engine, tables: Tables, store: str, made: Made) -> None:
    engine.commits.sessions.enter(tables, store, query_run("run-2"), 35)
    fork(tables, store)
    tables.delete([meta_key(new_of(store))])
    with pytest.raises(ConfigurationError, match="a newer run of the query has begun"):
        clean_store(engine, tables, store, 2)
    assert pins(tables, store) == set()
    fork(tables, store, 21, name="other")
    fork(tables, store, name="third")
    tables.delete([meta_key(new_of(store, "other"))])
    with pytest.raises(ConfigurationError, match=f"forks depend on this state: {namespace_of(store)}-third; drop"):
        drop_stores(tables, [store])
    tables.delete([meta_key(new_of(store, "third"))])
    drop_stores(tables, [store])
    assert graph(tables, store).is_empty


def test_verify_finds_a_lost_pin(tables: Tables, store: str, made: Made) -> None:
    """Without the pin, clean-up of the origin may delete what the fork needs."""
    fork(tables, store)
    key = snapshot_key(store, *made[20])
    pin = pin_of(graph(tables, new_of(store)).meta_item)
    remove_from_set(tables, key, FORKS, [pin], {})
    (finding,) = verify(tables, new_of(store)).findings
    assert (finding.what, finding.key) == ("missing", key)


# --------------------------------------------------------------------------------------------------- crashes and races


def each_request(operation: Callable[[Tables], object], tables: MemoryTables) -> Iterator[None]:
    """Repeat an operation on the same tables, with a crash one request later each time, until it completes."""
    begun = dict(tables.items)
    for applied in (False, True):
        for last in range(1_000):
            tables.items = dict(begun)
            try:
                operation(Dying(tables, last, applied=applied))
            except UnavailableError:
                yield
            else:
                break
        else:
            raise AssertionError("it does not end")


@pytest.fixture
def make(memory: MemoryTables) -> Iterator[Engines]:
    yield from closing(memory)


@pytest.fixture
def small(make: Engines, store: str) -> Small:
    """Two stores on tables in memory, with a snapshot and versions in two groups, to be forked."""
    engine, made = make(), []
    for each in both(store):
        made = write_versions(engine, each, 7)
        snapshot_of(engine, each, made[7], numbers(7))
        made += write_versions(engine, each, 5, made[7])[1:]
    return engine, made


def without_fences(tables: MemoryTables) -> dict[Key, Item]:
    """All items but the fences and the lists of stores that a drop leaves."""
    return {key: item for key, item in without_list(tables.items).items() if REFUSED not in item or VERSIONS in item}


def is_nowhere(tables: MemoryTables, namespace: str) -> bool:
    return not any(key.store_shard.startswith(f"{namespace}/") for key in without_fences(tables)) and not any(
        FORKS in item for item in tables.items.values()
    )


def test_a_fork_that_crashes_anywhere_is_resumed(memory: MemoryTables, store: str, small: Small) -> None:
    """It is resumed at its version, though the query has run on, and ends as if it had not crashed."""
    engine, made = small
    other = store.replace("/0/0/", "/0/1/")
    for _ in each_request(lambda tables: fork(tables, store, 11), memory):
        if is_complete(memory, new_of(store), 11):  # only the last answer did not come
            with pytest.raises(ConfigurationError, match="has state already"):
                fork(memory, store)
        else:
            begun = meta_key(new_of(store)) in memory.items
            if begun:
                with pytest.raises(ConfigurationError, match="at another version has begun there and was cut off"):
                    fork(memory, store, 12)
            assert fork(memory, store, None if begun else 11).version == 11
        for each in (store, other):
            assert read(engine, new_of(each), *made[11]) == numbers(11)
            assert verify(memory, new_of(each)).findings == ()
        drop_stores(memory, [new_of(each) for each in (store, other)])
        assert is_nowhere(memory, namespace_of(new_of(store)))


def test_a_fork_is_of_one_moment(memory: MemoryTables, make: Engines, store: str) -> None:
    """The fork is cut off, and the query is taken back before its version: both partitions are of one history."""
    made, _ = (write_versions(make(), each, 5) for each in both(store))
    before = memory.items.copy()
    for _ in each_request(lambda tables: fork(tables, store), memory):
        begun = meta_key(new_of(store)) in memory.items
        for each in both(store):
            write(make(), each, attempt(500), {b"5": b"another"}, base=made[4], run="run-2")
        if not is_complete(memory, new_of(store), 5):
            assert fork(memory, store).version == 5
        there = [read(make(), new_of(each), 5) for each in both(store)]
        assert there == ([numbers(5)] * 2 if begun else [numbers(4) | {b"5": b"another"}] * 2)
        memory.items = before.copy()


def test_a_query_that_restarts_while_its_fork_is_made(memory: MemoryTables, make: Engines, store: str) -> None:
    """What its next run makes of the version is not forked, between any two requests of the fork."""
    made, _ = (write_versions(make(), each, 5) for each in both(store))
    before = memory.items.copy()

    for at in range(1_000):
        memory.items, requests = before.copy(), count()

        def restart(_: str, at: int = at, requests: Iterator[int] = requests) -> None:
            if next(requests) == at:
                for each in both(store):
                    write(make(), each, attempt(500), {b"5": b"another"}, base=made[4], run="run-2")

        version = fork(FailingTables(memory, restart), store).version
        if next(requests) <= at:
            break
        there = [read(make(), new_of(each), version) for each in both(store)]
        assert there in ([numbers(5)] * 2, [numbers(4)] * 2, [numbers(4) | {b"5": b"another"}] * 2)


@pytest.mark.parametrize("newest", ["adoption", "fork", "first partition"])
def test_a_fork_is_of_one_moment_whatever_entered_last(
    memory: MemoryTables, make: Engines, store: str, newest: str
) -> None:
    """What is the newest in `epochs` is another id in each store, or in one store only, when the fork is cut off."""
    made, _ = (write_versions(make(), each, 5) for each in both(store))
    of, location = store, CHECKPOINT
    if newest == "adoption":
        location = "file:/moved/state"
        adopt_stores(memory, both(store), location)
    elif newest == "fork":
        fork(memory, store, name="of")
        of = new_of(store, "of")
    else:
        write(make(), store, attempt(60), {b"6": b"6"}, base=made[5], run="run-2")
    before = memory.items.copy()
    for last in count():
        memory.items = before.copy()
        with suppress(UnavailableError):
            fork(Dying(memory, last), of, 5)
            break
        if meta_key(new_of(of)) not in memory.items:
            continue  # it begins when it is called again
        for each in both(of):
            run = query_run("run-9", location)
            under_way = make().begin(each, run, *made[4], attempt(500))
            under_way.append(chunk({b"5": b"another"}))
            under_way.commit({0: 1}, SCHEMA)
        if not is_complete(memory, new_of(of), 5):
            fork(memory, of, 5)
        there = [read(make(), new_of(each), 5) for each in both(of)]
        assert there == [numbers(5)] * 2
    assert last > 20


def test_a_fork_beside_the_first_batch_of_a_run(memory: MemoryTables, make: Engines, store: str) -> None:
    """The query was taken back, and has committed its first batch in one partition: a version before is forked."""
    made, _ = (write_versions(make(), each, 7) for each in both(store))
    write(make(), store, attempt(500), {b"5": b"another"}, base=made[4], run="run-2")
    with pytest.raises(VersionMissingError, match="a new run of the query makes this version again"):
        fork(memory, store, 5)
    assert fork(memory, store).version == 4


def test_late_lists_of_a_dropped_fork(memory: MemoryTables, make: Engines, store: str) -> None:
    """They are not taken for those of a fork at a lower version, nor of a query that begins there."""
    made = write_versions(make(), store, 12)
    recorded = Recorded(memory)
    fork(recorded, store, 12)
    drop_namespace(memory, namespace_of(new_of(store)))
    assert fork(memory, store, 8).version == 8
    recorded.repeat("put_new")
    assert make().lineage(new_of(store)).newest.version == 8
    drop_namespace(memory, namespace_of(new_of(store)))
    recorded.repeat("put_new")
    drop_namespace(memory, namespace_of(new_of(store)))
    newest = write_versions(make(), new_of(store), 3, run="next")[-1]
    assert make().lineage(new_of(store)).newest.id == newest
    assert graph(memory, new_of(store)).required_meta.epoch > 1
    assert read(make(), store, *made[12]) == numbers(12)


@pytest.mark.parametrize("version", [13, 20, 22])
def test_late_manifests_of_a_dropped_fork_are_no_lost_snapshots(
    memory: MemoryTables, make: Engines, store: str, version: int
) -> None:
    """Nor where the fork was made again, has a snapshot of its own, and a clean-up is bounded, or cut off anywhere."""
    made, new = write_with_two_snapshots(make(), store), new_of(store)
    recorded = Recorded(memory)
    fork(recorded, store, 24)
    drop_namespace(memory, namespace_of(new))
    assert fork(memory, store, version).version == version
    own = write_versions(make(), new, 10, made[version], run="run-2")[1:]
    snapshot_of(make(), new, own[6], numbers(version + 7), run="run-2")
    before, ways = dict(memory.items), 0
    for at, most in product(range(1, 100), (0, 1, 3)):
        dying = Dying(memory, at)
        with suppress(UnavailableError):
            make_engine(dying).clean_up(new, "run-2", *own[-1], 2, 0, most)
        recorded.repeat("write")
        assert [each for each in verify(memory, new).findings if each.what != "orphaned"] == []
        ways += 1
        memory.items = dict(before)
        if dying.left >= 0 and most == 3:
            break
    assert ways > 20


def test_a_query_that_starts_over_while_its_fork_is_made(memory: MemoryTables, make: Engines, store: str) -> None:
    """The fork is the first query's in all partitions, also where the other one has entered before."""
    for each in both(store):
        write_versions(make(), each, 5)
    before = memory.items.copy()
    outcomes = set()
    for at in range(1_000):
        memory.items, requests = before.copy(), count()

        def start_over(_: str, at: int = at, requests: Iterator[int] = requests) -> None:
            if next(requests) == at:
                for each in both(store):
                    under_way = make().begin(each, query_run("run-2", query="other"), *EMPTY, attempt(600))
                    under_way.append(chunk({b"1": b"other"}))
                    under_way.commit({0: 1}, SCHEMA)

        try:
            version = fork(FailingTables(memory, start_over), store).version
        except DynastateError:
            outcomes.add(0)
            continue
        if next(requests) <= at:
            break
        outcomes.add(version)
        stores = [new_of(each) for each in both(store)]
        assert whole_namespace(memory, namespace_of(stores[0])) == stores
        assert {graph(memory, each).required_meta.query for each in stores} == {QUERY if version == 5 else "other"}
    assert {1, 5} <= outcomes


def test_a_fork_of_other_partitions_is_not_resumed(memory: MemoryTables, make: Engines, store: str) -> None:
    """The query was started over with fewer while the fork was cut off."""
    for each in both(store):
        write_versions(make(), each, 5)
    dying = Dying(memory, 25)
    with pytest.raises(UnavailableError):
        fork(dying, store)
    assert meta_key(new_of(store)) in memory.items
    start_over(make(), store, 2)
    with pytest.raises(ConfigurationError, match="other stores than when this fork was begun"):
        fork(memory, store)


def start_over(engine: Engine, store: str, batches: int) -> None:
    """Let another query begin at version 0."""
    made = StoreBuilder(engine, store, run="run-2", query="other")
    for number in range(batches):
        made.commit(by=attempt(600 + number))


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_fork_in_the_first_batch_of_a_query_that_starts_over(
    memory: MemoryTables, make: Engines, store: str, partitions: int
) -> None:
    """Partition 0 is ahead, and nothing says how many there will be: those of the earlier query may be among them."""
    for each in both(store):
        write_versions(make(), each, 5)
    own = both(store)[:partitions]
    start_over(make(), own[0], 1)
    with pytest.raises(VersionMissingError, match=r"first batch is not committed in all partitions.*/0/1/default"):
        fork(memory, store)
    assert not find_stores(memory, namespace_of(new_of(store)))
    for each in own:
        start_over(make(), each, 2)
    assert fork(memory, store).stores == partitions


def test_no_reader_takes_a_part_of_a_fork_for_all(memory: MemoryTables, make: Engines, store: str) -> None:
    """Of a fork that was cut off, whichever partitions are there."""
    for each in both(store):
        StoreBuilder(make(), each).count_to(5)
    name = f"{namespace_of(new_of(store))}/0"
    for _ in each_request(lambda tables: fork(tables, store), memory):
        if not is_complete(memory, new_of(store), 5):
            with pytest.raises(DynastateError), StateReader(memory, Settings(), name):
                pass
            drop_namespace(memory, namespace_of(new_of(store)))
        else:
            with StateReader(memory, Settings(), name) as reader:
                assert {partition for partition, _ in reader.rows_by_partition()} == {0, 1}


def test_a_fork_of_what_clean_up_deleted(engines: Engines, tables: Tables, store: str) -> None:
    """A task that was late has committed the version once more: it is not the query's."""
    late = begin(engines(), store, attempt(99), {b"by": b"a task"})
    made = write_versions(engines(), store, 25)
    snapshot_of(engines(), store, made[15], numbers(15))
    engines().clean_up(store, "run-1", *made[25], retain=2, least=1, most=0)
    late.commit({0: 1}, SCHEMA)
    with pytest.raises(VersionMissingError, match=r"clean-up has deleted this version.*16-25"):
        fork(tables, store, 1)


def test_a_fork_of_what_the_query_has_left(engines: Engines, tables: Tables, store: str) -> None:
    """It was taken back, and has not made so many versions again."""
    made = write_versions(engines(), store, 5)
    write(engines(), store, attempt(30), {b"3": b"again"}, base=made[2], run="run-2")
    with pytest.raises(VersionMissingError, match=r"or the query was taken back to one before it.*versions=1-3"):
        fork(tables, store, 5)
    assert fork(tables, store).version == 3
    assert read(engines(), new_of(store), 3)[b"3"] == b"again"


def test_two_checkpoints_claim_one_fork(engines: Engines, tables: Tables, store: str) -> None:
    """The first one that begins a run there has it, also in partitions that it has not written to."""
    made, _ = (write_versions(engines(), each, 5) for each in both(store))
    fork(tables, store)
    first, second = (new_of(each) for each in both(store))

    def commit(there: str, run: str, by: int) -> None:
        under_way = engines().begin(there, query_run(run, f"file:/{run}/state"), *made[5], attempt(by))
        under_way.append(chunk({b"6": run.encode()}))
        under_way.commit({0: 1}, SCHEMA)

    commit(first, "x", 100)
    with pytest.raises(ConfigurationError, match="belongs to the query with the checkpoint file:/x/state"):
        commit(second, "y", 200)
    commit(second, "x", 101)


def test_a_fork_where_a_query_was_dropped_before(engines: Engines, tables: Tables, store: str) -> None:
    """Its runs get higher epochs than those of the query, whose record is gone, and dropping it leaves the fences."""
    write_versions(engines(), store, 3)
    new = new_of(store)
    for number in range(1, 5):
        write_versions(engines(), new, 1, run=f"dropped-{number}")
    late = begin(engines(), new, attempt(99), {b"by": b"a task"}, run="dropped-4")
    record = tables.get([namespace_key(namespace_of(new))])
    drop_stores(tables, [new])
    for key, item in record.items():
        assert tables.put_new(key, item)  # the drop was cut off before its last request
    fork(tables, store)
    assert graph(tables, new).required_meta.epoch == 4
    assert read_record(tables, namespace_of(new)) is None
    drop_stores(tables, [new])
    assert graph(tables, new).dropped_epoch == 4
    write_versions(engines(), new, 1, run="next")
    with pytest.raises(ConfigurationError, match="this run may not commit any more"):
        late.commit({0: 1}, SCHEMA)


@pytest.mark.parametrize("name", [FORKS, PINS])
def test_a_late_request_of_a_dropped_fork(memory: MemoryTables, make: Engines, store: str, name: str) -> None:
    """It was sent twice, for its answer was lost; meanwhile the fork was made again. Clean-up deletes nothing of it."""
    made = write_versions(make(), store, 5)
    fork(memory, store)
    write(make(), new_of(store), attempt(50), {b"6": b"own"}, base=made[5], run="test")
    recorded = Recorded(memory)
    drop_stores(recorded, [new_of(store)])
    fork(memory, store)
    recorded.repeat("update", about=name)
    assert verify(memory, new_of(store)).is_whole
    unpin_dropped(memory, store)
    assert verify(memory, new_of(store)).is_whole
    drop_namespace(memory, namespace_of(new_of(store)))
    assert is_nowhere(memory, namespace_of(new_of(store)))


def test_a_late_request_of_a_drop_of_a_fork(memory: MemoryTables, make: Engines, store: str) -> None:
    """It was sent twice, for its answer was lost; meanwhile the fork was made again at the same version."""
    engine = make()
    made = write_with_two_snapshots(engine, store)
    new = new_of(store)
    fork(memory, store)
    recorded = Recorded(memory)
    drop_stores(recorded, [new])
    fork(memory, store)
    writes = [each for each in recorded.requests if each[0] in ("put_over", "delete_over", "delete", "update")]
    assert len(writes) > 8
    for verb, arguments in writes:
        getattr(memory, verb)(*arguments)
        assert read(make(), new, *made[-1]) == read(engine, store, *made[-1]), verb
        assert verify(memory, new).is_whole, verb


def test_a_fork_that_is_made_again_while_it_is_read(memory: MemoryTables, make: Engines, store: str) -> None:
    """What was deleted under the reader is not taken for what is made there since."""
    engine = make()
    made = write_with_two_snapshots(engine, store)
    new, newest = new_of(store), made[-1]
    fork(memory, store)
    overtaken = Overtaken(memory, lambda: drop_stores(memory, [new]))
    reader = make_engine(overtaken)
    with pytest.raises(RouteInvalidError, match="clean-up deleted a snapshot meanwhile"):
        read(reader, new, *newest)
    fork(memory, store)
    assert read(reader, new, *newest) == read(engine, store, *newest)
    reader.close()


def test_a_fork_that_crashes_anywhere_is_dropped(memory: MemoryTables, store: str, small: Small) -> None:
    engine, made = small
    before = without_list(memory.items)
    new = namespace_of(new_of(store))
    for _ in each_request(lambda tables: fork(tables, store, 11), memory):
        drop_namespace(memory, new)
        assert never_forked(memory.items) == before
    assert read(engine, store, *made[12]) == numbers(12)


def test_a_drop_that_crashes_anywhere_is_repeated(memory: MemoryTables, store: str, small: Small) -> None:
    engine, made = small
    before = without_list(memory.items)
    fork(memory, store, 11)
    stores = [new_of(each) for each in both(store)]
    for _ in each_request(lambda tables: drop_stores(tables, stores), memory):
        left = stores_of(memory, namespace_of(stores[0]))
        drop_stores(memory, left)
        assert never_forked(memory.items) == before
    assert read(engine, store, *made[12]) == numbers(12)


def test_a_fork_that_clean_up_has_overtaken_is_refused(memory: MemoryTables, store: str, small: Small) -> None:
    """Cut off before its pins, it depends on what clean-up has deleted since; a newer snapshot does not count."""
    engine, made = small
    for _ in each_request(lambda tables: fork(tables, store, 11), memory):
        if meta_key(new_of(store)) in memory.items:
            break
    assert not any(FORKS in item for item in memory.items.values())
    snapshot_of(engine, store, made[11], numbers(11))
    engine.clean_up(store, "run-1", *made[12], 2, 1, 0)
    with pytest.raises(VersionMissingError, match="clean-up has deleted what the fork was begun with: dynastate drop"):
        fork(memory, store)
    drop_stores(memory, [new_of(store)])
    assert fork(memory, store).version == 12


def test_a_fork_whose_version_is_deleted_meanwhile_is_refused(memory: MemoryTables, store: str, small: Small) -> None:
    """Clean-up has ended in the middle, at a list that changed (seed 4105575). It is no damage."""
    _, made = small

    def clean_up() -> None:
        del memory.items[version_list_key(store, 1)], memory.items[snapshot_key(store, *made[7])]

    with pytest.raises(VersionMissingError, match="clean-up has deleted what the fork was begun with: dynastate drop"):
        fork(Overtaken(memory, clean_up, "put_new"), store, 11)


def test_a_new_run_reverts_a_drop_that_was_cut_off(
    make: Engines, memory: MemoryTables, store: str, small: Small
) -> None:
    """Nothing was deleted, and the query runs on: it can be forked, and dropped later."""
    _, made = small
    stores = both(store)
    tables = FailingTables(memory)
    tables.fail("put_over", None, None, Fault(UnavailableError("died")))
    with pytest.raises(UnavailableError, match="died"):
        drop_stores(tables, stores)
    with pytest.raises(ConfigurationError, match="is being dropped"):
        fork(memory, store)
    drop_stores(memory, [new_of(store)])
    for each in stores:
        write(make(), each, attempt(13), base=made[12], run="run-2")
    assert fork(memory, store).version == 13
    drop_stores(memory, [new_of(each) for each in stores])
    drop_stores(memory, stores)
    assert not without_fences(memory)


def test_a_new_run_while_the_query_is_dropped(make: Engines, memory: MemoryTables, store: str, small: Small) -> None:
    """The store that it writes to is unchanged, and the drop reports it."""
    _, made = small
    stores = both(store)
    begun: list[VersionId] = []
    puts, lock = 0, threading.Lock()

    def begin(verb: str) -> None:
        nonlocal puts
        with lock:
            puts += verb == "put_over"
            if puts == 3 and not begun:  # both stores are marked as dropped
                begun.append(write(make(), store, attempt(13), base=made[12], run="run-2"))

    with pytest.raises(ConfigurationError, match="a run of the query has begun meanwhile"):
        drop_stores(FailingTables(memory, begin), stores)
    assert read(make(), store, *begun[0]) == numbers(12)
    # The meta item stays until all stores are empty, so that the next drop finds them. Whether the other store was
    # emptied is open: no store is begun after the failure.
    assert meta_key(stores[1]) in without_fences(memory)
    drop_stores(memory, stores)
    assert not without_fences(memory)


class Beside(FailingTables):
    """Tables with another operation before one of the requests."""

    def __init__(self, tables: Tables, before: int, happens: Callable[[], object]) -> None:
        super().__init__(tables)
        self._left, self.happens = [before], happens

    @property
    def left(self) -> int:
        return self._left[0]

    def _call(self, verb: str, *arguments: object) -> object:
        self._left[0] -= 1  # views share it
        if self.left == -1:
            self.happens()
        return super()._call(verb, *arguments)


def races(
    memory: MemoryTables, first: Callable[[Tables], object], second: Callable[[], object]
) -> Iterator[tuple[Exception | None, Exception | None]]:
    """Run one operation between any two requests of another; give the errors of both."""
    begun = dict(memory.items)
    for before in range(1_000):
        memory.items = dict(begun)
        failures: list[Exception | None] = [None, None]

        def happens(failures: list[Exception | None] = failures) -> None:
            try:
                second()
            except DynastateError as failed:
                failures[1] = failed

        tables = Beside(memory, before, happens)
        try:
            first(tables)
        except DynastateError as failed:
            failures[0] = failed
        if tables.left >= 0:  # it had ended before
            return
        yield failures[0], failures[1]
    raise AssertionError("it does not end")


def test_verify_beside_pins_and_unpins(make: Engines, memory: MemoryTables, store: str, small: Small) -> None:
    """Items that a fork does not need yet, or no longer, need no pin: verify finds no defect at any moment."""
    engine, made = small
    new = new_of(store)
    for _ in each_request(lambda tables: fork(tables, store, 11), memory):
        if meta_key(new) in memory.items:
            assert verify(memory, new).is_whole
    everything = numbers(12)
    newest = write(engine, new, attempt(512), everything, base=made[11], run="test")
    save_snapshot(engine, new, newest, everything, lambda _: {b"%d" % n for n in range(2000)}, run="test")
    write_versions(engine, new, 3, newest, run="test")
    held = pins(memory, store)
    reports: list[Report] = []
    for failures in races(
        memory, lambda tables: reports.append(verify(tables, new)), lambda: clean_store(make(), memory, new, 2)
    ):
        assert failures == (None, None)
        assert reports[-1].is_whole, reports[-1].findings
        assert pins(memory, store) < held
    for _ in each_request(lambda tables: clean_store(make(tables), tables, new, 2), memory):
        assert verify(memory, new).is_whole, verify(memory, new).findings


@pytest.mark.parametrize("version", [13, 16])
@pytest.mark.parametrize("is_fork_first", [True, False])
def test_clean_up_beside_a_fork(
    make: Engines, memory: MemoryTables, store: str, version: int, *, is_fork_first: bool
) -> None:
    """At any moment of a clean-up the fork is complete, or refused with advice; the origin is whole in any case."""
    engine = make()
    made = write_with_two_snapshots(engine, store)

    def clean(on: Tables) -> None:
        make(on).clean_up(store, "run-1", *made[24], 2, 1, 0)

    def fork_it(on: Tables) -> None:
        fork(on, store, version)

    first, second = (fork_it, clean) if is_fork_first else (clean, fork_it)
    outcomes = set()
    for failures in races(memory, first, lambda: second(memory)):
        forked, cleaned = failures if is_fork_first else failures[::-1]
        assert cleaned is None
        assert forked is None or isinstance(forked, VersionMissingError)
        outcomes.add(forked is None)
        if forked is None:
            assert recover(make(), new_of(store), *made[version]) == numbers(version)
            assert verify(memory, new_of(store)).findings == ()
        for each in made[23:]:
            assert read(make(), store, *each) == numbers(each[0])
        assert verify(memory, store).is_whole
    assert outcomes == {True, False}


def test_a_fork_of_a_version_that_clean_up_has_begun_to_delete(make: Engines, memory: MemoryTables, store: str) -> None:
    """Cut off anywhere, clean-up leaves versions whose snapshot is deleted: they are missing, and not corrupt."""
    engine = make()
    made = write_with_two_snapshots(engine, store)

    def refusal(version: int) -> str:
        try:
            fork(memory, store, version)
        except VersionMissingError as missing:
            return str(missing)
        assert recover(make(), new_of(store), version) == numbers(version)
        drop_stores(memory, [new_of(store)])
        return ""

    said = set()
    for _ in each_request(lambda tables: make(tables).clean_up(store, "run-1", *made[24], 2, 1, 0), memory):
        said |= {refusal(version) for version in (13, 16, 23)}
    assert {re.sub(r" store=.* versions=", " ", each) for each in said if "clean-up has deleted" in each} == {
        "clean-up has deleted this version, or the query was taken back to one before it; fork one of versions 21-24"
    }


@pytest.mark.parametrize("what", ["clean", "drop"])
def test_a_fork_is_made_while_pins_of_others_are_checked(
    make: Engines, memory: MemoryTables, small: Small, store: str, what: str
) -> None:
    """Beside another fork: the pins of one that is made meanwhile are kept."""
    _, made = small
    fork(memory, store, 11, "other")

    def look(on: Tables) -> None:
        if what == "clean":
            clean_store(make(on), on, store, 1)
        else:
            drop_stores(on, [store])

    kept = 0
    for looked, forked in races(memory, look, lambda: fork(memory, store, 11)):
        assert (looked is None) == (what == "clean")
        assert forked is None
        kept += 1
        assert recover(make(), new_of(store), *made[11]) == numbers(11)
        assert verify(memory, new_of(store)).findings == ()
    assert kept > 2


def test_clean_of_a_fork_that_is_being_made(make: Engines, memory: MemoryTables, store: str, small: Small) -> None:
    """At any moment: it unpins nothing that the complete fork needs."""
    _, made = small
    new = new_of(store)
    cleaned = set()
    for failures in races(memory, lambda tables: fork(tables, store, 11), lambda: clean_store(make(), memory, new, 2)):
        assert failures[0] is None
        assert read(make(), new, *made[11]) == numbers(11)
        groups = {version_list_key(store, version).sort for version in (8, 11)}
        assert pins(memory, store) == {"meta", made_snapshot(made[7])} | groups
        cleaned.add(type(failures[1]))
    assert cleaned == {type(None), VersionMissingError}


def test_clean_of_a_fork_beside_its_query(make: Engines, memory: MemoryTables, store: str, small: Small) -> None:
    """The query's own clean-up may delete a snapshot at any moment."""
    engine, made = small
    fork(memory, store, 11)
    new = new_of(store)
    made = write_versions(engine, new, 3, made[11], run="test")
    snapshot_of(engine, new, made[2], numbers(13), 7, "test")
    newest = write_versions(engine, new, 3, made[3], run="test")[-1]
    for failures in races(
        memory,
        lambda tables: clean_store(make(tables), tables, new, 100),
        lambda: make().clean_up(new, "test", *newest, 2, 1, 0),
    ):
        assert failures == (None, None)
        assert read(make(), new, *newest) == numbers(17)
        assert verify(memory, new).findings == ()


def test_drop_of_a_fork_that_is_being_made(memory: MemoryTables, store: str, small: Small) -> None:
    """At any moment: the fork is complete, or refused; and so is one of another version after it.

    What was written late are manifests that nothing names: orphans, which clean-up deletes once they are old.
    """
    engine, made = small
    before = without_list(memory.items)
    namespace = namespace_of(new_of(store))
    stores = [new_of(each) for each in both(store)]

    def drop() -> None:
        drop_namespace(memory, namespace)

    outcomes = set()
    for failures in races(memory, lambda tables: fork(tables, store, 11), drop):
        assert failures[1] is None
        outcomes.add(failures[0] is None)
        for version in (11, 12):
            if version == 12:
                try:
                    fork(memory, store, 12)
                except DynastateError:
                    drop()
                    fork(memory, store, 12)
            if version == 12 or failures[0] is None:
                for each in stores:
                    assert read(engine, each, *made[version]) == read(engine, each, version) == numbers(version)
                    assert {finding.what for finding in verify(memory, each).findings} <= {"orphaned"}
        drop()
        assert never_forked(memory.items) == before
    assert outcomes == {True, False}


def test_a_fork_is_not_resumed_after_other_attempts(
    make: Engines, memory: MemoryTables, store: str, small: Small
) -> None:
    """It is complete with all listed attempts, or refused: no list has an attempt whose parent another lacks."""
    _, made = small
    outcomes = set()
    for _ in each_request(lambda tables: fork(tables, store, 11), memory):
        twin = made[8]
        for number in range(9, 12):  # the second stands in another list than the first
            twin = write(make(), store, attempt(100 + number), {b"%d" % number: b"%d" % number}, base=twin)
        try:
            fork(memory, store, 11)
        except DynastateError as refused:
            outcomes.add("changed" if "what the fork was begun with has changed" in str(refused) else "there")
        for entry in graph(memory, new_of(store)).entries():
            if entry.version == 11:
                assert read(make(), new_of(store), 11, entry.attempt) == numbers(11)
                outcomes.add("with the twin" if entry.attempt == twin[1] else "without it")
    assert outcomes == {"changed", "there", "with the twin", "without it"}


def test_drop_beside_a_fork(memory: MemoryTables, store: str, small: Small) -> None:
    """One of the two is refused, at any moment; no fork depends on deleted items."""
    engine, made = small
    stores = both(store)
    outcomes = set()
    for race in (
        races(memory, lambda tables: fork(tables, store, 11), lambda: drop_stores(memory, stores)),
        races(memory, lambda tables: drop_stores(tables, stores), lambda: fork(memory, store, 11)),
    ):
        for failures in race:
            is_whole = all(is_complete(memory, new_of(each), 11) for each in stores)
            outcomes.add(is_whole)
            assert any(failures), failures
            for each in stores if is_whole else ():
                assert read(engine, new_of(each), *made[11]) == numbers(11)
                assert verify(memory, new_of(each)).findings == ()
    assert outcomes == {True, False}


def test_a_commit_does_not_shorten_a_pinned_list(
    engine: Engine, tables: Tables, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts of old runs are deleted from a list, unless a fork has pinned it."""
    monkeypatch.setattr("dynastate.engine.lists.LISTED_MAX", 5)
    made = write_versions(engine, store, 3)
    for number in range(1, 30):
        write(engine, store, attempt(100 + number), {b"%d" % number: b""}, base=made[3], run=f"run-{number + 1}")
        if number == 1:
            fork(tables, store, 4)
    assert read(engine, new_of(store), 4) == numbers(3) | {b"1": b""}
    assert len(graph(tables, store).lists[version_list_key(store, 4)]) == 3 + 29


def test_a_pinned_item_is_neither_replaced_nor_deleted(tables: Tables, store: str) -> None:
    """The verbs of all kinds of tables refuse it; sets grow and shrink, and are deleted with their last text."""
    key = version_list_key(store, 1)
    item: Item = item_key(key) | {"format": FORMAT, "versions": [b"a"]}
    assert add_to_set(tables, key, FORKS, ["one"]) is None
    assert tables.put_new(key, item)
    assert add_to_set(tables, key, FORKS, ["one"]) == item | {FORKS: frozenset(["one"])}
    now = add_to_set(tables, key, FORKS, ["one", "two"])
    assert now == item | {FORKS: frozenset(["one", "two"])}
    before: Item = {"versions": [b"a"]}
    assert not tables.put_over(key, item, unchanged(before))
    assert not tables.delete_over(key, unchanged(before))
    assert append_version(tables, key, b"b", "run-1") == [b"a", b"b"]
    now = remove_from_set(tables, key, FORKS, ["two", "three"], {})
    assert now is not None
    assert forks_of(now) == ["one"]
    now = remove_from_set(tables, key, FORKS, ["one"], {})
    assert now == item | {"versions": [b"a", b"b"]}
    assert remove_from_set(tables, key, FORKS, ["one"], {}) == now
    assert tables.put_over(key, item, unchanged({"versions": [b"a", b"b"]}))
    assert tables.delete_over(key, unchanged(before))
    assert remove_from_set(tables, key, FORKS, ["one"], {}) is None
    assert tables.get([key]) == {}


def test_shared_items_count_where_they_lie(make: Engines, memory: MemoryTables, store: str, small: Small) -> None:
    """A fork is as large as its own items, for `stores`, for `cost`, and in the metrics of an executor."""
    _, made = small
    fork(memory, store, 11)
    for name in (new_of(store), store):
        own = [item for key, item in memory.items.items() if key.store_shard.startswith(f"{name}#")]
        engine = make()
        assert recover(engine, name, *made[11]) == numbers(11)
        engine.lineage(name)
        said = inspect_store(memory, name)
        assert said.items == usage_of_store(memory, name).stored.items == len(own)
        assert engine.known_stores.account(name).stored().items == len(own)
        if name != store:
            assert said.bytes == engine.known_stores.account(name).stored().bytes == sum(map(item_bytes, own))
    assert (said.origin, said.forks) == ("", (new_of(store),))


def test_a_key_of_a_fork_is_read_like_others(engine: Engine, tables: Tables, store: str, made: Made) -> None:
    fork(tables, store, 32)
    new = new_of(store)
    for bucket in range(8):
        opening = engine.buckets(new, *made[32], 3, [bucket])
        twin = engine.buckets(store, *made[32], 3, [bucket])
        assert contents(opening.snapshot_chunks) == contents(twin.snapshot_chunks)
        assert contents(opening.chunks) == contents(twin.chunks)
    feed = engine.changes(new, 25, 32, made[32][1])
    twin_feed = engine.changes(store, 25, 32, made[32][1])
    assert [(version, contents(each)) for version, each in feed.versions] == [
        (version, contents(each)) for version, each in twin_feed.versions
    ]


def test_a_fork_of_a_version_before_the_newest_query(engines: Engines, tables: Tables, store: str) -> None:
    """Seed 2000689: a query has entered the store, with a higher epoch, and has not made that version yet."""
    made = write_versions(engines(), store, 2)
    other = engines().begin(store, query_run("run-2", query="other"), *made[2], attempt(11))
    other.append(chunk({b"3": b"other"}))
    other.flush()
    fork(tables, store, 2)
    new = new_of(store)
    meta = tables.get([meta_key(new)])[meta_key(new)]
    assert parse_meta(new, meta).queries == graph(tables, store).required_meta.queries
    assert read(engines(), new, 2) == numbers(2)
    third = write(engines(), new, attempt(3), {b"3": b"3"}, base=made[2], run="run-3")
    assert read(engines(), new, *third) == numbers(3)
