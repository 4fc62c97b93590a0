"""Mutations: the engine, broken by defects that stores had or might have; `test_simulation.py` finds each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final
from unittest.mock import patch

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.retries import Retry
from dynastate.engine import (
    catalog,
    checkpoint,
    cleanup,
    commit,
    maintenance,
    namespaces,
    opening,
    reader,
    sessions,
    snapshots,
    updates,
    windows,
    writer,
)
from dynastate.engine import objects as engine_objects
from dynastate.engine.lineage import Lineage
from dynastate.errors import UnknownOutcomeError
from dynastate.format import checkpoint as format_checkpoint
from dynastate.format import parts, version_list
from dynastate.format.checkpoint import Checkpoint, file_key
from dynastate.format.graph import VersionGraph
from dynastate.format.items import FORMAT, Item, item_key
from dynastate.format.keys import META, NO_ATTEMPT, Attempt, Key, part_key
from dynastate.format.manifest import SnapshotManifest
from dynastate.format.meta import QueryRun, StoreMeta
from dynastate.format.parts import Part, join_fragments, parse_part
from dynastate.format.version_list import REFUSED, VERSIONS, VersionEntry
from dynastate.operations.erase import erase
from dynastate.operations.erase.scan import BucketName, StoreScan
from dynastate.operations.lifecycle import compact, drop, fork
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables
from dynastate.storage.update import Condition, Update
from tests.simulation.checkpoint_schedule import CheckpointSchedule
from tests.simulation.drivers import Driver, Log, RunStart
from tests.simulation.schedule import Schedule
from tests.simulation.world import World

Mutation = Callable[[], AbstractContextManager[Any]]
#: Each mutation with a seed that finds it, and what the schedule is of: state, or a checkpoint. Where the engine or the
#: simulation changed, look for another one.
MUTATIONS: Final[dict[str, tuple[Mutation, int, Callable[[int], World]]]] = {}


def found_by(seed: int, schedule: Callable[[int], World] = Schedule) -> Callable[[Mutation], Mutation]:
    def add(mutation: Mutation) -> Mutation:
        MUTATIONS[mutation.__name__] = mutation, seed, schedule
        return mutation

    return add


def replaced(owner: object, name: str, by: Callable[..., Any]) -> AbstractContextManager[Any]:
    """Replace a function; `by` gets the original, and its arguments."""
    original = getattr(owner, name)
    return patch.object(owner, name, lambda *of, **named: by(original, *of, **named))


@found_by(seed=0)
def commits_before_parts_are_durable() -> AbstractContextManager[Any]:
    return patch.object(writer.PendingWrites, "wait", lambda *_: None)


@found_by(seed=3)
def drops_unprocessed_items() -> AbstractContextManager[Any]:
    def offer(original: Callable[..., object], *of: Any) -> list[object]:
        original(*of)
        return []

    return replaced(BotoTables, "offer", offer)


@found_by(seed=8)
def drops_unprocessed_keys() -> AbstractContextManager[Any]:
    def attempt(original: Callable[..., Any], *of: Any) -> Any:
        answer = original(*of)
        return answer | {"UnprocessedKeys": {}} if answer and "UnprocessedKeys" in answer else answer

    return replaced(Retry, "attempt", attempt)


@found_by(seed=0)
def reads_the_first_page_only() -> AbstractContextManager[Any]:
    def call(original: Callable[..., Any], tables: BotoTables, operation: str, *rest: Any, **request: Any) -> Any:
        answer = original(tables, operation, *rest, **request)
        return {"Items": answer["Items"]} if operation == "Query" else answer

    return replaced(BotoTables, "call", call)


@found_by(seed=22)
def treats_a_lost_answer_as_a_failure() -> AbstractContextManager[Any]:
    return patch.object(Retry, "failure", lambda _, error: error)


@found_by(seed=0)
def skips_missing_parts() -> AbstractContextManager[Any]:
    """A version whose parts are lost is read without them; no sum is compared."""

    def read_window(self: Any, tables: Tables, window: windows.Run, **_: bool) -> tuple[list[tuple[Key, Part]], Meter]:
        meter = Meter()
        items = tables.metered(meter).get(window.keys)
        return [(key, parse_part(key, items[key])) for key in window.keys if key in items], meter

    def verified(_: Any, __: Any, parts: Any, *___: Any, **____: Any) -> Any:
        for key, part in parts:
            if part.fragments == 1:
                yield join_fragments(key, [part])

    both = patch.multiple(reader, verified_chunks=verified)
    return _together(both, patch.object(reader.PartReader, "_read_window", read_window))


@found_by(seed=8)
def appends_by_reading_and_writing() -> AbstractContextManager[Any]:
    """The version list is read, and put with one more entry."""

    def append(tables: Tables, key: Key, entry: bytes, _: str, *__: object, **___: bool) -> list[bytes]:
        item = tables.get([key]).get(key, {})
        versions = item.get("versions", [])
        assert isinstance(versions, list)
        new_versions = [*versions, entry]
        tables.write([(key, item_key(key) | {"format": FORMAT, "versions": new_versions})])
        return new_versions

    return patch.object(commit, "append_version", append)


@found_by(seed=4)
def skips_inline_changes() -> AbstractContextManager[Any]:
    """A version whose changes are within its entry is read as one without changes."""

    def changes(get: Callable[..., Any], self: Any, tables: Any, store: str, entries: Any, *of: Any, **how: Any) -> Any:
        return get(self, tables, store, [entry for entry in entries if entry.inline is None], *of, **how)

    return replaced(reader.PartReader, "changes", changes)


@found_by(seed=4)
def gives_all_attempts_the_same_part_keys() -> AbstractContextManager[Any]:
    def key_of(name: str, version: int, _: Attempt, sequence: int, shards: int) -> Key:
        return part_key(name, version, NO_ATTEMPT, sequence, shards)

    return _together(patch.object(parts, "part_key", key_of), patch.object(version_list, "part_key", key_of))


@found_by(seed=57)
def aborts_attempts_of_unknown_outcome() -> AbstractContextManager[Any]:
    def abort(original: Callable[..., Any], under_way: commit.WriteAttempt) -> None:
        under_way._ended = False
        original(under_way)

    return replaced(commit.WriteAttempt, "abort", abort)


@found_by(seed=36)
def opens_the_last_appended_attempt() -> AbstractContextManager[Any]:
    """Whatever its epoch: a zombie of a replaced run wins because it is late."""

    def find(self: VersionGraph, version: int, attempt: Attempt, run: QueryRun | None = None) -> VersionEntry:
        entries = self._entries.get(version, {})
        if attempt == NO_ATTEMPT and entries:
            return list(entries.values())[-1]
        if attempt not in entries:
            raise self._missing(version, attempt, run)
        return entries[attempt]

    return patch.object(VersionGraph, "find", find)


@found_by(seed=0)
def opens_unfinished_snapshots() -> AbstractContextManager[Any]:
    return patch.object(VersionGraph, "snapshot", lambda self, *at: self._snapshots.get(at))


@found_by(seed=2)
def keeps_rows_of_buckets_that_became_empty() -> AbstractContextManager[Any]:
    def end_bucket(original: Callable[..., None], self: snapshots.SnapshotAttempt) -> None:
        previous, is_empty = list(self._buckets), not self._tally.parts
        original(self)
        if is_empty:
            self._buckets = previous

    return replaced(snapshots.SnapshotAttempt, "_end_bucket", end_bucket)


@found_by(seed=124)
def cleans_up_for_replaced_runs() -> AbstractContextManager[Any]:
    def newest_epoch(meta: StoreMeta | None, run: str) -> int | None:
        return None if meta is None else meta.epochs.get(run)

    return _together(*(patch.object(each, "newest_epoch", newest_epoch) for each in (maintenance, sessions)))


@found_by(seed=0)
def deletes_parts_of_attempts_under_way() -> AbstractContextManager[Any]:
    """Clean-up deletes every part that no version list names."""
    return replaced(cleanup.CleanUp, "find_orphans", lambda find, of, below, deleted: find(of, below + 1_000, deleted))


@found_by(seed=4)
def deletes_buckets_that_were_carried_on() -> AbstractContextManager[Any]:
    def buckets_of(self: cleanup.CleanUp, manifest: Any, _: Any) -> dict[Key, int]:
        holder = (manifest.version, manifest.id)
        numbers = [number for number, bucket in enumerate(manifest.buckets) if bucket.holder == holder]
        return {key: 1 for number in numbers for key in manifest.keys(self._store, number, self._shards)}

    return patch.object(cleanup.CleanUp, "_buckets_of", buckets_of)


@found_by(seed=75)
def retains_one_version_too_few() -> AbstractContextManager[Any]:
    return replaced(
        cleanup,
        "retention",
        lambda original, graph, version, attempt, retain, epoch: original(graph, version, attempt, retain - 1, epoch),
    )


@found_by(seed=0)
def deletes_what_the_oldest_version_needs() -> AbstractContextManager[Any]:
    """Clean-up ignores that the oldest retained version is read from a snapshot, or from version 1."""
    return patch.object(
        cleanup, "retention", lambda _, at, __, *, retain, **___: cleanup.Retention(max(1, at - retain + 1))
    )


def commits_snapshots_without_checking_their_base() -> AbstractContextManager[Any]:
    """Not in MUTATIONS: only a schedule made by hand finds it, in `test_regressions.py`."""
    return patch.object(snapshots.SnapshotAttempt, "_base_is_there", lambda _: True)


@found_by(seed=97)
def replaces_version_lists_unconditionally() -> AbstractContextManager[Any]:
    """Clean-up puts a version list whatever was appended since it was read."""
    return patch.multiple(
        BotoTables,
        put_over=lambda tables, key, item, _: tables.write([(key, item)]) is None,
        delete_over=lambda tables, key, _: tables.delete([key]) is None,
    )


@found_by(seed=30)
def deletes_pinned_items() -> AbstractContextManager[Any]:
    """Clean-up retains the items that were pinned when it read them, and ignores later pins."""
    return patch.object(updates, "_PROTECTED", [REFUSED, VERSIONS])


@found_by(seed=9)
def compacts_without_changed_buckets() -> AbstractContextManager[Any]:
    """A compaction carries on all buckets of the last snapshot."""

    def read(original: Callable[..., Any], opened: opening.Opening) -> Any:
        state, _, base = original(opened)
        return state, set(), base

    return replaced(compact, "_read", read)


@found_by(seed=93)
def follows_versions_of_another_branch() -> AbstractContextManager[Any]:
    """A refreshed reader takes all newer versions for descendants of its own, also those after a start over."""

    def lineage(
        original: Callable[..., Any], opener: Any, name: str, previous: Lineage | None = None, committed: Any = None
    ) -> Lineage:
        whole: Lineage = original(opener, name, None, committed)
        if previous is None:
            return whole
        newer = [entry for entry in whole.entries if entry.version > previous.newest.version]
        schemas = {**previous.schemas, **whole.schemas}
        return Lineage(name, (*previous.entries, *newer), schemas, whole.meter)

    return replaced(opening.VersionOpener, "lineage", lineage)


@found_by(seed=0)
def gives_all_runs_the_same_epoch() -> AbstractContextManager[Any]:
    return replaced(sessions.Sessions, "_enter_run", lambda original, *of: replace(original(*of), epoch=1))


@found_by(seed=5)
def commits_for_killed_tasks() -> AbstractContextManager[Any]:
    """The append is sent whether or not the task still waits for its answer."""
    return replaced(commit, "append_version", lambda original, *of, **how: original(*of, must_exist=how["must_exist"]))


@found_by(seed=7)
def lets_copies_of_a_checkpoint_write() -> AbstractContextManager[Any]:
    """A run enters from whatever location."""

    def entered(original: Callable[..., Item], store: str, meta: StoreMeta, run: QueryRun, **rest: Any) -> Item:
        return original(store, meta, run._replace(location=meta.location or run.location), **rest)

    return replaced(sessions, "_entered", entered)


@found_by(seed=8)
def commits_into_lists_that_refuse_the_run() -> AbstractContextManager[Any]:
    """A run of the location before an adoption commits on."""
    return patch.object(updates, "REFUSED", "no_such_attribute")


@found_by(seed=25)
def deletes_what_another_location_made() -> AbstractContextManager[Any]:
    return patch.object(cleanup, "_foreign", lambda *_: set())


@found_by(seed=6)
def retains_branches_of_earlier_queries() -> AbstractContextManager[Any]:
    """Clean-up deletes only below the oldest retained version: a query that starts over leaves what is above it."""

    def retention(original: Callable[..., Any], *of: Any, **named: Any) -> cleanup.Retention | None:
        retained: cleanup.Retention | None = original(*of, **named)
        return retained and replace(retained, dead={})

    return replaced(cleanup, "retention", retention)


@found_by(seed=26)
def reads_partitions_of_earlier_queries() -> AbstractContextManager[Any]:
    """All stores of a namespace are the current query's."""
    return patch.object(catalog, "by_query", lambda metas, *_: catalog.QueryStores(list(metas), []))


