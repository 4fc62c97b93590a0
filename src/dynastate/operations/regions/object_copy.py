"""Copy of objects of S3 to another location, of one store, or of the files of one checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from dynastate import runtime
from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.objects import ObjectId
from dynastate.storage.tables import Tables, delete_own_objects


class CopiedObjects(NamedTuple):
    """Objects that are equal at both ends, and their bytes."""

    objects: int = 0
    bytes: int = 0


class ObjectCopy:
    """Objects at both ends. One object is in memory.

    `source_ids` gives those of the source, whose names begin with `prefix`; the copies have these names in `location`.
    """

    def __init__(
        self,
        source: Tables,
        target: Tables,
        source_ids: Callable[[], Iterator[ObjectId]],
        prefix: str,
        *,
        location: str,
    ) -> None:
        self._source, self._target, self._source_ids = source, target, source_ids
        self._prefix, self._location = prefix, location
        self._others: set[ObjectId] = set()

    def copy(self) -> int:
        """Write what the target lacks; return the number of written objects."""
        writes = 0
        self._others = set(self._target.objects.names(self._location, self._prefix))
        for source_id in self._source_ids():
            data, target_id = _read(self._source, source_id), self._target_id(source_id)
            if data is None:
                continue
            if not (target_id in self._others and _read(self._target, target_id) == data):
                self._target.objects.put(target_id, data)
                writes += 1
            self._others.discard(target_id)
        return writes

    def delete_others(self, check: Callable[[], object]) -> None:
        """Delete the target's other objects, which an earlier copy has written. `check` is called before it."""
        if self._others:
            check()
            delete_own_objects(self._target, sorted(self._others))

    def compare(self) -> CopiedObjects:
        """Compare both ends, to the byte. Refuse a difference."""
        objects = size = 0
        for source_id in self._source_ids():
            data = _read(self._source, source_id)
            if data != _read(self._target, self._target_id(source_id)):
                raise CorruptStateError(
                    "an object of the copy differs from the source; something else writes to the target: copy again",
                    object=source_id.name,
                    location=self._location,
                )
            if data is not None:  # else clean-up of the other tables has deleted it
                objects += 1
                size += len(data)
        return CopiedObjects(objects, size)

    def _target_id(self, source_id: ObjectId) -> ObjectId:
        return ObjectId(self._location, source_id.name)


def _read(tables: Tables, object_id: ObjectId) -> bytes | None:
    return tables.objects.get(object_id, 0, runtime.limits().object_bytes)


def refuse_location(locations: Collection[str], location: str, **facts: object) -> None:
    """Refuse to copy objects without a location for them, or to one of theirs. `facts` are for the error."""
    if locations and (not location or location in locations):
        raise ConfigurationError(
            "large parts of this namespace are in S3; give the copy another location there: --to-objects "
            "s3://bucket/prefix",
            **facts,
            locations=",".join(sorted(locations)),
        )
