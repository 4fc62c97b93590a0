"""Who uses the engine: executors with their tasks and maintenance, and readers from outside. All run in the scheduler.

Each does what its counterpart in the JVM and in the sidecar does, with the same calls in the same order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from dynastate import forks, rows, upkeep
from dynastate.errors import (
    ConfigurationError,
    CorruptStateError,
    DynastateError,
    UnavailableError,
    UnknownOutcomeError,
    VersionMissingError,
)
from dynastate.layout import EMPTY, NO_ATTEMPT, Attempt, Chunk
from dynastate.rows import Change
from dynastate.store import Engine, by_any_way
from dynastate.stores import find_stores
from dynastate.tables import Meter, Tables
from tests.simulation.model import COMMITTED, FAILED, UNKNOWN, Model, State, Version, apply, short, violation
from tests.simulation.scheduler import Process, Scheduler

CHECKPOINT: Final = "file:/tmp/ck/state"
SCHEMA: Final = '{"families":[]}'
#: Versions that a provider keeps in memory, as Spark's `maxBatchesToRetainInMemory` has it.
HELD_MAX: Final = 2
KEYS: Final = 30
BATCHES: Final = (0, 1, 3, 6, 20)


class TaskFailedError(DynastateError):
    """What a task does fails, and has nothing to do with its state."""


def chunks(changes: Iterable[Change], most: int) -> Iterator[Chunk]:
    """Cut changes into chunks, each with a key once at most, but for merges."""
    held: list[Change] = []
    for change in changes:
        twice = change.operation == rows.PUT and any(change.key == each.key for each in held)
        if held and (len(held) >= most or twice):
            yield chunk(held)
            held = []
        held.append(change)
    if held:
        yield chunk(held)


def chunk(changes: list[Change]) -> Chunk:
    hashes = [rows.key_hash(change.key) for change in changes]
    return Chunk(len(changes), min(hashes), max(hashes), rows.encode(changes))


def fold(state: State, chunks: Iterable[tuple[int, bytes]]) -> State:
    """The rows after chunks that were read, as the provider puts them together."""
    for records, run in chunks:
        changes = list(rows.decode(run))
        if len(changes) != records:
            raise violation("a chunk has more or fewer records than it says", says=records, has=len(changes))
        state = apply(state, changes)
    return state


def some_changes(chance: random.Random) -> list[Change]:
    """What a batch does: nothing, some rows, or many; now and then with values that take several parts."""
    changes = []
    for _ in range(chance.choice(BATCHES)):
        key = b"%d" % chance.randrange(KEYS)
        value = chance.randbytes(700 if chance.random() < 0.05 else chance.choice((0, 8, 40)))
        kind = chance.random()
        if kind < 0.25:
            changes.append(Change(rows.PUT, 0, key, None))
        else:
            changes.append(Change(rows.MERGE if kind < 0.45 else rows.PUT, 0, key, value))
    return changes


def some_time(chance: random.Random) -> float:
    """Seconds that may be few or many."""
    return chance.random() * chance.choice((0.1, 1.0, 10.0))


class Executor:
    """One process of a query run: an engine, and for each store the versions that its provider holds."""

    def __init__(self, scheduler: Scheduler, process: Process, engine: Engine, run: str, chance: random.Random) -> None:
        self.process = process
        self.run = run
        self._scheduler = scheduler
        self._engine = engine
        self._chance = chance
        self._held: dict[str, dict[Version, State]] = {}
        self._has_committed: set[str] = set()

    # ------------------------------------------------------------------------------------------------------------ tasks

    def task(self, model: Model, base: Version, attempt: Attempt, report: Callable[..., None]) -> None:
        """Make the version after `base` by an attempt; `base` has no attempt where only its number is known."""
        try:
            parent, state = self._open(model, base)
        except DynastateError as failed:
            self._scheduler.note("%s cannot be opened: %s", short(base), failed)
            report(committed=False)
            return
        changes = some_changes(self._chance)
        version = (base[0] + 1, attempt)
        node = model.begin(version, parent, changes, self.run)
        self._scheduler.note("begin %s on %s, %d changes", short(version), short(parent), len(changes))
        under_way = self._engine.begin(model.store, self.run, CHECKPOINT, *parent, attempt)
        try:
            for each in chunks(changes, self._chance.randint(1, 8)):
                under_way.append(each)
                if self._chance.random() < 0.02:
                    raise TaskFailedError("the task fails for a reason of its own")
            after = apply(state, changes)
            under_way.commit({0: len(after)}, SCHEMA)
        except DynastateError as failed:
            self._scheduler.note("%s failed: %s", short(version), failed)
            model.end(node, UNKNOWN if isinstance(failed, UnknownOutcomeError) else FAILED)
            report(committed=False)
            try:
                under_way.abort()
            except DynastateError as left:
                self._scheduler.note("abort of %s: %s", short(version), left)
            return
        self._scheduler.note("committed %s", short(version))
        model.end(node, COMMITTED)
        self._hold(model, parent, state)
        self._hold(model, version, after)
        self._has_committed.add(model.store)
        report(committed=True)

    def _open(self, model: Model, base: Version) -> tuple[Version, State]:
        held = self._held.get(model.store, {})
        if base == EMPTY:
            return base, {}
        if base in held:
            return base, held[base]
        have = {version: state for version, state in held.items() if version[0] <= base[0]}
        found, state = read(self._scheduler, self._engine, model, base, have)
        self._hold(model, found, state)
        return found, state

    def _hold(self, model: Model, version: Version, state: State) -> None:
        held = self._held.setdefault(model.store, {})
        held.pop(version, None)
        held[version] = state
        while len(held) > HELD_MAX:
            del held[next(iter(held))]

    # ------------------------------------------------------------------------------------------------------ maintenance

    def offer_snapshots(self, models: list[Model], is_over: Callable[[], bool], min_deltas: int) -> None:
        """Offer snapshots, now and then: the one half of maintenance."""
        self._now_and_then(models, is_over, lambda model: self.snapshot(model, min_deltas))

    def clean_up_now_and_then(self, models: list[Model], is_over: Callable[[], bool], retain: int) -> None:
        """The other half of maintenance, at the same time."""
        self._now_and_then(models, is_over, lambda model: self.clean_up(model, retain))

    def _now_and_then(
        self, models: list[Model], is_over: Callable[[], bool], maintain: Callable[[Model], object]
    ) -> None:
        last: dict[str, Version] = {}
        while not is_over():
            self._scheduler.sleep(some_time(self._chance))
            model = self._chance.choice(models)
            # Spark asks each minute, and the provider only if there is something new; now and then all the same.
            if model.store in self._has_committed:
                newest, _ = self._newest(model)
                if last.get(model.store) != newest or self._chance.random() < 0.05:
                    last[model.store] = newest
                    maintain(model)

    def snapshot(self, model: Model, min_deltas: int) -> bool:
        """Offer the newest version in memory as a snapshot; whether it became one."""
        version, state = self._newest(model)
        self._scheduler.note("offer a snapshot of %s", short(version))
        under_way = None
        try:
            bits = self._chance.randint(0, 3)
            under_way, _ = self._engine.snapshot(
                model.store, self.run, *version, state_bytes=(512 * 1024) << bits, min_deltas=min_deltas
            )
            if under_way is None:
                return False
            shift = 32 - under_way.bits
            sent = {rows.key_hash(key) >> shift for key in self._changed(model, version, under_way.base)}
            for number in range(1 << under_way.bits):
                if under_way.base == 0 or number in sent:
                    under_way.bucket(number)
                    held = [key for key in sorted(state) if rows.key_hash(key) >> shift == number]
                    for each in chunks(_as_changes(state, held), self._chance.randint(1, 8)):
                        under_way.append(each)
            done = under_way.commit()
        except DynastateError as failed:
            self._scheduler.note("no snapshot of %s: %s", short(version), failed)
            if under_way is not None:
                try:
                    under_way.abort()
                except DynastateError as left:
                    self._scheduler.note("abort of the snapshot of %s: %s", short(version), left)
            return False
        self._scheduler.note("snapshot of %s %s", short(version), "done" if done else "taken away")
        return done

    def clean_up(self, model: Model, retain: int, most: int | None = None) -> None:
        """Remove what is not needed by the newest version in memory and those before it."""
        version, _ = self._newest(model)
        self._scheduler.note("clean up by %s", short(version))
        try:
            most = self._chance.choice((0, 0, 3)) if most is None else most
            spent, _ = self._engine.clean_up(model.store, self.run, *version, retain, 1, most)
            self._scheduler.note("cleaned up by %s: %d items", short(version), spent.items_deleted)
        except (UnavailableError, VersionMissingError) as failed:
            self._scheduler.note("not cleaned up by %s: %s", short(version), failed)
        except DynastateError as failed:
            self._scheduler.note("not cleaned up by %s: %s", short(version), failed)
            if model.run == self.run and isinstance(failed, CorruptStateError):
                raise violation("clean-up finds the store broken", store=model.store, error=failed) from failed

    def _newest(self, model: Model) -> tuple[Version, State]:
        held = self._held[model.store]
        newest = max(reversed(held), key=lambda version: version[0])
        return newest, held[newest]

    def _changed(self, model: Model, version: Version, base: int) -> list[bytes]:
        """Keys whose rows are not what they were in an earlier version of the chain: the least that must be sent."""
        node = below = model.nodes[version]
        while below.version[0] > base:
            below = model.nodes[below.parent]
        keys = sorted({*node.state, *below.state})
        return [key for key in keys if node.state.get(key) != below.state.get(key)]


def _as_changes(state: State, keys: list[bytes]) -> list[Change]:
    """Rows as a snapshot has them: puts, and merges for the values after the first."""
    return [
        Change(rows.MERGE if place else rows.PUT, 0, key, value)
        for key in keys
        for place, value in enumerate(state[key])
    ]


def read(
    scheduler: Scheduler, engine: Engine, model: Model, asked: Version, have: dict[Version, State]
) -> tuple[Version, State]:
    """Open a version, read it whole, and check it against the model.

    Raises:
        DynastateError: it cannot be read; where it was promised all along, that is a violation.
    """
    since, was_promised = scheduler.now, asked in model.promised()

    def by_some_way(have: dict[Version, State]) -> tuple[Version, State]:
        opening = engine.open(model.store, *asked, list(have))
        if opening.base != EMPTY and opening.base not in have:
            raise violation("a base that the reader does not hold", base=short(opening.base))
        state = fold(fold(have.get(opening.base, {}), opening.snapshot_chunks), opening.chunks)
        return (opening.version, opening.attempt), state

    try:
        found, state = by_any_way(lambda way: by_some_way({} if way else have))
    except (VersionMissingError, CorruptStateError) as failed:
        if was_promised and asked in model.promised():
            raise violation("a promised version cannot be read", version=short(asked), error=failed) from failed
        raise
    scheduler.note("read %s as %s: %d rows", short(asked), short(found), len(state))
    if asked[1] == NO_ATTEMPT and found not in model.winners_since(asked[0], since):
        raise violation("not the attempt that a number stands for", asked=asked[0], found=short(found))
    model.check_state(asked, found, state)
    return found, state


class Forker:
    """Somebody who forks the query beside it, reads the forks, and drops them, whatever the network does."""

    def __init__(self, scheduler: Scheduler, engine: Engine, tables: Tables, chance: random.Random) -> None:
        self._scheduler = scheduler
        self._engine = engine
        self._tables = tables
        self._chance = chance

    def fork_now_and_then(self, models: list[Model], is_over: Callable[[], bool]) -> None:
        """Fork, look at it now and then, drop it, and again."""
        number = 0
        while not is_over():
            self._scheduler.sleep(some_time(self._chance))
            number += 1
            fork = f"fork-{number}"
            version = self._fork(models, fork)
            for _ in range(self._chance.randrange(8) if version else 0):
                self._scheduler.sleep(some_time(self._chance))
                self._look(self._chance.choice(models), fork, version)
            self._drop(fork)

    def _fork(self, models: list[Model], fork: str) -> int:
        """Fork the newest version; one that failed is gone on with. The version, 0: there is no fork."""
        tries = (self._try_fork(models, fork) for _ in range(self._chance.randint(1, 4)))
        return next((version for version in tries if version), 0)

    def _try_fork(self, models: list[Model], fork: str) -> int:
        try:
            made = forks.fork(self._tables, models[0].store.split("/")[0], fork, None, Meter())
        except (ConfigurationError, UnavailableError, VersionMissingError) as failed:
            self._scheduler.note("%s failed: %s", fork, failed)
            return 0
        self._scheduler.note("%s is made, of version %d of %d stores", fork, made.version, made.stores)
        return made.version if made.stores == len(models) else 0  # not all had begun

    def _look(self, model: Model, fork: str, version: int) -> None:
        """It must be what its origin was at that version."""
        store = fork + model.store.removeprefix(model.store.split("/")[0])
        try:
            found, state = by_any_way(lambda _: self._read(store, version))
        except UnavailableError as failed:
            self._scheduler.note("%s cannot be read now: %s", fork, failed)
            return
        except (VersionMissingError, CorruptStateError) as failed:
            raise violation("a fork cannot be read", store=store, version=version, error=failed) from failed
        model.check_state((version, NO_ATTEMPT), found, state)
        self._scheduler.note("read %s as %s: %d rows", store, short(found), len(state))

    def _read(self, store: str, version: int) -> tuple[Version, State]:
        opening = self._engine.open(store, version, NO_ATTEMPT)
        state = fold(fold({}, opening.snapshot_chunks), opening.chunks)
        return (opening.version, opening.attempt), state

    def _drop(self, fork: str) -> None:
        while not self._try_drop(fork):
            self._scheduler.sleep(some_time(self._chance))

    def _try_drop(self, fork: str) -> bool:
        try:
            left = [store for _, store in find_stores(self._tables, fork, Meter())]
            upkeep.drop_all(self._tables, left, Meter())
        except UnavailableError as failed:
            self._scheduler.note("%s is not dropped yet: %s", fork, failed)
            return False
        self._scheduler.note("%s is dropped", fork)
        return True


class Reader:
    """A process that looks in from outside, such as Spark's state reader: versions, and changes from one to another."""

    def __init__(self, scheduler: Scheduler, engine: Engine, chance: random.Random) -> None:
        self._scheduler = scheduler
        self._engine = engine
        self._chance = chance

    def look(self, models: list[Model], is_over: Callable[[], bool]) -> None:
        """Read this and that, now and then."""
        while not is_over():
            self._scheduler.sleep(some_time(self._chance))
            model = self._chance.choice(models)
            asked = self._some_version(model)
            if asked is None:
                continue
            was_promised = asked in model.promised()
            try:
                kind = self._chance.random()
                if kind < 0.6:
                    read(self._scheduler, self._engine, model, asked, {})
                elif kind < 0.8:
                    self._buckets(model, asked)
                else:
                    self._changes(model, asked)
            except DynastateError as failed:
                self._scheduler.note("reader: %s", failed)
                if isinstance(failed, CorruptStateError) and was_promised and asked in model.promised():
                    raise violation("what is promised is called broken", version=short(asked), error=failed) from failed

    def _some_version(self, model: Model) -> Version | None:
        promised = model.promised()
        if promised and self._chance.random() < 0.8:
            return self._chance.choice(promised)
        known = [version for version in model.nodes if version != EMPTY]
        return self._chance.choice(known) if known else None

    def _buckets(self, model: Model, asked: Version) -> None:
        """Read a version bucket by bucket, passing over what lies in others."""
        since = self._scheduler.now
        found = by_any_way(lambda _: self._engine.find(model.store, *asked))
        version = (found.version, found.attempt)
        if asked[1] == NO_ATTEMPT and version not in model.winners_since(asked[0], since):
            raise violation("not the attempt that a number stands for", asked=asked[0], found=short(version))
        whole: State = {}
        for number in range(1 << found.bits):
            state = by_any_way(lambda _: self._bucket(model, version, found.bits, number))  # noqa: B023  # called at once
            whole |= {key: row for key, row in state.items() if rows.key_hash(key) >> 32 - found.bits == number}
        model.check_state(asked, version, whole)
        self._scheduler.note(
            "read %s as %s: %d rows in %d buckets", short(asked), short(version), len(whole), 1 << found.bits
        )

    def _bucket(self, model: Model, version: Version, bits: int, number: int) -> State:
        opening = self._engine.bucket(model.store, *version, bits, number)
        return fold(fold({}, opening.snapshot_chunks), opening.chunks)

    def _changes(self, model: Model, asked: Version) -> None:
        """The changes of each version must be those of the attempt on the chain of the last."""
        first = max(1, asked[0] - self._chance.randrange(3))
        since = self._scheduler.now
        feed = self._engine.changes(model.store, first, asked[0], asked[1])
        found = [
            (version, [change for _, run in read for change in rows.decode(run)]) for version, read in feed.versions
        ]
        node = model.nodes[asked[0], feed.attempt]
        if asked[1] == NO_ATTEMPT and node.version not in model.winners_since(asked[0], since):
            raise violation("not the attempt that a number stands for", asked=asked[0], found=short(node.version))
        expected = []
        for _ in range(first, asked[0] + 1):
            expected.append((node.version[0], node.changes))
            node = model.nodes[node.parent]
        if found != expected[::-1]:
            raise violation("changes are not those that were made", first=first, last=short(asked))
        self._scheduler.note("changes of %d to %s", first, short(asked))
