"""Failover of a query to the tables in another Region: both sides are checked, and nothing is changed.

docs/second-region.md has the kinds of replicas, and what each may lose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from dynastate.dynamodb.boto_tables import BotoTables, table_drift
from dynastate.dynamodb.meter import Meter
from dynastate.engine.catalog import of_namespace
from dynastate.errors import ConfigurationError, DynastateError
from dynastate.format.keys import VersionId
from dynastate.operations.adopt import locations_of, state_location
from dynastate.operations.inspect import StoreSummary, read_lists, summarize
from dynastate.operations.rollback import COMMITS, OFFSETS, Checkpoint, committed_ids, readable_versions
from dynastate.operations.scope import each_store, metered
from dynastate.operations.verify import verify
from dynastate.progress import ProgressCallback, no_progress
from dynastate.settings import DELTA_TABLE, PREFIX, SNAPSHOT_TABLE, Settings

Replication = Literal["strong", "asynchronous", "none"]
#: Seconds for which a request is tried in the Region that is left.
SOURCE_DEADLINE_S: Final = 10


@dataclass(frozen=True)
class Side:
    """The tables in one Region, and the state of the namespace in them.

    `replicas` are the Regions of their other replicas, and `version` is the newest that all stores can open (0: none).
    `committed` is the time of the last commit, in ISO 8601, UTC, and `is_active`: that is recent. `problems` say what
    is wrong there; of a Region that does not answer nothing else is known.
    """

    region: str
    replication: Replication = "none"
    replicas: tuple[str, ...] = ()
    version: int = 0
    committed: str = ""
    is_active: bool = False
    problems: tuple[str, ...] = ()


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


class _Stores:
    """The stores of a namespace on one side, and the attempts of each that can be opened there."""

    def __init__(
        self, tables: BotoTables, namespace: str, replication: Replication, meter: Meter, progress: ProgressCallback
    ) -> None:
        self.names: Sequence[str] = of_namespace(tables, namespace, meter).current

        def look(store: str, own: Meter) -> tuple[StoreSummary, set[VersionId]]:
            graph, items = read_lists(tables, store, own)
            found = summarize(graph, items)
            if replication == "strong" and not found.object_bytes:
                return found, readable_versions(graph)
            # A part may arrive after the version list that names it; and objects of S3 are not replicated with it.
            report = verify(tables, store)
            own.add(report.meter)
            return found, {VersionId(each.version, each.attempt) for each in report.versions if each.is_readable}

        looked = each_store(tables, self.names, metered(look, meter), progress, until_failure=True).all()
        self.readable = {found.store: readable for found, readable in looked}
        self.committed = max(found.committed for found, _ in looked)
        self.is_active = any(found.is_active for found, _ in looked)

    @property
    def newest(self) -> int:
        """The newest version that all can open; 0: none."""
        return max(set.intersection(*({number for number, _ in each} for each in self.readable.values())), default=0)

    def resumption(self, checkpoint: Checkpoint) -> _Resumption | None:
        """Find the last batch from which the query can resume; None: no batch has its state here."""
        whole = sorted(checkpoint.batches(OFFSETS).keys() & checkpoint.batches(COMMITS).keys())
        for undone, batch in enumerate(reversed(whole)):
            wanted = committed_ids(checkpoint, batch)
            if all(wanted.are_in(store, readable) for store, readable in self.readable.items()):
                return _Resumption(batch, undone)
        return None


def plan_failover(
    open_source: Callable[[Settings], BotoTables],
    source: Settings,
    target: BotoTables,
    namespace: str,
    checkpoint: Checkpoint | None = None,
    progress: ProgressCallback = no_progress,
) -> Failover:
    """Check both sides, and list the steps.

    Of strongly consistent replicas only version lists are read; of others every item, as `verify` does. The source's
    Region need not answer: its requests end after `SOURCE_DEADLINE_S`.

    Raises:
        ConfigurationError: no store of the namespace is in the target's tables, or these do not exist.
        DynastateError: the target's Region does not answer.
    """
    meter = Meter()
    there, stores = _side(target, namespace, meter, progress)
    here = _ask(open_source, source, namespace, meter)
    problems = list(there.problems)
    if here.version and there.replication != "none" and here.region not in there.replicas:
        problems.append(f"the tables in {there.region} have no replica in {here.region}")
    resumption = stores.resumption(checkpoint) if checkpoint is not None else None
    if not stores.newest:
        problems.append(f"no version can be opened in all stores in {there.region}")
    elif checkpoint is not None and resumption is None:
        problems.append(
            f"no batch of the checkpoint has its state in {there.region}; its newest version is that of batch "
            f"{stores.newest - 1}"
        )
    steps: list[str] = []
    if not problems:
        steps = [_stop(here, there), *_checkpoint_steps(target, namespace, stores, checkpoint, resumption, meter)]
        steps.append(_start(target.settings, there.region, namespace, checkpoint))
    return Failover(
        namespace,
        here,
        there,
        len(stores.names),
        None if resumption is None else resumption.last + 1,
        0 if resumption is None else resumption.undone,
        meter.requests,
        meter.read_units,
        tuple(problems),
        tuple(steps),
    )


def _ask(open_source: Callable[[Settings], BotoTables], source: Settings, namespace: str, meter: Meter) -> Side:
    """Look at the side that is left, which may not answer."""
    wanted = replace(source, request_deadline_s=min(source.request_deadline_s, SOURCE_DEADLINE_S))
    try:
        with closing(open_source(wanted)) as tables:
            return _side(tables, namespace, meter, no_progress, reads_all=False)[0]
    except DynastateError as failed:
        return Side(source.region, problems=(str(failed),))


def _side(
    tables: BotoTables, namespace: str, meter: Meter, progress: ProgressCallback, *, reads_all: bool = True
) -> tuple[Side, _Stores]:
    described = tables.describe()
    problems = [line for role, each in described.items() for line in table_drift(role, tables.names[role], each)]
    kinds = {tables.names[role]: _replication(each) for role, each in described.items()}
    if len(set(kinds.values())) > 1:
        said = " and ".join(f"{name}: {kind}" for name, kind in kinds.items())
        problems.append(f"the two tables have different replication: {said}")
    replication: Replication = next((kind for kind in kinds.values() if kind != "strong"), "strong")
    region = tables.settings.region or str(described["delta"]["TableArn"]).split(":")[3]
    replicas = set.intersection(*({each["RegionName"] for each in of.get("Replicas", ())} for of in described.values()))
    try:
        stores = _Stores(tables, namespace, replication if reads_all else "strong", meter, progress)
    except ConfigurationError as failed:
        failed.facts["region"] = region
        raise
    return (
        Side(
            region,
            replication,
            tuple(sorted(replicas - {region})),
            stores.newest,
            stores.committed,
            stores.is_active,
            tuple(problems),
        ),
        stores,
    )


def _replication(table: Mapping[str, Any]) -> Replication:
    if not table.get("Replicas"):
        return "none"
    return "strong" if table.get("MultiRegionConsistency") == "STRONG" else "asynchronous"


def _stop(here: Side, there: Side) -> str:
    if here.is_active or there.is_active:
        text = f"Stop the query in {here.region}: it committed at {max(here.committed, there.committed)}."
    else:
        text = f"See that the query in {here.region or 'the first Region'} does not run, and is not started again."
    if there.replication == "strong":
        return f"{text} A commit that comes late is refused once the query has begun in {there.region}."
    return f"{text} What it commits from now on is lost, or mixes with what is committed in {there.region}."


def _checkpoint_steps(
    target: BotoTables,
    namespace: str,
    stores: _Stores,
    checkpoint: Checkpoint | None,
    resumption: _Resumption | None,
    meter: Meter,
) -> list[str]:
    """The steps that bring the checkpoint to the state, and the state to the checkpoint's location."""
    if checkpoint is None or resumption is None:
        last = f"Its last batch in commits/ must be {stores.newest - 1} or one before"
        return [f"Bring the checkpoint there. {last}; give --checkpoint to see which steps it needs."]
    steps: list[str] = []
    options = _options(target.settings)
    if resumption.undone:
        steps.append(
            f"Take the checkpoint back, since the state of later batches is not there: dynastate rollback "
            f"{checkpoint.location} --to {resumption.last}{options}"
        )
    location = state_location(checkpoint.location)
    if locations_of(target, stores.names, meter) != (location,):
        steps.append(
            "Let the query write from the checkpoint's new location: dynastate adopt "
            f"{namespace} --checkpoint {checkpoint.location}{options}"
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
