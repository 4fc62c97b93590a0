"""Parts in objects of S3: what goes there, what reads it, and what deletes it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal
from unittest.mock import Mock

import pytest

from dynastate.engine.objects import ObjectRule, StreamWriter
from dynastate.errors import ConfigurationError, CorruptStateError, UnavailableError
from dynastate.format import objects as object_format
from dynastate.format.changes import key_hash
from dynastate.format.keys import EMPTY, VersionId, meta_key
from dynastate.format.namespace import namespace_key
from dynastate.format.objects import FRAME_BYTES, ObjectId, delta_prefix, delta_stream
from dynastate.format.parts import part_items
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.runtime import Limits
from dynastate.settings import SNAPSHOT_TABLE, Settings
from tests.support.contents import entry, graph, named_keys, named_objects
from tests.support.engine_driver import (
    Engines,
    begin,
    fold,
    read,
    recover,
    save_snapshot,
    take_snapshot,
    write,
    write_versions,
)
from tests.support.limits import set_limits
from tests.support.memory_tables import MemoryTables, without_list
from tests.support.samples import SCHEMA, SHARDS, State, attempt, chunk, numbers

STORE = "n/0/0/default"
S3_URL = "s3://bucket/some/prefix"
LOCATION = f"{S3_URL}/{SNAPSHOT_TABLE}"
#: With a threshold of 0, all parts that are not inline go to objects.
ALL = {"objects": S3_URL, "objects_threshold_kb": 0}


@pytest.fixture
def tables(memory: MemoryTables) -> MemoryTables:
    return memory


@pytest.fixture(name="small_objects")
def shrink_objects(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let objects have 300 bytes, so that streams have many, and parts and buckets lie across their ends."""
    set_limits(monkeypatch, object_bytes=300)
    return 300


def names_of(tables: MemoryTables) -> list[str]:
    return sorted(place.name for place in tables.objects.objects)


