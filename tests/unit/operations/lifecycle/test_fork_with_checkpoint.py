"""Forks of a query whose checkpoint is in DynamoDB: its files fit the version, whatever the query does meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dynastate.engine.catalog import find_stores
from dynastate.engine.checkpoint import CheckpointFiles, checkpoint_items, first_writers
from dynastate.errors import ConfigurationError, DynastateError, UnavailableError, VersionMissingError
from dynastate.format.checkpoint import Checkpoint
from dynastate.format.keys import NO_ATTEMPT, version_list_key
from dynastate.operations.checkpoints import StoredCheckpoint, checkpoint_at, open_checkpoint
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle import fork as forking
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.lifecycle.drop import drop_checkpoints, drop_stores
from dynastate.operations.lifecycle.fork import Forked, fork_namespace
from dynastate.operations.lifecycle.fork_checkpoint import load_checkpoint
from dynastate.operations.lifecycle.move import move, plan_move
from dynastate.operations.lifecycle.rollback import plan_rollback, roll_back
from dynastate.storage.tables import Tables
from tests.support.engine_driver import make_engine, write
from tests.support.faults import Dying, FailingTables
from tests.support.limits import set_limits
from tests.support.memory_tables import MemoryTables
from tests.support.samples import attempt, noise, query_run
from tests.support.store_builder import StoreBuilder
from tests.unit.operations.lifecycle.test_move import DESCRIPTION, SCHEMA, description
from tests.unit.operations.lifecycle.test_rollback import BATCHES, NAMESPACE, STORES
from tests.unit.operations.lifecycle.test_rollback_in_dynamodb import CHECKPOINT, LOCATION, batches, tables_with

NEW = Checkpoint("test", CHECKPOINT.name)
NEW_LOCATION = f"dynastate://{NEW}"
#: The description of the operator from the last batch on.
LATER = "state/0/_metadata/v2/5"
OFFSETS = 'v1\n{"batchTimestampMs":1}\n{}'


@pytest.fixture(params=[False, True], ids=["v1", "v2"])
def tables(tmp_path: Path, request: pytest.FixtureRequest) -> MemoryTables:
    """A query that has begun a batch after the last one that it has committed, and has logged data for the next."""
    memory = tables_with(tmp_path, with_ids=request.param)
    put_text(memory, "offsets/6", OFFSETS)
    put(memory, "sources/0/7", "before-rollback-20260101T000000Z/offsets/3", SCHEMA)
    put_text(memory, DESCRIPTION, description(LOCATION))
    put(memory, LATER)
    return memory


def put(tables: Tables, *files: str, checkpoint: Checkpoint = CHECKPOINT) -> None:
    for file in files:
        put_text(tables, file, "v1\n{}", checkpoint)


def put_text(tables: Tables, file: str, text: str, checkpoint: Checkpoint = CHECKPOINT) -> None:
    assert CheckpointFiles(tables, set()).put(checkpoint, file, text.encode(), overwrites=False)


def contents(tables: Tables, location: str) -> dict[str, bytes | None]:
    checkpoint = StoredCheckpoint(tables, location)
    return {file: checkpoint.find(file) for file in checkpoint.files()}


def expected(tables: Tables, last: int) -> dict[str, bytes | None]:
    """The files of the query's checkpoint when a batch was committed, with its sources' logs."""
    files = {
        file: data
        for file, data in contents(tables, LOCATION).items()
        if not file.startswith(("before-", "offsets/", "commits/")) and (last == BATCHES - 1 or file != LATER)
    }
    for batch in range(last + 1):
        files |= {file: contents(tables, LOCATION)[file] for file in (f"offsets/{batch}", f"commits/{batch}")}
    return files | {DESCRIPTION: description(NEW_LOCATION).encode()}


def fork(tables: Tables, version: int | None = None) -> Forked:
    return fork_namespace(tables, NAMESPACE, NEW.namespace, version)


def resume(tables: Tables, last: int) -> None:
    """Begin as Spark does: each partition opens the version of the last committed batch, and makes the next."""
    with closing(make_engine(tables)) as engine:
        for store in STORES:
            name = store.replace(NAMESPACE, NEW.namespace)
            run = query_run("test", f"{NEW_LOCATION}/state")
            base = engine.open(name, last + 1, NO_ATTEMPT, run=run).entries[-1].id
            write(engine, name, attempt(50 + last), base=base, run=run)


def begin(tables: MemoryTables) -> None:
    """Begin a fork that is cut off when it has made its first store."""
    items = dict(tables.items)
    for left in range(1_000):
        tables.items.clear()
        tables.items.update(items)
        with pytest.raises(DynastateError):
            fork(Dying(tables, left, applied=True))
        if find_stores(tables, NEW.namespace):
            return


def test_the_last_committed_batch(tables: MemoryTables) -> None:
    """Not the newest version: its batch may be under way. The next run of the fork makes the next batch."""
    with closing(make_engine(tables)) as engine:
        for store in STORES:
            StoreBuilder(engine, store, location=f"{LOCATION}/state").take_back(BATCHES, "run-1").commit()
    old = contents(tables, LOCATION)
    forked = fork(tables)
    assert (forked.version, forked.stores, forked.checkpoint) == (BATCHES, 2, NEW_LOCATION)
    assert contents(tables, NEW_LOCATION) == expected(tables, BATCHES - 1)
    assert contents(tables, LOCATION) == old
    assert checkpoint_at(tables, NEW_LOCATION).partitions() == {"0": {0, 1}}
    resume(tables, BATCHES - 1)
    with pytest.raises(ConfigurationError, match="has state already"):
        fork(tables)


def test_an_earlier_version(tables: MemoryTables) -> None:
    """Offsets, commits and descriptions of later batches are left out."""
    assert fork(tables, 4).version == 4
    assert contents(tables, NEW_LOCATION) == expected(tables, 3)
    resume(tables, 3)


@pytest.mark.parametrize("version", [7, 8, 100])
def test_a_version_without_a_committed_batch(tables: MemoryTables, version: int) -> None:
    items = dict(tables.items)
    with pytest.raises(ConfigurationError, match="fork a version from 1 to 6 "):
        fork(tables, version)
    assert tables.items == items


def test_batches_that_were_deleted(tables: MemoryTables) -> None:
    """Spark resumes with the offsets of the batch before, too."""
    files = CheckpointFiles(tables, set())
    files.delete(CHECKPOINT, ["offsets/0", "offsets/1", "commits/0"])
    with pytest.raises(ConfigurationError, match="fork a version from 4 to 6 "):
        fork(tables, 3)
    files.delete(CHECKPOINT, ["commits"])
    with pytest.raises(ConfigurationError, match="no committed batch to resume after yet"):
        fork(tables)


@pytest.mark.parametrize("applied", [False, True])
def test_a_crash_at_any_request(tables: MemoryTables, *, applied: bool) -> None:
    """The checkpoint is whole before the stores have the version; the same call completes the fork."""
    items, files, crashes = dict(tables.items), expected(tables, 3), 0
    for left in range(1_000):
        tables.items.clear()
        tables.items.update(items)
        try:
            fork(Dying(tables, left, applied=applied), 4)
        except DynastateError:
            crashes += 1
            stored = version_list_key(STORES[0].replace(NAMESPACE, NEW.namespace), 4)
            assert stored not in tables.items or contents(tables, NEW_LOCATION) == files
            if not any(stored == key for key in tables.items):
                assert fork(tables, 4).checkpoint == NEW_LOCATION
                assert contents(tables, NEW_LOCATION) == files
                resume(tables, 3)
        else:
            break
    assert crashes > 2 * len(files)


def take_back(tables: Tables, to: int) -> None:
    checkpoint = open_checkpoint(tables, LOCATION)
    roll_back(checkpoint, plan_rollback(tables, checkpoint, to))


def make_again(tables: Tables, batch: int) -> None:
    """Let a run that was taken back make a batch again."""
    with closing(make_engine(tables)) as engine:
        for store in STORES:
            StoreBuilder(engine, store, location=f"{LOCATION}/state").take_back(batch).count(700 + batch)
    put_text(tables, f"offsets/{batch}", OFFSETS)
    put_text(tables, f"commits/{batch}", "v1\n{}")


def test_a_query_that_goes_on_meanwhile(tables: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    files, plan = expected(tables, BATCHES - 1), forking._plan

    def going_on(*arguments: Any, **options: Any) -> object:
        put(tables, "commits/6", "offsets/7", "sources/0/8")
        return plan(*arguments, **options)

    monkeypatch.setattr(forking, "_plan", going_on)
    assert fork(tables).version == BATCHES
    assert contents(tables, NEW_LOCATION) == files


@pytest.mark.parametrize("step", ["_plan", "copy_checkpoint", "refuse_taken_back"])
@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_query_that_is_taken_back_meanwhile(
    tables: MemoryTables, monkeypatch: pytest.MonkeyPatch, step: str, *, is_made_again: bool
) -> None:
    """The state may be that of another batch than the files. Nothing is forked, and another fork takes the new one."""
    call: Callable[..., object] = getattr(forking, step)

    def late(*arguments: Any, **options: Any) -> object:
        take_back(tables, 4)
        if is_made_again:
            make_again(tables, 5)
        return call(*arguments, **options)

    monkeypatch.setattr(forking, step, late)
    with pytest.raises((UnavailableError, VersionMissingError), match=r"was taken back|does not have"):
        fork(tables)
    monkeypatch.undo()
    drop_checkpoints(tables, first_writers(tables, NEW.namespace))
    assert fork(tables).version == (6 if is_made_again else 5)


def test_a_fork_that_is_resumed_after_the_query_was_taken_back(tables: MemoryTables) -> None:
    """It is of the batch as it was: the plan has the runs until then, and the files are there already."""
    old = contents(tables, LOCATION)
    begin(tables)
    assert contents(tables, NEW_LOCATION)["offsets/5"] == old["offsets/5"]
    take_back(tables, 4)
    make_again(tables, 5)
    assert fork(tables).version == BATCHES
    assert contents(tables, NEW_LOCATION)["offsets/5"] == old["offsets/5"]
    with closing(make_engine(tables)) as engine:
        for store in STORES:
            name = store.replace(NAMESPACE, NEW.namespace)
            assert engine.open(name, BATCHES, NO_ATTEMPT).entries[-1].attempt == attempt(BATCHES)


def test_files_in_the_new_location(tables: MemoryTables) -> None:
    """A fork is not mixed with the files of another query, or of a fork that was cut off at another version."""
    put(tables, "offsets/0", checkpoint=NEW)
    with pytest.raises(ConfigurationError, match=r"has other files already: dynastate drop test.*file=offsets/0"):
        fork(tables)
    drop_checkpoints(tables, first_writers(tables, NEW.namespace))
    put(tables, "offsets/9", checkpoint=NEW)
    with pytest.raises(ConfigurationError, match=r"has other files already: dynastate drop test.*file=offsets/9"):
        fork(tables)


def test_a_fork_has_objects_of_its_own(tables: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the query can go; a drop of the fork deletes its own. So does a fork without the setting its items."""
    set_limits(monkeypatch, fragment_bytes_max=2_000, object_bytes=2_100)
    objects, large = "s3://bucket/state", noise(5_000)
    assert StoredCheckpoint(tables, LOCATION, objects).create("sources/0/9.compact", large)
    assert len(tables.objects.objects) == 3
    for setting, count in ((objects, 6), ("", 3)):
        fork_namespace(tables, NAMESPACE, NEW.namespace, None, objects=setting)
        assert len(tables.objects.objects) == count
        assert contents(tables, NEW_LOCATION)["sources/0/9.compact"] == large
        if not setting:
            StoredCheckpoint(tables, LOCATION).delete("sources/0/9.compact")
            assert not tables.objects.objects
        drop_stores(tables, [store.replace(NAMESPACE, NEW.namespace) for store in STORES])
        drop_checkpoints(tables, first_writers(tables, NEW.namespace))
        assert len(tables.objects.objects) == (3 if setting else 0)


