"""Storage used by a query, read from the version lists and manifests of its stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from dynastate.engine.catalog import of_namespace
from dynastate.engine.namespaces import place_of
from dynastate.format.graph import VersionGraph
from dynastate.format.items import FORMAT, NOTHING, Item, StorageSize, item_bytes, item_key
from dynastate.format.keys import Key, version_list_key, versions_of
from dynastate.format.snapshot import Snapshot
from dynastate.format.storage import parts_size, store_size
from dynastate.format.version_list import VersionEntry, encode_entry, list_item
from dynastate.operations.inspection.inspect import read_lists
from dynastate.prices import Prices
from dynastate.progress import ProgressCallback, no_progress
from dynastate.storage.meter import units_of_write
from dynastate.storage.tables import Tables


@dataclass(frozen=True)
class StorageUsage:
    """Storage used by one store, or by several together.

    `rows` are those of the newest version. `write_units` and `puts` are what the commits of the listed versions took.
    `records` are the changed rows of `batches`: of the newest version and its ancestors; their bytes are before
    compression (`raw_bytes`) and after it.
    """

    stores: int = 0
    partitions: int = 0
    stored: StorageSize = NOTHING
    rows: int = 0
    versions: int = 0
    write_units: int = 0
    families: int = 0
    batches: int = 0
    records: int = 0
    raw_bytes: int = 0
    record_bytes: int = 0
    snapshot_rows: int = 0
    snapshot_bytes: int = 0
    puts: int = 0

    def __add__(self, other: StorageUsage) -> StorageUsage:
        added = StorageUsage(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))
        return replace(added, families=max(self.families, other.families))

    def as_json(self, prices: Prices) -> dict[str, Any]:
        return {
            "stores": self.stores,
            "rows": self.rows,
            "versions": self.versions,
            **asdict(self.stored),
            "storage_dollars_a_month": prices.dollars_a_month(self.stored),
            "write_units": self.write_units,
            "puts": self.puts,
            "write_dollars": prices.nanodollars(self.write_units, 0, self.puts) / 1e9,
            "workload": self.workload(),
        }

    def workload(self) -> dict[str, Any]:
        """Inputs of the formula of docs/costs.md, by their names there, as far as the tables have them.

        Without a snapshot, rows in one are taken to be as large as changed rows.
        """
        row_bytes = self.record_bytes / max(1, self.records)
        in_snapshots = self.snapshot_bytes / self.snapshot_rows if self.snapshot_rows else row_bytes
        return {
            "stores": self.stores,
            "changed_rows": round(self.records / max(1, self.batches) * self.stores, 1),
            "row_bytes": round(row_bytes, 1),
            "state_rows": self.rows,
            "state_row_bytes": round(in_snapshots, 1),
            "compression": round(self.raw_bytes / max(1, self.record_bytes), 2),
            "families": self.families,
        }


def usage_of_namespace(
    tables: Tables, namespace: str, progress: ProgressCallback = no_progress
) -> dict[int, StorageUsage]:
    """Storage used by a namespace's current query, by operator; `dynastate stores` has those of earlier queries."""
    return usage_of_stores(tables, of_namespace(tables, namespace, refuse_lost=True).current, progress)


def usage_of_stores(
    tables: Tables, stores: Sequence[str], progress: ProgressCallback = no_progress
) -> dict[int, StorageUsage]:
    """Storage used by stores of one query, by operator. Each takes one Query, which is reported to `progress`."""
    usages: dict[str, StorageUsage] = {}
    for number, store in enumerate(stores, 1):
        usages[store] = usage_of_store(tables, store)
        progress(number, len(stores))
    return by_operator(usages)


def by_operator(usages: Mapping[str, StorageUsage]) -> dict[int, StorageUsage]:
    """Storage used by stores of one query, added up by operator."""
    together: dict[int, StorageUsage] = {}
    partitions: dict[int, set[int]] = {}
    for store, usage in usages.items():
        operator, partition, _ = place_of(store)
        together[operator] = together.get(operator, StorageUsage()) + usage
        partitions.setdefault(operator, set()).add(partition)
    return {operator: replace(each, partitions=len(partitions[operator])) for operator, each in together.items()}


def usage_of_store(tables: Tables, store: str) -> StorageUsage:
    """Storage used by one store, by one Query: version lists and manifests count their parts and buckets."""
    graph, items = read_lists(tables, store)
    return usage_of_lists(graph, items)


def usage_of_lists(graph: VersionGraph, items: Mapping[Key, Item]) -> StorageUsage:
    """Storage used by one store, by its version lists and manifests as one Query returned them."""
    store = graph.store
    entries = list(graph.entries())
    current = graph.lineage(graph.newest()) if entries else []
    keys = current[-1].keys if current else {}
    snapshot = newest_snapshot(graph)
    return StorageUsage(
        stores=1,
        stored=store_size(graph, items),
        rows=sum(keys.values()),
        versions=len(entries),
        write_units=sum(part_units(store, entry) for entry in entries)
        + sum(_list_units(key, [raw for raw, _ in listed]) for key, listed in graph.lists.items()),
        families=len(keys),
        batches=len(current),
        records=sum(entry.records for entry in current),
        raw_bytes=sum(entry.raw_bytes for entry in current),
        record_bytes=sum(entry.stored_bytes for entry in current),
        snapshot_rows=snapshot.records if snapshot else 0,
        snapshot_bytes=snapshot.stored_bytes if snapshot else 0,
        puts=sum(part_puts(store, entry) for entry in entries),
    )


def newest_snapshot(graph: VersionGraph) -> Snapshot | None:
    """The newest snapshot that is done, of the newest version and its ancestors."""
    snapshots = {each.of: each for each in graph.done_snapshots()}
    path = graph.ancestors(graph.newest()) if graph.versions() else ()
    return next((snapshots[of] for entry in path for of in (entry.id, entry.parent_id) if of in snapshots), None)


def commit_units(store: str, entry: VersionEntry) -> int:
    """Approximate write units of the commit of a version, for its parts and for the version list with its entry.

    The entries before it in the list are taken to be as long.
    """
    key = version_list_key(store, entry.version)
    entries = [encode_entry(store, entry)] * (entry.version + 1 - max(1, versions_of(key).start))
    return part_units(store, entry) + units_of_write(item_bytes(list_item(key, entries)))


def part_units(store: str, entry: VersionEntry) -> int:
    """Approximate write units of the parts of a version."""
    size = parts_size(store, [entry])
    return size.items * units_of_write(size.bytes // size.items) if size.items else 0


def part_puts(store: str, entry: VersionEntry) -> int:
    """PUT requests of the objects with parts of a version. A fork has none, because its origin has sent them."""
    return 0 if entry.home else len(entry.object_ids(store))


def _list_units(key: Key, entries: list[bytes]) -> int:
    """Write units of the appends to a version list: each takes the units of the whole list."""
    item: Item = item_key(key) | {"format": FORMAT}
    lengths = range(1, len(entries) + 1)
    return sum(units_of_write(item_bytes(item | {"versions": entries[:length]})) for length in lengths)
