"""Failover of a query to the tables in another Region: both sides are checked, and nothing is changed.

docs/second-region.md has the kinds of replicas, and what each may lose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from dynastate.counts import plural
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.client import region_of
from dynastate.engine.catalog import SHOWN_MAX
from dynastate.errors import ConfigurationError, DynastateError
from dynastate.format.spark_log import COMMITS, OFFSETS
from dynastate.operations.checkpoints import QueryCheckpoint
from dynastate.operations.lifecycle.adopt import locations_of, state_location
from dynastate.operations.lifecycle.rollback import committed_ids
from dynastate.operations.regions.replicas import Selection, Side, Stores, look_at, missing_stores
from dynastate.progress import ProgressCallback, no_progress
from dynastate.settings import DELTA_TABLE, PREFIX, SNAPSHOT_TABLE, Settings
from dynastate.storage.meter import Meter

#: The deadline of a request in the first Region, which may be lost.
SOURCE_DEADLINE_S: Final = 10


@dataclass(frozen=True)
class Failover:
    """Both sides, and the steps of a failover. With `problems` the query cannot run there, and there are no steps.

    With a checkpoint, the query continues with `batch`, after a rollback of `undone` batches of the checkpoint.
    """

    namespace: str
    source: Side
    target: Side
    stores: int
    batch: int | None
    undone: int
    requests: int
    read_units: int
    problems: tuple[str, ...]
    steps: tuple[str, ...]


class _Resumption(NamedTuple):
    """The checkpoint's last batch whose state all stores can open, and the number of batches after it."""

    last: int
    undone: int


def plan_failover(
    open_source: Callable[[Settings], BotoTables],
    source: Settings,
    target: BotoTables,
    namespace: str,
    checkpoint: QueryCheckpoint | None = None,
    progress: ProgressCallback = no_progress,
) -> Failover:
    """Check both sides, and list the steps.

    In the source only version lists are read. It need not answer, and its requests end after `SOURCE_DEADLINE_S`. In
    the target every item is read, as `verify` does. If the target's replicas are strongly consistent, only version
    lists are read of stores without objects in S3.
    """
    target = target.metered(Meter())
    selection = _selection(namespace, checkpoint)
    target_side, stores = look_at(target, selection, progress, lists_only=False)
    source_side, source_stores = _look_at_source(open_source, source, selection, target.meter)
    resumption = _resumption(stores, checkpoint) if checkpoint is not None else None
    problems = [*target_side.problems, *_differences(source_side, target_side)]
    problems += _missing(target_side, missing_stores(selection, stores, source_stores))
    if not stores.newest:
        problems.append(f"no version can be opened in all stores in {target_side.region}")
    elif checkpoint is not None and resumption is None:
        problems.append(
            f"no batch of the checkpoint has its state in {target_side.region}; its newest version is that of batch "
            f"{stores.newest - 1}"
        )
    steps: list[str] = []
    if not problems:
        steps.append(_stop(source_side, target_side))
        steps += _checkpoint_steps(target, namespace, stores=stores, checkpoint=checkpoint, resumption=resumption)
        steps.append(_start(target.settings, target_side.region, namespace, checkpoint))
    return Failover(
        namespace,
        source=source_side,
        target=target_side,
        stores=len(stores.looks),
        batch=None if resumption is None else resumption.last + 1,
        undone=0 if resumption is None else resumption.undone,
        requests=target.meter.requests,
        read_units=target.meter.read_units,
        problems=tuple(problems),
        steps=tuple(steps),
    )


def _selection(namespace: str, checkpoint: QueryCheckpoint | None) -> Selection:
    """The stores to look at. Refuse the checkpoint of another namespace."""
    if checkpoint is None:
        return Selection(namespace)
    other = checkpoint.namespace()
    if other != namespace:
        raise ConfigurationError(
            f"the state of this checkpoint is in the namespace {other}, not in {namespace}; give the checkpoint of the "
            "query that is to continue",
            checkpoint=checkpoint.location,
        )
    batches = _whole_batches(checkpoint)
    committed = committed_ids(checkpoint, batches[-1]) if batches else None
    return Selection(namespace, committed, committed.partitions if committed else checkpoint.partitions())


def _whole_batches(checkpoint: QueryCheckpoint) -> list[int]:
    """The batches with offsets and a commit, in order."""
    return sorted(checkpoint.batches(OFFSETS).keys() & checkpoint.batches(COMMITS).keys())


