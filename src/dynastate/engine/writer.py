"""The queue of writes: up to 25 items in a BatchWriteItem, several requests under way, bounded memory.

Workers take up to 25 items from the queue, so items of several attempts and stores share a request exactly if they
wait. A `PendingWrites` counts the items of one attempt.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from dynastate import runtime
from dynastate.errors import UnavailableError
from dynastate.format.items import Item, item_bytes
from dynastate.format.keys import Key
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables

#: For this time after parts were submitted, more are expected: background work yields to them.
BUSY_S: Final = 1.0


class PendingWrites:
    """The items of one attempt: the number not durable yet, the first error, the cost, and the keys sent."""

    def __init__(self) -> None:
        self.meter = Meter()
        #: The sizes in bytes of items that are durable, or may be because their request failed half-way.
        self.sent: dict[Key, int] = {}
        self._pending = 0
        self._error: Exception | None = None
        self.cancelled = False
        self._changed = runtime.condition()

    def wait(self, deadline_s: float) -> None:
        """Return when every item is durable. Raises the first error of an item, or UnavailableError at the deadline."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending == 0 or self._error is not None, timeout=deadline_s)
            if self._error is not None:
                raise self._error
            if self._pending:
                raise UnavailableError(
                    "parts are not durable at the deadline", pending=self._pending, seconds=deadline_s
                )

    @property
    def is_wanted(self) -> bool:
        """Whether items that wait should be written: nothing of the attempt failed, and it was not cancelled."""
        return self._error is None and not self.cancelled

    def cancel(self, deadline_s: float) -> None:
        """Discard items that wait. Return when no item is under way, or at the deadline."""
        with self._changed:
            self.cancelled = True
            self._changed.wait_for(lambda: self._pending == 0, timeout=deadline_s)

    def expect(self, count: int) -> None:
        """Count items in. Raises the error of an earlier item."""
        with self._changed:
            if self._error is not None:
                raise self._error
            self._pending += count

    def settle(self, count: int, sizes: Mapping[Key, int], error: Exception | None, meter: Meter) -> None:
        """Count out items that were sent, successfully or not, or discarded. `sizes` are the sizes of sent items."""
        with self._changed:
            self._pending -= count
            self.sent.update(sizes)
            if self._error is None:
                self._error = error
            self.meter.add(meter)
            self._changed.notify_all()


class _Write(NamedTuple):
    pending: PendingWrites
    key: Key
    item: Item
    size: int
    since_s: float
    deadline_s: float


