"""Files of checkpoints: one winner for each file, whole files only, and whose success a lost answer is."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.retries import RetryPolicy
from dynastate.engine.checkpoint import (
    ORPHAN_AGE,
    CheckpointFiles,
    File,
    Orphans,
    StoredFile,
    first_writers,
    list_checkpoint,
    read_checkpoints,
)
from dynastate.engine.namespaces import read_namespace
from dynastate.errors import ConfigurationError, CorruptStateError, UnavailableError, UnknownOutcomeError
from dynastate.format.checkpoint import Checkpoint, FileEntry, file_key, listed_item, path_of
from dynastate.format.codec import LZ4
from dynastate.format.items import Item
from dynastate.format.keys import Key
from dynastate.format.objects import ObjectId
from dynastate.operations.lifecycle.drop import drop_checkpoints
from dynastate.settings import SNAPSHOT_TABLE, Settings
from dynastate.storage.tables import Tables
from dynastate.storage.update import Update
from tests.conftest import REGION
from tests.support.clients import FailingClient, client_error, lost_answer
from tests.support.clock import Clock, Longest
from tests.support.engine_driver import make_engine, now
from tests.support.faults import Dying, FailingObjects, FailingTables, Fault, Overtaken, Recorded
from tests.support.limits import set_limits
from tests.support.memory_tables import MemoryTables
from tests.support.samples import namespace_of, noise

CHECKPOINT = Checkpoint("ns", "clicks")
FILE = "offsets/7"
COMPACT = "sources/0/9.compact"
TIME = 1_735_689_600_000
NEXT_QUERY = ("metadata", FILE, COMPACT, "offsets/8")
#: A file that is cut into five fragments of at most 50 bytes.
LARGE, OTHER_LARGE = noise(230, "large"), noise(230, "other")


#: Where the fragments of a test are objects; without a location they are items.
LOCATION = f"s3://bucket/{SNAPSHOT_TABLE}"
locations: list[str] = []


@pytest.fixture(autouse=True)
def small_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fragments of 50 bytes, written and deleted by two."""
    set_limits(monkeypatch, fragment_bytes_max=50, writes_max=2, object_bytes=50)


