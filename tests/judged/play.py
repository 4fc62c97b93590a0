"""One history: runs of a query on real sidecars, which are killed and stopped, over a network with faults."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final
from unittest.mock import patch

from dynastate.dynamodb.boto_tables import open_tables
from dynastate.dynamodb.embedded import credentials
from dynastate.errors import DynastateError
from dynastate.format.keys import EMPTY, NO_ATTEMPT, Attempt, VersionId
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from dynastate.storage.tables import Tables
from tests.judged.calls import NO_ANSWER, OK, OUTCOMES, REFUSED, Call, Record, named
from tests.judged.clients import Client, Host
from tests.judged.network import ALL, NONE, UPDATES, Network
from tests.simulation.mutations import MUTATIONS
from tests.support.dynoxide import Dynoxide
from tests.support.fault_proxy import FaultProxy
from tests.support.samples import Changes

HOSTS: Final = 2
OPERATOR: Final = "judged/0"
STORES: Final = (f"{OPERATOR}/0/default", f"{OPERATOR}/1/default")
RUNS: Final = 3
#: Enough for all tasks at once: those of batches wait for others.
THREADS: Final = 64
#: The batches of a run; the next one begins when it has made its first few, and they go on side by side.
BATCHES, BATCHES_BEFORE_NEXT = 10, 3
#: Numbers of clients that are there once; tasks have lower ones.
VIEWER, LAST = 10_000, 10_001
#: Versions that clean-up retains.
RETAIN: Final = 4
#: So often Spark tries a task, and then the query fails.
TRIES: Final = 6
#: Deadline of requests in the sidecars, and the length of an outage of the network, which is longer.
REQUEST_DEADLINE_S, OUT_S = 1, 2.0
#: A stopped sidecar continues when this number of versions was made meanwhile, and after these seconds at the latest.
VERSIONS_MEANWHILE, STOPPED_S = 20, 2.0
KEYS: Final = [b"a", b"b", b"c", b"d", b"e", b"f"]
#: The most bytes of a value: with some of them, changes are within the version entry, with others, parts.
VALUE_BYTES_MAX: Final = 2_000


@dataclass
class History:
    """What all threads of a history share."""

    seed: int
    batches: int
    hosts: Sequence[Host]
    network: Network
    record: Record = field(default_factory=Record)
    #: Attempts that were begun, by store: each may be opened, also those that failed.
    attempts: dict[str, list[VersionId]] = field(default_factory=lambda: {store: [] for store in STORES})
    #: The base of each attempt, and the keys that it changed.
    made: dict[VersionId, tuple[VersionId, set[bytes]]] = field(default_factory=dict)
    is_over: bool = False
    _clients: count[int] = field(default_factory=count)

    def chance(self, *of: object) -> random.Random:
        return random.Random(f"{self.seed} {of}")  # noqa: S311  # not for cryptography

    def client(self, chance: random.Random) -> Client | None:
        """A client of some sidecar, or None if it does not answer."""
        talk = chance.choice(self.hosts).connect()
        return None if talk is None else Client(next(self._clients), self.record, talk)

    def changed(self, version: VersionId, since: int) -> set[bytes]:
        """The keys that changed between a version and an earlier one on its lineage."""
        keys: set[bytes] = set()
        while version.version > since:
            version, changed = self.made[version]
            keys |= changed
        return keys

    @property
    def versions(self) -> int:
        """How many commits have returned."""
        return sum(call.op == "commit" and call.outcome == OK for call in list(self.record.calls))


@dataclass
class Run:
    """A driver with its tasks. It names the attempts that it has chosen (checkpoint format 2), or numbers only (1)."""

    history: History
    number: int
    bases: dict[str, VersionId]
    names_attempts: bool
    pool: ThreadPoolExecutor
    #: The attempts it has chosen, for each batch.
    chosen: list[dict[str, VersionId]] = field(default_factory=list)
    is_over: bool = False

    def drive(self) -> None:
        """Execute batches until they are all done, a task fails too often, or a newer run has replaced this one."""
        for _ in range(self.history.batches):
            made = dict(zip(STORES, self.pool.map(self._execute, STORES), strict=True))
            if None in made.values():
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
        client = self.history.client(chance)
        if client is None:
            return EMPTY, NO_ANSWER
        with closing(client.talk):
            if base != EMPTY:
                found = client.open(store, base.version, base.attempt if self.names_attempts else NO_ATTEMPT)
                if found is None:
                    return EMPTY, NO_ANSWER
                base = found
            chunks = [_some_changes(chance) for _ in range(chance.randint(1, 2))]
            made = VersionId(base.version + 1, Attempt(chance.randbytes(16)))
            self.history.made[made] = base, {key for changes in chunks for key in changes}
            self.history.attempts[store].append(made)
            return made, client.commit(store, self.number, base, made.attempt, chunks, chance)

    def _maintain(self, store: str, version: VersionId) -> None:
        """Make a snapshot of a version that this run has chosen, or clean up behind it."""
        chance = self.history.chance("maintain", self.number, store, version.version)
        kind, client = chance.choice(("snapshot", "clean-up")), self.history.client(chance)
        if client is None:
            return
        with closing(client.talk):
            if kind == "clean-up":
                client.clean_up(store, self.number, version, RETAIN)
            elif client.open(store, *version) is not None:
                client.snapshot(store, self.number, version, partial(self.history.changed, version))


def _some_changes(chance: random.Random) -> Changes:
    values = [None, chance.randbytes(8), chance.randbytes(chance.randint(1, VALUE_BYTES_MAX))]
    return {key: chance.choice(values) for key in chance.sample(KEYS, chance.randint(1, 3))}


def _read(history: History, number: int) -> None:
    """Open versions by their numbers, and attempts by their names, until the history is over."""
    chance = history.chance("reader", number)
    while not history.is_over:
        store = chance.choice(STORES)
        attempts = list(history.attempts[store])
        if attempts:
            version, by = chance.choice(attempts[-10:])
            client = history.client(chance)
            if client is not None:
                with closing(client.talk):
                    client.open(store, version, by if chance.random() < 0.5 else NO_ATTEMPT)
        time.sleep(chance.uniform(0, 0.1))


def _view(history: History, tables: Tables, settings: Settings) -> None:
    """Open the operator with all its partitions, as `open_state` does, and refresh that, until the history is over."""
    chance = history.chance("view")
    state: StateReader | None = None
    while not history.is_over:
        call = Call(VIEWER, "view", OPERATOR, 0, "")
        with history.record.noting(call):
            try:
                if state is None:
                    state = StateReader(tables, settings, OPERATOR)
                else:
                    state.refresh()
                call.version = state.version
                call.shown = {partition.store: named(entry.attempt) for partition, entry in state._current()}
                call.outcome = OK
            except DynastateError as failed:
                call.outcome, call.error = OUTCOMES[failed.kind], str(failed)
        if state is not None and chance.random() < 0.3:
            state.close()
            state = None
        time.sleep(chance.uniform(0, 0.2))
    if state is not None:
        state.close()


def _harm(history: History) -> None:
    """Kill and stop sidecars, and cut off the network, now and then, until the history is over."""
    chance = history.chance("harm")
    while not history.is_over:
        time.sleep(chance.uniform(0.3, 1.2))
        host = chance.choice(history.hosts)
        harm = chance.choice(("kill", "stop", UPDATES, ALL))
        history.network.counts[f"harm {harm}"] += 1
        if harm == "kill":
            host.kill()
        elif harm == "stop":
            host.stop()
            versions, deadline = history.versions, time.monotonic() + STOPPED_S
            while history.versions < versions + VERSIONS_MEANWHILE and time.monotonic() < deadline:
                time.sleep(0.05)
            host.go_on()
        else:
            history.network.outage = harm
            time.sleep(OUT_S)
            history.network.outage = NONE


def _read_all(history: History) -> None:
    """Open every version and every attempt on each host."""
    for host in history.hosts:
        talk = host.connect()
        assert talk is not None, "a sidecar does not answer, and nothing harms it"
        client = Client(LAST, history.record, talk)
        with closing(talk):
            for store, attempts in history.attempts.items():
                highest = max((each.version for each in attempts), default=0)
                for version in range(1, highest + 2):
                    client.open(store, version, NO_ATTEMPT)
                for version, by in attempts:
                    client.open(store, version, by)


def play(seed: int, folder: Path, mutation: str = "", batches: int = BATCHES) -> History:
    """Play the history of a seed, with so many batches of each run, on a DynamoDB with its tables in a new folder.

    What threads do at which moment differs from play to play.
    """
    with ExitStack() as stack:
        dynamodb = stack.enter_context(Dynoxide(folder))
        dynamodb.create_tables()
        network = Network(random.Random(f"{seed} network"))  # noqa: S311  # not for cryptography
        proxy = stack.enter_context(FaultProxy(dynamodb.endpoint, network))
        settings = replace(dynamodb.settings, endpoint=proxy.endpoint, request_deadline_s=REQUEST_DEADLINE_S)
        stack.enter_context(patch.dict(os.environ, credentials()))
        if mutation:  # the readers of this process are broken, too
            stack.enter_context(MUTATIONS[mutation][0]())
        tables = stack.enter_context(closing(open_tables(settings)))
        tables.expect_answers()
        hosts = [Host(settings, mutation) for _ in range(HOSTS)]
        for host in hosts:
            stack.callback(host.close)
        history = History(seed, batches, hosts, network)
        with ThreadPoolExecutor(THREADS) as pool:
            others = [pool.submit(_read, history, number) for number in range(2)]
            others += [pool.submit(_harm, history), pool.submit(_view, history, tables, settings)]
            try:
                _drive_all(history, pool)
            finally:
                history.is_over = True
                network.outage = NONE
            for other in others:
                other.result()
        network.heal()
        _read_all(history)
    return history


def _drive_all(history: History, pool: ThreadPoolExecutor) -> None:
    """Run the query again and again: each run begins beside the one before, at a version that this one has chosen."""
    chance = history.chance("runs")
    bases, names_attempts = dict.fromkeys(STORES, EMPTY), chance.random() < 0.5
    drivers: list[Future[None]] = []
    for number in range(1, RUNS + 1):
        run = Run(history, number, bases, names_attempts, pool)
        drivers.append(pool.submit(run.drive))
        while not run.is_over and len(run.chosen) < BATCHES_BEFORE_NEXT:
            time.sleep(0.02)
        if not run.chosen:
            break
        bases = dict(chance.choice(run.chosen[-2:]))
    for driver in drivers:
        driver.result()
