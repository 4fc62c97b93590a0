"""Runs of a query: drivers with their tasks, and the maintenance of what they have chosen."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from dynastate.format.keys import EMPTY, NO_ATTEMPT, Attempt, VersionId
from dynastate.sidecar.protocol import Begin
from tests.judged.calls import NO_ANSWER, OK, REFUSED
from tests.judged.clients import Client
from tests.judged.history import History, Query
from tests.support.samples import Changes

#: So often Spark tries a task, and then the query fails; with a pause where no sidecar answers.
TRIES, PAUSE_S = 6, 0.5
KEYS: Final = [b"a", b"b", b"c", b"d", b"e", b"f"]
#: The most bytes of a value: with some of them, changes are within the version entry, with others, parts.
VALUE_BYTES_MAX: Final = 2_000


@dataclass
class Run:
    """A driver with its tasks. It names the attempts that it has chosen (checkpoint format 2), or numbers only (1)."""

    history: History
    number: int
    query: Query
    bases: dict[str, VersionId]
    names_attempts: bool
    pool: ThreadPoolExecutor
    batches: int
    cleans_up: bool = True
    #: The attempts it has chosen, for each batch.
    chosen: list[dict[str, VersionId]] = field(default_factory=list)
    is_over: bool = False
    is_killed: bool = False
    _clients: list[Client] = field(default_factory=list)

    def kill(self) -> None:
        """Kill the driver: its batches end, and so do the connections of its tasks and of its maintenance."""
        self.is_killed = True
        for client in list(self._clients):
            client.talk.cut()

    @contextmanager
    def _client(self, chance: random.Random) -> Iterator[Client | None]:
        """A client, mostly of the run's own host. Returns None if no sidecar answers, or the driver was killed."""
        client = None if self.is_killed else self.history.client(chance, self.number)
        if client is None:
            yield None
            return
        with closing(client.talk):
            self._clients.append(client)
            if self.is_killed:
                client.talk.cut()
            yield client

    def drive(self) -> None:
        """Execute batches until they are all done, a task fails too often, or a newer run has replaced this one.

        A driver that is killed has not chosen what its last batch has made.
        """
        stores = self.query.stores
        for _ in range(self.batches):
            made = dict(zip(stores, self.pool.map(self._execute, stores), strict=True))
            if self.is_killed or None in made.values():
                break
            self.bases = {store: version for store, version in made.items() if version is not None}
            self.chosen.append(self.bases)
            for store, version in self.bases.items():
                self.pool.submit(self._maintain, store, version)
        self.is_over = True

    def _execute(self, store: str) -> VersionId | None:
        """Let tasks make the next version of a store: one, or twins. The first that succeeds is chosen."""
        for attempt in range(TRIES):
            chance = self.history.chance(self.number, store, self.bases[store].version, attempt)
            tasks = [self.pool.submit(self._task, store, chance.random()) for _ in range(chance.choice((1, 1, 2)))]
            for task in as_completed(tasks):
                made, outcome = task.result()
                if outcome == OK:
                    return made
                if outcome == REFUSED:
                    return None
        return None

    def _task(self, store: str, seed: float) -> tuple[VersionId, str]:
        chance, base = self.history.chance(seed), self.bases[store]
        with self._client(chance) as client:
            if client is None:
                time.sleep(PAUSE_S)
                return EMPTY, NO_ANSWER
            if base != EMPTY:
                found = client.open(store, base.version, base.attempt if self.names_attempts else NO_ATTEMPT)
                if found is None:
                    return EMPTY, NO_ANSWER
                base = found
            chunks = [_some_changes(chance) for _ in range(chance.randint(1, 2))]
            made = VersionId(base.version + 1, Attempt(chance.randbytes(16)))
            self.history.made[made] = base, {key for changes in chunks for key in changes}
            self.history.attempts[store].append(made)
            begin = Begin(store, f"run-{self.number}", self.query.id, self.query.location, *base, made.attempt)
            return made, client.commit(begin, self.number, self.query.life, chunks, chance=chance)

    def _maintain(self, store: str, version: VersionId) -> None:
        """Make a snapshot of a version that this run has chosen, or clean up behind it, if the run does so."""
        chance = self.history.chance("maintain", self.number, store, version.version)
        if chance.random() < 0.5:
            self.snapshot(store, version, chance)
        elif self.cleans_up:
            self.clean_up(store, version, chance)

    def snapshot(self, store: str, version: VersionId, chance: random.Random) -> None:
        with self._client(chance) as client:
            if client is not None and client.open(store, *version) is not None:
                client.snapshot(store, self.number, version, partial(self.history.changed, version))

    def clean_up(self, store: str, version: VersionId, chance: random.Random) -> None:
        with self._client(chance) as client:
            if client is not None:
                client.clean_up(store, self.number, version, self.history.retain)


def _some_changes(chance: random.Random) -> Changes:
    values = [None, chance.randbytes(8), chance.randbytes(chance.randint(1, VALUE_BYTES_MAX))]
    return {key: chance.choice(values) for key in chance.sample(KEYS, chance.randint(1, 3))}
