"""A store that lives long: what snapshots and clean-up make of its recovery, its size and its cost.

    python benchmarks/growth.py
    python benchmarks/growth.py --rows 20000 --versions 200         to try it

1,000 versions of 1,000 random updates on 100,000 rows, of which the last 10 are retained. They are compared with a new
snapshot of the same rows, and with the same changes without any maintenance. Then the same with rows of 300 bytes,
against the layout of one item per key in two tables. Prints the figures, keeps them in build/benchmarks/growth.json,
and exits 1 when a target is missed. See benchmarks/README.md for what each figure means.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
from database import REGION, Database, add_arguments, database
from jvm import CONF, CONTENDERS, OURS, Contender, Figures, build, on, run
from rich.console import Console
from rich.table import Table
from targets import Target, console, finish

from dynastate.dynamodb.wire import from_wire
from dynastate.format.graph import VersionGraph
from dynastate.format.items import Item, item_bytes
from dynastate.format.keys import SPECS, Key, Role, namespace_of
from dynastate.settings import DELTA_TABLE, SNAPSHOT_TABLE
from dynastate.storage.meter import units_of_write

#: Partitions of the checkpoint, as `GrowthBenchmark.scala` numbers them.
STORES = {"maintained": 0, "unmaintained": 1, "fresh": 2}
KEY_BYTES = 40
VALUE_BYTES = 72
#: With the key 312 bytes: the nearest to 300 that the benchmark's rows can have.
LARGE_VALUE_BYTES = 272
#: Versions from one maintenance to the next: Spark's is once a minute.
MAINTAIN_EVERY = 10
#: Versions before those that are counted. A snapshot of what was loaded is made in them.
WARMUP = 2 * MAINTAIN_EVERY


@dataclass(frozen=True)
class Plan:
    """Rows of state, versions, updates in each, versions retained, cold opens, the seed of the updates, the heap.

    `conf` is that of the store that lives long.
    """

    rows: int
    versions: int
    updates: int
    retain: int
    turns: int
    seed: int
    heap: str
    conf: Mapping[str, str]
    value_bytes: int = VALUE_BYTES

    @property
    def own(self) -> dict[str, object]:
        """The arguments of the Scala part."""
        return {
            "rows": self.rows,
            "valueBytes": self.value_bytes,
            "updates": self.updates,
            "warmup": WARMUP,
            "batches": self.versions,
            "seed": self.seed,
            "maintainEvery": MAINTAIN_EVERY,
        }


class Stored:
    """What is in both tables, by store."""

    def __init__(self, database: Database) -> None:
        self._client = boto3.session.Session(
            aws_access_key_id=database.environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=database.environment["AWS_SECRET_ACCESS_KEY"],
            aws_session_token=database.environment.get("AWS_SESSION_TOKEN"),
            region_name=REGION,
        ).client("dynamodb", endpoint_url=database.endpoint)
        self._items = [*self._scan("delta", DELTA_TABLE), *self._scan("snapshot", SNAPSHOT_TABLE)]

    def of(self, store: str) -> list[tuple[Key, Item]]:
        """Every item of a store."""
        return [(key, item) for key, item in self._items if key.store_shard.rsplit("#", 1)[0] == store]

    def _scan(self, role: Role, table: str) -> Iterator[tuple[Key, Item]]:
        names = SPECS[role]
        for page in self._client.get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
            for raw in page["Items"]:
                item = from_wire(raw)
                yield Key(role, str(item[names.hash_key]), str(item[names.range_key])), item


def kind_of(key: Key) -> str:
    return "part" if key.role == "delta" else key.sort.split("/", 1)[0]


def sizes(items: list[tuple[Key, Item]]) -> dict[str, Any]:
    """Number and bytes of items, and both by kind."""
    count, size = Counter[str](), Counter[str]()
    for key, item in items:
        count[kind_of(key)] += 1
        size[kind_of(key)] += item_bytes(item)
    return {"items": count.total(), "bytes": size.total(), "items_by_kind": dict(count), "bytes_by_kind": dict(size)}


def graph_of(store: str, items: list[tuple[Key, Item]]) -> VersionGraph:
    """What the version lists and what lies beside them say; a history knows no item that holds rows."""
    return VersionGraph(
        store, [(key, item) for key, item in items if kind_of(key) in ("list", "meta", "schema", "snapshot")]
    )


def compressed_bytes(store: str, items: list[tuple[Key, Item]], versions: range) -> int:
    """Bytes of the parts' data of these versions, by their version entries, all of which must be there."""
    entries = [entry for entry in graph_of(store, items).entries() if entry.version in versions]
    if [entry.version for entry in entries] != list(versions):
        sys.exit(f"benchmark: of the versions {versions} without maintenance, {len(entries)} are there")
    return sum(entry.stored_bytes for entry in entries)


