"""Items that name others, read one by one so that corrupt ones do not hide the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from dynastate.errors import CorruptStateError
from dynastate.format.graph import VersionGraph
from dynastate.format.items import Item
from dynastate.format.keys import VERSION_MAX, Key, graph_range, store_shard
from dynastate.format.snapshot import Snapshot
from dynastate.format.version_list import listed_entry, parse_list
from dynastate.operations.inspection.findings import Finding, Namer
from dynastate.runtime import limits
from dynastate.storage.tables import Tables, get_apart

#: Sort keys of version lists, meta item, schemas and snapshots.
NAMING: Final = graph_range(0, VERSION_MAX)

T = TypeVar("T")


def read_each(
    tables: Tables, keys: Iterable[Key], parse: Callable[[Key, Item], T]
) -> Iterator[tuple[Key, T | CorruptStateError | None]]:
    """Read items, a window at a time. Yields each key with its parsed item, its defect, or None if it is missing."""
    keys = iter(keys)
    while window := list(islice(keys, limits().window_parts)):
        items = _get_each(tables, window)
        for key in window:
            item = items.get(key)
            try:
                yield key, parse(key, item) if isinstance(item, dict) else item
            except CorruptStateError as error:
                yield key, error


def _get_each(tables: Tables, keys: Sequence[Key]) -> dict[Key, Item | CorruptStateError]:
    """Read items; each corrupt one comes with its error."""
    try:
        return dict(get_apart(tables, keys))
    except CorruptStateError as error:
        if len(keys) == 1:
            return {keys[0]: error}
    return {key: item for key in keys for item in _get_each(tables, [key]).values()}


class NamingItems:
    """The readable version lists, meta item, schemas and snapshots, and the defects of the others."""

    def __init__(self, tables: Tables, store: str) -> None:
        self.graph = VersionGraph(store, ())
        self.findings: list[Finding] = []
        #: Version lists that cannot be read completely: the makers of the parts of their versions are unknown.
        self.corrupt_lists: set[int] = set()
        #: Whether a defect prevents the opening of every version.
        self.is_stopping = False
        low, high = NAMING
        self.keys = tables.list_keys("snapshot", store_shard(store, 0), low, high)
        for key, defect in read_each(tables, self.keys, self._add):
            if defect is not None:
                self._corrupt(key, defect)
        for error in self.graph.skipped.values():
            self.findings.append(Finding("corrupt", _key_of(error), error.reason))

    def snapshots(self) -> list[Snapshot]:
        """The snapshots that are done."""
        return self.graph.done_snapshots()

    def nodes(self) -> set[Namer]:
        """The ids of listed attempts and of snapshots that are done."""
        listed = {entry.id for entry in self.graph.entries()}
        return listed | {each.holder for each in self.snapshots()}

    def _add(self, key: Key, item: Item) -> None:
        if key.sort.startswith("list/"):
            readable: Item = {"versions": [raw for raw in parse_list(key, item) if self._can_read(key, raw)]}
            item = item | readable
        self.graph.add(key, item)

    def _can_read(self, key: Key, raw: bytes) -> bool:
        try:
            listed_entry(self.graph.store, key, raw)
        except CorruptStateError as error:
            self._corrupt(key, error)
            return False
        return True

    def _corrupt(self, key: Key, error: CorruptStateError) -> None:
        self.findings.append(Finding("corrupt", key, error.reason))
        self.is_stopping = True
        kind, _, number = key.sort.partition("/")
        if kind == "list" and number.isdecimal():
            self.corrupt_lists.add(int(number))


def _key_of(error: CorruptStateError) -> Key:
    """The item that an error names."""
    role, shard, item = (str(error.facts[name]) for name in ("table", "store_shard", "item"))
    return Key("delta" if role == "delta" else "snapshot", shard, item)
