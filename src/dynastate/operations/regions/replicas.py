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
    """The replica of a table that takes no part in replication, or not yet, with the status that DynamoDB gives."""

    table: str
    region: str
    status: str

    def __str__(self) -> str:
        return f"the replica of table {self.table} in {self.region} is {self.status}, needed is ACTIVE"


@dataclass(frozen=True)
class Side:
    """The tables in one Region, and the state of the namespace in them.

    `replicas` are the Regions of the tables' other replicas, and `unready` the replicas in any Region that are not
    ready. `version` is the newest version that all stores can open, or 0. `committed` is the time of the last commit,
    in ISO 8601, UTC, and `is_active` means that it is recent. If the Region does not answer, only `problems` are known.
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
class Selection:
    """The stores to look at: the stores of a namespace that a checkpoint's last batch committed, or all.

    `partitions` are the partitions with state in the checkpoint, by operator.
    """

    namespace: str
    committed: CommittedIds | None = None
    partitions: Mapping[str, Collection[int]] = field(default_factory=dict)


class _Look(NamedTuple):
    """One store: the time of its last commit, whether that is recent, and the versions that can be opened.

    `named` are the versions that the query opens by number, and `runs` the newest runs by epoch. `named` is None with
    format v2 of the checkpoint, which has ids.
    """

    committed: str
    is_active: bool
    readable: set[VersionId]
    named: Mapping[int, VersionEntry] | None
    runs: Mapping[int, str]

    @property
    def resumable(self) -> set[VersionId]:
        """The versions of this store from which the query can start."""
        return self.readable if self.named is None else self.readable & {each.id for each in self.named.values()}


@dataclass(frozen=True)
class Stores:
    """The stores on one side, with their state, and the stores of `earlier` queries."""

    looks: Mapping[str, _Look]
    earlier: Sequence[str]

    @property
    def newest(self) -> int:
        """The newest version that all stores can open, of one run. Returns 0 if there is none."""
        versions = ({number for number, _ in look.readable} for look in self.looks.values())
        return max(filter(self._is_of_one_run, set.intersection(*versions)), default=0)

    def have(self, committed: CommittedIds) -> bool:
        """Whether the checkpoint's query can start from the versions that a batch committed."""
        is_there = all(committed.are_in(store, look.resumable) for store, look in self.looks.items())
        return is_there and self._is_of_one_run(committed.version)

    def _is_of_one_run(self, version: int) -> bool:
        """Whether a number names versions of one run in all stores. With format v2 a number names no version."""
        named = [(look.named.get(version), look.runs) for look in self.looks.values() if look.named]
        return is_of_one_run([([entry], runs) for entry, runs in named if entry], version)


def look_at(
    tables: BotoTables, selection: Selection, progress: ProgressCallback = no_progress, *, lists_only: bool
) -> tuple[Side, Stores]:
    """Look at the tables in one Region, and at the stores there.

    With `lists_only` the versions that can be opened are known from version lists alone. Else items are read as
    `verify` does, except in stores without objects in S3 in strongly consistent replicas: a list has its parts there.
    """
    tables_by_role = tables.describe()
    region = tables.settings.region or str(tables_by_role["delta"]["TableArn"]).split(":")[3]
    replication = _replication(tables_by_role)
    try:
        stores = _read(tables, selection, progress, lists_only=lists_only, is_strong=replication == "strong")
    except ConfigurationError as error:
        error.facts["region"] = region
        raise
    delta, snapshot = ({each["RegionName"] for each in table.get("Replicas", ())} for table in tables_by_role.values())
    side = Side(
        region,
        replication,
        replicas=tuple(sorted((delta & snapshot) - {region})),
        unready=tuple(_unready(tables.names, tables_by_role)),
        version=stores.newest,
        committed=max(each.committed for each in stores.looks.values()),
        is_active=any(each.is_active for each in stores.looks.values()),
        problems=tuple(_problems(tables.names, tables_by_role)),
    )
    return side, stores


