"""Verification of checkpoints: whole files, and state that is what the committed batches name."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from dynastate.engine.checkpoint import ORPHAN_AGE, CheckpointFiles
from dynastate.errors import ConfigurationError, CorruptStateError, UnavailableError
from dynastate.format.checkpoint import file_key, file_parts
from dynastate.format.items import Item
from dynastate.format.keys import Attempt, meta_key, version_list_key
from dynastate.operations.checkpoints import open_checkpoint
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.lifecycle.clean import clean_checkpoints, clean_store
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.operations.lifecycle.rollback import plan_rollback, roll_back
from dynastate.operations.lifecycle.verify_checkpoint import (
    CheckpointReport,
    refuse_other_log,
    verify_checkpoints,
    verify_log,
)
from dynastate.settings import SNAPSHOT_TABLE
from dynastate.storage.tables import Tables
from tests.support.engine_driver import make_engine, now
from tests.support.faults import FailingTables, Fault
from tests.support.limits import set_limits
from tests.support.memory_tables import MemoryTables
from tests.support.samples import noise
from tests.support.store_builder import StoreBuilder
from tests.unit.operations.lifecycle.test_rollback import BATCHES, NAMESPACE, STORES, make_checkpoint
from tests.unit.operations.lifecycle.test_rollback import tables as folder_tables
from tests.unit.operations.lifecycle.test_rollback_in_dynamodb import CHECKPOINT, LOCATION, tables_with

__all__ = ["folder_tables"]  # a fixture
EVERY = tuple(range(BATCHES))
pytestmark = pytest.mark.usefixtures("always_worth_it")


@pytest.fixture(params=[False, True], ids=["v1", "v2"])
def tables(tmp_path: Path, request: pytest.FixtureRequest) -> MemoryTables:
    return tables_with(tmp_path, with_ids=request.param)


def verified(tables: Tables, namespace: str = NAMESPACE) -> CheckpointReport:
    (report,) = verify_checkpoints(tables, namespace)
    return report


def found(report: CheckpointReport) -> list[tuple[str, str]]:
    return [(finding.what, finding.key.sort) for finding in report.findings]


def test_a_whole_checkpoint(tables: MemoryTables) -> None:
    """It only reads: a Query for all files, and the version lists of each store."""
    items = dict(tables.items)
    report = verified(tables)
    assert (report.checkpoint, report.files, report.batches, report.findings) == (LOCATION, 14, EVERY, ())
    assert report.bytes > 0
    assert report.is_whole
    assert report.meter.requests < 20
    assert tables.items == items
    assert verify_checkpoints(tables, "other") == []


def test_a_corrupt_file(tables: MemoryTables) -> None:
    """It is named; batches of which it says nothing are compared all the same."""
    key = file_key(CHECKPOINT, "commits/2")
    tables.items[key]["crc32"] = 1
    report = verified(tables)
    assert found(report) == [("corrupt", key.sort)]
    assert "wrong checksum" in report.findings[0].why
    assert not report.is_whole


@pytest.mark.parametrize(
    ("file", "data"), [("commits/2", b""), ("commits/5", b"v1\n{"), ("commits/5", b"v1\n[]"), ("metadata", b"{}}")]
)
def test_a_file_that_cannot_be_parsed(
    tables: MemoryTables, folder_tables: MemoryTables, tmp_path: Path, file: str, data: bytes
) -> None:
    """It is written whole, but not as Spark does. In a folder, a crash of its file system may leave the same."""
    CheckpointFiles(tables, set()).put(CHECKPOINT, file, data, overwrites=True)
    report = verified(tables)
    assert found(report) == [("corrupt", file_key(CHECKPOINT, file).sort)]
    assert report.findings[0].why.startswith("this file of the checkpoint is not as Spark writes it")
    (tmp_path / "checkpoint" / file).write_bytes(data)
    with pytest.raises(CorruptStateError, match=f"not as Spark writes it.*file={file}"):
        verify_log(folder_tables, str(tmp_path / "checkpoint"))


@pytest.mark.parametrize("file", ["metadata", "offsets/5", "offsets/4"])
def test_a_file_that_a_start_needs(tables: MemoryTables, file: str) -> None:
    del tables.items[file_key(CHECKPOINT, file)]
    report = verified(tables)
    assert ("missing", file_key(CHECKPOINT, file).sort) in found(report)
    del tables.items[file_key(CHECKPOINT, "offsets/2")]
    assert len(verified(tables).findings) == len(report.findings)


def test_fragments(tables: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost fragment is a corrupt file, and one without a head an orphan, which does no harm."""
    set_limits(monkeypatch, fragment_bytes_max=50)
    data = noise(230, "large")
    CheckpointFiles(tables, set()).put(CHECKPOINT, "sources/0/9.compact", data, overwrites=False)
    key, time = file_key(CHECKPOINT, "sources/0/8"), int((now() - 2 * ORPHAN_AGE).timestamp() * 1000)
    _, orphans, _ = file_parts(key, data, Attempt(b"o" * 16), time)
    tables.write(orphans)
    report = verified(tables)
    assert [(each.what, each.items) for each in report.findings] == [("orphaned", len(orphans))]
    assert report.is_whole
    lost = next(each for each in tables.items if each.sort.startswith("fragment/") and each not in dict(orphans))
    del tables.items[lost]
    report = verified(tables)
    assert found(report)[0] == ("corrupt", "file/sources/0/00000000000000000009.compact")
    assert not report.is_whole


