"""Executors with tasks and maintenance, and readers: each makes the calls that its counterpart in the JVM makes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from dynastate.engine.commit import WriteAttempt
from dynastate.engine.engine import Engine
from dynastate.engine.opening import Opening, retry_routes
from dynastate.engine.snapshots import SnapshotAttempt
from dynastate.engine.updates import always
from dynastate.errors import (
    CorruptStateError,
    DynastateError,
    UnavailableError,
    UnknownOutcomeError,
    VersionMissingError,
)
from dynastate.format.changes import MERGE, PUT, Change, decode_changes, key_hash
from dynastate.format.keys import EMPTY, Attempt, VersionId
from dynastate.format.meta import QueryRun
from dynastate.format.parts import Chunk, StoredChunk
from dynastate.unsaferow.nested import Struct
from dynastate.unsaferow.types import Binary
from tests.simulation.bucket_reads import BucketReads, read_by_buckets
from tests.simulation.model import COMMITTED, FAILED, UNKNOWN, Model, State, apply, short, violation
from tests.simulation.reach import OPEN
from tests.simulation.scheduler import Process, Scheduler
from tests.support.samples import chunk_of
from tests.support.store_builder import family

#: One column family with lists, whose keys and values are rows of one binary column.
FAMILY: Final = family(multiple=True, key=[("key", "binary")], value=[("value", "binary")])
SCHEMA: Final = json.dumps({"families": [FAMILY]})
KEY, VALUE = (Struct([(name, Binary())]) for name in ("key", "value"))
#: Versions that a provider keeps in memory, as by Spark's `maxBatchesToRetainInMemory`.
HELD_MAX: Final = 2
KEYS: Final = 30
BATCHES: Final = (0, 1, 3, 6, 20)


class TaskFailedError(DynastateError):
    """The user's code in a task fails; the state is fine."""


def chunks(changes: Iterable[Change], most: int) -> Iterator[Chunk]:
    """Cut changes into chunks; each contains at most one put of a key."""
    batch: list[Change] = []
    for change in changes:
        twice = change.operation == PUT and any(change.key == each.key for each in batch)
        if batch and (len(batch) >= most or twice):
            yield chunk_of(*batch)
            batch = []
        batch.append(change)
    if batch:
        yield chunk_of(*batch)


def fold(state: State, chunks: Iterable[StoredChunk]) -> State:
    """The rows after chunks that were read, as the provider applies them."""
    for chunk in chunks:
        changes = list(decode_changes(chunk.changes))
        if len(changes) != chunk.records:
            raise violation("a chunk has more or fewer records than it says", says=chunk.records, has=len(changes))
        state = apply(state, changes)
    return state


def some_changes(chance: random.Random) -> list[Change]:
    """The changes of a batch: none, some or many; now and then with values that take several parts."""
    changes = []
    for _ in range(chance.choice(BATCHES)):
        key = key_of(chance.randrange(KEYS))
        value = VALUE.encode({"value": chance.randbytes(700 if chance.random() < 0.05 else chance.choice((0, 8, 40)))})
        kind = chance.random()
        if kind < 0.25:
            changes.append(Change(PUT, 0, key, None))
        else:
            changes.append(Change(MERGE if kind < 0.45 else PUT, 0, key, value))
    return changes


def key_of(number: int) -> bytes:
    return KEY.encode({"key": b"%d" % number})


def rows_of(opening: Opening, state: State | None = None) -> tuple[VersionId, State]:
    """The version that was opened, and its rows; `state` is that of the opening's base."""
    state = fold(fold(state or {}, opening.snapshot_chunks), opening.chunks)
    return opening.entry.id, state


@dataclass
class Actor:
    """Something that acts now and then until the schedule ends."""

    _scheduler: Scheduler
    _chance: random.Random

    def _pauses(self, is_over: Callable[[], bool]) -> Iterator[None]:
        while not is_over():
            self._pause()
            yield

    def _pause(self) -> None:
        self._scheduler.sleep(self._chance.random() * self._chance.choice((0.1, 1.0, 10.0)))


