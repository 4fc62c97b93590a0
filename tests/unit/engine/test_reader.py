"""What an executor keeps of parts, buckets and the ways to versions; and reading single buckets."""

from __future__ import annotations

import random

import pytest

from dynastate import layout, rows
from dynastate.cache import Cache
from dynastate.errors import CorruptStateError, VersionMissingError
from dynastate.layout import NO_ATTEMPT
from dynastate.reader import hash_range
from dynastate.store import Engine
from dynastate.tables import Meter
from tests.fakes import MemoryTables
from tests.states import (
    EMPTY,
    SCHEMA,
    Engines,
    State,
    Version,
    attempt,
    fold,
    parts_of,
    read,
    take_snapshot,
    write,
    write_versions,
)

pytestmark = pytest.mark.usefixtures("always_worth_it")

MIB = 1024 * 1024


@pytest.fixture
def tables() -> MemoryTables:
    """Tables in memory."""
    return MemoryTables()


@pytest.fixture
def at(engines: Engines) -> Engine:
    """One engine that keeps what it reads and writes."""
    return engines(cache_bytes=MIB)


def cost_of(at: Engine, store: str, version: Version, by: bytes | None = None) -> tuple[State, Meter]:
    """Open a version whole; its rows, and what that cost."""
    opening = at.open(store, version[0], version[1] if by is None else NO_ATTEMPT)
    return fold(opening.chunks, fold(opening.snapshot_chunks)), opening.meter


def everything(_: int) -> set[bytes]:
    return {b"%d" % number for number in range(200)}


def snapshot_of(at: Engine, store: str, version: Version, state: State) -> None:
    under_way = take_snapshot(at, store, version, state, everything)
    assert under_way is not None
    assert under_way.commit()


# ---------------------------------------------------------------------------------------------------------------- cache


def test_the_least_recently_used_give_way() -> None:
    """A cache holds what was used last, up to its bytes; a value that is larger than all of it is not held."""
    cache: Cache[str, int] = Cache(10)
    for number, key in enumerate("abc"):
        cache.put(key, number, 4)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), cache.bytes) == (None, 1, 2, 8)
    assert cache.get("b") == 1
    cache.put("d", 3, 4)
    assert (cache.get("b"), cache.get("c"), cache.get("d")) == (1, None, 3)
    cache.put("b", 7, 11)
    assert (cache.get("b"), cache.get("d"), cache.bytes) == (None, 3, 4)
    cache.put("d", 4, 2)
    assert (cache.get("d"), cache.bytes) == (4, 2)
    cache.drop("d")
    cache.drop("d")
    assert (cache.get("d"), cache.bytes) == (None, 0)


def test_what_was_committed_here_costs_nothing_to_open(at: Engine, store: str) -> None:
    """A rollback, a moved partition, a second reader: versions named by their attempts cost no request at all."""
    made = write_versions(at, store, 30)
    for version in (made[30], made[7], made[1]):
        state, meter = cost_of(at, store, version)
        assert state == {b"%d" % n: b"%d" % n for n in range(1, version[0] + 1)}
        assert (meter.requests, meter.read_units) == (0, 0)
        assert (meter.cache_hits, meter.cache_misses) == (version[0], 0)


def test_a_bare_number_is_asked_for_each_time(at: Engine, engines: Engines, store: str) -> None:
    """Another executor may have made the version anew, by a newer run: the list is read, and only the list."""
    one = write(at, store, attempt(1), {b"a": b"1"})
    write(at, store, attempt(2), {b"a": b"2"}, base=one)
    state, meter = cost_of(at, store, (2, NO_ATTEMPT))
    assert (state, meter.requests, meter.cache_misses) == ({b"a": b"2"}, 1, 0)
    write(engines(), store, attempt(3), {b"a": b"3"}, base=one, run="run-2")
    assert cost_of(at, store, (2, NO_ATTEMPT))[0] == {b"a": b"3"}
    assert cost_of(at, store, (2, attempt(2)))[0] == {b"a": b"2"}


