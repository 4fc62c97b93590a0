"""Cache of parts, buckets and routes; and reading single buckets and keys."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.embedded import EmbeddedDynamoDB
from dynastate.engine.cache import Cache
from dynastate.engine.engine import Engine
from dynastate.engine.hash_ranges import hash_ranges
from dynastate.engine.opening import HeldChanges
from dynastate.errors import CorruptStateError, VersionMissingError
from dynastate.format import parts
from dynastate.format.changes import key_hash
from dynastate.format.items import FORMAT
from dynastate.format.keys import EMPTY, NO_ATTEMPT, VersionId
from dynastate.storage.meter import Meter
from tests.support.engine_driver import (
    SCHEMA,
    Engines,
    State,
    attempt,
    fold,
    make_engine,
    numbers,
    parts_of,
    read,
    save_snapshot,
    write,
    write_versions,
)
from tests.support.fakes import MemoryTables
from tests.support.fault_proxy import FaultProxy, Forward, Reply, Request, limit_reads

pytestmark = pytest.mark.usefixtures("always_worth_it")

MIB = 1024 * 1024


@pytest.fixture
def tables() -> MemoryTables:
    """Tables in memory."""
    return MemoryTables()


@pytest.fixture
def engine(engines: Engines) -> Engine:
    """One engine with a cache."""
    return engines(cache_bytes=MIB)


def cost_of(engine: Engine, store: str, version: VersionId) -> tuple[State, Meter]:
    """Open a version whole; its rows, and what that cost."""
    opening = engine.open(store, *version)
    return fold(opening.chunks, fold(opening.snapshot_chunks)), opening.meter


# ---------------------------------------------------------------------------------------------------------------- cache


def test_least_recently_used_values_are_evicted() -> None:
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


def test_what_was_committed_here_costs_nothing_to_open(engine: Engine, store: str) -> None:
    """A rollback, a moved partition, a second reader: versions named by their attempts cost no request at all."""
    made = write_versions(engine, store, 30)
    for version in (made[30], made[7], made[1]):
        state, meter = cost_of(engine, store, version)
        assert state == numbers(version[0])
        assert (meter.requests, meter.read_units) == (0, 0)
        assert (meter.cache_hits, meter.cache_misses) == (version[0], 0)


def test_a_version_without_attempt_reads_the_list_each_time(engine: Engine, engines: Engines, store: str) -> None:
    """Another executor may have made the version again in a newer run: the list is read, and only the list."""
    one = write(engine, store, attempt(1), {b"a": b"1"})
    write(engine, store, attempt(2), {b"a": b"2"}, base=one)
    state, meter = cost_of(engine, store, VersionId(2, NO_ATTEMPT))
    assert (state, meter.requests, meter.cache_misses) == ({b"a": b"2"}, 1, 0)
    write(engines(), store, attempt(3), {b"a": b"3"}, base=one, run="run-2")
    assert cost_of(engine, store, VersionId(2, NO_ATTEMPT))[0] == {b"a": b"3"}
    assert cost_of(engine, store, VersionId(2, attempt(2)))[0] == {b"a": b"2"}


def test_what_was_read_costs_nothing_the_next_time(engine: Engine, engines: Engines, store: str) -> None:
    """A second reader on an executor that did not write: a snapshot's buckets and the parts after it, read once."""
    writer = engines()
    made = write_versions(writer, store, 12)
    save_snapshot(writer, store, made[8], read(writer, store, *made[8]))
    state, first = cost_of(engine, store, made[12])
    assert first.cache_hits == 0
    assert first.cache_misses > 4
    again, second = cost_of(engine, store, made[12])
    assert again == state == numbers(12)
    assert (second.requests, second.cache_hits, second.cache_misses) == (0, first.cache_misses, 0)
    for near in (made[8], made[10]):
        assert cost_of(engine, store, near)[1].requests == 0
    # Parts before the snapshot are not on the route.
    assert cost_of(engine, store, made[7])[1].requests > 0


