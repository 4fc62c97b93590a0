"""The items that describe snapshots (docs/storage-format.md)."""

from __future__ import annotations

from dataclasses import dataclass

from dynastate.errors import CorruptStateError
from dynastate.format.items import FORMAT, Item, check_format, item_key, number, other_format
from dynastate.format.keys import Attempt, Key, SnapshotId, VersionId, maker_of_snapshot, snapshot_key, where
from dynastate.format.meta import FORKS

#: Stages of a snapshot: its buckets are written, it can be read, clean-up deletes it.
WRITING, DONE, DELETING = "writing", "done", "deleting"


@dataclass(frozen=True, slots=True)
class SnapshotName:
    """The name of a snapshot: its version, the attempt that made the version, and an id of its own."""

    version: int
    attempt: Attempt
    id: Attempt

    @property
    def of(self) -> VersionId:
        return VersionId(self.version, self.attempt)

    @property
    def holder(self) -> SnapshotId:
        """Its name as the writer of buckets."""
        return SnapshotId(self.version, self.id)


@dataclass(frozen=True, slots=True)
class Snapshot(SnapshotName):
    """A snapshot of the version that an attempt made, by the run of an epoch.

    Records and sizes in bytes are of all its buckets, `object_bytes` of its buckets in objects. While it `is_pinned`, a
    fork depends on it.
    """

    epoch: int
    stage: str
    digest: bytes = b""
    records: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    object_bytes: int = 0
    is_pinned: bool = False


def snapshot_item(store: str, snapshot: Snapshot) -> Item:
    objects: Item = {"object_bytes": snapshot.object_bytes} if snapshot.object_bytes else {}
    return (
        objects
        | item_key(snapshot_key(store, snapshot.version, snapshot.attempt))
        | {
            "format": FORMAT,
            "id": bytes(snapshot.id),
            "epoch": snapshot.epoch,
            "stage": snapshot.stage,
            "digest": snapshot.digest,
            "records": snapshot.records,
            "raw_bytes": snapshot.raw_bytes,
            "stored_bytes": snapshot.stored_bytes,
        }
    )


def parse_snapshot(key: Key, item: Item) -> Snapshot:
    check_format(key, item)
    version_id = maker_of_snapshot(key)
    if version_id is None:
        raise unknown_item(key, item)
    snapshot_id, digest, stage = item.get("id"), item.get("digest"), item.get("stage")
    if not (
        isinstance(snapshot_id, bytes)
        and len(snapshot_id) == 16
        and isinstance(digest, bytes)
        and isinstance(stage, str)
    ):
        raise CorruptStateError("snapshot item has no id, no digest or no stage", **where(key))
    if stage not in (WRITING, DONE, DELETING):
        raise CorruptStateError("snapshot item has an unknown stage", **where(key))
    return Snapshot(
        version_id.version,
        version_id.attempt,
        Attempt(snapshot_id),
        epoch=number(key, item, "epoch"),
        stage=stage,
        digest=digest,
        records=number(key, item, "records"),
        raw_bytes=number(key, item, "raw_bytes"),
        stored_bytes=number(key, item, "stored_bytes"),
        object_bytes=number(key, item, "object_bytes") if "object_bytes" in item else 0,
        is_pinned=FORKS in item,
    )


def unknown_item(key: Key, item: Item) -> CorruptStateError:
    """The error of an unknown item: it names the other format of the item, if it has one."""
    form = item.get("format")
    if isinstance(form, int) and form != FORMAT:
        return CorruptStateError(other_format("item", form), **where(key))
    return CorruptStateError(
        "an item that this package does not know is among a store's own: a newer package wrote it, or something "
        "else; upgrade dynastate, or remove it",
        **where(key),
    )