@found_by(seed=23)
def forks_without_pins() -> AbstractContextManager[Any]:
    """Clean-up of the origin does not know what a fork depends on."""
    return patch.object(fork._StoreFork, "_pin", lambda *_: None)


@found_by(seed=102)
def deletes_objects_of_attempts_under_way() -> AbstractContextManager[Any]:
    """Clean-up deletes every object that no version list names."""

    def find(original: Callable[..., Any], of: cleanup.CleanUp, below: int, deleted: Any) -> Any:
        return original(of, below + 1_000, deleted)

    return replaced(cleanup.CleanUp, "find_orphan_objects", find)


@found_by(seed=14)
def drops_without_fences() -> AbstractContextManager[Any]:
    """A dropped store has no list that refuses the runs that are under way."""

    def delete_lists(original: Callable[..., int], tables: Any, store: str, _: Any, check: Any) -> int:
        return original(tables, store, (), check)

    return _together(patch.object(drop, "refuse_runs", lambda *_: None), replaced(drop, "_delete_lists", delete_lists))


@found_by(seed=0)
def lists_a_store_after_its_meta_item() -> AbstractContextManager[Any]:
    """A crash in between leaves a store that readers do not find."""

    def put_new(original: Callable[..., bool], tables: BotoTables, key: Key, item: Item) -> bool:
        is_new = original(tables, key, item)
        if is_new and key.sort == META:
            namespaces.list_store(tables, key.store_shard.removesuffix("#0"))
        return is_new

    return _together(replaced(BotoTables, "put_new", put_new), patch.object(sessions, "list_store", lambda *_: None))


