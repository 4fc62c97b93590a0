"""Orphans: items of the tables that nothing needs."""

from __future__ import annotations

from typing import Any

from dynastate.dynamodb.wire import from_wire
from dynastate.format.keys import Key, manifest_key, versions_of
from dynastate.format.manifest import parse_manifest
from dynastate.format.meta import FORKS
from dynastate.format.snapshot import DONE, parse_snapshot
from dynastate.format.version_list import decode_entry
from tests.simulation.dynamodb import DynamoDB, Place
from tests.simulation.model import Model, violation


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
    listed = {
        f"{entry.version:020d}/{entry.attempt.hex()}"
        for (_, sort), item in snapshot.items()
        if sort.startswith("group/")
        for raw in item["versions"]
        for entry in [decode_entry(model.store, raw)]
    }
    held = {
        version
        for (shard, sort), item in snapshot.items()
        if sort.startswith("group/") and FORKS in item
        for version in versions_of(Key("snapshot", shard, sort))
    }
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
