"""Rollback of a stopped query: its checkpoint goes back to an earlier batch, and its state needs no change.

A query that starts reads the version of its last committed batch, and versions above it are ignored. So it is enough to
delete the offsets and commits of later batches, the newest first: after each deletion the checkpoint is one that a
killed query could have left.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dynastate import runtime
from dynastate.engine.catalog import of_namespace
from dynastate.errors import ConfigurationError
from dynastate.format.graph import Listed, VersionGraph, is_of_one_run
from dynastate.format.keys import NO_ATTEMPT, VersionId, location_of
from dynastate.format.meta import QueryRun
from dynastate.format.version_list import VersionEntry
from dynastate.operations.inspection.inspect import read_lists
from dynastate.operations.lifecycle.runs import refuse_copy
from dynastate.operations.scope import each_store
from dynastate.progress import ProgressCallback, no_progress
from dynastate.storage.tables import Tables

if TYPE_CHECKING:
    from pyarrow import fs

OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
#: What a rollback says of stores that are written.
IS_WRITTEN: Final = "a query writes to this namespace: stop it, and roll back again; with --force it is not looked for"
#: Begin of the name of the folder with the copy.
COPY: Final = "before-rollback-"
#: A file of a batch, or the checksum of one.
_BATCH: Final = re.compile(r"\.?(\d+)(?:\.crc)?")
#: A file that our provider leaves in the folder of each partition, which is named by operator and number.
_MARKER: Final = re.compile(r"state/\d+/\d+/dynastate")
#: Spark's conf of the number of partitions, which a checkpoint keeps from its first batch on.
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_STORE: Final = re.compile(r"store=(\S+)")


@dataclass(frozen=True)
class BatchLog:
    """One batch of a checkpoint: when it began, and the end of each source's data, as JSON texts."""

    batch: int
    began: str
    offsets: tuple[str, ...]


@dataclass(frozen=True)
class Rollback:
    """A rollback that is possible: from batch `last` to batch `to`, whose state is version `to` + 1 of all `stores`.

    Of the `undone` batches these are `committed`.
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
    """The version that a batch committed, and its ids by operator and partition; none with checkpoint format v1.

    `partitions` are those that the batch committed, by operator: with format v1 those with a folder in the checkpoint.
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

    def listed(self, stores: Iterable[str], earlier: Iterable[str] = ()) -> list[str]:
        """Those of a namespace's stores that the batch committed: Spark opens no others.

        Some may be `earlier` ones: another query with fewer partitions has run there since.

        Raises:
            ConfigurationError: it committed none of them.
        """
        found = [store for store in stores if self.lists(store)]
        found += [store for store in earlier if _place(store) in self._places]
        if not found:
            raise ConfigurationError("the checkpoint lists no store of this namespace", batch=self.version - 1)
        return found

    def refuse_lost(self, stores: Iterable[str]) -> None:
        """Refuse stores that lack a partition which the batch committed."""
        lost = sorted(self._places - {_place(store) for store in stores})
        if lost:
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
        """Whether the version of a store is among these, by the id that the batch has for it."""
        if not self.lists(store):
            return False
        operator, partition = _place(store)
        ids = self.ids[operator][partition] if self.ids else ()
        wanted = {each.replace("-", "") for each in ids}
        return any(number == self.version and (not wanted or attempt.hex() in wanted) for number, attempt in versions)

    def named_in(self, graph: VersionGraph, version: int) -> VersionEntry:
        """The version of a store that the query opens by a number alone, as with checkpoint format v1.

        Raises:
            VersionMissingError: there is none, or only one of a later query.
            ConfigurationError: the number does not say whose version is meant.
        """
        return graph.find(version, NO_ATTEMPT, self.run)


def _place(store: str) -> tuple[str, int]:
    """Operator and partition of a store."""
    _, operator, partition, _ = store.split("/", 3)
    return operator, int(partition)