def test_a_drop_of_the_fork(tables: MemoryTables) -> None:
    fork(tables)
    stores = [store.replace(NAMESPACE, NEW.namespace) for store in STORES]
    drop_stores(tables, stores)
    drop_checkpoints(tables, first_writers(tables, NEW.namespace))
    assert checkpoint_items(tables, NEW.namespace) == {}
    assert all(verify(tables, store).is_whole for store in STORES)
    assert fork(tables, 5).version == 5


def test_attempts_that_the_checkpoint_names(tmp_path: Path) -> None:
    """A store without them cannot be started."""
    tables = tables_with(tmp_path, with_ids=True)
    files = CheckpointFiles(tables, set())
    commit = files.get(CHECKPOINT, "commits/5")
    assert commit is not None
    ids = json.loads(commit.data.splitlines()[1])
    ids["stateUniqueIds"]["0"][1] = ["00000000-0000-0000-0000-000000000099"]
    files.put(CHECKPOINT, "commits/5", f"v2\n{json.dumps(ids)}".encode(), overwrites=True)
    with pytest.raises(VersionMissingError, match=r"names an attempt at this version.*store=orders/0/1/default"):
        fork(tables)
    assert fork(tables, 5).version == 5


def test_sources_that_write_meanwhile(tmp_path: Path) -> None:
    """A log of which a Query misses a file that another one shows is read again; not for ever."""
    tables = tables_with(tmp_path)
    numbers = iter(range(100))
    queries = 0

    def look(verb: str) -> None:
        nonlocal queries
        queries += verb == "query"
        if verb == "query" and queries in (2, 4):
            put(tables, f"sources/0/{next(numbers)}")

    loaded = load_checkpoint(FailingTables(tables, look), LOCATION)
    assert {*loaded.files("sources")} == {"sources/0/0", "sources/0/1"}
    assert queries == 6

    def write_each_time(verb: str) -> None:
        if verb == "query":
            put(tables, f"sources/0/{next(numbers)}")

    with pytest.raises(UnavailableError, match="write to their logs all the time"):
        load_checkpoint(FailingTables(tables, write_each_time), LOCATION)


