"""The newest epoch of each store, as far as one executor has seen it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from dynastate.format.items import Item
from dynastate.format.meta import parse_meta

#: Stores whose newest epoch one executor remembers.
STORES_MAX: Final = 10_000


class Epochs:
    """The newest epoch that was seen, by store. Safe for threads."""

    def __init__(self) -> None:
        self._newest: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def newest(self, store: str) -> int:
        """The newest epoch that was seen of a store; 0: none."""
        with self._lock:
            return self._newest.get(store, 0)

    def see(self, store: str, meta: Item) -> None:
        epochs, _ = parse_meta(store, meta)
        with self._lock:
            self._newest[store] = max(self._newest.pop(store, 0), *epochs.values())
            while len(self._newest) > STORES_MAX:
                self._newest.popitem(last=False)

    def forget_above(self, store: str, epoch: int) -> bool:
        """Forget what was seen of a store before it was dropped and made again: its meta item has no such epoch."""
        with self._lock:
            is_dropped = self._newest.get(store, 0) > epoch
            if is_dropped:
                del self._newest[store]
        return is_dropped
