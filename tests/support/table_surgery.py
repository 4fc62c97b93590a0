"""Damage to the stored items of one store, for the checks in the JVM.

python -m tests.support.table_surgery ENDPOINT STORE ACTION, which is oldest, newest, newest-snapshot, format N,
delete-parts or delete-last-bucket
"""

from __future__ import annotations

import sys

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.client import make_client
from dynastate.dynamodb.wire import to_wire
from dynastate.format.graph import VersionGraph
from dynastate.format.items import item_key
from dynastate.format.keys import Key, Role, graph_range, store_shard, version_list_key
from dynastate.settings import Settings


def main(endpoint: str, store: str, action: str, *numbers: str) -> int | None:
    """Do what `action` says; the oldest or newest version, the newest snapshot's (0: none), or a number of items."""
    settings = Settings(endpoint=endpoint, region="us-east-1")
    tables = BotoTables(settings)

    def keys(role: Role, low: str, high: str) -> list[Key]:
        shards = [store_shard(store, number) for number in range(4)]
        return [key for shard in shards for key in tables.list_keys(role, shard, low, high)]

    if action in ("oldest", "newest", "newest-snapshot"):
        graph = VersionGraph(store, tables.query("snapshot", store_shard(store, 0), *graph_range(0, 1000)))
        snapshots = [each.of.version for each in graph.done_snapshots()]
        if action == "newest-snapshot":
            return max(snapshots, default=0)
        return graph.versions()[0] if action == "oldest" else max(graph.versions(), default=0)
    if action == "format":
        make_client(settings).update_item(
            TableName=settings.snapshot_table,
            Key=to_wire(item_key(version_list_key(store, 1))),
            UpdateExpression="SET #f = :f",
            ExpressionAttributeNames={"#f": "format"},
            ExpressionAttributeValues=to_wire({":f": int(numbers[0])}),
        )
        return None
    chosen = keys("delta", "0", "~") if action == "delete-parts" else keys("snapshot", "bucket/", "bucket/~")
    tables.delete(chosen if action == "delete-parts" else [max(chosen, key=lambda key: key.sort)])
    return len(chosen)


if __name__ == "__main__":
    sys.stdout.write(str(main(*sys.argv[1:])))
