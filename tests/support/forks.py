"""Forks of the stores of tests, and what they leave in the tables."""

from __future__ import annotations

from collections.abc import Mapping

from dynastate.engine.catalog import find_stores
from dynastate.engine.engine import Engine
from dynastate.format.items import Item
from dynastate.format.keys import EMPTY, Key, VersionId, store_shard
from dynastate.format.meta import FORKED, FORKS
from dynastate.format.version_list import REFUSED, VERSIONS
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.operations.lifecycle.fork import Forked, fork_namespace
from dynastate.storage.tables import Tables
from tests.support.engine_driver import save_snapshot, write_versions
from tests.support.memory_tables import MemoryTables, without_list
from tests.support.samples import State, attempt, namespace_of, numbers
from tests.support.store_builder import StoreBuilder


def new_of(store: str, name: str = "new") -> str:
    return f"{namespace_of(store)}-{name}" + store.removeprefix(namespace_of(store))


def both(store: str) -> list[str]:
    return [store, store.replace("/0/0/", "/0/1/")]


def fork(tables: Tables, store: str, version: int | None = None, name: str = "new") -> Forked:
    return fork_namespace(tables, namespace_of(store), namespace_of(new_of(store, name)), version)


def drop_fork(tables: Tables, store: str) -> None:
    """Drop what there is of the fork of a store's namespace, as `dynastate drop` does."""
    drop_stores(tables, list(find_stores(tables, namespace_of(new_of(store)))))


def snapshot_of(engine: Engine, store: str, of: VersionId, state: State | None = None, run: str = "run-1") -> None:
    """Make a snapshot of rows that `write_versions` has made, or of others."""
    rows = numbers(of.version) if state is None else state
    save_snapshot(engine, store, of, rows, lambda base: set(numbers(of.version, base + 1)), run=run)


def write_with_snapshots(engine: Engine, store: str, last: int, *snapshots: int) -> list[VersionId]:
    """Commit versions of one row each, and make snapshots of some of them."""
    versions = [EMPTY]
    for number in range(1, last + 1):
        versions += write_versions(engine, store, 1, versions[-1])[1:]
        if number in snapshots:
            snapshot_of(engine, store, versions[-1])
    return versions


def start_over(engine: Engine, store: str, batches: int) -> None:
    """Let another query begin at version 0."""
    builder = StoreBuilder(engine, store, run="run-2", query="other")
    for number in range(batches):
        builder.commit(by=attempt(600 + number))


def pins(tables: Tables, store: str) -> set[str]:
    items = tables.query("snapshot", store_shard(store, 0), "a", "~")
    return {key.sort for key, item in items if FORKS in item}


def without_fences(items: Mapping[Key, Item]) -> dict[Key, Item]:
    """Items but the fences and the lists of stores that a drop leaves."""
    return {key: item for key, item in without_list(items).items() if REFUSED not in item or VERSIONS in item}


def never_forked(items: Mapping[Key, Item]) -> dict[Key, Item]:
    """These without the trace of a fork in the meta items of its origin."""
    return {
        key: {name: value for name, value in item.items() if name != FORKED}
        for key, item in without_fences(items).items()
    }


def is_nowhere(tables: MemoryTables, namespace: str) -> bool:
    return not any(key.store_shard.startswith(f"{namespace}/") for key in without_fences(tables.items)) and not any(
        FORKS in item for item in tables.items.values()
    )
