"""The seam to S3: the few verbs that dynastate uses on objects, which never change once they are written."""

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
    """The engine's requests to S3, which is strongly consistent; each verb adds what it cost to the `meter`.

    Every verb raises ConfigurationError where a retry changes nothing, and UnavailableError at the deadline.
    """

    meter: Meter
    """The cost of the requests of this view."""

    def metered(self: T, meter: Meter) -> T:  # noqa: PYI019  # Self comes with Python 3.11
        """A view of these objects, whose requests are counted by another meter."""

    def check(self, location: str) -> list[str]:
        """Reasons against the bucket of a location; empty: it can be used."""

    def put(self, place: ObjectId, data: bytes) -> None:
        """Write an object; return when it is durable. To write it twice is to write it once."""

    def get(self, place: ObjectId, start: int, end: int) -> bytes | None:
        """The bytes of an object from `start` to before `end`, or fewer where it ends; None: there is no object."""

    def names(self, location: str, prefix: str) -> Iterator[ObjectId]:
        """The objects of a location whose names begin with a prefix, in order."""

    def delete(self, places: Sequence[ObjectId]) -> None:
        """Delete up to 1,000 objects of one location; those that do not exist are no error."""

    def stop(self) -> None:
        """Refuse further requests with UnavailableError, also the retries of those under way."""


def read_stream(objects: Objects, stream: ObjectStream, start: int, end: int) -> bytes | None:
    """The bytes of a stream from `start` to before `end`, with a request for each object that holds some.

    They are fewer where an object ends too early. None: an object is not there.
    """
    found: list[bytes] = []
    object_bytes = limits().object_bytes
    for place in stream.objects(start, end):
        first = int(place.name[-6:]) * object_bytes
        low, high = max(start, first) - first, min(end, first + object_bytes) - first
        data = objects.get(place, low, high)
        if data is None:
            return None
        found.append(data)
        if len(data) < high - low:
            break
    return found[0] if len(found) == 1 else b"".join(found)


def delete_objects(objects: Objects, places: Sequence[ObjectId]) -> None:
    """Delete any number of objects, 1,000 a request."""
    for location in dict.fromkeys(place.location for place in places):
        there = [place for place in places if place.location == location]
        for at in range(0, len(there), DELETES_MAX):
            objects.delete(there[at : at + DELETES_MAX])