def test_a_snapshot_made_here_costs_nothing_to_open(engine: Engine, store: str) -> None:
    """Its buckets are cached as they are written, and the routes to later versions begin there."""
    made = write_versions(engine, store, 12)
    save_snapshot(engine, store, made[10], read(engine, store, *made[10]))
    opening = engine.open(store, *made[12])
    assert (opening.snapshot, len(opening.entries)) == (10, 2)
    assert fold(opening.chunks, fold(opening.snapshot_chunks)) == numbers(12)
    assert opening.meter.requests == 0
    after = write(engine, store, attempt(13), {b"13": b"13"}, base=made[12])
    assert cost_of(engine, store, after)[1].requests == 0


def test_a_version_on_another_branch_is_looked_up(engine: Engine, store: str) -> None:
    """Only the route to the last version is cached; a version that is not on it is looked up in the list."""
    made = write_versions(engine, store, 5)
    other = write(engine, store, attempt(44), {b"other": b"1"}, base=made[3])
    assert cost_of(engine, store, made[5])[0] == numbers(5)
    expected = {b"1": b"1", b"2": b"2", b"3": b"3", b"other": b"1"}
    assert cost_of(engine, store, other)[0] == expected
    assert cost_of(engine, store, other)[1].requests == 0
    with pytest.raises(VersionMissingError):
        engine.open(store, 5, attempt(44))


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


def test_a_cached_route_is_replaced_after_clean_up(engines: Engines, store: str) -> None:
    """A route with parts that clean-up has deleted is an error once, and is looked up again then."""
    engine = engines(cache_bytes=1)
    engine.known_stores.routes.limit_bytes = MIB
    made = write_versions(engine, store, 10)
    other = engines()
    save_snapshot(other, store, made[9], read(other, store, *made[9]))
    other.clean_up(store, "run-1", *made[10], retain=2, least=1, most=0)
    with pytest.raises(CorruptStateError, match="is not in its table"):
        cost_of(engine, store, made[10])
    assert cost_of(engine, store, made[10])[0] == numbers(10)
    with pytest.raises(VersionMissingError):
        engine.open(store, *made[5])


def test_parts_that_are_corrupt_are_not_kept(
    engine: Engine, engines: Engines, tables: MemoryTables, store: str
) -> None:
    """Only checked parts are cached: a corrupt part is an error each time, until it is repaired."""
    made = write_versions(engines(), store, 3)
    key, item = parts_of(tables, store)[1]
    tables.write([(key, item | {"records": 7})])
    for _ in range(2):
        with pytest.raises(CorruptStateError, match="wrong checksum"):
            cost_of(engine, store, made[3])
    tables.write([(key, item)])
    assert len(cost_of(engine, store, made[3])[0]) == 3


# -------------------------------------------------------------------------------------------------------------- buckets


@pytest.mark.parametrize("cache_bytes", [0, MIB])
@pytest.mark.parametrize("seed", range(5))
def test_buckets_together_are_the_version(engines: Engines, store: str, seed: int, cache_bytes: int) -> None:
    """All buckets of a version together are all its rows, with or without a snapshot."""
    dice = random.Random(seed)  # noqa: S311  # the same rows at every run
    engine = engines(cache_bytes=cache_bytes)
    made, states = [EMPTY], [State()]
    for number in range(1, 13):
        changed: dict[bytes, bytes | None] = {}
        for _ in range(dice.randint(0, 30)):
            key = b"%d" % dice.randrange(100)
            changed[key] = None if dice.random() < 0.3 else b"%d" % dice.randrange(10**6)
        chunks = [dict(sorted(changed.items(), key=lambda pair: key_hash(pair[0])))] if changed else []
        made.append(write(engine, store, attempt(number), *chunks, base=made[-1]))
        states.append({k: v for k, v in (states[-1] | changed).items() if v is not None})
        if dice.random() < 0.2:
            save_snapshot(engine, store, made[-1], states[-1])
    for number in dice.sample(range(1, 13), 4):
        found = engine.find(store, *made[number])
        assert found.entry.id == made[number]
        assert (found.entry.keys, found.schema) == ({0: 0}, SCHEMA)
        for bits in (0, 2, 3, 5):
            together: State = {}
            for bucket in range(1 << bits):
                ((low, high),) = hash_ranges(bits, [bucket])
                opening = engine.buckets(store, *made[number], bits, [bucket])
                read = fold(opening.chunks, fold(opening.snapshot_chunks))
                together |= {key: value for key, value in read.items() if low <= key_hash(key) <= high}
            assert together == states[number]


