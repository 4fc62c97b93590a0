"""The seam to S3: the verbs that dynastate uses on objects, which never change once they are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from dynastate.format.objects import ObjectId, ObjectStream
from dynastate.runtime import limits
from dynastate.storage.meter import Meter

T = TypeVar("T")

#: Objects that one request deletes.
DELETES_MAX = 1_000
#: The version of an object that was written while its bucket kept no versions.
NO_VERSION = "null"


class ObjectVersion(NamedTuple):
    """A version of an object, or a delete marker.

    `version_id` is empty in a bucket that has never kept versions. Only what reads of the object return `is_current`.
    """

    object_id: ObjectId
    version_id: str = ""
    is_current: bool = True


class Objects(Protocol):
    """The engine's requests to S3, which is strongly consistent; each verb adds its cost to the `meter`.

    Every verb raises ConfigurationError if a retry changes nothing, and UnavailableError at the deadline.
    """

    meter: Meter
    """The cost of the requests of this view."""

    def metered(self: T, meter: Meter) -> T:  # noqa: PYI019  # Self comes with Python 3.11
        """A view of these objects that counts its requests in another meter."""

    def check(self, location: str) -> list[str]:
        """Reasons against the bucket of a location: none if it can be used."""

    def put(self, object_id: ObjectId, data: bytes) -> None:
        """Write an object; return when it is durable. It may be written twice."""

    def get(self, object_id: ObjectId, start: int, end: int) -> bytes | None:
        """The bytes of an object from `start` to before `end`, or to its end. Returns None if there is no object."""

    def names(self, location: str, prefix: str) -> Iterator[ObjectId]:
        """The objects of a location whose names begin with a prefix, in order."""

    def delete(self, object_ids: Sequence[ObjectId]) -> None:
        """Delete up to 1,000 objects of one location; objects that do not exist are not an error."""

    def keeps_versions(self, location: str) -> bool:
        """Whether the bucket of a location keeps the earlier versions of objects, or did so once."""

    def versions(self, location: str, prefix: str) -> Iterator[ObjectVersion]:
        """All versions and delete markers of the objects of a location whose names begin with a prefix."""

    def delete_versions(self, versions: Sequence[ObjectVersion]) -> None:
        """Delete up to 1,000 versions of one location for good; versions that do not exist are not an error."""

    def stop(self) -> None:
        """Refuse further requests with UnavailableError, also the retries of requests under way."""


def read_stream(objects: Objects, stream: ObjectStream, start: int, end: int) -> bytes | None:
    """The bytes of a stream from `start` to before `end`, with a request for each of its objects.

    They are fewer if an object ends too early. Returns None if an object does not exist.
    """
    pieces: list[bytes] = []
    object_bytes = limits().object_bytes
    for object_id in stream.objects(start, end):
        object_start = int(object_id.name[-6:]) * object_bytes
        low, high = max(start, object_start) - object_start, min(end, object_start + object_bytes) - object_start
        data = objects.get(object_id, low, high)
        if data is None:
            return None
        pieces.append(data)
        if len(data) < high - low:
            break
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def stored_versions(objects: Objects, location: str, prefix: str) -> Iterator[ObjectVersion]:
    """All that a bucket has of the objects of a location whose names begin with a prefix."""
    if objects.keeps_versions(location):
        yield from objects.versions(location, prefix)
    else:
        yield from map(ObjectVersion, objects.names(location, prefix))


def delete_versions(objects: Objects, versions: Sequence[ObjectVersion]) -> None:
    """Delete any number of versions for good, 1,000 a request."""
    for location in dict.fromkeys(each.object_id.location for each in versions):
        location_versions = [each for each in versions if each.object_id.location == location]
        for offset in range(0, len(location_versions), DELETES_MAX):
            objects.delete_versions(location_versions[offset : offset + DELETES_MAX])


def delete_objects(objects: Objects, object_ids: Sequence[ObjectId]) -> None:
    """Delete any number of objects, 1,000 a request."""
    for location in dict.fromkeys(each.location for each in object_ids):
        location_ids = [each for each in object_ids if each.location == location]
        for offset in range(0, len(location_ids), DELETES_MAX):
            objects.delete(location_ids[offset : offset + DELETES_MAX])
