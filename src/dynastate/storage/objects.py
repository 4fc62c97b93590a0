"""The seam to S3: the verbs that dynastate uses on objects, which never change once they are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from dynastate.format.objects import ObjectId, ObjectStream
from dynastate.runtime import limits
from dynastate.storage.meter import Meter

T = TypeVar("T")

#: Objects that one request deletes.
DELETES_MAX = 1_000


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


def delete_objects(objects: Objects, object_ids: Sequence[ObjectId]) -> None:
    """Delete any number of objects, 1,000 a request."""
    for location in dict.fromkeys(each.location for each in object_ids):
        location_ids = [each for each in object_ids if each.location == location]
        for offset in range(0, len(location_ids), DELETES_MAX):
            objects.delete(location_ids[offset : offset + DELETES_MAX])
