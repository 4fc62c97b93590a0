"""The receipt of an erase, for whoever has to show what was erased, and what was not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dynastate.format.keys import Key, Role, VersionId
from dynastate.operations.erase.erase import ErasedStore, ErasePlan
from dynastate.operations.erase.keys import GivenKeys
from dynastate.storage.objects import ObjectVersion

#: What an erase does not reach (docs/erase.md).
NOT_COVERED: Final = (
    "backups of the tables, and point-in-time recovery, which reach up to 35 days back",
    "copies of objects in other buckets, by replication of S3, and backups of the bucket",
    "earlier versions of objects, in a bucket that keeps them, of stores and forks that were dropped before",
    "copies of the state in other tables, by dynastate copy or export",
    "the files of checkpoints: offsets, commits and the metadata of sources",
    "sources, sinks and logs of the query",
    "memory and local disks of processes that have read the state, until they end",
)


@dataclass(frozen=True)
class Receipt:
    """A record of an erase for others. `principal` is the ARN of whoever erased, or empty if AWS does not name it."""

    scope: str
    tables: Mapping[Role, str]
    erased_keys: GivenKeys
    plan: ErasePlan
    stores: Sequence[ErasedStore]
    began: datetime
    ended: datetime
    principal: str
    write_units: int
    read_units: int
    dollars: float

    def to_json(self) -> dict[str, Any]:
        return {
            "scope": self.scope,
            "tables": list(self.tables.values()),
            "keys": self.erased_keys.hashes(),
            "principal": self.principal or None,
            "began": self.began.isoformat(timespec="seconds"),
            "ended": self.ended.isoformat(timespec="seconds"),
            "completes_another": self.plan.is_under_way,
            "rows": sum(store.rows for store in self.stores),
            "stores": [_store(store) for store in self.stores],
            "families_without_the_columns": list(self.plan.families),
            "write_units": self.write_units,
            "read_units": self.read_units,
            "dollars": self.dollars,
            "not_covered": list(NOT_COVERED),
        }


def _store(store: ErasedStore) -> dict[str, Any]:
    return {
        "store": store.store,
        "rows": store.rows,
        "versions_rewritten": list(map(_version, store.versions)),
        "snapshots_rewritten": list(map(_version, store.snapshots)),
        "items_deleted": list(map(_item, store.deleted)),
        "objects_deleted": list(map(_object, store.objects_deleted)),
        "versions_without_the_keys": list(map(_version, store.clean_versions)),
        "snapshots_without_the_keys": list(map(_version, store.clean_snapshots)),
    }


def _version(version: VersionId) -> dict[str, Any]:
    return {"version": version.version, "attempt": version.attempt.hex()}


def _object(version: ObjectVersion) -> str:
    location, name = version.object_id
    return f"{location}/{name}" + (f"?versionId={version.version_id}" if version.version_id else "")


def _item(key: Key) -> dict[str, str]:
    return {"table": key.role, "store_shard": key.store_shard, "item": key.sort}
