"""What a query stores, found by its namespace; and what it has spent, added up from progress reports."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from dynastate import layout, overview, spending, stores
from dynastate.cost import Workload, predict
from dynastate.errors import ConfigurationError
from dynastate.prices import Prices
from dynastate.settings import Settings
from dynastate.stored import Stored
from dynastate.tables import Meter, Tables
from tests.fakes import MemoryTables
from tests.states import EMPTY, SHARDS, Engines, attempt, commit, history, take_snapshot, write

pytestmark = pytest.mark.usefixtures("always_worth_it")

START = datetime(2025, 1, 1, tzinfo=timezone.utc)
JOIN = tuple(name for name in stores.STORE_NAMES if name != "default")


# --------------------------------------------------------------------------------------------------------------- stored


def test_stores_are_found_by_operator_and_partition(memory: MemoryTables) -> None:
    """However many partitions there are, of every kind of operator; and none of another namespace."""
    wanted = [(0, f"mine/0/{partition}/default") for partition in range(237)]
    wanted += [(1, f"mine/1/{partition}/{name}") for partition in range(61) for name in JOIN]
    wanted += [(operator, f"mine/{operator}/0/default") for operator in range(2, 23)]
    others = ["mine2/0/0/default", "min/0/0/default"]
    for store in [*(store for _, store in wanted), *others]:
        memory.write([(layout.meta_key(store), layout.item_key(layout.meta_key(store)) | {"format": 1})], Meter())
    meter = Meter()
    found = list(stores.find_stores(memory, "mine", meter))
    assert sorted(found) == sorted(wanted)
    # Three windows of 20 operators; of partitions 100 at a time, 25 of a join; and one of each that is empty.
    assert meter.requests == 3 + (3 + 1) + (3 + 1) + 21 * 2


def test_what_is_held_is_what_the_tables_have(engines: Engines, tables: Tables, store: str) -> None:
    """Items and bytes are those of a listing, units those that the commits counted."""
    namespace, at = store.split("/", maxsplit=1)[0], engines()
    units = records = 0
    for name in (store, store.replace("/0/default", "/1/default"), f"{namespace}/1/0/default"):
        made, state = EMPTY, {b"%d" % number: b"one" * number for number in range(50)}
        for number in range(1, 15):
            made, spent = commit(at, name, attempt(number), state, base=made)
            units += spent["writeUnits"] - (3 if number == 1 else 0)  # meta, schema and the list
            units += number == 1
            records += len(state)
            if number in (5, 9):
                under_way = take_snapshot(at, name, made, state, lambda _: {b"7"})
                if under_way is not None:
                    assert under_way.commit()
    found = spending.holdings(tables, namespace, Meter())
    assert sorted(found) == [0, 1]
    assert found[0].stores == 2
    both = found[0] + found[1]
    listed = [
        item
        for name in (store, store.replace("/0/default", "/1/default"), f"{namespace}/1/0/default")
        for role in layout.SPECS
        for shard in range(SHARDS)
        for _, item in tables.query(role, layout.store_shard(name, shard), "!", "~", Meter())
    ]
    assert both.stored.items == len(listed)
    assert both.stored.bytes == pytest.approx(sum(map(layout.item_bytes, listed)), rel=0.03)
    assert (both.versions, both.records, both.write_units) == (42, records, units)
    kept = history(tables, store).snapshots()
    assert len(kept) == 2


def test_workload_is_what_the_formula_asks_for(engines: Engines, tables: Tables, store: str) -> None:
    """What the tables say of a query goes into the formula by its names."""
    at, made = engines(), EMPTY
    for number in range(1, 11):
        changes: dict[bytes, bytes | None] = {b"%03d" % row: b"%d" % number * 20 for row in range(100)}
        made = write(at, store, attempt(number), changes, base=made)
    (found,) = spending.holdings(tables, store.split("/", maxsplit=1)[0], Meter()).values()
    workload = found.workload()
    assert (workload["stores"], workload["changed_rows"], workload["families"]) == (1, 100, 1)
    assert workload["row_bytes"] == workload["state_row_bytes"] < 33
    assert workload["row_bytes"] * workload["compression"] == pytest.approx(10 + 3 + 20 + 2, rel=0.1)
    named: dict[str, Any] = workload
    assert predict(Workload(batches_a_day=100, **named)).day.write_units > 100


def test_a_namespace_without_stores_is_an_error(memory: MemoryTables) -> None:
    """The message says where the namespace stands."""
    with pytest.raises(ConfigurationError, match=r"no store of this namespace.*state/0/0/dynastate.*namespace=nobody"):
        spending.holdings(memory, "nobody", Meter())


def test_a_directory_that_clean_up_has_just_deleted(engines: Engines, tables: Tables, store: str) -> None:
    """The look goes on: the snapshot counts as far as its item says."""
    at = engines()
    state: dict[bytes, bytes] = {b"%d" % number: b"one" for number in range(50)}
    made = write(at, store, attempt(1), state)
    under_way = take_snapshot(at, store, made, state, lambda _: set(state))
    assert under_way is not None
    assert under_way.commit()
    before = spending.holding(tables, store, Meter())
    (snapshot,) = history(tables, store).snapshots()
    tables.delete([layout.directory_key(store, snapshot.version, snapshot.id)], Meter())
    after = spending.holding(tables, store, Meter())
    assert 0 < after.stored.items < before.stored.items
    assert after.rows == before.rows


def test_a_broken_directory_hides_nothing_else(engines: Engines, memory: MemoryTables, store: str) -> None:
    """Whoever looks at what is wrong still sees his stores: the snapshot counts as far as its item says."""
    at = engines(memory)
    state: dict[bytes, bytes] = {b"%d" % number: b"one" for number in range(50)}
    made = write(at, store, attempt(1), state)
    under_way = take_snapshot(at, store, made, state, lambda _: set(state))
    assert under_way is not None
    assert under_way.commit()
    whole = overview.overview(memory, store, Meter())
    (snapshot,) = history(memory, store).snapshots()
    memory.items[layout.directory_key(store, snapshot.version, snapshot.id)]["data"] = b"broken"
    found = overview.overview(memory, store, Meter())
    assert (found.version, found.snapshot) == (whole.version, whole.snapshot) == (1, 1)
    assert found.items < whole.items
    assert spending.holding(memory, store, Meter()).snapshot_rows == 50


# ---------------------------------------------------------------------------------------------------------------- spent


def report(batch: int, *, query: str = "q", run: str = "r", after_s: float = 0, **more: Any) -> dict[str, Any]:
    """Make a progress report as Spark does, of two operators; `units` are write units of each."""
    units = more.pop("units", 100)
    metrics = {
        **dict.fromkeys(("dynastateRequests", "dynastateMaintenanceRequests"), 10),
        "dynastateWriteUnits": units,
        "dynastateMaintenanceWriteUnits": 7,
        "dynastateReadUnits": 3,
        "dynastateMaintenanceReadUnits": 2,
        "dynastateDeleteUnits": 50,
        "dynastateNanodollars": 1_000,
        "dynastateMaintenanceNanodollars": 500,
        "dynastateStoredItems": 10 + batch,
        "dynastateStoredBytes": 1_000 + batch,
        "dynastateLoadMs": 1,
    }
    at = (START + timedelta(seconds=after_s)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "id": query,
        "runId": run,
        "name": None,
        "timestamp": at,
        "batchId": batch,
        "durationMs": {"addBatch": 10, "triggerExecution": 12},
        "stateOperators": [{"customMetrics": metrics}, {"customMetrics": metrics}],
    } | more


def lines(*reports: dict[str, Any]) -> list[str]:
    return [json.dumps(each) + "\n" for each in reports]


def test_batches_are_added_up() -> None:
    """Of all operators, with maintenance; the day is that of the observed interval."""
    reports = [report(number, after_s=30 * number, name="mine") for number in range(5)]
    (found,) = spending.spent(lines(*reports), "here", None)
    assert found == spending.Spent("q", "mine", 5, 200, 1_070, 50, 500, 15_000, Stored(28, 2_008), 30.0)
    assert found.dollars == 15e-6
    assert found.dollars_a_day == pytest.approx(3e-6 * 2880)


def test_money_at_other_prices() -> None:
    """With prices given, money is that of the units, deletes included."""
    prices = Prices.of(Settings.from_spark({"writePrice": "2", "readPrice": "1"}))
    (found,) = spending.spent(lines(report(0)), "here", prices)
    assert found.nanodollars == 2_000 * (214 + 100) + 1_000 * 10
    assert (found.interval_s, found.dollars_a_day) == (None, None)


def test_what_counts_and_what_does_not() -> None:
    """A report that is there twice counts once; triggers without a batch and other stores' queries count nothing."""
    idle = report(2, after_s=500, durationMs={"latestOffset": 1, "triggerExecution": 2})
    rocks = report(0, query="rocks", stateOperators=[{"customMetrics": {"rocksdbPutCount": 1}}])
    stateless = report(0, query="stateless", stateOperators=[])
    first, second = report(0), report(1, after_s=10)
    (found,) = spending.spent([*lines(first, second, first, idle, rocks, stateless), "\n", " "], "here", None)
    assert (found.batches, found.write_units, found.stored, found.interval_s) == (2, 428, Stored(22, 2_002), 10.0)


