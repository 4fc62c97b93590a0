"""Checking a store: everything is read as recovery would read it, and whatever is wrong is listed. It only reads.

Others may write meanwhile. So names are read before what they name, and again at the end: what a commit or a clean-up
changed in between is nothing wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, pairwise
from typing import Final, Literal

from dynastate import directory, forks, layout, rows
from dynastate.directory import Bucket, Directory
from dynastate.errors import CorruptStateError, VersionMissingError
from dynastate.layout import EMPTY, Attempt, History, Item, Key, Part, Role, Snapshot, VersionEntry
from dynastate.progress import Progress, unheard
from dynastate.reader import WINDOW, verified_chunks
from dynastate.settings import Settings
from dynastate.tables import BotoTables, Meter, Tables, get_apart

#: Keys that are listed and compared at once, about.
KEYS_LISTED: Final = 10_000
#: Findings that are kept; of what is behind them only the number is.
FINDINGS_MAX: Final = 10_000
_HISTORY: Final = layout.history_range(0, layout.VERSION_MAX)
#: Sort keys between which all others lie.
_FIRST, _LAST = "\x00", "\U0010ffff"

#: A version with the attempt that made it, or with the id of its snapshot.
Node = tuple[int, Attempt]
What = Literal["missing", "broken", "orphaned"]
#: Who made an item that nothing names, if that is known, and what it is.
Unnamed = tuple[Node | None, str]
#: What lies under a key: a part, what is wrong with it, or nothing.
Found = tuple[Key, Part | CorruptStateError | None]

_OF_SNAPSHOT: Final = {
    layout.WRITING: "of a snapshot that is being written, or was left so",
    layout.LEAVING: "of a snapshot that clean-up takes away",
    layout.DONE: "of a snapshot whose directory does not name it",
}


@dataclass(frozen=True)
class Finding:
    """What is wrong with an item. `named_by` are attempts and snapshots that cannot be read without it.

    One that nothing names is orphaned; it stands for `items` of one maker, which `named_by` is, if that is known.
    """

    what: What
    key: Key
    why: str
    named_by: frozenset[Node] = frozenset()
    items: int = 1


@dataclass(frozen=True)
class Checked:
    """A version by one attempt. One that `is_dead` stood on what clean-up took away: no run goes on from it."""

    version: int
    attempt: Attempt
    epoch: int
    is_readable: bool
    is_dead: bool


@dataclass(frozen=True)
class Report:
    """What was found in a store: `items` of `stored_bytes` were read whole. `more` findings are not in `findings`."""

    store: str
    versions: tuple[Checked, ...]
    snapshots: int
    items: int
    stored_bytes: int
    findings: tuple[Finding, ...]
    more: int
    meter: Meter

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing or broken. What is orphaned does no harm: attempts under way look like it."""
        return not self.more and all(finding.what == "orphaned" for finding in self.findings)

    def to_json(self, names: Mapping[Role, str]) -> dict[str, object]:
        """The report as an object of JSON, with tables by these names."""
        return {
            "store": self.store,
            "whole": self.is_whole,
            "versions": [
                {
                    "version": each.version,
                    "attempt": each.attempt.hex(),
                    "epoch": each.epoch,
                    "readable": each.is_readable,
                    "dead": each.is_dead,
                }
                for each in self.versions
            ],
            "snapshots": self.snapshots,
            "items": self.items,
            "stored_bytes": self.stored_bytes,
            "requests": self.meter.requests,
            "read_units": self.meter.read_units,
            "findings": [
                {
                    "what": each.what,
                    "table": names[each.key.role],
                    "store_shard": each.key.store_shard,
                    "item": each.key.sort,
                    "items": each.items,
                    "why": each.why,
                }
                for each in self.findings
            ],
            "more": self.more,
        }

    def lines(self, names: Mapping[Role, str]) -> list[str]:
        """The report for people, with tables by these names."""
        readable = sorted({each.version for each in self.versions if each.is_readable})
        lost = [each for each in self.versions if not each.is_readable and not each.is_dead]
        dead = sum(each.is_dead for each in self.versions)
        counts = Counter(dict.fromkeys(("missing", "broken", "orphaned"), 0))
        for each in self.findings:
            counts[each.what] += each.items
        return [
            *(
                f"{each.what:8} {each.items} item{'s' if each.items > 1 else ''}: {each.why} "
                f"table={names[each.key.role]} store_shard={each.key.store_shard} item={each.key.sort}"
                for each in self.findings
            ),
            *([f"and {self.more} findings more"] if self.more else []),
            *(f"cannot be read: version={each.version} attempt={each.attempt.hex()}" for each in lost),
            f"store {self.store}",
            f"versions {layout.ranges(readable) or 'none'} can be read; {dead} attempts that no run goes on from",
            f"{self.snapshots} snapshots; {self.items} items read, {self.stored_bytes} bytes of data",
            f"{self.meter.requests} requests, {self.meter.read_units} read units",
            f"{'whole' if self.is_whole else 'not whole'}: "
            + ", ".join(f"{number} {what}" for what, number in counts.items()),
        ]


