"""Adoption of a namespace for another checkpoint location, after a checkpoint was moved (docs/decisions/0013)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from dynastate import runtime
from dynastate.engine.catalog import read_version_lists
from dynastate.engine.graphs import read_metas
from dynastate.engine.namespaces import read_record, refuse_erasing
from dynastate.engine.updates import advance_epoch
from dynastate.errors import ConfigurationError, UnavailableError
from dynastate.format.checkpoint import SCHEME
from dynastate.format.graph import VersionGraph
from dynastate.format.items import Item
from dynastate.format.keys import location_of, meta_key
from dynastate.format.meta import ADOPTION, EPOCHS_KEPT, HEIGHTS, LOCATIONS, by_epoch
from dynastate.format.namespace import namespace_key
from dynastate.format.spark_log import METADATA
from dynastate.operations.checkpoints import StoredCheckpoint
from dynastate.operations.lifecycle.runs import read_meta, refuse_runs
from dynastate.operations.scope import each_store
from dynastate.progress import ProgressCallback, no_progress
from dynastate.storage.tables import Tables


@dataclass(frozen=True)
class Adopted:
    """A namespace with its new location, and its locations `before`. `refused` runs cannot commit."""

    namespace: str
    location: str
    before: tuple[str, ...]
    stores: int
    refused: int
    write_units: int


def state_location(checkpoint: str) -> str:
    """The location of a checkpoint's state, by the checkpoint's URL or absolute path. Refuse a relative path."""
    location = location_of(f"{checkpoint}/state")
    if not checkpoint or not re.match(r"[^:]+:/", location):
        raise ConfigurationError("give the checkpoint's URL, or its absolute path", checkpoint=checkpoint)
    return location


def refuse_unready(tables: Tables, namespace: str, checkpoint: str) -> None:
    """Refuse a checkpoint in DynamoDB from which no query of the namespace can start. Others are not looked at."""
    if not checkpoint.startswith(SCHEME):
        return
    stored = StoredCheckpoint(tables, checkpoint)
    if stored.namespace() != namespace:
        raise ConfigurationError(
            f"the state of a checkpoint in DynamoDB is in the namespace of its location: give {SCHEME}{namespace}/NAME",
            checkpoint=checkpoint,
        )
    if stored.find(METADATA) is None:
        raise ConfigurationError(
            f"this checkpoint has no files: dynastate checkpoint OLD {stored.location} moves those of a stopped query "
            "there, and adopts",
            checkpoint=checkpoint,
        )


def locations_of(tables: Tables, stores: Sequence[str]) -> tuple[str, ...]:
    """The current locations of stores, without repetitions."""
    metas = read_metas(tables, stores).values()
    return tuple(dict.fromkeys(meta.location for meta in metas if meta.location))


def adopt_stores(
    tables: Tables, stores: Sequence[str], location: str, progress: ProgressCallback = no_progress
) -> Adopted:
    """Allow runs from a location to write to these stores, and refuse runs from other locations.

    First enter the location in the record of the namespace, if there is one. Then for each store:
    1. Make the version lists refuse the runs that have entered.
    2. Enter the location in the meta item, with a new epoch and the highest version. If another run has entered
       meanwhile, begin with step 1 again. From now on no run from another location enters.
    After a crash, stores refuse the runs of one of the locations until new runs enter. The same call completes it.
    """
    old_locations, old_units = locations_of(tables, stores), tables.meter.write_units
    namespace = stores[0].split("/")[0]
    _enter_record(tables, namespace, location)

    adopt = partial(_adopt, location=location)
    refused_runs = each_store(tables, stores, adopt, progress, until_failure=True).all()
    return Adopted(
        namespace,
        location,
        before=old_locations,
        stores=len(stores),
        refused=len({run for runs in refused_runs for run in runs}),
        write_units=tables.meter.write_units - old_units,
    )


def _enter_record(tables: Tables, namespace: str, location: str) -> None:
    """Enter a location in the record of a namespace, with a new epoch."""
    run = f"{ADOPTION}{runtime.new_id()}"
    for _ in range(EPOCHS_KEPT):
        record = read_record(tables, namespace)
        if record is None or record.location == location:
            return
        advance_epoch(tables, namespace_key(namespace), run, epochs=record.epochs, attributes={"location": location})
    raise _keeps_entering(namespace)


def _keeps_entering(store: str) -> UnavailableError:
    return UnavailableError("runs of a query keep entering this store; stop the query first", store=store)


def _adopt(tables: Tables, store: str, location: str) -> set[str]:
    """Adopt one store; return the runs that it refuses."""
    run = f"{ADOPTION}{runtime.new_id()}"
    for _ in range(EPOCHS_KEPT):
        meta = read_meta(tables, store)
        other_runs = {run for run, epoch in meta.epochs.items() if meta.location_at(epoch) != location}
        if meta.location == location:
            return other_runs
        if meta.dropped:
            raise ConfigurationError("this store is being dropped, so it cannot be adopted", store=store)
        refuse_erasing(store, meta)
        refuse_runs(tables, store, other_runs)  # 1
        highest = max(VersionGraph(store, read_version_lists(tables, store).items()).versions(), default=0)
        new_epoch = meta.epoch + 1
        attributes: Item = {
            LOCATIONS: by_epoch({**meta.locations, new_epoch: location}),
            HEIGHTS: by_epoch({**meta.heights, new_epoch: highest}),
        }
        if advance_epoch(tables, meta_key(store), run, epochs=meta.epochs, attributes=attributes):  # 2
            return other_runs
    raise _keeps_entering(store)
