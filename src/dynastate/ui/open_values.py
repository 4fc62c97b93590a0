"""Values that stay open between requests: readers of state, and results that are being read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final, Generic, Protocol, TypeVar

#: Values that are open at once. The least recently used value is closed.
OPEN_MAX: Final = 8


class Closeable(Protocol):
    """A value that has to be closed."""

    def close(self) -> None:
        """End it."""


Value = TypeVar("Value", bound=Closeable)


class _Slot(Generic[Value]):
    """A value, or None before it is made; for the thread that has `lock`."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.value: Value | None = None
        self.is_closed = False

    def close(self) -> None:
        with self.lock:
            self.is_closed = True
            if self.value is not None:
                self.value.close()


class OpenValues(Generic[Value]):
    """Values by keys, each used by one thread at a time. Threads with different keys do not wait for each other."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._slots: OrderedDict[Hashable, _Slot[Value]] = OrderedDict()

    @contextmanager
    def use(self, key: Hashable, make: Callable[[], Value]) -> Iterator[Value]:
        """The value of a key, which is made if there is none. A value whose use fails is closed."""
        slot = self._take(key)
        while not slot.lock.acquire() or slot.is_closed:
            slot.lock.release()
            slot = self._take(key)
        try:
            if slot.value is None:
                slot.value = make()
            yield slot.value
        except BaseException:
            self._forget(key, slot)
            slot.is_closed = True
            if slot.value is not None:
                slot.value.close()
            raise
        finally:
            slot.lock.release()

    def close(self) -> None:
        """Close all, each when its use has ended."""
        with self._lock:
            every = list(self._slots.values())
            self._slots.clear()
        for slot in every:
            slot.close()

    def _take(self, key: Hashable) -> _Slot[Value]:
        """The slot of a key, now the most recently used."""
        with self._lock:
            slot = self._slots.pop(key, None)
            if slot is None or slot.is_closed:
                slot = _Slot()
            self._slots[key] = slot
            idle = [each for each in list(self._slots)[:-1] if not self._slots[each].lock.locked()]
            old = [self._slots.pop(each) for each in idle[: max(0, len(self._slots) - OPEN_MAX)]]
        for old_slot in old:
            old_slot.close()
        return slot

    def _forget(self, key: Hashable, slot: _Slot[Value]) -> None:
        with self._lock:
            if self._slots.get(key) is slot:
                del self._slots[key]
