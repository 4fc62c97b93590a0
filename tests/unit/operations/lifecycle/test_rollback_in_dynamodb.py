"""Rollback of a checkpoint that is in DynamoDB: the same as of files, and after a crash at any request."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from dynastate.engine.checkpoint import CheckpointFiles
from dynastate.errors import ConfigurationError, DynastateError
from dynastate.format.checkpoint import Checkpoint
from dynastate.operations.checkpoints import StoredCheckpoint, open_checkpoint
from dynastate.operations.lifecycle.rollback import plan_rollback, roll_back
from dynastate.storage.tables import Tables
from tests.support.engine_driver import make_engine
from tests.support.faults import Dying, FailingTables
from tests.support.memory_tables import MemoryTables
from tests.support.store_builder import StoreBuilder
from tests.unit.operations.lifecycle.test_rollback import BATCHES, NAMESPACE, STORES, make_checkpoint

CHECKPOINT = Checkpoint(NAMESPACE, "query")
LOCATION = f"dynastate://{CHECKPOINT}"
LOGS: Final = ("offsets", "commits")


def put_files(tables: Tables, folder: Path, checkpoint: Checkpoint = CHECKPOINT) -> None:
    """Put the files of a checkpoint, except checksums and the provider's files, with a description of the operator."""
    files = CheckpointFiles(tables, set())
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "dynastate" and not path.name.endswith(".crc"):
            files.put(checkpoint, str(path.relative_to(folder)), path.read_bytes(), overwrites=False)
    files.put(checkpoint, "state/0/_metadata/metadata", b"v1\n{}", overwrites=False)


def tables_with(folder: Path, *, with_ids: bool = False, batches: int = BATCHES) -> MemoryTables:
    """Tables with the state of a query, and its checkpoint."""
    memory = MemoryTables()
    with closing(make_engine(memory)) as engine:
        for store in STORES:
            StoreBuilder(engine, store, location=f"{LOCATION}/state").count_to(batches)
    put_files(memory, make_checkpoint(folder, with_ids=with_ids))
    return memory


def batches(tables: Tables, folder: str = "") -> list[list[int]]:
    """The batches with offsets, and those with a commit, in a copy of a folder too."""
    checkpoint = StoredCheckpoint(tables, LOCATION)
    return [sorted(int(file.rpartition("/")[2]) for file in checkpoint.files(f"{folder}{log}")) for log in LOGS]


def take_back(tables: Tables, to: int) -> str:
    checkpoint = open_checkpoint(tables, LOCATION)
    plan = plan_rollback(tables, checkpoint, to)
    roll_back(checkpoint, plan)
    return plan.copy


@pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])
def test_later_batches_are_deleted_and_a_copy_stays(tmp_path: Path, *, with_ids: bool) -> None:
    tables = tables_with(tmp_path, with_ids=with_ids)
    plan = plan_rollback(tables, open_checkpoint(tables, f"{LOCATION}/"), 2)
    assert (plan.checkpoint, plan.namespace, plan.stores) == (LOCATION, NAMESPACE, tuple(STORES))
    assert (plan.undone, plan.committed, plan.last.offsets) == ((3, 4, 5), (3, 4, 5), ('{"logOffset":5}',))
    files = StoredCheckpoint(tables, LOCATION)
    old_files = {file: files.find(file) for file in files.files()}
    copy = take_back(tables, 2)
    assert batches(tables) == [[0, 1, 2], [0, 1, 2]]
    assert batches(tables, f"{copy}/") == [[*range(BATCHES)], [*range(BATCHES)]]
    for file, data in old_files.items():
        is_of_log = file.startswith(("offsets/", "commits/"))
        assert files.find(f"{copy}/{file}" if is_of_log else file) == data
    with pytest.raises(ConfigurationError, match="nothing would be undone"):
        plan_rollback(tables, files, 2)


