"""How long the items of a running query have what the query removed from its state.

A removed row is in the changes of some versions, and its key in those of the version that removed it. It is in
snapshots, too, and in their buckets that later snapshots carry on. All of these go in this order:

1. A snapshot of the version that removed the row, or of a later one, is made. It does not have the row.
2. It is so much later than what clean-up has deleted that a clean-up is worth its requests.
3. It is older than all retained versions, so that none depends on anything before it.
4. A clean-up deletes what is before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from dynastate.engine import cleanup, snapshot_threshold
from dynastate.engine.catalog import of_namespace
from dynastate.errors import ConfigurationError
from dynastate.format.graph import VersionGraph
from dynastate.format.items import Item
from dynastate.format.keys import Key
from dynastate.format.version_list import VersionEntry
from dynastate.operations.cost.usage import newest_snapshot, usage_of_lists
from dynastate.operations.inspection.inspect import read_lists
from dynastate.operations.scope import each_store
from dynastate.progress import ProgressCallback, no_progress
from dynastate.settings import Settings
from dynastate.storage.tables import Tables

#: The time between two batches is the mean of this number of the newest versions, as in `dynastate top`.
RECENT_VERSIONS: Final = 10


@dataclass(frozen=True)
class RemovalSettings:
    """The settings of a query that decide how long removed rows stay. Defaults are Spark's and dynastate's own.

    Raises:
        ConfigurationError: a number is out of range.
    """

    retain: int = 100
    """`spark.sql.streaming.minBatchesToRetain`."""
    extra: float = 0.3
    """`spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint`."""
    min_deltas: int = 10
    """`spark.sql.streaming.stateStore.minDeltasForSnapshot`."""
    snapshot_threshold: float = float(Settings().snapshot_threshold)
    """`spark.sql.streaming.stateStore.dynastate.snapshotThreshold`."""
    maintenance_s: float = 60
    """`spark.sql.streaming.stateStore.maintenanceInterval`."""
    most: int = 0
    """`spark.sql.streaming.stateStore.maxVersionsToDeletePerMaintenance`; 0: no bound."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 <= value < math.inf:
                raise ConfigurationError(f"{name} must be 0 or more", got=value)

    @property
    def retained(self) -> int:
        """Versions that clean-up retains."""
        return max(2, self.retain)

    @property
    def offers(self) -> int:
        """Versions from one offer of a snapshot to the next, at least."""
        return max(1, self.min_deltas)

    @property
    def least(self) -> int:
        """Versions that a clean-up deletes at least."""
        return max(1, math.floor(self.extra * self.retain + 0.5))


@dataclass(frozen=True)
class RemovalDelay:
    """Batches from the one that removes a row to the last one after which an item has it, by what is waited for."""

    snapshot: int
    deletable: int
    retained: int
    clean_up: int
    backlog: int

    @property
    def batches(self) -> int:
        return sum(asdict(self).values())

    def minutes(self, batch_s: float, maintenance_s: float) -> float:
        """Minutes that this takes at most, with the run of maintenance after the last of these batches."""
        return (self.batches * batch_s + maintenance_s) / 60


#: What is waited for, with the settings that shorten it.
STEPS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "snapshot": ("next snapshot", ("snapshotThreshold", "minDeltasForSnapshot", "maintenanceInterval")),
    "deletable": ("enough versions to delete", ("ratioExtraSpaceAllowedInCheckpoint",)),
    "retained": ("retained versions", ("minBatchesToRetain",)),
    "clean_up": ("next clean-up", ("ratioExtraSpaceAllowedInCheckpoint", "maintenanceInterval")),
    "backlog": ("versions of one clean-up", ("maxVersionsToDeletePerMaintenance",)),
}


