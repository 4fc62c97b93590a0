"""Shared by all views: the tables, watched namespaces, open readers, rows that are being read, and checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
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
from dynastate.ui.kept import Kept
from dynastate.ui.watch import Watch

#: MiB that each open reader caches.
CACHE_MB: Final = 16
#: Seconds after which all namespaces are listed again, by a Scan.
NAMESPACES_S: Final = 60.0

Result = TypeVar("Result", bound=Cursor[Any])


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
        self._listed: list[str] = []
        self._listed_s = -float("inf")
        self._readers: Kept[StateReader] = Kept()
        self._cursors: Kept[Cursor[Any]] = Kept()
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
        self._cursors.close()
        self._readers.close()
        for check in self.checks.values():
            check.cancel()
        self._opened.close()

    def namespaces(self, spent: Meter) -> list[str]:
        """The namespaces that are shown."""
        if self._namespaces:
            return self._namespaces
        with self._lock:
            if time.monotonic() - self._listed_s > NAMESPACES_S:
                self._listed = sorted({store.split("/")[0] for store in self.tables.find_stores(spent)})
                self._listed_s = time.monotonic()
            return self._listed

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
        with self._readers.use((stores, family), lambda: self.open_reader(stores, family)) as reader:
            reader.refresh()
            yield reader

    def open_reader(self, stores: str, family: str = "") -> StateReader:
        """Open a reader for one result, which closes it."""
        return StateReader(self.tables, self.settings, stores, family or None)

    def cursor(self, key: Hashable, make: Callable[[], Result]) -> AbstractContextManager[Result]:
        """The result that is read under a key, which is made where there is none."""
        cursors: Kept[Any] = self._cursors
        return cursors.use(key, make)
