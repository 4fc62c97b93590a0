"""Rollback of a stopped query: its checkpoint goes back to an earlier batch, and its state needs no change.

A query that starts reads the version of its last committed batch, and ignores versions above it. So it is enough to
delete the offsets and commits of later batches, the newest first. After each deletion the checkpoint looks like the
checkpoint of a killed query.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from dynastate import runtime
from dynastate.engine.catalog import of_namespace
from dynastate.errors import ConfigurationError
from dynastate.format.graph import Listed, VersionGraph, is_of_one_run
from dynastate.format.keys import NO_ATTEMPT, VersionId, location_of
from dynastate.format.meta import QueryRun
from dynastate.format.spark_log import (
    COMMITS,
    METADATA,
    OFFSETS,
    malformed,
    parse_conf,
    parse_description,
    parse_ids,
    parse_object,
    parse_offsets,
)
from dynastate.operations.checkpoints import QueryCheckpoint
from dynastate.operations.inspection.inspect import iso_time, read_lists
from dynastate.operations.lifecycle.runs import refuse_copy
from dynastate.operations.scope import each_store
from dynastate.progress import ProgressCallback, no_progress
from dynastate.storage.tables import Tables

Parsed = TypeVar("Parsed")
#: The message of a rollback if a query writes to the stores.
IS_WRITTEN: Final = "a query writes to this namespace: stop it, and roll back again; with --force it is not looked for"
#: The prefix of the name of the folder with the copy.
COPY: Final = "before-rollback-"
#: Batches after one, and those of them that were committed.
_Later = tuple[tuple[int, ...], tuple[int, ...]]
#: Spark's conf of the number of partitions, which a checkpoint keeps from its first batch on.
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
#: The file that describes an operator, in format v1, or in v2 with the number of its batch.
_DESCRIPTION: Final = re.compile(r"state/([0-9]+)/_metadata/(?:metadata|v2/([0-9]+))")
#: Spark's names of operators that always have keys, and so a partition for each shuffle partition.
_KEYED: Final = {
    "dedupe",
    "dedupeWithinWatermark",
    "flatMapGroupsWithState",
    "applyInPandasWithState",
    "symmetricHashJoin",
    "transformWithStateExec",
    "transformWithStateInPandasExec",
    "transformWithStateInPySparkExec",
}


@dataclass(frozen=True)
class BatchLog:
    """One batch of a checkpoint: the time when it began, and the end of each source's data, as JSON texts."""

    batch: int
    began: str
    offsets: tuple[str, ...]


@dataclass(frozen=True)
class Rollback:
    """A possible rollback: from batch `last` to batch `to`, whose state is version `to` + 1 of all `stores`.

    It undoes the batches `undone`, of which some are `committed`.
    """

    checkpoint: str
    namespace: str
    to: BatchLog
    last: BatchLog
    undone: tuple[int, ...]
    committed: tuple[int, ...]
    stores: tuple[str, ...]
    copy: str


@dataclass(frozen=True)
class CommittedIds:
    """The version that a batch committed, and its ids by operator and partition. Format v1 of checkpoints has no ids.

    `partitions` are the committed partitions by operator: with format v1 those with a folder in the checkpoint.
    `run` is a run of the query, without an id.
    """

    version: int
    ids: Mapping[str, Sequence[Sequence[str]]]
    partitions: Mapping[str, Collection[int]]
    run: QueryRun

    def lists(self, store: str) -> bool:
        """Whether the batch committed this store. Format v1 does not say, so it may have committed any."""
        operator, partition = _place(store)
        return not self.ids or partition < len(self.ids.get(operator, ()))

    def find(self, stores: Iterable[str], earlier: Iterable[str] = ()) -> list[str]:
        """The stores of a namespace that the batch committed: Spark opens no others.

        Some may be `earlier` stores: another query with fewer partitions has run there since.
        """
        committed = [store for store in stores if self.lists(store)]
        return committed + [store for store in earlier if _place(store) in self._places]

    def listed(self, stores: Iterable[str], earlier: Iterable[str] = ()) -> list[str]:
        """The stores that `find` returns. Refuse an empty list."""
        committed = self.find(stores, earlier)
        if not committed:
            raise ConfigurationError("the checkpoint lists no store of this namespace", batch=self.version - 1)
        return committed

    def lost_places(self, stores: Iterable[str]) -> list[tuple[str, int]]:
        """Operator and partition of what the batch committed, and none of these stores has."""
        return sorted(self._places - {_place(store) for store in stores})

    def refuse_lost(self, stores: Iterable[str]) -> None:
        """Refuse stores that lack a partition which the batch committed."""
        if lost := self.lost_places(stores):
            raise ConfigurationError(
                "the state of this batch is no longer there in some partitions: clean or drop has deleted their "
                "stores; restore the tables, too",
                batch=self.version - 1,
                operator=lost[0][0],
                partitions=",".join(str(number) for operator, number in lost if operator == lost[0][0]),
            )

    @property
    def _places(self) -> set[tuple[str, int]]:
        return {(operator, number) for operator, numbers in self.partitions.items() for number in numbers}

    def are_in(self, store: str, versions: Collection[VersionId]) -> bool:
        """Whether the batch's version of a store is among these versions."""
        if not self.lists(store):
            return False
        attempts = self.attempts(store)
        return any(
            each.version == self.version and (not attempts or each.attempt.hex() in attempts) for each in versions
        )

    def attempts(self, store: str) -> set[str]:
        """The attempts of all stores of a store's partition, which the batch committed, in hex. Empty without ids."""
        operator, partition = _place(store)
        return {each.replace("-", "") for each in self.ids[operator][partition]} if self.ids else set()


