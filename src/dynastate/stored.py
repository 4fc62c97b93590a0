"""How much a store has in the two tables: counted from what names it, without reading it. No I/O.

Counted are: the parts that version lists name; the buckets that directories of snapshots name, each once, whoever
carries it; the lists, directories, snapshot, schema and meta items themselves. Not counted is what nothing names yet,
or any more: of attempts and snapshots under way, of crashes until clean-up. What a fork shares counts for the store in
which it lies, not for the fork.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from dynastate import directory, layout
from dynastate.directory import Directory
from dynastate.errors import CorruptStateError
from dynastate.layout import Attempt, History, Item, Key, Snapshot, VersionEntry

Node = tuple[int, Attempt]

#: Stores of which one executor remembers how much they have; a forgotten one counts from its next clean-up on.
STORES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Stored:
    """Items, and their sizes in bytes by DynamoDB's rule."""

    items: int = 0
    bytes: int = 0

    def __add__(self, other: Stored) -> Stored:
        return Stored(self.items + other.items, self.bytes + other.bytes)


NOTHING: Final = Stored()


def total(each: Iterable[Stored]) -> Stored:
    return sum(each, NOTHING)


def of_parts(store: str, entries: Iterable[VersionEntry]) -> Stored:
    """The parts of versions."""
    overhead = layout.overhead_bytes(layout.part_key(store, *layout.EMPTY, 0, 1))
    own = (entry for entry in entries if entry.home is None)
    return total(Stored(entry.parts, entry.stored_bytes + entry.parts * overhead) for entry in own)


def of_lists(history: History, struck: Collection[Node] = ()) -> Stored:
    """Everything but snapshots: version lists with what they name, schemas, meta; without the versions `struck` off."""
    found = [Stored(1, layout.item_bytes(item)) for item in history.descriptions().values()]
    for key, group in history.groups.items():
        stay = [raw for raw, entry in group if (entry.version, entry.attempt) not in struck]
        if stay:
            item = layout.item_key(key) | {"format": layout.FORMAT, "versions": stay}
            found.append(Stored(1, layout.item_bytes(item)))
    stay_listed = (entry for entry in history.entries() if (entry.version, entry.attempt) not in struck)
    return total(found) + of_parts(history.store, stay_listed)


@dataclass(frozen=True)
class Contents:
    """What a directory says: its own size, and the size of each bucket by holder and number."""

    own: Stored
    buckets: dict[tuple[Node, int], Stored]

    @classmethod
    def of(cls, store: str, found: Directory) -> Contents:
        key = layout.directory_key(store, found.version, found.id)
        overhead = layout.overhead_bytes(layout.bucket_key(store, found.version, found.id, 0, 0, 1))
        buckets = {
            (bucket.holder, number): Stored(bucket.parts, bucket.stored_bytes + bucket.parts * overhead)
            for number, bucket in enumerate(found.buckets)
            if bucket.parts and bucket.home is None
        }
        return cls(Stored(1, layout.item_bytes(directory.item(key, directory.encode(store, found)))), buckets)


