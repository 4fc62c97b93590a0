"""Move of a checkpoint between a folder and DynamoDB: what it copies, what it refuses, and a crash at any request."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from dynastate.engine.checkpoint import CheckpointFiles
from dynastate.errors import ConfigurationError, DynastateError
from dynastate.format.checkpoint import Checkpoint
from dynastate.format.keys import VersionId
from dynastate.operations.checkpoints import FolderCheckpoint, QueryCheckpoint, StoredCheckpoint, checkpoint_at
from dynastate.operations.lifecycle.adopt import adopt_stores, locations_of
from dynastate.operations.lifecycle.move import Moved, files_of, move, plan_move
from dynastate.storage.tables import Tables
from tests.support.engine_driver import make_engine, write
from tests.support.faults import Dying, FailingTables
from tests.support.memory_tables import MemoryTables
from tests.support.samples import attempt, query_run
from tests.support.store_builder import StoreBuilder
from tests.unit.operations.inspection.test_abandoned import s3
from tests.unit.operations.lifecycle.test_rollback import BATCHES, NAMESPACE, STORES, location_in, make_checkpoint

__all__ = ["s3"]  # a fixture
LOCATION = f"dynastate://{NAMESPACE}/query"
SCHEMA = "state/0/_stateSchema/default/0_abc"
DESCRIPTION = "state/0/_metadata/v2/0"
#: Files that are not copied.
UNFINISHED, MARKER = "commits/.6.1234.tmp", "state/0/1/dynastate"


def description(root: str) -> str:
    """The description of an operator, as Spark writes it: JSON within JSON, and the full path of a file."""
    return f'v2\n{{"stateSchemaFilePaths":["{root}/{SCHEMA}"],"propertiesJson":"{{\\"timeMode\\":\\"None\\"}}"}}'


def make_old(folder: Path) -> Path:
    """A checkpoint with a source's log, and the description of an operator that names the file of a schema."""
    checkpoint = make_checkpoint(folder)
    for file, text in {
        "sources/0/9": "v1\n{}",
        "sources/0/10.compact": "v1\n{}",
        SCHEMA: "schema",
        DESCRIPTION: description(f"file:{checkpoint}"),
        UNFINISHED: "v1",
    }.items():
        (checkpoint / file).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / file).write_text(text)
    return checkpoint


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return make_old(tmp_path)


@pytest.fixture
def tables(tmp_path: Path) -> MemoryTables:
    memory = MemoryTables()
    with closing(make_engine(memory)) as engine:
        for store in STORES:
            StoreBuilder(engine, store, location=location_in(tmp_path)).count_to(BATCHES)
    return memory


def run_move(tables: Tables, old: Path | str, new: Path | str) -> Moved:
    places = checkpoint_at(tables, str(old)), checkpoint_at(tables, str(new))
    return move(tables, *places, plan_move(tables, *places))


def contents(checkpoint: QueryCheckpoint) -> dict[str, bytes | None]:
    return {file: checkpoint.find(file) for file in files_of(checkpoint)}


def described(contents: Mapping[str, bytes | None], root: str) -> dict[str, bytes | None]:
    """The same files for another location."""
    return {**contents, DESCRIPTION: description(root).encode()}


def batches(checkpoint: QueryCheckpoint) -> tuple[int, int, int]:
    """The numbers of files of the logs of sources, of offsets and of commits; each log is whole up to its last file."""
    files = files_of(checkpoint)
    lengths: list[int] = []
    for folder, names in (("sources", ["0/9", "0/10.compact"]), *((log, None) for log in ("offsets", "commits"))):
        log = [file.removeprefix(f"{folder}/") for file in files if file.startswith(f"{folder}/")]
        assert log == (names or [str(batch) for batch in range(BATCHES)])[: len(log)]
        lengths.append(len(log))
    return lengths[0], lengths[1], lengths[2]


def test_to_dynamodb_and_back(tables: MemoryTables, old: Path, tmp_path: Path) -> None:
    """The files are equal, and the old ones stay; only a run from the new location may write."""
    old_files = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    old_contents = contents(FolderCheckpoint(str(old)))
    moved = run_move(tables, old, LOCATION)
    assert (moved.namespace, moved.old, moved.new) == (NAMESPACE, str(old), LOCATION)
    assert (moved.files, moved.stores, moved.refused) == (len(old_contents), 2, 1)
    assert moved.bytes == sum(len(data or b"") for data in old_contents.values())
    stored = StoredCheckpoint(tables, LOCATION)
    assert contents(stored) == described(old_contents, LOCATION)
    assert stored.files().keys() == old_contents.keys()
    assert stored.partitions() == {"0": {0, 1}}
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == old_files
    assert locations_of(tables, STORES) == (f"{LOCATION}/state",)
    last = VersionId(BATCHES, attempt(BATCHES))
    with closing(make_engine(tables)) as engine:
        with pytest.raises(ConfigurationError, match="this namespace belongs to the query with the checkpoint"):
            write(engine, STORES[0], attempt(70), base=last, run=query_run("old", location_in(tmp_path)))
        write(engine, STORES[0], attempt(71), base=last, run=query_run("new", f"{LOCATION}/state"))

    back = tmp_path / "back"
    moved = run_move(tables, LOCATION, back)
    folder = FolderCheckpoint(str(back))
    assert contents(folder) == described(old_contents, f"file:{back}")
    assert {*folder.files()} == {*old_contents, *(f"state/0/{number}/dynastate" for number in (0, 1))}
    for number in (0, 1):
        text = f"state of this partition is in DynamoDB store={NAMESPACE}/0/{number}/default\n"
        assert (back / "state" / "0" / str(number) / "dynastate").read_text() == text
    assert (folder.namespace(), folder.partitions()) == (NAMESPACE, {"0": {0, 1}})
    assert locations_of(tables, STORES) == (f"file:{back}/state",)


