"""Open, write, commit and abort, on tables in memory and on moto; faults on the seam."""

from __future__ import annotations

import hashlib
import random
import threading
import time

import pytest

from dynastate.dynamodb.limits import ITEM_BYTES_MAX
from dynastate.dynamodb.meter import Meter
from dynastate.dynamodb.tables import Tables
from dynastate.engine import reader
from dynastate.engine.commit import LISTED_MAX
from dynastate.engine.engine import Engine
from dynastate.engine.reader import WINDOW
from dynastate.errors import (
    ConfigurationError,
    CorruptStateError,
    InternalError,
    UnavailableError,
    UnknownOutcomeError,
    VersionMissingError,
)
from dynastate.format import parts
from dynastate.format.changes import PUT, RECORD_BYTES_MAX, Change, decode_changes, encode_changes
from dynastate.format.items import item_bytes, item_key
from dynastate.format.keys import (
    EMPTY,
    NO_ATTEMPT,
    STORE_BYTES_MAX,
    Attempt,
    VersionId,
    group_key,
    meta_key,
    part_key,
    schema_digest,
    schema_key,
)
from dynastate.format.meta import EPOCHS_KEPT, parse_schema
from dynastate.format.parts import CHUNK_BYTES_MAX, RAW_BYTES_MAX, Chunk, join_fragments, parse_part, part_items
from dynastate.format.version_list import VersionEntry, encode_entry
from dynastate.operations.drop import drop_stores
from dynastate.operations.verify import verify
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
    write,
    write_versions,
)
from tests.support.fakes import FailingTables, Fault, MemoryTables
from tests.support.processes import wait_until

A, B, C, D, Z = (attempt(number) for number in (0xA, 0xB, 0xC, 0xD, 0x2A))


def noise(length: int, seed: str = "seed") -> bytes:
    """Make bytes that do not compress."""
    return hashlib.shake_128(seed.encode()).digest(length)


# -------------------------------------------------------------------------------------------------- write, commit, open


def test_a_committed_version_never_changes(engine: Engine, store: str) -> None:
    """Each version reads back as exactly its own state after puts, overwrites and removes."""
    one = write(engine, store, A, {b"a": b"1", b"b": b"1", b"c": b"1"})
    two = write(engine, store, B, {b"a": b"2", b"b": None}, base=one)
    three = write(engine, store, C, {b"b": b"3", b"c": None}, base=two)
    assert [version for version, _ in (one, two, three)] == [1, 2, 3]
    assert read(engine, store, 1) == {b"a": b"1", b"b": b"1", b"c": b"1"}
    assert read(engine, store, 2) == {b"a": b"2", b"c": b"1"}
    assert read(engine, store, 3) == {b"a": b"2", b"b": b"3"}


def test_keys_and_values_may_be_any_bytes(engine: Engine, store: str) -> None:
    """Empty keys and values, and bytes that mean something in names, come back as they were."""
    state = {
        b"": b"",
        b"#": b"/",
        b"a_b/c#d": b"\x00" * 9,
        bytes(range(256)): b"\xff",
        "é".encode() * 2000: b"long key",
    }
    write(engine, store, A, state)
    assert read(engine, store, 1) == state


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
    count = 2 * WINDOW + 7
    chunks = [{b"same": b"%d" % number, b"own %d" % number: noise(40, str(number))} for number in range(count)]
    write(engine, store, A, *chunks)
    assert {key.store_shard for key, _ in parts_of(tables, store)} == {f"{store}#{shard}" for shard in range(4)}
    opening = engine.open(store, 1, NO_ATTEMPT)
    assert [run for _, run in opening.chunks] == [chunk(each).changes for each in chunks]
    assert read(engine, store, 1)[b"same"] == b"%d" % (count - 1)


def test_a_removed_key_is_written_as_a_delete_marker(engine: Engine, tables: Tables, store: str) -> None:
    """A remove lies in the part as a record with length -1, for a key that is there and for one that is not."""
    base = write(engine, store, A, {b"there": b"1"})
    write(engine, store, B, {b"there": None, b"never there": None}, base=base)
    key, item = parts_of(tables, store)[1]
    changes = list(decode_changes(join_fragments(key, [parse_part(key, item)])))
    assert changes == [(PUT, 0, b"there", None), (PUT, 0, b"never there", None)]
    assert read(engine, store, 2) == {}