def test_objects(tables: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost object is a corrupt file, and those of a failed put are orphans, which do no harm."""
    set_limits(monkeypatch, fragment_bytes_max=50, object_bytes=60)
    location, clock = f"s3://bucket/{SNAPSHOT_TABLE}", lambda: now() - 2 * ORPHAN_AGE
    failing = FailingTables(tables)
    failing.fail("update", None, Fault(UnavailableError("died")))
    with pytest.raises(UnavailableError):
        CheckpointFiles(failing, set(), clock=clock, location=location).put(
            CHECKPOINT, "sources/0/8.compact", noise(110, "torn"), overwrites=False
        )
    orphans = {*tables.objects.objects}
    files = CheckpointFiles(tables, {CHECKPOINT}, location=location)
    files.put(CHECKPOINT, "sources/0/9.compact", noise(230, "large"), overwrites=False)
    report = verified(tables)
    assert [(each.what, each.items) for each in report.findings] == [("orphaned", len(orphans))]
    assert f"object {location}/" in report.findings[0].why
    assert report.is_whole
    lost = next(each for each in tables.objects.objects if each not in orphans)
    del tables.objects.objects[lost]
    report = verified(tables)
    assert found(report)[0] == ("corrupt", "file/sources/0/00000000000000000009.compact")
    assert f"{location}/" in report.findings[0].why
    assert not report.is_whole
    (cleaned,) = clean_checkpoints(tables, NAMESPACE)
    assert (cleaned.items, cleaned.write_units) == (len(orphans), 0)
    assert not orphans & {*tables.objects.objects}


def test_objects_of_other_tables(tables: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restored tables need those of the tables that they were restored from, as long as a head names them."""
    set_limits(monkeypatch, fragment_bytes_max=50)
    others = "s3://bucket/other-tables"
    files = CheckpointFiles(tables, set(), location=others)
    files.put(CHECKPOINT, "sources/0/9.compact", noise(110), overwrites=False)
    report = verified(tables)
    assert (report.is_whole, report.other_locations) == (True, (others,))
    assert f"objects of other tables are needed: {others}" in report.lines(tables.names)
    files.delete(CHECKPOINT, ["sources/0/9.compact"])
    assert verified(tables).other_locations == ()


def without(tables: MemoryTables, store: str, version: int) -> None:
    """Lose the entry of a version."""
    key = version_list_key(store, version)
    entries = tables.items[key]["versions"]
    assert isinstance(entries, list)
    del entries[-1]


def test_a_lost_version(tables: MemoryTables) -> None:
    """The last committed batch made it, so a query cannot be started."""
    without(tables, STORES[1], BATCHES)
    report = verified(tables)
    assert found(report) == [("missing", version_list_key(STORES[1], BATCHES).sort)]
    assert report.findings[0].key.store_shard == f"{STORES[1]}#0"
    assert "has committed batches 5, and a query cannot open the versions 6 that they made" in report.findings[0].why


def test_another_attempt_than_the_commit_names(tmp_path: Path) -> None:
    """Also of an older batch: a rollback would start from it."""
    tables = tables_with(tmp_path, with_ids=True)
    files = CheckpointFiles(tables, set())
    for batch in (2, 3):
        file = files.get(CHECKPOINT, f"commits/{batch}")
        assert file is not None
        commit = json.loads(file.data.splitlines()[1])
        commit["stateUniqueIds"]["0"][0] = ["00000000-0000-0000-0000-000000000099"]
        files.put(CHECKPOINT, f"commits/{batch}", f"v2\n{json.dumps(commit)}".encode(), overwrites=True)
    report = verified(tables)
    assert found(report) == [("missing", version_list_key(STORES[0], 3).sort)]
    assert "batches 2-3, and a query cannot open the versions 3-4" in report.findings[0].why


def test_a_number_that_names_no_version_of_the_query(tmp_path: Path) -> None:
    """Format v1: the checkpoint was moved, the query made the version again, and it was moved back."""
    tables = tables_with(tmp_path)
    adopt_stores(tables, STORES, "file:/other/state")
    with closing(make_engine(tables)) as engine:
        StoreBuilder(engine, STORES[0], location="file:/other/state").take_back(BATCHES - 1, "run-9").count(900)
    adopt_stores(tables, STORES, f"{LOCATION}/state")
    assert found(verified(tables)) == [("missing", version_list_key(STORES[0], BATCHES).sort)]


def test_batches_whose_state_was_cleaned_up(tables: MemoryTables) -> None:
    """Clean-up and log delete independently, so that is no defect, except of the last batch."""
    with closing(make_engine(tables)) as engine:
        for store in STORES:
            compact_store(engine, tables, store)
            StoreBuilder(engine, store, location=f"{LOCATION}/state").take_back(BATCHES, "run-1").commit()
            assert clean_store(engine, tables, store, 2).oldest == BATCHES
    report = verified(tables)
    assert (report.findings, report.batches) == ((), EVERY)
    checkpoint = open_checkpoint(tables, LOCATION)
    CheckpointFiles(tables, set()).delete(CHECKPOINT, [f"commits/{batch}" for batch in (3, 4, 5)])
    assert checkpoint.batches("commits").keys() == {0, 1, 2}
    assert {what for what, _ in found(verified(tables))} == {"missing"}


def test_a_partition_that_is_lost(tables: MemoryTables) -> None:
    """With format v1, the log does not say how many partitions there were."""
    drop_stores(tables, STORES[1:])
    report = verified(tables)
    has_ids = b"stateUniqueIds" in (open_checkpoint(tables, LOCATION).find("commits/5") or b"")
    assert found(report) == ([("missing", "store/0/1/")] if has_ids else [])
    drop_stores(tables, STORES[:1])
    assert len(verified(tables).findings) == (2 if has_ids else 0)


def describe(tables: Tables, name: str, partitions: int, file: str = "metadata") -> None:
    """Put the file in which Spark describes operator 0."""
    content = {
        "operatorInfo": {"operatorId": 0, "operatorName": name},
        "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": partitions}],
    }
    data = f"v1\n{json.dumps(content)}".encode()
    CheckpointFiles(tables, set()).put(CHECKPOINT, f"state/0/_metadata/{file}", data, overwrites=True)


