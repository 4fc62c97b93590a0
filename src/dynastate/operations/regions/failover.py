"""Failover of a query to the tables in another Region: both sides are checked, and nothing is changed.

docs/second-region.md has the kinds of replicas, and what each may lose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from dynastate.counts import plural
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.client import region_of
from dynastate.engine.catalog import SHOWN_MAX
from dynastate.errors import ConfigurationError, DynastateError
from dynastate.operations.lifecycle.adopt import locations_of, state_location
from dynastate.operations.lifecycle.rollback import COMMITS, OFFSETS, Checkpoint, committed_ids
from dynastate.operations.regions.replicas import Side, Stores, Wanted, look_at, missing_stores
from dynastate.progress import ProgressCallback, no_progress
from dynastate.settings import DELTA_TABLE, PREFIX, SNAPSHOT_TABLE, Settings
from dynastate.storage.meter import Meter

#: Seconds for which a request is tried in the first Region, which may be lost.
SOURCE_DEADLINE_S: Final = 10


@dataclass(frozen=True)
class Failover:
    """Both sides, and the steps of a failover; none where `problems` keep the query from running there.

    With a checkpoint, the query continues with `batch`, after `undone` batches of the checkpoint were taken back.
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


@dataclass(frozen=True)
class _Resumption:
    """The checkpoint's last batch whose state all stores can open, and the number of batches after it."""

    last: int
    undone: int


def plan_failover(
    open_source: Callable[[Settings], BotoTables],
    source: Settings,
    target: BotoTables,
    namespace: str,
    checkpoint: Checkpoint | None = None,
    progress: ProgressCallback = no_progress,
) -> Failover:
    """Check both sides, and list the steps.

    Of the source only version lists are read; it need not answer, and its requests end after `SOURCE_DEADLINE_S`. Of
    the target too, where its replicas are strongly consistent; but every item of stores with objects in S3, and of all
    stores where they are not, as `verify` does.

    Raises:
        ConfigurationError: no store of the namespace is in the target's tables, or these do not exist; or the
            checkpoint is that of another namespace.
        DynastateError: the target's Region does not answer.
    """
    target = target.metered(Meter())
    wanted = _wanted(namespace, checkpoint)
    there, stores = look_at(target, wanted, progress, lists_only=False)
    here, others = _ask(open_source, source, wanted, target.meter)
    resumption = _resumption(stores, checkpoint) if checkpoint is not None else None
    problems = [*there.problems, *_differences(here, there), *_missing(there, missing_stores(wanted, stores, others))]
    if not stores.newest:
        problems.append(f"no version can be opened in all stores in {there.region}")
    elif checkpoint is not None and resumption is None:
        problems.append(
            f"no batch of the checkpoint has its state in {there.region}; its newest version is that of batch "
            f"{stores.newest - 1}"
        )
    steps: list[str] = []
    if not problems:
        steps = [
            _stop(here, there),
            *_checkpoint_steps(target, namespace, stores, checkpoint, resumption),
        ]
        steps.append(_start(target.settings, there.region, namespace, checkpoint))
    return Failover(
        namespace,
        here,
        there,
        len(stores.looks),
        None if resumption is None else resumption.last + 1,
        0 if resumption is None else resumption.undone,
        target.meter.requests,
        target.meter.read_units,
        tuple(problems),
        tuple(steps),
    )


def _wanted(namespace: str, checkpoint: Checkpoint | None) -> Wanted:
    """The stores to look at. Refuse the checkpoint of another namespace."""
    if checkpoint is None:
        return Wanted(namespace)
    other = checkpoint.namespace()
    if other != namespace:
        raise ConfigurationError(
            f"the state of this checkpoint is in the namespace {other}, not in {namespace}; give the checkpoint of the "
            "query that is to continue",
            checkpoint=checkpoint.location,
        )
    whole = _whole_batches(checkpoint)
    committed = committed_ids(checkpoint, whole[-1]) if whole else None
    return Wanted(namespace, committed, committed.partitions if committed else checkpoint.partitions())