def delay_of(settings: RemovalSettings, batch_s: float, worth: int | None = None, waiting: int = 0) -> RemovalDelay:
    """The longest delay of a store with a batch every `batch_s` seconds.

    `worth` is the number of versions whose changes are worth a snapshot. Where it is not known, the delay is the
    longest of any changes: a snapshot is made after `snapshot_threshold.VERSIONS_MAX` versions in any case.
    `waiting` is the number of versions that clean-up has to delete first, where it deletes `settings.most` at a time.
    """
    ticks = math.floor(settings.maintenance_s / batch_s) + 1  # versions from one run of maintenance to the next
    most = snapshot_threshold.VERSIONS_MAX
    # A version with a removed row has changes, which alone are worth a snapshot if the threshold is 0.
    first = _snapshots_apart(settings, ticks, min(worth or most, most) if settings.snapshot_threshold else 1)
    later = _snapshots_apart(settings, ticks, min(worth or most, most))
    least_apart = max(settings.offers, worth or 1)
    # Where snapshots are close to each other, the first one may leave too few versions to delete.
    too_few = min(settings.least - 1, (settings.least - 1) // least_apart * later)
    if settings.most:  # the last turn may leave the newest `least` - 1 of the versions that it could delete
        too_few = settings.least - 1
    wait = max(first, too_few + later if too_few else 0) - 1
    clean_ups = settings.least - 1 + ticks
    # Turns delete the lowest versions first, so those that are made meanwhile do not count.
    at_once = max(settings.least - 1 + later, waiting) + clean_ups
    turns = math.ceil(at_once / settings.most) if settings.most else 1
    return RemovalDelay(
        snapshot=first - 1,
        deletable=wait - (first - 1),
        retained=settings.retained,
        clean_up=clean_ups - 1,
        backlog=(turns - 1) * ticks,
    )


def _snapshots_apart(settings: RemovalSettings, ticks: int, worth: int) -> int:
    """Versions from one snapshot to the next, at most, if one is made once there are `worth` versions."""
    offers = settings.offers - 1 + ticks
    # The last offer below `worth` versions; from one offer to the next are `settings.offers` to `offers` versions.
    declined = min(worth - 1, (worth - 1) // settings.offers * offers)
    return declined + offers


@dataclass(frozen=True)
class StoreRemoval:
    """How long one store has removed rows: expected as it changes now, and the longest, whatever it changes.

    `held_by` are the reasons why some stay longer than that.
    """

    store: str
    batch_s: float
    expected: RemovalDelay
    longest: RemovalDelay
    held_by: tuple[str, ...]


@dataclass(frozen=True)
class OperatorRemoval:
    """How long the stores of one operator have removed rows; the figures are of the store that has them longest."""

    operator: int
    stores: int
    slowest: StoreRemoval
    held_by: Mapping[str, int]
    """Reasons, with the number of stores."""


def removal_of_namespace(
    tables: Tables,
    namespace: str,
    settings: RemovalSettings,
    batch_s: float | None,
    progress: ProgressCallback = no_progress,
) -> list[OperatorRemoval]:
    """How long each operator of a namespace's current query has removed rows; one Query for each store.

    `batch_s` are the seconds between two batches, or None to take those of the newest versions.

    Raises:
        ConfigurationError: the time between two batches is not known.
    """
    names = of_namespace(tables, namespace, refuse_lost=True)

    def look(view: Tables, store: str) -> StoreRemoval:
        graph, items = read_lists(view, store)
        return removal_of_lists(graph, items, settings, batch_s)

    removals = each_store(tables, names.current, look, progress, until_failure=True).all()
    earlier = len(names.earlier)
    operators: dict[int, list[StoreRemoval]] = {}
    for removal in removals:
        operators.setdefault(int(removal.store.split("/")[1]), []).append(removal)
    return [_operator(operator, stores, earlier) for operator, stores in sorted(operators.items())]


def _operator(operator: int, stores: Sequence[StoreRemoval], earlier: int) -> OperatorRemoval:
    reasons = [reason for each in stores for reason in each.held_by]
    held_by = {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}
    if earlier:
        held_by["an earlier query left stores: dynastate clean deletes them"] = earlier
    slowest = max(stores, key=lambda store: store.expected.batches * store.batch_s)
    return OperatorRemoval(operator, len(stores), slowest, held_by)


def removal_of_lists(
    graph: VersionGraph, items: Mapping[Key, Item], settings: RemovalSettings, batch_s: float | None = None
) -> StoreRemoval:
    """How long a store has removed rows, by its version lists and manifests."""
    seconds = batch_s or _batch_s(graph)
    if not seconds:
        raise ConfigurationError(
            "the time between two batches is not known: the newest run has committed fewer than two versions; give "
            "it with --every SECONDS",
            store=graph.store,
        )
    listed = len(graph.versions())
    return StoreRemoval(
        graph.store,
        batch_s=seconds,
        expected=delay_of(
            settings, seconds, worth_of(graph, items, settings.snapshot_threshold), waiting=listed - settings.retained
        ),
        # Snapshots may have been made by other settings: then the next one may let go of all versions at once.
        longest=delay_of(settings, seconds, waiting=listed),
        held_by=tuple(_held_by(graph, settings, seconds)),
    )


def worth_of(graph: VersionGraph, items: Mapping[Key, Item], threshold: float) -> int | None:
    """Versions whose changes are worth a snapshot, by those that are listed. Returns None if they have no changes.

    Without a snapshot, its rows are taken to be as large as changed rows.
    """
    usage, snapshot = usage_of_lists(graph, items), newest_snapshot(graph)
    if not usage.record_bytes:
        return None
    size = snapshot.stored_bytes if snapshot else usage.rows * usage.record_bytes / usage.records
    changed = usage.record_bytes / usage.batches
    return max(1, math.ceil(snapshot_threshold.threshold_of(graph.store, threshold) * size / changed))


def _batch_s(graph: VersionGraph) -> float:
    """Seconds between two of the newest versions of the newest run, on average; 0 if they are not known."""
    newest = graph.newest() if graph.versions() else None
    recent: list[VersionEntry] = graph.lineage(newest)[-RECENT_VERSIONS:] if newest else []
    times = [entry.time_ms for entry in recent if newest and entry.epoch == newest.epoch]
    return (times[-1] - times[0]) / (len(times) - 1) / 1000 if len(times) > 1 else 0


def held_by_settings(settings: RemovalSettings, batch_s: float) -> list[str]:
    """The reasons why settings alone set no bound."""
    if settings.most and settings.most * batch_s <= settings.maintenance_s:
        return ["maxVersionsToDeletePerMaintenance is not above the versions that are made meanwhile"]
    return []


def _held_by(graph: VersionGraph, settings: RemovalSettings, batch_s: float) -> list[str]:
    """The reasons why items of a store have removed rows longer than clean-up would let them."""
    meta, reasons = graph.required_meta, []
    if meta.objects:
        reasons.append("an object in S3 stays whole while half of its buckets or more are needed")
    if forks := sorted({pin.split("/")[0] for pin in meta.forks}):
        reasons.append(f"forks need older versions: drop {', '.join(forks)}")
    if meta.pins:
        origin = meta.origin.split("/")[0]
        reasons.append(f"{origin} retains what this fork began with, until dynastate clean on the fork unpins it")
    if _has_foreign(graph, settings):
        reasons.append("another checkpoint location has made versions, which stay until the namespace is dropped")
    return [*reasons, *held_by_settings(settings, batch_s)]


def _has_foreign(graph: VersionGraph, settings: RemovalSettings) -> bool:
    """Whether clean-up retains versions of other locations."""
    if not graph.versions():
        return False
    newest = graph.newest()
    retention = cleanup.retention(graph, newest.version, newest.attempt, retain=settings.retained, epoch=newest.epoch)
    return retention is not None and bool(retention.foreign)
