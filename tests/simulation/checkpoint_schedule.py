"""One schedule of a checkpoint: two drivers on it, kills and faults; everything random follows from the seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, Final

from dynastate.dynamodb.wire import from_wire
from dynastate.engine.checkpoint import ORPHAN_AGE, CheckpointFiles
from dynastate.errors import CorruptStateError
from dynastate.format.checkpoint import Checkpoint
from dynastate.format.keys import Attempt, Role, store_shard
from dynastate.settings import Settings
from tests.simulation.checkpoint_model import CheckpointModel, Put
from tests.simulation.drivers import GARBAGE_MAX, CheckpointReader, ConcurrentQueryError, Driver, Files
from tests.simulation.dynamodb import Place, Wire
from tests.simulation.model import violation
from tests.simulation.network import LATEST_S, NO_FAULTS
from tests.simulation.reach import CLOCK, PUT_FILE, Cell
from tests.simulation.scheduler import Process, Task
from tests.simulation.threads import NOW
from tests.simulation.world import NAMES, World

CHECKPOINT: Final = Checkpoint("ns", "query")
#: Where large files are objects.
LOCATION: Final = f"s3://objects/{NAMES['snapshot']}"
DRIVERS: Final = 2
#: How wrong clocks are at most: two of them by less than the age of orphans.
CLOCK_ERROR_H: Final = 10
#: Items that are damaged, one after another.
DAMAGED: Final = 3


class CheckpointSchedule(World):
    """The schedule of a query's checkpoint from a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.settings = Settings(region="us-east-1", request_deadline_s=self.chance.choice((2, 30)))
        self._retain = self.chance.choice((1, 2, 2, 5))
        self._steps = self.chance.choice((3, 10, 20))
        self._pause_s = self.chance.choice((0.3, 2.0, 10.0))
        self._reads_all = self.chance.random() < 0.7
        self._numbers = count(1)
        self._puts: dict[Task, Put] = {}
        self.model = CheckpointModel(CHECKPOINT, self.dynamodb, self.s3)
        self.dynamodb.on_change = self._on_change

    def __str__(self) -> str:
        return (
            f"checkpoint seed={self.seed} steps={self._steps} retain={self._retain} pause_s={self._pause_s} "
            f"deadline_s={self.settings.request_deadline_s} {self._first_faults}"
        )

    def _drive(self) -> None:
        drivers = [self._start_driver() for _ in range(DRIVERS)]
        process, files = self._files("reader")
        reader = CheckpointReader(self.scheduler, self.chance, files)
        self._spawn(process, partial(reader.read_now_and_then, self._is_calm))
        for _ in range(self._steps):
            self.scheduler.sleep(self.chance.uniform(0, 2 * self._pause_s))
            number = self.chance.randrange(DRIVERS)
            process, driver = drivers[number]
            kind = self.chance.random()
            if process.is_dead or kind < 0.3:
                self.scheduler.kill(process)
                drivers[number] = self._start_driver()
            elif kind < 0.5:
                driver.stop()
        self._end_quietly([process for process, _ in drivers])

    def _end_quietly(self, processes: list[Process]) -> None:
        """End without faults: then a run ends its batches, and nothing is left over."""
        self.scheduler.note("calm")
        self.faults = NO_FAULTS
        for process in processes:
            self.scheduler.kill(process)
        self.scheduler.sleep(LATEST_S + ORPHAN_AGE.total_seconds() + 2 * CLOCK_ERROR_H * 3600)
        _, driver = self._driver()
        try:
            driver.run(self._retain + 3 * GARBAGE_MAX)
        except ConcurrentQueryError as refused:
            raise violation("a query is refused, and there is no other one", file=refused) from refused
        self.model.check_end(self._retain + GARBAGE_MAX + 1)
        self._audit()

    def _audit(self) -> None:
        """Check that each file is read as the model has it, and with a wrong byte in an item not at all."""
        files = CheckpointFiles(self._tables(self.dynamodb, self.chance), {CHECKPOINT})
        items = self.dynamodb.items[NAMES["snapshot"]]
        with self.scheduler.aside():
            for path, data in self.model.files().items():
                if data is not None:
                    self._must_be(files, path, data)
            places = [place for place in items if place[0] == store_shard(CHECKPOINT.store, 0)]
            for place in self.chance.sample(places, DAMAGED):
                whole, items[place] = items[place], self._damaged(items[place])
                for path, data in self.model.files().items():
                    with suppress(CorruptStateError):
                        self._must_be(files, path, data)
                items[place] = whole
            for key in self.chance.sample(sorted(self.s3.objects), min(DAMAGED, len(self.s3.objects))):
                whole_object = self.s3.objects[key]
                self.s3.objects[key] = self._altered(whole_object)
                for path, data in self.model.files().items():
                    with suppress(CorruptStateError):
                        self._must_be(files, path, data)
                self.s3.objects[key] = whole_object

    def _must_be(self, files: CheckpointFiles, path: str, data: bytes | None) -> None:
        file = files.get(CHECKPOINT, path)
        if file is None or file.data != data:
            raise violation("a file is read with other data", file=path)

    def _damaged(self, item: Wire) -> Wire:
        """An item with another byte in its data, if it has any."""
        return item | {"data": {"B": self._altered(item["data"]["B"])}}

    def _altered(self, whole: bytes) -> bytes:
        data = bytearray(whole)
        if data:
            data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
        return bytes(data)

    def _start_driver(self) -> tuple[Process, Driver]:
        process, driver = self._driver()
        self._spawn(process, partial(driver.drive, self._is_calm))
        return process, driver

    def _driver(self) -> tuple[Process, Driver]:
        process, files = self._files("driver")
        return process, Driver(self.scheduler, self.chance, files, self._retain, self._reads_all, self._numbers)

    def _files(self, name: str) -> tuple[Process, Files]:
        """A process, and the checkpoint's files in it."""
        process = self._process(name)
        tables = self._tables(self._client(process, self.chance), self.chance)
        tables.expect_answers()
        files = CheckpointFiles(tables, set(), clock=self._clock(), location=self._location(process))
        return process, Files(self.scheduler, self.model, files, self._puts)

    def _location(self, process: Process) -> str:
        """The location of a process's large files, or none: half of the processes have the setting."""
        chance = random.Random(f"location of {process.name} of {self.seed}")  # noqa: S311  # others draw as without it
        return LOCATION if chance.random() < 0.5 else ""

    def _clock(self) -> Callable[[], datetime]:
        """The clock of one machine: wrong by some hours."""
        self._clocks += 1
        chance = random.Random(f"clock {self._clocks} of {self.seed}")  # noqa: S311  # others draw as without clocks
        start = NOW + timedelta(hours=chance.uniform(-CLOCK_ERROR_H, CLOCK_ERROR_H))

        def now() -> datetime:
            task = self.scheduler.current
            self.scheduler.struck[Cell(task.doing if task else PUT_FILE, CLOCK)] += 1
            return start + timedelta(seconds=self.scheduler.now)

        return now

    def _on_request(self, operation: str, request: dict[str, Any]) -> None:
        """Pass the writer of each head that is sent to the model."""
        task = self.scheduler.current
        if operation == "update_item" and task is not None and request["Key"]["entry"]["S"].startswith("file/"):
            names = {name: placeholder for placeholder, name in request["ExpressionAttributeNames"].items()}
            sets = dict(
                each.split(" = ")
                for each in request["UpdateExpression"].removeprefix("SET ").split(" REMOVE ")[0].split(", ")
            )
            writer = from_wire(request["ExpressionAttributeValues"])[sets[names["writer"]]]
            assert isinstance(writer, bytes)
            self.model.sends(self._puts[task], Attempt(writer))

    def _on_change(self, _: Role, place: Place, after: Wire | None) -> None:
        self.model.changed(place, after)
