"""Copies of a namespace in other tables: every item, nothing before it is whole, and refusals."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from dynastate.engine.catalog import every_store, find_stores, of_namespace
from dynastate.engine.checkpoint import CheckpointFiles, first_writers
from dynastate.engine.engine import Engine
from dynastate.engine.namespaces import is_entered, read_record
from dynastate.engine.updates import append_version
from dynastate.errors import (
    ConfigurationError,
    CorruptStateError,
    DynastateError,
    UnavailableError,
    VersionMissingError,
)
from dynastate.format.checkpoint import Checkpoint, file_key
from dynastate.format.items import Item
from dynastate.format.keys import EMPTY, Key, VersionId, meta_key, version_list_key
from dynastate.format.meta import DROPPED, FORKS, MARKED, OBJECTS
from dynastate.format.namespace import namespace_key, store_item
from dynastate.format.version_list import REFUSED, VERSIONS, encode_entry
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.drop import drop_checkpoints, drop_stores
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.operations.regions import copy as copying
from dynastate.operations.regions.copy import Copied, PagedTables, copy_stores, plan_copy
from dynastate.settings import SNAPSHOT_TABLE, Settings
from dynastate.storage.tables import Tables
from tests.support import samples
from tests.support.contents import entry, named_objects
from tests.support.crashes import crashes, error_of, races
from tests.support.engine_driver import Engines, closing, make_engine, read, save_snapshot, write, write_versions
from tests.support.faults import Dying, FailingObjects, FailingTables, Overtaken
from tests.support.forks import fork, new_of, write_with_snapshots
from tests.support.limits import set_limits
from tests.support.memory_tables import MemoryTables, without_list
from tests.support.samples import CHECKPOINT, SCHEMA, State, attempt, chunk, numbers, query_run
from tests.support.store_builder import StoreBuilder

SETTINGS = Settings()
NAMESPACE = "orders"
STORES = [f"{NAMESPACE}/0/{partition}/default" for partition in range(2)]
END = VersionId(12, attempt(12))
S3_URL = "s3://objects/here"
LATER = f"{S3_URL}/later"
ELSEWHERE = "s3://others/there"


@pytest.fixture
def source() -> MemoryTables:
    """Tables with two stores, which have versions in two groups and a snapshot."""
    tables = MemoryTables()
    with contextlib.closing(make_engine(tables)) as engine:
        for store in STORES:
            write_with_snapshots(engine, store, 12, 7)
    return tables


@pytest.fixture
def target() -> MemoryTables:
    return MemoryTables()


@pytest.fixture
def make(source: MemoryTables) -> Iterator[Engines]:
    yield from closing(source)


def copy(source: PagedTables, target: PagedTables, objects: str = "") -> Copied:
    plan = plan_copy(source, target, NAMESPACE, SETTINGS, objects=objects)
    return copy_stores(source, target, plan, SETTINGS)


def test_copy_has_every_item(source: MemoryTables, target: MemoryTables) -> None:
    plan = plan_copy(source, target, NAMESPACE, SETTINGS)
    assert not target.items
    report = copy_stores(source, target, plan, SETTINGS)
    assert target.items == source.items
    items = len(without_list(source.items))
    assert (report.stores, report.items, report.written) == (2, items, items)
    assert plan.items <= report.items
    assert 0.5 * report.write_units < plan.write_units < 2 * report.write_units
    for store in STORES:
        assert verify(target, store).findings == ()
    with contextlib.closing(Engine(target, SETTINGS)) as engine:
        assert read(engine, STORES[1], 12) == numbers(12)


def test_copy_again_writes_nothing(source: MemoryTables, target: MemoryTables) -> None:
    copy(source, target)
    assert copy(source, target).written == 0
    parts = [key for key in target.items if key.role == "delta"]
    del target.items[parts[0]]
    target.items[parts[1]] = target.items[parts[1]] | {"data": b"changed"}
    strange = Key("delta", parts[2].store_shard, "strange")
    target.items[strange] = dict(target.items[parts[2]])
    assert copy(source, target).written == 2
    assert target.items == source.items


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
def test_copy_that_dies_is_completed(source: MemoryTables, target: MemoryTables, *, applied: bool) -> None:
    """Until it is whole the target has no store that is found; the same call completes it."""
    for _ in crashes(lambda on: copy(source, on), target, applied=applied, is_reset=False, least=10):
        if target.items != source.items:
            with pytest.raises(ConfigurationError, match=r"no store of this namespace|a copy of this namespace"):
                of_namespace(target, NAMESPACE)
    assert target.items == source.items


CLICKS = Checkpoint(NAMESPACE, "clicks")
FILES = {"metadata": b"{}", "offsets/0": b"v1", "commits/0": b"v1", "sources/0/9.compact": samples.noise(300)}


def put_files(tables: Tables, files: Mapping[str, bytes], checkpoint: Checkpoint = CLICKS) -> None:
    """Put files of a checkpoint, as a driver does."""
    for file, data in files.items():
        assert CheckpointFiles(tables, set()).put(checkpoint, file, data, overwrites=False)


@pytest.fixture
def with_files(source: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> MemoryTables:
    """A source with files of a checkpoint, one of them with fragments."""
    set_limits(monkeypatch, fragment_bytes_max=100)
    put_files(source, FILES)
    return source


def test_copy_has_checkpoint_files(with_files: MemoryTables, target: MemoryTables) -> None:
    """They are equal at both ends, and counted; a copy of a copy writes nothing."""
    plan = plan_copy(with_files, target, NAMESPACE, SETTINGS)
    report = copy_stores(with_files, target, plan, SETTINGS)
    assert (plan.checkpoint_files, report.checkpoint_files) == (4, 4)
    assert target.items == with_files.items
    files = CheckpointFiles(target, set())
    assert {file: copied and copied.data for file in FILES if (copied := files.get(CLICKS, file)) or True} == FILES
    assert copy(with_files, target).written == 0


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
def test_copy_of_files_that_dies_is_completed(with_files: MemoryTables, target: MemoryTables, *, applied: bool) -> None:
    """The same call completes it, also where files were purged and written at the source since."""
    for number in crashes(lambda on: copy(with_files, on), target, applied=applied, is_reset=False, least=10):
        files = CheckpointFiles(with_files, set())
        files.delete(CLICKS, ["offsets/0", f"offsets/{number}"])
        assert files.put(CLICKS, f"offsets/{number + 1}", samples.noise(150, f"{number}"), overwrites=False)
        assert files.put(CLICKS, "metadata", b"%d" % number, overwrites=True)
    copy(with_files, target)
    assert target.items == with_files.items


def test_checkpoint_files_in_objects(
    source: MemoryTables, target: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are copied to the target's location, which the heads name there; a copy that dies is completed."""
    set_limits(monkeypatch, fragment_bytes_max=100, object_bytes=110)
    monkeypatch.setattr(FailingTables, "objects", property(FailingObjects))
    here, there = (f"{objects}/{SNAPSHOT_TABLE}" for objects in (S3_URL, ELSEWHERE))
    files = CheckpointFiles(source, set(), location=here)
    for file, data in FILES.items():
        assert files.put(CLICKS, file, data, overwrites=False)
    for objects in ("", S3_URL):
        with pytest.raises(ConfigurationError, match=r"parts of this namespace are in S3.*checkpoint=orders/clicks"):
            copy(source, target, objects=objects)
    plan = plan_copy(source, target, NAMESPACE, SETTINGS, objects=ELSEWHERE)
    assert (plan.objects, plan.object_bytes) == (3, 300)
    for number in crashes(lambda on: copy(source, on, objects=ELSEWHERE), target, applied=True, is_reset=False):
        files.delete(CLICKS, ["sources/0/9.compact", f"sources/0/{number}.compact"])
        data = samples.noise(300, f"{number}")
        assert files.put(CLICKS, f"sources/0/{number + 1}.compact", data, overwrites=False)
    assert copy(source, target, objects=ELSEWHERE).written == 0
    assert [len(each) for each in target.objects.objects.values()] == [110, 110, 80]
    copied = CheckpointFiles(target, set())
    assert {head.objects for head in copied.heads(CLICKS).values()} == {"", there}
    assert copied.get(CLICKS, f"sources/0/{number + 1}.compact") == files.get(CLICKS, f"sources/0/{number + 1}.compact")
    drop_checkpoints(target, first_writers(target, NAMESPACE))
    assert target.objects.objects == {}
    assert len(source.objects.objects) == 3


