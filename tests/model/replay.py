"""Counterexamples of the models, replayed on the engine: one step of the model is one request, or a read.

Each actor of a counterexample is a thread of its own that stops before every request. A step lets one actor go on until
it has made the request of the step, so that two replays are equal. A step whose request never comes is left out: the
engine has refused it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from dynastate.errors import DynastateError, UnavailableError
from dynastate.format.keys import Key
from dynastate.storage.tables import Tables
from tests.support.faults import FailingTables

WAIT_S: Final = 60


class Request(NamedTuple):
    """A request that an actor is about to make, with the keys that it is about."""

    verb: str
    keys: tuple[Key, ...]
    low: str = ""

    def is_about(self, verb: str, sort: str) -> bool:
        """Whether it has this verb, and is about an item whose sort key begins with `sort`."""
        sorts = [key.sort for key in self.keys] or [self.low]
        return self.verb == verb and any(each.startswith(sort) for each in sorts)


class SteppedTables(FailingTables):
    """Tables that stop before every request until `Actor` lets it pass."""

    def __init__(self, tables: Tables, stop: Callable[[Request], None]) -> None:
        super().__init__(tables)
        self._stop = stop

    def _call(self, verb: str, *arguments: Any) -> Any:
        first = arguments[0] if arguments else ()
        if isinstance(first, Key):
            request = Request(verb, (first,))
        elif verb in ("query", "pages", "list_keys"):
            request = Request(verb, (), arguments[2])
        else:
            request = Request(verb, tuple(each if isinstance(each, Key) else each[0] for each in first))
        self._stop(request)
        return super()._call(verb, *arguments)


class Actor:
    """Work in a thread that goes on step by step."""

    def __init__(self, tables: Tables, work: Callable[[Tables], object]) -> None:
        self._work = work
        self._tables = SteppedTables(tables, self._stop)
        self._may_go, self._has_stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._is_over = False
        self._is_dead = False
        #: The request that it is about to make.
        self._next: Request | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._has_stopped.acquire(timeout=WAIT_S)

    def _run(self) -> None:
        with suppress(DynastateError):
            self._work(self._tables)
        self._is_over, self._next = True, None
        self._has_stopped.release()

    def _stop(self, request: Request) -> None:
        self._next = request
        self._has_stopped.release()
        assert self._may_go.acquire(timeout=WAIT_S)
        if self._is_dead:
            raise UnavailableError("died")

    def _go(self) -> None:
        self._may_go.release()
        assert self._has_stopped.acquire(timeout=WAIT_S)

    def is_before(self, verb: str, sort: str) -> bool:
        """Go on until it is about to make a request. Returns False if it ends without it."""
        while not self._is_over:
            assert self._next is not None
            if self._next.is_about(verb, sort):
                return True
            self._go()
        return False

    def goes_past(self, verb: str, sort: str) -> bool:
        """Go on until it has made a request. Returns False if it ends without it."""
        if not self.is_before(verb, sort):
            return False
        self._go()
        return True

    def die(self) -> None:
        """Make no further request."""
        self._is_dead = True
        while not self._is_over:
            self._go()
        self._thread.join(WAIT_S)


class Instance(NamedTuple):
    """An instance of a model: the fields of its atoms, and its steps."""

    atoms: Mapping[str, Mapping[str, str]]
    steps: Sequence[Mapping[str, str]]

    def field(self, atom: str, name: str) -> str:
        """The value of a field, or an empty text."""
        return self.atoms.get(atom, {}).get(name, "")


def number_of(atom: str) -> int:
    return int(atom.rpartition("$")[2])
