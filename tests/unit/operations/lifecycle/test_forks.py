"""Forks: the same rows without a part or a bucket written, and pins that keep what they need."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dynastate.engine.catalog import find_stores
from dynastate.engine.engine import Engine
from dynastate.engine.namespaces import read_record
from dynastate.engine.updates import add_to_set, append_version, remove_from_set, unchanged
from dynastate.errors import ConfigurationError, VersionMissingError
from dynastate.format.items import FORMAT, Item, item_bytes, item_key
from dynastate.format.keys import NO_ATTEMPT, Key, Role, VersionId, meta_key, snapshot_key, version_list_key
from dynastate.format.meta import FORKS, parse_meta
from dynastate.format.namespace import namespace_key
from dynastate.format.parts import StoredChunk, part_items
from dynastate.operations.cost.usage import usage_of_store
from dynastate.operations.inspection.inspect import inspect_store
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.clean import clean_store
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.operations.pins import refuse_forked
from dynastate.storage.tables import Tables
from tests.support.contents import buckets_of, everything_of, graph, parts_of
from tests.support.engine_driver import Engines, begin, read, recover, save_snapshot, write, write_versions
from tests.support.faults import FailingTables
from tests.support.forks import both, fork, new_of, pins, snapshot_of, start_over, write_with_snapshots
from tests.support.samples import SCHEMA, SHARDS, State, attempt, chunk, namespace_of, numbers, query_run

Versions = list[VersionId]
pytestmark = pytest.mark.usefixtures("always_worth_it")


@pytest.fixture
def versions(engine: Engine, store: str) -> Versions:
    return write_with_snapshots(engine, store, 35, 20)


def contents(chunks: Iterable[StoredChunk]) -> list[bytes]:
    return [chunk.changes for chunk in chunks]


def data_items(tables: Tables, store: str) -> int:
    return len(parts_of(tables, store)) + len(buckets_of(tables, store))


def test_changes_within_entries_are_not_shared(engine: Engine, tables: Tables, store: str) -> None:
    """They are copied with the version lists: the fork shares no byte."""
    engine.commits.inline_bytes = 256
    write_versions(engine, store, 3)
    assert data_items(tables, store) == 0
    assert fork(tables, store).shared_bytes == 0


def test_a_fork_has_the_rows_and_writes_none(engine: Engine, tables: Tables, store: str, versions: Versions) -> None:
    items = data_items(tables, store)
    forked, new = fork(tables, store), new_of(store)
    assert (forked.version, forked.stores) == (35, 1)
    assert forked.shared_bytes > 0
    assert data_items(tables, store) == items
    assert data_items(tables, new) == 0
    for version in versions[21:]:
        assert read(engine, new, *version) == read(engine, store, *version) == numbers(version[0])
    assert read(engine, new, 35) == numbers(35)
    assert [entry.version for entry in engine.open(new, *versions[35]).entries] == list(range(21, 36))
    assert verify(tables, new).is_whole
    assert verify(tables, store).is_whole


@pytest.mark.parametrize("version", [20, 22, 29, 30])
def test_a_fork_of_any_version(engine: Engine, tables: Tables, store: str, versions: Versions, version: int) -> None:
    assert fork(tables, store, version).version == version
    assert read(engine, new_of(store), *versions[version]) == numbers(version)
    with pytest.raises(VersionMissingError):
        engine.open(new_of(store), *versions[version + 1])


def test_every_attempt_at_the_version_is_forked(engine: Engine, tables: Tables, store: str) -> None:
    """All attempts at the version are forked, as a driver may name any; by number the same one is opened."""
    versions = write_versions(engine, store, 5)
    twin = write(engine, store, attempt(77), {b"twin": b""}, base=versions[4])
    fork(tables, store)
    for version in (versions[5], twin, (5, NO_ATTEMPT)):
        assert read(engine, new_of(store), *version) == read(engine, store, *version)


def test_a_fork_of_a_fork(engine: Engine, tables: Tables, store: str, versions: Versions) -> None:
    """It pins the first fork, which pins the origin; shared items are read from the origin."""
    fork(tables, store, 32)
    first, second = new_of(store), new_of(new_of(store))
    newest = write(engine, first, attempt(933), {b"33": b"fork"}, base=versions[32], run="test")
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
    clean_up_all(engine, store, versions)
    assert read(engine, second, 33) == expected
    assert verify(tables, second).is_whole
    assert verify(tables, first).is_whole
    drop_stores(tables, [second])
    drop_stores(tables, [first])
    assert pins(tables, store) == set()


def test_a_key_of_a_fork_is_read_like_others(engine: Engine, tables: Tables, store: str, versions: Versions) -> None:
    fork(tables, store, 32)
    new = new_of(store)
    for bucket in range(8):
        opening, twin = (engine.buckets(name, *versions[32], 3, [bucket]) for name in (new, store))
        assert contents(opening.snapshot_chunks) == contents(twin.snapshot_chunks)
        assert contents(opening.chunks) == contents(twin.chunks)
    feed, twin_feed = (
        [(version, contents(chunks)) for version, chunks in engine.changes(name, 25, 32, versions[32][1]).versions]
        for name in (new, store)
    )
    assert feed == twin_feed


def test_a_fork_of_a_version_before_the_newest_query(engines: Engines, tables: Tables, store: str) -> None:
    """Seed 2000689: a query has entered the store, with a higher epoch, and has not made that version yet."""
    versions = write_versions(engines(), store, 2)
    run = query_run("run-2", query="other")
    begin(engines(), store, attempt(11), {b"3": b"other"}, base=versions[2], run=run).flush()
    fork(tables, store, 2)
    new = new_of(store)
    meta = tables.get([meta_key(new)])[meta_key(new)]
    assert parse_meta(new, meta).queries == graph(tables, store).required_meta.queries
    assert read(engines(), new, 2) == numbers(2)
    third = write(engines(), new, attempt(3), {b"3": b"3"}, base=versions[2], run="run-3")
    assert read(engines(), new, *third) == numbers(3)


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


def clean_up_all(engine: Engine, store: str, versions: Versions) -> VersionId:
    """Write and clean up the origin until no earlier version is needed there."""
    newest = versions[-1]
    for _ in range(3):
        newest = write_versions(engine, store, 10, newest)[-1]
        snapshot_of(engine, store, newest)
        newest = write_versions(engine, store, 4, newest)[-1]
        engine.maintenance.clean_up(store, "run-1", *newest, 2, 1, 0)
    return newest


def test_clean_up_retains_what_forks_need(engine: Engine, tables: Tables, store: str, versions: Versions) -> None:
    """It deletes everything else; after the fork is dropped, the next clean-up deletes that, too."""
    fork(tables, store, 32)
    newest = clean_up_all(engine, store, versions)
    first_graph = graph(tables, store)
    assert min(version for version in first_graph.versions() if not first_graph.is_pinned(version)) == newest[0] - 3
    assert [each.version for each in first_graph.snapshots()] == [20, newest[0] - 4]
    assert read(engine, new_of(store), *versions[32]) == numbers(32)
    assert read(engine, store, *newest) == numbers(newest[0])
    assert verify(tables, store).is_whole
    assert verify(tables, new_of(store)).is_whole
    assert not engine.maintenance.clean_up(store, "run-1", *newest, 2, 1, 0)[0].items_deleted
    drop_stores(tables, [new_of(store)])
    engine.maintenance.clean_up(store, "run-1", *newest, 2, 1, 0)
    second_graph = graph(tables, store)
    assert second_graph.versions() == list(range(newest[0] - 3, newest[0] + 1))
    assert [each.version for each in second_graph.snapshots()] == [newest[0] - 4]
    assert {int(key.sort[:20]) for key, _ in parts_of(tables, store)} == set(second_graph.versions())
    assert verify(tables, store).findings == ()


class Listing(FailingTables):
    """Tables that record which keys of parts were listed."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self.listed: list[Key] = []

    def list_keys(self, role: Role, store_shard: str, low: str, high: str) -> list[Key]:
        assert low <= high, "DynamoDB refuses such a range"
        keys: list[Key] = super().list_keys(role, store_shard, low, high)
        self.listed += keys if role == "delta" else []
        return keys