def test_a_bucket_reads_only_its_own_items(engines: Engines, store: str) -> None:
    """Only items of the bucket are read from a snapshot; chunks with other hashes are skipped."""
    writer = engines()
    keys = sorted((b"%d" % n for n in range(64)), key=key_hash)
    chunks = [dict.fromkeys(keys[at : at + 8], b"1") for at in range(0, 64, 8)]
    one = write(writer, store, attempt(1), *chunks)
    opening = writer.buckets(store, *one, 3, [5])
    ((low, high),) = hash_ranges(3, [5])
    handed_on = fold(opening.chunks)
    assert len(handed_on) < 64
    assert {k for k in keys if low <= key_hash(k) <= high} <= set(handed_on)
    save_snapshot(writer, store, one, fold(writer.open(store, *one).chunks))
    opening = writer.buckets(store, *one, 3, [5])
    assert {k for k in keys if low <= key_hash(k) <= high} == set(fold(opening.snapshot_chunks))
    assert opening.meter.items_read == opening.meter.cache_misses + 5, "the group, meta, schema, snapshot and manifest"
    assert opening.meter.cache_misses == 1


@pytest.mark.parametrize("seed", range(5))
def test_changes_that_are_held_are_not_sent_again(engines: Engines, store: str, seed: int) -> None:
    """Rows of the snapshot, the held changes after it, and what is sent are the version; or nothing held is used."""
    dice = random.Random(seed)  # noqa: S311  # the same rows at every run
    engine = engines()
    made, states, snapshot = [EMPTY], [State()], 5
    for number in range(1, 13):
        changed = {b"%d" % dice.randrange(100): b"%d %d" % (number, at_) for at_ in range(20)}
        made.append(write(engine, store, attempt(number), changed, base=made[-1]))
        states.append(states[-1] | changed)
        if number == snapshot:
            save_snapshot(engine, store, made[-1], states[-1])
    for other in (engine, engines()):
        for upto in (snapshot + 1, 9, 12):
            for wanted in ([0], [1, 2], [0, 1, 2, 3]):
                held = HeldChanges(snapshot, made[upto])
                opening = other.buckets(store, *made[12], 2, wanted, held)
                assert (opening.snapshot, opening.after, opening.applies_held) == (snapshot, upto, True)
                assert [entry.version for entry in opening.entries] == list(range(upto + 1, 13))
                state = fold(opening.snapshot_chunks)
                for _, chunks in other.changes(store, snapshot + 1, *made[upto]).versions:
                    state = fold(chunks, state)
                state = fold(opening.chunks, state)
                there = {key: value for key, value in state.items() if key_hash(key) >> 30 in wanted}
                assert there == {key: value for key, value in states[12].items() if key_hash(key) >> 30 in wanted}
        for held in (HeldChanges(3, made[9]), HeldChanges(snapshot, VersionId(9, attempt(99)))):
            opening = other.buckets(store, *made[12], 2, [0], held)
            assert (opening.after, opening.applies_held) == (snapshot, False)
        opening = other.buckets(store, *made[8], 2, [0], HeldChanges(snapshot, made[9]))
        assert (opening.after, opening.applies_held) == (snapshot, False), "newer"
        assert not other.buckets(store, *made[12], 2, [0]).applies_held, "nothing is held"
    # Snapshots of the very version up to which changes are held, and of a later one: their rows have the changes.
    for newer in (9, 11):
        save_snapshot(engine, store, made[newer], states[newer])
        for other in (engine, engines()):
            opening = other.buckets(store, *made[12], 2, [0], HeldChanges(snapshot, made[9]))
            assert (opening.snapshot, opening.after, opening.applies_held) == (newer, newer, False)


