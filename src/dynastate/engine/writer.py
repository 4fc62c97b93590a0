"""The queue of writes: 25 items a BatchWriteItem, several requests under way, bounded memory.

Workers take whatever waits, up to 25 items, so items of several attempts and stores share requests exactly when there
is a queue. A `PendingWrites` counts one attempt's items.
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

#: For so long after parts were submitted, more are expected: background work yields to them.
BUSY_S: Final = 1.0


class PendingWrites:
    """The items of one attempt: how many are not durable yet, what failed, what it cost, and what was sent."""

    def __init__(self) -> None:
        self.meter = Meter()
        #: Items that are durable, or may be because their request failed half-way; with their sizes in bytes.
        self.sent: dict[Key, int] = {}
        self._pending = 0
        self._error: Exception | None = None
        self.cancelled = False
        self._changed = runtime.condition()

    def wait(self, deadline_s: float) -> None:
        """Return when every item is durable. Raises what kept one from it, or UnavailableError at the deadline."""
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
        """Whether there is a point in writing what waits: nothing of the attempt failed, and it was not cancelled."""
        return self._error is None and not self.cancelled

    def cancel(self, deadline_s: float) -> None:
        """Discard what waits, and return when nothing is under way, or at the deadline."""
        with self._changed:
            self.cancelled = True
            self._changed.wait_for(lambda: self._pending == 0, timeout=deadline_s)

    def expect(self, count: int) -> None:
        """Count items in. Raises the error of an earlier one."""
        with self._changed:
            if self._error is not None:
                raise self._error
            self._pending += count

    def settle(self, count: int, sent: Mapping[Key, int], error: Exception | None, meter: Meter) -> None:
        """Count items out: those that were sent, successfully or not, and those that were discarded."""
        with self._changed:
            self._pending -= count
            self.sent.update(sent)
            if self._error is None:
                self._error = error
            self.meter.add(meter)
            self._changed.notify_all()


class _Queued(NamedTuple):
    pending: PendingWrites
    key: Key
    item: Item
    size: int
    since: float
    deadline_s: float


class PartWriter:
    """A queue of items, one for each of an executor's `sidecars`, and `threads` workers that write them."""

    def __init__(self, tables: Tables, threads: int, sidecars: int = 1) -> None:
        self._tables = tables
        self._sidecars = sidecars
        self._queue: deque[_Queued] = deque()
        #: Callers that wait for room, in order of arrival.
        self._line: deque[object] = deque()
        self._queued_bytes = 0
        self._closed = False
        self._succeeded = runtime.monotonic()
        self._submitted = float("-inf")
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

        A caller that `waits` for them next writes the first request itself, if nothing is queued before it: to hand it
        to a worker, and the result back, would take longer.

        Raises:
            DynastateError: an earlier item of this attempt failed.
            UnavailableError: there is no room, and DynamoDB took nothing for as long as the deadline.
        """
        now = runtime.monotonic()
        queued = [_Queued(pending, key, item, item_bytes(item), now, deadline_s) for key, item in items]
        total = sum(each.size for each in queued)
        with self._room_came:
            self._wait_for_room(total, deadline_s)
            pending.expect(len(queued))
            self._submitted = runtime.monotonic()
            self._queued_bytes += total
            own = waits and not self._queue
            self._queue.extend(queued)
            if not own:
                self._work_came.notify()
                return
            batch = self._next_batch()
        self._finish(batch)

    def _wait_for_room(self, size: int, deadline_s: float) -> None:
        turn, since = object(), runtime.monotonic()
        self._line.append(turn)
        try:
            while True:
                succeeded = self._succeeded
                timeout_s = self._left_s(since, deadline_s)
                if self._room_came.wait_for(lambda: self._line[0] is turn and self._has_room(size), timeout_s):
                    return
                if self._succeeded == succeeded:
                    raise UnavailableError(
                        "writes wait for DynamoDB until the deadline",
                        queued_bytes=self._queued_bytes,
                        seconds=deadline_s,
                    )
        finally:
            self._line.remove(turn)
            self._room_came.notify_all()  # the next in line may fit too

    def _has_room(self, size: int) -> bool:
        # Whatever the size, it fits into an empty queue, so nothing waits for ever.
        bytes_max = runtime.limits().queued_bytes_max // self._sidecars
        return self._queued_bytes == 0 or self._queued_bytes + size <= bytes_max

    def _left_s(self, since: float, deadline_s: float) -> float:
        """Seconds left of a deadline, which counts only time in which no request of this sidecar succeeded."""
        return deadline_s - (runtime.monotonic() - max(since, self._succeeded))

    def is_busy(self) -> bool:
        """Whether parts are queued or being sent, or more are expected soon."""
        return self._queued_bytes > 0 or runtime.monotonic() - self._submitted < BUSY_S

    def close(self) -> None:
        """Write what waits, then end the workers."""
        with self._work_came:
            self._closed = True
            self._work_came.notify_all()
        for worker in self._workers:
            worker.join()

    def _work(self) -> None:
        while batch := self._take():
            self._finish(batch)

    def _take(self) -> list[_Queued]:
        """Wait for work: the next request. Empty: the end."""
        with self._work_came:
            self._work_came.wait_for(lambda: self._queue or self._closed)
            return self._next_batch()

    def _next_batch(self) -> list[_Queued]:
        """Take the next request: up to 25 items of one namespace, and no key twice. The lock is held.

        Two attempts may write one schema item; and a policy denies a request with a key of a foreign namespace, as
        those of two queries in one application may be to each other.
        """
        batch: list[_Queued] = []
        keys: set[Key] = set()
        total = 0
        limits = runtime.limits()
        while self._queue and len(batch) < limits.writes_max:
            first = self._queue[0]
            total += first.size
            is_foreign = bool(batch) and first.key.namespace != batch[0].key.namespace
            if batch and (total > limits.request_bytes or first.key in keys or is_foreign):
                break
            batch.append(self._queue.popleft())
            keys.add(first.key)
        if self._queue:
            self._work_came.notify()  # what is left is for another worker
        return batch

    def _finish(self, batch: list[_Queued]) -> None:
        """Write a request, and queue again what the table did not take of it."""
        rest = self._write(batch)
        with self._room_came:
            self._queue.extendleft(reversed(rest))
            self._queued_bytes -= sum(each.size for each in batch) - sum(each.size for each in rest)
            if rest:
                self._work_came.notify()
            self._room_came.notify_all()

    def _write(self, batch: list[_Queued]) -> list[_Queued]:
        """Write what the table takes of a request, and settle that; the rest.

        Items behind failing requests fail at the same deadline, and are not tried one after the other.
        """
        overdue = {each.pending: each for each in batch if self._left_s(each.since, each.deadline_s) < 0}
        wanted = [each for each in batch if each.pending.is_wanted and each.pending not in overdue]
        left: set[Key] = set()
        error: Exception | None = None
        view = self._tables.metered(Meter())
        if wanted:
            try:
                left = {key for key, _ in view.offer([(each.key, each.item) for each in wanted])}
                self._succeeded = runtime.monotonic()
            except Exception as failed:  # noqa: BLE001  # the attempt raises it at commit; the worker continues
                error = failed
        # Units belong to each attempt; requests and retries are shared, and counted once, for the first.
        shared = Meter(requests=view.meter.requests, retries=view.meter.retries, throttles=view.meter.throttles)
        settled = Counter(each.pending for each in batch if each.key not in left)
        for pending, count in settled.items():
            sent = {each.key: each.size for each in wanted if each.pending is pending and each.key not in left}
            failure = _overdue(overdue[pending]) if pending in overdue else error
            pending.settle(count, sent, failure, _cost_of(sent.values() if error is None else (), shared))
            shared = Meter()
        return [each for each in batch if each.key in left]


def _overdue(queued: _Queued) -> UnavailableError:
    message = "DynamoDB took nothing until the deadline, from no task of this sidecar"
    return UnavailableError(message, seconds=queued.deadline_s)


def _cost_of(sizes: Iterable[int], shared: Meter) -> Meter:
    """The cost of one attempt's items in a request, with what is shared."""
    meter = replace(shared)
    for size in sizes:
        meter.wrote(size)
    return meter