def per_key_units(store: str, plan: Plan) -> tuple[int, int]:
    """Write units of the same changes where each key is an item, in a delta table and in a snapshot table.

    Returns:
        The units of all puts; and those of the deletes that the delta table needs in the end.
    """
    item: Item = {"store": store, "key": bytes(KEY_BYTES), "value": bytes(plan.value_bytes), "version": plan.versions}
    units = units_of_write(item_bytes(item)) * plan.updates * plan.versions
    return 2 * units, units


def live(plan: Plan, contender: Contender, database: Database, folder: Path, log: str) -> dict[str, Any]:
    """Let the stores of one checkpoint live; what each cost, and what is left of it."""
    conf = {**contender.conf, **plan.conf, "spark.sql.streaming.minBatchesToRetain": str(plan.retain)}
    figures = run("GrowthBenchmark", replace(contender, conf=conf), plan.own, folder=folder, heap=plan.heap, log=log)
    namespace = namespace_of((folder / "state").as_uri())
    stored = Stored(database)
    names = {name: f"{namespace}/0/{partition}/default" for name, partition in STORES.items()}
    items = {name: stored.of(store) for name, store in names.items()}
    figures["stored"] = {name: sizes(its) for name, its in items.items()}
    # Of the fresh one, its snapshot only: the version that led there is not part of it.
    snapshot = [
        (key, item) for key, item in items["fresh"] if kind_of(key) in ("bucket", "snapshot_manifest", "snapshot")
    ]
    figures["stored"]["fresh"] = sizes(snapshot)
    # Where nothing was cleaned up, the version entries say what every version took. The first one was the load.
    counted = range(WARMUP + 2, WARMUP + 2 + plan.versions)
    figures["changed_kb"] = compressed_bytes(names["unmaintained"], items["unmaintained"], counted) / 1024
    graph = graph_of(names["maintained"], items["maintained"])
    figures["versions_left"] = len(graph.versions())
    newest_snapshot = max((snapshot.version for snapshot in graph.snapshots()), default=0)
    figures["versions_since_snapshot"] = figures["version"] - newest_snapshot
    return figures


def recover(plan: Plan, contender: Contender, figures: Figures, folder: Path) -> dict[str, dict[str, float]]:
    """Open each store in fresh processes; medians, ms."""
    out = {}
    for name, partition in STORES.items():
        # The fresh one has all rows in its first version.
        version = 1 if name == "fresh" else figures["version"]
        workload = {**plan.own, "partition": partition, "version": version, "counts": figures["counts"]}
        del workload["maintainEvery"]
        turns = [
            run("ColdOpenBenchmark", contender, workload, folder=folder, heap=plan.heap, log=f"growth-open-{name}")
            for _ in range(plan.turns)
        ]
        out[name] = {key: statistics.median(turn[key] for turn in turns) for key in ("first_get_ms", "every_row_ms")}
    return out


def targets(figures: Figures, recovery: Mapping[str, Mapping[str, float]], large: Figures) -> list[Target]:
    stored = figures["stored"]
    maintained, fresh = stored["maintained"], stored["fresh"]
    units = figures["maintained_dynastateWriteUnits"] + figures["maintained_dynastateMaintenanceWriteUnits"]
    open_ratio = recovery["maintained"]["every_row_ms"] / recovery["fresh"]["every_row_ms"]
    return [
        Target("recovery, every row: after all versions / a fresh snapshot", open_ratio, 2.5),
        Target("stored items: after all versions / a fresh snapshot", maintained["items"] / fresh["items"], 3.5),
        Target("stored bytes: after all versions / a fresh snapshot", maintained["bytes"] / fresh["bytes"], 3.5),
        Target("write units, with snapshots / compressed KB changed", units / figures["changed_kb"], 3),
        Target(
            "write units, with snapshots, 312 B rows: ours / one item per key in two tables",
            (large["maintained_dynastateWriteUnits"] + large["maintained_dynastateMaintenanceWriteUnits"])
            / large["per_key_units"],
            1 / 8,
        ),
    ]


