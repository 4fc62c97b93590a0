"""Copy of the files of a namespace's checkpoints to other tables, together with the state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from dynastate.engine.checkpoint import CheckpointFiles, checkpoint_items, list_checkpoint, read_checkpoints
from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.checkpoint import OBJECTS, Checkpoint, FileHead, file_key, is_head
from dynastate.format.items import Item, item_bytes
from dynastate.format.keys import Key
from dynastate.format.objects import ObjectId, file_prefix
from dynastate.operations.regions.object_copy import CopiedObjects, ObjectCopy, refuse_location
from dynastate.runtime import limits
from dynastate.storage.tables import Tables, delete_all


class Files(NamedTuple):
    """Files of checkpoints, with the bytes of all their items, and their objects."""

    files: int
    bytes: int
    objects: int
    object_bytes: int


class CheckpointCopy:
    """The checkpoints of a namespace at both ends. The query does not run at the source, nor enters the target.

    Without files at the source, no request is sent to the target. Copies of objects are in `location`.
    """

    def __init__(self, source: Tables, target: Tables, namespace: str, location: str) -> None:
        self._source, self._target, self._namespace, self._location = source, target, namespace, location
        #: The items at the source when the copy began.
        self.items = checkpoint_items(source, namespace)
        #: The locations of the source's objects.
        self._locations = {
            checkpoint: locations
            for checkpoint, locations in (read_checkpoints(source, namespace) if self.items else {}).items()
            if checkpoint in self.items and locations
        }
        for checkpoint, locations in self._locations.items():
            refuse_location(locations, location, checkpoint=checkpoint)

    @property
    def files(self) -> int:
        """The number of files at the source."""
        return sum(sum(map(is_head, keys)) for keys in self.items.values())

    def refuse_others(self) -> None:
        """Refuse a target with checkpoint files, which are not of an earlier copy."""
        for checkpoint in checkpoint_items(self._target, self._namespace):
            raise other_state(checkpoint=checkpoint)

    def is_unchanged(self) -> bool:
        """Whether the source has the same files as when the copy began: a file that is there never changes its key."""
        return checkpoint_items(self._source, self._namespace) == self.items

    def copy(self, check: Callable[[], object]) -> int:
        """Make the target equal to the source; return the number of written items. `check` is called before writes.

        1. List the checkpoints. 2. Delete other items of an earlier copy. 3. Write objects and fragments, then heads.
        4. Delete other objects of an earlier copy.
        """
        writes = 0
        target_items = self._target_items()
        for checkpoint, keys in self.items.items():
            objects = self._objects(checkpoint)
            list_checkpoint(self._target, checkpoint, self._location if objects else "")  # 1
            self._delete_others(checkpoint, target_items.pop(checkpoint, []), check)
            writes += objects.copy() if objects else 0  # 3
            for window in _windows(sorted(keys, key=is_head)):
                writes += self._copy_window(window, check)
            if objects:
                objects.delete_others(check)  # 4
        for checkpoint, keys in target_items.items():
            self._delete_others(checkpoint, keys, check)
        return writes

    def objects(self) -> CopiedObjects:
        """The objects at the source, and their bytes, without those that no head names."""
        heads = [each for checkpoint in self._locations for each in self._heads(checkpoint).values()]
        return CopiedObjects(
            sum(each.fragments for each in heads if each.objects), sum(each.stored_bytes for each in heads)
        )

    def _heads(self, checkpoint: Checkpoint) -> dict[str, FileHead]:
        return CheckpointFiles(self._source, set()).heads(checkpoint)

    def _objects(self, checkpoint: Checkpoint) -> ObjectCopy | None:
        if checkpoint not in self._locations:
            return None
        return ObjectCopy(
            self._source,
            self._target,
            partial(self._source_ids, checkpoint),
            file_prefix(checkpoint.store),
            location=self._location,
        )

    def _source_ids(self, checkpoint: Checkpoint) -> Iterator[ObjectId]:
        """The objects that heads name."""
        for path, head in self._heads(checkpoint).items():
            yield from head.object_ids(file_key(checkpoint, path))

    def _relocated(self, item: Item) -> Item:
        """An item of the source as the target should have it."""
        return item | {OBJECTS: self._location} if OBJECTS in item else item

    def _read_source(self, window: Sequence[Key]) -> dict[Key, Item]:
        return {key: self._relocated(item) for key, item in self._source.get(window).items()}

    def _target_items(self) -> dict[Checkpoint, list[Key]]:
        return checkpoint_items(self._target, self._namespace) if self.items else {}

    def _delete_others(self, checkpoint: Checkpoint, keys: Sequence[Key], check: Callable[[], object]) -> None:
        others = [key for key in keys if key not in self.items.get(checkpoint, ())]
        if others:
            check()
            delete_all(self._target, others)  # 2

    def _copy_window(self, window: Sequence[Key], check: Callable[[], object]) -> int:
        items, stored_items = self._read_source(window), self._target.get(window)
        changes = [(key, item) for key, item in items.items() if stored_items.get(key) != item]
        if not changes:
            return 0
        check()
        if others := [key for key, _ in changes if key in stored_items]:
            self._target.delete(others)
        if fragments := [(key, item) for key, item in changes if not is_head(key)]:
            self._target.write(fragments)
        for key, item in changes:
            if is_head(key) and not self._put_head(key, item):
                raise differs(key)
        return len(changes)

    def _put_head(self, key: Key, item: Item) -> bool:
        return self._target.put_new(key, item) or self._target.get([key]).get(key) == item  # its answer may be lost

    def compare(self) -> Files:
        """Compare both ends, to the byte. Refuse a difference."""
        size = objects = object_bytes = 0
        target_items = self._target_items()
        for checkpoint in sorted(self.items.keys() | target_items.keys()):
            keys = self.items.get(checkpoint, [])
            for key in set(keys).symmetric_difference(target_items.get(checkpoint, [])):
                raise differs(key)
            for window in _windows(keys):
                items, stored_items = self._read_source(window), self._target.get(window)
                for key in window:
                    if key not in items or items[key] != stored_items.get(key):
                        raise differs(key)
                size += sum(map(item_bytes, items.values()))
            if copies := self._objects(checkpoint):
                compared = copies.compare()
                objects += compared.objects
                object_bytes += compared.bytes
        return Files(self.files, size, objects, object_bytes)


def _windows(keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
    most = min(limits().window_parts, limits().writes_max)
    return (keys[start : start + most] for start in range(0, len(keys), most))


def differs(key: Key) -> CorruptStateError:
    """The error for an item that is not equal at both ends."""
    return CorruptStateError(
        "an item of the copy differs from the source; something else writes to the target: copy again",
        store_shard=key.store_shard,
        item=key.sort,
    )


def other_state(**facts: object) -> ConfigurationError:
    """The error for a target that has other state."""
    return ConfigurationError(
        "the target has other state of this namespace, or a query has begun there, or written to the copy; 'dynastate "
        "drop' it there, or choose other tables",
        **facts,
    )
