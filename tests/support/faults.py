"""Tables that wrap others and make requests fail, wait, or come late."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast

from dynastate.errors import UnavailableError
from dynastate.format.keys import Role
from dynastate.format.objects import ObjectId
from dynastate.storage.meter import Meter
from dynastate.storage.objects import Objects
from dynastate.storage.tables import Tables
from tests.support.memory_tables import UnthrottledTables

AnyFailing = TypeVar("AnyFailing", bound="FailingTables")


class Fault(NamedTuple):
    """A failure of one call, before or after it was applied."""

    error: Exception
    applied: bool = False


def _call_of(verb: str) -> Any:
    """A method of `FailingTables`: the verb of its tables, after what is planned."""
    return lambda tables, *arguments: tables._call(verb, *arguments)


class FailingTables(UnthrottledTables):
    """Tables with planned faults: each call of a verb takes the next of `faults[verb]`; None lets it pass.

    `before` is called with the verb ahead of every call, from the thread that makes it: to hold it, or to look on.
    """

    def __init__(self, tables: Tables, before: Callable[[str], object] = lambda _: None) -> None:
        self.tables = tables
        self.faults: dict[str, deque[Fault | None]] = defaultdict(deque)
        self._before = before
        self._lock = threading.Lock()
        self.meter = tables.meter

    def metered(self: AnyFailing, meter: Meter) -> AnyFailing:  # noqa: PYI019  # Self comes with Python 3.11
        view = super().metered(meter)
        view.tables = self.tables.metered(meter)
        return view

    @property
    def names(self) -> Mapping[Role, str]:
        return self.tables.names

    def fail(self, verb: str, *faults: Fault | None) -> None:
        with self._lock:
            self.faults[verb].extend(faults)

    def _call(self, verb: str, *arguments: Any) -> Any:
        self._before(verb)
        with self._lock:
            fault = self.faults[verb].popleft() if self.faults[verb] else None
        if fault is not None and not fault.applied:
            raise fault.error
        result = attrgetter(verb)(self.tables)(*arguments)
        if fault is not None:
            raise fault.error
        return result

    @property
    def objects(self) -> Objects:
        return self.tables.objects

    def stop(self) -> None:
        self.tables.stop()

    check, query, pages, get, write = map(_call_of, ("check", "query", "pages", "get", "write"))
    delete, delete_over, put_new, put_over = map(_call_of, ("delete", "delete_over", "put_new", "put_over"))
    list_keys, update = map(_call_of, ("list_keys", "update"))


class FailingObjects(Objects):
    """The objects of `FailingTables`, whose requests are among those of the tables: their verbs have a prefix."""

    PREFIX = "objects."

    def __init__(self, tables: FailingTables) -> None:
        self._tables = tables

    def put(self, object_id: ObjectId, data: bytes) -> None:
        self._tables._call(f"{self.PREFIX}put", object_id, data)

    def get(self, object_id: ObjectId, start: int, end: int) -> bytes | None:
        data: bytes | None = self._tables._call(f"{self.PREFIX}get", object_id, start, end)
        return data

    def names(self, location: str, prefix: str) -> Iterator[ObjectId]:
        yield from self._tables._call(f"{self.PREFIX}names", location, prefix)

    def delete(self, object_ids: Sequence[ObjectId]) -> None:
        self._tables._call(f"{self.PREFIX}delete", object_ids)


class Door:
    """Blocks writes until `open`, as what `FailingTables` calls before each request; counts those that have arrived."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arrived = 0
        self._is_open = False

    def __call__(self, verb: str) -> None:
        if verb == "write":
            with self._changed:
                self._arrived += 1
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: self._is_open, 10)

    def wait_for(self, arrived: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._arrived >= arrived, 10)

    def open(self) -> None:
        with self._changed:
            self._is_open = True
            self._changed.notify_all()


class Overtaken(FailingTables):
    """Tables on which something else happens before the first request of a verb."""

    def __init__(self, tables: Tables, happens: Callable[[], object], before: str = "get") -> None:
        to_come = [happens]
        super().__init__(tables, lambda verb: to_come.pop()() if verb == before and to_come else None)


class Recorded(FailingTables):
    """Tables that note requests, so that they can be sent again, as if they were late."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self.requests: list[tuple[str, tuple[Any, ...]]] = []

    def _call(self, verb: str, *arguments: Any) -> Any:
        self.requests.append((verb, arguments))
        return super()._call(verb, *arguments)

    def repeat(self, *verbs: str, about: str = "") -> None:
        """Send the requests of some verbs again; where one is named, those about that attribute."""
        matches = [each for each in self.requests if each[0] in verbs and about in str(each[1])]
        assert matches
        for verb, arguments in matches:
            attrgetter(verb)(self.tables)(*arguments)


class Dying(FailingTables):
    """Tables that fail from one request on, before it or after, as in a crash; below 0, `left` counts the rest."""

    def __init__(self, tables: Tables, left: int, *, applied: bool = False) -> None:
        super().__init__(tables)
        self._left, self.applied = [left], applied

    @property
    def left(self) -> int:
        return self._left[0]

    @property
    def objects(self) -> Objects:
        return cast("Objects", _DyingObjects(self, self.tables.objects))

    def _call(self, verb: str, *arguments: Any) -> Any:
        return self.attempt(partial(super()._call, verb, *arguments))

    def attempt(self, request: Callable[[], Any]) -> Any:
        """Send a request, if it is one of those before the crash."""
        self._left[0] -= 1  # views share it
        count = self.left
        if count < 0 and not (self.applied and count == -1):
            raise UnavailableError("died")
        result = request()
        if count == -1:
            raise UnavailableError("died")
        return result


class _DyingObjects:
    """The objects of tables that die: their requests count, too."""

    def __init__(self, tables: Dying, objects: Objects) -> None:
        self._tables, self._objects = tables, objects

    def metered(self, meter: Meter) -> _DyingObjects:
        return _DyingObjects(self._tables, self._objects.metered(meter))

    def __getattr__(self, verb: str) -> Any:
        return lambda *arguments: self._tables.attempt(partial(getattr(self._objects, verb), *arguments))
