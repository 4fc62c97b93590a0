"""Clean-up of a store on request, by the rules of `dynastate.operations.lifecycle.compact`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cache
from threading import Lock

from dynastate import runtime
from dynastate.engine.catalog import SHOWN_MAX, is_first_batch_over, of_namespace
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, RouteInvalidError, VersionMissingError
from dynastate.format.keys import meta_key
from dynastate.format.meta import DELETING, DROPPED, parse_meta
from dynastate.operations.lifecycle.drop import (
    Look,
    commits_of,
    delete_meta,
    empty_store,
    locations_of_others,
    refuse_written,
    seconds_to_look,
)
from dynastate.operations.lifecycle.runs import writing_run
from dynastate.operations.pins import unpin_dropped, unpin_unneeded
from dynastate.operations.scope import Outcomes, each_store
from dynastate.progress import ProgressCallback, no_progress
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables, get_apart, other_locations


@dataclass(frozen=True)
class Cleaned:
    """The result of a clean-up. Versions from `oldest` on can be read.

    `held_by` is the oldest version to retain, where those before it stay because it is read from them; else 0.
    `is_earlier`: the store is of an earlier query and was deleted, unless there is a reason `kept`; `oldest` is 0.
    `other_locations` are those of other tables, in which objects were left that this store does not need.
    """

    store: str
    items: int
    write_units: int
    oldest: int
    held_by: int
    is_earlier: bool = False
    kept: str = ""
    other_locations: tuple[str, ...] = ()


def clean_store(engine: Engine, tables: Tables, store: str, retain: int) -> Cleaned:
    """Delete what the newest `retain` versions do not need, as `Engine.clean_up` does.

    1. Unpin items of this store that are pinned for forks whose meta items were deleted: a pin may be what clean-up
    fails at. 2. Clean up. 3. If the store is a fork, unpin the items of its origin that it no longer needs.

    A long version list is left to commits, which shorten it: only they prove which attempts the driver did not choose.

    Raises:
        VersionMissingError: nothing is committed.
        ConfigurationError: a newer run has begun; nothing was done.
    """
    tables = tables.metered(Meter())
    unpin_dropped(tables, store)  # 1
    newest = engine.lineage(store).newest
    run = writing_run(tables, store, newest)
    spent, _ = engine.clean_up(store, run, newest.version, newest.attempt, retain, least=1, most=0)  # 2
    tables.meter.add(spent)
    unpin_unneeded(tables, store)  # 3
    lineage = engine.lineage(store)
    oldest = lineage.entries[0].version
    last = lineage.find(max(oldest, newest.version - retain + 1))
    is_held = False
    with suppress(VersionMissingError, RouteInvalidError):  # the query's own clean-up deletes it meanwhile
        is_held = engine.find(store, last.version, last.attempt).snapshot <= oldest < last.version
    others = locations_of_others(tables, [store]) if tables.meter.objects_left else ()
    spent_units = tables.meter.delete_units + tables.meter.write_units
    held_by = last.version if is_held else 0
    return Cleaned(store, tables.meter.items_deleted, spent_units, oldest, held_by, other_locations=tuple(others))


def describe_earlier(tables: Tables, stores: Sequence[str], looked: Look) -> list[str]:
    """Lines that say what `clean_earlier` would delete: queries, with their stores and the last commit of each."""
    queries: dict[str, list[str]] = {}
    for key, item in get_apart(tables, [meta_key(store) for store in stores]).items():
        store = key.store_shard.removesuffix("#0")
        queries.setdefault(parse_meta(store, item).query, []).append(store)
    lines = []
    for query, listed in queries.items():
        last = max((each.time_ms for store in listed for each in commits_of(looked[store], store)[-1:]), default=0)
        when = f"{datetime.fromtimestamp(last / 1000, timezone.utc):%Y-%m-%d %H:%M:%S} UTC" if last else "unknown"
        more = ", …" if len(listed) > SHOWN_MAX else ""
        lines.append(f"query {query}, last commit {when}: {', '.join(listed[:SHOWN_MAX])}{more}")
    return lines


def refuse_running(
    tables: Tables,
    looked: Look,
    progress: ProgressCallback = no_progress,
    sleep: Callable[[float], None] = runtime.sleep,
) -> None:
    """Refuse if something writes to stores of earlier queries, by a second look after some seconds."""
    advice = (
        "a query writes to stores that look like an earlier query's, so nothing of them is deleted: stop one of the "
        "two queries of this namespace"
    )
    refuse_written(tables, looked, seconds_to_look(looked), progress, sleep, advice)


def clean_earlier(tables: Tables, stores: Sequence[str], progress: ProgressCallback = no_progress) -> Outcomes[Cleaned]:
    """Delete the stores of earlier queries of one namespace, several at once; then their meta items.

    These go one by one, the last first, so that the others are still found after a crash. Stores that forks depend on
    stay. So do all of them until a query has committed two batches: in its first one, stores that it has not entered
    yet are the earlier query's. A store that a run has entered since `stores` were listed is kept, too. One that a
    clean-up which was cut off has begun to delete is deleted all the same: no run can enter it before.
    """
    namespace = stores[0].split("/")[0]
    early, lock = cache(lambda: _first_batch(tables, namespace)), Lock()
    metas = get_apart(tables, [meta_key(store) for store in stores])
    parsed = {store: parse_meta(store, metas[key]) for store in stores if (key := meta_key(store)) in metas}
    begun = {store for store in parsed if metas[meta_key(store)].get(DROPPED) == DELETING}
    # A query that entered before its id was read here is no earlier one now; one that enters later changes the item.
    taken = set(stores).difference(of_namespace(tables, namespace).earlier).intersection(parsed)

    def empty(view: Tables, store: str) -> Cleaned:
        items, kept = 0, ""
        if store in taken:
            kept = "a query has begun to write there meanwhile"
        elif store not in begun:
            with lock:  # it is read once, and not by each of those that begin
                kept = early()
        others: list[str] = []
        if not kept and store in parsed:
            try:
                items = empty_store(view, store, parsed[store].query)
                others = other_locations(tables, parsed[store].objects)
            except ConfigurationError as refused:
                kept = str(refused)
        units = view.meter.delete_units + view.meter.write_units
        return Cleaned(store, items, units, 0, 0, is_earlier=True, kept=kept, other_locations=tuple(others))

    def delete(view: Tables, store: str) -> Cleaned:
        each = emptied.done[store]
        items = each.items + delete_meta(view, store)
        units = view.meter.delete_units + view.meter.write_units
        return replace(each, items=items, write_units=each.write_units + units)

    emptied = each_store(tables, stores, empty, progress)
    kept = {store: each for store, each in emptied.done.items() if each.kept}
    going = [] if emptied.is_interrupted else [store for store in reversed(emptied.done) if store not in kept]
    deleted = each_store(tables, going, delete, at_once=1)
    return replace(emptied, stores=len(stores) - len(going), done=kept) + deleted


def _first_batch(tables: Tables, namespace: str) -> str:
    """Say that the first batch of a namespace's current query may not be committed everywhere; empty: it is."""
    try:
        first = of_namespace(tables, namespace).current[0]
    except ConfigurationError as early:
        return str(early)
    if is_first_batch_over(tables, first):
        return ""
    return "the current query may still be in its first batch; clean again after its second"