@pytest.mark.parametrize("file", ["metadata", "v2/0"])
def test_a_lost_partition_that_is_described(tables: MemoryTables, file: str) -> None:
    """Also format v1 finds it, and the loss of all stores, by Spark's description of the operator."""
    describe(tables, "dedupe", 2, file)
    assert verified(tables).is_whole
    drop_stores(tables, STORES[1:])
    assert found(verified(tables)) == [("missing", "store/0/1/")]
    drop_stores(tables, STORES[:1])
    assert found(verified(tables)) == [("missing", "store/0/0/"), ("missing", "store/0/1/")]


def test_an_operator_that_may_have_one_partition(tmp_path: Path) -> None:
    """Spark describes an aggregation without keys like one with keys."""
    tables = tables_with(tmp_path)
    describe(tables, "stateStoreSave", 3)
    assert found(verified(tables)) == [("missing", "store/0/2/")]
    drop_stores(tables, STORES[1:])
    assert verified(tables).is_whole
    drop_stores(tables, STORES[:1])
    assert found(verified(tables)) == [("missing", "store/0/0/")]


def test_an_operator_without_a_description(tmp_path: Path) -> None:
    """Spark 3.5 writes none: the conf of the last batch has the number of partitions."""
    tables = tables_with(tmp_path)
    files = CheckpointFiles(tables, set())
    files.delete(CHECKPOINT, ["state/0/_metadata/metadata"])
    files.put(CHECKPOINT, "state/0/0/_metadata/schema", b"v3", overwrites=False)
    conf = json.dumps({"batchTimestampMs": 0, "conf": {"spark.sql.shuffle.partitions": "3"}})
    files.put(CHECKPOINT, f"offsets/{BATCHES - 1}", f"v1\n{conf}\n{{}}".encode(), overwrites=True)
    assert found(verified(tables)) == [("missing", "store/0/2/")]
    drop_stores(tables, STORES[1:])
    assert verified(tables).is_whole