def _place(store: str) -> tuple[str, int]:
    """Operator and partition of a store."""
    _, operator, partition, _ = store.split("/", 3)
    return operator, int(partition)


def plan_rollback(
    tables: Tables, checkpoint: QueryCheckpoint, to: int, progress: ProgressCallback = no_progress
) -> Rollback:
    """Check whether a checkpoint can go back to a batch. Nothing is changed. Refuse a copy of another checkpoint."""
    offsets, commits = checkpoint.batches(OFFSETS), checkpoint.batches(COMMITS)
    committed = sorted(offsets.keys() & commits.keys())
    if to not in committed:
        batches = f"{committed[0]} to {committed[-1]}" if committed else "none"
        raise ConfigurationError(
            f"the checkpoint has no such batch; it can go back to these: {batches}",
            batch=to,
            checkpoint=checkpoint.location,
        )
    undone, undone_commits = _later(offsets, commits, to)
    if not undone:
        raise ConfigurationError("this is the checkpoint's last batch: nothing would be undone", batch=to)
    namespace = checkpoint.namespace()
    ids = committed_ids(checkpoint, to)
    query_stores = of_namespace(tables, namespace)
    stores = ids.listed(query_stores.current, query_stores.earlier)
    ids.refuse_lost(stores)
    refuse_copy(tables, stores, checkpoint.location)
    require = partial(_require, version=to + 1, ids=ids)
    listed = each_store(tables, stores, require, progress, until_failure=True).all()
    if not is_of_one_run(filter(None, listed), to + 1):
        raise ConfigurationError(
            "some partitions have this version of another run of the query than others, and format v1 of checkpoints "
            "would open both: go back to an earlier batch",
            batch=to,
            version=to + 1,
        )
    last = max(offsets)
    time = runtime.now()
    logs = [_log(checkpoint, each) for each in (to, last)]
    return Rollback(
        checkpoint.location,
        namespace,
        to=logs[0],
        last=logs[1],
        undone=undone,
        committed=undone_commits,
        stores=tuple(stores),
        copy=f"{COPY}{time:%Y%m%dT%H%M%SZ}",
    )


def _later(offsets: Mapping[int, object], commits: Mapping[int, object], to: int) -> _Later:
    """The batches after one, and which of them were committed."""
    later = tuple(each for each in sorted(offsets.keys() | commits.keys()) if each > to)
    return later, tuple(each for each in later if each in commits)


def roll_back(checkpoint: QueryCheckpoint, plan: Rollback, progress: ProgressCallback = no_progress) -> None:
    """Roll a checkpoint back: copy offsets and commits, then delete those of each undone batch, the newest first.

    A batch's commit is deleted before its offsets: between the two deletions the batch looks unfinished. After a crash,
    plan and run the rollback again. Nothing is changed if the batches have changed since the plan. Batches that a query
    has written during the deletions are an error at the end.
    """
    offsets, commits = checkpoint.batches(OFFSETS), checkpoint.batches(COMMITS)
    _refuse_others(checkpoint, plan, _later(offsets, commits, plan.to.batch), (plan.undone, plan.committed))
    for log in (OFFSETS, COMMITS):
        checkpoint.copy(log, f"{plan.copy}/{log}")
    for count, batch in enumerate(sorted(plan.undone, reverse=True), 1):
        for folder, names in ((COMMITS, commits), (OFFSETS, offsets)):
            for name in sorted(names.get(batch, ()), reverse=True):
                checkpoint.delete(f"{folder}/{name}")
        progress(count, len(plan.undone))
    later = _later(checkpoint.batches(OFFSETS), checkpoint.batches(COMMITS), plan.to.batch)
    _refuse_others(checkpoint, plan, later, ((), ()))


def _refuse_others(checkpoint: QueryCheckpoint, plan: Rollback, later: _Later, expected: _Later) -> None:
    """Refuse a checkpoint that has other batches after the one that stays than are expected."""
    if later != expected:
        raise ConfigurationError(
            "the query has begun or committed a batch since this was planned: stop it, and roll back again",
            batch=max(later[0], default=plan.to.batch),
            checkpoint=checkpoint.location,
        )


