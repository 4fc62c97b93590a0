"""The part writer: shared requests of 25 items, a bounded queue, and what each attempt learns of its items."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from dynastate.dynamodb.meter import Meter
from dynastate.engine import writer
from dynastate.engine.writer import PartWriter, PendingWrites
from dynastate.errors import UnavailableError
from dynastate.format.items import Item, item_bytes, item_key
from dynastate.format.keys import NO_ATTEMPT, Key, part_key
from tests.support.fakes import FailingTables, Fault, MemoryTables
from tests.support.processes import wait_until

WITHIN_S = 10.0


class FaultProxy:
    """Blocks writes until `open`; counts those that have arrived."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arrived = 0
        self._is_open = False

    def __call__(self, verb: str) -> None:
        if verb == "write":
            with self._changed:
                self._arrived += 1
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: self._is_open, WITHIN_S)

    def wait_for(self, arrived: int) -> None:
        """Return when that many writes have arrived."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._arrived >= arrived, WITHIN_S)

    def open(self) -> None:
        """Let all writes pass."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()


@pytest.fixture
def proxy() -> FaultProxy:
    """A closed proxy."""
    return FaultProxy()


@pytest.fixture
def failing_tables(memory: MemoryTables, proxy: FaultProxy) -> FailingTables:
    """Tables in memory whose writes wait at the fault proxy."""
    return FailingTables(memory, before=proxy)


Writers = Callable[[int], PartWriter]


@pytest.fixture
def writers(failing_tables: FailingTables, proxy: FaultProxy) -> Iterator[Writers]:
    """Make a writer with that many threads; all are closed."""
    made: list[PartWriter] = []

    def make(threads: int) -> PartWriter:
        made.append(PartWriter(failing_tables, threads))
        return made[-1]

    yield make
    proxy.open()
    for each in made:
        each.close()


@pytest.fixture
def busy_writer(writers: Writers, proxy: FaultProxy) -> PartWriter:
    """A writer whose only thread waits at the fault proxy with one item of a first attempt."""
    made = writers(1)
    made.submit(PendingWrites(), items("first", 1), WITHIN_S)
    proxy.wait_for(1)
    return made


def items(store: str, count: int, size: int = 10, first: int = 0, namespace: str = "orders") -> list[tuple[Key, Item]]:
    """Make parts of a store."""
    keys = [part_key(f"{namespace}/{store}", 1, NO_ATTEMPT, sequence, 4) for sequence in range(first, first + count)]
    return [(key, item_key(key) | {"data": bytes(size)}) for key in keys]


def sizes(memory: MemoryTables) -> list[int]:
    """How many items each write had."""
    return [len(call.keys) for call in memory.called("write")]


def test_items_go_out_in_requests_of_25(memory: MemoryTables, proxy: FaultProxy, writers: Writers) -> None:
    """Queued items are written 25 a request, in their order, and the rest in the last one."""
    pending, brought = PendingWrites(), items("a", 61)
    part_writer = writers(1)
    part_writer.submit(pending, brought[:1], WITHIN_S)
    proxy.wait_for(1)
    part_writer.submit(pending, brought[1:], WITHIN_S)
    proxy.open()
    pending.wait(WITHIN_S)
    assert sizes(memory) == [1, 25, 25, 10]
    assert [key for call in memory.called("write") for key in call.keys] == [key for key, _ in brought]
    assert memory.items == dict(brought)
    assert pending.sent == {key: item_bytes(item) for key, item in brought}


def test_items_submitted_together_share_a_request(memory: MemoryTables, proxy: FaultProxy, writers: Writers) -> None:
    """25 items submitted together make one request, even if workers are idle."""
    proxy.open()
    part_writer = writers(8)
    for round_ in range(20):
        pending = PendingWrites()
        part_writer.submit(pending, items("a", 25, first=25 * round_), WITHIN_S)
        pending.wait(WITHIN_S)
    assert sizes(memory) == [25] * 20


def test_several_requests_are_under_way_at_once(proxy: FaultProxy, writers: Writers) -> None:
    """As many requests as there are threads run at once."""
    part_writer, pending = writers(3), PendingWrites()
    part_writer.submit(pending, items("a", 75), WITHIN_S)
    proxy.wait_for(3)
    proxy.open()
    pending.wait(WITHIN_S)


def test_a_request_stays_small(memory: MemoryTables, proxy: FaultProxy, writers: Writers) -> None:
    """Large items are sent in requests of at most a MiB, so that several run at once."""
    part_writer, pending = writers(1), PendingWrites()
    part_writer.submit(pending, items("a", 1), WITHIN_S)
    proxy.wait_for(1)
    part_writer.submit(pending, items("a", 25, size=380_000, first=1), WITHIN_S)
    proxy.open()
    pending.wait(WITHIN_S)
    assert sizes(memory) == [1, *[2] * 12, 1]


