"""Many stores for one command: those that an operator names, and work on all of them, several at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Final, Generic, TypeVar

from dynastate import runtime
from dynastate.engine.catalog import EVERY, QueryStores, meant, parse_name, queries_of, some, with_lost
from dynastate.engine.namespaces import place_of, read_namespace
from dynastate.errors import ConfigurationError, CorruptStateError, DynastateError, VersionMissingError
from dynastate.format.keys import check_store
from dynastate.progress import ProgressCallback, no_progress
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables

#: Stores that are worked on at once. Each has a request under way and the items of a request or two in memory.
STORES_AT_ONCE: Final = 8

T = TypeVar("T")
AnyTables = TypeVar("AnyTables", bound=Tables)


def stores_in(tables: Tables, scope: str) -> QueryStores:
    """The stores of a namespace, of an operator or of a partition, in order; or one store, which need not be there.

    Those that have lost their meta items count as the current query's. Where a meta item is corrupt, or one of
    partition 0 is lost, all do, so that each can be looked at. Refuse a scope without a store.
    """
    wanted = parse_name(scope)
    if wanted is None:
        raise ConfigurationError(
            "give namespace, namespace/operator, namespace/operator/partition or namespace/operator/partition/name",
            scope=repr(scope[:200]),
        )
    namespace, _, partition, name = wanted
    if name and partition != EVERY:
        store = check_store("/".join(wanted))
        with suppress(CorruptStateError):
            return QueryStores([], [store]) if meant(tables, store).earlier else QueryStores([store], [])
        return QueryStores([store], [])
    namespace_items = read_namespace(tables, namespace)
    metas, lost = with_lost(tables, namespace_items)
    every = sorted(some([*metas, *lost], namespace), key=place_of)
    found = QueryStores(every, [])
    with suppress(CorruptStateError):
        by_query = queries_of(tables, namespace_items, metas)
        if not any(place_of(store)[1] == 0 for store in lost):  # else the current query is unknown
            found = QueryStores([store for store in every if store in {*by_query.current, *lost}], by_query.earlier)

    def is_wanted(store: str) -> bool:
        return all(mine in ("", EVERY, own) for mine, own in zip(wanted, store.split("/", 3), strict=True))

    stores = QueryStores([*filter(is_wanted, found.current)], [*filter(is_wanted, found.earlier)])
    if not stores.current and not stores.earlier:
        raise ConfigurationError(
            f"no store of this scope is in the tables; 'dynastate stores {namespace}' lists those of the namespace",
            scope=scope,
        )
    return stores


@dataclass(frozen=True)
class Outcomes(Generic[T]):
    """The results of work on `stores` stores, and the errors of those that failed, in the order of the stores.

    `is_interrupted`: Ctrl-C ended it before all were done.
    """

    stores: int
    done: dict[str, T]
    failed: dict[str, DynastateError]
    is_interrupted: bool

    def __add__(self, other: Outcomes[T]) -> Outcomes[T]:
        return Outcomes(
            self.stores + other.stores,
            self.done | other.done,
            self.failed | other.failed,
            self.is_interrupted or other.is_interrupted,
        )

    def all(self) -> list[T]:
        """The results, if every store has one; else what kept one from it is raised."""
        if self.is_interrupted:
            raise KeyboardInterrupt
        for error in self.failed.values():
            raise error
        return list(self.done.values())


def each_store(
    tables: AnyTables,
    stores: Sequence[str],
    work: Callable[[AnyTables, str], T],
    progress: ProgressCallback = no_progress,
    *,
    at_once: int = STORES_AT_ONCE,
    until_failure: bool = False,
) -> Outcomes[T]:
    """Do work on stores, on several at once and begun in order; progress is in stores.

    `work` gets a view of the tables, whose cost is added to their meter, and the store.

    A store that fails does not keep others from being done, unless `until_failure`: then no further store is begun.
    After Ctrl-C no further request is sent to the tables, so that the work under way ends at once.
    """
    done: dict[str, T] = {}
    failed: dict[str, DynastateError] = {}
    is_over = is_interrupted = False
    lock = Lock()

    def do(store: str) -> None:
        nonlocal is_over
        if is_over:
            return
        view = tables.metered(Meter())
        try:
            done[store] = work(view, store)
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
        progress(len(done) + len(failed), len(stores))

    progress(0, len(stores))
    pool = runtime.pool(max(1, min(at_once, len(stores))), "dynastate-store")
    try:
        for under_way in [pool.submit(do, store) for store in stores]:
            under_way.result()
    except KeyboardInterrupt:
        is_over = is_interrupted = True
        tables.stop()
    finally:
        is_over = True
        pool.shutdown(cancel_futures=True)
    return Outcomes(len(stores), _in_order(stores, done), _in_order(stores, failed), is_interrupted)


def _in_order(stores: Sequence[str], found: Mapping[str, T]) -> dict[str, T]:
    return {store: found[store] for store in stores if store in found}
