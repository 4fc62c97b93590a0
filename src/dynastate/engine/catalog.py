"""Stores in the tables, the names that users give them, and the query that each belongs to.

A store is `namespace/operator/partition/name`. Users may also mean a store of each partition:
`namespace/operator/*/name`, or `namespace/operator`, where the operator has stores of one name only.

A checkpoint that is deleted and started again at the same path is another query. Stores that only the query before it
had remain: partitions, where the new one has fewer, operators, and names. Its own are those with its id in their meta
items. The current query is the one whose run entered the namespace last, of those with a store of partition 0: each
query has operator 0, and writes to all partitions. The record of the namespace has the order. No clock decides.
Everybody who reads or maintains state takes the stores of the current query from here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from dynastate.engine.namespaces import (
    STORE_NAMES,
    NamespaceItems,
    not_complete,
    place_of,
    read_namespace,
    read_record,
)
from dynastate.errors import ConfigurationError, CorruptStateError, VersionMissingError
from dynastate.format.graph import VersionGraph
from dynastate.format.items import Item
from dynastate.format.keys import META, Key, check_store, lists_from, meta_key, store_shard, where
from dynastate.format.meta import StoreMeta, meta_lost, parse_meta, query_runs
from dynastate.format.namespace import NamespaceRecord, namespace_key, store_key
from dynastate.format.version_list import VERSIONS
from dynastate.storage.tables import Tables, get_apart

EVERY: Final = "*"
#: Stores that a message names.
SHOWN_MAX: Final = 4
_NAME: Final = re.compile(rf"([^/#]+)(?:/(\d+)(?:/(\d+|\{EVERY})(?:/([^/#]+))?)?)?")

Found = TypeVar("Found", list[str], dict[str, Item])


@dataclass(frozen=True)
class QueryStores:
    """Stores by the query that they belong to: the current one of their namespace, or earlier ones.

    `beginning` are those of a later query, which has none of partition 0 yet, or of the first one. `continued` are the
    earlier ones whose versions the current query may need: it has made some, or resumed from a query that has.
    """

    current: list[str]
    earlier: list[str]
    beginning: list[str] = field(default_factory=list)
    continued: list[str] = field(default_factory=list)


def by_query(
    items: Mapping[str, Item], record: NamespaceRecord | None, starts: Mapping[str, Item] | None = None
) -> QueryStores:
    """Stores by the query that they belong to, by their meta items and the record of their namespace.

    `starts` are the stores to choose the current query from; if there is none of partition 0 among them, all stores are
    the current query's. By default they are all stores; if there is none of partition 0 among these, all are beginning.

    Raises:
        ConfigurationError: they are of several queries, and the record is lost.
    """
    metas = {store: parse_meta(store, item) for store, item in items.items()}
    first = metas if starts is None else {store: parse_meta(store, item) for store, item in starts.items()}
    begun = {store: meta for store, meta in first.items() if store.split("/")[2:3] == ["0"]}
    if not begun:
        return QueryStores([], [], list(metas)) if starts is None else QueryStores(list(metas), [])
    query = _current(begun, record)
    rank = record.rank(query) if record is not None else 0
    later = {store for store, meta in metas.items() if record is not None and record.rank(meta.query) > rank}
    earlier = [store for store, meta in metas.items() if meta.query != query and store not in later]
    of_query = [meta for meta in [*begun.values(), *metas.values()] if meta.query == query]
    queries = set[str]().union(*(meta.own_queries for meta in of_query))
    return QueryStores(
        [store for store, meta in metas.items() if meta.query == query],
        earlier,
        [store for store in metas if store in later],
        [store for store in earlier if queries & {*metas[store].queries.values()}],
    )


def queries_of(
    tables: Tables,
    namespace_items: NamespaceItems,
    items: Mapping[str, Item],
    starts: Mapping[str, Item] | None = None,
) -> QueryStores:
    """As `by_query`, for meta items that were read after the record.

    A run enters the record before any store. So where a store has been entered by a run that the record does not list,
    it is read again: a query that has begun meanwhile is never taken for an earlier one.

    Raises:
        ConfigurationError: a copy of the namespace to these tables is not complete; and as for `by_query`.
    """
    if namespace_items.is_copied:
        raise not_complete(namespace_items.namespace)
    metas = [parse_meta(store, item) for store, item in {**items, **(starts or {})}.items()]
    record = namespace_items.record
    if any(query_runs(meta) and not (record and meta.last_run in record.epochs) for meta in metas):
        record = read_record(tables, namespace_items.namespace)
    return by_query(items, record, starts)


def _current(begun: Mapping[str, StoreMeta], record: NamespaceRecord | None) -> str:
    """The query of the run that entered last, of those that have these stores of partition 0."""
    ranks = {meta.query: record.rank(meta.query) if record is not None else 0 for meta in begun.values()}
    last = [query for query, rank in ranks.items() if rank == max(ranks.values())]
    if len(last) == 1:
        return last[0]
    raise ConfigurationError(
        "this namespace has stores of several queries, and the record of which of them came last is lost: start the "
        "query that is to stay, whose first batch records it, or name stores in full to read them",
        **where(namespace_key(next(iter(begun)).split("/")[0])),
        queries=",".join(sorted(last)),
    )


def meant(tables: Tables, pattern: str) -> QueryStores:
    """The stores that a user means, by partition; there may be none. Refuse a name of another form."""
    namespace, operator, partition, name = _parse(pattern)
    namespace_items = read_namespace(tables, namespace)
    wanted = [store for store in namespace_items.listed if _is_meant(store, operator, partition, name)]
    first = [f"{namespace}/{each}/0/" for each in {0, operator}]
    begun = [store for store in namespace_items.listed if store.startswith(tuple(first))]
    items = _metas(tables, dict.fromkeys((*begun, *wanted)))
    found, starts = ({store: items[store] for store in of if store in items} for of in (wanted, begun))
    if partition in ("", EVERY):
        _refuse_lost(tables, namespace_items, found)
    return queries_of(tables, namespace_items, found, starts)


def _is_meant(store: str, operator: int, partition: str, name: str) -> bool:
    _, own_operator, own_partition, own_name = store.split("/")
    return int(own_operator) == operator and partition in ("", EVERY, own_partition) and name in ("", own_name)


def matching(tables: Tables, pattern: str) -> list[str]:
    """The stores of the current query that a user means, by partition; there is at least one.

    A store that is named in full may be an earlier query's, and need not be there.

    Raises:
        ConfigurationError: the name has another form, there is none, or the operator has stores of several names.
        VersionMissingError: some partitions have none yet.
    """
    return [store] if (store := _in_full(pattern)) else _complete(tables, pattern, meant(tables, pattern))


def _complete(tables: Tables, pattern: str, stores: QueryStores) -> list[str]:
    """The current ones of the stores that a user means. Refuse none, several names, and missing partitions."""
    namespace, operator, _, name = _parse(pattern)
    names = _names(stores.current, operator)
    if len(names) > 1:
        spelt = ", ".join(f"{namespace}/{operator}/{EVERY}/{each}" for each in names)
        raise ConfigurationError(f"this operator has several stores a partition; say which: {spelt}")
    if not stores.current:
        if name and (others := _names(meant(tables, f"{namespace}/{operator}").current, operator)):
            raise ConfigurationError(f"no store of this operator has this name; it has {', '.join(others)}")
        if stores.earlier:
            raise ConfigurationError(
                "these stores are of an earlier query, whose checkpoint was deleted; the current query of the "
                "namespace has none of them. Name one in full to read it; 'dynastate clean' deletes them",
                stores=pattern,
            )
        raise ConfigurationError(
            "no store of this operator is in the tables; a store's name is in the file 'dynastate' in the folder of "
            "each partition in the checkpoint's state",
            namespace=namespace,
            operator=operator,
            tables=",".join(tables.names.values()),
        )
    _refuse_missing(stores)
    _refuse_first_batch(tables, stores, stores.continued, lambda: meant(tables, pattern))
    return stores.current


def _refuse_lost(tables: Tables, namespace_items: NamespaceItems, found: Collection[str]) -> None:
    """Refuse stores if the partition after the last of an operator has versions: its meta item is lost.

    `found` are those of a namespace, or of an operator, that have one. A Query is sent where that partition is listed:
    it is being begun, or was dropped.

    Raises:
        CorruptStateError: it is lost.
        VersionMissingError: the partition was begun after the meta items were read.
    """
    partitions: dict[tuple[int, str], int] = {}
    for store in found:
        _, operator, partition, name = store.split("/", 3)
        place = int(operator), name
        partitions[place] = max(int(partition) + 1, partitions.get(place, 0))
    following = {_store(namespace_items.namespace, place[0], number, place[1]) for place, number in partitions.items()}
    for store in sorted(following.intersection(namespace_items.listed)):
        if _is_lost(tables, store):
            raise _first_batch_open(store) if _metas(tables, [store]) else meta_lost(store)


def _refuse_missing(stores: QueryStores) -> None:
    """Refuse a query if an operator has other partitions than 0, 1, …, or names without some of them.

    A store in which a later query begins may have been the current one's, or is of a partition that it lacks.

    Raises:
        VersionMissingError: the first batch is not whole, of the query or of the next one.
    """
    operators: dict[str, dict[str, set[int]]] = {}
    for store in stores.current:
        namespace, operator, partition, name = store.split("/", 3)
        operators.setdefault(f"{namespace}/{operator}", {}).setdefault(name, set()).add(int(partition))
    begun = {"/".join(store.split("/")[:2]) for store in stores.beginning}
    for operator, names in operators.items():
        wanted = set(range(1 + max(map(max, names.values()))))
        for name, partitions in names.items():
            if partitions != wanted or operator in begun:
                raise _first_batch_open(f"{operator}/{EVERY}/{name}")


def _refuse_first_batch(
    tables: Tables, stores: QueryStores, earlier: Sequence[str], look: Callable[[], QueryStores]
) -> None:
    """Refuse a query whose first batch may not be over: in it, it may take over these stores of `earlier` queries.

    If it is over, `look` must find the same stores again, since some may have been taken over after the first time.
    """
    if earlier and not (is_first_batch_over(tables, stores.current[0]) and look() == stores):
        raise _first_batch_open(earlier[0])


def is_first_batch_over(tables: Tables, store: str) -> bool:
    """Whether the first batch of a namespace's current query, which has this store, is known to be over.

    It is, if a run of the query has made the version below the newest one, since the query last began there: only then
    have all partitions committed that version, each by a run that entered its store after those of other queries.
    """
    graph = VersionGraph(store, read_version_lists(tables, store, last=META).items())
    record = read_record(tables, store.split("/", maxsplit=1)[0])
    if graph.meta is None or not graph.versions():
        return False
    newest = graph.newest()
    base = graph.entry(*newest.parent_id)
    if base is None or record is None:
        return False
    since = {run for run, number in record.epochs.items() if number >= record.rank(graph.meta.query)}
    return base.epoch in {epoch for run, epoch in graph.meta.epochs.items() if run in since}


def _first_batch_open(store: str) -> VersionMissingError:
    return VersionMissingError(
        "the first batch is not committed in all partitions of this operator yet; try again when it is", store=store
    )


def only(tables: Tables, pattern: str) -> str:
    """The one store that a user means.

    Raises:
        ConfigurationError: as for `matching`; or there are several, of which the message names some in full.
        VersionMissingError: some partitions have none yet.
    """
    if store := _in_full(pattern):
        return store
    stores = meant(tables, pattern)
    if len(found := stores.current) > 1:
        more = ", …" if len(found) > SHOWN_MAX else ""
        raise ConfigurationError(
            f"this takes one store, and the operator has {len(found):,}: {', '.join(found[:SHOWN_MAX])}{more}"
        )
    return _complete(tables, pattern, stores)[0]


def of_namespace(tables: Tables, namespace: str, *, refuse_lost: bool = False) -> QueryStores:
    """The stores of a namespace, by operator. Refuse a namespace without any.

    `refuse_lost`: also one in which a store has lost its meta item, for who would count the others as all.
    """
    namespace_items = read_namespace(tables, namespace)
    if refuse_lost:
        metas, lost = with_lost(tables, namespace_items)
        if lost:
            raise meta_lost(lost[0])
    else:
        metas = stores_in_list(tables, namespace_items)
    stores = queries_of(tables, namespace_items, metas)
    some(stores.current, namespace)
    return stores


def whole_namespace(tables: Tables, namespace: str) -> list[str]:
    """The stores of the current query of a namespace, by operator. Refuse a namespace without any.

    Raises:
        VersionMissingError: some partitions have none yet, or may have none while there are stores of earlier queries.
        CorruptStateError: the last partition of an operator has lost its meta item, or the list has lost a store.
    """

    def look() -> QueryStores:
        namespace_items = read_namespace(tables, namespace)
        metas = stores_in_list(tables, namespace_items)
        _refuse_lost(tables, namespace_items, metas)
        if unlisted := find_unlisted(tables, namespace_items):
            key = store_key(unlisted[0])
            raise CorruptStateError("the list of stores has lost this item: put it again", **where(key))
        return queries_of(tables, namespace_items, metas)

    stores = look()
    some(stores.current, namespace)
    _refuse_missing(stores)
    _refuse_first_batch(tables, stores, stores.earlier, look)
    return stores.current


def every_store(tables: Tables, namespace: str) -> list[str]:
    """The stores of a namespace, of whichever query, by operator; last those that `with_lost` returns as lost.

    Raises:
        ConfigurationError: it has none.
    """
    metas, lost = with_lost(tables, read_namespace(tables, namespace))
    return some([*metas, *lost], namespace)


def with_lost(tables: Tables, namespace_items: NamespaceItems) -> tuple[dict[str, Item], list[str]]:
    """The stores of a namespace with their meta items, and those that have lost theirs; also `find_unlisted` ones.

    A store that is begun meanwhile has its meta item before any version, so that is looked for again.
    """
    metas = stores_in_list(tables, namespace_items)
    unlisted = find_unlisted(tables, namespace_items)
    lost = [*find_lost(tables, namespace_items, metas), *unlisted]
    begun = _metas(tables, lost)
    return metas | begun, [store for store in lost if store not in begun]


def find_unlisted(tables: Tables, namespace_items: NamespaceItems) -> list[str]:
    """The stores of a namespace that its list has lost, as far as they are looked for.

    That is in the partitions that an operator lacks, up to the one after its last, and in partition 0 of an operator
    that is not listed, up to the one after the last.
    """
    listed, namespace = namespace_items.listed, namespace_items.namespace
    if not listed or namespace_items.is_copied:
        return []
    places: dict[tuple[int, str], set[int]] = {}
    for store in listed:
        operator, partition, name = place_of(store)
        places.setdefault((operator, name), set()).add(partition)
    partitions = [
        _store(namespace, operator, number, name)
        for (operator, name), there in places.items()
        for number in range(max(there) + 2)
        if number not in there
    ]
    known = {operator for operator, _ in places}
    operators = [each for each in range(max(known) + 2) if each not in known]
    starts = [_store(namespace, operator, 0, name) for operator in operators for name in STORE_NAMES]
    metas = _metas(tables, [*partitions, *starts])
    stores = [*metas, *(each for each in partitions if each not in metas and _is_lost(tables, each))]
    # One that was begun since is listed by now.
    listed = read_namespace(tables, namespace).listed if stores else []
    return [store for store in stores if store not in listed]


def some(found: Found, namespace: str) -> Found:
    """Stores of a namespace. Refuse none."""
    if found:
        return found
    raise ConfigurationError(
        "no store of this namespace is in the tables; the namespace is the first part of the store's name in the file "
        "state/0/0/dynastate of the query's checkpoint",
        namespace=namespace,
    )


def find_stores(tables: Tables, namespace: str) -> dict[str, Item]:
    """The stores of a namespace, of whichever query, by operator and partition, with their meta items."""
    return stores_in_list(tables, read_namespace(tables, namespace))


def stores_in_list(tables: Tables, namespace_items: NamespaceItems) -> dict[str, Item]:
    """As `find_stores`, by the items of the namespace."""
    return _metas(tables, namespace_items.listed)


def _metas(tables: Tables, stores: Iterable[str]) -> dict[str, Item]:
    """Of these stores, those that have a meta item, in order, with it."""
    keys = {store: meta_key(store) for store in stores}
    found = get_apart(tables, list(keys.values()))
    return {store: found[key] for store, key in keys.items() if key in found}


def find_lost(tables: Tables, namespace_items: NamespaceItems, found: Iterable[str]) -> list[str]:
    """The stores of a namespace that have versions and are not among those `found`: their meta items are lost.

    Where a copy to the namespace is not complete, they are all that are listed: some may have parts only.
    Each store that is listed and not found costs a Query.
    """
    known = set(found)
    unknown = [store for store in namespace_items.listed if store not in known]
    return unknown if namespace_items.is_copied else [each for each in unknown if _is_lost(tables, each)]


def _is_lost(tables: Tables, store: str) -> bool:
    return has_versions(read_version_lists(tables, store))


def read_version_lists(tables: Tables, store: str, lowest: int = 0, last: str = "list/~") -> dict[Key, Item]:
    """The version lists of a store from that of a version on, fences among them, and what follows up to `last`."""
    return dict(tables.query("snapshot", store_shard(store, 0), lists_from(lowest), last))


def has_versions(lists: Mapping[Key, Item]) -> bool:
    """Whether a version list has any: a fence has none."""
    return any(VERSIONS in item for item in lists.values())


def parse_name(text: str) -> tuple[str, str, str, str] | None:
    """Namespace, operator, partition or `EVERY`, and name; empty where the last ones are left out. None: no name."""
    found = _NAME.fullmatch(text)
    if found is None:
        return None
    namespace, operator, partition, name = found.groups(default="")
    operator, partition = (str(int(each)) if each.isdecimal() else each for each in (operator, partition))
    return namespace, operator, partition, name


def _parse(pattern: str) -> tuple[str, int, str, str]:
    found = parse_name(pattern)
    if found is None or not found[1] or bool(found[2]) != bool(found[3]):
        raise ConfigurationError(
            "a store is namespace/operator/partition/name, or namespace/operator for all partitions of an operator; "
            "'dynastate stores' lists them",
            store=repr(pattern[:200]),
        )
    namespace, operator, partition, name = found
    return namespace, int(operator), partition, name


def _in_full(pattern: str) -> str:
    """The store that is named in full; empty: it is not one."""
    namespace, operator, partition, name = _parse(pattern)
    return "" if partition in ("", EVERY) else _store(namespace, operator, int(partition), name)


def _operator_of(store: str) -> int:
    return int(store.split("/")[1])


def _names(stores: Iterable[str], operator: int) -> list[str]:
    """The names of an operator's stores, each once."""
    return list(dict.fromkeys(store.split("/", 3)[3] for store in stores if _operator_of(store) == operator))


def _store(namespace: str, operator: int, partition: int, name: str) -> str:
    return check_store(f"{namespace}/{operator}/{partition}/{name}")
