"""Summary of a store and list of its versions, without reading its rows.

Each takes one Query, of the store's version lists and manifests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import pairwise
from math import inf
from typing import Any, Final

from dynastate import runtime
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.catalog import by_query, every_store, select_stores
from dynastate.engine.checkpoint import read_checkpoints
from dynastate.engine.namespaces import read_record
from dynastate.errors import ConfigurationError, CorruptStateError, VersionMissingError
from dynastate.format.graph import VersionGraph
from dynastate.format.items import Item
from dynastate.format.keys import MANIFEST_RANGE, STORE_RANGE, Key, check_store, store_shard
from dynastate.format.meta import StoreMeta, meta_lost
from dynastate.format.storage import store_size
from dynastate.format.version_list import VersionEntry
from dynastate.operations.pins import forks_of
from dynastate.operations.scope import each_store
from dynastate.progress import ProgressCallback
from dynastate.storage.tables import Tables
from dynastate.unsaferow.schema import described_families

#: A commit is recent for at least this time, and for three times the longest gap between the last commits of its run.
ACTIVE_MIN_MS: Final = 60_000


@dataclass(frozen=True)
class StoreSummary:
    """Summary of one store. `version` is the newest committed one, or 0; `rows` exclude Spark's internal families.

    `deltas` is the number of versions since the newest snapshot that the version depends on, and `delta_bytes` the
    bytes of their parts, which recovery reads beside that snapshot. `origin` is the store that a fork was made of, and
    `forks` are the stores that depend on this one. Shared items count in `bytes` of the store that contains them.
    `object_bytes` are the bytes in S3. `is_earlier`: the store is of an earlier query of the namespace.
    `committed` is the time of the last commit by its executor's clock, in ISO 8601, UTC. `is_active`: it is recent, so
    that a query may be writing; it counts as recent until `active_until`. The commits of a fork's origin do not count.
    A corrupt store has a `problem`, and nothing else.
    """

    store: str
    version: int = 0
    attempt: str = ""
    rows: int = 0
    bytes: int = 0
    object_bytes: int = 0
    items: int = 0
    oldest: int = 0
    snapshot: int = 0
    deltas: int = 0
    delta_bytes: int = 0
    epoch: int = 0
    checkpoint: str = ""
    created: str = ""
    package: str = ""
    shards: int = 0
    origin: str = ""
    forks: tuple[str, ...] = ()
    is_earlier: bool = False
    committed: str = ""
    is_active: bool = False
    active_until: str = ""
    problem: str = ""
    families: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class CommittedAttempt:
    """One committed attempt at a version. `is_current`: it is the newest version or an ancestor of it."""

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
    committed: str
    """The time by its executor's clock, in ISO 8601, UTC."""


def inspect_lists(tables: Tables, store: str) -> tuple[StoreSummary, list[CommittedAttempt]]:
    """Summarize one store of the current query, and list its committed attempts, the oldest first."""
    graph, items = _read(tables, store)
    return summarize(graph, items), _attempts(graph)


def inspect_store(tables: Tables, store: str) -> StoreSummary:
    """Summarize one store."""
    graph, items = _read(tables, store)
    return summarize(graph, items, is_earlier=store in select_stores(tables, store).earlier)


def summarize(graph: VersionGraph, items: dict[Key, Item], *, is_earlier: bool = False) -> StoreSummary:
    """Summarize a store by its version lists and snapshots, as `read_lists` returns them."""
    meta, stored = graph.required_meta, store_size(graph, items)
    basics = StoreSummary(
        graph.store,
        bytes=stored.bytes,
        object_bytes=stored.object_bytes,
        items=stored.items,
        epoch=meta.epoch,
        checkpoint=meta.location,
        created=meta.created,
        package=meta.package,
        shards=meta.shards,
        origin=meta.origin,
        forks=tuple(forks_of(meta.forks)),
        is_earlier=is_earlier,
    )
    if not graph.versions():
        return basics
    newest = graph.newest()
    lineage = graph.lineage(newest)
    families = families_of(graph.schema(newest), newest)
    base, deltas = graph.route(newest.version, newest.attempt)
    commit = last_commit([entry for entry in lineage if entry.epoch > meta.fork_epoch])
    return replace(
        basics,
        version=newest.version,
        attempt=newest.attempt.hex(),
        rows=rows_of(families),
        oldest=graph.openable(lineage)[0].version,
        snapshot=base.version,
        deltas=len(deltas),
        delta_bytes=sum(each.stored_bytes for each in deltas),
        committed=last_commit(lineage).committed,
        is_active=commit.is_active,
        active_until=commit.until,
        families=tuple(families),
    )


@dataclass(frozen=True)
class LastCommit:
    """The time of a last commit, and the end of the time in which it counts as recent, in ISO 8601, UTC, or empty.

    Both are by its executor's clock, and `is_active` compares them with the clock of this machine: it is a guess.
    """

    committed: str = ""
    until: str = ""
    is_active: bool = False