class Checkpoint:
    """The files of a checkpoint, in a file system that pyarrow knows.

    Raises:
        ConfigurationError: it cannot be looked at from here, or is no checkpoint.
    """

    def __init__(self, location: str) -> None:
        try:
            from pyarrow import fs
        except ImportError as missing:
            raise ConfigurationError(
                "a checkpoint is read with pyarrow, the extra 'frames' of dynastate; pip install pyarrow"
            ) from missing
        self.location = location if _URL.match(location) else str(Path(location).absolute())
        self._kinds = fs.FileType
        self._select = partial(fs.FileSelector, allow_not_found=True)
        self._copy_files = fs.copy_files
        try:
            # pyarrow has no name for Hadoop's s3a.
            system, path = fs.FileSystem.from_uri(_for_pyarrow(self.location))
            there = system.get_file_info(f"{path}/metadata").type != fs.FileType.NotFound
        except (OSError, ValueError) as failed:  # ArrowInvalid is a ValueError
            raise ConfigurationError(
                "the file system of a checkpoint cannot be looked at from here", location=location, reason=str(failed)
            ) from failed
        self._system: fs.FileSystem = system
        self._path = path.rstrip("/")
        if not there:
            raise ConfigurationError(
                "there is no checkpoint of a query; give the folder that has metadata, offsets and commits",
                checkpoint=location,
            )

    def batches(self, folder: str) -> dict[int, list[str]]:
        """The files of each batch in a folder, by its number, without the checksums of others."""
        found: dict[int, list[str]] = {}
        for each in self._system.get_file_info(self._select(f"{self._path}/{folder}")):
            match = _BATCH.fullmatch(each.base_name)
            if match is not None and each.type == self._kinds.File:
                found.setdefault(int(match[1]), []).append(each.base_name)
        return {batch: names for batch, names in found.items() if str(batch) in names}

    def read(self, name: str) -> str:
        """The text of a file."""
        with self._system.open_input_stream(f"{self._path}/{name}") as file:
            text: str = file.read().decode()
        return text

    def namespace(self) -> str:
        """The namespace of its state.

        Raises:
            ConfigurationError: no partition of it is in DynamoDB.
        """
        for place in self._markers:
            found = _STORE.search(self.read(place))
            if found is not None:
                return found[1].split("/")[0]
        raise ConfigurationError("this checkpoint has no state in DynamoDB", checkpoint=self.location)

    def partitions(self) -> dict[str, set[int]]:
        """The partitions with state in DynamoDB, by operator."""
        found: dict[str, set[int]] = {}
        for operator, partition in (place.split("/")[1:3] for place in self._markers):
            found.setdefault(operator, set()).add(int(partition))
        return found

    @cached_property
    def _markers(self) -> list[str]:
        """The paths of the files that name stores."""
        below = self._system.get_file_info(self._select(f"{self._path}/state", recursive=True))
        places = (each.path.removeprefix(f"{self._path}/") for each in below)
        return [place for place in places if _MARKER.fullmatch(place)]

    def copy(self, folder: str) -> None:
        """Copy offsets and commits into a folder of the checkpoint."""
        for each in (OFFSETS, COMMITS):
            self._system.create_dir(f"{self._path}/{folder}/{each}")
            self._copy_files(
                f"{self._path}/{each}",
                f"{self._path}/{folder}/{each}",
                source_filesystem=self._system,
                destination_filesystem=self._system,
            )

    def delete(self, name: str) -> None:
        """Delete a file."""
        self._system.delete_file(f"{self._path}/{name}")


def _for_pyarrow(location: str) -> str:
    """A location as pyarrow spells it: without s3a, which is Hadoop's, and with a path alone for local files."""
    return re.sub("^file:/+", "/", re.sub("^s3[an]:", "s3:", location))


def plan_rollback(
    tables: Tables, checkpoint: Checkpoint, to: int, progress: ProgressCallback = no_progress
) -> Rollback:
    """Look whether a checkpoint can go back to a batch. Nothing is changed.

    Raises:
        ConfigurationError: it cannot, and why: the batch, or its state in a store, is not there, or the stores belong
            to another checkpoint, of which this one is a copy.
    """
    offsets, commits = checkpoint.batches(OFFSETS), checkpoint.batches(COMMITS)
    whole = sorted(offsets.keys() & commits.keys())
    if to not in whole:
        there = f"{whole[0]} to {whole[-1]}" if whole else "none"
        raise ConfigurationError(
            f"the checkpoint has no such batch; it can go back to these: {there}",
            batch=to,
            checkpoint=checkpoint.location,
        )
    undone = tuple(each for each in sorted(offsets.keys() | commits.keys()) if each > to)
    if not undone:
        raise ConfigurationError("this is the checkpoint's last batch: nothing would be undone", batch=to)
    namespace = checkpoint.namespace()
    wanted = committed_ids(checkpoint, to)
    found = of_namespace(tables, namespace)
    stores = wanted.listed(found.current, found.earlier)
    wanted.refuse_lost(stores)
    refuse_copy(tables, stores, checkpoint.location)
    require = partial(_require, version=to + 1, wanted=wanted)
    named = each_store(tables, stores, require, progress, until_failure=True).all()
    if not is_of_one_run(filter(None, named), to + 1):
        raise ConfigurationError(
            "some partitions have this version of another run of the query than others, and format v1 of checkpoints "
            "would open both: go back to an earlier batch",
            batch=to,
            version=to + 1,
        )
    last = max(offsets)
    moment = runtime.now()
    logs = [_log(each, checkpoint.read(f"{OFFSETS}/{each}")) for each in (to, last)]
    return Rollback(
        checkpoint.location,
        namespace,
        logs[0],
        logs[1],
        undone,
        tuple(each for each in undone if each in commits),
        tuple(stores),
        f"{COPY}{moment:%Y%m%dT%H%M%SZ}",
    )


