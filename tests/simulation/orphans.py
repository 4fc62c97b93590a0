"""What lies in the tables and is needed by nobody."""

from __future__ import annotations

from typing import Any

from dynastate import directory, layout
from dynastate.layout import Key
from dynastate.tables import from_wire
from tests.simulation.dynamodb import DynamoDB, Place
from tests.simulation.model import Model, violation


def check_leftovers(model: Model, dynamodb: DynamoDB, shards: int, below: int) -> None:
    """After clean-up: of the versions below one, parts that no list names, and what belongs to no snapshot, are gone.

    Those of versions to come, which were made before the query was set back, are overtaken later; and parts among the
    versions of a list that a fork stands on, when the fork is gone.
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
        for entry in [layout.decode_entry(model.store, raw)]
    }
    held = {
        version
        for (shard, sort), item in snapshot.items()
        if sort.startswith("group/") and layout.FORKS in item
        for version in layout.versions_of(Key("snapshot", shard, sort))
    }
    named = set()
    for (shard, sort), item in snapshot.items():
        if sort.startswith("snapshot/"):
            found = layout.parse_snapshot(Key("snapshot", shard, sort), item)
            if found.stage != layout.DONE and found.version < below:
                raise violation("a snapshot that is none is still there", item=sort, stage=found.stage)
            key = layout.directory_key(model.store, found.version, found.id)
            named.add((key.store_shard, key.sort))
            if found.stage == layout.DONE:
                kept = directory.parse(model.store, found, key, snapshot[key.store_shard, key.sort])
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
        raise violation("items that nobody needs are left", count=len(left), first=sorted(left)[:3])