def dice(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311


def rows(generator: random.Random, count: int, size: int = 200) -> State:
    """Make rows that do not compress."""
    return {b"%d" % generator.randrange(10_000): generator.randbytes(size) for _ in range(count)}


def test_large_changes_are_one_object_and_an_entry(tables: MemoryTables, engines: Engines) -> None:
    engine = engines(objects=S3_URL)
    changes = rows(dice(1), 100)
    result = begin(engine, STORE, attempt(1), changes).commit({0: 0}, "{}")
    assert result.meter.puts == 1
    assert result.meter.object_bytes_written == result.entry.stored_bytes + FRAME_BYTES
    assert tables.keys("delta") == []
    assert names_of(tables) == [f"{STORE}#delta/{1:020d}/{attempt(1).hex()}/000000"]
    assert read(engines(), STORE, 1) == changes, "an engine without the setting reads them"


def test_small_changes_are_items(tables: MemoryTables, engines: Engines) -> None:
    few = rows(dice(1), 10, 300)
    write(engines(objects=S3_URL), STORE, attempt(1), few)
    assert (len(tables.keys("delta")), tables.objects.objects) == (1, {})
    low = engines(objects=S3_URL, objects_threshold_kb=1)
    write(low, "n/0/1/default", attempt(1), few)
    assert (len(tables.keys("delta")), len(tables.objects.objects)) == (1, 1)
    assert ObjectRule.of(tables, Settings(objects=S3_URL)) == ObjectRule(LOCATION, 4)
    assert ObjectRule.of(tables, Settings(objects=S3_URL, objects_threshold_kb=9)) == ObjectRule(LOCATION, 9)


@pytest.mark.parametrize("seed", range(6))
def test_any_history_reads_back(tables: MemoryTables, engines: Engines, small_objects: int, seed: int) -> None:
    """Commits, aborts, snapshots and clean-ups in any order: each version has its rows, and nothing else is there."""
    generator = dice(seed)
    states: dict[int, State] = {0: {}}
    changed: dict[int, set[bytes]] = {}
    base, oldest = EMPTY, 1

    def since(version: int) -> set[bytes]:
        return {key for at, keys in changed.items() if at > version for key in keys}

    for version in range(1, 41):
        # The setting changes at restarts; what was written before stays where it is.
        run = f"run-{version // 10}"
        engine = engines(**(ALL if version // 10 != 2 else {}), cache_bytes=generator.choice([0, 10_000]))
        if generator.random() < 0.3:
            failed = begin(engine, STORE, attempt(1000 + version), rows(generator, 9), base=base, run=run)
            failed.flush()
            failed.abort()
        parts = [rows(generator, generator.randrange(1, 9)) for _ in range(generator.randrange(1, 4))]
        if generator.random() < 0.5:  # few keys, in few buckets
            parts = [{key: value for key, value in rows(generator, 60).items() if key_hash(key) < 1 << 29}]
        base = write(engine, STORE, attempt(version), *parts, base=base, run=run)
        merged = {key: value for part in parts for key, value in part.items()}
        states[version] = states[version - 1] | merged
        changed[version] = set(merged)
        if generator.random() < 0.4:
            snapshot = take_snapshot(engine, STORE, base, states[version], since, run=run)
            assert snapshot is None or snapshot.commit()
        if generator.random() < 0.3:
            oldest = max(oldest, version - 4)
            engine.maintenance.clean_up(STORE, run, *base, retain=5, least=1, most=0)
        for at in {oldest, version, generator.randrange(oldest, version + 1)}:
            assert read(engines(), STORE, at) == states[at]
        key = generator.choice(sorted(states[version]))
        opening = engines().lookup(STORE, *base, key_hash(key))
        assert fold(opening.chunks, fold(opening.snapshot_chunks))[key] == states[version][key]
    assert tables.objects.objects, "objects were used"
    report = verify(tables, STORE)
    assert (report.findings, report.is_whole) == ((), True)
    engine = engines(**ALL)
    base = write(engine, STORE, attempt(41), rows(generator, 3), base=base, run="run-9")
    engine.maintenance.clean_up(STORE, "run-9", *base, retain=2, least=1, most=0)
    assert set(without_list(tables.items)) == {*named_keys(tables, STORE), namespace_key("n")}
    assert set(tables.objects.objects) == named_objects(tables, STORE)
    drop_stores(tables, [STORE])
    assert tables.objects.objects == {}


def test_one_bucket_is_a_range_of_an_object(tables: MemoryTables, engines: Engines) -> None:
    """A snapshot is as few objects as possible, and one bucket of it is read alone."""
    engine = engines(**ALL)
    state = rows(dice(5), 400)
    version = write(engine, STORE, attempt(1), state)
    save_snapshot(engine, STORE, version, state)
    assert len([name for name in names_of(tables) if "#bucket/" in name]) == 1
    reader = engines()
    bucket = reader.buckets(STORE, *version, 3, [5])
    assert set(fold(bucket.snapshot_chunks)) == {key for key in state if key_hash(key) >> 29 == 5}
    assert bucket.meter.gets == 1
    assert bucket.meter.object_bytes_read < sum(map(len, tables.objects.objects.values())) / 8
    opening = engines().open(STORE, *version)
    assert fold(opening.snapshot_chunks) == state
    assert opening.meter.gets == 1, "neighbouring buckets are read together"


def test_parts_of_a_large_attempt(
    tables: MemoryTables, engines: Engines, small_objects: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only so many parts of an attempt are in objects; those after them are items."""
    set_limits(monkeypatch, object_parts_max=60, submit_bytes=1_000)
    engine = engines(**ALL)
    parts = [rows(dice(seed), 2) for seed in range(100)]
    write(engine, STORE, attempt(1), *parts)
    listed = entry(tables, STORE, 1)
    assert listed.objects is not None
    assert 50 < len(listed.objects.sizes) <= 60
    assert len(tables.keys("delta")) == 100 - len(listed.objects.sizes)
    assert all(len(data) <= small_objects for data in tables.objects.objects.values())
    assert read(engines(), STORE, 1) == {key: value for part in parts for key, value in part.items()}


def test_a_chunk_after_a_flush_is_an_item(tables: MemoryTables, engines: Engines) -> None:
    """The last object of a stream is written at a flush, and nothing is added to it."""
    under_way = begin(engines(**ALL), STORE, attempt(1), rows(dice(1), 20))
    under_way.flush()
    late = rows(dice(2), 20)
    under_way.append(chunk(late))
    under_way.commit({0: 0}, "{}")
    assert (len(tables.objects.objects), len(tables.keys("delta"))) == (1, 1)
    assert read(engines(), STORE, 1) == rows(dice(1), 20) | late


def test_an_abort_deletes_the_objects(tables: MemoryTables, engines: Engines) -> None:
    under_way = begin(engines(**ALL), STORE, attempt(1), rows(dice(1), 20))
    under_way.flush()
    under_way.abort()
    assert tables.objects.objects == {}


class BrokenObjects:
    """An S3 whose requests of one verb fail, from now on."""

    def __init__(self, tables: MemoryTables, verb: str, error: Exception) -> None:
        self._objects, self._verb, self._error = tables.objects, verb, error

    def __getattr__(self, verb: str) -> object:
        if verb == self._verb:
            return self._fail
        return getattr(self._objects, verb)

    def metered(self, _: object) -> BrokenObjects:
        """Fail in each view."""
        return self

    def _fail(self, *_: object, **__: object) -> None:
        raise self._error


@pytest.mark.parametrize(
    "error", [UnavailableError("S3 gave no proper answer"), ConfigurationError("AWS denies permission")], ids=type
)
def test_a_put_that_fails_fails_the_commit(
    tables: MemoryTables, engines: Engines, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """No version names an object that is not there."""
    engine = engines(**ALL)
    monkeypatch.setattr(tables, "_objects", BrokenObjects(tables, "put", error))
    broken = engines(**ALL)
    under_way = begin(broken, STORE, attempt(1), rows(dice(1), 20))
    with pytest.raises(type(error), match=str(error)):
        under_way.commit({0: 0}, "{}")
    under_way.abort()
    assert graph(tables, STORE).versions() == []
    assert engine.known_stores.newest_epoch(STORE) == 0


@pytest.mark.parametrize("harm", ["lost", "cut", "flipped", "of another key"])
def test_a_harmed_object_is_an_error(tables: MemoryTables, engines: Engines, harm: str) -> None:
    """A lost, short, altered or swapped object never becomes rows; the error and `verify` name it."""
    engine = engines(**ALL)
    base = write(engine, STORE, attempt(1), rows(dice(1), 20))
    write(engine, STORE, attempt(2), rows(dice(2), 20), base=base)
    first, second = sorted(tables.objects.objects)
    data = tables.objects.objects[second]
    if harm == "lost":
        del tables.objects.objects[second]
    else:
        flipped = bytes([*data[:100], data[100] ^ 1, *data[101:]])
        other = tables.objects.objects[first].ljust(len(data), b"\0")[: len(data)]
        tables.objects.objects[second] = {"cut": data[:-1], "flipped": flipped, "of another key": other}[harm]
    with pytest.raises(CorruptStateError) as failed:
        read(engines(), STORE, 2)
    assert f"{attempt(2).hex()}/000000" in str(failed.value)
    report = verify(tables, STORE)
    assert [each.what for each in report.findings] == ["missing" if harm == "lost" else "corrupt"]
    assert (report.is_whole, report.readable) == (False, {1})


def test_recovery_falls_back_from_a_lost_object_of_a_snapshot(tables: MemoryTables, engines: Engines) -> None:
    """Where a snapshot's object is lost, the older data is read that clean-up has retained."""
    engine = engines(**ALL)
    version = write_versions(engine, STORE, 5)[-1]
    save_snapshot(engine, STORE, version, numbers(5))
    (lost,) = [place for place in tables.objects.objects if "#bucket/" in place.name]
    del tables.objects.objects[lost]
    assert recover(engines(), STORE, 5) == numbers(5)
    assert {each.what for each in verify(tables, STORE).findings} == {"missing"}


def test_orphans_are_found_and_deleted(tables: MemoryTables, engines: Engines) -> None:
    """Objects of attempts and snapshots that crashed are reported, and go with the first clean-up of a run."""
    engine = engines(**ALL)
    crashed = begin(engine, STORE, attempt(99), rows(dice(1), 20))
    crashed.flush()
    crashed._pending.wait(5)
    base = write_versions(engine, STORE, 6)[-1]
    under_way = take_snapshot(engine, STORE, base, numbers(6))
    assert under_way is not None
    under_way._end_bucket()
    under_way._write()
    under_way._place()  # and the process dies
    report = verify(tables, STORE)
    assert report.is_whole
    assert len(report.findings) == 2
    assert all(each.what == "orphaned" and f"object {LOCATION}/{STORE}#" in each.why for each in report.findings)
    second = engines(**ALL)
    base = write(second, STORE, attempt(7), {b"7": b"7"}, base=base, run="run-2")
    save_snapshot(second, STORE, base, numbers(7), run="run-2")
    base = write_versions(second, STORE, 2, base, run="run-2")[-1]
    second.maintenance.clean_up(STORE, "run-2", *base, retain=2, least=1, most=0)
    assert set(tables.objects.objects) == named_objects(tables, STORE)


def test_orphans_of_a_failed_clean_up(tables: MemoryTables, engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean-up that S3 fails has not looked for them: the next one does."""
    crashed = begin(engines(**ALL), STORE, attempt(99), rows(dice(1), 20))
    crashed.flush()
    crashed._pending.wait(5)
    engine = engines(**ALL, snapshot_threshold=Decimal(0))
    base = write_versions(engine, STORE, 6, run="run-2")[-1]
    save_snapshot(engine, STORE, base, numbers(6), run="run-2")
    base = write_versions(engine, STORE, 2, base, run="run-2")[-1]
    names = tables.objects.names

    def fails_for_parts(location: str, prefix: str) -> Iterator[ObjectId]:
        if prefix == delta_prefix(STORE):
            raise UnavailableError("S3 gave no proper answer")
        return names(location, prefix)

    with monkeypatch.context() as patched:
        patched.setattr(tables._objects, "names", fails_for_parts)
        with pytest.raises(UnavailableError):
            engine.maintenance.clean_up(STORE, "run-2", *base, retain=2, least=1, most=0)
    assert crashed._stream is not None
    assert set(crashed._stream.objects) <= tables.objects.objects.keys()
    save_snapshot(engine, STORE, base, numbers(8), run="run-2")
    base = write_versions(engine, STORE, 2, base, run="run-2")[-1]
    engine.maintenance.clean_up(STORE, "run-2", *base, retain=2, least=1, most=0)
    assert set(tables.objects.objects) == named_objects(tables, STORE)


def test_clean_up_leaves_a_commit_under_way(tables: MemoryTables, engines: Engines) -> None:
    """Its objects and items are written, and no list names them yet: neither is an orphan."""
    engine = engines(**ALL)
    base = write_versions(engine, STORE, 6)[-1]
    save_snapshot(engine, STORE, base, numbers(6))
    base = write_versions(engine, STORE, 2, base)[-1]
    more = rows(dice(1), 20)
    under_way = begin(engine, STORE, attempt(99), more, base=base)
    under_way.flush()
    under_way.append(chunk({b"last": b"item"}))
    under_way.flush()
    under_way._pending.wait(5)
    assert under_way._stream is not None
    assert set(under_way._stream.objects) <= tables.objects.objects.keys()
    engine.maintenance.clean_up(STORE, "run-1", *base, retain=2, least=1, most=0)
    under_way.commit({0: 0}, SCHEMA)
    assert read(engines(**ALL), STORE, 9) == numbers(8) | more | {b"last": b"item"}


def test_an_object_is_noted_before_it_is_put() -> None:
    """A request that fails may have been done, so an abort deletes the object, too."""
    stream = delta_stream(S3_URL, STORE, 1, attempt(1))
    writer = StreamWriter(stream, Mock(side_effect=UnavailableError("its answer is lost")))
    writer.add(part_items(STORE, 1, attempt(1), 0, 1, chunk({b"k": b"v"})))
    with pytest.raises(UnavailableError):
        writer.finish()
    assert writer.objects == [stream.object(0)]


def test_sparse_objects_are_rewritten(engines: Engines) -> None:
    """A snapshot that carries on little of an object copies that, so that old objects do not stay for it."""
    engine = engines(**ALL, snapshot_threshold=Decimal(0), cache_bytes=100_000)
    state = rows(dice(3), 400)
    first = write(engine, STORE, attempt(1), state)
    save_snapshot(engine, STORE, first, state)
    hot = {key: b"new" for key in state if key_hash(key) >> 29 != 2}
    second = write(engine, STORE, attempt(2), hot, base=first)
    save_snapshot(engine, STORE, second, state | hot, lambda _: set(hot))
    manifest = engine.known_stores.route(STORE, *second)
    assert manifest is not None
    assert manifest.snapshot is not None
    assert {bucket.holder.version for bucket in manifest.snapshot.buckets} == {2}
    assert read(engines(), STORE, 2) == state | hot


def test_dense_objects_are_carried_on(engines: Engines) -> None:
    engine = engines(**ALL, snapshot_threshold=Decimal(0))
    state = rows(dice(3), 400)
    first = write(engine, STORE, attempt(1), state)
    save_snapshot(engine, STORE, first, state)
    few = {key: b"new" for key in state if key_hash(key) >> 29 == 2}
    second = write(engine, STORE, attempt(2), few, base=first)
    snapshot = save_snapshot(engine, STORE, second, state | few, lambda _: set(few))
    assert snapshot.meter.object_bytes_written < 20_000
    assert read(engines(), STORE, 2) == state | few


def test_a_fork_copies_no_object(tables: MemoryTables, engines: Engines) -> None:
    """A fork names the objects of its origin, which clean-up there retains; its own drop leaves them."""
    engine = engines(**ALL, cache_bytes=0)
    base = write_versions(engine, STORE, 4)[-1]
    save_snapshot(engine, STORE, base, numbers(4))
    base = write(engine, STORE, attempt(5), {b"5": b"5"}, base=base)
    objects_before = dict(tables.objects.objects)
    fork_namespace(tables, "n", "m", None)
    assert tables.objects.objects == objects_before
    fork = "m/0/0/default"
    assert read(engines(), fork, 5) == numbers(5)
    for number in range(6, 12):
        base = write(engine, STORE, attempt(number), {b"%d" % number: b"%d" % number}, base=base)
    save_snapshot(engine, STORE, base, numbers(11))
    engine.maintenance.clean_up(STORE, "run-1", *base, retain=2, least=1, most=0)
    assert read(engines(), fork, 5) == numbers(5)
    assert verify(tables, fork).is_whole
    drop_stores(tables, [fork])
    assert read(engines(), STORE, 11) == numbers(11)


def test_a_store_without_its_meta_item_is_dropped_whole(tables: MemoryTables, engines: Engines) -> None:
    """Without the meta item the places of objects are those that lists and manifests name."""
    engine = engines(**ALL)
    base = write_versions(engine, STORE, 3)[-1]
    save_snapshot(engine, STORE, base, numbers(3))
    del tables.items[meta_key(STORE)]
    drop_stores(tables, [STORE])
    assert (without_list(tables.items), tables.objects.objects) == ({}, {})


def test_the_meta_item_lists_every_place(tables: MemoryTables, engines: Engines) -> None:
    """Each place that a run may write to is entered before it writes."""
    base = write(engines(**ALL), STORE, attempt(1), {b"1": b"1"})
    base = write(engines(), STORE, attempt(2), {b"2": b"2"}, base=base, run="run-2")
    other = engines(**ALL | {"objects": "s3a://other/"})
    write(other, STORE, attempt(3), {b"3": b"3"}, base=base, run="run-3")
    assert graph(tables, STORE).required_meta.objects == {LOCATION, f"s3://other/{SNAPSHOT_TABLE}"}
    assert {place.location for place in tables.objects.objects} == {LOCATION, f"s3://other/{SNAPSHOT_TABLE}"}
    assert read(engines(), STORE, 3) == numbers(3)
    drop_stores(tables, [STORE])
    assert tables.objects.objects == {}


def test_a_name_that_is_too_long(engines: Engines) -> None:
    """S3 takes names of 1,024 bytes; a longer one is refused before anything is sent."""
    engine = engines(**ALL | {"objects": "s3://bucket/" + "p" * 500})
    under_way = begin(engine, "n" * 500 + "/0/0/default", attempt(1), rows(dice(1), 20))
    with pytest.raises(ConfigurationError, match="more than 1024 bytes"):
        under_way.commit({0: 0}, "{}")


def test_objects_of_eight_mebibytes(tables: MemoryTables, engines: Engines) -> None:
    """A large attempt is in full objects and one that is not."""
    engine = engines(objects=S3_URL)
    generator = dice(4)
    parts = [{generator.randbytes(8): generator.randbytes(250_000)} for _ in range(40)]
    write(engine, STORE, attempt(1), *parts)
    sizes = [len(tables.objects.objects[place]) for place in sorted(tables.objects.objects)]
    assert sizes[:-1] == [Limits.object_bytes]
    assert 0 < sizes[-1] < Limits.object_bytes
    assert read(engines(), STORE, 1) == {key: value for part in parts for key, value in part.items()}


def test_object_names_have_their_makers() -> None:
    """Names lead back to what made them, and others to nothing."""
    stream = object_format.delta_stream(S3_URL, STORE, 7, attempt(3))
    place = stream.object(12)
    assert object_format.maker_of_object(place.name) == VersionId(7, attempt(3))
    assert (place.bucket, place.key) == ("bucket", f"some/prefix/{place.name}")
    assert object_format.maker_of_object(f"{STORE}#delta/readme.txt") is None
    assert ObjectId("s3://bucket", "a#b").key == "a#b"
    assert SHARDS == 4


def test_a_full_first_request_is_above_every_threshold(engines: Engines, tables: MemoryTables) -> None:
    """Its size decides for all parts of the attempt, so no threshold may be above the least that it has."""
    highest = 24
    with pytest.raises(ConfigurationError, match="objectsThresholdKb"):
        Settings(objects_threshold_kb=highest + 1)
    engine = engines(objects=S3_URL, objects_threshold_kb=highest)
    parts = [{b"%d" % number: b"value"} for number in range(Limits.writes_max + 1)]
    begin(engine, STORE, attempt(1), *parts).commit({0: len(parts)}, SCHEMA)
    assert (tables.keys("delta"), len(tables.objects.objects)) == ([], 1)