@pytest.fixture
def in_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fragments are in objects, whose requests may fail as those of tables."""
    monkeypatch.setattr(sys.modules[__name__], "locations", [LOCATION])
    monkeypatch.setattr(FailingTables, "objects", property(FailingObjects))


@pytest.fixture(params=["items", "objects"])
def everywhere(request: pytest.FixtureRequest) -> None:
    """A test runs twice: with fragments in items, and in objects."""
    if request.param == "objects":
        request.getfixturevalue("in_objects")


everywhere_too = pytest.mark.usefixtures("everywhere")


def files_of(tables: Tables, clock: Callable[[], datetime] = now, *, is_listed: bool = True) -> CheckpointFiles:
    """Make the files of a process of their own, which has listed the checkpoint already, unless it is to list it."""
    return CheckpointFiles(tables, {CHECKPOINT} if is_listed else set(), LZ4, clock, location="".join(locations))


def fragments_of(memory: MemoryTables) -> list[Key | ObjectId]:
    return [*fragment_items(memory), *memory.objects.objects]


def fragment_items(memory: MemoryTables) -> list[Key]:
    return [key for key in memory.keys("snapshot") if key.sort.startswith("fragment/")]


def content(tables: Tables, file: str) -> bytes | None:
    result = files_of(tables).get(CHECKPOINT, file)
    return result and result.data


@pytest.mark.parametrize("data", [b"", b"v1\n{}", LARGE], ids=["empty", "short", "fragments"])
@everywhere_too
def test_a_file_is_read_as_it_was_put(memory: MemoryTables, data: bytes) -> None:
    """Its data and its time; a file that was not put is None."""
    files = files_of(memory)
    assert files.get(CHECKPOINT, FILE) is None
    assert files.put(CHECKPOINT, FILE, data, overwrites=False)
    assert files_of(memory).get(CHECKPOINT, FILE) == File(data, TIME)
    assert files.get(Checkpoint("ns", "other"), FILE) is None


@pytest.mark.parametrize("first", [b"first", LARGE], ids=["short", "fragments"])
@pytest.mark.parametrize("second", [b"first", OTHER_LARGE], ids=["same bytes", "fragments"])
@everywhere_too
def test_a_file_is_put_once(memory: MemoryTables, first: bytes, second: bytes) -> None:
    """A second put is refused, also of the same bytes, and leaves nothing behind; an overwrite replaces the file."""
    assert files_of(memory).put(CHECKPOINT, FILE, first, overwrites=False)
    items = dict(memory.items)
    assert not files_of(memory).put(CHECKPOINT, FILE, second, overwrites=False)
    assert memory.items == items
    assert files_of(memory).put(CHECKPOINT, FILE, second, overwrites=True)
    assert content(memory, FILE) == second
    assert len(fragments_of(memory)) == (5 if second == OTHER_LARGE else 0)


def test_a_steady_put_is_one_request(memory: MemoryTables) -> None:
    """Once a process has listed the checkpoint, a small file costs one request to put and one to get."""
    engine = make_engine(memory)
    engine.checkpoint_files().put(CHECKPOINT, "offsets/0", b"0", overwrites=False)
    assert [*read_checkpoints(memory, "ns")] == [CHECKPOINT]
    files = engine.checkpoint_files()
    assert files.put(CHECKPOINT, "offsets/1", b"1", overwrites=False)
    assert (files.meter.requests, files.meter.write_units, files.meter.read_units) == (1, 1, 0)
    files = engine.checkpoint_files()
    assert files.get(CHECKPOINT, "offsets/1") == File(b"1", TIME)
    assert (files.meter.requests, files.meter.write_units, files.meter.read_units) == (1, 0, 1)
    engine.close()


def test_a_checkpoint_is_listed_before_its_first_file(memory: MemoryTables) -> None:
    """A crash at any request leaves no file of a checkpoint that is not listed; the list of stores is empty."""
    for left in range(4):
        tables = MemoryTables()
        dying = Dying(tables, left)
        try:
            files_of(dying, is_listed=False).put(CHECKPOINT, FILE, b"data", overwrites=False)
        except UnavailableError:
            assert left < 3
        listed = [*read_checkpoints(tables, "ns")] == [CHECKPOINT]
        assert listed or content(tables, FILE) is None
        assert read_namespace(tables, "ns").listed == []
    assert content(tables, FILE) == b"data"


@everywhere_too
def test_listing(memory: MemoryTables) -> None:
    """Files in the order of their numbers, with size and time; folders are implied, with the newest time below."""
    for minutes, file in enumerate(("offsets/10", "offsets/9", "offsets/.9.tmp", "sources/0/1", COMPACT, "metadata")):
        files = files_of(memory, lambda minutes=minutes: now() + timedelta(minutes=minutes))  # type: ignore[misc]  # a default that binds
        files.put(CHECKPOINT, file, LARGE if file == COMPACT else b"12345", overwrites=False)
    files = files_of(memory)
    assert files.list(CHECKPOINT, "") == [
        FileEntry("metadata", is_folder=False, bytes=5, time=TIME + 300_000),
        FileEntry("offsets", is_folder=True, bytes=0, time=TIME + 120_000),
        FileEntry("sources", is_folder=True, bytes=0, time=TIME + 240_000),
    ]
    assert [entry.name for entry in files.list(CHECKPOINT, "offsets")] == [".9.tmp", "9", "10"]
    assert files.list(CHECKPOINT, "sources") == [FileEntry("0", is_folder=True, bytes=0, time=TIME + 240_000)]
    assert [entry.bytes for entry in files.list(CHECKPOINT, "sources/0")] == [5, len(LARGE)]
    assert files.list(CHECKPOINT, "offset") == []
    assert files.list(CHECKPOINT, "offsets/9") == []
    assert files.list(Checkpoint("ns", "click"), "") == []


def test_all_files_by_one_request(memory: MemoryTables) -> None:
    """Each as it is got alone; one with fragments has no data."""
    for file in ("offsets/10", "offsets/9", "metadata", COMPACT):
        files_of(memory).put(CHECKPOINT, file, LARGE if file == COMPACT else file.encode(), overwrites=False)
    engine = make_engine(memory)
    files = engine.checkpoint_files()
    stored = {each.path: each for each in files.read_all(CHECKPOINT)}
    assert (files.meter.requests, files.meter.read_units) == (1, 1)
    engine.close()
    assert list(stored) == ["metadata", "offsets/9", "offsets/10", COMPACT]
    assert stored.pop(COMPACT) == StoredFile(COMPACT, len(LARGE), TIME, None)
    for path, each in stored.items():
        assert (File(each.data or b"", each.time), each.raw_bytes) == (files.get(CHECKPOINT, path), len(path))


def test_a_corrupt_file_among_all_is_an_error_of_its_own(memory: MemoryTables) -> None:
    """A start reads all files at once, and many of them are never needed."""
    files = files_of(memory)
    for file in ("offsets/1", "offsets/2"):
        files.put(CHECKPOINT, file, b"text", overwrites=False)
    key = file_key(CHECKPOINT, "offsets/1")
    memory.items[key] = memory.items[key] | {"crc32": 1}
    assert [(each.path, each.data) for each in files.read_all(CHECKPOINT)] == [
        ("offsets/1", None),
        ("offsets/2", b"text"),
    ]
    with pytest.raises(CorruptStateError, match="wrong checksum"):
        files.get(CHECKPOINT, "offsets/1")


@everywhere_too
def test_deletes(memory: MemoryTables) -> None:
    """Files with their fragments, and folders with all below them; other files stay, and missing ones are ignored."""
    files = files_of(memory)
    for file in ("offsets/1", "offsets/10", "offsets/2", COMPACT, "sources/0/8", "sources/1/0", "sources.old/1"):
        files.put(CHECKPOINT, file, LARGE, overwrites=False)
    files.delete(CHECKPOINT, ["offsets/1", "offsets/2", "offsets/3", "offsets/1"])
    assert [entry.name for entry in files.list(CHECKPOINT, "offsets")] == ["10"]
    files.delete(CHECKPOINT, ["sources/0", "nothing"])
    assert [entry.name for entry in files.list(CHECKPOINT, "")] == ["offsets", "sources.old", "sources"]
    assert len(fragments_of(memory)) == 15
    files.delete(CHECKPOINT, [])
    files.delete(CHECKPOINT, [""])
    assert {*memory.items} <= {listed_item(CHECKPOINT)[0]}


def test_a_batch_that_was_purged_can_be_put_again(memory: MemoryTables) -> None:
    """By a driver that was suspended until another one had written and purged this batch: that is not promised."""
    suspended, other = files_of(memory), files_of(memory)
    assert other.put(CHECKPOINT, FILE, b"other", overwrites=False)
    assert not suspended.put(CHECKPOINT, FILE, b"late", overwrites=False)
    other.delete(CHECKPOINT, [FILE])
    assert suspended.put(CHECKPOINT, FILE, b"late", overwrites=False)


@everywhere_too
def test_a_late_delete_leaves_a_file_that_was_put_again(memory: MemoryTables) -> None:
    """By a rollback, or by a drop of the namespace: the same batch, or the next query, has files at the same paths."""

    def put(data: bytes) -> None:
        for file in (FILE, COMPACT):
            assert files_of(memory).put(CHECKPOINT, file, data, overwrites=False)

    key, _ = listed_item(CHECKPOINT)
    list_checkpoint(memory, CHECKPOINT, "".join(locations))
    for is_drop in (False, True):
        put(LARGE)
        recorded = Recorded(memory)
        if is_drop:
            assert drop_checkpoints(recorded, first_writers(recorded, CHECKPOINT.namespace)) == 2
        else:
            files_of(recorded).delete(CHECKPOINT, [FILE, COMPACT], may_return=True)
        assert {*memory.items} == {key}
        put(OTHER_LARGE)
        recorded.repeat("delete_over", "delete")
        assert content(memory, FILE) == content(memory, COMPACT) == OTHER_LARGE
        files_of(memory).delete(CHECKPOINT, [FILE, COMPACT])


@pytest.mark.parametrize("files", [("metadata", FILE, COMPACT), (FILE, COMPACT)])
@everywhere_too
def test_a_drop_that_another_overtakes_at_any_request(files: Sequence[str]) -> None:
    """The files of the query that begins after the other drop stay, also where an earlier drop was cut off."""
    errors: list[str] = []
    for request in range(20):
        memory = MemoryTables()
        for file in files:
            assert files_of(memory, is_listed=False).put(CHECKPOINT, file, LARGE, overwrites=False)
        if not overtaken_at(memory, request, errors):
            break
        assert [content(memory, file) for file in NEXT_QUERY] == [OTHER_LARGE] * len(NEXT_QUERY)
        assert len(fragments_of(memory)) == 5 * len(NEXT_QUERY)
    assert {*memory.items} == {listed_item(CHECKPOINT)[0]}
    assert 7 < request < 19
    # After the listings and the check it deletes only what the other drop has deleted already.
    assert len(errors) == 4 + len(locations)
    assert all("another command has dropped this checkpoint meanwhile" in error for error in errors)


def overtaken_at(memory: MemoryTables, request: int, errors: list[str]) -> bool:
    """Drop; before one request another drop does so, and a query begins. Returns False if there are fewer requests."""
    requests = itertools.count()

    def happens(_: str) -> None:
        if next(requests) == request:
            drop_checkpoints(memory, first_writers(memory, CHECKPOINT.namespace))
            for file in NEXT_QUERY:
                assert files_of(memory).put(CHECKPOINT, file, OTHER_LARGE, overwrites=False)

    try:
        drop_checkpoints(FailingTables(memory, happens), first_writers(memory, CHECKPOINT.namespace))
    except ConfigurationError as error:
        errors.append(str(error))
    return next(requests) > request


def test_a_drop_deletes_metadata_last(memory: MemoryTables) -> None:
    """Until then other drops know by it whose the files are."""
    for file in ("metadata", FILE, "sources/0/0"):
        assert files_of(memory, is_listed=False).put(CHECKPOINT, file, b"text", overwrites=False)
    recorded = Recorded(memory)
    drop_checkpoints(recorded, first_writers(memory, CHECKPOINT.namespace))
    deleted = [arguments[0] for verb, arguments in recorded.requests if verb == "delete_over"]
    assert [path_of(key) for key in deleted] == [FILE, "sources/0/0", "metadata"]


def test_a_purge_of_many_files_costs_few_requests(memory: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty-four files: one read, and one delete of 25 items at most."""
    set_limits(monkeypatch, writes_max=25)
    names = [f"{folder}/{number}" for folder in ("offsets", "commits") for number in range(12)]
    for name in names:
        files_of(memory).put(CHECKPOINT, name, b"data", overwrites=False)
    files = files_of(memory.metered(type(memory.meter)()))
    files.delete(CHECKPOINT, names)
    assert (files.meter.requests, files.meter.items_deleted, files.meter.delete_units) == (2, 24, 24)
    assert memory.items == {}


