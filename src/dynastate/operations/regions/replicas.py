"""The tables in one Region: their replication, and the state of a namespace that can be opened there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from dynastate.dynamodb.boto_tables import BotoTables, table_drift
from dynastate.engine.catalog import of_namespace
from dynastate.errors import ConfigurationError, VersionMissingError
from dynastate.format.graph import VersionGraph, is_of_one_run
from dynastate.format.keys import NO_ATTEMPT, Role, VersionId
from dynastate.format.storage import store_size
from dynastate.format.version_list import VersionEntry
from dynastate.operations.inspection.inspect import last_commit, read_lists
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.rollback import CommittedIds, readable_versions
from dynastate.operations.scope import each_store
from dynastate.progress import ProgressCallback, no_progress

Replication = Literal["strong", "asynchronous", "none"]
#: Statuses of a replica that takes part in replication.
_READY: Final = ("ACTIVE", "UPDATING")


@dataclass(frozen=True)
class UnreadyReplica:
    """The replica of a table that takes no part in replication, or not yet, by DynamoDB's own word for it."""

    table: str
    region: str
    status: str

    def __str__(self) -> str:
        return f"the replica of table {self.table} in {self.region} is {self.status}, needed is ACTIVE"


@dataclass(frozen=True)
class Side:
    """The tables in one Region, and the state of the namespace in them.

    `replicas` are the Regions of their other replicas, and `unready` are those of any Region that are not ACTIVE.
    `version` is the newest that all stores can open (0: none). `committed` is the time of the last commit, in ISO 8601,
    UTC, and `is_active`: that is recent. `problems` say what is wrong there; of a Region that does not answer nothing
    else is known.
    """

    region: str
    replication: Replication = "none"
    replicas: tuple[str, ...] = ()
    unready: tuple[UnreadyReplica, ...] = ()
    version: int = 0
    committed: str = ""
    is_active: bool = False
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """The stores to look at: of a namespace those that a checkpoint's last batch committed, or all.

    `partitions` are those that the checkpoint has state of, by operator.
    """

    namespace: str
    committed: CommittedIds | None = None
    partitions: Mapping[str, Collection[int]] = field(default_factory=dict)


class _Look(NamedTuple):
    """One store: when it last committed, whether that is recent, and the attempts that can be opened.

    `named` are the versions that the query opens by number, and `runs` the newest runs by epoch; `named` is None with
    format v2 of the checkpoint, which has ids.
    """

    committed: str
    is_active: bool
    readable: set[VersionId]
    named: Mapping[int, VersionEntry] | None
    runs: Mapping[int, str]

    @property
    def resumable(self) -> set[VersionId]:
        """The attempts from which the query can start, as far as this store tells."""
        return self.readable if self.named is None else self.readable & {each.id for each in self.named.values()}


@dataclass(frozen=True)
class Stores:
    """The stores on one side, with what was found of each, and the others, of earlier queries."""

    looks: Mapping[str, _Look]
    earlier: Sequence[str]

    @property
    def newest(self) -> int:
        """The newest version that all can open, of one run; 0: none."""
        versions = ({number for number, _ in look.readable} for look in self.looks.values())
        return max(filter(self._is_of_one_run, set.intersection(*versions)), default=0)

    def have(self, committed: CommittedIds) -> bool:
        """Whether the checkpoint's query can start from what a batch committed."""
        is_there = all(committed.are_in(store, look.resumable) for store, look in self.looks.items())
        return is_there and self._is_of_one_run(committed.version)

    def _is_of_one_run(self, version: int) -> bool:
        """Whether a number names versions of one run in all stores. With ids it names none."""
        named = [(look.named.get(version), look.runs) for look in self.looks.values() if look.named]
        return is_of_one_run([([entry], runs) for entry, runs in named if entry], version)


def look_at(
    tables: BotoTables, wanted: Wanted, progress: ProgressCallback = no_progress, *, lists_only: bool
) -> tuple[Side, Stores]:
    """Look at the tables in one Region, and at the stores there.

    `lists_only`: what can be opened is known from version lists alone. Else items are read as `verify` does, but for
    stores whose parts must be there when the list is: those of strongly consistent replicas without objects in S3.

    Raises:
        ConfigurationError: there is none of the stores, or no table.
    """
    described = tables.describe()
    region = tables.settings.region or str(described["delta"]["TableArn"]).split(":")[3]
    replication = _replication(described)
    try:
        stores = _read(tables, wanted, progress, lists_only=lists_only, is_strong=replication == "strong")
    except ConfigurationError as failed:
        failed.facts["region"] = region
        raise
    replicas = set.intersection(*({each["RegionName"] for each in of.get("Replicas", ())} for of in described.values()))
    side = Side(
        region,
        replication,
        tuple(sorted(replicas - {region})),
        tuple(_unready(tables.names, described)),
        stores.newest,
        max(each.committed for each in stores.looks.values()),
        any(each.is_active for each in stores.looks.values()),
        tuple(_problems(tables.names, described)),
    )
    return side, stores


