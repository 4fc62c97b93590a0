"""Opening a version: which attempt, and what is read of it; its buckets and single keys."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.embedded import EmbeddedDynamoDB
from dynastate.engine.engine import Engine
from dynastate.engine.hash_ranges import hash_ranges
from dynastate.engine.opening import HeldChanges
from dynastate.errors import CorruptStateError, RouteInvalidError, VersionMissingError
from dynastate.format import parts
from dynastate.format.changes import key_hash
from dynastate.format.items import FORMAT
from dynastate.format.keys import EMPTY, NO_ATTEMPT, Key, VersionId, store_shard
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables
from tests.support.contents import buckets_of, graph, items_of, parts_of
from tests.support.engine_driver import Engines, begin, fold, make_engine, read, save_snapshot, write, write_versions
from tests.support.fault_proxy import FaultProxy, Forward, Reply, Request, limit_reads
from tests.support.memory_tables import MemoryTables
from tests.support.samples import SCHEMA, SHARDS, A, B, C, State, Z, attempt, numbers

pytestmark = pytest.mark.usefixtures("always_worth_it")

MIB = 1024 * 1024


CHUNKS = 12


def write_large(engine: Engine, store: str) -> tuple[VersionId, State]:
    """Two versions of many parts each, in the order of their hashes, and one of a single row."""
    names = sorted((b"%d" % number for number in range(600)), key=key_hash)
    step = len(names) // CHUNKS
    version, state = EMPTY, State()
    for number in (1, 2):
        changes = {name: b"%d of %d" % (number, at_) for at_, name in enumerate(names) if at_ % 3 != number}
        listed = [{k: changes[k] for k in names[a : a + step] if k in changes} for a in range(0, len(names), step)]
        version = write(engine, store, attempt(number), *listed, base=version)
        state |= changes
    version = write(engine, store, attempt(3), {b"7": b"last", b"8": None}, base=version)
    del state[b"8"]
    return version, state | {b"7": b"last"}


def looked_up(engine: Engine, store: str, version: VersionId, key: bytes) -> tuple[bytes | None, Meter]:
    opening = engine.lookup(store, *version, key_hash(key))
    return fold(opening.chunks, fold(opening.snapshot_chunks)).get(key), opening.meter


def damage(tables: Tables, store: str, kind: str) -> str:
    """Break or delete an item of the only snapshot, by the prefix of its key; return the sort key of the item."""
    names = buckets_of(tables, store) if "bucket" in kind else list(items_of(tables, store))
    name = next(each for each in names if each.startswith(kind.split()[1]))
    for shard in range(SHARDS):
        key = Key("snapshot", store_shard(store, shard), name)
        item = tables.get([key]).get(key)
        if item is not None and kind.startswith("lost"):
            tables.delete([key])
        elif item is not None:
            tables.write([(key, item | {"digest": b"another"} | {"data": b"other bytes"})])
    return name


def test_without_an_id_the_last_appended_of_equals_wins(engine: Engine, store: str) -> None:
    """Checkpoint format v1: of two attempts of one run the one that committed last counts."""
    write(engine, store, A, {b"by": b"A"})
    write(engine, store, B, {b"by": b"B"})
    assert read(engine, store, 1) == {b"by": b"B"}


def test_with_an_id_only_that_attempt_is_opened(engine: Engine, store: str) -> None:
    """Checkpoint format v2: the attempt the driver names is opened, whatever came later, and no other in its place."""
    write(engine, store, A, {b"by": b"A"})
    write(engine, store, B, {b"by": b"B"}, run="run-2")
    assert read(engine, store, 1, A) == {b"by": b"A"}
    assert engine.open(store, 1, A).entry.attempt == A
    with pytest.raises(VersionMissingError, match=f"not by that attempt store={store} version=1 attempt={C.hex()}"):
        engine.open(store, 1, C)


def test_a_late_zombie_changes_no_later_version(engine: Engine, store: str) -> None:
    """A task that was replaced commits after the next version was made: that version's lineage does not include it."""
    base = write(engine, store, A, {b"kept": b"1", b"gone": b"1"})
    zombie = begin(engine, store, Z, {b"gone": b"zombie", b"zombie": b"1"}, base=base)
    two = write(engine, store, B, {b"gone": None}, base=base)
    three = write(engine, store, C, {b"new": b"1"}, base=two)
    zombie.commit({0: 3}, SCHEMA)
    assert read(engine, store, *three) == read(engine, store, 3) == {b"kept": b"1", b"new": b"1"}
    assert read(engine, store, *two) == {b"kept": b"1"}
    assert read(engine, store, 3, NO_ATTEMPT, [two]) == {b"new": b"1"}


