"""Copy-on-write copies of a query's state at one version, for test runs (docs/decisions/0010).

A fork has its own version lists, snapshots and manifests, which name parts and buckets of the store it was made of, its
origin. The origin's items that name the same parts and buckets are **pinned**: each has the fork in its set `forks`,
and clean-up of the origin neither replaces nor deletes an item with such a set. A fork lists its pins in its meta item
before it makes them, so that dropping it removes all of them; and it writes nothing else to its origin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Final, NamedTuple
from uuid import uuid4

import dynastate
from dynastate.dynamodb.limits import ITEM_BYTES_MAX, WRITES_MAX
from dynastate.dynamodb.meter import Meter
from dynastate.dynamodb.tables import Tables
from dynastate.engine import snapshots
from dynastate.engine.catalog import read_version_lists, stores_in_list, whole_namespace
from dynastate.engine.namespaces import (
    NamespaceItems,
    begin_list,
    delete_record,
    list_store,
    not_complete,
    read_namespace,
)
from dynastate.engine.opening import retry_routes
from dynastate.errors import (
    ConfigurationError,
    CorruptStateError,
    DynastateError,
    RouteInvalidError,
    UnavailableError,
    VersionMissingError,
)
from dynastate.format import keys
from dynastate.format.graph import VersionGraph, ranges
from dynastate.format.items import Item, item_bytes
from dynastate.format.keys import EMPTY, META, NO_ATTEMPT, Attempt, Home, Key, VersionId
from dynastate.format.manifest import SnapshotManifest, encode_manifest, manifest_item
from dynastate.format.meta import (
    DELETING,
    DROPPED,
    EPOCHS_KEPT,
    FORK,
    FORKED,
    FORKS,
    ORIGIN,
    ORIGIN_RUN,
    ORIGIN_VERSION,
    PIN,
    PINS,
    QueryRun,
    meta_item,
    parse_meta,
    schema_item,
)
from dynastate.format.snapshot import DONE, Snapshot, snapshot_item
from dynastate.format.version_list import REFUSED, VERSIONS, encode_entry, list_item
from dynastate.operations.pins import is_complete, meta_or_empty, pin_of, pins_of, read_graph, unpin
from dynastate.operations.runs import read_meta
from dynastate.operations.scope import each_store, metered
from dynastate.progress import ProgressCallback, no_progress

_CHANGED: Final = "what the fork was begun with has changed"


class _Moment(NamedTuple):
    """A version, as the runs of the origin have made it up to one; an empty `run` is of earlier builds: all of them."""

    version: int
    run: str


@dataclass(frozen=True)
class Forked:
    """A fork: `items` were written, and parts and buckets of `shared_bytes` are shared with the origin."""

    namespace: str
    fork: str
    version: int
    stores: int
    items: int
    shared_bytes: int
    write_units: int


def fork_namespace(
    tables: Tables,
    namespace: str,
    new: str,
    version: int | None,
    meter: Meter,
    progress: ProgressCallback = no_progress,
) -> Forked:
    """Fork the stores of a namespace's current query into another one, at a version.

    By default that is the newest that all of them have. The query may run meanwhile: what its later runs make of the
    version is not forked. The same call resumes a fork that was cut off, at its version.
    Stores are made several at once. Those of partition 0 are begun before the others, so that a drop finds the fork,
    and get their version after them, so that no reader takes a part of the fork for all of it.

    Raises:
        ConfigurationError: the new namespace has stores, or the other one has none or is being dropped.
        VersionMissingError: a store has no such version, or clean-up deletes it meanwhile; or partitions are missing.
    """
    if new == namespace:
        raise ConfigurationError("a fork needs a namespace of its own", namespace=namespace)
    origins = whole_namespace(tables, namespace, meter)
    stores = {new + origin.removeprefix(namespace): origin for origin in origins}
    namespace_items = read_namespace(tables, new, meter)
    begun = _begun(tables, namespace, namespace_items, stores, meter)
    spent = Meter()
    if begun is not None:
        if version not in (None, begun.version):
            raise ConfigurationError(
                f"a fork at another version has begun there and was cut off: dynastate drop {new}, and fork again",
                namespace=new,
                version=begun.version,
            )
        of = begun
    else:
        of = _begin(tables, origins, version, meter)
        if namespace_items.record is None:
            begin_list(tables, new, spent)
        else:  # of a query that was dropped
            delete_record(tables, namespace_items.record, spent)
    first = next(iter(stores))

    # A drop looks for partition 0 of each operator, and begins with the first store.
    starts = [store for store in stores if store.split("/")[2] == "0"]
    others = [store for store in stores if store not in set(starts)]

    def finish(fork: _StoreFork, own: Meter) -> int:
        shared = fork.finish()
        _require_not_dropped(tables, list(dict.fromkeys((first, fork.store))), own)
        return shared

    def make(store: str, own: Meter) -> int:
        with _StoreFork(tables, store, stores[store], of, own).begun() as fork:
            return finish(fork, own)

    def report(done: int, _: int) -> None:
        progress(len(starts) + done, len(stores))

    with ExitStack() as stack:
        begun_starts = []
        for done, store in enumerate(starts):
            progress(done, len(stores))
            begun_starts.append(stack.enter_context(_StoreFork(tables, store, stores[store], of, spent).begun()))
        shared = sum(each_store(tables, others, metered(make, spent), report, until_failure=True).all())
        shared += sum(finish(fork, spent) for fork in begun_starts)
    meter.add(spent)
    return Forked(namespace, new, of.version, len(stores), spent.items_written, shared, spent.write_units)


def _begun(
    tables: Tables, namespace: str, namespace_items: NamespaceItems, stores: Collection[str], meter: Meter
) -> _Moment | None:
    """The version of an unfinished fork in the new namespace; None: it is empty."""
    if namespace_items.is_copied:
        raise not_complete(namespace_items.namespace)
    metas = stores_in_list(tables, namespace_items, meter)
    if not metas:
        return None
    origins = {str(meta.get(ORIGIN, "")).split("/")[0] for meta in metas.values()}
    moments = {(meta.get(ORIGIN_VERSION), str(meta.get(ORIGIN_RUN, ""))) for meta in metas.values()}
    is_dropped = any(DROPPED in each for each in metas.values())
    version, run = moments.pop()
    if (
        not isinstance(version, int)
        or moments
        or origins != {namespace}
        or is_dropped
        or all(is_complete(tables, store, version, meter) for store in stores)
    ):
        raise ConfigurationError(
            "this namespace has state already; give the fork another one, or drop this one first",
            namespace=namespace_items.namespace,
            stores=len(metas),
        )
    return _Moment(version, run)


def _require_not_dropped(tables: Tables, stores: Collection[str], meter: Meter) -> None:
    """Refuse to resume a fork that is being dropped. A drop begins and ends with the first store."""
    found = tables.get([keys.meta_key(store) for store in stores], meter)
    if len(found) < len(stores) or any(DROPPED in meta for meta in found.values()):
        raise ConfigurationError(
            "the fork was dropped while it was made; make it again, and then drop it if it is not wanted",
            store=min(stores),
        )


def _begin(tables: Tables, stores: Sequence[str], version: int | None, meter: Meter) -> _Moment:
    """The moment at which stores are forked: now, at a version, by default the newest that all have."""
    epochs = read_meta(tables, stores[0], meter)[1].epochs
    run = max(epochs, key=epochs.__getitem__)

    def newest(store: str, own: Meter) -> int:
        graph = _read_origin(tables, store, run, own)
        if not graph.versions():
            raise VersionMissingError(
                "a store of this query has no version yet; try again when its first batch is committed", store=store
            )
        chosen = graph.newest().version if version is None else version
        # Each attempt at the version is forked, so its query does not matter here.
        entry = graph.find(chosen, NO_ATTEMPT, QueryRun("", "", ""))
        _refuse_left(graph, chosen)
        graph.route(*entry.id)
        return chosen

    found = each_store(tables, stores, metered(newest, meter), until_failure=True).all()
    return _Moment(min(found), run)


def _read_origin(
    tables: Tables, store: str, run: str, meter: Meter, allowed: Collection[str] | None = None
) -> VersionGraph:
    """The versions and snapshots of an origin, without those versions that runs after `run` have made."""
    graph = read_graph(tables, store, meter, allowed)
    meta = graph.required_meta
    if run in meta.epochs:
        graph.leave_out_after(meta.epochs[run])
    elif run and len(meta.epochs) >= EPOCHS_KEPT:  # else it has written to other stores only
        raise VersionMissingError(
            "runs of the query have begun again and again since this fork was begun: drop it, and fork again",
            store=store,
            run=run,
        )
    return graph


def _refuse_left(graph: VersionGraph, version: int) -> None:
    """Refuse a version that is none of the query's any more: part of it may be there still."""
    lineage = graph.lineage(graph.newest()) if graph.versions() else []
    there = [entry.version for entry in graph.openable(lineage)]
    if version not in there:
        raise VersionMissingError(
            "clean-up has deleted this version, or the query was taken back to one before it; fork one of versions",
            store=graph.store,
            version=version,
            versions=ranges(there),
        )


