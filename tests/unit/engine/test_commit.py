"""Write attempts: chunks, parts, the commit, and its failures."""

from __future__ import annotations

import random
import threading
from itertools import product
from typing import Any

import pytest

from dynastate.engine import commit as commits
from dynastate.engine.commit import HANDED_OVER_BYTES
from dynastate.engine.engine import Engine
from dynastate.errors import (
    ConfigurationError,
    InternalError,
    UnavailableError,
    UnknownOutcomeError,
    VersionMissingError,
)
from dynastate.format.changes import PUT, RECORD_BYTES_MAX, Change, encode_changes
from dynastate.format.items import Item, item_bytes
from dynastate.format.keys import EMPTY, NO_ATTEMPT, STORE_BYTES_MAX, Key, schema_key
from dynastate.format.meta import parse_schema
from dynastate.format.parts import CHUNK_BYTES_MAX, part_items
from dynastate.storage.limits import ITEM_BYTES_MAX
from dynastate.storage.tables import Tables
from tests.support.contents import entry, items_of, parts_of
from tests.support.engine_driver import Engines, begin, closing, commit, read, save_snapshot, write, write_versions
from tests.support.faults import Door, FailingTables, Fault
from tests.support.memory_tables import MemoryTables
from tests.support.processes import wait_until
from tests.support.samples import SCHEMA, A, B, C, D, Z, attempt, chunk, noise, query_run, singles


def test_a_committed_version_never_changes(engine: Engine, store: str) -> None:
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


def test_large_chunks_are_compressed_by_threads(engine: Engine, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert [one.changes for one in engine.open(store, 1, NO_ATTEMPT).chunks] == [chunk(one).changes for one in chunks]


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
    versions = write_versions(engine, store, 12)
    groups = {sort: item for sort, item in items_of(tables, store).items() if sort.startswith("list/")}
    assert [(sort, len(item["versions"])) for sort, item in groups.items()] == [  # type: ignore[arg-type]  # a list
        ("list/0000000000000000", 9),
        ("list/0000000000000001", 3),
    ]
    for number in range(1, 13):
        listed = entry(tables, store, number)
        assert (listed.attempt, listed.parent, listed.epoch) == (versions[number][1], versions[number - 1][1], 1)
        assert (listed.parts, listed.records, listed.keys) == (1, 1, {0: 0})
        assert listed.raw_bytes == listed.stored_bytes == len(chunk({b"%d" % number: b"%d" % number}).changes)
    last = begin(engine, store, A, {b"k": bytes(5000)}, base=versions[12]).commit({0: 7, 3: 2**40}, SCHEMA)
    listed = entry(tables, store, 13)
    assert listed.keys == {0: 7, 3: 2**40}
    assert listed.stored_bytes < listed.raw_bytes == last.entry.raw_bytes
    key = schema_key(store, listed.schema)
    assert parse_schema(key, items_of(tables, store)[key.sort]) == SCHEMA


def test_requests_of_a_commit(engine: Engine, tables: Tables, store: str) -> None:
    """On a warm session: one append to the version list, after one write of parts where there are changes."""
    base = write(engine, store, A, {b"k": b"v"})
    two, metrics = commit(engine, store, B, base=base)
    assert (metrics["requests"], metrics["writeUnits"], metrics["readUnits"], metrics["parts"]) == (1, 1, 0, 0)
    assert read(engine, store, *two) == {b"k": b"v"}
    assert len(parts_of(tables, store)) == 1
    _, metrics = commit(engine, store, C, {b"k": b"w"}, {b"l": b"w"}, base=two)
    assert (metrics["requests"], metrics["writeUnits"], metrics["parts"], metrics["records"]) == (2, 3, 2, 2)


def test_commits_and_openings_report_what_they_cost(engine: Engine, store: str) -> None:
    """No metric stays 0 but those of what did not happen."""
    _, metrics = commit(engine, store, A, {b"k": noise(5000)})
    not_done = {"retries", "throttles", "bytesRead", "cacheHits", "cacheMisses"}
    not_done |= {"puts", "gets", "objectBytesWritten", "objectBytesRead", "storedObjectBytes"}
    assert {name for name, value in metrics.items() if value == 0} == not_done
    assert metrics["writeUnits"] >= 5 + 3
    assert metrics["bytesWritten"] > 5000
    opening = engine.open(store, 1, NO_ATTEMPT)
    assert sum(each.records for each in opening.chunks) == 1
    assert (opening.meter.requests, opening.meter.read_units, opening.meter.cache_misses) == (2, 1 + 2, 1)
    assert opening.meter.bytes_read > 5000


def test_a_commit_is_one_item_write_after_all_parts(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """The commit point is the append to the version list, and it comes when every part and the schema are there."""
    write(memory_engine, store, A, *({b"%d" % number: noise(50_000, str(number))} for number in range(40)))
    verbs = [call.verb for call in memory.calls]
    assert verbs.count("update") == 1
    assert verbs[-1] == "update"
    keys = {key for call in memory.called("write") for key in call.keys}
    assert len(keys) == 41
    assert max(len(call.keys) for call in memory.called("write")) <= 25


def test_parts_are_written_while_the_batch_still_runs(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """A full request goes out when it is full, not at commit; less than that waits for more."""
    begin(memory_engine, store, A).abort()
    assert memory.calls == [], "beginning and aborting cost nothing before the first change"
    under_way = begin(memory_engine, store, A, {b"small": b"1"})
    assert memory.called("write") == []
    for changes in singles(25):
        under_way.append(chunk(changes))
    under_way._pending.wait(5)
    assert len(memory.called("write")) == 1
    under_way.abort()


def test_abort_deletes_what_was_written(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """Parts that were written are deleted in requests of 25, queued ones never sent; versions stay as they are."""
    base = write(memory_engine, store, A, {b"a": b"1"})
    first_parts = parts_of(memory, store)
    memory.calls.clear()
    under_way = begin(memory_engine, store, B, *singles(70), base=base)
    under_way._pending.wait(5)
    under_way.abort()
    keys = [key for call in memory.called("write") for key in call.keys]
    assert [len(call.keys) for call in memory.called("delete")] == [25, 25]
    assert sorted(key for call in memory.called("delete") for key in call.keys) == sorted(keys)
    assert parts_of(memory, store) == first_parts
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
    listed = entry(failing_tables, store, 1)
    assert listed.attempt == B
    assert schema_key(store, listed.schema).sort in items_of(failing_tables, store)
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
    ("verb", "applied"), [*product(("get", "query", "put_new", "write"), (False, True)), ("update", False)]
)
def test_a_commit_that_fails_leaves_nothing_visible(
    failing_engine: Engine, failing_tables: FailingTables, store: str, verb: str, *, applied: bool
) -> None:
    """Whatever step fails, before or after it was applied (the append: before): no version, no part after an abort."""
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
    engine.maintenance.clean_up(store, "run-1", *fourth, 1, 1, 0)
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
