"""Verification of a query's checkpoint: its files are whole, and the state that they name is there. It writes nothing.

The query may run meanwhile: what clean-up, or the next batches, change in between is no defect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple, TypeVar

from dynastate.counts import plural
from dynastate.engine.catalog import QueryStores, find_stores, of_namespace
from dynastate.engine.checkpoint import CheckpointFiles, read_checkpoints
from dynastate.errors import ConfigurationError, CorruptStateError, VersionMissingError
from dynastate.format.checkpoint import SCHEME, Checkpoint, checkpoint_of_location, file_key, listed_item
from dynastate.format.graph import VersionGraph, ranges
from dynastate.format.keys import NO_ATTEMPT, Role, VersionId, version_list_key
from dynastate.format.namespace import store_key
from dynastate.format.spark_log import COMMITS, METADATA, OFFSETS
from dynastate.operations.checkpoints import LoadedCheckpoint, QueryCheckpoint, open_checkpoint
from dynastate.operations.inspection.findings import Finding, counted_items, findings_json, findings_lines
from dynastate.operations.inspection.inspect import read_lists
from dynastate.operations.lifecycle.adopt import locations_of, state_location
from dynastate.operations.lifecycle.rollback import CommittedIds, committed_ids, described_partitions, readable_versions
from dynastate.operations.lifecycle.runs import refuse_copy
from dynastate.operations.scope import each_store
from dynastate.progress import ProgressCallback, no_progress
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables, other_locations

AnyCheckpoint = TypeVar("AnyCheckpoint", bound=QueryCheckpoint)
#: How often a checkpoint is read again if its query makes a batch meanwhile, and something is missing.
_TRIES: Final = 5


@dataclass(frozen=True)
class CheckpointReport:
    """The result for a checkpoint: `files` of `bytes` were read, and the `batches` that were committed compared.

    `other_locations`: the locations of other tables that have objects of these files.
    """

    checkpoint: str
    files: int
    bytes: int
    batches: tuple[int, ...]
    findings: tuple[Finding, ...]
    meter: Meter
    other_locations: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing or corrupt. Orphans do no harm."""
        return all(finding.what == "orphaned" for finding in self.findings)

    def to_json(self, names: Mapping[Role, str]) -> dict[str, object]:
        """The report as a JSON object, with these names of the tables."""
        return {
            "checkpoint": self.checkpoint,
            "whole": self.is_whole,
            "files": self.files,
            "bytes": self.bytes,
            "batches": ranges(self.batches) or None,
            "requests": self.meter.requests,
            "read_units": self.meter.read_units,
            "findings": findings_json(self.findings, names),
            "other_locations": list(self.other_locations),
        }

    def lines(self, names: Mapping[Role, str]) -> list[str]:
        """The report as lines of text, with these names of the tables."""
        size = f"{plural(self.files, 'file')}, {plural(self.bytes, 'byte')}"
        return [
            *findings_lines(self.findings, names),
            f"checkpoint {self.checkpoint}: {size}; batches compared with the state: {ranges(self.batches) or 'none'}",
            f"{plural(self.meter.requests, 'request')}, {plural(self.meter.read_units, 'read unit')}",
            *(f"objects of other tables are needed: {location}" for location in self.other_locations),
            f"{'whole' if self.is_whole else 'not whole'}: {counted_items(self.findings)}",
        ]


class _Versions(NamedTuple):
    """The versions of a store: those that can be opened, and the oldest of them that the newest depends on."""

    graph: VersionGraph
    readable: set[VersionId]
    oldest: int


def verify_checkpoints(
    tables: Tables, namespace: str, progress: ProgressCallback = no_progress
) -> list[CheckpointReport]:
    """Verify the checkpoints of a namespace in DynamoDB that have files.

    The state is compared with the checkpoint that it belongs to; of a fork that no query has resumed yet, with any.
    """
    checkpoints = read_checkpoints(tables, namespace)
    owners = _owners(tables, namespace) if checkpoints else None
    reports = []
    for checkpoint, locations in checkpoints.items():
        is_owner = owners is not None and (not owners or state_location(checkpoint.location) in owners)
        report = _verify_stored(tables, checkpoint, locations, progress, is_owner=is_owner)
        if report.files or report.findings:
            reports.append(report)
    return reports


