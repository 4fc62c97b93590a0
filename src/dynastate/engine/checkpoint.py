"""The files of a query's checkpoint: put once or overwritten, read, listed and deleted.

A file exists if and only if its head does. A head is written after its fragments, and deleted before them, so no reader
finds a head without its fragments. Fragments of puts that failed are orphans. Fragments are items, or objects of S3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Final, NamedTuple

from dynastate import runtime
from dynastate.engine.catalog import select_stores
from dynastate.engine.namespaces import place_of
from dynastate.engine.updates import unchanged
from dynastate.errors import CorruptStateError, DynastateError, UnavailableError, UnknownOutcomeError
from dynastate.format.checkpoint import (
    CHECKPOINT_RANGE,
    EVERY_ITEM,
    FRAGMENT_RANGE,
    FRAGMENTS_MAX,
    OBJECTS,
    STORED_BYTES,
    Checkpoint,
    FileEntry,
    FileHead,
    data_of,
    data_of_objects,
    file_key,
    file_parts,
    folder_range,
    fragment_keys,
    fragment_range,
    listed_checkpoint,
    listed_item,
    listed_locations,
    parse_head,
    path_of,
    writer_of_fragment,
)
from dynastate.format.codec import LZ4
from dynastate.format.items import FORMAT, Item, Value, item_bytes
from dynastate.format.keys import SPECS, Attempt, Key, store_shard, where
from dynastate.format.objects import ObjectId, file_prefix, maker_of_file
from dynastate.format.spark_log import METADATA
from dynastate.redaction import get_logger
from dynastate.runtime import limits
from dynastate.storage.limits import KEYS_MAX
from dynastate.storage.meter import Meter
from dynastate.storage.objects import read_stream
from dynastate.storage.tables import Tables, delete_all, delete_own_objects, get_apart, own_locations
from dynastate.storage.update import Condition, Update

log = get_logger("dynastate.checkpoint")

#: Fragments without a head are orphans at this age, by their own time. No put takes as long, and no clock is as wrong.
ORPHAN_AGE: Final = timedelta(days=1)
#: How often a file is written or read again if others replace it meanwhile.
_TRIES: Final = 10
#: The folder of an operator.
_OPERATOR: Final = re.compile(r"state/([0-9]+)")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


class File(NamedTuple):
    """The data of a file, and its time in milliseconds since 1970."""

    data: bytes
    time: int


class StoredFile(NamedTuple):
    """A file of a checkpoint, by its path. `data` is None if the file has fragments or is corrupt: get it alone."""

    path: str
    raw_bytes: int
    time: int
    data: bytes | None


class Orphans(NamedTuple):
    """Fragments of puts that failed: items, and objects."""

    items: Mapping[Key, Item]
    objects: Sequence[ObjectId]


class CheckpointFiles:
    """The files of checkpoints. Its requests are counted in `meter`.

    `listed` are checkpoints that this process has listed. It is shared, and grows. Fragments are objects in the
    `location` of these tables, or items if it is empty.
    """

    def __init__(
        self,
        tables: Tables,
        listed: set[Checkpoint],
        codec: str = LZ4,
        clock: Callable[[], datetime] = runtime.now,
        *,
        location: str = "",
    ) -> None:
        self._tables = tables
        self._listed = listed
        self._codec = codec
        self._clock = clock
        self._location = location

    @property
    def meter(self) -> Meter:
        """The cost of all requests so far."""
        return self._tables.meter

    def put(
        self,
        checkpoint: Checkpoint,
        file: str,
        data: bytes,
        *,
        overwrites: bool,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Write a file. Returns False if the file of another writer exists, unless the put `overwrites` it.

        Nothing is sent, or sent again, after it `is_wanted` no longer: its query may have been started again.

        1. List the checkpoint, if this process has not. 2. Write the fragments. 3. Write the head: the file exists.
        4. Delete the fragments that no head names: of the replaced file, or own ones where the put was refused.

        A crash after 1 leaves a checkpoint without files, a crash after 2 or 3 leaves orphans, which no reader takes.

        Raises:
            UnavailableError: it is not wanted any longer, or others replace the file all the time.
            UnknownOutcomeError: the file may or may not have been written.
        """
        writer = Attempt(runtime.new_id().bytes)
        key = file_key(checkpoint, file)
        head, fragments, objects = file_parts(
            key, data, writer, self._now_ms(), codec=self._codec, location=self._location
        )
        self._list(checkpoint)  # 1
        writes_max = limits().writes_max
        for start in range(0, len(fragments), writes_max):
            self._tables.write(fragments[start : start + writes_max])  # 2
        for object_id, piece in objects:
            self._tables.objects.put(object_id, piece)  # 2
        replaced = self._head(key) if overwrites else None
        for _ in range(_TRIES):
            current = self._write_head(key, head, replaced, overwrites=overwrites, is_wanted=is_wanted)  # 3
            if _is_of(writer, current):
                self._delete_fragments(key, replaced)  # 4
                return True
            if current is not None and not overwrites:
                self._delete_fragments(key, head)  # 4
                return False
            replaced = current
        raise UnavailableError("a checkpoint file is replaced all the time by other writers", **where(key))

    def _list(self, checkpoint: Checkpoint) -> None:
        """List a checkpoint, with the location of its objects, before its first file; delete what failed puts left."""
        if checkpoint not in self._listed:
            item = list_checkpoint(self._tables, checkpoint, self._location)
            self._listed.add(checkpoint)
            try:
                self.delete_orphans(checkpoint, listed_locations(item))
            except DynastateError:  # no error: no reader takes them, and the next run deletes them
                log.warning("orphans were not deleted checkpoint=%s", checkpoint, exc_info=True)

    def _write_head(
        self, key: Key, head: Item, replaced: Item | None, *, overwrites: bool, is_wanted: Callable[[], bool]
    ) -> Item | None:
        """Write a head in place of the one that was read, or of none. Returns the head that is there then.

        After a lost answer the tables read the head, whose writer shows whose it is, before they send it again. If that
        one is refused, the lost request may have been late, so the head is read once more. An outcome is unknown if no
        head is there, or if the head of another writer may have replaced this one.
        """
        absent = Condition(absent=[SPECS[key.role].hash_key])
        condition = absent if replaced is None else Condition(equal={"writer": replaced.get("writer", b"")})
        writer = head["writer"]
        try:
            item = self._tables.update(
                key,
                Update(condition, sets=head, removes=[name for name in (OBJECTS, STORED_BYTES) if name not in head]),
                lambda item: _is_of(writer, item),
                lambda: None if is_wanted() else _not_wanted(key),
            )
        except UnknownOutcomeError as unknown:
            try:
                item = self._head(key)
            except DynastateError:
                raise unknown from None
            if item is None or (overwrites and not _is_of(writer, item)):
                raise
            return item
        return self._head(key) if item is None else item

    def _head(self, key: Key) -> Item | None:
        return self._tables.get([key]).get(key)

    def _delete_fragments(self, key: Key, head: Item | None) -> None:
        """Delete the fragments of a head that does not exist any longer, or never did."""
        try:
            self._delete_fragments_of({} if head is None else {key: head})
        except DynastateError:  # no error: the file is as the answer says, and orphans are deleted later
            log.warning(
                "fragments of a checkpoint file were not deleted store_shard=%s item=%s", *key[1:], exc_info=True
            )

    def get(self, checkpoint: Checkpoint, file: str) -> File | None:
        """The data of a file, which is whole. Returns None if it does not exist."""
        key = file_key(checkpoint, file)
        read_before: FileHead | None = None
        for _ in range(_TRIES):
            item = self._head(key)
            if item is None:
                return None
            head = parse_head(key, item)
            try:
                return File(self._data(key, head), head.time)
            except CorruptStateError:
                if not head.fragments or head == read_before:
                    raise
                read_before = head  # the fragments of a file that is replaced meanwhile are deleted
        raise UnavailableError("a checkpoint file is replaced all the time by other writers", **where(key))

    def _data(self, key: Key, head: FileHead) -> bytes:
        if head.objects:
            packed = read_stream(self._tables.objects, head.stream(key), 0, head.stored_bytes)
            return data_of_objects(key, head, packed)
        low, high = fragment_range(head.writer)
        return data_of(key, head, self._tables.query(key.role, key.store_shard, low, high) if head.fragments else [])

    def list(self, checkpoint: Checkpoint, folder: str) -> list[FileEntry]:
        """The files and folders that are directly in a folder; an empty text is the checkpoint's own folder.

        The folder of an operator has a folder for each of its partitions, in which Spark's state reader finds them.
        """
        entries: dict[str, FileEntry] = {}
        for key, item in self._below(checkpoint, folder):
            head = parse_head(key, item)
            path = path_of(key)[len(folder) + 1 if folder else 0 :]
            name, slash, _ = path.partition("/")
            if not slash:
                entries[name] = FileEntry(name, is_folder=False, bytes=head.raw_bytes, time=head.time)
            elif name not in entries or entries[name].is_folder:
                time = max(head.time, entries[name].time if name in entries else 0)
                entries[name] = FileEntry(name, is_folder=True, bytes=0, time=time)
        if entries and (match := _OPERATOR.fullmatch(folder)):
            stores = select_stores(self._tables, f"{checkpoint.namespace}/{match[1]}").current
            partitions = sorted({place_of(store)[1] for store in stores})
            entries |= {str(each): FileEntry(str(each), is_folder=True, bytes=0, time=0) for each in partitions}
        return list(entries.values())

    def read_all(self, checkpoint: Checkpoint) -> Iterator[StoredFile]:
        """All files of a checkpoint, without what the list of stores adds, by one query of a page for each MB.

        The data of a corrupt file are left out: it is an error for those who read this file.
        """
        for key, item in self._below(checkpoint, ""):
            head = parse_head(key, item)
            try:
                data = None if head.fragments else data_of(key, head, [])
            except CorruptStateError:  # no error yet: many files are not read by a run
                data = None
            yield StoredFile(path_of(key), head.raw_bytes, head.time, data)

    def lengths(self, checkpoint: Checkpoint, folder: str = "") -> dict[str, int]:
        """The paths of all files below a folder, with their lengths."""
        return {path: head.raw_bytes for path, head in self.heads(checkpoint, folder).items()}

    def heads(self, checkpoint: Checkpoint, folder: str = "") -> dict[str, FileHead]:
        """The heads of all files below a folder by their paths, by one Query."""
        return {path_of(key): parse_head(key, item) for key, item in self._below(checkpoint, folder)}

    def locations(self, checkpoint: Checkpoint) -> set[str]:
        """The locations of objects that heads name, by one Query."""
        locations = (item.get(OBJECTS) for _, item in self._below(checkpoint, ""))
        return {location for location in locations if isinstance(location, str)}

    def read(self, checkpoint: Checkpoint, paths: tuple[str, str] | None = None) -> dict[str, File | CorruptStateError]:
        """All files by their paths, or those from the first to the last of two `paths`, each whole or with its defect.

        It takes one Query, and two requests for a file in fragments. A file that is deleted meanwhile is left out.
        """
        low, high = folder_range(checkpoint, "")
        if paths is not None:
            low, high = (file_key(checkpoint, path).sort for path in paths)
        files: dict[str, File | CorruptStateError] = {}
        for key, item in self._tables.query("snapshot", store_shard(checkpoint.store, 0), low, high):
            path = path_of(key)
            try:
                head = parse_head(key, item)
                file = self.get(checkpoint, path) if head.fragments else File(data_of(key, head), head.time)
            except CorruptStateError as corrupt:
                files[path] = corrupt
            else:
                if file is not None:
                    files[path] = file
        return files

    def _below(self, checkpoint: Checkpoint, folder: str) -> Sequence[tuple[Key, Item]]:
        """The heads of all files below a folder."""
        low, high = folder_range(checkpoint, folder)
        return self._tables.query("snapshot", store_shard(checkpoint.store, 0), low, high)

    def delete(self, checkpoint: Checkpoint, files: Iterable[str], *, may_return: bool = False) -> None:
        """Delete files, and all files below folders. Files that do not exist are not an error.

        A file that `may_return` can be put again soon, while a request of this delete is late. Then each head is
        deleted by a request of its own, which leaves the head of another put alone.

        1. Delete the heads. 2. Delete their fragments. A crash after 1 leaves orphans.
        """
        paths = list(dict.fromkeys(files))
        keys = [file_key(checkpoint, path) for path in paths if path]
        heads: dict[Key, Item] = {}
        for start in range(0, len(keys), KEYS_MAX):
            heads |= self._tables.get(keys[start : start + KEYS_MAX])
        for path in paths:
            if not path or file_key(checkpoint, path) not in heads:
                heads |= self._below(checkpoint, path)
        if may_return:
            delete_heads(self._tables, heads)  # 1
        else:
            self._delete(list(heads), [item_bytes(item) for item in heads.values()])  # 1
        self._delete_fragments_of(heads)  # 2

    def _delete_fragments_of(self, heads: Mapping[Key, Item]) -> None:
        fragments = [fragment for key, head in heads.items() for fragment in _fragments_of(key, head)]
        self._delete(fragments, [limits().fragment_bytes_max] * len(fragments))
        delete_own_objects(self._tables, [each for key, head in heads.items() for each in _objects_of(key, head)])

    def _delete(self, keys: Sequence[Key], sizes: Sequence[int]) -> None:
        delete_all(self._tables, keys)
        self.meter.deleted(sizes)

    def orphans(self, checkpoint: Checkpoint, locations: Iterable[str]) -> Orphans:
        """The fragments of puts that failed: no head names their writer, and they are old.

        `locations` are those that the checkpoint is listed with. Fragments are listed before heads, so that the head of
        every fragment is read that has one by then.
        """
        shard = store_shard(checkpoint.store, 0)
        low, high = FRAGMENT_RANGE
        fragments = self._tables.list_keys("snapshot", shard, low, high)
        objects = own_objects(self._tables, checkpoint, locations)
        if not fragments and not objects:
            return Orphans({}, [])
        writers = {item.get("writer") for _, item in self._below(checkpoint, "")}
        headless = [key for key in fragments if writer_of_fragment(key) not in writers]
        items: dict[Key, Item] = {}
        for start in range(0, len(headless), KEYS_MAX):
            items |= self._tables.get(headless[start : start + KEYS_MAX])
        latest_ms = self._now_ms() - ORPHAN_AGE // timedelta(milliseconds=1)
        return Orphans(
            {key: item for key, item in items.items() if _time_of(item) <= latest_ms},
            [each for each in objects if _is_left(each, writers, latest_ms)],
        )

    def delete_orphans(self, checkpoint: Checkpoint, locations: Iterable[str]) -> int:
        """Delete the fragments of puts that failed, in items and objects; return how many are deleted."""
        orphans = self.orphans(checkpoint, locations)
        self._delete(list(orphans.items), [item_bytes(item) for item in orphans.items.values()])
        delete_own_objects(self._tables, orphans.objects)
        return len(orphans.items) + len(orphans.objects)

    def _now_ms(self) -> int:
        return (self._clock() - _EPOCH) // timedelta(milliseconds=1)