class PartWriter:
    """The queue of one of an executor's `sidecars`, and `threads` workers that write its items."""

    def __init__(self, tables: Tables, threads: int, sidecars: int = 1) -> None:
        self._tables = tables
        self._sidecars = sidecars
        self._queue: deque[_Write] = deque()
        #: Callers that wait for room, in order of arrival.
        self._line: deque[object] = deque()
        self._queued_bytes = 0
        self._closed = False
        self._success_s = runtime.monotonic()
        self._submit_s = float("-inf")
        lock = runtime.lock()
        self._work_came = runtime.condition(lock)
        self._room_came = runtime.condition(lock)
        self._workers = [runtime.thread(self._work, f"dynastate-writer-{n}") for n in range(threads)]
        for worker in self._workers:
            worker.start()

    def submit(
        self, pending: PendingWrites, items: Sequence[tuple[Key, Item]], deadline_s: float, *, waits: bool = False
    ) -> None:
        """Queue items, all at once; blocks while too many bytes are queued. First come, first served.

        A caller that `waits` for them next writes the first request itself if the queue is empty: a worker would take
        longer. The failure of an earlier item of this attempt is raised.
        """
        time_s = runtime.monotonic()
        writes = [
            _Write(pending, key, item, item_bytes(item), since_s=time_s, deadline_s=deadline_s) for key, item in items
        ]
        total = sum(each.size for each in writes)
        with self._room_came:
            self._wait_for_room(total, deadline_s)
            pending.expect(len(writes))
            self._submit_s = runtime.monotonic()
            self._queued_bytes += total
            is_direct = waits and not self._queue
            self._queue.extend(writes)
            if not is_direct:
                self._work_came.notify()
                return
            batch = self._next_batch()
        self._finish(batch)

    def _wait_for_room(self, size: int, deadline_s: float) -> None:
        turn, since_s = object(), runtime.monotonic()
        self._line.append(turn)
        try:
            while True:
                success_s = self._success_s
                timeout_s = self._left_s(since_s, deadline_s)
                if self._room_came.wait_for(lambda: self._line[0] is turn and self._has_room(size), timeout_s):
                    return
                if self._success_s == success_s:
                    raise UnavailableError(
                        "writes wait for DynamoDB until the deadline",
                        queued_bytes=self._queued_bytes,
                        seconds=deadline_s,
                    )
        finally:
            self._line.remove(turn)
            self._room_came.notify_all()  # the next in line may fit too

    def _has_room(self, size: int) -> bool:
        # Items of any size fit into an empty queue, so no caller waits for ever.
        bytes_max = runtime.limits().queued_bytes_max // self._sidecars
        return self._queued_bytes == 0 or self._queued_bytes + size <= bytes_max

    def _left_s(self, since_s: float, deadline_s: float) -> float:
        """Seconds left of a deadline, which counts only the time since a request of this sidecar last succeeded."""
        return deadline_s - (runtime.monotonic() - max(since_s, self._success_s))

    def is_busy(self) -> bool:
        """Whether parts are queued or being sent, or more are expected soon."""
        return self._queued_bytes > 0 or runtime.monotonic() - self._submit_s < BUSY_S

    def close(self) -> None:
        """Write all items that wait, then end the workers."""
        with self._work_came:
            self._closed = True
            self._work_came.notify_all()
        for worker in self._workers:
            worker.join()

    def _work(self) -> None:
        while batch := self._take():
            self._finish(batch)

    def _take(self) -> list[_Write]:
        """Wait for the next request. Returns an empty list when the queue is closed."""
        with self._work_came:
            self._work_came.wait_for(lambda: self._queue or self._closed)
            return self._next_batch()

    def _next_batch(self) -> list[_Write]:
        """Take the next request: up to 25 items of one namespace, and no key twice. The lock is held.

        Two attempts may write one schema item. A policy denies a request with a key of a foreign namespace, such as
        another query's in the same application.
        """
        batch: list[_Write] = []
        keys: set[Key] = set()
        total = 0
        limits = runtime.limits()
        while self._queue and len(batch) < limits.writes_max:
            write = self._queue[0]
            total += write.size
            is_foreign = bool(batch) and write.key.namespace != batch[0].key.namespace
            if batch and (total > limits.request_bytes or write.key in keys or is_foreign):
                break
            batch.append(self._queue.popleft())
            keys.add(write.key)
        if self._queue:
            self._work_came.notify()  # the rest is for another worker
        return batch

    def _finish(self, batch: list[_Write]) -> None:
        """Write a request, and queue again the items that the table did not take."""
        rest = self._write(batch)
        with self._room_came:
            self._queue.extendleft(reversed(rest))
            self._queued_bytes -= sum(each.size for each in batch) - sum(each.size for each in rest)
            if rest:
                self._work_came.notify()
            self._room_came.notify_all()

    def _write(self, batch: list[_Write]) -> list[_Write]:
        """Write the items of a request that the table takes, and settle them. Returns the rest.

        Items behind failing requests fail at the same deadline, and are not tried one after the other.
        """
        overdue = {each.pending: each for each in batch if self._left_s(each.since_s, each.deadline_s) < 0}
        offered = [each for each in batch if each.pending.is_wanted and each.pending not in overdue]
        rest_keys: set[Key] = set()
        error: Exception | None = None
        view = self._tables.metered(Meter())
        if offered:
            try:
                rest_keys = {key for key, _ in view.offer([(each.key, each.item) for each in offered])}
                self._success_s = runtime.monotonic()
            except Exception as exception:  # noqa: BLE001  # the attempt raises it at commit; the worker continues
                error = exception
        # Units belong to each attempt. Requests and retries are shared, and counted once, for the first attempt.
        shared = Meter(requests=view.meter.requests, retries=view.meter.retries, throttles=view.meter.throttles)
        counts = Counter(each.pending for each in batch if each.key not in rest_keys)
        for pending, count in counts.items():
            sizes = {each.key: each.size for each in offered if each.pending is pending and each.key not in rest_keys}
            failure = _overdue(overdue[pending]) if pending in overdue else error
            pending.settle(count, sizes, failure, _cost_of(sizes.values() if error is None else (), shared))
            shared = Meter()
        return [each for each in batch if each.key in rest_keys]


def _overdue(write: _Write) -> UnavailableError:
    message = "DynamoDB took nothing until the deadline, from no task of this sidecar"
    return UnavailableError(message, seconds=write.deadline_s)


def _cost_of(sizes: Iterable[int], shared: Meter) -> Meter:
    """The cost of one attempt's items in a request, with the shared cost."""
    meter = replace(shared)
    for size in sizes:
        meter.wrote(size)
    return meter
