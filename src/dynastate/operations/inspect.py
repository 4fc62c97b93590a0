"""What the tables say of stores without reading their rows: versions, rows, bytes, snapshots, runs.

It takes a Query for each store, of its version lists and directories.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dynastate import layout
from dynastate.errors import VersionMissingError
from dynastate.forks import forks_of
from dynastate.layout import History, VersionEntry
from dynastate.stored import of_store
from dynastate.tables import Meter, Tables
from dynastate.unsafe_row import described_families


@dataclass(frozen=True)
class Overview:
    """One store. `version` is the newest that is committed, 0: none yet; `rows` do not count Spark's own bookkeeping.

    `deltas` are the versions since the newest snapshot that the version stands on, and `delta_bytes` their parts'
    bytes: what recovery reads beside that snapshot. `origin` is the store that a fork was made of, `forks` are those
    that stand on this one; what is shared counts in `bytes` of the store in which it lies.
    """

    store: str
    version: int
    attempt: str
    rows: int
    bytes: int
    items: int
    oldest: int
    snapshot: int
    deltas: int
    delta_bytes: int
    epoch: int
    checkpoint: str
    created: str
    package: str
    shards: int
    origin: str
    forks: tuple[str, ...]
    families: tuple[dict[str, Any], ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Listed:
    """One committed attempt at a version. `is_current`: the newest version stands on it, or is it."""

    version: int
    attempt: str
    parent: str
    epoch: int
    rows: int
    changes: int
    parts: int
    bytes: int
    has_snapshot: bool
    is_current: bool

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def overview(tables: Tables, store: str, meter: Meter) -> Overview:
    """One store.

    Raises:
        VersionMissingError: the tables hold nothing of it.
        CorruptStateError: an item is lost or broken.
    """
    history, items = _read(tables, store, meter)
    stored = of_store(history, items)
    meta = history.meta or {}
    newest = history.newest() if history.versions() else None
    chain = history.openable(history.lineage(newest)) if newest else []
    families = families_of(history.schema(newest), newest) if newest else []
    base, deltas = history.chain(newest.version, newest.attempt, ()) if newest else (layout.EMPTY, [])
    return Overview(
        store=store,
        version=newest.version if newest else 0,
        attempt=newest.attempt.hex() if newest else "",
        rows=rows_of(families),
        bytes=stored.bytes,
        items=stored.items,
        oldest=chain[0].version if chain else 0,
        snapshot=base[0],
        deltas=len(deltas),
        delta_bytes=sum(each.stored_bytes for each in deltas),
        epoch=int(str(meta.get("epoch", 0))),
        checkpoint=str(meta.get("checkpoint", "")),
        created=str(meta.get("created", "")),
        package=str(meta.get("package", "")),
        shards=int(str(meta.get("shards", 0))),
        origin=str(meta.get(layout.ORIGIN, "")),
        forks=tuple(forks_of(meta)),
        families=tuple(families),
    )


def versions(tables: Tables, store: str, meter: Meter) -> list[Listed]:
    """Every committed attempt of a store that is listed, oldest first.

    Raises:
        VersionMissingError: the tables hold nothing of it.
        CorruptStateError: an item is lost or broken.
    """
    history, _ = _read(tables, store, meter)
    current = set()
    if history.versions():
        current = {(each.version, each.attempt) for each in history.lineage(history.newest())}
    return [
        Listed(
            version=each.version,
            attempt=each.attempt.hex(),
            parent=each.parent.hex(),
            epoch=each.epoch,
            rows=rows_of(families_of(history.schema(each), each)),
            changes=each.records,
            parts=each.parts,
            bytes=each.stored_bytes,
            has_snapshot=history.snapshot(each.version, each.attempt) is not None,
            is_current=(each.version, each.attempt) in current,
        )
        for each in history.entries()
    ]


def read_lists(tables: Tables, store: str, meter: Meter) -> tuple[History, dict[layout.Key, layout.Item]]:
    """Everything but parts and buckets, by one Query; no items where there is no store."""
    found = tables.query("snapshot", layout.store_shard(layout.check_store(store), 0), "directory/", "~", meter)
    # A history takes a store's descriptions only; a directory is read with the snapshot that names it.
    return History(store, [(key, item) for key, item in found if not key.sort.startswith("directory/")]), dict(found)


def _read(tables: Tables, store: str, meter: Meter) -> tuple[History, dict[layout.Key, layout.Item]]:
    history, items = read_lists(tables, store, meter)
    if not items:
        raise VersionMissingError(
            "the tables hold nothing of this store; 'dynastate stores' lists those that are there",
            store=store,
            tables=",".join(tables.names.values()),
        )
    return history, items


def families_of(schema: str, entry: VersionEntry) -> list[dict[str, Any]]:
    """The column families of a version: names, rows, and columns by Spark's names of their types.

    Raises:
        CorruptStateError: it is no schema of column families.
    """
    return [
        {
            "name": each["name"],
            "internal": each["internal"],
            "rows": entry.keys.get(each["id"], 0),
            "lists": each["multiple"],
            "key": _columns(each["key"]),
            "value": _columns(each["value"]),
        }
        for each in described_families(schema)
    ]


def rows_of(families: list[dict[str, Any]]) -> int:
    """Rows, Spark's own bookkeeping aside."""
    return sum(int(each["rows"]) for each in families if not each["internal"])


def _columns(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": field["name"], "type": field["type"]} for field in schema["fields"]]
