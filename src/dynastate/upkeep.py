"""What an operator may do to stores by hand: a snapshot, a clean-up, and dropping a namespace.

A snapshot and a clean-up are what executors make of their own accord, and safe beside them, because they are made by
the same rules (docs/decisions/0006): in the name of the query run that made the newest version, whose epoch is left as
it is. A run of one's own would fence that query off. If a newer run has begun, or begins meanwhile, both stop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from dynastate import forks, layout, rows
from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.layout import Chunk, Item, Key, Role, VersionEntry
from dynastate.progress import Progress, unheard
from dynastate.reader import Rows
from dynastate.store import Engine, Opening, by_any_way
from dynastate.tables import Meter, Tables, delete_all

#: Deletes that are reported on at once.
_STEP: Final = 1_000
#: A key, in its family.
_Place = tuple[int, bytes]
_Found = dict[_Place, rows.Value]
#: A record, with the hash of its key.
_Record = tuple[int, bytes]


@dataclass(frozen=True)
class Compacted:
    """A snapshot that was made, of `rows` rows, and the bytes that were written for it."""

    store: str
    version: int
    rows: int
    bytes_written: int
    write_units: int


@dataclass(frozen=True)
class Cleaned:
    """What a clean-up removed. Versions from `oldest` on are there."""

    store: str
    items: int
    write_units: int
    oldest: int


def compact(engine: Engine, tables: Tables, store: str, progress: Progress = unheard) -> Compacted | None:
    """Make a snapshot of the newest version, whether it is worth its write units or not.

    1. Read the version whole. 2. Enter the snapshot, in the name of the run that writes to the store. 3. Write the
    buckets that changed since the last snapshot, then make it one. A crash leaves a snapshot that no reader takes, and
    that clean-up removes.

    Returns:
        None where there is nothing to do: the version has a snapshot, or another executor is at it.

    Raises:
        VersionMissingError: nothing is committed.
        CorruptStateError: an item is lost or broken.
        ConfigurationError: a newer run has begun, or clean-up went by; nothing was done.
    """
    newest = engine.lineage(store).newest
    run = _run_of(tables, store, newest)
    found, changed, base = by_any_way(lambda _: _read(engine.open(store, newest.version, newest.attempt)))  # 1
    raw_bytes = sum(len(key) + len(each) + 10 for (_, key), value in found.items() for each in _values(value))
    begun, _ = engine.snapshot(store, run, newest.version, newest.attempt, raw_bytes, 1, is_asked_for=True)  # 2
    if begun is None:
        return None
    shift = 32 - begun.bits
    # Carried on is what lay in the snapshot that was read, but for what changed since.
    is_carried = begun.base and begun.base == base
    touched = {rows.key_hash(key) >> shift for _, key in changed}
    wanted = touched if is_carried else set(range(1 << begun.bits))
    buckets: dict[int, list[_Record]] = {number: [] for number in wanted}
    for (family, key), value in found.items():
        digest = rows.key_hash(key)
        if digest >> shift in wanted:
            buckets[digest >> shift] += _records(digest, family, key, _values(value))
    try:
        for done, number in enumerate(sorted(wanted)):
            progress(done, len(wanted))
            begun.bucket(number)
            for chunk in _chunks(buckets[number]):
                begun.append(chunk)
    except BaseException:
        begun.abort()
        raise
    if not begun.commit():  # 3
        raise ConfigurationError(
            "a clean-up, or a newer run of the query, came in between; no snapshot was made, try again", store=store
        )
    return Compacted(store, newest.version, len(found), begun.meter.bytes_written, begun.meter.write_units)


def clean(engine: Engine, tables: Tables, store: str, retain: int) -> Cleaned:
    """Remove what the newest `retain` versions do not need, as `Engine.clean_up` does it.

    First, names of this store are given free that are held for forks which are gone: they may be what clean-up fails
    at. Last, of a fork, names of its origin that it stands on no more.

    Raises:
        VersionMissingError: nothing is committed.
        CorruptStateError: an item is lost or broken.
        ConfigurationError: a newer run has begun; nothing was done.
    """
    meter = Meter()
    forks.release_gone(tables, store, meter)
    newest = engine.lineage(store).newest
    run = _run_of(tables, store, newest)
    spent, _ = engine.clean_up(store, run, newest.version, newest.attempt, retain, least=1, most=0)
    meter.add(spent)
    forks.release_unneeded(tables, store, meter)
    oldest = engine.lineage(store).entries[0].version
    return Cleaned(store, meter.items_deleted, meter.delete_units + meter.write_units, oldest)


def drop_all(tables: Tables, stores: Sequence[str], meter: Meter, progress: Progress = unheard) -> int:
    """Delete all items of a query's stores, and return how many. The query must not run.

    1. Refuse if forks stand on one; but what is held for forks that are gone is given free. 2. Say of all that they are
    dropped, so that no fork is made of what is left. 3. Drop them one by one, the last first: stores are found from the
    first on, so a drop that was cut off is finished by another.

    Raises:
        CorruptStateError: a meta item is lost or broken, so that nobody knows where the rest lies.
        ConfigurationError: forks stand on a store, and nothing was deleted; or a run of the query has begun meanwhile,
            and nothing was deleted of that store.
    """
    forks.must_have_none(tables, stores, meter)  # 1
    for store in stores:
        forks.begin_drop(tables, store, _meta_of(tables, store, meter), meter)  # 2
    return sum(_drop(tables, store, meter, progress) for store in reversed(stores))  # 3


def _drop(tables: Tables, store: str, meter: Meter, progress: Progress) -> int:
    """Delete all items of a store that says that it is dropped.

    1. Version lists and snapshots: from here on nothing can be read. 2. Directories, buckets, parts and schemas. 3. If
    it is a fork itself, give the names free that it stands on. 4. The meta item, by which a drop that was cut off after
    any step finds the rest again.
    """
    meta, found = layout.meta_key(store), _meta_of(tables, store, meter)
    forks.must_be_dropped(store, found)
    _, shards = layout.parse_meta(store, found)
    keys = [key for key in _keys(tables, store, shards, meter) if key != meta]
    keys.sort(key=lambda key: not key.sort.startswith(("group/", "snapshot/")))
    for at in range(0, len(keys), _STEP):  # 1, 2
        progress(at, len(keys))
        delete_all(tables, keys[at : at + _STEP], meter)
    forks.release(tables, store, found, forks.pins_of(found), meter)  # 3
    delete_all(tables, [meta], meter)  # 4
    return len(keys) + 1


def _meta_of(tables: Tables, store: str, meter: Meter) -> Item:
    """The store's meta item, once it is found right."""
    key = layout.meta_key(store)
    found = tables.get([key], meter).get(key)
    if found is None:
        raise CorruptStateError("the store's meta item is lost", **layout.where(key))
    layout.parse_meta(store, found)
    return found