def delete_heads(tables: Tables, heads: Mapping[Key, Item]) -> None:
    """Delete heads as they were read, but no head of a later put; a late request deletes none of these either."""
    for key, head in heads.items():
        writer = head.get("writer")
        tables.delete_over(key, Condition(absent=["writer"]) if writer is None else unchanged({"writer": writer}))


def checkpoint_items(tables: Tables, namespace: str) -> dict[Checkpoint, list[Key]]:
    """The keys of all items of a namespace's checkpoints, heads first. Checkpoints without items are left out."""
    low, high = EVERY_ITEM
    keys = {
        checkpoint: tables.list_keys("snapshot", store_shard(checkpoint.store, 0), low, high)
        for checkpoint in read_checkpoints(tables, namespace)
    }
    return {checkpoint: items for checkpoint, items in keys.items() if items}


def _not_wanted(key: Key) -> UnavailableError:
    return UnavailableError(
        "the query of this checkpoint file was stopped, or its process ended, before the file was written", **where(key)
    )


def list_checkpoint(tables: Tables, checkpoint: Checkpoint, location: str) -> Item:
    """List a checkpoint in its namespace, with the location of its objects if there is one; return the item."""
    key, _ = listed_item(checkpoint)
    adds = {OBJECTS: frozenset([location])} if location else {}
    item = tables.update(key, Update(Condition(), sets={"format": FORMAT}, adds=adds))
    return {} if item is None else item