@found_by(seed=2)
def names_objects_before_they_are_written() -> AbstractContextManager[Any]:
    """A commit does not wait for its objects."""

    def submit(original: Callable[..., None], to: engine_objects.ObjectWriter, _: object, *of: Any) -> None:
        original(to, writer.PendingWrites(), *of)

    return replaced(engine_objects.ObjectWriter, "submit", submit)


@found_by(seed=2)
def deletes_objects_that_are_carried_on() -> AbstractContextManager[Any]:
    """With a snapshot go all objects that it names, also those with buckets of others."""
    return patch.object(cleanup.CleanUp, "_named_objects", lambda *_: set())


@found_by(seed=6)
def writes_where_the_meta_item_does_not_say() -> AbstractContextManager[Any]:
    """A run does not enter the location of its objects, so clean-up does not look there."""
    return _together(
        replaced(sessions.Sessions, "__init__", lambda original, *of: original(*of[:3], "", *of[4:])),
        patch.object(maintenance, "enter_location", lambda *_: None),
    )


@found_by(seed=9)
def applies_held_changes_whatever_the_snapshot() -> AbstractContextManager[Any]:
    """Changes that an executor holds are applied to rows of a newer snapshot, which has some of them."""

    def partly(original: Callable[..., Any], self: Any, route: Any, within: Any, held_changes: Any) -> Any:
        snapshot = 0 if route.snapshot is None else route.snapshot.version
        return original(self, route, within, held_changes and replace(held_changes, snapshot=snapshot))

    return replaced(opening.VersionOpener, "_partly", partly)


