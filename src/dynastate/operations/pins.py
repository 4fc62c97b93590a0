"""Pins: the marks on items of a store that a fork of it needs (docs/decisions/0010).

A fork lists an item in its meta item before it pins it, and until it has unpinned it. A pin names the fork's store and
a random id, so that a late request for a dropped fork does not affect a later fork of the same name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dynastate.engine.catalog import has_versions, read_version_lists
from dynastate.engine.graphs import find_meta, meta_items, read_manifest, read_metas
from dynastate.engine.opening import retry_routes
from dynastate.engine.updates import remove_from_set
from dynastate.errors import ConfigurationError
from dynastate.format.graph import VersionGraph
from dynastate.format.items import Item
from dynastate.format.keys import META, VERSION_MAX, Key, graph_range, meta_key, store_shard, version_list_key
from dynastate.format.manifest import SnapshotManifest
from dynastate.format.meta import FORKS, ORIGIN, PIN, PINS, StoreMeta, parse_meta
from dynastate.format.snapshot import WRITING
from dynastate.storage.tables import Tables


def pins_on(item: Item) -> list[str]:
    """The pins on an item, in order."""
    pins = item.get(FORKS, frozenset())
    return sorted(pins) if isinstance(pins, frozenset) else []


def forks_of(pins: Iterable[str]) -> list[str]:
    """The stores of the forks that have these pins, in order."""
    return list(dict.fromkeys(pin.partition("#")[0] for pin in sorted(pins)))


def refuse_forked(tables: Tables, stores: Collection[str]) -> None:
    """Refuse if forks depend on one of these stores. Unpin items that are pinned for deleted forks."""
    for store, meta in read_metas(tables, stores).items():
        if meta.forks:
            unpin_dropped(tables, store)
            refuse_forks(store, find_meta(tables, store))


def refuse_forks(store: str, meta: StoreMeta | None) -> None:
    """Refuse if forks depend on the store of this meta item, and name the forks."""
    namespaces = sorted({pin.split("/")[0] for pin in meta.forks}) if meta else []
    if namespaces:
        raise ConfigurationError(f"forks depend on this state: {', '.join(namespaces)}; drop them first", store=store)


def unpin(tables: Tables, store: str, meta: StoreMeta, names: Collection[str]) -> None:
    """Unpin items in the origin of a fork, the meta item last; then remove them from the fork's list of pins.

    After a crash in between they are still listed, so that they are unpinned again.
    """
    for sort in sorted(names, key=lambda sort: (sort == META, sort)):
        key = Key("snapshot", store_shard(meta.origin, 0), sort)
        remove_from_set(tables, key, FORKS, texts=[meta.pin], attributes={})
    if names:
        remove_from_set(tables, meta_key(store), PINS, texts=names, attributes={PIN: meta.pin})


def unpin_unneeded(tables: Tables, store: str) -> None:
    """Unpin the items of its origin that a fork no longer needs. An incomplete fork may need all of them."""
    meta = find_meta(tables, store)
    if meta and meta.pins and is_complete(tables, store, meta.origin_version):
        needed_names = retry_routes(lambda _: _needed(tables, store, meta.pins))  # a clean-up may run meanwhile
        unpin(tables, store, meta, meta.pins - needed_names)


def unpin_dropped(tables: Tables, store: str) -> None:
    """Unpin the items of this store that are pinned for deleted forks, which have no meta items."""
    meta = find_meta(tables, store)
    if not (meta and meta.forks):
        return
    low, high = graph_range(0, VERSION_MAX)
    items = list(tables.query("snapshot", store_shard(store, 0), low, high))
    # The meta items are read after the pins, so that the list of an incomplete fork contains all of its pins.
    forks = dict.fromkeys(fork for _, item in items for fork in forks_of(pins_on(item)))
    fork_items = meta_items(tables, forks)
    sorts_by_pin = {
        item.get(PIN): _listed_pins(fork, item) for fork, item in fork_items.items() if item.get(ORIGIN) == store
    }
    for key, item in sorted(items, key=lambda pair: pair[0].sort == META):
        dropped_pins = [pin for pin in pins_on(item) if key.sort not in sorts_by_pin.get(pin, ())]
        if dropped_pins:
            remove_from_set(tables, key, FORKS, texts=dropped_pins, attributes={})


def _listed_pins(fork: str, item: Item) -> frozenset[str]:
    """The pins that a fork lists. If its meta item is corrupt elsewhere, that does not stop its origin."""
    names = item.get(PINS, frozenset())
    return names if isinstance(names, frozenset) else parse_meta(fork, item).pins


def _needed(tables: Tables, store: str, pins: frozenset[str]) -> set[str]:
    graph = read_graph(tables, store)
    snapshots = graph.done_snapshots()
    return needed_pins(graph, [read_manifest(tables, store, each) for each in snapshots], pins)


def needed_pins(graph: VersionGraph, manifests: Iterable[SnapshotManifest], pins: frozenset[str]) -> set[str]:
    """Sort keys of the items in its origin that a fork still needs, by its version lists and snapshots.

    The fork has pinned `pins`. A snapshot under way may share buckets of a snapshot that is deleted meanwhile.
    """
    names = {version_list_key(graph.store, entry.version).sort for entry in graph.entries() if entry.home}
    is_shared = any(bucket.home for manifest in manifests for bucket in manifest.buckets)
    if is_shared or any(snapshot.stage == WRITING for snapshot in graph.snapshots()):
        names |= {sort for sort in pins if sort.startswith("snapshot/")}
    return names | {META} if names & pins else names


def is_complete(tables: Tables, store: str, version: int) -> bool:
    """Whether a fork has its version, or a later one that the fork's query made."""
    return has_versions(read_version_lists(tables, store, version))


def read_graph(tables: Tables, store: str, allowed: Collection[str] | None = None) -> VersionGraph:
    """The graph of all versions, with all snapshots, or with the `allowed` ones only."""
    low, high = graph_range(0, VERSION_MAX)
    items = tables.query("snapshot", store_shard(store, 0), low, high)
    if allowed is not None:
        items = [each for each in items if each[0].sort in allowed or not each[0].sort.startswith("snapshot/")]
    return VersionGraph(store, items)