def _owners(tables: Tables, namespace: str) -> tuple[str, ...] | None:
    """The locations that the stores of a namespace belong to.

    Returns None if an item that says so is corrupt, which the verification of stores reports.
    """
    try:
        if stores := find_stores(tables, namespace):
            of_namespace(tables, namespace)
        return locations_of(tables, list(stores))
    except CorruptStateError:
        return None


def _verify_stored(
    tables: Tables, checkpoint: Checkpoint, locations: frozenset[str], progress: ProgressCallback, *, is_owner: bool
) -> CheckpointReport:
    """Look for orphans, read every file of a checkpoint, and compare the state if it belongs to the checkpoint."""
    tables = tables.metered(Meter())
    orphans = CheckpointFiles(tables, set()).orphans(checkpoint, locations)
    open_one = partial(LoadedCheckpoint, tables, checkpoint.location)
    loaded, batches, misfits = _compare(tables, open_one, progress) if is_owner else (open_one(), (), [])
    findings = [
        Finding("corrupt", file_key(checkpoint, file), content.reason)
        for file, content in loaded.contents.items()
        if isinstance(content, CorruptStateError)
    ]
    if loaded.contents:
        last = max(loaded.batches(COMMITS), default=None)
        offsets = [] if last is None else [f"{OFFSETS}/{batch}" for batch in sorted({max(0, last - 1), last})]
        findings += [
            Finding("missing", file_key(checkpoint, file), "the query cannot be started without this file")
            for file in [METADATA, *offsets]
            if file not in loaded.contents
        ]
    if orphans.items:
        first, count = next(iter(orphans.items)), len(orphans.items)
        findings.append(Finding("orphaned", first, "fragments of puts that failed", items=count))
    if orphans.objects:
        location, name = orphans.objects[0]
        why = f"objects of puts that failed: object {location}/{name}"
        findings.append(Finding("orphaned", listed_item(checkpoint)[0], why, items=len(orphans.objects)))
    others: list[str] = []
    if other_locations(tables, locations):  # the tables were restored from others
        others = other_locations(tables, CheckpointFiles(tables, set()).locations(checkpoint))
    report = _report(loaded, batches, [*findings, *misfits], tables.meter)
    return replace(report, other_locations=tuple(others))


def refuse_other_log(tables: Tables, location: str, namespace: str) -> None:
    """Refuse a location without a checkpoint, a checkpoint of another namespace, and a copy of a checkpoint."""
    opened = open_checkpoint(tables, location)
    if opened.namespace() != namespace:
        raise ConfigurationError(
            f"the state of this checkpoint is in another namespace: dynastate verify {opened.namespace()} compares it",
            checkpoint=opened.location,
        )
    refuse_copy(tables, of_namespace(tables, namespace).current, opened.location)


def verify_log(tables: Tables, location: str, progress: ProgressCallback = no_progress) -> CheckpointReport:
    """Compare the state with the commits of the checkpoint at a location, which `refuse_other_log` has not refused."""
    tables = tables.metered(Meter())
    checkpoint, batches, misfits = _compare(tables, partial(open_checkpoint, tables, location), progress)
    return _report(checkpoint, batches, misfits, tables.meter)


def _report(
    checkpoint: QueryCheckpoint, batches: tuple[int, ...], findings: Sequence[Finding], meter: Meter
) -> CheckpointReport:
    sizes = checkpoint.files().values()
    return CheckpointReport(
        checkpoint.location, files=len(sizes), bytes=sum(sizes), batches=batches, findings=tuple(findings), meter=meter
    )


def _compare(
    tables: Tables, open_one: Callable[[], AnyCheckpoint], progress: ProgressCallback
) -> tuple[AnyCheckpoint, tuple[int, ...], list[Finding]]:
    """A checkpoint, the batches that it has committed, and what its stores lack of them.

    Both are read again if the query makes a batch meanwhile.
    """
    checkpoint = open_one()
    for _ in range(_TRIES):
        batches = sorted(checkpoint.batches(COMMITS))
        findings = _misfits(tables, checkpoint, batches, progress)
        if not findings:
            break
        latest = open_one()
        if sorted(latest.batches(COMMITS)) == batches:
            break
        checkpoint = latest
    return checkpoint, tuple(batches), findings


