"""The stores of a command's scope, and work on them, on several at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Final, Generic, TypeVar

from dynastate import runtime
from dynastate.engine.catalog import EVERY, QueryStores, nonempty, parse_name, queries_of, select_stores, with_lost
from dynastate.engine.checkpoint import read_checkpoints
from dynastate.engine.namespaces import place_of, read_namespace
from dynastate.errors import ConfigurationError, CorruptStateError, DynastateError, VersionMissingError
from dynastate.format.keys import check_store
from dynastate.progress import ProgressCallback, no_progress
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables

#: Stores in work at once. Each has a request under way, and the items of one or two requests in memory.
STORES_AT_ONCE: Final = 8

T = TypeVar("T")
AnyTables = TypeVar("AnyTables", bound=Tables)


def stores_in(tables: Tables, scope: str, *, may_have_files_only: bool = False) -> QueryStores:
    """The stores of a namespace, an operator or a partition, in order; or one store, which need not exist.

    Stores without a meta item count as the current query's. If a meta item is corrupt, or lost in partition 0, all
    stores do, so that commands can read each. Refuse a scope without a store, unless it is a namespace that
    `may_have_files_only`: the checkpoint of a query without state.
    """
    names = parse_name(scope)
    if names is None:
        raise ConfigurationError(
            "give namespace, namespace/operator, namespace/operator/partition or namespace/operator/partition/name",
            scope=repr(scope[:200]),
        )
    namespace, _, partition, name = names
    if name and partition != EVERY:
        store = check_store("/".join(names))
        with suppress(CorruptStateError):
            return QueryStores([], [store]) if select_stores(tables, store).earlier else QueryStores([store], [])
        return QueryStores([store], [])
    namespace_items = read_namespace(tables, namespace)
    metas, lost = with_lost(tables, namespace_items)
    if may_have_files_only and scope == namespace and not (metas or lost) and read_checkpoints(tables, namespace):
        return QueryStores([], [])
    all_stores = sorted(nonempty([*metas, *lost], namespace), key=place_of)
    query_stores = QueryStores(all_stores, [])
    with suppress(CorruptStateError):
        by_query = queries_of(tables, namespace_items, metas)
        if not any(place_of(store)[1] == 0 for store in lost):  # else the current query is unknown
            query_stores = QueryStores(
                [store for store in all_stores if store in {*by_query.current, *lost}], by_query.earlier
            )

    def is_in_scope(store: str) -> bool:
        return all(name in ("", EVERY, part) for name, part in zip(names, store.split("/", 3), strict=True))

    stores = QueryStores([*filter(is_in_scope, query_stores.current)], [*filter(is_in_scope, query_stores.earlier)])
    if not stores.current and not stores.earlier:
        raise ConfigurationError(
            f"no store of this scope is in the tables; 'dynastate stores {namespace}' lists those of the namespace",
            scope=scope,
        )
    return stores


@dataclass(frozen=True)
class Outcomes(Generic[T]):
    """The results of work on `stores` stores, and the errors of failed stores, in the order of the stores.

    `is_interrupted`: Ctrl-C ended the work early.
    """

    stores: int
    results: dict[str, T]
    failed: dict[str, DynastateError]
    is_interrupted: bool

    def __add__(self, other: Outcomes[T]) -> Outcomes[T]:
        return Outcomes(
            self.stores + other.stores,
            self.results | other.results,
            self.failed | other.failed,
            self.is_interrupted or other.is_interrupted,
        )

    def all(self) -> list[T]:
        """The results of all stores. Raises the first error, or KeyboardInterrupt."""
        if self.is_interrupted:
            raise KeyboardInterrupt
        for error in self.failed.values():
            raise error
        return list(self.results.values())


def each_store(
    tables: AnyTables,
    stores: Sequence[str],
    work: Callable[[AnyTables, str], T],
    progress: ProgressCallback = no_progress,
    *,
    at_once: int = STORES_AT_ONCE,
    until_failure: bool = False,
) -> Outcomes[T]:
    """Do work on stores, on several at once, in their order; progress counts stores.

    `work` gets a view of the tables, whose cost is added to the tables' meter, and the store.
    After a failure the other stores are still worked on; with `until_failure` no further store is begun.
    After Ctrl-C no further request is sent to the tables, so that the work under way ends at once.
    """
    results: dict[str, T] = {}
    failed: dict[str, DynastateError] = {}
    is_over = is_interrupted = False
    lock = Lock()

    def do(store: str) -> None:
        nonlocal is_over
        if is_over:
            return
        view = tables.metered(Meter())
        try:
            results[store] = work(view, store)
        except DynastateError as error:
            if is_over:
                return
            if isinstance(error, (CorruptStateError, VersionMissingError)):
                error.name_table(tables.names)
            failed[store] = error
            is_over = until_failure
        finally:
            with lock:
                tables.meter.add(view.meter)
        progress(len(results) + len(failed), len(stores))

    progress(0, len(stores))
    pool = runtime.pool(max(1, min(at_once, len(stores))), "dynastate-store")
    try:
        for future in [pool.submit(do, store) for store in stores]:
            future.result()
    except KeyboardInterrupt:
        is_over = is_interrupted = True
        tables.stop()
    finally:
        is_over = True
        pool.shutdown(cancel_futures=True)
    return Outcomes(len(stores), _in_order(stores, results), _in_order(stores, failed), is_interrupted)


def _in_order(stores: Sequence[str], values: Mapping[str, T]) -> dict[str, T]:
    return {store: values[store] for store in stores if store in values}
