"""Orphans: items of the tables that nothing needs."""

from __future__ import annotations

from typing import Any

from dynastate.dynamodb.wire import from_wire
from dynastate.format.keys import Key, VersionId, manifest_key, versions_of
from dynastate.format.manifest import parse_manifest
from dynastate.format.meta import FORKS
from dynastate.format.objects import maker_of_object, store_prefix
from dynastate.format.snapshot import DONE, parse_snapshot
from dynastate.format.version_list import decode_entry
from tests.simulation.dynamodb import DynamoDB, Place
from tests.simulation.model import Model, short, violation
from tests.simulation.s3 import S3


def check_orphans(model: Model, dynamodb: DynamoDB, s3: S3, shards: int, below: int) -> None:
    """Check that clean-up left no orphans below a version: parts that are not listed, buckets of no snapshot.

    And that each object that is named is there.

    Later versions, made before the query was set back, are cleaned up when the query has passed them. Parts and
    unfinished snapshots of a version list with pins are cleaned up when the fork is dropped.
    """
    delta: dict[Place, Any] = {}
    snapshot: dict[Place, Any] = {}
    for name, items in dynamodb.items.items():
        for (shard, sort), item in items.items():
            if shard.startswith(f"{model.store}#"):
                (delta if dynamodb.roles[name] == "delta" else snapshot)[shard, sort] = from_wire(item)
    entries = [
        decode_entry(model.store, raw)
        for (_, sort), item in snapshot.items()
        if sort.startswith("list/")
        for raw in item.get("versions", ())
    ]
    listed = {f"{entry.version:020d}/{entry.part_id.hex()}" for entry in entries}
    fork_versions = {
        version
        for (shard, sort), item in snapshot.items()
        if sort.startswith("list/") and FORKS in item
        for version in versions_of(Key("snapshot", shard, sort))
    }
    _check_branches(model, [entry.id for entry in entries if entry.version not in fork_versions])
    named = set()
    objects = {place for entry in entries if entry.home is None for place in entry.object_ids(model.store)}
    for (shard, sort), item in snapshot.items():
        if sort.startswith("snapshot/"):
            snapshot_read = parse_snapshot(Key("snapshot", shard, sort), item)
            if (
                snapshot_read.stage != DONE
                and snapshot_read.version < below
                and snapshot_read.version not in fork_versions
            ):
                raise violation("an unfinished snapshot is left", item=sort, stage=snapshot_read.stage)
            key = manifest_key(model.store, snapshot_read.version, snapshot_read.id)
            named.add((key.store_shard, key.sort))
            if snapshot_read.stage == DONE:
                manifest = parse_manifest(model.store, snapshot_read, key, snapshot[key.store_shard, key.sort])
                objects |= manifest.objects(model.store)
                for number in range(len(manifest.buckets)):
                    named |= {(each.store_shard, each.sort) for each in manifest.keys(model.store, number, shards)}
    unlisted = [sort for _, sort in delta if sort.rpartition("/")[0] not in listed]
    strays = [
        sort for sort in unlisted if int(sort.split("/")[0]) < below and int(sort.split("/")[0]) not in fork_versions
    ]
    snapshot_places = [(shard, sort) for shard, sort in snapshot if sort.startswith(("bucket/", "snapshot_manifest/"))]
    strays += [
        sort for shard, sort in snapshot_places if (shard, sort) not in named and int(sort.split("/")[1]) < below
    ]
    places = next((item.get("objects", ()) for (_, sort), item in snapshot.items() if sort == "meta"), ())
    # After a drop, a late PUT of the dropped query leaves an object that no query without S3 looks for.
    orphans = _orphan_objects(model, s3, {place.key for place in objects}, below, fork_versions)
    strays += orphans if places or not model.ended else []
    if strays:
        raise violation("orphans are left", count=len(strays), first=sorted(strays)[:3])


def _orphan_objects(model: Model, s3: S3, named: set[str], below: int, fork_versions: set[int]) -> list[str]:
    """The names of objects below a version that nothing names; all that are named must be there."""
    if lost := named - s3.objects.keys():
        raise violation("objects that are named are not there", count=len(lost), first=sorted(lost)[:3])
    ours = [key for key in s3.objects.keys() - named if f"/{store_prefix(model.store)}" in key]
    makers = ((name, maker_of_object(name)) for name in ours)
    return [name for name, maker in makers if maker and maker[0] < below and maker[0] not in fork_versions]


def _check_branches(model: Model, listed: list[VersionId]) -> None:
    """Check that clean-up left no branch that left the driver's chain before the retained versions."""
    if len(set(model.location_of.values())) > 1:
        return  # a branch that another location made may need any other
    oldest = model.newest - max(2, model.retain) + 1
    branches = [version for version in listed if model.chain.get(version[0]) != version]
    dead = [version for version in branches if model.left_chain(version) < oldest - 1]
    if dead:
        raise violation("a branch that the query has left is still listed", versions=" ".join(map(short, dead)))