def test_a_description_that_cannot_be_parsed(tmp_path: Path) -> None:
    tables = tables_with(tmp_path)
    CheckpointFiles(tables, set()).put(CHECKPOINT, "state/0/_metadata/metadata", b"v1\n{", overwrites=True)
    assert found(verified(tables)) == [("corrupt", file_key(CHECKPOINT, "state/0/_metadata/metadata").sort)]


def test_a_rollback_and_a_batch_under_way(tables: MemoryTables) -> None:
    checkpoint = open_checkpoint(tables, LOCATION)
    roll_back(checkpoint, plan_rollback(tables, checkpoint, 3))
    report = verified(tables)
    assert (report.findings, report.batches) == ((), EVERY[:4])
    CheckpointFiles(tables, set()).delete(CHECKPOINT, ["commits/3"])
    assert (verified(tables).findings, verified(tables).batches) == ((), EVERY[:3])


def test_a_fork(tables: MemoryTables) -> None:
    """Its checkpoint has batches of which the fork has no state."""
    fork_namespace(tables, NAMESPACE, "test", None)
    report = verified(tables, "test")
    assert (report.checkpoint, report.findings, report.batches) == ("dynastate://test/query", (), EVERY)
    without(tables, "test/0/0/default", BATCHES)
    assert not verified(tables, "test").is_whole


def test_a_checkpoint_that_was_moved_away(tables: MemoryTables) -> None:
    """Its files are read, and the state, which is not its own any longer, is not compared."""
    adopt_stores(tables, STORES, "file:/other/state")
    without(tables, STORES[1], BATCHES)
    report = verified(tables)
    assert (report.files, report.batches, report.findings) == (14, (), ())


def test_a_store_that_is_corrupt(tables: MemoryTables) -> None:
    """Its own verification reports it, and the files are read all the same."""
    tables.items[version_list_key(STORES[1], 1)]["versions"] = [b"no entry"]
    assert (verified(tables).batches, verified(tables).findings) == (EVERY, ())
    tables.items[meta_key(STORES[1])]["epochs"] = "none"
    assert (verified(tables).batches, verified(tables).files, verified(tables).findings) == ((), 14, ())


@pytest.mark.parametrize("keeps_going", [False, True])
def test_a_query_that_runs_meanwhile(tables: MemoryTables, *, keeps_going: bool) -> None:
    """Clean-up overtakes the batches that were read: they are read again, until the query is faster every time."""
    files, items = CheckpointFiles(tables, set()), tables.items
    lost: dict[str, Item] = {}

    def going_on(verb: str) -> None:
        if verb == "list_keys" and not lost:
            lost[STORES[0]] = items[version_list_key(STORES[0], BATCHES)]
            without(tables, STORES[0], BATCHES)
        elif verb == "query" and lost and (keeps_going or "done" not in lost):
            batches = [int(key.sort[-20:]) for key in items if key.sort.startswith("file/commits/")]
            if not keeps_going:
                lost["done"] = {}
                files.delete(CHECKPOINT, ["commits/5"])
            else:
                files.put(CHECKPOINT, f"commits/{max(batches) + 1}", b"v1\n{}", overwrites=False)

    report = verified(FailingTables(tables, going_on))
    assert report.is_whole is not keeps_going


@pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])
def test_a_checkpoint_in_a_folder(folder_tables: MemoryTables, tmp_path: Path, *, with_ids: bool) -> None:
    """Its commits are compared with the state; a copy is refused."""
    checkpoint = make_checkpoint(tmp_path, with_ids=with_ids)
    report = verify_log(folder_tables, str(checkpoint))
    assert (report.checkpoint, report.batches, report.findings) == (str(checkpoint), EVERY, ())
    without(folder_tables, STORES[0], BATCHES)
    assert found(verify_log(folder_tables, str(checkpoint))) == [("missing", version_list_key(STORES[0], BATCHES).sort)]
    copied = make_checkpoint(tmp_path / "copied", with_ids=with_ids)
    with pytest.raises(ConfigurationError, match="If this is a copy"):
        refuse_other_log(folder_tables, str(copied), NAMESPACE)
