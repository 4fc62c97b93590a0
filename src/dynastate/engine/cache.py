"""A bounded cache of values that never change, so that it is never stale. No I/O."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """Values up to `limit_bytes` in all; the least recently used are evicted. Safe for threads."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._bytes = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value, which becomes the most recently used. Returns None if it is not cached."""
        with self._lock:
            entry = self._values.get(key)
            if entry is None:
                return None
            self._values.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value of `size` bytes, unless this value alone is larger than the limit."""
        with self._lock:
            self._put(key, value, size)

    def get_or_put(self, key: K, value: V, size: int) -> V:
        """The cached value. If there is none, keep and return `value`."""
        with self._lock:
            if key not in self._values:
                self._put(key, value, size)
                return value
            self._values.move_to_end(key)
            return self._values[key][0]

    def drop(self, key: K) -> None:
        with self._lock:
            self._drop(key)

    @property
    def bytes(self) -> int:
        return self._bytes

    def _put(self, key: K, value: V, size: int) -> None:
        self._drop(key)
        if size > self.limit_bytes:
            return
        self._values[key] = value, size
        self._bytes += size
        while self._bytes > self.limit_bytes:
            _, (_, freed_bytes) = self._values.popitem(last=False)
            self._bytes -= freed_bytes

    def _drop(self, key: K) -> None:
        _, freed_bytes = self._values.pop(key, (None, 0))
        self._bytes -= freed_bytes