def test_other_files_in_the_target_are_refused(with_files: MemoryTables, target: MemoryTables) -> None:
    """A target with checkpoint files of another query, without state, is left as it is."""
    put_files(target, {"offsets/0": b"other"}, Checkpoint(NAMESPACE, "other"))
    items = dict(target.items)
    with pytest.raises(ConfigurationError, match=r"the target has other state .*checkpoint=orders/other"):
        plan_copy(with_files, target, NAMESPACE, SETTINGS)
    assert target.items == items


def test_files_that_are_written_meanwhile_are_noticed(with_files: MemoryTables, target: MemoryTables) -> None:
    """A driver that still runs at the source, and one that begins in the target while files are copied."""
    plan = plan_copy(with_files, target, NAMESPACE, SETTINGS)
    running = Overtaken(target, lambda: put_files(with_files, {"offsets/1": b"v1"}), before="write")
    with pytest.raises(ConfigurationError, match="wrote to this namespace while it was copied"):
        copy_stores(with_files, running, plan, SETTINGS)

    class Begun(FailingTables):
        def put_new(self, key: Key, item: Item) -> bool:
            if key == file_key(CLICKS, "metadata"):
                put_files(target, {"metadata": b"other"})
            is_new: bool = self._call("put_new", key, item)
            return is_new

    target.items = {}
    with pytest.raises(CorruptStateError, match="differs from the source"):
        copy(with_files, Begun(target))