def test_queries_and_runs() -> None:
    """Queries are told apart; the time between two runs of one is no interval of batches."""
    reports = [report(number, query="a", after_s=10 * number) for number in range(3)]
    reports += [report(number, query="a", run="later", after_s=90_000 + 20 * number) for number in (2, 3)]
    reports += [report(0, query="b", units=1)]
    first, second = spending.spent(lines(*reports), "here", None)
    assert (first.query, first.batches) == ("a", 5)
    assert first.interval_s == pytest.approx(40 / 3)
    assert first.stored == Stored(26, 2_006)
    assert (second.query, second.batches, second.write_units) == ("b", 1, 16)


def test_an_event_log_is_taken_too() -> None:
    """Of Spark's events, those with a progress report count."""
    event = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"
    events: list[dict[str, Any]] = [
        {"Event": "SparkListenerLogStart", "Spark Version": "4.3.0"},
        {"Event": event, "progress": report(0)},
        {"Event": "SparkListenerTaskEnd", "Stage ID": 1},
        {"Event": event, "progress": report(1, after_s=5)},
        {"Event": event.replace("Progress", "Terminated"), "id": "q", "runId": "r"},
    ]
    (found,) = spending.spent(lines(*events), "here", None)
    assert (found.batches, found.interval_s) == (2, 5.0)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("{", "line 2 of here is no JSON; progress reports are one JSON object a line"),
        ('{"id": 1,\n', "line 2 of here is no JSON"),
        ("[1]", "line 2 of here is no progress report"),
        ("7", "line 2 of here is no progress report"),
        ('{"a": 1}', "line 2 of here is no progress report of Spark, or of another dynastate: 'durationMs'"),
        (json.dumps(report(1) | {"timestamp": "today"}), "line 2 of here is no progress report"),
        (json.dumps(report(1) | {"timestamp": None}), "line 2 of here is no progress report"),
        (
            json.dumps(report(1) | {"stateOperators": [{"customMetrics": {"dynastateRequests": 1}}]}),
            "another dynastate",
        ),
        (json.dumps(report(1) | {"stateOperators": [{"customMetrics": {"dynastateRequests": "x"}}]}), "line 2 of here"),
        (json.dumps(report(1) | {"stateOperators": 3}), "line 2 of here"),
    ],
)
def test_a_line_that_is_no_report_is_named(broken: str, says: str) -> None:
    """By its number and the file, and it is said what it should be."""
    with pytest.raises(ConfigurationError) as refused:
        spending.spent([*lines(report(0)), broken], "here", None)
    assert says in str(refused.value)


