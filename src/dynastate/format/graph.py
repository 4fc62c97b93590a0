"""The version graph: all version ids of a store with their parents and snapshots. No other module walks it.

ancestors    walks from a version down its parents; `lineage`, `reachable`, `route`, `span` and `since` use it
bases        walks from version 0 up: the snapshot that each version is read from; `openable` uses it
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from dynastate.errors import ConfigurationError, CorruptStateError, VersionMissingError
from dynastate.format import keys
from dynastate.format.items import Item, check_format
from dynastate.format.keys import EMPTY, META, NO_ATTEMPT, Attempt, Key, VersionId, where
from dynastate.format.meta import (
    FORK,
    FORKS,
    QUERIES_KEPT,
    QueryRun,
    StoreMeta,
    meta_lost,
    parse_meta,
    parse_schema,
    query_runs,
)
from dynastate.format.snapshot import DONE, Snapshot, parse_snapshot, unknown_item
from dynastate.format.version_list import DROPPED_EPOCH, REFUSED, VERSIONS, VersionEntry, listed_entry, parse_list
from dynastate.runtime import limits


class VersionGraph:
    """The versions of one store from a lowest one up, its snapshots and its meta item, as its table lists them."""

    def __init__(self, store: str, items: Iterable[tuple[Key, Item]], lowest: int = 0) -> None:
        self.store = store
        self._lowest = lowest
        self.meta: StoreMeta | None = None
        #: The meta item and the schema items, by sort key.
        self.descriptions: dict[str, Item] = {}
        self._entries: dict[int, dict[Attempt, VersionEntry]] = {}
        self._snapshots: dict[VersionId, Snapshot] = {}
        #: The errors of skipped snapshots.
        self.skipped: dict[VersionId, CorruptStateError] = {}
        #: Version lists by their keys: each entry as it is stored, and decoded.
        self.lists: dict[Key, list[tuple[bytes, VersionEntry]]] = {}
        #: The version lists that a fork depends on: only commits change them.
        self.pinned: set[Key] = set()
        #: The attributes of the items of version lists, except their entries.
        self.list_attributes: dict[Key, Item] = {}
        #: The runs that version lists refuse.
        self.refused: dict[Key, frozenset[str]] = {}
        #: The newest epoch of an earlier store of this name that was dropped; 0 if none is known.
        self.dropped_epoch = 0
        for key, item in items:
            self.add(key, item)

    def add(self, key: Key, item: Item) -> None:
        """Add an item that was read from the snapshot-group table."""
        if key.sort == META:
            self.meta, self.descriptions[META] = parse_meta(self.store, item), item
        elif key.sort.startswith("schema/"):
            check_format(key, item)
            self.descriptions[key.sort] = item
        elif key.sort.startswith("list/"):
            listed = self.lists[key] = []
            self.list_attributes[key] = {name: value for name, value in item.items() if name != VERSIONS}
            if FORKS in item:
                self.pinned.add(key)
            if isinstance(refused := item.get(REFUSED), frozenset):
                self.refused[key] = refused
            if isinstance(epoch := item.get(DROPPED_EPOCH), int):
                self.dropped_epoch = epoch
            for raw in parse_list(key, item):
                entry = listed_entry(self.store, key, raw)
                listed.append((raw, entry))
                # A repeated append of one attempt keeps its first place in the order of commits.
                self._entries.setdefault(entry.version, {}).setdefault(entry.attempt, entry)
        elif (version_id := keys.maker_of_snapshot(key)) is not None:
            try:
                self._snapshots[version_id] = parse_snapshot(key, item)
            except CorruptStateError as corrupt:
                self.skip_snapshot(version_id, corrupt)
        else:
            raise unknown_item(key, item)

    def skip_snapshot(self, version_id: VersionId, corrupt: CorruptStateError) -> None:
        """Let no route begin with the corrupt snapshot of a version. Routes fall back to older data."""
        self.skipped[version_id] = corrupt

    def leave_out_after(self, epoch: int) -> None:
        """Leave out the versions of runs with higher epochs."""
        for version, entries in list(self._entries.items()):
            attempts = {attempt: entry for attempt, entry in entries.items() if entry.epoch <= epoch}
            if attempts:
                self._entries[version] = attempts
            else:
                del self._entries[version]

    @property
    def required_meta(self) -> StoreMeta:
        """The content of the meta item, which a store with versions has."""
        if self.meta is None:
            raise meta_lost(self.store)
        return self.meta

    @property
    def runs(self) -> dict[int, str]:
        """The newest query runs, by epoch. Versions that a fork began with count as one run: the making of the fork."""
        if self.meta is None:
            return {}
        fork_epoch = self.meta.fork_epoch
        began = {entry.epoch: FORK for entry in self.entries() if entry.epoch <= fork_epoch} if fork_epoch else {}
        return began | {epoch: run for run, epoch in query_runs(self.meta).items()}

    def refuses(self, run_id: str) -> bool:
        """Whether a version list refuses the commits of a run."""
        return any(run_id in runs for runs in self.refused.values())

    @property
    def is_empty(self) -> bool:
        """Whether there is no store: no items, or only fences and schemas, which a drop and a refused commit leave."""
        return not (self.meta or self._entries or self._snapshots)

    def entries(self) -> Iterator[VersionEntry]:
        """Every entry of every version that was read, versions ascending."""
        for version in self.versions():
            yield from self._entries[version].values()

    def snapshots(self) -> list[Snapshot]:
        """Every snapshot, in any stage."""
        return list(self._snapshots.values())

    def done_snapshots(self) -> list[Snapshot]:
        """Every snapshot that is done, skipped ones included."""
        return [each for each in self.snapshots() if each.stage == DONE]

    def snapshot(self, version: int, attempt: Attempt) -> Snapshot | None:
        """The readable snapshot of a version, or None."""
        version_id = VersionId(version, attempt)
        snapshot = self._snapshots.get(version_id)
        return snapshot if snapshot is not None and snapshot.stage == DONE and version_id not in self.skipped else None

    def entry(self, version: int, attempt: Attempt) -> VersionEntry | None:
        """The entry of a version and attempt, or None if it was not read."""
        return self._entries.get(version, {}).get(attempt)

    def versions(self) -> list[int]:
        """Versions that exist, ascending."""
        return sorted(self._entries)

    def is_pinned(self, version: int) -> bool:
        """Whether a fork depends on the list of a version."""
        return keys.version_list_key(self.store, version) in self.pinned

    def schema(self, entry: VersionEntry) -> str:
        key = keys.schema_key(self.store, entry.schema)
        item = self.descriptions.get(key.sort)
        if item is None:
            raise CorruptStateError("the schema item of a version is lost", version=entry.version, **where(key))
        return parse_schema(key, item)

    def schemas(self, entries: Iterable[VersionEntry]) -> dict[bytes, str]:
        one_of_each = {each.schema: each for each in entries}
        return {digest: self.schema(each) for digest, each in one_of_each.items()}

    def find(self, version: int, attempt: Attempt, run: QueryRun | None = None) -> VersionEntry:
        """The entry of a version and attempt. For NO_ATTEMPT, the attempt with the highest epoch wins.

        If several attempts have the highest epoch, the last one that can be opened wins: a zombie may commit after
        clean-up has deleted its ancestors. A `run` never gets an attempt of another query.

        Raises:
            VersionMissingError: there is no such entry; the message names the existing versions.
            ConfigurationError: the number alone does not identify the version: several checkpoint locations have made
                it, and the run's own location was not the last; or the meta item no longer lists all queries.
        """
        entry = self._by_number(version, run) if attempt == NO_ATTEMPT else self.entry(version, attempt)
        if entry is None:
            raise self._missing(version, attempt, run)
        return entry

    def find_any(self, version: int, attempts: Iterable[Attempt]) -> VersionEntry | None:
        """The entry of a version by one of some attempts, of which one store has only one."""
        entries = (self.entry(version, attempt) for attempt in attempts)
        return next((entry for entry in entries if entry is not None), None)

    def newest_attempts(self, version: int, run: QueryRun | None) -> list[VersionEntry]:
        """The attempts of a version with the highest epoch, the last one first, without those of another query."""
        attempts = self._attempts(version, run)
        epoch = max((each.epoch for each in attempts), default=0)
        return [each for each in attempts if each.epoch == epoch]

    def _attempts(self, version: int, run: QueryRun | None) -> list[VersionEntry]:
        last_first = reversed([*self._entries.get(version, {}).values()])
        return [each for each in last_first if run is None or not self._is_foreign(each, run.query)]

    def _by_number(self, version: int, run: QueryRun | None) -> VersionEntry | None:
        equals = self.newest_attempts(version, run)
        if not equals:
            return None
        entry = equals[0] if len(equals) == 1 else next(filter(self._has_base, equals), equals[0])
        if run is not None:
            self._refuse_unclear(entry, self._attempts(version, run), run)
        return entry

    def _is_foreign(self, entry: VersionEntry, query: str) -> bool:
        return self.meta is not None and self.meta.is_foreign(entry.version, entry.epoch, query)

    def _refuse_unclear(self, newest: VersionEntry, attempts: Iterable[VersionEntry], run: QueryRun) -> None:
        """Refuse a version that another location or query may have made with the same number."""
        if self.meta is None:
            return
        about = {"store": self.store, "version": newest.version}
        if self.meta.is_forgotten(newest.epoch, run.query):
            raise ConfigurationError(
                f"{QUERIES_KEPT} queries or more have written to this store, and format v1 of checkpoints does not "
                "say which one made this version: start with a new checkpoint in another namespace",
                **about,
                query=run.query,
            )
        if self.meta.location_at(newest.epoch) == run.location:
            return
        locations = {self.meta.location_at(each.epoch) for each in attempts}
        locations |= self.meta.claimants(newest.version, newest.epoch)
        if len(locations) > 1:
            raise ConfigurationError(
                "several checkpoint locations have made this version, and format v1 of checkpoints does not say which "
                "one is meant. Fork a later version, or go back with dynastate rollback to a batch before the first "
                "that several have made",
                **about,
                locations=",".join(sorted(location or "the fork's origin" for location in locations)),
            )

    def _has_base(self, entry: VersionEntry) -> bool:
        """Whether an attempt's ancestors lead to a snapshot or version 0, as far as they were read."""
        list_size = limits().list_size
        lowest = self._lowest // list_size * list_size

        def is_next_to_base(entry: VersionEntry) -> bool:
            parent = entry.parent_id
            ids = (entry.id, parent)
            has_snapshot = any(self.snapshot(version, attempt) is not None for version, attempt in ids)
            return has_snapshot or parent == EMPTY or parent.version < lowest

        return any(map(is_next_to_base, self.ancestors(entry)))

    def count_values(self, version_id: VersionId) -> int | None:
        """The number of values of a version, which is also the number of records in a snapshot of it.

        A row has one value, a list all of its values. The count is the records of the nearest snapshot below and the
        values that the versions after it added. Returns None if one of these versions has no count, or is not listed.
        """
        total, entry = 0, self.entry(version_id.version, version_id.attempt)
        while entry is not None and entry.added is not None:
            total += entry.added
            below = self._snapshots.get(entry.parent_id)
            if entry.parent_id == EMPTY or (below is not None and below.stage == DONE):
                return total + (below.records if below is not None else 0)
            entry = self.entry(entry.version - 1, entry.parent)
        return None

    def newest(self) -> VersionEntry:
        """The newest version of the newest run: of the highest epoch, then the highest version.

        A run that started over, or from an older version, makes versions below existing ones.
        """
        newest = max(reversed([*self.entries()]), key=lambda entry: (entry.epoch, entry.version), default=None)
        if newest is None:
            raise self._missing(0, NO_ATTEMPT)
        return newest

    def ancestors(self, entry: VersionEntry) -> Iterator[VersionEntry]:
        """A version and its ancestors as far as they are listed, newest first."""
        ancestor: VersionEntry | None = entry
        while ancestor is not None:
            yield ancestor
            ancestor = self.entry(ancestor.version - 1, ancestor.parent)

    def lineage(self, entry: VersionEntry) -> list[VersionEntry]:
        """A version and its ancestors as far as they are listed, oldest first."""
        return [*self.ancestors(entry)][::-1]

    def reachable(self, entries: Iterable[VersionEntry]) -> set[VersionId]:
        """The ids of versions and of all their ancestors."""
        ids: set[VersionId] = set()
        for entry in entries:
            ids.update(takewhile(lambda version_id: version_id not in ids, (each.id for each in self.ancestors(entry))))
        return ids

    def route(self, version: int, attempt: Attempt) -> tuple[VersionId, list[VersionEntry]]:
        """The route of a version: the nearest snapshot below or version 0, and the entries after it, oldest first.

        Raises:
            VersionMissingError: the version does not exist.
        """
        path: list[VersionEntry] = []
        newest = self.find(version, attempt)
        base = newest.id
        for entry in self.ancestors(newest):
            if self.snapshot(entry.version, entry.attempt) is not None:
                break
            path.append(entry)
            base = entry.parent_id
        if base != EMPTY and self.snapshot(base.version, base.attempt) is None:
            raise self._parent_lost(path)
        return base, path[::-1]

    def span(self, first: int, last: int, attempt: Attempt) -> list[VersionEntry]:
        """The entries from version `first` to `last`, which `attempt` made, by their parents; oldest first.

        The list with the version before `first` must have been read.

        Raises:
            VersionMissingError: an entry does not exist, or was imported and so has no changes.
        """
        entries = [entry for entry in self.ancestors(self.find(last, attempt)) if entry.version >= first]
        if entries[-1].is_imported:
            key = keys.version_list_key(self.store, entries[-1].version)
            raise VersionMissingError(
                "this version was imported, by dynastate import or another transfer, and what it changed is not known: "
                "read all its rows, and then the changes after it",
                store=self.store,
                version=entries[-1].version,
                table=key.role,
                item=key.sort,
            )
        if entries[-1].version > first:
            raise self._missing(entries[-1].version - 1, entries[-1].parent)
        return entries[::-1]

    def bases(
        self, starts: Collection[VersionId] | None = None, lost: Collection[tuple[int, Attempt]] = ()
    ) -> dict[VersionId, VersionId | None]:
        """The version id of the snapshot that each version is read from: EMPTY for version 0, or None if unreadable.

        `starts` are the versions with a snapshot, by default with a readable one. `lost` are the versions whose own
        items are lost or corrupt.
        """
        if starts is None:
            starts = {each.of for each in self.done_snapshots()} - self.skipped.keys()
        bases: dict[VersionId, VersionId | None] = {EMPTY: EMPTY}
        for entry in self.entries():
            version_id, parent = entry.id, entry.parent_id
            if version_id in starts:
                bases[version_id] = version_id
            elif version_id in lost:
                bases[version_id] = None
            else:
                bases[version_id] = bases.get(parent, parent if parent in starts else None)
        return bases

    def openable(self, path: Sequence[VersionEntry]) -> list[VersionEntry]:
        """The versions of a lineage that can be opened: they begin with the oldest one that has a base.

        Clean-up left the others: it deletes a snapshot before the versions on it, and leaves lists that a fork depends
        on. If a snapshot is corrupt, or no version has a base, the result has all versions, and opening one reports
        the lost items.
        """
        starts = {each.of for each in self.done_snapshots()} | self.skipped.keys()
        bases = self.bases(starts)
        return next((list(path[index:]) for index, entry in enumerate(path) if bases[entry.id] is not None), list(path))

    def _parent_lost(self, path: Sequence[VersionEntry]) -> CorruptStateError:
        """The error of a route without a base. It names a skipped snapshot on the route as corrupt."""
        gap = self._gap(path[-1])
        ids = [*(each.id for each in path), path[-1].parent_id]
        corrupt = next((self.skipped[each] for each in ids if each in self.skipped), None)
        if corrupt is None:
            return gap
        named = {name: corrupt.facts[name] for name in ("table", "store_shard", "item")}
        reason = f"{corrupt.reason}; and nothing older is there to fall back to: {gap.reason}"
        return CorruptStateError(reason, **named, lost=gap.facts["item"])

    def _gap(self, entry: VersionEntry) -> CorruptStateError:
        about = {"store": self.store, "version": entry.version, "attempt": entry.attempt.hex()}
        if entry.parent == NO_ATTEMPT:
            listed = where(keys.version_list_key(self.store, entry.version))
            return CorruptStateError("a version entry names no parent", **about, **listed)
        lost = where(keys.version_list_key(self.store, entry.version - 1))
        lost |= {"snapshot": keys.snapshot_key(self.store, entry.version - 1, entry.parent).sort}
        return CorruptStateError(
            "the parent of a version is not there, nor a snapshot of it: its version list, or the snapshot, is lost or "
            "was deleted",
            **about,
            parent=entry.parent.hex(),
            **lost,
        )

    def _missing(self, version: int, attempt: Attempt, run: QueryRun | None = None) -> VersionMissingError:
        versions = self.versions()
        key = keys.version_list_key(self.store, version)
        facts: dict[str, object] = {"store": self.store, "version": version}
        if not versions:
            message = (
                "no state of this store is in the tables. If the checkpoint was moved, set "
                "spark.sql.streaming.stateStore.dynastate.namespace to the one it had, and dynastate adopt that. If it "
                "was copied for a test, dynastate fork, and set that namespace. If the state was dropped, start with a "
                "new checkpoint. Else check both table names"
            )
        elif version in self._entries and attempt == NO_ATTEMPT and run is not None:
            message = (
                "only another query has made this version: the state of this one was dropped or cleaned up, or the "
                "file metadata of its checkpoint is new. Restore what is missing, or start with a new checkpoint"
            )
            facts["query"] = run.query
        elif version in self._entries:
            message = "this version exists, but not by that attempt"
            facts |= {"attempt": attempt.hex(), "attempts": ",".join(each.hex() for each in self._entries[version])}
        else:
            message = "this version does not exist"
            facts["versions"] = ranges(versions)
        return VersionMissingError(message, **facts, table=key.role, item=key.sort)


