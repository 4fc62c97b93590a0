"""Tasks that write to a throttled table, in virtual time: what is sent in vain, how fast they are, and who fails."""

from __future__ import annotations

import pytest

from dynastate.storage.meter import units_of_write
from tests.support.throttled import Load

#: How long the table takes for all items, unless these are too many for a test.
SECONDS = 60
ITEMS_MAX = 6000


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
