"""Items on their way to the tables: requests of 25, shared, bounded, and what each attempt learns of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from dynastate import layout, writer
from dynastate.errors import UnavailableError
from dynastate.layout import NO_ATTEMPT, Item, Key, item_bytes, item_key
from dynastate.tables import Meter
from dynastate.writer import PartWriter, Ticket
from tests.fakes import MemoryTables, Strike, StruckTables
from tests.processes import wait_until

WITHIN_S = 10.0


class Gate:
    """Holds writes at a door: `arrived` tells how many came to it, `open` lets all pass."""

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
        """Return when that many writes stand at the door, or passed it."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._arrived >= arrived, WITHIN_S)

    def open(self) -> None:
        """Let everybody pass."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()


@pytest.fixture
def gate() -> Gate:
    """A closed gate."""
    return Gate()


@pytest.fixture
def struck(memory: MemoryTables, gate: Gate) -> StruckTables:
    """Tables in memory whose writes stand at the gate."""
    return StruckTables(memory, before=gate)


Writers = Callable[[int], PartWriter]


@pytest.fixture
def writers(struck: StruckTables, gate: Gate) -> Iterator[Writers]:
    """Make a writer with that many threads; all are closed."""
    made: list[PartWriter] = []

    def make(threads: int) -> PartWriter:
        made.append(PartWriter(struck, threads))
        return made[-1]

    yield make
    gate.open()
    for each in made:
        each.close()


def items(store: str, count: int, size: int = 10, first: int = 0, namespace: str = "orders") -> list[tuple[Key, Item]]:
    """Make parts of a store."""
    keys = [
        layout.part_key(f"{namespace}/{store}", 1, NO_ATTEMPT, sequence, 4) for sequence in range(first, first + count)
    ]
    return [(key, item_key(key) | {"data": bytes(size)}) for key in keys]


def sizes(memory: MemoryTables) -> list[int]:
    """How many items each write had."""
    return [len(call.keys) for call in memory.called("write")]


def test_items_go_out_in_requests_of_25(memory: MemoryTables, gate: Gate, writers: Writers) -> None:
    """What waits is written 25 items a request, in the order it came, and the rest with the last one."""
    ticket, brought = Ticket(), items("a", 61)
    at = writers(1)
    at.submit(ticket, brought[:1], WITHIN_S)
    gate.wait_for(1)
    at.submit(ticket, brought[1:], WITHIN_S)
    gate.open()
    ticket.wait(WITHIN_S)
    assert sizes(memory) == [1, 25, 25, 10]
    assert [key for call in memory.called("write") for key in call.keys] == [key for key, _ in brought]
    assert memory.items == dict(brought)
    assert ticket.sent == {key: item_bytes(item) for key, item in brought}


def test_what_is_brought_at_once_goes_out_at_once(memory: MemoryTables, gate: Gate, writers: Writers) -> None:
    """25 items brought together make one request, also when workers wait for work."""
    gate.open()
    at = writers(8)
    for round_ in range(20):
        ticket = Ticket()
        at.submit(ticket, items("a", 25, first=25 * round_), WITHIN_S)
        ticket.wait(WITHIN_S)
    assert sizes(memory) == [25] * 20


def test_several_requests_are_under_way_at_once(gate: Gate, writers: Writers) -> None:
    """As many requests as there are threads stand at DynamoDB's door side by side."""
    at, ticket = writers(3), Ticket()
    at.submit(ticket, items("a", 75), WITHIN_S)
    gate.wait_for(3)
    gate.open()
    ticket.wait(WITHIN_S)


def test_a_request_stays_small(memory: MemoryTables, gate: Gate, writers: Writers) -> None:
    """Large items go out in requests of a few MB, so that several run side by side."""
    at, ticket = writers(1), Ticket()
    at.submit(ticket, items("a", 1), WITHIN_S)
    gate.wait_for(1)
    at.submit(ticket, items("a", 25, size=380_000, first=1), WITHIN_S)
    gate.open()
    ticket.wait(WITHIN_S)
    assert sizes(memory) == [1, 11, 11, 3]