@pytest.mark.parametrize("file", ["a//b", "", "../x", "9" * 20, "x" * 1_020])
def test_an_impossible_path_is_refused_before_any_request(memory: MemoryTables, file: str) -> None:
    """Nothing is sent for a path that cannot be a key."""
    files = files_of(memory, is_listed=False)
    with pytest.raises(ConfigurationError):
        files.put(CHECKPOINT, file, b"data", overwrites=False)
    with pytest.raises(ConfigurationError):
        files.get(CHECKPOINT, file)
    assert memory.calls == []


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("overwrites", [False, True])
@everywhere_too
def test_a_put_that_is_torn_at_any_request(*, overwrites: bool, applied: bool) -> None:
    """A crash before or after any request: the file is the old one or the new one, whole; a later put goes through."""
    outcomes: set[bytes | None] = set()
    for left in range(20):
        memory = MemoryTables()
        if overwrites:
            files_of(memory).put(CHECKPOINT, FILE, OTHER_LARGE, overwrites=False)
        dying = Dying(memory, left, applied=applied)
        try:
            files_of(dying).put(CHECKPOINT, FILE, LARGE, overwrites=overwrites)
            is_over = dying.left >= 0
        except UnavailableError:
            is_over = False
        result = content(memory, FILE)
        outcomes.add(result)
        assert result in (LARGE, OTHER_LARGE if overwrites else None)
        later = files_of(memory, lambda: now() + 2 * ORPHAN_AGE, is_listed=False)
        assert later.put(CHECKPOINT, FILE, b"later", overwrites=True)
        assert content(memory, FILE) == b"later"
        assert fragments_of(memory) == []
        if is_over:
            break
    assert is_over
    assert outcomes == {LARGE, OTHER_LARGE if overwrites else None}


