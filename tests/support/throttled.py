"""A throttled table in virtual time, and tasks that write to it through the engine's queue."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from dynastate import runtime
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.retries import RetryPolicy
from dynastate.engine.writer import PartWriter, PendingWrites
from dynastate.errors import DynastateError
from dynastate.format.items import Item, item_bytes, item_key
from dynastate.format.keys import NO_ATTEMPT, Key, part_key
from dynastate.settings import Settings
from dynastate.storage.meter import units_of_write
from tests.simulation.scheduler import Scheduler
from tests.simulation.threads import runtime_of
from tests.support.clients import client_error

LATENCY_S = 0.01
#: Of one connection.
BYTES_PER_S = 50e6
#: As `commit.HAND_ON_BYTES`: an attempt queues its parts when it has so many bytes, or 25 items.
HAND_ON_BYTES = 512 * 1024


class ThrottledClient:
    """A boto3 client of a table that takes `rate` write units a second, with the burst of one second.

    As in DynamoDB, an item is let in while there is a unit left, whatever its size; what it takes more is missing
    later. The rest of a batch comes back unprocessed; where nothing gets in, the whole request fails.
    """

    def __init__(self, scheduler: Scheduler, rate: float) -> None:
        self.rate = rate
        self.sent = self.taken = 0
        #: Units let in, by second.
        self.units: dict[int, int] = {}
        self._scheduler = scheduler
        self._tokens, self._since = rate, 0.0

    def batch_write_item(self, RequestItems: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:  # noqa: N803
        rest: dict[str, list[dict[str, Any]]] = {}
        sizes = {id(each): _bytes(each) for writes in RequestItems.values() for each in writes}
        self.sent += sum(sizes.values())
        self._scheduler.sleep(LATENCY_S + sum(sizes.values()) / BYTES_PER_S)
        for table, writes in RequestItems.items():
            for each in writes:
                if not self._takes(sizes[id(each)]):
                    rest.setdefault(table, []).append(each)
        if sum(map(len, rest.values())) == len(sizes):
            raise client_error("ProvisionedThroughputExceededException")
        return {"UnprocessedItems": rest}

    def close(self) -> None:
        """Do nothing; a boto3 client has it."""

    def _takes(self, size: int) -> bool:
        time_s = self._scheduler.now
        self._tokens = min(self.rate, self._tokens + (time_s - self._since) * self.rate)
        self._since = time_s
        if self._tokens <= 0:
            return False
        units = units_of_write(size)
        self._tokens -= units
        self.units[int(time_s)] = self.units.get(int(time_s), 0) + units
        self.taken += size
        return True


def _bytes(write: dict[str, Any]) -> int:
    return sum(len(name) + len(next(iter(value.values()))) for name, value in write["PutRequest"]["Item"].items())


class Load:
    """Tasks of one executor, in some sidecars, that write to a throttled table at the same time, in virtual time."""

    def __init__(self, rate: float, deadline_s: int = 60, sidecars: int = 1) -> None:
        self.scheduler = Scheduler()
        self.client = ThrottledClient(self.scheduler, rate)
        self.failed: list[DynastateError] = []
        #: When each task was done; tasks go to sidecars in turn.
        self.ended: list[float] = []
        self._deadline_s = deadline_s
        self._sidecars = sidecars

    def run(self, tasks: int, items: int, size: int) -> None:
        """Let each task write so many items of so many bytes, and wait until they are durable."""
        with runtime.using(runtime_of(self.scheduler)):
            self.scheduler.run("executor", lambda: self._run(tasks, items, size))

    def _run(self, tasks: int, items: int, size: int) -> None:
        chance = random.Random(1)  # noqa: S311  # a test
        clock, sleep = self.scheduler.clock, self.scheduler.sleep
        self.ended = [0.0] * tasks
        writers = []
        for _ in range(self._sidecars):  # each with rates of its own
            retries = RetryPolicy(self._deadline_s, clock=clock, sleep=sleep, randomness=chance)
            both = BotoTables(Settings(region="us-east-1"), retries=retries, client=self.client)
            both.expect_answers()
            threads = Settings().parallel_requests // self._sidecars
            writers.append(PartWriter(both, threads, self._sidecars))
        started = [
            runtime.thread(partial(self._write, writers[task % self._sidecars], task, items, size), f"task-{task}")
            for task in range(tasks)
        ]
        for each in started:
            each.start()
        for each in started:
            each.join()
        for each_writer in writers:
            each_writer.close()

    def _write(self, part_writer: PartWriter, task: int, count: int, size: int) -> None:
        pending = PendingWrites()
        per_request = max(1, min(25, -(-HAND_ON_BYTES // size)))
        parts = [part(task, number, size) for number in range(count)]
        try:
            for at in range(0, count, per_request):
                part_writer.submit(pending, parts[at : at + per_request], self._deadline_s)
            pending.wait(10 * self._deadline_s)
        except DynastateError as failed:
            self.failed.append(failed)
        self.ended[task] = self.scheduler.now


def part(task: int, number: int, size: int) -> tuple[Key, Item]:
    key = part_key(f"orders/0/{task}/default", 1, NO_ATTEMPT, number, 4)
    keys = item_key(key)
    return key, keys | {"data": bytes(size - item_bytes(keys | {"data": b""}))}