def test_clean_up_does_not_read_what_forks_need(engines: Engines, tables: Tables, store: str) -> None:
    """What two forks need is retained, without a list of its parts; orphans outside go, those within after a drop."""
    told = Listing(tables)
    engine = engines(told)
    versions = write_with_snapshots(engine, store, 45, 9, 19, 42)
    fork(tables, store, 15, "early")  # on versions 10 to 15
    fork(tables, store, 43, "late")
    for number in (5, 12, 25, 41):
        tables.write(part_items(store, number, attempt(500 + number), 0, SHARDS, chunk({b"orphan": b""})))
    engine.maintenance.clean_up(store, "run-1", *versions[45], 2, 1, 0)  # those below 43
    assert {int(key.sort[:20]) for key in told.listed} == {5, 25}
    assert {int(key.sort[:20]) for key, _ in parts_of(tables, store)} == {*range(10, 20), *range(40, 46)}
    assert {each.items for each in verify(tables, store).findings} == {1}
    assert verify(tables, store).is_whole
    assert graph(tables, store).versions() == [*range(10, 20), *range(40, 46)]
    for name, version in (("early", 15), ("late", 43)):
        assert read(engine, new_of(store, name), *versions[version]) == numbers(version)
        assert verify(tables, new_of(store, name)).findings == ()
        drop_stores(tables, [new_of(store, name)])
    engine.maintenance.clean_up(store, "run-1", *versions[45], 2, 1, 0)
    assert verify(tables, store).findings == ()


