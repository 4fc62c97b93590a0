"""Orphans: items of the tables that nothing needs."""

from __future__ import annotations

from typing import Any

from dynastate.dynamodb.wire import from_wire
from dynastate.format.keys import Key, VersionId, manifest_key, versions_of
from dynastate.format.manifest import parse_manifest
from dynastate.format.meta import FORKS
from dynastate.format.snapshot import DONE, parse_snapshot
from dynastate.format.version_list import decode_entry
from tests.simulation.dynamodb import DynamoDB, Place
from tests.simulation.model import Model, short, violation


def check_orphans(model: Model, dynamodb: DynamoDB, shards: int, below: int) -> None:
    """Check that clean-up left no orphans below a version: parts that are not listed, buckets of no snapshot.

    Later versions, made before the query was set back, are cleaned up when the query has passed them, and parts of
    a version list with pins when the fork is dropped.
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
        if sort.startswith("group/")
        for raw in item.get("versions", ())
    ]
    listed = {f"{entry.version:020d}/{entry.attempt.hex()}" for entry in entries}
    held = {
        version
        for (shard, sort), item in snapshot.items()
        if sort.startswith("group/") and FORKS in item
        for version in versions_of(Key("snapshot", shard, sort))
    }
    _check_branches(model, [entry.id for entry in entries if entry.version not in held])
    named = set()
    for (shard, sort), item in snapshot.items():
        if sort.startswith("snapshot/"):
            found = parse_snapshot(Key("snapshot", shard, sort), item)
            if found.stage != DONE and found.version < below:
                raise violation("an unfinished snapshot is left", item=sort, stage=found.stage)
            key = manifest_key(model.store, found.version, found.id)
            named.add((key.store_shard, key.sort))
            if found.stage == DONE:
                kept = parse_manifest(model.store, found, key, snapshot[key.store_shard, key.sort])
                for number in range(len(kept.buckets)):
                    named |= {(each.store_shard, each.sort) for each in kept.keys(model.store, number, shards)}
    unlisted = [sort for _, sort in delta if sort.rpartition("/")[0] not in listed]
    left = [sort for sort in unlisted if int(sort.split("/")[0]) < below and int(sort.split("/")[0]) not in held]
    left += [
        sort
        for shard, sort in snapshot
        if sort.startswith(("bucket/", "directory/")) and (shard, sort) not in named and int(sort.split("/")[1]) < below
    ]
    if left:
        raise violation("orphans are left", count=len(left), first=sorted(left)[:3])


def _check_branches(model: Model, listed: list[VersionId]) -> None:
    """Check that clean-up left no branch that left the driver's chain before the retained versions."""
    if len(set(model.location_of.values())) > 1:
        return  # a branch that another location made may need any other
    oldest = model.newest - max(2, model.retain) + 1
    branches = [version for version in listed if model.chain.get(version[0]) != version]
    dead = [version for version in branches if model.left_chain(version) < oldest - 1]
    if dead:
        raise violation("a branch that the query has left is still listed", versions=" ".join(map(short, dead)))