def test_to_s3(tables: MemoryTables, old: Path, s3: str) -> None:
    """Hadoop's name of S3 stays in the descriptions of operators."""
    assert s3
    run_move(tables, old, LOCATION)
    run_move(tables, LOCATION, "s3a://queries/moved/orders")
    assert locations_of(tables, STORES) == ("s3://queries/moved/orders/state",)
    folder = FolderCheckpoint("s3://queries/moved/orders")
    assert contents(folder) == described(contents(FolderCheckpoint(str(old))), "s3a://queries/moved/orders")
    assert folder.partitions() == {"0": {0, 1}}
    assert folder.find("offsets/9") is None
    run_move(tables, "s3://queries/moved/orders", f"dynastate://{NAMESPACE}/again")
    assert files_of(StoredCheckpoint(tables, f"dynastate://{NAMESPACE}/again")).keys() == files_of(folder).keys()


def test_between_two_names(tables: MemoryTables, old: Path) -> None:
    run_move(tables, old, LOCATION)
    other = f"dynastate://{NAMESPACE}/other"
    run_move(tables, LOCATION, other)
    old_contents = contents(StoredCheckpoint(tables, LOCATION))
    assert contents(StoredCheckpoint(tables, other)) == described(old_contents, other)


def test_a_second_call_changes_nothing(tables: MemoryTables, old: Path) -> None:
    run_move(tables, old, LOCATION)
    items = dict(tables.items)
    moved = run_move(tables, old, LOCATION)
    assert (moved.files, moved.bytes, moved.refused) == (0, 0, 1)
    assert tables.items == items


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("is_back", [False, True], ids=["to DynamoDB", "to a folder"])
def test_a_crash_at_any_request(
    tables: MemoryTables, old: Path, tmp_path: Path, *, is_back: bool, applied: bool
) -> None:
    """A log has no batch without what comes before it, no run begins on a part, and another call completes it."""
    if is_back:
        run_move(tables, old, LOCATION)
    lengths: set[tuple[int, int, int]] = set()
    items, old_locations = dict(tables.items), locations_of(tables, STORES)
    for left in range(1_000):
        tables.items.clear()
        tables.items.update(items)
        source, target = (LOCATION, str(tmp_path / f"back-{left}")) if is_back else (str(old), LOCATION)
        plan = plan_move(tables, checkpoint_at(tables, source), checkpoint_at(tables, target))
        dying = Dying(tables, left, applied=applied)
        try:
            move(dying, checkpoint_at(dying, source), checkpoint_at(dying, target), plan)
        except DynastateError:
            new = checkpoint_at(tables, target)
            sources, offsets, commits = batches(new)
            assert not offsets or sources == 2
            assert not commits or offsets == BATCHES
            lengths.add((sources, offsets, commits))
            assert commits == BATCHES or locations_of(tables, STORES) == old_locations
            run_move(tables, source, target)
            assert files_of(new).keys() == plan.files.keys()
            assert len(locations_of(tables, STORES)) == 1
        else:
            break
    assert lengths >= {(0, 0, 0), (1, 0, 0), (2, 0, 0), (2, BATCHES, 0), (2, BATCHES, BATCHES)}


