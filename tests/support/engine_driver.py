"""Stores written and read through the engine, as the provider does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from dynastate.engine.commit import WriteAttempt
from dynastate.engine.engine import Engine
from dynastate.engine.known import ROUTES_BYTES
from dynastate.engine.snapshots import SnapshotAttempt
from dynastate.errors import RouteInvalidError
from dynastate.format.changes import decode_changes, key_hash
from dynastate.format.keys import EMPTY, NO_ATTEMPT, Attempt, VersionId
from dynastate.format.meta import QueryRun
from dynastate.format.parts import StoredChunk
from dynastate.prices import DEFAULT_PRICES
from dynastate.settings import Settings
from dynastate.sidecar.metrics import commit_counters
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables
from tests.support.samples import SCHEMA, SHARDS, Changes, State, attempt, chunk, query_run

#: The keys that were changed since a version, or None if they are not known; then all buckets are sent.
Changed = Callable[[int], set[bytes]] | None


def now() -> datetime:
    return datetime(2025, 1, 1, tzinfo=timezone.utc)


def make_engine(
    tables: Tables, *, cache_bytes: int = 0, inline_bytes: int = 0, now: Callable[[], datetime] = now, **settings: Any
) -> Engine:
    """Make an engine with small settings, that keeps nothing: every open reads. Its small commits have parts, too."""
    fixed: dict[str, Any] = {"shards": SHARDS, "parallel_requests": 2, "request_deadline_s": 5}
    engine = Engine(tables, Settings(**(fixed | settings)), now)
    limit_cache(engine, cache_bytes)
    engine.commits.inline_bytes = inline_bytes
    return engine


def limit_cache(engine: Engine, cache_bytes: int) -> None:
    """Let a new engine keep that number of bytes, which is too small for a setting."""
    engine.known_stores.parts.limit_bytes = cache_bytes
    engine.known_stores.routes.limit_bytes = min(ROUTES_BYTES, cache_bytes)


def begin(
    engine: Engine, store: str, by: Attempt, *changes: Changes, base: VersionId = EMPTY, run: str | QueryRun = "run-1"
) -> WriteAttempt:
    """Begin an attempt at the version after `base`, with changes, one chunk each."""
    under_way = engine.begin(store, run if isinstance(run, QueryRun) else query_run(run), *base, by)
    for rows in changes:
        under_way.append(chunk(rows))
    return under_way


def commit(
    engine: Engine, store: str, by: Attempt, *changes: Changes, base: VersionId = EMPTY, run: str | QueryRun = "run-1"
) -> tuple[VersionId, dict[str, int]]:
    """Commit changes, one chunk each; return the version made and what it cost, as the sidecar reports it."""
    result = begin(engine, store, by, *changes, base=base, run=run).commit({0: 0}, SCHEMA)
    stored = engine.known_stores.account(store).stored()
    return VersionId(base[0] + 1, by), commit_counters(result, stored, DEFAULT_PRICES)


def write(
    engine: Engine, store: str, by: Attempt, *changes: Changes, base: VersionId = EMPTY, run: str | QueryRun = "run-1"
) -> VersionId:
    return commit(engine, store, by, *changes, base=base, run=run)[0]


def write_versions(
    engine: Engine, store: str, count: int, base: VersionId = EMPTY, run: str = "run-1"
) -> list[VersionId]:
    """Commit versions of one row each, by attempts of the same numbers."""
    versions = [base]
    for number in range(base[0] + 1, base[0] + count + 1):
        row = {b"%d" % number: b"%d" % number}
        versions.append(write(engine, store, attempt(number), row, base=versions[-1], run=run))
    return versions


def fold(chunks: Iterable[StoredChunk], state: State | None = None) -> State:
    """Apply chunks to a state, as the provider does; a chunk must hold as many records as it says."""
    folded = dict(state or {})
    for stored in chunks:
        changes = list(decode_changes(stored.changes))
        assert len(changes) == stored.records
        for change in changes:
            if change.value is None:
                folded.pop(change.key, None)
            else:
                folded[change.key] = change.value
    return folded


def read(engine: Engine, store: str, version: int, by: Attempt = NO_ATTEMPT, have: Sequence[VersionId] = ()) -> State:
    """Open a version and read all of it; with `have`, only what comes after the base is read."""
    opening = engine.open(store, version, by, have)
    return fold(opening.chunks, fold(opening.snapshot_chunks))


def recover(engine: Engine, store: str, version: int, by: Attempt = NO_ATTEMPT) -> State:
    """Open a version as the sidecar does, by whichever route is valid, and read all of it."""
    try:
        return read(engine, store, version, by)
    except RouteInvalidError:
        return recover(engine, store, version, by)


def clean_up(
    engine: Engine, store: str, of: VersionId, retain: int, run: str = "run-1", least: int = 1, most: int = 0
) -> Meter:
    """Clean up after a version, and return what that cost; `most` of 0: without limit."""
    return engine.maintenance.clean_up(store, run, *of, retain, least, most)[0]


def take_snapshot(
    engine: Engine,
    store: str,
    of: VersionId,
    state: State,
    changed: Changed = None,
    run: str = "run-1",
    bits: int = 3,
    min_deltas: int = 1,
) -> SnapshotAttempt | None:
    """Offer a snapshot as the provider does, and send its rows. Returns None if it is not wanted."""
    under_way, _ = engine.maintenance.snapshot(store, run, *of, state_bytes=(512 * 1024) << bits, min_deltas=min_deltas)
    if under_way is None:
        return None
    shift = 32 - under_way.bits
    all_buckets = set(range(1 << under_way.bits))
    since = {key_hash(key) >> shift for key in changed(under_way.base)} if changed and under_way.base else all_buckets
    for bucket in sorted(since):
        under_way.bucket(bucket)
        rows = {key: value for key, value in state.items() if key_hash(key) >> shift == bucket}
        if rows:
            under_way.append(chunk(rows))
    return under_way


def save_snapshot(
    engine: Engine, store: str, of: VersionId, state: State, changed: Changed = None, run: str = "run-1", bits: int = 3
) -> SnapshotAttempt:
    """Make a snapshot that is wanted, and commit it."""
    under_way = take_snapshot(engine, store, of, state, changed, run, bits)
    assert under_way is not None
    assert under_way.commit()
    return under_way


Engines = Callable[..., Engine]


def closing(tables: Tables) -> Iterator[Engines]:
    """Give a function that makes engines on these tables, and close them all at the end."""
    engines: list[Engine] = []

    def make(on: Tables = tables, **settings: Any) -> Engine:
        engines.append(make_engine(on, **settings))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
