"""The items of a namespace: the record of its query runs, and the list of its stores (docs/storage-format.md).

    snapshot-group table   store_shard = {namespace}/#      entry = namespace | fork
                                                            entry = store/{operator}/{partition}/{name}

The record decides which query is the namespace's current one. Clocks do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dynastate.errors import CorruptStateError
from dynastate.format.items import FORMAT, Item, check_format, is_map, item_key, number
from dynastate.format.keys import Key, where

#: The sort key of the item.
NAMESPACE: Final = "namespace"
#: The sort key of the plan of a fork that is being made.
FORK_PLAN: Final = "fork"
#: Lowest and highest sort key of the record and of the list of stores.
NAMESPACE_RANGE: Final = (NAMESPACE, "store/~")
_STORE: Final = re.compile(r"store/(\d+/\d+/[^/#]+)")
#: In a record: the id of an incomplete copy to these tables, beside the mark of a drop. No run enters.
COPY: Final = "copy"
#: The newest queries that it lists.
QUERIES_KEPT: Final = 16


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """The query runs of a namespace.

    `epochs` are the numbers of the newest runs, by run id: a run with a higher number entered later. `queries` are the
    ids of queries, each by the number of its first run in a row. `location` is the checkpoint that may write.
    `is_copied`: a copy of the namespace to these tables is not complete, and no run enters.
    """

    namespace: str
    epochs: Mapping[str, int]
    queries: Mapping[int, str]
    location: str
    is_copied: bool = False

    @property
    def epoch(self) -> int:
        """The number of the newest run."""
        return max(self.epochs.values())

    @property
    def query(self) -> str:
        """The query of the newest run."""
        return self.queries[max(self.queries)]

    def rank(self, query: str) -> int:
        """The number of the newest run with which a query began; 0 if it is not listed, and so the oldest."""
        return max((first for first, each in self.queries.items() if each == query), default=0)

    def with_query(self, query: str) -> Item:
        """The attribute that also lists the query of the next run."""
        listed = dict(self.queries) if query == self.query else {**self.queries, self.epoch + 1: query}
        return {"queries": {str(first): listed[first] for first in sorted(listed)[-QUERIES_KEPT:]}}


@dataclass(frozen=True, slots=True)
class ForkPlan:
    """The plan of a fork: a version of the stores of namespace `origin`, as it was when the fork began.

    `epochs` are the newest epochs at that time, by store without its namespace: later runs are not forked.
    `checkpoint` is the name of the fork's checkpoint in DynamoDB, or empty.
    """

    origin: str
    version: int
    epochs: Mapping[str, int]
    id: str
    checkpoint: str = ""


def fork_key(namespace: str) -> Key:
    return Key("snapshot", f"{namespace}/#", FORK_PLAN)


def fork_item(namespace: str, plan: ForkPlan) -> Item:
    described: Item = {"format": FORMAT, "origin": plan.origin, "version": plan.version, "id": plan.id}
    return item_key(fork_key(namespace)) | described | {"epochs": dict(plan.epochs), "checkpoint": plan.checkpoint}


def parse_fork(namespace: str, item: Item) -> ForkPlan:
    key = fork_key(namespace)
    check_format(key, item)
    origin, version, plan_id, epochs, checkpoint = (
        item.get("origin"),
        number(key, item, "version"),
        item.get("id"),
        item.get("epochs"),
        item.get("checkpoint", ""),
    )
    is_text = all(isinstance(each, str) for each in (origin, plan_id, checkpoint))
    if not is_text or not is_map(epochs, int):
        raise CorruptStateError("the plan of a fork is corrupt", **where(key))
    return ForkPlan(str(origin), version, epochs, id=str(plan_id), checkpoint=str(checkpoint))


def namespace_key(namespace: str) -> Key:
    return Key("snapshot", f"{namespace}/#", NAMESPACE)


def store_key(store: str) -> Key:
    """The key of the item that lists a store."""
    namespace, _, rest = store.partition("/")
    return Key("snapshot", f"{namespace}/#", f"store/{rest}")


def store_item(store: str) -> tuple[Key, Item]:
    """The item that lists a store, with its key."""
    key = store_key(store)
    return key, item_key(key) | {"format": FORMAT}


def listed_store(namespace: str, key: Key, item: Item) -> str:
    """The store that an item lists."""
    check_format(key, item)
    match = _STORE.fullmatch(key.sort)
    if match is None:
        raise CorruptStateError("the list of a namespace's stores has an item that names none", **where(key))
    return f"{namespace}/{match[1]}"


def namespace_item(namespace: str, run: str, query: str, location: str) -> Item:
    """The record of a namespace that its first run makes."""
    described: Item = {"format": FORMAT, "namespace": namespace, "location": location}
    return item_key(namespace_key(namespace)) | described | {"epoch": 1, "epochs": {run: 1}, "queries": {"1": query}}


def parse_namespace(namespace: str, item: Item) -> NamespaceRecord:
    key = namespace_key(namespace)
    check_format(key, item)
    newest, epochs, listed, location = (item.get(name) for name in ("epoch", "epochs", "queries", "location"))
    if (
        item.get("namespace") != namespace
        or not is_map(epochs, int)
        or not is_map(listed, str)
        or not isinstance(location, str)
        or not epochs
        or max(epochs.values()) != number(key, item, "epoch")
        or not listed
        or not all(first.isdecimal() and int(first) <= max(epochs.values()) for first in listed)
    ):
        raise CorruptStateError("the record of the namespace's runs is corrupt", epoch=newest, **where(key))
    queries = {int(first): query for first, query in listed.items()}
    return NamespaceRecord(namespace, epochs, queries=queries, location=location, is_copied=COPY in item)
