"""Deletion of a query's stores, and the look for a query that writes to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from dynastate import runtime
from dynastate.engine.catalog import find_stores, read_version_lists
from dynastate.engine.namespaces import delete_fork, delete_record, read_fork, read_record
from dynastate.engine.updates import unchanged
from dynastate.errors import ConfigurationError, CorruptStateError, UnavailableError
from dynastate.format.graph import VersionGraph
from dynastate.format.items import Item
from dynastate.format.keys import (
    MANIFEST_RANGE,
    META,
    SHARDS_MAX,
    SPECS,
    Key,
    meta_key,
    store_shard,
    version_list_key,
)
from dynastate.format.manifest import decode_manifest
from dynastate.format.meta import (
    DELETING,
    DROPPED,
    FORK,
    FORKS,
    MARKED,
    ORIGIN,
    WRITER,
    StoreMeta,
    parse_meta,
    query_runs,
)
from dynastate.format.objects import store_prefix
from dynastate.format.version_list import DROPPED_EPOCH, REFUSED, VERSIONS, VersionEntry
from dynastate.operations.inspection.inspect import longest_gap_ms
from dynastate.operations.lifecycle.runs import read_meta, refuse_runs
from dynastate.operations.pins import meta_or_empty, pins_of, refuse_forked, refuse_forks, unpin
from dynastate.operations.scope import each_store
from dynastate.progress import ProgressCallback, no_progress
from dynastate.storage.tables import Tables, delete_all, delete_own_objects, get_apart, other_locations, own_locations

#: How often version lists are read until nothing changes them any more: only clean-up still may.
_PASSES_MAX: Final = 20
#: Seconds between two looks at what a query may write.
LOOK_MIN_S: float = 5
LOOK_MAX_S: float = 30
#: Attributes by which an item differs from one that is made later with its key.
_MADE: Final[tuple[str, ...]] = ("id", FORKS, WRITER)
_IS_WRITTEN: Final = (
    "a query writes to this namespace: stop it, and drop again. With --force everything is deleted all the same: the "
    "query is refused its next commit, and cannot be restarted from its checkpoint"
)
#: Version lists and meta item of each store, as they are stored.
Look = Mapping[str, dict[Key, Item]]


def look(tables: Tables, stores: Sequence[str], progress: ProgressCallback = no_progress) -> Look:
    """Read what every run of a query changes: one Query for each store."""
    read = partial(read_version_lists, last=META)
    return dict(zip(stores, each_store(tables, stores, read, progress).all(), strict=True))


def commits_of(items: Mapping[Key, Item], store: str) -> list[VersionEntry]:
    """The entries of a store's current versions, oldest first; none, if it is corrupt."""
    with suppress(CorruptStateError):
        graph = VersionGraph(store, ((key, item) for key, item in items.items() if key.sort.startswith("list/")))
        if graph.versions():
            return graph.lineage(graph.newest())
    return []


def seconds_to_look(first: Look) -> float:
    """How long to look for another commit: half as long again as the longest time between the last ones."""
    gap_ms = max((longest_gap_ms(commits_of(items, store)) for store, items in first.items()), default=0)
    return min(max(LOOK_MIN_S, 1.5 * gap_ms / 1000), LOOK_MAX_S)


def refuse_written(
    tables: Tables,
    first: Look,
    seconds: float,
    progress: ProgressCallback = no_progress,
    sleep: Callable[[float], None] = runtime.sleep,
    advice: str = _IS_WRITTEN,
) -> None:
    """Refuse if something writes to stores that were looked at, by a second look after some seconds."""
    sleep(seconds)
    second = look(tables, list(first), progress)
    written = [store for store, items in first.items() if second[store] != items]
    if written:
        raise ConfigurationError(
            advice,
            store=written[0],
            stores=len(written),
        )


def drop_stores(tables: Tables, stores: Sequence[str], progress: ProgressCallback = no_progress) -> int:
    """Delete all items of a query's stores but fences, and return how many.

    A query that still runs is refused its next commit, and cannot be restarted from its checkpoint.

    1. Refuse if forks depend on a store. Items that are pinned for deleted forks are unpinned. 2. Mark all stores as
    dropped, several at once, so that no fork is made of what is left. 3. When all are, empty them, several at once.
    4. Delete their meta items, the last first: stores are found from the first on, so a drop that was cut off is
    finished by another. 5. Delete the record of the namespace's runs, if all of it is dropped and no run has begun,
    and what is noted of a fork that was cut off.

    Raises:
        CorruptStateError: a meta item is corrupt, so that the places of the other items are unknown.
        ConfigurationError: forks depend on a store, and nothing was deleted; or a run of the query has begun meanwhile,
            and nothing was deleted of that store.
        UnavailableError: a version list changes again and again.
    """
    refuse_forked(tables, stores)  # 1
    namespaces = sorted({store.split("/")[0] for store in stores})
    records = [read_record(tables, each) for each in namespaces]
    forks = {each: read_fork(tables, each) for each in namespaces}
    found = each_store(tables, stores, _mark_dropped, until_failure=True).all()  # 2
    marked = {store for store, has_meta in zip(stores, found, strict=True) if has_meta}
    there = [store for store in stores if store in marked]
    deleted = sum(each_store(tables, there, _empty, progress, until_failure=True).all())  # 3
    for store in reversed(stores):  # 4
        deleted += (delete_meta if store in marked else _drop_lost)(tables, store)
    deleted += sum(delete_record(tables, record) for record in records if record is not None)  # 5
    return deleted + sum(delete_fork(tables, each, plan) for each, plan in forks.items() if plan is not None)


