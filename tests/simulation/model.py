"""What is true of a store, kept beside it: every attempt with its rows, what the driver chose, and what is promised.

Nothing here is asked of the engine: version lists, and which snapshots are done, are read as they change in the tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dynastate import layout, rows
from dynastate.layout import EMPTY, NO_ATTEMPT, Attempt, VersionEntry
from dynastate.rows import Change
from tests.simulation.scheduler import Scheduler

Version = tuple[int, Attempt]
#: Rows by key: the values of its list, or its only one.
State = dict[bytes, tuple[bytes, ...]]

#: What is known of an attempt: under way; its commit returned; its commit, or what came before, failed; nobody knows.
OPEN, COMMITTED, FAILED, UNKNOWN = "open", "committed", "failed", "unknown"


class ViolationError(AssertionError):
    """Something happened that must not."""


def violation(text: str, **facts: object) -> ViolationError:
    return ViolationError(f"{text} {' '.join(f'{name}={value}' for name, value in facts.items())}")


def short(version: Version) -> str:
    """A version for people: its number and the first letters of its attempt."""
    return f"{version[0]}/{version[1].hex()[:8]}"


def apply(state: State, changes: Iterable[Change]) -> State:
    """The rows after some changes."""
    after = dict(state)
    for change in changes:
        if change.value is None:
            after.pop(change.key, None)
        elif change.operation == rows.MERGE:
            after[change.key] = (*after.get(change.key, ()), change.value)
        else:
            after[change.key] = (change.value,)
    return after


@dataclass
class Node:
    """One attempt: on what it stands, what it changes, what rows there are then, and which run made it."""

    version: Version
    parent: Version
    changes: list[Change]
    state: State
    run: str
    fate: str = OPEN


@dataclass
class Model:
    """One store. The driver's chain goes from `floor`, the oldest version it may still go back to, to `newest`."""

    store: str
    scheduler: Scheduler
    #: Of Spark's checkpoints: with 2 the driver names attempts, with 1 it knows numbers only.
    checkpoint_format: int
    retain: int
    nodes: dict[Version, Node] = field(default_factory=lambda: {EMPTY: Node(EMPTY, EMPTY, [], {}, "", COMMITTED)})
    chain: dict[int, Version] = field(default_factory=lambda: {0: EMPTY})
    #: Which run made the versions of the chain.
    makers: dict[int, str] = field(default_factory=dict)
    newest: int = 0
    floor: int = 0
    #: The run that makes versions now, and the version it began with.
    run: str = ""
    #: Runs that have written to the store, the newest.
    runs: set[str] = field(default_factory=set)
    #: Which attempt a version is, for those who know its number only, since when.
    winners: dict[int, list[tuple[float, Version]]] = field(default_factory=dict)
    _lists: dict[str, list[bytes]] = field(default_factory=dict)
    #: Those that can be read.
    _snapshots: set[Version] = field(default_factory=set)
    _decoded: dict[bytes, VersionEntry] = field(default_factory=dict)

    # ------------------------------------------------------------------------------------------------- what actors tell

    def begin(self, version: Version, parent: Version, changes: list[Change], run: str) -> Node:
        """An attempt begins to write."""
        node = Node(version, parent, changes, apply(self.nodes[parent].state, changes), run)
        self.nodes[version] = node
        return node

    def end(self, node: Node, fate: str) -> None:
        """An attempt was told what became of it."""
        node.fate = fate
        if fate == COMMITTED and not self._was_listed(node.version):
            raise violation("a commit returned, and no version list names it", version=short(node.version))
        if fate == FAILED and self._was_listed(node.version):
            raise violation("a commit failed, and a version list names it", version=short(node.version))

    def choose(self, version: Version) -> None:
        """The driver takes an attempt: its batch is done."""
        self.newest = version[0]
        self.chain[self.newest] = version
        self.makers[self.newest] = self.run
        # An executor cleans up by the newest version it has, which the driver need not have taken yet.
        self.floor = max(self.floor, self.newest + 2 - max(2, self.retain))

    def restart(self, run: str, base: int) -> None:
        """The driver goes on from an earlier version of the chain, with another run; from 0: a new life."""
        self.run = run
        self.newest = base
        self.chain = {number: version for number, version in self.chain.items() if number <= base}
        if base == 0:
            self.floor = 0

    # -------------------------------------------------------------------------------------------------- what tables say

    def list_changed(self, sort: str, versions: list[bytes]) -> list[Version]:
        """A version list changed; the versions that it names for the first time."""
        before = self._lists.get(sort, [])
        self._lists[sort] = versions
        appended = [self._add(raw) for raw in dict.fromkeys(versions) if raw not in self._decoded]
        numbers = {self._decoded[raw].version for raw in (*before, *versions)}
        self._find_winners(numbers | {number + 1 for number in numbers})
        return appended

    def snapshot_changed(self, version: Version, *, is_done: bool) -> None:
        """A snapshot can be read from now on, or no more."""
        (self._snapshots.add if is_done else self._snapshots.discard)(version)
        self._find_winners({version[0], version[0] + 1})

    def entered(self, epochs: dict[str, int]) -> None:
        """The runs in the meta item changed: they must have entered in the order in which they began."""
        self.runs = set(epochs)
        order = [int(run.removeprefix("run-")) for run in sorted(epochs, key=epochs.__getitem__)]
        if order != sorted(order):
            raise violation("a run that is over became the newest", order=order)

    def _add(self, raw: bytes) -> Version:
        entry = self._decoded[raw] = layout.decode_entry(self.store, raw)
        version = (entry.version, entry.attempt)
        node = self.nodes.get(version)
        if node is None:
            raise violation("a version list names an attempt that nobody made", version=short(version))
        if node.fate == FAILED:
            raise violation("a commit failed, and then a version list names it", version=short(version))
        if entry.parent != node.parent[1]:
            raise violation("a version list names another parent", version=short(version))
        return version

    def _find_winners(self, numbers: set[int]) -> None:
        for number in sorted(numbers):
            found = self._winner(number)
            known = self.winners.setdefault(number, [])
            if not known or known[-1][1] != found:
                known.append((self.scheduler.now, found))

    def _winner(self, number: int) -> Version:
        """What a number stands for: the highest epoch, of equals one that stands on something, the last appended.

        An attempt that stands in a list twice counts at its first place.
        """
        first: dict[Attempt, tuple[int, VersionEntry]] = {}
        for place, entry in enumerate(self._listed(number)):
            first.setdefault(entry.attempt, (place, entry))
        ranks = [((entry.epoch, self._stands(entry), place), entry.attempt) for place, entry in first.values()]
        return (number, max(ranks)[1]) if ranks else EMPTY

    def _stands(self, entry: VersionEntry) -> bool:
        version, parent = (entry.version, entry.attempt), (entry.version - 1, entry.parent)
        return (
            parent == EMPTY
            or version in self._snapshots
            or parent in self._snapshots
            or any(each.attempt == entry.parent for each in self._listed(entry.version - 1))
        )

    def _listed(self, number: int) -> list[VersionEntry]:
        """Entries of a version, in the order of its list."""
        versions = self._lists.get(layout.group_key(self.store, number).sort, [])
        return [entry for raw in versions if (entry := self._decoded[raw]).version == number]

    def _was_listed(self, version: Version) -> bool:
        return any((entry.version, entry.attempt) == version for entry in self._decoded.values())

    # ----------------------------------------------------------------------------------------------------- what follows

    def winners_since(self, number: int, since: float) -> set[Version]:
        """Which attempts were the one of a version's number at some time since."""
        known = self.winners.get(number, [])
        before = [version for at, version in known if at <= since]
        return {*before[-1:], *(version for at, version in known if at > since)} - {EMPTY}

    def candidates(self) -> list[Version]:
        """Attempts at the next version that returned: the driver may take any of them."""
        number = self.newest + 1
        return [
            node.version
            for node in self.nodes.values()
            if node.version[0] == number and node.fate == COMMITTED and node.run == self.run
        ]

    def promised(self) -> list[Version]:
        """What must be readable now, by number alone or by attempt: the driver's chain, and what it may take next."""
        kept = [self.chain[number] for number in range(max(1, self.floor), self.newest + 1)] + self.candidates()
        by_number = [(number, NO_ATTEMPT) for number in sorted({number for number, _ in kept})]
        return by_number + (kept if self.checkpoint_format == 2 else [])

    def check_state(self, asked: Version, found: Version, state: State) -> None:
        """Rows that were read as a version must be exactly those of the attempt that they are said to be of."""
        if asked[1] not in (NO_ATTEMPT, found[1]) or asked[0] != found[0]:
            raise violation("another version than the one asked for", asked=short(asked), found=short(found))
        node = self.nodes.get(found)
        if node is None or node.fate == FAILED:
            raise violation("a version that nobody made", found=short(found))
        if state != node.state:
            wrong = sorted(key for key in {*state, *node.state} if state.get(key) != node.state.get(key))
            raise violation("wrong rows", version=short(found), keys=wrong)
