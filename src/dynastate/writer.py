"""Items on their way to the tables: 25 a BatchWriteItem, several requests under way, bounded memory.

Workers take whatever waits, up to 25 items, so items of several attempts and stores share requests exactly when there is
a queue. A `Ticket` stands for one attempt's items.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from dynastate.errors import UnavailableError
from dynastate.layout import Item, Key, item_bytes
from dynastate.tables import WRITES_MAX, Meter, Tables

#: Bytes of items that may wait or be under way in one executor; whoever brings more is held up.
QUEUED_BYTES_MAX: Final = 32 * 1024 * 1024
#: A request is full at this size: large enough to amortise its cost, small enough that several run side by side.
REQUEST_BYTES: Final = 4 * 1024 * 1024


class Ticket:
    """The items of one attempt: how many are not durable yet, what failed, what it cost, and what was written."""

    def __init__(self) -> None:
        self.meter = Meter()
        #: Items that are durable, with their sizes in bytes.
        self.written: dict[Key, int] = {}
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

    def settle(self, sizes: Mapping[Key, int], error: Exception | None, meter: Meter) -> None:
        """Count items out: written (or dropped), or failed."""
        with self._changed:
            self._pending -= len(sizes)
            if error is None:
                self.written.update(sizes)
            elif self._error is None:
                self._error = error
            self.meter.add(meter)
            self._changed.notify_all()


class PartWriter:
    """A queue of items and `threads` workers that write them."""

    def __init__(self, tables: Tables, threads: int) -> None:
        self._tables = tables
        self._queue: deque[tuple[Ticket, Key, Item, int]] = deque()
        self._queued_bytes = 0
        self._closed = False
        self._changed = threading.Condition()
        self._workers = [
            threading.Thread(target=self._work, name=f"dynastate-writer-{n}", daemon=True) for n in range(threads)
        ]
        for worker in self._workers:
            worker.start()

    def submit(self, ticket: Ticket, items: Sequence[tuple[Key, Item]], deadline_s: float) -> None:
        """Queue items; blocks while too many bytes are queued.

        Raises:
            DynastateError: an earlier item of this ticket failed.
            UnavailableError: there is no room at the deadline.
        """
        for key, item in items:
            size = item_bytes(item)
            with self._changed:
                # One item always fits into an empty queue, so nothing waits for ever.
                room = self._changed.wait_for(
                    lambda size=size: self._queued_bytes == 0 or self._queued_bytes + size <= QUEUED_BYTES_MAX,
                    timeout=deadline_s,
                )
                if not room:
                    raise UnavailableError(
                        "writes wait for DynamoDB until the deadline",
                        queued_bytes=self._queued_bytes,
                        seconds=deadline_s,
                    )
                ticket.expect(1)
                self._queued_bytes += size
                self._queue.append((ticket, key, item, size))
                self._changed.notify()

    def close(self) -> None:
        """Write what waits, then end the workers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.join()

    def _work(self) -> None:
        while True:
            batch = self._take()
            if not batch:
                return
            self._write(batch)
            with self._changed:
                self._queued_bytes -= sum(size for _, _, _, size in batch)
                self._changed.notify_all()

    def _take(self) -> list[tuple[Ticket, Key, Item, int]]:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            batch: list[tuple[Ticket, Key, Item, int]] = []
            total = 0
            while self._queue and len(batch) < WRITES_MAX and (not batch or total + self._queue[0][3] <= REQUEST_BYTES):
                batch.append(self._queue.popleft())
                total += batch[-1][3]
            return batch

    def _write(self, batch: list[tuple[Ticket, Key, Item, int]]) -> None:
        wanted = [(key, item) for ticket, key, item, _ in batch if not ticket.cancelled]
        error: Exception | None = None
        spent = Meter()
        if wanted:
            try:
                self._tables.write(wanted, spent)
            except Exception as failed:  # noqa: BLE001  # handed to the ticket, which raises it at commit: a worker must outlive it
                error = failed
        written = {key for key, _ in wanted}
        by_ticket: dict[int, tuple[Ticket, dict[Key, int], Meter]] = {}
        for ticket, key, _, size in batch:
            _, sizes, meter = by_ticket.setdefault(id(ticket), (ticket, {}, Meter()))
            sizes[key] = size
            if key in written and error is None:
                meter.wrote(size)
        # Units belong to each ticket; requests and retries are shared, and counted once, for the first.
        for place, (ticket, sizes, meter) in enumerate(by_ticket.values()):
            if place == 0:
                meter.requests, meter.retries, meter.throttles = spent.requests, spent.retries, spent.throttles
            ticket.settle(sizes, error, meter)