@pytest.mark.parametrize("applied", [False, True])
def test_a_crash_at_any_request(tmp_path: Path, *, applied: bool) -> None:
    """What is left is the checkpoint of a killed query, and another rollback completes it."""
    tables = tables_with(tmp_path)
    plan = plan_rollback(tables, open_checkpoint(tables, LOCATION), 2)
    items = dict(tables.items)
    lengths: set[tuple[int, int]] = set()
    for left in range(1_000):
        tables.items.clear()
        tables.items.update(items)
        try:
            roll_back(StoredCheckpoint(Dying(tables, left, applied=applied), LOCATION), plan)
        except DynastateError:
            offsets, commits = batches(tables)
            assert (offsets, commits) == ([*range(len(offsets))], [*range(len(commits))])
            assert len(offsets) - len(commits) in (0, 1)
            lengths.add((len(offsets), len(commits)))
            if (len(offsets), len(commits)) != (3, 3):
                take_back(tables, 2)
            assert batches(tables) == [[0, 1, 2], [0, 1, 2]]
        else:
            break
    assert lengths == {(6, 6), (6, 5), (5, 5), (5, 4), (4, 4), (4, 3), (3, 3)}


def test_a_driver_that_begins_a_batch_meanwhile(tmp_path: Path) -> None:
    """After the plan nothing is deleted; during the deletions it is an error, and another rollback undoes the batch."""
    tables = tables_with(tmp_path)
    plan = plan_rollback(tables, open_checkpoint(tables, LOCATION), 2)
    offsets = (tmp_path / "checkpoint" / "offsets" / "5").read_bytes()
    files = CheckpointFiles(tables, set())

    def begin(verb: str) -> None:
        if verb == "delete_over":
            files.put(CHECKPOINT, "offsets/6", offsets, overwrites=False)

    words = "has begun or committed a batch since this was planned"
    with pytest.raises(ConfigurationError, match=f"{words}.*batch=6"):
        roll_back(StoredCheckpoint(FailingTables(tables, begin), LOCATION), plan)
    assert batches(tables) == [[0, 1, 2, 6], [0, 1, 2]]
    old_items = dict(tables.items)
    with pytest.raises(ConfigurationError, match=words):
        roll_back(StoredCheckpoint(tables, LOCATION), plan)
    assert tables.items == old_items
    take_back(tables, 2)
    assert batches(tables) == [[0, 1, 2], [0, 1, 2]]


def test_other_checkpoints_are_refused(tmp_path: Path) -> None:
    """A name that is none, a name without files, state that is gone, and a checkpoint that does not own the state."""
    tables = tables_with(tmp_path, batches=2)
    for location, words in (
        ("dynastate://orders", "a checkpoint in DynamoDB is named dynastate://NAMESPACE/NAME"),
        ("dynastate://orders/query/offsets", "a checkpoint in DynamoDB is named dynastate://NAMESPACE/NAME"),
        (f"dynastate://{NAMESPACE}/other", "there is no checkpoint of a query"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            open_checkpoint(tables, location)
    checkpoint = open_checkpoint(tables, LOCATION)
    with pytest.raises(ConfigurationError, match="the state of this batch is no longer there"):
        plan_rollback(tables, checkpoint, 2)
    with pytest.raises(ConfigurationError, match="it can go back to these: 0 to 5"):
        plan_rollback(tables, checkpoint, 7)
    put_files(tables, tmp_path / "checkpoint", Checkpoint(NAMESPACE, "copy"))
    with pytest.raises(ConfigurationError, match=f"which belongs to the checkpoint {LOCATION}. If this is a copy"):
        plan_rollback(tables, open_checkpoint(tables, f"dynastate://{NAMESPACE}/copy"), 1)
    put_files(tables, tmp_path / "checkpoint", Checkpoint("empty", "query"))
    with pytest.raises(ConfigurationError, match="no store of this namespace is in the tables"):
        plan_rollback(tables, open_checkpoint(tables, "dynastate://empty/query"), 1)


def test_partitions_are_those_of_the_stores(tmp_path: Path) -> None:
    """Folders of descriptions are none."""
    assert open_checkpoint(tables_with(tmp_path), LOCATION).partitions() == {"0": {0, 1}}


def test_a_file_that_is_deleted_meanwhile(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"does not exist, or was deleted meanwhile.*file=offsets/9"):
        open_checkpoint(tables_with(tmp_path), LOCATION).read("offsets/9")