def _misfits(
    tables: Tables, checkpoint: QueryCheckpoint, batches: Sequence[int], progress: ProgressCallback
) -> list[Finding]:
    """The versions that batches committed, and that a query cannot open in their stores.

    Clean-up and the query's own log delete old batches independently, so only the versions from the oldest one on that
    a store can open are compared. Of the last batch all are: a query starts from it.
    """
    committed, findings = _committed(checkpoint, batches)
    if not committed:
        return findings
    namespace = checkpoint.namespace()
    stores = of_namespace(tables, namespace) if find_stores(tables, namespace) else QueryStores([], [])
    last = committed[-1]
    if not last.ids:
        described, malformed = _described(checkpoint, last)
        last = committed[-1] = replace(last, partitions=described)
        findings += malformed
    names = last.find(stores.current, stores.earlier)
    findings += [
        Finding("missing", store_key(f"{namespace}/{operator}/{number}/"), "a partition that the last batch committed")
        for operator, number in last.lost_places(names)
    ]
    views = each_store(tables, names, _read, progress, until_failure=True).all()
    for store, versions in zip(names, views, strict=True):
        lost = [
            ids.version
            for ids in committed
            if versions is not None
            and ids.lists(store)
            and (ids is last or ids.version >= versions.oldest)
            and not _opens(ids, store, versions, is_last=ids is last)
        ]
        if lost:
            why = (
                f"the checkpoint has committed batches {ranges([version - 1 for version in lost])}, and a query cannot "
                f"open the versions {ranges(lost)} that they made"
            )
            findings.append(Finding("missing", version_list_key(store, lost[0]), why, items=len(lost)))
    return findings


def _committed(checkpoint: QueryCheckpoint, batches: Sequence[int]) -> tuple[list[CommittedIds], list[Finding]]:
    """The ids of batches, and files that cannot be parsed. Refuse a folder with such a file: findings name items.

    Files with a wrong checksum are reported already, and a batch whose files are deleted meanwhile is left out.
    """
    malformed: dict[str, Finding] = {}

    def ids_of(batch: int) -> CommittedIds | None:
        try:
            return committed_ids(checkpoint, batch)
        except ConfigurationError:
            return None
        except CorruptStateError as corrupt:
            malformed.update(_malformed(checkpoint, corrupt))
            return None

    committed = [ids for batch in batches if (ids := ids_of(batch)) is not None]
    return committed, list(malformed.values())


def _described(checkpoint: QueryCheckpoint, last: CommittedIds) -> tuple[Mapping[str, Collection[int]], list[Finding]]:
    """The partitions of the last batch as the checkpoint describes them, and a description that cannot be parsed."""
    try:
        return described_partitions(checkpoint, last), []
    except ConfigurationError:  # the file is deleted meanwhile
        return last.partitions, []
    except CorruptStateError as corrupt:
        return last.partitions, list(_malformed(checkpoint, corrupt).values())


def _malformed(checkpoint: QueryCheckpoint, corrupt: CorruptStateError) -> dict[str, Finding]:
    """The finding for a file that cannot be parsed, by its path. Refuse a folder with such a file."""
    if not checkpoint.location.startswith(SCHEME):
        raise corrupt
    file = str(corrupt.facts.get("file", ""))
    if not file:
        return {}
    key = file_key(checkpoint_of_location(checkpoint.location), file)
    return {file: Finding("corrupt", key, corrupt.reason)}


def _read(tables: Tables, store: str) -> _Versions | None:
    """The versions of a store. Returns None if its items are corrupt, which its own verification reports."""
    try:
        graph, _ = read_lists(tables, store)
        openable = graph.openable(graph.lineage(graph.newest())) if graph.versions() else []
    except CorruptStateError:
        return None
    return _Versions(graph, readable_versions(graph), openable[0].version if openable else 0)


def _opens(ids: CommittedIds, store: str, versions: _Versions, *, is_last: bool) -> bool:
    """Whether a query that resumes after a batch opens the version of the batch.

    Without ids a number may name another attempt. Only the number of the last batch is opened by a query.
    """
    if not ids.are_in(store, versions.readable):
        return False
    if ids.ids or not is_last:
        return True
    try:
        return versions.graph.find(ids.version, NO_ATTEMPT, ids.run).id in versions.readable
    except (VersionMissingError, ConfigurationError):
        return False
