"""Writing parts into objects of S3: the rule, the streams, and the queue of objects under way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dynastate import runtime
from dynastate.engine.updates import add_to_set
from dynastate.engine.writer import BUSY_S, PendingWrites
from dynastate.errors import UnavailableError
from dynastate.format.items import Item, item_bytes
from dynastate.format.keys import Key, meta_key
from dynastate.format.meta import OBJECTS, StoreMeta
from dynastate.format.objects import ObjectId, ObjectStream, encode_frame
from dynastate.format.parts import part_of
from dynastate.settings import Settings
from dynastate.storage.meter import Meter, units_of_write
from dynastate.storage.objects import Objects
from dynastate.storage.tables import Tables, own_location


@dataclass(frozen=True)
class ObjectRule:
    """The location for new objects, and the KiB of items above which an object replaces them."""

    location: str
    threshold_kb: int

    @classmethod
    def of(cls, tables: Tables, settings: Settings) -> ObjectRule | None:
        """The rule of these settings. Returns None if all parts are items."""
        location = own_location(tables, settings.objects)
        return cls(location, settings.objects_threshold_kb) if location else None

    def is_worth_it(self, items: Iterable[Item]) -> bool:
        """Whether an object replaces these items. An item costs a write unit per KiB, rounded up."""
        return sum(units_of_write(item_bytes(item)) for item in items) > self.threshold_kb


def enter_location(tables: Tables, store: str, meta: StoreMeta, location: str) -> None:
    """List a location in the meta item before objects are written there: clean-up and drop read the list."""
    if location and location not in meta.objects:
        add_to_set(tables, meta_key(store), OBJECTS, [location])


class StreamWriter:
    """Cuts parts, one after the other, into the objects of a stream, and calls `put` with each full one."""

    def __init__(self, stream: ObjectStream, put: Callable[[ObjectId, bytes], object]) -> None:
        self.stream = stream
        #: The bytes of data of each part, in order.
        self.sizes: list[int] = []
        #: Where the next part begins in the stream.
        self.end = 0
        #: The objects that were put, or may have been.
        self.objects: list[ObjectId] = []
        self._put = put
        self._buffer = bytearray()

    def add(self, items: Sequence[tuple[Key, Item]]) -> None:
        for _, item in items:
            part = part_of(item)
            frame = encode_frame(part)
            self.sizes.append(len(part.data))
            self.end += len(frame)
            self._buffer += frame
        object_bytes = runtime.limits().object_bytes
        while len(self._buffer) >= object_bytes:
            self._put_next(object_bytes)

    def finish(self) -> None:
        """Put the rest. Nothing may be added after it, because all objects except the last are full."""
        if self._buffer:
            self._put_next(len(self._buffer))

    def _put_next(self, size: int) -> None:
        object_id = self.stream.object(len(self.objects))
        self.objects.append(object_id)  # first: a request that fails may have been done
        self._put(object_id, bytes(memoryview(self._buffer)[:size]))
        del self._buffer[:size]


class ObjectWriter:
    """Puts objects in the background, `threads` at once, with a bound on their bytes. Safe for threads."""

    def __init__(self, objects: Objects, threads: int, sidecars: int = 1) -> None:
        self._objects = objects
        self._bytes_max: Final = runtime.limits().queued_bytes_max // sidecars
        self._bytes = 0
        self._submit_s = float("-inf")
        self._room_came = runtime.condition()
        self._pool = runtime.pool(threads, "dynastate-objects")

    def submit(self, pending: PendingWrites, object_id: ObjectId, data: bytes, deadline_s: float) -> None:
        """Queue an object; blocks while too many bytes are under way. Raises the failure of an earlier write, too."""
        size = len(data)
        with self._room_came:
            # An object of any size fits if nothing is under way.
            # Requests under way end at their deadline, or before.
            limit_s = 2 * deadline_s
            if not self._room_came.wait_for(lambda: not self._bytes or self._bytes + size <= self._bytes_max, limit_s):
                raise UnavailableError("writes wait for S3 until the deadline", bytes=self._bytes, seconds=limit_s)
            pending.expect(1)
            self._bytes += size
            self._submit_s = runtime.monotonic()
        self._pool.submit(self._write, pending, object_id, data)

    def _write(self, pending: PendingWrites, object_id: ObjectId, data: bytes) -> None:
        meter, error = Meter(), None
        try:
            if pending.is_wanted:
                self._objects.metered(meter).put(object_id, data)
        except Exception as exception:  # noqa: BLE001  # the attempt raises it at commit; the thread continues
            error = exception
        finally:
            with self._room_came:
                self._bytes -= len(data)
                self._room_came.notify_all()
        pending.settle(1, {}, error, meter)

    def is_busy(self) -> bool:
        """Whether objects of commits are under way, or more are expected soon."""
        return self._bytes > 0 or runtime.monotonic() - self._submit_s < BUSY_S

    def close(self) -> None:
        """Write all objects that wait, then end the threads."""
        self._pool.shutdown()