#: The lineage of a store, oldest first, and its newest query runs by epoch.
Listed = tuple[Sequence[VersionEntry], Mapping[int, str]]


def is_of_one_run(stores: Iterable[Listed], version: int) -> bool:
    """Whether one run made a version in all stores, as far as their runs are listed.

    Until the first batch of a new run is committed in all stores, some have its versions, and others have versions of
    the previous run. After a rollback the two runs had different input.

    A run that a store no longer lists is older than all that it lists. A run that it does not list yet is newer: the
    meta item of a replica may arrive after the version lists that need it.
    """
    runs: set[str] = set()
    not_later: set[str] = set()
    unlisted: list[tuple[bool, Mapping[int, str]]] = []
    for entries, listed in stores:
        index = version - entries[0].version
        if not 0 <= index < len(entries):
            continue
        epoch = entries[index].epoch
        if epoch in listed:
            runs.add(listed[epoch])
            not_later |= {run for other, run in listed.items() if other <= epoch}
        else:
            unlisted.append((epoch < max(listed, default=0), listed))
    return len(runs) < 2 and all(
        (not_later if is_earlier else runs).isdisjoint(listed.values()) for is_earlier, listed in unlisted
    )


def last_of_one_run(stores: Sequence[Listed]) -> int:
    """The newest version that one run made in all stores; 0 if there is none."""
    first, last = max(entries[0].version for entries, _ in stores), min(entries[-1].version for entries, _ in stores)
    return next((version for version in range(last, first - 1, -1) if is_of_one_run(stores, version)), 0)


def since(
    newest_first: Iterable[VersionEntry], have: Collection[VersionId]
) -> tuple[VersionId, tuple[VersionEntry, ...]] | None:
    """The newest of `have` on a path, and the entries after it, oldest first. Returns None if none is on the path."""
    later: list[VersionEntry] = []
    for entry in newest_first:
        if entry.id in have:
            return entry.id, tuple(later[::-1])
        later.append(entry)
        if entry.parent_id in have:
            return entry.parent_id, tuple(later[::-1])
    return None


def ranges(numbers: Sequence[int]) -> str:
    """1-5,8 for [1, 2, 3, 4, 5, 8]."""
    out: list[list[int]] = []
    for number in numbers:
        if out and number == out[-1][1] + 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in out)