def test_of_many_parts_a_bucket_reads_those_that_may_hold_its_rows(engines: Engines, store: str) -> None:
    """The parts whose bounds touch the buckets, and no others."""
    made, state = write_large(engines(), store)
    reader = engines(cache_bytes=MIB)
    first = reader.buckets(store, *made, 3, [5])
    assert len(fold(first.chunks)) < len(state) / 2
    assert first.meter.cache_misses < CHUNKS
    second = reader.buckets(store, *made, 3, [0, 7])
    found = fold(second.chunks)
    assert second.meter.items_read == second.meter.cache_misses < CHUNKS
    assert {key for key in state if key_hash(key) >> 29 in (0, 7)} <= set(found)
    again = reader.buckets(store, *made, 3, [5])
    assert fold(again.chunks) == fold(reader.buckets(store, *made, 3, [5]).chunks)
    assert again.meter.requests == 0


def test_hashes_of_buckets_are_few_ranges() -> None:
    """Neighbours are one range."""
    assert hash_ranges(2, [3, 0, 1]) == [(0, 2**31 - 1), (3 << 30, 2**32 - 1)]
    assert hash_ranges(0, [0]) == [(0, 2**32 - 1)]


def test_finding_a_version_reads_no_part(engine: Engine, engines: Engines, store: str) -> None:
    """Opening without rows costs one Query, and then nothing."""
    made = write_versions(engines(), store, 20)
    found = engine.find(store, *made[20])
    assert (found.meter.requests, found.meter.cache_misses) == (1, 0)
    assert (list(found.chunks), list(found.snapshot_chunks)) == ([], [])
    assert engine.find(store, *made[20]).meter.requests == 0
    with pytest.raises(VersionMissingError):
        engine.find(store, 21, NO_ATTEMPT)
    assert found.base == EMPTY


# ----------------------------------------------------------------------------------------------------------------- keys

CHUNKS = 12


def write_large(engine: Engine, store: str) -> tuple[VersionId, State]:
    """Two versions of many parts each, in the order of their hashes, and one of a single row."""
    names = sorted((b"%d" % number for number in range(600)), key=key_hash)
    step = len(names) // CHUNKS
    made, state = EMPTY, State()
    for number in (1, 2):
        changes = {name: b"%d of %d" % (number, at_) for at_, name in enumerate(names) if at_ % 3 != number}
        listed = [{k: changes[k] for k in names[a : a + step] if k in changes} for a in range(0, len(names), step)]
        made = write(engine, store, attempt(number), *listed, base=made)
        state |= changes
    made = write(engine, store, attempt(3), {b"7": b"last", b"8": None}, base=made)
    del state[b"8"]
    return made, state | {b"7": b"last"}


def looked_up(engine: Engine, store: str, version: VersionId, key: bytes) -> tuple[bytes | None, Meter]:
    """The value of a key, and what reading it cost."""
    opening = engine.lookup(store, *version, key_hash(key))
    return fold(opening.chunks, fold(opening.snapshot_chunks)).get(key), opening.meter


def test_a_lookup_reads_only_parts_that_may_hold_the_key(engines: Engines, store: str) -> None:
    """A part of each version; the same rows as by reading all."""
    made, state = write_large(engines(), store)
    engine = engines(cache_bytes=MIB)
    found, meter = looked_up(engine, store, made, b"5")
    assert found == state[b"5"]
    assert meter.cache_misses <= 5
    assert meter.items_read == meter.cache_misses + 3  # lists, meta and schema
    for number in range(601):
        name = b"%d" % number
        found, meter = looked_up(engine, store, made, name)
        assert found == state.get(name)
        assert meter.requests <= 1
    assert looked_up(engine, store, made, b"5")[1].requests == 0