@dataclass
class Executor(Actor):
    """One process of a query run: an engine, and for each store the versions that its provider holds."""

    _engine: Engine
    process: Process
    _query_run: QueryRun
    #: Whether rows are read by bucket for each task, since there is no room for them in memory.
    _reads_buckets: bool = False
    _bucket_reads: dict[str, BucketReads] = field(default_factory=dict)
    _held: dict[str, dict[VersionId, State]] = field(default_factory=dict)
    _has_committed: set[str] = field(default_factory=set)
    #: Whether the user's code fails now and then.
    may_fail: bool = True

    def __post_init__(self) -> None:
        self._born = self._scheduler.now

    @property
    def run(self) -> str:
        return self._query_run.id

    def task(
        self,
        model: Model,
        base: VersionId,
        attempt: Attempt,
        report: Callable[..., None],
        is_awaited: Callable[[], bool] = always,
    ) -> None:
        """Make the version after `base`, which has no attempt where only its number is known."""
        try:
            with self._scheduler.doing(OPEN):
                parent, state = self._open(model, base)
        except DynastateError as failed:
            self._scheduler.note("%s cannot be opened: %s", short(base), failed)
            report(committed=False)
            return
        changes = some_changes(self._chance)
        version = VersionId(base[0] + 1, attempt)
        node = model.begin(version, parent, changes, self.run, state)
        self._scheduler.note("begin %s on %s, %d changes", short(version), short(parent), len(changes))
        under_way = self._engine.begin(model.store, self._query_run, *parent, attempt)
        try:
            for part in chunks(changes, self._chance.randint(1, 8)):
                under_way.append(part)
                if self._chance.random() < 0.05 and self.may_fail:
                    raise TaskFailedError("the task fails in the user's code")
            result = apply(state, changes)
            under_way.added = sum(map(len, result.values())) - sum(map(len, state.values()))
            under_way.commit({0: len(result)}, SCHEMA, is_awaited)
        except DynastateError as failed:
            self._scheduler.note("%s failed: %s", short(version), failed)
            model.end(node, UNKNOWN if isinstance(failed, UnknownOutcomeError) else FAILED)
            report(committed=False)
            self._abort(under_way, version)
            return
        self._scheduler.note("committed %s", short(version))
        model.end(node, COMMITTED)
        self._hold(model, parent, state)
        self._hold(model, version, result)
        self._has_committed.add(model.store)
        report(committed=True)

    def _abort(self, under_way: WriteAttempt | SnapshotAttempt, version: VersionId) -> None:
        try:
            under_way.abort()
        except DynastateError as failed:
            self._scheduler.note("abort of %s: %s", short(version), failed)

    def _open(self, model: Model, base: VersionId) -> tuple[VersionId, State]:
        states = self._held.get(model.store, {})
        if base == EMPTY:
            return base, {}
        if self._reads_buckets:
            reads = self._bucket_reads.setdefault(model.store, BucketReads(self._scheduler, self._engine))
            version_id, state = reads.read(model, base)
            self._hold(model, version_id, state)
            return version_id, state
        if base in states:
            return base, states[base]
        have = {version: state for version, state in states.items() if version[0] <= base[0]}
        version_id, state = read(self._scheduler, self._engine, model, base, have, self._born)
        self._hold(model, version_id, state)
        return version_id, state

    def _hold(self, model: Model, version: VersionId, state: State) -> None:
        states = self._held.setdefault(model.store, {})
        states.pop(version, None)
        states[version] = state
        while len(states) > HELD_MAX:
            del states[next(iter(states))]

    def offer_snapshots(self, models: list[Model], is_over: Callable[[], bool], min_deltas: int) -> None:
        self._now_and_then(models, is_over, lambda model: self.snapshot(model, min_deltas))

    def clean_up_now_and_then(self, models: list[Model], is_over: Callable[[], bool], retain: int) -> None:
        self._now_and_then(models, is_over, lambda model: self.clean_up(model, retain))

    def _now_and_then(self, models: list[Model], is_over: Callable[[], bool], act: Callable[[Model], object]) -> None:
        last: dict[str, VersionId] = {}
        for _ in self._pauses(is_over):
            model = self._chance.choice(models)
            # Spark asks each minute, and the provider acts if there is a new version; here at times also if not.
            if model.store in self._has_committed:
                newest, _ = self._newest(model)
                if last.get(model.store) != newest or self._chance.random() < 0.05:
                    last[model.store] = newest
                    act(model)

    def snapshot(self, model: Model, min_deltas: int) -> bool:
        """Offer the newest version in memory as a snapshot. Returns whether it became one."""
        version, state = self._newest(model)
        self._scheduler.note("offer a snapshot of %s", short(version))
        under_way = None
        try:
            bits = self._chance.randint(0, 3)
            under_way, _ = self._engine.maintenance.snapshot(
                model.store, self.run, *version, state_bytes=(512 * 1024) << bits, min_deltas=min_deltas
            )
            if under_way is None:
                return False
            shift = 32 - under_way.bits
            buckets = {key_hash(key) >> shift for key in self._changed(model, version, under_way.base)}
            for number in range(1 << under_way.bits):
                if under_way.base == 0 or number in buckets:
                    under_way.bucket(number)
                    keys = [key for key in sorted(state) if key_hash(key) >> shift == number]
                    for part in chunks(_as_changes(state, keys), self._chance.randint(1, 8)):
                        under_way.append(part)
            is_done = under_way.commit()
        except DynastateError as failed:
            self._scheduler.note("no snapshot of %s: %s", short(version), failed)
            if "another number of values" in str(failed):
                raise violation("wrong number of values in a snapshot", version=short(version)) from failed
            if under_way is not None:
                self._abort(under_way, version)
            return False
        self._scheduler.note("snapshot of %s %s", short(version), "done" if is_done else "deleted meanwhile")
        return is_done

    def clean_up(self, model: Model, retain: int, most: int | None = None) -> None:
        """Delete what neither the newest version in memory nor the retained ones before it need."""
        version, _ = self._newest(model)
        self._scheduler.note("clean up by %s", short(version))
        try:
            most = self._chance.choice((0, 0, 3)) if most is None else most
            meter, _ = self._engine.maintenance.clean_up(model.store, self.run, *version, retain, 1, most)
            self._scheduler.note("cleaned up by %s: %d items", short(version), meter.items_deleted)
        except (UnavailableError, VersionMissingError) as failed:
            self._scheduler.note("not cleaned up by %s: %s", short(version), failed)
        except DynastateError as failed:
            self._scheduler.note("not cleaned up by %s: %s", short(version), failed)
            if model.run == self.run and isinstance(failed, CorruptStateError):
                raise violation("clean-up finds the store corrupt", store=model.store, error=failed) from failed

    def _newest(self, model: Model) -> tuple[VersionId, State]:
        states = self._held[model.store]
        newest = max(reversed(states), key=lambda version: version[0])
        return newest, states[newest]

    def _changed(self, model: Model, version: VersionId, base: int) -> list[bytes]:
        """Keys whose rows differ from those in an earlier version of the chain: the least that must be sent."""
        node = model.nodes[version]
        below = model.ancestor(node, base)
        keys = sorted({*node.state, *below.state})
        return [key for key in keys if node.state.get(key) != below.state.get(key)]