def test_the_version_list_names_every_commit(engine: Engine, tables: Tables, store: str) -> None:
    """Each commit appends one entry, ten versions a group, that says who made it, on what, and how much it is."""
    made = write_versions(engine, store, 12)
    groups = {sort: item for sort, item in items_of(tables, store).items() if sort.startswith("group/")}
    assert [(sort, len(item["versions"])) for sort, item in groups.items()] == [  # type: ignore[arg-type]  # a list
        ("group/0000000000000000", 9),
        ("group/0000000000000001", 3),
    ]
    for number in range(1, 13):
        found = entry(tables, store, number)
        assert (found.attempt, found.parent, found.epoch) == (made[number][1], made[number - 1][1], 1)
        assert (found.parts, found.records, found.keys) == (1, 1, {0: 0})
        assert found.raw_bytes == found.stored_bytes == len(chunk({b"%d" % number: b"%d" % number}).changes)


def test_the_entry_holds_the_arguments_of_commit(engine: Engine, tables: Tables, store: str) -> None:
    """Key counts by column family and the schema's digest are in the entry, and the schema item exists."""
    under_way = begin(engine, store, A)
    under_way.append(chunk({b"k": bytes(5000)}))
    made = under_way.commit({0: 7, 3: 2**40}, SCHEMA)
    found = entry(tables, store, 1)
    assert found.keys == {0: 7, 3: 2**40}
    assert found.stored_bytes < found.raw_bytes == made.entry.raw_bytes
    key = schema_key(store, found.schema)
    assert parse_schema(key, items_of(tables, store)[key.sort]) == SCHEMA