def missing_stores(selection: Selection, target: Stores, source: Stores | None) -> list[str]:
    """The stores that the target lacks, by the source's stores, the checkpoint, and gaps between partitions.

    If neither side has a store of an operator, only operator and partition are named.
    """
    partitions = _partitions_of_checkpoint(selection, target.earlier)
    names: dict[str, dict[str, None]] = {}
    for store in (*target.looks, *(source.looks if source is not None else ())):
        _, operator, partition, name = store.split("/", 3)
        names.setdefault(operator, {})[name] = None
        partitions.setdefault(operator, set()).update(range(int(partition) + 1))
    expected = (
        "/".join([selection.namespace, operator, str(partition), *name])
        for operator in sorted(partitions, key=int)
        for partition in sorted(partitions[operator])
        for name in [[each] for each in names.get(operator, ())] or [[]]
    )
    return [store for store in expected if store not in target.looks]


def _partitions_of_checkpoint(selection: Selection, earlier: Sequence[str]) -> dict[str, set[int]]:
    """The partitions with state in the checkpoint, by operator.

    Without a batch these are folders. Some may be of an `earlier` query at the same path, and are left out.
    """
    earlier_partitions = {
        (operator, int(partition)) for _, operator, partition, _ in (store.split("/", 3) for store in earlier)
    }
    return {
        operator: {each for each in partitions if (operator, each) not in earlier_partitions}
        for operator, partitions in selection.partitions.items()
    }


def _read(
    tables: BotoTables, selection: Selection, progress: ProgressCallback, *, lists_only: bool, is_strong: bool
) -> Stores:
    query_stores = of_namespace(tables, selection.namespace)
    names = (
        query_stores.current
        if selection.committed is None
        else selection.committed.listed(query_stores.current, query_stores.earlier)
    )

    def look(view: BotoTables, store: str) -> _Look:
        graph, items = read_lists(view, store)
        lineage = graph.lineage(graph.newest()) if graph.versions() else []
        if lists_only or (is_strong and not store_size(graph, items).object_bytes):
            readable = readable_versions(graph)
        else:
            # A part may arrive after the version list that names it, and objects of S3 are not replicated with it.
            report = verify(view, store)
            view.meter.add(report.meter)
            readable = {VersionId(each.version, each.attempt) for each in report.versions if each.is_readable}
        last = last_commit(lineage)
        return _Look(
            committed=last.committed,
            is_active=last.is_active,
            readable=readable,
            named=_named_by_numbers(graph, selection.committed),
            runs=graph.runs,
        )

    looks = each_store(tables, names, look, progress, until_failure=True).all()
    return Stores(dict(zip(names, looks, strict=True)), [store for store in query_stores.earlier if store not in names])


def _named_by_numbers(graph: VersionGraph, committed: CommittedIds | None) -> dict[int, VersionEntry] | None:
    """The versions from which a query can start by number. Returns None if the checkpoint has ids."""
    if committed is not None and committed.ids:
        return None
    entries = {}
    for version in graph.versions():
        with suppress(ConfigurationError, VersionMissingError):
            entries[version] = graph.find(version, NO_ATTEMPT, committed.run if committed else None)
    return entries


def _replication(tables: Mapping[Role, Mapping[str, Any]]) -> Replication:
    """The weaker replication of the two tables."""
    return next((kind for kind in map(_kind, tables.values()) if kind != "strong"), "strong")


def _kind(table: Mapping[str, Any]) -> Replication:
    if not table.get("Replicas"):
        return "none"
    return "strong" if table.get("MultiRegionConsistency") == "STRONG" else "asynchronous"


def _unready(names: Mapping[Role, str], tables: Mapping[Role, Mapping[str, Any]]) -> Iterator[UnreadyReplica]:
    for role, table in tables.items():
        for replica in table.get("Replicas", ()):
            if (status := replica.get("ReplicaStatus", "ACTIVE")) not in _READY:
                yield UnreadyReplica(names[role], replica["RegionName"], status)


def _problems(names: Mapping[Role, str], tables: Mapping[Role, dict[str, Any]]) -> Iterator[str]:
    for role, table in tables.items():
        yield from table_drift(role, names[role], table)
    kinds = {names[role]: _kind(table) for role, table in tables.items()}
    if len(set(kinds.values())) > 1:
        text = " and ".join(f"{name}: {kind}" for name, kind in kinds.items())
        yield f"the two tables have different replication: {text}"
