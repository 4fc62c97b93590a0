"""Clean-up of a store on request, by the rules of `dynastate.operations.compact`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from threading import Lock

from dynastate.dynamodb.meter import Meter
from dynastate.dynamodb.tables import Tables
from dynastate.engine.catalog import of_namespace
from dynastate.engine.engine import Engine
from dynastate.engine.lists import shorten
from dynastate.errors import ConfigurationError, RouteInvalidError, VersionMissingError
from dynastate.operations.drop import delete_meta, empty_store
from dynastate.operations.pins import unpin_dropped, unpin_unneeded
from dynastate.operations.runs import read_meta, writing_run
from dynastate.operations.scope import Outcomes, each_store
from dynastate.progress import ProgressCallback, no_progress


@dataclass(frozen=True)
class Cleaned:
    """The result of a clean-up. Versions from `oldest` on can be read.

    `held_by` is the oldest version to retain, where those before it stay because it is read from them; else 0.
    `is_earlier`: the store is of an earlier query and was deleted, unless there is a reason `kept`; `oldest` is 0.
    """

    store: str
    items: int
    write_units: int
    oldest: int
    held_by: int
    is_earlier: bool = False
    kept: str = ""


def clean_store(engine: Engine, tables: Tables, store: str, retain: int) -> Cleaned:
    """Delete what the newest `retain` versions do not need, as `Engine.clean_up` does.

    1. Unpin items of this store that are pinned for forks whose meta items were deleted: a pin may be what clean-up
    fails at. 2. Shorten the version list that the next commits append to, if it has no room; clean up. 3. If the store
    is a fork, unpin the items of its origin that it no longer needs.

    Raises:
        VersionMissingError: nothing is committed.
        ConfigurationError: a newer run has begun; nothing was done.
    """
    meter = Meter()
    unpin_dropped(tables, store, meter)  # 1
    newest = engine.lineage(store).newest
    shorten(tables, store, replace(newest, epoch=read_meta(tables, store, meter)[1].epoch), meter)  # 2
    run = writing_run(tables, store, newest)
    spent, _ = engine.clean_up(store, run, newest.version, newest.attempt, retain, least=1, most=0)
    meter.add(spent)
    unpin_unneeded(tables, store, meter)  # 3
    lineage = engine.lineage(store)
    oldest = lineage.entries[0].version
    last = lineage.find(max(oldest, newest.version - retain + 1))
    is_held = False
    with suppress(VersionMissingError, RouteInvalidError):  # the query's own clean-up deletes it meanwhile
        is_held = engine.find(store, last.version, last.attempt).snapshot <= oldest < last.version
    spent_units = meter.delete_units + meter.write_units
    return Cleaned(store, meter.items_deleted, spent_units, oldest, last.version if is_held else 0)


def clean_earlier(
    engine: Engine, tables: Tables, stores: Sequence[str], progress: ProgressCallback = no_progress
) -> Outcomes[Cleaned]:
    """Delete the stores of earlier queries of one namespace, several at once; then their meta items.

    These go one by one, the last first, so that the others are still found after a crash. Stores that forks depend on
    stay. So do all of them until a query has committed two batches: in its first one, stores that it has not entered
    yet are the earlier query's.
    """
    early, lock = cache(lambda: _first_batch(engine, tables, stores[0].split("/")[0])), Lock()

    def empty(store: str) -> Cleaned:
        meter, items = Meter(), 0
        with lock:  # it is read once, and not by each of those that begin
            kept = early()
        if not kept:
            try:
                items = empty_store(tables, store, meter)
            except ConfigurationError as refused:
                kept = str(refused)
        return Cleaned(store, items, meter.delete_units + meter.write_units, 0, 0, is_earlier=True, kept=kept)

    def delete(store: str) -> Cleaned:
        meter, each = Meter(), emptied.done[store]
        items = each.items + delete_meta(tables, store, meter)
        return replace(each, items=items, write_units=each.write_units + meter.delete_units + meter.write_units)

    emptied = each_store(tables, stores, empty, progress)
    kept = {store: each for store, each in emptied.done.items() if each.kept}
    going = [] if emptied.is_interrupted else [store for store in reversed(emptied.done) if store not in kept]
    deleted = each_store(tables, going, delete, at_once=1)
    return replace(emptied, stores=len(stores) - len(going), done=kept) + deleted


def _first_batch(engine: Engine, tables: Tables, namespace: str) -> str:
    """Say that the first batch of a namespace's current query may not be committed everywhere; empty: it is."""
    try:
        first = of_namespace(tables, namespace, Meter()).current[0]
        newest = engine.lineage(first).newest
        writing_run(tables, first, newest)
    except (VersionMissingError, ConfigurationError) as early:
        return str(early)
    is_first = newest.version == 1
    return "the current query may still be in its first batch; clean again after its second" if is_first else ""