def _resumption(stores: Stores, checkpoint: QueryCheckpoint) -> _Resumption | None:
    """The last batch from which the query can resume. Returns None if no batch has its state there."""
    for undone, batch in enumerate(reversed(_whole_batches(checkpoint))):
        if stores.have(committed_ids(checkpoint, batch)):
            return _Resumption(batch, undone)
    return None


def _look_at_source(
    open_source: Callable[[Settings], BotoTables], source: Settings, selection: Selection, meter: Meter
) -> tuple[Side, Stores | None]:
    """Look at the first Region, which may not answer."""
    settings = replace(source, request_deadline_s=min(source.request_deadline_s, SOURCE_DEADLINE_S))
    try:
        with closing(open_source(settings)) as tables:
            return look_at(tables.metered(meter), selection, lists_only=True)
    except DynastateError as error:
        return Side(region_of(source), problems=(str(error),)), None


def _differences(source: Side, target: Side) -> Iterator[str]:
    """Problems between the two sides: the target must be a ready replica of the source's tables."""
    yield from dict.fromkeys(str(each) for each in (*target.unready, *source.unready) if each.region == target.region)
    if source.version and target.replication != "none" and source.region not in target.replicas:
        yield f"the tables in {target.region} have no replica in {source.region}"


def _missing(target: Side, stores: Sequence[str]) -> Iterator[str]:
    if stores:
        verb, ellipsis = "is" if len(stores) == 1 else "are", ", …" if len(stores) > SHOWN_MAX else ""
        names = ", ".join(stores[:SHOWN_MAX])
        yield f"{plural(len(stores), 'store')} {verb} missing in {target.region}: {names}{ellipsis}"


def _stop(source: Side, target: Side) -> str:
    if source.is_active or target.is_active:
        text = f"Stop the query in {source.region}: it committed at {max(source.committed, target.committed)}."
    else:
        text = f"See that the query in {source.region or 'the first Region'} does not run, and is not started again."
    if target.replication == "strong":
        return f"{text} A commit that comes late is refused once the query has begun in {target.region}."
    if target.replication == "asynchronous":
        return f"{text} What it commits from now on is lost, or mixes with what is committed in {target.region}."
    return f"{text} What it commits from now on is lost."


def _checkpoint_steps(
    target: BotoTables,
    namespace: str,
    stores: Stores,
    checkpoint: QueryCheckpoint | None,
    resumption: _Resumption | None,
) -> list[str]:
    """The steps that make state and checkpoint agree in location and batch."""
    if checkpoint is None or resumption is None:
        last = f"Its last batch in commits/ must be {stores.newest - 1} or an earlier one"
        return [f"Bring the checkpoint there. {last}; give --checkpoint to see which steps it needs."]
    steps: list[str] = []
    options = _options(target.settings)
    location = state_location(checkpoint.location)
    if locations_of(target, list(stores.looks)) != (location,):
        steps.append(
            "Let the query write from the checkpoint's new location: dynastate adopt "
            f"{namespace} --checkpoint {checkpoint.location}{options}"
        )
    if resumption.undone:  # a rollback refuses a checkpoint that the namespace does not belong to
        steps.append(
            "Take the checkpoint back, since the state of later batches cannot be opened there: dynastate rollback "
            f"{checkpoint.location} --to {resumption.last}{options}"
        )
    return steps


def _start(settings: Settings, region: str, namespace: str, checkpoint: QueryCheckpoint | None) -> str:
    options = {"region": region, "namespace": namespace}
    options |= {"endpoint": settings.endpoint} if settings.endpoint else {}
    confs = ", ".join(f"{PREFIX}{name}={value}" for name, value in options.items())
    location = f" and checkpointLocation {checkpoint.location}" if checkpoint is not None else ""
    return f"Start the query with {confs}{location}."


def _options(settings: Settings) -> str:
    """The options of a command for these tables."""
    options = {
        "region": settings.region,
        "endpoint": settings.endpoint,
        "delta-table": "" if settings.delta_table == DELTA_TABLE else settings.delta_table,
        "snapshot-table": "" if settings.snapshot_table == SNAPSHOT_TABLE else settings.snapshot_table,
    }
    return "".join(f" --{name} {value}" for name, value in options.items() if value)
