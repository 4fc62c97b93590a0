"""Stores written and read through the engine, as the provider does it: states are dictionaries of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from dynastate import layout, rows, snapshots
from dynastate.errors import OtherWayError
from dynastate.layout import NO_ATTEMPT, Attempt, Chunk, History, Item, Key, VersionEntry
from dynastate.rows import Change
from dynastate.snapshots import SnapshotAttempt
from dynastate.store import Engine, WriteAttempt
from dynastate.tables import Meter, Tables

Version = tuple[int, Attempt]
State = dict[bytes, bytes]
Changes = Mapping[bytes, bytes | None]

EMPTY: Version = (0, NO_ATTEMPT)
SCHEMA = '{"families":[]}'
CHECKPOINT = "file:/tmp/ck/state"
SHARDS = 4


def attempt(number: int) -> Attempt:
    """Make the attempt of a number."""
    return Attempt(number.to_bytes(16, "big"))


def engine(tables: Tables, **settings: Any) -> Engine:
    """Make an engine with small settings, that keeps nothing: every open reads."""
    fixed: dict[str, Any] = {"shards": SHARDS, "parallel_requests": 2, "deadline_s": 5, "package": "0.1.0"}
    fixed |= {"cache_bytes": 0}
    return Engine(tables, now=lambda: datetime(2025, 1, 1, tzinfo=timezone.utc), **(fixed | settings))


def chunk(changes: Changes) -> Chunk:
    """Make one chunk of changes."""
    hashes = [rows.key_hash(key) for key in changes]
    run = rows.encode(Change(rows.PUT, 0, key, value) for key, value in changes.items())
    return Chunk(len(changes), min(hashes), max(hashes), run)


def begin(at: Engine, store: str, by: Attempt, base: Version = EMPTY, run: str = "run-1") -> WriteAttempt:
    """Begin an attempt at the version after `base`."""
    return at.begin(store, run, CHECKPOINT, base[0], base[1], by)


def commit(
    at: Engine, store: str, by: Attempt, *changes: Changes, base: Version = EMPTY, run: str = "run-1"
) -> tuple[Version, dict[str, int]]:
    """Commit changes, one chunk each; return the version made and what it cost."""
    under_way = begin(at, store, by, base, run)
    for each in changes:
        under_way.append(chunk(each))
    return (base[0] + 1, by), under_way.commit({0: 0}, SCHEMA)


def write(at: Engine, store: str, by: Attempt, *changes: Changes, base: Version = EMPTY, run: str = "run-1") -> Version:
    """Commit changes, one chunk each."""
    return commit(at, store, by, *changes, base=base, run=run)[0]


def write_versions(at: Engine, store: str, count: int, base: Version = EMPTY, run: str = "run-1") -> list[Version]:
    """Commit versions of one row each, by attempts of the same numbers."""
    made = [base]
    for number in range(base[0] + 1, base[0] + count + 1):
        made.append(write(at, store, attempt(number), {b"%d" % number: b"%d" % number}, base=made[-1], run=run))
    return made


def fold(chunks: Iterable[tuple[int, bytes]], state: State | None = None) -> State:
    """Apply chunks to a state, as the provider does; a chunk must hold as many records as it says."""
    folded = dict(state or {})
    for records, run in chunks:
        changes = list(rows.decode(run))
        assert len(changes) == records
        for change in changes:
            if change.value is None:
                folded.pop(change.key, None)
            else:
                folded[change.key] = change.value
    return folded


def read(at: Engine, store: str, version: int, by: Attempt = NO_ATTEMPT, have: Sequence[Version] = ()) -> State:
    """Open a version and read it whole; with `have`, only what comes after the base is read."""
    opening = at.open(store, version, by, have)
    return fold(opening.chunks, fold(opening.snapshot_chunks))


def recover(at: Engine, store: str, version: int, by: Attempt = NO_ATTEMPT) -> State:
    """Open a version as the sidecar does, by whichever way leads to it, and read it whole."""
    try:
        return read(at, store, version, by)
    except OtherWayError:
        return recover(at, store, version, by)


def take_snapshot(
    at: Engine,
    store: str,
    of: Version,
    state: State,
    changed: Callable[[int], set[bytes]],
    run: str = "run-1",
    bits: int = 3,
) -> SnapshotAttempt | None:
    """Offer a snapshot as the provider does, and send what it must; None: it is not wanted. The caller ends it.

    `changed` gives the keys that were changed since a version.
    """
    under_way, _ = at.snapshot(store, run, *of, state_bytes=(512 * 1024) << bits, min_deltas=1)
    if under_way is None:
        return None
    shift = 32 - under_way.bits
    all_buckets = set(range(1 << under_way.bits))
    since = {rows.key_hash(key) >> shift for key in changed(under_way.base)} if under_way.base else all_buckets
    for bucket in sorted(since):
        under_way.bucket(bucket)
        held = {key: value for key, value in state.items() if rows.key_hash(key) >> shift == bucket}
        if held:
            under_way.append(chunk(held))
    return under_way


def parts_of(tables: Tables, store: str) -> list[tuple[Key, Item]]:
    """All items of a store in the delta table, in the order of version, attempt, sequence."""
    shards = (layout.store_shard(store, shard) for shard in range(SHARDS))
    found = [each for shard in shards for each in tables.query("delta", shard, "0", "~", Meter())]
    return sorted(found, key=lambda pair: pair[0].sort)


def items_of(tables: Tables, store: str) -> dict[str, Item]:
    """All items of a store in the snapshot-group table by sort key."""
    found = tables.query("snapshot", layout.store_shard(store, 0), "a", "~", Meter())
    return {key.sort: item for key, item in found}


def history(tables: Tables, store: str) -> History:
    """Read all version lists of a store."""
    low, high = layout.history_range(0, 10**20 - 1)
    found = tables.query("snapshot", layout.store_shard(store, 0), low, high, Meter())
    return History(store, [(key, item) for key, item in found if not key.sort.startswith("schema/")])


def entry(tables: Tables, store: str, version: int, by: Attempt = NO_ATTEMPT) -> VersionEntry:
    """Read one version entry."""
    return history(tables, store).find(version, by)


def named_keys(tables: Tables, store: str) -> set[Key]:
    """Keys of all items that are to be there: what version lists name, and directories of finished snapshots."""
    found = history(tables, store)
    meta = found.meta
    assert meta is not None
    shards = meta["shards"]
    assert isinstance(shards, int)
    named = {layout.meta_key(store), *found.groups}
    for each in found.entries():
        named.add(layout.schema_key(store, each.schema))
        for sequence in range(each.parts):
            named.add(layout.part_key(store, each.version, each.attempt, sequence, shards))
    for snapshot in found.snapshots():
        named.add(layout.snapshot_key(store, snapshot.version, snapshot.attempt))
        if snapshot.stage == layout.DONE:
            named.add(layout.directory_key(store, snapshot.version, snapshot.id))
            kept = snapshots.read_directory(tables, store, snapshot, Meter())
            named |= {key for number in range(len(kept.buckets)) for key in kept.keys(store, number, shards)}
    return named


Engines = Callable[..., Engine]


def closing(tables: Tables) -> Iterator[Engines]:
    """Give a function that makes engines on these tables, and close them all at the end."""
    made: list[Engine] = []

    def make(on: Tables = tables, **settings: Any) -> Engine:
        made.append(engine(on, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()
