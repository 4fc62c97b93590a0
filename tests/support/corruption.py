"""A store with items of every kind, and every damage to one of its items."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import pytest

from dynastate import runtime
from dynastate.engine import snapshot_threshold
from dynastate.engine.engine import Engine
from dynastate.format.items import Item, Value, item_key
from dynastate.format.keys import NO_ATTEMPT, Key, VersionId, store_shard, version_list_key
from dynastate.format.meta import SHOWN
from dynastate.format.snapshot import DELETING, DONE, WRITING
from dynastate.runtime import Runtime
from tests.support.contents import graph
from tests.support.engine_driver import make_engine, save_snapshot, write
from tests.support.memory_tables import MemoryTables
from tests.support.samples import SHARDS, State, attempt

STORE = "damaged/0/0/default"
OTHER = "damaged/0/1/default"
#: Another attempt at version 7, by the run before; it is not the parent of version 8.
ZOMBIE: VersionId = VersionId(7, attempt(0x700))
NEWEST = 12
#: Versions of which there is a snapshot; the second one reuses buckets of the first.
FIRST_SNAPSHOT, SECOND_SNAPSHOT = 4, 9
BITS = 2
#: Versions whose changes are within their entries: below and above the second snapshot.
INLINE = (8, 11)

#: A value of each kind that an attribute may have.
KINDS: tuple[Value, ...] = ("text", 7, b"bytes", [b"bytes"], {"name": 7})

#: Attributes without a checksum, which no reader of rows needs: they are only shown, or serve clean-up.
NOT_READ = {*(("meta", each) for each in SHOWN), ("schema", "writer"), ("snapshot", "epoch")}
#: Changes of an attribute that say the same, or that other items make up for.
SAYS_THE_SAME = {
    ("list", "versions"): ("reversed", "twice"),  # entries name their versions, and an attempt counts once
    ("meta", "epochs"): ("renamed", "without"),  # a run that is not found gets another epoch
    ("meta", "queries"): ("with 1 ",),  # only runs that read by number need it
    ("meta", "locations"): ("with 1", "without"),  # a run from another location is refused, which loses nothing
}
#: Damage that hides a snapshot, which is harmless while older data exists.
NO_SNAPSHOT = {("snapshot", "item"): ("gone", "moved"), ("snapshot", "stage"): ("is writing", "is deleting")}


class IntactStore(NamedTuple):
    """A whole store: its items, and the state of each version that can be opened."""

    items: dict[Key, Item]
    states: dict[VersionId, State]

    def tables(self, damage: Damage | None = None) -> MemoryTables:
        """Make tables that hold it, damaged or whole."""
        memory = MemoryTables()
        memory.items = dict(self.items)
        if damage is not None:
            damage.apply(memory)
        return memory


@dataclass(frozen=True)
class Damage:
    """One damage: `changes` are the damaged items by their keys, or None for a deleted item."""

    key: Key
    attribute: str
    what: str
    changes: dict[Key, Item | None]

    def apply(self, tables: MemoryTables) -> None:
        """Damage tables."""
        for key, item in self.changes.items():
            if item is None:
                tables.items.pop(key, None)
            else:
                tables.items[key] = item

    @property
    def kind(self) -> str:
        """Kind of the item: part, group, schema, meta, snapshot, manifest or bucket."""
        return kind_of(self.key)

    def __str__(self) -> str:
        return f"{self.key.sort}: {self.attribute} {self.what}"


def is_harmless(damage: Damage, *, cleaned: bool) -> bool:
    place = (damage.kind, damage.attribute)
    is_oldest = damage.key.sort.startswith(f"snapshot/{FIRST_SNAPSHOT:020d}/")
    harmless = SAYS_THE_SAME | ({} if cleaned and is_oldest else NO_SNAPSHOT)
    return place in NOT_READ or any(each in damage.what for each in harmless.get(place, ()))


def lost_list(items: dict[Key, Item], store: str, version: int) -> Damage:
    """The loss of a whole version list: the one that a version lies in."""
    key = version_list_key(store, version)
    assert key in items
    return Damage(key, "item", "gone", {key: None})


def kind_of(key: Key) -> str:
    return "part" if key.role == "delta" else key.sort.split("/")[0]


@cache
def intact_store(*, cleaned: bool) -> IntactStore:
    """Make the store: twelve versions in two groups, a twin, two snapshots that share buckets, rows cut into fragments.

    `cleaned`: data older than the first snapshot is deleted, so there is none to fall back to.
    """
    tables = MemoryTables()
    limits = replace(runtime.limits(), fragment_bytes_max=64)
    with pytest.MonkeyPatch.context() as patch, runtime.using(Runtime(limits=limits)):
        patch.setattr(snapshot_threshold, "threshold_of", lambda *_: 0.0)
        engine = make_engine(tables, parallel_requests=1)
        states = _fill(engine, STORE)
        _fill(engine, OTHER)
        if cleaned:
            engine.maintenance.clean_up(STORE, "run-2", NEWEST, attempt(NEWEST), NEWEST - FIRST_SNAPSHOT, 0, 0)
            version_graph = graph(tables, STORE)
            states = {node: state for node, state in states.items() if version_graph.entry(*node) is not None}
            assert version_graph.versions() == list(range(FIRST_SNAPSHOT + 1, NEWEST + 1))
        engine.close()
    return IntactStore(tables.items, states)


def _fill(engine: Engine, store: str) -> dict[VersionId, State]:
    chance = random.Random(store)  # noqa: S311  # bytes that do not compress, no secret
    states: dict[VersionId, State] = {VersionId(0, NO_ATTEMPT): {}}
    touched: dict[int, set[bytes]] = {}
    newest: VersionId = VersionId(0, NO_ATTEMPT)
    for version in range(1, NEWEST + 1):
        run = "run-1" if version < 8 else "run-2"
        keys = [b"key %d" % chance.randrange(24) for _ in range(0 if version == 5 else 3)]
        changes: dict[bytes, bytes | None]
        changes = {key: chance.choice((None, chance.randbytes(9), chance.randbytes(9))) for key in keys}
        if version == 2:
            full: dict[bytes, bytes | None] = {b"key %d" % number: chance.randbytes(9) for number in range(24)}
            changes = full | {b"": b"", b"long": bytes(99)}
        if version == 3:
            changes[b"long"] = chance.randbytes(150)  # three fragments
        if version == ZOMBIE[0]:
            write(engine, store, ZOMBIE[1], {b"zombie": b"7"}, base=newest, run=run)
            states[ZOMBIE] = states[newest] | {b"zombie": b"7"}
        state = {key: value for key, value in (states[newest] | changes).items() if value is not None}
        listed = list(changes.items())
        chunks = [dict(listed[at : at + 2]) for at in range(0, len(listed), 2)] if version == 3 else [changes]
        engine.commits.inline_bytes = 200 if version in INLINE else 0
        newest = write(engine, store, attempt(version), *filter(None, chunks), base=newest, run=run)
        states[newest], touched[version] = state, set(changes)
        if version in (FIRST_SNAPSHOT, SECOND_SNAPSHOT):
            changed = {key for number in range(FIRST_SNAPSHOT + 1, version + 1) for key in touched[number]}
            save_snapshot(engine, store, newest, state, lambda _, changed=changed: changed, run, BITS)  # type: ignore[misc]  # a default that binds
    del states[VersionId(0, NO_ATTEMPT)]
    return states


def damages(items: dict[Key, Item], seed: int, samples: int) -> Iterator[Damage]:
    """Yield every damage to each item of the store; those of an attribute do not depend on the other attributes.

    Of bytes and texts `samples` places are taken, the first and the last among them; 0: every bit, and every length.
    """
    mine = {key: item for key, item in items.items() if key.store_shard.startswith(f"{STORE}#")}
    for key, item in mine.items():
        yield Damage(key, "item", "gone", {key: None})
        yield from _moved(mine, key, item)
        keys = set(item_key(key))
        for name, value in item.items():
            if name in keys:
                continue
            yield Damage(key, name, "gone", {key: {other: item[other] for other in item if other != name}})
            for other in KINDS:
                if type(other) is not type(value):
                    yield Damage(key, name, f"is {other!r}", {key: item | {name: other}})
            chance = random.Random(f"{seed}/{key.sort}/{name}")  # noqa: S311  # which bytes, no secret
            for what, changed in _changed(value, chance, samples):
                yield Damage(key, name, what, {key: item | {name: changed}})


def _moved(items: dict[Key, Item], key: Key, item: Item) -> Iterator[Damage]:
    """An item under another key: of another of its kind, of another store, shard, version or table."""
    others = [other for other in items if kind_of(other) == kind_of(key) and other != key]
    for other in others[:2]:
        swapped: dict[Key, Item | None] = {key: items[other] | item_key(key), other: item | item_key(other)}
        yield Damage(key, "item", f"swapped with {other.sort}", swapped)
        yield Damage(key, "item", f"replaced by {other.sort}", {key: items[other] | item_key(key)})
    shard = int(key.store_shard.rpartition("#")[2])
    for other in (
        key._replace(store_shard=store_shard(OTHER, shard)),
        key._replace(store_shard=store_shard(STORE, (shard + 1) % SHARDS)),
        key._replace(sort=key.sort[:-1] + chr(ord(key.sort[-1]) ^ 1)),
    ):
        yield Damage(
            key, "item", f"moved to {other.store_shard} {other.sort}", {key: None, other: item | item_key(other)}
        )


def _changed(value: Value, chance: random.Random, samples: int) -> Iterator[tuple[str, Value]]:
    if isinstance(value, bytes):
        yield from _changed_bytes(value, chance, samples)
    elif isinstance(value, str):
        yield "empty", ""
        yield "longer", f"{value}x"
        if value == DONE:
            yield from ((f"is {stage}", stage) for stage in (WRITING, DELETING))
        for place in _places(len(value), chance, samples):
            other = chr(ord(value[place]) ^ 1)
            yield f"with another character at {place}", f"{value[:place]}{other}{value[place + 1 :]}"
            yield f"cut at {place}", value[:place]
    elif isinstance(value, int):
        yield from ((f"is {number}", number) for number in _other_numbers(value))
    elif isinstance(value, list):
        yield from _changed_list(value, chance, samples)
    elif isinstance(value, dict):
        for name, number in value.items():
            yield f"without {name}", {other: value[other] for other in value if other != name}
            yield f"with {name} renamed", {f"{other}x" if other == name else other: value[other] for other in value}
            others = _other_numbers(number) if isinstance(number, int) else ("", f"{number}x")
            for changed in others:
                yield f"with {name} {changed}", value | {name: changed}


def _changed_bytes(value: bytes, chance: random.Random, samples: int) -> Iterator[tuple[str, bytes]]:
    yield "longer", value + b"\x00"
    for place in _places(len(value), chance, samples):
        for bit in range(8) if not samples else [chance.randrange(8)]:
            flipped = bytes([value[place] ^ 1 << bit])
            yield f"with bit {bit} of byte {place} flipped", value[:place] + flipped + value[place + 1 :]
        yield f"cut at {place}", value[:place]


def _changed_list(value: list[bytes], chance: random.Random, samples: int) -> Iterator[tuple[str, list[bytes]]]:
    yield "reversed", value[::-1]
    for place, raw in enumerate(value):
        yield f"cut at {place}", value[:place]
        yield f"without element {place}", [*value[:place], *value[place + 1 :]]
        yield f"with element {place} twice", [*value, raw]
        for what, changed in _changed_bytes(raw, chance, samples):
            yield f"whose element {place} is {what}", [*value[:place], changed, *value[place + 1 :]]


def _other_numbers(value: int) -> list[int]:
    numbers = {value + 1, value - 1, -value, 0, 2, value ^ 4, value * 10, 2**31, 2**63, 2**70, 10**37}
    return sorted(numbers - {value})


def _places(length: int, chance: random.Random, samples: int) -> list[int]:
    if not samples or length <= samples:
        return list(range(length))
    return sorted({0, length - 1, *chance.sample(range(length), samples - 2)})