def test_stores_of_several_checkpoints(tables: MemoryTables) -> None:
    """An adoption was cut off."""
    adopt_stores(tables, STORES[1:], "file:/other/state")
    with pytest.raises(ConfigurationError, match="belong to several checkpoints"):
        fork(tables)


def test_a_checkpoint_elsewhere(tables: MemoryTables) -> None:
    """Files of a checkpoint that the query does not use are left where they are."""
    adopt_stores(tables, STORES, "file:/other/state")
    forked = fork(tables)
    assert (forked.version, forked.checkpoint) == (BATCHES, "")
    assert batches(tables) == [[*range(7)], [*range(6)]]
    assert checkpoint_items(tables, NEW.namespace) == {}


def test_a_fork_that_was_begun_before_a_move(tables: MemoryTables) -> None:
    adopt_stores(tables, STORES, "file:/other/state")
    begin(tables)
    adopt_stores(tables, STORES, f"{LOCATION}/state")
    with pytest.raises(
        ConfigurationError, match=r"without the checkpoint in DynamoDB: before it was moved .* dynastate drop test"
    ):
        fork(tables)


def test_a_move_before_a_fork_is_resumed(tables: MemoryTables, tmp_path: Path) -> None:
    """The copy keeps the name that it has: the fork is ready to start there."""
    files = expected(tables, BATCHES - 1)
    begin(tables)
    for location in (f"dynastate://{NAMESPACE}/renamed", str(tmp_path / "folder")):
        old, new = open_checkpoint(tables, LOCATION), checkpoint_at(tables, location)
        move(tables, old, new, plan_move(tables, old, new))
        items = dict(tables.items)
        assert fork(tables).checkpoint == NEW_LOCATION
        assert contents(tables, NEW_LOCATION) == files
        assert list(checkpoint_items(tables, NEW.namespace)) == [NEW]
        tables.items.clear()
        tables.items.update(items)
        adopt_stores(tables, STORES, f"{LOCATION}/state")
