"""Deletion of a query's stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dynastate.dynamodb.meter import Meter
from dynastate.dynamodb.tables import Tables, delete_all
from dynastate.errors import ConfigurationError
from dynastate.format.items import Item
from dynastate.format.keys import SPECS, Key, meta_key, store_shard
from dynastate.format.meta import DELETING, DROPPED, MARKED, parse_meta
from dynastate.operations.pins import pins_of, refuse_forked, refuse_forks, unpin
from dynastate.operations.runs import read_meta
from dynastate.progress import ProgressCallback, no_progress

#: Deletes from one progress report to the next.
_STEP: Final = 1_000


def drop_stores(tables: Tables, stores: Sequence[str], meter: Meter, progress: ProgressCallback = no_progress) -> int:
    """Delete all items of a query's stores, and return how many. The query must not run.

    1. Refuse if forks depend on a store. Items that are pinned for deleted forks are unpinned. 2. Mark all stores as
    dropped, so that no fork is made of what is left. 3. Drop them one by one, the last first: stores are found from the
    first on, so a drop that was cut off is finished by another.

    Raises:
        CorruptStateError: a meta item is lost or corrupt, so that the places of the other items are unknown.
        ConfigurationError: forks depend on a store, and nothing was deleted; or a run of the query has begun meanwhile,
            and nothing was deleted of that store.
    """
    refuse_forked(tables, stores, meter)  # 1
    for store in stores:
        _mark_dropped(tables, store, read_meta(tables, store, meter), meter)  # 2
    return sum(_drop(tables, store, meter, progress) for store in reversed(stores))  # 3


def _mark_dropped(tables: Tables, store: str, meta: Item, meter: Meter) -> None:
    """Mark a store as dropped in its meta item. From then on no fork is made of it, unless a run removes the mark.

    Raises:
        ConfigurationError: forks depend on it, or a run of the query has begun meanwhile.
    """
    if DROPPED in meta:
        return
    key = meta_key(store)
    if tables.put_over(key, meta | {DROPPED: MARKED}, {"epoch": meta["epoch"]}, meter):
        return
    now = tables.get([key], meter).get(key, {})
    refuse_forks(store, now)
    _require_mark(store, now)  # it is there if only the answer was lost


def _require_mark(store: str, meta: Item) -> None:
    if DROPPED not in meta:
        raise _run_has_begun(store)


def _run_has_begun(store: str) -> ConfigurationError:
    return ConfigurationError("a run of the query has begun meanwhile; stop the query first", store=store)


def _begin_deleting(tables: Tables, store: str, meter: Meter) -> Item:
    """Let no run enter a store that is marked as dropped any more; return its meta item.

    Raises:
        ConfigurationError: a run of the query has begun meanwhile.
    """
    found = read_meta(tables, store, meter)
    _require_mark(store, found)
    before: Item = {"epoch": found["epoch"], DROPPED: MARKED}
    if found[DROPPED] == MARKED and not tables.put_over(meta_key(store), found | {DROPPED: DELETING}, before, meter):
        found = read_meta(tables, store, meter)
        if found.get(DROPPED) != DELETING:  # it is there if only the answer was lost
            raise _run_has_begun(store)
    return found


def _drop(tables: Tables, store: str, meter: Meter, progress: ProgressCallback) -> int:
    """Delete all items of a store that is marked as dropped.

    1. Let no run enter any more. 2. Version lists and snapshots: from here on nothing can be read. 3. Manifests,
    buckets, parts and schemas. 4. If it is a fork, unpin what it needed in its origin. 5. The meta item, by which a
    drop that was cut off after any step finds the rest again.
    """
    meta, found = meta_key(store), _begin_deleting(tables, store, meter)  # 1
    shards = parse_meta(store, found).shards
    keys = [key for key in _keys(tables, store, shards, meter) if key != meta]
    keys.sort(key=lambda key: not key.sort.startswith(("group/", "snapshot/")))
    for at in range(0, len(keys), _STEP):  # 2, 3
        progress(at, len(keys))
        delete_all(tables, keys[at : at + _STEP], meter)
    unpin(tables, store, found, pins_of(found), meter)  # 4
    delete_all(tables, [meta], meter)  # 5
    return len(keys) + 1


def _keys(tables: Tables, store: str, shards: int, meter: Meter) -> Iterator[Key]:
    for role in SPECS:
        for shard in range(shards):
            yield from tables.list_keys(role, store_shard(store, shard), "\x00", "\U0010ffff", meter)