@pytest.mark.parametrize("applied", [False, True])
@everywhere_too
def test_a_delete_that_is_cut_off_at_any_request(*, applied: bool) -> None:
    """Each file is whole or not there, and what is left is deleted by the next delete and the next run."""
    for left in range(20):
        memory = MemoryTables()
        for file in (FILE, COMPACT, "commits/7"):
            files_of(memory).put(CHECKPOINT, file, LARGE, overwrites=False)
        dying = Dying(memory, left, applied=applied)
        try:
            files_of(dying).delete(CHECKPOINT, [FILE, "sources", "commits/7"])
            is_over = dying.left >= 0
        except UnavailableError:
            is_over = False
        for file in (FILE, COMPACT, "commits/7"):
            assert content(memory, file) in (LARGE, None)
        files_of(memory).delete(CHECKPOINT, [FILE, "sources", "commits/7"])
        assert files_of(memory).list(CHECKPOINT, "") == []
        files_of(memory, lambda: now() + ORPHAN_AGE).delete_orphans(CHECKPOINT, locations)
        assert memory.items == {}
        if is_over:
            break
    assert is_over


@everywhere_too
def test_only_old_fragments_without_a_head_are_orphans(memory: MemoryTables) -> None:
    """Fragments of files stay, and so do those of a put that may be under way; the first put of a process cleans up."""
    files_of(memory).put(CHECKPOINT, COMPACT, LARGE, overwrites=False)
    failing = FailingTables(memory)
    failing.fail("update", Fault(UnavailableError("died")))
    with pytest.raises(UnavailableError):
        files_of(failing).put(CHECKPOINT, FILE, OTHER_LARGE, overwrites=False)
    assert len(fragments_of(memory)) == 10
    early = files_of(memory, lambda: now() + ORPHAN_AGE - timedelta(milliseconds=1))
    assert early.orphans(CHECKPOINT, locations) == Orphans({}, [])
    late = files_of(memory, lambda: now() + ORPHAN_AGE, is_listed=False)
    orphans = late.orphans(CHECKPOINT, locations)
    assert len([*orphans.items, *orphans.objects]) == 5
    assert late.put(CHECKPOINT, "metadata", b"{}", overwrites=False)
    assert len(fragments_of(memory)) == 5
    assert content(memory, COMPACT) == LARGE