def test_stores_share_requests_when_there_is_a_queue(memory: MemoryTables, gate: Gate, writers: Writers) -> None:
    """Items of several attempts and stores wait together, and go out in one request; each learns of its own only."""
    at = writers(1)
    first, one, other = Ticket(), Ticket(), Ticket()
    at.submit(first, items("first", 1), WITHIN_S)
    gate.wait_for(1)
    at.submit(one, items("one", 10, size=2000), WITHIN_S)
    at.submit(other, items("other", 10), WITHIN_S)
    gate.open()
    for ticket in (first, one, other):
        ticket.wait(WITHIN_S)
    assert sizes(memory) == [1, 20]
    assert set(one.sent) == {key for key, _ in items("one", 10)}
    assert set(other.sent) == {key for key, _ in items("other", 10)}
    assert (one.meter.requests, one.meter.items_written, one.meter.write_units) == (1, 10, 30)
    assert (other.meter.requests, other.meter.items_written, other.meter.write_units) == (0, 10, 10)


def test_namespaces_do_not_share_requests(memory: MemoryTables, gate: Gate, writers: Writers) -> None:
    """Two queries of one application may have a policy each, which denies a request with one key of the other's."""
    at = writers(1)
    first, one, other = Ticket(), Ticket(), Ticket()
    at.submit(first, items("first", 1), WITHIN_S)
    gate.wait_for(1)
    at.submit(one, items("0/0/default", 30), WITHIN_S)
    at.submit(other, items("0/0/default", 10, namespace="payments"), WITHIN_S)
    at.submit(one, items("0/0/default", 2, first=30), WITHIN_S)
    gate.open()
    for ticket in (first, one, other):
        ticket.wait(WITHIN_S)
    assert sizes(memory) == [1, 25, 5, 10, 2]
    assert all(len({key.namespace for key in call.keys}) == 1 for call in memory.called("write"))


def test_one_key_brought_twice_is_written_in_two_requests(memory: MemoryTables, gate: Gate, writers: Writers) -> None:
    """Two attempts may bring the same schema item; DynamoDB refuses a request with one key twice, so it gets two."""
    at = writers(1)
    first, one, other = Ticket(), Ticket(), Ticket()
    at.submit(first, items("first", 1), WITHIN_S)
    gate.wait_for(1)
    at.submit(one, items("same", 3), WITHIN_S)
    at.submit(other, [*items("other", 2), *items("same", 3)], WITHIN_S)
    gate.open()
    for ticket in (first, one, other):
        ticket.wait(WITHIN_S)
    assert sizes(memory) == [1, 5, 3]


