"""The part writer: shared requests of 25 items, a bounded queue, what attempts learn of items, and throttled tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

import pytest

from dynastate import runtime
from dynastate.engine.writer import PartWriter, PendingWrites
from dynastate.errors import UnavailableError
from dynastate.format.items import Item, item_bytes, item_key
from dynastate.format.keys import NO_ATTEMPT, Key, part_key
from dynastate.storage.meter import Meter, units_of_write
from tests.support.clock import Clock
from tests.support.faults import Door, FailingTables, Fault
from tests.support.limits import set_limits
from tests.support.memory_tables import MemoryTables
from tests.support.processes import wait_until
from tests.support.throttled import Load

WITHIN_S = 10.0
#: How long a throttled table takes for all items, unless these are too many for a test.
SECONDS = 60
ITEMS_MAX = 6000


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.fixture
def failing_tables(memory: MemoryTables, door: Door) -> FailingTables:
    """Tables in memory whose writes wait at the door."""
    return FailingTables(memory, before=door)


Writers = Callable[..., PartWriter]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of writers: it stands unless the test moves it."""
    clock = Clock()
    monkeypatch.setattr(runtime, "monotonic", clock)
    return clock


@pytest.fixture
def writers(failing_tables: FailingTables, door: Door, clock: Clock) -> Iterator[Writers]:
    """Make a writer with that many threads, of one of some sidecars; all are closed."""
    part_writers: list[PartWriter] = []

    def make(threads: int, sidecars: int = 1) -> PartWriter:
        part_writers.append(PartWriter(failing_tables, threads, sidecars))
        return part_writers[-1]

    yield make
    door.open()
    for part_writer in part_writers:
        part_writer.close()


@pytest.fixture
def busy_writer(writers: Writers, door: Door) -> PartWriter:
    """A writer whose only thread waits at the door with one item of a first attempt."""
    part_writer = writers(1)
    submit(part_writer, items("first", 1))
    door.wait_for(1)
    return part_writer


def items(store: str, count: int, size: int = 10, first: int = 0, namespace: str = "orders") -> list[tuple[Key, Item]]:
    keys = [part_key(f"{namespace}/{store}", 1, NO_ATTEMPT, sequence, 4) for sequence in range(first, first + count)]
    return [(key, item_key(key) | {"data": bytes(size)}) for key in keys]


def submit(
    part_writer: PartWriter,
    brought: list[tuple[Key, Item]],
    to: PendingWrites | None = None,
    within_s: float = WITHIN_S,
) -> PendingWrites:
    pending = to or PendingWrites()
    part_writer.submit(pending, brought, within_s)
    return pending


def wait_for(*attempts: PendingWrites) -> None:
    for pending in attempts:
        pending.wait(WITHIN_S)


def sizes(memory: MemoryTables) -> list[int]:
    return [len(call.keys) for call in memory.called("write")]


def stores(keys: Iterable[Key]) -> list[str]:
    return list(dict.fromkeys(key.store_shard.split("#")[0].removeprefix("orders/") for key in keys))


def test_items_go_out_in_requests_of_25(memory: MemoryTables, door: Door, writers: Writers) -> None:
    brought, part_writer = items("a", 61), writers(1)
    pending = submit(part_writer, brought[:1])
    door.wait_for(1)
    submit(part_writer, brought[1:], pending)
    door.open()
    wait_for(pending)
    assert sizes(memory) == [1, 25, 25, 10]
    assert [key for call in memory.called("write") for key in call.keys] == [key for key, _ in brought]
    assert memory.items == dict(brought)
    assert pending.sent == {key: item_bytes(item) for key, item in brought}


def test_items_submitted_together_share_a_request(memory: MemoryTables, door: Door, writers: Writers) -> None:
    door.open()
    part_writer = writers(8)
    for round_ in range(20):
        wait_for(submit(part_writer, items("a", 25, first=25 * round_)))
    assert sizes(memory) == [25] * 20


def test_several_requests_are_under_way_at_once(door: Door, writers: Writers) -> None:
    pending = submit(writers(3), items("a", 75))
    door.wait_for(3)
    door.open()
    wait_for(pending)


