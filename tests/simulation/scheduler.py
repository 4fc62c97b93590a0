"""Tasks that take turns in virtual time: one runs until it waits. The same program takes the same steps each time.

A task is a thread, so that the engine's code runs unchanged; but control passes only where a task waits: for time,
for a request, for a lock. A queue of events in virtual time determines the next task.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Final

from tests.simulation.reach import Cell

#: A schedule takes some thousands of events; one that takes this many never ends.
EVENTS_MAX: Final = 400_000


class KilledError(BaseException):
    """The process of this task is dead. No `except Exception` catches it."""


class StuckError(Exception):
    """Every task waits for another one, or the tasks never end."""


class Process:
    """Tasks that share memory and die together. A suspended process continues later, and does not notice."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.paused_until = 0.0


class Task:
    """A thread that waits for its turn."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process
        self.is_over = False
        self.waits_for = ""
        #: The step of the protocol, for counts of what struck it; "": its requests say which.
        self.doing = ""
        #: Counts waits, so that an event for an earlier wait does nothing.
        self.wait = 0
        self.turn = threading.Lock()
        self.turn.acquire()


Event = Callable[[], Task | None]


class Scheduler:
    """The queue of events, the clock, and the current task. `steps` is the journal: time, task, text and its facts."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps: list[tuple[float, str, str, tuple[object, ...]]] = []
        self.current: Task | None = None
        #: How often each fault struck each step.
        self.struck: Counter[Cell] = Counter()
        self._events: list[tuple[float, int, Event]] = []
        self._order = count()
        self._passed = 0
        self._tasks: list[Task] = []
        self._main = Task("main", Process("main"))
        self._place: Process | None = None
        self._failure: BaseException | None = None
        self._is_ending = False

    def note(self, text: str, *facts: object) -> None:
        """Add a step to the journal; the text is formatted only if the journal is printed."""
        self.steps.append((self.now, self.current.name if self.current else "-", text, facts))

    def clock(self) -> float:
        return self.now

    def at(self, when: float, event: Event) -> None:
        """Schedule an event; if it returns a task, that task runs next."""
        heapq.heappush(self._events, (when, next(self._order), event))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Schedule something that is no task: an event in the network or in DynamoDB."""
        self.at(self.now + seconds, act)

    def spawn(self, name: str, body: Callable[[], None], process: Process | None = None, doing: str = "") -> Task:
        """Start a task, by default in the process of the current one. All that it does may be one step."""
        if process is None:
            process = self._place or (self.current.process if self.current else self._main.process)
        task = Task(name, process)
        task.doing = doing
        self._tasks.append(task)
        threading.Thread(target=self._run, args=(task, body), name=name, daemon=True).start()
        self.unpark(task)
        return task

    @contextmanager
    def within(self, process: Process) -> Iterator[None]:
        """Start the tasks of a block in a process."""
        outer, self._place = self._place, process
        try:
            yield
        finally:
            self._place = outer

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Run a block at once and outside of any task: nothing else happens meanwhile."""
        task, self.current = self.current, None
        try:
            yield
        finally:
            self.current = task

    @contextmanager
    def doing(self, step: str) -> Iterator[None]:
        """Count the faults that strike the current task in a block for a step of the protocol."""
        task = self.current
        if task is None:
            yield
            return
        outer, task.doing = task.doing, step
        try:
            yield
        finally:
            task.doing = outer

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.park("time", until - self.now)

    def park(self, waits_for: str, timeout_s: float | None = None) -> None:
        """Let other tasks run until `unpark`, or for some time."""
        task = self.current
        if task is None:
            raise StuckError(f"waiting outside of any task: {waits_for}")
        self._must_live(task)
        task.waits_for = waits_for
        task.wait += 1
        if timeout_s is not None:
            self.unpark(task, timeout_s)
        self._pass_on(task)
        self._must_live(task)

    def unpark(self, task: Task, seconds: float = 0.0) -> None:
        """Resume a task that waits; does nothing if that wait is over by then."""
        self.at(self.now + seconds, partial(self._wake, task, task.wait))

    def kill(self, process: Process) -> None:
        """End a process between two steps of its tasks. If the caller is one of them, this does not return."""
        self.note("kill %s", process.name)
        process.is_dead = True
        if self.current is not None:
            self._must_live(self.current)

    def run(self, name: str, body: Callable[[], None]) -> None:
        """Run a task, and those it starts, until it ends. Raises the first error of any of them."""
        root = self.spawn(name, body, Process(name))
        self._root = root
        self._pass_on(self._main)
        self._is_ending = True
        for task in self._tasks:
            if not task.is_over:
                self._give_turn(task)
                self._main.turn.acquire()
        if self._failure is not None:
            raise self._failure

    def waiting(self) -> list[str]:
        return [f"{one.name}: {one.waits_for}" for one in self._tasks if not one.is_over and not one.process.is_dead]

    def _run(self, task: Task, body: Callable[[], None]) -> None:
        task.turn.acquire()
        try:
            self._must_live(task)
            body()
        except KilledError:
            pass
        except BaseException as failed:  # noqa: BLE001  # the test gets any error
            self._failure = self._failure or failed
        task.is_over = True
        self._give_turn(self._main if self._is_ending or task is self._root else self._next())

    def _must_live(self, task: Task) -> None:
        if self._is_ending or task.process.is_dead:
            raise KilledError

    def _pass_on(self, task: Task) -> None:
        following = self._next()
        if following is not task:
            self._give_turn(following)
            task.turn.acquire()

    def _give_turn(self, task: Task) -> None:
        self.current = None if task is self._main else task
        task.turn.release()

    def _next(self) -> Task:
        """Process events until one returns a task; the test's own thread after a failure."""
        while self._failure is None and self._events:
            self.now, _, event = heapq.heappop(self._events)
            self._passed += 1
            if self._passed > EVENTS_MAX:
                self._failure = StuckError(f"not over after {EVENTS_MAX} events: {self.waiting()}")
                break
            try:
                with self.aside():
                    task = event()
            except BaseException as failed:  # noqa: BLE001  # the test gets any error
                self._failure = failed
                break
            if task is not None:
                return task
        if self._failure is None:
            self._failure = StuckError(f"every task waits: {self.waiting()}")
        return self._main

    def _wake(self, task: Task, wait: int) -> Task | None:
        if task.wait != wait or task.is_over or task.process.is_dead:
            return None
        if task.process.paused_until > self.now:
            self.at(task.process.paused_until, partial(self._wake, task, wait))
            return None
        task.wait += 1
        return task
