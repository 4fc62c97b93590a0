"""The model of a store, without the engine: attempts with their rows, what the driver took, and what is promised."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from dynastate.format.changes import MERGE, Change
from dynastate.format.keys import EMPTY, NO_ATTEMPT, VERSION_MAX, Attempt, VersionId, version_list_key
from dynastate.format.version_list import VersionEntry, decode_entry
from tests.simulation.scheduler import Scheduler

#: Rows by key: the values of its list, or its only one.
State = dict[bytes, tuple[bytes, ...]]

#: The outcome of an attempt: under way; its commit returned; it or its commit failed; unknown.
OPEN, COMMITTED, FAILED, UNKNOWN = "open", "committed", "failed", "unknown"


class ViolationError(AssertionError):
    """A promise was violated."""


def violation(text: str, **facts: object) -> ViolationError:
    return ViolationError(f"{text} {' '.join(f'{name}={value}' for name, value in facts.items())}")


def short(version: VersionId) -> str:
    """A version for people: its number and the first letters of its attempt."""
    return f"{version[0]}/{version[1].hex()[:8]}"


def apply(state: State, changes: Iterable[Change]) -> State:
    result = dict(state)
    for change in changes:
        if change.value is None:
            result.pop(change.key, None)
        elif change.operation == MERGE:
            result[change.key] = (*result.get(change.key, ()), change.value)
        else:
            result[change.key] = (change.value,)
    return result


def without(state: State, keys: Collection[bytes]) -> State:
    return {key: values for key, values in state.items() if key not in keys} if keys else state


@dataclass
class Node:
    """One attempt: its parent, its changes, the rows after them, and the run that made it.

    `held` are the rows of its parent that its executor has in memory.
    """

    version: VersionId
    parent: VersionId
    changes: list[Change]
    state: State
    run: str
    fate: str = OPEN
    held: State = field(default_factory=dict)


@dataclass
class Model:
    """One store. The driver's chain reaches from `floor`, the oldest version it may be set back to, to `newest`."""

    store: str
    scheduler: Scheduler
    #: Of Spark's checkpoints: with 2 the driver names attempts, with 1 numbers only.
    checkpoint_format: int
    retain: int
    nodes: dict[VersionId, Node] = field(default_factory=lambda: {EMPTY: Node(EMPTY, EMPTY, [], {}, "", COMMITTED)})
    chain: dict[int, VersionId] = field(default_factory=lambda: {0: EMPTY})
    #: The run that made each version of the chain.
    makers: dict[int, str] = field(default_factory=dict)
    newest: int = 0
    floor: int = 0
    #: The run that makes versions now, and the version it began with.
    run: str = ""
    #: The query that the store belongs to.
    query: str = ""
    #: The newest runs that have written to the store.
    runs: set[str] = field(default_factory=set)
    #: The locations whose runs may commit now; and the location of each run.
    locations: set[str] = field(default_factory=set)
    location_of: dict[str, str] = field(default_factory=dict)
    #: Runs that may not commit any more, since the store was dropped.
    ended: set[str] = field(default_factory=set)
    #: What runs from other locations have made, and is retained for them.
    foreign: set[VersionId] = field(default_factory=set)
    #: The attempts that were opened by a version's number, each with the time since when.
    winners: dict[int, list[tuple[float, VersionId]]] = field(default_factory=dict)
    _lists: dict[str, list[bytes]] = field(default_factory=dict)
    #: The finished snapshots.
    _snapshots: set[VersionId] = field(default_factory=set)
    _decoded: dict[bytes, VersionEntry] = field(default_factory=dict)
    #: The version of each restart and drop so far: at that moment no higher number was promised.
    _cuts: list[int] = field(default_factory=list)
    #: The keys of each erase, with the time of its end.
    _erases: list[tuple[float, set[bytes]]] = field(default_factory=list)

    def begin(self, version: VersionId, parent: VersionId, changes: list[Change], run: str, held: State) -> Node:
        node = Node(version, parent, changes, apply(self.nodes[parent].state, changes), run, held=held)
        self.nodes[version] = node
        return node

    def end(self, node: Node, fate: str) -> None:
        """Set the outcome that an attempt was given, and check the version list."""
        node.fate = fate
        if fate == COMMITTED and not self._was_listed(node.version):
            raise violation("a commit returned, and no version list lists it", version=short(node.version))
        if fate == FAILED and self._was_listed(node.version):
            raise violation("a commit failed, and a version list lists it", version=short(node.version))

    def choose(self, version: VersionId) -> None:
        """Let the driver take an attempt: its batch is done."""
        self.newest = version[0]
        self.chain[self.newest] = version
        self.makers[self.newest] = self.run
        # An executor cleans up by the newest version it has, which the driver need not have taken yet.
        self.floor = max(self.floor, self.newest + 2 - max(2, self.retain))

    def restart(self, run: str, base: int, location: str) -> None:
        """Let the driver resume from an earlier version of the chain with another run; at 0 it starts over."""
        self.run = run
        self.location_of[run] = location
        self.newest = base
        self._cuts.append(base)
        self.chain = {number: version for number, version in self.chain.items() if number <= base}
        if base == 0:
            self.floor = 0

    def move(self, location: str, base: int) -> None:
        """From now on only runs from this location commit; what others have made above `base` is retained."""
        numbers = range(max(base + 1, self.floor), self.newest + 1)
        versions = {self.chain[number] for number in numbers if self._is_named(number)}
        self.locations = {location}
        self.foreign = {each for each in self.foreign | versions if self.location_of[self.nodes[each].run] != location}

    def _is_named(self, number: int) -> bool:
        """Whether the driver's checkpoint names its attempt. With format 1 a number may mean a twin that came later."""
        winners = self.winners.get(number, [])
        return self.checkpoint_format == 2 or (winners != [] and winners[-1][1] == self.chain[number])

    def drop(self) -> None:
        """Promise nothing any more; from the next restart on the store is another query's."""
        self.run = ""
        self.newest = self.floor = 0
        self._cuts.append(0)
        self.chain = {0: EMPTY}
        self.foreign.clear()

    def begin_erase(self, keys: set[bytes]) -> None:
        """From now on, the rows of these keys may be there or not."""
        self._erases.append((math.inf, keys))

    def end_erase(self) -> None:
        """Forget the rows of the keys at all versions. Whoever has them in memory may not commit any more."""
        _, keys = self._erases.pop()
        self._erases.append((self.scheduler.now, keys))
        for node in self.nodes.values():
            node.changes = [change for change in node.changes if change.key not in keys]
            node.state = without(node.state, keys)

    def unsure(self, since: float) -> set[bytes]:
        """The keys of which a reader may find the rows or not, if it has read something at that time."""
        return {key for ended, keys in self._erases if ended >= since for key in keys}

    def list_changed(self, sort: str, versions: list[bytes]) -> list[VersionId]:
        """Note a changed version list. Returns the versions that it lists for the first time."""
        old_versions = self._lists.get(sort, [])
        self._lists[sort] = versions
        appended = [self._add(raw) for raw in dict.fromkeys(versions) if raw not in self._decoded]
        numbers = {self._decoded[raw].version for raw in (*old_versions, *versions)}
        self._find_winners(numbers)
        return appended

    def snapshot_changed(self, version: VersionId, *, is_done: bool) -> None:
        """Note that a snapshot can be read from now on, or no longer."""
        (self._snapshots.add if is_done else self._snapshots.discard)(version)
        self._find_winners({version[0]})

    def entered(self, epochs: dict[str, int]) -> None:
        """Check that the runs in the meta item have entered in the order in which they began."""
        self.runs = set(epochs)
        # A dropped query's run may enter the next query's store where it had not written before: it commits nothing.
        entered = [run for run in sorted(epochs, key=epochs.__getitem__) if run not in self.ended]
        order = [int(run.removeprefix("run-")) for run in entered if not run.startswith("adopt-")]
        if order != sorted(order):
            raise violation("a replaced run became the newest", order=order)

    def meta_deleted(self) -> None:
        """Note that the meta item is deleted: its runs may not commit any more; those that make the store again may."""
        self.ended |= self.runs
        self.runs = set()

    def _add(self, raw: bytes) -> VersionId:
        entry = decode_entry(self.store, raw)
        version = entry.id
        node, is_new = self.nodes.get(version), not self._was_listed(version)
        self._decoded[raw] = entry
        if node is None:
            raise violation("a version list lists an attempt that was never made", version=short(version))
        if node.fate == FAILED:
            raise violation("a commit failed, and then a version list lists it", version=short(version))
        if is_new and self.location_of[node.run] not in self.locations:
            raise violation("a run from another location has committed", version=short(version), run=node.run)
        if node.run in self.ended:
            raise violation("a run has committed to a store that was dropped", version=short(version), run=node.run)
        if is_new and node.held.keys() - self.nodes[node.parent].state.keys():
            raise violation("an executor with erased rows in memory has committed", version=short(version))
        if entry.parent != node.parent[1]:
            raise violation("a version list has another parent of an attempt", version=short(version))
        return version

    def _find_winners(self, changed: set[int]) -> None:
        """Find what numbers open, those that changed and all above: their attempts may have lost an ancestor."""
        listed = {self._decoded[raw].version for versions in self._lists.values() for raw in versions}
        for number in sorted(changed | {number for number in listed if number > min(changed, default=0)}):
            winner = self._winner(number)
            winners = self.winners.setdefault(number, [])
            if not winners or winners[-1][1] != winner:
                winners.append((self.scheduler.now, winner))

    def _winner(self, number: int) -> VersionId:
        """The attempt that a number opens: the highest epoch; of equals a readable one; the last by its first place."""
        first: dict[Attempt, tuple[int, VersionEntry]] = {}
        for place, entry in enumerate(self._listed(number)):
            first.setdefault(entry.attempt, (place, entry))
        ranks = [((entry.epoch, self._can_be_read(entry), place), entry.attempt) for place, entry in first.values()]
        return VersionId(number, max(ranks)[1]) if ranks else EMPTY

    def _can_be_read(self, entry: VersionEntry) -> bool:
        version, parent = (entry.version, entry.attempt), (entry.version - 1, entry.parent)
        return (
            parent == EMPTY
            or version in self._snapshots
            or parent in self._snapshots
            or any(self._can_be_read(each) for each in self._listed(entry.version - 1) if each.attempt == entry.parent)
        )

    def _listed(self, number: int) -> list[VersionEntry]:
        """Entries of a version, in the order of its list."""
        versions = self._lists.get(version_list_key(self.store, number).sort, [])
        return [entry for raw in versions if (entry := self._decoded[raw]).version == number]

    def _was_listed(self, version: VersionId) -> bool:
        return any((entry.version, entry.attempt) == version for entry in self._decoded.values())

    def check_winner(self, target: VersionId, winner: VersionId, since: float) -> None:
        """Check that a version that was asked for by its number is an attempt that the number opened since."""
        history = self.winners.get(target[0], [])
        old_winners = [version for at, version in history if at <= since]
        winners = {*old_winners[-1:], *(version for at, version in history if at > since)} - {EMPTY}
        if target[1] == NO_ATTEMPT and winner not in winners:
            raise violation("a number opens another attempt", asked=target[0], found=short(winner))

    def ancestor(self, node: Node, version: int) -> Node:
        """The attempt of an earlier version that an attempt was computed from."""
        while node.version[0] > version:
            node = self.nodes[node.parent]
        return node

    def left_chain(self, version: VersionId) -> int:
        """The newest version of the driver's chain that an attempt was computed from."""
        node = self.nodes[version]
        while self.chain.get(node.version[0]) != node.version:
            node = self.nodes[node.parent]
        return node.version[0]

    def candidates(self) -> list[VersionId]:
        """Committed attempts of the next version: the driver may take any of them."""
        number = self.newest + 1
        return [
            node.version
            for node in self.nodes.values()
            if node.version[0] == number and node.fate == COMMITTED and node.run == self.run
        ]

    def promised(self) -> list[VersionId]:
        """What must be readable now: the driver's chain, what it may take next, and versions of other locations."""
        versions = [self.chain[number] for number in range(max(1, self.floor), self.newest + 1)] + self.candidates()
        by_number = [VersionId(number, NO_ATTEMPT) for number in sorted({number for number, _ in versions})]
        return by_number + (versions if self.checkpoint_format == 2 else []) + sorted(self.foreign)

    def watch(self) -> Callable[[], set[VersionId]]:
        """Watch the promises from now on: the function returns the versions that were promised all the time.

        A number is promised again once it is made again, after a restart below it or a drop. It then means another
        attempt, so a reader that has opened the one before may not find it any more.
        """
        promised, count = set(self.promised()), len(self._cuts)

        def still() -> set[VersionId]:
            lowest = min(self._cuts[count:], default=VERSION_MAX)
            rest = promised.intersection(self.promised())
            return {version for version in rest if version[1] != NO_ATTEMPT or version[0] <= lowest}

        return still

    def check_state(self, target: VersionId, version: VersionId, state: State, since: float = math.inf) -> None:
        """Check the rows of a version, of which the first were read at some time; by default at once."""
        if target[1] not in (NO_ATTEMPT, version[1]) or target[0] != version[0]:
            raise violation("another version than the one requested", asked=short(target), found=short(version))
        node = self.nodes.get(version)
        if node is None or node.fate == FAILED:
            raise violation("a version that was never made", found=short(version))
        unsure = self.unsure(since)
        if without(state, unsure) != without(node.state, unsure):
            wrong = sorted(key for key in {*state, *node.state} if state.get(key) != node.state.get(key))
            raise violation("wrong rows", version=short(version), keys=wrong)