def test_stores_share_requests_when_there_is_a_queue(
    memory: MemoryTables, proxy: FaultProxy, busy_writer: PartWriter
) -> None:
    """Items of several attempts and stores share a request; each learns of its own items only."""
    one, other = PendingWrites(), PendingWrites()
    busy_writer.submit(one, items("one", 10, size=2000), WITHIN_S)
    busy_writer.submit(other, items("other", 10), WITHIN_S)
    proxy.open()
    for pending in (one, other):
        pending.wait(WITHIN_S)
    assert sizes(memory) == [1, 20]
    assert set(one.sent) == {key for key, _ in items("one", 10)}
    assert set(other.sent) == {key for key, _ in items("other", 10)}
    assert (one.meter.requests, one.meter.items_written, one.meter.write_units) == (1, 10, 30)
    assert (other.meter.requests, other.meter.items_written, other.meter.write_units) == (0, 10, 10)


def test_namespaces_do_not_share_requests(memory: MemoryTables, proxy: FaultProxy, busy_writer: PartWriter) -> None:
    """Two queries of one application may have a policy each, which denies a request with one key of the other's."""
    one, other = PendingWrites(), PendingWrites()
    busy_writer.submit(one, items("0/0/default", 30), WITHIN_S)
    busy_writer.submit(other, items("0/0/default", 10, namespace="payments"), WITHIN_S)
    busy_writer.submit(one, items("0/0/default", 2, first=30), WITHIN_S)
    proxy.open()
    for pending in (one, other):
        pending.wait(WITHIN_S)
    assert sizes(memory) == [1, 25, 5, 10, 2]
    assert all(len({key.namespace for key in call.keys}) == 1 for call in memory.called("write"))


def test_one_key_submitted_twice_is_written_in_two_requests(
    memory: MemoryTables, proxy: FaultProxy, busy_writer: PartWriter
) -> None:
    """Two attempts may write the same schema item; DynamoDB refuses a request with one key twice, so it gets two."""
    one, other = PendingWrites(), PendingWrites()
    busy_writer.submit(one, items("same", 3), WITHIN_S)
    busy_writer.submit(other, [*items("other", 2), *items("same", 3)], WITHIN_S)
    proxy.open()
    for pending in (one, other):
        pending.wait(WITHIN_S)
    assert sizes(memory) == [1, 5, 3]