def read_checkpoints(tables: Tables, namespace: str) -> dict[Checkpoint, frozenset[str]]:
    """The checkpoints that a namespace lists, with the locations of their objects. A listed one need not have files."""
    low, high = CHECKPOINT_RANGE
    items = tables.query("snapshot", f"{namespace}/#", low, high)
    return {listed_checkpoint(namespace, key, item): listed_locations(item) for key, item in items}


def object_locations(tables: Tables, checkpoint: Checkpoint) -> frozenset[str]:
    """The locations of objects that a checkpoint is listed with."""
    key, _ = listed_item(checkpoint)
    return listed_locations(tables.get([key]).get(key, {}))


def own_objects(tables: Tables, checkpoint: Checkpoint, locations: Iterable[str]) -> list[ObjectId]:
    """The objects of a checkpoint's files in those of the locations that are these tables' own, named or not."""
    prefix = file_prefix(checkpoint.store)
    return [each for location in own_locations(tables, locations) for each in tables.objects.names(location, prefix)]


def first_writers(tables: Tables, namespace: str) -> dict[Checkpoint, Value | None]:
    """The writer of the file `metadata` of each checkpoint that a namespace lists; None where there is no such file.

    A query puts this file before all others, and never again: another writer is that of another query.
    """
    keys = {each: file_key(each, METADATA) for each in read_checkpoints(tables, namespace)}
    heads = get_apart(tables, list(keys.values()))
    return {checkpoint: heads.get(key, {}).get("writer") for checkpoint, key in keys.items()}


def _fragments_of(key: Key, head: Item) -> list[Key]:
    """The keys of the fragments that a head names, also if it is corrupt."""
    writer, fragments = head.get("writer"), head.get("fragments")
    if not isinstance(writer, bytes) or len(writer) != 16 or not isinstance(fragments, int) or OBJECTS in head:
        return []
    return fragment_keys(key, Attempt(writer), min(fragments, FRAGMENTS_MAX))


def _objects_of(key: Key, head: Item) -> list[ObjectId]:
    """The objects that a head names. Those of a corrupt head are orphans."""
    try:
        return parse_head(key, head).object_ids(key) if OBJECTS in head else []
    except CorruptStateError:
        return []


def _is_left(object_id: ObjectId, writers: Collection[Value | None], latest_ms: int) -> bool:
    """Whether an object is old, and no head names its writer."""
    maker = maker_of_file(object_id.name)
    return maker is not None and maker[0] <= latest_ms and bytes(maker[1]) not in writers


def _is_of(writer: Value, head: Item | None) -> bool:
    return head is not None and head.get("writer") == writer


def _time_of(fragment: Item) -> int:
    time = fragment.get("time")
    return time if isinstance(time, int) else 0