def test_parts_that_may_hold_a_key_must_be_those_of_the_entry(
    engines: Engines, tables: MemoryTables, store: str
) -> None:
    """A lost or corrupt one is an error, and one with other bounds, under which rows would not be found."""
    made, _ = write_large(engines(), store)
    listed = {key: item for key, item in parts_of(tables, store) if key.sort.startswith("0" * 19 + "1")}
    digest = key_hash(b"5")
    near = next(
        key for key, item in listed.items() if int(str(item["hash_min"])) <= digest <= int(str(item["hash_max"]))
    )
    fields = tuple(listed[near][name] for name in parts._FIELDS)
    item, data = listed[near], listed[near]["data"]
    assert isinstance(data, bytes)
    moved = (*fields[:-2], 0, 2**32 - 1)
    bounds = {"hash_min": 0, "hash_max": 2**32 - 1, "crc32": parts._part_crc(near, moved, data)}
    for damage in (None, {"crc32": 7}, {"format": FORMAT + 1}, {"hash_max": b"x"}, bounds):
        tables.items.pop(near)
        if damage is not None:
            tables.items[near] = item | damage
        said = "other bounds than its version entry" if damage is bounds else None
        with pytest.raises(CorruptStateError, match=said):
            looked_up(engines(), store, made, b"5")
        with pytest.raises(CorruptStateError, match=said):
            read(engines(), store, *made)
        tables.items[near] = item
    assert looked_up(engines(), store, made, b"5")[0] is not None


def test_a_chunk_is_whole_though_the_cache_has_lost_a_fragment(engines: Engines, store: str) -> None:
    """A chunk with some fragments in the cache is read completely."""
    dice = random.Random(6)  # noqa: S311  # bytes that cannot be compressed
    first, last = sorted((b"a", b"b"), key=key_hash)
    state = {first: dice.randbytes(500_000), last: dice.randbytes(200_000)}
    writing = engines()
    one = write(writing, store, attempt(1), {first: state[first]}, {last: state[last]})
    two = write(writing, store, attempt(2), {b"c": dice.randbytes(360_000)}, base=one)
    engine = engines(cache_bytes=MIB)
    for version, key in ((one, first), (two, b"c"), (two, last), (two, first), (one, last)):
        found, _ = looked_up(engine, store, version, key)
        assert key == b"c" or found == state[key]


@pytest.mark.parametrize(("shards", "part_bytes"), [(4, 200_000), (1, 260_000), (64, 380_000)])
@pytest.mark.usefixtures("dummy_credentials")
def test_no_request_asks_for_more_than_dynamodb_answers(
    embedded: EmbeddedDynamoDB, store: str, shards: int, part_bytes: int
) -> None:
    """BatchGetItem answers with 1 MB of a partition key and 16 MB in all: larger windows look like throttles."""
    count = 60
    unprocessed = []

    def rule(request: Request, forward: Forward) -> Reply:
        reply = limit_reads(request, forward)
        unprocessed.append(json.loads(reply.raw).get("UnprocessedKeys"))
        return reply

    with FaultProxy(embedded.endpoint, rule) as proxy:
        tables = BotoTables(replace(embedded.settings, endpoint=proxy.endpoint))
        engine = make_engine(tables, shards=shards)
        dice = random.Random(7)  # noqa: S311  # bytes that cannot be compressed
        state = {b"%d" % number: dice.randbytes(part_bytes) for number in range(count)}
        made = write(engine, store, attempt(1), *({key: value} for key, value in state.items()))
        assert read(engine, store, *made) == state
        assert looked_up(engine, store, made, b"1")[0] == state[b"1"]
        engine.close()
        tables.close()
    assert not any(unprocessed)