def refuse_made_meanwhile(tables: Tables, namespace: str) -> None:
    """Refuse a namespace that has stores after it was dropped: a query that runs has made them since they were listed.

    Raises:
        ConfigurationError: there are some; what was listed is deleted.
    """
    if made := find_stores(tables, namespace):
        raise ConfigurationError(
            "a query that runs has made stores of this namespace while the others were deleted: stop it, and drop "
            "again",
            store=next(iter(made)),
            stores=len(made),
        )


def empty_store(tables: Tables, store: str, query: str) -> int:
    """Delete all items of one store of a query except fences and its meta item, for `delete_meta`; return how many.

    Without a meta item nothing is deleted: another command has deleted the store, and a query may be making it again.

    Raises:
        ConfigurationError: another query's run has entered the store meanwhile; and as for `drop_stores`.
        CorruptStateError, UnavailableError: as for `drop_stores`.
    """
    refuse_forked(tables, [store])
    return _empty(tables, store) if _mark_dropped(tables, store, query) else 0


def _mark_dropped(tables: Tables, store: str, query: str | None = None) -> bool:
    """Mark a store as dropped in its meta item, if it is that of the query; whether it has one.

    From then on no fork is made of it, unless a run removes the mark.
    """
    key = meta_key(store)
    if key not in tables.get([key]):
        return False
    meta, parsed = read_meta(tables, store)
    if query not in (None, parsed.query):
        raise _run_has_begun(store)
    if DROPPED in meta or tables.put_over(key, meta | {DROPPED: MARKED}, unchanged({"epochs": meta["epochs"]})):
        return True
    now = meta_or_empty(tables, store)
    refuse_forks(store, now)
    if DROPPED not in now:  # it is there if only the answer was lost
        raise _run_has_begun(store)
    return True


def _run_has_begun(store: str) -> ConfigurationError:
    return ConfigurationError("a run of the query has begun meanwhile; stop the query first", store=store)


def _begin_deleting(tables: Tables, store: str) -> tuple[Item, StoreMeta]:
    """Let no run enter a store that is marked as dropped any more; return its meta item, and its content."""
    found, meta = read_meta(tables, store)
    if DROPPED not in found:
        raise _run_has_begun(store)
    before: Item = {"epochs": found["epochs"], DROPPED: MARKED}
    if found[DROPPED] == MARKED and not tables.put_over(
        meta_key(store), found | {DROPPED: DELETING}, unchanged(before)
    ):
        found, meta = read_meta(tables, store)
        if found.get(DROPPED) != DELETING:  # it is there if only the answer was lost
            raise _run_has_begun(store)
    return found, meta


def _empty(tables: Tables, store: str) -> int:
    """Delete all items of a store that is marked as dropped, but fences and the meta item; return how many.

    1. Let no run enter any more. 2. Refuse the runs that are under way their next commits, and the making of a fork its
    lists. 3. Delete the version lists: from here on nothing can be read. They become fences. The first one keeps the
    newest epoch: a store that is made here later has higher ones. 4. Snapshots. 5. Manifests, buckets, parts, schemas,
    and all objects in the tables' own locations. 6. If it is a fork, unpin what it needed in its origin. A drop that
    was cut off after any step finds the rest again by the meta item.
    """
    found, meta = _begin_deleting(tables, store)  # 1
    runs = set(query_runs(meta))
    lists: list[Key] = []
    if ORIGIN in found:  # what makes it is no run; its lists have the keys of those that it pinned
        runs.add(FORK)
        lists = [Key("snapshot", store_shard(store, 0), sort) for sort in pins_of(found) if sort.startswith("list/")]
    refuse_runs(tables, store, runs, lists)  # 2
    deleted = _delete_lists(tables, store, runs)  # 3
    _keep_epoch(tables, store, meta.epoch)
    deleted += _delete_others(tables, store, meta.shards, meta.objects)  # 4, 5
    unpin(tables, store, found, pins_of(found))  # 6
    return deleted