def test_pins_of_forks_stay(source: MemoryTables, target: MemoryTables) -> None:
    """Forks are of the source; a fork itself is refused, as its rows are those of its origin."""
    fork_namespace(source, NAMESPACE, "fork", None)
    assert any(FORKS in item for item in source.items.values())
    copy(source, target)
    assert target.items == {
        key: {name: value for name, value in item.items() if name != FORKS}
        for key, item in source.items.items()
        if not key.store_shard.startswith("fork/")
    }
    with pytest.raises(ConfigurationError, match="this store is a fork"):
        plan_copy(source, target, "fork", SETTINGS)


def change(tables: MemoryTables, also: Item) -> None:
    tables.items[meta_key(STORES[0])] |= also


def drop_both(source: Tables) -> None:
    drop_stores(source, list(find_stores(source, NAMESPACE)))


UNFIT: dict[str, tuple[Callable[[MemoryTables, MemoryTables], object], str]] = {
    "dropped": (lambda source, _: change(source, {DROPPED: MARKED}), "is being dropped"),
    "in S3": (
        lambda source, _: change(source, {OBJECTS: frozenset(["s3://b/p"])}),
        "give the copy another location there: --to-objects s3://bucket/prefix",
    ),
    "gone": (lambda source, _: drop_both(source), "no store of this namespace"),
    "other state": (
        lambda source, target: target.items.update(
            [(meta_key(STORES[0]), source.items[meta_key(STORES[0])] | {"epoch": 9}), store_item(STORES[0])]
        ),
        "the target has other state of this namespace",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_is_unfit_is_refused(name: str, source: MemoryTables, target: MemoryTables) -> None:
    spoil, says = UNFIT[name]
    spoil(source, target)
    items_before = dict(target.items)
    with pytest.raises(ConfigurationError, match=says):
        copy(source, target)
    assert target.items == items_before


def test_query_that_writes_meanwhile_is_noticed(
    source: MemoryTables, target: MemoryTables, make: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the copy is found, and the next one, after the query has stopped, is whole."""
    engine, once = make(), [True]
    original = copying._Store.copy

    def copy_and_go_on(self: copying._Store) -> int:
        count = original(self)
        if once:
            once.clear()
            write_versions(engine, STORES[0], 1)
        return count

    monkeypatch.setattr(copying._Store, "copy", copy_and_go_on)
    with pytest.raises(ConfigurationError, match="a query or clean-up wrote to this namespace"):
        copy(source, target)
    assert not find_stores(target, NAMESPACE)
    copy(source, target)
    assert target.items == source.items


def test_changed_target_is_noticed(source: MemoryTables, target: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    original = copying._Store.compare

    def spoiled(self: copying._Store) -> copying.Content:
        part = next(key for key in target.items if key.role == "delta")
        target.items[part] = target.items[part] | {"data": b"changed"}
        return original(self)

    monkeypatch.setattr(copying._Store, "compare", spoiled)
    with pytest.raises(CorruptStateError, match="an item of the copy differs from the source"):
        copy(source, target)
    assert not find_stores(target, NAMESPACE)


class Beginning:
    """A query that begins in the target, in one partition more than is copied."""

    def __init__(self, engine: Engine, location: str) -> None:
        self.engine, self.run = engine, query_run("theirs", location, "their query")
        self.stores = [STORES[0].replace("/0/0/", "/0/2/"), *STORES]

    def begin(self) -> None:
        self.commit(1)
        self.commit(2)

    def commit(self, version: int) -> None:
        base = VersionId(version - 1, attempt(900 + version - 1)) if version > 1 else EMPTY
        for store in self.stores:
            row = {b"theirs": b"%d" % version}
            write(self.engine, store, attempt(900 + version), row, base=base, run=self.run)


@pytest.mark.parametrize("location", ["file:/elsewhere/state", CHECKPOINT])
def test_query_begins_at_any_request(location: str, source: MemoryTables, make: Engines) -> None:
    """It is refused and the copy is whole; or the copy is refused, and the query has its state and continues."""
    target, queries, refused = MemoryTables(), [], 0

    def begin() -> None:
        queries.append(Beginning(make(target), location))
        queries[-1].begin()

    for failed, error in races(target, lambda tables: copy(source, tables), begin):
        if failed:
            assert "a query has begun there" in str(failed)
            assert error is None
            queries[-1].commit(3)
            for store in queries[-1].stores:
                assert read(queries[-1].engine, store, 3) == {b"theirs": b"3"}
        else:
            assert target.items == source.items
            assert error
            refused += 1
    assert refused > 5 < len(queries) - refused


def test_query_restarts_at_any_request(source: MemoryTables, make: Engines) -> None:
    """A copy that is made again beside it loses none of its versions, or the query is refused."""
    target, base, row = MemoryTables(), END, {b"row": b"theirs"}
    write_versions(make(), STORES[1], 1, base)
    copy(source, target)
    write_versions(make(), STORES[0], 1, base)
    engines: list[Engine] = []

    def restart() -> None:
        engines.append(make(target))
        for store in STORES:
            write(engines[-1], store, attempt(90), row, base=base, run="run-2")

    for failed, _ in races(target, lambda tables: copy(source, tables), restart):
        if failed is None:
            assert target.items == source.items
        else:
            assert isinstance(failed, (ConfigurationError, CorruptStateError))
            with suppress(DynastateError):
                for store in STORES:  # again: it was refused, or it has what it wrote
                    write(engines[-1], store, attempt(90), row, base=base, run="run-2")
                for store in STORES:
                    assert read(engines[-1], store, 13, attempt(90)) == numbers(12) | row
    assert len(engines) > 10


def test_dropped_query_stays_out(source: MemoryTables, target: MemoryTables, make: Engines) -> None:
    """Its tasks that were suspended are refused, and a commit that nothing refuses loses by its epoch."""
    old = make(target)
    for run in ("q-1", "q-2"):
        old.commits.sessions.enter(target, STORES[0], query_run(run), 0)
    late = [old.begin(STORES[0], query_run("q-3"), 0, EMPTY.attempt, attempt(number)) for number in (99, 98)]
    for each in late:
        each.append(chunk({b"late": b"row"}))
        each.flush()
    write(old, STORES[0], attempt(97), {b"late": b"row"}, run="q-3")
    drop_stores(target, STORES[:1])
    copy(source, target)
    assert target.items[version_list_key(STORES[0], 1)][REFUSED] == frozenset(["q-1", "q-2", "q-3"])
    with pytest.raises(ConfigurationError, match="may not commit any more"):
        late[0].commit({0: 1}, SCHEMA)
    assert copy(source, target).written == 0
    first = entry(source, STORES[0], 10)
    orphan = encode_entry(STORES[0], replace(first, epoch=3, attempt=attempt(96), parent=attempt(95)))
    append_version(target, version_list_key(STORES[0], 10), orphan, "q-0")
    with contextlib.closing(Engine(target, SETTINGS)) as engine:
        assert all(read(engine, store, version) == numbers(version) for store in STORES for version in (1, 10, 12))
        write(engine, STORES[0], attempt(13), {b"13": b"13"}, base=END, run="run-2")
        assert read(engine, STORES[0], 13) == numbers(13)
    assert entry(target, STORES[0], 13).epoch == 5
    assert verify(target, STORES[1]).findings == ()


@pytest.mark.parametrize("verb", ["put_new", "put_over", "delete_over"])
def test_late_commit_is_noticed(verb: str, source: MemoryTables, target: MemoryTables) -> None:
    """A version list that changes after it was read is not written over; the next copy repairs it."""
    first = entry(source, STORES[0], 1)
    raws = [encode_entry(STORES[0], replace(first, attempt=attempt(number))) for number in (98, 99)]
    group = version_list_key(STORES[0], 1)
    if verb != "put_new":
        append_version(target, group, raws.pop(0), "late")
    if verb == "delete_over":
        del source.items[group]
    late = Overtaken(target, lambda: append_version(target, group, raws[0], "late"), verb)

    class Late(FailingTables):
        def _call(self, called: str, *arguments: Any) -> Any:
            return getattr(late if called == verb and arguments[0] == group else target, called)(*arguments)

    with pytest.raises(CorruptStateError, match="something else writes to the target"):
        copy(source, Late(target))
    listed = target.items[group]["versions"]
    assert isinstance(listed, list)
    assert listed[-1] == raws[0]
    copy(source, target)
    assert target.items == source.items


def test_drops_at_the_source_stay(source: MemoryTables, target: MemoryTables, make: Engines) -> None:
    """A copy of a store that was made after a drop is found as it is by the next copy."""
    drop_both(source)
    for store in STORES:
        write_versions(make(), store, 3, run="run-2")
    assert copy(source, target).written > 0
    assert copy(source, target).written == 0
    with contextlib.closing(Engine(target, SETTINGS)) as engine:
        assert read(engine, STORES[0], 3) == numbers(3)
    assert entry(target, STORES[0], 3).epoch == 2


def test_query_that_has_entered(source: MemoryTables, target: MemoryTables, make: Engines) -> None:
    """A query without a store yet is beginning: nothing is copied."""
    plan = plan_copy(source, target, NAMESPACE, SETTINGS)
    query = Beginning(make(target), CHECKPOINT)
    query.commit(1)
    target.items = {key: item for key, item in target.items.items() if key.store_shard.endswith("/#")}
    items_before = without_list(target.items)
    with pytest.raises(ConfigurationError, match="a query has begun there"):
        copy_stores(source, target, plan, SETTINGS)
    assert without_list(target.items) == items_before


def test_target_without_a_record(source: MemoryTables, target: MemoryTables, make: Engines) -> None:
    """They are left alone, and no mark keeps their query from entering again."""
    plan = plan_copy(source, target, NAMESPACE, SETTINGS)
    Beginning(make(target), CHECKPOINT).commit(1)
    del target.items[namespace_key(NAMESPACE)]
    items_before = dict(target.items)
    with pytest.raises(ConfigurationError, match="the target has other state"):
        copy_stores(source, target, plan, SETTINGS)
    assert target.items == items_before


def test_source_without_a_record_gives_one(source: MemoryTables, target: MemoryTables) -> None:
    del source.items[namespace_key(NAMESPACE)]
    copy(source, target)
    assert copy(source, target).written == 0
    record = read_record(target, NAMESPACE)
    assert record is not None
    assert (record.epochs, record.query, record.location) == ({"run-1": 1}, query_run().query, CHECKPOINT)
    assert not record.is_copied


def test_store_that_is_made_late_is_left_alone(source: MemoryTables, target: MemoryTables) -> None:
    """A task of a dropped query that makes its store at the end of the copy makes the copy fail."""
    key = meta_key(STORES[0])
    theirs = source.items[key] | {"epochs": {"theirs": 1}}

    class Late(FailingTables):
        def _call(self, called: str, *arguments: Any) -> Any:
            if called == "put_new" and arguments[0] == key:
                target.items[key] = theirs
            return super()._call(called, *arguments)

    with pytest.raises(ConfigurationError, match="the target has other state"):
        copy(source, Late(target))
    assert target.items[key] == theirs


def test_forks_in_the_target_stay(source: MemoryTables, target: MemoryTables, make: Engines) -> None:
    """It must be dropped before the copy is made again; what a fork that is gone has pinned is free."""
    copy(source, target)
    fork_namespace(target, NAMESPACE, "test", 5)
    write_versions(make(), STORES[0], 1, END)
    items_before = dict(target.items)
    with pytest.raises(ConfigurationError, match="forks depend on this state: test; drop them first"):
        copy(source, target)
    assert target.items == items_before
    for each in find_stores(target, "test"):
        del target.items[meta_key(each)]
    copy(source, target)
    assert source.items.items() <= target.items.items()


def test_fork_begins_at_any_request(source: MemoryTables, make: Engines) -> None:
    """While the copy is made again: the fork has its rows, or it is refused."""
    target = MemoryTables()
    copy(source, target)
    write_versions(make(), STORES[0], 1, END)
    outcomes = set()
    for failed, error in races(target, lambda tables: copy(source, tables), lambda: fork(target, STORES[0], 5)):
        outcomes.add((error is None, failed is None))
        assert failed is None or isinstance(failed, ConfigurationError)
        if error is None:
            assert all(read(make(target), new_of(store), 5) == numbers(5) for store in STORES)
    assert outcomes == {(True, False), (False, True)}


def test_copy_that_was_cut_off_anywhere_can_be_dropped(source: MemoryTables, make: Engines) -> None:
    """Until then no query begins in its place; afterwards one does."""
    target, namespace = MemoryTables(), NAMESPACE
    for _ in crashes(lambda on: copy(source, on), target, least=10):
        query = Beginning(make(target), "file:/elsewhere/state")
        if error_of(query.begin):
            write_versions(make(target), "other/0/0/default", 1)
            with pytest.raises(ConfigurationError, match="a copy of this namespace to these tables runs"):
                fork_namespace(target, "other", namespace, None)
            drop_stores(target, every_store(target, namespace))
            query.begin()
        assert all(read(query.engine, store, 2) == {b"theirs": b"2"} for store in query.stores)


def test_fences_stay_after_a_drop(source: MemoryTables, target: MemoryTables, make: Engines) -> None:
    """Those of the query that was there before the copy, and its newest epoch."""
    write(make(target), STORES[0], attempt(97), {b"late": b"row"}, run="q-1")
    drop_stores(target, STORES[:1])
    fence = target.items[version_list_key(STORES[0], 1)]
    with suppress(UnavailableError):
        copy(source, Dying(target, 25))
    assert VERSIONS in target.items[version_list_key(STORES[0], 1)]
    drop_stores(target, every_store(target, NAMESPACE))
    assert target.items[version_list_key(STORES[0], 1)] == fence


def test_copy_that_another_one_overtakes_at_any_request(source: MemoryTables, make: Engines) -> None:
    """It is over, and deletes nothing of a query that begins when the other one is complete."""
    target, errors = MemoryTables(), []

    def overtake() -> None:
        copy(source, target)
        for store in STORES:
            write(make(target), store, attempt(13), noise(1), base=END, run="run-2")

    for failed, error in races(target, lambda tables: copy(source, tables), overtake):
        assert isinstance(failed, (ConfigurationError, CorruptStateError))
        assert error is None
        assert all(read(make(target), store, 13) == numbers(12) | noise(1) for store in STORES)
        errors.append(str(failed))
    assert any(text.startswith("another copy of this namespace") for text in errors)
    assert len(errors) > 10


@pytest.mark.parametrize("has_store", [True, False])
def test_store_made_meanwhile(source: MemoryTables, target: MemoryTables, make: Engines, *, has_store: bool) -> None:
    """The first batch of a query, or of an operator, is not copied in part; nor is a query that has just begun."""
    other = STORES[0].replace("/0/0/", "/1/0/")

    def begin() -> None:
        if has_store:
            write_versions(make(), other, 1)
        else:
            assert is_entered(source, other, None, query_run("run-2"))

    late = Overtaken(target, begin, "write")
    with pytest.raises(ConfigurationError, match="a query or clean-up wrote to this namespace"):
        copy(source, late)
    assert not find_stores(target, NAMESPACE)
    copy(source, target)
    assert target.items == source.items


@pytest.mark.parametrize("more", ["/0/3/default", "/1/1/default", "/0/0/left-keyToNumValues"])
def test_first_batch_in_part_is_refused(more: str, source: MemoryTables, target: MemoryTables, make: Engines) -> None:
    """Partitions of an operator are missing, or stores of one."""
    write_versions(make(), NAMESPACE + more, 1)
    with pytest.raises(VersionMissingError, match="not committed in all partitions of this operator yet"):
        copy(source, target)
    assert not target.items


def test_first_batch_of_another(source: MemoryTables, target: MemoryTables, make: Engines) -> None:
    """Partition 0 is ahead; from the second batch on, the others are known to be the earlier query's."""
    builder = StoreBuilder(make(), STORES[0], run="run-2", query="other")
    builder.commit(by=attempt(100))
    with pytest.raises(VersionMissingError, match="not committed in all partitions of this operator yet"):
        copy(source, target)
    assert not target.items
    builder.commit(by=attempt(101))
    assert copy(source, target).stores == 1


def noise(last: int) -> State:
    """Make rows that do not compress, and are too long for a version entry."""
    return {b"%d" % number: random.Random(number).randbytes(3_000) for number in range(1, last + 1)}  # noqa: S311


@pytest.fixture
def blocks() -> MemoryTables:
    """Tables with a store of 12 versions whose parts and buckets are in objects of two locations, and in items."""
    tables, base = MemoryTables(), EMPTY
    for last, objects in ((4, S3_URL), (8, ""), (12, LATER)):
        with contextlib.closing(make_engine(tables, objects=objects, objects_threshold_kb=0)) as engine:
            for number in range(last - 3, last + 1):
                row = {b"%d" % number: noise(number)[b"%d" % number]}
                base = write(engine, STORES[0], attempt(number), row, base=base, run=f"run-{last}")
            if objects:
                save_snapshot(engine, STORES[0], base, noise(last), run=f"run-{last}")
    return tables


def test_objects_are_in_the_other_location(blocks: MemoryTables, target: MemoryTables) -> None:
    report = copy(blocks, target, objects=ELSEWHERE)
    assert target.objects.objects == {
        place._replace(location=f"{ELSEWHERE}/{SNAPSHOT_TABLE}"): data for place, data in blocks.objects.objects.items()
    }
    assert len(target.objects.objects) == report.objects > 4
    assert report.object_bytes == sum(map(len, target.objects.objects.values()))
    assert {place.location for place in blocks.objects.objects} == {
        f"{objects}/{SNAPSHOT_TABLE}" for objects in (S3_URL, LATER)
    }
    assert named_objects(target, STORES[0]) == set(target.objects.objects)
    assert verify(target, STORES[0]).findings == ()
    with contextlib.closing(Engine(target, SETTINGS)) as engine:
        assert all(read(engine, STORES[0], version) == noise(version) for version in (1, 5, 12))


def test_copy_of_objects_that_dies_is_completed(blocks: MemoryTables, target: MemoryTables) -> None:
    for _ in crashes(lambda on: copy(blocks, on, objects=ELSEWHERE), target, applied=True, is_reset=False, least=10):
        pass
    whole = dict(target.objects.objects)
    assert copy(blocks, target, objects=ELSEWHERE).written == 0
    first, second, *_ = sorted(whole)
    del target.objects.objects[first]
    target.objects.objects[second] = b"changed"
    target.objects.objects[first._replace(name=f"{first.name}-strange")] = b"strange"
    with pytest.raises(AssertionError, match="an object that changes"):  # the double refuses it; S3 replaces it
        copy(blocks, target, objects=ELSEWHERE)
    del target.objects.objects[second]
    assert copy(blocks, target, objects=ELSEWHERE).written > 0
    assert target.objects.objects == whole


def test_objects_need_another_location(blocks: MemoryTables, target: MemoryTables) -> None:
    for objects in ("", S3_URL, LATER):
        with pytest.raises(ConfigurationError, match="give the copy another location there"):
            copy(blocks, target, objects=objects)
    assert not target.items


def test_changed_object_is_noticed(blocks: MemoryTables, target: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    original = copying._Store.compare

    def spoiled(self: copying._Store) -> copying.Content:
        target.objects.objects[next(iter(target.objects.objects))] = b"changed"
        return original(self)

    monkeypatch.setattr(copying._Store, "compare", spoiled)
    with pytest.raises(CorruptStateError, match="an object of the copy differs from the source"):
        copy(blocks, target, objects=ELSEWHERE)
    assert not find_stores(target, NAMESPACE)