@found_by(seed=2, schedule=CheckpointSchedule)
def puts_files_unconditionally() -> AbstractContextManager[Any]:
    return patch.object(
        checkpoint, "Update", lambda _, **changes: Update(Condition(unequal={"writer": b""}), **changes)
    )


@found_by(seed=4, schedule=CheckpointSchedule)
def keeps_lists_of_earlier_runs() -> AbstractContextManager[Any]:
    """A log that one run of a process has listed is that of the next run, too."""

    def open_logs(original: Callable[..., list[Log]], driver: Driver, files: RunStart) -> list[Log]:
        logs: list[Log] = driver.__dict__.setdefault("logs", original(driver, files))
        for log in logs:
            log.files = files
        return logs

    return replaced(Driver, "open_logs", open_logs)


@found_by(seed=0, schedule=CheckpointSchedule)
def takes_own_files_for_those_of_others() -> AbstractContextManager[Any]:
    """A put that is sent again is refused by its own success, and takes the refusal for a conflict."""

    def update(
        original: Callable[..., Any], self: BotoTables, key: Key, change: Update, _: Any = None, *of: Any
    ) -> Any:
        try:
            return original(self, key, change, lambda _: False, *of)
        except UnknownOutcomeError:
            return {"writer": b""}

    return replaced(BotoTables, "update", update)


@found_by(seed=0, schedule=CheckpointSchedule)
def writes_heads_before_fragments() -> AbstractContextManager[Any]:
    return _writes_heads_first("fragments", lambda files, piece: files._tables.write([piece]))


@found_by(seed=0, schedule=CheckpointSchedule)
def writes_heads_before_objects() -> AbstractContextManager[Any]:
    return _writes_heads_first("objects", lambda files, piece: files._tables.objects.put(*piece))