def test_what_was_read_costs_nothing_the_next_time(at: Engine, engines: Engines, store: str) -> None:
    """A second reader on an executor that did not write: a snapshot's buckets and the parts after it, read once."""
    writer = engines()
    made = write_versions(writer, store, 12)
    snapshot_of(writer, store, made[8], read(writer, store, *made[8]))
    state, first = cost_of(at, store, made[12])
    assert first.cache_hits == 0
    assert first.cache_misses > 4
    again, second = cost_of(at, store, made[12])
    assert again == state == {b"%d" % n: b"%d" % n for n in range(1, 13)}
    assert (second.requests, second.cache_hits, second.cache_misses) == (0, first.cache_misses, 0)
    for near in (made[8], made[10]):
        assert cost_of(at, store, near)[1].requests == 0
    # What lies before the snapshot is not on the way.
    assert cost_of(at, store, made[7])[1].requests > 0


def test_a_snapshot_made_here_costs_nothing_to_open(at: Engine, store: str) -> None:
    """Its buckets are kept as they are written, and the ways to versions after it begin there."""
    made = write_versions(at, store, 12)
    snapshot_of(at, store, made[10], read(at, store, *made[10]))
    opening = at.open(store, *made[12])
    assert (opening.snapshot, len(opening.entries)) == (10, 2)
    assert fold(opening.chunks, fold(opening.snapshot_chunks)) == {b"%d" % n: b"%d" % n for n in range(1, 13)}
    assert opening.meter.requests == 0
    # Versions go on from there.
    after = write(at, store, attempt(13), {b"13": b"13"}, base=made[12])
    assert cost_of(at, store, after)[1].requests == 0


def test_a_version_on_another_branch_is_looked_up(at: Engine, store: str) -> None:
    """The way that is known is that of the last; a version that is not on it, by its attempt, is read of the list."""
    made = write_versions(at, store, 5)
    other = write(at, store, attempt(44), {b"other": b"1"}, base=made[3])
    assert cost_of(at, store, made[5])[0] == {b"%d" % n: b"%d" % n for n in range(1, 6)}
    expected = {b"1": b"1", b"2": b"2", b"3": b"3", b"other": b"1"}
    assert cost_of(at, store, other)[0] == expected
    assert cost_of(at, store, other)[1].requests == 0
    with pytest.raises(VersionMissingError):
        at.open(store, 5, attempt(44))


def test_without_room_nothing_is_kept(engines: Engines, store: str) -> None:
    """`cacheMb` 0: every open reads; and state that is larger than the cache does not pass through it."""
    none = engines(cache_bytes=0)
    made = write_versions(none, store, 3)
    for _ in range(2):
        meter = cost_of(none, store, made[3])[1]
        assert (meter.requests, meter.cache_hits, meter.cache_misses) == (2, 0, 3)
    little = engines(cache_bytes=2 * 600)
    assert cost_of(little, store, made[1])[1].cache_misses == 1
    assert cost_of(little, store, made[1])[1].cache_hits == 1
    assert cost_of(little, store, made[3])[1].cache_hits == 1
    assert cost_of(little, store, made[1])[1].cache_hits == 1


def test_a_way_that_clean_up_cut_is_looked_up_anew(engines: Engines, store: str) -> None:
    """An executor that still knows the way to a version of which clean-up took parts says so once, and then knows."""
    at = engines(cache_bytes=1)
    at._reader._routes.limit_bytes = MIB
    made = write_versions(at, store, 10)
    other = engines()
    snapshot_of(other, store, made[9], read(other, store, *made[9]))
    other.clean_up(store, "run-1", *made[10], retain=2, least=1, most=0)
    with pytest.raises(CorruptStateError, match="is not in its table"):
        cost_of(at, store, made[10])
    assert cost_of(at, store, made[10])[0] == {b"%d" % n: b"%d" % n for n in range(1, 11)}
    with pytest.raises(VersionMissingError):
        at.open(store, *made[5])


def test_parts_that_are_broken_are_not_kept(at: Engine, engines: Engines, tables: MemoryTables, store: str) -> None:
    """What is kept has been checked: a broken part is an error each time, until it is whole again."""
    made = write_versions(engines(), store, 3)
    key, item = parts_of(tables, store)[1]
    tables.write([(key, item | {"records": 7})], Meter())
    for _ in range(2):
        with pytest.raises(CorruptStateError, match="wrong checksum"):
            cost_of(at, store, made[3])
    tables.write([(key, item)], Meter())
    assert len(cost_of(at, store, made[3])[0]) == 3


