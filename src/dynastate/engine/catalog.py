"""Stores in the tables, the patterns by which users select them, and the query of each store.

A store is `namespace/operator/partition/name`. The pattern `namespace/operator/*/name` selects the stores of all
partitions. So does `namespace/operator`, if the stores of the operator have only one name.

A checkpoint that is deleted and started again at the same path is another query. Stores of the earlier query remain if
the new one has fewer partitions, operators or names. The meta item of a store has the id of the query that it belongs
to. The current query is the one whose run entered the namespace last, among the queries with a store of partition 0.
Each query has operator 0, and writes to all partitions. The record of the namespace has the order. No clock decides.
All readers and maintainers of state get the stores of the current query from this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dynastate.engine.graphs import meta_items
from dynastate.engine.namespaces import STORE_NAMES, NamespaceItems, not_complete, place_of, read_namespace, read_record
from dynastate.errors import ConfigurationError, CorruptStateError, VersionMissingError
from dynastate.format.graph import VersionGraph
from dynastate.format.items import Item
from dynastate.format.keys import META, Key, check_store, lists_from, store_shard, where
from dynastate.format.meta import StoreMeta, meta_lost, parse_metas, query_runs
from dynastate.format.namespace import NamespaceRecord, namespace_key, store_key
from dynastate.format.version_list import VERSIONS
from dynastate.storage.tables import Tables

EVERY: Final = "*"
#: The number of stores that a message names.
SHOWN_MAX: Final = 4
_NAME: Final = re.compile(rf"([^/#]+)(?:/(\d+)(?:/(\d+|\{EVERY})(?:/([^/#]+))?)?)?")


@dataclass(frozen=True)
class QueryStores:
    """Stores by the query that they belong to: the current query of their namespace, or an earlier one.

    `beginning` are the stores of a query that has no store of partition 0 yet. `continued` are the earlier stores whose
    versions the current query may need: it has made some of them, or resumed from a query that has.
    """

    current: list[str]
    earlier: list[str]
    beginning: list[str] = field(default_factory=list)
    continued: list[str] = field(default_factory=list)


def by_query(
    metas: Mapping[str, StoreMeta], record: NamespaceRecord | None, starts: Mapping[str, StoreMeta] | None = None
) -> QueryStores:
    """Stores by the query that they belong to, by their meta items and the record of their namespace.

    `starts` are the stores to choose the current query from. If none of them is of partition 0, all stores belong to
    the current query. By default, `starts` are all stores. If none of these is of partition 0, all are beginning.
    """
    candidates = (metas if starts is None else starts).items()
    first_metas = {store: meta for store, meta in candidates if store.split("/")[2:3] == ["0"]}
    if not first_metas:
        return QueryStores([], [], list(metas)) if starts is None else QueryStores(list(metas), [])
    query = _current(first_metas, record)
    rank = record.rank(query) if record is not None else 0
    later_stores = {store for store, meta in metas.items() if record is not None and record.rank(meta.query) > rank}
    earlier = [store for store, meta in metas.items() if meta.query != query and store not in later_stores]
    query_metas = [meta for meta in [*first_metas.values(), *metas.values()] if meta.query == query]
    queries = {query for meta in query_metas for query in meta.own_queries}
    return QueryStores(
        [store for store, meta in metas.items() if meta.query == query],
        earlier,
        [store for store in metas if store in later_stores],
        [store for store in earlier if queries & {*metas[store].queries.values()}],
    )


def queries_of(
    tables: Tables, namespace_items: NamespaceItems, items: Mapping[str, Item], starts: Mapping[str, Item] | None = None
) -> QueryStores:
    """Stores as by `by_query`, for meta items that were read after the record. Refuse an incomplete copy.

    A run enters the record before any store. If a store lists a run that the record does not list, the record is read
    again. So a query that has begun meanwhile is never taken for an earlier one.
    """
    if namespace_items.is_copied:
        raise not_complete(namespace_items.namespace)
    metas, start_metas = parse_metas(items), None if starts is None else parse_metas(starts)
    record = namespace_items.record
    all_metas = (*metas.values(), *(start_metas or {}).values())
    if any(query_runs(meta) and not (record and meta.last_run in record.epochs) for meta in all_metas):
        record = read_record(tables, namespace_items.namespace)
    return by_query(metas, record, start_metas)


def _current(first_metas: Mapping[str, StoreMeta], record: NamespaceRecord | None) -> str:
    """The query of the run that entered last, among the queries of these stores of partition 0."""
    ranks = {meta.query: record.rank(meta.query) if record is not None else 0 for meta in first_metas.values()}
    last = [query for query, rank in ranks.items() if rank == max(ranks.values())]
    if len(last) == 1:
        return last[0]
    raise ConfigurationError(
        "this namespace has stores of several queries, and no record of the current one: start the query that is to "
        "stay, or name stores in full to read them",
        **where(namespace_key(next(iter(first_metas)).split("/")[0])),
        queries=",".join(sorted(last)),
    )


def select_stores(tables: Tables, pattern: str) -> QueryStores:
    """The stores that a pattern selects, by partition. There may be none. Refuse a pattern of another form."""
    namespace, operator, partition, name = _parse(pattern)
    namespace_items = read_namespace(tables, namespace)
    selected = [store for store in namespace_items.listed if _is_selected(store, operator, partition, name)]
    prefixes = tuple(f"{namespace}/{each}/0/" for each in {0, operator})
    first_stores = [store for store in namespace_items.listed if store.startswith(prefixes)]
    items = meta_items(tables, dict.fromkeys((*first_stores, *selected)))
    metas, starts = ({store: items[store] for store in stores if store in items} for stores in (selected, first_stores))
    if partition in ("", EVERY):
        _refuse_lost(tables, namespace_items, metas)
    return queries_of(tables, namespace_items, metas, starts)


def _is_selected(store: str, operator: int, partition: str, name: str) -> bool:
    _, own_operator, own_partition, own_name = store.split("/")
    return int(own_operator) == operator and partition in ("", EVERY, own_partition) and name in ("", own_name)


def matching(tables: Tables, pattern: str) -> list[str]:
    """The stores of the current query that a pattern selects, by partition. Refuse what `_complete` refuses.

    A store that is named in full may belong to an earlier query, and need not exist.
    """
    return [store] if (store := _in_full(pattern)) else _complete(tables, pattern, select_stores(tables, pattern))


def _complete(tables: Tables, pattern: str, stores: QueryStores) -> list[str]:
    """The current ones of selected stores. Refuse an empty list, several names, and missing partitions."""
    namespace, operator, _, name = _parse(pattern)
    names = _names(stores.current, operator)
    if len(names) > 1:
        patterns = ", ".join(f"{namespace}/{operator}/{EVERY}/{each}" for each in names)
        raise ConfigurationError(f"this operator has several stores a partition; say which: {patterns}")
    if not stores.current:
        if name and (others := _names(select_stores(tables, f"{namespace}/{operator}").current, operator)):
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
    _refuse_first_batch(tables, stores, stores.continued, lambda: select_stores(tables, pattern))
    return stores.current


def _refuse_lost(tables: Tables, namespace_items: NamespaceItems, stores: Collection[str]) -> None:
    """Refuse stores if the partition after the last one of an operator has versions, but no meta item.

    `stores` are the stores of a namespace or an operator that have a meta item. A Query is sent if the next partition
    is listed: it is being begun, or was dropped.
    """
    numbers: dict[tuple[int, str], int] = {}
    for store in stores:
        operator, partition, name = place_of(store)
        numbers[operator, name] = max(partition + 1, numbers.get((operator, name), 0))
    namespace = namespace_items.namespace
    following = {_store(namespace, operator, number, name) for (operator, name), number in numbers.items()}
    for store in sorted(following.intersection(namespace_items.listed)):
        if _is_lost(tables, store):
            raise (
                _first_batch_open(store) if meta_items(tables, [store]) else meta_lost(store)
            )  # begun meanwhile, or lost


def _refuse_missing(stores: QueryStores) -> None:
    """Refuse a query if an operator has other partitions than 0, 1, …, or a name lacks some of them.

    A store in which a later query begins may have belonged to the current query, or be of a partition that it lacks.
    """
    operators: dict[str, dict[str, set[int]]] = {}
    for store in stores.current:
        namespace, operator, partition, name = store.split("/", 3)
        operators.setdefault(f"{namespace}/{operator}", {}).setdefault(name, set()).add(int(partition))
    begun = {"/".join(store.split("/")[:2]) for store in stores.beginning}
    for operator, names in operators.items():
        numbers = set(range(1 + max(map(max, names.values()))))
        for name, partitions in names.items():
            if partitions != numbers or operator in begun:
                raise _first_batch_open(f"{operator}/{EVERY}/{name}")


def _refuse_first_batch(
    tables: Tables, stores: QueryStores, earlier: Sequence[str], look: Callable[[], QueryStores]
) -> None:
    """Refuse a query whose first batch may not be over: this batch may take over stores of `earlier` queries.

    If it is over, `look` must return the same stores again: some may have been taken over since the first look.
    """
    if earlier and not (is_first_batch_over(tables, stores.current[0]) and look() == stores):
        raise _first_batch_open(earlier[0])


def is_first_batch_over(tables: Tables, store: str) -> bool:
    """Whether the first batch of a namespace's current query, which has this store, is known to be over.

    The batch is over if a run since the last begin of the query has made the version below the newest one. Only then
    have all partitions committed that version, each by a run that entered its store after the runs of other queries.
    """
    graph = VersionGraph(store, read_version_lists(tables, store, last=META).items())
    record = read_record(tables, store.split("/", maxsplit=1)[0])
    if graph.meta is None or not graph.versions():
        return False
    newest = graph.newest()
    base = graph.entry(newest.version - 1, newest.parent)
    if base is None or record is None:
        return False
    runs = {run for run, number in record.epochs.items() if number >= record.rank(graph.meta.query)}
    return base.epoch in {epoch for run, epoch in graph.meta.epochs.items() if run in runs}


def _first_batch_open(store: str) -> VersionMissingError:
    return VersionMissingError(
        "the first batch is not committed in all partitions of this operator yet; try again when it is", store=store
    )


def single_store(tables: Tables, pattern: str) -> str:
    """The one store that a pattern selects. Refuse several stores, and what `matching` refuses."""
    if store := _in_full(pattern):
        return store
    stores = select_stores(tables, pattern)
    if len(current := stores.current) > 1:
        more = ", …" if len(current) > SHOWN_MAX else ""
        raise ConfigurationError(
            f"this takes one store, and the operator has {len(current):,}: {', '.join(current[:SHOWN_MAX])}{more}"
        )
    return _complete(tables, pattern, stores)[0]


def of_namespace(tables: Tables, namespace: str, *, refuse_lost: bool = False) -> QueryStores:
    """The stores of a namespace, by operator. Refuse a namespace without any.

    `refuse_lost` also refuses a namespace in which a store has lost its meta item: the other stores are not all.
    """
    namespace_items = read_namespace(tables, namespace)
    if refuse_lost:
        metas, lost = with_lost(tables, namespace_items)
        if lost:
            raise meta_lost(lost[0])
    else:
        metas = meta_items(tables, namespace_items.listed)
    stores = queries_of(tables, namespace_items, metas)
    nonempty(stores.current, namespace)
    return stores


def whole_namespace(tables: Tables, namespace: str) -> list[str]:
    """The stores of the current query of a namespace, by operator. Refuse a namespace that may lack some."""

    def look() -> QueryStores:
        namespace_items = read_namespace(tables, namespace)
        metas = meta_items(tables, namespace_items.listed)
        _refuse_lost(tables, namespace_items, metas)
        if unlisted := find_unlisted(tables, namespace_items):
            key = store_key(unlisted[0])
            raise CorruptStateError("the list of stores has lost this item: put it again", **where(key))
        return queries_of(tables, namespace_items, metas)

    stores = look()
    nonempty(stores.current, namespace)
    _refuse_missing(stores)
    _refuse_first_batch(tables, stores, stores.earlier, look)
    return stores.current


def every_store(tables: Tables, namespace: str, *, may_be_empty: bool = False) -> list[str]:
    """The stores of a namespace, of all queries, by operator; then the lost ones.

    Refuse a namespace without any, unless it `may_be_empty`.
    """
    metas, lost = with_lost(tables, read_namespace(tables, namespace))
    stores = [*metas, *lost]
    return stores if may_be_empty else nonempty(stores, namespace)


def with_lost(tables: Tables, namespace_items: NamespaceItems) -> tuple[dict[str, Item], list[str]]:
    """The stores of a namespace with their meta items, and the lost ones: `find_lost` and `find_unlisted`.

    A store that is begun meanwhile gets its meta item before any version, so meta items of lost stores are read again.
    """
    metas = meta_items(tables, namespace_items.listed)
    unlisted = find_unlisted(tables, namespace_items)
    lost = [*find_lost(tables, namespace_items, metas), *unlisted]
    begun = meta_items(tables, lost)
    return metas | begun, [store for store in lost if store not in begun]


def find_unlisted(tables: Tables, namespace_items: NamespaceItems) -> list[str]:
    """The stores of a namespace that its list has lost, among the likely ones.

    These are the missing partitions of an operator, up to the one after its last partition, and partition 0 of missing
    operators, up to the one after the last operator.
    """
    listed, namespace = namespace_items.listed, namespace_items.namespace
    if not listed or namespace_items.is_copied:
        return []
    partitions_of: dict[tuple[int, str], set[int]] = {}
    for store in listed:
        operator, partition, name = place_of(store)
        partitions_of.setdefault((operator, name), set()).add(partition)
    partitions = [
        _store(namespace, operator, number, name)
        for (operator, name), numbers in partitions_of.items()
        for number in range(max(numbers) + 2)
        if number not in numbers
    ]
    listed_operators = {operator for operator, _ in partitions_of}
    operators = [each for each in range(max(listed_operators) + 2) if each not in listed_operators]
    starts = [_store(namespace, operator, 0, name) for operator in operators for name in STORE_NAMES]
    metas = meta_items(tables, [*partitions, *starts])
    stores = [*metas, *(each for each in partitions if each not in metas and _is_lost(tables, each))]
    # A store that was begun meanwhile is listed by now.
    listed = read_namespace(tables, namespace).listed if stores else []
    return [store for store in stores if store not in listed]


def nonempty(stores: list[str], namespace: str) -> list[str]:
    """The stores of a namespace. Refuse an empty list."""
    if stores:
        return stores
    raise ConfigurationError(
        "no store of this namespace is in the tables; the namespace is the first part of the store's name in the file "
        "state/0/0/dynastate of the query's checkpoint",
        namespace=namespace,
    )


def find_stores(tables: Tables, namespace: str) -> dict[str, Item]:
    """The stores of a namespace, of all queries, by operator and partition, with their meta items."""
    return meta_items(tables, read_namespace(tables, namespace).listed)


def find_lost(tables: Tables, namespace_items: NamespaceItems, intact_stores: Iterable[str]) -> list[str]:
    """The stores of a namespace that have versions, but no meta item. `intact_stores` have one.

    While a copy to the namespace is not complete, all listed stores without a meta item count: some have only parts.
    Otherwise each such store costs a Query.
    """
    intact = set(intact_stores)
    others = [store for store in namespace_items.listed if store not in intact]
    return others if namespace_items.is_copied else [each for each in others if _is_lost(tables, each)]


def _is_lost(tables: Tables, store: str) -> bool:
    return has_versions(read_version_lists(tables, store))


def read_version_lists(tables: Tables, store: str, lowest: int = 0, last: str = "list/~") -> dict[Key, Item]:
    """The version lists of a store, fences included, from the list of a version on, and all items up to `last`."""
    return dict(tables.query("snapshot", store_shard(store, 0), lists_from(lowest), last))


def has_versions(lists: Mapping[Key, Item]) -> bool:
    """Whether any of the version lists has versions: a fence has none."""
    return any(VERSIONS in item for item in lists.values())


def parse_name(text: str) -> tuple[str, str, str, str] | None:
    """Namespace, operator, partition or `EVERY`, and name; the last ones may be empty. Returns None for other text."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    namespace, operator, partition, name = match.groups(default="")
    operator, partition = (str(int(each)) if each.isdecimal() else each for each in (operator, partition))
    return namespace, operator, partition, name


def _parse(pattern: str) -> tuple[str, int, str, str]:
    fields = parse_name(pattern)
    if fields is None or not fields[1] or bool(fields[2]) != bool(fields[3]):
        raise ConfigurationError(
            "a store is namespace/operator/partition/name, or namespace/operator for all partitions of an operator; "
            "'dynastate stores' lists them",
            store=repr(pattern[:200]),
        )
    namespace, operator, partition, name = fields
    return namespace, int(operator), partition, name


def _in_full(pattern: str) -> str:
    """The store that a pattern names in full, or an empty string."""
    namespace, operator, partition, name = _parse(pattern)
    return "" if partition in ("", EVERY) else _store(namespace, operator, int(partition), name)


def _names(stores: Iterable[str], operator: int) -> list[str]:
    """The names of an operator's stores, without repetition."""
    return list(dict.fromkeys(name for own_operator, _, name in map(place_of, stores) if own_operator == operator))


def _store(namespace: str, operator: int, partition: int, name: str) -> str:
    return check_store(f"{namespace}/{operator}/{partition}/{name}")