def test_a_crash_within_a_file(
    tables: MemoryTables, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a folder that was not finished is none, and another call writes it."""
    run_move(tables, old, LOCATION)
    back = tmp_path / "back"
    folder = FolderCheckpoint(str(back))

    class Full:
        def __getattr__(self, name: str) -> object:
            return getattr(system, name)

        def move(self, source: str, target: str) -> None:
            if target.endswith("offsets/3"):
                raise OSError("no space")
            system.move(source, target)

    system = folder._system
    monkeypatch.setattr(folder, "_system", Full())
    stored = StoredCheckpoint(tables, LOCATION)
    with pytest.raises(OSError, match="no space"):
        move(tables, stored, folder, plan_move(tables, stored, folder))
    assert batches(FolderCheckpoint(str(back))) == (2, 3, 0)
    run_move(tables, LOCATION, back)
    assert batches(FolderCheckpoint(str(back))) == (2, BATCHES, BATCHES)
    assert not [path for path in back.rglob("*") if path.name.startswith(".")]


def test_locations_that_are_refused(tables: MemoryTables, old: Path, tmp_path: Path) -> None:
    for new, words in (
        (str(old), "a checkpoint is moved between a folder and dynastate"),
        (str(tmp_path / "other"), "a checkpoint is moved between a folder and dynastate"),
        ("dynastate://clicks/query", f"in the namespace {NAMESPACE}: give dynastate://{NAMESPACE}/NAME"),
        (f"dynastate://{NAMESPACE}", "a checkpoint in DynamoDB is named dynastate://NAMESPACE/NAME"),
    ):
        items = dict(tables.items)
        with pytest.raises(ConfigurationError, match=words):
            run_move(tables, old, new)
        assert tables.items == items
    run_move(tables, old, LOCATION)
    with pytest.raises(ConfigurationError, match="a checkpoint is moved between a folder and dynastate"):
        run_move(tables, LOCATION, f"{LOCATION}/")


@pytest.mark.parametrize(("file", "data"), [("offsets/9", b"v1"), ("offsets/2", b"v1\n{}"), ("metadata", b"{}")])
def test_a_location_with_other_files_is_refused(tables: MemoryTables, old: Path, file: str, data: bytes) -> None:
    """A file that the old checkpoint does not have, or has with another content."""
    files = CheckpointFiles(tables, set())
    files.put(Checkpoint(NAMESPACE, "query"), file, data, overwrites=False)
    items = dict(tables.items)
    with pytest.raises(ConfigurationError, match=f"the new location has other files.*file={file}"):
        run_move(tables, old, LOCATION)
    assert tables.items == items


def test_a_checkpoint_that_does_not_own_the_state(tables: MemoryTables, old: Path, tmp_path: Path) -> None:
    """A copy is refused, also after the query has run from the new location, and so is an old one."""
    copied = make_old(tmp_path / "copied")
    with pytest.raises(ConfigurationError, match=f"which belongs to the checkpoint file:{old}. If this is a copy"):
        run_move(tables, copied, LOCATION)
    run_move(tables, old, LOCATION)
    with pytest.raises(ConfigurationError, match=f"which belongs to the checkpoint {LOCATION}. If this is a copy"):
        run_move(tables, old, f"dynastate://{NAMESPACE}/second")
    files = CheckpointFiles(tables, set())
    files.put(Checkpoint(NAMESPACE, "query"), "offsets/6", b"v1", overwrites=False)
    with pytest.raises(ConfigurationError, match=r"the new location has other files.*file=offsets/6"):
        run_move(tables, old, LOCATION)
    adopt_stores(tables, STORES, "file:/third/state")
    with pytest.raises(ConfigurationError, match="which belongs to the checkpoint file:/third"):
        run_move(tables, LOCATION, tmp_path / "back")


def test_a_checkpoint_without_state_in_dynamodb(tables: MemoryTables, old: Path) -> None:
    for number in (0, 1):
        (old / "state" / "0" / str(number) / "dynastate").unlink()
    with pytest.raises(ConfigurationError, match="this checkpoint has no state in DynamoDB"):
        run_move(tables, old, LOCATION)


def test_a_query_that_runs_meanwhile(tables: MemoryTables, old: Path, tmp_path: Path) -> None:
    """A new batch, and a file that was deleted: the namespace stays with the old location."""
    checkpoint, stored = FolderCheckpoint(str(old)), StoredCheckpoint(tables, LOCATION)
    plan = plan_move(tables, checkpoint, stored)
    (old / "offsets" / "6").write_text("v1")
    with pytest.raises(ConfigurationError, match="the checkpoint has changed while it was copied"):
        move(tables, checkpoint, stored, plan)
    (old / "offsets" / "6").unlink()
    stored.delete("commits/0")
    plan = plan_move(tables, checkpoint, stored)
    (old / "commits" / "0").unlink()
    with pytest.raises(ConfigurationError, match="the checkpoint has changed while it was copied"):
        move(tables, checkpoint, stored, plan)
    assert locations_of(tables, STORES) == (location_in(tmp_path),)


def test_another_writer_of_the_new_location(tables: MemoryTables, old: Path) -> None:
    """One of two commands that run at the same time writes each file; the other one is refused."""
    files = CheckpointFiles(tables, set())

    def write_first(verb: str) -> None:
        if verb == "update":
            files.put(Checkpoint(NAMESPACE, "query"), "commits/5", b"other", overwrites=False)

    plan = plan_move(tables, FolderCheckpoint(str(old)), StoredCheckpoint(tables, LOCATION))
    overtaken = StoredCheckpoint(FailingTables(tables, write_first), LOCATION)
    with pytest.raises(ConfigurationError, match=r"the new location has other files.*file=commits/5"):
        move(tables, FolderCheckpoint(str(old)), overtaken, plan)


def test_the_setting_that_a_folder_needs(tables: MemoryTables, old: Path, tmp_path: Path) -> None:
    """Without it, a query at a folder has another namespace."""
    run_move(tables, old, LOCATION)
    stored = StoredCheckpoint(tables, LOCATION)
    assert not plan_move(tables, stored, FolderCheckpoint(str(tmp_path / "back"))).is_named
    assert plan_move(tables, stored, StoredCheckpoint(tables, f"dynastate://{NAMESPACE}/other")).is_named
