"""Rollback of a checkpoint: what it refuses, what it deletes and in which order, and what stays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest

from dynastate.errors import ConfigurationError, VersionMissingError
from dynastate.format.keys import NO_ATTEMPT, Attempt, VersionId
from dynastate.operations.checkpoints import open_checkpoint
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.lifecycle.clean import clean_earlier, clean_store
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.operations.lifecycle.rollback import COPY, plan_rollback, roll_back
from tests.support.engine_driver import make_engine, save_snapshot, write
from tests.support.memory_tables import MemoryTables
from tests.support.samples import QUERY, attempt, query_run
from tests.support.store_builder import StoreBuilder, counted, user

BATCHES = 6
NAMESPACE = "orders"
STORES = [f"{NAMESPACE}/0/{partition}/default" for partition in range(2)]


def make_checkpoint(folder: Path, *, with_ids: bool = False, partitions: int = 2, first_attempt: int = 1) -> Path:
    """The files that Spark leaves after `BATCHES` batches of a query with one operator."""
    checkpoint = folder / "checkpoint"
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
    for batch in range(BATCHES):
        metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1_795_489_314_817 + batch, "conf": {}})
        (checkpoint / "offsets" / str(batch)).write_text(f'v1\n{metadata}\n{{"logOffset":{batch}}}')
        (checkpoint / "offsets" / f".{batch}.crc").write_bytes(b"crc")
        ids = {"0": [[str(UUID(bytes=bytes(attempt(batch + first_attempt))))]] * partitions}
        commit = {"nextBatchWatermarkMs": 0} | ({"stateUniqueIds": ids} if with_ids else {})
        (checkpoint / "commits" / str(batch)).write_text(f"{'v2' if with_ids else 'v1'}\n{json.dumps(commit)}")
    for partition in range(partitions):
        place = checkpoint / "state" / "0" / str(partition)
        place.mkdir(parents=True)
        text = f"state of this partition is in DynamoDB store={NAMESPACE}/0/{partition}/default\n"
        (place / "dynastate").write_text(text)
    return checkpoint


def location_in(folder: Path) -> str:
    return f"file:{folder}/checkpoint/state"


@pytest.fixture
def tables(tmp_path: Path) -> MemoryTables:
    memory = MemoryTables()
    with closing(make_engine(memory)) as engine:
        for store in STORES:
            StoreBuilder(engine, store, location=location_in(tmp_path)).count_to(BATCHES)
    return memory


def names(checkpoint: Path, folder: str) -> list[str]:
    return sorted(each.name for each in (checkpoint / folder).iterdir())


def logs(checkpoint: Path) -> list[list[str]]:
    return [names(checkpoint, folder) for folder in ("offsets", "commits")]


@pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])
def test_later_batches_are_deleted_and_a_copy_stays(tables: MemoryTables, tmp_path: Path, *, with_ids: bool) -> None:
    checkpoint = make_checkpoint(tmp_path, with_ids=with_ids)
    logs_before = logs(checkpoint)
    files = open_checkpoint(tables, str(checkpoint))
    plan = plan_rollback(tables, files, 2)
    assert (plan.namespace, plan.undone, len(plan.stores)) == (NAMESPACE, (3, 4, 5), 2)
    assert (plan.to.batch, plan.last.batch) == (2, 5)
    assert (plan.to.offsets, plan.last.offsets) == (('{"logOffset":2}',), ('{"logOffset":5}',))
    assert logs(checkpoint) == logs_before
    roll_back(files, plan)
    assert names(checkpoint, "commits") == ["0", "1", "2"]
    assert names(checkpoint, "offsets") == [".0.crc", ".1.crc", ".2.crc", "0", "1", "2"]
    assert plan.copy.startswith(COPY)
    assert logs(checkpoint / plan.copy) == logs_before
    with pytest.raises(ConfigurationError, match="nothing would be undone"):
        plan_rollback(tables, files, 2)
    assert plan_rollback(tables, files, 1).undone == (2,)


def test_each_deletion_leaves_it_valid(tables: MemoryTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest offsets have no commit, or that of their own batch; all before them have one."""
    checkpoint = make_checkpoint(tmp_path)
    files = open_checkpoint(tables, str(checkpoint))
    lengths: list[tuple[int, int]] = []
    delete = files.delete

    def watch(name: str) -> None:
        delete(name)
        offsets, commits = (sorted(map(int, filter(str.isdigit, log))) for log in logs(checkpoint))
        assert (offsets, commits) == (list(range(len(offsets))), list(range(len(commits))))
        lengths.append((len(offsets), len(commits)))

    monkeypatch.setattr(files, "delete", watch)
    roll_back(files, plan_rollback(tables, files, 0))
    assert all(offsets - commits in (0, 1) for offsets, commits in lengths)
    assert lengths[-1] == (1, 1)