class _StoreFork:
    """One store of a fork, made from one read of its origin's version lists and snapshots."""

    def __init__(self, tables: Tables, store: str, origin: str, of: _Moment, meter: Meter) -> None:
        self._tables = tables
        self._store = keys.check_store(store)
        self._origin = origin
        self._version, self._run = of
        self._meter = meter
        #: The fork's meta item, when it is there.
        self._meta: Item = {}

    @property
    def store(self) -> str:
        """The store that is made."""
        return self._store

    def _begin(self) -> None:
        """Make the store, but for its version lists.

        1. Read from the origin the version and what it depends on. 2. List the store, then write the meta item, which
        lists the pins; if it exists, its list holds. 3. Pin the items of the origin, its meta item first, and check
        that they still name the same. 4. Write schemas and manifests. 5. Write the snapshots.

        A crash after any step leaves a store without the version, and pins that its meta item lists. The fork can be
        resumed or dropped.
        """
        key = keys.meta_key(self._store)
        begun = self._tables.get([key], self._meter).get(key)
        retry_routes(lambda _: self._read(begun))  # 1
        meta = self._meta_item()
        list_store(self._tables, self._store, self._meter)  # 2
        if not self._tables.put_new(key, meta, self._meter):
            there = meta_or_empty(self._tables, self._store, self._meter)
            if any(there.get(name) != meta[name] for name in (ORIGIN, ORIGIN_VERSION, PINS)):
                raise self._refusal(_CHANGED)  # the call that began this store has found something else
            meta = there
        self._meta = meta
        self._pin_name = pin_of(self._store, meta)
        self._pin(pins_of(meta))  # 3
        self._write_described()  # 4
        for snapshot, found in self._snapshots:
            item = snapshot_item(self._store, self._copied(snapshot, found)[0])
            self._put(keys.snapshot_key(self._store, *snapshot.of), item)  # 5

    def finish(self) -> int:
        """Write the version lists, the oldest first; return the bytes that the store shares with its origin.

        The version can be opened once the last of them is written. After a crash the fork can be resumed or dropped.
        """
        for group, listed in self._lists().items():
            self._put(group, list_item(group, listed))
        parts = sum(entry.stored_bytes for _, entry in self._entries)
        return parts + sum(snapshot.stored_bytes for snapshot, _ in self._snapshots)

    @contextmanager
    def begun(self) -> Iterator[_StoreFork]:
        """The store, begun. Unpin what it pins, if it is refused because it was dropped: the drop may have unpinned."""
        try:
            self._begin()
            yield self
        except UnavailableError:
            raise
        except DynastateError:
            there = meta_or_empty(self._tables, self._store, self._meter)
            if self._meta and (there.get(PIN) != self._meta.get(PIN) or there.get(DROPPED) == DELETING):
                unpin(self._tables, self._store, self._meta, pins_of(self._meta), self._meter)
            raise

    def _read(self, begun: Item | None) -> None:
        """Find every attempt at the version that can be opened, and what it depends on: a driver may ask for any."""
        allowed = None if begun is None else pins_of(begun)
        graph = _read_origin(self._tables, self._origin, self._run, self._meter, allowed)
        self._origin_meta = graph.required_meta
        self._home = Home(self._origin, self._origin_meta.shards)
        self._graph = graph
        #: The epoch in the fork's meta item: the fork's next run gets a higher one than every attempt, and than every
        #: run of a query that was dropped there.
        runs = {} if begun is None else parse_meta(self._store, begun).epochs
        self._epoch = next((epoch for run, epoch in runs.items() if run.startswith(FORK)), 0)
        found: dict[VersionId, SnapshotManifest] | None = None
        while found is None:
            if begun is None:
                _refuse_left(graph, self._version)
            try:
                ways, nodes = self._ways()
            except CorruptStateError as lost:
                if begun is None:
                    raise
                # Later snapshots do not count: the fork's meta item does not list them.
                raise self._refusal("clean-up has deleted what the fork was begun with") from lost
            bases = sorted(ways)
            found = self._manifests(bases)
        self._snapshots = [(snapshot, found[node]) for node in bases if (snapshot := graph.snapshot(*node)) is not None]
        #: Entries as they are stored in the origin, in the order of its lists.
        self._entries = [
            (raw, entry) for _, group in sorted(graph.groups.items()) for raw, entry in group if entry.id in nodes
        ]
        if not self._epoch:
            before = VersionGraph(self._store, read_version_lists(self._tables, self._store, self._meter).items())
            self._epoch = max(self._origin_meta.epoch, before.dropped_epoch)

    def _ways(self) -> tuple[set[VersionId], set[VersionId]]:
        """The snapshots that attempts at the version depend on, and the entries from there to the attempts."""
        bases: set[VersionId] = set()
        nodes: set[VersionId] = set()
        chosen = self._graph.find(self._version, NO_ATTEMPT)
        for entry in self._graph.entries():
            if entry.version != self._version:
                continue
            try:
                base, path = self._graph.route(*entry.id)
            except CorruptStateError:
                if entry == chosen:
                    raise
                continue  # another attempt, whose base clean-up has deleted
            nodes |= {each.id for each in (*path, entry)}
            if base != EMPTY:
                bases.add(base)
        return bases, nodes

    def _manifests(self, bases: Iterable[VersionId]) -> dict[VersionId, SnapshotManifest] | None:
        """The manifests of snapshots; None: one is corrupt, and is skipped from now on."""
        found: dict[VersionId, SnapshotManifest] = {}
        for node in bases:
            snapshot = self._graph.snapshot(*node)
            if snapshot is None:
                raise CorruptStateError("a version depends on a missing snapshot", store=self._origin, version=node[0])
            try:
                found[node] = snapshots.read_manifest(self._tables, self._origin, snapshot, self._meter)
            except RouteInvalidError:  # a clean-up runs meanwhile: read everything again
                raise
            except CorruptStateError as corrupt:
                self._graph.skip_snapshot(node, corrupt)
                return None
        return found

    def _meta_item(self) -> Item:
        names = [META, *(keys.snapshot_key(self._origin, *each.of).sort for each, _ in self._snapshots)]
        names += [keys.group_key(self._origin, entry.version).sort for _, entry in self._entries]
        origin = self._origin_meta
        # The first query run that writes to the fork gets the next epoch.
        made = replace(origin, epochs={f"{FORK}{uuid4()}": self._epoch}, locations={})
        item = meta_item(
            self._store, made, dynastate.__version__, datetime.now(timezone.utc).isoformat(timespec="seconds")
        )
        item |= {ORIGIN: self._origin, ORIGIN_VERSION: self._version, PINS: frozenset(names)}
        item[PIN] = f"{self._store}#{uuid4()}"
        if self._run:
            item[ORIGIN_RUN] = self._run
        if item_bytes(item) > ITEM_BYTES_MAX:
            raise ConfigurationError(
                "a fork of this version would depend on more items than its own item can name: let clean-up delete "
                "old versions, dynastate clean, and fork again",
                store=self._origin,
                version=self._version,
                items=len(names),
            )
        return item

    def _put(self, key: Key, item: Item) -> None:
        """Write an item; if it is there already, it must be the same, but for versions that a query has added."""
        if self._tables.put_new(key, item, self._meter):
            return
        found = self._tables.get([key], self._meter).get(key, {})
        if REFUSED in found and VERSIONS not in found:  # of a store that was dropped
            before: Item = {REFUSED: found[REFUSED]}
            if self._tables.put_over(key, item | before, before, self._meter):
                return
            found = self._tables.get([key], self._meter).get(key, {})
        now, wanted = found.pop(VERSIONS, []), item.pop(VERSIONS, [])
        is_listed = isinstance(now, list) and isinstance(wanted, list) and set(wanted) <= set(now)
        if not (is_listed and item.items() <= found.items()):
            raise self._refusal(_CHANGED)

    def _pin(self, names: Collection[str]) -> None:
        self._tables.add_to_set(keys.meta_key(self._origin), FORKED, ["yes"], self._meter)
        now = {sort: self._pinned(sort) for sort in sorted(names, key=lambda sort: (sort != META, sort))}
        if DROPPED in now[META]:
            raise ConfigurationError("this store is being dropped, so it cannot be forked", store=self._origin)
        for snapshot, _ in self._snapshots:
            item = now[keys.snapshot_key(self._origin, *snapshot.of).sort]
            if (item.get("id"), item.get("stage")) != (bytes(snapshot.id), DONE):
                raise self._refusal("clean-up deletes a snapshot that it needs")
        for raw, entry in self._entries:
            listed = now[keys.group_key(self._origin, entry.version).sort].get("versions")
            if not isinstance(listed, list) or raw not in listed:
                raise self._refusal("clean-up deletes it")

    def _pinned(self, sort: str) -> Item:
        key = Key("snapshot", keys.store_shard(self._origin, 0), sort)
        item = self._tables.add_to_set(key, FORKS, [self._pin_name], self._meter)
        if item is None:
            raise self._refusal("clean-up deletes it")
        return item

    def _refusal(self, why: str) -> VersionMissingError:
        namespace = self._store.split("/")[0]
        return VersionMissingError(
            f"this version cannot be forked, {why}: dynastate drop {namespace}, and fork a newer one",
            store=self._origin,
            version=self._version,
        )

    def _write_described(self) -> None:
        """Write schemas, and manifests that name the buckets where they lie."""
        puts: dict[Key, Item] = {}
        for _, entry in self._entries:
            key = keys.schema_key(self._store, entry.schema)
            puts[key] = schema_item(key, self._graph.schema(entry), self._pin_name)
        for snapshot, found in self._snapshots:
            copied, raw = self._copied(snapshot, found)
            key = keys.manifest_key(self._store, copied.version, copied.id)
            puts[key] = manifest_item(key, raw)
        listed = list(puts.items())
        for at in range(0, len(listed), WRITES_MAX):
            self._tables.write(listed[at : at + WRITES_MAX], self._meter)

    def _copied(self, snapshot: Snapshot, found: SnapshotManifest) -> tuple[Snapshot, bytes]:
        """A snapshot whose buckets lie elsewhere, with the bytes of its manifest.

        Its id is derived from the other's, so that a resumed fork writes the same.
        """
        own = hashlib.blake2b(f"{self._store}\n".encode() + snapshot.id, digest_size=16).digest()
        buckets = tuple(
            replace(bucket, home=bucket.home or self._home) if bucket.parts else bucket for bucket in found.buckets
        )
        made = replace(found, id=Attempt(own), base=found.version, buckets=buckets)
        raw = encode_manifest(self._store, made)
        named = replace(snapshot, id=made.id, epoch=self._epoch, digest=keys.digest_of(raw), is_pinned=False)
        return named, raw

    def _lists(self) -> dict[Key, list[bytes]]:
        """Version lists, the oldest first, whose entries name the parts where they lie."""
        lists: dict[Key, list[bytes]] = {}
        for _, entry in self._entries:
            moved = replace(entry, home=entry.home or self._home)
            key = keys.group_key(self._store, entry.version)
            lists.setdefault(key, []).append(encode_entry(self._store, moved))
        return dict(sorted(lists.items()))