def test_orphans_that_cannot_be_deleted_do_not_fail_a_put(
    memory: MemoryTables, caplog: pytest.LogCaptureFixture
) -> None:
    """A put that meets a failure of its clean-up is done all the same, and the log has the failure."""
    failing = FailingTables(memory)
    failing.fail("list_keys", Fault(UnavailableError("throttled")))
    assert files_of(failing, is_listed=False).put(CHECKPOINT, FILE, b"data", overwrites=False)
    assert "orphans were not deleted checkpoint=ns/clicks" in caplog.text
    assert files_of(memory).put(CHECKPOINT, COMPACT, LARGE, overwrites=False)
    failing.fail("delete", Fault(UnavailableError("throttled")))
    assert not files_of(failing).put(CHECKPOINT, FILE, LARGE, overwrites=False)
    failing.fail("delete", Fault(UnavailableError("throttled")))
    assert files_of(failing).put(CHECKPOINT, COMPACT, b"short", overwrites=True)
    assert caplog.text.count("fragments of a checkpoint file were not deleted") == 2
    assert (content(memory, FILE), content(memory, COMPACT)) == (b"data", b"short")


def test_a_file_that_is_replaced_while_it_is_read(memory: MemoryTables) -> None:
    """A reader whose fragments are deleted meanwhile reads the file that has replaced its own, or none."""
    files_of(memory).put(CHECKPOINT, FILE, LARGE, overwrites=False)

    def replace() -> None:
        files_of(memory).put(CHECKPOINT, FILE, OTHER_LARGE, overwrites=True)

    assert content(Overtaken(memory, replace, before="query"), FILE) == OTHER_LARGE
    assert content(Overtaken(memory, lambda: files_of(memory).delete(CHECKPOINT, [FILE]), before="query"), FILE) is None


def test_lost_and_corrupt_fragments_are_errors(memory: MemoryTables) -> None:
    """A head whose fragments are not whole is an error that names the file, and never a part of it."""
    files_of(memory).put(CHECKPOINT, FILE, LARGE, overwrites=False)
    items = dict(memory.items)
    for fragment in fragment_items(memory):
        memory.items = {key: item for key, item in items.items() if key != fragment}
        with pytest.raises(CorruptStateError, match=r"lost expected=5 got=4 .*item=file/offsets/0+7"):
            content(memory, FILE)
        data = items[fragment]["data"]
        assert isinstance(data, bytes)
        memory.items = {**items, fragment: {**items[fragment], "data": bytes([data[0] ^ 1]) + data[1:]}}
        with pytest.raises(CorruptStateError, match="wrong checksum"):
            content(memory, FILE)
    memory.items = {**items, file_key(CHECKPOINT, FILE): {**items[file_key(CHECKPOINT, FILE)], "writer": "text"}}
    with pytest.raises(CorruptStateError):
        content(memory, FILE)
    files_of(memory).delete(CHECKPOINT, [FILE])
    assert content(memory, FILE) is None


