"""Shared by all views: the tables, watched namespaces, open readers, rows that are being read, and checks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any, Final, TypeVar

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.meter import Meter
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError
from dynastate.prices import Prices
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from dynastate.ui.check import Check
from dynastate.ui.cursor import Cursor
from dynastate.ui.watch import Watch

#: Readers, and results that are being read, which are open at once. Those that were not used for longest are closed.
OPEN_MAX: Final = 8
#: MiB that each of these caches.
CACHE_MB: Final = 16


Result = TypeVar("Result", bound=Cursor[Any])


class _Reader:
    """A reader, for one thread at a time."""

    def __init__(self, reader: StateReader) -> None:
        self.lock = Lock()
        self.reader = reader

    def close(self) -> None:
        with self.lock:
            self.reader.close()


class Site:
    """The tables that `settings` name, and what was read of them. Safe for threads; `close` ends it.

    `namespaces`: those that are shown; empty: all that there are, which a Scan finds.
    """

    def __init__(self, settings: Settings, namespaces: Sequence[str] = (), reports: str = "") -> None:
        self.settings = replace(settings, cache_mb=CACHE_MB)
        self.prices = Prices.of(settings)
        self._reports = reports
        self._namespaces = list(namespaces)
        self._watches: dict[str, Watch] = {}
        self._readers: OrderedDict[Hashable, Any] = OrderedDict()
        self._cursors: OrderedDict[Hashable, Any] = OrderedDict()
        self.checks: dict[str, Check] = {}
        self._lock = Lock()
        with ExitStack() as opened:
            self.tables = BotoTables(settings)
            opened.callback(self.tables.close)
            self.engine = Engine(self.tables, self.settings)
            opened.callback(self.engine.close)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Close the readers and the tables."""
        with self._lock:
            for opened in (self._cursors, self._readers):
                for each in opened.values():
                    each.close()
                opened.clear()
        for check in self.checks.values():
            check.cancel()
        self._opened.close()

    def namespaces(self, spent: Meter) -> list[str]:
        """The namespaces that are shown."""
        if self._namespaces:
            return self._namespaces
        return sorted({store.split("/")[0] for store in self.tables.find_stores(spent)})

    def watch(self, namespace: str) -> Watch:
        """The watch of a namespace.

        Raises:
            ConfigurationError: it is not one of those that are shown.
        """
        if self._namespaces and namespace not in self._namespaces:
            raise ConfigurationError("this page was not started for this namespace", namespace=repr(namespace[:100]))
        with self._lock:
            if namespace not in self._watches:
                self._watches[namespace] = Watch(self.engine, self.tables, namespace, self.prices, self._reports)
            return self._watches[namespace]

    @contextmanager
    def reader(self, stores: str, family: str = "") -> Iterator[StateReader]:
        """A reader of stores, which is at their newest version."""
        with self._lock:
            key = stores, family
            held: _Reader | None = self._readers.pop(key, None)
            is_new = held is None
            if held is None:
                held = _Reader(self.open_reader(stores, family))
            self._readers[key] = held
            held.lock.acquire()  # before another thread can close it
            _close_oldest(self._readers)
        try:
            if not is_new:
                held.reader.refresh()
            yield held.reader
        finally:
            held.lock.release()

    def open_reader(self, stores: str, family: str = "") -> StateReader:
        """A reader of one's own, for somebody who closes it."""
        return StateReader(self.tables, self.settings, stores, family or None)

    @contextmanager
    def cursor(self, key: Hashable, make: Callable[[], Result]) -> Iterator[Result]:
        """The result that is read under a key, which is made where there is none."""
        with self._lock:
            held: Any = self._cursors.pop(key, None) or make()
            self._cursors[key] = held
            held.lock.acquire()  # before another thread can close it
            _close_oldest(self._cursors)
        try:
            yield held
        except BaseException:
            with self._lock:
                self._cursors.pop(key, None)
            raise
        finally:
            held.lock.release()


def _close_oldest(opened: OrderedDict[Hashable, Any]) -> None:
    """Close what was not used for longest, but for what is in use."""
    for key in list(opened)[: max(0, len(opened) - OPEN_MAX)]:
        if not opened[key].lock.locked():
            opened.pop(key).close()