def verify_store(settings: Settings, store: str, progress: Progress) -> Report:
    """Check one store in the tables of these settings.

    Raises:
        ConfigurationError: no store has such a name, a table is missing, no permission, DynamoDB cannot be reached.
        VersionMissingError: the tables hold nothing of this store.
        UnavailableError: throttled until `request_deadline_s`.
    """
    tables = BotoTables(settings)
    try:
        return verify(tables, store, progress)
    finally:
        tables.close()


def verify(tables: Tables, store: str, progress: Progress = unheard) -> Report:
    """Check one store.

    1. Read what names items: version lists, the meta item, schemas, snapshots and their directories.
    2. Read all parts and buckets that they name, compare them as recovery does, and decode every record.
    3. List the keys of all there is, for those that nothing names.
    4. Read version lists and snapshots again, and drop what was found of those that are gone, or have come.

    It costs about twice what reading everything once costs, since keys are listed apart. It holds version lists and
    directories, as recovery does, and beside them some `KEYS_LISTED` keys and a window of parts.

    Raises:
        VersionMissingError: the tables hold nothing of this store.
        DynastateError: as the reads of `Tables`, but for CorruptStateError.
    """
    check = _Check(tables, layout.check_store(store), progress)
    check.read_names()  # 1
    check.read_parts()  # 2
    check.find_orphans()  # 3
    return check.report()  # 4


def _get_each(tables: Tables, keys: Sequence[Key], meter: Meter) -> dict[Key, Item | CorruptStateError]:
    """Items that are there, or why one cannot be read: then each is asked for by itself."""
    try:
        return dict(get_apart(tables, keys, meter))
    except CorruptStateError as broken:
        if len(keys) == 1:
            return {keys[0]: broken}
    return {key: found for key in keys for found in _get_each(tables, [key], meter).values()}


class _Names:
    """Version lists, meta item, schemas and snapshots as far as they can be read, and what is wrong with them."""

    def __init__(self, tables: Tables, store: str, meter: Meter) -> None:
        self.history = History(store, ())
        self.findings: list[Finding] = []
        #: Version lists that cannot be read whole: who made the parts of their versions is not known.
        self.broken_groups: set[int] = set()
        #: Something is wrong that keeps whoever opens a version from all of them.
        self.is_stopping = False
        self.keys = tables.list_keys("snapshot", layout.store_shard(store, 0), *_HISTORY, meter)
        for at in range(0, len(self.keys), WINDOW):
            for key, found in _get_each(tables, self.keys[at : at + WINDOW], meter).items():
                self._add(key, found)
        for broken in self.history.passed.values():
            self.findings.append(Finding("broken", _key_of(broken), broken.reason))

    def snapshots(self) -> list[Snapshot]:
        """Those that are done."""
        return [each for each in self.history.snapshots() if each.stage == layout.DONE]

    def nodes(self) -> set[Node]:
        """Attempts that are listed, and snapshots that are done, by their ids."""
        listed = {(entry.version, entry.attempt) for entry in self.history.entries()}
        return listed | {(each.version, each.id) for each in self.snapshots()}

    def _add(self, key: Key, found: Item | CorruptStateError) -> None:
        try:
            if isinstance(found, CorruptStateError):
                raise found
            if key.sort.startswith("group/"):
                whole: Item = {"versions": [raw for raw in layout.version_list(key, found) if self._can_read(key, raw)]}
                found = found | whole
            self.history.add(key, found)
        except CorruptStateError as broken:
            self._broken(key, broken)

    def _can_read(self, key: Key, raw: bytes) -> bool:
        try:
            layout.listed_entry(self.history.store, key, raw)
        except CorruptStateError as broken:
            self._broken(key, broken)
            return False
        return True

    def _broken(self, key: Key, broken: CorruptStateError) -> None:
        self.findings.append(Finding("broken", key, broken.reason))
        self.is_stopping = True
        kind, _, number = key.sort.partition("/")
        if kind == "group" and number.isdecimal():
            self.broken_groups.add(int(number))


