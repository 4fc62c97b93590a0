"""Commands on whole namespaces, noted as calls: forks, which are kept or dropped, and adoptions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final, TypeVar

from dynastate.engine.catalog import find_stores
from dynastate.errors import DynastateError, UnavailableError
from dynastate.format.keys import EMPTY, NO_ATTEMPT, VersionId
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.storage.tables import Tables
from tests.judged.calls import OK, OUTCOMES, Call, named
from tests.judged.history import NAMESPACE, History, Query
from tests.judged.runs import Run

T = TypeVar("T")
#: A user repeats a command for so long.
REPEATED_S: Final = 15.0
#: The batches of a run of a fork, and of the query that begins where one was dropped.
BATCHES: Final = 2
DEFECT: Final = "defect"


@dataclass(frozen=True)
class Commands:
    """The process of a user, who repeats a command until it is done."""

    history: History
    tables: Tables
    pool: ThreadPoolExecutor

    def keep_a_fork(self) -> None:
        """Fork the query, and run the fork without clean-ups: all of it is read to the end of the history."""
        query = Query("kept", "file:/tmp/kept/state")
        if bases := self._fork(query):
            Run(self.history, 1, query, bases, True, self.pool, BATCHES, cleans_up=False).drive()

    def drop_a_fork(self) -> None:
        """Fork the query, drop the fork while it runs, and begin another query in its namespace."""
        query = Query("dropped", "file:/tmp/dropped/state")
        bases = self._fork(query)
        if not bases:
            return
        run = Run(self.history, 1, query, bases, True, self.pool, self.history.size.batches)
        driver = self.pool.submit(run.drive)
        while not (run.chosen or run.is_over):
            time.sleep(0.02)
        is_dropped = self._drop(query)
        driver.result()  # a run of a dropped query that enters the next one's stores late would count as the newest
        if is_dropped and run.chosen:
            next_query = query._replace(id="5b0c2d7e-0000-4000-8000-000000000001", life=1)
            Run(self.history, 2, next_query, dict.fromkeys(query.stores, EMPTY), True, self.pool, BATCHES).drive()

    def adopt(self, query: Query, run: int) -> None:
        """Let only runs from a location write to the stores, which is that of this run and later ones."""
        calls = [self._call("adopt", store, run=run) for store in query.stores]
        self._repeat(calls, lambda: adopt_stores(self.tables, query.stores, query.location))

    def _fork(self, query: Query) -> dict[str, VersionId]:
        """Fork the first query into a new namespace; return what its stores have then. Empty: there is no fork."""
        calls = [
            self._call("fork", store, origin=store.replace(query.namespace, NAMESPACE, 1)) for store in query.stores
        ]
        forked = self._repeat(calls, lambda: fork_namespace(self.tables, NAMESPACE, query.namespace, None))
        bases: dict[str, VersionId] = {}
        for call in calls:
            if forked is not None:
                call.version = forked.version
                base = self._find(call.store, forked.version)
                if base is None:
                    call.outcome, call.error = DEFECT, "the fork that was made cannot be opened"
                else:
                    bases[call.store], call.attempt = base, named(base.attempt)
                    self.history.attempts[call.store].append(base)
        return bases if len(bases) == len(calls) else {}

    def _find(self, store: str, version: int) -> VersionId | None:
        """What the number of a version opens, as soon as a sidecar answers."""
        deadline = time.monotonic() + REPEATED_S
        while time.monotonic() < deadline:
            client = self.history.client(self.history.chance("find", store))
            if client is not None:
                with closing(client.talk):
                    if (opened := client.open(store, version, NO_ATTEMPT)) is not None:
                        return opened
        return None

    def _drop(self, query: Query) -> bool:
        calls = [self._call("drop", store, life=query.life) for store in query.stores]
        return self._repeat(calls, lambda: self._drop_now(query)) is not None

    def _drop_now(self, query: Query) -> bool:
        drop_stores(self.tables, list(find_stores(self.tables, query.namespace)))
        return True

    def _call(self, op: str, store: str, **facts: str | int) -> Call:
        call = Call(self.history.next_client(), op, store, 0, "")
        for name, value in facts.items():
            setattr(call, name, value)
        return call

    def _repeat(self, calls: Sequence[Call], command: Callable[[], T]) -> T | None:
        """Repeat a command until it is done. Returns None if it was refused, or a deadline has passed."""
        deadline = time.monotonic() + REPEATED_S
        with ExitStack() as stack:
            for call in calls:
                stack.enter_context(self.history.record.noting(call))
            while True:
                outcome, error, done = OK, "", None
                try:
                    done = command()
                except DynastateError as failed:
                    outcome, error = OUTCOMES[failed.kind], str(failed)
                    if isinstance(failed, UnavailableError) and time.monotonic() < deadline:
                        continue
                for call in calls:
                    call.outcome, call.error = outcome, error
                return done