# -------------------------------------------------------------------------------------------------------------- buckets


@pytest.mark.parametrize("cache_bytes", [0, MIB])
@pytest.mark.parametrize("seed", range(5))
def test_buckets_together_are_the_version(engines: Engines, store: str, seed: int, cache_bytes: int) -> None:
    """In however many buckets a version is read, with a snapshot or without one: together they are all its rows."""
    dice = random.Random(seed)  # noqa: S311  # the same rows at every run
    at = engines(cache_bytes=cache_bytes)
    made, states = [EMPTY], [State()]
    for number in range(1, 13):
        changed: dict[bytes, bytes | None] = {}
        for _ in range(dice.randint(0, 30)):
            key = b"%d" % dice.randrange(100)
            changed[key] = None if dice.random() < 0.3 else b"%d" % dice.randrange(10**6)
        chunks = [dict(sorted(changed.items(), key=lambda pair: rows.key_hash(pair[0])))] if changed else []
        made.append(write(at, store, attempt(number), *chunks, base=made[-1]))
        states.append({k: v for k, v in (states[-1] | changed).items() if v is not None})
        if dice.random() < 0.2:
            snapshot_of(at, store, made[-1], states[-1])
    for number in dice.sample(range(1, 13), 4):
        found = at.find(store, *made[number])
        assert (found.version, found.attempt) == made[number]
        assert (found.entry.keys, found.schema) == ({0: 0}, SCHEMA)
        for bits in (0, 2, 3, 5):
            together: State = {}
            for bucket in range(1 << bits):
                low, high = hash_range(bits, bucket)
                opening = at.bucket(store, *made[number], bits, bucket)
                read = fold(opening.chunks, fold(opening.snapshot_chunks))
                together |= {key: value for key, value in read.items() if low <= rows.key_hash(key) <= high}
            assert together == states[number]


def test_a_bucket_reads_only_its_own_items(engines: Engines, store: str) -> None:
    """Of a snapshot one bucket's items; of chunks with other hashes nothing is handed on."""
    writer = engines()
    keys = sorted((b"%d" % n for n in range(64)), key=rows.key_hash)
    chunks = [dict.fromkeys(keys[at : at + 8], b"1") for at in range(0, 64, 8)]
    one = write(writer, store, attempt(1), *chunks)
    opening = writer.bucket(store, *one, 3, 5)
    low, high = hash_range(3, 5)
    handed_on = fold(opening.chunks)
    assert len(handed_on) < 64
    assert {k for k in keys if low <= rows.key_hash(k) <= high} <= set(handed_on)
    snapshot_of(writer, store, one, fold(writer.open(store, *one).chunks))
    opening = writer.bucket(store, *one, 3, 5)
    assert {k for k in keys if low <= rows.key_hash(k) <= high} == set(fold(opening.snapshot_chunks))
    assert opening.meter.items_read == opening.meter.cache_misses + 5, "the group, meta, schema, snapshot and directory"
    assert opening.meter.cache_misses == 1


def test_finding_a_version_reads_no_part(at: Engine, engines: Engines, store: str) -> None:
    """Opening without rows costs one Query, and then nothing."""
    made = write_versions(engines(), store, 20)
    found = at.find(store, *made[20])
    assert (found.meter.requests, found.meter.cache_misses) == (1, 0)
    assert (list(found.chunks), list(found.snapshot_chunks)) == ([], [])
    assert at.find(store, *made[20]).meter.requests == 0
    with pytest.raises(VersionMissingError):
        at.find(store, 21, NO_ATTEMPT)
    assert found.base == layout.EMPTY


# ----------------------------------------------------------------------------------------------------------------- keys

CHUNKS = 12