@dataclass(frozen=True)
class _Named:
    """A version entry, or a bucket of a directory: under which key it stands, what it names, and who needs that."""

    key: Key
    sums: VersionEntry | Bucket
    places: Callable[[], Iterator[Key]]
    needed_by: frozenset[Node]


class _HoleError(Exception):
    """A part is not there, or broken. Never leaves this module."""


class _Check:
    """One check of one store, in steps."""

    def __init__(self, tables: Tables, store: str, progress: Progress) -> None:
        self._tables = tables
        self._store = store
        self._progress = progress
        self._meter = Meter()
        self._findings: list[Finding] = []
        self._more = 0
        self._items = self._total = self._stored_bytes = 0
        #: Where parts lie; 0: nobody knows.
        self._shards = 0
        self._directories: dict[Node, Directory | None] = {}

    def _add(self, finding: Finding) -> None:
        if len(self._findings) < FINDINGS_MAX:
            self._findings.append(finding)
        else:
            self._more += 1

    # ------------------------------------------------------------------------------------------------------------ names

    def read_names(self) -> None:
        """Read all that names items."""
        self._names = _Names(self._tables, self._store, self._meter)
        if not self._names.keys:
            raise VersionMissingError(
                "the tables hold nothing of this store; its name stands in the file 'dynastate' in the partition's "
                "folder of the checkpoint's state",
                store=self._store,
                tables=",".join(self._tables.names.values()),
            )
        for finding in self._names.findings:
            self._add(finding)
        meta = layout.meta_key(self._store)
        if self._names.history.meta is not None:
            _, self._shards = layout.parse_meta(self._store, self._names.history.meta)
        elif meta not in self._names.keys:
            self._add(Finding("missing", meta, "the store's meta item, without which nobody knows where parts lie"))
        self._directories = {(each.version, each.id): self._directory(each) for each in self._names.snapshots()}
        self._unheld = self._find_unheld()
        self._check_schemas()

    def _find_unheld(self) -> list[Finding]:
        """What a fork stands on in its origin must be held for it there."""
        origin = str((self._names.history.meta or {}).get(layout.ORIGIN))
        keys = [Key("snapshot", layout.store_shard(origin, 0), sort) for sort in sorted(self._stood_on(self._names))]
        unheld: list[Finding] = []
        for at in range(0, len(keys), WINDOW):
            window = keys[at : at + WINDOW]
            found = _get_each(self._tables, window, self._meter)
            for key in window:
                item = found.get(key)
                if isinstance(item, CorruptStateError):
                    unheld.append(Finding("broken", key, item.reason))
                elif self._store not in forks.forks_of(item or {}):
                    why = "what this fork stands on is not held for it: clean-up of its origin may take it away"
                    unheld.append(Finding("missing", key, why))
        return unheld

    def _stood_on(self, names: _Names) -> set[str]:
        """The names in its origin that a fork stands on, at that moment; none: it is no fork, or being made."""
        there = {(each.version, each.id) for each in names.snapshots()}
        found = [each for node, each in self._directories.items() if each is not None and node in there]
        return forks.needed(names.history, found, forks.pins_of(names.history.meta or {}))

    def _directory(self, snapshot: Snapshot) -> Directory | None:
        key = layout.directory_key(self._store, snapshot.version, snapshot.id)
        needed_by = frozenset([(snapshot.version, snapshot.id)])
        found = _get_each(self._tables, [key], self._meter).get(key)
        if found is None:
            self._add(Finding("missing", key, "the directory of a snapshot", needed_by))
            return None
        try:
            if isinstance(found, CorruptStateError):
                raise found
            return directory.parse(self._store, snapshot, key, found)
        except CorruptStateError as broken:
            self._add(Finding("broken", key, broken.reason, needed_by))
            return None

    def _check_schemas(self) -> None:
        named: dict[bytes, list[VersionEntry]] = {}
        for entry in self._names.history.entries():
            named.setdefault(entry.schema, []).append(entry)
        for digest, entries in named.items():
            key = layout.schema_key(self._store, digest)
            try:
                self._names.history.schema(entries[0])
            except CorruptStateError as broken:
                what: What = "broken" if key in self._names.keys else "missing"
                self._add(
                    Finding(what, key, broken.reason, frozenset((each.version, each.attempt) for each in entries))
                )

    # ----------------------------------------------------------------------------------------------- parts and buckets

    def read_parts(self) -> None:
        """Read what version lists and directories name, a window at a time."""
        if not self._shards:
            return
        named = [*self._versions(), *self._buckets()]
        self._total = sum(each.sums.parts for each in named)
        self._progress(0, self._total)
        found = self._read(key for each in named for key in each.places())
        for each in named:
            self._compare(each, islice(found, each.sums.parts))

    def _versions(self) -> Iterator[_Named]:
        """What version lists name, in the order of keys."""
        for entry in sorted(self._names.history.entries(), key=lambda entry: (entry.version, entry.attempt)):
            keys = partial(layout.part_keys, self._store, entry, self._shards)
            group = layout.group_key(self._store, entry.version)
            yield _Named(group, entry, keys, frozenset([(entry.version, entry.attempt)]))

    def _buckets(self) -> Iterator[_Named]:
        """What directories name, each bucket once though several may name it; in the order of keys."""
        named_by: dict[tuple[Node, int], list[Directory]] = {}
        for found in self._directories.values():
            for number, bucket in enumerate(found.buckets if found is not None else ()):
                if found is not None and bucket.parts:
                    named_by.setdefault((bucket.holder, number), []).append(found)
        for (_, number), directories in sorted(named_by.items(), key=lambda named: named[0]):
            first = directories[0]
            key = layout.directory_key(self._store, first.version, first.id)
            keys = partial(first.keys, self._store, number, self._shards)
            yield _Named(key, first.buckets[number], keys, frozenset((each.version, each.id) for each in directories))

    def _read(self, keys: Iterator[Key]) -> Iterator[Found]:
        while window := list(islice(keys, WINDOW)):
            found = _get_each(self._tables, window, self._meter)
            self._items += len(window)
            self._progress(self._items, self._total)
            for key in window:
                yield key, _parsed(key, found.get(key))

    def _compare(self, named: _Named, found: Iterator[Found]) -> None:
        try:
            for records, run in verified_chunks(named.sums, {}, self._parts(named, found), None):
                decoded = sum(1 for _ in rows.decode(run))
                if decoded != records:
                    raise CorruptStateError("a chunk has another number of records", expected=records, got=decoded)
        except _HoleError:
            pass
        except CorruptStateError as broken:
            self._add(Finding("broken", named.key, broken.reason, named.needed_by))
        # What lies behind a hole is not compared, but told of if it is lost or broken, too.
        for _ in self._parts(named, found, is_compared=False):
            pass

    def _parts(self, named: _Named, found: Iterator[Found], *, is_compared: bool = True) -> Iterator[tuple[Key, Part]]:
        for key, part in found:
            if isinstance(part, Part):
                self._stored_bytes += len(part.data)
                yield key, part
                continue
            if part is None:
                self._add(Finding("missing", key, f"{named.key.sort} names it", named.needed_by))
            else:
                self._add(Finding("broken", key, part.reason, named.needed_by))
            if is_compared:
                raise _HoleError

    # --------------------------------------------------------------------------------------------------------- orphans

    def find_orphans(self) -> None:
        """List all keys of the store, and tell of those that nothing names, by their maker."""
        if not self._shards:
            return
        self._is_snapshot_broken = any(each.key.sort.startswith(("snapshot/", "directory/")) for each in self._findings)
        parts = (key for each in self._versions() for key in each.places())
        buckets = (key for each in self._buckets() for key in each.places())
        directories = sorted(layout.directory_key(self._store, *node) for node in self._directories)
        firsts: dict[tuple[Role, Unnamed], Key] = {}
        counts: Counter[tuple[Role, Unnamed]] = Counter()
        for key in chain(self._unnamed("delta", parts), self._unnamed("snapshot", chain(buckets, directories))):
            maker = self._maker(key)
            if maker is not None:
                firsts.setdefault((key.role, maker), key)
                counts[key.role, maker] += 1
        for one, key in firsts.items():
            node, why = one[1]
            made_by: frozenset[Node] = frozenset() if node is None else frozenset([node])
            self._add(Finding("orphaned", key, why, made_by, counts[one]))

    def _unnamed(self, role: Role, named: Iterator[Key]) -> Iterator[Key]:
        """Keys in a table that are not among those `named`, which come in order."""
        low, window = _FIRST, set(islice(named, KEYS_LISTED))
        is_last = False
        while not is_last:
            following = list(islice(named, KEYS_LISTED))
            is_last = not following
            high = _LAST if is_last else following[0].sort
            for shard in range(self._shards):
                for key in self._tables.list_keys(role, layout.store_shard(self._store, shard), low, high, self._meter):
                    if key not in window and (is_last or key.sort < high):
                        yield key
            low, window = high, set(following)

    def _maker(self, key: Key) -> Unnamed | None:
        """Who made an item that nothing names, and what it is. None: what cannot be read may name it."""
        if key.role == "delta":
            return self._maker_of_part(key)
        bucket = layout.maker_of_bucket(key)
        maker = layout.maker_of_directory(key) if bucket is None else bucket[:2]
        if maker is None:
            is_read = _HISTORY[0] <= key.sort <= _HISTORY[1]  # among the names
            return None if is_read else (None, "none of dynastate's own")
        if self._is_snapshot_broken:
            return None
        stage = next((each.stage for each in self._names.history.snapshots() if each.id == maker[1]), "")
        return (None if stage == layout.DONE else maker), _OF_SNAPSHOT.get(stage, "of a snapshot that is not there")

    def _maker_of_part(self, key: Key) -> Unnamed | None:
        maker = layout.maker_of_part(key)
        if maker is None:
            return None, "none of dynastate's own"
        if maker[0] // layout.GROUP_SIZE in self._names.broken_groups:
            return None
        if self._names.history.entry(*maker) is not None:
            return None, "of a listed attempt, where that has no part"
        return maker, "of an attempt that no version list names: it is under way, or has failed"

    # ---------------------------------------------------------------------------------------------------------- report

    def report(self) -> Report:
        """What was found and still stands, and which versions can be read."""
        now = _Names(self._tables, self._store, self._meter)
        nodes, broken = now.nodes(), {finding.key for finding in now.findings}

        def stands(finding: Finding) -> bool:
            if finding.what == "orphaned":
                return not finding.named_by & nodes
            if finding.named_by:
                return bool(finding.named_by & nodes)
            return finding.key in broken or finding.key not in now.keys

        self._findings = [finding for finding in self._findings if stands(finding)]
        stood_on = self._stood_on(now)
        for finding in self._unheld:
            if finding.key.sort in stood_on:
                self._add(finding)
        known = self._names.nodes()
        versions = [each for each in self._check_chains(now) if (each.version, each.attempt) in known]
        return Report(
            store=self._store,
            versions=tuple(versions),
            snapshots=len(now.snapshots()),
            items=self._items,
            stored_bytes=self._stored_bytes,
            findings=tuple(self._findings),
            more=self._more,
            meter=self._meter,
        )

    def _check_chains(self, now: _Names) -> list[Checked]:
        """Which versions can be read: by a snapshot that is whole, or by their changes and the version before."""
        lost = [finding for finding in self._findings if finding.what != "orphaned"]
        in_vain = {node for finding in lost for node in finding.named_by}
        unread = {node for finding in lost if finding.key.sort.startswith("schema/") for node in finding.named_by}
        whole = {(each.version, each.attempt) for each in now.snapshots() if (each.version, each.id) not in in_vain}
        is_stopped = not self._shards or now.is_stopping
        live, lowest = _live(now.history), min(now.history.unpinned(), default=0)
        # What is older, and stands on nothing that is listed, clean-up has begun to take away.
        needless = max((version for version, _ in live & whole), default=0)

        def is_held(entry: VersionEntry) -> bool:  # for a fork, so clean-up may have taken what it stands on
            return layout.group_key(self._store, entry.version) in now.history.pinned

        readable: dict[Node, bool] = {EMPTY: True}
        dead: set[Node] = set()
        checked: list[Checked] = []
        for entry in now.history.entries():
            node, parent = (entry.version, entry.attempt), (entry.version - 1, entry.parent)
            if node in whole or node in in_vain or parent in readable or parent in whole:
                below = readable.get(parent, parent in whole)
                readable[node] = node not in unread and (node in whole or (below and node not in in_vain))
                if parent in dead and not readable[node]:
                    dead.add(node)
            elif (parent[0] >= lowest or (node in live and node[0] > needless)) and not is_held(entry):
                readable[node] = False
                self._parent_lost(now, node, parent)
            else:
                readable[node] = False
                dead.add(node)
            checked.append(Checked(*node, entry.epoch, readable[node] and not is_stopped, node in dead))
        self._find_gaps(now, {node[0] for node, can_be_read in readable.items() if can_be_read})
        return checked

    def _find_gaps(self, now: _Names, readable: set[int]) -> None:
        """Clean-up strikes versions off from the lowest, so above one that can be read none is away.

        It passes over lists that a fork stands on.
        """
        listed = now.history.versions()
        for version, following in pairwise(listed):
            group = layout.group_key(self._store, version + 1)
            is_known = (version + 1) // layout.GROUP_SIZE in now.broken_groups
            is_known |= layout.group_key(self._store, version) in now.history.pinned
            if following > version + 1 and version in readable and not is_known:
                why = (
                    f"none of the versions {layout.ranges(range(version + 1, following))} is listed, but older ones are"
                )
                self._add(Finding("missing", group, why))

    def _parent_lost(self, now: _Names, node: Node, parent: Node) -> None:
        key = layout.group_key(self._store, parent[0])
        if parent[0] // layout.GROUP_SIZE in now.broken_groups or node not in self._names.nodes():
            return
        why = (
            f"version {parent[0]} by attempt {parent[1].hex()}, on which version {node[0]} stands, nor a snapshot of it"
        )
        finding = Finding("missing", key, why, frozenset([node]))
        if finding not in self._findings:
            self._add(finding)


def _live(history: History) -> set[Node]:
    """The attempts of the newest run that committed, and those that they stand on."""
    newest = max((entry.epoch for entry in history.entries()), default=0)
    live: set[Node] = set()
    for entry in history.entries():
        at: VersionEntry | None = entry if entry.epoch == newest else None
        while at is not None and (at.version, at.attempt) not in live:
            live.add((at.version, at.attempt))
            at = history.entry(at.version - 1, at.parent)
    return live


def _key_of(broken: CorruptStateError) -> Key:
    """The item that an error of the layout names."""
    role, store_shard, item = (str(broken.facts[name]) for name in ("table", "store_shard", "item"))
    return Key("delta" if role == "delta" else "snapshot", store_shard, item)


def _parsed(key: Key, found: Item | CorruptStateError | None) -> Part | CorruptStateError | None:
    if found is None or isinstance(found, CorruptStateError):
        return found
    try:
        return layout.parse_part(key, found)
    except CorruptStateError as broken:
        return broken
