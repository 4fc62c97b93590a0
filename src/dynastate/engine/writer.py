"""Items on their way to the tables: 25 a BatchWriteItem, several requests under way, bounded memory.

Workers take whatever waits, up to 25 items, so items of several attempts and stores share requests exactly when there
is a queue. A `Ticket` stands for one attempt's items.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from dynastate.errors import UnavailableError
from dynastate.layout import Item, Key, item_bytes
from dynastate.tables import WRITES_MAX, Meter, Tables

#: Bytes of items that may wait or be under way in one executor; whoever brings more is held up.
QUEUED_BYTES_MAX: Final = 32 * 1024 * 1024
#: A request is full at this size: large enough to amortise its cost, small enough that several run side by side.
REQUEST_BYTES: Final = 4 * 1024 * 1024


class Ticket:
    """The items of one attempt: how many are not durable yet, what failed, what it cost, and what was sent."""

    def __init__(self) -> None:
        self.meter = Meter()
        #: Items that are durable, or may be because their request failed half-way; with their sizes in bytes.
        self.sent: dict[Key, int] = {}
        self._pending = 0
        self._error: Exception | None = None
        self.cancelled = False
        self._changed = threading.Condition()

    def wait(self, deadline_s: float) -> None:
        """Return when every item is durable.

        Raises:
            DynastateError: one of them could not be written.
            UnavailableError: they are not durable at the deadline.
        """
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
        """Whether there is a point in writing what waits: nothing of the attempt failed, and it was not dropped."""
        return self._error is None and not self.cancelled

    def cancel(self, deadline_s: float) -> None:
        """Drop what waits, and return when nothing is under way any more, or at the deadline."""
        with self._changed:
            self.cancelled = True
            self._changed.wait_for(lambda: self._pending == 0, timeout=deadline_s)

    def expect(self, count: int) -> None:
        """Count items in. Raises what an earlier one failed with."""
        with self._changed:
            if self._error is not None:
                raise self._error
            self._pending += count

    def settle(self, count: int, sent: Mapping[Key, int], error: Exception | None, meter: Meter) -> None:
        """Count items out: those that were sent, successfully or not, and those that were dropped."""
        with self._changed:
            self._pending -= count
            self.sent.update(sent)
            if self._error is None:
                self._error = error
            self.meter.add(meter)
            self._changed.notify_all()


class _Queued(NamedTuple):
    ticket: Ticket
    key: Key
    item: Item
    size: int
    since: float
    deadline_s: float


class PartWriter:
    """A queue of items and `threads` workers that write them."""

    def __init__(self, tables: Tables, threads: int) -> None:
        self._tables = tables
        self._queue: deque[_Queued] = deque()
        self._queued_bytes = 0
        self._closed = False
        self._succeeded = time.monotonic()
        lock = threading.Lock()
        self._work_came = threading.Condition(lock)
        self._room_came = threading.Condition(lock)
        self._workers = [
            threading.Thread(target=self._work, name=f"dynastate-writer-{n}", daemon=True) for n in range(threads)
        ]
        for worker in self._workers:
            worker.start()

    def submit(self, ticket: Ticket, items: Sequence[tuple[Key, Item]], deadline_s: float) -> None:
        """Queue items, all at once; blocks while too many bytes are queued.

        Raises:
            DynastateError: an earlier item of this ticket failed.
            UnavailableError: there is no room at the deadline.
        """
        now = time.monotonic()
        queued = [_Queued(ticket, key, item, item_bytes(item), now, deadline_s) for key, item in items]
        total = sum(each.size for each in queued)
        with self._room_came:
            # Whatever the size, it fits into an empty queue, so nothing waits for ever.
            room = self._room_came.wait_for(
                lambda: self._queued_bytes == 0 or self._queued_bytes + total <= QUEUED_BYTES_MAX, timeout=deadline_s
            )
            if not room:
                raise UnavailableError(
                    "writes wait for DynamoDB until the deadline", queued_bytes=self._queued_bytes, seconds=deadline_s
                )
            ticket.expect(len(queued))
            self._queued_bytes += total
            self._queue.extend(queued)
            self._work_came.notify()

    def close(self) -> None:
        """Write what waits, then end the workers."""
        with self._work_came:
            self._closed = True
            self._work_came.notify_all()
        for worker in self._workers:
            worker.join()

    def _work(self) -> None:
        while batch := self._take():
            self._write(batch)
            with self._room_came:
                self._queued_bytes -= sum(each.size for each in batch)
                self._room_came.notify_all()

    def _take(self) -> list[_Queued]:
        """The next request: up to 25 items of one namespace, and no key twice. Empty: the end.

        Two attempts may bring one schema; and a policy denies a request in which one key is of a foreign namespace, as
        those of two queries in one application may be to each other.
        """
        with self._work_came:
            self._work_came.wait_for(lambda: self._queue or self._closed)
            batch: list[_Queued] = []
            keys: set[Key] = set()
            total = 0
            while self._queue and len(batch) < WRITES_MAX:
                first = self._queue[0]
                total += first.size
                is_foreign = bool(batch) and first.key.namespace != batch[0].key.namespace
                if batch and (total > REQUEST_BYTES or first.key in keys or is_foreign):
                    break
                batch.append(self._queue.popleft())
                keys.add(first.key)
            if self._queue:
                self._work_came.notify()  # what is left is for another worker
            return batch

    def _is_overdue(self, queued: _Queued) -> bool:
        """Whether it waited until its deadline, and in all that time no request of this executor was done.

        So what waits behind requests that fail does so by the same deadline, however much it is, and is not tried in
        turn. Where a table takes little, and takes it, whatever waits may wait long.
        """
        return self._succeeded < queued.since and time.monotonic() - queued.since > queued.deadline_s

    def _write(self, batch: list[_Queued]) -> None:
        overdue = {each.ticket: each for each in batch if self._is_overdue(each)}
        wanted = [each for each in batch if each.ticket.is_wanted and each.ticket not in overdue]
        error: Exception | None = None
        spent = Meter()
        if wanted:
            try:
                self._tables.write([(each.key, each.item) for each in wanted], spent)
                self._succeeded = time.monotonic()
            except Exception as failed:  # noqa: BLE001  # the ticket raises it at commit: a worker must outlive it
                error = failed
        # Units belong to each ticket; requests and retries are shared, and counted once, for the first.
        meter = Meter(requests=spent.requests, retries=spent.retries, throttles=spent.throttles)
        for ticket, count in Counter(each.ticket for each in batch).items():
            sent = {each.key: each.size for each in wanted if each.ticket is ticket}
            if error is None:
                for size in sent.values():
                    meter.wrote(size)
            if ticket in overdue:
                ticket.settle(count, sent, _waited(overdue[ticket]), meter)
            else:
                ticket.settle(count, sent, error, meter)
            meter = Meter()


def _waited(queued: _Queued) -> UnavailableError:
    return UnavailableError(
        "DynamoDB took nothing until the deadline, from no task of this executor", seconds=queued.deadline_s
    )