def missing_stores(wanted: Wanted, there: Stores, here: Stores | None) -> list[str]:
    """The stores that are not there: by those of the other side, by the checkpoint, and by gaps between partitions.

    Where neither side has a store of an operator, only its partition is named.
    """
    partitions = _partitions_of_checkpoint(wanted, there.earlier)
    names: dict[str, dict[str, None]] = {}
    for store in (*there.looks, *(here.looks if here is not None else ())):
        _, operator, partition, name = store.split("/", 3)
        names.setdefault(operator, {})[name] = None
        partitions.setdefault(operator, set()).update(range(int(partition) + 1))
    expected = (
        "/".join([wanted.namespace, operator, str(partition), *name])
        for operator in sorted(partitions, key=int)
        for partition in sorted(partitions[operator])
        for name in [[each] for each in names.get(operator, ())] or [[]]
    )
    return [store for store in expected if store not in there.looks]


def _partitions_of_checkpoint(wanted: Wanted, earlier: Sequence[str]) -> dict[str, set[int]]:
    """The partitions that the checkpoint has state of, by operator.

    Without a batch these are folders, of which some may be of an `earlier` query that was started at the same path.
    """
    left = {(operator, int(partition)) for _, operator, partition, _ in (store.split("/", 3) for store in earlier)}
    return {
        operator: {each for each in partitions if (operator, each) not in left}
        for operator, partitions in wanted.partitions.items()
    }


def _read(
    tables: BotoTables, wanted: Wanted, progress: ProgressCallback, *, lists_only: bool, is_strong: bool
) -> Stores:
    found = of_namespace(tables, wanted.namespace)
    names = found.current if wanted.committed is None else wanted.committed.listed(found.current, found.earlier)

    def look(view: BotoTables, store: str) -> _Look:
        graph, items = read_lists(view, store)
        lineage = graph.lineage(graph.newest()) if graph.versions() else []
        if lists_only or (is_strong and not store_size(graph, items).object_bytes):
            readable = readable_versions(graph)
        else:
            # A part may arrive after the version list that names it; and objects of S3 are not replicated with it.
            report = verify(view, store)
            view.meter.add(report.meter)
            readable = {VersionId(each.version, each.attempt) for each in report.versions if each.is_readable}
        last = last_commit(lineage)
        return _Look(last.committed, last.is_active, readable, _named_by_numbers(graph, wanted.committed), graph.runs)

    looks = each_store(tables, names, look, progress, until_failure=True).all()
    return Stores(dict(zip(names, looks, strict=True)), [store for store in found.earlier if store not in names])


def _named_by_numbers(graph: VersionGraph, committed: CommittedIds | None) -> dict[int, VersionEntry] | None:
    """The versions that a query opens by number; from others it does not start. None: it has ids instead."""
    if committed is not None and committed.ids:
        return None
    named = {}
    for version in graph.versions():
        with suppress(ConfigurationError, VersionMissingError):
            named[version] = committed.named_in(graph, version) if committed else graph.find(version, NO_ATTEMPT)
    return named


def _replication(described: Mapping[Role, Mapping[str, Any]]) -> Replication:
    """The weaker replication of the two tables."""
    return next((kind for kind in map(_kind, described.values()) if kind != "strong"), "strong")


def _kind(table: Mapping[str, Any]) -> Replication:
    if not table.get("Replicas"):
        return "none"
    return "strong" if table.get("MultiRegionConsistency") == "STRONG" else "asynchronous"


def _unready(names: Mapping[Role, str], described: Mapping[Role, Mapping[str, Any]]) -> Iterator[UnreadyReplica]:
    for role, table in described.items():
        for each in table.get("Replicas", ()):
            if (status := each.get("ReplicaStatus", "ACTIVE")) not in _READY:
                yield UnreadyReplica(names[role], each["RegionName"], status)


def _problems(names: Mapping[Role, str], described: Mapping[Role, dict[str, Any]]) -> Iterator[str]:
    for role, table in described.items():
        yield from table_drift(role, names[role], table)
    kinds = {names[role]: _kind(table) for role, table in described.items()}
    if len(set(kinds.values())) > 1:
        said = " and ".join(f"{name}: {kind}" for name, kind in kinds.items())
        yield f"the two tables have different replication: {said}"
