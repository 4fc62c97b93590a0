"""Deletion of a query's stores, and the look for a query that writes to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from dynastate import runtime
from dynastate.engine.catalog import find_stores, read_version_lists
from dynastate.engine.checkpoint import checkpoint_items, delete_heads, object_locations, own_objects
from dynastate.engine.graphs import find_meta, read_metas
from dynastate.engine.namespaces import delete_fork, delete_record, read_fork, read_record
from dynastate.engine.updates import unchanged
from dynastate.errors import ConfigurationError, CorruptStateError, UnavailableError
from dynastate.format.checkpoint import FRAGMENT_RANGE, Checkpoint, file_key, folder_range
from dynastate.format.graph import VersionGraph
from dynastate.format.items import Item, Value
from dynastate.format.keys import MANIFEST_RANGE, META, SHARDS_MAX, SPECS, Key, meta_key, store_shard, version_list_key
from dynastate.format.manifest import decode_manifest
from dynastate.format.meta import (
    DELETING,
    DROPPED,
    EPOCHS,
    FORK,
    FORKS,
    MARKED,
    WRITER,
    StoreMeta,
    parse_meta,
    query_runs,
)
from dynastate.format.objects import store_prefix
from dynastate.format.spark_log import METADATA
from dynastate.format.version_list import DROPPED_EPOCH, ERASED, REFUSED, VERSIONS, VersionEntry
from dynastate.operations.inspection.inspect import longest_gap_ms
from dynastate.operations.lifecycle.runs import refuse_runs
from dynastate.operations.pins import refuse_forked, refuse_forks, unpin
from dynastate.operations.scope import each_store
from dynastate.progress import ProgressCallback, no_progress
from dynastate.storage.tables import Tables, delete_all, delete_own_objects, get_apart, other_locations, own_locations
from dynastate.storage.update import Condition, Update

#: How often version lists are read until nothing changes them: only clean-up still can.
_PASSES_MAX: Final = 20
#: Seconds between two looks at what a query may write.
LOOK_MIN_S: float = 5
LOOK_MAX_S: float = 30
#: Attributes by which an item differs from a later item with the same key.
_MADE: Final[tuple[str, ...]] = ("id", FORKS, WRITER)
#: The message of a drop if a query writes to the stores.
IS_WRITTEN: Final = (
    "a query writes to this namespace: stop it, and drop again. With --force everything is deleted all the same: the "
    "query is refused its next commit, and cannot be restarted from its checkpoint"
)
#: Version lists and meta item of each store, as stored.
Look = Mapping[str, dict[Key, Item]]


def look(tables: Tables, stores: Sequence[str], progress: ProgressCallback = no_progress) -> Look:
    """Read the items that every run of a query changes: one Query for each store."""
    read_store = partial(read_version_lists, last=META)
    return dict(zip(stores, each_store(tables, stores, read_store, progress).all(), strict=True))


def commits_of(items: Mapping[Key, Item], store: str) -> list[VersionEntry]:
    """The entries of a store's current versions, the oldest first. Empty if the store is corrupt."""
    with suppress(CorruptStateError):
        graph = VersionGraph(store, ((key, item) for key, item in items.items() if key.sort.startswith("list/")))
        if graph.versions():
            return graph.lineage(graph.newest())
    return []


def seconds_to_look(first_look: Look) -> float:
    """The time to wait for another commit: 1.5 times the longest gap between the last commits."""
    gap_ms = max((longest_gap_ms(commits_of(items, store)) for store, items in first_look.items()), default=0)
    return min(max(LOOK_MIN_S, 1.5 * gap_ms / 1000), LOOK_MAX_S)


def refuse_written(
    tables: Tables,
    first_look: Look,
    seconds: float,
    progress: ProgressCallback = no_progress,
    sleep: Callable[[float], None] = runtime.sleep,
    advice: str = IS_WRITTEN,
) -> None:
    """Refuse if a query writes to these stores: look a second time after some seconds."""
    sleep(seconds)
    second_look = look(tables, list(first_look), progress)
    changed_stores = [store for store, items in first_look.items() if second_look[store] != items]
    if changed_stores:
        raise ConfigurationError(advice, store=changed_stores[0], stores=len(changed_stores))