def write_large(at: Engine, store: str) -> tuple[Version, State]:
    """Two versions of many parts each, in the order of their hashes, and one of a single row."""
    names = sorted((b"%d" % number for number in range(600)), key=rows.key_hash)
    step = len(names) // CHUNKS
    made, state = EMPTY, State()
    for number in (1, 2):
        changes = {name: b"%d of %d" % (number, at_) for at_, name in enumerate(names) if at_ % 3 != number}
        listed = [{k: changes[k] for k in names[a : a + step] if k in changes} for a in range(0, len(names), step)]
        made = write(at, store, attempt(number), *listed, base=made)
        state |= changes
    made = write(at, store, attempt(3), {b"7": b"last", b"8": None}, base=made)
    del state[b"8"]
    return made, state | {b"7": b"last"}


def looked_up(at: Engine, store: str, version: Version, key: bytes) -> tuple[bytes | None, Meter]:
    """What a key has, and what it cost."""
    opening = at.lookup(store, *version, rows.key_hash(key))
    return fold(opening.chunks, fold(opening.snapshot_chunks)).get(key), opening.meter


def test_of_many_parts_those_are_read_that_may_hold_the_key(engines: Engines, store: str) -> None:
    """The bounds of all of them once, then a part of each version; the same rows as by reading all."""
    made, state = write_large(engines(), store)
    at = engines(cache_bytes=MIB)
    found, meter = looked_up(at, store, made, b"5")
    assert found == state[b"5"]
    assert meter.cache_misses <= 3
    assert meter.items_read <= 2 * CHUNKS + 1 + 3 + 4  # bounds of all, parts of each version; lists, meta and schema
    for number in range(601):
        name = b"%d" % number
        found, meter = looked_up(at, store, made, name)
        assert found == state.get(name)
        assert meter.requests <= 1
    # Where all bounds are known nothing is asked for twice.
    assert looked_up(at, store, made, b"5")[1].requests == 0


def test_parts_that_are_passed_over_must_be_there(engines: Engines, tables: MemoryTables, store: str) -> None:
    """A part that is lost, or that is another's, is an error though the key cannot be in it."""
    made, _ = write_large(engines(), store)
    listed = {key: item for key, item in parts_of(tables, store) if key.sort.startswith("0" * 19 + "1")}
    far = next(key for key, item in listed.items() if int(str(item["hash_min"])) > rows.key_hash(b"5"))
    for damage in (None, {"crc32": 7}, {"format": 2}, {"hash_max": b"x"}):
        item = tables.items.pop(far)
        if damage is not None:
            tables.items[far] = item | damage
        with pytest.raises(CorruptStateError):
            looked_up(engines(cache_bytes=MIB), store, made, b"5")
        tables.items[far] = item
    assert looked_up(engines(cache_bytes=MIB), store, made, b"5")[0] is not None


def test_a_chunk_is_whole_though_the_cache_has_lost_a_fragment(engines: Engines, store: str) -> None:
    """What is known of one fragment, and not of another, says nothing of the chunks beside it."""
    dice = random.Random(6)  # noqa: S311  # bytes that cannot be compressed
    first, last = sorted((b"a", b"b"), key=rows.key_hash)
    state = {first: dice.randbytes(500_000), last: dice.randbytes(200_000)}
    writing = engines()
    one = write(writing, store, attempt(1), {first: state[first]}, {last: state[last]})
    two = write(writing, store, attempt(2), {b"c": dice.randbytes(360_000)}, base=one)
    at = engines(cache_bytes=MIB)
    for version, key in ((one, first), (two, b"c"), (two, last), (two, first), (one, last)):
        found, _ = looked_up(at, store, version, key)
        assert key == b"c" or found == state[key]


def test_a_row_in_many_parts_is_looked_up(engines: Engines, store: str) -> None:
    """A chunk that is cut into fragments comes whole, beside others that are passed over."""
    dice = random.Random(5)  # noqa: S311  # bytes that cannot be compressed
    large = dice.randbytes(900_000)
    names = sorted((b"%d" % number for number in range(40)), key=rows.key_hash)
    changes = [{name: large if name == b"3" else name} for name in names]
    made = write(engines(), store, attempt(1), *changes)
    at = engines(cache_bytes=8 * MIB)
    assert looked_up(at, store, made, b"3")[0] == large
    assert looked_up(at, store, made, b"4")[0] == b"4"