def _as_changes(state: State, keys: list[bytes]) -> list[Change]:
    """Rows as in a snapshot: puts, and merges for the values after the first."""
    return [Change(MERGE if place else PUT, 0, key, value) for key in keys for place, value in enumerate(state[key])]


def read(
    scheduler: Scheduler,
    engine: Engine,
    model: Model,
    target: VersionId,
    have: dict[VersionId, State],
    born: float = math.inf,
) -> tuple[VersionId, State]:
    """Open and read a version, and check it against the model. ViolationError: it is wrong, or promised and lost.

    What it has, it has read since it was `born`.
    """
    since, still_promised = scheduler.now, model.watch()

    def by_some_route(have: dict[VersionId, State]) -> tuple[VersionId, State]:
        opening = engine.open(model.store, *target, list(have))
        if opening.base != EMPTY and opening.base not in have:
            raise violation("a base that the reader does not hold", base=short(opening.base))
        return rows_of(opening, have.get(opening.base))

    try:
        version, state = retry_routes(lambda retries: by_some_route({} if retries else have))
    except (VersionMissingError, CorruptStateError) as failed:
        if target in still_promised():
            raise violation("a promised version cannot be read", version=short(target), error=failed) from failed
        raise
    scheduler.note("read %s as %s: %d rows", short(target), short(version), len(state))
    model.check_winner(target, version, since)
    model.check_state(target, version, state, min(since, born))
    return version, state


def _without(changes: list[tuple[int, list[Change]]], keys: Collection[bytes]) -> list[tuple[int, list[Change]]]:
    return [(version, [each for each in of_version if each.key not in keys]) for version, of_version in changes]


@dataclass
class Reader(Actor):
    """Another process that reads versions and their changes, such as Spark's state reader.

    It may have erased rows in memory until it ends.
    """

    _engine: Engine

    def __post_init__(self) -> None:
        self._born = self._scheduler.now

    def read_now_and_then(self, models: list[Model], is_over: Callable[[], bool]) -> None:
        for _ in self._pauses(is_over):
            model = self._chance.choice(models)
            target = self._some_version(model)
            if target is None:
                continue
            still_promised = model.watch()
            try:
                kind = self._chance.random()
                if kind < 0.6:
                    read(self._scheduler, self._engine, model, target, {}, self._born)
                elif kind < 0.8:
                    read_by_buckets(self._scheduler, self._engine, model, target, born=self._born)
                else:
                    self._changes(model, target)
            except DynastateError as failed:
                self._scheduler.note("reader: %s", failed)
                if isinstance(failed, CorruptStateError) and target in still_promised():
                    raise violation("a promised version is corrupt", version=short(target), error=failed) from failed

    def _some_version(self, model: Model) -> VersionId | None:
        promised = model.promised()
        if promised and self._chance.random() < 0.8:
            return self._chance.choice(promised)
        versions = [version for version in model.nodes if version != EMPTY]
        return self._chance.choice(versions) if versions else None

    def _changes(self, model: Model, target: VersionId) -> None:
        """The changes of each version must be those of the attempt on the chain of the last."""
        first = max(1, target[0] - self._chance.randrange(3))
        since = self._scheduler.now
        feed = self._engine.changes(model.store, first, target[0], target[1])
        changes_of_versions = [
            (version, [change for each in read for change in decode_changes(each.changes)])
            for version, read in feed.versions
        ]
        node = model.nodes[VersionId(target[0], feed.attempt)]
        model.check_winner(target, node.version, since)
        expected = []
        for _ in range(first, target[0] + 1):
            expected.append((node.version[0], node.changes))
            node = model.nodes[node.parent]
        unsure = model.unsure(self._born)
        if _without(changes_of_versions, unsure) != _without(expected[::-1], unsure):
            raise violation("wrong changes", first=first, last=short(target))
        self._scheduler.note("changes of %d to %s", first, short(target))