def test_a_caller_that_waits_writes_its_items_itself(memory: MemoryTables, door: Door, writers: Writers) -> None:
    """No worker is needed for what fits into a request; the rest is theirs."""
    door.open()
    part_writer, pending = writers(0), PendingWrites()
    part_writer.submit(pending, items("a", 25), WITHIN_S, waits=True)
    pending.wait(0)
    part_writer.submit(pending, items("a", 26, first=25), WITHIN_S, waits=True)
    with pytest.raises(UnavailableError, match="pending=1"):
        pending.wait(0)
    assert sizes(memory) == [25, 25]


def test_a_caller_that_waits_does_not_overtake_others(memory: MemoryTables, writers: Writers) -> None:
    """Where something is queued, its items come after that, and share its request."""
    part_writer, pending = writers(0), PendingWrites()
    submit(part_writer, items("first", 1))
    part_writer.submit(pending, items("second", 1), WITHIN_S, waits=True)
    assert sizes(memory) == []
    with part_writer._work_came:
        batch = part_writer._next_batch()
    assert stores(each.key for each in batch) == ["first", "second"]


def test_a_request_stays_small(memory: MemoryTables, door: Door, busy_writer: PartWriter) -> None:
    """Large items are sent in requests of at most a MiB, so that several run at once."""
    pending = submit(busy_writer, items("a", 25, size=380_000))
    door.open()
    wait_for(pending)
    assert sizes(memory) == [1, *[2] * 12, 1]


def test_stores_share_requests_when_there_is_a_queue(memory: MemoryTables, door: Door, busy_writer: PartWriter) -> None:
    """Items of several attempts and stores share a request; each learns of its own items only."""
    one = submit(busy_writer, items("one", 10, size=2000))
    other = submit(busy_writer, items("other", 10))
    door.open()
    wait_for(one, other)
    assert sizes(memory) == [1, 20]
    assert set(one.sent) == {key for key, _ in items("one", 10)}
    assert set(other.sent) == {key for key, _ in items("other", 10)}
    assert (one.meter.requests, one.meter.items_written, one.meter.write_units) == (1, 10, 30)
    assert (other.meter.requests, other.meter.items_written, other.meter.write_units) == (0, 10, 10)


def test_namespaces_do_not_share_requests(memory: MemoryTables, door: Door, busy_writer: PartWriter) -> None:
    """Two queries of one application may have a policy each, which denies a request with one key of the other's."""
    one = submit(busy_writer, items("0/0/default", 30))
    other = submit(busy_writer, items("0/0/default", 10, namespace="payments"))
    submit(busy_writer, items("0/0/default", 2, first=30), one)
    door.open()
    wait_for(one, other)
    assert sizes(memory) == [1, 25, 5, 10, 2]
    assert all(len({key.namespace for key in call.keys}) == 1 for call in memory.called("write"))


def test_key_submitted_twice_goes_in_two_requests(memory: MemoryTables, door: Door, busy_writer: PartWriter) -> None:
    """Two attempts may write the same schema item; DynamoDB refuses a request with one key twice, so it gets two."""
    one = submit(busy_writer, items("same", 3))
    other = submit(busy_writer, [*items("other", 2), *items("same", 3)])
    door.open()
    wait_for(one, other)
    assert sizes(memory) == [1, 5, 3]