def last_commit(lineage: Sequence[VersionEntry]) -> LastCommit:
    """The last commit of these versions."""
    if not lineage:
        return LastCommit()
    last_ms = lineage[-1].time_ms
    until_ms = last_ms + max(ACTIVE_MIN_MS, 3 * longest_gap_ms(lineage))
    return LastCommit(iso_time(last_ms), iso_time(until_ms), runtime.now().timestamp() * 1000 <= until_ms)


def longest_gap_ms(commits: Sequence[VersionEntry]) -> int:
    """The longest time between two of the last ten commits of the newest run; pauses between runs do not count."""
    times = [entry.time_ms for entry in commits[-10:] if entry.epoch == commits[-1].epoch]
    return max((second - first for first, second in pairwise(times)), default=0)


def iso_time(time_ms: int) -> str:
    """A time in ISO 8601, UTC, to the second."""
    return datetime.fromtimestamp(time_ms / 1000, timezone.utc).isoformat(timespec="seconds")


def _find(tables: BotoTables, namespace: str) -> Iterable[str]:
    if not namespace:
        return tables.find_stores()
    return every_store(tables, namespace, may_be_empty=bool(read_checkpoints(tables, namespace)))


def inspect_stores(tables: BotoTables, namespace: str, progress: ProgressCallback) -> list[StoreSummary]:
    """The stores of a namespace, or of all namespaces if it is empty, by name; partition 10 comes after partition 9.

    A corrupt store has a `problem`. A store that was dropped, even meanwhile, is left out. Refuse a namespace without
    stores, unless it has a checkpoint: a query without state.
    """
    stores = _find(tables, namespace)
    names = sorted(stores, key=lambda name: [(int(x), "") if x.isdigit() else (inf, x) for x in name.split("/")])
    metas: dict[str, dict[str, StoreMeta]] = {}

    def look(view: BotoTables, name: str) -> tuple[StoreSummary | None, StoreMeta | None]:
        try:
            graph, items = _read(view, name)
            return summarize(graph, items), graph.meta
        except VersionMissingError:
            return None, None
        except CorruptStateError as error:
            error.name_table(tables.names)
            return StoreSummary(name, problem=str(error)), None

    summaries = each_store(tables, names, look, progress, until_failure=True).all()
    for name, (_, meta) in zip(names, summaries, strict=True):
        if meta is not None:
            metas.setdefault(name.split("/")[0], {})[name] = meta
    earlier: set[str] = set()
    problems: dict[str, str] = {}

    def divide(name: str, namespace_metas: dict[str, StoreMeta]) -> None:
        try:
            earlier.update(by_query(namespace_metas, read_record(tables, name)).earlier)
        except CorruptStateError as error:
            error.name_table(tables.names)
            problems.update(dict.fromkeys(namespace_metas, str(error)))
        except ConfigurationError:
            return  # nothing says which of several queries is the current one

    for name, namespace_metas in metas.items():
        divide(name, namespace_metas)
    return [
        replace(each, is_earlier=each.store in earlier, problem=each.problem or problems.get(each.store, ""))
        for each, _ in summaries
        if each is not None
    ]


def list_versions(tables: Tables, store: str) -> list[CommittedAttempt]:
    """List the committed attempts of a store, the oldest first."""
    return _attempts(_read(tables, store)[0])


def _attempts(graph: VersionGraph) -> list[CommittedAttempt]:
    current = set()
    if graph.versions():
        current = {each.id for each in graph.lineage(graph.newest())}
    return [
        CommittedAttempt(
            version=each.version,
            attempt=each.attempt.hex(),
            parent=each.parent.hex(),
            epoch=each.epoch,
            rows=rows_of(families_of(graph.schema(each), each)),
            changes=each.records,
            parts=each.parts,
            bytes=each.stored_bytes,
            has_snapshot=graph.snapshot(each.version, each.attempt) is not None,
            is_current=each.id in current,
            committed=iso_time(each.time_ms),
        )
        for each in graph.entries()
    ]


def read_lists(tables: Tables, store: str) -> tuple[VersionGraph, dict[Key, Item]]:
    """Read everything except parts and buckets, by one Query. Returns no items if there is no store."""
    low, high = STORE_RANGE
    items = dict(tables.query("snapshot", store_shard(check_store(store), 0), low, high))
    # A manifest is parsed together with the snapshot that names it.
    return VersionGraph(store, [each for each in items.items() if each[0].sort < MANIFEST_RANGE[0]]), items


def _read(tables: Tables, store: str) -> tuple[VersionGraph, dict[Key, Item]]:
    graph, items = read_lists(tables, store)
    if graph.is_empty:
        raise nothing_of(tables, store)
    if graph.meta is None:
        raise meta_lost(store)
    return graph, items


def nothing_of(tables: Tables, store: str) -> VersionMissingError:
    """The error for a store without any item."""
    return VersionMissingError(
        "the tables hold nothing of this store; 'dynastate stores' lists those that are there",
        store=store,
        tables=",".join(tables.names.values()),
    )


def families_of(schema: str, entry: VersionEntry) -> list[dict[str, Any]]:
    """The column families of a version: names, rows, and columns with Spark's names of their types."""
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
    """The number of rows, without Spark's internal families."""
    return sum(int(each["rows"]) for each in families if not each["internal"])


def _columns(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": field["name"], "type": field["type"]} for field in schema["fields"]]