def _drop_lost(tables: Tables, store: str) -> int:
    """Delete all items of a store without a meta item, wherever its shards may be; its runs are unknown.

    While there are versions no run can enter, so the version lists go last. If it has a meta item by now, a query has
    made it since another drop: it is left.
    """
    if meta_or_empty(tables, store):
        return 0
    locations = _named_locations(tables, store)
    deleted = _delete_others(tables, store, SHARDS_MAX, locations)
    return deleted + _delete_lists(tables, store, ())


def locations_of_others(tables: Tables, stores: Sequence[str]) -> list[str]:
    """The locations of other tables in which these stores have objects, which a drop leaves."""
    found: set[str] = set()
    metas = get_apart(tables, [meta_key(store) for store in stores])
    for store in stores:
        meta = metas.get(meta_key(store))
        found |= parse_meta(store, meta).objects if meta else _named_locations(tables, store)
    return other_locations(tables, found)


def _named_locations(tables: Tables, store: str) -> set[str]:
    """The locations of objects that version lists and manifests name."""
    found: set[str] = set()
    with suppress(CorruptStateError):
        graph = VersionGraph(store, read_version_lists(tables, store).items())
        found |= {entry.objects.location for entry in graph.entries() if entry.objects}
    for _, item in tables.query("snapshot", store_shard(store, 0), *MANIFEST_RANGE):
        with suppress(CorruptStateError):
            raw = item.get("data")
            found |= decode_manifest(store, raw if isinstance(raw, bytes) else b"").locations
    return found


def _delete_lists(tables: Tables, store: str, runs: Collection[str]) -> int:
    """Delete version lists, each with the condition that it is as it was read; return how many went.

    Where runs are refused, also those of a query that was dropped before, each becomes a fence: a commit of theirs may
    be minutes late, and go to any of them.
    """
    lists = read_version_lists(tables, store)
    deleted = 0
    for _ in range(_PASSES_MAX):
        lists = {key: item for key, item in lists.items() if VERSIONS in item}
        if not lists:
            return deleted
        for key, item in lists.items():
            before: Item = {name: item[name] for name in (VERSIONS, REFUSED, FORKS, WRITER) if name in item}
            before_it = item.get(REFUSED, frozenset())  # none: a commit that came late has made the list
            refused = frozenset(runs) | (before_it if isinstance(before_it, frozenset) else frozenset())
            if refused:
                fence = {name: value for name, value in item.items() if name not in (VERSIONS, FORKS, WRITER)}
                tables.put_over(key, fence | {REFUSED: refused}, unchanged(before))
            else:
                deleted += tables.delete_over(key, unchanged(before))
        lists = read_version_lists(tables, store)
    raise UnavailableError("something keeps writing to this store: stop the query, and drop again", store=store)


def _keep_epoch(tables: Tables, store: str, epoch: int) -> None:
    """Note the newest epoch of a store in the fence of its first list, if it has one: if any run was there."""
    key = version_list_key(store, 1)
    for _ in range(_PASSES_MAX):
        fence = tables.get([key]).get(key, {})
        if not fence:
            return
        before: Item = {REFUSED: fence[REFUSED]} if REFUSED in fence else {}
        if before and tables.put_over(key, fence | {DROPPED_EPOCH: epoch}, unchanged(before)):
            return
    raise UnavailableError("something keeps writing to this store: stop the query, and drop again", store=store)


def _delete_others(tables: Tables, store: str, shards: int, locations: Iterable[str]) -> int:
    """Delete snapshots, then everything else but the version lists and the meta item; return how many items went."""
    keys = [
        key
        for role in SPECS
        for shard in range(shards)
        for key in tables.list_keys(role, store_shard(store, shard), "\x00", "\U0010ffff")
        if key != meta_key(store) and not key.sort.startswith("list/")
    ]
    # What is made here next may write the same keys, and these requests may be late.
    shared = get_apart(tables, [key for key in keys if key.sort.startswith(("snapshot/", "schema/"))])
    befores = {key: {name: item[name] for name in _MADE if name in item} for key, item in shared.items()}
    for key in sorted(befores, reverse=True):  # snapshots first
        if befores[key]:
            tables.delete_over(key, unchanged(befores[key]))
    delete_all(tables, [key for key in keys if not befores.get(key)])
    for location in own_locations(tables, locations):
        delete_own_objects(tables, list(tables.objects.names(location, store_prefix(store))))
    return len(keys)


def delete_meta(tables: Tables, store: str) -> int:
    """Delete the meta item of a store that is being dropped, and none that a query has made since; return 1."""
    key = meta_key(store)
    for _ in range(_PASSES_MAX):
        found = meta_or_empty(tables, store)
        if found.get(DROPPED) != DELETING:
            return 1  # only the answer was lost, or another drop was faster
        before: Item = {name: found[name] for name in ("epochs", DROPPED, FORKS) if name in found}
        if tables.delete_over(key, unchanged(before)):
            return 1
    raise UnavailableError("forks of this store begin again and again; drop it again", store=store)