def _writes_heads_first(of: str, write: Callable[[Any, Any], None]) -> AbstractContextManager[Any]:
    """Withhold the items or objects of a file until its head is written."""
    withheld: dict[Any, Any] = {}

    def parts(original: Callable[..., Any], *subject: Any, **how: Any) -> Any:
        stored = original(*subject, **how)
        withheld[stored.head["writer"]] = getattr(stored, of)
        return stored._replace(**{of: []})

    def write_head(original: Callable[..., Any], self: Any, key: Key, head: Item, *rest: Any, **how: Any) -> Any:
        current = original(self, key, head, *rest, **how)
        for piece in withheld.pop(head["writer"], ()):
            write(self, piece)
        return current

    both = replaced(checkpoint, "file_parts", parts), replaced(checkpoint.CheckpointFiles, "_write_head", write_head)
    return _together(*both)


@found_by(seed=0, schedule=CheckpointSchedule)
def deletes_objects_of_the_head_that_has_won() -> AbstractContextManager[Any]:
    """A put that was refused deletes the fragments and objects of the other writer's head."""

    def delete(original: Callable[..., None], self: Any, key: Key, _: Any) -> None:
        original(self, key, self._head(key))

    return replaced(checkpoint.CheckpointFiles, "_delete_fragments", delete)


@found_by(seed=2, schedule=CheckpointSchedule)
def keeps_the_location_of_a_file_that_is_replaced() -> AbstractContextManager[Any]:
    """A head that replaces one with objects says that its file is in objects, too."""
    return replaced(checkpoint, "Update", lambda original, *of, **how: original(*of, **{**how, "removes": ()}))


@found_by(seed=0, schedule=CheckpointSchedule)
def writes_objects_where_the_list_does_not_say() -> AbstractContextManager[Any]:
    """A checkpoint is listed without the location of its objects, so no later run looks there."""
    return replaced(checkpoint, "list_checkpoint", lambda original, *of: original(*of[:2], ""))


@found_by(seed=0, schedule=CheckpointSchedule)
def deletes_fragments_before_heads() -> AbstractContextManager[Any]:
    def delete(original: Callable[..., None], self: Any, of: Checkpoint, files: list[str]) -> None:
        for key in [file_key(of, file) for file in files]:
            self._delete_fragments(key, self._head(key))
        original(self, of, files)

    return replaced(checkpoint.CheckpointFiles, "delete", delete)


@found_by(seed=72, schedule=CheckpointSchedule)
def deletes_fragments_of_puts_under_way() -> AbstractContextManager[Any]:
    """Every fragment without a head is an orphan."""
    return patch.object(checkpoint, "ORPHAN_AGE", timedelta(0))


@found_by(seed=2, schedule=CheckpointSchedule)
def leaves_fragments_of_failed_puts() -> AbstractContextManager[Any]:
    """No later run deletes what a put has left."""
    return patch.object(checkpoint.CheckpointFiles, "delete_orphans", lambda *_: 0)


@found_by(seed=11, schedule=CheckpointSchedule)
def puts_files_of_queries_that_were_stopped() -> AbstractContextManager[Any]:
    return replaced(BotoTables, "update", lambda original, *of: original(*of[:4]))


@found_by(seed=0, schedule=CheckpointSchedule)
def compares_no_checksum_of_files() -> AbstractContextManager[Any]:
    return patch.object(format_checkpoint, "_crc", lambda *_, **__: 0)


def _together(*patches: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    stack = ExitStack()
    for one in patches:
        stack.enter_context(one)
    return stack


@found_by(seed=28)
def erases_without_refusing_earlier_runs() -> AbstractContextManager[Any]:
    """An executor that has the rows in memory commits on."""
    return patch.object(erase, "refuse_runs", lambda *_: None)


@found_by(seed=28)
def erases_without_correcting_counts() -> AbstractContextManager[Any]:
    return patch.object(StoreScan, "corrected", lambda _: {})


@found_by(seed=45)
def erases_from_touched_buckets_only() -> AbstractContextManager[Any]:
    """The other buckets of a stream of objects are carried on, with all of its bytes."""

    def replaced_buckets(self: StoreScan, manifest: SnapshotManifest) -> list[BucketName]:
        return [BucketName(manifest.buckets[number].holder, number) for number in self.touched(manifest)]

    return _together(
        patch.object(StoreScan, "replaced", replaced_buckets), patch.object(erase, "sparse_objects", lambda _: set())
    )


@found_by(seed=215)
def erases_apart_from_forks() -> AbstractContextManager[Any]:
    return patch.object(erase, "_relatives", lambda *_: [])