def test_submit_waits_for_room_in_the_queue(
    proxy: FaultProxy, writers: Writers, memory: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queued bytes and those under way stay within the bound; `submit` waits until there is room."""
    size = item_bytes(items("a", 1, size=1000)[0][1])
    monkeypatch.setattr(writer, "QUEUED_BYTES_MAX", 10 * size)
    part_writer, pending = writers(2), PendingWrites()
    most: list[int] = []

    def bring() -> None:
        for first in range(0, 40, 4):
            part_writer.submit(pending, items("a", 4, size=1000, first=first), WITHIN_S)
            most.append(part_writer._queued_bytes)

    bringing = threading.Thread(target=bring)
    bringing.start()
    proxy.wait_for(1)
    wait_until(lambda: len(most) >= 2, "nothing is submitted")
    bringing.join(0.2)
    assert bringing.is_alive()
    assert len(most) == 2, "eight of ten fit, twelve do not"
    proxy.open()
    bringing.join(WITHIN_S)
    pending.wait(WITHIN_S)
    assert max(most) <= 10 * size
    assert len(memory.items) == 40
    part_writer.close()
    assert part_writer._queued_bytes == 0


def test_room_goes_to_those_who_came_first(
    proxy: FaultProxy, writers: Writers, memory: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller with few bytes, for which there is room at once, waits behind one with many that came before it."""
    size = item_bytes(items("a", 1, size=1000)[0][1])
    monkeypatch.setattr(writer, "QUEUED_BYTES_MAX", 10 * size)
    part_writer, pending = writers(1), PendingWrites()
    part_writer.submit(pending, items("first", 6, size=1000), WITHIN_S)
    proxy.wait_for(1)
    callers = []
    for place, (store, count) in enumerate((("many", 8), ("few", 1))):
        brought = items(store, count, size=1000)
        callers.append(threading.Thread(target=part_writer.submit, args=(pending, brought, WITHIN_S)))
        callers[-1].start()
        wait_until(lambda place=place: len(part_writer._line) == place + 1, "it is not in line")  # type: ignore[misc]
    proxy.open()
    for caller in callers:
        caller.join(WITHIN_S)
    pending.wait(WITHIN_S)
    written = [key.store_shard.split("#")[0] for call in memory.called("write") for key in call.keys]
    assert list(dict.fromkeys(written)) == ["orders/first", "orders/many", "orders/few"]


def test_no_room_until_the_deadline_is_an_error(
    proxy: FaultProxy, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the deadline, `submit` raises UnavailableError, and has queued nothing."""
    monkeypatch.setattr(writer, "QUEUED_BYTES_MAX", 100)
    part_writer, one, other = writers(1), PendingWrites(), PendingWrites()
    part_writer.submit(one, items("one", 1), WITHIN_S)
    proxy.wait_for(1)
    with pytest.raises(UnavailableError, match="writes wait for DynamoDB until the deadline"):
        part_writer.submit(other, items("other", 1), 0.05)
    proxy.open()
    one.wait(WITHIN_S)
    other.wait(WITHIN_S)
    assert other.sent == {}


def test_an_item_larger_than_the_bound_is_written_alone(
    memory: MemoryTables, proxy: FaultProxy, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken when nothing else is queued, so it does not wait for ever."""
    monkeypatch.setattr(writer, "QUEUED_BYTES_MAX", 100)
    proxy.open()
    part_writer, pending = writers(1), PendingWrites()
    part_writer.submit(pending, items("a", 2, size=1000), WITHIN_S)
    part_writer.submit(pending, items("a", 1, size=1000, first=2), WITHIN_S)
    pending.wait(WITHIN_S)
    assert len(memory.items) == 3


def test_a_failed_request_reaches_every_attempt_in_it(
    failing_tables: FailingTables, proxy: FaultProxy, writers: Writers, memory: MemoryTables
) -> None:
    """`wait` and `submit` raise the error for each attempt with an item in the request, and for no other."""
    part_writer = writers(1)
    first, one, other, last = PendingWrites(), PendingWrites(), PendingWrites(), PendingWrites()
    part_writer.submit(first, items("first", 1), WITHIN_S)
    proxy.wait_for(1)
    failing_tables.fail("write", None, Fault(UnavailableError("throttled")))
    part_writer.submit(one, items("one", 10), WITHIN_S)
    part_writer.submit(other, items("other", 15), WITHIN_S)
    part_writer.submit(last, items("last", 1), WITHIN_S)
    proxy.open()
    first.wait(WITHIN_S)
    last.wait(WITHIN_S)
    for pending in (one, other):
        with pytest.raises(UnavailableError, match="throttled"):
            pending.wait(WITHIN_S)
        with pytest.raises(UnavailableError, match="throttled"):
            part_writer.submit(pending, items("more", 1), WITHIN_S)
    assert {key.store_shard.split("#")[0] for key in memory.items} == {"orders/first", "orders/last"}


def test_items_of_a_failed_request_are_remembered(
    failing_tables: FailingTables, proxy: FaultProxy, writers: Writers
) -> None:
    """They may be durable all the same, so the attempt needs their keys for its abort."""
    proxy.open()
    failing_tables.fail("write", Fault(UnavailableError("throttled"), applied=True))
    part_writer, pending = writers(1), PendingWrites()
    part_writer.submit(pending, items("a", 3), WITHIN_S)
    with pytest.raises(UnavailableError):
        pending.wait(WITHIN_S)
    assert set(pending.sent) == {key for key, _ in items("a", 3)}
    assert (pending.meter.items_written, pending.meter.write_units) == (0, 0)


def test_a_defect_does_not_end_the_worker(failing_tables: FailingTables, proxy: FaultProxy, writers: Writers) -> None:
    """Any exception of a write goes to its attempt, and the worker takes the next request."""
    proxy.open()
    failing_tables.fail("write", Fault(ZeroDivisionError("a defect")))
    part_writer, one, other = writers(1), PendingWrites(), PendingWrites()
    part_writer.submit(one, items("one", 1), WITHIN_S)
    with pytest.raises(ZeroDivisionError):
        one.wait(WITHIN_S)
    part_writer.submit(other, items("other", 1), WITHIN_S)
    other.wait(WITHIN_S)


def test_cancel_drops_queued_items(memory: MemoryTables, proxy: FaultProxy, writers: Writers) -> None:
    """A cancelled attempt's queued items are never written; those under way are waited for, and remembered."""
    part_writer, pending, other = writers(1), PendingWrites(), PendingWrites()
    part_writer.submit(pending, items("a", 1), WITHIN_S)
    proxy.wait_for(1)
    part_writer.submit(pending, items("a", 5, first=1), WITHIN_S)
    part_writer.submit(other, items("other", 1), WITHIN_S)
    cancelling = threading.Thread(target=pending.cancel, args=(WITHIN_S,))
    cancelling.start()
    wait_until(lambda: pending.cancelled, "it is not cancelled")
    cancelling.join(0.05)
    assert cancelling.is_alive(), "one item is under way"
    proxy.open()
    cancelling.join(WITHIN_S)
    other.wait(WITHIN_S)
    assert sizes(memory) == [1, 1]
    assert list(pending.sent) == [items("a", 1)[0][0]]


def test_wait_and_cancel_end_at_their_deadline(proxy: FaultProxy, writers: Writers) -> None:
    """A request that hangs is an UnavailableError in `wait`, and delays an abort at most until its deadline."""
    part_writer, pending = writers(1), PendingWrites()
    part_writer.submit(pending, items("a", 1), WITHIN_S)
    proxy.wait_for(1)
    with pytest.raises(UnavailableError, match="not durable at the deadline pending=1"):
        pending.wait(0.05)
    started = time.monotonic()
    pending.cancel(0.05)
    assert time.monotonic() - started < WITHIN_S / 2


def test_queued_items_of_a_failed_attempt_are_dropped(
    failing_tables: FailingTables, memory: MemoryTables, proxy: FaultProxy, writers: Writers
) -> None:
    """Once a request of an attempt has failed, its other items would only delay the queue."""
    failing_tables.fail("write", Fault(UnavailableError("throttled")))
    part_writer, pending, other = writers(1), PendingWrites(), PendingWrites()
    part_writer.submit(pending, items("a", 1), WITHIN_S)
    proxy.wait_for(1)
    part_writer.submit(pending, items("a", 60, first=1), WITHIN_S)
    part_writer.submit(other, items("other", 1), WITHIN_S)
    proxy.open()
    other.wait(WITHIN_S)
    assert {key.store_shard.split("#")[0] for key in memory.items} == {"orders/other"}
    assert list(pending.sent) == [items("a", 1)[0][0]]
    part_writer.close()
    assert part_writer._queued_bytes == 0


def test_queued_items_fail_at_their_deadline_while_no_write_succeeds(
    failing_tables: FailingTables, memory: MemoryTables, proxy: FaultProxy, busy_writer: PartWriter
) -> None:
    """In an outage, a hundred attempts queued behind one request do not each wait for a request of their own."""
    failing_tables.fail("write", *[Fault(UnavailableError("gone"))] * 2)
    behind = [PendingWrites() for _ in range(100)]
    for number, pending in enumerate(behind):
        busy_writer.submit(pending, items(f"behind-{number}", 25), 0.05)
    time.sleep(0.1)
    proxy.open()
    for pending in behind:
        with pytest.raises(UnavailableError, match=r"took nothing until the deadline.* seconds=0\.05"):
            pending.wait(WITHIN_S)
        assert pending.sent == {}
    assert sizes(memory) == []
    # Later requests are sent: the first one still fails, the second one succeeds.
    for said in ("gone", ""):
        pending = PendingWrites()
        busy_writer.submit(pending, items(f"later-{said}", 1), WITHIN_S)
        if said:
            with pytest.raises(UnavailableError, match=said):
                pending.wait(WITHIN_S)
        else:
            pending.wait(WITHIN_S)
    assert sizes(memory) == [1]


def test_queued_items_outlast_their_deadline_while_writes_succeed(
    memory: MemoryTables, proxy: FaultProxy, busy_writer: PartWriter
) -> None:
    """A slow table makes for a long queue: items wait as long as the queue moves."""
    behind = PendingWrites()
    busy_writer.submit(behind, items("behind", 25), 0.05)
    time.sleep(0.1)
    proxy.open()
    behind.wait(WITHIN_S)
    assert sizes(memory) == [1, 25]


def test_close_writes_queued_items(memory: MemoryTables, proxy: FaultProxy, failing_tables: FailingTables) -> None:
    """A closed writer writes all it was given, then ends its threads."""
    part_writer, pending = PartWriter(failing_tables, 2), PendingWrites()
    part_writer.submit(pending, items("a", 60), WITHIN_S)
    proxy.open()
    part_writer.close()
    pending.wait(0)
    assert len(memory.items) == 60
    assert not any(worker.is_alive() for worker in part_writer._workers)


def test_many_attempts_at_once(memory: MemoryTables, proxy: FaultProxy, writers: Writers) -> None:
    """Forty attempts from eight threads: all items are written once, and counted."""
    proxy.open()
    part_writer = writers(4)
    attempts = [PendingWrites() for _ in range(40)]
    brought = [items(f"store-{number}", 30, size=number) for number in range(40)]

    def bring(first: int) -> None:
        for number in range(first, 40, 8):
            for place in range(0, 30, 7):
                part_writer.submit(attempts[number], brought[number][place : place + 7], WITHIN_S)

    threads = [threading.Thread(target=bring, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    total = Meter()
    for pending, mine in zip(attempts, brought, strict=True):
        pending.wait(WITHIN_S)
        assert set(pending.sent) == {key for key, _ in mine}
        total.add(pending.meter)
    assert total.requests == len(memory.called("write"))
    assert total.items_written == sum(sizes(memory)) == len(memory.items) == 1200
    assert max(sizes(memory)) <= 25
