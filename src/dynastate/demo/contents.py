"""What the two tables hold of a query, read through the tables themselves, and what its batches cost."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from dynastate import layout
from dynastate.layout import Item, Key, VersionEntry
from dynastate.prices import DEFAULT_PRICES
from dynastate.tables import Meter, Tables

#: All sort keys lie between these.
_FIRST, _LAST = "!", "~"


@dataclass
class Figures:
    """Figures of one query, or of several together."""

    state_rows: int = 0
    stores: int = 0
    versions: int = 0
    made_twice: int = 0
    delta_items: int = 0
    delta_bytes: int = 0
    snapshot_items: int = 0
    snapshot_bytes: int = 0
    batches: int = 0
    requests: int = 0
    write_units: int = 0
    read_units: int = 0

    @property
    def dollars(self) -> float:
        return DEFAULT_PRICES.nanodollars(self.write_units, self.read_units) / 1e9

    def as_json(self) -> dict[str, int | float]:
        return asdict(self) | {"dollars": self.dollars}

    def __add__(self, other: Figures) -> Figures:
        return Figures(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))


def version_entries(tables: Tables, store: str) -> list[VersionEntry]:
    """Everything a store has committed, in the order of its version lists: a version may be there by two attempts."""
    return _entries(store, _items(tables, "snapshot", store, 0))


def figures(tables: Tables, stores: Iterable[str], progress: Path) -> Figures:
    """Add up the stores of one query, and the progress of its batches."""
    found = Figures()
    for store in stores:
        found += _store_figures(tables, store)
    for file in progress.glob("*.json"):
        found.batches += 1
        for operator in json.loads(file.read_text())["stateOperators"]:
            metrics = operator["customMetrics"]
            found.requests += metrics["dynastateRequests"] + metrics["dynastateMaintenanceRequests"]
            found.write_units += metrics["dynastateWriteUnits"] + metrics["dynastateMaintenanceWriteUnits"]
            found.write_units += metrics["dynastateDeleteUnits"]
            found.read_units += metrics["dynastateReadUnits"] + metrics["dynastateMaintenanceReadUnits"]
    return found


def _store_figures(tables: Tables, store: str) -> Figures:
    listed = _items(tables, "snapshot", store, 0)
    shards = int(str(next((item["shards"] for key, item in listed if key.sort == layout.META), 0)))
    parts = [part for shard in range(shards) for part in _items(tables, "delta", store, shard)]
    listed += [item for shard in range(1, shards) for item in _items(tables, "snapshot", store, shard)]
    entries = _entries(store, listed)
    newest = max(entries, key=lambda entry: entry.version, default=None)
    versions = len({entry.version for entry in entries})
    return Figures(
        state_rows=sum(newest.keys.values()) if newest else 0,
        stores=1,
        versions=versions,
        made_twice=len(entries) - versions,
        delta_items=len(parts),
        delta_bytes=_bytes(parts),
        snapshot_items=len(listed),
        snapshot_bytes=_bytes(listed),
    )


def _entries(store: str, items: list[tuple[Key, Item]]) -> list[VersionEntry]:
    lists = [item["versions"] for _, item in items if "versions" in item]
    return [layout.decode_entry(store, raw) for listed in lists if isinstance(listed, list) for raw in listed]


def _items(tables: Tables, role: layout.Role, store: str, shard: int) -> list[tuple[Key, Item]]:
    return tables.query(role, layout.store_shard(store, shard), _FIRST, _LAST, Meter())


def _bytes(items: list[tuple[Key, Item]]) -> int:
    return sum(layout.item_bytes(item) for _, item in items)