@pytest.mark.usefixtures("in_objects")
def test_objects_that_are_replaced_while_they_are_read(memory: MemoryTables) -> None:
    """A reader whose objects are deleted meanwhile reads the file that has replaced its own, or none."""
    files_of(memory).put(CHECKPOINT, FILE, LARGE, overwrites=False)

    def replace() -> None:
        files_of(memory).put(CHECKPOINT, FILE, OTHER_LARGE, overwrites=True)

    assert content(Overtaken(memory, replace, before="objects.get"), FILE) == OTHER_LARGE
    deleted = Overtaken(memory, lambda: files_of(memory).delete(CHECKPOINT, [FILE]), before="objects.get")
    assert content(deleted, FILE) is None


@pytest.mark.usefixtures("in_objects")
def test_lost_and_corrupt_objects_are_errors(memory: MemoryTables) -> None:
    """A head whose objects are not whole is an error that names the file and the objects, and never a part of it."""
    files_of(memory).put(CHECKPOINT, FILE, LARGE, overwrites=False)
    stored, objects = memory.objects.objects, dict(memory.objects.objects)
    for object_id, data in objects.items():
        del stored[object_id]
        with pytest.raises(CorruptStateError, match=rf"objects of .* are lost .*{LOCATION}/ns/.*item=file/offsets"):
            content(memory, FILE)
        stored[object_id] = data[:-1]
        with pytest.raises(CorruptStateError, match="lost or too short"):
            content(memory, FILE)
        stored[object_id] = bytes([data[0] ^ 1]) + data[1:]
        with pytest.raises(CorruptStateError, match="wrong checksum"):
            content(memory, FILE)
        stored[object_id] = data
    key, items = file_key(CHECKPOINT, FILE), dict(memory.items)
    wrongs: list[Item] = [{"stored_bytes": 260}, {"stored_bytes": 0}, {"fragments": 4}, {"objects": 1}, {"time": 1}]
    for wrong in wrongs:
        memory.items = {**items, key: items[key] | wrong}
        with pytest.raises(CorruptStateError):
            content(memory, FILE)
    files_of(memory).delete(CHECKPOINT, [FILE])
    assert content(memory, FILE) is None
    assert len(files_of(memory, lambda: now() + ORPHAN_AGE).orphans(CHECKPOINT, [LOCATION]).objects) == 5


def test_objects_of_other_tables_are_left(memory: MemoryTables) -> None:
    """Restored tables read the files of those that they were restored from, and delete none of their objects."""
    others = "s3://bucket/other-tables"
    files = CheckpointFiles(memory, set(), LZ4, now, location=others)
    assert files.put(CHECKPOINT, COMPACT, LARGE, overwrites=False)
    assert files.put(CHECKPOINT, FILE, LARGE, overwrites=False)
    late = files_of(memory, lambda: now() + 2 * ORPHAN_AGE)
    assert content(memory, FILE) == LARGE
    late.delete(CHECKPOINT, [FILE])
    assert late.delete_orphans(CHECKPOINT, [others]) == 0
    assert drop_checkpoints(memory, first_writers(memory, CHECKPOINT.namespace)) == 1
    assert len(memory.objects.objects) == 10


@pytest.mark.parametrize("overwrites", [False, True])
@everywhere_too
def test_a_file_that_is_deleted_during_a_put(memory: MemoryTables, *, overwrites: bool) -> None:
    """A put that was refused by a file which is deleted before it is read goes through."""
    files_of(memory).put(CHECKPOINT, FILE, OTHER_LARGE, overwrites=False)

    class Deleting(FailingTables):
        def update(self, key: Key, update: Update, *more: Any) -> Item | None:
            result: Item | None = super().update(key, update, *more)
            if result is None:
                files_of(memory).delete(CHECKPOINT, [FILE])
            return result

    others: list[Callable[[], object]] = []
    if overwrites:
        others = [lambda: files_of(memory).put(CHECKPOINT, FILE, b"another", overwrites=True)]
    deleting = Deleting(memory, lambda verb: others.pop()() if verb == "update" and others else None)
    assert files_of(deleting).put(CHECKPOINT, FILE, LARGE, overwrites=overwrites)
    assert content(memory, FILE) == LARGE
    assert len(fragments_of(memory)) == 5