def of_snapshots(store: str, snapshots: Iterable[Snapshot], contents: dict[Attempt, Contents]) -> Stored:
    """Snapshots that are done, with what their directories name.

    Where a directory is not known, all its buckets count as its own, and as few items as they can be.
    """
    found: list[Stored] = []
    buckets: dict[tuple[Node, int], Stored] = {}
    for snapshot in snapshots:
        found.append(Stored(1, layout.item_bytes(layout.snapshot_item(store, snapshot))))
        known = contents.get(snapshot.id)
        if known is None:
            parts = -(-snapshot.raw_bytes // layout.CHUNK_BYTES_MAX)
            found.append(Stored(1 + parts, snapshot.stored_bytes))
        else:
            found.append(known.own)
            buckets |= known.buckets
    return total(found) + total(buckets.values())


def of_store(history: History, items: Mapping[Key, Item]) -> Stored:
    """All of a store, by its lists and directories as one Query brought them.

    A directory that clean-up took meanwhile, or that is broken, is not known: `verify` says what is wrong.
    """
    snapshots = [each for each in history.snapshots() if each.stage == layout.DONE]
    contents: dict[Attempt, Contents] = {}
    for each in snapshots:
        key = layout.directory_key(history.store, each.version, each.id)
        if key in items:
            with suppress(CorruptStateError):
                contents[each.id] = Contents.of(history.store, directory.parse(history.store, each, key, items[key]))
    return of_lists(history) + of_snapshots(history.store, snapshots, contents)


class _Account:
    """What is known of one store: as it was when its lists were last read whole, and what was written since."""

    def __init__(self, store: str) -> None:
        self.store = store
        #: None until the lists were read whole.
        self.lists: Stored | None = None
        self.newest = 0
        self.snapshots: list[Snapshot] = []
        self.contents: dict[Attempt, Contents] = {}
        #: Names of what was counted and may be told of again: version lists, and schema items, by every run.
        self.named: set[Hashable] = set()
        self.since: dict[Hashable, Stored] = {}
        self._in_snapshots: Stored | None = None

    def read(self, history: History) -> None:
        self._count(history, ())
        self._keep([each for each in history.snapshots() if each.stage == layout.DONE])

    def cleaned(self, history: History, struck: Collection[Node], gone: Collection[Attempt]) -> None:
        # Who read the lists later than the clean-up did knows more, and nothing of what was struck off since.
        if _newest(history) >= self.newest:
            self._count(history, struck)
        self._keep([each for each in self.snapshots if each.id not in gone])

    def _count(self, history: History, struck: Collection[Node]) -> None:
        self.newest = _newest(history)
        self.lists = of_lists(history, struck)
        nodes = {(entry.version, entry.attempt) for entry in history.entries()}
        lists = {layout.group_key(self.store, version).sort for version, _ in nodes.difference(struck)}
        # A commit that is listed already may not have been told of yet.
        self.named = lists | {node for node in nodes if node[0] == self.newest} | set(history.descriptions())
        seen = self.named | nodes | {each.id for each in history.snapshots() if each.stage != layout.WRITING}
        self.since = {name: size for name, size in self.since.items() if name not in seen}

    def _keep(self, snapshots: list[Snapshot]) -> None:
        self.snapshots = snapshots
        self.contents = {each.id: self.contents[each.id] for each in snapshots if each.id in self.contents}
        self._in_snapshots = None

    def learn(self, found: Directory) -> None:
        if found.id not in self.contents:
            self.contents[found.id] = Contents.of(self.store, found)
            self._in_snapshots = None

    def stored(self) -> Stored:
        if self.lists is None:
            return NOTHING
        if self._in_snapshots is None:
            self._in_snapshots = of_snapshots(self.store, self.snapshots, self.contents)
        return self.lists + self._in_snapshots + total(self.since.values())


def _newest(history: History) -> int:
    return max(history.versions(), default=0)


class Accounts:
    """How much each store has, as far as one executor has read and written it. Safe for threads."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        self._lock = threading.Lock()

    def stored(self, store: str) -> Stored:
        """How much a store has; nothing until its version lists were read whole."""
        with self._lock:
            return self._of(store).stored()

    def read(self, history: History, highest: int | None = None) -> None:
        """Lists were read from the first on, and snapshots up to version `highest`: all, where no version is above."""
        if highest is None or _newest(history) <= highest:
            with self._lock:
                self._of(history.store).read(history)

    def cleaned(self, history: History, struck: Iterable[VersionEntry], gone: Collection[Attempt]) -> None:
        """After everything was read, versions were struck off the lists, and snapshots removed."""
        nodes = {(entry.version, entry.attempt) for entry in struck}
        with self._lock:
            self._of(history.store).cleaned(history, nodes, gone)

    def learn(self, store: str, found: Directory) -> None:
        """A directory was read."""
        with self._lock:
            self._of(store).learn(found)

    def wrote(self, store: str, name: Hashable, size: Stored) -> None:
        """Something was written under a name of its own; if it was there already it counts once."""
        with self._lock:
            account = self._of(store)
            if name not in account.named:
                account.since[name] = size

    def committed(self, store: str, entry: VersionEntry) -> None:
        """A version was committed: its parts, and its entry in a list."""
        key = layout.group_key(store, entry.version)
        empty = layout.item_key(key) | {"format": layout.FORMAT, "versions": []}
        self.wrote(store, key.sort, Stored(1, layout.item_bytes(empty)))
        listed = Stored(0, 1 + len(layout.encode_entry(store, entry)))
        self.wrote(store, (entry.version, entry.attempt), of_parts(store, [entry]) + listed)

    def made(self, store: str, snapshot: Snapshot, found: Directory) -> None:
        """A snapshot was made: its item, its directory, and the buckets that it did not carry on."""
        with self._lock:
            account = self._of(store)
            account.learn(found)
            contents = account.contents[found.id]
        own = (size for (holder, _), size in contents.buckets.items() if holder == (found.version, found.id))
        item = Stored(1, layout.item_bytes(layout.snapshot_item(store, snapshot)))
        self.wrote(store, found.id, item + contents.own + total(own))

    def _of(self, store: str) -> _Account:
        account = self._accounts.setdefault(store, _Account(store))
        self._accounts.move_to_end(store)
        while len(self._accounts) > STORES_MAX:
            self._accounts.popitem(last=False)
        return account
