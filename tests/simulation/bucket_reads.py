"""Reads by bucket, with the changes that an executor holds, as `BucketReads.scala` makes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dynastate.engine.engine import Engine
from dynastate.engine.opening import HeldChanges, Opening, retry_routes
from dynastate.errors import DynastateError
from dynastate.format.changes import Change, decode_changes, key_hash
from dynastate.format.keys import VersionId
from dynastate.format.parts import StoredChunk
from tests.simulation.model import Model, State, apply, short
from tests.simulation.scheduler import Scheduler


class Held(NamedTuple):
    """The changes that an executor holds. `which` says between which versions; it is None if there are none."""

    which: HeldChanges | None
    changes: Sequence[Change]


NOTHING: Final = Held(None, ())


@dataclass
class BucketReads:
    """A store in an executor without room for its rows, which holds the changes since the last snapshot."""

    _scheduler: Scheduler
    _engine: Engine
    #: Several tasks may read at once: each takes it once, and replaces it as a whole.
    _held: Held = NOTHING

    def __post_init__(self) -> None:
        self._born = self._scheduler.now

    def read(self, model: Model, target: VersionId) -> tuple[VersionId, State]:
        """All rows of a version, bucket by bucket; its changes are held then. ViolationError: rows are wrong."""
        cache = self._held
        version, rows, opening = read_by_buckets(self._scheduler, self._engine, model, target, cache, self._born)
        if opening.after < version.version:
            self._hold(model.store, version, opening, cache)
        return version, rows

    def _hold(self, store: str, version: VersionId, opening: Opening, cache: Held) -> None:
        try:
            feed = self._engine.changes(store, opening.after + 1, version.version, version.attempt)
            new = [change for _, chunks in feed.versions for change in _changes_of(chunks)]
        except DynastateError as failed:
            self._scheduler.note("changes of %s are not held: %s", short(version), failed)
            return
        old = cache.changes if opening.applies_held else ()
        self._held = Held(HeldChanges(opening.snapshot, version), [*old, *new])


def read_by_buckets(
    scheduler: Scheduler, engine: Engine, model: Model, target: VersionId, cache: Held = NOTHING, born: float = math.inf
) -> tuple[VersionId, State, Opening]:
    """All rows of a version, bucket by bucket, and the opening of the last; errors are those of `BucketReads.read`."""
    since = scheduler.now
    lookup = retry_routes(lambda _: engine.find(model.store, *target))
    version = lookup.entry.id
    model.check_winner(target, version, since)
    rows: State = {}
    for number in range(1 << lookup.bits):
        opening, of_bucket = retry_routes(
            lambda _: _rows_of(engine, model.store, version, lookup.bits, number, cache)  # noqa: B023  # called at once
        )
        rows |= {key: row for key, row in of_bucket.items() if key_hash(key) >> 32 - lookup.bits == number}
    scheduler.note("read %s by %d buckets, holding %d changes", short(version), 1 << lookup.bits, len(cache.changes))
    model.check_state(target, version, rows, min(since, born))
    return version, rows, opening


def _rows_of(engine: Engine, store: str, version: VersionId, bits: int, at: int, cache: Held) -> tuple[Opening, State]:
    opening = engine.buckets(store, *version, bits, [at], cache.which)
    rows = apply({}, _changes_of(opening.snapshot_chunks))
    if opening.applies_held:
        rows = apply(rows, cache.changes)
    return opening, apply(rows, _changes_of(opening.chunks))


def _changes_of(chunks: Iterable[StoredChunk]) -> list[Change]:
    return [change for chunk in chunks for change in decode_changes(chunk.changes)]
