"""The engine, broken on purpose: each way is one that somebody's store was broken in, or that ours might be.

`test_simulation.py` shows that the simulation finds every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from dynastate import cleanup, layout, reader, snapshots, store, tables, upkeep
from dynastate.directory import Bucket
from dynastate.layout import Attempt, History, Item, Key, Tally
from dynastate.tables import BotoTables, Meter

Mutation = Callable[[], AbstractContextManager[Any]]


def commits_before_parts_are_durable() -> AbstractContextManager[Any]:
    return patch.object(store.Engine, "settle", lambda *_: None)


def drops_unprocessed_items() -> AbstractContextManager[Any]:
    def batch_write(self: BotoTables, requests: Sequence[tuple[Key, dict[str, Any]]], meter: Meter) -> None:
        items: dict[str, list[dict[str, Any]]] = {}
        for key, request in requests:
            items.setdefault(self.names[key.role], []).append(request)
        send = partial(self._client.batch_write_item, RequestItems=items)
        self.call("BatchWriteItem", requests[0][0].role, meter, send)

    return patch.object(BotoTables, "_batch_write", batch_write)


def drops_unprocessed_keys() -> AbstractContextManager[Any]:
    whole = tables._Retry.attempt

    def attempt(self: Any, role: layout.Role, once: Callable[[], Any]) -> Any:
        answer = whole(self, role, once)
        return answer | {"UnprocessedKeys": {}} if answer and "UnprocessedKeys" in answer else answer

    return patch.object(tables._Retry, "attempt", attempt)


def reads_the_first_page_only() -> AbstractContextManager[Any]:
    whole = BotoTables.call

    def call(self: BotoTables, operation: str, *rest: Any) -> Any:
        answer = whole(self, operation, *rest)
        return {"Items": answer["Items"]} if operation == "Query" else answer

    return patch.object(BotoTables, "call", call)


def takes_a_lost_answer_for_a_failure() -> AbstractContextManager[Any]:
    return patch.object(tables._Retry, "_failure", lambda _, found: found)


def passes_over_what_is_not_there() -> AbstractContextManager[Any]:
    """Of a version whose parts are lost, read those that are there; no sum is compared."""

    def read_window(self: reader.Reader, keys: list[Key], *, keep: bool) -> tuple[list[tuple[Key, layout.Part]], Meter]:
        spent = Meter()
        found = self._tables.get(keys, spent)
        return [(key, layout.parse_part(key, found[key])) for key in keys if key in found], spent

    def verified(_: Any, __: Any, parts: Any, ___: Any) -> Any:
        for key, part in parts:
            if part.fragments == 1:
                yield part.records, layout.join_fragments(key, [part])

    both = patch.multiple(reader, verified_chunks=verified)
    return _together(both, patch.object(reader.Reader, "_read_window", read_window))


def appends_by_reading_and_writing() -> AbstractContextManager[Any]:
    """The version list is read, and put back with one entry more."""

    def append(self: BotoTables, key: Key, entry: bytes, meter: Meter) -> list[bytes]:
        before = self.get([key], meter).get(key, {})
        versions = before.get("versions", [])
        assert isinstance(versions, list)
        now = [*versions, entry]
        self.write([(key, layout.item_key(key) | {"format": layout.FORMAT, "versions": now})], meter)
        return now

    return patch.object(BotoTables, "append_version", append)


def gives_all_attempts_the_same_parts() -> AbstractContextManager[Any]:
    named = layout.part_key

    def part_key(name: str, version: int, _: Attempt, sequence: int, shards: int) -> Key:
        return named(name, version, layout.NO_ATTEMPT, sequence, shards)

    return patch.object(layout, "part_key", part_key)


def aborts_what_may_be_committed() -> AbstractContextManager[Any]:
    whole = store.WriteAttempt.abort

    def abort(self: store.WriteAttempt) -> None:
        self._ended = False
        whole(self)

    return patch.object(store.WriteAttempt, "abort", abort)


def takes_the_last_appended() -> AbstractContextManager[Any]:
    """Whatever its epoch: a zombie of a run that was replaced wins by coming late."""

    def find(self: History, version: int, attempt: Attempt) -> layout.VersionEntry:
        entries = self._entries.get(version, {})
        if attempt == layout.NO_ATTEMPT and entries:
            return list(entries.values())[-1]
        if attempt not in entries:
            raise self._missing(version, attempt)
        return entries[attempt]

    return patch.object(History, "find", find)


def takes_snapshots_that_are_being_written() -> AbstractContextManager[Any]:
    return patch.object(History, "snapshot", lambda self, *at: self._snapshots.get(at))


def keeps_what_was_in_buckets_that_became_empty() -> AbstractContextManager[Any]:
    def end_bucket(self: snapshots.SnapshotAttempt) -> None:
        if self._current >= 0 and self._tally.parts:
            holder = (self._snapshot.version, self._snapshot.id)
            self._buckets[self._current] = Bucket(holder, 0, *self._tally.sums())
        self._tally = Tally()

    return patch.object(snapshots.SnapshotAttempt, "_end_bucket", end_bucket)


def cleans_up_whoever_writes_since() -> AbstractContextManager[Any]:
    """An executor of a run that was replaced goes on cleaning up."""

    def newest_epoch(meta: Item | None, run: str) -> int | None:
        epochs = (meta or {}).get("epochs")
        return epochs.get(run) if isinstance(epochs, dict) else None

    return patch.object(store, "_newest_epoch", newest_epoch)


def removes_parts_that_no_list_names() -> AbstractContextManager[Any]:
    """Clean-up decides by absence: also of attempts that are under way."""
    whole = cleanup.CleanUp.find_orphans

    def find_orphans(self: cleanup.CleanUp, below: int, struck: Any) -> list[Key]:
        return whole(self, below + 1_000, struck)

    return patch.object(cleanup.CleanUp, "find_orphans", find_orphans)


def removes_buckets_that_were_carried_on() -> AbstractContextManager[Any]:
    def buckets_of(self: cleanup.CleanUp, found: Any, _: Any) -> dict[Key, int]:
        own = (found.version, found.id)
        numbers = [number for number, bucket in enumerate(found.buckets) if bucket.holder == own]
        return {key: 1 for number in numbers for key in found.keys(self._store, number, self._shards)}

    return patch.object(cleanup.CleanUp, "_buckets_of", buckets_of)


def retains_one_version_too_few() -> AbstractContextManager[Any]:
    whole = cleanup.oldest_needed

    def oldest_needed(history: History, version: int, attempt: Attempt, retain: int) -> int:
        return whole(history, version, attempt, retain - 1)

    return patch.object(cleanup, "oldest_needed", oldest_needed)


def removes_what_snapshots_stand_on() -> AbstractContextManager[Any]:
    """Clean-up forgets that the oldest retained version is read from a snapshot, or from version 1."""
    return patch.object(cleanup, "oldest_needed", lambda _, version, __, retain: max(1, version - retain + 1))


def ends_a_snapshot_without_looking_what_it_stands_on() -> AbstractContextManager[Any]:
    """None of MUTATIONS: only a schedule made by hand finds it, in `test_regressions.py`."""
    return patch.object(snapshots.SnapshotAttempt, "_base_is_there", lambda _: True)


def strikes_versions_without_looking() -> AbstractContextManager[Any]:
    """A version list is put back as clean-up wants it, whatever was appended since it was read."""

    def put_over(self: BotoTables, key: Key, item: Item, before: Item, meter: Meter) -> bool:
        self.write([(key, item)], meter)
        return True

    def delete_over(self: BotoTables, key: Key, before: Item, meter: Meter) -> bool:
        self.delete([key], meter)
        return True

    return patch.multiple(BotoTables, put_over=put_over, delete_over=delete_over)


def removes_what_forks_stand_on() -> AbstractContextManager[Any]:
    """Clean-up leaves what forks stand on as far as it has read, and does not see what was pinned since."""
    return patch.object(tables, "FORKS", "nobody")


def compacts_without_what_changed() -> AbstractContextManager[Any]:
    """All buckets of the last snapshot are carried on."""
    whole = upkeep._read

    def read(opening: store.Opening) -> Any:
        found, _, base = whole(opening)
        return found, set(), base

    return patch.object(upkeep, "_read", read)


def follows_what_does_not_stand_on_it() -> AbstractContextManager[Any]:
    """A reader that goes on takes newer versions for those that come after its own, also those of another life."""
    whole = store.Engine.lineage

    def lineage(self: store.Engine, name: str, known: reader.Lineage | None = None) -> reader.Lineage:
        found = whole(self, name)
        if known is None:
            return found
        after = [entry for entry in found.entries if entry.version > known.newest.version]
        schemas = {**known.schemas, **found.schemas}
        return reader.Lineage(name, (*known.entries, *after), schemas, found.meter)

    return patch.object(store.Engine, "lineage", lineage)


def takes_no_epochs() -> AbstractContextManager[Any]:
    whole = store.Engine._enter_run

    def enter_run(self: store.Engine, *of: Any) -> store.Session:
        return store.Session(1, whole(self, *of).shards)

    return patch.object(store.Engine, "_enter_run", enter_run)


def _together(*patches: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    stack = ExitStack()
    for each in patches:
        stack.enter_context(each)
    return stack


MUTATIONS: Final[dict[str, Mutation]] = {
    each.__name__: each
    for each in (
        commits_before_parts_are_durable,
        drops_unprocessed_items,
        drops_unprocessed_keys,
        reads_the_first_page_only,
        takes_a_lost_answer_for_a_failure,
        passes_over_what_is_not_there,
        appends_by_reading_and_writing,
        gives_all_attempts_the_same_parts,
        aborts_what_may_be_committed,
        takes_the_last_appended,
        takes_snapshots_that_are_being_written,
        keeps_what_was_in_buckets_that_became_empty,
        cleans_up_whoever_writes_since,
        removes_parts_that_no_list_names,
        removes_buckets_that_were_carried_on,
        retains_one_version_too_few,
        removes_what_snapshots_stand_on,
        strikes_versions_without_looking,
        removes_what_forks_stand_on,
        compacts_without_what_changed,
        follows_what_does_not_stand_on_it,
        takes_no_epochs,
    )
}
