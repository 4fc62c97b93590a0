"""Operations on tables that crash at each of their requests, or meet another operation there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from dynastate.errors import DynastateError, UnavailableError
from dynastate.storage.tables import Tables
from tests.support.faults import Dying, FailingTables
from tests.support.memory_tables import MemoryTables

Operation = Callable[[Any], object]
#: How many requests an operation may take: one with few would crash nowhere.
REQUESTS_MIN, REQUESTS_MAX = 5, 1_000


def crashes(
    operation: Operation,
    tables: MemoryTables,
    *,
    applied: bool = False,
    is_reset: bool = True,
    least: int = REQUESTS_MIN,
) -> Iterator[int]:
    """Run an operation with a crash one request later each time, until it completes. Gives the number of the request.

    Each run finds the items and objects that were there at first; with `is_reset=False`, those that the run before has
    left. It must take more than `least` requests.
    """
    reset = tables.resetting()
    for request in range(REQUESTS_MAX):
        if is_reset:
            reset()
        dying = Dying(tables, request, applied=applied)
        with suppress(UnavailableError):
            operation(dying)
        if dying.left >= 0:
            assert request > least
            return
        yield request
    raise AssertionError("it does not end")


def each_request(operation: Operation, tables: MemoryTables) -> Iterator[None]:
    """Run an operation with a crash before each of its requests is applied, and after; in the end it completes."""
    reset = tables.resetting()
    for applied in (False, True):
        reset()
        for _ in crashes(operation, tables, applied=applied):
            yield


def at(request: int, tables: Tables, happens: Callable[[], object]) -> FailingTables:
    """Make something happen before one of the requests to these tables, the first of which is 0."""
    numbered = count()
    return FailingTables(tables, lambda _: happens() if next(numbered) == request else None)


def races(
    tables: MemoryTables, first: Operation, second: Callable[[], object]
) -> Iterator[tuple[DynastateError | None, DynastateError | None]]:
    """Run one operation between any two requests of another; give the errors of both.

    Each run finds the items that were there at first. The last run, which is not given, is the first operation's alone.
    """
    items = dict(tables.items)
    for request in range(REQUESTS_MAX):
        tables.items = dict(items)
        errors: list[DynastateError | None] = []
        happens = partial(lambda errors: errors.append(error_of(second)), errors)
        error = error_of(partial(first, at(request, tables, happens)))
        if not errors:
            assert request > 1
            return
        yield error, errors[0]
    raise AssertionError("it does not end")


def error_of(operation: Callable[[], object]) -> DynastateError | None:
    try:
        operation()
    except DynastateError as error:
        return error
    return None