def show_stores(out: Console, plan: Plan, figures: Figures, recovery: Mapping[str, Mapping[str, float]]) -> None:
    out.print(
        f"{plan.versions:,} versions of {plan.updates:,} updates on {plan.rows:,} rows, the last {plan.retain} "
        f"retained, maintenance every {MAINTAIN_EVERY}"
    )
    table = Table("", *STORES)
    for column in table.columns[1:]:
        column.justify = "right"
    for key, text in (("first_get_ms", "first get, ms"), ("every_row_ms", "every row, ms")):
        table.add_row(f"recovery: {text}", *(f"{recovery[name][key]:,.0f}" for name in STORES))
    for key in ("items", "bytes"):
        table.add_row(f"stored {key}", *(f"{figures['stored'][name][key]:,}" for name in STORES))
    for metric, text in (
        ("batch_ms", "batch, ms"),
        ("batch_p95_ms", "batch, 95th percentile, ms"),
        ("maintenance_ms", "maintenance, all of it, ms"),
        ("dynastateWriteUnits", "write units of commits"),
        ("dynastateMaintenanceWriteUnits", "write units of snapshots"),
        ("dynastateDeleteUnits", "write units of deletes"),
        ("dynastateItemsDeleted", "items deleted"),
        ("dynastateMaintenanceReadUnits", "read units of maintenance"),
    ):
        lived = [figures[f"{name}_{metric}"] for name in ("maintained", "unmaintained")]
        table.add_row(text, *(f"{figure:,.0f}" for figure in lived), "")
    out.print(table)
    out.print(
        f"compressed changes: {figures['changed_kb']:,.0f} KB; versions left: {figures['versions_left']}; "
        f"since the last snapshot: {figures['versions_since_snapshot']}, at most {figures['cycle']}"
    )


def show_large(out: Console, plan: Plan, large: Figures) -> None:
    out.print(f"\n{plan.versions:,} versions of {plan.updates:,} updates, rows of {KEY_BYTES + plan.value_bytes} bytes")
    table = Table("write units", "ours", "one item per key, two tables", "ratio")
    for column in table.columns[1:]:
        column.justify = "right"
    commits = large["maintained_dynastateWriteUnits"]
    whole = commits + large["maintained_dynastateMaintenanceWriteUnits"]
    deletes = large["maintained_dynastateDeleteUnits"]
    other, other_deletes = large["per_key_units"], large["per_key_delete_units"]
    for text, ours, theirs in (
        ("commits", commits, other),
        ("with snapshots", whole, other),
        ("with snapshots and deletes", whole + deletes, other + other_deletes),
    ):
        table.add_row(text, f"{ours:,}", f"{theirs:,}", f"{theirs / ours:.1f}")
    out.print(table)
    raw_kb = plan.updates * plan.versions * (KEY_BYTES + plan.value_bytes) / 1024
    out.print(f"compressed to {large['changed_kb'] / raw_kb:.0%} of the rows' bytes")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="keys in the state (default: %(default)s)")
    parser.add_argument("--versions", type=int, default=1000, help="versions after the load (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=1000, help="keys changed in each (default: %(default)s)")
    parser.add_argument("--retain", type=int, default=10, help="versions retained, 2 or more (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="cold opens of each store (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of keys (default: %(default)s)")
    parser.add_argument("--threshold", help="snapshotThreshold (default: the setting's)")
    parser.add_argument("--compression", help="codec (default: the setting's)")
    parser.add_argument("--heap", default="2g", help="of each JVM, least and most (default: %(default)s)")
    add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    build()
    settings = {"snapshotThreshold": options.threshold, "compression": options.compression}
    conf = {f"{CONF}.dynastate.{name}": value for name, value in settings.items() if value is not None}
    names = ("rows", "versions", "updates", "retain", "turns", "seed", "heap")
    plan = Plan(**{name: getattr(options, name) for name in names}, conf=conf)
    large_plan = replace(plan, value_bytes=LARGE_VALUE_BYTES)
    out = console()
    with tempfile.TemporaryDirectory(prefix="dynastate-bench-") as scratch:
        with out.status("small rows"), database(options.endpoint, options.engine) as running:
            contender = on(CONTENDERS[OURS], running)
            small = live(plan, contender, running, Path(scratch) / "small", log="growth-small")
            recovery = recover(plan, contender, small, Path(scratch) / "small")
        with out.status("large rows"), database(options.endpoint, options.engine) as running:
            contender = on(CONTENDERS[OURS], running)
            large = live(large_plan, contender, running, Path(scratch) / "large", log="growth-large")
            large["per_key_units"], large["per_key_delete_units"] = per_key_units("0" * 32 + "/0/0/default", large_plan)
    show_stores(out, plan, small, recovery)
    show_large(out, large_plan, large)
    out.print(f"on {running.engine}")
    judged = targets(small, recovery, large)
    figures = {"engine": running.engine, "small": small | {"recovery": recovery}, "large": large}
    finish(out, "growth", vars(options), figures, judged)


if __name__ == "__main__":
    main()