def test_a_batch_under_way_is_undone_too(tables: MemoryTables, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path)
    (checkpoint / "commits" / "5").unlink()
    files = open_checkpoint(tables, str(checkpoint))
    with pytest.raises(ConfigurationError, match="it can go back to these: 0 to 4"):
        plan_rollback(tables, files, 5)
    assert plan_rollback(tables, files, 4).undone == (5,)


def test_state_that_is_gone_is_refused(tmp_path: Path) -> None:
    """Clean-up has deleted the version in one store; the message has those that are there."""
    tables, newest = MemoryTables(), 30
    with closing(make_engine(tables)) as engine:
        for store in STORES:
            builder = StoreBuilder(engine, store, location=location_in(tmp_path)).count_to(newest - 5)
        save_snapshot(engine, builder.store, builder.version, {})
        builder.count_to(newest)
        clean_store(engine, tables, builder.store, 2)
    with pytest.raises(ConfigurationError, match=f"no longer there; versions that are: [0-9]+ to {newest}") as refused:
        plan_rollback(tables, open_checkpoint(tables, str(make_checkpoint(tmp_path))), 1)
    assert refused.value.facts == {"store": builder.store, "version": 2}


@pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])
def test_a_partition_that_was_cleaned_up_is_refused(tables: MemoryTables, tmp_path: Path, *, with_ids: bool) -> None:
    """A later query at this path has fewer partitions; `clean` deleted the others of this one."""
    checkpoint, (first, second) = make_checkpoint(tmp_path, with_ids=with_ids), STORES
    with closing(make_engine(tables)) as engine:
        next_query = StoreBuilder(engine, first, location=location_in(tmp_path), query="next", run="next")
        for count in range(4):
            next_query.commit((user("x"), counted(count)), by=Attempt(uuid4().bytes))
        if with_ids:
            assert plan_rollback(tables, open_checkpoint(tables, str(checkpoint)), 2).stores == (first, second)
        assert second in clean_earlier(tables, [second]).results
    with pytest.raises(ConfigurationError, match="no longer there in some partitions") as refused:
        plan_rollback(tables, open_checkpoint(tables, str(checkpoint)), 2)
    assert refused.value.facts == {"batch": 2, "operator": "0", "partitions": "1"}


def test_folders_of_a_query_with_more_partitions_are_no_loss(tables: MemoryTables, tmp_path: Path) -> None:
    """The checkpoint's number of partitions tells which folders are its own (format v1)."""
    checkpoint = make_checkpoint(tmp_path, partitions=4)
    for batch in range(BATCHES):
        file = checkpoint / "offsets" / str(batch)
        file.write_text(file.read_text().replace('"conf": {}', '"conf": {"spark.sql.shuffle.partitions": "2"}'))
    assert len(plan_rollback(tables, open_checkpoint(tables, str(checkpoint)), 2).stores) == 2


def test_another_attempt_is_not_that_of_the_batch(tables: MemoryTables, tmp_path: Path) -> None:
    """With checkpoint format v2 the id must be the one that was committed."""
    checkpoint = make_checkpoint(tmp_path, with_ids=True)
    file = checkpoint / "commits" / "2"
    file.write_text(file.read_text().replace(str(UUID(bytes=bytes(attempt(3)))), str(UUID(int=7))))
    with pytest.raises(ConfigurationError, match="no longer there"):
        plan_rollback(tables, open_checkpoint(tables, str(checkpoint)), 2)


