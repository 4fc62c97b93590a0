"""Open, write, commit and abort; faults on the seam."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine import commit as commits
from dynastate.engine import reader, windows
from dynastate.engine.commit import HANDED_OVER_BYTES
from dynastate.engine.engine import Engine
from dynastate.engine.lists import LIST_BYTES_MAX, LISTED_MAX
from dynastate.errors import (
    ConfigurationError,
    CorruptStateError,
    InternalError,
    UnavailableError,
    UnknownOutcomeError,
    VersionMissingError,
)
from dynastate.format.changes import PUT, RECORD_BYTES_MAX, Change, encode_changes
from dynastate.format.items import FORMAT, Item, item_bytes, item_key
from dynastate.format.keys import (
    EMPTY,
    NO_ATTEMPT,
    STORE_BYTES_MAX,
    Attempt,
    Key,
    VersionId,
    meta_key,
    schema_digest,
    schema_key,
    version_list_key,
)
from dynastate.format.meta import EPOCHS_KEPT, parse_schema
from dynastate.format.parts import CHUNK_BYTES_MAX, part_items
from dynastate.format.version_list import encode_entry, listed_entry
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.lifecycle.clean import clean_store
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.runtime import Limits
from dynastate.settings import Settings
from dynastate.storage.limits import ITEM_BYTES_MAX, STORED_BYTES_MAX
from dynastate.storage.tables import Tables
from tests.support.engine_driver import (
    CHECKPOINT,
    QUERY,
    SCHEMA,
    Engines,
    attempt,
    begin,
    chunk,
    closing,
    commit,
    entry,
    fold,
    graph,
    items_of,
    make_engine,
    numbers,
    parts_of,
    query_run,
    read,
    save_snapshot,
    singles,
    write,
    write_versions,
)
from tests.support.fakes import Door, FailingTables, Fault, MemoryTables, Overtaken
from tests.support.processes import wait_until

A, B, C, D, Z = (attempt(number) for number in (0xA, 0xB, 0xC, 0xD, 0x2A))


def noise(length: int, seed: str = "seed") -> bytes:
    """Make bytes that do not compress."""
    return hashlib.shake_128(seed.encode()).digest(length)


# -------------------------------------------------------------------------------------------------- write, commit, open


def test_a_committed_version_never_changes(engine: Engine, store: str) -> None:
    """Each version reads back as exactly its own state after puts, overwrites and removes."""
    one = write(engine, store, A, {b"a": b"1", b"b": b"1", b"c": b"1"})
    two = write(engine, store, B, {b"a": b"2", b"b": None, b"never there": None}, base=one)
    three = write(engine, store, C, {b"b": b"3", b"c": None}, base=two)
    assert [version for version, _ in (one, two, three)] == [1, 2, 3]
    assert read(engine, store, 1) == {b"a": b"1", b"b": b"1", b"c": b"1"}
    assert read(engine, store, 2) == {b"a": b"2", b"c": b"1"}
    assert read(engine, store, 3) == {b"a": b"2", b"b": b"3"}


@pytest.mark.parametrize("length", [390_000, 3_000_000])
def test_a_row_larger_than_an_item_spans_parts(engine: Engine, tables: Tables, store: str, length: int) -> None:
    """A row of several MB that does not compress is cut over parts that fit into items, and comes back."""
    state = {b"small": b"1", b"large": noise(length)}
    write(engine, store, A, {b"small": b"1"}, {b"large": state[b"large"]}, {b"later": None})
    parts = parts_of(tables, store)
    assert len(parts) == 2 + -(-length // 380_000)
    assert max(item_bytes(item) for _, item in parts) <= ITEM_BYTES_MAX
    assert entry(tables, store, 1).parts == len(parts)
    assert read(engine, store, 1) == state


@pytest.mark.parametrize("limit", [CHUNK_BYTES_MAX, 380_000, 2 * 380_000, ITEM_BYTES_MAX, 1024, 2 * 1024])
@pytest.mark.parametrize("is_key", [False, True], ids=["value", "key"])
def test_rows_at_each_limit(memory: MemoryTables, limit: int, *, is_key: bool) -> None:
    """Incompressible records one byte shorter than a limit, as long, and one longer, under the longest name."""
    store = f"{'n' * 1015}/0/0/name"
    assert len(store) == STORE_BYTES_MAX
    for engine in closing(memory):
        base = EMPTY
        for number, length in enumerate(range(limit - 1, limit + 2), start=1):
            many = noise(length - len(encode_changes([Change(PUT, 0, b"", b"")])))
            state = {many: b""} if is_key else {b"": many}
            base = write(engine(), store, attempt(number), state, base=base)
            assert read(engine(), store, *base).items() >= state.items()
    assert max(map(item_bytes, memory.items.values())) <= ITEM_BYTES_MAX


def test_chunks_are_applied_in_the_order_they_were_appended(engine: Engine, tables: Tables, store: str) -> None:
    """More parts than one read brings, over all shards: of several changes to a key the last chunk's counts."""
    count = 2 * Limits.window_parts + 7
    chunks = [{b"same": b"%d" % number, b"own %d" % number: noise(40, str(number))} for number in range(count)]
    write(engine, store, A, *chunks)
    assert {key.store_shard for key, _ in parts_of(tables, store)} == {f"{store}#{shard}" for shard in range(4)}
    opening = engine.open(store, 1, NO_ATTEMPT)
    assert [each.changes for each in opening.chunks] == [chunk(each).changes for each in chunks]
    assert read(engine, store, 1)[b"same"] == b"%d" % (count - 1)