def detach(engine: Engine, new: str, newest: VersionId) -> tuple[VersionId, State]:
    """Change all rows of a fork, and continue until its version needs no bucket of the origin; return it."""
    everything = {b"%d" % number: b"new" for number in range(1, 40)}
    newest = write(engine, new, attempt(901 + newest.version), everything, base=newest, run="test")
    save_snapshot(engine, new, newest, everything, lambda _: {b"%d" % n for n in range(2000)}, run="test")
    for _ in range(3):
        newest = write(engine, new, attempt(901 + newest.version), base=newest, run="test")
    return newest, everything


def test_an_independent_fork_unpins_its_origin(engine: Engine, tables: Tables, store: str, versions: Versions) -> None:
    """First the version lists, once its own snapshot replaces them; then the rest, once no bucket is shared."""
    fork(tables, store, 21)
    new = new_of(store)
    newest = write(engine, new, attempt(922), {b"22": b"fork"}, base=versions[21], run="test")
    state = numbers(21) | {b"22": b"fork"}
    snapshot_of(engine, new, newest, state, "test")
    for number in range(23, 40):
        newest = write(engine, new, attempt(900 + number), base=newest, run="test")
    clean_store(engine, tables, new, 2)
    assert pins(tables, store) == {"meta", snapshot_key(store, *versions[20]).sort}
    assert read(engine, new, *newest) == state
    newest, everything = detach(engine, new, newest)
    clean_store(engine, tables, new, 2)
    assert pins(tables, store) == set()
    assert read(engine, new, *newest) == everything
    drop_stores(tables, [store])
    assert read(engine, new, *newest) == everything
    assert verify(tables, new).findings == ()


def test_drop_refuses_while_forks_depend_on_it(engine: Engine, tables: Tables, store: str, versions: Versions) -> None:
    fork(tables, store)
    items = data_items(tables, store)
    with pytest.raises(ConfigurationError, match=f"forks depend on this state: {namespace_of(new_of(store))};"):
        drop_stores(tables, [store])
    with pytest.raises(ConfigurationError, match="forks depend on this state"):
        refuse_forked(tables, [store])
    assert data_items(tables, store) == items
    assert read(engine, store, *versions[35]) == numbers(35)
    drop_stores(tables, [new_of(store)])
    assert pins(tables, store) == set()
    drop_stores(tables, [store])
    assert data_items(tables, store) == 0


def test_pins_of_deleted_forks_are_removed(engine: Engine, tables: Tables, store: str, versions: Versions) -> None:
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


def test_verify_finds_a_lost_pin(tables: Tables, store: str, versions: Versions) -> None:
    """Without the pin, clean-up of the origin may delete what the fork needs."""
    fork(tables, store)
    key = snapshot_key(store, *versions[20])
    remove_from_set(tables, key, FORKS, [graph(tables, new_of(store)).required_meta.pin], {})
    (finding,) = verify(tables, new_of(store)).findings
    assert (finding.what, finding.key) == ("missing", key)


