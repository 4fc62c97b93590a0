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
from dynastate.engine.checkpoint import CheckpointFiles, read_checkpoints
from dynastate.engine.engine import Engine
from dynastate.engine.graphs import read_metas
from dynastate.errors import ConfigurationError, RouteInvalidError, VersionMissingError
from dynastate.format.meta import DELETING
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
from dynastate.storage.tables import Tables, other_locations


@dataclass(frozen=True)
class Cleaned:
    """The result of a clean-up. Versions from `oldest` on can be read.

    `held_by` is the oldest version to retain, if it is read from older versions, which stay therefore; else 0.
    `is_earlier`: the store is of an earlier query and was deleted, unless `kept` has the reason why this clean-up did
    not delete it; `oldest` is 0.
    `other_locations`: the locations of other tables in which unneeded objects of the store were left.
    """

    store: str
    items: int
    write_units: int
    oldest: int
    held_by: int
    is_earlier: bool = False
    kept: str = ""
    other_locations: tuple[str, ...] = ()


@dataclass(frozen=True)
class CleanedCheckpoint:
    """The fragments of files, items and objects, that were deleted from a checkpoint in DynamoDB."""

    checkpoint: str
    items: int
    write_units: int


def clean_checkpoints(tables: Tables, namespace: str) -> list[CleanedCheckpoint]:
    """Delete what failed writes left in a namespace's checkpoints; return those from which something was deleted."""
    cleaned = []
    for checkpoint, locations in read_checkpoints(tables, namespace).items():
        view = tables.metered(Meter())
        items = CheckpointFiles(view, set()).delete_orphans(checkpoint, locations)
        tables.meter.add(view.meter)
        cleaned.append(CleanedCheckpoint(checkpoint.location, items, view.meter.delete_units))
    return [each for each in cleaned if each.items]


def clean_store(engine: Engine, tables: Tables, store: str, retain: int) -> Cleaned:
    """Delete the items that the newest `retain` versions do not need, as `Maintenance.clean_up` does.

    1. Unpin items of this store that are pinned for forks whose meta items were deleted: clean-up may fail at a pin.
    2. Clean up. 3. If the store is a fork, unpin the items of its origin that it no longer needs.

    Only commits shorten a long version list: only they prove which attempts the driver did not choose.
    """
    tables = tables.metered(Meter())
    unpin_dropped(tables, store)  # 1
    newest = engine.lineage(store).newest
    run = writing_run(tables, store, newest)
    version, attempt = newest.id
    meter, _ = engine.maintenance.clean_up(
        store, run, version=version, attempt=attempt, retain=retain, least=1, most=0
    )  # 2
    tables.meter.add(meter)
    unpin_unneeded(tables, store)  # 3
    lineage = engine.lineage(store)
    oldest = lineage.entries[0].version
    last = lineage.find(max(oldest, newest.version - retain + 1))
    is_held = False
    with suppress(VersionMissingError, RouteInvalidError):  # the query's own clean-up may delete it meanwhile
        is_held = engine.find(store, last.version, last.attempt).snapshot <= oldest < last.version
    locations = locations_of_others(tables, [store]) if tables.meter.objects_left else ()
    units = tables.meter.delete_units + tables.meter.write_units
    return Cleaned(
        store,
        items=tables.meter.items_deleted,
        write_units=units,
        oldest=oldest,
        held_by=last.version if is_held else 0,
        other_locations=tuple(locations),
    )


def describe_earlier(tables: Tables, stores: Sequence[str], look: Look) -> list[str]:
    """A line for each query that `clean_earlier` would delete: its last commit, and its stores."""
    queries: dict[str, list[str]] = {}
    for store, meta in read_metas(tables, stores).items():
        queries.setdefault(meta.query, []).append(store)
    lines = []
    for query, query_stores in queries.items():
        last_commits = (entry for store in query_stores for entry in commits_of(look[store], store)[-1:])
        time_ms = max((entry.time_ms for entry in last_commits), default=0)
        time = f"{datetime.fromtimestamp(time_ms / 1000, timezone.utc):%Y-%m-%d %H:%M:%S} UTC" if time_ms else "unknown"
        ellipsis = ", …" if len(query_stores) > SHOWN_MAX else ""
        lines.append(f"query {query}, last commit {time}: {', '.join(query_stores[:SHOWN_MAX])}{ellipsis}")
    return lines


def refuse_running(
    tables: Tables, look: Look, progress: ProgressCallback = no_progress, sleep: Callable[[float], None] = runtime.sleep
) -> None:
    """Refuse if a query writes to stores of earlier queries: look a second time after some seconds."""
    advice = (
        "a query writes to stores that look like an earlier query's, so nothing of them is deleted: stop one of the "
        "two queries of this namespace"
    )
    refuse_written(tables, look, seconds_to_look(look), progress=progress, sleep=sleep, advice=advice)


def clean_earlier(tables: Tables, stores: Sequence[str], progress: ProgressCallback = no_progress) -> Outcomes[Cleaned]:
    """Delete the stores of earlier queries of one namespace, several at once; then their meta items.

    Meta items are deleted one by one, the last first, so that the other stores are still found after a crash. Stores
    that forks depend on stay, and stores that a run has entered since `stores` were listed. All stay until the current
    query has committed two batches: in its first batch, stores that it has not entered look like an earlier query's.
    A store that an interrupted clean-up has begun to delete is always deleted: until then no run can enter it.
    """
    namespace = stores[0].split("/")[0]
    first_batch_refusal, lock = cache(lambda: _first_batch(tables, namespace)), Lock()
    metas = read_metas(tables, stores)
    deleting_stores = {store for store, meta in metas.items() if meta.dropped == DELETING}
    # A query that has entered by now is the current one; a query that enters later changes the meta item.
    entered_stores = set(stores).difference(of_namespace(tables, namespace).earlier).intersection(metas)

    def empty(view: Tables, store: str) -> Cleaned:
        items, reason = 0, ""
        if store in entered_stores:
            reason = "a query has begun to write there meanwhile"
        elif store not in deleting_stores:
            with lock:  # so that it is read once
                reason = first_batch_refusal()
        locations: list[str] = []
        if not reason and store in metas:
            try:
                items = empty_store(view, store, metas[store].query)
                locations = other_locations(tables, metas[store].objects)
            except ConfigurationError as error:
                reason = str(error)
        return Cleaned(
            store,
            items=items,
            write_units=view.meter.delete_units + view.meter.write_units,
            oldest=0,
            held_by=0,
            is_earlier=True,
            kept=reason,
            other_locations=tuple(locations),
        )

    def delete(view: Tables, store: str) -> Cleaned:
        cleaned = outcomes.results[store]
        items = cleaned.items + delete_meta(view, store)
        units = view.meter.delete_units + view.meter.write_units
        return replace(cleaned, items=items, write_units=cleaned.write_units + units)

    outcomes = each_store(tables, stores, empty, progress)
    kept_stores = {store: result for store, result in outcomes.results.items() if result.kept}
    emptied = (
        [] if outcomes.is_interrupted else [each for each in reversed(outcomes.results) if each not in kept_stores]
    )
    deletions = each_store(tables, emptied, delete, at_once=1)
    return replace(outcomes, stores=len(stores) - len(emptied), results=kept_stores) + deletions


def _first_batch(tables: Tables, namespace: str) -> str:
    """The reason to delete nothing yet: the current query may be in its first batch. Empty if that is committed."""
    try:
        store = of_namespace(tables, namespace).current[0]
    except ConfigurationError as error:
        return str(error)
    if is_first_batch_over(tables, store):
        return ""
    return "the current query may still be in its first batch; clean again after its second"
