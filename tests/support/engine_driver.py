"""Stores written and read through the engine, as the provider does it: states are dictionaries of bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from dynastate.engine.commit import WriteAttempt
from dynastate.engine.engine import Engine
from dynastate.engine.graphs import read_manifest
from dynastate.engine.known import ROUTES_BYTES
from dynastate.engine.snapshots import SnapshotAttempt
from dynastate.errors import RouteInvalidError
from dynastate.format.changes import PUT, Change, decode_changes, encode_changes, key_hash
from dynastate.format.graph import VersionGraph
from dynastate.format.items import Item
from dynastate.format.keys import (
    EMPTY,
    NO_ATTEMPT,
    SPECS,
    Attempt,
    Key,
    VersionId,
    graph_range,
    manifest_key,
    meta_key,
    part_key,
    schema_key,
    snapshot_key,
    store_shard,
)
from dynastate.format.meta import QueryRun
from dynastate.format.objects import ObjectId
from dynastate.format.parts import Chunk, StoredChunk
from dynastate.format.snapshot import DONE
from dynastate.format.version_list import VersionEntry
from dynastate.prices import DEFAULT_PRICES
from dynastate.settings import Settings
from dynastate.sidecar.metrics import commit_counters
from dynastate.storage.tables import Tables

State = dict[bytes, bytes]
Changes = Mapping[bytes, bytes | None]

SCHEMA = '{"families":[]}'
QUERY = "5b0c2d7e-0000-4000-8000-000000000000"
CHECKPOINT = "file:/tmp/ck/state"
SHARDS = 4


def attempt(number: int) -> Attempt:
    """Make the attempt of a number."""
    return Attempt(number.to_bytes(16, "big"))


A, B, C, D, Z = (attempt(number) for number in (0xA, 0xB, 0xC, 0xD, 0x2A))


def noise(length: int, seed: str = "seed") -> bytes:
    """Make bytes that do not compress."""
    return hashlib.shake_128(seed.encode()).digest(length)


def namespace_of(store: str) -> str:
    return store.split("/", maxsplit=1)[0]


def query_run(run: str = "run-1", location: str = CHECKPOINT, query: str = QUERY) -> QueryRun:
    """Make a run of the query of these tests, or of another one."""
    return QueryRun(run, query, location)


def now() -> datetime:
    """Tell the time that it always is for the engines of tests."""
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


def chunk(changes: Changes) -> Chunk:
    """Make one chunk of changes."""
    hashes = [key_hash(key) for key in changes]
    raw = encode_changes(Change(PUT, 0, key, value) for key, value in changes.items())
    return Chunk(len(changes), min(hashes), max(hashes), raw)


def singles(count: int, value: bytes = b"1") -> list[State]:
    """Make that number of changes, of a row each."""
    return [{b"%d" % number: value} for number in range(count)]


def begin(
    engine: Engine, store: str, by: Attempt, *changes: Changes, base: VersionId = EMPTY, run: str = "run-1"
) -> WriteAttempt:
    """Begin an attempt at the version after `base`, with changes, one chunk each."""
    under_way = engine.begin(store, query_run(run), *base, by)
    for each in changes:
        under_way.append(chunk(each))
    return under_way


def commit(
    engine: Engine, store: str, by: Attempt, *changes: Changes, base: VersionId = EMPTY, run: str = "run-1"
) -> tuple[VersionId, dict[str, int]]:
    """Commit changes, one chunk each; return the version made and what it cost, as the sidecar reports it."""
    made = begin(engine, store, by, *changes, base=base, run=run).commit({0: 0}, SCHEMA)
    stored = engine.known_stores.account(store).stored()
    return VersionId(base[0] + 1, by), commit_counters(made, stored, DEFAULT_PRICES)


def write(
    engine: Engine, store: str, by: Attempt, *changes: Changes, base: VersionId = EMPTY, run: str = "run-1"
) -> VersionId:
    """Commit changes, one chunk each."""
    return commit(engine, store, by, *changes, base=base, run=run)[0]


def write_versions(
    engine: Engine, store: str, count: int, base: VersionId = EMPTY, run: str = "run-1"
) -> list[VersionId]:
    """Commit versions of one row each, by attempts of the same numbers."""
    made = [base]
    for number in range(base[0] + 1, base[0] + count + 1):
        made.append(write(engine, store, attempt(number), {b"%d" % number: b"%d" % number}, base=made[-1], run=run))
    return made


def numbers(last: int, first: int = 1) -> State:
    """Make the state that `write_versions` leaves at version `last`."""
    return {b"%d" % number: b"%d" % number for number in range(first, last + 1)}


def fold(chunks: Iterable[StoredChunk], state: State | None = None) -> State:
    """Apply chunks to a state, as the provider does; a chunk must hold as many records as it says."""
    folded = dict(state or {})
    for chunk in chunks:
        changes = list(decode_changes(chunk.changes))
        assert len(changes) == chunk.records
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


def take_snapshot(
    engine: Engine,
    store: str,
    of: VersionId,
    state: State,
    changed: Callable[[int], set[bytes]] | None = None,
    run: str = "run-1",
    bits: int = 3,
) -> SnapshotAttempt | None:
    """Offer a snapshot as the provider does, and send what it must; None: it is not wanted. The caller ends it.

    `changed` gives the keys that were changed since a version; without it, all buckets are sent.
    """
    under_way, _ = engine.snapshot(store, run, *of, state_bytes=(512 * 1024) << bits, min_deltas=1)
    if under_way is None:
        return None
    shift = 32 - under_way.bits
    all_buckets = set(range(1 << under_way.bits))
    since = {key_hash(key) >> shift for key in changed(under_way.base)} if changed and under_way.base else all_buckets
    for bucket in sorted(since):
        under_way.bucket(bucket)
        held = {key: value for key, value in state.items() if key_hash(key) >> shift == bucket}
        if held:
            under_way.append(chunk(held))
    return under_way


def save_snapshot(
    engine: Engine,
    store: str,
    of: VersionId,
    state: State,
    changed: Callable[[int], set[bytes]] | None = None,
    run: str = "run-1",
    bits: int = 3,
) -> SnapshotAttempt:
    """Make a snapshot that is wanted, and commit it."""
    under_way = take_snapshot(engine, store, of, state, changed, run, bits)
    assert under_way is not None
    assert under_way.commit()
    return under_way


def parts_of(tables: Tables, store: str) -> list[tuple[Key, Item]]:
    """All items of a store in the delta table, in the order of version, attempt, sequence."""
    shards = (store_shard(store, shard) for shard in range(SHARDS))
    found = [each for shard in shards for each in tables.query("delta", shard, "0", "~")]
    return sorted(found, key=lambda pair: pair[0].sort)


def buckets_of(tables: Tables, store: str) -> list[str]:
    """Sort keys of all items of buckets."""
    shards = (store_shard(store, shard) for shard in range(SHARDS))
    return sorted(key.sort for each in shards for key in tables.list_keys("snapshot", each, "bucket/", "bucket/~"))


def everything_of(tables: Tables, store: str) -> list[Item]:
    """Every item that both tables have of a store, by a Query of every shard."""
    places = [(role, store_shard(store, shard)) for role in SPECS for shard in range(SHARDS)]
    return [item for role, shard in places for _, item in tables.query(role, shard, "!", "~")]


def items_of(tables: Tables, store: str) -> dict[str, Item]:
    """All items of a store in the snapshot-group table by sort key."""
    found = tables.query("snapshot", store_shard(store, 0), "a", "~")
    return {key.sort: item for key, item in found}


def graph(tables: Tables, store: str) -> VersionGraph:
    """Read all version lists of a store."""
    low, high = graph_range(0, 10**20 - 1)
    found = tables.query("snapshot", store_shard(store, 0), low, high)
    return VersionGraph(store, [(key, item) for key, item in found if not key.sort.startswith("schema/")])


def entry(tables: Tables, store: str, version: int, by: Attempt = NO_ATTEMPT) -> VersionEntry:
    """Read one version entry."""
    return graph(tables, store).find(version, by)


def named_keys(tables: Tables, store: str) -> set[Key]:
    """Keys of all items that are to be there: what version lists name, and manifests of finished snapshots."""
    found = graph(tables, store)
    shards = found.required_meta.shards
    named = {meta_key(store), *found.lists}
    for each in found.entries():
        named.add(schema_key(store, each.schema))
        for sequence in each.items:
            named.add(part_key(store, each.version, each.attempt, sequence, shards))
    for snapshot in found.snapshots():
        named.add(snapshot_key(store, snapshot.version, snapshot.attempt))
        if snapshot.stage == DONE:
            named.add(manifest_key(store, snapshot.version, snapshot.id))
            kept = read_manifest(tables, store, snapshot)
            in_items = [number for number, bucket in enumerate(kept.buckets) if bucket.place is None]
            named |= {key for number in in_items for key in kept.keys(store, number, shards)}
    return named


def named_objects(tables: Tables, store: str) -> set[ObjectId]:
    """All objects that are to be there: what version lists and the manifests of finished snapshots name."""
    found = graph(tables, store)
    named = {place for each in found.entries() if each.home is None for place in each.object_ids(store)}
    for snapshot in found.snapshots():
        if snapshot.stage == DONE:
            kept = read_manifest(tables, store, snapshot)
            named |= kept.objects(store)
    return named


Engines = Callable[..., Engine]


def closing(tables: Tables) -> Iterator[Engines]:
    """Give a function that makes engines on these tables, and close them all at the end."""
    made: list[Engine] = []

    def make(on: Tables = tables, **settings: Any) -> Engine:
        made.append(make_engine(on, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()