def test_a_pinned_list_stays_whole(engine: Engine, tables: Tables, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynastate.engine.lists.LISTED_MAX", 5)
    versions = write_versions(engine, store, 3)
    for number in range(1, 30):
        write(engine, store, attempt(100 + number), {b"%d" % number: b""}, base=versions[3], run=f"run-{number + 1}")
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
    assert add_to_set(tables, key, FORKS, ["one", "two"]) == item | {FORKS: frozenset(["one", "two"])}
    unpinned = unchanged({"versions": [b"a"]})
    assert not tables.put_over(key, item, unpinned)
    assert not tables.delete_over(key, unpinned)
    assert append_version(tables, key, b"b", "run-1") == [b"a", b"b"]
    appended: Item = item | {"versions": [b"a", b"b"]}
    assert remove_from_set(tables, key, FORKS, ["two", "three"], {}) == appended | {FORKS: frozenset(["one"])}
    for _ in range(2):
        assert remove_from_set(tables, key, FORKS, ["one"], {}) == appended
    assert tables.put_over(key, item, unchanged({"versions": [b"a", b"b"]}))
    assert tables.delete_over(key, unpinned)
    assert remove_from_set(tables, key, FORKS, ["one"], {}) is None
    assert tables.get([key]) == {}


def test_shared_items_count_where_they_lie(engines: Engines, tables: Tables, store: str, versions: Versions) -> None:
    """A fork is as large as its own items, for `stores`, for `cost`, and in the metrics of an executor."""
    fork(tables, store, 32)
    for name in (new_of(store), store):
        items, engine = everything_of(tables, name), engines()
        assert recover(engine, name, *versions[32]) == numbers(32)
        engine.lineage(name)
        summary = inspect_store(tables, name)
        assert summary.items == usage_of_store(tables, name).stored.items == len(items)
        assert engine.known_stores.account(name).stored().items == len(items)
        if name != store:
            assert summary.bytes == engine.known_stores.account(name).stored().bytes == sum(map(item_bytes, items))
    assert (summary.origin, summary.forks) == ("", (new_of(store),))


def test_a_namespace_with_state_is_refused(engine: Engine, tables: Tables, store: str, versions: Versions) -> None:
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


def test_a_fork_of_what_clean_up_deleted(engines: Engines, tables: Tables, store: str) -> None:
    """A task that was late has committed the version once more: it is not the query's."""
    late = begin(engines(), store, attempt(99), {b"by": b"a task"})
    versions = write_with_snapshots(engines(), store, 25, 15)
    engines().maintenance.clean_up(store, "run-1", *versions[25], retain=2, least=1, most=0)
    late.commit({0: 1}, SCHEMA)
    with pytest.raises(VersionMissingError, match=r"clean-up has deleted this version.*16-25"):
        fork(tables, store, 1)


def test_a_fork_of_what_the_query_has_left(engines: Engines, tables: Tables, store: str) -> None:
    """It was taken back, and has not made so many versions again."""
    versions = write_versions(engines(), store, 5)
    write(engines(), store, attempt(30), {b"3": b"again"}, base=versions[2], run="run-2")
    with pytest.raises(VersionMissingError, match=r"or the query was taken back to one before it.*versions=1-3"):
        fork(tables, store, 5)
    assert fork(tables, store).version == 3
    assert read(engines(), new_of(store), 3)[b"3"] == b"again"


def test_a_fork_beside_the_first_batch_of_a_run(engines: Engines, tables: Tables, store: str) -> None:
    """The query was taken back, and has committed its first batch in one partition: a version before is forked."""
    versions, _ = (write_versions(engines(), each, 7) for each in both(store))
    write(engines(), store, attempt(500), {b"5": b"another"}, base=versions[4], run="run-2")
    with pytest.raises(VersionMissingError, match="a new run of the query makes this version again"):
        fork(tables, store, 5)
    assert fork(tables, store).version == 4


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_fork_in_a_query_s_first_batch(engines: Engines, tables: Tables, store: str, partitions: int) -> None:
    """Partition 0 is ahead, and nothing says how many there will be: those of the earlier query may be among them."""
    for each in both(store):
        write_versions(engines(), each, 5)
    start_over(engines(), store, 1)
    with pytest.raises(VersionMissingError, match=r"first batch is not committed in all partitions.*/0/1/default"):
        fork(tables, store)
    assert not find_stores(tables, namespace_of(new_of(store)))
    for each in both(store)[:partitions]:
        start_over(engines(), each, 2)
    assert fork(tables, store).stores == partitions


def test_two_checkpoints_claim_one_fork(engines: Engines, tables: Tables, store: str) -> None:
    """The first one that begins a run there has it, also in partitions that it has not written to."""
    versions, _ = (write_versions(engines(), each, 5) for each in both(store))
    fork(tables, store)
    first, second = (new_of(each) for each in both(store))

    def commit(name: str, run: str, by: int) -> None:
        run_at = query_run(run, f"file:/{run}/state")
        write(engines(), name, attempt(by), {b"6": run.encode()}, base=versions[5], run=run_at)

    commit(first, "x", 100)
    with pytest.raises(ConfigurationError, match="belongs to the query with the checkpoint file:/x/state"):
        commit(second, "y", 200)
    commit(second, "x", 101)