def test_a_version_that_its_number_does_not_name(tables: MemoryTables, tmp_path: Path) -> None:
    """Two checkpoints have made version 5: v1 does not say which is the batch's, and v2 does."""
    checkpoint = make_checkpoint(tmp_path)
    adopt_stores(tables, STORES, "file:/moved/state")
    with closing(make_engine(tables)) as engine:
        for store in STORES:
            base = VersionId(3, attempt(3))
            for number in (14, 15, 16):
                base = write(engine, store, attempt(number), base=base, run=query_run("moved", "file:/moved/state"))
    adopt_stores(tables, STORES, location_in(tmp_path))
    with pytest.raises(ConfigurationError, match="several checkpoint locations have made this version"):
        plan_rollback(tables, open_checkpoint(tables, str(checkpoint)), 4)
    assert plan_rollback(tables, open_checkpoint(tables, str(checkpoint)), 2).undone == (3, 4, 5)
    with_ids = make_checkpoint(tmp_path / "v2", with_ids=True)
    adopt_stores(tables, STORES, location_in(tmp_path / "v2"))
    assert plan_rollback(tables, open_checkpoint(tables, str(with_ids)), 4).undone == (5,)


def test_a_version_that_partitions_have_of_two_runs(tables: MemoryTables, tmp_path: Path) -> None:
    """A run made version 4 again, not in all partitions, and the checkpoint was put back: by number v1 opens both."""
    checkpoint = make_checkpoint(tmp_path)

    def make_again(store: str) -> None:
        with closing(make_engine(tables)) as engine:
            run = query_run("run-2", location_in(tmp_path))
            write(engine, store, attempt(14), base=VersionId(3, attempt(3)), run=run)

    make_again(STORES[0])
    with pytest.raises(ConfigurationError, match="of another run of the query than others") as refused:
        plan_rollback(tables, open_checkpoint(tables, str(checkpoint)), 3)
    assert refused.value.facts == {"batch": 3, "version": 4}
    for batch in (2, 4):
        assert plan_rollback(tables, open_checkpoint(tables, str(checkpoint)), batch).to.batch == batch
    make_again(STORES[1])
    assert plan_rollback(tables, open_checkpoint(tables, str(checkpoint)), 3).undone == (4, 5)
    with_ids = make_checkpoint(tmp_path / "v2", with_ids=True)
    adopt_stores(tables, STORES, location_in(tmp_path / "v2"))
    assert plan_rollback(tables, open_checkpoint(tables, str(with_ids)), 3).undone == (4, 5)


def test_stores_that_the_checkpoint_does_not_list(tables: MemoryTables, tmp_path: Path) -> None:
    """Spark opens no store of a partition that the batch did not commit, so a rollback needs no version of it."""
    files = open_checkpoint(tables, str(make_checkpoint(tmp_path, with_ids=True, partitions=1)))
    assert plan_rollback(tables, files, 2).stores == (STORES[0],)
    file = tmp_path / "checkpoint" / "commits" / "2"
    file.write_text(file.read_text().replace('{"0": [', '{"7": ['))
    with pytest.raises(ConfigurationError, match="the checkpoint lists no store of this namespace batch=2"):
        plan_rollback(tables, files, 2)


def test_partitions_that_are_gone_are_refused(tables: MemoryTables, tmp_path: Path) -> None:
    """Those of the batch, where the query that came after it had fewer, and the others were deleted."""
    checkpoint = make_checkpoint(tmp_path, with_ids=True, partitions=4)
    with pytest.raises(ConfigurationError, match=r"no longer there in some partitions.*partitions=2,3"):
        plan_rollback(tables, open_checkpoint(tables, str(checkpoint)), 2)