def test_who_brings_too_much_is_held_up(
    gate: Gate, writers: Writers, memory: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more bytes wait or are under way than the bound; who brings more waits until there is room, then goes on."""
    size = item_bytes(items("a", 1, size=1000)[0][1])
    monkeypatch.setattr(writer, "QUEUED_BYTES_MAX", 10 * size)
    at, ticket = writers(2), Ticket()
    most: list[int] = []

    def bring() -> None:
        for first in range(0, 40, 4):
            at.submit(ticket, items("a", 4, size=1000, first=first), WITHIN_S)
            most.append(at._queued_bytes)

    bringing = threading.Thread(target=bring)
    bringing.start()
    gate.wait_for(1)
    wait_until(lambda: len(most) >= 2, "nothing is brought")
    bringing.join(0.2)
    assert bringing.is_alive()
    assert len(most) == 2, "eight of ten fit, twelve do not"
    gate.open()
    bringing.join(WITHIN_S)
    ticket.wait(WITHIN_S)
    assert max(most) <= 10 * size
    assert len(memory.items) == 40
    at.close()
    assert at._queued_bytes == 0


def test_no_room_until_the_deadline_is_an_error(gate: Gate, writers: Writers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for room longer than the deadline gets UnavailableError, and has queued nothing."""
    monkeypatch.setattr(writer, "QUEUED_BYTES_MAX", 100)
    at, one, other = writers(1), Ticket(), Ticket()
    at.submit(one, items("one", 1), WITHIN_S)
    gate.wait_for(1)
    with pytest.raises(UnavailableError, match="writes wait for DynamoDB until the deadline"):
        at.submit(other, items("other", 1), 0.05)
    gate.open()
    one.wait(WITHIN_S)
    other.wait(WITHIN_S)
    assert other.sent == {}


def test_what_is_larger_than_the_bound_passes_alone(
    memory: MemoryTables, gate: Gate, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An item larger than the bound is taken when nothing else is queued, so it does not wait for ever."""
    monkeypatch.setattr(writer, "QUEUED_BYTES_MAX", 100)
    gate.open()
    at, ticket = writers(1), Ticket()
    at.submit(ticket, items("a", 2, size=1000), WITHIN_S)
    at.submit(ticket, items("a", 1, size=1000, first=2), WITHIN_S)
    ticket.wait(WITHIN_S)
    assert len(memory.items) == 3


def test_a_failed_request_reaches_every_attempt_in_it(
    struck: StruckTables, gate: Gate, writers: Writers, memory: MemoryTables
) -> None:
    """Each attempt with an item in the request that failed gets the error as it waits or brings more, and no other."""
    at = writers(1)
    first, one, other, last = Ticket(), Ticket(), Ticket(), Ticket()
    at.submit(first, items("first", 1), WITHIN_S)
    gate.wait_for(1)
    struck.strike("write", None, Strike(UnavailableError("throttled")))
    at.submit(one, items("one", 10), WITHIN_S)
    at.submit(other, items("other", 15), WITHIN_S)
    at.submit(last, items("last", 1), WITHIN_S)
    gate.open()
    first.wait(WITHIN_S)
    last.wait(WITHIN_S)
    for ticket in (one, other):
        with pytest.raises(UnavailableError, match="throttled"):
            ticket.wait(WITHIN_S)
        with pytest.raises(UnavailableError, match="throttled"):
            at.submit(ticket, items("more", 1), WITHIN_S)
    assert {key.store_shard.split("#")[0] for key in memory.items} == {"orders/first", "orders/last"}


def test_what_may_have_been_written_is_remembered(struck: StruckTables, gate: Gate, writers: Writers) -> None:
    """Items of a request that failed may be durable all the same, so the attempt knows them for its abort."""
    gate.open()
    struck.strike("write", Strike(UnavailableError("throttled"), applied=True))
    at, ticket = writers(1), Ticket()
    at.submit(ticket, items("a", 3), WITHIN_S)
    with pytest.raises(UnavailableError):
        ticket.wait(WITHIN_S)
    assert set(ticket.sent) == {key for key, _ in items("a", 3)}
    assert (ticket.meter.items_written, ticket.meter.write_units) == (0, 0)


def test_a_defect_does_not_end_the_worker(struck: StruckTables, gate: Gate, writers: Writers) -> None:
    """Whatever a write raises, its attempt gets it, and the worker goes on with the next."""
    gate.open()
    struck.strike("write", Strike(ZeroDivisionError("a defect")))
    at, one, other = writers(1), Ticket(), Ticket()
    at.submit(one, items("one", 1), WITHIN_S)
    with pytest.raises(ZeroDivisionError):
        one.wait(WITHIN_S)
    at.submit(other, items("other", 1), WITHIN_S)
    other.wait(WITHIN_S)


def test_what_waits_is_dropped_when_it_is_cancelled(memory: MemoryTables, gate: Gate, writers: Writers) -> None:
    """A cancelled attempt's items that still wait are never written; those under way are waited for, and remembered."""
    at, ticket, other = writers(1), Ticket(), Ticket()
    at.submit(ticket, items("a", 1), WITHIN_S)
    gate.wait_for(1)
    at.submit(ticket, items("a", 5, first=1), WITHIN_S)
    at.submit(other, items("other", 1), WITHIN_S)
    cancelling = threading.Thread(target=ticket.cancel, args=(WITHIN_S,))
    cancelling.start()
    wait_until(lambda: ticket.cancelled, "it is not cancelled")
    cancelling.join(0.05)
    assert cancelling.is_alive(), "one item is under way"
    gate.open()
    cancelling.join(WITHIN_S)
    other.wait(WITHIN_S)
    assert sizes(memory) == [1, 1]
    assert list(ticket.sent) == [items("a", 1)[0][0]]


def test_cancelling_ends_at_its_deadline(gate: Gate, writers: Writers) -> None:
    """A request that hangs does not hold up an abort for longer than its deadline."""
    at, ticket = writers(1), Ticket()
    at.submit(ticket, items("a", 1), WITHIN_S)
    gate.wait_for(1)
    started = time.monotonic()
    ticket.cancel(0.05)
    assert time.monotonic() - started < WITHIN_S / 2


def test_waiting_ends_at_its_deadline(gate: Gate, writers: Writers) -> None:
    """Items that are not durable at the deadline are an UnavailableError, not a wait for ever."""
    at, ticket = writers(1), Ticket()
    at.submit(ticket, items("a", 1), WITHIN_S)
    gate.wait_for(1)
    with pytest.raises(UnavailableError, match="not durable at the deadline pending=1"):
        ticket.wait(0.05)


def test_what_waits_of_an_attempt_that_failed_is_not_tried(
    struck: StruckTables, memory: MemoryTables, gate: Gate, writers: Writers
) -> None:
    """Once a request of an attempt has failed, its other items are dropped: they would only hold up those behind."""
    struck.strike("write", Strike(UnavailableError("throttled")))
    at, ticket, other = writers(1), Ticket(), Ticket()
    at.submit(ticket, items("a", 1), WITHIN_S)
    gate.wait_for(1)
    at.submit(ticket, items("a", 60, first=1), WITHIN_S)
    at.submit(other, items("other", 1), WITHIN_S)
    gate.open()
    other.wait(WITHIN_S)
    assert {key.store_shard.split("#")[0] for key in memory.items} == {"orders/other"}
    assert list(ticket.sent) == [items("a", 1)[0][0]]
    at.close()
    assert at._queued_bytes == 0


def test_what_waits_while_nothing_succeeds_fails_by_its_deadline(
    struck: StruckTables, memory: MemoryTables, gate: Gate, writers: Writers
) -> None:
    """When DynamoDB is gone, a hundred attempts that wait behind one request do not each wait for one of their own."""
    struck.strike("write", *[Strike(UnavailableError("gone"))] * 2)
    at, first = writers(1), Ticket()
    behind = [Ticket() for _ in range(100)]
    at.submit(first, items("first", 1), WITHIN_S)
    gate.wait_for(1)
    for number, ticket in enumerate(behind):
        at.submit(ticket, items(f"behind-{number}", 25), 0.05)
    time.sleep(0.1)
    gate.open()
    for ticket in behind:
        with pytest.raises(UnavailableError, match=r"took nothing until the deadline.* seconds=0\.05"):
            ticket.wait(WITHIN_S)
        assert ticket.sent == {}
    assert sizes(memory) == []
    # What comes later is tried: the first to come finds it gone still, the second one back.
    for said in ("gone", ""):
        ticket = Ticket()
        at.submit(ticket, items(f"later-{said}", 1), WITHIN_S)
        if said:
            with pytest.raises(UnavailableError, match=said):
                ticket.wait(WITHIN_S)
        else:
            ticket.wait(WITHIN_S)
    assert sizes(memory) == [1]


def test_what_waits_long_while_others_succeed_is_written(memory: MemoryTables, gate: Gate, writers: Writers) -> None:
    """A table that takes little makes for a long queue: whoever stands in it waits as long as it moves."""
    at, first, behind = writers(1), Ticket(), Ticket()
    at.submit(first, items("first", 1), WITHIN_S)
    gate.wait_for(1)
    at.submit(behind, items("behind", 25), 0.05)
    time.sleep(0.1)
    gate.open()
    behind.wait(WITHIN_S)
    assert sizes(memory) == [1, 25]


def test_closing_writes_what_waits(memory: MemoryTables, gate: Gate, struck: StruckTables) -> None:
    """A writer that is closed writes all it was given, then ends its threads."""
    at, ticket = PartWriter(struck, 2), Ticket()
    at.submit(ticket, items("a", 60), WITHIN_S)
    gate.open()
    at.close()
    ticket.wait(0)
    assert len(memory.items) == 60
    assert not any(worker.is_alive() for worker in at._workers)


def test_many_attempts_at_once(memory: MemoryTables, gate: Gate, writers: Writers) -> None:
    """Forty attempts from eight threads, with a bound that holds them up: all is written, once, and accounted for."""
    gate.open()
    at = writers(4)
    tickets = [Ticket() for _ in range(40)]
    brought = [items(f"store-{number}", 30, size=number) for number in range(40)]

    def bring(first: int) -> None:
        for number in range(first, 40, 8):
            for place in range(0, 30, 7):
                at.submit(tickets[number], brought[number][place : place + 7], WITHIN_S)

    threads = [threading.Thread(target=bring, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    total = Meter()
    for ticket, mine in zip(tickets, brought, strict=True):
        ticket.wait(WITHIN_S)
        assert set(ticket.sent) == {key for key, _ in mine}
        total.add(ticket.meter)
    assert total.requests == len(memory.called("write"))
    assert total.items_written == sum(sizes(memory)) == len(memory.items) == 1200
    assert max(sizes(memory)) <= 25
