"""Copy-on-write copies of a query's state at one version, for test runs (docs/decisions/0010).

A fork has version lists, snapshots and directories of its own, which name the parts and buckets of the store it was
made of, its origin. So that clean-up of the origin leaves these, the names there that lead to them are **pinned**: each
has the fork in its set `forks`, and clean-up neither replaces nor deletes an item that has one. A fork says in its meta
item, before it pins anything, what it pins, so pins outlive no fork that was dropped; and it writes to its origin
nothing but pins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Final

import dynastate
from dynastate import directory, layout, snapshots
from dynastate.directory import Directory
from dynastate.errors import ConfigurationError, CorruptStateError, OtherWayError, VersionMissingError
from dynastate.layout import Attempt, History, Home, Item, Key, Snapshot
from dynastate.progress import Progress, unheard
from dynastate.store import by_any_way
from dynastate.stores import find_stores, of_namespace
from dynastate.tables import WRITES_MAX, Meter, Tables, get_apart

Node = tuple[int, Attempt]
#: The run that a fork's epoch is entered for: the first that writes to the fork has the next one.
RUN: Final = "fork"
_CHANGED: Final = "what the fork was begun with has changed"


@dataclass(frozen=True)
class Forked:
    """What was forked: `items` were written, and parts and buckets of `shared_bytes` are shared with the origin."""

    namespace: str
    fork: str
    version: int
    stores: int
    items: int
    shared_bytes: int
    write_units: int


def fork(
    tables: Tables,
    namespace: str,
    new: str,
    version: int | None,
    meter: Meter,
    progress: Progress = unheard,
) -> Forked:
    """Make all stores of a namespace anew in another one, at a version; by default the newest that all of them have.

    The query may go on meanwhile. A fork that was cut off is gone on with, at its version, when it is made again.

    Raises:
        ConfigurationError: the new namespace has stores, the other one has none, or is being dropped.
        VersionMissingError: a store has no such version, or clean-up takes it away.
        CorruptStateError: an item that names state is lost or broken.
    """
    if new == namespace:
        raise ConfigurationError("a fork needs a namespace of its own", namespace=namespace)
    origins = [store for _, store in of_namespace(tables, namespace, meter)]
    stores = {new + origin.removeprefix(namespace): origin for origin in origins}
    begun = _begun(tables, namespace, new, stores, meter)
    if begun is not None:
        if version not in (None, begun):
            raise ConfigurationError(
                f"a fork at another version has begun there and was cut off: dynastate drop {new}, and fork again",
                namespace=new,
                version=begun,
            )
        version = begun
    else:
        version = _common(tables, origins, version, meter)
    shared = 0
    before = meter.items_written, meter.write_units
    for done, (store, origin) in enumerate(stores.items()):
        progress(done, len(stores))
        shared += _StoreFork(tables, store, origin, version, meter).make()
        _must_stand(tables, list(dict.fromkeys((next(iter(stores)), store))), meter)
    written, units = meter.items_written - before[0], meter.write_units - before[1]
    return Forked(namespace, new, version, len(stores), written, shared, units)


def _begun(tables: Tables, namespace: str, new: str, stores: Collection[str], meter: Meter) -> int | None:
    """The version of a fork that was begun and not ended; None: there is none.

    Raises:
        ConfigurationError: what is there is something else.
    """
    found = [store for _, store in find_stores(tables, new, meter)]
    metas = [_meta(tables, store, meter) for store in found]
    if not found:
        return None
    origins = {str(meta.get(layout.ORIGIN, "")).split("/")[0] for meta in metas}
    versions = {meta.get(layout.ORIGIN_VERSION) for meta in metas}
    is_dropped = any(layout.DROPPED in each for each in metas)
    version = versions.pop()
    if (
        not isinstance(version, int)
        or versions
        or origins != {namespace}
        or is_dropped
        or all(_has_version(tables, store, version, meter) for store in stores)
    ):
        raise ConfigurationError(
            "this namespace has state already; give the fork another one, or drop this one first",
            namespace=new,
            stores=len(found),
        )
    return version


def _must_stand(tables: Tables, stores: Collection[str], meter: Meter) -> None:
    """Refuse to go on with a fork that is being dropped: that begins with the first store, and ends with it.

    Raises:
        ConfigurationError: a store is dropped, or gone.
    """
    found = tables.get([layout.meta_key(store) for store in stores], meter)
    if len(found) < len(stores) or any(layout.DROPPED in meta for meta in found.values()):
        raise ConfigurationError(
            "the fork was dropped while it was made; make it again, and then drop it if it is not wanted",
            store=min(stores),
        )


def _has_version(tables: Tables, store: str, version: int, meter: Meter) -> bool:
    """Whether a fork came as far as its version: there is the list of that, or what its own query made since."""
    low = layout.group_key(store, version).sort
    return bool(tables.list_keys("snapshot", layout.store_shard(store, 0), low, "group/~", meter))


def _common(tables: Tables, stores: Iterable[str], version: int | None, meter: Meter) -> int:
    """A version that all stores must have, by default the newest that they have."""
    newest = []
    for store in stores:
        history = _history(tables, store, meter)
        if not history.versions():
            raise VersionMissingError(
                "a store of this query has no version yet; try again when its first batch is committed", store=store
            )
        if version is not None:
            history.find(version, layout.NO_ATTEMPT)
        newest.append(history.newest().version)
    return min(newest) if version is None else version


class _StoreFork:
    """One store of a fork, from what its origin says at one moment."""

    def __init__(self, tables: Tables, store: str, origin: str, version: int, meter: Meter) -> None:
        self._tables = tables
        self._store = layout.check_store(store)
        self._origin = origin
        self._version = version
        self._meter = meter

    def make(self) -> int:
        """Make the store, and return the bytes that it shares.

        1. Read what the origin says of the version, and of what it stands on. 2. Make the meta item, which says what is
        pinned; if it is there already, only what it says is. 3. Pin the names in the origin, its meta item first, and
        see that they still name the same. 4. Write schemas and directories. 5. Make the snapshots. 6. Make the version
        lists, from the oldest: the version is there with the last of them.

        A crash after any step leaves a store without the version, and pins that its meta item tells of. The fork can
        be made again, which goes on, or dropped.
        """
        key = layout.meta_key(self._store)
        begun = self._tables.get([key], self._meter).get(key)
        by_any_way(lambda _: self._read(begun))  # 1
        meta = self._meta_item()
        if not self._tables.put_new(key, meta, self._meter):  # 2
            self._must_be_same(meta)
        self._pin()  # 3
        self._write_described()  # 4
        for snapshot, found in self._snapshots:
            item = layout.snapshot_item(self._store, self._copied(snapshot, found)[0])
            self._put(layout.snapshot_key(self._store, *_node(snapshot)), item)  # 5
        for group, listed in self._lists().items():
            self._put(group, layout.item_key(group) | {"format": layout.FORMAT, "versions": listed})  # 6
        parts = sum(entry.stored_bytes for _, entry in self._entries)
        return parts + sum(snapshot.stored_bytes for snapshot, _ in self._snapshots)

    def _read(self, begun: Item | None) -> None:
        """Find every attempt at the version that can be opened, with what it stands on: a driver may name any."""
        allowed = None if begun is None else pins_of(begun)
        history = _history(self._tables, self._origin, self._meter, allowed)
        if history.meta is None:
            raise CorruptStateError("the store's meta item is lost", **layout.where(layout.meta_key(self._origin)))
        self._origin_meta = history.meta
        _, shards = layout.parse_meta(self._origin, history.meta)
        self._home = Home(self._origin, shards)
        self._history = history
        #: That of the fork's first entry in its meta item: no attempt has a higher one, so its next run wins.
        self._epoch = 0 if begun is None else layout.parse_meta(self._store, begun)[0].get(RUN, 0)
        found: dict[Node, Directory] | None = None
        while found is None:
            ways, nodes = self._ways()
            bases = sorted(ways)
            found = self._directories(bases)
        self._snapshots = [
            (snapshot, found[node]) for node in bases if (snapshot := history.snapshot(*node)) is not None
        ]
        #: Entries as they are stored in the origin, in the order of its lists.
        self._entries = [
            (raw, entry)
            for _, group in sorted(history.groups.items())
            for raw, entry in group
            if (entry.version, entry.attempt) in nodes
        ]
        self._epoch = self._epoch or max(entry.epoch for _, entry in self._entries)

    def _ways(self) -> tuple[set[Node], set[Node]]:
        """The snapshots that attempts at the version stand on, and the entries from there to them."""
        bases: set[Node] = set()
        nodes: set[Node] = set()
        chosen = self._history.find(self._version, layout.NO_ATTEMPT)
        for entry in self._history.entries():
            if entry.version != self._version or (self._epoch and entry.epoch > self._epoch):
                continue
            try:
                base, path = self._history.chain(self._version, entry.attempt, ())
            except CorruptStateError:
                if entry == chosen:
                    raise
                continue  # a twin that stands on what clean-up took away
            nodes |= {(each.version, each.attempt) for each in (*path, entry)}
            if base != layout.EMPTY:
                bases.add(base)
        return bases, nodes

    def _directories(self, bases: Iterable[Node]) -> dict[Node, Directory] | None:
        """The directories of snapshots; None: one is broken, and passed by from now on."""
        found: dict[Node, Directory] = {}
        for node in bases:
            snapshot = self._history.snapshot(*node)
            if snapshot is None:
                raise CorruptStateError("a version stands on no snapshot", store=self._origin, version=node[0])
            try:
                found[node] = snapshots.read_directory(self._tables, self._origin, snapshot, self._meter)
            except OtherWayError:  # clean-up goes by: read all again
                raise
            except CorruptStateError as broken:
                self._history.pass_by(*node, broken)
                return None
        return found

    def _meta_item(self) -> Item:
        key = layout.meta_key(self._store)
        names = [layout.META, *(layout.snapshot_key(self._origin, *_node(each)).sort for each, _ in self._snapshots)]
        names += [layout.group_key(self._origin, entry.version).sort for _, entry in self._entries]
        return layout.item_key(key) | {
            "format": layout.FORMAT,
            "store": self._store,
            "checkpoint": str(self._origin_meta.get("checkpoint", "")),
            "shards": self._home.shards,
            "package": dynastate.__version__,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "epoch": self._epoch,
            "epochs": {RUN: self._epoch},
            layout.ORIGIN: self._origin,
            layout.ORIGIN_VERSION: self._version,
            layout.PINS: frozenset(names),
        }

    def _must_be_same(self, meta: Item) -> None:
        """Whoever began this store must have found the same."""
        told = (layout.ORIGIN, layout.ORIGIN_VERSION, layout.PINS)
        found = _meta(self._tables, self._store, self._meter)
        if any(found.get(name) != meta[name] for name in told):
            raise self._gone(_CHANGED)

    def _put(self, key: Key, item: Item) -> None:
        """Put a name; if it is there already, it must be the same, but for versions that a query has added."""
        if self._tables.put_new(key, item, self._meter):
            return
        found = self._tables.get([key], self._meter).get(key, {})
        now, wanted = found.pop("versions", []), item.pop("versions", [])
        is_listed = isinstance(now, list) and isinstance(wanted, list) and set(wanted) <= set(now)
        if not (is_listed and item.items() <= found.items()):
            raise self._gone(_CHANGED)

    def _pin(self) -> None:
        names = pins_of(self._meta_item())
        now = {sort: self._pinned(sort) for sort in sorted(names, key=lambda sort: (sort != layout.META, sort))}
        if layout.DROPPED in now[layout.META]:
            raise ConfigurationError("this store is being dropped, so nothing can stand on it", store=self._origin)
        for snapshot, _ in self._snapshots:
            item = now[layout.snapshot_key(self._origin, *_node(snapshot)).sort]
            if (item.get("id"), item.get("stage")) != (bytes(snapshot.id), layout.DONE):
                raise self._gone("clean-up takes away what it stands on")
        for raw, entry in self._entries:
            listed = now[layout.group_key(self._origin, entry.version).sort].get("versions")
            if not isinstance(listed, list) or raw not in listed:
                raise self._gone("clean-up takes it away")

    def _pinned(self, sort: str) -> Item:
        key = Key("snapshot", layout.store_shard(self._origin, 0), sort)
        item = self._tables.add_to_set(key, layout.FORKS, [self._store], self._meter)
        if item is None:
            raise self._gone("clean-up takes it away")
        return item

    def _gone(self, why: str) -> VersionMissingError:
        namespace = self._store.split("/")[0]
        return VersionMissingError(
            f"this version cannot be forked, {why}: dynastate drop {namespace}, and fork a newer one",
            store=self._origin,
            version=self._version,
        )

    def _write_described(self) -> None:
        """Schemas, and directories whose buckets lie where they did."""
        puts: dict[Key, Item] = {}
        for _, entry in self._entries:
            key = layout.schema_key(self._store, entry.schema)
            text = self._history.schema(entry)
            puts[key] = layout.item_key(key) | {"format": layout.FORMAT, "text": text}
        for snapshot, found in self._snapshots:
            copied, raw = self._copied(snapshot, found)
            key = layout.directory_key(self._store, copied.version, copied.id)
            puts[key] = directory.item(key, raw)
        listed = list(puts.items())
        for at in range(0, len(listed), WRITES_MAX):
            self._tables.write(listed[at : at + WRITES_MAX], self._meter)

    def _copied(self, snapshot: Snapshot, found: Directory) -> tuple[Snapshot, bytes]:
        """A snapshot whose buckets lie elsewhere, with the bytes of its directory.

        Its id follows from the other's, so that a fork which is made again makes the same.
        """
        own = hashlib.blake2b(f"{self._store}\n".encode() + snapshot.id, digest_size=16).digest()
        buckets = tuple(
            replace(bucket, home=bucket.home or self._home) if bucket.parts else bucket for bucket in found.buckets
        )
        made = replace(found, id=Attempt(own), base=found.version, buckets=buckets)
        raw = directory.encode(self._store, made)
        named = replace(snapshot, id=made.id, epoch=self._epoch, digest=layout.digest_of(raw), is_pinned=False)
        return named, raw

    def _lists(self) -> dict[Key, list[bytes]]:
        """Version lists, the oldest first, with entries whose parts lie where they did."""
        lists: dict[Key, list[bytes]] = {}
        for _, entry in self._entries:
            moved = replace(entry, home=entry.home or self._home)
            key = layout.group_key(self._store, entry.version)
            lists.setdefault(key, []).append(layout.encode_entry(self._store, moved))
        return dict(sorted(lists.items()))


def _node(snapshot: Snapshot) -> Node:
    return snapshot.version, snapshot.attempt


def _history(tables: Tables, store: str, meter: Meter, allowed: Collection[str] | None = None) -> History:
    """Everything that opening any version can need; with `allowed`, no other snapshots."""
    low, high = layout.history_range(0, layout.VERSION_MAX)
    found = tables.query("snapshot", layout.store_shard(store, 0), low, high, meter)
    return History(
        store,
        [
            (key, item)
            for key, item in found
            if allowed is None or not key.sort.startswith("snapshot/") or key.sort in allowed
        ],
    )


def _meta(tables: Tables, store: str, meter: Meter) -> Item:
    key = layout.meta_key(store)
    return tables.get([key], meter).get(key, {})


# ----------------------------------------------------------------------------------------------------- pins, taken back


def pins_of(meta: Item) -> frozenset[str]:
    """The names in its origin that a fork holds, by their sort keys; none: it is no fork, or stands on its own."""
    pins = meta.get(layout.PINS, frozenset())
    if not isinstance(pins, frozenset):
        raise CorruptStateError("the store's meta item is broken: it has no set of pins", store=meta.get("store"))
    return pins


def forks_of(item: Item) -> list[str]:
    """The stores of forks that stand on an item, in order."""
    forks = item.get(layout.FORKS, frozenset())
    return sorted(forks) if isinstance(forks, frozenset) else []


def must_have_none(tables: Tables, stores: Collection[str], meter: Meter) -> None:
    """Refuse what would take from forks what they stand on. What is held for forks that are gone is given free.

    Raises:
        ConfigurationError: there are forks; the message names them.
    """
    keys = [layout.meta_key(store) for store in stores]
    for key, item in get_apart(tables, keys, meter).items():
        if forks_of(item):
            store = key.store_shard.removesuffix("#0")
            release_gone(tables, store, meter)
            _refuse_forks(store, _meta(tables, store, meter))


def _refuse_forks(store: str, meta: Item) -> None:
    namespaces = sorted({fork.split("/")[0] for fork in forks_of(meta)})
    if namespaces:
        raise ConfigurationError(f"forks stand on this state: {', '.join(namespaces)}; drop them first", store=store)


def begin_drop(tables: Tables, store: str, meta: Item, meter: Meter) -> None:
    """Say in a store's meta item that it is dropped. From then on no fork is made of it, unless a run takes it back.

    Raises:
        ConfigurationError: forks stand on it, or a run of the query has begun meanwhile.
    """
    if layout.DROPPED in meta:
        return
    key = layout.meta_key(store)
    if tables.put_over(key, meta | {layout.DROPPED: 1}, {"epoch": meta["epoch"]}, meter):
        return
    now = _meta(tables, store, meter)
    _refuse_forks(store, now)
    must_be_dropped(store, now)  # the answer may have been lost


def must_be_dropped(store: str, meta: Item) -> None:
    """Refuse to drop a store that says no more that it is dropped.

    Raises:
        ConfigurationError: a run of the query has begun meanwhile.
    """
    if layout.DROPPED not in meta:
        raise ConfigurationError("a run of the query has begun meanwhile; stop the query first", store=store)


def release(tables: Tables, store: str, meta: Item, names: Collection[str], meter: Meter) -> None:
    """Give names free in the origin of a fork, its meta item last; then strike them off what the fork holds.

    A crash half-way leaves them among what the fork holds, so that they are given free again.
    """
    for sort in sorted(names, key=lambda sort: (sort == layout.META, sort)):
        key = Key("snapshot", layout.store_shard(str(meta[layout.ORIGIN]), 0), sort)
        tables.remove_from_set(key, layout.FORKS, [store], meter)
    if names:
        tables.remove_from_set(layout.meta_key(store), layout.PINS, names, meter)


def release_unneeded(tables: Tables, store: str, meter: Meter) -> None:
    """Give free what a fork holds in its origin and needs no more. One that is being made may need all of it."""
    meta = _meta(tables, store, meter)
    pins, version = pins_of(meta), meta.get(layout.ORIGIN_VERSION)
    if pins and isinstance(version, int) and _has_version(tables, store, version, meter):
        needed = by_any_way(lambda _: _needed(tables, store, pins, meter))  # clean-up may go by
        release(tables, store, meta, pins - needed, meter)


def release_gone(tables: Tables, store: str, meter: Meter) -> None:
    """Give free what is held here for forks that are gone: somebody deleted their meta items."""
    if not forks_of(_meta(tables, store, meter)):
        return
    low, high = layout.history_range(0, layout.VERSION_MAX)
    held = list(tables.query("snapshot", layout.store_shard(store, 0), low, high, meter))
    # A fork has a name in its meta item before it pins it, and until it has given it free. So the meta items are read
    # after what is held: of all forks that are found there, also of one that is being made now.
    keys = {layout.meta_key(fork): fork for _, item in held for fork in forks_of(item)}
    metas = {keys[key]: item for key, item in get_apart(tables, list(keys), meter).items()}
    pins_of_forks = {fork: pins_of(item) for fork, item in metas.items() if item.get(layout.ORIGIN) == store}
    for key, item in sorted(held, key=lambda each: each[0].sort == layout.META):
        gone = [fork for fork in forks_of(item) if key.sort not in pins_of_forks.get(fork, ())]
        if gone:
            tables.remove_from_set(key, layout.FORKS, gone, meter)


def _needed(tables: Tables, store: str, pins: frozenset[str], meter: Meter) -> set[str]:
    history = _history(tables, store, meter)
    done = [snapshot for snapshot in history.snapshots() if snapshot.stage == layout.DONE]
    return needed(history, [snapshots.read_directory(tables, store, each, meter) for each in done], pins)


def needed(history: History, directories: Iterable[Directory], pins: frozenset[str]) -> set[str]:
    """The names in its origin that the version lists and snapshots of a fork still stand on; of these, it has `pins`.

    A snapshot under way may carry buckets on from one that goes meanwhile.
    """
    names = {layout.group_key(history.store, entry.version).sort for entry in history.entries() if entry.home}
    is_shared = any(bucket.home for found in directories for bucket in found.buckets)
    if is_shared or any(snapshot.stage == layout.WRITING for snapshot in history.snapshots()):
        names |= {sort for sort in pins if sort.startswith("snapshot/")}
    return names | {layout.META} if names & pins else names
