"""The runtime of a simulation: the parts of `threading` and `concurrent.futures` that the engine uses.

Tasks of the scheduler are the threads. The engine's own queues and locks run unchanged, and the scheduler determines
which thread runs.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final, ParamSpec, TypeVar, cast
from uuid import UUID

from dynastate.runtime import Limits, Runtime
from tests.simulation.scheduler import Scheduler, Task

P = ParamSpec("P")
T = TypeVar("T")


#: The wall clock of a simulation.
NOW: Final = datetime(2025, 1, 1, tzinfo=timezone.utc)


def runtime_of(scheduler: Scheduler, chance: random.Random | None = None, limits: Limits | None = None) -> Runtime:
    """Time and threads of a scheduler, and ids that follow from the seed. The wall clock stands still."""
    ids = chance or random.Random(1)  # noqa: S311  # no secret
    return Runtime(
        monotonic=scheduler.clock,
        sleep=scheduler.sleep,
        now=lambda: NOW,
        new_id=lambda: UUID(int=ids.getrandbits(128)),
        lock=lambda: cast("threading.Lock", _Lock(scheduler)),
        condition=lambda lock: cast(
            "threading.Condition", Condition(scheduler, cast("_Lock | None", lock) or _Lock(scheduler))
        ),
        thread=lambda target, name, daemon: cast("threading.Thread", Thread(scheduler, target, name)),  # noqa: ARG005
        pool=lambda most, thread_name_prefix: Pool(scheduler, most, thread_name_prefix),
        limits=limits or Limits(),
    )


@dataclass
class _Lock:
    """A lock, held by a task or by the test's own thread."""

    _scheduler: Scheduler
    _is_held: bool = False
    _waiting: deque[Task] = field(default_factory=deque)

    def acquire(self) -> bool:
        while self._is_held:
            assert self._scheduler.current is not None, "the test's own thread waits for a lock that a task holds"
            self._waiting.append(self._scheduler.current)
            self._scheduler.park("a lock")
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held = False
        if self._waiting:
            self._scheduler.unpark(self._waiting.popleft())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass
class Condition:
    """A condition variable. A waiting task that is not notified continues to wait, as with real threads."""

    _scheduler: Scheduler
    _lock: _Lock
    _waiting: deque[Task] = field(default_factory=deque)

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Wait until the predicate holds, or for some seconds. Returns its last value."""
        until = None if timeout is None else self._scheduler.now + timeout
        result = predicate()
        while not result and (until is None or until > self._scheduler.now):
            task = self._scheduler.current
            assert task is not None, "the test's own thread waits for a task"
            self._waiting.append(task)
            self._lock.release()
            try:
                self._scheduler.park("a condition", None if until is None else until - self._scheduler.now)
            finally:
                if task in self._waiting:
                    self._waiting.remove(task)
                self._lock.acquire()
            result = predicate()
        return result

    def notify(self, count: int = 1) -> None:
        for _ in range(min(count, len(self._waiting))):
            self._scheduler.unpark(self._waiting.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Thread:
    """A task that others can wait for."""

    def __init__(self, scheduler: Scheduler, target: Callable[[], None], name: str) -> None:
        self._scheduler = scheduler
        self._target = target
        self._name = name
        self._is_over = False
        self._ended = Condition(scheduler, _Lock(scheduler))

    def start(self) -> None:
        self._scheduler.spawn(self._name, self._run)

    def join(self) -> None:
        with self._ended:
            self._ended.wait_for(lambda: self._is_over)

    def _run(self) -> None:
        self._target()
        with self._ended:
            self._is_over = True
            self._ended.notify_all()


class Result(Future[T]):
    """A future of a pool. Waiting for it lets other tasks run."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._ended = Condition(scheduler, _Lock(scheduler))

    def result(self, timeout: float | None = None) -> T:
        with self._ended:
            self._ended.wait_for(self.done, timeout)
        return super().result(0)

    def notify(self) -> None:
        with self._ended:
            self._ended.notify_all()


class Pool(Executor):
    """A pool of at most `most` tasks, started on demand. Outside of any task, work is done at once."""

    def __init__(self, scheduler: Scheduler, most: int, name: str) -> None:
        self._scheduler = scheduler
        self._most = most
        self._name = name
        self._tasks = 0
        self._idle = 0
        self._is_closed = False
        #: Each with the step of the task that submitted it.
        self._queue: deque[tuple[Result[Any], str, Callable[[], Any]]] = deque()
        self._has_work = Condition(scheduler, _Lock(scheduler))

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Result[T]:
        result: Result[T] = Result(self._scheduler)
        task = self._scheduler.current
        doing = task.doing if task is not None else ""
        with self._has_work:
            self._queue.append((result, doing, lambda: fn(*args, **kwargs)))
            if self._scheduler.current is None:
                self._do_one()
            elif self._idle:
                self._has_work.notify()
            elif self._tasks < self._most:
                self._tasks += 1
                self._scheduler.spawn(f"{self._name}-{self._tasks}", self._work)
        return result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        with self._has_work:
            self._is_closed = True
            while cancel_futures and self._queue:
                self._queue.popleft()[0].cancel()
            self._has_work.notify_all()
            if wait:
                self._has_work.wait_for(lambda: self._tasks == 0)

    def _work(self) -> None:
        while True:
            with self._has_work:
                self._idle += 1
                self._has_work.wait_for(lambda: self._queue or self._is_closed)
                self._idle -= 1
                if not self._queue:
                    self._tasks -= 1
                    self._has_work.notify_all()
                    return
            self._do_one()

    def _do_one(self) -> None:
        result, doing, act = self._queue.popleft()
        if result.set_running_or_notify_cancel():
            try:
                with self._scheduler.doing(doing):
                    result.set_result(act())
            except Exception as failed:  # noqa: BLE001  # the waiting task gets it
                result.set_exception(failed)
        result.notify()