def drop_stores(tables: Tables, stores: Sequence[str], progress: ProgressCallback = no_progress) -> int:
    """Delete all items of a query's stores except fences; return the number of deleted items.

    A query that still runs is refused its next commit, and cannot be restarted from its checkpoint.

    1. Refuse if forks depend on a store. Unpin items that are pinned for deleted forks.
    2. Mark all stores as dropped, several at once, so that no fork is made of them.
    3. When all are marked, empty them, several at once.
    4. Delete their meta items, the last first: stores are found from the first on, so another drop can complete this.
    5. Delete the record of the namespace's runs, unless a run has begun, and the plan of an unfinished fork.

    If a run of the query has begun meanwhile, nothing of that store is deleted. Refuse a corrupt meta item: the keys of
    the other items are unknown then.
    """
    refuse_forked(tables, stores)  # 1
    namespaces = sorted({store.split("/")[0] for store in stores})
    records = [read_record(tables, each) for each in namespaces]
    forks = {each: read_fork(tables, each) for each in namespaces}
    marks = each_store(tables, stores, _mark_dropped, until_failure=True).all()  # 2
    with_meta = {store for store, has_meta in zip(stores, marks, strict=True) if has_meta}
    marked_stores = [store for store in stores if store in with_meta]
    deleted = sum(each_store(tables, marked_stores, _empty, progress, until_failure=True).all())  # 3
    for store in reversed(stores):  # 4
        deleted += (delete_meta if store in with_meta else _drop_lost)(tables, store)
    deleted += sum(delete_record(tables, record) for record in records if record is not None)  # 5
    return deleted + sum(delete_fork(tables, each, plan) for each, plan in forks.items() if plan is not None)


def refuse_written_files(tables: Tables, namespace: str, first_items: Mapping[Checkpoint, list[Key]]) -> None:
    """Refuse if a query has written or deleted files of a namespace's checkpoints since the first look."""
    if checkpoint_items(tables, namespace) != first_items:
        raise ConfigurationError(IS_WRITTEN, namespace=namespace, checkpoints=len(first_items))


def drop_checkpoints(tables: Tables, writers: Mapping[Checkpoint, Value | None]) -> int:
    """Delete all items of checkpoints; return the number of deleted files. `writers` are their `first_writers`.

    1. List objects, fragments and heads. 2. Refuse if another drop has completed this meanwhile, and a query has begun
    there: what was listed may be of that query. 3. Delete the heads as they were listed, except that of `metadata`, by
    which other drops see until the end whose the files are. 4. Delete fragments and objects. 5. Delete that head.

    The list of the checkpoints stays. After a crash, another drop finds the rest by this list.
    """
    deleted = 0
    for checkpoint, writer in writers.items():
        shard = store_shard(checkpoint.store, 0)
        objects = own_objects(tables, checkpoint, object_locations(tables, checkpoint))  # 1
        low, high = FRAGMENT_RANGE
        fragments = tables.list_keys("snapshot", shard, low, high)
        low, high = folder_range(checkpoint, "")
        heads = dict(tables.query("snapshot", shard, low, high))
        metadata = file_key(checkpoint, METADATA)
        if (heads or fragments or objects) and tables.get([metadata]).get(metadata, {}).get("writer") != writer:  # 2
            raise ConfigurationError(
                "another command has dropped this checkpoint meanwhile, and a query may have begun there: this one "
                "deletes nothing more; drop again only if nothing there is wanted",
                checkpoint=checkpoint,
            )
        delete_heads(tables, {key: head for key, head in heads.items() if key != metadata})  # 3
        delete_all(tables, fragments)  # 4
        delete_own_objects(tables, objects)
        delete_heads(tables, {key: head for key, head in heads.items() if key == metadata})  # 5
        deleted += len(heads)
    return deleted


def locations_of_other_files(tables: Tables, checkpoints: Iterable[Checkpoint]) -> list[str]:
    """The locations of other tables in which these checkpoints have objects, which a drop leaves."""
    return other_locations(tables, {each for one in checkpoints for each in object_locations(tables, one)})


def refuse_made_meanwhile(tables: Tables, namespace: str) -> None:
    """Refuse a namespace that still has stores or files after a drop: a query has made them since the listing."""
    if stores := find_stores(tables, namespace):
        raise ConfigurationError(
            "a query that runs has made stores of this namespace while the others were deleted: stop it, and drop "
            "again",
            store=next(iter(stores)),
            stores=len(stores),
        )
    if checkpoints := checkpoint_items(tables, namespace):
        raise ConfigurationError(
            "a query that runs has written files of its checkpoint while the others were deleted: stop it, and drop "
            "again",
            checkpoint=next(iter(checkpoints)),
        )


def empty_store(tables: Tables, store: str, query: str) -> int:
    """Delete all items of a query's store except fences and the meta item; return the number of deleted items.

    `delete_meta` deletes the meta item. If there is no meta item, nothing is deleted: another command has deleted the
    store, and a query may be making it again. Refuse a store that another query's run has entered meanwhile, or that
    forks depend on.
    """
    refuse_forked(tables, [store])
    return _empty(tables, store) if _mark_dropped(tables, store, query) else 0


