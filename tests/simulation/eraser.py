"""Erasing rows of a stopped query, by one client after another, beside executors and forks of before."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass

from dynastate.engine.catalog import find_stores
from dynastate.errors import ConfigurationError, CorruptStateError, UnavailableError, VersionMissingError
from dynastate.operations.erase.erase import erase_stores, plan_erase
from dynastate.operations.erase.keys import GivenKeys
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.storage.tables import Tables
from tests.simulation.actors import KEY, key_of
from tests.simulation.model import violation
from tests.simulation.reach import DROP, ERASE
from tests.simulation.scheduler import Scheduler

#: Tries after which a fork is dropped, as an error says; after which the network has no faults; and the most.
FORK_TRIES, FAULTY_TRIES, ERASE_TRIES_MAX = 40, 80, 160
#: Errors of forks that are not complete, or are dropped in part.
_LEFT = re.compile(r"dynastate drop ([\w-]+), and erase again|being dropped: end that first store=([\w-]+)/")
_REWRITTEN = ("versions", "snapshots")


@dataclass
class Eraser:
    """Erases the rows of some keys until it is done, whoever of its clients dies."""

    _scheduler: Scheduler
    stores: Sequence[str]
    numbers: Sequence[int]
    tries: int = 0
    is_done: bool = False

    @property
    def keys(self) -> set[bytes]:
        return set(map(key_of, self.numbers))

    def erase(self, tables: Tables, most: int) -> None:
        """Repeat the erase with the same keys, by this client, until it has ended, or there were so many tries."""
        given = GivenKeys([{name: b64encode(b"%d" % number).decode() for name in KEY.names} for number in self.numbers])
        while not self.is_done and self.tries < most:
            self.tries += 1
            try:
                with self._scheduler.doing(ERASE):
                    plan = plan_erase(tables, self.stores, given)
                    erased = erase_stores(tables, plan, given).stores
            except (ConfigurationError, CorruptStateError, UnavailableError, VersionMissingError) as failed:
                self._scheduler.note("not erased yet: %s", failed)
                if self.tries > FORK_TRIES and (match := _LEFT.search(str(failed))):
                    self._drop(tables, match[1] or match[2])
                if self.tries == ERASE_TRIES_MAX:
                    raise violation("an erase does not end", stores=" ".join(self.stores), error=failed) from failed
                self._scheduler.sleep(1.0)
            else:
                self.is_done = True
                versions, snapshots = (sum(len(getattr(each, name)) for each in erased) for name in _REWRITTEN)
                self._scheduler.note("erased from %d versions and %d snapshots", versions, snapshots)

    def _drop(self, tables: Tables, fork: str) -> None:
        """Drop a fork whose client is dead."""
        try:
            with self._scheduler.doing(DROP):
                drop_stores(tables, list(find_stores(tables, fork)))
        except (ConfigurationError, UnavailableError) as again:
            self._scheduler.note("%s is not dropped yet: %s", fork, again)
