"""Figures of a query: its items in the two tables, and the costs of its batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from dynastate.format.items import Item, item_bytes
from dynastate.format.keys import SPECS, Role, store_shard
from dynastate.operations.inspection.inspect import read_lists
from dynastate.operations.monitoring.reports import usage_of_queries
from dynastate.prices import DEFAULT_PRICES
from dynastate.storage.tables import Tables


def _figure(label: str) -> Any:
    return field(default=0, metadata={"label": label})


@dataclass
class Figures:
    """Figures of one query, or of several together, each with its label in the table that is shown."""

    state_rows: int = _figure("rows of state")
    stores: int = _figure("stores")
    versions: int = _figure("versions")
    made_twice: int = _figure("versions made twice")
    delta_items: int = _figure("delta table: items")
    delta_bytes: int = _figure("delta table: bytes")
    snapshot_items: int = _figure("snapshot-group table: items")
    snapshot_bytes: int = _figure("snapshot-group table: bytes")
    batches: int = _figure("batches")
    requests: int = _figure("requests")
    write_units: int = _figure("write units")
    read_units: int = _figure("read units")

    @property
    def dollars(self) -> float:
        return DEFAULT_PRICES.nanodollars(self.write_units, self.read_units) / 1e9

    def as_json(self) -> dict[str, int | float]:
        return asdict(self) | {"dollars": self.dollars}

    def __add__(self, other: Figures) -> Figures:
        return Figures(**{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)})


def figures(tables: Tables, stores: Iterable[str], progress: Path) -> Figures:
    """Add up the stores of one query, and the progress reports of its batches."""
    total = sum((_store_figures(tables, store) for store in stores), Figures())
    reports = (file.read_text() for file in progress.glob("*.json"))
    (spent,) = usage_of_queries(reports, str(progress), DEFAULT_PRICES)
    return replace(
        total,
        batches=spent.batches,
        requests=spent.requests,
        write_units=spent.write_units + spent.delete_units,
        read_units=spent.read_units,
    )


def _store_figures(tables: Tables, store: str) -> Figures:
    graph, _ = read_lists(tables, store)
    shards = graph.required_meta.shards
    entries = list(graph.entries())
    versions = len({entry.version for entry in entries})
    parts, others = (_items(tables, role, store, shards) for role in SPECS)
    return Figures(
        state_rows=sum(graph.newest().keys.values()),
        stores=1,
        versions=versions,
        made_twice=len(entries) - versions,
        delta_items=len(parts),
        delta_bytes=sum(map(item_bytes, parts)),
        snapshot_items=len(others),
        snapshot_bytes=sum(map(item_bytes, others)),
    )


def _items(tables: Tables, role: Role, store: str, shards: int) -> list[Item]:
    answers = (tables.query(role, store_shard(store, shard), "!", "~") for shard in range(shards))
    return [item for items in answers for _, item in items]