def _mark_dropped(tables: Tables, store: str, query: str | None = None) -> bool:
    """Mark a query's store as dropped in its meta item. Returns whether the store has a meta item.

    After this no fork is made of the store, unless a run removes the mark.
    """
    meta = find_meta(tables, store)
    if meta is None:
        return False
    if query not in (None, meta.query):
        raise _run_has_begun(store)
    if not meta.dropped:
        _mark(tables, store, meta, MARKED)
    return True


def _mark(tables: Tables, store: str, meta: StoreMeta, mark: int) -> StoreMeta:
    """Set `dropped` in a meta item with these runs; return its content. Refuse if a run or a fork has begun."""
    condition = unchanged({EPOCHS: meta.epochs, **({DROPPED: meta.dropped} if meta.dropped else {})})
    if not meta.dropped:  # a mark that is late must not take back a later one
        condition = replace(condition, absent=[*condition.absent, DROPPED])
    item = tables.update(meta_key(store), Update(condition, sets={DROPPED: mark}))
    if item is not None:
        return parse_meta(store, item)
    newest_meta = find_meta(tables, store)
    refuse_forks(store, newest_meta)
    if not (newest_meta and newest_meta.dropped >= mark):  # else only the answer was lost
        raise _run_has_begun(store)
    return newest_meta


def _run_has_begun(store: str) -> ConfigurationError:
    return ConfigurationError("a run of the query has begun meanwhile; stop the query first", store=store)


def _empty(tables: Tables, store: str) -> int:
    """Delete all items of a store that is marked as dropped, except fences and the meta item; return their number.

    1. Keep runs from entering. 2. Refuse the next commits of runs under way, and the version lists of an unfinished
    fork. 3. Turn the version lists into fences: after this nothing can be read. The first fence keeps the newest epoch,
    so that a later store of this name has higher ones. 4. Delete the snapshots. 5. Delete manifests, buckets, parts,
    schemas, and all objects in the tables' own locations. 6. If the store is a fork, unpin the items of its origin.
    After a crash at any step, another drop finds the rest by the meta item.

    Another drop may complete this meanwhile, and a query make the store again. The items of that query come after its
    meta item, so what was listed is of the dropped store if the meta item is still the same after the listing.
    """
    meta = find_meta(tables, store)  # 1
    if meta is None:
        raise _is_overtaken(store)
    if not meta.dropped:
        raise _run_has_begun(store)
    if meta.dropped == MARKED:
        meta = _mark(tables, store, meta, DELETING)
    check = partial(_require_deleting, tables, store, meta.epochs)
    runs = set(query_runs(meta))
    lists: list[Key] = []
    if meta.origin:  # a fork is not written by a run; its lists have the sort keys of the pinned lists
        runs.add(FORK)
        lists = [Key("snapshot", store_shard(store, 0), sort) for sort in meta.pins if sort.startswith("list/")]
    refuse_runs(tables, store, runs, lists)  # 2
    deleted = _delete_lists(tables, store, runs, check)  # 3
    _keep_epoch(tables, store, meta.epoch, check)
    deleted += _delete_others(tables, store, meta.shards, locations=meta.objects, check=check)  # 4, 5
    unpin(tables, store, meta, meta.pins)  # 6
    return deleted


def _drop_lost(tables: Tables, store: str) -> int:
    """Delete all items of a store without a meta item, in all possible shards; its runs are unknown.

    No run can enter while there are versions, so the version lists are deleted last. If the store has a meta item by
    now, a query has made it since another drop: nothing is deleted.
    """
    if find_meta(tables, store):
        return 0
    check = partial(_require_lost, tables, store)
    deleted = _delete_others(tables, store, SHARDS_MAX, locations=_named_locations(tables, store), check=check)
    return deleted + _delete_lists(tables, store, (), check)


def _require_deleting(tables: Tables, store: str, epochs: Mapping[str, int]) -> None:
    """Refuse to continue unless the meta item is still the one with these runs that was marked."""
    meta = find_meta(tables, store)
    if meta is None or meta.dropped != DELETING or meta.epochs != epochs:
        raise _is_overtaken(store)


def _require_lost(tables: Tables, store: str) -> None:
    """Refuse to continue if the store has a meta item by now."""
    if find_meta(tables, store):
        raise _is_overtaken(store)


def _is_overtaken(store: str) -> ConfigurationError:
    return ConfigurationError(
        "another command has dropped this store meanwhile, and a query may have made it again: this one deletes "
        "nothing more; drop again only if nothing there is wanted",
        store=store,
    )


def locations_of_others(tables: Tables, stores: Sequence[str]) -> list[str]:
    """The locations of other tables in which these stores have objects, which a drop leaves."""
    locations: set[str] = set()
    metas = read_metas(tables, stores)
    for store in stores:
        locations |= metas[store].objects if store in metas else _named_locations(tables, store)
    return other_locations(tables, locations)


