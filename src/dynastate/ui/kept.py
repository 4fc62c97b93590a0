"""Values that stay open between requests: readers of state, and results that are being read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final, Generic, Protocol, TypeVar

#: The most that is open at once. What was not used for longest is closed.
OPEN_MAX: Final = 8


class Closeable(Protocol):
    """A value that has to be closed."""

    def close(self) -> None:
        """End it."""


Value = TypeVar("Value", bound=Closeable)


class _Held(Generic[Value]):
    """One of them, or none yet; for the thread that has `lock`."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.value: Value | None = None
        self.is_closed = False

    def close(self) -> None:
        with self.lock:
            self.is_closed = True
            if self.value is not None:
                self.value.close()


class Kept(Generic[Value]):
    """Values by keys, each used by one thread at a time. Threads with different keys do not wait for each other."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: OrderedDict[Hashable, _Held[Value]] = OrderedDict()

    @contextmanager
    def use(self, key: Hashable, make: Callable[[], Value]) -> Iterator[Value]:
        """The value of a key, which is made where there is none. One whose use fails is closed."""
        held = self._take(key)
        while not held.lock.acquire() or held.is_closed:
            held.lock.release()
            held = self._take(key)
        try:
            if held.value is None:
                held.value = make()
            yield held.value
        except BaseException:
            self._forget(key, held)
            held.is_closed = True
            if held.value is not None:
                held.value.close()
            raise
        finally:
            held.lock.release()

    def close(self) -> None:
        """Close all, each when its use has ended."""
        with self._lock:
            every = list(self._held.values())
            self._held.clear()
        for each in every:
            each.close()

    def _take(self, key: Hashable) -> _Held[Value]:
        """The place of a key, as the one that was used last."""
        with self._lock:
            held = self._held.pop(key, None)
            if held is None or held.is_closed:
                held = _Held()
            self._held[key] = held
            idle = [each for each in list(self._held)[:-1] if not self._held[each].lock.locked()]
            old = [self._held.pop(each) for each in idle[: max(0, len(self._held) - OPEN_MAX)]]
        for each in old:
            each.close()
        return held

    def _forget(self, key: Hashable, held: _Held[Value]) -> None:
        with self._lock:
            if self._held.get(key) is held:
                del self._held[key]
