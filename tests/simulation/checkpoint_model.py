"""The model of a checkpoint's files, without the engine: who put which file, and what was there at each moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dynastate.dynamodb.wire import from_wire
from dynastate.errors import CorruptStateError
from dynastate.format.checkpoint import (
    Checkpoint,
    FileHead,
    data_of,
    data_of_objects,
    fragment_keys,
    parse_head,
    path_of,
    writer_of_fragment,
)
from dynastate.format.keys import Attempt, Key, store_shard
from dynastate.format.objects import maker_of_file
from tests.simulation.dynamodb import DynamoDB, Place, Wire
from tests.simulation.model import COMMITTED, FAILED, OPEN, violation
from tests.simulation.s3 import S3
from tests.simulation.world import NAMES

#: The outcome of a put that another writer's file has refused; the others are those of a commit.
REFUSED: Final = "refused"


@dataclass(eq=False)
class Put:
    """A put of a file, begun at a moment of the model. Its data are those of no other put."""

    path: str
    data: bytes
    overwrites: bool
    is_wanted: Callable[[], bool]
    since: int
    fate: str = OPEN
    #: The file has been there.
    was_there: bool = False


@dataclass(frozen=True)
class Moment:
    """What was at a path from a moment on: the file of a put, or none. A torn file lacks fragments."""

    at: int
    put: Put | None
    is_torn: bool = False


class CheckpointModel:
    """The files of one checkpoint. Moments are numbers of changes of its files."""

    def __init__(self, checkpoint: Checkpoint, dynamodb: DynamoDB, s3: S3) -> None:
        self.checkpoint = checkpoint
        self._dynamodb, self._s3 = dynamodb, s3
        s3.on_delete = self._object_is_deleted
        self._shard = store_shard(checkpoint.store, 0)
        self._by_data: dict[bytes, Put] = {}
        self._by_writer: dict[Attempt, Put] = {}
        self._history: dict[str, list[Moment]] = {}
        #: Paths that somebody has asked to delete.
        self._doomed: set[str] = set()
        #: What was executed as each batch.
        self._executed: dict[int, bytes] = {}
        self.moment = 0

    def begin_put(self, path: str, data: bytes, *, overwrites: bool, is_wanted: Callable[[], bool]) -> Put:
        put = self._by_data[data] = Put(path, data, overwrites, is_wanted, self.moment)
        return put

    def sends(self, put: Put, writer: Attempt) -> None:
        """Note the writer of a put whose head is sent, or sent again."""
        if not put.is_wanted():
            raise violation("a put of a query that was stopped is sent", file=put.path)
        self._by_writer[writer] = put

    def end_put(self, put: Put, fate: str) -> None:
        """Set the outcome that a put was given, and compare it with what was there meanwhile."""
        put.fate = fate
        if fate == COMMITTED and not put.was_there:
            raise violation("a put has written its file, which was never there", file=put.path)
        if fate in (REFUSED, FAILED) and put.was_there and not self._was_deleted(put):
            raise violation("a put says that it has not written its file, which is there", file=put.path, fate=fate)
        if fate == REFUSED and not any(each.put not in (None, put) for each in self._during(put.path, put.since)):
            raise violation("a put was refused, and there was no file of another writer", file=put.path)

    def deletes(self, paths: Iterable[str]) -> None:
        """Allow that files disappear, at any time from now on."""
        self._doomed.update(paths)

    def changed(self, place: Place, after: Wire | None) -> None:
        """Note a changed item; without `after` it was deleted."""
        shard, sort = place
        if shard != self._shard:
            return
        key = Key("snapshot", shard, sort)
        if sort.startswith("fragment/"):
            if after is None:
                self._fragment_is_deleted(writer_of_fragment(key), sort)
        elif after is None:
            self._is_deleted(path_of(key))
        else:
            self._is_written(key, after)

    def _object_is_deleted(self, key: str) -> None:
        self._fragment_is_deleted(_writer_of_object(key), key)

    def _fragment_is_deleted(self, writer: Attempt, name: str) -> None:
        put = self._by_writer.get(writer)
        current = self._current(put.path) if put is not None else None
        if put is not None and current is not None and current.put is put and not current.is_torn:
            raise violation("a fragment was deleted before the head of its file", fragment=name, file=put.path)

    def _is_deleted(self, path: str) -> None:
        if path not in self._doomed:
            raise violation("a file disappeared without a delete", file=path)
        self._note(path, None)

    def _is_written(self, key: Key, item: Wire) -> None:
        path, head = path_of(key), self._parsed(key, item)
        put, replaced = self._by_writer.get(head.writer), self._current(path)
        if put is None or put.path != path:
            raise violation("a file without a put", file=path)
        # A request that comes after a delete may make the file again, which is not promised otherwise.
        is_late = self._was_deleted(put)
        if replaced is not None and replaced.put is not None and not put.overwrites:
            raise violation("a put has replaced a file", file=path)
        if not is_late and (put.fate in (REFUSED, FAILED) or put.was_there):
            raise violation("a put whose outcome is known has written its file", file=path, fate=put.fate)
        try:
            data = self._data(key, head)
        except CorruptStateError as torn:
            if not is_late:
                raise violation("a head is there without its fragments", file=path, error=torn) from torn
            data = None
        if data not in (None, put.data):
            raise violation("a file has the data of another one", file=path)
        put.was_there = True
        self._note(path, put, is_torn=data is None)

    def _parsed(self, key: Key, item: Wire) -> FileHead:
        try:
            return parse_head(key, from_wire(item))
        except CorruptStateError as error:
            raise violation("a head is corrupt", entry=key.sort, error=error) from error

    def _data(self, key: Key, head: FileHead) -> bytes:
        if head.objects:
            pieces = [self._s3.objects.get(each.key) for each in head.object_ids(key)]
            packed = b"".join(each for each in pieces if each is not None)
            return data_of_objects(key, head, None if None in pieces else packed)
        fragments = [(each, self._item(each)) for each in fragment_keys(key, head.writer, head.fragments)]
        return data_of(key, head, [(each, from_wire(wire)) for each, wire in fragments if wire is not None])

    def _item(self, key: Key) -> Wire | None:
        items: Mapping[Place, Any] = self._dynamodb.items[NAMES["snapshot"]]
        return items.get((key.store_shard, key.sort))

    def _note(self, path: str, put: Put | None, *, is_torn: bool = False) -> None:
        self.moment += 1
        self._history.setdefault(path, []).append(Moment(self.moment, put, is_torn))

    def _current(self, path: str) -> Moment | None:
        return self._history[path][-1] if path in self._history else None

    def _was_deleted(self, put: Put) -> bool:
        """Whether a file at the path of a put was deleted since the put began."""
        return any(each.put is None and each.at > put.since for each in self._history.get(put.path, ()))

    def _during(self, path: str, since: int) -> list[Moment]:
        """What was at a path from a moment until now."""
        history = [Moment(0, None), *self._history.get(path, ())]
        earlier = [each for each in history if each.at <= since]
        return [earlier[-1], *(each for each in history if each.at > since)]

    def check_read(self, path: str, data: bytes | None, since: int) -> None:
        """Check what was read at a path since a moment. No file was read if `data` is None."""
        if data not in [each.put and each.put.data for each in self._during(path, since)]:
            raise violation("a file is read that was not there", file=path, data=data and data[:20])

    def check_corrupt(self, path: str, since: int, error: Exception) -> None:
        """Check that a file which cannot be read is one that a late request has made again."""
        if not any(each.is_torn for each in self._during(path, since)):
            raise violation("a file cannot be read", file=path, error=error) from error

    def check_list(self, folder: str, names: Mapping[str, int], since: int) -> None:
        """Check the names in a folder, with their bytes, that were listed since a moment."""
        for name, moments in self._in_folder(folder, since).items():
            files = [each.put for each in moments]
            if None not in files and name not in names:
                raise violation("a list lacks a file", folder=folder, name=name)
            if name in names and names[name] not in {len(each.data) for each in files if each is not None}:
                raise violation("a list has a file that was not there", folder=folder, name=name)
        if strange := names.keys() - self._in_folder(folder, since).keys():
            raise violation("a list has files without a put", folder=folder, names=sorted(strange))

    def _in_folder(self, folder: str, since: int) -> dict[str, list[Moment]]:
        """What was at each path in a folder, by name."""
        paths = [path for path in self._history if path.rpartition("/")[0] == folder]
        return {path.rpartition("/")[2]: self._during(path, since) for path in paths}

    def check_start(self, folder: str, newest: int, since: int) -> None:
        """Check that a run which begins knows the newest batch that was there since a moment."""
        files = self._in_folder(folder, since).items()
        batches = [int(name) for name, moments in files if all(each.put is not None for each in moments)]
        if max(batches, default=-1) > newest:
            raise violation("a run begins at an older batch", folder=folder, begins=newest, newest=max(batches))

    def execute(self, batch: int, data: bytes) -> None:
        """Check that a batch is executed with the same offsets each time.

        A driver that was suspended until others have deleted the offsets of a batch may put them again.
        """
        was_purged = any(each.put is None for each in self._history[f"offsets/{batch}"])
        if self._executed.setdefault(batch, data) != data and not was_purged:
            raise violation("a batch is executed with other offsets", batch=batch)

    def files(self) -> dict[str, bytes | None]:
        """What is there now. A file that a late request has made again without its fragments has no data (None)."""
        current = {path: moments[-1] for path, moments in self._history.items()}
        return {path: None if last.is_torn else last.put.data for path, last in current.items() if last.put is not None}

    def check_end(self, files_max: int) -> None:
        """Check that nothing is left that no head names, and of each log a bounded number of files."""
        items = self._dynamodb.items[NAMES["snapshot"]]
        fragments = [Key("snapshot", *place) for place in items if place[0] == self._shard and "fragment/" in place[1]]
        named = {each.writer for each in self._heads()}
        orphans = [each.sort for each in fragments if writer_of_fragment(each) not in named]
        orphans += [each for each in self._s3.objects if _writer_of_object(each) not in named]
        if orphans:
            raise violation("orphans are left", count=len(orphans), first=sorted(orphans)[:3])
        for folder in ("offsets", "commits"):
            count = sum(path.startswith(f"{folder}/") for path in self.files())
            if count > files_max:
                raise violation("old files of a log are left", folder=folder, count=count, most=files_max)

    def _heads(self) -> Iterable[Any]:
        for (shard, sort), item in self._dynamodb.items[NAMES["snapshot"]].items():
            if shard == self._shard and sort.startswith("file/"):
                yield parse_head(Key("snapshot", shard, sort), from_wire(item))


def _writer_of_object(key: str) -> Attempt:
    maker = maker_of_file(key)
    assert maker is not None, "an object with another name"
    return maker[1]