def test_large_chunks_are_compressed_by_other_threads(
    engine: Engine, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large and small chunks are applied in the order they were appended, whichever is compressed first."""
    threads = []

    def make(*of: Any) -> list[tuple[Key, Item]]:
        threads.append(threading.current_thread().name.rpartition("_")[0])
        return part_items(*of)

    monkeypatch.setattr(commits, "part_items", make)
    sizes = [HANDED_OVER_BYTES, 5, 200_000, HANDED_OVER_BYTES, CHUNK_BYTES_MAX + 1, 7, 200_000] * 5
    chunks = [{b"same": noise(size, str(number))} for number, size in enumerate(sizes)]
    write(engine, store, A, *chunks)
    here = threading.current_thread().name.rpartition("_")[0]
    assert sorted(threads) == sorted(["dynastate-compressor"] * 20 + [here] * 15)
    assert [each.changes for each in engine.open(store, 1, NO_ATTEMPT).chunks] == [
        chunk(each).changes for each in chunks
    ]


@pytest.mark.parametrize("last", [5, HANDED_OVER_BYTES], ids=["small", "large"])
def test_a_chunk_that_cannot_be_compressed_refuses_the_commit(
    engine: Engine, tables: Tables, store: str, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """Nothing is committed without it, and nothing stays of the attempt."""

    def fail(*_: Any) -> list[tuple[Key, Item]]:
        raise MemoryError("compressor")

    under_way = begin(engine, store, A)
    with monkeypatch.context() as patched:
        patched.setattr(commits, "part_items", fail)
        with pytest.raises(MemoryError, match="compressor"):  # noqa: PT012  # at the append, or where it is waited for
            under_way.append(chunk({b"a": noise(HANDED_OVER_BYTES)}))
            patched.undo()
            under_way.append(chunk({b"b": noise(last)}))
            under_way.commit({0: 1}, SCHEMA)
    with pytest.raises(InternalError, match="after an append that failed"):
        under_way.commit({0: 1}, SCHEMA)
    under_way.abort()
    assert parts_of(tables, store) == []
    with pytest.raises(VersionMissingError):
        engine.open(store, 1, NO_ATTEMPT)


def test_a_flush_writes_what_waits(engine: Engine, tables: Tables, store: str) -> None:
    """Parts are written before the commit; more may follow; an attempt that is aborted leaves none."""
    under_way = begin(engine, store, A, {b"a": b"1"}, {b"b": noise(HANDED_OVER_BYTES)})
    assert parts_of(tables, store) == []
    under_way.flush()
    wait_until(lambda: len(parts_of(tables, store)) == 2, "the parts are not written")
    under_way.append(chunk({b"c": b"3"}))
    under_way.commit({0: 3}, SCHEMA)
    assert read(engine, store, 1) == {b"a": b"1", b"b": noise(HANDED_OVER_BYTES), b"c": b"3"}
    with pytest.raises(InternalError, match="flush on an attempt that has ended"):
        under_way.flush()
    other = begin(engine, store, B, {b"a": b"1"})
    other.flush()
    other.abort()
    assert len(parts_of(tables, store)) == 3


def test_the_version_list_names_every_commit(engine: Engine, tables: Tables, store: str) -> None:
    """Each commit appends one entry, ten versions a group, that says who made it, on what, and how much it is."""
    made = write_versions(engine, store, 12)
    groups = {sort: item for sort, item in items_of(tables, store).items() if sort.startswith("list/")}
    assert [(sort, len(item["versions"])) for sort, item in groups.items()] == [  # type: ignore[arg-type]  # a list
        ("list/0000000000000000", 9),
        ("list/0000000000000001", 3),
    ]
    for number in range(1, 13):
        found = entry(tables, store, number)
        assert (found.attempt, found.parent, found.epoch) == (made[number][1], made[number - 1][1], 1)
        assert (found.parts, found.records, found.keys) == (1, 1, {0: 0})
        assert found.raw_bytes == found.stored_bytes == len(chunk({b"%d" % number: b"%d" % number}).changes)
    last = begin(engine, store, A, {b"k": bytes(5000)}, base=made[12]).commit({0: 7, 3: 2**40}, SCHEMA)
    found = entry(tables, store, 13)
    assert found.keys == {0: 7, 3: 2**40}
    assert found.stored_bytes < found.raw_bytes == last.entry.raw_bytes
    key = schema_key(store, found.schema)
    assert parse_schema(key, items_of(tables, store)[key.sort]) == SCHEMA


def test_the_meta_item_says_what_the_store_is(engine: Engine, tables: Tables, store: str) -> None:
    """The meta item holds the store, the checkpoint in clear text, shards, package and time of the first commit."""
    write(engine, store, A, {b"k": b"v"})
    assert items_of(tables, store)["meta"] == item_key(meta_key(store)) | {
        "format": FORMAT,
        "store": store,
        "queries": {"1": QUERY},
        "began": "2025-01-01T00:00:00+00:00",
        "locations": {"1": CHECKPOINT},
        "shards": 4,
        "package": "0.2.0",
        "created": "2025-01-01T00:00:00+00:00",
        "epoch": 1,
        "epochs": {"run-1": 1},
    }


def test_a_store_retains_its_number_of_shards(engines: Engines, tables: Tables, store: str) -> None:
    """The number of shards is fixed when a store is made; engines with another setting use that number."""
    base = write(engines(shards=2), store, A, {b"a": b"1"}, {b"b": b"1"})
    other = engines(shards=3)
    write(other, store, B, {b"c": b"1"}, {b"d": b"1"}, {b"e": b"1"}, base=base, run="run-2")
    assert {key.store_shard for key, _ in parts_of(tables, store)} == {f"{store}#0", f"{store}#1"}
    assert set(read(engines(), store, 2)) == {b"a", b"b", b"c", b"d", b"e"}


def test_requests_of_a_commit(engine: Engine, tables: Tables, store: str) -> None:
    """On a warm session: one append to the version list, after one write of parts where there are changes."""
    base = write(engine, store, A, {b"k": b"v"})
    two, spent = commit(engine, store, B, base=base)
    assert (spent["requests"], spent["writeUnits"], spent["readUnits"], spent["parts"]) == (1, 1, 0, 0)
    assert read(engine, store, *two) == {b"k": b"v"}
    assert len(parts_of(tables, store)) == 1
    _, spent = commit(engine, store, C, {b"k": b"w"}, {b"l": b"w"}, base=two)
    assert (spent["requests"], spent["writeUnits"], spent["parts"], spent["records"]) == (2, 3, 2, 2)


def test_commits_and_openings_report_what_they_cost(engine: Engine, store: str) -> None:
    """No metric stays 0 but those of what did not happen."""
    _, spent = commit(engine, store, A, {b"k": noise(5000)})
    not_done = {"retries", "throttles", "bytesRead", "cacheHits", "cacheMisses"}
    not_done |= {"puts", "gets", "objectBytesWritten", "objectBytesRead", "storedObjectBytes"}
    assert {name for name, value in spent.items() if value == 0} == not_done
    assert spent["writeUnits"] >= 5 + 3
    assert spent["bytesWritten"] > 5000
    opening = engine.open(store, 1, NO_ATTEMPT)
    assert sum(each.records for each in opening.chunks) == 1
    spent_reading = opening.meter
    assert (spent_reading.requests, spent_reading.read_units, spent_reading.cache_misses) == (2, 1 + 2, 1)
    assert spent_reading.bytes_read > 5000


def test_a_commit_is_one_item_write_after_all_parts(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """The commit point is the append to the version list, and it comes when every part and the schema are there."""
    write(memory_engine, store, A, *({b"%d" % number: noise(50_000, str(number))} for number in range(40)))
    verbs = [call.verb for call in memory.calls]
    assert verbs.count("update") == 1
    assert verbs[-1] == "update"
    written = {key for call in memory.called("write") for key in call.keys}
    assert len(written) == 41
    assert max(len(call.keys) for call in memory.called("write")) <= 25


def test_parts_are_written_while_the_batch_still_runs(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """A full request goes out when it is full, not at commit; less than that waits for more."""
    begin(memory_engine, store, A).abort()
    assert memory.calls == [], "beginning and aborting cost nothing before the first change"
    under_way = begin(memory_engine, store, A, {b"small": b"1"})
    assert memory.called("write") == []
    for each in singles(25):
        under_way.append(chunk(each))
    under_way._pending.wait(5)
    assert len(memory.called("write")) == 1
    under_way.abort()


def test_the_schema_is_written_once_a_session(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """The schema item goes out with the first commit of a query run, and again only when the schema changes."""
    write_versions(memory_engine, store, 3)
    base = (3, attempt(3))
    under_way = memory_engine.begin(store, query_run("run-1"), *base, A)
    under_way.commit({0: 3}, SCHEMA + " ")
    written = [key.sort for call in memory.called("write") for key in call.keys if key.sort.startswith("schema/")]
    assert written == [schema_key(store, schema_digest(text)).sort for text in (SCHEMA, SCHEMA + " ")]


# ------------------------------------------------------------------------------------------- which attempt, which epoch


@pytest.mark.slow
@pytest.mark.usefixtures("always_worth_it")
def test_a_version_made_repeatedly_does_not_fill_its_list(engine: Engine, tables: Tables, store: str) -> None:
    """A query whose batches fail after state is committed, run by run: of one version the newest attempts stay."""
    one = write(engine, store, A, {b"one": b"1"})
    for number in range(1, 131):
        made = write(engine, store, attempt(1000 + number), {b"n": b"%d" % number}, base=one, run=f"run-{number}")
    listed = graph(tables, store)
    assert listed.versions() == [1, 2]
    assert len(list(listed.entries())) <= LISTED_MAX + 1
    assert read(engine, store, *made) == read(engine, store, 2) == {b"one": b"1", b"n": b"130"}
    assert read(engine, store, 2, attempt(1000 + 130 - EPOCHS_KEPT + 1)) == {b"one": b"1", b"n": b"115"}
    two = write_versions(engine, store, 12, base=made, run="run-130")[-1]
    state = read(engine, store, *two)
    save_snapshot(engine, store, two, state, lambda _: set(state), run="run-130")
    last = write_versions(engine, store, 2, base=two, run="run-130")[-1]
    engine.clean_up(store, "run-130", *last, 2, 1, 0)
    assert {int(key.sort.split("/")[0]) for key, _ in parts_of(tables, store)} <= set(range(14, 17))


#: As a schema with many column families, whose counts are in each entry: some 10 KB of it.
LARGE: Final = dict.fromkeys(range(900), 2**62)


def write_large(engine: Engine, store: str, number: int, base: VersionId, run: str) -> VersionId:
    """Commit a row with an entry of 10 KB."""
    begun = begin(engine, store, attempt(number), {b"n": b"%d" % number}, base=base, run=run)
    return begun.commit(LARGE, SCHEMA).entry.id


def list_bytes(tables: Tables, store: str, version: int) -> int:
    key = version_list_key(store, version)
    return item_bytes(tables.get([key])[key])


@pytest.fixture
def on_memory(memory: MemoryTables) -> Iterator[Engine]:
    """An engine on tables in memory."""
    found = make_engine(memory)
    yield found
    found.close()


def fill(engine: Engine, tables: Tables, store: str, base: VersionId, run: str) -> VersionId:
    """Make attempts with entries of 10 KB while the list has room; return the last."""
    number = 1000
    while True:
        last = write_large(engine, store, number, base, run)
        number += 1
        if list_bytes(tables, store, base.version + 1) > STORED_BYTES_MAX - 11_000:
            return last


@pytest.mark.parametrize("version", [1, 2, 10])
def test_large_attempts_do_not_fill_a_list(on_memory: Engine, memory: MemoryTables, store: str, version: int) -> None:
    """A batch that each run makes again, with entries of 10 KB: also the first one, which has none before it."""
    base = write_versions(on_memory, store, version - 1, run="run-0")[-1]
    for number in range(1, 46):
        made = write_large(on_memory, store, 1000 + number, base, f"run-{number // 3}")
        assert list_bytes(memory, store, version) < LIST_BYTES_MAX + 15_000
    assert read(on_memory, store, *made) == {**numbers(version - 1), b"n": b"1045"}
    assert read(on_memory, store, version, attempt(1043)), "an attempt of the run before"
    assert graph(memory, store).versions() == list(range(1, version + 1))


def test_a_full_list_is_shortened_before_the_append(on_memory: Engine, memory: MemoryTables, store: str) -> None:
    """Other commits filled it, and could not shorten it: attempts that the driver passed over go first."""
    one = write(on_memory, store, A, {b"one": b"1"})
    key = version_list_key(store, 1)
    listed = memory.items[key]["versions"]
    assert isinstance(listed, list)
    first = listed_entry(store, key, listed[0])
    others = (replace(first, attempt=attempt(2000 + n), keys=LARGE) for n in range(40))
    raw = [encode_entry(store, each) for each in others]
    fit = (STORED_BYTES_MAX - item_bytes(memory.items[key])) // (len(raw[0]) + 1)
    memory.items[key]["versions"] = [*listed, *raw[:fit]]
    two = write_large(on_memory, store, 3000, one, "run-1")
    assert memory.called("put_over")
    assert list_bytes(memory, store, 1) < LIST_BYTES_MAX + 15_000
    assert read(on_memory, store, *two) == {b"one": b"1", b"n": b"3000"}


def test_a_full_list_is_shortened_on_a_real_interface(moto: BotoTables, store: str) -> None:
    """Moto is full much earlier, and refuses as DynamoDB does."""
    engine = make_engine(moto)
    for number in range(30):
        made = write_large(engine, store, 1000 + number, EMPTY, f"run-{number}")
    assert read(engine, store, *made) == {b"n": b"1029"}
    engine.close()


@pytest.mark.parametrize("how", ["refused", "forks"])
def test_a_full_list_of_one_run_says_what_to_do(on_memory: Engine, memory: MemoryTables, store: str, how: str) -> None:
    """What the newest two runs made may be needed, so a commit fails; the commit of a later run deletes it.

    Clean-up deletes nothing of it: that a run has entered does not prove which attempt the driver has chosen.

    Runs that the list refuses stay refused. A list that a fork depends on is left, and the error names the fork.
    """
    base = write_versions(on_memory, store, 1, run="run-0")[-1]
    key = version_list_key(store, 1)
    memory.items[key] |= {how: frozenset({"other/0/0/default"})}
    last = fill(on_memory, memory, store, base, "run-1")
    with pytest.raises(ConfigurationError, match=r"version list is full, 400 KB.*start the query again"):
        write_large(on_memory, store, 2000, base, "run-1")
    run_two = begin(on_memory, store, B, {b"n": b"2"}, base=base, run="run-2")
    with pytest.raises(ConfigurationError, match=r"version list is full, 400 KB.*start the query again"):
        run_two.commit(LARGE, SCHEMA)
    if how == "forks":
        run_three = begin(on_memory, store, C, {b"n": b"2"}, base=base, run="run-3")
        with pytest.raises(ConfigurationError, match=r"no room.*while forks depend on it: other. Drop them"):
            run_three.commit(LARGE, SCHEMA)
        return
    run_three = begin(on_memory, store, C, {b"n": b"3"}, base=base, run="run-3")
    run_three.flush()
    before = memory.items[key]
    with pytest.raises(ConfigurationError, match="a newer run of the query has begun"):
        clean_store(on_memory, memory, store, 2)
    assert memory.items[key] == before
    assert read(on_memory, store, *last)
    run_three.commit(LARGE, SCHEMA)
    assert list_bytes(memory, store, 2) < LIST_BYTES_MAX + 15_000
    made = write_large(on_memory, store, 3000, base, "run-3")
    assert read(on_memory, store, *made) == {b"1": b"1", b"n": b"3000"}
    assert memory.items[key]["refused"] == frozenset({"other/0/0/default"})


@pytest.mark.parametrize("entries", ["many", "large"])
def test_clean_up_leaves_what_the_driver_may_have_chosen(
    on_memory: Engine, memory: MemoryTables, store: str, entries: str
) -> None:
    """A batch was made again and again, and succeeded; then many runs died before they committed the next one."""
    base = write_versions(on_memory, store, 2)[-1]
    if entries == "many":
        numbers_of_run = {run: range(100 * run, 100 * run + 8) for run in range(2, 20)}
    else:
        numbers_of_run = {2: range(1000, 1026)}
    keys = LARGE if entries == "large" else {0: 1}
    for run, made_by in numbers_of_run.items():
        for number in made_by:
            begun = begin(on_memory, store, attempt(number), {b"n": b"%d" % number}, base=base, run=f"run-{run}")
            begun.commit(keys, SCHEMA)
    chosen = VersionId(3, attempt(made_by[0]))
    last = VersionId(3, attempt(number))
    for run in range(20, 38):
        begin(on_memory, store, attempt(9000 + run), {b"x": b"1"}, base=chosen, run=f"run-{run}").flush()
    with pytest.raises(ConfigurationError, match="a newer run of the query has begun"):
        clean_store(on_memory, memory, store, 100)
    for each in (chosen, last):
        assert read(on_memory, store, *each)[b"n"] == b"%d" % int.from_bytes(each.attempt, "big")


def commit_120(engine: Engine, store: str, base: VersionId, location: str = CHECKPOINT) -> VersionId:
    """Commit 120 attempts on one base, six a run; return the last."""
    for number in range(1000, 1120):
        run = query_run(f"later-{number // 6}", location)
        begun = engine.begin(store, run, *base, attempt(number))
        begun.append(chunk({b"n": b"%d" % number}))
        begun.commit({0: 1}, SCHEMA)
    return VersionId(base.version + 1, attempt(number))


def test_a_long_list_keeps_the_bases_of_others(on_memory: Engine, memory: MemoryTables, store: str) -> None:
    """Version 3 of the first run is the base of version 4, which a restart at batch 2 left behind."""
    made = write_versions(on_memory, store, 4)
    last = commit_120(on_memory, store, made[2])
    listed = {each.id for each in graph(memory, store).entries()}
    assert {made[3], made[4], last} <= listed
    assert len(listed) <= LISTED_MAX + 1
    assert [each for each in verify(memory, store).findings if each.what != "orphaned"] == []
    assert read(on_memory, store, *made[4])[b"4"] == b"4"


def test_a_long_list_keeps_what_another_query_means(on_memory: Engine, memory: MemoryTables, store: str) -> None:
    """It was taken back, and made version 3 again, before the next query began in its place."""
    made = write_versions(on_memory, store, 4)
    again = write(on_memory, store, A, {b"3": b"again"}, base=made[2], run="run-2")
    base = EMPTY
    for number in range(1, LISTED_MAX + 20):
        run = query_run(f"other-{number}", query="other")
        under_way = on_memory.begin(store, run, *base, attempt(2000 + number))
        under_way.append(chunk({b"1": b"other"}))
        under_way.commit({0: 1}, SCHEMA)
        if base.version < 3:
            base = VersionId(base.version + 1, attempt(2000 + number))
    listed = graph(memory, store)
    assert len([*listed.entries()]) <= LISTED_MAX + 1
    assert listed.find(3, NO_ATTEMPT, query_run("run-3")).id == again


def test_a_long_list_keeps_what_another_checkpoint_made(memory: MemoryTables, engines: Engines, store: str) -> None:
    """A copy of the checkpoint fails 120 times, after a restart at batch 2; then the original continues."""
    made = write_versions(engines(memory), store, 4)
    adopt_stores(memory, [store], "file:/moved/state")
    commit_120(engines(memory), store, made[2], "file:/moved/state")
    adopt_stores(memory, [store], CHECKPOINT)
    last = write(engines(memory), store, A, {b"5": b"5"}, base=made[4], run="run-9")
    assert read(engines(memory), store, *last) == numbers(5)


def test_a_list_that_cannot_be_shortened_fails_no_commit(
    failing_engine: Engine, failing_tables: FailingTables, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The version exists by then: the log reports the failure, and the next commit retries."""
    one = write(failing_engine, store, A, {b"one": b"1"})
    for number in range(1, LISTED_MAX + 1):
        if number == LISTED_MAX:
            failing_tables.fail("put_over", Fault(UnavailableError("throttled")))
        made = write(
            failing_engine, store, attempt(1000 + number), {b"n": b"%d" % number}, base=one, run=f"run-{number}"
        )
    assert "a version list stays long" in caplog.text
    assert read(failing_engine, store, *made) == {b"one": b"1", b"n": b"%d" % LISTED_MAX}


def test_epochs_rise_with_each_query_run(engines: Engines, tables: Tables, store: str) -> None:
    """Each run gets the next epoch at its first write, and keeps it in another process; the newest sixteen are kept."""
    base = EMPTY
    for number in range(1, 21):
        base = write(engines(), store, attempt(number), run=f"run-{number}", base=base)
    write(engines(), store, attempt(21), run="run-20", base=base)
    assert [entry(tables, store, version).epoch for version in range(1, 22)] == [*range(1, 21), 20]
    meta = items_of(tables, store)["meta"]
    assert meta["epoch"] == 20
    assert meta["epochs"] == {f"run-{number}": number for number in range(5, 21)}
    assert item_bytes(meta) < 1024, "it does not grow without limit"


def test_a_run_entered_by_another_executor_is_found(engines: Engines, tables: Tables, store: str) -> None:
    """Two executors that enter one run at once get one epoch."""
    base = write(engines(), store, A, run="run-1")
    other = lambda: write(engines(), store, B, base=base, run="run-2")  # noqa: E731
    write(engines(Overtaken(tables, other, "update")), store, C, base=base, run="run-2")
    assert [graph(tables, store).find(2, each).epoch for each in (B, C)] == [2, 2]


@pytest.mark.parametrize("moment", ["query", "put_new"])
def test_a_store_made_by_another_executor_is_found(engines: Engines, tables: Tables, store: str, moment: str) -> None:
    """Two executors that make one store at once agree on its meta item, whenever the other one is first."""
    other = lambda: write(engines(shards=3), store, A, {b"k": b"v"}, run="run-1")  # noqa: E731
    engine = engines(Overtaken(tables, other, moment), shards=2)
    write(engine, store, B, {b"k": b"w"}, run="run-2")
    assert items_of(tables, store)["meta"]["shards"] == 3
    assert [graph(tables, store).find(1, each).epoch for each in (A, B)] == [1, 2]
    assert read(engine, store, 1) == {b"k": b"w"}


def test_a_run_without_an_epoch_fails_after_bounded_retries(
    failing_engine: Engine, failing_tables: FailingTables, store: str
) -> None:
    """A run whose epoch is always taken by another fails after a bounded number of tries; its task can be retried."""
    write(failing_engine, store, A)
    failing_tables.update = lambda *_: None  # the condition never holds
    with pytest.raises(UnavailableError, match="too many query runs"):
        write(failing_engine, store, B, base=VersionId(1, A), run="run-2")


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


def test_a_zombie_of_an_older_run_never_wins(engines: Engines, store: str) -> None:
    """After a restart of the query, what the old run still commits has the lower epoch: it wins no version."""
    base = write(engines(), store, A, {b"n": b"1"}, run="run-1")
    zombie = begin(engines(), store, Z, {b"n": b"zombie"}, base=base)
    write(engines(), store, B, {b"n": b"2"}, base=base, run="run-2")
    zombie.commit({0: 1}, SCHEMA)
    assert read(engines(), store, 2) == {b"n": b"2"}


@pytest.mark.parametrize("sees", ["open", "open near", "snapshot", "clean-up", "enter"])
def test_two_queries_on_one_namespace(engines: Engines, tables: Tables, store: str, sees: str) -> None:
    """A copied checkpoint: the query that began to write first is refused once it sees the other, which continues."""
    first, second = engines(), engines()
    made = write_versions(first, store, 3)
    mine = write(first, store, A, {b"by": b"first"}, base=made[3])
    theirs = write(second, store, B, {b"by": b"second"}, base=made[3], run="run-2")
    under_way = begin(first, store, C, {b"by": b"first"}, base=mine)
    if sees == "open":
        assert read(first, store, 4)[b"by"] == b"second"
    elif sees == "open near":
        assert read(first, store, 4, have=[made[3]])[b"by"] == b"second"
    elif sees == "snapshot":
        assert first.snapshot(store, "run-1", *mine, 1, 1)[0] is None
    elif sees == "clean-up":
        first.clean_up(store, "run-1", *mine, 2, 1, 0)
    else:
        under_way = begin(engines(), store, C, base=mine)  # an executor that never wrote to this store
    with pytest.raises(ConfigurationError, match=r"newer run of this query writes.*run=run-1 epoch=1 newest=2"):
        under_way.commit({0: 1}, SCHEMA)
    under_way.abort()
    assert read(second, store, *write(second, store, D, {b"d": b"d"}, base=theirs, run="run-2"))[b"by"] == b"second"
    assert {key.sort.split("/")[1] for key, _ in parts_of(tables, store)}.isdisjoint({C.hex()})


def test_an_old_run_that_first_writes_beside_a_newer_one(engines: Engines, store: str) -> None:
    """A run is as new as its first write: one that was idle before that counts as the newest.

    Under v2 no commit names its version. The run that continues is refused once it sees it; restarted, it finds its
    versions.
    """
    engine = engines()
    made = write_versions(engine, store, 3)
    zombie = begin(engines(), store, Z, {b"3": b"3"}, base=made[2], run="run-0")
    zombie.commit({0: 3}, SCHEMA)
    expected = numbers(3)
    assert read(engine, store, *made[3]) == expected
    assert engine.open(store, 3, NO_ATTEMPT).entry.attempt == Z
    with pytest.raises(ConfigurationError, match="this one is over"):
        write(engine, store, D, {b"4": b"4"}, base=made[3])
    again = write(engine, store, D, {b"4": b"4"}, base=made[3], run="run-2")
    assert read(engines(), store, *again) == read(engines(), store, 4) == expected | {b"4": b"4"}


def test_a_checkpoint_started_over_at_the_same_path(engines: Engines, store: str) -> None:
    """Version 0 is empty whatever the tables hold, the new run's epoch is higher, and its versions win one by one."""
    old = write_versions(engines(), store, 3)
    one = write(engines(), store, A, {b"new": b"1"}, run="run-2")
    assert read(engines(), store, 1) == {b"new": b"1"}
    two = write(engines(), store, B, {b"new": b"2"}, base=one, run="run-2")
    assert read(engines(), store, 2) == read(engines(), store, *two) == {b"new": b"2"}
    assert read(engines(), store, *old[3]) == {b"1": b"1", b"2": b"2", b"3": b"3"}


# ------------------------------------------------------------------------------------------------------- loading


def test_only_what_is_missing_is_loaded(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """A provider that holds an older version gets the changes after it; for the newest, only the list is read."""
    made = write_versions(memory_engine, store, 25)
    memory.calls.clear()
    opening = memory_engine.open(store, 25, NO_ATTEMPT, [made[3], made[22], made[20]])
    assert opening.base == made[22]
    assert fold(opening.chunks) == {b"23": b"23", b"24": b"24", b"25": b"25"}
    assert [len(call.keys) for call in memory.called("get")] == [3]
    assert [call.keys[0].sort for call in memory.called("query")] == ["list/0000000000000002"]
    assert opening.meter.items_read == 3 + 3, "three parts; the group, meta and schema"
    memory.calls.clear()
    opening = memory_engine.open(store, 25, NO_ATTEMPT, [made[25]])
    assert (opening.entry.id, opening.base) == (made[25], made[25])
    assert list(opening.chunks) == []
    assert [call.verb for call in memory.calls] == ["query"]


def test_a_version_held_by_another_attempt_is_no_base(engine: Engine, store: str) -> None:
    """A held version counts only if it is in the lineage, not if another attempt or run made it."""
    made = write_versions(engine, store, 12)
    other = write(engine, store, A, {b"other": b"1"}, base=made[11], run="run-2")
    assert engine.open(store, 12, NO_ATTEMPT, [made[12]]).base == EMPTY
    assert engine.open(store, 12, NO_ATTEMPT, [made[12], made[11]]).base == made[11]
    assert read(engine, store, 12, NO_ATTEMPT, [made[12]])[b"other"] == b"1"
    assert read(engine, store, *made[12], [other]) == numbers(12)
    assert read(engine, store, 4, NO_ATTEMPT, made[10:]) == numbers(4), "a rollback below all that is held"


def test_a_missing_version_names_all_that_are_there(engine: Engine, store: str) -> None:
    """The error names every version, also if only the newest lists had to be read; without any, what to set."""
    made = write_versions(engine, store, 23)
    for have in ((), (made[21],)):
        with pytest.raises(
            VersionMissingError, match=rf"does not exist store={store} version=24 versions=1-23 table=snapshot "
        ):
            engine.open(store, 24, NO_ATTEMPT, have)
    with pytest.raises(VersionMissingError, match=r"version=99 versions=1-23 table=snapshot "):
        engine.open(store, 99, NO_ATTEMPT, [VersionId(95, A)])
    with pytest.raises(VersionMissingError, match=rf"dynastate\.namespace .*store={store}0 version=7"):
        engine.open(f"{store}0", 7, NO_ATTEMPT, [VersionId(6, A)])


def test_reading_ahead_is_bounded(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """While a slow provider takes its rows, or stops, at most one window is read ahead."""
    write(memory_engine, store, A, *({b"%d" % number: b"1"} for number in range(10 * Limits.window_parts)))
    memory.calls.clear()
    opening = memory_engine.open(store, 1, NO_ATTEMPT)
    assert memory.called("get") == []
    taken = iter(opening.chunks)
    for number in range(10 * Limits.window_parts):
        next(taken)
        assert len(memory.called("get")) <= number // Limits.window_parts + 2
    assert next(taken, None) is None
    unread = memory_engine.open(store, 1, NO_ATTEMPT).chunks
    next(unread)
    del unread
    assert len(read(memory_engine, store, 1)) == 10 * Limits.window_parts, (
        "an opening that is not read to its end blocks nothing"
    )
    assert {len(call.keys) for call in memory.called("get")} == {Limits.window_parts}


@pytest.mark.parametrize("sidecars", [1, 4])
def test_all_openings_share_what_is_read_ahead(
    sidecars: int, memory: MemoryTables, memory_engine: Engine, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen slow openings read a window each, and not more ahead than fits into their sidecar's part."""
    write(memory_engine, store, A, *({b"%d" % number: b"1"} for number in range(10 * Limits.window_parts)))
    window_bytes = Limits.window_parts * windows._part_bytes(memory_engine.open(store, 1, NO_ATTEMPT).entry)
    monkeypatch.setattr(reader, "READ_AHEAD_BYTES_MAX", 4 * window_bytes * sidecars)
    engine = make_engine(memory, parallel_requests=8 * sidecars, sidecars=sidecars)
    memory.calls.clear()
    openings = [iter(engine.open(store, 1, NO_ATTEMPT).chunks) for _ in range(16)]
    for opening in openings:
        next(opening)
    assert engine._reader._ahead_bytes == (4 + 15) * window_bytes
    assert all(len(list(opening)) == 10 * Limits.window_parts - 1 for opening in openings[:8])
    assert len(memory.called("get")) <= 8 * 10 + 8 + 4
    del opening, openings
    assert engine._reader._ahead_bytes == 0
    engine.close()


@pytest.mark.parametrize(
    ("sidecars", "cache_kb", "routes_kb", "threads"),
    [(None, 65_536, 32_768, 8), (1, 65_536, 32_768, 8), (3, 21_845, 10_922, 2), (64, 1024, 512, 1)],
)
def test_sidecars_divide_what_one_would_have(
    sidecars: int | None, cache_kb: int, routes_kb: int, threads: int, memory: MemoryTables
) -> None:
    """The caches and the requests of an executor are divided among its sidecars; each may send one request."""
    engine = Engine(memory, Settings(sidecars=sidecars))
    assert engine.known_stores.parts.limit_bytes // 1024 == cache_kb
    assert engine.known_stores.routes.limit_bytes // 1024 == routes_kb
    assert len(engine._writer._workers) == engine._reader._parallel == threads
    engine.close()


def test_several_reads_are_under_way_at_once(failing_engine: Engine, failing_tables: FailingTables, store: str) -> None:
    """A recovery has as many reads under way at once as there may be requests."""
    write(failing_engine, store, A, *({b"%d" % number: b"1"} for number in range(4 * Limits.window_parts)))
    pair = threading.Barrier(2, timeout=10)

    def meet(verb: str) -> None:
        if verb == "get":
            pair.wait()

    failing_tables._before = meet
    assert len(read(failing_engine, store, 1)) == 4 * Limits.window_parts


# ----------------------------------------------------------------------------------------------------- lost and corrupt


def corrupt(engine: Engine, store: str, version: int) -> str:
    """Read a version that is corrupt; return what the error says."""
    with pytest.raises(CorruptStateError) as failed:
        read(engine, store, version)
    said = str(failed.value)
    assert f"store={store}" in said or f"store_shard={store}#" in said
    return said


def test_a_part_replaced_by_another_whole_one_is_found(engine: Engine, tables: Tables, store: str) -> None:
    """The entry's digest reveals a part with a valid checksum that is not the one that was committed."""
    write(engine, store, A, {b"a": b"1"}, {b"b": b"2"})
    _, (key, _) = parts_of(tables, store)
    ((other, item),) = part_items(store, 1, A, 1, 4, chunk({b"b": b"3"}))
    assert other == key
    tables.write([(key, item)])
    said = corrupt(engine, store, 1)
    assert "parts do not agree with the version list or manifest that names them" in said
    assert f"version=1 attempt={A.hex()} parts=2" in said


@pytest.mark.parametrize("base", [(1, A), EMPTY], ids=["continued", "started over"])
def test_a_lost_meta_item_is_not_created_again(engines: Engines, tables: Tables, store: str, base: VersionId) -> None:
    """A store with versions is never taken for a new one: an epoch that begins at 1 again would lose to the old."""
    write(engines(), store, A, {b"a": b"1"})
    tables.delete([meta_key(store)])
    said = rf"its meta item is lost: restore.*dynastate drop.* table=snapshot store_shard={store}#0 item=meta"
    with pytest.raises(CorruptStateError, match=said):
        write(engines(), store, B, {b"a": b"2"}, base=base, run="run-2")
    assert "meta" not in items_of(tables, store)


# ---------------------------------------------------------------------------------------------------- abort and failure


def test_a_store_dropped_and_created_again_beside_a_live_executor(engines: Engines, tables: Tables, store: str) -> None:
    """Epochs start again with the meta item, whichever engine makes it: epochs remembered from before refuse no run."""
    for maker in range(2):
        one, other = engines(), engines()
        for number in range(6):
            engine, run = (one, other)[number % 2], f"run-{maker}-{number // 2}"
            write(engine, store, attempt(10 + number), {b"old": b"1"}, run=run)
        drop_stores(tables, [store])
        for number, engine in enumerate((one, other)):
            made = write(engine, store, attempt(20 + number), {b"new": b"%d" % number}, run=f"new-{maker}")
            assert read(engine, store, *made) == {b"new": b"%d" % number}
        drop_stores(tables, [store])


def test_abort_deletes_what_was_written(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """Parts that were written are deleted in requests of 25, queued ones never sent; versions stay as they are."""
    base = write(memory_engine, store, A, {b"a": b"1"})
    before = parts_of(memory, store)
    memory.calls.clear()
    under_way = begin(memory_engine, store, B, *singles(70), base=base)
    under_way._pending.wait(5)
    under_way.abort()
    written = [key for call in memory.called("write") for key in call.keys]
    assert [len(call.keys) for call in memory.called("delete")] == [25, 25]
    assert sorted(key for call in memory.called("delete") for key in call.keys) == sorted(written)
    assert parts_of(memory, store) == before
    assert read(memory_engine, store, 1) == {b"a": b"1"}
    assert read(memory_engine, store, *write(memory_engine, store, C, {b"a": b"2"}, base=base)) == {b"a": b"2"}


def test_abort_of_a_queued_attempt_writes_nothing(memory: MemoryTables, store: str) -> None:
    """Parts that wait behind another's request are dropped by abort: neither written nor deleted."""
    door = Door()
    for make in closing(FailingTables(memory, door)):
        engine = make()
        others = [begin(engine, f"{name}/0/0/default", A, *singles(25)) for name in ("one", "two")]
        door.wait_for(2)
        queued = begin(engine, store, B, *singles(25))
        aborting = threading.Thread(target=queued.abort)
        aborting.start()
        wait_until(lambda queued=queued: queued._pending.cancelled, "the abort does not begin")  # type: ignore[misc]
        door.open()
        aborting.join(10)
        assert memory.called("delete") == []
        assert [key for key in memory.keys("delta") if key.store_shard.startswith(store)] == []
        for other in others:
            other.abort()


def test_abort_leaves_the_schema(failing_engine: Engine, failing_tables: FailingTables, store: str) -> None:
    """The schema item is shared: an abort must not delete what another version names."""
    failing_tables.fail("update", Fault(UnavailableError("throttled")))
    first = begin(failing_engine, store, A, {b"a": b"1"})
    with pytest.raises(UnavailableError):
        first.commit({0: 1}, SCHEMA)
    write(failing_engine, store, B, {b"a": b"2"})
    first.abort()
    found = entry(failing_tables, store, 1)
    assert found.attempt == B
    assert schema_key(store, found.schema).sort in items_of(failing_tables, store)
    assert read(failing_engine, store, 1) == {b"a": b"2"}
    assert {key.sort[21:53] for key, _ in parts_of(failing_tables, store)} == {B.hex()}


def test_an_unfinished_abort_is_reported(failing_engine: Engine, failing_tables: FailingTables, store: str) -> None:
    """Parts that could not be deleted stay invisible, and the caller gets the error."""
    under_way = begin(failing_engine, store, A, *singles(25))
    under_way._pending.wait(5)
    failing_tables.fail("delete", Fault(UnavailableError("throttled")))
    with pytest.raises(UnavailableError, match="throttled"):
        under_way.abort()
    assert len(parts_of(failing_tables, store)) == 25
    with pytest.raises(VersionMissingError):
        failing_engine.open(store, 1, NO_ATTEMPT)


@pytest.mark.parametrize(
    ("verb", "applied"),
    [
        *((verb, applied) for verb in ("get", "query", "put_new", "write") for applied in (False, True)),
        ("update", False),
    ],
)
def test_a_commit_that_fails_leaves_nothing_visible(
    failing_engine: Engine, failing_tables: FailingTables, store: str, verb: str, *, applied: bool
) -> None:
    """Whatever step of a commit fails, before or after it was applied: no version, and no part once it is aborted.

    An append that was applied is no failure but an unknown outcome, which has its own test.
    """
    failing_tables.fail(verb, Fault(UnavailableError("throttled"), applied=applied))
    under_way = begin(failing_engine, store, A)
    with pytest.raises(UnavailableError, match="throttled"):  # noqa: PT012  # either may be the one that fails
        for number in range(60):
            under_way.append(chunk({b"%d" % number: b"1"}))
        under_way.commit({0: 60}, SCHEMA)
    with pytest.raises(VersionMissingError):
        failing_engine.open(store, 1, NO_ATTEMPT)
    under_way.abort()
    assert parts_of(failing_tables, store) == []
    write(failing_engine, store, B, {b"a": b"1"})
    assert read(failing_engine, store, 1) == {b"a": b"1"}


def test_a_failed_append_refuses_the_commit(failing_engine: Engine, failing_tables: FailingTables, store: str) -> None:
    """After a failed append no version without that chunk can be committed."""
    failing_tables.fail("get", Fault(UnavailableError("throttled")))
    under_way = begin(failing_engine, store, A)
    with pytest.raises(UnavailableError):
        under_way.append(chunk({b"a": b"1"}))
    with pytest.raises(InternalError, match="append after an append that failed"):
        under_way.append(chunk({b"b": b"1"}))
    with pytest.raises(InternalError, match="commit after an append that failed"):
        under_way.commit({0: 1}, SCHEMA)
    with pytest.raises(VersionMissingError):
        failing_engine.open(store, 1, NO_ATTEMPT)


@pytest.mark.parametrize("applied", [False, True])
def test_an_unknown_outcome_retains_the_parts(
    failing_engine: Engine, failing_tables: FailingTables, store: str, *, applied: bool
) -> None:
    """A commit that may have happened must not lose its parts by the abort that follows: it would be corrupt."""
    failing_tables.fail("update", Fault(UnknownOutcomeError("it may have happened"), applied=applied))
    under_way = begin(failing_engine, store, A, {b"a": b"1"})
    with pytest.raises(UnknownOutcomeError):
        under_way.commit({0: 1}, SCHEMA)
    under_way.abort()
    assert len(parts_of(failing_tables, store)) == 1
    if applied:
        assert read(failing_engine, store, 1) == {b"a": b"1"}
    write(failing_engine, store, B, {b"a": b"1"})
    assert read(failing_engine, store, 1) == {b"a": b"1"}


def test_an_ended_attempt_refuses_any_step(engine: Engine, store: str) -> None:
    """After commit or abort an attempt is over: an abort does nothing, any other step is a defect of the caller."""
    committed, aborted = begin(engine, store, A, {b"a": b"1"}), begin(engine, store, B)
    committed.commit({0: 1}, SCHEMA)
    aborted.abort()
    for ended in (committed, aborted):
        ended.abort()
        ended.abort()
        with pytest.raises(InternalError, match=f"append on an attempt that has ended store={store}"):
            ended.append(chunk({b"a": b"2"}))
        with pytest.raises(InternalError, match="commit on an attempt that has ended"):
            ended.commit({0: 0}, SCHEMA)
    assert read(engine, store, 1) == {b"a": b"1"}


@pytest.mark.parametrize(("base", "by"), [((0, NO_ATTEMPT), NO_ATTEMPT), ((0, A), B), ((1, NO_ATTEMPT), B)])
def test_an_attempt_needs_an_id_and_a_parent(engine: Engine, store: str, base: VersionId, by: Attempt) -> None:
    """An attempt without an id, or with a parent that does not go with its base, is refused."""
    with pytest.raises(InternalError, match="an attempt needs an id"):
        begin(engine, store, by, base=base)


def test_a_store_name_that_fits_no_key_is_refused(engine: Engine) -> None:
    """A name that makes no key is refused before anything is sent, for writing and for reading."""
    for name in ("", "a#b", "n" * 1025, "é" * 513):
        with pytest.raises(ConfigurationError, match="a store name must have"):
            begin(engine, name, A)
        with pytest.raises(ConfigurationError, match="a store name must have"):
            engine.open(name, 1, NO_ATTEMPT)


def test_an_attempt_with_too_many_parts_is_refused(engine: Engine, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence number has six digits; an attempt that needs more says what to do."""
    monkeypatch.setattr("dynastate.engine.commit.PARTS_MAX", 3)
    under_way = begin(engine, store, A, *singles(3))
    with pytest.raises(ConfigurationError, match="more shuffle partitions or smaller batches"):
        under_way.append(chunk({b"a": b"1"}))
    under_way.abort()


@pytest.mark.parametrize("tables", ["memory"], indirect=True)
def test_the_largest_row(engines: Engines, memory: MemoryTables, store: str) -> None:
    """A record of just 64 MiB that does not compress: through parts, then through a snapshot alone, and it is whole."""
    engine, row = engines(), {b"key": b""}
    row[b"key"] = random.Random(7).randbytes(RECORD_BYTES_MAX - len(chunk(row).changes))  # noqa: S311  # no secret
    assert len(chunk(row).changes) == RECORD_BYTES_MAX
    first = write(engine, store, A, {b"small": b"row"})
    second = write(engine, store, B, row, base=first)
    state = {b"small": b"row"} | row
    is_whole = read(engines(), store, *second) == state  # apart, since pytest would print 64 MiB of a difference
    assert is_whole
    third = write(engine, store, C, base=second)
    save_snapshot(engine, store, third, state, lambda _: set())
    fourth = write(engine, store, D, base=third)
    engine.clean_up(store, "run-1", *fourth, 1, 1, 0)
    assert parts_of(memory, store) == []
    is_whole = read(engines(), store, *fourth) == state
    assert is_whole
    refused = begin(engine, store, Z, base=fourth)
    with pytest.raises(ConfigurationError, match="larger than 64 MiB"):
        refused.append(chunk({b"key": row[b"key"] + b"x"}))
    refused.abort()
    assert parts_of(memory, store) == []


def test_a_schema_too_large_for_an_item_is_refused(engine: Engine, store: str) -> None:
    """A schema text over 400 KB is a configuration error at commit, not a refused request that others share."""
    under_way = engine.begin(store, query_run("run-1"), 0, NO_ATTEMPT, A)
    with pytest.raises(ConfigurationError, match="schema of this operator's state is too large"):
        under_way.commit({0: 0}, "x" * ITEM_BYTES_MAX)
    under_way.abort()


def test_the_memory_of_sessions_is_bounded(
    memory_engine: Engine, memory: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor with more stores than it remembers reads the meta item of a forgotten store again."""
    monkeypatch.setattr(memory_engine.commits.sessions._sessions, "limit_bytes", 2)
    for number in range(3):
        write(memory_engine, f"ns/0/{number}/default", A)
    assert memory_engine.commits.sessions._sessions.bytes == 2
    memory.calls.clear()
    write(memory_engine, "ns/0/2/default", B, base=VersionId(1, A))
    write(memory_engine, "ns/0/0/default", B, base=VersionId(1, A))
    assert [(call.verb, call.keys[0].store_shard) for call in memory.calls if call.verb == "get"] == [
        ("get", "ns/0/0/default#0")
    ]


def test_a_copy_of_a_checkpoint_is_refused(engine: Engine, tables: Tables, store: str) -> None:
    """A run from another location, resumed or of another query, writes nothing; the error names both, and ways out."""
    one = write(engine, store, A, {b"k": b"1"}, run="run-1")
    before = items_of(tables, store)
    ways = (
        f"the checkpoint {CHECKPOINT}.*file:/copy/state.*dynastate fork .*dynastate adopt .* --checkpoint file:/copy\\."
    )
    another = f"namespace belongs to the query with the checkpoint {CHECKPOINT}"
    for base, said in ((one, ways), (EMPTY, another)):
        copy = engine.begin(store, query_run("run-2", "file:/copy/state"), *base, B)
        with pytest.raises(ConfigurationError, match=said):
            copy.commit({0: 1}, SCHEMA)
        copy.abort()
    assert items_of(tables, store) == before
    two = write(engine, store, C, {b"k": b"2"}, base=one, run="run-1")
    assert read(engine, store, *two) == {b"k": b"2"}