def test_an_overwrite_that_is_always_overtaken_gives_up(memory: MemoryTables) -> None:
    """A bound on the tries of an overwrite, with an error that a retry may mend."""
    files_of(memory).put(CHECKPOINT, FILE, b"0", overwrites=False)
    is_other = threading.local()

    def overtake(verb: str) -> None:
        if verb == "update" and not getattr(is_other, "writes", False):
            files_of(memory).put(CHECKPOINT, FILE, b"other", overwrites=True)

    with pytest.raises(UnavailableError, match="replaced all the time"):
        files_of(FailingTables(memory, overtake)).put(CHECKPOINT, FILE, b"mine", overwrites=True)
    assert content(memory, FILE) == b"other"


@pytest.mark.parametrize("size", [10, 230], ids=["short", "fragments"])
def test_four_racing_writers_have_one_winner(size: int) -> None:
    """Of four writers of one file just one stores it, and its data is what is read."""
    for round_number in range(20):
        memory, barrier = MemoryTables(), threading.Barrier(4)
        datas = [noise(size, f"{round_number}/{writer}") for writer in range(4)]

        def put(data: bytes, memory: MemoryTables = memory, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait(10)
            return files_of(memory, is_listed=False).put(CHECKPOINT, FILE, data, overwrites=False)

        with ThreadPoolExecutor(4) as pool:
            winners = [data for data, is_stored in zip(datas, pool.map(put, datas), strict=True) if is_stored]
        assert [content(memory, FILE)] == winners
        assert len(fragments_of(memory)) == (5 if size > 50 else 0)


@pytest.fixture
def place(store: str) -> Checkpoint:
    """A checkpoint of its own for each test: they share moto's tables."""
    return Checkpoint(namespace_of(store), "clicks")


@pytest.fixture
def boto_files(failing_client: FailingClient, place: Checkpoint) -> CheckpointFiles:
    """Files through boto3, on a client that may fail, with a clock of their own."""
    clock, settings = Clock(), Settings(region=REGION, request_deadline_s=20)
    retries = RetryPolicy(settings.request_deadline_s, clock=clock, sleep=clock.sleep, randomness=Longest())
    tables = BotoTables(settings, retries=retries, client=failing_client)
    tables.expect_answers()
    return CheckpointFiles(tables, {place}, LZ4, now)


@pytest.mark.parametrize("data", [b"mine", LARGE], ids=["short", "fragments"])
@pytest.mark.parametrize(
    "faults",
    [
        [Fault(lost_answer())],
        [Fault(lost_answer(), applied=True)],
        [Fault(client_error("InternalServerError", 500), applied=True)],
        [Fault(client_error("429", 429), applied=True)],
        [Fault(lost_answer()), Fault(lost_answer(), applied=True)],
        [Fault(client_error("ThrottlingException")), Fault(lost_answer(), applied=True)],
    ],
    ids=["not applied", "applied", "500", "a proxy", "twice", "throttled"],
)
@pytest.mark.parametrize("overwrites", [False, True])
def test_own_success_after_a_lost_answer(
    failing_client: FailingClient,
    boto_files: CheckpointFiles,
    place: Checkpoint,
    data: bytes,
    faults: list[Fault],
    *,
    overwrites: bool,
) -> None:
    """A put whose answer is lost has stored the file, and does not take it for another writer's."""
    if overwrites:
        boto_files.put(place, FILE, OTHER_LARGE, overwrites=False)
    failing_client.fail("update_item", *faults)
    assert boto_files.put(place, FILE, data, overwrites=overwrites)
    assert boto_files.get(place, FILE) == File(data, TIME)


def test_own_success_whose_request_comes_late(
    failing_client: FailingClient, boto_files: CheckpointFiles, place: Checkpoint
) -> None:
    """A request that is applied after the head was read in vain refuses the next one; its writer shows whose it is."""
    sent: list[dict[str, Any]] = []

    class Late:
        def __getattr__(self, operation: str) -> Callable[..., Any]:
            def call(**arguments: Any) -> Any:
                if operation == "update_item" and not sent:
                    sent.append(arguments)
                    raise lost_answer()
                if operation == "update_item":
                    getattr(failing_client.client, operation)(**sent[0])  # the first one arrives
                return getattr(failing_client.client, operation)(**arguments)

            return call

    tables = BotoTables(Settings(region=REGION), client=Late())
    files = CheckpointFiles(tables, {place}, LZ4, now)
    assert files.put(place, FILE, LARGE, overwrites=False)
    assert boto_files.get(place, FILE) == File(LARGE, TIME)


@pytest.mark.parametrize("data", [b"mine", LARGE], ids=["short", "fragments"])
def test_a_conflict_after_a_lost_answer_is_a_conflict(
    failing_client: FailingClient, boto_files: CheckpointFiles, place: Checkpoint, data: bytes
) -> None:
    """A put whose request was lost, and which another writer has overtaken, has not stored the file."""
    boto_files.put(place, FILE, b"others", overwrites=False)
    failing_client.fail("update_item", Fault(lost_answer()))
    assert not boto_files.put(place, FILE, data, overwrites=False)
    assert boto_files.get(place, FILE) == File(b"others", TIME)


@pytest.mark.parametrize("applied", [False, True])
def test_an_outcome_that_stays_unknown_says_so(
    failing_client: FailingClient, boto_files: CheckpointFiles, place: Checkpoint, *, applied: bool
) -> None:
    """Where the head cannot be read until the deadline, no fragment is deleted: the file may be there, and is whole."""
    failing_client.fail("update_item", Fault(lost_answer(), applied=applied))
    failing_client.fail("get_item", *[Fault(lost_answer())] * 1_000)
    failing_client.fail("batch_get_item", *[Fault(lost_answer())] * 1_000)
    with pytest.raises(UnknownOutcomeError, match="may have happened"):
        boto_files.put(place, FILE, LARGE, overwrites=False)
    failing_client.faults.clear()
    assert boto_files.get(place, FILE) == (File(LARGE, TIME) if applied else None)


def test_the_head_settles_an_unknown_outcome(
    failing_client: FailingClient, boto_files: CheckpointFiles, place: Checkpoint
) -> None:
    """After the deadline of a put its head is read once more: own, another writer's, or none, which stays unknown."""
    failing_client.fail("update_item", Fault(lost_answer(), applied=True))
    failing_client.fail("get_item", Fault(client_error("AccessDeniedException")))
    assert boto_files.put(place, FILE, LARGE, overwrites=False)
    assert boto_files.get(place, FILE) == File(LARGE, TIME)


@pytest.mark.parametrize("overwrites", [False, True])
@pytest.mark.parametrize("exists", [False, True])
def test_a_lost_put_whose_head_is_not_own(
    failing_client: FailingClient, boto_files: CheckpointFiles, place: Checkpoint, *, exists: bool, overwrites: bool
) -> None:
    """Another writer's head is a conflict; where there is none, or it may have replaced this one, it stays unknown."""
    if exists:
        boto_files.put(place, FILE, b"first", overwrites=False)
    failing_client.fail("update_item", Fault(lost_answer()))
    failing_client.fail("get_item", Fault(client_error("AccessDeniedException")))
    if exists and not overwrites:
        assert not boto_files.put(place, FILE, b"mine", overwrites=False)
    else:
        with pytest.raises(UnknownOutcomeError, match="AWS denies permission"):
            boto_files.put(place, FILE, b"mine", overwrites=overwrites)
    assert boto_files.get(place, FILE) == (File(b"first", TIME) if exists else None)


def test_a_throttled_put_has_surely_not_happened(
    failing_client: FailingClient, boto_files: CheckpointFiles, place: Checkpoint
) -> None:
    """Throttles until the deadline are an error that says that nothing was written."""
    failing_client.fail("update_item", *[Fault(client_error("ThrottlingException"))] * 1_000)
    with pytest.raises(UnavailableError, match="throttled"):
        boto_files.put(place, FILE, b"mine", overwrites=False)
    failing_client.faults.clear()
    assert boto_files.get(place, FILE) is None


def test_a_put_of_a_query_that_was_stopped_is_not_sent_again(
    failing_client: FailingClient, boto_files: CheckpointFiles, place: Checkpoint
) -> None:
    """A late put of a run that is over would refuse the same file of the next run."""
    answers = iter([True, False])
    failing_client.fail("update_item", Fault(client_error("ThrottlingException")))
    with pytest.raises(UnavailableError, match="was stopped, or its process ended, before the file was written"):
        boto_files.put(place, FILE, b"late", overwrites=False, is_wanted=lambda: next(answers))
    assert boto_files.get(place, FILE) is None