def test_only_what_is_missing_is_loaded(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """A provider that holds an older version gets the changes after it; for the newest, only the list is read."""
    versions = write_versions(memory_engine, store, 25)
    memory.calls.clear()
    opening = memory_engine.open(store, 25, NO_ATTEMPT, [versions[3], versions[22], versions[20]])
    assert opening.base == versions[22]
    assert fold(opening.chunks) == {b"23": b"23", b"24": b"24", b"25": b"25"}
    assert [len(call.keys) for call in memory.called("get")] == [3]
    assert [call.keys[0].sort for call in memory.called("query")] == ["list/0000000000000002"]
    assert opening.meter.items_read == 3 + 3, "three parts; the group, meta and schema"
    memory.calls.clear()
    opening = memory_engine.open(store, 25, NO_ATTEMPT, [versions[25]])
    assert (opening.entry.id, opening.base) == (versions[25], versions[25])
    assert list(opening.chunks) == []
    assert [call.verb for call in memory.calls] == ["query"]


def test_a_version_held_by_another_attempt_is_no_base(engine: Engine, store: str) -> None:
    """A held version counts only if it is in the lineage, not if another attempt or run made it."""
    versions = write_versions(engine, store, 12)
    other = write(engine, store, A, {b"other": b"1"}, base=versions[11], run="run-2")
    assert engine.open(store, 12, NO_ATTEMPT, [versions[12]]).base == EMPTY
    assert engine.open(store, 12, NO_ATTEMPT, [versions[12], versions[11]]).base == versions[11]
    assert read(engine, store, 12, NO_ATTEMPT, [versions[12]])[b"other"] == b"1"
    assert read(engine, store, *versions[12], [other]) == numbers(12)
    assert read(engine, store, 4, NO_ATTEMPT, versions[10:]) == numbers(4), "a rollback below all that is held"


def test_a_missing_version_names_all_that_are_there(engine: Engine, store: str) -> None:
    """The error names every version, also if only the newest lists had to be read; without any, what to set."""
    versions = write_versions(engine, store, 23)
    for have in ((), (versions[21],)):
        with pytest.raises(
            VersionMissingError, match=rf"does not exist store={store} version=24 versions=1-23 table=snapshot "
        ):
            engine.open(store, 24, NO_ATTEMPT, have)
    with pytest.raises(VersionMissingError, match=r"version=99 versions=1-23 table=snapshot "):
        engine.open(store, 99, NO_ATTEMPT, [VersionId(95, A)])
    with pytest.raises(VersionMissingError, match=rf"dynastate\.namespace .*store={store}0 version=7"):
        engine.open(f"{store}0", 7, NO_ATTEMPT, [VersionId(6, A)])


@pytest.mark.parametrize("cache_bytes", [0, MIB])
@pytest.mark.parametrize("seed", range(5))
def test_buckets_together_are_the_version(engines: Engines, store: str, seed: int, cache_bytes: int) -> None:
    dice = random.Random(seed)  # noqa: S311  # the same rows at every run
    engine = engines(cache_bytes=cache_bytes)
    versions, states = [EMPTY], [State()]
    for number in range(1, 13):
        changed: dict[bytes, bytes | None] = {}
        for _ in range(dice.randint(0, 30)):
            key = b"%d" % dice.randrange(100)
            changed[key] = None if dice.random() < 0.3 else b"%d" % dice.randrange(10**6)
        chunks = [dict(sorted(changed.items(), key=lambda pair: key_hash(pair[0])))] if changed else []
        versions.append(write(engine, store, attempt(number), *chunks, base=versions[-1]))
        states.append({k: v for k, v in (states[-1] | changed).items() if v is not None})
        if dice.random() < 0.2:
            save_snapshot(engine, store, versions[-1], states[-1])
    for number in dice.sample(range(1, 13), 4):
        version_only = engine.find(store, *versions[number])
        assert version_only.entry.id == versions[number]
        assert (version_only.entry.keys, version_only.schema) == ({0: 0}, SCHEMA)
        for bits in (0, 2, 3, 5):
            together: State = {}
            for bucket in range(1 << bits):
                ((low, high),) = hash_ranges(bits, [bucket])
                opening = engine.buckets(store, *versions[number], bits, [bucket])
                read = fold(opening.chunks, fold(opening.snapshot_chunks))
                together |= {key: value for key, value in read.items() if low <= key_hash(key) <= high}
            assert together == states[number]


def test_a_bucket_reads_only_its_own_items(engines: Engines, store: str) -> None:
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
    versions, states, snapshot = [EMPTY], [State()], 5
    for number in range(1, 13):
        changed = {b"%d" % dice.randrange(100): b"%d %d" % (number, at_) for at_ in range(20)}
        versions.append(write(engine, store, attempt(number), changed, base=versions[-1]))
        states.append(states[-1] | changed)
        if number == snapshot:
            save_snapshot(engine, store, versions[-1], states[-1])
    for other in (engine, engines()):
        for upto in (snapshot + 1, 9, 12):
            for buckets in ([0], [1, 2], [0, 1, 2, 3]):
                held_changes = HeldChanges(snapshot, versions[upto])
                opening = other.buckets(store, *versions[12], 2, buckets, held_changes)
                assert (opening.snapshot, opening.after, opening.applies_held) == (snapshot, upto, True)
                assert [entry.version for entry in opening.entries] == list(range(upto + 1, 13))
                state = fold(opening.snapshot_chunks)
                for _, chunks in other.changes(store, snapshot + 1, *versions[upto]).versions:
                    state = fold(chunks, state)
                state = fold(opening.chunks, state)
                rows = {key: value for key, value in state.items() if key_hash(key) >> 30 in buckets}
                assert rows == {key: value for key, value in states[12].items() if key_hash(key) >> 30 in buckets}
        for held_changes in (HeldChanges(3, versions[9]), HeldChanges(snapshot, VersionId(9, attempt(99)))):
            opening = other.buckets(store, *versions[12], 2, [0], held_changes)
            assert (opening.after, opening.applies_held) == (snapshot, False)
        opening = other.buckets(store, *versions[8], 2, [0], HeldChanges(snapshot, versions[9]))
        assert (opening.after, opening.applies_held) == (snapshot, False), "newer"
        assert not other.buckets(store, *versions[12], 2, [0]).applies_held, "nothing is held"
    # Snapshots of the very version up to which changes are held, and of a later one: their rows have the changes.
    for newer in (9, 11):
        save_snapshot(engine, store, versions[newer], states[newer])
        for other in (engine, engines()):
            opening = other.buckets(store, *versions[12], 2, [0], HeldChanges(snapshot, versions[9]))
            assert (opening.snapshot, opening.after, opening.applies_held) == (newer, newer, False)


def test_of_many_parts_a_bucket_reads_those_that_may_hold_its_rows(engines: Engines, store: str) -> None:
    version, state = write_large(engines(), store)
    reader = engines(cache_bytes=MIB)
    first = reader.buckets(store, *version, 3, [5])
    assert len(fold(first.chunks)) < len(state) / 2
    assert first.meter.cache_misses < CHUNKS
    second = reader.buckets(store, *version, 3, [0, 7])
    rows = fold(second.chunks)
    assert second.meter.items_read == second.meter.cache_misses < CHUNKS
    assert {key for key in state if key_hash(key) >> 29 in (0, 7)} <= set(rows)
    third = reader.buckets(store, *version, 3, [5])
    assert fold(third.chunks) == fold(reader.buckets(store, *version, 3, [5]).chunks)
    assert third.meter.requests == 0


def test_a_lookup_reads_only_parts_that_may_hold_the_key(engines: Engines, store: str) -> None:
    """A part of each version; the same rows as by reading all."""
    version, state = write_large(engines(), store)
    engine = engines(cache_bytes=MIB)
    value, meter = looked_up(engine, store, version, b"5")
    assert value == state[b"5"]
    assert meter.cache_misses <= 5
    assert meter.items_read == meter.cache_misses + 3  # lists, meta and schema
    for number in range(601):
        name = b"%d" % number
        value, meter = looked_up(engine, store, version, name)
        assert value == state.get(name)
        assert meter.requests <= 1
    assert looked_up(engine, store, version, b"5")[1].requests == 0


@pytest.mark.parametrize("tables", ["memory"], indirect=True)
def test_parts_that_may_hold_a_key_are_those_of_the_entry(engines: Engines, tables: MemoryTables, store: str) -> None:
    """A lost or corrupt one is an error, and one with other bounds, under which rows would not be found."""
    version, _ = write_large(engines(), store)
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
        message = "other bounds than its version entry" if damage is bounds else None
        with pytest.raises(CorruptStateError, match=message):
            looked_up(engines(), store, version, b"5")
        with pytest.raises(CorruptStateError, match=message):
            read(engines(), store, *version)
        tables.items[near] = item
    assert looked_up(engines(), store, version, b"5")[0] is not None


def test_recovery_begins_with_the_snapshot(engine: Engine, store: str) -> None:
    """Only changes after the snapshot are read; versions before it are unchanged."""
    versions = write_versions(engine, store, 30)
    save_snapshot(engine, store, versions[20], numbers(20))
    opening = engine.open(store, *versions[30])
    assert opening.snapshot == 20
    assert [entry.version for entry in opening.entries] == list(range(21, 31))
    assert opening.base == EMPTY
    for version in versions[1:]:
        assert read(engine, store, *version) == numbers(version[0])
    assert engine.open(store, *versions[20]).entries == ()
    assert engine.open(store, *versions[19]).snapshot == 0
    # A version that the provider holds is preferred, unless it is not in the lineage.
    opening = engine.open(store, *versions[25], [versions[18], versions[3]])
    assert (opening.base, opening.snapshot) == (versions[18], 0)
    opening = engine.open(store, *versions[25], [VersionId(18, attempt(99))])
    assert (opening.base, opening.snapshot) == (EMPTY, 20)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("lost snapshot_manifest", "the manifest of a snapshot is lost"),
        ("corrupt snapshot_manifest", "a manifest is not the one that its snapshot names"),
        ("lost bucket", "is not in its table"),
        ("corrupt bucket", "wrong checksum"),
        ("corrupt snapshot", "a manifest is not the one that its snapshot names"),
    ],
)
def test_recovery_falls_back_from_a_corrupt_snapshot(
    engine: Engine, engines: Engines, tables: Tables, store: str, kind: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Opening again reads older changes, and logs the item; the next snapshot is complete; clean-up deletes this."""
    versions = write_versions(engine, store, 5)
    state = numbers(5)
    save_snapshot(engine, store, versions[4], numbers(4))
    name = damage(tables, store, kind)
    with pytest.raises(RouteInvalidError, match=rf"{says}.* table=\w+ store_shard={store}#\d item=.*"):
        read(engine, store, *versions[5])
    assert read(engine, store, *versions[5]) == state
    ((warning,),) = [[record.getMessage()] for record in caplog.records]
    assert f"recovery skips a corrupt snapshot store={store} version=5 attempt=" in warning
    assert says in warning
    assert f"{name}" in warning
    assert "table=dynastate-snapshot-group " in warning
    # The next one reuses no bucket of it, so other executors can read it.
    assert save_snapshot(engine, store, versions[5], state, lambda _: {b"5"}).base == 0
    assert read(engines(), store, *versions[5]) == state
    versions += write_versions(engine, store, 2, versions[5])[1:]
    engine.maintenance.clean_up(store, "run-1", *versions[7], 2, 0, 0)
    assert [each.version for each in graph(tables, store).snapshots()] == [5]
    assert read(engines(), store, *versions[7]) == state | {b"6": b"6", b"7": b"7"}


def test_a_chunk_is_whole_though_the_cache_has_lost_a_fragment(engines: Engines, store: str) -> None:
    dice = random.Random(6)  # noqa: S311  # bytes that cannot be compressed
    first, last = sorted((b"a", b"b"), key=key_hash)
    state = {first: dice.randbytes(500_000), last: dice.randbytes(200_000)}
    writing = engines()
    one = write(writing, store, attempt(1), {first: state[first]}, {last: state[last]})
    two = write(writing, store, attempt(2), {b"c": dice.randbytes(360_000)}, base=one)
    engine = engines(cache_bytes=MIB)
    for version, key in ((one, first), (two, b"c"), (two, last), (two, first), (one, last)):
        value, _ = looked_up(engine, store, version, key)
        assert key == b"c" or value == state[key]


@pytest.mark.parametrize(("shards", "part_bytes"), [(4, 200_000), (1, 260_000), (64, 380_000)])
@pytest.mark.usefixtures("dummy_credentials")
def test_no_request_asks_for_too_much(embedded: EmbeddedDynamoDB, store: str, shards: int, part_bytes: int) -> None:
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
        version = write(engine, store, attempt(1), *({key: value} for key, value in state.items()))
        assert read(engine, store, *version) == state
        assert looked_up(engine, store, version, b"1")[0] == state[b"1"]
        engine.close()
        tables.close()
    assert not any(unprocessed)