def _log(checkpoint: QueryCheckpoint, batch: int) -> BatchLog:
    began_ms, offsets = _parsed(checkpoint, f"{OFFSETS}/{batch}", parse_offsets)
    return BatchLog(batch, iso_time(began_ms), offsets)


def committed_ids(checkpoint: QueryCheckpoint, batch: int) -> CommittedIds:
    """The ids of the versions that a batch committed.

    Raises:
        CorruptStateError: the commit, its offsets or `metadata` cannot be parsed; `file` names it.
    """
    ids = _parsed(checkpoint, f"{COMMITS}/{batch}", parse_ids)
    query = _parsed(checkpoint, METADATA, parse_object)
    run = QueryRun("", str(query.get("id", "")), location_of(f"{checkpoint.location}/state"))
    partitions: Mapping[str, Collection[int]] = {
        operator: [number for number, attempts in enumerate(each) if attempts] for operator, each in ids.items()
    }
    return CommittedIds(batch + 1, ids, partitions or _with_folder(checkpoint, batch), run)


def _parsed(checkpoint: QueryCheckpoint, file: str, parse: Callable[[str], Parsed]) -> Parsed:
    """The content of a file of a checkpoint."""
    try:
        return parse(checkpoint.read(file))
    except ValueError as error:
        raise malformed(checkpoint.location, file) from error


def _with_folder(checkpoint: QueryCheckpoint, batch: int) -> dict[str, set[int]]:
    """The partitions with a folder, by operator, without an earlier query's partitions at this path."""
    limit = _shuffle_partitions(checkpoint, batch, default=sys.maxsize)
    return {
        operator: {number for number in numbers if number < limit}
        for operator, numbers in checkpoint.partitions().items()
    }


def _shuffle_partitions(checkpoint: QueryCheckpoint, batch: int, default: int) -> int:
    """The number of shuffle partitions by the conf of a batch."""
    return _parsed(checkpoint, f"{OFFSETS}/{batch}", lambda text: int(parse_conf(text).get(_PARTITIONS, default)))


def described_partitions(checkpoint: QueryCheckpoint, last: CommittedIds) -> dict[str, Collection[int]]:
    """The partitions of the last batch without ids, by operator: as its metadata, or else the batch's conf, has them.

    Spark writes the number of shuffle partitions also for an operator that has one partition, as an aggregation without
    keys. So where partition 0 is the only one, the number counts only for operators that always have keys.
    """
    shuffle_partitions = _shuffle_partitions(checkpoint, last.version - 1, default=0)
    partitions = dict(last.partitions)
    for operator, file in _descriptions(checkpoint, partitions).items():
        name, counts = _parsed(checkpoint, file, parse_description) if file else ("", [])
        count = max(counts, default=0) or shuffle_partitions
        numbers = set(partitions.get(operator, ()))
        if counts and not (numbers or name in _KEYED):
            count = 1
        if numbers - {0} or name in _KEYED or (counts and not numbers):
            partitions[operator] = numbers | set(range(count))
    return partitions


def _descriptions(checkpoint: QueryCheckpoint, operators: Iterable[str]) -> dict[str, str]:
    """The newest file that describes each operator. Spark 3.5 writes none: then an empty text."""
    files: dict[str, tuple[int, str]] = dict.fromkeys(operators, (-2, ""))
    for file in checkpoint.files("state"):
        if match := _DESCRIPTION.fullmatch(file):
            files[match[1]] = max(files.get(match[1], (-2, "")), (int(match[2] or -1), file))
    return {operator: file for operator, (_, file) in files.items()}


def readable_versions(graph: VersionGraph) -> set[VersionId]:
    """The versions of a store that can be opened, as far as its version lists and snapshots show."""
    bases = graph.bases()
    return {entry.id for entry in graph.entries() if bases[entry.id] is not None}


def _require(tables: Tables, store: str, version: int, ids: CommittedIds) -> Listed | None:
    """Refuse a version that a store cannot open. Returns the entry that its number names, with the store's runs.

    Returns None if the checkpoint names the version by its id.
    """
    graph = read_lists(tables, store)[0]
    readable = readable_versions(graph)
    is_there = ids.are_in(store, readable)
    entry = graph.find(version, NO_ATTEMPT, ids.run) if is_there and not ids.ids else None
    if not is_there or (entry and entry.id not in readable):
        numbers = sorted(number for number, _ in readable)
        versions = f"{numbers[0]} to {numbers[-1]}" if numbers else "none"
        raise ConfigurationError(
            f"the state of this batch is no longer there; versions that are: {versions}", store=store, version=version
        )
    return ([entry], graph.runs) if entry else None