def roll_back(checkpoint: Checkpoint, plan: Rollback, progress: ProgressCallback = no_progress) -> None:
    """Carry a rollback out: copy offsets and commits, then delete those of each undone batch, the newest first.

    Of a batch the commit goes before the offsets: between the two it is one that was under way. What dies is run
    again, with a new plan.

    Raises:
        ConfigurationError: the batches are not those of the plan any more, and nothing was changed.
    """
    offsets, commits = checkpoint.batches(OFFSETS), checkpoint.batches(COMMITS)
    later = [sorted(each for each in batches if each > plan.to.batch) for batches in (offsets | commits, commits)]
    if later != [list(plan.undone), list(plan.committed)]:
        raise ConfigurationError(
            "the query has begun or committed a batch since this was planned: stop it, and roll back again",
            batch=max(later[0], default=plan.to.batch),
            checkpoint=checkpoint.location,
        )
    checkpoint.copy(plan.copy)
    for done, batch in enumerate(sorted(plan.undone, reverse=True), 1):
        for folder, found in ((COMMITS, commits), (OFFSETS, offsets)):
            for name in sorted(found.get(batch, ()), reverse=True):
                checkpoint.delete(f"{folder}/{name}")
        progress(done, len(plan.undone))


def _log(batch: int, text: str) -> BatchLog:
    """The content of a file of offsets: a version, the batch's metadata, then a line for each source."""
    _, metadata, *sources = text.splitlines()
    began = datetime.fromtimestamp(json.loads(metadata)["batchTimestampMs"] / 1000, timezone.utc)
    return BatchLog(batch, began.isoformat(timespec="seconds"), tuple(sources))


def committed_ids(checkpoint: Checkpoint, batch: int) -> CommittedIds:
    """The ids of the versions that a batch committed."""
    lines = checkpoint.read(f"{COMMITS}/{batch}").splitlines()
    found: dict[str, Any] = json.loads(lines[1]) if len(lines) > 1 else {}
    query: dict[str, Any] = json.loads(checkpoint.read("metadata"))
    run = QueryRun("", str(query.get("id", "")), location_of(f"{checkpoint.location}/state"))
    ids = found.get("stateUniqueIds") or {}
    partitions: Mapping[str, Collection[int]] = {
        operator: [number for number, attempts in enumerate(each) if attempts] for operator, each in ids.items()
    }
    return CommittedIds(batch + 1, ids, partitions or _with_folder(checkpoint, batch), run)


def _with_folder(checkpoint: Checkpoint, batch: int) -> dict[str, set[int]]:
    """The partitions with a folder, by operator, without those that the query before had at this path."""
    conf: dict[str, str] = json.loads(checkpoint.read(f"{OFFSETS}/{batch}").splitlines()[1]).get("conf", {})
    limit = int(conf.get(_PARTITIONS, sys.maxsize))
    return {operator: {each for each in found if each < limit} for operator, found in checkpoint.partitions().items()}


def readable_versions(graph: VersionGraph) -> set[VersionId]:
    """The attempts of a store that can be opened, as far as its version lists and snapshots tell."""
    bases = graph.bases()
    return {entry.id for entry in graph.entries() if bases[entry.id] is not None}


def _require(tables: Tables, store: str, version: int, wanted: CommittedIds) -> Listed | None:
    """Refuse a version that a store cannot open, or that its number does not name; give what the number names."""
    graph = read_lists(tables, store)[0]
    readable = readable_versions(graph)
    is_there = wanted.are_in(store, readable)
    named = wanted.named_in(graph, version) if is_there and not wanted.ids else None
    if not is_there or (named and named.id not in readable):
        numbers = sorted(number for number, _ in readable)
        there = f"{numbers[0]} to {numbers[-1]}" if numbers else "none"
        raise ConfigurationError(
            f"the state of this batch is no longer there; versions that are: {there}", store=store, version=version
        )
    return ([named], graph.runs) if named else None
