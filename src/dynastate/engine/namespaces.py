"""Entry of query runs into the record of their namespace, in the order in which they begin; and the list of stores.

Conditional writes make the order, so no clock decides which query is the current one.

A store is listed before it is made, and neither a drop nor `clean` deletes anything from a list. So a store with a meta
item is listed, whatever operation was cut off, and however late a request arrives that makes, deletes or lists it. A
listed store need not exist: it is being made, or was dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dynastate.engine.graphs import read_metas
from dynastate.engine.updates import advance_epoch, unchanged
from dynastate.errors import ConfigurationError
from dynastate.format.items import Item, check_format
from dynastate.format.keys import check_store
from dynastate.format.meta import DELETING, QueryRun, StoreMeta
from dynastate.format.namespace import (
    COPY,
    NAMESPACE_RANGE,
    ForkPlan,
    NamespaceRecord,
    fork_key,
    listed_store,
    namespace_item,
    namespace_key,
    parse_fork,
    parse_namespace,
    store_item,
)
from dynastate.settings import PREFIX
from dynastate.storage.tables import Tables

#: Names of stores in Spark: a stream-stream join has four stores a partition, every other operator one.
STORE_NAMES: Final = (
    "default",
    "left-keyToNumValues",
    "left-keyWithIndexToValue",
    "right-keyToNumValues",
    "right-keyWithIndexToValue",
)


@dataclass(frozen=True)
class NamespaceItems:
    """The items of a namespace. `listed` are its stores, by operator and partition."""

    namespace: str
    listed: list[str]
    _record: Item | None

    @property
    def record(self) -> NamespaceRecord | None:
        """The record of the namespace. It is None if no run has entered, as in a new fork."""
        return None if self._record is None else parse_namespace(self.namespace, self._record)

    @property
    def is_copied(self) -> bool:
        """Whether a copy of the namespace to these tables is not complete; also where the record is corrupt."""
        return self._record is not None and COPY in self._record


def read_namespace(tables: Tables, namespace: str) -> NamespaceItems:
    """The record of a namespace and the list of its stores, by one Query."""
    key = namespace_key(namespace)
    low, high = NAMESPACE_RANGE
    items = dict(tables.query("snapshot", key.store_shard, low, high))
    record = items.pop(key, None)
    if record is not None and "format" in record:
        check_format(key, record)
    stores = (listed_store(namespace, store_key, item) for store_key, item in items.items())
    return NamespaceItems(namespace, sorted(stores, key=place_of), record)


def place_of(store: str) -> tuple[int, int, str]:
    """The operator, the partition and the name of a store: stores are sorted by it."""
    _, operator, partition, name = store.split("/")
    return int(operator), int(partition), name


def list_store(tables: Tables, store: str) -> None:
    """List a store, before it is made."""
    key, item = store_item(check_store(store))
    tables.put_new(key, item)


def read_record(tables: Tables, namespace: str) -> NamespaceRecord | None:
    """The record of a namespace. Returns None if no run has entered, as in a new fork."""
    key = namespace_key(namespace)
    item = tables.get([key]).get(key)
    return None if item is None else parse_namespace(namespace, item)


def delete_record(tables: Tables, record: NamespaceRecord) -> int:
    """Delete the record of a namespace without stores, unless a run has entered since; return how many are deleted."""
    if first_stores(tables, record.namespace):
        return 0
    return int(tables.delete_over(namespace_key(record.namespace), unchanged({"epochs": record.epochs})))


def read_fork(tables: Tables, namespace: str) -> ForkPlan | None:
    """The plan of the fork that is being made in a namespace. Returns None if there is none, or it is complete."""
    key = fork_key(namespace)
    item = tables.get([key]).get(key)
    return None if item is None else parse_fork(namespace, item)


def delete_fork(tables: Tables, namespace: str, plan: ForkPlan) -> int:
    """Delete the plan of a fork, unless another fork has begun there since; return how many are deleted."""
    return int(tables.delete_over(fork_key(namespace), unchanged({"id": plan.id})))


def first_stores(tables: Tables, namespace: str) -> dict[str, StoreMeta]:
    """The stores of partition 0 of operator 0, with their meta items: every query has some."""
    return read_metas(tables, [f"{namespace}/0/0/{name}" for name in STORE_NAMES])


def is_entered(tables: Tables, store: str, meta: StoreMeta | None, run: QueryRun) -> bool:
    """Whether a run is in the record of its namespace. If not, enter it, unless another run has entered meanwhile.

    `meta` is None if the run's store is new. Its location is the run's location, or "" in a new fork.
    """
    namespace = store.split("/", maxsplit=1)[0]
    key = namespace_key(namespace)
    record = read_record(tables, namespace)
    if record is not None and record.is_copied:
        raise not_complete(namespace)
    if meta is None and (record is None or record.location != run.location):
        _refuse_used(tables, namespace, run)
    if record is not None and meta is not None and not meta.location:  # another run may be claiming this fork
        refuse_location(store, record.location, run)
    if record is None:
        return tables.put_new(key, namespace_item(namespace, run.id, run.query, run.location))
    if run.id not in record.epochs:
        changes = {**record.with_query(run.query), "location": run.location}
        return advance_epoch(tables, key, run.id, epochs=record.epochs, attributes=changes)
    if record.query != run.query:
        raise ConfigurationError(
            "another query has begun in this namespace since, from the same checkpoint location, so this run is over",
            store=store,
            run=run.id,
            query=run.query,
            newer=record.query,
        )
    return True


def not_complete(namespace: str) -> ConfigurationError:
    """The error for a namespace that a copy is writing."""
    return ConfigurationError(
        f"a copy of this namespace to these tables runs, or was cut off: complete it with the same dynastate copy, or "
        f"delete it with dynastate drop {namespace}",
        namespace=namespace,
    )


def refuse_location(store: str, location: str, run: QueryRun) -> None:
    """Refuse a run whose checkpoint is not at the location of its namespace, which is "" in a new fork."""
    namespace = store.split("/", maxsplit=1)[0]
    if location not in ("", run.location):
        raise ConfigurationError(
            f"this namespace belongs to the query with the checkpoint {location}, and this query has "
            f"{run.location}. For a test on a copy of the checkpoint: dynastate fork {namespace} NEW, and "
            f"{PREFIX}namespace=NEW. If the checkpoint was moved: dynastate adopt {namespace} --checkpoint "
            f"{run.location.removesuffix('/state')}. Another query: give it a namespace of its own, or none",
            store=store,
        )


def refuse_deleting(tables: Tables, store: str, meta: StoreMeta) -> None:
    """Refuse a run of a store that a drop of its namespace deletes, or a clean-up of an earlier query's stores.

    A drop marks all stores before it deletes anything; a clean-up only marks the stores of earlier queries.
    """
    if meta.dropped != DELETING:
        return
    namespace = store.split("/", maxsplit=1)[0]
    if any(not each.dropped and each.query != meta.query for each in first_stores(tables, namespace).values()):
        raise ConfigurationError(
            "this store is of an earlier query, and a clean-up that deletes it runs or was cut off: end that with "
            f"dynastate clean {namespace}",
            store=store,
        )
    raise ConfigurationError(
        f"this namespace is being dropped: end that with dynastate drop {namespace}, or use another one", store=store
    )


def refuse_erasing(store: str, meta: StoreMeta) -> None:
    """Refuse to change a store from which rows are erased."""
    if meta.erasing:
        raise ConfigurationError(
            "rows are erased from this store, or that was cut off: wait, or end it with the same dynastate erase",
            store=store,
        )


def _refuse_used(tables: Tables, namespace: str, run: QueryRun) -> None:
    """Refuse a run from another location than the stores of partition 0, which every query has."""
    for store, meta in first_stores(tables, namespace).items():
        refuse_deleting(tables, store, meta)
        refuse_location(store, meta.location, run)