def runs_of(tables: Tables, store: str, meter: Meter) -> Collection[str]:
    """Ids of the newest query runs that have opened a store for writing.

    Raises:
        CorruptStateError: the meta item is lost or broken.
    """
    epochs, _ = layout.parse_meta(store, _meta_of(tables, store, meter))
    return epochs.keys()


def _keys(tables: Tables, store: str, shards: int, meter: Meter) -> Iterator[Key]:
    roles: tuple[Role, ...] = ("snapshot", "delta")
    for role in roles:
        for shard in range(shards):
            yield from tables.list_keys(role, layout.store_shard(store, shard), "\x00", "\U0010ffff", meter)


def _run_of(tables: Tables, store: str, newest: VersionEntry) -> str:
    """The query run that made the newest version, while no newer run writes to the store.

    One that has begun, and committed nothing yet, may be at another life of the store, at versions below this one: what
    it has written there looks like what nobody needs.
    """
    epochs, _ = layout.parse_meta(store, _meta_of(tables, store, Meter()))
    run = max(epochs, key=epochs.__getitem__)
    if epochs[run] != newest.epoch:
        raise ConfigurationError(
            "a newer run of the query has begun, and has committed nothing to this store yet; try again when it has",
            store=store,
            epoch=epochs[run],
            newest=newest.epoch,
        )
    return run


def _read(opening: Opening) -> tuple[_Found, set[_Place], int]:
    """All rows of a version, the keys that changed since its snapshot, and which that is."""
    found: _Found = {}
    _fold(found, opening.snapshot_chunks)
    return found, _fold(found, opening.chunks), opening.snapshot


def _values(value: rows.Value) -> list[bytes]:
    return value if isinstance(value, list) else [value]


def _fold(found: _Found, chunks: Iterator[Rows]) -> set[_Place]:
    """Apply changes of all families; their keys."""
    changed = set()
    for change in chain.from_iterable(rows.decode(run) for _, run in chunks):
        place = change.family, change.key
        changed.add(place)
        rows.apply(found, place, change)
    return changed


def _records(digest: int, family: int, key: bytes, values: list[bytes]) -> Iterator[_Record]:
    """A key's values: the first as a put, the others of a list as merges."""
    for number, value in enumerate(values):
        operation = rows.MERGE if number else rows.PUT
        yield digest, rows.encode([rows.Change(operation, family, key, value)])


def _chunks(records: list[_Record]) -> Iterator[Chunk]:
    """Records in chunks of at most the size that the format allows, or of one that is larger."""
    begin = size = 0
    for end, (_, raw) in enumerate(records):
        if end > begin and size + len(raw) > layout.CHUNK_BYTES_MAX:
            yield _chunk(records[begin:end])
            begin, size = end, 0
        size += len(raw)
    if records:
        yield _chunk(records[begin:])


def _chunk(records: list[_Record]) -> Chunk:
    hashes = [digest for digest, _ in records]
    return Chunk(len(records), min(hashes), max(hashes), b"".join(raw for _, raw in records))
