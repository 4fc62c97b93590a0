"""Copy-on-write copies of a query's state at one version, for test runs (docs/decisions/0010).

A fork has its own version lists, snapshots and manifests, which name parts and buckets of another store, its origin.
The origin's items that name the same parts and buckets are **pinned**: each has the fork in its set `forks`. Clean-up
of the origin neither replaces nor deletes an item with such a set. A fork lists its pins in its meta item before it
makes them, so that a drop of the fork removes all pins. It writes nothing else to its origin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from dynastate import runtime
from dynastate.engine.catalog import read_version_lists, whole_namespace
from dynastate.engine.graphs import find_meta, meta_items, read_manifest, read_metas
from dynastate.engine.namespaces import (
    NamespaceItems,
    delete_fork,
    delete_record,
    list_store,
    not_complete,
    read_fork,
    read_namespace,
    refuse_erasing,
)
from dynastate.engine.opening import retry_routes
from dynastate.engine.updates import add_to_set, unchanged
from dynastate.errors import (
    ConfigurationError,
    CorruptStateError,
    DynastateError,
    RouteInvalidError,
    UnavailableError,
    VersionMissingError,
)
from dynastate.format import keys
from dynastate.format.checkpoint import Checkpoint, checkpoint_of_location
from dynastate.format.graph import VersionGraph, is_of_one_run, last_of_one_run, ranges
from dynastate.format.items import Item, item_bytes
from dynastate.format.keys import EMPTY, META, NO_ATTEMPT, Attempt, Home, Key, VersionId
from dynastate.format.manifest import SnapshotManifest, encode_manifest, manifest_item
from dynastate.format.meta import (
    DELETING,
    DROPPED,
    FORK,
    FORKED,
    FORKS,
    PIN,
    WRITER,
    QueryRun,
    StoreMeta,
    meta_item,
    parse_meta,
    parse_metas,
    schema_item,
)
from dynastate.format.namespace import ForkPlan, fork_item, fork_key
from dynastate.format.snapshot import DONE, Snapshot, snapshot_item
from dynastate.format.version_list import REFUSED, VERSIONS, encode_entry, list_item
from dynastate.operations.checkpoints import StoredCheckpoint
from dynastate.operations.lifecycle.fork_checkpoint import (
    batch_to_fork,
    copy_checkpoint,
    load_checkpoint,
    location_in_tables,
    refuse_taken_back,
)
from dynastate.operations.lifecycle.rollback import CommittedIds, committed_ids, readable_versions
from dynastate.operations.pins import is_complete, read_graph, unpin
from dynastate.operations.scope import each_store
from dynastate.progress import ProgressCallback, no_progress
from dynastate.storage.limits import ITEM_BYTES_MAX
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables
from dynastate.version import __version__

_CHANGED: Final = "what the fork was begun with has changed"


@dataclass(frozen=True)
class Forked:
    """A fork: `items` were written, and parts and buckets of `shared_bytes` are shared with the origin.

    `checkpoint` is the location of the fork's checkpoint in DynamoDB, with which its query resumes. It is empty if the
    origin's checkpoint is elsewhere.
    """

    namespace: str
    fork: str
    version: int
    stores: int
    items: int
    shared_bytes: int
    write_units: int
    checkpoint: str = ""


def fork_namespace(
    tables: Tables,
    namespace: str,
    new: str,
    version: int | None,
    progress: ProgressCallback = no_progress,
    *,
    objects: str = "",
) -> Forked:
    """Fork the stores of a namespace's current query into a new namespace, at a version, with its checkpoint.

    `objects` is the setting for files of the copied checkpoint that are too large for an item.

    By default this is the newest version that all stores have, and of a query whose checkpoint is in DynamoDB the
    version of its last committed batch. The query may run meanwhile: attempts of later runs at the version are not
    forked. The same call resumes an interrupted fork, at its version.
    Stores are made several at once. The stores of partition 0 are begun before the others, so that a drop finds the
    fork. They get their version after the others, so that no reader takes a part of the fork for all of it.
    """
    if new == namespace:
        raise ConfigurationError("a fork needs a namespace of its own", namespace=namespace)
    outer_meter, tables = tables.meter, tables.metered(Meter())
    origins = whole_namespace(tables, namespace)
    stores = {new + origin.removeprefix(namespace): origin for origin in origins}
    namespace_items = read_namespace(tables, new)
    plan = _begun(tables, namespace, namespace_items, stores)
    location = location_in_tables(tables, origins)
    if plan is None:
        if location:
            copied = StoredCheckpoint(tables, Checkpoint(new, checkpoint_of_location(location).name).location, objects)
            plan = _plan_with_checkpoint(tables, location, copied, stores=origins, version=version)
        else:
            plan = _plan(tables, namespace, origins, version)
        _begin(tables, namespace_items, plan)
    elif version not in (None, plan.version):
        raise ConfigurationError(
            f"a fork at another version has begun there and was cut off: dynastate drop {new}, and fork again",
            namespace=new,
            version=plan.version,
        )
    elif location and not plan.checkpoint:
        raise ConfigurationError(
            "a fork has begun there without the checkpoint in DynamoDB: before it was moved there, or by a development "
            f"version of dynastate; dynastate drop {new}, and fork again",
            namespace=new,
            checkpoint=location,
        )
    make_store = partial(_StoreFork, plan=plan, origins=stores)
    first_store = next(iter(stores))

    # A drop looks for partition 0 of each operator, and begins with the first store.
    first_partitions = [store for store in stores if store.split("/")[2] == "0"]
    others = [store for store in stores if store not in set(first_partitions)]

    def make(view: Tables, store: str) -> int:
        with make_store(view, store).begun() as fork:
            shared = fork.finish()
            _require_not_dropped(view, [first_store, store])
        return shared

    def report(count: int, _: int) -> None:
        progress(len(first_partitions) + count, len(stores))

    with ExitStack() as stack:
        forks = []
        for count, store in enumerate(first_partitions):
            progress(count, len(stores))
            forks.append(stack.enter_context(make_store(tables, store).begun()))
        shared = sum(each_store(tables, others, make, report, until_failure=True).all())
        shared += sum(fork.finish() for fork in forks)
        delete_fork(tables, new, plan)
        _require_not_dropped(tables, first_partitions)
    meter = tables.meter
    outer_meter.add(meter)
    return Forked(
        namespace,
        fork=new,
        version=plan.version,
        stores=len(stores),
        items=meter.items_written,
        shared_bytes=shared,
        write_units=meter.write_units,
        checkpoint=plan.checkpoint and Checkpoint(new, plan.checkpoint).location,
    )


def _plan_with_checkpoint(
    tables: Tables, location: str, new: StoredCheckpoint, stores: Sequence[str], version: int | None
) -> ForkPlan:
    """Plan a fork, and copy the checkpoint for it before its stores: their version fits its last batch.

    1. Read the checkpoint, and choose the batch. 2. Plan the fork at the version of this batch, of runs until now.
    3. Copy the files. 4. Refuse if the batch was undone since step 1: a run until step 2 may have made it again.
    The plan is stored after that, so a fork that is resumed has a checkpoint that fits.
    """
    checkpoint = load_checkpoint(tables, location)  # 1
    batch = batch_to_fork(checkpoint, version)
    ids = committed_ids(checkpoint, batch)
    plan = _plan(tables, checkpoint.namespace(), stores, version=batch + 1, ids=ids)  # 2
    copy_checkpoint(checkpoint, new, batch)  # 3
    refuse_taken_back(checkpoint, batch)  # 4
    return replace(plan, checkpoint=checkpoint_of_location(new.location).name)


def _begun(tables: Tables, namespace: str, namespace_items: NamespaceItems, stores: Collection[str]) -> ForkPlan | None:
    """The plan of the unfinished fork in the new namespace. Returns None if the namespace is empty."""
    if namespace_items.is_copied:
        raise not_complete(namespace_items.namespace)
    metas = meta_items(tables, namespace_items.listed)
    if not metas:
        return None
    plan = read_fork(tables, namespace_items.namespace)
    if (
        plan is None
        or plan.origin != namespace
        or any(meta.dropped or meta.pin != _pin(store, plan) for store, meta in parse_metas(metas).items())
        or all(is_complete(tables, store, plan.version) for store in stores)
    ):
        raise ConfigurationError(
            "this namespace has state already; give the fork another one, or drop this one first",
            namespace=namespace_items.namespace,
            stores=len(metas),
        )
    if {store.split("/", 1)[1] for store in stores} != set(plan.epochs):
        raise ConfigurationError(
            "the query has other stores than when this fork was begun: dynastate drop "
            f"{namespace_items.namespace}, and fork again",
            namespace=namespace,
            stores=len(stores),
            begun=len(plan.epochs),
        )
    return plan


def _pin(store: str, plan: ForkPlan) -> str:
    return f"{store}#{plan.id}"


def _require_not_dropped(tables: Tables, stores: Collection[str]) -> None:
    """Refuse to resume a fork that is being dropped. A drop begins and ends with the first store."""
    metas = read_metas(tables, stores)
    if len(metas) < len(stores) or any(meta.dropped for meta in metas.values()):
        raise _was_dropped(min(stores))


def _was_dropped(store: str) -> ConfigurationError:
    return ConfigurationError(
        "the fork was dropped while it was made; make it again, and then drop it if it is not wanted", store=store
    )


def _plan(
    tables: Tables, namespace: str, stores: Sequence[str], version: int | None, ids: CommittedIds | None = None
) -> ForkPlan:
    """Plan a fork of stores as they are now, at a version of one run, by default the newest that all have.

    Refuse stores without the attempts of `ids`, which the checkpoint names.
    """
    graphs: dict[str, VersionGraph] = {}

    def look(view: Tables, store: str) -> None:
        graphs[store] = read_graph(view, store)

    each_store(tables, stores, look, until_failure=True).all()
    for store, graph in graphs.items():
        if not graph.versions():
            raise VersionMissingError(
                "a store of this query has no version yet; try again when its first batch is committed", store=store
            )
    lineages = [(graph.lineage(graph.newest()), graph.runs) for graph in graphs.values()]
    newest_version = last_of_one_run(lineages)
    chosen_version = newest_version if version is None else version
    if not chosen_version:
        raise VersionMissingError(
            "no version is in all stores by one run: a new run has not committed its first batch in all of them yet; "
            "try again when it has",
            namespace=namespace,
        )
    for graph in graphs.values():
        # Each attempt at the version is forked, so its query does not matter here.
        entry = graph.find(chosen_version, NO_ATTEMPT, QueryRun("", "", ""))
        _refuse_unlisted(graph, chosen_version)
        graph.route(entry.version, entry.attempt)
    if not is_of_one_run(lineages, chosen_version):
        raise VersionMissingError(
            "a new run of the query makes this version again, and has not committed it in all stores yet: fork another "
            "one, or try again when it has",
            namespace=namespace,
            version=chosen_version,
            newest=newest_version,
        )
    if ids is not None:
        _refuse_other_attempts(graphs, ids)
    epochs = {store.split("/", 1)[1]: graph.required_meta.epoch for store, graph in graphs.items()}
    return ForkPlan(namespace, chosen_version, epochs, str(runtime.new_id()))


def _refuse_other_attempts(graphs: Mapping[str, VersionGraph], ids: CommittedIds) -> None:
    """Refuse stores of which a query with these committed ids cannot open the version."""
    ids.refuse_lost(graphs)
    for store in ids.listed(graphs):
        if not ids.are_in(store, readable_versions(graphs[store])):
            raise VersionMissingError(
                "the checkpoint names an attempt at this version that the store does not have; dynastate verify names "
                "what is lost",
                store=store,
                version=ids.version,
            )


def _begin(tables: Tables, namespace_items: NamespaceItems, plan: ForkPlan) -> None:
    """Write the plan before any store is made, and delete the record of a query that was dropped there."""
    new = namespace_items.namespace
    previous, item = read_fork(tables, new), fork_item(new, plan)
    if previous is None:
        is_begun = tables.put_new(fork_key(new), item)
    else:
        is_begun = tables.put_over(fork_key(new), item, unchanged({"id": previous.id}))
    if not is_begun and read_fork(tables, new) != plan:  # else only the answer was lost
        raise ConfigurationError("another fork begins in this namespace; try again when it has", namespace=new)
    if namespace_items.record is not None:
        delete_record(tables, namespace_items.record)


def _refuse_unlisted(graph: VersionGraph, version: int) -> None:
    """Refuse a version that the query no longer has, although some of its items may still exist."""
    lineage = graph.lineage(graph.newest()) if graph.versions() else []
    versions = [entry.version for entry in graph.openable(lineage)]
    if version not in versions:
        raise VersionMissingError(
            "clean-up has deleted this version, or the query was taken back to one before it; fork one of versions",
            store=graph.store,
            version=version,
            versions=ranges(versions),
        )


class _StoreFork:
    """One store of a fork, made by one read of its origin's version lists and snapshots."""

    def __init__(self, tables: Tables, store: str, plan: ForkPlan, origins: Mapping[str, str]) -> None:
        self._tables = tables
        self._store = keys.check_store(store)
        self._origin = origins[store]
        self._version = plan.version
        self._last_epoch = plan.epochs[store.split("/", 1)[1]]
        self._pin_name = _pin(store, plan)
        #: The content of the fork's meta item, once it is written.
        self._meta: StoreMeta | None = None

    def _begin(self) -> None:
        """Make the store except its version lists.

        1. Read from the origin the version and the items that it depends on.
        2. List the store, then write the meta item, which lists the pins. If the meta item exists, its pins are used.
        3. Pin the items of the origin, the meta item first, and check that they still name the same.
        4. Write schemas and manifests. 5. Write the snapshots.
        After a crash at any step the version is missing, the meta item lists all pins, and the fork can be resumed or
        dropped.
        """
        begun_meta = find_meta(self._tables, self._store)
        retry_routes(lambda _: self._read(begun_meta))  # 1
        meta = self._new_meta()
        list_store(self._tables, self._store)  # 2
        if not self._tables.put_new(keys.meta_key(self._store), meta_item(self._store, meta)):
            stored_meta = find_meta(self._tables, self._store)
            if stored_meta is None or (stored_meta.pin, stored_meta.pins) != (meta.pin, meta.pins):
                raise self._refusal(_CHANGED)  # since the call that began this store
            meta = stored_meta
        self._meta = meta
        self._pin(meta.pins)  # 3
        self._write_described()  # 4
        for snapshot, manifest in self._snapshots:
            item = snapshot_item(self._store, self._copy_of(snapshot, manifest)[0])
            self._put(keys.snapshot_key(self._store, snapshot.version, snapshot.attempt), item)  # 5

    def finish(self) -> int:
        """Write the version lists, the oldest first; return the bytes that the store shares with its origin.

        The version can be opened once the last list is written. After a crash the fork can be resumed or dropped.
        """
        for key, entries in self._lists().items():
            self._put(key, list_item(key, entries) | {WRITER: self._pin_name})
        parts = sum(entry.stored_bytes for _, entry in self._entries if not entry.inline)
        return parts + sum(snapshot.stored_bytes for snapshot, _ in self._snapshots)

    @contextmanager
    def begun(self) -> Iterator[_StoreFork]:
        """The store, begun. If this fails because of a drop, unpin its items: the drop may have unpinned too early."""
        try:
            self._begin()
            yield self
        except UnavailableError:
            raise
        except DynastateError:
            item = meta_items(self._tables, [self._store]).get(self._store, {})  # it may be corrupt, and the cause
            if self._meta and (item.get(PIN) != self._pin_name or item.get(DROPPED) == DELETING):
                unpin(self._tables, self._store, self._meta, self._meta.pins)
            raise

    def _read(self, begun_meta: StoreMeta | None) -> None:
        """Find every attempt at the version that can be opened, with its dependencies: a driver may ask for any."""
        graph = read_graph(self._tables, self._origin, None if begun_meta is None else begun_meta.pins)
        graph.leave_out_after(self._last_epoch)
        self._origin_meta = graph.required_meta
        self._home = Home(self._origin, self._origin_meta.shards)
        self._graph = graph
        #: The epoch in the fork's meta item: the fork's next run gets a higher epoch than every attempt, and than every
        #: run of a query that was dropped there.
        self._epoch = 0 if begun_meta is None else begun_meta.fork_epoch
        manifests: dict[VersionId, SnapshotManifest] | None = None
        if begun_meta is None:
            _refuse_unlisted(graph, self._version)
        while manifests is None:
            try:
                bases, ids = self._dependencies()
            except CorruptStateError as error:
                # It existed when the fork was planned. Later snapshots do not count: the fork's meta item has none.
                raise self._refusal("clean-up has deleted what the fork was begun with") from error
            manifests = self._manifests(sorted(bases))
        snapshots = {base: graph.snapshot(base.version, base.attempt) for base in sorted(bases)}
        self._snapshots = [(each, manifests[base]) for base, each in snapshots.items() if each is not None]
        #: Entries as they are stored in the origin, in the order of its lists.
        self._entries = [
            (raw, entry) for _, listed in sorted(graph.lists.items()) for raw, entry in listed if entry.id in ids
        ]
        if not self._epoch:
            earlier_graph = VersionGraph(self._store, read_version_lists(self._tables, self._store).items())
            self._epoch = max(self._origin_meta.epoch, earlier_graph.dropped_epoch)

    def _dependencies(self) -> tuple[set[VersionId], set[VersionId]]:
        """The snapshots that attempts at the version depend on, and the versions from there to the attempts."""
        bases: set[VersionId] = set()
        ids: set[VersionId] = set()
        chosen_entry = self._graph.find(self._version, NO_ATTEMPT)
        for entry in self._graph.entries():
            if entry.version != self._version:
                continue
            try:
                base, path = self._graph.route(entry.version, entry.attempt)
            except CorruptStateError:
                if entry == chosen_entry:
                    raise
                continue  # another attempt, whose base clean-up has deleted
            ids |= {each.id for each in (*path, entry)}
            if base != EMPTY:
                bases.add(base)
        return bases, ids

    def _manifests(self, bases: Iterable[VersionId]) -> dict[VersionId, SnapshotManifest] | None:
        """The manifests of snapshots. Returns None if one is corrupt, and skips its snapshot from then on."""
        manifests: dict[VersionId, SnapshotManifest] = {}
        for base in bases:
            snapshot = self._graph.snapshot(base.version, base.attempt)
            if snapshot is None:
                raise CorruptStateError(
                    "a version depends on a missing snapshot", store=self._origin, version=base.version
                )
            try:
                manifests[base] = read_manifest(self._tables, self._origin, snapshot)
            except RouteInvalidError:  # a clean-up runs meanwhile: read everything again
                raise
            except CorruptStateError as error:
                self._graph.skip_snapshot(base, error)
                return None
        return manifests

    def _new_meta(self) -> StoreMeta:
        names = [META]
        names += [keys.snapshot_key(self._origin, each.version, each.attempt).sort for each, _ in self._snapshots]
        names += [keys.version_list_key(self._origin, entry.version).sort for _, entry in self._entries]
        origin, last_epoch = self._origin_meta, self._last_epoch
        # Another query may have entered since the fork was planned. The first run that writes gets the next epoch.
        queries = {epoch: query for epoch, query in origin.queries.items() if epoch <= last_epoch}
        meta = StoreMeta(
            origin.shards,
            epochs={f"{FORK}{runtime.new_id()}": self._epoch},
            queries=queries or {self._epoch: ""},
            began=origin.began,
            locations={},
            bases={epoch: base for epoch, base in origin.bases.items() if epoch <= last_epoch},
            objects=origin.objects,
            origin=self._origin,
            origin_version=self._version,
            pin=self._pin_name,
            pins=frozenset(names),
            package=__version__,
            created=runtime.now().isoformat(timespec="seconds"),
        )
        if item_bytes(meta_item(self._store, meta)) > ITEM_BYTES_MAX:
            raise ConfigurationError(
                "a fork of this version would depend on more items than its own item can name: let clean-up delete "
                "old versions, dynastate clean, and fork again",
                store=self._origin,
                version=self._version,
                items=len(names),
            )
        return meta

    def _put(self, key: Key, item: Item) -> None:
        """Write an item. If it exists already, it must be the same, except versions that a query has added.

        Items of a dropped store are replaced: fences, whose refused runs stay, and a late snapshot of a fork. Items of
        the fork that was made after a drop of this one stay: they come after its meta item.
        """
        if self._tables.put_new(key, item):
            return
        stored = self._tables.get([key]).get(key, {})
        remains: Item = {name: stored[name] for name in (REFUSED, "id") if name in stored and VERSIONS not in stored}
        if any(item.get(name) != value for name, value in remains.items()):
            self._require_own_meta()
            if self._tables.put_over(key, {**remains, **item}, unchanged(remains)):
                return
            stored = self._tables.get([key]).get(key, {})
        old, new = stored.pop(VERSIONS, []), item.pop(VERSIONS, [])
        is_listed = isinstance(old, list) and isinstance(new, list) and set(new) <= set(old)
        if not (is_listed and item.items() <= stored.items()):
            raise self._refusal(_CHANGED)

    def _require_own_meta(self) -> None:
        meta = find_meta(self._tables, self._store)
        if meta is None or meta.pin != self._pin_name:
            raise _was_dropped(self._store)

    def _pin(self, names: Collection[str]) -> None:
        add_to_set(self._tables, keys.meta_key(self._origin), FORKED, ["yes"])
        items = {sort: self._pinned(sort) for sort in sorted(names, key=lambda sort: (sort != META, sort))}
        meta = parse_meta(self._origin, items[META])
        refuse_erasing(self._origin, meta)
        if meta.dropped:
            raise ConfigurationError("this store is being dropped, so it cannot be forked", store=self._origin)
        for snapshot, _ in self._snapshots:
            item = items[keys.snapshot_key(self._origin, snapshot.version, snapshot.attempt).sort]
            if (item.get("id"), item.get("stage")) != (bytes(snapshot.id), DONE):
                raise self._refusal("clean-up deletes a snapshot that it needs")
        for raw, entry in self._entries:
            entries = items[keys.version_list_key(self._origin, entry.version).sort].get("versions")
            if not isinstance(entries, list) or raw not in entries:
                raise self._refusal("clean-up deletes it")

    def _pinned(self, sort: str) -> Item:
        key = Key("snapshot", keys.store_shard(self._origin, 0), sort)
        item = add_to_set(self._tables, key, FORKS, [self._pin_name])
        if item is None:
            raise self._refusal("clean-up deletes it")
        return item

    def _refusal(self, reason: str) -> VersionMissingError:
        namespace = self._store.split("/")[0]
        return VersionMissingError(
            f"this version cannot be forked, {reason}: dynastate drop {namespace}, and fork a newer one",
            store=self._origin,
            version=self._version,
        )

    def _write_described(self) -> None:
        """Write schemas, and manifests that name the buckets in their home store."""
        puts: dict[Key, Item] = {}
        for _, entry in self._entries:
            key = keys.schema_key(self._store, entry.schema)
            puts[key] = schema_item(key, self._graph.schema(entry), self._pin_name)
        for snapshot, manifest in self._snapshots:
            snapshot_copy, raw = self._copy_of(snapshot, manifest)
            key = keys.manifest_key(self._store, snapshot_copy.version, snapshot_copy.id)
            puts[key] = manifest_item(key, raw)
        pairs = list(puts.items())
        most = runtime.limits().writes_max
        for start in range(0, len(pairs), most):
            self._tables.write(pairs[start : start + most])

    def _copy_of(self, snapshot: Snapshot, manifest: SnapshotManifest) -> tuple[Snapshot, bytes]:
        """The fork's copy of a snapshot, whose buckets are the origin's, with the bytes of its manifest.

        Its id is made of the snapshot's id and the pin: a resumed fork writes the same id, and another fork does not.
        """
        copy_id = hashlib.blake2b(f"{self._pin_name}\n".encode() + snapshot.id, digest_size=16).digest()
        buckets = tuple(
            replace(bucket, home=bucket.home or self._home) if bucket.parts else bucket for bucket in manifest.buckets
        )
        manifest_copy = replace(manifest, id=Attempt(copy_id), base=manifest.version, buckets=buckets)
        raw = encode_manifest(self._store, manifest_copy)
        digest = keys.digest_of(raw)
        return replace(snapshot, id=manifest_copy.id, epoch=self._epoch, digest=digest, is_pinned=False), raw

    def _lists(self) -> dict[Key, list[bytes]]:
        """Version lists, the oldest first, whose entries name the parts in their home store."""
        lists: dict[Key, list[bytes]] = {}
        for _, entry in self._entries:
            entry_copy = replace(entry, home=entry.home or self._home)
            key = keys.version_list_key(self._store, entry.version)
            lists.setdefault(key, []).append(encode_entry(self._store, entry_copy))
        return dict(sorted(lists.items()))