@pytest.mark.parametrize("given", [[], ["\n"], lines(report(0, stateOperators=[])), lines({"Event": "Other"})])
def test_no_batch_at_all_is_an_error(given: list[str]) -> None:
    """Nothing to add up is not nothing spent."""
    with pytest.raises(ConfigurationError, match="no batch of a query whose state is in DynamoDB is reported in here"):
        spending.spent(given, "here", None)


# ---------------------------------------------------------------------------------------------------- a file that grows


def committed(batch: int, *commit_ms: int, run: str = "r") -> str:
    """Make a line of progress, of operators whose commits took so long; the second was throttled twice, and so on."""
    metrics = report(batch)["stateOperators"][0]["customMetrics"]
    operators = [
        {"customMetrics": metrics | {"dynastateCommitMs": ms, "dynastateThrottles": 2 * operator}}
        for operator, ms in enumerate(commit_ms)
    ]
    return json.dumps(report(batch, run=run, stateOperators=operators)) + "\n"


def commits(file: spending.ReportFile, *runs: str) -> list[tuple[int, int]]:
    """What the last batch of some runs says, by operator."""
    return [(each["dynastateCommitMs"], each["dynastateThrottles"]) for each in file.last_batch(runs)]


def test_the_last_batch_by_operator(tmp_path: Path) -> None:
    """That of the runs which are asked for, whatever else reports to the same file; nothing, if they have no batch."""
    path = tmp_path / "progress.json"
    idle = json.dumps(report(9, durationMs={"triggerExecution": 2})) + "\n"
    path.write_text(committed(0, 1, 1) + committed(1, 30, 700) + "\n" + committed(5, 9, run="other") + idle)
    file = spending.ReportFile(str(path))
    assert commits(file, "r") == commits(file, "r", "before") == [(30, 0), (700, 2)]
    assert commits(file, "other") == [(9, 0)]
    assert commits(file, "r", "other") == [(9, 0)]
    assert commits(file, "nobody") == []


def test_each_report_is_read_once(tmp_path: Path) -> None:
    """What was read is not looked at again: here it is broken by then. A line that is being written is waited for."""
    path = tmp_path / "progress.json"
    first, second = committed(0, 1), committed(1, 20)
    path.write_text(first + second[:70])
    file = spending.ReportFile(str(path))
    assert commits(file, "r") == commits(file, "r") == [(1, 0)]
    path.write_text("#" * len(first[:-1]) + "\n" + second)
    assert commits(file, "r") == [(20, 0)]
    with path.open("a") as appended:
        appended.write("no JSON\n")
    with pytest.raises(ConfigurationError, match=r"line 3 of \S+progress.json is no JSON"):
        file.last_batch(["r"])


@pytest.mark.parametrize("how", ["cut", "replaced"])
def test_a_file_that_is_begun_anew_is_read_anew(tmp_path: Path, how: str) -> None:
    """As a program that writes its log from the start does, or whoever moves full ones away."""
    path = tmp_path / "progress.json"
    path.write_text(committed(0, 1) + committed(1, 2))
    file = spending.ReportFile(str(path))
    assert commits(file, "r") == [(2, 0)]
    if how == "replaced":
        path.rename(tmp_path / "old")
    path.write_text(committed(2, 3) if how == "cut" else "".join(committed(2 + each, 3 + each) for each in range(5)))
    assert commits(file, "r") == ([(3, 0)] if how == "cut" else [(7, 0)])