def _named_locations(tables: Tables, store: str) -> set[str]:
    """The locations of objects that version lists and manifests name."""
    locations: set[str] = set()
    with suppress(CorruptStateError):
        graph = VersionGraph(store, read_version_lists(tables, store).items())
        locations |= {entry.objects.location for entry in graph.entries() if entry.objects}
    low, high = MANIFEST_RANGE
    for _, item in tables.query("snapshot", store_shard(store, 0), low, high):
        with suppress(CorruptStateError):
            raw = item.get("data")
            locations |= decode_manifest(store, raw if isinstance(raw, bytes) else b"").locations
    return locations


def _delete_lists(tables: Tables, store: str, runs: Collection[str], check: Callable[[], None]) -> int:
    """Delete version lists, on the condition that they are as they were read; return the number of deleted lists.

    A list that refuses runs, of this query or of a dropped one, becomes a fence: a commit of these runs may be minutes
    late, and go to any list. `check` raises an error if what was listed need not be of the dropped store.
    """
    deleted = 0
    for _ in range(_PASSES_MAX):
        lists = {key: item for key, item in read_version_lists(tables, store).items() if VERSIONS in item}
        if not lists:
            return deleted
        check()
        for key, item in lists.items():
            guarded: Item = {name: item[name] for name in (VERSIONS, REFUSED, FORKS, WRITER) if name in item}
            earlier_runs = item.get(REFUSED, frozenset())  # empty if a late commit has made the list
            refused_runs = frozenset(runs) | (earlier_runs if isinstance(earlier_runs, frozenset) else frozenset())
            if refused_runs:
                left_out = VERSIONS, FORKS, WRITER, ERASED
                fence = {name: value for name, value in item.items() if name not in left_out}
                tables.put_over(key, fence | {REFUSED: refused_runs}, unchanged(guarded))
            else:
                deleted += tables.delete_over(key, unchanged(guarded))
    raise UnavailableError("something keeps writing to this store: stop the query, and drop again", store=store)


def _keep_epoch(tables: Tables, store: str, epoch: int, check: Callable[[], None]) -> None:
    """Note the newest epoch of a store in the fence of its first list. Without any run there is no fence."""
    key = version_list_key(store, 1)
    for _ in range(_PASSES_MAX):
        fence = tables.get([key]).get(key, {})
        if not fence:
            return
        check()
        guarded: Item = {REFUSED: fence[REFUSED]} if REFUSED in fence else {}
        if guarded and tables.put_over(key, fence | {DROPPED_EPOCH: epoch}, unchanged(guarded)):
            return
    raise UnavailableError("something keeps writing to this store: stop the query, and drop again", store=store)


def _delete_others(tables: Tables, store: str, shards: int, locations: Iterable[str], check: Callable[[], None]) -> int:
    """Delete snapshots, then all else except version lists and meta item; return the number of deleted items.

    `check` raises an error if what was listed need not be of the dropped store.
    """
    keys = [
        key
        for role in SPECS
        for shard in range(shards)
        for key in tables.list_keys(role, store_shard(store, shard), "\x00", "\U0010ffff")
        if key != meta_key(store) and not key.sort.startswith("list/")
    ]
    # A later store of this name may write the same keys, and these requests may be late.
    reused_keys = [key for key in keys if key.sort.startswith(("snapshot/", "schema/"))]
    reused_items = get_apart(tables, reused_keys)
    check()
    for key in sorted(reused_items, reverse=True):  # snapshots first
        guarded: Item = {name: value for name, value in reused_items[key].items() if name in _MADE}
        tables.delete_over(key, Condition(equal=guarded, absent=[name for name in _MADE if name not in guarded]))
    delete_all(tables, sorted({*keys}.difference(reused_keys)))
    for location in own_locations(tables, locations):
        object_ids = list(tables.objects.names(location, store_prefix(store)))
        check()
        delete_own_objects(tables, object_ids)
    return len(keys)


def delete_meta(tables: Tables, store: str) -> int:
    """Delete the meta item of a store that is being dropped, but no newer one of a query; return 1."""
    for _ in range(_PASSES_MAX):
        meta = find_meta(tables, store)
        if meta is None:
            return 1  # only the answer was lost, or another drop was faster
        if meta.dropped != DELETING:
            raise _is_overtaken(store)
        guarded: Item = {EPOCHS: meta.epochs, DROPPED: DELETING, **({FORKS: meta.forks} if meta.forks else {})}
        if tables.delete_over(meta_key(store), unchanged(guarded)):
            return 1
    raise UnavailableError("forks of this store begin again and again; drop it again", store=store)