def test_the_meta_item_says_what_the_store_is(engine: Engine, tables: Tables, store: str) -> None:
    """The meta item holds the store, the checkpoint in clear text, shards, package and time of the first commit."""
    write(engine, store, A, {b"k": b"v"})
    assert items_of(tables, store)["meta"] == item_key(meta_key(store)) | {
        "format": 2,
        "store": store,
        "query": QUERY,
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


def test_an_unchanged_partition_commits_with_one_write(engine: Engine, tables: Tables, store: str) -> None:
    """Once a query run has written to a store, a commit without changes is one write request and one write unit."""
    base = write(engine, store, A, {b"k": b"v"})
    (version, _), spent = commit(engine, store, B, base=base)
    assert (spent["requests"], spent["writeUnits"], spent["readUnits"], spent["parts"]) == (1, 1, 0, 0)
    assert read(engine, store, version) == {b"k": b"v"}
    assert len(parts_of(tables, store)) == 1


def test_a_small_commit_is_two_requests(engine: Engine, store: str) -> None:
    """On a warm session a commit with changes is one write of parts, then one append to the version list."""
    base = write(engine, store, A, {b"k": b"v"})
    _, spent = commit(engine, store, B, {b"k": b"w"}, {b"l": b"w"}, base=base)
    assert (spent["requests"], spent["writeUnits"], spent["parts"], spent["records"]) == (2, 3, 2, 2)


def test_commits_and_openings_report_what_they_cost(engine: Engine, store: str) -> None:
    """No metric stays 0 but those of what did not happen."""
    _, spent = commit(engine, store, A, {b"k": noise(5000)})
    not_done = {"retries", "throttles", "bytesRead", "cacheHits", "cacheMisses"}
    assert {name for name, value in spent.items() if value == 0} == not_done
    assert spent["writeUnits"] >= 5 + 3
    assert spent["bytesWritten"] > 5000
    opening = engine.open(store, 1, NO_ATTEMPT)
    assert sum(records for records, _ in opening.chunks) == 1
    spent_reading = opening.meter
    assert (spent_reading.requests, spent_reading.read_units, spent_reading.cache_misses) == (2, 1 + 2, 1)
    assert spent_reading.bytes_read > 5000


def test_a_commit_is_one_item_write_after_all_parts(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """The commit point is the append to the version list, and it comes when every part and the schema are there."""
    under_way = begin(memory_engine, store, A)
    for number in range(40):
        under_way.append(chunk({b"%d" % number: noise(50_000, str(number))}))
    under_way.commit({0: 40}, SCHEMA)
    verbs = [call.verb for call in memory.calls]
    assert verbs.count("append_version") == 1
    assert verbs[-1] == "append_version"
    written = {key for call in memory.called("write") for key in call.keys}
    assert len(written) == 41
    assert max(len(call.keys) for call in memory.called("write")) <= 25


def test_parts_are_written_while_the_batch_still_runs(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """A full request goes out when it is full, not at commit; less than that waits for more."""
    under_way = begin(memory_engine, store, A)
    under_way.append(chunk({b"small": b"1"}))
    assert memory.called("write") == []
    for number in range(25):
        under_way.append(chunk({b"%d" % number: b"1"}))
    under_way._pending.wait(5)
    assert len(memory.called("write")) == 1
    under_way.abort()


def test_nothing_is_sent_for_an_attempt_that_did_nothing(
    memory_engine: Engine, memory: MemoryTables, store: str
) -> None:
    """Beginning an attempt, and aborting it before its first change, costs no request."""
    under_way = begin(memory_engine, store, A)
    under_way.abort()
    assert memory.calls == []


def test_the_schema_is_written_once_a_session(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """The schema item goes out with the first commit of a query run, and again only when the schema changes."""
    write_versions(memory_engine, store, 3)
    base = (3, attempt(3))
    under_way = memory_engine.begin(store, query_run("run-1"), *base, A)
    under_way.commit({0: 3}, SCHEMA + " ")
    written = [key.sort for call in memory.called("write") for key in call.keys if key.sort.startswith("schema/")]
    assert written == [schema_key(store, schema_digest(text)).sort for text in (SCHEMA, SCHEMA + " ")]


def test_two_attempts_may_make_a_store_at_once(failing_tables: FailingTables, store: str) -> None:
    """A zombie beside its retry, both with the first commit to a store: both write the schema item, and both commit."""
    door, arrived = threading.Event(), threading.Event()

    def hold(verb: str) -> None:
        if verb == "write":
            arrived.set()
            assert door.wait(10)

    failing_tables._before = hold
    for make in closing(failing_tables):
        engine = make(parallel_requests=1)
        threads = []
        for name, by in (("another/0/0/default", C), (store, A), (store, B)):
            under_way = begin(engine, name, by)
            under_way.append(chunk({b"k": by}))
            threads.append(threading.Thread(target=under_way.commit, args=({0: 1}, SCHEMA)))
            threads[-1].start()
            assert arrived.wait(10)
        while len(engine._writer._queue) < 4:
            time.sleep(0.001)
        door.set()
        for thread in threads:
            thread.join(10)
    found = graph(failing_tables, store)
    assert {found.find(1, each).attempt for each in (A, B)} == {A, B}


# ------------------------------------------------------------------------------------------- which attempt, which epoch


def test_epochs_rise_with_each_query_run(engines: Engines, tables: Tables, store: str) -> None:
    """Each new run gets the next epoch at its first write; the same run keeps its own, in another process as well."""
    base = write(engines(), store, attempt(1), run="run-1")
    base = write(engines(), store, attempt(2), run="run-1", base=base)
    base = write(engines(), store, attempt(3), run="run-2", base=base)
    write(engines(), store, attempt(4), run="run-3", base=base)
    assert [entry(tables, store, version).epoch for version in (1, 2, 3, 4)] == [1, 1, 2, 3]
    assert items_of(tables, store)["meta"]["epochs"] == {"run-1": 1, "run-2": 2, "run-3": 3}


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


def test_only_the_newest_runs_are_kept(engine: Engine, tables: Tables, store: str) -> None:
    """The meta item keeps the epochs of the newest sixteen runs, so that it does not grow without limit."""
    base = EMPTY
    for number in range(1, 21):
        base = write(engine, store, attempt(number), run=f"run-{number}", base=base)
    meta = items_of(tables, store)["meta"]
    assert meta["epoch"] == 20
    assert meta["epochs"] == {f"run-{number}": number for number in range(5, 21)}
    assert item_bytes(meta) < 1024


def test_a_run_entered_by_another_executor_is_found(engines: Engines, tables: Tables, store: str) -> None:
    """Two executors that enter one run at once get one epoch."""
    write(engines(), store, A, run="run-1")
    failing_tables = FailingTables(tables)
    engine = engines(failing_tables)

    def enter_first(verb: str) -> None:
        if verb == "advance_epoch":
            failing_tables._before = lambda _: None
            write(engines(), store, B, base=VersionId(1, A), run="run-2")

    failing_tables._before = enter_first
    write(engine, store, C, base=VersionId(1, A), run="run-2")
    assert [graph(tables, store).find(2, each).epoch for each in (B, C)] == [2, 2]


@pytest.mark.parametrize("moment", ["query", "put_new"])
def test_a_store_made_by_another_executor_is_found(engines: Engines, tables: Tables, store: str, moment: str) -> None:
    """Two executors that make one store at once agree on its meta item, whenever the other one is first."""
    failing_tables = FailingTables(tables)
    engine = engines(failing_tables, shards=2)

    def make_first(verb: str) -> None:
        if verb == moment:
            failing_tables._before = lambda _: None
            write(engines(shards=3), store, A, {b"k": b"v"}, run="run-1")

    failing_tables._before = make_first
    write(engine, store, B, {b"k": b"w"}, run="run-2")
    assert items_of(tables, store)["meta"]["shards"] == 3
    assert [graph(tables, store).find(1, each).epoch for each in (A, B)] == [1, 2]
    assert read(engine, store, 1) == {b"k": b"w"}


def test_a_run_without_an_epoch_fails_after_bounded_retries(
    failing_engine: Engine, failing_tables: FailingTables, store: str
) -> None:
    """A run whose epoch is always taken by another fails after a bounded number of tries; its task can be retried."""
    write(failing_engine, store, A)
    failing_tables.advance_epoch = lambda *_: False  # type: ignore[method-assign]  # the condition never holds
    with pytest.raises(UnavailableError, match="too many query runs"):
        write(failing_engine, store, B, base=VersionId(1, A), run="run-2")


def test_without_an_id_the_highest_epoch_wins(engines: Engines, store: str) -> None:
    """Checkpoint format v1: of two attempts at a version the newer run's counts, also where it was appended first."""
    write(engines(), store, A, {b"by": b"run 1"}, run="run-1")
    old = begin(engines(), store, C, run="run-1")
    old.append(chunk({b"by": b"run 1, late"}))
    write(engines(), store, B, {b"by": b"run 2"}, run="run-2")
    old.commit({0: 1}, SCHEMA)
    assert read(engines(), store, 1) == {b"by": b"run 2"}


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
    assert engine.open(store, 1, A).attempt == A
    with pytest.raises(VersionMissingError, match=f"not by that attempt store={store} version=1 attempt={C.hex()}"):
        engine.open(store, 1, C)


def test_a_committed_version_is_made_again_from_its_base(engine: Engine, store: str) -> None:
    """A task that fails after its commit is retried from the same base: both attempts are kept, each with its state."""
    base = write(engine, store, A, {b"n": b"1"})
    write(engine, store, B, {b"n": b"2", b"B": b"x"}, base=base)
    again = write(engine, store, C, {b"n": b"2", b"C": b"x"}, base=base)
    assert read(engine, store, 2, B) == {b"n": b"2", b"B": b"x"}
    assert read(engine, store, 2) == {b"n": b"2", b"C": b"x"}
    assert read(engine, store, *write(engine, store, D, {b"n": b"3"}, base=again)) == {b"n": b"3", b"C": b"x"}


def test_a_late_zombie_changes_no_later_version(engine: Engine, store: str) -> None:
    """A task that was replaced commits after the next version was made: that version's lineage does not include it."""
    base = write(engine, store, A, {b"kept": b"1", b"gone": b"1"})
    zombie = begin(engine, store, Z, base)
    zombie.append(chunk({b"gone": b"zombie", b"zombie": b"1"}))
    two = write(engine, store, B, {b"gone": None}, base=base)
    three = write(engine, store, C, {b"new": b"1"}, base=two)
    zombie.commit({0: 3}, SCHEMA)
    assert read(engine, store, *three) == read(engine, store, 3) == {b"kept": b"1", b"new": b"1"}
    assert read(engine, store, *two) == {b"kept": b"1"}
    assert read(engine, store, 3, NO_ATTEMPT, [two]) == {b"new": b"1"}


def test_a_zombie_of_an_older_run_never_wins(engines: Engines, store: str) -> None:
    """After a restart of the query, what the old run still commits has the lower epoch: it wins no version."""
    base = write(engines(), store, A, {b"n": b"1"}, run="run-1")
    zombie = begin(engines(), store, Z, base, run="run-1")
    zombie.append(chunk({b"n": b"zombie"}))
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
    under_way = begin(first, store, C, mine)
    under_way.append(chunk({b"by": b"first"}))
    if sees == "open":
        assert read(first, store, 4)[b"by"] == b"second"
    elif sees == "open near":
        assert read(first, store, 4, have=[made[3]])[b"by"] == b"second"
    elif sees == "snapshot":
        assert first.snapshot(store, "run-1", *mine, 1, 1)[0] is None
    elif sees == "clean-up":
        first.clean_up(store, "run-1", *mine, 2, 1, 0)
    else:
        under_way = begin(engines(), store, C, mine)  # an executor that never wrote to this store
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
    zombie = begin(engines(), store, Z, made[2], run="run-0")
    zombie.append(chunk({b"3": b"3"}))
    zombie.commit({0: 3}, SCHEMA)
    expected = numbers(3)
    assert read(engine, store, *made[3]) == expected
    assert engine.open(store, 3, NO_ATTEMPT).attempt == Z
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
    """A provider that holds an older version of the lineage gets the changes after it, and nothing else is read."""
    made = write_versions(memory_engine, store, 25)
    memory.calls.clear()
    opening = memory_engine.open(store, 25, NO_ATTEMPT, [made[3], made[22], made[20]])
    assert opening.base == made[22]
    assert fold(opening.chunks) == {b"23": b"23", b"24": b"24", b"25": b"25"}
    assert [len(call.keys) for call in memory.called("get")] == [3]
    assert [call.keys[0].sort for call in memory.called("query")] == ["group/0000000000000002"]
    assert opening.meter.items_read == 3 + 3, "three parts; the group, meta and schema"


def test_a_version_that_is_held_needs_no_part(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """Opening just the version that is held reads the version list, to be sure of the attempt, and no part."""
    made = write_versions(memory_engine, store, 5)
    memory.calls.clear()
    opening = memory_engine.open(store, 5, NO_ATTEMPT, [made[5]])
    assert (opening.version, opening.attempt, opening.base) == (*made[5], made[5])
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


def test_a_version_below_what_is_held_is_loaded_whole(engine: Engine, store: str) -> None:
    """A rollback to a version older than all held ones is loaded from the beginning."""
    made = write_versions(engine, store, 15)
    opening = engine.open(store, 4, NO_ATTEMPT, made[10:])
    assert opening.base == EMPTY
    assert set(fold(opening.chunks)) == {b"1", b"2", b"3", b"4"}


def test_a_missing_version_names_all_that_are_there(engine: Engine, store: str) -> None:
    """The error names every version, even if only the newest lists had to be read for this provider."""
    made = write_versions(engine, store, 23)
    for have in ((), (made[21],)):
        with pytest.raises(
            VersionMissingError, match=rf"does not exist store={store} version=24 versions=1-23 table=snapshot "
        ):
            engine.open(store, 24, NO_ATTEMPT, have)
    with pytest.raises(VersionMissingError, match=r"version=99 versions=1-23 table=snapshot "):
        engine.open(store, 99, NO_ATTEMPT, [VersionId(95, A)])


def test_a_store_without_state_says_what_to_set(engine: Engine, store: str) -> None:
    """Nothing at all under the store's name: the checkpoint may have moved, and the error says what to set."""
    with pytest.raises(VersionMissingError, match=rf"dynastate\.namespace .*store={store} version=7"):
        engine.open(store, 7, NO_ATTEMPT, [VersionId(6, A)])


def test_reading_ahead_is_bounded(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """While a slow provider takes its rows, no more reads are under way than there may be requests at once."""
    write(memory_engine, store, A, *({b"%d" % number: b"1"} for number in range(10 * WINDOW)))
    memory.calls.clear()
    opening = memory_engine.open(store, 1, NO_ATTEMPT)
    assert memory.called("get") == []
    taken = iter(opening.chunks)
    for number in range(10 * WINDOW):
        next(taken)
        assert len(memory.called("get")) <= number // WINDOW + 2
    assert next(taken, None) is None
    assert {len(call.keys) for call in memory.called("get")} == {WINDOW}


def test_all_openings_share_what_is_read_ahead(
    memory: MemoryTables, memory_engine: Engine, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen slow openings read a window each, and not more ahead than fits into what they share."""
    write(memory_engine, store, A, *({b"%d" % number: b"1"} for number in range(10 * WINDOW)))
    window_bytes = WINDOW * reader._part_bytes(memory_engine.open(store, 1, NO_ATTEMPT).entry)
    monkeypatch.setattr(reader, "READ_AHEAD_BYTES_MAX", 4 * window_bytes)
    engine = make_engine(memory, parallel_requests=8)
    memory.calls.clear()
    openings = [iter(engine.open(store, 1, NO_ATTEMPT).chunks) for _ in range(16)]
    for opening in openings:
        next(opening)
    assert engine._reader._ahead.bytes == (4 + 15) * window_bytes
    assert all(len(list(opening)) == 10 * WINDOW - 1 for opening in openings[:8])
    assert len(memory.called("get")) <= 8 * 10 + 8 + 4
    del opening, openings
    assert engine._reader._ahead.bytes == 0
    engine.close()


def test_several_reads_are_under_way_at_once(failing_engine: Engine, failing_tables: FailingTables, store: str) -> None:
    """A recovery has as many reads under way at once as there may be requests."""
    write(failing_engine, store, A, *({b"%d" % number: b"1"} for number in range(4 * WINDOW)))
    pair = threading.Barrier(2, timeout=10)

    def meet(verb: str) -> None:
        if verb == "get":
            pair.wait()

    failing_tables._before = meet
    assert len(read(failing_engine, store, 1)) == 4 * WINDOW


def test_an_unread_opening_blocks_nothing(memory_engine: Engine, store: str) -> None:
    """A provider that stops reading keeps the engine neither from closing nor from other work."""
    write(memory_engine, store, A, *({b"%d" % number: b"1"} for number in range(4 * WINDOW)))
    chunks = memory_engine.open(store, 1, NO_ATTEMPT).chunks
    next(chunks)
    del chunks
    assert len(read(memory_engine, store, 1)) == 4 * WINDOW


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
    tables.write([(key, item)], Meter())
    said = corrupt(engine, store, 1)
    assert "parts and what names them do not agree" in said
    assert f"version=1 attempt={A.hex()} parts=2" in said


def test_a_row_cut_over_parts_that_loses_its_end_is_found(engine: Engine, tables: Tables, store: str) -> None:
    """Fragments that end before their chunk does are an error, never a shorter state."""
    write(engine, store, A, {b"a": noise(400_000)})
    found = entry(tables, store, 1)
    assert found.parts == 2
    group = group_key(store, 1)
    shorter = VersionEntry(1, B, NO_ATTEMPT, 9, found.schema, 1, 1, found.raw_bytes, 380_000, found.digest, found.keys)
    for _, item in parts_of(tables, store)[:1]:
        key = part_key(store, 1, B, 0, 4)
        fields = tuple(item[name] for name in parts._FIELDS)
        data = item["data"]
        assert isinstance(data, bytes)
        moved = item | item_key(key) | {"crc32": parts._part_crc(key, fields, data)}
        tables.write([(key, moved)], Meter())
    tables.append_version(group, encode_entry(store, shorter), "run-1", Meter())
    assert "parts and what names them do not agree" in corrupt(engine, store, 1)


@pytest.mark.parametrize("base", [(1, A), EMPTY], ids=["continued", "started over"])
def test_a_lost_meta_item_is_not_created_again(engines: Engines, tables: Tables, store: str, base: VersionId) -> None:
    """A store with versions is never taken for a new one: an epoch that begins at 1 again would lose to the old."""
    write(engines(), store, A, {b"a": b"1"})
    tables.delete([meta_key(store)], Meter())
    said = rf"its meta item is lost: restore.*dynastate drop.* table=snapshot store_shard={store}#0 item=meta"
    with pytest.raises(CorruptStateError, match=said):
        write(engines(), store, B, {b"a": b"2"}, base=base, run="run-2")
    assert "meta" not in items_of(tables, store)


# ---------------------------------------------------------------------------------------------------- abort and failure


def test_abort_deletes_what_was_written(engine: Engine, tables: Tables, store: str) -> None:
    """An aborted attempt leaves no part, and the versions there were stay as they are."""
    base = write(engine, store, A, {b"a": b"1"})
    before = parts_of(tables, store)
    under_way = begin(engine, store, B, base)
    for number in range(60):
        under_way.append(chunk({b"%d" % number: b"1"}))
    under_way.abort()
    assert parts_of(tables, store) == before
    assert read(engine, store, 1) == {b"a": b"1"}
    assert read(engine, store, *write(engine, store, C, {b"a": b"2"}, base=base)) == {b"a": b"2"}


def test_a_store_dropped_and_created_again_beside_a_live_executor(engines: Engines, tables: Tables, store: str) -> None:
    """Epochs start again with the meta item, whichever engine makes it: epochs remembered from before refuse no run."""
    for maker in range(2):
        one, other = engines(), engines()
        for number in range(6):
            engine, run = (one, other)[number % 2], f"run-{maker}-{number // 2}"
            write(engine, store, attempt(10 + number), {b"old": b"1"}, run=run)
        drop_stores(tables, [store], Meter())
        for number, engine in enumerate((one, other)):
            made = write(engine, store, attempt(20 + number), {b"new": b"%d" % number}, run=f"new-{maker}")
            assert read(engine, store, *made) == {b"new": b"%d" % number}
        drop_stores(tables, [store], Meter())


def test_abort_deletes_25_a_request(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """Parts that were written are deleted in requests of 25, queued ones are never sent."""
    under_way = begin(memory_engine, store, A)
    for number in range(70):
        under_way.append(chunk({b"%d" % number: b"1"}))
    under_way._pending.wait(5)
    under_way.abort()
    written = [key for call in memory.called("write") for key in call.keys]
    assert [len(call.keys) for call in memory.called("delete")] == [25, 25]
    assert sorted(key for call in memory.called("delete") for key in call.keys) == sorted(written)
    assert memory.keys("delta") == []


def test_abort_of_a_queued_attempt_writes_nothing(
    failing_engine: Engine, failing_tables: FailingTables, store: str
) -> None:
    """Parts that wait behind another's request are dropped by abort: neither written nor deleted."""
    door, arrived = threading.Semaphore(0), threading.Semaphore(0)

    def hold(verb: str) -> None:
        if verb == "write":
            arrived.release()
            assert door.acquire(timeout=10)

    memory = failing_tables.tables
    assert isinstance(memory, MemoryTables)
    failing_tables._before = hold
    others = [begin(failing_engine, f"{name}/0/0/default", A) for name in ("one", "two")]
    for other in others:
        for number in range(25):
            other.append(chunk({b"%d" % number: b"1"}))
    for _ in others:
        assert arrived.acquire(timeout=10)
    queued = begin(failing_engine, store, B)
    for number in range(25):
        queued.append(chunk({b"%d" % number: b"1"}))
    aborting = threading.Thread(target=queued.abort)
    aborting.start()
    wait_until(lambda: queued._pending.cancelled, "the abort does not begin")
    door.release(50)
    aborting.join(10)
    assert memory.called("delete") == []
    assert [key for key in memory.keys("delta") if key.store_shard.startswith(store)] == []
    for other in others:
        other.abort()


def test_abort_leaves_the_schema(failing_engine: Engine, failing_tables: FailingTables, store: str) -> None:
    """The schema item is shared: an abort must not delete what another version names."""
    failing_tables.fail("append_version", Fault(UnavailableError("throttled")))
    first = begin(failing_engine, store, A)
    first.append(chunk({b"a": b"1"}))
    with pytest.raises(UnavailableError):
        first.commit({0: 1}, SCHEMA)
    write(failing_engine, store, B, {b"a": b"2"})
    first.abort()
    found = entry(failing_tables, store, 1)
    assert found.attempt == B
    assert schema_key(store, found.schema).sort in items_of(failing_tables, store)
    assert read(failing_engine, store, 1) == {b"a": b"2"}
    assert {key.sort[21:53] for key, _ in parts_of(failing_tables, store)} == {B.hex()}


def test_abort_after_commit_does_nothing(engine: Engine, tables: Tables, store: str) -> None:
    """An abort that comes after the commit, or twice, leaves the version alone."""
    under_way = begin(engine, store, A)
    under_way.append(chunk({b"a": b"1"}))
    under_way.commit({0: 1}, SCHEMA)
    under_way.abort()
    under_way.abort()
    assert read(engine, store, 1) == {b"a": b"1"}


def test_an_unfinished_abort_is_reported(failing_engine: Engine, failing_tables: FailingTables, store: str) -> None:
    """Parts that could not be deleted stay invisible, and the caller gets the error."""
    under_way = begin(failing_engine, store, A)
    for number in range(25):
        under_way.append(chunk({b"%d" % number: b"1"}))
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
        ("append_version", False),
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
    failing_tables.fail("append_version", Fault(UnknownOutcomeError("it may have happened"), applied=applied))
    under_way = begin(failing_engine, store, A)
    under_way.append(chunk({b"a": b"1"}))
    with pytest.raises(UnknownOutcomeError):
        under_way.commit({0: 1}, SCHEMA)
    under_way.abort()
    assert len(parts_of(failing_tables, store)) == 1
    if applied:
        assert read(failing_engine, store, 1) == {b"a": b"1"}
    write(failing_engine, store, B, {b"a": b"1"})
    assert read(failing_engine, store, 1) == {b"a": b"1"}


def test_an_ended_attempt_refuses_any_step(engine: Engine, store: str) -> None:
    """After commit or abort an attempt is over: any further step is a defect of the caller."""
    committed, aborted = begin(engine, store, A), begin(engine, store, B)
    committed.commit({0: 0}, SCHEMA)
    aborted.abort()
    for ended in (committed, aborted):
        with pytest.raises(InternalError, match=f"append on an attempt that has ended store={store}"):
            ended.append(chunk({b"a": b"1"}))
        with pytest.raises(InternalError, match="commit on an attempt that has ended"):
            ended.commit({0: 0}, SCHEMA)


@pytest.mark.parametrize(("base", "by"), [((0, NO_ATTEMPT), NO_ATTEMPT), ((0, A), B), ((1, NO_ATTEMPT), B)])
def test_an_attempt_needs_an_id_and_a_parent(engine: Engine, store: str, base: VersionId, by: Attempt) -> None:
    """An attempt without an id, or with a parent that does not go with its base, is refused."""
    with pytest.raises(InternalError, match="an attempt needs an id"):
        begin(engine, store, by, base)


def test_a_store_name_that_fits_no_key_is_refused(engine: Engine) -> None:
    """A name that makes no key is refused before anything is sent, for writing and for reading."""
    for name in ("", "a#b", "n" * 1025):
        with pytest.raises(ConfigurationError, match="a store name must have"):
            begin(engine, name, A)
        with pytest.raises(ConfigurationError, match="a store name must have"):
            engine.open(name, 1, NO_ATTEMPT)


def test_an_attempt_with_too_many_parts_is_refused(engine: Engine, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence number has six digits; an attempt that needs more says what to do."""
    monkeypatch.setattr("dynastate.engine.commit.PARTS_MAX", 3)
    under_way = begin(engine, store, A)
    for _ in range(3):
        under_way.append(chunk({b"a": b"1"}))
    with pytest.raises(ConfigurationError, match="more shuffle partitions or smaller batches"):
        under_way.append(chunk({b"a": b"1"}))
    under_way.abort()


def test_a_row_over_64_mib_is_refused(engine: Engine, tables: Tables, store: str) -> None:
    """A chunk that no reader would accept is refused at the append, and its version is never made."""
    under_way = begin(engine, store, A)
    with pytest.raises(ConfigurationError, match="larger than 64 MiB"):
        under_way.append(Chunk(1, 0, 0, bytes(RAW_BYTES_MAX + 1)))
    under_way.abort()
    assert parts_of(tables, store) == []


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
    assert verify(memory, store).findings == ()
    refused = begin(engine, store, Z, fourth)
    with pytest.raises(ConfigurationError, match="larger than 64 MiB"):
        refused.append(chunk({b"key": row[b"key"] + b"x"}))
    refused.abort()


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


def test_a_namespace_serves_one_query(engine: Engine, tables: Tables, store: str) -> None:
    """A second query that begins in a namespace is refused at its first commit; the first one's state stays."""
    write(engine, store, A, {b"k": b"1"}, run="run-1")
    other = engine.begin(store, query_run("run-2", "file:/another/state"), 0, NO_ATTEMPT, B)
    with pytest.raises(ConfigurationError, match=f"namespace belongs to the query with the checkpoint {CHECKPOINT}"):
        other.commit({0: 0}, SCHEMA)
    other.abort()
    assert graph(tables, store).versions() == [1]


def test_a_copy_of_a_checkpoint_is_refused(engine: Engine, tables: Tables, store: str) -> None:
    """A run that resumes from another location writes nothing; the error names both, and both ways out."""
    one = write(engine, store, A, {b"k": b"1"}, run="run-1")
    before = items_of(tables, store)
    copy = engine.begin(store, query_run("run-2", "file:/copy/state"), *one, B)
    ways = (
        f"the checkpoint {CHECKPOINT}.*file:/copy/state.*dynastate fork .*dynastate adopt .* --checkpoint file:/copy\\."
    )
    with pytest.raises(ConfigurationError, match=ways):
        copy.commit({0: 1}, SCHEMA)
    copy.abort()
    assert items_of(tables, store) == before
    two = write(engine, store, C, {b"k": b"2"}, base=one, run="run-1")
    assert read(engine, store, *two) == {b"k": b"2"}