def test_stores_of_an_earlier_query(tables: MemoryTables, tmp_path: Path) -> None:
    """A query that started over with fewer partitions can be taken back: the other stores are not its own."""
    moment = datetime(2025, 6, 1, tzinfo=timezone.utc)
    with closing(make_engine(tables, now=lambda: moment)) as engine:
        ids = {"run": "run-2", "query": str(UUID(int=2)), "location": location_in(tmp_path)}
        builder = StoreBuilder(engine, STORES[0], **ids)
        for version in range(1, BATCHES + 1):
            builder.commit(by=attempt(version + 100))
    checkpoint = make_checkpoint(tmp_path, with_ids=True, partitions=1, first_attempt=101)
    assert plan_rollback(tables, open_checkpoint(tables, str(checkpoint)), 2).stores == (STORES[0],)


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        (["metadata"], "there is no checkpoint of a query"),
        (["state/0/0/dynastate", "state/0/1/dynastate"], "has no state in DynamoDB"),
    ],
)
def test_other_checkpoints_are_refused(tables: MemoryTables, tmp_path: Path, gone: Sequence[str], words: str) -> None:
    checkpoint = make_checkpoint(tmp_path)
    for each in gone:
        (checkpoint / each).unlink()
    with pytest.raises(ConfigurationError, match=words):
        plan_rollback(tables, open_checkpoint(tables, str(checkpoint)), 2)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_checkpoints_of_hadoops_names_of_s3_are_looked_at(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's users write s3a, which pyarrow does not know."""
    locations: list[str] = []

    def from_uri(location: str) -> None:
        locations.append(location)
        raise OSError("not here")

    monkeypatch.setattr("pyarrow.fs.FileSystem", SimpleNamespace(from_uri=from_uri))
    with pytest.raises(ConfigurationError, match=f"cannot be looked at from here location={scheme}://bucket/orders"):
        open_checkpoint(MemoryTables(), f"{scheme}://bucket/orders")
    assert locations == ["s3://bucket/orders"]


def test_a_batch_that_commits_after_the_plan(tables: MemoryTables, tmp_path: Path) -> None:
    """Its offsets or its commit: nothing is deleted, since a gap would be left."""
    checkpoint = make_checkpoint(tmp_path)
    (checkpoint / "commits" / "5").rename(tmp_path / "commit of 5")
    files = open_checkpoint(tables, str(checkpoint))
    plan = plan_rollback(tables, files, 2)
    (checkpoint / "offsets" / "6").write_text((checkpoint / "offsets" / "5").read_text())
    for is_next in (True, False):
        logs_before = logs(checkpoint)
        with pytest.raises(ConfigurationError, match="has begun or committed a batch since this was planned"):
            roll_back(files, plan)
        assert logs(checkpoint) == logs_before
        if is_next:
            (checkpoint / "offsets" / "6").unlink()
            (tmp_path / "commit of 5").rename(checkpoint / "commits" / "5")
    roll_back(files, plan_rollback(tables, files, 2))
    assert names(checkpoint, "commits") == ["0", "1", "2"]


def test_a_copied_checkpoint_is_refused(tables: MemoryTables, tmp_path: Path) -> None:
    """Its files name the stores of the query that it was copied from."""
    copied = tmp_path / "copied"
    shutil.copytree(make_checkpoint(tmp_path), copied)
    with pytest.raises(ConfigurationError, match=f"which belongs to the checkpoint file:{tmp_path}/checkpoint. If"):
        plan_rollback(tables, open_checkpoint(tables, str(copied)), 2)


def test_a_relative_path(tables: MemoryTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert plan_rollback(tables, open_checkpoint(tables, "checkpoint"), 2).undone == (3, 4, 5)
    assert plan_rollback(tables, open_checkpoint(tables, f"file://{tmp_path}/checkpoint"), 2).undone == (3, 4, 5)


def test_clean_goes_by_the_newest_version_until_the_query_has_started(tmp_path: Path) -> None:
    """Between a rollback and the first batch, less than the undone batches and one more deletes what is started from.

    docs/recovery.md says so: clean does not see the checkpoint.
    """
    tables, checkpoint = MemoryTables(), make_checkpoint(tmp_path)
    with closing(make_engine(tables)) as engine:
        for store in STORES:
            builder = StoreBuilder(engine, store, location=location_in(tmp_path)).count_to(4)
            compact_store(engine, tables, store)
            builder.count_to(BATCHES)
        plan = plan_rollback(tables, open_checkpoint(tables, str(checkpoint)), 2)
        undone = len(plan.undone)
        clean_store(engine, tables, STORES[0], undone + 1)
        assert engine.find(STORES[0], plan.to.batch + 1, NO_ATTEMPT).entry.version == 3
        clean_store(engine, tables, STORES[0], undone - 1)
        with pytest.raises(VersionMissingError, match="this version does not exist"):
            engine.find(STORES[0], plan.to.batch + 1, NO_ATTEMPT)