def test_submit_waits_for_room_in_the_queue(
    door: Door, writers: Writers, memory: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queued bytes and those under way stay within the bound; `submit` waits until there is room."""
    size = item_bytes(items("a", 1, size=1000)[0][1])
    set_limits(monkeypatch, queued_bytes_max=10 * size)
    part_writer, pending = writers(2), PendingWrites()
    most: list[int] = []

    def bring() -> None:
        for first in range(0, 40, 4):
            submit(part_writer, items("a", 4, size=1000, first=first), pending)
            most.append(part_writer._queued_bytes)

    bringing = threading.Thread(target=bring)
    bringing.start()
    door.wait_for(1)
    wait_until(lambda: len(most) >= 2, "nothing is submitted")
    bringing.join(0.2)
    assert bringing.is_alive()
    assert len(most) == 2, "eight of ten fit, twelve do not"
    door.open()
    bringing.join(WITHIN_S)
    wait_for(pending)
    assert max(most) <= 10 * size
    assert len(memory.items) == 40
    part_writer.close()
    assert part_writer._queued_bytes == 0


def test_room_goes_to_those_who_came_first(
    door: Door, writers: Writers, memory: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller with few bytes, for which there is room at once, waits behind one with many that came before it."""
    size = item_bytes(items("a", 1, size=1000)[0][1])
    set_limits(monkeypatch, queued_bytes_max=10 * size)
    part_writer = writers(1)
    pending = submit(part_writer, items("first", 6, size=1000))
    door.wait_for(1)
    callers = []
    for place, (store, count) in enumerate((("many", 8), ("few", 1))):
        brought = items(store, count, size=1000)
        callers.append(threading.Thread(target=part_writer.submit, args=(pending, brought, WITHIN_S)))
        callers[-1].start()
        wait_until(lambda place=place: len(part_writer._line) == place + 1, "it is not in line")  # type: ignore[misc]
    door.open()
    for caller in callers:
        caller.join(WITHIN_S)
    wait_for(pending)
    assert stores(key for call in memory.called("write") for key in call.keys) == ["first", "many", "few"]


def test_no_room_until_the_deadline_is_an_error(door: Door, writers: Writers, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, queued_bytes_max=100)
    part_writer, other = writers(1), PendingWrites()
    one = submit(part_writer, items("one", 1))
    door.wait_for(1)
    with pytest.raises(UnavailableError, match="writes wait for DynamoDB until the deadline"):
        submit(part_writer, items("other", 1), other, 0.05)
    door.open()
    wait_for(one, other)
    assert other.sent == {}


def test_an_item_larger_than_the_bound_is_written_alone(
    memory: MemoryTables, door: Door, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken when nothing else is queued, so it does not wait for ever."""
    set_limits(monkeypatch, queued_bytes_max=100)
    door.open()
    part_writer = writers(1)
    pending = submit(part_writer, items("a", 2, size=1000))
    wait_for(submit(part_writer, items("a", 1, size=1000, first=2), pending))
    assert len(memory.items) == 3


def test_a_failed_request_reaches_every_attempt_in_it(
    failing_tables: FailingTables, door: Door, busy_writer: PartWriter, memory: MemoryTables
) -> None:
    """`wait` and `submit` raise the error for each attempt with an item in the request, and for no other."""
    failing_tables.fail("write", None, Fault(UnavailableError("throttled")))
    one, other = submit(busy_writer, items("one", 10)), submit(busy_writer, items("other", 15))
    last = submit(busy_writer, items("last", 1))
    door.open()
    wait_for(last)
    for pending in (one, other):
        with pytest.raises(UnavailableError, match="throttled"):
            wait_for(pending)
        with pytest.raises(UnavailableError, match="throttled"):
            submit(busy_writer, items("more", 1), pending)
    assert stores(memory.items) == ["first", "last"]


def test_items_of_a_failed_request_are_remembered(failing_tables: FailingTables, door: Door, writers: Writers) -> None:
    """They may be durable all the same, so the attempt needs their keys for its abort."""
    door.open()
    failing_tables.fail("write", Fault(UnavailableError("throttled"), applied=True))
    pending = submit(writers(1), items("a", 3))
    with pytest.raises(UnavailableError):
        wait_for(pending)
    assert set(pending.sent) == {key for key, _ in items("a", 3)}
    assert (pending.meter.items_written, pending.meter.write_units) == (0, 0)


def test_a_defect_does_not_end_the_worker(failing_tables: FailingTables, door: Door, writers: Writers) -> None:
    """Any exception of a write goes to its attempt, and the worker takes the next request."""
    door.open()
    failing_tables.fail("write", Fault(ZeroDivisionError("a defect")))
    part_writer = writers(1)
    with pytest.raises(ZeroDivisionError):
        wait_for(submit(part_writer, items("one", 1)))
    wait_for(submit(part_writer, items("other", 1)))


def test_cancel_drops_queued_items(memory: MemoryTables, door: Door, writers: Writers) -> None:
    """A cancelled attempt's queued items are never written; those under way are waited for, and remembered."""
    part_writer = writers(1)
    pending = submit(part_writer, items("a", 1))
    door.wait_for(1)
    submit(part_writer, items("a", 5, first=1), pending)
    other = submit(part_writer, items("other", 1))
    cancelling = threading.Thread(target=pending.cancel, args=(WITHIN_S,))
    cancelling.start()
    wait_until(lambda: pending.cancelled, "it is not cancelled")
    cancelling.join(0.05)
    assert cancelling.is_alive(), "one item is under way"
    door.open()
    cancelling.join(WITHIN_S)
    wait_for(other)
    assert sizes(memory) == [1, 1]
    assert list(pending.sent) == [items("a", 1)[0][0]]


def test_wait_and_cancel_end_at_their_deadline(door: Door, writers: Writers) -> None:
    """A request that hangs is an UnavailableError in `wait`, and delays an abort at most until its deadline."""
    pending = submit(writers(1), items("a", 1))
    door.wait_for(1)
    with pytest.raises(UnavailableError, match="not durable at the deadline pending=1"):
        pending.wait(0.05)
    pending.cancel(0.05)
    assert pending.sent == {}, "it is under way"


def test_queued_items_of_a_failed_attempt_are_dropped(
    failing_tables: FailingTables, memory: MemoryTables, door: Door, writers: Writers
) -> None:
    """Once a request of an attempt has failed, its other items would only delay the queue."""
    failing_tables.fail("write", Fault(UnavailableError("throttled")))
    part_writer = writers(1)
    pending = submit(part_writer, items("a", 1))
    door.wait_for(1)
    submit(part_writer, items("a", 60, first=1), pending)
    other = submit(part_writer, items("other", 1))
    door.open()
    wait_for(other)
    assert stores(memory.items) == ["other"]
    assert list(pending.sent) == [items("a", 1)[0][0]]
    part_writer.close()
    assert part_writer._queued_bytes == 0


def test_queued_items_fail_at_their_deadline_while_no_write_succeeds(
    failing_tables: FailingTables, memory: MemoryTables, door: Door, clock: Clock, busy_writer: PartWriter
) -> None:
    """In an outage, a hundred attempts queued behind one request do not each wait for a request of their own."""
    failing_tables.fail("write", *[Fault(UnavailableError("gone"))] * 2)
    behind = [submit(busy_writer, items(f"behind-{number}", 25)) for number in range(100)]
    clock.sleep(WITHIN_S + 0.1)
    door.open()
    for pending in behind:
        with pytest.raises(UnavailableError, match=r"took nothing until the deadline.* seconds=10\.0"):
            wait_for(pending)
        assert pending.sent == {}
    assert sizes(memory) == []
    # Later requests are sent: the first one still fails, the second one succeeds.
    with pytest.raises(UnavailableError, match="gone"):
        wait_for(submit(busy_writer, items("later", 1)))
    wait_for(submit(busy_writer, items("last", 1)))
    assert sizes(memory) == [1]


def test_queued_items_outlast_their_deadline_while_writes_succeed(
    memory: MemoryTables, door: Door, clock: Clock, busy_writer: PartWriter
) -> None:
    """A slow table makes for a long queue: items wait as long as the queue moves."""
    behind = submit(busy_writer, items("behind", 25))
    clock.sleep(WITHIN_S + 0.1)
    door.open()
    wait_for(behind)
    assert sizes(memory) == [1, 25]


def test_close_writes_queued_items(memory: MemoryTables, door: Door, failing_tables: FailingTables) -> None:
    part_writer = PartWriter(failing_tables, 2)
    pending = submit(part_writer, items("a", 60))
    door.open()
    part_writer.close()
    pending.wait(0)
    assert len(memory.items) == 60
    assert not any(worker.is_alive() for worker in part_writer._workers)


def test_many_attempts_at_once(memory: MemoryTables, door: Door, writers: Writers) -> None:
    door.open()
    part_writer = writers(4)
    attempts = [PendingWrites() for _ in range(40)]
    brought = [items(f"store-{number}", 30, size=number) for number in range(40)]

    def bring(first: int) -> None:
        for number in range(first, 40, 8):
            for place in range(0, 30, 7):
                submit(part_writer, brought[number][place : place + 7], attempts[number])

    threads = [threading.Thread(target=bring, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    total = Meter()
    for pending, mine in zip(attempts, brought, strict=True):
        wait_for(pending)
        assert set(pending.sent) == {key for key, _ in mine}
        total.add(pending.meter)
    assert total.requests == len(memory.called("write"))
    assert total.items_written == sum(sizes(memory)) == len(memory.items) == 1200
    assert max(sizes(memory)) <= 25


@pytest.mark.parametrize(("sidecars", "fits"), [(1, 8), (2, 4), (8, 1)])
def test_shared_room(sidecars: int, fits: int, writers: Writers, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an executor's room each of its sidecars has the same part."""
    size = item_bytes(items("a", 1, size=1000)[0][1])
    set_limits(monkeypatch, queued_bytes_max=8 * size)
    part_writer = writers(1, sidecars)
    pending = submit(part_writer, items("a", fits, size=1000))
    with pytest.raises(UnavailableError, match="writes wait for DynamoDB until the deadline"):
        submit(part_writer, items("a", 1, size=1000, first=fits), PendingWrites(), 0.01)
    door.open()
    wait_for(pending)


@pytest.mark.parametrize("tasks", [1, 4, 16])
@pytest.mark.parametrize("size", [1_000, 10_000, 100_000, 390_000])
@pytest.mark.parametrize("rate", [100, 400, 1000, 4000])
def test_at_most_twice_the_bytes_that_are_taken_are_sent(rate: int, size: int, tasks: int) -> None:
    """Requests follow what the table takes, and nothing of that is left unused."""
    load = Load(rate)
    items = max(3, min(ITEMS_MAX, SECONDS * rate // units_of_write(size)) // tasks)
    load.run(tasks, items, size)
    assert load.failed == []
    assert load.client.taken == tasks * items * size
    assert load.client.sent <= 2 * load.client.taken
    assert sum(load.client.units.values()) >= 0.98 * rate * max(load.ended)


@pytest.mark.parametrize("size", [10_000, 100_000])
@pytest.mark.parametrize(("rate", "sidecars"), [(400, 2), (1000, 4), (4000, 8)])
def test_sidecars_of_an_executor_share_what_the_table_takes(rate: int, sidecars: int, size: int) -> None:
    """Each has a rate of its own, and knows nothing of the others: none starves, and nothing is left unused."""
    load = Load(rate, sidecars=sidecars)
    items = min(ITEMS_MAX, SECONDS * rate // units_of_write(size)) // 16
    load.run(16, items, size)
    assert load.failed == []
    assert load.client.taken == 16 * items * size
    assert load.client.sent <= 2 * load.client.taken
    assert sum(load.client.units.values()) >= 0.95 * rate * max(load.ended)
    of_each = [max(load.ended[number::sidecars]) for number in range(sidecars)]
    assert min(of_each) >= 0.45 * max(of_each)


@pytest.mark.parametrize("size", [100_000, 390_000])
def test_no_task_fails_while_the_table_makes_progress(size: int) -> None:
    """Sixteen tasks write five times what fits into the queue, at 200 units a second: none waits in vain for room."""
    load = Load(200)
    load.run(16, 10_000_000 // size, size)
    assert load.failed == []
    assert max(load.ended) > 10 * 60


def test_a_table_that_takes_more_again_is_used_soon() -> None:
    """After a minute at a fiftieth of it, requests are at the table's full rate within ten seconds."""
    load = Load(4000)
    for at_s, rate in ((10, 84), (70, 4000)):
        load.scheduler.after(at_s, lambda rate=rate: setattr(load.client, "rate", rate))  # type: ignore[misc]
    load.run(16, 750, 10_000)
    assert load.failed == []
    assert load.client.sent <= 1.5 * load.client.taken
    assert sum(load.client.units[second] for second in range(78, 83)) > 5 * 3500


def test_an_outage_fails_all_tasks_at_the_deadline() -> None:
    """Where nothing is taken any more, tasks that wait for room fail as well as those whose parts are queued."""
    load = Load(1000, deadline_s=30)
    load.scheduler.after(10, lambda: setattr(load.client, "rate", 0))
    load.run(16, 100, 100_000)
    assert len(load.failed) == 16
    assert all(39 < ended < 42 for ended in load.ended)