def _whole_batches(checkpoint: Checkpoint) -> list[int]:
    """The batches with offsets and a commit, in order."""
    return sorted(checkpoint.batches(OFFSETS).keys() & checkpoint.batches(COMMITS).keys())


def _resumption(stores: Stores, checkpoint: Checkpoint) -> _Resumption | None:
    """Find the last batch from which the query can resume; None: no batch has its state there."""
    for undone, batch in enumerate(reversed(_whole_batches(checkpoint))):
        if stores.have(committed_ids(checkpoint, batch)):
            return _Resumption(batch, undone)
    return None


def _ask(
    open_source: Callable[[Settings], BotoTables], source: Settings, wanted: Wanted, meter: Meter
) -> tuple[Side, Stores | None]:
    """Look at the first Region, which may not answer."""
    limited = replace(source, request_deadline_s=min(source.request_deadline_s, SOURCE_DEADLINE_S))
    try:
        with closing(open_source(limited)) as tables:
            return look_at(tables.metered(meter), wanted, lists_only=True)
    except DynastateError as failed:
        return Side(region_of(source), problems=(str(failed),)), None


def _differences(here: Side, there: Side) -> Iterator[str]:
    """Problems between the two sides: the target has to be a replica of the source's tables, and ready."""
    yield from dict.fromkeys(str(each) for each in (*there.unready, *here.unready) if each.region == there.region)
    if here.version and there.replication != "none" and here.region not in there.replicas:
        yield f"the tables in {there.region} have no replica in {here.region}"


def _missing(there: Side, stores: Sequence[str]) -> Iterator[str]:
    if stores:
        verb, more = "is" if len(stores) == 1 else "are", ", …" if len(stores) > SHOWN_MAX else ""
        named = ", ".join(stores[:SHOWN_MAX])
        yield f"{plural(len(stores), 'store')} {verb} missing in {there.region}: {named}{more}"


def _stop(here: Side, there: Side) -> str:
    if here.is_active or there.is_active:
        text = f"Stop the query in {here.region}: it committed at {max(here.committed, there.committed)}."
    else:
        text = f"See that the query in {here.region or 'the first Region'} does not run, and is not started again."
    if there.replication == "strong":
        return f"{text} A commit that comes late is refused once the query has begun in {there.region}."
    if there.replication == "asynchronous":
        return f"{text} What it commits from now on is lost, or mixes with what is committed in {there.region}."
    return f"{text} What it commits from now on is lost."


def _checkpoint_steps(
    target: BotoTables,
    namespace: str,
    stores: Stores,
    checkpoint: Checkpoint | None,
    resumption: _Resumption | None,
) -> list[str]:
    """The steps that bring the state to the checkpoint's location, and the checkpoint to the state."""
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
            f"Take the checkpoint back, since the state of later batches cannot be opened there: dynastate rollback "
            f"{checkpoint.location} --to {resumption.last}{options}"
        )
    return steps


def _start(settings: Settings, region: str, namespace: str, checkpoint: Checkpoint | None) -> str:
    wanted = {"region": region, "namespace": namespace}
    wanted |= {"endpoint": settings.endpoint} if settings.endpoint else {}
    confs = ", ".join(f"{PREFIX}{name}={value}" for name, value in wanted.items())
    place = f" and checkpointLocation {checkpoint.location}" if checkpoint is not None else ""
    return f"Start the query with {confs}{place}."


def _options(settings: Settings) -> str:
    """The options by which a command finds these tables."""
    given = {
        "region": settings.region,
        "endpoint": settings.endpoint,
        "delta-table": "" if settings.delta_table == DELTA_TABLE else settings.delta_table,
        "snapshot-table": "" if settings.snapshot_table == SNAPSHOT_TABLE else settings.snapshot_table,
    }
    return "".join(f" --{name} {value}" for name, value in given.items() if value)
